#include "host.h"

#include "paths.h"
#include <inttypes.h>
#include <limits.h>

#define SETTINGS_BYTES_MAX ((size_t)1 << 20)

/* ---- settings ------------------------------------------------------------------------------- */

/* A member that is an integer from 1 to `max`; absent leaves *out alone. */
static result setting_get(
    struct json_value object, const char *name, int64_t max, int32_t *out, struct error *error
) {
    struct json_value member = json_get(object, name);
    int64_t value = 0;
    if (json_type(member) == JSON_ABSENT || json_type(member) == JSON_NULL) {
        return OK;
    }
    if (!json_as_i64(member, &value) || value < 1 || value > max) {
        struct view raw = json_raw(member);
        raw = view_slice(raw, 0, 60);
        FAIL(
            error,
            INVALID_INPUT,
            "%s is %.*s, not a whole number from 1 to %" PRId64,
            name,
            VIEW_ARGUMENTS(raw),
            max
        );
    }
    *out = (int32_t)value;
    return OK;
}

/* A member that is missing leaves *out alone. */
static result switch_get(struct json_value root, const char *name, bool *out, struct error *error) {
    struct json_value member = json_get(root, name);
    if (json_type(member) != JSON_ABSENT && !json_as_bool(member, out)) {
        FAIL(error, INVALID_INPUT, "%s wants true or false", name);
    }
    return OK;
}

static result settings_parse(
    const char *name, struct view text, struct model_settings *out, struct error *error
) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(text, NULL, &document, error), "%s", name);
    struct json_value root = json_root(document);
    if (json_type(root) != JSON_OBJECT) {
        FAIL(error, INVALID_INPUT, "%s is no JSON object", name);
    }
    TRY_NOTE(
        error,
        setting_get(root, "max_new_tokens", INT32_MAX, &out->turn_tokens_max, error),
        "%s",
        name
    );
    TRY_NOTE(error, setting_get(root, "turns_max", 100000, &out->turns_max, error), "%s", name);
    TRY_NOTE(error, setting_get(root, "effort", CHAT_EFFORT_MAX, &out->effort, error), "%s", name);
    TRY_NOTE(error, switch_get(root, "swarm_notes", &out->has_swarm_notes, error), "%s", name);
    TRY_NOTE(error, switch_get(root, "agent_tools", &out->has_agent_tools, error), "%s", name);
    TRY_NOTE(error, switch_get(root, "effort_may_vary", &out->effort_may_vary, error), "%s", name);
    struct view dialect;
    if (json_as_string(json_get(root, "dialect"), &dialect)) {
        int length = snprintf(out->dialect, sizeof out->dialect, "%.*s", VIEW_ARGUMENTS(dialect));
        if (length < 0 || (size_t)length >= sizeof out->dialect) {
            FAIL(error, INVALID_INPUT, "%s: no dialect has so long a name", name);
        }
    }
    return OK;
}

result model_settings_load(const char *directory, struct model_settings *out, struct error *error) {
    static const char *const names[] = {"generation_config.json", "agent.json"};
    struct model_settings settings = {
        .effort = CHAT_EFFORT_DEFAULT, .has_swarm_notes = true, .has_agent_tools = true};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[PATH_MAX + 64];
        int length = snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        ASSERT(length > 0);
        if ((size_t)length >= sizeof path) {
            FAIL(error, LIMIT, "the path of the model has more than %d bytes", PATH_MAX);
        }
        CLEANUP(buffer_deinit) struct buffer text;
        buffer_init(&text, SETTINGS_BYTES_MAX);
        result read = file_read(path, &text, error);
        if (read.code == RESULT_NOT_FOUND) {
            continue;
        }
        TRY(limit_as_corrupt(read, error));
        result parsed = settings_parse(names[i], buffer_view(&text), &settings, error);
        TRY(limit_as_corrupt(parsed, error));
    }
    *out = settings;
    return OK;
}

int backend_option(const struct cli_arguments *arguments, const char **out) {
    const char *name = cli_value(arguments, "backend");
    name = name == NULL ? "auto" : name;
    if (strcmp(name, "auto") != 0 && strcmp(name, "cpu") != 0 && strcmp(name, "cuda") != 0) {
        return cli_usage(arguments, "--backend wants auto, cpu or cuda, not '%.60s'", name);
    }
    return backend_choose(name, out);
}

int backend_choose(const char *name, const char **out) {
    struct engine_device device;
    struct error error = {0};
    if (strcmp(name, "cuda") == 0 && is_failed(engine_device_find(&device, &error))) {
        return cli_fail(STATUS_REFUSED, "%s", error.message);
    }
    *out = name;
    return STATUS_DONE;
}

result model_directory(const char *given, struct buffer *out, struct error *error) {
    if (given == NULL) {
        return path_model_default(out, error);
    }
    TRY_NOTE(error, path_directory(given, out, error), "model");
    return OK;
}

/* ---- text ----------------------------------------------------------------------------------- */

result text_model_open(const char *directory, struct text_model *out, struct error *error) {
    CLEANUP(text_model_close) struct text_model model = {0};
    char path[PATH_MAX + 64];
    int length = snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    ASSERT(length > 0 && (size_t)length < sizeof path);
    TRY(tokenizer_load(&model.tokenizer, path, error));
    TRY(chat_wording_load(&model.wording, directory, NULL, error));
    TRY(chat_encoder_create(&model.encoder, model.tokenizer, model.wording, error));
    *out = model;
    model = (struct text_model){0};
    return OK;
}

void text_model_close(struct text_model *model) {
    chat_encoder_destroy(model->encoder);
    chat_wording_destroy(model->wording);
    tokenizer_destroy(model->tokenizer);
    *model = (struct text_model){0};
}

result prompt_count(
    const struct chat_encoder *encoder,
    const struct chat_message *messages,
    size_t message_count,
    int32_t effort,
    size_t *out,
    struct error *error
) {
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    struct chat_request request = {
        .messages = messages,
        .message_count = message_count,
        .options = chat_options_default(),
    };
    request.options.effort = effort;
    request.options.keep_thinking = true;
    TRY(chat_encode(&ids, encoder, &request, error));
    *out = ids.count;
    return OK;
}

/* ---- tools ---------------------------------------------------------------------------------- */

/* Tools in the order of their declaration: built-in ones, then those of servers. */
static const struct tool_descriptor *declared_at(
    const struct tool_context *context, enum tool_dialect dialect, uint64_t set, size_t index
) {
    if (index < tool_count()) {
        return (set >> index & 1U) != 0 ? tool_form(index, dialect, set) : NULL;
    }
    const struct tool_descriptor *added = tool_context_at(context, index - tool_count());
    return (added->effects & TOOL_FOREIGN) != 0 ? added : NULL;
}

static result
declare(const struct tool_descriptor *tool, struct tool_declarations *out, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, &out->texts, error);
    writer.python_separators = true; /* as the model was trained */
    size_t start = out->texts.length;
    tool_declaration_write(&writer, tool);
    TRY(json_writer_finish(&writer));
    out->tools[out->count].name = view_of_text(tool->name);
    out->tools[out->count].function.length = out->texts.length - start;
    out->count++;
    return OK;
}

result tool_declarations_make(
    const struct tool_context *context,
    enum tool_dialect dialect,
    uint64_t set,
    struct tool_declarations *out,
    struct error *error
) {
    CLEANUP(tool_declarations_deinit) struct tool_declarations made = {0};
    size_t added = context != NULL ? tool_context_count(context) : 0;
    buffer_init(&made.texts, BUFFER_CEILING_DEFAULT);
    buffer_init(&made.json, BUFFER_CEILING_DEFAULT);
    made.tools = calloc(tool_count() + added + 1, sizeof *made.tools);
    if (made.tools == NULL) {
        FAIL(error, MEMORY, "no memory for tool declarations");
    }
    struct json_writer writer;
    json_writer_init(&writer, &made.json, error);
    json_write_array_begin(&writer);
    for (size_t i = 0; i < tool_count() + added; i++) {
        const struct tool_descriptor *tool = declared_at(context, dialect, set, i);
        if (tool != NULL) {
            TRY(declare(tool, &made, error));
            tool_declaration_write(&writer, tool);
        }
    }
    json_write_array_end(&writer);
    TRY(json_writer_finish(&writer));
    size_t at = 0; /* only now does the buffer stay where it is */
    for (size_t i = 0; i < made.count; i++) {
        size_t length = made.tools[i].function.length;
        made.tools[i].function = view_of(made.texts.data + at, length);
        at += length;
    }
    *out = made;
    made = (struct tool_declarations){0};
    return OK;
}

void tool_declarations_deinit(struct tool_declarations *declarations) {
    free(declarations->tools);
    declarations->tools = NULL;
    buffer_deinit(&declarations->texts);
    buffer_deinit(&declarations->json);
}

/* ---- plan ----------------------------------------------------------------------------------- */

result plan_describe(const struct engine_plan *plan, struct buffer *out, struct error *error) {
    const double mib = 1048576.0;
    if (plan->has_device) {
        TRY(buffer_append_format(
            out,
            error,
            "device memory: %.1f MiB of %.0f MiB allowed, weights %.1f MiB of it%s; ",
            (double)plan->device_bytes / mib,
            (double)plan->device_memory_max / mib,
            (double)plan->device_weight_bytes / mib,
            plan->has_host_tables ? ", Engram tables in host memory" : ""
        ));
    }
    TRY(buffer_append_format(
        out,
        error,
        "memory: weights %.1f MiB mapped; beside them %.1f MiB of %.0f MiB allowed: KV %.1f MiB "
        "(%" PRIu64 " bytes a token; %.1f MiB of it cache), snapshots %.1f MiB, prefix tree "
        "%.1f MiB, windows and tables %.1f MiB (windows %.1f KiB a sequence), buffers of the "
        "cache's tiers %.1f MiB, host pool %.1f MiB, scratch %.1f MiB; context %d, %d threads",
        (double)plan->weights_mapped / mib,
        (double)plan->total_beside_weights / mib,
        (double)plan->memory_max / mib,
        (double)plan->kv_pool_bytes / mib,
        plan->kv_bytes_per_token,
        (double)plan->cache_pool_bytes / mib,
        (double)plan->snapshot_bytes / mib,
        (double)plan->prefix_bytes / mib,
        (double)plan->other_bytes / mib,
        (double)plan->window_bytes_per_sequence / 1024.0,
        (double)plan->tier_bytes / mib,
        (double)plan->host_bytes / mib,
        (double)plan->scratch_bytes / mib,
        plan->context_max,
        plan->threads
    ));
    if (plan->sequences_max == 1) {
        return OK;
    }
    return buffer_append_format(
        out,
        error,
        "; %d sequences of %" PRId64 " tokens together, %d of them running",
        plan->sequences_max,
        plan->kv_tokens_max,
        plan->windows_max
    );
}
