/* hearth sessions prune: the snapshots of workspaces brought below a bound, and copies in which nothing was
 * changed removed; or what that would take. */
#include "cli_sessions.h"
#include "config.h"
#include "paths.h"
#include "retention.h"

#include "sandbox/worktree.h"
#include <inttypes.h>

#define SESSIONS_SHOWN 50

static const struct cli_option prune_options[] = {
    {"max", 0, "SIZE", "keep at most SIZE (default: sessions.snapshots_max of the configuration)"},
    {"dry-run", 0, NULL, "say what would go, remove nothing"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
    {"json", 0, NULL, "one JSON object"},
};

/* The bound, or a status that is not STATUS_DONE. */
static int find_bound(const struct cli_arguments *arguments, uint64_t *bytes_max) {
    if (cli_has(arguments, "max")) {
        return cli_size(arguments, "max", bytes_max) ? STATUS_DONE : STATUS_USAGE;
    }
    const struct config_options user = {.ignores_project = true};
    CLEANUP(config_cleanup) struct config *config = NULL;
    struct error error = {0};
    result loaded = config_load(&user, &config, &error);
    if (is_failed(loaded)) {
        return cli_fail(STATUS_USAGE, "%s", error.message);
    }
    const struct config_size *size = &config->sessions_snapshots_max;
    *bytes_max = size->is_off ? RETENTION_NO_BOUND : size->bytes;
    return STATUS_DONE;
}

struct pruned {
    struct retention snapshots;
    struct worktree_swept copies;
    bool is_trial;
};

static result put_copies(
    const struct worktree_swept *copies, bool is_trial, struct buffer *out, struct error *error
) {
    if (copies->removed > 0) {
        TRY(buffer_append_format(
            out,
            error,
            "copies of workspaces without changes, %s: %zu\n",
            is_trial ? "would go" : "removed",
            copies->removed
        ));
    }
    if (copies->kept > 0) {
        TRY(buffer_append_format(out, error, "copies with changes, which stay: %zu, ", copies->kept)
        );
        TRY(sessions_put_text(out, view_of_text(copies->kept_names), error));
        TRY(buffer_append_text(out, "\n", error));
    }
    return OK;
}

static result put_text(const struct pruned *pruned, struct buffer *out, struct error *error) {
    const struct retention *retention = &pruned->snapshots;
    bool is_trial = pruned->is_trial;
    TRY(buffer_append_format(out, error, "snapshots of %zu workspaces: ", retention->workspaces));
    TRY(cli_put_bytes(out, retention->bytes_before, error));
    TRY(buffer_append_text(out, is_trial ? "; would go: " : "; removed: ", error));
    TRY(cli_put_bytes(out, retention->bytes_before - retention->bytes_after, error));
    TRY(buffer_append_text(out, "\n", error));
    for (size_t i = 0; i < retention->loss_count && i < SESSIONS_SHOWN; i++) {
        const struct retention_loss *loss = &retention->losses[i];
        char used[32];
        sessions_time_text(loss->used_ms, used);
        TRY(buffer_append_format(
            out,
            error,
            "%s  %s  %s %zu of %zu snapshots\n",
            loss->session.text,
            used,
            is_trial ? "would lose" : "lost",
            loss->lost,
            loss->count
        ));
    }
    if (retention->loss_count > SESSIONS_SHOWN) {
        TRY(buffer_append_format(
            out, error, "... and %zu older sessions\n", retention->loss_count - SESSIONS_SHOWN
        ));
    }
    if (retention->damaged > 0) {
        TRY(buffer_append_format(
            out,
            error,
            "%zu snapshots are damaged; what is left of them stays\n",
            retention->damaged
        ));
    }
    return put_copies(&pruned->copies, is_trial, out, error);
}

static result put_json(const struct pruned *pruned, struct buffer *out, struct error *error) {
    const struct retention *retention = &pruned->snapshots;
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "is_dry_run");
    json_write_bool(&writer, pruned->is_trial);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"workspaces", retention->workspaces},
        {"bytes_before", retention->bytes_before},
        {"bytes_after", retention->bytes_after},
        {"damaged", retention->damaged},
        {"copies_removed", pruned->copies.removed},
        {"copies_kept", pruned->copies.kept},
    };
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        json_write_key(&writer, numbers[i].name);
        json_write_i64(&writer, (int64_t)numbers[i].value);
    }
    json_write_key(&writer, "sessions");
    json_write_array_begin(&writer);
    for (size_t i = 0; i < retention->loss_count; i++) {
        const struct retention_loss *loss = &retention->losses[i];
        json_write_object_begin(&writer);
        json_write_key(&writer, "id");
        json_write_text(&writer, loss->session.text);
        json_write_key(&writer, "lost");
        json_write_i64(&writer, (int64_t)loss->lost);
        json_write_key(&writer, "snapshots");
        json_write_i64(&writer, (int64_t)loss->count);
        json_write_object_end(&writer);
    }
    json_write_array_end(&writer);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(out, "\n", error);
}

static void pruned_deinit(struct pruned *pruned) {
    retention_deinit(&pruned->snapshots);
}

static result
prune(const struct retention_options *options, struct pruned *out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer copies = {0};
    TRY(retention_apply(options, &out->snapshots, error));
    TRY(path_worktrees(options->state, &copies, error));
    return worktree_sweep(buffer_text(&copies), options->is_trial, &out->copies, error);
}

static int sessions_prune(const struct cli_arguments *arguments) {
    struct retention_options options = {
        .until_ms = INT64_MAX, .is_trial = cli_has(arguments, "dry-run")};
    int status = find_bound(arguments, &options.bytes_max);
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    if (status == STATUS_DONE) { /* what would go is also told beside a run */
        enum sessions_use use = options.is_trial ? SESSIONS_READ : SESSIONS_READ_ALONE;
        status = sessions_open(arguments, use, &store, NULL);
    }
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(buffer_deinit) struct buffer state = {0}, text = {0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    CLEANUP(pruned_deinit) struct pruned pruned = {.is_trial = options.is_trial};
    struct error error = {0};
    result made = cli_state(arguments, false, &state, &error);
    if (is_ok(made)) {
        options.state = buffer_text(&state);
        options.store = store;
        made = prune(&options, &pruned, &error);
    }
    if (is_ok(made)) {
        made = cli_has(arguments, "json") ? put_json(&pruned, &text, &error)
                                          : put_text(&pruned, &text, &error);
    }
    return sessions_print(made, &error, &text);
}

const struct cli_command command_sessions_prune = {
    .path = "sessions prune",
    .operands = "",
    .summary = "remove the oldest snapshots of workspaces above a bound",
    .text =
        "Snapshots are what undo, rewind and diff go by. Those of sessions used last stay; a "
        "session\n"
        "whose snapshots went can be shown and resumed as before. What no session refers to goes\n"
        "always. A run does the same at its end, within two seconds; this command is refused "
        "while\n"
        "one works (exit status 3), but for --dry-run. Copies of --worktree in which nothing was\n"
        "changed go too; the others are named.\n",
    .options = prune_options,
    .option_count = COUNT_OF(prune_options),
    .run = sessions_prune,
};
