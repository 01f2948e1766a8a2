/* The proxy behind a relay that the test plays itself: what gets through, what does not, and that
 * nothing holds it up. The sandbox in front of it has tests of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "loopback_server.h"
#include "runtime/proxy.h"

static struct network_rules *rules;
static struct proxy *proxy;
static int relay_fd = -1;

/* What callbacks saw; written by the proxy's threads one at a time. */
static struct {
    pthread_mutex_t lock;
    unsigned allowed;
    unsigned refused;
    char reason[300];
    atomic_uint resolved;
    atomic_int resolve_ms; /* how long the resolver takes */
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

static void note_decision(void *context, const struct network_decision *decision) {
    (void)context;
    (void)pthread_mutex_lock(&seen.lock);
    *(decision->is_allowed ? &seen.allowed : &seen.refused) += 1;
    (void)snprintf(seen.reason, sizeof seen.reason, "%s", decision->reason);
    (void)pthread_mutex_unlock(&seen.lock);
}

/* Every name is 127.0.0.1; "both.test" has a private address before it, "none.test" none. */
static result resolve(
    void *context, const char *host, uint16_t port, struct name_addresses *out, struct error *error
) {
    (void)context;
    (void)port;
    atomic_fetch_add(&seen.resolved, 1);
    (void)usleep((useconds_t)atomic_load(&seen.resolve_ms) * 1000);
    if (strcmp(host, "none.test") == 0) {
        FAIL(error, NOT_FOUND, "no such name");
    }
    memset(out, 0, sizeof *out);
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (strcmp(host, "both.test") == 0) {
        address.sin_addr.s_addr = htonl(0x0a000001);
        memcpy(&out->items[out->count++], &address, sizeof address);
    }
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memcpy(&out->items[out->count++], &address, sizeof address);
    return OK;
}

static int open_relay(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, proxy_socket(proxy), strlen(proxy_socket(proxy)));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* `text` with the port in place of each '@'. */
static void with_port(char *out, size_t bytes, const char *text, uint16_t port) {
    size_t used = 0;
    for (const char *at = text; *at != '\0'; at++) {
        int length = *at == '@' ? snprintf(out + used, bytes - used, "%u", (unsigned)port)
                                : snprintf(out + used, bytes - used, "%c", *at);
        used += (size_t)length;
        assert_true(used < bytes);
    }
    out[used] = '\0';
}

/* '@' in the list is the port. */
static void open_proxy(const char *list, uint16_t port, const struct proxy_options *times) {
    char text[512];
    with_port(text, sizeof text, list, port);
    struct proxy_options options = times != NULL ? *times : (struct proxy_options){.rules = NULL};
    assert_true(is_ok(network_rules_parse(&rules, view_of_text(text), NULL)));
    options.rules = rules;
    options.decided = note_decision;
    options.resolve = resolve;
    seen.allowed = seen.refused = 0;
    atomic_store(&seen.resolved, 0);
    atomic_store(&seen.resolve_ms, 0);
    struct error error = {0};
    if (is_failed(proxy_open(&proxy, &options, &error))) {
        fail_msg("%s", error.message);
    }
    relay_fd = open_relay();
}

static void close_proxy(void) {
    char path[200];
    (void)snprintf(path, sizeof path, "%s", proxy_socket(proxy));
    fd_cleanup(&relay_fd);
    proxy_cleanup(&proxy);
    network_rules_cleanup(&rules);
    assert_int_equal(access(path, F_OK), -1);
}

static void hand_over(int fd_a, int fd_b) {
    int fds[2] = {fd_a, fd_b};
    size_t bytes = fd_b >= 0 ? sizeof fds : sizeof fds[0];
    char byte = 'c';
    struct iovec data = {&byte, 1};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof fds)];
    } control = {.space = {0}};
    struct msghdr message = {
        .msg_iov = &data,
        .msg_iovlen = 1,
        .msg_control = control.space,
        .msg_controllen = CMSG_SPACE(bytes),
    };
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    ASSERT(rights != NULL);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(rights), fds, bytes);
    assert_int_equal(sendmsg(relay_fd, &message, MSG_NOSIGNAL), 1);
}

/* A TCP connection whose far end the proxy holds. */
static int open_client(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(client, (const struct sockaddr *)&address, sizeof address), 0);
    int accepted = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    assert_true(accepted >= 0);
    hand_over(accepted, -1);
    close(accepted);
    close(listener);
    return client;
}

static void send_text(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Reads until `bytes_max` or the end; fails after 10 s. */
static void receive(int fd, char *out, size_t bytes_max) {
    size_t used = 0;
    while (used < bytes_max) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        assert_true(poll(&entry, 1, 10000) > 0);
        ssize_t got = recv(fd, out + used, bytes_max - used, 0);
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
    }
    out[used] = '\0';
}

/* Sends a request whose '@' is the port and returns all of the answer. */
static const char *ask(const char *request, uint16_t port) {
    static char answer[8192];
    char text[2048];
    with_port(text, sizeof text, request, port);
    int fd = open_client();
    send_text(fd, text);
    receive(fd, answer, sizeof answer - 1);
    close(fd);
    return answer;
}

/* Waits until so many requests were refused: closing the proxy ends those in progress. */
static void expect_refused(unsigned count) {
    int64_t until = now_ms() + 60000;
    unsigned now = 0;
    while (now < count && now_ms() < until) {
        (void)usleep(1000);
        (void)pthread_mutex_lock(&seen.lock);
        now = seen.refused;
        (void)pthread_mutex_unlock(&seen.lock);
    }
    assert_int_equal(now, count);
}

static void expect_start(const char *text, const char *start) {
    if (strncmp(text, start, strlen(start)) != 0) {
        fail_msg("'%.300s' does not start with '%s'", text, start);
    }
}

static const char plain_answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/* ---- what gets through ---------------------------------------------------------------------- */

static void request_reaches_the_listed_server_alone(void **state) {
    (void)state;
    struct loopback_exchange exchange = {.answer = plain_answer};
    struct loopback_server *server = loopback_start(loopback_exchange, &exchange);
    open_proxy("127.0.0.1:@", loopback_port(server), NULL);
    const char *answer =
        ask("POST http://127.0.0.1:@/a?b HTTP/1.1\r\nHost: evil\r\nContent-Length: 5\r\n\r\n12345"
            "GET http://evil/ HTTP/1.1\r\nHost: evil\r\n\r\n",
            loopback_port(server));
    assert_string_equal(answer, plain_answer);
    char expected[200];
    (void)snprintf(
        expected,
        sizeof expected,
        "POST /a?b HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
        "12345",
        (unsigned)loopback_port(server)
    );
    close_proxy();
    loopback_stop(server);
    assert_string_equal(exchange.request, expected); // nothing hides behind the body
    assert_int_equal(seen.allowed, 1);
    assert_int_equal(seen.refused, 0);
}

static void tunnel_carries_bytes_both_ways_until_the_end(void **state) {
    (void)state;
    struct loopback_server *server = loopback_start(loopback_echo, NULL);
    open_proxy("127.0.0.1:@", loopback_port(server), NULL);
    int fd = open_client();
    char text[200];
    (void)snprintf(
        text,
        sizeof text,
        "CONNECT 127.0.0.1:%u HTTP/1.1\r\n\r\nfirst",
        (unsigned)loopback_port(server)
    );
    send_text(fd, text);
    char got[300];
    static const char established[] = "HTTP/1.1 200 Connection established\r\n\r\n";
    receive(fd, got, strlen(established) + 5);
    expect_start(got, established);
    assert_string_equal(got + strlen(established), "first");
    static unsigned char block[1 << 16];
    static unsigned char back[1 << 16];
    for (unsigned round = 0; round < 8; round++) {
        memset(block, (int)('a' + round), sizeof block);
        size_t sent = 0;
        size_t received = 0;
        while (received < sizeof block) { // more than any buffer on the way
            struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
            assert_true(poll(&entry, 1, 10000) > 0);
            if (sent < sizeof block && (entry.revents & POLLOUT) != 0) {
                ssize_t did = send(fd, block + sent, sizeof block - sent, MSG_DONTWAIT);
                sent += did > 0 ? (size_t)did : 0;
            }
            if ((entry.revents & POLLIN) != 0) {
                ssize_t did = recv(fd, back + received, sizeof back - received, MSG_DONTWAIT);
                received += did > 0 ? (size_t)did : 0;
            }
        }
        assert_memory_equal(block, back, sizeof block);
    }
    assert_int_equal(shutdown(fd, SHUT_WR), 0); // half an end is passed on, then comes the other
    receive(fd, got, 10);
    assert_string_equal(got, "");
    close(fd);
    close_proxy();
    loopback_stop(server);
}

static void name_is_resolved_once_and_its_refused_addresses_are_skipped(void **state) {
    (void)state;
    struct loopback_exchange exchange = {.answer = plain_answer};
    struct loopback_server *server = loopback_start(loopback_exchange, &exchange);
    open_proxy("both.test:@,127.0.0.1:@", loopback_port(server), NULL);
    const char *answer = ask("GET http://both.test:@/ HTTP/1.1\r\n\r\n", loopback_port(server));
    assert_string_equal(answer, plain_answer);
    assert_int_equal(atomic_load(&seen.resolved), 1); // no second answer to fall for
    close_proxy();
    loopback_stop(server);
}

/* ---- what does not -------------------------------------------------------------------------- */

static void unlisted_host_is_refused_before_it_is_resolved(void **state) {
    (void)state;
    struct loopback_server *server = loopback_start(loopback_echo, NULL);
    uint16_t port = loopback_port(server);
    open_proxy("allowed.test:@", port, NULL);
    static const char *const requests[] = {
        "CONNECT secret-data.evil.test:443 HTTP/1.1\r\n\r\n",
        "CONNECT allowed.test:443 HTTP/1.1\r\n\r\n",
        "CONNECT 127.0.0.1:@ HTTP/1.1\r\n\r\n",
        "CONNECT [::1]:@ HTTP/1.1\r\n\r\n",
        "CONNECT [::ffff:127.0.0.1]:@ HTTP/1.1\r\n\r\n",
        "CONNECT localhost:@ HTTP/1.1\r\n\r\n",
        "CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n",
        "GET http://evil.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n",
    };
    for (size_t i = 0; i < COUNT_OF(requests); i++) {
        expect_start(ask(requests[i], port), "HTTP/1.1 403 ");
    }
    close_proxy();
    assert_int_equal(atomic_load(&seen.resolved), 0);
    assert_int_equal(seen.refused, COUNT_OF(requests));
    assert_int_equal(seen.allowed, 0);
    assert_int_equal(loopback_accepted(server), 0);
    loopback_stop(server);
}

static void listed_name_that_leads_to_loopback_is_refused(void **state) {
    (void)state;
    struct loopback_server *server = loopback_start(loopback_echo, NULL);
    open_proxy("allowed.test:@,127.0.0.1:1", loopback_port(server), NULL);
    expect_start(
        ask("CONNECT allowed.test:@ HTTP/1.1\r\n\r\n", loopback_port(server)), "HTTP/1.1 403 "
    );
    close_proxy();
    assert_int_equal(atomic_load(&seen.resolved), 1);
    assert_int_equal(seen.refused, 1);
    assert_non_null(strstr(seen.reason, "public internet"));
    assert_int_equal(loopback_accepted(server), 0);
    loopback_stop(server);
}

static void empty_list_allows_nothing(void **state) {
    (void)state;
    struct loopback_server *server = loopback_start(loopback_echo, NULL);
    open_proxy("", loopback_port(server), NULL);
    uint16_t port = loopback_port(server);
    expect_start(ask("CONNECT 127.0.0.1:@ HTTP/1.1\r\n\r\n", port), "HTTP/1.1 403 ");
    assert_int_equal(loopback_accepted(server), 0);
    close_proxy();
    loopback_stop(server);
}

static void failures_are_answered_in_words(void **state) {
    (void)state;
    struct loopback_server *server = loopback_start(loopback_echo, NULL);
    uint16_t closed_port = loopback_port(server);
    loopback_stop(server);
    open_proxy("127.0.0.1:@,none.test", closed_port, NULL);
    const char *answer = ask("CONNECT 127.0.0.1:@ HTTP/1.1\r\n\r\n", closed_port);
    expect_start(answer, "HTTP/1.1 502 ");
    assert_non_null(strstr(answer, "does not answer"));
    expect_start(ask("CONNECT none.test:443 HTTP/1.1\r\n\r\n", 0), "HTTP/1.1 502 ");
    expect_start(ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0), "HTTP/1.1 400 ");
    expect_start(ask("CONNECT 127.1:443 HTTP/1.1\r\n\r\n", 0), "HTTP/1.1 400 ");
    expect_start(ask("CONNECT 2130706433:443 HTTP/1.1\r\n\r\n", 0), "HTTP/1.1 400 ");
    close_proxy();
}

/* A client's first TLS message, for the server allowed.test. */
static size_t read_hello(unsigned char out[2048]) {
    FILE *file = fopen(TEST_SOURCE_DIR "/tests/corpus/fuzz_proxy/hello", "rb");
    assert_non_null(file);
    size_t length = fread(out, 1, 2048, file);
    (void)fclose(file);
    assert_true(length > 100 && length < 2048);
    return length;
}

/* Opens a tunnel to `host` and sends bytes in two parts; how many of them the echo server gives
 * back before the end. */
static size_t
try_tunnel(const char *host, uint16_t port, const unsigned char *bytes, size_t length) {
    char text[200];
    char request[200];
    char answer[2100];
    static const char established[] = "HTTP/1.1 200 Connection established\r\n\r\n";
    (void)snprintf(request, sizeof request, "CONNECT %s HTTP/1.1\r\n\r\n", host);
    with_port(text, sizeof text, request, port);
    int fd = open_client();
    send_text(fd, text);
    receive(fd, answer, strlen(established));
    expect_start(answer, established);
    size_t half = length / 2;
    assert_int_equal(send(fd, bytes, half, MSG_NOSIGNAL), half);
    (void)usleep(20000);
    (void)send(fd, bytes + half, length - half, MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used<sizeof answer; used += got> 0 ? (size_t)got : 0) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        assert_true(poll(&entry, 1, 10000) > 0);
        got = recv(fd, answer + used, sizeof answer - used, 0);
    }
    assert_memory_equal(answer, bytes, used < length ? used : length);
    close(fd);
    return used;
}

static void tunnel_asks_for_the_server_of_its_request(void **state) {
    (void)state;
    unsigned char hello[2048];
    size_t length = read_hello(hello);
    struct loopback_server *server = loopback_start(loopback_echo, NULL);
    uint16_t port = loopback_port(server);
    static const unsigned char plain[] = "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n";
    for (uint16_t tls_port = 0; tls_port < 2; tls_port++) {
        const struct proxy_options options = {.tls_port = tls_port == 0 ? port : 0};
        open_proxy("allowed.test:@,other.test:@,127.0.0.1:@", port, &options);
        assert_int_equal(try_tunnel("allowed.test:@", port, hello, length), length);
        assert_int_equal(try_tunnel("ALLOWED.test.:@", port, hello, length), length);
        assert_int_equal(try_tunnel("127.0.0.1:@", port, hello, length), length);
        assert_int_equal(try_tunnel("other.test:@", port, hello, length), 0);
        hello[7] ^= 0xff; // its length: the rest never comes
        assert_int_equal(try_tunnel("allowed.test:@", port, hello, length), 0);
        hello[7] ^= 0xff;
        size_t passed = try_tunnel("allowed.test:@", port, plain, sizeof plain - 1);
        assert_int_equal(passed, tls_port == 0 ? 0 : sizeof plain - 1);
        close_proxy();
        assert_int_equal(seen.refused, tls_port == 0 ? 3 : 2);
    }
    loopback_stop(server);
}

/* ---- what tries to hold it up --------------------------------------------------------------- */

static void slow_head_ends_at_its_deadline(void **state) {
    (void)state;
    const struct proxy_options times = {.head_ms = 300};
    open_proxy("", 0, &times);
    int fd = open_client();
    int64_t begin = now_ms();
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    while (poll(&entry, 1, 20) == 0) { // a byte now and then does not buy time
        assert_true(now_ms() - begin < 20000);
        (void)send(fd, "A", 1, MSG_NOSIGNAL);
    }
    char answer[400];
    receive(fd, answer, sizeof answer - 1);
    expect_start(answer, "HTTP/1.1 408 ");
    assert_true(now_ms() - begin >= 300);
    close(fd);
    close_proxy();
}

static void flood_of_headers_is_refused(void **state) {
    (void)state;
    open_proxy("", 0, NULL);
    int fd = open_client();
    send_text(fd, "GET http://a.b/ HTTP/1.1\r\n");
    char line[512];
    memset(line, 'x', sizeof line);
    memcpy(line, "A: ", 3);
    memcpy(line + sizeof line - 2, "\r\n", 2);
    for (size_t i = 0; i < 2000; i++) {
        if (send(fd, line, sizeof line, MSG_NOSIGNAL) < 0) {
            break; // it no longer listens
        }
    }
    close(fd);
    int other = open_client(); // and it lives
    send_text(other, "\r\n\r\n");
    char answer[400];
    receive(other, answer, sizeof answer - 1);
    expect_start(answer, "HTTP/1.1 400 ");
    close(other);
    expect_refused(2);
    close_proxy();
}

static void connections_are_bounded(void **state) {
    (void)state;
    open_proxy("", 0, NULL);
    int fds[PROXY_CONNECTIONS_MAX + 1];
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        fds[i] = open_client();
    }
    char answer[400];
    receive(fds[PROXY_CONNECTIONS_MAX], answer, sizeof answer - 1);
    expect_start(answer, "HTTP/1.1 503 ");
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        close(fds[i]);
    }
    int64_t until = now_ms() + 60000;
    bool served = false;
    do { // places become free
        assert_true(now_ms() < until);
        expect_start(ask("GET / HTTP/1.1\r\n\r\n", 0), "HTTP/1.1 ");
        (void)pthread_mutex_lock(&seen.lock);
        served = seen.refused > 0;
        (void)pthread_mutex_unlock(&seen.lock);
    } while (!served);
    close_proxy();
}

static void idle_and_total_time_are_bounded(void **state) {
    (void)state;
    const struct proxy_options times[] = {{.idle_ms = 200}, {.total_ms = 400}};
    for (size_t i = 0; i < COUNT_OF(times); i++) {
        struct loopback_server *server = loopback_start(loopback_echo, NULL);
        open_proxy("127.0.0.1:@", loopback_port(server), &times[i]);
        int fd = open_client();
        char text[200];
        (void)snprintf(
            text,
            sizeof text,
            "CONNECT 127.0.0.1:%u HTTP/1.1\r\n\r\n",
            (unsigned)loopback_port(server)
        );
        int64_t begin = now_ms();
        send_text(fd, text);
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        for (bool open = true; open;) {
            assert_true(now_ms() - begin < 20000);
            if (poll(&entry, 1, 50) == 0) {
                if (i == 1) {
                    (void)send(fd, "x", 1, MSG_NOSIGNAL); // never idle
                }
                continue;
            }
            open = recv(fd, text, sizeof text, 0) > 0;
        }
        assert_true(now_ms() - begin >= (i == 0 ? 200 : 400));
        close(fd);
        close_proxy();
        loopback_stop(server);
    }
}

static void end_of_a_call_ends_its_connections_and_no_others(void **state) {
    (void)state;
    struct loopback_server *server = loopback_start(loopback_echo, NULL);
    open_proxy("127.0.0.1:@", loopback_port(server), NULL);
    int first = open_client();
    int first_relay = relay_fd;
    relay_fd = open_relay();
    int second = open_client();
    close(first_relay);
    char answer[400];
    receive(first, answer, sizeof answer - 1); // in the middle of its head
    assert_string_equal(answer, "");
    send_text(second, "GET / HTTP/1.1\r\n\r\n");
    receive(second, answer, sizeof answer - 1);
    expect_start(answer, "HTTP/1.1 400 ");
    close(first);
    close(second);
    close_proxy();
    loopback_stop(server);
}

static void close_does_not_wait_for_a_resolver_that_hangs(void **state) {
    (void)state;
    open_proxy("slow.test", 0, NULL);
    atomic_store(&seen.resolve_ms, 60000);
    int fd = open_client();
    send_text(fd, "CONNECT slow.test:443 HTTP/1.1\r\n\r\n");
    int64_t until = now_ms() + 60000;
    while (atomic_load(&seen.resolved) == 0) {
        assert_true(now_ms() < until);
        (void)usleep(1000);
    }
    int64_t begin = now_ms();
    close_proxy();
    assert_true(now_ms() - begin < 20000);
    close(fd);
}

static void anything_but_one_connection_is_not_taken(void **state) {
    (void)state;
    open_proxy("", 0, NULL);
    int ends[2];
    int pair[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    int unconnected = socket(AF_INET, SOCK_STREAM, 0);
    int datagram = socket(AF_INET, SOCK_DGRAM, 0);
    hand_over(ends[0], -1);
    hand_over(pair[0], -1);
    hand_over(unconnected, -1);
    hand_over(datagram, -1);
    expect_start(ask("GET / HTTP/1.1\r\n\r\n", 0), "HTTP/1.1 400 "); // it goes on
    hand_over(unconnected, datagram);
    char byte;
    assert_int_equal(recv(relay_fd, &byte, 1, 0), 0); // such a relay is not ours
    close(pair[0]);
    assert_int_equal(recv(pair[1], &byte, 1, 0), 0); // no copy was kept
    const int all[] = {ends[0], ends[1], pair[1], unconnected, datagram};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        close(all[i]);
    }
    close_proxy();
    assert_int_equal(seen.refused, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_reaches_the_listed_server_alone),
        cmocka_unit_test(tunnel_carries_bytes_both_ways_until_the_end),
        cmocka_unit_test(name_is_resolved_once_and_its_refused_addresses_are_skipped),
        cmocka_unit_test(unlisted_host_is_refused_before_it_is_resolved),
        cmocka_unit_test(listed_name_that_leads_to_loopback_is_refused),
        cmocka_unit_test(empty_list_allows_nothing),
        cmocka_unit_test(failures_are_answered_in_words),
        cmocka_unit_test(tunnel_asks_for_the_server_of_its_request),
        cmocka_unit_test(slow_head_ends_at_its_deadline),
        cmocka_unit_test(flood_of_headers_is_refused),
        cmocka_unit_test(connections_are_bounded),
        cmocka_unit_test(idle_and_total_time_are_bounded),
        cmocka_unit_test(end_of_a_call_ends_its_connections_and_no_others),
        cmocka_unit_test(close_does_not_wait_for_a_resolver_that_hangs),
        cmocka_unit_test(anything_but_one_connection_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
