/* hearth model synth: a checkpoint of random weights. */
#include "cli.h"
#include "engine/model_synth.h"
#include "host.h"

#include <unistd.h>

static const struct cli_option synth_options[] = {
    {"config", 0, "FILE", "an official config.json (needed)"},
    {"layers", 0, "N", "layers of the backbone (default: all)"},
    {"experts", 0, "N", "routed experts of each layer (default: all)"},
    {"positions", 0, "N", "max_position_embeddings (default: as it is)"},
    {"seed", 0, "N", "of the random values (default: 1)"},
    {"threads", 0, "N", "shards written at a time (default: 4)"},
    {"json", 0, NULL, "one JSON object at the end"},
};

static void show_progress(void *context, uint64_t done, uint64_t total) {
    int *shown = context;
    int percent = total == 0 ? 100 : (int)(100 * done / total);
    if (percent >= *shown + 5) {
        *shown = percent;
        (void)fprintf(stderr, "\r# %3d %% of %.1f GB", percent, 1e-9 * (double)total);
        (void)fflush(stderr);
    }
}

static result
put_report(struct buffer *out, const struct model_synth_report *report, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "layers");
    json_write_i64(&writer, report->layers);
    json_write_key(&writer, "experts");
    json_write_i64(&writer, report->experts);
    json_write_key(&writer, "tensors");
    json_write_u64(&writer, report->tensors);
    json_write_key(&writer, "shards");
    json_write_u64(&writer, report->shards);
    json_write_key(&writer, "bytes");
    json_write_u64(&writer, report->bytes);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(out, "\n", error);
}

static int model_synth_run(const struct cli_arguments *arguments) {
    int64_t layers = 0;
    int64_t experts = 0;
    int64_t positions = 0;
    int64_t threads = 4;
    uint64_t seed = 1;
    if (!cli_i64(arguments, "layers", 1, INT32_MAX, &layers) ||
        !cli_i64(arguments, "experts", 1, INT32_MAX, &experts) ||
        !cli_i64(arguments, "positions", 1, INT32_MAX, &positions) ||
        !cli_i64(arguments, "threads", 1, 64, &threads) || !cli_u64(arguments, "seed", &seed)) {
        return STATUS_USAGE;
    }
    if (!cli_has(arguments, "config")) {
        return cli_usage(arguments, "--config FILE is needed");
    }
    CLEANUP(buffer_deinit) struct buffer config = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    int shown = 0;
    struct model_synth_report report;
    result made = cli_input(cli_value(arguments, "config"), true, &config, &error);
    if (is_ok(made)) {
        struct model_synth_options options = {
            .config = buffer_view(&config),
            .directory = arguments->words[0],
            .layers = (int32_t)layers,
            .experts = (int32_t)experts,
            .positions = positions,
            .seed = seed,
            .threads = (int32_t)threads,
            .progress = isatty(STDERR_FILENO) ? show_progress : NULL,
            .progress_context = &shown,
        };
        made = model_synth(&options, &report, &error);
    }
    if (shown > 0) {
        (void)fprintf(stderr, "\n");
    }
    if (is_ok(made)) {
        made = cli_has(arguments, "json")
                   ? put_report(&text, &report, &error)
                   : buffer_append_format(
                         &text,
                         &error,
                         "%s: %d layers, %d experts, %zu tensors in %zu shards, %.3f GB; random "
                         "weights, no tokenizer\n",
                         arguments->words[0],
                         report.layers,
                         report.experts,
                         report.tensors,
                         report.shards,
                         1e-9 * (double)report.bytes
                     );
    }
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    return cli_print(buffer_view(&text)) ? STATUS_DONE : STATUS_DATA;
}

const struct cli_command command_model_synth = {
    .path = "model synth",
    .operands = "DIR",
    .summary = "a checkpoint of random weights of any size",
    .text =
        "Writes an official layout into DIR, which must not exist or be empty. With fewer layers\n"
        "than the configuration has, the last KV source and the first layer of each kind stay;\n"
        "Engram, draft stages and vision are left out. For measuring, not for text: there is no\n"
        "tokenizer.\n",
    .options = synth_options,
    .option_count = COUNT_OF(synth_options),
    .words_min = 1,
    .words_max = 1,
    .run = model_synth_run,
};
