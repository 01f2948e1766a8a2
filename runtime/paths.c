#include "paths.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_file(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Directory of this executable. */
static result executable_directory(char out[PATH_MAX], struct error *error) {
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (length <= 0) {
        int error_number = errno;
        FAIL_FOREIGN(
            error, IO, error_number, "cannot read /proc/self/exe: %s", strerror(error_number)
        );
    }
    out[length] = '\0';
    char *slash = strrchr(out, '/');
    ASSERT(slash != NULL);
    *slash = '\0';
    return OK;
}

result path_model_default(struct buffer *out, struct error *error) {
    static const char *const places[] = {"../share/hearth/mini", "../../../examples/mini/model"};
    char directory[PATH_MAX];
    TRY(executable_directory(directory, error));
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        char file[2 * PATH_MAX];
        int length = snprintf(file, sizeof file, "%s/%s/config.json", directory, places[i]);
        ASSERT(length > 0 && (size_t)length < sizeof file);
        if (is_file(file)) {
            char joined[2 * PATH_MAX];
            length = snprintf(joined, sizeof joined, "%s/%s", directory, places[i]);
            ASSERT(length > 0 && (size_t)length < sizeof joined);
            return path_directory(joined, out, error);
        }
    }
    FAIL(
        error,
        NOT_FOUND,
        "the bundled model is neither in %.150s/%s nor in %.150s/%s: name one with --model DIR",
        directory,
        places[0],
        directory,
        places[1]
    );
}

static result make_directories(char *path, struct error *error) {
    for (char *at = path + 1; *at != '\0'; at++) {
        if (*at != '/') {
            continue;
        }
        *at = '\0';
        int status = mkdir(path, 0700);
        int error_number = errno;
        *at = '/';
        if (status != 0 && error_number != EEXIST) {
            FAIL_FOREIGN(
                error,
                IO,
                error_number,
                "cannot make the parents of the state directory %.300s: %s",
                path,
                strerror(error_number)
            );
        }
    }
    return OK;
}

result path_home(const char **out, struct error *error) {
    const char *home = getenv("HOME");
    if (home == NULL || home[0] != '/') {
        const struct passwd *user = getpwuid(geteuid());
        home = user != NULL ? user->pw_dir : NULL;
    }
    if (home == NULL || home[0] != '/') {
        FAIL(
            error, NOT_FOUND, "there is no home directory: name a state directory with --state DIR"
        );
    }
    *out = home;
    return OK;
}

result path_config(struct buffer *out, struct error *error) {
    const char *base = getenv("XDG_CONFIG_HOME");
    const char *home = NULL;
    buffer_init(out, PATH_MAX);
    if (base != NULL && base[0] == '/') {
        return buffer_append_format(out, error, "%s/hearth", base);
    }
    TRY(path_home(&home, error));
    return buffer_append_format(out, error, "%s/.config/hearth", home);
}

/* Appends the parts of what is not there yet to a resolved path. */
static result append_missing(struct buffer *out, const char *rest, struct error *error) {
    for (const char *at = rest; *at != '\0';) {
        at += strspn(at, "/");
        struct view part = view_of(at, strcspn(at, "/"));
        if (view_equals_text(part, "..")) {
            while (out->length > 0 && out->data[--out->length] != '/') {
            }
        } else if (part.length > 0 && !view_equals_text(part, ".")) {
            bool has_slash = out->length > 0 && out->data[out->length - 1] == '/';
            TRY(has_slash ? OK : buffer_append_byte(out, '/', error));
            TRY(buffer_append(out, part, error));
        }
        at += part.length;
    }
    return out->length == 0 ? buffer_append_byte(out, '/', error) : OK;
}

result path_absolute(const char *given, struct buffer *out, struct error *error) {
    char path[PATH_MAX];
    char here[PATH_MAX] = "";
    char resolved[PATH_MAX];
    buffer_init(out, PATH_MAX);
    if (given[0] != '/' && getcwd(here, sizeof here) == NULL) {
        FAIL(error, IO, "the current directory is gone");
    }
    int length = snprintf(path, sizeof path, "%s/%s", here, given);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "a path of more than %d bytes: %.200s", PATH_MAX - 1, given);
    }
    size_t end = (size_t)length;
    while (end > 0) { /* the longest beginning that is there */
        char cut = path[end];
        path[end] = '\0';
        bool is_there = realpath(path, resolved) != NULL;
        path[end] = cut;
        if (is_there) {
            TRY(buffer_append_text(out, resolved, error));
            break;
        }
        while (end > 0 && path[--end] != '/') {
        }
    }
    return append_missing(out, path + end, error);
}

result path_state(const char *given, bool make, struct buffer *out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer place;
    buffer_init(&place, PATH_MAX);
    buffer_init(out, PATH_MAX);
    const char *base = getenv("XDG_STATE_HOME");
    if (given != NULL && given[0] == '\0') {
        FAIL(error, INVALID_INPUT, "the name of the state directory is empty");
    }
    if (given != NULL) {
        TRY(buffer_append_text(&place, given, error));
    } else if (base != NULL && base[0] == '/') {
        TRY(buffer_append_format(&place, error, "%s/hearth", base));
    } else {
        const char *home = NULL;
        TRY(path_home(&home, error));
        TRY(buffer_append_format(&place, error, "%s/.local/state/hearth", home));
    }
    TRY(path_absolute(buffer_text(&place), out, error));
    return make ? make_directories((char *)out->data, error) : OK;
}

result path_directory(const char *given, struct buffer *out, struct error *error) {
    char resolved[PATH_MAX];
    if (realpath(given, resolved) == NULL) {
        int error_number = errno;
        FAIL_FOREIGN(error, NOT_FOUND, error_number, "%.300s: %s", given, strerror(error_number));
    }
    struct stat info;
    if (stat(resolved, &info) != 0 || !S_ISDIR(info.st_mode)) {
        FAIL(error, INVALID_INPUT, "%.300s is not a directory", given);
    }
    buffer_init(out, PATH_MAX);
    return buffer_append_text(out, resolved, error);
}

result path_cache(const char *state, struct buffer *out, struct error *error) {
    buffer_init(out, PATH_MAX);
    return buffer_append_format(out, error, "%s/cache", state);
}

result path_worktrees(const char *state, struct buffer *out, struct error *error) {
    buffer_init(out, PATH_MAX);
    return buffer_append_format(out, error, "%s/worktrees", state);
}

result path_quote(const char *path, struct buffer *out, struct error *error) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+,=";
    if (path[0] != '\0' && path[strspn(path, plain)] == '\0') {
        return buffer_append_text(out, path, error);
    }
    TRY(buffer_append_byte(out, '\'', error));
    for (const char *at = path; *at != '\0'; at++) {
        TRY(*at == '\'' ? buffer_append_text(out, "'\\''", error)
                        : buffer_append_byte(out, (unsigned char)*at, error));
    }
    return buffer_append_byte(out, '\'', error);
}

result path_git_apply(const char *home, struct buffer *out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer path;
    const char *name = strrchr(home, '/');
    ASSERT(name != NULL);
    buffer_init(&path, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(&path, error, "%s/.git", home));
    if (access(buffer_text(&path), F_OK) != 0) {
        buffer_clear(&path);
        TRY(buffer_append(&path, view_of(home, (size_t)(name - home)), error));
        TRY(buffer_append_text(out, "GIT_CEILING_DIRECTORIES=", error));
        TRY(path_quote(path.length > 0 ? buffer_text(&path) : "/", out, error));
        TRY(buffer_append_text(out, " ", error));
    }
    TRY(buffer_append_text(out, "git -C ", error));
    TRY(path_quote(home, out, error));
    return buffer_append_text(out, " apply", error);
}

result
path_snapshots(const char *state, const char *workspace, struct buffer *out, struct error *error) {
    buffer_init(out, PATH_MAX);
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a: one store per directory */
    for (const char *at = workspace; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * UINT64_C(1099511628211);
    }
    TRY(buffer_append_format(out, error, "%s/snapshots/%016" PRIx64, state, hash));
    return OK;
}

/* ---- writing -------------------------------------------------------------------------------- */

static result write_all(int fd, struct view bytes, const char *path, struct error *error) {
    for (size_t done = 0; done < bytes.length;) {
        ssize_t written = write(fd, bytes.data + done, bytes.length - done);
        if (written < 0 && errno != EINTR) {
            int code = errno;
            FAIL_FOREIGN(error, IO, code, "cannot write %.300s: %s", path, strerror(code));
        }
        done += written > 0 ? (size_t)written : 0;
    }
    return OK;
}

static result write_and_sync(int fd, struct view bytes, const char *path, struct error *error) {
    TRY(write_all(fd, bytes, path, error));
    if (fsync(fd) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "cannot write %.300s to the disk: %s", path, strerror(code));
    }
    return OK;
}

result path_replace(const char *path, struct view bytes, struct error *error) {
    struct stat before;
    if (stat(path, &before) == 0 && !S_ISREG(before.st_mode)) { /* a pipe, a terminal */
        CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0) {
            int code = errno;
            FAIL_FOREIGN(error, IO, code, "cannot open %.300s: %s", path, strerror(code));
        }
        return write_all(fd, bytes, path, error);
    }
    char beside[PATH_MAX];
    int length = snprintf(beside, sizeof beside, "%s.%ld.new", path, (long)getpid());
    if (length < 0 || (size_t)length >= sizeof beside) {
        FAIL(error, LIMIT, "a path of more than %d bytes: %.200s", PATH_MAX, path);
    }
    CLEANUP(fd_cleanup)
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "cannot make %.300s: %s", beside, strerror(code));
    }
    result written = write_and_sync(fd, bytes, path, error);
    if (is_ok(written) && rename(beside, path) != 0) {
        int code = errno;
        written = result_failed(error_set(
            error,
            RESULT_IO,
            code,
            __FILE__,
            __LINE__,
            "cannot make %.300s: %s",
            path,
            strerror(code)
        ));
    }
    if (is_failed(written)) {
        (void)unlink(beside);
    }
    return written;
}

result path_check_replace(const char *path, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer parent = {0};
    struct stat about;
    bool is_there = stat(path, &about) == 0;
    if (is_there && S_ISDIR(about.st_mode)) {
        FAIL(error, INVALID_INPUT, "%.300s is a directory", path);
    }
    const char *place = path; /* a pipe, a terminal */
    int wanted = W_OK;
    if (!is_there || S_ISREG(about.st_mode)) { /* made anew in its directory */
        const char *slash = strrchr(path, '/');
        buffer_init(&parent, PATH_MAX);
        TRY(buffer_append_text(&parent, slash == NULL ? "." : "", error));
        TRY(buffer_append(
            &parent, view_of(path, slash == NULL ? 0 : (size_t)(slash - path) + 1), error
        ));
        place = buffer_text(&parent);
        wanted = W_OK | X_OK;
    }
    if (access(place, wanted) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, INVALID_INPUT, code, "%.300s: %s", path, strerror(code));
    }
    return OK;
}
