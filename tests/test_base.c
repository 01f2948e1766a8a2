/* Results, bytes, UTF-8, JSON and the log line. */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static result fail_inside(struct error *error) {
    FAIL(error, CORRUPT, "tensor '%s': offset %d beyond %d", "embed", 12, 10);
}

static result fail_outside(struct error *error) {
    TRY_NOTE(error, fail_inside(error), "while loading shard %u", 3U);
    return OK;
}

static void error_notes_read_outside_in(void **state) {
    (void)state;
    struct error error;
    result failed = fail_outside(&error);
    assert_int_equal(failed.code, RESULT_CORRUPT);
    assert_string_equal(
        error.message, "while loading shard 3: tensor 'embed': offset 12 beyond 10"
    );
    assert_string_equal(result_name(failed.code), "corrupt");
    assert_int_equal(fail_outside(NULL).code, RESULT_CORRUPT);
}

static result fail_long(struct error *error) {
    char text[1024];
    for (size_t i = 0; i + 2 < sizeof text; i += 2) {
        memcpy(text + i, "\xC3\xA9", 2);
    }
    text[1022] = '\0';
    FAIL(error, IO, "x%s", text);
}

static void error_message_cut_inside_a_character_stays_utf8(void **state) {
    (void)state;
    struct error error;
    assert_true(is_failed(fail_long(&error)));
    assert_true(utf8_is_valid(view_of_text(error.message)));
    assert_true(strlen(error.message) > ERROR_MESSAGE_BYTES - 4);
}

static void buffer_refuses_growth_past_its_ceiling(void **state) {
    (void)state;
    struct error error;
    CLEANUP(buffer_deinit) struct buffer buffer = {NULL, 0, 0, 0};
    buffer_init(&buffer, 10);
    assert_true(is_ok(buffer_append_text(&buffer, "0123456789", &error)));
    assert_int_equal(buffer_append_byte(&buffer, 'x', &error).code, RESULT_LIMIT);
    assert_string_equal(buffer_text(&buffer), "0123456789");
    buffer_consume(&buffer, 4);
    assert_string_equal(buffer_text(&buffer), "456789");
    assert_true(is_ok(buffer_append_format(&buffer, &error, "%d", 1234)));
    assert_string_equal(buffer_text(&buffer), "4567891234");
}

static void cursor_never_reads_past_the_end(void **state) {
    (void)state;
    static const unsigned char bytes[] = {1, 0, 0, 0, 0, 0, 0, 0, 0xFF, 'a', '\n'};
    struct cursor cursor = cursor_over(view_of(bytes, sizeof bytes));
    uint64_t wide = 0;
    uint32_t narrow = 0;
    uint8_t one = 0;
    assert_true(cursor_take_u64_le(&cursor, &wide));
    assert_int_equal(wide, 1);
    assert_false(cursor_take_u32_le(&cursor, &narrow));
    assert_true(cursor_take_u8(&cursor, &one));
    assert_int_equal(one, 0xFF);
    struct view line;
    assert_true(cursor_take_until(&cursor, '\n', &line));
    assert_true(view_equals_text(line, "a"));
    assert_false(cursor_take_until(&cursor, '\n', &line));
    assert_false(cursor_take_u8(&cursor, &one));
}

static void utf8_rejects_what_unicode_rejects(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\xC0\x80",
        "\xED\xA0\x80",
        "\xF4\x90\x80\x80",
        "\xE2\x82",
        "\x80",
        "\xFF",
        "\xF0\x80\x80\x80"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(utf8_is_valid(view_of_text(bad[i])));
    }
    assert_true(utf8_is_valid(view_of_text("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80")));
    CLEANUP(buffer_deinit) struct buffer out = {NULL, 0, 0, 0};
    buffer_init(&out, 1000);
    assert_true(is_ok(utf8_append_lossy(&out, view_of_text("a\xE2\x82z\xFF\x80"), NULL)));
    assert_string_equal(buffer_text(&out), "a\xEF\xBF\xBDz\xEF\xBF\xBD\xEF\xBF\xBD");
    for (uint32_t c = 1; c < 0x110000U; c += 997) {
        unsigned char encoded[4];
        uint32_t back = 0;
        if (c >= 0xD800U && c <= 0xDFFFU) {
            continue;
        }
        size_t length = utf8_encode(c, encoded);
        assert_int_equal(utf8_decode(view_of(encoded, length), &back), length);
        assert_int_equal(back, c);
    }
}

static void numbers_parse_whole_or_not_at_all(void **state) {
    (void)state;
    uint64_t u = 0;
    int64_t i = 0;
    double d = 0;
    assert_true(parse_u64(view_of_text("18446744073709551615"), &u));
    assert_int_equal(u, UINT64_MAX);
    assert_false(parse_u64(view_of_text("18446744073709551616"), &u));
    assert_false(parse_u64(view_of_text(""), &u));
    assert_false(parse_u64(view_of_text(" 1"), &u));
    assert_true(parse_i64(view_of_text("-9223372036854775808"), &i));
    assert_int_equal(i, INT64_MIN);
    assert_false(parse_i64(view_of_text("9223372036854775808"), &i));
    assert_true(parse_double(view_of_text("-2.5e3"), &d));
    assert_true(d == -2500.0);
    assert_false(parse_double(view_of_text("0x10"), &d));
    assert_false(parse_double(view_of_text("nan"), &d));
    assert_false(parse_double(view_of_text("1e999"), &d));
}

static enum result_code parse_code(const char *text) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    return json_parse(view_of_text(text), NULL, &document, NULL).code;
}

static void json_refuses_what_is_not_strict(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "01",
        "1.",
        "+1",
        "'a'",
        "nul",
        "[1 2]",
        "{\"a\" 1}",
        "\"\\x\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"a\nb\"",
        "1 2",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "\"\xFF\"",
        "[1}",
        "{1:2}",
        "\xEF\xBB\xBF{}",
        "NaN",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(parse_code(bad[i]), RESULT_INVALID_INPUT);
    }
    char deep[140] = {0};
    memset(deep, '[', JSON_DEPTH_MAX + 1);
    memset(deep + JSON_DEPTH_MAX + 1, ']', JSON_DEPTH_MAX + 1);
    assert_int_equal(parse_code(deep), RESULT_LIMIT);
    memset(deep, 0, sizeof deep);
    memset(deep, '[', JSON_DEPTH_MAX);
    memset(deep + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    assert_int_equal(parse_code(deep), RESULT_OK);
}

static void json_keeps_64_bit_integers_and_raw_text(void **state) {
    (void)state;
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct error error;
    const char *text =
        "{\"big\":9007199254740993, \"one\":1.0,\"A\":\"upper\",\"a\":[ 1, {\"k\": 2} ]}";
    assert_true(is_ok(json_parse(view_of_text(text), NULL, &document, &error)));
    struct json_value root = json_root(document);
    int64_t big = 0;
    assert_true(is_ok(json_get_i64(root, "big", &big, &error)));
    assert_int_equal(big, 9007199254740993);
    assert_int_equal(json_get_i64(root, "one", &big, &error).code, RESULT_INVALID_INPUT);
    assert_string_equal(error.message, "'one' is 1.0; it must be a 64-bit integer");
    struct view upper;
    assert_true(is_ok(json_get_string(root, "A", &upper, &error)));
    assert_true(view_equals_text(upper, "upper"));
    assert_true(view_equals_text(json_raw(json_get(root, "a")), "[ 1, {\"k\": 2} ]"));
    assert_int_equal(json_count(root), 4);
    assert_int_equal(json_get_string(root, "none", &upper, &error).code, RESULT_INVALID_INPUT);
    assert_string_equal(error.message, "'none' is missing; it must be a string");
}

static void json_writer_rewrites_values_with_python_separators(void **state) {
    (void)state;
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    CLEANUP(buffer_deinit) struct buffer out = {NULL, 0, 0, 0};
    struct error error;
    buffer_init(&out, 10000);
    const char *text = "{\"a\":[1,{},[],\"\\u00e9\\u0001\\/\"],\"b\":{\"c\":null}}";
    assert_true(is_ok(json_parse(view_of_text(text), NULL, &document, &error)));
    struct json_writer writer;
    json_writer_init(&writer, &out, &error);
    writer.python_separators = true;
    json_write_value(&writer, json_root(document));
    assert_true(is_ok(json_writer_finish(&writer)));
    assert_string_equal(
        buffer_text(&out), "{\"a\": [1, {}, [], \"\xC3\xA9\\u0001/\"], \"b\": {\"c\": null}}"
    );
}

static void json_writer_refuses_depth_it_cannot_keep_track_of(void **state) {
    (void)state;
    char text[2 * JSON_DEPTH_MAX + 1];
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    memset(text, '[', JSON_DEPTH_MAX);
    memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    assert_true(is_ok(json_parse(view_of(text, 2 * JSON_DEPTH_MAX), NULL, &document, NULL)));
    for (size_t around = 0; around < 100; around++) {
        CLEANUP(buffer_deinit) struct buffer out = {NULL, 0, 0, 1 << 16};
        struct json_writer writer;
        struct error error = {0};
        json_writer_init(&writer, &out, &error);
        for (size_t i = 0; i < around; i++) {
            json_write_array_begin(&writer);
        }
        json_write_value(&writer, json_root(document));
        for (size_t i = 0; i < around; i++) {
            json_write_array_end(&writer);
        }
        result written = json_writer_finish(&writer);
        bool fits = around + JSON_DEPTH_MAX < 64;
        assert_int_equal(written.code, fits ? RESULT_OK : RESULT_LIMIT);
    }
}

static void json_writer_survives_invalid_utf8_and_odd_numbers(void **state) {
    (void)state;
    CLEANUP(buffer_deinit) struct buffer out = {NULL, 0, 0, 0};
    struct error error;
    buffer_init(&out, 10000);
    struct json_writer writer;
    json_writer_init(&writer, &out, &error);
    json_write_array_begin(&writer);
    json_write_text(&writer, "a\xFF");
    json_write_double(&writer, 0.1);
    json_write_double(&writer, 1e300 * 1e300);
    json_write_i64(&writer, INT64_MIN);
    json_write_array_end(&writer);
    assert_true(is_ok(json_writer_finish(&writer)));
    assert_string_equal(buffer_text(&out), "[\"a\xEF\xBF\xBD\",0.1,null,-9223372036854775808]");
}

static char logged[512];

static void keep_line(void *context, enum log_level level, const char *line, size_t length) {
    (void)context;
    (void)level;
    size_t kept = length < sizeof logged - 1 ? length : sizeof logged - 1;
    memcpy(logged, line, kept);
    logged[kept] = '\0';
}

static void log_line_has_time_level_area_event_and_pairs(void **state) {
    (void)state;
    log_configure(LOG_INFO, keep_line, NULL);
    log_event(LOG_DEBUG, "engine", "hidden", "x=%d", 1);
    assert_string_equal(logged, "");
    log_event(LOG_INFO, "engine", "model_loaded", "bytes=%d", 12);
    assert_non_null(strstr(logged, "Z info engine model_loaded bytes=12"));
    log_configure(LOG_WARNING, NULL, NULL);
}

static void real_clock_moves_forward(void **state) {
    (void)state;
    struct clock clock = clock_real();
    int64_t first = clock_monotonic_ms(&clock);
    assert_true(clock_monotonic_ms(&clock) >= first);
    assert_true(clock_wall_ms(&clock) > 1600000000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_notes_read_outside_in),
        cmocka_unit_test(error_message_cut_inside_a_character_stays_utf8),
        cmocka_unit_test(buffer_refuses_growth_past_its_ceiling),
        cmocka_unit_test(cursor_never_reads_past_the_end),
        cmocka_unit_test(utf8_rejects_what_unicode_rejects),
        cmocka_unit_test(numbers_parse_whole_or_not_at_all),
        cmocka_unit_test(json_refuses_what_is_not_strict),
        cmocka_unit_test(json_keeps_64_bit_integers_and_raw_text),
        cmocka_unit_test(json_writer_rewrites_values_with_python_separators),
        cmocka_unit_test(json_writer_refuses_depth_it_cannot_keep_track_of),
        cmocka_unit_test(json_writer_survives_invalid_utf8_and_odd_numbers),
        cmocka_unit_test(log_line_has_time_level_area_event_and_pairs),
        cmocka_unit_test(real_clock_moves_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
