#include "crowd_engine.h"

#include <pthread.h>
#include <time.h>

#define SEQUENCES_MAX 256
#define EVENTS_MAX    65536
#define EOS           1

struct crowd_sequence {
    const struct fake_turn *turns;
    size_t turn_count, turn;
    bool is_asked, is_cancelled;
    struct token_list ids; /* of the turn that is written */
    size_t at;             /* of them */
    int32_t context, added, sampled, tokens_max;
    int64_t deadline_ms, appended;
    int ends;
};

struct crowd_engine {
    struct loop *loop;
    const struct tokenizer *tokenizer;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool is_closing;
    struct crowd_sequence sequences[SEQUENCES_MAX]; /* [sequence_count]; ids from 1 */
    size_t sequence_count;
    uint64_t next_create; /* 0: none is expected */
    struct engine_event events[EVENTS_MAX];
    size_t event_head, event_tail;
};

static struct crowd_sequence *find(struct crowd_engine *engine, uint64_t id) {
    ASSERT(id >= 1 && id <= engine->sequence_count);
    return &engine->sequences[id - 1];
}

/* Lock held. */
static void post(struct crowd_engine *engine, const struct engine_event *event) {
    while (engine->event_tail - engine->event_head == EVENTS_MAX && !engine->is_closing) {
        (void)pthread_cond_wait(&engine->changed, &engine->lock);
    }
    engine->events[engine->event_tail++ % EVENTS_MAX] = *event;
    loop_wake(engine->loop);
}

static void finish(struct crowd_engine *engine, uint64_t id, enum finish_reason reason) {
    struct crowd_sequence *one = find(engine, id);
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
        event.error = (struct error){.code = RESULT_DEVICE, .message = "the crowd engine failed"};
    }
    bool is_prefill = one->tokens_max == 0 && reason == FINISH_LENGTH;
    bool has_begun = one->sampled > 0 || reason == FINISH_EOS || is_prefill;
    one->context += has_begun ? one->added + one->sampled : 0; /* else it is as it was */
    one->appended += has_begun ? one->added : 0;
    one->is_asked = false;
    one->turn += !is_prefill && one->turn + 1 < one->turn_count ? 1 : 0;
    token_list_deinit(&one->ids);
    post(engine, &event);
}

/* One token, or the end. Lock held. */
static void step(struct crowd_engine *engine, uint64_t id) {
    struct crowd_sequence *one = find(engine, id);
    const struct fake_turn *turn = &one->turns[one->turn];
    const struct clock clock = clock_real();
    bool at_end = one->at >= one->ids.count;
    if (one->is_cancelled) {
        finish(engine, id, FINISH_CANCELLED);
    } else if (one->deadline_ms != 0 && clock_monotonic_ms(&clock) >= one->deadline_ms) {
        finish(engine, id, FINISH_DEADLINE);
    } else if (turn->fails && one->sampled > 2) {
        finish(engine, id, FINISH_ERROR);
    } else if (at_end && turn->reason != FINISH_EOS) {
        finish(engine, id, turn->reason);
    } else if (one->sampled >= one->tokens_max) {
        finish(engine, id, FINISH_LENGTH);
    } else {
        int32_t token = !at_end            ? one->ids.ids[one->at]
                        : turn->is_endless ? one->ids.ids[one->ids.count - 1]
                                           : EOS;
        one->at++;
        one->sampled++;
        post(
            engine,
            &(struct engine_event
            ){.type = ENGINE_TOKEN, .sequence = id, .token = token, .logprob = -0.5F}
        );
        if (at_end && !turn->is_endless) {
            finish(engine, id, FINISH_EOS);
        }
    }
}

static void *crowd_main(void *context) {
    struct crowd_engine *engine = context;
    const struct timespec pause = {.tv_nsec = 20000};
    (void)pthread_mutex_lock(&engine->lock);
    while (!engine->is_closing) {
        bool has_work = false;
        for (uint64_t id = 1; id <= engine->sequence_count; id++) {
            if (find(engine, id)->is_asked) {
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
crowd_generate(void *context, const struct generation_request *request, struct error *error) {
    struct crowd_engine *engine = context;
    struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    (void)pthread_mutex_lock(&engine->lock);
    struct crowd_sequence *one = find(engine, request->sequence);
    ASSERT(!one->is_asked); /* one generation at a time */
    const char *text = one->turns[one->turn].text;
    result encoded =
        tokenizer_encode(engine->tokenizer, view_of_text(text), TOKENIZER_MARKERS_ON, &ids, error);
    if (is_ok(encoded)) {
        one->ids = ids;
        one->at = 0;
        one->sampled = 0;
        one->added = (int32_t)request->append_count;
        one->tokens_max = request->tokens_max;
        one->deadline_ms = request->deadline_ms;
        one->is_cancelled = false;
        one->is_asked = true;
        (void)pthread_cond_broadcast(&engine->changed);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return encoded;
}

static void crowd_cancel(void *context, uint64_t sequence) {
    struct crowd_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    find(engine, sequence)->is_cancelled = true;
    (void)pthread_mutex_unlock(&engine->lock);
}

static void
crowd_tell(void *context, uint64_t sequence, enum sequence_event event, int64_t estimate_ms) {
    struct crowd_engine *engine = context;
    (void)estimate_ms;
    (void)pthread_mutex_lock(&engine->lock);
    find(engine, sequence)->ends += event == SEQUENCE_WAITING ? 0 : 1;
    (void)pthread_mutex_unlock(&engine->lock);
}

static void crowd_trouble(void *context, char *out, size_t bytes) {
    (void)context;
    ASSERT(bytes > 0);
    out[0] = '\0';
}

static bool crowd_next_event(void *context, struct engine_event *out) {
    struct crowd_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    bool has_event = engine->event_head != engine->event_tail;
    if (has_event) {
        *out = engine->events[engine->event_head++ % EVENTS_MAX];
        (void)pthread_cond_broadcast(&engine->changed);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return has_event;
}

static bool crowd_watch(void *context, int64_t stuck_ms, struct engine_stuck *out) {
    (void)context;
    (void)stuck_ms;
    (void)out;
    return false;
}

static void crowd_statistics(void *context, struct engine_statistics *out) {
    (void)context;
    *out = (struct engine_statistics){0};
}

static int32_t crowd_length(void *context, uint64_t sequence) {
    struct crowd_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    int32_t length = find(engine, sequence)->context;
    (void)pthread_mutex_unlock(&engine->lock);
    return length;
}

static result crowd_create(void *context, uint64_t *out, struct error *error) {
    struct crowd_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    uint64_t from = engine->next_create;
    (void)pthread_mutex_unlock(&engine->lock);
    if (from == 0) {
        FAIL(error, LIMIT, "no further sequence was expected");
    }
    const struct crowd_sequence *one = find(engine, from);
    *out = crowd_engine_add(engine, one->turns + one->turn, one->turn_count - one->turn);
    return OK;
}

static void crowd_destroy(void *context, uint64_t sequence) {
    struct crowd_engine *engine = context;
    ASSERT(!find(engine, sequence)->is_asked); /* it is kept for what the test asks of it */
}

int32_t crowd_engine_length(struct crowd_engine *engine, uint64_t sequence) {
    return crowd_length(engine, sequence);
}

struct engine_ports crowd_engine_ports(struct crowd_engine *engine) {
    return (struct engine_ports){
        .context = engine,
        .generate = crowd_generate,
        .cancel = crowd_cancel,
        .tell = crowd_tell,
        .cache_trouble = crowd_trouble,
        .next_event = crowd_next_event,
        .watch = crowd_watch,
        .statistics = crowd_statistics,
        .length = crowd_length,
        .create = crowd_create,
        .destroy = crowd_destroy,
    };
}

/* ---- life ----------------------------------------------------------------------------------- */

struct crowd_engine *crowd_engine_create(struct loop *loop, const struct tokenizer *tokenizer) {
    struct crowd_engine *engine = calloc(1, sizeof *engine);
    ASSERT(engine != NULL);
    engine->loop = loop;
    engine->tokenizer = tokenizer;
    int status = pthread_mutex_init(&engine->lock, NULL);
    status |= pthread_cond_init(&engine->changed, NULL);
    status |= pthread_create(&engine->thread, NULL, crowd_main, engine);
    ASSERT(status == 0);
    return engine;
}

void crowd_engine_destroy(struct crowd_engine *engine) {
    (void)pthread_mutex_lock(&engine->lock);
    engine->is_closing = true;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
    for (size_t i = 0; i < engine->sequence_count; i++) {
        ASSERT(!engine->sequences[i].is_asked); /* no run left one behind */
    }
    (void)pthread_cond_destroy(&engine->changed);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

uint64_t
crowd_engine_add(struct crowd_engine *engine, const struct fake_turn *turns, size_t turn_count) {
    (void)pthread_mutex_lock(&engine->lock);
    ASSERT(engine->sequence_count < SEQUENCES_MAX && turn_count > 0);
    struct crowd_sequence *one = &engine->sequences[engine->sequence_count++];
    *one = (struct crowd_sequence){.turns = turns, .turn_count = turn_count};
    uint64_t id = engine->sequence_count;
    (void)pthread_mutex_unlock(&engine->lock);
    return id;
}

uint64_t crowd_engine_fork(
    struct crowd_engine *engine, uint64_t parent, const struct fake_turn *turns, size_t turn_count
) {
    uint64_t id = crowd_engine_add(engine, turns, turn_count);
    int32_t held = crowd_length(engine, parent);
    (void)pthread_mutex_lock(&engine->lock);
    ASSERT(!find(engine, parent)->is_asked);
    find(engine, id)->context = held;
    (void)pthread_mutex_unlock(&engine->lock);
    return id;
}

void crowd_engine_next_create(struct crowd_engine *engine, uint64_t sequence) {
    (void)pthread_mutex_lock(&engine->lock);
    engine->next_create = sequence;
    (void)pthread_mutex_unlock(&engine->lock);
}

int64_t crowd_engine_appended(const struct crowd_engine *engine, uint64_t sequence) {
    return engine->sequences[sequence - 1].appended;
}

int crowd_engine_ends(const struct crowd_engine *engine, uint64_t sequence) {
    return engine->sequences[sequence - 1].ends;
}
