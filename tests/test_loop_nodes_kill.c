/* A program that is killed within each write of SQLite's while nodes of a swarm run, send and are forked: what the next
 * writer finds is whole, and each message is in one turn of its receiver, or bounced. */
#include "nodes_support.h"
#include "sessions_kill.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUNS 150 /* kills, spread over all writes */

/* ---- the play: 0 sends to 1 twice, and forks 2; 1 ends without having read the second ---------- */

static void child_ended(struct node *child) {
    node_answer(&child->stage->nodes[0]);
}

static void speaks(struct node *node) {
    struct node *receiver = &node->stage->nodes[1];
    if (node->calls < 3) {
        node->mail_to = *run_agent(receiver->run);
        node_answer(node);
        return;
    }
    node->mail_to = (struct session_id){""};
    struct node *child = &node->stage->nodes[2];
    child->ended_to = child_ended;
    node_open_behind(child, node);
    node_start(child);
}

static void delivers(struct node *node) {
    struct node *receiver = &node->stage->nodes[1];
    if (node->turned == 1) {
        node_deliver(receiver, node->mail, "mail: m1");
        node->mail_text = "m2";
        node_answer(receiver);
    } else if (node->turned == 2 && receiver->run != NULL) {
        run_cancel(receiver->run, "by the test");
    }
}

static void starts_sender(struct node *node) {
    if (node->calls == 1) {
        struct node *sender = &node->stage->nodes[0];
        node_open(sender);
        node_start(sender);
    } /* in its second call it waits for its end */
}

static void start_receiver(struct stage *stage) {
    stage->nodes[1].asks = starts_sender;
    node_open(&stage->nodes[1]);
    node_start(&stage->nodes[1]);
}

/* How many writes there were. */
static int play(const char *directory, int nth) {
    struct stage stage;
    sessions_kill_at(nth);
    stage_set(&stage, 3, directory);
    struct node *sender = &stage.nodes[0];
    sender->asks = speaks;
    sender->turned_to = delivers;
    sender->mail_text = "m1";
    for (int i = 0; i < 3; i++) {
        sender->turns[i].text = ONE_CALL;
    }
    stage.nodes[1].turns[1].text = ONE_CALL;
    stage_play(&stage, start_receiver);
    assert_int_equal(stage.tree->mail_count, 2);
    assert_int_equal(stage.tree->mail[1].state, SESSION_MAIL_BOUNCED);
    return sessions_writes();
}

/* ---- what is found -------------------------------------------------------------------------- */

static size_t
messages_with(const struct session_tree *tree, const struct session_id *agent, const char *text) {
    size_t count = 0;
    for (size_t i = 0; i < tree->agent_count; i++) {
        const struct session_agent *one = &tree->agents[i];
        for (size_t k = 0; strcmp(one->id.text, agent->text) == 0 && k < one->turn_count; k++) {
            for (size_t m = 0; m < one->turns[k].message_count; m++) {
                count += view_equals_text(one->turns[k].messages[m].text, text) ? 1 : 0;
            }
        }
    }
    return count;
}

/* What a call says was sent is there, and nothing else is. The sender is the second node. */
static void check_sent(const struct session_tree *tree) {
    const struct session_agent *sender = tree->agent_count > 2 ? &tree->agents[2] : NULL;
    size_t answered = 0;
    for (size_t i = 0; sender != NULL && i < sender->turn_count && i < 2; i++) {
        const struct session_turn *turn = &sender->turns[i];
        bool has_result = turn->call_count == 1 && turn->calls[0].status == SESSION_CALL_OK;
        answered += has_result ? 1 : 0;
    }
    assert_int_equal(tree->mail_count, answered);
}

static void check_tree(const struct session_tree *tree) {
    bool is_done = tree->session.status == SESSION_DONE;
    assert_true(is_done || tree->session.status == SESSION_INTERRUPTED);
    for (size_t i = 0; i < tree->swarm_count; i++) {
        assert_true(tree->swarms[i].is_ended);
        assert_true(is_done || view_equals_text(tree->swarms[i].end.outcome, "interrupted"));
    }
    for (size_t i = 1; i < tree->agent_count; i++) {
        assert_non_null(tree->agents[i].node);
        assert_true(tree->agents[i].node->is_ended);
    }
    for (size_t i = 0; i < tree->mail_count; i++) {
        const struct session_mail *mail = &tree->mail[i];
        size_t held = messages_with(tree, &mail->to, "mail: m1");
        bool is_first = view_equals_text(mail->text, "m1");
        assert_int_not_equal(mail->state, SESSION_MAIL_WAITS);
        assert_int_equal(is_first && held == 1, mail->state == SESSION_MAIL_DELIVERED);
    }
    check_sent(tree);
}

/* Whether a session was found; a torn database is not. */
static bool check_state(const char *directory) {
    const struct session_store_options options = {
        .state_dir = directory,
        .mode = SESSION_READ_WRITE,
        .program = "test",
        .clock = clock_real()};
    struct error error = {0};
    struct session_store *store = NULL;
    struct session_list *list = NULL;
    if (is_failed(session_store_open(&store, &options, &error)) ||
        is_failed(session_store_verify(store, &error)) ||
        is_failed(session_list_load(store, NULL, &list, &error))) {
        fail_msg("%s", error.message);
    }
    ASSERT(list != NULL);
    assert_true(list->count <= 1);
    bool is_there = list->count == 1;
    if (is_there) {
        struct session_tree *tree = NULL;
        const struct session_load_options with_tokens = {.with_tokens = true};
        if (is_failed(session_load(store, &list->sessions[0].id, &with_tokens, &tree, &error))) {
            fail_msg("%s", error.message);
        }
        check_tree(tree);
        session_tree_destroy(tree);
    }
    session_list_destroy(list);
    session_store_close(store);
    return is_there;
}

static void make_directory(char out[64]) {
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(out, 64, "%s/hearth-kill-XXXXXX", base);
    assert_non_null(mkdtemp(out));
}

static void remove_directory(const char *path) {
    char command[128];
    assert_true(snprintf(command, sizeof command, "rm -rf '%s'", path) > 0);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a fixed command of the test */
}

/* In a process of its own, which may be killed; *writes is filled in by one that is not. */
static bool play_apart(const char *directory, int nth, int *writes) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int count = play(directory, nth);
        _exit(write(ends[1], &count, sizeof count) == (ssize_t)sizeof count ? 0 : 3);
    }
    (void)close(ends[1]);
    int status = 0;
    ssize_t got = read(ends[0], writes, sizeof *writes);
    assert_int_equal(waitpid(child, &status, 0), child);
    (void)close(ends[0]);
    bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    assert_true(was_killed || (got == (ssize_t)sizeof *writes && WEXITSTATUS(status) == 0));
    return was_killed;
}

static void kill_within_any_write_leaves_a_whole_record(void **state) {
    (void)state;
    char directory[64];
    int writes = 0;
    make_directory(directory);
    assert_false(play_apart(directory, 0, &writes));
    assert_true(check_state(directory));
    remove_directory(directory);
    print_message("%d writes\n", writes);
    assert_true(writes > RUNS);
    int killed = 0, found = 0;
    for (int i = 0; i < RUNS; i++) {
        int nth = 1 + i * (writes - 1) / RUNS, unused = 0;
        make_directory(directory);
        killed += play_apart(directory, nth, &unused) ? 1 : 0;
        found += check_state(directory) ? 1 : 0;
        remove_directory(directory);
    }
    /* The number of writes differs a little from run to run. */
    assert_true(killed > RUNS * 3 / 4);
    assert_true(found > RUNS / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_within_any_write_leaves_a_whole_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
