/* What a session that goes on has said before: its end, compact. See display_internal.h. */
#include "agent.h"
#include "display_internal.h"

#include "markdown.h"

#define ROUNDS_SHOWN     3              /* messages of the person, with what followed */
#define CALLS_SHOWN      12             /* the last ones, a line each */
#define CALL_BYTES       200            /* of the first line of its first argument */
#define ANSWER_BYTES_MAX ((size_t)4096) /* of the last answer; others are excerpts */
#define MESSAGE_LINES    4

/* Where the rounds begin that are shown. */
static size_t first_shown(const struct run_event *event) {
    size_t rounds = 0;
    for (size_t i = event->earlier_count; i > 1; i--) { /* the first message is the system's */
        const struct chat_message *message = &event->earlier[i - 1];
        rounds += message->role == CHAT_USER && !agent_message_is_of_host(message) ? 1 : 0;
        if (rounds == ROUNDS_SHOWN) {
            return i - 1;
        }
    }
    return 1;
}

static size_t count_calls(const struct run_event *event, size_t from) {
    size_t count = 0;
    for (size_t i = from; i < event->earlier_count; i++) {
        count += event->earlier[i].call_count;
    }
    return count;
}

static size_t last_answer(const struct run_event *event) {
    size_t i = event->earlier_count;
    while (i > 0 && (event->earlier[i - 1].role != CHAT_ASSISTANT ||
                     event->earlier[i - 1].content.length == 0)) {
        i--;
    }
    return i > 0 ? i - 1 : SIZE_MAX;
}

static void put_call(struct lines *lines, const struct chat_call *call) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct view value = call->arguments;
    if (is_ok(json_parse(call->arguments, NULL, &document, NULL))) {
        struct json_value first = json_first(json_root(document));
        value = (struct view){0};
        if (json_type(first) != JSON_ABSENT && !json_as_string(first, &value)) {
            value = json_raw(first);
        }
    }
    size_t end = view_find(value, view_of_text("\n"), 0);
    struct view line = view_slice(value, 0, end < CALL_BYTES ? end : CALL_BYTES);
    line.length = utf8_valid_prefix(line);
    lines_format(
        lines,
        STYLE_CALL,
        "> %.*s %.*s%s",
        (int)(call->name.length < 64 ? call->name.length : 64),
        (const char *)call->name.data,
        VIEW_ARGUMENTS(line),
        line.length < value.length ? " ..." : ""
    );
}

static void
put_answer(struct lines *lines, struct markdown *markdown, struct view text, bool is_last) {
    if (!is_last) {
        const struct excerpt excerpt = {.prefix = "", .head = MESSAGE_LINES, .tail = MESSAGE_LINES};
        lines_excerpt(lines, &excerpt, text);
        return;
    }
    struct view shown = view_slice(text, 0, ANSWER_BYTES_MAX);
    shown.length = utf8_valid_prefix(shown);
    if (markdown != NULL) {
        markdown_append(markdown, shown, lines);
        markdown_end(markdown, lines);
    } else {
        lines_text(lines, STYLE_TEXT, "", shown);
        lines_end(lines);
    }
    if (shown.length < text.length) {
        lines_format(lines, STYLE_DIM, "# ... and %zu bytes", text.length - shown.length);
    }
}

void display_put_earlier(
    struct lines *lines, struct markdown *markdown, const struct run_event *event
) {
    size_t from = first_shown(event);
    size_t calls = count_calls(event, from);
    size_t skipped = calls > CALLS_SHOWN ? calls - CALLS_SHOWN : 0;
    size_t answer = last_answer(event);
    char above[48] = "";
    if (from > 1) {
        int length = snprintf(above, sizeof above, "%zu earlier messages and ", from - 1);
        ASSERT(length > 0);
    }
    lines_format(
        lines,
        STYLE_DIM,
        "# so far (%soutputs of tools: hearth sessions show %s%s)",
        above,
        event->session_id,
        event->state_option
    );
    if (skipped > 0) {
        lines_format(lines, STYLE_DIM, "# (%zu calls are not shown)", skipped);
    }
    for (size_t i = from; i < event->earlier_count; i++) {
        const struct chat_message *message = &event->earlier[i];
        if (agent_message_is_of_host(message)) { /* a summary too */
            const struct excerpt told = {.style = STYLE_DIM, .prefix = "# | "};
            lines_excerpt(lines, &told, message->content);
        } else if (message->role == CHAT_USER) {
            lines_excerpt(lines, &(struct excerpt){.prefix = "you: "}, message->content);
        } else if (message->role == CHAT_ASSISTANT && message->content.length > 0) {
            put_answer(lines, markdown, message->content, i == answer);
        }
        for (size_t k = 0; message->role == CHAT_ASSISTANT && k < message->call_count; k++) {
            if (skipped > 0) {
                skipped--;
            } else {
                put_call(lines, &message->calls[k]);
            }
        }
    }
    if (event->text.length > 0) {
        lines_format(lines, STYLE_DIM, "%s", "# its list of what is to be done:");
        lines_text(lines, STYLE_TEXT, "  ", event->text);
        lines_end(lines);
    }
}
