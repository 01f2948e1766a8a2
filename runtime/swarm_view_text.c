/* Words, numbers and single lines of agents; see swarm_view_internal.h. */
#include "swarm_view_internal.h"

#include "sandbox/sandbox.h"
#include <inttypes.h>
#include <stdarg.h>

#define LOOKED_AT_BYTES ((size_t)4096) /* of a text of which one line is shown */

const char *swarm_view_number(int64_t number, char out[SWARM_VIEW_NUMBER_BYTES]) {
    const int64_t million = 1000000;
    int length = 0;
    if (number < 1000) {
        length = snprintf(out, SWARM_VIEW_NUMBER_BYTES, "%" PRId64, number);
    } else if (number < 10000) {
        length = snprintf(
            out,
            SWARM_VIEW_NUMBER_BYTES,
            "%" PRId64 ".%" PRId64 "k",
            number / 1000,
            number / 100 % 10
        );
    } else if (number < 10 * million) {
        length = snprintf(out, SWARM_VIEW_NUMBER_BYTES, "%" PRId64 "k", number / 1000);
    } else {
        length = snprintf(out, SWARM_VIEW_NUMBER_BYTES, "%" PRId64 "M", number / million);
    }
    ASSERT(length > 0 && length < SWARM_VIEW_NUMBER_BYTES);
    return out;
}

const char *swarm_view_time(int64_t milliseconds, char out[SWARM_VIEW_NUMBER_BYTES]) {
    int64_t seconds = milliseconds > 0 ? milliseconds / 1000 : 0;
    int64_t hours = seconds / 3600;
    int64_t minutes = seconds / 60 % 60;
    int length =
        hours > 0
            ? snprintf(
                  out,
                  SWARM_VIEW_NUMBER_BYTES,
                  "%" PRId64 ":%02" PRId64 ":%02" PRId64,
                  hours,
                  minutes,
                  seconds % 60
              )
            : snprintf(
                  out, SWARM_VIEW_NUMBER_BYTES, "%" PRId64 ":%02" PRId64, minutes, seconds % 60
              );
    ASSERT(length > 0 && length < SWARM_VIEW_NUMBER_BYTES);
    return out;
}

const char *swarm_view_state(const struct swarm_node *node) {
    if (node->state == SWARM_ENDED) {
        return swarm_outcome_name(node->outcome);
    }
    return node->is_cancelling ? "ending" : swarm_state_name(node->state);
}

enum style swarm_view_style(const struct swarm_node *node) {
    if (node->state == SWARM_RUNNING || node->state == SWARM_VERIFYING) {
        return STYLE_TEXT;
    }
    if (node->state != SWARM_ENDED) {
        return STYLE_DIM;
    }
    return node->outcome == SWARM_PASSED                                  ? STYLE_GOOD
           : node->outcome == SWARM_FAILED || node->outcome == SWARM_LOST ? STYLE_BAD
                                                                          : STYLE_DIM;
}

int64_t swarm_view_worked_ms(const struct swarm_picture *picture, size_t node) {
    const struct swarm_node *at = swarm_node(picture->swarm, node);
    if (at->started_ms == 0 || at->state <= SWARM_STARTING) {
        return 0;
    }
    int64_t until = at->ended_ms > 0 ? at->ended_ms : picture->now_ms;
    return until > at->started_ms ? until - at->started_ms : 0;
}

/* ---- lines ---------------------------------------------------------------------------------- */

void swarm_view_one_line(struct view text, char *out, size_t bytes) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, LOOKED_AT_BYTES * 8);
    struct view looked_at = view_slice(text, 0, LOOKED_AT_BYTES);
    looked_at.length =
        utf8_valid_prefix(looked_at) > 0 ? utf8_valid_prefix(looked_at) : looked_at.length;
    size_t used = 0;
    out[0] = '\0';
    if (is_failed(sandbox_sanitise(looked_at, 0, &harmless, NULL))) {
        return;
    }
    struct view line = buffer_view(&harmless);
    size_t from = 0;
    while (from < line.length && strchr("\n\t ", line.data[from]) != NULL) {
        from++;
    }
    line = view_slice(line, from, line.length - from);
    for (; used < line.length && used + 1 < bytes && line.data[used] != '\n'; used++) {
        memcpy(out + used, line.data + used, 1);
        if (out[used] == '\t') {
            out[used] = ' ';
        }
    }
    out[utf8_valid_prefix(view_of(out, used))] = '\0';
}

void swarm_view_line(struct lines *lines, enum style style, int columns, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0); /* too long: cut, here or below */
    struct view shown = view_of_text(text);
    shown.length = utf8_valid_prefix(shown);
    shown = text_in_columns(shown, columns);
    while (shown.length > 0 && shown.data[shown.length - 1] == ' ') {
        shown.length--;
    }
    const char *code = shown.length > 0 ? lines_style(lines, style) : "";
    lines_raw_text(lines, code);
    lines_raw(lines, shown);
    lines_raw_text(lines, code[0] != '\0' ? "\x1b[0m\n" : "\n");
}

/* ---- what it does --------------------------------------------------------------------------- */

struct writer {
    char *out;
    size_t used;
    const char *between;
};

/* One part more, as far as there is room. */
PRINTF_LIKE(2, 3)
static void put(struct writer *writer, const char *format, ...) {
    size_t room = SWARM_VIEW_DOING_BYTES - writer->used;
    const char *between = writer->used > 0 ? writer->between : "";
    int length = snprintf(writer->out + writer->used, room, "%s", between);
    ASSERT(length >= 0);
    size_t at = writer->used + ((size_t)length < room ? (size_t)length : room - 1);
    va_list arguments;
    va_start(arguments, format);
    length = vsnprintf(writer->out + at, SWARM_VIEW_DOING_BYTES - at, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    writer->used = at + (size_t)length;
    if (writer->used >= SWARM_VIEW_DOING_BYTES) {
        writer->used = SWARM_VIEW_DOING_BYTES - 1;
        writer->used = utf8_valid_prefix(view_of(writer->out, writer->used));
        writer->out[writer->used] = '\0';
    }
}

/* Of one that has ended: what it made, where that is, or why there is nothing. */
static void put_result(
    struct writer *writer, const struct swarm_picture *picture, const struct swarm_node *node
) {
    char line[SWARM_VIEW_DOING_BYTES];
    bool has_work = node->commit.text[0] != '\0';
    if (has_work) {
        put(writer, "%" PRId64 " line%s", node->changed_lines, node->changed_lines == 1 ? "" : "s");
    }
    if (node->has_score) {
        put(writer, "score %.3g", node->score);
    }
    if (node->is_merged) {
        bool is_home = node->parent == SWARM_ROOT;
        const char *parent = swarm_node(picture->swarm, node->parent)->name;
        put(writer, "merged%s%s", is_home ? "" : " into ", is_home ? "" : parent);
    } else if (node->has_conflicts) {
        swarm_view_one_line(buffer_view(&node->detail), line, sizeof line);
        put(writer, "conflicts in %s", line);
    }
    if (node->cut != SWARM_CUT_NONE) {
        put(writer, "%s", swarm_cut_text(node->cut));
        return;
    }
    bool has_failed = node->outcome == SWARM_FAILED || node->outcome == SWARM_LOST;
    if (has_failed && node->detail.length > 0 && !node->has_conflicts) {
        swarm_view_one_line(buffer_view(&node->detail), line, sizeof line);
        put(writer, "%s", line);
    } else if (!has_work && node->end == SWARM_END_BUDGET) {
        put(writer, "its budget is spent");
    } else if (!has_work && node->end == SWARM_END_ANSWER) {
        put(writer, "changed nothing");
    }
}

void swarm_view_doing(
    const struct swarm_picture *picture, size_t node, char out[SWARM_VIEW_DOING_BYTES]
) {
    const struct swarm_node *at = swarm_node(picture->swarm, node);
    struct writer writer = {.out = out, .between = "; "};
    out[0] = '\0';
    if (at->state == SWARM_ENDED) {
        put_result(&writer, picture, at);
        return;
    }
    if (at->is_cancelling) {
        put(&writer, "%s", swarm_cut_text(at->cut));
        return;
    }
    if (at->state == SWARM_PLANNED) {
        put(&writer, "waits for room");
        return;
    }
    if (at->state == SWARM_VERIFYING) {
        put(&writer, at->verify == SWARM_VERIFY_QUEUED ? "waits for the verifier" : "is verified");
        return;
    }
    struct swarm_host_look look = {.activity = ""};
    char activity[SWARM_VIEW_DOING_BYTES]; /* a tool's name is the model's text too */
    char subject[SWARM_VIEW_DOING_BYTES];
    picture->look(picture->context, node, &look);
    swarm_view_one_line(
        view_of_text(look.activity != NULL ? look.activity : ""), activity, sizeof activity
    );
    swarm_view_one_line(look.subject, subject, sizeof subject);
    put(&writer, "%s%s%s", activity, subject[0] != '\0' ? ": " : "", subject);
}

void swarm_view_counts(
    const struct swarm *swarm, const bool *is_counted, char out[SWARM_VIEW_DOING_BYTES]
) {
    static const enum swarm_outcome order[] = {
        SWARM_PASSED, SWARM_UNVERIFIED, SWARM_FAILED, SWARM_CANCELLED, SWARM_LOST};
    size_t at_work = 0;
    size_t waiting = 0;
    size_t planned = 0;
    size_t outcomes[SWARM_LOST + 1] = {0};
    for (size_t i = 1; i < swarm_node_count(swarm); i++) {
        const struct swarm_node *node = swarm_node(swarm, i);
        if (is_counted != NULL && !is_counted[i]) {
            continue;
        }
        planned += node->state == SWARM_PLANNED ? 1 : 0;
        waiting += node->state == SWARM_WAITING ? 1 : 0;
        bool is_open = node->state != SWARM_ENDED;
        at_work += is_open && node->state != SWARM_PLANNED && node->state != SWARM_WAITING ? 1 : 0;
        outcomes[node->outcome] += is_open ? 0 : 1;
    }
    struct writer writer = {.out = out, .between = ", "};
    out[0] = '\0';
    const struct {
        size_t count;
        const char *name;
    } parts[] = {{at_work, "at work"}, {waiting, "waiting"}, {planned, "planned"}};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (parts[i].count > 0) {
            put(&writer, "%zu %s", parts[i].count, parts[i].name);
        }
    }
    for (size_t i = 0; i < COUNT_OF(order); i++) {
        if (outcomes[order[i]] > 0) {
            put(&writer, "%zu %s", outcomes[order[i]], swarm_outcome_name(order[i]));
        }
    }
}

/* ---- changes -------------------------------------------------------------------------------- */

void swarm_view_change(
    const struct swarm_picture *picture, int64_t begun_ms, size_t node, struct lines *lines
) {
    const struct swarm_node *at = swarm_node(picture->swarm, node);
    char doing[SWARM_VIEW_DOING_BYTES];
    char spent[SWARM_VIEW_DOING_BYTES] = "";
    swarm_view_doing(picture, node, doing);
    if (at->state == SWARM_PLANNED || at->state == SWARM_STARTING) {
        char brief[SWARM_VIEW_DOING_BYTES];
        swarm_view_one_line(buffer_view(&at->brief), brief, sizeof brief);
        int length = snprintf(
            doing,
            sizeof doing,
            "%s of %s%s%s",
            swarm_kind_name(at->kind),
            swarm_node(picture->swarm, at->parent)->name,
            brief[0] != '\0' ? ": " : "",
            brief
        );
        ASSERT(length > 0);
        doing[utf8_valid_prefix(view_of_text(doing))] = '\0';
    }
    if (at->state == SWARM_ENDED && at->started_ms > 0) {
        struct swarm_host_look look = {.activity = ""};
        char tokens[SWARM_VIEW_NUMBER_BYTES];
        picture->look(picture->context, node, &look);
        int length = snprintf(
            spent,
            sizeof spent,
            "%s%" PRId64 " turn%s, %s tokens, %" PRId64 " call%s",
            doing[0] != '\0' ? "; " : "",
            at->turns,
            at->turns == 1 ? "" : "s",
            swarm_view_number(look.tokens, tokens),
            look.calls,
            look.calls == 1 ? "" : "s"
        );
        ASSERT(length > 0);
    }
    lines_format(
        lines,
        swarm_view_style(at),
        "%7.1f s  %-18s %-10s %s%s",
        (double)(picture->now_ms - begun_ms) / 1000.0,
        at->name,
        swarm_view_state(at),
        doing,
        spent
    );
}
