/* hearth model inspect, logits: what a checkpoint holds, and what it computes. */
#include "cli.h"
#include "host.h"
#include "model_input.h"

#include "engine/model_inspect.h"
#include <errno.h>
#include <inttypes.h>

#define LOGITS_TOP_MAX 100

/* ---- ids ------------------------------------------------------------------------------------ */

static bool is_separator(unsigned char byte) {
    return memchr(" \t\r\n,[]", byte, 8) != NULL;
}

result ids_parse(struct view text, struct token_list *out, struct error *error) {
    size_t at = 0;
    while (at < text.length) {
        if (is_separator(text.data[at])) {
            at++;
            continue;
        }
        size_t end = at;
        while (end < text.length && !is_separator(text.data[end])) {
            end++;
        }
        struct view word = view_slice(text, at, end - at);
        int64_t id = 0;
        if (!parse_i64(word, &id) || id < 0 || id > INT32_MAX) {
            word = view_slice(word, 0, 40);
            FAIL(
                error, INVALID_INPUT, "'%.*s' at byte %zu is no token id", VIEW_ARGUMENTS(word), at
            );
        }
        TRY(token_list_append(out, (int32_t)id, error));
        at = end;
    }
    return OK;
}

/* ---- logits --------------------------------------------------------------------------------- */

static const struct cli_option logits_options[] = {
    {"model", 0, "DIR", "model directory (default: the bundled one)"},
    {"text", 0, NULL, "the input is text, in which markers become control tokens"},
    {"chunk", 0, "N", "rows a step; 0 one shot (default), 1 step by step"},
    {"window", 0, "MODE", "exact (default) or replay"},
    {"last", 0, NULL, "the last position only: decoder layers run only the rows it needs"},
    {"top", 0, "N", "as text: the N largest logits of each position (default: 5)"},
    {"json", 0, NULL, "one JSON object a position with all logits"},
    {"binary", 0, NULL, "raw little-endian FP32, [positions, vocabulary]"},
    {"stats", 0, NULL, "rows, index rows and top-k runs of each layer, after the logits"},
    BACKEND_OPTION,
    {"threads", 0, "N", "threads of the CPU backend (default: one a core)"},
    {"isa", 0, "NAME", "plain, avx2 or avx512 (default: the machine's best)"},
};

enum logits_form { LOGITS_TEXT, LOGITS_JSON, LOGITS_BINARY };

struct logits_sink {
    enum logits_form form;
    int top;
    struct buffer line;
    result status;
    struct error error;
};

/* The `top` largest logits, ties to the lower id. */
static result
put_top(struct logits_sink *sink, int32_t position, const float *logits, int32_t vocabulary) {
    int32_t best[LOGITS_TOP_MAX];
    int count = 0;
    for (int32_t id = 0; id < vocabulary; id++) {
        int at = count;
        while (at > 0 && logits[id] > logits[best[at - 1]]) {
            at--;
        }
        if (at >= sink->top) {
            continue;
        }
        int last = count < sink->top ? count++ : count - 1;
        for (int i = last; i > at; i--) {
            best[i] = best[i - 1];
        }
        best[at] = id;
    }
    TRY(buffer_append_format(&sink->line, &sink->error, "%d", position));
    for (int i = 0; i < count; i++) {
        TRY(buffer_append_format(
            &sink->line, &sink->error, "\t%d:%.9g", best[i], (double)logits[best[i]]
        ));
    }
    return buffer_append_text(&sink->line, "\n", &sink->error);
}

static result
put_json(struct logits_sink *sink, int32_t position, const float *logits, int32_t vocabulary) {
    TRY(buffer_append_format(&sink->line, &sink->error, "{\"position\":%d,\"logits\":[", position));
    for (int32_t id = 0; id < vocabulary; id++) {
        /* Nine digits bring back every FP32; JSON has no NaN and no infinity. */
        bool is_finite = logits[id] - logits[id] == 0.0F;
        TRY(buffer_append_text(&sink->line, id > 0 ? "," : "", &sink->error));
        if (is_finite) {
            TRY(buffer_append_format(&sink->line, &sink->error, "%.9g", (double)logits[id]));
        } else {
            TRY(buffer_append_text(&sink->line, "null", &sink->error));
        }
    }
    return buffer_append_text(&sink->line, "]}\n", &sink->error);
}

static result write_line(struct logits_sink *sink) {
    size_t length = sink->line.length;
    if (length > 0 && fwrite(sink->line.data, 1, length, stdout) != length) {
        int error_number = errno;
        FAIL_FOREIGN(
            &sink->error,
            IO,
            error_number,
            "cannot write to standard output: %s",
            strerror(error_number)
        );
    }
    return OK;
}

static void logits_row(void *context, int32_t position, const float *logits, int32_t vocabulary) {
    struct logits_sink *sink = context;
    if (is_failed(sink->status)) {
        return;
    }
    buffer_clear(&sink->line);
    if (sink->form == LOGITS_BINARY) {
        size_t bytes = (size_t)vocabulary * sizeof *logits;
        sink->status = buffer_append(&sink->line, view_of(logits, bytes), &sink->error);
    } else if (sink->form == LOGITS_JSON) {
        sink->status = put_json(sink, position, logits, vocabulary);
    } else {
        sink->status = put_top(sink, position, logits, vocabulary);
    }
    if (is_ok(sink->status)) {
        sink->status = write_line(sink);
    }
}

static void stats_json(const struct layer_counters *counters, int32_t layers) {
    (void)printf("{\"stats\":[");
    for (int32_t i = 0; i < layers; i++) {
        (void)printf(
            "%s{\"layer\":%d,\"rows_full\":%" PRIu64 ",\"rows_window_only\":%" PRIu64
            ",\"index_rows\":%" PRIu64 ",\"index_rows_max\":%" PRIu64 ",\"topk_runs\":%" PRIu64 "}",
            i > 0 ? "," : "",
            i,
            counters[i].rows_full,
            counters[i].rows_window_only,
            counters[i].index_rows,
            counters[i].index_rows_max,
            counters[i].topk_runs
        );
    }
    (void)printf("]}\n");
}

static void stats_table(FILE *file, const struct layer_counters *counters, int32_t layers) {
    (void)fprintf(
        file,
        "%5s %10s %12s %12s %10s %10s\n",
        "layer",
        "rows",
        "window only",
        "index rows",
        "most a row",
        "top-k runs"
    );
    for (int32_t i = 0; i < layers; i++) {
        (void)fprintf(
            file,
            "%5d %10" PRIu64 " %12" PRIu64 " %12" PRIu64 " %10" PRIu64 " %10" PRIu64 "\n",
            i,
            counters[i].rows_full,
            counters[i].rows_window_only,
            counters[i].index_rows,
            counters[i].index_rows_max,
            counters[i].topk_runs
        );
    }
}

static int logits_write(
    const struct cli_arguments *arguments,
    struct engine *engine,
    const struct logits_request *request,
    struct logits_sink *sink
) {
    struct error error = {0};
    int32_t layers = engine_layer_count(engine);
    CLEANUP(free_cleanup)
    struct layer_counters *counters = calloc((size_t)layers + 1, sizeof *counters);
    if (counters == NULL) {
        return cli_fail(STATUS_ENGINE, "no memory for the counters of %d layers", layers);
    }
    result made = engine_logits(engine, request, counters, logits_row, sink, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    if (is_failed(sink->status)) {
        return cli_fail_error(sink->status, &sink->error);
    }
    if (cli_has(arguments, "stats") && sink->form == LOGITS_JSON) {
        stats_json(counters, layers);
    } else if (cli_has(arguments, "stats")) {
        stats_table(sink->form == LOGITS_BINARY ? stderr : stdout, counters, layers);
    }
    return cli_print((struct view){0}) ? STATUS_DONE : STATUS_DATA;
}

static result logits_ids(
    const struct cli_arguments *arguments,
    const struct engine *engine,
    struct token_list *ids,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer input = {0};
    const char *word = arguments->word_count > 0 ? arguments->words[0] : NULL;
    TRY(cli_input(word, true, &input, error));
    if (cli_has(arguments, "text")) {
        TRY(tokenizer_encode(
            engine_tokenizer(engine), buffer_view(&input), TOKENIZER_MARKERS_ON, ids, error
        ));
    } else {
        TRY(ids_parse(buffer_view(&input), ids, error));
    }
    if (ids->count == 0) {
        FAIL(error, INVALID_INPUT, "there are no token ids in the input");
    }
    return OK;
}

struct logits_settings {
    const char *backend;
    int64_t chunk, top, threads;
    enum window_mode window;
    enum logits_form form;
};

static int
logits_settings_read(const struct cli_arguments *arguments, struct logits_settings *settings) {
    settings->top = 5;
    if (!cli_i64(arguments, "chunk", 0, INT32_MAX, &settings->chunk) ||
        !cli_i64(arguments, "top", 1, LOGITS_TOP_MAX, &settings->top) ||
        !cli_i64(arguments, "threads", 1, 256, &settings->threads)) {
        return STATUS_USAGE;
    }
    const char *window = cli_value(arguments, "window");
    if (window != NULL && strcmp(window, "replay") == 0) {
        settings->window = WINDOW_REPLAY;
    } else if (window != NULL && strcmp(window, "exact") != 0) {
        return cli_usage(arguments, "--window wants exact or replay, not '%.60s'", window);
    }
    const char *isa = cli_value(arguments, "isa");
    if (isa != NULL && strcmp(isa, "plain") != 0 && strcmp(isa, "avx2") != 0 &&
        strcmp(isa, "avx512") != 0) {
        return cli_usage(arguments, "--isa wants plain, avx2 or avx512, not '%.60s'", isa);
    }
    int status = backend_option(arguments, &settings->backend);
    if (status != STATUS_DONE) {
        return status;
    }
    if (isa != NULL && strcmp(settings->backend, "cuda") == 0) {
        return cli_usage(arguments, "--isa is of the CPU backend, not of --backend cuda");
    }
    settings->backend = isa != NULL ? "cpu" : settings->backend;
    if (cli_has(arguments, "json") && cli_has(arguments, "binary")) {
        return cli_usage(arguments, "--json and --binary exclude each other");
    }
    settings->form = cli_has(arguments, "json")     ? LOGITS_JSON
                     : cli_has(arguments, "binary") ? LOGITS_BINARY
                                                    : LOGITS_TEXT;
    return STATUS_DONE;
}

static int logits_with_engine(
    const struct cli_arguments *arguments,
    const struct logits_settings *settings,
    struct engine *engine
) {
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    struct error error = {0};
    result made = logits_ids(arguments, engine, &ids, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    const struct logits_request request = {
        .ids = ids.ids,
        .count = ids.count,
        .chunk = (int32_t)settings->chunk,
        .last_only = cli_has(arguments, "last"),
        .window = settings->window,
    };
    struct logits_sink sink = {.form = settings->form, .top = (int)settings->top};
    buffer_init(&sink.line, BUFFER_CEILING_DEFAULT);
    int status = logits_write(arguments, engine, &request, &sink);
    buffer_deinit(&sink.line);
    return status;
}

static int model_logits(const struct cli_arguments *arguments) {
    struct logits_settings settings = {0};
    int status = logits_settings_read(arguments, &settings);
    if (status != STATUS_DONE) {
        return status;
    }
    CLEANUP(buffer_deinit) struct buffer directory = {0};
    struct error error = {0};
    struct engine *engine = NULL;
    result opened = model_directory(cli_value(arguments, "model"), &directory, &error);
    if (is_ok(opened)) {
        const struct engine_options options = {
            .model_directory = buffer_text(&directory),
            .backend = settings.backend,
            .isa = cli_value(arguments, "isa"),
            .threads = (int32_t)settings.threads,
            .sequences_max = 1,
        };
        opened = engine_open(&options, &engine, &error);
    }
    if (is_failed(opened)) {
        return cli_fail_error(opened, &error);
    }
    struct engine_info info;
    engine_get_info(engine, &info);
    if (info.backend_note[0] != '\0') {
        (void)fprintf(stderr, "# on the CPU: %s\n", info.backend_note);
    }
    status = logits_with_engine(arguments, &settings, engine);
    engine_close(engine);
    return status;
}

const struct cli_command command_model_logits = {
    .path = "model logits",
    .operands = "[FILE]",
    .summary = "token ids to FP32 logits",
    .text = "FILE (default: standard input) holds ids separated by blanks, commas or brackets.\n",
    .options = logits_options,
    .option_count = COUNT_OF(logits_options),
    .words_max = 1,
    .run = model_logits,
};

/* ---- inspect -------------------------------------------------------------------------------- */

static const struct cli_option inspect_options[] = {
    {"model", 0, "DIR", "model directory (default: the bundled one)"},
    {"json", 0, NULL, "one JSON object"},
};

static int model_inspect_run(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer directory = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    const char *given =
        arguments->word_count > 0 ? arguments->words[0] : cli_value(arguments, "model");
    bool as_json = cli_has(arguments, "json");
    result made = model_directory(given, &directory, &error);
    if (is_ok(made)) {
        made = model_inspect(buffer_text(&directory), as_json, &text, &error);
    }
    if (is_ok(made) && as_json) {
        made = buffer_append_text(&text, "\n", &error);
    }
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    return cli_print(buffer_view(&text)) ? STATUS_DONE : STATUS_DATA;
}

const struct cli_command command_model_inspect = {
    .path = "model inspect",
    .operands = "[DIR]",
    .summary = "dimensions, layer plan and bytes of a checkpoint, from its headers",
    .options = inspect_options,
    .option_count = COUNT_OF(inspect_options),
    .words_max = 1,
    .run = model_inspect_run,
};
