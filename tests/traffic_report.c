/* Table and plot of a replayed day. See traffic_report.h. The plot is plain SVG that follows the
 * reader's light or dark scheme; lines differ by dashes as well as by colour. */
#include "traffic_report.h"

#define PANEL_WIDTH  330
#define PANEL_HEIGHT 250
#define PANEL_TOP    56
#define TICKS        5

static double share(int64_t part, int64_t whole) {
    return whole > 0 ? (double)part / (double)whole : 0;
}

/* Tokens that a cache without limits would not have computed, in millions. */
static double again(const struct traffic_report *report, const struct traffic_outcome *outcome) {
    double tokens = (double)(outcome->evaluated - report->unlimited->evaluated) / 1e6;
    return tokens < 0 && tokens > -0.05 ? 0 : tokens; /* not "-0.0" */
}

static double gigabytes(int64_t blocks) {
    return (double)blocks * TRAFFIC_BLOCK_BYTES / 1e9;
}

static void print_row(
    const struct traffic_report *report,
    const char *memory,
    const char *name,
    const struct traffic_outcome *outcome,
    bool has_disk,
    FILE *out
) {
    fprintf(
        out,
        "| %s | %s | %.2f | %.2f | %.1f | %.1f | %.1f | %.1f / %.1f / %.1f | %lld |",
        memory,
        name,
        100 * share(outcome->reused, outcome->prompt),
        100 * share(outcome->reused - outcome->rebuilt, outcome->prompt),
        (double)outcome->evaluated / 1e6,
        again(report, outcome),
        (double)outcome->rebuilt / 1e6,
        100 * share(outcome->live, outcome->requests),
        100 * share(outcome->snapshot_hits, outcome->requests),
        100 * share(outcome->rebuilds, outcome->requests),
        (long long)(outcome->evicted / 1000)
    );
    if (has_disk) {
        fprintf(
            out, " %.1f | %.1f |\n", gigabytes(outcome->written), (double)outcome->from_disk / 1e6
        );
    } else {
        fprintf(out, " - | - |\n");
    }
}

void traffic_report_table(const struct traffic_report *report, FILE *out) {
    fprintf(
        out,
        "| memory | policy | hit rate, %% | saved, %% | evaluated, M | of these again, M | "
        "rebuilt, M "
        "| live / snapshot / rebuilt, %% | evicted, k blocks | written, GB | from disk, M |\n"
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for (int32_t size = 0; size < report->size_count; size++) {
        for (int32_t i = 0; i < report->series_count; i++) {
            const struct traffic_series *series = &report->series[i];
            char memory[32];
            int length = snprintf(memory, sizeof memory, "%d GiB", report->gibibytes[size]);
            ASSERT(length > 0);
            print_row(report, memory, series->name, &series->outcomes[size], series->has_disk, out);
        }
    }
    print_row(report, "no limit", "-", report->unlimited, false, out);
}

static void print_counts(int32_t gibibytes, const struct traffic_store_counts *counts, FILE *out) {
    const struct kv_window_counts *windows = &counts->engine.windows;
    const uint64_t *misses = counts->engine.misses;
    const uint64_t *removed = counts->engine.tree.removed;
    fprintf(
        out,
        "| %d GiB | %llu / %llu | %llu | %llu / %llu / %llu / %llu | %lld / %lld / %lld | %lld | "
        "%llu / %llu / %llu / %llu |",
        gibibytes,
        (unsigned long long)removed[KV_PREFIX_MISS_EVICTED] / 1000,
        (unsigned long long)removed[KV_PREFIX_MISS_EXPIRED] / 1000,
        (unsigned long long)windows->captured,
        (unsigned long long)windows->used,
        (unsigned long long)windows->expired,
        (unsigned long long)windows->dropped,
        (unsigned long long)windows->evicted,
        (long long)counts->ended_waiting,
        (long long)counts->ended_for_place,
        (long long)counts->ended_for_memory,
        (long long)counts->refused,
        (unsigned long long)misses[KV_PREFIX_MISS_NONE],
        (unsigned long long)misses[KV_PREFIX_MISS_DIVERGENT],
        (unsigned long long)misses[KV_PREFIX_MISS_NEVER_COMPUTED],
        (unsigned long long)misses[KV_PREFIX_MISS_EVICTED]
    );
}

void traffic_report_store(
    const struct traffic_report *report,
    const struct traffic_series *series,
    const struct traffic_series *beside,
    FILE *out
) {
    fprintf(
        out,
        "\n| memory | k blocks evicted / expired | snapshots taken | used / expired / gone with "
        "their block / evicted | ended: long tool / place / memory | refused | lookups that miss: "
        "nothing / divergent / never computed / evicted | kv_store_begin, us, median / 99 %% | "
        "tree alone |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for (int32_t size = 0; size < report->size_count; size++) {
        const struct traffic_outcome *outcome = &series->outcomes[size];
        print_counts(report->gibibytes[size], &outcome->store, out);
        fprintf(
            out,
            " %.0f / %.0f | %.0f / %.0f |\n",
            outcome->lookup_us[0],
            outcome->lookup_us[1],
            beside->outcomes[size].lookup_us[0],
            beside->outcomes[size].lookup_us[1]
        );
    }
    fprintf(out, "\nforks: %lld\n", (long long)series->outcomes[0].store.forks);
}

/* ---- plot ---- */

struct axis {
    const char *title;
    double low, high;
    int digits;
    double left;
    bool is_rate; /* hit rate in percent; else millions of tokens */
};

static double value_of(
    const struct traffic_report *report, const struct axis *axis, int32_t series, int32_t size
) {
    const struct traffic_outcome *outcome = &report->series[series].outcomes[size];
    return axis->is_rate ? 100 * share(outcome->reused, outcome->prompt) : again(report, outcome);
}

static double x_of(const struct traffic_report *report, const struct axis *axis, int32_t size) {
    int32_t steps = report->size_count > 1 ? report->size_count - 1 : 1;
    return axis->left + (double)PANEL_WIDTH * size / steps;
}

static double y_of(const struct axis *axis, double value) {
    return PANEL_TOP + PANEL_HEIGHT * (axis->high - value) / (axis->high - axis->low);
}

/* Ticks at 1, 2 or 5 times a power of ten, so that five of them hold all values. */
static void fit_axis(const struct traffic_report *report, struct axis *axis) {
    double low = axis->is_rate ? 100 : 0;
    double high = 0;
    for (int32_t series = 0; series < report->series_count; series++) {
        for (int32_t size = 0; size < report->size_count; size++) {
            double value = value_of(report, axis, series, size);
            low = value < low ? value : low;
            high = value > high ? value : high;
        }
    }
    static const double steps[] = {0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000};
    size_t step = 0;
    while (step + 1 < COUNT_OF(steps) &&
           (double)(int64_t)(low / steps[step]) * steps[step] + TICKS * steps[step] < high) {
        step++;
    }
    axis->low = (double)(int64_t)(low / steps[step]) * steps[step];
    axis->high = axis->low + TICKS * steps[step];
    axis->digits = steps[step] < 1 ? 1 : 0;
}

static void print_frame(const struct traffic_report *report, const struct axis *axis, FILE *out) {
    double bottom = PANEL_TOP + PANEL_HEIGHT;
    fprintf(
        out,
        "<text class=\"title\" x=\"%.0f\" y=\"%d\">%s</text>\n",
        axis->left - 40,
        PANEL_TOP - 18,
        axis->title
    );
    for (int32_t i = 0; i <= TICKS; i++) {
        double value = axis->low + (axis->high - axis->low) * i / TICKS;
        double y = y_of(axis, value);
        fprintf(
            out,
            "<line class=\"grid\" x1=\"%.0f\" y1=\"%.1f\" x2=\"%.0f\" y2=\"%.1f\"/>"
            "<text class=\"tick\" x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%.*f</text>\n",
            axis->left,
            y,
            axis->left + PANEL_WIDTH,
            y,
            axis->left - 8,
            y + 4,
            axis->digits,
            value
        );
    }
    for (int32_t size = 0; size < report->size_count; size++) {
        fprintf(
            out,
            "<text class=\"tick\" x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%d</text>\n",
            x_of(report, axis, size),
            bottom + 20,
            report->gibibytes[size]
        );
    }
    fprintf(
        out,
        "<text class=\"tick\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">memory for blocks, "
        "GiB</text>\n",
        axis->left + PANEL_WIDTH / 2.0,
        bottom + 40
    );
}

static void print_lines(const struct traffic_report *report, const struct axis *axis, FILE *out) {
    for (int32_t series = 0; series < report->series_count; series++) {
        fprintf(out, "<polyline class=\"%s\" points=\"", report->series[series].style);
        for (int32_t size = 0; size < report->size_count; size++) {
            double y = y_of(axis, value_of(report, axis, series, size));
            fprintf(out, "%.1f,%.1f ", x_of(report, axis, size), y);
        }
        fprintf(out, "\"/>\n");
    }
}

static void print_legend(const struct traffic_report *report, FILE *out) {
    double y = PANEL_TOP + PANEL_HEIGHT + 70;
    for (int32_t series = 0; series < report->series_count; series++) {
        double x = 60 + (series % 3) * 270;
        double line = y + series / 3 * 24.0;
        fprintf(
            out,
            "<polyline class=\"%s\" points=\"%.0f,%.0f %.0f,%.0f\"/>"
            "<text class=\"tick\" x=\"%.0f\" y=\"%.0f\">%s</text>\n",
            report->series[series].style,
            x,
            line,
            x + 36,
            line,
            x + 44,
            line + 4,
            report->series[series].name
        );
    }
}

static const char style_sheet[] =
    "<style>\n"
    "text{font-family:system-ui,sans-serif;fill:#1f2328}"
    ".title{font-size:15px;font-weight:600}.tick{font-size:12px}\n"
    "rect{fill:#ffffff}.grid{stroke:#d0d7de;stroke-width:1}\n"
    "polyline{fill:none;stroke-width:2.5;stroke-linejoin:round}\n"
    ".lru{stroke:#bc4c00;stroke-dasharray:2 4}.leaf{stroke:#8250df;stroke-dasharray:8 4}\n"
    ".store{stroke:#1f2328;stroke-width:3.5}.tree{stroke:#1a7f37}.disk{stroke:#0969da;stroke-"
    "dasharray:12 3 2 3}\n"
    ".large{stroke:#bf3989;stroke-dasharray:1 5;stroke-linecap:round}"
    ".ideal{stroke:#6e7781;stroke-width:1.5}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}rect{fill:#0d1117}"
    ".grid{stroke:#30363d}.store{stroke:#e6edf3}.lru{stroke:#f0883e}.leaf{stroke:#d2a8ff}.tree{"
    "stroke:#3fb950}"
    ".disk{stroke:#58a6ff}.large{stroke:#f778ba}.ideal{stroke:#8b949e}}\n"
    "</style>\n";

void traffic_report_plot(const struct traffic_report *report, FILE *out) {
    struct axis rate = {.title = "Hit rate, % of prompt tokens", .left = 70, .is_rate = true};
    struct axis more = {.title = "Computed again, millions of tokens", .left = 490};
    fit_axis(report, &rate);
    fit_axis(report, &more);
    int32_t rows = (report->series_count + 2) / 3;
    int32_t height = PANEL_TOP + PANEL_HEIGHT + 66 + 24 * rows;
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 860 %d\" role=\"img\" "
        "aria-label=\"Hit rate and tokens computed again over memory, by policy\">\n%s"
        "<rect width=\"860\" height=\"%d\" rx=\"6\"/>\n",
        height,
        style_sheet,
        height
    );
    const struct axis *axes[] = {&rate, &more};
    for (size_t i = 0; i < COUNT_OF(axes); i++) {
        print_frame(report, axes[i], out);
        print_lines(report, axes[i], out);
    }
    print_legend(report, out);
    fprintf(out, "</svg>\n");
}
