/* What keys and whole lines do. */
#include "terminal_commands.h"
#include "terminal_internal.h"

#include <signal.h>
#include <unistd.h>

#define ESCAPE_TWICE_MS 1000

static void send_input(struct terminal *terminal, enum run_input_type type, struct view text) {
    loop_input(terminal->loop, &(struct run_input){.type = type, .text = text});
}

static void clear_line(struct terminal *terminal) {
    editor_set(terminal->editor, (struct view){0});
    terminal->edits++;
}

static struct view trimmed(struct view text) {
    while (text.length > 0 && strchr(" \t\n", text.data[text.length - 1]) != NULL) {
        text.length--;
    }
    size_t from = 0;
    while (from < text.length && strchr(" \t\n", text.data[from]) != NULL) {
        from++;
    }
    return view_slice(text, from, text.length - from);
}

/* ---- answers -------------------------------------------------------------------------------- */

void terminal_end_question(struct terminal *terminal) {
    (void)uv_timer_stop(&terminal->asking);
    if (terminal->is_asking) {
        terminal->is_asking = false;
        editor_set(terminal->editor, buffer_view(&terminal->draft));
        terminal->edits++;
        buffer_clear(&terminal->draft);
    }
}

/* The first word of the line, in full or its first letter. */
static bool is_word(struct view line, const char *word, struct view *rest) {
    size_t end = 0;
    while (end < line.length && strchr(" ,:;\n", line.data[end]) == NULL) {
        end++;
    }
    struct view first = view_slice(line, 0, end);
    *rest = trimmed(view_slice(line, end + 1, line.length));
    return view_equals_text(first, word) ||
           (first.length == 1 && first.data[0] == (unsigned char)word[0]);
}

/* A word of consent with anything behind it is none: it may have been typed for something else. */
static void answer(struct terminal *terminal, struct view line) {
    struct view rest;
    struct run_input input = {.type = RUN_INPUT_ANSWER, .question = terminal->question};
    if (is_word(line, "yes", &rest) && rest.length == 0) {
        input.answer = RUN_ANSWER_YES;
    } else if (terminal->has_always && is_word(line, "always", &rest) && rest.length == 0) {
        input.answer = RUN_ANSWER_ALWAYS;
    } else if (is_word(line, "no", &rest)) {
        input.answer = RUN_ANSWER_NO;
        input.text = rest;
    } else {
        terminal_say(
            terminal,
            terminal->has_always ? "y: once, a: always, n: no, and why if you like"
                                 : "y: once, n: no, and why if you like"
        );
        return;
    }
    /* The text lies in the editor, which gets the draft back. */
    CLEANUP(buffer_deinit) struct buffer remark;
    buffer_init(&remark, EDITOR_BYTES_MAX);
    result_ignore(buffer_append(&remark, input.text, NULL)
    ); /* without memory a no without remark */
    input.text = buffer_view(&remark);
    terminal_end_question(terminal);
    loop_input(terminal->loop, &input);
}

/* ---- lines ---------------------------------------------------------------------------------- */

static void run_local(struct terminal *terminal, const struct terminal_command *command) {
    if (command->type == TERMINAL_HELP) {
        CLEANUP(buffer_deinit) struct buffer text;
        buffer_init(&text, 16384);
        if (is_ok(terminal_help(&text, NULL))) {
            terminal_say(terminal, buffer_text(&text));
        }
    } else {
        display_toggle_thinking(terminal->options.display);
    }
}

/* False when the line is a message. */
static bool run_command_line(struct terminal *terminal, struct view line) {
    const struct terminal_command *command = NULL;
    const char *nearest = NULL;
    struct view argument = {0};
    if (!terminal_command_parse(line, &command, &argument, &nearest)) {
        return false;
    }
    if (command == NULL) {
        char text[160];
        int length = snprintf(
            text,
            sizeof text,
            "there is no command %.*s%s%s%s; /help lists them",
            (int)(line.length > 40 ? 40 : line.length),
            line.data,
            nearest != NULL ? ": did you mean /" : "",
            nearest != NULL ? nearest : "",
            nearest != NULL ? "?" : ""
        );
        ASSERT(length > 0);
        terminal_say(terminal, text);
    } else if (command->type == TERMINAL_RUN) {
        loop_input(
            terminal->loop,
            &(struct run_input
            ){.type = RUN_INPUT_COMMAND, .command = command->run_command, .text = argument}
        );
    } else {
        run_local(terminal, command);
    }
    return true;
}

static void submit(struct terminal *terminal) {
    size_t cursor = 0;
    struct view line = editor_line(terminal->editor, &cursor);
    if (line.length > 0 && cursor == line.length && line.data[cursor - 1] == '\\') {
        (void)editor_key(terminal->editor, &(struct key){.type = KEY_BACKSPACE});
        (void)editor_key(terminal->editor, &(struct key){.type = KEY_NEWLINE});
        return;
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 4 * EDITOR_BYTES_MAX);
    if (is_failed(buffer_append(&text, trimmed(line), NULL))) {
        terminal_say(terminal, "no memory for this line");
        return;
    }
    struct view whole = buffer_view(&text);
    if (terminal->is_asking) {
        clear_line(terminal);
        answer(terminal, whole);
        return;
    }
    clear_line(terminal);
    if (whole.length == 0) {
        return;
    }
    terminal->interrupts = 0;
    terminal_remember(terminal, whole);
    if (!run_command_line(terminal, whole)) {
        send_input(terminal, RUN_INPUT_MESSAGE, whole);
    }
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void interrupt(struct terminal *terminal) {
    int64_t now_ms = terminal_now_ms(terminal);
    if (terminal->is_idle && !terminal->is_asking && !editor_is_empty(terminal->editor)) {
        clear_line(terminal);
        return;
    }
    bool is_again = now_ms - terminal->interrupt_ms <= RUN_INTERRUPT_MS;
    terminal->interrupt_ms = now_ms;
    terminal->interrupts = is_again ? terminal->interrupts + 1 : 1;
    if (terminal->interrupts > 2) { /* twice did not end it: as a signal from outside would */
        (void)kill(getpid(), SIGTERM);
        return;
    }
    send_input(terminal, RUN_INPUT_INTERRUPT, (struct view){0});
}

/* Twice: what is typed replaces what the model does. */
static void escape(struct terminal *terminal) {
    int64_t now_ms = terminal_now_ms(terminal);
    bool is_twice = now_ms - terminal->escape_ms <= ESCAPE_TWICE_MS;
    terminal->escape_ms = is_twice ? INT64_MIN / 2 : now_ms;
    if (is_twice && !terminal->is_idle && !terminal->is_asking) {
        send_input(terminal, RUN_INPUT_INTERRUPT, (struct view){0});
        submit(terminal);
    }
}

static void redraw_all(struct terminal *terminal) {
    display_pause(terminal->options.display, true);
    output_append_text(terminal->options.output, "\x1b[2J\x1b[H");
    display_pause(terminal->options.display, false);
}

/* Keys that are no editing; false: they are. */
static bool act(struct terminal *terminal, const struct key *key) {
    bool is_control = key->type == KEY_CONTROL;
    if (key->type == KEY_ENTER) {
        submit(terminal);
    } else if (key->type == KEY_TAB) {
        terminal_complete(terminal);
    } else if (key->type == KEY_ESCAPE) {
        escape(terminal);
    } else if (is_control && key->letter == 'C') {
        interrupt(terminal);
    } else if (is_control && key->letter == 'D' && editor_is_empty(terminal->editor)) {
        send_input(terminal, RUN_INPUT_END, (struct view){0});
    } else if (is_control && key->letter == 'D') {
        return editor_key(terminal->editor, &(struct key){.type = KEY_DELETE});
    } else if (is_control && key->letter == 'L') {
        redraw_all(terminal);
    } else if (is_control && key->letter == 'T') {
        display_toggle_thinking(terminal->options.display);
    } else if (is_control && key->letter == 'Z') {
        terminal_pause(terminal);
    } else {
        return false;
    }
    return true;
}

void terminal_key(struct terminal *terminal, const struct key *key) {
    if (act(terminal, key)) {
        return;
    }
    if (editor_key(terminal->editor, key)) {
        terminal->edits++;
    } else if (key->type == KEY_TEXT) {
        terminal_say(terminal, "the line would be too long: nothing was inserted");
    }
    if (key->type == KEY_TEXT && key->is_cut) {
        terminal_say(terminal, "what was pasted is too long: its end is missing");
    }
}
