/* Linear layers: every weight and input format, every way the kernels have for a row count. */
#include "check.h"

#include <math.h>

CHECK_CALL(linear)

struct linear_shape {
    enum dtype input, weight, output;
    int32_t in, out, groups;
};

static const char *dtype_name(enum dtype dtype) {
    static const char *const names[] = {"f32", "bf16", "fp8", "fp4"};
    return names[dtype];
}

static bool
linear_case(struct check *check, const char *what, const struct linear_shape *s, int32_t rows) {
    return check_case(
        check,
        "linear",
        "%s %s x %s -> %s [%d x (%d -> %d), %d]",
        what,
        dtype_name(s->input),
        dtype_name(s->weight),
        dtype_name(s->output),
        s->groups,
        s->in,
        s->out,
        rows
    );
}

/* The op less its input. */
static struct linear_op
make_linear(struct check *check, const struct linear_shape *s, int32_t rows, struct weight weight) {
    struct linear_op op = {.rows = rows, .groups = s->groups, .in = s->in, .out = s->out};
    op.input_dtype = s->input;
    op.weight = weight;
    op.output_dtype = s->output;
    size_t width = s->output == DTYPE_F32 ? 4 : 2;
    op.output = check_output(check, rows, (size_t)s->groups * (size_t)s->out * width);
    return op;
}

/* Products are exact in FP32; what differs is the order of their sum, on the device also that a
 * tensor core cuts off what is below the last bit of the running sum instead of rounding. A sum of n
 * products of random sign in steps of 16 is so off by at most n/16 2^-23 of its size, 4e-5 at n = 5120,
 * and less where it is cut in slices. A bf16 output moves to its neighbour at most, unless it is so
 * small beside its row that this error is more. */
static void compare(
    struct check *check, const struct linear_op *op, const struct linear_shape *s, float relative
) {
    CHECK_RUN(check, linear, *op);
    int32_t columns = s->groups * s->out;
    struct check_limit limit = {.ulps = s->output == DTYPE_F32 ? 0 : 1, .relative = relative};
    if (s->output == DTYPE_F32) {
        check_f32(check, "y", op->output, columns, limit);
    } else {
        check_bf16(check, "y", op->output, columns, limit);
    }
    CHECK_ROWS(check, linear, *op);
}

static void linear_random(
    struct check *check, const struct linear_shape *s, int32_t rows, enum check_weights kind
) {
    if (!linear_case(check, kind == CHECK_EXTREME ? "extreme" : "random", s, rows)) {
        return;
    }
    struct weight weight = check_weight(check, s->weight, s->groups * s->out, s->in, kind);
    struct linear_op op = make_linear(check, s, rows, weight);
    if (s->input == DTYPE_FP8) {
        op.quantized = check_quantized(check, rows, s->groups * s->in);
    } else {
        op.input = check_normals_bf16(check, rows, s->groups * s->in, 1.0F);
    }
    compare(check, &op, s, 1e-4F);
}

/* Weights whose rows go through all codes, their scales through all bytes that a bf16 holds with
 * every code: so all outputs for inputs of one 1 and else 0 are the weights, to the bit. */
static struct weight every_code(struct check *check, const struct linear_shape *s) {
    int32_t out = s->groups * s->out;
    size_t bytes = (size_t)out * (size_t)s->in / (s->weight == DTYPE_FP4 ? 2 : 1);
    size_t scale_rows = s->weight == DTYPE_FP4 ? (size_t)out : ((size_t)out + 31) / 32;
    size_t scales = scale_rows * (size_t)s->in / 32;
    uint8_t *data = check_input(check, CHECK_SHARED, bytes);
    uint8_t *scale = check_input(check, CHECK_SHARED, scales);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(i + i / 256 * 97);
    }
    for (size_t i = 0; i < scales; i++) {
        scale[i] = (uint8_t)(16 + i * 7 % 231);
    }
    struct weight weight = {.dtype = s->weight, .out = out, .in = s->in};
    weight.data = data;
    weight.scale = scale;
    return weight;
}

static void linear_exact(struct check *check, const struct linear_shape *s) {
    int32_t rows = s->in; // row r has its 1 in column r of each group
    if (!linear_case(check, "every code", s, rows)) {
        return;
    }
    struct linear_op op = make_linear(check, s, rows, every_code(check, s));
    size_t columns = (size_t)s->groups * (size_t)s->in;
    uint16_t *wide = check_input(check, rows, columns * sizeof *wide);
    op.quantized.codes = check_input(check, rows, columns);
    op.quantized.scales = check_input(check, rows, columns / 32);
    memset(op.quantized.scales, 127, (size_t)rows * columns / 32);
    for (size_t r = 0; r < (size_t)rows; r++) {
        for (size_t at = r * columns + r; at < (r + 1) * columns; at += (size_t)s->in) {
            wide[at] = 0x3f80;
            op.quantized.codes[at] = 0x38;
        }
    }
    op.input = wide;
    CHECK_RUN(check, linear, op);
    check_bits(check, "y", op.output, check_output_bytes(check, op.output));
    CHECK_ROWS(check, linear, op);
}

/* Widths that end inside chunks, tiles and scale blocks. The first three, of one slice, four and two,
 * see all row counts: which way is taken depends on them and the number of slices, not on formats. */
#define SHAPES_WITH_ALL_ROWS 3
static const struct linear_shape shapes[] = {
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 160, 136, 1},
    {DTYPE_FP8, DTYPE_FP8, DTYPE_F32, 1120, 200, 1},
    {DTYPE_BF16, DTYPE_FP8, DTYPE_BF16, 544, 40, 3},
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 32, 1, 1},
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 608, 9, 1},
    {DTYPE_FP8, DTYPE_FP4, DTYPE_BF16, 96, 6, 1},
    {DTYPE_FP8, DTYPE_FP4, DTYPE_F32, 608, 144, 1},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 160, 384, 1},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 544, 6, 2},
    {DTYPE_BF16, DTYPE_FP8, DTYPE_BF16, 96, 48, 2},
    {DTYPE_BF16, DTYPE_F32, DTYPE_F32, 160, 24, 1},
    {DTYPE_BF16, DTYPE_F32, DTYPE_BF16, 96, 5, 2},
};
static const int32_t row_counts[] = {1, 2, 7, 9, 8, 16, 64, 17, 33, 65, 128, 300};

/* The release's products, and how many rows show each way of computing them. */
static const struct linear_shape release[] = {
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 5120, 1280, 1},    // wq_a
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 5120, 512, 1},     // wkv
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 1280, 32768, 1},   // wq_b
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 1280, 4096, 1},    // the index's
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 8192, 5120, 1},    // wo_b
    {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 6144, 25600, 1},   // engram
    {DTYPE_BF16, DTYPE_FP8, DTYPE_BF16, 4096, 1024, 8},   // wo_a
    {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 5120, 384, 1},    // router
    {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 5120, 512, 1},    // compressor
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 512, 128, 1},    // index keys
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 5120, 32, 1},    // index weights
    {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, 5120, 129280, 1}, // head
};

void check_linear(struct check *check) {
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        size_t step = i < SHAPES_WITH_ALL_ROWS || !check->emulated ? 1 : 3;
        for (size_t j = 0; j < COUNT_OF(row_counts); j += step) {
            linear_random(check, &shapes[i], row_counts[j], CHECK_PLAUSIBLE);
        }
        if (shapes[i].weight == DTYPE_FP8 || shapes[i].weight == DTYPE_FP4) {
            linear_random(check, &shapes[i], 19, CHECK_EXTREME);
            if (shapes[i].in <= 160) { // as many rows
                struct linear_shape exact = shapes[i];
                exact.output = DTYPE_F32;
                linear_exact(check, &exact);
            }
        }
    }
    if (check->emulated) {
        return;
    }
    // Enough tiles, of several slices, so that a block walks them on the largest device too.
    struct linear_shape walked = {DTYPE_FP8, DTYPE_FP8, DTYPE_BF16, 1280, 5120, 1};
    linear_random(check, &walked, 1000, CHECK_PLAUSIBLE);
    for (size_t i = 0; i < COUNT_OF(release); i++) {
        bool is_large = (int64_t)release[i].in * release[i].out > 20000000;
        for (int32_t rows = 3; rows <= 300; rows *= 10) {
            linear_random(check, &release[i], is_large && rows > 30 ? 70 : rows, CHECK_PLAUSIBLE);
        }
    }
}

/* ---- time ---- */

/* Random codes and scales near one; for bf16 as well: bits do not matter to the time. */
static struct weight bench_weight(struct check *check, const struct linear_shape *s) {
    int32_t out = s->groups * s->out;
    size_t bytes = (size_t)out * (size_t)s->in * (s->weight == DTYPE_BF16 ? 2 : 1);
    size_t scales = (size_t)(out + 31) / 32 * (size_t)s->in / 32;
    struct weight weight = {.dtype = s->weight, .out = out, .in = s->in};
    uint8_t *data = check_input(check, CHECK_SHARED, bytes);
    check_fill_bytes(check, data, bytes);
    for (size_t i = 1; s->weight == DTYPE_BF16 && i < bytes; i += 2) {
        data[i] &= 0xbf; // below 2: no infinity, no NaN
    }
    weight.data = data;
    if (s->weight == DTYPE_FP8) {
        uint8_t *scale = check_input(check, CHECK_SHARED, scales);
        memset(scale, 120, scales);
        weight.scale = scale;
    }
    return weight;
}

#define BENCH_BYTES  ((size_t)256 << 20) /* of weights in turn: several times the L2 cache */
#define BENCH_COPIES 32

static void bench_shape(struct check *check, const struct linear_shape *s, int32_t rows) {
    if (!linear_case(check, "bench", s, rows)) {
        return;
    }
    struct linear_op ops[BENCH_COPIES];
    size_t values = (size_t)s->groups * (size_t)s->out * (size_t)s->in;
    size_t weight_bytes = values * (s->weight == DTYPE_BF16 ? 2 : 1);
    size_t copies = BENCH_BYTES / weight_bytes + 1;
    copies = rows > 256 ? 1 : (copies < BENCH_COPIES ? copies : BENCH_COPIES);
    ops[0] = make_linear(check, s, rows, bench_weight(check, s));
    size_t columns = (size_t)s->groups * (size_t)s->in;
    if (s->input == DTYPE_FP8) {
        ops[0].quantized = check_quantized(check, rows, (int32_t)columns);
    } else {
        ops[0].input = check_normals_bf16(check, rows, (int32_t)columns, 1.0F);
    }
    for (size_t i = 1; i < copies; i++) {
        ops[i] = ops[0];
        ops[i].weight = bench_weight(check, s);
    }
    size_t outputs = (size_t)s->groups * (size_t)s->out;
    size_t row_bytes =
        columns * (s->input == DTYPE_BF16 ? 2 : 1) + outputs * (s->output == DTYPE_F32 ? 4 : 2);
    struct check_bench bench = {.call = call_linear, .ops = ops, .op_bytes = sizeof ops[0]};
    bench.count = (int32_t)copies;
    bench.bytes = (double)weight_bytes + (double)row_bytes * rows;
    bench.operations = 2.0 * (double)values * rows;
    check_bench(check, &bench);
}

void bench_linear(struct check *check) {
    static const int32_t rows[] = {1, 4, 16, 32, 64, 256, 4096};
    for (size_t i = 0; i < COUNT_OF(release); i++) {
        // Prompts ask for the head of few rows only.
        size_t counts = COUNT_OF(rows) - (release[i].out == 129280 ? 2 : 0);
        for (size_t j = 0; j < counts; j++) {
            bench_shape(check, &release[i], rows[j]);
        }
    }
}
