/* A call as a person sees it, brief or to be judged; its result; the question whether it may run.
 * See display_internal.h.
 */
#include "diff.h"
#include "display_internal.h"
#include <inttypes.h>

#define QUESTION_LINES 200 /* of a call that a person is asked about; "v" shows the rest */
#define QUESTION_BYTES ((size_t)16 << 10)

enum extent { EXTENT_BRIEF, EXTENT_QUESTION, EXTENT_WHOLE };

/* The value of a member as text for people. */
static struct view member_text(struct json_value member) {
    struct view value = {0};
    return json_as_string(member, &value) ? value : json_raw(member);
}

/* In a question lines are cut only where the whole is too long for a screen. */
static struct excerpt excerpt_of(enum extent extent, struct view text) {
    struct excerpt excerpt = {.style = STYLE_TEXT};
    if (extent == EXTENT_WHOLE) {
        excerpt.head = text.length + 1; /* lines are not more than bytes */
        excerpt.line_bytes = text.length + 1;
    } else if (extent == EXTENT_QUESTION) {
        excerpt.tail = QUESTION_LINES / 4;
        excerpt.head = QUESTION_LINES - excerpt.tail;
        excerpt.line_bytes = QUESTION_BYTES;
        if (text.length > QUESTION_BYTES) {
            size_t lines = 1;
            for (size_t i = 0; i < text.length && lines < QUESTION_LINES; i++) {
                lines += text.data[i] == '\n' ? 1 : 0;
            }
            size_t share = QUESTION_BYTES / lines;
            excerpt.line_bytes = share > LINES_LINE_BYTES ? share : LINES_LINE_BYTES;
        }
    }
    return excerpt;
}

static struct diff_form form_of(enum extent extent, struct view old_text, struct view new_text) {
    size_t bytes = old_text.length + new_text.length + 1;
    return (struct diff_form){
        .prefix = "  ",
        .lines_max = extent == EXTENT_WHOLE      ? bytes
                     : extent == EXTENT_QUESTION ? QUESTION_LINES
                                                 : DIFF_LINES_SHOWN,
        .line_bytes = extent == EXTENT_WHOLE      ? bytes
                      : extent == EXTENT_QUESTION ? QUESTION_BYTES / 4
                                                  : DIFF_LINE_BYTES,
    };
}

static bool put_argument(struct lines *lines, enum extent extent, struct json_value member) {
    char prefix[40];
    struct view name = json_name(member);
    int length = snprintf(
        prefix, sizeof prefix, "  %.*s ", (int)(name.length > 30 ? 30 : name.length), name.data
    );
    ASSERT(length > 0);
    struct view text = member_text(member);
    struct excerpt excerpt = excerpt_of(extent, text);
    excerpt.prefix = prefix;
    return lines_excerpt(lines, &excerpt, text);
}

/* The member behind `member` when both together say what becomes of a text, or an absent value. */
static struct json_value is_change(struct json_value member, bool *is_pair) {
    struct json_value next = json_next(member);
    struct view name = json_name(member);
    struct view after = json_type(next) != JSON_ABSENT ? json_name(next) : (struct view){0};
    *is_pair = (view_equals_text(name, "old") && view_equals_text(after, "new")) ||
               (view_equals_text(name, "old_string") && view_equals_text(after, "new_string"));
    return next;
}

/* What becomes of a file that is there already. */
static bool put_overwrite(
    struct lines *lines,
    enum extent extent,
    const struct tool_overwrite *overwrite,
    struct json_value content
) {
    if (!overwrite->has_patch) {
        lines_format(
            lines, STYLE_DIM, "  over a file of %" PRIu64 " bytes, no difference:", overwrite->bytes
        );
        return put_argument(lines, extent, content);
    }
    struct view patch = buffer_view(&overwrite->patch);
    if (patch.length == 0) {
        lines_format(lines, STYLE_DIM, "%s", "  the file stays as it is");
        return true;
    }
    const struct diff_form form = form_of(extent, patch, (struct view){0});
    return diff_put(lines, &form, patch);
}

static bool is_content(struct json_value member) {
    return json_type(member) == JSON_STRING && view_equals_text(json_name(member), "content");
}

/* Members from `member` on: what changes as differences, the rest as arguments. */
static bool put_members(
    struct lines *lines,
    enum extent extent,
    struct json_value member,
    const struct tool_overwrite *overwrite
) {
    bool is_whole = true;
    while (json_type(member) != JSON_ABSENT) {
        bool is_pair = false;
        struct json_value next = is_change(member, &is_pair);
        if (is_pair) {
            struct view before = member_text(member);
            struct view after = member_text(next);
            const struct diff_form form = form_of(extent, before, after);
            is_whole &= diff_put_change(lines, &form, before, after);
            member = next;
        } else if (overwrite != NULL && is_content(member)) {
            is_whole &= put_overwrite(lines, extent, overwrite, member);
        } else {
            is_whole &= put_argument(lines, extent, member);
        }
        member = json_next(member);
    }
    return is_whole;
}

/* A list of changes to one file, each as one. */
static bool put_edits(struct lines *lines, enum extent extent, struct json_value edits) {
    bool is_whole = true;
    size_t number = 1;
    for (struct json_value edit = json_first(edits); json_type(edit) != JSON_ABSENT;
         edit = json_next(edit)) {
        lines_format(lines, STYLE_DIM, "  %zu.", number++);
        is_whole &= json_type(edit) == JSON_OBJECT
                        ? put_members(lines, extent, json_first(edit), NULL)
                        : put_argument(lines, extent, edit);
    }
    return is_whole;
}

/* A list of what is to be done is the call's result too, in words. */
static bool is_list(struct json_value member) {
    struct view name = json_type(member) != JSON_ABSENT ? json_name(member) : (struct view){0};
    return json_type(member) == JSON_ARRAY &&
           (view_equals_text(name, "todos") || view_equals_text(name, "plan"));
}

/* "> shell python3 test.py": the first argument in the line, further ones below it; texts that are
 * replaced, and patches, as differences. False: something was left out. */
static bool put_call(
    struct lines *lines,
    enum extent extent,
    const struct chat_call *call,
    const struct tool_overwrite *overwrite
) {
    CLEANUP(buffer_deinit) struct buffer head;
    buffer_init(&head, LINES_BYTES_MAX);
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct view value = call->arguments;
    struct json_value member = {0};
    bool is_below = false; /* the first argument too is shown below the line */
    if (overwrite != NULL && !overwrite->is_there) {
        overwrite = NULL;
    }
    if (is_ok(json_parse(call->arguments, NULL, &document, NULL))) {
        member = json_first(json_root(document));
        is_below = overwrite != NULL && is_content(member);
        value = json_type(member) == JSON_ABSENT || is_below ||
                        (extent == EXTENT_BRIEF && is_list(member))
                    ? (struct view){0}
                    : member_text(member);
    }
    bool is_patch = view_equals_text(call->name, "apply_patch") && json_type(member) == JSON_STRING;
    result_ignore(buffer_append(&head, call->name, NULL)); /* shown shorter without memory */
    result_ignore(buffer_append_text(&head, " ", NULL));
    result_ignore(buffer_append(&head, is_patch ? (struct view){0} : value, NULL));
    struct excerpt excerpt = excerpt_of(extent, buffer_view(&head));
    excerpt.style = STYLE_CALL;
    excerpt.prefix = "> ";
    bool is_whole = lines_excerpt(lines, &excerpt, buffer_view(&head));
    if (is_patch) {
        const struct diff_form form = form_of(extent, value, (struct view){0});
        is_whole &= diff_put(lines, &form, value);
    }
    member = is_below ? member : json_next(member);
    bool is_edits = json_type(member) == JSON_ARRAY && view_equals_text(json_name(member), "edits");
    if (is_edits) {
        is_whole &= put_edits(lines, extent, member);
        member = json_next(member);
    }
    if (extent == EXTENT_BRIEF && is_list(member)) {
        member = json_next(member);
    }
    return put_members(lines, extent, member, overwrite) && is_whole;
}

void display_put_call(
    struct lines *lines, const struct chat_call *call, const struct tool_overwrite *overwrite
) {
    (void)put_call(lines, EXTENT_BRIEF, call, overwrite);
}

void display_put_result(struct lines *lines, const struct tool_result *tool) {
    lines_excerpt(
        lines, &(struct excerpt){.style = STYLE_DIM, .prefix = "  | "}, buffer_view(&tool->text)
    );
    if (tool->status == TOOL_TIMEOUT || tool->status == TOOL_CANCELLED) {
        lines_format(lines, STYLE_BAD, "  | (%s)", tool_status_name(tool->status));
    }
}

/* Whether the brief form, which stands above already, leaves nothing out. */
static bool is_brief(const struct run_event *event) {
    struct lines brief;
    lines_init(&brief, 0, false);
    bool is_whole = put_call(&brief, EXTENT_BRIEF, event->call, event->overwrite);
    lines_deinit(&brief);
    return is_whole;
}

/* Nobody allows what they cannot see: a call that was shown in part is shown again for the question. */
void display_put_ask(struct lines *lines, const struct run_event *event) {
    bool is_whole = true;
    if (event->shows_call) {
        (void)put_call(lines, EXTENT_WHOLE, event->call, event->overwrite);
    } else if (!is_brief(event)) {
        is_whole = put_call(lines, EXTENT_QUESTION, event->call, event->overwrite);
    }
    if (!is_whole) {
        lines_format(lines, STYLE_BAD, "%s", "  not all of it is shown: v shows it");
    }
    bool is_any = event->has_always && event->pattern.length == 0;
    char pattern[200] = "";
    if (event->has_always) {
        int length = snprintf(pattern, sizeof pattern, "%.*s", VIEW_ARGUMENTS(event->pattern));
        ASSERT(length >= 0); /* a long one is cut */
    }
    lines_format(
        lines,
        STYLE_HEADING,
        "? may %.*s run? It %.*s%s%s%s",
        VIEW_ARGUMENTS(event->call->name),
        VIEW_ARGUMENTS(event->reason_text),
        event->has_always ? "; always: " : "",
        is_any ? "any call of it" : "",
        pattern
    );
}
