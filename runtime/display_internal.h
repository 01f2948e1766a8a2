/* Between the files of the display: the choice of a form (display.c), lines of text
 * (display_plain.c, calls in display_call.c) and the live view of a terminal (display_terminal.c). See display.h. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_DISPLAY_INTERNAL_H
#define HEARTH_RUNTIME_DISPLAY_INTERNAL_H

#include "display.h"
#include "lines.h"

/* ---- display_plain.c ---- */

/* One event as lines; streamed text is not its business. */
void display_put_event(struct lines *lines, const struct run_event *event);

/* ---- display_call.c ---- */

/* `overwrite`: null where it is not known. */
void display_put_call(
    struct lines *lines, const struct chat_call *call, const struct tool_overwrite *overwrite
);
void display_put_result(struct lines *lines, const struct tool_result *tool);
void display_put_ask(struct lines *lines, const struct run_event *event);

/* ---- display_earlier.c ---- */

struct markdown;
/* RUN_EARLIER; without `markdown` the last answer stays as it is. */
void display_put_earlier(
    struct lines *lines, struct markdown *markdown, const struct run_event *event
);

/* ---- display_terminal.c ---- */

struct live;
MUST_CHECK result live_create(
    struct live **out,
    const struct display_options *options,
    struct output *output,
    struct error *error
);
void live_destroy(struct live *live);
void live_event(struct live *live, const struct run_event *event);
void live_status(struct live *live, const struct run_status *status);
void live_set_size(struct live *live, int width, int height);
void live_end(struct live *live);
void live_begin_again(struct live *live);
void live_draw(struct live *live);
/* As display_... of the same name. */
void live_set_prompt(struct live *live, const struct display_prompt *prompt);
void live_say(struct live *live, struct view text);
void live_toggle_thinking(struct live *live);
void live_pause(struct live *live, bool is_paused);
int live_width(const struct live *live);

#endif
