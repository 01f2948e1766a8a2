/* hearth sessions fork, rewind, undo and diff: other ways to go on from a recorded session. */
#include "cli_sessions.h"
#include "rewind.h"
#include "session_place.h"

#include "sandbox/workspace.h"
#include "sessions/session_swarm.h"
#include <inttypes.h>
#include <unistd.h>

#define PATCH_BYTES_MAX ((size_t)64 << 20)

/* What a command works on. */
struct branch {
    const struct cli_arguments *arguments;
    struct session_store *store;
    struct session_id id;
    struct session_tree *tree;
    int64_t index; /* of the turn; -1: before the first */
};

static void branch_close(struct branch *branch) {
    session_tree_destroy(branch->tree);
    session_store_close(branch->store);
}

static int branch_open(struct branch *branch, enum sessions_use use) {
    int status = sessions_open(branch->arguments, use, &branch->store, NULL);
    if (status != STATUS_DONE) {
        return status;
    }
    const struct cli_arguments *arguments = branch->arguments;
    const char *word = arguments->word_count > 0 ? arguments->words[0] : "last";
    struct error error = {0};
    result found = session_place_resolve(branch->store, word, NULL, &branch->id, &error);
    if (is_ok(found)) {
        found = session_load(branch->store, &branch->id, NULL, &branch->tree, &error);
    }
    return is_failed(found) ? cli_fail_error(found, &error) : STATUS_DONE;
}

/* --turn N, counted from 1 as `sessions show` does; absent: the newest turn one can go on behind. */
static int branch_turn(struct branch *branch, int64_t least) {
    int64_t turn = 0;
    if (!cli_i64(branch->arguments, "turn", least, INT32_MAX, &turn)) {
        return STATUS_USAGE;
    }
    branch->index = turn - 1;
    if (cli_has(branch->arguments, "turn")) {
        return STATUS_DONE;
    }
    struct error error = {0};
    result found =
        session_last_whole_turn(branch->store, &branch->id, INT64_MAX, &branch->index, &error);
    return is_failed(found) ? cli_fail_error(found, &error) : STATUS_DONE;
}

/* The store of its snapshots. */
static result
find_snapshots(const struct branch *branch, struct buffer *snapshots, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer state = {0};
    TRY(cli_state(branch->arguments, false, &state, error));
    return session_place_snapshots(branch->tree, buffer_text(&state), snapshots, error);
}

/* The workspace, to put files back there: the directory that the session worked in, or what a person names
 * in its place. An exit status. */
static int open_workspace(const struct branch *branch, struct workspace **out) {
    CLEANUP(buffer_deinit) struct buffer directory = {0}, snapshots = {0};
    const char *given = cli_value(branch->arguments, "directory");
    struct error error = {0};
    result found = session_place_find(branch->tree, given, &directory, &error);
    if (is_failed(found)) {
        return session_place_fail(branch->arguments, found, &error);
    }
    result opened = find_snapshots(branch, &snapshots, &error);
    if (is_ok(opened)) {
        opened = workspace_open(buffer_text(&directory), buffer_text(&snapshots), out, &error);
    }
    return is_ok(opened) ? STATUS_DONE : cli_fail_error(opened, &error);
}

/* The snapshots alone: the workspace may be gone. */
static result
open_snapshots(const struct branch *branch, struct workspace **out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer snapshots = {0};
    TRY(find_snapshots(branch, &snapshots, error));
    return workspace_open_store(buffer_text(&snapshots), out, error);
}

/* A recorded commit as libgit2's callers want it; anything else is no snapshot. */
static result
commit_copy(struct view commit, char out[WORKSPACE_COMMIT_BYTES], struct error *error) {
    if (commit.length != WORKSPACE_COMMIT_BYTES - 1) {
        FAIL(error, NOT_FOUND, "the session has no snapshot of its workspace there");
    }
    memcpy(out, commit.data, commit.length);
    out[commit.length] = '\0';
    return OK;
}

/* ---- fork ----------------------------------------------------------------------------------- */

static const struct cli_option fork_options[] = {
    {"turn", 0, "N", "go on behind turn N (default: the newest whose calls are all answered)"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
};

static int sessions_fork(const struct cli_arguments *arguments) {
    CLEANUP(branch_close) struct branch branch = {.arguments = arguments};
    int status = branch_open(&branch, SESSIONS_WRITE);
    status = status == STATUS_DONE ? branch_turn(&branch, 1) : status;
    if (status != STATUS_DONE) {
        return status;
    }
    const struct session_fork_begin begin = {
        .session = branch.id,
        .index = branch.index,
        .commit = rewind_commit_behind(branch.tree, branch.index),
        .program_version = view_of_text(HEARTH_VERSION),
    };
    struct session_id id = {""};
    struct error error = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    result made = session_fork(branch.store, &begin, &id, &error);
    if (is_ok(made)) {
        made = buffer_append_format(
            &text,
            &error,
            "%s\nforked from %s behind turn %" PRId64 "; go on with: hearth run --resume %s "
            "\"new task\"\n",
            id.text,
            branch.id.text,
            branch.index + 1,
            id.text
        );
    }
    return sessions_print(made, &error, &text);
}

const struct cli_command command_sessions_fork = {
    .path = "sessions fork",
    .operands = "[ID]",
    .summary = "a new session that goes on behind a turn of a recorded one",
    .text =
        "ID is an id, the beginning of one, or 'last' (the default): the newest session of the\n"
        "current directory. The new session refers to the turns before it, nothing is copied; its\n"
        "id is printed first. Files are not changed.\n",
    .options = fork_options,
    .option_count = COUNT_OF(fork_options),
    .words_max = 1,
    .run = sessions_fork,
};

/* ---- rewind and undo ------------------------------------------------------------------------ */

static const struct cli_option rewind_options[] = {
    {"turn", 0, "N", "the last turn that stays; 0: none (must be given)"},
    {"keep-files", 0, NULL, "the context alone; files stay as they are"},
    {"directory", 'C', "DIR", "the workspace, if it was moved or made anew since"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
};

static int sessions_rewind(const struct cli_arguments *arguments) {
    if (!cli_has(arguments, "turn")) {
        return cli_usage(arguments, "--turn says how far to go back");
    }
    CLEANUP(branch_close) struct branch branch = {.arguments = arguments};
    int status = branch_open(&branch, SESSIONS_WRITE);
    status = status == STATUS_DONE ? branch_turn(&branch, 0) : status;
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct workspace_undone undone;
    struct error error = {0};
    status = cli_has(arguments, "keep-files") ? STATUS_DONE : open_workspace(&branch, &workspace);
    if (status != STATUS_DONE) {
        return status;
    }
    result made =
        rewind_to_turn(branch.store, branch.tree, workspace, branch.index, &undone, &error);
    if (is_ok(made)) {
        made = buffer_append_format(
            &text,
            &error,
            "session %s ends behind turn %" PRId64 " now; %zu file%s put back\n",
            branch.id.text,
            branch.index + 1,
            undone.files,
            undone.files == 1 ? "" : "s"
        );
    }
    return sessions_print(made, &error, &text);
}

const struct cli_command command_sessions_rewind = {
    .path = "sessions rewind",
    .operands = "[ID] --turn N",
    .summary = "take a session and its files back to an earlier turn",
    .text =
        "ID is an id, the beginning of one, or 'last' (the default): the newest session of the\n"
        "current directory. The turns behind stay in the record and leave the context. Files that\n"
        "calls behind the turn changed become what they were; refused, with names, when somebody\n"
        "else changed one of them since.\n",
    .options = rewind_options,
    .option_count = COUNT_OF(rewind_options),
    .words_max = 1,
    .run = sessions_rewind,
};

static const struct cli_option undo_options[] = {
    {"directory", 'C', "DIR", "the workspace, if it was moved or made anew since"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
};

static int sessions_undo(const struct cli_arguments *arguments) {
    CLEANUP(branch_close) struct branch branch = {.arguments = arguments};
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    int status = branch_open(&branch, SESSIONS_WRITE);
    status = status == STATUS_DONE ? open_workspace(&branch, &workspace) : status;
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct workspace_undone undone;
    struct error error = {0};
    result made = rewind_undo(branch.store, branch.tree, workspace, &undone, &error);
    if (is_ok(made)) {
        made = buffer_append_format(
            &text, &error, "%zu file%s put back\n", undone.files, undone.files == 1 ? "" : "s"
        );
    }
    return sessions_print(made, &error, &text);
}

const struct cli_command command_sessions_undo = {
    .path = "sessions undo",
    .operands = "[ID]",
    .summary = "take back the files of the newest call that changed some",
    .text =
        "ID is an id, the beginning of one, or 'last' (the default): the newest session of the\n"
        "current directory. The context stays; once more takes back the call before. Refused,\n"
        "with names, when somebody else changed a file since.\n",
    .options = undo_options,
    .option_count = COUNT_OF(undo_options),
    .words_max = 1,
    .run = sessions_undo,
};

/* ---- diff ----------------------------------------------------------------------------------- */

static const struct cli_option diff_options[] = {
    {"turn", 0, "N", "only what turn N changed"},
    {"agent", 0, "NAME", "what this agent of a swarm made, whether it was merged or not"},
    {"stat", 0, NULL, "files and lines instead of the patch"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
};

/* Snapshots around the work of one agent of a swarm. */
static int agent_ends(const struct branch *branch, struct view *from, struct view *to) {
    const char *name = cli_value(branch->arguments, "agent");
    const struct session_tree *tree = branch->tree;
    const struct session_node *node = NULL;
    if (cli_has(branch->arguments, "turn")) {
        return cli_usage(branch->arguments, "--agent and --turn: one of them");
    }
    for (size_t i = 0; i < tree->agent_count; i++) { /* of two swarms' agents the newer one */
        const struct session_agent *agent = &tree->agents[i];
        bool is_named = view_equals_text(agent->name, name) || strcmp(agent->id.text, name) == 0;
        node = is_named && agent->node != NULL ? agent->node : node;
    }
    if (node == NULL) {
        return cli_fail(
            STATUS_DATA,
            "session %s has no agent '%.60s' of a swarm: see hearth sessions show --tree",
            branch->id.text,
            name
        );
    }
    if (node->end.commit_after.length == 0) {
        return cli_fail(STATUS_DATA, "agent '%.60s' has made nothing that is kept", name);
    }
    *from = node->commit_before;
    *to = node->end.commit_after;
    return STATUS_DONE;
}

/* Snapshots around one turn, or around the session. */
static int diff_ends(struct branch *branch, struct view *from, struct view *to) {
    *from = branch->tree->session.begin.commit_before;
    *to = branch->tree->session.commit_after;
    if (to->length == 0) { /* it still runs, or its program died */
        *to = rewind_commit_behind(branch->tree, INT64_MAX);
    }
    if (cli_has(branch->arguments, "agent")) {
        return agent_ends(branch, from, to);
    }
    if (!cli_has(branch->arguments, "turn")) {
        return STATUS_DONE;
    }
    int status = branch_turn(branch, 1);
    *from = rewind_commit_behind(branch->tree, branch->index - 1);
    *to = rewind_commit_behind(branch->tree, branch->index);
    return status;
}

static result diff_write(
    const struct branch *branch,
    struct view from,
    struct view to,
    struct buffer *out,
    struct error *error
) {
    char before[WORKSPACE_COMMIT_BYTES], after[WORKSPACE_COMMIT_BYTES];
    TRY(commit_copy(from, before, error));
    TRY(commit_copy(to, after, error));
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    TRY(open_snapshots(branch, &workspace, error));
    bool stat = cli_has(branch->arguments, "stat");
    struct workspace_difference difference = {0};
    bool is_seen = stat || isatty(STDOUT_FILENO) == 1; /* by a person: no binary contents */
    result compared =
        (is_seen ? workspace_compare : workspace_compare_whole
        )(workspace, before, after, stat ? 0 : PATCH_BYTES_MAX, &difference, error);
    TRY(rewind_note_lost(compared, &branch->id, error));
    result made = OK;
    if (!stat && difference.patch_truncated) {
        made = error_set(
            error,
            RESULT_LIMIT,
            0,
            __FILE__,
            __LINE__,
            "the patch has more than %zu bytes: see --stat, or --turn N",
            PATCH_BYTES_MAX
        );
    } else if (!stat && difference.patch != NULL) {
        made = buffer_append(out, view_of(difference.patch, difference.patch_bytes), error);
    }
    for (size_t i = 0; stat && is_ok(made) && i < difference.file_count; i++) {
        const struct workspace_file_change *file = &difference.files[i];
        made = buffer_append_format(
            out,
            error,
            "%s\t+%zu -%zu%s\n",
            file->path,
            file->lines_added,
            file->lines_removed,
            file->binary ? " (binary)" : ""
        );
    }
    workspace_difference_deinit(&difference);
    return made;
}

static int sessions_diff(const struct cli_arguments *arguments) {
    CLEANUP(branch_close) struct branch branch = {.arguments = arguments};
    struct view from, to;
    int status = branch_open(&branch, SESSIONS_READ);
    status = status == STATUS_DONE ? diff_ends(&branch, &from, &to) : status;
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, PATCH_BYTES_MAX + ((size_t)1 << 20));
    struct error error = {0};
    result made = diff_write(&branch, from, to, &text, &error);
    return sessions_print(made, &error, &text);
}

const struct cli_command command_sessions_diff = {
    .path = "sessions diff",
    .operands = "[ID]",
    .summary = "what a session changed in its workspace, as a patch",
    .text =
        "ID is an id, the beginning of one, or 'last' (the default): the newest session of the\n"
        "current directory. The patch is for git apply or patch -p1; on a terminal binary files\n"
        "are left out, and control characters are shown as escapes.\n",
    .options = diff_options,
    .option_count = COUNT_OF(diff_options),
    .words_max = 1,
    .run = sessions_diff,
};
