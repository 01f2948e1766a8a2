/* See scripted_engine.h. One thread of its own writes one generation after the other. */
#include "scripted_engine.h"

#include "base/json.h"
#include "engine/tokenizer.h"
#include "runtime/host.h"

#include <inttypes.h>
#include <pthread.h>
#include <time.h>

#define OTHERS_MAX     4
#define SEQUENCES_MAX  72
#define TURNS_MAX      4096
#define EVENTS_MAX     4096
#define CONTEXT_TOKENS 16384 /* when the script does not say */
#define END_ID         1
#define MARKER         "\xEF\xBD\x9C" /* the bar of the model's markers */

struct scripted_turn {
    struct token_list ids;
    int64_t wait_ms, delay_us;
    bool repeats, is_fork, fails, is_taken;
    int64_t agent; /* the number of the fork that it is for; 0: any */
    struct buffer failure;
    enum finish_reason reason;
};

struct scripted_sequence {
    uint64_t id; /* 0: free */
    bool is_fork;
    int64_t agent; /* number among the forks of sequences that are none, from 1 */
    struct token_list ids;
    bool is_cancelled, is_asked;
    int32_t tokens_max;
    int32_t prompt_from; /* where the prompt of the request at hand begins */
    uint64_t seed;
    int64_t asked_at; /* order of requests */
};

struct scripted_engine {
    struct run_engine run;
    struct json_document *script;
    FILE *log;
    struct text_model model;
    struct text_model others[OTHERS_MAX]; /* [other_count] further ones, beside or after it */
    size_t other_count;
    int open_count;              /* engines that a run holds: they share what is played */
    struct scripted_turn *turns; /* [turn_count], and one more: the last text */
    size_t turn_count, turn_next, fork_next;
    bool has_agents; /* turns that are for one fork each */
    int64_t agent_last;
    int64_t delay_us, context_max;
    void (*wake)(void *context);
    void *wake_context;

    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool is_closing;
    uint64_t sequence_last;
    int64_t asked_last;
    struct scripted_sequence sequences[SEQUENCES_MAX];
    struct engine_event *events; /* [EVENTS_MAX] */
    size_t event_head, event_tail;
};

/* ---- the script ----------------------------------------------------------------------------- */

static int64_t number_of(struct json_value object, const char *name, int64_t otherwise) {
    int64_t value = otherwise;
    return json_as_i64(json_get(object, name), &value) ? value : otherwise;
}

static bool flag_of(struct json_value object, const char *name) {
    bool value = false;
    return json_as_bool(json_get(object, name), &value) && value;
}

static struct view text_of(struct json_value object, const char *name) {
    struct view value = {0};
    return json_as_string(json_get(object, name), &value) ? value : view_of(NULL, 0);
}

static result write_call(struct buffer *out, struct json_value call, struct error *error) {
    struct view name;
    struct json_value arguments;
    TRY(json_get_string(call, "name", &name, error));
    TRY(json_get_object(call, "arguments", &arguments, error));
    TRY(buffer_append_format(
        out, error, "<" MARKER "DSML" MARKER " invoke name=\"%.*s\">\n", VIEW_ARGUMENTS(name)
    ));
    for (struct json_value value = json_first(arguments); json_type(value) != JSON_ABSENT;
         value = json_next(value)) {
        struct view text = json_raw(value);
        bool is_string = json_as_string(value, &text);
        struct view key = json_name(value);
        TRY(buffer_append_format(
            out,
            error,
            "<" MARKER "DSML" MARKER " parameter name=\"%.*s\" string=\"%s\">",
            VIEW_ARGUMENTS(key),
            is_string ? "true" : "false"
        ));
        TRY(buffer_append(out, text, error));
        TRY(buffer_append_text(out, "</" MARKER "DSML" MARKER " parameter>\n", error));
    }
    return buffer_append_text(out, "</" MARKER "DSML" MARKER " invoke>\n", error);
}

/* What a turn writes, its markers spelled out. */
static result write_turn(struct buffer *out, struct json_value turn, struct error *error) {
    struct view raw = text_of(turn, "raw");
    if (raw.length > 0) {
        return buffer_append(out, raw, error);
    }
    TRY(buffer_append(out, text_of(turn, "thinking"), error));
    TRY(buffer_append_text(out, "</think>", error));
    TRY(buffer_append(out, text_of(turn, "text"), error));
    struct json_value calls = json_get(turn, "calls");
    if (json_count(calls) == 0) {
        return OK;
    }
    TRY(buffer_append_text(out, "\n\n<" MARKER "DSML" MARKER " calls>\n", error));
    for (struct json_value call = json_first(calls); json_type(call) != JSON_ABSENT;
         call = json_next(call)) {
        TRY(write_call(out, call, error));
    }
    return buffer_append_text(out, "</" MARKER "DSML" MARKER " calls>", error);
}

static result parse_end(struct json_value turn, enum finish_reason *out, struct error *error) {
    struct view name = text_of(turn, "end");
    *out = FINISH_EOS;
    if (name.length == 0) {
        return OK;
    }
    for (enum finish_reason reason = FINISH_EOS; reason <= FINISH_OPEN_CALL; reason++) {
        if (view_equals_text(name, finish_reason_name(reason))) {
            *out = reason;
            return OK;
        }
    }
    FAIL(error, INVALID_INPUT, "no such end: %.*s", VIEW_ARGUMENTS(name));
}

static result parse_turn(
    struct scripted_engine *engine,
    struct json_value turn,
    struct scripted_turn *out,
    struct error *error
) {
    out->wait_ms = number_of(turn, "wait_ms", 0);
    out->delay_us = number_of(turn, "delay_us", engine->delay_us);
    out->repeats = flag_of(turn, "repeat");
    out->is_fork = flag_of(turn, "fork");
    out->agent = number_of(turn, "agent", 0);
    engine->has_agents |= out->agent > 0;
    struct view failure = text_of(turn, "fail");
    out->fails = failure.length > 0;
    buffer_init(&out->failure, 4096);
    TRY(buffer_append(&out->failure, failure, error));
    TRY(parse_end(turn, &out->reason, error));
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(write_turn(&text, turn, error));
    token_list_init(&out->ids, TOKEN_LIST_CEILING_DEFAULT);
    return tokenizer_encode(
        engine->model.tokenizer, buffer_view(&text), TOKENIZER_MARKERS_ON, &out->ids, error
    );
}

/* Once the tokenizer is there. */
static result parse_turns(struct scripted_engine *engine, struct error *error) {
    struct json_value root = json_root(engine->script);
    engine->delay_us = number_of(root, "delay_us", 0);
    engine->context_max = number_of(root, "context_max", CONTEXT_TOKENS);
    struct json_value turns;
    TRY(json_get_array(root, "turns", &turns, error));
    if (json_count(turns) > TURNS_MAX) {
        FAIL(error, INVALID_INPUT, "more than %d turns", TURNS_MAX);
    }
    engine->turns = calloc(json_count(turns) + 1, sizeof *engine->turns);
    ASSERT(engine->turns != NULL);
    for (struct json_value turn = json_first(turns); json_type(turn) != JSON_ABSENT;
         turn = json_next(turn)) {
        TRY_NOTE(
            error,
            parse_turn(engine, turn, &engine->turns[engine->turn_count], error),
            "turn %zu of the script",
            engine->turn_count + 1
        );
        engine->turn_count++;
    }
    struct scripted_turn *last = &engine->turns[engine->turn_count];
    last->delay_us = engine->delay_us;
    token_list_init(&last->ids, TOKEN_LIST_CEILING_DEFAULT);
    return tokenizer_encode(
        engine->model.tokenizer,
        view_of_text("</think>" SCRIPTED_LAST_TEXT),
        TOKENIZER_MARKERS_ON,
        &last->ids,
        error
    );
}

static const struct scripted_turn *
take_turn(struct scripted_engine *engine, const struct scripted_sequence *sequence) {
    bool is_fork = sequence->is_fork;
    size_t *next = is_fork ? &engine->fork_next : &engine->turn_next;
    for (size_t i = 0; engine->has_agents && is_fork && i < engine->turn_count; i++) {
        struct scripted_turn *turn = &engine->turns[i];
        if (turn->agent == sequence->agent && !turn->is_taken) {
            turn->is_taken = true;
            return turn;
        }
    }
    while (*next < engine->turn_count &&
           (engine->turns[*next].is_fork != is_fork || engine->turns[*next].agent > 0)) {
        (*next)++;
    }
    size_t taken = *next < engine->turn_count ? (*next)++ : engine->turn_count;
    return &engine->turns[taken];
}

/* ---- generating ----------------------------------------------------------------------------- */

/* Lock held. */
static struct scripted_sequence *find(struct scripted_engine *engine, uint64_t id) {
    for (size_t i = 0; i < SEQUENCES_MAX && id != 0; i++) {
        if (engine->sequences[i].id == id) {
            return &engine->sequences[i];
        }
    }
    return NULL;
}

static void post(struct scripted_engine *engine, const struct engine_event *event) {
    (void)pthread_mutex_lock(&engine->lock);
    while (engine->event_tail - engine->event_head == EVENTS_MAX && !engine->is_closing) {
        (void)pthread_cond_wait(&engine->changed, &engine->lock);
    }
    bool is_closing = engine->is_closing;
    if (!is_closing) {
        engine->events[engine->event_tail++ % EVENTS_MAX] = *event;
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (!is_closing) {
        engine->wake(engine->wake_context);
    }
}

static bool is_stopped(struct scripted_engine *engine, const struct scripted_sequence *sequence) {
    (void)pthread_mutex_lock(&engine->lock);
    bool is_stopped = sequence->is_cancelled || engine->is_closing;
    (void)pthread_mutex_unlock(&engine->lock);
    return is_stopped;
}

/* False when it was cancelled meanwhile. */
static bool wait_us(
    struct scripted_engine *engine, const struct scripted_sequence *sequence, int64_t microseconds
) {
    const int64_t slice = 2000;
    for (int64_t left = microseconds; left > 0; left -= slice) {
        const struct timespec pause = {.tv_nsec = (left < slice ? left : slice) * 1000};
        (void)nanosleep(&pause, NULL);
        if (is_stopped(engine, sequence)) {
            return false;
        }
    }
    return true;
}

static enum finish_reason play(
    struct scripted_engine *engine,
    struct scripted_sequence *sequence,
    const struct scripted_turn *turn,
    int32_t *sampled
) {
    if (!wait_us(engine, sequence, turn->wait_ms * 1000)) {
        return FINISH_CANCELLED;
    }
    for (size_t i = 0;; i++) {
        bool at_end = i >= turn->ids.count;
        if (is_stopped(engine, sequence)) {
            return FINISH_CANCELLED;
        }
        if (at_end && !turn->repeats && (turn->reason != FINISH_EOS || turn->fails)) {
            return turn->fails ? FINISH_ERROR : turn->reason;
        }
        if (*sampled >= sequence->tokens_max) {
            return FINISH_LENGTH;
        }
        if ((int64_t)sequence->ids.count >= engine->context_max) {
            return FINISH_CONTEXT;
        }
        int32_t token = !at_end         ? turn->ids.ids[i]
                        : turn->repeats ? turn->ids.ids[turn->ids.count - 1]
                                        : END_ID;
        if (!wait_us(engine, sequence, turn->delay_us)) {
            return FINISH_CANCELLED;
        }
        ASSERT(is_ok(token_list_append(&sequence->ids, token, NULL)));
        (*sampled)++;
        post(
            engine,
            &(struct engine_event
            ){.type = ENGINE_TOKEN, .sequence = sequence->id, .token = token, .logprob = -0.5F}
        );
        if (token == END_ID && at_end) {
            return FINISH_EOS;
        }
    }
}

static void log_context(struct scripted_engine *engine, const struct scripted_sequence *sequence) {
    if (engine->log == NULL) {
        return;
    }
    (void)fprintf(engine->log, "%" PRIu64 ":", sequence->id);
    for (size_t i = 0; i < sequence->ids.count; i++) {
        (void)fprintf(engine->log, " %d", sequence->ids.ids[i]);
    }
    (void)fprintf(engine->log, "\n");
    (void)fflush(engine->log);
}

static void generate_one(struct scripted_engine *engine, struct scripted_sequence *sequence) {
    /* A request for no tokens evaluates a prompt and plays nothing. */
    const struct scripted_turn *turn = sequence->tokens_max == 0
                                           ? &engine->turns[engine->turn_count]
                                           : take_turn(engine, sequence);
    int32_t prompt = (int32_t)sequence->ids.count;
    int32_t added = prompt - sequence->prompt_from;
    struct engine_event event = {.type = ENGINE_PROGRESS, .sequence = sequence->id};
    log_context(engine, sequence);
    event.done = event.total = added;
    post(engine, &event);
    int32_t sampled = 0;
    event = (struct engine_event){.type = ENGINE_FINISHED, .sequence = sequence->id};
    event.reason = play(engine, sequence, turn, &sampled);
    event.facts = (struct generation_facts){
        .prompt_tokens = prompt,
        .reused = prompt - added,
        .evaluated = added,
        .sampled = sampled,
        .hit_position = prompt - added,
        .rebuilt_from = prompt - added,
        .window_source = prompt > added ? "live" : "cold",
        .miss = "none",
        .lineage = "00",
        .block_lineage = "00",
        .decoder_lineage = "0",
        .prefill_us = 1000,
        .decode_us = 1000 * (int64_t)sampled,
        .seed = sequence->seed,
        .fork_index = -1,
        .stop_index = event.reason == FINISH_STOP ? 0 : -1,
    };
    if (event.reason == FINISH_ERROR) {
        event.error.code = RESULT_DEVICE;
        struct view why = buffer_view(&turn->failure);
        (void
        )snprintf(event.error.message, sizeof event.error.message, "%.*s", VIEW_ARGUMENTS(why));
    }
    (void)pthread_mutex_lock(&engine->lock);
    sequence->is_asked = false;
    (void)pthread_mutex_unlock(&engine->lock);
    post(engine, &event);
}

static void *scripted_main(void *context) {
    struct scripted_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    while (!engine->is_closing) {
        struct scripted_sequence *first = NULL;
        for (size_t i = 0; i < SEQUENCES_MAX; i++) {
            struct scripted_sequence *one = &engine->sequences[i];
            if (one->is_asked && (first == NULL || one->asked_at < first->asked_at)) {
                first = one;
            }
        }
        if (first == NULL) {
            (void)pthread_cond_wait(&engine->changed, &engine->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&engine->lock);
        generate_one(engine, first);
        (void)pthread_mutex_lock(&engine->lock);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ---- ports ---------------------------------------------------------------------------------- */

/* Lock held. */
static struct scripted_sequence *sequence_new(struct scripted_engine *engine) {
    for (size_t i = 0; i < SEQUENCES_MAX; i++) {
        struct scripted_sequence *one = &engine->sequences[i];
        if (one->id == 0) {
            *one = (struct scripted_sequence){.id = ++engine->sequence_last};
            token_list_init(&one->ids, TOKEN_LIST_CEILING_DEFAULT);
            return one;
        }
    }
    return NULL;
}

static result
port_generate(void *context, const struct generation_request *request, struct error *error) {
    struct scripted_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    struct scripted_sequence *sequence = find(engine, request->sequence);
    ASSERT(sequence != NULL);
    ASSERT(!sequence->is_asked); /* one generation at a time */
    size_t tokens = sequence->ids.count + request->append_count;
    bool fits = tokens <= (size_t)engine->context_max;
    if (fits) {
        sequence->prompt_from = (int32_t)sequence->ids.count;
        ASSERT(is_ok(
            token_list_append_all(&sequence->ids, request->append, request->append_count, NULL)
        ));
        sequence->is_cancelled = false;
        sequence->is_asked = true;
        sequence->asked_at = ++engine->asked_last;
        sequence->tokens_max = request->tokens_max;
        sequence->seed = request->sampling.seed;
        (void)pthread_cond_broadcast(&engine->changed);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (!fits) {
        FAIL(error, LIMIT, "%zu tokens of %" PRId64, tokens, engine->context_max);
    }
    return OK;
}

static void port_cancel(void *context, uint64_t id) {
    struct scripted_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    struct scripted_sequence *sequence = find(engine, id);
    if (sequence != NULL) {
        sequence->is_cancelled = true;
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

static void
port_tell(void *context, uint64_t sequence, enum sequence_event event, int64_t estimate_ms) {
    (void)context;
    (void)sequence;
    (void)event;
    (void)estimate_ms;
}

static void port_cache_trouble(void *context, char *out, size_t bytes) {
    (void)context;
    ASSERT(bytes > 0);
    out[0] = '\0';
}

static bool port_next_event(void *context, struct engine_event *out) {
    struct scripted_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    bool has_event = engine->event_head != engine->event_tail;
    if (has_event) {
        *out = engine->events[engine->event_head++ % EVENTS_MAX];
        (void)pthread_cond_broadcast(&engine->changed);
    }
    (void)pthread_mutex_unlock(&engine->lock);
    return has_event;
}

static bool port_watch(void *context, int64_t stuck_ms, struct engine_stuck *out) {
    (void)context;
    (void)stuck_ms;
    (void)out;
    return false;
}

static void port_statistics(void *context, struct engine_statistics *out) {
    (void)context;
    *out = (struct engine_statistics){0};
}

static int32_t port_length(void *context, uint64_t id) {
    struct scripted_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    const struct scripted_sequence *sequence = find(engine, id);
    int32_t length = sequence == NULL ? 0 : (int32_t)sequence->ids.count;
    (void)pthread_mutex_unlock(&engine->lock);
    return length;
}

static result port_create(void *context, uint64_t *out, struct error *error) {
    struct scripted_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    struct scripted_sequence *made = sequence_new(engine);
    uint64_t id = made != NULL ? made->id : 0;
    (void)pthread_mutex_unlock(&engine->lock);
    if (id == 0) {
        FAIL(error, LIMIT, "all %d sequences are in use", SEQUENCES_MAX);
    }
    *out = id;
    return OK;
}

static result port_fork(void *context, uint64_t parent, uint64_t *out, struct error *error) {
    struct scripted_engine *engine = context;
    (void)pthread_mutex_lock(&engine->lock);
    const struct scripted_sequence *from = find(engine, parent);
    ASSERT(from != NULL);
    struct scripted_sequence *made = sequence_new(engine);
    uint64_t id = made != NULL ? made->id : 0;
    if (made != NULL) {
        made->is_fork = true;
        made->agent = from->is_fork ? from->agent : ++engine->agent_last;
        ASSERT(is_ok(token_list_append_all(&made->ids, from->ids.ids, from->ids.count, NULL)));
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (id == 0) {
        FAIL(error, LIMIT, "all %d sequences are in use", SEQUENCES_MAX);
    }
    *out = id;
    return OK;
}

/* Waits until nothing is written to it. */
static void port_destroy(void *context, uint64_t id) {
    struct scripted_engine *engine = context;
    port_cancel(context, id);
    (void)pthread_mutex_lock(&engine->lock);
    struct scripted_sequence *sequence = find(engine, id);
    while (sequence != NULL && sequence->is_asked) {
        (void)pthread_mutex_unlock(&engine->lock);
        const struct timespec pause = {.tv_nsec = 1000000};
        (void)nanosleep(&pause, NULL);
        (void)pthread_mutex_lock(&engine->lock);
    }
    if (sequence != NULL) {
        token_list_deinit(&sequence->ids);
        *sequence = (struct scripted_sequence){0};
    }
    (void)pthread_mutex_unlock(&engine->lock);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void fill_parts(
    struct scripted_engine *engine, const struct text_model *model, struct run_engine_parts *out
) {
    *out = (struct run_engine_parts){
        .ports =
            {.context = engine,
             .generate = port_generate,
             .cancel = port_cancel,
             .tell = port_tell,
             .cache_trouble = port_cache_trouble,
             .next_event = port_next_event,
             .watch = port_watch,
             .statistics = port_statistics,
             .length = port_length,
             .create = port_create,
             .fork = port_fork,
             .destroy = port_destroy},
        .tokenizer = model->tokenizer,
        .wording = model->wording,
        .info =
            {.model_name = "scripted",
             .model_digest = "0000000000000000000000000000000000000000000000000000000000000000",
             .backend = "scripted",
             .root_lineage = "00",
             .numerics = 1,
             .vocabulary = (int32_t)tokenizer_vocabulary_size(model->tokenizer),
             .context_max = (int32_t)engine->context_max,
             .eos_id = END_ID,
             .kv_bytes_per_token = 890},
        .sampling = {.temperature = 1.0, .top_p = 0.95},
    };
}

/* A second model: its own tokenizer, wording and digest. */
static result scripted_open_other(
    struct scripted_engine *engine,
    const struct run_engine_request *request,
    struct run_engine_parts *out,
    struct error *error
) {
    struct text_model model = {0};
    TRY(text_model_open(request->engine.model_directory, &model, error));
    request->say(request->say_context, view_of_text("memory: none"));
    ASSERT(engine->other_count < OTHERS_MAX);
    engine->others[engine->other_count++] = model;
    engine->open_count++;
    fill_parts(engine, &engine->others[engine->other_count - 1], out);
    struct json_value root = json_root(engine->script);
    out->info.context_max = (int32_t)number_of(root, "other_context_max", out->info.context_max);
    int digit = '0' + (int)engine->other_count;
    memset(out->info.model_digest, digit, strlen(out->info.model_digest));
    return port_create(engine, &out->sequence, error);
}

static result scripted_open(
    void *context,
    const struct run_engine_request *request,
    struct run_engine_parts *out,
    struct error *error
) {
    struct scripted_engine *engine = context;
    if (engine->open_count > 0) {
        return scripted_open_other(engine, request, out, error);
    }
    TRY(text_model_open(request->engine.model_directory, &engine->model, error));
    TRY(parse_turns(engine, error));
    if (request->engine.context_max > 0) {
        engine->context_max = request->engine.context_max;
    }
    engine->wake = request->engine.wake;
    engine->wake_context = request->engine.wake_context;
    int status = pthread_create(&engine->thread, NULL, scripted_main, engine);
    ASSERT(status == 0);
    engine->open_count = 1;
    fill_parts(engine, &engine->model, out);
    return port_create(engine, &out->sequence, error);
}

static void scripted_close(void *context) {
    struct scripted_engine *engine = context;
    if (engine->open_count > 0 && --engine->open_count == 0) {
        (void)pthread_mutex_lock(&engine->lock);
        engine->is_closing = true;
        (void)pthread_cond_broadcast(&engine->changed);
        (void)pthread_mutex_unlock(&engine->lock);
        (void)pthread_join(engine->thread, NULL);
    }
}

result scripted_engine_create(
    struct scripted_engine **out, struct view script, const char *log_path, struct error *error
) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(script, NULL, &document, error), "script");
    CLEANUP(file_cleanup) FILE *log = log_path != NULL ? fopen(log_path, "we") : NULL;
    if (log_path != NULL && log == NULL) {
        FAIL(error, IO, "cannot write %s", log_path);
    }
    struct scripted_engine *engine = calloc(1, sizeof *engine);
    ASSERT(engine != NULL);
    engine->events = calloc(EVENTS_MAX, sizeof *engine->events);
    ASSERT(engine->events != NULL);
    engine->run = (struct run_engine){engine, scripted_open, scripted_close};
    engine->script = TAKE(document);
    engine->log = TAKE(log);
    int status = pthread_mutex_init(&engine->lock, NULL);
    status |= pthread_cond_init(&engine->changed, NULL);
    ASSERT(status == 0);
    *out = engine;
    return OK;
}

void scripted_engine_destroy(struct scripted_engine *engine) {
    if (engine == NULL) {
        return;
    }
    scripted_close(engine);
    for (size_t i = 0; i < SEQUENCES_MAX; i++) {
        if (engine->sequences[i].id != 0) {
            token_list_deinit(&engine->sequences[i].ids);
        }
    }
    for (size_t i = 0; engine->turns != NULL && i <= engine->turn_count; i++) {
        token_list_deinit(&engine->turns[i].ids);
        buffer_deinit(&engine->turns[i].failure);
    }
    free(engine->turns);
    free(engine->events);
    text_model_close(&engine->model);
    for (size_t i = 0; i < engine->other_count; i++) {
        text_model_close(&engine->others[i]);
    }
    json_destroy(engine->script);
    if (engine->log != NULL) {
        (void)fclose(engine->log);
    }
    (void)pthread_cond_destroy(&engine->changed);
    (void)pthread_mutex_destroy(&engine->lock);
    free(engine);
}

const struct run_engine *scripted_engine_run(struct scripted_engine *engine) {
    return &engine->run;
}
