/* Times a long prompt that the tiers have against the same prompt computed again.
 *
 *   bench_resume MODEL_DIRECTORY CACHE_DIRECTORY [TOKENS [ROUNDS]]
 *
 * The model's max_position_embeddings must be above TOKENS (100,000); CACHE_DIRECTORY is an empty one.
 * Computes the prompt cold, then restores it from disk, from disk after a restart, and from the host
 * pool (the tree and the snapshots emptied before each round: windows are rebuilt exactly). The first
 * sampled token has to be the same each time. Medians of ROUNDS (5); the cold run is made once. */
#include "engine/engine.h"

#include <pthread.h>
#include <time.h>

#define ROUNDS_MAX 99
#define FIRST_ID   3

struct waker {
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool is_awake;
};

struct bench {
    struct engine *engine;
    struct engine_options options;
    struct waker waker;
    int32_t *prompt;
    int32_t tokens, rounds;
    int32_t first; /* token sampled by the cold run */
};

static double now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static void wake(void *context) {
    struct waker *waker = context;
    pthread_mutex_lock(&waker->lock);
    waker->is_awake = true;
    pthread_cond_signal(&waker->woken);
    pthread_mutex_unlock(&waker->lock);
}

static struct engine_event next_event(struct bench *bench) {
    struct engine_event event;
    while (!engine_next_event(bench->engine, &event)) {
        pthread_mutex_lock(&bench->waker.lock);
        while (!bench->waker.is_awake) {
            pthread_cond_wait(&bench->waker.woken, &bench->waker.lock);
        }
        bench->waker.is_awake = false;
        pthread_mutex_unlock(&bench->waker.lock);
    }
    return event;
}

struct timing {
    double ms;
    int32_t token;
    struct generation_facts facts;
};

/* A new sequence with the prompt, up to its first token. */
static result run_prompt(struct bench *bench, struct timing *out, struct error *error) {
    uint64_t sequence = 0;
    TRY(engine_sequence_create(bench->engine, &sequence, error));
    struct generation_request request = {
        .sequence = sequence,
        .append = bench->prompt,
        .append_count = (size_t)bench->tokens,
        .sampling = {.temperature = 0, .top_p = 1},
        .tokens_max = 1,
    };
    double start = now_ms();
    TRY(engine_generate(bench->engine, &request, error));
    for (;;) {
        struct engine_event event = next_event(bench);
        if (event.type == ENGINE_TOKEN) {
            out->ms = now_ms() - start;
            out->token = event.token;
        } else if (event.type == ENGINE_FINISHED) {
            out->facts = event.facts;
            engine_sequence_destroy(bench->engine, sequence);
            if (event.reason == FINISH_ERROR) {
                *error = event.error;
                return (result){error->code};
            }
            return OK;
        }
    }
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static result report(
    const struct bench *bench,
    const char *what,
    double ms[ROUNDS_MAX],
    const struct timing *last,
    double cold_ms,
    struct error *error
) {
    if (last->token != bench->first) {
        FAIL(error, CORRUPT, "%s: token %d, cold %d", what, last->token, bench->first);
    }
    qsort(ms, (size_t)bench->rounds, sizeof *ms, compare);
    const struct generation_facts *facts = &last->facts;
    printf(
        "%-22s %9.1f ms (%.1f to %.1f; last: %.1f queued, %.1f computing), %.0f times faster; "
        "reused %d (host %d, disk %d), rebuilt %d, evaluated %d, %s, %s\n",
        what,
        ms[bench->rounds / 2],
        ms[0],
        ms[bench->rounds - 1],
        1e-3 * (double)facts->queued_us,
        1e-3 * (double)facts->prefill_us,
        cold_ms / ms[bench->rounds / 2],
        facts->reused,
        facts->restored_host,
        facts->restored_disk,
        facts->rebuilt,
        facts->evaluated,
        facts->window_source,
        facts->miss
    );
    return OK;
}

enum from { FROM_DISK, FROM_DISK_RESTARTED, FROM_HOST };

static result restore(struct bench *bench, enum from from, double cold_ms, struct error *error) {
    static const char *const names[] = {"disk", "disk after a restart", "host pool"};
    double ms[ROUNDS_MAX];
    double open_ms = 0;
    struct timing timing = {0};
    for (int32_t i = 0; i < bench->rounds; i++) {
        if (from == FROM_DISK_RESTARTED) {
            engine_close(bench->engine);
            bench->engine = NULL;
            double start = now_ms();
            TRY(engine_open(&bench->options, &bench->engine, error));
            open_ms = now_ms() - start;
        }
        if (from == FROM_DISK) {
            engine_cache_drop(bench->engine, CACHE_TIER_TREE, 0);
            engine_cache_drop(bench->engine, CACHE_TIER_HOST, 0);
        } else if (from == FROM_HOST) {
            engine_cache_drop(bench->engine, CACHE_TIER_TREE, 0); /* to the host pool */
        }
        engine_cache_drop(bench->engine, CACHE_TIER_SNAPSHOTS, 0);
        TRY(run_prompt(bench, &timing, error));
        ms[i] = timing.ms;
    }
    TRY(report(bench, names[from], ms, &timing, cold_ms, error));
    if (from == FROM_DISK_RESTARTED) {
        printf("%-22s %9.1f ms to open the engine\n", "", open_ms);
    }
    return OK;
}

static result run(struct bench *bench, struct error *error) {
    TRY(engine_open(&bench->options, &bench->engine, error));
    struct engine_info info;
    engine_get_info(bench->engine, &info);
    uint32_t seed = 7;
    for (int32_t i = 0; i < bench->tokens; i++) {
        seed = seed * 1664525U + 1013904223U;
        bench->prompt[i] = FIRST_ID + (int32_t)((seed >> 8) % (uint32_t)(info.vocabulary - 80));
    }
    printf(
        "%s, %s: %d tokens, %llu bytes each\n",
        info.model_name,
        info.backend,
        bench->tokens,
        (unsigned long long)info.kv_bytes_per_token
    );
    struct timing cold = {0};
    TRY(run_prompt(bench, &cold, error));
    bench->first = cold.token;
    double cold_ms = cold.ms;
    printf(
        "%-22s %9.1f ms, %.0f tokens/s, %s\n",
        "computed",
        cold_ms,
        1e3 * bench->tokens / cold_ms,
        cold.facts.window_source
    );
    engine_cache_flush(bench->engine);
    struct engine_cache_status status;
    engine_cache_status(bench->engine, &status);
    printf(
        "on disk %d blocks, %llu bytes written%s%s\n",
        status.disk_blocks,
        (unsigned long long)status.written_bytes,
        status.trouble[0] == '\0' ? "" : "; ",
        status.trouble
    );
    TRY(restore(bench, FROM_DISK, cold_ms, error));
    TRY(restore(bench, FROM_DISK_RESTARTED, cold_ms, error));
    return restore(bench, FROM_HOST, cold_ms, error);
}

int main(int count, char **arguments) {
    uint64_t tokens = 100000;
    uint64_t rounds = 5;
    bool is_valid = count >= 3 && count <= 5;
    is_valid = is_valid && (count < 4 || parse_u64(view_of_text(arguments[3]), &tokens));
    is_valid = is_valid && (count < 5 || parse_u64(view_of_text(arguments[4]), &rounds));
    if (!is_valid || tokens < 1 || tokens > 1000000 || rounds < 1 || rounds > ROUNDS_MAX) {
        (void
        )fprintf(stderr, "usage: bench_resume MODEL_DIRECTORY CACHE_DIRECTORY [TOKENS [ROUNDS]]\n");
        return 2;
    }
    struct bench bench = {
        .tokens = (int32_t)tokens,
        .rounds = (int32_t)rounds,
        .prompt = malloc(tokens * sizeof(int32_t)),
    };
    struct error error = {0};
    bench.options = (struct engine_options){
        .model_directory = arguments[1],
        .context_max = (int32_t)tokens + 256,
        .sequences_max = 2,
        .cache_directory = arguments[2],
        .cache_write_bytes_hour = UINT64_C(1) << 40,
        .cache_host_bytes = UINT64_C(1) << 30,
        .wake = wake,
        .wake_context = &bench.waker,
    };
    (void)pthread_mutex_init(&bench.waker.lock, NULL);
    (void)pthread_cond_init(&bench.waker.woken, NULL);
    result done = bench.prompt == NULL
                      ? error_set(&error, RESULT_MEMORY, 0, __FILE__, __LINE__, "no memory")
                      : run(&bench, &error);
    engine_close(bench.engine);
    free(bench.prompt);
    if (is_failed(done)) {
        (void)fprintf(stderr, "bench_resume: %s\n", error.message);
        return 1;
    }
    return 0;
}
