/* Live sequences on the callers' side: create, fork, destroy, what is known of them. See engine.h and
 * engine_internal.h. */
#include "engine_internal.h"

/* ---- sequences ------------------------------------------------------------------------------ */

struct context *engine_context_find(struct engine *engine, uint64_t id) {
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (context->used && !context->is_dying && context->id == id) {
            return context;
        }
    }
    return NULL;
}

static struct context *find_unused(struct engine *engine) {
    for (int32_t c = 0; c < engine->context_count; c++) {
        if (!engine->contexts[c].used) {
            return &engine->contexts[c];
        }
    }
    return NULL;
}

void engine_kept_release(struct context *context) {
    struct kept_logits *kept = context->kept;
    context->kept = NULL;
    if (kept != NULL && --kept->references == 0) {
        free(kept);
    }
}

void engine_context_free(struct engine *engine, struct context *context) {
    ASSERT(context->used);
    int64_t now_ms = engine_now_ms(engine);
    if (context->binding.sequence != NULL) {
        kv_store_end(engine->store, &context->binding, now_ms);
    } else {
        kv_store_cancel(engine->store, &context->binding, now_ms);
    }
    if (context->kv != NULL) {
        kv_cache_release(&engine->cache, context->kv);
    }
    if (context->state == CONTEXT_PARKED || context->state == CONTEXT_ACTIVE) {
        schedule_ledger_leave(engine->ledger, context->generation.agent);
    }
    engine_kept_release(context);
    engine_generation_free(&context->generation);
    free(context->demoted);
    *context = (struct context){0};
}

int32_t engine_free_idle(struct engine *engine) {
    int32_t freed = 0;
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        bool is_running = engine->meter.is_stepping && context->state == CONTEXT_ACTIVE;
        if (context->used && context->is_dying && !is_running) {
            engine_context_free(engine, context);
            freed++;
        }
    }
    return freed;
}

result engine_sequence_create(struct engine *engine, uint64_t *out, struct error *error) {
    engine_lock(engine);
    /* One that is dying has a sequence of the cache, of which there are sequences_max: there is a
     * place. */
    struct context *context =
        engine->live_count < engine->plan.sequences_max ? find_unused(engine) : NULL;
    if (context != NULL) {
        engine->live_count++;
        context->used = true;
        context->id = engine->next_id++;
        context->seed.fork_index = -1;
        context->return_ms = INT64_MAX;
        *out = context->id;
    }
    engine_unlock(engine);
    if (context == NULL) {
        FAIL(error, LIMIT, "all %d sequences are in use", engine->plan.sequences_max);
    }
    return OK;
}

/* Lock held. */
static result check_parent(
    const struct engine *engine, const struct context *parent, uint64_t id, struct error *error
) {
    unsigned long long number = id;
    if (parent == NULL) {
        FAIL(error, NOT_FOUND, "there is no sequence %llu", number);
    }
    if (parent->is_broken) {
        FAIL(error, INVALID_INPUT, "sequence %llu is lost: a step of it failed", number);
    }
    if (parent->state != CONTEXT_IDLE) {
        FAIL(error, INVALID_INPUT, "sequence %llu is busy with a generation", number);
    }
    if (engine->live_count >= engine->plan.sequences_max) {
        FAIL(error, LIMIT, "all %d sequences are in use", engine->plan.sequences_max);
    }
    return OK;
}

/* Without a seed of the parent there is nothing to derive from: the child gets one as a new sequence does. */
static struct sequence_seed child_seed(struct context *parent) {
    if (!parent->seed.has_seed) {
        return (struct sequence_seed){.fork_index = -1};
    }
    uint64_t index = parent->fork_count++;
    return (struct sequence_seed){
        .seed = sampling_child_seed(parent->seed.seed, index),
        .parent_seed = parent->seed.seed,
        .fork_index = narrow_i32((int64_t)(index < INT32_MAX ? index : INT32_MAX)),
        .has_seed = true,
    };
}

/* The child's caches are the fork `kv`, null when the parent has none. Lock held. */
static void add_child(
    struct engine *engine,
    struct context *parent,
    struct kv_sequence *kv,
    struct context_demotion *demoted,
    uint64_t *out
) {
    struct context *child = find_unused(engine);
    ASSERT(child != NULL); /* as in engine_sequence_create */
    engine->live_count++;
    child->used = true;
    child->id = engine->next_id++;
    child->length = parent->length;
    child->seed = child_seed(parent);
    child->kv = kv;
    child->demoted = demoted;
    child->return_ms = INT64_MAX;
    child->used_at_ms = parent->used_at_ms;
    if (parent->binding.sequence != NULL) {
        kv_store_fork(engine->store, &parent->binding, &child->binding, kv, engine_now_ms(engine));
    }
    if (parent->kept != NULL) {
        child->kept = parent->kept;
        child->kept->references++;
    }
    *out = child->id;
}

result
engine_sequence_fork(struct engine *engine, uint64_t parent, uint64_t *out, struct error *error) {
    engine_lock(engine);
    struct context *context = engine_context_find(engine, parent);
    result checked = check_parent(engine, context, parent, error);
    struct kv_sequence *kv = NULL;
    while (is_ok(checked) && context->kv != NULL && kv == NULL) {
        kv = kv_cache_fork(&engine->cache, context->kv);
        if (kv == NULL && engine_free_idle(engine) == 0) {
            /* A destroyed sequence holds a place until the step that it runs in is over. */
            pthread_cond_wait(&engine->to_caller, &engine->lock);
            context = engine_context_find(engine, parent);
            checked = check_parent(engine, context, parent, error);
        }
    }
    struct context_demotion *demoted = NULL;
    if (is_ok(checked) && context->demoted != NULL) {
        demoted = engine_demotion_copy(context->demoted);
        if (demoted == NULL) {
            checked = error_set(
                error,
                RESULT_MEMORY,
                0,
                __FILE__,
                __LINE__,
                "no memory for %d tokens of a fork",
                context->demoted->count
            );
        }
    }
    if (is_ok(checked)) {
        add_child(engine, context, kv, demoted, out);
    }
    engine_unlock(engine);
    return checked;
}

void engine_sequence_destroy(struct engine *engine, uint64_t sequence) {
    engine_lock(engine);
    struct context *context = engine_context_find(engine, sequence);
    if (context != NULL) {
        engine->live_count--;
        scheduler_drop_events(engine, sequence);
        /* Its windows are kept by the engine thread: a copy of megabytes into fresh memory. */
        if (context->state == CONTEXT_PARKED || context->state == CONTEXT_ACTIVE ||
            context->binding.sequence != NULL) {
            context->is_dying = true;
        } else {
            engine_context_free(engine, context);
        }
        pthread_cond_signal(&engine->to_engine);
    }
    engine_unlock(engine);
}

int32_t engine_sequence_length(const struct engine *engine, uint64_t sequence) {
    /* Locking changes no observable state of the engine. */
    struct engine *unconst;
    memcpy(&unconst, &engine, sizeof(void *));
    engine_lock(unconst);
    const struct context *context = engine_context_find(unconst, sequence);
    int32_t length = context == NULL ? 0 : context->length;
    engine_unlock(unconst);
    return length;
}

result engine_sequence_seed(
    struct engine *engine, uint64_t sequence, struct sequence_seed *out, struct error *error
) {
    engine_lock(engine);
    const struct context *context = engine_context_find(engine, sequence);
    bool is_there = context != NULL;
    if (is_there) {
        *out = context->seed;
    }
    engine_unlock(engine);
    if (!is_there) {
        FAIL(error, NOT_FOUND, "there is no sequence %llu", (unsigned long long)sequence);
    }
    return OK;
}
