/* See the header. The names are what ld --wrap asks for. */
#include "failing_memory.h"

#include <stdatomic.h>

void *__real_malloc(size_t bytes);               // NOLINT(bugprone-reserved-identifier)
void *__real_calloc(size_t count, size_t bytes); // NOLINT(bugprone-reserved-identifier)
void *__real_realloc(void *old, size_t bytes);   // NOLINT(bugprone-reserved-identifier)
void *__wrap_malloc(size_t bytes);               // NOLINT(bugprone-reserved-identifier)
void *__wrap_calloc(size_t count, size_t bytes); // NOLINT(bugprone-reserved-identifier)
void *__wrap_realloc(void *old, size_t bytes);   // NOLINT(bugprone-reserved-identifier)

static size_t countdown;
static bool fired;
static atomic_size_t allocations;
static atomic_size_t asked_bytes;

void failing_memory_arm(size_t nth) {
    countdown = nth;
    fired = false;
}

bool failing_memory_fired(void) {
    return fired;
}

size_t failing_memory_count(void) {
    return atomic_load(&allocations);
}

size_t failing_memory_bytes(void) {
    return atomic_load(&asked_bytes);
}

static bool has_to_fail(void) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed); /* only the sum counts */
    if (countdown == 0) {
        return false;
    }
    countdown -= 1;
    fired = countdown == 0;
    return fired;
}

void *__wrap_malloc(size_t bytes) {
    return has_to_fail() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    atomic_fetch_add_explicit(&asked_bytes, count * bytes, memory_order_relaxed);
    return has_to_fail() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes) {
    return has_to_fail() ? NULL : __real_realloc(old, bytes);
}
