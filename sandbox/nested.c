/* A bounded walk, breadth first: what lies deep in a large tree is found last. */
#include "nested.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "resolve.h"

#define QUEUE_BYTES_MAX ((size_t)4 << 20)

struct search {
    int workspace_fd;
    struct nested *out;
    struct buffer queue; /* paths of directories, each with a NUL; those before `at` are done */
    size_t at;
    size_t entries;
};

static unsigned char kind_of(int directory, const struct dirent *entry) {
    struct stat about;
    if (entry->d_type != DT_UNKNOWN ||
        fstatat(directory, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return entry->d_type;
    }
    return (unsigned char)IFTODT(about.st_mode);
}

static result take_entry(
    struct search *search,
    const char *path,
    int directory,
    const struct dirent *entry,
    struct error *error
) {
    struct nested *out = search->out;
    char below[SANDBOX_PATH_BYTES];
    unsigned char kind = kind_of(directory, entry);
    int length =
        snprintf(below, sizeof below, "%s%s%s", path, path[0] != '\0' ? "/" : "", entry->d_name);
    bool is_git = strcmp(entry->d_name, ".git") == 0;
    if (length < 0 || (size_t)length >= sizeof below || (is_git && path[0] == '\0')) {
        return OK; /* too deep to be mounted; that of the top is the workspace's own */
    }
    if (is_git && (kind == DT_DIR || kind == DT_REG)) {
        if (out->count < NESTED_MAX) {
            memcpy(out->paths[out->count++], below, (size_t)length + 1);
        }
        return OK;
    }
    bool has_room = search->queue.length + (size_t)length < QUEUE_BYTES_MAX;
    return kind == DT_DIR && has_room
               ? buffer_append(&search->queue, view_of(below, (size_t)length + 1), error)
               : OK;
}

static result read_directory(struct search *search, const char *path, struct error *error) {
    int fd = resolve_open(
        search->workspace_fd,
        path[0] != '\0' ? path : ".",
        O_RDONLY | O_DIRECTORY,
        0,
        RESOLVE_CONFINE
    );
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (stream == NULL) {
        fd_cleanup(&fd);
        return OK; /* gone, or not for us */
    }
    result status = OK;
    const struct dirent *entry = NULL;
    while (is_ok(status) && search->entries < NESTED_ENTRIES_MAX &&
           (entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            search->entries += 1;
            status = take_entry(search, path, dirfd(stream), entry, error);
        }
    }
    (void)closedir(stream);
    return status;
}

static int compare(const void *a, const void *b) {
    return strcmp(a, b);
}

result nested_find(int workspace_fd, struct nested *out, struct error *error) {
    struct search search = {.workspace_fd = workspace_fd, .out = out};
    out->count = 0;
    buffer_init(&search.queue, 2 * QUEUE_BYTES_MAX);
    result status = buffer_append(&search.queue, view_of("", 1), error);
    while (is_ok(status) && search.at < search.queue.length &&
           search.entries < NESTED_ENTRIES_MAX && out->count < NESTED_MAX) {
        char path[SANDBOX_PATH_BYTES]; /* the queue moves when it grows */
        size_t length = strlen((const char *)search.queue.data + search.at);
        ASSERT(length < sizeof path);
        memcpy(path, search.queue.data + search.at, length + 1);
        search.at += length + 1;
        status = read_directory(&search, path, error);
    }
    buffer_deinit(&search.queue);
    qsort(out->paths, out->count, sizeof out->paths[0], compare);
    return status;
}
