/* What results are worth: verifications, rankings, merges, and which one is best. See swarm.h. */
#include "swarm_internal.h"

/* ---- verification ------------------------------------------------------------------------------ */

static void verify_done(struct swarm *swarm, size_t node, enum swarm_verdict verdict) {
    struct swarm_node *verified = &swarm->nodes[node];
    verified->verify = SWARM_VERIFY_DONE;
    swarm->changes++;
    verified->verdict = verdict;
    if (node != SWARM_ROOT) {
        verified->state = SWARM_ENDED;
    }
    if (verdict == SWARM_VERIFIED_PASS) {
        verified->outcome = SWARM_PASSED;
    } else if (verdict == SWARM_VERIFIED_FAIL || verdict == SWARM_VERIFIED_HUNG) {
        verified->outcome = SWARM_FAILED;
    } else if (node == SWARM_ROOT) {
        verified->outcome = SWARM_UNVERIFIED;
    }
    if (verified->is_order || node == SWARM_ROOT) {
        swarm_note(swarm, STRATEGY_NODE_VERIFIED, node);
    }
}

void swarm_verify(struct swarm *swarm, size_t node) {
    struct swarm_node *verified = &swarm->nodes[node];
    bool is_due = node == SWARM_ROOT || verified->state == SWARM_ENDED;
    bool is_new = verified->verify == SWARM_VERIFY_NONE || node == SWARM_ROOT;
    if (!is_due || !is_new || verified->verify == SWARM_VERIFY_QUEUED ||
        verified->verify == SWARM_VERIFY_RUNS) {
        return;
    }
    verified->verify = SWARM_VERIFY_QUEUED;
    if (node != SWARM_ROOT) {
        verified->state = SWARM_VERIFYING;
    }
}

/* Earliest first: who ended first waits longest for it. */
static size_t next_to_verify(const struct swarm *swarm) {
    size_t best = SWARM_NONE;
    for (size_t i = 0; i < swarm->count; i++) {
        if (swarm->nodes[i].verify == SWARM_VERIFY_QUEUED &&
            (i != SWARM_ROOT || swarm->root_merging == SWARM_NONE) &&
            (best == SWARM_NONE || swarm->nodes[i].ended_ms < swarm->nodes[best].ended_ms)) {
            best = i;
        }
    }
    return best;
}

void swarm_fill_verifications(struct swarm *swarm) {
    for (;;) {
        size_t node = next_to_verify(swarm);
        int64_t left = swarm->decide_ms == BUDGET_NO_LIMIT ? swarm->options.verify_ms_max
                                                           : swarm->decide_ms - swarm->now_ms;
        if (node == SWARM_NONE) {
            return;
        }
        if (!swarm_can_verify(swarm) || left <= 0) {
            verify_done(swarm, node, SWARM_NOT_VERIFIED);
            continue;
        }
        if (swarm->verifying >= SWARM_VERIFICATIONS_MAX) {
            return;
        }
        int64_t most = left < swarm->options.verify_ms_max ? left : swarm->options.verify_ms_max;
        swarm->verifying++;
        swarm->nodes[node].verify = SWARM_VERIFY_RUNS;
        swarm->nodes[node].verify_until_ms = swarm_after(swarm, most);
        swarm_emit(swarm, SWARM_DO_VERIFY, node)->time_ms_max = most;
    }
}

static void count_fault(struct swarm *swarm, enum swarm_verdict verdict) {
    bool is_fault = verdict == SWARM_VERIFIED_HUNG || verdict == SWARM_VERIFIED_CRASHED ||
                    verdict == SWARM_VERIFIED_EDITED;
    swarm->verifier_faults = is_fault ? swarm->verifier_faults + 1 : 0;
}

void swarm_verified(struct swarm *swarm, size_t node, const struct swarm_event *event) {
    if (node >= swarm->count || swarm->nodes[node].verify != SWARM_VERIFY_RUNS ||
        swarm->phase != SWARM_PHASE_WORKS) {
        return; /* nobody waits for it any more */
    }
    swarm->verifying--;
    count_fault(swarm, event->verdict);
    if (event->detail.length > 0) {
        swarm_set_text(&swarm->nodes[node].detail, event->detail, SWARM_DETAIL_BYTES_MAX);
    }
    verify_done(swarm, node, event->verdict);
}

void swarm_cancel_verifications(struct swarm *swarm) {
    for (size_t i = 0; i < swarm->count; i++) {
        enum swarm_verify_step step = swarm->nodes[i].verify;
        if (step == SWARM_VERIFY_RUNS) {
            swarm->verifying--;
            swarm_emit(swarm, SWARM_DO_CANCEL_VERIFY, i);
        }
        if (step == SWARM_VERIFY_RUNS || step == SWARM_VERIFY_QUEUED) {
            verify_done(swarm, i, SWARM_NOT_VERIFIED);
        }
    }
}

/* ---- ranking ----------------------------------------------------------------------------------- */

void swarm_rank(struct swarm *swarm) {
    struct budget_refusal refusal;
    struct budget_amounts amounts = {{0}};
    size_t count = swarm->orders.rank_count;
    int64_t left = budget_left(swarm->budget, SWARM_ROOT).of[BUDGET_TOKENS];
    amounts.of[BUDGET_TOKENS] = (int64_t)count * STRATEGY_RANK_TOKENS;
    if (swarm->is_ranking || count == 0) {
        return;
    }
    if (amounts.of[BUDGET_TOKENS] > left) {
        amounts.of[BUDGET_TOKENS] = left;
    }
    if (amounts.of[BUDGET_TOKENS] == 0 ||
        !budget_reserve(swarm->budget, SWARM_ROOT, &amounts, &refusal)) {
        swarm_note(swarm, STRATEGY_RANKED, SWARM_NONE); /* without scores: ties go by the diff */
        return;
    }
    swarm->is_ranking = true;
    swarm->rank_tokens = amounts.of[BUDGET_TOKENS];
    swarm->rank_count = count;
    memcpy(swarm->rank_nodes, swarm->orders.rank_nodes, count * sizeof swarm->rank_nodes[0]);
    struct swarm_effect *effect = swarm_emit(swarm, SWARM_DO_RANK, SWARM_ROOT);
    effect->nodes = swarm->rank_nodes;
    effect->node_count = count;
    effect->tokens_max = swarm->rank_tokens;
}

void swarm_ranked(struct swarm *swarm, const struct swarm_event *event) {
    if (!swarm->is_ranking) {
        return;
    }
    const struct budget_amounts reserved = {.of[BUDGET_TOKENS] = swarm->rank_tokens};
    const struct budget_amounts used = {
        .of[BUDGET_TOKENS] = event->tokens > 0 ? event->tokens : 0,
    };
    if (!budget_settle(swarm->budget, SWARM_ROOT, &reserved, &used)) {
        swarm_end(swarm, SWARM_NONE, "the ranking spent more tokens than there were");
    }
    swarm->is_ranking = false;
    for (size_t i = 0; event->score_count == swarm->rank_count && i < swarm->rank_count; i++) {
        swarm->nodes[swarm->rank_nodes[i]].has_score = true;
        swarm->nodes[swarm->rank_nodes[i]].score = event->scores[i];
    }
    swarm_note(swarm, STRATEGY_RANKED, SWARM_NONE);
}

/* ---- merges ------------------------------------------------------------------------------------ */

void swarm_merge(struct swarm *swarm, size_t node, size_t target) {
    struct swarm_node *source = &swarm->nodes[node];
    if (!swarm_has_ended(swarm, node) || swarm->insides[node].merge_target != SWARM_NONE ||
        source->is_merged || source->commit.text[0] == '\0') {
        if (target == SWARM_ROOT) {
            swarm_note(swarm, STRATEGY_MERGED, node); /* as far as it is: see is_merged */
        }
        return;
    }
    if (target == SWARM_ROOT) { /* one at a time */
        swarm->insides[node].wants_merge = true;
        return;
    }
    swarm->insides[node].merge_target = target;
    source->has_conflicts = false;
    swarm_emit(swarm, SWARM_DO_MERGE, node)->target = target;
}

void swarm_fill_merges(struct swarm *swarm) {
    for (size_t i = 1; i < swarm->count && swarm->root_merging == SWARM_NONE; i++) {
        if (swarm->insides[i].wants_merge && swarm->nodes[SWARM_ROOT].verify != SWARM_VERIFY_RUNS) {
            swarm->insides[i].wants_merge = false;
            swarm->insides[i].merge_target = SWARM_ROOT;
            swarm->nodes[i].has_conflicts = false;
            swarm->root_merging = i;
            swarm_emit(swarm, SWARM_DO_MERGE, i)->target = SWARM_ROOT;
        }
    }
}

static void merged_into_root(struct swarm *swarm, const struct swarm_event *event) {
    struct swarm_node *root = &swarm->nodes[SWARM_ROOT];
    swarm->root_merging = SWARM_NONE;
    if (event->merge != SWARM_MERGE_OK) {
        return;
    }
    int written = snprintf(
        root->commit.text, sizeof root->commit.text, "%.*s", VIEW_ARGUMENTS(event->commit)
    );
    if (written < 0 || (size_t)written >= sizeof root->commit.text) {
        root->commit.text[0] = '\0';
    }
    root->changed_lines = event->changed_lines > 0 ? event->changed_lines : 0;
    if (!swarm->is_merging_result) { /* what was said of it held for what it was */
        swarm->root_merges++;
        root->verdict = SWARM_NOT_VERIFIED;
        root->verify = root->verify == SWARM_VERIFY_DONE ? SWARM_VERIFY_NONE : root->verify;
        root->outcome = SWARM_UNVERIFIED;
    }
}

void swarm_merged(struct swarm *swarm, size_t node, const struct swarm_event *event) {
    if (node >= swarm->count || swarm->insides[node].merge_target == SWARM_NONE) {
        return;
    }
    size_t target = swarm->insides[node].merge_target;
    struct swarm_node *source = &swarm->nodes[node];
    swarm->insides[node].merge_target = SWARM_NONE;
    source->is_merged = event->merge == SWARM_MERGE_OK;
    source->has_conflicts = event->merge == SWARM_MERGE_CONFLICTS;
    if (!source->is_merged) {
        swarm_set_text(&source->detail, event->detail, SWARM_DETAIL_BYTES_MAX);
    }
    if (target == SWARM_ROOT) {
        merged_into_root(swarm, event);
        if (swarm->is_merging_result) {
            swarm->is_merging_result = false;
            swarm->result_is_settled = true;
        } else {
            swarm_note(swarm, STRATEGY_MERGED, node);
        }
        return;
    }
    if (swarm->nodes[target].state == SWARM_WAITING &&
        swarm->insides[target].wait == SWARM_WAIT_MERGE && swarm->phase == SWARM_PHASE_WORKS) {
        swarm_wait_ready(
            swarm, target, source->is_merged ? SWARM_ANSWER_MERGED : SWARM_ANSWER_CONFLICTS
        );
    }
}

/* ---- the best ---------------------------------------------------------------------------------- */

int swarm_class(const struct swarm *swarm, size_t node) {
    const struct swarm_node *at = &swarm->nodes[node];
    bool has_changes = at->commit.text[0] != '\0';
    if (node == SWARM_ROOT && swarm->root_merges == 0) {
        return 0;
    }
    if (node != SWARM_ROOT && !swarm_has_ended(swarm, node)) {
        return 0;
    }
    if (at->outcome == SWARM_PASSED) {
        return 4;
    }
    if (at->is_part) {
        return 0;
    }
    if (at->verdict == SWARM_VERIFIED_FAIL || at->verdict == SWARM_VERIFIED_HUNG) {
        return 1;
    }
    if (node == SWARM_ROOT ||
        (at->end == SWARM_END_ANSWER && (has_changes || at->summary.length > 0))) {
        return 3;
    }
    return has_changes ? 2 : 0;
}

static bool is_better(const struct swarm *swarm, size_t a, size_t b) {
    const struct swarm_node *left = &swarm->nodes[a];
    const struct swarm_node *right = &swarm->nodes[b];
    int class_a = swarm_class(swarm, a);
    int class_b = swarm_class(swarm, b);
    if (class_a != class_b) {
        return class_a > class_b;
    }
    bool scores_differ = left->score > right->score || left->score < right->score;
    if (left->has_score && right->has_score && scores_differ) {
        return left->score > right->score;
    }
    return left->changed_lines != right->changed_lines ? left->changed_lines < right->changed_lines
                                                       : a < b;
}

size_t swarm_best(const struct swarm *swarm) {
    size_t best = SWARM_NONE;
    for (size_t i = 0; i < swarm->count; i++) {
        if (swarm_class(swarm, i) > 0 && (best == SWARM_NONE || is_better(swarm, i, best))) {
            best = i;
        }
    }
    return best;
}
