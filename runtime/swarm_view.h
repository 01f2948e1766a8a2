/* What a person or a program sees of a swarm: its states and its agents' events in, lines out.
 *
 * Three forms, as of display.h: JSON lines (docs/json-events.md), plain lines (one for each change of an
 * agent's state), and a tree on a terminal that is drawn anew in place, in a bounded number of rows. At
 * the end of the two for people a summary. Nothing here decides anything; texts of models, tools and
 * verifiers are made harmless before they are shown. Without memory some lines are missing; the record
 * has it all. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_SWARM_VIEW_H
#define HEARTH_RUNTIME_SWARM_VIEW_H

#include "display.h"
#include "swarm.h"

#define SWARM_VIEW_INTERVAL_MS 200 /* between two pictures on a terminal */

struct swarm_view;

struct swarm_view_options {
    enum display_form form;
    bool has_colour;
    int width, height;     /* of a terminal; 0: 80 and 24 */
    struct output *output; /* borrowed */
};

/* How it begins; the texts are copied where they are needed later. */
struct swarm_view_begin {
    const char *session_id;
    struct view workspace, model, verifier; /* verifier: its command; "": none */
    const struct engine_info *engine;
    struct view why;          /* this strategy; "": it was asked for */
    const char *state_option; /* as in run_event */
    int64_t now_ms;
};

/* How it ended, beside swarm_result. */
struct swarm_view_end {
    int exit_status;
    int64_t now_ms;
    /* Of the prompt that all agents begin with, computed once for all of them. */
    int64_t prefix_tokens;
    /* Directories of agents that stay since something in them is not saved; one a line. */
    struct view kept;
};

/* Expected errors: MEMORY. */
MUST_CHECK result swarm_view_create(
    struct swarm_view **out, const struct swarm_view_options *options, struct error *error
);
void swarm_view_destroy(struct swarm_view *view); /* accepts null */

void swarm_view_begin(
    struct swarm_view *view, const struct swarm *swarm, const struct swarm_view_begin *begin
);
/* Each event of a node's run. */
void swarm_view_event(
    struct swarm_view *view, const struct swarm *swarm, size_t node, const struct run_event *event
);
/* After each swarm_handle. */
void swarm_view_changed(struct swarm_view *view, const struct swarm *swarm, int64_t now_ms);
/* Draws the tree of a terminal; does nothing in the other forms. Every SWARM_VIEW_INTERVAL_MS. */
void swarm_view_draw(struct swarm_view *view, const struct swarm *swarm, int64_t now_ms);
void swarm_view_set_size(struct swarm_view *view, int width, int height);
/* A line of the host: RUN_NOTE or RUN_WARNING. */
void swarm_view_say(struct swarm_view *view, enum run_event_type type, struct view text);
/* After SWARM_DO_FINISH: the summary. Nothing is drawn any more. */
void swarm_view_finish(
    struct swarm_view *view, const struct swarm *swarm, const struct swarm_view_end *end
);

#endif
