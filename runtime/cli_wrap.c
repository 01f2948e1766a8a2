/* Text for a person in the columns of their terminal; a pipe gets each line whole. See cli.h. */
#include "cli.h"
#include "lines.h"

#include "sandbox/sandbox.h"
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH_MIN     40
#define WIDTH_DEFAULT 80

int cli_width(void) {
    struct winsize size;
    if (isatty(STDOUT_FILENO) != 1) {
        return 0;
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
        return WIDTH_DEFAULT;
    }
    return size.ws_col < WIDTH_MIN ? WIDTH_MIN : size.ws_col;
}

/* Words go to the next row where one does not fit; a longer one than a row stays whole, so that it can be
 * copied. */
static result
wrap_line(struct view line, size_t indent, int width, struct buffer *out, struct error *error) {
    size_t blanks = 0;
    while (blanks < line.length && line.data[blanks] == ' ') {
        blanks++;
    }
    int hang = (int)(blanks > 0 ? blanks + 2 : indent);
    int column = 0;
    for (size_t at = 0; at < line.length;) {
        size_t begin = at; /* blanks, then a word */
        while (at < line.length && line.data[at] == ' ') {
            at++;
        }
        size_t word = at;
        while (at < line.length && line.data[at] != ' ') {
            at++;
        }
        int columns = columns_of_text(view_slice(line, begin, at - begin));
        bool is_first = begin <= blanks;
        if (!is_first && column + columns > width) {
            TRY(buffer_append_format(out, error, "\n%*s", hang, ""));
            column = hang;
            begin = word;
            columns = columns_of_text(view_slice(line, begin, at - begin));
        }
        TRY(buffer_append(out, view_slice(line, begin, at - begin), error));
        column += columns;
    }
    return buffer_append_byte(out, '\n', error);
}

static result
wrap(struct view text, size_t indent, int width, struct buffer *out, struct error *error) {
    struct cursor cursor = cursor_over(text);
    struct view line;
    while (cursor_take_until(&cursor, '\n', &line)) {
        TRY(wrap_line(line, indent, width, out, error));
    }
    return buffer_append(out, view_slice(text, cursor.at, SIZE_MAX), error);
}

bool cli_print_wrapped(struct view text, size_t indent) {
    int width = cli_width();
    CLEANUP(buffer_deinit) struct buffer harmless;
    CLEANUP(buffer_deinit) struct buffer rows;
    buffer_init(&harmless, BUFFER_CEILING_DEFAULT);
    buffer_init(&rows, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    if (width == 0) {
        return cli_print(text);
    }
    result made = sandbox_sanitise(text, 0, &harmless, &error);
    if (is_ok(made)) {
        made = wrap(buffer_view(&harmless), indent, width, &rows, &error);
    }
    if (is_failed(made)) {
        (void)cli_fail_error(made, &error);
        return false;
    }
    return cli_print(buffer_view(&rows));
}
