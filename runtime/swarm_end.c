/* The way out: what runs is ended, the best result is chosen and merged, and why is said. See swarm.h.
 *
 * The result is chosen at once when it is verified or whole; otherwise after the agents have ended, since
 * what they have done by then may be all that there is.
 */
#include "swarm_internal.h"

#include <stdarg.h>

void swarm_end(struct swarm *swarm, size_t wanted, const char *format, ...) {
    if (swarm->phase != SWARM_PHASE_WORKS) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(swarm->why, sizeof swarm->why, format, arguments);
    va_end(arguments);
    ASSERT(written >= 0); /* too long: cut */
    swarm->phase = SWARM_PHASE_ENDS;
    swarm->wanted = wanted;
    swarm_cancel_verifications(swarm);
    if (swarm->is_ranking) {
        swarm_emit(swarm, SWARM_DO_CANCEL_RANK, SWARM_ROOT);
    }
    for (size_t i = 1; i < swarm->count; i++) {
        swarm->insides[i].wants_merge = false;
        swarm_cancel(swarm, i, wanted == SWARM_NONE ? SWARM_CUT_END : SWARM_CUT_DECIDED);
    }
    /* Whoever does not end within its grace is lost, so the end comes by then; merging the result may
     * take its own time, but not beyond the deadline's grace. */
    int64_t grace = swarm->options.kill_grace_ms + swarm->options.merge_ms_max;
    swarm->end_until_ms = swarm_after(swarm, grace);
    if (swarm->deadline_ms != BUDGET_NO_LIMIT &&
        swarm->deadline_ms + swarm->options.kill_grace_ms < swarm->end_until_ms) {
        swarm->end_until_ms = swarm->deadline_ms + swarm->options.kill_grace_ms;
    }
}

static size_t awaited(const struct swarm *swarm) {
    size_t count = 0;
    for (size_t i = 1; i < swarm->count; i++) {
        count += swarm_has_ended(swarm, i) ? 0 : 1;
    }
    return count;
}

/* The strategy's choice, unless something better is there. */
static void choose(struct swarm *swarm, bool may_merge) {
    size_t best = swarm_best(swarm);
    size_t wanted = swarm->wanted;
    bool is_as_good = wanted != SWARM_NONE && best != SWARM_NONE &&
                      swarm_class(swarm, wanted) >= swarm_class(swarm, best);
    swarm->has_result = true;
    swarm->result.node = is_as_good ? wanted : best;
    size_t node = swarm->result.node;
    const struct swarm_node *chosen = node != SWARM_NONE ? &swarm->nodes[node] : NULL;
    int class = node != SWARM_NONE ? swarm_class(swarm, node) : 0;
    swarm->result.outcome = class == 4   ? SWARM_PASSED
                            : class >= 2 ? SWARM_UNVERIFIED
                            : class == 1 ? SWARM_FAILED
                                         : SWARM_CANCELLED;
    swarm->result.is_merged = node == SWARM_ROOT || (chosen != NULL && chosen->is_merged);
    bool has_changes = chosen != NULL && chosen->commit.text[0] != '\0';
    bool is_wanted = class >= 2 && has_changes && may_merge;
    /* Into a workspace that holds parts, a whole would not be what was verified. */
    bool is_possible = swarm->root_merges == 0 && swarm->root_merging == SWARM_NONE;
    if (swarm->result.is_merged || !is_wanted || !is_possible) {
        swarm->result_is_settled = true;
        return;
    }
    swarm->is_merging_result = true;
    swarm->merge_until_ms = swarm_after(swarm, swarm->options.merge_ms_max);
    swarm->insides[node].merge_target = SWARM_ROOT;
    swarm->root_merging = node;
    swarm_emit(swarm, SWARM_DO_MERGE, node)->target = SWARM_ROOT;
}

static const char *merge_words(const struct swarm *swarm) {
    const struct swarm_result *end = &swarm->result;
    const struct swarm_node *node = end->node != SWARM_NONE ? &swarm->nodes[end->node] : NULL;
    if (node == NULL || end->is_merged || node->commit.text[0] == '\0' ||
        end->outcome == SWARM_FAILED) {
        return "";
    }
    return node->has_conflicts        ? " Not merged: it conflicts with what is there."
           : swarm->is_interrupted    ? " Not merged, since it was interrupted."
           : swarm->is_merging_result ? " The merge did not end in time."
                                      : " It is not merged.";
}

static void say_why(struct swarm *swarm) {
    struct swarm_result *end = &swarm->result;
    size_t lost = 0;
    for (size_t i = 1; i < swarm->count; i++) {
        lost += swarm->nodes[i].outcome == SWARM_LOST ? 1 : 0;
    }
    char lost_words[64] = "";
    if (lost > 0) {
        int length =
            snprintf(lost_words, sizeof lost_words, " %zu agents did not end when told.", lost);
        ASSERT(length > 0 && (size_t)length < sizeof lost_words);
    }
    const char *name = end->node == SWARM_NONE   ? "there is no result"
                       : end->node == SWARM_ROOT ? "what was merged"
                                                 : swarm->nodes[end->node].name;
    const char *worth = end->outcome == SWARM_PASSED   ? ", verified"
                        : end->outcome == SWARM_FAILED ? ", which the verifier refuses"
                        : end->node == SWARM_NONE      ? ""
                        : swarm->options.has_verifier  ? ", not verified"
                                                       : ", not verified: there is no verifier";
    const char *faults = swarm->verifier_faults >= SWARM_VERIFIER_FAULTS_MAX
                             ? " The verifier failed again and again and was given up."
                             : "";
    int written = snprintf(
        end->why,
        sizeof end->why,
        "%s: %s%s.%s%s%s",
        swarm->why,
        name,
        worth,
        merge_words(swarm),
        faults,
        lost_words
    );
    ASSERT(written > 0); /* too long: cut, the beginning says most */
}

static void finish(struct swarm *swarm) {
    if (!swarm->has_result) {
        choose(swarm, false); /* no time to merge */
    }
    size_t node = swarm->result.node;
    if (node != SWARM_NONE && node != SWARM_ROOT) {
        swarm->result.is_merged = swarm->nodes[node].is_merged;
    }
    say_why(swarm);
    swarm->phase = SWARM_PHASE_FINISHED;
    swarm_emit(swarm, SWARM_DO_FINISH, SWARM_ROOT);
}

void swarm_merged_late(struct swarm *swarm, size_t node, const struct swarm_event *event) {
    if (node >= swarm->count || swarm->insides[node].merge_target == SWARM_NONE) {
        return;
    }
    struct swarm_node *source = &swarm->nodes[node];
    bool is_home = swarm->insides[node].merge_target == SWARM_ROOT;
    swarm->insides[node].merge_target = SWARM_NONE;
    source->is_merged = event->merge == SWARM_MERGE_OK;
    source->has_conflicts = event->merge == SWARM_MERGE_CONFLICTS;
    if (is_home && node == swarm->result.node) {
        swarm->result.is_merged = source->is_merged;
        say_why(swarm);
    }
}

void swarm_go_on_ending(struct swarm *swarm) {
    if (swarm->phase != SWARM_PHASE_ENDS) {
        return;
    }
    if (swarm->now_ms >= swarm->end_until_ms) {
        for (size_t i = 1; i < swarm->count; i++) {
            if (!swarm_has_ended(swarm, i)) {
                swarm_node_lost(swarm, i);
            }
        }
        finish(swarm);
        return;
    }
    size_t best = swarm_best(swarm);
    bool is_sure = best != SWARM_NONE && swarm_class(swarm, best) >= 3;
    if (!swarm->has_result && swarm->root_merging == SWARM_NONE &&
        (is_sure || awaited(swarm) == 0)) {
        choose(swarm, !swarm->is_interrupted);
    }
    bool is_late = swarm->is_merging_result && swarm->now_ms >= swarm->merge_until_ms;
    if (swarm->has_result && awaited(swarm) == 0 && (swarm->result_is_settled || is_late) &&
        !swarm->is_ranking) {
        finish(swarm);
    }
}

/* A strategy that has nothing at work and ordered nothing. */
bool swarm_is_stalled(const struct swarm *swarm) {
    if (swarm->is_ranking || swarm->root_merging != SWARM_NONE) {
        return false;
    }
    for (size_t i = 0; i < swarm->count; i++) {
        enum swarm_verify_step step = swarm->nodes[i].verify;
        bool is_verified_now = step == SWARM_VERIFY_QUEUED || step == SWARM_VERIFY_RUNS;
        bool is_at_work = i != SWARM_ROOT && !swarm_has_ended(swarm, i);
        if (is_verified_now || is_at_work || swarm->insides[i].wants_merge) {
            return false;
        }
    }
    return true;
}
