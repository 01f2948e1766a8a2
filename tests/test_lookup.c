/* Drafts from a sequence's own ids: each rule alone, and random histories against the plain
 * truth. */
#include "engine/lookup.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "failing_memory.h"

#define HISTORY 2000

static struct lookup *create(int32_t window) {
    struct lookup *lookup = NULL;
    struct error error = {0};
    assert_true(is_ok(lookup_create(&lookup, window, &error)));
    return lookup;
}

static void append_text(struct lookup *lookup, const char *text) {
    for (; *text != '\0'; text++) {
        int32_t id = (unsigned char)*text;
        lookup_append(lookup, &id, 1);
    }
}

/* The draft of at most `most` ids as text. */
static void
assert_draft(const struct lookup *lookup, int32_t most, int32_t matched, const char *want) {
    struct lookup_draft draft;
    lookup_propose(lookup, most, &draft);
    char text[LOOKUP_DRAFT_MAX + 1] = {0};
    for (int32_t i = 0; i < draft.count; i++) {
        text[i] = (char)draft.ids[i];
    }
    assert_string_equal(text, want);
    assert_int_equal(draft.matched, matched);
}

static void lookup_cases_give_their_drafts(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t most, matched;
        const char *want;
    } cases[] = {
        {"", 4, 0, ""},
        {"a", 4, 0, ""},
        {"abc", 4, 0, ""},
        {"aba", 4, 0, ""},           /* one id that agrees is too few */
        {"abxab", 1, 2, "x"},        /* what followed */
        {"abxyzab", 3, 2, "xyz"},    /* as many as asked for */
        {"abxyab", 5, 2, "xyabx"},   /* beyond the end: as if it repeated */
        {"aaaa", 6, 3, "aaaaaa"},    /* a run of one id */
        {"abXab0abYab", 1, 2, "Y"},  /* equal agreement: the latest place */
        {"cabXab0abcab", 1, 3, "X"}, /* more agreement wins over the latest */
        {"12345678+!..45678-!..12345678", 2, 8, "+!"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct lookup *lookup = create(64);
        append_text(lookup, cases[i].text);
        assert_draft(lookup, cases[i].most, cases[i].matched, cases[i].want);
        lookup_destroy(lookup);
    }
}

static void lookup_long_agreement_is_found_behind_many_short_ones(void **state) {
    (void)state;
    struct lookup *lookup = create(4096);
    append_text(lookup, "the long way to ab!");
    for (int i = 0; i < 500; i++) { /* "ab" everywhere: far more places than are looked at */
        append_text(lookup, "ab?.");
    }
    append_text(lookup, "the long way to ab");
    assert_draft(lookup, 1, 18, "!");
    lookup_destroy(lookup);
}

static void lookup_agreement_counts_no_further_than_the_limit(void **state) {
    (void)state;
    struct lookup *lookup = create(1024);
    for (int i = 0; i < 300; i++) {
        append_text(lookup, "x");
    }
    assert_draft(lookup, 2, LOOKUP_MATCH_MAX, "xx");
    lookup_destroy(lookup);
}

static void lookup_what_fell_out_of_the_window_is_not_drafted(void **state) {
    (void)state;
    struct lookup *lookup = create(64);
    append_text(lookup, "ab!");
    for (int32_t id = 1000; id < 1000 + 59; id++) { /* different ones */
        lookup_append(lookup, &id, 1);
    }
    append_text(lookup, "ab"); /* 64 ids: "ab!" is there just yet */
    assert_draft(lookup, 1, 2, "!");
    lookup_truncate(lookup, lookup_length(lookup) - 2);
    append_text(lookup, "_ab"); /* now only "b!" is */
    assert_draft(lookup, 1, 0, "");
    assert_int_equal(lookup_length(lookup), 65);
    lookup_destroy(lookup);
}

static void lookup_truncated_ids_are_forgotten(void **state) {
    (void)state;
    struct lookup *lookup = create(64);
    append_text(lookup, "abXabY");
    lookup_truncate(lookup, 3);
    append_text(lookup, "ab");
    assert_draft(lookup, 1, 2, "X");
    lookup_truncate(lookup, 0);
    assert_int_equal(lookup_length(lookup), 0);
    append_text(lookup, "ab");
    assert_draft(lookup, 1, 0, "");
    append_text(lookup, "Zab");
    assert_draft(lookup, 1, 2, "Z");
    lookup_destroy(lookup);
}

static void lookup_truncated_before_the_window_starts_anew(void **state) {
    (void)state;
    struct lookup *lookup = create(64);
    for (int i = 0; i < 40; i++) {
        append_text(lookup, "abX");
    }
    lookup_truncate(lookup, 3);
    assert_int_equal(lookup_length(lookup), 3);
    append_text(lookup, "ab");
    assert_draft(lookup, 1, 0, "");
    append_text(lookup, "Yab");
    assert_draft(lookup, 1, 2, "Y");
    lookup_destroy(lookup);
}

/* ---- random histories
 * ------------------------------------------------------------------------- */

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static int32_t draw(uint64_t *random, int32_t count) {
    return (int32_t)(next(random) % (uint64_t)count);
}

/* Length of the agreement of the places `position` and the end, limited. */
static int32_t agree(const int32_t *ids, int32_t length, int32_t first, int32_t position) {
    int32_t count = 0;
    while (count < LOOKUP_MATCH_MAX && position - count >= first &&
           ids[position - count] == ids[length - 1 - count]) {
        count++;
    }
    return count;
}

/* Checks the draft against all places. Whether the number of short agreements was small enough for
 * the best to be certain. */
static bool
check_draft(const struct lookup *lookup, const int32_t *ids, int32_t length, int32_t first) {
    struct lookup_draft draft;
    lookup_propose(lookup, 5, &draft);
    int32_t places = 0;
    int32_t longest = 0;
    int32_t best = -1;
    bool is_told = draft.count == 0;
    for (int32_t p = length - 2; p >= first; p--) {
        int32_t count = agree(ids, length, first, p);
        places += count >= 2 ? 1 : 0;
        if (count > longest) {
            longest = count;
            best = p;
        }
        bool is_same = count == draft.matched;
        for (int32_t i = 0; i < draft.count && is_same; i++) {
            int32_t behind = length - 1 - p;
            is_same = draft.ids[i] == ids[p + 1 + i % behind];
        }
        is_told = is_told || is_same;
    }
    assert_true(is_told);
    bool is_certain = places <= 20;
    if (is_certain && longest < 2) {
        assert_int_equal(draft.count, 0);
    }
    if (is_certain && longest >= 2) {
        assert_int_equal(draft.count, 5);
        assert_int_equal(draft.matched, longest);
        for (int32_t i = 0; i < 5; i++) {
            assert_int_equal(draft.ids[i], ids[best + 1 + i % (length - 1 - best)]);
        }
    }
    return is_certain && longest >= 2;
}

static void run_history(uint64_t seed, int32_t window, int32_t alphabet) {
    uint64_t random = seed * 0x9E3779B97F4A7C15U + 1;
    struct lookup *lookup = create(window);
    int32_t ids[HISTORY];
    int32_t length = 0;
    int32_t first = 0;
    int32_t certain = 0;
    while (length + 40 < HISTORY) {
        int32_t count = 1 + draw(&random, 6);
        int32_t from = length > 30 && draw(&random, 3) == 0 ? draw(&random, length - 20) : -1;
        count = from < 0 ? count : 4 + draw(&random, 16); /* copies something */
        for (int32_t i = 0; i < count; i++) {
            ids[length + i] = from < 0 ? draw(&random, alphabet) : ids[from + i];
        }
        lookup_append(lookup, ids + length, count);
        length += count;
        first = length - window > first ? length - window : first;
        if (draw(&random, 4) == 0) {
            int32_t back = draw(&random, 12);
            length = length - back > first ? length - back : length;
            lookup_truncate(lookup, length);
        }
        assert_int_equal(lookup_length(lookup), length);
        certain += check_draft(lookup, ids, length, first) ? 1 : 0;
    }
    assert_true(certain > 20);
    lookup_destroy(lookup);
}

static void lookup_random_histories_give_the_longest_agreement(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        run_history(seed, 4096, 30);
        run_history(seed, 4096, 200);
        run_history(seed, 256, 40);
        run_history(seed, 64, 12);
    }
}

/* As above, but no index that was truncated differs from one that never saw those ids. */
static void lookup_after_truncation_equals_a_fresh_index(void **state) {
    (void)state;
    uint64_t random = 77;
    struct lookup *worn = create(4096);
    struct lookup *fresh = create(4096);
    int32_t ids[HISTORY];
    int32_t length = 0;
    while (length + 80 < HISTORY) {
        int32_t junk[64];
        int32_t junk_count = draw(&random, 64);
        for (int32_t i = 0; i < junk_count; i++) {
            junk[i] = draw(&random, 6);
        }
        lookup_append(worn, junk, junk_count);
        lookup_truncate(worn, length);
        for (int32_t i = 0; i < 3; i++) {
            ids[length + i] = draw(&random, 6);
        }
        lookup_append(worn, ids + length, 3);
        lookup_append(fresh, ids + length, 3);
        length += 3;
        struct lookup_draft a;
        struct lookup_draft b;
        lookup_propose(worn, 8, &a);
        lookup_propose(fresh, 8, &b);
        assert_int_equal(a.count, b.count);
        assert_int_equal(a.matched, b.matched);
        assert_memory_equal(a.ids, b.ids, (size_t)a.count * sizeof a.ids[0]);
    }
    lookup_destroy(worn);
    lookup_destroy(fresh);
}

static void lookup_without_memory_is_refused(void **state) {
    (void)state;
    for (size_t nth = 1; nth <= 2; nth++) {
        struct lookup *lookup = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result created = lookup_create(&lookup, 1000, &error);
        assert_true(failing_memory_fired());
        failing_memory_arm(0);
        assert_int_equal(created.code, RESULT_MEMORY);
        assert_non_null(strstr(error.message, "1024 ids"));
        assert_null(lookup);
    }
    lookup_destroy(NULL);
    size_t before = failing_memory_bytes();
    struct lookup *lookup = create(1000);
    assert_int_equal(failing_memory_bytes() - before, lookup_bytes(1000));
    /* Work allocates nothing. */
    size_t count = failing_memory_count();
    append_text(lookup, "abXab");
    assert_draft(lookup, 1, 2, "X");
    lookup_truncate(lookup, 2);
    assert_int_equal(failing_memory_count(), count);
    lookup_destroy(lookup);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_cases_give_their_drafts),
        cmocka_unit_test(lookup_long_agreement_is_found_behind_many_short_ones),
        cmocka_unit_test(lookup_agreement_counts_no_further_than_the_limit),
        cmocka_unit_test(lookup_what_fell_out_of_the_window_is_not_drafted),
        cmocka_unit_test(lookup_truncated_ids_are_forgotten),
        cmocka_unit_test(lookup_truncated_before_the_window_starts_anew),
        cmocka_unit_test(lookup_random_histories_give_the_longest_agreement),
        cmocka_unit_test(lookup_after_truncation_equals_a_fresh_index),
        cmocka_unit_test(lookup_without_memory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
