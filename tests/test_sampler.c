/* Sampling: distribution against exact probabilities, greedy ties, the nucleus, the noise. */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define SEED  20261129U
#define DRAWS 40000

static struct sampler *make_sampler(int32_t vocabulary) {
    struct sampler *sampler = NULL;
    struct error error;
    assert_true(is_ok(sampler_create(&sampler, vocabulary, &error)));
    return sampler;
}

static int32_t
draw(struct sampler *sampler, const float *logits, const struct sampling *sampling, int32_t at) {
    struct sampler_request request = {.logits = logits, .sampling = sampling, .position = at};
    struct sampled_token token;
    struct error error;
    assert_true(is_ok(sampler_draw(sampler, &request, &token, &error)));
    return token.id;
}

/* Philox4x32-10 known answer of its authors' test vectors: counter 0, key 0. */
static void noise_is_philox(void **state) {
    (void)state;
    /* First two words 6627e8d5, e169c58d; u = (top 52 of their 64 bits + 1/2) / 2^52. */
    uint64_t bits = (uint64_t)0xe169c58d6627e8d5U >> 12;
    assert_true(sampler_uniform(0, 0, 0) == ((double)bits + 0.5) * 0x1p-52);
    assert_true(sampler_uniform(1, 0, 0) != sampler_uniform(0, 0, 0));
    assert_true(sampler_uniform(0, 1, 0) != sampler_uniform(0, 0, 1));
    assert_true(sampler_uniform((uint64_t)1 << 40, 0, 0) != sampler_uniform(0, 0, 0));
}

static void arithmetic_is_close_to_libm(void **state) {
    (void)state;
    uint64_t seed = SEED;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        double x = ((double)(seed >> 11) * 0x1p-53 - 0.5) * 1400;
        double wanted = exp(x);
        if (wanted > 1e-300 && isfinite(wanted)) {
            assert_true(fabs(exact_exp(x) / wanted - 1) <= 4.5e-16);
        }
        double y = ldexp(1 + (double)(seed >> 12) * 0x1p-52, (int)(seed % 120) - 60);
        double scale = fabs(log(y)) > 0.01 ? fabs(log(y)) : 0.01;
        assert_true(fabs(exact_log(y) - log(y)) <= 4.5e-16 * scale);
    }
    assert_true(exact_exp(0) == 1);
    assert_true(exact_log(1) == 0);
    assert_true(exact_exp(-800) == 0);
    assert_true(isinf(exact_exp(800)));
}

/* Chi-square of DRAWS draws against the softmax; `kept` tokens in order of probability. */
static void check_distribution(double temperature, double top_p, int kept) {
    static const float logits[8] = {1.0F, -0.5F, 2.0F, 0.25F, 0.0F, -3.0F, 1.5F, 0.75F};
    static const int order[8] = {2, 6, 0, 7, 3, 4, 1, 5};
    struct sampler *sampler = make_sampler(8);
    struct sampling sampling = {.temperature = temperature, .top_p = top_p, .seed = SEED};
    int counts[8] = {0};
    for (int32_t i = 0; i < DRAWS; i++) {
        counts[draw(sampler, logits, &sampling, i)]++;
    }
    double total = 0;
    for (int i = 0; i < kept; i++) {
        total += exp((double)logits[order[i]] / temperature);
    }
    double chi = 0;
    for (int i = 0; i < 8; i++) {
        if (i >= kept) {
            assert_int_equal(counts[order[i]], 0);
            continue;
        }
        double expected = DRAWS * exp((double)logits[order[i]] / temperature) / total;
        chi += pow(counts[order[i]] - expected, 2) / expected;
    }
    /* 99.9 % quantile of chi-square with 7 degrees of freedom: 24.3; fewer have a lower one. */
    print_message(
        "temperature %.2f, top_p %.2f, seed %u: chi-square %.2f\n", temperature, top_p, SEED, chi
    );
    assert_true(chi < 24.3);
    sampler_destroy(sampler);
}

static void draws_follow_softmax(void **state) {
    (void)state;
    check_distribution(1.0, 1.0, 8);
    check_distribution(0.6, 1.0, 8);
    check_distribution(2.5, 1.0, 8);
}

/* Probabilities at temperature 1, descending: .409 .248 .150 .117 .071 .055 .033 .003 or so. */
static void draws_with_top_p_follow_nucleus(void **state) {
    (void)state;
    check_distribution(1.0, 0.5, 2);
    check_distribution(1.0, 0.05, 1);
    check_distribution(1.0, 0.9999, 8);
}

/* top_p 1 and a nucleus that keeps everything must draw the same: the noise decides alone. */
static void draws_do_not_depend_on_path(void **state) {
    (void)state;
    enum { VOCABULARY = 500 };
    float logits[VOCABULARY];
    uint32_t seed = SEED;
    for (int i = 0; i < VOCABULARY; i++) {
        seed = seed * 1664525U + 1013904223U;
        logits[i] = (float)(seed >> 8) * 0x1p-24F * 12.0F;
    }
    struct sampler *sampler = make_sampler(VOCABULARY);
    struct sampling all = {.temperature = 0.9, .top_p = 1.0, .seed = SEED};
    struct sampling nucleus = {.temperature = 0.9, .top_p = 1.0 - 1e-16, .seed = SEED};
    nucleus.top_p = nextafter(1.0, 0.0);
    for (int32_t i = 0; i < 2000; i++) {
        int32_t id = draw(sampler, logits, &all, i);
        assert_int_equal(draw(sampler, logits, &nucleus, i), id);
        /* The definition, without any short cut. */
        int32_t best = 0;
        double best_value = -HUGE_VAL;
        for (int32_t t = 0; t < VOCABULARY; t++) {
            double value = (double)logits[t] / 0.9 + sampler_gumbel(SEED, i, t);
            if (value > best_value) {
                best_value = value;
                best = t;
            }
        }
        assert_int_equal(id, best);
    }
    sampler_destroy(sampler);
}

static void greedy_takes_lowest_of_equals(void **state) {
    (void)state;
    const float logits[6] = {0.5F, 2.0F, -INFINITY, 2.0F, -1.0F, 2.0F};
    struct sampler *sampler = make_sampler(6);
    struct sampling sampling = {.temperature = 0, .top_p = 0.5, .seed = SEED};
    assert_int_equal(draw(sampler, logits, &sampling, 0), 1);
    sampler_destroy(sampler);
}

static void nucleus_cuts_equals_by_id(void **state) {
    (void)state;
    const float logits[4] = {1.0F, 1.0F, 1.0F, 1.0F};
    struct sampler *sampler = make_sampler(4);
    struct sampling sampling = {.temperature = 1, .top_p = 0.5, .seed = SEED};
    for (int32_t i = 0; i < 200; i++) {
        assert_true(draw(sampler, logits, &sampling, i) < 2);
    }
    sampler_destroy(sampler);
}

/* Large nuclei are not sorted: the same border all the same, at equal weights to the token. */
static void nucleus_of_many_equals_ends_at_its_token(void **state) {
    (void)state;
    enum { VOCABULARY = 1000 };
    static float logits[VOCABULARY];
    struct sampler *sampler = make_sampler(VOCABULARY);
    static const double top_p[] = {0.25, 0.5, 0.75, 0.998};
    for (size_t p = 0; p < 2 * COUNT_OF(top_p); p++) {
        struct sampling sampling = {.temperature = 1, .top_p = top_p[p / 2], .seed = SEED};
        /* Different logits at a temperature that makes them equal: the largest may be left out. */
        sampling.temperature = p % 2 == 0 ? 1 : 1e20;
        for (int32_t t = 0; t < VOCABULARY; t++) {
            logits[t] = p % 2 == 0 ? 0 : (float)t;
        }
        int32_t kept = (int32_t)(top_p[p / 2] * VOCABULARY);
        for (int32_t i = 0; i < 800; i++) {
            int32_t best = 0;
            for (int32_t t = 1; t < kept; t++) {
                double noise = sampler_gumbel(SEED, i, t);
                best = noise > sampler_gumbel(SEED, i, best) ? t : best;
            }
            assert_int_equal(draw(sampler, logits, &sampling, i), best);
        }
    }
    sampler_destroy(sampler);
}

static void logprob_is_of_raw_logits(void **state) {
    (void)state;
    const float logits[3] = {1.0F, 3.0F, 2.0F};
    struct sampler *sampler = make_sampler(3);
    struct sampling sampling = {.temperature = 0, .top_p = 1};
    struct sampler_request request = {.logits = logits, .sampling = &sampling, .position = 5};
    struct sampled_token token;
    struct error error;
    assert_true(is_ok(sampler_draw(sampler, &request, &token, &error)));
    assert_int_equal(token.id, 1);
    double wanted = 3.0 - log(exp(1.0) + exp(3.0) + exp(2.0));
    assert_true(fabs((double)token.logprob - wanted) < 1e-6);
    sampling.temperature = 0.01;
    assert_true(is_ok(sampler_draw(sampler, &request, &token, &error)));
    assert_true(fabs((double)token.logprob - wanted) < 1e-6);
    sampler_destroy(sampler);
}

static void sampling_out_of_range_is_refused(void **state) {
    (void)state;
    static const struct sampling wrong[] = {
        {.temperature = -0.1, .top_p = 1},
        {.temperature = NAN, .top_p = 1},
        {.temperature = INFINITY, .top_p = 1},
        {.temperature = 1, .top_p = 0},
        {.temperature = 1, .top_p = 1.01},
        {.temperature = 1, .top_p = NAN},
    };
    struct error error;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(sampling_check(&wrong[i], 10, &error).code, RESULT_INVALID_INPUT);
    }
    struct sampling right = {.temperature = 0, .top_p = 1};
    assert_true(is_ok(sampling_check(&right, 10, &error)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_is_philox),
        cmocka_unit_test(arithmetic_is_close_to_libm),
        cmocka_unit_test(draws_follow_softmax),
        cmocka_unit_test(draws_with_top_p_follow_nucleus),
        cmocka_unit_test(draws_do_not_depend_on_path),
        cmocka_unit_test(greedy_takes_lowest_of_equals),
        cmocka_unit_test(nucleus_cuts_equals_by_id),
        cmocka_unit_test(nucleus_of_many_equals_ends_at_its_token),
        cmocka_unit_test(logprob_is_of_raw_logits),
        cmocka_unit_test(sampling_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
