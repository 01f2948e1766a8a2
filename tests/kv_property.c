/* See kv_property.h: the engine under test, and the comparison of each generation with a cold run. */
#include "kv_property.h"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#include "engine/engine_internal.h"

#define WAIT_SECONDS   120
#define LOG_BYTES_MAX  ((size_t)1 << 20)
#define COLD_STEP_ROWS 512

/* ---- random numbers ------------------------------------------------------------------------- */

uint64_t random_next(struct random *random) { /* splitmix64 */
    random->state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = random->state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int32_t random_range(struct random *random, int32_t low, int32_t high) {
    ASSERT(low <= high);
    uint64_t range = (uint64_t)((int64_t)high - low) + 1;
    return low + (int32_t)(random_next(random) % range);
}

bool random_chance(struct random *random, int32_t percent) {
    return random_range(random, 0, 99) < percent;
}

/* ---- reports -------------------------------------------------------------------------------- */

void world_fail(struct world *world, const char *format, ...) {
    if (world->failure[0] != '\0') {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(world->failure, sizeof world->failure, format, arguments);
    va_end(arguments);
}

const char *const coverage_names[COVERAGE_KINDS] = {
    [COVERAGE_GENERATIONS] = "generations",
    [COVERAGE_SAMPLED] = "tokens",
    [COVERAGE_COLD] = "cold",
    [COVERAGE_LIVE] = "live",
    [COVERAGE_HITS] = "hits",
    [COVERAGE_WHOLE_HITS] = "hits of whole blocks",
    [COVERAGE_INNER_HITS] = "hits inside a block",
    [COVERAGE_ODD_HITS] = "odd hits",
    [COVERAGE_SNAPSHOT_HITS] = "from snapshots",
    [COVERAGE_REBUILDS] = "rebuilt",
    [COVERAGE_PARTIAL_REBUILDS] = "rebuilt from above 0",
    [COVERAGE_ENCODER_REPLAYS] = "encoder replays",
    [COVERAGE_DECODER_REPLAYS] = "decoder replays",
    [COVERAGE_CONTRACTS] = "contracts",
    [COVERAGE_HOST_RESTORES] = "restored from host",
    [COVERAGE_DISK_RESTORES] = "from disk",
    [COVERAGE_FORKS] = "forks",
    [COVERAGE_INNER_FORKS] = "odd forks",
    [COVERAGE_CANCELS] = "cancels",
    [COVERAGE_DROPS] = "drops",
    [COVERAGE_RESTARTS] = "restarts",
    [COVERAGE_EVICTED] = "blocks evicted",
    [COVERAGE_LEAST_HITS_CHECKED] = "least hits checked",
};

long *cover(struct world *world, enum coverage_kind kind) {
    return &world->coverage->counts[kind];
}

bool world_has_failed(const struct world *world) {
    return world->failure[0] != '\0';
}

void world_say(struct world *world, const char *format, ...) {
    size_t used = strlen(world->step_text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(world->step_text + used, sizeof world->step_text - used, format, arguments);
    va_end(arguments);
}

/* ---- engines -------------------------------------------------------------------------------- */

void waker_init(struct waker *waker) {
    pthread_mutex_init(&waker->lock, NULL);
    pthread_cond_init(&waker->woken, NULL);
    waker->wakes = 0;
}

static void wake(void *context) {
    struct waker *waker = context;
    pthread_mutex_lock(&waker->lock);
    waker->wakes++;
    pthread_cond_signal(&waker->woken);
    pthread_mutex_unlock(&waker->lock);
}

/* False after two minutes without an event. */
static bool next_event(struct engine *engine, struct waker *waker, struct engine_event *event) {
    struct timespec deadline;
    (void)clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += WAIT_SECONDS;
    while (!engine_next_event(engine, event)) {
        int failed = 0;
        pthread_mutex_lock(&waker->lock);
        while (waker->wakes == 0 && failed == 0) {
            failed = pthread_cond_timedwait(&waker->woken, &waker->lock, &deadline);
        }
        waker->wakes = 0;
        pthread_mutex_unlock(&waker->lock);
        if (failed != 0) {
            return false;
        }
    }
    return true;
}

/* Rows of logits that tokens were drawn from, the last of each sequence; as many as can be alive at a
 * time and some that are not any more. */
struct seen_logits {
    pthread_mutex_t lock;
    struct seen_row {
        uint64_t sequence, when;
        int32_t length;
        float *values;
    } rows[4 * PROPERTY_SEQUENCES_MAX];
    uint64_t now;
};
static struct seen_logits warm_seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
static struct seen_logits cold_seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* On the engine thread: see engine_internal.h. */
static void
see_logits(void *context, uint64_t sequence, int32_t length, float *logits, int32_t vocabulary) {
    struct seen_logits *table = context;
    pthread_mutex_lock(&table->lock);
    struct seen_row *row = &table->rows[0];
    for (size_t i = 0; i < COUNT_OF(table->rows); i++) {
        bool is_own = table->rows[i].sequence == sequence;
        if (is_own || (row->sequence != sequence && table->rows[i].when < row->when)) {
            row = &table->rows[i];
        }
    }
    free(row->values);
    row->values = malloc((size_t)vocabulary * sizeof *logits);
    ASSERT(row->values != NULL);
    memcpy(row->values, logits, (size_t)vocabulary * sizeof *logits);
    row->sequence = sequence;
    row->length = length;
    row->when = ++table->now;
    pthread_mutex_unlock(&table->lock);
}

static void watch_logits(struct engine *engine, struct seen_logits *table) {
    pthread_mutex_lock(&table->lock);
    for (size_t i = 0; i < COUNT_OF(table->rows); i++) {
        free(table->rows[i].values);
        table->rows[i] = (struct seen_row){0};
    }
    pthread_mutex_unlock(&table->lock);
    if (engine != NULL) {
        pthread_mutex_lock(&engine->lock);
        engine->observe = see_logits;
        engine->observe_context = table;
        pthread_mutex_unlock(&engine->lock);
    }
}

struct engine *
property_open_cold(const struct property_model *model, const char *path, struct waker *waker) {
    struct error error = {0};
    struct engine *engine = NULL;
    struct engine_options options = {
        .model_directory = path,
        .threads = 1,
        .context_max = model->context,
        .sequences_max = 1,
        .step_rows_max = COLD_STEP_ROWS,
        .has_no_prefix_cache = true,
        .wake = wake,
        .wake_context = waker,
    };
    waker_init(waker);
    if (is_failed(engine_open(&options, &engine, &error))) {
        print_error("%s\n", error.message);
        fail();
    }
    watch_logits(engine, &cold_seen);
    return engine;
}

static int64_t world_monotonic_ms(void *context) {
    struct world *world = context;
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock) + atomic_load(&world->clock_offset_ms);
}

static int64_t world_wall_ms(void *context) {
    struct world *world = context;
    struct clock clock = clock_real();
    return clock_wall_ms(&clock) + atomic_load(&world->clock_offset_ms);
}

void world_open(struct world *world, struct random *random) {
    static const int32_t steps[] = {1, 7, 16, 33, 64, 128, 200, 512};
    struct error error = {0};
    world->sequences_max = random_range(random, 2, PROPERTY_SEQUENCES_MAX);
    struct engine_options options = {
        .model_directory = world->model_path,
        .threads = random_range(random, 1, 2),
        .context_max = world->model->context,
        .sequences_max = world->sequences_max,
        .step_rows_max = steps[random_range(random, 2, (int32_t)COUNT_OF(steps) - 1)],
        .cache_directory = world->has_disk ? world->folder : NULL,
        .cache_memory_bytes = world->has_tiny_pool ? 1 : 0,
        .cache_host_bytes = world->has_host ? (uint64_t)4 << 20 : 0,
        .snapshot_bytes = world->has_no_snapshots ? 1 : (uint64_t)16 << 20,
        .wake = wake,
        .wake_context = &world->waker,
    };
    if (random_chance(random, 10)) {
        options.step_rows_max = steps[random_range(random, 0, 1)];
    }
    if (world->has_clock) {
        options.clock = (struct clock){world_monotonic_ms, world_wall_ms, world};
    }
    world_say(
        world,
        "open: %d sequences, steps of %d rows, %d threads%s%s%s%s%s",
        options.sequences_max,
        options.step_rows_max,
        options.threads,
        world->has_disk ? ", disk" : "",
        world->has_host ? ", host pool" : "",
        world->has_tiny_pool ? ", smallest block pool" : "",
        world->has_no_snapshots ? ", no snapshots" : "",
        world->has_clock ? ", clock" : ""
    );
    if (is_failed(engine_open(&options, &world->engine, &error))) {
        FAIL_WORLD(world, "engine_open: %s", error.message);
        return;
    }
    engine_get_info(world->engine, &world->info);
    watch_logits(world->engine, &warm_seen);
}

void world_close(struct world *world) {
    if (world->engine != NULL) {
        struct engine_cache_status status;
        engine_cache_status(world->engine, &status);
        *cover(world, COVERAGE_EVICTED) += (long)status.blocks_evicted;
    }
    engine_close(world->engine);
    world->engine = NULL;
    watch_logits(NULL, &warm_seen);
    for (int i = 0; i < PROPERTY_SEQUENCES_MAX; i++) {
        world->lives[i].used = false;
    }
    for (int i = 0; i < PROPERTY_TEXTS; i++) {
        world->texts[i].computed = 0;
    }
}

/* ---- sequences ------------------------------------------------------------------------------ */

static struct live *unused_live(struct world *world) {
    for (int32_t i = 0; i < world->sequences_max; i++) {
        if (!world->lives[i].used) {
            return &world->lives[i];
        }
    }
    return NULL;
}

struct live *world_create(struct world *world) {
    struct error error = {0};
    struct live *live = unused_live(world);
    ASSERT(live != NULL);
    if (is_failed(engine_sequence_create(world->engine, &live->id, &error))) {
        FAIL_WORLD(world, "engine_sequence_create: %s", error.message);
        return NULL;
    }
    live->used = true;
    live->is_exact = true;
    live->count = 0;
    live->generation = (struct generation){.is_first = true};
    return live;
}

struct live *world_fork(struct world *world, const struct live *parent) {
    struct error error = {0};
    struct live *live = unused_live(world);
    ASSERT(live != NULL);
    uint64_t id = 0;
    if (is_failed(engine_sequence_fork(world->engine, parent->id, &id, &error))) {
        FAIL_WORLD(world, "engine_sequence_fork: %s", error.message);
        return NULL;
    }
    *live = *parent;
    live->id = id;
    return live;
}

void world_destroy(struct world *world, struct live *live) {
    engine_sequence_destroy(world->engine, live->id);
    live->used = false;
    live->generation.is_running = false;
}

/* Tokens in whole blocks that the prompt shares with what this engine has computed exactly. */
static int32_t least_hit(const struct world *world, const struct live *live) {
    int32_t least = 0;
    for (int32_t i = 0; i < world->text_count; i++) {
        const struct text *text = &world->texts[i];
        int32_t same = 0;
        while (same < text->computed && same < live->count - 1 && text->ids[same] == live->ids[same]
        ) {
            same++;
        }
        same = same / 128 * 128;
        least = same > least ? same : least;
    }
    return least;
}

bool world_start(struct world *world, struct live *live, const int32_t *ids, int32_t count) {
    struct generation *generation = &live->generation;
    struct error error = {0};
    ASSERT(live->count + count <= PROPERTY_CONTEXT_MAX);
    generation->old_count = live->count;
    generation->count = 0;
    generation->events = 0;
    generation->has_finished = false;
    generation->error[0] = '\0';
    struct generation_request request = {
        .sequence = live->id,
        .append = ids,
        .append_count = (size_t)count,
        .sampling = generation->sampling,
        .tokens_max = generation->tokens_max,
        .window = generation->window,
        .has_contract = generation->has_contract,
        .contract = generation->contract,
        .contract_count = generation->contract_count,
    };
    if (is_failed(engine_generate(world->engine, &request, &error))) {
        FAIL_WORLD(world, "engine_generate: %s", error.message);
        return false;
    }
    if (count > 0) {
        memcpy(live->ids + live->count, ids, (size_t)count * sizeof *ids);
    }
    live->count += count;
    generation->prompt_count = live->count;
    generation->is_running = true;
    generation->least_hit = least_hit(world, live);
    if (generation->window == WINDOW_REPLAY || generation->contract_count > 0) {
        live->is_exact = false;
    }
    if (generation->cancel_after == 0) {
        engine_cancel(world->engine, live->id);
    }
    return true;
}

/* ---- events --------------------------------------------------------------------------------- */

static struct live *live_of(struct world *world, uint64_t id) {
    for (int i = 0; i < PROPERTY_SEQUENCES_MAX; i++) {
        if (world->lives[i].used && world->lives[i].id == id) {
            return &world->lives[i];
        }
    }
    return NULL;
}

static void take_event(struct world *world, const struct engine_event *event) {
    struct live *live = live_of(world, event->sequence);
    if (live == NULL || !live->generation.is_running) {
        FAIL_WORLD(world, "an event of sequence %llu", (unsigned long long)event->sequence);
        return;
    }
    struct generation *generation = &live->generation;
    generation->events++;
    if (event->type == ENGINE_TOKEN) {
        if (generation->count == generation->tokens_max ||
            generation->count == PROPERTY_SAMPLES_MAX) {
            FAIL_WORLD(world, "more than %d tokens", generation->tokens_max);
            return;
        }
        generation->tokens[generation->count] = event->token;
        generation->logprobs[generation->count] = event->logprob;
        generation->count++;
    } else if (event->type == ENGINE_FINISHED) {
        generation->is_running = false;
        generation->has_finished = true;
        generation->reason = event->reason;
        generation->facts = event->facts;
        (void)snprintf(generation->error, sizeof generation->error, "%.255s", event->error.message);
        return;
    }
    if (generation->events == generation->cancel_after) {
        engine_cancel(world->engine, live->id);
    }
}

static bool is_any_running(const struct world *world) {
    for (int i = 0; i < PROPERTY_SEQUENCES_MAX; i++) {
        if (world->lives[i].used && world->lives[i].generation.is_running) {
            return true;
        }
    }
    return false;
}

/* ---- the cold run --------------------------------------------------------------------------- */

/* Logits that the engine drew from last, and how many tokens they follow; 0: none. */
static int32_t read_logits(struct seen_logits *seen, uint64_t id, float *out, int32_t vocabulary) {
    int32_t length = 0;
    pthread_mutex_lock(&seen->lock);
    for (size_t i = 0; i < COUNT_OF(seen->rows); i++) {
        if (seen->rows[i].sequence == id && seen->rows[i].length > 0) {
            length = seen->rows[i].length;
            memcpy(out, seen->rows[i].values, (size_t)vocabulary * sizeof *out);
        }
    }
    pthread_mutex_unlock(&seen->lock);
    return length;
}

/* The same prompt on an engine without a prefix cache, with the replays that were recorded. */
static bool run_cold(
    struct world *world, const struct live *live, struct generation *out, int32_t *logits_length
) {
    const struct generation *generation = &live->generation;
    struct error error = {0};
    uint64_t id = 0;
    if (is_failed(engine_sequence_create(world->cold, &id, &error))) {
        FAIL_WORLD(world, "cold engine: %s", error.message);
        return false;
    }
    bool is_cancelled = generation->reason == FINISH_CANCELLED;
    struct generation_request request = {
        .sequence = id,
        .append = live->ids,
        .append_count = (size_t)generation->prompt_count,
        .sampling = generation->sampling,
        .tokens_max = is_cancelled ? generation->count : generation->tokens_max,
        .has_contract = generation->facts.replay_count > 0 || generation->count % 2 == 0,
        .contract = generation->facts.replays,
        .contract_count = generation->facts.replay_count,
    };
    if (is_failed(engine_generate(world->cold, &request, &error))) {
        FAIL_WORLD(world, "cold engine: %s", error.message);
        return false;
    }
    *out = (struct generation){.is_running = true};
    while (out->is_running) {
        struct engine_event event;
        if (!next_event(world->cold, &world->cold_waker, &event)) {
            FAIL_WORLD(world, "cold engine: no event for %d s", WAIT_SECONDS);
            return false;
        }
        if (event.type == ENGINE_TOKEN && out->count < PROPERTY_SAMPLES_MAX) {
            out->tokens[out->count] = event.token;
            out->logprobs[out->count++] = event.logprob;
        } else if (event.type == ENGINE_FINISHED) {
            out->is_running = false;
            out->reason = event.reason;
            out->facts = event.facts;
            if (event.reason == FINISH_ERROR) {
                FAIL_WORLD(world, "cold engine: %s", event.error.message);
            }
        }
    }
    *logits_length = read_logits(&cold_seen, id, world->cold_logits, world->info.vocabulary);
    engine_sequence_destroy(world->cold, id);
    return !world_has_failed(world);
}

static const char *describe_replays(const struct generation_facts *facts, struct buffer *out) {
    buffer_init(out, LOG_BYTES_MAX);
    if (is_failed(window_replays_format(facts->replays, facts->replay_count, out, NULL))) {
        return "?";
    }
    return out->length == 0 ? "none" : buffer_text(out);
}

static void
compare_with_cold(struct world *world, const struct live *live, const struct generation *cold) {
    const struct generation *generation = &live->generation;
    int32_t first = 0;
    while (first < generation->count && first < cold->count &&
           generation->tokens[first] == cold->tokens[first] &&
           memcmp(&generation->logprobs[first], &cold->logprobs[first], sizeof(float)) == 0) {
        first++;
    }
    if (first < generation->count || cold->count != generation->count) {
        CLEANUP(buffer_deinit) struct buffer replays;
        bool has_both = first < generation->count && first < cold->count;
        FAIL_WORLD(
            world,
            "token %d of %d (cold: %d) differs: id %d log-probability %.9g, cold %d %.9g; window "
            "source %s, reused %d, rebuilt from %d, prompt %d, replays %s",
            first,
            generation->count,
            cold->count,
            has_both ? generation->tokens[first] : -1,
            has_both ? (double)generation->logprobs[first] : 0,
            has_both ? cold->tokens[first] : -1,
            has_both ? (double)cold->logprobs[first] : 0,
            generation->facts.window_source,
            generation->facts.reused,
            generation->facts.rebuilt_from,
            generation->prompt_count,
            describe_replays(&generation->facts, &replays)
        );
    }
    if (cold->reason != generation->reason && generation->reason != FINISH_CANCELLED) {
        FAIL_WORLD(
            world,
            "ended by \"%s\", cold by \"%s\"",
            finish_reason_name(generation->reason),
            finish_reason_name(cold->reason)
        );
    }
}

static void compare_logits(struct world *world, const struct live *live, int32_t cold_length) {
    const struct generation_facts *facts = &live->generation.facts;
    int32_t length = read_logits(&warm_seen, live->id, world->logits, world->info.vocabulary);
    size_t vocabulary = (size_t)world->info.vocabulary;
    if (length != cold_length) {
        FAIL_WORLD(world, "logits follow %d tokens, cold %d", length, cold_length);
        return;
    }
    for (size_t i = 0; i < vocabulary; i++) {
        if (memcmp(&world->logits[i], &world->cold_logits[i], sizeof(float)) != 0) {
            CLEANUP(buffer_deinit) struct buffer replays;
            FAIL_WORLD(
                world,
                "logit %zu after %d tokens is %.9g, cold %.9g; window source %s, reused %d, "
                "rebuilt "
                "from %d, replays %s",
                i,
                length,
                (double)world->logits[i],
                (double)world->cold_logits[i],
                facts->window_source,
                facts->reused,
                facts->rebuilt_from,
                describe_replays(facts, &replays)
            );
            return;
        }
    }
}

/* ---- the end of generations ----------------------------------------------------------------- */

/* Keeps the context as a source of prompts. */
static void remember(struct world *world, const struct live *live) {
    struct text *text = &world->texts[world->text_next];
    world->text_next = (world->text_next + 1) % PROPERTY_TEXTS;
    world->text_count += world->text_count < PROPERTY_TEXTS;
    text->count = live->count;
    memcpy(text->ids, live->ids, (size_t)live->count * sizeof *live->ids);
    /* The last sampled token has not been evaluated. */
    text->computed = live->is_exact ? live->count - 1 : 0;
    text->has_record = true;
    text->prompt_count = live->generation.prompt_count;
    text->record = live->generation;
}

/* A cancel may come before the prompt was taken in. False when it did. */
static bool settle_length(struct world *world, struct live *live) {
    struct generation *generation = &live->generation;
    int32_t length = engine_sequence_length(world->engine, live->id);
    if (generation->reason == FINISH_CANCELLED && length == generation->old_count) {
        live->count = length;
        return false;
    }
    /* From here on the sequence is live. */
    ASSERT(live->count + generation->count <= PROPERTY_CONTEXT_MAX);
    for (int32_t i = 0; i < generation->count; i++) {
        live->ids[live->count++] = generation->tokens[i];
    }
    if (length != live->count) {
        FAIL_WORLD(world, "the engine says %d tokens, not %d", length, live->count);
    }
    return true;
}

static void check_generation(struct world *world, struct live *live) {
    struct generation *generation = &live->generation;
    if (generation->reason == FINISH_ERROR) {
        FAIL_WORLD(world, "the generation failed: %s", generation->error);
        return;
    }
    *cover(world, COVERAGE_CANCELS) += generation->reason == FINISH_CANCELLED;
    if (!settle_length(world, live)) {
        return;
    }
    world_check_facts(world, live);
    if (world_has_failed(world)) {
        return;
    }
    if (generation->reason != FINISH_CANCELLED || generation->count > 0) {
        struct generation cold;
        int32_t cold_length = 0;
        if (!run_cold(world, live, &cold, &cold_length)) {
            return;
        }
        compare_with_cold(world, live, &cold);
        if (generation->reason != FINISH_CANCELLED) {
            compare_logits(world, live, cold_length);
            remember(world, live);
        }
    }
}

void world_finish(struct world *world) {
    while (is_any_running(world) && !world_has_failed(world)) {
        struct engine_event event;
        if (!next_event(world->engine, &world->waker, &event)) {
            FAIL_WORLD(world, "no event for %d s", WAIT_SECONDS);
            return;
        }
        take_event(world, &event);
    }
    for (int i = 0; i < PROPERTY_SEQUENCES_MAX && !world_has_failed(world); i++) {
        struct live *live = &world->lives[i];
        if (live->used && live->generation.has_finished) {
            live->generation.has_finished = false;
            check_generation(world, live);
            live->generation.is_first = live->generation.is_first && live->count == 0;
        }
    }
}
