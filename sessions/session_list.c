/* Lists of sessions, and the summary of one. */
#include "session_row.h"

/* A list with the memory it owns; the public struct comes first. */
struct list_owner {
    struct session_list list;
    struct arena arena;
};

#define LIST_BYTES_MAX ((size_t)256 << 20)

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

result read_summary(
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
    begin->worktree_of = take_text(&row);
    TRY(row.status);
    TRY(load_usage(statement->store, *number, &summary.usage, error));
    *out = summary;
    return OK;
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
