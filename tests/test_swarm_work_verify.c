/* Verifiers of a swarm's nodes, of all kinds: what is made of what they do, and that nothing of them stays. */
#include "swarm_work_support.h"

#include <pthread.h>
#include <unistd.h>

#include "sandbox/sandbox.h"

static char pause_tag[32]; /* what verifiers sleep for: no other process has this number */

/* Brackets, so that the shell which asks is not found. */
static bool sleeps(void) {
    char command[100];
    (void)snprintf(command, sizeof command, "pgrep -f 'sleep[ ]%s' >/dev/null", pause_tag);
    return shell_says(command);
}

static struct swarm_work_verdict verdict_of(const char *verifier, const char *script) {
    begin_swarm("echo a >a; echo b >b", verifier);
    struct swarm_work_node *node = node_with("one", script);
    struct swarm_work_verdict verdict = verify(node, 60000);
    shell("test -z \"$(ls state/swarms/session/verify)\"; "
          "test \"$(ls state/swarms/session/stores)\" = one");
    assert_true(close_node(node));
    end_swarm();
    shell("rm -rf ws store; mkdir ws");
    assert_true(utf8_is_valid(view_of_text(verdict.detail)));
    return verdict;
}

static void expect_verdict(
    const char *verifier, const char *script, enum swarm_verdict wanted, const char *words
) {
    struct swarm_work_verdict verdict = verdict_of(verifier, script);
    if (verdict.verdict != wanted || strstr(verdict.detail, words) == NULL) {
        fail_msg("%s: verdict %d, not %d: %s", verifier, verdict.verdict, wanted, verdict.detail);
    }
    assert_false(verdict.is_full);
}

static void verifier_passes_and_fails(void **state) {
    (void)state;
    expect_verdict("grep -qx good a && echo fine", "echo good >a", SWARM_VERIFIED_PASS, "fine");
    expect_verdict(
        "grep -qx good a || { echo is bad >&2; exit 3; }",
        "echo bad >a",
        SWARM_VERIFIED_FAIL,
        "exit status 3\nis bad"
    );
    expect_verdict("test -e a", "true", SWARM_VERIFIED_PASS, "exit status 0"); // nothing was made
}

static void what_it_leaves_beside_is_no_edit(void **state) {
    (void)state;
    expect_verdict(
        "mkdir -p out/x && echo o >out/x/log && touch a", "true", SWARM_VERIFIED_PASS, ""
    );
    expect_verdict("echo fixed >a", "echo bad >a", SWARM_VERIFIED_EDITED, "changed files: a");
    expect_verdict("rm a b", "true", SWARM_VERIFIED_EDITED, "changed files: a b");
    expect_verdict("echo fixed >a; false", "true", SWARM_VERIFIED_FAIL, "exit status 1");
    expect_verdict("echo x >.git/config", "true", SWARM_VERIFIED_FAIL, "exit status"); // read-only
}

static void edits_do_not_reach_the_node(void **state) {
    (void)state;
    begin_swarm("echo a >a", "echo verifier >a; mkdir -p z; chmod 0 z");
    struct swarm_work_node *node = node_with("one", "echo b >a");
    assert_int_equal(verify(node, 60000).verdict, SWARM_VERIFIED_EDITED);
    shell("grep -qx b state/swarms/session/work/one/a; grep -qx a ws/a");
    assert_int_equal(verify(swarm_work_root(work), 60000).verdict, SWARM_VERIFIED_EDITED);
    shell("grep -qx a ws/a; test \"$(ls ws)\" = a; test -z \"$(ls state/swarms/session/verify)\"");
    end_swarm();
}

static void hung_verifier_is_ended(void **state) {
    (void)state;
    char verifier[300];
    (void)snprintf(
        verifier,
        sizeof verifier,
        "trap '' TERM INT HUP; (trap '' TERM; setsid sleep %s) & echo waits; while true; do sleep "
        "%s; "
        "done",
        pause_tag,
        pause_tag
    );
    begin_swarm("echo a >a", verifier);
    struct swarm_work_node *node = node_with("one", "echo b >a");
    struct clock clock = clock_real();
    int64_t began = clock_monotonic_ms(&clock);
    struct swarm_work_verdict verdict = verify(node, 1500);
    int64_t took = clock_monotonic_ms(&clock) - began;
    assert_int_equal(verdict.verdict, SWARM_VERIFIED_HUNG);
    assert_non_null(strstr(verdict.detail, "stopped after"));
    assert_in_range(took, 1500, 60000); // 3.5 s where nothing else runs
    assert_false(sleeps());
    verdict = verify(node, 0);
    assert_int_equal(verdict.verdict, SWARM_VERIFIED_CRASHED);
    assert_non_null(strstr(verdict.detail, "no time"));
    end_swarm();
}

static void crash_of_what_is_verified_is_a_failure(void **state) {
    (void)state;
    expect_verdict("kill -SEGV $$", "true", SWARM_VERIFIED_FAIL, "signal 11");
    expect_verdict("sh -c 'kill -ABRT $$'", "true", SWARM_VERIFIED_FAIL, "");
    expect_verdict("kill -KILL $$", "true", SWARM_VERIFIED_CRASHED, "signal 9");
    expect_verdict(
        "exec awk 'BEGIN { s = \"x\"; while (1) s = s s }'", "true", SWARM_VERIFIED_FAIL, ""
    );
}

static void verifier_that_cannot_run_is_told_from_a_broken_node(void **state) {
    (void)state;
    expect_verdict("no-such-command-here", "true", SWARM_VERIFIED_CRASHED, "127");
    expect_verdict("./check", "true", SWARM_VERIFIED_CRASHED, "127");
    begin_swarm("printf '#!/bin/sh\\ntest -e b\\n' >check; chmod +x check; echo b >b", "./check");
    struct swarm_work_node *removed = node_with("removed", "rm check");
    struct swarm_work_node *disabled = node_with("disabled", "chmod -x check");
    struct swarm_work_node *fine = node_with("fine", "echo >c");
    assert_int_equal(verify(removed, 60000).verdict, SWARM_VERIFIED_FAIL);
    assert_int_equal(verify(disabled, 60000).verdict, SWARM_VERIFIED_FAIL);
    assert_int_equal(verify(fine, 60000).verdict, SWARM_VERIFIED_PASS);
    end_swarm();
}

static void flood_of_output_is_bounded(void **state) {
    (void)state;
    struct swarm_work_verdict verdict = verdict_of(
        "i=0; while [ $i -lt 3000 ]; do echo \"line $i \xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\"; "
        "i=$((i+1)); done; printf '\\033[31mred\\377\\n'; exit 1",
        "true"
    );
    assert_int_equal(verdict.verdict, SWARM_VERIFIED_FAIL);
    assert_non_null(strstr(verdict.detail, "exit status 1\n[...] "));
    assert_non_null(strstr(verdict.detail, "line 2999"));
    assert_null(strchr(verdict.detail, '\033'));
    assert_in_range(
        strlen(verdict.detail), SWARM_DETAIL_BYTES_MAX - 100, SWARM_DETAIL_BYTES_MAX - 1
    );
    expect_verdict("yes flood", "true", SWARM_VERIFIED_FAIL, "stopped");
}

/* ---- cancel ------------------------------------------------------------------------------------- */

static void *cancel_soon(void *context) {
    const int *fd = context;
    while (!sleeps()) {
        (void)usleep(20000);
    }
    swarm_work_cancel(*fd);
    return NULL;
}

static void cancelled_verification_says_nothing(void **state) {
    (void)state;
    int fd = -1;
    pthread_t thread;
    struct swarm_work_verdict verdict;
    char verifier[100];
    (void
    )snprintf(verifier, sizeof verifier, "trap '' TERM; while true; do sleep %s; done", pause_tag);
    begin_swarm("echo a >a", verifier);
    struct swarm_work_node *node = node_with("one", "echo b >a");
    assert_true(is_ok(swarm_work_cancel_create(&fd, NULL)));
    const struct swarm_work_verification options = {.time_ms_max = 600000, .cancel_fd = fd};
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &fd), 0);
    swarm_work_verify(node, &options, &verdict);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(verdict.verdict, SWARM_NOT_VERIFIED);
    assert_false(sleeps());
    swarm_work_verify(node, &options, &verdict); // still cancelled: it does not begin
    assert_int_equal(verdict.verdict, SWARM_NOT_VERIFIED);
    close(fd);
    end_swarm();
}

/* ---- of what -------------------------------------------------------------------------------------- */

static void closed_nodes_and_the_root_are_verified(void **state) {
    (void)state;
    begin_swarm("echo a >a", "grep -qx good a");
    struct swarm_work_node *root = swarm_work_root(work);
    struct swarm_work_node *node = node_with("one", "echo good >a");
    struct swarm_work_verdict none = verify(open_node("two", root), 60000);
    assert_int_equal(none.verdict, SWARM_VERIFIED_CRASHED);
    assert_non_null(strstr(none.detail, "no result"));
    assert_true(close_node(node));
    assert_int_equal(verify(node, 60000).verdict, SWARM_VERIFIED_PASS);
    assert_int_equal(verify(root, 60000).verdict, SWARM_VERIFIED_FAIL);
    struct swarm_work_merge merged = merge_into(node, root);
    assert_int_equal(merged.merge, SWARM_MERGE_OK);
    assert_int_equal(verify(root, 60000).verdict, SWARM_VERIFIED_PASS);
    shell("echo bad >ws/a"); // now, or of the commit
    const struct swarm_work_verification options = {
        .commit = merged.commit, .time_ms_max = 60000, .cancel_fd = -1};
    struct swarm_work_verdict verdict;
    swarm_work_verify(root, &options, &verdict);
    assert_int_equal(verdict.verdict, SWARM_VERIFIED_PASS);
    assert_int_equal(verify(root, 60000).verdict, SWARM_VERIFIED_FAIL);
    end_swarm();
}

int main(int argc, char **argv) {
    int status = open_sandbox("test_swarm_work_verify", argc, argv);
    if (status != 0) {
        return status;
    }
    (void)snprintf(pause_tag, sizeof pause_tag, "611.%07ld", (long)getpid());
    const struct CMUnitTest tests[] = {
        TEST(verifier_passes_and_fails),
        TEST(what_it_leaves_beside_is_no_edit),
        TEST(edits_do_not_reach_the_node),
        TEST(hung_verifier_is_ended),
        TEST(crash_of_what_is_verified_is_a_failure),
        TEST(verifier_that_cannot_run_is_told_from_a_broken_node),
        TEST(flood_of_output_is_bounded),
        TEST(cancelled_verification_says_nothing),
        TEST(closed_nodes_and_the_root_are_verified),
    };
    return close_sandbox(cmocka_run_group_tests(tests, NULL, NULL));
}
