/* Brings the objects of a snapshot from one store to another: what is missing is copied, what is there is
 * made young, so that it is not collected before somebody refers to it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "workspace_internal.h"
#include "workspace_merge.h"

#define OBJECTS_MAX      ((size_t)1 << 22) /* of a snapshot */
#define TREE_BYTES_MAX   ((size_t)256 << 20)
#define COMMIT_BYTES_MAX ((size_t)1 << 20)

result workspace_keep(struct workspace *workspace, const git_oid *commit, struct error *error) {
    char name[GIT_OID_HEXSZ + 16];
    (void)snprintf(name, sizeof name, WORKSPACE_KEPT_NAME "/%s", git_oid_tostr_s(commit));
    int made = mkdirat(workspace->store_fd, WORKSPACE_KEPT_NAME, 0700);
    (void)made; // mostly there; the next line tells
    int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    CLEANUP(fd_cleanup) int fd = openat(workspace->store_fd, name, flags, 0600);
    if (fd < 0 || futimens(fd, NULL) != 0) {
        FAIL_FOREIGN(error, IO, errno, "keeping a snapshot: %s", strerror(errno));
    }
    return OK;
}

struct import {
    git_repository *from;
    git_odb *source, *target;
    int from_fd, to_fd;  /* directories with objects/ in them; from_fd -1: files are not linked */
    struct buffer trees; /* names, each before what is below it */
};

static void import_deinit(struct import *import) {
    buffer_deinit(&import->trees);
    git_odb_free(import->target);
    git_odb_free(import->source);
}

/* All objects of a store are loose files. */
struct object_path {
    char text[GIT_OID_HEXSZ + 16];
};

static struct object_path path_of(const git_oid *id) {
    struct object_path path;
    char hex[GIT_OID_HEXSZ + 1];
    (void)git_oid_tostr(hex, sizeof hex, id);
    (void)snprintf(path.text, sizeof path.text, "objects/%.2s/%s", hex, hex + 2);
    return path;
}

/* False: it has to be copied. */
static bool link_object(const struct import *import, const git_oid *id) {
    char directory[GIT_OID_HEXSZ];
    struct object_path path = path_of(id);
    const char *text = path.text;
    if (import->from_fd < 0) {
        return false;
    }
    int linked = linkat(import->from_fd, text, import->to_fd, text, 0);
    if (linked != 0 && errno == ENOENT) {
        (void)snprintf(directory, sizeof directory, "%.10s", text); // objects/ and two digits
        linked = mkdirat(import->to_fd, directory, 0700);
        linked = linkat(import->from_fd, text, import->to_fd, text, 0);
    }
    return linked == 0 || errno == EEXIST;
}

static result copy_object(
    const struct import *import,
    const git_oid *id,
    git_object_t kind,
    size_t bytes_max,
    struct error *error
) {
    size_t bytes = 0;
    git_object_t found = GIT_OBJECT_INVALID;
    git_odb_object *object = NULL;
    git_oid written;
    struct object_path path = path_of(id);
    if (link_object(import, id) ||
        utimensat(import->to_fd, path.text, NULL, AT_SYMLINK_NOFOLLOW) == 0) {
        return OK; // there, and young
    }
    if (git_odb_read_header(&bytes, &found, import->source, id) < 0 || found != kind ||
        bytes > bytes_max || git_odb_read(&object, import->source, id) < 0) {
        FAIL(error, CORRUPT, "object %s of a snapshot cannot be had", git_oid_tostr_s(id));
    }
    int status = git_odb_write(
        &written, import->target, git_odb_object_data(object), git_odb_object_size(object), kind
    );
    git_odb_object_free(object);
    TRY_GIT(status, "storing an object");
    ASSERT(git_oid_equal(&written, id)); // libgit2 compares content and name as it reads
    return OK;
}

static result
copy_entries(struct import *import, const git_oid *id, size_t *count, struct error *error) {
    CLEANUP(tree_cleanup) git_tree *tree = NULL;
    if (git_tree_lookup(&tree, import->from, id) < 0) {
        FAIL(error, CORRUPT, "directory %s of a snapshot cannot be had", git_oid_tostr_s(id));
    }
    for (size_t i = 0; i < git_tree_entrycount(tree); i++) {
        const git_tree_entry *entry = git_tree_entry_byindex(tree, i);
        const git_oid *child = git_tree_entry_id(entry);
        if (++*count > OBJECTS_MAX) {
            FAIL(error, CORRUPT, "a snapshot has more than %zu files", OBJECTS_MAX);
        }
        if (git_tree_entry_type(entry) == GIT_OBJECT_TREE) {
            TRY(buffer_append(&import->trees, view_of(child, sizeof *child), error));
        } else {
            size_t max = (size_t)WORKSPACE_FILE_BYTES_MAX;
            TRY(copy_object(import, child, GIT_OBJECT_BLOB, max, error));
        }
    }
    return OK;
}

/* What is below is stored before what refers to it. */
static result copy_tree(struct import *import, const git_oid *root, struct error *error) {
    git_oid id;
    size_t count = 0;
    buffer_init(&import->trees, OBJECTS_MAX * sizeof id);
    TRY(buffer_append(&import->trees, view_of(root, sizeof *root), error));
    for (size_t at = 0; at < import->trees.length; at += sizeof id) {
        memcpy(&id, import->trees.data + at, sizeof id); // the buffer moves as it grows
        TRY(copy_entries(import, &id, &count, error));
    }
    for (size_t at = import->trees.length; at > 0; at -= sizeof id) {
        memcpy(&id, import->trees.data + at - sizeof id, sizeof id);
        TRY(copy_object(import, &id, GIT_OBJECT_TREE, TREE_BYTES_MAX, error));
    }
    return OK;
}

static result copy_snapshot(struct import *import, const git_oid *id, struct error *error) {
    git_commit *commit = NULL;
    if (git_commit_lookup(&commit, import->from, id) < 0) {
        FAIL(error, NOT_FOUND, "there is no snapshot %s to bring", git_oid_tostr_s(id));
    }
    git_oid tree = *git_commit_tree_id(commit);
    git_commit_free(commit);
    TRY(copy_tree(import, &tree, error));
    return copy_object(import, id, GIT_OBJECT_COMMIT, COMMIT_BYTES_MAX, error);
}

static result open_both(struct import *import, git_repository *to, struct error *error) {
    TRY_GIT(git_repository_odb(&import->source, import->from), "opening a snapshot store");
    TRY_GIT(git_repository_odb(&import->target, to), "opening the store");
    return OK;
}

static result import_locked(
    struct workspace *workspace, git_repository *from, const git_oid *id, struct error *error
) {
    CLEANUP(import_deinit)
    struct import import = {.from = from, .from_fd = -1, .to_fd = workspace->store_fd};
    workspace_store_grows(workspace);
    TRY(open_both(&import, workspace->repository, error));
    TRY(copy_snapshot(&import, id, error));
    return workspace_keep(workspace, id, error);
}

result workspace_import(
    struct workspace *workspace, const char *store, const char *commit, struct error *error
) {
    git_oid id;
    git_repository *from = NULL;
    if (strlen(commit) != WORKSPACE_COMMIT_BYTES - 1 || git_oid_fromstr(&id, commit) < 0) {
        FAIL(error, NOT_FOUND, "'%.60s' is not the name of a snapshot", commit);
    }
    if (git_repository_open_bare(&from, store) < 0) {
        FAIL(error, NOT_FOUND, "there is no snapshot store '%.300s'", store);
    }
    result locked = workspace_store_lock(workspace, error); // nothing is collected meanwhile
    result copied = locked;
    if (is_ok(locked)) {
        copied = import_locked(workspace, from, &id, error);
        workspace_store_unlock(workspace);
    }
    git_repository_free(from);
    return copied;
}

result workspace_link_snapshot(
    const struct workspace *from, const git_oid *commit, struct workspace *to, struct error *error
) {
    CLEANUP(import_deinit)
    struct import import = {
        .from = from->repository, .from_fd = from->store_fd, .to_fd = to->store_fd};
    TRY(open_both(&import, to->repository, error));
    return copy_snapshot(&import, commit, error);
}

result workspace_link_tree(
    const struct workspace *from,
    const git_oid *tree,
    git_repository *to,
    int to_fd,
    struct error *error
) {
    CLEANUP(import_deinit)
    struct import import = {.from = from->repository, .from_fd = from->store_fd, .to_fd = to_fd};
    TRY(open_both(&import, to, error));
    return copy_tree(&import, tree, error);
}
