/* What this machine can do, measured in the same run as what is compared with it. Thread: any. */
#ifndef HEARTH_EXAMPLES_CEILING_H
#define HEARTH_EXAMPLES_CEILING_H

#include <time.h>

struct ceiling {
    double read_bytes_per_second; /* of memory far larger than the caches, all threads together */
    double fma_flops_per_second;  /* FP32 fused multiply-adds count twice, all threads together */
};

/* Takes about a quarter of a second. Zeros when there is no memory for it. `clock` is the one that the
 * compared work is timed with: CLOCK_MONOTONIC, or with one thread CLOCK_PROCESS_CPUTIME_ID, which
 * leaves out what others on the machine take. */
struct ceiling ceiling_measure(int threads, clockid_t clock);

#endif
