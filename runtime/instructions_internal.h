/* Inside of instructions*.c: reading one foreign text file, and notes. Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_INSTRUCTIONS_INTERNAL_H
#define HEARTH_RUNTIME_INSTRUCTIONS_INTERNAL_H

#include "instructions.h"
#include "sandbox/beneath.h"

/* One line for the person; made harmless. More than there is room for are dropped. */
void instructions_note(struct instructions *instructions, const char *format, ...)
    PRINTF_LIKE(2, 3);

enum text_found {
    TEXT_NONE,
    TEXT_FOUND,
    TEXT_LINKED /* to one of `names`, which is read itself */
};

struct text_source {
    const struct beneath *root;
    const char *directory;    /* of the root, absolute, for links */
    const char *path;         /* below the root */
    const char *shown;        /* in notes */
    const char *const *names; /* [name_count] read anyway: a link to one of them says nothing new */
    size_t name_count;
    size_t bytes_max;
};

/* Appends the file as harmless text to `out`: LF line ends, no byte order mark, no control characters
 * but newline and tab. More than bytes_max of it are cut at a line's end where one is near. What is no
 * readable text is a note and TEXT_NONE; a missing file is TEXT_NONE alone. Expected errors: MEMORY. */
MUST_CHECK result instructions_read_text(
    struct instructions *instructions,
    const struct text_source *source,
    struct buffer *out,
    bool *is_cut,
    enum text_found *found,
    struct error *error
);

/* Fills skills and appends their list to the text. Expected errors: MEMORY. */
MUST_CHECK result skills_load(
    const struct instructions_options *options, struct instructions *out, struct error *error
);

#endif
