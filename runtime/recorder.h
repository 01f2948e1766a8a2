/* Makes the steps of a run durable: the blocking half of a RECORD effect.
 *
 * Between an agent's effects and sessions/session.h and sandbox/workspace.h: keeps the numbers of
 * the open session, turn and call and the last snapshot. Knows no loop. Thread: one worker at a
 * time; the loop thread may read between steps.
 */
#ifndef HEARTH_RUNTIME_RECORDER_H
#define HEARTH_RUNTIME_RECORDER_H

#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"
#include "resume.h"
#include "sandbox/workspace.h"
#include "sessions/session.h"
#include "sessions/session_swarm.h"
#include "tools/tool.h"

/* A node of a swarm in a session that is open. */
struct recorder_node {
    struct session_id session;
    /* agent.session, agent.tools, agent.sampler and, with a workspace, commit_before are filled in. */
    struct session_node_begin begin;
    /* What its context begins with, that begin.agent.fork_turn has in the record. */
    int64_t tokens;
    size_t messages;
};

struct recorder {
    /* set by the owner before recorder_begin, borrowed */
    struct session_store *store;
    struct workspace *workspace; /* null: no snapshots */
    struct session_begin begin;
    struct view tools_json;
    struct engine_info engine;
    const struct resume *resume;      /* null: a new session */
    const struct recorder_node *node; /* null: the session is the recorder's own */

    struct session_id session, agent;
    struct session_id summaries; /* agent; "": none was needed yet */
    int64_t turn, call;
    bool turn_is_open;                         /* started, and its generation is not recorded yet */
    int64_t position;                          /* tokens recorded of the context */
    int64_t turn_position;                     /* before the prompt of the last turn */
    size_t recorded_messages;                  /* messages below are in the record already */
    char commit_first[WORKSPACE_COMMIT_BYTES]; /* before the run */
    char
        commit_base[WORKSPACE_COMMIT_BYTES]; /* before the session: what changes are told against */
    char commit_last[WORKSPACE_COMMIT_BYTES];
    bool tree_may_differ;                   /* a tool ran since the last snapshot */
    struct workspace_difference difference; /* of the whole run, after recorder_end and its like */
    bool difference_is_unknown;             /* a snapshot was cut short */
};

/* Patch text kept of a run's difference. */
#define RECORDER_PATCH_BYTES_MAX ((size_t)256 << 10)

void recorder_deinit(struct recorder *recorder);

/* Snapshot, session, agent; or the session opened again, with what repairs its end; or the node. Expected errors of
 * all: those of the store and the workspace. */
MUST_CHECK result recorder_begin(struct recorder *recorder, struct error *error);

/* Files were put back: the workspace is what `commit` holds. Thread: a worker, between steps. */
void recorder_put_back(struct recorder *recorder, const char *commit);
/* The session's context is an earlier one: turns go on behind it. Thread: loop, between steps. */
void recorder_rewound(struct recorder *recorder, const struct resume *resume);

/* A message that holds mail (session_swarm.h); a key of 0: none. */
struct recorder_mail {
    size_t message; /* index in the conversation */
    int64_t delivers, returns;
};

struct recorder_turn {
    const struct chat_encoder *encoder;
    const struct chat_conversation *conversation;
    size_t from_message;
    bool end_is_missing;
    /* Messages [unrun_from, unrun_from + unrun_count) answer calls that never ran. */
    size_t unrun_from, unrun_count;
    struct chat_options options;
    int32_t tokens_max;               /* of more, nothing is recorded */
    const struct recorder_mail *mail; /* [mail_count] of new messages, in their order */
    size_t mail_count;
};
/* Encodes the messages that are new and records the turn with them; *ids receives what is to be
 * appended to the sequence, *fits whether it is no more than tokens_max. */
MUST_CHECK result recorder_turn_start(
    struct recorder *recorder,
    const struct recorder_turn *turn,
    struct token_list *ids,
    bool *fits,
    struct error *error
);
/* What a generation wrote, and what it depended on: one append, so that neither is lost without the
 * other. `facts` null: they are not known, since the engine failed. */
struct recorder_generation {
    const struct token_list *ids;
    const float *log_probabilities; /* [ids->count] */
    const struct chat_message *message;
    const struct generation_facts *facts;
    enum finish_reason reason;
    struct view stop; /* FINISH_STOP: the string that ended it */
};
MUST_CHECK result recorder_output(
    struct recorder *recorder, const struct recorder_generation *generation, struct error *error
);
MUST_CHECK result
recorder_call_start(struct recorder *recorder, const struct chat_call *call, struct error *error);
/* Of the call that was started last; session, turn and call are filled in. */
MUST_CHECK result recorder_decision(
    struct recorder *recorder, const struct session_decision_begin *decision, struct error *error
);
/* What somebody else appends in the batch of a call's result. INVALID_INPUT and LIMIT are no failures of the record:
 * then the result is recorded alone. */
struct recorder_addition {
    void *context;
    result (*append)(void *context, struct error *error);
    result appended; /* set by recorder_call_finish */
};
/* `value` null: the call was recorded but never ran. `answer`: its text as the model is shown it. `addition` null:
 * nothing. */
MUST_CHECK result recorder_call_finish(
    struct recorder *recorder,
    const struct tool_result *value,
    struct view answer,
    struct recorder_addition *addition,
    struct error *error
);
/* A turn whose prompt is a context for others and is not followed by anything: it stays, without output. */
MUST_CHECK result recorder_prompt_finish(
    struct recorder *recorder,
    const struct generation_facts *facts,
    enum finish_reason reason,
    struct error *error
);
/* Closes a turn whose generation did not begin: its prompt is no part of the context, and the next
 * turn's takes its place. After recorder_output there is nothing to do. */
MUST_CHECK result recorder_turn_end(
    struct recorder *recorder,
    const struct generation_facts *facts,
    enum finish_reason reason,
    struct error *error
);

/* What a fork of the context wrote: `request` behind the context, then `generation`, whose message is not
 * looked at. */
struct recorder_summary {
    const struct token_list *request;
    struct recorder_generation generation;
};

/* What takes the place of the whole context. */
struct recorder_compaction {
    const struct chat_conversation *conversation;
    const struct token_list *ids;
    const struct recorder_mail *mail; /* [mail_count] as of a turn */
    size_t mail_count;
    const struct generation_facts *facts; /* of its prefill */
    int64_t tokens_before, removed;
    struct view summary;                    /* empty: only outputs of tools gave way */
    const struct recorder_summary *written; /* how the model came to it; null: it was not asked */
};
/* A turn of its own, in one batch: before it the old context stands, after it the new one. */
MUST_CHECK result recorder_compaction(
    struct recorder *recorder, const struct recorder_compaction *compaction, struct error *error
);

/* The session goes on in a fork under another model. */
struct recorder_model {
    const struct session_id *session; /* that is forked; ended here, when the recorder runs it */
    struct view model;                /* directory */
    const struct engine_info *engine;
    struct resume_options resume; /* with the tokenizer of the old model */
};
/* In one batch. *out is the fork: its context is empty, its conversation to be encoded by the new model. */
MUST_CHECK result recorder_fork_model(
    struct recorder *recorder,
    const struct recorder_model *model,
    struct resume *out,
    struct error *error
);

struct recorder_end {
    enum session_status status;
    const char *verdict, *stop_reason;
    int exit_status;
};
/* This and the next two also fill recorder->difference. */
MUST_CHECK result
recorder_end(struct recorder *recorder, const struct recorder_end *end, struct error *error);
/* Of a node; commit_after and changed_lines are filled in. */
MUST_CHECK result recorder_node_end(
    struct recorder *recorder, const struct session_node_end *end, struct error *error
);
/* The end of a swarm, whose commit_after is filled in, and of its session, in one batch. Where a node has no end
 * in the record, INVALID_INPUT: the session has ended, and says of node and swarm that they were interrupted. */
MUST_CHECK result recorder_swarm_end(
    struct recorder *recorder,
    int64_t swarm,
    const struct session_swarm_end *swarm_end,
    const struct recorder_end *end,
    struct error *error
);
/* That the workspace has become, after one of these; "": nothing was changed, or it is not known. */
const char *recorder_changed_commit(const struct recorder *recorder);

#endif
