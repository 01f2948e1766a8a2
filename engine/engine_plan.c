/* What an engine will take, before it takes it (promise P7). See engine.h. */
#include <assert.h>
#include <sched.h>
#include <unistd.h>

#include "engine_internal.h"
#include "model_device.h"

#define DEFAULT_SHARE_PERCENT 80
/* Of a device's free memory, for what is not counted: its context, code, recorded steps, library
 * workspaces. */
#define DEVICE_RESERVE_BYTES ((uint64_t)512 << 20)
#define DEVICE_RESERVE_PART  32
/* Ids and node of a block, rounded up; the tree's tables are measured exactly afterwards. */
#define CACHE_BLOCK_TABLE_BYTES 2048

/* A line of /proc/meminfo, such as "MemAvailable:"; else `pages` of sysconf. */
static uint64_t memory_of(const char *name, int pages_name) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 64 << 10);
    uint64_t kib = 0;
    if (is_ok(file_read("/proc/meminfo", &text, NULL))) {
        struct view key = view_of_text(name);
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
    long pages = sysconf(pages_name);
    long page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

static uint64_t memory_available(void) {
    return memory_of("MemAvailable:", _SC_AVPHYS_PAGES);
}

static uint64_t memory_total(void) {
    return memory_of("MemTotal:", _SC_PHYS_PAGES);
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

/* Blocks and window slots of live sequences. */
static result fill_shares(
    const struct engine_options *options,
    int64_t context,
    struct engine_plan *plan,
    struct error *error
) {
    int32_t sequences = plan->sequences_max;
    if (options->windows_max < 0 || options->windows_max > sequences) {
        FAIL(error, INVALID_INPUT, "%d window slots, not 1 to %d", options->windows_max, sequences);
    }
    if (options->kv_tokens_max < 0) {
        FAIL(error, INVALID_INPUT, "%lld tokens of blocks", (long long)options->kv_tokens_max);
    }
    /* Numbers of blocks are 32 bits; up to half of what the tree can find may lie beside. */
    int64_t most = (context + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS * sequences;
    int64_t asked = options->kv_tokens_max / KV_BLOCK_TOKENS;
    asked += options->kv_tokens_max % KV_BLOCK_TOKENS != 0;
    int64_t blocks = asked == 0 || asked > most ? most : asked;
    if (blocks > INT32_MAX - KV_PREFIX_NODES_MAX) {
        FAIL(
            error,
            LIMIT,
            "%d contexts of %lld tokens are %lld blocks, more than %d",
            sequences,
            (long long)context,
            (long long)blocks,
            INT32_MAX - KV_PREFIX_NODES_MAX
        );
    }
    plan->windows_max = options->windows_max == 0 ? sequences : options->windows_max;
    plan->kv_tokens_max = blocks * KV_BLOCK_TOKENS;
    return OK;
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
    int32_t rows_default = plan->has_device ? ENGINE_STEP_ROWS_DEVICE : ENGINE_STEP_ROWS_CPU;
    int32_t rows = options->step_rows_max == 0 ? rows_default : options->step_rows_max;
    if (rows < 1 || rows > ENGINE_STEP_ROWS_MAX) {
        FAIL(error, INVALID_INPUT, "%d rows a step, not 1 to %d", rows, ENGINE_STEP_ROWS_MAX);
    }
    if (options->threads < 0) {
        FAIL(error, INVALID_INPUT, "%d threads", options->threads);
    }
    plan->sequences_max = sequences;
    TRY(fill_shares(options, context, plan, error));
    plan->context_max = (int32_t)context;
    /* Every running sequence has a row in a step. */
    plan->step_rows_max = rows < plan->windows_max ? plan->windows_max : rows;
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

struct kv_cache_shape
engine_cache_shape(const struct engine_plan *plan, const struct kv_layout *layout) {
    int64_t live = plan->kv_tokens_max / KV_BLOCK_TOKENS;
    int64_t beside =
        layout->block_bytes == 0 ? 0 : (int64_t)(plan->cache_pool_bytes / layout->block_bytes);
    return (struct kv_cache_shape){
        .context_max = plan->context_max,
        .sequences_max = plan->sequences_max,
        .block_total = narrow_i32(live + beside),
        .windows_max = plan->windows_max,
    };
}

void engine_store_options(
    const struct engine_options *options,
    const struct model_config *config,
    const struct engine_plan *plan,
    struct kv_store_options *out
) {
    *out = (struct kv_store_options){
        .window = config->window,
        .encoder_layers = config->encoder_layers,
        .layers = config->layers,
        .leases_max = 2 * plan->sequences_max, /* a destroyed one keeps its place for a step */
        .snapshot_bytes = plan->snapshot_bytes,
        .keeps_nothing = options->has_no_prefix_cache,
    };
}

void engine_tier_options(
    const struct engine_options *options, size_t block_bytes, struct kv_tier_options *out
) {
    *out = (struct kv_tier_options){
        .directory = options->cache_directory,
        .host_bytes = options->cache_host_bytes,
        .block_bytes = block_bytes,
        .disk_bytes_max = options->cache_disk_bytes,
        .write_bytes_per_hour = options->cache_write_bytes_hour,
        .lifetime_ms = options->cache_lifetime_ms,
    };
}

static struct memory_bytes sum(struct memory_bytes a, struct memory_bytes b) {
    return (struct memory_bytes){.device = a.device + b.device, .host = a.host + b.host};
}

/* Of host memory when the backend has none of its own. */
static uint64_t on_host(const struct engine_plan *plan, struct memory_bytes bytes) {
    return bytes.host + (plan->has_device ? 0 : bytes.device);
}

static uint64_t what_is_left(uint64_t all, uint64_t taken) {
    return all > taken ? all - taken : 0;
}

/* The cache with the plan's blocks beside those of live sequences, and what finds them. */
static struct memory_bytes measure_cache(
    const struct engine_options *options,
    const struct model_config *config,
    const struct kv_layout *layout,
    struct engine_plan *plan
) {
    struct kv_cache_size size;
    struct kv_cache_shape shape = engine_cache_shape(plan, layout);
    kv_cache_measure(layout, &shape, &size);
    /* All that measuring reads of it. */
    struct kv_cache cache = {
        .layout = *layout,
        .block_total = shape.block_total,
        .blocks_max = (plan->context_max + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS,
    };
    struct kv_store_options store;
    engine_store_options(options, config, plan, &store);
    store.cache = &cache;
    struct kv_store_size found;
    kv_store_measure(&store, &found);
    plan->kv_pool_bytes = size.pool_bytes;
    plan->window_bytes_per_sequence = size.window_bytes_per_sequence;
    plan->prefix_bytes = found.prefix_bytes + found.other_bytes;
    uint64_t slots = (uint64_t)found.snapshots * layout->state_bytes;
    plan->snapshot_bytes = plan->snapshot_bytes > slots ? slots : plan->snapshot_bytes;
    return (struct memory_bytes){
        .device = size.device_bytes,
        .host = size.total_bytes - size.device_bytes + plan->prefix_bytes + found.snapshot_bytes,
    };
}

/* Blocks and snapshots that are kept for later, beside what is `taken` whatever there is. What was not
 * asked for takes at most a quarter each of what is left. */
static struct memory_bytes plan_cache(
    const struct engine_options *options,
    const struct model_config *config,
    const struct kv_layout *layout,
    struct memory_bytes taken,
    struct engine_plan *plan
) {
    taken = sum(taken, measure_cache(options, config, layout, plan));
    uint64_t left_on_host = what_is_left(plan->memory_max, on_host(plan, taken));
    uint64_t left =
        plan->has_device ? what_is_left(plan->device_memory_max, taken.device) : left_on_host;
    /* Beside each block lie its ids, twice, and its node. */
    uint64_t block = layout->block_bytes + CACHE_BLOCK_TABLE_BYTES;
    uint64_t live = plan->kv_pool_bytes;
    uint64_t beside = options->cache_memory_bytes;
    if (beside == 0 && !options->has_no_prefix_cache) {
        uint64_t share = layout->block_bytes == 0 ? 0 : left / 4 / block * layout->block_bytes;
        beside = 3 * live < share ? 3 * live : share;
    }
    uint64_t blocks_most = KV_PREFIX_NODES_MAX / 2;
    if (layout->block_bytes > 0 && beside / layout->block_bytes > blocks_most) {
        beside = blocks_most * layout->block_bytes;
    }
    plan->cache_pool_bytes = beside;
    plan->snapshot_bytes = options->snapshot_bytes;
    if (plan->snapshot_bytes == 0 && !options->has_no_prefix_cache) {
        uint64_t most = KV_WINDOW_COUNT_MAX * (uint64_t)layout->state_bytes;
        uint64_t share = left_on_host / 4;
        uint64_t tenth = memory_total() / 10;
        share = share < tenth ? share : tenth;
        plan->snapshot_bytes = share < most ? share : most;
    }
    return measure_cache(options, config, layout, plan);
}

/* More would hardly be faster, while each holds scratch for a vocabulary. */
#define DRAW_LANES_MAX 32

int32_t engine_draw_lanes(const struct engine_plan *plan) {
    int32_t lanes = plan->threads < DRAW_LANES_MAX ? plan->threads : DRAW_LANES_MAX;
    return lanes < plan->windows_max ? lanes : plan->windows_max;
}

/* A checkpoint without draft stages' weights has none, whatever its configuration says. */
static bool plans_draft_stages(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    const struct engine_plan *plan
) {
    return !options->has_no_speculation && size->groups[MODEL_GROUP_DRAFT_HEADS].tensors > 0 &&
           config->draft_block <= plan->step_rows_max;
}

struct engine_queue_size engine_queue_size(const struct engine_plan *plan) {
    /* A destroyed sequence keeps its place until the step it runs in is over. */
    size_t contexts = 2 * (size_t)plan->sequences_max;
    size_t windows = (size_t)plan->windows_max;
    size_t rows = (size_t)plan->step_rows_max;
    size_t draws = windows * (1 + ENGINE_DRAFT_MAX);
    draws = draws < rows + windows ? draws : rows + windows;
    /* Of a boundary and a step: each sequence's progress and end, and tokens. */
    size_t pending = 2 * contexts + draws;
    return (struct engine_queue_size){
        .contexts = contexts,
        .events = 4 * pending,
        .pending = pending,
        .endings = 4 * contexts,
        .draws = draws,
    };
}

uint64_t engine_queue_bytes(const struct engine_plan *plan) {
    struct engine_queue_size size = engine_queue_size(plan);
    /* Tokens of sequences that gave their blocks back, where these do not suffice for all. */
    int64_t context_blocks = (plan->context_max + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    bool can_lack = plan->kv_tokens_max < context_blocks * KV_BLOCK_TOKENS * plan->sequences_max;
    size_t demoted = sizeof(struct context_demotion) + (size_t)plan->context_max * sizeof(int32_t);
    return (can_lack ? (size_t)plan->sequences_max * demoted : 0) +
           size.contexts * (sizeof(struct context) + sizeof(struct schedule_sequence) +
                            sizeof(struct schedule_idle)) +
           (size.events + size.pending) * sizeof(struct event_entry) +
           size.endings * sizeof(struct event_ending) + size.draws * sizeof(struct sampled_token) +
           schedule_bytes(narrow_i32((int64_t)size.contexts)) +
           schedule_ledger_bytes(narrow_i32((int64_t)size.contexts)) +
           (size_t)plan->windows_max *
               (sizeof(struct forward_segment) + sizeof(struct step_entry) + sizeof(int32_t));
}

struct forward_options engine_forward_options(const struct engine_plan *plan) {
    return (struct forward_options){
        .rows_max = plan->step_rows_max,
        .sequences_max = plan->windows_max,
        .drafted_rows_max = plan->drafted_rows_max,
        .exports_targets = plan->has_draft_stages,
    };
}

static int32_t
plan_drafted_rows(const struct engine_options *options, const struct engine_plan *plan) {
    int64_t most = (int64_t)plan->windows_max * (1 + ENGINE_DRAFT_MAX);
    most = most < plan->step_rows_max ? most : plan->step_rows_max;
    return options->has_no_speculation ? 0 : (int32_t)most;
}

uint64_t engine_request_bytes(const struct engine_plan *plan, int32_t vocabulary) {
    uint64_t ids = ((uint64_t)plan->context_max + 1) * sizeof(int32_t);
    uint64_t biases = SAMPLING_BIAS_MAX * sizeof(struct logit_bias);
    return ids + biases + stop_bytes((uint64_t)STOP_STRINGS_MAX * STOP_STRING_BYTES_MAX) +
           guard_bytes() + sampler_history_bytes(vocabulary, plan->context_max);
}

static struct memory_bytes
plan_scratch(const struct model_config *config, const struct engine_plan *plan) {
    struct forward_options shape = engine_forward_options(plan);
    struct memory_bytes all = forward_measure(config, &shape);
    if (plan->has_draft_stages) {
        all = sum(all, draft_measure(config, &shape));
    }
    struct backend_options backend;
    forward_backend_options(config, plan->step_rows_max, plan->context_max, &backend);
    backend.name = plan->backend;
    backend.threads = plan->threads;
    all.device += backend_scratch_bytes(&backend);
    uint64_t vocabulary = (uint64_t)config->vocabulary;
    uint64_t logits =
        ((uint64_t)plan->sequences_max + FORWARD_LOGIT_ROWS_MAX) * vocabulary * sizeof(float);
    uint64_t samplers = (uint64_t)engine_draw_lanes(plan) *
                        (sizeof(struct sampler *) + sampler_bytes(config->vocabulary));
    all.host += logits + engine_queue_bytes(plan) + engine_speculation_bytes(plan) + samplers +
                (uint64_t)plan->sequences_max * engine_request_bytes(plan, config->vocabulary);
    return all;
}

result engine_device_find(struct engine_device *out, struct error *error) {
    struct backend_facts facts;
    TRY(backend_probe("cuda", 0, &facts, error));
    *out = (struct engine_device
    ){.memory_total = facts.memory_total, .memory_free = facts.memory_free};
    static_assert(sizeof out->description == sizeof facts.description, "one is copied whole");
    memcpy(out->description, facts.description, sizeof out->description);
    return OK;
}

/* The device, and the weights that go there. */
static result plan_device(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    struct engine_plan *plan,
    struct error *error
) {
    const char *name = options->backend == NULL ? "cpu" : options->backend;
    plan->backend = strcmp(name, "cuda") == 0 ? "cuda" : "cpu";
    if (strcmp(name, "cpu") == 0) {
        return OK;
    }
    struct backend_facts facts;
    TRY(backend_probe(name, 0, &facts, error));
    plan->has_device = !facts.is_host_memory;
    if (plan->has_device) {
        struct model_device_size weights;
        model_device_measure(config, size, &weights);
        plan->device_weight_bytes = weights.weight_bytes + weights.table_bytes;
        plan->host_table_bytes = weights.table_bytes; // until it is known that they fit
        plan->device_memory_max = options->device_memory_max;
        if (plan->device_memory_max == 0) {
            uint64_t reserve = DEVICE_RESERVE_BYTES + facts.memory_free / DEVICE_RESERVE_PART;
            plan->device_memory_max = what_is_left(facts.memory_free, reserve);
        }
    }
    return OK;
}

/* Engram tables are read a few KB a token: they give way when they do not fit beside the rest. */
static void place_tables(struct engine_plan *plan, uint64_t device_scratch, uint64_t device_cache) {
    uint64_t needed = plan->device_weight_bytes + device_scratch + device_cache;
    plan->has_host_tables = plan->host_table_bytes > 0 && needed > plan->device_memory_max;
    if (plan->has_host_tables) {
        plan->device_weight_bytes -= plan->host_table_bytes;
    } else {
        plan->host_table_bytes = 0;
    }
}

static result
check_device_memory(const struct engine_plan *plan, uint64_t scratch, struct error *error) {
    if (plan->device_bytes > plan->device_memory_max) {
        FAIL(
            error,
            LIMIT,
            "the model needs %llu bytes of the device's memory (weights %llu, blocks %llu, of them "
            "%llu for later; windows and tables %llu, scratch %llu), but %llu are allowed: %llu "
            "short",
            (unsigned long long)plan->device_bytes,
            (unsigned long long)plan->device_weight_bytes,
            (unsigned long long)plan->kv_pool_bytes,
            (unsigned long long)plan->cache_pool_bytes,
            (unsigned long long
            )(plan->device_bytes - plan->device_weight_bytes - plan->kv_pool_bytes - scratch),
            (unsigned long long)scratch,
            (unsigned long long)plan->device_memory_max,
            (unsigned long long)(plan->device_bytes - plan->device_memory_max)
        );
    }
    return OK;
}

/* `needed`: of host memory. */
static result
check_host_memory(const struct engine_plan *plan, uint64_t needed, struct error *error) {
    if (needed > plan->memory_max) {
        FAIL(
            error,
            LIMIT,
            "%d contexts of %d tokens (%lld together, %d running) need %llu bytes beside the "
            "weights (blocks %llu, of them "
            "%llu "
            "for later; snapshots %llu, prefix tree %llu, windows and tables %llu, host pool %llu, "
            "buffers of the cache's tiers %llu, scratch %llu), %llu of them of the host, but %llu "
            "are allowed: %llu short",
            plan->sequences_max,
            plan->context_max,
            (long long)plan->kv_tokens_max,
            plan->windows_max,
            (unsigned long long)plan->total_beside_weights,
            (unsigned long long)plan->kv_pool_bytes,
            (unsigned long long)plan->cache_pool_bytes,
            (unsigned long long)plan->snapshot_bytes,
            (unsigned long long)plan->prefix_bytes,
            (unsigned long long)plan->other_bytes,
            (unsigned long long)plan->host_bytes,
            (unsigned long long)plan->tier_bytes,
            (unsigned long long)plan->scratch_bytes,
            (unsigned long long)needed,
            (unsigned long long)plan->memory_max,
            (unsigned long long)(needed - plan->memory_max)
        );
    }
    return OK;
}

static void
plan_tiers(const struct engine_options *options, size_t block_bytes, struct engine_plan *plan) {
    if (block_bytes > 0 && !options->has_no_prefix_cache &&
        (options->cache_directory != NULL || options->cache_host_bytes > 0)) {
        struct kv_tier_options tier;
        struct kv_tier_size size;
        engine_tier_options(options, block_bytes, &tier);
        kv_tier_measure(&tier, &size);
        plan->host_bytes = size.host_bytes;
        plan->tier_bytes = size.total_bytes - size.host_bytes;
    }
}

/* The plan for the backend that the options name. */
static result plan_backend(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    struct engine_plan *out,
    struct error *error
) {
    struct engine_plan plan = {.weights_mapped = size->file_bytes};
    TRY(plan_device(options, config, size, &plan, error));
    fill_token_work(config, size, &plan);
    TRY(fill_counts(options, config, &plan, error));
    struct kv_layout layout;
    TRY(kv_layout_make(config, &layout, error));
    plan.drafted_rows_max = plan_drafted_rows(options, &plan);
    plan.has_draft_stages = plans_draft_stages(options, config, size, &plan);
    if (plan.has_draft_stages) {
        kv_layout_add_draft(config, &layout);
    }
    plan.kv_bytes_per_token = kv_layout_token_bytes(&layout);
    struct memory_bytes scratch = plan_scratch(config, &plan);
    plan.scratch_bytes = scratch.device + scratch.host;
    plan.memory_max = options->memory_max != 0 ? options->memory_max
                                               : memory_available() / 100 * DEFAULT_SHARE_PERCENT;
    if (plan.has_device) {
        struct memory_bytes least = measure_cache(options, config, &layout, &plan);
        place_tables(&plan, scratch.device, least.device);
    }
    struct memory_bytes weights = {
        .device = plan.device_weight_bytes, .host = plan.host_table_bytes};
    struct memory_bytes fixed = sum(scratch, weights);
    struct memory_bytes cache = plan_cache(options, config, &layout, fixed, &plan);
    plan_tiers(options, layout.block_bytes, &plan);
    uint64_t cache_bytes = cache.device + cache.host;
    plan.other_bytes = cache_bytes - plan.kv_pool_bytes - plan.snapshot_bytes - plan.prefix_bytes;
    plan.total_beside_weights =
        cache_bytes + plan.host_bytes + plan.tier_bytes + plan.scratch_bytes;
    struct memory_bytes all = sum(fixed, cache);
    plan.device_bytes = plan.has_device ? all.device : 0;
    TRY(check_device_memory(&plan, scratch.device, error));
    TRY(check_host_memory(&plan, on_host(&plan, all) + plan.host_bytes + plan.tier_bytes, error));
    *out = plan;
    return OK;
}

result engine_plan_fill(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    struct engine_plan *out,
    struct error *error
) {
    if (options->backend == NULL || strcmp(options->backend, "auto") != 0) {
        return plan_backend(options, config, size, out, error);
    }
    struct engine_options chosen = *options;
    struct error reason = {0};
    chosen.backend = "cuda";
    result planned = plan_backend(&chosen, config, size, out, &reason);
    if (is_failed(planned)) {
        chosen.backend = "cpu";
        TRY(plan_backend(&chosen, config, size, out, error));
        /* Where there is no device, nobody misses it. */
        if (planned.code != RESULT_NOT_FOUND) {
            (void)snprintf(out->backend_note, sizeof out->backend_note, "%.255s", reason.message);
        }
    }
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
