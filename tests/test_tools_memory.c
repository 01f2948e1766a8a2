/* Each allocation of a tool call fails once: the call ends with MEMORY or is not disturbed, and the
 * file it works on is old or new, never half. Leaks are the sanitizer build's to find. */
#include "failing_memory.h"
#include "tools_support.h"

#include "tools/tool_agents.h"
#include "tools/tool_fetch.h"
#include "tools/tool_mcp_message.h"

#define ALLOCATIONS_MAX 5000

/* Returns how many allocations were made to fail until the call went through. */
static size_t fail_each(struct bench *bench, const char *name, const char *arguments) {
    for (size_t nth = 1; nth < ALLOCATIONS_MAX; nth++) {
        bench_put(bench, "a.py", view_of_text("x = 1\r\ny = 2\r\n"));
        tool_result_deinit(&bench->result);
        struct error error = {0};
        failing_memory_arm(nth);
        result status = tool_call(
            bench->context, view_of_text(name), view_of_text(arguments), &bench->result, &error
        );
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        CLEANUP(buffer_deinit) struct buffer content = {NULL, 0, 0, 0};
        bench_get(bench, "a.py", &content);
        struct view now = buffer_view(&content);
        assert_true(
            view_equals_text(now, "x = 1\r\ny = 2\r\n") ||
            view_equals_text(now, "x = 1\r\ny = 3\r\n") || view_equals_text(now, "whole")
        );
        if (!fired) {
            assert_true(is_ok(status));
            return nth - 1;
        }
        if (is_failed(status)) {
            assert_int_equal(status.code, RESULT_MEMORY);
        }
    }
    fail_msg("%s needs over %d allocations", name, ALLOCATIONS_MAX);
    return 0;
}

static result fetch_page(
    void *context,
    const struct tool_fetch_request *request,
    struct tool_fetch_answer *out,
    struct error *error
) {
    (void)context;
    (void)request;
    out->status = 200;
    return buffer_append_text(&out->body, "<html><p>a &amp; b<p><a href='/x'>c</a>", error);
}

static result crowd_ask(
    void *context,
    const struct tool_agents_ask *ask,
    struct tool_agents_answer *answer,
    struct error *error
) {
    (void)context;
    answer->status = TOOL_OK;
    memcpy(answer->started, "agent-1", sizeof "agent-1");
    return buffer_append_format(answer->text, error, "%zu agents", ask->brief_count);
}

static const struct tool_agents agents = {NULL, crowd_ask};

static void fail_calls(uint64_t set, const char *const calls[][2], size_t count) {
    struct bench bench;
    const struct tool_context_options options = {
        .set = set, .strictness = TOOL_STRICT_NEVER, .fetch = fetch_page, .agents = &agents};
    bench_open(&bench, NULL, &options);
    size_t failed = 0;
    for (size_t i = 0; i < count; i++) {
        failed += fail_each(&bench, calls[i][0], calls[i][1]);
    }
    assert_true(failed > count);
    print_message("%zu failed allocations\n", failed);
    bench_close(&bench);
}

static void every_failed_allocation_is_told(void **state) {
    (void)state;
    static const char *const calls[][2] = {
        {"read", "{\"path\":\"a.py\"}"},
        {"edit", "{\"path\":\"a.py\",\"old\":\"x = 1\\ny = 2\",\"new\":\"x = 1\\ny = 3\"}"},
        {"write", "{\"path\":\"a.py\",\"content\":\"whole\"}"},
        {"write", "{\"path\":\"d/e/a.py\",\"content\":\"x\"}"},
        {"finish", "{\"summary\":\"done\"}"},
        {"read", "{\"path\":\"gone\"}"},
        {"nothing", "{}"},
        {"read", "{}"},
    };
    static const char *const wide_calls[][2] = {
        {"read", "{\"path\":\"a.py\"}"},
        {"edit",
         "{\"path\":\"a.py\",\"edits\":[{\"old\":\"x = 1\\ny = 2\",\"new\":\"x = 1\\ny = 3\"}]}"},
        {"list", "{}"},
        {"search", "{\"text\":\"x\"}"},
        {"list", "{\"depth\":3}"},
        {"glob", "{\"pattern\":\"*.{py,c}\"}"},
        {"grep", "{\"pattern\":\"x( =)?\",\"context\":1}"},
        {"todo", "{\"todos\":[{\"content\":\"a\",\"status\":\"pending\"}]}"},
        {"apply_patch",
         "{\"patch\":\"*** Begin Patch\\n*** Update File: a.py\\n-y = 2\\n+y = 3\\n*** End "
         "Patch\"}"},
        {"image", "{\"path\":\"a.py\"}"},
        {"fetch", "{\"url\":\"http://example.org/\"}"},
        {"fork", "{\"briefs\":[\"a\",\"b\"],\"join\":\"any\"}"},
        {"cancel", "{\"names\":[]}"},
    };
    fail_calls(TOOL_SET_TRAINED, calls, COUNT_OF(calls));
    fail_calls(tool_set_all(), wide_calls, COUNT_OF(wide_calls));
}

static void count_line(void *context, struct view line, bool is_overlong) {
    size_t *lines = context;
    struct mcp_message message;
    assert_false(is_overlong);
    if (is_ok(mcp_message_parse(line, &message, NULL))) {
        assert_true(message.kind == MCP_RESULT || message.kind == MCP_REQUEST);
        *lines += 1;
    }
    mcp_message_deinit(&message);
}

/* Of a message for which there is no memory nothing is left, and no other takes its place. */
static void messages_are_read_whole_or_not_at_all(void **state) {
    (void)state;
    static const char text[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":[1,2,\"b\"]}}\n"
                               "{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"ping\"}\n";
    bool fired = true;
    size_t nth = 1;
    for (; fired && nth < ALLOCATIONS_MAX; nth++) {
        struct mcp_reader reader;
        size_t lines = 0;
        mcp_reader_init(&reader);
        failing_memory_arm(nth);
        result status = OK;
        for (size_t at = 0; at < sizeof text - 1 && is_ok(status); at += 20) {
            struct view part = view_slice(view_of_text(text), at, 20);
            status = mcp_reader_take(&reader, part, count_line, &lines, NULL);
        }
        fired = failing_memory_fired();
        assert_true(fired ? lines < 2 : lines == 2);
        mcp_reader_deinit(&reader);
    }
    assert_true(nth > 5);
}

static void context_is_made_whole_or_not_at_all(void **state) {
    (void)state;
    struct tool_context_options options = {0};
    options.workspace = "/tmp";
    options.clock = clock_real();
    for (size_t nth = 1; nth < ALLOCATIONS_MAX; nth++) {
        struct tool_context *context = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result status = tool_context_create(&context, &options, &error);
        bool fired = failing_memory_fired();
        failing_memory_arm(0);
        assert_int_equal(is_ok(status), context != NULL);
        tool_context_destroy(context);
        if (!fired) {
            assert_true(is_ok(status) && nth > 1);
            return;
        }
        assert_int_equal(status.code, RESULT_MEMORY);
    }
    fail_msg("a context needs over %d allocations", ALLOCATIONS_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failed_allocation_is_told),
        cmocka_unit_test(messages_are_read_whole_or_not_at_all),
        cmocka_unit_test(context_is_made_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
