/* Many agents on one task, durably: swarms, their nodes, and the mail between agents. What
 * runtime/swarm.h decides is kept here, in its words.
 *
 *     session_swarm_start (below an agent of a running session)
 *         -> for each node: session_node_start, its turns as any agent's, session_node_change,
 *            session_node_end, later perhaps session_node_judge and session_node_merge
 *         -> session_swarm_finish
 *
 * Mail is delivered once and in order, or bounces: a message waits from session_mail_send until it is
 * delivered, in one batch with the turn that holds it, or until its receiver ends (session_node_end,
 * in one transaction with it) and it bounces. Whoever dies in between leaves one of these states, and
 * a mailbox whose reader has ended is empty.
 *
 * Errors, order and threads: as of the appends of session.h.
 */
#ifndef HEARTH_SESSIONS_SESSION_SWARM_H
#define HEARTH_SESSIONS_SESSION_SWARM_H

#include "session.h"

#define SESSION_NO_LIMIT        INT64_MAX
#define SESSION_MAIL_BYTES_MAX  ((size_t)64 << 10)
#define SESSION_MAILBOX_MAX     1024 /* that wait for one agent */
#define SESSION_BRIEF_BYTES_MAX ((size_t)64 << 10)

/* What an agent may use, or a whole tree; SESSION_NO_LIMIT: as much as it wants. */
struct session_share {
    int64_t deadline_ms; /* wall clock, UTC */
    int64_t tokens_max, calls_max, processes_max, memory_bytes_max;
};

/* ---- swarms ------------------------------------------------------------------------------------ */

struct session_swarm_begin {
    struct session_id root; /* agent: its workspace takes the results */
    struct view strategy;   /* "race", "best-of-n", ... */
    struct view reason;     /* why this one was chosen; "": it was asked for */
    struct view verifier;   /* command; "": none */
    struct view settings;   /* everything else it was started with, a JSON object; "": nothing */
    uint64_t seed;
    struct session_share share;
};

/* `swarm` is the key of the calls below; unique in the store. */
MUST_CHECK result session_swarm_start(
    struct session_store *store,
    const struct session_swarm_begin *begin,
    int64_t *swarm,
    struct error *error
);

struct session_swarm_end {
    struct view outcome;    /* "passed", "failed", "unverified", "cancelled" */
    struct session_id best; /* agent; "": none, or the root with what was merged */
    bool is_merged;         /* the root's workspace holds the result */
    struct view commit_after;
    struct view why; /* a sentence or two */
};

/* Mail that still waits for its root bounces. INVALID_INPUT while a node has not ended. */
MUST_CHECK result session_swarm_finish(
    struct session_store *store,
    int64_t swarm,
    const struct session_swarm_end *end,
    struct error *error
);

/* ---- nodes ------------------------------------------------------------------------------------- */

struct session_node_begin {
    int64_t swarm;
    /* parent: the root or a node of the swarm. fork_turn: for the kind "fork". sampler.effort: the
     * effort it begins with. */
    struct session_agent_begin agent;
    struct view kind; /* "fork", "spawn" */
    struct view brief;
    struct view workspace;     /* directory */
    struct view commit_before; /* snapshot that the workspace begins with */
    struct session_share share;
};

/* The agent and what it is in the swarm, in one transaction. *out is the agent. */
MUST_CHECK result session_node_start(
    struct session_store *store,
    const struct session_node_begin *begin,
    struct session_id *out,
    struct error *error
);

/* Another share or effort than before, of a node that has not ended. */
MUST_CHECK result session_node_change(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_share *share,
    int64_t effort,
    struct error *error
);

struct session_node_end {
    struct view
        ending;      /* "answer", "budget", "fault", "cancel", "start": it could not be started */
    struct view cut; /* why it was cancelled, a few words; "": it was not */
    struct view outcome; /* "passed", "failed", "unverified", "cancelled", "lost"; "": undecided */
    struct view summary; /* its last text */
    struct view detail;  /* why it failed */
    struct view commit_after; /* what it made; "": nothing was changed */
    int64_t changed_lines;
    int64_t turns, tokens, calls; /* spent */
};

/* Once; mail that waits for it bounces in the same transaction, and it is sent no more. INVALID_INPUT:
 * it has ended. */
MUST_CHECK result session_node_end(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_node_end *end,
    struct error *error
);

struct session_judgement {
    struct view outcome; /* as of session_node_end */
    struct view verdict; /* "pass", "fail", "hung", "crashed", "edited"; "": nobody looked */
    struct view detail;  /* the end of what the verifier said */
    bool has_score;
    double score; /* of a ranking */
};

/* Of a node that has ended; what was said before gives way. */
MUST_CHECK result session_node_judge(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_judgement *judgement,
    struct error *error
);

struct session_merge {
    struct session_id into; /* agent of the same session, into whose workspace */
    struct view commit;     /* of that workspace, with the node's changes; "": refused: */
    struct view conflicts;  /* paths, one a line */
};

/* Of a node that has ended. A merge that went well is the last one: INVALID_INPUT after. */
MUST_CHECK result session_node_merge(
    struct session_store *store,
    const struct session_id *agent,
    const struct session_merge *merge,
    struct error *error
);

/* ---- mail -------------------------------------------------------------------------------------- */

struct session_mail_begin {
    struct session_id from, to; /* agents of one running session; `to` has not ended */
    struct view text;           /* 1 to SESSION_MAIL_BYTES_MAX bytes */
};

/* It waits from now on. `mail` is its key, larger than those of all mail before it. In one batch with
 * what tells the sender that it was sent. LIMIT: SESSION_MAILBOX_MAX wait already. */
MUST_CHECK result session_mail_send(
    struct session_store *store,
    const struct session_mail_begin *begin,
    int64_t *mail,
    struct error *error
);

/* `turn` of the receiver holds it: in the message that was appended to it last. Only in a batch, that
 * of this message. INVALID_INPUT: it does not wait any more, or an earlier one does. */
MUST_CHECK result
session_mail_deliver(struct session_store *store, int64_t mail, int64_t turn, struct error *error);

/* The same for what bounced: `turn` of the sender says so. Once. */
MUST_CHECK result
session_mail_return(struct session_store *store, int64_t mail, int64_t turn, struct error *error);

/* ---- as loaded --------------------------------------------------------------------------------- */

enum session_mail_state { SESSION_MAIL_WAITS, SESSION_MAIL_DELIVERED, SESSION_MAIL_BOUNCED };

struct session_mail {
    int64_t number;
    struct session_id from, to;
    int64_t sent_ms;
    struct view text;
    enum session_mail_state state;
    int64_t settled_ms; /* 0: it waits, or its time is not known */
    int64_t turn; /* number of the receiver's that holds it, or of the sender's that tells; 0 */
};

struct session_swarm {
    int64_t number;
    struct session_swarm_begin begin;
    int64_t started_ms;
    bool is_ended;
    int64_t ended_ms; /* 0: not known, the program died: the outcome is "interrupted" */
    struct session_swarm_end end;
};

struct session_node {
    int64_t swarm;
    struct view kind, brief, workspace, commit_before;
    struct session_share share; /* as last told */
    int64_t effort;
    bool is_ended;
    int64_t ended_ms; /* 0: as of a swarm; the ending is "interrupted" */
    struct session_node_end end;
    struct view verdict;
    bool has_score;
    double score;
    struct session_id merged_into; /* "": it is not */
    struct view merge_commit, conflicts;
};

/* Stable lower-case words. */
const char *session_mail_state_name(enum session_mail_state state);

#endif
