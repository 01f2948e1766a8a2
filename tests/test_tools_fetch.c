/* The tools that reach beyond the workspace through their host: fetch with a made-up network, and
 * HTML as text. */
#include "tools_support.h"

#include "tools/tool_fetch.h"
#include "tools/tool_html.h"

static struct {
    struct tool_fetch_answer answer; /* given to every request */
    const char *body;
    size_t body_bytes; /* 0: strlen */
    char asked[TOOL_FETCH_URL_BYTES];
    int64_t time_ms_max;
    unsigned requests;
} network;

static result fetch(
    void *context,
    const struct tool_fetch_request *request,
    struct tool_fetch_answer *out,
    struct error *error
) {
    assert_ptr_equal(context, &network);
    assert_true(request->bytes_max > 0 && request->cancel_fd >= 0);
    network.requests += 1;
    network.time_ms_max = request->time_ms_max;
    (void)snprintf(network.asked, sizeof network.asked, "%s", request->url);
    struct buffer body = out->body;
    *out = network.answer;
    out->body = body;
    size_t bytes = network.body_bytes != 0 ? network.body_bytes : strlen(network.body);
    return buffer_append(&out->body, view_of(network.body, bytes), error);
}

static int setup(void **state) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    struct tool_context_options options = {
        .set = tool_set_all(), .fetch = fetch, .fetch_context = &network};
    bench_open(bench, NULL, &options);
    memset(&network, 0, sizeof network);
    network.answer.status = 200;
    network.body = "";
    *state = bench;
    return 0;
}

static int teardown(void **state) {
    bench_close(*state);
    free(*state);
    return 0;
}

static void expect(
    struct bench *bench,
    const char *type,
    const char *body,
    enum tool_status status,
    const char *text
) {
    (void)snprintf(network.answer.content_type, sizeof network.answer.content_type, "%s", type);
    network.body = body;
    bench_expect(bench, "fetch", "{\"url\":\"https://example.org/a\"}", status, text);
}

static void text_is_shown_as_it_is(void **state) {
    struct bench *bench = *state;
    expect(
        bench,
        "text/plain; charset=utf-8",
        "one\ntwo\x1b[2J\n",
        TOOL_OK,
        "[HTTP 200, text/plain; charset=utf-8]\none\ntwo\\x1b[2J"
    );
    assert_string_equal(network.asked, "https://example.org/a");
    assert_in_range(network.time_ms_max, 1, 60000);
    expect(
        bench, "application/json", "{\"a\":1}", TOOL_OK, "[HTTP 200, application/json]\n{\"a\":1}"
    );
    expect(bench, "application/x+json", "{}", TOOL_OK, "[HTTP 200, application/x+json]\n{}");
    expect(bench, "text/plain", "", TOOL_OK, "[HTTP 200, text/plain]");
    expect(
        bench,
        "text/plain; charset=ISO-8859-1",
        "caf\xe9",
        TOOL_OK,
        "[HTTP 200, text/plain; charset=ISO-8859-1]\ncaf\xC3\xA9"
    );
    expect(bench, "text/plain", "caf\xe9!", TOOL_OK, "[HTTP 200, text/plain]\ncaf\xEF\xBF\xBD!");
    expect(bench, "", "plain", TOOL_OK, "[HTTP 200, no content type]\nplain");
    expect(bench, "", "<!DOCTYPE html><p>a<p>b", TOOL_OK, "[HTTP 200, no content type]\na\n\nb");
}

static void what_is_no_text_is_not_shown(void **state) {
    struct bench *bench = *state;
    const char *want = "[HTTP 200, image/png]\nerror: 4 bytes that are no text";
    expect(bench, "image/png", "\x89PNG", TOOL_ERROR, want);
    network.body_bytes = 3;
    expect(
        bench,
        "text/plain",
        "a\0b",
        TOOL_ERROR,
        "[HTTP 200, text/plain]\nerror: 3 bytes that are no text"
    );
    expect(
        bench,
        "",
        "a\0b",
        TOOL_ERROR,
        "[HTTP 200, no content type]\nerror: 3 bytes that are no text"
    );
    network.body_bytes = 2;
    expect(
        bench, "", "\xff\xfe....", TOOL_OK, "[HTTP 200, no content type]\n\xEF\xBF\xBD\xEF\xBF\xBD"
    );
}

static void status_redirection_and_cut_are_told(void **state) {
    struct bench *bench = *state;
    network.answer.status = 404;
    expect(bench, "text/plain", "gone", TOOL_ERROR, "error: [HTTP 404, text/plain]\ngone");
    network.answer.status = 200;
    network.answer.is_cut = true;
    (void)snprintf(network.answer.url, sizeof network.answer.url, "https://example.org/b");
    expect(
        bench,
        "text/plain",
        "x",
        TOOL_OK,
        "[HTTP 200, text/plain, from https://example.org/b, cut]\nx"
    );
}

static void failures_are_told_with_their_reason(void **state) {
    struct bench *bench = *state;
    static const struct {
        enum tool_fetch_end end;
        enum tool_status status;
    } cases[] = {
        {TOOL_FETCH_REFUSED, TOOL_REFUSED},
        {TOOL_FETCH_FAILED, TOOL_ERROR},
        {TOOL_FETCH_TIMEOUT, TOOL_TIMEOUT},
        {TOOL_FETCH_CANCELLED, TOOL_CANCELLED},
    };
    (void)snprintf(network.answer.reason, sizeof network.answer.reason, "why\x1b");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        network.answer.end = cases[i].end;
        expect(bench, "", "", cases[i].status, "error: why\\x1b");
    }
}

static void addresses_that_are_none_are_never_asked_for(void **state) {
    struct bench *bench = *state;
    static const char *const urls[] = {
        "",
        "example.org",
        "ftp://example.org/",
        "file:///etc/passwd",
        "HTTP://example.org",
        "http://",
        "http:///path",
        "https://?x",
        "http://user:secret@example.org/",
        "http://example.org@other.org/",
        "http://example.org/a b",
        "http://example.org/\\n\\nHost: x",
        "http://example.org\\\\@other.org/",
        "http://ex\xC3\xA4mple.org/",
    };
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        char arguments[200];
        (void)snprintf(arguments, sizeof arguments, "{\"url\":\"%s\"}", urls[i]);
        bench_expect_part(
            bench, "fetch", arguments, TOOL_REFUSED, "error: the URL cannot be used: "
        );
    }
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, 10000);
    MUST(buffer_append_text(&text, "{\"url\":\"http://example.org/", &must_error));
    for (size_t i = 0; i < 3000; i++) {
        MUST(buffer_append_byte(&text, 'x', &must_error));
    }
    MUST(buffer_append_text(&text, "\"}", &must_error));
    bench_expect_part(bench, "fetch", buffer_text(&text), TOOL_REFUSED, "too long");
    assert_int_equal(network.requests, 0);
    // A fragment is not sent; user and password may look like anything behind the host.
    bench_call(bench, "fetch", "{\"url\":\"http://example.org/a@b?c=d@e#f\"}");
    assert_string_equal(network.asked, "http://example.org/a@b?c=d@e");
}

static void without_a_way_out_it_is_refused(void **state) {
    (void)state;
    struct bench bench;
    struct tool_context_options options = {.set = tool_set_all()};
    bench_open(&bench, NULL, &options);
    bench_expect(
        &bench,
        "fetch",
        "{\"url\":\"https://example.org/\"}",
        TOOL_REFUSED,
        "error: nothing can be fetched here: no network is allowed"
    );
    bench_close(&bench);
}

static void long_documents_are_cut_and_kept(void **state) {
    struct bench *bench = *state;
    CLEANUP(free_cleanup) char *text = malloc(200001);
    assert_non_null(text);
    memset(text, 'x', 200000);
    text[200000] = '\0';
    for (size_t i = 99; i < 200000; i += 100) {
        text[i] = '\n';
    }
    network.body = text;
    bench_call(bench, "fetch", "{\"url\":\"https://example.org/\"}");
    assert_true(bench->result.text_is_truncated && bench->result.text.length < 40000);
    assert_int_equal(bench->result.output.length, 200000);
    bench_call(bench, "read", "{\"path\":\"output:1\",\"offset\":1900}");
    assert_int_equal(bench->result.status, TOOL_OK);
}

/* ---- HTML ----------------------------------------------------------------------------------- */

static void html_becomes_what_a_reader_sees(void **state) {
    (void)state;
    static const struct {
        const char *html;
        const char *text;
    } cases[] = {
        {"", ""},
        {"a <b>b</b>\n\n c", "a b c"},
        {"<p>one</p>\n<p>two", "one\n\ntwo"},
        {"<div><div>a</div></div><div>b</div>", "a\nb"},
        {"a<br>b<br/>c", "a\nb\nc"},
        {"<h1>T</h1>x<h2 class='y'>U</h2>", "# T\n\nx\n\n## U"},
        {"<ul><li>a<li><p>b</p></li></ul>c", "- a\n\n- b\n\nc"},
        {"<title>t</title><script>if (a < b) \"</p>\" </script>x<STYLE>p{}</style >y", "t\n\nxy"},
        {"<script>never closed", ""},
        {"a<!-- <p>b</p> -->c<!-- open", "ac"},
        {"&lt;p&gt; &amp;amp; &#65;&#x42; &nbsp;&eacute;&unknown; &; & &#xd800;&#0;&#99999999999;",
         "<p> &amp; AB \xC3\xA9&unknown; &; & \xEF\xBF\xBD\xEF\xBF\xBD&#99999999999;"},
        {"<a href=\"/x?a=1\">link</a>, <a href='#f'>no</a> <a href=javascript:x()>n</a>",
         "link (/x?a=1), no n"},
        {"<a href=http://e.org/>open", "open (http://e.org/)"},
        {"<img src=a alt=\"a cat\"> <img src=b>", "[a cat]"},
        {"<pre>a\n  b\n\n\n c</pre>d", "a\n  b\n\n c\n\nd"},
        {"<table><tr><td>a<td>b</tr><tr><th>c</th><td>d</td></tr></table>", "a | b\nc | d"},
        {"1 < 2 <3 a<b", "1 < 2 <3 a"},
        {"<p title=\"a>b\">x", "x"},
        {"<p it's>x", "x"},
        {"<", "<"},
        {"<a", ""},
        {"&", "&"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
        buffer_init(&text, 10000);
        MUST(tool_html_text(view_of_text(cases[i].html), &text, &must_error));
        assert_string_equal(buffer_text(&text), cases[i].text);
    }
}

static void html_can_be_had_raw(void **state) {
    struct bench *bench = *state;
    expect(
        bench,
        "text/html; charset=utf-8",
        "<p>a<p>b",
        TOOL_OK,
        "[HTTP 200, text/html; charset=utf-8]\na\n\nb"
    );
    bench_expect(
        bench,
        "fetch",
        "{\"url\":\"https://example.org/\",\"raw\":true}",
        TOOL_OK,
        "[HTTP 200, text/html; charset=utf-8]\n<p>a<p>b"
    );
}

static void other_dialect_has_another_name_for_it(void **state) {
    (void)state;
    memset(&network, 0, sizeof network);
    network.answer.status = 200;
    network.body = "x";
    struct bench bench;
    struct tool_context_options options = {
        .set = tool_set_all(),
        .dialect = TOOL_DIALECT_CLAUDE,
        .fetch = fetch,
        .fetch_context = &network,
    };
    bench_open(&bench, NULL, &options);
    bench_expect(
        &bench,
        "WebFetch",
        "{\"url\":\"https://example.org/\",\"prompt\":\"all\"}",
        TOOL_OK,
        "[HTTP 200, no content type]\nx"
    );
    bench_close(&bench);
}

#define BENCH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        BENCH_TEST(text_is_shown_as_it_is),
        BENCH_TEST(what_is_no_text_is_not_shown),
        BENCH_TEST(status_redirection_and_cut_are_told),
        BENCH_TEST(failures_are_told_with_their_reason),
        BENCH_TEST(addresses_that_are_none_are_never_asked_for),
        cmocka_unit_test(without_a_way_out_it_is_refused),
        BENCH_TEST(long_documents_are_cut_and_kept),
        cmocka_unit_test(html_becomes_what_a_reader_sees),
        BENCH_TEST(html_can_be_had_raw),
        cmocka_unit_test(other_dialect_has_another_name_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
