/* Gumbel-max sampling with counter-based noise. See sampler.h. */
#include "sampler_internal.h"

#include <math.h>

result sampler_create(struct sampler **out, int32_t vocabulary, struct error *error) {
    ASSERT(vocabulary > 0);
    size_t count = (size_t)vocabulary;
    struct sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler == NULL) {
        FAIL(error, MEMORY, "no memory for a sampler");
    }
    sampler->vocabulary = vocabulary;
    sampler->heap = calloc(count, sizeof *sampler->heap);
    sampler->weights = calloc(count, sizeof *sampler->weights);
    sampler->logits = calloc(count, sizeof *sampler->logits);
    sampler->ids = calloc(count, sizeof *sampler->ids);
    if (sampler->heap == NULL || sampler->weights == NULL || sampler->logits == NULL ||
        sampler->ids == NULL) {
        sampler_destroy(sampler);
        FAIL(error, MEMORY, "no memory to sample from %d tokens", vocabulary);
    }
    for (int j = 0; j < EXP_STEPS; j++) {
        sampler->powers[j] = exact_exp(j * (0.69314718055994530942 / EXP_STEPS));
    }
    *out = sampler;
    return OK;
}

uint64_t sampler_bytes(int32_t vocabulary) {
    const struct sampler *none = NULL;
    return sizeof *none + (uint64_t)vocabulary * (sizeof *none->heap + sizeof *none->weights +
                                                  sizeof *none->logits + sizeof *none->ids);
}

void sampler_destroy(struct sampler *sampler) {
    if (sampler != NULL) {
        free(sampler->ids);
        free(sampler->logits);
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

/* Logarithm of the sum of exp(logit - largest). */
static double log_sum(const struct sampler *sampler, const struct sampler_row *row) {
    double top = (double)row->logits[row->largest];
    double sum = 0;
    for (int32_t i = 0; i < row->count; i++) {
        double below = (double)row->logits[i] - top;
        /* exp(-60) is below 2^-86 of the sum even times 2^20 tokens. */
        if (below > -60.0) {
            sum += table_exp(sampler->powers, below);
        }
    }
    return exact_log(sum);
}

/* Heap order: larger weight first, then lower id. */
static bool comes_before(const struct candidate *a, const struct candidate *b) {
    return a->weight > b->weight || (a->weight == b->weight && a->at < b->at);
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
    int32_t at; /* index in the row; -1: none yet */
};

static void draw_consider(
    struct draw *draw,
    const struct sampler_request *request,
    const struct sampler_row *row,
    int32_t at
) {
    double scaled = (double)row->logits[at] / request->sampling->temperature;
    uint64_t bits = noise_bits(request->sampling->seed, request->position, sampler_row_id(row, at));
    if (draw->at >= 0 && noise_is_below(bits, draw->best - scaled)) {
        return;
    }
    double value = scaled + noise_gumbel(bits);
    if (draw->at < 0 || value > draw->best || (value == draw->best && at < draw->at)) {
        draw->best = value;
        draw->at = at;
    }
}

/* More than what the order of a sum of 2^31 weights can change in it, as a part. */
#define NUCLEUS_ROUNDING 1e-6

/* The tokens among which a nucleus lies, in the sampler's heap. */
struct nucleus {
    size_t count;
    double total; /* weight of the whole row */
};

static void gather_nucleus(
    struct sampler *sampler,
    const struct sampling *sampling,
    const struct sampler_row *row,
    struct nucleus *nucleus
) {
    double top = (double)row->logits[row->largest];
    double total = 0;
    size_t count = 0;
    for (int32_t i = 0; i < row->count; i++) {
        double weight =
            table_exp(sampler->powers, ((double)row->logits[i] - top) / sampling->temperature);
        sampler->weights[i] = weight;
        total += weight;
    }
    /* V tokens of at most (1 - p) / V each could not fill what the nucleus leaves out, so those are
     * never in it; half of that allows for rounding. */
    double least = 0.5 * (1 - sampling->top_p) * total / row->count;
    for (int32_t i = 0; i < row->count; i++) {
        /* The likeliest token weighs 1. */
        if (sampler->weights[i] > least && sampler->weights[i] >= sampling->min_p) {
            sampler->heap[count++] = (struct candidate){.weight = sampler->weights[i], .at = i};
        }
    }
    *nucleus = (struct nucleus){.count = count, .total = total};
}

/* n of a weight in (2^-n-1, 2^-n], at most OCTAVES - 1. */
#define OCTAVES 64
static int octave(double weight) {
    uint64_t bits;
    memcpy(&bits, &weight, sizeof bits);
    int below = 1023 - (int)(bits >> 52);
    return below < OCTAVES - 1 ? below : OCTAVES - 1;
}

/* Drops the octaves behind those that fill the nucleus for sure. */
static void cut_nucleus(struct sampler *sampler, double top_p, struct nucleus *nucleus) {
    struct candidate *heap = sampler->heap;
    double sums[OCTAVES] = {0};
    for (size_t i = 0; i < nucleus->count; i++) {
        sums[octave(heap[i].weight)] += heap[i].weight;
    }
    double enough = top_p * nucleus->total * (1 + NUCLEUS_ROUNDING);
    double sum = sums[0];
    int last = 0;
    while (last < OCTAVES - 1 && sum <= enough) {
        sum += sums[++last];
    }
    size_t count = 0;
    for (size_t i = 0; i < nucleus->count; i++) {
        if (octave(heap[i].weight) <= last) {
            heap[count++] = heap[i];
        }
    }
    nucleus->count = count;
}

/* Takes tokens from the heap, the likeliest first, until their share reaches top_p or none is left. */
static int32_t draw_by_weight(
    struct sampler *sampler,
    const struct sampler_request *request,
    const struct sampler_row *row,
    const struct nucleus *nucleus
) {
    struct candidate *heap = sampler->heap;
    size_t count = nucleus->count;
    for (size_t i = count / 2; i-- > 0;) {
        sift_down(heap, count, i);
    }
    struct draw draw = {.at = -1};
    double kept = 0;
    while (count > 0 && (draw.at < 0 || kept < request->sampling->top_p * nucleus->total)) {
        struct candidate taken = heap[0];
        kept += taken.weight;
        draw_consider(&draw, request, row, taken.at);
        heap[0] = heap[--count];
        sift_down(heap, count, 0);
    }
    return draw.at;
}

/* The same without sorting: the winner among all that are left is the draw when those before it do
 * not fill the nucleus; else it and what comes behind are not in it. Few rounds, each over what is
 * left. -1 when the winner lies too near the border for a sum in another order to tell. */
static int32_t draw_by_noise(
    struct sampler *sampler,
    const struct sampler_request *request,
    const struct sampler_row *row,
    const struct nucleus *nucleus
) {
    struct candidate *left = sampler->heap;
    size_t count = nucleus->count;
    double wanted = request->sampling->top_p * nucleus->total;
    int32_t first = row->largest; /* rules most others out; one of those left */
    for (;;) {
        struct draw draw = {.at = -1};
        draw_consider(&draw, request, row, first);
        for (size_t i = 0; i < count; i++) {
            draw_consider(&draw, request, row, left[i].at);
        }
        struct candidate won = {.weight = sampler->weights[draw.at], .at = draw.at};
        double before = 0;
        size_t before_count = 0;
        for (size_t i = 0; i < count; i++) {
            if (comes_before(&left[i], &won)) {
                before += left[i].weight;
                left[before_count++] = left[i];
            }
        }
        if (before < wanted * (1 - NUCLEUS_ROUNDING)) {
            return draw.at;
        }
        if (before <= wanted * (1 + NUCLEUS_ROUNDING)) {
            return -1;
        }
        count = before_count;
        first = left[0].at; /* what fills the nucleus is more than nothing */
    }
}

#define NUCLEUS_SORTED 48 /* candidates that are sorted faster than their noise is drawn */

/* Draws among the most likely tokens whose share reaches top_p and which are likely enough for min_p. */
static int32_t draw_from_top(
    struct sampler *sampler, const struct sampler_request *request, const struct sampler_row *row
) {
    struct nucleus nucleus;
    gather_nucleus(sampler, request->sampling, row, &nucleus);
    if (nucleus.count > NUCLEUS_SORTED) {
        cut_nucleus(sampler, request->sampling->top_p, &nucleus);
    }
    int32_t at = -1;
    if (nucleus.count > NUCLEUS_SORTED) {
        at = draw_by_noise(sampler, request, row, &nucleus);
        if (at < 0) {
            gather_nucleus(sampler, request->sampling, row, &nucleus);
        }
    }
    return at < 0 ? draw_by_weight(sampler, request, row, &nucleus) : at;
}

/* Noise of 2^-53 < u < 1 - 2^-53 lies in (-3.7, 36.8): a token further below the largest than
 * this cannot win, so its noise is not drawn. */
#define GUMBEL_SPAN 41.0

static int32_t draw_from_all(
    const struct sampler *sampler,
    const struct sampler_request *request,
    const struct sampler_row *row
) {
    const struct sampling *sampling = request->sampling;
    double top = (double)row->logits[row->largest];
    double span = GUMBEL_SPAN;
    if (sampling->min_p > 0) {
        /* A little more than where min_p cuts, so that few weights are needed to tell. */
        double cut = 1e-6 - exact_log(sampling->min_p);
        span = cut < span ? cut : span;
    }
    struct draw draw = {.at = -1};
    /* The likeliest first, so that most others are ruled out at once. */
    draw_consider(&draw, request, row, row->largest);
    for (int32_t i = 0; i < row->count; i++) {
        double below = ((double)row->logits[i] - top) / sampling->temperature;
        if (below > -span &&
            (sampling->min_p <= 0 || table_exp(sampler->powers, below) >= sampling->min_p)) {
            draw_consider(&draw, request, row, i);
        }
    }
    return draw.at;
}

/* Index in the row, which may be cut. */
static int32_t draw_index(
    struct sampler *sampler, const struct sampler_request *request, struct sampler_row *row
) {
    const struct sampling *sampling = request->sampling;
    if (sampling->temperature <= 0) {
        return row->largest;
    }
    if (sampling->top_k > 0) {
        sampler_row_keep_largest(sampler, row, sampling->top_k);
    }
    return sampling->top_p < 1 ? draw_from_top(sampler, request, row)
                               : draw_from_all(sampler, request, row);
}

static void report(
    struct sampler *sampler,
    const struct sampler_row *raw,
    int32_t alternatives,
    struct sampled_token *out
) {
    double top = (double)raw->logits[raw->largest];
    double sum = log_sum(sampler, raw);
    out->logprob = (float)((double)raw->logits[out->id] - top - sum);
    if (alternatives > 0) {
        int32_t ids[SAMPLING_ALTERNATIVES_MAX];
        out->alternative_count = sampler_row_largest(sampler, raw, alternatives, ids);
        for (int32_t i = 0; i < out->alternative_count; i++) {
            out->alternatives[i] = (struct token_alternative
            ){.id = ids[i], .logprob = (float)((double)raw->logits[ids[i]] - top - sum)};
        }
    }
}

result sampler_draw(
    struct sampler *sampler,
    const struct sampler_request *request,
    struct sampled_token *out,
    struct error *error
) {
    ASSERT(request->sampling->alternatives <= SAMPLING_ALTERNATIVES_MAX);
    struct sampler_row raw = {.logits = request->logits, .count = sampler->vocabulary};
    if (request->mask == NULL || !request->skips_logprob) {
        TRY(sampler_row_scan(&raw, request->position, error));
    }
    struct sampler_row row = raw;
    TRY(sampler_row_make(sampler, request, &row, error));
    int32_t at = draw_index(sampler, request, &row);
    out->id = sampler_row_id(&row, at);
    out->logprob = 0;
    out->alternative_count = 0;
    if (!request->skips_logprob) {
        report(sampler, &raw, request->sampling->alternatives, out);
    }
    return OK;
}
