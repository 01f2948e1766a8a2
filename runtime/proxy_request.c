/* RFC 9112 with everything optional refused: no folded lines, no bare CR or LF, no blanks before a
 * colon. Only absolute-form and CONNECT are a proxy's requests. */
#include "proxy_request.h"

#include <strings.h>

#define REFUSE(status, ...) FAIL_FOREIGN(error, INVALID_INPUT, (status), __VA_ARGS__)

void proxy_request_deinit(struct proxy_request *request) {
    buffer_deinit(&request->head);
}

size_t proxy_head_length(struct view bytes) {
    size_t at = view_find(bytes, view_of_text("\r\n\r\n"), 0);
    return at == SIZE_MAX ? SIZE_MAX : at + 4;
}

static bool is_token(struct view text) {
    static const char special[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < text.length; i++) {
        unsigned char byte = text.data[i];
        bool is_plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                        (byte >= 'A' && byte <= 'Z');
        if (!is_plain && (byte == '\0' || strchr(special, byte) == NULL)) {
            return false;
        }
    }
    return text.length > 0;
}

static bool is_name(struct view text, const char *name) {
    size_t length = strlen(name);
    return text.length == length && strncasecmp((const char *)text.data, name, length) == 0;
}

static struct view trim(struct view text) {
    while (text.length > 0 && (text.data[0] == ' ' || text.data[0] == '\t')) {
        text = view_slice(text, 1, SIZE_MAX);
    }
    while (text.length > 0 &&
           (text.data[text.length - 1] == ' ' || text.data[text.length - 1] == '\t')) {
        text.length -= 1;
    }
    return text;
}

/* Takes the next line off; false at the empty one. Each line ends with CR LF, as the caller of the
 * parser made sure for the last. */
static bool next_line(struct view *rest, struct view *line) {
    size_t end = view_find(*rest, view_of_text("\r\n"), 0);
    ASSERT(end != SIZE_MAX);
    *line = view_slice(*rest, 0, end);
    *rest = view_slice(*rest, end + 2, SIZE_MAX);
    return line->length > 0;
}

static bool has_control(struct view text) {
    for (size_t i = 0; i < text.length; i++) {
        if ((text.data[i] < 0x20 && text.data[i] != '\t') || text.data[i] == 0x7f) {
            return true;
        }
    }
    return false;
}

struct header {
    struct view name;
    struct view value;
};

struct headers {
    struct header items[PROXY_HEADERS_MAX];
    size_t count;
};

static result read_headers(struct view rest, struct headers *out, struct error *error) {
    struct view line;
    while (next_line(&rest, &line)) {
        size_t colon = view_find(line, view_of_text(":"), 0);
        struct view name = view_slice(line, 0, colon == SIZE_MAX ? 0 : colon);
        if (!is_token(name) || has_control(line)) { // folded lines begin with a blank
            REFUSE(400, "a header is malformed");
        }
        if (out->count >= PROXY_HEADERS_MAX) {
            REFUSE(431, "more than %d headers", PROXY_HEADERS_MAX);
        }
        out->items[out->count++] =
            (struct header){name, trim(view_slice(line, colon + 1, SIZE_MAX))};
    }
    return OK;
}

/* Whether a Connection header names this one as meant for the proxy alone. */
static bool is_nominated(const struct headers *headers, struct view name) {
    for (size_t i = 0; i < headers->count; i++) {
        if (!is_name(headers->items[i].name, "connection")) {
            continue;
        }
        struct view list = headers->items[i].value;
        for (size_t from = 0; from <= list.length;) {
            size_t comma = view_find(list, view_of_text(","), from);
            size_t end = comma == SIZE_MAX ? list.length : comma;
            struct view item = trim(view_slice(list, from, end - from));
            if (item.length == name.length && item.length > 0 &&
                strncasecmp((const char *)item.data, (const char *)name.data, name.length) == 0) {
                return true;
            }
            from = end + 1;
        }
    }
    return false;
}

static bool is_for_the_proxy(const struct headers *headers, struct view name) {
    static const char *const own[] = {
        "host", // written anew
        "content-length",
        "connection",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
    };
    for (size_t i = 0; i < COUNT_OF(own); i++) {
        if (is_name(name, own[i])) {
            return true;
        }
    }
    return is_nominated(headers, name);
}

static result
read_body_length(const struct headers *headers, bool *has, uint64_t *out, struct error *error) {
    *has = false;
    *out = 0;
    for (size_t i = 0; i < headers->count; i++) {
        const struct header *header = &headers->items[i];
        if (is_name(header->name, "transfer-encoding")) {
            REFUSE(411, "Transfer-Encoding is not spoken here; send a Content-Length");
        }
        if (!is_name(header->name, "content-length")) {
            continue;
        }
        if (*has || header->value.length > 18 || !parse_u64(header->value, out)) {
            REFUSE(400, "Content-Length is not one number");
        }
        *has = true;
    }
    return OK;
}

/* Writes the head for the server: path and query of the target, our own Host and Connection. */
static result write_head(
    struct proxy_request *request,
    struct view path,
    struct view version,
    const struct headers *headers,
    struct error *error
) {
    struct buffer *head = &request->head;
    const struct network_host *host = &request->host;
    bool has_body = false;
    TRY(read_body_length(headers, &has_body, &request->body_bytes, error));
    const char *slash = path.length > 0 && path.data[0] == '/' ? "" : "/";
    TRY(buffer_append_format(head, error, "%s %s", request->method, slash));
    TRY(buffer_append(head, path, error));
    bool is_v6 = host->is_address && host->address.ss_family == AF_INET6;
    const char *open = is_v6 ? "[" : "";
    const char *close = is_v6 ? "]" : "";
    TRY(buffer_append_format(
        head, error, " %.8s\r\nHost: %s%s%s", (const char *)version.data, open, host->text, close
    ));
    if (host->port != 80) {
        TRY(buffer_append_format(head, error, ":%u", (unsigned)host->port));
    }
    TRY(buffer_append_text(head, "\r\n", error));
    for (size_t i = 0; i < headers->count; i++) {
        const struct header *header = &headers->items[i];
        if (is_for_the_proxy(headers, header->name)) {
            continue;
        }
        TRY(buffer_append(head, header->name, error));
        TRY(buffer_append_text(head, ": ", error));
        TRY(buffer_append(head, header->value, error));
        TRY(buffer_append_text(head, "\r\n", error));
    }
    if (has_body) {
        unsigned long long bytes = request->body_bytes;
        TRY(buffer_append_format(head, error, "Content-Length: %llu\r\n", bytes));
    }
    return buffer_append_text(head, "Connection: close\r\n\r\n", error);
}

/* http://HOST[:PORT][/PATH][?QUERY] */
static result split_target(
    struct view target, struct network_host *host, struct view *path, struct error *error
) {
    static const char scheme[] = "http://";
    size_t bytes = sizeof scheme - 1;
    if (target.length <= bytes || strncasecmp((const char *)target.data, scheme, bytes) != 0) {
        REFUSE(400, "a proxy takes CONNECT and http:// requests");
    }
    struct view rest = view_slice(target, bytes, SIZE_MAX);
    size_t end = 0;
    while (end < rest.length && rest.data[end] != '/' && rest.data[end] != '?') {
        end += 1;
    }
    if (is_failed(network_host_parse(view_slice(rest, 0, end), 80, host, error))) {
        REFUSE(400, "the target's host is malformed");
    }
    *path = view_slice(rest, end, SIZE_MAX);
    return OK;
}

/* METHOD SP TARGET SP VERSION, printable and with single blanks. */
static result
split_line(struct view line, struct proxy_request *out, struct view parts[2], struct error *error) {
    size_t first = view_find(line, view_of_text(" "), 0);
    size_t second = first == SIZE_MAX ? SIZE_MAX : view_find(line, view_of_text(" "), first + 1);
    if (second == SIZE_MAX || first > PROXY_METHOD_BYTES_MAX ||
        !is_token(view_slice(line, 0, first))) {
        REFUSE(400, "the request line is malformed");
    }
    memcpy(out->method, line.data, first);
    out->method[first] = '\0';
    parts[0] = view_slice(line, first + 1, second - first - 1);
    parts[1] = view_slice(line, second + 1, SIZE_MAX);
    for (size_t i = 0; i < parts[0].length; i++) {
        unsigned char byte = parts[0].data[i];
        if (byte <= 0x20 || byte >= 0x7f || byte == '#') {
            REFUSE(400, "the target is malformed");
        }
    }
    if (!view_equals_text(parts[1], "HTTP/1.1") && !view_equals_text(parts[1], "HTTP/1.0")) {
        REFUSE(501, "only HTTP/1.1 and 1.0 are spoken here");
    }
    return OK;
}

static result
parse(struct view head, struct headers *headers, struct proxy_request *out, struct error *error) {
    struct view rest = head;
    struct view line;
    struct view parts[2];
    if (!next_line(&rest, &line)) {
        REFUSE(400, "the request line is empty");
    }
    TRY(split_line(line, out, parts, error));
    TRY(read_headers(rest, headers, error));
    out->is_tunnel = strcmp(out->method, "CONNECT") == 0;
    if (out->is_tunnel) {
        if (is_failed(network_host_parse(parts[0], 0, &out->host, error))) {
            REFUSE(400, "CONNECT takes HOST:PORT");
        }
        return OK;
    }
    struct view path;
    TRY(split_target(parts[0], &out->host, &path, error));
    return write_head(out, path, parts[1], headers, error);
}

result proxy_request_parse(struct view head, struct proxy_request *out, struct error *error) {
    ASSERT(view_ends_with(head, view_of_text("\r\n\r\n")));
    CLEANUP(free_cleanup) struct headers *headers = calloc(1, sizeof *headers);
    if (headers == NULL) {
        FAIL(error, MEMORY, "no memory for a request");
    }
    struct proxy_request request = {.body_bytes = 0};
    buffer_init(&request.head, 2 * PROXY_HEAD_BYTES_MAX);
    result parsed = parse(head, headers, &request, error);
    if (is_failed(parsed)) {
        proxy_request_deinit(&request);
        return parsed;
    }
    *out = request;
    return OK;
}
