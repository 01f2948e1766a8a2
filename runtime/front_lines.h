/* A person's side of a run from a stream of lines: answers, commands and messages of a person, as in
 * person.h, or, for programs, a JSON object each (docs/json-events.md). Lines of a terminal count at once;
 * those of a pipe or a file one after the other, when the run waits for one, so that a file of lines does
 * the same every time. The end is RUN_INPUT_END. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_FRONT_LINES_H
#define HEARTH_RUNTIME_FRONT_LINES_H

#include "loop.h"

struct front_lines;

struct front_lines_options {
    int fd; /* which it does not close */
    bool is_json;
    struct display *display;
    void (*say)(void *context, const char *text); /* of a line that cannot be read */
    void *context;
};

/* Expected errors: MEMORY. */
MUST_CHECK result front_lines_create(
    struct front_lines **out, const struct front_lines_options *options, struct error *error
);
/* After loop_run. Accepts null. */
void front_lines_destroy(struct front_lines *front);
const struct run_front *front_lines_front(const struct front_lines *front);

/* One line of JSON as an input; views into `document`. Expected errors: INVALID_INPUT. */
MUST_CHECK result
run_input_parse(struct json_value object, struct run_input *out, struct error *error);

#endif
