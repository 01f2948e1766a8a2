/* Settings of a generation out of a record: foreign bytes, read as strictly as the command line. */
#include "runtime/generation_settings.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define MUTATIONS 20000

static const char whole[] =
    "{\"top_k\":40,\"draft_max\":5,\"max_thinking\":900,\"max_call\":0,\"max_repeats\":8,"
    "\"min_p\":0.01,\"repetition_penalty\":1.05,\"presence_penalty\":-0.5,"
    "\"frequency_penalty\":0.25,\"logit_bias\":\"5=-1,9=never,7=0.5\",\"stop\":[\"a\\nb\",\"é\"],"
    "\"speculate\":\"lookup\",\"constrain_tools\":true}";

static const struct cli_arguments nothing_given = {.command = &command_run};

/* What the command line of a resume without options leaves to the record. */
static void settings_begin(struct generation_settings *out) {
    *out = (struct generation_settings){0};
    assert_int_equal(generation_settings_read(&nothing_given, out), STATUS_DONE);
}

static void record_comes_back_as_it_was_written(void **state) {
    (void)state;
    static struct generation_settings settings;
    struct error error = {0};
    settings_begin(&settings);
    assert_true(
        is_ok(generation_settings_restore(&settings, &nothing_given, view_of_text(whole), &error))
    );
    generation_settings_resolve(&settings, 4096);
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 1 << 16);
    assert_true(is_ok(generation_settings_write(&settings, &text, &error)));
    assert_string_equal(buffer_text(&text), whole);
    struct sampling sampling = {.temperature = 1.0, .top_p = 1.0};
    generation_settings_sampling(&settings, &sampling);
    assert_int_equal(sampling.bias_count, 3);
    assert_true(isinf(sampling.bias[1].bias) && sampling.bias[1].bias < 0);
    assert_true(is_ok(sampling_check(&sampling, 10, &error)));
    struct guard_limits guard = generation_settings_guard(&settings);
    assert_int_equal(guard.loop_times, 8);
    assert_int_equal(guard.thinking_max, 900);
    assert_int_equal(guard.call_max, 0);
    assert_true(is_ok(guard_check(&guard, &error)));
    generation_settings_deinit(&settings);
}

static void nothing_recorded_gives_the_defaults(void **state) {
    (void)state;
    static struct generation_settings settings;
    struct error error = {0};
    settings_begin(&settings);
    assert_true(
        is_ok(generation_settings_restore(&settings, &nothing_given, view_of(NULL, 0), &error))
    );
    generation_settings_resolve(&settings, 4096);
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 1 << 16);
    assert_true(is_ok(generation_settings_write(&settings, &text, &error)));
    assert_string_equal(
        buffer_text(&text), "{\"max_thinking\":2048,\"max_call\":2048,\"max_repeats\":32}"
    );
    generation_settings_deinit(&settings);
}

static void wrong_records_are_damage_by_name(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"[]", "instead of an object"},
        {"{", "recorded settings"},
        {"{\"top_k\":-1}", "\"top_k\" is -1"},
        {"{\"top_k\":\"5\"}", "top_k"},
        {"{\"draft_max\":17}", "\"draft_max\" is 17"},
        {"{\"draft_max\":0}", "\"draft_max\" is 0"},
        {"{\"max_repeats\":1}", "\"max_repeats\" is 1"},
        {"{\"min_p\":1}", "\"min_p\" is 1"},
        {"{\"repetition_penalty\":1e300}", "repetition_penalty"},
        {"{\"logit_bias\":\"5=1,x\"}", "ID=BIAS"},
        {"{\"logit_bias\":7}", "logit_bias"},
        {"{\"stop\":[\"\"]}", "\"stop\""},
        {"{\"stop\":[5]}", "\"stop\" holds"},
        {"{\"speculate\":\"maybe\"}", "speculate"},
        {"{\"constrain_tools\":1}", "constrain_tools"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        static struct generation_settings settings;
        struct error error = {0};
        settings_begin(&settings);
        result restored = generation_settings_restore(
            &settings, &nothing_given, view_of_text(rows[i].text), &error
        );
        if (restored.code != RESULT_CORRUPT || strstr(error.message, rows[i].part) == NULL) {
            fail_msg("%s: code %d, %s", rows[i].text, (int)restored.code, error.message);
        }
        generation_settings_deinit(&settings);
    }
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* Whatever a record says is refused, or within the limits that the engine checks. */
static void mutated_records_are_refused_or_within_limits(void **state) {
    (void)state;
    uint64_t random = 4; /* the seed */
    int taken = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        static struct generation_settings settings;
        char text[sizeof whole];
        struct error error = {0};
        memcpy(text, whole, sizeof whole);
        for (uint64_t changes = 1 + next_random(&random) % 3; changes > 0; changes--) {
            static const char bytes[] = "0123456789-+.eE\"{}[],:=\\ntfu\x01\xFF";
            size_t at = next_random(&random) % (sizeof whole - 1);
            text[at] = bytes[next_random(&random) % (sizeof bytes - 1)];
        }
        settings_begin(&settings);
        struct view view = view_of(text, sizeof whole - 1 - next_random(&random) % 2);
        result restored = generation_settings_restore(&settings, &nothing_given, view, &error);
        CLEANUP(buffer_deinit) struct buffer shown;
        buffer_init(&shown, BUFFER_CEILING_DEFAULT);
        assert_true(is_ok(generation_settings_describe(view, &shown, &error)));
        if (is_ok(restored)) {
            taken++;
            generation_settings_resolve(&settings, 4096);
            struct sampling sampling = {.temperature = 1.0, .top_p = 1.0};
            generation_settings_sampling(&settings, &sampling);
            struct guard_limits guard = generation_settings_guard(&settings);
            assert_true(is_ok(sampling_check(&sampling, INT32_MAX, &error)));
            assert_true(is_ok(guard_check(&guard, &error)));
            assert_true(settings.draft_max >= 0 && settings.draft_max <= ENGINE_DRAFT_MAX);
        } else {
            assert_int_equal(restored.code, RESULT_CORRUPT);
        }
        generation_settings_deinit(&settings);
    }
    assert_true(taken > MUTATIONS / 50 && taken < MUTATIONS);
}

static void record_is_described_as_its_options(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", ""},
        {"{}", ""},
        {"{\"top_k\":40,\"speculate\":\"lookup\"}", "--top-k 40 --speculate lookup"},
        {"{\"max_call\":0,\"constrain_tools\":true}", "--max-call off --constrain-tools on"},
        {"{\"stop\":[\"a b\",\"c\"],\"logit_bias\":\"5=-1,9=never\"}",
         "--stop \"a b\" --stop c --logit-bias 5=-1,9=never"},
        {"{\"top_k\":", "{\"top_k\":"}, /* what cannot be read stays */
        {"[1]", "[1]"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(buffer_deinit) struct buffer text;
        buffer_init(&text, BUFFER_CEILING_DEFAULT);
        assert_true(is_ok(generation_settings_describe(view_of_text(cases[i][0]), &text, NULL)));
        assert_string_equal(buffer_text(&text), cases[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_comes_back_as_it_was_written),
        cmocka_unit_test(nothing_recorded_gives_the_defaults),
        cmocka_unit_test(wrong_records_are_damage_by_name),
        cmocka_unit_test(record_is_described_as_its_options),
        cmocka_unit_test(mutated_records_are_refused_or_within_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
