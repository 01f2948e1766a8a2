/* Between the files of the host: its life and the pump of events (swarm_host.c), which effect is done where
 * (swarm_host_effects.c), a node's agent (swarm_host_nodes.c, swarm_host_agent.c), forks and questions of agents
 * (swarm_host_asks.c), remarks and mail (swarm_host_mail.c), verifications, merges and rankings
 * (swarm_host_results.c), what the record is told beside the runs (swarm_host_record.c), and what others see
 * (swarm_host_look.c). Thread: loop; functions named `..._work` run on workers.
 */
#ifndef HEARTH_RUNTIME_SWARM_HOST_INTERNAL_H
#define HEARTH_RUNTIME_SWARM_HOST_INTERNAL_H

#include "loop_nodes.h"
#include "swarm_agents.h"
#include "swarm_host.h"
#include "swarm_rank.h"
#include "swarm_root.h"
#include "swarm_work.h"
#include <uv.h>

#define HOST_ENGINE_FAULTS_MAX                                                                     \
    3 /* runs in a row that the engine ended, without a turn: it is lost */
#define HOST_SIGNALS  3
#define HOST_HEARD_MS 1000 /* between two words of a node in the middle of a turn */

enum node_phase {
    NODE_NEW,      /* the host has heard nothing of it */
    NODE_OPENS,    /* its directory is made */
    NODE_RUNS,     /* its agent is at work */
    NODE_COLLECTS, /* its agent has ended; what it made is brought home */
    NODE_GIVES_UP, /* it could not be started; what there is of it goes */
    NODE_CLOSES,   /* it has ended for the swarm; its directory goes */
    NODE_OVER
};

/* A context that children of a fork go on behind; the parent goes on meanwhile. */
struct host_base {
    size_t references;
    struct chat_conversation *conversation;
    struct run_prefix prefix; /* of that conversation and this sequence: */
    uint64_t sequence;
    struct buffer call;
};

/* Something an agent is told before its next turn. */
struct host_remark {
    struct host_remark *next;
    struct buffer text;
    uint64_t message; /* that it delivers, or tells the return of; 0: none */
    bool is_return;
};

/* A message on its way, until it was delivered or its sender was told. */
struct host_mail {
    struct host_mail *next;
    struct swarm_host *host;
    uint64_t number;
    size_t from, to;
    struct session_id from_agent, to_agent;
    struct buffer text;
    struct loop_job post;
    int64_t key;     /* in the record; 0: it is not there */
    bool is_settled; /* the record has it, or will not have it */
};

struct host_verification {
    struct loop_job job;
    struct swarm_work_verification options;
    struct swarm_work_verdict verdict;
    char commit[WORKSPACE_COMMIT_BYTES];
    bool is_running, is_cancelled;
    bool is_wanted; /* another one, when that which was given up has ended: */
    int64_t wanted_ms_max;
};

struct host_merge {
    struct loop_job job;
    size_t target;
    struct swarm_work_merge made;
    result recorded;
    struct error error;
    bool is_running;
};

/* What the record and the view were last told of a node. */
struct host_seen {
    enum swarm_state state;
    enum swarm_outcome outcome;
    enum swarm_verdict verdict;
    enum swarm_cut cut;
    bool is_merged, has_conflicts, has_score;
    double score;
};

struct host_node {
    struct swarm_host *host;
    size_t index;
    enum node_phase phase;
    bool is_cancelled; /* before its agent was there */
    char name[SWARM_NAME_BYTES];

    struct loop_job job; /* opens, collects, gives up, closes: one at a time */
    result worked;
    struct error error;
    struct loop_job news; /* heard in the middle of an event of its run: */
    bool is_posted, has_news_of_begin;
    bool is_begun; /* the record has its agent, as the swarm knows */
    int64_t heard_ms;

    struct run_channel *channel;
    struct swarm_agents *agents;
    struct swarm_work_node *work;
    struct swarm_work_open open;
    char commit_before
        [WORKSPACE_COMMIT_BYTES]; /* of the root: what the copy is made of; "": as it is */
    struct host_base *base;       /* null: it goes on behind the root's context */
    uint64_t sequence;            /* 0: none */
    struct run *run;              /* null: none */
    struct run_node node;
    struct run_prefix prefix;
    struct run_call_hook hook;
    struct buffer first;     /* what it is told first */
    struct buffer directory; /* its path, which is asked for when the directories are closed, too */

    struct agent_share share;
    int64_t processes_max, memory_bytes_max;
    bool limits_are_new; /* these two, for its next call */
    int32_t effort;

    /* heard of its agent */
    struct session_id agent;         /* "": it is not in the record yet */
    struct session_id given_up;      /* the same, as the worker found it */
    int64_t told_tokens, told_calls; /* to the swarm */
    struct swarm_host_look look;
    char activity[32], subject[160];

    /* how its agent ended */
    enum agent_stop stop;
    struct buffer summary, detail;
    int64_t tokens, calls;
    int32_t turns;
    struct swarm_work_made made;
    struct swarm_work_closed closed;
    bool disk_is_full;

    struct host_remark *remarks;       /* that the run has not taken yet */
    uint64_t given[AGENT_REMARKS_MAX]; /* ring: messages of those that it has taken; 0: none */
    size_t given_first, given_count;
    struct host_mail *sending; /* of the call at hand; set on the loop, taken by the recorder */
    struct swarm_agents_answer held; /* an answer that waits for a message to be taken first */
    struct buffer held_text;
    bool has_held, has_put_off; /* put off: its question waits for the mail before */

    struct host_verification verification;
    struct host_merge merge;

    struct host_seen seen;
    bool is_shown;
    bool share_is_new, judgement_is_new; /* for the record */
};

enum host_phase {
    HOST_BEGINS, /* session, shared prefix, place of the copies */
    HOST_WORKS,
    HOST_ENDS,    /* it is finished; what is still under way ends */
    HOST_CLOSES,  /* the place goes */
    HOST_RECORDS, /* the end of the session */
    HOST_OVER
};

/* One thing that the record is told, on a worker. */
struct host_record {
    struct loop_job job;
    bool is_running, is_judgement;
    struct session_id agent;
    struct session_share share;
    int64_t effort;
    struct session_judgement judgement;
    struct buffer detail;
    result recorded;
    struct error error;
};

struct swarm_host {
    struct swarm_host_options options;
    struct loop *loop;
    struct swarm *swarm;
    enum host_phase phase;
    int64_t started_ms, ended_ms;
    int64_t wake_ms;         /* that the swarm waits for */
    struct host_node *nodes; /* [node_count], for as many as there may be; 0: the root */
    size_t node_count;
    size_t seen_count; /* that the swarm had after the last event */

    struct swarm_root *root;
    struct swarm_work *work;
    struct buffer place;
    char root_commit[WORKSPACE_COMMIT_BYTES]; /* of the root's workspace, after the last merge */
    struct loop_job job;                      /* makes the place, and takes it away */
    result begun;                             /* a failure: it did not begin */
    struct error begin_error;
    result fault; /* what the host could not do later */
    struct error fault_error;

    bool is_pumping, is_interrupted, has_begun, was_ending;
    struct host_base *asked_base; /* of the fork that is put to the swarm just now */
    int engine_faults;            /* in a row */
    bool engine_is_lost, disk_is_full;

    struct host_mail *mail;
    struct host_mail *mail_under_way; /* answered, and not settled in the record */
    struct swarm_rank *rank;
    struct swarm_rank_context rank_contexts[SWARM_NODES_MAX];
    size_t rank_count;
    bool rank_has_failed; /* to be said after the effects */

    struct host_record record;
    struct swarm_host_totals totals;
    struct swarm_root_end end;

    uv_signal_t signals[HOST_SIGNALS];
    size_t signals_open;
    int signals_seen;
};

/* ---- swarm_host.c ---- */
/* Gives the swarm an event and does what follows. Not from within an effect. */
void host_event(struct swarm_host *host, const struct swarm_event *event);
/* After anything that has ended: the next step of the end, when nothing is in its way. */
void host_go_on(struct swarm_host *host);
/* Something went wrong that the outcome is to tell; the first one counts. */
void host_fault(struct swarm_host *host, result failed, const struct error *error);
void host_disk_is_full(struct swarm_host *host);

/* ---- swarm_host_effects.c ---- */
void host_effect(struct swarm_host *host, const struct swarm_effect *effect);

/* ---- swarm_host_nodes.c ---- */
void host_node_start(struct host_node *node, const struct swarm_effect *effect);
void host_node_cancel(struct host_node *node);
/* Its agent has ended: stop, summary, detail, tokens, calls are filled in. */
void host_node_collect(struct host_node *node);
void host_node_deinit(struct host_node *node);
/* The sequence of a node that has ended goes; it was kept for a ranking. */
void host_node_drop_sequence(struct host_node *node);

/* ---- swarm_host_agent.c ---- */
/* The run of a node whose directory is open. Expected errors: those of the engine and of loop_start. */
MUST_CHECK result host_agent_start(struct host_node *node, struct error *error);
void host_agent_tell_share(struct host_node *node);
/* As the record keeps it, and what a node begins with there. */
struct session_share host_record_share(const struct host_node *node);
void host_agent_begin(struct host_node *node, struct session_node_begin *out);

/* ---- swarm_host_asks.c ---- */
/* For swarm_agents_create; the context is the node. */
bool host_asked(void *context, const struct swarm_ask *ask);
/* Questions that waited for the mail before. */
void host_ask_again(struct swarm_host *host);
void host_answer(struct host_node *node, const struct swarm_effect *effect);
void host_release_answer(struct host_node *node);
void host_node_drop_base(struct host_node *node);
/* Nodes that the event has brought get the context that they go on behind. */
void host_give_bases(struct swarm_host *host);

/* ---- swarm_host_mail.c ---- */
void host_tell(struct host_node *node, const struct swarm_effect *effect);
void host_deliver(struct host_node *node, const struct swarm_effect *effect);
/* A message that was accepted is recorded with the result of the call that sent it. Expected errors: MEMORY. */
MUST_CHECK result host_mail_sent(struct host_node *from, uint64_t message, struct error *error);
/* So many of the remarks that its run has taken are in a prompt. */
void host_given(struct host_node *node, size_t count);
void host_remarks_flush(struct host_node *node);
void host_remarks_drop(struct host_node *node); /* those that came too late as well */
/* Whether a message for it waits for the record. One that waits because its run takes no more remarks before its
 * next turn does not count: that turn may be what waits. */
bool host_has_delivery(const struct host_node *node);
/* Its run has ended. */
void host_mail_end(struct host_node *node);
void host_mail_deinit(struct swarm_host *host);
extern const struct run_call_hook host_mail_hook; /* without context: the node */

/* ---- swarm_host_results.c ---- */
void host_verify(struct host_node *node, const struct swarm_effect *effect);
void host_verify_cancel(struct host_node *node);
void host_merge(struct host_node *node, const struct swarm_effect *effect);
void host_rank(struct swarm_host *host, const struct swarm_effect *effect);
void host_rank_cancel(struct swarm_host *host);

/* ---- swarm_host_record.c ---- */
/* Tells the record what is new, one after the other. */
void host_record_start(struct swarm_host *host);
bool host_record_is_idle(const struct swarm_host *host);
const char *host_outcome_word(enum swarm_outcome outcome); /* "" while undecided */

/* ---- swarm_host_look.c ---- */
void host_show(struct swarm_host *host, const struct swarm_host_event *event);
PRINTF_LIKE(3, 4)
void host_say(struct swarm_host *host, enum swarm_host_event_type type, const char *format, ...);
/* An event of a node's run: what the agent does now. */
void host_look_at_run(struct host_node *node, const struct run_event *event);
void host_set_activity(struct host_node *node, const char *activity);
/* After each event of the swarm: nodes that are not what they were. */
void host_look_at_nodes(struct swarm_host *host);

#endif
