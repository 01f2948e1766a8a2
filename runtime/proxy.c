/* Accepting: calls connect to the unix socket, their relays hand over the command's connections. */
#include "proxy.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "proxy_internal.h"

#define STACK_BYTES        ((size_t)256 << 10) /* a head and a hello are read on it */
#define FDS_PER_MESSAGE    8
#define HEAD_MS_DEFAULT    INT64_C(10000)
#define CONNECT_MS_DEFAULT INT64_C(20000)
#define IDLE_MS_DEFAULT    INT64_C(120000)
#define TOTAL_MS_DEFAULT   INT64_C(1800000)
#define TLS_PORT_DEFAULT   443

/* The acceptor's own: connections of relays, each standing for one call. */
struct calls {
    int fds[PROXY_CALLS_MAX];
    uint64_t numbers[PROXY_CALLS_MAX];
    size_t count;
    uint64_t next_number;
};

static void lock(pthread_mutex_t *mutex) {
    int status = pthread_mutex_lock(mutex);
    ASSERT(status == 0);
}

static void unlock(pthread_mutex_t *mutex) {
    int status = pthread_mutex_unlock(mutex);
    ASSERT(status == 0);
}

/* A thread that takes no signals: they belong to the host's own threads. */
static int start_thread(pthread_t *thread, bool is_detached, void *run(void *), void *argument) {
    pthread_attr_t attributes;
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    int status = pthread_attr_init(&attributes);
    if (status != 0) {
        return status;
    }
    int state = is_detached ? PTHREAD_CREATE_DETACHED : PTHREAD_CREATE_JOINABLE;
    status = pthread_attr_setdetachstate(&attributes, state);
    status = status != 0 ? status : pthread_attr_setstacksize(&attributes, STACK_BYTES);
    status = status != 0 ? status : pthread_sigmask(SIG_SETMASK, &all, &old);
    if (status == 0) {
        status = pthread_create(thread, &attributes, run, argument);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    (void)pthread_attr_destroy(&attributes);
    return status;
}

/* ---- connections ---------------------------------------------------------------------------- */

static void *serve(void *argument) {
    struct proxy_connection *connection = argument;
    struct proxy *proxy = connection->proxy;
    int fd = connection->client_fd; // written before this thread began
    proxy_serve(proxy, fd);
    lock(&proxy->lock);
    connection->is_used = false;
    close(fd); // under the lock, so that nobody shuts down another one's number
    proxy->active -= 1;
    (void)pthread_cond_signal(&proxy->idle);
    unlock(&proxy->lock); // the proxy may be gone from here on
    return NULL;
}

/* A command could only send what its relay accepted; whatever else comes is no connection. */
static bool is_tcp_connection(int fd) {
    int domain = 0;
    int type = 0;
    int protocol = 0;
    socklen_t size = sizeof domain;
    struct sockaddr_storage peer;
    socklen_t peer_size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 &&
           (domain == AF_INET || domain == AF_INET6) && type == SOCK_STREAM &&
           protocol == IPPROTO_TCP && getpeername(fd, (struct sockaddr *)&peer, &peer_size) == 0;
}

/* Takes the descriptor. */
static void begin_connection(struct proxy *proxy, uint64_t call, int fd) {
    if (!is_tcp_connection(fd)) {
        close(fd);
        return;
    }
    struct proxy_connection *connection = NULL;
    lock(&proxy->lock);
    for (size_t i = 0; i < PROXY_CONNECTIONS_MAX && connection == NULL; i++) {
        connection = proxy->connections[i].is_used ? NULL : &proxy->connections[i];
    }
    if (connection != NULL) {
        *connection = (struct proxy_connection){proxy, true, fd, call};
        proxy->active += 1;
    }
    unlock(&proxy->lock);
    pthread_t thread;
    if (connection != NULL && start_thread(&thread, true, serve, connection) == 0) {
        return;
    }
    if (connection != NULL) {
        lock(&proxy->lock);
        connection->is_used = false;
        proxy->active -= 1;
        unlock(&proxy->lock);
    }
    proxy_answer(proxy, fd, 503, "the proxy has too many connections", 0);
    close(fd);
}

/* The command is gone, and with it whoever reads the other ends. */
static void end_connections(struct proxy *proxy, uint64_t call) {
    lock(&proxy->lock);
    for (size_t i = 0; i < PROXY_CONNECTIONS_MAX; i++) {
        struct proxy_connection *connection = &proxy->connections[i];
        if (connection->is_used && connection->call == call) {
            (void)shutdown(connection->client_fd, SHUT_RDWR); // its thread sees the end
        }
    }
    unlock(&proxy->lock);
}

/* ---- accepting ------------------------------------------------------------------------------ */

/* Reads one message of a relay; false when the call is over or does not keep to the form. */
static bool take_message(struct proxy *proxy, int call_fd, uint64_t call) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(FDS_PER_MESSAGE * sizeof(int))];
    } control;
    char byte;
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &bytes,
        .msg_iovlen = 1,
        .msg_control = control.space,
        .msg_controllen = sizeof control.space,
    };
    ssize_t got = recvmsg(call_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR;
    }
    size_t count = 0;
    for (struct cmsghdr *item = CMSG_FIRSTHDR(&message); item != NULL;
         item = CMSG_NXTHDR(&message, item)) {
        if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t fds = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < fds; i++) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(item) + i * sizeof fd, sizeof fd);
            begin_connection(proxy, call, fd);
            count += 1;
        }
    }
    return got == 1 && count == 1 && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
}

static void accept_call(struct proxy *proxy, struct calls *calls) {
    int fd = accept4(proxy->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof peer;
    if (fd < 0) {
        return; // it went, or there are no descriptors: the call will see a dead end
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) {
        close(fd);
        return;
    }
    ASSERT(calls->count < PROXY_CALLS_MAX);
    calls->fds[calls->count] = fd;
    calls->numbers[calls->count] = calls->next_number++;
    calls->count += 1;
}

static void *accept_all(void *argument) {
    struct proxy *proxy = argument;
    struct calls calls = {.count = 0};
    for (;;) {
        struct pollfd entries[2 + PROXY_CALLS_MAX];
        bool is_full = calls.count == PROXY_CALLS_MAX; // the next call waits for one to end
        entries[0] = (struct pollfd){.fd = proxy->stop_fd, .events = POLLIN};
        entries[1] = (struct pollfd){.fd = is_full ? -1 : proxy->listen_fd, .events = POLLIN};
        for (size_t i = 0; i < calls.count; i++) {
            entries[2 + i] = (struct pollfd){.fd = calls.fds[i], .events = POLLIN};
        }
        if (poll(entries, (nfds_t)(2 + calls.count), -1) < 0) {
            ASSERT(errno == EINTR || errno == ENOMEM);
            continue;
        }
        if (entries[0].revents != 0) {
            break;
        }
        for (size_t i = calls.count; i > 0; i--) { // backwards: the last one fills a gap
            if (entries[2 + i - 1].revents != 0 &&
                !take_message(proxy, calls.fds[i - 1], calls.numbers[i - 1])) {
                end_connections(proxy, calls.numbers[i - 1]);
                close(calls.fds[i - 1]);
                calls.count -= 1;
                calls.fds[i - 1] = calls.fds[calls.count];
                calls.numbers[i - 1] = calls.numbers[calls.count];
            }
        }
        if (entries[1].revents != 0) {
            accept_call(proxy, &calls);
        }
    }
    for (size_t i = 0; i < calls.count; i++) {
        close(calls.fds[i]);
    }
    return NULL;
}

/* ---- open and close ------------------------------------------------------------------------- */

/* A directory that only we can enter, with a path short enough for a socket. */
static bool make_directory(struct proxy *proxy) {
    const char *const places[] = {getenv("XDG_RUNTIME_DIR"), getenv("TMPDIR"), "/tmp", "/var/tmp"};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        if (places[i] == NULL || places[i][0] != '/') {
            continue;
        }
        int length = snprintf(
            proxy->directory, sizeof proxy->directory, "%s/hearth-proxy-XXXXXX", places[i]
        );
        if (length > 0 && (size_t)length < sizeof proxy->directory &&
            mkdtemp(proxy->directory) != NULL) {
            (void)snprintf(proxy->path, sizeof proxy->path, "%s/socket", proxy->directory);
            return true;
        }
    }
    proxy->directory[0] = '\0';
    return false;
}

static result listen_on(struct proxy *proxy, struct error *error) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    _Static_assert(sizeof proxy->path <= sizeof address.sun_path, "the path fits");
    memcpy(address.sun_path, proxy->path, sizeof proxy->path);
    proxy->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (proxy->listen_fd < 0 ||
        bind(proxy->listen_fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(proxy->listen_fd, PROXY_CALLS_MAX) != 0) {
        FAIL_FOREIGN(error, IO, errno, "proxy socket '%s': %s", proxy->path, strerror(errno));
    }
    return OK;
}

static void set_default(int64_t *value, int64_t normal) {
    *value = *value > 0 ? *value : normal;
}

static result start(struct proxy *proxy, struct error *error) {
    struct proxy_options *options = &proxy->options;
    set_default(&options->head_ms, HEAD_MS_DEFAULT);
    set_default(&options->connect_ms, CONNECT_MS_DEFAULT);
    set_default(&options->idle_ms, IDLE_MS_DEFAULT);
    set_default(&options->total_ms, TOTAL_MS_DEFAULT);
    options->tls_port = options->tls_port != 0 ? options->tls_port : TLS_PORT_DEFAULT;
    TRY(name_resolver_open(&proxy->resolver, options->resolve, options->resolve_context, error));
    proxy->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (proxy->stop_fd < 0 || !make_directory(proxy)) {
        FAIL_FOREIGN(error, IO, errno, "no place for the proxy's socket: %s", strerror(errno));
    }
    TRY(listen_on(proxy, error));
    int status = start_thread(&proxy->acceptor, false, accept_all, proxy);
    if (status != 0) {
        FAIL_FOREIGN(error, IO, status, "a thread for the proxy: %s", strerror(status));
    }
    proxy->has_acceptor = true;
    return OK;
}

result proxy_open(struct proxy **out, const struct proxy_options *options, struct error *error) {
    ASSERT(options->rules != NULL);
    struct proxy *proxy = calloc(1, sizeof *proxy);
    if (proxy == NULL) {
        FAIL(error, MEMORY, "no memory for a proxy");
    }
    proxy->options = *options;
    proxy->listen_fd = proxy->stop_fd = -1;
    int status = pthread_mutex_init(&proxy->lock, NULL);
    ASSERT(status == 0);
    status = pthread_mutex_init(&proxy->decided_lock, NULL);
    ASSERT(status == 0);
    status = pthread_cond_init(&proxy->idle, NULL);
    ASSERT(status == 0);
    result started = start(proxy, error);
    if (is_failed(started)) {
        proxy_close(proxy);
        return started;
    }
    *out = proxy;
    return OK;
}

const char *proxy_socket(const struct proxy *proxy) {
    return proxy->path;
}

void proxy_close(struct proxy *proxy) {
    if (proxy == NULL) {
        return;
    }
    if (proxy->has_acceptor) {
        (void)eventfd_write(proxy->stop_fd, 1); // cannot overflow
        (void)pthread_join(proxy->acceptor, NULL);
    }
    lock(&proxy->lock);
    while (proxy->active > 0) {
        (void)pthread_cond_wait(&proxy->idle, &proxy->lock);
    }
    unlock(&proxy->lock);
    if (proxy->directory[0] != '\0') {
        (void)unlink(proxy->path);
        (void)rmdir(proxy->directory); // a private, empty directory is all that can be left
    }
    fd_cleanup(&proxy->listen_fd);
    fd_cleanup(&proxy->stop_fd);
    name_resolver_close(proxy->resolver);
    (void)pthread_cond_destroy(&proxy->idle);
    (void)pthread_mutex_destroy(&proxy->decided_lock);
    (void)pthread_mutex_destroy(&proxy->lock);
    free(proxy);
}

void proxy_cleanup(struct proxy **proxy) {
    proxy_close(*proxy);
    *proxy = NULL;
}
