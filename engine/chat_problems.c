/* Names and explanations of what can be wrong with model output. */
#include "chat.h"

static const struct {
    const char *name;
    const char *text;
} problems[] = {
    [CHAT_PROBLEM_THINKING_UNCLOSED] =
        {"thinking_unclosed", "The turn ended before the reasoning was closed with </think>."},
    [CHAT_PROBLEM_CALL_IN_THINKING] =
        {"call_in_thinking", "A calls block was opened before the reasoning was closed."},
    [CHAT_PROBLEM_STRAY_MARKER] =
        {"stray_marker", "A control token stood where none may stand; it was dropped."},
    [CHAT_PROBLEM_BLOCK_UNCLOSED] =
        {"block_unclosed", "The turn ended before the calls block was closed."},
    [CHAT_PROBLEM_CALL_UNCLOSED] =
        {"call_unclosed", "The turn ended in the middle of a call; the call was not made."},
    [CHAT_PROBLEM_CALL_SYNTAX] =
        {"call_syntax", "Part of a calls block could not be read and was skipped."},
    [CHAT_PROBLEM_TOOL_UNKNOWN] = {"tool_unknown", "There is no tool of this name."},
    [CHAT_PROBLEM_PARAMETER_REPEATED] =
        {"parameter_repeated", "A parameter was given twice; the first value was kept."},
    [CHAT_PROBLEM_VALUE_INVALID] =
        {"value_invalid", "A value given with string=\"false\" is not JSON; it was kept as text."},
    [CHAT_PROBLEM_TEXT_AFTER_CALLS] =
        {"text_after_calls", "Text followed the calls block; it was dropped."},
    [CHAT_PROBLEM_TEXT_INVALID] =
        {"text_invalid", "Bytes that are no UTF-8 text were replaced by U+FFFD."},
    [CHAT_PROBLEM_LIMIT] = {"limit", "A size limit was reached; the rest was dropped."},
    [CHAT_PROBLEM_END_MISSING] =
        {"end_missing", "The turn stopped before the model ended it itself."},
};

const char *chat_problem_name(enum chat_problem problem) {
    ASSERT(problem >= 0 && (size_t)problem < COUNT_OF(problems));
    return problems[problem].name;
}

const char *chat_problem_text(enum chat_problem problem) {
    ASSERT(problem >= 0 && (size_t)problem < COUNT_OF(problems));
    return problems[problem].text;
}
