/* Window slots and promises of blocks: what a request has to have before rows of it run.
 *
 * Who does not run keeps his slot as long as nobody needs it; then the one idle for longest is parked
 * in the snapshot pool. See engine_internal.h.
 */
#include "engine_internal.h"

/* ---- blocks ---------------------------------------------------------------------------------- */

int32_t engine_tokens_bound(const struct engine *engine, const struct context *context) {
    const struct engine_generation *generation = &context->generation;
    int64_t tokens =
        (int64_t)context->length + generation->append_count + (int64_t)generation->tokens_max;
    int64_t most = engine->plan.context_max;
    return (int32_t)(tokens < most ? tokens : most);
}

void scheduler_need(
    const struct engine *engine, const struct context *context, int32_t tokens, struct kv_need *out
) {
    /* All that is read of an empty one. */
    static const struct kv_sequence empty = {0};
    const struct kv_sequence *kv = context->kv == NULL ? &empty : context->kv;
    kv_store_need(engine->store, kv, tokens, out);
}

bool scheduler_promise(struct engine *engine, struct context *context) {
    if (context->kv == NULL) {
        context->kv = kv_cache_acquire_idle(&engine->cache);
        ASSERT(context->kv != NULL); /* live sequences never outnumber those of the cache */
    }
    return kv_store_commit(engine->store, context->kv, engine_tokens_bound(engine, context));
}

void scheduler_unpromise(struct engine *engine, struct context *context) {
    if (context->kv != NULL) {
        bool is_back = kv_store_commit(engine->store, context->kv, 0);
        ASSERT(is_back);
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

static bool has_slot(const struct context *context) {
    return context->used && context->kv != NULL && context->kv->state != NULL;
}

int32_t scheduler_slots_free(const struct engine *engine) {
    int32_t active = 0;
    for (int32_t c = 0; c < engine->context_count; c++) {
        active += has_slot(&engine->contexts[c]) && engine->contexts[c].state == CONTEXT_ACTIVE;
    }
    return engine->plan.windows_max - active;
}

/* The one that does not run and ended longest ago. */
static struct context *find_idle(struct engine *engine, const struct context *other) {
    struct context *found = NULL;
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (has_slot(context) && context != other && context->state != CONTEXT_ACTIVE &&
            (found == NULL || (context->state == CONTEXT_IDLE && found->state != CONTEXT_IDLE) ||
             ((context->state == CONTEXT_IDLE) == (found->state == CONTEXT_IDLE) &&
              context->used_at_ms < found->used_at_ms))) {
            found = context;
        }
    }
    return found;
}

bool scheduler_slot_make_free(struct engine *engine, const struct context *context) {
    if ((context != NULL && has_slot(context)) || engine->cache.window_free_count > 0) {
        return true;
    }
    struct context *idle = find_idle(engine, context);
    if (idle == NULL) {
        return false;
    }
    kv_store_park(engine->store, &idle->binding, false, engine_now_ms(engine));
    return true;
}

bool scheduler_slot_resume(struct engine *engine, struct context *context, int32_t prompt_end) {
    if (has_slot(context)) {
        return true;
    }
    struct kv_resumption resumption;
    int64_t now_ms = engine_now_ms(engine);
    return kv_store_resume(engine->store, &context->binding, prompt_end, now_ms, &resumption);
}
