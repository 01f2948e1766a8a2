/* Index scores over MXFP4 keys, top-K, candidate blocks (spec 3.7, 3.8). Bound: integer dots.
 *
 * Within 32 channels, twice an E2M1 value is a small integer, so the dot of a group is exact; groups
 * are scaled and added in FP32 in increasing order, then heads in increasing order. */
#include "lanes.h"

#include "cpu.h"

#define KEYS 8 /* entries scored at a time */

/* One row of a group of up to CPU_INDEX_ROWS rows of one sequence. */
struct index_row {
    const struct index_select_op *op;
    const struct sequence_view *view;
    struct cpu_thread *own;
    float *scores; /* of this row, in own->scores */
    int32_t row;
    int32_t slot;    /* within the group */
    int32_t visible; /* entries g < visible */
};

/* The row's queries as integers with their factors, and the head weights, into its slot. */
static struct index_query prepare_query(const struct index_row *at) {
    const struct index_select_op *op = at->op;
    struct cpu_thread *own = at->own;
    size_t groups = (size_t)op->heads * (size_t)op->dim / 32;
    size_t first = (size_t)at->slot * groups;
    const uint8_t *codes = op->query_codes + (size_t)at->row * groups * 16;
    const uint8_t *scales = op->query_scales + (size_t)at->row * groups;
    for (size_t i = 0; i < groups; i++) {
        int8_t *values = own->index_query + (first + i) * 32;
        int32_t sum = 0;
        for (size_t k = 0; k < 32; k++) {
            uint32_t code =
                k < 16 ? codes[i * 16 + k] & 15U : (uint32_t)codes[i * 16 + k - 16] >> 4U;
            values[k] = (int8_t)(2.0F * e2m1_decode((uint8_t)code));
            sum += values[k];
        }
        own->index_bias[first + i] = 12 * sum;
        own->index_factor[first + i] = e8m0_decode(scales[i]) * 0.25F;
    }
    size_t heads = (size_t)op->heads;
    float *weights = own->index_weight + (size_t)at->slot * heads;
    for (size_t head = 0; head < heads; head++) {
        float weight = bf16_decode(op->head_weights[(size_t)at->row * heads + head]);
        weights[head] = bf16_round(weight * op->head_scale);
    }
    struct index_query query = {
        .heads = op->heads,
        .groups = op->dim / 32,
        .values = own->index_query + first * 32,
        .bias = own->index_bias + first,
        .factors = own->index_factor + first,
        .weights = weights,
    };
    return query;
}

/* Decodes entries [first, first + count), count <= KEYS, all of one block, into own->index_key. */
static void decode_keys(const struct index_row *at, int32_t first, int32_t count) {
    const struct kv_source_layout *source = &at->op->source;
    struct cpu_thread *own = at->own;
    size_t groups = (size_t)at->op->dim / 32;
    size_t inside = (size_t)(first % source->entries);
    const uint8_t *block = at->view->blocks[first / source->entries];
    const uint8_t *codes = block + source->index_code_offset + inside * groups * 16;
    const uint8_t *scales = block + source->index_scale_offset + inside * groups;
    if (count < KEYS) {
        uint8_t *tail = own->index_tail;
        memcpy(tail, codes, (size_t)count * groups * 16);
        memcpy(tail + KEYS * groups * 16, scales, (size_t)count * groups);
        codes = tail;
        scales = tail + KEYS * groups * 16;
    }
    for (size_t g = 0; g < groups; g++) {
        v_index_keys(codes + g * 16, groups * 16, own->index_key + g * 256);
        for (size_t key = 0; key < KEYS; key++) {
            own->index_scale[g * KEYS + key] = e8m0_decode(scales[key * groups + g]);
        }
    }
}

/* Out of line, so that the inner loop has the registers to itself. */
static __attribute__((noinline)) void
score_keys(const struct cpu_thread *own, const struct index_query *query, float *scores) {
    v_index_scores(own->index_key, own->index_scale, query, scores);
}

/* Scores entries [first, first + count) for rows of one group; to[r] gets row r's. A row's scores
 * beyond what it sees are not used. */
static void score_run(
    const struct index_row *at,
    const struct index_query *queries,
    float *const *to,
    int32_t rows,
    int32_t first,
    int32_t count
) {
    for (int32_t done = 0; done < count;) {
        int32_t entry = first + done;
        int32_t rest = at->op->source.entries - entry % at->op->source.entries;
        int32_t step = int_min(int_min(KEYS, count - done), rest);
        decode_keys(at, entry, step);
        for (int32_t r = 0; r < rows; r++) {
            score_keys(at->own, &queries[r], to[r] + done);
        }
        done += step;
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
                best = float_max(at->scores[entry], best);
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

/* Counts a scored row, and hands its scores out when a test asks. */
static void note_scores(const struct index_row *at, int32_t count, bool within_pool) {
    const struct index_select_op *op = at->op;
    struct index_counters *counters = &at->own->counters;
    counters->entries_scored += (uint64_t)count;
    if ((uint64_t)count > counters->entries_scored_max) {
        counters->entries_scored_max = (uint64_t)count;
    }
    if (op->scores == NULL) {
        return;
    }
    float *to = op->scores + (size_t)at->row * (size_t)op->scores_stride;
    for (int32_t i = 0; i < op->scores_stride; i++) {
        to[i] = -INFINITY;
    }
    for (int32_t i = 0; i < count; i++) {
        to[within_pool ? at->own->members[i] : i] = at->scores[i];
    }
}

/* The K best of `count` scores, all of them when they are no more than K. */
static void choose(const struct index_row *at, int32_t count, bool within_pool) {
    const struct index_select_op *op = at->op;
    int32_t *selected = op->selected + (size_t)at->row * (size_t)op->topk;
    int32_t kept = cpu_topk(at->scores, count, op->topk, at->own->select, selected);
    at->own->counters.topk_runs += count > op->topk ? 1 : 0;
    op->selected_count[at->row] = kept;
    for (int32_t i = 0; i < op->topk; i++) {
        if (i >= kept) {
            selected[i] = -1;
        } else if (within_pool) {
            selected[i] = at->own->members[selected[i]];
        }
    }
}

static void select_within_pool(const struct index_row *at) {
    const struct index_select_op *op = at->op;
    const int32_t *members = at->own->members;
    int32_t count = pool_members(at);
    if (op->scores != NULL || count > op->topk) {
        struct index_query query = prepare_query(at);
        for (int32_t i = 0; i < count;) {
            int32_t run = 1; // neighbours are scored together
            while (i + run < count && members[i + run] == members[i] + run) {
                run++;
            }
            float *to = at->scores + i;
            score_run(at, &query, &to, 1, members[i], run);
            i += run;
        }
        note_scores(at, count, true);
    }
    choose(at, count, true);
}

/* Whether a row of a full layer must be scored: to select, or to publish a pool. */
static bool row_competes(const struct index_row *at) {
    const struct index_select_op *op = at->op;
    int32_t blocks = op->mode == INDEX_FULL ? 0 : ceil_divide(at->visible, op->pool_block_entries);
    return op->scores != NULL || at->visible > op->topk ||
           (op->mode == INDEX_FULL_PUBLISH && blocks > op->pool_blocks);
}

/* Consecutive rows of one sequence against all entries they see; later rows see no fewer. */
static void select_full(const struct index_row *rows, int32_t count) {
    struct index_query queries[CPU_INDEX_ROWS];
    float *to[CPU_INDEX_ROWS];
    int32_t quiet = 0; // rows at the front that need no scores
    while (quiet < count && !row_competes(&rows[quiet])) {
        quiet++;
    }
    for (int32_t r = quiet; r < count; r++) {
        queries[r - quiet] = prepare_query(&rows[r]);
        to[r - quiet] = rows[r].scores;
    }
    if (quiet < count) {
        score_run(&rows[0], queries, to, count - quiet, 0, rows[count - 1].visible);
    }
    for (int32_t r = 0; r < count; r++) {
        if (r >= quiet) {
            note_scores(&rows[r], rows[r].visible, false);
        }
        if (rows[r].op->mode == INDEX_FULL_PUBLISH) {
            publish_pool(&rows[r]);
        }
        choose(&rows[r], rows[r].visible, false);
    }
}

/* The group-th group of up to CPU_INDEX_ROWS rows, counted over all segments. */
static void select_group(struct cpu *cpu, const void *argument, int32_t group, int32_t thread) {
    const struct index_select_op *op = argument;
    struct index_row rows[CPU_INDEX_ROWS];
    int32_t s = 0;
    while (group >= ceil_divide(op->segments.host[s].count, CPU_INDEX_ROWS)) {
        group -= ceil_divide(op->segments.host[s].count, CPU_INDEX_ROWS);
        s++;
    }
    const struct row_segment *segment = &op->segments.host[s];
    int32_t first = group * CPU_INDEX_ROWS;
    int32_t count = int_min(CPU_INDEX_ROWS, segment->count - first);
    for (int32_t r = 0; r < count; r++) {
        struct cpu_thread *own = &cpu->threads[thread];
        rows[r] = (struct index_row){
            .op = op,
            .view = &op->views[s],
            .own = own,
            .scores = own->scores + (size_t)r * (size_t)cpu->entries_max,
            .row = segment->row + first + r,
            .slot = r,
            .visible = (segment->position + first + r + 1) / op->source.ratio,
        };
    }
    if (op->mode != INDEX_WITHIN_POOL) {
        select_full(rows, count);
        return;
    }
    for (int32_t r = 0; r < count; r++) {
        select_within_pool(&rows[r]);
    }
}

void LANES(cpu_index_select)(struct backend *backend, const struct index_select_op *op) {
    struct cpu *cpu = cpu_of(backend);
    int32_t threads = cpu_team_threads(cpu->team);
    for (int32_t i = 0; i < threads; i++) {
        memset(&cpu->threads[i].counters, 0, sizeof cpu->threads[i].counters);
    }
    int64_t work = 0;
    int32_t groups = 0;
    for (int32_t s = 0; s < op->segments.count; s++) {
        int64_t visible =
            (op->segments.host[s].position + op->segments.host[s].count) / op->source.ratio;
        int64_t scored = visible > op->topk ? visible * (op->heads * op->dim / 32 + 2) : 0;
        work += op->segments.host[s].count * (100 + scored);
        groups += ceil_divide(op->segments.host[s].count, CPU_INDEX_ROWS);
    }
    cpu_rows(cpu, op, select_group, groups, groups > 0 ? work / groups : 0);
    for (int32_t i = 0; op->counters != NULL && i < threads; i++) {
        const struct index_counters *own = &cpu->threads[i].counters;
        op->counters->entries_scored += own->entries_scored;
        op->counters->topk_runs += own->topk_runs;
        if (own->entries_scored_max > op->counters->entries_scored_max) {
            op->counters->entries_scored_max = own->entries_scored_max;
        }
    }
}
