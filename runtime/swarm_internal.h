/* Between the files of the swarm: making (swarm_create.c), events (swarm.c), a node's life (swarm_nodes.c), the
 * strategy's orders (swarm_orders.c), what agents ask (swarm_asks.c, swarm_children.c, swarm_waits.c,
 * swarm_messages.c), results (swarm_results.c), the clock (swarm_time.c), the way out (swarm_end.c), texts
 * (swarm_texts.c) and promises (swarm_check.c). Thread: as swarm.h. */
#ifndef HEARTH_RUNTIME_SWARM_INTERNAL_H
#define HEARTH_RUNTIME_SWARM_INTERNAL_H

#include "strategy.h"
#include "swarm.h"

#define SWARM_TURNS_OF_WORK 8 /* assumed to be ahead of a node; nobody knows */
#define SWARM_NOTES_MAX                                                                            \
    ((size_t)8 * SWARM_NODES_MAX) /* of one event: more is a strategy going round */

enum swarm_phase {
    SWARM_PHASE_NEW,
    SWARM_PHASE_WORKS,
    SWARM_PHASE_ENDS, /* nothing starts any more; what runs is cancelled, the result is merged */
    SWARM_PHASE_FINISHED
};

enum swarm_wait { SWARM_WAIT_NONE, SWARM_WAIT_NODES, SWARM_WAIT_MESSAGE, SWARM_WAIT_MERGE };

/* What nobody else sees of a node. */
struct swarm_inside {
    enum swarm_wait wait;
    enum swarm_join join;
    bool is_fork_call; /* the wait is that of a fork */
    size_t targets[SWARM_CHILDREN_MAX];
    size_t target_count;
    int64_t wait_until_ms;
    bool is_ready; /* the wait is over; answered as soon as there is room to go on */
    enum swarm_answer answer;
    size_t answer_nodes[SWARM_CHILDREN_MAX];
    size_t answer_count;
    bool share_changed;
    bool has_waited;       /* since its last turn: waiting again and again is no circle */
    bool is_progressing;   /* scratch of one pass */
    bool wants_merge;      /* into the root, ordered by the strategy */
    size_t merge_target;   /* SWARM_NONE: none runs */
    bool was_told_message; /* one is being delivered */
    size_t children;       /* that its tools started */
    int32_t effort_asked;
    int64_t time_parts;
    int64_t wrap_up_ms; /* BUDGET_NO_LIMIT: no deadline */
};

struct swarm_mail {
    uint64_t number; /* 0: the slot is free */
    size_t from, to;
    bool is_sent; /* DO_DELIVER was given */
    struct buffer text;
};

struct swarm {
    struct swarm_options options;
    struct buffer task;
    enum swarm_phase phase;
    struct budget *budget;
    struct swarm_node *nodes;     /* [count], room for options.nodes_max */
    struct swarm_inside *insides; /* [count] */
    size_t count;
    int64_t now_ms;
    /* On the clock of the events; BUDGET_NO_LIMIT without a deadline. */
    int64_t nodes_deadline_ms, decide_ms, deadline_ms;

    struct swarm_effect *effects; /* [effect_count], room for effects_max */
    size_t effect_count, effects_max;
    size_t changes;  /* of this event: as long as there are new ones, more may follow from them */
    int64_t wake_ms; /* of the last WAIT; BUDGET_NO_LIMIT: none */

    struct swarm_mail mail[SWARM_MESSAGES_MAX];
    size_t mail_count;
    uint64_t mail_number; /* of the last message */

    bool disk_is_full;
    bool is_interrupted;
    int verifier_faults; /* in a row */
    size_t verifying;
    size_t rank_nodes[SWARM_NODES_MAX];
    size_t rank_count;
    bool is_ranking;
    int64_t rank_tokens; /* reserved */
    size_t root_merges;  /* that went into the root's workspace */
    size_t root_merging; /* node whose merge into the root runs, or SWARM_NONE */

    bool has_result; /* chosen; result.node */
    bool is_merging_result, result_is_settled;
    int64_t merge_until_ms, end_until_ms;
    struct swarm_result result;
    char why[STRATEGY_WHY_BYTES];
    size_t wanted; /* the strategy's choice */
    char refusal[SWARM_WHY_BYTES];

    struct strategy_orders orders;
    struct strategy_note notes[SWARM_NOTES_MAX];
    size_t note_count;
    _Alignas(max_align_t) unsigned char state[STRATEGY_STATE_BYTES];
};

/* ---- swarm.c ----------------------------------------------------------------------------------- */
struct swarm_effect *swarm_emit(struct swarm *swarm, enum swarm_effect_type type, size_t node);
/* now + ms, without overflow. */
int64_t swarm_after(const struct swarm *swarm, int64_t ms);
/* As much of a foreign text as is valid UTF-8 and fits. */
struct view swarm_words(struct view text, size_t bytes_max);
void swarm_set_text(struct buffer *out, struct view text, size_t bytes_max);

/* ---- swarm_nodes.c ----------------------------------------------------------------------------- */
bool swarm_is_live(const struct swarm *swarm, size_t node);   /* starting or running */
bool swarm_has_ended(const struct swarm *swarm, size_t node); /* its agent; perhaps verified now */
/* Adds a planned node with an account; SWARM_NONE: refused, see swarm->refusal. */
size_t swarm_add(
    struct swarm *swarm,
    size_t parent,
    struct view brief,
    struct view name,
    const struct budget_share *share
);
void swarm_cancel(struct swarm *swarm, size_t node, enum swarm_cut why);
void swarm_node_started(struct swarm *swarm, size_t node);
void swarm_node_start_failed(struct swarm *swarm, size_t node, struct view why);
void swarm_node_ended(struct swarm *swarm, const struct swarm_event *event);
void swarm_node_lost(struct swarm *swarm, size_t node);
void swarm_charge(struct swarm *swarm, size_t node, int64_t tokens, int64_t calls);
bool swarm_is_startable(
    const struct swarm *swarm, size_t node
);                                           /* there is enough of what it holds */
void swarm_fill(struct swarm *swarm);        /* answers and starts what there is room for */
void swarm_tell_shares(struct swarm *swarm); /* of accounts that changed */
size_t swarm_pick(
    const struct swarm *swarm, bool (*is_wanted)(const struct swarm *swarm, size_t node)
); /* the first in order, or SWARM_NONE */

/* ---- swarm_orders.c ---------------------------------------------------------------------------- */
void swarm_note(struct swarm *swarm, enum strategy_note_type type, size_t node);
void swarm_start_strategy(struct swarm *swarm);
void swarm_run_strategy(struct swarm *swarm); /* until no note is left */

/* ---- swarm_asks.c, swarm_children.c, swarm_waits.c, swarm_messages.c ------------------------------------------------ */
void swarm_ask_children(struct swarm *swarm, size_t node, const struct swarm_ask *ask);
void swarm_begin_wait(
    struct swarm *swarm, size_t node, enum swarm_wait wait, const struct swarm_ask *ask
);
void swarm_asked(struct swarm *swarm, size_t node, const struct swarm_ask *ask);
PRINTF_LIKE(2, 3) void swarm_refuse(struct swarm *swarm, const char *format, ...);
struct swarm_effect *
swarm_answer(struct swarm *swarm, size_t node, uint64_t ask, enum swarm_answer answer);
void swarm_wait_ready(struct swarm *swarm, size_t node, enum swarm_answer answer);
void swarm_wait_forget(struct swarm *swarm, size_t node);
/* Whether a wait of `node` for `target` would close a circle; then its names are in swarm->refusal. */
bool swarm_wait_is_circle(struct swarm *swarm, size_t node, size_t target);
void swarm_look_at_waits(struct swarm *swarm);
bool swarm_somebody_is_at_work(const struct swarm *swarm, size_t node); /* for a waiting one */
bool swarm_passing_is_wanted(const struct swarm *swarm, size_t node);
uint64_t swarm_send(struct swarm *swarm, size_t from, size_t to, struct view text); /* 0: refused */
void swarm_delivered(struct swarm *swarm, size_t node, uint64_t message);
void swarm_bounce(struct swarm *swarm, size_t node);
void swarm_deliver(struct swarm *swarm, size_t node);
bool swarm_has_mail(const struct swarm *swarm, size_t node);

/* ---- swarm_results.c --------------------------------------------------------------------------- */
void swarm_verify(struct swarm *swarm, size_t node);
void swarm_verified(struct swarm *swarm, size_t node, const struct swarm_event *event);
void swarm_fill_verifications(struct swarm *swarm);
void swarm_cancel_verifications(struct swarm *swarm);
void swarm_rank(struct swarm *swarm);
void swarm_ranked(struct swarm *swarm, const struct swarm_event *event);
void swarm_merge(struct swarm *swarm, size_t node, size_t target);
void swarm_fill_merges(struct swarm *swarm);
void swarm_merged(struct swarm *swarm, size_t node, const struct swarm_event *event);

/* ---- swarm_time.c, swarm_end.c --------------------------------------------------------------------- */
void swarm_set_times(struct swarm *swarm);
void swarm_look_at_time(struct swarm *swarm);
void swarm_turn_ended(struct swarm *swarm, size_t node, const struct swarm_event *event);
int64_t swarm_next_wake(const struct swarm *swarm);
PRINTF_LIKE(3, 4) void swarm_end(struct swarm *swarm, size_t wanted, const char *format, ...);
void swarm_go_on_ending(struct swarm *swarm);
/* A merge that was under way when the swarm finished has ended: the result tells what the workspace holds. */
void swarm_merged_late(struct swarm *swarm, size_t node, const struct swarm_event *event);
bool swarm_is_stalled(const struct swarm *swarm);

#endif
