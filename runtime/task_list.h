/* What a planner writes: tasks that need each other, as JSON in its last text.
 *
 *     [{"id": "parser", "brief": "...", "needs": ["lexer"]}, ...]
 *
 * alone, in a fenced block, or between other words. The text is foreign: everything is bounded, and what
 * is wrong is said by name, so that the planner can mend it. Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_TASK_LIST_H
#define HEARTH_RUNTIME_TASK_LIST_H

#include "base/json.h"

#define TASK_LIST_MAX         32
#define TASK_LIST_BYTES_MAX   ((size_t)16 << 10)
#define TASK_LIST_VALUES_MAX  1000
#define TASK_LIST_ID_BYTES    32
#define TASK_LIST_BRIEF_BYTES ((size_t)8 << 10)

struct task {
    struct view id, brief; /* of the document */
    size_t needs[TASK_LIST_MAX];
    size_t need_count;
};

struct task_list {
    struct json_document *document;
    struct task tasks[TASK_LIST_MAX];
    size_t count;
};

/* Expected errors: INVALID_INPUT (no list, an unknown or doubled id, a circle), LIMIT, MEMORY. */
MUST_CHECK result task_list_parse(struct view text, struct task_list *out, struct error *error);
void task_list_deinit(struct task_list *list); /* accepts zero */

/* Tasks of the longest chain that begins with this one, itself included: what its time is shared with. */
size_t task_list_chain(const struct task_list *list, size_t task);

#endif
