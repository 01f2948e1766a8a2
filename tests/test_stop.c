/* Stop strings over borders of tokens, stop ids, what is held back, copies of states, refusals. */
#include "engine/stop.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SEED 20261130U

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33);
}

static struct stop *make_stop(const struct view *strings, size_t count) {
    struct stop *stop = NULL;
    struct error error = {0};
    struct stop_options options = {.strings = strings, .string_count = count};
    assert_true(is_ok(stop_create(&stop, &options, &error)));
    return stop;
}

/* ---- the definition ---- */

/* End of the earliest occurrence, SIZE_MAX when there is none; the longest of those that end there. */
static size_t
naive_end(const struct view *strings, size_t count, struct view text, int32_t *index) {
    size_t end = SIZE_MAX;
    for (size_t s = 0; s < count; s++) {
        size_t at = view_find(text, strings[s], 0);
        if (at == SIZE_MAX) {
            continue;
        }
        size_t here = at + strings[s].length;
        if (here < end || (here == end && strings[s].length > strings[*index].length)) {
            end = here;
            *index = (int32_t)s;
        }
    }
    return end;
}

static size_t naive_held(const struct view *strings, size_t count, struct view text) {
    for (size_t length = text.length; length > 0; length--) {
        for (size_t s = 0; s < count; s++) {
            struct view end = view_slice(text, text.length - length, length);
            if (length < strings[s].length && view_starts_with(strings[s], end)) {
                return length;
            }
        }
    }
    return 0;
}

/* Random strings over few letters, random texts, random borders: the same end as the definition's, and
 * what is held back before it. */
static void any_cut_of_a_text_ends_at_the_same_byte(void **state) {
    (void)state;
    uint64_t random = SEED;
    int matches = 0;
    for (int round = 0; round < 6000; round++) {
        unsigned char bytes[6][9];
        unsigned char text[200];
        struct view strings[6];
        /* Many short ones, or one long one of two letters, which begins again inside itself. */
        bool is_one = round % 2 == 0;
        uint32_t letters = is_one ? 2 : 2 + next_random(&random) % 2;
        size_t count = is_one ? 1 : 1 + next_random(&random) % 6;
        for (size_t s = 0; s < count; s++) {
            size_t length = 1 + next_random(&random) % 8 + is_one;
            for (size_t i = 0; i < length; i++) {
                bytes[s][i] = (unsigned char)('a' + next_random(&random) % letters);
            }
            strings[s] = view_of(bytes[s], length);
        }
        for (size_t i = 0; i < sizeof text; i++) {
            text[i] = (unsigned char)('a' + next_random(&random) % (letters + !is_one));
        }
        struct view whole = view_of(text, sizeof text);
        int32_t wanted = -1;
        size_t end = naive_end(strings, count, whole, &wanted);
        struct stop *stop = make_stop(strings, count);
        struct stop_state now = {0};
        struct stop_match match = {0};
        bool is_matched = false;
        size_t at = 0;
        while (at < whole.length && !is_matched) {
            struct view token = view_slice(whole, at, next_random(&random) % 9);
            is_matched = stop_feed(stop, &now, 1, token, &match);
            at += token.length;
            if (!is_matched) {
                size_t held = naive_held(strings, count, view_slice(whole, 0, at));
                assert_int_equal(stop_held_bytes(stop, &now), held);
            }
        }
        assert_int_equal(is_matched, end != SIZE_MAX);
        if (is_matched) {
            matches++;
            assert_false(match.is_id);
            /* Two equal strings are told apart by nobody. */
            assert_true(view_equals(strings[match.index], strings[wanted]));
            assert_int_equal(match.string_bytes, strings[wanted].length);
            assert_int_equal(at - match.behind_bytes, end);
        }
        stop_destroy(stop);
    }
    print_message("%d of 6000 texts stop, seed %u\n", matches, SEED);
    assert_true(matches > 3000 && matches < 6000);
}

/* ---- by example ---- */

/* Feeds the tokens; index of the one at which it stops, or -1. */
static int
feed(const struct stop *stop, const char *const *tokens, size_t count, struct stop_match *match) {
    struct stop_state now = {0};
    for (size_t i = 0; i < count; i++) {
        if (stop_feed(stop, &now, (int32_t)i, view_of_text(tokens[i]), match)) {
            return (int)i;
        }
    }
    return -1;
}

static void strings_stop_over_borders_of_tokens(void **state) {
    (void)state;
    const struct view strings[] = {view_of_text("\n\nUser:"), view_of_text("END")};
    struct stop *stop = make_stop(strings, 2);
    struct stop_match match;
    const char *const tokens[] = {"hello", "\n", "\n", "", "\nUs", "er", ": what?"};
    assert_int_equal(feed(stop, tokens, COUNT_OF(tokens), &match), 6);
    assert_int_equal(match.index, 0);
    assert_int_equal(match.string_bytes, 7);
    assert_int_equal(match.behind_bytes, 6); /* " what?" */
    const char *const one[] = {"THE ENDING"};
    assert_int_equal(feed(stop, one, 1, &match), 0);
    assert_int_equal(match.index, 1);
    assert_int_equal(match.behind_bytes, 3);
    const char *const never[] = {"EN", "", "e", "D", "\n", "User:"};
    assert_int_equal(feed(stop, never, COUNT_OF(never), &match), -1);
    stop_destroy(stop);
}

static void strings_stop_inside_characters_that_tokens_cut(void **state) {
    (void)state;
    const struct view strings[] = {view_of_text("\xe2\x98\x83"), view_of_text("\xc3\xa9!")};
    struct stop *stop = make_stop(strings, 2);
    struct stop_match match;
    const char *const snow[] = {"a\xe2", "\x98", "\x83z"};
    assert_int_equal(feed(stop, snow, 3, &match), 2);
    assert_int_equal(match.index, 0);
    assert_int_equal(match.behind_bytes, 1);
    const char *const accent[] = {"\xe2\x98", "\xc3\xa9\xc3", "\xa9", "!"};
    assert_int_equal(feed(stop, accent, 4, &match), 3);
    assert_int_equal(match.index, 1);
    assert_int_equal(match.string_bytes, 3);
    /* U+2603 is e2 98 83; U+2602 begins like it. */
    const char *const rain[] = {"\xe2\x98", "\x82\x83", "\xc3", "!"};
    assert_int_equal(feed(stop, rain, 4, &match), -1);
    stop_destroy(stop);
}

static void strings_that_overlap_themselves_are_found(void **state) {
    (void)state;
    const struct view strings[] = {view_of_text("aab"), view_of_text("ababc")};
    struct stop *stop = make_stop(strings, 2);
    struct stop_match match;
    const char *const first[] = {"a", "a", "a", "a", "b"};
    assert_int_equal(feed(stop, first, 5, &match), 4);
    assert_int_equal(match.index, 0);
    const char *const second[] = {"aba", "bab", "c"};
    assert_int_equal(feed(stop, second, 3, &match), 2);
    assert_int_equal(match.index, 1);
    assert_int_equal(match.string_bytes, 5);
    stop_destroy(stop);
}

static void first_end_wins_then_the_longest(void **state) {
    (void)state;
    const struct view strings[] = {
        view_of_text("bc"), view_of_text("abcd"), view_of_text("abc"), view_of_text("c")};
    struct stop *stop = make_stop(strings, 4);
    struct stop_match match;
    const char *const whole[] = {"xabcd"};
    assert_int_equal(feed(stop, whole, 1, &match), 0);
    assert_int_equal(match.index, 2);
    assert_int_equal(match.string_bytes, 3);
    assert_int_equal(match.behind_bytes, 1);
    const char *const cut[] = {"xa", "b", "cd"};
    assert_int_equal(feed(stop, cut, 3, &match), 2);
    assert_int_equal(match.index, 2);
    assert_int_equal(match.behind_bytes, 1);
    stop_destroy(stop);
}

static void ids_stop_behind_strings(void **state) {
    (void)state;
    const struct view string = view_of_text("stop");
    const int32_t ids[] = {7, 0, 99};
    struct stop_options options = {
        .strings = &string, .string_count = 1, .ids = ids, .id_count = 3, .vocabulary = 100};
    struct stop *stop = NULL;
    struct error error;
    assert_true(is_ok(stop_create(&stop, &options, &error)));
    struct stop_state now = {0};
    struct stop_match match;
    assert_false(stop_feed(stop, &now, 5, view_of_text("st"), &match));
    struct stop_state kept = now;
    assert_true(stop_feed(stop, &now, 99, view_of_text("o"), &match));
    assert_true(match.is_id);
    assert_int_equal(match.index, 2);
    assert_int_equal(match.string_bytes, 1);
    assert_int_equal(match.behind_bytes, 0);
    /* The string ends in the token that is a stop id as well: what it began with goes, too. */
    now = kept;
    assert_true(stop_feed(stop, &now, 7, view_of_text("op!"), &match));
    assert_false(match.is_id);
    assert_int_equal(match.string_bytes, 4);
    assert_int_equal(match.behind_bytes, 1);
    now = kept;
    assert_true(stop_feed(stop, &now, 0, view_of_text(""), &match));
    assert_true(match.is_id && match.index == 1 && match.string_bytes == 0);
    stop_destroy(stop);
}

/* Drafts are fed and taken back by copying: as if they had never been. */
static void copies_of_a_state_take_back(void **state) {
    (void)state;
    const struct view string = view_of_text("abcabd");
    struct stop *stop = make_stop(&string, 1);
    struct stop_state now = {0};
    struct stop_match match;
    assert_false(stop_feed(stop, &now, 1, view_of_text("abc"), &match));
    struct stop_state kept = now;
    assert_true(stop_feed(stop, &now, 1, view_of_text("abd"), &match));
    now = kept;
    assert_false(stop_feed(stop, &now, 1, view_of_text("ab"), &match));
    assert_int_equal(stop_held_bytes(stop, &now), 5);
    now = kept;
    assert_int_equal(stop_held_bytes(stop, &now), 3);
    assert_true(stop_feed(stop, &now, 1, view_of_text("abcabd"), &match));
    stop_destroy(stop);
}

/* ---- refusals and limits ---- */

static void
expect_refusal(const struct stop_options *options, enum result_code code, const char *text) {
    struct stop *stop = NULL;
    struct error error = {0};
    assert_int_equal(stop_create(&stop, options, &error).code, code);
    assert_null(stop);
    if (strstr(error.message, text) == NULL) {
        print_message("%s: %s\n", text, error.message);
    }
    assert_non_null(strstr(error.message, text));
}

static void what_cannot_stop_is_refused(void **state) {
    (void)state;
    static unsigned char long_text[10000];
    memset(long_text, 'x', sizeof long_text);
    struct view strings[STOP_STRINGS_MAX + 1];
    for (size_t i = 0; i < COUNT_OF(strings); i++) {
        strings[i] = view_of_text("x");
    }
    struct stop_options options = {.strings = strings, .string_count = 2, .vocabulary = 100};
    strings[1] = view_of_text("");
    expect_refusal(&options, RESULT_INVALID_INPUT, "stop string 1 is empty");
    strings[1] = view_of(long_text, 10000);
    expect_refusal(&options, RESULT_LIMIT, "stop string 1 has 10000 bytes, more than 1024");
    strings[1] = view_of(long_text, 1025);
    expect_refusal(&options, RESULT_LIMIT, "stop string 1 has 1025 bytes, more than 1024");
    strings[1] = view_of_text("a\xc3");
    expect_refusal(&options, RESULT_INVALID_INPUT, "stop string 1 is not UTF-8");
    strings[1] = view_of_text("y");
    options.string_count = STOP_STRINGS_MAX + 1;
    expect_refusal(&options, RESULT_LIMIT, "65 stop strings, more than 64");
    options.string_count = 1;
    int32_t ids[STOP_IDS_MAX + 1] = {0};
    options.ids = ids;
    options.id_count = STOP_IDS_MAX + 1;
    expect_refusal(&options, RESULT_LIMIT, "65 stop ids, more than 64");
    options.id_count = 2;
    ids[1] = 100;
    expect_refusal(&options, RESULT_INVALID_INPUT, "stop id 100: the vocabulary has ids 0 to 99");
    ids[1] = -1;
    expect_refusal(&options, RESULT_INVALID_INPUT, "stop id -1");
}

/* As many and as long as they may be, on a text that all of them nearly match all the time. */
static void the_largest_set_is_matched_in_bounded_time(void **state) {
    (void)state;
    static unsigned char texts[STOP_STRINGS_MAX][STOP_STRING_BYTES_MAX];
    static unsigned char text[20000];
    memset(texts, 'a', sizeof texts);
    memset(text, 'a', sizeof text);
    struct view strings[STOP_STRINGS_MAX];
    for (size_t s = 0; s < STOP_STRINGS_MAX; s++) {
        texts[s][STOP_STRING_BYTES_MAX - 1] = (unsigned char)('b' + s % 20);
        texts[s][STOP_STRING_BYTES_MAX - 2 - s] = 'z';
        strings[s] = view_of(texts[s], STOP_STRING_BYTES_MAX);
    }
    texts[63][STOP_STRING_BYTES_MAX - 2 - 63] = 'a';
    struct stop *stop = make_stop(strings, STOP_STRINGS_MAX);
    struct stop_state now = {0};
    struct stop_match match;
    assert_false(stop_feed(stop, &now, 1, view_of(text, sizeof text), &match));
    assert_int_equal(stop_held_bytes(stop, &now), STOP_STRING_BYTES_MAX - 1);
    struct view last = view_of(&texts[63][STOP_STRING_BYTES_MAX - 1], 1);
    assert_true(stop_feed(stop, &now, 1, last, &match));
    assert_int_equal(match.index, 63);
    assert_int_equal(match.string_bytes, STOP_STRING_BYTES_MAX);
    stop_destroy(stop);
}

static void no_stops_never_stop(void **state) {
    (void)state;
    struct stop *stop = make_stop(NULL, 0);
    struct stop_state now = {0};
    struct stop_match match;
    assert_false(stop_feed(stop, &now, 0, view_of_text("anything"), &match));
    assert_int_equal(stop_held_bytes(stop, &now), 0);
    stop_destroy(stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_of_a_text_ends_at_the_same_byte),
        cmocka_unit_test(strings_stop_over_borders_of_tokens),
        cmocka_unit_test(strings_stop_inside_characters_that_tokens_cut),
        cmocka_unit_test(strings_that_overlap_themselves_are_found),
        cmocka_unit_test(first_end_wins_then_the_longest),
        cmocka_unit_test(ids_stop_behind_strings),
        cmocka_unit_test(copies_of_a_state_take_back),
        cmocka_unit_test(what_cannot_stop_is_refused),
        cmocka_unit_test(the_largest_set_is_matched_in_bounded_time),
        cmocka_unit_test(no_stops_never_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
