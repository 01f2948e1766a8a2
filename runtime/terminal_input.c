/* What keys and whole lines do. */
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

static void answer(struct terminal *terminal, struct view line) {
    struct run_input input;
    if (!person_answer(&terminal->person, line, &input)) {
        if (!person_command(&terminal->person, line)) {
            terminal_say(terminal, person_answers(&terminal->person));
        }
        return;
    }
    if (input.answer != RUN_ANSWER_VIEW) {
        terminal_end_question(terminal);
    }
    loop_input(terminal->loop, &input);
}

/* ---- lines ---------------------------------------------------------------------------------- */

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
    if (is_failed(buffer_append(&text, person_trimmed(line), NULL))) {
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
    if (!person_command(&terminal->person, whole)) {
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
        loop_input(
            terminal->loop, &(struct run_input){.type = RUN_INPUT_INTERRUPT, .is_steering = true}
        );
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
