/* Hooks: a person's executables that see each call before and after it, and the end of a run.
 *
 * A hook runs in the sandbox of the session's commands, without a network, with the event as one JSON
 * object on its standard input, for a limited time and with limited output. Exit status 0: go on; 2:
 * refuse, standard error is the reason; any other: a warning. A hook before a tool that cannot do its
 * work (missing, ended by a signal or the time limit, too much output) refuses the call; one after a
 * tool or at the end is a note, and the run goes on. Thread: a worker that is kept (see
 * sandbox/sandbox.h); calls block.
 */
#ifndef HEARTH_RUNTIME_HOOKS_H
#define HEARTH_RUNTIME_HOOKS_H

#include "config.h"
#include "sandbox/sandbox.h"
#include "tools/tool.h"

#define HOOK_TEXT_BYTES_MAX   ((size_t)8 << 10)   /* kept of what one hook writes */
#define HOOK_RESULT_BYTES_MAX ((size_t)256 << 10) /* of a tool's text that a hook is shown */
#define HOOK_NOTES_MAX        16
#define HOOK_NOTE_BYTES       320

enum hook_event { HOOK_BEFORE_TOOL, HOOK_AFTER_TOOL, HOOK_STOP };
const char *hook_event_name(enum hook_event event); /* "before_tool", "after_tool", "stop" */

struct hooks {
    const struct config *config; /* with the hooks; borrowed */
    struct sandbox *sandbox;     /* null: none can run */
    /* Of the session's commands: workspace, limits and protected paths, among which should be .hearth.
     * Time, output, network and further paths are the hooks' own. */
    const struct sandbox_policy *policy;
    /* The directory that the configuration was read in, where the workspace is a copy of it: the copy's hooks are
     * run. Null: they are the same. */
    const char *origin;
};

/* What happens; all of it is borrowed, and may be empty. */
struct hook_subject {
    struct view session;
    struct view tool;                 /* our name */
    struct view arguments;            /* as the model wrote them */
    const struct tool_result *result; /* after a tool */
    struct view reason;               /* at the end: why it ends, a word */
    struct view text;                 /* and the last answer */
};

struct hook_report {
    bool
        is_refused; /* before: the call; at the end: the end, the run should go on; after: remarks */
    bool is_cancelled;
    struct buffer reason; /* of the refusal, for the model: "hook check: ..." */
    struct buffer text;   /* what hooks after a tool wrote, to be put behind its text */
    char notes[HOOK_NOTES_MAX][HOOK_NOTE_BYTES]; /* for the person, one line each */
    size_t note_count;
};

/* Whether any hook wants to see this; false without doing anything costly. `tool` is empty at the end. */
bool hooks_apply(const struct hooks *hooks, enum hook_event event, struct view tool);

/* Notes about those that cannot run as things are: missing, no executable. `out` may be
 * deinitialised. */
void hooks_check(const struct hooks *hooks, struct hook_report *out);

/* Runs those that do, in order; before a tool up to the first that refuses. `cancel_fd` (-1: none)
 * ends them when it becomes readable: is_cancelled, and before a tool is_refused. `out` is set in every
 * case and may be deinitialised. Expected errors: MEMORY. */
MUST_CHECK result hooks_run(
    const struct hooks *hooks,
    enum hook_event event,
    const struct hook_subject *subject,
    int cancel_fd,
    struct hook_report *out,
    struct error *error
);
void hook_report_deinit(struct hook_report *report); /* usable with CLEANUP */

#endif
