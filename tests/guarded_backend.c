/* See guarded_backend.h. Any number of threads may be inside: pages close when the last one leaves. */
#include "guarded_backend.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/cpu_backend.h"

#define REGIONS_MAX   64
#define RESERVE_BYTES ((size_t)16 << 30) /* of addresses */
/* Opening and closing takes long where system calls do: pages close after each of so many ops, and
 * behind them when the host waits for the backend. */
#define STRICT_CALLS 2000
#define STEPS_MAX    64 /* keys; steps of more are never recorded */
/* Each so many recordings one fails: its ops have to come again. */
#define FAILING_RECORD 3

#define KIND(name)   OP_##name,
#define MEMBER(name) struct name##_op name;
enum op_kind { BACKEND_OPS(KIND) };
union any_op {
    BACKEND_OPS(MEMBER)
};

struct call {
    enum op_kind kind;
    union any_op op;
};

struct step {
    uint64_t key;
    struct call *calls;
    size_t count, capacity;
};

struct region {
    uint8_t *base; /* null: free entry */
    size_t bytes;
    bool is_host; /* of allocate_host: never closed */
};

struct guarded {
    struct backend backend;
    struct backend *cpu;
    char description[80];
    pthread_mutex_t lock;  /* of what follows */
    uint8_t *reserve;      /* addresses that all but host regions come from, in order */
    uint8_t *open_reserve; /* the same bytes for transfers, never closed */
    size_t used;           /* of them */
    struct region regions[REGIONS_MAX]; /* what was allocated */
    int inside;                         /* threads in an op or transfer */
    bool is_open;
    uint64_t entered;
    struct step steps[STEPS_MAX];
    int32_t step_count;
    struct step *recording; /* null: none */
    pthread_t recorder;
    struct guarded_counts counts;
};

static struct guarded *guarded_of(struct backend *backend) {
    return backend->state;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void set_open(struct guarded *guarded, bool is_open) {
    if (guarded->is_open != is_open && guarded->used > 0) {
        int protection = is_open ? PROT_READ | PROT_WRITE : PROT_NONE;
        int failed = mprotect(guarded->reserve, guarded->used, protection);
        ASSERT(failed == 0);
    }
    guarded->is_open = is_open;
}

static void enter(struct guarded *guarded) {
    pthread_mutex_lock(&guarded->lock);
    guarded->inside++;
    guarded->entered++;
    set_open(guarded, true);
    pthread_mutex_unlock(&guarded->lock);
}

static void leave(struct guarded *guarded) {
    pthread_mutex_lock(&guarded->lock);
    guarded->inside--;
    if (guarded->inside == 0 && guarded->entered <= STRICT_CALLS) {
        set_open(guarded, false);
    }
    pthread_mutex_unlock(&guarded->lock);
}

static result
take(struct guarded *guarded, size_t bytes, bool is_host, void **out, struct error *error) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct region *region = NULL;
    pthread_mutex_lock(&guarded->lock);
    for (size_t i = 0; i < REGIONS_MAX && region == NULL; i++) {
        region = guarded->regions[i].base == NULL ? &guarded->regions[i] : NULL;
    }
    ASSERT(region != NULL);
    void *base = MAP_FAILED;
    bool fits = bytes < RESERVE_BYTES - guarded->used - page;
    size_t whole = fits ? (bytes / page + 1) * page : 0;
    if (fits && is_host) {
        int shared = MAP_PRIVATE | MAP_ANONYMOUS;
        base = mmap(NULL, whole, PROT_READ | PROT_WRITE, shared, -1, 0);
    } else if (fits) {
        base = guarded->reserve + guarded->used;
        guarded->used += whole;
        int failed = guarded->is_open ? mprotect(base, whole, PROT_READ | PROT_WRITE) : 0;
        ASSERT(failed == 0);
    }
    if (base != MAP_FAILED) {
        *region = (struct region){.base = base, .bytes = whole, .is_host = is_host};
    }
    pthread_mutex_unlock(&guarded->lock);
    if (base == MAP_FAILED) {
        FAIL(error, MEMORY, "no memory for %zu bytes", bytes);
    }
    *out = base;
    return OK;
}

static result
guarded_allocate(struct backend *backend, size_t bytes, void **out, struct error *error) {
    return take(guarded_of(backend), bytes, false, out, error);
}

static result
guarded_allocate_host(struct backend *backend, size_t bytes, void **out, struct error *error) {
    return take(guarded_of(backend), bytes, true, out, error);
}

static struct region *region_of(struct guarded *guarded, const void *memory) {
    uintptr_t at = (uintptr_t)memory;
    for (size_t i = 0; i < REGIONS_MAX; i++) {
        struct region *region = &guarded->regions[i];
        uintptr_t base = (uintptr_t)region->base;
        if (region->base != NULL && at >= base && at < base + region->bytes) {
            return region;
        }
    }
    return NULL;
}

static void guarded_release(struct backend *backend, void *memory) {
    struct guarded *guarded = guarded_of(backend);
    if (memory == NULL) {
        return;
    }
    pthread_mutex_lock(&guarded->lock);
    struct region *region = region_of(guarded, memory);
    ASSERT(region != NULL && region->base == memory);
    int failed = region->is_host ? munmap(region->base, region->bytes)
                                 : madvise(region->base, region->bytes, MADV_REMOVE);
    ASSERT(failed == 0);
    *region = (struct region){0};
    pthread_mutex_unlock(&guarded->lock);
}

/* Asserts that the backend owns the memory; null is the checks' business in backend.c. */
static void see(struct guarded *guarded, const void *memory) {
    if (memory != NULL) {
        pthread_mutex_lock(&guarded->lock);
        bool is_ours = region_of(guarded, memory) != NULL;
        pthread_mutex_unlock(&guarded->lock);
        ASSERT(is_ours);
    }
}

/* ---- what the ops are given ------------------------------------------------------------------ */

static void see_weight(struct guarded *guarded, const struct weight *weight) {
    see(guarded, weight->data);
    see(guarded, weight->scale);
}

static void see_quantized(struct guarded *guarded, const struct quantized *quantized) {
    see(guarded, quantized->codes);
    see(guarded, quantized->scales);
}

static void see_segments(struct guarded *guarded, const struct row_segments *segments) {
    see(guarded, segments->device);
    if (segments->count > 0) {
        size_t bytes = (size_t)segments->count * sizeof *segments->host;
        const struct region *of_host = region_of(guarded, segments->host);
        ASSERT(of_host == NULL || of_host->is_host);
        ASSERT(memcmp(segments->host, segments->device, bytes) == 0);
    }
}

static void see_views(
    struct guarded *guarded, const struct sequence_view *views, const struct row_segments *of
) {
    see(guarded, views);
    for (int32_t s = 0; s < of->count; s++) {
        see(guarded, views[s].blocks);
        see(guarded, views[s].ring);
        see(guarded, views[s].pending);
    }
}

static void see_expert(struct guarded *guarded, const struct expert_weights *expert) {
    see_weight(guarded, &expert->w1);
    see_weight(guarded, &expert->w2);
    see_weight(guarded, &expert->w3);
}

static void see_embed(struct guarded *guarded, const struct embed_op *op) {
    see(guarded, op->ids);
    see(guarded, op->table);
    see(guarded, op->x);
    see(guarded, op->mix);
}

static void see_stream_mix(struct guarded *guarded, const struct stream_mix_op *op) {
    see(guarded, op->x);
    see(guarded, op->fn);
    see(guarded, op->scale);
    see(guarded, op->base);
    see(guarded, op->pre);
    see(guarded, op->post);
    see(guarded, op->comb);
}

static void see_stream_collapse(struct guarded *guarded, const struct stream_collapse_op *op) {
    see(guarded, op->x);
    see(guarded, op->mix);
    see(guarded, op->weight);
    see(guarded, op->collapsed);
    see(guarded, op->normed);
}

static void see_stream_update(struct guarded *guarded, const struct stream_update_op *op) {
    see(guarded, op->x);
    see(guarded, op->y);
    see(guarded, op->post);
    see(guarded, op->comb);
}

static void see_norm(struct guarded *guarded, const struct norm_op *op) {
    see(guarded, op->x);
    see(guarded, op->weight);
    see(guarded, op->y);
}

static void see_quantize(struct guarded *guarded, const struct quantize_op *op) {
    see(guarded, op->x);
    see_quantized(guarded, &op->y);
}

static void see_linear(struct guarded *guarded, const struct linear_op *op) {
    see(guarded, op->input);
    see_quantized(guarded, &op->quantized);
    see_weight(guarded, &op->weight);
    see(guarded, op->output);
}

static void see_rope_table(struct guarded *guarded, const struct rope_table_op *op) {
    see(guarded, op->positions);
    see(guarded, op->frequencies);
    see(guarded, op->cosine);
    see(guarded, op->sine);
}

static void see_rotate(struct guarded *guarded, const struct rotate_op *op) {
    see(guarded, op->cosine);
    see(guarded, op->sine);
    see(guarded, op->x);
}

static void see_window_pack(struct guarded *guarded, const struct window_pack_op *op) {
    see(guarded, op->x);
    see(guarded, op->records);
}

static void see_window_commit(struct guarded *guarded, const struct window_commit_op *op) {
    see_segments(guarded, &op->segments);
    see_views(guarded, op->views, &op->segments);
    see(guarded, op->records);
}

static void see_compress_pool(struct guarded *guarded, const struct compress_pool_op *op) {
    see_segments(guarded, &op->segments);
    see_views(guarded, op->views, &op->segments);
    see(guarded, op->kv);
    see(guarded, op->score);
    see(guarded, op->latent);
}

static void see_entry_store(struct guarded *guarded, const struct entry_store_op *op) {
    see_segments(guarded, &op->segments);
    see_views(guarded, op->views, &op->segments);
    see(guarded, op->latent);
    see(guarded, op->key);
}

static void see_index_quantize(struct guarded *guarded, const struct index_quantize_op *op) {
    see(guarded, op->x);
    see(guarded, op->codes);
    see(guarded, op->scales);
}

static void see_index_select(struct guarded *guarded, const struct index_select_op *op) {
    see_segments(guarded, &op->segments);
    see_views(guarded, op->views, &op->segments);
    see(guarded, op->query_codes);
    see(guarded, op->query_scales);
    see(guarded, op->head_weights);
    see(guarded, op->selected);
    see(guarded, op->selected_count);
    see(guarded, op->pool);
    see(guarded, op->pool_count);
    see(guarded, op->counters);
    see(guarded, op->scores);
}

static void see_attention(struct guarded *guarded, const struct attention_op *op) {
    see_segments(guarded, &op->segments);
    see_segments(guarded, &op->fresh_segments);
    see_views(guarded, op->views, &op->segments);
    see(guarded, op->query);
    see(guarded, op->fresh);
    see(guarded, op->selected);
    see(guarded, op->selected_count);
    see(guarded, op->sink);
    see(guarded, op->output);
}

static void see_route(struct guarded *guarded, const struct route_op *op) {
    see(guarded, op->logits);
    see(guarded, op->bias);
    see(guarded, op->ids);
    see(guarded, op->weights);
}

static void see_experts(struct guarded *guarded, const struct experts_op *op) {
    see_quantized(guarded, &op->x);
    see(guarded, op->ids);
    see(guarded, op->weights);
    see(guarded, op->routed);
    for (int32_t e = 0; e < op->experts; e++) {
        see_expert(guarded, &op->routed[e]);
        ASSERT(op->routed[e].w1.dtype == op->routed_dtype);
    }
    ASSERT(region_of(guarded, op->shared) == NULL);
    see_expert(guarded, op->shared);
    see(guarded, op->output);
}

static void see_engram_gather(struct guarded *guarded, const struct engram_gather_op *op) {
    see(guarded, op->ids);
    see(guarded, op->table);
    see(guarded, op->scales);
    see(guarded, op->output);
}

static void see_engram_gate(struct guarded *guarded, const struct engram_gate_op *op) {
    see(guarded, op->kv);
    see(guarded, op->query_weight);
    see(guarded, op->key_weight);
    see(guarded, op->x);
    see(guarded, op->gate);
}

static void see_keep_rows(struct guarded *guarded, const struct keep_rows_op *op) {
    see_segments(guarded, &op->from);
    see_segments(guarded, &op->to);
    see(guarded, op->rows);
}

/* ---- ops, and steps of them ------------------------------------------------------------------ */

static bool is_recording_here(const struct guarded *guarded) {
    return guarded->recording != NULL && pthread_equal(guarded->recorder, pthread_self()) != 0;
}

static void record(struct guarded *guarded, const struct call *call) {
    struct step *step = guarded->recording;
    if (step->count == step->capacity) {
        step->capacity = step->capacity == 0 ? 256 : 2 * step->capacity;
        step->calls = realloc(step->calls, step->capacity * sizeof *step->calls);
        ASSERT(step->calls != NULL);
    }
    step->calls[step->count++] = *call;
}

/* While a step is recorded nothing runs. */
#define DEFINE(name)                                                                               \
    static void guarded_##name(struct backend *backend, const struct name##_op *op) {              \
        struct guarded *guarded = guarded_of(backend);                                             \
        if (is_recording_here(guarded)) {                                                          \
            const struct call call = {.kind = OP_##name, .op.name = *op};                          \
            record(guarded, &call);                                                                \
            return;                                                                                \
        }                                                                                          \
        enter(guarded);                                                                            \
        see_##name(guarded, op);                                                                   \
        guarded->cpu->name(guarded->cpu, op);                                                      \
        leave(guarded);                                                                            \
    }
BACKEND_OPS(DEFINE)

#define REPLAY(name)                                                                               \
    case OP_##name:                                                                                \
        guarded_##name(backend, &call->op.name);                                                   \
        break;
static void replay(struct backend *backend, const struct call *call) {
    switch (call->kind) { BACKEND_OPS(REPLAY) }
}

static void run_step(struct backend *backend, const struct step *step) {
    for (size_t c = 0; c < step->count; c++) {
        replay(backend, &step->calls[c]);
    }
}

static bool guarded_step_begin(struct backend *backend, uint64_t key) {
    struct guarded *guarded = guarded_of(backend);
    ASSERT(guarded->recording == NULL);
    for (int32_t i = 0; i < guarded->step_count; i++) {
        if (guarded->steps[i].key == key) {
            run_step(backend, &guarded->steps[i]);
            guarded->counts.replayed++;
            return true;
        }
    }
    if (guarded->step_count < STEPS_MAX) {
        guarded->recording = &guarded->steps[guarded->step_count];
        *guarded->recording = (struct step){.key = key};
        guarded->recorder = pthread_self();
    }
    return false;
}

static bool guarded_step_end(struct backend *backend) {
    struct guarded *guarded = guarded_of(backend);
    struct step *step = guarded->recording;
    guarded->recording = NULL;
    if (step == NULL) {
        return true; // they ran
    }
    guarded->counts.recorded++;
    if (guarded->counts.recorded % FAILING_RECORD == 0) {
        free(step->calls);
        return false;
    }
    guarded->step_count++;
    run_step(backend, step);
    return true;
}

static void guarded_step_forget(struct backend *backend) {
    struct guarded *guarded = guarded_of(backend);
    ASSERT(guarded->recording == NULL);
    for (int32_t i = 0; i < guarded->step_count; i++) {
        free(guarded->steps[i].calls);
    }
    guarded->step_count = 0;
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* Where a transfer finds memory of the backend. */
static uint8_t *open_address(struct guarded *guarded, const void *memory, size_t bytes) {
    pthread_mutex_lock(&guarded->lock);
    const struct region *region = region_of(guarded, memory);
    ASSERT(region != NULL);
    size_t at = (size_t)((const uint8_t *)memory - region->base);
    ASSERT(bytes <= region->bytes - at);
    uint8_t *base =
        region->is_host ? region->base : guarded->open_reserve + (region->base - guarded->reserve);
    pthread_mutex_unlock(&guarded->lock);
    return base + at;
}

static void guarded_upload(struct backend *backend, void *to, const void *from, size_t bytes) {
    struct guarded *guarded = guarded_of(backend);
    ASSERT(!is_recording_here(guarded));
    if (bytes > 0) {
        memcpy(open_address(guarded, to, bytes), from, bytes);
    }
}

static void guarded_download(struct backend *backend, void *to, const void *from, size_t bytes) {
    struct guarded *guarded = guarded_of(backend);
    ASSERT(!is_recording_here(guarded));
    if (bytes > 0) {
        memcpy(to, open_address(guarded, from, bytes), bytes);
    }
}

static void guarded_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    struct guarded *guarded = guarded_of(backend);
    ASSERT(!is_recording_here(guarded));
    if (bytes > 0) {
        memcpy(open_address(guarded, to, bytes), open_address(guarded, from, bytes), bytes);
    }
}

static result guarded_synchronize(struct backend *backend, struct error *error) {
    struct guarded *guarded = guarded_of(backend);
    ASSERT(!is_recording_here(guarded));
    pthread_mutex_lock(&guarded->lock);
    if (guarded->inside == 0) {
        set_open(guarded, false);
    }
    pthread_mutex_unlock(&guarded->lock);
    return guarded->cpu->synchronize(guarded->cpu, error);
}

static void guarded_spread(
    struct backend *backend,
    backend_piece_function *piece,
    void *context,
    int32_t count,
    int64_t nanoseconds
) {
    struct backend *cpu = guarded_of(backend)->cpu;
    backend_spread(cpu, piece, context, count, nanoseconds);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void guarded_close(struct backend *backend) {
    struct guarded *guarded = guarded_of(backend);
    guarded_step_forget(backend);
    for (size_t i = 0; i < REGIONS_MAX; i++) {
        ASSERT(guarded->regions[i].base == NULL); // everything was given back
    }
    int failed =
        munmap(guarded->reserve, RESERVE_BYTES) | munmap(guarded->open_reserve, RESERVE_BYTES);
    ASSERT(failed == 0);
    backend_close(guarded->cpu);
    pthread_mutex_destroy(&guarded->lock);
    free(guarded);
}

#define ENTRY(name) .name = guarded_##name,
static const struct backend table = {
    .name = GUARDED_BACKEND_NAME,
    .is_host_memory = false,
    .close = guarded_close,
    .allocate = guarded_allocate,
    .allocate_host = guarded_allocate_host,
    .release = guarded_release,
    .upload = guarded_upload,
    .download = guarded_download,
    .copy = guarded_copy,
    .synchronize = guarded_synchronize,
    .step_begin = guarded_step_begin,
    .step_end = guarded_step_end,
    .step_forget = guarded_step_forget,
    .spread = guarded_spread,
    BACKEND_OPS(ENTRY)};

result guarded_backend_open(
    const struct backend_options *options, struct backend **out, struct error *error
) {
    struct guarded *guarded = calloc(1, sizeof *guarded);
    if (guarded == NULL) {
        FAIL(error, MEMORY, "no memory for a guarded backend");
    }
    struct backend_options cpu = *options;
    cpu.name = "cpu";
    result opened = cpu_backend_open(&cpu, &guarded->cpu, error);
    if (is_failed(opened)) {
        free(guarded);
        return opened;
    }
    int fd = memfd_create("guarded", MFD_CLOEXEC);
    int failed = fd < 0 ? -1 : ftruncate(fd, RESERVE_BYTES);
    ASSERT(failed == 0);
    guarded->reserve = mmap(NULL, RESERVE_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    guarded->open_reserve =
        mmap(NULL, RESERVE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    ASSERT(guarded->reserve != MAP_FAILED && guarded->open_reserve != MAP_FAILED);
    (void)close(fd);
    pthread_mutex_init(&guarded->lock, NULL);
    (void)snprintf(
        guarded->description, sizeof guarded->description, "guarded %s", guarded->cpu->description
    );
    guarded->backend = table;
    guarded->backend.description = guarded->description;
    guarded->backend.numerics = guarded->cpu->numerics;
    guarded->backend.state = guarded;
    *out = &guarded->backend;
    return OK;
}

void guarded_backend_count(const struct backend *backend, struct guarded_counts *out) {
    *out = ((const struct guarded *)backend->state)->counts;
}
