/* What the snapshot store keeps: marked from the snapshots that stay, the rest is removed file by file.
 *
 * Commits have the last snapshot as their parent, but that is not followed: a snapshot is its tree, and a
 * store from which nothing could ever go would only grow. All of it under the store's lock.
 */
#include "workspace_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#define CLOCK_LOOKED_AT 64 /* removals between two looks at the clock */

/* ---- objects -------------------------------------------------------------------------------- */

struct object {
    git_oid id; /* zeros: a free slot, as no object has that name */
    uint32_t blocks;
    bool stays;
};

/* All that the store has. Open addressing. */
struct objects {
    struct object *slots;
    size_t capacity; /* power of two */
    size_t count;
    uint64_t bytes;  /* of all, and what killed writers left */
    uint64_t marked; /* of those that stay */
    int objects_fd;
    time_t older_than; /* left-overs that go; 0: none */
    size_t removed;    /* of them */
    uint64_t removed_bytes;
};

static void objects_deinit(struct objects *objects) {
    free(objects->slots);
    fd_cleanup(&objects->objects_fd);
}

static size_t slot_of(const struct objects *objects, const git_oid *id) {
    size_t at;
    memcpy(&at, id->id, sizeof at); // a cryptographic hash: any part of it will do
    for (at &= objects->capacity - 1; !git_oid_is_zero(&objects->slots[at].id);
         at = (at + 1) & (objects->capacity - 1)) {
        if (git_oid_equal(&objects->slots[at].id, id)) {
            break;
        }
    }
    return at;
}

static struct object *find_object(const struct objects *objects, const git_oid *id) {
    struct object *slot = objects->capacity > 0 ? &objects->slots[slot_of(objects, id)] : NULL;
    return slot == NULL || git_oid_is_zero(&slot->id) ? NULL : slot;
}

static result make_room(struct objects *objects, struct error *error) {
    if (2 * objects->count < objects->capacity) {
        return OK;
    }
    struct objects grown = *objects;
    grown.capacity = objects->capacity > 0 ? 2 * objects->capacity : 1024;
    grown.slots = grown.capacity <= 2 * WORKSPACE_OBJECTS_MAX
                      ? calloc(grown.capacity, sizeof *grown.slots)
                      : NULL;
    if (grown.slots == NULL) {
        FAIL(error, MEMORY, "no memory for the names of %zu objects", objects->count);
    }
    for (size_t i = 0; i < objects->capacity; i++) {
        if (!git_oid_is_zero(&objects->slots[i].id)) {
            grown.slots[slot_of(&grown, &objects->slots[i].id)] = objects->slots[i];
        }
    }
    free(objects->slots);
    *objects = grown;
    return OK;
}

static result note_object(
    void *context,
    const char *name,
    const git_oid *id,
    const struct stat *about,
    struct error *error
) {
    struct objects *objects = context;
    uint64_t bytes = (uint64_t)about->st_blocks * 512;
    objects->bytes += bytes;
    if (id == NULL) {
        if (about->st_mtim.tv_sec < objects->older_than &&
            unlinkat(objects->objects_fd, name, 0) == 0) {
            objects->removed += 1;
            objects->removed_bytes += bytes;
        }
        return OK;
    }
    TRY(make_room(objects, error));
    struct object *slot = &objects->slots[slot_of(objects, id)];
    objects->count += git_oid_is_zero(&slot->id) ? 1 : 0;
    *slot = (struct object){.id = *id, .blocks = (uint32_t)about->st_blocks};
    return OK;
}

static result
read_objects(struct workspace *workspace, struct objects *objects, struct error *error) {
    objects->objects_fd =
        openat(workspace->store_fd, "objects", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (objects->objects_fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "snapshot store: %s", strerror(errno));
    }
    return workspace_store_visit(workspace, note_object, objects, error);
}

/* ---- mark ----------------------------------------------------------------------------------- */

enum mark { MARK_NEW, MARK_KNOWN, MARK_MISSING };

static enum mark mark_object(struct objects *objects, const git_oid *id) {
    struct object *object = find_object(objects, id);
    if (object == NULL || object->stays) {
        return object == NULL ? MARK_MISSING : MARK_KNOWN;
    }
    object->stays = true;
    objects->marked += (uint64_t)object->blocks * 512;
    return MARK_NEW;
}

/* A tree and all below it. `pending` is a list of names of trees still to read. What is missing or cannot
 * be read is passed over: the rest stays. */
static result mark_tree(
    struct workspace *workspace,
    struct objects *objects,
    const git_oid *root,
    bool *is_damaged,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer pending;
    buffer_init(&pending, WORKSPACE_OBJECTS_MAX);
    enum mark mark = mark_object(objects, root);
    *is_damaged = *is_damaged || mark == MARK_MISSING;
    if (mark == MARK_NEW) {
        TRY(buffer_append(&pending, view_of(root, sizeof *root), error));
    }
    while (pending.length > 0) {
        git_oid id;
        pending.length -= sizeof id;
        memcpy(&id, pending.data + pending.length, sizeof id);
        TRY(workspace_check_time(workspace, error));
        CLEANUP(tree_cleanup) git_tree *tree = NULL;
        if (git_tree_lookup(&tree, workspace->repository, &id) < 0) {
            *is_damaged = true;
            continue;
        }
        for (size_t i = 0; i < git_tree_entrycount(tree); i++) {
            const git_tree_entry *entry = git_tree_entry_byindex(tree, i);
            const git_oid *child = git_tree_entry_id(entry);
            mark = mark_object(objects, child);
            *is_damaged = *is_damaged || mark == MARK_MISSING;
            if (mark == MARK_NEW && git_tree_entry_type(entry) == GIT_OBJECT_TREE) {
                TRY(buffer_append(&pending, view_of(child, sizeof *child), error));
            }
        }
    }
    return OK;
}

struct commit_state {
    bool is_missing, is_damaged;
    git_time_t made_s;
    git_oid parent; /* zeros: none */
};

static result mark_commit(
    struct workspace *workspace,
    struct objects *objects,
    const git_oid *id,
    struct commit_state *state,
    struct error *error
) {
    *state = (struct commit_state){.is_missing = find_object(objects, id) == NULL};
    if (state->is_missing) {
        return OK;
    }
    git_commit *commit = NULL;
    (void)mark_object(objects, id);
    if (git_commit_lookup(&commit, workspace->repository, id) < 0) {
        state->is_damaged = true;
        return OK;
    }
    git_oid tree = *git_commit_tree_id(commit);
    state->made_s = git_commit_time(commit);
    if (git_commit_parentcount(commit) > 0) {
        state->parent = *git_commit_parent_id(commit, 0);
    }
    git_commit_free(commit);
    return mark_tree(workspace, objects, &tree, &state->is_damaged, error);
}

/* The next snapshot takes over what the cache says without looking whether it is there. */
static result
mark_cache(struct workspace *workspace, struct objects *objects, struct error *error) {
    TRY(workspace_read_cache(workspace, error));
    for (size_t i = 0; i < git_index_entrycount(workspace->cache); i++) {
        (void)mark_object(objects, &git_index_get_byindex(workspace->cache, i)->id);
    }
    return OK;
}

static bool read_pin(const char *text, git_oid *id) {
    return strlen(text) == WORKSPACE_COMMIT_BYTES - 1 && git_oid_fromstr(id, text) == 0;
}

/* Those that workspace_keep keeps; old ones are let go. */
static result mark_kept(
    struct workspace *workspace,
    struct objects *objects,
    const struct workspace_collect_options *options,
    struct error *error
) {
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(workspace->store_fd, WORKSPACE_KEPT_NAME, flags);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    time_t older_than = time(NULL) - (time_t)options->age_s;
    result marked = OK;
    if (directory == NULL) {
        fd_cleanup(&fd);
        return OK; // none was ever kept
    }
    for (struct dirent *entry = readdir(directory); entry != NULL && is_ok(marked);
         entry = readdir(directory)) {
        struct stat about;
        struct commit_state state;
        git_oid id;
        if (!read_pin(entry->d_name, &id) ||
            fstatat(fd, entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        if (options->age_s > 0 && about.st_mtim.tv_sec >= older_than) {
            marked = mark_commit(workspace, objects, &id, &state, error);
        } else if (!options->is_trial) {
            (void)unlinkat(fd, entry->d_name, 0); // the next one tries again
        }
    }
    closedir(directory);
    return marked;
}

/* The latest snapshot, those before it that are not older than age_s, and the cache. */
static result mark_latest(
    struct workspace *workspace, struct objects *objects, int64_t age_s, struct error *error
) {
    git_oid id;
    time_t older_than = time(NULL) - (time_t)age_s;
    int status = git_reference_name_to_id(&id, workspace->repository, WORKSPACE_SNAPSHOT_REFERENCE);
    if (status != 0 && status != GIT_ENOTFOUND) {
        TRY_GIT(status, "reading the last snapshot");
    }
    for (bool goes_on = status == 0; goes_on;) {
        struct commit_state state;
        TRY(mark_commit(workspace, objects, &id, &state, error));
        id = state.parent;
        goes_on = age_s > 0 && !git_oid_is_zero(&id) && state.made_s >= older_than;
    }
    return mark_cache(workspace, objects, error);
}

/* ---- weigh ---------------------------------------------------------------------------------- */

static result weigh(
    struct workspace *workspace,
    struct objects *objects,
    const char *const *pins,
    size_t count,
    uint64_t *bytes,
    struct workspace_weight *out,
    struct error *error
) {
    TRY(read_objects(workspace, objects, error));
    workspace_store_has(workspace, objects->bytes);
    TRY(mark_latest(workspace, objects, 0, error));
    *out = (struct workspace_weight){.bytes = objects->bytes, .fixed = objects->marked};
    for (size_t i = 0; i < count; i++) {
        git_oid id;
        struct commit_state state = {.is_missing = true};
        uint64_t before = objects->marked;
        if (read_pin(pins[i], &id)) {
            TRY(mark_commit(workspace, objects, &id, &state, error));
        }
        bytes[i] = state.is_missing ? WORKSPACE_NOT_THERE : objects->marked - before;
    }
    return OK;
}

result workspace_weigh(
    struct workspace *workspace,
    const char *const *pins,
    size_t count,
    uint64_t *bytes,
    struct workspace_weight *out,
    struct error *error
) {
    CLEANUP(objects_deinit) struct objects objects = {.objects_fd = -1};
    struct workspace_weight weight;
    TRY(workspace_store_lock(workspace, error));
    result weighed = weigh(workspace, &objects, pins, count, bytes, &weight, error);
    workspace_store_unlock(workspace);
    TRY(weighed);
    *out = weight;
    return OK;
}

/* ---- collect -------------------------------------------------------------------------------- */

static result mark_pins(
    struct workspace *workspace,
    struct objects *objects,
    const struct workspace_collect_options *options,
    struct workspace_collected *collected,
    struct error *error
) {
    for (size_t i = 0; i < options->keep; i++) {
        git_oid id;
        struct commit_state state = {.is_missing = true};
        if (read_pin(options->pins[i], &id)) {
            TRY(mark_commit(workspace, objects, &id, &state, error));
        }
        collected->missing += state.is_missing ? 1 : 0;
        collected->damaged += state.is_damaged ? 1 : 0;
    }
    return OK;
}

static void remove_object(
    const struct objects *objects,
    struct object *object,
    const struct workspace_collect_options *options,
    struct workspace_collected *collected
) {
    char name[GIT_OID_HEXSZ + 2];
    char text[GIT_OID_HEXSZ + 1];
    git_oid_tostr(text, sizeof text, &object->id);
    (void)snprintf(name, sizeof name, "%.2s/%s", text, text + 2);
    if (options->is_trial || unlinkat(objects->objects_fd, name, 0) == 0) {
        object->stays = true; // it is dealt with
        collected->removed += 1;
        collected->bytes_after -= (uint64_t)object->blocks * 512;
    }
}

/* Snapshots before what they need. */
static void sweep(
    struct workspace *workspace,
    struct objects *objects,
    const struct workspace_collect_options *options,
    struct workspace_collected *collected
) {
    for (size_t i = options->keep; i < options->count; i++) {
        git_oid id;
        struct object *object = read_pin(options->pins[i], &id) ? find_object(objects, &id) : NULL;
        if (object != NULL && !object->stays) {
            remove_object(objects, object, options, collected);
        }
    }
    for (size_t i = 0; i < objects->capacity && !collected->is_cut; i++) {
        struct object *object = &objects->slots[i];
        if (git_oid_is_zero(&object->id) || object->stays) {
            continue;
        }
        remove_object(objects, object, options, collected);
        collected->is_cut = collected->removed % CLOCK_LOOKED_AT == 0 &&
                            is_failed(workspace_check_time(workspace, NULL));
    }
}

/* No snapshot builds on what goes. */
static result drop_latest(struct workspace *workspace, struct error *error) {
    if (unlinkat(workspace->store_fd, WORKSPACE_CACHE_NAME, 0) != 0 && errno != ENOENT) {
        FAIL_FOREIGN(error, IO, errno, "removing the snapshot cache: %s", strerror(errno));
    }
    int status = git_reference_remove(workspace->repository, WORKSPACE_SNAPSHOT_REFERENCE);
    if (status != GIT_ENOTFOUND) {
        TRY_GIT(status, "removing the last snapshot");
    }
    return OK;
}

static result collect(
    struct workspace *workspace,
    const struct workspace_collect_options *options,
    struct workspace_collected *collected,
    struct error *error
) {
    CLEANUP(objects_deinit)
    struct objects objects = {
        .objects_fd = -1,
        .older_than = options->is_trial ? 0 : time(NULL) - (time_t)options->age_s,
    };
    TRY(read_objects(workspace, &objects, error));
    if (!options->drops_latest) {
        TRY(mark_latest(workspace, &objects, options->age_s, error));
    }
    TRY(mark_kept(workspace, &objects, options, error));
    TRY(mark_pins(workspace, &objects, options, collected, error));
    if (options->drops_latest && !options->is_trial) {
        TRY(drop_latest(workspace, error));
    }
    collected->bytes_before = objects.bytes;
    collected->bytes_after = objects.bytes - objects.removed_bytes;
    collected->removed = objects.removed;
    if (!options->is_trial) {
        workspace_store_grows(workspace); // a kill from here on leaves no wrong size
    }
    sweep(workspace, &objects, options, collected);
    if (!options->is_trial) {
        workspace_store_has(workspace, collected->bytes_after);
    }
    return OK;
}

result workspace_collect(
    struct workspace *workspace,
    const struct workspace_collect_options *options,
    struct workspace_collected *out,
    struct error *error
) {
    ASSERT(options->keep <= options->count);
    struct workspace_collected collected = {0};
    TRY(workspace_store_lock(workspace, error));
    result done = collect(workspace, options, &collected, error);
    workspace_store_unlock(workspace);
    TRY(done);
    *out = collected;
    return OK;
}
