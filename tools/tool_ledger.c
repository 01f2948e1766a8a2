/* Two lists in order of age. Both are short, so a walk through them is fast enough; what is old
 * goes when the list is full. */
#include "tool_ledger.h"

void tool_path_spell(const char *path, char out[TOOL_SPELLED_BYTES]) {
    ASSERT(strlen(path) < TOOL_SPELLED_BYTES);
    size_t length = 0;
    for (const char *at = path; *at != '\0';) {
        size_t part = strcspn(at, "/");
        if (part > 0 && !(part == 1 && at[0] == '.')) {
            if (length > 0) {
                out[length] = '/';
                length += 1;
            }
            memcpy(out + length, at, part);
            length += part;
        }
        at += part;
        at += strspn(at, "/");
    }
    out[length] = '\0';
}

static size_t find_file(const struct tool_ledger *ledger, const char *path) {
    char spelled[TOOL_SPELLED_BYTES];
    tool_path_spell(path, spelled);
    for (size_t i = ledger->count; i > 0; i--) {
        if (strcmp(ledger->files[i - 1].path, spelled) == 0) {
            return i - 1;
        }
    }
    return SIZE_MAX;
}

static void remove_file(struct tool_ledger *ledger, size_t index) {
    free(ledger->files[index].path);
    size_t behind = ledger->count - index - 1;
    memmove(&ledger->files[index], &ledger->files[index + 1], behind * sizeof *ledger->files);
    ledger->count -= 1;
}

void tool_ledger_deinit(struct tool_ledger *ledger) {
    for (size_t i = 0; i < ledger->count; i++) {
        free(ledger->files[i].path);
    }
    free(ledger->files);
    *ledger = (struct tool_ledger){0};
}

static result note(
    struct tool_ledger *ledger, const char *path, struct tool_ledger_file file, struct error *error
) {
    if (ledger->files == NULL) {
        ledger->files = calloc(TOOL_LEDGER_FILES_MAX, sizeof *ledger->files);
        if (ledger->files == NULL) {
            FAIL(error, MEMORY, "ledger: %zu files", TOOL_LEDGER_FILES_MAX);
        }
    }
    char spelled[TOOL_SPELLED_BYTES];
    tool_path_spell(path, spelled);
    file.path = strdup(spelled);
    if (file.path == NULL) {
        FAIL(error, MEMORY, "ledger: a path of %zu bytes", strlen(spelled));
    }
    size_t known = find_file(ledger, path);
    if (known != SIZE_MAX) {
        file.is_written = file.is_written || ledger->files[known].is_written;
        remove_file(ledger, known);
    } else if (ledger->count == TOOL_LEDGER_FILES_MAX) {
        remove_file(ledger, 0);
    }
    ledger->files[ledger->count] = file;
    ledger->count += 1;
    return OK;
}

static void digest(struct view content, unsigned char out[SHA256_BYTES]) {
    struct sha256 sha;
    sha256_init(&sha);
    sha256_update(&sha, content);
    sha256_finish(&sha, out);
}

result tool_ledger_note(
    struct tool_ledger *ledger,
    const char *path,
    struct view content,
    bool is_written,
    struct error *error
) {
    struct tool_ledger_file file = {NULL, content.length, true, is_written, {0}};
    digest(content, file.digest);
    return note(ledger, path, file, error);
}

result tool_ledger_note_part(
    struct tool_ledger *ledger, const char *path, uint64_t bytes, struct error *error
) {
    struct tool_ledger_file file = {NULL, bytes, false, false, {0}};
    return note(ledger, path, file, error);
}

void tool_ledger_forget(struct tool_ledger *ledger, const char *path) {
    size_t index = find_file(ledger, path);
    if (index != SIZE_MAX) {
        remove_file(ledger, index);
    }
}

enum tool_file_state
tool_ledger_state(const struct tool_ledger *ledger, const char *path, struct view content) {
    size_t index = find_file(ledger, path);
    if (index == SIZE_MAX) {
        return TOOL_FILE_UNREAD;
    }
    const struct tool_ledger_file *file = &ledger->files[index];
    unsigned char now[SHA256_BYTES];
    digest(content, now);
    bool is_same = file->is_whole && memcmp(now, file->digest, sizeof now) == 0;
    return is_same ? TOOL_FILE_SAME : TOOL_FILE_CHANGED;
}

/* ------------------------------------------------------------------- outputs ---- */

void tool_outputs_deinit(struct tool_outputs *outputs) {
    for (size_t i = 0; i < outputs->count; i++) {
        buffer_deinit(&outputs->kept[i].bytes);
    }
    free(outputs->kept);
    *outputs = (struct tool_outputs){0};
}

static size_t bytes_kept(const struct tool_outputs *outputs) {
    size_t bytes = 0;
    for (size_t i = 0; i < outputs->count; i++) {
        bytes += outputs->kept[i].bytes.length;
    }
    return bytes;
}

static result copy_output(
    struct view bytes, uint64_t gap_at, uint64_t missing, struct buffer *out, struct error *error
) {
    size_t head = gap_at < bytes.length ? (size_t)gap_at : bytes.length;
    TRY(buffer_append(out, view_slice(bytes, 0, head), error));
    if (missing > 0) {
        unsigned long long count = missing;
        TRY(buffer_append_format(out, error, "\n... [%llu bytes were lost] ...\n", count));
    }
    return buffer_append(out, view_slice(bytes, head, bytes.length - head), error);
}

result tool_outputs_keep(
    struct tool_outputs *outputs,
    uint64_t call,
    struct view bytes,
    uint64_t gap_at,
    uint64_t missing,
    bool *is_kept,
    struct error *error
) {
    *is_kept = bytes.length <= TOOL_OUTPUTS_BYTES_MAX;
    if (!*is_kept) {
        return OK;
    }
    if (outputs->kept == NULL) {
        outputs->kept = calloc(TOOL_OUTPUTS_MAX, sizeof *outputs->kept);
        if (outputs->kept == NULL) {
            FAIL(error, MEMORY, "outputs: %zu", TOOL_OUTPUTS_MAX);
        }
    }
    CLEANUP(buffer_deinit) struct buffer copy = {NULL, 0, 0, 0};
    buffer_init(&copy, TOOL_OUTPUTS_BYTES_MAX + 100);
    TRY(copy_output(bytes, gap_at, missing, &copy, error));
    while (outputs->count == TOOL_OUTPUTS_MAX ||
           (outputs->count > 0 && bytes_kept(outputs) > TOOL_OUTPUTS_BYTES_MAX - bytes.length)) {
        buffer_deinit(&outputs->kept[0].bytes);
        outputs->count -= 1;
        memmove(outputs->kept, outputs->kept + 1, outputs->count * sizeof *outputs->kept);
    }
    outputs->kept[outputs->count] = (struct tool_output_kept){call, copy};
    copy = (struct buffer){NULL, 0, 0, 0};
    outputs->count += 1;
    return OK;
}

const struct buffer *tool_outputs_find(const struct tool_outputs *outputs, uint64_t call) {
    for (size_t i = 0; i < outputs->count; i++) {
        if (outputs->kept[i].call == call) {
            return &outputs->kept[i].bytes;
        }
    }
    return NULL;
}
