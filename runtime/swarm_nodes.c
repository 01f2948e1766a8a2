/* A node's life: planned, started, cut, ended; its account goes with it. See swarm.h. */
#include "swarm_internal.h"

bool swarm_is_live(const struct swarm *swarm, size_t node) {
    enum swarm_state state = swarm->nodes[node].state;
    return node != SWARM_ROOT && (state == SWARM_STARTING || state == SWARM_RUNNING);
}

bool swarm_has_ended(const struct swarm *swarm, size_t node) {
    enum swarm_state state = swarm->nodes[node].state;
    return state == SWARM_VERIFYING || state == SWARM_ENDED;
}

/* ---- planned ----------------------------------------------------------------------------------- */

static void fill_node(struct swarm *swarm, size_t node, size_t parent, struct view name) {
    struct swarm_node *new = &swarm->nodes[node];
    *new = (struct swarm_node){
        .kind = SWARM_KIND_SPAWN,
        .parent = parent,
        .depth = swarm->nodes[parent].depth + 1,
        .count_of = 1,
        .effort = swarm->nodes[parent].effort,
        .value = swarm->nodes[parent].value,
        .seed = strategy_seed(swarm->options.seed, node),
        .conflict_of = SWARM_NONE,
        .twin = SWARM_NONE,
        .planned_ms = swarm->now_ms,
        .deadline_ms = budget_deadline_ms(swarm->budget, node),
    };
    int written = name.length > 0
                      ? snprintf(new->name, sizeof new->name, "%.*s", VIEW_ARGUMENTS(name))
                      : snprintf(new->name, sizeof new->name, "agent-%zu", node);
    ASSERT(written > 0 && (size_t)written < sizeof new->name);
    buffer_init(&new->brief, SWARM_BRIEF_BYTES_MAX);
    buffer_init(&new->summary, SWARM_SUMMARY_BYTES_MAX);
    buffer_init(&new->detail, SWARM_DETAIL_BYTES_MAX);
    swarm->insides[node] = (struct swarm_inside){
        .merge_target = SWARM_NONE,
        .effort_asked = new->effort,
        .time_parts = 1,
        .wrap_up_ms = BUDGET_NO_LIMIT,
    };
}

size_t swarm_add(
    struct swarm *swarm,
    size_t parent,
    struct view brief,
    struct view name,
    const struct budget_share *share
) {
    struct budget_refusal refusal;
    char text[BUDGET_TEXT_BYTES];
    struct buffer copy;
    size_t node = SWARM_NONE;
    int64_t tokens = share->amounts.of[BUDGET_TOKENS];
    if (brief.length > SWARM_BRIEF_BYTES_MAX || !utf8_is_valid(brief)) {
        swarm_refuse(swarm, "a brief of %zu bytes of UTF-8 at most", SWARM_BRIEF_BYTES_MAX);
        return SWARM_NONE;
    }
    if (tokens < SWARM_CHILD_TOKENS_MIN) {
        swarm_refuse(
            swarm,
            "tokens: %lld would be an agent's share, at least %d are needed",
            (long long)tokens,
            SWARM_CHILD_TOKENS_MIN
        );
        return SWARM_NONE;
    }
    buffer_init(&copy, SWARM_BRIEF_BYTES_MAX);
    if (is_failed(buffer_append(&copy, brief, NULL))) {
        swarm_refuse(swarm, "no memory for a brief of %zu bytes", brief.length);
        return SWARM_NONE;
    }
    if (!budget_open(swarm->budget, parent, share, swarm->now_ms, &node, &refusal)) {
        budget_refusal_text(&refusal, text);
        swarm_refuse(swarm, "%s", text);
        buffer_deinit(&copy);
        return SWARM_NONE;
    }
    ASSERT(node == swarm->count);
    swarm->count++;
    fill_node(swarm, node, parent, name);
    swarm->nodes[node].brief = copy;
    swarm->insides[parent].share_changed = true;
    return node;
}

/* ---- end --------------------------------------------------------------------------------------- */

/* A parent's account stays open until those of its children are closed. */
static void close_accounts(struct swarm *swarm, size_t node) {
    while (node != SWARM_ROOT && swarm_has_ended(swarm, node) &&
           budget_is_open(swarm->budget, node) && budget_children_open(swarm->budget, node) == 0) {
        budget_close(swarm->budget, node, swarm->nodes[node].outcome == SWARM_LOST);
        node = swarm->nodes[node].parent;
        swarm->insides[node].share_changed = true;
    }
}

static void end_node(struct swarm *swarm, size_t node, enum swarm_outcome outcome) {
    struct swarm_node *ended = &swarm->nodes[node];
    struct swarm_node *parent = &swarm->nodes[ended->parent];
    ASSERT(!swarm_has_ended(swarm, node));
    ended->state = SWARM_ENDED;
    swarm->changes++;
    ended->outcome = outcome;
    ended->ended_ms = swarm->now_ms;
    ended->has_ask = false;
    swarm_wait_forget(swarm, node);
    swarm_bounce(swarm, node);
    for (size_t i = node + 1; i < swarm->count; i++) {
        if (swarm->nodes[i].parent == node) {
            swarm_cancel(swarm, i, SWARM_CUT_PARENT);
        }
    }
    close_accounts(swarm, node);
    if (ended->is_order) {
        swarm_note(swarm, STRATEGY_NODE_ENDED, node);
    } else if (parent->state == SWARM_RUNNING && !parent->is_cancelling && swarm->phase == SWARM_PHASE_WORKS) {
        swarm_emit(swarm, SWARM_DO_TELL, ended->parent)->tell = SWARM_TELL_CHILD_ENDED;
        swarm->effects[swarm->effect_count - 1].about = node;
    }
}

/* One that an agent has not started has no children and nothing to be told. */
static void end_planned(struct swarm *swarm, size_t node, enum swarm_cut cut, const char *why) {
    swarm->nodes[node].cut = cut;
    swarm->nodes[node].end = SWARM_END_CANCEL;
    swarm_set_text(&swarm->nodes[node].detail, view_of_text(why), SWARM_DETAIL_BYTES_MAX);
    end_node(swarm, node, cut == SWARM_CUT_NONE ? SWARM_FAILED : SWARM_CANCELLED);
}

static void cut(struct swarm *swarm, size_t node, enum swarm_cut why) {
    struct swarm_node *cancelled = &swarm->nodes[node];
    if (swarm_has_ended(swarm, node) || cancelled->is_cancelling) {
        return;
    }
    if (cancelled->state == SWARM_PLANNED) {
        end_planned(swarm, node, why, "not started");
        return;
    }
    cancelled->cut = why;
    cancelled->is_cancelling = true;
    cancelled->cancel_ms = swarm->now_ms;
    swarm_wait_forget(swarm, node);
    swarm_emit(swarm, SWARM_DO_CANCEL, node);
}

/* Children have higher numbers than their parents, so one pass reaches all that are below. */
void swarm_cancel(struct swarm *swarm, size_t node, enum swarm_cut why) {
    ASSERT(node != SWARM_ROOT);
    cut(swarm, node, why);
    for (size_t i = node + 1; i < swarm->count; i++) {
        const struct swarm_node *parent = &swarm->nodes[swarm->nodes[i].parent];
        if (swarm->nodes[i].parent != SWARM_ROOT && parent->is_cancelling) {
            cut(swarm, i, SWARM_CUT_PARENT);
        }
    }
}

void swarm_charge(struct swarm *swarm, size_t node, int64_t tokens, int64_t calls) {
    const struct budget_amounts used = {
        .of[BUDGET_TOKENS] = tokens > 0 ? tokens : 0,
        .of[BUDGET_CALLS] = calls > 0 ? calls : 0,
    };
    if (!budget_charge(swarm->budget, node, &used) && node != SWARM_ROOT) {
        swarm_cancel(swarm, node, SWARM_CUT_BUDGET);
    }
}

void swarm_node_started(struct swarm *swarm, size_t node) {
    struct swarm_node *started = &swarm->nodes[node];
    started->state = SWARM_RUNNING;
    started->heard_ms = swarm->now_ms;
    swarm_deliver(swarm, node);
}

void swarm_node_start_failed(struct swarm *swarm, size_t node, struct view why) {
    struct swarm_node *failed = &swarm->nodes[node];
    failed->end = failed->is_cancelling ? SWARM_END_CANCEL : SWARM_END_FAULT;
    swarm_set_text(&failed->detail, why, SWARM_DETAIL_BYTES_MAX);
    end_node(swarm, node, failed->is_cancelling ? SWARM_CANCELLED : SWARM_FAILED);
}

void swarm_node_ended(struct swarm *swarm, const struct swarm_event *event) {
    struct swarm_node *ended = &swarm->nodes[event->node];
    bool was_cut = ended->cut != SWARM_CUT_NONE;
    ended->is_cancelling = true; /* nothing more is asked of it while it is charged */
    swarm_charge(swarm, event->node, event->tokens, event->calls);
    ended->is_cancelling = was_cut;
    ended->end = event->end;
    ended->changed_lines = event->changed_lines > 0 ? event->changed_lines : 0;
    int written = snprintf(
        ended->commit.text, sizeof ended->commit.text, "%.*s", VIEW_ARGUMENTS(event->commit)
    );
    if (written < 0 || (size_t)written >= sizeof ended->commit.text) {
        ended->commit.text[0] = '\0';
        ended->changed_lines = 0;
    }
    swarm_set_text(&ended->summary, event->text, SWARM_SUMMARY_BYTES_MAX);
    swarm_set_text(&ended->detail, event->detail, SWARM_DETAIL_BYTES_MAX);
    enum swarm_outcome outcome = event->end == SWARM_END_ANSWER              ? SWARM_UNVERIFIED
                                 : was_cut || event->end == SWARM_END_CANCEL ? SWARM_CANCELLED
                                 : event->end == SWARM_END_FAULT             ? SWARM_FAILED
                                                                             : SWARM_UNVERIFIED;
    end_node(swarm, event->node, outcome);
    if (swarm_passing_is_wanted(swarm, event->node)) {
        swarm_verify(swarm, event->node);
    }
}

void swarm_node_lost(struct swarm *swarm, size_t node) {
    swarm->nodes[node].end = SWARM_END_CANCEL;
    swarm_set_text(
        &swarm->nodes[node].detail,
        view_of_text("it did not end when it was told to"),
        SWARM_DETAIL_BYTES_MAX
    );
    end_node(swarm, node, SWARM_LOST);
}

/* ---- room -------------------------------------------------------------------------------------- */

size_t
swarm_pick(const struct swarm *swarm, bool (*is_wanted)(const struct swarm *swarm, size_t node)) {
    size_t best = SWARM_NONE;
    for (size_t i = 1; i < swarm->count; i++) {
        if (is_wanted(swarm, i) &&
            (best == SWARM_NONE || swarm_goes_before(swarm, i, best, swarm->now_ms))) {
            best = i;
        }
    }
    return best;
}

static bool is_ready(const struct swarm *swarm, size_t node) {
    return swarm->nodes[node].state == SWARM_WAITING && swarm->insides[node].is_ready &&
           !swarm->nodes[node].is_cancelling;
}

/* What an ordered node would hold while it works; an agent's child got its part when it was planned. */
static struct budget_amounts part_to_hold(const struct swarm *swarm) {
    struct budget_amounts part = {{0}};
    struct budget_amounts all = budget_share(swarm->budget, SWARM_ROOT);
    struct budget_amounts left = budget_left(swarm->budget, SWARM_ROOT);
    for (size_t i = BUDGET_PROCESSES; i <= BUDGET_MEMORY; i++) {
        int64_t most = budget_part(all.of[i], (int64_t)swarm->options.live_max);
        most = most > 0 ? most : 1;
        if (i == BUDGET_MEMORY && most < swarm->options.node_memory_bytes) {
            most = swarm->options.node_memory_bytes;
        }
        part.of[i] = most < left.of[i] ? most : left.of[i];
    }
    return part;
}

bool swarm_is_startable(const struct swarm *swarm, size_t node) {
    if (swarm->nodes[node].state != SWARM_PLANNED || !swarm_can_start(swarm)) {
        return false;
    }
    struct budget_amounts part = part_to_hold(swarm);
    return !swarm->nodes[node].is_order ||
           (part.of[BUDGET_PROCESSES] > 0 && part.of[BUDGET_MEMORY] > 0 &&
            part.of[BUDGET_MEMORY] >= swarm->options.node_memory_bytes);
}

/* Ordered nodes that wait for room take turns: each gets the time of its round only. */
static int64_t deadline_of(const struct swarm *swarm, size_t node) {
    if (swarm->nodes_deadline_ms == BUDGET_NO_LIMIT) {
        return BUDGET_NO_LIMIT;
    }
    size_t planned = 0;
    for (size_t i = 1; i < swarm->count; i++) {
        planned += swarm->nodes[i].state == SWARM_PLANNED && swarm->nodes[i].is_order ? 1 : 0;
    }
    size_t rounds = (planned + swarm->options.live_max - 1) / swarm->options.live_max;
    int64_t left = swarm->nodes_deadline_ms - swarm->now_ms;
    left = left / swarm->insides[node].time_parts / (int64_t)(rounds > 0 ? rounds : 1);
    return swarm->now_ms + (left > 0 ? left : 1);
}

static void start_node(struct swarm *swarm, size_t node) {
    struct swarm_node *started = &swarm->nodes[node];
    struct swarm_inside *inside = &swarm->insides[node];
    if (started->is_order) {
        struct budget_refusal refusal;
        struct budget_amounts part = part_to_hold(swarm);
        bool is_granted = budget_grow(swarm->budget, node, &part, &refusal);
        ASSERT(is_granted); /* it is at most what is left */
        int64_t deadline_ms = deadline_of(swarm, node);
        started->deadline_ms = budget_set_deadline(swarm->budget, node, deadline_ms);
    }
    started->state = SWARM_STARTING;
    started->started_ms = swarm->now_ms;
    started->heard_ms = swarm->now_ms;
    if (started->deadline_ms != BUDGET_NO_LIMIT) {
        int64_t window = started->deadline_ms - swarm->now_ms;
        inside->wrap_up_ms = swarm->now_ms + window / 100 * SWARM_WRAP_UP_PERCENT +
                             window % 100 * SWARM_WRAP_UP_PERCENT / 100;
    }
    inside->share_changed = false;
    struct budget_amounts share = budget_left(swarm->budget, node);
    struct swarm_effect *effect = swarm_emit(swarm, SWARM_DO_START, node);
    effect->tokens_max = share.of[BUDGET_TOKENS];
    effect->calls_max = share.of[BUDGET_CALLS];
    effect->processes_max = share.of[BUDGET_PROCESSES];
    effect->memory_bytes_max = share.of[BUDGET_MEMORY];
}

static void answer_ready(struct swarm *swarm, size_t node) {
    struct swarm_inside *inside = &swarm->insides[node];
    struct swarm_effect *effect = swarm_answer(swarm, node, swarm->nodes[node].ask, inside->answer);
    effect->nodes = inside->answer_nodes;
    effect->node_count = inside->answer_count;
    for (size_t i = 0; i < inside->answer_count; i++) {
        struct swarm_node *child = &swarm->nodes[inside->answer_nodes[i]];
        child->is_read = child->is_read || (child->parent == node && child->state == SWARM_ENDED &&
                                            inside->answer == SWARM_ANSWER_ENDED);
    }
    inside->has_waited = inside->answer == SWARM_ANSWER_TIMEOUT ||
                         inside->answer == SWARM_ANSWER_ENDED ||
                         inside->answer == SWARM_ANSWER_MESSAGE;
    swarm->nodes[node].state = SWARM_RUNNING;
    swarm->nodes[node].heard_ms = swarm->now_ms;
    swarm_wait_forget(swarm, node);
    swarm_deliver(swarm, node);
}

/* What will never have room ends here, so that nobody waits for it. */
static void drop_planned(struct swarm *swarm) {
    const char *why =
        swarm->disk_is_full ? "not started: the disk is full" : "not started: no time is left";
    for (size_t i = 1; i < swarm->count; i++) {
        if (swarm->nodes[i].state == SWARM_PLANNED &&
            (!swarm_can_start(swarm) || swarm->now_ms >= swarm->nodes[i].deadline_ms)) {
            end_planned(swarm, i, SWARM_CUT_NONE, why);
        }
    }
}

/* Nobody holds anything, and there still is not enough for one. */
static void drop_starved(struct swarm *swarm) {
    size_t holding = 0;
    for (size_t i = 1; i < swarm->count; i++) {
        enum swarm_state state = swarm->nodes[i].state;
        holding += state != SWARM_PLANNED && !swarm_has_ended(swarm, i) ? 1 : 0;
    }
    for (size_t i = 1; holding == 0 && i < swarm->count; i++) {
        if (swarm->nodes[i].state == SWARM_PLANNED) {
            end_planned(swarm, i, SWARM_CUT_NONE, "not started: too little memory or processes");
        }
    }
}

void swarm_fill(struct swarm *swarm) {
    drop_planned(swarm);
    for (;;) {
        if (swarm_live(swarm) >= swarm->options.live_max) {
            return;
        }
        size_t ready = swarm_pick(swarm, is_ready);
        if (ready != SWARM_NONE) {
            answer_ready(swarm, ready);
            continue;
        }
        size_t node = swarm_pick(swarm, swarm_is_startable);
        if (node == SWARM_NONE) {
            break;
        }
        start_node(swarm, node);
    }
    drop_starved(swarm);
}

void swarm_tell_shares(struct swarm *swarm) {
    for (size_t i = 1; i < swarm->count; i++) {
        enum swarm_state state = swarm->nodes[i].state;
        bool works = state == SWARM_STARTING || state == SWARM_RUNNING || state == SWARM_WAITING;
        if (!swarm->insides[i].share_changed) {
            continue;
        }
        swarm->insides[i].share_changed = false;
        if (works && !swarm->nodes[i].is_cancelling) {
            struct budget_amounts left = budget_left(swarm->budget, i);
            struct swarm_effect *effect = swarm_emit(swarm, SWARM_DO_SET_SHARE, i);
            effect->tokens_max = budget_own_max(swarm->budget, i, BUDGET_TOKENS);
            effect->calls_max = budget_own_max(swarm->budget, i, BUDGET_CALLS);
            effect->processes_max = left.of[BUDGET_PROCESSES];
            effect->memory_bytes_max = left.of[BUDGET_MEMORY];
        }
    }
}
