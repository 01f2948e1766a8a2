/* The rules of hold.h over a short list under one mutex. */
#include "hold.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launch_spec.h"
#include "lock.h"
#include "nested.h"

#define USERS_MAX 64U /* commands at once in one workspace */

/* A workspace in which commands ran. */
struct known {
    struct known *next;
    dev_t device;
    ino_t inode;
    struct nested nested;
};

struct below {
    dev_t device;
    ino_t inode;
    char destination[SANDBOX_PATH_BYTES];
};

struct hold {
    struct hold *next;
    struct hold_table *table;
    dev_t device; /* of the workspace */
    ino_t inode;
    int lock_fd;    /* against other host processes */
    unsigned users; /* commands that run; 0: about to go */
    struct below below[MOUNTS_MAX];
    size_t below_count;
    bool can_be_shared;
};

struct hold_table {
    pthread_mutex_t mutex; /* guards all below, and of each hold */
    struct hold *first;
    struct known *first_known;
};

result hold_table_create(struct hold_table **out, struct error *error) {
    struct hold_table *table = calloc(1, sizeof *table);
    if (table == NULL || pthread_mutex_init(&table->mutex, NULL) != 0) {
        free(table);
        FAIL(error, MEMORY, "no memory for a table of workspaces");
    }
    *out = table;
    return OK;
}

void hold_table_destroy(struct hold_table *table) {
    if (table == NULL) {
        return;
    }
    ASSERT(table->first == NULL);
    for (struct known *known = table->first_known; known != NULL;) {
        struct known *next = known->next;
        free(known);
        known = next;
    }
    (void)pthread_mutex_destroy(&table->mutex);
    free(table);
}

/* A directory above a mount point can be renamed, by whoever may write there, unless it is one too. */
static bool is_held(const struct hold *hold, const char *destination) {
    const char *below = destination + strlen(LAUNCH_WORKSPACE "/");
    for (const char *at = below; (at = strchr(at, '/')) != NULL; at++) {
        size_t length = (size_t)(at - destination);
        bool is_point = false;
        for (size_t i = 0; i < hold->below_count && !is_point; i++) {
            const char *other = hold->below[i].destination;
            is_point = strncmp(other, destination, length) == 0 && other[length] == '\0';
        }
        if (!is_point) {
            return false;
        }
    }
    return true;
}

/* What `mounts` has below the workspace; false when a descriptor cannot be looked at. */
static bool list_below(const struct mounts *mounts, struct hold *out) {
    out->below_count = 0;
    out->can_be_shared = true;
    for (size_t i = 0; i < mounts->item_count; i++) {
        const struct mount_item *item = &mounts->items[i];
        struct stat about;
        if (item->kind == MOUNT_OUTSIDE) {
            continue;
        }
        if (fstat(item->fd, &about) != 0) {
            return false;
        }
        struct below *below = &out->below[out->below_count++];
        below->device = about.st_dev;
        below->inode = about.st_ino;
        memcpy(below->destination, item->destination, sizeof below->destination);
        out->can_be_shared = out->can_be_shared && is_held(out, item->destination);
    }
    return true;
}

static bool is_same_below(const struct hold *a, const struct hold *b) {
    bool same = a->below_count == b->below_count;
    for (size_t i = 0; same && i < a->below_count; i++) {
        same = a->below[i].device == b->below[i].device && a->below[i].inode == b->below[i].inode &&
               strcmp(a->below[i].destination, b->below[i].destination) == 0;
    }
    return same;
}

static result join(
    struct hold *hold,
    struct mounts *mounts,
    const struct sandbox_policy *policy,
    hold_open_below *open_below,
    struct error *error
) {
    const char *path = mounts->workspace;
    if (hold->users >= USERS_MAX) {
        FAIL(error, LIMIT, "%u commands are running in workspace '%.300s'", hold->users, path);
    }
    if (!hold->can_be_shared) {
        FAIL(
            error,
            LIMIT,
            "another command is running in workspace '%.300s', and the protected paths below its "
            "directories allow one at a time",
            path
        );
    }
    TRY(open_below(mounts, policy, error));
    if (hold->below_count == 0) { // .git, say, was made by a command that may still change it
        mounts_close_items(mounts);
        return OK;
    }
    CLEANUP(free_cleanup) struct hold *wanted = calloc(1, sizeof *wanted);
    if (wanted == NULL || !list_below(mounts, wanted)) {
        FAIL(error, MEMORY, "no memory for a share in workspace '%.300s'", path);
    }
    if (!is_same_below(hold, wanted)) {
        FAIL(
            error,
            LIMIT,
            "another command is running in workspace '%.300s' since before .git or a protected "
            "path "
            "there was changed; it has to end first",
            path
        );
    }
    return OK;
}

static result begin(
    struct hold *hold,
    struct mounts *mounts,
    const struct sandbox_policy *policy,
    hold_open_below *open_below,
    struct error *error
) {
    TRY(lock_directory(mounts->workspace_fd, mounts->workspace, &hold->lock_fd, error));
    TRY(open_below(mounts, policy, error));
    if (!list_below(mounts, hold)) {
        FAIL(error, IO, "workspace '%.300s' cannot be looked at", mounts->workspace);
    }
    return OK;
}

static void discard(struct hold *hold) {
    struct hold **link = &hold->table->first;
    while (*link != hold) {
        link = &(*link)->next;
    }
    *link = hold->next;
    fd_cleanup(&hold->lock_fd);
    free(hold);
}

static result know(
    struct hold_table *table, struct mounts *mounts, const struct stat *about, struct error *error
) {
    struct known *known = table->first_known;
    while (known != NULL && (known->device != about->st_dev || known->inode != about->st_ino)) {
        known = known->next;
    }
    if (known == NULL) {
        CLEANUP(free_cleanup) struct known *made = calloc(1, sizeof *made);
        if (made == NULL) {
            FAIL(error, MEMORY, "no memory for a share in workspace '%.300s'", mounts->workspace);
        }
        TRY(nested_find(mounts->workspace_fd, &made->nested, error));
        made->device = about->st_dev;
        made->inode = about->st_ino;
        made->next = table->first_known;
        table->first_known = made;
        known = TAKE(made);
    }
    mounts->nested = &known->nested;
    return OK;
}

static result acquire(
    struct hold_table *table,
    struct mounts *mounts,
    const struct sandbox_policy *policy,
    hold_open_below *open_below,
    struct error *error
) {
    struct stat about;
    if (fstat(mounts->workspace_fd, &about) != 0) {
        FAIL(error, IO, "workspace '%.300s' cannot be looked at", mounts->workspace);
    }
    TRY(know(table, mounts, &about, error));
    struct hold *hold = table->first;
    while (hold != NULL && (hold->device != about.st_dev || hold->inode != about.st_ino)) {
        hold = hold->next;
    }
    if (hold != NULL) {
        TRY(join(hold, mounts, policy, open_below, error));
    } else {
        hold = calloc(1, sizeof *hold);
        if (hold == NULL) {
            FAIL(error, MEMORY, "no memory for a share in workspace '%.300s'", mounts->workspace);
        }
        *hold = (struct hold){
            .next = table->first,
            .table = table,
            .device = about.st_dev,
            .inode = about.st_ino,
            .lock_fd = -1,
        };
        table->first = hold;
        result begun = begin(hold, mounts, policy, open_below, error);
        if (is_failed(begun)) {
            discard(hold);
            return begun;
        }
    }
    hold->users += 1;
    mounts->hold = hold;
    return OK;
}

result hold_acquire(
    struct hold_table *table,
    struct mounts *mounts,
    const struct sandbox_policy *policy,
    hold_open_below *open_below,
    struct error *error
) {
    int status = pthread_mutex_lock(&table->mutex);
    ASSERT(status == 0);
    result acquired = acquire(table, mounts, policy, open_below, error);
    (void)pthread_mutex_unlock(&table->mutex);
    return acquired;
}

void hold_release(struct hold *hold) {
    if (hold == NULL) {
        return;
    }
    struct hold_table *table = hold->table;
    int status = pthread_mutex_lock(&table->mutex);
    ASSERT(status == 0 && hold->users > 0);
    hold->users -= 1;
    if (hold->users == 0) {
        discard(hold);
    }
    (void)pthread_mutex_unlock(&table->mutex);
}
