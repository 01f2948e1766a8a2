/* Engram against the official code's stored values: token map, constants, row ids. */
#include "engine/engram.h"

#include "engine/tokenizer.h"
#include "test_safetensors.h"
#include "test_tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define RELEASED_COMPRESSED 99092

static const int32_t released_layers[] = {1, 14};
static const int64_t released_rows[] = {384006168, 384016682};

static struct engram_options released_options(void) {
    return (struct engram_options
    ){.layer_ids = released_layers,
      .layer_count = 2,
      .row_counts = released_rows,
      .order_max = 4,
      .head_count = 8,
      .prime_start = 16000000,
      .pad_token_id = 2,
      .compressed_count = RELEASED_COMPRESSED,
      .vocabulary_count = RELEASED_COMPRESSED};
}

static void released_constants_equal_the_published_table(void **state) {
    (void)state;
    static const int64_t multipliers[2][4] = {
        {76632096046245, 4839876093313, 35959672319349, 73987337458391},
        {67716810739261, 51510806800915, 30921347202721, 82619226485591}};
    struct engram_options options = released_options();
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    struct error error = {0};
    assert_true(is_ok(engram_create(&engram, NULL, &options, &error)));
    for (size_t slot = 0; slot < 2; slot++) {
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(engram_multipliers(engram, slot)[i], multipliers[slot][i]);
        }
        assert_int_equal(engram_row_count(engram, slot), released_rows[slot]);
    }
    assert_int_equal(engram_column_count(engram), 24);
    assert_int_equal(engram_primes(engram, 0)[0], 16000057);
    assert_int_equal(engram_primes(engram, 0)[23], 16000463);
    assert_int_equal(engram_primes(engram, 1)[0], 16000477);
    assert_int_equal(engram_primes(engram, 1)[23], 16000889);
    assert_int_equal(engram_offsets(engram, 1)[1], 16000477);
}

static void released_hash_of_four_ids_equals_the_published_rows(void **state) {
    (void)state;
    // Specification 3.10; (current, previous, ...) = (5,2,2,2) and (40,30,20,10).
    static const int32_t starts[2][4] = {
        {5412672, 18319159, 35492627, 60880252}, {6939818, 27264717, 45254833, 51915000}};
    static const int32_t middles[2][4] = {
        {1326936, 22120929, 40011923, 55142539}, {5403109, 26519290, 42262171, 52759697}};
    static const int32_t last[2] = {378628807, 378588994};
    static const int32_t history[] = {10, 20, 30, 40};
    static const int32_t alone[] = {5};
    struct engram_options options = released_options();
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    assert_true(is_ok(engram_create(&engram, NULL, &options, NULL)));
    for (size_t slot = 0; slot < 2; slot++) {
        int32_t rows[24];
        engram_rows(engram, slot, alone, 0, 1, rows); // the start of a sequence is pad, id 2
        assert_memory_equal(rows, starts[slot], sizeof starts[slot]);
        engram_rows(engram, slot, history, 3, 1, rows);
        assert_memory_equal(rows, middles[slot], sizeof middles[slot]);
        assert_int_equal(rows[23], last[slot]);
    }
}

/* Compares all sequences NAME.SUFFIX of a file; ids are compressed first when `raw` is set. */
static size_t compare_sequences(
    const struct engram *engram, const struct test_tensors *tensors, const char *suffix, bool raw
) {
    static const char *const names[] = {
        "seq1", "seq2", "seq3", "seq4", "seq5", "seq37", "seq64", "seq300", "edge", "masked"};
    size_t compared = 0;
    for (size_t n = 0; n < COUNT_OF(names); n++) {
        char name[64];
        struct test_tensor ids;
        struct test_tensor rows;
        struct test_tensor mask;
        (void)snprintf(name, sizeof name, "%s.%s", names[n], suffix);
        if (!test_tensors_get(tensors, name, &ids)) {
            continue;
        }
        (void)snprintf(name, sizeof name, "%s.hash_ids", names[n]);
        assert_true(test_tensors_get(tensors, name, &rows));
        (void)snprintf(name, sizeof name, "%s.token_mask", names[n]);
        bool has_mask = test_tensors_get(tensors, name, &mask);
        int32_t *history = malloc(ids.count * sizeof *history);
        assert_non_null(history);
        for (size_t i = 0; i < ids.count; i++) {
            int32_t id = ((const int32_t *)ids.data)[i];
            bool is_dead = has_mask && ((const uint8_t *)mask.data)[i] == 0;
            history[i] = is_dead ? ENGRAM_DEAD : raw ? engram_compress(engram, id) : id;
        }
        size_t columns = engram_column_count(engram);
        int32_t *ours = malloc(ids.count * columns * sizeof *ours);
        assert_non_null(ours);
        for (size_t slot = 0; slot < engram_layer_count(engram); slot++) {
            engram_rows(engram, slot, history, 0, ids.count, ours);
            for (size_t i = 0; i < ids.count; i++) {
                const int32_t *stored =
                    (const int32_t *)rows.data + (i * engram_layer_count(engram) + slot) * columns;
                assert_memory_equal(ours + i * columns, stored, columns * sizeof *ours);
            }
            // The last token alone, with just enough history, gives the same rows.
            size_t lead = ids.count - 1 < 3 ? ids.count - 1 : 3;
            int32_t single[ENGRAM_HEADS_MAX];
            engram_rows(engram, slot, history + ids.count - 1 - lead, lead, 1, single);
            assert_memory_equal(single, ours + (ids.count - 1) * columns, columns * sizeof *single);
        }
        free(ours);
        free(history);
        compared += 1;
    }
    return compared;
}

static void released_sequences_equal_the_official_rows(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    if (!test_data_find(path, "golden/vectors/common/engram_official.safetensors")) {
        skip();
    }
    CLEANUP(test_tensors_close) struct test_tensors tensors = {0};
    assert_true(is_ok(test_tensors_open(&tensors, path, NULL)));
    struct engram_options options = released_options();
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    assert_true(is_ok(engram_create(&engram, NULL, &options, NULL)));
    assert_int_equal(compare_sequences(engram, &tensors, "compressed_ids", false), 9);
}

/* A tiny model: its own tokenizer, the map and constants stored beside it, its sequences. */
struct tiny {
    const char *folder;
    const char *vectors;
    int32_t layers[2];
    int64_t rows[2];
    int64_t prime_start;
    int64_t compressed;
    int32_t heads;
    int32_t vocabulary;
};

static const struct tiny tiny_a = {
    "golden/tiny-a", "golden/vectors/tiny-a", {1, 3}, {3144, 3424}, 503, 1031, 2, 1280};
static const struct tiny tiny_b = {
    "golden/tiny-b", "golden/vectors/tiny-b", {1, 5}, {3845, 4307}, 401, 1229, 3, 1536};

static struct engram_options tiny_options(const struct tiny *tiny) {
    return (struct engram_options
    ){.layer_ids = tiny->layers,
      .layer_count = 2,
      .row_counts = tiny->rows,
      .order_max = 4,
      .head_count = tiny->heads,
      .prime_start = tiny->prime_start,
      .pad_token_id = 2,
      .compressed_count = tiny->compressed,
      .vocabulary_count = tiny->vocabulary};
}

static struct tokenizer *load_tokenizer(const char *folder) {
    char relative[TEST_PATH_MAX];
    char path[TEST_PATH_MAX];
    struct tokenizer *tokenizer = NULL;
    struct error error = {0};
    (void)snprintf(relative, sizeof relative, "%s/tokenizer.json", folder);
    if (!test_data_find(path, relative)) {
        return NULL;
    }
    if (is_failed(tokenizer_load(&tokenizer, path, &error))) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

static void compare_tensor(
    const struct test_tensors *tensors,
    const char *name,
    size_t slot,
    const int64_t *ours,
    size_t count
) {
    struct test_tensor stored;
    assert_true(test_tensors_get(tensors, name, &stored));
    assert_int_equal(stored.count, 2 * count);
    assert_memory_equal((const int64_t *)stored.data + slot * count, ours, count * sizeof *ours);
}

static void check_tiny(const struct tiny *tiny) {
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = load_tokenizer(tiny->folder);
    if (tokenizer == NULL) {
        skip();
    }
    struct engram_options options = tiny_options(tiny);
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    struct error error = {0};
    if (is_failed(engram_create(&engram, tokenizer, &options, &error))) {
        fail_msg("%s", error.message);
    }
    char relative[TEST_PATH_MAX];
    char path[TEST_PATH_MAX];
    (void)snprintf(relative, sizeof relative, "%s/engram_meta.safetensors", tiny->folder);
    assert_true(test_data_find(path, relative));
    CLEANUP(test_tensors_close) struct test_tensors meta = {0};
    assert_true(is_ok(test_tensors_open(&meta, path, NULL)));
    struct test_tensor map;
    assert_true(test_tensors_get(&meta, "token_map", &map));
    size_t count = 0;
    const int32_t *ours = engram_token_map(engram, &count);
    assert_int_equal(count, map.count);
    assert_memory_equal(ours, map.data, map.bytes);
    for (size_t slot = 0; slot < 2; slot++) {
        size_t columns = engram_column_count(engram);
        compare_tensor(&meta, "multipliers", slot, engram_multipliers(engram, slot), 4);
        compare_tensor(&meta, "primes", slot, engram_primes(engram, slot), columns);
        compare_tensor(&meta, "offsets", slot, engram_offsets(engram, slot), columns);
    }
    (void)snprintf(relative, sizeof relative, "%s/engram_hash.safetensors", tiny->vectors);
    if (!test_data_find(path, relative)) {
        skip();
    }
    CLEANUP(test_tensors_close) struct test_tensors tensors = {0};
    assert_true(is_ok(test_tensors_open(&tensors, path, NULL)));
    assert_int_equal(compare_sequences(engram, &tensors, "input_ids", true), 6);
}

static void tiny_a_equals_the_official_values(void **state) {
    (void)state;
    check_tiny(&tiny_a);
}

static void tiny_b_equals_the_official_values(void **state) {
    (void)state;
    check_tiny(&tiny_b);
}

static void mini_map_and_constants_equal_its_golden_file(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = load_tokenizer("mini/model");
    if (tokenizer == NULL || !test_data_find(path, "mini/golden/engram-and-rope.json")) {
        skip();
    }
    static const int32_t layers[] = {1, 4};
    static const int64_t rows[] = {25108, 26234};
    struct engram_options options = {
        .layer_ids = layers,
        .layer_count = 2,
        .row_counts = rows,
        .order_max = 4,
        .head_count = 4,
        .prime_start = 2048,
        .pad_token_id = 2,
        .compressed_count = 3008,
        .vocabulary_count = 4096};
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    assert_true(is_ok(engram_create(&engram, tokenizer, &options, NULL)));
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    buffer_init(&file, 1 << 20);
    assert_true(is_ok(file_read(path, &file, NULL)));
    CLEANUP(json_cleanup) struct json_document *golden = NULL;
    assert_true(is_ok(json_parse(buffer_view(&file), NULL, &golden, NULL)));
    size_t count = 0;
    const int32_t *map = engram_token_map(engram, &count);
    size_t i = 0;
    struct json_value v = json_first(json_get(json_root(golden), "token_map"));
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        int64_t id = -1;
        assert_true(json_as_i64(v, &id));
        assert_true(i < count);
        assert_int_equal(map[i], id);
        i += 1;
    }
    assert_int_equal(i, count);
    size_t slot = 0;
    struct json_value layer = json_first(json_get(json_root(golden), "multipliers"));
    for (; json_type(layer) != JSON_ABSENT; layer = json_next(layer)) {
        size_t s = 0;
        for (v = json_first(layer); json_type(v) != JSON_ABSENT; v = json_next(v)) {
            struct view text;
            int64_t value = 0;
            assert_true(json_as_string(v, &text) && parse_i64(text, &value));
            assert_int_equal(engram_multipliers(engram, slot)[s++], value);
        }
        assert_int_equal(s, 4);
        slot += 1;
    }
    assert_int_equal(slot, 2);
}

/* ---- normalisation ---- */

/* Added tokens from id 300 on; their texts stand for themselves. */
static const char *const token_texts[] = {
    "The",     " the",    "the\\n",    "thḗ",
    "ＴＨＥ",  "ﬁ",       "fi",        "র",
    "ার",      "\\n\\t ", " \\u00a0",  "Ő",
    "ő",       "a b",     "a \\n b",   "\\u00a0a\\t\\tb\\u3000",
    "\\u000b", "\\u0301", "\\ufffd",   "\\ufffdx",
    "ẞ",       "\\ue000", "x\\ue000y", "x y"};

static struct tokenizer *tokenizer_of_texts(void) {
    CLEANUP(buffer_deinit) struct buffer added = {NULL, 0, 0, 1 << 20};
    CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 20};
    struct tokenizer *tokenizer = NULL;
    for (size_t i = 0; i < COUNT_OF(token_texts); i++) {
        assert_true(is_ok(buffer_append_format(
            &added,
            NULL,
            "%s{\"id\":%zu,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
            "\"rstrip\":false,\"normalized\":false,\"special\":false}",
            i == 0 ? "[" : ",",
            300 + i,
            token_texts[i]
        )));
    }
    assert_true(is_ok(buffer_append_text(&added, "]", NULL)));
    struct test_tokenizer_json sections = {.added_tokens = buffer_text(&added)};
    test_tokenizer_json_write(&json, &sections);
    struct error error = {0};
    if (is_failed(tokenizer_parse(&tokenizer, buffer_view(&json), &error))) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

/* Index of a text in the list; its token has the id 300 + index. */
static int32_t compressed_of(const struct engram *engram, const char *text) {
    for (size_t i = 0; i < COUNT_OF(token_texts); i++) {
        if (strcmp(token_texts[i], text) == 0) {
            return engram_compress(engram, (int32_t)(300 + i));
        }
    }
    fail_msg("no token %s", text);
    return -1;
}

static void tokens_that_read_alike_share_an_id(void **state) {
    (void)state;
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = tokenizer_of_texts();
    CLEANUP(engram_cleanup) struct engram *engram = NULL;
    struct engram_options options = tiny_options(&tiny_a);
    struct error error = {0};
    options.row_counts = NULL;
    options.vocabulary_count = (int32_t)tokenizer_vocabulary_size(tokenizer);
    options.compressed_count =
        99 + 128 + 1 + 8; // ASCII folded, broken bytes, unused ids, new texts
    if (is_failed(engram_create(&engram, tokenizer, &options, &error))) {
        fail_msg("%s", error.message);
    }
    static const char *const alike[][2] = {
        {"The", " the"},
        {"The", "the\\n"},
        {"The", "thḗ"},
        {"The", "ＴＨＥ"},
        {"ﬁ", "fi"},
        {"র", "ার"}, // the spacing mark goes as well
        {"\\n\\t ", " \\u00a0"},
        {"Ő", "ő"},
        {"a b", "a \\n b"},
        {"a b", "\\u00a0a\\t\\tb\\u3000"},
        {"\\n\\t ", "\\ue000"},
        {"x y", "x\\ue000y"},
    };
    for (size_t i = 0; i < COUNT_OF(alike); i++) {
        int32_t left = compressed_of(engram, alike[i][0]);
        int32_t right = compressed_of(engram, alike[i][1]);
        if (left != right) {
            fail_msg("%s and %s: %d and %d", alike[i][0], alike[i][1], left, right);
        }
    }
    // Text that normalises to nothing keeps itself; U+FFFD keeps its spelling.
    assert_true(compressed_of(engram, "\\u000b") != compressed_of(engram, "\\u0301"));
    assert_true(compressed_of(engram, "\\ufffd") != compressed_of(engram, "\\ufffdx"));
    assert_int_equal(engram_compress(engram, 'A'), engram_compress(engram, 'a'));
    assert_int_equal(engram_compress(engram, '\n'), engram_compress(engram, ' '));
    assert_true(engram_compress(engram, 0xE4) != engram_compress(engram, 0xE5));
}

static void wrong_compressed_size_is_refused_with_both_numbers(void **state) {
    (void)state;
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = load_tokenizer("golden/tiny-a");
    if (tokenizer == NULL) {
        skip();
    }
    struct engram_options options = tiny_options(&tiny_a);
    options.compressed_count = 1032;
    options.row_counts = NULL;
    struct engram *engram = NULL;
    struct error error = {0};
    assert_true(is_failed(engram_create(&engram, tokenizer, &options, &error)));
    assert_null(engram);
    assert_int_equal(error.code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "1031"));
    assert_non_null(strstr(error.message, "1032"));
}

static void wrong_row_count_and_absurd_parameters_are_refused(void **state) {
    (void)state;
    struct engram *engram = NULL;
    struct error error = {0};
    struct engram_options options = released_options();
    static const int64_t wrong_rows[] = {384006168, 384016683};
    options.row_counts = wrong_rows;
    assert_true(is_failed(engram_create(&engram, NULL, &options, &error)));
    assert_non_null(strstr(error.message, "384016683"));
    options = released_options();
    options.order_max = 9;
    assert_true(is_failed(engram_create(&engram, NULL, &options, &error)));
    options = released_options();
    options.head_count = 0;
    assert_true(is_failed(engram_create(&engram, NULL, &options, &error)));
    options = released_options();
    options.pad_token_id = RELEASED_COMPRESSED;
    assert_true(is_failed(engram_create(&engram, NULL, &options, &error)));
    options = released_options();
    options.row_counts = NULL;
    options.prime_start = INT32_MAX; // two tables would pass the 32-bit row ids
    assert_true(is_failed(engram_create(&engram, NULL, &options, &error)));
    options = released_options();
    options.layer_count = 0;
    assert_true(is_failed(engram_create(&engram, NULL, &options, &error)));
    assert_null(engram);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_constants_equal_the_published_table),
        cmocka_unit_test(released_hash_of_four_ids_equals_the_published_rows),
        cmocka_unit_test(released_sequences_equal_the_official_rows),
        cmocka_unit_test(tiny_a_equals_the_official_values),
        cmocka_unit_test(tiny_b_equals_the_official_values),
        cmocka_unit_test(mini_map_and_constants_equal_its_golden_file),
        cmocka_unit_test(tokens_that_read_alike_share_an_id),
        cmocka_unit_test(wrong_compressed_size_is_refused_with_both_numbers),
        cmocka_unit_test(wrong_row_count_and_absurd_parameters_are_refused),
    };
    return cmocka_run_group_tests_name("engram", tests, NULL, NULL);
}
