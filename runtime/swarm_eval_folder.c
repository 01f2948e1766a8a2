/* Reads a folder of tasks; see swarm_eval_folder.h. */
#include "swarm_eval_folder.h"

#include "swarm.h"

#include "base/json.h"
#include "base/sha256.h"
#include "sandbox/beneath.h"

#define TASK_BYTES_MAX ((size_t)256 << 10)

static result read_item(
    const struct beneath *root,
    const char *path,
    const char *name,
    struct swarm_eval_item *out,
    struct sha256 *digest,
    struct error *error
) {
    static const struct json_limits limits = {
        .bytes_max = TASK_BYTES_MAX, .values_max = 10000, .depth_max = 8};
    CLEANUP(buffer_deinit) struct buffer text;
    CLEANUP(buffer_deinit) struct buffer member;
    struct view line = view_of(NULL, 0);
    buffer_init(&text, TASK_BYTES_MAX);
    buffer_init(&member, BENEATH_PATH_BYTES_MAX);
    TRY(buffer_append_format(&member, error, "%s/task.json", name));
    TRY(beneath_read(root, buffer_text(&member), 0, TASK_BYTES_MAX, &text, NULL, error));
    TRY(json_parse(buffer_view(&text), &limits, &out->document, error));
    struct json_value task = json_root(out->document);
    TRY(json_get_i64(task, "level", &out->level, error));
    TRY(json_get_string(task, "prompt", &out->prompt, error));
    TRY(json_get_string(task, "test_command", &out->test_command, error));
    TRY(json_get_string(task, "hidden_command", &out->hidden_command, error));
    if (json_as_string(json_get(task, "hidden_line"), &line)) {
        out->hidden_line = line;
    }
    if (out->prompt.length == 0 || out->test_command.length == 0 ||
        out->hidden_command.length == 0) {
        FAIL(error, INVALID_INPUT, "an empty prompt or command");
    }
    if (out->prompt.length > SWARM_BRIEF_BYTES_MAX) {
        FAIL(error, INVALID_INPUT, "the prompt has more than %zu bytes", SWARM_BRIEF_BYTES_MAX);
    }
    buffer_clear(&member);
    TRY(buffer_append_format(&member, error, "%s/%s", path, name));
    size_t length = 0;
    TRY(buffer_take(&member, &out->directory, &length, error));
    size_t slash = length - strlen(name);
    out->id = view_of(out->directory + slash, length - slash);
    sha256_update(digest, view_of(name, strlen(name) + 1));
    sha256_update(digest, buffer_view(&text));
    return OK;
}

static result read_items(
    const struct beneath *root,
    const char *path,
    const struct beneath_list *list,
    struct swarm_eval_folder *out,
    struct error *error
) {
    struct sha256 digest;
    sha256_init(&digest);
    out->items = calloc(list->count + 1, sizeof *out->items);
    if (out->items == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tasks", list->count);
    }
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->entries[i].name;
        char member[300];
        int length = snprintf(member, sizeof member, "%s/task.json", name);
        struct beneath_info info;
        if (list->entries[i].info.kind != BENEATH_DIRECTORY || length < 0 ||
            (size_t)length >= sizeof member || is_failed(beneath_stat(root, member, &info, NULL))) {
            continue; /* something else */
        }
        if (!utf8_is_valid(view_of_text(name))) {
            FAIL(error, INVALID_INPUT, "a task whose name is no UTF-8");
        }
        if (out->count == SWARM_EVAL_TASKS_MAX) {
            FAIL(error, LIMIT, "more than %d tasks", SWARM_EVAL_TASKS_MAX);
        }
        out->count++; /* so that it is closed again */
        TRY_NOTE(
            error,
            read_item(root, path, name, &out->items[out->count - 1], &digest, error),
            "task %s",
            name
        );
    }
    sha256_finish_hex(&digest, out->digest);
    return OK;
}

static void close_item(struct swarm_eval_item *item) {
    json_destroy(item->document);
    free(item->directory);
    *item = (struct swarm_eval_item){0};
}

/* Every nth one stays: levels follow each other in a folder, so each keeps its part. */
static void keep_some(struct swarm_eval_folder *folder, size_t count_max) {
    size_t before = folder->count;
    size_t kept = 0;
    if (count_max == 0 || count_max >= before) {
        return;
    }
    for (size_t i = 0; i < before; i++) {
        bool is_wanted = (i + 1) * count_max / before > i * count_max / before;
        if (!is_wanted) {
            close_item(&folder->items[i]);
            continue;
        }
        struct swarm_eval_item item = folder->items[i];
        folder->items[i] = (struct swarm_eval_item){0};
        folder->items[kept++] = item;
    }
    folder->count = kept;
}

result swarm_eval_folder_open(
    const char *path, size_t count_max, struct swarm_eval_folder *out, struct error *error
) {
    CLEANUP(beneath_cleanup) struct beneath *root = NULL;
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    CLEANUP(swarm_eval_folder_close) struct swarm_eval_folder folder = {0};
    TRY(beneath_open(path, &root, error));
    TRY(beneath_list_directory(root, ".", BENEATH_ENTRIES_MAX, &list, error));
    TRY(read_items(root, path, &list, &folder, error));
    if (folder.count == 0) {
        FAIL(error, NOT_FOUND, "%s: no task in it (a directory with task.json)", path);
    }
    keep_some(&folder, count_max);
    folder.tasks = calloc(folder.count, sizeof *folder.tasks);
    if (folder.tasks == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tasks", folder.count);
    }
    for (size_t i = 0; i < folder.count; i++) {
        folder.tasks[i] =
            (struct swarm_eval_task){.id = folder.items[i].id, .level = folder.items[i].level};
    }
    *out = folder;
    folder = (struct swarm_eval_folder){0};
    return OK;
}

void swarm_eval_folder_close(struct swarm_eval_folder *folder) {
    for (size_t i = 0; i < folder->count; i++) {
        close_item(&folder->items[i]);
    }
    free(folder->items);
    free(folder->tasks);
    *folder = (struct swarm_eval_folder){0};
}
