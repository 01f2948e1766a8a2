/* A compaction, driven: AGENT_COMPACT in, AGENT_COMPACTED or AGENT_COMPACT_FAILED out.
 *
 * A transaction. The old sequence stays as it is until the new one holds the new context and the
 * record has it; then, and only then, it is given up. What is thrown away on the way when somebody
 * stops it is a fork of the old sequence, which wrote the summary, or the new one.
 *
 *     plan -> [fork -> summary ->] build -> prefill of a new sequence -> record -> change over
 *
 * Plan, build and record run on a worker, to which the agent lends its conversation meanwhile.
 */
#include "loop_internal.h"

#include <inttypes.h>

enum phase { PHASE_PLAN, PHASE_SUMMARY, PHASE_BUILD, PHASE_PREFILL, PHASE_RECORD };

struct compaction {
    struct run *run;
    struct agent_effect effect;
    enum phase phase;
    _Atomic bool is_cancelled; /* set on the loop thread, also looked at on the worker */
    uv_work_t work;
    result worked;
    struct error error;

    struct agent_history history;
    struct buffer remark; /* what the person wants in the summary */
    int32_t *tokens;      /* of each message, about */
    struct buffer paths;  /* of the files that were read, each with a NUL behind it */
    struct view *files;
    int64_t tokens_before;
    struct agent_history_made made; /* conversation null: not built yet */
    struct token_list ids;          /* of the request for a summary, then of the new context */

    uint64_t sequence; /* the fork, then the new one; 0: none */
    struct chat_parser *parser;
    struct buffer summary;
    struct token_list request_ids, summary_ids; /* what asked for it, and what was sampled */
    struct buffer log_probabilities;            /* floats, of summary_ids */
    enum finish_reason summary_reason;
    bool has_summary;
    bool is_unreadable; /* the model wrote what cannot be parsed: error says why */
    int32_t sampled;
    struct generation_facts facts; /* of the prefill */
    struct generation_facts summary_facts;
};

static struct engine_ports ports_of(const struct compaction *compaction) {
    return compaction->run->options->engine;
}

static void sequence_drop(struct compaction *compaction) {
    if (compaction->sequence != 0) {
        struct engine_ports engine = ports_of(compaction);
        engine.tell(engine.context, compaction->sequence, SEQUENCE_ABANDONED, 0);
        engine.destroy(engine.context, compaction->sequence);
        compaction->sequence = 0;
    }
}

static void compaction_destroy(struct compaction *compaction) {
    if (compaction != NULL) {
        chat_conversation_destroy(compaction->made.conversation);
        chat_parser_destroy(compaction->parser);
        token_list_deinit(&compaction->ids);
        token_list_deinit(&compaction->request_ids);
        token_list_deinit(&compaction->summary_ids);
        buffer_deinit(&compaction->log_probabilities);
        buffer_deinit(&compaction->remark);
        buffer_deinit(&compaction->summary);
        buffer_deinit(&compaction->paths);
        free(compaction->files);
        free(compaction->tokens);
        free(compaction);
    }
}

/* ---- the end -------------------------------------------------------------------------------- */

/* The old context stays in force. */
static void give_up(struct compaction *compaction, const struct error *error) {
    struct run *run = compaction->run;
    bool is_record = compaction->phase == PHASE_RECORD;
    const struct error kept = *error;
    const struct agent_event event = {
        .type = is_record ? AGENT_RECORD_FAILED : AGENT_COMPACT_FAILED,
        .error = &kept,
        .sampled = compaction->sampled,
    };
    sequence_drop(compaction);
    if (compaction->effect.is_asked && !is_record) {
        char text[ERROR_MESSAGE_BYTES + 40];
        (void)snprintf(text, sizeof text, "the context stays as it is: %s", kept.message);
        struct run_event warning = {.type = RUN_WARNING, .text = view_of_text(text)};
        run_show(run, &warning);
    }
    run->compaction = NULL;
    compaction_destroy(compaction);
    run_dispatch(run, &event);
}

static void change_over(struct compaction *compaction) {
    struct run *run = compaction->run;
    struct engine_ports engine = ports_of(compaction);
    int32_t after = narrow_i32((int64_t)compaction->ids.count);
    engine.tell(engine.context, run->sequence, SEQUENCE_ABANDONED, 0);
    engine.destroy(engine.context, run->sequence);
    run->sequence = compaction->sequence;
    compaction->sequence = 0;
    run->is_resuming = false;
    token_list_clear(&run->context_ids);
    run->status.context_tokens = after;
    struct run_event shown = {
        .type = RUN_COMPACTED,
        .tokens_before = narrow_i32(compaction->tokens_before),
        .tokens_after = after,
        .outputs_removed = compaction->made.removed,
        .facts = &compaction->facts,
        .summary_facts = compaction->has_summary ? &compaction->summary_facts : NULL,
        .text = buffer_view(&compaction->summary),
    };
    run_show(run, &shown);
    run_say_given(run, compaction->effect.remark_count);
    const struct agent_event event = {
        .type = AGENT_COMPACTED,
        .sampled = compaction->sampled,
        .context_tokens = after,
        .conversation = compaction->made.conversation, /* which takes it */
        .person_message = compaction->made.person_message,
    };
    compaction->made.conversation = NULL;
    run->compaction = NULL;
    compaction_destroy(compaction);
    run_dispatch(run, &event);
}

/* ---- on a worker ---------------------------------------------------------------------------- */

static result
count_tokens(struct compaction *compaction, struct view text, int32_t *sum, struct error *error) {
    token_list_clear(&compaction->ids);
    TRY(tokenizer_encode(
        compaction->run->options->tokenizer, text, TOKENIZER_MARKERS_OFF, &compaction->ids, error
    ));
    *sum += narrow_i32((int64_t)compaction->ids.count);
    return OK;
}

#define FILES_SHARE    16 /* of the context may go to the list of files, 3 bytes a token */
#define MESSAGE_TOKENS 4  /* markers around a message */
#define CALL_TOKENS    16 /* and around a call */

static result check_cancelled(const struct compaction *compaction, struct error *error) {
    if (compaction->is_cancelled) {
        FAIL(error, CANCELLED, "stopped");
    }
    return OK;
}

static result measure(struct compaction *compaction, struct error *error) {
    struct agent_history *history = &compaction->history;
    compaction->tokens = calloc(history->count + 1, sizeof *compaction->tokens);
    if (compaction->tokens == NULL) {
        FAIL(error, MEMORY, "no memory for the sizes of %zu messages", history->count);
    }
    for (size_t i = 0; i < history->count; i++) {
        const struct chat_message *message = &history->messages[i];
        int32_t *sum = &compaction->tokens[i];
        *sum = MESSAGE_TOKENS;
        TRY(check_cancelled(compaction, error));
        TRY(count_tokens(compaction, message->content, sum, error));
        TRY(count_tokens(compaction, message->reasoning, sum, error));
        for (size_t k = 0; k < message->call_count; k++) {
            *sum += CALL_TOKENS;
            TRY(count_tokens(compaction, message->calls[k].arguments, sum, error));
        }
        for (size_t k = 0; k < message->tool_count; k++) {
            TRY(count_tokens(compaction, message->tools[k].function, sum, error));
        }
    }
    history->tokens = compaction->tokens;
    return OK;
}

struct path_list {
    struct buffer *paths;
    size_t count;
    result status;
};

static void path_came(void *context, struct view path) {
    struct path_list *list = context;
    if (is_ok(list->status)) {
        list->status = buffer_append(list->paths, path, NULL);
    }
    if (is_ok(list->status)) {
        list->status = buffer_append_byte(list->paths, '\0', NULL);
    }
    list->count++;
}

static result take_files(struct compaction *compaction, struct error *error) {
    const struct tool_ports *tools = &compaction->run->options->tools;
    compaction->history.has_output = tools->has_output;
    compaction->history.context = tools->context;
    if (tools->files == NULL) {
        return OK;
    }
    struct path_list list = {.paths = &compaction->paths};
    tools->files(tools->context, path_came, &list);
    compaction->files = calloc(list.count + 1, sizeof *compaction->files);
    if (is_failed(list.status) || compaction->files == NULL) {
        FAIL(error, MEMORY, "no memory for a list of %zu files", list.count);
    }
    struct cursor cursor = cursor_over(buffer_view(&compaction->paths));
    for (size_t i = 0; i < list.count; i++) {
        bool is_there = cursor_take_until(&cursor, '\0', &compaction->files[i]);
        ASSERT(is_there);
    }
    compaction->history.files = compaction->files;
    compaction->history.file_count = list.count;
    return OK;
}

static result encode(
    struct compaction *compaction,
    const struct chat_message *messages,
    size_t count,
    size_t from,
    int32_t effort,
    struct error *error
) {
    struct chat_request request = {
        .messages = messages,
        .message_count = count,
        .from = from,
        .end_is_missing = from > 0 && compaction->effect.end_is_missing,
        .options = agent_chat_options(compaction->run->agent),
    };
    request.options.effort = effort;
    token_list_clear(&compaction->ids);
    return chat_encode(&compaction->ids, compaction->run->options->encoder, &request, error);
}

static bool is_small_enough(const struct compaction *compaction, int64_t tokens) {
    const struct agent_history_limits *limits = &compaction->effect.limits;
    return agent_history_has_shrunk(compaction->tokens_before, tokens) &&
           !agent_history_is_due(limits, narrow_i32(tokens), 0);
}

/* Builds by the gentlest plan that is small enough, counted exactly. Without one nothing is built;
 * *least says how small it would get. */
static result
build(struct compaction *compaction, bool with_summary, int64_t *least, struct error *error) {
    int64_t tokens_max = compaction->tokens_before * AGENT_HISTORY_SHRINK_PERCENT / 100;
    struct agent_history_plan plan = {0};
    int32_t effort = agent_chat_options(compaction->run->agent).effort;
    while (agent_history_plan_next(&compaction->history, with_summary, tokens_max, &plan)) {
        struct agent_history_made *made = &compaction->made;
        TRY(check_cancelled(compaction, error));
        TRY(agent_history_build(
            made, &compaction->history, &plan, buffer_view(&compaction->summary), error
        ));
        const struct chat_message *messages = chat_conversation_messages(made->conversation);
        size_t count = chat_conversation_count(made->conversation);
        TRY(encode(compaction, messages, count, 0, effort, error));
        *least = (int64_t)compaction->ids.count;
        if (is_small_enough(compaction, *least)) {
            return OK;
        }
        chat_conversation_destroy(made->conversation);
        made->conversation = NULL;
    }
    return OK;
}

static result
fail_too_large(const struct compaction *compaction, int64_t least, struct error *error) {
    FAIL(
        error,
        LIMIT,
        "the context of %" PRId64 " tokens cannot be made smaller than %" PRId64
        ": less than %d %% of it is needed, of %d tokens in all",
        compaction->tokens_before,
        least,
        AGENT_HISTORY_SHRINK_PERCENT,
        compaction->effect.limits.context_max
    );
}

/* Whether any plan with a summary can be small enough, before one is written. */
static result check_hope(struct compaction *compaction, struct error *error) {
    struct agent_history *history = &compaction->history;
    int64_t tokens_max = compaction->tokens_before * AGENT_HISTORY_SHRINK_PERCENT / 100;
    struct agent_history_plan plan = {0};
    history->summary_tokens = 0;
    if (agent_history_plan_next(history, true, tokens_max, &plan)) {
        return OK;
    }
    int64_t least = compaction->tokens_before;
    while (agent_history_plan_next(history, true, INT64_MAX, &plan)) {
        least = plan.tokens < least ? plan.tokens : least;
    }
    return fail_too_large(compaction, least, error);
}

static result plan_request(struct compaction *compaction, struct error *error) {
    struct agent_history *history = &compaction->history;
    TRY(check_hope(compaction, error));
    history->summary_tokens = compaction->effect.tokens_max;
    CLEANUP(agent_history_request_deinit) struct agent_history_request request;
    TRY(agent_history_request_make(&request, history, buffer_view(&compaction->remark), error));
    return encode(
        compaction,
        request.messages,
        request.count,
        history->context_messages,
        CHAT_EFFORT_OFF, /* the summary itself, no thinking about it */
        error
    );
}

static result work_plan(struct compaction *compaction, struct error *error) {
    struct run *run = compaction->run;
    struct agent_history *history = &compaction->history;
    const struct chat_conversation *conversation = agent_conversation(run->agent);
    history->messages = chat_conversation_messages(conversation);
    history->count = chat_conversation_count(conversation);
    history->context_messages = compaction->effect.from_message;
    history->person_message = compaction->effect.person_message;
    history->fresh_from = compaction->effect.fresh_from;
    history->files_bytes_max = 3 * (size_t)(compaction->effect.limits.context_max / FILES_SHARE);
    history->keep_turns = compaction->effect.keep_turns;
    TRY(measure(compaction, error));
    TRY(take_files(compaction, error));
    compaction->tokens_before = agent_context_tokens(run->agent);
    if (history->context_messages < history->count) {
        int32_t effort = agent_chat_options(run->agent).effort;
        size_t from = history->context_messages;
        TRY(encode(compaction, history->messages, history->count, from, effort, error));
        compaction->tokens_before += (int64_t)compaction->ids.count;
    }
    int64_t least = 0;
    if (!compaction->effect.is_asked) {
        TRY(build(compaction, false, &least, error));
    }
    return compaction->made.conversation != NULL ? OK : plan_request(compaction, error);
}

static result work_build(struct compaction *compaction, struct error *error) {
    int64_t least = compaction->tokens_before;
    compaction->history.summary_tokens = compaction->sampled;
    TRY(build(compaction, true, &least, error));
    return compaction->made.conversation != NULL ? OK : fail_too_large(compaction, least, error);
}

static result work_record(struct compaction *compaction, struct error *error) {
    const void *floats = compaction->log_probabilities.data;
    const struct recorder_summary written = {
        .request = &compaction->request_ids,
        .generation =
            {.ids = &compaction->summary_ids,
             .log_probabilities = floats,
             .facts = &compaction->summary_facts,
             .reason = compaction->summary_reason},
    };
    /* The end of the conversation, with what came since the last turn, is as it was. */
    const struct run *run = compaction->run;
    ptrdiff_t moved = (ptrdiff_t)chat_conversation_count(compaction->made.conversation) -
                      (ptrdiff_t)chat_conversation_count(agent_conversation(run->agent));
    struct recorder_mail mail[AGENT_REMARKS_MAX];
    const struct recorder_compaction record = {
        .conversation = compaction->made.conversation,
        .ids = &compaction->ids,
        .mail = mail,
        .mail_count = run_mail_of(run, compaction->effect.remark_count, moved, mail),
        .facts = &compaction->facts,
        .tokens_before = compaction->tokens_before,
        .removed = compaction->made.removed,
        .summary = buffer_view(&compaction->summary),
        .written = compaction->has_summary ? &written : NULL,
    };
    return recorder_compaction(&compaction->run->recorder, &record, error);
}

static void work(uv_work_t *request) {
    struct compaction *compaction = request->data;
    compaction->worked = compaction->phase == PHASE_PLAN ? work_plan(compaction, &compaction->error)
                         : compaction->phase == PHASE_BUILD
                             ? work_build(compaction, &compaction->error)
                             : work_record(compaction, &compaction->error);
}

static void work_done(uv_work_t *request, int status);

static void work_start(struct compaction *compaction, enum phase phase) {
    compaction->phase = phase;
    compaction->work.data = compaction;
    int status = uv_queue_work(&compaction->run->loop->uv, &compaction->work, work, work_done);
    ASSERT(status == 0); /* fails only without a work function */
}

/* ---- generations ---------------------------------------------------------------------------- */

static void fail_here(struct compaction *compaction, result failed) {
    ASSERT(is_failed(failed));
    give_up(compaction, &compaction->error);
}

static result summary_start(struct compaction *compaction, struct error *error) {
    struct run *run = compaction->run;
    const struct run_options *options = run->options;
    const struct engine_ports *engine = &options->engine;
    const struct chat_parser_options parser = {
        .tool_names = run->tool_names,
        .tool_count = run->declared.tool_count,
    };
    TRY(chat_parser_create(&compaction->parser, options->tokenizer, &parser, error));
    TRY(token_list_append_all(
        &compaction->request_ids, compaction->ids.ids, compaction->ids.count, error
    ));
    TRY(run->is_resuming
            ? engine->create(engine->context, &compaction->sequence, error)
            : engine->fork(engine->context, run->sequence, &compaction->sequence, error));
    struct generation_request request = run_request(run, compaction->sequence);
    request.append = compaction->request_ids.ids;
    request.append_count = compaction->request_ids.count;
    request.tokens_max = compaction->effect.tokens_max;
    request.deadline_ms = compaction->effect.deadline_ms;
    request.stop_count = 0;
    request.starts_in_thinking = false;
    request.constraint = NULL;
    CLEANUP(token_list_deinit) struct token_list whole;
    token_list_init(&whole, TOKEN_LIST_CEILING_DEFAULT);
    if (run->is_resuming) { /* nothing is in the engine yet */
        const struct token_list *context = &run->context_ids;
        TRY(token_list_append_all(&whole, context->ids, context->count, error));
        TRY(token_list_append_all(&whole, request.append, request.append_count, error));
        request.append = whole.ids;
        request.append_count = whole.count;
    }
    return engine->generate(engine->context, &request, error);
}

static result prefill_start(struct compaction *compaction, struct error *error) {
    struct run *run = compaction->run;
    const struct engine_ports *engine = &run->options->engine;
    TRY(engine->create(engine->context, &compaction->sequence, error));
    struct generation_request request = run_request(run, compaction->sequence);
    request.append = compaction->ids.ids;
    request.append_count = compaction->ids.count;
    request.tokens_max = 0;
    request.deadline_ms = compaction->effect.deadline_ms;
    request.stop_count = 0;
    request.constraint = NULL;
    request.has_contract = false; /* of the old context */
    return engine->generate(engine->context, &request, error);
}

static void generation_start(struct compaction *compaction, enum phase phase) {
    compaction->phase = phase;
    result started = phase == PHASE_SUMMARY ? summary_start(compaction, &compaction->error)
                                            : prefill_start(compaction, &compaction->error);
    if (is_failed(started)) {
        fail_here(compaction, started);
    }
}

static void stopped(struct compaction *compaction, const char *why) {
    result set = error_set(&compaction->error, RESULT_CANCELLED, 0, __FILE__, __LINE__, "%s", why);
    fail_here(compaction, set);
}

static void work_done(uv_work_t *request, int status) {
    struct compaction *compaction = request->data;
    ASSERT(status == 0);
    if (is_failed(compaction->worked)) {
        fail_here(compaction, compaction->worked);
    } else if (compaction->phase == PHASE_RECORD) {
        change_over(compaction); /* it is recorded: too late to stop it */
    } else if (compaction->is_cancelled) {
        stopped(compaction, "stopped");
    } else if (compaction->made.conversation == NULL) {
        generation_start(compaction, PHASE_SUMMARY);
    } else {
        generation_start(compaction, PHASE_PREFILL);
    }
}

/* The summary as the model wrote it. One that went round in circles is none. */
static result
summary_take(struct compaction *compaction, enum finish_reason reason, struct error *error) {
    TRY(chat_parser_finish(compaction->parser, error));
    compaction->has_summary = true;
    compaction->summary_reason = reason;
    struct view text = chat_parser_message(compaction->parser)->content;
    return reason == FINISH_LOOP ? OK : buffer_append(&compaction->summary, text, error);
}

static void generation_finished(struct compaction *compaction, const struct engine_event *event) {
    struct run *run = compaction->run;
    enum finish_reason reason = event->reason;
    bool is_summary = compaction->phase == PHASE_SUMMARY;
    if (!compaction->is_unreadable) {
        compaction->error = event->error;
    }
    *(is_summary ? &compaction->summary_facts : &compaction->facts) = event->facts;
    run_count_facts(run, &event->facts);
    run->status.prefill_total = 0;
    if (reason == FINISH_ERROR || compaction->is_unreadable) {
        fail_here(compaction, (result){RESULT_DEVICE});
        return;
    }
    if (compaction->is_cancelled || reason == FINISH_CANCELLED || reason == FINISH_DEADLINE) {
        stopped(compaction, reason == FINISH_DEADLINE ? "the time is over" : "stopped");
        return;
    }
    if (!is_summary) {
        work_start(compaction, PHASE_RECORD);
        return;
    }
    result taken = summary_take(compaction, reason, &compaction->error);
    if (is_failed(taken)) {
        fail_here(compaction, taken);
        return;
    }
    sequence_drop(compaction);
    work_start(compaction, PHASE_BUILD);
}

static result
take_token(struct compaction *compaction, const struct engine_event *event, struct error *error) {
    struct view logprob = view_of(&event->logprob, sizeof event->logprob);
    TRY(token_list_append(&compaction->summary_ids, event->token, error));
    TRY(buffer_append(&compaction->log_probabilities, logprob, error));
    return chat_parser_push(compaction->parser, event->token, error);
}

bool run_has_sequence(const struct run *run, uint64_t sequence) {
    const struct compaction *compaction = run->compaction;
    return sequence == run->sequence ||
           (compaction != NULL && compaction->sequence != 0 && sequence == compaction->sequence);
}

bool run_compaction_event(struct run *run, const struct engine_event *event) {
    struct compaction *compaction = run->compaction;
    if (compaction == NULL || compaction->sequence == 0 ||
        event->sequence != compaction->sequence) {
        return false;
    }
    if (event->type == ENGINE_PROGRESS) {
        run->status.prefill_done = event->done;
        run->status.prefill_total = event->total;
        run_show_status(run);
    } else if (event->type == ENGINE_TOKEN) {
        compaction->sampled++;
        run->status.tokens_sampled++;
        if (!compaction->is_unreadable &&
            is_failed(take_token(compaction, event, &compaction->error))) {
            compaction->is_unreadable = true;
            struct engine_ports engine = ports_of(compaction);
            engine.cancel(engine.context, compaction->sequence);
        }
    } else {
        generation_finished(compaction, event);
    }
    return true;
}

bool run_compaction_is_generating(const struct run *run) {
    const struct compaction *compaction = run->compaction;
    return compaction != NULL &&
           (compaction->phase == PHASE_SUMMARY || compaction->phase == PHASE_PREFILL);
}

/* ---- begin and cancel ----------------------------------------------------------------------- */

static result
compaction_create(struct run *run, const struct agent_effect *effect, struct error *error) {
    struct compaction *compaction = calloc(1, sizeof *compaction);
    if (compaction == NULL) {
        FAIL(error, MEMORY, "no memory for a compaction");
    }
    compaction->run = run;
    compaction->effect = *effect;
    token_list_init(&compaction->ids, TOKEN_LIST_CEILING_DEFAULT);
    token_list_init(&compaction->request_ids, TOKEN_LIST_CEILING_DEFAULT);
    token_list_init(&compaction->summary_ids, TOKEN_LIST_CEILING_DEFAULT);
    buffer_init(&compaction->log_probabilities, BUFFER_CEILING_DEFAULT);
    buffer_init(&compaction->summary, AGENT_HISTORY_SUMMARY_BYTES * 4);
    buffer_init(&compaction->paths, BUFFER_CEILING_DEFAULT);
    buffer_init(&compaction->remark, AGENT_HISTORY_PERSON_BYTES);
    result copied = buffer_append(&compaction->remark, agent_compaction_remark(run->agent), error);
    if (is_failed(copied)) {
        compaction_destroy(compaction);
        return copied;
    }
    run->compaction = compaction;
    return OK;
}

void run_compact(struct run *run, const struct agent_effect *effect) {
    ASSERT(run->compaction == NULL && !run->is_generating && !run->step_is_running);
    struct error error = {0};
    if (is_failed(compaction_create(run, effect, &error))) {
        const struct agent_event event = {.type = AGENT_COMPACT_FAILED, .error = &error};
        run_dispatch(run, &event);
        return;
    }
    run->status.activity = "compacting";
    run_show_status(run);
    work_start(run->compaction, PHASE_PLAN);
}

void run_compact_cancel(struct run *run) {
    struct compaction *compaction = run->compaction;
    ASSERT(compaction != NULL);
    compaction->is_cancelled = true;
    if (run_compaction_is_generating(run)) {
        struct engine_ports engine = ports_of(compaction);
        engine.cancel(engine.context, compaction->sequence);
    }
}
