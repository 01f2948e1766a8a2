/* The engine thread: boundaries and steps as long as there is something to do, else it sleeps.
 *
 * scheduler_admit.c does what a boundary does, scheduler_step.c runs a step, scheduler_draw.c draws
 * its tokens, scheduler_events.c reports them. See engine_internal.h for the lock.
 */
#include <sched.h>
#include <time.h>

#include "engine_internal.h"

#define YIELDS_MAX  1000  /* for callers that wait for the lock: some 100 us each time */
#define IDLE_MS_MAX 60000 /* a clock given by a test may stand still */

int64_t engine_now_ms(const struct engine *engine) {
    return clock_monotonic_ms(&engine->clock);
}

int64_t engine_now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* ---- logits for the command line and tests -------------------------------------------------- */

static result
job_rows(struct engine *engine, const struct logits_job *job, const struct row_segment *rows) {
    int32_t vocabulary = engine->model->config.vocabulary;
    for (int32_t done = 0; done < rows->count; done += FORWARD_LOGIT_ROWS_MAX) {
        int32_t left = rows->count - done;
        int32_t at_once = left < FORWARD_LOGIT_ROWS_MAX ? left : FORWARD_LOGIT_ROWS_MAX;
        TRY(forward_logits(engine->forward, done, at_once, engine->logit_rows, job->error));
        for (int32_t i = 0; i < at_once; i++) {
            const float *row = engine->logit_rows + (size_t)i * (size_t)vocabulary;
            job->row(job->context, rows->position + done + i, row, vocabulary);
        }
    }
    return OK;
}

static result
job_steps(struct engine *engine, const struct logits_job *job, struct kv_sequence *kv) {
    const struct logits_request *request = job->request;
    int32_t end = (int32_t)request->count;
    int32_t bound = end - engine->model->config.window;
    bool is_replay = request->window == WINDOW_REPLAY && bound > 0;
    int32_t chunk = engine->plan.step_rows_max;
    if (request->chunk > 0 && request->chunk < chunk) {
        chunk = request->chunk;
    }
    while (kv->computed < end) {
        int32_t rows = end - kv->computed < chunk ? end - kv->computed : chunk;
        bool is_last = kv->computed + rows == end;
        struct forward_segment segment = {
            .sequence = kv,
            .position = kv->computed,
            .count = rows,
            .prompt_end = end,
            .logits = !request->last_only ? FORWARD_LOGITS_ALL
                      : is_last           ? FORWARD_LOGITS_LAST
                                          : FORWARD_LOGITS_NONE,
            .window = is_replay ? WINDOW_REPLAY : WINDOW_EXACT,
            .window_floor_decoder = is_replay ? bound : 0,
        };
        TRY(forward_step(engine->forward, &segment, 1, job->counters, job->error));
        int32_t with_logits = forward_logit_rows(engine->forward);
        struct row_segment there = {
            .count = with_logits,
            .position = kv->computed - with_logits,
        };
        TRY(job_rows(engine, job, &there));
    }
    return OK;
}

/* Lock held on entry and exit, not while it computes: no generation runs meanwhile. */
static void run_job(struct engine *engine) {
    struct logits_job *job = engine->job;
    const struct logits_request *request = job->request;
    bool has_slot = scheduler_slot_make_free(engine, NULL);
    struct kv_sequence *kv = has_slot ? kv_cache_acquire(&engine->cache) : NULL;
    if (kv == NULL) {
        job->outcome = error_set(
            job->error,
            RESULT_LIMIT,
            0,
            __FILE__,
            __LINE__,
            "all %d sequences are in use",
            engine->plan.sequences_max
        );
    } else {
        int32_t count = (int32_t)request->count;
        struct error ignored = {0};
        /* What is not there even then is refused by the reservation. */
        (void)scheduler_demote_for(
            engine, NULL, (count + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS, &ignored
        );
        job->outcome = kv_cache_reserve(&engine->cache, kv, count, job->error);
        for (int32_t i = 0; is_ok(job->outcome) && i < count; i++) {
            scheduler_append(engine, kv, request->ids[i]);
        }
        engine_unlock(engine);
        if (is_ok(job->outcome)) {
            job->outcome = job_steps(engine, job, kv);
        }
        pthread_mutex_lock(&engine->lock);
        kv_cache_release(&engine->cache, kv);
    }
    engine->job = NULL;
    job->is_done = true;
    pthread_cond_broadcast(&engine->to_caller);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Frees what was destroyed; a fork may wait for the place. Needs no room for events, or a caller that
 * waits and the one that should take events could be the same thread. Lock held. */
static void free_dying(struct engine *engine) {
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (context->used && context->is_dying) {
            engine_context_free(engine, context);
            pthread_cond_broadcast(&engine->to_caller);
        }
    }
}

static void wait_for_events(struct engine *engine) {
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (context->used && context->state != CONTEXT_IDLE) {
            context->status.wait = ENGINE_WAIT_EVENTS;
        }
    }
}

/* One boundary and one step; false when there was nothing to do. Lock held. */
static bool work(struct engine *engine) {
    free_dying(engine);
    if (!scheduler_has_event_room(engine)) {
        wait_for_events(engine);
        return false;
    }
    scheduler_boundary(engine);
    scheduler_compose(engine);
    bool did = engine->pending_count > 0 || engine->entry_count > 0 || engine->job != NULL;
    if (engine->entry_count > 0) {
        scheduler_step(engine);
    } else if (engine->job != NULL) {
        run_job(engine);
    }
    scheduler_publish(engine);
    return did;
}

/* The store has more to do at once; callers come first. Lock held. */
static void give_way(struct engine *engine) {
    pthread_mutex_unlock(&engine->lock);
    for (int i = 0; i < YIELDS_MAX && atomic_load(&engine->callers) > 0; i++) {
        (void)sched_yield();
    }
    pthread_mutex_lock(&engine->lock);
}

/* When the store wants to be asked, or a request that waits is too late. */
static int64_t next_ms(const struct engine *engine) {
    int64_t next = engine->poll_ms;
    for (int32_t c = 0; c < engine->context_count; c++) {
        const struct context *context = &engine->contexts[c];
        int64_t deadline_ms = context->generation.deadline_ms;
        if (context->used && context->state != CONTEXT_IDLE && deadline_ms != 0 &&
            deadline_ms < next) {
            next = deadline_ms;
        }
    }
    return next;
}

/* Until something is posted, or the store has something to do. Lock held. */
static void wait_for_work(struct engine *engine) {
    int64_t next = next_ms(engine);
    if (next == INT64_MAX) {
        pthread_cond_wait(&engine->to_engine, &engine->lock);
        return;
    }
    int64_t left_ms = next - engine_now_ms(engine);
    if (left_ms <= 0) {
        give_way(engine);
        return;
    }
    left_ms = left_ms > IDLE_MS_MAX ? IDLE_MS_MAX : left_ms;
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += left_ms / 1000;
    until.tv_nsec += left_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    (void)pthread_cond_timedwait(&engine->to_engine, &engine->lock, &until);
}

void *engine_thread_main(void *argument) {
    struct engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    while (!engine->is_stopping) {
        bool did = work(engine);
        if (engine->wants_wake) {
            engine->wants_wake = false;
            if (engine->wake != NULL) {
                pthread_mutex_unlock(&engine->lock);
                engine->wake(engine->wake_context);
                pthread_mutex_lock(&engine->lock);
            }
            continue; /* something may have been posted meanwhile */
        }
        if (!did && !engine->is_stopping) {
            wait_for_work(engine);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}
