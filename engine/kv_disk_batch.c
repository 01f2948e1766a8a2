/* Reading many neighbouring records in one call, and verifying them elsewhere. See kv_disk.h. */
#include "kv_disk_internal.h"

#include <sys/uio.h>

/* Bytes between a block's end and the next record: kv_disk_stride rounds up to 4,096 at most. */
#define PADDING_MAX 4096
#define PARTS       3 /* header, block, padding */

/* Where a key's record is; false: nowhere. */
static bool find_place(struct kv_disk *disk, const struct kv_key *key, struct disk_entry *out) {
    disk_lock(disk);
    uint32_t at = disk->is_off ? DISK_NONE : disk_index_get(&disk->index, key);
    if (at != DISK_NONE) {
        *out = disk->index.entries[at];
    }
    disk_unlock(disk);
    return at != DISK_NONE;
}

/* NOLINTBEGIN(readability-non-const-parameter): the system writes there through iovec */
int32_t kv_disk_fetch(
    struct kv_disk *disk, const struct kv_key *keys, int32_t count, uint8_t *headers, uint8_t *bytes
) {
    /* NOLINTEND(readability-non-const-parameter) */
    uint8_t padding[PADDING_MAX]; /* read by nobody */
    struct iovec parts[PARTS * KV_DISK_FETCH_MAX];
    struct disk_entry first = {0};
    size_t gap = (size_t)disk->stride - KV_DISK_HEADER_BYTES - disk->block_bytes;
    ASSERT(gap <= PADDING_MAX);
    int32_t run = 0;
    struct disk_entry next = {0};
    while (run < count && run < KV_DISK_FETCH_MAX && find_place(disk, &keys[run], &next)) {
        first = run == 0 ? next : first;
        if (next.segment != first.segment || next.slot != first.slot + (uint32_t)run) {
            break;
        }
        size_t at = (size_t)run;
        struct iovec *part = &parts[PARTS * at];
        part[0] = (struct iovec){headers + at * KV_DISK_HEADER_BYTES, KV_DISK_HEADER_BYTES};
        part[1] = (struct iovec){bytes + at * disk->block_bytes, disk->block_bytes};
        part[2] = (struct iovec){padding, gap};
        run++;
    }
    int fd = run == 0 ? -1 : disk_segment_fd(disk, first.segment);
    if (fd < 0) {
        return 0;
    }
    off_t offset = (off_t)disk_slot_offset(disk, first.slot);
    ssize_t got = preadv(fd, parts, PARTS * run, offset);
    if (got <= 0) {
        return 0;
    }
    /* The last record of a file has no padding behind it. */
    int32_t whole = (int32_t)(((uint64_t)got + gap) / disk->stride);
    disk_lock(disk);
    disk->counts.read += (uint64_t)whole;
    disk->counts.read_bytes += (uint64_t)whole * disk->stride;
    disk_unlock(disk);
    return whole;
}

bool kv_disk_check(
    const struct kv_disk *disk,
    const struct kv_key *key,
    const uint8_t *header,
    const uint8_t *bytes,
    struct kv_disk_about *about
) {
    struct disk_record_header record;
    uint8_t sum[DISK_CHECKSUM_BYTES];
    struct view view = view_of(header, KV_DISK_HEADER_BYTES);
    if (disk_record_decode(view, disk->block_bytes, &record) != DISK_SLOT_RECORD ||
        !kv_key_equals(&record.key, key) || !disk_record_key_holds(&record)) {
        return false;
    }
    disk_checksum(bytes, disk->block_bytes, sum);
    if (memcmp(sum, record.checksum, sizeof sum) != 0) {
        return false;
    }
    about->parent = record.parent;
    about->lineage = record.lineage;
    about->created_ms = record.created_ms;
    memcpy(about->tokens, record.tokens, sizeof about->tokens);
    return true;
}
