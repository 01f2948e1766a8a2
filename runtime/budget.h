/* What a tree of agents may spend: reserved before, settled after, never more than the root has.
 *
 * Each node has an account. Its share comes out of what its parent has left when it is opened, and
 * what it did not use goes back when it is closed. Tokens and calls are spent for good; processes and
 * memory are held and come back. A node's deadline is never behind its parent's. All of it is
 * arithmetic on numbers that are given: no clock, no I/O, no allocation after creation.
 * Thread: one at a time.
 *
 *     left = share - spent - reserved - shares of the open children
 */
#ifndef HEARTH_RUNTIME_BUDGET_H
#define HEARTH_RUNTIME_BUDGET_H

#include "base/bytes.h"

#define BUDGET_NODES_MAX     1024 /* accounts of one tree, the closed ones too */
#define BUDGET_DEPTH_DEFAULT 3    /* the root's own depth is 0 */
#define BUDGET_NODES_DEFAULT 64
#define BUDGET_NO_LIMIT      INT64_MAX
#define BUDGET_ROOT          ((size_t)0)
#define BUDGET_TEXT_BYTES    160

enum budget_resource {
    BUDGET_TOKENS,    /* sampled */
    BUDGET_CALLS,     /* of tools */
    BUDGET_PROCESSES, /* held at one time */
    BUDGET_MEMORY,    /* bytes held at one time */
    BUDGET_RESOURCES
};

struct budget_amounts {
    int64_t of[BUDGET_RESOURCES]; /* >= 0; in limits and shares BUDGET_NO_LIMIT is allowed */
};

struct budget_limits {
    struct budget_amounts amounts; /* of the whole tree */
    int64_t deadline_ms;           /* on the clock of the caller; BUDGET_NO_LIMIT: none */
    size_t depth_max;              /* 0: BUDGET_DEPTH_DEFAULT */
    size_t nodes_max;              /* with the root, over the whole run; 0: BUDGET_NODES_DEFAULT */
};

struct budget_share {
    struct budget_amounts amounts;
    int64_t deadline_ms; /* clipped to the parent's */
};

enum budget_refusal_reason {
    BUDGET_GRANTED,
    BUDGET_REFUSED_AMOUNT, /* of `resource`, `asked` were asked and `left` are left */
    BUDGET_REFUSED_TIME,   /* `asked` is the deadline wanted, `left` the milliseconds left: none */
    BUDGET_REFUSED_DEPTH,  /* `left` is depth_max */
    BUDGET_REFUSED_NODES,  /* `left` is nodes_max */
    BUDGET_REFUSED_CLOSED  /* the account is closed */
};

struct budget_refusal {
    enum budget_refusal_reason reason;
    enum budget_resource resource;
    int64_t asked, left;
};

struct budget;

const char *budget_resource_name(enum budget_resource resource); /* "tokens", "calls", ... */
/* "tokens: 4096 asked, 120 left": one line for the model and for people. */
void budget_refusal_text(const struct budget_refusal *refusal, char out[BUDGET_TEXT_BYTES]);

/* Opens the root's account. Expected errors: MEMORY, INVALID_INPUT (a negative amount, more than
 * BUDGET_NODES_MAX nodes). */
MUST_CHECK result
budget_create(struct budget **out, const struct budget_limits *limits, struct error *error);
void budget_destroy(struct budget *budget); /* accepts null */
void budget_cleanup(struct budget **budget);

/* Reserves a child's share from what `parent` has left. False: nothing changed, *refusal says why. */
bool budget_open(
    struct budget *budget,
    size_t parent,
    const struct budget_share *share,
    int64_t now_ms,
    size_t *out_node,
    struct budget_refusal *refusal
);
/* Moves more from the parent's remainder into an open account. */
bool budget_grow(
    struct budget *budget,
    size_t node,
    const struct budget_amounts *more,
    struct budget_refusal *refusal
);
/* Gives held resources (processes, memory) of the account, as far as nothing holds them, back to the
 * parent; tokens and calls stay. */
void budget_shrink_held(struct budget *budget, size_t node);
/* An earlier or later deadline, clipped to the parent's. Returns the one that holds now. */
int64_t budget_set_deadline(struct budget *budget, size_t node, int64_t deadline_ms);

/* Before a step that costs something; refused when the account has less left. */
bool budget_reserve(
    struct budget *budget,
    size_t node,
    const struct budget_amounts *amounts,
    struct budget_refusal *refusal
);
/* After it: what was reserved is released, `used` tokens and calls are spent. False when it used more
 * than was reserved and left together: the share is then spent to the end, the rest is counted as
 * overdrawn. */
bool budget_settle(
    struct budget *budget,
    size_t node,
    const struct budget_amounts *reserved,
    const struct budget_amounts *used
);
/* Settles what nothing was reserved for. */
bool budget_charge(struct budget *budget, size_t node, const struct budget_amounts *used);

/* Gives back what was not used; with `is_lost` all tokens and calls of the share count as used, since
 * nobody can say. All children are closed before. What was still reserved counts as used. */
void budget_close(struct budget *budget, size_t node, bool is_lost);

bool budget_is_open(const struct budget *budget, size_t node);
size_t budget_nodes(const struct budget *budget); /* opened so far */
size_t budget_nodes_max(const struct budget *budget);
size_t budget_depth_max(const struct budget *budget);
size_t budget_depth(const struct budget *budget, size_t node);
size_t budget_parent(const struct budget *budget, size_t node); /* the root's is the root */
size_t budget_children_open(const struct budget *budget, size_t node);
int64_t budget_deadline_ms(const struct budget *budget, size_t node);
struct budget_amounts budget_left(const struct budget *budget, size_t node);
struct budget_amounts budget_share(const struct budget *budget, size_t node);
/* Of the node and of its closed children. */
struct budget_amounts budget_spent(const struct budget *budget, size_t node);
struct budget_amounts budget_reserved(const struct budget *budget, size_t node);
/* What the node itself may have spent at most when it has spent all that it has left. */
int64_t budget_own_max(const struct budget *budget, size_t node, enum budget_resource resource);
int64_t budget_own_spent(const struct budget *budget, size_t node, enum budget_resource resource);
/* Beyond every share, of the tree: 0 as long as everybody keeps to what was reserved. */
struct budget_amounts budget_overdrawn(const struct budget *budget);

/* One of `parts` equal parts; no limit stays no limit. */
int64_t budget_part(int64_t amount, int64_t parts);

/* Whether the sums are right: fails (CORRUPT, naming node and resource) when a share, a remainder or
 * the tree's total is not what the accounts add up to. For tests. */
MUST_CHECK result budget_check(const struct budget *budget, struct error *error);

/* ---- effort ------------------------------------------------------------------------------------ */

#define BUDGET_EFFORT_STEPS 4

/* How fast a node works and what it has left. */
struct budget_pace {
    bool effort_may_vary;  /* only a model that was trained with it */
    int32_t effort;        /* asked for; 1..100 */
    int32_t effort_min;    /* never below; 1..effort */
    int64_t time_left_ms;  /* BUDGET_NO_LIMIT: no limit */
    int64_t tokens_left;   /* BUDGET_NO_LIMIT: no limit */
    int64_t turn_ms;       /* a turn takes, so far; 0: unknown */
    int64_t turn_tokens;   /* a turn costs, so far; 0: unknown */
    int64_t turns_of_work; /* that are left, as far as anybody knows; >= 1 */
};

/* The effort to go on with: as asked while what is left suffices for the work that is left at this
 * pace, else one of the steps 100, 75, 50, 25 below it: the shorter it falls, the lower. */
int32_t budget_effort(const struct budget_pace *pace);

/* ---- order ------------------------------------------------------------------------------------- */

/* What runs first when there is not room for all. */
struct budget_rank {
    int32_t value; /* of its result: a planner before a worker before one of several attempts */
    int64_t deadline_ms; /* BUDGET_NO_LIMIT: none */
    int64_t work_ms;     /* that is left, estimated; 0: unknown */
    size_t index;        /* breaks ties */
};

/* deadline - now - work; BUDGET_NO_LIMIT without a deadline. */
int64_t budget_slack_ms(const struct budget_rank *rank, int64_t now_ms);
/* Whether `a` goes before `b`: what can still be done in time before what cannot, then by value, then
 * the one with less slack. A total order. */
bool budget_goes_before(const struct budget_rank *a, const struct budget_rank *b, int64_t now_ms);

#endif
