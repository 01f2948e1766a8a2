/* Draws per second of the sampler, by settings and size of the vocabulary; what a token costs the guard
 * and the stop strings. Built, not run by ctest.
 *
 * Usage: bench_sampler [ROUNDS]
 *
 * Logits are sums of uniforms (deviation 3) with a few peaks 8 above, as a language model's are. Every
 * line is the median of ROUNDS (7) rounds, which take turns with those of all other lines, so that a
 * loaded machine slows all alike. */
#include "base/bytes.h"
#include "engine/guard.h"
#include "engine/sampler.h"
#include "engine/stop.h"

#include <inttypes.h>
#include <time.h>

#define ROUNDS_MAX 101
#define ROWS       8 /* different rows of logits */
#define SEED       20261130U

struct kind {
    const char *name;
    struct sampling sampling;
    int32_t history; /* distinct tokens seen */
    int32_t allowed; /* by a mask; 0: none, -1: all but every 64th */
    bool has_no_logprob;
};

static const struct logit_bias some_bias[4] = {{1, 2}, {2, -5}, {3, 1}, {900, 4}};

static const struct kind kinds[] = {
    {"greedy", {.top_p = 1}, 0, 0, false},
    {"temperature 1", {.temperature = 1, .top_p = 1}, 0, 0, false},
    {"temperature 1, top_p 0.95", {.temperature = 1, .top_p = 0.95}, 0, 0, false},
    {"temperature 0.6, top_p 0.95", {.temperature = 0.6, .top_p = 0.95}, 0, 0, false},
    {"top_k 40", {.temperature = 1, .top_p = 1, .top_k = 40}, 0, 0, false},
    {"top_k 40, top_p 0.95", {.temperature = 1, .top_p = 0.95, .top_k = 40}, 0, 0, false},
    {"min_p 0.05", {.temperature = 1, .top_p = 1, .min_p = 0.05}, 0, 0, false},
    {"bias on 4", {.temperature = 1, .top_p = 1, .bias = some_bias, .bias_count = 4}, 0, 0, false},
    {"penalties, 1000 seen",
     {.temperature = 1, .top_p = 1, .repetition_penalty = 1.1, .presence_penalty = 0.5},
     1000,
     0,
     false},
    {"20 alternatives", {.temperature = 1, .top_p = 1, .alternatives = 20}, 0, 0, false},
    {"mask of 10", {.temperature = 1, .top_p = 1}, 0, 10, false},
    {"mask of nearly all", {.temperature = 1, .top_p = 1}, 0, -1, false},
    {"greedy, no log-probability", {.top_p = 1}, 0, 0, true},
    {"mask of 10, no log-probability", {.temperature = 1, .top_p = 1}, 0, 10, true},
};

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 32);
}

static void fill_logits(float *logits, int32_t count) {
    uint64_t state = SEED;
    for (int32_t i = 0; i < count; i++) {
        float sum = -6;
        for (int j = 0; j < 12; j++) {
            sum += (float)(next_random(&state) >> 8) * 0x1p-24F;
        }
        logits[i] = 3 * sum + (next_random(&state) % 5000 == 0 ? 8.0F : 0.0F);
    }
}

static void fill_mask(uint64_t *mask, int32_t vocabulary, int32_t allowed) {
    memset(mask, 0, ((size_t)vocabulary + 63) / 64 * sizeof *mask);
    int32_t stride = allowed > 0 ? vocabulary / allowed : 1;
    for (int32_t i = 0; i < vocabulary; i += stride) {
        if (allowed > 0 || i % 64 != 0) {
            mask[i / 64] |= (uint64_t)1 << (i % 64);
        }
    }
}

struct bench {
    int32_t vocabulary;
    float *logits;
    uint64_t *mask;
    struct sampler *sampler;
    uint64_t checksum; /* of the ids drawn */
};

static result time_kind(
    struct bench *bench, const struct kind *kind, int32_t draws, double *us, struct error *error
) {
    struct sampler_history *history = NULL;
    if (kind->history > 0) {
        TRY(sampler_history_create(&history, bench->vocabulary, kind->history, error));
        for (int32_t i = 0; i < kind->history; i++) {
            sampler_history_push(history, i);
        }
    }
    if (kind->allowed != 0) {
        fill_mask(bench->mask, bench->vocabulary, kind->allowed);
    }
    struct sampler_request request = {
        .sampling = &kind->sampling,
        .history = history,
        .mask = kind->allowed != 0 ? bench->mask : NULL,
        .skips_logprob = kind->has_no_logprob,
    };
    result drawn = OK;
    int64_t began = now_ns();
    for (int32_t i = 0; i < draws && is_ok(drawn); i++) {
        struct sampled_token token = {0};
        request.logits = bench->logits + (size_t)(i % ROWS) * (size_t)bench->vocabulary;
        request.position = i;
        drawn = sampler_draw(bench->sampler, &request, &token, error);
        bench->checksum = bench->checksum * 31 + (uint64_t)token.id;
    }
    *us = (double)(now_ns() - began) / 1000.0 / draws;
    sampler_history_destroy(history);
    return drawn;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static result run(struct bench *bench, int rounds, struct error *error) {
    static double us[COUNT_OF(kinds)][ROUNDS_MAX];
    int32_t draws = bench->vocabulary > 10000 ? 40 : 1000;
    for (int round = 0; round < rounds; round++) {
        for (size_t k = 0; k < COUNT_OF(kinds); k++) {
            TRY(time_kind(bench, &kinds[k], draws, &us[k][round], error));
        }
    }
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        qsort(us[k], (size_t)rounds, sizeof us[k][0], compare_doubles);
        double median = us[k][rounds / 2];
        printf(
            "%7d  %-32s %9.1f us %9.0f draws/s\n",
            bench->vocabulary,
            kinds[k].name,
            median,
            1e6 / median
        );
    }
    printf("%7d  checksum %016" PRIx64 "\n", bench->vocabulary, bench->checksum);
    return OK;
}

/* Guard at its default limits and four stop strings, on tokens of six bytes. */
static result time_watchers(struct error *error) {
    enum { TOKENS = 200000 };
    static const struct guard_markers none = {.thinking_open = -1, .thinking_close = -1};
    const struct view strings[] = {
        view_of_text("\n\nUser:"),
        view_of_text("</answer>"),
        view_of_text("END"),
        view_of_text("```"),
    };
    struct stop_options options = {.strings = strings, .string_count = COUNT_OF(strings)};
    struct guard_limits limits;
    guard_limits_default(&limits);
    struct guard *guard = NULL;
    struct guard_state *state = NULL;
    struct stop *stop = NULL;
    TRY(guard_create(&guard, &limits, &none, error));
    TRY(guard_state_create(&state, false, error));
    TRY(stop_create(&stop, &options, error));
    uint64_t random = SEED;
    struct view bytes = view_of_text(" token");
    int64_t began = now_ns();
    int32_t verdicts = 0;
    for (int32_t i = 0; i < TOKENS; i++) {
        struct guard_finding finding;
        int32_t id = (int32_t)(next_random(&random) % 1000);
        verdicts += guard_feed(guard, state, id, bytes, &finding) != GUARD_GO_ON;
    }
    int64_t guarded = now_ns();
    struct stop_state now = {0};
    for (int32_t i = 0; i < TOKENS; i++) {
        struct stop_match match;
        verdicts += stop_feed(stop, &now, i, bytes, &match);
    }
    int64_t ended = now_ns();
    printf(
        "guard, spans to %d: %.0f ns a token\n", GUARD_SPAN_MAX, (double)(guarded - began) / TOKENS
    );
    printf(
        "four stop strings: %.0f ns a token (%d verdicts)\n",
        (double)(ended - guarded) / TOKENS,
        verdicts
    );
    stop_destroy(stop);
    guard_state_destroy(state);
    guard_destroy(guard);
    return OK;
}

int main(int argc, char **argv) {
    uint64_t rounds = 7;
    if (argc > 1 &&
        (!parse_u64(view_of_text(argv[1]), &rounds) || rounds == 0 || rounds > ROUNDS_MAX)) {
        (void)fprintf(stderr, "usage: bench_sampler [ROUNDS]\n");
        return 2;
    }
    struct error error = {0};
    if (is_failed(time_watchers(&error))) {
        (void)fprintf(stderr, "bench_sampler: %s\n", error.message);
        return 1;
    }
    static const int32_t vocabularies[] = {4096, 129280};
    for (size_t v = 0; v < COUNT_OF(vocabularies); v++) {
        struct bench bench = {.vocabulary = vocabularies[v]};
        size_t count = (size_t)bench.vocabulary;
        bench.logits = calloc(ROWS * count, sizeof *bench.logits);
        bench.mask = calloc((count + 63) / 64, sizeof *bench.mask);
        result done = {RESULT_MEMORY};
        if (bench.logits != NULL && bench.mask != NULL) {
            fill_logits(bench.logits, (int32_t)(ROWS * count));
            done = sampler_create(&bench.sampler, bench.vocabulary, &error);
        }
        if (is_ok(done)) {
            done = run(&bench, (int)rounds, &error);
        }
        sampler_destroy(bench.sampler);
        free(bench.mask);
        free(bench.logits);
        if (is_failed(done)) {
            (void)fprintf(stderr, "bench_sampler: %s\n", error.message);
            return 1;
        }
    }
    return 0;
}
