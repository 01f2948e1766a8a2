/* Forks, rewinds, decisions and compactions: what a session's line of turns is made of. A model of our own
 * keeps the lines of many random forks and rewinds and must agree with what is loaded. */
#include "sessions_support.h"

#define LINES_MAX 12
#define TURNS_MAX 64

static void
assert_told(result status, enum result_code code, const struct error *error, const char *part) {
    assert_int_equal(status.code, code);
    assert_non_null(strstr(error->message, part));
}

static int64_t whole_turn(struct session_store *store, const struct session_id *agent) {
    int64_t turn = make_turn(store, agent);
    append_message(store, turn, "user", 0);
    append_message(store, turn, "assistant", 0); // asks for one call
    struct session_turn_end end = turn_end(100, 40, 60);
    MUST(session_turn_finish(store, turn, &end, &must_error));
    int64_t call = start_call(store, turn);
    const struct session_call_end done = call_end();
    MUST(session_call_finish(store, call, &done, &must_error));
    append_message(store, turn, "tool", call);
    return turn;
}

static int64_t open_turn(struct session_store *store, const struct session_id *agent) {
    int64_t turn = make_turn(store, agent);
    append_message(store, turn, "assistant", 0);
    struct session_turn_end end = turn_end(100, 40, 60);
    MUST(session_turn_finish(store, turn, &end, &must_error));
    return turn;
}

static struct session_tree *load(struct session_store *store, const struct session_id *session) {
    struct session_tree *tree = NULL;
    MUST(session_load(store, session, NULL, &tree, &must_error));
    return tree;
}

static struct session_id
fork_at(struct session_store *store, const struct session_id *session, int64_t index) {
    const struct session_fork_begin begin = {
        .session = *session,
        .index = index,
        .commit = view_of_text("c0ffee"),
        .program_version = view_of_text("0.2"),
    };
    struct session_id id = {""};
    MUST(session_fork(store, &begin, &id, &must_error));
    return id;
}

static int64_t rows_in_all_tables(struct session_store *store) {
    int64_t sum = 0;
    char tables[4096];
    MUST(store_query_text(
        store,
        "SELECT group_concat('SELECT count(*) AS n FROM ' || name, ' UNION ALL ') FROM "
        "sqlite_master"
        " WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        tables,
        sizeof tables,
        &must_error
    ));
    char query[5000];
    (void)snprintf(query, sizeof query, "SELECT sum(n) FROM (%s)", tables);
    MUST(store_query_i64(store, query, &sum, &must_error));
    return sum;
}

static void go_on(struct session_store *store, const struct session_id *session) {
    const struct session_resume_begin begin = {.backend = view_of_text("cpu")};
    MUST(session_resume(store, session, &begin, &must_error));
}

static void
rewind_to(struct session_store *store, const struct session_id *session, int64_t index) {
    const struct session_rewind_begin begin = {.session = *session, .index = index};
    MUST(session_rewind(store, &begin, &must_error));
}

static void fork_refers_to_what_it_goes_on_behind(void **state) {
    struct session_store *store = open_or_fail(*state, SESSION_READ_WRITE);
    struct session_id first = make_session(store, "fix it");
    struct session_id agent = make_agent(store, &first);
    int64_t turns[3];
    for (int i = 0; i < 3; i++) {
        turns[i] = whole_turn(store, &agent);
    }
    struct session_id second = fork_at(store, &first, 1);
    CLEANUP(session_tree_cleanup) struct session_tree *tree = load(store, &second);
    assert_int_equal(tree->session.status, SESSION_STOPPED);
    assert_text(tree->session.begin.task, "fix it");
    assert_text(tree->session.begin.commit_before, "c0ffee");
    assert_int_equal(tree->agent_count, 1);
    const struct session_agent *fork = &tree->agents[0];
    assert_string_equal(fork->fork_of.text, first.text);
    assert_int_equal(fork->fork_index, 1);
    assert_int_equal(fork->turn_count, 2);
    assert_int_equal(fork->turns[1].number, turns[1]);
    assert_true(fork->turns[0].is_inherited && fork->turns[1].is_inherited);
    assert_int_equal(fork->turns[1].call_count, 1);
    assert_int_equal(tree->session.usage.turns, 0); // nothing is counted twice
    go_on(store, &second);
    int64_t own = whole_turn(store, &fork->id);
    CLEANUP(session_tree_cleanup) struct session_tree *longer = load(store, &second);
    assert_int_equal(longer->agents[0].turn_count, 3);
    assert_int_equal(longer->agents[0].turns[2].number, own);
    assert_int_equal(longer->agents[0].turns[2].index, 2);
    assert_false(longer->agents[0].turns[2].is_inherited);
    CLEANUP(session_tree_cleanup) struct session_tree *old = load(store, &first);
    assert_int_equal(old->agents[0].turn_count, 3);
    MUST(session_store_verify(store, &must_error));
    session_store_cleanup(&store);
}

static void changed_turn(
    struct session_store *store,
    const struct session_id *agent,
    const char *before,
    const char *after
) {
    int64_t turn = make_turn(store, agent);
    append_message(store, turn, "assistant", 0); // asks for one call
    struct session_turn_end end = turn_end(100, 40, 60);
    MUST(session_turn_finish(store, turn, &end, &must_error));
    const struct session_call_begin begin = {
        .turn = turn, .name = view_of_text("write"), .commit_before = view_of_text(before)};
    int64_t call = 0;
    MUST(session_call_start(store, &begin, &call, &must_error));
    const struct session_call_end done = {
        .status = SESSION_CALL_OK, .commit_after = view_of_text(after)};
    MUST(session_call_finish(store, call, &done, &must_error));
    append_message(store, turn, "tool", call);
}

static void snapshots_come_newest_session_first_and_a_fork_has_those_before_it(void **state) {
    struct session_store *store = open_or_fail(*state, SESSION_READ_WRITE);
    char names[4][SESSION_COMMIT_BYTES];
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        memset(names[i], "abcd"[i], SESSION_COMMIT_BYTES - 1);
        names[i][SESSION_COMMIT_BYTES - 1] = '\0';
    }
    struct session_id first =
        make_session(store, "one"); // its own snapshot before is too short a name
    struct session_id agent = make_agent(store, &first);
    changed_turn(store, &agent, names[0], names[1]);
    changed_turn(store, &agent, names[1], names[2]);
    struct session_id second = fork_at(store, &first, 0);
    go_on(store, &second);
    CLEANUP(session_tree_cleanup) struct session_tree *tree = load(store, &second);
    changed_turn(store, &tree->agents[0].id, names[1], names[3]);
    CLEANUP(session_snapshots_cleanup) struct session_snapshots *snapshots = NULL;
    MUST(session_snapshots_load(store, INT64_MAX, &snapshots, &must_error));
    assert_int_equal(snapshots->session_count, 2);
    static const char *const expected[] = {"d1", "b1", "a1", "c0", "b0", "a0"};
    assert_int_equal(snapshots->count, COUNT_OF(expected));
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        const struct session_snapshot *one = &snapshots->items[i];
        const struct session_snapshots_of *of = &snapshots->sessions[one->session];
        assert_int_equal(one->commit[0], expected[i][0]);
        assert_string_equal(of->id.text, (expected[i][1] == '1' ? second : first).text);
        assert_text(of->workspace, "/srv/repo");
    }
    struct error error = {0};
    struct session_snapshots *none = NULL;
    assert_told(session_snapshots_load(store, 0, &none, &error), RESULT_TIMEOUT, &error, "no time");
    session_store_cleanup(&store);
}

static void turns_with_open_calls_are_no_place_to_go_back_to(void **state) {
    struct session_store *store = open_or_fail(*state, SESSION_READ_WRITE);
    struct session_id session = make_session(store, "x");
    struct error error = {0};
    int64_t index = -7;
    assert_told(
        session_last_whole_turn(store, &session, INT64_MAX, &index, &error),
        RESULT_NOT_FOUND,
        &error,
        "no such agent"
    );
    struct session_id agent = make_agent(store, &session);
    assert_told(
        session_last_whole_turn(store, &session, INT64_MAX, &index, &error),
        RESULT_NOT_FOUND,
        &error,
        "no turn whose"
    );
    (void)whole_turn(store, &agent);
    (void)open_turn(store, &agent);
    MUST(session_last_whole_turn(store, &session, INT64_MAX, &index, &must_error));
    assert_int_equal(index, 0);
    struct session_fork_begin begin = {.session = session, .index = 1};
    struct session_id id = {""};
    assert_refused(session_fork(store, &begin, &id, &error), &error, "turn 2 has calls without");
    begin.index = 2;
    assert_told(session_fork(store, &begin, &id, &error), RESULT_NOT_FOUND, &error, "no turn 3");
    const struct session_rewind_begin back = {.session = session, .index = 1};
    assert_refused(session_rewind(store, &back, &error), &error, "turn 2 has calls without");
    assert_int_equal(count_rows(store, "SELECT count(*) FROM session"), 1);
    rewind_to(store, &session, SESSION_REWIND_WORKSPACE_ONLY);
    CLEANUP(session_tree_cleanup) struct session_tree *tree = load(store, &session);
    assert_false(tree->agents[0].turns[1].is_rewound);
    assert_int_equal(tree->agents[0].rewind_count, 1);
    assert_int_equal(tree->agents[0].rewinds[0].index, SESSION_REWIND_WORKSPACE_ONLY);
    session_store_cleanup(&store);
}

/* ---- random lines ---------------------------------------------------------------------------- */

struct line {
    struct session_id session, agent;
    int64_t turns[TURNS_MAX]; /* numbers by index; 0: not in its context */
    int64_t next;             /* index of the next turn */
};

static void check_line(struct session_store *store, const struct line *line) {
    CLEANUP(session_tree_cleanup) struct session_tree *tree = load(store, &line->session);
    const struct session_agent *agent = &tree->agents[0];
    int64_t seen = 0, last = -1;
    for (size_t i = 0; i < agent->turn_count; i++) {
        const struct session_turn *turn = &agent->turns[i];
        assert_true(turn->index > last && turn->index < line->next);
        last = turn->index;
        assert_int_equal(line->turns[turn->index], turn->is_rewound ? 0 : turn->number);
        seen += turn->is_rewound ? 0 : 1;
    }
    int64_t expected = 0, newest = -1;
    for (int64_t i = 0; i < line->next; i++) {
        expected += line->turns[i] != 0 ? 1 : 0;
        newest = line->turns[i] != 0 ? i : newest;
    }
    assert_int_equal(seen, expected);
    int64_t index = -1;
    struct error error = {0};
    result found = session_last_whole_turn(store, &line->session, INT64_MAX, &index, &error);
    assert_true(is_ok(found) == (newest >= 0));
    assert_int_equal(index, newest);
}

static int64_t random_kept(const struct line *line, unsigned *seed) {
    int64_t kept[TURNS_MAX], count = 0;
    for (int64_t i = 0; i < line->next; i++) {
        if (line->turns[i] != 0) {
            kept[count++] = i;
        }
    }
    return count == 0 ? -1 : kept[rand_r(seed) % count];
}

static void
lines_step(struct session_store *store, struct line *lines, int *count, unsigned *seed) {
    struct line *line = &lines[rand_r(seed) % *count];
    int what = rand_r(seed) % 10;
    int64_t kept = random_kept(line, seed);
    if (what < 5 && line->next < TURNS_MAX) {
        line->turns[line->next++] = whole_turn(store, &line->agent);
    } else if (what < 8) {
        rewind_to(store, &line->session, kept < 0 ? SESSION_REWIND_ALL : kept);
        for (int64_t i = kept + 1; i < line->next; i++) {
            line->turns[i] = 0;
        }
    } else if (*count < LINES_MAX && kept >= 0) {
        struct line *fork = &lines[(*count)++];
        *fork = *line;
        fork->session = fork_at(store, &line->session, kept);
        go_on(store, &fork->session);
        CLEANUP(session_tree_cleanup) struct session_tree *tree = load(store, &fork->session);
        fork->agent = tree->agents[0].id;
        fork->next = kept + 1;
    }
}

static void lines_agree_with_a_simple_model(void **state) {
    struct session_store *store = open_or_fail(*state, SESSION_READ_WRITE);
    for (unsigned round = 0; round < 6; round++) {
        unsigned seed = round + 1;
        struct line lines[LINES_MAX] = {0};
        int count = 1;
        lines[0].session = make_session(store, "x");
        lines[0].agent = make_agent(store, &lines[0].session);
        for (int i = 0; i < 60; i++) {
            lines_step(store, lines, &count, &seed);
        }
        assert_true(count > 3);
        for (int i = 0; i < count; i++) {
            check_line(store, &lines[i]);
        }
    }
    MUST(session_store_verify(store, &must_error));
    session_store_cleanup(&store);
}

/* ---- decisions and compactions ---------------------------------------------------------------- */

static void decisions_and_compactions_come_back(void **state) {
    struct session_store *store = open_or_fail(*state, SESSION_READ_WRITE);
    struct session_id session = make_session(store, "x");
    struct session_id agent = make_agent(store, &session);
    int64_t turn = whole_turn(store, &agent);
    int64_t call = start_call(store, turn);
    struct session_decision_begin decision = {
        .session = session,
        .turn = turn,
        .call = call,
        .kind = view_of_text("tool"),
        .subject = view_of_text("shell"),
        .decider = view_of_text("rule"),
        .rule = view_of_text("shell(git push*)"),
        .reason = view_of_text("denied by a rule"),
    };
    MUST(session_decision_append(store, &decision, &must_error));
    decision.turn = decision.call = 0;
    decision.is_allowed = true;
    decision.kind = view_of_text("server");
    MUST(session_decision_append(store, &decision, &must_error));
    struct session_compaction_begin compaction = {
        .turn = turn,
        .tokens_before = 9000,
        .tokens_after = 1200,
        .pruned = 3,
        .summary = view_of_text("so far"),
    };
    MUST(session_compaction_append(store, &compaction, &must_error));
    struct error error = {0};
    assert_true(is_failed(session_compaction_append(store, &compaction, &error))); // one a turn
    compaction.tokens_after = -1;
    assert_refused(session_compaction_append(store, &compaction, &error), &error, "-1 tokens");
    CLEANUP(session_tree_cleanup) struct session_tree *tree = load(store, &session);
    assert_int_equal(tree->decision_count, 2);
    assert_int_equal(tree->decisions[0].call, call);
    assert_false(tree->decisions[0].is_allowed);
    assert_text(tree->decisions[0].rule, "shell(git push*)");
    assert_true(tree->decisions[1].is_allowed && tree->decisions[1].turn == 0);
    const struct session_compaction *kept = tree->agents[0].turns[0].compaction;
    assert_non_null(kept);
    assert_int_equal(kept->tokens_before, 9000);
    assert_int_equal(kept->tokens_after, 1200);
    assert_int_equal(kept->pruned, 3);
    assert_text(kept->summary, "so far");
    const struct session_end end = {.status = SESSION_DONE};
    MUST(session_finish(store, &session, &end, &must_error));
    assert_refused(session_decision_append(store, &decision, &error), &error, "has ended");
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    json_writer_init(&writer, &text, &error);
    session_tree_write(&writer, tree);
    MUST(json_writer_finish(&writer));
    assert_true(view_find(buffer_view(&text), view_of_text("\"compaction\""), 0) != SIZE_MAX);
    assert_true(view_find(buffer_view(&text), view_of_text("\"decisions\""), 0) != SIZE_MAX);
    session_store_cleanup(&store);
}

/* A session with a row in every table but those of swarms. */
static struct session_id make_everything(struct session_store *store, const char *secret) {
    struct session_id session = record_session(store, secret);
    struct session_tree *tree = load(store, &session);
    const struct session_id agent = tree->agents[0].id;
    session_tree_destroy(tree);
    go_on(store, &session);
    int64_t turn = whole_turn(store, &agent);
    const struct session_decision_begin decision = {
        .session = session, .turn = turn, .kind = view_of_text("tool")};
    MUST(session_decision_append(store, &decision, &must_error));
    const struct session_compaction_begin compaction = {
        .turn = turn, .tokens_before = 9, .tokens_after = 1, .summary = view_of_text(secret)};
    MUST(session_compaction_append(store, &compaction, &must_error));
    rewind_to(store, &session, SESSION_REWIND_WORKSPACE_ONLY);
    const struct session_end end = {.status = SESSION_DONE};
    MUST(session_finish(store, &session, &end, &must_error));
    return session;
}

static bool file_holds(const char *path, const char *suffix, const char *secret) {
    char name[4096];
    CLEANUP(buffer_deinit) struct buffer bytes;
    buffer_init(&bytes, (size_t)64 << 20);
    (void)snprintf(name, sizeof name, "%s%s", path, suffix);
    return is_ok(file_read(name, &bytes, NULL)) &&
           view_find(buffer_view(&bytes), view_of_text(secret), 0) != SIZE_MAX;
}

static void deleted_session_leaves_nothing_and_waits_for_its_forks(void **state) {
    static const char secret[] = "a text that nobody else has";
    struct session_store *store = open_or_fail(*state, SESSION_READ_WRITE);
    struct error error = {0};
    struct session_id kept = make_everything(store, "kept");
    int64_t before = rows_in_all_tables(store);
    struct session_id gone = make_everything(store, secret);
    assert_int_equal(
        rows_in_all_tables(store), 2 * before
    ); /* a row in every table, and all of them new */
    struct session_id fork = fork_at(store, &gone, 2);
    struct session_id fork_of_fork = fork_at(store, &fork, 2);
    assert_refused(session_delete(store, &gone, &error), &error, fork.text);
    assert_non_null(strstr(error.message, fork_of_fork.text)
    ); /* it refers to the first one's turn */
    MUST(session_delete(store, &fork, &must_error));
    MUST(session_delete(store, &fork_of_fork, &must_error));
    go_on(store, &gone);
    assert_refused(session_delete(store, &gone, &error), &error, "runs");
    const struct session_end end = {.status = SESSION_STOPPED};
    MUST(session_finish(store, &gone, &end, &must_error));
    assert_true(file_holds(store->path, "", secret) || file_holds(store->path, "-wal", secret));
    MUST(session_delete(store, &gone, &must_error));
    assert_refused(session_delete(store, &gone, &error), &error, "does not exist");
    assert_int_equal(rows_in_all_tables(store), before);
    assert_false(file_holds(store->path, "", secret) || file_holds(store->path, "-wal", secret));
    MUST(session_store_verify(store, &must_error));
    CLEANUP(session_tree_cleanup) struct session_tree *tree = load(store, &kept);
    assert_int_equal(tree->agents[0].turn_count, 3);
    session_store_cleanup(&store);
}

static void damaged_fork_is_told(void **state) {
    struct session_store *store = open_or_fail(*state, SESSION_READ_WRITE);
    struct session_id first = make_session(store, "x");
    struct session_id agent = make_agent(store, &first);
    (void)whole_turn(store, &agent);
    MUST(store_execute(
        store, "UPDATE agent SET fork_of = (SELECT max(number) FROM turn)", &must_error
    ));
    struct session_tree *tree = NULL;
    struct error error = {0};
    result loaded = session_load(store, &first, NULL, &tree, &error);
    assert_told(loaded, RESULT_CORRUPT, &error, "fork of a later one");
    session_store_cleanup(&store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(fork_refers_to_what_it_goes_on_behind),
        STORE_TEST(snapshots_come_newest_session_first_and_a_fork_has_those_before_it),
        STORE_TEST(turns_with_open_calls_are_no_place_to_go_back_to),
        STORE_TEST(lines_agree_with_a_simple_model),
        STORE_TEST(decisions_and_compactions_come_back),
        STORE_TEST(deleted_session_leaves_nothing_and_waits_for_its_forks),
        STORE_TEST(damaged_fork_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
