/* Gumbel-max sampling with counter-based noise. See sampler.h. */
#include "sampler.h"

#include <math.h>

struct candidate {
    double weight; /* exp((logit - largest) / temperature) */
    int32_t id;
};

/* 2^(j/EXP_STEPS), so that a short series does for the rest. */
#define EXP_STEPS      64
#define EXP_STEPS_LOG2 6

struct sampler {
    int32_t vocabulary;
    struct candidate *heap; /* [V] */
    double *weights;        /* [V] */
    double powers[EXP_STEPS];
};

result sampler_create(struct sampler **out, int32_t vocabulary, struct error *error) {
    ASSERT(vocabulary > 0);
    struct sampler *sampler = calloc(1, sizeof *sampler);
    struct candidate *heap = calloc((size_t)vocabulary, sizeof *heap);
    double *weights = calloc((size_t)vocabulary, sizeof *weights);
    if (sampler == NULL || heap == NULL || weights == NULL) {
        free(weights);
        free(heap);
        free(sampler);
        FAIL(error, MEMORY, "no memory to sample from %d tokens", vocabulary);
    }
    sampler->vocabulary = vocabulary;
    sampler->heap = heap;
    sampler->weights = weights;
    for (int j = 0; j < EXP_STEPS; j++) {
        sampler->powers[j] = exact_exp(j * (0.69314718055994530942 / EXP_STEPS));
    }
    *out = sampler;
    return OK;
}

void sampler_destroy(struct sampler *sampler) {
    if (sampler != NULL) {
        free(sampler->weights);
        free(sampler->heap);
        free(sampler);
    }
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

/* x = k ln 2 + r with |r| <= ln 2 / 2; exp(r) by its series to r^13 (error below 2^-55). */
double exact_exp(double x) {
    const double ln2_high =
        6.93147180369123816490e-01; /* low 21 bits are zero: k times it is exact */
    const double ln2_low = 1.90821492927058770002e-10;
    if (x != x) {
        return x;
    }
    if (x < -745.0) {
        return 0.0;
    }
    if (x > 709.0) {
        return HUGE_VAL;
    }
    double shifted = x * 1.44269504088896338700e+00;
    int k = (int)(shifted + (shifted < 0 ? -0.5 : 0.5));
    double r = (x - k * ln2_high) - k * ln2_low;
    double sum = 1.0 / 6227020800.0;
    sum = sum * r + 1.0 / 479001600.0;
    sum = sum * r + 1.0 / 39916800.0;
    sum = sum * r + 1.0 / 3628800.0;
    sum = sum * r + 1.0 / 362880.0;
    sum = sum * r + 1.0 / 40320.0;
    sum = sum * r + 1.0 / 5040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    if (k < -1021 || k > 1022) {
        return ldexp(sum, k);
    }
    uint64_t bits = (uint64_t)(k + 1023) << 52; /* 2^k */
    double power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

/* exp(x) of x <= 0 for whole vocabularies: x = k ln 2 / 64 + r, |r| <= ln 2 / 128, the series to r^5
 * (error 4e-17); 0 below -700. */
static double table_exp(const double powers[EXP_STEPS], double x) {
    const double step_high = 6.93147180369123816490e-01 / EXP_STEPS;
    const double step_low = 1.90821492927058770002e-10 / EXP_STEPS;
    if (!(x > -700.0)) {
        return 0;
    }
    int k = (int)(x * (1.44269504088896338700e+00 * EXP_STEPS) - 0.5);
    double r = (x - k * step_high) - k * step_low;
    double sum = 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    uint64_t bits = (uint64_t)((k >> EXP_STEPS_LOG2) + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return sum * powers[k & (EXP_STEPS - 1)] * power;
}

/* x = m 2^k with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), by its series
 * to s^21. */
double exact_log(double x) {
    const double ln2_high = 6.93147180369123816490e-01;
    const double ln2_low = 1.90821492927058770002e-10;
    int k = 0;
    double m = frexp(x, &k);
    if (m < 0.70710678118654752440) {
        m *= 2;
        k--;
    }
    double s = (m - 1.0) / (m + 1.0);
    double s2 = s * s;
    double sum = 0;
    for (int n = 21; n >= 3; n -= 2) {
        sum = (sum + 1.0 / n) * s2;
    }
    double log_m = 2.0 * s + 2.0 * s * sum;
    return k * ln2_high + (log_m + k * ln2_low);
}

/* ---- noise ---------------------------------------------------------------------------------- */

/* Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
static void philox(uint32_t counter[4], uint32_t key_0, uint32_t key_1) {
    for (int round = 0; round < 10; round++) {
        uint64_t product_0 = (uint64_t)0xD2511F53U * counter[0];
        uint64_t product_1 = (uint64_t)0xCD9E8D57U * counter[2];
        uint32_t next_0 = (uint32_t)(product_1 >> 32) ^ counter[1] ^ key_0;
        uint32_t next_2 = (uint32_t)(product_0 >> 32) ^ counter[3] ^ key_1;
        counter[0] = next_0;
        counter[1] = (uint32_t)product_1;
        counter[2] = next_2;
        counter[3] = (uint32_t)product_0;
        key_0 += 0x9E3779B9U;
        key_1 += 0xBB67AE85U;
    }
}

/* u = (bits + 1/2) 2^-52 */
static uint64_t noise_bits(uint64_t seed, int32_t position, int32_t id) {
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)id, 0, 0};
    philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
    return ((uint64_t)counter[1] << 32 | counter[0]) >> 12;
}

static double noise_uniform(uint64_t bits) {
    return ((double)bits + 0.5) * 0x1p-52;
}

static double noise_gumbel(uint64_t bits) {
    return -exact_log(-exact_log(noise_uniform(bits)));
}

double sampler_uniform(uint64_t seed, int32_t position, int32_t id) {
    return noise_uniform(noise_bits(seed, position, id));
}

double sampler_gumbel(uint64_t seed, int32_t position, int32_t id) {
    return noise_gumbel(noise_bits(seed, position, id));
}

/* Whether the noise surely is below `bound`, without a logarithm: -log u >= 1 - u >= 2^-n with n
 * from the leading zeros of 1 - u, so the noise -log(-log u) is at most n log 2. */
static bool noise_is_below(uint64_t bits, double bound) {
    uint64_t complement = ~bits & (((uint64_t)1 << 52) - 1);
    int zeros = complement == 0 ? 52 : __builtin_clzll(complement) - 12;
    return (zeros + 1) * 0.6931471805599454 < bound;
}

/* ---- draws ---------------------------------------------------------------------------------- */

static int32_t largest_logit(const float *logits, int32_t count) {
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++) {
        if (isfinite(logits[i]) && (best < 0 || logits[i] > logits[best])) {
            best = i;
        }
    }
    return best < 0 ? 0 : best;
}

static float
log_softmax(const struct sampler *sampler, const float *logits, int32_t largest, int32_t id) {
    double top = (double)logits[largest];
    double sum = 0;
    for (int32_t i = 0; i < sampler->vocabulary; i++) {
        double below = (double)logits[i] - top;
        /* exp(-60) is below 2^-86 of the sum even times 2^20 tokens. */
        if (below > -60.0 && below <= 0) {
            sum += table_exp(sampler->powers, below);
        }
    }
    return (float)((double)logits[id] - top - exact_log(sum));
}

/* Heap order: larger weight first, then lower id. */
static bool comes_before(const struct candidate *a, const struct candidate *b) {
    return a->weight > b->weight || (a->weight == b->weight && a->id < b->id);
}

static void sift_down(struct candidate *heap, size_t count, size_t at) {
    struct candidate moved = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) {
            break;
        }
        if (child + 1 < count && comes_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!comes_before(&heap[child], &moved)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

struct draw {
    double best;
    int32_t id;
};

static void draw_consider(
    struct draw *draw,
    const float *logits,
    const struct sampling *sampling,
    int32_t position,
    int32_t id
) {
    double scaled = (double)logits[id] / sampling->temperature;
    uint64_t bits = noise_bits(sampling->seed, position, id);
    if (draw->id >= 0 && noise_is_below(bits, draw->best - scaled)) {
        return;
    }
    double value = scaled + noise_gumbel(bits);
    if (draw->id < 0 || value > draw->best || (value == draw->best && id < draw->id)) {
        draw->best = value;
        draw->id = id;
    }
}

/* Draws among the most likely tokens, taken from a heap until their share reaches top_p. */
static int32_t draw_from_top(
    struct sampler *sampler,
    const float *logits,
    const struct sampling *sampling,
    int32_t position,
    int32_t largest
) {
    double top = (double)logits[largest];
    double total = 0;
    size_t count = 0;
    for (int32_t i = 0; i < sampler->vocabulary; i++) {
        double weight =
            isfinite(logits[i])
                ? table_exp(sampler->powers, ((double)logits[i] - top) / sampling->temperature)
                : 0;
        sampler->weights[i] = weight;
        total += weight;
    }
    /* V tokens of at most (1 - p) / V each could not fill what the nucleus leaves out, so those are
     * never in it; half of that allows for rounding. */
    double least = 0.5 * (1 - sampling->top_p) * total / sampler->vocabulary;
    for (int32_t i = 0; i < sampler->vocabulary; i++) {
        if (sampler->weights[i] > least) {
            sampler->heap[count++] = (struct candidate){.weight = sampler->weights[i], .id = i};
        }
    }
    for (size_t i = count / 2; i-- > 0;) {
        sift_down(sampler->heap, count, i);
    }
    struct draw draw = {.id = -1};
    double kept = 0;
    while (count > 0 && (draw.id < 0 || kept < sampling->top_p * total)) {
        struct candidate taken = sampler->heap[0];
        kept += taken.weight;
        draw_consider(&draw, logits, sampling, position, taken.id);
        sampler->heap[0] = sampler->heap[--count];
        sift_down(sampler->heap, count, 0);
    }
    return draw.id < 0 ? largest : draw.id;
}

/* Noise of 2^-53 < u < 1 - 2^-53 lies in (-3.7, 36.8): a token further below the largest than
 * this cannot win, so its noise is not drawn. */
#define GUMBEL_SPAN 41.0

static int32_t draw_from_all(
    const struct sampler *sampler,
    const float *logits,
    const struct sampling *sampling,
    int32_t position,
    int32_t largest
) {
    double top = (double)logits[largest];
    struct draw draw = {.id = -1};
    /* The likeliest first, so that most others are ruled out at once. */
    draw_consider(&draw, logits, sampling, position, largest);
    for (int32_t i = 0; i < sampler->vocabulary; i++) {
        if (isfinite(logits[i]) &&
            ((double)logits[i] - top) / sampling->temperature > -GUMBEL_SPAN) {
            draw_consider(&draw, logits, sampling, position, i);
        }
    }
    return draw.id < 0 ? largest : draw.id;
}

static result
check_logits(const float *logits, int32_t count, int32_t position, struct error *error) {
    int32_t wrong = 0;
    int32_t first = -1;
    for (int32_t i = 0; i < count; i++) {
        if (!(logits[i] < HUGE_VALF)) {
            wrong++;
            first = first < 0 ? i : first;
        }
    }
    if (wrong > 0) {
        FAIL(
            error,
            DEVICE,
            "logits of position %d: %d not finite, first at id %d",
            position,
            wrong,
            first
        );
    }
    return OK;
}

result sampler_draw(
    struct sampler *sampler,
    const struct sampler_request *request,
    struct sampled_token *out,
    struct error *error
) {
    const float *logits = request->logits;
    const struct sampling *sampling = request->sampling;
    if (request->mask != NULL || sampling->bias_count > 0 || sampling->alternatives > 0 ||
        sampling->top_k > 0 || sampling->min_p > 0 || sampling_has_penalties(sampling)) {
        FAIL(error, UNSUPPORTED, "sampler: only temperature and top_p are there yet");
    }
    TRY(check_logits(logits, sampler->vocabulary, request->position, error));
    int32_t largest = largest_logit(logits, sampler->vocabulary);
    int32_t id = largest;
    if (!isfinite(logits[largest])) {
        FAIL(
            error,
            INVALID_INPUT,
            "no token is left at position %d: all %d logits are -infinity",
            request->position,
            sampler->vocabulary
        );
    }
    if (sampling->temperature > 0) {
        id = sampling->top_p < 1
                 ? draw_from_top(sampler, logits, sampling, request->position, largest)
                 : draw_from_all(sampler, logits, sampling, request->position, largest);
    }
    out->id = id;
    out->logprob = log_softmax(sampler, logits, largest, id);
    out->alternative_count = 0;
    return OK;
}
