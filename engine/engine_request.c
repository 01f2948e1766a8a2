/* Generations on the callers' side: what a request may ask for, queue, cancel, events; logits for the
 * command line. See engine.h and engine_internal.h. */
#include "engine_internal.h"

/* ---- generations ---------------------------------------------------------------------------- */

static result
check_ids(const struct engine *engine, const int32_t *ids, size_t count, struct error *error) {
    for (size_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= engine->info.vocabulary) {
            FAIL(
                error,
                INVALID_INPUT,
                "token %zu is %d, not 0 to %d",
                i,
                ids[i],
                engine->info.vocabulary - 1
            );
        }
    }
    return OK;
}

/* What the modules behind cannot do yet. */
static result check_support(const struct generation_request *request, struct error *error) {
    const struct generation_guard *guard = &request->guard;
    if (request->stop_count > 0 || request->stop_id_count > 0) {
        FAIL(error, UNSUPPORTED, "stop strings and stop ids");
    }
    if (guard->repeat_tokens != 0 || guard->repeat_times != 0 || guard->thinking_tokens_max != 0 ||
        guard->call_tokens_max != 0) {
        FAIL(error, UNSUPPORTED, "guards of a generation");
    }
    if (request->speculation == SPECULATE_LOOKUP || request->speculation == SPECULATE_DRAFT) {
        FAIL(error, UNSUPPORTED, "speculation");
    }
    return OK;
}

/* Limits that need no look at the sequence. */
static result check_request(
    const struct engine *engine, const struct generation_request *request, struct error *error
) {
    TRY(sampling_check(&request->sampling, engine->model->config.vocabulary, error));
    if (request->tokens_max < 0) {
        FAIL(error, INVALID_INPUT, "tokens_max is %d", request->tokens_max);
    }
    if (request->draft_max < 0 || request->draft_max > ENGINE_DRAFT_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "drafts of %d tokens, not 0 to %d",
            request->draft_max,
            ENGINE_DRAFT_MAX
        );
    }
    int64_t now_ms = engine_now_ms(engine);
    if (request->deadline_ms != 0 && request->deadline_ms <= now_ms) {
        FAIL(
            error,
            INVALID_INPUT,
            "a deadline of %lld ms, which passed %lld ms ago",
            (long long)request->deadline_ms,
            (long long)(now_ms - request->deadline_ms)
        );
    }
    TRY(check_support(request, error));
    if (request->append_count > (size_t)engine->plan.context_max) {
        FAIL(
            error,
            LIMIT,
            "%zu tokens exceed the context of %d",
            request->append_count,
            engine->plan.context_max
        );
    }
    return check_ids(engine, request->append, request->append_count, error);
}

/* Lock held. */
static result check_context(
    const struct engine *engine,
    const struct context *context,
    const struct generation_request *request,
    struct error *error
) {
    unsigned long long id = request->sequence;
    if (context == NULL) {
        FAIL(error, NOT_FOUND, "there is no sequence %llu", id);
    }
    if (context->is_broken) {
        FAIL(error, INVALID_INPUT, "sequence %llu is lost: a step of it failed", id);
    }
    if (context->state != CONTEXT_IDLE) {
        FAIL(error, INVALID_INPUT, "sequence %llu is busy with a generation", id);
    }
    size_t length = (size_t)context->length;
    size_t limit = (size_t)engine->plan.context_max;
    if (request->append_count > limit - length) {
        FAIL(
            error,
            LIMIT,
            "sequence %llu holds %zu tokens; %zu more exceed the context of %zu",
            id,
            length,
            request->append_count,
            limit
        );
    }
    bool has_next = context->kv != NULL && (context->kv->computed < context->kv->length ||
                                            context->logits_length == context->length);
    if (request->append_count == 0 && (length == 0 || !has_next)) {
        FAIL(error, INVALID_INPUT, "sequence %llu: nothing to evaluate", id);
    }
    if (request->uses_sequence_seed && !context->seed.has_seed) {
        FAIL(error, INVALID_INPUT, "sequence %llu has no seed yet", id);
    }
    if (!request->has_contract) {
        return OK;
    }
    if (length > 0) {
        FAIL(error, INVALID_INPUT, "sequence %llu holds %zu tokens: no contract", id, length);
    }
    return kv_store_check_contract(
        engine->store,
        request->contract,
        request->contract_count,
        (int32_t)request->append_count,
        error
    );
}

static void enqueue(
    struct engine *engine,
    struct context *context,
    const struct generation_request *request,
    int32_t **append
) {
    context->append = TAKE(*append);
    context->append_count = (int32_t)request->append_count;
    context->sampling = request->sampling;
    if (request->uses_sequence_seed) {
        context->sampling.seed = context->seed.seed;
    } else if (!context->seed.has_seed) {
        context->seed.seed = request->sampling.seed;
        context->seed.has_seed = true;
    }
    context->deadline_ms = request->deadline_ms;
    context->tokens_max = request->tokens_max;
    context->window = request->window;
    context->has_contract = request->has_contract;
    context->contract_count = request->has_contract ? request->contract_count : 0;
    if (context->contract_count > 0) {
        memcpy(
            context->contract,
            request->contract,
            (size_t)context->contract_count * sizeof *context->contract
        );
    }
    context->is_cancelled = false;
    context->state = CONTEXT_QUEUED;
    context->queue_number = ++engine->next_queue_number;
    context->queued_at_us = engine_now_us();
    context->queued_at_ms = engine_now_ms(engine);
    context->progress_at_ms = context->queued_at_ms;
    context->status = (struct engine_request_status){
        .agent = request->agent == 0 ? context->id : request->agent,
        .state = ENGINE_QUEUED,
        .wait = ENGINE_WAIT_TURN,
        .prompt_tokens = context->length + context->append_count,
        .prompt_left = context->append_count,
    };
    engine_meter_add(engine, &(struct engine_counts){.queued = 1});
    pthread_cond_signal(&engine->to_engine);
}

result engine_generate(
    struct engine *engine, const struct generation_request *request, struct error *error
) {
    TRY(check_request(engine, request, error));
    CLEANUP(free_cleanup)
    int32_t *append = calloc(request->append_count + 1, sizeof *append);
    if (append == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tokens", request->append_count);
    }
    if (request->append_count > 0) {
        memcpy(append, request->append, request->append_count * sizeof *append);
    }
    engine_lock(engine);
    struct context *context = engine_context_find(engine, request->sequence);
    result checked = check_context(engine, context, request, error);
    if (is_ok(checked)) {
        enqueue(engine, context, request, &append);
    }
    engine_unlock(engine);
    return checked;
}

void engine_cancel(struct engine *engine, uint64_t sequence) {
    engine_lock(engine);
    struct context *context = engine_context_find(engine, sequence);
    if (context != NULL && context->state != CONTEXT_IDLE) {
        context->is_cancelled = true;
        pthread_cond_signal(&engine->to_engine);
    }
    engine_unlock(engine);
}

const char *finish_reason_name(enum finish_reason reason) {
    static const char *const names[] = {
        [FINISH_EOS] = "end",
        [FINISH_LENGTH] = "length",
        [FINISH_CONTEXT] = "context",
        [FINISH_CANCELLED] = "cancelled",
        [FINISH_ERROR] = "error",
        [FINISH_STOP] = "stop",
        [FINISH_DEADLINE] = "deadline",
        [FINISH_LOOP] = "loop",
        [FINISH_THINKING] = "thinking",
        [FINISH_OPEN_CALL] = "open_call",
    };
    return names[reason];
}

bool engine_next_event(struct engine *engine, struct engine_event *out) {
    engine_lock(engine);
    bool has_event = engine->event_count > 0;
    if (has_event) {
        *out = engine->events[engine->event_first];
        engine->event_first = (engine->event_first + 1) % engine->event_capacity;
        engine->event_count--;
        pthread_cond_signal(&engine->to_engine);
    }
    engine_unlock(engine);
    return has_event;
}

/* ---- logits --------------------------------------------------------------------------------- */

result engine_logits(
    struct engine *engine,
    const struct logits_request *request,
    struct layer_counters *counters,
    void (*row)(void *context, int32_t position, const float *logits, int32_t vocabulary),
    void *context,
    struct error *error
) {
    if (request->count == 0 || request->chunk < 0) {
        FAIL(error, INVALID_INPUT, "%zu tokens by chunks of %d", request->count, request->chunk);
    }
    if (request->count > (size_t)engine->plan.context_max) {
        FAIL(
            error,
            LIMIT,
            "%zu tokens exceed the context of %d",
            request->count,
            engine->plan.context_max
        );
    }
    TRY(check_ids(engine, request->ids, request->count, error));
    struct logits_job job = {
        .request = request,
        .counters = counters,
        .row = row,
        .context = context,
        .error = error,
        .outcome = OK,
    };
    bool is_busy = false;
    engine_lock(engine);
    for (int32_t c = 0; c < engine->context_count; c++) {
        const struct context *other = &engine->contexts[c];
        is_busy = is_busy || (other->used && other->state != CONTEXT_IDLE);
    }
    is_busy = is_busy || engine->job != NULL;
    if (!is_busy) {
        engine->job = &job;
        pthread_cond_signal(&engine->to_engine);
        while (!job.is_done) {
            pthread_cond_wait(&engine->to_caller, &engine->lock);
        }
    }
    engine_unlock(engine);
    if (is_busy) {
        FAIL(error, INVALID_INPUT, "the engine is busy with a generation");
    }
    return job.outcome;
}
