/* What engine.c (callers' side), engine_plan.c and scheduler.c (engine thread) share.
 *
 * One lock guards everything a caller may touch; the engine thread holds it at step boundaries and
 * never while it computes. A context that is RUNNING belongs to the engine thread: callers only set
 * its two flags. Caches are reserved and released under the lock.
 */
#ifndef HEARTH_ENGINE_ENGINE_INTERNAL_H
#define HEARTH_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>

#include "base/sha256.h"
#include "engine.h"
#include "forward.h"
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
    bool is_dying; /* destroyed while running: freed at the next boundary */
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
    char decoder_lineage[SHA256_HEX_BYTES];
    struct window_replay replays[ENGINE_REPLAYS_MAX]; /* in the order in which they happened */
    int32_t replay_count;
    int64_t queued_at_us;

    /* of the engine thread while RUNNING */
    struct generation_facts facts;
    int32_t prompt_end;
    bool is_replay;
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

struct engine {
    /* constant while the thread runs */
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_wording *wording; /* null when the model's directory has none */
    struct engram *engram;        /* null for a model without tables */
    struct backend *backend;
    struct kv_cache cache;
    struct forward *forward;
    struct sampler *sampler;
    struct engine_plan plan;
    struct engine_info info;
    struct sampling default_sampling;
    void (*wake)(void *context);
    void *wake_context;

    pthread_t thread;
    bool has_thread, has_lock;
    pthread_mutex_t lock;
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

    /* engine thread only */
    struct forward_segment *segments; /* [sequences_max] */
    struct context **stepping;        /* [sequences_max]: context of each segment */
    struct engine_event *pending;     /* events of the step at hand */
    size_t pending_count, pending_capacity;
    float *logit_rows; /* [FORWARD_LOGIT_ROWS_MAX, V] */
    int32_t turn;      /* context that prefills next */
    double row_us;     /* running mean of a prompt row's time; 0: not measured */
};

int64_t engine_now_us(void);

/* Options with their defaults filled in, and the plan. Expected errors: INVALID_INPUT, LIMIT. */
MUST_CHECK result engine_plan_fill(
    const struct engine_options *options,
    const struct model_config *config,
    const struct model_size *size,
    struct engine_plan *out,
    struct error *error
);
void engine_root_lineage(
    const struct engine *engine, uint32_t numerics, char out[SHA256_HEX_BYTES]
);

/* Frees a context that no step uses. Lock held. */
void engine_context_free(struct engine *engine, struct context *context);
void *engine_thread_main(void *argument); /* the engine */

#endif
