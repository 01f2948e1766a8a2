/* Parity of a device backend with the CPU's and identity with itself, op by op.
 *
 * A case is one op at one shape. Its buffers exist twice, on the CPU backend and on the device; an op
 * is written once with the CPU's pointers, which the caller fills directly, and CHECK_RUN runs it on
 * both, translating every pointer it finds in the op (and in tables of pointers) to its twin. Outputs
 * begin as 0xA5 on both sides, or as what the caller puts there when the op works in place.
 *
 *     if (!check_case(check, "norm", "[%d, %d]", rows, dim)) {
 *         return; // left out by --only or --shape
 *     }
 *     struct norm_op op = {.rows = rows, .dim = dim, .eps = 1e-20F};
 *     op.x = check_normals_bf16(check, rows, dim, 1.0F);
 *     op.weight = check_normals_bf16(check, CHECK_SHARED, dim, 1.0F);
 *     op.y = check_output(check, rows, (size_t)dim * 2);
 *     CHECK_RUN(check, norm, op);
 *     check_bf16(check, "y", op.y, dim, (struct check_limit){.ulps = 1});
 *     CHECK_ROWS(check, norm, op); // identity: alone, in chunks, at other places
 *
 * CHECK_CALL(norm) before it makes the op callable. Everything of a case goes with the next one.
 * A file check_NAME.c defines check_NAME and bench_NAME and is named in CHECK_FILES.
 * Plain C; it needs kernels/, base/ less its JSON file, and no test library.
 */
#ifndef HEARTH_KERNELS_CUDA_CHECK_CHECK_H
#define HEARTH_KERNELS_CUDA_CHECK_CHECK_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One a line. */
// clang-format off
#define CHECK_FILES(X) \
    X(machine) \
    X(golden) \
    X(attention) \
    X(experts) \
    X(cublas) \
    X(index) \
    X(linear) \
    X(quantize) \
    X(stream) \
    X(window)
// clang-format on

/* Largest shapes of any case; the backends' scratch is sized from them. */
struct check_limits {
    int32_t rows, context;
};

struct check_buffer;

struct check {
    struct backend *cpu, *device;
    uint64_t seed;
    bool emulated; /* shapes are cut: the emulation and the sanitizers run each thread by itself */
    const char *only;
    const char *part;    /* of the text of a shape; null: all */
    const char *vectors; /* the folder golden/vectors/common */
    struct check_limits limits;
    int32_t checks, failed;

    /* the case at hand */
    char op[32], shape[64];
    uint64_t random;
    struct check_buffer *buffers; /* newest first */
    void **host_parts;            /* host memory that goes with the case */
    int32_t host_part_count;
};

/* The device backend under test: beside the program, or linked in when it is the emulated one. */
struct check_device {
    result (*open)(const struct backend_options *, struct backend **, struct error *);
    void (*close)(struct backend *);
};
extern const struct check_device check_device;

/* Dimensions of tiny-a, tiny-b, the bundled model and the release, the last one narrower where only
 * size would be gained when check->emulated: fewer channels, experts, ids. */
struct check_model {
    const char *name;
    int32_t dim, vocabulary, heads, head_dim, rope_dim, q_rank, o_groups, o_rank;
    int32_t hidden, experts, chosen, window;
    int32_t index_heads, index_dim, topk, pool_blocks, pool_block_entries;
    int32_t engram_columns, engram_dim;
};
#define CHECK_MODELS  4
#define CHECK_RELEASE 3
struct check_model check_model(const struct check *check, int32_t index);
/* Rows to try with a model: entry i of the list, 0 behind its end. */
int32_t check_row_counts(const struct check *check, int32_t model, int32_t i);

/* ---- cases ---- */

/* Ends the case before and begins one; its random numbers depend on the seed and its name alone.
 * False: not asked for. */
bool check_case(struct check *check, const char *op, const char *shape, ...) PRINTF_LIKE(3, 4);
void check_case_end(struct check *check);
/* One line of the table. */
void check_report(struct check *check, bool passed, const char *format, ...) PRINTF_LIKE(3, 4);
/* Prints the message and ends the program: what is wrong is not an op (memory, files, a fault). */
__attribute__((noreturn)) void check_stop(const char *format, ...) PRINTF_LIKE(1, 2);

/* ---- buffers: the CPU's pointer is returned ---- */

#define CHECK_SHARED 0 /* for `rows`: the same for all rows, like a weight */

/* [rows, row_bytes], zeroed. The caller fills it before the op runs. */
void *check_input(struct check *check, int32_t rows, size_t row_bytes);
/* [rows, row_bytes], poisoned; compared and restored. Fill it when the op works in place. */
void *check_output(struct check *check, int32_t rows, size_t row_bytes);
/* An input whose 8-byte words may be pointers into other buffers: views, arrays of weights. */
void *check_pointers(struct check *check, int32_t rows, size_t row_bytes);
/* Host memory, the same for both backends: what an op reads on the host. */
void *check_host(struct check *check, size_t bytes);

/* ---- random numbers and contents ---- */

uint64_t check_bits64(struct check *check);
int32_t check_below(struct check *check, int32_t bound); /* 0 <= x < bound */
float check_normal(struct check *check);
/* Inputs [rows, columns] of normals times `scale`. */
uint16_t *check_normals_bf16(struct check *check, int32_t rows, int32_t columns, float scale);
float *check_normals_f32(struct check *check, int32_t rows, int32_t columns, float scale);
void check_fill_bf16(struct check *check, uint16_t *to, size_t count, float scale);
void check_fill_bytes(struct check *check, void *to, size_t bytes);
/* Finite bf16 values; even rows spread over all exponents, odd ones around a random one. */
uint16_t *check_wide_bf16(struct check *check, int32_t rows, int32_t columns);
/* Normals quantised as the CPU does it; some groups are zero, some 2^10 times larger or smaller. */
struct quantized check_quantized(struct check *check, int32_t rows, int32_t columns);

enum check_weights {
    CHECK_PLAUSIBLE, /* normals of deviation 1 / sqrt(in) */
    CHECK_EXTREME    /* every code, 0x7f too; scales over 2^-80 to 2^80, alike within 32 rows */
};
struct weight check_weight(
    struct check *check, enum dtype dtype, int32_t out, int32_t in, enum check_weights kind
);

/* ---- segments, blocks, rings ---- */

/* Copies them for host and device; `rows` is one past the last row. */
struct row_segments
check_segments(struct check *check, const struct row_segment *segments, int32_t count);

/* Caches of sequences: blocks in scattered places, full of random valid records; a ring; a pending
 * pair. They are outputs, so that writes are compared, unless `read_only`. */
struct check_caches_options {
    int32_t sequences, ratio, dim, index_dim, window;
    const int32_t *tokens;                     /* [S] blocks are there for this many */
    const int32_t *window_floor, *write_floor; /* [S]; null: 0 */
    bool read_only;
};
struct check_caches {
    struct kv_source_layout source;
    size_t block_bytes;
    struct sequence_view *views; /* [S]; the CPU's, blocks too */
    uint8_t *blocks;             /* all of them */
    uint8_t *rings;              /* [S, W records] */
    float *pending;              /* [S, 2, d]; null at ratio 1 */
};
struct check_caches check_caches(struct check *check, const struct check_caches_options *options);
/* Window records of `rows` random latents: an input. */
uint8_t *check_window_records(struct check *check, int32_t rows, int32_t dim);

/* ---- running ---- */

typedef void check_call(struct backend *backend, const void *op);
#define CHECK_CALL(name)                                                                           \
    static void call_##name(struct backend *backend, const void *op) {                             \
        backend_##name(backend, (const struct name##_op *)op);                                     \
    }
#define CHECK_RUN(check, name, op)     check_run(check, call_##name, &(op), sizeof(op))
#define CHECK_ENQUEUE(check, name, op) check_enqueue(check, call_##name, &(op), sizeof(op))
#define CHECK_ROWS(check, name, op)                                                                \
    check_rows(check, call_##name, &(op), sizeof(op), offsetof(struct name##_op, rows))

/* Runs the op on both backends; what the device gave is kept for the comparisons. */
void check_run(struct check *check, check_call *call, const void *op, size_t op_bytes);
/* The same when inputs made before have not changed since: they are not brought to the device again. */
void check_run_again(struct check *check, check_call *call, const void *op, size_t op_bytes);
/* Gives outputs of the device their first contents again. */
void check_restore(struct check *check);
/* Runs the op on the device alone; buffers made since the last run are brought there. */
void check_enqueue(struct check *check, check_call *call, const void *op, size_t op_bytes);
/* The device's outputs, or some bytes of one, equal those that check_run kept, to the bit. */
void check_identical(struct check *check, const char *how);
void check_identical_part(struct check *check, const char *how, const void *from, size_t bytes);
/* Identity of an op over independent rows, whose `rows` is at `rows_at`: each of some rows alone, all
 * in uneven chunks, all moved to other places of the batch. Buffers with rows move along. */
void check_rows(
    struct check *check, check_call *call, const void *op, size_t op_bytes, size_t rows_at
);
/* What the device gave for `pointer`, which lies in an output, in the last check_run. */
const void *check_got(struct check *check, const void *pointer);
/* Of the output that begins at `pointer`. */
size_t check_output_bytes(const struct check *check, const void *pointer);

/* ---- comparing what check_run kept; pointers are the CPU's, into outputs ---- */

/* An element passes within `ulps` (of its own format) or within `relative` times the root mean
 * square of its row on the CPU. NaN passes only beside NaN, infinity beside the same one. */
struct check_limit {
    int32_t ulps;
    float relative;
};
void check_bits(struct check *check, const char *what, const void *pointer, size_t bytes);
/* All rows of the buffer, `columns` wide. */
void check_bf16(
    struct check *check,
    const char *what,
    const uint16_t *pointer,
    int32_t columns,
    struct check_limit limit
);
void check_f32(
    struct check *check,
    const char *what,
    const float *pointer,
    int32_t columns,
    struct check_limit limit
);

/* ---- time ---- */

/* Times the op of the case on the device: `count` variants in turn (give enough of them, with their own weights,
 * that the caches do not hold what a model's step would read from memory), from a recorded step where
 * the backend records. Prints microseconds, the floor from bytes moved, bf16 tensor operations and one
 * launch at the machine's ceilings, and the ratio. */
struct check_bench {
    check_call *call;
    const void *ops; /* [count] */
    size_t op_bytes;
    int32_t count;
    double bytes, operations; /* of one op; a multiply-add is two operations */
};
void check_bench(struct check *check, const struct check_bench *bench);
void check_bench_start(struct check *check); /* measures the ceilings */
#define CHECK_BENCH(check, name, op, moved, computed)                                              \
    do {                                                                                           \
        struct check_bench bench_ = {call_##name, &(op), sizeof(op), 1, (moved), (computed)};      \
        check_bench(check, &bench_);                                                               \
    } while (0)

#define CHECK_DECLARE_(name)                                                                       \
    void check_##name(struct check *check);                                                        \
    void bench_##name(struct check *check);
CHECK_FILES(CHECK_DECLARE_)

#ifdef __cplusplus
}
#endif

#endif
