/* See kv_disk.h. The files are not there yet: opening says so, and nothing else can be called. */
#include "kv_disk.h"

uint64_t kv_disk_stride(size_t block_bytes) {
    uint64_t bytes = (uint64_t)block_bytes + KV_DISK_HEADER_BYTES;
    uint64_t pages = (bytes + 4095) / 4096 * 4096;
    return (pages - bytes) * 50 <= block_bytes ? pages : (bytes + 63) / 64 * 64;
}

result
kv_disk_open(struct kv_disk **out, const struct kv_disk_options *options, struct error *error) {
    (void)out;
    FAIL(error, UNSUPPORTED, "%.200s: there is no disk tier yet", options->directory);
}

void kv_disk_close(struct kv_disk *disk) {
    ASSERT(disk == NULL);
}
