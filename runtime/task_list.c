/* Finds the list in a text, reads it and refuses circles; see task_list.h. */
#include "task_list.h"

static const struct json_limits limits = {
    .bytes_max = TASK_LIST_BYTES_MAX,
    .values_max = TASK_LIST_VALUES_MAX,
    .depth_max = 6,
};

/* From the first '[' that is followed by '{' or ']' to the last ']' of the text: a list with or without
 * words and a fence around it. */
static struct view find_list(struct view text) {
    size_t end = text.length;
    while (end > 0 && text.data[end - 1] != ']') {
        end--;
    }
    for (size_t i = 0; i < end; i++) {
        size_t next = i + 1;
        while (next < end && (text.data[next] == ' ' || text.data[next] == '\n' ||
                              text.data[next] == '\r' || text.data[next] == '\t')) {
            next++;
        }
        if (text.data[i] == '[' && next < end &&
            (text.data[next] == '{' || text.data[next] == ']')) {
            return view_slice(text, i, end - i);
        }
    }
    return view_of(NULL, 0);
}

static size_t find_task(const struct task_list *list, struct view id) {
    for (size_t i = 0; i < list->count; i++) {
        if (view_equals(list->tasks[i].id, id)) {
            return i;
        }
    }
    return SIZE_MAX;
}

static result read_task(struct task_list *list, struct json_value value, struct error *error) {
    struct task *task = &list->tasks[list->count];
    *task = (struct task){0};
    TRY_NOTE(error, json_get_string(value, "id", &task->id, error), "task %zu", list->count + 1);
    if (task->id.length == 0 || task->id.length >= TASK_LIST_ID_BYTES) {
        FAIL(
            error,
            INVALID_INPUT,
            "task %zu: an id has 1 to %d bytes",
            list->count + 1,
            TASK_LIST_ID_BYTES - 1
        );
    }
    if (find_task(list, task->id) != SIZE_MAX) {
        FAIL(error, INVALID_INPUT, "two tasks are named %.*s", VIEW_ARGUMENTS(task->id));
    }
    TRY_NOTE(
        error,
        json_get_string(value, "brief", &task->brief, error),
        "task %.*s",
        VIEW_ARGUMENTS(task->id)
    );
    if (task->brief.length == 0 || task->brief.length > TASK_LIST_BRIEF_BYTES) {
        FAIL(
            error,
            INVALID_INPUT,
            "task %.*s: a brief has 1 to %zu bytes",
            VIEW_ARGUMENTS(task->id),
            TASK_LIST_BRIEF_BYTES
        );
    }
    list->count++;
    return OK;
}

/* After all ids are known. */
static result read_needs(
    const struct task_list *list, struct task *task, struct json_value value, struct error *error
) {
    struct json_value needs = json_get(value, "needs");
    if (json_type(needs) == JSON_ABSENT || json_type(needs) == JSON_NULL) {
        return OK;
    }
    if (json_type(needs) != JSON_ARRAY || json_count(needs) > TASK_LIST_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "task %.*s: \"needs\" is a list of at most %d ids",
            VIEW_ARGUMENTS(task->id),
            TASK_LIST_MAX
        );
    }
    for (struct json_value need = json_first(needs); json_type(need) != JSON_ABSENT;
         need = json_next(need)) {
        struct view id = view_of(NULL, 0);
        size_t other = json_as_string(need, &id) ? find_task(list, id) : SIZE_MAX;
        if (other == SIZE_MAX) {
            struct view raw = view_slice(json_raw(need), 0, TASK_LIST_ID_BYTES + 2);
            raw = view_slice(raw, 0, utf8_valid_prefix(raw));
            FAIL(
                error,
                INVALID_INPUT,
                "task %.*s needs %.*s, which is no task",
                VIEW_ARGUMENTS(task->id),
                VIEW_ARGUMENTS(raw)
            );
        }
        bool is_known = false;
        for (size_t i = 0; i < task->need_count; i++) {
            is_known = is_known || task->needs[i] == other;
        }
        if (!is_known) {
            task->needs[task->need_count++] = other;
        }
    }
    return OK;
}

/* Takes away tasks that need nothing that is left, until none is: what then is left has a circle. */
static result refuse_circles(const struct task_list *list, struct error *error) {
    bool is_done[TASK_LIST_MAX] = {false};
    bool has_changed = true;
    size_t at = SIZE_MAX;
    while (has_changed) {
        has_changed = false;
        at = SIZE_MAX;
        for (size_t i = 0; i < list->count; i++) {
            bool is_free = true;
            for (size_t j = 0; j < list->tasks[i].need_count; j++) {
                is_free = is_free && is_done[list->tasks[i].needs[j]];
            }
            has_changed = has_changed || (is_free && !is_done[i]);
            is_done[i] = is_done[i] || is_free;
            at = is_done[i] ? at : i;
        }
    }
    if (at == SIZE_MAX) {
        return OK;
    }
    /* From any that is left, needs that are left lead into the circle; then once around. */
    for (size_t steps = 0; steps < list->count; steps++) {
        const struct task *task = &list->tasks[at];
        size_t next = 0;
        while (is_done[task->needs[next]]) {
            next++;
        }
        at = task->needs[next];
    }
    char names[TASK_LIST_MAX * (TASK_LIST_ID_BYTES + 8)] = "";
    size_t used = 0;
    size_t first = at;
    do {
        const struct task *task = &list->tasks[at];
        size_t next = 0;
        while (is_done[task->needs[next]]) {
            next++;
        }
        at = task->needs[next];
        int written = snprintf(
            names + used, sizeof names - used, " needs %.*s", VIEW_ARGUMENTS(list->tasks[at].id)
        );
        ASSERT(written > 0 && (size_t)written < sizeof names - used); /* each id once */
        used += (size_t)written;
    } while (at != first);
    FAIL(
        error,
        INVALID_INPUT,
        "a circle of tasks: %.*s%s",
        VIEW_ARGUMENTS(list->tasks[first].id),
        names
    );
}

static result read_list(struct task_list *list, struct json_value root, struct error *error) {
    size_t count = json_count(root);
    if (count == 0 || count > TASK_LIST_MAX) {
        FAIL(error, INVALID_INPUT, "%zu tasks: 1 to %d", count, TASK_LIST_MAX);
    }
    for (struct json_value value = json_first(root); json_type(value) != JSON_ABSENT;
         value = json_next(value)) {
        TRY(read_task(list, value, error));
    }
    size_t i = 0;
    for (struct json_value value = json_first(root); json_type(value) != JSON_ABSENT;
         value = json_next(value)) {
        TRY(read_needs(list, &list->tasks[i++], value, error));
    }
    return refuse_circles(list, error);
}

result task_list_parse(struct view text, struct task_list *out, struct error *error) {
    struct task_list list = {0};
    struct view found = find_list(text);
    if (found.length == 0) {
        FAIL(error, INVALID_INPUT, "the text holds no list of tasks");
    }
    TRY_NOTE(error, json_parse(found, &limits, &list.document, error), "in the list of tasks");
    result status = read_list(&list, json_root(list.document), error);
    if (is_failed(status)) {
        json_destroy(list.document);
        return status;
    }
    *out = list;
    return OK;
}

void task_list_deinit(struct task_list *list) {
    json_destroy(list->document);
    *list = (struct task_list){0};
}

size_t task_list_chain(const struct task_list *list, size_t task) {
    size_t length[TASK_LIST_MAX] = {0};
    length[task] = 1;
    for (size_t round = 0; round < list->count;
         round++) { /* no circles: as many as tasks suffice */
        for (size_t i = 0; i < list->count; i++) {
            for (size_t j = 0; j < list->tasks[i].need_count; j++) {
                size_t before = length[list->tasks[i].needs[j]];
                length[i] = before > 0 && before + 1 > length[i] ? before + 1 : length[i];
            }
        }
    }
    size_t most = 1;
    for (size_t i = 0; i < list->count; i++) {
        most = length[i] > most ? length[i] : most;
    }
    return most;
}
