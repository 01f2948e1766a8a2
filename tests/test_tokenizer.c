/* The tokenizer on vocabularies made for the case, and on tiny-a's. */
#include "engine/tokenizer.h"

#include "test_safetensors.h"
#include "test_tokenizer_json.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct tokenizer *make(const struct test_tokenizer_json *sections) {
    CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 24};
    struct tokenizer *tokenizer = NULL;
    struct error error = {0};
    test_tokenizer_json_write(&json, sections);
    if (is_failed(tokenizer_parse(&tokenizer, buffer_view(&json), &error))) {
        fail_msg("%s", error.message);
    }
    return tokenizer;
}

/* The tokens of `text`, spelled out with a bar after each. */
static void spell(
    struct buffer *out,
    const struct tokenizer *tokenizer,
    struct view text,
    enum tokenizer_markers markers
) {
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 24};
    buffer_clear(out);
    assert_true(is_ok(tokenizer_encode(tokenizer, text, markers, &ids, NULL)));
    for (size_t i = 0; i < ids.count; i++) {
        assert_true(is_ok(buffer_append(out, tokenizer_bytes(tokenizer, ids.ids[i]), NULL)));
        assert_true(is_ok(buffer_append_byte(out, '|', NULL)));
    }
}

static void expect(const struct tokenizer *tokenizer, const char *text, const char *tokens) {
    CLEANUP(buffer_deinit) struct buffer spelled = {NULL, 0, 0, 1 << 20};
    spell(&spelled, tokenizer, view_of_text(text), TOKENIZER_MARKERS_OFF);
    assert_string_equal(buffer_text(&spelled), tokens);
}

/* All pairs of the given single-character tokens as merges, so that tokens show where pieces end. */
static struct tokenizer *make_pairs(const char *const *characters, size_t count) {
    CLEANUP(buffer_deinit) struct buffer vocabulary = {NULL, 0, 0, 1 << 20};
    CLEANUP(buffer_deinit) struct buffer merges = {NULL, 0, 0, 1 << 20};
    unsigned id = 256;
    assert_true(is_ok(buffer_append_text(&merges, "[", NULL)));
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            const char *a = characters[i];
            const char *b = characters[j];
            const char *comma = id == 256 ? "" : ",";
            assert_true(is_ok(buffer_append_format(&vocabulary, NULL, ",\"%s%s\":%u", a, b, id++)));
            assert_true(is_ok(buffer_append_format(&merges, NULL, "%s[\"%s\",\"%s\"]", comma, a, b))
            );
        }
    }
    assert_true(is_ok(buffer_append_text(&merges, "]", NULL)));
    struct test_tokenizer_json sections = {
        .vocabulary = buffer_text(&vocabulary), .merges = buffer_text(&merges)};
    return make(&sections);
}

static void pieces_end_where_the_published_splits_say(void **state) {
    (void)state;
    static const char *const characters[] = {"a", "b", "c", "Ġ", "Ċ", "1", "2", ".", "'"};
    CLEANUP(tokenizer_cleanup)
    struct tokenizer *tokenizer = make_pairs(characters, COUNT_OF(characters));
    expect(tokenizer, "a  b", "a| | b|");
    expect(tokenizer, "a \n\n b", "a| \n|\n| b|");
    expect(tokenizer, "ab cab", "ab| c|ab|");
    expect(tokenizer, "1212", "12|1|2|"); // three digits at most
    expect(tokenizer, "a1b", "a|1|b|");
    expect(tokenizer, "a.b", "a|.b|"); // punctuation takes the letters after it
    expect(tokenizer, "a. b", "a|.| b|");
    expect(tokenizer, "a ..b", "a| .|.|b|");
    expect(tokenizer, "a.\nb", "a|.\n|b|");
    expect(tokenizer, "a  ", "a|  |");
    expect(tokenizer, "  1", "  |1|"); // the blanks' piece ends before the digit
    expect(tokenizer, "a'b", "a|'b|");
    expect(tokenizer, "", "");
}

static void merges_go_by_rank_then_from_the_left_at_every_length(void **state) {
    (void)state;
    // a -> aa -> 4 -> 8 -> 16; the scan serves short pieces, the heap long ones.
    struct test_tokenizer_json sections = {
        .vocabulary = ",\"aa\":256,\"aaaa\":257,\"aaaaaaaa\":258,\"aaaaaaaaaaaaaaaa\":259",
        .merges = "[\"a a\",\"aa aa\",\"aaaa aaaa\",\"aaaaaaaa aaaaaaaa\"]"};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make(&sections);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    for (size_t n = 1; n <= 300; n++) {
        CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 20};
        assert_true(is_ok(buffer_append_byte(&text, 'a', NULL)));
        assert_true(is_ok(
            tokenizer_encode(tokenizer, buffer_view(&text), TOKENIZER_MARKERS_OFF, &ids, NULL)
        ));
        size_t at = 0;
        size_t rest = n;
        for (size_t size = 16, id = 259; size > 0; size /= 2, id = id == 256 ? 'a' : id - 1) {
            for (; rest >= size; rest -= size) {
                assert_true(at < ids.count);
                assert_int_equal(ids.ids[at++], id);
            }
        }
        assert_int_equal(at, ids.count);
    }
}

static void a_megabyte_without_a_break_is_encoded(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    assert_true(test_data_find(path, "golden/tiny-a/tokenizer.json"));
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
    assert_true(is_ok(tokenizer_load(&tokenizer, path, NULL)));
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 21};
    CLEANUP(buffer_deinit) struct buffer decoded = {NULL, 0, 0, 1 << 21};
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 21};
    uint32_t seed = 7;
    for (size_t i = 0; i < 1 << 20; i++) {
        seed = seed * 1664525U + 1013904223U;
        unsigned char letter = (unsigned char)('a' + (seed >> 24) % 26);
        assert_true(is_ok(buffer_append_byte(&text, letter, NULL)));
    }
    assert_true(
        is_ok(tokenizer_encode(tokenizer, buffer_view(&text), TOKENIZER_MARKERS_OFF, &ids, NULL))
    );
    assert_true(is_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, &decoded, NULL)));
    assert_true(view_equals(buffer_view(&decoded), buffer_view(&text)));
}

static void markers_count_only_when_asked_for(void **state) {
    (void)state;
    struct test_tokenizer_json sections = {.added_tokens = test_chat_tokens};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make(&sections);
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 20};
    struct view text = view_of_text("a<think></think>");
    assert_true(is_ok(tokenizer_encode(tokenizer, text, TOKENIZER_MARKERS_ON, &ids, NULL)));
    assert_int_equal(ids.count, 3);
    assert_int_equal(ids.ids[0], 'a');
    assert_int_equal(ids.ids[1], 305);
    assert_int_equal(ids.ids[2], 306);
    token_list_clear(&ids);
    assert_true(is_ok(tokenizer_encode(tokenizer, text, TOKENIZER_MARKERS_OFF, &ids, NULL)));
    assert_int_equal(ids.count, text.length);
    int32_t id = 0;
    assert_true(tokenizer_find_added(tokenizer, view_of_text("<think>"), &id));
    assert_int_equal(id, 305);
    assert_false(tokenizer_find_added(tokenizer, view_of_text("<thin"), &id));
    assert_false(tokenizer_find_added(tokenizer, view_of_text(""), &id));
    assert_true(tokenizer_is_added(tokenizer, 305));
    assert_false(tokenizer_is_added(tokenizer, 'a'));
    assert_false(tokenizer_is_added(tokenizer, -5));
    assert_int_equal(tokenizer_vocabulary_size(tokenizer), 310);
}

#define TOKEN(id, text, normalized)                                                                \
    "{\"id\":" #id ",\"content\":\"" text                                                          \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":" #normalized       \
    ",\"special\":false}"

static void the_longest_marker_wins_and_unnormalized_ones_come_first(void **state) {
    (void)state;
    struct test_tokenizer_json sections = {
        .added_tokens = "[" TOKEN(300, "<a", false) "," TOKEN(301, "<a>", false) "," TOKEN(
            302, "x<", true
        ) "," TOKEN(303, "yy", true) "]"};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make(&sections);
    CLEANUP(buffer_deinit) struct buffer spelled = {NULL, 0, 0, 1 << 20};
    spell(&spelled, tokenizer, view_of_text("<a><a<"), TOKENIZER_MARKERS_ON);
    assert_string_equal(buffer_text(&spelled), "<a>|<a|<|");
    // "x<" would begin earlier, but "<a" is searched in the whole text first.
    spell(&spelled, tokenizer, view_of_text("x<a"), TOKENIZER_MARKERS_ON);
    assert_string_equal(buffer_text(&spelled), "x|<a|");
    spell(&spelled, tokenizer, view_of_text("yyx<yy<a>yyy"), TOKENIZER_MARKERS_ON);
    assert_string_equal(buffer_text(&spelled), "yy|x<|yy|<a>|yy|y|");
    size_t at = 0;
    size_t length = 0;
    int32_t id = 0;
    assert_true(tokenizer_find_marker(tokenizer, view_of_text("zyy<a>"), 0, &at, &length, &id));
    assert_int_equal(at, 1);
    assert_int_equal(id, 303);
}

static void text_that_is_no_utf8_is_encoded_with_replacements(void **state) {
    (void)state;
    struct test_tokenizer_json sections = {0};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make(&sections);
    CLEANUP(buffer_deinit) struct buffer spelled = {NULL, 0, 0, 1 << 20};
    spell(&spelled, tokenizer, view_of("a\xFFz", 3), TOKENIZER_MARKERS_OFF);
    assert_string_equal(buffer_text(&spelled), "a|\xEF|\xBF|\xBD|z|");
    spell(&spelled, tokenizer, view_of("a\0z", 3), TOKENIZER_MARKERS_OFF);
    assert_int_equal(spelled.length, 6);
}

static void full_list_is_reported_and_left_as_it_was(void **state) {
    (void)state;
    struct test_tokenizer_json sections = {0};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make(&sections);
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 3};
    struct error error = {0};
    assert_true(is_ok(token_list_append(&ids, 1, NULL)));
    result encoded =
        tokenizer_encode(tokenizer, view_of_text("a b c"), TOKENIZER_MARKERS_OFF, &ids, &error);
    assert_int_equal(encoded.code, RESULT_LIMIT);
    assert_int_equal(ids.count, 1);
}

static void ids_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    struct test_tokenizer_json sections = {0};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make(&sections);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    struct tokenizer_stream stream = {0};
    static const int32_t ids[] = {'a', 256};
    struct error error = {0};
    assert_int_equal(tokenizer_decode(tokenizer, ids, 2, &text, &error).code, RESULT_INVALID_INPUT);
    assert_int_equal(text.length, 0);
    assert_int_equal(
        tokenizer_stream_push(&stream, tokenizer, -1, &text, &error).code, RESULT_INVALID_INPUT
    );
    assert_int_equal(tokenizer_bytes(tokenizer, 256).length, 0);
}

/* Any bytes in any pieces: each output is whole characters, and all together what the lossy
 * conversion of the whole gives. */
static void streamed_bytes_come_out_as_whole_characters(void **state) {
    (void)state;
    static const unsigned char alphabet[] = {'a',  0x80, 0xBF, 0xC3, 0xA9, 0xE4, 0xBD,
                                             0xA0, 0xED, 0xA0, 0xF0, 0x9F, 0x98, 0x80,
                                             0xF4, 0x8F, 0xC0, 0xFF, 0xE0, 0x90, 0xF8};
    uint32_t seed = 1;
    for (size_t round = 0; round < 20000; round++) {
        unsigned char bytes[12];
        for (size_t i = 0; i < sizeof bytes; i++) {
            seed = seed * 1664525U + 1013904223U;
            bytes[i] = alphabet[(seed >> 16) % sizeof alphabet];
        }
        CLEANUP(buffer_deinit) struct buffer whole = {NULL, 0, 0, 1 << 10};
        CLEANUP(buffer_deinit) struct buffer streamed = {NULL, 0, 0, 1 << 10};
        struct tokenizer_stream stream = {0};
        assert_true(is_ok(utf8_append_lossy(&whole, view_of(bytes, sizeof bytes), NULL)));
        for (size_t at = 0; at < sizeof bytes;) {
            seed = seed * 1664525U + 1013904223U;
            size_t count = 1 + (seed >> 16) % 3;
            struct view piece = view_slice(view_of(bytes, sizeof bytes), at, count);
            assert_true(is_ok(tokenizer_stream_push_bytes(&stream, piece, &streamed, NULL)));
            assert_true(utf8_is_valid(buffer_view(&streamed)));
            at += piece.length;
        }
        assert_true(is_ok(tokenizer_stream_finish(&stream, &streamed, NULL)));
        assert_true(view_equals(buffer_view(&whole), buffer_view(&streamed)));
    }
}

static void unfinished_character_is_held_back_until_it_is_whole(void **state) {
    (void)state;
    struct test_tokenizer_json sections = {0};
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make(&sections);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 10};
    struct tokenizer_stream stream = {0};
    static const int32_t ids[] = {'x', 0xF0, 0x9F, 0x98};
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        assert_true(is_ok(tokenizer_stream_push(&stream, tokenizer, ids[i], &text, NULL)));
        assert_string_equal(buffer_text(&text), "x");
    }
    assert_true(is_ok(tokenizer_stream_push(&stream, tokenizer, 0x80, &text, NULL)));
    assert_string_equal(buffer_text(&text), "x\xF0\x9F\x98\x80");
    assert_false(stream.has_replaced);
    assert_true(is_ok(tokenizer_stream_push(&stream, tokenizer, 0xE4, &text, NULL)));
    assert_true(is_ok(tokenizer_stream_finish(&stream, &text, NULL)));
    assert_string_equal(buffer_text(&text), "x\xF0\x9F\x98\x80\xEF\xBF\xBD");
    assert_true(stream.has_replaced);
}

static void white_space_is_the_unicode_property(void **state) {
    (void)state;
    // U+180E is no white space, though PCRE2's own \s takes it; U+1FA77 came with Unicode 15.
    static const char *const characters[] = {"Ġ", "a", "á", "ł", "İ", "ð", "Ł", "©", "·"};
    CLEANUP(tokenizer_cleanup)
    struct tokenizer *tokenizer = make_pairs(characters, COUNT_OF(characters));
    // As white space it would join the space before it into one piece: " \xE1" would merge.
    expect(tokenizer, "a \xE1\xA0\x8E ", "a| |\xE1\xA0|\x8E| |");
    // As a symbol it takes the one space before it: " \xF0" merges.
    expect(tokenizer, "a \xF0\x9F\xA9\xB7", "a| \xF0|\x9F\xA9|\xB7|");
}

/* ---- refusals ---- */

struct refusal {
    struct test_tokenizer_json sections;
    enum result_code code;
    const char *part; /* of the message */
};

static void what_is_not_implemented_or_broken_is_refused_by_name(void **state) {
    (void)state;
    static const struct refusal refusals[] = {
        {{.model_type = "\"WordPiece\""}, RESULT_UNSUPPORTED, "model.type"},
        {{.model_type = "null"}, RESULT_UNSUPPORTED, "model.type"},
        {{.model_extra = ",\"byte_fallback\":true"}, RESULT_UNSUPPORTED, "byte_fallback"},
        {{.model_extra = ",\"ignore_merges\":true"}, RESULT_UNSUPPORTED, "ignore_merges"},
        {{.model_extra = ",\"end_of_word_suffix\":\"</w>\""}, RESULT_UNSUPPORTED, "end_of_word"},
        {{.normalizer = "{\"type\":\"NFC\"}"}, RESULT_UNSUPPORTED, "normalizer"},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}"},
         RESULT_UNSUPPORTED,
         "NFC"},
        {{.pre_tokenizer = "null"}, RESULT_UNSUPPORTED, "pre_tokenizer"},
        {{.pre_tokenizer = "{\"type\":\"Whitespace\"}"}, RESULT_UNSUPPORTED, "Whitespace"},
        {{.pre_tokenizer = "{\"type\":\"Sequence\",\"pretokenizers\":[]}"},
         RESULT_UNSUPPORTED,
         "pre_tokenizer"},
        {{.pre_tokenizer =
              "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":false}"},
         RESULT_UNSUPPORTED,
         "add_prefix_space"},
        {{.post_processor = "{\"type\":\"TemplateProcessing\"}"},
         RESULT_UNSUPPORTED,
         "post_processor"},
        {{.decoder = "null"}, RESULT_UNSUPPORTED, "decoder"},
        {{.decoder = "{\"type\":\"WordPiece\"}"}, RESULT_UNSUPPORTED, "WordPiece"},
        {{.added_tokens = "[{\"id\":300,\"content\":\"<x>\",\"single_word\":false,\"lstrip\":true,"
                          "\"rstrip\":false,\"normalized\":false,\"special\":true}]"},
         RESULT_UNSUPPORTED,
         "lstrip"},
        {{.added_tokens = "[{\"id\":300}]"}, RESULT_INVALID_INPUT, "content"},
        {{.added_tokens = "7"}, RESULT_UNSUPPORTED, "added_tokens"},
        {{.added_tokens = "[" TOKEN(97, "<x>", false) "]"}, RESULT_INVALID_INPUT, "<x>"},
        {{.added_tokens = "[" TOKEN(300, "a", false) "]"}, RESULT_INVALID_INPUT, "97"},
        {{.added_tokens = "[" TOKEN(300, "", false) "]"}, RESULT_INVALID_INPUT, "empty"},
        {{.added_tokens = "[" TOKEN(300, "<x>", false) "," TOKEN(300, "<x>", false) "]"},
         RESULT_INVALID_INPUT,
         "<x>"},
        {{.added_tokens = "[" TOKEN(-1, "<x>", false) "]"}, RESULT_INVALID_INPUT, "-1"},
        {{.vocabulary = ",\"ab\":97"}, RESULT_INVALID_INPUT, "another token"},
        {{.vocabulary = ",\"ab\":-3"}, RESULT_INVALID_INPUT, "-3"},
        {{.vocabulary = ",\"ab\":2000000000"}, RESULT_INVALID_INPUT, "2000000000"},
        {{.vocabulary = ",\"ab\":256.5"}, RESULT_INVALID_INPUT, "ab"},
        {{.vocabulary = ",\"ab\":\"x\""}, RESULT_INVALID_INPUT, "ab"},
        {{.vocabulary = ",\"ab\":256,\"ab\":257"}, RESULT_INVALID_INPUT, "twice"},
        {{.left_out_byte = 0x41}, RESULT_INVALID_INPUT, "0x41"},
        {{.merges = "[\"a b\"]"}, RESULT_INVALID_INPUT, "merge 0"},
        {{.merges = "[\"ab\"]"}, RESULT_INVALID_INPUT, "merge 0"},
        {{.merges = "[\"a b c\"]"}, RESULT_INVALID_INPUT, "merge 0"},
        {{.merges = "[[\"a\"]]"}, RESULT_INVALID_INPUT, "merge 0"},
        {{.merges = "[5]"}, RESULT_INVALID_INPUT, "merge 0"},
        {{.merges = "{}"}, RESULT_INVALID_INPUT, "merges"},
        {{.extra = ",\"model\":{}"}, RESULT_INVALID_INPUT, "twice"},
    };
    for (size_t i = 0; i < COUNT_OF(refusals); i++) {
        CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 24};
        CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
        struct error error = {0};
        test_tokenizer_json_write(&json, &refusals[i].sections);
        result parsed = tokenizer_parse(&tokenizer, buffer_view(&json), &error);
        if (parsed.code != refusals[i].code || strstr(error.message, refusals[i].part) == NULL ||
            tokenizer != NULL) {
            fail_msg("case %zu (%s): %d %s", i, refusals[i].part, parsed.code, error.message);
        }
    }
}

static void patterns_that_cannot_be_followed_are_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "[a", "(", "a*", "[[a]]", "[a&&b]", "\\\\h+", "\\\\X", "[\\\\P{L}]", "x{2,1}", "(?=a)"};
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        char section[512];
        int length = snprintf(
            section,
            sizeof section,
            "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"
            "\"%s\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false,\"use_regex\":false}]}",
            patterns[i]
        );
        assert_true(length > 0 && (size_t)length < sizeof section);
        CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 24};
        CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
        struct error error = {0};
        test_tokenizer_json_write(&json, &(struct test_tokenizer_json){.pre_tokenizer = section});
        result parsed = tokenizer_parse(&tokenizer, buffer_view(&json), &error);
        if (is_ok(parsed) || strstr(error.message, "pre_tokenizer") == NULL) {
            fail_msg("pattern %s: %s", patterns[i], error.message);
        }
    }
}

static void every_cut_of_a_file_is_refused(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 24};
    test_tokenizer_json_write(
        &json, &(struct test_tokenizer_json){.added_tokens = test_chat_tokens}
    );
    for (size_t length = 0; length < json.length; length += 7) {
        CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
        struct error error = {0};
        struct view cut = view_slice(buffer_view(&json), 0, length);
        assert_int_equal(tokenizer_parse(&tokenizer, cut, &error).code, RESULT_INVALID_INPUT);
    }
    struct error error = {0};
    struct tokenizer *tokenizer = NULL;
    assert_int_equal(
        tokenizer_load(&tokenizer, "/nonexistent/tokenizer.json", &error).code, RESULT_NOT_FOUND
    );
}

/* ---- threads ---- */

struct work {
    const struct tokenizer *tokenizer;
    struct view text;
    struct token_list ids;
};

static void *encode_many_times(void *context) {
    struct work *work = context;
    for (size_t i = 0; i < 50; i++) {
        token_list_clear(&work->ids);
        ASSERT(is_ok(
            tokenizer_encode(work->tokenizer, work->text, TOKENIZER_MARKERS_ON, &work->ids, NULL)
        ));
    }
    return NULL;
}

static void two_threads_encode_with_one_tokenizer(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    assert_true(test_data_find(path, "golden/tiny-a/tokenizer.json"));
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
    assert_true(is_ok(tokenizer_load(&tokenizer, path, NULL)));
    struct work work[2];
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++) {
        work[i].tokenizer = tokenizer;
        work[i].text = view_of_text("def f(x):\n    return x + 1  # 你好 <think> 😀 1234567");
        token_list_init(&work[i].ids, 1 << 16);
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many_times, &work[i]), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(work[0].ids.count, work[1].ids.count);
    assert_memory_equal(
        work[0].ids.ids, work[1].ids.ids, work[0].ids.count * sizeof *work[0].ids.ids
    );
    token_list_deinit(&work[0].ids);
    token_list_deinit(&work[1].ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_end_where_the_published_splits_say),
        cmocka_unit_test(merges_go_by_rank_then_from_the_left_at_every_length),
        cmocka_unit_test(a_megabyte_without_a_break_is_encoded),
        cmocka_unit_test(markers_count_only_when_asked_for),
        cmocka_unit_test(the_longest_marker_wins_and_unnormalized_ones_come_first),
        cmocka_unit_test(text_that_is_no_utf8_is_encoded_with_replacements),
        cmocka_unit_test(full_list_is_reported_and_left_as_it_was),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(streamed_bytes_come_out_as_whole_characters),
        cmocka_unit_test(unfinished_character_is_held_back_until_it_is_whole),
        cmocka_unit_test(white_space_is_the_unicode_property),
        cmocka_unit_test(what_is_not_implemented_or_broken_is_refused_by_name),
        cmocka_unit_test(patterns_that_cannot_be_followed_are_refused),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
        cmocka_unit_test(two_threads_encode_with_one_tokenizer),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
