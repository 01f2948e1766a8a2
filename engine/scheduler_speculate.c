/* Drafts: which tokens a step verifies beside those that are drawn, and what is learnt of it.
 *
 * After the draws of a step, still without the lock, the sequence's own text and the draft stages
 * propose what may follow the token drawn last. The next boundary decides how many of these are worth
 * a row and appends them; scheduler_draw keeps those that equal the target's own draws. So drafts
 * change how long a generation takes and nothing else. See engine_internal.h, speculation.h.
 */
#include "constraint.h"
#include "engine_internal.h"

#define IDS_AT_ONCE 1024
/* Steps without a pass of the draft stages after one that did not pay; doubles up to the last. */
#define PAUSE_FIRST 4
#define PAUSE_LAST  128

/* One guess of the draft stages, drawn as the target would draw it. */
struct guess {
    struct engine *engine;
    struct engine_generation *generation;
    uint32_t constraint_state;
    int32_t count;
    int32_t ids[ENGINE_DRAFT_MAX];
};

/* Room for the draft stages' work; null when nobody may draft. */
struct engine_speculation {
    struct guess *guesses;            /* [windows_max]; null without draft stages */
    struct draft_request *requests;   /* the same */
    struct draft_proposal *proposals; /* the same */
    double propose_us;                /* running mean for one sequence; 0: not measured */
};

/* ---- life ------------------------------------------------------------------------------------ */

uint64_t engine_speculation_bytes(const struct engine_plan *plan) {
    if (plan->drafted_rows_max == 0) {
        return 0;
    }
    int32_t window =
        plan->context_max < ENGINE_LOOKUP_TOKENS ? plan->context_max : ENGINE_LOOKUP_TOKENS;
    uint64_t each = 0;
    if (plan->has_draft_stages) {
        each = sizeof(struct guess) + sizeof(struct draft_request) + sizeof(struct draft_proposal);
    }
    /* A request has its index from the beginning, while it waits too. */
    return sizeof(struct engine_speculation) + (uint64_t)plan->windows_max * each +
           (uint64_t)plan->sequences_max * lookup_bytes(window);
}

result engine_speculation_create(struct engine *engine, struct error *error) {
    if (engine->plan.drafted_rows_max == 0) {
        return OK;
    }
    size_t windows = (size_t)engine->plan.windows_max;
    engine->speculation = calloc(1, sizeof *engine->speculation);
    struct engine_speculation *speculation = engine->speculation;
    if (speculation == NULL) {
        FAIL(error, MEMORY, "no memory for drafts");
    }
    if (engine->draft == NULL) {
        return OK;
    }
    speculation->guesses = calloc(windows, sizeof *speculation->guesses);
    speculation->requests = calloc(windows, sizeof *speculation->requests);
    speculation->proposals = calloc(windows, sizeof *speculation->proposals);
    if (speculation->guesses == NULL || speculation->requests == NULL ||
        speculation->proposals == NULL) {
        FAIL(error, MEMORY, "no memory for drafts of %zu sequences", windows);
    }
    return OK;
}

void engine_speculation_destroy(struct engine_speculation *speculation) {
    if (speculation != NULL) {
        free(speculation->proposals);
        free(speculation->requests);
        free(speculation->guesses);
        free(speculation);
    }
}

/* ---- of a request ---------------------------------------------------------------------------- */

static int32_t drafts_most(
    const struct engine *engine, enum speculate mode, const struct generation_request *request
) {
    int32_t most = request->draft_max;
    if (most == 0) {
        most = mode == SPECULATE_DRAFT ? engine->model->config.draft_block : ENGINE_DRAFT_DEFAULT;
    }
    return most < ENGINE_DRAFT_MAX ? most : ENGINE_DRAFT_MAX;
}

result engine_drafts_create(
    const struct engine *engine,
    struct engine_drafts *drafts,
    const struct generation_request *request,
    int32_t tokens_bound,
    struct error *error
) {
    *drafts = (struct engine_drafts){.mode = SPECULATE_OFF};
    if (request->speculation == SPECULATE_DRAFT && engine->draft == NULL) {
        FAIL(
            error,
            UNSUPPORTED,
            "drafts of draft stages: %s",
            engine->model->has_draft ? "speculation is switched off" : "the model has none"
        );
    }
    if (engine->speculation == NULL || request->speculation == SPECULATE_OFF ||
        request->tokens_max < 2) {
        return OK;
    }
    if (request->speculation != SPECULATE_DRAFT) {
        int32_t window = tokens_bound < ENGINE_LOOKUP_TOKENS ? tokens_bound : ENGINE_LOOKUP_TOKENS;
        TRY(lookup_create(&drafts->lookup, window, error));
    }
    drafts->mode = request->speculation;
    drafts->most = drafts_most(engine, request->speculation, request);
    return OK;
}

void engine_drafts_destroy(struct engine_drafts *drafts) {
    lookup_destroy(drafts->lookup);
    *drafts = (struct engine_drafts){0};
}

static bool uses_stages(const struct engine *engine, const struct engine_drafts *drafts) {
    return engine->draft != NULL &&
           (drafts->mode == SPECULATE_AUTO || drafts->mode == SPECULATE_DRAFT);
}

/* ---- deciding; lock held --------------------------------------------------------------------- */

/* Drafts behind `length` tokens that can still become tokens: a step yields one more than it has. */
static int32_t
room_for_drafts(const struct engine *engine, const struct context *context, int32_t length) {
    const struct engine_generation *generation = &context->generation;
    int32_t tokens = generation->tokens_max - generation->facts.sampled - 1;
    int32_t positions = engine->plan.context_max - length - 1;
    int32_t room = tokens < positions ? tokens : positions;
    return room < generation->drafts.most ? room : generation->drafts.most;
}

/* Of what was proposed for the sequence as it is now, that which is accepted more often. */
static const struct engine_proposal *choose(const struct engine_drafts *drafts, int32_t length) {
    const struct engine_proposal *best = NULL;
    double best_acceptance = 0;
    const struct engine_proposal *all[] = {&drafts->copied, &drafts->guessed};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (all[i]->count > 0 && all[i]->length == length) {
            double acceptance =
                speculation_acceptance(&drafts->control, all[i]->source, all[i]->grade);
            if (best == NULL || acceptance > best_acceptance) {
                best = all[i];
                best_acceptance = acceptance;
            }
        }
    }
    return best;
}

/* A pass that proposed what was not worth a row is not repeated at once. */
static void pause_stages(struct engine_drafts *drafts, int32_t decided) {
    if (decided > 0) {
        drafts->pause = 0;
    } else {
        int32_t next = drafts->pause == 0 ? PAUSE_FIRST : 2 * drafts->pause;
        drafts->pause = next < PAUSE_LAST ? next : PAUSE_LAST;
        drafts->pause_left = drafts->pause;
    }
}

static void decide_context(
    const struct engine *engine, struct context *context, const struct speculation_price *price
) {
    struct engine_drafts *drafts = &context->generation.drafts;
    drafts->wanted = 0;
    drafts->source = SPECULATION_NONE;
    int32_t room = room_for_drafts(engine, context, context->kv->length);
    const struct engine_proposal *proposal = choose(drafts, context->kv->length);
    if (room <= 0 || proposal == NULL) {
        return;
    }
    int32_t most = proposal->count < room ? proposal->count : room;
    drafts->source = proposal->source;
    drafts->grade = proposal->grade;
    drafts->wanted = most;
    if (drafts->mode == SPECULATE_AUTO) {
        struct speculation_price own = *price;
        own.propose_us =
            proposal->source == SPECULATION_STAGES ? engine->speculation->propose_us : 0;
        drafts->wanted =
            speculation_decide(&drafts->control, proposal->source, proposal->grade, most, &own);
        if (proposal->source == SPECULATION_STAGES) {
            pause_stages(drafts, drafts->wanted);
        }
    }
    memcpy(drafts->ids, proposal->ids, (size_t)drafts->wanted * sizeof *drafts->ids);
}

/* What the last step cost without drafts and prompts, whose rows drafts take: the next one hardly
 * differs. */
static struct speculation_price price_of(const struct engine *engine) {
    struct schedule_rows_count rows = engine->step_rows;
    rows.rows[SCHEDULE_DRAFT] = 0;
    rows.rows[SCHEDULE_PREFILL] = 0;
    rows.rows[SCHEDULE_DECODE] += rows.rows[SCHEDULE_DECODE] == 0;
    return (struct speculation_price){
        .step_us = schedule_cost_predict(&engine->cost, &rows),
        .row_us = schedule_cost_row(&engine->cost, SCHEDULE_DRAFT),
        .tokens = rows.rows[SCHEDULE_DECODE],
    };
}

void scheduler_drafts_decide(struct engine *engine) {
    if (engine->speculation == NULL) {
        return;
    }
    struct speculation_price price = price_of(engine);
    for (int32_t c = 0; c < engine->context_count; c++) {
        struct context *context = &engine->contexts[c];
        struct engine_generation *generation = &context->generation;
        generation->drafts.wanted = 0;
        if (context->used && !context->is_dying && context->state == CONTEXT_ACTIVE &&
            generation->drafts.mode != SPECULATE_OFF && generation->append == NULL &&
            context->kv->computed >= generation->run_end) {
            decide_context(engine, context, &price);
        }
    }
}

void scheduler_drafts_append(struct engine *engine, struct context *context, int32_t drafted) {
    const struct engine_drafts *drafts = &context->generation.drafts;
    ASSERT(drafted >= 0 && drafted <= drafts->wanted);
    for (int32_t i = 0; i < drafted; i++) {
        scheduler_append(engine, context->kv, drafts->ids[i]);
    }
}

/* ---- proposing; without the lock ------------------------------------------------------------- */

/* The index knows the last tokens of the sequence, those just drawn included: older ones than its
 * window would only take time. Returns how many tokens there are. */
static int32_t tell_lookup(
    const struct engine *engine, const struct step_entry *entry, struct engine_drafts *drafts
) {
    const struct kv_sequence *kv = entry->context->kv;
    struct lookup *lookup = drafts->lookup;
    int32_t before = kv->length - entry->drafted;
    if (lookup == NULL) {
        return before + entry->draw_count;
    }
    if (lookup_length(lookup) == 0 && before > ENGINE_LOOKUP_TOKENS) {
        drafts->lookup_from = before - ENGINE_LOOKUP_TOKENS;
    }
    int32_t ids[IDS_AT_ONCE];
    for (int32_t from = drafts->lookup_from + lookup_length(lookup); from < before;) {
        int32_t count = before - from < IDS_AT_ONCE ? before - from : IDS_AT_ONCE;
        kv_cache_read_ids(&engine->cache, kv, from, count, ids);
        lookup_append(lookup, ids, count);
        from += count;
    }
    for (int32_t i = 0; i < entry->draw_count; i++) {
        lookup_append(lookup, &engine->draws[entry->draw_first + i].id, 1);
    }
    return before + entry->draw_count;
}

static void propose_copy(const struct engine *engine, struct context *context, int32_t length) {
    struct engine_drafts *drafts = &context->generation.drafts;
    drafts->copied = (struct engine_proposal){.length = length, .source = SPECULATION_LOOKUP};
    if (engine->suggest != NULL) {
        drafts->copied.count = engine->suggest(
            engine->suggest_context, context->id, length, drafts->most, drafts->copied.ids
        );
        return;
    }
    if (drafts->lookup == NULL) {
        return;
    }
    struct lookup_draft found;
    lookup_propose(drafts->lookup, drafts->most, &found);
    drafts->copied.count = found.count;
    drafts->copied.grade = speculation_grade_lookup(found.matched);
    memcpy(drafts->copied.ids, found.ids, (size_t)found.count * sizeof *found.ids);
}

/* Counts drafts whose verdict is known: one that was drawn but ended the generation, and all behind
 * the end, were not judged. */
static void learn(const struct step_entry *entry) {
    struct engine_generation *generation = &entry->context->generation;
    int32_t accepted = entry->kept - entry->rows + entry->drafted;
    int32_t judged = generation->has_ended ? accepted : entry->drafted;
    if (entry->drafted > 0) {
        speculation_update(
            &generation->drafts.control,
            generation->drafts.source,
            generation->drafts.grade,
            judged,
            accepted
        );
    }
}

static int32_t draw_guess(void *context, int32_t index, int32_t position, float *logits) {
    struct guess *guess = context;
    const struct engine_generation *generation = guess->generation;
    struct sampler_request request = {
        .logits = logits,
        .sampling = &generation->sampling,
        .history = generation->history,
        .position = position,
        .skips_logprob = true,
    };
    struct sampled_token token;
    if (index != guess->count || index >= ENGINE_DRAFT_MAX ||
        (generation->constraint != NULL &&
         is_failed(
             constraint_mask(generation->constraint, guess->constraint_state, &request.mask, NULL)
         )) ||
        is_failed(sampler_draw(guess->engine->samplers[0], &request, &token, NULL)) ||
        token.id == guess->engine->info.eos_id ||
        (generation->constraint != NULL &&
         is_failed(
             constraint_advance(generation->constraint, &guess->constraint_state, token.id, NULL)
         ))) {
        return -1;
    }
    guess->ids[guess->count++] = token.id;
    if (generation->history != NULL) {
        sampler_history_push(generation->history, token.id);
    }
    return token.id;
}

static void forget_guesses(struct guess *guess) {
    while (guess->count > 0 && guess->generation->history != NULL) {
        sampler_history_pop(guess->generation->history, guess->ids[--guess->count]);
    }
}

/* Tokens of the sequence with those just drawn, which it may not hold yet. */
static int32_t length_after(const struct step_entry *entry) {
    return entry->context->kv->length - entry->drafted + entry->draw_count;
}

/* Guesses to ask for; 0: none. */
static int32_t guesses_wanted(const struct engine *engine, struct step_entry *entry) {
    struct engine_drafts *drafts = &entry->context->generation.drafts;
    drafts->guessed.count = 0;
    if (!uses_stages(engine, drafts) || entry->draw_count == 0 || entry->segment < 0 ||
        entry->context->generation.has_ended) {
        return 0;
    }
    if (drafts->mode == SPECULATE_AUTO && drafts->pause_left > 0) {
        drafts->pause_left--;
        return 0;
    }
    int32_t room = room_for_drafts(engine, entry->context, length_after(entry));
    int32_t block = engine->model->config.draft_block;
    return room < 0 ? 0 : room < block ? room : block;
}

static float sigmoid(float x) {
    return (float)(1.0 / (1.0 + exact_exp(-(double)x)));
}

/* Requests of all that want guesses; returns how many. */
static int32_t ask_for_guesses(struct engine *engine) {
    struct engine_speculation *speculation = engine->speculation;
    int32_t count = 0;
    for (int32_t e = 0; e < engine->entry_count; e++) {
        struct step_entry *entry = &engine->entries[e];
        struct engine_generation *generation = &entry->context->generation;
        entry->guess = -1;
        int32_t wanted = guesses_wanted(engine, entry);
        if (wanted > 0) {
            speculation->guesses[count] = (struct guess){
                .engine = engine,
                .generation = generation,
                .constraint_state = generation->constraint_state,
            };
            speculation->requests[count] = (struct draft_request){
                .sequence = entry->context->kv,
                .token = engine->draws[entry->draw_first + entry->draw_count - 1].id,
                .wanted = wanted,
                .draw = draw_guess,
                .context = &speculation->guesses[count],
            };
            entry->guess = count++;
        }
    }
    return count;
}

static result propose_guesses(struct engine *engine, struct error *error) {
    struct engine_speculation *speculation = engine->speculation;
    int32_t count = ask_for_guesses(engine);
    if (count == 0) {
        return OK;
    }
    int64_t started_us = engine_now_us();
    TRY(draft_propose(engine->draft, speculation->requests, count, speculation->proposals, error));
    double each_us = (double)(engine_now_us() - started_us) / count;
    double before_us = speculation->propose_us;
    speculation->propose_us = before_us == 0 ? each_us : 0.9 * before_us + 0.1 * each_us;
    for (int32_t e = 0; e < engine->entry_count; e++) {
        struct step_entry *entry = &engine->entries[e];
        if (entry->guess < 0) {
            continue;
        }
        const struct draft_proposal *proposal = &speculation->proposals[entry->guess];
        struct engine_drafts *drafts = &entry->context->generation.drafts;
        forget_guesses(&speculation->guesses[entry->guess]);
        int32_t some = proposal->count < drafts->most ? proposal->count : drafts->most;
        drafts->guessed = (struct engine_proposal){
            .length = length_after(entry),
            .count = some,
            .source = SPECULATION_STAGES,
        };
        if (some > 0) {
            drafts->guessed.grade = speculation_grade_stages(sigmoid(proposal->confidence[0]));
            memcpy(drafts->guessed.ids, proposal->ids, (size_t)some * sizeof *proposal->ids);
        }
    }
    return OK;
}

/* The draft rings get the rows that count, when somebody of the step makes use of them. */
static result commit_rows(struct engine *engine, bool has_drafts, struct error *error) {
    bool is_used = false;
    for (int32_t e = 0; e < engine->entry_count; e++) {
        is_used = is_used || uses_stages(engine, &engine->entries[e].context->generation.drafts);
    }
    if (!is_used || engine->segment_count == 0) {
        return OK;
    }
    return draft_commit(
        engine->draft,
        engine->segments,
        has_drafts ? engine->kept_rows : NULL,
        engine->segment_count,
        error
    );
}

result scheduler_drafts_propose(struct engine *engine, bool has_drafts, struct error *error) {
    if (engine->speculation == NULL) {
        return OK;
    }
    TRY(commit_rows(engine, has_drafts, error));
    for (int32_t e = 0; e < engine->entry_count; e++) {
        struct step_entry *entry = &engine->entries[e];
        struct engine_generation *generation = &entry->context->generation;
        if (generation->drafts.mode == SPECULATE_OFF) {
            continue;
        }
        learn(entry);
        if (entry->draw_count > 0 && !generation->has_ended) {
            int32_t length = tell_lookup(engine, entry, &generation->drafts);
            propose_copy(engine, entry->context, length);
        }
    }
    return engine->draft == NULL ? OK : propose_guesses(engine, error);
}
