/* Opening an engine and the callers' side of it. See engine.h and engine_internal.h. */
#include "chat.h"
#include "engine_internal.h"
#include "engram.h"
#include "grammar_vocabulary.h"
#include "model_device.h"
#include "tokenizer.h"

#include "base/json.h"
#include <sys/random.h>

#define GENERATION_CONFIG_BYTES_MAX ((size_t)1 << 20)

/* ---- opening -------------------------------------------------------------------------------- */

static result file_path(char *out, size_t bytes, const char *directory, const char *name) {
    int length = snprintf(out, bytes, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= bytes) {
        FAIL(NULL, INVALID_INPUT, "path too long");
    }
    return OK;
}

static result
read_default_sampling(const char *directory, struct sampling *out, struct error *error) {
    *out = (struct sampling){.temperature = 1.0, .top_p = 0.95};
    char path[4096];
    if (is_failed(file_path(path, sizeof path, directory, "generation_config.json"))) {
        FAIL(error, INVALID_INPUT, "the model's path is too long");
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, GENERATION_CONFIG_BYTES_MAX);
    result read = file_read(path, &text, error);
    if (read.code == RESULT_NOT_FOUND) {
        return OK;
    }
    TRY(limit_as_corrupt(read, error));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    result parsed = json_parse(buffer_view(&text), NULL, &document, error);
    TRY_NOTE(error, limit_as_corrupt(parsed, error), "%s", path);
    struct json_value root = json_root(document);
    struct sampling found = *out;
    if (json_type(json_get(root, "temperature")) != JSON_ABSENT) {
        TRY_NOTE(
            error, json_get_double(root, "temperature", &found.temperature, error), "%s", path
        );
    }
    if (json_type(json_get(root, "top_p")) != JSON_ABSENT) {
        TRY_NOTE(error, json_get_double(root, "top_p", &found.top_p, error), "%s", path);
    }
    TRY_NOTE(error, sampling_check(&found, 1, error), "%s", path);
    *out = found;
    return OK;
}

static result open_tables(struct engine *engine, struct error *error) {
    const struct model_config *config = &engine->model->config;
    if (config->engram_count == 0) {
        return OK;
    }
    struct engram_options options = model_engram_options(config);
    return engram_create(&engine->engram, engine->tokenizer, &options, error);
}

static result
open_files(struct engine *engine, const struct engine_options *options, struct error *error) {
    const char *directory = options->model_directory;
    char path[4096];
    TRY(model_open(directory, &engine->model, error));
    if (is_failed(file_path(path, sizeof path, directory, "tokenizer.json"))) {
        FAIL(error, INVALID_INPUT, "the model's path is too long");
    }
    TRY(tokenizer_load(&engine->tokenizer, path, error));
    /* A model without a wording can still be run on token ids. */
    result wording = chat_wording_load(&engine->wording, directory, NULL, error);
    if (wording.code != RESULT_NOT_FOUND) {
        TRY(wording);
    }
    TRY(read_default_sampling(directory, &engine->default_sampling, error));
    return open_tables(engine, error);
}

static result open_samplers(struct engine *engine, struct error *error) {
    int32_t lanes = engine_draw_lanes(&engine->plan);
    engine->samplers = calloc((size_t)lanes, sizeof(struct sampler *));
    if (engine->samplers == NULL) {
        FAIL(error, MEMORY, "no memory for %d samplers", lanes);
    }
    engine->sampler_count = lanes;
    for (int32_t i = 0; i < lanes; i++) {
        TRY(sampler_create(&engine->samplers[i], engine->model->config.vocabulary, error));
    }
    return OK;
}

static result
open_compute(struct engine *engine, const struct engine_options *options, struct error *error) {
    const struct model_config *config = &engine->model->config;
    const struct engine_plan *plan = &engine->plan;
    struct backend_options shape;
    forward_backend_options(config, plan->step_rows_max, plan->context_max, &shape);
    shape.name = plan->backend;
    shape.threads = options->threads;
    shape.isa = options->isa;
    TRY(backend_open(&shape, &engine->backend, error));
    if (!engine->backend->is_host_memory) {
        TRY(model_to_device(engine->model, engine->backend, plan->has_host_tables, error));
    }
    struct kv_layout layout;
    TRY(kv_layout_make(config, &layout, error));
    if (plan->has_draft_stages) {
        kv_layout_add_draft(config, &layout);
    }
    struct kv_cache_shape cache = engine_cache_shape(plan, &layout);
    TRY(kv_cache_init_shape(&engine->cache, engine->backend, &layout, &cache, error));
    struct forward_options forward = engine_forward_options(plan);
    TRY(forward_create(
        &engine->forward,
        engine->model,
        engine->engram,
        engine->backend,
        &engine->cache,
        &forward,
        error
    ));
    if (plan->has_draft_stages) {
        TRY(draft_create(&engine->draft, engine->forward, error));
    }
    TRY(engine_speculation_create(engine, error));
    return open_samplers(engine, error);
}

/* Nobody can prepare collisions of what he cannot know; without it the tree is as right, but slow on
 * prepared prompts. */
static uint64_t random_key(void) {
    uint64_t key = 0;
    if (getrandom(&key, sizeof key, GRND_NONBLOCK) != (ssize_t)sizeof key) {
        key = (uint64_t)engine_now_us();
    }
    return key;
}

static int32_t compress_id(void *context, int32_t id) {
    const struct engine *engine = context;
    return engine->engram == NULL ? 0 : engram_compress(engine->engram, id);
}

/* From the worker of the tiers. Takes no lock: whoever holds it may be waiting for that worker. A
 * signal that comes too early costs little, since the engine thread looks again within milliseconds
 * as long as it expects one. */
static void wake_engine(void *context) {
    struct engine *engine = context;
    pthread_cond_signal(&engine->to_engine);
}

static result
open_tier(struct engine *engine, const struct engine_options *options, struct error *error) {
    size_t block_bytes = engine->cache.layout.block_bytes;
    if (block_bytes == 0 || options->has_no_prefix_cache ||
        (options->cache_directory == NULL && options->cache_host_bytes == 0)) {
        return OK;
    }
    char description[256];
    (void)snprintf(
        description,
        sizeof description,
        "%.100s on %.60s, numerics %u",
        engine->info.model_name,
        engine->info.backend,
        engine->info.numerics
    );
    struct kv_tier_options tier;
    engine_tier_options(options, block_bytes, &tier);
    tier.root = engine->root;
    tier.description = description;
    tier.backend = engine->backend;
    tier.clock = engine->clock;
    tier.wake = wake_engine;
    tier.wake_context = engine;
    return kv_tier_open(&engine->tier, &tier, error);
}

static result
open_store(struct engine *engine, const struct engine_options *options, struct error *error) {
    bool is_lineage = kv_hex_parse(engine->info.root_lineage, engine->root.bytes);
    ASSERT(is_lineage);
    struct kv_store_options store;
    engine_store_options(options, &engine->model->config, &engine->plan, &store);
    TRY(open_tier(engine, options, error));
    store.tier = engine->tier;
    store.has_disk = options->cache_directory != NULL;
    store.cache = &engine->cache;
    store.root = engine->root;
    store.hash_key = random_key();
    store.compress = compress_id;
    store.compress_context = engine;
    return kv_store_create(&engine->store, &store, error);
}

static result open_logits(struct engine *engine, struct error *error) {
    size_t vocabulary = (size_t)engine->model->config.vocabulary;
    size_t bytes = FORWARD_LOGIT_ROWS_MAX * vocabulary * sizeof *engine->logit_rows;
    struct backend_staging *staging = &engine->logit_staging;
    struct error refusal;
    TRY_NOTE(
        error,
        backend_staging_take(engine->backend, bytes, staging, &refusal, error),
        "logits of a step"
    );
    engine->logit_rows = staging->memory;
    char *note = engine->info.transfer_note;
    (void)snprintf(note, sizeof engine->info.transfer_note, "%.255s", refusal.message);
    return OK;
}

static result open_queues(struct engine *engine, struct error *error) {
    size_t windows = (size_t)engine->plan.windows_max;
    struct engine_queue_size size = engine_queue_size(&engine->plan);
    engine->context_count = narrow_i32((int64_t)size.contexts);
    engine->event_capacity = size.events;
    engine->pending_capacity = size.pending;
    engine->draw_capacity = narrow_i32((int64_t)size.draws);
    engine->ending_count = narrow_i32((int64_t)size.endings);
    engine->contexts = calloc(size.contexts, sizeof *engine->contexts);
    engine->choices = calloc(size.contexts, sizeof *engine->choices);
    engine->idle = calloc(size.contexts, sizeof *engine->idle);
    engine->events = calloc(size.events, sizeof *engine->events);
    engine->pending = calloc(size.pending, sizeof *engine->pending);
    engine->endings = calloc(size.endings, sizeof *engine->endings);
    engine->draws = calloc(size.draws, sizeof *engine->draws);
    engine->segments = calloc(windows, sizeof *engine->segments);
    engine->entries = calloc(windows, sizeof *engine->entries);
    engine->kept_rows = calloc(windows, sizeof *engine->kept_rows);
    if (engine->contexts == NULL || engine->choices == NULL || engine->idle == NULL ||
        engine->events == NULL || engine->pending == NULL || engine->endings == NULL ||
        engine->draws == NULL || engine->segments == NULL || engine->entries == NULL ||
        engine->kept_rows == NULL) {
        FAIL(error, MEMORY, "no memory for the queues of %zu sequences", size.contexts);
    }
    for (int32_t i = 0; i < engine->ending_count; i++) {
        engine->endings[i].next = i + 1 < engine->ending_count ? i + 1 : -1;
    }
    engine->endings_left = engine->ending_count;
    TRY(schedule_create(&engine->schedule, engine->context_count, error));
    return schedule_ledger_create(&engine->ledger, engine->context_count, error);
}

static void fill_info(struct engine *engine, const char *directory) {
    struct engine_info *info = &engine->info;
    size_t end = strlen(directory);
    while (end > 1 && directory[end - 1] == '/') {
        end--;
    }
    size_t from = end;
    while (from > 0 && directory[from - 1] != '/') {
        from--;
    }
    (void)snprintf(
        info->model_name, sizeof info->model_name, "%.*s", (int)(end - from), directory + from
    );
    memcpy(info->model_digest, engine->model->digest, sizeof info->model_digest);
    (void)snprintf(info->backend, sizeof info->backend, "%s", engine->backend->description);
    memcpy(info->backend_note, engine->plan.backend_note, sizeof info->backend_note);
    info->numerics = ENGINE_FORWARD_NUMERICS << 16 | engine->backend->numerics;
    engine_root_lineage(engine, info->numerics, info->root_lineage);
    info->vocabulary = engine->model->config.vocabulary;
    info->context_max = engine->plan.context_max;
    info->eos_id = engine->model->config.eos_id;
    info->kv_bytes_per_token = engine->plan.kv_bytes_per_token;
}

static result open_lock(struct engine *engine, struct error *error) {
    if (pthread_mutex_init(&engine->lock, NULL) != 0) {
        FAIL(error, MEMORY, "no memory for the engine's lock");
    }
    engine->has_lock = true;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&engine->to_engine, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)pthread_cond_init(&engine->to_caller, NULL);
    return OK;
}

static result start_thread(struct engine *engine, struct error *error) {
    int failed = pthread_create(&engine->thread, NULL, engine_thread_main, engine);
    if (failed != 0) {
        FAIL_FOREIGN(error, MEMORY, failed, "cannot start the engine thread: %s", strerror(failed));
    }
    engine->has_thread = true;
    return OK;
}

static void engine_cleanup(struct engine **engine) {
    engine_close(*engine);
}

static result open_planned(
    const struct engine_options *options,
    const struct engine_plan *plan,
    struct engine **out,
    struct error *error
) {
    CLEANUP(engine_cleanup) struct engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        FAIL(error, MEMORY, "no memory for an engine");
    }
    engine->plan = *plan;
    engine->wake = options->wake;
    engine->wake_context = options->wake_context;
    engine->next_id = 1;
    engine->clock = options->clock.monotonic_ms == NULL ? clock_real() : options->clock;
    TRY_NOTE(error, open_files(engine, options, error), "model '%s'", options->model_directory);
    TRY(open_compute(engine, options, error));
    TRY(open_queues(engine, error));
    TRY(open_logits(engine, error));
    fill_info(engine, options->model_directory);
    TRY(open_lock(engine, error));
    TRY(open_store(engine, options, error));
    TRY(start_thread(engine, error));
    *out = TAKE(engine);
    return OK;
}

static result
plan_on(const struct engine_options *options, struct engine_plan *plan, struct error *error) {
    TRY_NOTE(error, engine_plan_make(options, plan, error), "model '%s'", options->model_directory);
    return OK;
}

result engine_open(const struct engine_options *options, struct engine **out, struct error *error) {
    ASSERT(options->model_directory != NULL);
    bool is_auto = options->backend != NULL && strcmp(options->backend, "auto") == 0;
    struct engine_plan plan;
    struct error reason = {0};
    TRY(plan_on(options, &plan, error));
    if (!is_auto || !plan.has_device) {
        return open_planned(options, &plan, out, error);
    }
    result opened = open_planned(options, &plan, out, &reason);
    if (is_ok(opened)) {
        return OK;
    }
    /* What only shows when it is opened: a device that faults, memory that others took meanwhile. */
    struct engine_options on_cpu = *options;
    on_cpu.backend = "cpu";
    TRY(plan_on(&on_cpu, &plan, error));
    (void)snprintf(plan.backend_note, sizeof plan.backend_note, "%.255s", reason.message);
    return open_planned(&on_cpu, &plan, out, error);
}

/* Nobody else is there any more. What live sequences computed may be wanted after a restart. */
static void close_store(struct engine *engine) {
    for (int32_t c = 0; engine->store != NULL && c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (context->used && context->binding.sequence == NULL) {
            kv_store_cancel(engine->store, &context->binding, engine_now_ms(engine));
        }
    }
    if (engine->store != NULL) {
        (void)kv_store_flush(engine->store, ENGINE_FLUSH_MS, engine_now_ms(engine));
    }
    kv_tier_close(engine->tier);
    kv_store_destroy(engine->store);
}

void engine_close(struct engine *engine) {
    if (engine == NULL) {
        return;
    }
    if (engine->has_thread) {
        pthread_mutex_lock(&engine->lock);
        engine->is_stopping = true;
        pthread_cond_signal(&engine->to_engine);
        pthread_mutex_unlock(&engine->lock);
        (void)pthread_join(engine->thread, NULL);
    }
    close_store(engine);
    if (engine->has_lock) {
        pthread_cond_destroy(&engine->to_caller);
        pthread_cond_destroy(&engine->to_engine);
        pthread_mutex_destroy(&engine->lock);
    }
    for (int32_t c = 0; engine->contexts != NULL && c < engine->context_count; c++) {
        engine_generation_free(&engine->contexts[c].generation);
        engine_kept_release(&engine->contexts[c]);
        free(engine->contexts[c].demoted);
    }
    backend_staging_release(engine->backend, &engine->logit_staging);
    free(engine->kept_rows);
    free(engine->entries);
    free(engine->segments);
    free(engine->draws);
    free(engine->endings);
    free(engine->pending);
    free(engine->events);
    free(engine->idle);
    free(engine->choices);
    free(engine->contexts);
    schedule_ledger_destroy(engine->ledger);
    schedule_destroy(engine->schedule);
    grammar_vocabulary_destroy(engine->vocabulary);
    for (int32_t i = 0; i < engine->sampler_count; i++) {
        sampler_destroy(engine->samplers[i]);
    }
    free(engine->samplers);
    engine_speculation_destroy(engine->speculation);
    draft_destroy(engine->draft);
    forward_destroy(engine->forward);
    kv_cache_deinit(&engine->cache);
    model_close(engine->model);
    if (engine->backend != NULL) {
        backend_close(engine->backend);
    }
    engram_destroy(engine->engram);
    chat_wording_destroy(engine->wording);
    tokenizer_destroy(engine->tokenizer);
    free(engine);
}

/* ---- facts ---------------------------------------------------------------------------------- */

void engine_get_info(const struct engine *engine, struct engine_info *out) {
    *out = engine->info;
}

const struct tokenizer *engine_tokenizer(const struct engine *engine) {
    return engine->tokenizer;
}

const struct chat_wording *engine_wording(const struct engine *engine) {
    return engine->wording;
}

void engine_default_sampling(const struct engine *engine, struct sampling *out) {
    *out = engine->default_sampling;
}

int32_t engine_layer_count(const struct engine *engine) {
    return engine->model->config.layers;
}

result engine_vocabulary(
    struct engine *engine, const struct grammar_vocabulary **out, struct error *error
) {
    engine_lock(engine);
    struct grammar_vocabulary *there = engine->vocabulary;
    engine_unlock(engine);
    if (there == NULL) {
        TRY(grammar_vocabulary_create(
            &there, engine->tokenizer, (size_t)engine->info.vocabulary, error
        ));
        engine_lock(engine);
        struct grammar_vocabulary *other = engine->vocabulary;
        engine->vocabulary = other == NULL ? there : other;
        engine_unlock(engine);
        if (other != NULL) {
            grammar_vocabulary_destroy(there);
            there = other;
        }
    }
    *out = there;
    return OK;
}
