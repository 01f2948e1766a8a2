/* hearth sessions delete: a session, its snapshots and its copy of a workspace. */
#include "cli_sessions.h"
#include "paths.h"
#include "retention.h"
#include "session_place.h"

#include "sandbox/worktree.h"

static const struct cli_option delete_options[] = {
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
};

struct deletion {
    struct session_store *store;
    struct session_id id;
    struct buffer copy; /* of a workspace, in which the session worked; empty: none */
};

static void deletion_deinit(struct deletion *deletion) {
    buffer_deinit(&deletion->copy);
    session_store_close(deletion->store);
}

/* A damaged session can be deleted too; its copy is then not known. */
static result find_copy(struct deletion *deletion, struct error *error) {
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    buffer_init(&deletion->copy, BUFFER_CEILING_DEFAULT);
    result loaded = session_load(deletion->store, &deletion->id, NULL, &tree, error);
    if (is_failed(loaded)) {
        return loaded.code == RESULT_CORRUPT ? OK : loaded;
    }
    bool is_copy = tree->session.begin.worktree_of.length > 0;
    return is_copy ? buffer_append(&deletion->copy, tree->session.begin.workspace, error) : OK;
}

/* Unless another session works in it too. */
static result
remove_copy(const struct deletion *deletion, struct buffer *out, struct error *error) {
    const struct session_filter there = {.count_max = 1, .workspace = buffer_view(&deletion->copy)};
    CLEANUP(session_list_cleanup) struct session_list *others = NULL;
    if (deletion->copy.length == 0) {
        return OK;
    }
    TRY(session_list_load(deletion->store, &there, &others, error));
    if (others->count > 0) {
        return OK;
    }
    struct error why = {0};
    result removed = worktree_remove(buffer_text(&deletion->copy), &why);
    if (is_ok(removed) || removed.code == RESULT_NOT_FOUND) {
        return OK;
    }
    TRY(buffer_append_text(out, "its copy of the workspace stays: ", error));
    TRY(sessions_put_text(out, view_of_text(why.message), error));
    return buffer_append_text(out, "\n", error);
}

static result remove_all(
    const struct cli_arguments *arguments,
    struct deletion *deletion,
    struct buffer *out,
    struct error *error
) {
    CLEANUP(retention_deinit) struct retention snapshots = {0};
    CLEANUP(buffer_deinit) struct buffer state = {0};
    TRY(session_place_resolve(deletion->store, arguments->words[0], NULL, &deletion->id, error));
    TRY(find_copy(deletion, error));
    TRY(session_delete(deletion->store, &deletion->id, error));
    TRY(buffer_append_format(out, error, "deleted session %s\n", deletion->id.text));
    TRY(remove_copy(deletion, out, error));
    TRY(cli_state(arguments, false, &state, error));
    const struct retention_options unreferred = {
        .state = buffer_text(&state),
        .store = deletion->store,
        .bytes_max = RETENTION_NO_BOUND,
        .until_ms = INT64_MAX,
    };
    TRY_NOTE(
        error,
        retention_apply(&unreferred, &snapshots, error),
        "session %s is deleted, but not its snapshots (hearth sessions prune)",
        deletion->id.text
    );
    return OK;
}

static int sessions_delete(const struct cli_arguments *arguments) {
    if (arguments->word_count == 0) {
        return cli_usage(arguments, "the session to delete must be named");
    }
    CLEANUP(deletion_deinit) struct deletion deletion = {0};
    int status = sessions_open(arguments, SESSIONS_WRITE, &deletion.store, NULL);
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    result removed = remove_all(arguments, &deletion, &text, &error);
    return sessions_print(removed, &error, &text);
}

const struct cli_command command_sessions_delete = {
    .path = "sessions delete",
    .operands = "ID",
    .summary = "remove a session, its snapshots and its copy of the workspace",
    .text =
        "ID is an id, the beginning of one, or 'last': the newest session of the current "
        "directory.\n"
        "Its files stay. Refused, with their names, while forks refer to it, and beside a run. A "
        "copy\n"
        "of --worktree in which something was changed stays and is named. What the cache on disk "
        "has\n"
        "of its context goes with the cache (hearth cache evict), copies of the database that an\n"
        "older version left (sessions.db.version-N) stay.\n",
    .options = delete_options,
    .option_count = COUNT_OF(delete_options),
    .words_max = 1,
    .run = sessions_delete,
};
