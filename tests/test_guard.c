/* Guards: loops against the definition, adversarial loops, real texts that must not be taken for one;
 * thinking and blocks of calls that do not close. */
#include "engine/guard.h"

#include "engine/tokenizer.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

#define SEED      20261130U
#define MINI      TEST_SOURCE_DIR "/examples/mini/model/tokenizer.json"
#define FILE_HEAD ((size_t)200 << 10) /* bytes of a file that are looked at */

static const struct guard_markers no_markers = {.thinking_open = -1, .thinking_close = -1};

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33);
}

struct fixture {
    struct guard *guard;
    struct guard_state *state;
    struct guard_finding finding;
};

static void setup(
    struct fixture *fixture,
    const struct guard_limits *limits,
    const struct guard_markers *markers,
    bool thinks
) {
    struct error error;
    assert_true(is_ok(guard_create(&fixture->guard, limits, markers, &error)));
    assert_true(is_ok(guard_state_create(&fixture->state, thinks, &error)));
}

static void teardown(struct fixture *fixture) {
    guard_state_destroy(fixture->state);
    guard_destroy(fixture->guard);
}

static void begin_again(struct fixture *fixture) {
    struct error error;
    guard_state_destroy(fixture->state);
    assert_true(is_ok(guard_state_create(&fixture->state, false, &error)));
}

static enum guard_verdict feed(struct fixture *fixture, int32_t id, const char *text) {
    return guard_feed(fixture->guard, fixture->state, id, view_of_text(text), &fixture->finding);
}

/* Feeds ids; index of the first with a verdict, or -1. */
static int32_t feed_ids(struct fixture *fixture, const int32_t *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        if (feed(fixture, ids[i], "") != GUARD_GO_ON) {
            return i;
        }
    }
    return -1;
}

/* ---- loops ---- */

/* Smallest span whose repetition at the end of ids[0, count) is a loop; 0: none. */
static int32_t
naive_span(const struct guard_limits *limits, const int32_t *ids, int32_t count, int32_t *covered) {
    for (int32_t span = 1; span <= limits->loop_span_max && span < count; span++) {
        int32_t run = 0;
        while (run + span < count && ids[count - 1 - run] == ids[count - 1 - run - span]) {
            run++;
        }
        *covered = run + span;
        if (*covered >= limits->loop_tokens && *covered >= limits->loop_times * span) {
            return span;
        }
    }
    return 0;
}

static void loops_are_those_of_the_definition(void **state) {
    (void)state;
    enum { TOKENS = 400 };
    uint64_t random = SEED;
    int loops = 0;
    for (int round = 0; round < 300; round++) {
        struct guard_limits limits = {
            .loop_span_max = 1 + (int32_t)(next_random(&random) % 12),
            .loop_times = 2 + (int32_t)(next_random(&random) % 4),
            .loop_tokens = (int32_t)(next_random(&random) % 30),
        };
        struct fixture fixture;
        setup(&fixture, &limits, &no_markers, false);
        int32_t ids[TOKENS];
        uint32_t alphabet = 1 + next_random(&random) % 4;
        int32_t period = 1;
        for (int32_t i = 0; i < TOKENS; i++) {
            /* Stretches that repeat, cut by others. */
            if (next_random(&random) % 40 == 0) {
                period = 1 + (int32_t)(next_random(&random) % 14);
            }
            bool is_new = i < period || next_random(&random) % 30 == 0;
            ids[i] = is_new ? (int32_t)(next_random(&random) % alphabet) : ids[i - period];
            enum guard_verdict verdict = feed(&fixture, ids[i], "");
            int32_t covered = 0;
            int32_t span = naive_span(&limits, ids, i + 1, &covered);
            assert_int_equal(verdict, span > 0 ? GUARD_LOOP : GUARD_GO_ON);
            assert_int_equal(fixture.finding.span, span);
            assert_int_equal(fixture.finding.tokens, span > 0 ? covered : 0);
            loops += span > 0;
        }
        teardown(&fixture);
    }
    print_message("%d of %d tokens in loops, seed %u\n", loops, 300 * TOKENS, SEED);
    assert_true(loops > 10000);
}

/* Every span at the default limits, behind a text that does not repeat: found at the token at which
 * the definition has it, and never with one token of the span changed each time. */
static void loops_of_any_span_are_found_at_their_token(void **state) {
    (void)state;
    struct guard_limits limits;
    guard_limits_default(&limits);
    struct fixture fixture;
    setup(&fixture, &limits, &no_markers, false);
    static int32_t ids[40000];
    static const int32_t spans[] = {1, 2, 3, 7, 31, 32, 33, 64, 100, 255, 256, 257, 300};
    for (size_t s = 0; s < COUNT_OF(spans); s++) {
        int32_t span = spans[s];
        for (int32_t i = 0; i < 1000; i++) {
            ids[i] = 5000 + i;
        }
        for (int32_t i = 1000; i < (int32_t)COUNT_OF(ids); i++) {
            ids[i] = (i - 1000) % span;
        }
        int32_t needed = span * limits.loop_times;
        needed = needed < limits.loop_tokens ? limits.loop_tokens : needed;
        begin_again(&fixture);
        int32_t at = feed_ids(&fixture, ids, (int32_t)COUNT_OF(ids));
        assert_int_equal(at, span > GUARD_SPAN_MAX ? -1 : 1000 + needed - 1);
        if (at >= 0) {
            assert_int_equal(fixture.finding.span, span);
            assert_int_equal(fixture.finding.tokens, needed);
        }
        /* A counter in the span: no two are equal. */
        for (int32_t i = 1000; i < (int32_t)COUNT_OF(ids); i += span) {
            ids[i] = 100000 + i;
        }
        begin_again(&fixture);
        assert_int_equal(feed_ids(&fixture, ids, (int32_t)COUNT_OF(ids)), -1);
    }
    teardown(&fixture);
}

/* A verdict holds while the loop goes on, and is gone with the first token that breaks it. */
static void loops_end_with_the_token_that_breaks_them(void **state) {
    (void)state;
    struct guard_limits limits = {.loop_span_max = 4, .loop_times = 3, .loop_tokens = 6};
    struct fixture fixture;
    setup(&fixture, &limits, &no_markers, false);
    const int32_t ids[] = {1, 2, 1, 2, 1};
    assert_int_equal(feed_ids(&fixture, ids, 5), -1);
    assert_int_equal(feed(&fixture, 2, ""), GUARD_LOOP);
    assert_int_equal(feed(&fixture, 1, ""), GUARD_LOOP);
    assert_int_equal(fixture.finding.tokens, 7);
    assert_int_equal(feed(&fixture, 3, ""), GUARD_GO_ON);
    teardown(&fixture);
    /* Off. */
    limits = (struct guard_limits){0};
    setup(&fixture, &limits, &no_markers, false);
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(feed(&fixture, 1, "x"), GUARD_GO_ON);
    }
    teardown(&fixture);
}

/* ---- texts that are none ---- */

static struct {
    struct tokenizer *tokenizer;
    struct fixture whole, half; /* default limits, and half of them */
    size_t files, tokens;
} real;

/* False when the guard takes the text for a loop. */
static bool text_passes(struct fixture *fixture, struct view text, const char *name) {
    struct token_list ids;
    struct error error;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    assert_true(is_ok(tokenizer_encode(real.tokenizer, text, TOKENIZER_MARKERS_OFF, &ids, &error)));
    begin_again(fixture);
    int32_t at = feed_ids(fixture, ids.ids, (int32_t)ids.count);
    if (at >= 0) {
        const struct guard_finding *finding = &fixture->finding;
        print_message(
            "%s: token %d of %zu: %d of span %d\n",
            name,
            at,
            ids.count,
            finding->tokens,
            finding->span
        );
    }
    real.tokens += ids.count;
    token_list_deinit(&ids);
    return at < 0;
}

static bool has_suffix(const char *path, const char *suffix) {
    return view_ends_with(view_of_text(path), view_of_text(suffix));
}

/* Text files; not those of the corpora of fuzzers, which hold loops on purpose. */
static int visit(const char *path, const struct stat *facts, int type, struct FTW *where) {
    (void)facts;
    (void)where;
    static const char *const suffixes[] = {
        ".c",
        ".h",
        ".cu",
        ".py",
        ".js",
        ".md",
        ".json",
        ".jsonl",
        ".txt",
        ".cmake",
        ".sql",
        ".log",
        ".traj"};
    bool is_text = false;
    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        is_text = is_text || has_suffix(path, suffixes[i]);
    }
    if (type != FTW_F || !is_text || strstr(path, "/corpus/") != NULL) {
        return 0;
    }
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, (size_t)16 << 20);
    struct error error;
    assert_true(is_ok(file_read(path, &text, &error)));
    assert_true(text_passes(&real.half, view_slice(buffer_view(&text), 0, FILE_HEAD), path));
    real.files++;
    return 0;
}

static void walk(const char *root, const char *folder) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", root, folder);
    assert_true(length > 0 && (size_t)length < sizeof path);
    assert_int_equal(nftw(path, visit, 16, FTW_PHYS), 0);
}

static int setup_real(void **state) {
    (void)state;
    struct error error;
    struct guard_limits limits;
    assert_true(is_ok(tokenizer_load(&real.tokenizer, MINI, &error)));
    guard_limits_default(&limits);
    setup(&real.whole, &limits, &no_markers, false);
    limits.loop_times /= 2;
    limits.loop_tokens /= 2;
    setup(&real.half, &limits, &no_markers, false);
    return 0;
}

static int teardown_real(void **state) {
    (void)state;
    teardown(&real.half);
    teardown(&real.whole);
    tokenizer_destroy(real.tokenizer);
    return 0;
}

/* Sources, documents, tables, tasks and transcripts: not even at half of the limits. */
static void texts_of_this_repository_are_no_loops(void **state) {
    (void)state;
    real.files = real.tokens = 0;
    static const char *const folders[] = {
        "engine", "runtime", "tests/data/formats", "examples/mini", "docs"};
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        walk(TEST_SOURCE_DIR, folders[i]);
    }
    print_message("%zu files, %zu tokens\n", real.files, real.tokens);
    assert_true(real.files > 150);
}

static void recorded_transcripts_are_no_loops(void **state) {
    (void)state;
    const char *data = getenv("HEARTH_TEST_DATA");
    if (data == NULL) {
        print_message("skipped: HEARTH_TEST_DATA names no folder with transcripts\n");
        skip();
    }
    real.files = real.tokens = 0;
    /* Not codex/: its texts were replaced by one sentence, which stands there 98 times in a row. */
    static const char *const folders[] = {
        "trajectories/claude-code",
        "trajectories/deepseek-harness",
        "trajectories/pi",
        "trajectories/swe-agent",
    };
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        walk(data, folders[i]);
    }
    print_message("%zu files, %zu tokens\n", real.files, real.tokens);
    assert_true(real.files > 4);
}

static void append_format(struct buffer *out, const char *text, int times) {
    struct error error;
    for (int i = 0; i < times; i++) {
        assert_true(is_ok(buffer_append_text(out, text, &error)));
    }
}

/* Texts that repeat and yet end: lines of 400 characters, hex dumps of zeros, tables of blanks, art. */
static void texts_that_repeat_by_nature_are_no_loops(void **state) {
    (void)state;
    struct buffer text;
    struct error error;
    buffer_init(&text, (size_t)1 << 20);
    static const char *const rules[] = {
        "=", "-", "#", "*", " ", "~", "=-", "|---", "+--", "\n", "0"};
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        buffer_clear(&text);
        append_format(&text, rules[i], (int)(400 / strlen(rules[i])));
        assert_true(text_passes(&real.half, buffer_view(&text), rules[i]));
    }
    buffer_clear(&text);
    for (int row = 0; row < 1000; row++) { /* hexdump -C of zeros, offsets rising */
        assert_true(is_ok(buffer_append_format(&text, &error, "%08x  ", row * 16)));
        append_format(&text, "00 ", 16);
        append_format(&text, " |................|\n", 1);
    }
    assert_true(text_passes(&real.half, buffer_view(&text), "hex dump"));
    buffer_clear(&text);
    for (int row = 0; row < 500; row++) { /* a table with empty columns */
        assert_true(is_ok(buffer_append_format(&text, &error, "| row %d |", row)));
        append_format(&text, "  0.00 |", 24);
        append_format(&text, "\n", 1);
    }
    assert_true(text_passes(&real.half, buffer_view(&text), "table"));
    buffer_clear(&text);
    append_format(&text, "static const unsigned char table[256] = {", 1);
    for (int row = 0; row < 16; row++) {
        append_format(&text, "\n    ", 1);
        append_format(&text, "0x00, ", 16);
    }
    append_format(&text, "\n};\n", 1);
    /* At the limits themselves; twice as many equal lines would be a loop. */
    assert_true(text_passes(&real.whole, buffer_view(&text), "array of zeros"));
    buffer_deinit(&text);
}

/* What models do when they run away, as text. */
static void texts_without_end_are_loops(void **state) {
    (void)state;
    static const char circle[] = "Let me check the tests. The tests pass. Wait, one of them fails. "
                                 "Let me check why it fails: "
                                 "the file is missing. I should create the file, then run the "
                                 "tests again, and then report. ";
    static const char *const texts[] = {
        "I will now read the file again.\n",
        "a",
        "\n",
        "return NULL;\n}\n\nstatic int f(void) {\n    ",
        circle,
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct buffer text;
        buffer_init(&text, (size_t)1 << 20);
        append_format(&text, texts[i], (int)(20000 / strlen(texts[i])) + 1);
        assert_false(text_passes(&real.whole, buffer_view(&text), texts[i]));
        buffer_deinit(&text);
    }
}

/* ---- thinking and calls ---- */

enum { OPEN = 100, CLOSE = 101 };

static void thinking_without_end_is_named(void **state) {
    (void)state;
    struct guard_limits limits = {.thinking_max = 10};
    struct guard_markers markers = {.thinking_open = OPEN, .thinking_close = CLOSE};
    struct fixture fixture;
    setup(&fixture, &limits, &markers, true); /* the prompt opened it */
    for (int32_t i = 0; i < 10; i++) {
        assert_int_equal(feed(&fixture, i, "x"), GUARD_GO_ON);
    }
    assert_int_equal(feed(&fixture, 10, "x"), GUARD_THINKING);
    assert_int_equal(fixture.finding.tokens, 11);
    assert_int_equal(feed(&fixture, CLOSE, ""), GUARD_GO_ON);
    for (int32_t i = 0; i < 100; i++) {
        assert_int_equal(feed(&fixture, i % 7, "x"), GUARD_GO_ON);
    }
    /* Each stretch counts for itself; opening again inside does not begin anew. */
    for (int round = 0; round < 3; round++) {
        assert_int_equal(feed(&fixture, OPEN, ""), GUARD_GO_ON);
        for (int32_t i = 0; i < 9; i++) {
            assert_int_equal(feed(&fixture, i, "x"), GUARD_GO_ON);
        }
        assert_int_equal(feed(&fixture, CLOSE, ""), GUARD_GO_ON);
    }
    assert_int_equal(feed(&fixture, OPEN, ""), GUARD_GO_ON);
    for (int32_t i = 0; i < 10; i++) {
        assert_int_equal(feed(&fixture, i == 5 ? OPEN : i, "x"), GUARD_GO_ON);
    }
    assert_int_equal(feed(&fixture, 1, "x"), GUARD_THINKING);
    teardown(&fixture);
    setup(&fixture, &limits, &markers, false);
    for (int32_t i = 0; i < 100; i++) {
        assert_int_equal(feed(&fixture, i, "x"), GUARD_GO_ON);
    }
    teardown(&fixture);
}

static void call_without_end_is_named(void **state) {
    (void)state;
    struct guard_limits limits = {.call_max = 5};
    struct guard_markers markers = {
        .thinking_open = OPEN,
        .thinking_close = CLOSE,
        .call_open = {view_of_text("<calls>")},
        .call_open_count = 1,
        .call_close = {view_of_text("</calls>")},
        .call_close_count = 1,
    };
    struct fixture fixture;
    setup(&fixture, &limits, &markers, false);
    static const char *const opening[] = {"text <", "ca", "lls", "> x"};
    static const char *const closing[] = {"1", "2", "</call", "s>"};
    for (int round = 0; round < 3; round++) { /* four tokens inside, closed in time */
        for (int32_t i = 0; i < 4; i++) {
            assert_int_equal(feed(&fixture, i, opening[i]), GUARD_GO_ON);
        }
        for (int32_t i = 0; i < 4; i++) {
            assert_int_equal(feed(&fixture, i, closing[i]), GUARD_GO_ON);
        }
    }
    /* Closed and opened in one token. */
    assert_int_equal(feed(&fixture, 1, "<calls></calls><calls>"), GUARD_GO_ON);
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(feed(&fixture, i, "argument"), GUARD_GO_ON);
    }
    assert_int_equal(feed(&fixture, 6, "argument"), GUARD_OPEN_CALL);
    assert_int_equal(fixture.finding.tokens, 6);
    assert_int_equal(feed(&fixture, 7, "</calls>"), GUARD_GO_ON);
    /* Spelled out in thinking it opens nothing. */
    assert_int_equal(feed(&fixture, OPEN, ""), GUARD_GO_ON);
    assert_int_equal(feed(&fixture, 1, "<calls>"), GUARD_GO_ON);
    assert_int_equal(feed(&fixture, CLOSE, ""), GUARD_GO_ON);
    for (int32_t i = 0; i < 20; i++) {
        assert_int_equal(feed(&fixture, i, "y"), GUARD_GO_ON);
    }
    teardown(&fixture);
}

/* The chat format's own markers, as the model's tokenizer cuts them. */
static void calls_of_the_chat_format_are_known(void **state) {
    (void)state;
    struct guard_markers markers;
    guard_markers_chat(real.tokenizer, &markers);
    assert_true(markers.thinking_open >= 0 && markers.thinking_close >= 0);
    struct guard_limits limits = {.call_max = 40};
    struct fixture fixture;
    setup(&fixture, &limits, &markers, true);
    static const char closed[] =
        "I use ｜DSML｜ <｜DSML｜ calls> now.</think>\n\n<｜DSML｜ calls>\n"
        "<｜DSML｜ invoke name=\"ls\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    static const char plain[] =
        " and then some more text that goes on and on for a good while without any call in it at "
        "all: "
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20.";
    static const char open[] =
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"ls\">\n<｜DSML｜ parameter name=\"path\" "
        "string=\"true\">a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q/r/s/t/u/v/w/x/y/z/a/b/c/d/e/f/g/h/i/j/k";
    static const char *const texts[] = {closed, plain, open};
    for (size_t t = 0; t < COUNT_OF(texts); t++) {
        struct token_list ids;
        struct error error;
        token_list_init(&ids, 10000);
        struct view text = view_of_text(texts[t]);
        assert_true(is_ok(tokenizer_encode(real.tokenizer, text, TOKENIZER_MARKERS_ON, &ids, &error)
        ));
        enum guard_verdict verdict = GUARD_GO_ON;
        for (size_t i = 0; i < ids.count && verdict == GUARD_GO_ON; i++) {
            struct view bytes = tokenizer_bytes(real.tokenizer, ids.ids[i]);
            verdict = guard_feed(fixture.guard, fixture.state, ids.ids[i], bytes, &fixture.finding);
        }
        assert_int_equal(verdict, t == 2 ? GUARD_OPEN_CALL : GUARD_GO_ON);
        token_list_deinit(&ids);
    }
    teardown(&fixture);
}

/* ---- the rest ---- */

static void limits_out_of_range_are_refused(void **state) {
    (void)state;
    static const struct {
        struct guard_limits limits;
        enum result_code code;
        const char *text;
    } wrong[] = {
        {{.loop_span_max = -1}, RESULT_LIMIT, "loop_span_max -1"},
        {{.loop_span_max = 257, .loop_times = 2},
         RESULT_LIMIT,
         "loop_span_max 257 is not in 0 to 256"},
        {{.loop_span_max = 1, .loop_times = 1}, RESULT_INVALID_INPUT, "loop_times 1"},
        {{.loop_span_max = 1, .loop_times = 1000001}, RESULT_INVALID_INPUT, "loop_times 1000001"},
        {{.loop_tokens = -1}, RESULT_INVALID_INPUT, "loop_tokens -1"},
        {{.thinking_max = -5}, RESULT_INVALID_INPUT, "thinking_max -5"},
        {{.call_max = -1}, RESULT_INVALID_INPUT, "call_max -1"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct guard *guard = NULL;
        struct error error = {0};
        result made = guard_create(&guard, &wrong[i].limits, &no_markers, &error);
        assert_int_equal(made.code, wrong[i].code);
        assert_null(guard);
        assert_non_null(strstr(error.message, wrong[i].text));
    }
    struct guard_limits limits = {
        .loop_span_max = 256,
        .loop_times = 1000000,
        .loop_tokens = INT32_MAX,
        .thinking_max = INT32_MAX};
    struct error error;
    assert_true(is_ok(guard_check(&limits, &error)));
    guard_limits_default(&limits);
    assert_true(is_ok(guard_check(&limits, &error)));
}

static void verdicts_have_names(void **state) {
    (void)state;
    assert_string_equal(guard_verdict_name(GUARD_GO_ON), "none");
    assert_string_equal(guard_verdict_name(GUARD_LOOP), "loop");
    assert_string_equal(guard_verdict_name(GUARD_THINKING), "thinking");
    assert_string_equal(guard_verdict_name(GUARD_OPEN_CALL), "open_call");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_are_those_of_the_definition),
        cmocka_unit_test(loops_of_any_span_are_found_at_their_token),
        cmocka_unit_test(loops_end_with_the_token_that_breaks_them),
        cmocka_unit_test(texts_of_this_repository_are_no_loops),
        cmocka_unit_test(recorded_transcripts_are_no_loops),
        cmocka_unit_test(texts_that_repeat_by_nature_are_no_loops),
        cmocka_unit_test(texts_without_end_are_loops),
        cmocka_unit_test(thinking_without_end_is_named),
        cmocka_unit_test(call_without_end_is_named),
        cmocka_unit_test(calls_of_the_chat_format_are_known),
        cmocka_unit_test(limits_out_of_range_are_refused),
        cmocka_unit_test(verdicts_have_names),
    };
    return cmocka_run_group_tests(tests, setup_real, teardown_real);
}
