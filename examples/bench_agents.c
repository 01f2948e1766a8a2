/* Many agents at once on one shared prefix: aggregate tokens per second, time to first token, memory.
 *
 *   bench_agents [MODEL_DIRECTORY [THREADS [TOKENS [PREFIX]]]]
 *
 * 1, 4, 16 and 64 agents fork from a sequence that computed the prefix, each appends a few tokens of
 * its own, and samples. Weights are read once a step whoever is in it: that is where the gain comes from.
 * Processor time stands beside wall time, since others may use the machine. */
#include "engine/engine.h"

#include <pthread.h>
#include <time.h>

#define AGENTS_MAX 64
#define OWN_TOKENS 32

static double now_on(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct bench {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool is_awake;
    struct engine *engine;
    int32_t prefix, tokens, vocabulary;
    int32_t *ids; /* [prefix + OWN_TOKENS] */
    uint64_t parent, sequences[AGENTS_MAX];
    double first[AGENTS_MAX]; /* seconds from the start to its first token */
};

static void wake(void *context) {
    struct bench *bench = context;
    pthread_mutex_lock(&bench->lock);
    bench->is_awake = true;
    pthread_cond_signal(&bench->woken);
    pthread_mutex_unlock(&bench->lock);
}

static struct engine_event next_event(struct bench *bench) {
    struct engine_event event;
    while (!engine_next_event(bench->engine, &event)) {
        pthread_mutex_lock(&bench->lock);
        while (!bench->is_awake) {
            pthread_cond_wait(&bench->woken, &bench->lock);
        }
        bench->is_awake = false;
        pthread_mutex_unlock(&bench->lock);
    }
    return event;
}

static void fill(const struct bench *bench, int32_t from, int32_t count, uint32_t seed) {
    for (int32_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        bench->ids[from + i] = 3 + (int32_t)((seed >> 8) % (uint32_t)(bench->vocabulary - 3));
    }
}

static result start(struct bench *bench, int32_t agent, struct error *error) {
    fill(bench, bench->prefix, OWN_TOKENS, (uint32_t)agent + 100);
    struct engine_info info;
    engine_get_info(bench->engine, &info);
    const struct logit_bias no_end = {.id = info.eos_id, .bias = -100};
    struct generation_request request = {
        .sequence = bench->sequences[agent],
        .append = bench->ids + bench->prefix,
        .append_count = OWN_TOKENS,
        .sampling = {.temperature = 1, .top_p = 1, .bias = &no_end, .bias_count = 1},
        .uses_sequence_seed = true,
        .tokens_max = bench->tokens,
        .speculation = SPECULATE_OFF,
    };
    return engine_generate(bench->engine, &request, error);
}

static result compute_prefix(struct bench *bench, struct error *error) {
    fill(bench, 0, bench->prefix, 1);
    TRY(engine_sequence_create(bench->engine, &bench->parent, error));
    struct generation_request request = {
        .sequence = bench->parent,
        .append = bench->ids,
        .append_count = (size_t)bench->prefix,
        .sampling = {.temperature = 1, .top_p = 1, .seed = 1},
    };
    return engine_generate(bench->engine, &request, error);
}

/* Until so many generations ended. */
static result
collect(struct bench *bench, int32_t agents, double begun, int32_t *tokens, struct error *error) {
    for (int32_t ended = 0; ended < agents;) {
        struct engine_event event = next_event(bench);
        for (int32_t a = 0; event.type == ENGINE_TOKEN && a < agents; a++) {
            if (bench->sequences[a] == event.sequence) {
                (*tokens)++;
                bench->first[a] =
                    bench->first[a] == 0 ? now_on(CLOCK_MONOTONIC) - begun : bench->first[a];
            }
        }
        if (event.type == ENGINE_FINISHED) {
            ended++;
            if (event.reason == FINISH_ERROR) {
                FAIL(error, DEVICE, "%s", event.error.message);
            }
        }
    }
    return OK;
}

static result run(struct bench *bench, int32_t agents, struct error *error) {
    struct engine_statistics before;
    struct engine_statistics after;
    memset(bench->first, 0, sizeof bench->first);
    for (int32_t a = 0; a < agents; a++) {
        TRY(engine_sequence_fork(bench->engine, bench->parent, &bench->sequences[a], error));
    }
    engine_statistics(bench->engine, &before);
    double wall = now_on(CLOCK_MONOTONIC);
    double cpu = now_on(CLOCK_PROCESS_CPUTIME_ID);
    for (int32_t a = 0; a < agents; a++) {
        TRY(start(bench, a, error));
    }
    int32_t tokens = 0;
    TRY(collect(bench, agents, wall, &tokens, error));
    double wall_taken = now_on(CLOCK_MONOTONIC) - wall;
    double cpu_taken = now_on(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    engine_statistics(bench->engine, &after);
    double sum = 0;
    double last = 0;
    for (int32_t a = 0; a < agents; a++) {
        sum += bench->first[a];
        last = bench->first[a] > last ? bench->first[a] : last;
        engine_sequence_destroy(bench->engine, bench->sequences[a]);
    }
    uint64_t steps = after.total.steps - before.total.steps;
    printf(
        "%3d agents: %8.1f tokens/s (%8.1f a second of processor time), first token after %7.1f ms "
        "(mean), %7.1f ms (last); %llu steps, %llu rows of prompts, %llu reused, decision %.1f us "
        "a step, blocks of %d tokens live\n",
        agents,
        tokens / wall_taken,
        tokens / cpu_taken,
        1e3 * sum / agents,
        1e3 * last,
        (unsigned long long)steps,
        (unsigned long long)(after.total.prefill_rows - before.total.prefill_rows),
        (unsigned long long)(after.total.reused - before.total.reused),
        (double)(after.decision_us - before.decision_us) / (double)(steps == 0 ? 1 : steps),
        after.blocks_used * 128
    );
    return OK;
}

static result bench_all(struct bench *bench, struct engine_options *options, struct error *error) {
    TRY(engine_open(options, &bench->engine, error));
    struct engine_info info;
    engine_get_info(bench->engine, &info);
    bench->vocabulary = info.vocabulary;
    printf(
        "%s, %s; prefix of %d tokens, %d sampled by each agent\n",
        info.model_name,
        info.backend,
        bench->prefix,
        bench->tokens
    );
    double begun = now_on(CLOCK_MONOTONIC);
    int32_t tokens = 0;
    TRY(compute_prefix(bench, error));
    TRY(collect(bench, 1, begun, &tokens, error));
    printf("prefix, cold: %.1f ms\n", 1e3 * (now_on(CLOCK_MONOTONIC) - begun));
    static const int32_t counts[] = {1, 4, 16, 64};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        TRY(run(bench, counts[i], error));
    }
    struct engine_statistics statistics;
    engine_statistics(bench->engine, &statistics);
    printf(
        "longest step %.1f ms, longest decision %lld us\n",
        (double)statistics.step_us_max / 1e3,
        (long long)statistics.decision_us_max
    );
    return OK;
}

int main(int count, char **arguments) {
    uint64_t numbers[3] = {2, 64, 4096}; /* threads, tokens, prefix */
    struct error error = {0};
    for (int i = 2; i < count; i++) {
        if (i > 4 || !parse_u64(view_of_text(arguments[i]), &numbers[i - 2]) ||
            numbers[i - 2] == 0 || numbers[i - 2] > 1000000) {
            (void)fprintf(stderr, "usage: bench_agents [MODEL [THREADS [TOKENS [PREFIX]]]]\n");
            return 2;
        }
    }
    struct bench bench = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .woken = PTHREAD_COND_INITIALIZER,
        .tokens = (int32_t)numbers[1],
        .prefix = (int32_t)numbers[2],
    };
    bench.ids = calloc((size_t)bench.prefix + OWN_TOKENS, sizeof *bench.ids);
    struct engine_options options = {
        .model_directory = count > 1 ? arguments[1] : EXAMPLES_MINI_MODEL,
        .threads = (int32_t)numbers[0],
        .context_max = bench.prefix + OWN_TOKENS + bench.tokens + 1,
        .sequences_max = AGENTS_MAX + 1,
        /* What they have in common is there once. */
        .kv_tokens_max =
            (int64_t)AGENTS_MAX * (2 * OWN_TOKENS + bench.tokens + 256) + 2 * bench.prefix,
        .wake = wake,
        .wake_context = &bench,
    };
    bool is_done = bench.ids != NULL && is_ok(bench_all(&bench, &options, &error));
    engine_close(bench.engine);
    free(bench.ids);
    if (!is_done) {
        (void)fprintf(stderr, "bench_agents: %s\n", error.message);
        return 1;
    }
    return 0;
}
