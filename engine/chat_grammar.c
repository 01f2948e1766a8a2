/* A turn is built from its end: the end of the block, its calls, the text before it, thinking. */
#include "chat_grammar.h"

#include "chat.h"
#include "chat_markers.h"
#include "grammar_vocabulary.h"
#include "schema.h"
#include "schema_internal.h"

struct turn {
    struct grammar *grammar;
    const struct constraint_options *options;
    struct error *error;
    int32_t end_id;
    int32_t think_end_id;
    int32_t dsml_id;
    uint32_t end; /* node */
};

/* Name and parameters of a tool, in either form. */
struct declared {
    struct json_document *function; /* owns the views below, or null */
    struct json_document *parameters;
    struct view name;
    struct json_value schema; /* absent: no parameters */
};

static void declared_deinit(struct declared *declared) {
    json_destroy(declared->function);
    json_destroy(declared->parameters);
}

static result literal(struct turn *turn, const char *text, uint32_t next, uint32_t *out) {
    return grammar_add_literal(turn->grammar, view_of_text(text), next, out, turn->error);
}

/* `<` or `</`, the marker and the text behind it. */
static result
add_tag(struct turn *turn, const char *opening, const char *rest, uint32_t next, uint32_t *out) {
    TRY(literal(turn, rest, next, &next));
    TRY(grammar_add_control(turn->grammar, turn->dsml_id, next, &next, turn->error));
    return literal(turn, opening, next, out);
}

/* ---- tools ---- */

static result read_tool(struct declared *out, const struct chat_tool *tool, struct error *error) {
    if (tool->function.length == 0) {
        out->name = tool->name;
        if (tool->parameters.length > 0) {
            TRY(json_parse(tool->parameters, NULL, &out->parameters, error));
            out->schema = json_root(out->parameters);
        }
        return OK;
    }
    TRY(json_parse(tool->function, NULL, &out->function, error));
    TRY(json_get_string(json_root(out->function), "name", &out->name, error));
    out->schema = json_get(json_root(out->function), "parameters");
    return OK;
}

static result check_name(struct view name, struct error *error) {
    bool is_sound = name.length > 0 && name.length <= CHAT_NAME_BYTES_MAX && utf8_is_valid(name);
    for (size_t i = 0; i < name.length && is_sound; i++) {
        unsigned char c = name.data[i];
        is_sound = c >= 0x20 && c != '"' && c != '<' && c != '>';
    }
    if (!is_sound) {
        FAIL(
            error,
            INVALID_INPUT,
            "tool name '%.*s': no tag can hold it (1 to %d bytes, no quotation mark, '<', '>')",
            VIEW_ARGUMENTS(grammar_shown(name)),
            CHAT_NAME_BYTES_MAX
        );
    }
    return OK;
}

/* ` invoke name="NAME">`, the parameters, the closing tag: what follows the marker of a call. */
static result add_tool(
    struct turn *turn, const struct declared *declared, uint32_t next, struct schema_choice *calls
) {
    bool is_left_out = turn->options->choice == CONSTRAINT_TOOLS_NAMED &&
                       !view_equals(declared->name, turn->options->tool_name);
    if (is_left_out) {
        return OK;
    }
    TRY(check_name(declared->name, turn->error));
    uint32_t node = 0;
    TRY(add_tag(turn, "\n</", " invoke>", next, &node));
    if (json_type(declared->schema) != JSON_ABSENT) {
        result status = schema_add_parameters(
            turn->grammar, declared->schema, turn->dsml_id, node, &node, turn->error
        );
        TRY_NOTE(turn->error, status, "tool '%.*s'", VIEW_ARGUMENTS(grammar_shown(declared->name)));
    }
    TRY(literal(turn, "\">\n", node, &node));
    TRY(grammar_add_literal(turn->grammar, declared->name, node, &node, turn->error));
    TRY(literal(turn, " invoke name=\"", node, &node));
    return schema_choose(calls, node, turn->error);
}

/* `out` has room for all tools. A call of a name must mean one tool. */
static result read_tools(const struct turn *turn, struct declared *out) {
    const struct constraint_options *options = turn->options;
    for (size_t i = 0; i < options->tool_count; i++) {
        TRY(read_tool(&out[i], &options->tools[i], turn->error));
        for (size_t other = 0; other < i; other++) {
            if (view_equals(out[other].name, out[i].name)) {
                FAIL(
                    turn->error,
                    INVALID_INPUT,
                    "tools %zu and %zu are both named '%.*s'",
                    other + 1,
                    i + 1,
                    VIEW_ARGUMENTS(grammar_shown(out[i].name))
                );
            }
        }
    }
    return OK;
}

static result add_tools(struct turn *turn, uint32_t next, struct schema_choice *calls) {
    size_t count = turn->options->tool_count;
    struct declared *declared = calloc(count + 1, sizeof *declared);
    if (declared == NULL) {
        FAIL(turn->error, MEMORY, "no memory for %zu tools", count);
    }
    result added = read_tools(turn, declared);
    for (size_t i = 0; i < count && is_ok(added); i++) {
        added = add_tool(turn, &declared[i], next, calls);
    }
    for (size_t i = 0; i < count; i++) {
        declared_deinit(&declared[i]);
    }
    free(declared);
    return added;
}

/* Calls a line each and the end of the block: what follows `<DSML calls>` and a line end. */
static result add_calls(struct turn *turn, uint32_t *out) {
    const struct constraint_options *options = turn->options;
    struct schema_choice calls = {.grammar = turn->grammar};
    uint32_t after = 0; // one call
    uint32_t close = 0;
    uint32_t first = 0;
    TRY(add_tag(turn, "\n</", " calls>", turn->end, &close));
    TRY(grammar_add_link(turn->grammar, &after, turn->error));
    TRY(add_tools(turn, after, &calls));
    if (!calls.has_any) {
        FAIL(
            turn->error,
            INVALID_INPUT,
            "tool '%.*s' is to be called, but it is not among the %zu declared",
            VIEW_ARGUMENTS(grammar_shown(options->tool_name)),
            options->tool_count
        );
    }
    TRY(grammar_add_control(turn->grammar, turn->dsml_id, calls.node, &first, turn->error));
    TRY(literal(turn, "<", first, &first));
    uint32_t more = close;
    if (!options->one_call) {
        TRY(literal(turn, "\n", first, &more));
        TRY(grammar_add_fork(turn->grammar, close, more, &more, turn->error));
    }
    grammar_aim(turn->grammar, after, more);
    *out = first;
    return OK;
}

/* ---- a turn ---- */

/* The answer: a value of the schema, or free text; nothing where calls are required. */
static result add_answer(struct turn *turn, struct schema_choice *answers, uint32_t block) {
    struct view text = turn->options->response_schema;
    bool is_required = turn->options->choice >= CONSTRAINT_TOOLS_REQUIRED;
    bool has_calls = turn->options->choice != CONSTRAINT_TOOLS_NONE;
    uint32_t node = turn->end;
    if (text.length > 0 && !is_required) {
        CLEANUP(json_cleanup) struct json_document *schema = NULL;
        TRY_NOTE(turn->error, json_parse(text, NULL, &schema, turn->error), "response schema");
        result status = schema_add(turn->grammar, json_root(schema), turn->end, &node, turn->error);
        TRY_NOTE(turn->error, status, "response");
        TRY(schema_choose(answers, node, turn->error));
    }
    if (has_calls) {
        TRY(add_tag(turn, "\n\n<", " calls>\n", block, &block));
        if (!is_required && text.length == 0) {
            TRY(grammar_add_fork(turn->grammar, turn->end, block, &node, turn->error));
        } else {
            TRY(schema_choose(answers, block, turn->error));
        }
    }
    if (text.length == 0 && !is_required) {
        TRY(grammar_add_free(turn->grammar, node, &node, turn->error));
        TRY(schema_choose(answers, node, turn->error));
    }
    return OK;
}

static result add_turn(struct turn *turn, uint32_t *out) {
    const struct constraint_options *options = turn->options;
    struct schema_choice answers = {.grammar = turn->grammar};
    uint32_t block = 0;
    TRY(grammar_add_end(turn->grammar, &turn->end, turn->error));
    if (options->choice != CONSTRAINT_TOOLS_NONE || options->inside_calls) {
        TRY(add_calls(turn, &block));
    }
    if (options->inside_calls) {
        *out = block;
        return OK;
    }
    TRY(add_answer(turn, &answers, block));
    *out = answers.node;
    if (options->thinking) {
        TRY(grammar_add_control(turn->grammar, turn->think_end_id, answers.node, out, turn->error));
        TRY(grammar_add_free(turn->grammar, *out, out, turn->error));
    }
    return OK;
}

static result find_marker(
    const struct grammar_vocabulary *vocabulary,
    enum chat_marker marker,
    int32_t *id,
    struct error *error
) {
    struct view text = chat_marker_text(marker);
    if (!grammar_vocabulary_find_control(vocabulary, text, id)) {
        FAIL(
            error, INVALID_INPUT, "the vocabulary has no control token '%.*s'", VIEW_ARGUMENTS(text)
        );
    }
    return OK;
}

static result check_options(const struct constraint_options *options, struct error *error) {
    int64_t choice = (int64_t)options->choice; /* a value that no name stands for */
    if (choice < CONSTRAINT_TOOLS_NONE || choice > CONSTRAINT_TOOLS_NAMED) {
        FAIL(error, INVALID_INPUT, "there is no choice of tools %lld", (long long)choice);
    }
    if (options->tool_count > CONSTRAINT_TOOLS_MAX) {
        FAIL(error, LIMIT, "%zu tools; at most %d", options->tool_count, CONSTRAINT_TOOLS_MAX);
    }
    if (options->choice >= CONSTRAINT_TOOLS_REQUIRED && options->tool_count == 0) {
        FAIL(error, INVALID_INPUT, "a call is required, but no tool is declared");
    }
    if (options->inside_calls && (options->thinking || options->tool_count == 0)) {
        FAIL(error, INVALID_INPUT, "a turn inside calls needs tools and no thinking");
    }
    return OK;
}

result chat_grammar_create(
    struct grammar **out,
    const struct grammar_vocabulary *vocabulary,
    const struct constraint_options *options,
    struct error *error
) {
    struct constraint_options checked = *options;
    TRY(check_options(&checked, error));
    if (checked.tool_count == 0) {
        checked.choice = CONSTRAINT_TOOLS_NONE;
    }
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    TRY(grammar_create(&grammar, vocabulary, error));
    struct turn turn = {.grammar = grammar, .options = &checked, .error = error};
    TRY(find_marker(vocabulary, CHAT_MARKER_END, &turn.end_id, error));
    TRY(find_marker(vocabulary, CHAT_MARKER_THINK_END, &turn.think_end_id, error));
    TRY(find_marker(vocabulary, CHAT_MARKER_DSML, &turn.dsml_id, error));
    uint32_t start = 0;
    TRY(add_turn(&turn, &start));
    TRY(grammar_finish(grammar, start, turn.end_id, error));
    *out = TAKE(grammar);
    return OK;
}
