/* Making copies: the repository, and the files as they are or as a snapshot has them. */
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
#include "worktree_internal.h"

#define PATH_BYTES_MAX   WORKTREE_PATH_BYTES_MAX
#define SMALL_FILE_BYTES ((size_t)1 << 20)
#define ALTERNATES_MAX   16
#define PARTIAL_TRIES    8U

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

result worktree_join(
    char out[WORKTREE_PATH_BYTES], const char *directory, const char *name, struct error *error
) {
    int length = snprintf(out, WORKTREE_PATH_BYTES, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= WORKTREE_PATH_BYTES) {
        FAIL(error, INVALID_INPUT, "'%.300s' is too long a path", directory);
    }
    return OK;
}

void worktree_fill_entry(
    git_index_entry *entry, const char *path, const git_oid *id, const struct stat *about
) {
    static const git_oid none = {{1}};
    *entry = (git_index_entry){
        .ctime = {(int32_t)about->st_ctim.tv_sec, (uint32_t)about->st_ctim.tv_nsec},
        .mtime = {(int32_t)about->st_mtim.tv_sec, (uint32_t)about->st_mtim.tv_nsec},
        .dev = (uint32_t)about->st_dev,
        .ino = (uint32_t)about->st_ino,
        .file_size = (uint32_t)about->st_size,
        .mode = S_ISLNK(about->st_mode)           ? GIT_FILEMODE_LINK
                : (about->st_mode & S_IXUSR) != 0 ? GIT_FILEMODE_BLOB_EXECUTABLE
                                                  : GIT_FILEMODE_BLOB,
        .id = id != NULL ? *id : none,
        .path = path,
    };
}

bool worktree_is_same_entry(const git_index_entry *a, const git_index_entry *b) {
    return a->mode == b->mode && a->ino == b->ino && a->dev == b->dev &&
           a->file_size == b->file_size && a->mtime.seconds == b->mtime.seconds &&
           a->mtime.nanoseconds == b->mtime.nanoseconds && a->ctime.seconds == b->ctime.seconds &&
           a->ctime.nanoseconds == b->ctime.nanoseconds;
}

/* Branches and HEAD as text, in libgit2's order. */
result
worktree_list_references(git_repository *repository, struct buffer *out, struct error *error) {
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
    char path[WORKTREE_PATH_BYTES];
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
    char from[WORKTREE_PATH_BYTES];
    char to[WORKTREE_PATH_BYTES];
    char alternates[WORKTREE_PATH_BYTES];
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, SMALL_FILE_BYTES);
    TRY(worktree_join(from, git_repository_commondir(source), "objects", error));
    TRY(worktree_join(to, git_repository_path(copy), "objects", error));
    TRY(worktree_link_objects(from, to, error));
    TRY(worktree_join(alternates, from, "info/alternates", error));
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
    char from[WORKTREE_PATH_BYTES];
    char to[WORKTREE_PATH_BYTES];
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, SMALL_FILE_BYTES);
    TRY(worktree_join(from, git_repository_commondir(source), "info/exclude", error));
    TRY(worktree_join(to, git_repository_path(copy), "info/exclude", error));
    if (is_failed(file_read(from, &text, NULL))) {
        return OK; // there is none
    }
    CLEANUP(file_cleanup) FILE *file = fopen(to, "we");
    if (file == NULL || fwrite(text.data, 1, text.length, file) != text.length) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", to, strerror(errno));
    }
    return OK;
}

/* A first commit, where the source has no repository. */
static result commit_tree(
    git_repository *copy,
    const git_oid *tree_id,
    struct worktree_creation *creation,
    struct error *error
) {
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    CLEANUP(signature_cleanup) git_signature *author = NULL;
    git_oid id;
    char name[300];
    const char *branch = creation->options->branch;
    (void)snprintf(name, sizeof name, "refs/heads/%.250s", branch != NULL ? branch : "main");
    TRY_GIT(git_repository_set_head(copy, name), "setting HEAD");
    TRY_GIT(git_tree_lookup(&tree, copy, tree_id), "reading a tree");
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
    (void)git_oid_tostr(creation->made.head, sizeof creation->made.head, &id);
    if (branch == NULL) {
        TRY_GIT(git_repository_set_head_detached(copy, &id), "setting HEAD");
    }
    return OK;
}

/* The tree and the index of all that was copied. */
static result
add_files(git_repository *copy, git_index *files, git_oid *tree, struct error *error) {
    CLEANUP(index_cleanup) git_index *index = NULL;
    TRY_GIT(git_repository_index(&index, copy), "opening the index");
    for (size_t i = 0; i < git_index_entrycount(files); i++) {
        const char *path = git_index_get_byindex(files, i)->path;
        TRY_GIT(git_index_add_bypath(index, path), "adding a file");
    }
    TRY_GIT(git_index_write_tree(tree, index), "storing a tree");
    TRY_GIT(git_index_write(index), "writing the index");
    return OK;
}

/* The same from a snapshot, whose objects are there already: they are linked. */
static result add_snapshot(
    git_repository *copy, struct worktree_creation *creation, git_oid *tree, struct error *error
) {
    CLEANUP(index_cleanup) git_index *index = NULL;
    CLEANUP(fd_cleanup)
    int to = open(git_repository_path(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (to < 0) {
        FAIL_FOREIGN(error, IO, errno, "opening the copy's repository: %s", strerror(errno));
    }
    *tree = *git_tree_id(creation->tree);
    TRY(workspace_link_tree(creation->snapshots, tree, copy, to, error));
    TRY_GIT(git_repository_index(&index, copy), "opening the index");
    TRY_GIT(git_index_read_tree(index, creation->tree), "filling the index");
    TRY_GIT(git_index_write(index), "writing the index");
    return OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

void worktree_skip(struct worktree_creation *creation, const char *path) {
    creation->made.skipped += 1;
    worktree_note_name(creation->made.skipped_names, sizeof creation->made.skipped_names, path);
}

result worktree_note_made(
    struct worktree_creation *creation,
    const char *path,
    const git_oid *id,
    const struct stat *about,
    struct error *error
) {
    struct worktree *made = &creation->made;
    git_index_entry item;
    worktree_fill_entry(&item, path, id, about);
    if (git_index_add(creation->files, &item) < 0) { // a name that git cannot hold: see is_dirty
        worktree_skip(creation, path);
    }
    if (about->st_ctim.tv_sec > creation->last.tv_sec ||
        (about->st_ctim.tv_sec == creation->last.tv_sec &&
         about->st_ctim.tv_nsec > creation->last.tv_nsec)) {
        creation->last = about->st_ctim;
    }
    made->files += 1;
    made->bytes += (uint64_t)about->st_size;
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

static void skip_path(void *context, const char *path) {
    worktree_skip(context, path);
}

static result copy_visited(void *context, const struct worktree_entry *entry, struct error *error) {
    struct worktree_creation *creation = context;
    mode_t bits = entry->about->st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
    if (S_ISDIR(entry->about->st_mode)) {
        if (mkdirat(creation->to_fd, entry->path, bits | S_IRWXU) != 0) {
            FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", entry->path, strerror(errno));
        }
        return OK;
    }
    bool copied = false;
    struct stat about;
    TRY(worktree_copy_entry(creation->to_fd, entry, &copied, error));
    if (!copied) {
        worktree_skip(creation, entry->path);
        return OK;
    }
    if (fstatat(creation->to_fd, entry->path, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        FAIL_FOREIGN(error, IO, errno, "copying '%.300s': %s", entry->path, strerror(errno));
    }
    return worktree_note_made(creation, entry->path, NULL, &about, error);
}

/* Commands cannot write there. */
static result write_scratch(git_repository *copy, struct error *error) {
    char path[WORKTREE_PATH_BYTES];
    TRY(worktree_join(path, git_repository_path(copy), WORKTREE_SCRATCH_NAME, error));
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", path, strerror(errno));
    }
    return OK;
}

static result write_references(git_repository *copy, struct error *error) {
    char path[WORKTREE_PATH_BYTES];
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, WORKTREE_REFERENCES_BYTES);
    TRY(worktree_list_references(copy, &text, error));
    TRY(worktree_join(path, git_repository_path(copy), WORKTREE_REFERENCES_NAME, error));
    FILE *file = fopen(path, "we");
    bool written = file != NULL && fwrite(text.data, 1, text.length, file) == text.length;
    int closed = file != NULL ? fclose(file) : -1;
    if (!written || closed != 0) {
        FAIL_FOREIGN(error, IO, errno, "'%.300s': %s", path, strerror(errno));
    }
    return OK;
}

static result copy_files(
    struct worktree_creation *creation,
    git_repository *ignore,
    git_index *tracked,
    struct error *error
) {
    if (creation->tree != NULL) {
        return worktree_copy_snapshot(creation, tracked, error);
    }
    const struct worktree_walk walk = {
        .root_fd = creation->source_fd,
        .ignore = ignore,
        .tracked = tracked,
        .with_ignored = creation->options->with_ignored,
        .visit = copy_visited,
        .skip = skip_path,
        .context = creation,
    };
    return worktree_walk(&walk, error);
}

/* With a second view of the copy's repository whose tree is the source's, for its .gitignore. */
static result create_without_repository(
    struct worktree_creation *creation, git_repository *copy, struct error *error
) {
    git_oid tree;
    CLEANUP(repository_cleanup) git_repository *ignore = NULL;
    TRY_GIT(git_repository_open(&ignore, git_repository_path(copy)), "opening the copy");
    TRY_GIT(
        git_repository_set_workdir(ignore, creation->options->source, 0), "attaching the workspace"
    );
    TRY(copy_files(creation, ignore, NULL, error));
    TRY(creation->tree != NULL ? add_snapshot(copy, creation, &tree, error)
                               : add_files(copy, creation->files, &tree, error));
    return commit_tree(copy, &tree, creation, error);
}

static result create_with_repository(
    struct worktree_creation *creation, git_repository *copy, struct error *error
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
    return copy_files(creation, source, tracked, error);
}

/* Opens the snapshot that the files are to come from. */
static result open_snapshot(struct worktree_creation *creation, struct error *error) {
    const struct worktree_options *options = creation->options;
    if (options->commit == NULL) {
        return OK;
    }
    TRY(workspace_open(options->source, options->snapshots, &creation->snapshots, error));
    TRY(workspace_store_lock(creation->snapshots, error));
    result read = workspace_read_cache(creation->snapshots, error);
    workspace_store_unlock(creation->snapshots);
    TRY(read);
    return workspace_find_tree(creation->snapshots, options->commit, &creation->tree, error);
}

static result
create_parts(struct worktree_creation *creation, bool has_git, int *lease, struct error *error) {
    CLEANUP(repository_cleanup) git_repository *copy = NULL;
    CLEANUP(index_cleanup) git_index *files = NULL;
    char path[WORKTREE_PATH_BYTES];
    TRY(open_snapshot(creation, error));
    TRY_GIT(git_repository_init(&copy, creation->directory, 0), "making a repository");
    TRY(worktree_join(path, git_repository_path(copy), WORKTREE_FILES_NAME, error));
    TRY_GIT(git_index_open(&files, path), "making the list of files");
    creation->files = files;
    TRY(has_git ? create_with_repository(creation, copy, error)
                : create_without_repository(creation, copy, error));
    TRY_GIT(git_index_write(files), "writing the list of files");
    TRY(write_references(copy, error));
    TRY(creation->options->is_scratch ? write_scratch(copy, error) : OK);
    if (creation->options->own_snapshots != NULL) {
        TRY(worktree_seed_store(creation, error));
    }
    creation->files = NULL;
    // Before anybody can find the copy, and remove it because nobody works there.
    return worktree_open_list(creation->directory, LOCK_SH, lease, error);
}

/* ---- place ---------------------------------------------------------------------------------- */

static bool is_within(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

static result check_place(const struct worktree_options *options, struct error *error) {
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
    const char *own = options->own_snapshots;
    if ((options->commit != NULL) != (options->snapshots != NULL) ||
        (own != NULL && (options->commit == NULL || strcmp(own, options->snapshots) == 0))) {
        FAIL(
            error,
            INVALID_INPUT,
            "a copy of a snapshot needs its name, its store, and one of its own"
        );
    }
    return OK;
}

result worktree_make_partial(
    const char *directory, char partial[WORKTREE_PATH_BYTES], int *out_fd, struct error *error
) {
    for (unsigned i = 0; i < PARTIAL_TRIES; i++) {
        struct stat about;
        int length =
            snprintf(partial, WORKTREE_PATH_BYTES, "%s" WORKTREE_PARTIAL_SUFFIX, directory);
        if (length < 0 || (size_t)length >= WORKTREE_PATH_BYTES || mkdtemp(partial) == NULL) {
            FAIL_FOREIGN(error, IO, errno, "making '%.300s': %s", partial, strerror(errno));
        }
        // A sweep of another process may find it before it is locked, and then it is gone.
        CLEANUP(fd_cleanup) int fd = open(partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &about) == 0 &&
            about.st_nlink > 0) {
            *out_fd = fd;
            fd = -1;
            return OK;
        }
    }
    FAIL(error, IO, "'%.300s' is removed as soon as it is made", partial);
}

static result
create_at_place(struct worktree_creation *creation, bool has_git, int *lease, struct error *error) {
    const char *place = creation->options->directory;
    result made = create_parts(creation, has_git, lease, error);
    if (is_ok(made) && rename(creation->directory, place) != 0) {
        made = error_set(
            error, RESULT_IO, errno, __FILE__, __LINE__, "'%.300s': %s", place, strerror(errno)
        );
    }
    git_tree_free(creation->tree);
    workspace_close(creation->snapshots);
    if (is_failed(made)) {
        result_ignore(worktree_clear(creation->to_fd, NULL)
        ); // the first failure is the one to tell
        (void)rmdir(creation->directory);
    }
    return made;
}

result
worktree_create(const struct worktree_options *options, struct worktree *out, struct error *error) {
    bool has_git = false;
    char partial[WORKTREE_PATH_BYTES];
    TRY(workspace_prepare_library(error));
    TRY(mounts_check_git(options->source, &has_git, error));
    CLEANUP(fd_cleanup)
    int source = open(options->source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CLEANUP(fd_cleanup) int lock = -1;
    CLEANUP(worktree_release) int to = -1; // the copy may be removed as soon as it was made
    CLEANUP(worktree_release) int lease = -1;
    if (source < 0) {
        FAIL_FOREIGN(error, IO, errno, "workspace '%.300s': %s", options->source, strerror(errno));
    }
    if (options->commit == NULL || options->with_ignored) { // no command changes it meanwhile
        TRY(lock_directory(source, options->source, &lock, error));
    }
    TRY(check_place(options, error));
    TRY(worktree_make_partial(options->directory, partial, &to, error));
    struct worktree_creation creation = {
        .options = options,
        .directory = partial,
        .source_fd = source,
        .to_fd = to,
        .has_clones = true,
    };
    TRY(create_at_place(&creation, has_git, &lease, error));
    if (options->lease != NULL) {
        *options->lease = lease;
        lease = -1;
    }
    *out = creation.made;
    return OK;
}
