#include "bench_events.h"

void wake(void *context) {
    struct waker *waker = context;
    pthread_mutex_lock(&waker->lock);
    waker->is_awake = true;
    pthread_cond_signal(&waker->woken);
    pthread_mutex_unlock(&waker->lock);
}

struct engine_event next_event(struct engine *engine, struct waker *waker) {
    struct engine_event event;
    while (!engine_next_event(engine, &event)) {
        pthread_mutex_lock(&waker->lock);
        while (!waker->is_awake) {
            pthread_cond_wait(&waker->woken, &waker->lock);
        }
        waker->is_awake = false;
        pthread_mutex_unlock(&waker->lock);
    }
    return event;
}
