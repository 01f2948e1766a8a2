/* One write in flight at a time keeps the order; the two buffers swap roles. */
#include "output.h"

#include <errno.h>
#include <unistd.h>
#include <uv.h>

struct output {
    uv_loop_t *loop;
    int fd;
    struct buffer queued;
    struct buffer writing; /* owned by the write in flight */
    size_t written;        /* of `writing` */
    uv_fs_t request;
    bool is_writing;
    bool is_failed;
    struct error error;
    void (*idle)(void *context);
    void *idle_context;
};

result output_create(struct output **out, struct uv_loop_s *loop, int fd, struct error *error) {
    struct output *output = calloc(1, sizeof *output);
    if (output == NULL) {
        FAIL(error, MEMORY, "no memory for an output queue");
    }
    output->loop = loop;
    output->fd = fd;
    buffer_init(&output->queued, OUTPUT_BYTES_MAX);
    buffer_init(&output->writing, OUTPUT_BYTES_MAX);
    *out = output;
    return OK;
}

void output_destroy(struct output *output) {
    if (output != NULL) {
        ASSERT(!output->is_writing);
        buffer_deinit(&output->queued);
        buffer_deinit(&output->writing);
        free(output);
    }
}

void output_on_idle(struct output *output, void (*idle)(void *context), void *context) {
    output->idle = idle;
    output->idle_context = context;
}

static void fail(struct output *output, result failed) {
    ASSERT(is_failed(failed));
    output->is_failed = true;
    buffer_clear(&output->queued);
}

static result write_failed(struct output *output, int error_number) {
    FAIL_FOREIGN(
        &output->error,
        IO,
        error_number,
        "cannot write to standard output: %s",
        strerror(error_number)
    );
}

static void write_some(struct output *output);

static void write_done(uv_fs_t *request) {
    struct output *output = request->data;
    ssize_t count = request->result;
    uv_fs_req_cleanup(request);
    output->is_writing = false;
    if (count == UV_EAGAIN || count == UV_EINTR) {
        count = 0; /* a terminal in non-blocking mode that belongs to somebody else */
    }
    if (count < 0) {
        fail(output, write_failed(output, (int)-count));
    } else {
        output->written += (size_t)count;
        write_some(output);
    }
    if (!output->is_writing && output->idle != NULL) {
        output->idle(output->idle_context);
    }
}

static void write_some(struct output *output) {
    if (output->written == output->writing.length) {
        struct buffer empty = output->writing;
        output->writing = output->queued;
        output->queued = empty;
        buffer_clear(&output->queued);
        output->written = 0;
    }
    if (output->writing.length == 0) {
        return;
    }
    size_t left = output->writing.length - output->written;
    uv_buf_t piece = uv_buf_init(
        (char *)output->writing.data + output->written, (unsigned)(left > 65536 ? 65536 : left)
    );
    output->request.data = output;
    int status = uv_fs_write(output->loop, &output->request, output->fd, &piece, 1, -1, write_done);
    if (status != 0) {
        fail(output, write_failed(output, -status));
        return;
    }
    output->is_writing = true;
}

static void write_blocking(struct output *output) {
    while (output->queued.length > 0) {
        ssize_t count = write(output->fd, output->queued.data, output->queued.length);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            fail(output, write_failed(output, errno));
            return;
        }
        buffer_consume(&output->queued, (size_t)count);
    }
}

void output_flush(struct output *output) {
    if (output->is_failed) {
        buffer_clear(&output->queued);
    } else if (output->loop == NULL) {
        write_blocking(output);
    } else if (!output->is_writing) {
        write_some(output);
    }
}

struct buffer *output_buffer(struct output *output) {
    return &output->queued;
}

void output_append(struct output *output, struct view bytes) {
    if (output->is_failed) {
        return;
    }
    result appended = buffer_append(&output->queued, bytes, &output->error);
    if (is_failed(appended)) {
        fail(output, error_note(&output->error, appended, "nobody reads standard output"));
        return;
    }
    output_flush(output);
}

void output_append_text(struct output *output, const char *text) {
    output_append(output, view_of_text(text));
}

bool output_is_idle(const struct output *output) {
    return !output->is_writing && (output->is_failed || output->queued.length == 0);
}

result output_status(const struct output *output, struct error *error) {
    if (!output->is_failed) {
        return OK;
    }
    if (error != NULL) {
        *error = output->error;
    }
    result failed = {output->error.code};
    return failed;
}
