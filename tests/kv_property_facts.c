/* What the engine says of a generation, against what it can be. See kv_property.h. */
#include "kv_property.h"

static bool is_source(const struct generation_facts *facts, const char *name) {
    return strcmp(facts->window_source, name) == 0;
}

/* Rows that an exact rebuild of a hit may run at most. */
static int32_t rebuild_bound(const struct world *world, int32_t hit, int32_t prompt) {
    const struct property_model *model = world->model;
    int32_t encoder = hit - model->encoder_layers * (model->window - 1);
    int32_t decoder = prompt - model->layers * (model->window - 1) - 1;
    int32_t start = encoder < decoder ? encoder : decoder;
    return hit - (start < 0 ? 0 : start);
}

static void
check_source(struct world *world, const struct live *live, const struct generation_facts *facts) {
    const struct generation *generation = &live->generation;
    const char *source = facts->window_source;
    bool is_new = generation->is_first;
    bool holds = true;
    if (is_source(facts, "cold")) {
        holds = facts->reused == 0 && facts->rebuilt == 0;
    } else if (is_source(facts, "live")) {
        holds = facts->rebuilt == 0 && !is_new && facts->reused >= 0;
    } else if (is_source(facts, "snapshot")) {
        holds = facts->rebuilt == 0 && facts->reused > 0 && is_new;
    } else if (is_source(facts, "rebuilt")) {
        /* A later one goes on with a rebuild that a cancel had stopped. */
        holds = facts->rebuilt_from < facts->reused;
    } else if (is_source(facts, "replay")) {
        holds = facts->replay_count > 0;
    } else {
        holds = false;
    }
    if (!holds) {
        FAIL_WORLD(
            world,
            "window source \"%s\" with reused %d, rebuilt %d, %d replays, %s generation",
            source,
            facts->reused,
            facts->rebuilt,
            facts->replay_count,
            is_new ? "first" : "later"
        );
    }
}

static void
check_counts(struct world *world, const struct live *live, const struct generation_facts *facts) {
    const struct generation *generation = &live->generation;
    int32_t prompt = generation->prompt_count;
    bool is_whole = generation->reason != FINISH_CANCELLED;
    int32_t done = facts->evaluated + facts->reused;
    /* Of a prompt that was cut the part that was read counts (promise P8). */
    bool holds = facts->prompt_tokens == done && facts->hit_position == facts->reused &&
                 facts->reused >= 0 && facts->evaluated >= 0 && facts->rebuilt >= 0 &&
                 (is_whole ? done == prompt : done <= prompt) &&
                 facts->sampled == generation->count && facts->rebuilt_from >= 0;
    /* A cancelled one may not have come to its hit. */
    int32_t rebuild = facts->reused - facts->rebuilt_from;
    /* Under a contract rows before a replay may run exactly first, and then those of the replay. */
    int32_t again = generation->has_contract && generation->contract_count > 0
                        ? world->model->window * generation->contract_count
                        : 0;
    holds = holds && facts->rebuilt <= rebuild + again && (!is_whole || facts->rebuilt >= rebuild);
    if (generation->is_first) {
        holds =
            holds && facts->reused < prompt &&
            (facts->reused % 2 == 0 || facts->rebuilt_from == facts->reused); /* from a snapshot */
    }
    int32_t restored = facts->restored_host + facts->restored_disk;
    holds = holds && facts->restored_host >= 0 && facts->restored_disk >= 0 &&
            restored <= facts->reused;
    /* A contract's decoder replay may need encoder rows from further back. */
    int32_t bound = generation->has_contract || !generation->is_first
                        ? facts->reused
                        : rebuild_bound(world, facts->reused, prompt);
    holds = holds && facts->reused - facts->rebuilt_from <= bound && facts->miss != NULL &&
            facts->miss_token >= 0 && facts->miss_token <= prompt;
    if (!holds) {
        FAIL_WORLD(
            world,
            "counts do not reconcile: prompt %d (told %d), reused %d, evaluated %d, hit %d, "
            "rebuilt %d "
            "from %d (at most %d), sampled %d (told %d), restored %d host %d disk, miss %s at %d",
            prompt,
            facts->prompt_tokens,
            facts->reused,
            facts->evaluated,
            facts->hit_position,
            facts->rebuilt,
            facts->rebuilt_from,
            bound,
            generation->count,
            facts->sampled,
            facts->restored_host,
            facts->restored_disk,
            facts->miss == NULL ? "null" : facts->miss,
            facts->miss_token
        );
    }
}

static void
check_lineage(struct world *world, const struct live *live, const struct generation_facts *facts) {
    int32_t encoders = 0;
    int32_t decoders = 0;
    for (int32_t i = 0; i < facts->replay_count; i++) {
        const struct window_replay *replay = &facts->replays[i];
        encoders += replay->kind == WINDOW_REPLAY_ENCODER;
        decoders += replay->kind == WINDOW_REPLAY_DECODER;
        if (replay->position < 1 || replay->position > live->count) {
            FAIL_WORLD(world, "a replay at %d of %d tokens", replay->position, live->count);
        }
    }
    if (live->is_exact && facts->replay_count != 0) {
        FAIL_WORLD(world, "an exact generation depends on %d replays", facts->replay_count);
    }
    bool is_root = strcmp(facts->block_lineage, world->info.root_lineage) == 0;
    if (strcmp(facts->lineage, world->info.root_lineage) != 0 || is_root != (encoders == 0) ||
        (strcmp(facts->decoder_lineage, "0") == 0) != (decoders == 0)) {
        FAIL_WORLD(
            world,
            "lineage %.8s (root %.8s), blocks %.8s, decoder %.8s with %d encoder and %d decoder "
            "replays",
            facts->lineage,
            world->info.root_lineage,
            facts->block_lineage,
            facts->decoder_lineage,
            encoders,
            decoders
        );
    }
    const struct generation *generation = &live->generation;
    if (generation->has_contract &&
        (facts->replay_count != generation->contract_count ||
         (facts->replay_count > 0 && memcmp(
                                         facts->replays,
                                         generation->contract,
                                         (size_t)facts->replay_count * sizeof *facts->replays
                                     ) != 0))) {
        FAIL_WORLD(
            world,
            "%d replays under a contract of %d",
            facts->replay_count,
            generation->contract_count
        );
    }
}

/* Without pressure a hit reaches at least the whole blocks that this engine has computed before. */
static void check_least_hit(
    struct world *world, const struct live *live, const struct generation_facts *facts
) {
    const struct generation *generation = &live->generation;
    struct engine_cache_status status;
    engine_cache_status(world->engine, &status);
    if (!generation->is_first || status.blocks_evicted > 0 || status.blocks_expired > 0 ||
        status.lookups == 0) {
        return;
    }
    *cover(world, COVERAGE_LEAST_HITS_CHECKED) += generation->least_hit > 0;
    if (facts->reused < generation->least_hit) {
        FAIL_WORLD(
            world,
            "reused %d of %d tokens though %d were computed before and nothing was evicted (miss "
            "%s "
            "at %d)",
            facts->reused,
            generation->prompt_count,
            generation->least_hit,
            facts->miss,
            facts->miss_token
        );
    }
}

static void
count_facts(struct world *world, const struct live *live, const struct generation_facts *facts) {
    const struct generation *generation = &live->generation;
    *cover(world, COVERAGE_GENERATIONS) += 1;
    *cover(world, COVERAGE_SAMPLED) += generation->count;
    *cover(world, COVERAGE_COLD) += is_source(facts, "cold");
    *cover(world, COVERAGE_LIVE) += is_source(facts, "live");
    *cover(world, COVERAGE_CONTRACTS) += generation->has_contract && generation->contract_count > 0;
    if (generation->is_first && facts->reused > 0) {
        *cover(world, COVERAGE_HITS) += 1;
        *cover(world, COVERAGE_WHOLE_HITS) += facts->reused % 128 == 0;
        *cover(world, COVERAGE_INNER_HITS) += facts->reused % 128 != 0;
        *cover(world, COVERAGE_ODD_HITS) += facts->reused % 2;
        *cover(world, COVERAGE_SNAPSHOT_HITS) += is_source(facts, "snapshot");
        *cover(world, COVERAGE_REBUILDS) += is_source(facts, "rebuilt");
        *cover(world, COVERAGE_PARTIAL_REBUILDS) +=
            is_source(facts, "rebuilt") && facts->rebuilt_from > 0;
        *cover(world, COVERAGE_HOST_RESTORES) += facts->restored_host > 0;
        *cover(world, COVERAGE_DISK_RESTORES) += facts->restored_disk > 0;
    }
    for (int32_t i = 0; i < facts->replay_count; i++) {
        bool is_encoder = facts->replays[i].kind == WINDOW_REPLAY_ENCODER;
        *cover(world, COVERAGE_ENCODER_REPLAYS) += is_encoder;
        *cover(world, COVERAGE_DECODER_REPLAYS) += !is_encoder;
    }
}

void world_check_facts(struct world *world, const struct live *live) {
    const struct generation *generation = &live->generation;
    const struct generation_facts *facts = &generation->facts;
    check_counts(world, live, facts);
    check_source(world, live, facts);
    check_lineage(world, live, facts);
    if (!generation->has_contract && generation->window == WINDOW_EXACT && live->is_exact) {
        check_least_hit(world, live, facts);
    }
    count_facts(world, live, facts);
}
