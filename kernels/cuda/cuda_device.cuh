/* What kernels use of the machine beyond plain CUDA C++: tensor-core products, asynchronous copies,
 * packed bf16 arithmetic. Kernels hold no inline assembly of their own, so that the emulation of
 * tests/cuda_emulation, which gives these functions another body, can run them on a CPU.
 */
#ifndef HEARTH_KERNELS_CUDA_DEVICE_CUH
#define HEARTH_KERNELS_CUDA_DEVICE_CUH

#include <stdint.h>

#include "cuda.h"

#define WARP 32

#ifdef CUDA_EMULATION
#include <cuda_emulation_device.h>
#else

/* The dynamic shared memory of the block, as bytes aligned to 128. */
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

/* Waits for the kernel before, which so has waited for its own, and lets the next one's blocks come: the
 * first thing that any kernel does, as CUDA_LAUNCH says. */
__device__ __forceinline__ void follow(void) {
#if CUDA_OVERLAP && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#define MARK(mark)                                                                                 \
    do {                                                                                           \
        follow();                                                                                  \
        if (threadIdx.x + blockIdx.x + blockIdx.y + blockIdx.z == 0) {                             \
            *(mark).word = (mark).op;                                                              \
        }                                                                                          \
    } while (0)

/* d += a b with a [16, 16] and b [16, 8] bf16, d [16, 8] FP32. All 32 lanes take part. With
 * group = lane / 4 and pair = lane % 4 a lane holds
 *   a[0] rows group, columns 2 pair and 2 pair + 1 (the lower column in the low half)
 *   a[1] rows group + 8, the same columns     a[2], a[3] as a[0], a[1] with columns + 8
 *   b[0] rows 2 pair and 2 pair + 1, column group     b[1] the same with rows + 8
 *   d[0], d[1] row group, columns 2 pair and 2 pair + 1     d[2], d[3] row group + 8
 * One instruction family for every row count: mma.sync, never wgmma (promise P2). */
__device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Four 8x8 matrices of 16-bit values: lane l gives the address of row l % 8 of matrix l / 8 (16
 * bytes, 16-aligned); r[m] gets row lane / 4, columns 2 (lane % 4) and + 1 of matrix m. The second
 * form transposes each matrix. */
__device__ __forceinline__ void load_matrices(uint32_t r[4], const void *shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared))
                 : "memory");
}

/* Copies 16 (or 4) bytes to shared memory without waiting; both aligned to their size. With `valid`
 * false zeros are written and `from` is not read (it must still be a pointer that may be formed). */
__device__ __forceinline__ void copy_async16(void *shared, const void *from, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy_async4(void *shared, const void *from, bool valid) {
    int bytes = valid ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(shared)), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy_async_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `PENDING` groups of this thread are under way; a barrier makes them visible. */
template <int PENDING> __device__ __forceinline__ void copy_async_wait(void) {
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
}

/* Two bf16 products, each rounded once to nearest even; subnormals are kept. */
__device__ __forceinline__ uint32_t bf16x2_multiply(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000U)); // -0.0
    return d;
}

/* Two floats to bf16, nearest even, `low` in the low half. */
__device__ __forceinline__ uint32_t bf16x2_encode(float low, float high) {
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

/* What no kernel that runs meanwhile writes. A kernel that waits for another one has such data only after
 * that, which the compiler does not know of the read-only path. */
template <typename T> __device__ __forceinline__ T load_read_only(const T *from) {
#if CUDA_OVERLAP
    return *from;
#else
    return __ldg(from);
#endif
}

/* Asks for the line at `from` in the L2 cache. */
__device__ __forceinline__ void prefetch_line(const void *from) {
    asm volatile("prefetch.global.L2 [%0];" : : "l"(from));
}

/* 16 bytes that are read once: around the L1 cache. */
__device__ __forceinline__ uint4 load_streaming(const void *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

#endif

/* Bytes of a pair of registers picked by the four nibbles of `selector`, as prmt does. */
__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    return __byte_perm(low, high, selector);
}

/* The segment that holds `row`, or -1; segments are device memory. Of one row each, as when sequences
 * decode, it is found at once: looking for it takes a round trip to memory for each step. */
__device__ __forceinline__ int32_t
segment_of(const struct row_segment *segments, int32_t count, int32_t row) {
    if (row < count) {
        const struct row_segment guess = segments[row];
        if (row >= guess.row && row < guess.row + guess.count) {
            return row;
        }
    }
    int32_t low = 0;
    int32_t high = count; // the last segment with row <= `row`, if any, is before `high`
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (segments[middle].row <= row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // Empty segments share a start with the next one: walk back to one that holds the row.
    for (int32_t s = low - 1; s >= 0; s--) {
        if (segments[s].count > 0) {
            return row < segments[s].row + segments[s].count ? s : -1;
        }
    }
    return -1;
}

#endif
