/* What a day of traffic is like. See traffic.h. */
#include "traffic.h"

static int compare_numbers(const void *a, const void *b) {
    int64_t first = *(const int64_t *)a;
    int64_t second = *(const int64_t *)b;
    return (first > second) - (first < second);
}

/* The value below which `share` of values [count] lie; sorts them. */
static int64_t percentile(int64_t *values, int32_t count, double share) {
    if (count == 0) {
        return 0;
    }
    qsort(values, (size_t)count, sizeof *values, compare_numbers);
    int32_t at = (int32_t)(share * count);
    return values[at < count ? at : count - 1];
}

static void
summarize_sizes(const struct traffic *traffic, int64_t *values, struct traffic_summary *out) {
    int32_t count = traffic->request_count;
    for (int32_t i = 0; i < count; i++) {
        const struct traffic_request *request = &traffic->requests[i];
        values[i] =
            traffic_count(traffic, request->output) - traffic_count(traffic, request->prompt);
        out->output_tokens += values[i];
    }
    out->output_median = narrow_i32(percentile(values, count, 0.5));
    int32_t main_count = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct traffic_request *request = &traffic->requests[i];
        if (request->is_main) {
            values[main_count++] = traffic_count(traffic, request->prompt);
        }
    }
    out->prompt_median = narrow_i32(percentile(values, main_count, 0.5));
    for (int32_t i = 0; i < count; i++) {
        values[i] = traffic_count(traffic, traffic->requests[i].prompt);
        out->prompt_tokens += values[i];
    }
    out->prompt_median_all = narrow_i32(percentile(values, count, 0.5));
    out->prompt_p90 = narrow_i32(percentile(values, count, 0.9));
    out->prompt_max = narrow_i32(percentile(values, count, 1));
}

static void
summarize_gaps(const struct traffic *traffic, int64_t *values, struct traffic_summary *out) {
    int32_t gaps = 0;
    int32_t within[3] = {0};
    for (int32_t i = 0; i < traffic->request_count; i++) {
        int64_t gap_ms = traffic->requests[i].gap_ms;
        if (gap_ms >= 0) {
            values[gaps++] = gap_ms;
            within[0] += gap_ms <= 1000;
            within[1] += gap_ms <= 10000;
            within[2] += gap_ms <= 3600000;
        }
    }
    double all = gaps > 0 ? gaps : 1;
    out->returns_1s = within[0] / all;
    out->returns_10s = within[1] / all;
    out->returns_1h = within[2] / all;
    out->gap_max_ms = percentile(values, gaps, 1);
}

static void
summarize_turns(const struct traffic *traffic, int64_t *values, struct traffic_summary *out) {
    int32_t sessions = traffic->options.sessions;
    memset(values, 0, (size_t)sessions * sizeof *values);
    for (int32_t i = 0; i < traffic->request_count; i++) {
        const struct traffic_request *request = &traffic->requests[i];
        values[request->session] += request->is_main;
    }
    out->turns_median = narrow_i32(percentile(values, sessions, 0.5));
    out->with_children = (double)traffic->sessions_with_children / sessions;
}

/* Requests that generate at the same time; starts are in order, so ends are all that is sorted. */
static void
summarize_concurrency(const struct traffic *traffic, int64_t *values, struct traffic_summary *out) {
    int32_t count = traffic->request_count;
    for (int32_t i = 0; i < count; i++) {
        values[i] = traffic->requests[i].end_ms;
    }
    (void)percentile(values, count, 0);
    int32_t ended = 0;
    for (int32_t i = 0; i < count; i++) {
        while (values[ended] <= traffic->requests[i].start_ms) {
            ended++;
        }
        int32_t running = i + 1 - ended;
        out->concurrent_max = running > out->concurrent_max ? running : out->concurrent_max;
    }
}

result
traffic_summarize(const struct traffic *traffic, struct traffic_summary *out, struct error *error) {
    size_t count = (size_t)traffic->request_count + (size_t)traffic->options.sessions;
    CLEANUP(free_cleanup) int64_t *values = calloc(count, sizeof *values);
    if (values == NULL) {
        FAIL(error, MEMORY, "no memory for %zu numbers", count);
    }
    *out = (struct traffic_summary){0};
    summarize_sizes(traffic, values, out);
    summarize_gaps(traffic, values, out);
    summarize_turns(traffic, values, out);
    summarize_concurrency(traffic, values, out);
    return OK;
}
