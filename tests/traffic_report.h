/* A replayed day as a Markdown table and as an SVG plot. */
#ifndef HEARTH_TESTS_TRAFFIC_REPORT_H
#define HEARTH_TESTS_TRAFFIC_REPORT_H

#include "traffic_replay.h"

#define TRAFFIC_BLOCK_BYTES 113920 /* the release's: 128 tokens of 890 bytes */

/* One kind of cache at all memory sizes: a line of the plot. */
struct traffic_series {
    const char *name;
    const char *style;                      /* class of the line in the plot's style sheet */
    const struct traffic_outcome *outcomes; /* [size_count] */
    bool has_disk;
};

struct traffic_report {
    const struct traffic_series *series; /* [series_count] */
    int32_t series_count;
    const int32_t *gibibytes; /* [size_count] of memory, ascending */
    int32_t size_count;
    const struct traffic_outcome *unlimited; /* one that never evicts */
};

void traffic_report_table(const struct traffic_report *report, FILE *out);
/* What the engine's store counted at each size; `series` is one of TRAFFIC_POLICY_STORE, `beside` one
 * whose lookups are the tree's alone. */
void traffic_report_store(
    const struct traffic_report *report,
    const struct traffic_series *series,
    const struct traffic_series *beside,
    FILE *out
);
/* Hit rate, and tokens computed again though they were computed before, over memory. */
void traffic_report_plot(const struct traffic_report *report, FILE *out);

#endif
