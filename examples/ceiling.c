/* Read bandwidth and multiply rate by plain loops that the compiler turns into vector code of the best
 * instruction set at hand. See ceiling.h. */
#include "ceiling.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define READ_BYTES  ((size_t)128 << 20)
#define FMA_ROUNDS  ((int64_t)1 << 21)
#define LANES_MAX   192
#define LANES_AVX2  96
#define THREADS_MAX 64

/* The same loops, compiled for each instruction set. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_AVX512 __attribute__((optimize("O3"), target("avx512f,prefer-vector-width=512")))
#define FOR_AVX2   __attribute__((optimize("O3"), target("avx2,fma")))
#define HAVE_X86
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE uint64_t read_all(const uint64_t *memory, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += memory[i];
    }
    return sum;
}

/* Twelve vectors of independent chains hide the latency of the multiply-add (4 cycles on 2 ports asks
 * for 8) and stay within the 16 registers of AVX2. */
INLINE float multiply_all(int64_t rounds, int lanes) {
    float sums[LANES_MAX];
    for (int i = 0; i < lanes; i++) {
        sums[i] = (float)i;
    }
    for (int64_t round = 0; round < rounds; round++) {
        for (int i = 0; i < lanes; i++) {
            sums[i] = __builtin_fmaf(sums[i], 0.999F, 0.5F);
        }
    }
    float total = 0;
    for (int i = 0; i < lanes; i++) {
        total += sums[i];
    }
    return total;
}

#ifdef HAVE_X86
FOR_AVX512 static uint64_t read_avx512(const uint64_t *memory, size_t count) {
    return read_all(memory, count);
}

FOR_AVX512 static float multiply_avx512(int64_t rounds) {
    return multiply_all(rounds, LANES_MAX);
}

FOR_AVX2 static uint64_t read_avx2(const uint64_t *memory, size_t count) {
    return read_all(memory, count);
}

FOR_AVX2 static float multiply_avx2(int64_t rounds) {
    return multiply_all(rounds, LANES_AVX2);
}
#endif

static uint64_t read_best(const uint64_t *memory, size_t count) {
#ifdef HAVE_X86
    if (__builtin_cpu_supports("avx512f") != 0) {
        return read_avx512(memory, count);
    }
    if (__builtin_cpu_supports("avx2") != 0) {
        return read_avx2(memory, count);
    }
#endif
    return read_all(memory, count);
}

/* `lanes` comes back as the number of chains, each one multiply-add a round. */
static float multiply_best(int64_t rounds, int *lanes) {
    *lanes = LANES_AVX2;
#ifdef HAVE_X86
    if (__builtin_cpu_supports("avx512f") != 0) {
        *lanes = LANES_MAX;
        return multiply_avx512(rounds);
    }
    if (__builtin_cpu_supports("fma") != 0) {
        return multiply_avx2(rounds);
    }
#endif
    return multiply_all(rounds, LANES_AVX2);
}

struct task {
    const uint64_t *memory; /* null: multiply */
    size_t count;
    int64_t rounds;
    int lanes; /* set by the task that multiplies */
    volatile double sink;
};

static void *task_main(void *argument) {
    struct task *task = argument;
    task->sink = task->memory != NULL ? (double)read_best(task->memory, task->count)
                                      : (double)multiply_best(task->rounds, &task->lanes);
    return NULL;
}

static double seconds_now(clockid_t clock) {
    struct timespec now = {0, 0};
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double run_tasks(struct task *tasks, int threads, clockid_t clock) {
    pthread_t handles[THREADS_MAX];
    int started = 0;
    double begin = seconds_now(clock);
    while (started < threads &&
           pthread_create(&handles[started], NULL, task_main, &tasks[started]) == 0) {
        started++;
    }
    for (int t = 0; t < started; t++) {
        (void)pthread_join(handles[t], NULL);
    }
    return started == threads ? seconds_now(clock) - begin : 0;
}

struct ceiling ceiling_measure(int threads, clockid_t clock) {
    struct ceiling ceiling = {0, 0};
    struct task tasks[THREADS_MAX];
    threads = threads < 1 ? 1 : threads > THREADS_MAX ? THREADS_MAX : threads;
    size_t count = READ_BYTES / sizeof(uint64_t);
    uint64_t *memory = malloc(READ_BYTES);
    if (memory == NULL) {
        return ceiling;
    }
    memset(memory, 1, READ_BYTES);
    size_t share = count / (size_t)threads;
    for (int t = 0; t < threads; t++) {
        tasks[t] = (struct task){.memory = memory + (size_t)t * share, .count = share};
    }
    for (int i = 0; i < 3; i++) {
        double seconds = run_tasks(tasks, threads, clock);
        double rate = seconds > 0 ? (double)READ_BYTES / seconds : 0;
        ceiling.read_bytes_per_second =
            rate > ceiling.read_bytes_per_second ? rate : ceiling.read_bytes_per_second;
    }
    free(memory);
    for (int t = 0; t < threads; t++) {
        tasks[t] = (struct task){.rounds = FMA_ROUNDS};
    }
    for (int i = 0; i < 3; i++) {
        double seconds = run_tasks(tasks, threads, clock);
        double flops = 2.0 * tasks[0].lanes * (double)FMA_ROUNDS * threads;
        double rate = seconds > 0 ? flops / seconds : 0;
        ceiling.fma_flops_per_second =
            rate > ceiling.fma_flops_per_second ? rate : ceiling.fma_flops_per_second;
    }
    return ceiling;
}
