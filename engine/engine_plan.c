/* What an engine will take, before it takes it (promise P7). See engine.h. */
#include <sched.h>
#include <unistd.h>

#include "engine_internal.h"

#define DEFAULT_SHARE_PERCENT 80

/* MemAvailable of /proc/meminfo; free pages where there is none. */
static uint64_t memory_available(void) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 64 << 10);
    uint64_t kib = 0;
    if (is_ok(file_read("/proc/meminfo", &text, NULL))) {
        struct view key = view_of_text("MemAvailable:");
        struct view whole = buffer_view(&text);
        size_t at = view_find(whole, key, 0);
        if (at != SIZE_MAX) {
            size_t from = at + key.length;
            while (from < whole.length && whole.data[from] == ' ') {
                from++;
            }
            size_t end = from;
            while (end < whole.length && whole.data[end] >= '0' && whole.data[end] <= '9') {
                end++;
            }
            if (parse_u64(view_slice(whole, from, end - from), &kib)) {
                return kib * 1024;
            }
        }
    }
    long pages = sysconf(_SC_AVPHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

/* Cores this process may run on. */
static int32_t cores_available(void) {
    cpu_set_t set;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        cores = CPU_COUNT(&set);
    }
    return cores < 1 ? 1 : (int32_t)(cores > 1024 ? 1024 : cores);
}

static result fill_counts(
    const struct engine_options *options,
    const struct model_config *config,
    struct engine_plan *plan,
    struct error *error
) {
    int64_t context = options->context_max == 0 ? config->positions_max : options->context_max;
    if (context < 1 || context > config->positions_max || context > INT32_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "a context of %lld tokens is not between 1 and the model's %lld",
            (long long)context,
            (long long)config->positions_max
        );
    }
    int32_t sequences =
        options->sequences_max == 0 ? ENGINE_SEQUENCES_DEFAULT : options->sequences_max;
    if (sequences < 1 || sequences > ENGINE_SEQUENCES_MAX) {
        FAIL(error, INVALID_INPUT, "%d sequences, not 1 to %d", sequences, ENGINE_SEQUENCES_MAX);
    }
    int32_t rows = options->step_rows_max == 0 ? ENGINE_STEP_ROWS_CPU : options->step_rows_max;
    if (rows < 1 || rows > ENGINE_STEP_ROWS_MAX) {
        FAIL(error, INVALID_INPUT, "%d rows a step, not 1 to %d", rows, ENGINE_STEP_ROWS_MAX);
    }
    if (options->threads < 0) {
        FAIL(error, INVALID_INPUT, "%d threads", options->threads);
    }
    plan->context_max = (int32_t)context;
    plan->sequences_max = sequences;
    /* Every running sequence has a row in a step. */
    plan->step_rows_max = rows < sequences ? sequences : rows;
    plan->threads = options->threads == 0 ? cores_available() : options->threads;
    return OK;
}

static void fill_token_work(
    const struct model_config *config, const struct model_size *size, struct engine_plan *plan
) {
    uint64_t fp8 = size->storage[MODEL_STORAGE_FP8].bytes;
    uint64_t experts = (uint64_t)config->experts;
    uint64_t fp4 =
        size->storage[MODEL_STORAGE_FP4].bytes / experts * (uint64_t)config->experts_chosen;
    uint64_t bf16 = size->storage[MODEL_STORAGE_BF16].bytes - size->groups[MODEL_GROUP_EMBED].bytes;
    uint64_t f32 = size->storage[MODEL_STORAGE_F32].bytes;
    plan->token_weight_bytes = fp8 + fp4 + bf16 + f32;
    /* Scales add 1 byte to 1024 codes of FP8 and 1 to 16 bytes of FP4. */
    plan->token_multiplies =
        fp8 / 1025 * 1024 + fp4 / 17 * 16 * 2 + bf16 / sizeof(uint16_t) + f32 / sizeof(float);
    plan->head_multiplies = (uint64_t)config->vocabulary * (uint64_t)config->hidden;
}

result engine_plan_fill(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    struct engine_plan *out,
    struct error *error
) {
    struct engine_plan plan = {.weights_mapped = size->file_bytes};
    fill_token_work(config, size, &plan);
    TRY(fill_counts(options, config, &plan, error));
    struct kv_layout layout;
    TRY(kv_layout_make(config, &layout, error));
    struct kv_cache_size cache;
    /* Forks need no more: kv_cache.h says why. */
    struct kv_cache_shape cache_shape = {
        .context_max = plan.context_max,
        .sequences_max = plan.sequences_max,
    };
    kv_cache_measure(&layout, &cache_shape, &cache);
    struct forward_options shape = {
        .rows_max = plan.step_rows_max,
        .sequences_max = plan.sequences_max,
    };
    uint64_t vocabulary = (uint64_t)config->vocabulary;
    uint64_t logits =
        (2 * (uint64_t)plan.sequences_max + FORWARD_LOGIT_ROWS_MAX) * vocabulary * sizeof(float);
    plan.kv_bytes_per_token = kv_layout_token_bytes(&layout);
    plan.kv_pool_bytes = cache.pool_bytes;
    plan.window_bytes_per_sequence = cache.window_bytes_per_sequence;
    struct backend_options backend;
    forward_backend_options(config, plan.step_rows_max, plan.context_max, &backend);
    backend.name = options->backend;
    backend.threads = plan.threads;
    plan.scratch_bytes =
        forward_scratch_bytes(config, &shape) + logits + backend_scratch_bytes(&backend);
    plan.total_beside_weights = cache.total_bytes + plan.scratch_bytes;
    plan.memory_max = options->memory_max != 0 ? options->memory_max
                                               : memory_available() / 100 * DEFAULT_SHARE_PERCENT;
    if (plan.total_beside_weights > plan.memory_max) {
        FAIL(
            error,
            LIMIT,
            "%d contexts of %d tokens need %llu bytes beside the weights (cache %llu, scratch "
            "%llu), but %llu are allowed: %llu short",
            plan.sequences_max,
            plan.context_max,
            (unsigned long long)plan.total_beside_weights,
            (unsigned long long)cache.total_bytes,
            (unsigned long long)plan.scratch_bytes,
            (unsigned long long)plan.memory_max,
            (unsigned long long)(plan.total_beside_weights - plan.memory_max)
        );
    }
    *out = plan;
    return OK;
}

result engine_plan_make(
    const struct engine_options *options, struct engine_plan *out, struct error *error
) {
    ASSERT(options->model_directory != NULL);
    struct model_config *config = calloc(1, sizeof *config);
    if (config == NULL) {
        FAIL(error, MEMORY, "no memory for a model's configuration");
    }
    struct model_size size;
    result measured = model_measure(options->model_directory, config, &size, error);
    if (is_ok(measured)) {
        measured = engine_plan_fill(options, config, &size, out, error);
    }
    free(config);
    return measured;
}

/* hash(model digest, backend, numerics version, block layout); architecture.md 4, "Lineage". */
void engine_root_lineage(
    const struct engine *engine, uint32_t numerics, char out[SHA256_HEX_BYTES]
) {
    const struct kv_layout *layout = &engine->cache.layout;
    char text[512];
    struct sha256 sha;
    sha256_init(&sha);
    int length = snprintf(
        text,
        sizeof text,
        "hearth root lineage\nmodel %s\nbackend %s\nnumerics %u\nblock %d tokens %zu bytes\n",
        engine->model->digest,
        engine->backend->name,
        numerics,
        KV_BLOCK_TOKENS,
        layout->block_bytes
    );
    ASSERT(length > 0 && (size_t)length < sizeof text);
    sha256_update(&sha, view_of(text, (size_t)length));
    for (int32_t s = 0; s < layout->source_count; s++) {
        const struct kv_source_layout *source = &layout->sources[s];
        length = snprintf(
            text,
            sizeof text,
            "source %d ratio %d main %zu record %zu index %zu %zu\n",
            s,
            source->ratio,
            source->main_offset,
            source->main_record_bytes,
            source->index_code_offset,
            source->index_scale_offset
        );
        ASSERT(length > 0 && (size_t)length < sizeof text);
        sha256_update(&sha, view_of(text, (size_t)length));
    }
    sha256_finish_hex(&sha, out);
}
