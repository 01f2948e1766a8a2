/* The tools about other agents: what a model writes becomes an ask of the host within its bounds, in each
 * dialect; the host's answer becomes the result; a call that waits ends when it is cancelled. */
#include "tools_support.h"

#include "tools/tool_agents.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- a made-up host ---------------------------------------------------------------------------- */

#define ASKS_MAX 4

struct crowd {
    struct tool_agents_ask asks[ASKS_MAX]; /* of the last call */
    char texts[ASKS_MAX][64];              /* briefs and message of each, then its name and names */
    size_t count;
    enum tool_status status;
    const char *answer;  /* null: what was asked */
    size_t blocks_at;    /* this ask of the call, from 1, until it is cancelled; 0: none */
    atomic_bool blocked; /* read by the thread that cancels */
};

static struct crowd crowd;

static void note(char text[64], const char *before, struct view words) {
    size_t length = strlen(text);
    int written = snprintf(
        &text[length],
        64 - length,
        "%s%.*s",
        before,
        words.length > 20 ? 1 : (int)words.length,
        words.data
    );
    assert_true(written >= 0 && (size_t)written < 64 - length);
}

static result crowd_ask(
    void *context,
    const struct tool_agents_ask *ask,
    struct tool_agents_answer *answer,
    struct error *error
) {
    assert_ptr_equal(context, &crowd);
    assert_true(crowd.count < ASKS_MAX && ask->cancel_fd >= 0);
    char *text = crowd.texts[crowd.count];
    text[0] = '\0';
    for (size_t i = 0; i < ask->brief_count && i < 3; i++) {
        note(text, i == 0 ? "" : "|", ask->briefs[i]);
    }
    note(text, "", ask->text);
    note(text, "@", ask->name);
    for (size_t i = 0; i < ask->name_count && i < 3; i++) {
        note(text, "/", ask->names[i]);
    }
    crowd.asks[crowd.count++] = *ask;
    answer->status = crowd.status;
    if (crowd.count == crowd.blocks_at) {
        atomic_store(&crowd.blocked, true);
        struct pollfd cancelled = {.fd = ask->cancel_fd, .events = POLLIN};
        while (poll(&cancelled, 1, -1) != 1) {
            assert_int_equal(errno, EINTR);
        }
        answer->status = TOOL_CANCELLED;
        return buffer_append_text(answer->text, "error: cancelled", error);
    }
    if (ask->verb == TOOL_AGENTS_SPAWN && crowd.status == TOOL_OK) {
        (void)snprintf(answer->started, sizeof answer->started, "agent-7");
    }
    return buffer_append_text(answer->text, crowd.answer != NULL ? crowd.answer : text, error);
}

static const struct tool_agents agents = {&crowd, crowd_ask};

static void open_crowd(struct bench *bench, enum tool_dialect dialect) {
    crowd = (struct crowd){.status = TOOL_OK};
    const struct tool_context_options options = {
        .set = tool_set_all(), .dialect = dialect, .agents = &agents};
    bench_open(bench, NULL, &options);
}

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    open_crowd(bench, TOOL_DIALECT_HEARTH);
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

/* Calls, and expects one ask of this verb with these texts. */
static const struct tool_agents_ask *expect_ask(
    struct bench *bench,
    const char *tool,
    const char *arguments,
    enum tool_agents_verb verb,
    const char *texts
) {
    crowd.count = 0;
    bench_expect(bench, tool, arguments, TOOL_OK, texts);
    assert_int_equal(crowd.count, 1);
    assert_int_equal(crowd.asks[0].verb, verb);
    return &crowd.asks[0];
}

/* Calls, and expects that the host was not asked. */
static void
expect_refusal(struct bench *bench, const char *tool, const char *arguments, const char *text) {
    crowd.count = 0;
    bench_expect_part(bench, tool, arguments, TOOL_REFUSED, text);
    assert_int_equal(crowd.count, 0);
}

/* ---- asks -------------------------------------------------------------------------------------- */

static void each_tool_asks_for_its_verb(void **state) {
    struct bench *bench = *state;
    const struct tool_agents_ask *ask = expect_ask(
        bench,
        "spawn",
        "{\"task\":\"look\",\"name\":\"scout\",\"tokens\":900,\"time_ms\":5000}",
        TOOL_AGENTS_SPAWN,
        "look@scout"
    );
    assert_true(ask->tokens == 900 && ask->time_ms == 5000);
    assert_true(ask->brief_count == 1 && ask->count == 1 && ask->name_count == 0);
    ask = expect_ask(bench, "spawn", "{\"task\":\"x\"}", TOOL_AGENTS_SPAWN, "x@");
    assert_true(ask->tokens == 0 && ask->time_ms == 0);
    ask = expect_ask(
        bench,
        "fork",
        "{\"briefs\":[\"a\",\"b\",\"c\"],\"join\":\"passing\"}",
        TOOL_AGENTS_FORK,
        "a|b|c@"
    );
    assert_true(ask->count == 3 && ask->brief_count == 3 && ask->join == TOOL_AGENTS_PASSING);
    ask = expect_ask(bench, "fork", "{\"count\":32,\"tokens\":7}", TOOL_AGENTS_FORK, "@");
    assert_true(ask->count == 32 && ask->brief_count == 0 && ask->join == TOOL_AGENTS_ALL);
    assert_int_equal(ask->tokens, 7);
    ask = expect_ask(
        bench, "message", "{\"name\":\"parent\",\"message\":\"hi\"}", TOOL_AGENTS_SEND, "hi@/parent"
    );
    ask = expect_ask(
        bench,
        "wait",
        "{\"names\":[\"a\",\"b\"],\"join\":\"any\",\"timeout\":500}",
        TOOL_AGENTS_WAIT,
        "@/a/b"
    );
    assert_true(ask->join == TOOL_AGENTS_ANY && ask->time_ms == 500);
    ask = expect_ask(bench, "wait", "{}", TOOL_AGENTS_WAIT, "@");
    assert_true(ask->name_count == 0 && ask->join == TOOL_AGENTS_ALL && ask->time_ms == 0);
    ask = expect_ask(bench, "receive", "{\"timeout\":1}", TOOL_AGENTS_RECEIVE, "@");
    assert_int_equal(ask->time_ms, 1);
    (void)expect_ask(bench, "cancel", "{\"names\":[\"a\"]}", TOOL_AGENTS_CANCEL, "@/a");
    (void)expect_ask(bench, "merge", "{\"name\":\"a-1_B\"}", TOOL_AGENTS_MERGE, "@/a-1_B");
}

/* Refused by name and number, before the host hears of it. */
static void what_is_out_of_bounds_is_refused(void **state) {
    struct bench *bench = *state;
    static const struct {
        const char *tool, *arguments, *text;
    } cases[] = {
        {"spawn", "{\"task\":\"\"}", "error: the task has 0 bytes: 1 to 32768"},
        {"spawn",
         "{\"task\":\"x\",\"name\":\"a b\"}",
         "error: \"a b\" is no name of an agent: 1 to 31 letters, digits, - and _"},
        {"spawn", "{\"task\":\"x\",\"tokens\":0}", "error: tokens is 0: 1 to 1000000000000"},
        {"spawn", "{\"task\":\"x\",\"time_ms\":-5}", "error: time_ms is -5: 1 to 2592000000"},
        {"spawn", "{\"name\":\"x\"}", "missing parameter 'task'"},
        {"fork", "{}", "error: count is 0 with 0 briefs: give briefs, or a count"},
        {"fork", "{\"count\":0}", "error: count is 0: 1 to 32"},
        {"fork", "{\"count\":10000}", "error: count is 10000: 1 to 32"},
        {"fork", "{\"count\":99999999999999999999}", "'count' must be of type integer"},
        {"fork", "{\"briefs\":[\"a\"],\"count\":2}", "error: count is 2 with 1 briefs"},
        {"fork", "{\"briefs\":[\"a\",\"\"]}", "error: brief 2 has 0 bytes: 1 to 32768"},
        {"fork", "{\"briefs\":[\"a\",1]}", "items of type string"},
        {"fork", "{\"count\":1,\"join\":\"most\"}", "must be one of: all, any, passing"},
        {"message", "{\"name\":\"a\",\"message\":\"\"}", "error: the message has 0 bytes"},
        {"message", "{\"name\":\"\",\"message\":\"x\"}", "error: \"\" is no name of an agent"},
        {"wait", "{\"names\":[\"a\",\"../x\"]}", "error: \"../x\" is no name of an agent"},
        {"wait", "{\"timeout\":0}", "error: timeout is 0: 1 to 2592000000"},
        {"receive", "{\"timeout\":2592000001}", "error: timeout is 2592000001: 1 to"},
        {"receive", "{\"name\":\"a\"}", "unknown parameter 'name'"},
        {"cancel", "{\"names\":[]}", "error: 0 names: 1 to 32 agents to cancel"},
        {"merge", "{\"name\":\"a\\u0007\"}", "is no name of an agent"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        expect_refusal(bench, cases[i].tool, cases[i].arguments, cases[i].text);
    }
}

/* {"KEY":"xxx..."} or {"KEY":["x","x",...]} */
static const char *many(struct buffer *out, const char *key, size_t count, bool is_list) {
    buffer_clear(out);
    struct error *error = &must_error;
    MUST(buffer_append_format(out, error, "{\"%s\":%s", key, is_list ? "[" : "\""));
    for (size_t i = 0; i < count; i++) {
        MUST(buffer_append_text(out, is_list ? (i == 0 ? "\"x\"" : ",\"x\"") : "x", error));
    }
    MUST(buffer_append_text(out, is_list ? "]}" : "\"}", error));
    return buffer_text(out);
}

static void bounds_are_exact(void **state) {
    struct bench *bench = *state;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    crowd.answer = "yes";
    const size_t brief_max = TOOL_AGENTS_BRIEF_BYTES_MAX;
    const struct tool_agents_ask *ask =
        expect_ask(bench, "spawn", many(&text, "task", brief_max, false), TOOL_AGENTS_SPAWN, "yes");
    assert_int_equal(ask->briefs[0].length, brief_max);
    const char *over = many(&text, "task", brief_max + 1, false);
    expect_refusal(bench, "spawn", over, "error: the task has 32769 bytes: 1 to 32768");
    ask = expect_ask(bench, "fork", many(&text, "briefs", 32, true), TOOL_AGENTS_FORK, "yes");
    assert_true(ask->brief_count == 32 && ask->count == 32);
    expect_refusal(bench, "fork", many(&text, "briefs", 33, true), "error: 33 briefs: at most 32");
    ask = expect_ask(bench, "wait", many(&text, "names", 32, true), TOOL_AGENTS_WAIT, "yes");
    assert_int_equal(ask->name_count, 32);
    expect_refusal(
        bench, "wait", many(&text, "names", 9000, true), "error: 9000 names: at most 32"
    );
    (void)expect_ask(bench, "merge", many(&text, "name", 31, false), TOOL_AGENTS_MERGE, "yes");
    expect_refusal(bench, "merge", many(&text, "name", 32, false), "is no name of an agent");
}

/* ---- dialects ---------------------------------------------------------------------------------- */

static void claude_has_its_own_words(void **state) {
    (void)state;
    struct bench bench;
    open_crowd(&bench, TOOL_DIALECT_CLAUDE);
    /* The call waits: a spawn, then a wait for what was started. */
    bench_expect(
        &bench,
        "Agent",
        "{\"description\":\"d\",\"prompt\":\"look\",\"subagent_type\":\"Explore\"}",
        TOOL_OK,
        "@/agent-7"
    );
    assert_int_equal(crowd.count, 2);
    assert_int_equal(crowd.asks[0].verb, TOOL_AGENTS_SPAWN);
    assert_string_equal(crowd.texts[0], "look@");
    assert_int_equal(crowd.asks[1].verb, TOOL_AGENTS_WAIT);
    (void)expect_ask(
        &bench,
        "Agent",
        "{\"description\":\"d\",\"prompt\":\"look\",\"name\":\"scout\",\"run_in_background\":true}",
        TOOL_AGENTS_SPAWN,
        "look@scout"
    );
    const struct tool_agents_ask *ask = expect_ask(
        &bench,
        "Agent",
        "{\"description\":\"d\",\"prompt\":\"look\",\"subagent_type\":\"fork\"}",
        TOOL_AGENTS_FORK,
        "look@"
    );
    assert_int_equal(ask->count, 1);
    (void)expect_ask(
        &bench,
        "SendMessage",
        "{\"to\":\"scout\",\"message\":\"hi\",\"summary\":\"greets\"}",
        TOOL_AGENTS_SEND,
        "hi@/scout"
    );
    (void)expect_ask(&bench, "AgentFork", "{\"count\":2}", TOOL_AGENTS_FORK, "@");
    (void)expect_ask(&bench, "AgentWait", "{\"names\":[\"a\"]}", TOOL_AGENTS_WAIT, "@/a");
    (void)expect_ask(&bench, "AgentStop", "{\"names\":[\"a\"]}", TOOL_AGENTS_CANCEL, "@/a");
    (void)expect_ask(&bench, "AgentMerge", "{\"name\":\"a\"}", TOOL_AGENTS_MERGE, "@/a");
    (void)expect_ask(&bench, "ReceiveMessage", "{}", TOOL_AGENTS_RECEIVE, "@");
    /* Nothing was started: nothing is waited for. */
    crowd.status = TOOL_REFUSED;
    crowd.count = 0;
    bench_expect(
        &bench, "Agent", "{\"description\":\"d\",\"prompt\":\"look\"}", TOOL_REFUSED, "look@"
    );
    assert_int_equal(crowd.count, 1);
    bench_close(&bench);
}

static void codex_has_its_own_words(void **state) {
    (void)state;
    struct bench bench;
    open_crowd(&bench, TOOL_DIALECT_CODEX);
    (void)expect_ask(
        &bench,
        "spawn_agent",
        "{\"message\":\"look\",\"agent_type\":\"worker\",\"fork_context\":false}",
        TOOL_AGENTS_SPAWN,
        "look@"
    );
    (void)expect_ask(
        &bench,
        "spawn_agent",
        "{\"message\":\"look\",\"fork_context\":true}",
        TOOL_AGENTS_FORK,
        "look@"
    );
    (void)expect_ask(
        &bench,
        "send_input",
        "{\"target\":\"a\",\"message\":\"hi\",\"interrupt\":false}",
        TOOL_AGENTS_SEND,
        "hi@/a"
    );
    const struct tool_agents_ask *ask = expect_ask(
        &bench,
        "wait_agent",
        "{\"targets\":[\"a\",\"b\"],\"timeout_ms\":30000}",
        TOOL_AGENTS_WAIT,
        "@/a/b"
    );
    assert_true(ask->join == TOOL_AGENTS_ANY && ask->time_ms == 30000);
    (void)expect_ask(&bench, "close_agent", "{\"target\":\"a\"}", TOOL_AGENTS_CANCEL, "@/a");
    (void)expect_ask(&bench, "merge_agent", "{\"target\":\"a\"}", TOOL_AGENTS_MERGE, "@/a");
    (void)expect_ask(&bench, "fork_agents", "{\"briefs\":[\"a\"]}", TOOL_AGENTS_FORK, "a@");
    (void)expect_ask(&bench, "receive_message", "{}", TOOL_AGENTS_RECEIVE, "@");
    bench_close(&bench);
}

/* ---- what is offered --------------------------------------------------------------------------- */

static void declarations(
    enum tool_dialect dialect, uint64_t set, const struct tool_agents *who, struct buffer *out
) {
    struct bench bench;
    const struct tool_context_options options = {.set = set, .dialect = dialect, .agents = who};
    bench_open(&bench, NULL, &options);
    buffer_clear(out);
    struct json_writer writer;
    json_writer_init(&writer, out, &must_error);
    tool_context_declarations(bench.context, &writer);
    MUST(json_writer_finish(&writer));
    bench_close(&bench);
}

/* All agents of a swarm share the prompt's beginning: what is declared depends on dialect and set only,
 * and what others are offered stays where it was. */
static void agents_stand_behind_the_others_and_only_with_a_host(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer with = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer again = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer without = {NULL, 0, 0, 0};
    buffer_init(&with, BUFFER_CEILING_DEFAULT);
    buffer_init(&again, BUFFER_CEILING_DEFAULT);
    buffer_init(&without, BUFFER_CEILING_DEFAULT);
    const uint64_t ours = tool_set_agents();
    size_t count = 0;
    for (size_t i = 0; i < tool_count(); i++) {
        bool is_ours = (ours >> i & 1U) != 0;
        assert_true(!is_ours || tool_at(i)->effects == 0 || tool_at(i)->effects == TOOL_WRITES);
        assert_true(is_ours || count == 0); /* the last ones */
        count += is_ours;
        for (size_t dialect = 0; is_ours && dialect < TOOL_DIALECT_COUNT; dialect++) {
            assert_non_null(tool_form(i, (enum tool_dialect)dialect, ours));
            assert_int_equal(tool_set_default((enum tool_dialect)dialect) & ours, 0);
        }
    }
    assert_int_equal(count, 7);
    for (size_t i = 0; i < TOOL_DIALECT_COUNT; i++) {
        enum tool_dialect dialect = (enum tool_dialect)i;
        declarations(dialect, tool_set_all(), &agents, &with);
        declarations(dialect, tool_set_all(), &agents, &again);
        declarations(dialect, tool_set_all(), NULL, &without);
        assert_true(view_equals(buffer_view(&with), buffer_view(&again)));
        struct view shared = view_slice(buffer_view(&without), 0, without.length - 1);
        assert_true(with.length > without.length + 500);
        assert_true(view_starts_with(buffer_view(&with), shared)); /* but for the last bracket */
    }
}

/* ---- answers ----------------------------------------------------------------------------------- */

static void answers_are_made_harmless_and_cut(void **state) {
    struct bench *bench = *state;
    crowd.answer = "agent-1: done\x07\xff";
    bench_expect(bench, "wait", "{}", TOOL_OK, "agent-1: done\\x07\xef\xbf\xbd");
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    while (text.length <= TOOL_TEXT_BYTES_DEFAULT) {
        MUST(buffer_append_text(&text, "a line of a result\n", &must_error));
    }
    crowd.answer = buffer_text(&text);
    bench_expect_part(bench, "wait", "{}", TOOL_OK, "\n[all of it: read of \"output:");
    assert_true(bench->result.text_is_truncated);
    crowd.answer = "error: no such agent";
    crowd.status = TOOL_ERROR;
    bench_expect(bench, "merge", "{\"name\":\"a\"}", TOOL_ERROR, "error: no such agent");
}

/* A wait outlasts the limit of a call, but not the run. */
static void waits_end_with_the_run(void **state) {
    struct bench *bench = *state;
    tool_context_limit_time(bench->context, 5 * (int64_t)TOOL_TIME_MS_DEFAULT);
    const struct tool_agents_ask *ask = expect_ask(bench, "wait", "{}", TOOL_AGENTS_WAIT, "@");
    assert_int_equal(ask->time_ms, 5 * TOOL_TIME_MS_DEFAULT);
    ask = expect_ask(bench, "receive", "{\"timeout\":2000000}", TOOL_AGENTS_RECEIVE, "@");
    assert_int_equal(ask->time_ms, 5 * TOOL_TIME_MS_DEFAULT);
    ask = expect_ask(bench, "wait", "{\"timeout\":9}", TOOL_AGENTS_WAIT, "@");
    assert_int_equal(ask->time_ms, 9);
    ask =
        expect_ask(bench, "spawn", "{\"task\":\"x\",\"time_ms\":2000000}", TOOL_AGENTS_SPAWN, "x@");
    assert_int_equal(
        ask->time_ms, 2000000
    ); /* of the other agent: the host knows what it may have */
    tool_context_limit_time(bench->context, 0);
    ask = expect_ask(bench, "wait", "{}", TOOL_AGENTS_WAIT, "@");
    assert_int_equal(ask->time_ms, 0);
}

static void *cancel_when_blocked(void *context) {
    while (!atomic_load(&crowd.blocked)) {
        (void)poll(NULL, 0, 1);
    }
    tool_cancel(context);
    return NULL;
}

static void blocked_call_is_cancelled(void **state) {
    (void)state;
    static const struct {
        enum tool_dialect dialect;
        const char *name, *arguments;
        size_t asks; /* of which the last one blocks */
    } calls[] = {
        {TOOL_DIALECT_HEARTH, "wait", "{}", 1},
        {TOOL_DIALECT_HEARTH, "fork", "{\"count\":2}", 1},
        {TOOL_DIALECT_CLAUDE, "Agent", "{\"description\":\"d\",\"prompt\":\"p\"}", 2},
    };
    for (size_t i = 0; i < COUNT_OF(calls); i++) {
        struct bench bench;
        open_crowd(&bench, calls[i].dialect);
        crowd.blocks_at = calls[i].asks;
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, cancel_when_blocked, bench.context), 0);
        const char *name = calls[i].name;
        bench_expect(&bench, name, calls[i].arguments, TOOL_CANCELLED, "error: cancelled");
        assert_int_equal(pthread_join(other, NULL), 0);
        assert_int_equal(crowd.count, calls[i].asks);
        /* Later ones do not begin. */
        crowd.count = 0;
        bench_expect(&bench, name, calls[i].arguments, TOOL_CANCELLED, "error: cancelled");
        assert_int_equal(crowd.count, 0);
        bench_close(&bench);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(claude_has_its_own_words),
        cmocka_unit_test(codex_has_its_own_words),
        cmocka_unit_test(agents_stand_behind_the_others_and_only_with_a_host),
        cmocka_unit_test(blocked_call_is_cancelled),
        cmocka_unit_test_setup_teardown(answers_are_made_harmless_and_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(waits_end_with_the_run, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_out_of_bounds_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(bounds_are_exact, setup, teardown),
        cmocka_unit_test_setup_teardown(each_tool_asks_for_its_verb, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
