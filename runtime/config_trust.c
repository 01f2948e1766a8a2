/* See config_trust.h. The file's name is the workspace's digest, its lines are the digest and the path. */
#include "config_trust.h"

#include "paths.h"
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

#define FOLDER           "trusted"
#define RECORD_BYTES_MAX ((size_t)2 * PATH_MAX)

static result
name_record(const char *state, const char *workspace, struct buffer *out, struct error *error) {
    char hex[SHA256_HEX_BYTES];
    sha256_hex(view_of_text(workspace), hex);
    buffer_init(out, RECORD_BYTES_MAX);
    return buffer_append_format(out, error, "%s/" FOLDER "/%s", state, hex);
}

result config_trust_look(
    const char *state,
    const char *workspace,
    const char *digest,
    enum config_trust *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer path = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, RECORD_BYTES_MAX);
    TRY(name_record(state, workspace, &path, error));
    result read = file_read(buffer_text(&path), &text, error);
    if (read.code == RESULT_NOT_FOUND) {
        *out = CONFIG_TRUST_NEW;
        return OK;
    }
    TRY_NOTE(error, read, "what was accepted of %.300s", workspace);
    size_t newline = view_find(buffer_view(&text), view_of_text("\n"), 0);
    struct view known = view_slice(buffer_view(&text), 0, newline == SIZE_MAX ? 0 : newline);
    *out = view_equals_text(known, digest) ? CONFIG_TRUST_SAME : CONFIG_TRUST_CHANGED;
    return OK;
}

result config_trust_record(
    const char *state, const char *workspace, const char *digest, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer path = {0};
    CLEANUP(buffer_deinit) struct buffer folder;
    CLEANUP(buffer_deinit) struct buffer text;
    TRY(path_state(state, true, &path, error)); /* its parents */
    buffer_init(&folder, RECORD_BYTES_MAX);
    buffer_init(&text, RECORD_BYTES_MAX);
    TRY(buffer_append_format(&folder, error, "%s/" FOLDER, state));
    const char *const made[] = {state, buffer_text(&folder)};
    for (size_t i = 0; i < COUNT_OF(made); i++) {
        if (mkdir(made[i], 0700) != 0 && errno != EEXIST) {
            FAIL_FOREIGN(error, IO, errno, "cannot make %.400s: %s", made[i], strerror(errno));
        }
    }
    buffer_deinit(&path);
    TRY(name_record(state, workspace, &path, error));
    TRY(buffer_append_format(&text, error, "%s\n%s\n", digest, workspace));
    return path_replace(buffer_text(&path), buffer_view(&text), error);
}
