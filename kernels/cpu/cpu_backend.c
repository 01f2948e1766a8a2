/* The CPU backend: picks an instruction set, sizes scratch memory once, owns the thread team. */
#include "cpu_backend.h"

#include "cpu.h"

#include <time.h>

#define CPU_NUMERICS  1
#define CPU_ALIGNMENT 64

void cpu_fill_table_plain(struct backend *backend);
#if defined(CPU_HAVE_X86)
void cpu_fill_table_avx2(struct backend *backend);
void cpu_fill_table_avx512(struct backend *backend);
#endif

struct cpu_isa {
    const char *name;
    void (*fill)(struct backend *backend);
    bool present;
};

/* Best first. */
static size_t cpu_isas(struct cpu_isa isas[3]) {
    size_t count = 0;
#if defined(CPU_HAVE_X86)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    bool avx512 =
        avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
    isas[count++] = (struct cpu_isa){"avx512", cpu_fill_table_avx512, avx512};
    isas[count++] = (struct cpu_isa){"avx2", cpu_fill_table_avx2, avx2};
#endif
    isas[count++] = (struct cpu_isa){"plain", cpu_fill_table_plain, true};
    return count;
}

static result cpu_isa_find(const char *name, struct cpu_isa *out, struct error *error) {
    struct cpu_isa isas[3];
    size_t count = cpu_isas(isas);
    for (size_t i = 0; i < count; i++) {
        if (name == NULL ? isas[i].present : strcmp(name, isas[i].name) == 0) {
            if (!isas[i].present) {
                FAIL(error, UNSUPPORTED, "this CPU lacks instruction set '%s'", name);
            }
            *out = isas[i];
            return OK;
        }
    }
    FAIL(error, UNSUPPORTED, "unknown instruction set '%s'", name);
}

static result cpu_allocate(struct backend *backend, size_t bytes, void **out, struct error *error) {
    (void)backend;
    size_t rounded;
    if (!size_add(bytes, CPU_ALIGNMENT, &rounded)) {
        FAIL(error, MEMORY, "cpu: %zu bytes do not fit", bytes);
    }
    rounded = rounded / CPU_ALIGNMENT * CPU_ALIGNMENT;
    void *memory = aligned_alloc(CPU_ALIGNMENT, rounded);
    if (memory == NULL) {
        FAIL(error, MEMORY, "cpu: cannot allocate %zu bytes", bytes);
    }
    memset(memory, 0, rounded);
    *out = memory;
    return OK;
}

static void cpu_release(struct backend *backend, void *memory) {
    (void)backend;
    free(memory);
}

static void cpu_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    (void)backend;
    if (bytes > 0) {
        memmove(to, from, bytes);
    }
}

static result cpu_synchronize(struct backend *backend, struct error *error) {
    (void)backend;
    (void)error;
    return OK;
}

static void cpu_stamp(struct backend *backend, int32_t number) {
    ASSERT(number >= 0 && number < BACKEND_STAMPS_MAX);
    (void)clock_gettime(CLOCK_MONOTONIC, &cpu_of(backend)->stamps[number]);
}

static double cpu_stamp_seconds(struct backend *backend, int32_t from, int32_t to) {
    const struct timespec *a = &cpu_of(backend)->stamps[from];
    const struct timespec *b = &cpu_of(backend)->stamps[to];
    return (double)(b->tv_sec - a->tv_sec) + 1e-9 * (double)(b->tv_nsec - a->tv_nsec);
}

struct spread_job {
    backend_piece_function *piece;
    void *context;
};

static void spread_chunk(void *context, int32_t thread, int32_t chunk) {
    const struct spread_job *job = context;
    (void)thread;
    job->piece(job->context, chunk);
}

static void cpu_spread(
    struct backend *backend,
    backend_piece_function *piece,
    void *context,
    int32_t count,
    int64_t nanoseconds
) {
    struct spread_job job = {piece, context};
    cpu_team_run(cpu_of(backend)->team, spread_chunk, &job, count, nanoseconds);
}

/* Cuts scratch memory: the first pass only counts. */
struct carver {
    unsigned char *memory; /* null while counting */
    size_t used;
    bool overflow;
};

static void *carve(struct carver *carver, int64_t count, size_t size) {
    size_t bytes;
    // a little slack, since vector loads may look at a whole register
    if (count < 0 || !size_multiply((size_t)count, size, &bytes) ||
        !size_add(bytes, (size_t)2 * CPU_ALIGNMENT - 1, &bytes)) {
        carver->overflow = true;
        return NULL;
    }
    bytes = bytes / CPU_ALIGNMENT * CPU_ALIGNMENT;
    void *at = carver->memory == NULL ? NULL : carver->memory + carver->used;
    if (!size_add(carver->used, bytes, &carver->used)) {
        carver->overflow = true;
    }
    return at;
}

static void carve_thread(struct carver *carver, const struct cpu *cpu, struct cpu_thread *thread) {
    const struct backend_options *limits = &cpu->limits;
    int64_t heads = limits->heads;
    int64_t dim = limits->head_dim;
    int64_t entries = limits->index_heads > 0 ? cpu->entries_max : 0;
    int64_t experts = (int64_t)limits->experts * 3;
    int64_t product = (int64_t)cpu->slab * 64;
    thread->panel = carve(carver, (int64_t)CPU_PANEL * limits->dim_max, sizeof(float));
    thread->product = carve(carver, experts > product ? experts : product, sizeof(float));
    thread->keys = carve(carver, CPU_ATTENTION_KEYS * dim, sizeof(float));
    thread->query = carve(carver, heads * dim, sizeof(float));
    thread->sum = carve(carver, heads * dim, sizeof(float));
    thread->logits = carve(carver, heads * CPU_ATTENTION_KEYS, sizeof(float));
    thread->softmax = carve(carver, heads * 3, sizeof(float));
    thread->scores = carve(carver, entries * CPU_INDEX_ROWS, sizeof(float));
    thread->blocks = carve(carver, entries, sizeof(float));
    thread->members = carve(carver, entries, sizeof(int32_t));
    thread->select = carve(carver, entries, sizeof(uint32_t));
    int64_t groups = (int64_t)limits->index_heads * limits->index_dim / 32 * CPU_INDEX_ROWS;
    int64_t index_groups = limits->index_dim / 32;
    thread->index_query = carve(carver, groups * 32, 1);
    thread->index_bias = carve(carver, groups, sizeof(int32_t));
    thread->index_factor = carve(carver, groups, sizeof(float));
    thread->index_weight =
        carve(carver, (int64_t)limits->index_heads * CPU_INDEX_ROWS, sizeof(float));
    thread->index_key = carve(carver, index_groups * 256, 1);
    thread->index_scale = carve(carver, index_groups * 8, sizeof(float));
    thread->index_tail = carve(carver, index_groups * 8 * 17, 1);
}

static void carve_all(struct carver *carver, struct cpu *cpu, int32_t threads) {
    const struct backend_options *limits = &cpu->limits;
    int64_t entries = (int64_t)cpu->slab * (limits->experts_chosen + 1);
    int64_t experts = limits->experts > 0 ? entries : 0;
    cpu->threads = carve(carver, threads, sizeof *cpu->threads);
    cpu->input = carve(carver, (int64_t)cpu->slab * limits->dim_max, sizeof(float));
    cpu->expert_hidden = carve(carver, experts * limits->expert_hidden, sizeof(float));
    cpu->expert_output = carve(carver, experts * limits->model_dim, sizeof(uint16_t));
    cpu->expert_first = carve(carver, (int64_t)limits->experts + 2, sizeof(int32_t));
    cpu->expert_active = carve(carver, (int64_t)limits->experts + 1, sizeof(int32_t));
    cpu->expert_entries = carve(carver, experts, sizeof(int32_t));
    cpu->expert_rows = carve(carver, experts, sizeof(int32_t));
    struct cpu_thread unused;
    for (int32_t i = 0; i < threads; i++) {
        carve_thread(carver, cpu, cpu->threads == NULL ? &unused : &cpu->threads[i]);
    }
}

static void cpu_set_limits(struct cpu *cpu, const struct backend_options *options) {
    cpu->limits = *options;
    cpu->limits.name = NULL; // borrowed strings are not kept
    cpu->limits.isa = NULL;
    cpu->slab = int_min(options->rows_max, CPU_SLAB_ROWS);
    cpu->entries_max = options->context_max + 64;
}

static result cpu_scratch(struct cpu *cpu, int32_t threads, struct error *error) {
    struct carver carver = {0};
    carve_all(&carver, cpu, threads);
    if (carver.overflow) {
        FAIL(error, INVALID_INPUT, "cpu backend: scratch for these limits does not fit in memory");
    }
    TRY_NOTE(
        error,
        cpu_allocate(&cpu->backend, carver.used, &cpu->memory, error),
        "cpu backend: scratch memory"
    );
    carver = (struct carver){cpu->memory, 0, false};
    carve_all(&carver, cpu, threads);
    return OK;
}

static void cpu_backend_close(struct backend *backend) {
    struct cpu *cpu = cpu_of(backend);
    cpu_team_destroy(cpu->team);
    free(cpu->memory);
    free(cpu);
}

static void cpu_fill_common(struct backend *backend) {
    backend->close = cpu_backend_close;
    backend->allocate = cpu_allocate;
    backend->allocate_host = cpu_allocate;
    backend->release = cpu_release;
    backend->upload = cpu_copy;
    backend->download = cpu_copy;
    backend->copy = cpu_copy;
    backend->synchronize = cpu_synchronize;
    backend->spread = cpu_spread;
    backend->stamp = cpu_stamp;
    backend->stamp_seconds = cpu_stamp_seconds;
}

result
cpu_backend_open(const struct backend_options *options, struct backend **out, struct error *error) {
    struct cpu_isa isa = {0};
    TRY(cpu_isa_find(options->isa, &isa, error));
    struct cpu *cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL) {
        FAIL(error, MEMORY, "cpu backend: out of memory");
    }
    int32_t threads = cpu_team_threads_for(options->threads);
    cpu_set_limits(cpu, options);
    cpu->backend.state = cpu;
    cpu->backend.name = "cpu";
    cpu->backend.numerics = CPU_NUMERICS;
    cpu->backend.is_host_memory = true;
    result opened = cpu_scratch(cpu, threads, error);
    if (is_ok(opened)) {
        opened = cpu_team_create(threads, &cpu->team, error);
    }
    if (is_failed(opened)) {
        cpu_backend_close(&cpu->backend);
        return opened;
    }
    int length = snprintf(
        cpu->description, sizeof cpu->description, "cpu %s, %d threads", isa.name, threads
    );
    ASSERT(length > 0 && (size_t)length < sizeof cpu->description);
    cpu->backend.description = cpu->description;
    cpu_fill_common(&cpu->backend);
    isa.fill(&cpu->backend);
    *out = &cpu->backend;
    return OK;
}

result cpu_backend_probe(struct backend_facts *out, struct error *error) {
    struct cpu_isa isa = {0};
    TRY(cpu_isa_find(NULL, &isa, error));
    *out = (struct backend_facts){.is_host_memory = true};
    int length = snprintf(out->description, sizeof out->description, "cpu %s", isa.name);
    ASSERT(length > 0 && (size_t)length < sizeof out->description);
    return OK;
}

uint64_t cpu_backend_scratch_bytes(const struct backend_options *options) {
    struct cpu cpu = {0};
    struct carver carver = {0};
    cpu_set_limits(&cpu, options);
    carve_all(&carver, &cpu, cpu_team_threads_for(options->threads));
    return carver.overflow ? UINT64_MAX : carver.used;
}

struct rows_job {
    struct cpu *cpu;
    const void *op;
    cpu_row_function *function;
    int32_t rows, rows_per_chunk;
};

static void rows_chunk(void *context, int32_t thread, int32_t chunk) {
    const struct rows_job *job = context;
    int32_t last = int_min(job->rows, (chunk + 1) * job->rows_per_chunk);
    for (int32_t row = chunk * job->rows_per_chunk; row < last; row++) {
        job->function(job->cpu, job->op, row, thread);
    }
}

void cpu_rows(
    struct cpu *cpu, const void *op, cpu_row_function *function, int32_t rows, int64_t nanoseconds
) {
    // chunks of about a microsecond, but enough of them for everyone
    int64_t per_chunk = 1000 / (nanoseconds + 1) + 1;
    int32_t share = ceil_divide(rows, cpu_team_threads(cpu->team) * 2);
    struct rows_job job = {cpu, op, function, rows, 1};
    job.rows_per_chunk = int_max(1, per_chunk < share ? (int32_t)per_chunk : share);
    int32_t chunks = ceil_divide(rows, job.rows_per_chunk);
    cpu_team_run(cpu->team, rows_chunk, &job, chunks, nanoseconds * rows);
}

int32_t cpu_segment_of(const struct row_segments *segments, int32_t row) {
    for (int32_t s = 0; s < segments->count; s++) {
        const struct row_segment *segment = &segments->host[s];
        if (row >= segment->row && row < segment->row + segment->count) {
            return s;
        }
    }
    return -1;
}
