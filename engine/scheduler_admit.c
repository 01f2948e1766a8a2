/* A step boundary: what was cancelled ends, what waits is admitted, window slots change hands, rows are
 * shared out. schedule.h decides; this file says what there is to decide about and carries it out.
 * How steps are composed changes no result. See engine_internal.h. */
#include "engine_internal.h"
#include "engram.h"

/* ---- tokens --------------------------------------------------------------------------------- */

void scheduler_append(struct engine *engine, struct kv_sequence *kv, int32_t id) {
    int32_t compressed = engine->engram == NULL ? 0 : engram_compress(engine->engram, id);
    kv_cache_append(&engine->cache, kv, id, compressed);
}

/* What the sequence did not take over from the cache of tokens that begin at position `first`. */
static void append_prompt(
    struct engine *engine, struct kv_sequence *kv, const int32_t *tokens, int32_t first, int32_t end
) {
    while (kv->length < end) {
        scheduler_append(engine, kv, tokens[kv->length - first]);
    }
}

bool scheduler_has_kept(const struct context *context) {
    return context->kept != NULL && context->kv->computed == context->kv->length;
}

/* ---- what there is to decide about ----------------------------------------------------------- */

static bool is_request(const struct context *context) {
    return context->used && !context->is_dying && context->state != CONTEXT_IDLE;
}

struct schedule_machine scheduler_machine(const struct engine *engine) {
    struct schedule_machine machine = {
        .now_us = engine_now_ms(engine) * 1000,
        .cost = &engine->cost,
        .rows_max = engine->plan.step_rows_max,
        .entries_max = engine->plan.windows_max,
        .slots_total = engine->plan.windows_max,
        .slots_free = scheduler_slots_free(engine),
        .blocks_total = engine->cache.block_total,
        .blocks_promised = engine->cache.block_live_count + engine->cache.block_promised_count,
        .blocks_open = engine->cache.block_promised_count,
        .running = scheduler_running(engine),
    };
    return machine;
}

static int32_t rows_left(const struct context *context) {
    const struct engine_generation *generation = &context->generation;
    if (generation->append != NULL) {
        return generation->append_count + (context->demoted == NULL ? 0 : context->demoted->count);
    }
    int32_t left = generation->run_end - context->kv->computed;
    return left > 0 ? left : 0;
}

/* That it costs to take its slot away. */
static int32_t rebuild_rows(const struct engine *engine, const struct context *context) {
    if (context->state != CONTEXT_ACTIVE) {
        return 0;
    }
    int32_t length = context->kv->length;
    int32_t run_end = context->generation.run_end;
    return kv_store_rebuild_rows(
        engine->store, &context->binding, run_end > length ? run_end : length
    );
}

/* Beyond what microseconds can tell: as good as none. */
static int64_t deadline_us_of(const struct engine_generation *generation) {
    return generation->deadline_ms > INT64_MAX / 1000 ? 0 : generation->deadline_ms * 1000;
}

struct schedule_sequence
scheduler_describe(const struct engine *engine, const struct context *context) {
    const struct engine_generation *generation = &context->generation;
    static const enum schedule_state states[] = {
        [CONTEXT_IDLE] = SCHEDULE_QUEUED,
        [CONTEXT_QUEUED] = SCHEDULE_QUEUED,
        [CONTEXT_PARKED] = SCHEDULE_PARKED,
        [CONTEXT_ACTIVE] = SCHEDULE_ACTIVE,
    };
    int32_t tokens = generation->tokens_max - generation->facts.sampled;
    int32_t rows = rows_left(context);
    return (struct schedule_sequence){
        .number = (int32_t)(context - engine->contexts),
        .state = states[context->state],
        .agent = generation->agent,
        .served = context->state == CONTEXT_QUEUED
                      ? 0
                      : schedule_ledger_served(engine->ledger, generation->agent),
        .queue_number = context->queue_number,
        .deadline_us = deadline_us_of(generation),
        .since_us = generation->state_at_ms * 1000,
        .progress_us = context->progress_at_ms * 1000,
        .rows_left = rows,
        .tokens_left = tokens < ENGINE_TOKENS_EXPECTED ? tokens : ENGINE_TOKENS_EXPECTED,
        .drafts = generation->drafts.wanted,
        .blocks_needed = generation->blocks_needed,
        .rebuild_rows = rebuild_rows(engine, context),
        .is_decoding = rows == 0,
        .is_restoring = context->is_restoring,
        .is_preemptible = true,
    };
}

/* All requests, or those that hold a slot and have rows to run. */
static int32_t describe_all(struct engine *engine, bool is_for_rows) {
    int32_t count = 0;
    for (int32_t c = 0; c < engine->context_count; c++) {
        const struct context *context = &engine->contexts[c];
        if (is_request(context) &&
            (!is_for_rows || (context->state == CONTEXT_ACTIVE && !scheduler_has_kept(context)))) {
            engine->choices[count++] = scheduler_describe(engine, context);
        }
    }
    return count;
}

static void change_state(struct engine *engine, struct context *context, enum context_state state) {
    context->state = state;
    context->generation.state_at_ms = engine_now_ms(engine);
}

/* ---- beginning and going on ------------------------------------------------------------------ */

/* What is to be computed as it once was. */
static void add_contract(
    struct engine *engine,
    const struct context *context,
    struct window_replay contract[ENGINE_REPLAYS_MAX],
    struct kv_prompt *prompt
) {
    const struct engine_generation *generation = &context->generation;
    prompt->has_contract = generation->has_contract;
    prompt->contract = generation->contract;
    prompt->contract_count = generation->contract_count;
    if (context->demoted != NULL) {
        prompt->has_contract = true;
        prompt->contract = contract;
        prompt->contract_count = kv_store_contract(
            engine->store, &context->demoted->content, prompt->count, prompt->window, contract
        );
    }
}

/* The first prompt of a sequence, or of one that was demoted: what is cached of it. */
static enum kv_begin
begin(struct engine *engine, struct context *context, const int32_t *tokens, int32_t count) {
    struct engine_generation *generation = &context->generation;
    struct window_replay contract[ENGINE_REPLAYS_MAX];
    struct kv_prompt prompt = {.tokens = tokens, .count = count, .window = generation->window};
    add_contract(engine, context, contract, &prompt);
    struct kv_reuse reuse;
    int32_t reads = context->binding.reads;
    int64_t now_ms = engine_now_ms(engine);
    enum kv_begin begun =
        kv_store_begin(engine->store, &context->binding, context->kv, &prompt, now_ms, &reuse);
    context->is_restoring = begun == KV_BEGIN_WAIT;
    if (context->is_restoring && context->binding.reads != reads) {
        engine->poll_ms = now_ms; /* what lies in host memory is there already */
    }
    if (begun == KV_BEGIN_READY) {
        struct generation_facts *facts = &generation->facts;
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

/* A sequence goes on: its own content is all that there is to reuse. False: no slot. */
static bool go_on(struct engine *engine, struct context *context) {
    struct kv_sequence *kv = context->kv;
    struct engine_generation *generation = &context->generation;
    struct generation_facts *facts = &generation->facts;
    int32_t prompt_end = kv->length + generation->append_count;
    kv_store_extend(engine->store, &context->binding, prompt_end, generation->window);
    if (!scheduler_slot_resume(engine, context, prompt_end)) {
        return false;
    }
    int32_t kept = kv->kept > kv->computed ? kv->kept : kv->computed;
    facts->reused = kept;
    facts->rebuilt_from = kv->computed;
    facts->miss = kv_prefix_miss_name(KV_PREFIX_MISS_NONE);
    facts->miss_token = kept;
    bool is_rebuilding = kv->computed < kept;
    bool is_replay =
        context->binding.is_replay || (is_rebuilding && context->binding.encoder_floor > 0);
    facts->window_source = is_replay ? "replay" : is_rebuilding ? "rebuilt" : "live";
    return true;
}

/* The sequence as if its prompt had never come. */
static void go_back(struct engine *engine, struct context *context) {
    context->binding.is_lost = true;
    kv_store_end(engine->store, &context->binding, engine_now_ms(engine));
    kv_cache_release(&engine->cache, context->kv);
    context->kv = NULL;
}

static void count_begin(struct engine *engine, const struct context *context) {
    const struct generation_facts *facts = &context->generation.facts;
    engine_meter_add(engine, &(struct engine_counts){.reused = (uint64_t)facts->reused});
}

/* The prompt, all of it or what is appended, from position `first` on; null: no memory. */
static const int32_t *prompt_of(struct context *context, bool is_fresh, int32_t *first) {
    *first = is_fresh ? 0 : context->kv->length;
    return context->demoted != NULL ? scheduler_demoted_prompt(context)
                                    : context->generation.append;
}

/* Blocks are there for all of the prompt, and its tokens known. */
static result
take_prompt(struct engine *engine, struct context *context, const int32_t *tokens, int32_t first) {
    struct engine_generation *generation = &context->generation;
    TRY(kv_cache_reserve(&engine->cache, context->kv, generation->run_end, &generation->error));
    if (generation->append_count > 0) {
        engine_kept_release(context);
    }
    append_prompt(engine, context->kv, tokens, first, generation->run_end);
    free(generation->append);
    generation->append = NULL;
    free(context->demoted);
    context->demoted = NULL;
    generation->rows_to_run = generation->run_end - context->kv->computed;
    return OK;
}

/* The prompt becomes part of the sequence, unless blocks of it are on their way. */
static void start(struct engine *engine, struct context *context) {
    struct engine_generation *generation = &context->generation;
    bool is_fresh = context->binding.sequence == NULL;
    int32_t first = 0;
    int32_t end = context->length + generation->append_count;
    const int32_t *tokens = prompt_of(context, is_fresh, &first);
    if (tokens == NULL) {
        struct error error = {0};
        (void)error_set(
            &error, RESULT_MEMORY, 0, __FILE__, __LINE__, "no memory for a prompt of %d tokens", end
        );
        scheduler_finish(engine, context, FINISH_ERROR, &error);
        return;
    }
    bool is_ready =
        is_fresh ? begin(engine, context, tokens, end) == KV_BEGIN_READY : go_on(engine, context);
    if (!is_ready) {
        return;
    }
    change_state(engine, context, CONTEXT_ACTIVE);
    generation->admitted_at_us = engine_now_us();
    generation->facts.queued_us = generation->admitted_at_us - generation->queued_at_us;
    generation->run_end = end;
    generation->facts.prompt_tokens = end;
    generation->facts.hit_position = generation->facts.reused;
    if (is_failed(take_prompt(engine, context, tokens, first))) {
        struct error error = generation->error;
        if (is_fresh) {
            go_back(engine, context);
        }
        scheduler_finish(engine, context, FINISH_ERROR, &error);
        return;
    }
    count_begin(engine, context);
}

/* After a pre-emption. */
static void resume(struct engine *engine, struct context *context) {
    struct engine_generation *generation = &context->generation;
    int32_t length = context->kv->length;
    int32_t end = generation->run_end > length ? generation->run_end : length;
    int32_t before = context->kv->computed;
    if (!scheduler_slot_resume(engine, context, end)) {
        return;
    }
    if (context->kv->computed < before) {
        generation->run_end = end;
        generation->rows_to_run += before - context->kv->computed;
        generation->facts.preempted_rebuilt += before - context->kv->computed;
    }
    generation->facts.parked_us += engine_now_us() - generation->parked_at_us;
    generation->parked_at_us = 0;
    change_state(engine, context, CONTEXT_ACTIVE);
    engine_meter_add(engine, &(struct engine_counts){.resumed = 1});
}

static void preempt(struct engine *engine, struct context *context) {
    kv_store_park(engine->store, &context->binding, true, engine_now_ms(engine));
    context->generation.facts.preempted++;
    context->generation.parked_at_us = engine_now_us();
    change_state(engine, context, CONTEXT_PARKED);
    engine_meter_add(engine, &(struct engine_counts){.preempted = 1});
}

/* ---- the boundary ---------------------------------------------------------------------------- */

static void end_overdue(struct engine *engine) {
    int64_t now_ms = engine_now_ms(engine);
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (!is_request(context)) {
            continue;
        }
        int64_t deadline_ms = context->generation.deadline_ms;
        if (context->is_cancelled) {
            scheduler_finish(engine, context, FINISH_CANCELLED, NULL);
        } else if (deadline_ms != 0 && deadline_ms <= now_ms) {
            scheduler_finish(engine, context, FINISH_DEADLINE, NULL);
        }
    }
}

/* What was read lets prompts begin. */
static void poll_store(struct engine *engine) {
    engine->poll_ms = kv_store_poll(engine->store, engine_now_ms(engine));
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        context->is_restoring = context->is_restoring && context->binding.is_waiting;
    }
}

/* The time that deciding takes is measured apart from carrying out. */
static int64_t decided(struct engine *engine, int64_t started_us) {
    int64_t now_us = engine_now_us();
    engine->decision_us += now_us - started_us;
    return now_us;
}

/* What others gave back may have been shared with it: a promise is of what is missing now. */
static void renew_needs(struct engine *engine) {
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (is_request(context) && context->state == CONTEXT_QUEUED) {
            struct kv_need need;
            scheduler_need(engine, context, engine_tokens_bound(engine, context), &need);
            context->generation.blocks_needed = need.more;
        }
    }
}

/* Promises blocks as they last. Returns the first that lacks some, or null. */
static struct context *admit_some(struct engine *engine) {
    int64_t started_us = engine_now_us();
    renew_needs(engine);
    struct schedule_machine machine = scheduler_machine(engine);
    int32_t count = describe_all(engine, false);
    struct schedule_step step;
    schedule_admit(engine->schedule, &machine, engine->choices, count, &step);
    (void)decided(engine, started_us);
    for (int32_t i = 0; i < step.admit_count; i++) {
        struct context *context = &engine->contexts[engine->choices[step.admit[i]].number];
        if (scheduler_promise(engine, context)) {
            schedule_ledger_join(engine->ledger, context->generation.agent);
            change_state(engine, context, CONTEXT_PARKED);
        }
    }
    return step.blocked < 0 ? NULL : &engine->contexts[engine->choices[step.blocked].number];
}

/* Sequences that do not run give their blocks to those that would; who cannot get his though nobody
 * runs whose end could change that does not wait for ever. */
static void admit(struct engine *engine) {
    struct context *blocked = admit_some(engine);
    while (blocked != NULL) {
        struct error error = {0};
        if (scheduler_demote_for(engine, blocked, 0, &error)) {
            blocked = admit_some(engine);
            continue;
        }
        if (scheduler_running(engine) > 0) {
            return;
        }
        scheduler_finish(engine, blocked, FINISH_ERROR, &error);
        blocked = admit_some(engine);
    }
}

static void share_slots(struct engine *engine) {
    int64_t started_us = engine_now_us();
    struct schedule_machine machine = scheduler_machine(engine);
    int32_t count = describe_all(engine, false);
    struct schedule_step step;
    schedule_slots(engine->schedule, &machine, engine->choices, count, &step);
    (void)decided(engine, started_us);
    for (int32_t i = 0; i < step.preempt_count; i++) {
        preempt(engine, &engine->contexts[engine->choices[step.preempt[i]].number]);
    }
    for (int32_t i = 0; i < step.activate_count; i++) {
        struct context *context = &engine->contexts[engine->choices[step.activate[i]].number];
        if (!scheduler_slot_make_free(engine, context)) {
            continue;
        }
        if (context->generation.append != NULL) {
            start(engine, context);
        } else {
            resume(engine, context);
        }
    }
}

static enum engine_wait wait_of(const struct context *context) {
    if (context->is_restoring) {
        return ENGINE_WAIT_DISK;
    }
    return context->state == CONTEXT_QUEUED   ? ENGINE_WAIT_MEMORY
           : context->state == CONTEXT_PARKED ? ENGINE_WAIT_SLOT
                                              : ENGINE_WAIT_TURN;
}

void scheduler_tell_status(struct context *context, enum engine_wait wait) {
    const struct engine_generation *generation = &context->generation;
    const struct generation_facts *facts = &generation->facts;
    struct engine_request_status *status = &context->status;
    bool has_begun = generation->append == NULL;
    status->wait = wait;
    status->state = context->state == CONTEXT_QUEUED || !has_begun ? ENGINE_QUEUED
                    : context->kv->computed < facts->prompt_tokens ? ENGINE_PREFILL
                                                                   : ENGINE_DECODE;
    status->prompt_tokens = has_begun ? facts->prompt_tokens : status->prompt_tokens;
    status->prompt_left = rows_left(context);
    status->reused = facts->reused;
    status->evaluated = facts->evaluated;
    status->rebuilt = facts->rebuilt;
    status->sampled = facts->sampled;
    status->drafted = facts->drafted;
    status->accepted = facts->accepted;
    status->preempted = facts->preempted;
    status->blocks = context->kv == NULL ? 0 : context->kv->block_count;
    status->blocks_promised =
        context->state == CONTEXT_QUEUED ? generation->blocks_needed : context->kv->promised;
}

void scheduler_boundary(struct engine *engine) {
    engine->decision_us = 0;
    end_overdue(engine);
    poll_store(engine);
    admit(engine);
    share_slots(engine);
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (is_request(context)) {
            scheduler_tell_status(context, wait_of(context));
        }
    }
}

/* ---- composing ------------------------------------------------------------------------------- */

static void add_segment(
    struct engine *engine, struct context *context, const struct schedule_entry *decided_entry
) {
    const struct engine_generation *generation = &context->generation;
    const struct kv_sequence *kv = context->kv;
    bool is_run = kv->computed < generation->run_end;
    int32_t drafted = is_run ? 0 : decided_entry->drafted;
    int32_t rows =
        is_run ? kv_store_rows(&context->binding, decided_entry->rows) : decided_entry->rows;
    scheduler_drafts_append(engine, context, drafted);
    int32_t end = kv->computed + rows;
    int32_t run_end = is_run ? generation->run_end : end;
    bool has_logits = end == run_end;
    engine->segments[engine->segment_count] = (struct forward_segment){
        .sequence = context->kv,
        .position = kv->computed,
        .count = rows,
        .prompt_end = run_end,
        .logits = drafted > 0  ? FORWARD_LOGITS_ALL
                  : has_logits ? FORWARD_LOGITS_LAST
                               : FORWARD_LOGITS_NONE,
        .window = is_run && context->binding.is_replay ? WINDOW_REPLAY : WINDOW_EXACT,
        .window_floor_encoder = kv->computed < kv->kept ? context->binding.encoder_floor : 0,
        .window_floor_decoder = kv->decoder_floor,
        .write_floor = kv->kept,
        .drafted = drafted,
    };
    engine->entries[engine->entry_count++] = (struct step_entry){
        .context = context,
        .segment = engine->segment_count++,
        .rows = rows,
        .drafted = drafted,
        .kept = rows,
        .has_logits = has_logits,
    };
    engine->step_rows.rows[is_run ? SCHEDULE_PREFILL : SCHEDULE_DECODE] += rows - drafted;
    engine->step_rows.rows[SCHEDULE_DRAFT] += drafted;
}

/* Blocks for the rows and for the tokens that are drawn from them, never more than were promised. */
static bool reserve(struct engine *engine, struct context *context, int32_t drafted) {
    struct error error = {0};
    int32_t tokens = context->kv->length + drafted + 1;
    int32_t most = engine_tokens_bound(engine, context);
    tokens = tokens < most ? tokens : most;
    if (is_ok(kv_cache_reserve(&engine->cache, context->kv, tokens, &error))) {
        return true;
    }
    scheduler_finish(engine, context, FINISH_ERROR, &error);
    return false;
}

/* Logits kept from an evaluated prompt need no step. */
static void add_kept(struct engine *engine) {
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        if (is_request(context) && context->state == CONTEXT_ACTIVE &&
            scheduler_has_kept(context) && engine->entry_count < engine->plan.windows_max &&
            reserve(engine, context, 0)) {
            engine->entries[engine->entry_count++] =
                (struct step_entry){.context = context, .segment = -1, .has_logits = true};
        }
    }
}

void scheduler_compose(struct engine *engine) {
    scheduler_drafts_decide(engine);
    engine->segment_count = 0;
    engine->entry_count = 0;
    engine->step_rows = (struct schedule_rows_count){0};
    add_kept(engine);
    int64_t started_us = engine_now_us();
    struct schedule_machine machine = scheduler_machine(engine);
    machine.entries_max -= engine->entry_count;
    int32_t count = describe_all(engine, true);
    struct schedule_step step;
    schedule_rows(engine->schedule, &machine, engine->choices, count, &step);
    (void)decided(engine, started_us);
    for (int32_t i = 0; i < step.entry_count; i++) {
        struct context *context = &engine->contexts[step.entries[i].number];
        if (reserve(engine, context, step.entries[i].drafted)) {
            add_segment(engine, context, &step.entries[i]);
        }
    }
    for (int32_t i = 0; i < engine->entry_count; i++) {
        scheduler_tell_status(engine->entries[i].context, ENGINE_WAIT_NONE);
    }
}
