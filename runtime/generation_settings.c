/* See generation_settings.h. Options and record are read by the same tables and parsers, so that both
 * have the same limits. */
#include "generation_settings.h"

#include <math.h>
#include <stddef.h>

#define MIN_P_MAX          0.999999
#define REPEATS_LEAST      2
#define REPEATS_MOST       1000000
#define SETTINGS_BYTES     ((size_t)1 << 20) /* 64 stop strings and 1,024 biases fit well */
#define BIAS_NEVER         "never"
#define GUARD_CONTEXT_PART 2 /* default of thinking and calls: this part of the context */

struct whole_row {
    const char *option, *key;
    int64_t min, max;
    bool may_be_off; /* written "off", which is 0 */
    size_t offset;
};
static const struct whole_row whole_rows[] = {
    {"top-k", "top_k", 0, INT32_MAX, false, offsetof(struct generation_settings, top_k)},
    {"draft-max",
     "draft_max",
     1,
     ENGINE_DRAFT_MAX,
     false,
     offsetof(struct generation_settings, draft_max)},
    {"max-thinking",
     "max_thinking",
     1,
     INT32_MAX,
     true,
     offsetof(struct generation_settings, max_thinking)},
    {"max-call", "max_call", 1, INT32_MAX, true, offsetof(struct generation_settings, max_call)},
    {"max-repeats",
     "max_repeats",
     REPEATS_LEAST,
     REPEATS_MOST,
     true,
     offsetof(struct generation_settings, max_repeats)},
};

struct real_row {
    const char *option, *key;
    double min, max;
    size_t offset;
};
static const struct real_row real_rows[] = {
    {"min-p", "min_p", 0.0, MIN_P_MAX, offsetof(struct generation_settings, min_p)},
    {"repetition-penalty",
     "repetition_penalty",
     SAMPLING_REPETITION_LEAST,
     SAMPLING_REPETITION_LARGEST,
     offsetof(struct generation_settings, repetition_penalty)},
    {"presence-penalty",
     "presence_penalty",
     -SAMPLING_PENALTY_LARGEST,
     SAMPLING_PENALTY_LARGEST,
     offsetof(struct generation_settings, presence_penalty)},
    {"frequency-penalty",
     "frequency_penalty",
     -SAMPLING_PENALTY_LARGEST,
     SAMPLING_PENALTY_LARGEST,
     offsetof(struct generation_settings, frequency_penalty)},
};

static const char *const speculation_names[] = {
    [SPECULATE_AUTO] = "auto",
    [SPECULATE_OFF] = "off",
    [SPECULATE_LOOKUP] = "lookup",
    [SPECULATE_DRAFT] = "draft",
};

static int64_t *whole_of(struct generation_settings *settings, const struct whole_row *row) {
    return (int64_t *)(void *)((char *)settings + row->offset);
}

static double *real_of(struct generation_settings *settings, const struct real_row *row) {
    return (double *)(void *)((char *)settings + row->offset);
}

/* ---- parts ---------------------------------------------------------------------------------- */

static bool speculation_parse(struct view text, enum speculate *out) {
    for (size_t i = 0; i < COUNT_OF(speculation_names); i++) {
        if (view_equals_text(text, speculation_names[i])) {
            *out = (enum speculate)i;
            return true;
        }
    }
    return false;
}

/* "17=2.5"; the last bias of an id counts. */
static result
bias_take(struct generation_settings *settings, struct view text, struct error *error) {
    size_t at = view_find(text, view_of_text("="), 0);
    int64_t id = 0;
    double value = 0.0;
    struct view number = at == SIZE_MAX ? text : view_slice(text, at + 1, text.length - at - 1);
    bool is_never = view_equals_text(number, BIAS_NEVER);
    if (at == SIZE_MAX || !parse_i64(view_slice(text, 0, at), &id) || id < 0 || id > INT32_MAX ||
        (!is_never && !parse_double(number, &value)) ||
        !(fabs(value) <= (double)SAMPLING_BIAS_LARGEST)) {
        FAIL(
            error,
            INVALID_INPUT,
            "wants ID=BIAS with a token id and %g to %g or never, not '%.*s'",
            -(double)SAMPLING_BIAS_LARGEST,
            (double)SAMPLING_BIAS_LARGEST,
            (int)(text.length > 60 ? 60 : text.length),
            (const char *)text.data
        );
    }
    int32_t place = 0;
    while (place < settings->bias_count && settings->bias[place].id != (int32_t)id) {
        place++;
    }
    if (place == SAMPLING_BIAS_MAX) {
        FAIL(error, LIMIT, "takes at most %d tokens", SAMPLING_BIAS_MAX);
    }
    settings->bias[place] =
        (struct logit_bias){.id = (int32_t)id, .bias = is_never ? -HUGE_VALF : (float)value};
    settings->bias_count += place == settings->bias_count ? 1 : 0;
    return OK;
}

/* "17=2.5,23=never" */
static result
biases_take(struct generation_settings *settings, struct view text, struct error *error) {
    for (;;) {
        size_t end = view_find(text, view_of_text(","), 0);
        TRY(bias_take(settings, view_slice(text, 0, end == SIZE_MAX ? text.length : end), error));
        if (end == SIZE_MAX) {
            return OK;
        }
        text = view_slice(text, end + 1, text.length - end - 1);
    }
}

static result
stop_string_take(struct generation_settings *settings, struct view text, struct error *error) {
    if (settings->stop_count == STOP_STRINGS_MAX) {
        FAIL(error, LIMIT, "takes at most %d strings", STOP_STRINGS_MAX);
    }
    size_t number = settings->stop_count + 1; /* as people count what they gave */
    if (text.length == 0) {
        FAIL(error, INVALID_INPUT, "number %zu is empty", number);
    }
    if (text.length > STOP_STRING_BYTES_MAX) {
        FAIL(
            error,
            LIMIT,
            "number %zu has %zu bytes, at most %d are taken",
            number,
            text.length,
            STOP_STRING_BYTES_MAX
        );
    }
    if (!utf8_is_valid(text)) {
        FAIL(error, INVALID_INPUT, "number %zu is not UTF-8 text", number);
    }
    settings->stops[settings->stop_count++] = text;
    return OK;
}

/* ---- options -------------------------------------------------------------------------------- */

static bool read_whole(
    const struct cli_arguments *arguments,
    const struct whole_row *row,
    struct generation_settings *out
) {
    const char *text = cli_value(arguments, row->option);
    if (row->may_be_off && text != NULL && strcmp(text, "off") == 0) {
        *whole_of(out, row) = 0;
        return true;
    }
    int64_t value = 0;
    if (row->may_be_off && text != NULL &&
        (!parse_i64(view_of_text(text), &value) || value < row->min || value > row->max)) {
        (void)cli_usage(
            arguments,
            "--%s wants a whole number from %lld to %lld or off, not '%.60s'",
            row->option,
            (long long)row->min,
            (long long)row->max,
            text
        );
        return false;
    }
    return cli_i64(arguments, row->option, row->min, row->max, whole_of(out, row));
}

static bool read_lists(const struct cli_arguments *arguments, struct generation_settings *out) {
    struct error error = {0};
    const char *text = NULL;
    for (size_t i = 0; (text = cli_value_at(arguments, "logit-bias", i)) != NULL; i++) {
        if (is_failed(biases_take(out, view_of_text(text), &error))) {
            (void)cli_usage(arguments, "--logit-bias %s", error.message);
            return false;
        }
    }
    for (size_t i = 0; (text = cli_value_at(arguments, "stop", i)) != NULL; i++) {
        if (is_failed(stop_string_take(out, view_of_text(text), &error))) {
            (void)cli_usage(arguments, "--stop: %s", error.message);
            return false;
        }
    }
    return true;
}

static int read_words(const struct cli_arguments *arguments, struct generation_settings *out) {
    const char *speculate = cli_value(arguments, "speculate");
    const char *constrain = cli_value(arguments, "constrain-tools");
    if (speculate != NULL && !speculation_parse(view_of_text(speculate), &out->speculation)) {
        return cli_usage(
            arguments, "--speculate wants auto, off, lookup or draft, not '%.60s'", speculate
        );
    }
    if (out->speculation == SPECULATE_OFF && out->draft_max > 0) {
        return cli_usage(arguments, "--speculate off leaves nothing for --draft-max");
    }
    if (constrain != NULL && strcmp(constrain, "on") != 0 && strcmp(constrain, "off") != 0) {
        return cli_usage(arguments, "--constrain-tools wants on or off, not '%.60s'", constrain);
    }
    out->constrains_tools = constrain != NULL && strcmp(constrain, "on") == 0;
    out->shows_tokens = cli_has(arguments, "logprobs");
    if (out->shows_tokens && !cli_has(arguments, "json")) {
        return cli_usage(arguments, "--logprobs adds to the events of --json: name both");
    }
    return STATUS_DONE;
}

int generation_settings_read(
    const struct cli_arguments *arguments, struct generation_settings *out
) {
    out->max_thinking = -1;
    out->max_call = -1;
    out->max_repeats = -1;
    for (size_t i = 0; i < COUNT_OF(whole_rows); i++) {
        if (!read_whole(arguments, &whole_rows[i], out)) {
            return STATUS_USAGE;
        }
    }
    for (size_t i = 0; i < COUNT_OF(real_rows); i++) {
        const struct real_row *row = &real_rows[i];
        if (!cli_double(arguments, row->option, row->min, row->max, real_of(out, row))) {
            return STATUS_USAGE;
        }
    }
    if (!cli_i64(arguments, "logprobs", 0, SAMPLING_ALTERNATIVES_MAX, &out->alternatives) ||
        !read_lists(arguments, out)) {
        return STATUS_USAGE;
    }
    return read_words(arguments, out);
}

/* ---- record --------------------------------------------------------------------------------- */

static result restore_numbers(
    struct generation_settings *settings,
    const struct cli_arguments *arguments,
    struct json_value root,
    struct error *error
) {
    for (size_t i = 0; i < COUNT_OF(whole_rows); i++) {
        const struct whole_row *row = &whole_rows[i];
        int64_t value = 0;
        if (cli_has(arguments, row->option) || json_type(json_get(root, row->key)) == JSON_ABSENT) {
            continue;
        }
        TRY(json_get_i64(root, row->key, &value, error));
        if ((value < row->min || value > row->max) && !(row->may_be_off && value == 0)) {
            FAIL(error, CORRUPT, "\"%s\" is %lld", row->key, (long long)value);
        }
        *whole_of(settings, row) = value;
    }
    for (size_t i = 0; i < COUNT_OF(real_rows); i++) {
        const struct real_row *row = &real_rows[i];
        double value = 0.0;
        if (cli_has(arguments, row->option) || json_type(json_get(root, row->key)) == JSON_ABSENT) {
            continue;
        }
        TRY(json_get_double(root, row->key, &value, error));
        if (!(value >= row->min && value <= row->max)) {
            FAIL(error, CORRUPT, "\"%s\" is %g", row->key, value);
        }
        *real_of(settings, row) = value;
    }
    return OK;
}

static result restore_lists(
    struct generation_settings *settings,
    const struct cli_arguments *arguments,
    struct json_value root,
    struct error *error
) {
    struct view text;
    if (!cli_has(arguments, "logit-bias") &&
        json_type(json_get(root, "logit_bias")) != JSON_ABSENT) {
        TRY(json_get_string(root, "logit_bias", &text, error));
        TRY_NOTE(error, biases_take(settings, text, error), "\"logit_bias\"");
    }
    if (cli_has(arguments, "stop")) {
        return OK;
    }
    for (struct json_value item = json_first(json_get(root, "stop"));
         json_type(item) != JSON_ABSENT;
         item = json_next(item)) {
        if (!json_as_string(item, &text)) {
            FAIL(error, CORRUPT, "\"stop\" holds a %s", json_type_name(json_type(item)));
        }
        TRY_NOTE(error, stop_string_take(settings, text, error), "\"stop\"");
    }
    return OK;
}

static result restore_words(
    struct generation_settings *settings,
    const struct cli_arguments *arguments,
    struct json_value root,
    struct error *error
) {
    struct view text;
    if (!cli_has(arguments, "speculate") && json_type(json_get(root, "speculate")) != JSON_ABSENT) {
        TRY(json_get_string(root, "speculate", &text, error));
        if (!speculation_parse(text, &settings->speculation)) {
            FAIL(error, CORRUPT, "\"speculate\" is not known");
        }
    }
    if (!cli_has(arguments, "constrain-tools") &&
        json_type(json_get(root, "constrain_tools")) != JSON_ABSENT) {
        TRY(json_get_bool(root, "constrain_tools", &settings->constrains_tools, error));
    }
    return OK;
}

static result restore(
    struct generation_settings *settings,
    const struct cli_arguments *arguments,
    struct view recorded,
    struct error *error
) {
    TRY(json_parse(recorded, NULL, &settings->recorded, error));
    struct json_value root = json_root(settings->recorded);
    if (json_type(root) != JSON_OBJECT) {
        FAIL(error, CORRUPT, "a %s instead of an object", json_type_name(json_type(root)));
    }
    TRY(restore_numbers(settings, arguments, root, error));
    TRY(restore_lists(settings, arguments, root, error));
    return restore_words(settings, arguments, root, error);
}

result generation_settings_restore(
    struct generation_settings *settings,
    const struct cli_arguments *arguments,
    struct view recorded,
    struct error *error
) {
    ASSERT(settings->recorded == NULL);
    if (recorded.length == 0) {
        return OK;
    }
    result restored = restore(settings, arguments, recorded, error);
    if (is_failed(restored) && restored.code != RESULT_MEMORY) {
        restored.code = RESULT_CORRUPT;
    }
    TRY_NOTE(error, restored, "recorded settings");
    return OK;
}

void generation_settings_resolve(struct generation_settings *settings, int32_t context_max) {
    struct guard_limits guard;
    guard_limits_default(&guard);
    int64_t part = context_max / GUARD_CONTEXT_PART;
    settings->max_thinking = settings->max_thinking < 0 ? part : settings->max_thinking;
    settings->max_call = settings->max_call < 0 ? part : settings->max_call;
    settings->max_repeats = settings->max_repeats < 0 ? guard.loop_times : settings->max_repeats;
}

static result
write_biases(const struct generation_settings *settings, struct buffer *out, struct error *error) {
    for (int32_t i = 0; i < settings->bias_count; i++) {
        const struct logit_bias *bias = &settings->bias[i];
        const char *comma = i > 0 ? "," : "";
        TRY(isinf(bias->bias)
                ? buffer_append_format(out, error, "%s%d=" BIAS_NEVER, comma, bias->id)
                : buffer_append_format(out, error, "%s%d=%.9g", comma, bias->id, (double)bias->bias)
        );
    }
    return OK;
}

static result write_lists(
    const struct generation_settings *settings, struct json_writer *writer, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer biases;
    buffer_init(&biases, SETTINGS_BYTES);
    if (settings->bias_count > 0) {
        TRY(write_biases(settings, &biases, error));
        json_write_key(writer, "logit_bias");
        json_write_string(writer, buffer_view(&biases));
    }
    if (settings->stop_count > 0) {
        json_write_key(writer, "stop");
        json_write_array_begin(writer);
        for (size_t i = 0; i < settings->stop_count; i++) {
            json_write_string(writer, settings->stops[i]);
        }
        json_write_array_end(writer);
    }
    return OK;
}

result generation_settings_write(
    const struct generation_settings *settings, struct buffer *out, struct error *error
) {
    struct generation_settings copy = *settings; /* the tables reach into one that can be changed */
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    for (size_t i = 0; i < COUNT_OF(whole_rows); i++) {
        int64_t value = *whole_of(&copy, &whole_rows[i]);
        ASSERT(value >= 0);
        if (value != 0 || whole_rows[i].may_be_off) {
            json_write_key(&writer, whole_rows[i].key);
            json_write_i64(&writer, value);
        }
    }
    for (size_t i = 0; i < COUNT_OF(real_rows); i++) {
        double value = *real_of(&copy, &real_rows[i]);
        if (fpclassify(value) != FP_ZERO) {
            json_write_key(&writer, real_rows[i].key);
            json_write_double(&writer, value);
        }
    }
    TRY(write_lists(settings, &writer, error));
    if (settings->speculation != SPECULATE_AUTO) {
        json_write_key(&writer, "speculate");
        json_write_text(&writer, speculation_names[settings->speculation]);
    }
    if (settings->constrains_tools) {
        json_write_key(&writer, "constrain_tools");
        json_write_bool(&writer, true);
    }
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}

result
generation_settings_of_summary(struct view recorded, struct buffer *out, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct json_writer writer;
    if (recorded.length == 0) {
        return OK;
    }
    TRY(json_parse(recorded, NULL, &document, error));
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    struct json_value root = json_root(document);
    for (struct json_value value = json_first(root); json_type(value) != JSON_ABSENT;
         value = json_next(value)) {
        struct view key = json_name(value);
        if (!view_equals_text(key, "stop") && !view_equals_text(key, "constrain_tools")) {
            json_write_key_view(&writer, key);
            json_write_value(&writer, value);
        }
    }
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}

/* ---- text ----------------------------------------------------------------------------------- */

/* A word as it is; other text as a JSON string, so that its ends are seen and it stays on its line. */
static result
describe_text(struct view raw, struct view text, struct buffer *out, struct error *error) {
    bool is_word = text.length > 0;
    for (size_t i = 0; i < text.length && is_word; i++) {
        unsigned char c = text.data[i];
        is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  (c != '\0' && strchr("=.,-_", c) != NULL);
    }
    return buffer_append(out, is_word ? text : raw, error);
}

static bool may_be_off(struct view key) {
    for (size_t i = 0; i < COUNT_OF(whole_rows); i++) {
        if (view_equals_text(key, whole_rows[i].key)) {
            return whole_rows[i].may_be_off;
        }
    }
    return false;
}

/* One option with one value. */
static result
describe_one(struct view key, struct json_value value, struct buffer *out, struct error *error) {
    struct view text;
    bool is_on = false;
    int64_t number = 0;
    TRY(buffer_append_text(out, out->length > 0 ? " --" : "--", error));
    size_t start = out->length;
    TRY(buffer_append(out, key, error));
    for (size_t i = start; i < out->length; i++) {
        out->data[i] = out->data[i] == '_' ? '-' : out->data[i];
    }
    TRY(buffer_append_text(out, " ", error));
    if (json_as_string(value, &text)) {
        return describe_text(json_raw(value), text, out, error);
    }
    if (json_as_bool(value, &is_on)) {
        return buffer_append_text(out, is_on ? "on" : "off", error);
    }
    if (may_be_off(key) && json_as_i64(value, &number) && number == 0) {
        return buffer_append_text(out, "off", error);
    }
    return buffer_append(out, json_raw(value), error);
}

static result describe(struct view recorded, struct buffer *out, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY(json_parse(recorded, NULL, &document, error));
    struct json_value root = json_root(document);
    if (json_type(root) != JSON_OBJECT) {
        FAIL(error, CORRUPT, "a %s instead of an object", json_type_name(json_type(root)));
    }
    for (struct json_value member = json_first(root); json_type(member) != JSON_ABSENT;
         member = json_next(member)) {
        struct view key = json_name(member);
        if (json_type(member) != JSON_ARRAY) {
            TRY(describe_one(key, member, out, error));
            continue;
        }
        for (struct json_value item = json_first(member); json_type(item) != JSON_ABSENT;
             item = json_next(item)) {
            TRY(describe_one(key, item, out, error));
        }
    }
    return OK;
}

result generation_settings_describe(struct view recorded, struct buffer *out, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    if (recorded.length == 0) {
        return OK;
    }
    struct error problem = {0};
    result described = describe(recorded, &text, &problem);
    if (described.code == RESULT_MEMORY) {
        FAIL(error, MEMORY, "no memory for recorded settings");
    }
    return buffer_append(out, is_ok(described) ? buffer_view(&text) : recorded, error);
}

/* ---- use ------------------------------------------------------------------------------------ */

void generation_settings_sampling(
    const struct generation_settings *settings, struct sampling *sampling
) {
    sampling->top_k = (int32_t)settings->top_k;
    sampling->min_p = settings->min_p;
    sampling->repetition_penalty = settings->repetition_penalty;
    sampling->presence_penalty = settings->presence_penalty;
    sampling->frequency_penalty = settings->frequency_penalty;
    sampling->bias = settings->bias;
    sampling->bias_count = settings->bias_count;
    sampling->alternatives = (int32_t)settings->alternatives;
}

struct guard_limits generation_settings_guard(const struct generation_settings *settings) {
    struct guard_limits guard;
    guard_limits_default(&guard);
    guard.loop_times = (int32_t)settings->max_repeats;
    if (settings->max_repeats == 0) {
        guard.loop_span_max = 0;
    }
    guard.thinking_max = (int32_t)settings->max_thinking;
    guard.call_max = (int32_t)settings->max_call;
    return guard;
}

void generation_settings_deinit(struct generation_settings *settings) {
    json_destroy(settings->recorded);
    settings->recorded = NULL;
}
