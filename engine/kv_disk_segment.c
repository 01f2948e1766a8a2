/* Segment files: a header, then records of one stride, appended and later destroyed one by one; and
 * their index files, which only save the scan. See kv_disk_internal.h.
 *
 * Where the file system cannot punch holes a destroyed record keeps its space until its whole
 * segment goes, so there the oldest segment goes first (kv_disk.c).
 */
#include "kv_disk_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE       4096
#define SEAL_CHUNK 64 /* index entries copied under the lock at a time */

void disk_segment_name(uint32_t number, bool is_index, char out[DISK_NAME_BYTES]) {
    int length =
        snprintf(out, DISK_NAME_BYTES, "seg-%08x%s", number, is_index ? ".index" : ".data");
    ASSERT(length > 0 && length < DISK_NAME_BYTES);
}

uint64_t disk_slot_offset(const struct kv_disk *disk, uint32_t slot) {
    return DISK_SEGMENT_HEADER + (uint64_t)slot * disk->stride;
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static void uncache(struct kv_disk *disk, uint32_t segment) {
    if (disk->cached == segment && disk->cached_fd >= 0) {
        (void)close(disk->cached_fd);
        disk->cached_fd = -1;
        disk->cached = DISK_NONE;
    }
}

int disk_segment_fd(struct kv_disk *disk, uint32_t segment) {
    if (segment == disk->active && disk->active_fd >= 0) {
        return disk->active_fd;
    }
    if (segment != disk->cached || disk->cached_fd < 0) {
        char name[DISK_NAME_BYTES];
        uncache(disk, disk->cached);
        disk_segment_name(disk->segments[segment].number, false, name);
        disk->cached_fd =
            disk_file_open(disk->fd, name, disk->mode == KV_DISK_WRITER ? O_RDWR : O_RDONLY);
        disk->cached = segment;
    }
    return disk->cached_fd;
}

/* ---- table ---------------------------------------------------------------------------------- */

result disk_segment_reserve(struct disk_segment *segment, uint32_t slots, struct error *error) {
    if (slots <= segment->slot_capacity) {
        return OK;
    }
    uint32_t capacity = segment->slot_capacity < 64 ? 64 : 2 * segment->slot_capacity;
    capacity = capacity < slots ? slots : capacity;
    uint32_t *grown = realloc(segment->by_slot, (size_t)capacity * sizeof(uint32_t));
    if (grown == NULL) {
        FAIL(error, MEMORY, "no memory for %u records of a segment", capacity);
    }
    memset(
        grown + segment->slot_capacity,
        0xFF,
        (size_t)(capacity - segment->slot_capacity) * sizeof(uint32_t)
    );
    segment->by_slot = grown;
    segment->slot_capacity = capacity;
    return OK;
}

static result segment_add(struct kv_disk *disk, uint32_t *out, struct error *error) {
    for (uint32_t i = 0; i < disk->segment_count; i++) {
        if (!disk->segments[i].is_used) {
            *out = i;
            return OK;
        }
    }
    if (disk->segment_count >= DISK_SEGMENTS_MAX) {
        FAIL(error, LIMIT, "%.180s: more than %d segments", disk->folder, DISK_SEGMENTS_MAX);
    }
    if (disk->segment_count == disk->segment_capacity) {
        uint32_t capacity = disk->segment_capacity == 0 ? 16 : 2 * disk->segment_capacity;
        disk_lock(disk); /* lookups mark segments as touched */
        struct disk_segment *grown =
            realloc(disk->segments, capacity * sizeof(struct disk_segment));
        disk->segments = grown != NULL ? grown : disk->segments;
        disk->segment_capacity = grown != NULL ? capacity : disk->segment_capacity;
        disk_unlock(disk);
        if (grown == NULL) {
            FAIL(error, MEMORY, "no memory for %u segments of the disk tier", capacity);
        }
    }
    *out = disk->segment_count++;
    disk->segments[*out] = (struct disk_segment){0};
    return OK;
}

static void segment_forget(struct kv_disk *disk, uint32_t segment) {
    uncache(disk, segment);
    if (segment == disk->active) {
        (void)close(disk->active_fd);
        disk->active_fd = -1;
        disk->active = DISK_NONE;
    }
    free(disk->segments[segment].by_slot);
    disk->segments[segment] = (struct disk_segment){0};
}

/* ---- index files ---------------------------------------------------------------------------- */

static void index_unlink(struct kv_disk *disk, struct disk_segment *segment) {
    if (segment->has_index_file) {
        char name[DISK_NAME_BYTES];
        disk_segment_name(segment->number, true, name);
        (void)unlinkat(disk->fd, name, 0);
        segment->has_index_file = false;
    }
    segment->is_changed = true;
}

static void index_fill(
    struct kv_disk *disk,
    const struct disk_segment *segment,
    uint32_t from,
    uint32_t to,
    uint8_t *out
) {
    disk_lock(disk);
    for (uint32_t slot = from; slot < to; slot++) {
        uint32_t at = segment->by_slot[slot];
        if (at != DISK_NONE) {
            const struct disk_entry *e = &disk->index.entries[at];
            const struct disk_index_entry entry = {
                .key = e->key,
                .parent = e->parent,
                .lineage = disk->lineages[e->lineage].lineage,
                .slot = slot,
                .created_ms = e->created_ms,
                .used_ms = e->used_ms,
            };
            disk_index_entry_encode(&entry, out);
            out += DISK_INDEX_ENTRY;
        }
    }
    disk_unlock(disk);
}

static void index_save(struct kv_disk *disk, struct disk_segment *segment) {
    size_t bytes = DISK_INDEX_HEADER + (size_t)DISK_INDEX_ENTRY * segment->live;
    CLEANUP(free_cleanup) uint8_t *file = malloc(bytes + DISK_CHECKSUM_BYTES);
    if (file == NULL) {
        return; /* the next start scans */
    }
    struct disk_index_header header = {.slots = segment->slots, .count = segment->live};
    memcpy(header.stamp, segment->stamp, sizeof header.stamp);
    disk_index_header_encode(&header, file);
    uint8_t *at = file + DISK_INDEX_HEADER;
    for (uint32_t slot = 0; slot < segment->slots; slot += SEAL_CHUNK) {
        uint32_t to = slot + SEAL_CHUNK < segment->slots ? slot + SEAL_CHUNK : segment->slots;
        index_fill(disk, segment, slot, to, at);
        for (uint32_t i = slot; i < to; i++) { /* only this thread adds or removes */
            at += segment->by_slot[i] != DISK_NONE ? DISK_INDEX_ENTRY : 0;
        }
    }
    ASSERT(at == file + bytes);
    disk_checksum(file, bytes, file + bytes);
    char name[DISK_NAME_BYTES];
    disk_segment_name(segment->number, true, name);
    if (disk_file_replace(disk->fd, name, view_of(file, bytes + DISK_CHECKSUM_BYTES))) {
        segment->has_index_file = true;
        segment->is_changed = false;
        disk_lock(disk);
        segment->is_touched = false; /* what was touched meanwhile may wait for the next time */
        disk->counts.written_bytes += bytes + DISK_CHECKSUM_BYTES;
        disk_unlock(disk);
    }
}

void disk_segments_save(struct kv_disk *disk, bool touched_too) {
    for (uint32_t i = 0; i < disk->segment_count; i++) {
        struct disk_segment *segment = &disk->segments[i];
        disk_lock(disk);
        bool is_touched = touched_too && segment->is_touched;
        disk_unlock(disk);
        if (segment->is_used && !segment->is_renamed && (segment->is_changed || is_touched)) {
            index_save(disk, segment);
        }
    }
}

/* ---- create, seal, destroy ------------------------------------------------------------------ */

static struct disk_file_header header_make(const struct kv_disk *disk, uint32_t number) {
    struct disk_file_header header = {
        .kind = DISK_FILE_SEGMENT,
        .number = number,
        .root = disk->root,
        .block_bytes = disk->block_bytes,
        .stride = disk->stride,
        .created_ms = disk_wall_ms(disk),
    };
    if (getrandom(&header.nonce, sizeof header.nonce, 0) != (ssize_t)sizeof header.nonce) {
        header.nonce = (uint64_t)header.created_ms; /* the number tells them apart as well */
    }
    return header;
}

bool disk_segment_heal(struct kv_disk *disk, uint32_t at) {
    struct disk_segment *segment = &disk->segments[at];
    uint8_t bytes[128];
    ASSERT(disk->mode == KV_DISK_WRITER && segment->is_header_damaged);
    const struct disk_file_header header = header_make(disk, segment->number);
    disk_file_header_encode(&header, bytes);
    int fd = disk_segment_fd(disk, at);
    if (fd < 0 || pwrite(fd, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return false;
    }
    index_unlink(disk, segment);
    segment->is_header_damaged = false;
    segment->is_renamed = false;
    memcpy(segment->stamp, bytes + 112, sizeof segment->stamp);
    return true;
}

result disk_segment_create(struct kv_disk *disk, struct error *error) {
    char name[DISK_NAME_BYTES];
    uint8_t bytes[DISK_SEGMENT_HEADER] = {0};
    ASSERT(disk->active == DISK_NONE);
    const struct disk_file_header header = header_make(disk, disk->number_next);
    disk_file_header_encode(&header, bytes);
    uint32_t at = 0;
    TRY(segment_add(disk, &at, error));
    TRY(disk_segment_reserve(&disk->segments[at], 1, error));
    disk_segment_name(header.number, false, name);
    disk->number_next++;
    int fd = disk_file_open(disk->fd, name, O_RDWR | O_CREAT | O_EXCL);
    errno = fd < 0 ? errno : ENOSPC; /* for a short write */
    if (fd < 0 || pwrite(fd, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        int code = errno;
        if (fd >= 0) {
            (void)close(fd);
            (void)unlinkat(disk->fd, name, 0);
        }
        segment_forget(disk, at);
        FAIL_FOREIGN(
            error, IO, code, "cannot write %.180s/%s: %s", disk->folder, name, strerror(code)
        );
    }
    struct disk_segment *segment = &disk->segments[at];
    segment->is_used = true;
    segment->is_changed = true;
    segment->number = header.number;
    segment->created_ms = header.created_ms;
    memcpy(segment->stamp, bytes + 112, sizeof segment->stamp);
    disk->active = at;
    disk->active_fd = fd;
    disk_lock(disk);
    disk->held_bytes += DISK_SEGMENT_HEADER;
    disk->counts.written_bytes += DISK_SEGMENT_HEADER;
    disk->counts.segments++;
    disk_unlock(disk);
    return OK;
}

void disk_segment_seal(struct kv_disk *disk) {
    if (disk->active == DISK_NONE) {
        return;
    }
    (void)fdatasync(disk->active_fd); /* what got lost is a miss */
    struct disk_segment *segment = &disk->segments[disk->active];
    if (segment->is_changed) {
        index_save(disk, segment);
    }
    (void)close(disk->active_fd);
    disk->active_fd = -1;
    disk->active = DISK_NONE;
}

void disk_segment_delete(struct kv_disk *disk, uint32_t at) {
    struct disk_segment *segment = &disk->segments[at];
    char name[DISK_NAME_BYTES];
    ASSERT(segment->is_used && segment->live == 0);
    index_unlink(disk, segment);
    disk_segment_name(segment->number, false, name);
    (void)unlinkat(disk->fd, name, 0);
    disk_lock(disk);
    disk->held_bytes -= DISK_SEGMENT_HEADER;
    if (!disk->can_punch) {
        disk->held_bytes -= segment->slots * disk->stride;
    }
    disk->counts.segments--;
    disk_unlock(disk);
    segment_forget(disk, at);
}

/* Whether every record that reaches into [from, to) is dead. */
static bool range_is_dead(
    const struct kv_disk *disk, const struct disk_segment *segment, uint64_t from, uint64_t to
) {
    if (from < DISK_SEGMENT_HEADER) {
        return false;
    }
    uint64_t first = (from - DISK_SEGMENT_HEADER) / disk->stride;
    uint64_t last = (to - 1 - DISK_SEGMENT_HEADER) / disk->stride;
    for (uint64_t slot = first; slot <= last && slot < segment->slots; slot++) {
        if (segment->by_slot[slot] != DISK_NONE) {
            return false;
        }
    }
    return true;
}

/* Zeroes the header, so that no scan finds the record again, and frees whole pages of dead records.
 * Failing (a bad disk) leaves bytes that a later start finds and reads at most once more. */
static void record_destroy(struct kv_disk *disk, uint32_t at, uint32_t slot) {
    static const uint8_t zeros[KV_DISK_HEADER_BYTES];
    const struct disk_segment *segment = &disk->segments[at];
    int fd = disk_segment_fd(disk, at);
    if (fd < 0) {
        return;
    }
    uint64_t from = disk_slot_offset(disk, slot);
    uint64_t to = from + disk->stride;
    uint64_t low = from / PAGE * PAGE;
    uint64_t high = (to + PAGE - 1) / PAGE * PAGE;
    low += low < from && !range_is_dead(disk, segment, low, from) ? PAGE : 0;
    high -= high > to && !range_is_dead(disk, segment, to, high) ? PAGE : 0;
    bool has_pages = disk->can_punch && low < high;
    /* The header goes first or with the rest: a record that is offered is whole. */
    if (!has_pages || low > from || high < from + sizeof zeros) {
        ssize_t wrote = pwrite(fd, zeros, sizeof zeros, (off_t)from);
        (void)wrote; /* see above */
    }
    if (has_pages) {
        int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        int punched = fallocate(fd, mode, (off_t)low, (off_t)(high - low));
        (void)punched; /* the space is lost until the segment goes */
    }
}

void disk_segment_kill(struct kv_disk *disk, uint32_t at, uint32_t slot) {
    struct disk_segment *segment = &disk->segments[at];
    ASSERT(disk->mode == KV_DISK_WRITER && segment->by_slot[slot] == DISK_NONE);
    if (segment->live == 0 && at != disk->active) {
        disk_segment_delete(disk, at);
        return;
    }
    index_unlink(disk, segment);
    record_destroy(disk, at, slot);
}

/* ---- load ----------------------------------------------------------------------------------- */

/* Wall times of files: of a clock that was ahead, or no times at all. */
static int64_t time_until(int64_t time_ms, int64_t now) {
    return time_ms < 0 ? 0 : time_ms < now ? time_ms : now;
}

/* *is_filed false: the same key is there already, or nothing can be filed: the slot is dead. */
static result segment_file_record(
    struct kv_disk *disk,
    uint32_t at,
    const struct disk_index_entry *found,
    bool *is_filed,
    struct error *error
) {
    uint32_t lineage = 0;
    *is_filed = false;
    if (disk_index_get(&disk->index, &found->key) != DISK_NONE ||
        !disk_index_admits(&disk->index, &found->key, &found->parent)) {
        return OK;
    }
    result numbered = disk_lineage_number(disk, &found->lineage, &lineage, error);
    if (is_failed(numbered)) {
        return numbered.code == RESULT_LIMIT ? OK : numbered;
    }
    TRY(disk_index_reserve(&disk->index, error));
    int64_t now = disk->wall_open_ms;
    int64_t used = found->used_ms > found->created_ms ? found->used_ms : found->created_ms;
    const struct disk_entry entry = {
        .key = found->key,
        .parent = found->parent,
        .created_ms = time_until(found->created_ms, now),
        .used_ms = time_until(used, now),
        .lineage = lineage,
        .segment = at,
        .slot = found->slot,
    };
    disk->segments[at].by_slot[found->slot] = disk_index_insert(&disk->index, &entry);
    disk->segments[at].live++;
    *is_filed = true;
    return OK;
}

/* *out: what is there, shorter at the end of the file. What the device does not give is not damage:
 * nothing is destroyed for it. */
static result read_head(
    struct kv_disk *disk,
    uint32_t at,
    uint8_t *bytes,
    size_t count,
    uint64_t offset,
    struct view *out,
    struct error *error
) {
    int fd = disk_segment_fd(disk, at);
    ssize_t got = -1;
    do {
        got = pread(fd, bytes, count, (off_t)offset);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        int code = errno;
        char name[DISK_NAME_BYTES];
        disk_segment_name(disk->segments[at].number, false, name);
        FAIL_FOREIGN(
            error, IO, code, "cannot read %.180s/%s: %s", disk->folder, name, strerror(code)
        );
    }
    *out = view_of(bytes, (size_t)got);
    return OK;
}

/* *is_dead: there is something, and it is not filed. */
static result scan_slot(
    struct kv_disk *disk,
    uint32_t at,
    uint32_t slot,
    uint64_t file_bytes,
    bool *is_dead,
    struct error *error
) {
    uint8_t bytes[KV_DISK_HEADER_BYTES];
    uint64_t offset = disk_slot_offset(disk, slot);
    struct disk_record_header record;
    struct view read;
    TRY(read_head(disk, at, bytes, sizeof bytes, offset, &read, error));
    enum disk_slot state = disk_record_decode(read, disk->block_bytes, &record);
    if (state == DISK_SLOT_RECORD &&
        (file_bytes - offset < KV_DISK_HEADER_BYTES + (uint64_t)disk->block_bytes ||
         !disk_index_admits(&disk->index, &record.key, &record.parent))) {
        state = DISK_SLOT_DAMAGED; /* torn behind its header, or no block can be named so */
    }
    bool is_filed = false;
    if (state == DISK_SLOT_RECORD) {
        const struct disk_index_entry entry = {
            .key = record.key,
            .parent = record.parent,
            .lineage = record.lineage,
            .slot = slot,
            .created_ms = record.created_ms,
            .used_ms = record.created_ms,
        };
        TRY(segment_file_record(disk, at, &entry, &is_filed, error));
    }
    disk->counts.damaged_found += state == DISK_SLOT_DAMAGED ? 1 : 0;
    *is_dead = !is_filed && state != DISK_SLOT_HOLE;
    return OK;
}

/* Destroys what is dead after all of it was seen: a page goes when all of its records are dead, and
 * what was not scanned yet looks so. */
static result segment_scan(
    struct kv_disk *disk, uint32_t at, uint32_t from, uint64_t file_bytes, struct error *error
) {
    struct disk_segment *segment = &disk->segments[at];
    CLEANUP(free_cleanup) bool *dead = calloc((size_t)segment->slots + 1, sizeof *dead);
    if (dead == NULL) {
        FAIL(error, MEMORY, "no memory to scan %u records of a segment", segment->slots);
    }
    for (uint32_t slot = from; slot < segment->slots; slot++) {
        TRY(scan_slot(disk, at, slot, file_bytes, &dead[slot], error));
    }
    for (uint32_t slot = from; slot < segment->slots; slot++) {
        if (dead[slot] && disk->mode == KV_DISK_WRITER && !disk->keep_damaged) {
            index_unlink(disk, segment);
            record_destroy(disk, at, slot);
        }
    }
    return OK;
}

static void unfile_records(struct kv_disk *disk, struct disk_segment *segment) {
    for (uint32_t slot = 0; slot < segment->slots; slot++) {
        if (segment->by_slot[slot] != DISK_NONE) {
            disk_index_remove(&disk->index, segment->by_slot[slot]);
            segment->by_slot[slot] = DISK_NONE;
            segment->live--;
        }
    }
    ASSERT(segment->live == 0);
}

/* *slots: how many the index file told about; 0 when it is missing, stale or damaged, or names a
 * block that cannot be there: then nothing in it is believed, and a scan sees what is there. */
static result
segment_load_index(struct kv_disk *disk, uint32_t at, uint32_t *slots, struct error *error) {
    struct disk_segment *segment = &disk->segments[at];
    char name[DISK_NAME_BYTES];
    CLEANUP(buffer_deinit) struct buffer file = {0};
    struct disk_index_header header;
    size_t ceiling =
        DISK_INDEX_HEADER + (size_t)DISK_INDEX_ENTRY * DISK_SEGMENT_SLOTS_MAX + DISK_CHECKSUM_BYTES;
    disk_segment_name(segment->number, true, name);
    *slots = 0;
    if (segment->is_renamed || !disk_file_load(disk->fd, name, ceiling, &file) ||
        !disk_index_check(buffer_view(&file), &header) || header.slots > segment->slots ||
        memcmp(header.stamp, segment->stamp, sizeof header.stamp) != 0) {
        return OK;
    }
    segment->has_index_file = true;
    for (uint32_t i = 0; i < header.count; i++) {
        struct disk_index_entry entry;
        bool is_filed = false;
        disk_index_entry_get(buffer_view(&file), i, &entry);
        TRY(segment_file_record(disk, at, &entry, &is_filed, error));
        if (!is_filed) {
            unfile_records(disk, segment);
            return OK;
        }
    }
    *slots = header.slots;
    segment->is_changed = header.slots != segment->slots;
    return OK;
}

/* Whether the file is a segment of this folder; false: left alone. A damaged header does not matter,
 * since every record tells what it is. */
static result
segment_read_header(struct kv_disk *disk, uint32_t at, bool *is_ours, struct error *error) {
    struct disk_segment *segment = &disk->segments[at];
    char name[DISK_NAME_BYTES];
    uint8_t bytes[128];
    struct disk_file_header header;
    disk_segment_name(segment->number, false, name);
    struct view read;
    TRY(read_head(disk, at, bytes, sizeof bytes, 0, &read, error));
    *is_ours = true;
    segment->is_renamed = true;
    if (!disk_file_header_decode(read, &header)) {
        disk->counts.damaged_found++;
        segment->is_header_damaged = true;
        return OK;
    }
    if (header.version != DISK_FORMAT) {
        FAIL(
            error,
            UNSUPPORTED,
            "%.180s/%s has format %u; this program reads %u",
            disk->folder,
            name,
            header.version,
            DISK_FORMAT
        );
    }
    *is_ours = header.kind == DISK_FILE_SEGMENT && kv_lineage_equals(&header.root, &disk->root) &&
               header.block_bytes == disk->block_bytes;
    segment->is_renamed = header.number != segment->number;
    segment->created_ms = header.created_ms;
    memcpy(segment->stamp, header.stamp, sizeof segment->stamp);
    return OK;
}

static result segment_load(struct kv_disk *disk, uint32_t number, struct error *error) {
    uint32_t at = 0;
    result added = segment_add(disk, &at, error);
    if (added.code == RESULT_LIMIT) {
        disk->counts.refused_files++;
        return OK;
    }
    TRY(added);
    disk->segments[at] = (struct disk_segment){.is_used = true, .number = number};
    struct disk_segment *segment = &disk->segments[at];
    struct stat about;
    bool is_ours = false;
    int fd = disk_segment_fd(disk, at);
    if (fd >= 0 && fstat(fd, &about) == 0) {
        TRY(segment_read_header(disk, at, &is_ours, error));
    }
    if (!is_ours) {
        disk->counts.refused_files++;
        segment_forget(disk, at);
        return OK;
    }
    uint64_t bytes =
        about.st_size > DISK_SEGMENT_HEADER ? (uint64_t)about.st_size - DISK_SEGMENT_HEADER : 0;
    uint64_t slots = (bytes + disk->stride - 1) / disk->stride;
    segment->slots = (uint32_t)(slots < DISK_SEGMENT_SLOTS_MAX ? slots : DISK_SEGMENT_SLOTS_MAX);
    segment->is_changed = true;
    TRY(disk_segment_reserve(segment, segment->slots, error));
    uint32_t from = 0;
    TRY(segment_load_index(disk, at, &from, error));
    TRY(segment_scan(disk, at, from, (uint64_t)about.st_size, error));
    disk->held_bytes += DISK_SEGMENT_HEADER;
    disk->held_bytes += (disk->can_punch ? segment->live : segment->slots) * disk->stride;
    disk->counts.segments++;
    uncache(disk, at);
    if (segment->live == 0 && disk->mode == KV_DISK_WRITER && !disk->keep_damaged) {
        disk_segment_delete(disk, at);
    }
    return OK;
}

static bool name_parse(const char *name, uint32_t *number) {
    char again[DISK_NAME_BYTES];
    if (strlen(name) != strlen("seg-00000000.data") || strncmp(name, "seg-", 4) != 0) {
        return false;
    }
    char digits[9] = {0};
    memcpy(digits, name + 4, 8);
    *number = (uint32_t)strtoul(digits, NULL, 16);
    disk_segment_name(*number, false, again);
    return strcmp(again, name) == 0;
}

static int compare_numbers(const void *a, const void *b) {
    uint32_t left;
    uint32_t right;
    memcpy(&left, a, sizeof left);
    memcpy(&right, b, sizeof right);
    return left < right ? -1 : left > right;
}

/* Numbers of all segment files, ascending; leftovers of a crash are removed. */
static result
list_numbers(struct kv_disk *disk, uint32_t **numbers, size_t *count, struct error *error) {
    int fd = openat(disk->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        int code = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        FAIL_FOREIGN(error, IO, code, "cannot list %.180s: %s", disk->folder, strerror(code));
    }
    CLEANUP(free_cleanup) uint32_t *found = malloc(sizeof(uint32_t) * (DISK_SEGMENTS_MAX + 1));
    size_t held = 0;
    for (struct dirent *entry = readdir(folder); entry != NULL && found != NULL;
         entry = readdir(folder)) {
        uint32_t number = 0;
        struct view name = view_of_text(entry->d_name);
        if (name_parse(entry->d_name, &number)) {
            disk->number_next = number >= disk->number_next && number < UINT32_MAX - 1
                                    ? number + 1
                                    : disk->number_next;
            if (held < DISK_SEGMENTS_MAX) {
                found[held++] = number;
            } else {
                disk->counts.refused_files++;
            }
        } else if (disk->mode == KV_DISK_WRITER && view_ends_with(name, view_of_text(".tmp"))) {
            (void)unlinkat(disk->fd, entry->d_name, 0);
        }
    }
    (void)closedir(folder);
    if (found == NULL) {
        FAIL(error, MEMORY, "no memory to list %.180s", disk->folder);
    }
    qsort(found, held, sizeof *found, compare_numbers);
    *numbers = TAKE(found);
    *count = held;
    return OK;
}

result disk_segments_load(struct kv_disk *disk, struct error *error) {
    CLEANUP(free_cleanup) uint32_t *numbers = NULL;
    size_t count = 0;
    TRY(list_numbers(disk, &numbers, &count, error));
    for (size_t i = 0; i < count; i++) {
        TRY(segment_load(disk, numbers[i], error));
    }
    /* The last one is gone on with when it is what its name says and not full. */
    uint32_t last = DISK_NONE;
    for (uint32_t i = 0; i < disk->segment_count; i++) {
        if (disk->segments[i].is_used &&
            (last == DISK_NONE || disk->segments[i].number > disk->segments[last].number)) {
            last = i;
        }
    }
    if (disk->mode != KV_DISK_WRITER || last == DISK_NONE || disk->segments[last].is_renamed ||
        disk->segments[last].slots >= disk->slots_per_segment) {
        return OK;
    }
    char name[DISK_NAME_BYTES];
    disk_segment_name(disk->segments[last].number, false, name);
    disk->active_fd = disk_file_open(disk->fd, name, O_RDWR);
    disk->active = disk->active_fd >= 0 ? last : DISK_NONE;
    return OK;
}
