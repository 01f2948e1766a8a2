/* One session with its tree, read inside one transaction: a consistent picture beside a writer. All memory
 * comes from an arena with a ceiling. */
#include "session_loader.h"

/* A tree with the memory it owns; the public struct comes first. */
struct tree_owner {
    struct session_tree tree;
    struct arena arena;
};

static result
load_messages(const struct loader *loader, struct session_turn *turn, struct error *error) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT role, text, reasoning, calls, call, created_ms FROM message WHERE turn = ?1"
        " ORDER BY number",
        error
    ));
    statement_bind_i64(&s, 1, turn->number);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = turn->messages;
        size_t bytes = sizeof *turn->messages;
        TRY(arena_grow(loader->arena, &items, turn->message_count, bytes, error));
        turn->messages = items;
        struct row row = row_of(&s, loader->arena, error);
        struct session_message *message = &turn->messages[turn->message_count];
        message->role = take_text(&row);
        message->text = take_bytes(&row);
        message->reasoning = take_bytes(&row);
        message->calls = take_bytes(&row);
        message->call = take_i64(&row); // NULL reads as 0
        message->created_ms = take_i64(&row);
        TRY(row.status);
        turn->message_count += 1;
    }
}

/* The blobs of a run must be as long as its count says. */
static result read_run(
    const struct loader *loader,
    const struct statement *s,
    struct session_run *run,
    struct error *error
) {
    struct row row = row_of(s, loader->arena, error);
    run->kind = (enum session_run_kind)take_small(&row, SESSION_RUN_OUTPUT, "token_run.kind");
    run->position = take_i64(&row);
    int64_t count_max = (int64_t)(SESSION_TEXT_BYTES_MAX / sizeof *run->ids);
    run->count = (size_t)take_small(&row, count_max, "token_run.count");
    TRY(row.status);
    if (!loader->options.with_tokens) {
        return OK;
    }
    bool has_log_probabilities = !statement_is_null(s, 4);
    struct view ids = take_bytes(&row);
    struct view log_probabilities = take_bytes(&row);
    TRY(row.status);
    size_t bytes = run->count * sizeof *run->ids;
    if (ids.length != bytes || (has_log_probabilities && log_probabilities.length != bytes)) {
        FAIL(
            error,
            CORRUPT,
            "%s: a token run of %zu tokens with %zu and %zu bytes",
            loader->store->path,
            run->count,
            ids.length,
            log_probabilities.length
        );
    }
    // The arena aligns to 16 bytes.
    run->ids = (const int32_t *)(const void *)ids.data;
    run->log_probabilities =
        has_log_probabilities ? (const float *)(const void *)log_probabilities.data : NULL;
    return OK;
}

static result
load_runs(const struct loader *loader, struct session_turn *turn, struct error *error) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT kind, position, count, ids, log_probabilities FROM token_run WHERE turn = ?1"
        " ORDER BY number",
        error
    ));
    statement_bind_i64(&s, 1, turn->number);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = turn->runs;
        TRY(arena_grow(loader->arena, &items, turn->run_count, sizeof *turn->runs, error));
        turn->runs = items;
        TRY(read_run(loader, &s, &turn->runs[turn->run_count], error));
        turn->run_count += 1;
    }
}

static result read_call(
    const struct loader *loader,
    const struct statement *s,
    struct session_call *call,
    struct error *error
) {
    struct row row = row_of(s, loader->arena, error);
    call->number = take_i64(&row);
    call->status =
        (enum session_call_status)take_small(&row, SESSION_CALL_INTERRUPTED, "call.status");
    if (call->status == SESSION_CALL_STARTED && loader->store->writer_is_gone) {
        call->status = SESSION_CALL_INTERRUPTED;
    }
    call->name = take_bytes(&row);
    call->arguments = take_bytes(&row);
    call->text = take_bytes(&row);
    call->output_bytes = (uint64_t)take_small(&row, INT64_MAX, "call.output_bytes");
    call->output_gap_at = (uint64_t)take_small(&row, INT64_MAX, "call.output_gap_at");
    call->text_is_truncated = take_i64(&row) != 0;
    call->has_exit_status = !statement_is_null(s, row.column);
    call->exit_status = take_i64(&row);
    call->started_ms = take_i64(&row);
    call->ended_ms = take_i64(&row);
    call->duration_ms = take_i64(&row);
    call->commit_before = take_text(&row);
    call->commit_after = take_text(&row);
    if (loader->options.with_outputs) {
        call->output = take_bytes(&row);
    }
    return row.status;
}

static result
load_calls(const struct loader *loader, struct session_turn *turn, struct error *error) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT number, status, name, arguments, text, output_bytes, output_gap_at,"
        " text_is_truncated,"
        " exit_status, started_ms, ended_ms, duration_ms, commit_before, commit_after, output"
        " FROM call WHERE turn = ?1 ORDER BY number",
        error
    ));
    statement_bind_i64(&s, 1, turn->number);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = turn->calls;
        TRY(arena_grow(loader->arena, &items, turn->call_count, sizeof *turn->calls, error));
        turn->calls = items;
        TRY(read_call(loader, &s, &turn->calls[turn->call_count], error));
        turn->call_count += 1;
    }
}

static result read_turn(
    const struct loader *loader,
    const struct statement *s,
    struct session_turn *turn,
    struct error *error
) {
    struct row row = row_of(s, loader->arena, error);
    turn->number = take_i64(&row);
    turn->index = take_i64(&row);
    turn->is_finished = take_i64(&row) != 0;
    turn->started_ms = take_i64(&row);
    turn->ended_ms = take_i64(&row);
    struct session_cache_facts *cache = &turn->end.cache;
    cache->prompt_tokens = take_i64(&row);
    cache->evaluated_tokens = take_i64(&row);
    cache->reused_tokens = take_i64(&row);
    cache->rebuilt_tokens = take_i64(&row);
    cache->hit_position = take_i64(&row);
    cache->miss_reason = take_text(&row);
    cache->window_source = take_text(&row);
    cache->lineage = take_text(&row);
    cache->decoder_lineage = take_text(&row);
    cache->backend = take_text(&row);
    cache->numerics_version = take_text(&row);
    turn->end.sampler = take_sampler(&row);
    turn->end.output_tokens = take_i64(&row);
    turn->end.prefill_ms = take_i64(&row);
    turn->end.decode_ms = take_i64(&row);
    turn->end.stop_reason = take_text(&row);
    cache->rebuilt_from = take_i64(&row);
    cache->miss_token = take_i64(&row);
    cache->restored_host = take_i64(&row);
    cache->restored_disk = take_i64(&row);
    cache->block_lineage = take_text(&row);
    cache->replays = take_text(&row);
    turn->end.stop_detail = take_text(&row);
    turn->end.drafted = take_small(&row, INT64_MAX, "turn.drafted");
    turn->end.accepted = take_small(&row, turn->end.drafted, "turn.accepted");
    turn->end.preempted = take_small(&row, INT64_MAX, "turn.preempted");
    turn->end.parent_seed = (uint64_t)take_i64(&row);
    turn->end.fork_index = take_i64(&row);
    return row.status;
}

/* Null when the turn begins no new context. */
static result
load_compaction(const struct loader *loader, struct session_turn *turn, struct error *error) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT compacted_ms, tokens_before, tokens_after, pruned, summary FROM compaction"
        " WHERE turn = ?1",
        error
    ));
    statement_bind_i64(&s, 1, turn->number);
    bool found = false;
    TRY(statement_step(&s, &found, error));
    if (!found) {
        return OK;
    }
    void *memory = NULL;
    TRY(arena_allocate(loader->arena, sizeof(struct session_compaction), &memory, error));
    struct session_compaction *compaction = memory;
    struct row row = row_of(&s, loader->arena, error);
    compaction->compacted_ms = take_i64(&row);
    compaction->tokens_before = take_small(&row, INT64_MAX, "compaction.tokens_before");
    compaction->tokens_after = take_small(&row, INT64_MAX, "compaction.tokens_after");
    compaction->pruned = take_small(&row, INT64_MAX, "compaction.pruned");
    compaction->summary = take_bytes(&row);
    turn->compaction = compaction;
    return row.status;
}

/* The turns of one stretch of the agent's line. */
static result load_stretch(
    const struct loader *loader,
    const struct session_line *line,
    size_t stretch,
    struct session_agent *out,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT number, position, is_finished, started_ms, ended_ms, prompt_tokens,"
        " evaluated_tokens, reused_tokens, rebuilt_tokens, hit_position, miss_reason,"
        " window_source, lineage, decoder_lineage, backend, numerics_version, seed, temperature,"
        " top_p, effort, settings, output_tokens, prefill_ms, decode_ms, stop_reason, rebuilt_from,"
        " miss_token, restored_host, restored_disk, block_lineage, replays,"
        " stop_detail, drafted, accepted, preempted, parent_seed, fork_index FROM turn"
        " WHERE agent = ?1 AND position <= ?2 ORDER BY position",
        error
    ));
    statement_bind_i64(&s, 1, line->stretches[stretch].agent);
    statement_bind_i64(&s, 2, line->stretches[stretch].position_max);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        int64_t number = statement_i64(&s, 0), index = statement_i64(&s, 1);
        if (session_line_drops_by(line, stretch, index, number, false)) {
            continue; // gone before the fork
        }
        void *items = out->turns;
        TRY(arena_grow(loader->arena, &items, out->turn_count, sizeof *out->turns, error));
        out->turns = items;
        struct session_turn *turn = &out->turns[out->turn_count];
        TRY(read_turn(loader, &s, turn, error));
        turn->is_inherited = stretch > 0;
        turn->is_rewound = session_line_drops_by(line, stretch, index, number, true);
        TRY(load_compaction(loader, turn, error));
        TRY(load_messages(loader, turn, error));
        TRY(load_runs(loader, turn, error));
        TRY(load_calls(loader, turn, error));
        out->turn_count += 1;
    }
}

/* A fork of its parent has the turns before it in the same tree. */
static result load_turns(
    const struct loader *loader, int64_t agent, struct session_agent *out, struct error *error
) {
    bool has_parent = out->parent.text[0] != '\0';
    CLEANUP(session_line_deinit) struct session_line line = {0};
    TRY(session_line_load(loader->store, agent, &line, error));
    for (size_t i = has_parent ? 1 : line.count; i > 0; i--) {
        TRY(load_stretch(loader, &line, i - 1, out, error));
    }
    return OK;
}

static result load_rewinds(
    const struct loader *loader, int64_t agent, struct session_agent *out, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT rewound_ms, coalesce(position, -2), commit_before, commit_after FROM rewind"
        " WHERE agent = ?1 ORDER BY number",
        error
    ));
    statement_bind_i64(&s, 1, agent);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = out->rewinds;
        TRY(arena_grow(loader->arena, &items, out->rewind_count, sizeof *out->rewinds, error));
        out->rewinds = items;
        struct row row = row_of(&s, loader->arena, error);
        struct session_rewound *rewound = &out->rewinds[out->rewind_count];
        rewound->rewound_ms = take_i64(&row);
        rewound->index = take_i64(&row);
        rewound->commit_before = take_text(&row);
        rewound->commit_after = take_text(&row);
        TRY(row.status);
        out->rewind_count += 1;
    }
}

static result load_decisions(
    const struct loader *loader, int64_t session, struct session_tree *tree, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT turn, call, decided_ms, is_allowed, kind, subject, decider, rule, reason"
        " FROM decision WHERE session = ?1 ORDER BY number",
        error
    ));
    statement_bind_i64(&s, 1, session);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = tree->decisions;
        size_t bytes = sizeof *tree->decisions;
        TRY(arena_grow(loader->arena, &items, tree->decision_count, bytes, error));
        tree->decisions = items;
        struct row row = row_of(&s, loader->arena, error);
        struct session_decision *decision = &tree->decisions[tree->decision_count];
        decision->turn = take_i64(&row); // NULL reads as 0
        decision->call = take_i64(&row);
        decision->decided_ms = take_i64(&row);
        decision->is_allowed = take_i64(&row) != 0;
        decision->kind = take_text(&row);
        decision->subject = take_text(&row);
        decision->decider = take_text(&row);
        decision->rule = take_text(&row);
        decision->reason = take_text(&row);
        TRY(row.status);
        tree->decision_count += 1;
    }
}

static result load_agents(
    const struct loader *loader, int64_t session, struct session_tree *tree, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT a.number, a.id, p.id, a.name, a.tools, a.seed, a.temperature, a.top_p, a.effort,"
        " a.settings, a.created_ms, fs.id, f.position, iif(a.fork_message IS NULL, -1,"
        " (SELECT count(*) FROM message m WHERE m.turn = f.number AND m.number <= a.fork_message))"
        " FROM agent a LEFT JOIN agent p ON p.number = a.parent"
        " LEFT JOIN turn f ON f.number = a.fork_of LEFT JOIN agent fa ON fa.number = f.agent"
        " LEFT JOIN session fs ON fs.number = fa.session"
        " WHERE a.session = ?1 ORDER BY a.number",
        error
    ));
    statement_bind_i64(&s, 1, session);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = tree->agents;
        TRY(arena_grow(loader->arena, &items, tree->agent_count, sizeof *tree->agents, error));
        tree->agents = items;
        struct row row = row_of(&s, loader->arena, error);
        struct session_agent *agent = &tree->agents[tree->agent_count];
        int64_t number = take_i64(&row);
        agent->id = take_id(&row);
        agent->parent = take_id(&row);
        agent->name = take_text(&row);
        agent->tools = take_text(&row);
        agent->sampler = take_sampler(&row);
        agent->created_ms = take_i64(&row);
        agent->fork_of = take_id(&row);
        agent->fork_index = take_i64(&row);
        agent->fork_messages = take_i64(&row);
        TRY(row.status);
        TRY(loader_load_node(loader, number, agent, error));
        TRY(load_turns(loader, number, agent, error));
        TRY(load_rewinds(loader, number, agent, error));
        tree->agent_count += 1;
    }
}

static result read_resumption(
    const struct loader *loader,
    const struct statement *s,
    struct session_resumption *out,
    struct error *error
) {
    struct row row = row_of(s, loader->arena, error);
    out->resumed_ms = take_i64(&row);
    out->turns_before = take_small(&row, INT64_MAX, "resumption.turns_before");
    out->begin.backend = take_text(&row);
    out->begin.numerics_version = take_text(&row);
    out->begin.program_version = take_text(&row);
    out->begin.commit_before = take_text(&row);
    out->status = (enum session_status)take_small(&row, SESSION_INTERRUPTED, "resumption.status");
    out->ended_ms = take_i64(&row);
    out->exit_status = take_i64(&row);
    out->verdict = take_text(&row);
    out->stop_reason = take_text(&row);
    out->commit_after = take_text(&row);
    return row.status;
}

static result load_resumptions(
    const struct loader *loader, int64_t session, struct session_tree *tree, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        loader->store,
        "SELECT resumed_ms, turns_before, backend, numerics_version, program_version,"
        " commit_before, status, ended_ms, exit_status, verdict, stop_reason, commit_after"
        " FROM resumption WHERE session = ?1 ORDER BY number",
        error
    ));
    statement_bind_i64(&s, 1, session);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = tree->resumptions;
        size_t bytes = sizeof *tree->resumptions;
        TRY(arena_grow(loader->arena, &items, tree->resumption_count, bytes, error));
        tree->resumptions = items;
        TRY(read_resumption(loader, &s, &tree->resumptions[tree->resumption_count], error));
        tree->resumption_count += 1;
    }
}

static result fill_tree(
    const struct loader *loader,
    const struct session_id *session,
    struct session_tree *tree,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s, loader->store, "SELECT " SUMMARY_COLUMNS " FROM session WHERE id = ?1", error
    ));
    statement_bind_text(&s, 1, view_of_text(session->text));
    bool found = false;
    TRY(statement_step(&s, &found, error));
    if (!found) {
        FAIL(error, NOT_FOUND, "no session '%s' in %s", session->text, loader->store->directory);
    }
    int64_t number = 0;
    TRY(read_summary(&s, loader->arena, &tree->session, &number, error));
    TRY(load_resumptions(loader, number, tree, error));
    TRY(load_decisions(loader, number, tree, error));
    TRY(loader_load_swarms(loader, number, tree, error));
    TRY(loader_load_mail(loader, number, tree, error));
    return load_agents(loader, number, tree, error);
}

result session_load(
    struct session_store *store,
    const struct session_id *session,
    const struct session_load_options *options,
    struct session_tree **out,
    struct error *error
) {
    struct tree_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL) {
        FAIL(error, MEMORY, "session '%s'", session->text);
    }
    owner->arena.ceiling = SESSION_TREE_BYTES_MAX;
    CLEANUP(session_tree_cleanup) struct session_tree *tree = &owner->tree;
    struct loader loader = {store, &owner->arena, {false, false}};
    if (options != NULL) {
        loader.options = *options;
    }
    bool opened = false;
    TRY(read_begin(store, &opened, error));
    result status = fill_tree(&loader, session, tree, error);
    read_end(store, opened);
    TRY_NOTE(error, status, "while loading session %s", session->text);
    *out = TAKE(tree);
    return OK;
}

void session_tree_destroy(struct session_tree *tree) {
    if (tree != NULL) {
        struct tree_owner *owner = (struct tree_owner *)tree;
        arena_deinit(&owner->arena);
        free(owner);
    }
}

void session_tree_cleanup(struct session_tree **tree) {
    session_tree_destroy(*tree);
    *tree = NULL;
}
