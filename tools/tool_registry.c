/* The table of built-in tools, and sets of them.
 *
 * Names, descriptions and schemas of the first five are the wording the bundled model was trained
 * with; changing a byte of them changes its prompts. To add a tool: a row beside its function, its
 * declaration in tool_internal.h, a line in `rows`.
 */
#include "tool_agents.h"
#include "tool_internal.h"

#include <assert.h>

const struct tool_row tool_row_read = {
    .shown =
        {"read",
         "Read a text file.",
         OBJECT_SCHEMA(STRING_PROPERTY("path", "file path"), "\"path\""),
         TOOL_READS,
         true},
    .run = tool_run_read,
    .wide = &tool_wide_read,
    .run_wide = tool_run_read_wide,
};

static const struct tool_row row_edit = {
    .shown =
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
    .run = tool_run_edit,
    .wide = &tool_wide_edit,
    .run_wide = tool_run_edit_wide,
};

static const struct tool_row row_write = {
    .shown =
        {"write",
         "Write a whole file.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("path", "file path") ", " STRING_PROPERTY(
                 "content", "new file content"
             ),
             "\"path\", \"content\""
         ),
         TOOL_WRITES,
         true},
    .run = tool_run_write,
};

static const struct tool_row row_finish = {
    .shown =
        {"finish",
         "End the task with a short summary.",
         OBJECT_SCHEMA(STRING_PROPERTY("summary", "what was done"), "\"summary\""),
         TOOL_ENDS,
         true},
    .run = tool_run_finish,
};

static const struct tool_row *const rows[] = {
    &tool_row_shell,      &tool_row_read,      &row_edit,          &row_write,
    &row_finish,          &tool_row_list,      &tool_row_search,   &tool_row_glob,
    &tool_row_grep,       &tool_row_patch,     &tool_row_todo,     &tool_row_image,
    &tool_row_job_output, &tool_row_job_input, &tool_row_job_stop, &tool_row_job_list,
    &tool_row_fetch,      &tool_row_spawn,     &tool_row_message,  &tool_row_wait,
    &tool_row_fork,       &tool_row_receive,   &tool_row_cancel,   &tool_row_merge,
};
static_assert(COUNT_OF(rows) <= TOOL_COUNT_MAX, "a set has one bit per tool");

size_t tool_count(void) {
    return COUNT_OF(rows);
}

const struct tool_row *tool_row_at(size_t index) {
    ASSERT(index < COUNT_OF(rows));
    return rows[index];
}

const struct tool_descriptor *tool_at(size_t index) {
    return &tool_row_at(index)->shown;
}

static size_t index_of(struct view name) {
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (view_equals_text(name, rows[i]->shown.name)) {
            return i;
        }
    }
    return SIZE_MAX;
}

size_t tool_index(struct view name) {
    size_t index = index_of(name);
    for (size_t i = 0; i < tool_dialect_form_count() && index == SIZE_MAX; i++) {
        const struct tool_dialect_form *form = tool_dialect_form_at(i);
        if (view_equals_text(name, form->shown.name)) {
            index = index_of(view_of_text(form->tool));
        }
    }
    return index;
}

const struct tool_descriptor *tool_find(struct view name) {
    size_t index = tool_index(name);
    return index == SIZE_MAX ? NULL : tool_at(index);
}

/* ---------------------------------------------------------------------- sets ---- */

uint64_t tool_set_all(void) {
    return UINT64_MAX >> (64 - COUNT_OF(rows));
}

uint64_t tool_set_agents(void) {
    const struct tool_agents anyone = {0};
    const struct tool_context_options without = {0};
    const struct tool_context_options with = {.agents = &anyone};
    uint64_t set = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct tool_row *row = rows[i];
        if (row->is_possible != NULL && !row->is_possible(&without) && row->is_possible(&with)) {
            set |= UINT64_C(1) << i;
        }
    }
    return set;
}

uint64_t tool_set_default(enum tool_dialect dialect) {
    static const char *const claude[] = {"shell", "read", "edit", "write", "glob", "grep", "todo"};
    static const char *const codex[] = {"shell", "job_input", "apply_patch", "todo", "image"};
    if (dialect == TOOL_DIALECT_HEARTH) {
        return TOOL_SET_DEFAULT;
    }
    bool is_claude = dialect == TOOL_DIALECT_CLAUDE;
    size_t count = is_claude ? COUNT_OF(claude) : COUNT_OF(codex);
    uint64_t set = 0;
    for (size_t i = 0; i < count; i++) {
        size_t index = index_of(view_of_text(is_claude ? claude[i] : codex[i]));
        ASSERT(index != SIZE_MAX);
        set |= UINT64_C(1) << index;
    }
    return set;
}

bool tool_set_is_wide(enum tool_dialect dialect, uint64_t set) {
    return dialect != TOOL_DIALECT_HEARTH || (set & ~TOOL_SET_TRAINED) != 0;
}

static result fail_unknown(struct view name, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer known = {NULL, 0, 0, 0};
    buffer_init(&known, BUFFER_CEILING_DEFAULT);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        TRY(buffer_append_format(&known, error, "%s%s", i == 0 ? "" : ", ", rows[i]->shown.name));
    }
    FAIL(
        error,
        INVALID_INPUT,
        "no tool '%.*s'; there are %s",
        (int)(name.length > 64 ? 64 : name.length),
        (const char *)name.data,
        buffer_text(&known)
    );
}

result tool_set_parse(struct view names, uint64_t *out, struct error *error) {
    uint64_t set = 0;
    for (size_t from = 0; from <= names.length;) {
        size_t comma = view_find(names, view_of_text(","), from);
        size_t end = comma == SIZE_MAX ? names.length : comma;
        struct view name = view_slice(names, from, end - from);
        size_t index = tool_index(name);
        if (view_equals_text(name, "all")) {
            set |= tool_set_all();
        } else if (index == SIZE_MAX) {
            return fail_unknown(name, error);
        } else {
            set |= UINT64_C(1) << index;
        }
        from = end + 1;
    }
    *out = set;
    return OK;
}

/* -------------------------------------------------------------- declarations ---- */

const struct tool_descriptor *tool_form(size_t index, enum tool_dialect dialect, uint64_t set) {
    const struct tool_row *row = tool_row_at(index);
    if (dialect != TOOL_DIALECT_HEARTH) {
        const struct tool_dialect_form *form = tool_dialect_find(dialect, row->shown.name);
        return form == NULL ? NULL : &form->shown;
    }
    return row->wide != NULL && tool_set_is_wide(dialect, set) ? row->wide : &row->shown;
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

void tool_declarations_write(struct json_writer *writer, enum tool_dialect dialect, uint64_t set) {
    json_write_array_begin(writer);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct tool_descriptor *tool = tool_form(i, dialect, set);
        if ((set >> i & 1U) != 0 && tool != NULL) {
            tool_declaration_write(writer, tool);
        }
    }
    json_write_array_end(writer);
}
