/* CUDA C++ on a CPU: the language and the intrinsics that kernels/cuda uses, for g++ and clang.
 *
 * Kernels are compiled as plain C++ against this header in place of the toolkit's. Blocks run one
 * after another, the threads of a block as fibers that change over at barriers and warp-wide
 * operations only (cuda_emulation.cc). It checks logic, not speed and not the last bit: sums inside
 * a tensor-core product have another order than the hardware's.
 *
 * __device__ and __global__ are `static`, as nvcc keeps both inside their file: write no `static`
 * beside them. What is missing here on purpose: fast intrinsics, atomics on floating point,
 * cooperative groups, printf.
 */
#ifndef HEARTH_TESTS_CUDA_EMULATION_H
#define HEARTH_TESTS_CUDA_EMULATION_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <tuple>
#include <type_traits>

#define __device__      static __attribute__((unused))
#define __global__      static __attribute__((unused))
#define __host__        __attribute__((unused))
#define __constant__    __attribute__((unused))
#define __shared__      static __attribute__((section("cuda_shared"), unused))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif

/* ---- types ---- */

#define CUDA_EMULATION_VECTOR2(name, scalar, alignment)                                            \
    struct __attribute__((aligned(alignment))) name {                                              \
        scalar x, y;                                                                               \
    };                                                                                             \
    static inline name make_##name(scalar x, scalar y) {                                           \
        return name{x, y};                                                                         \
    }
#define CUDA_EMULATION_VECTOR4(name, scalar, alignment)                                            \
    struct __attribute__((aligned(alignment))) name {                                              \
        scalar x, y, z, w;                                                                         \
    };                                                                                             \
    static inline name make_##name(scalar x, scalar y, scalar z, scalar w) {                       \
        return name{x, y, z, w};                                                                   \
    }
CUDA_EMULATION_VECTOR2(char2, signed char, 2)
CUDA_EMULATION_VECTOR2(uchar2, unsigned char, 2)
CUDA_EMULATION_VECTOR2(short2, short, 4)
CUDA_EMULATION_VECTOR2(ushort2, unsigned short, 4)
CUDA_EMULATION_VECTOR2(int2, int, 8)
CUDA_EMULATION_VECTOR2(uint2, unsigned, 8)
CUDA_EMULATION_VECTOR2(float2, float, 8)
CUDA_EMULATION_VECTOR2(double2, double, 16)
CUDA_EMULATION_VECTOR2(longlong2, long long, 16)
CUDA_EMULATION_VECTOR2(ulonglong2, unsigned long long, 16)
CUDA_EMULATION_VECTOR4(char4, signed char, 4)
CUDA_EMULATION_VECTOR4(uchar4, unsigned char, 4)
CUDA_EMULATION_VECTOR4(short4, short, 8)
CUDA_EMULATION_VECTOR4(ushort4, unsigned short, 8)
CUDA_EMULATION_VECTOR4(int4, int, 16)
CUDA_EMULATION_VECTOR4(uint4, unsigned, 16)
CUDA_EMULATION_VECTOR4(float4, float, 16)

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
    }
};

/* ---- the thread that runs ---- */

/* Where it is; thread changes with every change of fibers, the rest with every block. */
struct cuda_emulation_place {
    struct uint3 thread, block;
    struct dim3 block_size, grid_size;
};
extern struct cuda_emulation_place cuda_emulation_place;

#define threadIdx (cuda_emulation_place.thread)
#define blockIdx  (cuda_emulation_place.block)
#define blockDim  (cuda_emulation_place.block_size)
#define gridDim   (cuda_emulation_place.grid_size)
static const int warpSize = 32;

/* The source line of a call, for reports: the last parameters of everything that waits. */
#define CUDA_EMULATION_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* Ends the launch as a failed one: one line on stderr, then an error from every later call. */
[[noreturn]] void cuda_emulation_fail(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* A warp-wide operation: when every lane of the mask has come, the last one combines what the others
 * brought. `aligned`: all lanes must come from the same line. `departed_allowed`: lanes that ended do
 * not count. */
struct cuda_emulation_collective {
    const char *name;
    void (*combine)(void *const lanes[32], uint32_t mask); /* may be null */
    bool aligned;
    bool departed_allowed;
};

void cuda_emulation_collect(
    const struct cuda_emulation_collective *collective,
    uint32_t mask,
    void *lane,
    const char *file,
    int line
);

int cuda_emulation_lane(void);
unsigned char *cuda_emulation_dynamic_shared(void);
bool cuda_emulation_is_shared(const void *memory, size_t bytes);
/* The block barrier; gives how many threads brought a true predicate and how many came. */
struct cuda_emulation_votes {
    int yes, all;
};
struct cuda_emulation_votes
cuda_emulation_barrier(const char *name, bool predicate, const char *file, int line);

static inline void __syncthreads(CUDA_EMULATION_CALLER) {
    cuda_emulation_barrier("__syncthreads", false, file, line);
}
static inline int __syncthreads_count(int predicate, CUDA_EMULATION_CALLER) {
    return cuda_emulation_barrier("__syncthreads_count", predicate != 0, file, line).yes;
}
static inline int __syncthreads_or(int predicate, CUDA_EMULATION_CALLER) {
    return cuda_emulation_barrier("__syncthreads_or", predicate != 0, file, line).yes != 0;
}
static inline int __syncthreads_and(int predicate, CUDA_EMULATION_CALLER) {
    struct cuda_emulation_votes votes =
        cuda_emulation_barrier("__syncthreads_and", predicate != 0, file, line);
    return votes.yes == votes.all;
}

void __syncwarp(uint32_t mask = 0xffffffffU, CUDA_EMULATION_CALLER);
int __any_sync(uint32_t mask, int predicate, CUDA_EMULATION_CALLER);
int __all_sync(uint32_t mask, int predicate, CUDA_EMULATION_CALLER);
uint32_t __ballot_sync(uint32_t mask, int predicate, CUDA_EMULATION_CALLER);
uint32_t __match_any_sync(uint32_t mask, uint32_t value, CUDA_EMULATION_CALLER);

enum cuda_emulation_shuffle { SHUFFLE_INDEX, SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_XOR };
uint64_t cuda_emulation_shuffle(
    enum cuda_emulation_shuffle how,
    uint32_t mask,
    uint64_t value,
    int operand,
    int width,
    const char *file,
    int line
);

#define CUDA_EMULATION_SHUFFLE(name, how, operand_type)                                            \
    template <typename T>                                                                          \
    static inline T name(                                                                          \
        uint32_t mask, T value, operand_type operand, int width = 32, CUDA_EMULATION_CALLER        \
    ) {                                                                                            \
        static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "type"); \
        uint64_t bits = 0;                                                                         \
        memcpy(&bits, &value, sizeof value);                                                       \
        bits = cuda_emulation_shuffle(how, mask, bits, (int)operand, width, file, line);           \
        memcpy(&value, &bits, sizeof value);                                                       \
        return value;                                                                              \
    }
CUDA_EMULATION_SHUFFLE(__shfl_sync, SHUFFLE_INDEX, int)
CUDA_EMULATION_SHUFFLE(__shfl_up_sync, SHUFFLE_UP, unsigned)
CUDA_EMULATION_SHUFFLE(__shfl_down_sync, SHUFFLE_DOWN, unsigned)
CUDA_EMULATION_SHUFFLE(__shfl_xor_sync, SHUFFLE_XOR, int)

enum cuda_emulation_reduce {
    REDUCE_ADD,
    REDUCE_MIN,
    REDUCE_MAX,
    REDUCE_MIN_SIGNED,
    REDUCE_MAX_SIGNED,
    REDUCE_AND,
    REDUCE_OR,
    REDUCE_XOR
};
uint32_t cuda_emulation_reduce(
    enum cuda_emulation_reduce how, uint32_t mask, uint32_t value, const char *file, int line
);

#define CUDA_EMULATION_REDUCE(name, type, how)                                                     \
    static inline type name(uint32_t mask, type value, CUDA_EMULATION_CALLER) {                    \
        return (type)cuda_emulation_reduce(how, mask, (uint32_t)value, file, line);                \
    }
CUDA_EMULATION_REDUCE(__reduce_add_sync, unsigned, REDUCE_ADD)
CUDA_EMULATION_REDUCE(__reduce_add_sync, int, REDUCE_ADD)
CUDA_EMULATION_REDUCE(__reduce_min_sync, unsigned, REDUCE_MIN)
CUDA_EMULATION_REDUCE(__reduce_min_sync, int, REDUCE_MIN_SIGNED)
CUDA_EMULATION_REDUCE(__reduce_max_sync, unsigned, REDUCE_MAX)
CUDA_EMULATION_REDUCE(__reduce_max_sync, int, REDUCE_MAX_SIGNED)
CUDA_EMULATION_REDUCE(__reduce_and_sync, unsigned, REDUCE_AND)
CUDA_EMULATION_REDUCE(__reduce_or_sync, unsigned, REDUCE_OR)
CUDA_EMULATION_REDUCE(__reduce_xor_sync, unsigned, REDUCE_XOR)

static inline void __threadfence(void) {
}
static inline void __threadfence_block(void) {
}
static inline void __threadfence_system(void) {
}

#include "cuda_emulation_intrinsics.h"

/* ---- launches ---- */

struct cuda_emulation_launch {
    const char *op, *kernel;
    const void *function;
    struct dim3 grid, block;
    size_t shared_bytes;
    std::function<void()> body; /* one thread */
};
typedef struct cuda_emulation_stream *cudaStream_t;

#include "cuda_emulation_runtime.h"

/* Checks sizes, then enqueues. */
cudaError_t cuda_emulation_enqueue(cudaStream_t stream, struct cuda_emulation_launch &&launch);
/* Runs it now; false: it failed. */
bool cuda_emulation_run(const struct cuda_emulation_launch *launch);

/* kernel<<<grid, block, shared, stream>>>(arguments) */
template <typename... P, typename... A>
static inline cudaError_t cuda_emulation_start(
    cudaStream_t stream,
    const char *op,
    const char *name,
    void (*kernel)(P...),
    struct dim3 grid,
    struct dim3 block,
    size_t shared_bytes,
    A &&...arguments
) {
    std::tuple<std::decay_t<P>...> kept(static_cast<A &&>(arguments)...);
    struct cuda_emulation_launch launch = {
        op, name, (const void *)kernel, grid, block, shared_bytes, [kernel, kept] {
            std::apply(kernel, kept);
        }};
    return cuda_emulation_enqueue(stream, static_cast<cuda_emulation_launch &&>(launch));
}

#define CUDA_LAUNCH(cuda, op, kernel, grid, block, shared, ...)                                    \
    cuda_keep_fault(                                                                               \
        cuda,                                                                                      \
        op,                                                                                        \
        cuda_emulation_start(                                                                      \
            (cuda)->stream,                                                                        \
            #op,                                                                                   \
            #kernel,                                                                               \
            kernel,                                                                                \
            grid,                                                                                  \
            block,                                                                                 \
            shared,                                                                                \
            cuda_mark(cuda, op),                                                                   \
            __VA_ARGS__                                                                            \
        )                                                                                          \
    )
#define CUDA_ALLOW_SHARED(cuda, op, kernel, bytes)                                                 \
    cuda_keep_fault(                                                                               \
        cuda,                                                                                      \
        op,                                                                                        \
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))    \
    )

#endif
