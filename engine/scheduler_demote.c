/* Sequences that do not run give their blocks to requests that wait for some: their content becomes a
 * matter of the cache, the sequence keeps its tokens and what their content depends on beside them.
 *
 * Its next generation begins as a first one does, with all tokens as its prompt and a contract, so
 * that the bits are those of a sequence that kept its blocks. See engine_internal.h, schedule.h.
 */
#include "engine_internal.h"

int32_t scheduler_running(const struct engine *engine) {
    int32_t running = 0;
    for (int32_t c = 0; c < engine->context_count; c++) {
        const struct context *context = &engine->contexts[c];
        running +=
            context->used && (context->state == CONTEXT_PARKED || context->state == CONTEXT_ACTIVE);
    }
    return running;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static size_t demotion_bytes(int64_t count) {
    return sizeof(struct context_demotion) + (size_t)count * sizeof(int32_t);
}

struct context_demotion *engine_demotion_copy(const struct context_demotion *demoted) {
    size_t bytes = demotion_bytes(demoted->count);
    struct context_demotion *copy = malloc(bytes);
    if (copy != NULL) {
        memcpy(copy, demoted, bytes);
    }
    return copy;
}

const int32_t *scheduler_demoted_prompt(struct context *context) {
    const struct engine_generation *generation = &context->generation;
    struct context_demotion *demoted = context->demoted;
    size_t append = (size_t)generation->append_count;
    demoted = realloc(demoted, demotion_bytes((int64_t)demoted->count + generation->append_count));
    if (demoted == NULL) {
        return NULL;
    }
    context->demoted = demoted;
    memcpy(demoted->ids + demoted->count, generation->append, append * sizeof(int32_t));
    return demoted->ids;
}

/* ---- demoting -------------------------------------------------------------------------------- */

static result demote(struct engine *engine, struct context *context, struct error *error) {
    struct kv_sequence *kv = context->kv;
    int64_t now_ms = engine_now_ms(engine);
    if (context->is_broken) {
        kv_store_end(engine->store, &context->binding, now_ms); /* nothing of it is wanted */
    } else {
        struct context_demotion *demoted = malloc(demotion_bytes(kv->length));
        if (demoted == NULL) {
            FAIL(error, MEMORY, "no memory for %d tokens of a sequence that waits", kv->length);
        }
        demoted->has_next = kv->computed < kv->length || context->kept != NULL;
        demoted->count = kv->length;
        kv_cache_read_ids(&engine->cache, kv, 0, kv->length, demoted->ids);
        kv_store_demote(engine->store, &context->binding, now_ms, &demoted->content);
        context->demoted = demoted;
    }
    engine_kept_release(context);
    kv_cache_release(&engine->cache, kv);
    context->kv = NULL;
    engine_meter_add(engine, &(struct engine_counts){.demoted = 1});
    return OK;
}

static bool can_demote(const struct context *context, const struct context *blocked) {
    return context->used && !context->is_dying && context != blocked && context->kv != NULL &&
           context->kv->block_count > 0 &&
           (context->state == CONTEXT_IDLE || context->state == CONTEXT_QUEUED);
}

static struct schedule_idle describe_idle(const struct engine *engine, int32_t index) {
    const struct context *context = &engine->contexts[index];
    const struct kv_sequence *kv = context->kv;
    bool is_known = context->return_ms < INT64_MAX / 1000;
    struct schedule_idle idle = {
        .number = index,
        .is_over = context->is_over || context->is_broken,
        .is_queued = context->state == CONTEXT_QUEUED,
        .return_us = is_known ? context->return_ms * 1000 : INT64_MAX,
        .idle_us = context->used_at_ms * 1000,
        .id = context->id,
    };
    for (int32_t b = 0; b < kv->block_count; b++) {
        idle.blocks += 1.0 / engine->cache.block_sequences[kv->numbers[b]];
    }
    return idle;
}

static int32_t describe_all_idle(const struct engine *engine, const struct context *blocked) {
    int32_t count = 0;
    for (int32_t c = 0; c < engine->context_count; c++) {
        if (can_demote(&engine->contexts[c], blocked)) {
            engine->idle[count++] = describe_idle(engine, c);
        }
    }
    return count;
}

/* What is asked for, as of now. */
static struct schedule_sequence
wanted_by(const struct engine *engine, struct context *blocked, int32_t blocks) {
    if (blocked == NULL) {
        return (struct schedule_sequence){.blocks_needed = blocks};
    }
    struct kv_need need;
    scheduler_need(engine, blocked, engine_tokens_bound(engine, blocked), &need);
    blocked->generation.blocks_needed = need.more;
    return scheduler_describe(engine, blocked);
}

bool scheduler_demote_for(
    struct engine *engine, struct context *blocked, int32_t blocks, struct error *error
) {
    for (;;) {
        int64_t started_us = engine_now_us();
        struct schedule_sequence wanted = wanted_by(engine, blocked, blocks);
        struct schedule_machine machine = scheduler_machine(engine);
        int32_t count = describe_all_idle(engine, blocked);
        int32_t chosen = schedule_demote(&machine, &wanted, engine->idle, count);
        engine->decision_us += engine_now_us() - started_us;
        if (is_ok(schedule_admits_checked(&machine, wanted.blocks_needed, error))) {
            return true;
        }
        struct context *context = NULL;
        if (chosen >= 0) {
            context = &engine->contexts[engine->idle[chosen].number];
        } else if (machine.running == 0 && blocked != NULL && can_demote(blocked, NULL)) {
            context = blocked; /* copies of what it shares are more than what it takes alone */
        }
        if (context == NULL || is_failed(demote(engine, context, error))) {
            return false;
        }
    }
}
