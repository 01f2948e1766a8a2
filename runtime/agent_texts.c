/* What is said of an agent: the name, exit status and line of each reason to stop, and what the
 * model is told about a turn that was cut or could not be read. Pure; see agent.h. */
#include "agent.h"

struct stop_row {
    enum agent_stop stop;
    int exit_status;
    const char *name;
    const char *text;
};

static const struct stop_row stop_rows[] = {
    {AGENT_GOES_ON, 1, "running", "still running"},
    {AGENT_STOP_ANSWER, 0, "answer", "done: the model ended with an answer"},
    {AGENT_STOP_FINISH, 0, "finish", "done: the model called finish"},
    {AGENT_STOP_TURNS, 4, "turns", "stopped: turn limit reached"},
    {AGENT_STOP_TOKENS, 4, "tokens", "stopped: token budget spent"},
    {AGENT_STOP_TIME, 4, "time", "stopped: time budget spent"},
    {AGENT_STOP_REPEAT, 1, "repeat", "stopped: the same call gave the same result again and again"},
    {AGENT_STOP_UNKNOWN, 1, "unknown_tool", "stopped: the model keeps calling unknown tools"},
    {AGENT_STOP_GARBAGE, 1, "garbage", "stopped: the model's output cannot be read"},
    {AGENT_STOP_LENGTH, 1, "length", "stopped: the model did not end its turn"},
    {AGENT_STOP_STRING, 0, "stop", "done: the model wrote a stop string"},
    {AGENT_STOP_LOOP, 1, "loop", "stopped: the model repeats one text on end"},
    {AGENT_STOP_THINKING, 1, "thinking", "stopped: the model does not end its thinking"},
    {AGENT_STOP_OPEN_CALL, 1, "open_call", "stopped: the model does not close its calls"},
    {AGENT_STOP_CONTEXT, 1, "context", "stopped: the context is full"},
    {AGENT_STOP_INTERRUPT, 130, "interrupt", "interrupted"},
    {AGENT_STOP_QUIT, 0, "quit", "done: the user left"},
    {AGENT_STOP_CALLS, 4, "calls", "stopped: budget of tool calls spent"},
    {AGENT_STOP_ENGINE, 6, "engine", "failed: the engine reported an error"},
    {AGENT_STOP_RECORD, 5, "record", "failed: a step could not be recorded"},
    {AGENT_STOP_TOOL, 3, "tool", "failed: a tool could not be run on this machine"},
};

static const struct stop_row *stop_row_get(enum agent_stop stop) {
    for (size_t i = 0; i < COUNT_OF(stop_rows); i++) {
        if (stop_rows[i].stop == stop) {
            return &stop_rows[i];
        }
    }
    return &stop_rows[0];
}

const char *agent_stop_name(enum agent_stop stop) {
    return stop_row_get(stop)->name;
}

const char *agent_stop_text(enum agent_stop stop) {
    return stop_row_get(stop)->text;
}

int agent_stop_exit_status(enum agent_stop stop) {
    return stop_row_get(stop)->exit_status;
}

bool agent_reason_is_cut(enum finish_reason reason) {
    return reason == FINISH_LOOP || reason == FINISH_THINKING || reason == FINISH_OPEN_CALL;
}

const char *agent_cut_text(enum finish_reason reason) {
    if (reason == FINISH_LOOP) {
        return "Your last turn repeated the same text again and again and was ended. Do not go on "
               "with it: call a tool, or answer in plain text.";
    }
    if (reason == FINISH_THINKING) {
        return "Your last turn was ended because its thinking did not end. Think less: call a tool "
               "now, or answer in plain text.";
    }
    if (reason == FINISH_OPEN_CALL) {
        return "Your last turn was ended because its block of calls did not end. Make one smaller "
               "call, and close the block.";
    }
    if (reason == FINISH_LENGTH) {
        return "Your last turn was ended because the context was full. It is smaller now: go on.";
    }
    return NULL;
}

bool agent_problem_is_serious(enum chat_problem problem) {
    return problem == CHAT_PROBLEM_THINKING_UNCLOSED || problem == CHAT_PROBLEM_CALL_IN_THINKING ||
           problem == CHAT_PROBLEM_BLOCK_UNCLOSED || problem == CHAT_PROBLEM_CALL_UNCLOSED ||
           problem == CHAT_PROBLEM_CALL_SYNTAX || problem == CHAT_PROBLEM_LIMIT;
}

void agent_malformed_text(const char *problem, char *out, size_t bytes) {
    int length = snprintf(
        out,
        bytes,
        "Your last turn could not be read: %s. Call a tool, or answer in plain text.",
        problem[0] != '\0' ? problem : AGENT_NOTHING_SAID
    );
    ASSERT(length > 0 && (size_t)length < bytes);
}

bool agent_message_is_of_host(const struct chat_message *message) {
    static const char *const heads[] = {
        "Your last turn ",
        "You called ",
        "Reasoning effort from now on",
        "The user took back ",
        AGENT_STOP_REMARK,
    };
    for (size_t i = 0; i < COUNT_OF(heads); i++) {
        if (message->role == CHAT_USER &&
            view_starts_with(message->content, view_of_text(heads[i]))) {
            return true;
        }
    }
    return agent_history_is_summary(message);
}
