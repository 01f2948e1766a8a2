/* See resume.h. First the tokens decide which outputs of the model are part of the context, then the
 * conversation is built from the messages that belong to them.
 */
#include "resume.h"

#include "agent.h"
#include "tools/tool.h"
#include <inttypes.h>

/* What is known of the root agent's record while it is read. */
struct record {
    const struct session_tree *tree;
    const struct resume_options *options;
    const struct session_agent *agent;
    bool *keeps_output; /* [turn_count]: its output is part of the context */
    size_t first;       /* turn whose prompt begins the context: of a compaction, or 0 */
    bool is_blank;      /* the last turn is that, and left its context to be encoded */
    const struct session_turn *last; /* null: no turn was started */
    bool last_has_output;
    bool last_is_cut;
    bool has_message; /* of the user: a new one is there, or will be */
};

void resume_deinit(struct resume *resume) {
    token_list_deinit(&resume->ids);
    chat_conversation_cleanup(&resume->conversation);
}

/* ---- tokens --------------------------------------------------------------------------------- */

static const struct session_run *
run_find(const struct session_turn *turn, enum session_run_kind kind) {
    for (size_t i = 0; i < turn->run_count; i++) {
        if (turn->runs[i].kind == kind) {
            return &turn->runs[i];
        }
    }
    return NULL;
}

/* Everything from `position` on gives way: outputs that began there or later go with it. */
static void rewind_to(struct record *record, struct resume *out, size_t turns, int64_t position) {
    for (size_t i = 0; i < turns; i++) {
        const struct session_run *output = run_find(&record->agent->turns[i], SESSION_RUN_OUTPUT);
        if (output != NULL && output->position >= position) {
            record->keeps_output[i] = false;
        }
    }
    if ((size_t)position < out->ids.count) {
        out->ids.count = (size_t)position;
    }
}

static result take_run(
    const struct record *record,
    struct resume *out,
    size_t turn,
    const struct session_run *run,
    struct error *error
) {
    if (run->position < 0 || (uint64_t)run->position > out->ids.count ||
        run->count > TOKEN_LIST_CEILING_DEFAULT) {
        FAIL(
            error,
            CORRUPT,
            "turn %zu: %zu tokens at position %" PRId64 ", but %zu come before them",
            turn + 1,
            run->count,
            run->position,
            out->ids.count
        );
    }
    for (size_t i = 0; i < run->count; i++) {
        if (run->ids[i] < 0 || run->ids[i] >= record->options->vocabulary) {
            FAIL(
                error,
                CORRUPT,
                "turn %zu: token %zu is %d, not 0 to %d",
                turn + 1,
                (size_t)run->position + i,
                run->ids[i],
                record->options->vocabulary - 1
            );
        }
    }
    out->ids.count = (size_t)run->position;
    return run->count == 0 ? OK : token_list_append_all(&out->ids, run->ids, run->count, error);
}

static bool ended_as(const struct session_turn *turn, enum finish_reason reason) {
    return turn->is_finished && view_equals_text(turn->end.stop_reason, finish_reason_name(reason));
}

/* The guard that cut a turn; FINISH_EOS: none did. */
static enum finish_reason cut_reason(const struct session_turn *turn) {
    static const enum finish_reason reasons[] = {FINISH_LOOP, FINISH_THINKING, FINISH_OPEN_CALL};
    for (size_t i = 0; i < COUNT_OF(reasons); i++) {
        if (ended_as(turn, reasons[i])) {
            return reasons[i];
        }
    }
    return FINISH_EOS;
}

/* Without end of sequence and still whole: sampled again it would end at the same token. */
static bool is_whole(const struct session_turn *turn) {
    return ended_as(turn, FINISH_STOP) || cut_reason(turn) != FINISH_EOS;
}

/* What precedes is replaced, and may have been written by another model with other ids. */
static size_t last_compaction(const struct session_agent *agent) {
    for (size_t i = agent->turn_count; i > 0; i--) {
        if (agent->turns[i - 1].compaction != NULL) {
            return i - 1;
        }
    }
    return 0;
}

static result take_tokens(struct record *record, struct resume *out, struct error *error) {
    for (size_t i = last_compaction(record->agent); i < record->agent->turn_count; i++) {
        const struct session_turn *turn = &record->agent->turns[i];
        const struct session_run *prompt = run_find(turn, SESSION_RUN_PROMPT);
        const struct session_run *output = run_find(turn, SESSION_RUN_OUTPUT);
        if (prompt == NULL || turn->run_count != (output == NULL ? 1U : 2U)) {
            FAIL(
                error,
                UNSUPPORTED,
                "turn %zu has no token ids: only sessions that Hearth ran itself can go on",
                i + 1
            );
        }
        if (prompt->position >= 0) {
            rewind_to(record, out, i, prompt->position);
        }
        if (turn->compaction != NULL) {
            if (prompt->position != 0 || output != NULL) {
                FAIL(
                    error, CORRUPT, "turn %zu: a compaction that does not begin the context", i + 1
                );
            }
            record->first = i;
        }
        TRY(take_run(record, out, i, prompt, error));
        if (output != NULL) {
            if ((uint64_t)output->position != out->ids.count) {
                FAIL(error, CORRUPT, "turn %zu: its output does not follow its prompt", i + 1);
            }
            TRY(take_run(record, out, i, output, error));
        }
        bool has_output = output != NULL && output->count > 0;
        record->keeps_output[i] = has_output;
        record->last = turn;
        record->is_blank = turn->compaction != NULL && prompt->count == 0;
        record->last_has_output = has_output;
        record->last_is_cut = has_output &&
                              output->ids[output->count - 1] != record->options->end_id &&
                              !is_whole(turn);
    }
    return OK;
}

/* ---- messages ------------------------------------------------------------------------------- */

static result parse_call(struct json_value value, struct chat_call *out, struct error *error) {
    TRY(json_get_string(value, "id", &out->id, error));
    TRY(json_get_string(value, "name", &out->name, error));
    out->arguments = json_raw(json_get(value, "arguments"));
    return OK;
}

/* An assistant's message with its calls, which are JSON in the record. A copy is part of a prompt, not
 * what was written in this turn. */
static result append_assistant(
    struct resume *out, const struct session_message *recorded, bool is_copy, struct error *error
) {
    struct chat_call calls[CHAT_CALLS_MAX];
    struct chat_message message = {
        .role = CHAT_ASSISTANT,
        .content = recorded->text,
        .reasoning = recorded->reasoning,
        .calls = calls,
    };
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    if (recorded->calls.length > 0) {
        TRY(json_parse(recorded->calls, NULL, &document, error));
        struct json_value root = json_root(document);
        if (json_type(root) != JSON_ARRAY) {
            FAIL(error, CORRUPT, "the calls are no list");
        }
        for (struct json_value item = json_first(root); json_type(item) != JSON_ABSENT;
             item = json_next(item)) {
            if (message.call_count == CHAT_CALLS_MAX) {
                FAIL(error, CORRUPT, "more than %d calls", CHAT_CALLS_MAX);
            }
            TRY(parse_call(item, &calls[message.call_count], error));
            message.call_count++;
        }
    }
    TRY(chat_conversation_append(out->conversation, &message, error));
    out->turn_message = chat_conversation_count(out->conversation) - 1;
    out->next_call = 0;
    if (!is_copy) {
        out->calls_total += message.call_count;
        out->context_messages = out->turn_message + 1;
    }
    return OK;
}

static const struct chat_message *turn_message(const struct resume *out) {
    return &chat_conversation_messages(out->conversation)[out->turn_message];
}

/* Results follow their message in the order of its calls. */
static result append_result(struct resume *out, struct view text, struct error *error) {
    bool is_asked = chat_conversation_count(out->conversation) > out->turn_message;
    const struct chat_message *asking = is_asked ? turn_message(out) : NULL;
    if (asking == NULL || out->next_call >= asking->call_count) {
        FAIL(error, CORRUPT, "a tool's result that no call asked for");
    }
    const struct chat_message message = {
        .role = CHAT_TOOL,
        .content = text,
        .call_id = asking->calls[out->next_call].id,
    };
    TRY(chat_conversation_append(out->conversation, &message, error));
    out->next_call++;
    return OK;
}

static result
append_text(struct resume *out, enum chat_role role, struct view text, struct error *error) {
    const struct chat_message message = {.role = role, .content = text};
    return chat_conversation_append(out->conversation, &message, error);
}

static result append_recorded(
    const struct record *record,
    struct resume *out,
    size_t turn,
    const struct session_message *message,
    struct error *error
) {
    enum chat_role role;
    if (!chat_role_from_name(message->role, &role)) {
        FAIL(error, CORRUPT, "a message of '%.*s'", VIEW_ARGUMENTS(message->role));
    }
    bool is_copy = record->agent->turns[turn].compaction != NULL;
    if (role == CHAT_ASSISTANT) {
        return is_copy || record->keeps_output[turn]
                   ? append_assistant(out, message, is_copy, error)
                   : OK;
    }
    if (role == CHAT_TOOL) {
        return append_result(out, message->text, error);
    }
    return append_text(out, role, message->text, error);
}

/* Calls of turns that a compaction replaced: their ids are not given again. */
static result
count_calls(const struct session_turn *turn, struct resume *out, struct error *error) {
    for (size_t i = 0; turn->compaction == NULL && i < turn->message_count; i++) {
        if (turn->messages[i].calls.length > 0) {
            CLEANUP(json_cleanup) struct json_document *document = NULL;
            TRY(json_parse(turn->messages[i].calls, NULL, &document, error));
            out->calls_total += json_count(json_root(document));
        }
    }
    return OK;
}

static result take_messages(const struct record *record, struct resume *out, struct error *error) {
    for (size_t i = 0; i < record->agent->turn_count; i++) {
        const struct session_turn *turn = &record->agent->turns[i];
        if (i < record->first) {
            result counted = count_calls(turn, out, error);
            if (is_failed(counted) && counted.code != RESULT_MEMORY) {
                counted.code = RESULT_CORRUPT;
            }
            TRY_NOTE(error, counted, "turn %zu", i + 1);
            continue;
        }
        size_t outputs = 0;
        for (size_t k = 0; k < turn->message_count; k++) {
            outputs += view_equals_text(turn->messages[k].role, "assistant") ? 1 : 0;
            result appended = append_recorded(record, out, i, &turn->messages[k], error);
            if (is_failed(appended) && appended.code != RESULT_MEMORY) {
                appended.code = RESULT_CORRUPT;
            }
            TRY_NOTE(error, appended, "message %zu of turn %zu", k + 1, i + 1);
        }
        if (record->keeps_output[i] && outputs != 1) {
            FAIL(
                error, CORRUPT, "turn %zu: %zu messages of the model for one output", i + 1, outputs
            );
        }
    }
    return OK;
}

/* ---- the end -------------------------------------------------------------------------------- */

static result add_repair(struct resume *out, int64_t call, const char *text, struct error *error) {
    ASSERT(out->repair_count < COUNT_OF(out->repairs));
    TRY(append_result(out, view_of_text(text), error));
    out->repairs[out->repair_count++] =
        (struct resume_repair){.turn = out->turn, .call = call, .text = text};
    return OK;
}

/* The row of the last turn that was started and never answered, or null: a stop between the record of
 * a call and its start leaves one that is cancelled and counts as never started. */
static const struct session_call *open_call(const struct session_turn *turn) {
    if (turn->call_count == 0) {
        return NULL;
    }
    const struct session_call *call = &turn->calls[turn->call_count - 1];
    for (size_t i = 0; i < turn->message_count; i++) {
        if (turn->messages[i].call == call->number) {
            return NULL;
        }
    }
    return call->status == SESSION_CALL_CANCELLED ? NULL : call;
}

static result repair_calls(const struct record *record, struct resume *out, struct error *error) {
    size_t count = turn_message(out)->call_count;
    const struct session_call *open = open_call(record->last);
    if (open != NULL && out->next_call < count) {
        TRY(add_repair(out, open->number, RESUME_CALL_INTERRUPTED, error));
    }
    while (record->has_message && out->next_call < count) {
        TRY(add_repair(out, 0, RESUME_CALL_NOT_RUN, error));
    }
    out->has_calls = out->next_call < count;
    return OK;
}

/* Whether the last turn called the tool that ends a task, and got its result. */
static bool has_finished(const struct record *record, const struct resume *out) {
    const struct chat_message *asking = turn_message(out);
    const struct tool_descriptor *tool =
        out->next_call > 0 ? tool_find(asking->calls[out->next_call - 1].name) : NULL;
    return tool != NULL && (tool->effects & TOOL_ENDS) != 0 && record->last->call_count > 0 &&
           record->last->calls[record->last->call_count - 1].status == SESSION_CALL_OK;
}

struct reading {
    bool is_serious;
    char problem[AGENT_DETAIL_BYTES];
};

static void note_problem(void *context, const struct chat_event *event) {
    struct reading *reading = context;
    if (event->type == CHAT_EVENT_PROBLEM && !reading->is_serious &&
        agent_problem_is_serious(event->problem)) {
        reading->is_serious = true;
        (void)snprintf(
            reading->problem, sizeof reading->problem, "%s", chat_problem_text(event->problem)
        );
    }
}

/* Reads the last output once more for what was wrong with it. */
static result
read_again(const struct record *record, struct reading *reading, struct error *error) {
    const struct session_run *output = run_find(record->last, SESSION_RUN_OUTPUT);
    ASSERT(output != NULL); /* it is kept */
    const struct chat_parser_options options = {
        .thinking = (record->last->is_finished ? record->last->end.sampler.effort
                                               : record->agent->sampler.effort) != CHAT_EFFORT_OFF,
        .event = note_problem,
        .context = reading,
    };
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    TRY(chat_parser_create(&parser, record->options->tokenizer, &options, error));
    for (size_t i = 0; i < output->count; i++) {
        TRY(chat_parser_push(parser, output->ids[i], error));
    }
    return chat_parser_finish(parser, error);
}

/* The last turn called nothing: an answer, or something that could not be read. */
static result
end_without_calls(const struct record *record, struct resume *out, struct error *error) {
    if (ended_as(record->last, FINISH_STOP)) {
        out->is_done = !record->has_message;
        return OK;
    }
    if (agent_reason_is_cut(out->reason)) {
        return OK; /* the agent tells the model */
    }
    struct reading reading = {0};
    TRY(read_again(record, &reading, error));
    if (turn_message(out)->content.length > 0 && !reading.is_serious) {
        out->is_done = !record->has_message;
        return OK;
    }
    if (record->has_message) {
        return OK; /* the user answers */
    }
    char text[AGENT_DETAIL_BYTES + 120];
    agent_malformed_text(reading.problem, text, sizeof text);
    return append_text(out, CHAT_USER, view_of_text(text), error);
}

/* Where the last output of the model ends that is part of the context; 0: there is none. */
static int64_t kept_end(const struct record *record) {
    for (size_t i = record->agent->turn_count; i > 0; i--) {
        const struct session_run *output =
            run_find(&record->agent->turns[i - 1], SESSION_RUN_OUTPUT);
        if (record->keeps_output[i - 1] && output != NULL) {
            return output->position + (int64_t)output->count;
        }
    }
    return 0;
}

/* A turn without output, or one that was cut, is sampled again; it may have been encoded already. */
static void sample_again(struct record *record, struct resume *out) {
    size_t index = record->agent->turn_count - 1;
    const struct session_run *prompt = run_find(record->last, SESSION_RUN_PROMPT);
    ASSERT(prompt != NULL); /* take_tokens saw it */
    int64_t position = prompt->position;
    bool encodes_again = !record->last_has_output && record->has_message;
    position = encodes_again ? kept_end(record) : position + (int64_t)prompt->count;
    out->has_dropped_output = record->last_has_output;
    rewind_to(record, out, index + 1, position);
}

/* A compaction while nothing was to be done: its prompt ends with the model's answer. */
static bool waits_for_person(const struct session_turn *turn) {
    return turn->compaction != NULL && turn->message_count > 0 &&
           view_equals_text(turn->messages[turn->message_count - 1].role, "assistant");
}

/* The root of a swarm: its one turn holds what all agents begin with, and nothing to answer. */
static bool is_prefix(const struct session_turn *turn) {
    return turn->compaction == NULL && turn->message_count == 1 &&
           view_equals_text(turn->messages[0].role, "system") &&
           run_find(turn, SESSION_RUN_OUTPUT) == NULL;
}

/* One agent goes on with the task, or with what the user says now. */
static result build_behind_prefix(struct record *record, struct resume *out, struct error *error) {
    struct view task = record->options->task;
    TRY(take_messages(record, out, error));
    out->context_messages = chat_conversation_count(out->conversation);
    out->recorded_messages = out->context_messages;
    if (task.length == 0 && record->options->waits) {
        return OK;
    }
    return append_text(
        out, CHAT_USER, task.length > 0 ? task : record->tree->session.begin.task, error
    );
}

static result build(struct record *record, struct resume *out, struct error *error) {
    bool has_task = record->has_message;
    struct view task = record->options->task;
    if (record->agent != NULL) {
        TRY(take_tokens(record, out, error));
    }
    if (record->last != NULL && is_prefix(record->last)) {
        return build_behind_prefix(record, out, error);
    }
    bool waits = record->last != NULL && !record->is_blank && waits_for_person(record->last);
    bool samples_again = record->last != NULL && !waits && !record->is_blank &&
                         (!record->last_has_output || (record->last_is_cut && !has_task));
    if (samples_again) {
        sample_again(record, out);
    }
    if (record->agent != NULL) {
        TRY(take_messages(record, out, error));
    }
    if (chat_conversation_count(out->conversation) == 0) {
        TRY(append_text(out, CHAT_SYSTEM, record->options->system, error));
        /* Rewound to its begin: what comes now is the task. */
        bool is_replaced = has_task && record->tree->agent_count > 0 &&
                           record->tree->agents[0].turn_count > 0 && out->turns == 0;
        if (!is_replaced) {
            TRY(append_text(out, CHAT_USER, record->tree->session.begin.task, error));
        }
    } else {
        out->recorded_messages = chat_conversation_count(out->conversation);
    }
    if (record->is_blank) { /* nothing of it is in a context yet */
        out->is_done = !has_task && waits_for_person(record->last);
    } else if (waits || (samples_again && !has_task)) {
        out->context_messages = chat_conversation_count(out->conversation);
        out->is_done = waits && !has_task;
    } else if (!samples_again && record->last != NULL) {
        if (!has_task) {
            out->reason = cut_reason(record->last);
        }
        TRY(turn_message(out)->call_count > 0 ? repair_calls(record, out, error)
                                              : end_without_calls(record, out, error));
        out->is_done = out->is_done || (!has_task && has_finished(record, out));
        out->recorded_messages += out->repair_count;
    }
    out->end_is_missing = out->context_messages > 0 && out->ids.count > 0 &&
                          out->ids.ids[out->ids.count - 1] != record->options->end_id;
    return task.length > 0 ? append_text(out, CHAT_USER, task, error) : OK;
}

/* Windows of the last turn whose tokens are part of the context. */
static result take_replays(const struct record *record, struct resume *out, struct error *error) {
    for (size_t i = record->agent != NULL ? record->agent->turn_count : 0; i > 0; i--) {
        const struct session_turn *turn = &record->agent->turns[i - 1];
        if (turn->is_finished) {
            return window_replays_parse(
                turn->end.cache.replays, out->replays, ENGINE_REPLAYS_MAX, &out->replay_count, error
            );
        }
    }
    return OK;
}

/* The agent's turns that are part of its context; `turns` has room for all. */
static struct session_agent
agent_as_it_is(const struct session_agent *agent, struct session_turn *turns) {
    struct session_agent live = *agent;
    live.turns = turns;
    live.turn_count = 0;
    for (size_t i = 0; i < agent->turn_count; i++) {
        if (!agent->turns[i].is_rewound) {
            turns[live.turn_count++] = agent->turns[i];
        }
    }
    return live;
}

result resume_make(
    const struct session_tree *tree,
    const struct resume_options *options,
    struct resume *out,
    struct error *error
) {
    CLEANUP(resume_deinit) struct resume made = {.session = tree->session.id};
    struct view first = tree->session.begin.commit_before;
    if (first.length == WORKSPACE_COMMIT_BYTES - 1) {
        memcpy(made.commit_first, first.data, first.length);
    }
    struct record record = {
        .tree = tree,
        .options = options,
        .has_message = options->task.length > 0 || options->waits,
    };
    size_t turn_count = tree->agent_count > 0 ? tree->agents[0].turn_count : 0;
    CLEANUP(free_cleanup)
    struct session_turn *turns = calloc(turn_count + 1, sizeof *turns);
    if (turns == NULL) {
        FAIL(error, MEMORY, "no memory for %zu turns", turn_count);
    }
    struct session_agent live;
    if (tree->agent_count > 0) {
        live = agent_as_it_is(&tree->agents[0], turns);
        record.agent = &live;
        made.agent = record.agent->id;
        made.turns = narrow_i32((int64_t)record.agent->turn_count);
    }
    CLEANUP(free_cleanup)
    bool *keeps = calloc((size_t)made.turns + 1, sizeof *keeps);
    if (keeps == NULL) {
        FAIL(error, MEMORY, "no memory for %d turns", made.turns);
    }
    record.keeps_output = keeps;
    if (record.agent != NULL && made.turns > 0) {
        made.turn = record.agent->turns[made.turns - 1].number;
    }
    token_list_init(&made.ids, TOKEN_LIST_CEILING_DEFAULT);
    TRY(chat_conversation_create(&made.conversation, error));
    TRY_NOTE(error, build(&record, &made, error), "session %s", tree->session.id.text);
    TRY_NOTE(error, take_replays(&record, &made, error), "session %s", tree->session.id.text);
    *out = made;
    made = (struct resume){0};
    return OK;
}
