/* One step: rows run, tokens are drawn, and then, under the lock, what came of it is accounted for.
 *
 * A segment of a decoding sequence may have drafts behind its first row. Their logits are consumed
 * position by position until the first draw that differs; rows behind it are taken back. Without drafts
 * the same loop takes one row. See engine_internal.h for the lock.
 */
#include "engine_internal.h"

/* Of a draw, for each token of the vocabulary: decides whether a sleeping thread is woken for it. */
#define DRAW_NS 16

/* ---- without the lock ------------------------------------------------------------------------ */

/* Rows of logits of an entry: its last row's, with drafts those of all rows. */
static int32_t logit_rows(const struct step_entry *entry) {
    return entry->segment < 0 || !entry->has_logits ? 0 : entry->drafted > 0 ? entry->rows : 1;
}

/* Draws of entries [first, end), whose logits are there, by some lanes at a time: each takes the next
 * entry that nobody has. An entry's draws depend on nothing but the entry, so it does not matter who
 * makes them. */
struct draw_turn {
    struct engine *engine;
    int32_t first, end;
    atomic_int next;
};

static void draw_entry(struct engine *engine, struct step_entry *entry, struct sampler *sampler) {
    int32_t drafts[ENGINE_DRAFT_MAX];
    if (entry->logits == NULL) {
        return;
    }
    ASSERT(entry->drafted >= 0 && entry->drafted <= ENGINE_DRAFT_MAX);
    const struct kv_sequence *kv = entry->context->kv;
    kv_cache_read_ids(&engine->cache, kv, kv->length - entry->drafted, entry->drafted, drafts);
    scheduler_draw(engine, entry, sampler, drafts);
}

static const struct constraint *constraint_of(const struct engine *engine, int32_t e) {
    return engine->entries[e].context->generation.constraint;
}

/* A constraint makes states and masks as they are met: who has the first entry with it makes the
 * draws of all of them, in their order. */
static void draw_constrained(const struct draw_turn *turn, int32_t e, struct sampler *sampler) {
    const struct constraint *constraint = constraint_of(turn->engine, e);
    for (int32_t before = turn->first; before < e; before++) {
        if (constraint_of(turn->engine, before) == constraint) {
            return;
        }
    }
    for (int32_t same = e; same < turn->end; same++) {
        if (constraint_of(turn->engine, same) == constraint) {
            draw_entry(turn->engine, &turn->engine->entries[same], sampler);
        }
    }
}

static void draw_lane(void *context, int32_t lane) {
    struct draw_turn *turn = context;
    struct engine *engine = turn->engine;
    struct sampler *sampler = engine->samplers[lane];
    for (;;) {
        int32_t e = atomic_fetch_add_explicit(&turn->next, 1, memory_order_relaxed);
        if (e >= turn->end) {
            return;
        }
        if (constraint_of(engine, e) != NULL) {
            draw_constrained(turn, e, sampler);
        } else {
            draw_entry(engine, &engine->entries[e], sampler);
        }
    }
}

static void make_draws(struct engine *engine, int32_t first, int32_t end) {
    struct draw_turn turn = {.engine = engine, .first = first, .end = end};
    int32_t entries = 0;
    int64_t rows = 0;
    for (int32_t e = first; e < end; e++) {
        entries += engine->entries[e].logits != NULL;
        rows += engine->entries[e].logits != NULL ? 1 + engine->entries[e].drafted : 0;
    }
    int32_t lanes = entries < engine->sampler_count ? entries : engine->sampler_count;
    lanes = engine->observe != NULL && lanes > 1 ? 1 : lanes;
    atomic_init(&turn.next, first);
    backend_spread(
        engine->backend, draw_lane, &turn, lanes, rows * engine->info.vocabulary * DRAW_NS
    );
}

/* Draws for all entries that have logits; these are fetched for as many as fit at a time. */
static result draw_all(struct engine *engine, struct error *error) {
    int32_t done = 0;  /* rows of logits of the step */
    int32_t draws = 0; /* as many as there can be */
    size_t stride = (size_t)engine->info.vocabulary;
    for (int32_t first = 0; first < engine->entry_count;) {
        int32_t end = first;
        int32_t rows = 0;
        while (end < engine->entry_count &&
               rows + logit_rows(&engine->entries[end]) <= FORWARD_LOGIT_ROWS_MAX) {
            struct step_entry *entry = &engine->entries[end++];
            entry->logits = entry->segment < 0  ? entry->context->kept->values
                            : entry->has_logits ? engine->logit_rows + (size_t)rows * stride
                                                : NULL;
            entry->draw_first = draws;
            draws += entry->logits == NULL ? 0 : 1 + entry->drafted;
            rows += logit_rows(entry);
        }
        ASSERT(end > first && draws <= engine->draw_capacity);
        if (rows > 0) {
            TRY(forward_logits(engine->forward, done, rows, engine->logit_rows, error));
        }
        done += rows;
        make_draws(engine, first, end);
        first = end;
    }
    return OK;
}

/* Rows behind the first draft that was not drawn leave nothing behind. */
static bool keep_rows(struct engine *engine) {
    bool has_drafts = false;
    for (int32_t e = 0; e < engine->entry_count; e++) {
        const struct step_entry *entry = &engine->entries[e];
        if (entry->segment >= 0) {
            engine->kept_rows[entry->segment] = entry->kept;
            has_drafts = has_drafts || entry->drafted > 0;
        }
    }
    if (has_drafts) {
        forward_keep(engine->forward, engine->kept_rows);
    }
    return has_drafts;
}

static result compute(struct engine *engine, struct error *error) {
    if (engine->segment_count > 0) {
        TRY(forward_step(engine->forward, engine->segments, engine->segment_count, NULL, error));
    }
    /* What was held back is settled whatever happened: the next step begins without it. */
    result drawn = draw_all(engine, error);
    bool has_drafts = keep_rows(engine);
    TRY(drawn);
    return scheduler_drafts_propose(engine, has_drafts, error);
}

/* ---- with the lock --------------------------------------------------------------------------- */

/* Rows of a prompt: those that entries were missing of, and those that ran for their windows only. */
static void
count_rows(struct engine *engine, const struct step_entry *entry, struct engine_counts *counts) {
    struct context *context = entry->context;
    struct engine_generation *generation = &context->generation;
    struct generation_facts *facts = &generation->facts;
    const struct forward_segment *segment = &engine->segments[entry->segment];
    int32_t end = segment->position + entry->rows;
    int32_t below = segment->write_floor - segment->position;
    below = below < 0 ? 0 : below < entry->rows ? below : entry->rows;
    int32_t from = segment->position + below;
    int32_t prompt_end = facts->prompt_tokens < end ? facts->prompt_tokens : end;
    int32_t evaluated = prompt_end > from ? prompt_end - from : 0;
    facts->rebuilt += below;
    facts->evaluated += evaluated;
    counts->rebuilt += (uint64_t)below;
    counts->prefill_rows += (uint64_t)evaluated;
    counts->decode_rows += (uint64_t)(entry->rows - below - evaluated);
    if (segment->position < facts->prompt_tokens) {
        struct event_entry event = {
            .type = ENGINE_PROGRESS,
            .done = facts->evaluated + facts->rebuilt,
            .total = generation->rows_to_run,
        };
        scheduler_pend(engine, context, &event);
    }
}

/* The tokens drawn become part of the sequence; drafts that are among them are there already. */
static void append_draws(struct engine *engine, const struct step_entry *entry) {
    struct context *context = entry->context;
    struct kv_sequence *kv = context->kv;
    if (entry->drafted > 0) {
        int32_t accepted = entry->draw_count > 0 ? entry->draw_count - 1 : 0;
        kv_cache_truncate(kv, kv->length - entry->drafted + accepted);
    }
    for (int32_t i = 0; i < entry->draw_count; i++) {
        struct event_entry event = {
            .type = ENGINE_TOKEN, .token = engine->draws[entry->draw_first + i]};
        if (i == entry->draw_count - 1) {
            scheduler_append(engine, kv, event.token.id);
        }
        scheduler_pend(engine, context, &event);
    }
    if (entry->draw_count > 0) {
        engine_kept_release(context);
    }
}

static void conclude_entry(
    struct engine *engine, const struct step_entry *entry, struct engine_counts *counts
) {
    struct context *context = entry->context;
    struct engine_generation *generation = &context->generation;
    int64_t now_ms = engine_now_ms(engine);
    context->progress_at_ms = now_ms;
    if (entry->segment >= 0) {
        count_rows(engine, entry, counts);
        schedule_ledger_charge(engine->ledger, generation->agent, entry->rows);
    }
    if (entry->is_poisoned) {
        context->is_broken = true;
        context->binding.is_lost = true;
    } else if (entry->segment >= 0) {
        kv_store_advance(engine->store, &context->binding, now_ms);
    }
    append_draws(engine, entry);
    counts->sampled += (uint64_t)entry->draw_count;
    counts->drafted += (uint64_t)entry->drafted;
    counts->accepted += (uint64_t)(entry->kept - entry->rows + entry->drafted);
    scheduler_tell_status(context, ENGINE_WAIT_TURN);
    if (generation->has_ended) {
        struct error error = generation->error;
        bool is_error = generation->reason == FINISH_ERROR;
        scheduler_finish(engine, context, generation->reason, is_error ? &error : NULL);
    }
}

static void lose_all(struct engine *engine, const struct error *error) {
    for (int32_t e = 0; e < engine->entry_count; e++) {
        struct context *context = engine->entries[e].context;
        if (engine->entries[e].segment >= 0) {
            context->is_broken = true;
            context->binding.is_lost = true;
        }
        scheduler_finish(engine, context, FINISH_ERROR, error);
    }
}

void scheduler_step(struct engine *engine) {
    struct error error = {0};
    engine->meter.is_stepping = true;
    engine->meter.step_started_ms = engine_now_ms(engine);
    engine_unlock(engine);
    int64_t started_us = engine_now_us();
    result ran = compute(engine, &error);
    int64_t taken_us = engine_now_us() - started_us;
    if (is_ok(ran) && engine->segment_count > 0) {
        schedule_cost_update(&engine->cost, &engine->step_rows, taken_us);
    }
    pthread_mutex_lock(&engine->lock);
    engine->meter.is_stepping = false;
    if (is_failed(ran)) {
        lose_all(engine, &error);
        return;
    }
    struct engine_counts counts = {0};
    for (int32_t e = 0; e < engine->entry_count; e++) {
        conclude_entry(engine, &engine->entries[e], &counts);
    }
    engine_meter_add(engine, &counts);
    engine_meter_step(engine, taken_us, engine->decision_us);
}
