/* The engine thread: admits generations, builds steps, samples, reports.
 *
 * A step takes one row of every sequence that decodes and one chunk of a prompt, in turn, under a
 * row budget that keeps a step short. How steps are composed changes no result. See
 * engine_internal.h for the lock.
 */
#include <sched.h>
#include <time.h>

#include "engine_internal.h"
#include "engram.h"

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

/* ---- events --------------------------------------------------------------------------------- */

static void pend_event(struct engine *engine, const struct engine_event *event) {
    ASSERT(engine->pending_count < engine->pending_capacity);
    engine->pending[engine->pending_count++] = *event;
}

/* Moves the step's events into the ring; those of destroyed sequences are dropped. Lock held. */
static void publish_events(struct engine *engine) {
    bool was_empty = engine->event_count == 0;
    for (size_t i = 0; i < engine->pending_count; i++) {
        const struct engine_event *event = &engine->pending[i];
        bool is_wanted = false;
        for (int32_t c = 0; c < engine->context_count; c++) {
            const struct context *context = &engine->contexts[c];
            is_wanted = is_wanted ||
                        (context->used && !context->is_dying && context->id == event->sequence);
        }
        if (is_wanted) {
            ASSERT(engine->event_count < engine->event_capacity);
            size_t at = (engine->event_first + engine->event_count) % engine->event_capacity;
            engine->events[at] = *event;
            engine->event_count++;
        }
    }
    engine->pending_count = 0;
    engine->wants_wake = engine->wants_wake || (was_empty && engine->event_count > 0);
}

/* ---- life of a generation ------------------------------------------------------------------- */

/* What the context's content depends on beside its tokens. */
static void fill_dependence(
    const struct engine *engine, const struct context *context, struct generation_facts *facts
) {
    const struct kv_binding *binding = &context->binding;
    memcpy(facts->lineage, engine->info.root_lineage, sizeof facts->lineage);
    if (binding->sequence == NULL) {
        memcpy(facts->block_lineage, engine->info.root_lineage, sizeof facts->block_lineage);
    } else {
        kv_hex(binding->lineage.bytes, facts->block_lineage);
    }
    if (binding->has_decoder_lineage) {
        kv_hex(binding->decoder_lineage.bytes, facts->decoder_lineage);
    } else {
        (void)snprintf(facts->decoder_lineage, sizeof facts->decoder_lineage, "0");
    }
    facts->replay_count = binding->replay_count;
    memcpy(facts->replays, binding->replays, sizeof facts->replays);
}

/* Ends the generation and reports it. Lock held. */
static void finish(
    struct engine *engine,
    struct context *context,
    enum finish_reason reason,
    const struct error *error
) {
    int64_t now = engine_now_us();
    struct generation_facts *facts = &context->facts;
    if (context->prefilled_at_us == 0) {
        facts->prefill_us = now - context->admitted_at_us;
    } else {
        facts->decode_us = now - context->prefilled_at_us;
    }
    fill_dependence(engine, context, facts);
    facts->seed = context->sampling.seed;
    facts->parent_seed = context->seed.parent_seed;
    facts->fork_index = context->seed.fork_index;
    facts->stop_index = -1;
    engine_meter_add(engine, &(struct engine_counts){.finished = 1});
    struct engine_event event = {
        .type = ENGINE_FINISHED,
        .sequence = context->id,
        .reason = reason,
        .facts = *facts,
    };
    if (error != NULL) {
        event.error = *error;
    }
    if (context->kv != NULL) {
        context->length = context->kv->length;
    }
    context->is_cancelled = false;
    context->state = CONTEXT_IDLE;
    pend_event(engine, &event);
}

static void append_id(struct engine *engine, struct kv_sequence *kv, int32_t id) {
    int32_t compressed = engine->engram == NULL ? 0 : engram_compress(engine->engram, id);
    kv_cache_append(&engine->cache, kv, id, compressed);
}

/* The append without what the sequence took over from the cache. */
static void append_ids(struct engine *engine, struct context *context, int32_t from) {
    struct kv_sequence *kv = context->kv;
    for (int32_t i = from; i < context->append_count; i++) {
        append_id(engine, kv, context->append[i]);
    }
}

/* The first prompt of a sequence: what is cached of it. */
static enum kv_begin begin(struct engine *engine, struct context *context) {
    struct kv_prompt prompt = {
        .tokens = context->append,
        .count = context->append_count,
        .window = context->window,
        .has_contract = context->has_contract,
        .contract = context->contract,
        .contract_count = context->contract_count,
    };
    struct kv_reuse reuse;
    int64_t now_ms = engine_now_ms(engine);
    enum kv_begin begun =
        kv_store_begin(engine->store, &context->binding, context->kv, &prompt, now_ms, &reuse);
    if (begun == KV_BEGIN_READY) {
        struct generation_facts *facts = &context->facts;
        facts->reused = reuse.hit;
        facts->rebuilt_from = reuse.start;
        facts->window_source = reuse.window_source;
        facts->miss = kv_prefix_miss_name(reuse.miss);
        facts->miss_token = reuse.miss_token;
        facts->restored_host = reuse.restored_host;
        facts->restored_disk = reuse.restored_disk;
    }
    return begun;
}

/* A sequence goes on: its own content is all that there is to reuse. */
static void go_on(struct engine *engine, struct context *context) {
    struct kv_sequence *kv = context->kv;
    struct generation_facts *facts = &context->facts;
    int32_t kept = kv->kept > kv->computed ? kv->kept : kv->computed;
    facts->reused = kept;
    facts->rebuilt_from = kv->computed;
    facts->miss = kv_prefix_miss_name(KV_PREFIX_MISS_NONE);
    facts->miss_token = kept;
    kv_store_extend(
        engine->store, &context->binding, kv->length + context->append_count, context->window
    );
    bool is_rebuilding = kv->computed < kept;
    bool is_replay =
        context->binding.is_replay || (is_rebuilding && context->binding.encoder_floor > 0);
    facts->window_source = is_replay ? "replay" : is_rebuilding ? "rebuilt" : "live";
}

/* The sequence as if its prompt had never come. */
static void go_back(struct engine *engine, struct context *context) {
    context->binding.is_lost = true;
    kv_store_end(engine->store, &context->binding, engine_now_ms(engine));
    kv_cache_release(&engine->cache, context->kv);
    context->kv = NULL;
}

/* Runs the context, unless blocks of its prompt are on their way. Lock held. */
static void admit(struct engine *engine, struct context *context) {
    if (!context->is_restoring) {
        context->facts = (struct generation_facts){0};
    }
    if (context->kv == NULL) {
        context->kv = kv_cache_acquire(&engine->cache);
        ASSERT(context->kv != NULL); /* live sequences never outnumber the slots */
    }
    struct kv_sequence *kv = context->kv;
    bool is_fresh = context->binding.sequence == NULL;
    int32_t before = kv->length;
    context->is_restoring = is_fresh && begin(engine, context) == KV_BEGIN_WAIT;
    if (context->is_restoring) {
        return;
    }
    context->state = CONTEXT_RUNNING;
    context->admitted_at_us = engine_now_us();
    context->prefilled_at_us = 0;
    context->facts.queued_us = context->admitted_at_us - context->queued_at_us;
    context->prompt_end = before + context->append_count;
    context->facts.prompt_tokens = context->prompt_end;
    struct error error = {0};
    result reserved = kv_cache_reserve(&engine->cache, kv, context->prompt_end, &error);
    if (is_ok(reserved)) {
        if (!is_fresh) {
            go_on(engine, context);
        }
        append_ids(engine, context, kv->length - before);
        context->rows_to_run = context->prompt_end - kv->computed;
    }
    free(context->append);
    context->append = NULL;
    context->append_count = 0;
    context->facts.hit_position = context->facts.reused;
    if (is_failed(reserved)) {
        if (is_fresh) {
            go_back(engine, context);
        }
        finish(engine, context, FINISH_ERROR, &error);
    }
}

/* The one that waits longest of those behind `number`. */
static struct context *next_queued(struct engine *engine, uint64_t number) {
    struct context *first = NULL;
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (context->used && !context->is_dying && context->state == CONTEXT_QUEUED &&
            context->queue_number > number &&
            (first == NULL || context->queue_number < first->queue_number)) {
            first = context;
        }
    }
    return first;
}

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

/* A cancelled one that waited for blocks never began: its sequence stays empty. */
static void stop_restoring(struct engine *engine, struct context *context) {
    if (context->is_restoring) {
        context->is_restoring = false;
        kv_store_cancel(engine->store, &context->binding, engine_now_ms(engine));
        context->admitted_at_us = engine_now_us();
        context->prefilled_at_us = 0;
        context->facts.queued_us = context->admitted_at_us - context->queued_at_us;
        context->facts.window_source = "cold";
        context->facts.miss = kv_prefix_miss_name(KV_PREFIX_MISS_NONE);
        free(context->append);
        context->append = NULL;
        context->append_count = 0;
    }
}

/* Ends what was cancelled, admits what waits. Lock held. */
static void boundary(struct engine *engine) {
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (!context->used || context->state != CONTEXT_RUNNING) {
            continue;
        }
        if (context->is_cancelled) {
            finish(engine, context, FINISH_CANCELLED, NULL);
        } else if (context->deadline_ms != 0 && context->deadline_ms <= engine_now_ms(engine)) {
            finish(engine, context, FINISH_DEADLINE, NULL);
        }
    }
    engine->poll_ms = kv_store_poll(engine->store, engine_now_ms(engine));
    for (struct context *next = next_queued(engine, 0); next != NULL;) {
        uint64_t number = next->queue_number;
        int32_t reads = next->binding.reads;
        admit(engine, next);
        if (next->is_restoring && next->binding.reads != reads) {
            engine->poll_ms = engine_now_ms(engine); /* what lies in host memory is there already */
        }
        if (next->is_cancelled && (next->state == CONTEXT_RUNNING || next->is_restoring)) {
            stop_restoring(engine, next);
            finish(engine, next, FINISH_CANCELLED, NULL);
        }
        next = next_queued(engine, number);
    }
}

/* ---- one step ------------------------------------------------------------------------------- */

static bool has_logits(const struct context *context) {
    return context->logits_length > 0 && context->logits_length == context->kv->length &&
           context->kv->computed == context->kv->length;
}

static int32_t row_budget(const struct engine *engine) {
    double rows = engine->plan.step_rows_max;
    if (engine->row_us > 0 && rows * engine->row_us > ENGINE_STEP_TARGET_US) {
        rows = ENGINE_STEP_TARGET_US / engine->row_us;
    }
    return rows < ENGINE_STEP_ROWS_FLOOR ? ENGINE_STEP_ROWS_FLOOR : (int32_t)rows;
}

static void
add_segment(struct engine *engine, struct context *context, int32_t *count, int32_t rows) {
    const struct kv_sequence *kv = context->kv;
    int32_t end = kv->computed + rows;
    bool is_prompt = kv->computed < context->prompt_end;
    int32_t prompt_end = is_prompt ? context->prompt_end : end;
    engine->segments[*count] = (struct forward_segment){
        .sequence = context->kv,
        .position = kv->computed,
        .count = rows,
        .prompt_end = prompt_end,
        .logits = end == prompt_end ? FORWARD_LOGITS_LAST : FORWARD_LOGITS_NONE,
        .window = is_prompt && context->binding.is_replay ? WINDOW_REPLAY : WINDOW_EXACT,
        .window_floor_encoder = kv->computed < kv->kept ? context->binding.encoder_floor : 0,
        .window_floor_decoder = kv->decoder_floor,
        .write_floor = kv->kept,
    };
    engine->stepping[*count] = context;
    (*count)++;
}

static bool is_prefilling(const struct context *context) {
    return context->kv->computed < context->prompt_end;
}

static bool is_runnable(const struct context *context) {
    return context->used && !context->is_dying && context->state == CONTEXT_RUNNING &&
           context->kv->computed < context->kv->length;
}

/* Lock held. Returns the number of segments. */
static int32_t compose_step(struct engine *engine) {
    int32_t count = 0;
    int32_t rows = 0;
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (is_runnable(context) && !is_prefilling(context)) {
            add_segment(engine, context, &count, 1);
            rows++;
        }
    }
    for (int32_t i = 0; i < engine->context_count; i++) {
        int32_t c = (engine->turn + i) % engine->context_count;
        struct context *context = &engine->contexts[c];
        if (!is_runnable(context) || !is_prefilling(context)) {
            continue;
        }
        int32_t room = row_budget(engine) - rows;
        int32_t most = engine->plan.step_rows_max - rows;
        room = room < 1 ? 1 : room;
        room = room > most ? most : room;
        int32_t left = context->prompt_end - context->kv->computed;
        if (room > 0) {
            int32_t at_once = left < room ? left : room;
            add_segment(engine, context, &count, kv_store_rows(&context->binding, at_once));
            engine->turn = c + 1;
        }
        break;
    }
    return count;
}

/* Takes the next token of a context whose last logits are there. Lock held. */
static void sample(struct engine *engine, struct context *context) {
    struct kv_sequence *kv = context->kv;
    int64_t now = engine_now_us();
    if (context->prefilled_at_us == 0) {
        context->prefilled_at_us = now;
        context->facts.prefill_us = now - context->admitted_at_us;
    }
    if (context->facts.sampled >= context->tokens_max) {
        finish(engine, context, FINISH_LENGTH, NULL);
        return;
    }
    if (kv->length >= engine->cache.context_max) {
        finish(engine, context, FINISH_CONTEXT, NULL);
        return;
    }
    struct error error = {0};
    if (is_failed(kv_cache_reserve(&engine->cache, kv, kv->length + 1, &error))) {
        finish(engine, context, FINISH_ERROR, &error);
        return;
    }
    struct sampled_token token;
    struct sampler_request request = {
        .logits = context->logits,
        .sampling = &context->sampling,
        .position = kv->length,
    };
    if (is_failed(sampler_draw(engine->sampler, &request, &token, &error))) {
        finish(engine, context, FINISH_ERROR, &error);
        return;
    }
    append_id(engine, kv, token.id);
    context->facts.sampled++;
    struct engine_event event = {
        .type = ENGINE_TOKEN,
        .sequence = context->id,
        .token = token.id,
        .logprob = token.logprob,
    };
    pend_event(engine, &event);
    if (token.id == engine->model->config.eos_id) {
        finish(engine, context, FINISH_EOS, NULL);
    } else if (context->facts.sampled >= context->tokens_max) {
        finish(engine, context, FINISH_LENGTH, NULL);
    } else if (kv->length >= engine->cache.context_max) {
        finish(engine, context, FINISH_CONTEXT, NULL);
    }
}

/* Fetches the logits of the segments that have them. */
static result fetch_logits(struct engine *engine, int32_t count, struct error *error) {
    int32_t row = 0;
    for (int32_t s = 0; s < count; s++) {
        struct context *context = engine->stepping[s];
        if (engine->segments[s].logits == FORWARD_LOGITS_LAST) {
            TRY(forward_logits(engine->forward, row, 1, context->logits, error));
            context->logits_length = context->kv->computed;
            row++;
        }
    }
    return OK;
}

static void measure(struct engine *engine, int32_t count, int64_t taken_us) {
    int32_t rows = 0;
    for (int32_t s = 0; s < count; s++) {
        rows += engine->segments[s].count;
    }
    /* Few rows cost more each: only prompts tell how long a full step takes. */
    if (rows >= ENGINE_STEP_ROWS_FLOOR) {
        double row_us = (double)taken_us / rows;
        engine->row_us = engine->row_us == 0 ? row_us : 0.75 * engine->row_us + 0.25 * row_us;
    }
}

/* Rows of a prompt: those that entries were missing of, and those that ran for their windows only. */
static void
count_rows(struct engine *engine, struct context *context, const struct forward_segment *segment) {
    struct generation_facts *facts = &context->facts;
    int32_t below = segment->write_floor - segment->position;
    below = below < 0 ? 0 : below < segment->count ? below : segment->count;
    facts->rebuilt += below;
    facts->evaluated += segment->count - below;
    struct engine_event event = {
        .type = ENGINE_PROGRESS,
        .sequence = context->id,
        .done = facts->evaluated + facts->rebuilt,
        .total = context->rows_to_run,
    };
    pend_event(engine, &event);
}

/* After the step's arithmetic: counts, progress, tokens. Lock held. */
static void conclude_step(struct engine *engine, int32_t count) {
    int64_t now_ms = engine_now_ms(engine);
    for (int32_t s = 0; s < count; s++) {
        struct context *context = engine->stepping[s];
        const struct forward_segment *segment = &engine->segments[s];
        if (segment->position < context->prompt_end) {
            count_rows(engine, context, segment);
        }
        kv_store_advance(engine->store, &context->binding, now_ms);
        if (has_logits(context)) {
            sample(engine, context);
        }
    }
}

static void run_step(struct engine *engine, int32_t count) {
    struct error error = {0};
    pthread_mutex_unlock(&engine->lock);
    int64_t started = engine_now_us();
    result ran = forward_step(engine->forward, engine->segments, count, NULL, &error);
    if (is_ok(ran)) {
        ran = fetch_logits(engine, count, &error);
    }
    measure(engine, count, engine_now_us() - started);
    pthread_mutex_lock(&engine->lock);
    if (is_ok(ran)) {
        conclude_step(engine, count);
        return;
    }
    for (int32_t s = 0; s < count; s++) {
        engine->stepping[s]->is_broken = true;
        engine->stepping[s]->binding.is_lost = true;
        finish(engine, engine->stepping[s], FINISH_ERROR, &error);
    }
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
    struct kv_sequence *kv = kv_cache_acquire(&engine->cache);
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
        job->outcome = kv_cache_reserve(&engine->cache, kv, count, job->error);
        for (int32_t i = 0; is_ok(job->outcome) && i < count; i++) {
            append_id(engine, kv, request->ids[i]);
        }
        pthread_mutex_unlock(&engine->lock);
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

/* Room for the events of a boundary and a step of every sequence. Lock held. */
static bool has_event_room(const struct engine *engine) {
    size_t most = ENGINE_EVENTS_PER_STEP * (size_t)engine->context_count;
    return engine->event_capacity - engine->event_count >= 2 * most;
}

/* One boundary and one step; false when there was nothing to do. Lock held. */
static bool work(struct engine *engine) {
    free_dying(engine);
    if (!has_event_room(engine)) {
        return false;
    }
    boundary(engine);
    bool did = engine->pending_count > 0;
    /* Logits kept from an evaluated prompt need no step. */
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (context->used && !context->is_dying && context->state == CONTEXT_RUNNING &&
            has_logits(context)) {
            sample(engine, context);
            did = true;
        }
    }
    int32_t count = compose_step(engine);
    if (count > 0) {
        run_step(engine, count);
        did = true;
    } else if (engine->job != NULL) {
        run_job(engine);
        did = true;
    }
    publish_events(engine);
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

/* Until something is posted, or the store has something to do. Lock held. */
static void wait_for_work(struct engine *engine) {
    if (engine->poll_ms == INT64_MAX) {
        pthread_cond_wait(&engine->to_engine, &engine->lock);
        return;
    }
    int64_t left_ms = engine->poll_ms - engine_now_ms(engine);
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
