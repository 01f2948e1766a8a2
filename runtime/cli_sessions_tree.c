/* hearth sessions show --tree; see the header. */
#include "cli_sessions_tree.h"
#include "cli_sessions.h"
#include "lines.h"

#include "sessions/session_swarm.h"
#include <inttypes.h>

#define COLUMNS       80
#define NAME_COLUMNS  27
#define STATE_COLUMNS 19
#define INDENT_MAX    8 /* levels; deeper ones are shown at this one */

/* Agents by their parents: indices, SIZE_MAX for none. */
struct family {
    size_t parent, first, last, next;
    int depth;
};

static void find_families(const struct session_tree *tree, struct family *families) {
    for (size_t i = 0; i < tree->agent_count; i++) {
        families[i] = (struct family){SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, 0};
        // A parent comes first, so nothing of a damaged file makes a circle.
        for (size_t k = 0; k < i && families[i].parent == SIZE_MAX; k++) {
            if (strcmp(tree->agents[k].id.text, tree->agents[i].parent.text) == 0) {
                families[i].parent = k;
            }
        }
        if (families[i].parent == SIZE_MAX) {
            continue;
        }
        struct family *parent = &families[families[i].parent];
        families[i].depth = parent->depth + 1;
        if (parent->last == SIZE_MAX) {
            parent->first = i;
        } else {
            families[parent->last].next = i;
        }
        parent->last = i;
    }
}

/* One line of a text, made harmless, cut or filled up to so many columns (fill false: only cut). */
static result
put_cell(struct buffer *out, struct view text, int columns, bool fill, struct error *error) {
    size_t newline = view_find(text, view_of_text("\n"), 0);
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, BUFFER_CEILING_DEFAULT);
    TRY(sessions_put_text(
        &harmless, view_slice(text, 0, newline == SIZE_MAX ? text.length : newline), error
    ));
    struct view shown = buffer_view(&harmless);
    bool is_cut = newline != SIZE_MAX || columns_of_text(shown) > columns;
    if (is_cut) {
        shown = text_in_columns(shown, columns - 3);
    }
    TRY(buffer_append(out, shown, error));
    TRY(buffer_append_text(out, is_cut ? "..." : "", error));
    int used = columns_of_text(shown) + (is_cut ? 3 : 0);
    return fill ? buffer_append_format(
                      out, error, "%*s", columns - used > 0 ? columns - used : 0, ""
                  )
                : OK;
}

static result put_indent(struct buffer *out, int depth, int *used, struct error *error) {
    *used = 2 * (depth < INDENT_MAX ? depth : INDENT_MAX);
    return buffer_append_format(out, error, "%*s", *used, "");
}

/* A line below an agent's row; nothing when there is no text. */
static result
put_note(struct buffer *out, int depth, const char *label, struct view text, struct error *error) {
    if (text.length == 0) {
        return OK;
    }
    int used = 0;
    TRY(put_indent(out, depth + 2, &used, error));
    TRY(buffer_append_text(out, label, error));
    TRY(put_cell(out, text, COLUMNS - used - (int)strlen(label), false, error));
    return buffer_append_text(out, "\n", error);
}

/* ---- agents ------------------------------------------------------------------------------------- */

/* Spent, as its own turns say. */
struct spent {
    int64_t turns, tokens, calls, first_ms, last_ms;
};

static struct spent spent_of(const struct session_agent *agent) {
    struct spent spent = {0};
    for (size_t i = 0; i < agent->turn_count; i++) {
        const struct session_turn *turn = &agent->turns[i];
        if (turn->is_inherited) {
            continue;
        }
        spent.turns++;
        spent.tokens += turn->end.output_tokens;
        spent.calls += (int64_t)turn->call_count;
        spent.first_ms = spent.first_ms == 0 ? turn->started_ms : spent.first_ms;
        spent.last_ms = turn->ended_ms > spent.last_ms ? turn->ended_ms : spent.last_ms;
        for (size_t k = 0; k < turn->call_count; k++) {
            int64_t ended_ms = turn->calls[k].ended_ms;
            spent.last_ms = ended_ms > spent.last_ms ? ended_ms : spent.last_ms;
        }
    }
    return spent;
}

static struct view state_of(const struct session_agent *agent, const struct session_tree *tree) {
    const struct session_node *node = agent->node;
    if (node == NULL) {
        bool is_root = agent->parent.text[0] == '\0';
        return view_of_text(is_root ? session_status_name(tree->session.status) : "");
    }
    if (!node->is_ended) {
        return view_of_text("at work");
    }
    return node->end.outcome.length > 0 ? node->end.outcome : node->end.ending;
}

static result put_row(
    struct buffer *out,
    const struct session_tree *tree,
    const struct session_agent *agent,
    int depth,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer name;
    buffer_init(&name, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append(&name, agent->name, error));
    if (agent->node != NULL) {
        TRY(buffer_append_format(&name, error, " (%.*s)", VIEW_ARGUMENTS(agent->node->kind)));
    }
    struct spent spent = spent_of(agent);
    int used = 0;
    TRY(put_indent(out, depth, &used, error));
    TRY(put_cell(out, buffer_view(&name), NAME_COLUMNS - used, true, error));
    TRY(buffer_append_text(out, " ", error));
    TRY(put_cell(out, state_of(agent, tree), STATE_COLUMNS, true, error));
    return buffer_append_format(
        out,
        error,
        " %6" PRId64 " %9" PRId64 " %6" PRId64 " %8.1f\n",
        spent.turns,
        spent.tokens,
        spent.calls,
        spent.last_ms > spent.first_ms ? (double)(spent.last_ms - spent.first_ms) / 1000.0 : 0.0
    );
}

static const struct session_agent *find(const struct session_tree *tree, const char *id) {
    for (size_t i = 0; i < tree->agent_count; i++) {
        if (strcmp(tree->agents[i].id.text, id) == 0) {
            return &tree->agents[i];
        }
    }
    return NULL;
}

static struct view name_of(const struct session_tree *tree, const struct session_id *id) {
    const struct session_agent *agent = find(tree, id->text);
    return agent == NULL ? view_of_text("?") : agent->name;
}

/* What it made, and where that went. */
static result put_result(
    struct buffer *out,
    const struct session_tree *tree,
    const struct session_node *node,
    int depth,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(&text, error, "%" PRId64 " lines changed", node->end.changed_lines));
    if (node->has_score) {
        TRY(buffer_append_format(&text, error, ", score %.3g", node->score));
    }
    if (node->merged_into.text[0] != '\0') {
        struct view into = name_of(tree, &node->merged_into);
        TRY(buffer_append_format(&text, error, ", merged into %.*s", VIEW_ARGUMENTS(into)));
    } else if (node->conflicts.length > 0) {
        TRY(buffer_append_text(&text, ", not merged: conflicts", error));
    }
    bool has_result = node->end.commit_after.length > 0 || node->has_score;
    return has_result ? put_note(out, depth, "", buffer_view(&text), error) : OK;
}

static result put_agent(
    struct buffer *out,
    const struct session_tree *tree,
    const struct session_agent *agent,
    int depth,
    struct error *error
) {
    TRY(put_row(out, tree, agent, depth, error));
    const struct session_node *node = agent->node;
    if (node == NULL) {
        return OK;
    }
    TRY(put_note(out, depth, "task: ", node->brief, error));
    TRY(put_note(out, depth, "cut: ", node->end.cut, error));
    TRY(put_result(out, tree, node, depth, error));
    TRY(put_note(out, depth, "verifier: ", node->verdict, error));
    bool is_answer = view_equals_text(node->end.ending, "answer");
    return is_answer ? put_note(out, depth, "said: ", node->end.summary, error)
                     : put_note(out, depth, "why: ", node->end.detail, error);
}

static result put_agents(struct buffer *out, const struct session_tree *tree, struct error *error) {
    struct family *families = calloc(tree->agent_count + 1, sizeof *families);
    if (families == NULL) {
        FAIL(error, MEMORY, "tree of %zu agents", tree->agent_count);
    }
    find_families(tree, families);
    result status = buffer_append_format(
        out,
        error,
        "%-*s %-*s %6s %9s %6s %8s\n",
        NAME_COLUMNS,
        "agent",
        STATE_COLUMNS,
        "",
        "turns",
        "tokens",
        "calls",
        "seconds"
    );
    for (size_t root = 0; root < tree->agent_count && is_ok(status); root++) {
        size_t at = families[root].parent == SIZE_MAX ? root : SIZE_MAX;
        while (at != SIZE_MAX && is_ok(status)) {
            status = put_agent(out, tree, &tree->agents[at], families[at].depth, error);
            if (families[at].first != SIZE_MAX) {
                at = families[at].first;
                continue;
            }
            while (at != SIZE_MAX && families[at].next == SIZE_MAX) {
                at = families[at].parent;
            }
            at = at == SIZE_MAX ? at : families[at].next;
        }
    }
    free(families);
    return status;
}

/* ---- swarms and mail ---------------------------------------------------------------------------- */

static result
put_swarm(struct buffer *out, const struct session_swarm *swarm, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(&text, error, "%.*s", VIEW_ARGUMENTS(swarm->begin.strategy)));
    if (!swarm->is_ended) {
        TRY(buffer_append_text(&text, ", at work", error));
    } else {
        TRY(buffer_append_format(
            &text,
            error,
            ", %.*s%s",
            VIEW_ARGUMENTS(swarm->end.outcome),
            swarm->end.is_merged ? ", merged" : ""
        ));
    }
    if (swarm->ended_ms > swarm->started_ms) {
        double seconds = (double)(swarm->ended_ms - swarm->started_ms) / 1000.0;
        TRY(buffer_append_format(&text, error, ", %.1f s", seconds));
    }
    TRY(put_note(out, -2, "swarm     ", buffer_view(&text), error));
    TRY(put_note(out, -2, "chosen    ", swarm->begin.reason, error));
    TRY(put_note(out, -2, "verifier  ", swarm->begin.verifier, error));
    return put_note(out, -2, "result    ", swarm->end.why, error);
}

/* The index of a turn by its number. */
static int64_t turn_index(const struct session_agent *agent, int64_t number) {
    for (size_t i = 0; agent != NULL && i < agent->turn_count; i++) {
        if (agent->turns[i].number == number) {
            return agent->turns[i].index;
        }
    }
    return -1;
}

static result put_mail(
    struct buffer *out,
    const struct session_tree *tree,
    const struct session_mail *mail,
    struct error *error
) {
    struct view from = name_of(tree, &mail->from), to = name_of(tree, &mail->to);
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(
        &text, error, "%.*s to %.*s, ", VIEW_ARGUMENTS(from), VIEW_ARGUMENTS(to)
    ));
    if (mail->state == SESSION_MAIL_DELIVERED) {
        int64_t index = turn_index(find(tree, mail->to.text), mail->turn);
        TRY(buffer_append_format(&text, error, "read in turn %" PRId64, index + 1));
    } else {
        bool has_bounced = mail->state == SESSION_MAIL_BOUNCED;
        TRY(buffer_append_text(&text, has_bounced ? "never read" : "not read yet", error));
    }
    TRY(buffer_append_text(&text, ": ", error));
    TRY(buffer_append(&text, mail->text, error));
    return put_note(out, -1, "", buffer_view(&text), error);
}

result sessions_put_tree(struct buffer *out, const struct session_tree *tree, struct error *error) {
    for (size_t i = 0; i < tree->swarm_count; i++) {
        TRY(put_swarm(out, &tree->swarms[i], error));
    }
    TRY(buffer_append_text(out, tree->swarm_count > 0 ? "\n" : "", error));
    TRY(put_agents(out, tree, error));
    TRY(buffer_append_text(out, tree->mail_count > 0 ? "\nmail\n" : "", error));
    for (size_t i = 0; i < tree->mail_count; i++) {
        TRY(put_mail(out, tree, &tree->mail[i], error));
    }
    return OK;
}
