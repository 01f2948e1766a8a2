#include "runtime_support.h"

#include <pthread.h>
#include <time.h>

#define FAKE_EVENTS_MAX 65536
#define FAKE_EOS        1
#define FAKE_TOLD_MAX   64

struct fake_engine {
    struct loop *loop;
    const struct tokenizer *tokenizer;
    const struct fake_turn *turns;
    size_t turn_count;

    pthread_t thread;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t changed;
    bool is_closing;
    bool has_request;
    bool is_cancelled;
    int32_t tokens_max;
    int32_t context;
    int32_t prompt_added;
    int generations;
    int64_t appended;
    struct fake_told told[FAKE_TOLD_MAX]; /* loop thread */
    size_t told_count;
    const char *trouble; /* set before the run */
    struct generation_request request;
    int stuck_looks, looks; /* loop thread */
    struct engine_event events[FAKE_EVENTS_MAX];
    size_t event_head, event_tail;
};

static void post(struct fake_engine *engine, const struct engine_event *event) {
    (void)pthread_mutex_lock(&engine->lock);
    ASSERT(engine->event_tail - engine->event_head < FAKE_EVENTS_MAX);
    engine->events[engine->event_tail++ % FAKE_EVENTS_MAX] = *event;
    (void)pthread_mutex_unlock(&engine->lock);
    loop_wake(engine->loop);
}

static bool is_cancelled(struct fake_engine *engine) {
    (void)pthread_mutex_lock(&engine->lock);
    bool cancelled = engine->is_cancelled;
    (void)pthread_mutex_unlock(&engine->lock);
    return cancelled;
}

static void sleep_us(int microseconds) {
    const struct timespec pause = {
        .tv_sec = microseconds / 1000000, .tv_nsec = (microseconds % 1000000) * 1000L};
    (void)nanosleep(&pause, NULL);
}

/* Writes the turn; returns how it ended and how many tokens it wrote. */
static enum finish_reason
write_turn(struct fake_engine *engine, const struct fake_turn *turn, int32_t *sampled) {
    struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    result encoded = tokenizer_encode(
        engine->tokenizer, view_of_text(turn->text), TOKENIZER_MARKERS_ON, &ids, NULL
    );
    ASSERT(is_ok(encoded));
    enum finish_reason reason = FINISH_EOS;
    *sampled = 0;
    for (size_t i = 0;; i++) {
        bool at_end = i >= ids.count;
        if (is_cancelled(engine)) {
            reason = FINISH_CANCELLED;
            break;
        }
        if (at_end && turn->reason != FINISH_EOS) {
            reason = turn->reason;
            break;
        }
        if (*sampled >= engine->tokens_max) {
            reason = FINISH_LENGTH;
            break;
        }
        int32_t token = !at_end ? ids.ids[i] : turn->is_endless ? ids.ids[ids.count - 1] : FAKE_EOS;
        sleep_us(turn->delay_us);
        post(
            engine,
            &(struct engine_event
            ){.type = ENGINE_TOKEN,
              .sequence = 7,
              .token = token,
              .logprob = -0.5F,
              .alternative_count = engine->request.sampling.alternatives,
              .alternatives = {{token, -0.5F}, {FAKE_EOS, -2.0F}}}
        );
        (*sampled)++;
        if (at_end && !turn->is_endless) {
            break;
        }
    }
    token_list_deinit(&ids);
    return turn->fails ? FINISH_ERROR : reason;
}

static void generate_one(struct fake_engine *engine) {
    size_t last = engine->turn_count - 1;
    size_t index = (size_t)engine->generations - 1;
    const struct fake_turn *turn = &engine->turns[index < last ? index : last];
    struct engine_event event = {.type = ENGINE_FINISHED, .sequence = 7};
    int32_t before = engine->context;
    int32_t added = engine->prompt_added;
    post(
        engine,
        &(struct engine_event
        ){.type = ENGINE_PROGRESS, .sequence = 7, .done = added, .total = added}
    );
    int32_t sampled = 0;
    event.reason = write_turn(engine, turn, &sampled);
    event.facts = (struct generation_facts){
        .prompt_tokens = before + added,
        .reused = before,
        .evaluated = added,
        .sampled = sampled,
        .hit_position = before,
        .window_source = before > 0 ? "live" : "cold",
        .lineage = "00",
        .decoder_lineage = "0",
        .prefill_us = 1000,
        .decode_us = 2000,
        .drafted = 6,
        .accepted = 4,
        .preempted = 1,
        .seed = engine->request.sampling.seed,
        .fork_index = -1,
        .stop_index = event.reason == FINISH_STOP ? 0 : -1,
    };
    if (event.reason == FINISH_ERROR) {
        event.error = (struct error){.code = RESULT_DEVICE, .message = "the fake engine failed"};
    }
    engine->context = before + added + sampled;
    (void)pthread_mutex_lock(&engine->lock);
    engine->has_request = false;
    (void)pthread_mutex_unlock(&engine->lock);
    post(engine, &event);
}

static void *fake_main(void *context) {
    struct fake_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    while (!engine->is_closing) {
        if (!engine->has_request) {
            (void)pthread_cond_wait(&engine->changed, &engine->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&engine->lock);
        generate_one(engine);
        (void)pthread_mutex_lock(&engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return NULL;
}

struct fake_engine *fake_engine_create(
    struct loop *loop,
    const struct tokenizer *tokenizer,
    const struct fake_turn *turns,
    size_t turn_count
) {
    struct fake_engine *engine = calloc(1, sizeof *engine);
    ASSERT(engine != NULL);
    engine->loop = loop;
    engine->tokenizer = tokenizer;
    engine->turns = turns;
    engine->turn_count = turn_count;
    int status = pthread_mutex_init(&engine->lock, NULL);
    status |= pthread_cond_init(&engine->changed, NULL);
    status |= pthread_create(&engine->thread, NULL, fake_main, engine);
    ASSERT(status == 0);
    return engine;
}

void fake_engine_destroy(struct fake_engine *engine) {
    (void)pthread_mutex_lock(&engine->lock);
    engine->is_closing = true;
    engine->is_cancelled = true;
    (void)pthread_cond_signal(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
    (void)pthread_join(engine->thread, NULL);
    (void)pthread_cond_destroy(&engine->changed);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

static result
fake_generate(void *context, const struct generation_request *request, struct error *error) {
    struct fake_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    bool is_busy = engine->has_request;
    size_t last = engine->turn_count - 1;
    size_t index = (size_t)engine->generations;
    engine->request = *request;
    if (engine->turns[index < last ? index : last].is_late) {
        (void)pthread_mutex_unlock(&engine->lock);
        sleep_us(200000);
        FAIL(error, INVALID_INPUT, "a deadline which passed");
    }
    if (!is_busy) {
        engine->has_request = true;
        engine->is_cancelled = false;
        engine->tokens_max = request->tokens_max;
        engine->prompt_added = (int32_t)request->append_count;
        engine->appended += (int64_t)request->append_count;
        engine->generations++;
        (void)pthread_cond_signal(&engine->changed);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (is_busy) {
        FAIL(error, INVALID_INPUT, "the sequence is busy");
    }
    return OK;
}

static void fake_cancel(void *context, uint64_t sequence) {
    struct fake_engine *engine = context;
    ASSERT(sequence == 7);
    (void)pthread_mutex_lock(&engine->lock);
    engine->is_cancelled = true;
    (void)pthread_mutex_unlock(&engine->lock);
}

static void
fake_tell(void *context, uint64_t sequence, enum sequence_event event, int64_t estimate_ms) {
    struct fake_engine *engine = context;
    ASSERT(sequence == 7);
    ASSERT(engine->told_count < FAKE_TOLD_MAX);
    engine->told[engine->told_count++] = (struct fake_told){event, estimate_ms};
}

static void fake_cache_trouble(void *context, char *out, size_t bytes) {
    const struct fake_engine *engine = context;
    (void)snprintf(out, bytes, "%s", engine->trouble != NULL ? engine->trouble : "");
}

static bool fake_next_event(void *context, struct engine_event *out) {
    struct fake_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    bool has_event = engine->event_head != engine->event_tail;
    if (has_event) {
        *out = engine->events[engine->event_head++ % FAKE_EVENTS_MAX];
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return has_event;
}

static bool fake_watch(void *context, int64_t stuck_ms, struct engine_stuck *out) {
    struct fake_engine *engine = context;
    if (engine->looks++ >= engine->stuck_looks) {
        return false;
    }
    *out = (struct engine_stuck){
        .sequence = 7,
        .wait = ENGINE_WAIT_MEMORY,
        .stuck_ms = stuck_ms + engine->looks,
        .why = "sequence 7 waits for 12 blocks of 96, 3 are free",
    };
    return true;
}

static void fake_statistics(void *context, struct engine_statistics *out) {
    const struct fake_engine *engine = context;
    *out = (struct engine_statistics){.request_count = 1, .decoding = 1};
    out->total.steps = (uint64_t)engine->looks;
    out->seconds[0].decode_rows = 17;
}

static int32_t fake_length(void *context, uint64_t sequence) {
    const struct fake_engine *engine = context;
    ASSERT(sequence == 7);
    return engine->context;
}

struct engine_ports fake_engine_ports(struct fake_engine *engine) {
    return (struct engine_ports){
        .context = engine,
        .generate = fake_generate,
        .cancel = fake_cancel,
        .tell = fake_tell,
        .cache_trouble = fake_cache_trouble,
        .next_event = fake_next_event,
        .watch = fake_watch,
        .statistics = fake_statistics,
        .length = fake_length,
    };
}

int fake_engine_generations(const struct fake_engine *engine) {
    return engine->generations;
}

int64_t fake_engine_appended(const struct fake_engine *engine) {
    return engine->appended;
}

const struct fake_told *fake_engine_told(const struct fake_engine *engine, size_t *count) {
    *count = engine->told_count;
    return engine->told;
}

const struct generation_request *fake_engine_request(const struct fake_engine *engine) {
    return &engine->request;
}

void fake_engine_set_stuck(struct fake_engine *engine, int looks) {
    engine->stuck_looks = looks;
}

void fake_engine_set_trouble(struct fake_engine *engine, const char *text) {
    engine->trouble = text;
}

/* ---- tools ---------------------------------------------------------------------------------- */

static result fake_tool_call(
    void *context,
    struct view name,
    struct view arguments,
    int64_t time_ms_max,
    struct tool_result *out,
    struct error *error
) {
    struct fake_tools *tools = context;
    (void)name;
    (void)arguments;
    tools->calls++;
    if (tools->fails) {
        FAIL(error, UNSUPPORTED, "this machine cannot confine commands");
    }
    out->status = TOOL_OK;
    out->duration_ms = tools->duration_ms;
    const struct clock clock = clock_real();
    int64_t started_ms = clock_monotonic_ms(&clock);
    for (int64_t waited = 0; waited < tools->milliseconds;
         waited = clock_monotonic_ms(&clock) - started_ms) {
        if (tools->is_cancelled) {
            out->status = TOOL_CANCELLED;
            break;
        }
        if (time_ms_max > 0 && waited >= time_ms_max) {
            out->status = TOOL_TIMEOUT;
            break;
        }
        sleep_us(1000);
    }
    if (tools->counts) {
        return buffer_append_format(&out->text, error, "result %d", tools->calls);
    }
    return buffer_append_text(&out->text, tools->text, error);
}

static void fake_tool_cancel(void *context) {
    struct fake_tools *tools = context;
    tools->is_cancelled = true;
}

static void fake_tool_renew(void *context) {
    struct fake_tools *tools = context;
    tools->is_cancelled = false;
}

struct tool_ports fake_tool_ports(struct fake_tools *tools) {
    return (struct tool_ports
    ){.context = tools,
      .call = fake_tool_call,
      .cancel = fake_tool_cancel,
      .renew = fake_tool_renew};
}
