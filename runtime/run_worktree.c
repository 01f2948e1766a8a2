/* See run_worktree.h. */
#include "run_worktree.h"

#include "paths.h"
#include "rewind.h"
#include "sandbox/worktree.h"
#include <errno.h>
#include <inttypes.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static result make_directory(const char *path, struct error *error) {
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        FAIL_FOREIGN(error, IO, errno, "cannot make %.400s", path);
    }
    return OK;
}

/* STATE/worktrees, which is made. */
static result
make_place(const struct run_settings *settings, struct buffer *path, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer made = {0};
    TRY(path_state(buffer_text(&settings->state), true, &made, error)); /* its parents */
    TRY(make_directory(buffer_text(&settings->state), error));
    TRY(path_worktrees(buffer_text(&settings->state), path, error));
    return make_directory(buffer_text(path), error);
}

static result
name_copy(const struct run_settings *settings, struct buffer *path, struct error *error) {
    uint32_t id = 0;
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) {
        FAIL(error, IO, "the system gives no random name for the copy");
    }
    TRY(make_place(settings, path, error));
    return buffer_append_format(path, error, "/%08" PRIx32, id);
}

/* A copy of `source` at `path`, on branch hearth/NAME. */
static int make_copy(const struct run_settings *settings, const char *source, const char *path) {
    char branch[64];
    const char *name = strrchr(path, '/');
    int length = snprintf(branch, sizeof branch, "hearth/%.40s", name != NULL ? name + 1 : path);
    ASSERT(length > 0 && (size_t)length < sizeof branch);
    const struct worktree_options options = {
        .source = source,
        .directory = path,
        .branch = branch,
        .lease = settings->worktree_lease,
    };
    struct worktree made = {0};
    struct error error = {0};
    result copied = worktree_create(&options, &made, &error);
    if (copied.code == RESULT_INVALID_INPUT) {
        return cli_fail(STATUS_REFUSED, "--worktree: %s", error.message);
    }
    if (is_failed(copied)) {
        return cli_fail_error(copied, &error);
    }
    return cli_fail(
        STATUS_DONE,
        "works in a copy of %zu files: %s, branch %s%s%s",
        made.files,
        path,
        branch,
        made.skipped > 0 ? "; left out: " : "",
        made.skipped_names
    );
}

int run_worktree_make(struct run_settings *settings) {
    CLEANUP(buffer_deinit) struct buffer path = {0};
    struct error error = {0};
    result named = name_copy(settings, &path, &error);
    if (is_failed(named)) {
        return cli_fail_error(named, &error);
    }
    int status = make_copy(settings, buffer_text(&settings->workspace), buffer_text(&path));
    if (status == STATUS_DONE) {
        settings->worktree_of = settings->workspace;
        settings->workspace = path;
        path = (struct buffer){0};
    }
    return status;
}

/* Whether its files were in the end what they were in the beginning, as far as was recorded. */
static bool changed_nothing(const struct session_tree *record) {
    struct view before = record->session.begin.commit_before;
    struct view after = record->session.commit_after;
    if (after.length == 0) { /* its program died */
        after = rewind_commit_behind(record, INT64_MAX);
    }
    return after.length == 0 || view_equals(before, after);
}

int run_worktree_make_again(struct run_settings *settings, const char *path) {
    CLEANUP(buffer_deinit) struct buffer place = {0};
    struct view source = settings->record->session.begin.worktree_of;
    struct error error = {0};
    if (source.length == 0 || !changed_nothing(settings->record) || access(path, F_OK) == 0) {
        return STATUS_USAGE;
    }
    result prepared = buffer_append(&settings->worktree_of, source, &error);
    if (is_ok(prepared)) {
        prepared = make_place(settings, &place, &error);
    }
    if (is_failed(prepared)) {
        return cli_fail_error(prepared, &error);
    }
    int status = make_copy(settings, buffer_text(&settings->worktree_of), path);
    if (status == STATUS_DONE && is_failed(path_directory(path, &settings->workspace, &error))) {
        return cli_fail(STATUS_REFUSED, "%s", error.message);
    }
    return status;
}

int run_worktree_lease(const struct run_settings *settings, int *fd) {
    struct error error = {0};
    if (*fd >= 0) { /* with the making of the copy */
        return STATUS_DONE;
    }
    result leased = worktree_lease(buffer_text(&settings->workspace), fd, &error);
    if (is_ok(leased) || leased.code == RESULT_NOT_FOUND) {
        return STATUS_DONE;
    }
    return cli_fail_error(leased, &error);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* What takes the work home. */
static result put_way_home(
    const struct run_settings *settings,
    const struct session_id *session,
    struct buffer *out,
    struct error *error
) {
    TRY(buffer_append_format(out, error, "hearth sessions diff %s", session->text));
    TRY(buffer_append(out, buffer_view(&settings->state_option), error));
    TRY(buffer_append_text(out, " | ", error));
    return path_git_apply(buffer_text(&settings->worktree_of), out, error);
}

void run_worktree_end(
    const struct run_settings *settings, const struct session_id *session, int *lease
) {
    const char *copy = buffer_text(&settings->workspace);
    worktree_release(lease);
    if (settings->worktree_of.length == 0) {
        return;
    }
    struct error error = {0};
    result removed = worktree_remove(copy, &error);
    if (is_ok(removed)) {
        (void)cli_fail(STATUS_DONE, "nothing was changed in the copy %s; it is removed", copy);
    }
    if (removed.code != RESULT_INVALID_INPUT || session->text[0] == '\0') {
        if (is_failed(removed) && removed.code != RESULT_NOT_FOUND) {
            (void)cli_fail(STATUS_DONE, "the copy stays: %s", error.message);
        }
        return;
    }
    CLEANUP(buffer_deinit) struct buffer way;
    buffer_init(&way, 32768);
    result told = put_way_home(settings, session, &way, &error);
    (void)cli_fail(STATUS_DONE, "the work is in the copy %s; this takes it home:", copy);
    (void)cli_fail(STATUS_DONE, "%s", is_ok(told) ? buffer_text(&way) : error.message);
}
