/* bench_schedule [ROUNDS]: what the scheduler's decisions cost: admission, slots and rows for
 * 64, 1,000 and 4,096 sequences; the update of costs; drafts by lookup in contexts of 4K to 256K
 * ids. Medians and the 99th percentile of single calls, in us. */
#include "engine/lookup.h"
#include "engine/schedule.h"

#include <time.h>

#define ROUNDS_DEFAULT 2000
#define SEQUENCES_MAX  4096

static double now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a;
    double right = *(const double *)b;
    return left < right ? -1 : left > right ? 1 : 0;
}

static void report(const char *what, int32_t size, double *times, size_t count) {
    qsort(times, count, sizeof *times, compare);
    printf(
        "%-28s %7d: median %8.2f us, p99 %8.2f us\n",
        what,
        size,
        times[count / 2],
        times[count * 99 / 100]
    );
}

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* One in 8 queued, one in 4 parked, the rest active: most decode, some read prompts. */
static void fill(struct schedule_sequence *sequences, int32_t count, uint64_t *random) {
    for (int32_t i = 0; i < count; i++) {
        uint64_t kind = next(random) % 8;
        bool is_decoding = next(random) % 4 != 0;
        sequences[i] = (struct schedule_sequence){
            .number = i,
            .state = kind == 0  ? SCHEDULE_QUEUED
                     : kind < 3 ? SCHEDULE_PARKED
                                : SCHEDULE_ACTIVE,
            .agent = next(random) % 16,
            .served = (int64_t)(next(random) % 100000),
            .queue_number = (uint64_t)i + 1,
            .deadline_us = next(random) % 2 == 0 ? 0 : (int64_t)(next(random) % 60000000),
            .since_us = (int64_t)(next(random) % 1000000),
            .progress_us = (int64_t)(next(random) % 1000000),
            .rows_left = is_decoding ? 0 : (int32_t)(next(random) % 4000),
            .tokens_left = (int32_t)(next(random) % 500),
            .drafts = (int32_t)(next(random) % 8),
            .blocks_needed = (int32_t)(next(random) % 50),
            .is_decoding = is_decoding,
            .is_preemptible = true,
        };
    }
}

static void bench_decisions(int32_t count, size_t rounds, double *times) {
    static struct schedule_sequence sequences[SEQUENCES_MAX];
    struct schedule *schedule = NULL;
    struct error error = {0};
    if (is_failed(schedule_create(&schedule, SEQUENCES_MAX, &error))) {
        (void)fprintf(stderr, "bench_schedule: %s\n", error.message);
        exit(1);
    }
    struct schedule_cost cost = {0};
    struct schedule_rows_count rows = {{count, 8, 64}};
    schedule_cost_update(&cost, &rows, 90000);
    struct schedule_machine machine = {
        .now_us = 4000000,
        .cost = &cost,
        .rows_max = 1 << 14,
        .entries_max = count,
        .slots_total = count / 2,
        .slots_free = 2,
        .blocks_total = 100000,
        .blocks_promised = 99900,
    };
    uint64_t random = 1;
    int64_t entries = 0;
    for (size_t i = 0; i < rounds; i++) {
        fill(sequences, count, &random);
        struct schedule_step step = {0};
        double from = now_us();
        schedule_admit(schedule, &machine, sequences, count, &step);
        schedule_slots(schedule, &machine, sequences, count, &step);
        schedule_rows(schedule, &machine, sequences, count, &step);
        times[i] = now_us() - from;
        entries += step.entry_count;
    }
    report("decision, sequences", count, times, rounds);
    if (entries == 0) {
        printf("no rows were given\n");
    }
    for (size_t i = 0; i < rounds; i++) {
        rows.rows[SCHEDULE_DECODE] = 1 + (int32_t)(next(&random) % 64);
        double from = now_us();
        schedule_cost_update(&cost, &rows, 10000 + 1000 * rows.rows[SCHEDULE_DECODE]);
        times[i] = now_us() - from;
    }
    report("cost update", count, times, rounds);
    schedule_destroy(schedule);
}

/* Ids with copies: every now and then a piece of what was there comes again. */
static void bench_lookup(int32_t length, size_t rounds, double *times) {
    struct lookup *lookup = NULL;
    int32_t *ids = calloc((size_t)length, sizeof *ids);
    struct error error = {0};
    if (ids == NULL || is_failed(lookup_create(&lookup, length + (int32_t)rounds, &error))) {
        (void)fprintf(stderr, "bench_schedule: no memory for %d ids\n", length);
        exit(1);
    }
    uint64_t random = 2;
    for (int32_t i = 0; i < length;) {
        int32_t count = 1 + (int32_t)(next(&random) % 40);
        int32_t from = i > 100 ? (int32_t)(next(&random) % (uint64_t)(i - 50)) : -1;
        for (; count > 0 && i < length; count--, i++) {
            bool is_copy = from >= 0 && from < i;
            ids[i] = is_copy ? ids[from++] : (int32_t)(next(&random) % 2000);
        }
    }
    double from = now_us();
    lookup_append(lookup, ids, length);
    double all_us = now_us() - from;
    printf(
        "%-28s %7d: %.3f us an id, %.1f ms in all, %llu bytes\n",
        "lookup, prompt",
        length,
        all_us / length,
        all_us / 1000,
        (unsigned long long)lookup_bytes(length + (int32_t)rounds)
    );
    int64_t drafted = 0;
    for (size_t i = 0; i < rounds; i++) {
        struct lookup_draft draft;
        from = now_us();
        lookup_propose(lookup, 8, &draft);
        times[i] = now_us() - from;
        drafted += draft.count;
        int32_t id = draft.count > 0 && next(&random) % 16 != 0
                         ? draft.ids[0]
                         : ids[next(&random) % (uint64_t)length];
        lookup_append(lookup, &id, 1);
    }
    report("lookup, draft of 8", length, times, rounds);
    if (drafted == 0) {
        printf("nothing was drafted\n");
    }
    lookup_destroy(lookup);
    free(ids);
}

int main(int argc, char **argv) {
    long wanted = argc > 1 ? strtol(argv[1], NULL, 10) : ROUNDS_DEFAULT;
    if (argc > 2 || wanted < 1 || wanted > 1000000) {
        (void)fprintf(stderr, "usage: bench_schedule [ROUNDS]\n");
        return 2;
    }
    size_t rounds = (size_t)wanted;
    double *times = calloc(rounds, sizeof *times);
    if (times == NULL) {
        return 1;
    }
    static const int32_t sizes[] = {1, 16, 64, 1000, SEQUENCES_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        bench_decisions(sizes[i], rounds, times);
    }
    static const int32_t lengths[] = {4096, 32768, 131072, 262144};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        bench_lookup(lengths[i], rounds, times);
    }
    free(times);
    return 0;
}
