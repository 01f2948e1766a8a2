/* What the machine can do at most, measured: the floors of a bench are counted bytes and operations
 * over these rates. */
#include "cuda_ceilings.h"

#include "cuda_cublas.h"
#include "cuda_device.cuh"

#include <stdlib.h>

#define MEMORY_BYTES     ((size_t)1 << 30) /* twenty times the L2 cache of an H200 */
#define MEMORY_BYTES_MIN ((size_t)1 << 20)
#define REPEATS          9
#define BLOCK            512
#define PRODUCT_SIZE     8192                /* rows, in and out */
#define NODES            256                 /* of a recorded chain */
#define CHAIN_KEY        0x6365696C696E6700U /* of its step; nobody else runs one meanwhile */

/* Reads everything; writes only what no sum of these bytes is, so that nothing is left out. */
__global__ void __launch_bounds__(BLOCK)
    ceiling_read(struct mark mark, const uint4 *from, size_t count, uint32_t *unlikely) {
    MARK(mark);
    uint32_t sum = 0;
    size_t stride = (size_t)gridDim.x * BLOCK;
#pragma unroll 8
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += stride) {
        uint4 v = load_streaming(from + i);
        sum |= v.x | v.y | v.z | v.w;
    }
    if (sum != 0) { // the memory holds zeros
        *unlikely = sum;
    }
}

__global__ void __launch_bounds__(BLOCK)
    ceiling_copy(struct mark mark, uint4 *to, const uint4 *from, size_t count) {
    MARK(mark);
    size_t stride = (size_t)gridDim.x * BLOCK;
#pragma unroll 4
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += stride) {
        to[i] = load_streaming(from + i);
    }
}

/* The least node of a step: one warp reads a word that the node before wrote, and writes it. It does
 * not even say that it began. */
__global__ void __launch_bounds__(WARP) ceiling_node(struct mark mark, uint32_t *word) {
    (void)mark;
    follow();
    if (threadIdx.x == 0) {
        *word += 1;
    }
}

struct ceiling {
    struct cuda *cuda;
    void *a, *b, *c;
    size_t bytes; /* of each */
    cudaEvent_t begin, end;
    struct cuda_cublas *cublas;
    struct cuda_cublas_product product;
    struct cuda_cublas_algorithm algorithm;
};

typedef result ceiling_work(struct ceiling *ceiling, struct error *error);

static result work_read(struct ceiling *ceiling, struct error *error) {
    (void)error;
    CUDA_LAUNCH(
        ceiling->cuda,
        CUDA_OP_NONE,
        ceiling_read,
        dim3(4 * (unsigned)ceiling->cuda->multiprocessors),
        dim3(BLOCK),
        0,
        static_cast<const uint4 *>(ceiling->a),
        ceiling->bytes / 16,
        static_cast<uint32_t *>(ceiling->b)
    );
    return OK;
}

static result work_copy(struct ceiling *ceiling, struct error *error) {
    (void)error;
    CUDA_LAUNCH(
        ceiling->cuda,
        CUDA_OP_NONE,
        ceiling_copy,
        dim3(4 * (unsigned)ceiling->cuda->multiprocessors),
        dim3(BLOCK),
        0,
        static_cast<uint4 *>(ceiling->b),
        static_cast<const uint4 *>(ceiling->a),
        ceiling->bytes / 16
    );
    return OK;
}

static result work_product(struct ceiling *ceiling, struct error *error) {
    return cuda_cublas_enqueue(
        ceiling->cublas,
        &ceiling->product,
        &ceiling->algorithm,
        ceiling->a,
        ceiling->b,
        ceiling->c,
        ceiling->cuda->stream,
        error
    );
}

/* The best of a few runs, in seconds. */
static result
best_seconds(struct ceiling *ceiling, ceiling_work *work, double *out, struct error *error) {
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        float milliseconds = 0;
        cudaEventRecord(ceiling->begin, ceiling->cuda->stream);
        TRY(work(ceiling, error));
        cudaEventRecord(ceiling->end, ceiling->cuda->stream);
        TRY(ceiling->cuda->backend.synchronize(&ceiling->cuda->backend, error));
        cudaError_t status = cudaEventElapsedTime(&milliseconds, ceiling->begin, ceiling->end);
        if (status != cudaSuccess) {
            FAIL_FOREIGN(error, DEVICE, status, "an event has no time");
        }
        double seconds = 1e-3 * (double)milliseconds;
        best = i == 0 || seconds < best ? seconds : best;
    }
    *out = best;
    return OK;
}

/* Products of zeros would run at a higher clock than a model's: codes that toggle most bits and are
 * finite in both formats. */
__global__ void __launch_bounds__(BLOCK)
    ceiling_fill(struct mark mark, uint32_t *to, size_t count) {
    MARK(mark);
    size_t stride = (size_t)gridDim.x * BLOCK;
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += stride) {
        uint32_t x = (uint32_t)i * 2654435761U;
        x = (x ^ x >> 15) * 2246822519U;
        to[i] = (x ^ x >> 13) & 0xbfbfbfbfU; // bf16 below 2, E4M3 below 2
    }
}

/* Operations a second of 8192^3; 0 when the library or the format is not there. */
static result
product_rate(struct ceiling *ceiling, enum dtype inputs, double *out, struct error *error) {
    ceiling->product = {PRODUCT_SIZE, PRODUCT_SIZE, PRODUCT_SIZE, inputs, DTYPE_BF16};
    *out = 0;
    if (ceiling->cublas == nullptr ||
        is_failed(cuda_cublas_choose(
            ceiling->cublas, &ceiling->product, false, &ceiling->algorithm, nullptr
        ))) {
        return OK;
    }
    double seconds = 0;
    TRY(best_seconds(ceiling, work_product, &seconds, error));
    double size = PRODUCT_SIZE;
    *out = 2 * size * size * size / seconds;
    return OK;
}

/* A step of NODES least nodes: recorded when it runs a second time, as all steps are. Stamps before
 * and after each, or around the whole. */
static void run_chain(struct cuda *cuda, uint32_t *word, bool is_each) {
    struct backend *backend = &cuda->backend;
    if (backend->step_begin(backend, CHAIN_KEY + (is_each ? 1 : 0))) {
        return;
    }
    bool is_enqueued = false;
    while (!is_enqueued) {
        for (int32_t i = 0; i < NODES; i++) {
            if (is_each || i == 0) {
                backend->stamp(backend, 2 * i);
            }
            CUDA_LAUNCH(cuda, CUDA_OP_NONE, ceiling_node, dim3(1), dim3(WARP), 0, word);
            if (is_each || i == NODES - 1) {
                backend->stamp(backend, 2 * i + 1);
            }
        }
        is_enqueued = backend->step_end(backend);
    }
}

static int compare_seconds(const void *a, const void *b) {
    double x = *static_cast<const double *>(a);
    double y = *static_cast<const double *>(b);
    return x < y ? -1 : x > y ? 1 : 0;
}

/* The least of a few runs: between the stamps of the whole chain, or the median between those of its
 * nodes. */
static result chain_seconds(struct ceiling *c, bool is_each, double *out, struct error *error) {
    struct backend *backend = &c->cuda->backend;
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        double each[NODES];
        run_chain(c->cuda, static_cast<uint32_t *>(c->b), is_each);
        TRY(backend->synchronize(backend, error));
        for (int32_t n = 0; is_each && n < NODES; n++) {
            each[n] = backend->stamp_seconds(backend, 2 * n, 2 * n + 1);
        }
        if (is_each) {
            qsort(each, NODES, sizeof each[0], compare_seconds);
        }
        double seconds =
            is_each ? each[NODES / 2] : backend->stamp_seconds(backend, 0, 2 * NODES - 1);
        best = i == 0 || seconds < best ? seconds : best;
    }
    backend->step_forget(backend);
    *out = best;
    return OK;
}

/* Seconds of a node in a chain, and what stamps add to those between them. */
static result measure_launch(struct ceiling *c, struct backend_ceilings *out, struct error *error) {
    double chain = 0;
    double each = 0;
    TRY(chain_seconds(c, false, &chain, error));
    TRY(chain_seconds(c, true, &each, error));
    // chain = NODES launches + stamps, each = launch + stamps
    double launch = (chain - each) / (NODES - 1);
    out->launch_seconds = launch > 0 ? launch : 0;
    out->stamp_seconds = each > launch ? each - launch : 0;
    return OK;
}

static result measure(struct ceiling *c, struct backend_ceilings *out, struct error *error) {
    double seconds = 0;
    struct backend_ceilings found = {};
    TRY(best_seconds(c, work_read, &seconds, error));
    found.read_bytes = (double)c->bytes / seconds;
    TRY(best_seconds(c, work_copy, &seconds, error));
    found.copy_bytes = 2 * (double)c->bytes / seconds;
    TRY(measure_launch(c, &found, error));
    if (c->bytes >= (size_t)2 * PRODUCT_SIZE * PRODUCT_SIZE) {
        result_ignore(cuda_cublas_open(&c->cublas, nullptr)); // without it there is no such rate
        for (void *to : {c->a, c->b}) {
            CUDA_LAUNCH(
                c->cuda,
                CUDA_OP_NONE,
                ceiling_fill,
                dim3(1024),
                dim3(BLOCK),
                0,
                static_cast<uint32_t *>(to),
                c->bytes / 4
            );
        }
        TRY(product_rate(c, DTYPE_BF16, &found.bf16_operations, error));
        TRY(product_rate(c, DTYPE_FP8, &found.fp8_operations, error));
    }
    *out = found;
    return OK;
}

result cuda_ceilings(struct backend *backend, struct backend_ceilings *out, struct error *error) {
    struct ceiling ceiling = {};
    ceiling.cuda = cuda_of(backend);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    ceiling.bytes = MEMORY_BYTES;
    while (ceiling.bytes > MEMORY_BYTES_MIN && ceiling.bytes > free_bytes / 8) {
        ceiling.bytes /= 2;
    }
    result done = OK;
    void **memory[] = {&ceiling.a, &ceiling.b, &ceiling.c};
    for (int i = 0; i < 3 && is_ok(done); i++) {
        done = backend->allocate(backend, ceiling.bytes, memory[i], error);
    }
    if (is_ok(done)) {
        cudaEventCreate(&ceiling.begin);
        cudaEventCreate(&ceiling.end);
        done = measure(&ceiling, out, error);
        cudaEventDestroy(ceiling.begin);
        cudaEventDestroy(ceiling.end);
        result_ignore(backend->synchronize(backend, nullptr)); // before memory goes: done says it
    }
    cuda_cublas_close(ceiling.cublas);
    for (void **each : memory) {
        if (*each != nullptr) {
            backend->release(backend, *each);
        }
    }
    return done;
}
