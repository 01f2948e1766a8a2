/* Replays a simulated day of agent traffic against policies of eviction, at several sizes of memory.
 *
 *   simulate_cache [--seed N] [--sessions N] [--divisor N] [--plot FILE]
 *
 * Prints what the day is like and a Markdown table; writes the plot as SVG. Defaults: seed 1, 600
 * sessions, full sizes; some minutes and 4 GB. The same arguments give the same numbers, times of
 * lookups apart. docs/cache.md holds a run.
 */
#include "traffic_report.h"

#define SIZES     4
#define SERIES    7
#define SNAPSHOTS 1024

static const int32_t gibibytes[SIZES] = {4, 8, 16, 32};
static const enum traffic_policy policies[SERIES] = {
    TRAFFIC_POLICY_LRU,
    TRAFFIC_POLICY_LEAF_LRU,
    TRAFFIC_POLICY_STORE,
    TRAFFIC_POLICY_TREE,
    TRAFFIC_POLICY_TREE,
    TRAFFIC_POLICY_TREE,
    TRAFFIC_POLICY_IDEAL};
static const char *const names[SERIES] = {
    "plain LRU",
    "leaf-first LRU",
    "default: the engine's store",
    "its tree alone, no disk",
    "its tree alone, 16 GiB of disk",
    "its tree alone, 256 GiB of disk",
    "ideal order"};
static const char *const styles[SERIES] = {
    "lru", "leaf", "store", "tree", "disk", "large", "ideal"};
#define STORE     2
#define TREE      3
#define WITH_DISK 4 /* the default budgets */
#define WITH_MORE 5 /* room for a day of this traffic, and no limit an hour */

static int32_t blocks_of(int64_t bytes) {
    return narrow_i32(bytes / TRAFFIC_BLOCK_BYTES);
}

/* Sizes shrink with the texts. */
static struct traffic_cache_options
cache_options(int32_t series, int32_t size, const struct traffic_options *day) {
    int64_t unit = ((int64_t)1 << 30) / day->token_divisor;
    struct traffic_cache_options options = {
        .policy = policies[series],
        .blocks = blocks_of(gibibytes[size] * unit),
        .snapshots = SNAPSHOTS,
        .snapshot_ms = 600000,
    };
    if (series == WITH_DISK) {
        options.disk_blocks = blocks_of(16 * unit);
        options.writes_per_hour = blocks_of(8 * unit);
    } else if (series == WITH_MORE) {
        options.disk_blocks = blocks_of(256 * unit);
    }
    return options;
}

static void print_day(const struct traffic *traffic, const struct traffic_summary *day) {
    printf(
        "seed %llu, %d sessions, %d agents, %d requests, %.2f G prompt tokens, %.1f M generated\n"
        "turns of a session %d (median), prompt %d of main agents, %d of all (p90 %d, most %d), "
        "output %d\n"
        "returns within 1 s %.2f %%, 10 s %.2f %%, 1 h %.2f %%, longest %.1f h\n"
        "sub-agents in %.1f %% of sessions (%d forked, %d fresh), %d retries, %d rewinds, %d "
        "compactions, %d cancelled; at most %d requests at a time\n\n",
        (unsigned long long)traffic->options.seed,
        traffic->options.sessions,
        traffic->agent_count,
        traffic->request_count,
        (double)day->prompt_tokens / 1e9,
        (double)day->output_tokens / 1e6,
        day->turns_median,
        day->prompt_median,
        day->prompt_median_all,
        day->prompt_p90,
        day->prompt_max,
        day->output_median,
        100 * day->returns_1s,
        100 * day->returns_10s,
        100 * day->returns_1h,
        (double)day->gap_max_ms / 3.6e6,
        100 * day->with_children,
        traffic->forked,
        traffic->spawned,
        traffic->retries,
        traffic->rewinds,
        traffic->compactions,
        traffic->cancelled,
        day->concurrent_max
    );
}

static void
print_rest(const struct traffic_outcome *unlimited, const struct traffic_outcome *disk) {
    printf(
        "\nnew blocks of the day: %lld (%.1f GB)\n",
        (long long)unlimited->filed,
        (double)unlimited->filed * TRAFFIC_BLOCK_BYTES / 1e9
    );
    for (int32_t size = 0; size < SIZES; size++) {
        const struct traffic_outcome *outcome = &disk[size];
        int64_t most = 0;
        for (int32_t hour = 0; hour < TRAFFIC_HOURS; hour++) {
            most = outcome->written_hour[hour] > most ? outcome->written_hour[hour] : most;
        }
        printf(
            "%d GiB of memory, 16 GiB of disk: written %.3f of new blocks, at most %.2f GB an "
            "hour; "
            "%.1f GB evicted from disk\n",
            gibibytes[size],
            (double)outcome->written / (double)unlimited->filed,
            (double)most * TRAFFIC_BLOCK_BYTES / 1e9,
            (double)outcome->disk_evicted * TRAFFIC_BLOCK_BYTES / 1e9
        );
    }
}

static result run(const struct traffic_options *options, const char *plot, struct error *error) {
    struct traffic traffic;
    struct traffic_summary day;
    TRY(traffic_make(options, &traffic, error));
    static struct traffic_outcome outcomes[SERIES * SIZES + 1];
    struct traffic_cache_options caches[SERIES * SIZES + 1];
    for (int32_t i = 0; i < SERIES * SIZES; i++) {
        caches[i] = cache_options(i / SIZES, i % SIZES, options);
    }
    caches[SERIES * SIZES] = cache_options(1, 0, options);
    caches[SERIES * SIZES].blocks = traffic_blocks_bound(&traffic);
    result done = traffic_summarize(&traffic, &day, error);
    if (is_ok(done)) {
        print_day(&traffic, &day);
        done = traffic_replay(&traffic, caches, SERIES * SIZES + 1, outcomes, error);
    }
    traffic_free(&traffic);
    TRY(done);
    struct traffic_series series[SERIES];
    for (int32_t i = 0; i < SERIES; i++) {
        series[i] = (struct traffic_series
        ){.name = names[i],
          .style = styles[i],
          .outcomes = &outcomes[(ptrdiff_t)i * SIZES],
          .has_disk = i == WITH_DISK || i == WITH_MORE};
    }
    struct traffic_report report = {
        .series = series,
        .series_count = SERIES,
        .gibibytes = gibibytes,
        .size_count = SIZES,
        .unlimited = &outcomes[SERIES * SIZES],
    };
    traffic_report_table(&report, stdout);
    traffic_report_store(&report, &series[STORE], &series[TREE], stdout);
    print_rest(report.unlimited, series[WITH_DISK].outcomes);
    if (plot != NULL) {
        CLEANUP(file_cleanup) FILE *file = fopen(plot, "w");
        if (file == NULL) {
            FAIL(error, IO, "cannot write %s", plot);
        }
        traffic_report_plot(&report, file);
    }
    return OK;
}

static int usage(void) {
    fprintf(
        stderr,
        "usage: simulate_cache [--seed N] [--sessions 1 to 5000] [--divisor 1 to 64] [--plot "
        "FILE]\n"
    );
    return 2;
}

int main(int argc, char **argv) {
    struct traffic_options options = {.seed = 1, .sessions = 600, .token_divisor = 1};
    const char *plot = NULL;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) {
            return usage();
        }
        long value = strtol(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--plot") == 0) {
            plot = argv[i + 1];
        } else if (strcmp(argv[i], "--seed") == 0 && value >= 0) {
            options.seed = (uint64_t)value;
        } else if (strcmp(argv[i], "--sessions") == 0 && value >= 1 && value <= 5000) {
            options.sessions = (int32_t)value;
        } else if (strcmp(argv[i], "--divisor") == 0 && value >= 1 && value <= 64) {
            options.token_divisor = (int32_t)value;
        } else {
            return usage();
        }
    }
    struct error error = {0};
    if (is_failed(run(&options, plot, &error))) {
        fprintf(stderr, "simulate_cache: %s\n", error.message);
        return 1;
    }
    return 0;
}
