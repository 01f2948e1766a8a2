/* Which form an event takes. Plain text is collected per block, so that what is written does not
 * depend on how it streamed in.
 */
#include "display_internal.h"

#include <sys/ioctl.h>
#include <unistd.h>

struct display {
    struct display_options options;
    struct output *output;
    struct live *live;         /* DISPLAY_TERMINAL, else null */
    struct lines lines;        /* DISPLAY_PLAIN */
    enum run_event_type block; /* what is being streamed: REASONING or CONTENT */
    bool in_block;
    struct buffer pending; /* streamed text not shown yet */
    struct display_front front;
};

struct display_options display_options_for(int fd, bool json) {
    struct display_options options = {.form = DISPLAY_PLAIN, .width = 80, .height = 24};
    const char *term = getenv("TERM");
    if (json) {
        options.form = DISPLAY_JSON;
        return options;
    }
    if (isatty(fd) != 1 || term == NULL || strcmp(term, "dumb") == 0) {
        return options;
    }
    options.form = DISPLAY_TERMINAL;
    const char *no_colour = getenv("NO_COLOR");
    options.has_colour = no_colour == NULL || no_colour[0] == '\0';
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0) {
        options.width = size.ws_col > 0 ? size.ws_col : options.width;
        options.height = size.ws_row > 0 ? size.ws_row : options.height;
    }
    return options;
}

result display_create(
    struct display **out,
    const struct display_options *options,
    struct output *output,
    struct error *error
) {
    struct display *display = calloc(1, sizeof *display);
    if (display == NULL) {
        FAIL(error, MEMORY, "no memory for a display");
    }
    display->options = *options;
    display->output = output;
    buffer_init(&display->pending, OUTPUT_BYTES_MAX);
    lines_init(&display->lines, 0, false);
    if (options->form == DISPLAY_TERMINAL) {
        result created = live_create(&display->live, options, output, error);
        if (is_failed(created)) {
            display_destroy(display);
            return created;
        }
    }
    *out = display;
    return OK;
}

void display_destroy(struct display *display) {
    if (display != NULL) {
        live_destroy(display->live);
        lines_deinit(&display->lines);
        buffer_deinit(&display->pending);
        free(display);
    }
}

bool display_is_live(const struct display *display) {
    return display->live != NULL;
}

bool display_is_for_people(const struct display *display) {
    return display->options.form != DISPLAY_JSON;
}

/* ---- plain ---------------------------------------------------------------------------------- */

static void plain_flush(struct display *display) {
    output_append(display->output, buffer_view(&display->lines.text));
    buffer_clear(&display->lines.text);
}

static void plain_block_end(struct display *display) {
    if (display->pending.length > 0) {
        bool is_reasoning = display->block == RUN_REASONING;
        lines_text(
            &display->lines,
            is_reasoning ? STYLE_DIM : STYLE_TEXT,
            is_reasoning ? "~ " : "",
            buffer_view(&display->pending)
        );
        buffer_clear(&display->pending);
    }
    lines_end(&display->lines);
    display->in_block = false;
}

static void plain_event(struct display *display, const struct run_event *event) {
    if (event->type == RUN_REASONING || event->type == RUN_CONTENT) {
        if (display->in_block && display->block != event->type) {
            plain_block_end(display);
        }
        display->in_block = true;
        display->block = event->type;
        /* Without memory some text is not shown; it is recorded all the same. */
        result_ignore(buffer_append(&display->pending, event->text, NULL));
        return;
    }
    if (event->type != RUN_TURN && event->type != RUN_QUEUED) {
        plain_block_end(display);
    }
    display_put_event(&display->lines, event);
    plain_flush(display);
}

/* ---- events --------------------------------------------------------------------------------- */

static void json_event(struct display *display, const struct run_event *event) {
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, OUTPUT_BYTES_MAX);
    /* A line that does not fit into memory is left out whole; the record has it. */
    if (is_ok(display_json_event(&line, event, NULL))) {
        output_append(display->output, buffer_view(&line));
    }
}

void display_event(struct display *display, const struct run_event *event) {
    if (display->options.form == DISPLAY_JSON && event->type == RUN_EARLIER) {
        return; /* who reads it has the record */
    }
    if (display->options.form == DISPLAY_JSON) {
        json_event(display, event);
    } else if (event->type == RUN_TOKEN || event->type == RUN_STATISTICS) {
        return;
    } else if (display->live != NULL) {
        live_event(display->live, event);
    } else {
        plain_event(display, event);
    }
    if (display->front.event != NULL) {
        display->front.event(display->front.context, event);
    }
}

void display_status(struct display *display, const struct run_status *status) {
    if (display->live != NULL) {
        live_status(display->live, status);
    }
}

void display_set_size(struct display *display, int width, int height) {
    display->options.width = width;
    display->options.height = height;
    if (display->live != NULL) {
        live_set_size(display->live, width, height);
    }
    if (display->front.resized != NULL) {
        display->front.resized(display->front.context);
    }
    if (display->live != NULL) {
        live_draw(display->live);
    }
}

void display_end(struct display *display) {
    if (display->live != NULL) {
        live_end(display->live);
    } else if (display->options.form == DISPLAY_PLAIN) {
        plain_block_end(display);
        plain_flush(display);
    }
}

void display_begin_again(struct display *display) {
    if (display->live != NULL) {
        live_begin_again(display->live);
    }
}

/* ---- for the input of a person -------------------------------------------------------------- */

void display_set_front(struct display *display, const struct display_front *front) {
    display->front = front != NULL ? *front : (struct display_front){0};
}

void display_set_prompt(struct display *display, const struct display_prompt *prompt) {
    if (display->live != NULL) {
        live_set_prompt(display->live, prompt);
    }
}

void display_say(struct display *display, struct view text) {
    if (display->live != NULL) {
        live_say(display->live, text);
    } else if (display->options.form == DISPLAY_PLAIN) {
        lines_text(&display->lines, STYLE_DIM, "# ", text);
        lines_end(&display->lines);
        plain_flush(display);
    }
}

void display_toggle_thinking(struct display *display) {
    if (display->live != NULL) {
        live_toggle_thinking(display->live);
    }
}

void display_pause(struct display *display, bool is_paused) {
    if (display->live != NULL) {
        live_pause(display->live, is_paused);
    }
}

int display_width(const struct display *display) {
    return display->live != NULL ? live_width(display->live) : display->options.width;
}

int display_height(const struct display *display) {
    return display->options.height;
}
