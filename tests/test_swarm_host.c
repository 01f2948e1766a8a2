/* Strategies on a scripted engine, each to its end, and what goes wrong on the way. */
#include "runtime/swarm_rank.h"
#include "swarm_work_fake.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static enum swarm_verdict verdict_now;

static enum swarm_verdict always(const char *name, const char *directory) {
    (void)name;
    (void)directory;
    return verdict_now;
}

/* ---- strategies ------------------------------------------------------------------------------ */

/* Changes a file and says so. */
static struct fake_turn works(void *context, const struct writer_prompt *prompt) {
    (void)context;
    static const char *const turns[] = {WRITE_FILE("a.txt"), ANSWER("It is done.")};
    return (struct fake_turn){.text = turns[prompt->generation > 0 ? 1 : 0]};
}

static void single_agent_works_and_its_result_is_merged(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    stage_run(&stage);
    assert_int_equal(stage.outcome.result.outcome, SWARM_UNVERIFIED);
    assert_true(stage.outcome.result.is_merged);
    assert_string_equal(stage.outcome.name, "agent-1");
    assert_string_equal(stage.outcome.stop, "answer");
    assert_int_equal(stage.outcome.exit_status, 0);
    assert_int_equal(stage.merged, 1);
    const struct session_agent *agent = stage_agent(&stage, "agent-1");
    assert_int_equal(agent->turn_count, 2);
    assert_true(view_equals_text(agent->node->end.summary, "It is done."));
    assert_true(stage_was_told(&stage, "agent-1", "Mend it.\n\nYou are agent-1."));
    stage_close(&stage);
}

/* A model that was trained with bare tasks gets one. */
static void agent_without_notes_is_told_the_task_alone(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    stage.options.has_notes = false;
    stage_run(&stage);
    const struct session_agent *agent = stage_agent(&stage, "agent-1");
    assert_true(view_equals_text(agent->turns[0].messages[0].text, "Mend it."));
    stage_close(&stage);
}

/* Each reads the system text itself, as a run of its own would; the record says what it is. */
static void agents_that_share_nothing_have_contexts_of_their_own(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) {
        struct stage stage;
        stage_open(&stage, "best-of", 2, works);
        stage.options.shares_nothing = round == 1;
        stage_run(&stage);
        assert_true(stage.outcome.result.is_merged);
        for (size_t i = 0; i < 2; i++) {
            const struct session_agent *agent = stage_agent(&stage, i == 0 ? "agent-1" : "agent-2");
            bool is_alone = round == 1;
            assert_true(view_equals_text(agent->node->kind, is_alone ? "spawn" : "fork"));
            const struct session_turn *turn = &agent->turns[0];
            const struct session_message *first = &turn->messages[0];
            assert_true(view_equals_text(first->role, is_alone ? "system" : "user"));
        }
        stage_close(&stage);
    }
}

/* The second has it; the others would write for ever. */
static struct fake_turn races(void *context, const struct writer_prompt *prompt) {
    if (prompt_is_of(prompt, "agent-2")) {
        return works(context, prompt);
    }
    return (struct fake_turn){.text = "and on", .is_endless = true};
}

static void race_ends_the_others_in_the_middle_of_a_token(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 4, races);
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_int_equal(stage.outcome.result.outcome, SWARM_PASSED);
    assert_string_equal(stage.outcome.name, "agent-2");
    assert_int_equal(stage_count(&stage, SWARM_CANCELLED), 3);
    assert_int_equal(stage_node(&stage, "agent-1")->cut, SWARM_CUT_DECIDED);
    assert_int_equal(writer_engine_cancelled(stage.engine), 3);
    assert_int_equal(stage.verified, 1);
    assert_int_equal(stage.tree->session.status, SESSION_DONE);
    stage_close(&stage);
}

/* Each has something; the model likes the second. */
static struct fake_turn competes(void *context, const struct writer_prompt *prompt) {
    const struct stage *stage = context;
    int *asked = stage->script;
    if (strstr(prompt->text, "Is the task solved") != NULL) { /* once for each word */
        int of_context = (*asked)++ / SWARM_RANK_WORDS;
        return (struct fake_turn){.text = of_context == 1 ? "yes" : "no"};
    }
    return works(context, prompt);
}

static void best_of_is_what_the_model_ranks_first(void **state) {
    (void)state;
    struct stage stage;
    int asked = 0;
    stage_open(&stage, "best-of", 3, competes);
    stage.script = &asked;
    stage_run(&stage);
    assert_int_equal(stage.ranked, 1);
    assert_string_equal(stage.outcome.name, "agent-2");
    assert_int_equal(stage.outcome.totals.rank_tokens, 3 * SWARM_RANK_WORDS);
    assert_true(stage_node(&stage, "agent-1")->has_score);
    assert_true(stage_agent(&stage, "agent-2")->node->score > 0.5);
    assert_true(stage_agent(&stage, "agent-1")->node->score < 0.5);
    stage_close(&stage);
}

/* A planner, two workers, the second after the first. */
static struct fake_turn plans(void *context, const struct writer_prompt *prompt) {
    if (strstr(prompt->first, "JSON list") != NULL) {
        return (struct fake_turn
        ){.text = ANSWER("[{\"id\": \"one\", \"brief\": \"Do the first half.\", \"needs\": []}, "
                         "{\"id\": \"two\", \"brief\": \"Do the second half.\", "
                         "\"needs\": [\"one\"]}]")};
    }
    return works(context, prompt);
}

static void plan_is_carried_out_in_order_and_merged(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "plan", SWARM_ATTEMPTS_DEFAULT, plans);
    swarm_work_fake.verify = always;
    verdict_now = SWARM_VERIFIED_PASS;
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_int_equal(stage.outcome.totals.nodes, 3);
    assert_int_equal(stage.outcome.result.node, SWARM_ROOT);
    assert_int_equal(stage.outcome.result.outcome, SWARM_PASSED);
    assert_int_equal(stage.merged, 2);
    assert_true(stage_was_told(&stage, "agent-2", "Do the first half."));
    assert_true(stage_was_told(&stage, "agent-3", "Do the second half."));
    assert_true(stage_was_told(&stage, "agent-2", "Mend it."));
    stage_close(&stage);
}

/* Nothing passes but what the third makes. */
static enum swarm_verdict third_passes(const char *name, const char *directory) {
    (void)directory;
    return strcmp(name, "agent-3") == 0 ? SWARM_VERIFIED_PASS : SWARM_VERIFIED_FAIL;
}

static void retries_and_stages_go_on_until_one_passes(void **state) {
    (void)state;
    static const char *const strategies[] = {"retries", "staged"};
    for (size_t i = 0; i < COUNT_OF(strategies); i++) {
        struct stage stage;
        stage_open(&stage, strategies[i], SWARM_ATTEMPTS_DEFAULT, works);
        swarm_work_fake.verify = third_passes;
        stage.options.swarm.has_verifier = true;
        stage.options.verifier = "make check";
        stage_run(&stage);
        assert_int_equal(stage.outcome.result.outcome, SWARM_PASSED);
        assert_string_equal(stage.outcome.name, "agent-3");
        stage_close(&stage);
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void verifier_that_fails_hangs_or_edits_is_named(void **state) {
    (void)state;
    static const struct {
        enum swarm_verdict verdict;
        const char *word;
        enum swarm_outcome outcome;
    } cases[] = {
        {SWARM_VERIFIED_FAIL, "fail", SWARM_FAILED},
        {SWARM_VERIFIED_HUNG, "hung", SWARM_FAILED},
        {SWARM_VERIFIED_CRASHED, "crashed", SWARM_UNVERIFIED},
        {SWARM_VERIFIED_EDITED, "edited", SWARM_UNVERIFIED},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct stage stage;
        stage_open(&stage, "race", 3, works);
        swarm_work_fake.verify = always;
        verdict_now = cases[i].verdict;
        stage.options.swarm.has_verifier = true;
        stage.options.verifier = "make check";
        stage_run(&stage);
        const struct session_node *node = stage_agent(&stage, "agent-1")->node;
        assert_true(view_equals_text(node->verdict, cases[i].word));
        assert_int_equal(stage.outcome.result.outcome, cases[i].outcome);
        assert_int_equal(stage.outcome.exit_status, 1);
        stage_close(&stage);
    }
}

static void verifier_that_takes_too_long_is_ended(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 2, works);
    swarm_work_fake.verify_ms = 60000;
    stage.options.swarm.has_verifier = true;
    stage.options.swarm.verify_ms_max = 200;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_int_equal(stage_node(&stage, "agent-1")->verdict, SWARM_VERIFIED_HUNG);
    stage_close(&stage);
}

/* The whole is verified anew while the verification that was given up still hangs. */
static void verification_waits_for_one_that_does_not_end(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "plan", SWARM_ATTEMPTS_DEFAULT, plans);
    swarm_work_fake.verify = always;
    verdict_now = SWARM_VERIFIED_PASS;
    swarm_work_fake.deaf_ms = 4000;
    stage.options.swarm.has_verifier = true;
    stage.options.swarm.verify_ms_max = 2000;
    stage.options.swarm.kill_grace_ms = 100;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_int_equal(stage.outcome.totals.nodes, 4); /* with the one who was to make it pass */
    assert_int_equal(stage.outcome.result.outcome, SWARM_PASSED);
    stage_close(&stage);
}

static void agents_that_cannot_be_started_are_in_the_record(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 3, works);
    swarm_work_fake.open_fails = "agent-1";
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_int_equal(stage.outcome.result.outcome, SWARM_PASSED);
    const struct session_node *node = stage_agent(&stage, "agent-1")->node;
    assert_true(view_equals_text(node->end.ending, "start"));
    assert_true(view_equals_text(node->end.detail, "no directory for agent-1"));
    stage_close(&stage);

    stage_open(&stage, "race", 3, works);
    writer_engine_refuse_forks(stage.engine);
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_int_equal(stage_count(&stage, SWARM_FAILED), 3);
    assert_int_equal(stage.outcome.result.node, SWARM_NONE);
    assert_int_equal(stage.outcome.exit_status, 1);
    stage_close(&stage);
}

static void full_disk_starts_nobody_any_more(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 6, works);
    swarm_work_fake.open_fails = "*";
    swarm_work_fake.disk_is_full = true;
    stage.options.swarm.has_verifier = true;
    stage.options.swarm.live_max = 2;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_true(stage.outcome.totals.nodes <= 3);
    assert_int_equal(stage_count(&stage, SWARM_FAILED), 6);
    stage_close(&stage);
}

static void result_that_cannot_be_kept_is_said(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "best-of", 2, works);
    swarm_work_fake.result_fails = "agent-1";
    stage_run(&stage);
    assert_string_equal(stage.outcome.name, "agent-2");
    assert_int_equal(stage.warnings, 1);
    assert_non_null(strstr(stage.last_warning, "no snapshot of agent-1"));
    stage_close(&stage);
}

static struct fake_turn loses_engine(void *context, const struct writer_prompt *prompt) {
    struct stage *stage = context;
    if (prompt->generation > 0) {
        writer_engine_lose_soon(stage->engine);
    }
    return works(context, prompt);
}

static void engine_that_is_lost_ends_it(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "best-of", 5, loses_engine);
    stage.options.swarm.live_max = 2;
    stage_run(&stage);
    assert_string_equal(stage.outcome.stop, "engine");
    assert_int_equal(stage.outcome.exit_status, 6);
    assert_int_equal(stage.tree->session.status, SESSION_FAILED);
    stage_close(&stage);
}

/* A disk that is full all at once, of the record and everything else; made so by what the view hears. */
static void fills_disk(struct stage *stage, const struct swarm_host_event *event) {
    bool is_time = event->type == SWARM_HOST_RUN && event->run->type == RUN_TOOL_RESULT;
    if (!is_time || stage->script != NULL) {
        return;
    }
    char path[120];
    static const char zeros[65536];
    (void)snprintf(path, sizeof path, "%s/ballast", stage->directory);
    stage->script = stage;
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    for (size_t size = sizeof zeros; size > 0; size /= 2) {
        while (write(fd, zeros, size) == (ssize_t)size) {
        }
    }
    (void)close(fd);
}

#define CHILD_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "line %d: not " #condition "\n", __LINE__);                      \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int full_record_child(void) {
    struct stage stage;
    struct error error = {0};
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", "/var/tmp", "tmpfs", 0, "size=6m,mode=0777") != 0) {
        return 77;
    }
    stage_base = "/var/tmp";
    stage_open(&stage, "race", 6, works);
    stage.options.swarm.has_verifier = true;
    stage.options.swarm.live_max = 3;
    stage.options.verifier = "make check";
    stage.looks = fills_disk;
    CHILD_CHECK(is_ok(swarm_host_run(stage.loop, &stage.options, &stage.outcome, &error))
    ); /* it had begun */
    CHILD_CHECK(stage.finished == 1 && stage.outcome.exit_status == 5);
    CHILD_CHECK(strcmp(stage.outcome.stop, "record") == 0 && is_failed(stage.outcome.fault));
    CHILD_CHECK(writer_engine_open(stage.engine) == 1);
    CHILD_CHECK(swarm_work_fake.opened == swarm_work_fake.closed);
    CHILD_CHECK(stage.outcome.totals.nodes < 6);
    char path[120];
    (void)snprintf(path, sizeof path, "%s/ballast", stage.directory);
    CHILD_CHECK(unlink(path) == 0);
    session_store_cleanup(&stage.store); /* the next writer finds it, and marks what did not end */
    const struct session_store_options again = {
        .state_dir = stage.state,
        .mode = SESSION_READ_WRITE,
        .program = "test",
        .clock = clock_real()};
    CHILD_CHECK(is_ok(session_store_open(&stage.store, &again, &error)));
    CHILD_CHECK(is_ok(session_store_verify(stage.store, &error)));
    const struct session_id *id = &stage.outcome.session;
    CHILD_CHECK(is_ok(session_load(stage.store, id, NULL, &stage.tree, &error)));
    CHILD_CHECK(stage.tree->session.status == SESSION_INTERRUPTED);
    for (size_t i = 0; i < stage.tree->agent_count; i++) {
        const struct session_node *node = stage.tree->agents[i].node;
        CHILD_CHECK(node == NULL || node->is_ended);
    }
    stage_close(&stage);
    return 0;
}

static void record_on_a_full_disk_ends_it(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it allows no threads in the child of a fork */
#endif
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        _exit(full_record_child());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static struct fake_turn never_ends(void *context, const struct writer_prompt *prompt) {
    (void)context;
    (void)prompt;
    return (struct fake_turn){.text = "and on", .is_endless = true};
}

static void deadline_ends_all_in_time(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 8, never_ends);
    stage.options.swarm.has_verifier = true;
    stage.options.swarm.time_ms_max = 1500;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_true(stage.outcome.is_out_of_budget);
    assert_string_equal(stage.outcome.stop, "time");
    assert_int_equal(stage.outcome.exit_status, 4);
    assert_true(stage.outcome.totals.duration_ms < 1500 + 3000 + 10000); /* a loaded machine */
    assert_int_equal(stage_count(&stage, SWARM_LOST), 0);
    stage_close(&stage);
}

static void tokens_are_not_overspent(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 4, never_ends);
    stage.options.swarm.has_verifier = true;
    stage.options.swarm.tokens_max = 4000;
    stage.options.verifier = "make check";
    stage_run(&stage);
    assert_true(stage.outcome.totals.tokens <= 4000);
    assert_true(stage.outcome.totals.tokens > 2000);
    assert_string_equal(stage.outcome.stop, "tokens");
    stage_close(&stage);
}

static void sends_signal(struct stage *stage, const struct swarm_host_event *event) {
    bool is_token = event->type == SWARM_HOST_RUN && event->run->type == RUN_REASONING;
    if (is_token && stage->script == NULL) {
        stage->script = stage;
        assert_int_equal(kill(getpid(), SIGINT), 0);
    }
}

static void signal_ends_it(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 4, never_ends);
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "make check";
    stage.options.handles_signals = true;
    stage.looks = sends_signal;
    stage_run(&stage);
    assert_true(stage.outcome.is_interrupted);
    assert_string_equal(stage.outcome.stop, "interrupt");
    assert_int_equal(stage.outcome.exit_status, 130);
    assert_int_equal(stage.tree->session.status, SESSION_STOPPED);
    assert_int_equal(stage_count(&stage, SWARM_CANCELLED), 4);
    stage_close(&stage);
}

/* What the workspace holds is what is said, and recorded, also where the merge took too long. */
static void merge_that_ends_late_is_told_as_made(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    swarm_work_fake.merge_ms = 1000;
    stage.options.swarm.merge_ms_max = 100;
    stage_run(&stage);
    assert_true(stage.outcome.result.is_merged);
    assert_true(stage_node(&stage, "agent-1")->is_merged);
    assert_null(strstr(stage.outcome.result.why, "merge"));
    stage_close(&stage);
}

/* A clock by which the loop's timers come early, and whether the swarm had finished when its merge came back. */
static int64_t slow_ms(void *context) {
    const int64_t *begun_ms = context;
    struct clock real = clock_real();
    return *begun_ms + (clock_monotonic_ms(&real) - *begun_ms) / 2;
}

static int64_t wall_ms(void *context) {
    (void)context;
    struct clock real = clock_real();
    return clock_wall_ms(&real);
}

static void looks_at_late_merge(struct stage *stage, const struct swarm_host_event *event) {
    if (event->type == SWARM_HOST_MERGED && swarm_is_finished(swarm_host_swarm(stage->host))) {
        stage->script = stage;
    }
}

static void timer_that_fires_early_loses_no_deadline(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    swarm_work_fake.merge_ms = 3000;
    struct clock real = clock_real();
    int64_t begun_ms = clock_monotonic_ms(&real);
    stage.options.run.clock =
        (struct clock){.monotonic_ms = slow_ms, .wall_ms = wall_ms, .context = &begun_ms};
    stage.options.swarm.merge_ms_max = 200;
    stage.looks = looks_at_late_merge;
    stage_run(&stage);
    assert_non_null(stage.script);
    stage_close(&stage);
}

static void interrupts_after_merge(struct stage *stage, const struct swarm_host_event *event) {
    const struct swarm *swarm = swarm_host_swarm(stage->host);
    if (event->type == SWARM_HOST_NODE && swarm_node(swarm, event->node)->is_merged) {
        stage->script = stage;
        swarm_host_interrupt(stage->host);
    }
}

static void signal_after_the_decision_changes_nothing(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    stage.looks = interrupts_after_merge;
    stage_run(&stage);
    assert_non_null(stage.script);
    assert_false(stage.outcome.is_interrupted);
    assert_string_equal(stage.outcome.stop, "answer");
    assert_int_equal(stage.outcome.exit_status, 0);
    assert_int_equal(stage.tree->session.status, SESSION_DONE);
    stage_close(&stage);
}

static void signal_before_it_began_names_the_session(void **state) {
    (void)state;
    struct stage stage;
    struct error error = {0};
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    swarm_work_fake.interrupts_create = true;
    stage.options.handles_signals = true;
    assert_true(is_ok(stage_fail(&stage, &error)));
    assert_int_equal(stage.began, 0);
    assert_int_equal(stage.outcome.exit_status, 130);
    const struct session_id *id = &stage.outcome.session;
    assert_true(is_ok(session_load(stage.store, id, NULL, &stage.tree, &error)));
    assert_int_equal(stage.tree->session.status, SESSION_STOPPED);
    stage_close(&stage);
}

static void copy_that_lacks_files_is_named(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    swarm_work_fake.skips = "run/socket";
    stage_run(&stage);
    assert_int_equal(stage.warnings, 1);
    assert_non_null(strstr(stage.last_warning, "agent-1 lack some: run/socket"));
    stage_close(&stage);
}

static void swarm_that_does_not_begin_leaves_nothing(void **state) {
    (void)state;
    struct stage stage;
    struct error error = {0};
    stage_open(&stage, "race", 0, works);
    stage.options.swarm.has_verifier = true;
    assert_int_equal(stage_fail(&stage, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "attempts"));
    stage_close(&stage);

    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, works);
    writer_engine_lose(stage.engine);
    assert_int_equal(stage_fail(&stage, &error).code, RESULT_DEVICE);
    stage_close(&stage);
}

static void nothing_of_the_process_is_kept(void **state) {
    (void)state;
    int before = 0;
    for (int i = 0; i < 3; i++) {
        struct stage stage;
        stage_open(&stage, "race", 4, races);
        stage.options.swarm.has_verifier = true;
        stage.options.verifier = "make check";
        stage_run(&stage);
        stage_close(&stage);
        before = i == 0 ? stage_descriptors() : before; /* what the first has brought stays */
    }
    assert_int_equal(stage_descriptors(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_agent_works_and_its_result_is_merged),
        cmocka_unit_test(agent_without_notes_is_told_the_task_alone),
        cmocka_unit_test(agents_that_share_nothing_have_contexts_of_their_own),
        cmocka_unit_test(race_ends_the_others_in_the_middle_of_a_token),
        cmocka_unit_test(best_of_is_what_the_model_ranks_first),
        cmocka_unit_test(plan_is_carried_out_in_order_and_merged),
        cmocka_unit_test(retries_and_stages_go_on_until_one_passes),
        cmocka_unit_test(verifier_that_fails_hangs_or_edits_is_named),
        cmocka_unit_test(verifier_that_takes_too_long_is_ended),
        cmocka_unit_test(verification_waits_for_one_that_does_not_end),
        cmocka_unit_test(agents_that_cannot_be_started_are_in_the_record),
        cmocka_unit_test(full_disk_starts_nobody_any_more),
        cmocka_unit_test(result_that_cannot_be_kept_is_said),
        cmocka_unit_test(engine_that_is_lost_ends_it),
        cmocka_unit_test(record_on_a_full_disk_ends_it),
        cmocka_unit_test(deadline_ends_all_in_time),
        cmocka_unit_test(tokens_are_not_overspent),
        cmocka_unit_test(signal_ends_it),
        cmocka_unit_test(merge_that_ends_late_is_told_as_made),
        cmocka_unit_test(signal_after_the_decision_changes_nothing),
        cmocka_unit_test(timer_that_fires_early_loses_no_deadline),
        cmocka_unit_test(signal_before_it_began_names_the_session),
        cmocka_unit_test(copy_that_lacks_files_is_named),
        cmocka_unit_test(swarm_that_does_not_begin_leaves_nothing),
        cmocka_unit_test(nothing_of_the_process_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
