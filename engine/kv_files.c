/* Listing, verifying and evicting; see kv_files.h. Import and export: kv_files_transfer.c. */
#include "kv_files_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RECHECKS   3 /* of a record that looks damaged while a writer may be at it */
#define RECHECK_MS 20
#define PAUSES_MAX 150   /* of one verification: 3 s */
#define LOCKS_MAX  65536 /* bytes of /proc/locks that are looked at */

void kv_disk_cleanup(struct kv_disk **disk) {
    kv_disk_close(*disk);
}

/* ---- folders -------------------------------------------------------------------------------- */

static bool is_folder_name(const char *name) {
    return strlen(name) == KV_FILES_NAME_BYTES - 1 &&
           strspn(name, "0123456789abcdef") == KV_FILES_NAME_BYTES - 1;
}

static bool identify_by_segment(int folder_fd, const char *name, struct disk_info *out) {
    uint8_t bytes[128];
    struct disk_file_header header;
    CLEANUP(fd_cleanup) int fd = disk_file_open(folder_fd, name, O_RDONLY);
    if (fd < 0 || pread(fd, bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes ||
        !disk_file_header_decode(view_of(bytes, sizeof bytes), &header) ||
        header.version != DISK_FORMAT || header.kind != DISK_FILE_SEGMENT) {
        return false;
    }
    *out = (struct disk_info){
        .format = DISK_FORMAT,
        .block_bytes = (int64_t)header.block_bytes,
        .root = header.root,
    };
    return true;
}

bool files_identify(int folder_fd, struct disk_info *out) {
    if (disk_info_load(folder_fd, out)) {
        return true;
    }
    int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    bool is_found = false;
    if (folder == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return false;
    }
    for (struct dirent *entry = readdir(folder); entry != NULL && !is_found;
         entry = readdir(folder)) {
        is_found = strncmp(entry->d_name, "seg-", 4) == 0 &&
                   strlen(entry->d_name) == strlen("seg-00000000.data") &&
                   identify_by_segment(folder_fd, entry->d_name, out);
    }
    (void)closedir(folder);
    return is_found;
}

result files_open(
    const char *cache,
    const char *folder,
    struct kv_disk_options *options,
    struct kv_disk **out,
    struct error *error
) {
    char path[PATH_MAX];
    struct disk_info info;
    char name[KV_FILES_NAME_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", cache, folder);
    if (!is_folder_name(folder) || length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, NOT_FOUND, "'%.60s' is no name of a cache folder", folder);
    }
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        int code = errno;
        FAIL_FOREIGN(error, NOT_FOUND, code, "%.300s: %s", path, strerror(code));
    }
    if (!files_identify(fd, &info)) {
        FAIL(error, CORRUPT, "%.300s: nothing tells which root lineage it is of", path);
    }
    if (info.format != DISK_FORMAT) {
        FAIL(
            error,
            UNSUPPORTED,
            "%.300s has format %lld; this program reads %u",
            path,
            (long long)info.format,
            DISK_FORMAT
        );
    }
    disk_folder_name(&info.root, name);
    if (strcmp(name, folder) != 0 || info.block_bytes <= 0 ||
        (uint64_t)info.block_bytes > KV_DISK_BLOCK_BYTES_MAX) {
        FAIL(error, CORRUPT, "%.300s is of another root lineage (%s...)", path, name);
    }
    options->directory = cache;
    options->root = info.root;
    options->block_bytes = (size_t)info.block_bytes;
    options->description = NULL;
    return kv_disk_open(out, options, error);
}

/* ---- list ----------------------------------------------------------------------------------- */

/* The process that holds the lock, by /proc/locks: asking for it would be in a writer's way. */
static long lock_holder(const char *cache, const char *folder) {
    char path[PATH_MAX];
    struct stat about;
    int length = snprintf(path, sizeof path, "%s/%s/lock", cache, folder);
    if (length < 0 || (size_t)length >= sizeof path || lstat(path, &about) != 0) {
        return 0;
    }
    CLEANUP(free_cleanup) char *text = calloc(1, LOCKS_MAX);
    CLEANUP(file_cleanup) FILE *locks = fopen("/proc/locks", "re");
    if (locks == NULL || text == NULL) {
        return 0;
    }
    char line[256];
    while (fgets(line, sizeof line, locks) != NULL) {
        long process = 0;
        unsigned long inode = 0;
        if (sscanf(line, "%*d: FLOCK ADVISORY WRITE %ld %*x:%*x:%lu", &process, &inode) == 2 &&
            inode == about.st_ino) {
            return process;
        }
    }
    return 0;
}

static void count_ghosts(const struct kv_disk *disk, struct kv_files_folder *out) {
    for (uint32_t i = 0; i < disk->index.ghost_count; i++) {
        uint32_t reason = disk->index.ghosts[i].reason;
        out->evicted += reason == KV_PREFIX_MISS_EVICTED ? 1 : 0;
        out->expired += reason == KV_PREFIX_MISS_EXPIRED ? 1 : 0;
        out->damaged += reason == KV_PREFIX_MISS_DAMAGED ? 1 : 0;
    }
}

static result describe(
    const char *cache, const struct clock *clock, struct kv_files_folder *out, struct error *error
) {
    struct kv_disk_options options = {.clock = *clock, .mode = KV_DISK_READER};
    CLEANUP(kv_disk_cleanup) struct kv_disk *disk = NULL;
    struct kv_disk_counts counts;
    struct disk_info info;
    TRY(files_open(cache, out->name, &options, &disk, error));
    ASSERT(disk != NULL);
    if (files_identify(disk->fd, &info)) {
        memcpy(out->description, info.description, sizeof out->description);
    }
    kv_hex(disk->root.bytes, out->root_lineage);
    kv_disk_count(disk, &counts);
    count_ghosts(disk, out);
    out->block_bytes = disk->block_bytes;
    out->blocks = counts.blocks;
    out->tokens = counts.blocks * KV_BLOCK_TOKENS;
    out->segments = counts.segments;
    out->bytes = counts.bytes;
    out->bytes_max = counts.bytes_max;
    out->lifetime_ms = disk->lifetime_ms;
    out->oldest_ms = counts.oldest_ms;
    out->used_ms = counts.used_ms;
    out->damaged_found = counts.damaged_found;
    out->refused_files = counts.refused_files;
    out->hour_bytes = (uint64_t)counts.hour_bytes;
    return OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(
        ((const struct kv_files_folder *)a)->name, ((const struct kv_files_folder *)b)->name
    );
}

result kv_files_list(
    const char *cache, const struct clock *clock, struct kv_files_list **out, struct error *error
) {
    _Static_assert(KV_FILES_DESCRIPTION_BYTES == DISK_DESCRIPTION_BYTES, "copied whole");
    CLEANUP(free_cleanup)
    struct kv_files_list *list =
        calloc(1, sizeof *list + KV_FILES_FOLDERS_MAX * sizeof(struct kv_files_folder));
    if (list == NULL) {
        FAIL(error, MEMORY, "no memory for a list of cache folders");
    }
    DIR *folder = opendir(cache);
    int code = errno;
    if (folder == NULL && code != ENOENT) {
        FAIL_FOREIGN(error, IO, code, "cannot list %.300s: %s", cache, strerror(code));
    }
    for (struct dirent *entry = folder == NULL ? NULL : readdir(folder);
         entry != NULL && list->count < KV_FILES_FOLDERS_MAX;
         entry = readdir(folder)) {
        if (is_folder_name(entry->d_name)) {
            memcpy(list->folders[list->count++].name, entry->d_name, KV_FILES_NAME_BYTES);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    qsort(list->folders, list->count, sizeof list->folders[0], compare_names);
    for (size_t i = 0; i < list->count; i++) {
        struct kv_files_folder *one = &list->folders[i];
        struct error why = {0};
        one->used_by = lock_holder(cache, one->name);
        result described = describe(cache, clock, one, &why);
        if (is_failed(described)) {
            one->trouble = why;
        }
    }
    *out = TAKE(list);
    return OK;
}

/* ---- verify --------------------------------------------------------------------------------- */

struct verification {
    struct kv_disk *disk;
    bool repair;
    int pauses; /* left; none without a writer */
    uint8_t *bytes;
    void (*damaged)(void *context, const char *text);
    void *context;
    struct kv_files_checked *out;
};

static void report(const struct verification *verification, uint32_t number, const char *what) {
    char text[400];
    char name[DISK_NAME_BYTES];
    disk_segment_name(number, false, name);
    int length =
        snprintf(text, sizeof text, "%.200s/%s: %s", verification->disk->folder, name, what);
    ASSERT(length > 0);
    verification->out->damaged++;
    if (verification->damaged != NULL) {
        verification->damaged(verification->context, text);
    }
}

/* A writer appends or removes beside a reader: what it is at looks damaged for a moment. */
static bool read_again(
    struct verification *verification, uint32_t segment, uint32_t slot, enum disk_slot *state
) {
    struct disk_record_header header;
    const struct timespec pause = {0, RECHECK_MS * 1000000L};
    bool is_read = false;
    *state = DISK_SLOT_DAMAGED;
    for (int i = 0; i <= RECHECKS && *state == DISK_SLOT_DAMAGED; i++) {
        if (i > 0 && verification->pauses-- <= 0) {
            break;
        }
        if (i > 0) {
            (void)nanosleep(&pause, NULL);
        }
        is_read =
            disk_slot_read(verification->disk, segment, slot, verification->bytes, &header, state);
    }
    return is_read;
}

static void verify_slot(struct verification *verification, uint32_t at, uint32_t slot) {
    struct kv_disk *disk = verification->disk;
    enum disk_slot state = DISK_SLOT_DAMAGED;
    bool is_read = read_again(verification, at, slot, &state);
    if (is_read && state == DISK_SLOT_HOLE && disk->segments[at].by_slot[slot] == DISK_NONE) {
        return;
    }
    if (disk->mode == KV_DISK_READER && (is_read ? state == DISK_SLOT_HOLE : errno == ENOENT)) {
        return; /* removed while we look */
    }
    if (is_read && state == DISK_SLOT_RECORD) {
        verification->out->records++;
        verification->out->bytes += disk->stride;
        return;
    }
    char what[64];
    int length = snprintf(what, sizeof what, "record %u is damaged", slot);
    ASSERT(length > 0);
    report(verification, disk->segments[at].number, what);
    if (!verification->repair) {
        return;
    }
    uint32_t entry = disk->segments[at].by_slot[slot];
    if (entry != DISK_NONE) {
        struct kv_key key = disk->index.entries[entry].key;
        kv_disk_quarantine(disk, &key);
    } else {
        disk_segment_kill(disk, at, slot);
    }
    verification->out->repaired++;
}

result kv_files_verify(
    const char *cache,
    const char *folder,
    const struct clock *clock,
    bool repair,
    void (*damaged)(void *context, const char *text),
    void *context,
    struct kv_files_checked *out,
    struct error *error
) {
    struct kv_disk_options options = {
        .clock = *clock,
        .mode = repair ? KV_DISK_WRITER : KV_DISK_READER,
        .keep_damaged = true,
    };
    CLEANUP(kv_disk_cleanup) struct kv_disk *disk = NULL;
    TRY(files_open(cache, folder, &options, &disk, error));
    ASSERT(disk != NULL);
    CLEANUP(free_cleanup) uint8_t *bytes = malloc(disk->block_bytes);
    if (bytes == NULL) {
        FAIL(error, MEMORY, "no memory for a block of %zu bytes", disk->block_bytes);
    }
    *out = (struct kv_files_checked){0};
    int pauses = !repair && lock_holder(cache, folder) != 0 ? PAUSES_MAX : 0;
    struct verification verification = {disk, repair, pauses, bytes, damaged, context, out};
    for (uint32_t at = 0; at < disk->segment_count; at++) {
        struct disk_segment *segment = &disk->segments[at];
        if (segment->is_used && segment->is_header_damaged) {
            report(&verification, segment->number, "the header is damaged");
            out->repaired += repair && disk_segment_heal(disk, at) ? 1 : 0;
        }
        for (uint32_t slot = 0; segment->is_used && slot < segment->slots; slot++) {
            verify_slot(&verification, at, slot);
        }
    }
    return OK;
}

/* ---- evict ---------------------------------------------------------------------------------- */

result kv_files_evict(
    const char *cache,
    const char *folder,
    const struct clock *clock,
    const struct kv_files_eviction *what,
    int64_t *removed,
    struct error *error
) {
    struct kv_disk_options options = {.clock = *clock, .mode = KV_DISK_WRITER};
    CLEANUP(kv_disk_cleanup) struct kv_disk *disk = NULL;
    TRY(files_open(cache, folder, &options, &disk, error));
    ASSERT(disk != NULL);
    int64_t before = disk->index.count;
    if (what->everything) {
        (void)kv_disk_drop(disk, 0);
    }
    if (what->has_age) {
        disk->lifetime_ms = what->age_ms;
    }
    if (what->has_size) {
        disk->bytes_max = what->bytes_max;
    }
    while (kv_disk_advance(disk) == 0) {
    }
    *removed = before - disk->index.count;
    return OK;
}
