/* The definition of a draw, step by step with libm and a full sort. See sampling_support.h. */
#include "sampling_support.h"

#include <math.h>

uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 32);
}

double next_uniform(uint64_t *state) {
    return (double)next_random(state) * 0x1p-32;
}

static int32_t count_id(const int32_t *ids, int32_t count, int32_t id) {
    int32_t times = 0;
    for (int32_t i = 0; i < count; i++) {
        times += ids[i] == id;
    }
    return times;
}

static float
adjust(const struct sampler_request *request, const struct naive_history *history, int32_t id) {
    const struct sampling *sampling = request->sampling;
    float logit = request->logits[id];
    for (int32_t i = 0; i < sampling->bias_count; i++) {
        if (sampling->bias[i].id == id) {
            logit = (float)((double)logit + (double)sampling->bias[i].bias);
        }
    }
    int32_t sampled = count_id(history->sampled, history->sampled_count, id);
    if (sampled + count_id(history->prompt, history->prompt_count, id) > 0) {
        double penalty = sampling->repetition_penalty == 0 ? 1 : sampling->repetition_penalty;
        double value = (double)logit;
        value = value < 0 ? value * penalty : value / penalty;
        if (sampled > 0) {
            value = value - sampling->presence_penalty - sampling->frequency_penalty * sampled;
        }
        logit = (float)value;
    }
    return logit;
}

/* Order of likelihood: falling logits, then rising ids. */
static void sort_ids(const float *logits, int32_t *ids, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        int32_t id = ids[i];
        int32_t at = i;
        for (; at > 0 && logits[ids[at - 1]] < logits[id]; at--) {
            ids[at] = ids[at - 1];
        }
        ids[at] = id;
    }
}

bool naive_probabilities(
    const struct sampler_request *request,
    const struct naive_history *history,
    int32_t vocabulary,
    double *probabilities,
    float *adjusted
) {
    const struct sampling *sampling = request->sampling;
    float logits[NAIVE_MAX];
    int32_t ids[NAIVE_MAX];
    double weights[NAIVE_MAX];
    int32_t count = 0;
    ASSERT(vocabulary <= NAIVE_MAX);
    for (int32_t id = 0; id < vocabulary; id++) {
        logits[id] = adjust(request, history, id);
        probabilities[id] = 0;
        bool is_allowed = request->mask == NULL || (request->mask[id / 64] >> (id % 64) & 1) != 0;
        if (is_allowed && logits[id] > -HUGE_VALF) {
            ids[count++] = id;
        }
    }
    if (adjusted != NULL) {
        memcpy(adjusted, logits, (size_t)vocabulary * sizeof *logits);
    }
    if (count == 0) {
        return false;
    }
    sort_ids(logits, ids, count);
    if (sampling->temperature <= 0) {
        probabilities[ids[0]] = 1;
        return true;
    }
    if (sampling->top_k > 0 && sampling->top_k < count) {
        count = sampling->top_k;
    }
    double total = 0;
    for (int32_t i = 0; i < count; i++) {
        double below = (double)logits[ids[i]] - (double)logits[ids[0]];
        weights[i] = exp(below / sampling->temperature);
        total += weights[i];
    }
    double kept = 0;
    int32_t left = 0;
    while (left < count && (left == 0 || kept < sampling->top_p * total)) {
        kept += weights[left++];
    }
    while (left > 1 && weights[left - 1] < sampling->min_p * weights[0]) {
        left--;
    }
    total = 0;
    for (int32_t i = 0; i < left; i++) {
        total += weights[i];
    }
    for (int32_t i = 0; i < left; i++) {
        probabilities[ids[i]] = weights[i] / total;
    }
    return true;
}

int32_t naive_draw(
    const struct sampler_request *request, const struct naive_history *history, int32_t vocabulary
) {
    double probabilities[NAIVE_MAX];
    float logits[NAIVE_MAX];
    if (!naive_probabilities(request, history, vocabulary, probabilities, logits)) {
        return -1;
    }
    int32_t best = -1;
    double best_value = 0;
    for (int32_t id = 0; id < vocabulary; id++) {
        if (probabilities[id] <= 0) {
            continue;
        }
        double value = request->sampling->temperature <= 0
                           ? 0
                           : (double)logits[id] / request->sampling->temperature +
                                 sampler_gumbel(request->sampling->seed, request->position, id);
        if (best < 0 || value > best_value) {
            best = id;
            best_value = value;
        }
    }
    return best;
}
