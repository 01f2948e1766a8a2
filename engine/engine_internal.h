/* What the callers' side (engine.c, engine_sequence.c, engine_request.c, engine_statistics.c,
 * engine_cache.c) and the engine thread (scheduler*.c) share.
 *
 * One lock guards everything a caller may touch; the engine thread holds it at step boundaries and
 * never while it computes or draws. A context with a generation under way belongs to the engine
 * thread: callers only set its two flags. Caches are reserved and released under the lock.
 */
#ifndef HEARTH_ENGINE_ENGINE_INTERNAL_H
#define HEARTH_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sha256.h"
#include "draft.h"
#include "engine.h"
#include "forward.h"
#include "guard.h"
#include "kv_store.h"
#include "kv_tier.h"
#include "lookup.h"
#include "sampler.h"
#include "schedule.h"
#include "speculation.h"
#include "stop.h"

#define ENGINE_SEQUENCES_DEFAULT 4
#define ENGINE_SEQUENCES_MAX     4096
#define ENGINE_STEP_ROWS_CPU     256
#define ENGINE_STEP_ROWS_DEVICE  2048
#define ENGINE_STEP_ROWS_MAX     65536
#define ENGINE_FORWARD_NUMERICS  1U /* raised whenever forward or sampler change a bit */
/* Of what is still to be sampled no more counts for the slack: hardly a turn is longer. */
#define ENGINE_TOKENS_EXPECTED 256

enum context_state {
    CONTEXT_IDLE,
    CONTEXT_QUEUED, /* no blocks are promised to it */
    CONTEXT_PARKED, /* has its blocks, waits for a window slot or a tier */
    CONTEXT_ACTIVE  /* has a window slot */
};

/* Logits that nothing was drawn from yet: the prompt was evaluated alone. Shared by forks. */
struct kept_logits {
    int32_t references; /* guarded by the lock */
    float values[];     /* [V] */
};

/* Drafts without a number of their own; tokens that an index of a sequence looks back at. */
#define ENGINE_DRAFT_DEFAULT 8
#define ENGINE_LOOKUP_TOKENS 32768

/* What may follow the first `length` tokens of a sequence. */
struct engine_proposal {
    int32_t length, count;
    enum speculation_source source;
    int32_t grade;
    int32_t ids[ENGINE_DRAFT_MAX];
};

/* Drafts of one generation: scheduler_speculate.c. */
struct engine_drafts {
    enum speculate mode;   /* SPECULATE_OFF: none, ever */
    int32_t most;          /* of one step */
    struct lookup *lookup; /* owned; null: none */
    int32_t lookup_from;   /* tokens before the first one that it knows */
    struct speculation control;
    struct engine_proposal copied, guessed; /* from the own text, from the draft stages */
    int32_t pause, pause_left;              /* steps without a pass of the draft stages */
    /* Of the step at hand. */
    int32_t wanted;
    enum speculation_source source;
    int32_t grade;
    int32_t ids[ENGINE_DRAFT_MAX];
};

/* What a request asked for, and where it is. Of the engine thread once it is admitted; `facts` and
 * what is drawn change while it computes, so callers read context.status instead. */
struct engine_generation {
    int32_t *append; /* owned; null once it is part of the sequence */
    int32_t append_count;
    struct sampling sampling; /* its bias is owned */
    struct logit_bias *bias;
    int32_t tokens_max;
    enum window_mode window;
    bool has_contract;
    struct window_replay contract[ENGINE_REPLAYS_MAX];
    int32_t contract_count;
    int64_t deadline_ms; /* 0: none */
    uint64_t agent;
    struct engine_drafts drafts;
    int32_t stop_count;
    struct stop *stop; /* owned; null: none */
    struct stop_state stop_state;
    struct guard *guard; /* owned; null: none */
    struct guard_state *guard_state;
    struct sampler_history *history; /* owned; null: no penalties */
    bool has_history;                /* the prompt is in it */
    struct constraint *constraint;   /* a reference; null: none */
    uint32_t constraint_state;

    struct generation_facts facts;
    int32_t run_end;       /* rows up to here run as those of a prompt; facts has its own end */
    int32_t rows_to_run;   /* of the prompt, rebuilt ones included */
    int32_t blocks_needed; /* QUEUED: to be promised before it begins */
    int64_t queued_at_us, admitted_at_us, prefilled_at_us, parked_at_us;
    int64_t state_at_ms; /* when `state` changed */
    bool has_ended;      /* a draw ended it: `reason` */
    enum finish_reason reason;
    struct error error;
};

/* A sequence whose blocks were taken while it did not run: what its next prompt begins with. */
struct context_demotion {
    struct kv_demoted content;
    bool has_next; /* tokens or logits were there that nothing was drawn from */
    int32_t count;
    int32_t ids[]; /* [count], then room for the append of the request at hand */
};

/* One live sequence as callers know it. */
struct context {
    /* guarded by the lock */
    bool used;
    bool is_dying; /* destroyed: freed by the engine thread at the next boundary */
    bool is_cancelled;
    bool is_broken; /* a step failed: its caches are undefined */
    enum context_state state;
    uint64_t id;
    uint64_t queue_number;  /* order of admission */
    int32_t length;         /* as of the last finished generation */
    struct kv_sequence *kv; /* null until the first generation is admitted, and when demoted */
    struct context_demotion *demoted; /* owned; null: its content is in kv */
    bool is_restoring;                /* PARKED until blocks of its prompt came from a tier */
    struct sequence_seed seed;
    uint64_t fork_count;
    int64_t used_at_ms; /* when a generation of it ended */
    int64_t return_ms;  /* when its owner comes back to it; INT64_MAX: unknown */
    bool is_over;       /* its owner said that nobody does */
    /* Of the store; bound as long as `kv` holds something. */
    struct kv_binding binding;
    struct kept_logits *kept;            /* follow all of its tokens; null: none */
    struct engine_request_status status; /* as of the last boundary */
    int64_t queued_at_ms, progress_at_ms;

    struct engine_generation generation;
};

/* engine_logits in flight: the caller waits while the engine thread works. */
struct logits_job {
    const struct logits_request *request;
    struct layer_counters *counters;
    void (*row)(void *context, int32_t position, const float *logits, int32_t vocabulary);
    void *context;
    struct error *error;
    result outcome;
    bool is_done;
};

/* Counts; guarded by the lock. */
struct engine_meter {
    struct engine_counts total;
    struct engine_counts seconds[ENGINE_SECONDS + 1]; /* the one at hand first */
    int64_t second;                                   /* number of that */
    uint64_t histogram[ENGINE_STEP_BUCKETS];
    int64_t step_us_max, decision_us_max;
    uint64_t decision_us;
    bool is_stepping;
    int64_t step_started_ms;
};

/* An event in a queue; what only an end has lies apart. */
struct event_entry {
    enum engine_event_type type;
    int32_t context; /* index */
    uint64_t sequence;
    int32_t done, total; /* PROGRESS */
    int32_t ending;      /* FINISHED: number */
    struct sampled_token token;
};
struct event_ending {
    enum finish_reason reason;
    struct generation_facts facts;
    struct error error;
    int32_t next; /* free one; -1: none */
};

/* One sequence of the step at hand. */
struct step_entry {
    struct context *context;
    int32_t segment; /* -1: no rows, its logits were kept */
    int32_t rows;
    int32_t drafted; /* of these, the last ones */
    bool has_logits;
    float *logits;      /* rows to draw from, while draws are made; null: none */
    bool is_poisoned;   /* its logits were no numbers: its caches cannot be trusted */
    int32_t draw_first; /* in engine.draws: drafted + 1 of these are its own */
    int32_t draw_count; /* tokens drawn: at most drafted + 1 */
    int32_t kept;       /* rows that stay: rows - drafted + drafts that were drawn */
    int32_t guess;      /* number of its request to the draft stages; -1: none */
};

struct engine {
    /* constant while the thread runs */
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_wording *wording; /* null when the model's directory has none */
    struct engram *engram;        /* null for a model without tables */
    struct backend *backend;
    struct kv_cache cache;
    struct kv_tier *tier;   /* null: none; guarded by the lock */
    struct kv_store *store; /* guarded by the lock */
    struct kv_lineage root;
    struct clock clock;
    struct forward *forward;
    struct draft *draft;       /* null: the plan has no draft stages */
    struct sampler **samplers; /* [sampler_count] one for each lane of draws */
    int32_t sampler_count;
    struct engine_plan plan;
    struct engine_info info;
    struct sampling default_sampling;
    struct engine_speculation *speculation; /* null: nobody drafts */
    void (*wake)(void *context);
    void *wake_context;

    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock;
    atomic_int callers;       /* that wait for the lock */
    pthread_cond_t to_engine; /* work, room for events, stop */
    pthread_cond_t to_caller; /* a logits job is done, a destroyed sequence is freed */

    /* guarded by the lock */
    bool is_stopping;
    uint64_t next_id, next_queue_number;
    struct context *contexts; /* [context_count]: live ones and those dying in a step */
    int32_t context_count;
    int32_t live_count;
    struct event_entry *events; /* ring */
    size_t event_capacity, event_first, event_count;
    struct event_ending *endings;
    int32_t ending_count, ending_free, endings_left;
    bool wants_wake;
    struct logits_job *job;
    struct schedule_ledger *ledger; /* a caller who frees a dying context takes it out of it */
    struct engine_meter meter;
    int64_t poll_ms;                       /* when the store wants to be asked again */
    struct grammar_vocabulary *vocabulary; /* null until it is asked for */

    /* engine thread only */
    struct schedule *schedule;
    struct schedule_cost cost;
    struct schedule_sequence *choices; /* [context_count] */
    struct schedule_idle *idle;        /* [context_count] */
    struct forward_segment *segments;  /* [windows_max] */
    int32_t segment_count;
    int32_t *kept_rows;         /* [windows_max] rows of each segment that count */
    struct step_entry *entries; /* [windows_max] */
    int32_t entry_count;
    struct schedule_rows_count step_rows;
    struct sampled_token *draws; /* [draw_capacity] */
    int32_t draw_capacity;
    struct event_entry *pending; /* events of the step at hand */
    size_t pending_count, pending_capacity;
    float *logit_rows; /* [FORWARD_LOGIT_ROWS_MAX, V], in what follows */
    struct backend_staging logit_staging;
    int64_t decision_us; /* of the step at hand */

    /* For tests, set while nothing runs: sees, and may change, each row of logits before a token is
     * drawn from it. Engine thread: with it no draw is made elsewhere. */
    void (*observe
    )(void *context, uint64_t sequence, int32_t length, float *logits, int32_t vocabulary);
    void *observe_context;
    /* Likewise: drafts of at most `most` tokens behind `length` tokens, instead of what is looked up. */
    int32_t (*suggest
    )(void *context, uint64_t sequence, int32_t length, int32_t most, int32_t *ids);
    void *suggest_context;
};

/* For callers: the engine thread sees that somebody waits, and lets him in between two pieces. */
static inline void engine_lock(struct engine *engine) {
    (void)atomic_fetch_add(&engine->callers, 1);
    pthread_mutex_lock(&engine->lock);
    (void)atomic_fetch_sub(&engine->callers, 1);
}

static inline void engine_unlock(struct engine *engine) {
    pthread_mutex_unlock(&engine->lock);
}

/* Longest wait for the disk when the engine is closed or flushed. */
#define ENGINE_FLUSH_MS 10000

int64_t engine_now_us(void);
/* Time of the KV store, of deadlines and of decisions. */
int64_t engine_now_ms(const struct engine *engine);

/* ---- engine_plan.c ---- */

/* Options with their defaults filled in, and the plan. Expected errors: INVALID_INPUT, LIMIT. */
MUST_CHECK result engine_plan_fill(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    struct engine_plan *out,
    struct error *error
);
struct forward_options engine_forward_options(const struct engine_plan *plan);
/* The pool: what live sequences can need, and the plan's blocks beside. */
struct kv_cache_shape
engine_cache_shape(const struct engine_plan *plan, const struct kv_layout *layout);
/* What follows from the plan; cache, root, hash key, tier and compress are left to the caller. */
void engine_store_options(
    const struct engine_options *options,
    const struct model_config *config,
    const struct engine_plan *plan,
    struct kv_store_options *out
);
/* Root, description, backend, clock and wake are left to the caller. */
void engine_tier_options(
    const struct engine_options *options, size_t block_bytes, struct kv_tier_options *out
);
/* Lengths of an engine's queues, and the bytes of these. */
struct engine_queue_size {
    size_t contexts, events, pending, endings, draws;
};
struct engine_queue_size engine_queue_size(const struct engine_plan *plan);
/* Draws that may be made at a time. */
int32_t engine_draw_lanes(const struct engine_plan *plan);
uint64_t engine_queue_bytes(const struct engine_plan *plan);
/* What one request owns at most, its index for drafts (engine_speculation_bytes) and a constraint, which
 * its caller makes, apart. */
uint64_t engine_request_bytes(const struct engine_plan *plan, int32_t vocabulary);
void engine_root_lineage(
    const struct engine *engine, uint32_t numerics, char out[SHA256_HEX_BYTES]
);

/* ---- engine_statistics.c; lock held ---- */

void engine_meter_add(struct engine *engine, const struct engine_counts *more);
void engine_meter_step(struct engine *engine, int64_t step_us, int64_t decision_us);

/* ---- engine_sequence.c, engine_request.c; lock held ---- */

/* The live context of that id, or null. */
struct context *engine_context_find(struct engine *engine, uint64_t id);
/* Frees a context that no step uses. */
void engine_context_free(struct engine *engine, struct context *context);
/* Frees what was destroyed and no step uses. Returns how many. */
int32_t engine_free_idle(struct engine *engine);
/* An equal copy, or null: no memory. */
struct context_demotion *engine_demotion_copy(const struct context_demotion *demoted);
/* What a generation owns. Needs no lock for one that no context holds. */
void engine_generation_free(struct engine_generation *generation);
void engine_kept_release(struct context *context);
/* Tokens that a generation may make of its sequence: prompt and tokens_max, within the context. */
int32_t engine_tokens_bound(const struct engine *engine, const struct context *context);

/* ---- scheduler_speculate.c ---- */

/* Bytes beside the forward pass, the lookups of all requests included. */
uint64_t engine_speculation_bytes(const struct engine_plan *plan);
/* After the forward pass. Expected errors: MEMORY. */
MUST_CHECK result engine_speculation_create(struct engine *engine, struct error *error);
void engine_speculation_destroy(struct engine_speculation *speculation);
/* What a request for at most `tokens_bound` tokens of its sequence asks for. Any thread. Expected
 * errors: UNSUPPORTED (drafts of stages that are not there), MEMORY. */
MUST_CHECK result engine_drafts_create(
    const struct engine *engine,
    struct engine_drafts *drafts,
    const struct generation_request *request,
    int32_t tokens_bound,
    struct error *error
);
void engine_drafts_destroy(struct engine_drafts *drafts);
/* How many drafts each decoding sequence would have verified: drafts.wanted. Before the rows are
 * decided about; lock held. */
void scheduler_drafts_decide(struct engine *engine);
/* The first `drafted` of these become tokens of the sequence, whose blocks are reserved. Lock held. */
void scheduler_drafts_append(struct engine *engine, struct context *context, int32_t drafted);
/* After the draws and forward_keep, without the lock: draft rings, what was accepted, what may come
 * next. Expected errors: DEVICE. */
MUST_CHECK result
scheduler_drafts_propose(struct engine *engine, bool has_drafts, struct error *error);

/* ---- the engine thread ---- */

void *engine_thread_main(void *argument); /* the engine */

/* scheduler_events.c */
void scheduler_pend(struct engine *engine, struct context *context, struct event_entry *event);
/* Lock held. */
void scheduler_publish(struct engine *engine);
bool scheduler_has_event_room(const struct engine *engine);
void scheduler_drop_events(struct engine *engine, uint64_t sequence);
/* Ends the generation and reports it. Lock held. */
void scheduler_finish(
    struct engine *engine,
    struct context *context,
    enum finish_reason reason,
    const struct error *error
);

/* scheduler_slots.c: window slots, blocks that are promised. Lock held. */

void scheduler_need(
    const struct engine *engine, const struct context *context, int32_t tokens, struct kv_need *out
);
/* Promises the request the blocks that it may take. False: they are not there. */
bool scheduler_promise(struct engine *engine, struct context *context);
void scheduler_unpromise(struct engine *engine, struct context *context);
/* Slots that nobody has who runs. */
int32_t scheduler_slots_free(const struct engine *engine);
/* A free slot for the context (null: for a job), unless it has one: parks an idle sequence when there
 * is none. False: all that have one run. */
bool scheduler_slot_make_free(struct engine *engine, const struct context *context);
/* The context has a slot and its windows, or rows to rebuild them up to `prompt_end`. False: there is
 * no free slot. */
bool scheduler_slot_resume(struct engine *engine, struct context *context, int32_t prompt_end);

/* scheduler_demote.c: sequences that do not run give their blocks back. Lock held. */

/* For a queued request that is first in order and lacks blocks, or (null) for `blocks` of a job. True:
 * they are there now, nothing has changed else but that others may have been demoted. */
bool scheduler_demote_for(
    struct engine *engine, struct context *blocked, int32_t blocks, struct error *error
);
/* All tokens of a demoted sequence and of its request, or null: no memory. */
const int32_t *scheduler_demoted_prompt(struct context *context);
/* Promised their blocks: these end one day. */
int32_t scheduler_running(const struct engine *engine);

/* scheduler_admit.c: who begins, who gets a slot, what the step carries. Lock held. */
void scheduler_boundary(struct engine *engine);
struct schedule_machine scheduler_machine(const struct engine *engine);
struct schedule_sequence
scheduler_describe(const struct engine *engine, const struct context *context);
void scheduler_compose(struct engine *engine);
void scheduler_append(struct engine *engine, struct kv_sequence *kv, int32_t id);
void scheduler_tell_status(struct context *context, enum engine_wait wait);
/* Logits follow all tokens of the context, and nothing was drawn from them. */
bool scheduler_has_kept(const struct context *context);

/* scheduler_step.c: lock held on entry and exit, not while it computes. */
void scheduler_step(struct engine *engine);

/* scheduler_draw.c: no lock, any thread of the backend's: touches the entry, its context, its draws
 * and the sampler alone, and its constraint, which is one thread's at a time. Draws from the entry's
 * rows of logits, the first of which follows the context's tokens without the drafts, until the row
 * that has no draft equal to its draw; fills the entry's draws and the rows that are kept. */
void scheduler_draw(
    struct engine *engine, struct step_entry *entry, struct sampler *sampler, const int32_t *drafts
);

#endif
