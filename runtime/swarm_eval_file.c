/* The file of results, one JSON object a line; see swarm_eval.h. Read as foreign bytes. */
#include "swarm_eval_internal.h"

#include "base/json.h"

#define HEADER_SHOWN_BYTES 80

/* What a line has beside names: where it is in the result. */
struct number {
    const char *name;
    size_t offset;
};

static const struct number numbers[] = {
    {"duration_ms", offsetof(struct swarm_eval_result, duration_ms)},
    {"tokens", offsetof(struct swarm_eval_result, tokens)},
    {"agents", offsetof(struct swarm_eval_result, agents)},
    {"calls", offsetof(struct swarm_eval_result, calls)},
    {"prompt_tokens", offsetof(struct swarm_eval_result, prompt_tokens)},
    {"reused_tokens", offsetof(struct swarm_eval_result, reused_tokens)},
    {"evaluated_tokens", offsetof(struct swarm_eval_result, evaluated_tokens)},
};

result swarm_eval_write_line(
    const struct swarm_eval *eval,
    const struct swarm_eval_cell *cell,
    const struct swarm_eval_result *outcome,
    struct buffer *out,
    struct error *error
) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "task");
    json_write_string(&writer, eval->plan.tasks[cell->task].id);
    json_write_key(&writer, "setting");
    json_write_text(&writer, swarm_eval_settings[cell->setting].name);
    json_write_key(&writer, "budget");
    json_write_text(&writer, swarm_eval_budget_name(cell->budget));
    json_write_key(&writer, "seed");
    json_write_u64(&writer, cell->seed + 1);
    json_write_key(&writer, "solved");
    json_write_bool(&writer, outcome->is_solved);
    json_write_key(&writer, "passed");
    json_write_bool(&writer, outcome->is_passed);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        int64_t value = 0;
        memcpy(&value, (const char *)outcome + numbers[i].offset, sizeof value);
        json_write_key(&writer, numbers[i].name);
        json_write_i64(&writer, value);
    }
    json_write_key(&writer, "fault");
    json_write_text(&writer, outcome->fault);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_byte(out, '\n', error);
}

/* The task's number; task_count: no such one. */
static size_t find_task(const struct swarm_eval *eval, struct view id) {
    size_t i = 0;
    while (i < eval->plan.task_count && !view_equals(eval->plan.tasks[i].id, id)) {
        i++;
    }
    return i;
}

static result read_cell(
    const struct swarm_eval *eval,
    struct json_value root,
    struct swarm_eval_cell *out,
    struct error *error
) {
    struct view name = view_of(NULL, 0);
    int64_t seed = 0;
    TRY(json_get_string(root, "task", &name, error));
    out->task = find_task(eval, name);
    if (out->task == eval->plan.task_count) {
        FAIL(
            error, INVALID_INPUT, "there is no task %.*s among those chosen", VIEW_ARGUMENTS(name)
        );
    }
    TRY(json_get_string(root, "setting", &name, error));
    out->setting = swarm_eval_find_setting(name);
    if (out->setting == SWARM_EVAL_SETTINGS) {
        FAIL(error, INVALID_INPUT, "there is no setting %.*s", VIEW_ARGUMENTS(name));
    }
    TRY(json_get_string(root, "budget", &name, error));
    out->budget = view_equals_text(name, "time") ? SWARM_EVAL_TIME : SWARM_EVAL_TOKENS;
    if (!view_equals_text(name, swarm_eval_budget_name(out->budget))) {
        FAIL(error, INVALID_INPUT, "a budget is time or tokens, not %.*s", VIEW_ARGUMENTS(name));
    }
    TRY(json_get_i64(root, "seed", &seed, error));
    if (seed < 1 || seed > SWARM_EVAL_SEEDS_MAX) {
        FAIL(error, INVALID_INPUT, "seed %lld: 1 to %d", (long long)seed, SWARM_EVAL_SEEDS_MAX);
    }
    out->seed = (size_t)seed - 1;
    return OK;
}

static result read_line(struct swarm_eval *eval, struct view line, struct error *error) {
    static const struct json_limits limits = {
        .bytes_max = SWARM_EVAL_LINE_MAX, .values_max = 64, .depth_max = 2};
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct swarm_eval_cell cell = {0};
    struct swarm_eval_result found = {0};
    struct view fault = view_of(NULL, 0);
    TRY(json_parse(line, &limits, &document, error));
    struct json_value root = json_root(document);
    TRY(read_cell(eval, root, &cell, error));
    TRY(json_get_bool(root, "solved", &found.is_solved, error));
    TRY(json_get_bool(root, "passed", &found.is_passed, error));
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        int64_t value = 0;
        TRY(json_get_i64(root, numbers[i].name, &value, error));
        if (value < 0) {
            FAIL(error, INVALID_INPUT, "%s is negative", numbers[i].name);
        }
        memcpy((char *)&found + numbers[i].offset, &value, sizeof value);
    }
    TRY(json_get_string(root, "fault", &fault, error));
    if (fault.length >= sizeof found.fault) {
        FAIL(error, INVALID_INPUT, "a fault of %zu bytes", fault.length);
    }
    if (fault.length > 0) {
        memcpy(found.fault, fault.data, fault.length);
    }
    if (swarm_eval_get(eval, &cell) != NULL) {
        FAIL(error, INVALID_INPUT, "the same run as on an earlier line");
    }
    swarm_eval_add(eval, &cell, &found);
    return OK;
}

/* Shows both from the member on in which they differ. */
static result refuse_header(struct view has, struct view wants, struct error *error) {
    size_t from = 0;
    for (size_t i = 0; i < has.length && i < wants.length && has.data[i] == wants.data[i]; i++) {
        from = strchr("{,", has.data[i]) != NULL && has.data[i] != '\0' ? i + 1 : from;
    }
    has = view_slice(has, from, HEADER_SHOWN_BYTES);
    wants = view_slice(wants, from, HEADER_SHOWN_BYTES);
    FAIL(
        error,
        INVALID_INPUT,
        "it is of another evaluation: it has %.*s, and this one %.*s",
        VIEW_ARGUMENTS(has),
        VIEW_ARGUMENTS(wants)
    );
}

result swarm_eval_read_lines(
    struct swarm_eval *eval, struct view header, struct view text, size_t *used, struct error *error
) {
    struct cursor cursor = cursor_over(text);
    struct view line = view_of(NULL, 0);
    size_t length = 0;
    for (size_t number = 1; cursor_take_until(&cursor, '\n', &line); number++) {
        if (number == 1 && !view_equals(line, header)) {
            return refuse_header(line, header, error);
        }
        if (number > 1) {
            TRY_NOTE(error, read_line(eval, line, error), "line %zu", number);
        }
        length = text.length - cursor_remaining(&cursor);
    }
    *used = length;
    return OK;
}
