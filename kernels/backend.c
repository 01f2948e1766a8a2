/* Opens a backend by name; checks shapes and dtypes once for all backends before calling the table.
 *
 * A wrong shape is a mistake in the engine, so it asserts. What depends on data (ids, positions) is
 * checked by the engine when the data enters. */
#include "backend.h"

#include "backend_module.h"
#include "cpu_backend.h"
#include "cpu_team.h"

#define CUDA_LIBRARY "libhearth_cuda.so"

/* The module of a backend that is not "cpu". */
static result
find_module(const char *name, const struct backend_module **out, struct error *error) {
    if (strcmp(name, "cuda") != 0) {
        FAIL(error, UNSUPPORTED, "unknown backend '%s'; there are cpu and cuda", name);
    }
#ifdef KERNELS_HAVE_CUDA
    TRY_NOTE(
        error, backend_module_load(CUDA_LIBRARY, "cuda_backend_module", out, error), "backend cuda"
    );
    return OK;
#else
    (void)out;
    FAIL(error, NOT_FOUND, "backend cuda: this program was built without it");
#endif
}

/* Ceilings far above any model; below them no product of sizes overflows 64 bits. */
static bool limits_are_valid(const struct backend_options *o) {
    const struct {
        int32_t value, least, most;
    } limits[] = {
        {o->device, 0, 1 << 10},
        {o->threads, 0, CPU_TEAM_THREADS_MAX},
        {o->rows_max, 1, 1 << 20},
        {o->dim_max, 1, 1 << 22},
        {o->context_max, 0, 1 << 28},
        {o->model_dim, 0, 1 << 20},
        {o->experts, 0, 1 << 20},
        {o->experts_chosen, 0, 1 << 10},
        {o->expert_hidden, 0, 1 << 20},
        {o->heads, 0, 1 << 12},
        {o->head_dim, 0, 1 << 14},
        {o->index_heads, 0, 1 << 12},
        {o->index_dim, 0, 1 << 10},
        {o->index_topk, 0, 1 << 20},
    };
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        if (limits[i].value < limits[i].least || limits[i].value > limits[i].most) {
            return false;
        }
    }
    return true;
}

static bool is_cpu(const char *name) {
    return name == NULL || strcmp(name, "cpu") == 0;
}

result
backend_probe(const char *name, int32_t device, struct backend_facts *out, struct error *error) {
    ASSERT(name != NULL && out != NULL && device >= 0);
    if (is_cpu(name)) {
        return cpu_backend_probe(out, error);
    }
    const struct backend_module *module = NULL;
    TRY(find_module(name, &module, error));
    ASSERT(module != NULL);
    return module->probe(device, out, error);
}

result
backend_open(const struct backend_options *options, struct backend **out, struct error *error) {
    ASSERT(options != NULL && out != NULL);
    if (!limits_are_valid(options)) {
        FAIL(
            error,
            INVALID_INPUT,
            "backend: a limit is out of range (rows %d, widest row %d, threads %d)",
            options->rows_max,
            options->dim_max,
            options->threads
        );
    }
    if (is_cpu(options->name)) {
        return cpu_backend_open(options, out, error);
    }
    const struct backend_module *module = NULL;
    TRY(find_module(options->name, &module, error));
    ASSERT(module != NULL);
    return module->open(options, out, error);
}

uint64_t backend_scratch_bytes(const struct backend_options *options) {
    ASSERT(options != NULL);
    if (!limits_are_valid(options)) {
        return 0;
    }
    if (is_cpu(options->name)) {
        return cpu_backend_scratch_bytes(options);
    }
    const struct backend_module *module = NULL;
    if (is_failed(find_module(options->name, &module, NULL))) {
        return 0;
    }
    ASSERT(module != NULL);
    return module->scratch_bytes(options);
}

void backend_close(struct backend *backend) {
    if (backend != NULL) {
        backend->close(backend);
    }
}

result backend_staging_take(
    struct backend *backend,
    size_t bytes,
    struct backend_staging *out,
    struct error *refusal,
    struct error *error
) {
    ASSERT(backend != NULL && out != NULL && bytes > 0);
    struct backend_staging staging = {0};
    if (refusal != NULL) {
        *refusal = (struct error){0};
    }
    if (!backend->is_host_memory) {
        result pinned = backend->allocate_host(backend, bytes, &staging.memory, refusal);
        staging.is_pinned = is_ok(pinned);
    }
    if (!staging.is_pinned) {
        staging.memory = calloc(1, bytes);
    }
    if (staging.memory == NULL) {
        FAIL(error, MEMORY, "no memory for %zu bytes that are fetched from the backend", bytes);
    }
    *out = staging;
    return OK;
}

void backend_staging_release(struct backend *backend, struct backend_staging *staging) {
    if (staging->is_pinned) {
        backend->release(backend, staging->memory);
    } else {
        free(staging->memory);
    }
    *staging = (struct backend_staging){0};
}

static bool is_width(int32_t channels) {
    return channels > 0 && channels % 32 == 0;
}

static void check_segments(const struct row_segments *segments) {
    const struct row_segment *host = segments->host;
    int32_t row = 0;
    ASSERT(segments->count >= 0);
    ASSERT(segments->count == 0 || (host != NULL && segments->device != NULL));
    for (int32_t s = 0; s < segments->count; s++) {
        ASSERT(host[s].row >= row);
        ASSERT(host[s].count >= 0);
        ASSERT(host[s].position >= 0);
        ASSERT(host[s].row <= INT32_MAX - host[s].count);
        ASSERT(host[s].position < INT32_MAX - host[s].count);
        row = host[s].row + host[s].count;
    }
    ASSERT(segments->rows == row);
}

static void check_source(const struct kv_source_layout *source) {
    ASSERT(source->ratio == 1 || source->ratio == 2);
    ASSERT(source->entries == KV_BLOCK_TOKENS / source->ratio);
}

static void check_weight(const struct weight *weight, int32_t out, int32_t in) {
    ASSERT(weight->data != NULL);
    ASSERT(weight->out == out && weight->in == in);
    bool scaled = weight->dtype == DTYPE_FP8 || weight->dtype == DTYPE_FP4;
    ASSERT(scaled == (weight->scale != NULL));
}

void backend_embed(struct backend *backend, const struct embed_op *op) {
    ASSERT(op->rows >= 0 && op->vocabulary > 0);
    ASSERT(is_width(op->dim) && op->streams > 0);
    backend->embed(backend, op);
}

void backend_stream_mix(struct backend *backend, const struct stream_mix_op *op) {
    ASSERT(op->rows >= 0 && is_width(op->dim));
    ASSERT(op->streams == 4);
    ASSERT(op->sinkhorn_iterations >= 1);
    backend->stream_mix(backend, op);
}

void backend_stream_collapse(struct backend *backend, const struct stream_collapse_op *op) {
    ASSERT(op->rows >= 0 && is_width(op->dim) && op->streams > 0);
    ASSERT(op->normed != NULL && op->weight != NULL);
    ASSERT(op->collapsed_stride == 0 || op->collapsed_stride >= op->dim);
    backend->stream_collapse(backend, op);
}

void backend_stream_update(struct backend *backend, const struct stream_update_op *op) {
    ASSERT(op->rows >= 0 && is_width(op->dim));
    ASSERT(op->streams == 4);
    backend->stream_update(backend, op);
}

void backend_norm(struct backend *backend, const struct norm_op *op) {
    ASSERT(op->rows >= 0 && is_width(op->dim));
    backend->norm(backend, op);
}

void backend_quantize(struct backend *backend, const struct quantize_op *op) {
    ASSERT(op->rows >= 0 && is_width(op->dim));
    ASSERT(op->y.codes != NULL && op->y.scales != NULL);
    backend->quantize(backend, op);
}

void backend_linear(struct backend *backend, const struct linear_op *op) {
    ASSERT(op->rows >= 0 && op->groups > 0 && op->out > 0);
    ASSERT(is_width(op->in));
    ASSERT(op->output_dtype == DTYPE_BF16 || op->output_dtype == DTYPE_F32);
    check_weight(&op->weight, op->groups * op->out, op->in);
    if (op->input_dtype == DTYPE_FP8) {
        ASSERT(op->weight.dtype == DTYPE_FP8 || op->weight.dtype == DTYPE_FP4);
        ASSERT(op->quantized.codes != NULL && op->quantized.scales != NULL);
    } else {
        ASSERT(op->input_dtype == DTYPE_BF16 && op->weight.dtype != DTYPE_FP4);
        ASSERT(op->input != NULL);
    }
    backend->linear(backend, op);
}

void backend_rope_table(struct backend *backend, const struct rope_table_op *op) {
    ASSERT(op->rows >= 0 && op->pairs > 0);
    backend->rope_table(backend, op);
}

void backend_rotate(struct backend *backend, const struct rotate_op *op) {
    ASSERT(op->rows >= 0 && op->heads > 0);
    ASSERT(op->rope_dim > 0 && op->rope_dim % 2 == 0 && op->rope_dim <= op->dim);
    backend->rotate(backend, op);
}

void backend_window_pack(struct backend *backend, const struct window_pack_op *op) {
    ASSERT(op->rows >= 0 && is_width(op->dim));
    backend->window_pack(backend, op);
}

void backend_window_commit(struct backend *backend, const struct window_commit_op *op) {
    ASSERT(is_width(op->dim) && op->window > 0);
    check_segments(&op->segments);
    backend->window_commit(backend, op);
}

void backend_compress_pool(struct backend *backend, const struct compress_pool_op *op) {
    ASSERT(is_width(op->dim));
    check_segments(&op->segments);
    backend->compress_pool(backend, op);
}

void backend_entry_store(struct backend *backend, const struct entry_store_op *op) {
    ASSERT(is_width(op->dim) && is_width(op->index_dim));
    ASSERT(op->source.main_record_bytes == (size_t)(op->dim / 2 + op->dim / 16));
    check_source(&op->source);
    check_segments(&op->segments);
    backend->entry_store(backend, op);
}

void backend_index_quantize(struct backend *backend, const struct index_quantize_op *op) {
    ASSERT(op->rows >= 0 && op->heads > 0 && is_width(op->dim));
    backend->index_quantize(backend, op);
}

void backend_index_select(struct backend *backend, const struct index_select_op *op) {
    ASSERT(op->heads > 0 && is_width(op->dim) && op->topk > 0);
    ASSERT(op->dim <= 1024);
    check_source(&op->source);
    check_segments(&op->segments);
    if (op->mode != INDEX_FULL) {
        ASSERT(op->pool != NULL && op->pool_count != NULL);
        ASSERT(op->pool_blocks > 0 && op->pool_block_entries > 0);
    }
    backend->index_select(backend, op);
}

void backend_attention(struct backend *backend, const struct attention_op *op) {
    ASSERT(op->heads > 0 && is_width(op->dim) && op->window > 0);
    check_segments(&op->segments);
    check_segments(&op->fresh_segments);
    ASSERT(op->segments.count == op->fresh_segments.count);
    if (op->selected != NULL) {
        ASSERT(op->selected_count != NULL && op->topk > 0);
        ASSERT(op->source.main_record_bytes == (size_t)(op->dim / 2 + op->dim / 16));
        check_source(&op->source);
    }
    for (int32_t s = 0; s < op->segments.count; s++) {
        const struct row_segment *queries = &op->segments.host[s];
        const struct row_segment *fresh = &op->fresh_segments.host[s];
        // every key from the fresh segment's start to the last query is fresh
        ASSERT(
            queries->position + queries->count <= fresh->position + fresh->count ||
            queries->count == 0
        );
    }
    backend->attention(backend, op);
}

void backend_route(struct backend *backend, const struct route_op *op) {
    ASSERT(op->rows >= 0 && op->experts > 0);
    ASSERT(op->chosen > 0 && op->chosen <= op->experts);
    backend->route(backend, op);
}

static void check_expert(const struct expert_weights *expert, int32_t dim, int32_t hidden) {
    check_weight(&expert->w1, hidden, dim);
    check_weight(&expert->w3, hidden, dim);
    check_weight(&expert->w2, dim, hidden);
}

/* Ids and the table of routed experts are device-visible: looked at only where the host may. */
static void check_routed(const struct experts_op *op) {
    for (int32_t i = 0; i < op->rows * op->chosen; i++) {
        ASSERT(op->ids[i] >= 0 && op->ids[i] < op->experts);
        const struct expert_weights *expert = &op->routed[op->ids[i]];
        check_expert(expert, op->dim, op->hidden);
        ASSERT(expert->w1.dtype == op->routed_dtype);
        ASSERT(expert->w2.dtype == op->routed_dtype);
        ASSERT(expert->w3.dtype == op->routed_dtype);
    }
}

void backend_experts(struct backend *backend, const struct experts_op *op) {
    ASSERT(op->rows >= 0 && op->experts > 0);
    ASSERT(op->chosen > 0 && op->chosen <= op->experts);
    ASSERT(is_width(op->dim) && is_width(op->hidden));
    ASSERT(op->routed_dtype == DTYPE_FP4 || op->routed_dtype == DTYPE_FP8);
    check_expert(op->shared, op->dim, op->hidden);
    if (backend->is_host_memory) {
        check_routed(op);
    }
    backend->experts(backend, op);
}

void backend_engram_gather(struct backend *backend, const struct engram_gather_op *op) {
    ASSERT(op->rows >= 0 && op->columns > 0 && is_width(op->dim));
    backend->engram_gather(backend, op);
}

void backend_engram_gate(struct backend *backend, const struct engram_gate_op *op) {
    ASSERT(op->rows >= 0 && op->streams > 0 && is_width(op->dim));
    backend->engram_gate(backend, op);
}

void backend_keep_rows(struct backend *backend, const struct keep_rows_op *op) {
    const struct row_segment *from = op->from.host;
    const struct row_segment *to = op->to.host;
    ASSERT(op->row_bytes > 0);
    check_segments(&op->from);
    check_segments(&op->to);
    ASSERT(op->from.count == op->to.count);
    for (int32_t s = 0; s < op->from.count; s++) {
        ASSERT(to[s].count <= from[s].count);
        ASSERT(to[s].row <= from[s].row + from[s].count - to[s].count);
    }
    backend->keep_rows(backend, op);
}

void backend_spread(
    struct backend *backend,
    backend_piece_function *piece,
    void *context,
    int32_t count,
    int64_t nanoseconds
) {
    ASSERT(piece != NULL && count >= 0 && nanoseconds >= 0);
    if (backend->spread != NULL && count > 1) {
        backend->spread(backend, piece, context, count, nanoseconds);
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        piece(context, i);
    }
}
