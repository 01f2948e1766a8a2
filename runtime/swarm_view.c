/* What is shown when, in each form; see swarm_view.h. */
#include "swarm_view_internal.h"

#include "screen.h"
#include "strategy.h"
#include <inttypes.h>

#define WIDTH_MIN     40
#define HEIGHT_MIN    8
#define TREE_ROWS_MAX 40

/* What was last said of a node. */
struct told {
    bool is_told, is_cancelling;
    enum swarm_state state;
    enum swarm_outcome outcome;
};

struct swarm_view {
    struct swarm_view_facts facts;
    struct screen *screen; /* DISPLAY_TERMINAL, else null */
    struct lines lines;    /* scratch, empty between calls */
    struct told told[SWARM_NODES_MAX];
    bool has_ended;
};

static void set_size(struct swarm_view *view, int width, int height) {
    struct swarm_view_options *options = &view->facts.options;
    options->width = width <= 0 ? 80 : width < WIDTH_MIN ? WIDTH_MIN : width;
    options->height = height <= 0 ? 24 : height < HEIGHT_MIN ? HEIGHT_MIN : height;
}

result swarm_view_create(
    struct swarm_view **out, const struct swarm_view_options *options, struct error *error
) {
    struct swarm_view *view = calloc(1, sizeof *view);
    if (view == NULL) {
        FAIL(error, MEMORY, "no memory for the view of a swarm");
    }
    view->facts.options = *options;
    lines_init(&view->lines, 0, options->form == DISPLAY_TERMINAL && options->has_colour);
    if (options->form == DISPLAY_TERMINAL) {
        set_size(view, options->width, options->height);
        const struct swarm_view_options *sized = &view->facts.options;
        result created =
            screen_create(&view->screen, options->output, sized->width, sized->height, error);
        if (is_failed(created)) {
            swarm_view_destroy(view);
            return created;
        }
    }
    *out = view;
    return OK;
}

void swarm_view_destroy(struct swarm_view *view) {
    if (view != NULL) {
        screen_destroy(view->screen);
        lines_deinit(&view->lines);
        free(view);
    }
}

void swarm_view_set_size(struct swarm_view *view, int width, int height) {
    struct swarm_view_options *options = &view->facts.options;
    int width_before = options->width;
    int height_before = options->height;
    if (view->screen == NULL) {
        return;
    }
    set_size(view, width, height);
    if (options->width != width_before || options->height != height_before) {
        screen_set_size(view->screen, options->width, options->height);
    }
}

/* ---- drawing -------------------------------------------------------------------------------- */

static void draw_rows(struct swarm_view *view) {
    struct cursor cursor = cursor_over(buffer_view(&view->lines.text));
    struct view row;
    screen_begin(view->screen);
    while (cursor_take_until(&cursor, '\n', &row)) {
        screen_add(view->screen, row);
    }
    screen_draw(view->screen);
    buffer_clear(&view->lines.text);
}

void swarm_view_draw(struct swarm_view *view, const struct swarm_picture *picture) {
    if (view->screen == NULL || view->has_ended || view->facts.session.text[0] == '\0') {
        return;
    }
    size_t rows = (size_t)screen_height(view->screen) - 2;
    rows = rows < TREE_ROWS_MAX ? rows : TREE_ROWS_MAX;
    swarm_view_tree(picture, &view->facts, rows, screen_width(view->screen) - 1, &view->lines);
    draw_rows(view);
}

/* Lines for people that stay. */
static void flush(struct swarm_view *view) {
    if (view->screen != NULL) {
        screen_print(view->screen, buffer_view(&view->lines.text));
        screen_draw(view->screen);
    } else {
        output_append(view->facts.options.output, buffer_view(&view->lines.text));
    }
    buffer_clear(&view->lines.text);
}

/* ---- events --------------------------------------------------------------------------------- */

void swarm_view_begin(
    struct swarm_view *view,
    const struct swarm_picture *picture,
    const struct session_id *session,
    const struct engine_info *engine,
    const struct generation_facts *facts
) {
    const struct swarm_view_options *options = &view->facts.options;
    const struct swarm_options *swarm = swarm_options(picture->swarm);
    view->facts.session = *session;
    view->facts.begun_ms = picture->now_ms;
    if (options->form == DISPLAY_JSON) {
        CLEANUP(buffer_deinit) struct buffer line;
        buffer_init(&line, OUTPUT_BYTES_MAX);
        result written = swarm_view_json_begin(&line, picture, &view->facts, engine, facts, NULL);
        if (is_ok(written)) { /* else it is left out whole */
            output_append(options->output, buffer_view(&line));
        }
        return;
    }
    lines_format(&view->lines, STYLE_DIM, "session %s", session->text);
    if (options->why.length > 0) {
        lines_format(&view->lines, STYLE_TEXT, "%.*s", VIEW_ARGUMENTS(options->why));
    } else {
        lines_format(&view->lines, STYLE_TEXT, "strategy %s", swarm->strategy->name);
    }
    if (facts != NULL) {
        lines_format(
            &view->lines,
            STYLE_DIM,
            "%d tokens that all agents share: %d reused, %d evaluated",
            facts->prompt_tokens,
            facts->reused,
            facts->evaluated
        );
    }
    flush(view);
}

/* Whether its state is another one than was said last. */
static bool is_news(struct swarm_view *view, const struct swarm *swarm, size_t node) {
    const struct swarm_node *at = swarm_node(swarm, node);
    struct told *told = &view->told[node];
    const struct told now = {true, at->is_cancelling, at->state, at->outcome};
    bool is_same = told->is_told && told->is_cancelling == now.is_cancelling &&
                   told->state == now.state && told->outcome == now.outcome;
    bool is_over = at->state == SWARM_ENDED && at->outcome == SWARM_UNDECIDED;
    *told = is_over ? *told : now; /* its outcome comes at once */
    return !is_same && !is_over;
}

static void
put_verdict(struct lines *lines, const char *name, const struct swarm_host_event *event) {
    static const char *const words[] = {
        [SWARM_NOT_VERIFIED] = "was not verified",
        [SWARM_VERIFIED_PASS] = "passes",
        [SWARM_VERIFIED_FAIL] = "fails",
        [SWARM_VERIFIED_HUNG] = "fails: the verifier did not end in time",
        [SWARM_VERIFIED_CRASHED] = "cannot be verified: the verifier did not run",
        [SWARM_VERIFIED_EDITED] = "cannot be verified: the verifier changed files",
    };
    struct view text = event->text;
    while (text.length > 0 && strchr("\n\r\t ", text.data[text.length - 1]) != NULL) {
        text.length--;
    }
    size_t from = text.length; /* what it said last tells most */
    while (from > 0 && text.data[from - 1] != '\n') {
        from--;
    }
    char said[SWARM_VIEW_DOING_BYTES];
    swarm_view_one_line(view_slice(text, from, text.length - from), said, sizeof said);
    bool has_said = said[0] != '\0' && event->verdict != SWARM_VERIFIED_PASS;
    lines_format(
        lines,
        STYLE_DIM,
        "           %s %s%s%s",
        name,
        words[event->verdict],
        has_said ? ": " : "",
        has_said ? said : ""
    );
}

static void
put_merge(struct lines *lines, const struct swarm *swarm, const struct swarm_host_event *event) {
    const char *name = swarm_node(swarm, event->node)->name;
    const char *into = swarm_node(swarm, event->other)->name;
    char text[SWARM_VIEW_DOING_BYTES];
    swarm_view_one_line(event->text, text, sizeof text);
    if (event->merge == SWARM_MERGE_OK) {
        lines_format(lines, STYLE_DIM, "           %s is merged into %s", name, into);
    } else {
        bool is_conflict = event->merge == SWARM_MERGE_CONFLICTS;
        lines_format(
            lines,
            STYLE_BAD,
            "           %s is not merged into %s%s: %s",
            name,
            into,
            is_conflict ? ", conflicts" : "",
            text
        );
    }
}

/* What people are told in lines that stay, on a terminal too. */
static void put_always(struct lines *lines, const char *name, enum style style, struct view text) {
    char line[SWARM_VIEW_DOING_BYTES];
    swarm_view_one_line(text, line, sizeof line);
    lines_format(lines, style, "%s%s%s", name, name[0] != '\0' ? ": " : "", line);
}

static void plain_event(
    struct swarm_view *view,
    const struct swarm_picture *picture,
    const struct swarm_host_event *event
) {
    struct lines *lines = &view->lines;
    const struct swarm *swarm = picture->swarm;
    const char *name =
        event->node < swarm_node_count(swarm) ? swarm_node(swarm, event->node)->name : "";
    if (event->type == SWARM_HOST_NODE) {
        if (event->node != SWARM_ROOT && is_news(view, swarm, event->node)) {
            swarm_view_change(picture, view->facts.begun_ms, event->node, lines);
        }
    } else if (event->type == SWARM_HOST_MESSAGE) {
        char text[SWARM_VIEW_DOING_BYTES];
        swarm_view_one_line(event->text, text, sizeof text);
        const char *to = swarm_node(swarm, event->other)->name;
        lines_format(lines, STYLE_DIM, "           %s to %s: %s", name, to, text);
    } else if (event->type == SWARM_HOST_VERIFIED) {
        put_verdict(lines, name, event);
    } else if (event->type == SWARM_HOST_RANKED) {
        lines_format(lines, STYLE_DIM, "           the results are ranked");
    } else if (event->type == SWARM_HOST_MERGED) {
        put_merge(lines, swarm, event);
    } else if (event->type == SWARM_HOST_ENDING) {
        lines_format(lines, STYLE_DIM, "           it is decided; what runs is being ended");
    }
}

static void people_event(
    struct swarm_view *view,
    const struct swarm_picture *picture,
    const struct swarm_host_event *event
) {
    if (event->type == SWARM_HOST_NOTE || event->type == SWARM_HOST_WARNING) {
        bool is_bad = event->type == SWARM_HOST_WARNING;
        put_always(&view->lines, "", is_bad ? STYLE_BAD : STYLE_DIM, event->text);
    } else if (event->type == SWARM_HOST_RUN) {
        const struct run_event *run = event->run;
        const char *name = swarm_node(picture->swarm, event->node)->name;
        if (run->type == RUN_WARNING) {
            put_always(&view->lines, name, STYLE_BAD, run->text);
        } else if (run->type == RUN_STUCK) {
            put_always(&view->lines, name, STYLE_BAD, view_of_text(run->stuck->why));
        }
    } else if (view->screen == NULL) {
        plain_event(view, picture, event);
    }
    if (view->lines.text.length > 0) {
        flush(view);
    }
    bool is_seen = event->type != SWARM_HOST_RUN && event->type != SWARM_HOST_ACTIVITY;
    if (is_seen && event->type != SWARM_HOST_FINISHED) {
        swarm_view_draw(view, picture);
    }
}

void swarm_view_event(
    struct swarm_view *view,
    const struct swarm_picture *picture,
    const struct swarm_host_event *event
) {
    const struct swarm_view_options *options = &view->facts.options;
    if (options->form != DISPLAY_JSON) {
        people_event(view, picture, event);
        return;
    }
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, OUTPUT_BYTES_MAX);
    if (is_ok(swarm_view_json_event(&line, picture, &view->facts, event, NULL))) {
        output_append(options->output, buffer_view(&line)); /* else it is left out whole */
    }
}

void swarm_view_finish(
    struct swarm_view *view, const struct swarm_picture *picture, const struct swarm_view_end *end
) {
    const struct swarm_view_options *options = &view->facts.options;
    ASSERT(!view->has_ended);
    view->has_ended = true;
    if (options->form == DISPLAY_JSON) {
        CLEANUP(buffer_deinit) struct buffer line;
        buffer_init(&line, OUTPUT_BYTES_MAX);
        if (is_ok(swarm_view_json_end(&line, picture, &view->facts, end, NULL))) {
            output_append(options->output, buffer_view(&line));
        }
        return;
    }
    if (view->screen != NULL) {
        screen_begin(view->screen);
        screen_erase(view->screen);
    }
    swarm_view_summary(picture, &view->facts, end, &view->lines);
    output_append(options->output, buffer_view(&view->lines.text));
    buffer_clear(&view->lines.text);
}
