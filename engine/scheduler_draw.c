/* Tokens from logits: the draw, and what ends a generation because of what was drawn. Everything here
 * is a function of the sequence's own tokens, settings and logits. See engine_internal.h. */
#include "constraint.h"
#include "engine_internal.h"
#include "tokenizer.h"

#define IDS_AT_ONCE 1024

/* ---- what a draw depends on ------------------------------------------------------------------ */

/* Before the first draw: penalties count the prompt. */
static void fill_history(const struct engine *engine, struct context *context, int32_t length) {
    struct engine_generation *generation = &context->generation;
    if (generation->history == NULL || generation->has_history) {
        return;
    }
    int32_t ids[IDS_AT_ONCE];
    for (int32_t from = 0; from < length; from += IDS_AT_ONCE) {
        int32_t count = length - from < IDS_AT_ONCE ? length - from : IDS_AT_ONCE;
        kv_cache_read_ids(&engine->cache, context->kv, from, count, ids);
        sampler_history_prompt(generation->history, ids, count);
    }
    generation->has_history = true;
}

static void
observe(struct engine *engine, const struct context *context, int32_t length, float *logits) {
    if (engine->observe != NULL) {
        engine->observe(
            engine->observe_context, context->id, length, logits, engine->info.vocabulary
        );
    }
}

static result draw(
    struct engine *engine,
    struct context *context,
    struct sampler *sampler,
    float *logits,
    int32_t position,
    struct sampled_token *out,
    struct error *error
) {
    struct engine_generation *generation = &context->generation;
    observe(engine, context, position, logits);
    struct sampler_request request = {
        .logits = logits,
        .sampling = &generation->sampling,
        .history = generation->history,
        .position = position,
    };
    if (generation->constraint != NULL) {
        TRY(constraint_mask(
            generation->constraint, generation->constraint_state, &request.mask, error
        ));
    }
    return sampler_draw(sampler, &request, out, error);
}

/* ---- what follows from a token --------------------------------------------------------------- */

static void end_with(struct engine_generation *generation, enum finish_reason reason) {
    if (!generation->has_ended) {
        generation->has_ended = true;
        generation->reason = reason;
    }
}

static void fail_with(struct engine_generation *generation, const struct error *error) {
    end_with(generation, FINISH_ERROR);
    generation->error = *error;
}

static void feed_stop(struct engine_generation *generation, int32_t id, struct view bytes) {
    struct stop_match match;
    if (generation->stop == NULL ||
        !stop_feed(generation->stop, &generation->stop_state, id, bytes, &match) ||
        generation->has_ended) {
        return;
    }
    end_with(generation, FINISH_STOP);
    generation->facts.stop_index = match.is_id ? generation->stop_count + match.index : match.index;
    generation->facts.stop_bytes = narrow_i32((int64_t)(match.string_bytes + match.behind_bytes));
}

static void feed_guard(struct engine_generation *generation, int32_t id, struct view bytes) {
    if (generation->guard == NULL) {
        return;
    }
    static const enum finish_reason reasons[] = {
        [GUARD_LOOP] = FINISH_LOOP,
        [GUARD_THINKING] = FINISH_THINKING,
        [GUARD_OPEN_CALL] = FINISH_OPEN_CALL,
    };
    struct guard_finding finding;
    enum guard_verdict verdict =
        guard_feed(generation->guard, generation->guard_state, id, bytes, &finding);
    if (verdict != GUARD_GO_ON) {
        end_with(generation, reasons[verdict]);
    }
}

/* The token is part of the generation now; `length` counts it. */
static void take(struct engine *engine, struct context *context, int32_t id, int32_t length) {
    struct engine_generation *generation = &context->generation;
    struct view bytes = tokenizer_bytes(engine->tokenizer, id);
    struct error error = {0};
    generation->facts.sampled++;
    if (generation->history != NULL) {
        sampler_history_push(generation->history, id);
    }
    if (id == engine->info.eos_id) {
        end_with(generation, FINISH_EOS);
        return;
    }
    if (generation->constraint != NULL &&
        is_failed(
            constraint_advance(generation->constraint, &generation->constraint_state, id, &error)
        )) {
        fail_with(generation, &error);
    }
    feed_stop(generation, id, bytes);
    feed_guard(generation, id, bytes);
    if (generation->facts.sampled >= generation->tokens_max) {
        end_with(generation, FINISH_LENGTH);
    }
    if (length >= engine->plan.context_max) {
        end_with(generation, FINISH_CONTEXT);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The prompt alone was asked for, or fills the context: its logits stay for a later generation. */
static void keep_logits(struct engine *engine, struct context *context, const float *logits) {
    struct engine_generation *generation = &context->generation;
    bool is_full = context->kv->length >= engine->plan.context_max;
    end_with(generation, generation->tokens_max == 0 ? FINISH_LENGTH : FINISH_CONTEXT);
    if (context->kept != NULL) {
        return;
    }
    size_t bytes = (size_t)engine->info.vocabulary * sizeof *logits;
    struct kept_logits *kept = malloc(sizeof *kept + bytes);
    if (kept == NULL) {
        struct error error = {0};
        result failed = error_set(
            &error, RESULT_MEMORY, 0, __FILE__, __LINE__, "no memory for %zu bytes of logits", bytes
        );
        ASSERT(is_failed(failed) && (is_full || generation->tokens_max == 0));
        generation->has_ended = false;
        fail_with(generation, &error);
        return;
    }
    kept->references = 1;
    memcpy(kept->values, logits, bytes);
    context->kept = kept;
}

void scheduler_draw(
    struct engine *engine, struct step_entry *entry, struct sampler *sampler, const int32_t *drafts
) {
    struct context *context = entry->context;
    struct engine_generation *generation = &context->generation;
    int32_t length = context->kv->length - entry->drafted;
    if (generation->prefilled_at_us == 0) {
        generation->prefilled_at_us = engine_now_us();
        generation->facts.prefill_us = generation->prefilled_at_us - generation->admitted_at_us;
    }
    if (generation->tokens_max == 0 || length >= engine->plan.context_max) {
        observe(engine, context, length, entry->logits);
        keep_logits(engine, context, entry->logits);
        return;
    }
    fill_history(engine, context, length);
    size_t stride = (size_t)engine->info.vocabulary;
    for (int32_t i = 0; i <= entry->drafted && !generation->has_ended; i++) {
        struct sampled_token *token = &engine->draws[entry->draw_first + i];
        struct error error = {0};
        float *row = entry->logits + (size_t)i * stride;
        result drawn = draw(engine, context, sampler, row, length + i, token, &error);
        if (is_failed(drawn)) {
            /* What makes such logits is in its caches; a mask that leaves nothing is not. */
            entry->is_poisoned = drawn.code == RESULT_DEVICE;
            fail_with(generation, &error);
            break;
        }
        entry->draw_count++;
        take(engine, context, token->id, length + i + 1);
        if (i < entry->drafted && token->id != drafts[i]) {
            break;
        }
    }
    int32_t accepted = entry->draw_count > 0 ? entry->draw_count - 1 : 0;
    entry->kept = entry->rows - entry->drafted + accepted;
    generation->facts.drafted += entry->drafted;
    generation->facts.accepted += accepted;
}
