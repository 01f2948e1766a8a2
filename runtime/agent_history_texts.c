/* See agent_history_texts.h. */
#include "agent_history_texts.h"

#define SUMMARY_HEAD                                                                               \
    "[What came before was taken out of the context to make room. Your summary of it:]\n\n"
#define FILES_HEAD    "\n\nFiles that were read or changed so far:\n"
#define FILES_OLDER   "(and older ones)\n"
#define FILE_MARK     "- "
#define CALLS_HEAD    "No summary was written. The calls so far:\n"
#define CALLS_MAX     40  /* that are listed */
#define CALL_BYTES    160 /* of the arguments of each */
#define CUT_NOTE      "\n[cut to save room]"
#define LOCATOR       "output:"
#define LOCATOR_BYTES 400 /* it stands in the last ones; what is left of budgets may follow */

bool agent_history_is_summary(const struct chat_message *message) {
    return message->role == CHAT_USER &&
           view_starts_with(message->content, view_of_text(SUMMARY_HEAD));
}

/* The summary written before, null: none. */
static const struct chat_message *old_summary(const struct agent_history *history, size_t end) {
    for (size_t i = end; i > 0; i--) {
        if (agent_history_is_summary(&history->messages[i - 1])) {
            return &history->messages[i - 1];
        }
    }
    return NULL;
}

/* Splits it into the model's words and the list of files. */
static void
split_summary(const struct chat_message *message, struct view *text, struct view *files) {
    *text = view_slice(message->content, strlen(SUMMARY_HEAD), SIZE_MAX);
    *files = view_of(NULL, 0);
    size_t last = SIZE_MAX;
    for (size_t at = 0; (at = view_find(*text, view_of_text(FILES_HEAD), at)) != SIZE_MAX; at++) {
        last = at;
    }
    if (last != SIZE_MAX) {
        *files = view_slice(*text, last + strlen(FILES_HEAD), SIZE_MAX);
        *text = view_slice(*text, 0, last);
    }
}

/* The call that a result answers: the last one with that id before it. Null: none. */
static const struct chat_call *call_of(const struct agent_history *history, size_t at) {
    struct view id = history->messages[at].call_id;
    for (size_t i = at; i > 0; i--) {
        const struct chat_message *message = &history->messages[i - 1];
        for (size_t k = 0; k < message->call_count; k++) {
            if (view_equals(message->calls[k].id, id)) {
                return &message->calls[k];
            }
        }
    }
    return NULL;
}

size_t history_listed_files(
    const struct agent_history *history, const struct view *files, size_t count, size_t *bytes
) {
    size_t most = history->files_bytes_max > 0 ? history->files_bytes_max : SIZE_MAX;
    size_t listed = 0;
    *bytes = 0;
    while (listed < count && listed < AGENT_HISTORY_FILES_MAX) {
        size_t line = files[count - listed - 1].length + strlen(FILE_MARK "\n");
        if (line > most - *bytes) {
            break;
        }
        *bytes += line;
        listed++;
    }
    return listed;
}

/* Where an output can be read, as it says at its end: "output:7". Empty: nowhere, or not any more. */
static struct view locator_in(const struct agent_history *history, size_t at) {
    struct view text = history->messages[at].content;
    size_t from = text.length > LOCATOR_BYTES ? text.length - LOCATOR_BYTES : 0;
    struct view end = view_slice(text, from, SIZE_MAX);
    struct view locator = view_of(NULL, 0);
    for (size_t i = 0; (i = view_find(end, view_of_text(LOCATOR), i)) != SIZE_MAX; i++) {
        size_t to = i + strlen(LOCATOR);
        while (to < end.length && end.data[to] >= '0' && end.data[to] <= '9') {
            to++;
        }
        locator = view_slice(end, i, to - i);
    }
    bool is_there = locator.length > strlen(LOCATOR) && at >= history->fresh_from &&
                    history->has_output != NULL && history->has_output(history->context, locator);
    return is_there ? locator : view_of(NULL, 0);
}

static struct view cut_view(struct view text, size_t bytes) {
    struct view cut = view_slice(text, 0, bytes);
    return view_slice(cut, 0, cut.length < text.length ? utf8_valid_prefix(cut) : cut.length);
}

result history_write_removed(
    struct buffer *out, const struct agent_history *history, size_t at, struct error *error
) {
    const struct chat_call *call = call_of(history, at);
    struct view name = call != NULL ? cut_view(call->name, 64) : view_of_text("a call");
    struct view locator = locator_in(history, at);
    TRY(buffer_append_format(
        out, error, "[output of %.*s removed to save room: ", VIEW_ARGUMENTS(name)
    ));
    if (locator.length > 0) {
        return buffer_append_format(
            out, error, "read %.*s, or run it again]", VIEW_ARGUMENTS(cut_view(locator, 32))
        );
    }
    return buffer_append_text(out, "run or read it again if you need it]", error);
}

result history_write_cut(
    struct buffer *out,
    const struct agent_history *history,
    size_t at,
    size_t bytes,
    struct error *error
) {
    struct view text = history->messages[at].content;
    struct view locator = locator_in(history, at);
    char note[96] = CUT_NOTE;
    if (locator.length > 0) {
        int length = snprintf(
            note,
            sizeof note,
            "\n[cut to save room: read %.*s]",
            VIEW_ARGUMENTS(cut_view(locator, 32))
        );
        ASSERT(length > 0 && (size_t)length < sizeof note);
    }
    ASSERT(bytes > sizeof note);
    TRY(buffer_append(out, cut_view(text, bytes - strlen(note)), error));
    return buffer_append_text(out, note, error);
}

static bool has_path(const struct agent_history *history, struct view path) {
    for (size_t i = 0; i < history->file_count; i++) {
        if (view_equals(history->files[i], path)) {
            return true;
        }
    }
    return false;
}

/* One line: what would break the list is left out. */
static bool is_listable(struct view path) {
    for (size_t i = 0; i < path.length; i++) {
        if (path.data[i] < ' ') {
            return false;
        }
    }
    return path.length > 0 && path.length <= AGENT_HISTORY_PATH_BYTES_MAX;
}

/* Paths of the old list that are not on the new one, then the new one; the latest ones only. */
static result collect_files(
    const struct agent_history *history,
    struct view old,
    struct view *out,
    size_t *count,
    bool *has_older,
    struct error *error
) {
    size_t lines = 0;
    for (size_t i = 0; i < old.length; i++) {
        lines += old.data[i] == '\n' ? 1 : 0;
    }
    CLEANUP(free_cleanup)
    struct view *all = calloc(lines + history->file_count + 1, sizeof *all);
    if (all == NULL) {
        FAIL(error, MEMORY, "no memory for a list of files");
    }
    size_t found = 0;
    struct cursor cursor = cursor_over(old);
    struct view line;
    while (cursor_take_until(&cursor, '\n', &line)) {
        struct view path = view_slice(line, strlen(FILE_MARK), SIZE_MAX);
        *has_older = *has_older || view_equals_text(line, "(and older ones)");
        if (view_starts_with(line, view_of_text(FILE_MARK)) && !has_path(history, path)) {
            all[found++] = path;
        }
    }
    for (size_t i = 0; i < history->file_count; i++) {
        if (is_listable(history->files[i])) {
            all[found++] = history->files[i];
        }
    }
    size_t bytes = 0;
    *count = history_listed_files(history, all, found, &bytes);
    *has_older = *has_older || *count < found;
    memcpy(out, all + found - *count, *count * sizeof *out);
    return OK;
}

static result write_files(
    struct buffer *out, const struct agent_history *history, struct view old, struct error *error
) {
    struct view files[AGENT_HISTORY_FILES_MAX];
    size_t count = 0;
    bool has_older = false;
    TRY(collect_files(history, old, files, &count, &has_older, error));
    if (count == 0) {
        return OK;
    }
    TRY(buffer_append_text(out, FILES_HEAD, error));
    for (size_t i = 0; i < count; i++) {
        TRY(buffer_append_text(out, FILE_MARK, error));
        TRY(buffer_append(out, files[i], error));
        TRY(buffer_append_byte(out, '\n', error));
    }
    return has_older ? buffer_append_text(out, FILES_OLDER, error) : OK;
}

/* Stands for a summary that the model did not write: the one before, and the calls since. */
static result write_calls(
    struct buffer *out,
    const struct agent_history *history,
    size_t tail,
    struct view before,
    struct error *error
) {
    TRY(buffer_append(out, cut_view(before, AGENT_HISTORY_SUMMARY_BYTES / 2), error));
    size_t count = 0;
    for (size_t i = 0; i < tail; i++) {
        count += history->messages[i].call_count;
    }
    size_t skipped = count > CALLS_MAX ? count - CALLS_MAX : 0;
    size_t at = 0;
    for (size_t i = 0; i < tail; i++) {
        for (size_t k = 0; k < history->messages[i].call_count; k++) {
            const struct chat_call *call = &history->messages[i].calls[k];
            if (at++ < skipped) {
                continue;
            }
            const char *before_it = at > skipped + 1 ? "\n" : before.length > 0 ? "\n" : CALLS_HEAD;
            struct view name = cut_view(call->name, 64);
            struct view arguments = cut_view(call->arguments, CALL_BYTES);
            TRY(buffer_append_format(
                out,
                error,
                "%s%.*s %.*s",
                before_it,
                VIEW_ARGUMENTS(name),
                VIEW_ARGUMENTS(arguments)
            ));
        }
    }
    return OK;
}

result history_write_summary(
    struct buffer *out,
    const struct agent_history *history,
    size_t tail,
    struct view summary,
    struct error *error
) {
    const struct chat_message *old = old_summary(history, tail);
    struct view old_text = view_of(NULL, 0);
    struct view old_files = view_of(NULL, 0);
    if (old != NULL) {
        split_summary(old, &old_text, &old_files);
    }
    TRY(buffer_append_text(out, SUMMARY_HEAD, error));
    if (summary.length > 0) {
        TRY(buffer_append(out, cut_view(summary, AGENT_HISTORY_SUMMARY_BYTES), error));
    } else {
        TRY(write_calls(out, history, tail, old_text, error));
    }
    return write_files(out, history, old_files, error);
}
