#include "terminal_history.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static result escape(struct view line, struct buffer *out, struct error *error) {
    for (size_t i = 0; i < line.length; i++) {
        unsigned char byte = line.data[i];
        if (byte == '\\' || byte == '\n') {
            TRY(buffer_append_text(out, byte == '\n' ? "\\n" : "\\\\", error));
        } else {
            TRY(buffer_append_byte(out, byte, error));
        }
    }
    return buffer_append_byte(out, '\n', error);
}

/* In place; a backslash before anything else stays. */
static size_t unescape(unsigned char *text, size_t length) {
    size_t to = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = text[i];
        if (byte == '\\' && i + 1 < length && (text[i + 1] == 'n' || text[i + 1] == '\\')) {
            byte = text[++i] == 'n' ? '\n' : '\\';
        }
        text[to++] = byte;
    }
    return to;
}

static result open_file(const char *path, int flags, int *out, struct error *error) {
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        int code = fd < 0 ? errno : EINVAL;
        fd_cleanup(&fd);
        FAIL_FOREIGN(error, IO, code, "%s: %s", path, strerror(code));
    }
    *out = fd;
    return OK;
}

static result write_all(int fd, struct view bytes, const char *path, struct error *error) {
    for (size_t at = 0; at < bytes.length;) {
        ssize_t count = write(fd, bytes.data + at, bytes.length - at);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count <= 0) {
            int code = errno;
            FAIL_FOREIGN(error, IO, code, "%s: %s", path, strerror(code));
        }
        at += (size_t)count;
    }
    return OK;
}

result history_append(const char *path, struct view line, struct error *error) {
    if (line.length > HISTORY_LINE_BYTES_MAX) {
        FAIL(error, LIMIT, "a line of %zu bytes is too long for the history", line.length);
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 2 * HISTORY_LINE_BYTES_MAX + 1);
    TRY(escape(line, &text, error));
    CLEANUP(fd_cleanup) int fd = -1;
    TRY(open_file(path, O_WRONLY | O_APPEND | O_CREAT, &fd, error));
    (void)fchmod(fd, 0600);                                /* a file that somebody made readable */
    return write_all(fd, buffer_view(&text), path, error); /* one write: whole between programs */
}

/* Replaces the file by its newest lines. */
static result cut(const char *path, struct view kept, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer name;
    buffer_init(&name, 8192);
    TRY(buffer_append_format(&name, error, "%s.new", path));
    (void)unlink(buffer_text(&name)); /* of a program that ended in between */
    CLEANUP(fd_cleanup) int fd = -1;
    TRY(open_file(buffer_text(&name), O_WRONLY | O_CREAT | O_EXCL, &fd, error));
    result written = write_all(fd, kept, path, error);
    if (is_ok(written) && rename(buffer_text(&name), path) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "%s: %s", path, strerror(code));
    }
    return written;
}

/* At most the last bytes of the file, from the begin of a line. */
static result read_end(const char *path, struct buffer *out, bool *is_cut, struct error *error) {
    CLEANUP(fd_cleanup) int fd = -1;
    TRY(open_file(path, O_RDONLY, &fd, error));
    off_t end = lseek(fd, 0, SEEK_END);
    *is_cut = end > (off_t)HISTORY_FILE_BYTES_MAX;
    (void)lseek(fd, *is_cut ? end - (off_t)HISTORY_FILE_BYTES_MAX / 2 : 0, SEEK_SET);
    char piece[16384];
    ssize_t count = 0;
    while ((count = read(fd, piece, sizeof piece)) > 0) {
        TRY(buffer_append(out, view_of(piece, (size_t)count), error));
    }
    if (*is_cut) {
        size_t first = view_find(buffer_view(out), view_of_text("\n"), 0);
        buffer_consume(out, first == SIZE_MAX ? out->length : first + 1);
    }
    return OK;
}

void history_load(const char *path, void (*line)(void *context, struct view text), void *context) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 2 * HISTORY_FILE_BYTES_MAX);
    bool is_cut = false;
    if (is_failed(read_end(path, &text, &is_cut, NULL))) {
        return;
    }
    size_t count = 0;
    for (size_t i = 0; i < text.length; i++) {
        count += text.data[i] == '\n' ? 1 : 0;
    }
    size_t from = 0;
    for (; count > HISTORY_LINES_MAX; count--) {
        from = view_find(buffer_view(&text), view_of_text("\n"), from) + 1;
        is_cut = true;
    }
    if (is_cut) { /* a disk that is full leaves it longer */
        result_ignore(cut(path, view_slice(buffer_view(&text), from, text.length - from), NULL));
    }
    for (; count > 0; count--) {
        size_t end = view_find(buffer_view(&text), view_of_text("\n"), from);
        ASSERT(end != SIZE_MAX);
        size_t length = unescape(text.data + from, end - from);
        struct view entry = view_of(text.data + from, length);
        if (entry.length > 0 && entry.length <= HISTORY_LINE_BYTES_MAX && utf8_is_valid(entry)) {
            line(context, entry);
        }
        from = end + 1;
    }
}
