/* The row of logits a token is drawn from: checks, mask, bias, penalties, the k largest. */
#include "sampler_internal.h"

#include <float.h>
#include <math.h>

/* ---- the largest, and what no logit may be ---- */

#define LANES 16 /* independent, so that the compiler can use vectors */

static MUST_CHECK result
refuse_logits(const struct sampler_row *row, int32_t position, struct error *error) {
    int32_t wrong = 0;
    int32_t first = -1;
    for (int32_t i = 0; i < row->count; i++) {
        if (!(row->logits[i] < HUGE_VALF)) {
            wrong++;
            first = first < 0 ? sampler_row_id(row, i) : first;
        }
    }
    FAIL(
        error,
        DEVICE,
        "logits of position %d: %d not finite, first at id %d",
        position,
        wrong,
        first
    );
}

result sampler_row_scan(struct sampler_row *row, int32_t position, struct error *error) {
    const float *logits = row->logits;
    int32_t whole = row->count - row->count % LANES;
    float best[LANES];
    int32_t wrong[LANES];
    for (int32_t lane = 0; lane < LANES; lane++) {
        best[lane] = -HUGE_VALF;
        wrong[lane] = 0;
    }
    for (int32_t i = 0; i < whole; i += LANES) {
        for (int32_t lane = 0; lane < LANES; lane++) {
            float x = logits[i + lane];
            best[lane] = x > best[lane] ? x : best[lane];
            wrong[lane] |= !(x < HUGE_VALF);
        }
    }
    for (int32_t i = whole; i < row->count; i++) {
        best[0] = logits[i] > best[0] ? logits[i] : best[0];
        wrong[0] |= !(logits[i] < HUGE_VALF);
    }
    for (int32_t lane = 1; lane < LANES; lane++) {
        best[0] = best[lane] > best[0] ? best[lane] : best[0];
        wrong[0] |= wrong[lane];
    }
    if (wrong[0] != 0) {
        return refuse_logits(row, position, error);
    }
    int32_t at = 0;
    while (logits[at] < best[0]) {
        at++;
    }
    row->largest = at;
    return OK;
}

/* ---- mask ---- */

/* Gathers what the mask allows: words without a bit cost one comparison for 64 ids. */
static void gather_allowed(
    struct sampler *sampler, const struct sampler_request *request, struct sampler_row *row
) {
    int32_t vocabulary = sampler->vocabulary;
    int32_t count = 0;
    for (int32_t base = 0; base < vocabulary; base += 64) {
        uint64_t word = request->mask[base / 64];
        if (vocabulary - base < 64) {
            word &= ((uint64_t)1 << (vocabulary - base)) - 1;
        }
        for (; word != 0; word &= word - 1) {
            int32_t id = base + __builtin_ctzll(word);
            sampler->logits[count] = request->logits[id];
            sampler->ids[count++] = id;
        }
    }
    *row = (struct sampler_row){.logits = sampler->logits, .ids = sampler->ids, .count = count};
}

/* ---- bias and penalties ---- */

/* The token's logit in the sampler's row, null when the mask leaves it out. */
static float *find_logit(struct sampler *sampler, const struct sampler_row *row, int32_t id) {
    if (row->ids == NULL) {
        return &sampler->logits[id];
    }
    int32_t low = 0;
    int32_t high = row->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (row->ids[middle] < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < row->count && row->ids[low] == id ? &sampler->logits[low] : NULL;
}

/* FP32, rounded once; what is finite stays so. */
static float to_logit(double value) {
    if (fabs(value) < (double)FLT_MAX || isinf(value)) {
        return (float)value;
    }
    return value < 0 ? -FLT_MAX : FLT_MAX;
}

static void
add_bias(struct sampler *sampler, const struct sampling *sampling, const struct sampler_row *row) {
    for (int32_t i = 0; i < sampling->bias_count; i++) {
        float *logit = find_logit(sampler, row, sampling->bias[i].id);
        if (logit != NULL) {
            *logit = to_logit((double)*logit + (double)sampling->bias[i].bias);
        }
    }
}

static void penalise(
    struct sampler *sampler, const struct sampler_request *request, const struct sampler_row *row
) {
    const struct sampling *sampling = request->sampling;
    double repetition = sampling->repetition_penalty == 0 ? 1 : sampling->repetition_penalty;
    int32_t count = 0;
    const struct sampler_history_entry *entries = sampler_history_entries(request->history, &count);
    for (int32_t i = 0; i < count; i++) {
        float *logit = find_logit(sampler, row, entries[i].id);
        if (logit == NULL) {
            continue;
        }
        double value = (double)*logit;
        value = value < 0 ? value * repetition : value / repetition;
        if (entries[i].sampled > 0) {
            value -= sampling->presence_penalty;
            value -= sampling->frequency_penalty * entries[i].sampled;
        }
        *logit = to_logit(value);
    }
}

static MUST_CHECK result refuse_row(
    const struct sampler_request *request, const struct sampler_row *row, struct error *error
) {
    if (request->mask != NULL) {
        FAIL(
            error,
            INVALID_INPUT,
            "no token is left at position %d: the mask allows %d, none with a logit above "
            "-infinity",
            request->position,
            row->count
        );
    }
    FAIL(
        error,
        INVALID_INPUT,
        "no token is left at position %d: all %d logits are -infinity, with a bias on %d tokens",
        request->position,
        row->count,
        request->sampling->bias_count
    );
}

result sampler_row_make(
    struct sampler *sampler,
    const struct sampler_request *request,
    struct sampler_row *row,
    struct error *error
) {
    const struct sampling *sampling = request->sampling;
    bool has_penalties = request->history != NULL && sampling_has_penalties(sampling);
    bool is_changed = sampling->bias_count > 0 || has_penalties;
    if (request->mask != NULL) {
        gather_allowed(sampler, request, row);
        if (row->count == 0) {
            return refuse_row(request, row, error);
        }
        /* Before bias hides what is wrong. */
        TRY(sampler_row_scan(row, request->position, error));
    } else if (is_changed) {
        memcpy(sampler->logits, request->logits, (size_t)row->count * sizeof *sampler->logits);
        row->logits = sampler->logits;
    }
    if (is_changed) {
        add_bias(sampler, sampling, row);
        if (has_penalties) {
            penalise(sampler, request, row);
        }
        TRY(sampler_row_scan(row, request->position, error));
    }
    if (row->logits[row->largest] == -HUGE_VALF) {
        return refuse_row(request, row, error);
    }
    return OK;
}

/* ---- the k largest ---- */

/* Whole numbers in the order of the logits; both zeros are one. */
static uint32_t order_key(float logit) {
    float value = logit + 0.0F;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000U;
}

/* What belongs to the k largest: keys of `above` or more, and the first `ties` of key `tie`. */
struct cut {
    uint64_t above;
    uint32_t tie;
    int32_t ties;
};

/* Selection by digits of the key: three passes at most, whatever the logits are. */
static struct cut find_cut(struct sampler *sampler, const struct sampler_row *row, int32_t k) {
    static const int shifts[] = {32 - SELECT_BITS, 32 - 2 * SELECT_BITS, 0};
    uint32_t prefix = 0; /* digits known of the k-th largest key */
    int known = 32;      /* bits of the key below those digits */
    uint32_t left = (uint32_t)k;
    for (size_t pass = 0; pass < COUNT_OF(shifts); pass++) {
        int shift = shifts[pass];
        uint32_t digits = ((uint32_t)1 << (known - shift)) - 1;
        memset(sampler->counts, 0, sizeof sampler->counts);
        for (int32_t i = 0; i < row->count; i++) {
            uint32_t key = order_key(row->logits[i]);
            if (pass == 0 || key >> known == prefix) {
                sampler->counts[key >> shift & digits]++;
            }
        }
        uint32_t digit = digits;
        while (sampler->counts[digit] < left) {
            left -= sampler->counts[digit--];
        }
        prefix = prefix << (known - shift) | digit;
        known = shift;
        if (sampler->counts[digit] == left) {
            return (struct cut){.above = (uint64_t)prefix << shift};
        }
    }
    return (struct cut){.above = (uint64_t)prefix + 1, .tie = prefix, .ties = (int32_t)left};
}

static bool cut_takes(struct cut *cut, float logit) {
    uint32_t key = order_key(logit);
    return key >= cut->above || (key == cut->tie && cut->ties > 0 && cut->ties-- > 0);
}

void sampler_row_keep_largest(struct sampler *sampler, struct sampler_row *row, int32_t k) {
    ASSERT(k > 0);
    if (k >= row->count) {
        return;
    }
    struct cut cut = find_cut(sampler, row, k);
    int32_t count = 0;
    int32_t largest = 0;
    /* In place where the row lies in the sampler already: never ahead of what is read. */
    for (int32_t i = 0; i < row->count && count < k; i++) {
        if (cut_takes(&cut, row->logits[i])) {
            largest = i == row->largest ? count : largest;
            sampler->ids[count] = sampler_row_id(row, i);
            sampler->logits[count++] = row->logits[i];
        }
    }
    *row = (struct sampler_row){sampler->logits, sampler->ids, count, largest};
}

int32_t sampler_row_largest(
    struct sampler *sampler, const struct sampler_row *row, int32_t k, int32_t *indices
) {
    k = k < row->count ? k : row->count;
    struct cut cut = find_cut(sampler, row, k);
    int32_t count = 0;
    for (int32_t i = 0, taken = 0; i < row->count && taken < k; i++) {
        if (!cut_takes(&cut, row->logits[i])) {
            continue;
        }
        taken++;
        if (row->logits[i] == -HUGE_VALF) {
            continue;
        }
        /* Sorts it in: behind all that are no smaller. */
        int32_t at = count++;
        for (; at > 0 && row->logits[indices[at - 1]] < row->logits[i]; at--) {
            indices[at] = indices[at - 1];
        }
        indices[at] = i;
    }
    return count;
}
