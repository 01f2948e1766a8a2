/* Between the files of the swarm's view: what is shown when (swarm_view.c), words and lines of one agent
 * (swarm_view_text.c), the tree (swarm_view_tree.c), the end (swarm_view_summary.c), and events as JSON
 * (swarm_view_json.c). All but the first are functions of a picture. See swarm_view.h. Thread: any.
 */
#ifndef HEARTH_RUNTIME_SWARM_VIEW_INTERNAL_H
#define HEARTH_RUNTIME_SWARM_VIEW_INTERNAL_H

#include "lines.h"
#include "swarm_view.h"

#define SWARM_VIEW_NUMBER_BYTES 24
#define SWARM_VIEW_DOING_BYTES  240

/* What a view knows beside a picture. */
struct swarm_view_facts {
    struct swarm_view_options options;
    struct session_id session; /* "": not begun */
    int64_t begun_ms;
};

/* ---- swarm_view_text.c ---- */

/* 950, 5.3k, 131k, 12M */
const char *swarm_view_number(int64_t number, char out[SWARM_VIEW_NUMBER_BYTES]);
/* 0:07, 12:31, 1:02:45 */
const char *swarm_view_time(int64_t milliseconds, char out[SWARM_VIEW_NUMBER_BYTES]);
/* "running", "ending", and of one that has ended its outcome. */
const char *swarm_view_state(const struct swarm_node *node);
enum style swarm_view_style(const struct swarm_node *node);
/* What it does, or what became of it: one harmless line, cut to the room. */
void swarm_view_doing(
    const struct swarm_picture *picture, size_t node, char out[SWARM_VIEW_DOING_BYTES]
);
/* From its start until now or its end; 0: it was not started. */
int64_t swarm_view_worked_ms(const struct swarm_picture *picture, size_t node);
/* The first line of a text that is not blank, harmless, cut to the room. */
void swarm_view_one_line(struct view text, char *out, size_t bytes);
/* A whole line, cut to so many columns. */
PRINTF_LIKE(4, 5)
void swarm_view_line(struct lines *lines, enum style style, int columns, const char *format, ...);
/* "3 at work, 2 waiting, 1 planned, 1 passed, 4 failed" of the marked nodes; null: of all. */
void swarm_view_counts(
    const struct swarm *swarm, const bool *is_counted, char out[SWARM_VIEW_DOING_BYTES]
);
/* The line of a change of this node's state. */
void swarm_view_change(
    const struct swarm_picture *picture, int64_t begun_ms, size_t node, struct lines *lines
);

/* ---- swarm_view_tree.c ---- */

/* A line about the whole, and one for each agent, children below their parents, in at most `rows` (4 at
 * least) of `columns`: of more agents those at work first, then the last ones that ended; the others are
 * one line of numbers. */
void swarm_view_tree(
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    size_t rows,
    int columns,
    struct lines *lines
);
/* The agents alone, with a line of headings. */
void swarm_view_agents(
    const struct swarm_picture *picture, size_t rows, int columns, struct lines *lines
);

/* ---- swarm_view_summary.c ---- */

void swarm_view_summary(
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct swarm_view_end *end,
    struct lines *lines
);

/* ---- swarm_view_json.c ---- */

/* One line each. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result swarm_view_json_begin(
    struct buffer *out,
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct engine_info *engine,
    const struct generation_facts *prefix,
    struct error *error
);
/* Nothing for those that other events tell. */
MUST_CHECK result swarm_view_json_event(
    struct buffer *out,
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct swarm_host_event *event,
    struct error *error
);
MUST_CHECK result swarm_view_json_end(
    struct buffer *out,
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct swarm_view_end *end,
    struct error *error
);

#endif
