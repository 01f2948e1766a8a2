/* Streams, norms, rotary embedding, Engram and row moves: against double, and the same bits everywhere.
 * Also the elementary functions below them and the thread team. */
#include "test_kernels_support.h"

#include "kernels/cpu/cpu_team.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>

#include <cmocka.h>

#define CPU_LANES plain
#include "kernels/cpu/lanes.h"

#define ROWS 11

static int32_t rows_of_call(int32_t from, int32_t step) {
    return ROWS - from < step ? ROWS - from : step;
}

/* One site: mix, collapse, norm and update on the same streams. */
struct site_case {
    int32_t dim;
    const uint16_t *streams, *y, *weight;
    const float *fn, *scale, *base;
    unsigned char *out; /* streams, collapsed, normed, again, then pre, post, comb */
};

struct site_out {
    uint16_t *x, *collapsed, *normed, *again;
    float *pre, *post, *comb;
};

static struct site_out site_out(const struct site_case *c) {
    size_t dim = (size_t)c->dim;
    struct site_out out;
    out.x = (uint16_t *)(void *)c->out;
    out.collapsed = out.x + ROWS * 4 * dim;
    out.normed = out.collapsed + ROWS * dim;
    out.again = out.normed + ROWS * dim;
    out.pre = (float *)(void *)(out.again + ROWS * dim);
    out.post = out.pre + ROWS * 4;
    out.comb = out.post + ROWS * 4;
    return out;
}

static size_t site_bytes(int32_t dim) {
    return ROWS * (size_t)dim * 7 * 2 + ROWS * 24 * sizeof(float);
}

static void run_site(struct backend *backend, int32_t step, void *context) {
    const struct site_case *c = context;
    struct site_out out = site_out(c);
    size_t dim = (size_t)c->dim;
    memcpy(out.x, c->streams, ROWS * 4 * dim * 2);
    for (int32_t r = 0; r < ROWS; r += step) {
        int32_t rows = rows_of_call(r, step);
        size_t at = (size_t)r * dim;
        struct stream_mix_op mix = {
            .rows = rows,
            .dim = c->dim,
            .streams = 4,
            .sinkhorn_iterations = 20,
            .eps = 1e-6F,
            .norm_eps = 1e-20F,
            .x = out.x + 4 * at,
            .fn = c->fn,
            .scale = c->scale,
            .base = c->base,
            .pre = out.pre + 4 * r,
            .post = out.post + 4 * r,
            .comb = out.comb + 16 * r,
        };
        backend_stream_mix(backend, &mix);
        struct stream_collapse_op collapse = {
            .rows = rows,
            .dim = c->dim,
            .streams = 4,
            .norm_eps = 1e-20F,
            .x = out.x + 4 * at,
            .mix = out.pre + 4 * r,
            .weight = c->weight,
            .collapsed = out.collapsed + at,
            .normed = out.normed + at,
        };
        backend_stream_collapse(backend, &collapse);
        struct norm_op norm = {rows, c->dim, 1e-20F, out.collapsed + at, c->weight, out.again + at};
        backend_norm(backend, &norm);
        struct stream_update_op update = {
            rows, c->dim, 4, out.x + 4 * at, c->y + at, out.post + 4 * r, out.comb + 16 * r};
        backend_stream_update(backend, &update);
    }
}

static void check_site_row(const struct site_case *c, const struct site_out *out, int32_t r) {
    size_t dim = (size_t)c->dim;
    double squares = 0.0;
    for (size_t i = 0; i < dim; i++) {
        double u = 0.0;
        for (size_t j = 0; j < 4; j++) {
            double x = (double)bf16_decode(c->streams[((size_t)r * 4 + j) * dim + i]);
            u += (double)out->pre[r * 4 + (int32_t)j] * x;
        }
        float expected = (float)u;
        float got = bf16_decode(out->collapsed[(size_t)r * dim + i]);
        kernels_expect_near(&got, &expected, 1, 0x1p-8F, 1e-6F, "collapsed");
        squares += (double)got * (double)got;
    }
    double factor = 1.0 / sqrt(squares / (double)c->dim + 1e-20);
    for (size_t i = 0; i < dim; i++) {
        double x = (double)bf16_decode(out->collapsed[(size_t)r * dim + i]);
        float expected = (float)(x * factor * (double)bf16_decode(c->weight[i]));
        float got = bf16_decode(out->normed[(size_t)r * dim + i]);
        kernels_expect_near(&got, &expected, 1, 0x1p-8F, 0.0F, "normed");
    }
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < dim; i++) {
            double sum = (double)out->post[r * 4 + (int32_t)k] *
                         (double)bf16_decode(c->y[(size_t)r * dim + i]);
            for (size_t j = 0; j < 4; j++) {
                double x = (double)bf16_decode(c->streams[((size_t)r * 4 + j) * dim + i]);
                sum += (double)out->comb[(size_t)r * 16 + j * 4 + k] * x;
            }
            float expected = (float)sum;
            float got = bf16_decode(out->x[((size_t)r * 4 + k) * dim + i]);
            kernels_expect_near(&got, &expected, 1, 0x1p-8F, 1e-6F, "updated stream");
        }
    }
}

static void stream_site_is_exact_everywhere(void **state) {
    (void)state;
    const int32_t dims[4] = {32, 192, 256, 5120};
    for (size_t d = 0; d < 4; d++) {
        struct numbers numbers = {(uint64_t)dims[d]};
        size_t dim = (size_t)dims[d];
        struct site_case c = {
            .dim = dims[d],
            .streams = kernels_bf16(&numbers, ROWS * 4 * dim, 1.0F),
            .y = kernels_bf16(&numbers, ROWS * dim, 1.0F),
            .weight = kernels_bf16(&numbers, dim, 1.0F),
            .fn = kernels_f32(&numbers, 24 * 4 * dim, 0.05F),
            .scale = kernels_f32(&numbers, 3, 1.0F),
            .base = kernels_f32(&numbers, 24, 1.0F),
            .out = kernels_memory(site_bytes(dims[d])),
        };
        kernels_same_everywhere("stream site", run_site, &c, c.out, site_bytes(dims[d]));
        struct site_out out = site_out(&c);
        kernels_expect_same(out.again, out.normed, ROWS * dim * 2, "norm after collapse");
        for (int32_t r = 0; r < ROWS; r++) {
            check_site_row(&c, &out, r);
            for (int32_t k = 0; k < 4; k++) {
                const float *comb = out.comb + r * 16;
                float columns = comb[k] + comb[4 + k] + comb[8 + k] + comb[12 + k];
                assert_true(fabsf(columns - 1.0F) < 1e-5F);
            }
        }
        kernels_free_all();
    }
}

static void norm_of_zeros_is_zeros(void **state) {
    (void)state;
    const char *isas[3];
    size_t count = kernels_isas(isas);
    for (size_t i = 0; i < count; i++) {
        struct backend *backend = kernels_open(isas[i], 1);
        uint16_t x[64] = {0};
        uint16_t weight[64];
        for (int c = 0; c < 64; c++) {
            weight[c] = 0x4000;
        }
        struct norm_op norm = {1, 64, 1e-20F, x, weight, x};
        backend_norm(backend, &norm);
        for (int c = 0; c < 64; c++) {
            assert_int_equal(x[c], 0);
        }
        backend_close(backend);
    }
}

static void embed_copies_rows_to_all_streams(void **state) {
    (void)state;
    struct numbers numbers = {4};
    const uint16_t *table = kernels_bf16(&numbers, 50 * 64, 1.0F);
    const int32_t ids[3] = {49, 0, 7};
    uint16_t *x = kernels_memory(3 * 4 * 64 * 2);
    float mix[12];
    struct backend *backend = kernels_open(NULL, 2);
    struct embed_op op = {3, 50, 64, 4, ids, table, x, mix};
    backend_embed(backend, &op);
    for (size_t r = 0; r < 3; r++) {
        for (size_t j = 0; j < 4; j++) {
            assert_memory_equal(x + (r * 4 + j) * 64, table + (size_t)ids[r] * 64, 128);
            assert_true(mix[r * 4 + j] == (j == 0 ? 1.0F : 0.0F));
        }
    }
    backend_close(backend);
    kernels_free_all();
}

static void rope_angles_are_accurate(void **state) {
    (void)state;
    struct numbers numbers = {12};
    int32_t positions[ROWS];
    float *frequencies = kernels_memory(32 * sizeof *frequencies);
    float *out = kernels_memory(2 * ROWS * 32 * sizeof *out);
    struct backend *backend = kernels_open(NULL, 1);
    for (int round = 0; round < 50; round++) {
        for (int r = 0; r < ROWS; r++) {
            positions[r] = numbers_below(&numbers, 10000000);
        }
        for (int i = 0; i < 32; i++) {
            frequencies[i] = i == 0 ? 1.0F : powf(10.0F, -numbers_uniform(&numbers, 0.0F, 7.0F));
        }
        struct rope_table_op op = {ROWS, 32, positions, frequencies, out, out + ROWS * 32};
        backend_rope_table(backend, &op);
        for (int i = 0; i < ROWS * 32; i++) {
            float angle = (float)positions[i / 32] * frequencies[i % 32];
            float cosine = (float)cos((double)angle);
            float sine = (float)sin((double)angle);
            kernels_expect_near(&op.cosine[i], &cosine, 1, 1.2e-7F, 0.0F, "cosine");
            kernels_expect_near(&op.sine[i], &sine, 1, 1.2e-7F, 0.0F, "sine");
        }
    }
    backend_close(backend);
    kernels_free_all();
}

static void rotation_leaves_the_first_channels(void **state) {
    (void)state;
    struct numbers numbers = {6};
    const float cosine[8] = {0.0F, 1.0F, -1.0F, 0.5F, 0.0F, 0.0F, 0.0F, 0.0F};
    const float sine[8] = {1.0F, 0.0F, 0.0F, 0.5F, 1.0F, -1.0F, 0.0F, 2.0F};
    uint16_t *x = kernels_bf16(&numbers, 3 * 64, 1.0F);
    uint16_t *before = kernels_memory(3 * 64 * 2);
    memcpy(before, x, 3 * 64 * 2);
    struct backend *backend = kernels_open(NULL, 1);
    struct rotate_op op = {1, 3, 64, 16, false, cosine, sine, x};
    backend_rotate(backend, &op);
    for (size_t head = 0; head < 3; head++) {
        assert_memory_equal(x + head * 64, before + head * 64, 48 * 2);
        for (size_t i = 0; i < 8; i++) {
            float even = bf16_decode(before[head * 64 + 48 + 2 * i]);
            float odd = bf16_decode(before[head * 64 + 48 + 2 * i + 1]);
            uint16_t first = bf16_encode(even * cosine[i] - odd * sine[i]);
            uint16_t second = bf16_encode(even * sine[i] + odd * cosine[i]);
            assert_int_equal(x[head * 64 + 48 + 2 * i], first);
            assert_int_equal(x[head * 64 + 48 + 2 * i + 1], second);
        }
    }
    backend_close(backend);
    kernels_free_all();
}

struct engram_case {
    int32_t dim;
    struct engram_gather_op gather;
    struct engram_gate_op gate;
    const uint16_t *x;
    unsigned char *out; /* streams, gathered rows, gates */
};

static void run_engram(struct backend *backend, int32_t step, void *context) {
    const struct engram_case *c = context;
    size_t dim = (size_t)c->dim;
    size_t width = (size_t)(c->gather.columns * c->gather.dim);
    uint16_t *x = (uint16_t *)(void *)c->out;
    uint16_t *gathered = x + ROWS * 4 * dim;
    float *gates = (float *)(void *)(gathered + ROWS * width);
    memcpy(x, c->x, ROWS * 4 * dim * 2);
    for (int32_t r = 0; r < ROWS; r += step) {
        struct engram_gather_op gather = c->gather;
        gather.rows = rows_of_call(r, step);
        gather.ids += r * gather.columns;
        gather.output = gathered + (size_t)r * width;
        backend_engram_gather(backend, &gather);
        struct engram_gate_op gate = c->gate;
        gate.rows = gather.rows;
        gate.kv += (size_t)r * 5 * dim;
        gate.x = x + (size_t)r * 4 * dim;
        gate.gate = gates + 4 * r;
        backend_engram_gate(backend, &gate);
    }
}

static void check_gates(const struct engram_case *c) {
    size_t dim = (size_t)c->dim;
    size_t width = (size_t)(c->gather.columns * c->gather.dim);
    const uint16_t *x = (const uint16_t *)(const void *)c->out;
    const float *gates = (const float *)(const void *)(x + ROWS * (4 * dim + width));
    for (size_t at = 0; at < ROWS * 4; at++) {
        size_t j = at % 4;
        const uint16_t *kv = c->gate.kv + at / 4 * 5 * dim;
        double dot = 0.0;
        double x_squares = 0.0;
        double key_squares = 0.0;
        for (size_t i = 0; i < dim; i++) {
            double value = (double)bf16_decode(c->x[at * dim + i]);
            double key = (double)bf16_decode(kv[j * dim + i]);
            double weight = (double)bf16_decode(c->gate.query_weight[j * dim + i]) *
                            (double)bf16_decode(c->gate.key_weight[j * dim + i]);
            dot += value * weight * key;
            x_squares += value * value;
            key_squares += key * key;
        }
        double g = dot / sqrt(x_squares / (double)c->dim + 1e-20);
        g = g / sqrt(key_squares / (double)c->dim + 1e-20) / sqrt((double)c->dim);
        double root = copysign(sqrt(fmax(fabs(g), 1e-6)), g);
        float expected = (float)(1.0 / (1.0 + exp(-root)));
        kernels_expect_near(&gates[at], &expected, 1, 1e-5F, 0.0F, "engram gate");
        for (size_t i = 0; i < dim; i++) {
            float added = gates[at] * bf16_decode(kv[4 * dim + i]);
            uint16_t sum = bf16_encode(bf16_decode(c->x[at * dim + i]) + added);
            assert_int_equal(x[at * dim + i], sum);
        }
    }
}

static void engram_is_exact_everywhere(void **state) {
    (void)state;
    struct numbers numbers = {21};
    for (int32_t dim = 192; dim <= 256; dim += 64) {
        size_t wide = (size_t)dim;
        int64_t *ids = kernels_memory(ROWS * 12 * sizeof *ids);
        for (int i = 0; i < ROWS * 12; i++) {
            ids[i] = numbers_below(&numbers, 300);
        }
        struct weight table = kernels_weight(&numbers, DTYPE_FP8, 300 * 32, 32);
        struct engram_case c = {
            .dim = dim,
            .gather =
                {.columns = 12, .dim = 32, .ids = ids, .table = table.data, .scales = table.scale},
            .gate =
                {.dim = dim,
                 .streams = 4,
                 .norm_eps = 1e-20F,
                 .kv = kernels_bf16(&numbers, ROWS * 5 * wide, 1.0F),
                 .query_weight = kernels_bf16(&numbers, 4 * wide, 1.0F),
                 .key_weight = kernels_bf16(&numbers, 4 * wide, 1.0F)},
            .x = kernels_bf16(&numbers, ROWS * 4 * wide, 1.0F),
        };
        size_t bytes = ROWS * (4 * wide + 12 * 32) * 2 + ROWS * 16;
        c.out = kernels_memory(bytes);
        kernels_same_everywhere("engram", run_engram, &c, c.out, bytes);
        check_gates(&c);
        kernels_free_all();
    }
}

static void keep_rows_moves_suffixes_forward(void **state) {
    (void)state;
    int32_t rows[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const struct row_segment from[3] = {{0, 4, 0}, {4, 1, 0}, {5, 5, 0}};
    const struct row_segment to[3] = {{0, 2, 2}, {2, 1, 0}, {3, 3, 2}};
    const int32_t expected[6] = {2, 3, 4, 7, 8, 9};
    struct backend *backend = kernels_open(NULL, 1);
    struct keep_rows_op op = {
        row_segments_of(from, from, 3), row_segments_of(to, to, 3), sizeof rows[0], rows};
    backend_keep_rows(backend, &op);
    assert_memory_equal(rows, expected, sizeof expected);
    backend_close(backend);
}

static void exp_is_accurate(void **state) {
    (void)state;
    for (float x = -103.0F; x < 88.7F; x += 0.00317F) {
        double expected = exp((double)x);
        double got = (double)lane_exp(x);
        // one step of FP32 at this size, subnormal sizes included
        double step = fmax(ldexp(1.0, ilogb(expected) - 23), 0x1p-149);
        if (fabs(got - expected) > 1.01 * step) {
            fail_msg("exp(%.9g) is %.9g, not %.9g", (double)x, got, expected);
        }
    }
    assert_true(lane_exp(0.0F) == 1.0F);
    assert_true(lane_exp(-INFINITY) == 0.0F);
    assert_true(lane_exp(-1e30F) == 0.0F);
    assert_true(isinf(lane_exp(89.0F)));
}

static void bf16_rounds_to_even_and_keeps_nan(void **state) {
    (void)state;
    assert_int_equal(bf16_encode(float_of_bits(0x3f808000)), 0x3f80); // tie, even stays
    assert_int_equal(bf16_encode(float_of_bits(0x3f818000)), 0x3f82); // tie, odd goes up
    assert_int_equal(bf16_encode(float_of_bits(0x3f808001)), 0x3f81);
    assert_int_equal(bf16_encode(float_of_bits(0x7f7fffff)), 0x7f80); // past the largest
    assert_int_equal(bf16_encode(float_of_bits(0x7f800001)), 0x7fc0); // a NaN without upper bits
    assert_int_equal(bf16_encode(float_of_bits(0xffc12345)), 0xffc1);
    assert_int_equal(bf16_encode(-0.0F), 0x8000);
}

struct team_job {
    _Atomic int32_t runs[300];
    int32_t threads;
};

static void count_chunk(void *context, int32_t thread, int32_t chunk) {
    struct team_job *job = context;
    assert_true(thread >= 0 && thread < job->threads);
    atomic_fetch_add_explicit(&job->runs[chunk], 1, memory_order_relaxed);
}

static void team_runs_every_chunk_once(void **state) {
    (void)state;
    struct numbers numbers = {8};
    for (int32_t threads = 1; threads <= 4; threads++) {
        struct cpu_team *team = NULL;
        struct error error = {0};
        assert_true(is_ok(cpu_team_create(threads, &team, &error)));
        assert_int_equal(cpu_team_threads(team), threads);
        for (int round = 0; round < 2000; round++) {
            struct team_job job = {.threads = threads};
            int32_t chunks = numbers_below(&numbers, round % 10 == 0 ? 301 : 9);
            // estimates on both sides of sharing and waking
            int64_t nanoseconds = round % 3 == 0 ? 100 : (round % 3 == 1 ? 5000 : 1000000);
            cpu_team_run(team, count_chunk, &job, chunks, nanoseconds);
            for (int32_t i = 0; i < 300; i++) {
                assert_int_equal(job.runs[i], i < chunks ? 1 : 0);
            }
        }
        cpu_team_destroy(team);
    }
    cpu_team_destroy(NULL);
}

struct spread_pieces {
    pthread_t caller;
    atomic_int runs[300];
    atomic_int elsewhere; // pieces that another thread ran
};

static void count_piece(void *context, int32_t piece) {
    struct spread_pieces *pieces = context;
    atomic_fetch_add_explicit(&pieces->runs[piece], 1, memory_order_relaxed);
    if (pthread_equal(pthread_self(), pieces->caller) == 0) {
        atomic_fetch_add_explicit(&pieces->elsewhere, 1, memory_order_relaxed);
    }
}

static void spread_runs_every_piece_once(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 3; threads++) {
        struct backend *backend = kernels_open(NULL, threads);
        for (int32_t round = 0; round < 300; round++) {
            struct spread_pieces pieces = {.caller = pthread_self()};
            int32_t count = round;
            backend_spread(backend, count_piece, &pieces, count, round % 2 == 0 ? 100 : 1000000);
            for (int32_t i = 0; i < 300; i++) {
                assert_int_equal(pieces.runs[i], i < count ? 1 : 0);
            }
            if (threads == 1 || count <= 1) {
                assert_int_equal(pieces.elsewhere, 0);
            }
        }
        backend_close(backend);
    }
    struct backend alone = {.name = "none"}; // without threads of its own
    struct spread_pieces pieces = {.caller = pthread_self()};
    backend_spread(&alone, count_piece, &pieces, 300, 1000000);
    assert_int_equal(pieces.elsewhere, 0);
    assert_int_equal(pieces.runs[299], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_site_is_exact_everywhere),
        cmocka_unit_test(norm_of_zeros_is_zeros),
        cmocka_unit_test(embed_copies_rows_to_all_streams),
        cmocka_unit_test(rope_angles_are_accurate),
        cmocka_unit_test(rotation_leaves_the_first_channels),
        cmocka_unit_test(engram_is_exact_everywhere),
        cmocka_unit_test(keep_rows_moves_suffixes_forward),
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(bf16_rounds_to_even_and_keeps_nan),
        cmocka_unit_test(team_runs_every_chunk_once),
        cmocka_unit_test(spread_runs_every_piece_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
