/* The end of a swarm's record when the end of a node is missing. */
#include "sessions_support.h"

#include "runtime/recorder.h"

static result
end_swarm(struct session_store *store, const struct swarm_fixture *made, struct error *error) {
    struct recorder recorder = {.store = store, .session = made->session};
    const struct session_swarm_end swarm = {
        .outcome = view_of_text("passed"), .why = view_of_text("the best one")};
    const struct recorder_end end = {
        .status = SESSION_DONE, .verdict = "done", .stop_reason = "answer", .exit_status = 0};
    return recorder_swarm_end(&recorder, made->swarm, &swarm, &end, error);
}

static void session_ends_though_a_node_did_not(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    const struct session_node_end done = node_end();
    struct error error = {0};
    MUST(session_node_end(store, &made.a, &done, &must_error)); /* and b's could not be recorded */
    assert_refused(end_swarm(store, &made, &error), &error, "still at work");
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &made.session, NULL, &tree, &must_error));
    assert_int_equal(tree->session.status, SESSION_DONE);
    assert_text(tree->agents[1].node->end.ending, "answer");
    assert_text(tree->agents[2].node->end.outcome, "lost");
    assert_true(tree->swarms[0].is_ended);
    assert_text(tree->swarms[0].end.outcome, "interrupted");
}

static void swarm_and_session_end_together(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    const struct session_node_end done = node_end();
    MUST(session_node_end(store, &made.a, &done, &must_error));
    MUST(session_node_end(store, &made.b, &done, &must_error));
    MUST(end_swarm(store, &made, &must_error));
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &made.session, NULL, &tree, &must_error));
    assert_int_equal(tree->session.status, SESSION_DONE);
    assert_text(tree->swarms[0].end.outcome, "passed");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(session_ends_though_a_node_did_not),
        STORE_TEST(swarm_and_session_end_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
