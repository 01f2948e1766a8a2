/* HTML as plain text: what a reader sees, roughly. Internal to tools/.
 *
 * One pass, no tree: tags give line ends and marks, scripts and styles are skipped, entities decoded,
 * blanks collapsed. Broken HTML gives worse text, never a failure. Thread: any.
 */
#ifndef HEARTH_TOOLS_TOOL_HTML_H
#define HEARTH_TOOLS_TOOL_HTML_H

#include "base/bytes.h"

/* `html` is UTF-8 or nearly so; bytes that are not stay as they are. Time and output are linear in its
 * length. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result tool_html_text(struct view html, struct buffer *out, struct error *error);

#endif
