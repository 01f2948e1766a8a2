/* Patches in the envelope that Codex models write: parsing, and what they make of a file's text.
 *
 *     *** Begin Patch
 *     *** Add File: PATH          then lines that begin with +
 *     *** Delete File: PATH
 *     *** Update File: PATH       then, if it is moved, *** Move to: PATH, and hunks:
 *     @@ a line of the file       (or nothing) where to look from
 *      context
 *     -old
 *     +new
 *     *** End of File             the hunk before is at the end
 *     *** End Patch
 *
 * No I/O. What is wrong with a patch is a text for the model, not an error. Internal to tools/.
 * Thread: any.
 */
#ifndef HEARTH_TOOLS_TOOL_PATCH_H
#define HEARTH_TOOLS_TOOL_PATCH_H

#include "base/bytes.h"

#define PATCH_LINES_MAX    ((size_t)200000)
#define PATCH_FILES_MAX    ((size_t)200)
#define PATCH_HUNKS_MAX    ((size_t)5000)
#define PATCH_COMPARES_MAX ((size_t)20000000) /* of lines, per file: work, not memory */

enum patch_kind { PATCH_ADD, PATCH_DELETE, PATCH_UPDATE };

struct patch_hunk {
    size_t first; /* its lines in patch.lines, each with ' ', '+' or '-' in front, or empty */
    size_t count;
    struct view anchor; /* a line to look from; empty: none */
    bool ends_file;
};

struct patch_file {
    enum patch_kind kind;
    struct view path;
    struct view moved_to; /* empty: it stays */
    size_t line;          /* of the patch, from 1 */
    size_t first;         /* PATCH_ADD: its lines; PATCH_UPDATE: its hunks */
    size_t count;
};

/* Views are into the text. All zero is empty. */
struct patch {
    struct view *lines;
    size_t line_count;
    struct patch_file *files;
    size_t file_count;
    struct patch_hunk *hunks;
    size_t hunk_count;
};

/* `text` is borrowed until deinit. What is wrong goes into `why`, which is else left empty; `out` is
 * then as it was.
 * Expected errors: MEMORY. */
MUST_CHECK result
patch_parse(struct view text, struct patch *out, struct buffer *why, struct error *error);
void patch_deinit(struct patch *patch); /* usable with CLEANUP */

/* Appends to `out` what a file becomes: of PATCH_ADD its lines, of PATCH_UPDATE the `content` with
 * its hunks. Expected errors: MEMORY, LIMIT (the ceiling of `out`). */
MUST_CHECK result patch_apply(
    const struct patch *patch,
    const struct patch_file *file,
    struct view content,
    struct buffer *out,
    struct buffer *why,
    struct error *error
);

#endif
