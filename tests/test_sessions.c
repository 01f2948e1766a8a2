/* The session store: what is written comes back, order and counters are enforced, one writer. */
#include "sessions/session_internal.h"
#include "sessions_support.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_first_turn(const struct session_turn *turn) {
    assert_int_equal(turn->index, 0);
    assert_true(turn->is_finished);
    assert_int_equal(turn->end.cache.evaluated_tokens, 40);
    assert_int_equal(turn->end.cache.rebuilt_tokens, 7);
    assert_text(turn->end.cache.window_source, "live");
    assert_text(turn->end.cache.miss_reason, "diverged");
    assert_text(turn->end.cache.lineage, "00aa");
    assert_text(turn->end.cache.block_lineage, "00bb");
    assert_text(turn->end.cache.replays, "encoder@64 decoder@90");
    assert_int_equal(turn->end.cache.rebuilt_from, 3);
    assert_int_equal(turn->end.cache.miss_token, 61);
    assert_int_equal(turn->end.cache.restored_host, 2);
    assert_int_equal(turn->end.cache.restored_disk, 4);
    assert_text(turn->end.sampler.settings, "{\"top_k\":40,\"stop\":[\"a\\nb\"]}");
    assert_text(turn->end.stop_detail, "a\nb");
    assert_int_equal(turn->end.drafted, 9);
    assert_int_equal(turn->end.accepted, 5);
    assert_int_equal(turn->end.preempted, 2);
    assert_true(turn->end.parent_seed == UINT64_MAX - 6);
    assert_int_equal(turn->end.fork_index, 3);
    assert_true(turn->end.sampler.seed == UINT64_MAX - 5);
    assert_int_equal(turn->message_count, 2);
    assert_text(turn->messages[0].role, "user");
    assert_text(turn->messages[0].text, "half a character: \xE2\x82");
    assert_text(turn->messages[1].reasoning, "Look at it.");
    assert_int_equal(turn->run_count, 2);
    const struct session_run *run = &turn->runs[0];
    assert_int_equal(run->kind, SESSION_RUN_OUTPUT);
    assert_int_equal(run->position, 100);
    assert_int_equal(run->count, TOKEN_COUNT);
    assert_memory_equal(run->ids, token_ids, TOKEN_COUNT * sizeof *token_ids);
    assert_memory_equal(
        run->log_probabilities,
        token_log_probabilities,
        TOKEN_COUNT * sizeof *token_log_probabilities
    );
    assert_null(turn->runs[1].log_probabilities);
    assert_int_equal(turn->call_count, 1);
    const struct session_call *call = &turn->calls[0];
    assert_int_equal(call->status, SESSION_CALL_OK);
    assert_text(call->arguments, "{\"command\": \"python3 tests.py\"}");
    assert_true(view_equals(call->output, view_of(raw_output, raw_output_bytes)));
    assert_true(call->output_bytes == 5000000000 && call->output_gap_at == 4);
    assert_true(call->has_exit_status && call->exit_status == 1 && call->text_is_truncated);
    assert_text(call->commit_before, "abc");
    assert_text(call->commit_after, "def");
    assert_true(call->started_ms < call->ended_ms);
}

static void session_written_comes_back_whole(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_session(store, "Fix the bug");
    MUST(session_store_verify(store, &must_error));
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    struct session_load_options all = {true, true};
    MUST(session_load(store, &id, &all, &tree, &must_error));
    const struct session_summary *summary = &tree->session;
    assert_string_equal(summary->id.text, id.text);
    assert_int_equal(summary->status, SESSION_DONE);
    assert_text(summary->begin.task, "Fix the bug");
    assert_text(summary->begin.commit_before, "abc");
    assert_text(summary->verdict, "tests pass");
    assert_true(summary->begin.sampler.seed == sampler.seed);
    assert_true(summary->begin.sampler.temperature == sampler.temperature);
    assert_true(summary->ended_ms > summary->created_ms);
    assert_int_equal(summary->usage.turns, 2);
    assert_int_equal(summary->usage.calls, 1);
    assert_int_equal(summary->usage.agents, 2);
    assert_int_equal(summary->usage.prompt_tokens, 220);
    assert_int_equal(summary->usage.evaluated_tokens + summary->usage.reused_tokens, 220);
    assert_int_equal(summary->usage.output_tokens, 24);
    assert_int_equal(summary->usage.tools_ms, 41);
    assert_int_equal(tree->agent_count, 2);
    assert_string_equal(tree->agents[1].parent.text, tree->agents[0].id.text);
    assert_string_equal(tree->agents[0].parent.text, "");
    assert_int_equal(tree->agents[0].turn_count, 2);
    check_first_turn(&tree->agents[0].turns[0]);
    const struct session_turn *second = &tree->agents[0].turns[1];
    assert_int_equal(second->index, 1);
    assert_int_equal(second->messages[0].call, tree->agents[0].turns[0].calls[0].number);
}

static void every_commit_is_flushed(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    char value[16];
    MUST(store_query_text(store, "PRAGMA journal_mode", value, sizeof value, &must_error));
    assert_string_equal(value, "wal");
    MUST(store_query_text(store, "PRAGMA synchronous", value, sizeof value, &must_error));
    assert_string_equal(value, "2"); /* FULL */
}

static void session_without_blobs_keeps_the_rest(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_session(store, "Fix");
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &id, NULL, &tree, &must_error));
    const struct session_turn *turn = &tree->agents[0].turns[0];
    assert_null(turn->runs[0].ids);
    assert_int_equal(turn->runs[0].count, TOKEN_COUNT);
    assert_int_equal(turn->calls[0].output.length, 0);
    assert_text(turn->calls[0].text, "1 failed\n[exit 1]");
}

static void session_json_is_strict_and_complete(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_session(store, "Fix \"it\"\n");
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    struct session_load_options all = {true, true};
    MUST(session_load(store, &id, &all, &tree, &must_error));
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    struct error error;
    json_writer_init(&writer, &text, &error);
    session_tree_write(&writer, tree);
    MUST(json_writer_finish(&writer));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    MUST(json_parse(buffer_view(&text), NULL, &document, &must_error));
    struct json_value root = json_root(document);
    int64_t number = 0;
    struct view word;
    MUST(json_get_i64(root, "version", &number, &must_error));
    assert_int_equal(number, SESSION_EVENT_VERSION);
    MUST(json_get_string(root, "task", &word, &must_error));
    assert_text(word, "Fix \"it\"\n");
    struct json_value turn = json_first(json_get(json_first(json_get(root, "agents")), "turns"));
    MUST(json_get_string(json_first(json_get(turn, "messages")), "text", &word, &must_error));
    assert_text(word, "half a character: \xEF\xBF\xBD");
    struct json_value call = json_first(json_get(turn, "calls"));
    MUST(json_get_string(json_get(call, "arguments"), "command", &word, &must_error));
    assert_text(word, "python3 tests.py");
    MUST(json_get_string(call, "output", &word, &must_error));
    assert_text(
        word,
        "raw\xEF\xBF\xBD"
        "bytes\xEF\xBF\xBD\n"
    );
    assert_int_equal(json_count(json_get(json_first(json_get(turn, "token_runs")), "ids")), 4);
}

static void append_out_of_order_is_refused(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id nobody = {"00000000-0000-7000-8000-000000000000"};
    int64_t number = 0;
    assert_refused(session_turn_start(store, &nobody, &number, &error), &error, "agent");
    struct session_id session = make_session(store, "a");
    struct session_id other = make_session(store, "b");
    struct session_id agent = make_agent(store, &session);
    struct session_agent_begin stranger = {0};
    stranger.session = other;
    stranger.parent = agent;
    struct session_id id = {""};
    assert_refused(session_agent_append(store, &stranger, &id, &error), &error, "parent");
    int64_t turn = make_turn(store, &agent);
    struct session_turn_end end = turn_end(100, 40, 59);
    assert_refused(session_turn_finish(store, turn, &end, &error), &error, "40 evaluated + 59");
    end = turn_end(100, 101, -1);
    assert_refused(session_turn_finish(store, turn, &end, &error), &error, "do not add up");
    end = turn_end(100, 40, 60);
    end.accepted = end.drafted + 1;
    assert_refused(session_turn_finish(store, turn, &end, &error), &error, "10 of 9 drafted");
    end = turn_end(100, 40, 60);
    end.sampler.temperature = (double)NAN;
    assert_refused(session_turn_finish(store, turn, &end, &error), &error, "finite");
    end = turn_end(100, 40, 60);
    MUST(session_turn_finish(store, turn, &end, &must_error));
    assert_refused(session_turn_finish(store, turn, &end, &error), &error, "is finished");
    int64_t call = start_call(store, turn);
    struct session_call_end finished = call_end();
    MUST(session_call_finish(store, call, &finished, &must_error));
    assert_refused(session_call_finish(store, call, &finished, &error), &error, "is finished");
    assert_refused(session_call_finish(store, call + 1, &finished, &error), &error, "not exist");
    struct session_end last = {0};
    last.status = SESSION_STOPPED;
    MUST(session_finish(store, &session, &last, &must_error));
    assert_refused(session_finish(store, &session, &last, &error), &error, "has ended");
    assert_refused(session_turn_start(store, &agent, &number, &error), &error, "has ended");
    struct session_call_begin late = {0};
    late.turn = turn;
    assert_refused(session_call_start(store, &late, &number, &error), &error, "has ended");
}

static void value_over_its_maximum_is_refused(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id session = make_session(store, "a");
    struct session_id agent = make_agent(store, &session);
    int64_t turn = make_turn(store, &agent);
    CLEANUP(free_cleanup) unsigned char *large = calloc(1, SESSION_TEXT_BYTES_MAX + 1);
    assert_non_null(large);
    struct session_message_begin message = {0};
    message.turn = turn;
    message.role = view_of_text("user");
    message.text = view_of(large, SESSION_TEXT_BYTES_MAX + 1);
    assert_int_equal(session_message_append(store, &message, &error).code, RESULT_LIMIT);
    message.text = view_of(large, 1 << 20);
    MUST(session_message_append(store, &message, &must_error));
}

static void batch_with_a_failure_leaves_nothing(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id session = make_session(store, "a");
    struct session_id agent = make_agent(store, &session);
    int64_t turn = make_turn(store, &agent);
    MUST(session_batch_begin(store, &must_error));
    append_message(store, turn, "user", 0);
    struct session_turn_end bad = turn_end(1, 1, 0);
    assert_refused(session_turn_finish(store, turn + 1, &bad, &error), &error, "not exist");
    struct session_message_begin message = {0};
    message.turn = turn;
    message.role = view_of_text("user");
    assert_refused(session_message_append(store, &message, &error), &error, "earlier step");
    assert_int_equal(session_batch_commit(store, &error).code, RESULT_INVALID_INPUT);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM message"), 0);
    MUST(session_batch_begin(store, &must_error));
    append_message(store, turn, "user", 0);
    session_batch_rollback(store);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM message"), 0);
    append_message(store, turn, "user", 0);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM message"), 1);
}

static void second_writer_is_refused_and_readers_work(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_session(store, "first");
    struct session_store *second = NULL;
    assert_int_equal(open_store(folder, SESSION_READ_WRITE, &second, &error).code, RESULT_LIMIT);
    char pid[32];
    (void)snprintf(pid, sizeof pid, "process %ld test", (long)getpid());
    assert_non_null(strstr(error.message, pid));
    assert_non_null(strstr(error.message, "--state DIR"));
    assert_null(second);
    // A reader beside the writer, also in the middle of a batch: it sees what was committed.
    CLEANUP(session_store_cleanup) struct session_store *reader = NULL;
    reader = open_or_fail(folder, SESSION_READ_ONLY);
    MUST(session_batch_begin(store, &must_error));
    (void)make_session(store, "second");
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    MUST(session_list_load(reader, NULL, &list, &must_error));
    assert_int_equal(list->count, 1);
    assert_string_equal(list->sessions[0].id.text, id.text);
    MUST(session_batch_commit(store, &must_error));
    session_list_cleanup(&list);
    MUST(session_list_load(reader, NULL, &list, &must_error));
    assert_int_equal(list->count, 2);
    struct session_begin begin = {0};
    struct session_id out = {""};
    assert_int_equal(session_create(reader, &begin, &out, &error).code, RESULT_INVALID_INPUT);
    // The writer's end frees the place.
    session_store_cleanup(&store);
    store = open_or_fail(folder, SESSION_READ_WRITE);
    assert_int_equal(session_store_interrupted_count(store), 1);
}

static size_t count_status(struct session_store *store, enum session_status status) {
    struct session_filter filter = {0};
    filter.has_status = true;
    filter.status = status;
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    MUST(session_list_load(store, &filter, &list, &must_error));
    for (size_t i = 0; i < list->count; i++) {
        assert_int_equal(list->sessions[i].status, status);
    }
    return list->count;
}

static void open_steps_are_interrupted_once_their_writer_is_gone(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id session = make_session(store, "a");
    struct session_id agent = make_agent(store, &session);
    (void)start_call(store, make_turn(store, &agent));
    CLEANUP(session_store_cleanup) struct session_store *reader = NULL;
    reader = open_or_fail(folder, SESSION_READ_ONLY);
    assert_int_equal(count_status(reader, SESSION_RUNNING), 1);
    assert_int_equal(count_status(store, SESSION_RUNNING), 1);
    assert_int_equal(count_status(reader, SESSION_INTERRUPTED), 0);
    session_store_cleanup(&store);
    assert_int_equal(count_status(reader, SESSION_RUNNING), 0);
    assert_int_equal(count_status(reader, SESSION_INTERRUPTED), 1);
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(reader, &session, NULL, &tree, &must_error));
    assert_int_equal(tree->session.status, SESSION_INTERRUPTED);
    assert_int_equal(tree->agents[0].turns[0].calls[0].status, SESSION_CALL_INTERRUPTED);
    // The next writer says the same and makes it lasting.
    store = open_or_fail(folder, SESSION_READ_WRITE);
    assert_int_equal(session_store_interrupted_count(store), 2);
    assert_int_equal(count_status(reader, SESSION_INTERRUPTED), 1);
    session_store_cleanup(&store);
}

static void files_are_private(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    (void)make_session(store, "a");
    struct stat info;
    assert_int_equal(stat(folder->state, &info), 0);
    assert_int_equal(info.st_mode & 07777U, 0700);
    static const char *const names[] = {
        "sessions.db", "sessions.db-wal", "sessions.db-shm", "lock"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[PATH_BYTES];
        join(path, folder->state, names[i]);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 07777U, 0600);
    }
}

static void directory_open_to_others_is_refused_unless_empty(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    assert_int_equal(mkdir(folder->state, 0755), 0);
    assert_int_equal(chmod(folder->state, 0755), 0);
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    session_store_cleanup(&store);
    struct stat info;
    assert_int_equal(stat(folder->state, &info), 0);
    assert_int_equal(info.st_mode & 07777U, 0700);
    assert_int_equal(chmod(folder->state, 0777), 0);
    assert_refused(open_store(folder, SESSION_READ_WRITE, &store, &error), &error, "mode 0777");
    assert_null(store);
}

static void reader_without_records_says_so(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    struct session_store *store = NULL;
    assert_int_equal(open_store(folder, SESSION_READ_ONLY, &store, &error).code, RESULT_NOT_FOUND);
    assert_int_equal(mkdir(folder->state, 0700), 0);
    assert_int_equal(open_store(folder, SESSION_READ_ONLY, &store, &error).code, RESULT_NOT_FOUND);
    assert_int_not_equal(access(folder->database, F_OK), 0);
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = {""};
    assert_int_equal(
        session_resolve(store, view_of_text("last"), view_of_text(""), &id, &error).code,
        RESULT_NOT_FOUND
    );
    session_store_cleanup(&store);
}

static void list_is_newest_first_and_filters(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id first = make_session(store, "Fix the PARSER");
    struct session_id second = record_session(store, "write docs");
    struct session_id third = make_session(store, "fix the lexer");
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    MUST(session_list_load(store, NULL, &list, &must_error));
    assert_int_equal(list->count, 3);
    assert_string_equal(list->sessions[0].id.text, third.text);
    assert_string_equal(list->sessions[2].id.text, first.text);
    int64_t middle_ms = list->sessions[1].created_ms;
    assert_int_equal(list->sessions[1].usage.turns, 2);
    session_list_cleanup(&list);
    struct session_filter filter = {0};
    filter.task_part = view_of_text("FIX");
    MUST(session_list_load(store, &filter, &list, &must_error));
    assert_int_equal(list->count, 2);
    session_list_cleanup(&list);
    filter.count_max = 1;
    MUST(session_list_load(store, &filter, &list, &must_error));
    assert_int_equal(list->count, 1);
    assert_true(list->is_cut);
    session_list_cleanup(&list);
    struct session_filter done = {0};
    done.has_status = true;
    done.status = SESSION_DONE;
    MUST(session_list_load(store, &done, &list, &must_error));
    assert_int_equal(list->count, 1);
    assert_string_equal(list->sessions[0].id.text, second.text);
    assert_false(list->is_cut);
    session_list_cleanup(&list);
    struct session_filter times = {0};
    times.since_ms = middle_ms;
    times.before_ms = middle_ms + 1;
    MUST(session_list_load(store, &times, &list, &must_error));
    assert_int_equal(list->count, 1);
    session_list_cleanup(&list);
    struct session_filter elsewhere = {0};
    elsewhere.workspace = view_of_text("/elsewhere");
    MUST(session_list_load(store, &elsewhere, &list, &must_error));
    assert_int_equal(list->count, 0);
}

static void last_is_of_the_workspace_or_of_a_copy_of_it(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    static const struct {
        const char *workspace, *of;
    } made[] = {{"/w", ""}, {"/other", ""}, {"/copies/1", "/w"}, {"/w/below", ""}};
    struct session_id ids[COUNT_OF(made)];
    for (size_t i = 0; i < COUNT_OF(made); i++) {
        const struct session_begin begin = {
            .task = view_of_text("t"),
            .workspace = view_of_text(made[i].workspace),
            .worktree_of = view_of_text(made[i].of),
        };
        MUST(session_create(store, &begin, &ids[i], &must_error));
    }
    static const struct {
        const char *workspace;
        size_t last;
    } wanted[] = {{"/w", 2}, {"/other", 1}, {"/copies/1", 2}, {"/w/below", 3}, {"", 3}};
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        struct session_id found = {""};
        struct view workspace = view_of_text(wanted[i].workspace);
        MUST(session_resolve(store, view_of_text("last"), workspace, &found, &must_error));
        assert_string_equal(found.text, ids[wanted[i].last].text);
    }
    struct session_id none = {""};
    struct view nowhere = view_of_text("/w/");
    result looked = session_resolve(store, view_of_text("last"), nowhere, &none, &error);
    assert_int_equal(looked.code, RESULT_NOT_FOUND);
    assert_non_null(strstr(error.message, ids[3].text));
    assert_non_null(strstr(error.message, "/w/below"));
    assert_string_equal(none.text, "");
}

static void id_resolves_by_unique_prefix(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id first = make_session(store, "a");
    struct session_id second = make_session(store, "b");
    struct session_id found = {""};
    assert_true(first.text[14] == '7' && strchr("89ab", first.text[19]) != NULL);
    assert_true(strncmp(first.text, second.text, SESSION_ID_LENGTH) < 0);
    MUST(session_resolve(store, view_of_text(first.text), view_of_text(""), &found, &must_error));
    assert_string_equal(found.text, first.text);
    MUST(session_resolve(store, view_of(second.text, 35), view_of_text(""), &found, &must_error));
    assert_string_equal(found.text, second.text);
    MUST(session_resolve(store, view_of_text("last"), view_of_text(""), &found, &must_error));
    assert_string_equal(found.text, second.text);
    struct view prefix = view_of(first.text, 8); // the same minute
    assert_refused(
        session_resolve(store, prefix, view_of_text(""), &found, &error), &error, second.text
    );
    assert_refused(
        session_resolve(store, view_of_text("01"), view_of_text(""), &found, &error),
        &error,
        "short"
    );
    struct view hostile = view_of_text("0192' OR 1=1");
    assert_refused(
        session_resolve(store, hostile, view_of_text(""), &found, &error), &error, "no session id"
    );
    struct view absent = view_of_text("ffff0000");
    assert_int_equal(
        session_resolve(store, absent, view_of_text(""), &found, &error).code, RESULT_NOT_FOUND
    );
    char upper[SESSION_ID_LENGTH + 1];
    for (size_t i = 0; i <= SESSION_ID_LENGTH; i++) {
        char c = first.text[i];
        upper[i] = (char)(c >= 'a' && c <= 'f' ? c - 'a' + 'A' : c);
    }
    MUST(session_resolve(store, view_of_text(upper), view_of_text(""), &found, &must_error));
    assert_string_equal(found.text, first.text);
}

static void network_file_systems_are_known(void **state) {
    (void)state;
    assert_string_equal(session_network_file_system(0x6969), "NFS");
    assert_string_equal(session_network_file_system((long)0xFF534D42), "CIFS");
    assert_string_equal(session_network_file_system((long)(int32_t)0xFF534D42), "CIFS");
    assert_null(session_network_file_system(0xEF53));
    assert_null(session_network_file_system(0x01021994));
}

static void arena_refuses_more_than_its_ceiling(void **state) {
    (void)state;
    struct error error = {0};
    CLEANUP(arena_deinit) struct arena arena = {NULL, 0, 1000};
    void *place = NULL;
    MUST(arena_allocate(&arena, 900, &place, &must_error));
    assert_int_equal((uintptr_t)place % 16, 0);
    assert_int_equal(arena_allocate(&arena, 200, &place, &error).code, RESULT_LIMIT);
    assert_int_equal(arena_allocate(&arena, SIZE_MAX, &place, &error).code, RESULT_LIMIT);
    void *items = NULL;
    assert_int_equal(arena_grow(&arena, &items, SIZE_MAX / 2 + 1, 8, &error).code, RESULT_LIMIT);
}

/* ------------------------------------------------------------------ resume ---- */

static void ended_session_goes_on_and_remembers_its_end(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id session = record_session(store, "a");
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &session, NULL, &tree, &must_error));
    const struct session_id agent = tree->agents[0].id;
    session_tree_cleanup(&tree);
    struct session_resume_begin begin = {0};
    begin.backend = view_of_text("cpu avx2");
    begin.numerics_version = view_of_text("2");
    begin.program_version = view_of_text("0.2.0");
    begin.commit_before = view_of_text("fed");
    MUST(session_resume(store, &session, &begin, &must_error));
    // A running one cannot be opened again, and a failure leaves nothing behind.
    assert_refused(session_resume(store, &session, &begin, &error), &error, "still running");
    int64_t turn = make_turn(store, &agent);
    append_message(store, turn, "user", 0);
    struct session_turn_end end = turn_end(130, 30, 100);
    MUST(session_turn_finish(store, turn, &end, &must_error));
    struct session_end last = {0};
    last.status = SESSION_STOPPED;
    last.stop_reason = view_of_text("turns");
    last.exit_status = 4;
    MUST(session_finish(store, &session, &last, &must_error));
    MUST(session_load(store, &session, NULL, &tree, &must_error));
    assert_int_equal(tree->session.status, SESSION_STOPPED);
    assert_int_equal(tree->agents[0].turn_count, 3);
    assert_int_equal(tree->agents[0].turns[2].index, 2);
    assert_text(tree->session.begin.window_mode, "exact");
    assert_int_equal(tree->resumption_count, 1);
    const struct session_resumption *resumption = &tree->resumptions[0];
    assert_int_equal(resumption->turns_before, 2);
    assert_int_equal(resumption->status, SESSION_DONE);
    assert_text(resumption->verdict, "tests pass");
    assert_text(resumption->stop_reason, "answer");
    assert_text(resumption->commit_after, "def");
    assert_text(resumption->begin.backend, "cpu avx2");
    assert_text(resumption->begin.numerics_version, "2");
    assert_text(resumption->begin.commit_before, "fed");
    assert_true(resumption->resumed_ms > 0 && resumption->ended_ms > 0);
    const struct session_id unknown = {"00000000-0000-7000-8000-000000000000"};
    assert_refused(session_resume(store, &unknown, &begin, &error), &error, "does not exist");
    session_store_cleanup(&store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(session_written_comes_back_whole),
        STORE_TEST(every_commit_is_flushed),
        STORE_TEST(session_without_blobs_keeps_the_rest),
        STORE_TEST(session_json_is_strict_and_complete),
        STORE_TEST(append_out_of_order_is_refused),
        STORE_TEST(value_over_its_maximum_is_refused),
        STORE_TEST(batch_with_a_failure_leaves_nothing),
        STORE_TEST(second_writer_is_refused_and_readers_work),
        STORE_TEST(open_steps_are_interrupted_once_their_writer_is_gone),
        STORE_TEST(files_are_private),
        STORE_TEST(directory_open_to_others_is_refused_unless_empty),
        STORE_TEST(reader_without_records_says_so),
        STORE_TEST(list_is_newest_first_and_filters),
        STORE_TEST(id_resolves_by_unique_prefix),
        STORE_TEST(last_is_of_the_workspace_or_of_a_copy_of_it),
        cmocka_unit_test(network_file_systems_are_known),
        cmocka_unit_test(arena_refuses_more_than_its_ceiling),
        STORE_TEST(ended_session_goes_on_and_remembers_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
