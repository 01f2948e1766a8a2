/* The tools as models of other makers are trained on them: names, argument names, descriptions.
 *
 * A form changes words only: its arguments are renamed to those of the tool's own widest form and
 * run by the same function. Arguments that a dialect has and we do without are renamed to nothing.
 */
#include "tool_internal.h"

static const char *const dialect_names[TOOL_DIALECT_COUNT] = {"hearth", "claude", "codex"};

const char *tool_dialect_name(enum tool_dialect dialect) {
    ASSERT((size_t)dialect < TOOL_DIALECT_COUNT);
    return dialect_names[dialect];
}

bool tool_dialect_parse(struct view name, enum tool_dialect *out) {
    for (size_t i = 0; i < TOOL_DIALECT_COUNT; i++) {
        if (view_equals_text(name, dialect_names[i])) {
            *out = (enum tool_dialect)i;
            return true;
        }
    }
    return false;
}

size_t tool_dialect_form_count(void) {
    return tool_dialect_claude.count + tool_dialect_codex.count;
}

const struct tool_dialect_form *tool_dialect_form_at(size_t index) {
    ASSERT(index < tool_dialect_form_count());
    size_t first = tool_dialect_claude.count;
    return index < first ? &tool_dialect_claude.items[index]
                         : &tool_dialect_codex.items[index - first];
}

const struct tool_dialect_form *tool_dialect_find(enum tool_dialect dialect, const char *tool) {
    ASSERT(dialect != TOOL_DIALECT_HEARTH);
    for (size_t i = 0; i < tool_dialect_form_count(); i++) {
        const struct tool_dialect_form *form = tool_dialect_form_at(i);
        if (form->dialect == dialect && strcmp(form->tool, tool) == 0) {
            return form;
        }
    }
    return NULL;
}

/* ------------------------------------------------------------------ renaming ---- */

/* What `name` is called by the tool; empty when the tool does without it. */
static struct view renamed(const char *renames, struct view name) {
    struct cursor pairs = cursor_over(view_of_text(renames));
    while (cursor_remaining(&pairs) > 0) {
        struct view from;
        struct view to;
        bool has_both = cursor_take_until(&pairs, '=', &from);
        ASSERT(has_both);
        if (!cursor_take_until(&pairs, ' ', &to)) {
            (void)cursor_take(&pairs, cursor_remaining(&pairs), &to);
        }
        if (view_equals(from, name)) {
            return to;
        }
    }
    return name;
}

static bool write_name(struct json_writer *writer, const char *renames, struct json_value member) {
    struct view name = renamed(renames, json_name(member));
    if (name.length > 0) {
        json_write_key_view(writer, name);
    }
    return name.length > 0;
}

static void write_item(struct json_writer *writer, const char *renames, struct json_value item) {
    if (json_type(item) != JSON_OBJECT) {
        json_write_raw(writer, json_raw(item));
        return;
    }
    json_write_object_begin(writer);
    for (struct json_value v = json_first(item); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (write_name(writer, renames, v)) {
            json_write_raw(writer, json_raw(v));
        }
    }
    json_write_object_end(writer);
}

result tool_dialect_rename(
    const char *renames, struct json_value arguments, struct buffer *out, struct error *error
) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    struct json_value v = json_first(arguments);
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (!write_name(&writer, renames, v)) {
            continue;
        }
        if (json_type(v) != JSON_ARRAY) {
            json_write_raw(&writer, json_raw(v));
            continue;
        }
        json_write_array_begin(&writer);
        struct json_value item = json_first(v);
        for (; json_type(item) != JSON_ABSENT; item = json_next(item)) {
            write_item(&writer, renames, item);
        }
        json_write_array_end(&writer);
    }
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}
