/* What the list allows, which addresses are public, and what the proxy takes for a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include "runtime/network_rules.h"
#include "runtime/proxy_request.h"

static void hosts_are_read_in_their_usual_forms(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const char *host; /* null: refused */
        unsigned port;
        bool is_address;
    } cases[] = {
        {"example.com", "example.com", 80, false},
        {"EXAMPLE.com.:8443", "example.com", 8443, false},
        {"a_b.x-y.io:1", "a_b.x-y.io", 1, false},
        {"127.0.0.1:80", "127.0.0.1", 80, true},
        {"[::1]:443", "::1", 443, true},
        {"[0:0::0:0:1]", "::1", 80, true},
        {"1.2.3.4.example", "1.2.3.4.example", 80, false},
        {"0xy", "0xy", 80, false},
        {"127.0.0.1.", NULL, 0, false}, // what resolvers take for an address is no name
        {"127.1", NULL, 0, false},
        {"2130706433", NULL, 0, false},
        {"0x7f.0.0.1", NULL, 0, false},
        {"a.0X7F", NULL, 0, false},
        {"a.0x", NULL, 0, false},
        {"256.0.0.1", NULL, 0, false},
        {"", NULL, 0, false},
        {":80", NULL, 0, false},
        {"a:", NULL, 0, false},
        {"a:0", NULL, 0, false},
        {"a:65536", NULL, 0, false},
        {"a:080808", NULL, 0, false},
        {"a:+1", NULL, 0, false},
        {"a:1:2", NULL, 0, false},
        {"::1", NULL, 0, false},
        {"[::1", NULL, 0, false},
        {"[]", NULL, 0, false},
        {"[127.0.0.1]", NULL, 0, false},
        {"[::1%lo]", NULL, 0, false},
        {"user@example.com", NULL, 0, false},
        {"a..b", NULL, 0, false},
        {".", NULL, 0, false},
        {".a", NULL, 0, false},
        {"-a", NULL, 0, false},
        {"a-.b", NULL, 0, false},
        {"a b", NULL, 0, false},
        {"a/b", NULL, 0, false},
        {"a%2e", NULL, 0, false},
        {"\xc3\xa4.de", NULL, 0, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct network_host host;
        result parsed = network_host_parse(view_of_text(cases[i].text), 80, &host, NULL);
        if (is_ok(parsed) != (cases[i].host != NULL)) {
            fail_msg("'%s' was %s", cases[i].text, is_ok(parsed) ? "taken" : "refused");
        }
        if (is_ok(parsed)) {
            assert_string_equal(host.text, cases[i].host);
            assert_int_equal(host.port, cases[i].port);
            assert_int_equal(host.is_address, cases[i].is_address);
        }
    }
    struct network_host host;
    struct view with_nul = view_of("1.2.3.4\0x", 9);
    assert_true(is_failed(network_host_parse(with_nul, 80, &host, NULL)));
    assert_true(is_failed(network_host_parse(view_of_text("example.com"), 0, &host, NULL)));
    char longest[300];
    memset(longest, 'a', sizeof longest);
    assert_true(is_failed(network_host_parse(view_of(longest, 64), 80, &host, NULL)));
    for (size_t i = 60; i < sizeof longest; i += 61) {
        longest[i] = '.';
    }
    assert_true(is_ok(network_host_parse(view_of(longest, 253), 80, &host, NULL)));
    assert_true(is_failed(network_host_parse(view_of(longest, 260), 80, &host, NULL)));
}

static void list_allows_what_it_names_and_nothing_else(void **state) {
    (void)state;
    static const struct {
        const char *list;
        const char *host;
        bool allowed;
    } cases[] = {
        {"example.com", "example.com:80", true},
        {"example.com", "example.com:443", true},
        {"example.com", "example.com:22", false},
        {"example.com:22", "example.com:22", true},
        {"example.com:22", "example.com:443", false},
        {"Example.COM", "eXample.com:443", true},
        {"example.com", "www.example.com:443", false},
        {"example.com", "notexample.com:443", false},
        {"example.com", "example.com.evil.org:443", false},
        {"*.example.com", "www.example.com:443", true},
        {"*.example.com", "a.b.example.com:443", true},
        {"*.example.com", "example.com:443", false},
        {"*.example.com", "xexample.com:443", false},
        {"*.example.com:8080", "www.example.com:8080", true},
        {"a.org, b.org", "b.org:443", true},
        {"127.0.0.1:8080", "127.0.0.1:8080", true},
        {"127.0.0.1:8080", "127.0.0.1:80", false},
        {"[::1]:8080", "[0::1]:8080", true},
        {"[::1]:8080", "127.0.0.1:8080", false},
        {"", "example.com:443", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(network_rules_cleanup) struct network_rules *rules = NULL;
        struct network_host host;
        assert_true(is_ok(network_rules_parse(&rules, view_of_text(cases[i].list), NULL)));
        assert_true(is_ok(network_host_parse(view_of_text(cases[i].host), 0, &host, NULL)));
        if (network_rules_allow(rules, &host) != cases[i].allowed) {
            fail_msg("'%s' and %s", cases[i].list, cases[i].host);
        }
    }
    static const char *const wrong[] = {
        "*",
        "*.com",
        "*.",
        "*.*.a.b",
        "a.*.b",
        "http://a.b",
        "a.b/c",
        "a.b,",
        ",",
        "*.1.2.3.4",
        "*.a.1",
        "127.0.0.1.",
        "a b",
        "a:99999",
        "*"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct network_rules *rules = NULL;
        struct error error = {0};
        if (is_ok(network_rules_parse(&rules, view_of_text(wrong[i]), &error))) {
            fail_msg("'%s' was taken", wrong[i]);
        }
    }
}

static struct sockaddr_storage address_of(const char *text) {
    struct network_host host;
    char bracketed[80];
    bool is_v6 = strchr(text, ':') != NULL;
    (void)snprintf(bracketed, sizeof bracketed, is_v6 ? "[%s]" : "%s", text);
    assert_true(is_ok(network_host_parse(view_of_text(bracketed), 1, &host, NULL)));
    assert_true(host.is_address);
    return host.address;
}

static void only_the_public_internet_is_public(void **state) {
    (void)state;
    static const char *const public[] = {
        "1.1.1.1",         "93.184.216.34",   "9.255.255.255",   "11.0.0.0",
        "100.63.255.255",  "100.128.0.0",     "126.255.255.255", "128.0.0.0",
        "169.253.255.255", "172.15.255.255",  "172.32.0.0",      "192.167.255.255",
        "192.169.0.0",     "198.17.255.255",  "198.20.0.0",      "223.255.255.255",
        "2606:4700::1111", "2a00:1450::200e", "::ffff:1.1.1.1",  "64:ff9b::101:101",
        "2001:200::1",     "168.63.129.17"};
    static const char *const special[] = {
        "0.0.0.0",
        "0.255.255.255",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.255",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.5",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "168.63.129.16",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:db8::1",
        "2001::1",
        "2002:7f00:1::",
        "3fff::1",
        "100::1",
        "4000::1"};
    for (size_t i = 0; i < COUNT_OF(public); i++) {
        struct sockaddr_storage address = address_of(public[i]);
        if (!network_address_is_public((const struct sockaddr *)&address)) {
            fail_msg("%s is public", public[i]);
        }
    }
    for (size_t i = 0; i < COUNT_OF(special); i++) {
        struct sockaddr_storage address = address_of(special[i]);
        if (network_address_is_public((const struct sockaddr *)&address)) {
            fail_msg("%s is not public", special[i]);
        }
    }
    struct sockaddr_storage other = {.ss_family = AF_UNIX};
    assert_false(network_address_is_public((const struct sockaddr *)&other));
}

static void listed_address_is_reachable_at_its_port(void **state) {
    (void)state;
    CLEANUP(network_rules_cleanup) struct network_rules *rules = NULL;
    struct view list = view_of_text("127.0.0.1:8080,[::1]:9,intern.example.com");
    assert_true(is_ok(network_rules_parse(&rules, list, NULL)));
    struct sockaddr_storage v4 = address_of("127.0.0.1");
    struct sockaddr_storage v6 = address_of("::1");
    struct sockaddr_storage mapped = address_of("::ffff:127.0.0.1");
    struct sockaddr_storage next = address_of("127.0.0.2");
    const struct sockaddr *loopback = (const struct sockaddr *)&v4;
    assert_true(network_rules_allow_address(rules, loopback, 8080));
    assert_false(network_rules_allow_address(rules, loopback, 443));
    assert_true(network_rules_allow_address(rules, (const struct sockaddr *)&v6, 9));
    assert_false(network_rules_allow_address(rules, (const struct sockaddr *)&mapped, 8080));
    assert_false(network_rules_allow_address(rules, (const struct sockaddr *)&next, 8080));
}

/* ---- requests ------------------------------------------------------------------------------- */

static void request_is_written_anew(void **state) {
    (void)state;
    static const struct {
        const char *in;
        const char *out;
        unsigned body;
    } cases[] = {
        {"GET http://Example.com HTTP/1.1\r\n\r\n",
         "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n",
         0},
        {"GET http://a.b:8080?q=1 HTTP/1.0\r\nHost: evil\r\nAccept:  x\t\r\n\r\n",
         "GET /?q=1 HTTP/1.0\r\nHost: a.b:8080\r\nAccept: x\r\nConnection: close\r\n\r\n",
         0},
        {"POST HTTP://[::1]:81/x HTTP/1.1\r\ncontent-length: 5\r\nUpgrade: h2c\r\nTE: trailers\r\n"
         "Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nKeep-Alive: 5\r\n\r\n",
         "POST /x HTTP/1.1\r\nHost: [::1]:81\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
         5},
        {"GET http://a.b/ HTTP/1.1\r\nConnection: x-one ,X-Two\r\nX-One: 1\r\nx-two: 2\r\n"
         "X-Three: 3\r\n\r\n",
         "GET / HTTP/1.1\r\nHost: a.b\r\nX-Three: 3\r\nConnection: close\r\n\r\n",
         0},
        {"PUT http://a.b/ HTTP/1.1\r\nConnection: content-length, host\r\nContent-Length: "
         "7\r\n\r\n",
         "PUT / HTTP/1.1\r\nHost: a.b\r\nContent-Length: 7\r\nConnection: close\r\n\r\n",
         7},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CLEANUP(proxy_request_deinit) struct proxy_request request = {.body_bytes = 0};
        struct error error = {0};
        if (is_failed(proxy_request_parse(view_of_text(cases[i].in), &request, &error))) {
            fail_msg("%s: %s", cases[i].in, error.message);
        }
        assert_string_equal(buffer_text(&request.head), cases[i].out);
        assert_int_equal(request.body_bytes, cases[i].body);
        assert_false(request.is_tunnel);
    }
    CLEANUP(proxy_request_deinit) struct proxy_request tunnel = {.body_bytes = 0};
    struct view connect = view_of_text("CONNECT a.b:443 HTTP/1.1\r\nHost: evil:1\r\n\r\n");
    assert_true(is_ok(proxy_request_parse(connect, &tunnel, NULL)));
    assert_true(tunnel.is_tunnel);
    assert_string_equal(tunnel.host.text, "a.b");
    assert_int_equal(tunnel.host.port, 443);
}

static void ambiguous_requests_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *in;
        int status;
    } cases[] = {
        {"\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a.b\r\n\r\n", 400},
        {"GET https://a.b/ HTTP/1.1\r\n\r\n", 400},
        {"GET http:///x HTTP/1.1\r\n\r\n", 400},
        {"GET http://u:p@a.b/ HTTP/1.1\r\n\r\n", 400},
        {"GET http://a.b\\@c.d/ HTTP/1.1\r\n\r\n", 400},
        {"GET http://a.b/ x HTTP/1.1\r\n\r\n", 501},
        {"GET  http://a.b/ HTTP/1.1\r\n\r\n", 501},
        {"GET http://a.b/#f HTTP/1.1\r\n\r\n", 400},
        {"GET http://a.b/\x01 HTTP/1.1\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1 \r\n\r\n", 501},
        {"GET http://a.b/ HTTP/2\r\n\r\n", 501},
        {"G ET http://a.b/ HTTP/1.1\r\n\r\n", 501},
        {"G(T http://a.b/ HTTP/1.1\r\n\r\n", 400},
        {"ABCDEFGHIJKLMNOPQ http://a.b/ HTTP/1.1\r\n\r\n", 400},
        {"CONNECT a.b HTTP/1.1\r\n\r\n", 400},
        {"CONNECT http://a.b:443/ HTTP/1.1\r\n\r\n", 400},
        {"POST http://a.b/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411},
        {"POST http://a.b/ HTTP/1.1\r\nContent-Length: 3\r\nTRANSFER-ENCODING: x\r\n\r\n", 411},
        {"POST http://a.b/ HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n", 400},
        {"POST http://a.b/ HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\n", 400},
        {"POST http://a.b/ HTTP/1.1\r\nContent-Length: +3\r\n\r\n", 400},
        {"POST http://a.b/ HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
        {"POST http://a.b/ HTTP/1.1\r\nContent-Length:\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1\r\nA : b\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1\r\nA\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1\r\n folded: x\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1\r\nA: b\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1\r\nA: b\rC: d\r\n\r\n", 400},
        {"GET http://a.b/ HTTP/1.1\nA: b\r\n\r\n", 501},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct proxy_request request = {.body_bytes = 0};
        struct error error = {0};
        result parsed = proxy_request_parse(view_of_text(cases[i].in), &request, &error);
        if (is_ok(parsed) || error.foreign != cases[i].status) {
            fail_msg("%s: %d, not %d", cases[i].in, error.foreign, cases[i].status);
        }
    }
    struct error error = {0};
    struct proxy_request request = {.body_bytes = 0};
    struct buffer text;
    buffer_init(&text, 1 << 16);
    assert_true(is_ok(buffer_append_text(&text, "GET http://a.b/ HTTP/1.1\r\n", NULL)));
    for (size_t i = 0; i <= PROXY_HEADERS_MAX; i++) {
        assert_true(is_ok(buffer_append_text(&text, "a: b\r\n", NULL)));
    }
    assert_true(is_ok(buffer_append_text(&text, "\r\n", NULL)));
    assert_true(is_failed(proxy_request_parse(buffer_view(&text), &request, &error)));
    assert_int_equal(error.foreign, 431);
    buffer_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_read_in_their_usual_forms),
        cmocka_unit_test(list_allows_what_it_names_and_nothing_else),
        cmocka_unit_test(only_the_public_internet_is_public),
        cmocka_unit_test(listed_address_is_reachable_at_its_port),
        cmocka_unit_test(request_is_written_anew),
        cmocka_unit_test(ambiguous_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
