/* The appends: one statement each, which also checks that what it belongs to exists and is open. */
#include "session_internal.h"

#include <math.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token runs are stored little-endian");

static int64_t now_ms(const struct session_store *store) {
    return clock_wall_ms(&store->clock);
}

static struct view id_view(const struct session_id *id) {
    return view_of_text(id->text);
}

/* Binds seed, temperature, top_p and effort from `at` on, and the settings at their own place. The seed
 * keeps its 64 bits. */
static void bind_sampler(
    struct statement *statement, int at, int at_settings, const struct session_sampler *sampler
) {
    statement_bind_i64(statement, at, (int64_t)sampler->seed);
    statement_bind_double(statement, at + 1, sampler->temperature);
    statement_bind_double(statement, at + 2, sampler->top_p);
    statement_bind_i64(statement, at + 3, sampler->effort);
    statement_bind_text(statement, at_settings, sampler->settings);
}

static result check_sampler(const struct session_sampler *sampler, struct error *error) {
    // SQLite stores NaN as NULL, which the schema refuses with a less clear text.
    if (!isfinite(sampler->temperature) || !isfinite(sampler->top_p)) {
        FAIL(error, INVALID_INPUT, "sampler: temperature and top_p must be finite numbers");
    }
    return OK;
}

result session_create(
    struct session_store *store,
    const struct session_begin *begin,
    struct session_id *out,
    struct error *error
) {
    struct session_id id;
    TRY(check_sampler(&begin->sampler, error));
    TRY(session_id_create(&id, &store->clock, error));
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO session (id, created_ms, task, workspace, model, model_digest, backend,"
        " numerics_version, program_version, commit_before, seed, temperature, top_p, effort,"
        " time_ms_max, tokens_max, window_mode, settings, worktree_of) VALUES (?1, ?2, ?3, ?4, ?5,"
        " ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
        error
    ));
    statement_bind_text(&s, 1, id_view(&id));
    statement_bind_i64(&s, 2, now_ms(store));
    const struct view texts[] = {
        begin->task,
        begin->workspace,
        begin->model,
        begin->model_digest,
        begin->backend,
        begin->numerics_version,
        begin->program_version,
        begin->commit_before};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        statement_bind_text(&s, 3 + (int)i, texts[i]);
    }
    bind_sampler(&s, 11, 18, &begin->sampler);
    statement_bind_i64(&s, 15, begin->time_ms_max);
    statement_bind_i64(&s, 16, begin->tokens_max);
    statement_bind_text(&s, 17, begin->window_mode);
    statement_bind_text(&s, 19, begin->worktree_of);
    TRY(statement_run_once(&s, "session not stored", error));
    *out = id;
    return OK;
}

static result finish_session(
    struct session_store *store,
    const struct session_id *session,
    const struct session_end *end,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE session SET status = ?2, ended_ms = ?3, verdict = ?4, stop_reason = ?5,"
        " commit_after = ?6, exit_status = ?7 WHERE id = ?1 AND status = 0",
        error
    ));
    statement_bind_text(&s, 1, id_view(session));
    statement_bind_i64(&s, 2, (int64_t)end->status);
    statement_bind_i64(&s, 3, now_ms(store));
    statement_bind_text(&s, 4, end->verdict);
    statement_bind_text(&s, 5, end->stop_reason);
    statement_bind_text(&s, 6, end->commit_after);
    statement_bind_i64(&s, 7, end->exit_status);
    return statement_run_once(&s, "the session to finish does not exist or has ended", error);
}

result session_finish(
    struct session_store *store,
    const struct session_id *session,
    const struct session_end *end,
    struct error *error
) {
    ASSERT(end->status > SESSION_RUNNING && end->status <= SESSION_INTERRUPTED);
    bool is_own = false;
    TRY(store_step_begin(store, &is_own, error));
    result status = finish_session(store, session, end, error);
    if (is_ok(status)) {
        status = session_swarms_end(store, session, error);
    }
    return store_step_end(store, is_own, status, error);
}

/* Keeps how the session had ended. */
static result append_resumption(
    struct session_store *store,
    const struct session_id *session,
    const struct session_resume_begin *begin,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO resumption (session, resumed_ms, turns_before, backend, numerics_version,"
        " program_version, commit_before, status, ended_ms, exit_status, verdict, stop_reason,"
        " commit_after) SELECT s.number, ?2, (SELECT count(*) FROM turn t JOIN agent a"
        " ON a.number = t.agent WHERE a.session = s.number), ?3, ?4, ?5, ?6, s.status, s.ended_ms,"
        " s.exit_status, s.verdict, s.stop_reason, s.commit_after FROM session s"
        " WHERE s.id = ?1 AND s.status <> 0",
        error
    ));
    statement_bind_text(&s, 1, id_view(session));
    statement_bind_i64(&s, 2, now_ms(store));
    const struct view texts[] = {
        begin->backend, begin->numerics_version, begin->program_version, begin->commit_before};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        statement_bind_text(&s, 3 + (int)i, texts[i]);
    }
    return statement_run_once(
        &s, "the session to go on with does not exist or is still running", error
    );
}

static result
reopen(struct session_store *store, const struct session_id *session, struct error *error) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE session SET status = 0, ended_ms = 0, exit_status = 0, verdict = '',"
        " stop_reason = '' WHERE id = ?1",
        error
    ));
    statement_bind_text(&s, 1, id_view(session));
    return statement_run_once(&s, "session not opened again", error);
}

result session_resume(
    struct session_store *store,
    const struct session_id *session,
    const struct session_resume_begin *begin,
    struct error *error
) {
    bool is_own = false;
    TRY(store_step_begin(store, &is_own, error));
    result status = append_resumption(store, session, begin, error);
    if (is_ok(status)) {
        status = reopen(store, session, error);
    }
    return store_step_end(store, is_own, status, error);
}

result session_agent_append(
    struct session_store *store,
    const struct session_agent_begin *begin,
    struct session_id *out,
    struct error *error
) {
    struct session_id id;
    struct session_fork_point fork = {0};
    TRY(check_sampler(&begin->sampler, error));
    TRY(session_id_create(&id, &store->clock, error));
    if (begin->fork_turn != 0) {
        TRY(session_fork_point_find(store, &begin->parent, begin->fork_turn, &fork, error));
    }
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    // A parent must be an agent of the same session.
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO agent (session, parent, id, created_ms, name, tools, seed, temperature, top_p,"
        " effort, settings, fork_of, fork_rewind, fork_message)"
        " SELECT s.number, p.number, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14"
        " FROM session s"
        " LEFT JOIN agent p ON p.session = s.number AND p.id = ?2"
        " WHERE s.id = ?1 AND s.status = 0 AND (?2 = '' OR p.number IS NOT NULL)",
        error
    ));
    statement_bind_text(&s, 1, id_view(&begin->session));
    statement_bind_text(&s, 2, id_view(&begin->parent));
    statement_bind_text(&s, 3, id_view(&id));
    statement_bind_i64(&s, 4, now_ms(store));
    statement_bind_text(&s, 5, begin->name);
    statement_bind_text(&s, 6, begin->tools);
    bind_sampler(&s, 7, 11, &begin->sampler);
    statement_bind_i64(&s, 13, fork.rewind);
    if (fork.turn != 0) { // else NULL
        statement_bind_i64(&s, 12, fork.turn);
        statement_bind_i64(&s, 14, fork.message);
    }
    TRY(statement_run_once(
        &s, "the agent's session is not running, or its parent is not of this session", error
    ));
    *out = id;
    return OK;
}

result session_turn_start(
    struct session_store *store, const struct session_id *agent, int64_t *turn, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO turn (agent, position, started_ms)"
        " SELECT a.number, coalesce((SELECT max(t.position) + 1 FROM turn t WHERE t.agent ="
        " a.number), (SELECT f.position + 1 FROM turn f WHERE f.number = a.fork_of), 0), ?2"
        " FROM agent a JOIN session s ON s.number = a.session"
        " WHERE a.id = ?1 AND s.status = 0",
        error
    ));
    statement_bind_text(&s, 1, id_view(agent));
    statement_bind_i64(&s, 2, now_ms(store));
    TRY(statement_run_once(&s, "the turn's agent does not exist or its session has ended", error));
    *turn = statement_inserted(&s);
    return OK;
}

static result check_cache(const struct session_cache_facts *cache, struct error *error) {
    int64_t sum = 0;
    bool negative = cache->prompt_tokens < 0 || cache->evaluated_tokens < 0 ||
                    cache->reused_tokens < 0 || cache->rebuilt_tokens < 0 ||
                    cache->hit_position < 0 || cache->rebuilt_from < 0 || cache->miss_token < 0 ||
                    cache->restored_host < 0 || cache->restored_disk < 0;
    if (negative || __builtin_add_overflow(cache->evaluated_tokens, cache->reused_tokens, &sum) ||
        sum != cache->prompt_tokens) {
        FAIL(
            error,
            INVALID_INPUT,
            "cache facts do not add up: %lld evaluated + %lld reused, %lld in the prompt",
            (long long)cache->evaluated_tokens,
            (long long)cache->reused_tokens,
            (long long)cache->prompt_tokens
        );
    }
    return OK;
}

static result check_drafts(const struct session_turn_end *end, struct error *error) {
    if (end->accepted < 0 || end->accepted > end->drafted || end->preempted < 0 ||
        end->fork_index < -1) {
        FAIL(
            error,
            INVALID_INPUT,
            "facts of a turn: %lld of %lld drafted tokens accepted, pre-empted %lld times, fork "
            "%lld",
            (long long)end->accepted,
            (long long)end->drafted,
            (long long)end->preempted,
            (long long)end->fork_index
        );
    }
    return OK;
}

result session_turn_finish(
    struct session_store *store,
    int64_t turn,
    const struct session_turn_end *end,
    struct error *error
) {
    const struct session_cache_facts *cache = &end->cache;
    TRY(check_cache(cache, error));
    TRY(check_drafts(end, error));
    TRY(check_sampler(&end->sampler, error));
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE turn SET is_finished = 1, ended_ms = ?2, prompt_tokens = ?3, evaluated_tokens = ?4,"
        " reused_tokens = ?5, rebuilt_tokens = ?6, hit_position = ?7, miss_reason = ?8,"
        " window_source = ?9, lineage = ?10, decoder_lineage = ?11, backend = ?12,"
        " numerics_version = ?13, stop_reason = ?14, seed = ?15, temperature = ?16, top_p = ?17,"
        " effort = ?18, output_tokens = ?19, prefill_ms = ?20, decode_ms = ?21,"
        " rebuilt_from = ?22, miss_token = ?23, restored_host = ?24, restored_disk = ?25,"
        " block_lineage = ?26, replays = ?27, settings = ?28, stop_detail = ?29, drafted = ?30,"
        " accepted = ?31, preempted = ?32, parent_seed = ?33, fork_index = ?34"
        " WHERE number = ?1 AND is_finished = 0",
        error
    ));
    const int64_t counts[] = {
        turn,
        now_ms(store),
        cache->prompt_tokens,
        cache->evaluated_tokens,
        cache->reused_tokens,
        cache->rebuilt_tokens,
        cache->hit_position};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        statement_bind_i64(&s, 1 + (int)i, counts[i]);
    }
    const struct view texts[] = {
        cache->miss_reason,
        cache->window_source,
        cache->lineage,
        cache->decoder_lineage,
        cache->backend,
        cache->numerics_version,
        end->stop_reason};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        statement_bind_text(&s, 8 + (int)i, texts[i]);
    }
    bind_sampler(&s, 15, 28, &end->sampler);
    statement_bind_i64(&s, 19, end->output_tokens);
    statement_bind_i64(&s, 20, end->prefill_ms);
    statement_bind_i64(&s, 21, end->decode_ms);
    statement_bind_i64(&s, 22, cache->rebuilt_from);
    statement_bind_i64(&s, 23, cache->miss_token);
    statement_bind_i64(&s, 24, cache->restored_host);
    statement_bind_i64(&s, 25, cache->restored_disk);
    statement_bind_text(&s, 26, cache->block_lineage);
    statement_bind_text(&s, 27, cache->replays);
    statement_bind_text(&s, 29, end->stop_detail);
    statement_bind_i64(&s, 30, end->drafted);
    statement_bind_i64(&s, 31, end->accepted);
    statement_bind_i64(&s, 32, end->preempted);
    statement_bind_i64(&s, 33, (int64_t)end->parent_seed);
    statement_bind_i64(&s, 34, end->fork_index);
    return statement_run_once(&s, "the turn to finish does not exist or is finished", error);
}

#define OF_RUNNING_TURN                                                                            \
    " FROM turn t JOIN agent a ON a.number = t.agent JOIN session s ON s.number = a.session"       \
    " WHERE t.number = ?1 AND s.status = 0"

result session_message_append(
    struct session_store *store, const struct session_message_begin *message, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO message (turn, created_ms, role, text, reasoning, calls, call)"
        " SELECT t.number, ?2, ?3, ?4, ?5, ?6, ?7" OF_RUNNING_TURN,
        error
    ));
    statement_bind_i64(&s, 1, message->turn);
    statement_bind_i64(&s, 2, now_ms(store));
    statement_bind_text(&s, 3, message->role);
    statement_bind_blob(&s, 4, message->text);
    statement_bind_blob(&s, 5, message->reasoning);
    statement_bind_blob(&s, 6, message->calls);
    if (message->call == 0) {
        statement_bind_null(&s, 7);
    } else {
        statement_bind_i64(&s, 7, message->call);
    }
    return statement_run_once(
        &s, "the message's turn does not exist or its session has ended", error
    );
}

result session_run_append(
    struct session_store *store, const struct session_run_begin *run, struct error *error
) {
    size_t bytes = 0;
    if (!size_multiply(run->count, sizeof *run->ids, &bytes) || bytes > SESSION_TEXT_BYTES_MAX) {
        FAIL(
            error,
            LIMIT,
            "a token run of %zu tokens, at most %zu",
            run->count,
            SESSION_TEXT_BYTES_MAX / sizeof *run->ids
        );
    }
    ASSERT(run->count == 0 || run->ids != NULL);
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO token_run (turn, kind, position, count, ids, log_probabilities)"
        " SELECT t.number, ?2, ?3, ?4, ?5, ?6" OF_RUNNING_TURN,
        error
    ));
    statement_bind_i64(&s, 1, run->turn);
    statement_bind_i64(&s, 2, (int64_t)run->kind);
    statement_bind_i64(&s, 3, run->position);
    statement_bind_i64(&s, 4, (int64_t)run->count);
    statement_bind_blob(&s, 5, view_of(run->ids, bytes));
    if (run->log_probabilities == NULL) {
        statement_bind_null(&s, 6);
    } else {
        statement_bind_blob(&s, 6, view_of(run->log_probabilities, bytes));
    }
    return statement_run_once(
        &s, "the token run's turn does not exist or its session has ended", error
    );
}

result session_call_start(
    struct session_store *store,
    const struct session_call_begin *begin,
    int64_t *call,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO call (turn, started_ms, name, arguments, commit_before)"
        " SELECT t.number, ?2, ?3, ?4, ?5" OF_RUNNING_TURN,
        error
    ));
    statement_bind_i64(&s, 1, begin->turn);
    statement_bind_i64(&s, 2, now_ms(store));
    statement_bind_blob(&s, 3, begin->name);
    statement_bind_blob(&s, 4, begin->arguments);
    statement_bind_text(&s, 5, begin->commit_before);
    TRY(statement_run_once(&s, "the call's turn does not exist or its session has ended", error));
    *call = statement_inserted(&s);
    return OK;
}

result session_call_finish(
    struct session_store *store,
    int64_t call,
    const struct session_call_end *end,
    struct error *error
) {
    ASSERT(end->status > SESSION_CALL_STARTED && end->status <= SESSION_CALL_INTERRUPTED);
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "UPDATE call SET status = ?2, ended_ms = ?3, duration_ms = ?4, text = ?5, output = ?6,"
        " output_bytes = ?7, text_is_truncated = ?8, exit_status = ?9, commit_after = ?10,"
        " output_gap_at = ?11"
        " WHERE number = ?1 AND status = 0",
        error
    ));
    statement_bind_i64(&s, 1, call);
    statement_bind_i64(&s, 2, (int64_t)end->status);
    statement_bind_i64(&s, 3, now_ms(store));
    statement_bind_i64(&s, 4, end->duration_ms);
    statement_bind_blob(&s, 5, end->text);
    statement_bind_blob(&s, 6, end->output);
    statement_bind_i64(&s, 7, (int64_t)end->output_bytes);
    statement_bind_i64(&s, 8, end->text_is_truncated ? 1 : 0);
    if (end->has_exit_status) {
        statement_bind_i64(&s, 9, end->exit_status);
    } else {
        statement_bind_null(&s, 9);
    }
    statement_bind_text(&s, 10, end->commit_after);
    statement_bind_i64(&s, 11, (int64_t)end->output_gap_at);
    return statement_run_once(&s, "the call to finish does not exist or is finished", error);
}
