/* What a file is, from its first bytes: facts of a picture, a word for other kinds. Internal to
 * tools/. Thread: any.
 */
#ifndef HEARTH_TOOLS_TOOL_IMAGE_H
#define HEARTH_TOOLS_TOOL_IMAGE_H

#include "sandbox/beneath.h"
#include "tool.h"

struct image_facts {
    const char *kind; /* "PNG", "JPEG", "GIF", "WebP", "BMP" */
    uint32_t width;   /* pixels */
    uint32_t height;
    uint64_t bytes; /* of the file */
};

/* False: it is no picture of a known kind, or its header makes no sense. Reads a few bytes at a
 * time and never more than the headers. */
bool image_facts_read(const struct beneath *root, const char *path, struct image_facts *out);
MUST_CHECK result image_facts_answer(
    struct tool_result *out, struct view given, const struct image_facts *facts, struct error *error
);

/* "gzip archive", "ELF program", ... of the first bytes of a binary file; "" when unknown. */
const char *file_kind(struct view head);

#endif
