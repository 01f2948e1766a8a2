/* The table of built-in tools.
 *
 * Names, descriptions and schemas of the first five are the wording the bundled model was trained
 * with; changing a byte of them changes its prompts. To add a tool: a function, a row, TOOL_COUNT.
 */
#include "tool_internal.h"

#define STRING_PROPERTY(name, description)                                                         \
    "\"" name "\": {\"type\": \"string\", \"description\": \"" description "\"}"
#define OBJECT_SCHEMA(properties, required)                                                        \
    "{\"type\": \"object\", \"properties\": {" properties "}, \"required\": [" required "]}"

static const struct tool_descriptor descriptors[TOOL_COUNT] = {
    {"shell",
     "Run a shell command in the workspace.",
     OBJECT_SCHEMA(STRING_PROPERTY("command", "the command line"), "\"command\""),
     TOOL_READS | TOOL_WRITES | TOOL_EXECUTES,
     true},
    {"read",
     "Read a text file.",
     OBJECT_SCHEMA(STRING_PROPERTY("path", "file path"), "\"path\""),
     TOOL_READS,
     true},
    {"edit",
     "Replace an exact string in a file. The old text must occur once.",
     OBJECT_SCHEMA(
         STRING_PROPERTY("path", "file path") ", " STRING_PROPERTY(
             "old", "exact text to replace"
         ) ", " STRING_PROPERTY("new", "replacement"),
         "\"path\", \"old\", \"new\""
     ),
     TOOL_READS | TOOL_WRITES,
     true},
    {"write",
     "Write a whole file.",
     OBJECT_SCHEMA(
         STRING_PROPERTY("path", "file path") ", " STRING_PROPERTY("content", "new file content"),
         "\"path\", \"content\""
     ),
     TOOL_WRITES,
     true},
    {"finish",
     "End the task with a short summary.",
     OBJECT_SCHEMA(STRING_PROPERTY("summary", "what was done"), "\"summary\""),
     TOOL_ENDS,
     true},
    {"list",
     "List a directory.",
     OBJECT_SCHEMA(STRING_PROPERTY("path", "directory, the workspace when left out"), ""),
     TOOL_READS,
     false},
    {"search",
     "Search the files of the workspace for a text, or for file names that contain it.",
     OBJECT_SCHEMA(
         STRING_PROPERTY("text", "exact text to look for") ", " STRING_PROPERTY(
             "path", "directory to search, the workspace when left out"
         ) ", \"in\": {\"type\": \"string\", \"description\": \"what to search\", \"enum\": "
           "[\"content\", \"names\"]}",
         "\"text\""
     ),
     TOOL_READS,
     false},
};

static tool_run *const functions[TOOL_COUNT] = {
    tool_run_shell,
    tool_run_read,
    tool_run_edit,
    tool_run_write,
    tool_run_finish,
    tool_run_list,
    tool_run_search,
};

size_t tool_count(void) {
    return TOOL_COUNT;
}

const struct tool_descriptor *tool_at(size_t index) {
    ASSERT(index < TOOL_COUNT);
    return &descriptors[index];
}

tool_run *tool_function(size_t index) {
    ASSERT(index < TOOL_COUNT);
    return functions[index];
}

const struct tool_descriptor *tool_find(struct view name) {
    for (size_t i = 0; i < TOOL_COUNT; i++) {
        if (view_equals_text(name, descriptors[i].name)) {
            return &descriptors[i];
        }
    }
    return NULL;
}

result tool_set_parse(struct view names, uint32_t *out, struct error *error) {
    uint32_t set = 0;
    for (size_t from = 0; from <= names.length;) {
        size_t comma = view_find(names, view_of_text(","), from);
        size_t end = comma == SIZE_MAX ? names.length : comma;
        struct view name = view_slice(names, from, end - from);
        const struct tool_descriptor *tool = tool_find(name);
        if (tool == NULL) {
            FAIL(
                error,
                INVALID_INPUT,
                "no tool '%.*s'; there are shell, read, edit, write, finish, list, search",
                VIEW_ARGUMENTS(name)
            );
        }
        set |= 1U << (unsigned)(tool - descriptors);
        from = end + 1;
    }
    *out = set;
    return OK;
}

void tool_declaration_write(struct json_writer *writer, const struct tool_descriptor *tool) {
    json_write_object_begin(writer);
    json_write_key(writer, "name");
    json_write_text(writer, tool->name);
    json_write_key(writer, "description");
    json_write_text(writer, tool->description);
    json_write_key(writer, "parameters");
    json_write_raw(writer, view_of_text(tool->schema));
    json_write_object_end(writer);
}

void tool_declarations_write(struct json_writer *writer, uint32_t set) {
    json_write_array_begin(writer);
    for (size_t i = 0; i < TOOL_COUNT; i++) {
        if ((set >> i & 1U) != 0) {
            tool_declaration_write(writer, &descriptors[i]);
        }
    }
    json_write_array_end(writer);
}
