/* Decisions, compactions, forks and rewinds: what makes a record more than one line of turns.
 *
 * Nothing recorded is changed or copied. A fork's agent names the turn it goes on behind, a rewind names
 * the turns that are no part of the context any more; session_tree.c puts them together.
 */
#include "session_internal.h"

/* Whether every call that the turn's message asked for has its answer. */
#define IS_WHOLE                                                                                   \
    "(t.is_finished = 1 AND (SELECT coalesce(sum(iif(json_valid(CAST(m.calls AS TEXT)),"           \
    " json_array_length(CAST(m.calls AS TEXT)), 0)), 0) FROM message m WHERE m.turn = t.number"    \
    " AND m.role = 'assistant') = (SELECT count(*) FROM message m WHERE m.turn = t.number"         \
    " AND m.role = 'tool' AND m.number <= ?4))"

static struct view id_view(const struct session_id *id) {
    return view_of_text(id->text);
}

static void bind_number(struct statement *statement, int at, int64_t number) {
    if (number == 0) {
        statement_bind_null(statement, at);
    } else {
        statement_bind_i64(statement, at, number);
    }
}

result session_decision_append(
    struct session_store *store, const struct session_decision_begin *decision, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO decision (session, turn, call, decided_ms, is_allowed, kind, subject, decider,"
        " rule, reason) SELECT s.number, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 FROM session s"
        " WHERE s.id = ?1 AND s.status = 0",
        error
    ));
    statement_bind_text(&s, 1, id_view(&decision->session));
    bind_number(&s, 2, decision->turn);
    bind_number(&s, 3, decision->call);
    statement_bind_i64(&s, 4, clock_wall_ms(&store->clock));
    statement_bind_i64(&s, 5, decision->is_allowed ? 1 : 0);
    const struct view texts[] = {
        decision->kind, decision->subject, decision->decider, decision->rule, decision->reason};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        statement_bind_text(&s, 6 + (int)i, texts[i]);
    }
    return statement_run_once(&s, "the decision's session does not exist or has ended", error);
}

result session_compaction_append(
    struct session_store *store,
    const struct session_compaction_begin *compaction,
    struct error *error
) {
    if (compaction->tokens_before < 0 || compaction->tokens_after < 0 || compaction->pruned < 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "a compaction from %lld to %lld tokens, %lld outputs left out",
            (long long)compaction->tokens_before,
            (long long)compaction->tokens_after,
            (long long)compaction->pruned
        );
    }
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO compaction (turn, compacted_ms, tokens_before, tokens_after, pruned, summary)"
        " SELECT t.number, ?2, ?3, ?4, ?5, ?6 FROM turn t JOIN agent a ON a.number = t.agent"
        " JOIN session s ON s.number = a.session WHERE t.number = ?1 AND s.status = 0",
        error
    ));
    statement_bind_i64(&s, 1, compaction->turn);
    statement_bind_i64(&s, 2, clock_wall_ms(&store->clock));
    statement_bind_i64(&s, 3, compaction->tokens_before);
    statement_bind_i64(&s, 4, compaction->tokens_after);
    statement_bind_i64(&s, 5, compaction->pruned);
    statement_bind_blob(&s, 6, compaction->summary);
    return statement_run_once(
        &s, "the compaction's turn does not exist or its session has ended", error
    );
}

/* ---- turns of an agent, wherever they lie ---------------------------------------------------- */

struct turn_at {
    int64_t number;
    bool is_whole;
    int64_t rewind_max;  /* rewinds of its agent that the line takes part in */
    int64_t message_max; /* messages of the turn that are part of the line */
};

/* The turn at a position of an agent as it is now; number 0: there is none. */
static result find_turn(
    struct session_store *store,
    int64_t agent,
    int64_t index,
    struct turn_at *out,
    struct error *error
) {
    *out = (struct turn_at){0};
    struct session_line line;
    TRY(session_line_load(store, agent, &line, error));
    result status = OK;
    for (size_t i = 0; is_ok(status) && i < line.count && out->number == 0; i++) {
        CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
        status = statement_begin(
            &s,
            store,
            "SELECT t.number, " IS_WHOLE " FROM turn t WHERE t.agent = ?1 AND t.position = ?2"
            " AND t.position <= ?3",
            error
        );
        if (is_failed(status)) {
            break;
        }
        statement_bind_i64(&s, 1, line.stretches[i].agent);
        statement_bind_i64(&s, 2, index);
        statement_bind_i64(&s, 3, line.stretches[i].position_max);
        bool is_cut = index == line.stretches[i].position_max;
        int64_t message_max = is_cut ? line.stretches[i].message_max : INT64_MAX;
        statement_bind_i64(&s, 4, message_max);
        bool found = false;
        status = statement_step(&s, &found, error);
        if (is_ok(status) && found && !session_line_drops(&line, i, index, statement_i64(&s, 0))) {
            *out = (struct turn_at
            ){statement_i64(&s, 0),
              statement_i64(&s, 1) != 0,
              line.stretches[i].rewind_max,
              message_max};
        }
    }
    session_line_deinit(&line);
    return status;
}

static result require_whole(
    struct session_store *store,
    int64_t agent,
    int64_t index,
    struct turn_at *out,
    struct error *error
) {
    struct turn_at turn;
    TRY(find_turn(store, agent, index, &turn, error));
    if (turn.number == 0) {
        FAIL(error, NOT_FOUND, "there is no turn %lld in its context", (long long)index + 1);
    }
    if (!turn.is_whole) {
        FAIL(
            error,
            INVALID_INPUT,
            "turn %lld has calls without an answer: choose an earlier one",
            (long long)index + 1
        );
    }
    *out = turn;
    return OK;
}

/* The row of a session's agent: the named one, or the root. */
static result find_agent(
    struct session_store *store,
    const struct session_id *session,
    const struct session_id *agent,
    int64_t *out,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT a.number FROM agent a JOIN session s ON s.number = a.session WHERE s.id = ?1"
        " AND (?2 = '' OR a.id = ?2) ORDER BY a.number LIMIT 1",
        error
    ));
    statement_bind_text(&s, 1, id_view(session));
    statement_bind_text(&s, 2, agent == NULL ? view_of_text("") : id_view(agent));
    bool found = false;
    TRY(statement_step(&s, &found, error));
    if (!found) {
        FAIL(error, NOT_FOUND, "session '%s' has no such agent, or no turn yet", session->text);
    }
    *out = statement_i64(&s, 0);
    return OK;
}

result session_last_whole_turn(
    struct session_store *store,
    const struct session_id *session,
    int64_t index_max,
    int64_t *index,
    struct error *error
) {
    int64_t agent = 0, at = 0;
    TRY(find_agent(store, session, NULL, &agent, error));
    {
        CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
        TRY(statement_begin(
            &s,
            store,
            "SELECT coalesce((SELECT max(position) FROM turn WHERE agent = ?1),"
            " (SELECT t.position FROM turn t JOIN agent a ON a.fork_of = t.number"
            " WHERE a.number = ?1), -1)",
            error
        ));
        statement_bind_i64(&s, 1, agent);
        bool found = false;
        TRY(statement_step(&s, &found, error));
        at = found ? statement_i64(&s, 0) : -1;
    }
    for (at = at < index_max ? at : index_max; at >= 0; at--) {
        struct turn_at turn;
        TRY(find_turn(store, agent, at, &turn, error));
        if (turn.number != 0 && turn.is_whole) {
            *index = at;
            return OK;
        }
    }
    FAIL(error, NOT_FOUND, "session '%s' has no turn whose calls are all answered", session->text);
}

/* ---- forks within a session -------------------------------------------------------------------- */

/* Where the turn lies in the parent's line, and the newest rewind and message there are. */
static result find_candidate(
    struct session_store *store,
    const struct session_id *parent,
    int64_t turn,
    int64_t *agent,
    int64_t *position,
    struct session_fork_point *newest,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT p.number, t.position, (SELECT coalesce(max(number), 0) FROM rewind),"
        " (SELECT coalesce(max(m.number), 0) FROM message m WHERE m.turn = t.number)"
        " FROM agent p JOIN turn t ON t.number = ?2 WHERE p.id = ?1 AND t.is_finished = 1",
        error
    ));
    statement_bind_text(&s, 1, id_view(parent));
    statement_bind_i64(&s, 2, turn);
    bool found = false;
    TRY(statement_step(&s, &found, error));
    if (!found) {
        FAIL(
            error,
            NOT_FOUND,
            "%s: there is no finished turn %lld to fork, or no agent '%s'",
            store->path,
            (long long)turn,
            parent->text
        );
    }
    *agent = statement_i64(&s, 0);
    *position = statement_i64(&s, 1);
    *newest = (struct session_fork_point){turn, statement_i64(&s, 2), statement_i64(&s, 3)};
    return OK;
}

static result find_fork_point(
    struct session_store *store,
    const struct session_id *parent,
    int64_t turn,
    struct session_fork_point *out,
    struct error *error
) {
    int64_t agent = 0, position = 0;
    struct session_fork_point point;
    struct turn_at at;
    TRY(find_candidate(store, parent, turn, &agent, &position, &point, error));
    TRY(find_turn(store, agent, position, &at, error));
    if (at.number != turn) {
        FAIL(
            error,
            NOT_FOUND,
            "%s: turn %lld is no part of the context of agent '%s'",
            store->path,
            (long long)turn,
            parent->text
        );
    }
    point.rewind = at.rewind_max < point.rewind ? at.rewind_max : point.rewind;
    point.message = at.message_max < point.message ? at.message_max : point.message;
    *out = point;
    return OK;
}

result session_fork_point_find(
    struct session_store *store,
    const struct session_id *parent,
    int64_t turn,
    struct session_fork_point *out,
    struct error *error
) {
    CLEANUP(store_unlock) struct session_store *locked = store_lock(store);
    return find_fork_point(locked, parent, turn, out, error);
}

/* ---- forks ------------------------------------------------------------------------------------ */

static result copy_session(
    struct session_store *store,
    const struct session_fork_begin *begin,
    int64_t turn,
    const struct session_id *id,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO session (id, status, created_ms, ended_ms, task, workspace, model,"
        " model_digest, backend, numerics_version, program_version, seed, temperature, top_p,"
        " effort, settings, time_ms_max, tokens_max, window_mode, commit_before, commit_after,"
        " worktree_of, verdict, stop_reason)"
        " SELECT ?2, ?8, ?3, ?3, s.task, iif(?4 = '', s.workspace, ?4), iif(?10 = '', m.model, "
        "?10),"
        " iif(?10 = '', m.model_digest, ?11), iif(?10 = '', m.backend, ?12), iif(?10 = '',"
        " m.numerics_version, ?13), ?5, s.seed, s.temperature, s.top_p, s.effort, s.settings,"
        " s.time_ms_max, s.tokens_max, s.window_mode, ?6, ?6, iif(?4 = '', s.worktree_of, ?7),"
        " 'not gone on yet', 'fork' FROM session s JOIN turn t ON t.number = ?9"
        " JOIN agent a ON a.number = t.agent JOIN session m ON m.number = a.session"
        " WHERE s.id = ?1",
        error
    ));
    statement_bind_text(&s, 1, id_view(&begin->session));
    statement_bind_text(&s, 2, id_view(id));
    statement_bind_i64(&s, 3, clock_wall_ms(&store->clock));
    statement_bind_text(&s, 4, begin->workspace);
    statement_bind_text(&s, 5, begin->program_version);
    statement_bind_text(&s, 6, begin->commit);
    statement_bind_text(&s, 7, begin->worktree_of);
    statement_bind_i64(&s, 8, SESSION_STOPPED);
    statement_bind_i64(&s, 9, turn);
    const struct view model[] = {
        begin->model, begin->model_digest, begin->backend, begin->numerics_version};
    for (size_t i = 0; i < COUNT_OF(model); i++) {
        statement_bind_text(&s, 10 + (int)i, model[i]);
    }
    return statement_run_once(&s, "the session to fork does not exist", error);
}

static result copy_agent(
    struct session_store *store,
    int64_t agent,
    const struct turn_at *turn,
    const struct session_id *session,
    struct error *error
) {
    struct session_id id;
    TRY(session_id_create(&id, &store->clock, error));
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO agent (session, id, created_ms, name, tools, seed, temperature, top_p, effort,"
        " settings, fork_of, fork_rewind)"
        " SELECT (SELECT number FROM session WHERE id = ?1), ?2, ?3, name, tools, seed,"
        " temperature, top_p, effort, settings, ?4, min(?6, (SELECT coalesce(max(number), 0) FROM "
        "rewind))"
        " FROM agent WHERE number = ?5",
        error
    ));
    statement_bind_text(&s, 1, id_view(session));
    statement_bind_text(&s, 2, id_view(&id));
    statement_bind_i64(&s, 3, clock_wall_ms(&store->clock));
    statement_bind_i64(&s, 4, turn->number);
    statement_bind_i64(&s, 5, agent);
    statement_bind_i64(&s, 6, turn->rewind_max);
    return statement_run_once(&s, "agent not stored", error);
}

static result fork_in_batch(
    struct session_store *store,
    const struct session_fork_begin *begin,
    struct session_id *out,
    struct error *error
) {
    int64_t agent = 0;
    struct turn_at turn;
    TRY(find_agent(store, &begin->session, NULL, &agent, error));
    TRY(require_whole(store, agent, begin->index, &turn, error));
    TRY(session_id_create(out, &store->clock, error));
    TRY(copy_session(store, begin, turn.number, out, error));
    return copy_agent(store, agent, &turn, out, error);
}

result session_fork(
    struct session_store *store,
    const struct session_fork_begin *begin,
    struct session_id *out,
    struct error *error
) {
    struct session_id id;
    bool is_own = false;
    TRY(store_step_begin(store, &is_own, error));
    result status = fork_in_batch(store, begin, &id, error);
    TRY_NOTE(
        error,
        store_step_end(store, is_own, status, error),
        "fork of session %s",
        begin->session.text
    );
    *out = id;
    return OK;
}

/* ---- rewinds ---------------------------------------------------------------------------------- */

/* A session that goes on under another model cannot go back to what was written by the one before. */
static result require_same_model(
    struct session_store *store,
    const struct session_id *session,
    const struct turn_at *turn,
    int64_t index,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT 1 FROM turn t JOIN agent a ON a.number = t.agent JOIN session m ON m.number ="
        " a.session WHERE t.number = ?1 AND m.model_digest IS NOT"
        " (SELECT model_digest FROM session WHERE id = ?2)",
        error
    ));
    statement_bind_i64(&s, 1, turn->number);
    statement_bind_text(&s, 2, id_view(session));
    bool found = false;
    TRY(statement_step(&s, &found, error));
    if (found) {
        FAIL(
            error,
            INVALID_INPUT,
            "turn %lld was made by another model: fork it instead",
            (long long)index + 1
        );
    }
    return OK;
}

static result append_rewind(
    struct session_store *store, const struct session_rewind_begin *begin, struct error *error
) {
    int64_t agent = 0;
    struct turn_at turn;
    TRY(find_agent(store, &begin->session, &begin->agent, &agent, error));
    if (begin->index >= 0) {
        TRY_NOTE(
            error,
            require_whole(store, agent, begin->index, &turn, error),
            "rewind of session %s",
            begin->session.text
        );
        TRY(require_same_model(store, &begin->session, &turn, begin->index, error));
    }
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO rewind (agent, rewound_ms, position, last_turn, commit_before, commit_after)"
        " VALUES (?1, ?2, ?3, (SELECT coalesce(max(number), 0) FROM turn), ?4, ?5)",
        error
    ));
    statement_bind_i64(&s, 1, agent);
    statement_bind_i64(&s, 2, clock_wall_ms(&store->clock));
    if (begin->index == SESSION_REWIND_WORKSPACE_ONLY) {
        statement_bind_null(&s, 3);
    } else {
        statement_bind_i64(&s, 3, begin->index);
    }
    statement_bind_text(&s, 4, begin->commit_before);
    statement_bind_text(&s, 5, begin->commit_after);
    return statement_run_once(&s, "rewind not stored", error);
}

/* A session that had ended ends with what was put back. */
static result move_end(
    struct session_store *store, const struct session_rewind_begin *begin, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE session SET commit_after = iif(status = 0 OR ?2 = '', commit_after, ?2)"
        " WHERE id = ?1",
        error
    ));
    statement_bind_text(&s, 1, id_view(&begin->session));
    statement_bind_text(&s, 2, begin->commit_after);
    return statement_run_once(&s, "the session to rewind does not exist", error);
}

/* A session that had ended is not done any more. One that runs goes on. */
static result reopen_end(
    struct session_store *store, const struct session_rewind_begin *begin, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE session SET status = iif(status = 0, 0, ?2), exit_status = iif(status = 0,"
        " exit_status, 0), verdict = iif(status = 0, verdict, 'not gone on yet'), stop_reason ="
        " iif(status = 0, stop_reason, 'rewind'), commit_after = iif(?3 = '', commit_after, ?3)"
        " WHERE id = ?1",
        error
    ));
    statement_bind_text(&s, 1, id_view(&begin->session));
    statement_bind_i64(&s, 2, SESSION_STOPPED);
    statement_bind_text(&s, 3, begin->commit_after);
    return statement_run_once(&s, "the session to rewind does not exist", error);
}

result session_rewind(
    struct session_store *store, const struct session_rewind_begin *begin, struct error *error
) {
    ASSERT(begin->index >= SESSION_REWIND_WORKSPACE_ONLY);
    bool is_own = false;
    TRY(store_step_begin(store, &is_own, error));
    result status = append_rewind(store, begin, error);
    if (is_ok(status)) {
        status = begin->index == SESSION_REWIND_WORKSPACE_ONLY ? move_end(store, begin, error)
                                                               : reopen_end(store, begin, error);
    }
    return store_step_end(store, is_own, status, error);
}
