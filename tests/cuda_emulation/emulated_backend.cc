/* The ops that exist as a backend in emulated memory: no more than the checks of single ops need. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

#define WEAK(name) __attribute__((weak)) CUDA_OP(name);
#define OPS(X)                                                                                     \
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
OPS(WEAK)
__attribute__((weak)) size_t cuda_linear_scratch(const struct backend_options *limits);
__attribute__((weak)) size_t cuda_experts_scratch(const struct backend_options *limits);
__attribute__((weak)) size_t cuda_index_scratch(const struct backend_options *limits);
__attribute__((weak)) size_t cuda_attention_scratch(const struct backend_options *limits);
__attribute__((weak)) size_t cuda_stream_scratch(const struct backend_options *limits);

void cuda_keep_fault(struct cuda *cuda, enum cuda_op op, cudaError_t status) {
    if (status != cudaSuccess && cuda->fault == cudaSuccess) {
        cuda->fault = status;
        cuda->fault_op = op;
    }
}

static result
emulated_allocate(struct backend *backend, size_t bytes, void **out, struct error *error) {
    (void)backend;
    (void)error;
    result done = {cudaMalloc(out, bytes) == cudaSuccess ? RESULT_OK : RESULT_MEMORY};
    if (done.code == RESULT_OK) {
        cudaMemset(*out, 0, bytes);
    }
    return done;
}

static void emulated_release(struct backend *backend, void *memory) {
    (void)backend;
    cudaFree(memory);
}

static void emulated_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_of(backend)->stream);
}

static void emulated_download(struct backend *backend, void *to, const void *from, size_t bytes) {
    cudaStreamSynchronize(cuda_of(backend)->stream);
    emulated_copy(backend, to, from, bytes);
}

static result emulated_synchronize(struct backend *backend, struct error *error) {
    (void)error;
    cudaError_t status = cudaStreamSynchronize(cuda_of(backend)->stream);
    cuda_keep_fault(cuda_of(backend), CUDA_OP_NONE, status);
    result done = {cuda_of(backend)->fault == cudaSuccess ? RESULT_OK : RESULT_DEVICE};
    if (done.code != RESULT_OK) {
        fprintf(stderr, "emulated device: %s\n", cudaGetErrorString(cuda_of(backend)->fault));
    }
    return done;
}

static size_t larger(
    size_t so_far,
    size_t (*ask)(const struct backend_options *),
    const struct backend_options *limits
) {
    size_t bytes = ask == nullptr ? 0 : ask(limits);
    return bytes > so_far ? bytes : so_far;
}

extern "C" result
emulated_open(const struct backend_options *options, struct backend **out, struct error *error) {
    (void)error;
    struct cuda *cuda = (struct cuda *)calloc(1, sizeof *cuda);
    struct cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    cuda->limits = *options;
    cuda->multiprocessors = properties.multiProcessorCount;
    cuda->shared_bytes_max = (int32_t)properties.sharedMemPerBlockOptin;
    cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    size_t bytes = 64;
    bytes = larger(bytes, cuda_linear_scratch, options);
    bytes = larger(bytes, cuda_experts_scratch, options);
    bytes = larger(bytes, cuda_index_scratch, options);
    bytes = larger(bytes, cuda_attention_scratch, options);
    bytes = larger(bytes, cuda_stream_scratch, options);
    cuda->scratch_bytes = bytes;
    if (cudaMalloc(&cuda->scratch, bytes) != cudaSuccess) {
        abort();
    }
    uint32_t *mark = nullptr;
    cudaHostAlloc(&mark, 64, cudaHostAllocMapped);
    cuda->mark_host = mark;
    cuda->mark_device = mark;
    struct backend *backend = &cuda->backend;
    backend->name = "cuda";
    backend->description = "cuda, emulated";
    backend->state = cuda;
    backend->allocate = emulated_allocate;
    backend->allocate_host = emulated_allocate;
    backend->release = emulated_release;
    backend->upload = emulated_copy;
    backend->copy = emulated_copy;
    backend->download = emulated_download;
    backend->synchronize = emulated_synchronize;
#define FILL(name) backend->name = cuda_##name;
    OPS(FILL)
    *out = backend;
    result done = {RESULT_OK};
    return done;
}

extern "C" void emulated_close(struct backend *backend) {
    struct cuda *cuda = cuda_of(backend);
    cudaStreamDestroy(cuda->stream);
    cudaFree(cuda->scratch);
    cudaFreeHost((void *)cuda->mark_host);
    free(cuda);
}
