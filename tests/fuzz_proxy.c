/* Foreign bytes as a request to the proxy, as a tunnel's first ones, as a host and as a list: what is taken must be
 * unambiguous, and what goes on to the server must be one request. */
#include "runtime/proxy_request.h"
#include "runtime/tls_hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t count_of(struct view whole, const char *text) {
    size_t count = 0;
    for (size_t at = view_find(whole, view_of_text(text), 0); at != SIZE_MAX;
         at = view_find(whole, view_of_text(text), at + 1)) {
        count += 1;
    }
    return count;
}

static void check_host(const struct network_host *host) {
    char text[NETWORK_HOST_BYTES + 2];
    bool is_v6 = host->is_address && host->address.ss_family == AF_INET6;
    (void)snprintf(text, sizeof text, is_v6 ? "[%s]" : "%s", host->text);
    struct network_host again;
    ASSERT(is_ok(network_host_parse(view_of_text(text), host->port, &again, NULL)));
    ASSERT(strcmp(again.text, host->text) == 0 && again.is_address == host->is_address);
    ASSERT(strpbrk(host->text, "/@\\ \r\n%?#") == NULL);
}

static void check_request(struct view bytes) {
    size_t length = proxy_head_length(bytes);
    if (length == SIZE_MAX || length > PROXY_HEAD_BYTES_MAX) {
        return;
    }
    CLEANUP(proxy_request_deinit) struct proxy_request request = {.body_bytes = 0};
    struct error error;
    if (is_failed(proxy_request_parse(view_slice(bytes, 0, length), &request, &error))) {
        ASSERT(error.foreign >= 400 && error.foreign < 600);
        ASSERT(utf8_is_valid(view_of_text(error.message)));
        return;
    }
    check_host(&request.host);
    struct view head = buffer_view(&request.head);
    if (request.is_tunnel) {
        ASSERT(head.length == 0 && request.body_bytes == 0);
        return;
    }
    ASSERT(view_ends_with(head, view_of_text("\r\nConnection: close\r\n\r\n")));
    ASSERT(count_of(head, "\r\n\r\n") == 1 && count_of(head, "\r\nHost: ") == 1);
    ASSERT(count_of(head, "\r\n") == count_of(head, "\n"));
    ASSERT(count_of(head, "\r\n") == count_of(head, "\r"));
    ASSERT((request.body_bytes == 0) || count_of(head, "\r\nContent-Length: ") == 1);
    ASSERT(strcasestr(buffer_text(&request.head), "\ntransfer-encoding:") == NULL);
}

/* More bytes never change what was known. */
static void check_hello(struct view bytes) {
    char name[TLS_NAME_BYTES];
    char early[TLS_NAME_BYTES];
    enum tls_hello whole = tls_hello_read(bytes, name);
    ASSERT(whole == TLS_HELLO_DONE || name[0] == '\0');
    for (size_t length = 0; length < bytes.length; length += 1 + length / 8) {
        enum tls_hello part = tls_hello_read(view_slice(bytes, 0, length), early);
        ASSERT(part == TLS_HELLO_MORE || part == whole);
        ASSERT(part == TLS_HELLO_MORE || strcmp(early, name) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_hello(view_of(data, size));
    struct view bytes = view_of(data, size);
    struct network_host host;
    CLEANUP(network_rules_cleanup) struct network_rules *rules = NULL;
    check_request(bytes);
    if (is_ok(network_host_parse(bytes, 443, &host, NULL))) {
        check_host(&host);
    }
    if (is_ok(network_rules_parse(&rules, bytes, NULL)) && size == 0) {
        ASSERT(!network_rules_allow(rules, &(struct network_host){.text = "a", .port = 80}));
    }
    return 0;
}
