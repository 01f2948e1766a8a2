/* See session_place.h. By path and time of birth.
 *
 * Device and inode would tell less and refuse more: a file system gives the inode of a directory that is
 * removed to the next one made, and the number of a device is another one when a disk is mounted again. The
 * time of birth belongs to the directory and survives both. What it cannot tell (a file system without it,
 * an older directory that was moved into the place) is left to the files themselves: whatever is put back
 * or edited is first compared with what was recorded, and is refused where somebody else changed it.
 */
#include "session_place.h"

#include "paths.h"

#include <fcntl.h>
#include <sys/stat.h>

#define AGE_SLACK_MS 2000 /* clocks of file systems lag */

result session_place_resolve(
    struct session_store *store,
    const char *word,
    const char *directory,
    struct session_id *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer here = {0};
    if (strcmp(word, "last") == 0) {
        TRY_NOTE(
            error,
            path_directory(directory != NULL ? directory : ".", &here, error),
            "'last' is of a workspace"
        );
    }
    return session_resolve(store, view_of_text(word), buffer_view(&here), out, error);
}

/* When a run of the session last began there, and looked. */
static int64_t last_begin_ms(const struct session_tree *record) {
    return record->resumption_count > 0
               ? record->resumptions[record->resumption_count - 1].resumed_ms
               : record->session.created_ms;
}

/* Whether the directory that is found at the recorded path is the session's. */
static result
check_found(const struct session_tree *record, const char *found, struct error *error) {
    struct view recorded = record->session.begin.workspace;
    const char *id = record->session.id.text;
    if (!view_equals_text(recorded, found)) {
        FAIL(
            error,
            UNSUPPORTED,
            "the workspace of session %s, %.*s, is a link to %.180s now; to go on there add -C "
            "%.180s",
            id,
            (int)(recorded.length < 180 ? recorded.length : 180),
            (const char *)recorded.data,
            found,
            found
        );
    }
    struct statx about;
    bool has_age = statx(AT_FDCWD, found, AT_SYMLINK_NOFOLLOW, STATX_BTIME, &about) == 0 &&
                   (about.stx_mask & STATX_BTIME) != 0;
    int64_t born_ms = has_age ? about.stx_btime.tv_sec * 1000 : 0;
    if (born_ms > last_begin_ms(record) + AGE_SLACK_MS) {
        FAIL(
            error,
            UNSUPPORTED,
            "the workspace of session %s, %.200s, is another directory now, made since; to go on "
            "there add -C %.200s",
            id,
            found,
            found
        );
    }
    return OK;
}

/* Where it is gone. What a copy had is lost with it, or is brought back by who knows its source. */
static result find_moved(
    const struct session_tree *record,
    const char *given,
    const struct error *why,
    struct buffer *out,
    struct error *error
) {
    bool is_copy = record->session.begin.worktree_of.length > 0;
    if (given == NULL || is_copy) {
        FAIL(
            error,
            NOT_FOUND,
            "the workspace of session %s is gone: %.300s%s",
            record->session.id.text,
            why->message,
            is_copy ? "" : "; if it was moved, add -C DIR"
        );
    }
    struct error missing = {0};
    if (is_failed(path_directory(given, out, &missing))) {
        FAIL(error, INVALID_INPUT, "%s", missing.message);
    }
    return OK;
}

result session_place_find(
    const struct session_tree *record, const char *given, struct buffer *out, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer recorded, found = {0}, other = {0};
    struct error why = {0};
    buffer_init(&recorded, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append(&recorded, record->session.begin.workspace, error));
    if (is_failed(path_directory(buffer_text(&recorded), &found, &why))) {
        return find_moved(record, given, &why, out, error);
    }
    if (given == NULL) {
        TRY(check_found(record, buffer_text(&found), error));
    } else if (is_failed(path_directory(given, &other, error)) || !view_equals(buffer_view(&other), buffer_view(&found))) {
        FAIL(
            error,
            INVALID_INPUT,
            "session %s works in %.200s, not in %.200s",
            record->session.id.text,
            buffer_text(&recorded),
            given
        );
    }
    *out = found;
    found = (struct buffer){0};
    return OK;
}

int session_place_fail(
    const struct cli_arguments *arguments, result failed, const struct error *error
) {
    return failed.code == RESULT_INVALID_INPUT ? cli_usage(arguments, "%s", error->message)
           : failed.code == RESULT_NOT_FOUND || failed.code == RESULT_UNSUPPORTED
               ? cli_fail(STATUS_REFUSED, "%s", error->message)
               : cli_fail_error(failed, error);
}

result session_place_snapshots(
    const struct session_tree *record, const char *state, struct buffer *out, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer recorded;
    buffer_init(&recorded, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append(&recorded, record->session.begin.workspace, error));
    return path_snapshots(state, buffer_text(&recorded), out, error);
}
