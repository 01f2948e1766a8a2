/* Inside the CUDA backend: its state, and how its ops are launched.
 *
 * One stream per backend. An op's launcher only enqueues: it neither allocates nor waits nor reads
 * device memory, and its grid depends on the shapes of the op alone, so that a decode step can be
 * recorded once as a graph and replayed. Scratch is one buffer, sized when the backend opens, free
 * for the op at hand from its first launch to its last.
 *
 * Every kernel takes a `struct mark` first and begins with MARK(mark): when the device faults, the
 * host reads which op began last and names it. Thread: the one that owns the backend.
 */
#ifndef HEARTH_KERNELS_CUDA_CUDA_H
#define HEARTH_KERNELS_CUDA_CUDA_H

#include "kernels/backend.h"

#include <cuda_runtime_api.h>

/* Ops as faults name them; cuda_op_name gives the text. */
enum cuda_op {
    CUDA_OP_NONE,
    CUDA_OP_EMBED,
    CUDA_OP_STREAM_MIX,
    CUDA_OP_STREAM_COLLAPSE,
    CUDA_OP_STREAM_UPDATE,
    CUDA_OP_NORM,
    CUDA_OP_QUANTIZE,
    CUDA_OP_LINEAR,
    CUDA_OP_ROPE_TABLE,
    CUDA_OP_ROTATE,
    CUDA_OP_WINDOW_PACK,
    CUDA_OP_WINDOW_COMMIT,
    CUDA_OP_COMPRESS_POOL,
    CUDA_OP_ENTRY_STORE,
    CUDA_OP_INDEX_QUANTIZE,
    CUDA_OP_INDEX_SELECT,
    CUDA_OP_ATTENTION,
    CUDA_OP_ROUTE,
    CUDA_OP_EXPERTS,
    CUDA_OP_ENGRAM_GATHER,
    CUDA_OP_ENGRAM_GATE,
    CUDA_OP_KEEP_ROWS,
    CUDA_OP_COUNT
};

/* Where a kernel says that it began: a word of pinned host memory, mapped into the device. */
struct mark {
    volatile uint32_t *word;
    uint32_t op; /* enum cuda_op */
};

/* Attention keeps 64 keys and up to 64 heads of this width in shared memory; wider is refused when
 * the backend opens. */
#define CUDA_HEAD_DIM_MAX 512

struct cuda {
    struct backend backend; /* first: a backend's state points back here */
    struct backend_options limits;
    cudaStream_t stream;
    int32_t multiprocessors;
    bool overlaps;            /* CUDA_OVERLAP, and the device can */
    int32_t shared_bytes_max; /* dynamic shared memory one block may ask for */
    void *scratch;            /* device; as large as the largest of the functions below asks */
    size_t scratch_bytes;
    volatile uint32_t *mark_host;
    volatile uint32_t *mark_device;
    cudaError_t fault; /* the first one; kept */
    enum cuda_op fault_op;
    struct cuda_host *host; /* cuda_backend.cu's own: pools, staging, graphs, locks */
};

static inline struct cuda *cuda_of(struct backend *backend) {
    return (struct cuda *)backend->state;
}

static inline struct mark cuda_mark(const struct cuda *cuda, enum cuda_op op) {
    struct mark mark;
    mark.word = cuda->mark_device;
    mark.op = (uint32_t)op;
    return mark;
}

/* As in "device fault in attention". */
const char *cuda_op_name(enum cuda_op op);

/* Keeps the first failure and the op it came from: `op` of a launch that was refused; what a kernel
 * did wrong comes back from any later call, and the mark names the kernel. */
void cuda_keep_fault(struct cuda *cuda, enum cuda_op op, cudaError_t status);

/* 1: a kernel's blocks come onto the device while the one before it still runs, and wait there until all
 * it wrote is to be seen (programmatic dependent launch, 9.0 and later). Not measured yet (NOTES.md):
 * check.sh compare -DCUDA_OVERLAP=1. Architectures before take the same code without it. */
#ifndef CUDA_OVERLAP
#define CUDA_OVERLAP 0
#endif

/* Launches `kernel` (name a template instance with a local `auto` first) and keeps its fault. A
 * kernel that wants more than 48 KiB of dynamic shared memory: CUDA_ALLOW_SHARED before it. */
#if !defined(CUDA_EMULATION) && CUDA_OVERLAP
#define CUDA_LAUNCH(cuda, op, kernel, grid, block, shared, ...)                                    \
    do {                                                                                           \
        cudaLaunchConfig_t launch_ = {};                                                           \
        launch_.gridDim = (grid);                                                                  \
        launch_.blockDim = (block);                                                                \
        launch_.dynamicSmemBytes = (size_t)(shared);                                               \
        launch_.stream = (cuda)->stream;                                                           \
        cudaLaunchAttribute overlap_ = {};                                                         \
        overlap_.id = cudaLaunchAttributeProgrammaticStreamSerialization;                          \
        overlap_.val.programmaticStreamSerializationAllowed = 1;                                   \
        launch_.attrs = &overlap_;                                                                 \
        launch_.numAttrs = (cuda)->overlaps ? 1 : 0;                                               \
        cuda_keep_fault(                                                                           \
            cuda, op, cudaLaunchKernelEx(&launch_, kernel, cuda_mark(cuda, op), __VA_ARGS__)       \
        );                                                                                         \
        cuda_keep_fault(cuda, op, cudaGetLastError());                                             \
    } while (0)
#elif !defined(CUDA_EMULATION)
#define CUDA_LAUNCH(cuda, op, kernel, grid, block, shared, ...)                                    \
    do {                                                                                           \
        kernel<<<(grid), (block), (shared), (cuda)->stream>>>(cuda_mark(cuda, op), __VA_ARGS__);   \
        cuda_keep_fault(cuda, op, cudaGetLastError());                                             \
    } while (0)
#endif
#ifndef CUDA_EMULATION
#define CUDA_ALLOW_SHARED(cuda, op, kernel, bytes)                                                 \
    cuda_keep_fault(                                                                               \
        cuda,                                                                                      \
        op,                                                                                        \
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))    \
    )
#endif

/* Bytes of scratch the ops of one file need for the largest shapes; backend_options says which. */
size_t cuda_linear_scratch(const struct backend_options *limits);
size_t cuda_experts_scratch(const struct backend_options *limits);
size_t cuda_index_scratch(const struct backend_options *limits);
size_t cuda_attention_scratch(const struct backend_options *limits);
size_t cuda_stream_scratch(const struct backend_options *limits);

/* Launchers, one per op of kernels/backend.h, same meaning; the table of the backend is these. */
#define CUDA_OP(name) void cuda_##name(struct backend *backend, const struct name##_op *op);
BACKEND_OPS(CUDA_OP)

#endif
