/* Swarms with real directories, sandboxes, verifiers and merges; only what the agents write is a script. */
#include "swarm_host_support.h"

#include "runtime/swarm_work.h"
#include "sandbox/sandbox.h"
#include "tools/tool_agents.h"
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SHELL(command) CALL("shell", STRING("command", command))

static struct sandbox *sandbox;
static struct sandbox_policy policy;
static struct workspace *root; /* of the stage */
static char pause_tag[32];     /* what commands sleep for: no other process has this number */

/* ---- the real work ---------------------------------------------------------------------------- */

void stage_work_reset(struct stage *stage) {
    struct error error = {0};
    policy = sandbox_policy_default(stage->workspace);
    policy.memory_mib = 256;
    workspace_close(root);
    root = NULL;
    assert_true(is_ok(workspace_open(stage->workspace, stage->snapshots, &root, &error)));
    stage->options.run.workspace = root;
    stage->options.tools.sandbox = sandbox;
    stage->options.tools.policy = &policy;
    stage->options.tools.time_ms_max = 120000;
}

static size_t entries(const char *path) {
    size_t count = 0;
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return 0;
    }
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        count += entry->d_name[0] != '.' ? 1 : 0;
    }
    (void)closedir(directory);
    return count;
}

/* Processes of commands, by what nobody else's have. */
static size_t processes_with(const char *word) {
    size_t count = 0;
    char path[300];
    DIR *directory = opendir("/proc");
    assert_non_null(directory);
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        char line[4096] = "";
        (void)snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *file = fopen(path, "re");
        size_t length = file != NULL ? fread(line, 1, sizeof line - 1, file) : 0;
        for (size_t i = 0; i + strlen(word) <= length; i++) {
            if (memcmp(&line[i], word, strlen(word)) == 0) {
                count++;
                break;
            }
        }
        if (file != NULL) {
            (void)fclose(file);
        }
    }
    (void)closedir(directory);
    return count;
}

/* Of this process: others may run sandboxes too. */
static size_t cgroups(void) {
    char own[32];
    (void)snprintf(own, sizeof own, "-%ld-", (long)getpid());
    size_t count = 0;
    const char *place = sandbox_get_probe(sandbox)->cgroup_path;
    DIR *directory = place[0] != '\0' ? opendir(place) : NULL;
    for (struct dirent *entry = directory != NULL ? readdir(directory) : NULL; entry != NULL;
         entry = readdir(directory)) {
        count += strstr(entry->d_name, own) != NULL ? 1 : 0;
    }
    if (directory != NULL) {
        (void)closedir(directory);
    }
    return count;
}

static size_t cgroups_before;

void stage_work_check(const struct stage *stage) {
    char place[200];
    (void)snprintf(place, sizeof place, "%s/swarms", stage->state);
    assert_int_equal(entries(place), 0); /* no directory, and so no lock */
    assert_int_equal(processes_with(pause_tag), 0);
    assert_int_equal(cgroups(), cgroups_before);
}

static void put_file(const struct stage *stage, const char *name, const char *text) {
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", stage->workspace, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void expect_file(const struct stage *stage, const char *name, const char *text) {
    char path[300];
    char got[400] = "";
    (void)snprintf(path, sizeof path, "%s/%s", stage->workspace, name);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        size_t length = fread(got, 1, sizeof got - 1, file);
        got[length] = '\0';
        (void)fclose(file);
    }
    assert_string_equal(got, text);
}

/* ---- tests ------------------------------------------------------------------------------------ */

/* The third is right, once the first is known to be wrong; the others take for ever. */
static struct fake_turn races(void *context, const struct writer_prompt *prompt) {
    static char for_ever[400];
    (void)context;
    (void)snprintf(for_ever, sizeof for_ever, SHELL("sleep %s"), pause_tag);
    const char *work =
        prompt_is_of(prompt, "agent-3")
            ? SHELL("until rm go 2>/dev/null; do sleep 0.1; done; echo right > a.txt")
        : prompt_is_of(prompt, "agent-1") ? SHELL("echo wrong > a.txt")
                                          : for_ever;
    return (struct fake_turn){.text = prompt->generation == 0 ? work : ANSWER("Done.")};
}

/* The first verdict is that of agent-1: agent-3 waits for what is made then in its copy. */
static void lets_third_go(struct stage *stage, const struct swarm_host_event *event) {
    (void)event;
    if (stage->script != NULL || stage->verified == 0) {
        return;
    }
    char command[300];
    (void)snprintf(
        command, sizeof command, "cd '%s'/swarms/*/%s/agent-3 && touch go", stage->state, "work"
    );
    /* NOLINTNEXTLINE(cert-env33-c): a fixed command of the test */
    stage->script = system(command) == 0 ? stage : NULL;
}

static void race_is_verified_merged_and_cleared(void **state) {
    (void)state;
    struct stage stage;
    stage_open(&stage, "race", 4, races);
    stage.looks = lets_third_go;
    put_file(&stage, "a.txt", "broken\n");
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "grep -q right a.txt";
    stage_run(&stage);
    assert_int_equal(stage.outcome.result.outcome, SWARM_PASSED);
    assert_string_equal(stage.outcome.name, "agent-3");
    assert_true(stage.outcome.result.is_merged);
    expect_file(&stage, "a.txt", "right\n");
    const struct session_agent *first = stage_agent(&stage, "agent-1");
    assert_true(view_equals_text(first->node->verdict, "fail"));
    assert_true(first->node->end.commit_after.length > 0);
    assert_int_equal(first->node->end.changed_lines, 2);
    const struct session_agent *best = stage_agent(&stage, "agent-3");
    assert_true(best->node->merge_commit.length > 0);
    assert_true(view_equals_text(stage.tree->session.commit_after, stage.outcome.commit)
    ); /* the workspace as it is now */
    assert_int_equal(stage.outcome.totals.kept, 0);
    stage_close(&stage);
}

struct part {
    const char *name, *first;
    const char *turns[6];
};

static struct fake_turn plays(void *context, const struct writer_prompt *prompt) {
    const struct stage *stage = context;
    const struct part *part = stage->script;
    while (strstr(prompt->first, part->first) == NULL) {
        part++;
    }
    int turn = prompt->generation;
    while (part->turns[turn] == NULL) {
        turn--;
    }
    return (struct fake_turn){.text = part->turns[turn]};
}

static void what_children_made_comes_through_their_parent(void **state) {
    (void)state;
    struct part parts[] = {
        {"agent-1",
         "You are agent-1",
         {SHELL("echo mine > mine.txt"),
          CALL("fork", VALUE("briefs", "[\"the left half\", \"the right half\"]")),
          CALL("merge", STRING("name", "agent-2")),
          CALL("merge", STRING("name", "agent-3")),
          SHELL("cat left.txt mine.txt"),
          ANSWER("Done.")}},
        {"agent-2",
         "the left half",
         {SHELL("cat mine.txt > left.txt; echo left >> a.txt"), ANSWER("Left.")}},
        {"agent-3", "the right half", {SHELL("echo right >> a.txt"), ANSWER("Right.")}},
    };
    struct stage stage;
    stage_open(&stage, "single", SWARM_ATTEMPTS_DEFAULT, plays);
    stage_give_agent_tools(&stage);
    put_file(&stage, "a.txt", "first\n");
    stage.script = parts;
    stage_run(&stage);
    /* A fork finds the files of its parent; who comes second at the same line is refused. */
    assert_true(stage_node(&stage, "agent-2")->is_merged);
    assert_false(stage_node(&stage, "agent-3")->is_merged);
    struct view refused = stage_result(&stage, "agent-1", 3);
    assert_true(view_find(refused, view_of_text("a.txt"), 0) != SIZE_MAX);
    struct view seen = stage_result(&stage, "agent-1", 4);
    assert_true(view_find(seen, view_of_text("mine\nmine"), 0) != SIZE_MAX);
    expect_file(&stage, "a.txt", "first\nleft\n");
    expect_file(&stage, "left.txt", "mine\n");
    expect_file(&stage, "mine.txt", "mine\n");
    stage_close(&stage);
}

/* Two tasks of a plan that change the same line: somebody makes one out of both. */
static void integrator_finds_both_sides_and_decides(void **state) {
    (void)state;
    struct part parts[] = {
        {"agent-4",
         "The work of two agents conflicts",
         {SHELL("grep -c '<<<<<<<' a.txt; echo both > a.txt"), ANSWER("Both.")}},
        {"agent-2", "Do the left.", {SHELL("echo left > a.txt"), ANSWER("Left.")}},
        {"agent-3", "Do the right.", {SHELL("echo right > a.txt"), ANSWER("Right.")}},
        {"agent-1",
         "JSON list",
         {ANSWER("[{\"id\": \"one\", \"brief\": \"Do the left.\", \"needs\": []}, "
                 "{\"id\": \"two\", \"brief\": \"Do the right.\", \"needs\": []}]")}},
    };
    struct stage stage;
    stage_open(&stage, "plan", SWARM_ATTEMPTS_DEFAULT, plays);
    put_file(&stage, "a.txt", "first\n");
    stage.script = parts;
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "grep -qx both a.txt";
    stage_run(&stage);
    assert_int_equal(stage.outcome.result.outcome, SWARM_PASSED);
    assert_int_equal(stage.outcome.result.node, SWARM_ROOT);
    assert_int_equal(stage.outcome.totals.nodes, 4);
    struct view counted = stage_result(&stage, "agent-4", 0);
    assert_true(view_find(counted, view_of_text("1"), 0) != SIZE_MAX); /* it found the markers */
    expect_file(&stage, "a.txt", "both\n");
    stage_close(&stage);
}

/* What is ended is asked with a signal that it does not hear. */
static struct fake_turn ignores(void *context, const struct writer_prompt *prompt) {
    static char for_ever[400];
    (void)context;
    (void)prompt;
    (void)snprintf(
        for_ever,
        sizeof for_ever,
        SHELL("trap '' TERM INT HUP; while :; do sleep %s; done"),
        pause_tag
    );
    return (struct fake_turn){.text = for_ever};
}

static void many_agents_whose_tools_ignore_signals_end_in_time(void **state) {
    (void)state;
    enum { CHILDREN = 64, TIME_MS = 30000 };
    struct stage stage;
    stage_open(&stage, "race", CHILDREN, ignores);
    put_file(&stage, "a.txt", "broken\n");
    stage.options.swarm.has_verifier = true;
    stage.options.swarm.time_ms_max = TIME_MS;
    stage.options.swarm.nodes_max = CHILDREN + 1;
    stage.options.swarm.live_max = CHILDREN;
    stage.options.verifier = "false";
    stage_run(&stage);
    print_message(
        "%zu agents ended %lld ms after the deadline, %zu of them lost\n",
        stage.outcome.totals.nodes,
        (long long)(stage.outcome.totals.duration_ms - TIME_MS),
        stage_count(&stage, SWARM_LOST)
    );
    assert_int_equal(stage.outcome.totals.nodes, CHILDREN);
    size_t called = 0;
    for (size_t i = 0; i < stage.tree->agent_count; i++) {
        const struct session_agent *agent = &stage.tree->agents[i];
        called += agent->turn_count > 0 && agent->turns[0].call_count > 0 ? 1 : 0;
    }
    assert_int_equal(called, CHILDREN); /* each was in the middle of it */
    assert_true(stage.outcome.totals.duration_ms <= TIME_MS + SWARM_GRACE_MS_DEFAULT + 10000);
    expect_file(&stage, "a.txt", "broken\n");
    stage_close(&stage);
}

static void verifier_that_writes_into_its_copy_changes_nothing(void **state) {
    (void)state;
    struct part parts[] = {
        {"agent-1", "Mend it.", {SHELL("echo right > a.txt"), ANSWER("Done.")}},
    };
    struct stage stage;
    stage_open(&stage, "race", 2, plays);
    put_file(&stage, "a.txt", "broken\n");
    stage.script = parts;
    stage.options.swarm.has_verifier = true;
    stage.options.verifier = "echo edited > a.txt";
    stage_run(&stage);
    assert_int_equal(stage_node(&stage, "agent-1")->verdict, SWARM_VERIFIED_EDITED);
    assert_int_equal(stage.outcome.result.outcome, SWARM_UNVERIFIED);
    expect_file(&stage, "a.txt", "right\n");
    stage_close(&stage);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    const struct sandbox_options options = {.helper_directory = TEST_BINARY_DIR "/sandbox"};
    struct error error = {0};
    if (is_failed(sandbox_open(&options, &sandbox, &error))) {
        (void)printf("%s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        (void)printf("SKIPPED test_swarm_host_real: %s; %s\n", probe->refusal, probe->remedy);
        sandbox_close(sandbox);
        return 77;
    }
    stage_base = "/var/tmp";
    (void)snprintf(pause_tag, sizeof pause_tag, "7531.%07ld", (long)getpid());
    cgroups_before = cgroups();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(race_is_verified_merged_and_cleared),
        cmocka_unit_test(what_children_made_comes_through_their_parent),
        cmocka_unit_test(verifier_that_writes_into_its_copy_changes_nothing),
        cmocka_unit_test(integrator_finds_both_sides_and_decides),
        cmocka_unit_test(many_agents_whose_tools_ignore_signals_end_in_time),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    workspace_close(root);
    sandbox_close(sandbox);
    return failed;
}
