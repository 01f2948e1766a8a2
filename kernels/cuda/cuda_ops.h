/* Launchers of the CUDA kernels that exist so far; one per op of kernels/backend.h, same meaning.
 *
 * There is no CUDA backend yet: backend_open refuses "cuda". All pointers of an op, views too,
 * are device memory; of segments the device copy is read. A launcher only enqueues on
 * `stream` and returns the status of the launch; faults of the kernel come back from synchronising.
 * Thread: the one that owns the stream.
 */
#ifndef HEARTH_KERNELS_CUDA_CUDA_OPS_H
#define HEARTH_KERNELS_CUDA_CUDA_OPS_H

#include "kernels/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_quantize(cudaStream_t stream, const struct quantize_op *op);
cudaError_t cuda_window_pack(cudaStream_t stream, const struct window_pack_op *op);
cudaError_t cuda_entry_store(cudaStream_t stream, const struct entry_store_op *op);
cudaError_t cuda_index_quantize(cudaStream_t stream, const struct index_quantize_op *op);
cudaError_t cuda_norm(cudaStream_t stream, const struct norm_op *op);
cudaError_t cuda_rotate(cudaStream_t stream, const struct rotate_op *op);

#ifdef __cplusplus
}
#endif

#endif
