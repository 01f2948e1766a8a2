/* Export and import: one file with the head of a segment, the lineages, then records of the same
 * stride, parents before children. See kv_files.h. */
#include "kv_files_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALIGNMENT 4096

static uint64_t records_offset(uint32_t lineages) {
    uint64_t bytes = (uint64_t)lineages * DISK_LINEAGE_BYTES;
    return DISK_SEGMENT_HEADER + (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- export --------------------------------------------------------------------------------- */

struct export_job {
    struct kv_disk *disk;
    const char *path;
    int fd;
    uint8_t *wanted; /* [index.high] */
    uint32_t *stack; /* [index.high] */
    uint32_t lineages;
    struct kv_files_moved *out;
};

static result fail_write(const struct export_job *job, struct error *error) {
    int code = errno;
    FAIL_FOREIGN(error, IO, code, "cannot write %.300s: %s", job->path, strerror(code));
}

static result
put(const struct export_job *job, const void *bytes, size_t count, uint64_t at, struct error *error
) {
    for (size_t done = 0; done < count;) {
        ssize_t wrote =
            pwrite(job->fd, (const uint8_t *)bytes + done, count - done, (off_t)(at + done));
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            errno = wrote < 0 ? errno : ENOSPC;
            return fail_write(job, error);
        }
        done += (size_t)wrote;
    }
    return OK;
}

static result put_lineages(struct export_job *job, struct error *error) {
    const struct kv_disk *disk = job->disk;
    for (uint32_t i = 1; i < disk->lineage_count; i++) {
        if (disk_lineage_is_known(disk, i)) {
            uint8_t bytes[DISK_LINEAGE_BYTES];
            const struct disk_lineage lineage = {
                disk->lineages[i].lineage,
                disk->lineages[disk->lineages[i].parent].lineage,
                disk->lineages[i].position,
            };
            disk_lineage_encode(&lineage, bytes);
            uint64_t at = DISK_SEGMENT_HEADER + (uint64_t)job->lineages++ * DISK_LINEAGE_BYTES;
            TRY(put(job, bytes, sizeof bytes, at, error));
        }
    }
    return OK;
}

static result put_record(struct export_job *job, uint32_t entry, struct error *error) {
    struct kv_disk *disk = job->disk;
    const struct disk_entry *e = &disk->index.entries[entry];
    struct disk_record_header header;
    enum disk_slot state = DISK_SLOT_DAMAGED;
    uint8_t *block = disk->scratch + KV_DISK_HEADER_BYTES;
    if (!disk_slot_read(disk, e->segment, e->slot, block, &header, &state) ||
        state != DISK_SLOT_RECORD || !kv_key_equals(&header.key, &e->key)) {
        job->out->damaged++; /* or removed by its writer meanwhile */
        return OK;
    }
    disk_record_encode(&header, disk->scratch);
    uint64_t at = records_offset(job->lineages) + (uint64_t)job->out->records * disk->stride;
    TRY(put(job, disk->scratch, (size_t)disk->stride, at, error));
    job->out->records++;
    return OK;
}

/* The entry after all that are above it. */
static result put_path(struct export_job *job, uint32_t entry, struct error *error) {
    uint32_t depth = 0;
    while (entry != DISK_NONE && job->wanted[entry] != 2) {
        ASSERT(depth < job->disk->index.high); /* no ring: disk_index_admits */
        job->stack[depth++] = entry;
        entry = job->disk->index.entries[entry].parent_entry;
    }
    while (depth > 0) {
        entry = job->stack[--depth];
        job->wanted[entry] = 2;
        TRY(put_record(job, entry, error));
    }
    return OK;
}

static result select_blocks(
    struct export_job *job, const char *const *keys, size_t key_count, struct error *error
) {
    const struct disk_index *index = &job->disk->index;
    for (uint32_t i = 0; i < index->high && key_count == 0; i++) {
        uint32_t lineage = index->entries[i].lineage;
        job->wanted[i] =
            index->entries[i].segment != DISK_NONE && disk_lineage_is_known(job->disk, lineage);
    }
    for (size_t i = 0; i < key_count; i++) {
        struct kv_key key;
        if (!kv_hex_parse(keys[i], key.bytes)) {
            FAIL(error, INVALID_INPUT, "'%.80s' is no key: 64 hexadecimal digits are one", keys[i]);
        }
        uint32_t entry = disk_index_get(index, &key);
        if (entry == DISK_NONE) {
            FAIL(error, NOT_FOUND, "%.180s: there is no block %s", job->disk->folder, keys[i]);
        }
        job->wanted[entry] = 1;
    }
    return OK;
}

static result export_inside(
    struct export_job *job, const char *const *keys, size_t key_count, struct error *error
) {
    struct kv_disk *disk = job->disk;
    TRY(select_blocks(job, keys, key_count, error));
    TRY(put_lineages(job, error));
    for (uint32_t i = 0; i < disk->index.high; i++) {
        if (job->wanted[i] == 1) {
            TRY(put_path(job, i, error));
        }
    }
    uint8_t head[DISK_SEGMENT_HEADER] = {0};
    const struct disk_file_header header = {
        .kind = DISK_FILE_EXPORT,
        .root = disk->root,
        .block_bytes = disk->block_bytes,
        .stride = disk->stride,
        .created_ms = disk_wall_ms(disk),
        .lineages = job->lineages,
        .records = (uint32_t)job->out->records,
    };
    disk_file_header_encode(&header, head);
    job->out->bytes = records_offset(job->lineages) + (uint64_t)job->out->records * disk->stride;
    if (ftruncate(job->fd, (off_t)job->out->bytes) != 0 || fsync(job->fd) != 0) {
        return fail_write(job, error);
    }
    TRY(put(job, head, sizeof head, 0, error)); /* last: without it the file is none */
    return fsync(job->fd) != 0 ? fail_write(job, error) : OK;
}

result kv_files_export(
    const char *cache,
    const char *folder,
    const struct clock *clock,
    const char *const *keys,
    size_t key_count,
    const char *path,
    struct kv_files_moved *out,
    struct error *error
) {
    struct kv_disk_options options = {.clock = *clock, .mode = KV_DISK_READER};
    CLEANUP(kv_disk_cleanup) struct kv_disk *disk = NULL;
    TRY(files_open(cache, folder, &options, &disk, error));
    ASSERT(disk != NULL);
    CLEANUP(free_cleanup) uint8_t *wanted = calloc((size_t)disk->index.high + 1, 1);
    CLEANUP(free_cleanup)
    uint32_t *stack = calloc((size_t)disk->index.high + 1, sizeof(uint32_t));
    if (wanted == NULL || stack == NULL) {
        FAIL(error, MEMORY, "no memory to export %u blocks", disk->index.count);
    }
    CLEANUP(fd_cleanup)
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "cannot make %.300s: %s", path, strerror(code));
    }
    *out = (struct kv_files_moved){0};
    disk_folder_name(&disk->root, out->folder);
    struct export_job job = {disk, path, fd, wanted, stack, 0, out};
    result done = export_inside(&job, keys, key_count, error);
    if (is_failed(done)) {
        (void)unlink(path);
    }
    return done;
}

/* ---- import --------------------------------------------------------------------------------- */

struct import_job {
    const char *path;
    int fd;
    uint64_t bytes;
    struct disk_file_header header;
    struct kv_files_moved *out;
};

static result import_head(struct import_job *job, struct error *error) {
    uint8_t bytes[128];
    struct stat about;
    if (fstat(job->fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        FAIL(error, INVALID_INPUT, "%.300s is not a file", job->path);
    }
    job->bytes = (uint64_t)about.st_size;
    ssize_t count = pread(job->fd, bytes, sizeof bytes, 0);
    if (count < 8 || memcmp(bytes, "HearthKE", 8) != 0) {
        FAIL(error, INVALID_INPUT, "%.300s is no file of 'hearth cache export'", job->path);
    }
    if (!disk_file_header_decode(view_of(bytes, (size_t)count), &job->header) ||
        job->header.kind != DISK_FILE_EXPORT) {
        FAIL(error, CORRUPT, "%.300s: the head is damaged", job->path);
    }
    if (job->header.version != DISK_FORMAT) {
        FAIL(
            error,
            UNSUPPORTED,
            "%.300s has format %u; this program reads %u",
            job->path,
            job->header.version,
            DISK_FORMAT
        );
    }
    job->out->bytes = job->bytes;
    job->out->records = job->header.records;
    disk_folder_name(&job->header.root, job->out->folder);
    return OK;
}

/* Names what is there instead. */
static result import_refuse(
    const struct import_job *job, const char *cache, const struct clock *clock, struct error *error
) {
    CLEANUP(free_cleanup) struct kv_files_list *list = NULL;
    char ours[128] = "none";
    TRY(kv_files_list(cache, clock, &list, error));
    size_t at = 0;
    for (size_t i = 0; i < list->count && i < 4; i++) {
        int length =
            snprintf(ours + at, sizeof ours - at, "%s%s", i > 0 ? ", " : "", list->folders[i].name);
        ASSERT(length > 0 && (size_t)length < sizeof ours - at);
        at += (size_t)length;
    }
    FAIL(
        error,
        INVALID_INPUT,
        "%.200s is of root lineage %s; the cache %.100s has %s (another model, backend, numerics "
        "or "
        "block layout)",
        job->path,
        job->out->folder,
        cache,
        ours
    );
}

static result import_lineages(struct import_job *job, struct kv_disk *disk, struct error *error) {
    for (uint32_t i = 0; i < job->header.lineages; i++) {
        uint8_t bytes[DISK_LINEAGE_BYTES];
        struct disk_lineage lineage;
        off_t at = (off_t)(DISK_SEGMENT_HEADER + (uint64_t)i * DISK_LINEAGE_BYTES);
        if (i >= DISK_LINEAGES_MAX ||
            pread(job->fd, bytes, sizeof bytes, at) != (ssize_t)sizeof bytes) {
            return OK;
        }
        if (disk_lineage_decode(view_of(bytes, sizeof bytes), &lineage)) {
            result noted = kv_disk_note_lineage(
                disk, &lineage.child, &lineage.parent, lineage.position, error
            );
            if (is_failed(noted) && noted.code != RESULT_LIMIT) {
                return noted;
            }
        }
    }
    return OK;
}

static bool read_whole(int fd, uint8_t *bytes, size_t count, uint64_t at) {
    for (size_t done = 0; done < count;) {
        ssize_t got = pread(fd, bytes + done, count - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

static result import_record(
    struct import_job *job, struct kv_disk *disk, uint8_t *bytes, uint64_t at, struct error *error
) {
    struct disk_record_header header;
    uint8_t sum[DISK_CHECKSUM_BYTES];
    enum kv_disk_outcome outcome = KV_DISK_WRITTEN;
    uint8_t *block = bytes + KV_DISK_HEADER_BYTES;
    if (!read_whole(job->fd, bytes, KV_DISK_HEADER_BYTES + disk->block_bytes, at) ||
        disk_record_decode(view_of(bytes, KV_DISK_HEADER_BYTES), disk->block_bytes, &header) !=
            DISK_SLOT_RECORD ||
        !disk_record_key_holds(&header)) {
        job->out->damaged++;
        return OK;
    }
    disk_checksum(block, disk->block_bytes, sum);
    uint32_t lineage = disk_lineage_find(disk, &header.lineage);
    if (memcmp(sum, header.checksum, sizeof sum) != 0 || lineage == DISK_NONE ||
        !disk_lineage_is_known(disk, lineage)) {
        job->out->damaged++;
        return OK;
    }
    if (kv_disk_has(disk, &header.key)) {
        job->out->present++;
        return OK;
    }
    /* Nothing that is here has to go for what comes from elsewhere. */
    if (disk->held_bytes + disk->stride + DISK_SEGMENT_HEADER > disk->bytes_max) {
        job->out->no_room++;
        return OK;
    }
    const struct kv_tier_record record = {
        header.key, header.parent, header.lineage, header.tokens, block};
    TRY(kv_disk_write(disk, &record, &outcome, error));
    job->out->added += outcome == KV_DISK_WRITTEN ? 1 : 0;
    job->out->no_room += outcome != KV_DISK_WRITTEN ? 1 : 0;
    return OK;
}

static result import_records(struct import_job *job, struct kv_disk *disk, struct error *error) {
    CLEANUP(free_cleanup) uint8_t *bytes = malloc((size_t)disk->stride);
    if (bytes == NULL) {
        FAIL(error, MEMORY, "no memory for a record of %llu bytes", (long long)disk->stride);
    }
    uint64_t from = records_offset(job->header.lineages);
    uint64_t there = job->bytes > from ? (job->bytes - from) / disk->stride : 0;
    for (uint32_t i = 0; i < job->header.records && i < there; i++) {
        TRY(import_record(job, disk, bytes, from + i * disk->stride, error));
    }
    if (job->header.records > there) { /* cut */
        job->out->damaged += (int64_t)(job->header.records - there);
    }
    return OK;
}

result kv_files_import(
    const char *cache,
    const char *path,
    const struct clock *clock,
    bool make,
    struct kv_files_moved *out,
    struct error *error
) {
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "cannot open %.300s: %s", path, strerror(code));
    }
    *out = (struct kv_files_moved){0};
    struct import_job job = {.path = path, .fd = fd, .out = out};
    TRY(import_head(&job, error));
    struct kv_disk_options options = {
        .clock = *clock,
        .mode = KV_DISK_WRITER,
        .write_bytes_per_hour = UINT64_MAX / 4, /* somebody asked for it */
    };
    CLEANUP(kv_disk_cleanup) struct kv_disk *disk = NULL;
    if (make) {
        options.directory = cache;
        options.root = job.header.root;
        options.block_bytes = (size_t)job.header.block_bytes;
        TRY(kv_disk_open(&disk, &options, error));
    } else {
        result opened = files_open(cache, out->folder, &options, &disk, error);
        if (opened.code == RESULT_NOT_FOUND) {
            return import_refuse(&job, cache, clock, error);
        }
        TRY(opened);
    }
    if (!kv_lineage_equals(&disk->root, &job.header.root) ||
        disk->block_bytes != job.header.block_bytes) {
        return import_refuse(&job, cache, clock, error);
    }
    TRY(import_lineages(&job, disk, error));
    return import_records(&job, disk, error);
}
