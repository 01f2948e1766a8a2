/* Each lookup is an object with two owners, the waiting caller and the resolving thread; the last
 * of them frees it. */
#include "name_lookup.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"

#define STACK_BYTES ((size_t)512 << 10) /* what getaddrinfo's modules need, with room */

struct name_resolver {
    pthread_mutex_t lock;
    unsigned owners; /* the opener and each running lookup; guarded by lock */
    unsigned running;
    name_resolve *resolve;
    void *context;
};

struct lookup {
    struct name_resolver *resolver; /* a share of it */
    bool is_shared;                 /* both owners are alive; guarded by the resolver's lock */
    int done_fd;
    char host[256];
    uint16_t port;
    result status;
    struct name_addresses addresses;
    struct error error;
};

static result resolve_by_system(
    void *context, const char *host, uint16_t port, struct name_addresses *out, struct error *error
) {
    (void)context;
    char service[8];
    (void)snprintf(service, sizeof service, "%u", (unsigned)port);
    struct addrinfo hints = {
        .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG};
    struct addrinfo *list = NULL;
    int status = getaddrinfo(host, service, &hints, &list);
    if (status != 0) {
        FAIL_FOREIGN(error, NOT_FOUND, status, "'%.253s': %s", host, gai_strerror(status));
    }
    out->count = 0;
    for (struct addrinfo *item = list; item != NULL; item = item->ai_next) {
        bool fits = (item->ai_family == AF_INET || item->ai_family == AF_INET6) &&
                    item->ai_addrlen <= sizeof out->items[0];
        if (fits && out->count < NAME_ADDRESSES_MAX) {
            memcpy(&out->items[out->count++], item->ai_addr, item->ai_addrlen);
        }
    }
    freeaddrinfo(list);
    return OK;
}

static void lock(struct name_resolver *resolver) {
    int status = pthread_mutex_lock(&resolver->lock);
    ASSERT(status == 0);
}

static void unlock(struct name_resolver *resolver) {
    int status = pthread_mutex_unlock(&resolver->lock);
    ASSERT(status == 0);
}

result name_resolver_open(
    struct name_resolver **out, name_resolve *resolve, void *context, struct error *error
) {
    struct name_resolver *resolver = calloc(1, sizeof *resolver);
    if (resolver == NULL) {
        FAIL(error, MEMORY, "no memory for a resolver");
    }
    int status = pthread_mutex_init(&resolver->lock, NULL);
    ASSERT(status == 0);
    resolver->owners = 1;
    resolver->resolve = resolve != NULL ? resolve : resolve_by_system;
    resolver->context = context;
    *out = resolver;
    return OK;
}

static void release(struct name_resolver *resolver) {
    lock(resolver);
    ASSERT(resolver->owners > 0);
    bool is_last = --resolver->owners == 0;
    unlock(resolver);
    if (is_last) {
        (void)pthread_mutex_destroy(&resolver->lock);
        free(resolver);
    }
}

void name_resolver_close(struct name_resolver *resolver) {
    if (resolver != NULL) {
        release(resolver);
    }
}

/* One of the two owners goes. */
static void leave(struct lookup *lookup) {
    struct name_resolver *resolver = lookup->resolver;
    lock(resolver);
    bool is_last = !lookup->is_shared;
    lookup->is_shared = false;
    unlock(resolver);
    if (is_last) {
        close(lookup->done_fd);
        free(lookup);
        release(resolver);
    }
}

static void *run(void *argument) {
    struct lookup *lookup = argument;
    struct name_resolver *resolver = lookup->resolver;
    lookup->status = resolver->resolve(
        resolver->context, lookup->host, lookup->port, &lookup->addresses, &lookup->error
    );
    lock(resolver);
    resolver->running -= 1;
    unlock(resolver);
    (void)eventfd_write(lookup->done_fd, 1); // cannot overflow
    leave(lookup);
    return NULL;
}

/* A detached thread that takes no signals; they belong to the host's own threads. */
static int start_thread(struct lookup *lookup) {
    pthread_attr_t attributes;
    pthread_t thread;
    int status = pthread_attr_init(&attributes);
    if (status != 0) {
        return status;
    }
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    status = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (status == 0) {
        status = pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    }
    if (status == 0) {
        status = pthread_sigmask(SIG_SETMASK, &all, &old);
    }
    if (status == 0) {
        status = pthread_create(&thread, &attributes, run, lookup);
        (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    (void)pthread_attr_destroy(&attributes);
    return status;
}

static result begin(struct name_resolver *resolver, struct lookup *lookup, struct error *error) {
    lock(resolver);
    bool is_full = resolver->running >= NAME_LOOKUPS_MAX;
    if (!is_full) {
        resolver->running += 1;
        resolver->owners += 1;
    }
    unlock(resolver);
    if (is_full) {
        FAIL(error, LIMIT, "more than %d names are being looked up", NAME_LOOKUPS_MAX);
    }
    int status = start_thread(lookup);
    if (status != 0) {
        lock(resolver);
        resolver->running -= 1;
        resolver->owners -= 1;
        unlock(resolver);
        FAIL_FOREIGN(error, IO, status, "a thread for a lookup: %s", strerror(status));
    }
    return OK;
}

static result
wait_done(const struct lookup *lookup, int stop_fd, int64_t deadline_ms, struct error *error) {
    struct clock clock = clock_real();
    for (;;) {
        int64_t left = deadline_ms - clock_monotonic_ms(&clock);
        if (left <= 0) {
            FAIL(error, TIMEOUT, "'%.253s' was not resolved in time", lookup->host);
        }
        struct pollfd entries[2] = {
            {.fd = lookup->done_fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
        int ready = poll(entries, 2, left < 60000 ? (int)left : 60000);
        if (ready > 0 && entries[0].revents != 0) {
            return OK;
        }
        if (ready > 0) {
            FAIL(error, CANCELLED, "stopped while '%.253s' was resolved", lookup->host);
        }
    }
}

result name_lookup(
    struct name_resolver *resolver,
    const char *host,
    uint16_t port,
    int stop_fd,
    int64_t deadline_ms,
    struct name_addresses *out,
    struct error *error
) {
    struct lookup *lookup = calloc(1, sizeof *lookup);
    if (lookup == NULL) {
        FAIL(error, MEMORY, "no memory for a lookup");
    }
    lookup->resolver = resolver;
    lookup->is_shared = true;
    lookup->port = port;
    lookup->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)snprintf(lookup->host, sizeof lookup->host, "%s", host);
    result begun = lookup->done_fd < 0
                       ? error_set(error, RESULT_IO, errno, __FILE__, __LINE__, "eventfd")
                       : begin(resolver, lookup, error);
    if (is_failed(begun)) {
        if (lookup->done_fd >= 0) {
            close(lookup->done_fd);
        }
        free(lookup);
        return begun;
    }
    result done = wait_done(lookup, stop_fd, deadline_ms, error);
    lock(resolver); // behind the thread's own: what it wrote is now seen
    unlock(resolver);
    if (is_ok(done) && is_failed(lookup->status)) {
        done = error_set(
            error, lookup->status.code, 0, __FILE__, __LINE__, "%s", lookup->error.message
        );
    } else if (is_ok(done)) {
        *out = lookup->addresses;
    }
    leave(lookup);
    return done;
}
