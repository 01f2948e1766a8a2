/* The queries: lists, and one session with its tree.
 *
 * Rows may come from a damaged or hostile file, so numbers are checked before they are used, and
 * all memory comes from an arena with a ceiling. A tree is read inside one transaction: a
 * consistent picture beside a writer.
 */
#include "session_internal.h"

/* Lists and trees with the memory they own; the public struct comes first. */
struct list_owner {
    struct session_list list;
    struct arena arena;
};

struct tree_owner {
    struct session_tree tree;
    struct arena arena;
};

#define LIST_BYTES_MAX ((size_t)256 << 20)

/* ------------------------------------------------------------- small reads ---- */

/* Takes columns one after the other; the first failure sticks. */
struct row {
    const struct statement *statement;
    struct arena *arena;
    struct error *error;
    result status;
    int column;
};

static struct row
row_of(const struct statement *statement, struct arena *arena, struct error *error) {
    struct row row = {statement, arena, error, OK, 0};
    return row;
}

static int64_t take_i64(struct row *row) {
    return statement_i64(row->statement, row->column++);
}

static double take_double(struct row *row) {
    return statement_double(row->statement, row->column++);
}

static struct view take_bytes(struct row *row) {
    struct view copy = {NULL, 0};
    struct view bytes = statement_bytes(row->statement, row->column++);
    if (is_ok(row->status)) {
        row->status = arena_copy(row->arena, bytes, &copy, row->error);
    }
    return copy;
}

static struct view take_text(struct row *row) {
    struct view text = take_bytes(row);
    if (is_ok(row->status) && !utf8_is_valid(text)) {
        row->status = error_set(
            row->error,
            RESULT_CORRUPT,
            0,
            __FILE__,
            __LINE__,
            "%s: a text that is no UTF-8",
            row->statement->store->path
        );
    }
    return text;
}

static struct session_id take_id(struct row *row) {
    struct session_id id = {""};
    struct view text = statement_bytes(row->statement, row->column++);
    if (text.length != 0 && text.length != SESSION_ID_LENGTH && is_ok(row->status)) {
        row->status = error_set(
            row->error,
            RESULT_CORRUPT,
            0,
            __FILE__,
            __LINE__,
            "%s: an id of %zu bytes",
            row->statement->store->path,
            text.length
        );
    } else if (text.length == SESSION_ID_LENGTH) {
        memcpy(id.text, text.data, SESSION_ID_LENGTH);
    }
    return id;
}

/* A number in [0, max]: enumerators and flags. */
static int64_t take_small(struct row *row, int64_t max, const char *what) {
    int64_t value = take_i64(row);
    if ((value < 0 || value > max) && is_ok(row->status)) {
        row->status = error_set(
            row->error,
            RESULT_CORRUPT,
            0,
            __FILE__,
            __LINE__,
            "%s: %s is %lld, at most %lld",
            row->statement->store->path,
            what,
            (long long)value,
            (long long)max
        );
        return 0;
    }
    return value < 0 || value > max ? 0 : value;
}

static struct session_sampler take_sampler(struct row *row) {
    struct session_sampler sampler = {0};
    sampler.seed = (uint64_t)take_i64(row);
    sampler.temperature = take_double(row);
    sampler.top_p = take_double(row);
    sampler.effort = take_i64(row);
    sampler.settings = take_text(row);
    return sampler;
}

/* --------------------------------------------------------------- summaries ---- */

#define SUMMARY_COLUMNS                                                                            \
    "number, id, status, created_ms, ended_ms, exit_status, task, workspace, model, model_digest," \
    " backend, numerics_version, program_version, commit_before, seed, temperature, top_p,"        \
    " effort, settings, time_ms_max, tokens_max, verdict, stop_reason, commit_after, window_mode"

static result load_usage(
    struct session_store *store, int64_t session, struct session_usage *out, struct error *error
) {
    struct session_usage usage = {0};
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT (SELECT count(*) FROM agent WHERE session = ?1), count(*),"
        " coalesce(sum(t.prompt_tokens), 0), coalesce(sum(t.evaluated_tokens), 0),"
        " coalesce(sum(t.reused_tokens), 0), coalesce(sum(t.rebuilt_tokens), 0),"
        " coalesce(sum(t.output_tokens), 0), coalesce(sum(t.drafted), 0),"
        " coalesce(sum(t.accepted), 0), coalesce(sum(t.prefill_ms), 0),"
        " coalesce(sum(t.decode_ms), 0)"
        " FROM agent a JOIN turn t ON t.agent = a.number WHERE a.session = ?1",
        error
    ));
    statement_bind_i64(&s, 1, session);
    bool found = false;
    TRY(statement_step(&s, &found, error));
    ASSERT(found); // an aggregate always gives a row
    int64_t *const fields[] = {
        &usage.agents,
        &usage.turns,
        &usage.prompt_tokens,
        &usage.evaluated_tokens,
        &usage.reused_tokens,
        &usage.rebuilt_tokens,
        &usage.output_tokens,
        &usage.drafted,
        &usage.accepted,
        &usage.prefill_ms,
        &usage.decode_ms};
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        *fields[i] = statement_i64(&s, (int)i);
    }
    CLEANUP(statement_end) struct statement calls = {NULL, NULL, 0};
    TRY(statement_begin(
        &calls,
        store,
        "SELECT count(*), coalesce(sum(c.duration_ms), 0) FROM agent a"
        " JOIN turn t ON t.agent = a.number JOIN call c ON c.turn = t.number WHERE a.session = ?1",
        error
    ));
    statement_bind_i64(&calls, 1, session);
    TRY(statement_step(&calls, &found, error));
    ASSERT(found);
    usage.calls = statement_i64(&calls, 0);
    usage.tools_ms = statement_i64(&calls, 1);
    *out = usage;
    return OK;
}

/* `number` is the session's row, for its agents. */
static result read_summary(
    const struct statement *statement,
    struct arena *arena,
    struct session_summary *out,
    int64_t *number,
    struct error *error
) {
    struct row row = row_of(statement, arena, error);
    struct session_summary summary = {0};
    *number = take_i64(&row);
    summary.id = take_id(&row);
    summary.status = (enum session_status)take_small(&row, SESSION_INTERRUPTED, "session.status");
    if (summary.status == SESSION_RUNNING && statement->store->writer_is_gone) {
        summary.status = SESSION_INTERRUPTED;
    }
    summary.created_ms = take_i64(&row);
    summary.ended_ms = take_i64(&row);
    summary.exit_status = take_i64(&row);
    struct session_begin *begin = &summary.begin;
    begin->task = take_text(&row);
    begin->workspace = take_text(&row);
    begin->model = take_text(&row);
    begin->model_digest = take_text(&row);
    begin->backend = take_text(&row);
    begin->numerics_version = take_text(&row);
    begin->program_version = take_text(&row);
    begin->commit_before = take_text(&row);
    begin->sampler = take_sampler(&row);
    begin->time_ms_max = take_i64(&row);
    begin->tokens_max = take_i64(&row);
    summary.verdict = take_text(&row);
    summary.stop_reason = take_text(&row);
    summary.commit_after = take_text(&row);
    begin->window_mode = take_text(&row);
    TRY(row.status);
    TRY(load_usage(statement->store, *number, &summary.usage, error));
    *out = summary;
    return OK;
}

/* A read transaction, unless a batch is open, which already is one. Readers also find out whether
 * what they are about to see as running has anybody left to finish it. */
static result read_begin(struct session_store *store, bool *opened, struct error *error) {
    *opened = !store->is_batch;
    if (!*opened) {
        return OK;
    }
    bool was_held = store->mode == SESSION_READ_WRITE || session_lock_is_held(store->directory);
    // The first read fixes the picture. A writer seen before or after it may own what is open in
    // it: one that ended in between, or one that has just begun.
    TRY(store_execute(store, "BEGIN; SELECT number FROM session LIMIT 1", error));
    store->writer_is_gone = !was_held && !session_lock_is_held(store->directory);
    return OK;
}

static void read_end(struct session_store *store, bool opened) {
    if (opened) {
        // Nothing was written: a failure to end a reading transaction loses nothing.
        result_ignore(store_execute(store, "COMMIT", NULL));
    }
}

static result fill_list(
    struct session_store *store,
    const struct session_filter *filter,
    struct list_owner *owner,
    struct error *error
) {
    size_t count_max = filter->count_max;
    if (count_max == 0 || count_max > SESSION_LIST_COUNT_MAX) {
        count_max = SESSION_LIST_COUNT_MAX;
    }
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT " SUMMARY_COLUMNS " FROM session WHERE (?1 = 0 OR created_ms < ?1)"
        " AND (?2 = 0 OR created_ms >= ?2) AND (?3 = '' OR workspace = ?3)"
        " AND (?4 < 0 OR iif(status = 0 AND ?7, 4, status) = ?4) AND (?5 = '' OR "
        "instr(lower(task), lower(?5)) > 0)"
        " ORDER BY created_ms DESC, number DESC LIMIT ?6",
        error
    ));
    statement_bind_i64(&s, 1, filter->before_ms);
    statement_bind_i64(&s, 2, filter->since_ms);
    statement_bind_text(&s, 3, filter->workspace);
    statement_bind_i64(&s, 4, filter->has_status ? (int64_t)filter->status : -1);
    statement_bind_text(&s, 5, filter->task_part);
    statement_bind_i64(&s, 6, (int64_t)count_max + 1);
    statement_bind_i64(&s, 7, store->writer_is_gone ? 1 : 0);
    struct session_list *list = &owner->list;
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        if (list->count == count_max) {
            list->is_cut = true;
            return OK;
        }
        void *items = list->sessions;
        TRY(arena_grow(&owner->arena, &items, list->count, sizeof *list->sessions, error));
        list->sessions = items;
        int64_t number = 0;
        struct session_summary *next = &list->sessions[list->count];
        TRY(read_summary(&s, &owner->arena, next, &number, error));
        list->count += 1;
    }
}

result session_list_load(
    struct session_store *store,
    const struct session_filter *filter,
    struct session_list **out,
    struct error *error
) {
    static const struct session_filter all = {0};
    struct list_owner *owner = calloc(1, sizeof *owner);
    if (owner == NULL) {
        FAIL(error, MEMORY, "list of sessions");
    }
    owner->arena.ceiling = LIST_BYTES_MAX;
    CLEANUP(session_list_cleanup) struct session_list *list = &owner->list;
    bool opened = false;
    TRY(read_begin(store, &opened, error));
    result status = fill_list(store, filter == NULL ? &all : filter, owner, error);
    read_end(store, opened);
    TRY_NOTE(error, status, "while listing sessions");
    *out = TAKE(list);
    return OK;
}

void session_list_destroy(struct session_list *list) {
    if (list != NULL) {
        struct list_owner *owner = (struct list_owner *)list;
        arena_deinit(&owner->arena);
        free(owner);
    }
}

void session_list_cleanup(struct session_list **list) {
    session_list_destroy(*list);
    *list = NULL;
}

/* -------------------------------------------------------------------- tree ---- */

struct loader {
    struct session_store *store;
    struct arena *arena;
    struct session_load_options options;
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

static result load_turns(
    const struct loader *loader, int64_t agent, struct session_agent *out, struct error *error
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
        " WHERE agent = ?1 ORDER BY position",
        error
    ));
    statement_bind_i64(&s, 1, agent);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        void *items = out->turns;
        TRY(arena_grow(loader->arena, &items, out->turn_count, sizeof *out->turns, error));
        out->turns = items;
        struct session_turn *turn = &out->turns[out->turn_count];
        TRY(read_turn(loader, &s, turn, error));
        TRY(load_messages(loader, turn, error));
        TRY(load_runs(loader, turn, error));
        TRY(load_calls(loader, turn, error));
        out->turn_count += 1;
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
        " a.settings, a.created_ms FROM agent a LEFT JOIN agent p ON p.number = a.parent"
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
        TRY(row.status);
        TRY(load_turns(loader, number, agent, error));
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
