/* Swarms and their nodes: what was asked, given and made of it. See session_swarm.h. */
#include "session_swarm.h"
#include "session_internal.h"

#include <math.h>

static struct view id_view(const struct session_id *id) {
    return view_of_text(id->text);
}

static int64_t now_ms(const struct session_store *store) {
    return clock_wall_ms(&store->clock);
}

static result check_share(const struct session_share *share, struct error *error) {
    const int64_t values[] = {
        share->deadline_ms,
        share->tokens_max,
        share->calls_max,
        share->processes_max,
        share->memory_bytes_max};
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        if (values[i] < 0) {
            FAIL(error, INVALID_INPUT, "a share of %lld", (long long)values[i]);
        }
    }
    return OK;
}

/* Five parameters from `at` on. */
static void bind_share(struct statement *statement, int at, const struct session_share *share) {
    statement_bind_i64(statement, at, share->deadline_ms);
    statement_bind_i64(statement, at + 1, share->tokens_max);
    statement_bind_i64(statement, at + 2, share->calls_max);
    statement_bind_i64(statement, at + 3, share->processes_max);
    statement_bind_i64(statement, at + 4, share->memory_bytes_max);
}

/* Runs a statement that may change any number of rows. */
static result run_any(struct statement *statement, struct error *error) {
    bool row = false;
    result status = statement_step(statement, &row, error);
    if (is_failed(status)) {
        statement->store->batch_failed = true; // all callers are in one
    }
    return status;
}

/* ---- swarms ------------------------------------------------------------------------------------ */

result session_swarm_start(
    struct session_store *store,
    const struct session_swarm_begin *begin,
    int64_t *swarm,
    struct error *error
) {
    TRY(check_share(&begin->share, error));
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO swarm (root, started_ms, strategy, reason, verifier, settings, seed,"
        " deadline_ms, tokens_max, calls_max, processes_max, memory_bytes_max)"
        " SELECT a.number, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12"
        " FROM agent a JOIN session s ON s.number = a.session WHERE a.id = ?1 AND s.status = 0",
        error
    ));
    statement_bind_text(&s, 1, id_view(&begin->root));
    statement_bind_i64(&s, 2, now_ms(store));
    statement_bind_text(&s, 3, begin->strategy);
    statement_bind_text(&s, 4, begin->reason);
    statement_bind_text(&s, 5, begin->verifier);
    statement_bind_text(&s, 6, begin->settings);
    statement_bind_i64(&s, 7, (int64_t)begin->seed);
    bind_share(&s, 8, &begin->share);
    TRY(statement_run_once(&s, "the swarm's root is no agent of a running session", error));
    *swarm = statement_inserted(&s);
    return OK;
}

static result finish_swarm(
    struct session_store *store,
    int64_t swarm,
    const struct session_swarm_end *end,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE swarm SET is_ended = 1, ended_ms = ?2, outcome = ?3, best = (SELECT number FROM"
        " agent WHERE id = ?4), is_merged = ?5, commit_after = ?6, why = ?7"
        " WHERE number = ?1 AND is_ended = 0"
        " AND NOT EXISTS (SELECT 1 FROM node n WHERE n.swarm = ?1 AND n.is_ended = 0)"
        " AND (?4 = '' OR ?4 IN (SELECT a.id FROM agent a JOIN agent r ON r.session = a.session"
        " WHERE r.number = swarm.root))",
        error
    ));
    statement_bind_i64(&s, 1, swarm);
    statement_bind_i64(&s, 2, now_ms(store));
    statement_bind_text(&s, 3, end->outcome);
    statement_bind_text(&s, 4, id_view(&end->best));
    statement_bind_i64(&s, 5, end->is_merged ? 1 : 0);
    statement_bind_text(&s, 6, end->commit_after);
    statement_bind_text(&s, 7, end->why);
    return statement_run_once(
        &s,
        "the swarm does not exist or has ended, a node of it is still at work, or the best one is "
        "of another session",
        error
    );
}

/* What waits for the root has no reader any more. */
static result bounce_to_root(struct session_store *store, int64_t swarm, struct error *error) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE mail SET state = 2, settled_ms = ?2 WHERE state = 0"
        " AND receiver = (SELECT root FROM swarm WHERE number = ?1)",
        error
    ));
    statement_bind_i64(&s, 1, swarm);
    statement_bind_i64(&s, 2, now_ms(store));
    return run_any(&s, error);
}

result session_swarm_finish(
    struct session_store *store,
    int64_t swarm,
    const struct session_swarm_end *end,
    struct error *error
) {
    bool is_own = false;
    TRY(store_step_begin(store, &is_own, error));
    result status = finish_swarm(store, swarm, end, error);
    if (is_ok(status)) {
        status = bounce_to_root(store, swarm, error);
    }
    return store_step_end(store, is_own, status, error);
}

result session_swarms_end(
    struct session_store *store, const struct session_id *session, struct error *error
) {
#define OF_SESSION                                                                                 \
    " IN (SELECT a.number FROM agent a JOIN session s ON s.number = a.session WHERE s.id = ?1)"
    static const char *const steps[] = {
        "UPDATE mail SET state = 2, settled_ms = ?2 WHERE state = 0 AND receiver" OF_SESSION,
        "UPDATE node SET is_ended = 1, ended_ms = ?2, ending = 'interrupted', outcome = 'lost'"
        " WHERE is_ended = 0 AND agent" OF_SESSION,
        "UPDATE swarm SET is_ended = 1, ended_ms = ?2, outcome = 'interrupted'"
        " WHERE is_ended = 0 AND root" OF_SESSION,
    };
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
        TRY(statement_begin(&s, store, steps[i], error));
        statement_bind_text(&s, 1, id_view(session));
        statement_bind_i64(&s, 2, now_ms(store));
        TRY(run_any(&s, error));
    }
    return OK;
}

/* ---- nodes ------------------------------------------------------------------------------------- */

static result append_node(
    struct session_store *store,
    const struct session_node_begin *begin,
    const struct session_id *agent,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    // The parent is the root or a node of the same swarm.
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO node (agent, swarm, kind, brief, workspace, commit_before, effort,"
        " deadline_ms, tokens_max, calls_max, processes_max, memory_bytes_max)"
        " SELECT a.number, w.number, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12"
        " FROM agent a JOIN swarm w ON w.number = ?2 AND w.is_ended = 0"
        " LEFT JOIN node p ON p.agent = a.parent WHERE a.id = ?1"
        " AND (a.parent = w.root OR (p.swarm = w.number AND p.is_ended = 0))",
        error
    ));
    statement_bind_text(&s, 1, id_view(agent));
    statement_bind_i64(&s, 2, begin->swarm);
    statement_bind_text(&s, 3, begin->kind);
    statement_bind_blob(&s, 4, begin->brief);
    statement_bind_text(&s, 5, begin->workspace);
    statement_bind_text(&s, 6, begin->commit_before);
    statement_bind_i64(&s, 7, begin->agent.sampler.effort);
    bind_share(&s, 8, &begin->share);
    return statement_run_once(
        &s, "the node's swarm has ended, or its parent has, or is not of this swarm", error
    );
}

result session_node_start(
    struct session_store *store,
    const struct session_node_begin *begin,
    struct session_id *out,
    struct error *error
) {
    TRY(check_share(&begin->share, error));
    if (begin->brief.length > SESSION_BRIEF_BYTES_MAX) {
        FAIL(
            error,
            LIMIT,
            "a brief of %zu bytes, at most %zu",
            begin->brief.length,
            SESSION_BRIEF_BYTES_MAX
        );
    }
    struct session_id agent = {""};
    bool is_own = false;
    TRY(store_step_begin(store, &is_own, error));
    result status = session_agent_append(store, &begin->agent, &agent, error);
    if (is_ok(status)) {
        status = append_node(store, begin, &agent, error);
    }
    TRY(store_step_end(store, is_own, status, error));
    *out = agent;
    return OK;
}

result session_node_change(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_share *share,
    int64_t effort,
    struct error *error
) {
    TRY(check_share(share, error));
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE node SET effort = ?2, deadline_ms = ?3, tokens_max = ?4, calls_max = ?5,"
        " processes_max = ?6, memory_bytes_max = ?7"
        " WHERE agent = (SELECT number FROM agent WHERE id = ?1) AND is_ended = 0",
        error
    ));
    statement_bind_text(&s, 1, id_view(agent));
    statement_bind_i64(&s, 2, effort);
    bind_share(&s, 3, share);
    return statement_run_once(&s, "the node to change does not exist or has ended", error);
}

static result end_node(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_node_end *end,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE node SET is_ended = 1, ended_ms = ?2, ending = ?3, cut = ?4, outcome = ?5,"
        " summary = ?6, detail = ?7, commit_after = ?8, changed_lines = ?9, turns = ?10,"
        " tokens = ?11, calls = ?12"
        " WHERE agent = (SELECT number FROM agent WHERE id = ?1) AND is_ended = 0",
        error
    ));
    statement_bind_text(&s, 1, id_view(agent));
    statement_bind_i64(&s, 2, now_ms(store));
    statement_bind_text(&s, 3, end->ending);
    statement_bind_text(&s, 4, end->cut);
    statement_bind_text(&s, 5, end->outcome);
    statement_bind_blob(&s, 6, end->summary);
    statement_bind_blob(&s, 7, end->detail);
    statement_bind_text(&s, 8, end->commit_after);
    statement_bind_i64(&s, 9, end->changed_lines);
    statement_bind_i64(&s, 10, end->turns);
    statement_bind_i64(&s, 11, end->tokens);
    statement_bind_i64(&s, 12, end->calls);
    return statement_run_once(&s, "the node to end does not exist or has ended", error);
}

static result
bounce_to_node(struct session_store *store, const struct session_id *agent, struct error *error) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE mail SET state = 2, settled_ms = ?2 WHERE state = 0"
        " AND receiver = (SELECT number FROM agent WHERE id = ?1)",
        error
    ));
    statement_bind_text(&s, 1, id_view(agent));
    statement_bind_i64(&s, 2, now_ms(store));
    return run_any(&s, error);
}

result session_node_end(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_node_end *end,
    struct error *error
) {
    bool is_own = false;
    TRY(store_step_begin(store, &is_own, error));
    result status = end_node(store, agent, end, error);
    if (is_ok(status)) {
        status = bounce_to_node(store, agent, error);
    }
    return store_step_end(store, is_own, status, error);
}

result session_node_judge(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_judgement *judgement,
    struct error *error
) {
    if (judgement->has_score && !isfinite(judgement->score)) {
        FAIL(error, INVALID_INPUT, "the score of a node must be a finite number");
    }
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE node SET outcome = ?2, verdict = ?3, detail = ?4, score = ?5"
        " WHERE agent = (SELECT number FROM agent WHERE id = ?1) AND is_ended = 1",
        error
    ));
    statement_bind_text(&s, 1, id_view(agent));
    statement_bind_text(&s, 2, judgement->outcome);
    statement_bind_text(&s, 3, judgement->verdict);
    statement_bind_blob(&s, 4, judgement->detail);
    if (judgement->has_score) { // else NULL
        statement_bind_double(&s, 5, judgement->score);
    }
    return statement_run_once(&s, "the node to judge does not exist or has not ended", error);
}

result session_node_merge(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_merge *merge,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE node SET merged_into = iif(?3 = '', NULL, t.number), merge_commit = ?3,"
        " conflicts = ?4 FROM agent a JOIN agent t ON t.session = a.session"
        " WHERE a.id = ?1 AND t.id = ?2 AND node.agent = a.number AND t.number <> a.number"
        " AND node.is_ended = 1 AND node.merge_commit = ''",
        error
    ));
    statement_bind_text(&s, 1, id_view(agent));
    statement_bind_text(&s, 2, id_view(&merge->into));
    statement_bind_text(&s, 3, merge->commit);
    statement_bind_text(&s, 4, merge->conflicts);
    return statement_run_once(
        &s,
        "the node to merge has not ended or is merged, or the target is of another session",
        error
    );
}
