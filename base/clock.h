/* Time as an input: code that decides takes a `struct clock`, so that tests can simulate it. */
#ifndef HEARTH_BASE_CLOCK_H
#define HEARTH_BASE_CLOCK_H

#include <stdint.h>

struct clock {
    /* Milliseconds that never jump; only differences mean something. */
    int64_t (*monotonic_ms)(void *context);
    /* Milliseconds since 1970-01-01 UTC; may jump. */
    int64_t (*wall_ms)(void *context);
    void *context;
};

/* The machine's own clock. Thread: any. */
struct clock clock_real(void);

static inline int64_t clock_monotonic_ms(const struct clock *clock) {
    return clock->monotonic_ms(clock->context);
}

static inline int64_t clock_wall_ms(const struct clock *clock) {
    return clock->wall_ms(clock->context);
}

#endif
