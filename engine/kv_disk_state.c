/* What a run leaves to the next beside the blocks: derivations of lineages (before the first block
 * that needs them), bytes written per minute of the last hour, keys that were removed and why.
 * All of it may be lost or damaged: then less is known. See kv_disk_internal.h. */
#include "kv_disk_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINEAGES_NAME "lineages"
#define STATE_NAME    "state"
#define STATE_MAGIC   "HearthKS"
#define STATE_HEADER  64
#define STATE_MINUTE  16
#define STATE_GHOST   20
#define STATE_BYTES_MAX                                                                            \
    (STATE_HEADER + DISK_MINUTES * STATE_MINUTE + DISK_GHOSTS_MAX * STATE_GHOST + 16)
#define MINUTE_MS 60000

/* ---- lineages ------------------------------------------------------------------------------- */

static uint32_t *lineage_head(struct kv_disk *disk, const struct kv_lineage *lineage) {
    return &disk->lineage_heads
                [(lineage->bytes[0] | (uint32_t)lineage->bytes[1] << 8) %
                 COUNT_OF(disk->lineage_heads)];
}

uint32_t disk_lineage_find(const struct kv_disk *disk, const struct kv_lineage *lineage) {
    uint32_t head =
        (lineage->bytes[0] | (uint32_t)lineage->bytes[1] << 8) % COUNT_OF(disk->lineage_heads);
    uint32_t at = disk->lineage_count == 0 ? DISK_NONE : disk->lineage_heads[head];
    while (at != DISK_NONE && !kv_lineage_equals(&disk->lineages[at].lineage, lineage)) {
        at = disk->lineages[at].next;
    }
    return at;
}

result disk_lineage_number(
    struct kv_disk *disk, const struct kv_lineage *lineage, uint32_t *out, struct error *error
) {
    uint32_t at = disk_lineage_find(disk, lineage);
    if (at != DISK_NONE) {
        *out = at;
        return OK;
    }
    if (disk->lineage_count >= DISK_LINEAGES_MAX) {
        FAIL(error, LIMIT, "the disk tier knows %u lineages already", disk->lineage_count);
    }
    if (disk->lineage_count == disk->lineage_capacity) {
        uint32_t capacity = disk->lineage_capacity == 0 ? 16 : 2 * disk->lineage_capacity;
        struct disk_lineage_slot *grown =
            realloc(disk->lineages, capacity * sizeof(struct disk_lineage_slot));
        if (grown == NULL) {
            FAIL(error, MEMORY, "no memory for %u lineages of the disk tier", capacity);
        }
        disk->lineages = grown;
        disk->lineage_capacity = capacity;
    }
    if (disk->lineage_count == 0) {
        memset(disk->lineage_heads, 0xFF, sizeof disk->lineage_heads);
    }
    at = disk->lineage_count++;
    uint32_t *head = lineage_head(disk, lineage);
    disk->lineages[at] = (struct disk_lineage_slot){.lineage = *lineage, .next = *head};
    *head = at;
    *out = at;
    return OK;
}

bool disk_lineage_is_known(const struct kv_disk *disk, uint32_t number) {
    /* Numbers of parents may be larger; a chain of hashes cannot be a ring. */
    for (uint32_t steps = 0; number != 0 && steps < DISK_LINEAGES_MAX; steps++) {
        if (!disk->lineages[number].is_known) {
            return false;
        }
        number = disk->lineages[number].parent;
    }
    return number == 0;
}

/* The table learns a derivation. */
static result
lineage_learn(struct kv_disk *disk, const struct disk_lineage *lineage, struct error *error) {
    uint32_t child = 0;
    uint32_t parent = 0;
    TRY(disk_lineage_number(disk, &lineage->parent, &parent, error));
    TRY(disk_lineage_number(disk, &lineage->child, &child, error));
    if (child != 0) { /* the root derives from nothing */
        disk->lineages[child].is_known = true;
        disk->lineages[child].parent = parent;
        disk->lineages[child].position = lineage->position;
    }
    return OK;
}

static result lineages_load(struct kv_disk *disk, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer file = {0};
    uint32_t root = 0;
    TRY(disk_lineage_number(disk, &disk->root, &root, error));
    ASSERT(root == 0);
    /* Twice the limit, since a torn record takes a place too. */
    if (!disk_file_load(
            disk->fd, LINEAGES_NAME, (size_t)2 * DISK_LINEAGES_MAX * DISK_LINEAGE_BYTES, &file
        )) {
        return OK;
    }
    struct view bytes = buffer_view(&file);
    for (size_t at = 0; at < bytes.length; at += DISK_LINEAGE_BYTES) {
        struct disk_lineage lineage;
        if (disk_lineage_decode(view_slice(bytes, at, DISK_LINEAGE_BYTES), &lineage)) {
            result learned = lineage_learn(disk, &lineage, error);
            if (learned.code == RESULT_MEMORY) {
                return learned;
            }
        }
    }
    return OK;
}

static result
lineage_append(struct kv_disk *disk, const struct disk_lineage *lineage, struct error *error) {
    uint8_t bytes[DISK_LINEAGE_BYTES];
    struct stat about;
    disk_lineage_encode(lineage, bytes);
    CLEANUP(fd_cleanup) int fd = disk_file_open(disk->fd, LINEAGES_NAME, O_WRONLY | O_CREAT);
    if (fd >= 0 && fstat(fd, &about) == 0) {
        uint64_t size = (uint64_t)about.st_size + DISK_LINEAGE_BYTES - 1;
        off_t at = (off_t)(size / DISK_LINEAGE_BYTES * DISK_LINEAGE_BYTES);
        errno = ENOSPC; /* for a short write */
        if (pwrite(fd, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes) {
            return OK;
        }
    }
    int code = errno;
    FAIL_FOREIGN(
        error, IO, code, "cannot write %.180s/" LINEAGES_NAME ": %s", disk->folder, strerror(code)
    );
}

/* Lineages that no block needs any more go from the file; the table loses them at the next start. */
void disk_lineages_compact(struct kv_disk *disk) {
    CLEANUP(free_cleanup) uint8_t *is_needed = calloc(disk->lineage_count, 1);
    CLEANUP(buffer_deinit) struct buffer file;
    struct error ignored;
    buffer_init(&file, (size_t)DISK_LINEAGES_MAX * DISK_LINEAGE_BYTES);
    if (is_needed == NULL) {
        return; /* another start may have the memory */
    }
    for (uint32_t i = 0; i < disk->index.high; i++) {
        const struct disk_entry *e = &disk->index.entries[i];
        uint32_t at = e->segment == DISK_NONE ? 0 : e->lineage;
        while (at != 0 && is_needed[at] == 0 && disk->lineages[at].is_known) {
            is_needed[at] = 1;
            at = disk->lineages[at].parent;
        }
    }
    for (uint32_t i = 1; i < disk->lineage_count; i++) {
        const struct disk_lineage_slot *slot = &disk->lineages[i];
        uint8_t bytes[DISK_LINEAGE_BYTES];
        if (is_needed[i] != 0) {
            const struct disk_lineage lineage = {
                slot->lineage, disk->lineages[slot->parent].lineage, slot->position};
            disk_lineage_encode(&lineage, bytes);
            if (is_failed(buffer_append(&file, view_of(bytes, sizeof bytes), &ignored))) {
                return;
            }
        }
    }
    (void)disk_file_replace(disk->fd, LINEAGES_NAME, buffer_view(&file)); /* or the old one stays */
}

result kv_disk_note_lineage(
    struct kv_disk *disk,
    const struct kv_lineage *child,
    const struct kv_lineage *parent,
    int32_t position,
    struct error *error
) {
    ASSERT(disk->mode == KV_DISK_WRITER && position >= 0);
    const struct disk_lineage lineage = {*child, *parent, position};
    struct kv_lineage derived;
    kv_lineage_replay(parent, position, &derived);
    if (!kv_lineage_equals(&derived, child)) {
        FAIL(error, INVALID_INPUT, "a lineage is not its parent's replay at %d", position);
    }
    disk_lock(disk);
    uint32_t at = disk_lineage_find(disk, child);
    bool is_known = at != DISK_NONE && (at == 0 || disk->lineages[at].is_known);
    bool is_off = disk->is_write_off;
    disk_unlock(disk);
    if (is_known || is_off) {
        return OK;
    }
    struct error why;
    result appended = lineage_append(disk, &lineage, &why);
    if (is_failed(appended)) {
        disk_end(disk, false, &why);
        FAIL_FOREIGN(error, IO, why.foreign, "%s", why.message);
    }
    disk_lock(disk);
    result learned = lineage_learn(disk, &lineage, error);
    disk_unlock(disk);
    return learned;
}

bool kv_disk_lineage(
    struct kv_disk *disk,
    const struct kv_lineage *child,
    struct kv_lineage *parent,
    int32_t *position
) {
    disk_lock(disk);
    uint32_t at = disk_lineage_find(disk, child);
    bool is_known = at != DISK_NONE && at != 0 && disk->lineages[at].is_known;
    if (is_known) {
        *parent = disk->lineages[disk->lineages[at].parent].lineage;
        *position = disk->lineages[at].position;
    }
    disk_unlock(disk);
    return is_known;
}

/* ---- the hour ------------------------------------------------------------------------------- */

void disk_hour_charge(struct kv_disk *disk, int64_t at_ms, uint64_t bytes) {
    int64_t minute = at_ms / MINUTE_MS;
    size_t place = (size_t)(minute < 0 ? 0 : minute) % DISK_MINUTES;
    if (disk->hour_minutes[place] != minute) {
        disk->hour_minutes[place] = minute;
        disk->hour_bytes[place] = 0;
    }
    disk->hour_bytes[place] += bytes;
}

/* A minute ahead of now is of a clock that went backwards: it counts for nothing. */
uint64_t disk_hour_sum(const struct kv_disk *disk) {
    int64_t now = disk_steady_ms(disk) / MINUTE_MS;
    uint64_t sum = 0;
    for (size_t i = 0; i < DISK_MINUTES; i++) {
        int64_t age = now - disk->hour_minutes[i];
        if (disk->hour_bytes[i] > 0 && age >= 0 && age < DISK_MINUTES) {
            sum += disk->hour_bytes[i];
        }
    }
    return sum;
}

/* ---- state file ----------------------------------------------------------------------------- */

static void put_u64(uint8_t *out, uint64_t value) {
    for (unsigned i = 0; i < 8; i++) {
        out[i] = (uint8_t)(value >> (8 * i));
    }
}

static void state_parse(struct kv_disk *disk, struct view file) {
    struct cursor cursor = cursor_over(file);
    struct view magic;
    struct view rest;
    uint32_t version = 0;
    uint32_t ghosts = 0;
    struct disk_budgets noted = {0};
    uint64_t lifetime = 0;
    uint8_t sum[DISK_CHECKSUM_BYTES];
    if (file.length < STATE_HEADER + DISK_CHECKSUM_BYTES || !cursor_take(&cursor, 8, &magic) ||
        !view_equals_text(magic, STATE_MAGIC) || !cursor_take_u32_le(&cursor, &version) ||
        version != DISK_FORMAT || !cursor_take_u32_le(&cursor, &ghosts) ||
        !cursor_take_u64_le(&cursor, &noted.bytes_max) ||
        !cursor_take_u64_le(&cursor, &noted.hour_max) || !cursor_take_u64_le(&cursor, &lifetime) ||
        !cursor_take(&cursor, STATE_HEADER - 40, &rest)) {
        return;
    }
    disk_checksum(file.data, file.length - sizeof sum, sum);
    if (memcmp(sum, file.data + file.length - sizeof sum, sizeof sum) != 0) {
        return;
    }
    noted.lifetime_ms = lifetime < (uint64_t)1 << 50 ? (int64_t)lifetime : 0;
    disk->noted = noted;
    for (size_t i = 0; i < DISK_MINUTES; i++) {
        uint64_t minute = 0;
        uint64_t bytes = 0;
        if (!cursor_take_u64_le(&cursor, &minute) || !cursor_take_u64_le(&cursor, &bytes)) {
            return;
        }
        if (minute % DISK_MINUTES == i && minute < INT64_MAX / MINUTE_MS &&
            bytes < (uint64_t)1 << 50) {
            disk->hour_minutes[i] = (int64_t)minute;
            disk->hour_bytes[i] = bytes;
        }
    }
    for (uint32_t i = 0; i < ghosts && i < DISK_GHOSTS_MAX; i++) {
        struct view key;
        uint32_t reason = 0;
        if (!cursor_take(&cursor, 16, &key) || !cursor_take_u32_le(&cursor, &reason)) {
            return;
        }
        if (reason == KV_PREFIX_MISS_EVICTED || reason == KV_PREFIX_MISS_EXPIRED ||
            reason == KV_PREFIX_MISS_DAMAGED) {
            disk_index_forget(&disk->index, key.data, (enum kv_prefix_miss)reason);
        }
    }
}

result disk_state_load(struct kv_disk *disk, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer file = {0};
    if (disk_file_load(disk->fd, STATE_NAME, STATE_BYTES_MAX, &file)) {
        state_parse(disk, buffer_view(&file));
    }
    return lineages_load(disk, error);
}

static size_t state_format(const struct kv_disk *disk, uint8_t *bytes) {
    const struct disk_index *index = &disk->index;
    memset(bytes, 0, STATE_HEADER);
    memcpy(bytes, STATE_MAGIC, 8);
    put_u64(bytes + 8, DISK_FORMAT | (uint64_t)index->ghost_count << 32);
    put_u64(bytes + 16, disk->noted.bytes_max);
    put_u64(bytes + 24, disk->noted.hour_max);
    put_u64(bytes + 32, (uint64_t)disk->noted.lifetime_ms);
    size_t at = STATE_HEADER;
    for (size_t i = 0; i < DISK_MINUTES; i++) {
        put_u64(bytes + at, (uint64_t)disk->hour_minutes[i]);
        put_u64(bytes + at + 8, disk->hour_bytes[i]);
        at += STATE_MINUTE;
    }
    for (uint32_t i = 0; i < index->ghost_count; i++) { /* the oldest first */
        const struct disk_ghost *ghost =
            &index->ghosts[(index->ghost_at + i) % index->ghost_capacity];
        memcpy(bytes + at, ghost->key, 16);
        bytes[at + 16] = (uint8_t)ghost->reason;
        memset(bytes + at + 17, 0, 3);
        at += STATE_GHOST;
    }
    disk_checksum(bytes, at, bytes + at);
    return at + DISK_CHECKSUM_BYTES;
}

void disk_state_save(struct kv_disk *disk) {
    size_t bytes = STATE_HEADER + (size_t)DISK_MINUTES * STATE_MINUTE +
                   (size_t)disk->index.ghost_count * STATE_GHOST + DISK_CHECKSUM_BYTES;
    CLEANUP(free_cleanup) uint8_t *text = malloc(bytes);
    if (text == NULL) {
        return; /* less is known after the next start */
    }
    disk_lock(disk);
    size_t length = state_format(disk, text);
    disk->counts.written_bytes += length;
    disk_unlock(disk);
    ASSERT(length == bytes);
    (void)disk_file_replace(disk->fd, STATE_NAME, view_of(text, length)); /* as above */
    disk->is_state_changed = false;
}
