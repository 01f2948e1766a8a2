/* Drives the engine's KV store as its scheduler and a server would. See traffic_store.h. */
#include "traffic_store.h"

#include <time.h>

/* The release's. */
#define WINDOW         128
#define ENCODER_LAYERS 20
#define LAYERS         40

/* An agent's sequence. */
struct live {
    struct kv_sequence *sequence; /* null: free */
    struct kv_binding binding;
    int32_t agent;
    int32_t piece; /* what it holds */
    bool is_running;
    bool has_children;
    int64_t idle_ms;     /* since then it waits */
    int64_t expected_ms; /* back at work */
};

struct traffic_store {
    const struct traffic *traffic;
    struct backend backend;
    struct kv_cache cache;
    struct kv_store *engine;
    struct live lives[TRAFFIC_STORE_SEQUENCES];
    int64_t now_ms;
    struct traffic_store_counts counts;
};

/* ---- memory without a device ---- */

static result
plain_allocate(struct backend *backend, size_t bytes, void **out, struct error *error) {
    (void)backend;
    *out = calloc(1, bytes);
    if (*out == NULL) {
        FAIL(error, MEMORY, "no memory for %zu bytes of a simulated cache", bytes);
    }
    return OK;
}

static void plain_release(struct backend *backend, void *memory) {
    (void)backend;
    free(memory);
}

static void plain_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    memcpy(to, from, bytes);
}

/* ---- the end of a sequence ---- */

static void end_live(struct traffic_store *store, struct live *live) {
    kv_store_end(store->engine, &live->binding, store->now_ms);
    kv_cache_release(&store->cache, live->sequence);
    *live = (struct live){0};
}

/* One that waits, expected back latest and of these idle longest; null: none. */
static struct live *find_idle(struct traffic_store *store) {
    struct live *best = NULL;
    for (int32_t i = 0; i < TRAFFIC_STORE_SEQUENCES; i++) {
        struct live *live = &store->lives[i];
        if (live->sequence == NULL || live->is_running) {
            continue;
        }
        bool is_later = best == NULL || live->expected_ms > best->expected_ms ||
                        (live->expected_ms == best->expected_ms && live->idle_ms < best->idle_ms);
        best = is_later ? live : best;
    }
    return best;
}

static void end_idle(struct traffic_store *store) {
    for (int32_t i = 0; i < TRAFFIC_STORE_SEQUENCES; i++) {
        struct live *live = &store->lives[i];
        if (live->sequence != NULL && !live->is_running && !live->has_children &&
            store->now_ms - live->idle_ms >= TRAFFIC_STORE_IDLE_MS) {
            store->counts.ended_waiting++;
            end_live(store, live);
        }
    }
}

static void pass_time(struct traffic_store *store, int64_t now_ms) {
    store->now_ms = now_ms;
    (void)kv_store_poll(store->engine, now_ms);
    end_idle(store);
}

/* ---- rows ---- */

/* Room for the sequence's tokens: beyond what the store lets go of, others end. */
static bool reserve(struct traffic_store *store, struct live *live, int32_t tokens) {
    for (;;) {
        struct error error;
        if (is_ok(kv_cache_reserve(&store->cache, live->sequence, tokens, &error))) {
            return true;
        }
        struct live *idle = find_idle(store);
        if (idle == NULL) {
            store->counts.refused++;
            return false;
        }
        store->counts.ended_for_memory++;
        end_live(store, idle);
    }
}

static void
append(struct traffic_store *store, struct live *live, const int32_t *tokens, int32_t to) {
    for (int32_t i = live->sequence->length; i < to; i++) {
        kv_cache_append(&store->cache, live->sequence, tokens[i], 0);
    }
}

/* Steps as long as the store lets them be. */
static void run_rows(struct traffic_store *store, struct live *live, int32_t to) {
    struct kv_sequence *sequence = live->sequence;
    while (sequence->computed < to) {
        sequence->computed += kv_store_rows(&live->binding, to - sequence->computed);
        kv_store_advance(store->engine, &live->binding, store->now_ms);
    }
}

/* ---- the start of a request ---- */

static struct live *find_agent(struct traffic_store *store, int32_t agent) {
    for (int32_t i = 0; i < TRAFFIC_STORE_SEQUENCES; i++) {
        if (store->lives[i].sequence != NULL && store->lives[i].agent == agent) {
            return &store->lives[i];
        }
    }
    return NULL;
}

/* A sequence that waits and holds just this. */
static struct live *find_piece(struct traffic_store *store, int32_t piece) {
    for (int32_t i = 0; i < TRAFFIC_STORE_SEQUENCES; i++) {
        struct live *live = &store->lives[i];
        if (live->sequence != NULL && !live->is_running && live->piece == piece) {
            return live;
        }
    }
    return NULL;
}

static bool continues(const struct traffic *traffic, int32_t piece, int32_t of) {
    while (piece > of) {
        piece = traffic->pieces[piece].before;
    }
    return piece == of;
}

/* Null: everything is at work. */
static struct live *find_place(struct traffic_store *store) {
    for (int32_t i = 0; i < TRAFFIC_STORE_SEQUENCES; i++) {
        if (store->lives[i].sequence == NULL) {
            return &store->lives[i];
        }
    }
    struct live *idle = find_idle(store);
    if (idle != NULL) {
        store->counts.ended_for_place++;
        end_live(store, idle);
    }
    return idle;
}

/* Its own sequence, or a fork of its parent's; null: neither lives. */
static struct live *go_on(struct traffic_store *store, const struct traffic_request *request) {
    struct live *live = find_agent(store, request->agent);
    if (live != NULL && continues(store->traffic, request->prompt, live->piece)) {
        return live;
    }
    if (live != NULL) {
        end_live(store, live);
        return NULL;
    }
    int32_t before = store->traffic->pieces[request->prompt].before;
    struct live *place = find_piece(store, before) == NULL ? NULL : find_place(store);
    struct live *parent = find_piece(store, before); /* making a place may have ended it */
    if (place == NULL || parent == NULL) {
        return NULL;
    }
    place->sequence = kv_cache_fork(&store->cache, parent->sequence);
    ASSERT(place->sequence != NULL);
    kv_store_fork(store->engine, &parent->binding, &place->binding, place->sequence, store->now_ms);
    store->counts.forks++;
    return place;
}

static double now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* A new sequence with what is cached. Null: all places are at work. */
static struct live *begin(
    struct traffic_store *store, const struct kv_prompt *prompt, struct traffic_store_reuse *out
) {
    struct live *live = find_place(store);
    if (live == NULL) {
        store->counts.refused++;
        return NULL;
    }
    live->sequence = kv_cache_acquire(&store->cache);
    ASSERT(live->sequence != NULL);
    struct kv_reuse reuse;
    double start_us = now_us();
    enum kv_begin begun = kv_store_begin(
        store->engine, &live->binding, live->sequence, prompt, store->now_ms, &reuse
    );
    out->lookup_us = now_us() - start_us;
    ASSERT(begun == KV_BEGIN_READY); /* there is no tier to wait for */
    out->hit = reuse.hit;
    out->start = reuse.start;
    out->window_source = reuse.window_source;
    return live;
}

void traffic_store_start(
    struct traffic_store *store,
    const struct traffic_request *request,
    const int32_t *tokens,
    struct traffic_store_reuse *out
) {
    const struct traffic_store_reuse cold = {.window_source = "cold", .lookup_us = -1};
    const struct kv_prompt prompt = {
        .tokens = tokens,
        .count = traffic_count(store->traffic, request->prompt),
        .window = WINDOW_EXACT,
    };
    *out = cold;
    pass_time(store, request->start_ms);
    struct live *live = go_on(store, request);
    bool is_fresh = live == NULL;
    if (is_fresh) {
        live = begin(store, &prompt, out);
    } else {
        out->hit = live->sequence->computed;
        out->start = live->sequence->computed;
        out->window_source = "live";
    }
    if (live == NULL) {
        return;
    }
    live->agent = request->agent;
    live->piece = request->prompt;
    live->is_running = true;
    if (!reserve(store, live, prompt.count)) {
        live->binding.is_lost = true;
        end_live(store, live);
        double lookup_us = out->lookup_us;
        *out = cold;
        out->lookup_us = lookup_us;
        return;
    }
    if (!is_fresh) {
        kv_store_extend(store->engine, &live->binding, prompt.count, prompt.window);
    }
    append(store, live, tokens, prompt.count);
    run_rows(store, live, prompt.count);
}

/* ---- the end of a request ---- */

static void tell(
    struct traffic_store *store, struct live *live, enum sequence_event event, int64_t estimate_ms
) {
    kv_store_tell(store->engine, &live->binding, event, estimate_ms, store->now_ms);
}

void traffic_store_end(
    struct traffic_store *store, const struct traffic_request *request, const int32_t *tokens
) {
    pass_time(store, request->end_ms);
    struct live *live = find_agent(store, request->agent);
    if (live == NULL) {
        return; /* it was refused */
    }
    int32_t count = traffic_count(store->traffic, request->output);
    if (reserve(store, live, count)) {
        append(store, live, tokens, count);
        live->piece = request->output;
        run_rows(store, live, count - 1); /* the last token that was sampled has not run */
    }
    live->is_running = false;
    live->has_children = request->after == TRAFFIC_CHILDREN;
    live->idle_ms = store->now_ms;
    live->expected_ms = store->now_ms + request->estimate_ms;
    bool waits = request->after == TRAFFIC_TOOL || request->after == TRAFFIC_CHILDREN;
    if (waits) {
        tell(store, live, SEQUENCE_WAITING, request->estimate_ms);
    } else {
        bool is_answer = request->after == TRAFFIC_ANSWERED;
        tell(store, live, is_answer ? SEQUENCE_FINISHED : SEQUENCE_ABANDONED, 0);
    }
    if (!waits || request->estimate_ms > TRAFFIC_STORE_IDLE_MS) {
        store->counts.ended_waiting += waits;
        end_live(store, live);
    }
}

/* ---- create, destroy, count ---- */

static result open_engine(
    struct traffic_store *store, const struct traffic_store_options *options, struct error *error
) {
    const struct kv_layout layout = {.ring_bytes = 1, .state_bytes = LAYERS};
    const struct kv_cache_shape shape = {
        .context_max = store->traffic->tokens_max + 1,
        .sequences_max = TRAFFIC_STORE_SEQUENCES,
        .block_total = options->blocks,
    };
    TRY(kv_cache_init_shape(&store->cache, &store->backend, &layout, &shape, error));
    const struct kv_store_options engine = {
        .cache = &store->cache,
        .window = WINDOW,
        .encoder_layers = ENCODER_LAYERS,
        .layers = LAYERS,
        .root = {{1}},
        .hash_key = 0x1234567,
        .leases_max = 2 * TRAFFIC_STORE_SEQUENCES,
        .snapshot_bytes = (uint64_t)options->snapshots * layout.state_bytes,
        .snapshot_lifetime_ms = options->snapshot_ms,
    };
    return kv_store_create(&store->engine, &engine, error);
}

result traffic_store_create(
    struct traffic_store **out,
    const struct traffic *traffic,
    const struct traffic_store_options *options,
    struct error *error
) {
    struct traffic_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        FAIL(error, MEMORY, "no memory for a simulated KV store");
    }
    store->traffic = traffic;
    store->backend = (struct backend){
        .allocate = plain_allocate,
        .release = plain_release,
        .upload = plain_copy,
        .download = plain_copy,
        .copy = plain_copy,
    };
    result opened = open_engine(store, options, error);
    if (is_failed(opened)) {
        traffic_store_destroy(store);
        return opened;
    }
    *out = store;
    return OK;
}

void traffic_store_destroy(struct traffic_store *store) {
    if (store == NULL) {
        return;
    }
    for (int32_t i = 0; i < TRAFFIC_STORE_SEQUENCES; i++) {
        if (store->lives[i].sequence != NULL) {
            end_live(store, &store->lives[i]);
        }
    }
    if (store->engine != NULL) {
        struct error error;
        result checked = kv_store_check(store->engine, &error);
        ASSERT(is_ok(checked));
        kv_store_destroy(store->engine);
        ASSERT(store->cache.block_free_count == store->cache.block_total);
    }
    kv_cache_deinit(&store->cache);
    free(store);
}

void traffic_store_count(const struct traffic_store *store, struct traffic_store_counts *out) {
    *out = store->counts;
    kv_store_count(store->engine, &out->engine);
}
