/* The public servers "filesystem" and "everything" of the Model Context Protocol, as npm installs them into
 * the directory $HEARTH_TEST_MCP (tests/run_mcp_public does it). Skipped without the variable. In the sandbox
 * where we are root, whose directory a command cannot change; trusted otherwise, as the sandbox does not show
 * what its own user owns. */
#include "tools_support.h"

#include <unistd.h>

#include "tools/tool_mcp.h"

static struct sandbox *sandbox; /* opened once: the probe runs a command */
static const char *installed;

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    struct tool_context_options options = {.set = tool_set_all()};
    bench_open(bench, sandbox, &options);
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

static void add(struct bench *bench, const char *name, const char *argument) {
    char script[1024];
    const char *const read_only[] = {installed};
    bool is_trusted = geteuid() != 0;
    (void)snprintf(
        script,
        sizeof script,
        "%s/node_modules/@modelcontextprotocol/server-%s/dist/index.js",
        installed,
        name
    );
    const char *const command[] = {"/usr/bin/node", script, argument};
    const struct tool_mcp_options options = {
        .name = name,
        .command = command,
        .command_count = COUNT_OF(command),
        .read_only = read_only,
        .read_only_count = is_trusted ? 0 : 1,
        .is_trusted = is_trusted,
    };
    MUST(tool_context_add_server(bench->context, &options, &must_error));
}

static void filesystem_server_reads_and_writes_the_workspace_only(void **state) {
    struct bench *bench = *state;
    const char *root = geteuid() == 0 ? "/workspace" : bench->workspace;
    char arguments[PATH_BYTES * 2];
    add(bench, "filesystem", root);
    assert_non_null(
        tool_context_find(bench->context, view_of_text("mcp__filesystem__read_text_file"))
    );
    (void)snprintf(
        arguments, sizeof arguments, "{\"path\":\"%s/a.txt\",\"content\":\"one\\ntwo\\n\"}", root
    );
    bench_expect_part(bench, "mcp__filesystem__write_file", arguments, TOOL_OK, "Successfully");
    bench_expect_part(bench, "shell", "{\"command\":\"cat a.txt\"}", TOOL_OK, "one\ntwo");
    (void)snprintf(arguments, sizeof arguments, "{\"path\":\"%s/a.txt\"}", root);
    bench_expect_part(bench, "mcp__filesystem__read_text_file", arguments, TOOL_OK, "one\ntwo");
    bench_expect_part(
        bench,
        "mcp__filesystem__read_text_file",
        "{\"path\":\"/etc/passwd\"}",
        TOOL_ERROR,
        "Access denied"
    );
    bench_expect_part(
        bench, "mcp__filesystem__read_text_file", "{\"wrong\":1}", TOOL_ERROR, "path"
    );
    (void)snprintf(arguments, sizeof arguments, "{\"path\":\"%s\"}", root);
    bench_expect_part(bench, "mcp__filesystem__list_directory", arguments, TOOL_OK, "[FILE] a.txt");
}

static void everything_server_shows_what_there_is(void **state) {
    struct bench *bench = *state;
    add(bench, "everything", "stdio");
    size_t count = tool_context_count(bench->context);
    bench_expect_part(bench, "mcp__everything__echo", "{\"message\":\"hello\"}", TOOL_OK, "hello");
    // Every tool that it lists is called without arguments: an answer or an error, never a fault.
    tool_context_limit_time(bench->context, 3000);
    for (size_t i = 0; i < count; i++) {
        const struct tool_descriptor *tool = tool_context_at(bench->context, i);
        if (strncmp(tool->name, "mcp__", 5) == 0) {
            bench_call(bench, tool->name, "{}");
            print_message(
                "%s: %s, %.60s\n",
                tool->name,
                tool_status_name(bench->result.status),
                buffer_text(&bench->result.text)
            );
            assert_true(bench->result.text.length > 0);
        }
    }
    struct tool_mcp_state about;
    tool_context_server_state(bench->context, 0, &about);
    print_message(
        "%s, %zu tools, started %u times\n", about.server, about.tool_count, about.start_count
    );
    assert_true(about.tool_count > 5 && about.skipped_count == 0);
}

int main(void) {
    installed = getenv("HEARTH_TEST_MCP");
    if (installed == NULL || access("/usr/bin/node", X_OK) != 0) {
        (void
        )puts("SKIPPED test_tools_mcp_public: HEARTH_TEST_MCP names no npm directory (or no node)");
        return 77;
    }
    struct error error = {0};
    if (is_failed(sandbox_open(NULL, &sandbox, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        printf("SKIPPED test_tools_mcp_public: %s\n", probe->refusal);
        sandbox_close(sandbox);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            filesystem_server_reads_and_writes_the_workspace_only, setup, teardown
        ),
        cmocka_unit_test_setup_teardown(everything_server_shows_what_there_is, setup, teardown),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sandbox_close(sandbox);
    return failures;
}
