/* Whole swarms in which anything happens at any moment, by a seed: agents that start, tell, wait for, end and merge
 * others at random, directories that cannot be made, verifiers and an engine that fail, signals. Whatever it comes to,
 * the swarm ends, nothing is left and the record is whole (swarm_host_support.c); and in debug builds the host looks
 * at the swarm's promises after each event. */
#include "swarm_work_fake.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

struct chaos {
    uint32_t random; /* of the script; under the engine's lock */
    uint32_t signals_at, events;
    bool has_agent_tools, fails;
};

static uint32_t draw(uint32_t *random, uint32_t below) {
    *random = *random * 1664525U + 1013904223U;
    return (*random >> 8) % below;
}

static const char *const acts[] = {
    WRITE_FILE("a.txt"),
    WRITE_FILE("b.txt"),
    CALL("read", STRING("path", "a.txt")),
    ANSWER("It is done."),
    ANSWER("It is done."),
    ANSWER("[{\"id\": \"one\", \"brief\": \"Do the first half.\", \"needs\": []}, "
           "{\"id\": \"two\", \"brief\": \"Do the second half.\", \"needs\": [\"one\"]}]"),
    /* from here on only with tools for others */
    CALL("spawn", STRING("task", "Part one.")),
    CALL("spawn", STRING("task", "Part two.") STRING("name", "two")),
    CALL("spawn", STRING("task", "Part three.") VALUE("tokens", "400")),
    CALL("fork", VALUE("count", "2")),
    CALL("fork", VALUE("briefs", "[\"left\", \"right\"]") STRING("join", "any")),
    CALL("fork", VALUE("count", "3") STRING("join", "passing")),
    CALL("message", STRING("name", "parent") STRING("message", "I am here.")),
    CALL("message", STRING("name", "two") STRING("message", "Hello, two.")),
    CALL("message", STRING("name", "agent-3") STRING("message", "Hello, three.")),
    CALL("wait", ""),
    CALL("wait", STRING("join", "any")),
    CALL("wait", VALUE("timeout", "50")),
    CALL("wait", VALUE("names", "[\"agent-1\", \"two\"]")),
    CALL("receive", VALUE("timeout", "50")),
    CALL("receive", ""),
    CALL("cancel", VALUE("names", "[\"two\"]")),
    CALL("cancel", VALUE("names", "[\"agent-4\", \"agent-5\"]")),
    CALL("merge", STRING("name", "two")),
    CALL("merge", STRING("name", "agent-4")),
};
#define ACTS_ALONE 6

static struct fake_turn anything(void *context, const struct writer_prompt *prompt) {
    struct stage *stage = context;
    struct chaos *chaos = stage->script;
    struct fake_turn turn = {.delay_us = (int)draw(&chaos->random, 200)};
    uint32_t kind = draw(&chaos->random, 24);
    if (strstr(prompt->text, "Is the task solved") != NULL) {
        turn.text = kind % 2 == 0 ? "yes" : "no";
        return turn;
    }
    uint32_t count = chaos->has_agent_tools ? COUNT_OF(acts) : ACTS_ALONE;
    turn.text = acts[draw(&chaos->random, count)];
    if (kind == 0) {
        turn.text = "and on";
        turn.is_endless = true;
        turn.delay_us = 500;
    } else if (kind == 1) {
        turn.fails = chaos->fails;
    } else if (kind == 2 && chaos->fails && draw(&chaos->random, 20) == 0) {
        writer_engine_lose_soon(stage->engine);
    }
    return turn;
}

static _Atomic uint32_t verify_random;

static enum swarm_verdict any_verdict(const char *name, const char *directory) {
    (void)name;
    (void)directory;
    uint32_t drawn = verify_random++ * 2654435761U >> 16;
    static const enum swarm_verdict verdicts[] = {
        SWARM_VERIFIED_PASS,
        SWARM_VERIFIED_FAIL,
        SWARM_VERIFIED_FAIL,
        SWARM_VERIFIED_CRASHED,
        SWARM_VERIFIED_EDITED,
        SWARM_VERIFIED_FAIL,
    };
    return verdicts[drawn % COUNT_OF(verdicts)];
}

static enum swarm_merge any_merge(const char *name) {
    return name[strlen(name) - 1] % 3 == 0 ? SWARM_MERGE_CONFLICTS : SWARM_MERGE_OK;
}

static void signals(struct stage *stage, const struct swarm_host_event *event) {
    struct chaos *chaos = stage->script;
    (void)event;
    if (++chaos->events == chaos->signals_at) {
        assert_int_equal(kill(getpid(), SIGTERM), 0);
    }
}

static void run_one(uint32_t seed) {
    static const char *const strategies[] = {
        "single", "race", "best-of", "plan", "staged", "retries"};
    struct stage stage;
    struct chaos chaos = {.random = seed};
    uint32_t random = seed ^ 0x5bd1e995U;
    const char *strategy = strategies[draw(&random, COUNT_OF(strategies))];
    print_message("seed %u: %s\n", seed, strategy);
    stage_open(&stage, strategy, SWARM_ATTEMPTS_DEFAULT, anything);
    stage.script = &chaos;
    stage.looks = signals;
    chaos.signals_at = draw(&random, 3) == 0 ? 1 + draw(&random, 3000) : 0;
    chaos.fails = draw(&random, 3) == 0;
    chaos.has_agent_tools = draw(&random, 4) > 0;
    if (chaos.has_agent_tools) {
        stage_give_agent_tools(&stage);
    }
    struct swarm_options *options = &stage.options.swarm;
    stage.options.handles_signals = true;
    stage.options.has_notes = draw(&random, 2) == 0;
    options->has_verifier = stage.options.swarm.strategy->needs_verifier || draw(&random, 2) == 0;
    stage.options.verifier = options->has_verifier ? "make check" : NULL;
    options->time_ms_max = 800 + draw(&random, 3000);
    options->tokens_max = draw(&random, 2) == 0 ? 0 : 3000 + draw(&random, 20000);
    options->nodes_max = 8 + draw(&random, 24);
    options->live_max = 1 + draw(&random, 8);
    options->processes_max = draw(&random, 2) == 0 ? 0 : 10 + draw(&random, 50);
    options->calls_max = draw(&random, 4) == 0 ? 10 + draw(&random, 40) : 0;
    options->seed = seed;
    stage.options.run.agent.turns_max = 12;
    verify_random = seed;
    swarm_work_fake.verify = any_verdict;
    swarm_work_fake.merge = any_merge;
    swarm_work_fake.verify_ms = (int)draw(&random, 100);
    swarm_work_fake.open_ms = (int)draw(&random, 20);
    swarm_work_fake.close_ms = (int)draw(&random, 20);
    swarm_work_fake.open_fails = draw(&random, 4) == 0 ? "agent-2" : NULL;
    swarm_work_fake.result_fails = draw(&random, 4) == 0 ? "agent-3" : NULL;
    swarm_work_fake.disk_is_full = draw(&random, 4) == 0;
    stage_run(&stage);
    int64_t late_ms = options->time_ms_max + SWARM_GRACE_MS_DEFAULT + 10000; /* a loaded machine */
    assert_true(stage.outcome.totals.duration_ms < late_ms);
    stage_close(&stage);
}

static void anything_at_any_moment_ends_whole(void **state) {
    (void)state;
    const char *given = getenv("HEARTH_SEED");
    uint32_t first = given != NULL ? (uint32_t)strtoul(given, NULL, 10) : (uint32_t)time(NULL);
    int before = 0;
    for (uint32_t i = 0; i < 25; i++) {
        run_one(first + i);
        before = i == 0 ? stage_descriptors() : before; /* what the first has brought stays */
    }
    assert_int_equal(stage_descriptors(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(anything_at_any_moment_ends_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
