/* cublasLt beside our linear layers: do its bits depend on how many rows share a product, and are they
 * ours? Only if neither, one of its algorithms may serve prompts. And how long it takes: a yardstick
 * that is free to choose any order of sums.
 */
#include "check.h"

#ifdef CUDA_EMULATION

void check_cublas(struct check *check) {
    (void)check; // there is no emulated cublasLt
}

void bench_cublas(struct check *check) {
    (void)check;
}

#else

#include "kernels/cuda/cuda_cublas.cu" // the module keeps its own copy to itself

#include <math.h>
#include <stdio.h>

#include <vector>

CHECK_CALL(linear)

#define ROWS 1000 /* chosen for; fewer run by the same algorithm */

struct cublas_shape {
    enum dtype inputs, output;
    int32_t in, out;
};

static void must(cudaError_t status) {
    if (status != cudaSuccess) {
        check_stop("cublas: %s", cudaGetErrorString(status));
    }
}

static void *to_device(const void *from, size_t bytes) {
    void *memory = nullptr;
    must(cudaMalloc(&memory, bytes));
    must(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice));
    return memory;
}

static size_t width_of(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 4 : (dtype == DTYPE_BF16 ? 2 : 1);
}

static double value_of(const unsigned char *y, enum dtype dtype, size_t i) {
    uint32_t bits = 0;
    if (dtype == DTYPE_F32) {
        memcpy(&bits, y + 4 * i, 4);
    } else {
        uint16_t half = 0;
        memcpy(&half, y + 2 * i, 2);
        bits = (uint32_t)half << 16;
    }
    float value = 0;
    memcpy(&value, &bits, 4);
    return (double)value;
}

/* Root mean square of the differences over that of the values: a wrong transposition or stride gives
 * 1 or more, another order of sums 1e-5, and bf16 outputs 1e-3. */
static double
difference(const unsigned char *a, const unsigned char *b, enum dtype dtype, size_t count) {
    double squares = 0;
    double differences = 0;
    for (size_t i = 0; i < count; i++) {
        double x = value_of(a, dtype, i);
        double d = value_of(b, dtype, i) - x;
        squares += x * x;
        differences += d * d;
    }
    return sqrt(differences / squares);
}

struct pinned {
    struct cuda_cublas *cublas;
    struct cuda_cublas_product product;
    struct cuda_cublas_algorithm algorithm;
    void *x, *w, *y;
};

/* False: the algorithm does not take so many rows. */
static bool run_rows(struct pinned *p, int32_t rows, std::vector<unsigned char> *out) {
    struct cuda_cublas_product product = p->product;
    product.rows = rows;
    if (is_failed(cuda_cublas_enqueue(
            p->cublas, &product, &p->algorithm, p->x, p->w, p->y, nullptr, nullptr
        ))) {
        return false;
    }
    out->resize((size_t)rows * (size_t)product.out * width_of(product.output));
    must(cudaMemcpy(out->data(), p->y, out->size(), cudaMemcpyDeviceToHost));
    return true;
}

static void compare_rows(struct check *check, struct pinned *p, const unsigned char *ours) {
    static const int32_t counts[] = {1, 2, 7, 8, 16, 17, 64, 65, 128, 129, 500};
    std::vector<unsigned char> all;
    std::vector<unsigned char> some;
    if (!run_rows(p, ROWS, &all)) {
        check_report(check, false, "the algorithm chosen for %d rows does not take them", ROWS);
        return;
    }
    int different = 0;
    int refused = 0;
    for (int32_t rows : counts) {
        if (!run_rows(p, rows, &some)) {
            refused++;
        } else if (memcmp(some.data(), all.data(), some.size()) != 0) {
            different++;
        }
    }
    double off = difference(ours, all.data(), p->product.output, (size_t)ROWS * p->product.out);
    size_t row_bytes = all.size() / ROWS;
    size_t ours_too = 0;
    for (size_t r = 0; r < ROWS; r++) {
        ours_too += memcmp(ours + r * row_bytes, all.data() + r * row_bytes, row_bytes) == 0;
    }
    check_report(
        check,
        off < 5e-3,
        "off by %.1e rms; pinned, of %d row counts %d give other bits, %d are refused; "
        "%zu of %d rows have our bits: %s",
        off,
        (int)COUNT_OF(counts),
        different,
        refused,
        ours_too,
        ROWS,
        different + refused == 0 && ours_too == ROWS ? "MAY SERVE PROMPTS" : "may not serve prompts"
    );
}

static void
check_shape(struct check *check, struct cuda_cublas *cublas, const struct cublas_shape *s) {
    if (!check_case(check, "cublas", "[%d -> %d, %d]", s->in, s->out, ROWS)) {
        return;
    }
    struct linear_op op = {};
    op.rows = ROWS;
    op.groups = 1;
    op.in = s->in;
    op.out = s->out;
    op.input_dtype = s->inputs;
    op.input = check_normals_bf16(check, ROWS, s->in, 1.0F);
    op.weight = check_weight(check, s->inputs, s->out, s->in, CHECK_PLAUSIBLE);
    op.output_dtype = s->output;
    size_t bytes = (size_t)ROWS * (size_t)s->out * width_of(s->output);
    op.output = check_output(check, ROWS, bytes / ROWS);
    CHECK_RUN(check, linear, op);
    struct pinned p = {};
    p.cublas = cublas;
    p.product = {ROWS, s->in, s->out, s->inputs, s->output};
    struct error error = {};
    if (is_failed(cuda_cublas_choose(cublas, &p.product, true, &p.algorithm, &error))) {
        check_report(check, true, "nothing pinned: %s", error.message);
        return;
    }
    p.x = to_device(op.input, (size_t)ROWS * (size_t)s->in * 2);
    p.w = to_device(op.weight.data, (size_t)s->out * (size_t)s->in * 2);
    must(cudaMalloc(&p.y, bytes));
    compare_rows(check, &p, (const unsigned char *)check_got(check, op.output));
    must(cudaFree(p.x));
    must(cudaFree(p.w));
    must(cudaFree(p.y));
}

/* Null, said in a line, where there is none. */
static struct cuda_cublas *open_library(struct check *check) {
    struct cuda_cublas *cublas = nullptr;
    struct error error = {};
    if (check->emulated || !check_case(check, "cublas", "library")) {
        return nullptr;
    }
    bool is_there = is_ok(cuda_cublas_open(&cublas, &error));
    check_report(check, true, "%s", is_there ? "loaded" : error.message);
    return cublas;
}

void check_cublas(struct check *check) {
    static const struct cublas_shape shapes[] = {
        {DTYPE_BF16, DTYPE_F32, 5120, 384},   // router
        {DTYPE_BF16, DTYPE_F32, 5120, 512},   // compressor
        {DTYPE_BF16, DTYPE_BF16, 5120, 32},   // index weights
        {DTYPE_BF16, DTYPE_BF16, 512, 128},   // index keys
        {DTYPE_BF16, DTYPE_BF16, 4096, 1024}, // a group of wo_a, were it bf16
    };
    struct cuda_cublas *cublas = open_library(check);
    for (size_t i = 0; i < COUNT_OF(shapes) && cublas != nullptr; i++) {
        check_shape(check, cublas, &shapes[i]);
    }
    cuda_cublas_close(cublas);
}

/* ---- time ---- */

#define BENCH_BYTES   ((size_t)256 << 20) /* of weights in turn: several times the L2 cache */
#define BENCH_REPEATS 9

/* Bits that toggle, finite in both formats: products of equal numbers run at a higher clock. */
static void fill(struct check *check, void *to, size_t bytes) {
    std::vector<uint64_t> block((size_t)1 << 17);
    for (uint64_t &word : block) {
        word = check_bits64(check) & 0xbfbfbfbfbfbfbfbfU;
    }
    for (size_t at = 0; at < bytes; at += 8 * block.size()) {
        size_t count = bytes - at < 8 * block.size() ? bytes - at : 8 * block.size();
        must(cudaMemcpy((char *)to + at, block.data(), count, cudaMemcpyHostToDevice));
    }
}

/* Microseconds of one of `copies` products that follow each other, the best of some runs; 0: none. */
static double time_products(
    struct check *check,
    struct cuda_cublas *cublas,
    const struct cuda_cublas_product *product,
    size_t copies
) {
    struct cuda_cublas_algorithm algorithm;
    if (is_failed(cuda_cublas_choose(cublas, product, false, &algorithm, nullptr))) {
        return 0;
    }
    size_t width = width_of(product->inputs);
    size_t weight_bytes = (size_t)product->out * (size_t)product->in * width;
    unsigned char *w = nullptr;
    void *x = nullptr;
    void *y = nullptr;
    cudaEvent_t begin;
    cudaEvent_t end;
    must(cudaMalloc(&w, weight_bytes * copies));
    must(cudaMalloc(&x, (size_t)product->rows * (size_t)product->in * width));
    must(cudaMalloc(&y, (size_t)product->rows * (size_t)product->out * width_of(product->output)));
    fill(check, w, weight_bytes * copies);
    fill(check, x, (size_t)product->rows * (size_t)product->in * width);
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    double best = 0;
    for (int i = 0; i < BENCH_REPEATS; i++) {
        must(cudaEventRecord(begin, nullptr));
        for (size_t j = 0; j < copies; j++) {
            result_ignore(cuda_cublas_enqueue( // it took this shape when it was chosen
                cublas,
                product,
                &algorithm,
                x,
                w + j * weight_bytes,
                y,
                nullptr,
                nullptr
            ));
        }
        must(cudaEventRecord(end, nullptr));
        must(cudaEventSynchronize(end));
        float milliseconds = 0;
        must(cudaEventElapsedTime(&milliseconds, begin, end));
        double us = 1e3 * (double)milliseconds / (double)copies;
        best = i == 0 || us < best ? us : best;
    }
    must(cudaEventDestroy(begin));
    must(cudaEventDestroy(end));
    must(cudaFree(w));
    must(cudaFree(x));
    must(cudaFree(y));
    return best;
}

void bench_cublas(struct check *check) {
    static const struct cublas_shape shapes[] = {
        {DTYPE_FP8, DTYPE_BF16, 5120, 1280},
        {DTYPE_FP8, DTYPE_BF16, 1280, 32768},
        {DTYPE_FP8, DTYPE_BF16, 8192, 5120},
        {DTYPE_FP8, DTYPE_BF16, 6144, 25600},
        {DTYPE_BF16, DTYPE_F32, 5120, 384},
        {DTYPE_BF16, DTYPE_BF16, 4096, 1024},
        {DTYPE_BF16, DTYPE_F32, 5120, 129280},
    };
    static const int32_t rows[] = {16, 64, 256, 4096}; // as bench_linear; FP8 wants 16 at least
    struct cuda_cublas *cublas = open_library(check);
    for (size_t i = 0; i < COUNT_OF(shapes) && cublas != nullptr; i++) {
        const struct cublas_shape *s = &shapes[i];
        size_t weight_bytes = (size_t)s->in * (size_t)s->out * width_of(s->inputs);
        size_t copies = BENCH_BYTES / weight_bytes + 1;
        for (size_t j = 0; j < COUNT_OF(rows) - (s->out == 129280 ? 2 : 0); j++) {
            struct cuda_cublas_product product = {rows[j], s->in, s->out, s->inputs, s->output};
            double us = time_products(check, cublas, &product, copies < 32 ? copies : 32);
            printf(
                "bench  cublas          %s [1 x (%d -> %d), %d] %10.2f us in any order of sums%s\n",
                s->inputs == DTYPE_FP8 ? "fp8" : "bf16",
                s->in,
                s->out,
                rows[j],
                us,
                s->inputs == DTYPE_FP8 ? ", one scale for all" : ""
            );
        }
    }
    cuda_cublas_close(cublas);
}

#endif
