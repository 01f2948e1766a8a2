/* See person.h. */
#include "person.h"

#include "terminal_commands.h"

static void say(struct person *person, const char *text) {
    display_say(person->display, view_of_text(text));
}

void person_saw(struct person *person, const struct run_event *event) {
    if (event->type == RUN_ASK) {
        person->is_asked = true;
        person->has_always = event->has_always;
        person->question = event->question;
    } else if (event->type == RUN_DECISION || event->type == RUN_TURN || event->type == RUN_IDLE || event->type == RUN_TOOL_RESULT) {
        person->is_asked = false;
    }
}

struct view person_trimmed(struct view text) {
    while (text.length > 0 && strchr(" \t\r\n", text.data[text.length - 1]) != NULL) {
        text.length--;
    }
    size_t from = 0;
    while (from < text.length && strchr(" \t\r\n", text.data[from]) != NULL) {
        from++;
    }
    return view_slice(text, from, text.length - from);
}

/* The first word of the line, in full or its first letter. */
static bool is_word(struct view line, const char *word, struct view *rest) {
    size_t end = 0;
    while (end < line.length && strchr(" ,:;\n", line.data[end]) == NULL) {
        end++;
    }
    struct view first = view_slice(line, 0, end);
    *rest = person_trimmed(view_slice(line, end + 1, line.length));
    return view_equals_text(first, word) ||
           (first.length == 1 && first.data[0] == (unsigned char)word[0]);
}

/* A word of consent with anything behind it is none: it may have been typed for something else. */
bool person_answer(const struct person *person, struct view line, struct run_input *out) {
    struct view rest;
    struct run_input input = {.type = RUN_INPUT_ANSWER, .question = person->question};
    if (is_word(line, "yes", &rest) && rest.length == 0) {
        input.answer = RUN_ANSWER_YES;
    } else if (person->has_always && is_word(line, "always", &rest) && rest.length == 0) {
        input.answer = RUN_ANSWER_ALWAYS;
    } else if (is_word(line, "view", &rest) && rest.length == 0) {
        input.answer = RUN_ANSWER_VIEW;
    } else if (is_word(line, "no", &rest)) {
        input.answer = RUN_ANSWER_NO;
        input.text = rest;
    } else {
        return false;
    }
    *out = input;
    return true;
}

const char *person_answers(const struct person *person) {
    return person->has_always ? "y: once, a: always, n: no, and why if you like, v: view all of it"
                              : "y: once, n: no, and why if you like, v: view all of it";
}

static void run_local(struct person *person, const struct terminal_command *command) {
    if (command->type == TERMINAL_HELP) {
        CLEANUP(buffer_deinit) struct buffer text;
        buffer_init(&text, 16384);
        if (is_ok(terminal_help(&text, NULL))) {
            say(person, buffer_text(&text));
        }
    } else {
        display_toggle_thinking(person->display);
    }
}

static void say_unknown(struct person *person, struct view line, const char *nearest) {
    char text[160];
    int length = snprintf(
        text,
        sizeof text,
        "there is no command %.*s%s%s%s (/help lists them)",
        (int)(line.length > 40 ? 40 : line.length),
        line.data,
        nearest != NULL ? "; did you mean /" : "",
        nearest != NULL ? nearest : "",
        nearest != NULL ? "?" : ""
    );
    ASSERT(length > 0);
    say(person, text);
}

bool person_command(struct person *person, struct view line) {
    const struct terminal_command *command = NULL;
    const char *nearest = NULL;
    struct view argument = {0};
    if (!terminal_command_parse(line, &command, &argument, &nearest)) {
        return false;
    }
    if (command == NULL) {
        say_unknown(person, line, nearest);
    } else if (command->type == TERMINAL_RUN) {
        loop_input(
            person->loop,
            &(struct run_input
            ){.type = RUN_INPUT_COMMAND, .command = command->run_command, .text = argument}
        );
    } else {
        run_local(person, command);
    }
    return true;
}
