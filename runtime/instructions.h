/* What the system prompt says about the project: AGENTS.md and CLAUDE.md from the root of the repository
 * down to the workspace, the user's own AGENTS.md, and a list of skills.
 *
 * The same files give the same bytes, wherever they lie and whenever they are read, so that prompts
 * have the same beginning. Files are foreign: bounded, text only, opened below their directory without
 * following links out of it. Whatever is wrong with one (binary, huge, a loop of links, a FIFO) is a
 * note of one line and never a failure. Blocks on the disk. Thread: any.
 */
#ifndef HEARTH_RUNTIME_INSTRUCTIONS_H
#define HEARTH_RUNTIME_INSTRUCTIONS_H

#include "base/bytes.h"

#define INSTRUCTIONS_FILE_BYTES_MAX ((size_t)32 << 10) /* of one file; more is cut */
#define INSTRUCTIONS_FILES_MAX      32
#define INSTRUCTIONS_PARENTS_MAX    32 /* directories above the workspace that are looked at */
#define INSTRUCTIONS_NOTES_MAX      16
#define INSTRUCTIONS_NOTE_BYTES     240
#define INSTRUCTIONS_NAME_BYTES     256
#define SKILLS_MAX                  64 /* listed */
#define SKILL_NAME_BYTES            64
#define SKILL_DESCRIPTION_BYTES     1024
#define SKILL_HEAD_BYTES_MAX        ((size_t)16 << 10) /* read of a SKILL.md */

struct instructions_options {
    const char *workspace;         /* absolute, resolved */
    const char *user_directory;    /* has the user's AGENTS.md; null: none */
    const char *const *file_names; /* [file_name_count], in order within a directory */
    size_t file_name_count;
    size_t bytes_max;      /* of all files together, the nearest first; 0: none are read */
    size_t text_bytes_max; /* of all that is told, skills too; 0: no limit beside the others */
    const char *const *skill_directories; /* [skill_directory_count], absolute; may be missing */
    size_t skill_directory_count;
};

struct instructions_file {
    char name[INSTRUCTIONS_NAME_BYTES]; /* "../AGENTS.md", as in the text */
    size_t bytes;                       /* of it in the text */
    bool is_cut;
};

struct instructions_skill {
    char name[SKILL_NAME_BYTES + 1];
    char description[SKILL_DESCRIPTION_BYTES + 1]; /* one line */
    char *path;      /* of SKILL.md: below the workspace, or absolute */
    bool is_outside; /* of the workspace: its directory is to be bound read-only */
};

struct instructions {
    struct buffer text; /* for the system prompt: valid UTF-8, ends with a newline; may be empty */
    struct instructions_file files[INSTRUCTIONS_FILES_MAX]; /* as in the text: the farthest first */
    size_t file_count;
    struct instructions_skill *skills; /* [skill_count], as in the text */
    size_t skill_count;
    char *skill_roots[SKILLS_MAX]; /* skill directories outside that have one, resolved */
    size_t skill_root_count;
    char notes[INSTRUCTIONS_NOTES_MAX][INSTRUCTIONS_NOTE_BYTES]; /* for the person, one line each */
    size_t note_count;
};

/* Expected errors: MEMORY. `out` is set in every case and may be deinitialised. */
MUST_CHECK result instructions_load(
    const struct instructions_options *options, struct instructions *out, struct error *error
);
void instructions_deinit(struct instructions *instructions); /* usable with CLEANUP */

#endif
