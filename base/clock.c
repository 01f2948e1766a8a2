/* The real clock; simulated ones live in tests. */
#include "clock.h"

#include <stddef.h>
#include <time.h>

static int64_t read_ms(clockid_t id) {
    struct timespec now = {0, 0};
    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t real_monotonic_ms(void *context) {
    (void)context;
    return read_ms(CLOCK_MONOTONIC);
}

static int64_t real_wall_ms(void *context) {
    (void)context;
    return read_ms(CLOCK_REALTIME);
}

struct clock clock_real(void) {
    struct clock clock = {real_monotonic_ms, real_wall_ms, NULL};
    return clock;
}
