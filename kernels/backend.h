/* The op table: everything that computes on arrays, as one struct of function pointers.
 *
 * A backend (the CPU one is the reference) fills the table. Ops only enqueue on the backend's one
 * stream and return nothing; the first fault is kept and comes back from synchronize. The CPU
 * backend runs each op before it returns. Shapes and dtypes are checked once, in backend.c, before
 * the table is called; a wrong one is a programmer's error and asserts.
 *
 * Identity (promise P2): every output element is reduced in one fixed order that depends on nothing
 * but the element: not on how many rows share the call, on chunking, threads or instruction set.
 *
 * Letters of shapes: tensor.h. All tensors are dense and row-major unless a stride is given; "bf16"
 * is uint16_t. Rounding to bf16 is to nearest even. Formulas: spec model.md, the section is named.
 * Thread: the engine thread only.
 */
#ifndef HEARTH_KERNELS_BACKEND_H
#define HEARTH_KERNELS_BACKEND_H

#include "base/result.h"
#include "formats.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The rows of one sequence inside a [R, ...] tensor: rows [row, row + count) hold ascending,
 * consecutive positions from `position` on. count may be 0. */
struct row_segment {
    int32_t row;
    int32_t count;
    int32_t position;
};

/* The segments of a step: `count` of them, twice, since the device may not see the host's memory nor
 * the host the device's. Rows lie in [0, rows): `rows` is one past the last row of the last segment. */
struct row_segments {
    int32_t count;
    int32_t rows;
    const struct row_segment *host;
    const struct row_segment *device; /* device-visible copy; on the CPU it may be `host` itself */
};

static inline struct row_segments
row_segments_of(const struct row_segment *host, const struct row_segment *device, int32_t count) {
    struct row_segments segments = {count, 0, host, device};
    if (count > 0) {
        segments.rows = host[count - 1].row + host[count - 1].count;
    }
    return segments;
}

/* What the caches of one sequence look like to an op; device-visible memory. */
struct sequence_view {
    uint8_t *const *blocks; /* block b holds tokens [128 b, 128 b + 128) of all sources */
    uint8_t *ring;          /* [W] window records of the layer at hand */
    float *pending;         /* [2, d] kv then score of the source at hand; null at ratio 1 */
    int32_t window_floor;   /* windows see no position below this (0, or the replay bound) */
    int32_t write_floor;    /* entries of tokens below this are not written (0, or the hit) */
};

/* X[row, c] <- table[ids[row]] for all C streams; mix[row] <- (1, 0, 0, ...). Spec 3.1. */
struct embed_op {
    int32_t rows, vocabulary, dim, streams;
    const int32_t *ids;    /* [R] */
    const uint16_t *table; /* [V, D] bf16 */
    uint16_t *x;           /* [R, C, D] bf16 */
    float *mix;            /* [R, C] */
};

/* pre, post, comb = Mix(X; fn, scale, base), streams = 4. Spec 3.3; comb is [source j, target k]. */
struct stream_mix_op {
    int32_t rows, dim, streams, sinkhorn_iterations;
    float eps;          /* hc_eps */
    float norm_eps;     /* rms_norm_eps */
    const uint16_t *x;  /* [R, C, D] bf16 */
    const float *fn;    /* [(2 + C) C, C D] */
    const float *scale; /* [3] */
    const float *base;  /* [(2 + C) C] */
    float *pre;         /* [R, C] */
    float *post;        /* [R, C] */
    float *comb;        /* [R, C, C] */
};

/* u = bf16(sum_j mix_j X_j); y = bf16(w * (u * rsqrt(mean(u^2) + eps))). Spec 3.2 step 4, 3.0.3. */
struct stream_collapse_op {
    int32_t rows, dim, streams;
    float norm_eps;
    const uint16_t *x;        /* [R, C, D] bf16 */
    const float *mix;         /* [R, C] */
    const uint16_t *weight;   /* [D] bf16 */
    uint16_t *collapsed;      /* [R, D] bf16: u; may be null */
    int32_t collapsed_stride; /* elements from one row of u to the next; 0: D */
    uint16_t *normed;         /* [R, D] bf16: y */
};

/* X'_k = bf16(post_k y + sum_j comb[j,k] X_j), in place. Spec 3.2 step 6. */
struct stream_update_op {
    int32_t rows, dim, streams;
    uint16_t *x;       /* [R, C, D] bf16 */
    const uint16_t *y; /* [R, D] bf16 */
    const float *post; /* [R, C] */
    const float *comb; /* [R, C, C] */
};

/* y = bf16(w * (x * rsqrt(mean(x^2) + eps))) per row. Spec 3.0.3. In place is allowed. */
struct norm_op {
    int32_t rows, dim;
    float eps;
    const uint16_t *x;      /* [R, dim] bf16 */
    const uint16_t *weight; /* [dim] bf16 */
    uint16_t *y;            /* [R, dim] bf16 */
};

/* FP8 activation quantiser, groups of 32. Spec 3.0.1. */
struct quantize_op {
    int32_t rows, dim;
    const uint16_t *x;  /* [R, dim] bf16 */
    struct quantized y; /* [R, dim] */
};

/* Shapes: `in` is a multiple of 32; E8M0 bytes of FP8 weights are at most 246 (2^119): the loader
 * refuses others. Codes 0x7f and 0xff, E4M3's NaN, read as 480 and -480 in weights and records.
 * y = x w^T, FP32 accumulation, one rounding at the end when y is bf16. Spec 3.0.2.
 * With groups > 1 (spec 3.5 step 6) weight has groups * out rows; group g multiplies input columns
 * [g in, g in + in) with weight rows [g out, g out + out) into output columns [g out, ...).
 *   input FP8   quantised input, weight FP8 (or FP4)
 *   input BF16  weight BF16, FP8 (dequantised exactly to bf16: wo_a) or F32 */
struct linear_op {
    int32_t rows, groups;
    int32_t in, out; /* per group */
    enum dtype input_dtype;
    const uint16_t *input;      /* [R, groups * in] bf16, when BF16 */
    struct quantized quantized; /* [R, groups * in], when FP8 */
    struct weight weight;       /* [groups * out, in] */
    enum dtype output_dtype;    /* BF16 or F32 */
    void *output;               /* [R, groups * out] */
};

/* cos and sin of fp32(position) * frequency, the product rounded to FP32 first. Spec 3.4. */
struct rope_table_op {
    int32_t rows, pairs;
    const int32_t *positions; /* [R] */
    const float *frequencies; /* [r/2] */
    float *cosine;            /* [R, r/2] */
    float *sine;              /* [R, r/2] */
};

/* Rotates the last r channels of each head, adjacent pairs, in place. Spec 3.4. */
struct rotate_op {
    int32_t rows, heads, dim, rope_dim;
    bool inverse;
    const float *cosine; /* [R, r/2] */
    const float *sine;   /* [R, r/2] */
    uint16_t *x;         /* [R, heads, dim] bf16 */
};

/* Window records of rotated latents, FP8 per 32 over all d channels. Spec 3.5 step 2, 4.2. */
struct window_pack_op {
    int32_t rows, dim;
    const uint16_t *x; /* [R, d] bf16 */
    uint8_t *records;  /* [R, window_record_bytes(d)] */
};

/* Copies each sequence's last min(W, count) fresh records into its ring. */
struct window_commit_op {
    int32_t window, dim;
    struct row_segments segments;      /* rows of `records` */
    const struct sequence_view *views; /* [S] */
    const uint8_t *records;
};

/* Ratio-2 pooling (spec 3.6): rows at odd positions p pair with p-1, which is the row before or the
 * sequence's pending pair; latent = bf16(sum_t softmax over the two tokens per channel * kv_t).
 * Rows at even positions get zeros; the last row of a segment, when even, becomes pending. */
struct compress_pool_op {
    int32_t dim;
    struct row_segments segments;
    const struct sequence_view *views; /* [S] */
    const float *kv;                   /* [R, d] */
    const float *score;                /* [R, d] */
    uint16_t *latent;                  /* [R, d] bf16 */
};

/* Writes the entries that complete in these rows (every row at ratio 1, odd positions at ratio 2)
 * into the blocks: main KV as FP4 with E4M3 scales per 16 (4.1), index keys as MXFP4 per 32 (4.3).
 * Both inputs are rotated already. Entry g of a source is in block g*m / 128. */
struct entry_store_op {
    int32_t dim, index_dim;
    struct kv_source_layout source;
    struct row_segments segments;
    const struct sequence_view *views; /* [S] */
    const uint16_t *latent;            /* [R, d] bf16 */
    const uint16_t *key;               /* [R, i] bf16 */
};

/* MXFP4 of rotated index queries. Spec 3.7, 4.3. */
struct index_quantize_op {
    int32_t rows, heads, dim;
    const uint16_t *x; /* [R, I, i] bf16 */
    uint8_t *codes;    /* [R, I, i/2] */
    uint8_t *scales;   /* [R, I, i/32] */
};

enum index_mode {
    INDEX_FULL,         /* score every visible entry */
    INDEX_FULL_PUBLISH, /* the same, and publish the candidate pool */
    INDEX_WITHIN_POOL   /* score only the pool's entries */
};

/* What the op did, added up; for --stats and its test. */
struct index_counters {
    uint64_t entries_scored;     /* over all rows */
    uint64_t entries_scored_max; /* largest of any one row */
    uint64_t topk_runs;          /* rows whose selection needed a top-K */
};

/* score(p, g) = sum over heads in order of relu(q_h . k_g) w_h in FP32 over visible entries
 * g < (p + 1) / m; the K best, ties to the lower g, ascending. Rows with at most K visible entries
 * take all of them without scoring. Spec 3.7; candidate pool 3.8 (block score = max over its
 * entries, newest block pinned, pool_blocks best, ties to the lower block, ascending). */
struct index_select_op {
    int32_t heads, dim, topk;
    enum index_mode mode;
    int32_t pool_blocks, pool_block_entries;
    struct kv_source_layout source;
    struct row_segments segments;
    const struct sequence_view *views; /* [S] */
    const uint8_t *query_codes;        /* [R, I, i/2] */
    const uint8_t *query_scales;       /* [R, I, i/32] */
    const uint16_t *head_weights;      /* [R, I] bf16, as weights_proj gives them */
    float head_scale;                  /* (i I)^(-1/2): w = fp32(bf16(head_weight * head_scale)) */
    int32_t *selected;                 /* [R, K] entry ids ascending, -1 behind the count */
    int32_t *selected_count;           /* [R] */
    int32_t *pool;                     /* [R, pool_blocks] block ids ascending, -1 behind */
    int32_t *pool_count;               /* [R] */
    struct index_counters *counters;   /* device-visible, added to; may be null */
    float *scores;         /* tests: [R, scores_stride], -inf where not visible; else null. When */
    int32_t scores_stride; /* given, every row is scored even if it could skip scoring */
};

/* Window + selected entries + sink. Spec 3.5 steps 4-5 and its rounding details: keys are the
 * visible window positions ascending (from max(p-W+1, floor, 0) to p), then the selected entries
 * ascending, in blocks of 64 counted from the first window key; online softmax over the blocks,
 * probabilities rounded to bf16 against the running maximum before they meet the values, the
 * denominator in FP32. Window position q comes from `fresh` when q >= its segment's position, else
 * from the ring. No inverse rotation here. */
struct attention_op {
    int32_t heads, dim, window, topk;
    float scale;
    struct row_segments segments;       /* query rows */
    struct row_segments fresh_segments; /* rows of `fresh` */
    const struct sequence_view *views;  /* [S] */
    const uint16_t *query;              /* [R, H, d] bf16, rotated */
    const uint8_t *fresh;               /* window records of this step */
    struct kv_source_layout source;     /* unused when selected is null */
    const int32_t *selected;            /* [R, K]; null at ratio 0 */
    const int32_t *selected_count;      /* [R] */
    const float *sink;                  /* [H] */
    uint16_t *output;                   /* [R, H, d] bf16 */
};

/* scores = sqrt(softplus(logits)); the k best of score + bias, ties to the lower id; ids ascending;
 * weight = score / (sum of the chosen scores + 1e-20) * routed_scale. Spec 3.11. */
struct route_op {
    int32_t rows, experts, chosen;
    float routed_scale;
    const float *logits; /* [R, E] */
    const float *bias;   /* [E] */
    int32_t *ids;        /* [R, k] ascending */
    float *weights;      /* [R, k] */
};

struct expert_weights {
    struct weight w1, w2, w3; /* gate, down, up */
};

/* Routed and shared experts. Spec 3.11: g = bf16(w1 x), u = bf16(w3 x), both to FP32; u clamped to
 * [-limit, limit], g to at most limit; y = silu(g) u, times the routing weight for routed experts;
 * bf16, quantised, w2 to bf16. Routed outputs are added in FP32 by ascending expert id, then the
 * shared expert's bf16 output; one rounding. */
struct experts_op {
    int32_t rows, dim, hidden, experts, chosen;
    float limit;                         /* swiglu_limit; 0 means none */
    enum dtype routed_dtype;             /* of all routed experts' matrices: FP4 or FP8 */
    struct quantized x;                  /* [R, D] */
    const int32_t *ids;                  /* [R, k] ascending */
    const float *weights;                /* [R, k] */
    const struct expert_weights *routed; /* [E]; device-visible */
    const struct expert_weights *shared; /* one; host memory, its matrices device-visible */
    uint16_t *output;                    /* [R, D] bf16 */
};

/* rows of the Engram table -> bf16(e4m3 * 2^(s - 127)). Spec 3.10 lookup 1. */
struct engram_gather_op {
    int32_t rows, columns, dim; /* columns = heads * orders */
    const int64_t *ids;         /* [R, columns] */
    const uint8_t *table;       /* [table rows, dim] e4m3 */
    const uint8_t *scales;      /* [table rows, dim / 32] E8M0 */
    uint16_t *output;           /* [R, columns * dim] bf16 */
};

/* Gates and adds the Engram value to each stream, in place. Spec 3.10 lookup 3-5. */
struct engram_gate_op {
    int32_t rows, dim, streams;
    float norm_eps;
    const uint16_t *kv;           /* [R, (C + 1) D] bf16: C keys, then the value */
    const uint16_t *query_weight; /* [C, D] bf16 */
    const uint16_t *key_weight;   /* [C, D] bf16 */
    uint16_t *x;                  /* [R, C, D] bf16 */
    float *gate;                  /* [R, C]; may be null */
};

/* Moves rows so that each sequence keeps only a suffix: to[s] rows come from the end of from[s].
 * In place; segments are ascending in both. */
struct keep_rows_op {
    struct row_segments from;
    struct row_segments to; /* as many */
    size_t row_bytes;
    void *rows;
};

/* One of the independent pieces of some work of the caller's, on any thread. */
typedef void backend_piece_function(void *context, int32_t piece);

/* Every op of the table: X(name) for struct name_op and the member of the same name. */
#define BACKEND_OPS(X)                                                                             \
    X(embed)                                                                                       \
    X(stream_mix)                                                                                  \
    X(stream_collapse)                                                                             \
    X(stream_update)                                                                               \
    X(norm)                                                                                        \
    X(quantize)                                                                                    \
    X(linear)                                                                                      \
    X(rope_table)                                                                                  \
    X(rotate)                                                                                      \
    X(window_pack)                                                                                 \
    X(window_commit)                                                                               \
    X(compress_pool)                                                                               \
    X(entry_store)                                                                                 \
    X(index_quantize)                                                                              \
    X(index_select)                                                                                \
    X(attention)                                                                                   \
    X(route)                                                                                       \
    X(experts)                                                                                     \
    X(engram_gather)                                                                               \
    X(engram_gate)                                                                                 \
    X(keep_rows)

#define BACKEND_STAMPS_MAX 8192

/* Rates a second; 0: could not be measured. */
struct backend_ceilings {
    double read_bytes, copy_bytes;          /* of device memory; a copy counts both ways */
    double bf16_operations, fp8_operations; /* a product and its sum are two */
    double launch_seconds; /* of the least op of a recorded step: it reads a few bytes that the op
                              before wrote, and writes some; 0: an op starts at no cost */
    double stamp_seconds;  /* what two stamps show beyond that when such an op lies between them */
};

struct backend {
    const char *name;        /* "cpu", "cuda" */
    const char *description; /* "cpu avx512, 2 threads"; "cuda NVIDIA H200, sm_90" */
    uint32_t numerics;       /* raised whenever any op's bits change; part of the root lineage */
    bool is_host_memory;     /* what allocate gives may be read and written by the host directly */
    void *state;             /* the backend's own */
    void (*close)(struct backend *backend);

    /* Memory that ops work on ("device-visible"): 64-byte aligned, zeroed. allocate_host gives host
     * memory that ops can read too, slowly: tables too large for the device. Expected error: MEMORY,
     * with the bytes asked for and the bytes free. */
    result (*allocate)(struct backend *backend, size_t bytes, void **out, struct error *error);
    result (*allocate_host)(struct backend *backend, size_t bytes, void **out, struct error *error);
    void (*release)(struct backend *backend, void *memory);
    /* Between host memory of any kind and device-visible memory, in the order of the ops. `from` of
     * an upload may be reused at once; what a download wrote is there when it returns. upload and
     * copy: also another thread that holds the engine's lock, while ops run on other memory (forks) */
    void (*upload)(struct backend *backend, void *to, const void *from, size_t bytes);
    void (*download)(struct backend *backend, void *to, const void *from, size_t bytes);
    void (*copy)(struct backend *backend, void *to, const void *from, size_t bytes);

    /* order. Expected error: DEVICE, with the op's name; it is kept: a faulty device stays so */
    result (*synchronize)(struct backend *backend, struct error *error);

    /* Steps of one shape, recorded once and replayed (CUDA graphs). Null: never.
     * step_begin true: the step recorded under `key` runs, the caller skips its ops and step_end.
     * false: the caller enqueues its ops, then step_end; they may be recorded under the key. Whenever
     * a key is the same, so are all ops between and all their arguments; none of them is an upload,
     * download or allocation. step_end true: the ops run. false: recording failed and none of them
     * does: the caller enqueues them once more, without step_begin and step_end. step_forget drops
     * all records: memory that they name goes away. */
    bool (*step_begin)(struct backend *backend, uint64_t key);
    bool (*step_end)(struct backend *backend);
    void (*step_forget)(struct backend *backend);

    /* For benches; each may be null. stamp marks a moment in the order of the ops, also inside a
     * recorded step; stamp_seconds is the time between two of them, after synchronize. */
    void (*stamp)(struct backend *backend, int32_t number);
    double (*stamp_seconds)(struct backend *backend, int32_t from, int32_t to);
    /* Measures what the machine can do, some seconds long. Expected errors: DEVICE, MEMORY. */
    result (*ceilings)(struct backend *backend, struct backend_ceilings *out, struct error *error);

    /* Runs pieces 0..count-1 of host work, each once, on the caller and whatever host threads the
     * backend has; returns when all are done, whose writes the caller then sees. `nanoseconds`
     * estimates all of it on one thread: little work stays on the caller. Null: all of it does. */
    void (*spread
    )(struct backend *backend,
      backend_piece_function *piece,
      void *context,
      int32_t count,
      int64_t nanoseconds);

    /* required ops */
    void (*embed)(struct backend *backend, const struct embed_op *op);
    void (*stream_mix)(struct backend *backend, const struct stream_mix_op *op);
    void (*stream_collapse)(struct backend *backend, const struct stream_collapse_op *op);
    void (*stream_update)(struct backend *backend, const struct stream_update_op *op);
    void (*norm)(struct backend *backend, const struct norm_op *op);
    void (*quantize)(struct backend *backend, const struct quantize_op *op);
    void (*linear)(struct backend *backend, const struct linear_op *op);
    void (*rope_table)(struct backend *backend, const struct rope_table_op *op);
    void (*rotate)(struct backend *backend, const struct rotate_op *op);
    void (*window_pack)(struct backend *backend, const struct window_pack_op *op);
    void (*window_commit)(struct backend *backend, const struct window_commit_op *op);
    void (*compress_pool)(struct backend *backend, const struct compress_pool_op *op);
    void (*entry_store)(struct backend *backend, const struct entry_store_op *op);
    void (*index_quantize)(struct backend *backend, const struct index_quantize_op *op);
    void (*index_select)(struct backend *backend, const struct index_select_op *op);
    void (*attention)(struct backend *backend, const struct attention_op *op);
    void (*route)(struct backend *backend, const struct route_op *op);
    void (*experts)(struct backend *backend, const struct experts_op *op);
    void (*engram_gather)(struct backend *backend, const struct engram_gather_op *op);
    void (*engram_gate)(struct backend *backend, const struct engram_gate_op *op);
    void (*keep_rows)(struct backend *backend, const struct keep_rows_op *op);
};

struct backend_options {
    const char *name; /* "cpu", "cuda" */
    int32_t device;   /* of the CUDA backend: ordinal */
    int32_t threads;  /* of the CPU backend and of spread; 0: one per core this process may use */
    const char
        *isa; /* null: best; "plain", "avx2", "avx512"; env HEARTH_CPU_ISA is not read here */
    /* Largest shapes any op will see; scratch is sized from them once, so that no op allocates.
     * Those of parts that a caller does not use (experts, attention, indexer) may be 0. */
    int32_t rows_max;
    int32_t dim_max;        /* widest row of any linear input (groups * in) and of C * D */
    int32_t context_max;    /* tokens */
    int32_t model_dim;      /* D */
    int32_t experts;        /* E */
    int32_t experts_chosen; /* k */
    int32_t expert_hidden;
    int32_t heads;       /* H */
    int32_t head_dim;    /* d */
    int32_t index_heads; /* I */
    int32_t index_dim;   /* i */
    int32_t index_topk;  /* K */
};

/* What a backend has, without opening it. */
struct backend_facts {
    char description[64]; /* "NVIDIA H200, sm_90, driver 13.0" */
    bool is_host_memory;
    uint64_t memory_total; /* bytes of the device; 0 when memory is the host's */
    uint64_t memory_free;
};

/* Expected errors, with the reason in one line: NOT_FOUND (nothing to use here: not built, its library
 * not beside the program, no driver, no device), UNSUPPORTED (what is here cannot be used: a driver too
 * old, an architecture it has no code for, a device that fails; an unknown name). */
MUST_CHECK result
backend_probe(const char *name, int32_t device, struct backend_facts *out, struct error *error);

/* Opens a backend by name, its thread team started. Expected errors: those of backend_probe,
 * UNSUPPORTED for an instruction set this CPU lacks or a shape it cannot run, MEMORY, INVALID_INPUT. The checked ops below call its table. */
MUST_CHECK result
backend_open(const struct backend_options *options, struct backend **out, struct error *error);
void backend_close(struct backend *backend);

/* Host memory that much is fetched into: pinned where the backend's device copies that way fastest and the
 * machine grants it, else ordinary memory; zeroed. Taken once, when what fetches is created. */
struct backend_staging {
    void *memory;
    bool is_pinned; /* the backend's, not malloc's */
};
/* Expected error: MEMORY, when there is neither. `refusal` (may be null) says why it is not pinned where it
 * should be; its code is OK otherwise. */
MUST_CHECK result backend_staging_take(
    struct backend *backend,
    size_t bytes,
    struct backend_staging *out,
    struct error *refusal,
    struct error *error
);
/* Before the backend is closed; null memory is fine. */
void backend_staging_release(struct backend *backend, struct backend_staging *staging);

/* Bytes of scratch that opening it will take, for memory plans; 0 where it could not be opened. */
uint64_t backend_scratch_bytes(const struct backend_options *options);

/* Checks shapes and dtypes, then calls the table. Engines call these, not the table. */
void backend_embed(struct backend *backend, const struct embed_op *op);
void backend_stream_mix(struct backend *backend, const struct stream_mix_op *op);
void backend_stream_collapse(struct backend *backend, const struct stream_collapse_op *op);
void backend_stream_update(struct backend *backend, const struct stream_update_op *op);
void backend_norm(struct backend *backend, const struct norm_op *op);
void backend_quantize(struct backend *backend, const struct quantize_op *op);
void backend_linear(struct backend *backend, const struct linear_op *op);
void backend_rope_table(struct backend *backend, const struct rope_table_op *op);
void backend_rotate(struct backend *backend, const struct rotate_op *op);
void backend_window_pack(struct backend *backend, const struct window_pack_op *op);
void backend_window_commit(struct backend *backend, const struct window_commit_op *op);
void backend_compress_pool(struct backend *backend, const struct compress_pool_op *op);
void backend_entry_store(struct backend *backend, const struct entry_store_op *op);
void backend_index_quantize(struct backend *backend, const struct index_quantize_op *op);
void backend_index_select(struct backend *backend, const struct index_select_op *op);
void backend_attention(struct backend *backend, const struct attention_op *op);
void backend_route(struct backend *backend, const struct route_op *op);
void backend_experts(struct backend *backend, const struct experts_op *op);
void backend_engram_gather(struct backend *backend, const struct engram_gather_op *op);
void backend_engram_gate(struct backend *backend, const struct engram_gate_op *op);
void backend_keep_rows(struct backend *backend, const struct keep_rows_op *op);

/* backend.spread; 0 or 1 pieces never leave the caller. */
void backend_spread(
    struct backend *backend,
    backend_piece_function *piece,
    void *context,
    int32_t count,
    int64_t nanoseconds
);

#ifdef __cplusplus
}
#endif

#endif
