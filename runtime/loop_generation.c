/* Generations of a run: the request, what comes of it, and whether it moves. See loop_internal.h. */
#include "loop_internal.h"

/* ---- generations ---------------------------------------------------------------------------- */

static void parser_event(void *context, const struct chat_event *event) {
    struct run *run = context;
    struct run_event shown = {.text = event->text};
    if (event->type == CHAT_EVENT_REASONING) {
        shown.type = RUN_REASONING;
        run->status.activity = "thinking";
    } else if (event->type == CHAT_EVENT_CONTENT) {
        shown.type = RUN_CONTENT;
        run->status.activity = "writing";
    } else if (event->type == CHAT_EVENT_PROBLEM) {
        shown.type = RUN_PROBLEM;
        shown.problem = event->problem;
        shown.reason = run->reason; /* FINISH_ERROR until the generation has ended */
        if (agent_problem_is_serious(event->problem) && !run->has_problems) {
            run->has_problems = true;
            int length = snprintf(
                run->problem, sizeof run->problem, "%s", chat_problem_text(event->problem)
            );
            ASSERT(length > 0);
        }
    } else {
        if (event->type == CHAT_EVENT_CALL_STARTED) {
            run->status.activity = "calling";
        }
        return;
    }
    run_show(run, &shown);
}

static result parser_start(struct run *run, size_t first_call_number, struct error *error) {
    const struct chat_parser_options options = {
        .thinking = agent_chat_options(run->agent).effort != CHAT_EFFORT_OFF,
        .tool_names = run->tool_names,
        .tool_count = run->declared.tool_count,
        .first_call_number = first_call_number,
        .event = parser_event,
        .context = run,
    };
    return chat_parser_create(&run->parser, run->options->tokenizer, &options, error);
}

/* Generations of one agent share its turn in the engine. FNV-1a of its id, never 0. */
static uint64_t agent_group(const struct run *run) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *at = run->recorder.agent.text; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
    }
    return hash != 0 ? hash : 1;
}

struct generation_request run_request(const struct run *run, uint64_t sequence) {
    const struct run_options *options = run->options;
    struct generation_request request = {
        .sequence = sequence,
        .sampling = options->sampling,
        .window = options->window,
        .agent = agent_group(run),
        .guard = options->guard,
        .speculation = options->speculation,
        .draft_max = options->draft_max,
    };
    if (run->is_resuming) { /* a context that was computed approximately goes on as it was */
        const struct resume *resume = run->resume;
        request.has_contract = resume->replay_count > 0 && request.window == WINDOW_REPLAY;
        request.contract = resume->replays;
        request.contract_count = resume->replay_count;
    }
    return request;
}

/* What a turn asks for. */
static struct generation_request
request_of(const struct run *run, const struct agent_effect *effect) {
    const struct run_options *options = run->options;
    struct generation_request request = run_request(run, run->sequence);
    request.append = run->prompt_ids.ids;
    request.append_count = run->prompt_ids.count;
    request.tokens_max = effect->tokens_max;
    request.stops = options->stops;
    request.stop_count = options->stop_count;
    request.deadline_ms = effect->deadline_ms;
    request.starts_in_thinking = agent_chat_options(run->agent).effort != CHAT_EFFORT_OFF;
    request.constraint = run->declared.constraint;
    return request;
}

static result
generation_start(struct run *run, const struct agent_effect *effect, struct error *error) {
    chat_parser_destroy(run->parser);
    run->parser = NULL;
    run->has_facts = false;
    run->has_problems = false;
    run->problem[0] = '\0';
    run->reason = FINISH_ERROR;
    token_list_clear(&run->output_ids);
    buffer_clear(&run->log_probabilities);
    TRY(parser_start(run, effect->first_call_number, error));
    run->stuck_said_ms = 0;
    struct generation_request request = request_of(run, effect);
    run->length_before =
        run->options->engine.length(run->options->engine.context, request.sequence);
    if (run->is_resuming) {
        run->context_ids.count = run->resume->ids.count; /* an earlier try may not have begun */
        TRY(token_list_append_all(
            &run->context_ids, run->prompt_ids.ids, run->prompt_ids.count, error
        ));
        request.append = run->context_ids.ids;
        request.append_count = run->context_ids.count;
    }
    TRY(run->options->engine.generate(run->options->engine.context, &request, error));
    run->is_generating = true;
    run->status.activity = "reading";
    struct run_event event = {.type = RUN_TURN};
    run_show(run, &event);
    return OK;
}

void run_generate(struct run *run, const struct agent_effect *effect) {
    struct error error = {0};
    if (is_failed(generation_start(run, effect, &error))) {
        /* The deadline may pass between the agent's decision and the engine's look at it. */
        bool is_late = effect->deadline_ms != 0 && run_now_ms(run) >= effect->deadline_ms;
        run->reason = is_late ? FINISH_DEADLINE : FINISH_ERROR;
        run_dispatch(
            run,
            &(struct agent_event){.type = AGENT_GENERATED, .reason = run->reason, .error = &error}
        );
    }
}

static result token_came(struct run *run, const struct engine_event *event, struct error *error) {
    if (run->output_ids.count == 0) {
        run->first_token_ms = run_now_ms(run);
        run->status.prefill_total = 0;
    }
    TRY(token_list_append(&run->output_ids, event->token, error));
    TRY(buffer_append(
        &run->log_probabilities, view_of(&event->logprob, sizeof event->logprob), error
    ));
    if (run->options->shows_tokens) {
        struct run_event shown = {
            .type = RUN_TOKEN,
            .tokenizer = run->options->tokenizer,
            .token = event,
        };
        run_show(run, &shown);
    }
    run->status.tokens_sampled++;
    run->status.context_tokens++;
    if (agent_turn_is_spent(run->agent, (int64_t)run->output_ids.count)) {
        run->options->engine.cancel(run->options->engine.context, run->sequence);
    }
    return chat_parser_push(run->parser, event->token, error);
}

/* The stop string that ended the generation; empty: none did. */
struct view run_stop_met(const struct run *run) {
    int32_t index = run->facts.stop_index;
    bool is_string = run->has_facts && run->reason == FINISH_STOP && index >= 0 &&
                     (size_t)index < run->options->stop_count;
    return is_string ? run->options->stops[index] : view_of(NULL, 0);
}

void run_count_facts(struct run *run, const struct generation_facts *facts) {
    struct run_status *status = &run->status;
    status->prompt_tokens += facts->prompt_tokens;
    status->reused_tokens += facts->reused;
    status->evaluated_tokens += facts->evaluated;
    status->rebuilt_tokens += facts->rebuilt;
    status->drafted_tokens += facts->drafted;
    status->accepted_tokens += facts->accepted;
    status->preempted += facts->preempted;
}

static void show_usage(struct run *run, bool has_begun) {
    const struct generation_facts *facts = &run->facts;
    struct run_status *status = &run->status;
    run_count_facts(run, facts);
    status->prefill_total = 0;
    if (facts->decode_us > 0 && facts->sampled > 1) {
        status->tokens_per_second = (double)facts->sampled * 1e6 / (double)facts->decode_us;
    }
    struct run_event usage = {
        .type = RUN_USAGE, .facts = facts, .reason = run->reason, .text = run_stop_met(run)};
    run_show(run, &usage);
    bool has_resumed = run->is_resuming && facts->prompt_tokens > 0;
    run->is_resuming = run->is_resuming && !has_begun;
    if (has_resumed) {
        struct run_event resumed = {
            .type = RUN_RESUMED,
            .facts = facts,
            .context_tokens = narrow_i32((int64_t)run->resume->ids.count),
        };
        run_show(run, &resumed);
    }
}

static void generation_finished(struct run *run, const struct engine_event *event) {
    struct error error = event->error;
    run->facts = event->facts;
    if (run->is_resuming && run->resume->miss != NULL && run->facts.miss != NULL &&
        strcmp(run->facts.miss, "never_computed") == 0) {
        run->facts.miss = run->resume->miss; /* here, but elsewhere it was */
    }
    run->has_facts = event->facts.window_source != NULL; /* not when the program itself failed */
    run->reason = event->reason;
    if (is_failed(chat_parser_finish(run->parser, &error))) {
        run->reason = FINISH_ERROR;
    }
    run->is_generating = false;
    /* A request that ended before it began left the context as it was. */
    int32_t length = run->options->engine.length(run->options->engine.context, event->sequence);
    bool has_begun = !run->has_facts || length > run->length_before;
    if (run->has_facts) {
        run->status.context_tokens = has_begun ? length : run->status.context_tokens;
        show_usage(run, has_begun);
    }
    run_dispatch(
        run,
        &(struct agent_event
        ){.type = AGENT_GENERATED,
          .reason = run->reason,
          .error = &error,
          .sampled = narrow_i32((int64_t)run->output_ids.count),
          .context_tokens = run->has_facts && has_begun ? length : 0,
          .message = has_begun ? chat_parser_message(run->parser) : NULL,
          .has_problems = run->has_problems,
          .problem = view_of_text(run->problem),
          .stop = run_stop_met(run)}
    );
}

void run_engine_event(struct run *run, const struct engine_event *event) {
    if (run_compaction_event(run, event) || event->sequence != run->sequence ||
        !run->is_generating) {
        return;
    }
    if (event->type == ENGINE_PROGRESS) {
        run->status.prefill_done = event->done;
        run->status.prefill_total = event->total;
        run_show_status(run);
    } else if (event->type == ENGINE_TOKEN) {
        struct error error = {0};
        if (is_failed(token_came(run, event, &error))) {
            /* Out of memory, or an id that the vocabulary does not have. */
            run->options->engine.cancel(run->options->engine.context, run->sequence);
            const struct engine_event failed = {
                .type = ENGINE_FINISHED,
                .sequence = event->sequence,
                .reason = FINISH_ERROR,
                .error = error,
            };
            generation_finished(run, &failed);
        }
    } else {
        generation_finished(run, event);
    }
}

/* ---- progress ------------------------------------------------------------------------------- */

/* Once, and again when it waits for something else or for twice as long. */
static void say_stuck(struct run *run, const struct engine_stuck *stuck) {
    if (run->stuck_said_ms > 0 && run->stuck_wait == stuck->wait &&
        stuck->stuck_ms < 2 * run->stuck_said_ms) {
        return;
    }
    run->stuck_said_ms = stuck->stuck_ms;
    run->stuck_wait = stuck->wait;
    struct run_event event = {.type = RUN_STUCK, .stuck = stuck};
    run_show(run, &event);
}

void run_watch(struct run *run) {
    const struct run_options *options = run->options;
    if (!run->is_generating && !run_compaction_is_generating(run)) {
        return;
    }
    struct engine_stuck stuck;
    int64_t limit_ms = options->stuck_ms > 0 ? options->stuck_ms : LOOP_STUCK_MS;
    bool is_stuck = options->engine.watch(options->engine.context, limit_ms, &stuck);
    if (is_stuck && run_has_sequence(run, stuck.sequence)) {
        say_stuck(run, &stuck);
    } else if (is_stuck) { /* another run is for longer: nothing is known of this one */
    } else if (run->stuck_said_ms > 0) {
        run->stuck_said_ms = 0;
        struct run_event note = {.type = RUN_NOTE, .text = view_of_text("the generation goes on")};
        run_show(run, &note);
    }
    options->engine.statistics(options->engine.context, &run->statistics);
    struct run_event event = {.type = RUN_STATISTICS, .statistics = &run->statistics};
    run_show(run, &event);
}
