/* What the two halves of the proxy share. Internal to proxy*.c. */
#ifndef HEARTH_RUNTIME_PROXY_INTERNAL_H
#define HEARTH_RUNTIME_PROXY_INTERNAL_H

#include <pthread.h>

#include "proxy.h"

struct proxy_connection {
    struct proxy *proxy;
    bool is_used;
    int client_fd; /* guarded by the proxy's lock: the acceptor shuts it down */
    uint64_t call; /* number of the call it belongs to */
};

struct proxy {
    struct proxy_options options;
    struct name_resolver *resolver;
    char directory[80];
    char path[100];
    int listen_fd;
    int stop_fd; /* readable from the beginning of proxy_close on; every wait watches it */
    pthread_t acceptor;
    bool has_acceptor;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t idle;
    struct proxy_connection connections[PROXY_CONNECTIONS_MAX];
    size_t active;
    pthread_mutex_t decided_lock; /* one callback at a time */
};

/* Serves one request to its end; the client's descriptor stays open. */
void proxy_serve(struct proxy *proxy, int client_fd);

/* Answers with a status and closes the sending side. Waits until `deadline_ms` at most. */
void proxy_answer(
    struct proxy *proxy, int client_fd, int status, const char *text, int64_t until_ms
);

#endif
