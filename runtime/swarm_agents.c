/* See swarm_agents.h. */
#include "swarm_agents.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ANSWER_BYTES_MAX ((size_t)4 << 20) /* 32 results with their details */

static_assert(TOOL_AGENTS_MAX <= SWARM_CHILDREN_MAX, "what a tool lets pass is not too much");
static_assert(TOOL_AGENTS_NAME_BYTES >= SWARM_NAME_BYTES, "a name fits");

struct swarm_agents {
    struct tool_agents port;
    struct loop *loop;
    swarm_agents_asked *asked;
    void *context;
    int answered_fd; /* readable when there is an answer */

    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    struct swarm_ask ask; /* its views are those of the call that waits */
    struct loop_job post;
    bool is_posted;  /* on its way to the loop */
    bool is_waiting; /* the call waits for the answer to ask.number */
    bool is_put_off; /* that was not put to anybody yet */
    bool is_reading; /* the loop reads `ask`: the call stays */
    bool has_answer;
    result made; /* of the copy of the answer */
    struct error error;
    enum tool_status status;
    struct buffer text;
    char started[TOOL_AGENTS_NAME_BYTES];
};

/* ---- loop thread ------------------------------------------------------------------------------- */

void swarm_agents_ask_again(struct swarm_agents *agents) {
    (void)pthread_mutex_lock(&agents->lock);
    agents->is_reading = agents->is_waiting && agents->is_put_off;
    bool is_there = agents->is_reading;
    agents->is_put_off = false;
    (void)pthread_mutex_unlock(&agents->lock);
    if (!is_there) {
        return; /* the call was cancelled meanwhile */
    }
    bool is_taken = agents->asked(agents->context, &agents->ask);
    (void)pthread_mutex_lock(&agents->lock);
    agents->is_reading = false;
    agents->is_put_off = !is_taken;
    (void)pthread_cond_signal(&agents->changed);
    (void)pthread_mutex_unlock(&agents->lock);
}

static void came(void *context) {
    struct swarm_agents *agents = context;
    (void)pthread_mutex_lock(&agents->lock);
    agents->is_posted = false;
    (void)pthread_mutex_unlock(&agents->lock);
    swarm_agents_ask_again(agents);
}

static void wake(int fd) {
    const uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);
    ASSERT(written == (ssize_t)sizeof one); /* a counter that is read after each answer */
}

void swarm_agents_answer(struct swarm_agents *agents, const struct swarm_agents_answer *answer) {
    (void)pthread_mutex_lock(&agents->lock);
    if (agents->is_waiting && !agents->has_answer && agents->ask.number == answer->number) {
        buffer_clear(&agents->text);
        agents->made = buffer_append(&agents->text, answer->text, &agents->error);
        agents->status = answer->status;
        int length = snprintf(agents->started, sizeof agents->started, "%s", answer->started);
        ASSERT(length >= 0 && (size_t)length < sizeof agents->started);
        agents->has_answer = true;
        wake(agents->answered_fd);
    }
    (void)pthread_mutex_unlock(&agents->lock);
}

/* ---- the tool's thread ------------------------------------------------------------------------- */

static enum swarm_ask_type type_of(enum tool_agents_verb verb) {
    static const enum swarm_ask_type types[] = {
        [TOOL_AGENTS_SPAWN] = SWARM_ASK_SPAWN,
        [TOOL_AGENTS_FORK] = SWARM_ASK_FORK,
        [TOOL_AGENTS_SEND] = SWARM_ASK_SEND,
        [TOOL_AGENTS_WAIT] = SWARM_ASK_WAIT,
        [TOOL_AGENTS_RECEIVE] = SWARM_ASK_RECEIVE,
        [TOOL_AGENTS_CANCEL] = SWARM_ASK_CANCEL,
        [TOOL_AGENTS_MERGE] = SWARM_ASK_MERGE,
    };
    return types[verb];
}

static enum swarm_join join_of(enum tool_agents_join join) {
    return join == TOOL_AGENTS_ANY       ? SWARM_JOIN_ANY
           : join == TOOL_AGENTS_PASSING ? SWARM_JOIN_PASSING
                                         : SWARM_JOIN_ALL;
}

/* Lock held. False: an earlier question, of a call that was cancelled, is still on its way. */
static bool put(struct swarm_agents *agents, const struct tool_agents_ask *ask) {
    if (agents->is_posted) {
        return false;
    }
    ASSERT(!agents->is_waiting);
    agents->ask = (struct swarm_ask){
        .type = type_of(ask->verb),
        .number = agents->ask.number + 1,
        .briefs = ask->briefs,
        .brief_count = ask->brief_count,
        .count = ask->count,
        .name = ask->name,
        .names = ask->names,
        .name_count = ask->name_count,
        .join = join_of(ask->join),
        .text = ask->text,
        .tokens = ask->tokens,
        .time_ms = ask->time_ms,
    };
    agents->is_posted = true;
    agents->is_put_off = true;
    agents->is_waiting = true;
    agents->has_answer = false;
    agents->post = (struct loop_job){.done = came, .context = agents};
    loop_job_post(agents->loop, &agents->post);
    return true;
}

/* Until there is an answer, or the call is cancelled. */
static void wait_for_answer(const struct swarm_agents *agents, int cancel_fd) {
    struct pollfd both[] = {
        {.fd = agents->answered_fd, .events = POLLIN}, {.fd = cancel_fd, .events = POLLIN}};
    while (both[0].revents == 0 && both[1].revents == 0) {
        int ready = poll(both, COUNT_OF(both), -1);
        ASSERT(ready > 0 || errno == EINTR);
    }
}

/* Lock held. What there is, and nobody waits any more. */
static result
take(struct swarm_agents *agents, struct tool_agents_answer *answer, struct error *error) {
    while (agents->is_reading) {
        (void)pthread_cond_wait(&agents->changed, &agents->lock);
    }
    agents->is_waiting = false;
    if (!agents->has_answer) {
        answer->status = TOOL_CANCELLED;
        return buffer_append_text(answer->text, "error: cancelled", error);
    }
    uint64_t count = 0;
    ssize_t got = read(agents->answered_fd, &count, sizeof count);
    ASSERT(got == (ssize_t)sizeof count && count == 1);
    agents->has_answer = false;
    answer->status = agents->status;
    memcpy(answer->started, agents->started, sizeof answer->started);
    if (is_failed(agents->made)) {
        if (error != NULL) {
            *error = agents->error;
        }
        return agents->made;
    }
    return buffer_append(answer->text, buffer_view(&agents->text), error);
}

static result
ask(void *context,
    const struct tool_agents_ask *ask,
    struct tool_agents_answer *answer,
    struct error *error) {
    struct swarm_agents *agents = context;
    (void)pthread_mutex_lock(&agents->lock);
    bool is_put = put(agents, ask);
    (void)pthread_mutex_unlock(&agents->lock);
    if (is_put) {
        wait_for_answer(agents, ask->cancel_fd);
    }
    (void)pthread_mutex_lock(&agents->lock);
    result taken = take(agents, answer, error);
    (void)pthread_mutex_unlock(&agents->lock);
    return taken;
}

/* ---- life -------------------------------------------------------------------------------------- */

result swarm_agents_create(
    struct swarm_agents **out,
    struct loop *loop,
    swarm_agents_asked *asked,
    void *context,
    struct error *error
) {
    CLEANUP(free_cleanup) struct swarm_agents *agents = calloc(1, sizeof *agents);
    if (agents == NULL) {
        FAIL(error, MEMORY, "no memory for an agent's line to the swarm");
    }
    agents->port = (struct tool_agents){.context = agents, .ask = ask};
    agents->loop = loop;
    agents->asked = asked;
    agents->context = context;
    agents->answered_fd = eventfd(0, EFD_CLOEXEC);
    if (agents->answered_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "no descriptor for an agent's line to the swarm");
    }
    int status = pthread_mutex_init(&agents->lock, NULL);
    status |= pthread_cond_init(&agents->changed, NULL);
    ASSERT(status == 0); /* they take no resource */
    buffer_init(&agents->text, ANSWER_BYTES_MAX);
    *out = TAKE(agents);
    return OK;
}

void swarm_agents_destroy(struct swarm_agents *agents) {
    if (agents == NULL) {
        return;
    }
    ASSERT(!agents->is_waiting && !agents->is_posted);
    buffer_deinit(&agents->text);
    (void)pthread_cond_destroy(&agents->changed);
    (void)pthread_mutex_destroy(&agents->lock);
    (void)close(agents->answered_fd);
    free(agents);
}

const struct tool_agents *swarm_agents_port(struct swarm_agents *agents) {
    return &agents->port;
}
