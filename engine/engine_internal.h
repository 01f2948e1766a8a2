/* What engine.c (callers' side), engine_plan.c and scheduler.c (engine thread) share.
 *
 * One lock guards everything a caller may touch; the engine thread holds it at step boundaries and
 * never while it computes. A context that is RUNNING belongs to the engine thread: callers only set
 * its two flags. Caches are reserved and released under the lock.
 */
#ifndef HEARTH_ENGINE_ENGINE_INTERNAL_H
#define HEARTH_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/sha256.h"
#include "draft.h"
#include "engine.h"
#include "forward.h"
#include "kv_store.h"
#include "kv_tier.h"
#include "sampler.h"

#define ENGINE_SEQUENCES_DEFAULT 4
#define ENGINE_SEQUENCES_MAX     4096
#define ENGINE_STEP_ROWS_CPU     256
#define ENGINE_STEP_ROWS_MAX     65536
/* A step should stay below the 200 ms that budgets of the runtime count on (promise P5). */
#define ENGINE_STEP_TARGET_US   150000
#define ENGINE_STEP_ROWS_FLOOR  8
#define ENGINE_EVENTS_PER_STEP  3 /* progress, token, finished: of one sequence */
#define ENGINE_EVENTS_MIN       256
#define ENGINE_FORWARD_NUMERICS 1U /* raised whenever forward or sampler change a bit */

enum context_state { CONTEXT_IDLE, CONTEXT_QUEUED, CONTEXT_RUNNING };

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
    struct kv_sequence *kv; /* null until the first generation is admitted */
    int32_t *append;        /* owned; of the queued request */
    int32_t append_count;
    struct sampling sampling;
    int32_t tokens_max;
    enum window_mode window;
    bool has_contract;
    struct window_replay contract[ENGINE_REPLAYS_MAX];
    int32_t contract_count;
    int64_t queued_at_us, queued_at_ms;
    int64_t progress_at_ms;
    struct engine_request_status status; /* as of the last boundary */
    int64_t deadline_ms;                 /* 0: none */
    struct sequence_seed seed;
    uint64_t fork_count;
    bool is_restoring; /* QUEUED until blocks of its prompt came from a tier */
    /* Of the store; bound as long as `kv` holds something. */
    struct kv_binding binding;

    /* of the engine thread while RUNNING */
    struct generation_facts facts;
    int32_t prompt_end;
    int32_t rows_to_run; /* of the prompt, rebuilt ones included */
    int64_t admitted_at_us, prefilled_at_us;
    float *logits;         /* [V] of the last computed position */
    int32_t logits_length; /* they follow this many tokens; 0: none */
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
    struct draft *draft; /* null: the plan has no draft stages */
    struct sampler *sampler;
    struct engine_plan plan;
    struct engine_info info;
    struct sampling default_sampling;
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
    struct engine_event *events; /* ring */
    size_t event_capacity, event_first, event_count;
    bool wants_wake;
    struct logits_job *job;
    struct engine_meter meter;
    int32_t windows_used;
    int64_t poll_ms; /* when the store wants to be asked again */

    /* engine thread only */
    struct forward_segment *segments; /* [sequences_max] */
    struct context **stepping;        /* [sequences_max]: context of each segment */
    struct engine_event *pending;     /* events of the step at hand */
    size_t pending_count, pending_capacity;
    float *logit_rows; /* [FORWARD_LOGIT_ROWS_MAX, V] */
    int32_t turn;      /* context that prefills next */
    double row_us;     /* running mean of a prompt row's time; 0: not measured */
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
/* Time of the KV store. */
int64_t engine_now_ms(const struct engine *engine);

/* Options with their defaults filled in, and the plan. Expected errors: INVALID_INPUT, LIMIT. */
MUST_CHECK result engine_plan_fill(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    struct engine_plan *out,
    struct error *error
);
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
    size_t contexts, events, pending;
};
struct engine_queue_size engine_queue_size(int32_t sequences_max);
uint64_t engine_queue_bytes(int32_t sequences_max);
void engine_root_lineage(
    const struct engine *engine, uint32_t numerics, char out[SHA256_HEX_BYTES]
);

/* Lock held. */
void engine_meter_add(struct engine *engine, const struct engine_counts *more);
/* After a step. Lock held. */
void engine_meter_step(struct engine *engine, int64_t step_us, int64_t decision_us);

/* The live context of that id, or null. Lock held. */
struct context *engine_context_find(struct engine *engine, uint64_t id);
/* Frees a context that no step uses. Lock held. */
void engine_context_free(struct engine *engine, struct context *context);
/* Frees what was destroyed and no step uses. Returns how many. Lock held. */
int32_t engine_free_idle(struct engine *engine);
void *engine_thread_main(void *argument); /* the engine */

#endif
