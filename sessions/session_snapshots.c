/* The workspace snapshots that sessions refer to, in the order in which they are worth keeping. */
#include "session_row.h"

#define SNAPSHOTS_BYTES_MAX ((size_t)512 << 20)

/* A list with the memory it owns; the public struct comes first. */
struct snapshots_owner {
    struct session_snapshots snapshots;
    struct arena arena;
};

/* Of one session, newest first. A fork can go back behind the point where it began, so what it inherits is
 * its own too. */
static const char commits_of_session[] =
    "WITH RECURSIVE line (agent, last) AS ("
    " SELECT number, 9223372036854775807 FROM agent WHERE session = ?1"
    " UNION SELECT t.agent, t.position FROM line JOIN agent a ON a.number = line.agent"
    " JOIN turn t ON t.number = a.fork_of)"
    " SELECT after, before FROM ("
    " SELECT 9223372036854775807 AS made_ms, number, commit_after AS after, '' AS before"
    " FROM session WHERE number = ?1"
    " UNION ALL SELECT created_ms, -1, '', commit_before FROM session WHERE number = ?1"
    " UNION ALL SELECT c.started_ms, c.number, c.commit_after, c.commit_before FROM line"
    " JOIN turn t ON t.agent = line.agent AND t.position <= line.last JOIN call c ON c.turn = "
    "t.number"
    " UNION ALL SELECT max(n.ended_ms, a.created_ms), a.number, n.commit_after, n.commit_before"
    " FROM agent a JOIN node n ON n.agent = a.number WHERE a.session = ?1"
    " UNION ALL SELECT n.ended_ms, a.number, n.merge_commit, '' FROM agent a JOIN node n ON "
    "n.agent ="
    " a.number WHERE a.session = ?1"
    " UNION ALL SELECT w.ended_ms, a.number, w.commit_after, '' FROM agent a JOIN swarm w ON "
    "w.root ="
    " a.number WHERE a.session = ?1"
    " UNION ALL SELECT r.rewound_ms, r.number, r.commit_after, r.commit_before FROM line"
    " JOIN rewind r ON r.agent = line.agent"
    " UNION ALL SELECT resumed_ms, number, commit_after, commit_before FROM resumption"
    " WHERE session = ?1) ORDER BY made_ms DESC, number DESC";

static result
add_commit(struct snapshots_owner *owner, struct view commit, size_t session, struct error *error) {
    struct session_snapshots *snapshots = &owner->snapshots;
    struct session_snapshot *last =
        snapshots->count > 0 ? &snapshots->items[snapshots->count - 1] : NULL;
    bool is_again =
        last != NULL && last->session == session && view_equals_text(commit, last->commit);
    if (commit.length != SESSION_COMMIT_BYTES - 1 || is_again) {
        return OK; // none was taken, or nothing changed
    }
    void *items = snapshots->items;
    TRY(arena_grow(&owner->arena, &items, snapshots->count, sizeof *snapshots->items, error));
    snapshots->items = items;
    struct session_snapshot *next = &snapshots->items[snapshots->count];
    *next = (struct session_snapshot){.session = session};
    memcpy(next->commit, commit.data, commit.length);
    snapshots->count += 1;
    return OK;
}

static result load_commits(
    struct session_store *store,
    struct snapshots_owner *owner,
    int64_t number,
    size_t session,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(&s, store, commits_of_session, error));
    statement_bind_i64(&s, 1, number);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        TRY(add_commit(owner, statement_bytes(&s, 0), session, error));
        TRY(add_commit(owner, statement_bytes(&s, 1), session, error));
    }
}

static result fill(
    struct session_store *store,
    int64_t until_ms,
    struct snapshots_owner *owner,
    struct error *error
) {
    struct session_snapshots *snapshots = &owner->snapshots;
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT number, id, workspace, max(created_ms, ended_ms, coalesce((SELECT max(t.started_ms)"
        " FROM agent a JOIN turn t ON t.agent = a.number WHERE a.session = session.number), 0))"
        " AS used_ms FROM session ORDER BY used_ms DESC, number DESC",
        error
    ));
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        if (clock_monotonic_ms(&store->clock) >= until_ms) {
            FAIL(error, TIMEOUT, "no time is left to look at all sessions");
        }
        void *items = snapshots->sessions;
        TRY(arena_grow(
            &owner->arena, &items, snapshots->session_count, sizeof *snapshots->sessions, error
        ));
        snapshots->sessions = items;
        struct session_snapshots_of *next = &snapshots->sessions[snapshots->session_count];
        struct row row = row_of(&s, &owner->arena, error);
        int64_t number = take_i64(&row);
        *next = (struct session_snapshots_of){.id = take_id(&row)};
        next->workspace = take_text(&row);
        next->used_ms = take_i64(&row);
        TRY(row.status);
        snapshots->session_count += 1;
        TRY(load_commits(store, owner, number, snapshots->session_count - 1, error));
    }
}

result session_snapshots_load(
    struct session_store *store,
    int64_t until_ms,
    struct session_snapshots **out,
    struct error *error
) {
    struct snapshots_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL) {
        FAIL(error, MEMORY, "list of snapshots");
    }
    owner->arena.ceiling = SNAPSHOTS_BYTES_MAX;
    CLEANUP(session_snapshots_cleanup) struct session_snapshots *snapshots = &owner->snapshots;
    bool opened = false;
    TRY(read_begin(store, &opened, error));
    result status = fill(store, until_ms, owner, error);
    read_end(store, opened);
    TRY_NOTE(error, status, "while listing snapshots");
    *out = TAKE(snapshots);
    return OK;
}

void session_snapshots_destroy(struct session_snapshots *snapshots) {
    if (snapshots != NULL) {
        struct snapshots_owner *owner = (struct snapshots_owner *)snapshots;
        arena_deinit(&owner->arena);
        free(owner);
    }
}

void session_snapshots_cleanup(struct session_snapshots **snapshots) {
    session_snapshots_destroy(*snapshots);
    *snapshots = NULL;
}
