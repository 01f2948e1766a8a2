/* See run_worktree.h. */
#include "run_worktree.h"

#include "paths.h"
#include "sandbox/worktree.h"
#include <errno.h>
#include <inttypes.h>
#include <sys/random.h>
#include <sys/stat.h>

static result make_directory(const char *path, struct error *error) {
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        FAIL_FOREIGN(error, IO, errno, "cannot make %.400s", path);
    }
    return OK;
}

/* STATE/worktrees/ID and hearth/ID. */
static result name_copy(
    const struct run_settings *settings, struct buffer *path, char branch[32], struct error *error
) {
    uint32_t id = 0;
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) {
        FAIL(error, IO, "the system gives no random name for the copy");
    }
    int length = snprintf(branch, 32, "hearth/%08" PRIx32, id);
    ASSERT(length > 0 && length < 32);
    CLEANUP(buffer_deinit) struct buffer made = {0};
    TRY(path_state(buffer_text(&settings->state), true, &made, error)); /* its parents */
    TRY(make_directory(buffer_text(&settings->state), error));
    buffer_init(path, 8192);
    TRY(buffer_append_format(path, error, "%s/worktrees", buffer_text(&settings->state)));
    TRY(make_directory(buffer_text(path), error));
    return buffer_append_format(path, error, "/%08" PRIx32, id);
}

int run_worktree_make(struct run_settings *settings) {
    CLEANUP(buffer_deinit) struct buffer path = {0};
    char branch[32];
    struct worktree made = {0};
    struct error error = {0};
    result copied = name_copy(settings, &path, branch, &error);
    if (is_ok(copied)) {
        const struct worktree_options options = {
            .source = buffer_text(&settings->workspace),
            .directory = buffer_text(&path),
            .branch = branch,
        };
        copied = worktree_create(&options, &made, &error);
    }
    if (copied.code == RESULT_INVALID_INPUT) {
        return cli_fail(STATUS_REFUSED, "--worktree: %s", error.message);
    }
    if (is_failed(copied)) {
        return cli_fail_error(copied, &error);
    }
    (void)cli_fail(
        STATUS_DONE,
        "works in a copy of %zu files: %s, branch %s%s%s",
        made.files,
        buffer_text(&path),
        branch,
        made.skipped > 0 ? "; left out: " : "",
        made.skipped_names
    );
    buffer_deinit(&settings->workspace);
    settings->workspace = path;
    path = (struct buffer){0};
    return STATUS_DONE;
}

int run_worktree_lease(const struct run_settings *settings, int *fd) {
    struct error error = {0};
    *fd = -1;
    result leased = worktree_lease(buffer_text(&settings->workspace), fd, &error);
    if (is_ok(leased) || leased.code == RESULT_NOT_FOUND) {
        return STATUS_DONE;
    }
    return cli_fail_error(leased, &error);
}
