/* Makes the nth allocation of a test fail: link with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
 * and failing_memory.c. Only our own code is affected; shared libraries keep theirs. Armed by
 * one thread while no other allocates. */
#ifndef HEARTH_TESTS_FAILING_MEMORY_H
#define HEARTH_TESTS_FAILING_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* The nth allocation from now on (1 is the next one) fails, once. 0: none does. */
void failing_memory_arm(size_t nth);
/* Whether it came to that. */
bool failing_memory_fired(void);
/* Allocations of our own code so far, of all threads. */
size_t failing_memory_count(void);
/* Bytes asked for by calloc so far; only what a test measures needs it. */
size_t failing_memory_bytes(void);

#endif
