/* Making, checking and removing copies.
 *
 * What makes a copy ours, and tells whether it was changed, lies in its `.git`: a list of the files
 * as they were made (a git index, for its format alone: path, size, inode and times, which no
 * command can set back) and a list of its branches. `.git` is read-only to commands.
 */
#include "worktree.h"

#include <errno.h>
#include <fcntl.h>
#include <git2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "lock.h"
#include "mounts.h"
#include "resolve.h"
#include "workspace_internal.h"
#include "worktree_walk.h"

#define FILES_NAME       "hearth-files"
#define REFERENCES_NAME  "hearth-branches"
#define PATH_BYTES_MAX   ((size_t)3800)
#define REFERENCES_BYTES ((size_t)64 << 20)
#define SMALL_FILE_BYTES ((size_t)1 << 20)
#define ALTERNATES_MAX   16

static void repository_cleanup(git_repository **repository) {
    git_repository_free(*repository);
}

static void index_cleanup(git_index **index) {
    git_index_free(*index);
}

static void reference_cleanup(git_reference **reference) {
    git_reference_free(*reference);
}

static void iterator_cleanup(git_reference_iterator **iterator) {
    git_reference_iterator_free(*iterator);
}

static void commit_cleanup(git_commit **commit) {
    git_commit_free(*commit);
}

static void signature_cleanup(git_signature **signature) {
    git_signature_free(*signature);
}

static result
join(char out[PATH_BYTES_MAX + 64], const char *directory, const char *name, struct error *error) {
    int length = snprintf(out, PATH_BYTES_MAX + 64, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= PATH_BYTES_MAX + 64) {
        FAIL(error, INVALID_INPUT, "'%.300s' is too long a path", directory);
    }
    return OK;
}

static void fill_entry(git_index_entry *entry, const char *path, const struct stat *about) {
    *entry = (git_index_entry){
        .ctime = {(int32_t)about->st_ctim.tv_sec, (uint32_t)about->st_ctim.tv_nsec},
        .mtime = {(int32_t)about->st_mtim.tv_sec, (uint32_t)about->st_mtim.tv_nsec},
        .dev = (uint32_t)about->st_dev,
        .ino = (uint32_t)about->st_ino,
        .file_size = (uint32_t)about->st_size,
        .mode = S_ISLNK(about->st_mode)           ? GIT_FILEMODE_LINK
                : (about->st_mode & S_IXUSR) != 0 ? GIT_FILEMODE_BLOB_EXECUTABLE
                                                  : GIT_FILEMODE_BLOB,
        .id = {{1}}, // no object: the list is only looked up by path
        .path = path,
    };
}

static bool is_same_entry(const git_index_entry *a, const git_index_entry *b) {
    return a->mode == b->mode && a->ino == b->ino && a->dev == b->dev &&
           a->file_size == b->file_size && a->mtime.seconds == b->mtime.seconds &&
           a->mtime.nanoseconds == b->mtime.nanoseconds && a->ctime.seconds == b->ctime.seconds &&
           a->ctime.nanoseconds == b->ctime.nanoseconds;
}

/* Branches and HEAD as text, in libgit2's order. */
static result list_references(git_repository *repository, struct buffer *out, struct error *error) {
    CLEANUP(reference_cleanup) git_reference *head = NULL;
    CLEANUP(iterator_cleanup) git_reference_iterator *iterator = NULL;
    TRY_GIT(git_reference_lookup(&head, repository, "HEAD"), "reading HEAD");
    const git_oid *target = git_reference_target(head);
    const char *symbolic = git_reference_symbolic_target(head);
    TRY(buffer_append_format(
        out, error, "HEAD %.300s\n", symbolic != NULL ? symbolic : git_oid_tostr_s(target)
    ));
    TRY_GIT(git_reference_iterator_new(&iterator, repository), "reading branches");
    for (;;) {
        CLEANUP(reference_cleanup) git_reference *reference = NULL;
        int status = git_reference_next(&reference, iterator);
        if (status == GIT_ITEROVER) {
            return OK;
        }
        TRY_GIT(status, "reading branches");
        target = git_reference_target(reference);
        symbolic = git_reference_symbolic_target(reference);
        TRY(buffer_append_format(
            out,
            error,
            "%s %.300s\n",
            git_reference_name(reference),
            symbolic != NULL ? symbolic : git_oid_tostr_s(target)
        ));
    }
}

/* ---- repository of the copy ----------------------------------------------------------------- */

/* One line of objects/info/alternates: a directory of further objects. */
static result
link_alternate(const char *objects, struct view line, const char *to, struct error *error) {
    char path[PATH_BYTES_MAX + 64];
    bool is_absolute = line.length > 0 && line.data[0] == '/';
    int length = snprintf(
        path,
        sizeof path,
        "%s%s%.*s",
        is_absolute ? "" : objects,
        is_absolute ? "" : "/",
        VIEW_ARGUMENTS(line)
    );
    if (line.length == 0 || line.data[0] == '#') {
        return OK;
    }
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "a directory of further objects has too long a path");
    }
    return worktree_link_objects(path, to, error);
}

static result link_all_objects(git_repository *source, git_repository *copy, struct error *error) {
    char from[PATH_BYTES_MAX + 64];
    char to[PATH_BYTES_MAX + 64];
    char alternates[PATH_BYTES_MAX + 64];
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, SMALL_FILE_BYTES);
    TRY(join(from, git_repository_commondir(source), "objects", error));
    TRY(join(to, git_repository_path(copy), "objects", error));
    TRY(worktree_link_objects(from, to, error));
    TRY(join(alternates, from, "info/alternates", error));
    result read = file_read(alternates, &text, error);
    if (read.code == RESULT_NOT_FOUND) {
        return OK;
    }
    TRY(read);
    struct view rest = buffer_view(&text);
    for (unsigned i = 0; rest.length > 0; i++) {
        size_t end = view_find(rest, view_of_text("\n"), 0);
        end = end == SIZE_MAX ? rest.length : end;
        if (i >= ALTERNATES_MAX) {
            FAIL(error, LIMIT, "more than %d directories of further objects", ALTERNATES_MAX);
        }
        TRY(link_alternate(from, view_slice(rest, 0, end), to, error));
        rest = view_slice(rest, end + 1, SIZE_MAX);
    }
    return OK;
}

/* Branches, tags and what is known of remotes; the stash and notes of tools stay behind. */
static result copy_references(git_repository *source, git_repository *copy, struct error *error) {
    static const char *const wanted[] = {"refs/heads/", "refs/tags/", "refs/remotes/"};
    CLEANUP(iterator_cleanup) git_reference_iterator *iterator = NULL;
    TRY_GIT(git_reference_iterator_new(&iterator, source), "reading branches");
    for (;;) {
        CLEANUP(reference_cleanup) git_reference *reference = NULL;
        CLEANUP(reference_cleanup) git_reference *made = NULL;
        int status = git_reference_next(&reference, iterator);
        if (status == GIT_ITEROVER) {
            return OK;
        }
        TRY_GIT(status, "reading branches");
        const char *name = git_reference_name(reference);
        const git_oid *target = git_reference_target(reference);
        bool is_wanted = false;
        for (size_t i = 0; i < COUNT_OF(wanted); i++) {
            is_wanted = is_wanted || strncmp(name, wanted[i], strlen(wanted[i])) == 0;
        }
        if (is_wanted && target != NULL) { // not the symbolic ones of remotes
            TRY_GIT(git_reference_create(&made, copy, name, target, 1, NULL), "copying a branch");
        }
    }
}

/* HEAD at the commit that the source's is at, on a branch of its own or detached. */
static result set_head(
    git_repository *source,
    git_repository *copy,
    const char *branch,
    struct worktree *out,
    struct error *error
) {
    git_oid id;
    char name[300];
    CLEANUP(reference_cleanup) git_reference *made = NULL;
    int length = snprintf(name, sizeof name, "refs/heads/%s", branch != NULL ? branch : "main");
    if (length < 0 || (size_t)length >= sizeof name) {
        FAIL(error, INVALID_INPUT, "'%.100s' is too long a name for a branch", name);
    }
    int status = git_reference_name_to_id(&id, source, "HEAD");
    if (status == GIT_ENOTFOUND || status == GIT_EUNBORNBRANCH) { // no commit yet
        TRY_GIT(git_repository_set_head(copy, name), "setting HEAD");
        return OK;
    }
    TRY_GIT(status, "reading HEAD");
    (void)git_oid_tostr(out->head, sizeof out->head, &id);
    if (branch == NULL) {
        TRY_GIT(git_repository_set_head_detached(copy, &id), "setting HEAD");
    } else {
        status = git_reference_create(&made, copy, name, &id, 0, NULL);
        if (status == GIT_EEXISTS || status == GIT_EINVALIDSPEC) {
            FAIL(error, INVALID_INPUT, "branch '%.200s' exists or is no name for one", branch);
        }
        TRY_GIT(status, "making a branch");
        TRY_GIT(git_repository_set_head(copy, name), "setting HEAD");
    }
    CLEANUP(index_cleanup) git_index *index = NULL;
    CLEANUP(commit_cleanup) git_commit *commit = NULL;
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    TRY_GIT(git_commit_lookup(&commit, copy, &id), "reading the commit at HEAD");
    TRY_GIT(git_commit_tree(&tree, commit), "reading the tree at HEAD");
    TRY_GIT(git_repository_index(&index, copy), "opening the index");
    TRY_GIT(git_index_read_tree(index, tree), "filling the index");
    TRY_GIT(git_index_write(index), "writing the index");
    return OK;
}

/* The user's own list of what is ignored, which lies in .git. */
static result copy_excludes(git_repository *source, git_repository *copy, struct error *error) {
    char from[PATH_BYTES_MAX + 64];
    char to[PATH_BYTES_MAX + 64];
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, SMALL_FILE_BYTES);
    TRY(join(from, git_repository_commondir(source), "info/exclude", error));
    TRY(join(to, git_repository_path(copy), "info/exclude", error));
    if (is_failed(file_read(from, &text, NULL))) {
        return OK; // there is none
    }
    CLEANUP(file_cleanup) FILE *file = fopen(to, "we");
    if (file == NULL || fwrite(text.data, 1, text.length, file) != text.length) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", to, strerror(errno));
    }
    return OK;
}

/* A first commit of all that was copied, where the source has no repository. */
static result commit_files(
    git_repository *copy,
    git_index *files,
    const char *branch,
    struct worktree *out,
    struct error *error
) {
    CLEANUP(index_cleanup) git_index *index = NULL;
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    CLEANUP(signature_cleanup) git_signature *author = NULL;
    git_oid id;
    char name[300];
    (void)snprintf(name, sizeof name, "refs/heads/%.250s", branch != NULL ? branch : "main");
    TRY_GIT(git_repository_set_head(copy, name), "setting HEAD");
    TRY_GIT(git_repository_index(&index, copy), "opening the index");
    for (size_t i = 0; i < git_index_entrycount(files); i++) {
        const char *path = git_index_get_byindex(files, i)->path;
        TRY_GIT(git_index_add_bypath(index, path), "adding a file");
    }
    TRY_GIT(git_index_write_tree(&id, index), "storing a tree");
    TRY_GIT(git_index_write(index), "writing the index");
    TRY_GIT(git_tree_lookup(&tree, copy, &id), "reading a tree");
    TRY_GIT(
        git_signature_new(&author, "hearth", "hearth@localhost", (git_time_t)time(NULL), 0),
        "author"
    );
    TRY_GIT(
        git_commit_create(
            &id, copy, "HEAD", author, author, "UTF-8", "files as they were", tree, 0, NULL
        ),
        "storing the first commit"
    );
    (void)git_oid_tostr(out->head, sizeof out->head, &id);
    if (branch == NULL) {
        TRY_GIT(git_repository_set_head_detached(copy, &id), "setting HEAD");
    }
    return OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

struct copying {
    int to_fd;
    git_index *files; /* as they were made */
    struct worktree *made;
};

static void skip_path(void *context, const char *path) {
    struct copying *copying = context;
    copying->made->skipped += 1;
    worktree_note_name(copying->made->skipped_names, sizeof copying->made->skipped_names, path);
}

static result copy_visited(void *context, const struct worktree_entry *entry, struct error *error) {
    struct copying *copying = context;
    struct worktree *made = copying->made;
    mode_t bits = entry->about->st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
    if (S_ISDIR(entry->about->st_mode)) {
        if (mkdirat(copying->to_fd, entry->path, bits | S_IRWXU) != 0) {
            FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", entry->path, strerror(errno));
        }
        return OK;
    }
    bool copied = false;
    struct stat about;
    git_index_entry item;
    TRY(worktree_copy_entry(copying->to_fd, entry, &copied, error));
    if (!copied) {
        skip_path(copying, entry->path);
        return OK;
    }
    if (fstatat(copying->to_fd, entry->path, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        FAIL_FOREIGN(error, IO, errno, "copying '%.300s': %s", entry->path, strerror(errno));
    }
    fill_entry(&item, entry->path, &about);
    if (git_index_add(copying->files, &item) < 0) { // a name that git cannot hold: see is_dirty
        skip_path(copying, entry->path);
    }
    made->files += 1;
    made->bytes += (uint64_t)about.st_size;
    if (made->files > WORKTREE_FILES_MAX || made->bytes > WORKTREE_BYTES_MAX) {
        FAIL(
            error,
            LIMIT,
            "the workspace has more than %zu files or %llu GiB",
            WORKTREE_FILES_MAX,
            (unsigned long long)(WORKTREE_BYTES_MAX >> 30)
        );
    }
    return OK;
}

struct creation {
    const struct worktree_options *options;
    const char *directory; /* where it is put together, beside its place */
    int source_fd;
    int to_fd;
    struct worktree made;
};

static result write_references(git_repository *copy, struct error *error) {
    char path[PATH_BYTES_MAX + 64];
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, REFERENCES_BYTES);
    TRY(list_references(copy, &text, error));
    TRY(join(path, git_repository_path(copy), REFERENCES_NAME, error));
    FILE *file = fopen(path, "we");
    bool written = file != NULL && fwrite(text.data, 1, text.length, file) == text.length;
    int closed = file != NULL ? fclose(file) : -1;
    if (!written || closed != 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", path, strerror(errno));
    }
    return OK;
}

static result copy_files(
    struct creation *creation,
    git_repository *ignore,
    git_index *tracked,
    git_index *files,
    struct error *error
) {
    struct copying copying = {creation->to_fd, files, &creation->made};
    const struct worktree_walk walk = {
        .root_fd = creation->source_fd,
        .ignore = ignore,
        .tracked = tracked,
        .with_ignored = creation->options->with_ignored,
        .visit = copy_visited,
        .skip = skip_path,
        .context = &copying,
    };
    return worktree_walk(&walk, error);
}

/* With a second view of the copy's repository whose tree is the source's, for its .gitignore. */
static result create_without_repository(
    struct creation *creation, git_repository *copy, git_index *files, struct error *error
) {
    CLEANUP(repository_cleanup) git_repository *ignore = NULL;
    TRY_GIT(git_repository_open(&ignore, git_repository_path(copy)), "opening the copy");
    TRY_GIT(
        git_repository_set_workdir(ignore, creation->options->source, 0), "attaching the workspace"
    );
    TRY(copy_files(creation, ignore, NULL, files, error));
    return commit_files(copy, files, creation->options->branch, &creation->made, error);
}

static result create_with_repository(
    struct creation *creation, git_repository *copy, git_index *files, struct error *error
) {
    CLEANUP(repository_cleanup) git_repository *source = NULL;
    CLEANUP(index_cleanup) git_index *tracked = NULL;
    const char *path = creation->options->source;
    int status = git_repository_open_ext(&source, path, GIT_REPOSITORY_OPEN_NO_SEARCH, NULL);
    if (status < 0) {
        result failed = workspace_git_failed(error, status, "the workspace's repository");
        failed.code =
            RESULT_UNSUPPORTED; /* not one that can be copied, whatever libgit2 calls it */
        if (error != NULL) {
            error->code = failed.code;
        }
        return failed;
    }
    TRY(link_all_objects(source, copy, error));
    TRY(copy_references(source, copy, error));
    TRY(copy_excludes(source, copy, error));
    TRY(set_head(source, copy, creation->options->branch, &creation->made, error));
    TRY_GIT(git_repository_index(&tracked, source), "reading the index");
    return copy_files(creation, source, tracked, files, error);
}

static result create_parts(struct creation *creation, bool has_git, struct error *error) {
    CLEANUP(repository_cleanup) git_repository *copy = NULL;
    CLEANUP(index_cleanup) git_index *files = NULL;
    char path[PATH_BYTES_MAX + 64];
    TRY_GIT(git_repository_init(&copy, creation->directory, 0), "making a repository");
    TRY(join(path, git_repository_path(copy), FILES_NAME, error));
    TRY_GIT(git_index_open(&files, path), "making the list of files");
    TRY(has_git ? create_with_repository(creation, copy, files, error)
                : create_without_repository(creation, copy, files, error));
    TRY_GIT(git_index_write(files), "writing the list of files");
    return write_references(copy, error);
}

static bool is_within(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

/* Checks the place and makes the directory in which the copy is put together. */
static result prepare_place(
    const struct worktree_options *options, char partial[PATH_BYTES_MAX + 64], struct error *error
) {
    const char *place = options->directory;
    const char *leaf = strrchr(place, '/');
    CLEANUP(free_cleanup) char *source = realpath(options->source, NULL);
    if (source == NULL) {
        FAIL_FOREIGN(
            error, INVALID_INPUT, errno, "workspace '%.300s': %s", options->source, strerror(errno)
        );
    }
    if (place[0] != '/' || leaf == NULL || leaf[1] == '\0' || strlen(place) > PATH_BYTES_MAX) {
        FAIL(error, INVALID_INPUT, "'%.300s' is no absolute path for a copy", place);
    }
    char parent[PATH_BYTES_MAX + 1];
    (void)snprintf(parent, sizeof parent, "%.*s/", (int)(leaf - place), place);
    CLEANUP(free_cleanup) char *real_parent = realpath(parent, NULL);
    if (real_parent == NULL) {
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "'%.300s': %s", parent, strerror(errno));
    }
    struct stat about;
    if (is_within(real_parent, source) || lstat(place, &about) == 0) {
        FAIL(error, INVALID_INPUT, "'%.300s' exists or lies in the workspace", place);
    }
    (void)snprintf(partial, PATH_BYTES_MAX + 64, "%s.partial-XXXXXX", place);
    if (mkdtemp(partial) == NULL) {
        FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", place, strerror(errno));
    }
    return OK;
}

result
worktree_create(const struct worktree_options *options, struct worktree *out, struct error *error) {
    bool has_git = false;
    char partial[PATH_BYTES_MAX + 64];
    TRY(workspace_prepare_library(error));
    TRY(mounts_check_git(options->source, &has_git, error));
    CLEANUP(fd_cleanup)
    int source = open(options->source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CLEANUP(fd_cleanup) int lock = -1;
    if (source < 0) {
        FAIL_FOREIGN(error, IO, errno, "workspace '%.300s': %s", options->source, strerror(errno));
    }
    TRY(lock_directory(source, options->source, &lock, error)); // no command changes it meanwhile
    TRY(prepare_place(options, partial, error));
    struct creation creation = {.options = options, .directory = partial, .source_fd = source};
    CLEANUP(fd_cleanup) int to = open(partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    creation.to_fd = to;
    result made = to >= 0 ? create_parts(&creation, has_git, error)
                          : error_set(error, RESULT_IO, errno, __FILE__, __LINE__, "'%s'", partial);
    if (is_ok(made) && rename(partial, options->directory) != 0) {
        made = error_set(
            error, RESULT_IO, errno, __FILE__, __LINE__, "'%.300s': %s", partial, strerror(errno)
        );
    }
    if (is_failed(made)) {
        if (to >= 0) {
            result_ignore(worktree_clear(to, NULL)); // the first failure is the one to tell
        }
        (void)rmdir(partial);
        return made;
    }
    *out = creation.made;
    return OK;
}

/* ---- use and removal ------------------------------------------------------------------------ */

/* The list of files, which every copy of ours has, opened and locked. */
static result open_list(const char *directory, int operation, int *out_fd, struct error *error) {
    char path[PATH_BYTES_MAX + 64];
    TRY(join(path, directory, ".git/" FILES_NAME, error));
    CLEANUP(fd_cleanup) int fd = resolve_open(AT_FDCWD, path, O_RDONLY, 0, RESOLVE_NO_MAGICLINKS);
    if (fd < 0) {
        FAIL_FOREIGN(
            error, NOT_FOUND, errno, "'%.300s' is no copy of a workspace made by Hearth", directory
        );
    }
    if (flock(fd, operation | LOCK_NB) != 0) {
        FAIL_FOREIGN(error, LIMIT, errno, "'%.300s' is in use, or about to be removed", directory);
    }
    *out_fd = fd;
    fd = -1;
    return OK;
}

result worktree_lease(const char *directory, int *out_fd, struct error *error) {
    return open_list(directory, LOCK_SH, out_fd, error);
}

struct checking {
    git_index *files;
    size_t found;
    size_t changed;
    char names[WORKTREE_NAMES_BYTES];
};

static void note_change(void *context, const char *path) {
    struct checking *checking = context;
    checking->changed += 1;
    worktree_note_name(checking->names, sizeof checking->names, path);
}

static result
check_visited(void *context, const struct worktree_entry *entry, struct error *error) {
    struct checking *checking = context;
    (void)error;
    if (S_ISDIR(entry->about->st_mode)) {
        return OK; // empty ones are no work
    }
    git_index_entry now;
    fill_entry(&now, entry->path, entry->about);
    const git_index_entry *made = git_index_get_bypath(checking->files, entry->path, 0);
    checking->found += made != NULL ? 1 : 0;
    if (made == NULL || !is_same_entry(made, &now)) {
        note_change(checking, entry->path);
    }
    return OK;
}

static result check_references(
    git_repository *copy, const char *directory, struct checking *checking, struct error *error
) {
    char path[PATH_BYTES_MAX + 64];
    CLEANUP(buffer_deinit) struct buffer now;
    CLEANUP(buffer_deinit) struct buffer made;
    buffer_init(&now, REFERENCES_BYTES);
    buffer_init(&made, REFERENCES_BYTES);
    TRY(join(path, directory, ".git/" REFERENCES_NAME, error));
    TRY(file_read(path, &made, error));
    TRY(list_references(copy, &now, error));
    if (!view_equals(buffer_view(&made), buffer_view(&now))) {
        note_change(checking, "(branches)");
    }
    return OK;
}

static result check(const char *directory, struct checking *checking, struct error *error) {
    char path[PATH_BYTES_MAX + 64];
    CLEANUP(repository_cleanup) git_repository *copy = NULL;
    CLEANUP(index_cleanup) git_index *files = NULL;
    TRY(workspace_prepare_library(error));
    TRY_GIT(
        git_repository_open_ext(&copy, directory, GIT_REPOSITORY_OPEN_NO_SEARCH, NULL),
        "opening the copy"
    );
    TRY(join(path, directory, ".git/" FILES_NAME, error));
    TRY_GIT(git_index_open(&files, path), "reading the list of files");
    checking->files = files;
    CLEANUP(fd_cleanup) int root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", directory, strerror(errno));
    }
    const struct worktree_walk walk = {
        .root_fd = root,
        .ignore = copy,
        .tracked = files,
        .visit = check_visited,
        .skip = note_change,
        .context = checking,
    };
    TRY(worktree_walk(&walk, error));
    if (checking->found != git_index_entrycount(files)) {
        note_change(checking, "(files are gone)");
    }
    checking->files = NULL;
    return check_references(copy, directory, checking, error);
}

result worktree_is_dirty(
    const char *directory, bool *out, char names[WORKTREE_NAMES_BYTES], struct error *error
) {
    CLEANUP(fd_cleanup) int lease = -1;
    TRY(worktree_lease(directory, &lease, error));
    struct checking checking = {.changed = 0};
    TRY(check(directory, &checking, error));
    *out = checking.changed > 0;
    memcpy(names, checking.names, sizeof checking.names);
    return OK;
}

result worktree_remove(const char *directory, struct error *error) {
    CLEANUP(fd_cleanup) int list = -1;
    CLEANUP(fd_cleanup) int lock = -1;
    TRY(open_list(directory, LOCK_EX, &list, error));
    CLEANUP(fd_cleanup) int root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", directory, strerror(errno));
    }
    TRY(lock_directory(root, directory, &lock, error));
    struct checking checking = {.changed = 0};
    TRY(check(directory, &checking, error));
    if (checking.changed > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "'%.150s' has %zu changes that would be lost: %.200s",
            directory,
            checking.changed,
            checking.names
        );
    }
    TRY(worktree_clear(root, error));
    if (rmdir(directory) != 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", directory, strerror(errno));
    }
    return OK;
}
