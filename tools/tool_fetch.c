/* fetch: one document of the network as text, where the host has a way to it. */
#include "tool_fetch.h"
#include "tool_html.h"
#include "tool_internal.h"

#define BODY_BYTES_MAX ((size_t)8 << 20)
#define TIME_MS_MAX    INT64_C(60000)

/* ---- address -------------------------------------------------------------------------------- */

/* Null, or what is wrong with it. The fragment is taken off: it is never sent. */
static const char *check_url(struct view given, char out[TOOL_FETCH_URL_BYTES]) {
    size_t scheme = view_starts_with(given, view_of_text("http://"))    ? 7
                    : view_starts_with(given, view_of_text("https://")) ? 8
                                                                        : 0;
    size_t end = view_find(given, view_of("#", 1), 0);
    given = view_slice(given, 0, end);
    if (scheme == 0) {
        return "it must begin with http:// or https://";
    }
    if (given.length >= TOOL_FETCH_URL_BYTES) {
        return "it is too long";
    }
    for (size_t i = 0; i < given.length; i++) {
        if (given.data[i] < 0x21 || given.data[i] > 0x7e || given.data[i] == '\\') {
            return "it has a character that must be percent-encoded";
        }
    }
    struct view rest = view_slice(given, scheme, SIZE_MAX);
    size_t host_end = 0;
    while (host_end < rest.length && rest.data[host_end] != '/' && rest.data[host_end] != '?') {
        host_end += 1;
    }
    struct view host = view_slice(rest, 0, host_end);
    if (host.length == 0 || view_find(host, view_of("@", 1), 0) != SIZE_MAX) {
        return host.length == 0 ? "it has no host" : "it must hold no user or password";
    }
    memcpy(out, given.data, given.length);
    out[given.length] = '\0';
    return NULL;
}

/* ---- content -------------------------------------------------------------------------------- */

enum content { CONTENT_TEXT, CONTENT_HTML, CONTENT_BINARY };

/* The media type without its parameters, in small letters. */
static void media_type(const char *content_type, char out[TOOL_FETCH_TYPE_BYTES]) {
    static const char small[] = "abcdefghijklmnopqrstuvwxyz";
    size_t length = strcspn(content_type, "; \t");
    for (size_t i = 0; i < length; i++) {
        char c = content_type[i];
        bool is_capital = c >= 'A' && c <= 'Z';
        out[i] = is_capital ? small[c - 'A'] : c;
    }
    out[length] = '\0';
}

static bool looks_like_html(struct view body) {
    struct view head = view_slice(body, 0, 1024);
    static const char *const signs[] = {
        "<!doctype html", "<!DOCTYPE html", "<!DOCTYPE HTML", "<html", "<HTML"};
    for (size_t i = 0; i < COUNT_OF(signs); i++) {
        if (view_find(head, view_of_text(signs[i]), 0) != SIZE_MAX) {
            return true;
        }
    }
    return false;
}

static enum content content_of(const char *content_type, struct view body) {
    static const char *const texts[] = {
        "application/json",
        "application/xml",
        "application/javascript",
        "application/x-javascript",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/x-sh",
        "application/sql",
        "application/x-ndjson"};
    char type[TOOL_FETCH_TYPE_BYTES];
    media_type(content_type, type);
    bool has_nul = memchr(body.data, '\0', view_slice(body, 0, 8192).length) != NULL;
    if (strcmp(type, "text/html") == 0 || strcmp(type, "application/xhtml+xml") == 0) {
        return CONTENT_HTML;
    }
    struct view name = view_of_text(type);
    bool is_text = view_starts_with(name, view_of_text("text/")) ||
                   view_ends_with(name, view_of_text("+json")) ||
                   view_ends_with(name, view_of_text("+xml"));
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        is_text = is_text || strcmp(type, texts[i]) == 0;
    }
    struct view head = view_slice(body, 0, 8192);
    bool is_unknown = type[0] == '\0' || strcmp(type, "application/octet-stream") == 0;
    is_text =
        is_text || (is_unknown && utf8_valid_prefix(head) + 4 > head.length); // one torn at most
    if (!is_text || has_nul) {
        return CONTENT_BINARY;
    }
    return type[0] == '\0' && looks_like_html(body) ? CONTENT_HTML : CONTENT_TEXT;
}

/* ISO 8859-1 and its like, when the server says so; what is no UTF-8 is replaced later. */
static bool is_latin(const char *content_type) {
    static const char *const names[] = {
        "iso-8859-1", "ISO-8859-1", "windows-1252", "Windows-1252", "latin1"};
    const char *charset = strstr(content_type, "charset=");
    for (size_t i = 0; charset != NULL && i < COUNT_OF(names); i++) {
        if (strstr(charset, names[i]) != NULL) {
            return true;
        }
    }
    return false;
}

static result append_latin(struct view bytes, struct buffer *out, struct error *error) {
    for (size_t i = 0; i < bytes.length; i++) {
        unsigned char encoded[4];
        size_t length = utf8_encode(bytes.data[i], encoded);
        TRY(buffer_append(out, view_of(encoded, length), error));
    }
    return OK;
}

static result write_content(
    const struct tool_fetch_answer *answer,
    bool is_raw,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer converted = {NULL, 0, 0, 0};
    buffer_init(&converted, BUFFER_CEILING_DEFAULT);
    struct view body = buffer_view(&answer->body);
    enum content content = content_of(answer->content_type, body);
    if (content == CONTENT_BINARY) {
        out->status = TOOL_ERROR;
        return buffer_append_format(
            &out->output, error, "error: %zu bytes that are no text", body.length
        );
    }
    if (is_latin(answer->content_type)) {
        TRY(append_latin(body, &converted, error));
        body = buffer_view(&converted);
    }
    return content == CONTENT_HTML && !is_raw ? tool_html_text(body, &out->output, error)
                                              : buffer_append(&out->output, body, error);
}

/* ---- the tool ------------------------------------------------------------------------------- */

static result describe_failure(
    const struct tool_fetch_answer *answer, struct tool_result *out, struct error *error
) {
    static const enum tool_status statuses[] = {
        [TOOL_FETCH_DONE] = TOOL_OK,
        [TOOL_FETCH_REFUSED] = TOOL_REFUSED,
        [TOOL_FETCH_FAILED] = TOOL_ERROR,
        [TOOL_FETCH_TIMEOUT] = TOOL_TIMEOUT,
        [TOOL_FETCH_CANCELLED] = TOOL_CANCELLED,
    };
    ASSERT((size_t)answer->end < COUNT_OF(statuses));
    return tool_answer(out, statuses[answer->end], error, "error: %s", answer->reason);
}

static result describe(
    const struct tool_context *context,
    const char *url,
    const struct tool_fetch_answer *answer,
    bool is_raw,
    struct tool_result *out,
    struct error *error
) {
    out->status = answer->status >= 400 ? TOOL_ERROR : TOOL_OK;
    CLEANUP(buffer_deinit) struct buffer head = {NULL, 0, 0, 0};
    buffer_init(&head, (size_t)3 * TOOL_FETCH_URL_BYTES);
    const char *type = answer->content_type[0] != '\0' ? answer->content_type : "no content type";
    bool is_elsewhere = answer->url[0] != '\0' && strcmp(answer->url, url) != 0;
    TRY(buffer_append_format(
        &head,
        error,
        "%s[HTTP %d, %s%s%s%s]",
        answer->status >= 400 ? "error: " : "",
        answer->status,
        type,
        is_elsewhere ? ", from " : "",
        is_elsewhere ? answer->url : "",
        answer->is_cut ? ", cut" : ""
    ));
    TRY(sandbox_sanitise(buffer_view(&head), 0, &out->text, error));
    TRY(write_content(answer, is_raw, out, error));
    out->output_bytes = out->output.length;
    if (out->output.length == 0) {
        return OK;
    }
    TRY(buffer_append_byte(&out->text, '\n', error));
    struct view raw = buffer_view(&out->output);
    return tool_append_cut(
        out, raw, tool_cut_lines(raw, context->options.text_bytes_max), 0, error
    );
}

static result run_fetch(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    char url[TOOL_FETCH_URL_BYTES];
    const char *wrong = check_url(tool_argument(arguments, "url"), url);
    if (wrong != NULL) {
        return tool_answer(out, TOOL_REFUSED, error, "error: the URL cannot be used: %s", wrong);
    }
    if (context->options.fetch == NULL) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: nothing can be fetched here: no network is allowed"
        );
    }
    int64_t left_ms = context->deadline_ms - clock_monotonic_ms(&context->options.clock);
    const struct tool_fetch_request request = {
        .url = url,
        .bytes_max = BODY_BYTES_MAX,
        .time_ms_max = left_ms < 1             ? 1
                       : left_ms < TIME_MS_MAX ? left_ms
                                               : TIME_MS_MAX,
        .cancel_fd = context->cancel_fd,
    };
    CLEANUP(free_cleanup) struct tool_fetch_answer *answer = calloc(1, sizeof *answer);
    if (answer == NULL) {
        FAIL(error, MEMORY, "no memory for an answer");
    }
    buffer_init(&answer->body, BODY_BYTES_MAX);
    bool is_raw = false;
    (void)json_as_bool(json_get(arguments, "raw"), &is_raw);
    result fetched =
        context->options.fetch(context->options.fetch_context, &request, answer, error);
    if (is_ok(fetched) && answer->end == TOOL_FETCH_DONE) {
        fetched = describe(context, url, answer, is_raw, out, error);
    } else if (is_ok(fetched)) {
        fetched = describe_failure(answer, out, error);
    }
    buffer_deinit(&answer->body);
    return fetched;
}

const struct tool_row tool_row_fetch = {
    .shown =
        {"fetch",
         "Fetch a document of the network and show it as text, where the address is allowed.",
         OBJECT_SCHEMA(
             STRING_PROPERTY("url", "address, http or https") ", " TYPED_PROPERTY(
                 "raw", "boolean", "HTML as it is instead of its text"
             ),
             "\"url\""
         ),
         TOOL_NETWORK,
         false},
    .run = run_fetch,
};
