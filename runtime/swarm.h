/* Many agents on one task, as a state machine over a tree of nodes: an event goes in, a list of effects
 * comes out.
 *
 * As agent.h, one level up: it decides and does nothing else. No I/O, no threads, no clock (each event
 * carries the time), no randomness but the seed, so that the same events give the same effects and a
 * whole swarm is simulated on one seed. Whoever drives it carries out the effects in order and answers
 * with the events below. Node 0 is the root: it has no agent, but the whole budget, the workspace into
 * which results are merged, and the context that all agents begin with. A strategy (strategy.h) starts
 * nodes below it; agents start further ones with their tools. Each node has an account (budget.h), a
 * workspace and an agent of its own.
 *
 *     planned -> starting -> running <-> waiting -> [verifying] -> ended
 *
 * What it promises, and swarm_check and the simulation look at after each event:
 *   the budget is kept, and what a node leaves over goes back;
 *   a message is delivered once and in order, or its sender is told;
 *   a node that was started ends before the swarm does, and nothing starts after the end was decided;
 *   what a node's tool asked is answered once, unless the node ends before;
 *   who waits has somebody at work for it, or is answered at once; circles of waits are refused;
 *   the result is never worse than the best verified node;
 *   caps on depth, nodes, nodes at work and children of a node hold.
 *
 * Time: nodes have deadlines before the root's, so that the best result can still be verified and
 * merged. At the root's deadline it finishes as soon as what it cancelled has ended, at the latest
 * kill_grace_ms later.
 * Memory: everything is bounded by the limits below; allocation that fails refuses what was asked.
 * Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_SWARM_H
#define HEARTH_RUNTIME_SWARM_H

#include "budget.h"

#define SWARM_NODES_MAX           256 /* with the root, over the whole run */
#define SWARM_NODES_DEFAULT       64
#define SWARM_DEPTH_DEFAULT       3
#define SWARM_LIVE_DEFAULT        8  /* agents at work at one time; who waits does not count */
#define SWARM_CHILDREN_MAX        32 /* that one agent may start, and names of one wait */
#define SWARM_VERIFICATIONS_MAX   4  /* at one time */
#define SWARM_VERIFIER_FAULTS_MAX 3  /* in a row: the verifier is not used any more */
#define SWARM_NAME_BYTES          32
#define SWARM_BRIEF_BYTES_MAX     ((size_t)32 << 10)
#define SWARM_SUMMARY_BYTES_MAX   ((size_t)16 << 10)
#define SWARM_DETAIL_BYTES_MAX    ((size_t)4 << 10) /* reasons, paths of conflicts */
#define SWARM_MESSAGE_BYTES_MAX   ((size_t)16 << 10)
#define SWARM_MAILBOX_MAX         16  /* messages that wait for one node */
#define SWARM_MESSAGES_MAX        256 /* that wait, of all nodes */
#define SWARM_DIGESTS             16  /* turns whose calls are remembered */
#define SWARM_LOOP_TURNS          4   /* the same calls with the same results, in a row */
#define SWARM_TWIN_TURNS          6   /* the same as a sibling's, in a row */
#define SWARM_CHILD_TOKENS_MIN    256 /* a smaller share starts nothing */
#define SWARM_WRAP_UP_PERCENT     80  /* of time, tokens or calls */
#define SWARM_VERIFY_MS_DEFAULT   60000
#define SWARM_MERGE_MS_DEFAULT    5000
#define SWARM_GRACE_MS_DEFAULT    3000
#define SWARM_SILENT_MS_DEFAULT   600000
#define SWARM_TIME_MS_MAX         INT64_C(2592000000) /* 30 days; sums of times do not overflow */
#define SWARM_WHY_BYTES           320
#define SWARM_ROOT                ((size_t)0)
#define SWARM_NONE                SIZE_MAX
#define SWARM_ATTEMPTS_DEFAULT    (-1)

struct strategy;
struct swarm;

struct swarm_options {
    struct view task;
    const struct strategy *strategy;
    int64_t attempts;    /* of strategies with a number; SWARM_ATTEMPTS_DEFAULT: the strategy's */
    bool has_verifier;   /* a command says whether a workspace solves the task */
    int64_t time_ms_max; /* this and the next four are of the whole tree; 0: no limit */
    int64_t tokens_max, calls_max, processes_max, memory_bytes_max;
    size_t depth_max, nodes_max, live_max; /* 0: defaults */
    int64_t verify_ms_max;                 /* of one verification; 0: default, as the next three */
    int64_t merge_ms_max;
    int64_t kill_grace_ms;     /* from a cancel until the node has ended, else it is lost */
    int64_t silent_ms_max;     /* without the end of a turn, or HEARD: the node hangs */
    int64_t node_memory_bytes; /* that one agent needs at least; 0: unknown */
    int32_t effort;            /* asked for; 0: the model has none */
    int32_t effort_min;        /* 0: 25 */
    bool effort_may_vary;      /* the model was trained with it */
    uint64_t seed;
};

/* ---- nodes ------------------------------------------------------------------------------------- */

enum swarm_kind {
    SWARM_KIND_ROOT,
    SWARM_KIND_FORK, /* continues the context of its parent */
    SWARM_KIND_SPAWN /* begins with the system text and its brief */
};

enum swarm_state {
    SWARM_PLANNED,  /* waits for room */
    SWARM_STARTING, /* answered by NODE_STARTED or NODE_START_FAILED */
    SWARM_RUNNING,
    SWARM_WAITING, /* in a tool call that the swarm answers later */
    SWARM_VERIFYING,
    SWARM_ENDED
};

/* What an ended node's result is worth. */
enum swarm_outcome {
    SWARM_UNDECIDED,
    SWARM_PASSED,
    SWARM_FAILED,     /* the verifier says so, or it never started, or its agent failed */
    SWARM_UNVERIFIED, /* it ended by itself, and nobody looked */
    SWARM_CANCELLED,
    SWARM_LOST /* it did not end when it was told to */
};

/* How an agent ended; the host maps agent.h's reasons. */
enum swarm_end {
    SWARM_END_ANSWER, /* done, as it says itself */
    SWARM_END_BUDGET, /* time, tokens, calls or turns */
    SWARM_END_FAULT,  /* a guard stopped it, or engine, record or sandbox failed */
    SWARM_END_CANCEL  /* it was told to */
};

enum swarm_verdict {
    SWARM_NOT_VERIFIED,
    SWARM_VERIFIED_PASS,
    SWARM_VERIFIED_FAIL,
    SWARM_VERIFIED_HUNG,    /* counts as failed */
    SWARM_VERIFIED_CRASHED, /* the verifier could not run: nothing is known */
    SWARM_VERIFIED_EDITED   /* it changed files of the workspace: nothing is known */
};

enum swarm_verify_step {
    SWARM_VERIFY_NONE,
    SWARM_VERIFY_QUEUED,
    SWARM_VERIFY_RUNS,
    SWARM_VERIFY_DONE
};

/* Why a node is cancelled. */
enum swarm_cut {
    SWARM_CUT_NONE,
    SWARM_CUT_END,     /* the swarm ends */
    SWARM_CUT_DECIDED, /* the strategy has what it wants */
    SWARM_CUT_ASKED,   /* an agent above it asked */
    SWARM_CUT_PARENT,  /* its parent has ended */
    SWARM_CUT_TIME,    /* its deadline */
    SWARM_CUT_SILENT,
    SWARM_CUT_LOOP,
    SWARM_CUT_TWIN,  /* it repeats its sibling `twin` */
    SWARM_CUT_BUDGET /* it spent more than its share */
};

struct swarm_commit {
    char text[72]; /* "": nothing was changed */
};

/* Read-only for all but the swarm. */
struct swarm_node {
    char name[SWARM_NAME_BYTES];
    enum swarm_kind kind;
    enum swarm_state state;
    enum swarm_outcome outcome;
    size_t parent, depth;
    size_t index_of, count_of; /* fork: this child of so many of the same call or order; from 0 */
    bool is_order;             /* the strategy started it, else an agent's tool */
    bool is_part;              /* what it makes is not the whole task */
    struct buffer brief;
    int64_t deadline_ms; /* BUDGET_NO_LIMIT: none */
    int32_t effort;      /* 0: the model has none */
    int32_t value;       /* see budget_rank */
    uint64_t seed;
    size_t
        conflict_of; /* its workspace begins with this node's merge and its conflicts; else NONE */
    int64_t tag;     /* the strategy's */

    int64_t planned_ms, started_ms, ended_ms, heard_ms;
    int64_t turns;
    uint64_t digests[SWARM_DIGESTS]; /* of the last turns; [turns % SWARM_DIGESTS] is the next */
    bool was_told_to_wrap_up;

    enum swarm_cut cut;
    bool is_cancelling; /* told to end */
    int64_t cancel_ms;
    size_t twin;

    enum swarm_end end;
    struct buffer summary; /* its last text, cut to SWARM_SUMMARY_BYTES_MAX */
    struct buffer detail;  /* why it failed, what the verifier said, or paths of conflicts */
    struct swarm_commit commit;
    int64_t changed_lines; /* of commit; may be 0, of binary files */
    bool is_merged;        /* its commit is in the parent's workspace */
    bool has_conflicts;    /* the merge was refused for that; `detail` has the paths */
    bool is_read;          /* its result was given to the agent that started it */

    enum swarm_verify_step verify;
    enum swarm_verdict verdict;
    int64_t verify_until_ms;
    bool has_score;
    double score;

    bool has_ask;
    uint64_t ask; /* number of the tool call that is open */
};

/* ---- events ------------------------------------------------------------------------------------ */

/* Every START, CANCEL, VERIFY, RANK, MERGE and DELIVER is answered by its event, also when it failed. Of
 * agents and verifiers that do not answer in time the swarm takes leave by itself; merges and rankings
 * are the host's own and come back. */

enum swarm_event_type {
    SWARM_START,
    SWARM_NODE_STARTED,
    SWARM_NODE_START_FAILED, /* text says why: no workspace, no memory */
    SWARM_TURN_ENDED, /* after its calls: tokens, calls (since the node's last event), digest */
    SWARM_HEARD,      /* in the middle of a turn: the node does not hang */
    SWARM_NODE_ENDED, /* end, text, detail, commit, changed_lines, tokens, calls. Its messages were
                         confirmed before or are not delivered any more; its processes are gone */
    SWARM_VERIFIED,   /* verdict, detail: the end of its output */
    SWARM_RANKED,     /* scores, in the order of the effect's nodes; none: it failed; tokens */
    SWARM_MERGED,     /* merge, detail: paths of conflicts or an error; commit of the target */
    SWARM_ASKED,      /* ask: a tool call of a running node, one at a time */
    SWARM_DELIVERED,  /* message: it is durable before the node's next turn */
    SWARM_TIME,       /* the time asked for has come, or any other */
    SWARM_INTERRUPT,
    SWARM_DISK_FULL,  /* no node can be started any more */
    SWARM_ENGINE_LOST /* detail; nothing is generated any more */
};

enum swarm_merge { SWARM_MERGE_OK, SWARM_MERGE_CONFLICTS, SWARM_MERGE_FAILED };

enum swarm_ask_type {
    SWARM_ASK_SPAWN,   /* briefs, name, tokens, time_ms; answered at once */
    SWARM_ASK_FORK,    /* briefs or count, join; answered when the children are done */
    SWARM_ASK_SEND,    /* names[0], text */
    SWARM_ASK_WAIT,    /* names (none: all own children that were not read), join, time_ms */
    SWARM_ASK_RECEIVE, /* time_ms; the message itself comes with SWARM_DELIVER */
    SWARM_ASK_CANCEL,  /* names */
    SWARM_ASK_MERGE    /* names[0]: a child's commit into the asker's workspace */
};

enum swarm_join { SWARM_JOIN_ALL, SWARM_JOIN_ANY, SWARM_JOIN_PASSING };

/* Foreign: from a model. */
struct swarm_ask {
    enum swarm_ask_type type;
    uint64_t number;           /* of the tool call */
    const struct view *briefs; /* [brief_count] */
    size_t brief_count;
    int64_t count;            /* FORK without briefs: so many; SPAWN: 0 or 1 */
    struct view name;         /* SPAWN: letters, digits, - and _; empty: one is made */
    const struct view *names; /* [name_count] */
    size_t name_count;
    enum swarm_join join;
    struct view text;
    int64_t tokens;  /* of each child; 0: an equal part */
    int64_t time_ms; /* of each child, or of the wait; 0: as long as there is time */
};

struct swarm_event {
    enum swarm_event_type type;
    int64_t now_ms; /* monotonic */
    size_t node;
    int64_t tokens, calls;
    uint64_t digest; /* of the calls and results of the turn; 0: it called nothing */
    enum swarm_end end;
    struct view text, detail; /* UTF-8 */
    struct view commit;
    int64_t changed_lines;
    enum swarm_verdict verdict;
    enum swarm_merge merge;
    const double *scores; /* [score_count] */
    size_t score_count;
    const struct swarm_ask *ask;
    uint64_t message;
};

/* ---- effects ----------------------------------------------------------------------------------- */

enum swarm_effect_type {
    SWARM_DO_START,  /* the node as swarm_node says, with swarm_start_text as its first text */
    SWARM_DO_CANCEL, /* mid-token; answered by NODE_ENDED, or NODE_START_FAILED */
    SWARM_DO_VERIFY, /* within time_ms_max, in the node's workspace as of its commit */
    SWARM_DO_CANCEL_VERIFY, /* nobody waits for its answer */
    SWARM_DO_RANK,          /* nodes; at most tokens_max */
    SWARM_DO_CANCEL_RANK,   /* answered by RANKED, for what it cost */
    SWARM_DO_MERGE,         /* the commit of `node` into the workspace of `target` */
    SWARM_DO_ANSWER,        /* the open tool call of node; see swarm_answer_text */
    SWARM_DO_DELIVER,       /* message, before the node's next turn; answered by DELIVERED */
    SWARM_DO_TELL,          /* a remark before the node's next turn; see swarm_tell_text */
    SWARM_DO_SET_SHARE, /* the node's agent may spend tokens_max and calls_max in its whole life, and
                               hold the rest */
    SWARM_DO_SET_EFFORT, /* effort, from its next turn on */
    SWARM_DO_WAIT,       /* send TIME at wake_ms; replaces an earlier wait */
    SWARM_DO_FINISH      /* nothing follows; see swarm_result */
};

enum swarm_answer {
    SWARM_ANSWER_STARTED,   /* nodes */
    SWARM_ANSWER_SENT,      /* message */
    SWARM_ANSWER_ENDED,     /* nodes: what was waited for */
    SWARM_ANSWER_TIMEOUT,   /* nodes: those that are still at work */
    SWARM_ANSWER_MESSAGE,   /* a message ends the wait */
    SWARM_ANSWER_STUCK,     /* nobody is at work for it; nodes */
    SWARM_ANSWER_CANCELLED, /* nodes: told to end */
    SWARM_ANSWER_MERGED,    /* nodes[0] */
    SWARM_ANSWER_CONFLICTS, /* nodes[0]: nothing was changed */
    SWARM_ANSWER_REFUSED    /* swarm_refusal says why */
};

enum swarm_tell {
    SWARM_TELL_WRAP_UP,     /* node's own budget nears its end */
    SWARM_TELL_CHILD_ENDED, /* about */
    SWARM_TELL_BOUNCED      /* message to `about` was not delivered: it has ended */
};

struct swarm_effect {
    enum swarm_effect_type type;
    size_t node;
    size_t target;       /* MERGE */
    const size_t *nodes; /* [node_count]; until the next event */
    size_t node_count;
    uint64_t ask; /* ANSWER: the call's number */
    enum swarm_answer answer;
    enum swarm_tell tell;
    size_t about;       /* TELL */
    uint64_t message;   /* DELIVER, TELL_BOUNCED, ANSWER_SENT */
    int64_t tokens_max; /* SET_SHARE, START, RANK; BUDGET_NO_LIMIT: none */
    int64_t calls_max, processes_max, memory_bytes_max; /* START; all: SET_SHARE */
    int64_t time_ms_max;                                /* VERIFY */
    int64_t wake_ms;                                    /* WAIT */
    int32_t effort;                                     /* SET_EFFORT */
};

struct swarm_effects {
    const struct swarm_effect *items; /* [count], until the next event */
    size_t count;
};

/* ---- life -------------------------------------------------------------------------------------- */

/* Copies what it needs. Expected errors: INVALID_INPUT (naming what is out of range), MEMORY. */
MUST_CHECK result
swarm_create(struct swarm **out, const struct swarm_options *options, struct error *error);
void swarm_destroy(struct swarm *swarm); /* accepts null */
void swarm_cleanup(struct swarm **swarm);

/* Takes one event. Those that do not fit the state (of a node that has ended or is lost, a late time)
 * give no effects of their own. After FINISH a merge that was under way is still heard, without effects: it
 * changes what swarm_node and swarm_result say of being merged. */
void swarm_handle(
    struct swarm *swarm, const struct swarm_event *event, struct swarm_effects *effects
);

/* How it ended. */
struct swarm_result {
    size_t node;                /* SWARM_ROOT: what was merged; SWARM_NONE: there is nothing */
    enum swarm_outcome outcome; /* PASSED, FAILED, UNVERIFIED; CANCELLED with SWARM_NONE: nothing */
    bool is_merged;             /* the root's workspace holds it */
    char why[SWARM_WHY_BYTES];  /* a sentence or two */
};

bool swarm_is_finished(const struct swarm *swarm);
bool swarm_is_ending(const struct swarm *swarm); /* decided; what runs is being ended */
const struct swarm_result *swarm_result(const struct swarm *swarm); /* after DO_FINISH */

size_t swarm_node_count(const struct swarm *swarm); /* with the root */
const struct swarm_node *swarm_node(const struct swarm *swarm, size_t node);
size_t swarm_find(const struct swarm *swarm, struct view name); /* or SWARM_NONE */
const struct budget *swarm_budget(const struct swarm *swarm); /* accounts have the nodes' numbers */
const struct swarm_options *swarm_options(const struct swarm *swarm); /* defaults filled in */
/* Last moment of nodes; the root's deadline is later. BUDGET_NO_LIMIT: none. */
int64_t swarm_nodes_deadline_ms(const struct swarm *swarm);
size_t swarm_live(const struct swarm *swarm);
/* Whether verifications are still made: there is a verifier, and it works. */
bool swarm_can_verify(const struct swarm *swarm);
bool swarm_can_start(const struct swarm *swarm); /* time is left, the disk is not full */
/* The node with the best result so far, or SWARM_NONE: passed, before unverified, before failed; then
 * by score, then the shorter diff. Parts of the task count only when they passed. */
size_t swarm_best(const struct swarm *swarm);
/* 4: passed, 3: unverified and whole, 2: cut off with changes, 1: failed, 0: nothing. */
int swarm_class(const struct swarm *swarm, size_t node);
/* Whether `a` goes before `b` where the engine or the host has not room for both. */
bool swarm_goes_before(const struct swarm *swarm, size_t a, size_t b, int64_t now_ms);

struct swarm_message {
    size_t from, to;
    struct view text;
};
/* Of DO_DELIVER, until DELIVERED or the end of the node; false when there is none. */
bool swarm_message(const struct swarm *swarm, uint64_t message, struct swarm_message *out);

const char *swarm_kind_name(enum swarm_kind kind);
const char *swarm_state_name(enum swarm_state state);
const char *swarm_outcome_name(enum swarm_outcome outcome);
const char *swarm_cut_text(enum swarm_cut cut); /* a few words */

/* Texts for models; valid for the effect until the next event. Expected errors: MEMORY, LIMIT. */
/* What a node is told first: the task, of an ordered one, and its brief, each as it stands; with notes its
 * name, share and time behind them. The child of an agent's fork knows the task: notes, then its brief. */
MUST_CHECK result swarm_start_text(
    const struct swarm *swarm,
    size_t node,
    int64_t now_ms,
    bool has_notes,
    struct buffer *out,
    struct error *error
);
MUST_CHECK result swarm_answer_text(
    const struct swarm *swarm,
    const struct swarm_effect *effect,
    struct buffer *out,
    struct error *error
);
MUST_CHECK result swarm_tell_text(
    const struct swarm *swarm,
    const struct swarm_effect *effect,
    int64_t now_ms,
    struct buffer *out,
    struct error *error
);
const char *swarm_refusal(const struct swarm *swarm); /* of the last ANSWER_REFUSED */

/* Fails (CORRUPT, with what is wrong) when a promise above does not hold. For tests. */
MUST_CHECK result swarm_check(const struct swarm *swarm, struct error *error);

#endif
