#include "writer_engine.h"

#include <pthread.h>
#include <time.h>

#define SEQUENCES_MAX 1024
#define EVENTS_MAX    65536
#define EOS           1

struct writer_sequence {
    bool is_open, is_asked, is_cancelled;
    int generations;
    struct buffer first;
    struct token_list ids; /* of the turn that is written */
    bool is_endless, fails;
    enum finish_reason reason;
    size_t at;
    int64_t next_us;
    int delay_us;
    int32_t context, added, sampled, tokens_max;
    int32_t forced; /* -1: none */
    int64_t deadline_ms;
};

struct writer_engine {
    struct loop *loop;
    const struct tokenizer *tokenizer;
    writer_engine_write *write;
    void *context;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool is_closing, is_lost, refuses_forks;
    struct writer_sequence sequences[SEQUENCES_MAX]; /* [count]; ids from 1 */
    size_t count;
    int cancelled;
    int64_t appended;
    struct engine_event events[EVENTS_MAX];
    size_t event_head, event_tail;
};

static struct writer_sequence *find(struct writer_engine *engine, uint64_t id) {
    ASSERT(id >= 1 && id <= engine->count && engine->sequences[id - 1].is_open);
    return &engine->sequences[id - 1];
}

static int64_t now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* ---- writing; lock held --------------------------------------------------------------------- */

static void post(struct writer_engine *engine, const struct engine_event *event) {
    while (engine->event_tail - engine->event_head == EVENTS_MAX && !engine->is_closing) {
        (void)pthread_cond_wait(&engine->changed, &engine->lock);
    }
    engine->events[engine->event_tail++ % EVENTS_MAX] = *event;
    loop_wake(engine->loop);
}

static void finish(struct writer_engine *engine, uint64_t id, enum finish_reason reason) {
    struct writer_sequence *one = find(engine, id);
    struct engine_event event = {.type = ENGINE_FINISHED, .sequence = id, .reason = reason};
    event.facts = (struct generation_facts){
        .prompt_tokens = one->context + one->added,
        .reused = one->context,
        .evaluated = one->added,
        .sampled = one->sampled,
        .hit_position = one->context,
        .window_source = one->context > 0 ? "live" : "cold",
        .lineage = "00",
        .decoder_lineage = "0",
        .fork_index = -1,
        .stop_index = -1,
    };
    if (reason == FINISH_ERROR) {
        event.error = (struct error){.code = RESULT_DEVICE, .message = "the writer engine failed"};
    }
    bool has_begun = one->sampled > 0 || one->tokens_max == 0 || reason == FINISH_EOS;
    one->context += has_begun ? one->added + one->sampled : 0;
    one->is_asked = false;
    engine->cancelled += reason == FINISH_CANCELLED ? 1 : 0;
    token_list_deinit(&one->ids);
    post(engine, &event);
}

static void step(struct writer_engine *engine, uint64_t id) {
    struct writer_sequence *one = find(engine, id);
    bool at_end = one->at >= one->ids.count;
    if (one->is_cancelled) {
        finish(engine, id, FINISH_CANCELLED);
    } else if (one->deadline_ms != 0 && now_us() / 1000 >= one->deadline_ms) {
        finish(engine, id, FINISH_DEADLINE);
    } else if (engine->is_lost || (one->fails && one->sampled > 2)) {
        finish(engine, id, FINISH_ERROR);
    } else if (one->sampled >= one->tokens_max) {
        finish(engine, id, FINISH_LENGTH);
    } else if (at_end && one->reason != FINISH_EOS) {
        finish(engine, id, one->reason);
    } else if (now_us() >= one->next_us) {
        int32_t token = !at_end           ? one->ids.ids[one->at]
                        : one->is_endless ? one->ids.ids[one->ids.count - 1]
                                          : EOS;
        float logprob = -0.5F;
        if (one->forced >= 0) { /* likely where it is what would have been written */
            logprob = token == one->forced ? -0.1F : -2.5F;
            token = one->forced;
        }
        one->at++;
        one->sampled++;
        one->next_us = now_us() + one->delay_us;
        struct engine_event event = {
            .type = ENGINE_TOKEN, .sequence = id, .token = token, .logprob = logprob};
        post(engine, &event);
        if (at_end && !one->is_endless) {
            finish(engine, id, FINISH_EOS);
        }
    }
}

static void *writer_main(void *context) {
    struct writer_engine *engine = context;
    const struct timespec pause = {.tv_nsec = 20000};
    (void)pthread_mutex_lock(&engine->lock);
    while (!engine->is_closing) {
        bool has_work = false;
        for (uint64_t id = 1; id <= engine->count; id++) {
            if (engine->sequences[id - 1].is_open && engine->sequences[id - 1].is_asked) {
                has_work = true;
                step(engine, id);
            }
        }
        if (has_work) {
            (void)pthread_mutex_unlock(&engine->lock);
            (void)nanosleep(&pause, NULL);
            (void)pthread_mutex_lock(&engine->lock);
        } else {
            (void)pthread_cond_wait(&engine->changed, &engine->lock);
        }
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ---- ports ---------------------------------------------------------------------------------- */

static result
ask(struct writer_engine *engine, const struct generation_request *request, struct error *error) {
    struct writer_sequence *one = find(engine, request->sequence);
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    ASSERT(!one->is_asked); /* one generation at a time */
    for (size_t i = 0; i < request->append_count; i++) {
        int32_t id = request->append[i];
        bool is_marker = tokenizer_is_added(engine->tokenizer, id);
        TRY(buffer_append(
            &text,
            is_marker ? tokenizer_spelling(engine->tokenizer, id)
                      : tokenizer_bytes(engine->tokenizer, id),
            error
        ));
    }
    if (one->first.length == 0) {
        TRY(buffer_append(&one->first, buffer_view(&text), error));
    }
    const struct writer_prompt prompt = {
        .sequence = request->sequence,
        .text = buffer_text(&text),
        .first = buffer_text(&one->first),
        .generation = one->generations++,
    };
    struct fake_turn turn = {.text = "x"};
    if (request->tokens_max > 0) {
        turn = engine->write(engine->context, &prompt);
    }
    token_list_init(&one->ids, TOKEN_LIST_CEILING_DEFAULT);
    TRY(tokenizer_encode(
        engine->tokenizer, view_of_text(turn.text), TOKENIZER_MARKERS_ON, &one->ids, error
    ));
    one->forced = request->sampling.bias_count == 1 ? request->sampling.bias[0].id : -1;
    one->is_endless = turn.is_endless;
    one->fails = turn.fails;
    one->reason = turn.reason;
    one->delay_us = turn.delay_us;
    one->next_us = now_us() + turn.delay_us;
    one->at = 0;
    one->sampled = 0;
    one->added = (int32_t)request->append_count;
    one->tokens_max = request->tokens_max;
    one->deadline_ms = request->deadline_ms;
    one->is_cancelled = false;
    one->is_asked = true;
    engine->appended += (int64_t)request->append_count;
    (void)pthread_cond_broadcast(&engine->changed);
    return OK;
}

static result
writer_generate(void *context, const struct generation_request *request, struct error *error) {
    struct writer_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    result asked = OK;
    if (engine->is_lost) {
        asked = error_set(error, RESULT_DEVICE, 0, __FILE__, __LINE__, "the engine is lost");
    } else {
        asked = ask(engine, request, error);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return asked;
}

static void writer_cancel(void *context, uint64_t sequence) {
    struct writer_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    find(engine, sequence)->is_cancelled = true;
    (void)pthread_mutex_unlock(&engine->lock);
}

static void
writer_tell(void *context, uint64_t sequence, enum sequence_event event, int64_t estimate_ms) {
    (void)context;
    (void)sequence;
    (void)event;
    (void)estimate_ms;
}

static void writer_trouble(void *context, char *out, size_t bytes) {
    (void)context;
    ASSERT(bytes > 0);
    out[0] = '\0';
}

static bool writer_next_event(void *context, struct engine_event *out) {
    struct writer_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    bool has_event = engine->event_head != engine->event_tail;
    if (has_event) {
        *out = engine->events[engine->event_head++ % EVENTS_MAX];
        (void)pthread_cond_broadcast(&engine->changed);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return has_event;
}

static bool writer_watch(void *context, int64_t stuck_ms, struct engine_stuck *out) {
    (void)context;
    (void)stuck_ms;
    (void)out;
    return false;
}

static void writer_statistics(void *context, struct engine_statistics *out) {
    (void)context;
    *out = (struct engine_statistics){0};
}

static int32_t writer_length(void *context, uint64_t sequence) {
    struct writer_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    int32_t length = find(engine, sequence)->context;
    (void)pthread_mutex_unlock(&engine->lock);
    return length;
}

static uint64_t add(struct writer_engine *engine, int32_t context) {
    ASSERT(engine->count < SEQUENCES_MAX);
    struct writer_sequence *one = &engine->sequences[engine->count++];
    *one = (struct writer_sequence){.is_open = true, .context = context};
    buffer_init(&one->first, BUFFER_CEILING_DEFAULT);
    return engine->count;
}

static result writer_sequence_create(void *context, uint64_t *out, struct error *error) {
    struct writer_engine *engine = context;
    (void)error;
    (void)pthread_mutex_lock(&engine->lock);
    *out = add(engine, 0);
    (void)pthread_mutex_unlock(&engine->lock);
    return OK;
}

static result writer_fork(void *context, uint64_t parent, uint64_t *out, struct error *error) {
    struct writer_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    const struct writer_sequence *one = find(engine, parent);
    result made = OK;
    ASSERT(!one->is_asked);
    if (engine->is_lost) {
        made = error_set(error, RESULT_DEVICE, 0, __FILE__, __LINE__, "the engine is lost");
    } else if (engine->refuses_forks) {
        made = error_set(error, RESULT_LIMIT, 0, __FILE__, __LINE__, "all sequences are in use");
    } else {
        *out = add(engine, one->context);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return made;
}

static void writer_sequence_destroy(void *context, uint64_t sequence) {
    struct writer_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    struct writer_sequence *one = find(engine, sequence);
    ASSERT(!one->is_asked);
    one->is_open = false;
    buffer_deinit(&one->first);
    (void)pthread_mutex_unlock(&engine->lock);
}

struct engine_ports writer_engine_ports(struct writer_engine *engine) {
    return (struct engine_ports){
        .context = engine,
        .generate = writer_generate,
        .cancel = writer_cancel,
        .tell = writer_tell,
        .cache_trouble = writer_trouble,
        .next_event = writer_next_event,
        .watch = writer_watch,
        .statistics = writer_statistics,
        .length = writer_length,
        .create = writer_sequence_create,
        .fork = writer_fork,
        .destroy = writer_sequence_destroy,
    };
}

/* ---- life ----------------------------------------------------------------------------------- */

struct writer_engine *writer_engine_create(
    struct loop *loop, const struct tokenizer *tokenizer, writer_engine_write *write, void *context
) {
    struct writer_engine *engine = calloc(1, sizeof *engine);
    ASSERT(engine != NULL);
    engine->loop = loop;
    engine->tokenizer = tokenizer;
    engine->write = write;
    engine->context = context;
    int status = pthread_mutex_init(&engine->lock, NULL);
    status |= pthread_cond_init(&engine->changed, NULL);
    status |= pthread_create(&engine->thread, NULL, writer_main, engine);
    ASSERT(status == 0);
    return engine;
}

void writer_engine_destroy(struct writer_engine *engine) {
    (void)pthread_mutex_lock(&engine->lock);
    engine->is_closing = true;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
    for (size_t i = 0; i < engine->count; i++) {
        ASSERT(!engine->sequences[i].is_asked); /* no run left one behind */
        buffer_deinit(&engine->sequences[i].first);
    }
    (void)pthread_cond_destroy(&engine->changed);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

void writer_engine_lose(struct writer_engine *engine) {
    (void)pthread_mutex_lock(&engine->lock);
    engine->is_lost = true;
    (void)pthread_mutex_unlock(&engine->lock);
}

void writer_engine_lose_soon(struct writer_engine *engine) {
    engine->is_lost = true; /* its lock is held meanwhile */
}

void writer_engine_refuse_forks(struct writer_engine *engine) {
    (void)pthread_mutex_lock(&engine->lock);
    engine->refuses_forks = true;
    (void)pthread_mutex_unlock(&engine->lock);
}

int writer_engine_open(struct writer_engine *engine) {
    int open = 0;
    (void)pthread_mutex_lock(&engine->lock);
    for (size_t i = 0; i < engine->count; i++) {
        open += engine->sequences[i].is_open ? 1 : 0;
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return open;
}

int writer_engine_cancelled(const struct writer_engine *engine) {
    return engine->cancelled;
}

int64_t writer_engine_appended(const struct writer_engine *engine) {
    return engine->appended;
}
