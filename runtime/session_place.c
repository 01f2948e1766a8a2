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

result
session_place_check(const struct session_tree *record, const char *found, struct error *error) {
    struct view recorded = record->session.begin.workspace;
    const char *id = record->session.id.text;
    if (!view_equals_text(recorded, found)) {
        FAIL(
            error,
            INVALID_INPUT,
            "the workspace of session %s, %.*s, is a link to %.180s now",
            id,
            (int)(recorded.length < 180 ? recorded.length : 180),
            (const char *)recorded.data,
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
            INVALID_INPUT,
            "the workspace of session %s, %.200s, is another directory now, made since",
            id,
            found
        );
    }
    return OK;
}
