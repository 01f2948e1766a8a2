/* Router and experts (spec 3.11). Rows of a slab are grouped by expert, so that each expert's
 * weights are decoded once for all of its rows. Bound: weight reads for few rows. */
#include "lanes.h"

#include "cpu.h"

#define HIDDEN_BLOCK 32 /* hidden channels of one task: one quantiser group */
#define OUTPUT_BLOCK 64 /* output channels of one task */

static void route_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    const struct route_op *op = argument;
    float *scores = cpu->threads[thread].product;
    float *biased = scores + op->experts;
    const float *logits = op->logits + (size_t)row * (size_t)op->experts;
    for (int32_t e = 0; e < op->experts; e++) {
        scores[e] = sqrtf((float)LANES(cpu_softplus)((double)logits[e]));
        biased[e] = scores[e] + op->bias[e];
    }
    int32_t *ids = op->ids + (size_t)row * (size_t)op->chosen;
    float *weights = op->weights + (size_t)row * (size_t)op->chosen;
    uint32_t *keys = (uint32_t *)(void *)(biased + op->experts);
    int32_t kept = cpu_topk(biased, op->experts, op->chosen, keys, ids);
    ASSERT(kept == op->chosen);
    float sum = 0.0F;
    for (int32_t i = 0; i < kept; i++) {
        sum += scores[ids[i]];
    }
    for (int32_t i = 0; i < kept; i++) {
        weights[i] = scores[ids[i]] / (sum + 1e-20F) * op->routed_scale;
    }
}

void LANES(cpu_route)(struct backend *backend, const struct route_op *op) {
    cpu_rows(cpu_of(backend), op, route_row, op->rows, op->experts * 30);
}

struct experts_job {
    struct cpu *cpu;
    const struct experts_op *op;
    int32_t row, rows; /* the slab */
    int32_t active;    /* experts with rows, the shared one included */
};

/* The rows of one expert in the slab. */
struct expert_task {
    const struct expert_weights *weights;
    const int32_t *entries; /* null for the shared expert: entry base + i */
    const int32_t *rows;    /* null: row i */
    int32_t base;
    int32_t count;
};

/* Lists, for each expert, the entries (row * k + slot) that chose it; counting sort, so ascending. */
static void group_rows(struct experts_job *job) {
    struct cpu *cpu = job->cpu;
    const struct experts_op *op = job->op;
    int32_t entries = job->rows * op->chosen;
    const int32_t *ids = op->ids + (size_t)job->row * (size_t)op->chosen;
    int32_t *first = cpu->expert_first;
    memset(first, 0, (size_t)(op->experts + 2) * sizeof *first);
    for (int32_t i = 0; i < entries; i++) {
        ASSERT(ids[i] >= 0 && ids[i] < op->experts);
        first[ids[i] + 2]++;
    }
    job->active = 0;
    for (int32_t e = 0; e < op->experts; e++) {
        if (first[e + 2] > 0) {
            cpu->expert_active[job->active++] = e;
        }
        first[e + 2] += first[e + 1];
    }
    for (int32_t i = 0; i < entries; i++) {
        int32_t at = first[ids[i] + 1]++;
        cpu->expert_entries[at] = i;
        cpu->expert_rows[at] = i / op->chosen;
    }
    cpu->expert_active[job->active++] = op->experts;
}

static struct expert_task expert_task(const struct experts_job *job, int32_t active) {
    const struct cpu *cpu = job->cpu;
    const struct experts_op *op = job->op;
    int32_t expert = cpu->expert_active[active];
    struct expert_task task = {op->shared, NULL, NULL, job->rows * op->chosen, job->rows};
    if (expert < op->experts) {
        int32_t first = cpu->expert_first[expert];
        task.weights = &op->routed[expert];
        task.entries = cpu->expert_entries + first;
        task.rows = cpu->expert_rows + first;
        task.base = 0;
        task.count = cpu->expert_first[expert + 1] - first;
    }
    return task;
}

/* 32 hidden channels of one entry: clamped SwiGLU, routing weight, bf16, FP8, and back to FP32. */
static void
activate(const float *gate, const float *up, float limit, const float *weight, float *to) {
    uint16_t rounded[32];
    uint8_t codes[32];
    v16 even;
    v16 odd;
    for (int i = 0; i < 32; i += 16) {
        v16 g = v_round_bf16(v_load(gate + i));
        v16 u = v_round_bf16(v_load(up + i));
        if (limit > 0.0F) {
            g = v_min(g, v_set1(limit));
            u = v_clamp(u, limit);
        }
        v16 one = v_set1(1.0F);
        v16 silu = v_div(g, v_add(one, v_exp(v_sub(v_set1(0.0F), g))));
        v16 y = v_mul(silu, u);
        if (weight != NULL) {
            y = v_mul(v_set1(*weight), y);
        }
        v_store_bf16(rounded + i, y);
    }
    v_load_bf16_pair(rounded, &even, &odd);
    uint8_t scale = v_quantize_fp8(even, odd, codes);
    v_load_fp8_group(codes, scale, &even, &odd);
    v_store(to, even);
    v_store(to + 16, odd);
}

/* Gate and up products of 32 hidden channels for all rows of an expert, and their activation. */
static void hidden_chunk(void *context, int32_t thread, int32_t chunk) {
    const struct experts_job *job = context;
    const struct experts_op *op = job->op;
    struct cpu *cpu = job->cpu;
    struct cpu_thread *own = &cpu->threads[thread];
    int32_t blocks = op->hidden / HIDDEN_BLOCK;
    struct expert_task task = expert_task(job, chunk / blocks);
    int32_t first = chunk % blocks * HIDDEN_BLOCK;
    float *gate = own->product;
    float *up = gate + (size_t)cpu->slab * HIDDEN_BLOCK;
    for (int32_t half = 0; half < 4; half++) {
        struct product product = {
            .weight = half < 2 ? &task.weights->w1 : &task.weights->w3,
            .first = first + half % 2 * CPU_PANEL,
            .count = CPU_PANEL,
            .in = op->dim,
            .x = cpu->input,
            .x_stride = (size_t)op->dim,
            .rows = task.rows,
            .row_count = task.count,
            .panel = own->panel,
            .out = (half < 2 ? gate : up) + half % 2 * CPU_PANEL,
            .out_stride = HIDDEN_BLOCK,
        };
        LANES(cpu_product)(&product);
    }
    const float *weights = op->weights + (size_t)job->row * (size_t)op->chosen;
    for (int32_t i = 0; i < task.count; i++) {
        int32_t entry = task.entries == NULL ? task.base + i : task.entries[i];
        const float *weight = task.entries == NULL ? NULL : weights + entry;
        float *to = cpu->expert_hidden + (size_t)entry * (size_t)op->hidden + first;
        size_t at = (size_t)i * HIDDEN_BLOCK;
        activate(gate + at, up + at, op->limit, weight, to);
    }
}

/* The down product of up to 64 output channels for all rows of an expert. */
static void output_chunk(void *context, int32_t thread, int32_t chunk) {
    const struct experts_job *job = context;
    const struct experts_op *op = job->op;
    struct cpu *cpu = job->cpu;
    struct cpu_thread *own = &cpu->threads[thread];
    int32_t blocks = ceil_divide(op->dim, OUTPUT_BLOCK);
    struct expert_task task = expert_task(job, chunk / blocks);
    int32_t first = chunk % blocks * OUTPUT_BLOCK;
    int32_t last = int_min(op->dim, first + OUTPUT_BLOCK);
    for (; first < last; first += CPU_PANEL) {
        struct product product = {
            .weight = &task.weights->w2,
            .first = first,
            .count = CPU_PANEL,
            .in = op->hidden,
            .x = cpu->expert_hidden + (size_t)task.base * (size_t)op->hidden,
            .x_stride = (size_t)op->hidden,
            .rows = task.entries,
            .row_count = task.count,
            .panel = own->panel,
            .out = own->product,
            .out_stride = CPU_PANEL,
        };
        LANES(cpu_product)(&product);
        for (int32_t i = 0; i < task.count; i++) {
            int32_t entry = task.entries == NULL ? task.base + i : task.entries[i];
            uint16_t *to = cpu->expert_output + (size_t)entry * (size_t)op->dim + first;
            v_store_bf16(to, v_load(own->product + (size_t)i * CPU_PANEL));
        }
    }
}

/* Sum over a row's experts, ascending, then the shared one. */
static void combine_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)thread;
    const struct experts_job *job = argument;
    const struct experts_op *op = job->op;
    size_t dim = (size_t)op->dim;
    const uint16_t *routed = cpu->expert_output + (size_t)row * (size_t)op->chosen * dim;
    const uint16_t *shared = cpu->expert_output + (size_t)(job->rows * op->chosen + row) * dim;
    uint16_t *to = op->output + (size_t)(job->row + row) * dim;
    for (size_t i = 0; i < dim; i += 16) {
        v16 sum = v_set1(0.0F);
        for (size_t slot = 0; slot < (size_t)op->chosen; slot++) {
            sum = v_add(sum, v_load_bf16(routed + slot * dim + i));
        }
        v_store_bf16(to + i, v_add(sum, v_load_bf16(shared + i)));
    }
}

static void decode_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)thread;
    const struct experts_job *job = argument;
    const struct quantized *x = &job->op->x;
    size_t dim = (size_t)job->op->dim;
    size_t at = (size_t)(job->row + row) * dim;
    LANES(cpu_decode_fp8)
    (x->codes + at, x->scales + at / 32, job->op->dim, cpu->input + (size_t)row * dim);
}

void LANES(cpu_experts)(struct backend *backend, const struct experts_op *op) {
    struct cpu *cpu = cpu_of(backend);
    int32_t hidden_blocks = op->hidden / HIDDEN_BLOCK;
    int32_t output_blocks = ceil_divide(op->dim, OUTPUT_BLOCK);
    for (int32_t row = 0; row < op->rows; row += cpu->slab) {
        struct experts_job job = {.cpu = cpu, .op = op, .row = row};
        job.rows = int_min(cpu->slab, op->rows - row);
        group_rows(&job);
        cpu_rows(cpu, &job, decode_row, job.rows, op->dim / 8);
        int64_t matrix = (int64_t)op->dim * op->hidden / 16;
        int64_t work = matrix * (job.active * 2 + job.rows * (op->chosen + 1));
        cpu_team_run(cpu->team, hidden_chunk, &job, job.active * hidden_blocks, work * 2);
        cpu_team_run(cpu->team, output_chunk, &job, job.active * output_blocks, work);
        cpu_rows(cpu, &job, combine_row, job.rows, (op->chosen + 1) * op->dim / 12);
    }
}
