/* Swarms, nodes and mail of one session, for session_tree.c. What a writer that died left open is shown as the
 * next writer will mark it. */
#include "session_loader.h"
#include "session_swarm.h"

#define SHARE_COLUMNS "deadline_ms, tokens_max, calls_max, processes_max, memory_bytes_max"

static struct session_share take_share(struct row *row) {
    struct session_share share;
    share.deadline_ms = take_small(row, INT64_MAX, "deadline_ms");
    share.tokens_max = take_small(row, INT64_MAX, "tokens_max");
    share.calls_max = take_small(row, INT64_MAX, "calls_max");
    share.processes_max = take_small(row, INT64_MAX, "processes_max");
    share.memory_bytes_max = take_small(row, INT64_MAX, "memory_bytes_max");
    return share;
}

static result read_swarm(
    const struct loader *loader,
    const struct statement *s,
    struct session_swarm *swarm,
    struct error *error
) {
    struct row row = row_of(s, loader->arena, error);
    swarm->number = take_i64(&row);
    swarm->started_ms = take_i64(&row);
    struct session_swarm_begin *begin = &swarm->begin;
    begin->root = take_id(&row);
    begin->strategy = take_text(&row);
    begin->reason = take_text(&row);
    begin->verifier = take_text(&row);
    begin->settings = take_text(&row);
    begin->seed = (uint64_t)take_i64(&row);
    begin->share = take_share(&row);
    swarm->is_ended = take_small(&row, 1, "swarm.is_ended") != 0;
    swarm->ended_ms = take_i64(&row);
    swarm->end.outcome = take_text(&row);
    swarm->end.best = take_id(&row);
    swarm->end.is_merged = take_small(&row, 1, "swarm.is_merged") != 0;
    swarm->end.commit_after = take_text(&row);
    swarm->end.why = take_text(&row);
    if (!swarm->is_ended && loader->store->writer_is_gone) {
        swarm->is_ended = true;
        swarm->end.outcome = view_of_text("interrupted");
    }
    return row.status;
}

result loader_load_swarms(
    const struct loader *loader, int64_t session, struct session_tree *tree, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT w.number, w.started_ms, r.id, w.strategy, w.reason, w.verifier, w.settings, w.seed,"
        " " SHARE_COLUMNS ", w.is_ended, w.ended_ms, w.outcome, b.id, w.is_merged, w.commit_after,"
        " w.why FROM swarm w JOIN agent r ON r.number = w.root LEFT JOIN agent b"
        " ON b.number = w.best WHERE r.session = ?1 ORDER BY w.number",
        error
    ));
    statement_bind_i64(&s, 1, session);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = tree->swarms;
        TRY(arena_grow(loader->arena, &items, tree->swarm_count, sizeof *tree->swarms, error));
        tree->swarms = items;
        TRY(read_swarm(loader, &s, &tree->swarms[tree->swarm_count], error));
        tree->swarm_count += 1;
    }
}

static result read_mail(
    const struct loader *loader,
    const struct statement *s,
    struct session_mail *mail,
    struct error *error
) {
    struct row row = row_of(s, loader->arena, error);
    mail->number = take_i64(&row);
    mail->from = take_id(&row);
    mail->to = take_id(&row);
    mail->sent_ms = take_i64(&row);
    mail->text = take_bytes(&row);
    mail->state = (enum session_mail_state)take_small(&row, SESSION_MAIL_BOUNCED, "mail.state");
    mail->settled_ms = take_i64(&row);
    mail->turn = take_i64(&row); // NULL reads as 0
    if (mail->state == SESSION_MAIL_WAITS && loader->store->writer_is_gone) {
        mail->state = SESSION_MAIL_BOUNCED;
    }
    return row.status;
}

result loader_load_mail(
    const struct loader *loader, int64_t session, struct session_tree *tree, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT m.number, f.id, t.id, m.sent_ms, m.text, m.state, m.settled_ms, m.turn FROM mail m"
        " JOIN agent f ON f.number = m.sender JOIN agent t ON t.number = m.receiver"
        " WHERE t.session = ?1 ORDER BY m.number",
        error
    ));
    statement_bind_i64(&s, 1, session);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = tree->mail;
        TRY(arena_grow(loader->arena, &items, tree->mail_count, sizeof *tree->mail, error));
        tree->mail = items;
        TRY(read_mail(loader, &s, &tree->mail[tree->mail_count], error));
        tree->mail_count += 1;
    }
}

static result read_node(
    const struct loader *loader,
    const struct statement *s,
    struct session_node *node,
    struct error *error
) {
    struct row row = row_of(s, loader->arena, error);
    node->swarm = take_i64(&row);
    node->kind = take_text(&row);
    node->brief = take_bytes(&row);
    node->workspace = take_text(&row);
    node->commit_before = take_text(&row);
    node->effort = take_i64(&row);
    node->share = take_share(&row);
    node->is_ended = take_small(&row, 1, "node.is_ended") != 0;
    node->ended_ms = take_i64(&row);
    struct session_node_end *end = &node->end;
    end->ending = take_text(&row);
    end->cut = take_text(&row);
    end->outcome = take_text(&row);
    end->summary = take_bytes(&row);
    end->detail = take_bytes(&row);
    end->commit_after = take_text(&row);
    end->changed_lines = take_small(&row, INT64_MAX, "node.changed_lines");
    end->turns = take_small(&row, INT64_MAX, "node.turns");
    end->tokens = take_small(&row, INT64_MAX, "node.tokens");
    end->calls = take_small(&row, INT64_MAX, "node.calls");
    node->verdict = take_text(&row);
    node->has_score = !statement_is_null(s, row.column);
    node->score = take_double(&row);
    node->merged_into = take_id(&row);
    node->merge_commit = take_text(&row);
    node->conflicts = take_text(&row);
    if (!node->is_ended && loader->store->writer_is_gone) {
        node->is_ended = true;
        end->ending = view_of_text("interrupted");
        end->outcome = view_of_text("lost");
    }
    return row.status;
}

result loader_load_node(
    const struct loader *loader, int64_t agent, struct session_agent *out, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT n.swarm, n.kind, n.brief, n.workspace, n.commit_before, n.effort, " SHARE_COLUMNS
        ", n.is_ended, n.ended_ms, n.ending, n.cut, n.outcome, n.summary, n.detail, n.commit_after,"
        " n.changed_lines, n.turns, n.tokens, n.calls, n.verdict, n.score, t.id, n.merge_commit,"
        " n.conflicts FROM node n LEFT JOIN agent t ON t.number = n.merged_into"
        " WHERE n.agent = ?1",
        error
    ));
    statement_bind_i64(&s, 1, agent);
    bool found = false;
    TRY(statement_step(&s, &found, error));
    if (!found) {
        return OK;
    }
    void *memory = NULL;
    TRY(arena_allocate(loader->arena, sizeof(struct session_node), &memory, error));
    struct session_node *node = memory;
    TRY(read_node(loader, &s, node, error));
    out->node = node;
    return OK;
}
