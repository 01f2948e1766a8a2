/* Calls of the tools about other agents with foreign arguments: a line with the tool's name in any
 * dialect, then the arguments. What reaches the host keeps to the bounds of tool_agents.h; what does not
 * reach it is refused in words. */
#include "tools/tool_agents.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t asked = 0; // of the running call

static void check_name(struct view name) {
    ASSERT(name.length > 0 && name.length < TOOL_AGENTS_NAME_BYTES);
    for (size_t i = 0; i < name.length; i++) {
        unsigned char c = name.data[i];
        ASSERT(
            (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '-' || c == '_'
        );
    }
}

static void check_text(struct view text, size_t bytes_max) {
    ASSERT(text.length > 0 && text.length <= bytes_max && utf8_is_valid(text));
}

/* How many names each verb takes; SIZE_MAX: any. */
static void check_names(const struct tool_agents_ask *ask) {
    bool has_one = ask->verb == TOOL_AGENTS_SEND || ask->verb == TOOL_AGENTS_MERGE;
    bool has_any = ask->verb == TOOL_AGENTS_WAIT || ask->verb == TOOL_AGENTS_CANCEL;
    ASSERT(ask->name_count <= (has_one ? 1 : has_any ? TOOL_AGENTS_MAX : 0));
    ASSERT(ask->name_count >= (has_one || ask->verb == TOOL_AGENTS_CANCEL ? 1 : 0));
    for (size_t i = 0; i < ask->name_count; i++) {
        check_name(ask->names[i]);
    }
}

static result host_ask(
    void *context,
    const struct tool_agents_ask *ask,
    struct tool_agents_answer *answer,
    struct error *error
) {
    (void)context;
    asked += 1;
    check_names(ask);
    bool starts = ask->verb == TOOL_AGENTS_SPAWN || ask->verb == TOOL_AGENTS_FORK;
    ASSERT(starts ? ask->count >= 1 && ask->count <= TOOL_AGENTS_MAX : ask->count == 0);
    ASSERT(ask->brief_count == (size_t)ask->count || ask->brief_count == 0);
    for (size_t i = 0; i < ask->brief_count; i++) {
        check_text(ask->briefs[i], TOOL_AGENTS_BRIEF_BYTES_MAX);
    }
    if (ask->verb == TOOL_AGENTS_SEND) {
        check_text(ask->text, TOOL_AGENTS_MESSAGE_BYTES_MAX);
    }
    if (ask->name.length > 0) {
        check_name(ask->name);
    }
    ASSERT(ask->tokens >= 0 && ask->tokens <= TOOL_AGENTS_TOKENS_MAX);
    ASSERT(ask->time_ms >= 0 && ask->time_ms <= TOOL_AGENTS_TIME_MS_MAX);
    answer->status = TOOL_OK;
    if (ask->verb == TOOL_AGENTS_SPAWN) {
        memcpy(answer->started, "agent-1", sizeof "agent-1");
    }
    return buffer_append_text(answer->text, "done", error);
}

static const struct tool_agents agents = {NULL, host_ask};

static struct tool_context *open_context(enum tool_dialect dialect) {
    const struct tool_context_options options = {
        .workspace = "/",
        .dialect = dialect,
        .set = tool_set_agents(),
        .clock = clock_real(),
        .agents = &agents,
    };
    struct tool_context *context = NULL;
    struct error error;
    ASSERT(is_ok(tool_context_create(&context, &options, &error)));
    return context;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct view input = view_of(data, size);
    size_t end = view_find(input, view_of_text("\n"), 0);
    struct view name = view_slice(input, 0, end);
    struct view arguments =
        end == SIZE_MAX ? view_of(NULL, 0) : view_slice(input, end + 1, SIZE_MAX);
    for (size_t i = 0; i < TOOL_DIALECT_COUNT; i++) {
        CLEANUP(tool_context_cleanup)
        struct tool_context *context = open_context((enum tool_dialect)i);
        CLEANUP(tool_result_deinit) struct tool_result out;
        struct error error;
        asked = 0;
        ASSERT(is_ok(tool_call(context, name, arguments, &out, &error)));
        ASSERT(out.text.length > 0 && utf8_is_valid(buffer_view(&out.text)));
        ASSERT((asked > 0) == (out.status == TOOL_OK) && asked <= 2);
        ASSERT(asked > 0 || out.status == TOOL_REFUSED);
        CLEANUP(tool_subject_deinit) struct tool_subject subject;
        ASSERT(is_ok(tool_subject_find(context, name, arguments, &subject, &error)));
        ASSERT(subject.path_count == 0 && !subject.has_command && subject.url.length == 0);
    }
    return 0;
}
