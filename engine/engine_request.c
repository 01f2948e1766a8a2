/* Generations on the callers' side: what a request may ask for, queue, cancel, events; logits for the
 * command line. See engine.h and engine_internal.h. */
#include "constraint.h"
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

static struct stop_options
stop_options_of(const struct engine *engine, const struct generation_request *request) {
    return (struct stop_options){
        .strings = request->stops,
        .string_count = request->stop_count,
        .ids = request->stop_ids,
        .id_count = request->stop_id_count,
        .vocabulary = engine->info.vocabulary,
    };
}

/* A value that no name stands for. */
static result check_modes(const struct generation_request *request, struct error *error) {
    int64_t window = (int64_t)request->window;
    int64_t speculation = (int64_t)request->speculation;
    if (window != WINDOW_EXACT && window != WINDOW_REPLAY) {
        FAIL(error, INVALID_INPUT, "there is no window mode %lld", (long long)window);
    }
    if (speculation < SPECULATE_AUTO || speculation > SPECULATE_DRAFT) {
        FAIL(error, INVALID_INPUT, "there is no speculation %lld", (long long)speculation);
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
    return OK;
}

static result check_deadline(
    const struct engine *engine, const struct generation_request *request, struct error *error
) {
    int64_t now_ms = engine_now_ms(engine);
    int64_t deadline_ms = request->deadline_ms;
    if (deadline_ms < 0) {
        FAIL(error, INVALID_INPUT, "a deadline of %lld ms is negative", (long long)deadline_ms);
    }
    if (deadline_ms != 0 && deadline_ms <= now_ms) {
        FAIL(
            error,
            INVALID_INPUT,
            "a deadline of %lld ms, which passed %lld ms ago",
            (long long)deadline_ms,
            (long long)(now_ms - deadline_ms)
        );
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
    TRY(check_modes(request, error));
    TRY(check_deadline(engine, request, error));
    struct stop_options stop = stop_options_of(engine, request);
    TRY(stop_check(&stop, error));
    TRY(guard_check(&request->guard, error));
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
    int32_t sized_for,
    struct error *error
) {
    unsigned long long id = request->sequence;
    if (context == NULL) {
        FAIL(error, NOT_FOUND, "there is no sequence %llu", id);
    }
    if (context->is_broken) {
        FAIL(error, INVALID_INPUT, "sequence %llu is lost: a step of it failed", id);
    }
    /* What the request owns was sized for the length it had; one that ended since was busy then. */
    if (context->state != CONTEXT_IDLE || context->length != sized_for) {
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
    bool has_next = context->demoted != NULL ? context->demoted->has_next
                    : context->kv != NULL
                        ? context->kv->computed < context->kv->length || context->kept != NULL
                        : false;
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

/* A promise that can never be kept is refused at once. Lock held. */
static result check_memory(
    const struct engine *engine,
    const struct context *context,
    const struct generation_request *request,
    struct error *error
) {
    int64_t tokens =
        (int64_t)context->length + (int64_t)request->append_count + request->tokens_max;
    int64_t most = engine->plan.context_max;
    struct kv_need need;
    scheduler_need(engine, context, (int32_t)(tokens < most ? tokens : most), &need);
    const struct schedule_machine machine = {.blocks_total = need.total};
    if (schedule_admits(&machine, need.wanted) != SCHEDULE_REFUSE) {
        return OK;
    }
    TRY_NOTE(
        error,
        schedule_admits_checked(&machine, need.wanted, error),
        "%zu tokens of prompt and at most %d more",
        (size_t)context->length + request->append_count,
        request->tokens_max
    );
    return OK;
}

/* ---- a request's own parts ------------------------------------------------------------------ */

void engine_generation_free(struct engine_generation *generation) {
    free(generation->append);
    free(generation->bias);
    stop_destroy(generation->stop);
    guard_destroy(generation->guard);
    guard_state_destroy(generation->guard_state);
    sampler_history_destroy(generation->history);
    constraint_release(generation->constraint);
    engine_drafts_destroy(&generation->drafts);
    *generation = (struct engine_generation){0};
}

static void generation_cleanup(struct engine_generation *generation) {
    engine_generation_free(generation);
}

static result copy_settings(
    struct engine_generation *generation,
    const struct generation_request *request,
    struct error *error
) {
    generation->sampling = request->sampling;
    generation->append_count = (int32_t)request->append_count;
    generation->append = calloc(request->append_count + 1, sizeof *generation->append);
    if (generation->append == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tokens", request->append_count);
    }
    if (request->append_count > 0) {
        memcpy(
            generation->append, request->append, request->append_count * sizeof *generation->append
        );
    }
    size_t biases = (size_t)request->sampling.bias_count;
    if (biases > 0) {
        generation->bias = calloc(biases, sizeof *generation->bias);
        if (generation->bias == NULL) {
            FAIL(error, MEMORY, "no memory for the bias of %zu tokens", biases);
        }
        memcpy(generation->bias, request->sampling.bias, biases * sizeof *generation->bias);
    }
    generation->sampling.bias = generation->bias;
    generation->tokens_max = request->tokens_max;
    generation->window = request->window;
    generation->deadline_ms = request->deadline_ms;
    generation->stop_count = (int32_t)request->stop_count;
    generation->has_contract = request->has_contract;
    generation->contract_count = request->has_contract ? request->contract_count : 0;
    return OK;
}

static result make_guard(
    const struct engine *engine,
    struct engine_generation *generation,
    const struct generation_request *request,
    struct error *error
) {
    const struct guard_limits *limits = &request->guard;
    if (limits->loop_span_max == 0 && limits->thinking_max == 0 && limits->call_max == 0) {
        return OK;
    }
    struct guard_markers markers;
    guard_markers_chat(engine->tokenizer, &markers);
    TRY(guard_create(&generation->guard, limits, &markers, error));
    return guard_state_create(&generation->guard_state, request->starts_in_thinking, error);
}

/* `length`: tokens of the sequence. */
static result make_generation(
    const struct engine *engine,
    struct engine_generation *generation,
    const struct generation_request *request,
    int32_t length,
    struct error *error
) {
    TRY(copy_settings(generation, request, error));
    struct stop_options stop = stop_options_of(engine, request);
    if (request->stop_count > 0 || request->stop_id_count > 0) {
        TRY(stop_create(&generation->stop, &stop, error));
    }
    TRY(make_guard(engine, generation, request, error));
    int64_t tokens = (int64_t)length + (int64_t)request->append_count + request->tokens_max;
    int64_t most = engine->plan.context_max;
    int32_t bound = (int32_t)(tokens < most ? tokens : most);
    if (sampling_has_penalties(&request->sampling)) {
        TRY(sampler_history_create(&generation->history, engine->info.vocabulary, bound, error));
    }
    TRY(engine_drafts_create(engine, &generation->drafts, request, bound, error));
    if (request->constraint != NULL) {
        generation->constraint = constraint_acquire(request->constraint);
        generation->constraint_state = constraint_start(request->constraint);
    }
    return OK;
}

/* Lock held. */
static void enqueue(
    struct engine *engine,
    struct context *context,
    const struct generation_request *request,
    struct engine_generation *made
) {
    struct engine_generation *generation = &context->generation;
    *generation = *made;
    *made = (struct engine_generation){0};
    if (request->uses_sequence_seed) {
        generation->sampling.seed = context->seed.seed;
    } else if (!context->seed.has_seed) {
        context->seed.seed = request->sampling.seed;
        context->seed.has_seed = true;
    }
    /* Numbers that callers hardly choose for agents. */
    generation->agent = request->agent == 0 ? ~context->id : request->agent;
    /* After check_contract, which bounds the count. */
    if (generation->contract_count > 0) {
        memcpy(
            generation->contract,
            request->contract,
            (size_t)generation->contract_count * sizeof *generation->contract
        );
    }
    context->is_cancelled = false;
    context->is_over = false;
    context->return_ms = INT64_MAX;
    context->state = CONTEXT_QUEUED;
    context->queue_number = ++engine->next_queue_number;
    context->queued_at_ms = engine_now_ms(engine);
    context->progress_at_ms = context->queued_at_ms;
    generation->queued_at_us = engine_now_us();
    generation->state_at_ms = context->queued_at_ms;
    context->status = (struct engine_request_status){
        .agent = generation->agent,
        .state = ENGINE_QUEUED,
        .wait = ENGINE_WAIT_TURN,
        .prompt_tokens = context->length + generation->append_count,
        .prompt_left = generation->append_count,
    };
    engine_meter_add(engine, &(struct engine_counts){.queued = 1});
    pthread_cond_signal(&engine->to_engine);
}

result engine_generate(
    struct engine *engine, const struct generation_request *request, struct error *error
) {
    TRY(check_request(engine, request, error));
    int32_t length = engine_sequence_length(engine, request->sequence);
    CLEANUP(generation_cleanup) struct engine_generation made = {0};
    TRY(make_generation(engine, &made, request, length, error));
    engine_lock(engine);
    struct context *context = engine_context_find(engine, request->sequence);
    result checked = check_context(engine, context, request, length, error);
    if (is_ok(checked)) {
        checked = check_memory(engine, context, request, error);
    }
    if (is_ok(checked)) {
        enqueue(engine, context, request, &made);
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
