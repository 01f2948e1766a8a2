/* From older schema versions to this one.
 *
 * The original is copied first, then all steps run in one transaction that is checked before it is
 * committed: a failure, a full disk or a crash leaves the old version as it was.
 */
#include "session_internal.h"

#include <unistd.h>

/* To version 2: the whole contract of a generation, and sessions that go on. What version 1 knew is
 * carried over: there every block was filed under the root lineage, "none" meant cold windows, and
 * the only replays were those of decoder layers at a prompt's end. */
static const char to_version_2[] =
    "ALTER TABLE session ADD COLUMN window_mode TEXT NOT NULL DEFAULT '';"
    "CREATE TABLE resumption ("
    "    number            INTEGER PRIMARY KEY,"
    "    session           INTEGER NOT NULL REFERENCES session (number) ON DELETE CASCADE,"
    "    resumed_ms        INTEGER NOT NULL,"
    "    turns_before      INTEGER NOT NULL CHECK (turns_before >= 0),"
    "    backend           TEXT NOT NULL,"
    "    numerics_version  TEXT NOT NULL,"
    "    program_version   TEXT NOT NULL,"
    "    commit_before     TEXT NOT NULL,"
    "    status            INTEGER NOT NULL CHECK (status BETWEEN 1 AND 4),"
    "    ended_ms          INTEGER NOT NULL,"
    "    exit_status       INTEGER NOT NULL,"
    "    verdict           TEXT NOT NULL,"
    "    stop_reason       TEXT NOT NULL,"
    "    commit_after      TEXT NOT NULL"
    ") STRICT;"
    "CREATE INDEX resumption_by_session ON resumption (session);"
    "ALTER TABLE turn ADD COLUMN block_lineage TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE turn ADD COLUMN replays TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE turn ADD COLUMN rebuilt_from INTEGER NOT NULL DEFAULT 0"
    " CHECK (rebuilt_from >= 0);"
    "ALTER TABLE turn ADD COLUMN miss_token INTEGER NOT NULL DEFAULT 0 CHECK (miss_token >= 0);"
    "ALTER TABLE turn ADD COLUMN restored_host INTEGER NOT NULL DEFAULT 0"
    " CHECK (restored_host >= 0);"
    "ALTER TABLE turn ADD COLUMN restored_disk INTEGER NOT NULL DEFAULT 0"
    " CHECK (restored_disk >= 0);"
    "UPDATE turn SET block_lineage = lineage;"
    "UPDATE turn SET window_source = 'cold' WHERE window_source = 'none';"
    "UPDATE turn SET replays = coalesce((SELECT group_concat(word, ' ') FROM"
    " (SELECT 'decoder@' || p.prompt_tokens AS word FROM turn p WHERE p.agent = turn.agent"
    "  AND p.position <= turn.position AND p.window_source = 'replay' ORDER BY p.position)), '');";

/* To version 3: all settings of a generation, what ended it, drafts, pre-emption, seeds of forks. Before,
 * there was nothing of it: no drafts, no forks, and settings that nobody could change. */
static const char to_version_3[] =
    "ALTER TABLE session ADD COLUMN settings TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE agent ADD COLUMN settings TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE turn ADD COLUMN settings TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE turn ADD COLUMN stop_detail TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE turn ADD COLUMN drafted INTEGER NOT NULL DEFAULT 0 CHECK (drafted >= 0);"
    "ALTER TABLE turn ADD COLUMN accepted INTEGER NOT NULL DEFAULT 0 CHECK (accepted >= 0);"
    "ALTER TABLE turn ADD COLUMN preempted INTEGER NOT NULL DEFAULT 0 CHECK (preempted >= 0);"
    "ALTER TABLE turn ADD COLUMN parent_seed INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE turn ADD COLUMN fork_index INTEGER NOT NULL DEFAULT -1 CHECK (fork_index >= -1);";

/* To version 4: decisions, compactions, forks, rewinds, work trees. There were none before. */
static const char to_version_4[] =
    "ALTER TABLE session ADD COLUMN worktree_of TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE agent ADD COLUMN fork_of INTEGER REFERENCES turn (number);"
    "ALTER TABLE agent ADD COLUMN fork_rewind INTEGER NOT NULL DEFAULT 0;"
    "CREATE INDEX agent_by_fork ON agent (fork_of) WHERE fork_of IS NOT NULL;"
    "CREATE TABLE decision ("
    "    number            INTEGER PRIMARY KEY,"
    "    session           INTEGER NOT NULL REFERENCES session (number) ON DELETE CASCADE,"
    "    turn              INTEGER REFERENCES turn (number) ON DELETE CASCADE,"
    "    call              INTEGER REFERENCES call (number) ON DELETE CASCADE,"
    "    decided_ms        INTEGER NOT NULL,"
    "    is_allowed        INTEGER NOT NULL CHECK (is_allowed IN (0, 1)),"
    "    kind              TEXT NOT NULL,"
    "    subject           TEXT NOT NULL,"
    "    decider           TEXT NOT NULL,"
    "    rule              TEXT NOT NULL,"
    "    reason            TEXT NOT NULL"
    ") STRICT;"
    "CREATE INDEX decision_by_session ON decision (session);"
    "CREATE INDEX decision_by_turn ON decision (turn);"
    "CREATE INDEX decision_by_call ON decision (call);"
    "CREATE TABLE compaction ("
    "    turn              INTEGER PRIMARY KEY REFERENCES turn (number) ON DELETE CASCADE,"
    "    compacted_ms      INTEGER NOT NULL,"
    "    tokens_before     INTEGER NOT NULL CHECK (tokens_before >= 0),"
    "    tokens_after      INTEGER NOT NULL CHECK (tokens_after >= 0),"
    "    pruned            INTEGER NOT NULL CHECK (pruned >= 0),"
    "    summary           BLOB NOT NULL"
    ") STRICT;"
    "CREATE TABLE rewind ("
    "    number            INTEGER PRIMARY KEY AUTOINCREMENT,"
    "    agent             INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,"
    "    rewound_ms        INTEGER NOT NULL,"
    "    position          INTEGER CHECK (position >= -1),"
    "    last_turn         INTEGER NOT NULL,"
    "    commit_before     TEXT NOT NULL,"
    "    commit_after      TEXT NOT NULL"
    ") STRICT;"
    "CREATE INDEX rewind_by_agent ON rewind (agent);";

/* To version 5: swarms, their nodes, mail, and forks within a session. There were none before. */
static const char to_version_5[] =
    "ALTER TABLE agent ADD COLUMN fork_message INTEGER;"
    "CREATE TABLE swarm ("
    "    number INTEGER PRIMARY KEY,"
    "    root INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,"
    "    started_ms INTEGER NOT NULL,"
    "    strategy TEXT NOT NULL,"
    "    reason TEXT NOT NULL,"
    "    verifier TEXT NOT NULL,"
    "    settings TEXT NOT NULL,"
    "    seed INTEGER NOT NULL,"
    "    deadline_ms INTEGER NOT NULL,"
    "    tokens_max INTEGER NOT NULL CHECK (tokens_max >= 0),"
    "    calls_max INTEGER NOT NULL CHECK (calls_max >= 0),"
    "    processes_max INTEGER NOT NULL CHECK (processes_max >= 0),"
    "    memory_bytes_max INTEGER NOT NULL CHECK (memory_bytes_max >= 0),"
    "    is_ended INTEGER NOT NULL DEFAULT 0 CHECK (is_ended IN (0, 1)),"
    "    ended_ms INTEGER NOT NULL DEFAULT 0,"
    "    outcome TEXT NOT NULL DEFAULT '',"
    "    best INTEGER REFERENCES agent (number) ON DELETE SET NULL,"
    "    is_merged INTEGER NOT NULL DEFAULT 0 CHECK (is_merged IN (0, 1)),"
    "    commit_after TEXT NOT NULL DEFAULT '',"
    "    why TEXT NOT NULL DEFAULT ''"
    ") STRICT;"
    "CREATE INDEX swarm_by_root ON swarm (root);"
    "CREATE INDEX swarm_by_best ON swarm (best) WHERE best IS NOT NULL;"
    "CREATE INDEX swarm_open ON swarm (is_ended) WHERE is_ended = 0;"
    "CREATE TABLE node ("
    "    agent INTEGER PRIMARY KEY REFERENCES agent (number) ON DELETE CASCADE,"
    "    swarm INTEGER NOT NULL REFERENCES swarm (number) ON DELETE CASCADE,"
    "    kind TEXT NOT NULL,"
    "    brief BLOB NOT NULL,"
    "    workspace TEXT NOT NULL,"
    "    commit_before TEXT NOT NULL,"
    "    effort INTEGER NOT NULL,"
    "    deadline_ms INTEGER NOT NULL,"
    "    tokens_max INTEGER NOT NULL CHECK (tokens_max >= 0),"
    "    calls_max INTEGER NOT NULL CHECK (calls_max >= 0),"
    "    processes_max INTEGER NOT NULL CHECK (processes_max >= 0),"
    "    memory_bytes_max INTEGER NOT NULL CHECK (memory_bytes_max >= 0),"
    "    is_ended INTEGER NOT NULL DEFAULT 0 CHECK (is_ended IN (0, 1)),"
    "    ended_ms INTEGER NOT NULL DEFAULT 0,"
    "    ending TEXT NOT NULL DEFAULT '',"
    "    cut TEXT NOT NULL DEFAULT '',"
    "    summary BLOB NOT NULL DEFAULT x'',"
    "    detail BLOB NOT NULL DEFAULT x'',"
    "    commit_after TEXT NOT NULL DEFAULT '',"
    "    changed_lines INTEGER NOT NULL DEFAULT 0 CHECK (changed_lines >= 0),"
    "    turns INTEGER NOT NULL DEFAULT 0 CHECK (turns >= 0),"
    "    tokens INTEGER NOT NULL DEFAULT 0 CHECK (tokens >= 0),"
    "    calls INTEGER NOT NULL DEFAULT 0 CHECK (calls >= 0),"
    "    outcome TEXT NOT NULL DEFAULT '',"
    "    verdict TEXT NOT NULL DEFAULT '',"
    "    score REAL,"
    "    merged_into INTEGER REFERENCES agent (number) ON DELETE SET NULL,"
    "    merge_commit TEXT NOT NULL DEFAULT '',"
    "    conflicts TEXT NOT NULL DEFAULT ''"
    ") STRICT;"
    "CREATE INDEX node_by_swarm ON node (swarm);"
    "CREATE INDEX node_by_merge ON node (merged_into) WHERE merged_into IS NOT NULL;"
    "CREATE INDEX node_open ON node (is_ended) WHERE is_ended = 0;"
    "CREATE TABLE mail ("
    "    number INTEGER PRIMARY KEY,"
    "    sender INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,"
    "    receiver INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,"
    "    sent_ms INTEGER NOT NULL,"
    "    text BLOB NOT NULL CHECK (length(text) > 0),"
    "    state INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),"
    "    settled_ms INTEGER NOT NULL DEFAULT 0,"
    "    turn INTEGER REFERENCES turn (number) ON DELETE CASCADE,"
    "    message INTEGER REFERENCES message (number) ON DELETE CASCADE,"
    "    CHECK ((turn IS NULL) = (message IS NULL)),"
    "    CHECK (state <> 0 OR turn IS NULL),"
    "    CHECK (state <> 1 OR turn IS NOT NULL)"
    ") STRICT;"
    "CREATE INDEX mail_by_sender ON mail (sender);"
    "CREATE INDEX mail_by_receiver ON mail (receiver);"
    "CREATE INDEX mail_by_turn ON mail (turn) WHERE turn IS NOT NULL;"
    "CREATE INDEX mail_by_message ON mail (message) WHERE message IS NOT NULL;"
    "CREATE INDEX mail_waiting ON mail (receiver) WHERE state = 0;";

static const struct session_migration shipped_steps[] = {
    {2, to_version_2}, {3, to_version_3}, {4, to_version_4}, {5, to_version_5}};

struct session_versions session_versions_shipped(void) {
    struct session_versions versions = {
        SESSION_SCHEMA_VERSION, shipped_steps, COUNT_OF(shipped_steps)};
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
