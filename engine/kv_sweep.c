/* See kv_sweep.h. */
#include "kv_sweep.h"
#include "kv_files_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

static DIR *list(int at, const char *path) {
    int fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL && fd >= 0) {
        (void)close(fd);
    }
    return folder;
}

void kv_sweep_start(struct kv_sweep *sweep, const char *cache, const struct kv_lineage *own) {
    char mine[KV_FILES_NAME_BYTES];
    disk_folder_name(own, mine);
    sweep->count = 0;
    sweep->looked_at = 0;
    DIR *folder = list(AT_FDCWD, cache);
    for (struct dirent *entry = folder == NULL ? NULL : readdir(folder);
         entry != NULL && sweep->count < KV_FILES_FOLDERS_MAX;
         entry = readdir(folder)) {
        struct stat about;
        bool is_name = strlen(entry->d_name) == KV_FILES_NAME_BYTES - 1 &&
                       strspn(entry->d_name, "0123456789abcdef") == KV_FILES_NAME_BYTES - 1;
        if (is_name && strcmp(entry->d_name, mine) != 0 &&
            fstatat(dirfd(folder), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISDIR(about.st_mode) && about.st_uid == geteuid()) {
            struct kv_sweep_folder *one = &sweep->folders[sweep->count++];
            *one = (struct kv_sweep_folder){0};
            memcpy(one->name, entry->d_name, KV_FILES_NAME_BYTES);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
}

/* Of a folder that is not to be opened: what its files take. */
static uint64_t allocated(const char *cache, const char *name) {
    char path[PATH_MAX];
    uint64_t bytes = 0;
    int length = snprintf(path, sizeof path, "%s/%s", cache, name);
    DIR *folder = length > 0 && (size_t)length < sizeof path ? list(AT_FDCWD, path) : NULL;
    for (struct dirent *entry = folder == NULL ? NULL : readdir(folder); entry != NULL;
         entry = readdir(folder)) {
        struct stat about;
        if (strncmp(entry->d_name, "seg-", 4) == 0 &&
            fstatat(dirfd(folder), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(about.st_mode)) {
            bytes += (uint64_t)about.st_blocks * 512;
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return bytes;
}

static void note_removed(struct kv_sweep *sweep, const char *name) {
    size_t length = strlen(sweep->names);
    sweep->removed++;
    if (length + KV_FILES_NAME_BYTES + 1 <= sizeof sweep->names) {
        (void)snprintf(
            sweep->names + length,
            sizeof sweep->names - length,
            "%s%s",
            length == 0 ? "" : " ",
            name
        );
    }
}

/* Brings one folder down to `bytes_max`, expired blocks first. */
static void reduce(
    struct kv_sweep *sweep,
    const char *cache,
    const struct clock *clock,
    struct kv_sweep_folder *folder,
    uint64_t bytes_max
) {
    struct kv_disk_options options = {.clock = *clock, .mode = KV_DISK_WRITER};
    CLEANUP(kv_disk_cleanup) struct kv_disk *disk = NULL;
    struct kv_disk_counts counts;
    struct error ignored; /* whatever is the matter with it, its own run says so */
    if (is_failed(files_open(cache, folder->name, &options, &disk, &ignored))) {
        folder->is_fixed = true;
        folder->bytes = allocated(cache, folder->name);
        return;
    }
    disk->bytes_max = bytes_max;
    while (kv_disk_advance(disk) == 0) {
    }
    kv_disk_count(disk, &counts);
    sweep->expired += (int64_t)counts.expired;
    sweep->evicted += (int64_t)counts.evicted;
    folder->is_fixed = counts.bytes > bytes_max || counts.blocks == 0;
    folder->bytes = counts.bytes;
    folder->used_ms = counts.used_ms;
    if (counts.blocks == 0 && disk_directory_remove(disk, cache, folder->name)) {
        folder->bytes = 0;
        note_removed(sweep, folder->name);
    }
}

uint64_t kv_sweep_bytes(const struct kv_sweep *sweep, uint64_t *reducible) {
    uint64_t bytes = 0;
    uint64_t free = 0;
    for (int32_t i = 0; i < sweep->count; i++) {
        bytes += sweep->folders[i].bytes;
        free += sweep->folders[i].is_fixed ? 0 : sweep->folders[i].bytes;
    }
    if (reducible != NULL) {
        *reducible = free;
    }
    return bytes;
}

bool kv_sweep_step(
    struct kv_sweep *sweep, const char *cache, const struct clock *clock, uint64_t bytes_max
) {
    if (sweep->looked_at < sweep->count) {
        reduce(sweep, cache, clock, &sweep->folders[sweep->looked_at], UINT64_MAX);
        sweep->looked_at++;
        return true;
    }
    uint64_t bytes = kv_sweep_bytes(sweep, NULL);
    struct kv_sweep_folder *oldest = NULL;
    for (int32_t i = 0; i < sweep->count; i++) {
        struct kv_sweep_folder *one = &sweep->folders[i];
        if (!one->is_fixed && one->bytes > 0 &&
            (oldest == NULL || one->used_ms < oldest->used_ms)) {
            oldest = one;
        }
    }
    if (bytes <= bytes_max || oldest == NULL) {
        return false;
    }
    uint64_t over = bytes - bytes_max;
    uint64_t goal = oldest->bytes > over ? oldest->bytes - over : 0;
    reduce(sweep, cache, clock, oldest, goal);
    return true;
}
