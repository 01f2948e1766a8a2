/* A person's side of a run from a stream of lines, for pipes: each line of text is a message, or, for
 * programs, a JSON object (docs/json-events.md). Its end is RUN_INPUT_END. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_FRONT_LINES_H
#define HEARTH_RUNTIME_FRONT_LINES_H

#include "loop.h"

struct front_lines;

/* Reads `fd`, which it does not close. `say` gets a line that cannot be read, in words. Expected
 * errors: MEMORY. */
MUST_CHECK result front_lines_create(
    struct front_lines **out,
    int fd,
    bool is_json,
    void (*say)(void *context, const char *text),
    void *context,
    struct error *error
);
/* After loop_run. Accepts null. */
void front_lines_destroy(struct front_lines *front);
const struct run_front *front_lines_front(const struct front_lines *front);

/* One line of JSON as an input; views into `document`. Expected errors: INVALID_INPUT. */
MUST_CHECK result
run_input_parse(struct json_value object, struct run_input *out, struct error *error);

#endif
