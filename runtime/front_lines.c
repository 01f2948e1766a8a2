/* See front_lines.h. A pipe or terminal is a stream of libuv's; a file is read in pieces. */
#include "front_lines.h"

#include "person.h"

#include "base/json.h"
#include <fcntl.h>
#include <uv.h>

#define LINE_BYTES_MAX  ((size_t)2 << 20) /* a message of 1 MiB, escaped */
#define PIECE_BYTES_MAX ((size_t)64 << 10)

struct front_lines {
    struct run_front front;
    struct front_lines_options options;
    struct person person; /* not JSON */
    struct loop *loop;
    uv_loop_t *uv;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tty_t tty;
    } from;
    uv_fs_t read;    /* of a file */
    uv_timer_t turn; /* events come while the loop is busy: a line waits for its next turn */
    bool is_file, is_attached;
    bool waits_for_turn; /* lines count when the run waits for one */
    bool is_reading, has_ended, end_is_sent;
    char piece[PIECE_BYTES_MAX];
    size_t piece_from, piece_length; /* what of it is still to be looked at */
    struct buffer line;
    bool line_is_long;
};

/* ---- lines ---------------------------------------------------------------------------------- */

static bool word_parse(struct view word, const char *const *names, size_t count, size_t *out) {
    for (size_t i = 0; i < count; i++) {
        if (view_equals_text(word, names[i])) {
            *out = i;
            return true;
        }
    }
    return false;
}

result run_input_parse(struct json_value object, struct run_input *out, struct error *error) {
    static const char *const types[] = {"message", "interrupt", "answer", "command", "end"};
    static const char *const commands[] = {
        "effort",
        "compact",
        "fork",
        "rewind",
        "undo",
        "diff",
        "budget",
        "model",
        "sessions",
        "status",
        "permissions",
        "clear",
        "quit"};
    static const char *const answers[] = {"yes", "always", "no"};
    struct view word;
    size_t index = 0;
    struct run_input input = {0};
    TRY(json_get_string(object, "type", &word, error));
    if (!word_parse(word, types, COUNT_OF(types), &index)) {
        FAIL(error, INVALID_INPUT, "no such type: %.*s", VIEW_ARGUMENTS(word));
    }
    input.type = (enum run_input_type)index;
    if (!json_as_string(json_get(object, "text"), &input.text)) {
        input.text = view_of(NULL, 0);
    }
    if (input.type == RUN_INPUT_COMMAND) {
        TRY(json_get_string(object, "command", &word, error));
        if (!word_parse(word, commands, COUNT_OF(commands), &index)) {
            FAIL(error, INVALID_INPUT, "no such command: %.*s", VIEW_ARGUMENTS(word));
        }
        input.command = (enum run_command)index;
    }
    if (input.type == RUN_INPUT_ANSWER) {
        int64_t question = 0;
        TRY(json_get_i64(object, "question", &question, error));
        TRY(json_get_string(object, "answer", &word, error));
        if (question < 0 || !word_parse(word, answers, COUNT_OF(answers), &index)) {
            FAIL(error, INVALID_INPUT, "no such answer: %.*s", VIEW_ARGUMENTS(word));
        }
        input.answer = (enum run_answer)index;
        input.question = (uint64_t)question;
    }
    *out = input;
    return OK;
}

static void line_json(struct front_lines *front, struct view line) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct error error = {0};
    struct run_input input;
    result parsed = json_parse(line, NULL, &document, &error);
    if (is_ok(parsed)) {
        parsed = run_input_parse(json_root(document), &input, &error);
    }
    if (is_ok(parsed)) {
        loop_input(front->loop, &input);
    } else {
        front->options.say(front->options.context, error.message);
    }
}

/* An answer while a question stands, a command, or a message. */
static void line_text(struct front_lines *front, struct view line) {
    struct run_input input = {.type = RUN_INPUT_MESSAGE, .text = line};
    if (front->person.is_asked && person_answer(&front->person, line, &input)) {
        loop_input(front->loop, &input);
    } else if (person_command(&front->person, line)) {
        return;
    } else if (front->person.is_asked) {
        front->options.say(front->options.context, person_answers(&front->person));
    } else {
        loop_input(front->loop, &input);
    }
}

static void line_ended(struct front_lines *front) {
    struct view line = buffer_view(&front->line);
    while (line.length > 0 && strchr("\r\t ", line.data[line.length - 1]) != NULL) {
        line.length--;
    }
    if (front->line_is_long) {
        front->options.say(
            front->options.context, "a line of the input is too long and was left out"
        );
    } else if (line.length > 0 && front->options.is_json) {
        line_json(front, line);
    } else if (line.length > 0) {
        line_text(front, line);
    }
    buffer_clear(&front->line);
    front->line_is_long = false;
}

/* Takes a line when there is one; false: more is to be read. */
static bool take_line(struct front_lines *front) {
    while (front->piece_from < front->piece_length) {
        unsigned char byte = (unsigned char)front->piece[front->piece_from++];
        if (byte == '\n') {
            line_ended(front);
            return true;
        }
        if (is_failed(buffer_append_byte(&front->line, byte, NULL))) {
            front->line_is_long = true; /* the rest of it is dropped */
        }
    }
    return false;
}

static void read_on(struct front_lines *front);

/* Lines as far as they count now, then the next piece. */
static void pump(struct front_lines *front) {
    while (front->is_attached && !loop_begins_anew(front->loop) &&
           (!front->waits_for_turn || loop_waits(front->loop))) {
        if (take_line(front)) {
            continue;
        }
        if (front->has_ended && front->line.length > 0) {
            line_ended(front); /* without a line feed */
        } else if (front->has_ended && !front->end_is_sent) {
            front->end_is_sent = true;
            loop_input(front->loop, &(struct run_input){.type = RUN_INPUT_END});
        } else {
            break;
        }
    }
    if (front->is_attached && !front->has_ended && front->piece_from == front->piece_length &&
        !loop_begins_anew(front->loop)) {
        read_on(front);
    }
}

static void turn_came(uv_timer_t *timer) {
    pump(timer->data);
}

static void saw_event(void *context, const struct run_event *event) {
    struct front_lines *front = context;
    person_saw(&front->person, event);
    if (event->type == RUN_ASK && !event->shows_call) {
        front->options.say(front->options.context, person_answers(&front->person));
    }
    if (front->waits_for_turn) {
        int status = uv_timer_start(&front->turn, turn_came, 0, 0);
        ASSERT(status == 0); /* it has a callback */
    }
}

static void saw_size(void *context) {
    (void)context; /* lines are as long as they are */
}

static void piece_came(struct front_lines *front, ssize_t count) {
    front->is_reading = false;
    front->piece_from = 0;
    front->piece_length = count > 0 ? (size_t)count : 0;
    front->has_ended = count <= 0;
    if (front->is_attached) { /* else it is kept for the next run */
        pump(front);
    }
}

/* ---- reading -------------------------------------------------------------------------------- */

static void piece_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    struct front_lines *front = handle->data;
    (void)suggested;
    *out = uv_buf_init(front->piece, sizeof front->piece);
}

static void stream_came(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
    (void)buffer;
    if (count != 0) {
        (void)uv_read_stop(stream);
        piece_came(stream->data, count);
    }
}

static void file_came(uv_fs_t *request) {
    struct front_lines *front = request->data;
    ssize_t count = request->result;
    uv_fs_req_cleanup(request);
    piece_came(front, count);
}

static void read_on(struct front_lines *front) {
    if (front->is_reading) {
        return;
    }
    front->is_reading = true;
    int status = 0;
    if (front->is_file) {
        uv_buf_t piece = uv_buf_init(front->piece, sizeof front->piece);
        front->read.data = front;
        status = uv_fs_read(front->uv, &front->read, front->options.fd, &piece, 1, -1, file_came);
    } else {
        status = uv_read_start(&front->from.stream, piece_allocate, stream_came);
    }
    ASSERT(status == 0); /* it is only queued, or a stream that was read before */
}

static void front_detach(void *context) {
    struct front_lines *front = context;
    front->is_attached = false;
    if (!front->options.is_json) {
        display_set_front(front->options.display, NULL);
    }
    uv_close((uv_handle_t *)&front->turn, NULL);
    if (!front->is_file) {
        uv_close(&front->from.handle, NULL);
        front->is_reading = false;
    }
}

static result open_stream(struct front_lines *front, uv_handle_type type, struct error *error) {
    int own = fcntl(front->options.fd, F_DUPFD_CLOEXEC, 0); /* its handle closes it */
    int status = own < 0 ? UV_EMFILE : 0;
    if (status == 0) {
        status = type == UV_TTY ? uv_tty_init(front->uv, &front->from.tty, own, 1)
                                : uv_pipe_init(front->uv, &front->from.pipe, 0);
        front->is_attached = status == 0;
    }
    if (status == 0 && type != UV_TTY) {
        status = uv_pipe_open(&front->from.pipe, own);
    }
    if (status == 0) {
        front->from.handle.data = front;
    }
    if (status != 0) {
        FAIL_FOREIGN(error, IO, -status, "cannot read the input: %s", uv_strerror(status));
    }
    return OK;
}

static result
front_attach(void *context, struct uv_loop_s *uv, struct loop *loop, struct error *error) {
    struct front_lines *front = context;
    front->loop = loop;
    front->uv = uv;
    front->person.loop = loop;
    front->person.display = front->options.display;
    uv_handle_type type = uv_guess_handle(front->options.fd);
    front->is_file = type != UV_TTY && type != UV_NAMED_PIPE && type != UV_TCP;
    front->waits_for_turn = type != UV_TTY && !front->options.is_json;
    int status = uv_timer_init(uv, &front->turn);
    ASSERT(status == 0); /* it only fills in the handle */
    front->turn.data = front;
    result opened = front->is_file ? OK : open_stream(front, type, error);
    if (is_failed(opened)) {
        front->is_file = !front->is_attached; /* nothing else is to be closed */
        front_detach(front);
        return opened;
    }
    front->is_attached = true;
    if (!front->options.is_json) {
        display_set_front(
            front->options.display, &(struct display_front){front, saw_event, saw_size}
        );
    }
    status =
        uv_timer_start(&front->turn, turn_came, 0, 0); /* what an earlier run left, then more */
    ASSERT(status == 0);                               /* it has a callback */
    return OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

result front_lines_create(
    struct front_lines **out, const struct front_lines_options *options, struct error *error
) {
    struct front_lines *front = calloc(1, sizeof *front);
    if (front == NULL) {
        FAIL(error, MEMORY, "no memory for the input");
    }
    front->front = (struct run_front){front, front_attach, front_detach};
    front->options = *options;
    buffer_init(&front->line, LINE_BYTES_MAX);
    *out = front;
    return OK;
}

void front_lines_destroy(struct front_lines *front) {
    if (front != NULL) {
        buffer_deinit(&front->line);
        free(front);
    }
}

const struct run_front *front_lines_front(const struct front_lines *front) {
    return &front->front;
}
