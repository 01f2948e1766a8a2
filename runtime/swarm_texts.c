/* Names for people and texts for models; see swarm.h. */
#include "swarm_internal.h"

#include <inttypes.h>

const char *swarm_kind_name(enum swarm_kind kind) {
    return kind == SWARM_KIND_ROOT ? "root" : kind == SWARM_KIND_FORK ? "fork" : "spawn";
}

const char *swarm_state_name(enum swarm_state state) {
    static const char *const names[] = {
        [SWARM_PLANNED] = "planned",
        [SWARM_STARTING] = "starting",
        [SWARM_RUNNING] = "running",
        [SWARM_WAITING] = "waiting",
        [SWARM_VERIFYING] = "verifying",
        [SWARM_ENDED] = "ended",
    };
    return names[state];
}

const char *swarm_outcome_name(enum swarm_outcome outcome) {
    static const char *const names[] = {
        [SWARM_UNDECIDED] = "undecided",
        [SWARM_PASSED] = "passed",
        [SWARM_FAILED] = "failed",
        [SWARM_UNVERIFIED] = "unverified",
        [SWARM_CANCELLED] = "cancelled",
        [SWARM_LOST] = "lost",
    };
    return names[outcome];
}

const char *swarm_cut_text(enum swarm_cut cut) {
    static const char *const texts[] = {
        [SWARM_CUT_NONE] = "",
        [SWARM_CUT_END] = "the run ends",
        [SWARM_CUT_DECIDED] = "its result is not needed any more",
        [SWARM_CUT_ASKED] = "the agent that started it asked for it",
        [SWARM_CUT_PARENT] = "the agent that started it has ended",
        [SWARM_CUT_TIME] = "its time is up",
        [SWARM_CUT_SILENT] = "nothing was heard of it",
        [SWARM_CUT_LOOP] = "it went round in circles",
        [SWARM_CUT_TWIN] = "it repeats another agent",
        [SWARM_CUT_BUDGET] = "it spent more than its share",
    };
    return texts[cut];
}

/* ---- texts for models -------------------------------------------------------------------------- */

static int64_t seconds_left(const struct swarm_node *node, int64_t now_ms) {
    return node->deadline_ms > now_ms ? (node->deadline_ms - now_ms) / 1000 : 0;
}

static result add_left(
    const struct swarm *swarm, size_t node, int64_t now_ms, struct buffer *out, struct error *error
) {
    const struct swarm_node *at = &swarm->nodes[node];
    struct budget_amounts left = budget_left(swarm->budget, node);
    const char *between = "";
    if (at->deadline_ms != BUDGET_NO_LIMIT) {
        TRY(buffer_append_format(out, error, "%" PRId64 " s", seconds_left(at, now_ms)));
        between = ", ";
    }
    for (size_t i = BUDGET_TOKENS; i <= BUDGET_PROCESSES; i++) {
        if (left.of[i] != BUDGET_NO_LIMIT) {
            const char *name = budget_resource_name((enum budget_resource)i);
            TRY(buffer_append_format(out, error, "%s%" PRId64 " %s", between, left.of[i], name));
            between = ", ";
        }
    }
    return buffer_append_text(out, between[0] == '\0' ? "no limit" : "", error);
}

static result add_notes(
    const struct swarm *swarm, size_t node, int64_t now_ms, struct buffer *out, struct error *error
) {
    const struct swarm_node *at = swarm_node(swarm, node);
    TRY(buffer_append_format(out, error, "You are %s", at->name));
    if (at->count_of > 1) {
        TRY(buffer_append_format(
            out,
            error,
            ", number %zu of %zu that work beside each other",
            at->index_of + 1,
            at->count_of
        ));
    }
    TRY(buffer_append_text(out, ". Your share of the budget: ", error));
    TRY(add_left(swarm, node, now_ms, out, error));
    return buffer_append_text(
        out,
        ". You work in a directory of your own; what you change there and your last message are "
        "your result.",
        error
    );
}

result swarm_start_text(
    const struct swarm *swarm,
    size_t node,
    int64_t now_ms,
    bool has_notes,
    struct buffer *out,
    struct error *error
) {
    const struct swarm_node *at = swarm_node(swarm, node);
    ASSERT(node != SWARM_ROOT);
    bool is_agents_fork = at->kind == SWARM_KIND_FORK && !at->is_order;
    struct view brief = buffer_view(&at->brief);
    struct view parts[3];
    size_t count = 0;
    CLEANUP(buffer_deinit) struct buffer notes;
    buffer_init(&notes, SWARM_BRIEF_BYTES_MAX);
    if (has_notes) {
        TRY(add_notes(swarm, node, now_ms, &notes, error));
    }
    if (at->is_order) {
        parts[count++] = swarm->options.task;
    }
    if (!is_agents_fork) {
        parts[count++] = brief;
    }
    parts[count++] = buffer_view(&notes);
    if (is_agents_fork) {
        parts[count++] = brief;
    }
    for (size_t i = 0; i < count; i++) {
        const char *between = out->length > 0 && parts[i].length > 0 ? "\n\n" : "";
        TRY(buffer_append_text(out, between, error));
        TRY(buffer_append(out, parts[i], error));
    }
    return OK;
}

/* "agent-3: passed, 12 lines changed", why it was cut, what was said of it, and its last text. */
static result
add_result(const struct swarm *swarm, size_t node, struct buffer *out, struct error *error) {
    const struct swarm_node *at = &swarm->nodes[node];
    bool is_open = at->state != SWARM_ENDED;
    TRY(buffer_append_format(
        out,
        error,
        "%s: %s",
        at->name,
        is_open ? swarm_state_name(at->state) : swarm_outcome_name(at->outcome)
    ));
    if (is_open) {
        return buffer_append_text(out, "\n", error);
    }
    if (at->cut != SWARM_CUT_NONE) {
        TRY(buffer_append_format(out, error, " (%s)", swarm_cut_text(at->cut)));
    }
    if (at->changed_lines > 0) {
        TRY(buffer_append_format(out, error, ", %" PRId64 " lines changed", at->changed_lines));
    }
    TRY(buffer_append_text(out, "\n", error));
    if (at->detail.length > 0) {
        TRY(buffer_append(out, buffer_view(&at->detail), error));
        TRY(buffer_append_text(out, "\n", error));
    }
    if (at->summary.length > 0) {
        TRY(buffer_append(out, buffer_view(&at->summary), error));
        TRY(buffer_append_text(out, "\n", error));
    }
    return OK;
}

static const char *answer_head(enum swarm_answer answer) {
    static const char *const heads[] = {
        [SWARM_ANSWER_STARTED] = "Started:",
        [SWARM_ANSWER_SENT] = "",
        [SWARM_ANSWER_ENDED] = "",
        [SWARM_ANSWER_TIMEOUT] = "The time of this wait is over.",
        [SWARM_ANSWER_MESSAGE] = "A message has come; it follows.",
        [SWARM_ANSWER_STUCK] =
            "Nobody is at work for this wait: each waits for another. Go on yourself.",
        [SWARM_ANSWER_CANCELLED] = "Told to end:",
        [SWARM_ANSWER_MERGED] = "Merged into your directory:",
        [SWARM_ANSWER_CONFLICTS] = "Not merged, nothing was changed:",
        [SWARM_ANSWER_REFUSED] = "Refused: ",
    };
    return heads[answer];
}

result swarm_answer_text(
    const struct swarm *swarm,
    const struct swarm_effect *effect,
    struct buffer *out,
    struct error *error
) {
    ASSERT(effect->type == SWARM_DO_ANSWER);
    enum swarm_answer answer = effect->answer;
    TRY(buffer_append_text(out, answer_head(answer), error));
    if (answer == SWARM_ANSWER_REFUSED) {
        return buffer_append_text(out, swarm->refusal, error);
    }
    if (answer == SWARM_ANSWER_SENT) {
        return buffer_append_format(out, error, "Sent as message %" PRIu64 ".", effect->message);
    }
    bool is_open = answer == SWARM_ANSWER_TIMEOUT || answer == SWARM_ANSWER_MESSAGE ||
                   answer == SWARM_ANSWER_STUCK;
    TRY(buffer_append_text(out, is_open && effect->node_count > 0 ? " Not ended:" : "", error));
    bool has_results = answer == SWARM_ANSWER_ENDED || answer == SWARM_ANSWER_CONFLICTS;
    TRY(buffer_append_text(out, answer == SWARM_ANSWER_CONFLICTS ? "\n" : "", error));
    for (size_t i = 0; i < effect->node_count; i++) {
        if (has_results) {
            TRY(add_result(swarm, effect->nodes[i], out, error));
        } else {
            TRY(buffer_append_format(out, error, " %s", swarm->nodes[effect->nodes[i]].name));
        }
    }
    return OK;
}

result swarm_tell_text(
    const struct swarm *swarm,
    const struct swarm_effect *effect,
    int64_t now_ms,
    struct buffer *out,
    struct error *error
) {
    ASSERT(effect->type == SWARM_DO_TELL);
    const char *about = swarm->nodes[effect->about].name;
    if (effect->tell == SWARM_TELL_WRAP_UP) {
        TRY(buffer_append_text(out, "[budget left: ", error));
        TRY(add_left(swarm, effect->node, now_ms, out, error));
        return buffer_append_text(out, "; finish what you are doing and answer]", error);
    }
    if (effect->tell == SWARM_TELL_CHILD_ENDED) {
        const struct swarm_node *child = &swarm->nodes[effect->about];
        return buffer_append_format(
            out,
            error,
            "[%s has ended: %s; wait for it to read its result]",
            about,
            swarm_outcome_name(child->outcome)
        );
    }
    return buffer_append_format(
        out,
        error,
        "[message %" PRIu64 " to %s was not delivered: it has ended]",
        effect->message,
        about
    );
}
