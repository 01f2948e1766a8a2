/* What the engine did and does, counted: per request, per second, in all; and who is stuck, and why.
 *
 * The engine thread writes under the lock at step boundaries; callers read under the lock, which is
 * never held over a step. So a question is answered while a step runs, and says since when it does.
 */
#include <assert.h>

#include "engine_internal.h"

/* ---- counting ------------------------------------------------------------------------------- */

#define COUNTS (sizeof(struct engine_counts) / sizeof(uint64_t))
static_assert(sizeof(struct engine_counts) % sizeof(uint64_t) == 0, "counts are 64-bit numbers");

static void add_counts(struct engine_counts *to, const struct engine_counts *more) {
    uint64_t sum[COUNTS];
    uint64_t add[COUNTS];
    memcpy(sum, to, sizeof sum);
    memcpy(add, more, sizeof add);
    for (size_t i = 0; i < COUNTS; i++) {
        sum[i] += add[i];
    }
    memcpy(to, sum, sizeof sum);
}

/* Seconds that passed since the last count move into the list. */
static void advance(struct engine_meter *meter, int64_t now_ms) {
    int64_t passed = now_ms / 1000 - meter->second;
    if (passed <= 0) {
        return;
    }
    int64_t moved = passed < ENGINE_SECONDS + 1 ? passed : ENGINE_SECONDS + 1;
    for (int64_t i = 0; i < moved; i++) {
        memmove(meter->seconds + 1, meter->seconds, ENGINE_SECONDS * sizeof *meter->seconds);
        meter->seconds[0] = (struct engine_counts){0};
    }
    meter->second = now_ms / 1000;
}

void engine_meter_add(struct engine *engine, const struct engine_counts *more) {
    struct engine_meter *meter = &engine->meter;
    advance(meter, engine_now_ms(engine));
    add_counts(&meter->total, more);
    add_counts(&meter->seconds[0], more);
}

void engine_meter_step(struct engine *engine, int64_t step_us, int64_t decision_us) {
    struct engine_meter *meter = &engine->meter;
    int32_t bucket = 0;
    while (bucket < ENGINE_STEP_BUCKETS - 1 && step_us >= (int64_t)1000 << bucket) {
        bucket++;
    }
    meter->histogram[bucket]++;
    meter->step_us_max = step_us > meter->step_us_max ? step_us : meter->step_us_max;
    meter->decision_us += (uint64_t)decision_us;
    meter->decision_us_max =
        decision_us > meter->decision_us_max ? decision_us : meter->decision_us_max;
    engine_meter_add(engine, &(struct engine_counts){.steps = 1, .step_us = (uint64_t)step_us});
}

/* ---- names ---------------------------------------------------------------------------------- */

const char *engine_wait_name(enum engine_wait wait) {
    static const char *const names[] = {
        [ENGINE_WAIT_NONE] = "none",
        [ENGINE_WAIT_TURN] = "turn",
        [ENGINE_WAIT_MEMORY] = "memory",
        [ENGINE_WAIT_SLOT] = "slot",
        [ENGINE_WAIT_DISK] = "disk",
        [ENGINE_WAIT_EVENTS] = "events",
    };
    return names[wait];
}

/* ---- requests ------------------------------------------------------------------------------- */

static bool is_request(const struct context *context) {
    return context->used && !context->is_dying && context->state != CONTEXT_IDLE;
}

/* Lock held. */
static void fill_request(
    const struct engine *engine, const struct context *context, struct engine_request_status *out
) {
    int64_t now_ms = engine_now_ms(engine);
    *out = context->status;
    out->sequence = context->id;
    out->age_ms = now_ms - context->queued_at_ms;
    out->progress_ms = now_ms - context->progress_at_ms;
}

static void
count_request(const struct engine_request_status *request, struct engine_statistics *out) {
    out->queued += request->state == ENGINE_QUEUED;
    out->prefilling += request->state == ENGINE_PREFILL;
    out->decoding += request->state == ENGINE_DECODE;
    out->restoring += request->wait == ENGINE_WAIT_DISK;
    out->waiting_for_memory += request->wait == ENGINE_WAIT_MEMORY;
    out->parked += request->state != ENGINE_QUEUED && request->wait == ENGINE_WAIT_SLOT;
}

static int32_t windows_used(const struct engine *engine) {
    return engine->cache.windows_max - engine->cache.window_free_count;
}

void engine_statistics(struct engine *engine, struct engine_statistics *out) {
    *out = (struct engine_statistics){0};
    engine_lock(engine);
    struct engine_meter *meter = &engine->meter;
    int64_t now_ms = engine_now_ms(engine);
    advance(meter, now_ms);
    for (int32_t c = 0; c < engine->context_count; c++) {
        const struct context *context = &engine->contexts[c];
        if (is_request(context)) {
            struct engine_request_status request;
            fill_request(engine, context, &request);
            count_request(&request, out);
            if (out->request_count < ENGINE_STATUS_REQUESTS) {
                out->requests[out->request_count] = request;
            }
            out->request_count++;
        }
        out->demoted += context->used && !context->is_dying && context->demoted != NULL;
    }
    out->total = meter->total;
    memcpy(out->seconds, meter->seconds + 1, sizeof out->seconds);
    memcpy(out->step_histogram, meter->histogram, sizeof out->step_histogram);
    out->step_us_max = meter->step_us_max;
    out->decision_us_max = meter->decision_us_max;
    out->decision_us = meter->decision_us;
    out->step_running_ms = meter->is_stepping ? now_ms - meter->step_started_ms : 0;
    out->windows_max = engine->plan.windows_max;
    out->windows_used = windows_used(engine);
    out->blocks_total = engine->cache.block_total;
    out->blocks_used = engine->cache.block_live_count;
    out->blocks_promised = engine->cache.block_promised_count;
    engine_unlock(engine);
}

/* ---- watching ------------------------------------------------------------------------------- */

static void explain(
    const struct engine *engine,
    const struct engine_request_status *request,
    struct engine_stuck *out
) {
    const struct engine_meter *meter = &engine->meter;
    long long running =
        meter->is_stepping ? (long long)(engine_now_ms(engine) - meter->step_started_ms) : 0;
    static const char *const whys[] = {
        [ENGINE_WAIT_NONE] = "a step that it is part of has been running",
        [ENGINE_WAIT_TURN] = "others come first",
        [ENGINE_WAIT_MEMORY] = "it waits for blocks of the cache",
        [ENGINE_WAIT_SLOT] = "it waits for a window slot",
        [ENGINE_WAIT_DISK] = "blocks of its prompt are being read",
        [ENGINE_WAIT_EVENTS] = "nobody takes the engine's events",
    };
    (void)snprintf(
        out->why,
        sizeof out->why,
        "%s (step at hand: %lld ms; blocks: it holds %d, may take %d; of %d are %d held by live "
        "sequences and %d promised; slots: %d of %d in use)",
        whys[request->wait],
        running,
        request->blocks,
        request->blocks_promised,
        engine->cache.block_total,
        engine->cache.block_live_count,
        engine->cache.block_promised_count,
        windows_used(engine),
        engine->plan.windows_max
    );
}

bool engine_watch(struct engine *engine, int64_t stuck_ms, struct engine_stuck *out) {
    bool is_found = false;
    struct engine_request_status worst = {0};
    engine_lock(engine);
    for (int32_t c = 0; c < engine->context_count; c++) {
        const struct context *context = &engine->contexts[c];
        struct engine_request_status request;
        if (!is_request(context)) {
            continue;
        }
        fill_request(engine, context, &request);
        if (request.progress_ms >= stuck_ms &&
            (!is_found || request.progress_ms > worst.progress_ms)) {
            worst = request;
            is_found = true;
        }
    }
    if (is_found) {
        *out = (struct engine_stuck
        ){.sequence = worst.sequence, .wait = worst.wait, .stuck_ms = worst.progress_ms};
        explain(engine, &worst, out);
    }
    engine_unlock(engine);
    return is_found;
}
