/* What is said when a swarm is over: who did what, what was reused, what it cost, where the result is. See
 * swarm_view_internal.h. */
#include "strategy.h"
#include "swarm_view_internal.h"

#include "sandbox/sandbox.h"
#include <inttypes.h>

#define LABEL_COLUMNS    11
#define AGENT_ROWS       40 /* more are in the record */
#define KEPT_SHOWN       8
#define TEXT_BYTES_MAX   ((size_t)64 << 10)
#define SAID_LINES       6
#define COLUMNS_MIN      40
#define VERIFIER_COLUMNS 200

/* The longest beginning that ends before a blank and fits into a line; a word that does not fit is cut. */
static struct view take_line(struct view *rest, int columns) {
    struct view fits = text_in_columns(*rest, columns);
    size_t end = fits.length;
    if (end < rest->length) {
        size_t blank = end;
        while (blank > 0 && rest->data[blank] != ' ') {
            blank--;
        }
        end = blank > 0 ? blank : end > 0 ? end : 1;
    }
    struct view line = view_slice(*rest, 0, end);
    while (end < rest->length && rest->data[end] == ' ') {
        end++;
    }
    *rest = view_slice(*rest, end, rest->length - end);
    return line;
}

/* "label      text", which goes on below itself; harmless text of one paragraph. */
static void put_harmless(struct lines *lines, int columns, const char *label, struct view text) {
    for (bool is_first = true; is_first || text.length > 0; is_first = false) {
        struct view line = take_line(&text, columns - LABEL_COLUMNS);
        char head[LABEL_COLUMNS + 1];
        int length = snprintf(head, sizeof head, "%-*s", LABEL_COLUMNS, is_first ? label : "");
        ASSERT(length == LABEL_COLUMNS);
        lines_put(lines, STYLE_DIM, "", view_of_text(head));
        lines_put_line(lines, STYLE_TEXT, "", line);
    }
}

static void put_field(struct lines *lines, int columns, const char *label, struct view text) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, TEXT_BYTES_MAX * 8);
    struct view shown = view_slice(text, 0, TEXT_BYTES_MAX);
    if (text.length == 0 || is_failed(sandbox_sanitise(shown, 0, &harmless, NULL))) {
        return;
    }
    for (size_t i = 0; i < harmless.length; i++) {
        harmless.data[i] =
            harmless.data[i] == '\n' || harmless.data[i] == '\t' ? ' ' : harmless.data[i];
    }
    put_harmless(lines, columns, label, buffer_view(&harmless));
}

/* A command to be copied: in one line. */
static void put_command(struct lines *lines, const char *label, struct view command) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, TEXT_BYTES_MAX * 8);
    if (is_ok(sandbox_sanitise(command, 0, &harmless, NULL))) {
        char head[LABEL_COLUMNS + 1];
        int length = snprintf(head, sizeof head, "%-*s", LABEL_COLUMNS, label);
        ASSERT(length == LABEL_COLUMNS);
        lines_put(lines, STYLE_DIM, "", view_of_text(head));
        lines_raw(lines, buffer_view(&harmless));
        lines_raw_text(lines, "\n");
        lines->column = 0;
    }
}

/* ---- the result ----------------------------------------------------------------------------- */

static void put_result(const struct swarm_picture *picture, struct buffer *text) {
    const struct swarm_result *end = swarm_result(picture->swarm);
    if (end->node == SWARM_NONE) {
        result_ignore(buffer_append_text(text, "there is none", NULL));
        return;
    }
    const char *outcome = swarm_outcome_name(end->outcome);
    const struct swarm_node *node = swarm_node(picture->swarm, end->node);
    if (end->node == SWARM_ROOT) {
        result_ignore(buffer_append_format(
            text, NULL, "%s: what the agents made together is in the workspace", outcome
        ));
        return;
    }
    const char *where = end->is_merged                 ? "; it is in the workspace"
                        : node->commit.text[0] == '\0' ? "; it changed nothing"
                        : node->has_conflicts
                            ? "; it is not in the workspace, which has other changes: conflicts"
                            : "; it is not in the workspace";
    result_ignore(buffer_append_format(text, NULL, "%s: that of %s", outcome, node->name));
    if (node->commit.text[0] != '\0') {
        result_ignore(buffer_append_format(
            text,
            NULL,
            ", %" PRId64 " line%s changed",
            node->changed_lines,
            node->changed_lines == 1 ? "" : "s"
        ));
    }
    result_ignore(buffer_append_text(text, where, NULL));
}

/* The last words of the agent whose result it is. */
static void put_said(const struct swarm_picture *picture, int columns, struct lines *lines) {
    const struct swarm_result *end = swarm_result(picture->swarm);
    if (end->node == SWARM_NONE || end->node == SWARM_ROOT) {
        return;
    }
    const struct swarm_node *node = swarm_node(picture->swarm, end->node);
    struct view rest = view_slice(buffer_view(&node->summary), 0, TEXT_BYTES_MAX);
    const char *label = "said";
    for (int i = 0; i < SAID_LINES && rest.length > 0;) {
        size_t newline = view_find(rest, view_of_text("\n"), 0);
        size_t length = newline == SIZE_MAX ? rest.length : newline;
        struct view line = view_slice(rest, 0, length);
        rest = view_slice(rest, length + 1, rest.length);
        if (line.length > 0) {
            bool is_last = ++i == SAID_LINES && rest.length > 0;
            put_field(lines, columns, label, line);
            label = "";
            if (is_last) {
                put_field(lines, columns, "", view_of_text("..."));
            }
        }
    }
}

/* ---- what it cost --------------------------------------------------------------------------- */

static void put_cost(
    const struct swarm_picture *picture, const struct swarm_host_totals *totals, struct buffer *text
) {
    const struct swarm_options *options = swarm_options(picture->swarm);
    char number[SWARM_VIEW_NUMBER_BYTES];
    const struct {
        int64_t value, limit;
        bool is_time;
        const char *unit;
    } parts[] = {
        {totals->duration_ms, options->time_ms_max, true, ""},
        {totals->tokens, options->tokens_max, false, " tokens written"},
        {totals->calls, options->calls_max, false, totals->calls == 1 ? " call" : " calls"},
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const char *value = parts[i].is_time ? swarm_view_time(parts[i].value, number)
                                             : swarm_view_number(parts[i].value, number);
        result_ignore(buffer_append_format(text, NULL, "%s%s", i > 0 ? ", " : "", value));
        if (parts[i].limit > 0) {
            value = parts[i].is_time ? swarm_view_time(parts[i].limit, number)
                                     : swarm_view_number(parts[i].limit, number);
            result_ignore(buffer_append_format(text, NULL, " of %s", value));
        }
        result_ignore(buffer_append_text(text, parts[i].unit, NULL));
    }
    const struct {
        size_t count;
        const char *one, *many;
    } counts[] = {
        {totals->verifications, "verification", "verifications"},
        {totals->merges, "merge", "merges"},
        {totals->messages, "message", "messages"},
    };
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        if (counts[i].count > 0) {
            result_ignore(buffer_append_format(
                text,
                NULL,
                ", %zu %s",
                counts[i].count,
                counts[i].count == 1 ? counts[i].one : counts[i].many
            ));
        }
    }
    if (totals->rank_tokens > 0) {
        result_ignore(buffer_append_format(
            text,
            NULL,
            ", %s tokens for the ranking",
            swarm_view_number(totals->rank_tokens, number)
        ));
    }
}

static void put_reuse(const struct swarm_host_totals *totals, struct buffer *text) {
    char prompts[SWARM_VIEW_NUMBER_BYTES];
    char reused[SWARM_VIEW_NUMBER_BYTES];
    char evaluated[SWARM_VIEW_NUMBER_BYTES];
    double percent = totals->prompt_tokens > 0
                         ? 100.0 * (double)totals->reused_tokens / (double)totals->prompt_tokens
                         : 0.0;
    result_ignore(buffer_append_format(
        text,
        NULL,
        "%s of %s tokens of prompts (%.0f%%), %s evaluated",
        swarm_view_number(totals->reused_tokens, reused),
        swarm_view_number(totals->prompt_tokens, prompts),
        percent,
        swarm_view_number(totals->evaluated_tokens, evaluated)
    ));
}

/* ---- where it is ---------------------------------------------------------------------------- */

static void put_kept(const struct swarm_picture *picture, int columns, struct lines *lines) {
    size_t shown = 0;
    size_t kept = 0;
    for (size_t i = 1; i < swarm_node_count(picture->swarm); i++) {
        struct swarm_host_look look = {.activity = "", .directory = ""};
        picture->look(picture->context, i, &look);
        kept += look.is_kept ? 1 : 0;
        if (look.is_kept && shown < KEPT_SHOWN) {
            CLEANUP(buffer_deinit) struct buffer text;
            buffer_init(&text, TEXT_BYTES_MAX);
            result_ignore(buffer_append_format(
                &text, NULL, "%s: %s", swarm_node(picture->swarm, i)->name, look.directory
            ));
            put_command(lines, shown == 0 ? "not saved" : "", buffer_view(&text));
            shown++;
        }
    }
    if (kept > shown) {
        char more[64];
        int length = snprintf(more, sizeof more, "and %zu more directories", kept - shown);
        ASSERT(length > 0);
        put_field(lines, columns, "", view_of_text(more));
    }
}

static void put_commands(
    const struct swarm_picture *picture, const struct swarm_view_facts *facts, struct lines *lines
) {
    const struct swarm_result *end = swarm_result(picture->swarm);
    const char *state = facts->options.state_option;
    const char *id = facts->session.text;
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, TEXT_BYTES_MAX);
    if (id[0] == '\0') {
        return;
    }
    result_ignore(buffer_append_format(&text, NULL, "hearth sessions show %s --tree%s", id, state));
    put_command(lines, "details", buffer_view(&text));
    buffer_clear(&text);
    if (end->is_merged || end->node == SWARM_ROOT) {
        result_ignore(buffer_append_format(&text, NULL, "hearth sessions diff %s%s", id, state));
        put_command(lines, "changes", buffer_view(&text));
    } else if (end->node != SWARM_NONE && swarm_node(picture->swarm, end->node)->commit.text[0] != '\0') {
        result_ignore(buffer_append_format(
            &text,
            NULL,
            "hearth sessions diff %s --agent %s%s | %.*s",
            id,
            swarm_node(picture->swarm, end->node)->name,
            state,
            VIEW_ARGUMENTS(facts->options.apply)
        ));
        put_command(lines, "take it", buffer_view(&text));
    }
}

void swarm_view_summary(
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct swarm_view_end *end,
    struct lines *lines
) {
    int columns = facts->options.width > 0 ? facts->options.width - 1 : 80;
    columns = columns < COLUMNS_MIN ? COLUMNS_MIN : columns;
    const struct swarm *swarm = picture->swarm;
    char counts[SWARM_VIEW_DOING_BYTES];
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, TEXT_BYTES_MAX);
    lines_raw_text(lines, "\n");
    swarm_view_agents(picture, AGENT_ROWS, columns, lines);
    lines_raw_text(lines, swarm_node_count(swarm) > 1 ? "\n" : "");
    put_result(picture, &text);
    put_field(lines, columns, "result", buffer_view(&text));
    put_field(lines, columns, "why", view_of_text(swarm_result(swarm)->why));
    put_said(picture, columns, lines);
    buffer_clear(&text);
    struct view why = facts->options.why;
    struct view strategy = view_of_text(swarm_options(swarm)->strategy->name);
    put_field(lines, columns, "strategy", why.length > 0 ? why : strategy);
    put_field(lines, columns, "verifier", view_slice(facts->options.verifier, 0, VERIFIER_COLUMNS));
    swarm_view_counts(swarm, NULL, counts);
    result_ignore(buffer_append_format(
        &text, NULL, "%zu%s%s", swarm_node_count(swarm) - 1, counts[0] != '\0' ? ": " : "", counts
    ));
    put_field(lines, columns, "agents", buffer_view(&text));
    buffer_clear(&text);
    put_cost(picture, end->totals, &text);
    put_field(lines, columns, "spent", buffer_view(&text));
    buffer_clear(&text);
    put_reuse(end->totals, &text);
    put_field(lines, columns, "reused", buffer_view(&text));
    put_kept(picture, columns, lines);
    put_commands(picture, facts, lines);
}
