/* Products of cublasLt beside ours: the machine's ceilings, a yardstick, and a second opinion.
 *
 * The library is loaded when first asked for, so that nothing needs it to run. No op calls it: on an
 * H200 (CUDA 13.0, 2026-11-30) a pinned algorithm gives a row the same bits in products of 1 to 1,000
 * rows, but not the bits of cuda_product.cuh, whose slices few rows need, and a row's bits must not
 * change from decoding to a prompt. check_cublas measures both on the machine at hand.
 * Thread: the one that owns the device's stream.
 */
#ifndef HEARTH_KERNELS_CUDA_CUBLAS_H
#define HEARTH_KERNELS_CUDA_CUBLAS_H

#include "kernels/backend.h"

#include <cuda_runtime_api.h>

struct cuda_cublas;

/* y [rows, out] = x [rows, in] w^T, w [out, in]; all dense, sums in FP32. */
struct cuda_cublas_product {
    int32_t rows, in, out;
    enum dtype inputs; /* of x and w: F32, BF16, or FP8 as codes alone, all scales 1 */
    enum dtype output; /* F32 or BF16 */
};

struct cuda_cublas_algorithm {
    uint64_t data[8]; /* opaque */
};

/* For the current device. Expected error: UNSUPPORTED, why in one line. */
MUST_CHECK result cuda_cublas_open(struct cuda_cublas **out, struct error *error);
void cuda_cublas_close(struct cuda_cublas *cublas);

/* What the library thinks is fastest; with `pinned` among those that add in one order, in one pass and
 * without memory of their own. Expected error: UNSUPPORTED, none for this shape. */
MUST_CHECK result cuda_cublas_choose(
    struct cuda_cublas *cublas,
    const struct cuda_cublas_product *product,
    bool pinned,
    struct cuda_cublas_algorithm *out,
    struct error *error
);

/* Enqueues a product by an algorithm that was chosen for its shape, or for more or fewer rows of it.
 * Expected error: UNSUPPORTED, the algorithm does not take so many. */
MUST_CHECK result cuda_cublas_enqueue(
    struct cuda_cublas *cublas,
    const struct cuda_cublas_product *product,
    const struct cuda_cublas_algorithm *algorithm,
    const void *x,
    const void *w,
    void *y,
    cudaStream_t stream,
    struct error *error
);

#endif
