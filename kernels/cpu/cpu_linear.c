/* Linear layers and the activation quantiser. One slab of rows is decoded to FP32 once; then output
 * channels are cut into panels that team members claim. */
#include "lanes.h"

#include "cpu.h"

/* Rough cost of one weight times one row, and of decoding one weight, in 1/16 ns. */
#define WORK_MULTIPLY 1
#define WORK_DECODE   2

struct linear_job {
    struct cpu *cpu;
    const struct linear_op *op;
    int32_t row; /* first row of the slab */
    int32_t rows;
    int32_t group; /* g */
    int32_t panels;
    int32_t panels_per_chunk;
};

static void linear_decode_chunk(void *context, int32_t thread, int32_t chunk) {
    (void)thread;
    const struct linear_job *job = context;
    const struct linear_op *op = job->op;
    int32_t columns = op->groups * op->in;
    int32_t last = int_min(job->rows, (chunk + 1) * 8);
    for (int32_t r = chunk * 8; r < last; r++) {
        size_t at = (size_t)(job->row + r) * (size_t)columns;
        float *to = job->cpu->input + (size_t)r * (size_t)columns;
        if (op->input_dtype == DTYPE_FP8) {
            const struct quantized *from = &op->quantized;
            LANES(cpu_decode_fp8)(from->codes + at, from->scales + at / 32, columns, to);
        } else {
            LANES(cpu_decode_bf16)(op->input + at, columns, op->weight.dtype != DTYPE_F32, to);
        }
    }
}

/* Rounds a panel's outputs into the op's output. */
static void
linear_store(const struct linear_job *job, const float *from, int32_t at, int32_t count) {
    const struct linear_op *op = job->op;
    size_t columns = (size_t)op->groups * (size_t)op->out;
    for (int32_t r = 0; r < job->rows; r++) {
        const float *values = from + (size_t)r * CPU_PANEL;
        size_t to = (size_t)(job->row + r) * columns + (size_t)at;
        if (op->output_dtype == DTYPE_F32) {
            memcpy((float *)op->output + to, values, (size_t)count * sizeof *values);
        } else if (count == CPU_PANEL) {
            v_store_bf16((uint16_t *)op->output + to, v_load(values));
        } else {
            for (int32_t i = 0; i < count; i++) {
                ((uint16_t *)op->output)[to + (size_t)i] = bf16_encode(values[i]);
            }
        }
    }
}

static void linear_panel(const struct linear_job *job, int32_t thread, int32_t panel) {
    const struct linear_op *op = job->op;
    struct cpu_thread *own = &job->cpu->threads[thread];
    int32_t panels_per_group = ceil_divide(op->out, CPU_PANEL);
    int32_t group = panel / panels_per_group;
    int32_t first = panel % panels_per_group * CPU_PANEL;
    int32_t count = int_min(CPU_PANEL, op->out - first);
    struct product product = {
        .weight = &op->weight,
        .first = group * op->out + first,
        .count = count,
        .in = op->in,
        .x = job->cpu->input + (size_t)group * (size_t)op->in,
        .x_stride = (size_t)op->groups * (size_t)op->in,
        .row_count = job->rows,
        .panel = own->panel,
        .out = own->product,
        .out_stride = CPU_PANEL,
    };
    LANES(cpu_product)(&product);
    linear_store(job, own->product, group * op->out + first, count);
}

static void linear_chunk(void *context, int32_t thread, int32_t chunk) {
    const struct linear_job *job = context;
    int32_t last = int_min(job->panels, (chunk + 1) * job->panels_per_chunk);
    for (int32_t panel = chunk * job->panels_per_chunk; panel < last; panel++) {
        linear_panel(job, thread, panel);
    }
}

void LANES(cpu_linear)(struct backend *backend, const struct linear_op *op) {
    struct cpu *cpu = cpu_of(backend);
    int32_t panels = op->groups * ceil_divide(op->out, CPU_PANEL);
    for (int32_t row = 0; row < op->rows; row += cpu->slab) {
        struct linear_job job = {.cpu = cpu, .op = op, .row = row};
        job.rows = int_min(cpu->slab, op->rows - row);
        int64_t inputs = (int64_t)job.rows * op->groups * op->in;
        cpu_team_run(cpu->team, linear_decode_chunk, &job, ceil_divide(job.rows, 8), inputs / 8);
        int64_t weights = (int64_t)op->groups * op->out * op->in;
        int64_t work = weights * (WORK_DECODE + WORK_MULTIPLY * (int64_t)job.rows) / 16;
        // about four chunks for each member, but none below half a microsecond
        int64_t chunks = int_min(cpu_team_threads(cpu->team) * 4, panels);
        if (chunks > work / 500 + 1) {
            chunks = work / 500 + 1;
        }
        job.panels = panels;
        job.panels_per_chunk = ceil_divide(panels, (int32_t)chunks);
        cpu_team_run(
            cpu->team, linear_chunk, &job, ceil_divide(panels, job.panels_per_chunk), work
        );
    }
}

static void quantize_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    (void)cpu;
    (void)thread;
    const struct quantize_op *op = argument;
    size_t at = (size_t)row * (size_t)op->dim;
    for (int32_t c = 0; c < op->dim; c += 32) {
        v16 even;
        v16 odd;
        v_load_bf16_pair(op->x + at + c, &even, &odd);
        op->y.scales[(at + (size_t)c) / 32] = v_quantize_fp8(even, odd, op->y.codes + at + c);
    }
}

void LANES(cpu_quantize)(struct backend *backend, const struct quantize_op *op) {
    cpu_rows(cpu_of(backend), op, quantize_row, op->rows, op->dim / 3);
}
