/* What a person or a program sees of a swarm: what the host tells in, lines out.
 *
 * Three forms, as of display.h: JSON lines (docs/json-events.md), plain lines (one for each change of an
 * agent's state), and a tree on a terminal that is drawn anew in place, in a bounded number of rows. At
 * the end of the two for people a summary. Nothing here decides anything, and nothing asks for the time.
 * Texts of models, tools and verifiers are made harmless before they are shown. Without memory some
 * lines are missing; the record has it all. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_SWARM_VIEW_H
#define HEARTH_RUNTIME_SWARM_VIEW_H

#include "display.h"
#include "swarm_host.h"

#define SWARM_VIEW_SCHEMA      1   /* of the JSON events that are the swarm's own */
#define SWARM_VIEW_INTERVAL_MS 200 /* between two pictures on a terminal */

/* The swarm as it stands. */
struct swarm_picture {
    const struct swarm *swarm;
    void (*look)(void *context, size_t node, struct swarm_host_look *out);
    void *context;
    int64_t now_ms;
};

struct swarm_view_options {
    enum display_form form;
    bool has_colour;
    int width, height;                      /* of a terminal; 0: 80 and 24 */
    struct output *output;                  /* borrowed, as all of these */
    struct view workspace, model, verifier; /* verifier: its command; "": none */
    struct view why;                        /* this strategy; "": it was asked for */
    const char *state_option;               /* " --state DIR", or "" */
    struct view apply; /* what applies a patch to the workspace (path_git_apply) */
};

struct swarm_view;

/* Expected errors: MEMORY. */
MUST_CHECK result swarm_view_create(
    struct swarm_view **out, const struct swarm_view_options *options, struct error *error
);
void swarm_view_destroy(struct swarm_view *view); /* accepts null */

/* SWARM_HOST_BEGAN; `engine` is what it runs on. */
void swarm_view_begin(
    struct swarm_view *view,
    const struct swarm_picture *picture,
    const struct session_id *session,
    const struct engine_info *engine,
    const struct generation_facts *facts /* of the prompt that all share; null: not known */
);
/* Any other event. */
void swarm_view_event(
    struct swarm_view *view,
    const struct swarm_picture *picture,
    const struct swarm_host_event *event
);
/* Draws the tree of a terminal; does nothing in the other forms. Every SWARM_VIEW_INTERVAL_MS. */
void swarm_view_draw(struct swarm_view *view, const struct swarm_picture *picture);
void swarm_view_set_size(struct swarm_view *view, int width, int height);

struct swarm_view_end {
    int exit_status;
    const char *commit; /* of the workspace; "": unknown */
    const struct swarm_host_totals *totals;
};
/* After SWARM_HOST_FINISHED: the summary. Nothing is drawn any more. */
void swarm_view_finish(
    struct swarm_view *view, const struct swarm_picture *picture, const struct swarm_view_end *end
);

#endif
