/* From older schema versions to this one.
 *
 * The original is copied first, then all steps run in one transaction that is checked before it is
 * committed: a failure, a full disk or a crash leaves the old version as it was.
 */
#include "session_internal.h"

#include <unistd.h>

/* Version 1 is the first, so nothing leads to it yet. A later version adds {to, sql} here. */
struct session_versions session_versions_shipped(void) {
    struct session_versions versions = {SESSION_SCHEMA_VERSION, NULL, 0};
    return versions;
}

/* A name that is not taken: an earlier attempt's backup is never overwritten. */
static result
name_backup(const struct session_store *store, int64_t version, char *path, struct error *error) {
    for (int attempt = 0; attempt < 1000; attempt++) {
        int length = snprintf(
            path,
            SESSION_PATH_BYTES,
            attempt == 0 ? "%s.version-%lld" : "%s.version-%lld.%d",
            store->path,
            (long long)version,
            attempt
        );
        if (length <= 0 || length >= SESSION_PATH_BYTES) {
            FAIL(error, INVALID_INPUT, "%s: the backup's path is too long", store->path);
        }
        if (access(path, F_OK) != 0) {
            return OK;
        }
    }
    FAIL(error, LIMIT, "%s: over 1000 backups of version %lld", store->path, (long long)version);
}

static result run_steps(
    struct session_store *store,
    const struct session_versions *versions,
    int64_t from,
    struct error *error
) {
    int64_t version = from;
    for (size_t i = 0; i < versions->step_count && version < versions->target; i++) {
        const struct session_migration *step = &versions->steps[i];
        if (step->to != version + 1) {
            continue;
        }
        TRY_NOTE(
            error,
            store_execute(store, step->sql, error),
            "while migrating to schema version %lld",
            (long long)step->to
        );
        version = step->to;
    }
    if (version != versions->target) {
        FAIL(
            error,
            UNSUPPORTED,
            "%s: no way from schema version %lld to %lld",
            store->path,
            (long long)version,
            (long long)versions->target
        );
    }
    char pragma[64];
    int length = snprintf(pragma, sizeof pragma, "PRAGMA user_version=%lld", (long long)version);
    ASSERT(length > 0 && (size_t)length < sizeof pragma);
    TRY(store_execute(store, pragma, error));
    TRY_NOTE(error, session_store_verify(store, error), "after migrating");
    return store_execute(store, "COMMIT", error);
}

result session_migrate(
    struct session_store *store,
    const struct session_migration *steps,
    size_t step_count,
    int64_t target,
    struct error *error
) {
    struct session_versions versions = {target, steps, step_count};
    int64_t from = 0;
    TRY(store_query_i64(store, "PRAGMA user_version", &from, error));
    char backup[SESSION_PATH_BYTES];
    TRY(name_backup(store, from, backup, error));
    TRY(store_backup(store, backup, error));
    // Rebuilding a table drops its old self; with keys enforced that would cascade.
    TRY(store_execute(store, "PRAGMA foreign_keys=OFF; BEGIN IMMEDIATE", error));
    result status = run_steps(store, &versions, from, error);
    if (is_failed(status)) {
        result_ignore(store_execute(store, "ROLLBACK", NULL)); // the first failure is told
        return status;
    }
    return store_execute(store, "PRAGMA foreign_keys=ON", error);
}
