/* What swarms of dead processes left. See swarm_work.h. */
#include "swarm_work_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#define NAMES_BYTES_MAX ((size_t)16 << 20) /* of one directory */

/* Stores whose copy is gone. */
static result sweep_stores(const char *place, struct error *error) {
    static const char *const folders[] = {SWARM_WORK_COPIES, SWARM_WORK_VERIFY};
    char path[SWARM_WORK_PATH];
    CLEANUP(buffer_deinit) struct buffer names;
    buffer_init(&names, NAMES_BYTES_MAX);
    TRY(swarm_work_join(path, place, SWARM_WORK_STORES, "", error));
    TRY(worktree_list_names(path, &names, error));
    for (size_t at = 0; at < names.length;) {
        const char *name = (const char *)names.data + at;
        bool has_copy = false;
        for (size_t i = 0; i < COUNT_OF(folders); i++) {
            TRY(swarm_work_join(path, place, folders[i], name, error));
            has_copy = has_copy || access(path, F_OK) == 0;
        }
        TRY(swarm_work_join(path, place, SWARM_WORK_STORES, name, error));
        if (!has_copy) {
            result_ignore(worktree_remove_store(path, NULL)); // what is none stays
        }
        at += strlen(name) + 1;
    }
    return OK;
}

static void name_kept(const char *session, const char *what, struct swarm_work_swept *swept) {
    size_t used = strlen(swept->kept_names);
    (void)snprintf(
        swept->kept_names + used,
        sizeof swept->kept_names - used,
        "%s%s: %.400s",
        used > 0 ? "; " : "",
        session,
        what
    );
    swept->kept_names[utf8_valid_prefix(view_of_text(swept->kept_names))] = '\0';
}

static void
add_kept(const char *session, const struct worktree_swept *copies, struct swarm_work_swept *swept) {
    swept->removed += copies->removed;
    swept->kept += copies->kept + copies->in_use; // somebody else works in one
    if (copies->kept > 0) {
        name_kept(session, copies->kept_names, swept);
    }
}

result swarm_work_sweep_rest(const char *place, struct error *error) {
    static const char *const folders[] = {SWARM_WORK_VERIFY, SWARM_WORK_STORES};
    char path[SWARM_WORK_PATH];
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        struct worktree_swept swept; // of stores only what is half removed
        TRY(swarm_work_join(path, place, folders[i], "", error));
        TRY(worktree_sweep(path, false, &swept, error));
    }
    return sweep_stores(place, error);
}

/* With the lock of the place: its owner is dead. */
static result sweep_place(
    const char *place, const char *session, struct swarm_work_swept *swept, struct error *error
) {
    static const char *const folders[] = {SWARM_WORK_COPIES, SWARM_WORK_VERIFY, SWARM_WORK_STORES};
    char path[SWARM_WORK_PATH];
    struct worktree_swept found;
    TRY(swarm_work_join(path, place, SWARM_WORK_COPIES, "", error));
    TRY(worktree_sweep(path, false, &found, error));
    add_kept(session, &found, swept);
    TRY(swarm_work_sweep_rest(place, error));
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        TRY(swarm_work_join(path, place, folders[i], "", error));
        (void)rmdir(path); // with something in it it stays
    }
    (void)rmdir(place);
    return OK;
}

result swarm_work_sweep(const char *swarms, struct swarm_work_swept *out, struct error *error) {
    struct swarm_work_swept swept = {.removed = 0};
    CLEANUP(buffer_deinit) struct buffer names;
    buffer_init(&names, NAMES_BYTES_MAX);
    TRY(worktree_list_names(swarms, &names, error));
    for (size_t at = 0; at < names.length;) {
        char path[SWARM_WORK_PATH];
        const char *name = (const char *)names.data + at;
        TRY(swarm_work_join(path, swarms, name, "", error));
        CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            struct error trouble = {0};
            result done = sweep_place(path, name, &swept, &trouble);
            (void)flock(fd, LOCK_UN); // at once: see worktree_release
            if (is_failed(done)) {    // those behind it are swept all the same
                swept.kept += 1;
                name_kept(name, trouble.message, &swept);
            }
        } else if (fd >= 0) {
            swept.in_use += 1;
        }
        at += strlen(name) + 1;
    }
    *out = swept;
    return OK;
}
