/* See retention.h. Weighs all stores, cuts one list of snapshots where the bound is reached, then lets each
 * store collect what is behind that. */
#include "retention.h"
#include "paths.h"

#include "sandbox/workspace.h"
#include <dirent.h>
#include <errno.h>

#define STORES_MAX 100000

struct store {
    char *path;
    const char **pins; /* [count], borrowed of the list */
    uint64_t *bytes;   /* what each needs beside those before it */
    size_t count;
    size_t keep;
    struct workspace_weight weight;
    uint64_t kept_bytes;
    bool is_kept; /* the latest snapshot stays, as one of the pins does */
};

struct plan {
    const struct retention_options *options;
    struct session_snapshots *snapshots;
    struct store *stores;
    size_t store_count;
    size_t *store_of; /* [session_count]: SIZE_MAX: it has none */
};

static void plan_deinit(struct plan *plan) {
    for (size_t i = 0; i < plan->store_count; i++) {
        free(plan->stores[i].path);
        free(plan->stores[i].pins);
        free(plan->stores[i].bytes);
    }
    free(plan->stores);
    free(plan->store_of);
    session_snapshots_destroy(plan->snapshots);
}

void retention_deinit(struct retention *retention) {
    free(retention->losses);
    *retention = (struct retention){0};
}

/* ---- stores --------------------------------------------------------------------------------- */

static result add_store(struct plan *plan, const char *path, struct error *error) {
    if ((plan->store_count & (plan->store_count - 1)) == 0) { /* a power of two: it is full */
        size_t capacity = plan->store_count > 0 ? 2 * plan->store_count : 1;
        if (plan->store_count >= STORES_MAX) {
            FAIL(error, LIMIT, "more than %zu workspaces with snapshots", plan->store_count);
        }
        void *grown = realloc(plan->stores, capacity * sizeof *plan->stores);
        if (grown == NULL) {
            FAIL(error, MEMORY, "no memory for %zu workspaces with snapshots", capacity);
        }
        plan->stores = grown;
    }
    struct store *store = &plan->stores[plan->store_count];
    *store = (struct store){.path = strdup(path)};
    if (store->path == NULL) {
        FAIL(error, MEMORY, "no memory for a path");
    }
    plan->store_count += 1;
    return OK;
}

static void directory_cleanup(DIR **directory) {
    if (*directory != NULL) {
        (void)closedir(*directory);
    }
}

static result find_stores(struct plan *plan, const char *state, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer path;
    buffer_init(&path, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(&path, error, "%s/snapshots", state));
    CLEANUP(directory_cleanup) DIR *directory = opendir(buffer_text(&path));
    if (directory == NULL && errno == ENOENT) {
        return OK;
    }
    if (directory == NULL) {
        FAIL_FOREIGN(error, IO, errno, "%.300s: %s", buffer_text(&path), strerror(errno));
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        size_t length = strlen(entry->d_name);
        if (length != PATH_SNAPSHOTS_DIGITS ||
            strspn(entry->d_name, "0123456789abcdef") != length) {
            continue; /* none of ours */
        }
        buffer_clear(&path);
        TRY(buffer_append_format(&path, error, "%s/snapshots/%s", state, entry->d_name));
        TRY(add_store(plan, buffer_text(&path), error));
    }
    return OK;
}

static size_t find_store(const struct plan *plan, const char *path) {
    for (size_t i = 0; i < plan->store_count; i++) {
        if (strcmp(plan->stores[i].path, path) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

result
retention_measure(const char *state, int64_t until_ms, uint64_t *bytes, struct error *error) {
    CLEANUP(plan_deinit) struct plan plan = {0};
    uint64_t sum = 0;
    TRY(find_stores(&plan, state, error));
    for (size_t i = 0; i < plan.store_count; i++) {
        uint64_t part = 0;
        TRY(workspace_measure(plan.stores[i].path, until_ms, &part, error));
        sum += part;
    }
    *bytes = sum;
    return OK;
}

/* ---- plan ----------------------------------------------------------------------------------- */

static result assign_sessions(struct plan *plan, struct error *error) {
    const struct session_snapshots *snapshots = plan->snapshots;
    plan->store_of = calloc(snapshots->session_count + 1, sizeof *plan->store_of);
    if (plan->store_of == NULL) {
        FAIL(error, MEMORY, "no memory for %zu sessions", snapshots->session_count);
    }
    for (size_t i = 0; i < snapshots->session_count; i++) {
        struct view workspace = snapshots->sessions[i].workspace;
        if (i > 0 && view_equals(workspace, snapshots->sessions[i - 1].workspace)) {
            plan->store_of[i] = plan->store_of[i - 1];
            continue;
        }
        CLEANUP(buffer_deinit) struct buffer directory, path;
        buffer_init(&path, BUFFER_CEILING_DEFAULT);
        buffer_init(&directory, BUFFER_CEILING_DEFAULT);
        TRY(buffer_append(&directory, workspace, error));
        TRY(path_snapshots(plan->options->state, buffer_text(&directory), &path, error));
        plan->store_of[i] = find_store(plan, buffer_text(&path));
    }
    return OK;
}

static struct store *store_of(const struct plan *plan, size_t snapshot) {
    size_t at = plan->store_of[plan->snapshots->items[snapshot].session];
    return at == SIZE_MAX ? NULL : &plan->stores[at];
}

static result assign_pins(struct plan *plan, struct error *error) {
    for (size_t i = 0; i < plan->snapshots->count; i++) {
        struct store *store = store_of(plan, i);
        if (store != NULL) {
            store->count += 1;
        }
    }
    for (size_t i = 0; i < plan->store_count; i++) {
        struct store *store = &plan->stores[i];
        store->pins = calloc(store->count + 1, sizeof *store->pins);
        store->bytes = calloc(store->count + 1, sizeof *store->bytes);
        if (store->pins == NULL || store->bytes == NULL) {
            FAIL(error, MEMORY, "no memory for %zu snapshots", store->count);
        }
        store->count = 0;
    }
    for (size_t i = 0; i < plan->snapshots->count; i++) {
        struct store *store = store_of(plan, i);
        if (store != NULL) {
            store->pins[store->count++] = plan->snapshots->items[i].commit;
        }
    }
    return OK;
}

static result
open_store(const struct plan *plan, const char *path, struct workspace **out, struct error *error) {
    TRY(workspace_open_store(path, out, error));
    workspace_limit_time(*out, plan->options->until_ms);
    return OK;
}

static result weigh_stores(struct plan *plan, struct error *error) {
    for (size_t i = 0; i < plan->store_count; i++) {
        struct store *store = &plan->stores[i];
        CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
        TRY(open_store(plan, store->path, &workspace, error));
        TRY(workspace_weigh(
            workspace, store->pins, store->count, store->bytes, &store->weight, error
        ));
    }
    return OK;
}

/* Takes snapshots from the top of the list until one does not fit. */
static void choose(struct plan *plan) {
    uint64_t left = plan->options->bytes_max;
    size_t in_use =
        plan->options->in_use != NULL ? find_store(plan, plan->options->in_use) : SIZE_MAX;
    if (in_use != SIZE_MAX) {
        struct store *store = &plan->stores[in_use];
        store->is_kept = true;
        store->kept_bytes = store->weight.fixed;
        left -= store->weight.fixed < left ? store->weight.fixed : left;
    }
    for (size_t i = 0; i < plan->snapshots->count; i++) {
        struct store *store = store_of(plan, i);
        if (store == NULL) {
            continue;
        }
        uint64_t own = store->bytes[store->keep];
        if (own != WORKSPACE_NOT_THERE) {
            uint64_t cost = own + (store->is_kept ? 0 : store->weight.fixed);
            if (cost > left) {
                return;
            }
            left -= cost;
            store->kept_bytes += cost;
            store->is_kept = true;
        }
        store->keep += 1;
    }
}

/* ---- what is lost --------------------------------------------------------------------------- */

static int by_name(const void *left, const void *right) {
    const char *const *a = left, *const *b = right;
    return strcmp(*a, *b);
}

/* Snapshots behind the cut that no kept one is the same as. */
static result list_losses(struct plan *plan, struct retention *out, struct error *error) {
    const struct session_snapshots *snapshots = plan->snapshots;
    CLEANUP(free_cleanup)
    size_t *at = calloc(plan->store_count + 1, sizeof *at);
    out->losses = calloc(snapshots->session_count + 1, sizeof *out->losses);
    if (at == NULL || out->losses == NULL) {
        FAIL(error, MEMORY, "no memory for a list of %zu sessions", snapshots->session_count);
    }
    for (size_t i = 0; i < plan->store_count; i++) { /* the pins are given in their order before */
        qsort(plan->stores[i].pins, plan->stores[i].keep, sizeof *plan->stores[i].pins, by_name);
    }
    struct retention_loss loss = {0};
    for (size_t i = 0; i <= snapshots->count; i++) {
        bool is_next = i == snapshots->count || i == 0 ||
                       snapshots->items[i].session != snapshots->items[i - 1].session;
        if (is_next && loss.lost > 0) {
            out->losses[out->loss_count++] = loss;
        }
        if (i == snapshots->count) {
            break;
        }
        if (is_next) {
            const struct session_snapshots_of *of =
                &snapshots->sessions[snapshots->items[i].session];
            loss = (struct retention_loss){.session = of->id, .used_ms = of->used_ms};
        }
        struct store *store = store_of(plan, i);
        if (store == NULL) {
            continue;
        }
        size_t index = at[store - plan->stores]++;
        const char *commit = snapshots->items[i].commit;
        bool is_there = store->bytes[index] != WORKSPACE_NOT_THERE;
        loss.count += is_there ? 1 : 0;
        loss.lost +=
            is_there && index >= store->keep &&
                    bsearch(&commit, store->pins, store->keep, sizeof commit, by_name) == NULL
                ? 1
                : 0;
    }
    return OK;
}

/* ---- apply ---------------------------------------------------------------------------------- */

static result collect(
    const struct plan *plan, const struct store *store, struct retention *out, struct error *error
) {
    struct workspace_collected collected = {0};
    const struct workspace_collect_options options = {
        .pins = store->pins,
        .count = store->count,
        .keep = store->keep,
        .drops_latest = !store->is_kept,
        .is_trial = plan->options->is_trial,
    };
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    TRY(open_store(plan, store->path, &workspace, error));
    result done = workspace_collect(workspace, &options, &collected, error);
    if (done.code == RESULT_TIMEOUT) {
        out->is_cut = true;
        out->bytes_after += store->weight.bytes;
        return OK;
    }
    TRY(done);
    out->bytes_after += collected.bytes_after;
    out->damaged += collected.damaged;
    out->is_cut = out->is_cut || collected.is_cut;
    return OK;
}

result retention_apply(
    const struct retention_options *options, struct retention *out, struct error *error
) {
    CLEANUP(plan_deinit) struct plan plan = {.options = options};
    CLEANUP(retention_deinit) struct retention made = {0};
    TRY(session_snapshots_load(options->store, options->until_ms, &plan.snapshots, error));
    TRY(find_stores(&plan, options->state, error));
    TRY(assign_sessions(&plan, error));
    TRY(assign_pins(&plan, error));
    TRY(weigh_stores(&plan, error));
    choose(&plan);
    made.workspaces = plan.store_count;
    for (size_t i = 0; i < plan.store_count; i++) {
        const struct store *store = &plan.stores[i];
        made.bytes_before += store->weight.bytes;
        if (store->weight.bytes > store->kept_bytes) {
            TRY(collect(&plan, store, &made, error));
        } else {
            made.bytes_after += store->weight.bytes;
        }
    }
    TRY(list_losses(&plan, &made, error));
    *out = made;
    made = (struct retention){0};
    return OK;
}
