/* Records of the caches, to the byte (spec model.md section 4, architecture.md section 4).
 *
 * A block holds the entries of 128 tokens of every KV source, sources in layer order:
 *   main KV  entries x [d/2 bytes E2M1 codes, then d/16 bytes E4M3 scales]      (4.1; 288 B at d 512)
 *   index K  entries x i/2 bytes E2M1 codes, then entries x i/32 bytes E8M0      (4.3;  68 B at i 128)
 * with entries = 128 / ratio. At the release's dimensions: 113,920 bytes = 128 x 890.
 * A window record is d bytes E4M3 codes, then d/32 bytes E8M0 scales (4.2; 528 B at d 512); a ring
 * has W of them, position p in slot p mod W.
 */
#ifndef HEARTH_KERNELS_FORMATS_H
#define HEARTH_KERNELS_FORMATS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KV_BLOCK_TOKENS 128

/* Where one KV source lives inside a block; offsets in bytes from the block's start. */
struct kv_source_layout {
    int32_t ratio;   /* m: tokens per entry, 1 or 2 */
    int32_t entries; /* 128 / m */
    size_t main_offset;
    size_t main_record_bytes;  /* d/2 + d/16 */
    size_t index_code_offset;  /* [entries, i/2] */
    size_t index_scale_offset; /* [entries, i/32] */
};

static inline size_t window_record_bytes(int32_t head_dim) {
    return (size_t)head_dim + (size_t)head_dim / 32;
}

#ifdef __cplusplus
}
#endif

#endif
