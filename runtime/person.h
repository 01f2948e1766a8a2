/* What the lines of a person mean, on a terminal and from a pipe: answers, commands, messages.
 * Thread: loop.
 */
#ifndef HEARTH_RUNTIME_PERSON_H
#define HEARTH_RUNTIME_PERSON_H

#include "loop.h"

struct person {
    struct loop *loop;
    struct display *display;
    bool is_asked;   /* a question stands: */
    bool has_always; /* it can be answered so */
    uint64_t question;
};

/* Follows the run. */
void person_saw(struct person *person, const struct run_event *event);

/* Whether a line answers the question. What it says of it is in *out; its text is a part of the line. */
bool person_answer(const struct person *person, struct view line, struct run_input *out);
/* The answers there are, for a line that is none. */
const char *person_answers(const struct person *person);

/* Carries out a line that begins with a slash and a word, or says what it could mean; false: it is none. */
bool person_command(struct person *person, struct view line);

/* Without blanks at its ends. */
struct view person_trimmed(struct view text);

#endif
