/* See terminal.h. The terminal's place in the loop: its descriptor, timers and signals. */
#include "terminal.h"

#include "terminal_history.h"
#include "terminal_internal.h"
#include "terminal_modes.h"
#include "terminal_prompt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#define READ_BYTES      4096
#define PAUSE_TRY_MS    5
#define PAUSE_TRIES_MAX 100 /* a terminal that takes nothing is left as it is */
#define PROMPT_ROWS_MAX 12
#define WIDE_COLUMNS    70
#define HANDLE_COUNT    6
#define HOLD_MS         200 /* keys wait for a completion */
#define ASK_DELAY_MS    300 /* longer than it takes to see a question */

int64_t terminal_now_ms(const struct terminal *terminal) {
    return (int64_t)uv_now(terminal->uv);
}

void terminal_say(struct terminal *terminal, const char *text) {
    display_say(terminal->options.display, view_of_text(text));
}

static const char *prefix_of(const struct terminal *terminal, int width) {
    bool is_wide = width >= WIDE_COLUMNS;
    if (!terminal->is_asking) {
        return "> ";
    }
    if (!terminal->person.has_always) {
        return is_wide ? "allow? y once, n no and why, v view: " : "y/n/v? ";
    }
    return is_wide ? "allow? y once, a always, n no and why, v view: " : "y/a/n/v? ";
}

void terminal_draw(struct terminal *terminal) {
    if (!terminal->is_attached || terminal->is_paused) {
        return;
    }
    int width = display_width(terminal->options.display);
    int rows = display_height(terminal->options.display) / 2;
    struct prompt_request request = {
        .first = view_of_text(prefix_of(terminal, width)),
        .width = width,
        .rows_max = rows < 2                 ? 2
                    : rows > PROMPT_ROWS_MAX ? PROMPT_ROWS_MAX
                                             : (size_t)rows,
    };
    request.line = editor_line(terminal->editor, &request.cursor);
    struct display_prompt prompt = {0};
    buffer_clear(&terminal->rows);
    prompt_make(&terminal->rows, &request, &prompt.cursor_row, &prompt.cursor_column);
    prompt.rows = buffer_view(&terminal->rows);
    display_set_prompt(terminal->options.display, &prompt);
}

/* ---- events of the run ---------------------------------------------------------------------- */

static void begin_question(uv_timer_t *timer) {
    struct terminal *terminal = timer->data;
    size_t cursor = 0;
    struct view line = editor_line(terminal->editor, &cursor);
    buffer_clear(&terminal->draft);
    if (is_ok(buffer_append(&terminal->draft, line, NULL))) {
        editor_set(terminal->editor, (struct view){0});
        terminal->edits++;
    }
    terminal->is_asking = true;
    terminal_draw(terminal);
}

static void ask(struct terminal *terminal, const struct run_event *event) {
    if (event->shows_call) {
        return; /* the question stands already */
    }
    terminal_end_question(terminal);
    int status = uv_timer_start(&terminal->asking, begin_question, ASK_DELAY_MS, 0);
    ASSERT(status == 0);
}

static void saw_event(void *context, const struct run_event *event) {
    struct terminal *terminal = context;
    person_saw(&terminal->person, event);
    if (event->type == RUN_ASK) {
        ask(terminal, event);
    } else if (event->type == RUN_DECISION || event->type == RUN_TURN) {
        terminal_end_question(terminal);
        terminal->is_idle = false;
    } else if (event->type == RUN_IDLE) {
        terminal_end_question(terminal);
        terminal->is_idle = true;
    } else {
        return;
    }
    terminal_draw(terminal);
}

static void saw_size(void *context) {
    terminal_draw(context);
}

/* ---- reading -------------------------------------------------------------------------------- */

static void gone(struct terminal *terminal) {
    (void)uv_poll_stop(&terminal->poll);
    loop_input(terminal->loop, &(struct run_input){.type = RUN_INPUT_INTERRUPT});
    loop_input(terminal->loop, &(struct run_input){.type = RUN_INPUT_END});
}

static void late(uv_timer_t *timer);

void terminal_take_keys(struct terminal *terminal) {
    while (!terminal->is_held) {
        struct key key = keys_next(terminal->keys);
        if (key.type == KEY_NONE || !terminal->is_attached) {
            break;
        }
        terminal_key(terminal, &key);
    }
    uint64_t wait_ms = keys_wait_ms(terminal->keys);
    if (!terminal->is_attached) {
        return;
    }
    if (terminal->is_held) {
        (void)uv_timer_start(&terminal->waiting, late, HOLD_MS, 0);
    } else if (wait_ms > 0) {
        (void)uv_timer_start(&terminal->waiting, late, wait_ms, 0);
    } else {
        (void)uv_timer_stop(&terminal->waiting);
    }
    terminal_draw(terminal);
}

static void late(uv_timer_t *timer) {
    struct terminal *terminal = timer->data;
    if (terminal->is_held) {
        terminal->is_held = false; /* the disk is slow: keys go on */
    } else {
        keys_stop_waiting(terminal->keys);
    }
    terminal_take_keys(terminal);
}

static void readable(uv_poll_t *handle, int status, int events) {
    struct terminal *terminal = handle->data;
    unsigned char bytes[READ_BYTES];
    (void)events;
    ssize_t count = status < 0 ? 0 : read(terminal->fd, bytes, sizeof bytes);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (count <= 0) { /* hung up: the end, or EIO */
        gone(terminal);
        return;
    }
    keys_add(terminal->keys, view_of(bytes, (size_t)count));
    if (!terminal->is_held) {
        terminal_take_keys(terminal);
    }
}

/* ---- suspend and resume --------------------------------------------------------------------- */

static result read_on(struct terminal *terminal, struct error *error) {
    TRY(terminal_modes_enter(terminal->options.input, terminal->options.screen, error));
    int status = uv_poll_start(&terminal->poll, UV_READABLE, readable);
    if (status != 0) {
        terminal_modes_leave();
        FAIL_FOREIGN(error, IO, -status, "cannot watch the terminal: %s", uv_strerror(status));
    }
    return OK;
}

static void go_on(struct terminal *terminal) {
    if (!terminal->is_attached || !terminal_is_ours(terminal->options.input)) {
        return; /* in the background: until the next SIGCONT */
    }
    terminal_modes_leave();
    if (is_failed(read_on(terminal, NULL))) {
        gone(terminal);
        return;
    }
    terminal->is_paused = false;
    struct display_options size = display_options_for(terminal->options.screen, false);
    display_pause(terminal->options.display, false);
    display_set_size(terminal->options.display, size.width, size.height);
    terminal_draw(terminal);
}

static void continued(uv_signal_t *handle, int number) {
    struct terminal *terminal = handle->data;
    (void)number;
    go_on(terminal);
}

static void stopped(uv_signal_t *handle, int number);

/* The signal's own default stops the process, unless nobody could continue it. */
static void stop_process(struct terminal *terminal) {
    terminal_modes_leave();
    (void)uv_signal_stop(&terminal->stop);
    (void)kill(getpid(), SIGTSTP);
    int status = uv_signal_start(&terminal->stop, stopped, SIGTSTP);
    ASSERT(status == 0); /* it was watched before */
    go_on(terminal);
}

static void pause_when_written(uv_timer_t *timer) {
    struct terminal *terminal = timer->data;
    if (output_is_idle(terminal->options.output) || terminal->pause_tries++ == PAUSE_TRIES_MAX) {
        (void)uv_timer_stop(timer);
        stop_process(terminal);
    }
}

void terminal_pause(struct terminal *terminal) {
    if (terminal->is_paused) {
        return;
    }
    terminal->is_paused = true;
    terminal->pause_tries = 0;
    (void)uv_poll_stop(&terminal->poll);
    display_pause(terminal->options.display, true);
    int status = uv_timer_start(&terminal->pausing, pause_when_written, 0, PAUSE_TRY_MS);
    ASSERT(status == 0);
}

static void stopped(uv_signal_t *handle, int number) {
    (void)number;
    terminal_pause(handle->data);
}

/* ---- attach, detach ------------------------------------------------------------------------- */

/* The descriptor is put into non-blocking mode, which others who share its description would see. */
static result open_again(struct terminal *terminal, struct error *error) {
    char name[128];
    int length = snprintf(name, sizeof name, "/proc/self/fd/%d", terminal->options.input);
    ASSERT(length > 0);
    terminal->fd = open(name, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (terminal->fd < 0 && ttyname_r(terminal->options.input, name, sizeof name) == 0) {
        terminal->fd = open(name, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    }
    if (terminal->fd < 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "cannot open the terminal: %s", strerror(code));
    }
    return OK;
}

static void closed(uv_handle_t *handle) {
    struct terminal *terminal = handle->data;
    if (handle == (uv_handle_t *)&terminal->poll) {
        fd_cleanup(&terminal->fd);
        terminal->fd = -1;
    }
}

static void detach(void *context) {
    struct terminal *terminal = context;
    terminal->is_attached = false;
    display_set_front(terminal->options.display, NULL);
    terminal_modes_leave();
    uv_handle_t *handles[HANDLE_COUNT] = {
        (uv_handle_t *)&terminal->poll,
        (uv_handle_t *)&terminal->waiting,
        (uv_handle_t *)&terminal->pausing,
        (uv_handle_t *)&terminal->asking,
        (uv_handle_t *)&terminal->stop,
        (uv_handle_t *)&terminal->go_on,
    };
    for (size_t i = 0; i < COUNT_OF(handles); i++) {
        uv_close(handles[i], closed);
    }
}

static result handles_start(struct terminal *terminal, struct error *error) {
    int status = uv_timer_init(terminal->uv, &terminal->waiting);
    status |= uv_timer_init(terminal->uv, &terminal->pausing);
    status |= uv_timer_init(terminal->uv, &terminal->asking);
    status |= uv_signal_init(terminal->uv, &terminal->stop);
    status |= uv_signal_init(terminal->uv, &terminal->go_on);
    ASSERT(status == 0); /* these calls only fill in the handle */
    terminal->poll.data = terminal;
    terminal->waiting.data = terminal;
    terminal->pausing.data = terminal;
    terminal->asking.data = terminal;
    terminal->stop.data = terminal;
    terminal->go_on.data = terminal;
    status = uv_signal_start(&terminal->stop, stopped, SIGTSTP);
    if (status == 0) {
        status = uv_signal_start(&terminal->go_on, continued, SIGCONT);
    }
    if (status != 0) {
        FAIL_FOREIGN(error, IO, -status, "cannot watch signals: %s", uv_strerror(status));
    }
    return read_on(terminal, error);
}

static result attach(void *context, struct uv_loop_s *uv, struct loop *loop, struct error *error) {
    struct terminal *terminal = context;
    terminal->uv = uv;
    terminal->loop = loop;
    terminal->person.loop = loop;
    terminal->person.display = terminal->options.display;
    TRY(open_again(terminal, error));
    int status = uv_poll_init(uv, &terminal->poll, terminal->fd);
    if (status != 0) {
        fd_cleanup(&terminal->fd);
        terminal->fd = -1;
        FAIL_FOREIGN(error, IO, -status, "cannot watch the terminal: %s", uv_strerror(status));
    }
    terminal->is_attached = true;
    result started = handles_start(terminal, error);
    if (is_failed(started)) {
        detach(terminal);
        return started;
    }
    const struct display_front front = {terminal, saw_event, saw_size};
    display_set_front(terminal->options.display, &front);
    terminal->is_idle = false;
    terminal_draw(terminal);
    (void)uv_timer_start(&terminal->waiting, late, 0, 0); /* keys that an earlier run left */
    return OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void add_line(void *context, struct view line) {
    struct terminal *terminal = context;
    editor_remember(terminal->editor, line);
}

result terminal_create(
    struct terminal **out, const struct terminal_options *options, struct error *error
) {
    ASSERT(display_is_live(options->display));
    struct terminal *terminal = calloc(1, sizeof *terminal);
    if (terminal == NULL) {
        FAIL(error, MEMORY, "no memory for a terminal");
    }
    terminal->options = *options;
    terminal->front = (struct run_front){terminal, attach, detach};
    terminal->fd = -1;
    terminal->escape_ms = INT64_MIN / 2;
    terminal->interrupt_ms = INT64_MIN / 2;
    buffer_init(&terminal->draft, 4 * EDITOR_BYTES_MAX);
    buffer_init(&terminal->rows, EDITOR_BYTES_MAX);
    buffer_init(&terminal->unwritten, HISTORY_FILE_BYTES_MAX);
    buffer_init(&terminal->writing, HISTORY_FILE_BYTES_MAX);
    buffer_init(&terminal->to_complete, 4 * EDITOR_BYTES_MAX);
    completion_init(&terminal->completion);
    result created = keys_create(&terminal->keys, error);
    if (is_ok(created)) {
        created = editor_create(&terminal->editor, error);
    }
    if (is_failed(created)) {
        terminal_destroy(terminal);
        return created;
    }
    if (options->workspace != NULL) { /* without it no names of files are completed */
        result_ignore(beneath_open(options->workspace, &terminal->workspace, NULL));
    }
    if (options->history != NULL) {
        history_load(options->history, add_line, terminal);
    }
    *out = terminal;
    return OK;
}

void terminal_destroy(struct terminal *terminal) {
    if (terminal == NULL) {
        return;
    }
    ASSERT(!terminal->is_attached && !terminal->is_remembering && !terminal->is_completing);
    keys_destroy(terminal->keys);
    editor_destroy(terminal->editor);
    if (terminal->workspace != NULL) {
        beneath_close(terminal->workspace);
    }
    buffer_deinit(&terminal->draft);
    buffer_deinit(&terminal->rows);
    buffer_deinit(&terminal->unwritten);
    buffer_deinit(&terminal->writing);
    buffer_deinit(&terminal->to_complete);
    completion_deinit(&terminal->completion);
    free(terminal);
}

const struct run_front *terminal_front(const struct terminal *terminal) {
    return &terminal->front;
}
