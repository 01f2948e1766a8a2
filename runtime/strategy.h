/* What a swarm starts, keeps and gives as its result: one table of functions per strategy, one file
 * each.
 *
 * A strategy sees the swarm (swarm.h, read-only), keeps a small state of its own and gives orders; the
 * swarm carries them out within its budget and caps, verifies, ranks and merges for it, and ends by
 * itself at the deadline. A strategy that has nothing at work and orders nothing has ended.
 * Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_STRATEGY_H
#define HEARTH_RUNTIME_STRATEGY_H

#include "swarm.h"

#define STRATEGY_STATE_BYTES 4096 /* of any strategy; what is larger it allocates */
#define STRATEGY_ORDERS_MAX  (SWARM_NODES_MAX + 8)
#define STRATEGY_WHY_BYTES   200
#define STRATEGY_RANK_TOKENS 64 /* of one node's score */

/* Of a node's result, for the order of what runs first. */
#define STRATEGY_VALUE_ATTEMPT 1 /* one of several */
#define STRATEGY_VALUE_WORKER  2
#define STRATEGY_VALUE_PLANNER 3 /* others wait for it */

/* What has happened. */
enum strategy_note_type {
    STRATEGY_NODE_ENDED,    /* an ordered node; its outcome is decided but for a verification */
    STRATEGY_NODE_VERIFIED, /* or cannot be: see its verdict */
    STRATEGY_RANKED,        /* nodes have scores, or the ranking failed */
    STRATEGY_MERGED,        /* node's is_merged, has_conflicts */
    STRATEGY_REFUSED        /* a node of `tag` was not started: swarm_refusal says why */
};

struct strategy_note {
    enum strategy_note_type type;
    size_t node;
    int64_t tag; /* REFUSED */
};

enum strategy_order_type {
    STRATEGY_ORDER_START,
    STRATEGY_ORDER_CANCEL, /* node */
    STRATEGY_ORDER_VERIFY, /* node, one that has ended, or the root */
    STRATEGY_ORDER_RANK,   /* all nodes that were marked */
    STRATEGY_ORDER_MERGE,  /* node's commit into the root's workspace */
    STRATEGY_ORDER_END     /* with this node or SWARM_NONE; `why` */
};

struct strategy_start {
    bool is_fork;
    bool is_part;
    struct view brief;   /* of the state, or constant; copied when the order is carried out */
    int64_t parts;       /* its share is one part of so many of what the root has left; >= 1 */
    int64_t keep_tokens; /* of what the root has left, before that: for a ranking */
    int64_t time_parts;  /* it may take one part of so many of the time that is left; >= 1 */
    int32_t effort;      /* 0: the options' */
    int32_t value;
    uint64_t seed;
    size_t index_of, count_of;
    size_t conflict_of; /* or SWARM_NONE */
    int64_t tag;
};

struct strategy_order {
    enum strategy_order_type type;
    size_t node;
    struct strategy_start start;
};

struct strategy_orders {
    struct strategy_order *items; /* [count], room for STRATEGY_ORDERS_MAX */
    size_t count;
    size_t *rank_nodes; /* [rank_count], room for SWARM_NODES_MAX */
    size_t rank_count;
    char why[STRATEGY_WHY_BYTES]; /* of ORDER_END */
};

struct strategy {
    const char *name;
    const char *summary; /* a few words for help */
    int64_t attempts_default;
    int64_t attempts_min;
    bool needs_verifier;
    /* `state` has STRATEGY_STATE_BYTES zeroed bytes. */
    void (*start)(void *state, const struct swarm *swarm, struct strategy_orders *orders);
    void (*note
    )(void *state,
      const struct swarm *swarm,
      const struct strategy_note *note,
      struct strategy_orders *orders);
    void (*deinit)(void *state); /* null: nothing to free */
};

extern const struct strategy strategy_single;
extern const struct strategy strategy_race;
extern const struct strategy strategy_best_of;
extern const struct strategy strategy_plan;
extern const struct strategy strategy_staged;
extern const struct strategy strategy_retries;

/* By name, not "auto"; null: no such one. */
const struct strategy *strategy_find(struct view name);
/* The names, for messages and help: "single, race, ...". */
const char *strategy_names(void);

/* What auto knows of the task and the means. */
struct strategy_facts {
    struct view task;
    bool has_verifier;
    int64_t time_ms, tokens;                 /* BUDGET_NO_LIMIT: none */
    int64_t memory_bytes, node_memory_bytes; /* BUDGET_NO_LIMIT, 0: unknown */
    int64_t attempts;                        /* asked for; SWARM_ATTEMPTS_DEFAULT */
    size_t live_max;
    bool effort_may_vary;
};

struct strategy_choice {
    const struct strategy *strategy;
    int64_t attempts;
    char why[STRATEGY_WHY_BYTES]; /* a sentence */
};

/* Chooses by task, budget, verifier and memory. */
void strategy_choose(const struct strategy_facts *facts, struct strategy_choice *out);

/* ---- for strategies ---------------------------------------------------------------------------- */

struct strategy_order *
strategy_order(struct strategy_orders *orders, enum strategy_order_type type, size_t node);
/* An order to start, with brief, one part of `parts`, no tag. */
struct strategy_start *
strategy_order_start(struct strategy_orders *orders, struct view brief, int64_t parts);
PRINTF_LIKE(3, 4)
void strategy_end(struct strategy_orders *orders, size_t node, const char *format, ...);
uint64_t strategy_seed(uint64_t seed, uint64_t index);

#endif
