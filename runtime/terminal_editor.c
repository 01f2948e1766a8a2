/* See terminal_editor.h. libedit works on wide characters, of which each is a code point here. */
#include "terminal_editor.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <unistd.h>

#define SEQUENCE_MAX 4

struct editor {
    EditLine *edit;
    HistoryW *history;
    FILE *nowhere;
    int master, slave;
    wchar_t sequence[SEQUENCE_MAX]; /* the key that is given */
    size_t sequence_count, sequence_at;
    struct buffer line; /* for editor_line */
};

static ssize_t drop_bytes(void *cookie, const char *bytes, size_t count) {
    (void)cookie;
    (void)bytes;
    return (ssize_t)count;
}

/* libedit asks for the next character: behind a whole key it finds the end of its input, which ends
 * commands that would wait for a further one. */
static int next_character(EditLine *edit, wchar_t *out) {
    struct editor *editor = NULL;
    if (el_get(edit, EL_CLIENTDATA, &editor) != 0 ||
        editor->sequence_at == editor->sequence_count) {
        return 0;
    }
    *out = editor->sequence[editor->sequence_at++];
    return 1;
}

static result open_pair(struct editor *editor, struct error *error) {
    char name[128];
    editor->master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (editor->master < 0 || grantpt(editor->master) != 0 || unlockpt(editor->master) != 0 ||
        ptsname_r(editor->master, name, sizeof name) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "cannot open a pseudo terminal: %s", strerror(code));
    }
    editor->slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (editor->slave < 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "cannot open %s: %s", name, strerror(code));
    }
    return OK;
}

static result open_library(struct editor *editor, struct error *error) {
    static const cookie_io_functions_t functions = {.write = drop_bytes};
    editor->nowhere = fopencookie(NULL, "r+", functions);
    if (editor->nowhere != NULL) {
        FILE *file = editor->nowhere;
        int fd = editor->slave;
        editor->edit = el_init_fd("hearth", file, file, file, fd, fd, fd);
    }
    editor->history = history_winit();
    HistEventW event;
    if (editor->edit == NULL || editor->history == NULL ||
        history_w(editor->history, &event, H_SETSIZE, EDITOR_HISTORY_MAX) < 0 ||
        history_w(editor->history, &event, H_SETUNIQUE, 1) < 0) {
        FAIL(error, MEMORY, "no memory for an editor");
    }
    int status = el_wset(editor->edit, EL_CLIENTDATA, editor);
    status |= el_wset(editor->edit, EL_EDITOR, L"emacs");
    status |= el_wset(editor->edit, EL_HIST, history_w, editor->history);
    status |= el_wset(editor->edit, EL_GETCFN, next_character);
    status |= el_wset(editor->edit, EL_BIND, L"^R", L"ed-search-prev-history", NULL);
    status |= el_wset(editor->edit, EL_BIND, L"^W", L"ed-delete-prev-word", NULL);
    status |= el_wset(editor->edit, EL_UNBUFFERED, 1);
    if (status != 0) {
        FAIL(error, IO, "the library for editing lines does not start");
    }
    return OK;
}

result editor_create(struct editor **out, struct error *error) {
    struct editor *editor = calloc(1, sizeof *editor);
    if (editor == NULL) {
        FAIL(error, MEMORY, "no memory for an editor");
    }
    editor->master = -1;
    editor->slave = -1;
    buffer_init(&editor->line, 4 * EDITOR_BYTES_MAX);
    result opened = open_pair(editor, error);
    if (is_ok(opened)) {
        opened = open_library(editor, error);
    }
    if (is_failed(opened)) {
        editor_destroy(editor);
        return opened;
    }
    *out = editor;
    return OK;
}

void editor_destroy(struct editor *editor) {
    if (editor == NULL) {
        return;
    }
    if (editor->edit != NULL) {
        el_end(editor->edit);
    }
    if (editor->history != NULL) {
        history_wend(editor->history);
    }
    if (editor->nowhere != NULL) {
        (void)fclose(editor->nowhere);
    }
    fd_cleanup(&editor->slave);
    fd_cleanup(&editor->master);
    buffer_deinit(&editor->line);
    free(editor);
}

/* ---- the line ------------------------------------------------------------------------------- */

static size_t length_of(const struct editor *editor) {
    const LineInfoW *line = el_wline(editor->edit);
    return (size_t)(line->lastchar - line->buffer);
}

bool editor_is_empty(const struct editor *editor) {
    return length_of(editor) == 0;
}

struct view editor_line(struct editor *editor, size_t *cursor) {
    const LineInfoW *line = el_wline(editor->edit);
    buffer_clear(&editor->line);
    *cursor = 0;
    for (const wchar_t *at = line->buffer; at < line->lastchar; at++) {
        unsigned char bytes[4];
        size_t length = utf8_encode((uint32_t)*at, bytes);
        if (is_failed(buffer_append(&editor->line, view_of(bytes, length), NULL))) {
            break; /* without memory the line is shorter than what was typed */
        }
        *cursor += at < line->cursor ? length : 0;
    }
    return buffer_view(&editor->line);
}

bool editor_insert(struct editor *editor, struct view text) {
    if (text.length == 0 || text.length + length_of(editor) > EDITOR_BYTES_MAX) {
        return text.length == 0;
    }
    wchar_t *wide = calloc(text.length + 1, sizeof *wide);
    size_t count = 0;
    for (size_t at = 0; wide != NULL && at < text.length;) {
        uint32_t code_point = 0;
        size_t length = utf8_decode(view_slice(text, at, text.length - at), &code_point);
        at += length == 0 ? 1 : length;
        if (length > 0 && code_point != 0) {
            wide[count++] = (wchar_t)code_point;
        }
    }
    bool is_inserted = count > 0 && el_winsertstr(editor->edit, wide) == 0;
    free(wide);
    return is_inserted;
}

/* Begins a line anew; history begins at its end again. */
static void clear(struct editor *editor) {
    (void)el_wset(editor->edit, EL_UNBUFFERED, 0);
    (void)el_wset(editor->edit, EL_UNBUFFERED, 1);
    ASSERT(length_of(editor) == 0);
}

void editor_set(struct editor *editor, struct view text) {
    clear(editor);
    (void)editor_insert(editor, text); /* what was a line once fits */
}

static bool give(struct editor *editor, wchar_t first, wchar_t second) {
    editor->sequence[0] = first;
    editor->sequence[1] = second;
    editor->sequence_count = second == 0 ? 1 : 2;
    editor->sequence_at = 0;
    int count = 0;
    (void)el_wgets(editor->edit, &count);
    return true;
}

bool editor_key(struct editor *editor, const struct key *key) {
    const LineInfoW *line = el_wline(editor->edit);
    if (key->type == KEY_TEXT) {
        return editor_insert(editor, key->text);
    }
    if (key->type == KEY_NEWLINE) {
        return editor_insert(editor, view_of_text("\n"));
    }
    if (key->type == KEY_CONTROL) {
        /* Those that need no further key and that mean nothing else here. */
        return strchr("ABEFKNPRTUWY", key->letter) != NULL && give(editor, key->letter - '@', 0);
    }
    if (key->type == KEY_ALT) {
        return strchr("bcdful", key->letter) != NULL && give(editor, 0x1B, key->letter);
    }
    if (key->type == KEY_DELETE) { /* Ctrl-D at the end would list or end */
        return line->cursor < line->lastchar && give(editor, 'D' - '@', 0);
    }
    static const struct {
        enum key_type type;
        wchar_t first, second;
    } keys[] = {
        {KEY_BACKSPACE, 0x7F, 0},
        {KEY_UP, 'P' - '@', 0},
        {KEY_DOWN, 'N' - '@', 0},
        {KEY_LEFT, 'B' - '@', 0},
        {KEY_RIGHT, 'F' - '@', 0},
        {KEY_HOME, 'A' - '@', 0},
        {KEY_END, 'E' - '@', 0},
        {KEY_WORD_LEFT, 0x1B, 'b'},
        {KEY_WORD_RIGHT, 0x1B, 'f'},
    };
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (keys[i].type == key->type) {
            return give(editor, keys[i].first, keys[i].second);
        }
    }
    return false;
}

void editor_remember(struct editor *editor, struct view line) {
    wchar_t *wide = calloc(line.length + 1, sizeof *wide);
    size_t count = 0;
    for (size_t at = 0; wide != NULL && at < line.length;) {
        uint32_t code_point = 0;
        size_t length = utf8_decode(view_slice(line, at, line.length - at), &code_point);
        at += length == 0 ? 1 : length;
        wide[count] = (wchar_t)code_point;
        count += length > 0 && code_point != 0 ? 1 : 0;
    }
    if (count > 0) {
        HistEventW event;
        wide[count] = L'\0';
        (void
        )history_w(editor->history, &event, H_ENTER, wide); /* without memory: not found later */
    }
    free(wide);
}
