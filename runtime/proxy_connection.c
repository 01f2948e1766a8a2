/* One connection of a command, from its request to its end, as blocking code with deadlines. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "proxy_internal.h"
#include "proxy_request.h"
#include "tls_hello.h"

#define PUMP_BYTES   ((size_t)32 << 10)
#define LINGER_MS    INT64_C(500)
#define LINGER_BYTES ((size_t)64 << 10)

enum wait { WAIT_READY, WAIT_TIMEOUT, WAIT_STOPPED };

static int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Waits for any of the entries; entries[0] is for the stop descriptor. */
static enum wait
wait_for(const struct proxy *proxy, struct pollfd *entries, nfds_t count, int64_t until_ms) {
    entries[0] = (struct pollfd){.fd = proxy->stop_fd, .events = POLLIN};
    for (;;) {
        int64_t left = until_ms - now_ms();
        int ready = poll(entries, count, left <= 0 ? 0 : (int)earlier(left, 60000));
        if (ready > 0) {
            return entries[0].revents != 0 ? WAIT_STOPPED : WAIT_READY;
        }
        if (left <= 0) {
            return WAIT_TIMEOUT;
        }
    }
}

static enum wait wait_one(const struct proxy *proxy, int fd, short events, int64_t until_ms) {
    struct pollfd entries[2] = {[1] = {.fd = fd, .events = events}};
    return wait_for(proxy, entries, 2, until_ms);
}

static bool send_all(const struct proxy *proxy, int fd, struct view bytes, int64_t until_ms) {
    while (bytes.length > 0) {
        ssize_t sent = send(fd, bytes.data, bytes.length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            bytes = view_slice(bytes, (size_t)sent, SIZE_MAX);
        } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            return false;
        } else if (wait_one(proxy, fd, POLLOUT, until_ms) != WAIT_READY) {
            return false;
        }
    }
    return true;
}

/* ---- answers -------------------------------------------------------------------------------- */

static const char *phrase_of(int status) {
    static const struct {
        int status;
        const char *phrase;
    } phrases[] = {
        {400, "Bad Request"},
        {403, "Forbidden by Hearth"},
        {408, "Request Timeout"},
        {411, "Length Required"},
        {431, "Request Header Fields Too Large"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < COUNT_OF(phrases); i++) {
        if (phrases[i].status == status) {
            return phrases[i].phrase;
        }
    }
    return "Internal Server Error";
}

void proxy_answer(
    struct proxy *proxy, int client_fd, int status, const char *text, int64_t until_ms
) {
    CLEANUP(buffer_deinit) struct buffer answer;
    buffer_init(&answer, 4096);
    // Without memory the connection just ends.
    result_ignore(buffer_append_format(
        &answer,
        NULL,
        "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n"
        "Connection: close\r\n\r\nhearth: %s\n",
        status,
        phrase_of(status),
        strlen(text) + 9,
        text
    ));
    if (!send_all(proxy, client_fd, buffer_view(&answer), until_ms)) {
        return;
    }
    // Closing with unread bytes resets the connection, and the answer may be lost with it.
    (void)shutdown(client_fd, SHUT_WR);
    unsigned char bytes[4096];
    size_t drained = 0;
    while (drained < LINGER_BYTES && wait_one(proxy, client_fd, POLLIN, until_ms) == WAIT_READY) {
        ssize_t got = recv(client_fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (got <= 0) {
            return;
        }
        drained += (size_t)got;
    }
}

static void answer(struct proxy *proxy, int client_fd, int status, const char *text) {
    proxy_answer(proxy, client_fd, status, text, now_ms() + LINGER_MS);
}

static void decided(
    struct proxy *proxy, const struct proxy_request *request, bool is_allowed, const char *reason
) {
    if (proxy->options.decided == NULL) {
        return;
    }
    struct network_decision decision = {
        .method = request != NULL ? request->method : "",
        .host = request != NULL ? request->host.text : "",
        .port = request != NULL ? request->host.port : 0,
        .is_allowed = is_allowed,
        .reason = reason,
    };
    int status = pthread_mutex_lock(&proxy->decided_lock);
    ASSERT(status == 0);
    proxy->options.decided(proxy->options.decided_context, &decision);
    status = pthread_mutex_unlock(&proxy->decided_lock);
    ASSERT(status == 0);
}

/* ---- server --------------------------------------------------------------------------------- */

static result connect_one(
    struct proxy *proxy, const struct sockaddr_storage *address, int64_t until_ms, int *out
) {
    CLEANUP(fd_cleanup)
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size =
        address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (fd < 0) {
        FAIL(NULL, IO, "no socket");
    }
    if (connect(fd, (const struct sockaddr *)address, size) != 0 && errno != EINPROGRESS) {
        FAIL(NULL, IO, "refused at once");
    }
    int failed = 0;
    socklen_t bytes = sizeof failed;
    if (wait_one(proxy, fd, POLLOUT, until_ms) != WAIT_READY) {
        FAIL(NULL, TIMEOUT, "no answer");
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) != 0 || failed != 0) {
        FAIL(NULL, IO, "refused");
    }
    *out = fd;
    fd = -1;
    return OK;
}

/* Addresses of the host, from the literal or a lookup. */
static result find_addresses(
    struct proxy *proxy,
    const struct network_host *host,
    int64_t until_ms,
    struct name_addresses *out,
    struct error *error
) {
    if (!host->is_address) {
        return name_lookup(
            proxy->resolver, host->text, host->port, proxy->stop_fd, until_ms, out, error
        );
    }
    out->count = 1;
    out->items[0] = host->address;
    return OK;
}

static void set_port(struct sockaddr_storage *address, uint16_t port) {
    if (address->ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, address, sizeof v4);
        v4.sin_port = htons(port);
        memcpy(address, &v4, sizeof v4);
    } else {
        struct sockaddr_in6 v6;
        memcpy(&v6, address, sizeof v6);
        v6.sin6_port = htons(port);
        memcpy(address, &v6, sizeof v6);
    }
}

/* Keeps the addresses that may be connected to. */
static void drop_refused(
    const struct proxy *proxy, const struct network_host *host, struct name_addresses *addresses
) {
    size_t kept = 0;
    for (size_t i = 0; i < addresses->count; i++) {
        struct sockaddr_storage address = addresses->items[i];
        const struct sockaddr *generic = (const struct sockaddr *)&address;
        if (network_rules_allow_address(proxy->options.rules, generic, host->port)) {
            set_port(&address, host->port);
            addresses->items[kept++] = address;
        }
    }
    addresses->count = kept;
}

/* Decides and connects; on refusal or failure the client was answered and -1 is returned. */
static int reach(struct proxy *proxy, int client_fd, const struct proxy_request *request) {
    const struct network_host *host = &request->host;
    char text[NETWORK_HOST_BYTES + 200];
    if (!network_rules_allow(proxy->options.rules, host)) {
        (void)snprintf(
            text, sizeof text, "%s:%u is not on the allow-list", host->text, (unsigned)host->port
        );
        decided(proxy, request, false, text);
        answer(proxy, client_fd, 403, text);
        return -1;
    }
    int64_t until_ms = now_ms() + proxy->options.connect_ms;
    struct name_addresses addresses = {.count = 0};
    struct error error = {0};
    if (is_failed(find_addresses(proxy, host, until_ms, &addresses, &error))) {
        decided(proxy, request, true, "");
        answer(proxy, client_fd, error.code == RESULT_TIMEOUT ? 504 : 502, error.message);
        return -1;
    }
    drop_refused(proxy, host, &addresses);
    if (addresses.count == 0) {
        (void)snprintf(
            text,
            sizeof text,
            "%s has no address in the public internet, and none listed literally",
            host->text
        );
        decided(proxy, request, false, text);
        answer(proxy, client_fd, 403, text);
        return -1;
    }
    decided(proxy, request, true, "");
    result last = OK;
    for (size_t i = 0; i < addresses.count; i++) {
        int fd = -1;
        last = connect_one(proxy, &addresses.items[i], until_ms, &fd);
        if (is_ok(last)) {
            return fd;
        }
    }
    bool is_late = last.code == RESULT_TIMEOUT;
    (void)snprintf(text, sizeof text, "%s:%u does not answer", host->text, (unsigned)host->port);
    answer(proxy, client_fd, is_late ? 504 : 502, text);
    return -1;
}

/* ---- bytes in both directions --------------------------------------------------------------- */

/* One direction. Once `left` bytes have passed nothing more is read. */
struct pipe_half {
    int from;
    int to;
    unsigned char *bytes; /* [PUMP_BYTES] */
    size_t begin;
    size_t end;
    uint64_t left;
    bool has_ended;  /* nothing more is read */
    bool is_shut;    /* and the other side was told */
    bool passes_end; /* an end of `from` is passed on to `to` */
};

static short wanted(const struct pipe_half *half, int fd) {
    short events = 0;
    if (half->from == fd && !half->has_ended && half->end == 0) {
        events = POLLIN;
    }
    if (half->to == fd && half->end > half->begin) {
        events = (short)(events | POLLOUT);
    }
    return events;
}

/* Moves what can be moved; false when the connection is over. *moved: some bytes were. */
static bool move(struct pipe_half *half, bool *moved) {
    if (!half->has_ended && half->end == 0) {
        size_t wanted_bytes = half->left < PUMP_BYTES ? (size_t)half->left : PUMP_BYTES;
        ssize_t got = recv(half->from, half->bytes, wanted_bytes, MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN && errno != EINTR) {
            return false;
        }
        if (got == 0) {
            half->has_ended = true;
        }
        if (got > 0) {
            half->end = (size_t)got;
            half->left -= (uint64_t)got;
            half->has_ended = half->left == 0;
            *moved = true;
        }
    }
    if (half->end > half->begin) {
        ssize_t sent = send(
            half->to,
            half->bytes + half->begin,
            half->end - half->begin,
            MSG_NOSIGNAL | MSG_DONTWAIT
        );
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            return false;
        }
        if (sent > 0) {
            half->begin += (size_t)sent;
            *moved = true;
        }
        if (half->begin == half->end) {
            half->begin = half->end = 0;
        }
    }
    if (half->has_ended && half->end == 0 && !half->is_shut) {
        half->is_shut = true;
        if (half->passes_end) {
            (void)shutdown(half->to, SHUT_WR);
        }
    }
    return true;
}

/* Until both have ended, nothing moved for too long, or the answer is complete. */
static void
pump(const struct proxy *proxy, struct pipe_half *up, struct pipe_half *down, int64_t until_ms) {
    int client = up->from;
    int server = up->to;
    int64_t idle_until_ms = now_ms() + proxy->options.idle_ms;
    for (;;) {
        bool moved = false;
        if (!move(up, &moved) || !move(down, &moved)) {
            return;
        }
        if (down->is_shut && (up->is_shut || !up->passes_end)) {
            return;
        }
        if (moved) {
            idle_until_ms = now_ms() + proxy->options.idle_ms;
        }
        struct pollfd entries[3] = {
            [1] = {.fd = client, .events = (short)(wanted(up, client) | wanted(down, client))},
            [2] = {.fd = server, .events = (short)(wanted(up, server) | wanted(down, server))},
        };
        // With nothing wanted of the server its hang-up would be reported again and again; that of
        // the client means that nobody is left to read.
        entries[2].fd = entries[2].events != 0 ? server : -1;
        entries[1].fd = entries[1].events == 0 && down->is_shut ? -1 : client;
        if (wait_for(proxy, entries, 3, earlier(until_ms, idle_until_ms)) != WAIT_READY ||
            ((entries[1].revents & (POLLHUP | POLLERR)) != 0 && !down->is_shut)) {
            return;
        }
    }
}

/* ---- what a tunnel is for ------------------------------------------------------------------- */

/* What is wrong with the tunnel's first bytes; null when nothing is. */
static const char *judge(
    const struct proxy *proxy, const struct network_host *host, enum tls_hello hello, char *name
) {
    bool must_be_tls = host->port == proxy->options.tls_port;
    if (hello == TLS_HELLO_OTHER || hello == TLS_HELLO_MORE) {
        return must_be_tls ? "the tunnel does not speak TLS" : NULL;
    }
    if (hello == TLS_HELLO_BROKEN) {
        return "the tunnel's first message is malformed";
    }
    size_t length = strlen(name);
    if (length > 1 && name[length - 1] == '.') {
        name[length - 1] = '\0';
    }
    if (host->is_address || strcasecmp(name, host->text) == 0) {
        return NULL; // an address has no name of its own, and is listed as it stands
    }
    return "the tunnel asks for another server than the request";
}

/* Collects the first bytes of a tunnel, which are not sent on before they are known: the address
 * alone does not tell which of its names a shared server is asked for. False: it ends here. */
static bool check_tunnel(
    struct proxy *proxy,
    int client_fd,
    int server_fd,
    const struct proxy_request *request,
    int64_t until_ms,
    struct buffer *first
) {
    bool has_begun = false;
    char name[TLS_NAME_BYTES];
    enum tls_hello hello = tls_hello_read(buffer_view(first), name);
    while (hello == TLS_HELLO_MORE) {
        struct pollfd entries[3] = {
            [1] = {.fd = client_fd, .events = POLLIN},
            [2] = {.fd = first->length == 0 ? server_fd : -1, .events = POLLIN},
        };
        enum wait waited = wait_for(proxy, entries, 3, until_ms);
        if (waited == WAIT_STOPPED || (waited == WAIT_TIMEOUT && first->length == 0)) {
            return false;
        }
        unsigned char chunk[4096];
        bool is_client = waited == WAIT_READY && entries[1].revents != 0;
        ssize_t got = is_client ? recv(client_fd, chunk, sizeof chunk, MSG_DONTWAIT) : 0;
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            continue;
        }
        if (got <= 0) { // too slow, an end, or a server that speaks first
            break;
        }
        if (!has_begun) { // before that it may be idle, as any tunnel
            has_begun = true;
            until_ms = earlier(until_ms, now_ms() + proxy->options.head_ms);
        }
        if (is_failed(buffer_append(first, view_of(chunk, (size_t)got), NULL))) {
            hello = TLS_HELLO_BROKEN;
            break;
        }
        hello = tls_hello_read(buffer_view(first), name);
    }
    if (hello == TLS_HELLO_MORE && first->length > 0) { // the rest would come unseen
        hello = TLS_HELLO_BROKEN;
    }
    const char *wrong = judge(proxy, &request->host, hello, name);
    if (wrong != NULL) {
        decided(proxy, request, false, wrong);
    }
    return wrong == NULL;
}

/* ---- one request ---------------------------------------------------------------------------- */

/* Reads until the head is complete; *head_bytes is its length, what follows is the body's. */
static int read_head(const struct proxy *proxy, int fd, struct buffer *bytes, size_t *head_bytes) {
    int64_t until_ms = now_ms() + proxy->options.head_ms;
    for (;;) {
        unsigned char chunk[4096];
        enum wait waited = wait_one(proxy, fd, POLLIN, until_ms);
        if (waited != WAIT_READY) {
            return waited == WAIT_TIMEOUT ? 408 : 0;
        }
        ssize_t got = recv(fd, chunk, sizeof chunk, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
            continue;
        }
        if (got <= 0) {
            return 0; // nobody waits for an answer
        }
        if (is_failed(buffer_append(bytes, view_of(chunk, (size_t)got), NULL))) {
            return 431;
        }
        *head_bytes = proxy_head_length(buffer_view(bytes));
        if (*head_bytes != SIZE_MAX) {
            return *head_bytes <= PROXY_HEAD_BYTES_MAX ? 200 : 431;
        }
    }
}

/* Until an idle connection ends. */
static int64_t idle_end(const struct proxy *proxy, int64_t until_ms) {
    return earlier(until_ms, now_ms() + proxy->options.idle_ms);
}

/* Sends what stands in front: the head, or for a tunnel that it stands and its first bytes. `first`
 * has what came behind the request's head. */
static bool send_first(
    struct proxy *proxy,
    int client_fd,
    int server_fd,
    const struct proxy_request *request,
    int64_t until_ms,
    struct buffer *first
) {
    int64_t end_ms = idle_end(proxy, until_ms);
    struct view established = view_of_text("HTTP/1.1 200 Connection established\r\n\r\n");
    if (!request->is_tunnel) {
        if (!send_all(proxy, server_fd, buffer_view(&request->head), end_ms)) {
            return false;
        }
    } else if (!send_all(proxy, client_fd, established, end_ms) || !check_tunnel(proxy, client_fd, server_fd, request, end_ms, first)) {
        return false;
    }
    return send_all(proxy, server_fd, buffer_view(first), idle_end(proxy, until_ms));
}

static void serve_request(
    struct proxy *proxy,
    int client_fd,
    const struct proxy_request *request,
    struct view rest,
    int64_t until_ms
) {
    CLEANUP(fd_cleanup) int server_fd = reach(proxy, client_fd, request);
    if (server_fd < 0) {
        return;
    }
    CLEANUP(free_cleanup) unsigned char *memory = malloc(2 * PUMP_BYTES);
    CLEANUP(buffer_deinit) struct buffer first;
    buffer_init(&first, PROXY_HEAD_BYTES_MAX + TLS_HELLO_BYTES_MAX + 8192);
    bool is_tunnel = request->is_tunnel;
    uint64_t up_bytes = is_tunnel ? UINT64_MAX : request->body_bytes;
    rest = view_slice(rest, 0, up_bytes < rest.length ? (size_t)up_bytes : rest.length);
    if (memory == NULL || is_failed(buffer_append(&first, rest, NULL))) {
        answer(proxy, client_fd, 503, "no memory");
        return;
    }
    if (!send_first(proxy, client_fd, server_fd, request, until_ms, &first)) {
        return;
    }
    struct pipe_half up = {
        .from = client_fd,
        .to = server_fd,
        .bytes = memory,
        .left = up_bytes - rest.length,
        .has_ended = up_bytes == rest.length,
        .passes_end = is_tunnel, // a server may take half a connection for none
    };
    struct pipe_half down = {
        .from = server_fd,
        .to = client_fd,
        .bytes = memory + PUMP_BYTES,
        .left = UINT64_MAX,
        .passes_end = true,
    };
    pump(proxy, &up, &down, until_ms);
}

void proxy_serve(struct proxy *proxy, int client_fd) {
    int64_t until_ms = now_ms() + proxy->options.total_ms;
    CLEANUP(buffer_deinit) struct buffer bytes;
    buffer_init(&bytes, PROXY_HEAD_BYTES_MAX + 4096);
    size_t head_bytes = 0;
    int status = read_head(proxy, client_fd, &bytes, &head_bytes);
    if (status == 0) {
        return;
    }
    if (status != 200) {
        const char *text = status == 408 ? "the request did not arrive in time"
                                         : "the request's head is too large";
        decided(proxy, NULL, false, text);
        answer(proxy, client_fd, status, text);
        return;
    }
    CLEANUP(proxy_request_deinit) struct proxy_request request = {.body_bytes = 0};
    struct error error = {0};
    struct view all = buffer_view(&bytes);
    if (is_failed(proxy_request_parse(view_slice(all, 0, head_bytes), &request, &error))) {
        decided(proxy, NULL, false, error.message);
        answer(proxy, client_fd, error.foreign != 0 ? error.foreign : 503, error.message);
        return;
    }
    serve_request(proxy, client_fd, &request, view_slice(all, head_bytes, SIZE_MAX), until_ms);
}
