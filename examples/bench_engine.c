/* Times the engine as a program sees it: first token after process start, prefill, decode, memory.
 *
 *   bench_engine [MODEL_DIRECTORY [THREADS]]
 *
 * Each rate stands beside its share of what this machine can do (ceiling.h). On a busy machine look
 * at the processor time, which others do not stretch much. */
#include "engine/engine.h"

#include "bench_events.h"
#include "ceiling.h"

#include <time.h>

#define FIRST_PROMPT  500
#define LONG_PROMPT   3000
#define DECODE_TOKENS 600

static double now_on(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct moment {
    double wall, cpu;
};

static struct moment moment_now(void) {
    struct moment moment = {now_on(CLOCK_MONOTONIC), now_on(CLOCK_PROCESS_CPUTIME_ID)};
    return moment;
}

struct timing {
    struct moment begin, first, end;
    int32_t tokens;
};

/* One generation on a fresh sequence; ids of a fixed generator. */
static result time_generation(
    struct engine *engine,
    struct waker *waker,
    int32_t prompt,
    struct sampling sampling,
    struct timing *out,
    struct error *error
) {
    struct engine_info info;
    engine_get_info(engine, &info);
    CLEANUP(free_cleanup) int32_t *ids = calloc((size_t)prompt, sizeof *ids);
    uint32_t seed = 1;
    for (int32_t i = 0; ids != NULL && i < prompt; i++) {
        seed = seed * 1664525U + 1013904223U;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)info.vocabulary);
        ids[i] = ids[i] == info.eos_id ? 0 : ids[i];
    }
    uint64_t sequence = 0;
    TRY(engine_sequence_create(engine, &sequence, error));
    struct generation_request request = {
        .sequence = sequence,
        .append = ids,
        .append_count = ids == NULL ? 0 : (size_t)prompt,
        .sampling = sampling,
        .tokens_max = DECODE_TOKENS,
        .speculation = SPECULATE_OFF, /* each token reads the weights: shares of the ceilings */
    };
    *out = (struct timing){.begin = moment_now()};
    TRY(engine_generate(engine, &request, error));
    for (;;) {
        struct engine_event event = next_event(engine, waker);
        if (event.type == ENGINE_TOKEN && out->tokens++ == 0) {
            out->first = moment_now();
        }
        if (event.type == ENGINE_FINISHED) {
            out->end = moment_now();
            break;
        }
    }
    engine_sequence_destroy(engine, sequence);
    return OK;
}

static uint64_t status_kib(const char *name) {
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, 64 << 10);
    if (is_failed(file_read("/proc/self/status", &text, NULL))) {
        return 0;
    }
    struct view whole = buffer_view(&text);
    size_t at = view_find(whole, view_of_text(name), 0);
    at = at == SIZE_MAX ? whole.length : at + strlen(name);
    while (at < whole.length && (whole.data[at] < '0' || whole.data[at] > '9')) {
        at++;
    }
    uint64_t value = 0;
    while (at < whole.length && whole.data[at] >= '0' && whole.data[at] <= '9') {
        value = value * 10 + (uint64_t)(whole.data[at++] - '0');
    }
    return value;
}

static void print_rate(const char *name, double count, struct moment from, struct moment to) {
    printf(
        "%-28s %8.0f tokens/s   (%.1f ms; processor time %.1f ms)\n",
        name,
        count / (to.wall - from.wall),
        1e3 * (to.wall - from.wall),
        1e3 * (to.cpu - from.cpu)
    );
}

static void ignore_row(void *context, int32_t position, const float *logits, int32_t vocabulary) {
    (void)context;
    (void)position;
    (void)logits;
    (void)vocabulary;
}

/* Rows through attention and FFN of a prompt, added up over layers, as the engine counts them. */
static result count_rows(struct engine *engine, int32_t prompt, double *out, struct error *error) {
    size_t layers = (size_t)engine_layer_count(engine);
    CLEANUP(free_cleanup) int32_t *ids = calloc((size_t)prompt, sizeof *ids);
    CLEANUP(free_cleanup) struct layer_counters *counters = calloc(layers, sizeof *counters);
    if (ids == NULL || counters == NULL) {
        FAIL(error, MEMORY, "no memory for a prompt of %d tokens", prompt);
    }
    struct logits_request request = {.ids = ids, .count = (size_t)prompt, .last_only = true};
    TRY(engine_logits(engine, &request, counters, ignore_row, NULL, error));
    *out = 0;
    for (size_t l = 0; l < layers; l++) {
        *out += (double)counters[l].rows_full / (double)layers;
    }
    return OK;
}

static void print_shares(
    const struct engine_plan *plan,
    const struct ceiling *ceiling,
    const struct timing *prompt,
    const struct timing *decode,
    double prompt_rows
) {
    double tokens = (decode->tokens - 1) / (decode->end.wall - decode->first.wall);
    double bytes = (double)plan->token_weight_bytes;
    double multiplies = (double)plan->token_multiplies;
    double head = (double)plan->head_multiplies;
    printf(
        "  decode reads %.2f MB and multiplies %.2f M a token: %.1f %% of the read bandwidth, %.1f "
        "%% "
        "of the multiply rate\n",
        bytes / 1e6,
        multiplies / 1e6,
        100 * tokens * bytes / ceiling->read_bytes_per_second,
        100 * tokens * 2 * multiplies / ceiling->fma_flops_per_second
    );
    double prefill = prompt_rows * (multiplies - head) + head;
    double seconds = prompt->first.wall - prompt->begin.wall;
    printf(
        "  prefill of %d multiplies %.1f G: %.1f %% of the multiply rate\n",
        LONG_PROMPT,
        prefill / 1e9,
        100 * 2 * prefill / seconds / ceiling->fma_flops_per_second
    );
}

static result run(const char *directory, int32_t threads, struct error *error) {
    struct moment start = moment_now();
    struct waker waker = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    struct engine_options options = {
        .model_directory = directory,
        .threads = threads,
        .wake = wake,
        .wake_context = &waker,
    };
    struct engine *engine = NULL;
    struct timing first = {.tokens = 0};
    struct timing prompt = {.tokens = 0};
    struct timing decode = {.tokens = 0};
    struct sampling greedy = {.temperature = 0, .top_p = 1};
    struct sampling sampled = {.temperature = 0.8, .top_p = 0.95, .seed = 1};
    TRY(engine_open(&options, &engine, error));
    struct moment opened = moment_now();
    result timed = time_generation(engine, &waker, FIRST_PROMPT, greedy, &first, error);
    if (is_ok(timed)) {
        timed = time_generation(engine, &waker, LONG_PROMPT, greedy, &prompt, error);
    }
    if (is_ok(timed)) {
        timed = time_generation(engine, &waker, FIRST_PROMPT, sampled, &decode, error);
    }
    uint64_t anonymous = status_kib("RssAnon:");
    uint64_t mapped = status_kib("RssFile:");
    struct engine_info info;
    engine_get_info(engine, &info);
    double prompt_rows = 0;
    if (is_ok(timed)) {
        timed = count_rows(engine, LONG_PROMPT, &prompt_rows, error);
    }
    engine_close(engine);
    TRY(timed);
    struct engine_plan plan;
    TRY(engine_plan_make(&options, &plan, error));
    struct ceiling ceiling = ceiling_measure(threads, CLOCK_MONOTONIC);
    printf("%s, %s\n", info.model_name, info.backend);
    printf(
        "measured ceilings: %.1f GB/s read, %.1f GFLOP/s multiply-add\n",
        ceiling.read_bytes_per_second / 1e9,
        ceiling.fma_flops_per_second / 1e9
    );
    printf(
        "start to first token of %d:  %8.1f ms         (opening %.1f ms; processor time %.1f ms)\n",
        FIRST_PROMPT,
        1e3 * (first.first.wall - start.wall),
        1e3 * (opened.wall - start.wall),
        1e3 * (first.first.cpu - start.cpu)
    );
    print_rate("prefill of 500", FIRST_PROMPT, first.begin, first.first);
    print_rate("prefill of 3000", LONG_PROMPT, prompt.begin, prompt.first);
    print_rate("decode, greedy, at 500", first.tokens - 1, first.first, first.end);
    print_rate("decode, greedy, at 3000", prompt.tokens - 1, prompt.first, prompt.end);
    print_rate("decode, sampled, at 500", decode.tokens - 1, decode.first, decode.end);
    print_shares(&plan, &ceiling, &prompt, &first, prompt_rows);
    printf(
        "resident: %.1f MiB beside %.1f MiB of mapped files\n",
        (double)anonymous / 1024,
        (double)mapped / 1024
    );
    return OK;
}

int main(int count, char **arguments) {
    uint64_t threads = 2;
    struct error error = {0};
    const char *directory = count > 1 ? arguments[1] : EXAMPLES_MINI_MODEL;
    if (count > 3 || (count > 2 && (!parse_u64(view_of_text(arguments[2]), &threads) ||
                                    threads == 0 || threads > 64))) {
        (void)fprintf(stderr, "usage: bench_engine [MODEL_DIRECTORY [THREADS]]\n");
        return 2;
    }
    if (is_failed(run(directory, (int32_t)threads, &error))) {
        (void)fprintf(stderr, "bench_engine: %s\n", error.message);
        return 1;
    }
    return 0;
}
