/* One property test of the KV store (promise P2): seeded random trees of prompts, forks, chunk
 * sizes, cancels, evictions at every tier, restarts, snapshots and replays; every generation has the
 * bits of a cold run, which performs the recorded replays when there are some. See kv_property.h.
 *
 * HEARTH_PROPERTY_SEED=N runs one seed of every model, HEARTH_PROPERTY_SECONDS=S goes on with new
 * seeds for S seconds each, HEARTH_PROPERTY_MODEL=mini picks one model. A failure prints its seed and
 * the steps that it needs. */
#include "forward_support.h"
#include "kv_property.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SLOW true
#else
#define IS_SLOW false
#endif

#define STEPS_MAX       40
#define SHRINK_SECONDS  60
#define PRINTED_MAX     ((size_t)1 << 20)
#define VOCABULARY_LOW  20
#define VOCABULARY_HIGH 1020 /* of the smallest model, special ids left out */

static const struct property_model models[] = {
    {"golden/tiny-a", 16, 5, 10, IS_SLOW ? 420 : 700},
    {"golden/tiny-b", 32, 8, 12, 900},
    {"mini", 64, 6, 10, 1500},
};

struct scenario {
    const struct property_model *model;
    uint64_t seed;
    int32_t steps;
    bool skipped[STEPS_MAX];
};

/* ---- prompts -------------------------------------------------------------------------------- */

static int32_t random_id(struct random *random) {
    return random_range(random, VOCABULARY_LOW, VOCABULARY_HIGH);
}

/* Where a prompt leaves the text it branches off: everywhere, and near the borders of blocks. */
static int32_t random_cut(struct random *random, int32_t count) {
    int32_t cut = 0;
    switch (random_range(random, 0, 4)) {
    case 0:
        cut = count;
        break;
    case 1:
        cut = random_range(random, 0, count / 128) * 128 + random_range(random, -2, 2);
        break;
    case 2:
        cut = count - random_range(random, 0, count < 20 ? count : 20);
        break;
    default:
        cut = random_range(random, 0, count);
        break;
    }
    return cut < 0 ? 0 : cut > count ? count : cut;
}

static int32_t random_extra(struct random *random) {
    switch (random_range(random, 0, 3)) {
    case 0:
        return random_range(random, 1, 3);
    case 1:
        return random_range(random, 100, 260);
    default:
        return random_range(random, 1, 60);
    }
}

/* A prompt of a new sequence; returns its length. */
static int32_t make_prompt(struct world *world, struct random *random, int32_t *ids) {
    int32_t room = world->model->context - PROPERTY_SAMPLES_MAX - 1;
    int32_t count = 0;
    if (world->text_count > 0 && random_chance(random, 92)) {
        const struct text *text = &world->texts[random_range(random, 0, world->text_count - 1)];
        count = random_cut(random, text->count);
        count = count > room ? room : count;
        memcpy(ids, text->ids, (size_t)count * sizeof *ids);
        world_say(world, " %d of text %d", count, (int)(text - world->texts));
    }
    bool has_extra = count == 0 || random_chance(random, 80);
    int32_t extra = has_extra ? random_extra(random) : 0;
    extra = extra > room - count ? room - count : extra;
    for (int32_t i = 0; i < extra; i++) {
        ids[count++] = random_id(random);
    }
    world_say(world, " + %d new", extra);
    return count;
}

/* A text that nobody computed yet: prompts grow from it. */
static void add_trunk(struct world *world, struct random *random) {
    struct text *text = &world->texts[world->text_next];
    world->text_next = (world->text_next + 1) % PROPERTY_TEXTS;
    world->text_count += world->text_count < PROPERTY_TEXTS;
    int32_t context = world->model->context;
    text->computed = 0;
    text->has_record = false;
    text->count = random_range(random, context / 2, context - PROPERTY_SAMPLES_MAX - 40);
    for (int32_t i = 0; i < text->count; i++) {
        text->ids[i] = random_id(random);
    }
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int32_t count_lives(const struct world *world) {
    int32_t count = 0;
    for (int i = 0; i < PROPERTY_SEQUENCES_MAX; i++) {
        count += world->lives[i].used;
    }
    return count;
}

static bool has_room(const struct world *world) {
    return count_lives(world) < world->sequences_max;
}

/* A sequence that is not busy, or null. */
static struct live *random_live(struct world *world, struct random *random, bool must_have_tokens) {
    struct live *found[PROPERTY_SEQUENCES_MAX];
    int32_t count = 0;
    for (int i = 0; i < PROPERTY_SEQUENCES_MAX; i++) {
        struct live *live = &world->lives[i];
        if (live->used && !live->generation.is_running && (live->count > 0 || !must_have_tokens)) {
            found[count++] = live;
        }
    }
    return count == 0 ? NULL : found[random_range(random, 0, count - 1)];
}

static void draw_generation(struct world *world, struct random *random, struct live *live) {
    struct generation *generation = &live->generation;
    generation->tokens_max =
        random_chance(random, 15) ? 0 : random_range(random, 1, PROPERTY_SAMPLES_MAX);
    generation->sampling = (struct sampling){
        .temperature = random_chance(random, 30) ? 0 : 0.9,
        .top_p = 0.95,
        .seed = random_next(random),
    };
    bool is_replay = world->has_replays && random_chance(random, 65);
    generation->window = is_replay ? WINDOW_REPLAY : WINDOW_EXACT;
    generation->has_contract = false;
    generation->contract_count = 0;
    generation->cancel_after = random_chance(random, 12) ? random_range(random, 0, 4) : -1;
    world_say(world, ", %d tokens%s", generation->tokens_max, is_replay ? ", replay" : "");
    if (generation->cancel_after >= 0) {
        world_say(world, ", cancelled after %d events", generation->cancel_after);
    }
}

static int number_of(const struct world *world, const struct live *live) {
    return (int)(live - world->lives);
}

/* A new sequence with a prompt off the tree. */
static void start_new(struct world *world, struct random *random) {
    if (!has_room(world)) {
        return;
    }
    int32_t ids[PROPERTY_CONTEXT_MAX];
    struct live *live = world_create(world);
    if (live == NULL) {
        return;
    }
    world_say(world, "; sequence %d:", number_of(world, live));
    int32_t count = make_prompt(world, random, ids);
    draw_generation(world, random, live);
    (void)world_start(world, live, ids, count);
}

/* A live sequence goes on. */
static void start_append(struct world *world, struct random *random, struct live *live) {
    int32_t ids[PROPERTY_CONTEXT_MAX];
    int32_t room = world->model->context - PROPERTY_SAMPLES_MAX - 1 - live->count;
    if (room < 1) {
        return;
    }
    int32_t count = random_extra(random);
    count = count > room ? room : count;
    for (int32_t i = 0; i < count; i++) {
        ids[i] = random_id(random);
    }
    world_say(world, "; sequence %d of %d: + %d", number_of(world, live), live->count, count);
    draw_generation(world, random, live);
    (void)world_start(world, live, ids, count);
}

static void start_fork(struct world *world, struct random *random) {
    struct live *parent = random_live(world, random, true);
    if (parent == NULL || !has_room(world)) {
        return;
    }
    struct live *child = world_fork(world, parent);
    if (child == NULL) {
        return;
    }
    *cover(world, COVERAGE_FORKS) += 1;
    *cover(world, COVERAGE_INNER_FORKS) += parent->count % 2 == 1;
    world_say(
        world,
        "; sequence %d: fork of %d at %d",
        number_of(world, child),
        number_of(world, parent),
        parent->count
    );
    start_append(world, random, child);
    if (random_chance(random, 50)) {
        start_append(world, random, parent);
    }
}

/* A recorded generation again, by its contract. */
static void start_contract(struct world *world, struct random *random) {
    if (!has_room(world) || world->text_count == 0) {
        return;
    }
    const struct text *text = &world->texts[random_range(random, 0, world->text_count - 1)];
    if (!text->has_record) {
        return;
    }
    struct live *live = world_create(world);
    if (live == NULL) {
        return;
    }
    const struct generation_facts *facts = &text->record.facts;
    struct generation *generation = &live->generation;
    *generation = text->record;
    generation->is_first = true;
    generation->has_contract = true;
    generation->window = WINDOW_EXACT;
    generation->cancel_after = -1;
    generation->contract_count = facts->replay_count;
    memcpy(generation->contract, facts->replays, sizeof facts->replays);
    world_say(
        world,
        "; sequence %d: %d of text %d by contract of %d replays",
        number_of(world, live),
        text->prompt_count,
        (int)(text - world->texts),
        facts->replay_count
    );
    (void)world_start(world, live, text->ids, text->prompt_count);
}

static void tell(struct world *world, struct random *random, const struct live *live) {
    static const char *const names[] = {"waiting", "finished", "abandoned"};
    static const enum sequence_event events[] = {
        SEQUENCE_WAITING, SEQUENCE_FINISHED, SEQUENCE_ABANDONED};
    int32_t kind = random_range(random, 0, 2);
    int64_t estimate = random_chance(random, 50) ? 0 : random_range(random, 1, 100000);
    world_say(world, "; tell %d: %s", number_of(world, live), names[kind]);
    engine_sequence_tell(world->engine, live->id, events[kind], estimate);
}

/* A context ends and comes back as a new sequence, with or without its last token, and goes on. */
static void start_return(struct world *world, struct random *random) {
    int32_t ids[PROPERTY_CONTEXT_MAX];
    struct live *old = random_live(world, random, true);
    int32_t room = world->model->context - PROPERTY_SAMPLES_MAX - 1;
    if (old == NULL || old->count >= room) {
        return;
    }
    int32_t count = old->count - (random_chance(random, 30) ? random_range(random, 0, 3) : 0);
    count = count < 1 ? 1 : count;
    memcpy(ids, old->ids, (size_t)count * sizeof *ids);
    if (random_chance(random, 40)) {
        tell(world, random, old);
    }
    world_destroy(world, old);
    int32_t extra = random_extra(random);
    extra = extra > room - count ? room - count : extra;
    for (int32_t i = 0; i < extra; i++) {
        ids[count + i] = random_id(random);
    }
    struct live *live = world_create(world);
    if (live == NULL) {
        return;
    }
    world_say(
        world,
        "; destroy %d, sequence %d: %d of it + %d new",
        number_of(world, old),
        number_of(world, live),
        count,
        extra
    );
    draw_generation(world, random, live);
    (void)world_start(world, live, ids, count + extra);
}

static void start_any(struct world *world, struct random *random) {
    int32_t kind = random_range(random, 0, 11);
    struct live *live = random_live(world, random, true);
    if (kind < 4 || live == NULL) {
        start_new(world, random);
    } else if (kind < 6) {
        start_append(world, random, live);
    } else if (kind < 8) {
        start_fork(world, random);
    } else if (kind < 10) {
        start_return(world, random);
    } else {
        start_contract(world, random);
    }
}

static void destroy_some(struct world *world, struct random *random) {
    struct live *live = random_live(world, random, false);
    if (live == NULL) {
        return;
    }
    if (random_chance(random, 60)) {
        tell(world, random, live);
    }
    world_say(world, "; destroy %d", number_of(world, live));
    world_destroy(world, live);
}

static void drop(struct world *world, struct random *random) {
    static const char *const names[] = {"tree", "snapshots", "host pool", "disk"};
    static const enum cache_tier tiers[] = {
        CACHE_TIER_TREE, CACHE_TIER_SNAPSHOTS, CACHE_TIER_HOST, CACHE_TIER_DISK};
    /* The disk seldom: what is there for the next run is wanted. */
    int32_t tier = random_chance(random, 90) ? random_range(random, 0, 2) : 3;
    if (world->has_host && random_chance(random, 70)) {
        tier = 0; /* what is evicted goes to the host pool */
    }
    int32_t blocks = random_chance(random, 50) ? 0 : random_range(random, 1, 4);
    world_say(world, "; drop %d of %s", blocks, names[tier]);
    engine_cache_drop(world->engine, tiers[tier], blocks);
    *cover(world, COVERAGE_DROPS) += 1;
    if (tier == 0) {
        for (int i = 0; i < PROPERTY_TEXTS; i++) {
            world->texts[i].computed = 0;
        }
    }
}

static void restart(struct world *world, struct random *random) {
    for (int i = 0; i < PROPERTY_SEQUENCES_MAX; i++) {
        struct live *live = &world->lives[i];
        if (live->used && random_chance(random, 50)) {
            tell(world, random, live);
        }
    }
    if (random_chance(random, 70)) {
        engine_cache_flush(world->engine);
        world_say(world, "; flush");
    }
    world_close(world);
    world_say(world, "; close; ");
    world_open(world, random);
    *cover(world, COVERAGE_RESTARTS) += 1;
}

static void pass_time(struct world *world, struct random *random) {
    static const int64_t times[] = {1500, 11 * 60000, 7200000, 80 * 3600000LL};
    int64_t time = times[random_range(random, 0, (int32_t)COUNT_OF(times) - 1)];
    if (!world->has_clock) {
        return;
    }
    world_say(world, "; %lld s pass", (long long)time / 1000);
    atomic_fetch_add(&world->clock_offset_ms, time);
    for (int i = 0; i < PROPERTY_TEXTS; i++) {
        world->texts[i].computed = 0;
    }
}

static void run_step(struct world *world, struct random *random) {
    int32_t kind = random_range(random, 0, 99);
    if (kind < 62) {
        if (!has_room(world) && random_chance(random, 60)) {
            destroy_some(world, random);
        }
        start_any(world, random);
        while (random_chance(random, 25)) {
            start_any(world, random);
        }
    } else if (kind < 72) {
        destroy_some(world, random);
    } else if (kind < 84) {
        drop(world, random);
    } else if (kind < 88) {
        struct live *live = random_live(world, random, false);
        if (live != NULL) {
            tell(world, random, live);
        }
    } else if (kind < 91) {
        world_say(world, "; flush");
        engine_cache_flush(world->engine);
    } else if (kind < 95) {
        pass_time(world, random);
    } else {
        restart(world, random);
    }
    if (!world_has_failed(world)) {
        world_finish(world);
    }
}

/* ---- scenarios ------------------------------------------------------------------------------ */

static int remove_one(const char *path, const struct stat *status, int flag, struct FTW *where) {
    (void)status;
    (void)flag;
    (void)where;
    return remove(path);
}

static struct random random_of(const struct scenario *scenario, int32_t step) {
    uint64_t model = (uint64_t)scenario->model->context;
    struct random random = {
        (scenario->seed << 16 ^ model) * UINT64_C(0x2545f4914f6cdd1d) + (uint64_t)(step + 2)};
    random.state = random_next(&random);
    return random;
}

static void log_step(struct world *world, int32_t step) {
    const char *text = world->step_text;
    text += strncmp(text, "; ", 2) == 0 ? 2 : 0;
    result_ignore(buffer_append_format(&world->log, NULL, "  %2d  %s\n", step, text));
    world->step_text[0] = '\0';
}

static void draw_world(struct world *world, const struct scenario *scenario) {
    struct random random = random_of(scenario, -2);
    world->model = scenario->model;
    world->seed = scenario->seed;
    /* By turns, so that a few seeds have all of it. */
    world->has_replays = scenario->seed % 2 == 0;
    world->has_disk = scenario->seed % 2 == 1 || random_chance(&random, 50);
    world->has_host = scenario->seed % 3 == 2; /* of what the block pool cannot hold */
    world->has_tiny_pool = scenario->seed % 3 != 1;
    world->has_no_snapshots = scenario->seed % 4 == 3;
    world->has_clock = random_chance(&random, 35);
    const char *parent = getenv("TMPDIR");
    (void)snprintf(
        world->folder,
        sizeof world->folder,
        "%s/hearth-property-XXXXXX",
        parent == NULL ? "/tmp" : parent
    );
    ASSERT(mkdtemp(world->folder) != NULL);
    add_trunk(world, &random);
    add_trunk(world, &random);
    world_open(world, &random);
    log_step(world, -1);
}

/* Runs the scenario in a world that starts zeroed but for what is shared; false when it failed. */
static bool run_scenario(struct world *world, const struct scenario *scenario) {
    waker_init(&world->waker);
    buffer_init(&world->log, PRINTED_MAX);
    draw_world(world, scenario);
    for (int32_t i = 0; i < scenario->steps && !world_has_failed(world); i++) {
        if (!scenario->skipped[i]) {
            struct random random = random_of(scenario, i);
            run_step(world, &random);
            log_step(world, i);
        }
    }
    if (world->engine != NULL) {
        world_close(world);
    }
    (void)nftw(world->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return !world_has_failed(world);
}

static void world_reset(struct world *world) {
    struct world kept = {
        .cold = world->cold,
        .coverage = world->coverage,
        .logits = world->logits,
        .cold_logits = world->cold_logits,
    };
    memcpy(kept.model_path, world->model_path, sizeof kept.model_path);
    kept.cold_waker = world->cold_waker;
    buffer_deinit(&world->log);
    *world = kept;
}
static void count_seconds(struct timespec *out) {
    (void)clock_gettime(CLOCK_MONOTONIC, out);
}

/* Runs again without `count` steps from `first` on; keeps them out when that fails too. */
static void
try_without(struct world *world, struct scenario *scenario, int32_t first, int32_t count) {
    struct scenario shorter = *scenario;
    for (int32_t i = first; i < first + count && i < scenario->steps; i++) {
        shorter.skipped[i] = true;
    }
    if (memcmp(shorter.skipped, scenario->skipped, sizeof shorter.skipped) != 0) {
        world_reset(world);
        if (!run_scenario(world, &shorter)) {
            *scenario = shorter;
        }
    }
}

/* Leaves out what the failure does not need, larger pieces first, then prints what remains. */
static void report(struct world *world, struct scenario *scenario) {
    print_error(
        "%s, seed %llu: %s\n",
        scenario->model->name,
        (unsigned long long)scenario->seed,
        world->failure
    );
    (void)fputs(buffer_text(&world->log), stderr); /* longer than print_error takes */
    struct timespec started;
    struct timespec now;
    count_seconds(&started);
    struct coverage unused = {0};
    world->coverage = &unused;
    bool is_time = true;
    for (int32_t piece = STEPS_MAX / 2; piece > 0 && is_time; piece /= 2) {
        for (int32_t i = 0; i < scenario->steps && is_time; i += piece) {
            try_without(world, scenario, i, piece);
            count_seconds(&now);
            is_time = now.tv_sec - started.tv_sec < SHRINK_SECONDS;
        }
    }
    world_reset(world);
    bool holds = run_scenario(world, scenario);
    print_error("with as few steps as fail: %s\n", holds ? "(not again: timing)" : world->failure);
    (void)fputs(buffer_text(&world->log), stderr);
    print_error(
        "again: HEARTH_PROPERTY_MODEL=%s HEARTH_PROPERTY_SEED=%llu\n",
        scenario->model->name,
        (unsigned long long)scenario->seed
    );
}

static bool environment_number(const char *name, uint64_t *out) {
    const char *text = getenv(name);
    return text != NULL && parse_u64(view_of_text(text), out);
}

/* False when the model is not there. */
static bool run_model(const struct property_model *model, struct coverage *coverage, int seeds) {
    const char *chosen = getenv("HEARTH_PROPERTY_MODEL");
    struct world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    world->coverage = coverage;
    if ((chosen != NULL && strcmp(chosen, model->name) != 0) ||
        !bench_find_model(world->model_path, model->name)) {
        free(world);
        return false;
    }
    world->cold = property_open_cold(model, world->model_path, &world->cold_waker);
    struct engine_info info;
    engine_get_info(world->cold, &info);
    world->logits = calloc(2 * (size_t)info.vocabulary, sizeof(float));
    assert_non_null(world->logits);
    world->cold_logits = world->logits + info.vocabulary;
    uint64_t only = 0;
    uint64_t seconds = 0;
    bool has_only = environment_number("HEARTH_PROPERTY_SEED", &only);
    (void)environment_number("HEARTH_PROPERTY_SECONDS", &seconds);
    struct timespec started;
    struct timespec now;
    count_seconds(&started);
    bool holds = true;
    for (uint64_t seed = 1; holds; seed++) {
        count_seconds(&now);
        bool is_time = (uint64_t)(now.tv_sec - started.tv_sec) < seconds;
        if (has_only ? seed > 1 : seed > (uint64_t)seeds && !is_time) {
            break;
        }
        struct scenario scenario = {
            .model = model,
            .seed = has_only ? only : seed,
            .steps = IS_SLOW ? STEPS_MAX / 3 : STEPS_MAX,
        };
        world_reset(world);
        holds = run_scenario(world, &scenario);
        if (!holds) {
            report(world, &scenario);
        } else if (getenv("HEARTH_TEST_VERBOSE") != NULL) {
            print_message("%s seed %llu\n", model->name, (unsigned long long)scenario.seed);
            (void)fputs(buffer_text(&world->log), stderr);
        }
    }
    buffer_deinit(&world->log);
    engine_close(world->cold);
    free(world->logits);
    free(world);
    assert_true(holds);
    return true;
}

static void print_coverage(const char *name, const struct coverage *coverage) {
    char line[1024] = "";
    for (size_t i = 0; i < COVERAGE_KINDS; i++) {
        size_t used = strlen(line);
        (void)snprintf(
            line + used,
            sizeof line - used,
            "%s%s %ld",
            i == 0 ? "" : ", ",
            coverage_names[i],
            coverage->counts[i]
        );
    }
    print_message("%s: %s\n", name, line);
}

static struct coverage total; /* of all models */

static void check_model(const struct property_model *model, int seeds) {
    struct coverage before = total;
    if (!run_model(model, &total, seeds)) {
        print_message("SKIPPED property test of %s: set HEARTH_TEST_DATA\n", model->name);
        skip();
    }
    struct coverage own;
    for (size_t i = 0; i < COVERAGE_KINDS; i++) {
        own.counts[i] = total.counts[i] - before.counts[i];
    }
    print_coverage(model->name, &own);
}

/* A proof that never reused anything proves nothing. */
static void every_kind_of_reuse_was_there(void **state) {
    (void)state;
    if (getenv("HEARTH_PROPERTY_SEED") != NULL || getenv("HEARTH_PROPERTY_MODEL") != NULL) {
        print_message("SKIPPED kinds of reuse: one seed or model alone\n");
        skip();
    }
    bool is_complete = true;
    for (size_t i = 0; i < COVERAGE_KINDS; i++) {
        if (total.counts[i] == 0) {
            print_error("none: %s\n", coverage_names[i]);
            is_complete = false;
        }
    }
    assert_true(is_complete);
}

static void any_history_gives_the_bits_of_a_cold_run_tiny_a(void **state) {
    (void)state;
    check_model(&models[0], IS_SLOW ? 2 : 6);
}

static void any_history_gives_the_bits_of_a_cold_run_tiny_b(void **state) {
    (void)state;
    check_model(&models[1], 2);
}

static void any_history_gives_the_bits_of_a_cold_run_mini(void **state) {
    (void)state;
    check_model(&models[2], 2);
}

int main(void) {
    /* With sanitizers a generation takes a second and more; they look for other faults. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_history_gives_the_bits_of_a_cold_run_tiny_a),
        cmocka_unit_test(any_history_gives_the_bits_of_a_cold_run_tiny_b),
        cmocka_unit_test(any_history_gives_the_bits_of_a_cold_run_mini),
        cmocka_unit_test(every_kind_of_reuse_was_there),
    };
    size_t count = IS_SLOW && getenv("HEARTH_PROPERTY_MODEL") == NULL ? 1 : COUNT_OF(tests);
    return _cmocka_run_group_tests("kv property", tests, count, NULL, NULL);
}
