/* Names of number formats and of the shape letters used in every comment under kernels/ and engine/.
 *
 *   R   rows of a step (tokens of one or several sequences)   D   hidden_size
 *   S   sequences of a step                                   C   hc_mult, residual streams
 *   H   attention heads          d   head_dim                 r   qk_rope_head_dim
 *   W   sliding window           m   compress ratio (1, 2)    E   experts, k experts per token
 *   I   index heads              i   index_head_dim           K   index_topk
 *   V   vocabulary               G   o_groups
 *
 * C and C++ read this file.
 */
#ifndef HEARTH_KERNELS_TENSOR_H
#define HEARTH_KERNELS_TENSOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype {
    DTYPE_F32,
    DTYPE_BF16, /* stored as uint16_t */
    DTYPE_FP8,  /* E4M3 (e4m3fn) codes with E8M0 scales, see each use */
    DTYPE_FP4   /* E2M1 codes, two a byte, low nibble first */
};

/* A weight matrix as the checkpoint stores it, row-major [out, in]; never widened in memory.
 *   F32, BF16  no scale
 *   FP8        scale E8M0 [ceil(out/32), ceil(in/32)]: w = e4m3 * 2^(s - 127)
 *   FP4        data [out, in/2], scale E8M0 [out, in/32]
 * Source: spec model.md 2.2. */
struct weight {
    enum dtype dtype;
    int32_t out;
    int32_t in;
    const void *data;
    const uint8_t *scale;
};

/* Activations quantised per row in groups of 32 (spec 3.0.1): x = e4m3 * 2^(s - 127). */
struct quantized {
    uint8_t *codes;  /* [R, columns] */
    uint8_t *scales; /* [R, columns / 32] */
};

#ifdef __cplusplus
}
#endif

#endif
