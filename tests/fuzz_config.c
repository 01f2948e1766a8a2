/* Any text as config.json: what is accepted is a plan that the forward pass can follow. */
#include "engine/draft.h"
#include "engine/weights.h"

#define VISITS_MAX 20000 /* a configuration may ask for millions of tensors */

static void check_draft(const struct model_config *c) {
    for (int32_t l = c->layers; l < c->layers + c->draft_layers; l++) {
        const struct layer_plan *plan = &c->plan[l];
        ASSERT(plan->mode == LAYER_WINDOW && plan->ratio == 0 && !plan->compress_rope);
        ASSERT(plan->source == -1 && plan->select_layer == -1 && plan->engram == -1);
    }
    if (c->draft_layers > 0) {
        ASSERT(c->draft_block >= 1 && c->draft_block <= DRAFT_BLOCK_MAX);
        ASSERT(c->draft_markov_rank % 32 == 0);
        ASSERT(c->draft_experts_chosen <= c->draft_experts);
        ASSERT(c->draft_noise_id < c->vocabulary);
        ASSERT(c->draft_target_count > 0);
    }
    for (int32_t i = 0; i < c->draft_target_count; i++) {
        ASSERT(c->draft_targets[i] < c->layers);
        ASSERT(c->draft_targets[i] > (i == 0 ? -1 : c->draft_targets[i - 1]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static result visit(void *context, const struct tensor_role *role, struct error *error) {
    int *visits = context;
    uint64_t count = 1;
    for (uint32_t i = 0; i < role->rank; i++) {
        ASSERT(role->shape[i] > 0);
        ASSERT(!__builtin_mul_overflow(count, role->shape[i], &count));
    }
    *visits += 1;
    if (*visits == VISITS_MAX) {
        FAIL(error, LIMIT, "enough");
    }
    return OK;
}

static void check_layer(const struct model_config *c, int32_t l) {
    const struct layer_plan *plan = &c->plan[l];
    ASSERT(plan->ratio >= 0 && plan->ratio <= 2);
    ASSERT((plan->mode == LAYER_WINDOW) == (plan->ratio == 0));
    ASSERT(model_rows_needed(c, l) >= 1);
    if (plan->mode == LAYER_WINDOW) {
        ASSERT(plan->source == -1 && plan->select_layer == -1);
        return;
    }
    ASSERT(plan->source >= 0 && plan->source < c->kv_source_count);
    int32_t source = c->kv_source_layers[plan->source];
    ASSERT(source <= l && c->plan[source].mode == LAYER_FULL);
    ASSERT(c->plan[source].ratio == plan->ratio);
    ASSERT(plan->select_layer >= source && plan->select_layer <= l);
    ASSERT((plan->mode == LAYER_REUSE) == (plan->select_layer != l));
    ASSERT(plan->decoder == (source == c->encoder_layers));
    ASSERT(!plan->within_pool || c->candidate_layer >= source);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_config config;
    struct error error;
    result parsed = model_config_parse(view_of(data, size), &config, &error);
    if (is_failed(parsed)) {
        ASSERT(error.message[0] != '\0');
        return 0;
    }
    for (int32_t l = 0; l < config.layers; l++) {
        check_layer(&config, l);
    }
    check_draft(&config);
    int visits = 0;
    result walked = weights_walk(&config, NULL, visit, &visits, &error);
    ASSERT(is_ok(walked) || walked.code == RESULT_LIMIT);
    return 0;
}
