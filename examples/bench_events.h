/* Waiting for an engine's events, for benchmarks that have no loop. Thread: the caller's; `wake` is
 * called by the engine's. */
#ifndef HEARTH_EXAMPLES_BENCH_EVENTS_H
#define HEARTH_EXAMPLES_BENCH_EVENTS_H

#include "engine/engine.h"

#include <pthread.h>

struct waker {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool is_awake;
};

/* The engine's wake function; `context` is a struct waker. */
void wake(void *context);
/* Blocks until there is an event. */
struct engine_event next_event(struct engine *engine, struct waker *waker);

#endif
