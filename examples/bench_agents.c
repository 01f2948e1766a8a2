/* Many agents at once: 1, 4, 16 and 64 that share a prefix of 4,096 tokens, each with a message of 100
 * of its own, after which it samples. What an agent pays beside the weights, and what all of them
 * gain because a step reads the weights once for all.
 *
 *   bench_agents [--model DIR] [--threads N] [--windows N] [--tokens N] [--speculate] [--find]
 *
 * --windows: agents that can run at a time (the others wait, or are parked for one that has a
 * deadline); --find: every agent sends the whole prompt and the cache finds the prefix, instead of
 * forks of one parent; --speculate: lookup drafts. Compare lines of one run: a machine that
 * others use stretches the times, not the gain. */
#include "engine/engine.h"

#include "bench_events.h"

#include <time.h>

#define PREFIX      4096
#define MESSAGE     100
#define AGENTS_MAX  64
#define TOKENS_MAX  2048
#define CONTEXT     8192
#define DEADLINE_MS 600000 /* of every fourth agent, when windows are scarce: it goes first */

struct settings {
    const char *model;
    int32_t threads, windows, tokens;
    bool speculates, finds;
};

static double now_ms(clockid_t clock) {
    struct timespec now;
    (void)clock_gettime(clock, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

static double resident_kib(void) {
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, 64 << 10);
    if (is_failed(file_read("/proc/self/status", &text, NULL))) {
        return 0;
    }
    const char *name = "RssAnon:";
    struct view whole = buffer_view(&text);
    size_t at = view_find(whole, view_of_text(name), 0);
    at = at == SIZE_MAX ? whole.length : at + strlen(name);
    double value = 0;
    for (; at < whole.length && whole.data[at] != '\n'; at++) {
        uint8_t byte = whole.data[at];
        value = byte >= '0' && byte <= '9' ? value * 10 + (byte - '0') : value;
    }
    return value;
}

/* Ids of a fixed generator. */
static void fill(const struct engine *engine, int32_t *ids, int32_t count, uint32_t seed) {
    struct engine_info info;
    engine_get_info(engine, &info);
    for (int32_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        ids[i] = (int32_t)((seed >> 8) % (uint32_t)info.vocabulary);
        ids[i] = ids[i] == info.eos_id ? 0 : ids[i];
    }
}

static void engine_cleanup(struct engine **engine) {
    engine_close(*engine);
}

struct agent {
    uint64_t sequence;
    double begun_ms, first_ms;
};

struct round {
    int32_t count, started, finished;
    struct agent agents[AGENTS_MAX];
    double first_ms[AGENTS_MAX];     /* times to the first token, sorted */
    double begun_ms, all_ms, end_ms; /* first request, all have a token, last token */
    double begun_cpu_ms, end_cpu_ms;
    int32_t sampled, together; /* all tokens; those after all_ms */
    int32_t drafted, accepted;
    double end_kib; /* resident beside the mapped weights */
    struct engine_statistics before, after;
};

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The parent of all, or what the cache finds. */
static result
run_prefix(struct engine *engine, struct waker *waker, uint64_t *out, struct error *error) {
    int32_t ids[PREFIX];
    fill(engine, ids, PREFIX, 1);
    TRY(engine_sequence_create(engine, out, error));
    struct generation_request request = {
        .sequence = *out,
        .append = ids,
        .append_count = PREFIX,
        .sampling = {.top_p = 1},
    };
    TRY(engine_generate(engine, &request, error));
    for (;;) {
        struct engine_event event = next_event(engine, waker);
        if (event.type == ENGINE_FINISHED && event.reason == FINISH_ERROR) {
            FAIL(error, DEVICE, "prefix: %s", event.error.message);
        }
        if (event.type == ENGINE_FINISHED) {
            return OK;
        }
    }
}

static result start_agent(
    struct engine *engine,
    const struct settings *settings,
    uint64_t parent,
    struct round *round,
    struct error *error
) {
    int32_t ids[PREFIX + MESSAGE];
    int32_t index = round->started;
    struct agent *agent = &round->agents[index];
    fill(engine, ids, PREFIX, 1);
    fill(engine, ids + PREFIX, MESSAGE, 1000 + (uint32_t)index);
    if (settings->finds) {
        TRY(engine_sequence_create(engine, &agent->sequence, error));
    } else {
        TRY(engine_sequence_fork(engine, parent, &agent->sequence, error));
    }
    bool has_deadline = settings->windows > 0 && index % 4 == 3;
    agent->begun_ms = now_ms(CLOCK_MONOTONIC);
    struct generation_request request = {
        .sequence = agent->sequence,
        .append = settings->finds ? ids : ids + PREFIX,
        .append_count = settings->finds ? PREFIX + MESSAGE : MESSAGE,
        .sampling = {.temperature = 0.8, .top_p = 0.95, .seed = (uint64_t)index + 1},
        .tokens_max = settings->tokens,
        .speculation = settings->speculates ? SPECULATE_LOOKUP : SPECULATE_OFF,
        .deadline_ms = has_deadline ? (int64_t)agent->begun_ms + DEADLINE_MS : 0,
    };
    TRY(engine_generate(engine, &request, error));
    round->started++;
    return OK;
}

static void take_token(struct round *round, uint64_t sequence) {
    double now = now_ms(CLOCK_MONOTONIC);
    for (int32_t i = 0; i < round->count; i++) {
        struct agent *agent = &round->agents[i];
        if (agent->sequence == sequence && agent->first_ms == 0) {
            agent->first_ms = now;
            round->all_ms = now;
            round->together = -1; // this one is not behind it
        }
    }
    round->sampled++;
    round->together++;
    round->end_ms = now;
}

/* All agents ask at once; returns when the last is done. */
static result run_agents(
    struct engine *engine,
    struct waker *waker,
    const struct settings *settings,
    uint64_t parent,
    struct round *round,
    struct error *error
) {
    engine_statistics(engine, &round->before);
    round->begun_ms = now_ms(CLOCK_MONOTONIC);
    round->begun_cpu_ms = now_ms(CLOCK_PROCESS_CPUTIME_ID);
    while (round->started < round->count) {
        TRY(start_agent(engine, settings, parent, round, error));
    }
    while (round->finished < round->count) {
        struct engine_event event = next_event(engine, waker);
        if (event.type == ENGINE_TOKEN) {
            take_token(round, event.sequence);
        } else if (event.type == ENGINE_FINISHED) {
            if (event.reason == FINISH_ERROR) {
                FAIL(error, DEVICE, "agent: %s", event.error.message);
            }
            round->finished++;
            round->drafted += event.facts.drafted;
            round->accepted += event.facts.accepted;
        }
    }
    round->end_cpu_ms = now_ms(CLOCK_PROCESS_CPUTIME_ID);
    round->end_kib = resident_kib();
    engine_statistics(engine, &round->after);
    for (int32_t i = 0; i < round->count; i++) {
        round->first_ms[i] = round->agents[i].first_ms - round->agents[i].begun_ms;
    }
    qsort(round->first_ms, (size_t)round->count, sizeof *round->first_ms, compare_doubles);
    return OK;
}

static void report(
    struct engine *engine,
    const struct engine_plan *plan,
    const struct round *round,
    double *one_per_second
) {
    struct engine_cache_status cache;
    engine_cache_status(engine, &cache);
    /* Pools are there from the start, so the process does not grow: what it takes of them. */
    double blocks = round->after.blocks_used - round->before.blocks_used;
    double own = blocks * (double)cache.block_bytes / round->count;
    double steps = (double)(round->after.total.steps - round->before.total.steps);
    double step_us = (double)(round->after.total.step_us - round->before.total.step_us);
    double together = 1e3 * round->together / (round->end_ms - round->all_ms);
    if (*one_per_second == 0) {
        *one_per_second = together;
    }
    printf(
        "%6d %9.0f %9.0f %6.2fx %8.0f %8.0f %8.1f %8.1f %8.0f %8.1f %9.1f %6llu %5d/%d\n",
        round->count,
        1e3 * round->sampled / (round->end_ms - round->begun_ms),
        together,
        together / *one_per_second,
        round->first_ms[round->count / 2],
        round->first_ms[round->count - 1],
        step_us / steps / 1e3,
        (double)round->after.step_us_max / 1e3,
        (round->end_cpu_ms - round->begun_cpu_ms) * 1e3 / round->sampled,
        round->end_kib / 1024,
        (own + (double)plan->window_bytes_per_sequence) / 1024,
        (unsigned long long)(round->after.total.preempted - round->before.total.preempted),
        round->accepted,
        round->drafted
    );
}

/* An engine of its own for each number of agents, so that none finds what others left. */
static result run_round(
    const struct settings *settings, int32_t agents, double *one_per_second, struct error *error
) {
    struct waker waker = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    struct engine_options options = {
        .model_directory = settings->model,
        .threads = settings->threads,
        .context_max = CONTEXT,
        .sequences_max = AGENTS_MAX + 1,
        .windows_max = settings->windows > 0 ? settings->windows : AGENTS_MAX + 1,
        .kv_tokens_max = settings->finds ? 0 : 2 * PREFIX + AGENTS_MAX * (MESSAGE + 128 + 384),
        .wake = wake,
        .wake_context = &waker,
    };
    struct engine_plan plan;
    struct round round = {.count = agents};
    uint64_t parent = 0;
    TRY(engine_plan_make(&options, &plan, error));
    CLEANUP(engine_cleanup) struct engine *engine = NULL;
    TRY(engine_open(&options, &engine, error));
    TRY(run_prefix(engine, &waker, &parent, error));
    TRY(run_agents(engine, &waker, settings, parent, &round, error));
    report(engine, &plan, &round, one_per_second);
    return OK;
}

static result run(const struct settings *settings, struct error *error) {
    static const int32_t agents[] = {1, 4, 16, 64};
    double one_per_second = 0;
    printf(
        "prefix %d, message %d, %d tokens each%s%s\n",
        PREFIX,
        MESSAGE,
        settings->tokens,
        settings->finds ? ", prefix found in the cache" : ", forks of one parent",
        settings->speculates ? ", lookup drafts" : ""
    );
    printf(
        "%6s %9s %9s %7s %8s %8s %8s %8s %8s %8s %9s %6s %s\n",
        "agents",
        "tokens/s",
        "together",
        "gain",
        "first ms",
        "max ms",
        "step ms",
        "max ms",
        "cpu us",
        "MiB",
        "KiB/agent",
        "parked",
        "accepted/drafted"
    );
    for (size_t i = 0; i < COUNT_OF(agents); i++) {
        TRY(run_round(settings, agents[i], &one_per_second, error));
    }
    printf(
        "together: from when all have a token. cpu us: processor time of a token, prompts "
        "included. "
        "MiB: resident\nbeside the mapped weights, pools included. KiB/agent: its own blocks and "
        "window. Longest step: the prefix too.\n"
    );
    return OK;
}

static bool parse(int count, char **arguments, struct settings *settings) {
    for (int i = 1; i < count; i++) {
        uint64_t value = 0;
        const char *name = arguments[i];
        bool has_number =
            i + 1 < count && parse_u64(view_of_text(arguments[i + 1]), &value) && value > 0;
        if (strcmp(name, "--speculate") == 0) {
            settings->speculates = true;
        } else if (strcmp(name, "--find") == 0) {
            settings->finds = true;
        } else if (strcmp(name, "--model") == 0 && i + 1 < count) {
            settings->model = arguments[++i];
        } else if (strcmp(name, "--threads") == 0 && has_number && value <= 64) {
            settings->threads = (int32_t)value;
            i++;
        } else if (strcmp(name, "--windows") == 0 && has_number && value <= AGENTS_MAX) {
            settings->windows = (int32_t)value;
            i++;
        } else if (strcmp(name, "--tokens") == 0 && has_number && value <= TOKENS_MAX) {
            settings->tokens = (int32_t)value;
            i++;
        } else {
            return false;
        }
    }
    return true;
}

int main(int count, char **arguments) {
    struct settings settings = {.model = EXAMPLES_MINI_MODEL, .threads = 2, .tokens = 128};
    struct error error = {0};
    if (!parse(count, arguments, &settings)) {
        (void)fprintf(
            stderr,
            "usage: bench_agents [--model DIR] [--threads N] [--windows N] [--tokens N] "
            "[--speculate] [--find]\n"
        );
        return 2;
    }
    if (is_failed(run(&settings, &error))) {
        (void)fprintf(stderr, "bench_agents: %s\n", error.message);
        return 1;
    }
    return 0;
}
