/* Each allocation of our own code fails once while a session is opened, listed, loaded and written
 * as JSON: MEMORY, and nothing is left behind. Leaks are the sanitizer build's to find. */
#include "failing_memory.h"
#include "sessions_support.h"

#define ALLOCATIONS_MAX 5000

static result write_json(const struct session_tree *tree, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    json_writer_init(&writer, &text, error);
    session_tree_write(&writer, tree);
    return json_writer_finish(&writer);
}

static result
read_all(const struct folder *folder, const struct session_id *id, struct error *error) {
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    struct session_load_options all = {true, true};
    TRY(open_store(folder, SESSION_READ_ONLY, &store, error));
    TRY(session_list_load(store, NULL, &list, error));
    TRY(session_load(store, id, &all, &tree, error));
    return write_json(tree, error);
}

static void fail_each_allocation(const struct folder *folder, const struct session_id *id) {
    for (size_t nth = 1; nth < ALLOCATIONS_MAX; nth++) {
        struct error error = {0};
        failing_memory_arm(nth);
        result status = read_all(folder, id, &error);
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        if (!fired) {
            assert_true(is_ok(status) && nth > 5);
            print_message("%zu failed allocations\n", nth - 1);
            return;
        }
        assert_int_equal(status.code, RESULT_MEMORY);
    }
    fail_msg("over %d allocations", ALLOCATIONS_MAX);
}

static void every_failed_allocation_is_told(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id id = record_session(store, "a task");
    struct session_id swarm = record_swarm(store);
    session_store_cleanup(&store);
    fail_each_allocation(folder, &id);
    fail_each_allocation(folder, &swarm);
}

/* Forks walk their parents' lines. */
static result
fork_again(struct session_store *store, const struct swarm_fixture *made, struct error *error) {
    const struct session_node_begin node = {
        .swarm = made->swarm,
        .agent = {.session = made->session, .parent = made->root, .fork_turn = made->root_turn},
    };
    struct session_id agent;
    TRY(session_node_start(store, &node, &agent, error));
    const struct session_mail_begin mail = {made->a, agent, view_of_text("\xFF")};
    int64_t number = 0;
    TRY(session_mail_send(store, &mail, &number, error));
    const struct session_node_end end = {.ending = view_of_text("\xFF")}; // is made UTF-8
    return session_node_end(store, &agent, &end, error);
}

static void appends_without_memory_leave_nothing(void **state) {
    const struct folder *folder = *state;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct swarm_fixture made = start_swarm(store);
    for (size_t nth = 1; nth < ALLOCATIONS_MAX; nth++) {
        struct error error = {0};
        MUST(session_batch_begin(store, &must_error));
        failing_memory_arm(nth);
        result status = fork_again(store, &made, &error);
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        if (!fired) {
            MUST(status);
            assert_true(nth > 2);
            MUST(session_batch_commit(store, &must_error));
            assert_int_equal(count_rows(store, "SELECT count(*) FROM node"), 3);
            return;
        }
        assert_int_equal(status.code, RESULT_MEMORY);
        session_batch_rollback(store);
        assert_int_equal(count_rows(store, "SELECT count(*) FROM agent"), 3);
    }
    fail_msg("over %d allocations", ALLOCATIONS_MAX);
}

static void failed_open_frees_the_writers_place(void **state) {
    const struct folder *folder = *state;
    for (size_t nth = 1; nth < ALLOCATIONS_MAX; nth++) {
        struct session_store *store = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result status = open_store(folder, SESSION_READ_WRITE, &store, &error);
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        session_store_cleanup(&store);
        store = open_or_fail(folder, SESSION_READ_WRITE);
        session_store_cleanup(&store);
        if (!fired) {
            assert_true(is_ok(status) && nth > 1);
            return;
        }
        assert_int_equal(status.code, RESULT_MEMORY);
    }
    fail_msg("over %d allocations", ALLOCATIONS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(every_failed_allocation_is_told),
        STORE_TEST(appends_without_memory_leave_nothing),
        STORE_TEST(failed_open_frees_the_writers_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
