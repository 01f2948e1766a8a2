/* Lookups, writing, reading and removing. What each thread may touch is in kv_disk.h; the files are
 * in kv_disk_segment.c. */
#include "kv_disk_internal.h"

#include <errno.h>
#include <sys/uio.h>
#include <unistd.h>

#define SAVE_EVERY_MS         ((int64_t)60 * 1000)      /* index files of changed segments */
#define SAVE_TOUCHED_EVERY_MS ((int64_t)3600 * 1000)    /* those where only times changed */
#define ADVANCE_LATEST_MS     ((int64_t)60 * 60 * 1000) /* a clock may jump meanwhile */

/* ---- lookups -------------------------------------------------------------------------------- */

bool kv_disk_has(struct kv_disk *disk, const struct kv_key *key) {
    disk_lock(disk);
    bool is_there = !disk->is_off && disk_index_get(&disk->index, key) != DISK_NONE;
    disk_unlock(disk);
    return is_there;
}

int32_t kv_disk_find(
    struct kv_disk *disk, const struct kv_key *keys, int32_t count, enum kv_prefix_miss *why
) {
    int32_t found = 0;
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    disk_lock(disk);
    while (found < count && !disk->is_off && disk_index_get(&disk->index, &keys[found]) != DISK_NONE
    ) {
        found++;
    }
    if (found < count) {
        bool is_indexed = disk_index_get(&disk->index, &keys[found]) != DISK_NONE;
        miss = is_indexed ? KV_PREFIX_MISS_NOT_READ : disk_index_reason(&disk->index, &keys[found]);
    }
    disk_unlock(disk);
    if (why != NULL) {
        *why = miss;
    }
    return found;
}

int32_t kv_disk_lineages(
    struct kv_disk *disk, const struct kv_key *parent, struct kv_lineage *out, int32_t capacity
) {
    int32_t count = 0;
    int32_t seen = 0;
    disk_lock(disk);
    uint32_t child = disk->is_off ? DISK_NONE : disk_index_child(&disk->index, parent);
    while (child != DISK_NONE && seen++ < KV_PREFIX_SIBLINGS_SCANNED) {
        uint32_t number = disk->index.entries[child].lineage;
        const struct kv_lineage *lineage = &disk->lineages[number].lineage;
        bool is_new = disk_lineage_is_known(disk, number);
        for (int32_t i = 0; i < count && is_new; i++) {
            is_new = !kv_lineage_equals(&out[i], lineage);
        }
        if (is_new && count < capacity) {
            out[count++] = *lineage;
        }
        child = disk_index_sibling(&disk->index, child, parent);
    }
    disk_unlock(disk);
    return count;
}

/* Under the lock. */
static void touch(struct kv_disk *disk, uint32_t entry) {
    disk_index_touch(&disk->index, entry, disk_wall_ms(disk));
    disk->segments[disk->index.entries[entry].segment].is_touched = true;
}

void kv_disk_touch(struct kv_disk *disk, const struct kv_key *keys, int32_t count) {
    disk_lock(disk);
    for (int32_t i = 0; i < count; i++) {
        uint32_t entry = disk_index_get(&disk->index, &keys[i]);
        if (entry != DISK_NONE) {
            touch(disk, entry);
        }
    }
    disk_unlock(disk);
}

int64_t kv_disk_room(struct kv_disk *disk) {
    disk_lock(disk);
    uint64_t sum = disk_hour_sum(disk);
    bool is_off = disk->is_write_off || disk->mode != KV_DISK_WRITER;
    disk_unlock(disk);
    return is_off || sum >= disk->hour_max ? 0 : (int64_t)((disk->hour_max - sum) / disk->stride);
}

uint64_t kv_disk_bytes(struct kv_disk *disk, uint64_t *bytes_max) {
    disk_lock(disk);
    uint64_t bytes = disk->held_bytes;
    *bytes_max = disk->bytes_max;
    disk_unlock(disk);
    return bytes;
}

void kv_disk_trouble(struct kv_disk *disk, struct error *out) {
    disk_lock(disk);
    *out = disk->trouble;
    disk_unlock(disk);
}

void kv_disk_count(struct kv_disk *disk, struct kv_disk_counts *out) {
    disk_lock(disk);
    *out = disk->counts;
    out->blocks = disk->index.count;
    out->bytes = disk->held_bytes;
    out->bytes_max = disk->bytes_max;
    out->is_readable = !disk->is_off;
    out->index_bytes = disk_index_bytes(&disk->index);
    out->hour_bytes = (int64_t)disk_hour_sum(disk);
    int64_t jump = disk_wall_ms(disk) - disk_steady_ms(disk);
    out->jump_ms = jump > out->jump_ms ? jump : out->jump_ms;
    out->oldest_ms = 0;
    out->used_ms = 0;
    for (uint32_t i = 0; i < disk->index.high; i++) {
        const struct disk_entry *e = &disk->index.entries[i];
        if (e->segment != DISK_NONE) {
            out->oldest_ms = out->oldest_ms == 0 || e->created_ms < out->oldest_ms ? e->created_ms
                                                                                   : out->oldest_ms;
            out->used_ms = e->used_ms > out->used_ms ? e->used_ms : out->used_ms;
        }
    }
    disk_unlock(disk);
}

void disk_end(struct kv_disk *disk, bool everything, const struct error *why) {
    disk_lock(disk);
    if (disk->trouble.code == RESULT_OK) {
        disk->trouble = *why;
    }
    disk->is_write_off = true;
    disk->is_off = disk->is_off || everything;
    disk_unlock(disk);
}

/* ---- removing ------------------------------------------------------------------------------- */

void disk_remove(struct kv_disk *disk, uint32_t entry, enum kv_prefix_miss reason) {
    disk_lock(disk);
    struct disk_entry *e = &disk->index.entries[entry];
    struct disk_segment *segment = &disk->segments[e->segment];
    ASSERT(segment->is_used && segment->by_slot[e->slot] == entry);
    segment->by_slot[e->slot] = DISK_NONE;
    segment->live--;
    segment->is_changed = true;
    disk_index_forget(&disk->index, e->key.bytes, reason);
    disk_index_remove(&disk->index, entry);
    if (disk->can_punch) {
        disk->held_bytes -= disk->stride;
    }
    disk->counts.evicted += reason == KV_PREFIX_MISS_EVICTED ? 1 : 0;
    disk->counts.expired += reason == KV_PREFIX_MISS_EXPIRED ? 1 : 0;
    disk->counts.damaged += reason == KV_PREFIX_MISS_DAMAGED ? 1 : 0;
    disk_unlock(disk);
}

static void remove_and_kill(struct kv_disk *disk, uint32_t entry, enum kv_prefix_miss reason) {
    uint32_t segment = disk->index.entries[entry].segment;
    uint32_t slot = disk->index.entries[entry].slot;
    disk_remove(disk, entry, reason);
    disk_segment_kill(disk, segment, slot);
}

void kv_disk_quarantine(struct kv_disk *disk, const struct kv_key *key) {
    disk_lock(disk);
    uint32_t entry = disk_index_get(&disk->index, key);
    disk_unlock(disk);
    if (entry != DISK_NONE && disk->mode == KV_DISK_WRITER) {
        remove_and_kill(disk, entry, KV_PREFIX_MISS_DAMAGED);
    }
}

static uint32_t oldest_segment(const struct kv_disk *disk) {
    uint32_t oldest = DISK_NONE;
    for (uint32_t i = 0; i < disk->segment_count; i++) {
        if (disk->segments[i].is_used &&
            (oldest == DISK_NONE || disk->segments[i].number < disk->segments[oldest].number)) {
            oldest = i;
        }
    }
    return oldest;
}

/* Trunks and all: where no holes can be punched, or too many segments hold a little each. */
static bool drop_oldest_segment(struct kv_disk *disk) {
    uint32_t at = oldest_segment(disk);
    if (at == DISK_NONE) {
        return false;
    }
    if (at == disk->active) {
        disk_segment_seal(disk);
    }
    for (uint32_t slot = 0; slot < disk->segments[at].slots; slot++) {
        uint32_t entry = disk->segments[at].by_slot[slot];
        if (entry != DISK_NONE) {
            disk_remove(disk, entry, KV_PREFIX_MISS_EVICTED);
        }
    }
    disk_segment_delete(disk, at);
    return true;
}

/* One step towards fewer bytes; false: nothing can go. */
static bool evict_some(struct kv_disk *disk, const struct kv_key *keep) {
    if (!disk->can_punch) {
        return drop_oldest_segment(disk);
    }
    disk_lock(disk);
    uint32_t victim = disk_index_victim(&disk->index);
    bool is_kept = victim != DISK_NONE && keep != NULL &&
                   kv_key_equals(&disk->index.entries[victim].key, keep);
    disk_unlock(disk);
    if (victim == DISK_NONE || is_kept) {
        return false;
    }
    remove_and_kill(disk, victim, KV_PREFIX_MISS_EVICTED);
    return true;
}

/* Segments that hold nothing alive cost a page each. */
static bool make_room(struct kv_disk *disk, uint64_t bytes, const struct kv_key *keep) {
    if (bytes > disk->bytes_max) {
        return false;
    }
    for (int i = 0; disk->held_bytes + bytes > disk->bytes_max; i++) {
        if (i == KV_DISK_REMOVED_PER_CALL || !evict_some(disk, keep)) {
            return false;
        }
    }
    return true;
}

static void note_jump(struct kv_disk *disk) {
    int64_t jump = disk_wall_ms(disk) - disk_steady_ms(disk);
    disk_lock(disk);
    disk->counts.jump_ms = jump > disk->counts.jump_ms ? jump : disk->counts.jump_ms;
    disk_unlock(disk);
}

int64_t kv_disk_advance(struct kv_disk *disk) {
    ASSERT(disk->mode == KV_DISK_WRITER);
    note_jump(disk);
    if (disk->is_off) {
        return ADVANCE_LATEST_MS;
    }
    int64_t limit = disk_wall_ms(disk) - disk->lifetime_ms;
    int removed = 0;
    for (; removed < KV_DISK_REMOVED_PER_CALL; removed++) {
        disk_lock(disk);
        uint32_t stale = disk_index_stale(&disk->index, limit);
        disk_unlock(disk);
        if (stale == DISK_NONE) {
            break;
        }
        remove_and_kill(disk, stale, KV_PREFIX_MISS_EXPIRED);
    }
    for (; removed < KV_DISK_REMOVED_PER_CALL && disk->held_bytes > disk->bytes_max; removed++) {
        if (!evict_some(disk, NULL)) {
            break;
        }
    }
    disk->is_state_changed = disk->is_state_changed || removed > 0;
    if (removed == KV_DISK_REMOVED_PER_CALL) {
        return 0;
    }
    disk_lock(disk);
    int64_t oldest = disk_index_oldest(&disk->index);
    disk_unlock(disk);
    int64_t age = disk_wall_ms(disk) - oldest; /* of nothing: far below 0 */
    int64_t left = disk->lifetime_ms - (age < 0 ? 0 : age) + 1;
    return left < ADVANCE_LATEST_MS ? left : ADVANCE_LATEST_MS;
}

int64_t kv_disk_drop(struct kv_disk *disk, int64_t count) {
    ASSERT(disk->mode == KV_DISK_WRITER);
    int64_t before = disk->index.count;
    for (int64_t i = 0; count == 0 || i < count; i++) {
        disk_lock(disk);
        uint32_t victim = disk_index_victim(&disk->index);
        disk_unlock(disk);
        if (victim == DISK_NONE) {
            break;
        }
        remove_and_kill(disk, victim, KV_PREFIX_MISS_EVICTED);
    }
    disk->is_state_changed = true;
    return before - disk->index.count;
}

void kv_disk_sync(struct kv_disk *disk) {
    ASSERT(disk->mode == KV_DISK_WRITER);
    if (disk->is_off) {
        return;
    }
    int64_t now = disk_steady_ms(disk);
    if (disk->active_fd >= 0) {
        (void)fdatasync(disk->active_fd); /* what got lost is a miss */
    }
    if (now - disk->saved_ms < SAVE_EVERY_MS) {
        return;
    }
    bool touched_too = now - disk->touched_saved_ms >= SAVE_TOUCHED_EVERY_MS;
    disk_segments_save(disk, touched_too);
    disk->saved_ms = now;
    disk->touched_saved_ms = touched_too ? now : disk->touched_saved_ms;
    if (disk->is_state_changed) {
        disk_state_save(disk);
    }
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Decides before anything is written. */
static result write_decide(
    struct kv_disk *disk,
    const struct kv_tier_record *record,
    uint32_t *lineage,
    enum kv_disk_outcome *outcome,
    struct error *error
) {
    *outcome = KV_DISK_WRITTEN;
    if (disk->is_write_off) {
        *outcome = KV_DISK_OFF;
        return OK;
    }
    if (disk_index_get(&disk->index, &record->key) != DISK_NONE) {
        disk->counts.present++;
        *outcome = KV_DISK_PRESENT;
        return OK;
    }
    if (disk_hour_sum(disk) + disk->stride > disk->hour_max) {
        disk->counts.over_budget++;
        *outcome = KV_DISK_OVER_BUDGET;
        return OK;
    }
    *lineage = disk_lineage_find(disk, &record->lineage);
    if (*lineage == DISK_NONE || !disk_lineage_is_known(disk, *lineage)) {
        FAIL(error, INVALID_INPUT, "a block of a lineage that was not noted before");
    }
    uint32_t parent = disk_index_get(&disk->index, &record->parent);
    if (parent != DISK_NONE) { /* not to be removed in favour of its child */
        touch(disk, parent);
    }
    return disk_index_reserve(&disk->index, error);
}

static bool write_whole(int fd, struct iovec *parts, int count, uint64_t offset, int *code) {
    while (count > 0) {
        ssize_t wrote = pwritev(fd, parts, count, (off_t)offset);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            *code = wrote < 0 ? errno : ENOSPC;
            return false;
        }
        offset += (uint64_t)wrote;
        size_t left = (size_t)wrote;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (uint8_t *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    return true;
}

static result write_record(
    struct kv_disk *disk, const struct kv_tier_record *record, int64_t now, struct error *error
) {
    uint8_t header[KV_DISK_HEADER_BYTES];
    struct disk_record_header about = {
        .key = record->key,
        .parent = record->parent,
        .lineage = record->lineage,
        .block_bytes = disk->block_bytes,
        .created_ms = now,
    };
    memcpy(about.tokens, record->tokens, sizeof about.tokens);
    disk_checksum(record->bytes, disk->block_bytes, about.checksum);
    ASSERT(disk_record_key_holds(&about));
    disk_record_encode(&about, header);
    /* One copy, since iovec takes no const; the padding stays zero. */
    memcpy(disk->scratch, header, sizeof header);
    memcpy(disk->scratch + sizeof header, record->bytes, disk->block_bytes);
    struct disk_segment *segment = &disk->segments[disk->active];
    struct iovec part = {disk->scratch, (size_t)disk->stride};
    uint64_t offset = disk_slot_offset(disk, segment->slots);
    int code = 0;
    if (!write_whole(disk->active_fd, &part, 1, offset, &code)) {
        int cut = ftruncate(disk->active_fd, (off_t)offset);
        (void)cut; /* else the next start finds a torn record */
        FAIL_FOREIGN(
            error,
            IO,
            code,
            "cannot write to the cache %.180s: %s; nothing more is written there",
            disk->folder,
            strerror(code)
        );
    }
    return OK;
}

static void write_file(
    struct kv_disk *disk, const struct kv_tier_record *record, uint32_t lineage, int64_t now
) {
    struct disk_segment *segment = &disk->segments[disk->active];
    const struct disk_entry entry = {
        .key = record->key,
        .parent = record->parent,
        .created_ms = now,
        .used_ms = now,
        .lineage = lineage,
        .segment = disk->active,
        .slot = segment->slots,
    };
    disk_lock(disk);
    segment->by_slot[segment->slots] = disk_index_insert(&disk->index, &entry);
    segment->slots++;
    segment->live++;
    segment->is_changed = true;
    disk->held_bytes += disk->stride;
    disk->counts.written++;
    disk->counts.written_bytes += disk->stride;
    disk_hour_charge(disk, disk_steady_ms(disk), disk->stride);
    disk_unlock(disk);
    disk->is_state_changed = true;
}

static bool needs_segment(const struct kv_disk *disk) {
    return disk->active == DISK_NONE ||
           disk->segments[disk->active].slots >= disk->slots_per_segment;
}

static result write_inside(
    struct kv_disk *disk, const struct kv_tier_record *record, int64_t now, struct error *error
) {
    if (needs_segment(disk)) {
        disk_segment_seal(disk);
        if (disk->counts.segments >= DISK_SEGMENTS_MAX) {
            (void)drop_oldest_segment(disk);
        }
        TRY(disk_segment_create(disk, error));
    }
    struct disk_segment *segment = &disk->segments[disk->active];
    TRY(disk_segment_reserve(segment, segment->slots + 1, error));
    return write_record(disk, record, now, error);
}

result kv_disk_write(
    struct kv_disk *disk,
    const struct kv_tier_record *record,
    enum kv_disk_outcome *outcome,
    struct error *error
) {
    ASSERT(disk->mode == KV_DISK_WRITER);
    uint32_t lineage = 0;
    disk_lock(disk);
    result decided = write_decide(disk, record, &lineage, outcome, error);
    disk_unlock(disk);
    if (is_failed(decided) || *outcome != KV_DISK_WRITTEN) {
        return decided;
    }
    /* This key is what it says; so one of a ring that it would close is not. Any will do. */
    disk_lock(disk);
    uint32_t ring = disk_index_ring(&disk->index, &record->key, &record->parent);
    disk_unlock(disk);
    if (ring != DISK_NONE) {
        remove_and_kill(disk, ring, KV_PREFIX_MISS_DAMAGED);
    }
    uint64_t bytes = disk->stride + (needs_segment(disk) ? DISK_SEGMENT_HEADER : 0);
    if (!make_room(disk, bytes, &record->parent)) {
        disk_lock(disk);
        disk->counts.no_room++;
        disk_unlock(disk);
        *outcome = KV_DISK_NO_ROOM;
        return OK;
    }
    int64_t now = disk_wall_ms(disk);
    struct error why;
    result wrote = write_inside(disk, record, now, &why);
    if (is_failed(wrote)) {
        if (wrote.code != RESULT_MEMORY) {
            disk_end(disk, false, &why);
            *outcome = KV_DISK_OFF;
        }
        if (error != NULL) {
            *error = why;
        }
        return wrote;
    }
    write_file(disk, record, lineage, now);
    return OK;
}

/* ---- reading -------------------------------------------------------------------------------- */

bool disk_slot_read(
    struct kv_disk *disk,
    uint32_t segment,
    uint32_t slot,
    uint8_t *bytes,
    struct disk_record_header *header,
    enum disk_slot *state
) {
    uint8_t head[KV_DISK_HEADER_BYTES];
    uint8_t sum[DISK_CHECKSUM_BYTES];
    int fd = disk_segment_fd(disk, segment);
    if (fd < 0) {
        return false;
    }
    struct iovec parts[] = {{head, sizeof head}, {bytes, disk->block_bytes}};
    uint64_t offset = disk_slot_offset(disk, slot);
    size_t wanted = sizeof head + disk->block_bytes;
    ssize_t count = preadv(fd, parts, 2, (off_t)offset);
    while (count < 0 && errno == EINTR) {
        count = preadv(fd, parts, 2, (off_t)offset);
    }
    if (count < 0) {
        return false;
    }
    /* A regular file gives all that is there, so a short read is its end. */
    size_t got = (size_t)count;
    *state = disk_record_decode(
        view_of(head, got < sizeof head ? got : sizeof head), disk->block_bytes, header
    );
    if (*state == DISK_SLOT_RECORD) {
        disk_checksum(bytes, disk->block_bytes, sum);
        if (got != wanted || memcmp(sum, header->checksum, sizeof sum) != 0 ||
            !disk_record_key_holds(header)) {
            *state = DISK_SLOT_DAMAGED;
        }
    }
    return true;
}

/* Out of something that comes back; says nothing about the file. */
static bool is_passing(int code) {
    return code == EMFILE || code == ENFILE || code == ENOMEM || code == EAGAIN;
}

static result
read_failed(struct kv_disk *disk, const struct kv_key *key, int code, struct error *error) {
    struct error why;
    if (code == ENOENT || code == ELOOP) {
        kv_disk_quarantine(disk, key);
        FAIL_FOREIGN(error, CORRUPT, code, "%.180s: a segment is gone", disk->folder);
    }
    result failed = error_set(
        &why,
        RESULT_IO,
        code,
        __FILE__,
        __LINE__,
        "cannot read from the cache %.180s: %s",
        disk->folder,
        strerror(code)
    );
    if (!is_passing(code)) {
        disk_end(disk, true, &why);
    }
    if (error != NULL) {
        *error = why;
    }
    return failed;
}

static result read_damaged(
    struct kv_disk *disk, const struct kv_key *key, uint32_t at, uint32_t slot, struct error *error
) {
    char name[DISK_NAME_BYTES];
    disk_segment_name(disk->segments[at].number, false, name);
    kv_disk_quarantine(disk, key);
    FAIL(error, CORRUPT, "%.180s/%s: record %u is damaged", disk->folder, name, slot);
}

result kv_disk_read(
    struct kv_disk *disk,
    const struct kv_key *key,
    uint8_t *bytes,
    struct kv_disk_about *about,
    struct error *error
) {
    disk_lock(disk);
    uint32_t at = disk->is_off ? DISK_NONE : disk_index_get(&disk->index, key);
    struct disk_entry entry = {0};
    if (at != DISK_NONE) {
        entry = disk->index.entries[at];
    }
    disk_unlock(disk);
    if (at == DISK_NONE) {
        FAIL(error, NOT_FOUND, "a block is not in the disk tier");
    }
    struct disk_record_header header;
    enum disk_slot state = DISK_SLOT_DAMAGED;
    if (!disk_slot_read(disk, entry.segment, entry.slot, bytes, &header, &state)) {
        int code = errno;
        return read_failed(disk, key, code, error);
    }
    if (state != DISK_SLOT_RECORD || !kv_key_equals(&header.key, key)) {
        return read_damaged(disk, key, entry.segment, entry.slot, error);
    }
    disk_lock(disk);
    touch(disk, at); /* only this thread removes: it is there */
    disk->counts.read++;
    disk->counts.read_bytes += disk->stride;
    disk_unlock(disk);
    about->parent = header.parent;
    about->lineage = header.lineage;
    about->created_ms = header.created_ms;
    memcpy(about->tokens, header.tokens, sizeof about->tokens);
    return OK;
}
