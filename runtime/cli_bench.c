/* hearth model bench: what steps and kernels cost on this machine. */
#include "cli.h"
#include "engine/model_bench.h"
#include "host.h"

#include <errno.h>

static const struct cli_option bench_options[] = {
    {"model", 0, "DIR", "model directory (default: the bundled one)"},
    BACKEND_OPTION,
    {"threads", 0, "N", "threads of the CPU backend (default: one a core)"},
    {"batch", 0, "LIST", "decode: sequences of a step (default: 1,4,16,64)"},
    {"context", 0, "LIST", "tokens before the step (default: 1024,16384)"},
    {"prefill", 0, "LIST", "rows of a prompt's step (default: 512,4096)"},
    {"repeats", 0, "N", "timed steps of each case, 1 to 64 (default: 20)"},
    {"json", 0, "FILE", "everything measured as one JSON object; - for standard output"},
};

#define FAR_FROM_FLOOR 4 /* times; what is said at the end of the table */

/* "1,4,16": numbers from 1 to `max`; "0" alone: none. */
static bool parse_list(
    const struct cli_arguments *arguments,
    const char *name,
    int64_t max,
    int32_t *out,
    int32_t *count
) {
    const char *text = cli_value(arguments, name);
    if (text == NULL) {
        return true;
    }
    *count = 0;
    if (strcmp(text, "0") == 0) {
        return true;
    }
    while (*count < MODEL_BENCH_CASES_MAX) {
        char *end = NULL;
        long long value = strtoll(text, &end, 10);
        if (end == text || value < 1 || value > max || (*end != ',' && *end != '\0')) {
            break;
        }
        out[(*count)++] = (int32_t)value;
        if (*end == '\0') {
            return true;
        }
        text = end + 1;
    }
    (void)cli_usage(
        arguments,
        "--%s is a list of at most %d numbers from 1 to %lld, separated by commas, not '%s'",
        name,
        MODEL_BENCH_CASES_MAX,
        (long long)max,
        cli_value(arguments, name)
    );
    return false;
}

static bool
parse_options(const struct cli_arguments *arguments, struct model_bench_options *options) {
    int64_t threads = 0;
    int64_t repeats = 20;
    const int32_t batches[] = {1, 4, 16, 64};
    const int32_t contexts[] = {1024, 16384};
    const int32_t chunks[] = {512, 4096};
    memcpy(options->batches, batches, sizeof batches);
    memcpy(options->contexts, contexts, sizeof contexts);
    memcpy(options->chunks, chunks, sizeof chunks);
    options->batch_count = COUNT_OF(batches);
    options->context_count = COUNT_OF(contexts);
    options->chunk_count = COUNT_OF(chunks);
    if (!cli_i64(arguments, "threads", 1, 256, &threads) ||
        !cli_i64(arguments, "repeats", 1, 64, &repeats) ||
        !parse_list(arguments, "batch", 4096, options->batches, &options->batch_count) ||
        !parse_list(arguments, "context", 1 << 24, options->contexts, &options->context_count) ||
        !parse_list(arguments, "prefill", 65536, options->chunks, &options->chunk_count)) {
        return false;
    }
    int32_t cases = options->context_count * (options->batch_count + options->chunk_count);
    if (cases > MODEL_BENCH_CASES_MAX) {
        (void)cli_usage(
            arguments,
            "%d cases (each context with each batch and each chunk), at most %d",
            cases,
            MODEL_BENCH_CASES_MAX
        );
        return false;
    }
    options->threads = (int32_t)threads;
    options->repeats = (int32_t)repeats;
    return true;
}

/* An exit status. "auto" looks for a device alone: cases that do not fit it are left out and said. */
static int choose_backend(const struct cli_arguments *arguments, const char **out) {
    struct engine_device device;
    int status = backend_option(arguments, out);
    if (status == STATUS_DONE && strcmp(*out, "auto") == 0) {
        *out = is_ok(engine_device_find(&device, NULL)) ? "cuda" : "cpu";
    }
    return status;
}

/* ---- the table ---- */

static result
put_facts(struct buffer *out, const struct model_bench_report *report, struct error *error) {
    TRY(buffer_append_format(
        out,
        error,
        "%s; %d layers, %d experts, %llu bytes of KV a token\n",
        report->backend,
        report->layers,
        report->experts,
        (unsigned long long)report->kv_bytes_per_token
    ));
    if (report->read_rate <= 0) {
        return buffer_append_text(
            out, "no ceilings are measured on this backend: no floors\n", error
        );
    }
    return buffer_append_format(
        out,
        error,
        "measured here: reads %.2f TB/s, copies %.2f TB/s, bf16 %.0f TFLOP/s, fp8 %.0f TFLOP/s,\n"
        "  a launch %.2f us; stamps around a kernel, taken off: %.2f us\n",
        1e-12 * report->read_rate,
        1e-12 * report->copy_rate,
        1e-12 * report->bf16_rate,
        1e-12 * report->fp8_rate,
        1e6 * report->launch_seconds,
        1e6 * report->stamp_seconds
    );
}

static result
put_ratio(struct buffer *out, const struct model_bench_row *row, struct error *error) {
    if (row->floor_seconds <= 0) {
        return buffer_append_format(out, error, "%10s %7s", "-", "-");
    }
    return buffer_append_format(
        out, error, "%10.1f %7.2f", 1e6 * row->floor_seconds, row->seconds / row->floor_seconds
    );
}

/* The whole, then its part on the device and what its kernels add up to: `count` rows behind it. */
static result
put_step(struct buffer *out, const struct model_bench_row *row, size_t count, struct error *error) {
    TRY(buffer_append_format(
        out,
        error,
        "\n%s, %d row%s at %d tokens: %.0f tokens/s (%.0f to %.0f us a step)\n"
        "  %-34s %5s %10s %10s %7s\n  %-34s %5s %10.1f ",
        row->is_prefill ? "prefill" : "decode",
        row->rows,
        row->rows == 1 ? "" : "s",
        row->context,
        row->rows / row->seconds,
        1e6 * row->seconds_min,
        1e6 * row->seconds_max,
        "",
        "calls",
        "us",
        "floor us",
        "ratio",
        "the whole step",
        "",
        1e6 * row->seconds
    ));
    TRY(put_ratio(out, row, error));
    TRY(buffer_append_text(out, "\n", error));
    struct model_bench_row all = {.floor_seconds = row->floor_seconds};
    for (size_t i = 1; i <= count && row[i].kind == MODEL_BENCH_KERNEL; i++) {
        all.calls += row[i].calls;
        all.seconds += row[i].seconds;
    }
    if (all.calls == 0) {
        return OK;
    }
    TRY(buffer_append_format(
        out,
        error,
        "  %-34s %5s %10.1f\n  %-34s %5d %10.1f ",
        "  on the device",
        "",
        1e6 * row->device_seconds,
        "  all kernels",
        all.calls,
        1e6 * all.seconds
    ));
    TRY(put_ratio(out, &all, error));
    return buffer_append_text(out, "\n", error);
}

/* Decode kernels of the widest batch that are far from their floor. */
static result
put_verdict(struct buffer *out, const struct model_bench_report *report, struct error *error) {
    int32_t widest = 0;
    for (size_t i = 0; i < report->row_count; i++) {
        const struct model_bench_row *row = &report->rows[i];
        widest = !row->is_prefill && row->batch > widest ? row->batch : widest;
    }
    if (report->read_rate <= 0 || widest == 0) {
        return buffer_append_text(out, "\n", error);
    }
    TRY(buffer_append_format(
        out, error, "\nslower than %d times the floor at batch %d:", FAR_FROM_FLOOR, widest
    ));
    int32_t slow = 0;
    for (size_t i = 0; i < report->row_count; i++) {
        const struct model_bench_row *row = &report->rows[i];
        if (!row->is_prefill && row->batch == widest &&
            row->seconds > FAR_FROM_FLOOR * row->floor_seconds) {
            TRY(buffer_append_format(
                out,
                error,
                "\n  %s at %d: %.1f",
                row->label,
                row->context,
                row->seconds / row->floor_seconds
            ));
            slow++;
        }
    }
    return buffer_append_text(out, slow == 0 ? " none\n" : "\n", error);
}

static result
put_rows(struct buffer *out, const struct model_bench_report *report, struct error *error) {
    for (size_t i = 0; i < report->row_count; i++) {
        const struct model_bench_row *row = &report->rows[i];
        if (row->kind == MODEL_BENCH_STEP) {
            TRY(put_step(out, row, report->row_count - i - 1, error));
            continue;
        }
        TRY(buffer_append_format(
            out, error, "  %-34s %5d %10.1f ", row->label, row->calls, 1e6 * row->seconds
        ));
        TRY(put_ratio(out, row, error));
        TRY(buffer_append_text(out, "\n", error));
    }
    for (int32_t i = 0; i < report->skipped_count; i++) {
        TRY(buffer_append_format(out, error, "\nleft out: %s", report->skipped[i]));
    }
    return put_verdict(out, report, error);
}

/* ---- JSON ---- */

static void write_number(struct json_writer *writer, const char *name, double value) {
    json_write_key(writer, name);
    json_write_double(writer, value);
}

static void write_row(struct json_writer *writer, const struct model_bench_row *row) {
    json_write_object_begin(writer);
    json_write_key(writer, "kind");
    json_write_text(writer, row->kind == MODEL_BENCH_STEP ? "step" : "kernel");
    json_write_key(writer, "phase");
    json_write_text(writer, row->is_prefill ? "prefill" : "decode");
    json_write_key(writer, "batch");
    json_write_i64(writer, row->batch);
    json_write_key(writer, "rows");
    json_write_i64(writer, row->rows);
    json_write_key(writer, "context");
    json_write_i64(writer, row->context);
    json_write_key(writer, "label");
    json_write_text(writer, row->label);
    json_write_key(writer, "calls");
    json_write_i64(writer, row->calls);
    write_number(writer, "seconds", row->seconds);
    write_number(writer, "seconds_min", row->seconds_min);
    write_number(writer, "seconds_max", row->seconds_max);
    write_number(writer, "device_seconds", row->device_seconds);
    write_number(writer, "floor_seconds", row->floor_seconds);
    write_number(writer, "bytes", row->bytes);
    write_number(writer, "operations", row->operations);
    json_write_object_end(writer);
}

static result
put_json(struct buffer *out, const struct model_bench_report *report, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "version");
    json_write_text(&writer, HEARTH_VERSION);
    json_write_key(&writer, "backend");
    json_write_text(&writer, report->backend);
    json_write_key(&writer, "layers");
    json_write_i64(&writer, report->layers);
    json_write_key(&writer, "experts");
    json_write_i64(&writer, report->experts);
    json_write_key(&writer, "kv_bytes_per_token");
    json_write_u64(&writer, report->kv_bytes_per_token);
    write_number(&writer, "read_bytes_per_second", report->read_rate);
    write_number(&writer, "copy_bytes_per_second", report->copy_rate);
    write_number(&writer, "bf16_operations_per_second", report->bf16_rate);
    write_number(&writer, "fp8_operations_per_second", report->fp8_rate);
    write_number(&writer, "launch_seconds", report->launch_seconds);
    write_number(&writer, "stamp_seconds", report->stamp_seconds);
    json_write_key(&writer, "left_out");
    json_write_array_begin(&writer);
    for (int32_t i = 0; i < report->skipped_count; i++) {
        json_write_text(&writer, report->skipped[i]);
    }
    json_write_array_end(&writer);
    json_write_key(&writer, "rows");
    json_write_array_begin(&writer);
    for (size_t i = 0; i < report->row_count; i++) {
        write_row(&writer, &report->rows[i]);
    }
    json_write_array_end(&writer);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(out, "\n", error);
}

static int write_json(const char *path, const struct model_bench_report *report) {
    CLEANUP(buffer_deinit) struct buffer text;
    struct error error = {0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    result made = put_json(&text, report, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    if (strcmp(path, "-") == 0) {
        return cli_print(buffer_view(&text)) ? STATUS_DONE : STATUS_DATA;
    }
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return cli_fail(STATUS_DATA, "creating %s: %s", path, strerror(errno));
    }
    bool is_written = fwrite(text.data, 1, text.length, file) == text.length;
    is_written = fclose(file) == 0 && is_written;
    return is_written ? STATUS_DONE
                      : cli_fail(STATUS_DATA, "writing %s: %s", path, strerror(errno));
}

static void show_line(void *context, const char *line) {
    (void)context;
    (void)fprintf(stderr, "# %s\n", line);
}

static int model_bench_command(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer directory = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    struct model_bench_options options = {.progress = show_line};
    struct model_bench_report report;
    if (!parse_options(arguments, &options)) {
        return STATUS_USAGE;
    }
    int status = choose_backend(arguments, &options.backend);
    if (status != STATUS_DONE) {
        return status;
    }
    result made = model_directory(cli_value(arguments, "model"), &directory, &error);
    if (is_ok(made)) {
        options.model_directory = buffer_text(&directory);
        made = model_bench_run(&options, &report, &error);
    }
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    const char *json = cli_value(arguments, "json");
    bool only_json = json != NULL && strcmp(json, "-") == 0;
    if (!only_json) {
        made = put_facts(&text, &report, &error);
        made = is_ok(made) ? put_rows(&text, &report, &error) : made;
        status = is_failed(made)                 ? cli_fail_error(made, &error)
                 : cli_print(buffer_view(&text)) ? STATUS_DONE
                                                 : STATUS_DATA;
    }
    if (status == STATUS_DONE && json != NULL) {
        status = write_json(json, &report);
    }
    model_bench_deinit(&report);
    return status;
}

const struct cli_command command_model_bench = {
    .path = "model bench",
    .operands = "",
    .summary = "what decode, prefill and their kernels cost, beside their floors",
    .text =
        "Contexts are made up; a model of hearth model synth will do. Each step is timed whole\n"
        "(median), then op by op. A floor is the largest of bytes over the rate of reads,\n"
        "operations over the rate of bf16 products and one launch, all measured in the same run.\n",
    .options = bench_options,
    .option_count = COUNT_OF(bench_options),
    .words_max = 0,
    .run = model_bench_command,
};
