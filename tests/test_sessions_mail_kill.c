/* A writer that is killed within each write that SQLite makes, with half of it on the disk: what was
 * acknowledged is there, and each message is delivered once, bounced, or waits. */
#include "sessions_kill.h"
#include "sessions_support.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITES_MAX 2000

/* A turn whose message holds the mail, or says that it bounced. */
static void turn_with_mail(
    struct session_store *store,
    const struct session_id *agent,
    int64_t mail,
    const char *text,
    bool is_back
) {
    MUST(session_batch_begin(store, &must_error));
    int64_t turn = make_turn(store, agent);
    const struct session_message_begin message = {
        .turn = turn, .role = view_of_text("user"), .text = view_of_text(text)};
    MUST(session_message_append(store, &message, &must_error));
    MUST(
        is_back ? session_mail_return(store, mail, turn, &must_error)
                : session_mail_deliver(store, mail, turn, &must_error)
    );
    MUST(session_batch_commit(store, &must_error));
}

/* What holds once step i + 1 was acknowledged, as SQL that counts 1. */
static const char *const facts[] = {
    "SELECT count(*) = 2 FROM node",
    "SELECT count(*) FROM mail WHERE text = x'6D31'",
    "SELECT count(*) FROM mail WHERE text = x'6D31' AND state = 1",
    "SELECT count(*) FROM mail WHERE text = x'6D32'",
    "SELECT count(*) FROM mail WHERE text = x'6D33'",
    "SELECT count(*) FROM mail WHERE text = x'6D32' AND state = 1",
    "SELECT count(*) FROM mail m JOIN node n ON n.agent = m.receiver AND n.is_ended"
    " WHERE m.text = x'6D33' AND m.state = 2",
    "SELECT count(*) FROM mail WHERE text = x'6D33' AND state = 2 AND turn IS NOT NULL",
    "SELECT count(*) FROM node WHERE ending = 'answer' AND verdict = 'pass'",
    "SELECT count(*) FROM node WHERE merge_commit = 'def' AND merged_into IS NOT NULL",
    "SELECT count(*) FROM swarm WHERE outcome = 'passed' AND is_ended",
    "SELECT count(*) FROM session WHERE status = 1 AND task = 'Fix it together'",
};
#define STEPS COUNT_OF(facts)

static void say(int fd, unsigned char step) {
    if (write(fd, &step, 1) != 1) {
        _exit(3);
    }
}

static int write_steps(const struct folder *folder, int nth, int fd) {
    sessions_kill_at(nth);
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    MUST(store_execute(store, "PRAGMA synchronous=OFF", &must_error)); // a kill is no power cut
    struct swarm_fixture made = start_swarm(store);
    say(fd, 1);
    int64_t m1 = send_mail(store, &made.a, &made.b, "m1");
    say(fd, 2);
    turn_with_mail(store, &made.b, m1, "mail: m1", false);
    say(fd, 3);
    int64_t m2 = send_mail(store, &made.a, &made.b, "m2");
    say(fd, 4);
    int64_t m3 = send_mail(store, &made.a, &made.b, "m3");
    say(fd, 5);
    turn_with_mail(store, &made.b, m2, "mail: m2", false);
    say(fd, 6);
    const struct session_node_end end = node_end();
    MUST(session_node_end(store, &made.b, &end, &must_error));
    say(fd, 7);
    turn_with_mail(store, &made.a, m3, "back: m3", true);
    say(fd, 8);
    MUST(session_node_end(store, &made.a, &end, &must_error));
    const struct session_judgement passed = {.verdict = view_of_text("pass")};
    MUST(session_node_judge(store, &made.a, &passed, &must_error));
    say(fd, 9);
    const struct session_merge merge = {.into = made.root, .commit = view_of_text("def")};
    MUST(session_node_merge(store, &made.a, &merge, &must_error));
    say(fd, 10);
    const struct session_swarm_end last = {.outcome = view_of_text("passed"), .is_merged = true};
    MUST(session_swarm_finish(store, made.swarm, &last, &must_error));
    say(fd, 11);
    const struct session_end done = {.status = SESSION_DONE};
    MUST(session_finish(store, &made.session, &done, &must_error));
    say(fd, STEPS);
    session_store_cleanup(&store); // checkpoints, which writes again
    return 0;
}

/* Of any moment. */
static void check_invariants(struct session_store *store) {
    static const char *const broken[] = {
        // in no message, or in two, or in one although it is not delivered
        "SELECT count(*) FROM mail m WHERE (SELECT count(*) FROM message e JOIN turn t ON t.number "
        "="
        " e.turn WHERE t.agent = m.receiver AND instr(e.text, CAST('mail: ' || m.text AS BLOB)) > "
        "0)"
        " <> (m.state = 1)",
        "SELECT count(*) FROM mail m WHERE (SELECT count(*) FROM message e JOIN turn t ON t.number "
        "="
        " e.turn WHERE t.agent = m.sender AND instr(e.text, CAST('back: ' || m.text AS BLOB)) > 0)"
        " <> (m.state = 2 AND m.turn IS NOT NULL)",
        "SELECT count(*) FROM mail m JOIN message e ON e.number = m.message"
        " WHERE e.turn <> m.turn OR instr(e.text, m.text) = 0",
        "SELECT count(*) FROM mail m JOIN mail n ON n.receiver = m.receiver AND n.number > m.number"
        " WHERE m.state = 0 AND n.state = 1",
        "SELECT count(*) FROM mail m JOIN node n ON n.agent = m.receiver"
        " WHERE n.is_ended AND m.state = 0",
        "SELECT count(*) FROM swarm w JOIN node n ON n.swarm = w.number"
        " WHERE w.is_ended AND NOT n.is_ended",
    };
    for (size_t i = 0; i < COUNT_OF(broken); i++) {
        if (count_rows(store, broken[i]) != 0) {
            fail_msg("broken: %s", broken[i]);
        }
    }
}

static void check_facts(struct session_store *store, size_t steps, int nth) {
    for (size_t i = 0; i < steps; i++) {
        if (count_rows(store, facts[i]) != 1) {
            fail_msg("step %zu was acknowledged before write %d and is not there", i + 1, nth);
        }
    }
    check_invariants(store);
    MUST(session_store_verify(store, &must_error));
}

/* How many steps the child acknowledged; *is_whole: no write was torn any more. */
static size_t run_child(const struct folder *folder, int nth, bool *is_whole) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)close(ends[0]);
        _exit(write_steps(folder, nth, ends[1]));
    }
    assert_int_equal(close(ends[1]), 0);
    unsigned char said[STEPS + 1];
    size_t steps = 0;
    for (ssize_t got = 1; got > 0;) {
        got = read(ends[0], said + steps, sizeof said - steps);
        assert_true(got >= 0);
        steps += (size_t)got;
    }
    assert_int_equal(close(ends[0]), 0);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    *is_whole = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    assert_true(*is_whole || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    return steps;
}

static void restore(const struct folder *folder, const struct buffer *before) {
    static const char *const names[] = {"sessions.db-wal", "sessions.db-shm"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[PATH_BYTES];
        join(path, folder->state, names[i]);
        (void)unlink(path);
    }
    write_file(folder->database, before->data, before->length);
}

static void kill_within_each_write_keeps_every_promise(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    session_store_cleanup(&store);
    CLEANUP(buffer_deinit) struct buffer before = {NULL, 0, 0, 0};
    read_whole(folder->database, &before);
    bool is_whole = false;
    size_t seen[STEPS + 1] = {0};
    int nth = 0;
    while (!is_whole) {
        nth++;
        assert_true(nth < WRITES_MAX);
        restore(folder, &before);
        size_t steps = run_child(folder, nth, &is_whole);
        assert_true(steps <= STEPS && (!is_whole || steps == STEPS));
        seen[steps]++;
        store = open_or_fail(folder, SESSION_READ_ONLY);
        check_facts(store, steps, nth);
        session_store_cleanup(&store);
        store = open_or_fail(folder, SESSION_READ_WRITE);
        check_facts(store, steps, nth);
        assert_int_equal(count_rows(store, "SELECT count(*) FROM mail WHERE state = 0"), 0);
        assert_int_equal(count_rows(store, "SELECT count(*) FROM node WHERE is_ended = 0"), 0);
        assert_int_equal(count_rows(store, "SELECT count(*) FROM swarm WHERE is_ended = 0"), 0);
        session_store_cleanup(&store);
    }
    for (size_t i = 0; i <= STEPS; i++) {
        assert_true(seen[i] > 0); // every step was cut
    }
    print_message("%d kills\n", nth - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {STORE_TEST(kill_within_each_write_keeps_every_promise)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
