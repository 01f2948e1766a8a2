/* The incremental parser of model output: what sound output gives, and that nothing breaks it. */
#include "base/json.h"
#include "engine/chat.h"
#include "engine/tokenizer.h"
#include "test_tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define D   "｜DSML｜"
#define EOS "<｜end▁of▁sentence｜>"

/* Everything a parser said and gave, as one text: REASONING / CONTENT / name(arguments) ... / problems. */
struct transcript {
    struct buffer reasoning;
    struct buffer content;
    struct buffer calls; /* from events: name, then argument pieces */
    struct buffer problems;
    bool is_ended;
};

static void append(struct buffer *out, struct view text) {
    assert_true(is_ok(buffer_append(out, text, NULL)));
}

static void append_text(struct buffer *out, const char *text) {
    append(out, view_of_text(text));
}

static void listen(void *context, const struct chat_event *event) {
    struct transcript *transcript = context;
    assert_true(utf8_is_valid(event->text));
    switch (event->type) {
    case CHAT_EVENT_REASONING:
        append(&transcript->reasoning, event->text);
        break;
    case CHAT_EVENT_CONTENT:
        append(&transcript->content, event->text);
        break;
    case CHAT_EVENT_CALL_STARTED:
        append(&transcript->calls, event->text);
        append_text(&transcript->calls, "(");
        break;
    case CHAT_EVENT_CALL_ARGUMENTS:
        append(&transcript->calls, event->text);
        break;
    case CHAT_EVENT_CALL_FINISHED:
        assert_true(view_ends_with(buffer_view(&transcript->calls), event->text));
        append_text(&transcript->calls, ")");
        break;
    case CHAT_EVENT_PROBLEM:
        append_text(&transcript->problems, " ");
        append_text(&transcript->problems, chat_problem_name(event->problem));
        break;
    case CHAT_EVENT_END:
        transcript->is_ended = true;
        break;
    }
}

static void transcript_init(struct transcript *transcript) {
    *transcript = (struct transcript){0};
    buffer_init(&transcript->reasoning, 1 << 26);
    buffer_init(&transcript->content, 1 << 26);
    buffer_init(&transcript->calls, 1 << 26);
    buffer_init(&transcript->problems, 1 << 26);
}

static void transcript_deinit(struct transcript *transcript) {
    buffer_deinit(&transcript->reasoning);
    buffer_deinit(&transcript->content);
    buffer_deinit(&transcript->calls);
    buffer_deinit(&transcript->problems);
}

/* The message must be what the events said; arguments must be objects. */
static void check_message(const struct chat_parser *parser, const struct transcript *transcript) {
    const struct chat_message *message = chat_parser_message(parser);
    assert_int_equal(message->role, CHAT_ASSISTANT);
    assert_true(view_equals(message->reasoning, buffer_view(&transcript->reasoning)));
    assert_true(view_equals(message->content, buffer_view(&transcript->content)));
    assert_true(chat_parser_is_ended(parser) == transcript->is_ended);
    for (size_t i = 0; i < message->call_count; i++) {
        CLEANUP(json_cleanup) struct json_document *document = NULL;
        assert_true(is_ok(json_parse(message->calls[i].arguments, NULL, &document, NULL)));
        assert_int_equal(json_type(json_root(document)), JSON_OBJECT);
        assert_true(message->calls[i].id.length > 0);
    }
}

static void read_text(
    struct transcript *transcript,
    struct chat_parser_options options,
    struct view text,
    size_t piece
) {
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    options.event = listen;
    options.context = transcript;
    assert_true(is_ok(chat_parser_create(&parser, NULL, &options, NULL)));
    for (size_t at = 0; at < text.length; at += piece) {
        assert_true(is_ok(chat_parser_push_text(parser, view_slice(text, at, piece), NULL)));
    }
    assert_true(is_ok(chat_parser_finish(parser, NULL)));
    check_message(parser, transcript);
}

struct output_case {
    const char *what;
    bool thinking;
    const char *text;
    const char *reasoning;
    const char *content;
    const char *calls;
    const char *problems;
};

#define INVOKE(name, parameters) "<" D " invoke name=\"" name "\">\n" parameters "</" D " invoke>"
#define STRING(name, value)                                                                        \
    "<" D " parameter name=\"" name "\" string=\"true\">" value "</" D " parameter>\n"
#define LITERAL(name, value)                                                                       \
    "<" D " parameter name=\"" name "\" string=\"false\">" value "</" D " parameter>\n"
#define OPEN "\n\n<" D " calls>\n"
#define NESTED                                                                                     \
    "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]" /* 41 deep */
#define CLOSE "\n</" D " calls>"

static const struct output_case cases[] = {
    {"answer", false, "Hi." EOS, "", "Hi.", "", ""},
    {"thinking and answer", true, "a\nb</think>\n\nHi." EOS, "a\nb", "\n\nHi.", "", ""},
    {"call",
     true,
     "r</think>ok" OPEN INVOKE("read", STRING("path", "a\n\"b\"")) CLOSE EOS,
     "r",
     "ok",
     "read({\"path\": \"a\\n\\\"b\\\"\"})",
     ""},
    {"two calls, literals",
     false,
     OPEN INVOKE("f", LITERAL("n", " [1, {\"x\": null}] ") STRING("s", "")) "\n" INVOKE("g", "")
         CLOSE EOS,
     "",
     "",
     "f({\"n\": [1, {\"x\": null}], \"s\": \"\"})g({})",
     ""},
    {"newlines before the block that are not its own",
     false,
     "x\n\n\n\n<" D " calls>\n" CLOSE EOS,
     "",
     "x\n\n",
     "",
     ""},
    {"value with what looks like tags",
     false,
     OPEN INVOKE("f", STRING("s", "<b>a</b> </ < \n\n<x")) CLOSE EOS,
     "",
     "",
     "f({\"s\": \"<b>a</b> </ < \\n\\n<x\"})",
     ""},
    {"name with an angle bracket",
     false,
     OPEN INVOKE("a>b", STRING("k>", "v")) CLOSE EOS,
     "",
     "",
     "a>b({\"k>\": \"v\"})",
     ""},
    {"no end", false, "Hi", "", "Hi", "", " end_missing"},
    {"no end after a block", false, OPEN INVOKE("f", "") CLOSE, "", "", "f({})", " end_missing"},
    {"nothing at all", false, "", "", "", "", " end_missing"},
    {"unclosed thinking", true, "hm" EOS, "hm", "", "", " thinking_unclosed"},
    {"unclosed thinking, cut",
     true,
     "hm\n\n<",
     "hm\n\n<",
     "",
     "",
     " thinking_unclosed end_missing"},
    {"call in thinking",
     true,
     "hm" OPEN INVOKE("f", "") CLOSE EOS,
     "hm",
     "",
     "f({})",
     " call_in_thinking"},
    {"half a parameter",
     false,
     OPEN "<" D " invoke name=\"f\">\n<" D " parameter name=\"a\" string=\"true\">Par",
     "",
     "",
     "f({\"a\": \"Par",
     " call_unclosed end_missing"},
    {"half a tag",
     false,
     OPEN "<" D " invoke na",
     "",
     "",
     "",
     " call_syntax block_unclosed end_missing"},
    {"a call that is whole before one that is not",
     false,
     OPEN INVOKE("f", "") "\n<" D " invoke name=\"g\">\n" EOS,
     "",
     "",
     "f({})g({",
     " call_unclosed"},
    {"unclosed block", false, OPEN INVOKE("f", "") EOS, "", "", "f({})", " block_unclosed"},
    {"unknown tool", false, OPEN INVOKE("rm", "") CLOSE EOS, "", "", "rm({})", " tool_unknown"},
    {"repeated parameter",
     false,
     OPEN INVOKE("f", STRING("a", "1") STRING("a", "2") LITERAL("b", "3")) CLOSE EOS,
     "",
     "",
     "f({\"a\": \"1\", \"b\": 3})",
     " parameter_repeated"},
    {"literal that is none",
     false,
     OPEN INVOKE("f", LITERAL("a", "{oops") LITERAL("b", "1 2") LITERAL("c", "")) CLOSE EOS,
     "",
     "",
     "f({\"a\": \"{oops\", \"b\": \"1 2\", \"c\": \"\"})",
     " value_invalid value_invalid value_invalid"},
    {"literal nested too deep",
     false,
     OPEN INVOKE("f", LITERAL("a", NESTED)) CLOSE EOS,
     "",
     "",
     "f({\"a\": \"" NESTED "\"})",
     " value_invalid"},
    {"string attribute of another kind",
     false,
     OPEN INVOKE("f", "<" D " parameter name=\"a\" string=\"yes\">x</" D " parameter>\n") CLOSE EOS,
     "",
     "",
     "f({\"a\": \"x\"})",
     " call_syntax"},
    {"no name",
     false,
     OPEN "<" D " invoke>\n" STRING("a", "1") "</" D " invoke>\n" INVOKE("f", "") CLOSE EOS,
     "",
     "",
     "f({})",
     " call_syntax"},
    {"parameter not closed",
     false,
     OPEN INVOKE("f", "<" D " parameter name=\"a\" string=\"true\">x" STRING("b", "y")) CLOSE EOS,
     "",
     "",
     "f({\"a\": \"x\", \"b\": \"y\"})",
     " call_syntax"},
    {"call not closed",
     false,
     OPEN "<" D " invoke name=\"f\">\n" STRING("a", "1") INVOKE("f", "") CLOSE EOS,
     "",
     "",
     "f({\"a\": \"1\"})f({})",
     " call_syntax"},
    {"text between calls",
     false,
     OPEN "and" INVOKE("f", "so") "on" CLOSE EOS,
     "",
     "",
     "f({})",
     " call_syntax call_syntax call_syntax"},
    {"text after the block",
     false,
     OPEN INVOKE("f", "") CLOSE "\nmore" EOS,
     "",
     "",
     "f({})",
     " text_after_calls"},
    {"one newline before the block",
     false,
     "x\n<" D " calls>\n" INVOKE("f", "") CLOSE EOS,
     "",
     "x",
     "f({})",
     " call_syntax"},
    {"the older tags",
     false,
     "\n\n<" D "tool_calls>\n<" D "invoke name=\"f\">\n</" D "invoke>\n</" D "tool_calls>" EOS,
     "",
     "",
     "f({})",
     " call_syntax"},
    {"call without a block",
     false,
     "x\n\n" INVOKE("f", "") EOS,
     "",
     "x",
     "f({})",
     " call_syntax block_unclosed"},
    {"stray markers",
     true,
     "<think>a<｜User｜>b</think>c</think>d<think>" D "e</" D " calls>" EOS,
     "ab",
     "cde</ calls>",
     "",
     " stray_marker stray_marker stray_marker stray_marker stray_marker stray_marker"},
    {"a tag that is none of ours",
     false,
     "a <" D " weather> b" EOS,
     "",
     "a < weather> b",
     "",
     " stray_marker"},
    {"after the end nothing counts", false, "a" EOS "b" OPEN INVOKE("f", "") EOS, "", "a", "", ""},
    {"broken text",
     false,
     "a\xFFz\xE4\xBD" EOS,
     "",
     "a\xEF\xBF\xBDz\xEF\xBF\xBD",
     "",
     " text_invalid"},
    {"literal markers that are only begun",
     false,
     "a < b <thin <｜User <｜",
     "",
     "a < b <thin <｜User <｜",
     "",
     " end_missing"},
};

static void output_is_read_as_far_as_it_makes_sense(void **state) {
    (void)state;
    static const size_t pieces[] = {1, 2, 3, 7, 1000000};
    struct view tools[] = {
        view_of_text("f"), view_of_text("g"), view_of_text("read"), view_of_text("a>b")};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (size_t p = 0; p < COUNT_OF(pieces); p++) {
            const struct output_case *c = &cases[i];
            CLEANUP(transcript_deinit) struct transcript transcript;
            transcript_init(&transcript);
            struct chat_parser_options options = {
                .thinking = c->thinking, .tool_names = tools, .tool_count = COUNT_OF(tools)};
            read_text(&transcript, options, view_of_text(c->text), pieces[p]);
            if (strcmp(buffer_text(&transcript.reasoning), c->reasoning) != 0 ||
                strcmp(buffer_text(&transcript.content), c->content) != 0 ||
                strcmp(buffer_text(&transcript.calls), c->calls) != 0) {
                fail_msg(
                    "%s, pieces of %zu: %s / %s / %s",
                    c->what,
                    pieces[p],
                    buffer_text(&transcript.reasoning),
                    buffer_text(&transcript.content),
                    buffer_text(&transcript.calls)
                );
            }
            // Text that is noted in pieces may be noted more than once.
            bool is_exact = strcmp(buffer_text(&transcript.problems), c->problems) == 0;
            if (!is_exact && pieces[p] == 1000000) {
                fail_msg("%s: problems%s", c->what, buffer_text(&transcript.problems));
            }
            assert_true((transcript.problems.length == 0) == (c->problems[0] == '\0'));
        }
    }
}

static void zero_byte_becomes_a_replacement_character(void **state) {
    (void)state;
    CLEANUP(transcript_deinit) struct transcript transcript;
    transcript_init(&transcript);
    static const char text[] = "\n\n<" D " calls>\n<" D " invoke name=\"f\">\n<" D
                               " parameter name=\"a\" string=\"true\">x\0y</" D " parameter>\n</" D
                               " invoke>\n</" D " calls>" EOS;
    struct chat_parser_options options = {0};
    read_text(&transcript, options, view_of(text, sizeof text - 1), 5);
    assert_string_equal(buffer_text(&transcript.calls), "f({\"a\": \"x\xEF\xBF\xBDy\"})");
    assert_string_equal(buffer_text(&transcript.problems), " text_invalid");
}

static void prompt_that_opened_the_block_begins_inside_it(void **state) {
    (void)state;
    CLEANUP(transcript_deinit) struct transcript transcript;
    transcript_init(&transcript);
    struct chat_parser_options options = {.inside_calls = true};
    read_text(&transcript, options, view_of_text(INVOKE("f", STRING("a", "1")) CLOSE EOS), 4);
    assert_string_equal(buffer_text(&transcript.calls), "f({\"a\": \"1\"})");
    assert_string_equal(buffer_text(&transcript.problems), "");
}

static void calls_are_numbered_from_the_given_number(void **state) {
    (void)state;
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    struct chat_parser_options options = {.first_call_number = 41};
    assert_true(is_ok(chat_parser_create(&parser, NULL, &options, NULL)));
    struct view text = view_of_text(OPEN INVOKE("f", "") "\n" INVOKE("g", "") CLOSE EOS);
    assert_true(is_ok(chat_parser_push_text(parser, text, NULL)));
    assert_true(is_ok(chat_parser_finish(parser, NULL)));
    const struct chat_message *message = chat_parser_message(parser);
    assert_int_equal(message->call_count, 2);
    assert_true(view_equals_text(message->calls[1].id, "call_42"));
}

static void problems_keep_the_call_and_a_detail(void **state) {
    (void)state;
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    struct view tools[] = {view_of_text("f")};
    struct chat_parser_options options = {.tool_names = tools, .tool_count = 1};
    assert_true(is_ok(chat_parser_create(&parser, NULL, &options, NULL)));
    struct view text =
        view_of_text(OPEN INVOKE("f", "") "\n" INVOKE("rm", LITERAL("x", "nonsense")) CLOSE EOS);
    assert_true(is_ok(chat_parser_push_text(parser, text, NULL)));
    assert_true(is_ok(chat_parser_finish(parser, NULL)));
    size_t count = 0;
    const struct chat_problem_note *notes = chat_parser_problems(parser, &count);
    assert_int_equal(count, 2);
    assert_int_equal(notes[0].problem, CHAT_PROBLEM_TOOL_UNKNOWN);
    assert_int_equal(notes[0].call_index, 1);
    assert_true(view_equals_text(notes[0].detail, "rm"));
    assert_int_equal(notes[1].problem, CHAT_PROBLEM_VALUE_INVALID);
    assert_true(view_equals_text(notes[1].detail, "nonsense"));
}

/* ---- ids ---- */

static struct tokenizer *make_tokenizer(void) {
    CLEANUP(buffer_deinit) struct buffer json = {NULL, 0, 0, 1 << 20};
    struct tokenizer *tokenizer = NULL;
    test_tokenizer_json_write(
        &json, &(struct test_tokenizer_json){.added_tokens = test_chat_tokens}
    );
    assert_true(is_ok(tokenizer_parse(&tokenizer, buffer_view(&json), NULL)));
    return tokenizer;
}

static void read_ids(
    struct transcript *transcript,
    const struct tokenizer *tokenizer,
    const char *text,
    enum tokenizer_markers markers,
    bool thinking
) {
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 20};
    struct chat_parser_options options = {
        .thinking = thinking, .event = listen, .context = transcript};
    assert_true(is_ok(tokenizer_encode(tokenizer, view_of_text(text), markers, &ids, NULL)));
    assert_true(is_ok(chat_parser_create(&parser, tokenizer, &options, NULL)));
    for (size_t i = 0; i < ids.count; i++) {
        assert_true(is_ok(chat_parser_push(parser, ids.ids[i], NULL)));
    }
    assert_true(is_ok(chat_parser_finish(parser, NULL)));
    check_message(parser, transcript);
}

static void by_ids_only_control_tokens_are_markers(void **state) {
    (void)state;
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make_tokenizer();
    static const char text[] = "a</think>b" OPEN INVOKE("f", STRING("k", "é")) CLOSE;
    CLEANUP(transcript_deinit) struct transcript as_markers;
    CLEANUP(transcript_deinit) struct transcript as_text;
    transcript_init(&as_markers);
    transcript_init(&as_text);
    read_ids(&as_markers, tokenizer, text, TOKENIZER_MARKERS_ON, true);
    assert_string_equal(buffer_text(&as_markers.reasoning), "a");
    assert_string_equal(buffer_text(&as_markers.content), "b");
    assert_string_equal(buffer_text(&as_markers.calls), "f({\"k\": \"é\"})");
    read_ids(&as_text, tokenizer, text, TOKENIZER_MARKERS_OFF, true);
    assert_string_equal(buffer_text(&as_text.reasoning), text);
    assert_string_equal(buffer_text(&as_text.calls), "");
}

static void added_token_without_a_meaning_here_is_dropped_and_noted(void **state) {
    (void)state;
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make_tokenizer();
    CLEANUP(transcript_deinit) struct transcript transcript;
    transcript_init(&transcript);
    read_ids(&transcript, tokenizer, "a<｜place▁holder｜>b" EOS, TOKENIZER_MARKERS_ON, false);
    assert_string_equal(buffer_text(&transcript.content), "ab");
    assert_string_equal(buffer_text(&transcript.problems), " stray_marker");
}

static void torn_character_before_a_marker_is_replaced(void **state) {
    (void)state;
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = make_tokenizer();
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    CLEANUP(transcript_deinit) struct transcript transcript;
    transcript_init(&transcript);
    struct chat_parser_options options = {.event = listen, .context = &transcript};
    static const int32_t ids[] = {'a', 0xE4, 0xBD, 301};
    assert_true(is_ok(chat_parser_create(&parser, tokenizer, &options, NULL)));
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        assert_true(is_ok(chat_parser_push(parser, ids[i], NULL)));
    }
    struct error error = {0};
    assert_int_equal(chat_parser_push(parser, 310, &error).code, RESULT_INVALID_INPUT);
    assert_int_equal(chat_parser_push(parser, -1, &error).code, RESULT_INVALID_INPUT);
    assert_true(is_ok(chat_parser_finish(parser, NULL)));
    assert_true(chat_parser_is_ended(parser));
    assert_string_equal(buffer_text(&transcript.content), "a\xEF\xBF\xBD");
    assert_string_equal(buffer_text(&transcript.problems), " text_invalid");
}

/* ---- limits ---- */

static void output_beyond_the_limit_is_dropped_and_noted_once(void **state) {
    (void)state;
    CLEANUP(transcript_deinit) struct transcript transcript;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    transcript_init(&transcript);
    for (size_t i = 0; i < 1000; i++) {
        append_text(&text, "0123456789");
    }
    append_text(&text, EOS);
    struct chat_parser_options options = {.output_bytes_max = 100};
    read_text(&transcript, options, buffer_view(&text), 10);
    assert_true(transcript.content.length <= 100 && transcript.content.length >= 80);
    assert_string_equal(buffer_text(&transcript.problems), " limit");
    assert_true(transcript.is_ended);
}

static void calls_and_parameters_beyond_their_limits_are_dropped(void **state) {
    (void)state;
    CLEANUP(transcript_deinit) struct transcript transcript;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
    transcript_init(&transcript);
    append_text(&text, OPEN "<" D " invoke name=\"f\">\n");
    for (size_t i = 0; i < CHAT_PARAMETERS_MAX + 3; i++) {
        assert_true(is_ok(buffer_append_format(
            &text, NULL, "<" D " parameter name=\"p%zu\" string=\"true\"></" D " parameter>", i
        )));
    }
    append_text(&text, "</" D " invoke>" INVOKE("g", "") INVOKE("h", "") CLOSE EOS);
    struct chat_parser_options options = {.calls_max = 2};
    read_text(&transcript, options, buffer_view(&text), 1000);
    assert_string_equal(buffer_text(&transcript.problems), " limit limit limit limit");
    assert_non_null(strstr(buffer_text(&transcript.calls), "\"p127\": \"\"})g({})"));
    assert_null(strstr(buffer_text(&transcript.calls), "p128"));
}

static void endless_names_and_problems_stay_bounded(void **state) {
    (void)state;
    CLEANUP(chat_parser_cleanup) struct chat_parser *parser = NULL;
    struct chat_parser_options options = {0};
    assert_true(is_ok(chat_parser_create(&parser, NULL, &options, NULL)));
    assert_true(
        is_ok(chat_parser_push_text(parser, view_of_text(OPEN "<" D " invoke name=\""), NULL))
    );
    for (size_t i = 0; i < 100000; i++) {
        assert_true(is_ok(chat_parser_push_text(parser, view_of_text("</think>nnnn"), NULL)));
    }
    assert_true(is_ok(chat_parser_finish(parser, NULL)));
    size_t kept = 0;
    (void)chat_parser_problems(parser, &kept);
    assert_int_equal(kept, CHAT_PROBLEMS_MAX);
    assert_true(chat_parser_problem_count(parser) > 100000);
    assert_int_equal(chat_parser_message(parser)->call_count, 0);
}

static void tag_that_is_too_long_is_cut_between_characters(void **state) {
    (void)state;
    for (size_t blanks = 0; blanks < 3; blanks++) {
        CLEANUP(transcript_deinit) struct transcript transcript;
        CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
        transcript_init(&transcript);
        append_text(&text, "<" D);
        for (size_t i = 0; i < 400; i++) {
            append_text(&text, i < blanks ? " " : "\xE4\xBD\xA0");
        }
        struct chat_parser_options options = {0};
        read_text(&transcript, options, buffer_view(&text), 4); // listen checks the text
        assert_true(transcript.content.length > 0 && transcript.content.length < 1200);
        assert_string_equal(buffer_text(&transcript.problems), " call_syntax end_missing");
    }
}

/* ---- any text ---- */

/* Random sequences of the format's own pieces: message and events agree however it is cut. */
static void any_mixture_of_pieces_is_read_the_same_however_it_is_cut(void **state) {
    (void)state;
    static const char *const pieces[] = {
        OPEN,
        CLOSE,
        "<" D " invoke name=\"f\">\n",
        "</" D " invoke>\n",
        "<",
        "</",
        D,
        " calls>",
        " invoke",
        " parameter",
        " name=\"",
        "\" string=\"true\">",
        "\" string=\"false\">",
        ">",
        "\n",
        "</" D " parameter>\n",
        "<" D " parameter name=\"a\" string=\"true\">",
        "x",
        "é",
        "{\"k\": [1]}",
        "</think>",
        "<think>",
        "\"",
        "<｜User｜>",
        "<" D " parameter name=\"b\" string=\"false\">",
        "12",
        "<" D " calls>",
        "\xF0\x9F",
        "<" D " invoke>"};
    uint32_t seed = 3;
    for (size_t round = 0; round < 4000; round++) {
        CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 1 << 20};
        CLEANUP(transcript_deinit) struct transcript whole;
        CLEANUP(transcript_deinit) struct transcript cut;
        transcript_init(&whole);
        transcript_init(&cut);
        size_t count = 1 + (seed >> 16) % 24;
        for (size_t i = 0; i < count; i++) {
            seed = seed * 1664525U + 1013904223U;
            append_text(&text, pieces[(seed >> 16) % COUNT_OF(pieces)]);
        }
        struct chat_parser_options options = {.thinking = (seed >> 20) % 2 == 0};
        read_text(&whole, options, buffer_view(&text), text.length);
        read_text(&cut, options, buffer_view(&text), 1 + (seed >> 24) % 5);
        assert_string_equal(buffer_text(&whole.reasoning), buffer_text(&cut.reasoning));
        assert_string_equal(buffer_text(&whole.content), buffer_text(&cut.content));
        assert_string_equal(buffer_text(&whole.calls), buffer_text(&cut.calls));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_read_as_far_as_it_makes_sense),
        cmocka_unit_test(zero_byte_becomes_a_replacement_character),
        cmocka_unit_test(prompt_that_opened_the_block_begins_inside_it),
        cmocka_unit_test(calls_are_numbered_from_the_given_number),
        cmocka_unit_test(problems_keep_the_call_and_a_detail),
        cmocka_unit_test(by_ids_only_control_tokens_are_markers),
        cmocka_unit_test(added_token_without_a_meaning_here_is_dropped_and_noted),
        cmocka_unit_test(torn_character_before_a_marker_is_replaced),
        cmocka_unit_test(output_beyond_the_limit_is_dropped_and_noted_once),
        cmocka_unit_test(calls_and_parameters_beyond_their_limits_are_dropped),
        cmocka_unit_test(endless_names_and_problems_stay_bounded),
        cmocka_unit_test(tag_that_is_too_long_is_cut_between_characters),
        cmocka_unit_test(any_mixture_of_pieces_is_read_the_same_however_it_is_cut),
    };
    return cmocka_run_group_tests_name("chat parser", tests, NULL, NULL);
}
