/* An agent's making and what may be asked of it; see agent.h. */
#include "agent_internal.h"

#include <stdarg.h>

/* ---- creation ------------------------------------------------------------------------------- */

size_t agent_message_bytes(const struct chat_message *message) {
    size_t bytes = message->content.length + message->reasoning.length;
    for (size_t i = 0; i < message->call_count; i++) {
        bytes += message->calls[i].name.length + message->calls[i].arguments.length;
    }
    return bytes;
}

result agent_append(struct agent *agent, const struct chat_message *message, struct error *error) {
    size_t bytes = agent_message_bytes(message);
    if (bytes > AGENT_CONVERSATION_BYTES_MAX - agent->conversation_bytes) {
        FAIL(error, LIMIT, "the conversation would exceed %zu bytes", AGENT_CONVERSATION_BYTES_MAX);
    }
    TRY(chat_conversation_append(agent->conversation, message, error));
    agent->conversation_bytes += bytes;
    return OK;
}

void agent_notice(struct agent *agent, const char *format, ...) {
    size_t used = strlen(agent->notice);
    size_t room = sizeof agent->notice - used;
    if (used > 0 && room > 1) {
        agent->notice[used++] = ' ';
        agent->notice[used] = '\0';
        room--;
    }
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(agent->notice + used, room, format, arguments);
    va_end(arguments);
    ASSERT(written >= 0); /* too long: cut, and still clear */
}

/* A conversation that goes on. */
static result
fill_again(struct agent *agent, const struct agent_options *options, struct error *error) {
    const struct agent_resume *resume = options->resume;
    ASSERT(resume->message_count > 0 && resume->messages[0].role == CHAT_SYSTEM);
    ASSERT(resume->context_messages <= resume->message_count);
    for (size_t i = 0; i < resume->message_count; i++) {
        struct chat_message message = resume->messages[i];
        if (i == 0) {
            message.tools = options->tools;
            message.tool_count = options->tool_count;
        }
        TRY(agent_append(agent, &message, error));
    }
    agent_compaction_resume(agent);
    agent->turns = resume->turns;
    agent->turns_before = resume->turns;
    agent->turns_max += resume->turns;
    agent->waits = resume->waits;
    agent->context_tokens = resume->context_tokens;
    agent->context_messages = resume->context_messages;
    agent->end_is_missing = resume->end_is_missing;
    agent->calls_total = resume->calls_total;
    agent->unrun_from = resume->context_messages;
    agent->unrun_count = resume->unrun_count;
    if (resume->effort != CHAT_EFFORT_OFF) {
        agent->effort_told = resume->effort;
    }
    if (agent_reason_is_cut(resume->reason)) {
        agent_notice(agent, "%s", agent_cut_text(resume->reason));
    }
    if (resume->has_calls) {
        agent->turn_message = resume->turn_message;
        agent->call_count = resume->messages[resume->turn_message].call_count;
        agent->call_index = resume->next_call;
        ASSERT(agent->call_index < agent->call_count);
    }
    return OK;
}

static result
fill_new(struct agent *agent, const struct agent_options *options, struct error *error) {
    const struct chat_message system = {
        .role = CHAT_SYSTEM,
        .content = options->system,
        .tools = options->tools,
        .tool_count = options->tool_count,
    };
    const struct chat_message user = {.role = CHAT_USER, .content = options->task};
    TRY(agent_append(agent, &system, error));
    agent->waits = agent->is_interactive && options->task.length == 0;
    return agent->waits ? OK : agent_append(agent, &user, error);
}

static result take_names(struct agent *agent, struct error *error) {
    const struct chat_message *head = chat_conversation_messages(agent->conversation);
    struct view *names = calloc(head->tool_count + 1, sizeof *names);
    if (names == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tool names", head->tool_count);
    }
    free(agent->tool_names);
    agent->tool_names = names;
    agent->tool_count = head->tool_count;
    for (size_t i = 0; i < head->tool_count; i++) {
        names[i] = head->tools[i].name;
    }
    return OK;
}

static result
agent_fill(struct agent *agent, const struct agent_options *options, struct error *error) {
    TRY(chat_conversation_create(&agent->conversation, error));
    TRY(options->resume != NULL ? fill_again(agent, options, error)
                                : fill_new(agent, options, error));
    return take_names(agent, error);
}

result agent_declare(
    struct agent *agent, const struct chat_tool *tools, size_t tool_count, struct error *error
) {
    ASSERT(
        agent->state == AGENT_STATE_NEW || agent->state == AGENT_STATE_IDLE ||
        agent->state == AGENT_STATE_BEGIN
    );
    CLEANUP(chat_conversation_cleanup) struct chat_conversation *made = NULL;
    TRY(chat_conversation_create(&made, error));
    const struct chat_message *messages = chat_conversation_messages(agent->conversation);
    for (size_t i = 0; i < chat_conversation_count(agent->conversation); i++) {
        struct chat_message message = messages[i];
        if (i == 0) {
            message.tools = tools;
            message.tool_count = tool_count;
        }
        TRY(chat_conversation_append(made, &message, error));
    }
    chat_conversation_destroy(agent->conversation);
    agent->conversation = TAKE(made);
    return take_names(agent, error);
}

/* Of the options, where 0 is none. */
static int64_t limit_of(int64_t option) {
    return option > 0 ? option : AGENT_NO_LIMIT;
}

result agent_create(struct agent **out, const struct agent_options *options, struct error *error) {
    ASSERT(options->context_max > 0);
    CLEANUP(agent_cleanup) struct agent *agent = calloc(1, sizeof *agent);
    if (agent == NULL) {
        FAIL(error, MEMORY, "no memory for an agent");
    }
    agent->effort = options->effort;
    agent->turns_max = options->turns_max > 0 ? options->turns_max : AGENT_TURNS_MAX_DEFAULT;
    agent->turns_each = agent->turns_max;
    agent->turn_tokens_max = options->turn_tokens_max;
    agent->calls_max = limit_of(options->calls_max);
    agent->is_interactive = options->is_interactive;
    agent->checks_stop = options->checks_stop;
    agent->turn_effort = options->effort;
    agent->effort_told = options->effort;
    agent->tokens_max = limit_of(options->tokens_max);
    agent->time_ms_max = limit_of(options->time_ms_max);
    agent->context_max = options->context_max;
    agent->deadline_ms = AGENT_NO_LIMIT;
    agent->compact_at_percent = options->compact_at_percent;
    agent->compact_keep_turns =
        options->compact_keep_turns > 0 ? options->compact_keep_turns : AGENT_HISTORY_KEEP_TURNS;
    buffer_init(&agent->compact_remark, AGENT_HISTORY_PERSON_BYTES);
    TRY(agent_fill(agent, options, error));
    *out = TAKE(agent);
    return OK;
}

void agent_destroy(struct agent *agent) {
    if (agent != NULL) {
        for (size_t i = 0; i < agent->queue_count; i++) {
            buffer_deinit(&agent->queue[i]);
        }
        for (size_t i = 0; i < agent->remark_count; i++) {
            buffer_deinit(&agent->remarks[i]);
        }
        free(agent->tool_names);
        buffer_deinit(&agent->compact_remark);
        chat_conversation_destroy(agent->conversation);
        free(agent);
    }
}

void agent_cleanup(struct agent **agent) {
    agent_destroy(*agent);
    *agent = NULL;
}

/* ---- questions ------------------------------------------------------------------------------ */

const struct chat_conversation *agent_conversation(const struct agent *agent) {
    return agent->conversation;
}

struct chat_options agent_chat_options(const struct agent *agent) {
    struct chat_options options = chat_options_default();
    options.effort = agent->turn_effort;
    options.keep_thinking = true;
    return options;
}

const struct chat_call *agent_call(const struct agent *agent, size_t index) {
    ASSERT(index < agent->call_count);
    return &chat_conversation_messages(agent->conversation)[agent->turn_message].calls[index];
}

enum agent_stop agent_stop(const struct agent *agent) {
    return agent->stop;
}

const char *agent_stop_detail(const struct agent *agent) {
    return agent->detail;
}

int32_t agent_turns(const struct agent *agent) {
    return agent->turns;
}

int32_t agent_turns_before(const struct agent *agent) {
    return agent->turns_before;
}

int32_t agent_turns_max(const struct agent *agent) {
    return agent->turns_max;
}

int64_t agent_tokens_sampled(const struct agent *agent) {
    return agent->tokens_sampled;
}

int64_t agent_tokens_max(const struct agent *agent) {
    return agent->tokens_max;
}

int64_t agent_calls_max(const struct agent *agent) {
    return agent->calls_max;
}

uint64_t agent_turn_digest(const struct agent *agent) {
    return agent->turn_digest;
}

int32_t agent_context_tokens(const struct agent *agent) {
    return agent->context_tokens;
}

int64_t agent_deadline_ms(const struct agent *agent) {
    return agent->deadline_ms;
}

int64_t agent_calls(const struct agent *agent) {
    return agent->calls_run;
}

bool agent_is_idle(const struct agent *agent) {
    return agent->state == AGENT_STATE_IDLE;
}

enum agent_stop agent_idle_stop(const struct agent *agent) {
    return agent->idle_stop;
}

bool agent_takes_message(const struct agent *agent, size_t bytes) {
    return agent->is_interactive && agent->state != AGENT_STATE_FINISHED &&
           agent->queue_count < AGENT_QUEUE_MAX &&
           bytes <= AGENT_QUEUE_BYTES_MAX - agent->queue_bytes;
}

bool agent_takes_remark(const struct agent *agent, size_t bytes) {
    return agent->state != AGENT_STATE_FINISHED &&
           agent->remark_count + agent->remarks_given < AGENT_REMARKS_MAX &&
           bytes <= AGENT_REMARKS_BYTES_MAX - agent->remark_bytes;
}

size_t agent_remarks_waiting(const struct agent *agent) {
    return agent->remark_count;
}

size_t agent_remark_message(const struct agent *agent, size_t index) {
    ASSERT(index < agent->remarks_given);
    return agent->remark_at[index];
}

void agent_context(const struct agent *agent, struct agent_resume *out) {
    *out = (struct agent_resume){
        .messages = chat_conversation_messages(agent->conversation),
        .message_count = agent->context_messages,
        .context_messages = agent->context_messages,
        .end_is_missing = agent->end_is_missing,
        .context_tokens = agent->context_tokens,
        .calls_total = agent->calls_total,
        .effort = agent->effort_told,
    };
}

size_t agent_fresh_from(const struct agent *agent) {
    return agent->fresh_from;
}

size_t agent_call_count(const struct agent *agent) {
    return agent->call_count;
}

size_t agent_queued(const struct agent *agent) {
    return agent->queue_count;
}

struct view agent_queued_text(const struct agent *agent, size_t index) {
    ASSERT(index < agent->queue_count);
    return buffer_view(&agent->queue[index]);
}

bool agent_has_begun(const struct agent *agent) {
    return agent->has_begun;
}

bool agent_is_finished(const struct agent *agent) {
    return agent->state == AGENT_STATE_FINISHED;
}
