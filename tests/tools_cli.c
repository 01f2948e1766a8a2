/* The tools without the rest of Hearth, for compare_tools: tools_cli DIRECTORY reads lines
 * NAME<tab>JSON and writes each result's text as a JSON string. Exit 77 where commands are refused. */
#include "sandbox/sandbox.h"
#include "tools/tool.h"

static result write_line(struct view text, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    json_writer_init(&writer, &line, error);
    json_write_string(&writer, text);
    TRY(json_writer_finish(&writer));
    (void)puts(buffer_text(&line));
    (void)fflush(stdout);
    return OK;
}

static result answer_lines(struct tool_context *context, struct error *error) {
    CLEANUP(free_cleanup) char *line = NULL;
    size_t capacity = 0;
    for (;;) {
        ssize_t length = getline(&line, &capacity, stdin);
        if (length <= 0) {
            return OK;
        }
        struct view text = view_of(line, (size_t)length);
        size_t tab = view_find(text, view_of_text("\t"), 0);
        if (tab == SIZE_MAX) {
            FAIL(error, INVALID_INPUT, "a line without a tab");
        }
        struct view arguments = view_slice(text, tab + 1, text.length - tab - 1);
        CLEANUP(tool_result_deinit) struct tool_result called;
        TRY(tool_call(context, view_slice(text, 0, tab), arguments, &called, error));
        TRY(write_line(buffer_view(&called.text), error));
    }
}

static result run(const char *directory, struct sandbox *sandbox, struct error *error) {
    struct sandbox_policy policy = sandbox_policy_default(directory);
    struct tool_context_options options = {0};
    options.workspace = directory;
    options.sandbox = sandbox;
    options.policy = &policy;
    options.clock = clock_real();
    CLEANUP(tool_context_cleanup) struct tool_context *context = NULL;
    TRY(tool_context_create(&context, &options, error));
    return answer_lines(context, error);
}

int main(int argc, char **argv) {
    struct error error = {0};
    struct sandbox *sandbox = NULL;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: tools_cli DIRECTORY\n");
        return 2;
    }
    struct sandbox_options options = {.helper_directory = TEST_BINARY_DIR "/sandbox"};
    if (is_failed(sandbox_open(&options, &sandbox, &error))) {
        (void)fprintf(stderr, "tools_cli: %s\n", error.message);
        return 1;
    }
    int status = 0;
    if (sandbox_get_probe(sandbox)->rung == SANDBOX_REFUSED) {
        (void)fprintf(stderr, "%s\n", sandbox_get_probe(sandbox)->refusal);
        status = 77;
    } else if (is_failed(run(argv[1], sandbox, &error))) {
        (void)fprintf(stderr, "tools_cli: %s\n", error.message);
        status = 1;
    }
    sandbox_close(sandbox);
    return status;
}
