#include "loopback_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

struct loopback_server {
    int listener;
    int stop;
    uint16_t port;
    pthread_t thread;
    loopback_handle *handle;
    void *context;
    atomic_uint accepted;
};

static void *serve(void *argument) {
    struct loopback_server *server = argument;
    for (;;) {
        struct pollfd entries[2] = {
            {.fd = server->stop, .events = POLLIN}, {.fd = server->listener, .events = POLLIN}};
        (void)poll(entries, 2, -1);
        if (entries[0].revents != 0) {
            return NULL;
        }
        int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0) {
            atomic_fetch_add(&server->accepted, 1);
            server->handle(server->context, fd);
            close(fd);
        }
    }
}

struct loopback_server *loopback_start(loopback_handle *handle, void *context) {
    struct loopback_server *server = calloc(1, sizeof *server);
    ASSERT(server != NULL);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    server->handle = handle;
    server->context = context;
    server->stop = eventfd(0, EFD_CLOEXEC);
    server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int status = bind(server->listener, (const struct sockaddr *)&address, sizeof address);
    ASSERT(status == 0);
    status = listen(server->listener, 100);
    ASSERT(status == 0);
    status = getsockname(server->listener, (struct sockaddr *)&address, &size);
    ASSERT(status == 0);
    server->port = ntohs(address.sin_port);
    status = pthread_create(&server->thread, NULL, serve, server);
    ASSERT(status == 0);
    return server;
}

uint16_t loopback_port(const struct loopback_server *server) {
    return server->port;
}

unsigned loopback_accepted(const struct loopback_server *server) {
    return atomic_load(&server->accepted);
}

void loopback_stop(struct loopback_server *server) {
    (void)eventfd_write(server->stop, 1);
    (void)pthread_join(server->thread, NULL);
    close(server->listener);
    close(server->stop);
    free(server);
}

static void send_text(int fd, const char *text) {
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

void loopback_exchange(void *context, int fd) {
    struct loopback_exchange *exchange = context;
    size_t room = sizeof exchange->request - 1;
    size_t wanted = SIZE_MAX;
    exchange->request_bytes = 0;
    while (exchange->request_bytes < room && exchange->request_bytes < wanted) {
        ssize_t got = recv(
            fd, exchange->request + exchange->request_bytes, room - exchange->request_bytes, 0
        );
        if (got <= 0) {
            break;
        }
        exchange->request_bytes += (size_t)got;
        exchange->request[exchange->request_bytes] = '\0';
        const char *end = strstr(exchange->request, "\r\n\r\n");
        const char *length = strstr(exchange->request, "Content-Length: ");
        if (end != NULL) {
            size_t body = length != NULL ? strtoul(length + 16, NULL, 10) : 0;
            wanted = (size_t)(end - exchange->request) + 4 + body;
        }
    }
    send_text(fd, exchange->answer);
    (void)shutdown(fd, SHUT_WR);
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    char more[512]; // whatever else was sent is kept behind the request
    while (poll(&entry, 1, 2000) > 0) {
        ssize_t got = recv(fd, more, sizeof more, 0);
        if (got <= 0) {
            return;
        }
        size_t fits = room - exchange->request_bytes;
        fits = (size_t)got < fits ? (size_t)got : fits;
        memcpy(exchange->request + exchange->request_bytes, more, fits);
        exchange->request_bytes += fits;
        exchange->request[exchange->request_bytes] = '\0';
    }
}

void loopback_echo(void *context, int fd) {
    (void)context;
    char bytes[4096];
    for (;;) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        if (got <= 0 || send(fd, bytes, (size_t)got, MSG_NOSIGNAL) != got) {
            return;
        }
    }
}
