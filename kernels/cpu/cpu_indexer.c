/* Index scores over MXFP4 keys, top-K, candidate blocks (spec 3.7, 3.8). Bound: integer dots.
 *
 * Within 32 channels, twice an E2M1 value is a small integer, so the dot of a group is exact; groups
 * are scaled and added in FP32 in increasing order, then heads in increasing order. */
#include "lanes.h"

#include "cpu.h"

#define KEYS 8 /* entries scored at a time */

struct index_row {
    const struct index_select_op *op;
    const struct sequence_view *view;
    struct cpu_thread *own;
    int32_t row;
    int32_t visible; /* entries g < visible */
};

/* The row's queries as integers with their factors, and the head weights. */
static void prepare_query(const struct index_row *at) {
    const struct index_select_op *op = at->op;
    struct cpu_thread *own = at->own;
    int32_t groups = op->heads * op->dim / 32;
    const uint8_t *codes = op->query_codes + (size_t)at->row * (size_t)groups * 16;
    const uint8_t *scales = op->query_scales + (size_t)at->row * (size_t)groups;
    for (int32_t i = 0; i < groups; i++) {
        uint8_t magnitude[32];
        v_unpack_e2m1(codes + (size_t)i * 16, magnitude, own->index_query + (size_t)i * 32);
        own->index_factor[i] = e8m0_decode(scales[i]) * 0.25F; // both sides are doubled
    }
    const uint16_t *weights = op->head_weights + (size_t)at->row * (size_t)op->heads;
    for (int32_t head = 0; head < op->heads; head++) {
        own->index_factor[groups + head] = bf16_round(bf16_decode(weights[head]) * op->head_scale);
    }
}

/* Scores of `count` <= KEYS consecutive entries of a block. */
static void score_keys(
    const struct index_row *at,
    const uint8_t *codes,
    const uint8_t *scales,
    int32_t count,
    float *scores
) {
    const struct index_select_op *op = at->op;
    struct cpu_thread *own = at->own;
    int32_t groups = op->dim / 32;
    const float *head_weights = own->index_factor + (size_t)(op->heads * groups);
    float key_factor[32][KEYS];
    float sums[KEYS] = {0};
    for (int32_t g = 0; g < groups; g++) {
        for (int32_t e = 0; e < count; e++) {
            size_t to = ((size_t)g * KEYS + (size_t)e) * 32;
            size_t from = (size_t)e * (size_t)groups + (size_t)g;
            v_unpack_e2m1(codes + from * 16, own->index_magnitude + to, own->index_key + to);
            key_factor[g][e] = e8m0_decode(scales[from]);
        }
        for (int32_t e = count; e < KEYS; e++) {
            key_factor[g][e] = 0.0F;
        }
    }
    for (int32_t head = 0; head < op->heads; head++) {
        float dots[KEYS] = {0};
        for (int32_t g = 0; g < groups; g++) {
            size_t to = (size_t)g * KEYS * 32;
            size_t query = (size_t)head * (size_t)groups + (size_t)g;
            int32_t exact[KEYS];
            v_dot8(
                own->index_magnitude + to, own->index_key + to, own->index_query + query * 32, exact
            );
            float factor = own->index_factor[query];
            for (int e = 0; e < KEYS; e++) {
                dots[e] += (float)exact[e] * key_factor[g][e] * factor;
            }
        }
        for (int e = 0; e < KEYS; e++) {
            sums[e] = fmaf(float_max(dots[e], 0.0F), head_weights[head], sums[e]);
        }
    }
    for (int32_t e = 0; e < count; e++) {
        scores[e] = sums[e];
    }
}

/* Scores of entries [first, first + count), which may cross blocks. */
static void score_run(const struct index_row *at, int32_t first, int32_t count, float *scores) {
    const struct kv_source_layout *source = &at->op->source;
    size_t code_bytes = (size_t)at->op->dim / 2;
    size_t scale_bytes = (size_t)at->op->dim / 32;
    while (count > 0) {
        const uint8_t *block = at->view->blocks[first / source->entries];
        int32_t inside = first % source->entries;
        int32_t step = int_min(int_min(KEYS, count), source->entries - inside);
        score_keys(
            at,
            block + source->index_code_offset + (size_t)inside * code_bytes,
            block + source->index_scale_offset + (size_t)inside * scale_bytes,
            step,
            scores
        );
        first += step;
        scores += step;
        count -= step;
    }
}

/* The entries of the row's pool, in order; returns how many. */
static int32_t pool_members(const struct index_row *at) {
    const struct index_select_op *op = at->op;
    const int32_t *pool = op->pool + (size_t)at->row * (size_t)op->pool_blocks;
    int32_t count = 0;
    for (int32_t i = 0; i < op->pool_count[at->row]; i++) {
        int32_t first = pool[i] * op->pool_block_entries;
        int32_t last = int_min(at->visible, first + op->pool_block_entries);
        for (int32_t entry = first; entry < last; entry++) {
            at->own->members[count++] = entry;
        }
    }
    return count;
}

/* Candidate blocks (spec 3.8): the newest is always kept. Scores are read only when needed. */
static void publish_pool(const struct index_row *at) {
    const struct index_select_op *op = at->op;
    struct cpu_thread *own = at->own;
    int32_t size = op->pool_block_entries;
    int32_t blocks = ceil_divide(at->visible, size);
    int32_t *pool = op->pool + (size_t)at->row * (size_t)op->pool_blocks;
    if (blocks > op->pool_blocks) {
        for (int32_t b = 0; b < blocks; b++) {
            int32_t last = int_min(at->visible, (b + 1) * size);
            float best = -INFINITY;
            for (int32_t entry = b * size; entry < last; entry++) {
                best = float_max(own->scores[entry], best);
            }
            own->blocks[b] = b == blocks - 1 ? INFINITY : best;
        }
    }
    int32_t kept = cpu_topk(own->blocks, blocks, op->pool_blocks, own->select, pool);
    op->pool_count[at->row] = kept;
    for (int32_t i = kept; i < op->pool_blocks; i++) {
        pool[i] = -1;
    }
}

static void score_all(const struct index_row *at, int32_t count, bool within_pool) {
    const struct index_select_op *op = at->op;
    struct cpu_thread *own = at->own;
    prepare_query(at);
    if (!within_pool) {
        score_run(at, 0, count, own->scores);
    } else {
        for (int32_t i = 0; i < count;) {
            int32_t run = 1; // consecutive entries, at most a pool block
            while (i + run < count && own->members[i + run] == own->members[i] + run &&
                   run < op->pool_block_entries) {
                run++;
            }
            score_run(at, own->members[i], run, own->scores + i);
            i += run;
        }
    }
    own->counters.entries_scored += (uint64_t)count;
    if ((uint64_t)count > own->counters.entries_scored_max) {
        own->counters.entries_scored_max = (uint64_t)count;
    }
    if (op->scores != NULL) {
        float *to = op->scores + (size_t)at->row * (size_t)op->scores_stride;
        for (int32_t i = 0; i < op->scores_stride; i++) {
            to[i] = -INFINITY;
        }
        for (int32_t i = 0; i < count; i++) {
            to[within_pool ? own->members[i] : i] = own->scores[i];
        }
    }
}

static void select_row(struct cpu *cpu, const void *argument, int32_t row, int32_t thread) {
    const struct index_select_op *op = argument;
    int32_t s = cpu_segment_of(op->segments, op->sequences, row);
    if (s < 0) {
        return;
    }
    int32_t position = op->segments[s].position + row - op->segments[s].row;
    struct index_row at = {op, &op->views[s], &cpu->threads[thread], row, 0};
    at.visible = (position + 1) / op->source.ratio;
    bool within_pool = op->mode == INDEX_WITHIN_POOL;
    int32_t count = within_pool ? pool_members(&at) : at.visible;
    bool publish = op->mode == INDEX_FULL_PUBLISH;
    bool pool_competes =
        publish && ceil_divide(at.visible, op->pool_block_entries) > op->pool_blocks;
    if (op->scores != NULL || count > op->topk || pool_competes) {
        score_all(&at, count, within_pool);
    }
    if (publish) {
        publish_pool(&at);
    }
    int32_t *selected = op->selected + (size_t)row * (size_t)op->topk;
    int32_t kept = cpu_topk(at.own->scores, count, op->topk, at.own->select, selected);
    at.own->counters.topk_runs += count > op->topk ? 1 : 0;
    op->selected_count[row] = kept;
    for (int32_t i = 0; i < op->topk; i++) {
        if (i >= kept) {
            selected[i] = -1;
        } else if (within_pool) {
            selected[i] = at.own->members[selected[i]];
        }
    }
}

void LANES(cpu_index_select)(struct backend *backend, const struct index_select_op *op) {
    struct cpu *cpu = cpu_of(backend);
    int32_t threads = cpu_team_threads(cpu->team);
    for (int32_t i = 0; i < threads; i++) {
        memset(&cpu->threads[i].counters, 0, sizeof cpu->threads[i].counters);
    }
    int64_t work = 0;
    int32_t rows = cpu_segment_rows(op->segments, op->sequences);
    for (int32_t s = 0; s < op->sequences; s++) {
        int64_t visible = (op->segments[s].position + op->segments[s].count) / op->source.ratio;
        work += op->segments[s].count * (100 + (visible > op->topk ? visible * op->heads : 0));
    }
    cpu_rows(cpu, op, select_row, rows, rows > 0 ? work / rows : 0);
    for (int32_t i = 0; op->counters != NULL && i < threads; i++) {
        const struct index_counters *own = &cpu->threads[i].counters;
        op->counters->entries_scored += own->entries_scored;
        op->counters->topk_runs += own->topk_runs;
        if (own->entries_scored_max > op->counters->entries_scored_max) {
            op->counters->entries_scored_max = own->entries_scored_max;
        }
    }
}
