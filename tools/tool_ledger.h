/* What a context remembers between calls: the files that were read or written, and the outputs that
 * were shown only in part. Internal to tools/. Thread: that of tool_call.
 */
#ifndef HEARTH_TOOLS_TOOL_LEDGER_H
#define HEARTH_TOOLS_TOOL_LEDGER_H

#include "base/bytes.h"
#include "base/sha256.h"

#define TOOL_LEDGER_FILES_MAX  ((size_t)2048)     /* the oldest make room */
#define TOOL_OUTPUTS_MAX       ((size_t)64)       /* the same */
#define TOOL_OUTPUTS_BYTES_MAX ((size_t)16 << 20) /* of all outputs together */
#define TOOL_OUTPUT_PREFIX     "output:"          /* and the number of the call */

/* One spelling per file: "a//b", "./a/b" and "a/b/" are "a/b". */
#define TOOL_SPELLED_BYTES ((size_t)4096) /* above what beneath.h takes */
void tool_path_spell(const char *path, char out[TOOL_SPELLED_BYTES]);

struct tool_ledger_file {
    char *path;
    uint64_t bytes;
    bool is_whole; /* the digest is known: of files that can be edited */
    bool is_written;
    unsigned char digest[SHA256_BYTES];
};

/* Oldest first. All zero is empty. */
struct tool_ledger {
    struct tool_ledger_file *files;
    size_t count;
};

void tool_ledger_deinit(struct tool_ledger *ledger);
/* The whole content of a file as it is now. Expected errors: MEMORY. */
MUST_CHECK result tool_ledger_note(
    struct tool_ledger *ledger,
    const char *path,
    struct view content,
    bool is_written,
    struct error *error
);
/* The same for a file that is too large to be edited. */
MUST_CHECK result tool_ledger_note_part(
    struct tool_ledger *ledger, const char *path, uint64_t bytes, struct error *error
);
void tool_ledger_forget(struct tool_ledger *ledger, const char *path);

enum tool_file_state { TOOL_FILE_UNREAD, TOOL_FILE_CHANGED, TOOL_FILE_SAME };
enum tool_file_state
tool_ledger_state(const struct tool_ledger *ledger, const char *path, struct view content);

struct tool_output_kept {
    uint64_t call;
    struct buffer bytes;
};

/* Oldest first. All zero is empty. */
struct tool_outputs {
    struct tool_output_kept *kept;
    size_t count;
};

void tool_outputs_deinit(struct tool_outputs *outputs);
/* Keeps a copy of `bytes`, of which `missing` more lay at `gap_at` and are told there in words.
 * False: more than all outputs together may have. Expected errors: MEMORY. */
MUST_CHECK result tool_outputs_keep(
    struct tool_outputs *outputs,
    uint64_t call,
    struct view bytes,
    uint64_t gap_at,
    uint64_t missing,
    bool *is_kept,
    struct error *error
);
/* Null when there is none (any more). */
const struct buffer *tool_outputs_find(const struct tool_outputs *outputs, uint64_t call);

#endif
