/* Attention over window records, selected entries and a sink (spec 3.5 steps 4-5). Bound: fused
 * multiply-adds; keys are decoded once for all heads of a task.
 *
 * Keys go in blocks of 64 counted from the first window key. Per block and head: logits, running
 * maximum, probabilities (FP32 into the denominator, bf16 to meet the values), then the values key
 * by key in increasing order. Latents stay in pair layout until the output is stored. */
#include "lanes.h"

#include "cpu.h"

#define KEYS CPU_ATTENTION_KEYS

/* One query row and some of its heads. */
struct attention_task {
    const struct attention_op *op;
    struct cpu_thread *own;
    const struct row_segment *fresh;
    const struct sequence_view *view;
    const int32_t *selected;
    int32_t row, position;
    int32_t window_first; /* position of the first window key */
    int32_t window_count;
    int32_t head, heads; /* first and number */
};

static void decode_window(const struct attention_task *task, int32_t position, float *to) {
    const struct attention_op *op = task->op;
    size_t bytes = window_record_bytes(op->dim);
    const uint8_t *record;
    if (position >= task->fresh->position) {
        int32_t row = task->fresh->row + position - task->fresh->position;
        ASSERT_DEBUG(position - task->fresh->position < task->fresh->count);
        record = op->fresh + (size_t)row * bytes;
    } else {
        record = task->view->ring + (size_t)(position % op->window) * bytes;
    }
    LANES(cpu_decode_fp8)(record, record + op->dim, op->dim, to);
}

static void decode_entry(const struct attention_task *task, int32_t entry, float *to) {
    const struct kv_source_layout *source = &task->op->source;
    int32_t dim = task->op->dim;
    const uint8_t *block = task->view->blocks[entry / source->entries];
    const uint8_t *record =
        block + source->main_offset + (size_t)(entry % source->entries) * source->main_record_bytes;
    const uint8_t *scales = record + dim / 2;
    for (int32_t c = 0; c < dim; c += 32) {
        v16 even;
        v16 odd;
        v16 factor = v_halves(e4m3_decode(scales[c / 16]), e4m3_decode(scales[c / 16 + 1]));
        v_load_e2m1(record + c / 2, factor, &even, &odd);
        v_store(to + c, even);
        v_store(to + c + 16, odd);
    }
}

/* Keys [first, first + count) of the task's list into own->keys. */
static void decode_keys(const struct attention_task *task, int32_t first, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        float *to = task->own->keys + (size_t)i * (size_t)task->op->dim;
        int32_t at = first + i;
        if (at < task->window_count) {
            decode_window(task, task->window_first + at, to);
        } else {
            decode_entry(task, task->selected[at - task->window_count], to);
        }
    }
}

/* Turns a head's logits into bf16 probabilities, keeps maximum and denominator; returns the factor
 * by which what was summed so far shrinks. */
static float softmax_block(float *logits, int32_t count, float scale, float *maximum, float *sum) {
    int32_t padded = ceil_divide(count, 16) * 16;
    for (int32_t i = count; i < padded; i++) {
        logits[i] = -INFINITY;
    }
    v16 factor = v_set1(scale);
    v16 largest = v_set1(*maximum);
    for (int32_t i = 0; i < padded; i += 16) {
        v16 scaled = v_mul(v_load(logits + i), factor);
        v_store(logits + i, scaled);
        largest = v_max(scaled, largest);
    }
    float now = v_reduce_max(largest);
    float shrink = lane_exp(*maximum - now);
    v16 total = v_set1(0.0F);
    for (int32_t i = 0; i < padded; i += 16) {
        v16 probability = v_exp(v_sub(v_load(logits + i), v_set1(now)));
        total = v_add(total, probability);
        v_store(logits + i, v_round_bf16(probability));
    }
    *maximum = now;
    *sum = *sum * shrink + v_reduce_add(total);
    return shrink;
}

/* sums[h][channel] = sums * shrink[h] + sum_j p[h][j] key[j][channel], for 32 channels. */
LANES_INLINE void values_tile(
    const float *p,
    int heads,
    const float *shrink,
    const float *keys,
    int32_t count,
    size_t dim,
    float *sums
) {
    v16 even[4];
    v16 odd[4];
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) {
        v16 factor = v_set1(shrink[h]);
        even[h] = v_mul(v_load(sums + (size_t)h * dim), factor);
        odd[h] = v_mul(v_load(sums + (size_t)h * dim + 16), factor);
    }
    for (int32_t j = 0; j < count; j++) {
        v16 value_even = v_load(keys + (size_t)j * dim);
        v16 value_odd = v_load(keys + (size_t)j * dim + 16);
#pragma GCC unroll 4
        for (int h = 0; h < heads; h++) {
            v16 weight = v_set1(p[h * KEYS + j]);
            even[h] = v_fma(weight, value_even, even[h]);
            odd[h] = v_fma(weight, value_odd, odd[h]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < heads; h++) {
        v_store(sums + (size_t)h * dim, even[h]);
        v_store(sums + (size_t)h * dim + 16, odd[h]);
    }
}

static void add_values(const struct attention_task *task, int32_t count, const float *shrink) {
    size_t dim = (size_t)task->op->dim;
    for (int32_t h = 0; h < task->heads;) {
        int32_t step = task->heads - h >= 4 ? 4 : 1;
        const float *p = task->own->logits + (size_t)h * KEYS;
        for (size_t c = 0; c < dim; c += 32) {
            float *sums = task->own->sum + (size_t)h * dim + c;
            const float *keys = task->own->keys + c;
            if (step == 4) {
                values_tile(p, 4, shrink + h, keys, count, dim, sums);
            } else {
                values_tile(p, 1, shrink + h, keys, count, dim, sums);
            }
        }
        h += step;
    }
}

static void store_heads(const struct attention_task *task, const float *maximum, const float *sum) {
    const struct attention_op *op = task->op;
    size_t dim = (size_t)op->dim;
    size_t first = (size_t)task->row * (size_t)op->heads + (size_t)task->head;
    for (int32_t h = 0; h < task->heads; h++) {
        const float *from = task->own->sum + (size_t)h * dim;
        uint16_t *to = op->output + (first + (size_t)h) * dim;
        v16 divisor = v_set1(sum[h] + lane_exp(op->sink[task->head + h] - maximum[h]));
        for (size_t c = 0; c < dim; c += 32) {
            v16 even = v_div(v_load(from + c), divisor);
            v16 odd = v_div(v_load(from + c + 16), divisor);
            v_store_bf16_pair(to + c, even, odd);
        }
    }
}

static void attend(const struct attention_task *task) {
    const struct attention_op *op = task->op;
    struct cpu_thread *own = task->own;
    size_t dim = (size_t)op->dim;
    size_t width = (size_t)task->heads * dim;
    float *maximum = own->softmax;
    float *sum = maximum + op->heads;
    float *shrink = sum + op->heads;
    size_t first = (size_t)task->row * (size_t)op->heads + (size_t)task->head;
    LANES(cpu_decode_bf16)(op->query + first * dim, (int32_t)width, true, own->query);
    memset(own->sum, 0, width * sizeof *own->sum);
    for (int32_t h = 0; h < task->heads; h++) {
        maximum[h] = -1e30F;
        sum[h] = 0.0F;
    }
    int32_t total = task->window_count;
    total += op->selected == NULL ? 0 : op->selected_count[task->row];
    for (int32_t at = 0; at < total; at += KEYS) {
        int32_t count = int_min(KEYS, total - at);
        decode_keys(task, at, count);
        LANES(cpu_dots)
        (own->query, dim, task->heads, own->keys, dim, count, op->dim, own->logits, KEYS);
        for (int32_t h = 0; h < task->heads; h++) {
            float *logits = own->logits + (size_t)h * KEYS;
            shrink[h] = softmax_block(logits, count, op->scale, &maximum[h], &sum[h]);
        }
        add_values(task, count, shrink);
    }
    store_heads(task, maximum, sum);
}

struct attention_job {
    const struct attention_op *op;
    int32_t heads_per_task, tasks_per_row;
};

static void attention_chunk(struct cpu *cpu, const void *argument, int32_t chunk, int32_t thread) {
    const struct attention_job *job = argument;
    const struct attention_op *op = job->op;
    int32_t row = chunk / job->tasks_per_row;
    int32_t s = cpu_segment_of(&op->segments, row);
    if (s < 0) {
        return;
    }
    const struct sequence_view *view = &op->views[s];
    int32_t position = op->segments.host[s].position + row - op->segments.host[s].row;
    int32_t head = chunk % job->tasks_per_row * job->heads_per_task;
    int32_t first = int_max(int_max(position - op->window + 1, view->window_floor), 0);
    struct attention_task task = {
        .op = op,
        .own = &cpu->threads[thread],
        .fresh = &op->fresh_segments.host[s],
        .view = view,
        .selected = op->selected == NULL ? NULL : op->selected + (size_t)row * (size_t)op->topk,
        .row = row,
        .position = position,
        .window_first = first,
        .window_count = int_max(0, position - first + 1),
        .head = head,
        .heads = int_min(job->heads_per_task, op->heads - head),
    };
    attend(&task);
}

void LANES(cpu_attention)(struct backend *backend, const struct attention_op *op) {
    struct cpu *cpu = cpu_of(backend);
    int32_t rows = op->segments.rows;
    if (rows == 0) {
        return;
    }
    struct attention_job job = {op, op->heads, 1};
    int32_t threads = cpu_team_threads(cpu->team);
    int64_t keys = op->window + (op->selected == NULL ? 0 : op->topk);
    int64_t work = keys * op->heads * op->dim / 16;
    if (rows < threads && work > 20000) {
        // few rows: heads are shared out as well, at the price of decoding keys more than once
        job.tasks_per_row = int_min(ceil_divide(op->heads, 4), ceil_divide(threads, rows));
        job.heads_per_task = ceil_divide(ceil_divide(op->heads, job.tasks_per_row), 4) * 4;
        job.tasks_per_row = ceil_divide(op->heads, job.heads_per_task);
    }
    cpu_rows(cpu, &job, attention_chunk, rows * job.tasks_per_row, work / job.tasks_per_row);
}
