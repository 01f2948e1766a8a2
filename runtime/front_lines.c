/* See front_lines.h. A pipe or terminal is a stream of libuv's; a file is read in pieces. */
#include "front_lines.h"

#include "base/json.h"
#include <fcntl.h>
#include <uv.h>

#define LINE_BYTES_MAX  ((size_t)2 << 20) /* a message of 1 MiB, escaped */
#define PIECE_BYTES_MAX ((size_t)64 << 10)

struct front_lines {
    struct run_front front;
    int fd;
    bool is_json;
    void (*say)(void *context, const char *text);
    void *context;
    struct loop *loop;
    uv_loop_t *uv;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tty_t tty;
    } from;
    uv_fs_t read; /* of a file */
    bool is_file, is_attached;
    char piece[PIECE_BYTES_MAX];
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
        front->say(front->context, error.message);
    }
}

static void line_ended(struct front_lines *front) {
    struct view line = buffer_view(&front->line);
    while (line.length > 0 && strchr("\r\t ", line.data[line.length - 1]) != NULL) {
        line.length--;
    }
    if (front->line_is_long) {
        front->say(front->context, "a line of the input is too long and was left out");
    } else if (line.length > 0 && front->is_json) {
        line_json(front, line);
    } else if (line.length > 0) {
        loop_input(front->loop, &(struct run_input){.type = RUN_INPUT_MESSAGE, .text = line});
    }
    buffer_clear(&front->line);
    front->line_is_long = false;
}

static void piece_came(struct front_lines *front, struct view piece) {
    for (size_t i = 0; i < piece.length; i++) {
        if (piece.data[i] == '\n') {
            line_ended(front);
        } else if (is_failed(buffer_append_byte(&front->line, piece.data[i], NULL))) {
            front->line_is_long = true; /* the rest of it is dropped */
        }
    }
}

static void input_ended(struct front_lines *front) {
    line_ended(front); /* without a line feed */
    loop_input(front->loop, &(struct run_input){.type = RUN_INPUT_END});
}

/* ---- reading -------------------------------------------------------------------------------- */

static void piece_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    struct front_lines *front = handle->data;
    (void)suggested;
    *out = uv_buf_init(front->piece, sizeof front->piece);
}

static void stream_came(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
    struct front_lines *front = stream->data;
    if (count > 0) {
        piece_came(front, view_of(buffer->base, (size_t)count));
    } else if (count < 0) {
        (void)uv_read_stop(stream);
        input_ended(front);
    }
}

static void file_read_on(struct front_lines *front);

static void file_came(uv_fs_t *request) {
    struct front_lines *front = request->data;
    ssize_t count = request->result;
    uv_fs_req_cleanup(request);
    if (!front->is_attached) {
        return; /* the run is over */
    }
    if (count > 0) {
        piece_came(front, view_of(front->piece, (size_t)count));
        file_read_on(front);
    } else {
        input_ended(front);
    }
}

static void file_read_on(struct front_lines *front) {
    uv_buf_t piece = uv_buf_init(front->piece, sizeof front->piece);
    front->read.data = front;
    int status = uv_fs_read(front->uv, &front->read, front->fd, &piece, 1, -1, file_came);
    ASSERT(status == 0); /* it is only queued */
}

static void front_detach(void *context) {
    struct front_lines *front = context;
    front->is_attached = false;
    if (!front->is_file) {
        uv_close(&front->from.handle, NULL);
    }
}

static result
front_attach(void *context, struct uv_loop_s *uv, struct loop *loop, struct error *error) {
    struct front_lines *front = context;
    front->loop = loop;
    front->uv = uv;
    uv_handle_type type = uv_guess_handle(front->fd);
    front->is_file = type != UV_TTY && type != UV_NAMED_PIPE && type != UV_TCP;
    if (front->is_file) {
        front->is_attached = true;
        file_read_on(front);
        return OK;
    }
    int own = fcntl(front->fd, F_DUPFD_CLOEXEC, 0); /* its handle closes it */
    int status = own < 0 ? UV_EMFILE : 0;
    if (status == 0) {
        status = type == UV_TTY ? uv_tty_init(uv, &front->from.tty, own, 1)
                                : uv_pipe_init(uv, &front->from.pipe, 0);
        front->is_attached = status == 0;
    }
    if (status == 0 && type != UV_TTY) {
        status = uv_pipe_open(&front->from.pipe, own);
    }
    if (status == 0) {
        front->from.handle.data = front;
        status = uv_read_start(&front->from.stream, piece_allocate, stream_came);
    }
    if (status != 0) {
        if (front->is_attached) {
            front_detach(front);
        }
        FAIL_FOREIGN(error, IO, -status, "cannot read the input: %s", uv_strerror(status));
    }
    return OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

result front_lines_create(
    struct front_lines **out,
    int fd,
    bool is_json,
    void (*say)(void *context, const char *text),
    void *context,
    struct error *error
) {
    struct front_lines *front = calloc(1, sizeof *front);
    if (front == NULL) {
        FAIL(error, MEMORY, "no memory for the input");
    }
    front->front = (struct run_front){front, front_attach, front_detach};
    front->fd = fd;
    front->is_json = is_json;
    front->say = say;
    front->context = context;
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
