/* MCP servers: tools of a server that behaves, and a server that misbehaves in every way the protocol
 * and a pipe allow. In the real sandbox, and outside of it as a trusted one. Skipped where the machine
 * cannot confine a command. */
#include "tools_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "tools/tool_mcp.h"
#include "tools/tool_mcp_message.h"

static struct sandbox *sandbox; /* opened once: the probe runs a command */

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    struct tool_context_options options = {.set = tool_set_all()};
    bench_open(bench, sandbox, &options);
    CLEANUP(buffer_deinit) struct buffer script = {NULL, 0, 0, 0};
    buffer_init(&script, BUFFER_CEILING_DEFAULT);
    MUST(file_read(TEST_SOURCE_DIR "/tests/mcp_fake.py", &script, &must_error));
    bench_put(bench, "fake.py", buffer_view(&script));
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

static int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

static char server_tag[32]; /* an argument of servers: no other process has this number */

static result add(struct bench *bench, const char *mode, bool is_trusted, int64_t time_ms_max) {
    static const char *const environment[] = {"FAKE=yes"};
    static const char *const reading[] = {"ec*"};
    const char *const command[] = {"/usr/bin/python3", "fake.py", mode, server_tag};
    const struct tool_mcp_options options = {
        .name = "fake",
        .command = command,
        .command_count = COUNT_OF(command),
        .environment = environment,
        .environment_count = 1,
        .reading_tools = reading,
        .reading_tool_count = 1,
        .is_trusted = is_trusted,
        .time_ms_max = time_ms_max,
    };
    return tool_context_add_server(bench->context, &options, &must_error);
}

static void must_add(struct bench *bench, const char *mode) {
    MUST(add(bench, mode, false, 0));
}

static struct tool_mcp_state server_state(struct bench *bench) {
    struct tool_mcp_state found;
    assert_int_equal(tool_context_server_count(bench->context), 1);
    tool_context_server_state(bench->context, 0, &found);
    return found;
}

static unsigned count_servers(void) {
    unsigned count = 0;
    DIR *processes = opendir("/proc");
    assert_non_null(processes);
    for (struct dirent *entry = readdir(processes); entry != NULL; entry = readdir(processes)) {
        char path[300];
        char text[4096];
        (void)snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        int fd = entry->d_name[0] >= '0' && entry->d_name[0] <= '9' ? open(path, O_RDONLY) : -1;
        ssize_t got = fd >= 0 ? read(fd, text, sizeof text) : 0;
        fd_cleanup(&fd);
        count +=
            got > 0 && memmem(text, (size_t)got, server_tag, strlen(server_tag)) != NULL ? 1 : 0;
    }
    assert_int_equal(closedir(processes), 0);
    return count;
}

static void expect_none_running(void) {
    int64_t until = now_ms() + 60000;
    while (count_servers() > 0) {
        assert_true(now_ms() < until);
        (void)usleep(20000);
    }
}

static void call(struct bench *bench, const char *tool, const char *text) {
    char name[64];
    CLEANUP(buffer_deinit) struct buffer arguments = {NULL, 0, 0, 0};
    buffer_init(&arguments, BUFFER_CEILING_DEFAULT);
    (void)snprintf(name, sizeof name, "mcp__fake__%s", tool);
    struct json_writer writer;
    json_writer_init(&writer, &arguments, &must_error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "text");
    json_write_text(&writer, text);
    json_write_object_end(&writer);
    MUST(json_writer_finish(&writer));
    bench_call(bench, name, buffer_text(&arguments));
}

static void expect(
    struct bench *bench,
    const char *tool,
    const char *text,
    enum tool_status status,
    const char *want
) {
    call(bench, tool, text);
    assert_string_equal(buffer_text(&bench->result.text), want);
    assert_string_equal(tool_status_name(bench->result.status), tool_status_name(status));
}

static void expect_part(
    struct bench *bench,
    const char *tool,
    const char *text,
    enum tool_status status,
    const char *want
) {
    call(bench, tool, text);
    if (strstr(buffer_text(&bench->result.text), want) == NULL) {
        fail_msg("'%.500s' lacks '%s'", buffer_text(&bench->result.text), want);
    }
    assert_string_equal(tool_status_name(bench->result.status), tool_status_name(status));
}

/* ---- a server that behaves ------------------------------------------------------------------ */

static void tools_are_listed_behind_the_built_in_ones(void **state) {
    struct bench *bench = *state;
    size_t before = tool_context_count(bench->context);
    must_add(bench, "");
    assert_int_equal(tool_context_count(bench->context), before + 14); // five pages of three
    const struct tool_descriptor *first = tool_context_at(bench->context, before);
    assert_string_equal(first->name, "mcp__fake__echo");
    assert_string_equal(first->description, "does it");
    assert_string_equal(
        first->schema, "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"}}}"
    );
    assert_int_equal(first->effects, TOOL_FOREIGN | TOOL_READS);
    const struct tool_descriptor *other = tool_context_at(bench->context, before + 1);
    assert_int_equal(other->effects, TOOL_FOREIGN | TOOL_READS | TOOL_WRITES | TOOL_EXECUTES);
    struct tool_mcp_state about = server_state(bench);
    assert_string_equal(about.name, "fake");
    assert_string_equal(about.server, "fake? 1");
    assert_true(about.is_running && !about.is_trusted);
    assert_int_equal(about.tool_count, 14);
    assert_int_equal(about.skipped_count, 0);
    assert_int_equal(about.start_count, 1);
}

static void results_become_text(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    expect(bench, "echo", "h\xC3\xA9\n\x1b[31m", TOOL_OK, "echo: h\xC3\xA9\n\\x1b[31m");
    expect(bench, "fail", "", TOOL_ERROR, "error: no such thing");
    expect(bench, "structured", "", TOOL_OK, "{\"answer\": 42}");
    expect(bench, "nothing", "", TOOL_OK, "(no text)");
    expect(
        bench,
        "image",
        "",
        TOOL_OK,
        "[image image/png, 300 bytes left out]\n[resource file:///a text/plain]\ninside\n"
        "[resource_link file:///b]"
    );
    expect(
        bench, "raw_error", "", TOOL_ERROR, "error: the server fake says: bad\\x1b luck (-32000)"
    );
    bench_expect_part(bench, "mcp__fake__unknown", "{}", TOOL_REFUSED, "unknown tool");
    bench_expect_part(bench, "mcp__fake__echo", "[]", TOOL_REFUSED, "must be an object");
    // Newlines between what the model wrote do not break the line that the server reads.
    bench_expect(bench, "mcp__fake__echo", "{\n\"text\" :\n\"a\\nb\"\n}", TOOL_OK, "echo: a\nb");
}

static void long_results_are_cut_and_kept(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    CLEANUP(free_cleanup) char *text = malloc(300001);
    assert_non_null(text);
    memset(text, 'x', 300000);
    text[300000] = '\0';
    for (size_t i = 99; i < 300000; i += 100) {
        text[i] = '\n';
    }
    call(bench, "echo", text);
    assert_int_equal(bench->result.output_bytes, 300006);
    assert_true(bench->result.text_is_truncated);
    assert_true(bench->result.text.length < 40000);
    assert_non_null(strstr(buffer_text(&bench->result.text), "read of \"output:1\""));
}

static void server_runs_in_the_sandbox(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    expect(bench, "env", "", TOOL_OK, "/workspace yes 1000");
    expect(bench, "write", "/usr/x", TOOL_ERROR, "error: Read-only file system");
    expect(bench, "write", "made.txt", TOOL_OK, "ok");
    bench_expect_part(bench, "shell", "{\"command\":\"cat made.txt\"}", TOOL_OK, "written");
}

static void trusted_server_runs_outside(void **state) {
    struct bench *bench = *state;
    MUST(add(bench, "", true, 0));
    assert_true(server_state(bench).is_trusted);
    call(bench, "env", "");
    char want[PATH_BYTES + 40];
    (void)snprintf(want, sizeof want, "%s yes %u", bench->workspace, (unsigned)getuid());
    assert_string_equal(buffer_text(&bench->result.text), want);
    expect_part(bench, "ask", "", TOOL_OK, bench->workspace);
    expect_part(
        bench, "crash", "", TOOL_ERROR, "it ended with status 3: fatal: \\x1b[1mout of cheese"
    );
    expect(bench, "echo", "again", TOOL_OK, "echo: again");
    bench_close(bench);
    expect_none_running();
    assert_int_equal(setup(state), 0);
    free(bench);
}

static void requests_of_the_server_are_answered_or_refused(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    expect(
        bench,
        "ask",
        "",
        TOOL_OK,
        "[{}, {\"roots\": [{\"uri\": \"file:///workspace\", \"name\": \"workspace\"}]}, -32601, "
        "-32601, "
        "-32601]"
    );
}

/* ---- time ----------------------------------------------------------------------------------- */

static void slow_call_is_given_up_and_told_so(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    tool_context_limit_time(bench->context, 700);
    expect(bench, "slow", "30", TOOL_TIMEOUT, "error: stopped after 700 ms");
    tool_context_limit_time(bench->context, 0); // what is answered has the time that it takes
    expect(bench, "cancels", "", TOOL_OK, "[\"timeout\"]");
    tool_context_limit_time(bench->context, 300);
    expect(bench, "slow", "30", TOOL_TIMEOUT, "error: stopped after 300 ms");
    // A late answer is nobody else's.
    expect(bench, "slow", "1", TOOL_TIMEOUT, "error: stopped after 300 ms");
    tool_context_limit_time(bench->context, 0);
    for (int i = 0; i < 20; i++) {
        expect(bench, "echo", "mine", TOOL_OK, "echo: mine");
        (void)usleep(50000);
    }
    assert_int_equal(server_state(bench).start_count, 1); // slow is not dead
}

static void server_has_a_limit_of_its_own(void **state) {
    struct bench *bench = *state;
    MUST(add(bench, "", false, 700));
    tool_context_limit_time(bench->context, 600000);
    expect(bench, "slow", "300", TOOL_TIMEOUT, "error: stopped after 700 ms");
}

static void hanging_server_is_started_again(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    tool_context_limit_time(bench->context, 500);
    expect(bench, "misbehave", "stop", TOOL_TIMEOUT, "error: stopped after 500 ms");
    tool_context_limit_time(bench->context, 0);
    expect(bench, "echo", "back", TOOL_OK, "echo: back");
    assert_int_equal(server_state(bench).start_count, 2);
}

static void *cancel_soon(void *context) {
    (void)usleep(300000);
    tool_cancel(context);
    return NULL;
}

static void *cancel_slow(void *context) {
    const struct bench *bench = context;
    char path[PATH_BYTES + 20];
    (void)snprintf(path, sizeof path, "%s/slow-begun", bench->workspace);
    while (access(path, F_OK) != 0) { // without end: the call is over when it is cancelled
        (void)usleep(10000);
    }
    tool_cancel(bench->context);
    return NULL;
}

static void cancel_ends_a_call_but_not_the_server(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_slow, bench), 0);
    expect(bench, "slow", "300", TOOL_CANCELLED, "error: cancelled");
    assert_int_equal(pthread_join(thread, NULL), 0);
    tool_cancel_end(bench->context);
    expect(bench, "cancels", "", TOOL_OK, "[\"cancelled by the user\"]");
    assert_int_equal(server_state(bench).start_count, 1);
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void crash_is_told_and_the_next_call_starts_again(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    for (unsigned i = 1; i <= 5; i++) {
        expect(
            bench,
            "crash",
            "",
            TOOL_ERROR,
            "error: the server fake is gone: it ended with status 3: fatal: \\x1b[1mout of cheese"
        );
        assert_false(server_state(bench).is_running);
        expect(bench, "echo", "again", TOOL_OK, "echo: again");
        assert_int_equal(server_state(bench).start_count, i + 1);
    }
    expect_part(bench, "crash", "", TOOL_ERROR, "is gone");
    expect_part(
        bench,
        "echo",
        "",
        TOOL_ERROR,
        "error: the server fake cannot be started: it was started 6 "
        "times already; the last time it ended with status 3"
    );
    expect_none_running();
}

static void server_that_does_not_start_is_one_line(void **state) {
    struct bench *bench = *state;
    static const struct {
        const char *mode;
        enum result_code code;
        const char *part;
    } cases[] = {
        {"early_exit", RESULT_IO, "MCP server 'fake': it ended with status 7: cannot open my data"},
        {"old", RESULT_UNSUPPORTED, "another protocol than 2025-06-18"},
        {"garbage_forever", RESULT_IO, "lines that are no messages"},
        {"flood", RESULT_IO, "floods us"},
        {"deep", RESULT_IO, "list of tools cannot be read"},
    };
    size_t before = tool_context_count(bench->context);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        result added = add(bench, cases[i].mode, false, 0);
        if (added.code != cases[i].code || strstr(must_error.message, cases[i].part) == NULL) {
            fail_msg("%s: %s", cases[i].mode, must_error.message);
        }
        assert_null(strchr(must_error.message, '\n'));
        assert_int_equal(tool_context_server_count(bench->context), 0);
        assert_int_equal(tool_context_count(bench->context), before);
    }
    expect_none_running();
    const char *const missing[] = {"/no/such/server"};
    struct tool_mcp_options options = {.name = "x", .command = missing, .command_count = 1};
    assert_int_equal(
        tool_context_add_server(bench->context, &options, &must_error).code, RESULT_IO
    );
    assert_non_null(strstr(must_error.message, "status 127"));
    options.is_trusted = true;
    assert_true(is_failed(tool_context_add_server(bench->context, &options, &must_error)));
    options.name = "a__b";
    assert_int_equal(
        tool_context_add_server(bench->context, &options, &must_error).code, RESULT_INVALID_INPUT
    );
    options.name = "ok";
    options.command_count = 0;
    assert_int_equal(
        tool_context_add_server(bench->context, &options, &must_error).code, RESULT_INVALID_INPUT
    );
}

/* Each waits for the others: one after the other none of them would ever answer. */
static void servers_start_beside_each_other(void **state) {
    struct bench *bench = *state;
    size_t before = open_descriptor_count();
    char script[200];
    (void)snprintf(
        script,
        sizeof script,
        "mktemp here.XXXXXX >&2; while [ $(ls here.* | wc -l) -lt 3 ]; do sleep 0.1; done; "
        "exec /usr/bin/python3 fake.py '' %s",
        server_tag
    );
    const char *const meeting[] = {"/bin/sh", "-c", script};
    static const char *const missing[] = {"/no/such/server"};
    struct tool_mcp_start starts[5] = {0};
    static const char *const names[] = {"c", "a", "b", "a", "d"};
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        starts[i].options.name = names[i];
        starts[i].options.command = i == 2 ? missing : meeting;
        starts[i].options.command_count = i == 2 ? 1 : 3;
        starts[i].options.is_trusted = i == 4;
    }
    tool_context_add_servers(bench->context, starts, COUNT_OF(starts));
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        assert_true(atomic_load(&starts[i].is_ready));
        assert_int_equal(is_ok(starts[i].status), i < 2 || i == 4);
    }
    assert_non_null(strstr(starts[2].error.message, "MCP server 'b': "));
    assert_string_equal(
        starts[3].error.message, "MCP server 'a': there is a server of this name already"
    );
    static const char *const added[] = {"c", "a", "d"}; // in the order of the list
    assert_int_equal(tool_context_server_count(bench->context), COUNT_OF(added));
    for (size_t i = 0; i < COUNT_OF(added); i++) {
        struct tool_mcp_state about;
        tool_context_server_state(bench->context, i, &about);
        assert_string_equal(about.name, added[i]);
    }
    bench_expect(bench, "mcp__c__echo", "{\"text\":\"x\"}", TOOL_OK, "echo: x");
    bench_expect(bench, "mcp__d__echo", "{\"text\":\"y\"}", TOOL_OK, "echo: y");
    tool_context_stop_processes(bench->context);
    expect_none_running();
    assert_int_equal(open_descriptor_count(), before);
}

static void cancel_ends_the_start_of_all(void **state) {
    struct bench *bench = *state;
    static const char *const never[] = {"/bin/sleep", "1000"};
    struct tool_mcp_start starts[3] = {0};
    static const char *const names[] = {"a", "b", "c"};
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        starts[i].options.name = names[i];
        starts[i].options.command = never;
        starts[i].options.command_count = 2;
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, bench->context), 0);
    int64_t began_ms = now_ms();
    tool_context_add_servers(bench->context, starts, COUNT_OF(starts));
    assert_true(now_ms() - began_ms < 20000); // not what a start may take
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (size_t i = 0; i < COUNT_OF(starts); i++) {
        assert_int_equal(starts[i].status.code, RESULT_CANCELLED);
    }
    assert_int_equal(tool_context_server_count(bench->context), 0);
    tool_cancel_end(bench->context);
}

static void end_of_the_context_ends_servers_and_leaves_nothing_open(void **state) {
    (void)state;
    size_t before = open_descriptor_count();
    for (int i = 0; i < 2; i++) {
        struct bench *bench = NULL;
        assert_int_equal(setup((void **)&bench), 0);
        must_add(bench, "");
        MUST(
            add(bench, "", false, 500).code == RESULT_INVALID_INPUT ? OK : OK
        ); // the name is taken
        expect(bench, "echo", "x", TOOL_OK, "echo: x");
        assert_true(count_servers() > 0);
        (void)teardown((void **)&bench);
        expect_none_running();
    }
    assert_int_equal(open_descriptor_count(), before);
}

static void stopping_processes_frees_the_workspace_and_servers_come_back(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    tool_context_stop_processes(bench->context);
    expect_none_running();
    struct sandbox *other = NULL; // as another host, which needs the whole workspace
    MUST(sandbox_open(NULL, &other, &must_error));
    MUST(sandbox_check_workspace(other, &bench->policy, &must_error));
    sandbox_close(other);
    expect(bench, "echo", "back", TOOL_OK, "echo: back");
}

/* ---- what is said --------------------------------------------------------------------------- */

static void rubbish_between_messages_is_ignored(void **state) {
    struct bench *bench = *state;
    must_add(bench, "chatty");
    expect(bench, "misbehave", "garbage", TOOL_OK, "survived");
    expect(bench, "misbehave", "stderr", TOOL_OK, "survived");
    expect(bench, "echo", "on", TOOL_OK, "echo: on");
}

static void endless_rubbish_and_floods_end_the_server(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    expect(
        bench,
        "misbehave",
        "garbage_forever",
        TOOL_ERROR,
        "error: the server fake is gone: it writes lines that are no messages of the protocol"
    );
    expect(
        bench,
        "misbehave",
        "flood",
        TOOL_ERROR,
        "error: the server fake is gone: it floods us with messages that nobody asked for"
    );
    expect(bench, "echo", "on", TOOL_OK, "echo: on");
    tool_context_limit_time(bench->context, 3000);
    expect_part(bench, "misbehave", "close", TOOL_TIMEOUT, "stopped after");
}

static void line_over_the_limit_is_skipped(void **state) {
    struct bench *bench = *state;
    must_add(bench, "");
    expect(bench, "misbehave", "long_line", TOOL_OK, "survived"); // it was not the answer
    static const char *const answers[] = {"long_answer", "deep_answer"};
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        const char *want = "error: the answer of the server fake is too large";
        expect(bench, "misbehave", answers[i], TOOL_ERROR, want);
    }
    expect(bench, "echo", "on", TOOL_OK, "echo: on");
    assert_int_equal(server_state(bench).start_count, 1);
    // Megabytes without an end take no memory; after the timeout it does not answer a ping.
    tool_context_limit_time(bench->context, 5000);
    expect_part(bench, "misbehave", "no_newline", TOOL_TIMEOUT, "stopped after 5 s");
    tool_context_limit_time(bench->context, 0);
    expect(bench, "echo", "on", TOOL_OK, "echo: on");
}

static void tools_that_cannot_be_declared_are_left_out(void **state) {
    struct bench *bench = *state;
    size_t before = tool_context_count(bench->context);
    must_add(bench, "odd");
    assert_int_equal(tool_context_count(bench->context), before + 2);
    assert_string_equal(tool_context_at(bench->context, before)->name, "mcp__fake__good");
    const struct tool_descriptor *escaped = tool_context_at(bench->context, before + 1);
    assert_string_equal(escaped->name, "mcp__fake__esc");
    assert_non_null(strstr(escaped->description, "a\\x1b[31mred\\u202e"));
    assert_true(strlen(escaped->description) < 2100);
    assert_int_equal(server_state(bench).skipped_count, 12);
}

static void number_of_tools_and_pages_is_bounded(void **state) {
    struct bench *bench = *state;
    size_t before = tool_context_count(bench->context);
    must_add(bench, "many");
    assert_int_equal(tool_context_count(bench->context), before + 1000);
    assert_int_equal(server_state(bench).skipped_count, 500);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    json_writer_init(&writer, &text, &must_error);
    tool_context_declarations(bench->context, &writer);
    MUST(json_writer_finish(&writer));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    MUST(json_parse(buffer_view(&text), NULL, &document, &must_error));
    assert_int_equal(json_count(json_root(document)), before + 1000);
}

static void lists_without_an_end_or_without_tools_end(void **state) {
    struct bench *bench = *state;
    size_t before = tool_context_count(bench->context);
    must_add(bench, "endless");
    assert_int_equal(tool_context_count(bench->context), before + 14);
    (void)teardown(state);
    static const char *const none[] = {"no_tools", "list_error"};
    for (size_t i = 0; i < COUNT_OF(none); i++) {
        assert_int_equal(setup(state), 0);
        bench = *state;
        must_add(bench, none[i]);
        assert_int_equal(server_state(bench).tool_count, 0);
        if (i == 0) {
            (void)teardown(state);
        }
    }
}

/* ---- messages alone ------------------------------------------------------------------------- */

static void messages_are_told_apart(void **state) {
    (void)state;
    static const struct {
        const char *line;
        enum mcp_kind kind;
    } cases[] = {
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}", MCP_RESULT},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-1,\"message\":\"m\"}}", MCP_ERROR},
        {"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}", MCP_REQUEST},
        {"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\r", MCP_NOTIFICATION},
        {"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"ping\"}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"ping\"}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a b\"}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":[]}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":\"1\",\"result\":{}}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"result\":{}}", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{},\"error\":{\"code\":1,\"message\":\"\"}}",
         MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":\"1\",\"message\":\"\"}}", MCP_INVALID},
        {"{\"id\":1,\"result\":{}}", MCP_INVALID},
        {"[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}]", MCP_INVALID},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}} x", MCP_INVALID},
        {"", MCP_INVALID},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct mcp_message message;
        MUST(mcp_message_parse(view_of_text(cases[i].line), &message, &must_error));
        if (message.kind != cases[i].kind) {
            fail_msg("%s: %d", cases[i].line, (int)message.kind);
        }
        mcp_message_deinit(&message);
    }
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv) {
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    struct error error = {0};
    if (is_failed(sandbox_open(NULL, &sandbox, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        printf("SKIPPED test_tools_mcp: %s\n", probe->refusal);
        sandbox_close(sandbox);
        return 77;
    }
    (void)snprintf(server_tag, sizeof server_tag, "4721.%07ld", (long)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_told_apart),
        BENCH_TEST(tools_are_listed_behind_the_built_in_ones),
        BENCH_TEST(results_become_text),
        BENCH_TEST(long_results_are_cut_and_kept),
        BENCH_TEST(server_runs_in_the_sandbox),
        BENCH_TEST(trusted_server_runs_outside),
        BENCH_TEST(requests_of_the_server_are_answered_or_refused),
        BENCH_TEST(slow_call_is_given_up_and_told_so),
        BENCH_TEST(server_has_a_limit_of_its_own),
        BENCH_TEST(hanging_server_is_started_again),
        BENCH_TEST(cancel_ends_a_call_but_not_the_server),
        BENCH_TEST(crash_is_told_and_the_next_call_starts_again),
        BENCH_TEST(server_that_does_not_start_is_one_line),
        BENCH_TEST(servers_start_beside_each_other),
        BENCH_TEST(cancel_ends_the_start_of_all),
        cmocka_unit_test(end_of_the_context_ends_servers_and_leaves_nothing_open),
        BENCH_TEST(stopping_processes_frees_the_workspace_and_servers_come_back),
        BENCH_TEST(rubbish_between_messages_is_ignored),
        BENCH_TEST(endless_rubbish_and_floods_end_the_server),
        BENCH_TEST(line_over_the_limit_is_skipped),
        BENCH_TEST(tools_that_cannot_be_declared_are_left_out),
        BENCH_TEST(number_of_tools_and_pages_is_bounded),
        BENCH_TEST(lists_without_an_end_or_without_tools_end),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sandbox_close(sandbox);
    return failures;
}
