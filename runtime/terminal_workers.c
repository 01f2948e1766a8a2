/* What the terminal does on a worker: lines for the history's file, and names of files. */
#include "terminal_history.h"
#include "terminal_internal.h"

/* ---- history -------------------------------------------------------------------------------- */

static void remember_work(uv_work_t *work) {
    struct terminal *terminal = work->data;
    struct cursor cursor = cursor_over(buffer_view(&terminal->writing));
    struct view line;
    while (cursor_take_until(&cursor, '\0', &line)) {
        /* A disk that is full, or a directory that is gone: the line is known until the end. */
        result_ignore(history_append(terminal->options.history, line, NULL));
    }
}

static void remember_more(struct terminal *terminal);

static void remember_done(uv_work_t *work, int status) {
    struct terminal *terminal = work->data;
    (void)status;
    terminal->is_remembering = false;
    remember_more(terminal);
}

static void remember_more(struct terminal *terminal) {
    if (terminal->is_remembering || terminal->unwritten.length == 0) {
        return;
    }
    struct buffer empty = terminal->writing;
    terminal->writing = terminal->unwritten;
    terminal->unwritten = empty;
    buffer_clear(&terminal->unwritten);
    terminal->remember.data = terminal;
    int status = uv_queue_work(terminal->uv, &terminal->remember, remember_work, remember_done);
    ASSERT(status == 0); /* fails only without a work function */
    terminal->is_remembering = true;
}

void terminal_remember(struct terminal *terminal, struct view line) {
    editor_remember(terminal->editor, line);
    if (terminal->options.history == NULL || line.length > HISTORY_LINE_BYTES_MAX) {
        return;
    }
    size_t before = terminal->unwritten.length;
    if (is_failed(buffer_append(&terminal->unwritten, line, NULL)) ||
        is_failed(buffer_append_byte(&terminal->unwritten, '\0', NULL))) {
        terminal->unwritten.length = before; /* known until the end */
    }
    remember_more(terminal);
}

/* ---- completion ----------------------------------------------------------------------------- */

static void complete_work(uv_work_t *work) {
    struct terminal *terminal = work->data;
    completion_find(
        &terminal->completion, terminal->workspace, buffer_view(&terminal->to_complete)
    );
}

static void take_completion(struct terminal *terminal) {
    struct completion *found = &terminal->completion;
    if (found->insert.length > 0) {
        (void)editor_insert(terminal->editor, buffer_view(&found->insert));
        terminal->edits++;
        terminal_draw(terminal);
    } else if (found->count > 1) {
        char more[48] = "";
        if (found->count > COMPLETION_SHOWN) {
            int length =
                snprintf(more, sizeof more, "... %zu more\n", found->count - COMPLETION_SHOWN);
            ASSERT(length > 0);
        }
        result_ignore(buffer_append_text(&found->candidates, more, NULL));
        terminal_say(terminal, buffer_text(&found->candidates));
    }
}

static void complete_done(uv_work_t *work, int status) {
    struct terminal *terminal = work->data;
    (void)status;
    terminal->is_completing = false;
    if (!terminal->is_attached) {
        return;
    }
    if (terminal->edits == terminal->complete_edits) { /* else the person has gone on */
        take_completion(terminal);
    }
    if (terminal->is_held) {
        terminal->is_held = false;
        terminal_take_keys(terminal);
    }
}

void terminal_complete(struct terminal *terminal) {
    size_t cursor = 0;
    struct view line = editor_line(terminal->editor, &cursor);
    if (terminal->is_completing) {
        return;
    }
    buffer_clear(&terminal->to_complete);
    completion_deinit(&terminal->completion);
    completion_init(&terminal->completion);
    if (is_failed(buffer_append(&terminal->to_complete, view_slice(line, 0, cursor), NULL))) {
        return;
    }
    terminal->complete_edits = terminal->edits;
    terminal->complete.data = terminal;
    int status = uv_queue_work(terminal->uv, &terminal->complete, complete_work, complete_done);
    ASSERT(status == 0);
    terminal->is_completing = true;
    terminal->is_held = true;
}
