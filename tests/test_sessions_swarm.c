/* Swarms and mail in the record: what is written comes back, mail is delivered once and in order or bounces,
 * forks within a session take what was there, and several runs share one writer. */
#include "sessions_support.h"

#include <math.h>
#include <pthread.h>

static const struct session_agent *agent_of(const struct session_tree *tree, const char *id) {
    for (size_t i = 0; i < tree->agent_count; i++) {
        if (strcmp(tree->agents[i].id.text, id) == 0) {
            return &tree->agents[i];
        }
    }
    fail_msg("no agent %s", id);
    return &tree->agents[0];
}

static void check_nodes(const struct session_tree *tree) {
    const struct session_agent *root = &tree->agents[0], *a = &tree->agents[1];
    const struct session_agent *b = &tree->agents[2];
    assert_int_equal(tree->agent_count, 3);
    assert_null(root->node);
    assert_text(a->node->kind, "fork");
    assert_text(a->node->brief, "Fix a.py");
    assert_text(a->node->workspace, "/srv/copies/1");
    assert_text(a->node->commit_before, "abc");
    assert_int_equal(a->node->share.deadline_ms, 1790000500000);
    assert_int_equal(a->node->share.tokens_max, 4000);
    assert_int_equal(a->node->share.calls_max, 20);
    assert_int_equal(a->node->share.processes_max, 2);
    assert_int_equal(a->node->share.memory_bytes_max, 1 << 20);
    assert_int_equal(a->node->effort, sampler.effort);
    assert_true(a->node->is_ended && a->node->ended_ms > a->created_ms);
    assert_text(a->node->end.ending, "answer");
    assert_text(a->node->end.summary, "a.py is fixed");
    assert_text(a->node->end.outcome, "passed");
    assert_text(a->node->end.detail, "2 passed");
    assert_int_equal(a->node->end.changed_lines, 3);
    assert_int_equal(a->node->end.turns, 2);
    assert_int_equal(a->node->end.tokens, 700);
    assert_int_equal(a->node->end.calls, 1);
    assert_text(a->node->verdict, "pass");
    assert_true(a->node->has_score && a->node->score == 0.75);
    assert_string_equal(a->node->merged_into.text, root->id.text);
    assert_text(a->node->merge_commit, "def");
    assert_text(b->node->kind, "spawn");
    assert_text(b->node->end.cut, "its deadline");
    assert_int_equal(b->node->share.tokens_max, 3000);
    assert_true(b->node->share.memory_bytes_max == SESSION_NO_LIMIT);
    assert_int_equal(b->node->effort, 30);
    assert_false(b->node->has_score);
    assert_string_equal(b->node->merged_into.text, "");
    assert_text(b->node->conflicts, "a.py\nb.py");
}

static void check_mail(const struct session_tree *tree) {
    const struct session_agent *root = &tree->agents[0], *a = &tree->agents[1];
    const struct session_agent *b = &tree->agents[2];
    assert_int_equal(tree->mail_count, 3);
    assert_string_equal(tree->mail[0].from.text, a->id.text);
    assert_string_equal(tree->mail[0].to.text, b->id.text);
    assert_text(tree->mail[0].text, "Is b.py yours?");
    assert_int_equal(tree->mail[0].state, SESSION_MAIL_DELIVERED);
    assert_int_equal(tree->mail[0].turn, b->turns[0].number);
    assert_int_equal(tree->mail[1].state, SESSION_MAIL_BOUNCED);
    assert_int_equal(tree->mail[1].turn, a->turns[0].number);    // where its sender was told
    assert_int_equal(tree->mail[2].state, SESSION_MAIL_BOUNCED); // nobody read the root's
    assert_int_equal(tree->mail[2].turn, 0);
    assert_string_equal(tree->mail[2].to.text, root->id.text);
    assert_true(tree->mail[2].settled_ms > tree->mail[2].sent_ms);
}

static void swarm_written_comes_back_whole(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_swarm(store);
    MUST(session_store_verify(store, &must_error));
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &id, NULL, &tree, &must_error));
    assert_int_equal(tree->swarm_count, 1);
    const struct session_swarm *swarm = &tree->swarms[0];
    assert_string_equal(swarm->begin.root.text, tree->agents[0].id.text);
    assert_text(swarm->begin.strategy, "race");
    assert_text(swarm->begin.reason, "there is a verifier");
    assert_text(swarm->begin.verifier, "python3 tests.py");
    assert_text(swarm->begin.settings, "{\"attempts\":2}");
    assert_true(swarm->begin.seed == UINT64_MAX - 1);
    assert_int_equal(swarm->begin.share.tokens_max, 9000);
    assert_true(swarm->is_ended && swarm->ended_ms > swarm->started_ms && swarm->end.is_merged);
    assert_text(swarm->end.outcome, "passed");
    assert_string_equal(swarm->end.best.text, tree->agents[1].id.text);
    assert_text(swarm->end.commit_after, "def");
    assert_text(swarm->end.why, "fork-1 passed");
    check_nodes(tree);
    check_mail(tree);
}

static void swarm_json_is_strict_and_complete(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_swarm(store);
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &id, NULL, &tree, &must_error));
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    json_writer_init(&writer, &text, &must_error);
    session_tree_write(&writer, tree);
    MUST(json_writer_finish(&writer));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    MUST(json_parse(buffer_view(&text), NULL, &document, &must_error));
    static const char *const parts[] = {
        "\"strategy\":\"race\"",
        "\"settings\":{\"attempts\":2}",
        "\"seed\":18446744073709551614",
        "\"share\":{\"deadline_ms\":1790000600000,\"tokens_max\":9000,\"calls_max\":40,"
        "\"processes_max\":8}",
        "\"outcome\":\"passed\",\"best\":",
        "\"is_merged\":true",
        "\"node\":{\"swarm\":1,\"kind\":\"fork\",\"brief\":\"Fix a.py\"",
        "\"score\":0.75",
        "\"conflicts\":\"a.py\\nb.py\"",
        "\"state\":\"delivered\"",
        "\"state\":\"bounced\"",
        "\"fork_messages\":2",
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (strstr(buffer_text(&text), parts[i]) == NULL) {
            fail_msg("%s is missing", parts[i]);
        }
    }
}

/* ---- forks within a session -------------------------------------------------------------------- */

static void fork_of_a_parent_takes_what_was_there(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    // The parent is answered in the same turn, later: not the child's.
    append_message(store, made.root_turn, "tool", made.root_call);
    int64_t turn = make_turn(store, &made.a);
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &made.session, NULL, &tree, &must_error));
    assert_int_equal(tree->agents[0].turns[0].message_count, 3);
    const struct session_agent *a = agent_of(tree, made.a.text);
    assert_string_equal(a->fork_of.text, made.session.text);
    assert_int_equal(a->fork_index, 0);
    assert_int_equal(a->fork_messages, 2);
    assert_int_equal(a->turn_count, 1); // the parent's is not repeated
    assert_int_equal(a->turns[0].number, turn);
    assert_int_equal(a->turns[0].index, 1); // and goes on behind it
    assert_int_equal(agent_of(tree, made.b.text)->fork_messages, -1);
    // Its line ends in a call without an answer, which the parent's has.
    struct error error = {0};
    struct session_rewind_begin rewind = {.session = made.session, .agent = made.a, .index = 0};
    assert_refused(session_rewind(store, &rewind, &error), &error, "without an answer");
    rewind.agent = made.root;
    MUST(session_rewind(store, &rewind, &must_error));
    // A fork of the fork reaches through to the same turn, as the fork sees it.
    struct session_agent_begin child = {
        .session = made.session, .parent = made.a, .sampler = sampler, .fork_turn = made.root_turn};
    struct session_id grandchild = {""};
    MUST(session_agent_append(store, &child, &grandchild, &must_error));
    session_tree_cleanup(&tree);
    MUST(session_load(store, &made.session, NULL, &tree, &must_error));
    assert_int_equal(agent_of(tree, grandchild.text)->fork_messages, 2);
}

static void fork_of_no_turn_of_the_parent_is_refused(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    int64_t rows = count_rows(store, "SELECT count(*) FROM agent");
    int64_t open_turn = make_turn(store, &made.root);
    const struct session_agent_begin attempts[] = {
        {.session = made.session, .parent = made.root, .fork_turn = open_turn},
        {.session = made.session, .parent = made.root, .fork_turn = 999},
        {.session = made.session, .parent = made.b, .fork_turn = made.root_turn},
        {.session = made.session, .fork_turn = made.root_turn},
    };
    for (size_t i = 0; i < COUNT_OF(attempts); i++) {
        struct session_id id = {"unchanged"};
        struct error error = {0};
        result status = session_agent_append(store, &attempts[i], &id, &error);
        assert_int_equal(status.code, RESULT_NOT_FOUND);
        assert_string_equal(id.text, "unchanged");
    }
    assert_int_equal(count_rows(store, "SELECT count(*) FROM agent"), rows);
}

/* ---- nodes ------------------------------------------------------------------------------------- */

static void nodes_out_of_order_are_refused(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store), other = start_swarm(store);
    struct error error = {0};
    struct session_id id = {""};
    const struct session_judgement judgement = {.verdict = view_of_text("pass")};
    struct session_merge merge = {.into = made.root, .commit = view_of_text("def")};
    const struct session_swarm_end end = {.outcome = view_of_text("passed"), .best = other.a};
    const struct session_swarm_end none = {.outcome = view_of_text("failed")};
    assert_refused(session_node_judge(store, &made.a, &judgement, &error), &error, "not ended");
    assert_refused(session_node_merge(store, &made.a, &merge, &error), &error, "not ended");
    assert_refused(session_swarm_finish(store, made.swarm, &none, &error), &error, "at work");
    const struct session_node_end done = node_end();
    MUST(session_node_end(store, &made.a, &done, &must_error));
    MUST(session_node_end(store, &made.b, &done, &must_error));
    assert_refused(session_node_end(store, &made.a, &done, &error), &error, "has ended");
    struct session_share share = {0};
    assert_refused(session_node_change(store, &made.a, &share, 1, &error), &error, "has ended");
    share.calls_max = -1;
    assert_refused(session_node_change(store, &other.a, &share, 1, &error), &error, "share of -1");
    struct session_judgement no_number = {.has_score = true, .score = (double)NAN};
    assert_refused(session_node_judge(store, &made.a, &no_number, &error), &error, "finite");
    merge.into = other.root;
    assert_refused(session_node_merge(store, &made.a, &merge, &error), &error, "another session");
    merge.into = made.root;
    MUST(session_node_merge(store, &made.a, &merge, &must_error));
    assert_refused(session_node_merge(store, &made.a, &merge, &error), &error, "is merged");
    struct session_node_begin node = {
        .swarm = made.swarm,
        .agent = {.session = made.session, .parent = made.a, .sampler = sampler},
    };
    assert_refused(session_node_start(store, &node, &id, &error), &error, "parent has");
    node.agent.session = other.session;
    node.agent.parent = other.a;
    assert_refused(session_node_start(store, &node, &id, &error), &error, "not of this swarm");
    assert_refused(session_swarm_finish(store, made.swarm, &end, &error), &error, "best one");
    MUST(session_swarm_finish(store, made.swarm, &none, &must_error));
    assert_refused(session_swarm_finish(store, made.swarm, &none, &error), &error, "has ended");
    node.agent.session = made.session;
    node.agent.parent = made.root;
    assert_refused(session_node_start(store, &node, &id, &error), &error, "swarm has ended");
    assert_int_equal(count_rows(store, "SELECT count(*) FROM agent"), 6); // nothing half-made
}

/* ---- mail -------------------------------------------------------------------------------------- */

static result deliver_in_batch(
    struct session_store *store,
    const struct session_id *agent,
    int64_t mail,
    bool has_message,
    struct error *error
) {
    MUST(session_batch_begin(store, &must_error));
    int64_t turn = make_turn(store, agent);
    if (has_message) {
        append_message(store, turn, "user", 0);
    }
    result status = session_mail_deliver(store, mail, turn, error);
    if (is_failed(status)) {
        session_batch_rollback(store);
        return status;
    }
    return session_batch_commit(store, error);
}

static void mail_is_delivered_once_and_in_order(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    struct error error = {0};
    int64_t first = send_mail(store, &made.a, &made.b, "1");
    int64_t second = send_mail(store, &made.root, &made.b, "2");
    assert_true(second > first);
    assert_refused(deliver_in_batch(store, &made.b, second, true, &error), &error, "not the next");
    assert_refused(deliver_in_batch(store, &made.a, first, true, &error), &error, "not for this");
    assert_refused(deliver_in_batch(store, &made.b, first, false, &error), &error, "no message");
    int64_t turn = make_turn(store, &made.b);
    append_message(store, turn, "user", 0);
    result alone = session_mail_deliver(store, first, turn, &error);
    assert_refused(alone, &error, "in one batch");
    MUST(deliver_in_batch(store, &made.b, first, true, &must_error));
    assert_refused(deliver_in_batch(store, &made.b, first, true, &error), &error, "settled");
    // A batch that is undone delivers nothing.
    MUST(session_batch_begin(store, &must_error));
    MUST(session_mail_deliver(store, second, turn, &must_error));
    session_batch_rollback(store);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM mail WHERE state = 0"), 1);
    MUST(deliver_in_batch(store, &made.b, second, true, &must_error));
}

static void mail_of_an_ended_reader_bounces(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store), other = start_swarm(store);
    struct error error = {0};
    int64_t mail = send_mail(store, &made.a, &made.b, "1");
    const struct session_node_end done = node_end();
    MUST(session_node_end(store, &made.b, &done, &must_error));
    assert_refused(deliver_in_batch(store, &made.b, mail, true, &error), &error, "settled");
    struct session_mail_begin begin = {made.a, made.b, view_of_text("2")};
    int64_t number = -7;
    assert_refused(session_mail_send(store, &begin, &number, &error), &error, "has ended");
    begin.to = other.a;
    assert_refused(
        session_mail_send(store, &begin, &number, &error), &error, "one running session"
    );
    begin.to = made.root;
    begin.text = view_of_text("");
    assert_refused(session_mail_send(store, &begin, &number, &error), &error, "0 bytes");
    assert_int_equal(number, -7);
    // Its sender is told, once, and nobody else.
    int64_t wrong = make_turn(store, &made.root), turn = make_turn(store, &made.a);
    append_message(store, wrong, "user", 0);
    append_message(store, turn, "user", 0);
    MUST(session_batch_begin(store, &must_error));
    assert_refused(session_mail_return(store, mail, wrong, &error), &error, "another agent");
    session_batch_rollback(store);
    MUST(session_batch_begin(store, &must_error));
    MUST(session_mail_return(store, mail, turn, &must_error));
    MUST(session_batch_commit(store, &must_error));
    MUST(session_batch_begin(store, &must_error));
    assert_refused(session_mail_return(store, mail, turn, &error), &error, "knows already");
    session_batch_rollback(store);
}

static void full_mailbox_takes_no_more(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    MUST(session_batch_begin(store, &must_error));
    for (int i = 0; i < SESSION_MAILBOX_MAX; i++) {
        (void)send_mail(store, &made.a, &made.b, "again");
    }
    MUST(session_batch_commit(store, &must_error));
    struct session_mail_begin begin = {made.a, made.b, view_of_text("one more")};
    int64_t number = 0;
    struct error error = {0};
    assert_int_equal(session_mail_send(store, &begin, &number, &error).code, RESULT_LIMIT);
    begin.to = made.root;
    MUST(session_mail_send(store, &begin, &number, &must_error)); // others are as they were
}

#define MODEL_AGENTS 5
#define MODEL_STEPS  600

/* Random sends, deliveries, ends and undone batches, with a queue of our own for each agent. */
static void mail_agrees_with_a_model(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    MUST(store_execute(store, "PRAGMA synchronous=OFF", &must_error)); // no kills here
    struct swarm_fixture made = start_swarm(store);
    struct session_id agents[MODEL_AGENTS];
    bool has_ended[MODEL_AGENTS] = {false};
    static int64_t queue[MODEL_AGENTS][MODEL_STEPS];
    size_t head[MODEL_AGENTS] = {0}, tail[MODEL_AGENTS] = {0};
    int64_t delivered = 0, bounced = 0, sent = 0;
    struct session_node_begin node = {
        .swarm = made.swarm,
        .agent = {.session = made.session, .parent = made.root, .sampler = sampler},
    };
    for (size_t i = 0; i < MODEL_AGENTS; i++) {
        MUST(session_node_start(store, &node, &agents[i], &must_error));
    }
    unsigned seed = 20261130;
    for (int step = 0; step < MODEL_STEPS; step++) {
        size_t from = (size_t)rand_r(&seed) % MODEL_AGENTS,
               to = (size_t)rand_r(&seed) % MODEL_AGENTS;
        int what = rand_r(&seed) % 100;
        struct error error = {0};
        if (what < 2 && step > MODEL_STEPS / 3) {
            const struct session_node_end done = node_end();
            result status = session_node_end(store, &agents[to], &done, &error);
            assert_int_equal(is_ok(status), !has_ended[to]);
            bounced += (int64_t)(tail[to] - head[to]);
            head[to] = tail[to];
            has_ended[to] = true;
        } else if (what < 50) {
            const struct session_mail_begin begin = {agents[from], agents[to], view_of_text("x")};
            int64_t mail = 0;
            assert_int_equal(
                is_ok(session_mail_send(store, &begin, &mail, &error)), !has_ended[to]
            );
            if (!has_ended[to]) {
                queue[to][tail[to]++] = mail;
                sent++;
            }
        } else { // any that was ever sent to it, or a stranger's: only the next one is taken
            size_t at = tail[to] == 0 ? 0 : (size_t)rand_r(&seed) % tail[to];
            at = what < 80 ? head[to] : at;
            int64_t mail = at < tail[to] ? queue[to][at] : queue[from][0];
            bool is_next = !has_ended[to] && head[to] < tail[to] && mail == queue[to][head[to]];
            result status = deliver_in_batch(store, &agents[to], mail, true, &error);
            assert_int_equal(is_ok(status), is_next);
            head[to] += is_next ? 1 : 0;
            delivered += is_next ? 1 : 0;
        }
    }
    assert_true(delivered > 50 && bounced > 0);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM mail"), sent);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM mail WHERE state = 1"), delivered);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM mail WHERE state = 2"), bounced);
    assert_int_equal(
        count_rows(
            store,
            "SELECT count(*) FROM mail m JOIN mail n ON n.receiver = m.receiver AND n.state = 1"
            " AND m.state = 1 AND n.number > m.number AND n.message <= m.message"
        ),
        0
    );
}

/* ---- ends -------------------------------------------------------------------------------------- */

static void swarm_of_a_dead_writer_is_over(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    (void)send_mail(store, &made.a, &made.b, "1");
    session_store_cleanup(&store); // as if it had died: nothing was ended
    for (int round = 0; round < 2; round++) {
        store = open_or_fail(folder, round == 0 ? SESSION_READ_ONLY : SESSION_READ_WRITE);
        CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
        MUST(session_load(store, &made.session, NULL, &tree, &must_error));
        assert_int_equal(tree->session.status, SESSION_INTERRUPTED);
        assert_true(tree->swarms[0].is_ended);
        assert_text(tree->swarms[0].end.outcome, "interrupted");
        const struct session_node *node = agent_of(tree, made.a.text)->node;
        assert_true(node->is_ended && node->ended_ms == 0);
        assert_text(node->end.ending, "interrupted");
        assert_text(node->end.outcome, "lost");
        assert_int_equal(tree->mail[0].state, SESSION_MAIL_BOUNCED);
        session_store_cleanup(&store);
    }
    // One that was ended over the heads of its nodes looks the same.
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture other = start_swarm(store);
    (void)send_mail(store, &other.a, &other.b, "1");
    const struct session_end failed = {.status = SESSION_FAILED};
    MUST(session_finish(store, &other.session, &failed, &must_error));
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &other.session, NULL, &tree, &must_error));
    assert_text(agent_of(tree, other.b.text)->node->end.outcome, "lost");
    assert_text(tree->swarms[0].end.outcome, "interrupted");
    assert_int_equal(tree->mail[0].state, SESSION_MAIL_BOUNCED);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM node WHERE is_ended = 0"), 0);
    session_store_cleanup(&store);
    // The session goes on, with another swarm.
    store = open_or_fail(folder, SESSION_READ_WRITE);
    const struct session_resume_begin again = {0};
    MUST(session_resume(store, &made.session, &again, &must_error));
    const struct session_swarm_begin begin = {.root = made.root};
    int64_t swarm = 0;
    MUST(session_swarm_start(store, &begin, &swarm, &must_error));
    assert_true(swarm > made.swarm);
    session_store_cleanup(&store);
}

/* What no append can write, and a file from elsewhere may hold. */
static void rows_of_a_hostile_file_are_refused(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_swarm(store);
    MUST(store_execute(store, "PRAGMA ignore_check_constraints=ON", &must_error));
    static const char *const hostile[] = {
        "UPDATE node SET is_ended = 2",
        "UPDATE node SET tokens_max = -1",
        "UPDATE node SET turns = -1",
        "UPDATE node SET changed_lines = -9223372036854775807",
        "UPDATE node SET verdict = CAST(x'ff' AS TEXT)",
        "UPDATE swarm SET calls_max = -1",
        "UPDATE swarm SET is_merged = 7",
        "UPDATE swarm SET why = CAST(x'c0' AS TEXT)",
        "UPDATE mail SET state = 3",
    };
    for (size_t i = 0; i < COUNT_OF(hostile); i++) {
        MUST(session_batch_begin(store, &must_error)); // which loads see, and which is undone
        MUST(store_execute(store, hostile[i], &must_error));
        struct session_tree *tree = NULL;
        struct error error = {0};
        result status = session_load(store, &id, NULL, &tree, &error);
        if (status.code != RESULT_CORRUPT) {
            fail_msg("%s: code %d", hostile[i], status.code);
        }
        assert_null(tree);
        session_batch_rollback(store);
    }
    // A fork of itself, in its own session.
    MUST(store_execute(
        store,
        "UPDATE agent SET fork_of = (SELECT max(number) FROM turn WHERE turn.agent = agent.number)"
        " WHERE parent IS NULL",
        &must_error
    ));
    struct session_tree *tree = NULL;
    struct error error = {0};
    assert_int_equal(session_load(store, &id, NULL, &tree, &error).code, RESULT_CORRUPT);
}

static void deleted_session_takes_its_swarm_along(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    (void)record_swarm(store);
    (void)start_swarm(store);
    MUST(store_execute(store, "DELETE FROM session", &must_error));
    static const char *const tables[] = {"agent", "turn", "message", "swarm", "node", "mail"};
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        char sql[64];
        assert_true(snprintf(sql, sizeof sql, "SELECT count(*) FROM %s", tables[i]) > 0);
        assert_int_equal(count_rows(store, sql), 0);
    }
    MUST(session_store_verify(store, &must_error));
}

static void snapshots_of_nodes_are_referred_to(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    (void)record_swarm(store);
    CLEANUP(session_snapshots_cleanup) struct session_snapshots *snapshots = NULL;
    MUST(session_snapshots_load(store, INT64_MAX, &snapshots, &must_error));
    assert_int_equal(snapshots->count, 1); // the two nodes' own, the others are no commits
    assert_string_equal(snapshots->items[0].commit, "0123456789012345678901234567890123456789");
}

/* ---- threads ----------------------------------------------------------------------------------- */

#define THREADS       8
#define THREAD_ROUNDS 25

struct thread_run {
    struct session_store *store;
    const struct session_id *agents; /* [THREADS] */
    size_t index;
    int64_t delivered;
    bool has_failed;
    struct error error;
};

/* The next mail of the agent, or 0. */
static int64_t next_mail(struct session_store *store, const struct session_id *agent) {
    char sql[200];
    int length = snprintf(
        sql,
        sizeof sql,
        "SELECT coalesce(min(m.number), 0) FROM mail m JOIN agent a ON a.number = m.receiver"
        " WHERE m.state = 0 AND a.id = '%s'",
        agent->text
    );
    int64_t mail = 0;
    return length > 0 && is_ok(store_query_i64(store, sql, &mail, NULL)) ? mail : 0;
}

/* What a run does in a turn: one batch with the mail that it reads, a call outside of any batch, a batch that
 * is undone, a look at the whole tree now and then. */
static result run_turn(struct thread_run *run, const struct session_id *session, int round) {
    struct session_store *store = run->store;
    const struct session_id *me = &run->agents[run->index];
    struct error *error = &run->error;
    const struct session_mail_begin letter = {
        *me, run->agents[(run->index + (size_t)round) % THREADS], view_of_text("hello")};
    int64_t sent = 0, turn = 0, call = 0, mail = next_mail(store, me);
    TRY(session_mail_send(store, &letter, &sent, error));
    TRY(session_batch_begin(store, error));
    TRY(session_turn_start(store, me, &turn, error));
    const struct session_message_begin message = {.turn = turn, .role = view_of_text("user")};
    TRY(session_message_append(store, &message, error));
    if (mail != 0) {
        TRY(session_mail_deliver(store, mail, turn, error));
        run->delivered++;
    }
    const struct session_turn_end end = {.fork_index = -1};
    TRY(session_turn_finish(store, turn, &end, error));
    TRY(session_batch_commit(store, error));
    const struct session_call_begin begin = {.turn = turn, .name = view_of_text("shell")};
    TRY(session_call_start(store, &begin, &call, error));
    TRY(session_batch_begin(store, error));
    TRY(session_message_append(store, &message, error));
    session_batch_rollback(store);
    const struct session_call_end done = {.status = SESSION_CALL_OK};
    TRY(session_call_finish(store, call, &done, error));
    if (round % 8 == 0) {
        CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
        CLEANUP(session_list_cleanup) struct session_list *list = NULL;
        TRY(session_load(store, session, NULL, &tree, error));
        TRY(session_list_load(store, NULL, &list, error));
    }
    return OK;
}

static const struct session_id *thread_session;

static void *run_thread(void *context) {
    struct thread_run *run = context;
    for (int round = 0; round < THREAD_ROUNDS && !run->has_failed; round++) {
        run->has_failed = is_failed(run_turn(run, thread_session, round));
    }
    return NULL;
}

static void runs_of_many_threads_share_the_writer(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    struct session_store_options options = {
        folder->state, SESSION_READ_WRITE, 100, "test", clock_real(), false, false};
    MUST(session_store_open(&store, &options, &must_error));
    struct swarm_fixture made = start_swarm(store);
    struct session_id agents[THREADS];
    struct thread_run runs[THREADS] = {0};
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        agents[i] = make_agent(store, &made.session);
        runs[i] = (struct thread_run){.store = store, .agents = agents, .index = i};
    }
    thread_session = &made.session;
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_thread, &runs[i]), 0);
    }
    int64_t delivered = 0;
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        delivered += runs[i].delivered;
    }
    for (size_t i = 0; i < THREADS; i++) {
        if (runs[i].has_failed) {
            fail_msg("run %zu: %s", i, runs[i].error.message);
        }
    }
    // Whole batches, none of another's undone ones, and every letter at one place.
    const int64_t turns = (int64_t)THREADS * THREAD_ROUNDS;
    assert_int_equal(count_rows(store, "SELECT count(*) FROM turn WHERE position >= 0"), turns + 1);
    assert_int_equal(
        count_rows(store, "SELECT count(*) FROM message WHERE role = 'user'"), turns + 1
    );
    assert_int_equal(count_rows(store, "SELECT count(*) FROM call WHERE status = 1"), turns);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM mail"), turns);
    assert_true(delivered > 0);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM mail WHERE state = 1"), delivered);
    assert_int_equal(count_rows(store, "SELECT count(DISTINCT message) FROM mail"), delivered);
    MUST(session_store_verify(store, &must_error));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(swarm_written_comes_back_whole),
        STORE_TEST(swarm_json_is_strict_and_complete),
        STORE_TEST(fork_of_a_parent_takes_what_was_there),
        STORE_TEST(fork_of_no_turn_of_the_parent_is_refused),
        STORE_TEST(nodes_out_of_order_are_refused),
        STORE_TEST(mail_is_delivered_once_and_in_order),
        STORE_TEST(mail_of_an_ended_reader_bounces),
        STORE_TEST(full_mailbox_takes_no_more),
        STORE_TEST(mail_agrees_with_a_model),
        STORE_TEST(swarm_of_a_dead_writer_is_over),
        STORE_TEST(rows_of_a_hostile_file_are_refused),
        STORE_TEST(deleted_session_takes_its_swarm_along),
        STORE_TEST(snapshots_of_nodes_are_referred_to),
        STORE_TEST(runs_of_many_threads_share_the_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
