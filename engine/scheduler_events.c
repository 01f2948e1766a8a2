/* Events on their way to the callers, and the end of a generation. See engine_internal.h. */
#include "engine_internal.h"

/* ---- events --------------------------------------------------------------------------------- */

void scheduler_pend(struct engine *engine, struct context *context, struct event_entry *event) {
    ASSERT(engine->pending_count < engine->pending_capacity);
    event->context = (int32_t)(context - engine->contexts);
    event->sequence = context->id;
    engine->pending[engine->pending_count++] = *event;
}

static void free_ending(struct engine *engine, const struct event_entry *event) {
    if (event->type == ENGINE_FINISHED) {
        engine->endings[event->ending].next = engine->ending_free;
        engine->ending_free = event->ending;
        engine->endings_left++;
    }
}

/* Moves the step's events into the ring; those of destroyed sequences are dropped. */
void scheduler_publish(struct engine *engine) {
    bool was_empty = engine->event_count == 0;
    for (size_t i = 0; i < engine->pending_count; i++) {
        const struct event_entry *event = &engine->pending[i];
        const struct context *context = &engine->contexts[event->context];
        if (!context->used || context->is_dying || context->id != event->sequence) {
            free_ending(engine, event);
            continue;
        }
        ASSERT(engine->event_count < engine->event_capacity);
        size_t at = (engine->event_first + engine->event_count) % engine->event_capacity;
        engine->events[at] = *event;
        engine->event_count++;
    }
    engine->pending_count = 0;
    engine->wants_wake = engine->wants_wake || (was_empty && engine->event_count > 0);
}

/* Room for what a boundary and a step can report. */
bool scheduler_has_event_room(const struct engine *engine) {
    return engine->event_capacity - engine->event_count >= engine->pending_capacity &&
           engine->endings_left >= engine->context_count;
}

static void take_event(struct engine *engine, struct engine_event *out) {
    const struct event_entry *event = &engine->events[engine->event_first];
    *out = (struct engine_event){
        .type = event->type,
        .sequence = event->sequence,
        .done = event->done,
        .total = event->total,
        .token = event->token.id,
        .logprob = event->token.logprob,
        .alternative_count = event->token.alternative_count,
    };
    if (event->type == ENGINE_TOKEN) {
        memcpy(out->alternatives, event->token.alternatives, sizeof out->alternatives);
    } else if (event->type == ENGINE_FINISHED) {
        const struct event_ending *ending = &engine->endings[event->ending];
        out->reason = ending->reason;
        out->facts = ending->facts;
        out->error = ending->error;
    }
    free_ending(engine, event);
    engine->event_first = (engine->event_first + 1) % engine->event_capacity;
    engine->event_count--;
}

bool engine_next_event(struct engine *engine, struct engine_event *out) {
    engine_lock(engine);
    bool has_event = engine->event_count > 0;
    if (has_event) {
        bool had_room = scheduler_has_event_room(engine);
        take_event(engine, out);
        if (!had_room) {
            pthread_cond_signal(&engine->to_engine);
        }
    }
    engine_unlock(engine);
    return has_event;
}

void scheduler_drop_events(struct engine *engine, uint64_t sequence) {
    size_t kept = 0;
    for (size_t i = 0; i < engine->event_count; i++) {
        size_t from = (engine->event_first + i) % engine->event_capacity;
        size_t to = (engine->event_first + kept) % engine->event_capacity;
        if (engine->events[from].sequence == sequence) {
            free_ending(engine, &engine->events[from]);
            continue;
        }
        if (to != from) {
            engine->events[to] = engine->events[from];
        }
        kept++;
    }
    engine->event_count = kept;
}

/* ---- the end of a generation ---------------------------------------------------------------- */

/* What the context's content depends on beside its tokens. */
static void fill_dependence(
    const struct engine *engine, const struct context *context, struct generation_facts *facts
) {
    const struct kv_binding *binding = &context->binding;
    memcpy(facts->lineage, engine->info.root_lineage, sizeof facts->lineage);
    struct kv_demoted content = {.lineage = engine->root};
    if (binding->sequence != NULL) {
        content.lineage = binding->lineage;
        content.decoder_lineage = binding->decoder_lineage;
        content.has_decoder_lineage = binding->has_decoder_lineage;
        content.replay_count = binding->replay_count;
        memcpy(content.replays, binding->replays, sizeof content.replays);
    } else if (context->demoted != NULL) {
        content = context->demoted->content;
    }
    kv_hex(content.lineage.bytes, facts->block_lineage);
    if (content.has_decoder_lineage) {
        kv_hex(content.decoder_lineage.bytes, facts->decoder_lineage);
    } else {
        (void)snprintf(facts->decoder_lineage, sizeof facts->decoder_lineage, "0");
    }
    facts->replay_count = content.replay_count;
    memcpy(facts->replays, content.replays, sizeof facts->replays);
}

/* A request that ends before it began: nothing ran, nothing was reused. */
static void fill_unstarted(struct context *context, int64_t now_us) {
    struct engine_generation *generation = &context->generation;
    generation->admitted_at_us = now_us;
    generation->facts = (struct generation_facts){
        .queued_us = now_us - generation->queued_at_us,
        .window_source = "cold",
        .miss = kv_prefix_miss_name(KV_PREFIX_MISS_NONE),
    };
}

static void fill_facts(struct engine *engine, struct context *context) {
    struct engine_generation *generation = &context->generation;
    struct generation_facts *facts = &generation->facts;
    int64_t now_us = engine_now_us();
    if (generation->append != NULL) {
        fill_unstarted(context, now_us);
    }
    /* A prompt that was cut: what was read of it. */
    int32_t read = facts->reused + facts->evaluated;
    facts->prompt_tokens = read < facts->prompt_tokens ? read : facts->prompt_tokens;
    if (context->state == CONTEXT_PARKED && generation->parked_at_us > 0) {
        facts->parked_us += now_us - generation->parked_at_us;
    }
    if (generation->prefilled_at_us == 0) {
        facts->prefill_us = now_us - generation->admitted_at_us;
    } else {
        facts->decode_us = now_us - generation->prefilled_at_us;
    }
    fill_dependence(engine, context, facts);
    facts->seed = generation->sampling.seed;
    facts->parent_seed = context->seed.parent_seed;
    facts->fork_index = context->seed.fork_index;
    if (!generation->has_ended || generation->reason != FINISH_STOP) {
        facts->stop_index = -1;
    }
}

static void pend_ending(
    struct engine *engine,
    struct context *context,
    enum finish_reason reason,
    const struct error *error
) {
    int32_t number = engine->ending_free;
    ASSERT(number >= 0);
    struct event_ending *ending = &engine->endings[number];
    engine->ending_free = ending->next;
    engine->endings_left--;
    *ending = (struct event_ending){.reason = reason, .facts = context->generation.facts};
    if (error != NULL) {
        ending->error = *error;
    }
    struct event_entry event = {.type = ENGINE_FINISHED, .ending = number};
    scheduler_pend(engine, context, &event);
}

void scheduler_finish(
    struct engine *engine,
    struct context *context,
    enum finish_reason reason,
    const struct error *error
) {
    ASSERT(context->state != CONTEXT_IDLE);
    fill_facts(engine, context);
    pend_ending(engine, context, reason, error);
    if (context->state == CONTEXT_PARKED && context->binding.sequence == NULL) {
        kv_store_cancel(engine->store, &context->binding, engine_now_ms(engine));
    }
    context->is_restoring = false;
    scheduler_unpromise(engine, context);
    if (context->state != CONTEXT_QUEUED) {
        schedule_ledger_leave(engine->ledger, context->generation.agent);
    }
    if (context->demoted != NULL && context->kv != NULL) {
        kv_cache_release(&engine->cache, context->kv); /* empty: it did not begin */
        context->kv = NULL;
    }
    if (context->kv != NULL) {
        context->length = context->kv->length;
    }
    context->is_cancelled = false;
    context->state = CONTEXT_IDLE;
    context->used_at_ms = engine_now_ms(engine);
    engine_generation_free(&context->generation);
    engine_meter_add(engine, &(struct engine_counts){.finished = 1});
}
