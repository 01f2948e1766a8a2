/* The folder of one root lineage: made, checked (owner, kind of file system), locked; small files in
 * it. Links are never followed, and nothing here waits for a FIFO. See kv_disk_internal.h. */
#include "kv_disk_internal.h"

#include "base/json.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define INFO_NAME      "info.json"
#define INFO_BYTES_MAX 4096
#define LOCK_NAME      "lock"

/* Values of linux/magic.h and statfs(2). */
const char *disk_network_name(uint64_t type) {
    static const struct {
        uint64_t type;
        const char *name;
    } systems[] = {
        {0x6969, "nfs"},
        {0x517B, "smb"},
        {0xFF534D42, "cifs"},
        {0xFE534D42, "smb2"},
        {0x65735546, "fuse"},
        {0x01021997, "9p"},
        {0x5346414F, "afs"},
        {0x6B414653, "kafs"},
        {0x73757245, "coda"},
        {0x564C, "ncp"},
        {0x00C36400, "ceph"},
        {0x0BD00BD0, "lustre"},
        {0x47504653, "gpfs"},
        {0x7461636F, "ocfs2"},
        {0x01161970, "gfs2"},
    };
    for (size_t i = 0; i < COUNT_OF(systems); i++) {
        if (systems[i].type == type) {
            return systems[i].name;
        }
    }
    return NULL;
}

void disk_folder_name(const struct kv_lineage *root, char out[17]) {
    char hex[KV_KEY_HEX_BYTES];
    kv_hex(root->bytes, hex);
    memcpy(out, hex, 16);
    out[16] = '\0';
}

/* ---- small files ---------------------------------------------------------------------------- */

int disk_file_open(int folder_fd, const char *name, int flags) {
    int fd = openat(folder_fd, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
    struct stat about;
    if (fd >= 0 && (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) ||
                    about.st_uid != geteuid() || about.st_nlink > 1)) {
        (void)close(fd);
        errno = ELOOP;
        return -1;
    }
    if (fd < 0 && errno == ENXIO) { /* a FIFO without a reader, a socket */
        errno = ELOOP;
    }
    return fd;
}

bool disk_file_replace(int folder_fd, const char *name, struct view bytes) {
    char temporary[DISK_NAME_BYTES + 8];
    int length = snprintf(temporary, sizeof temporary, "%s.tmp", name);
    ASSERT(length > 0 && (size_t)length < sizeof temporary);
    (void)unlinkat(folder_fd, temporary, 0);
    CLEANUP(fd_cleanup) int fd = disk_file_open(folder_fd, temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0) {
        return false;
    }
    for (size_t done = 0; done < bytes.length;) {
        ssize_t count = pwrite(fd, bytes.data + done, bytes.length - done, (off_t)done);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            (void)unlinkat(folder_fd, temporary, 0);
            return false;
        }
        done += (size_t)count;
    }
    return renameat(folder_fd, temporary, folder_fd, name) == 0;
}

bool disk_file_load(int folder_fd, const char *name, size_t ceiling, struct buffer *out) {
    CLEANUP(fd_cleanup) int fd = disk_file_open(folder_fd, name, O_RDONLY);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size < 0 || (size_t)about.st_size > ceiling) {
        return false;
    }
    size_t bytes = (size_t)about.st_size;
    buffer_init(out, ceiling + 1);
    struct error ignored;
    if (is_failed(buffer_reserve(out, bytes + 1, &ignored))) {
        return false;
    }
    while (out->length < bytes) {
        ssize_t count = pread(fd, out->data + out->length, bytes - out->length, (off_t)out->length);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            return false;
        }
        out->length += (size_t)count;
    }
    return true;
}

/* ---- folder --------------------------------------------------------------------------------- */

static result fail_io(struct error *error, const char *what, const char *path, int code) {
    const char *hint = code == EROFS ? " (the cache wants a writable directory)" : "";
    FAIL_FOREIGN(error, IO, code, "%s %.250s: %s%s", what, path, strerror(code), hint);
}

/* A directory below `at`, made when `make`. */
static result
open_folder(int at, const char *name, const char *path, bool make, int *out, struct error *error) {
    if (make && mkdirat(at, name, 0700) != 0 && errno != EEXIST) {
        int code = errno;
        return fail_io(error, "cannot make the cache directory", path, code);
    }
    CLEANUP(fd_cleanup)
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        FAIL_FOREIGN(error, NOT_FOUND, ENOENT, "there is no cache in %.250s", path);
    }
    struct stat about;
    struct statfs system;
    if (fd < 0 && fstatat(at, name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(about.st_mode)) {
        FAIL(
            error,
            IO,
            "the cache directory %.250s is a symbolic link, which is not followed; mount or bind a "
            "directory there, or name another state directory",
            path
        );
    }
    if (fd < 0 || fstat(fd, &about) != 0 || fstatfs(fd, &system) != 0) {
        int code = errno;
        return fail_io(error, "cannot open the cache directory", path, code);
    }
    if (about.st_uid != geteuid()) {
        FAIL(
            error,
            IO,
            "the cache directory %.250s belongs to user %u, not to %u",
            path,
            about.st_uid,
            geteuid()
        );
    }
    const char *network = disk_network_name((uint64_t)system.f_type);
    if (network != NULL) {
        FAIL(
            error,
            UNSUPPORTED,
            "the cache directory %.250s is on a network file system (%s): locks and holes cannot "
            "be "
            "relied on there",
            path,
            network
        );
    }
    if (make && (about.st_mode & 077) != 0 && fchmod(fd, 0700) != 0) {
        int code = errno;
        return fail_io(error, "cannot make the cache directory private:", path, code);
    }
    *out = fd;
    fd = -1;
    return OK;
}

static long lock_owner(int fd) {
    char text[32] = {0};
    ssize_t count = pread(fd, text, sizeof text - 1, 0);
    int64_t number = 0;
    struct view digits = view_of(text, count > 0 ? (size_t)count : 0);
    digits = view_slice(digits, 0, view_find(digits, view_of_text("\n"), 0));
    return parse_i64(digits, &number) ? (long)number : 0;
}

static result take_lock(struct kv_disk *disk, struct error *error) {
    CLEANUP(fd_cleanup) int fd = disk_file_open(disk->fd, LOCK_NAME, O_RDWR | O_CREAT);
    if (fd < 0) {
        int code = errno;
        if (code == ELOOP || code == EISDIR) {
            FAIL_FOREIGN(
                error,
                IO,
                code,
                "cannot open %.250s/" LOCK_NAME ": it is not a regular file of this user under one "
                "name; remove it",
                disk->folder
            );
        }
        return fail_io(error, "cannot open the lock of the cache directory", disk->folder, code);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int code = errno;
        if (code == EWOULDBLOCK) {
            FAIL(
                error,
                LIMIT,
                "the cache directory %.250s is in use by process %ld",
                disk->folder,
                lock_owner(fd)
            );
        }
        return fail_io(error, "cannot lock the cache directory", disk->folder, code);
    }
    struct stat about;
    if (fstat(fd, &about) != 0 || about.st_nlink == 0) { /* by kv_sweep.c of another process */
        FAIL(error, LIMIT, "the cache directory %.250s was just removed", disk->folder);
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    ASSERT(length > 0);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)length, 0) != length) {
        int code = errno;
        return fail_io(error, "cannot write the lock of", disk->folder, code);
    }
    /* Behind the text, where nothing is: only whether the file system can do it counts. */
    disk->can_punch = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096) == 0;
    disk->lock_fd = fd;
    fd = -1;
    return OK;
}

/* ---- what the folder is for ----------------------------------------------------------------- */

/* So that a flipped bit is not taken for another format or another lineage. */
static void info_sum(const struct disk_info *info, char out[33]) {
    char text[DISK_DESCRIPTION_BYTES + 200];
    uint8_t sum[DISK_CHECKSUM_BYTES];
    char hex[KV_KEY_HEX_BYTES];
    kv_hex(info->root.bytes, hex);
    int length = snprintf(
        text,
        sizeof text,
        "%lld %s %lld %s",
        (long long)info->format,
        hex,
        (long long)info->block_bytes,
        info->description
    );
    ASSERT(length > 0 && (size_t)length < sizeof text);
    disk_checksum(text, (size_t)length, sum);
    for (size_t i = 0; i < sizeof sum; i++) {
        int wrote = snprintf(out + 2 * i, 3, "%02x", sum[i]);
        ASSERT(wrote == 2);
    }
}

static result info_format(const struct disk_info *info, struct buffer *text, struct error *error) {
    char hex[KV_KEY_HEX_BYTES];
    char sum[33];
    kv_hex(info->root.bytes, hex);
    info_sum(info, sum);
    struct json_writer writer;
    json_writer_init(&writer, text, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "format");
    json_write_i64(&writer, info->format);
    json_write_key(&writer, "root_lineage");
    json_write_text(&writer, hex);
    json_write_key(&writer, "block_bytes");
    json_write_i64(&writer, info->block_bytes);
    json_write_key(&writer, "description");
    json_write_text(&writer, info->description);
    json_write_key(&writer, "check");
    json_write_text(&writer, sum);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(text, "\n", error);
}

bool disk_info_load(int folder_fd, struct disk_info *out) {
    CLEANUP(buffer_deinit) struct buffer text = {0};
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct error ignored;
    struct disk_info info = {0};
    if (!disk_file_load(folder_fd, INFO_NAME, INFO_BYTES_MAX, &text) ||
        is_failed(json_parse(buffer_view(&text), NULL, &document, &ignored))) {
        return false;
    }
    struct view root;
    struct view description;
    struct view check;
    char hex[KV_KEY_HEX_BYTES] = {0};
    char sum[33];
    struct json_value top = json_root(document);
    if (!json_as_i64(json_get(top, "format"), &info.format) ||
        !json_as_string(json_get(top, "root_lineage"), &root) || root.length != 64 ||
        !json_as_i64(json_get(top, "block_bytes"), &info.block_bytes) ||
        !json_as_string(json_get(top, "description"), &description) ||
        description.length >= sizeof info.description ||
        !json_as_string(json_get(top, "check"), &check)) {
        return false;
    }
    memcpy(hex, root.data, 64);
    memcpy(info.description, description.data, description.length);
    if (!kv_hex_parse(hex, info.root.bytes)) {
        return false;
    }
    info_sum(&info, sum);
    if (!view_equals_text(check, sum)) {
        return false;
    }
    *out = info;
    return true;
}

static result
info_write(struct kv_disk *disk, const struct kv_disk_options *options, struct error *error) {
    struct disk_info info = {
        .format = DISK_FORMAT,
        .root = options->root,
        .block_bytes = (int64_t)options->block_bytes,
    };
    /* JSON holds UTF-8 only; a cut one would be changed by writing and fail its check. */
    struct view text = view_of_text(options->description);
    text = view_slice(text, 0, sizeof info.description - 1);
    text.length = utf8_valid_prefix(text);
    text.length = text.length == 0 ? 0 : strnlen((const char *)text.data, text.length);
    if (text.length > 0) {
        memcpy(info.description, text.data, text.length);
    }
    CLEANUP(buffer_deinit) struct buffer out;
    buffer_init(&out, INFO_BYTES_MAX);
    TRY(info_format(&info, &out, error));
    if (!disk_file_replace(disk->fd, INFO_NAME, buffer_view(&out))) {
        int code = errno;
        if (code ==
            EISDIR) { /* somebody's directory in its place: people miss it, the tier does not */
            (void)unlinkat(disk->fd, INFO_NAME ".tmp", 0);
            return OK;
        }
        return fail_io(error, "cannot write " INFO_NAME " in", disk->folder, code);
    }
    return OK;
}

/* The first bytes of two lineages may agree; then the folder is the other's. */
static result
info_check(struct kv_disk *disk, const struct kv_disk_options *options, struct error *error) {
    struct disk_info info;
    bool is_known = disk_info_load(disk->fd, &info);
    /* An import knows no name for the model; the first run tells it. */
    bool is_nameless = is_known && info.description[0] == '\0' && options->description != NULL &&
                       options->description[0] != '\0' && info.format == DISK_FORMAT &&
                       kv_lineage_equals(&info.root, &options->root);
    if (!is_known || is_nameless) {
        return disk->mode == KV_DISK_WRITER ? info_write(disk, options, error) : OK;
    }
    if (info.format != DISK_FORMAT) {
        FAIL(
            error,
            UNSUPPORTED,
            "the cache directory %.250s has format %lld; this program reads %u",
            disk->folder,
            (long long)info.format,
            DISK_FORMAT
        );
    }
    if (!kv_lineage_equals(&info.root, &options->root)) {
        char theirs[KV_KEY_HEX_BYTES];
        kv_hex(info.root.bytes, theirs);
        FAIL(
            error,
            CORRUPT,
            "the cache directory %.200s is of another root lineage (%s)",
            disk->folder,
            theirs
        );
    }
    return OK;
}

result disk_directory_open(
    struct kv_disk *disk, const struct kv_disk_options *options, struct error *error
) {
    bool make = options->mode == KV_DISK_WRITER;
    char name[17];
    disk_folder_name(&options->root, name);
    int length = snprintf(disk->folder, sizeof disk->folder, "%.180s/%s", options->directory, name);
    ASSERT(length > 0);
    CLEANUP(fd_cleanup) int cache = -1;
    TRY(open_folder(AT_FDCWD, options->directory, options->directory, make, &cache, error));
    TRY(open_folder(cache, name, disk->folder, make, &disk->fd, error));
    if (make) {
        TRY(take_lock(disk, error));
    }
    return info_check(disk, options, error);
}

/* ---- removing ------------------------------------------------------------------------------- */

static bool is_segment_name(const char *name) {
    size_t digits = strlen("seg-") + 8;
    return strncmp(name, "seg-", 4) == 0 && strspn(name + 4, "0123456789abcdef") == 8 &&
           (strcmp(name + digits, ".data") == 0 || strcmp(name + digits, ".index") == 0);
}

static bool is_ours(int folder_fd, const char *name) {
    static const char *const names[] = {INFO_NAME, LOCK_NAME, "lineages", "state"};
    char plain[64];
    struct stat about;
    size_t length = strlen(name);
    if (length >= sizeof plain || fstatat(folder_fd, name, &about, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(about.st_mode) || about.st_uid != geteuid() || about.st_nlink > 1) {
        return false;
    }
    memcpy(plain, name, length + 1);
    if (length > 4 && strcmp(plain + length - 4, ".tmp") == 0) {
        plain[length - 4] = '\0';
    }
    bool is_known = is_segment_name(plain);
    for (size_t i = 0; i < COUNT_OF(names) && !is_known; i++) {
        is_known = strcmp(plain, names[i]) == 0;
    }
    return is_known;
}

/* Whether all entries but `except` are ours; with `unlink_them` they go. */
static bool each_entry(DIR *folder, bool unlink_them, const char *except) {
    bool is_good = true;
    rewinddir(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL && is_good;
         entry = readdir(folder)) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, except) == 0) {
            continue;
        }
        is_good =
            is_ours(dirfd(folder), name) && (!unlink_them || unlinkat(dirfd(folder), name, 0) == 0);
    }
    return is_good;
}

bool disk_directory_remove(struct kv_disk *disk, const char *cache, const char *name) {
    ASSERT(disk->lock_fd >= 0);
    CLEANUP(fd_cleanup)
    int parent = open(cache, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd =
        parent < 0 ? -1 : openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    struct stat here;
    struct stat mine;
    if (folder == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return false;
    }
    bool is_same = fstat(fd, &here) == 0 && fstat(disk->fd, &mine) == 0 &&
                   here.st_ino == mine.st_ino && here.st_dev == mine.st_dev;
    bool is_gone = false;
    if (is_same && each_entry(folder, false, "")) {
        disk->is_off = true; /* closing writes nothing any more */
        /* The lock last: until then nobody else can come in. */
        is_gone = each_entry(folder, true, LOCK_NAME) && unlinkat(fd, LOCK_NAME, 0) == 0 &&
                  unlinkat(parent, name, AT_REMOVEDIR) == 0;
    }
    (void)closedir(folder);
    return is_gone;
}
