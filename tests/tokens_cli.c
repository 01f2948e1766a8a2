/* tokens_cli TOKENIZER.JSON on|off: reads JSON strings, one a line, and writes their ids, one JSON
 * array a line; added tokens count with "on". With --time all of standard input is one text and the
 * speed is written. tokens_cli TOKENIZER.JSON map COUNT writes the Engram token map, which must have
 * COUNT ids. For tests/compare_tokenizer. */
#include "base/clock.h"
#include "base/json.h"
#include "engine/engram.h"
#include "engine/tokenizer.h"

static int fail(const struct error *error) {
    (void)fprintf(stderr, "tokens_cli: %s\n", error->message);
    return 1;
}

static void write_ids(const struct token_list *ids) {
    (void)fputc('[', stdout);
    for (size_t i = 0; i < ids->count; i++) {
        (void)printf(i == 0 ? "%d" : ",%d", ids->ids[i]);
    }
    (void)fputs("]\n", stdout);
}

static result encode_lines(
    const struct tokenizer *tokenizer,
    enum tokenizer_markers markers,
    struct view input,
    struct error *error
) {
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, TOKEN_LIST_CEILING_DEFAULT};
    struct cursor cursor = cursor_over(input);
    struct view line;
    while (cursor_take_until(&cursor, '\n', &line)) {
        CLEANUP(json_cleanup) struct json_document *document = NULL;
        struct view text;
        TRY(json_parse(line, NULL, &document, error));
        if (!json_as_string(json_root(document), &text)) {
            FAIL(error, INVALID_INPUT, "a line is not a JSON string");
        }
        token_list_clear(&ids);
        TRY(tokenizer_encode(tokenizer, text, markers, &ids, error));
        write_ids(&ids);
    }
    return OK;
}

static result encode_timed(
    const struct tokenizer *tokenizer,
    enum tokenizer_markers markers,
    struct view input,
    struct error *error
) {
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, TOKEN_LIST_CEILING_DEFAULT};
    struct clock clock = clock_real();
    int64_t start = clock_monotonic_ms(&clock);
    TRY(tokenizer_encode(tokenizer, input, markers, &ids, error));
    int64_t ms = clock_monotonic_ms(&clock) - start;
    (void)printf(
        "%zu bytes, %zu tokens, %lld ms, %.1f MB/s\n",
        input.length,
        ids.count,
        (long long)ms,
        (double)input.length / 1000.0 / (double)(ms > 0 ? ms : 1)
    );
    return OK;
}

static result
write_map(const struct tokenizer *tokenizer, struct view count_text, struct error *error) {
    static const int32_t layers[] = {0};
    int64_t count = 0;
    size_t map_count = 0;
    if (!parse_i64(count_text, &count)) {
        FAIL(error, INVALID_INPUT, "the number of Engram ids is no number");
    }
    const struct engram_options options = {
        .layer_ids = layers,
        .layer_count = 1,
        .order_max = 2,
        .head_count = 1,
        .prime_start = 2,
        .compressed_count = count,
        .vocabulary_count = (int32_t)tokenizer_vocabulary_size(tokenizer)};
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    TRY(engram_create(&engram, tokenizer, &options, error));
    const int32_t *map = engram_token_map(engram, &map_count);
    (void)fputc('[', stdout);
    for (size_t i = 0; i < map_count; i++) {
        (void)printf(i == 0 ? "%d" : ",%d", map[i]);
    }
    (void)fputs("]\n", stdout);
    return OK;
}

static result read_all(FILE *file, struct buffer *out, struct error *error) {
    char block[65536];
    size_t count = 0;
    while ((count = fread(block, 1, sizeof block, file)) > 0) {
        TRY(buffer_append(out, view_of(block, count), error));
    }
    return OK;
}

int main(int argument_count, char **arguments) {
    struct error error = {0};
    if (argument_count < 3) {
        (void)fprintf(stderr, "usage: tokens_cli TOKENIZER.JSON on|off|map [--time|COUNT]\n");
        return 2;
    }
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
    struct clock clock = clock_real();
    int64_t start = clock_monotonic_ms(&clock);
    if (is_failed(tokenizer_load(&tokenizer, arguments[1], &error))) {
        return fail(&error);
    }
    int64_t load_ms = clock_monotonic_ms(&clock) - start;
    if (strcmp(arguments[2], "map") == 0) {
        struct view count = view_of_text(argument_count > 3 ? arguments[3] : "");
        return is_failed(write_map(tokenizer, count, &error)) ? fail(&error) : 0;
    }
    CLEANUP(buffer_deinit) struct buffer input = {NULL, 0, 0, 0};
    buffer_init(&input, BUFFER_CEILING_DEFAULT);
    if (is_failed(read_all(stdin, &input, &error))) {
        return fail(&error);
    }
    bool on = strcmp(arguments[2], "on") == 0;
    enum tokenizer_markers markers = on ? TOKENIZER_MARKERS_ON : TOKENIZER_MARKERS_OFF;
    if (argument_count > 3) {
        (void)printf("loaded in %lld ms\n", (long long)load_ms);
        if (is_failed(encode_timed(tokenizer, markers, buffer_view(&input), &error))) {
            return fail(&error);
        }
        return 0;
    }
    return is_failed(encode_lines(tokenizer, markers, buffer_view(&input), &error)) ? fail(&error)
                                                                                    : 0;
}
