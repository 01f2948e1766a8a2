/* Snapshots as trees in a bare repository of our own. libgit2 is included by the files of workspace_internal.h and of
 * worktrees alone.
 *
 * libgit2 stores objects, decides what .gitignore ignores and compares trees. The working tree
 * itself is read and written here, by descriptors that the kernel resolves beneath the root: a
 * path function of a library would follow a symlink that a command just planted. The index file is
 * a cache of "this file, as stat saw it, is that object", so unchanged files are not read again.
 */
#include "workspace_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <git2.h>
#include <git2/sys/repository.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "lock.h"
#include "resolve.h"
#include "tree_files.h"

#define PATH_BYTES_MAX    TREE_PATH_BYTES_MAX
#define FILES_MAX         ((size_t)500000)
#define PENDING_BYTES_MAX ((size_t)64 << 20)        /* of paths of directories still to visit */
#define RECENT_NS         (INT64_C(2) * 1000000000) /* a file changed this recently is read again */
#define SKIPPED_SHOWN_MAX 400
#define COMPRESSION       1 /* zlib; the first snapshot of a large tree is bound by it */

result workspace_git_failed(struct error *error, int status, const char *what) {
    const git_error *last = git_error_last();
    const char *message = last != NULL && last->message != NULL ? last->message : "unknown error";
    enum result_code code = status == GIT_ENOTFOUND ? RESULT_NOT_FOUND : RESULT_IO;
    return error_set(error, code, status, __FILE__, __LINE__, "%s: %.300s", what, message);
}

static void commit_cleanup(git_commit **commit) {
    git_commit_free(*commit);
}

static void signature_cleanup(git_signature **signature) {
    git_signature_free(*signature);
}

static void directory_cleanup(DIR **directory) {
    if (*directory != NULL) {
        closedir(*directory);
    }
}

/* ---- open ----------------------------------------------------------------------------------- */

/* These are settings of the whole process; no one else here uses libgit2. Set once: another thread may be
 * reading them. */
static int prepare_library(void) {
    static const int levels[] = {
        GIT_CONFIG_LEVEL_SYSTEM,
        GIT_CONFIG_LEVEL_XDG,
        GIT_CONFIG_LEVEL_GLOBAL,
        GIT_CONFIG_LEVEL_PROGRAMDATA,
    };
    int status = git_libgit2_init();
    for (size_t i = 0; i < COUNT_OF(levels) && status >= 0; i++) {
        status = git_libgit2_opts(GIT_OPT_SET_SEARCH_PATH, levels[i], "");
    }
    // Objects were just written or found; asking the store again for each entry costs a stat.
    if (status >= 0) {
        status = git_libgit2_opts(GIT_OPT_ENABLE_STRICT_OBJECT_CREATION, 0);
    }
    // What workspace_collect removed must not be found in memory, half of a snapshot at worst.
    return status >= 0 ? git_libgit2_opts(GIT_OPT_ENABLE_CACHING, 0) : status;
}

static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static int prepared_status; // written once, before pthread_once returns to anybody

static void prepare_once(void) {
    prepared_status = prepare_library();
}

result workspace_prepare_library(struct error *error) {
    int number = pthread_once(&prepared, prepare_once);
    ASSERT(number == 0);
    TRY_GIT(prepared_status, "libgit2");
    return OK;
}

/* One that is there is only read: it may lie where nothing can be written. */
static result open_or_make(const char *store, git_repository **out, struct error *error) {
    if (git_repository_open_bare(out, store) == 0) {
        return OK;
    }
    git_repository_init_options options;
    TRY_GIT(
        git_repository_init_options_init(&options, GIT_REPOSITORY_INIT_OPTIONS_VERSION),
        "libgit2 options"
    );
    options.flags = GIT_REPOSITORY_INIT_BARE | GIT_REPOSITORY_INIT_MKDIR |
                    GIT_REPOSITORY_INIT_MKPATH | GIT_REPOSITORY_INIT_NO_DOTGIT_DIR;
    options.mode = 0700;
    TRY_GIT(git_repository_init_ext(out, store, &options), "opening the snapshot store");
    return OK;
}

static result open_repository(const char *store, git_repository **out, struct error *error) {
    git_repository *repository = NULL;
    TRY(open_or_make(store, &repository, error));
    char objects[PATH_BYTES_MAX + 16];
    (void)snprintf(objects, sizeof objects, "%sobjects", git_repository_path(repository));
    git_odb *database = NULL;
    git_odb_backend *loose = NULL;
    int status = git_odb_new(&database);
    if (status == 0) {
        status = git_odb_backend_loose(&loose, objects, COMPRESSION, 0, 0700, 0400);
    }
    if (status == 0) {
        status = git_odb_add_backend(database, loose, 1);
    }
    if (status == 0) {
        status = git_repository_set_odb(repository, database);
    }
    git_odb_free(database); // the repository holds its own reference
    if (status < 0) {
        git_repository_free(repository);
        return workspace_git_failed(error, status, "opening the snapshot store");
    }
    *out = repository;
    return OK;
}

static bool is_within(const char *path, const char *directory) {
    size_t length = strlen(directory);
    bool is_root = length == 1;
    return is_root ||
           (strncmp(path, directory, length) == 0 && (path[length] == '\0' || path[length] == '/'));
}

/* A cache that cannot be read, cut by a full disk for example, is none: all files are read again. */
static result open_cache(struct workspace *workspace, struct error *error) {
    char path[PATH_BYTES_MAX + 32];
    (void)snprintf(
        path, sizeof path, "%s" WORKSPACE_CACHE_NAME, git_repository_path(workspace->repository)
    );
    if (git_index_open(&workspace->cache, path) < 0) {
        (void)unlinkat(workspace->store_fd, WORKSPACE_CACHE_NAME, 0); // the next line tells
        TRY_GIT(git_index_open(&workspace->cache, path), "opening the snapshot cache");
    }
    return OK;
}

result workspace_read_cache(struct workspace *workspace, struct error *error) {
    bool is_gone = faccessat(workspace->store_fd, WORKSPACE_CACHE_NAME, F_OK, 0) != 0;
    if (git_index_read(workspace->cache, is_gone) == 0) {
        return OK;
    }
    git_index_free(workspace->cache);
    workspace->cache = NULL;
    return open_cache(workspace, error);
}

static result open_store(struct workspace *workspace, const char *store, struct error *error) {
    if (store[0] != '/' || strlen(store) > PATH_BYTES_MAX) {
        FAIL(error, INVALID_INPUT, "snapshot store '%.300s' must be an absolute path", store);
    }
    TRY(workspace_prepare_library(error));
    TRY(open_repository(store, &workspace->repository, error));
    CLEANUP(free_cleanup) char *real_store = realpath(store, NULL);
    bool is_inside = real_store != NULL && workspace->directory != NULL &&
                     is_within(real_store, workspace->directory);
    if (real_store == NULL || is_inside) {
        FAIL(
            error,
            INVALID_INPUT,
            "snapshot store '%.200s' lies in the workspace '%.200s'",
            store,
            is_inside ? workspace->directory : ""
        );
    }
    workspace->store_fd = open(real_store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (workspace->store_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "snapshot store '%.300s': %s", store, strerror(errno));
    }
    return open_cache(workspace, error);
}

static result open_parts(
    struct workspace *workspace, const char *directory, const char *store, struct error *error
) {
    workspace->directory = realpath(directory, NULL);
    if (workspace->directory == NULL && errno == ENOENT) {
        FAIL_FOREIGN(error, NOT_FOUND, errno, "workspace '%.300s' does not exist", directory);
    }
    if (workspace->directory == NULL || strlen(workspace->directory) > PATH_BYTES_MAX) {
        FAIL_FOREIGN(
            error, INVALID_INPUT, errno, "workspace '%.300s': %s", directory, strerror(errno)
        );
    }
    workspace->root_fd =
        resolve_open(AT_FDCWD, workspace->directory, O_RDONLY | O_DIRECTORY, 0, RESOLVE_PLAIN);
    if (workspace->root_fd < 0) {
        FAIL_FOREIGN(
            error, INVALID_INPUT, errno, "workspace '%.300s': %s", directory, strerror(errno)
        );
    }
    TRY(open_store(workspace, store, error));
    TRY(open_repository(store, &workspace->ignore, error));
    TRY_GIT(
        git_repository_set_workdir(workspace->ignore, workspace->directory, 0),
        "attaching the workspace"
    );
    return OK;
}

/* A store inside the tree is refused before anything is made there. */
static result check_store(const char *directory, const char *store, struct error *error) {
    CLEANUP(free_cleanup) char *real = realpath(directory, NULL);
    if (real != NULL && is_within(store, real)) {
        FAIL(error, INVALID_INPUT, "snapshot store '%.300s' lies in the workspace", store);
    }
    return OK;
}

static struct workspace *workspace_create(void) {
    struct workspace *workspace = calloc(1, sizeof *workspace);
    if (workspace != NULL) {
        workspace->root_fd = workspace->store_fd = -1;
        atomic_init(&workspace->until_ms, INT64_MAX);
    }
    return workspace;
}

result workspace_open(
    const char *directory, const char *store, struct workspace **out, struct error *error
) {
    TRY(check_store(directory, store, error));
    CLEANUP(workspace_cleanup) struct workspace *workspace = workspace_create();
    if (workspace == NULL) {
        FAIL(error, MEMORY, "no memory for a workspace");
    }
    TRY(open_parts(workspace, directory, store, error));
    *out = TAKE(workspace);
    return OK;
}

result workspace_open_store(const char *store, struct workspace **out, struct error *error) {
    char objects[PATH_BYTES_MAX + 16];
    int length = snprintf(objects, sizeof objects, "%s/objects", store);
    if (length < 0 || (size_t)length >= sizeof objects || access(objects, F_OK) != 0) {
        FAIL(error, NOT_FOUND, "there is no snapshot store '%.300s'", store);
    }
    CLEANUP(workspace_cleanup) struct workspace *workspace = workspace_create();
    if (workspace == NULL) {
        FAIL(error, MEMORY, "no memory for a snapshot store");
    }
    TRY(open_store(workspace, store, error));
    *out = TAKE(workspace);
    return OK;
}

void workspace_close(struct workspace *workspace) {
    if (workspace == NULL) {
        return;
    }
    git_index_free(workspace->cache);
    git_repository_free(workspace->ignore);
    git_repository_free(workspace->repository);
    fd_cleanup(&workspace->store_fd);
    fd_cleanup(&workspace->root_fd);
    free(workspace->directory);
    free(workspace);
}

void workspace_cleanup(struct workspace **workspace) {
    workspace_close(*workspace);
    *workspace = NULL;
}

/* ---- snapshot ------------------------------------------------------------------------------- */

/* Directories still to visit, as paths below the root; and the entries found so far. */
struct walk {
    struct workspace *workspace;
    struct buffer directories; /* MARK_... and path, NUL after each; the last is visited first */
    bool
        rules_are_known; /* of the directory that is visited: what is ignored there was so last time */
    git_index *found;
    int64_t now_ns;
    struct workspace_snapshot *snapshot;
};

static void walk_deinit(struct walk *walk) {
    buffer_deinit(&walk->directories);
    git_index_free(walk->found);
}

static void note_skipped(struct workspace_snapshot *snapshot, const char *path) {
    snapshot->skipped += 1;
    size_t used = strlen(snapshot->skipped_names);
    size_t length = strlen(path);
    if (used + length + 2 < SKIPPED_SHOWN_MAX && utf8_is_valid(view_of(path, length))) {
        (void)snprintf(
            snapshot->skipped_names + used,
            sizeof snapshot->skipped_names - used,
            "%s%s",
            used > 0 ? " " : "",
            path
        );
    }
}

#define MARK_KNOWN   'k' /* all .gitignore above it are as the cache has them */
#define MARK_CHANGED 'c'

static result push_directory(struct walk *walk, const char *path, struct error *error) {
    unsigned char mark = walk->rules_are_known ? MARK_KNOWN : MARK_CHANGED;
    TRY(buffer_append_byte(&walk->directories, mark, error));
    return buffer_append(&walk->directories, view_of(path, strlen(path) + 1), error);
}

/* Takes the last one off; false when there is none. */
static bool pop_directory(struct walk *walk, char path[PATH_BYTES_MAX]) {
    struct buffer *names = &walk->directories;
    if (names->length == 0) {
        return false;
    }
    size_t at = names->length - 1; // the NUL of the last path
    while (at > 0 && names->data[at - 1] != '\0') {
        at -= 1;
    }
    walk->rules_are_known = names->data[at] == MARK_KNOWN;
    ASSERT(names->length - at - 1 <= PATH_BYTES_MAX);
    memcpy(path, names->data + at + 1, names->length - at - 1);
    names->length = at;
    return true;
}

static int64_t to_ns(const struct timespec *time) {
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static void fill_entry(git_index_entry *entry, const char *path, const struct stat *about) {
    *entry = (git_index_entry){
        .ctime = {(int32_t)about->st_ctim.tv_sec, (uint32_t)about->st_ctim.tv_nsec},
        .mtime = {(int32_t)about->st_mtim.tv_sec, (uint32_t)about->st_mtim.tv_nsec},
        .dev = (uint32_t)about->st_dev,
        .ino = (uint32_t)about->st_ino,
        .uid = (uint32_t)about->st_uid,
        .gid = (uint32_t)about->st_gid,
        .file_size = (uint32_t)about->st_size,
        .path = path,
    };
    if (S_ISLNK(about->st_mode)) {
        entry->mode = GIT_FILEMODE_LINK;
    } else {
        entry->mode =
            (about->st_mode & S_IXUSR) != 0 ? GIT_FILEMODE_BLOB_EXECUTABLE : GIT_FILEMODE_BLOB;
    }
}

/* Whether the cache knows this very file; its object is then taken over. */
static bool take_cached(const git_index_entry *known, git_index_entry *entry) {
    if (known == NULL || known->mode != entry->mode || known->ino != entry->ino ||
        known->dev != entry->dev || known->file_size != entry->file_size ||
        known->mtime.seconds != entry->mtime.seconds ||
        known->mtime.nanoseconds != entry->mtime.nanoseconds ||
        known->ctime.seconds != entry->ctime.seconds ||
        known->ctime.nanoseconds != entry->ctime.nanoseconds) {
        return false;
    }
    entry->id = known->id;
    return true;
}

/* Bytes of a regular file or of a symlink's target. False: it changed or cannot be read. */
static bool
read_content(int directory, const char *name, const struct stat *about, struct buffer *out) {
    if (S_ISLNK(about->st_mode)) {
        char target[PATH_BYTES_MAX];
        ssize_t length = readlinkat(directory, name, target, sizeof target);
        return length >= 0 && (size_t)length < sizeof target &&
               is_ok(buffer_append(out, view_of(target, (size_t)length), NULL));
    }
    int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    CLEANUP(fd_cleanup) int fd = openat(directory, name, flags);
    struct stat opened;
    if (fd < 0 || fstat(fd, &opened) != 0 || opened.st_ino != about->st_ino ||
        !S_ISREG(opened.st_mode)) {
        return false;
    }
    unsigned char bytes[65536];
    for (;;) {
        ssize_t got = read(fd, bytes, sizeof bytes);
        if (got == 0) {
            return true;
        }
        if (got < 0 || is_failed(buffer_append(out, view_of(bytes, (size_t)got), NULL))) {
            return false;
        }
    }
}

static result add_file(
    struct walk *walk,
    int directory,
    const char *name,
    const char *path,
    const struct stat *about,
    const git_index_entry *known,
    struct error *error
) {
    git_index_entry entry;
    fill_entry(&entry, path, about);
    if (!take_cached(known, &entry)) {
        CLEANUP(buffer_deinit) struct buffer content;
        buffer_init(&content, (size_t)WORKSPACE_FILE_BYTES_MAX);
        if (!read_content(directory, name, about, &content)) {
            note_skipped(walk->snapshot, path);
            return OK;
        }
        TRY_GIT(
            git_blob_create_from_buffer(
                &entry.id, walk->workspace->repository, content.data, content.length
            ),
            "storing a file"
        );
        walk->snapshot->bytes_read += content.length;
        // Two changes within the clock's step look alike: such an entry must not be trusted.
        if (walk->now_ns - to_ns(&about->st_ctim) < RECENT_NS) {
            entry.ctime = (git_index_time){0, 0};
        }
    }
    if (git_index_add(walk->found, &entry) < 0) { // a name that git refuses to hold
        note_skipped(walk->snapshot, path);
        return OK;
    }
    walk->snapshot->files += 1;
    if (walk->snapshot->files > FILES_MAX) {
        FAIL(error, LIMIT, "more than %zu files in the workspace", FILES_MAX);
    }
    return OK;
}

static bool is_ignored(const struct walk *walk, const char *path, bool is_directory) {
    char text[PATH_BYTES_MAX + 2];
    (void)snprintf(text, sizeof text, "%s%s", path, is_directory ? "/" : "");
    int ignored = 0;
    return git_ignore_path_is_ignored(&ignored, walk->workspace->ignore, text) == 0 && ignored != 0;
}

/* Whether what is ignored in a directory is what was so at the last snapshot: its .gitignore is the same. A
 * link's target may have changed unseen. */
static bool has_same_rules(const struct walk *walk, int directory, const char *path) {
    char file[PATH_BYTES_MAX + 16];
    struct stat about;
    git_index_entry entry;
    (void)snprintf(file, sizeof file, "%s%s.gitignore", path, path[0] != '\0' ? "/" : "");
    const git_index_entry *known = git_index_get_bypath(walk->workspace->cache, file, 0);
    if (fstatat(directory, ".gitignore", &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT && known == NULL;
    }
    fill_entry(&entry, file, &about);
    return S_ISREG(about.st_mode) && take_cached(known, &entry);
}

/* Something below it was in the last snapshot. */
static bool has_known(const struct walk *walk, const char *path) {
    char prefix[PATH_BYTES_MAX + 2];
    (void)snprintf(prefix, sizeof prefix, "%s/", path);
    return git_index_find_prefix(NULL, walk->workspace->cache, prefix) == 0;
}

result workspace_check_time(const struct workspace *workspace, struct error *error) {
    int64_t until_ms = atomic_load_explicit(&workspace->until_ms, memory_order_relaxed);
    if (until_ms == INT64_MAX) {
        return OK;
    }
    struct clock clock = clock_real();
    if (clock_monotonic_ms(&clock) >= until_ms) {
        FAIL(error, TIMEOUT, "no time is left for a snapshot of '%.300s'", workspace->directory);
    }
    return OK;
}

static result look_at(
    struct walk *walk, int directory, const char *parent, const char *name, struct error *error
) {
    TRY(workspace_check_time(walk->workspace, error));
    char path[PATH_BYTES_MAX];
    int length = snprintf(path, sizeof path, "%s%s%s", parent, parent[0] != '\0' ? "/" : "", name);
    struct stat about;
    if (fstatat(directory, name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return OK; // removed meanwhile
    }
    if (length < 0 || (size_t)length >= sizeof path) {
        note_skipped(walk->snapshot, name);
        return OK;
    }
    bool is_directory = S_ISDIR(about.st_mode);
    const git_index_entry *known =
        is_directory ? NULL : git_index_get_bypath(walk->workspace->cache, path, 0);
    /* Asking libgit2 takes a stat for each directory above. */
    bool was_held = walk->rules_are_known && (is_directory ? has_known(walk, path) : known != NULL);
    if (strcasecmp(name, ".git") == 0 || (!was_held && is_ignored(walk, path, is_directory))) {
        return OK;
    }
    if (S_ISDIR(about.st_mode)) {
        return push_directory(walk, path, error);
    }
    bool can_hold = S_ISREG(about.st_mode) || S_ISLNK(about.st_mode);
    if (!can_hold || (uint64_t)about.st_size > WORKSPACE_FILE_BYTES_MAX) {
        note_skipped(walk->snapshot, path);
        return OK;
    }
    return add_file(walk, directory, name, path, &about, known, error);
}

static result visit(struct walk *walk, const char *path, struct error *error) {
    const char *name = path[0] == '\0' ? "." : path;
    int fd =
        resolve_open(walk->workspace->root_fd, name, O_RDONLY | O_DIRECTORY, 0, RESOLVE_CONFINE);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return OK;
    }
    CLEANUP(directory_cleanup) DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        if (fd >= 0) {
            close(fd);
        }
        note_skipped(walk->snapshot, name); // no permission, another file system, a symlink now
        return OK;
    }
    walk->rules_are_known = walk->rules_are_known && has_same_rules(walk, dirfd(directory), path);
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            TRY(look_at(walk, dirfd(directory), path, entry->d_name, error));
        }
    }
    return OK;
}

static result scan(struct walk *walk, git_oid *tree, struct error *error) {
    struct workspace *workspace = walk->workspace;
    TRY(workspace_read_cache(workspace, error));
    TRY_GIT(git_index_new(&walk->found), "snapshot");
    walk->rules_are_known = true;
    TRY(push_directory(walk, "", error));
    char path[PATH_BYTES_MAX];
    while (pop_directory(walk, path)) {
        TRY(visit(walk, path, error));
    }
    TRY_GIT(git_index_write_tree_to(tree, walk->found, workspace->repository), "storing a tree");
    TRY_GIT(git_index_clear(workspace->cache), "snapshot cache");
    size_t count = git_index_entrycount(walk->found);
    for (size_t i = 0; i < count; i++) {
        const git_index_entry *entry = git_index_get_byindex(walk->found, i);
        TRY_GIT(git_index_add(workspace->cache, entry), "snapshot cache");
    }
    TRY_GIT(git_index_write(workspace->cache), "writing the snapshot cache");
    return OK;
}

static result find_last(struct workspace *workspace, git_commit **out, struct error *error) {
    git_oid id;
    int status = git_reference_name_to_id(&id, workspace->repository, WORKSPACE_SNAPSHOT_REFERENCE);
    if (status == GIT_ENOTFOUND) {
        return OK; // the first snapshot
    }
    TRY_GIT(status, "reading the last snapshot");
    TRY_GIT(git_commit_lookup(out, workspace->repository, &id), "reading the last snapshot");
    return OK;
}

/* A tree like the last one is the last snapshot: no change, no commit. */
static result commit_tree(
    struct workspace *workspace,
    const git_oid *tree_id,
    const char *message,
    git_oid *out,
    struct error *error
) {
    CLEANUP(commit_cleanup) git_commit *last = NULL;
    TRY(find_last(workspace, &last, error));
    if (last != NULL && git_oid_equal(git_commit_tree_id(last), tree_id)) {
        *out = *git_commit_id(last);
        return OK;
    }
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    TRY_GIT(git_tree_lookup(&tree, workspace->repository, tree_id), "reading a tree");
    CLEANUP(signature_cleanup) git_signature *author = NULL;
    TRY_GIT(
        git_signature_new(&author, "hearth", "hearth@localhost", (git_time_t)time(NULL), 0),
        "snapshot author"
    );
    const git_commit *parents[1] = {last};
    TRY_GIT(
        git_commit_create(
            out,
            workspace->repository,
            WORKSPACE_SNAPSHOT_REFERENCE,
            author,
            author,
            "UTF-8",
            message,
            tree,
            last != NULL ? 1 : 0,
            parents
        ),
        "storing a snapshot"
    );
    return OK;
}

/* An open directory that was removed looks empty: as if everything in it had been deleted. */
static result check_directory(const struct workspace *workspace, struct error *error) {
    struct stat status;
    if (fstat(workspace->root_fd, &status) != 0) {
        FAIL_FOREIGN(
            error, IO, errno, "workspace '%.300s': %s", workspace->directory, strerror(errno)
        );
    }
    if (status.st_nlink == 0) {
        FAIL(error, NOT_FOUND, "workspace '%.300s' was removed", workspace->directory);
    }
    return OK;
}

result workspace_take_snapshot(
    struct workspace *workspace,
    const char *message,
    struct workspace_snapshot *out,
    struct error *error
) {
    struct workspace_snapshot snapshot = {.files = 0};
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    ASSERT(status == 0);
    CLEANUP(walk_deinit)
    struct walk walk = {
        .workspace = workspace,
        .now_ns = to_ns(&now),
        .snapshot = &snapshot,
    };
    buffer_init(&walk.directories, PENDING_BYTES_MAX);
    git_oid tree;
    git_oid commit;
    ASSERT(workspace->root_fd >= 0);
    TRY(workspace_store_lock(workspace, error));
    workspace_store_grows(workspace);
    result stored = scan(&walk, &tree, error);
    if (is_ok(stored)) {
        stored = check_directory(workspace, error);
    }
    if (is_ok(stored)) {
        stored = commit_tree(workspace, &tree, message, &commit, error);
    }
    workspace_store_unlock(workspace);
    TRY(stored);
    git_oid_tostr(snapshot.commit, sizeof snapshot.commit, &commit);
    *out = snapshot;
    return OK;
}

void workspace_limit_time(struct workspace *workspace, int64_t until_ms) {
    atomic_store_explicit(&workspace->until_ms, until_ms, memory_order_relaxed);
}

result workspace_find_tree(
    struct workspace *workspace, const char *text, git_tree **out, struct error *error
) {
    git_oid id;
    if (strlen(text) != WORKSPACE_COMMIT_BYTES - 1 || git_oid_fromstr(&id, text) < 0) {
        FAIL(error, NOT_FOUND, "'%.60s' is not the name of a snapshot", text);
    }
    CLEANUP(commit_cleanup) git_commit *commit = NULL;
    int status = git_commit_lookup(&commit, workspace->repository, &id);
    if (status < 0) {
        FAIL_FOREIGN(error, NOT_FOUND, status, "there is no snapshot %s", text);
    }
    TRY_GIT(git_commit_tree(out, commit), "reading a snapshot");
    return OK;
}
