/* The clock, the queue and the scripted agents of a simulated swarm; see swarm_simulation.h. */
#include "swarm_simulation.h"
#include "swarm_world.h"

#include "failing_memory.h"

#include <inttypes.h>

#define QUEUE_MAX               4096
#define EVENTS_MAX              60000 /* of one run: more is one that does not end */
#define ASK_NAMES_MAX           4
#define BRIEFS_MAX              40
#define PLAN_TEXTS              7
#define CHANCE(random, percent) (draw((random), 100) < (percent))

/* What is wrong with an agent. */
enum fault {
    FAULT_NONE,
    FAULT_HANGS,    /* no turn ends */
    FAULT_LOOPS,    /* the same call again and again */
    FAULT_REPEATS,  /* makes the same calls as every other one with this fault */
    FAULT_CRASHES,  /* ends by itself with a fault */
    FAULT_SPENDS,   /* does not keep to its share */
    FAULT_SURVIVES, /* does not end when told */
    FAULT_NO_START, /* cannot be started */
    FAULT_KINDS
};

struct child {
    enum fault fault;
    int64_t turn_ms, turn_tokens, turns_left, turns;
    int passes_percent;
};

struct pending {
    int64_t at_ms;
    uint64_t order;
    struct swarm_event event;
};

struct simulation {
    struct world world;
    uint64_t random;
    struct pending queue[QUEUE_MAX];
    size_t queue_count;
    uint64_t order, ask_number;
    struct child children[SWARM_NODES_MAX];
    int faults_percent, asks_percent, verifier_faults_percent;
    int64_t verify_ms, merge_ms;
    /* Of the ask that is given to the swarm now. */
    struct swarm_ask ask;
    struct view names[ASK_NAMES_MAX];
    struct view briefs[BRIEFS_MAX];
    double scores[SWARM_NODES_MAX];
};

static uint64_t next(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

static int64_t draw(uint64_t *random, int64_t count) {
    return (int64_t)(next(random) % (uint64_t)count);
}

/* ---- queue ------------------------------------------------------------------------------------- */

static void push(struct simulation *simulation, int64_t in_ms, const struct swarm_event *event) {
    if (simulation->queue_count == QUEUE_MAX) {
        world_problem(&simulation->world, "the queue of events is full");
        return;
    }
    simulation->queue[simulation->queue_count++] = (struct pending){
        .at_ms = simulation->world.now_ms + in_ms,
        .order = simulation->order++,
        .event = *event,
    };
}

static bool pop(struct simulation *simulation, struct swarm_event *out, int64_t *out_ms) {
    size_t first = 0;
    for (size_t i = 1; i < simulation->queue_count; i++) {
        const struct pending *a = &simulation->queue[i];
        const struct pending *b = &simulation->queue[first];
        first = a->at_ms < b->at_ms || (a->at_ms == b->at_ms && a->order < b->order) ? i : first;
    }
    if (simulation->queue_count == 0) {
        return false;
    }
    *out = simulation->queue[first].event;
    *out_ms = simulation->queue[first].at_ms;
    simulation->queue[first] = simulation->queue[--simulation->queue_count];
    return true;
}

/* A cancelled agent does nothing any more but end; its mail is not confirmed either. */
static void forget(struct simulation *simulation, size_t node) {
    for (size_t i = 0; i < simulation->queue_count;) {
        const struct swarm_event *event = &simulation->queue[i].event;
        bool is_agents = event->node == node &&
                         (event->type == SWARM_TURN_ENDED || event->type == SWARM_ASKED ||
                          event->type == SWARM_NODE_ENDED || event->type == SWARM_DELIVERED);
        if (is_agents) {
            simulation->queue[i] = simulation->queue[--simulation->queue_count];
        } else {
            i++;
        }
    }
}

/* ---- agents ------------------------------------------------------------------------------------ */

static struct swarm_event event_of(enum swarm_event_type type, size_t node) {
    return (struct swarm_event){.type = type, .node = node};
}

static const char *const plans[PLAN_TEXTS] = {
    "Here: ```json\n[{\"id\":\"a\",\"brief\":\"do a\"},{\"id\":\"b\",\"brief\":\"do b\"},"
    "{\"id\":\"c\",\"brief\":\"do c\",\"needs\":[\"a\",\"b\"]}]\n```",
    "[{\"id\":\"x\",\"brief\":\"do x\",\"needs\":[\"y\"]},{\"id\":\"y\",\"brief\":\"do "
    "y\",\"needs\":[\"x\"]}]",
    "[{\"id\":\"one\",\"brief\":\"all of it\"}]",
    "I do not know.",
    "[{\"id\":\"a\",\"brief\":\"do a\",\"needs\":[\"nobody\"]}]",
    "[]",
    "[{\"id\":\"a\",\"brief\":\"do a\"},{\"id\":\"b\",\"brief\":\"do b\",\"needs\":[\"a\"]},"
    "{\"id\":\"c\",\"brief\":\"do c\",\"needs\":[\"b\"]},{\"id\":\"d\",\"brief\":\"do d\"}]",
};

static void make_child(struct simulation *simulation, size_t node) {
    uint64_t *random = &simulation->random;
    bool has_fault = CHANCE(random, simulation->faults_percent);
    simulation->children[node] = (struct child){
        .fault = has_fault ? (enum fault)draw(random, FAULT_KINDS) : FAULT_NONE,
        .turn_ms = 5 + draw(random, CHANCE(random, 10) ? 20000 : 800),
        .turn_tokens = 10 + draw(random, 400),
        .turns_left = 1 + draw(random, 12),
        .passes_percent = (int)draw(random, 100),
    };
}

static uint64_t digest_of(struct simulation *simulation, size_t node) {
    const struct child *child = &simulation->children[node];
    if (child->fault == FAULT_LOOPS) {
        return 42;
    }
    if (child->fault == FAULT_REPEATS) {
        return 1000 + (uint64_t)child->turns;
    }
    return CHANCE(&simulation->random, 20) ? 0 : next(&simulation->random) | 1U;
}

/* The next turn of an agent. It keeps to what it may spend, unless its fault is not to. */
static void plan_turn(struct simulation *simulation, size_t node) {
    struct child *child = &simulation->children[node];
    const struct world_node *host = &simulation->world.nodes[node];
    struct swarm_event event = event_of(SWARM_TURN_ENDED, node);
    if (child->fault == FAULT_HANGS && child->turns > 0) {
        return;
    }
    event.tokens = child->turn_tokens;
    event.calls = draw(&simulation->random, 3);
    if (child->fault != FAULT_SPENDS) {
        int64_t tokens = host->tokens_max - host->tokens;
        int64_t calls = host->calls_max - host->calls;
        event.tokens = event.tokens < tokens ? event.tokens : tokens;
        event.calls = event.calls < calls ? event.calls : calls;
    }
    event.digest = digest_of(simulation, node);
    push(simulation, child->turn_ms, &event);
}

static void
plan_end(struct simulation *simulation, size_t node, enum swarm_end end, int64_t in_ms) {
    uint64_t *random = &simulation->random;
    struct swarm_event event = event_of(SWARM_NODE_ENDED, node);
    bool has_changes = CHANCE(random, end == SWARM_END_ANSWER ? 85 : 40);
    event.end = end;
    event.text = view_of_text(plans[draw(random, CHANCE(random, 50) ? 1 : PLAN_TEXTS)]);
    if (has_changes) {
        event.commit = view_of_text("0123456789012345678901234567890123456789");
        event.changed_lines = 1 + draw(random, 50);
    }
    push(simulation, in_ms, &event);
}

/* ---- what agents ask --------------------------------------------------------------------------- */

static struct view some_name(struct simulation *simulation) {
    uint64_t *random = &simulation->random;
    static const char *const others[] = {
        "root", "parent", "nobody", "", "agent-1", "a b", "\xff\xfe"};
    if (CHANCE(random, 15)) {
        return view_of_text(others[draw(random, (int64_t)COUNT_OF(others))]);
    }
    size_t node = (size_t)draw(random, (int64_t)swarm_node_count(simulation->world.swarm));
    return view_of_text(swarm_node(simulation->world.swarm, node)->name);
}

static struct view some_brief(struct simulation *simulation, size_t node) {
    static const char *const briefs[] = {
        "read the code", "write it", "test it", "solve it", "", " "};
    uint64_t *random = &simulation->random;
    if (CHANCE(random, 10)) { /* its own, or that of an ancestor */
        size_t parent = swarm_node(simulation->world.swarm, node)->parent;
        return buffer_view(&swarm_node(simulation->world.swarm, parent)->brief);
    }
    return view_of_text(briefs[draw(random, (int64_t)COUNT_OF(briefs))]);
}

static void fill_children_ask(struct simulation *simulation, size_t node) {
    static const int64_t odd[] = {0, -1, 10000, 33};
    static const char *const names[] = {"", "", "", "helper", "agent-7", "bad name"};
    uint64_t *random = &simulation->random;
    struct swarm_ask *ask = &simulation->ask;
    bool is_fork = ask->type == SWARM_ASK_FORK;
    if (CHANCE(random, 60)) {
        ask->brief_count = is_fork ? (size_t)(1 + draw(random, CHANCE(random, 10) ? 40 : 4)) : 1;
        for (size_t i = 0; i < ask->brief_count; i++) {
            simulation->briefs[i] = some_brief(simulation, node);
        }
    } else {
        ask->count = CHANCE(random, 20) ? odd[draw(random, 4)] : 1 + draw(random, 4);
    }
    if (CHANCE(random, 30)) {
        ask->name = view_of_text(names[draw(random, (int64_t)COUNT_OF(names))]);
    }
    ask->tokens = CHANCE(random, 20) ? 1 + draw(random, 4000) : 0;
}

/* At the moment it is asked: names are of agents that are there now. */
static void fill_ask(struct simulation *simulation, size_t node) {
    uint64_t *random = &simulation->random;
    struct swarm_ask *ask = &simulation->ask;
    *ask = (struct swarm_ask){
        .type = (enum swarm_ask_type)draw(random, SWARM_ASK_MERGE + 1),
        .number = ++simulation->ask_number,
        .briefs = simulation->briefs,
        .names = simulation->names,
        .join = (enum swarm_join)draw(random, SWARM_JOIN_PASSING + 1),
        .text = CHANCE(random, 90) ? view_of_text("hello") : view_of(NULL, 0),
        .time_ms = CHANCE(random, 30) ? 1 + draw(random, 3000) : 0,
    };
    if (ask->type == SWARM_ASK_SPAWN || ask->type == SWARM_ASK_FORK) {
        fill_children_ask(simulation, node);
        return;
    }
    ask->name_count = CHANCE(random, 70) ? 1 : (size_t)draw(random, ASK_NAMES_MAX + 1);
    for (size_t i = 0; i < ask->name_count; i++) {
        simulation->names[i] = some_name(simulation);
    }
    size_t to = ask->name_count == 0 ? SWARM_NONE
                : view_equals_text(simulation->names[0], "parent")
                    ? swarm_node(simulation->world.swarm, node)->parent
                    : swarm_find(simulation->world.swarm, simulation->names[0]);
    simulation->world.message_asked_to = to == SWARM_NONE ? 0 : to;
}

/* After a turn, or an answer: a call, another turn, or the end. */
static void go_on(struct simulation *simulation, size_t node) {
    struct child *child = &simulation->children[node];
    const struct world_node *host = &simulation->world.nodes[node];
    uint64_t *random = &simulation->random;
    bool is_spent = child->fault != FAULT_SPENDS &&
                    (host->tokens >= host->tokens_max || host->calls >= host->calls_max);
    if (child->fault == FAULT_CRASHES && child->turns > 2) {
        plan_end(simulation, node, SWARM_END_FAULT, 1);
    } else if (is_spent) {
        plan_end(simulation, node, SWARM_END_BUDGET, 1);
    } else if (child->turns_left <= (child->fault == FAULT_NONE ? 0 : -30)) { /* as an agent's own limit */
        plan_end(simulation, node, SWARM_END_ANSWER, 1);
    } else if (CHANCE(random, simulation->asks_percent)) {
        struct swarm_event event = event_of(SWARM_ASKED, node);
        event.ask = &simulation->ask; /* filled when it is its turn */
        child->turns_left--;
        push(simulation, 1, &event);
        if (child->fault == FAULT_CRASHES) { /* in the middle of its call */
            plan_end(simulation, node, SWARM_END_FAULT, 50);
        }
    } else {
        plan_turn(simulation, node);
    }
}

/* ---- effects ----------------------------------------------------------------------------------- */

static void do_start(struct simulation *simulation, size_t node) {
    make_child(simulation, node);
    bool fails = simulation->children[node].fault == FAULT_NO_START;
    struct swarm_event event = event_of(fails ? SWARM_NODE_START_FAILED : SWARM_NODE_STARTED, node);
    event.text = view_of_text("no workspace");
    push(simulation, 1 + draw(&simulation->random, 100), &event);
}

static void do_cancel(struct simulation *simulation, size_t node) {
    int64_t grace = swarm_options(simulation->world.swarm)->kill_grace_ms;
    bool survives = simulation->children[node].fault == FAULT_SURVIVES;
    forget(simulation, node);
    if (!simulation->world.nodes[node].is_confirmed &&
        simulation->children[node].fault == FAULT_NO_START) {
        return; /* the start fails as it would have */
    }
    int64_t in_ms = 1 + draw(&simulation->random, grace - 1);
    plan_end(simulation, node, SWARM_END_CANCEL, survives ? grace + 500 : in_ms);
}

static void do_verify(struct simulation *simulation, const struct swarm_effect *effect) {
    uint64_t *random = &simulation->random;
    struct swarm_event event = event_of(SWARM_VERIFIED, effect->node);
    int64_t in_ms = 1 + draw(random, simulation->verify_ms);
    int passes =
        effect->node == SWARM_ROOT ? 50 : simulation->children[effect->node].passes_percent;
    event.verdict = CHANCE(random, passes) ? SWARM_VERIFIED_PASS : SWARM_VERIFIED_FAIL;
    event.detail = view_of_text("3 tests failed");
    if (in_ms >= effect->time_ms_max) {
        event.verdict = SWARM_VERIFIED_HUNG;
        in_ms = effect->time_ms_max;
    }
    if (CHANCE(random, simulation->verifier_faults_percent)) {
        static const enum swarm_verdict faults[] = {
            SWARM_VERIFIED_HUNG, SWARM_VERIFIED_CRASHED, SWARM_VERIFIED_EDITED};
        if (CHANCE(random, 30)) {
            return; /* no answer at all */
        }
        event.verdict = faults[draw(random, 3)];
    }
    push(simulation, in_ms, &event);
}

static void do_merge(struct simulation *simulation, const struct swarm_effect *effect) {
    uint64_t *random = &simulation->random;
    struct swarm_event event = event_of(SWARM_MERGED, effect->node);
    event.merge = CHANCE(random, 70)   ? SWARM_MERGE_OK
                  : CHANCE(random, 80) ? SWARM_MERGE_CONFLICTS
                                       : SWARM_MERGE_FAILED;
    event.detail = view_of_text("src/main.c");
    event.commit = view_of_text("abcdefabcdefabcdefabcdefabcdefabcdefabcd");
    event.changed_lines = 1 + draw(random, 100);
    push(simulation, 1 + draw(random, simulation->merge_ms), &event);
}

static void do_rank(struct simulation *simulation, const struct swarm_effect *effect) {
    uint64_t *random = &simulation->random;
    struct swarm_event event = event_of(SWARM_RANKED, SWARM_ROOT);
    event.tokens = draw(random, effect->tokens_max + 1);
    event.score_count = CHANCE(random, 80) ? effect->node_count : 0;
    for (size_t i = 0; i < event.score_count; i++) {
        simulation->scores[i] = (double)draw(random, 5);
    }
    event.scores = simulation->scores;
    push(simulation, 1 + draw(random, 500), &event);
}

static void carry_out(struct simulation *simulation, const struct swarm_effect *effect) {
    struct swarm_event event = event_of(SWARM_TIME, SWARM_ROOT);
    world_effect(&simulation->world, effect);
    if (effect->type == SWARM_DO_START) {
        do_start(simulation, effect->node);
    } else if (effect->type == SWARM_DO_CANCEL) {
        do_cancel(simulation, effect->node);
    } else if (effect->type == SWARM_DO_VERIFY) {
        do_verify(simulation, effect);
    } else if (effect->type == SWARM_DO_MERGE) {
        do_merge(simulation, effect);
    } else if (effect->type == SWARM_DO_RANK) {
        do_rank(simulation, effect);
    } else if (effect->type == SWARM_DO_ANSWER) {
        go_on(simulation, effect->node);
    } else if (effect->type == SWARM_DO_DELIVER) {
        event.type = SWARM_DELIVERED;
        event.node = effect->node;
        event.message = effect->message;
        push(simulation, 1 + draw(&simulation->random, 200), &event);
    } else if (effect->type == SWARM_DO_WAIT) {
        push(simulation, effect->wake_ms - simulation->world.now_ms, &event);
    }
}

/* ---- a run ------------------------------------------------------------------------------------- */

/* After the swarm has seen it: what the agent does next. */
static void follow(struct simulation *simulation, const struct swarm_event *event) {
    struct child *child = &simulation->children[event->node];
    const struct world_node *host = &simulation->world.nodes[event->node];
    bool works = host->is_started && !host->has_ended && !host->is_cancelled;
    if (event->type == SWARM_NODE_STARTED && works) {
        plan_turn(simulation, event->node);
    } else if (event->type == SWARM_TURN_ENDED && works) {
        child->turns++;
        child->turns_left--;
        go_on(simulation, event->node);
    }
}

/* Late, early and doubled events, which a host must not send and a swarm must not mind. */
static void make_noise(struct simulation *simulation) {
    static const enum swarm_event_type types[] = {
        SWARM_TIME, SWARM_NODE_STARTED, SWARM_DELIVERED, SWARM_START, SWARM_NODE_START_FAILED};
    uint64_t *random = &simulation->random;
    size_t node = (size_t)draw(random, (int64_t)swarm_node_count(simulation->world.swarm));
    struct swarm_event event = event_of(types[draw(random, 5)], node);
    struct swarm_effects effects;
    const struct world_node *host = &simulation->world.nodes[node];
    bool would_be_true = event.type != SWARM_TIME && event.type != SWARM_DELIVERED &&
                         event.type != SWARM_START && host->is_started && !host->has_ended;
    if (would_be_true) {
        return;
    }
    event.now_ms = simulation->world.now_ms;
    event.message = (uint64_t)draw(random, 3) + 100000;
    swarm_handle(simulation->world.swarm, &event, &effects);
    for (size_t i = 0; i < effects.count; i++) {
        carry_out(simulation, &effects.items[i]);
    }
}

static void step(struct simulation *simulation, struct swarm_event *event) {
    struct world *world = &simulation->world;
    struct swarm_effects effects;
    struct error error = {0};
    event->now_ms = world->now_ms;
    if (event->type == SWARM_ASKED) {
        fill_ask(simulation, event->node);
    }
    world_event(world, event);
    swarm_handle(world->swarm, event, &effects);
    for (size_t i = 0; i < effects.count; i++) {
        carry_out(simulation, &effects.items[i]);
    }
    follow(simulation, event);
    if (is_failed(swarm_check(world->swarm, &error))) {
        world_problem(world, "after event %d: %s", (int)event->type, error.message);
    }
    world_settled(world);
    world->counts->events++;
}

static int64_t one_of(uint64_t *random, const int64_t *values, size_t count) {
    return values[draw(random, (int64_t)count)];
}

static struct swarm_options draw_options(struct simulation *simulation) {
    static const char *const names[] = {"single", "race", "best-of", "plan", "staged", "retries"};
    static const int64_t times[] = {0, 1000, 30000, 30000, 120000, 600000};
    static const int64_t tokens[] = {0, 300, 5000, 20000, 100000};
    uint64_t *random = &simulation->random;
    size_t kind = (size_t)draw(random, (int64_t)COUNT_OF(names));
    const struct strategy *strategy = strategy_find(view_of_text(names[kind]));
    simulation->world.counts->strategies[kind]++;
    struct swarm_options options = {
        .task = view_of_text("solve it"),
        .strategy = strategy,
        .attempts = CHANCE(random, 30) ? SWARM_ATTEMPTS_DEFAULT : 1 + draw(random, 12),
        .has_verifier = strategy->needs_verifier || CHANCE(random, 60),
        .time_ms_max = one_of(random, times, COUNT_OF(times)),
        .tokens_max = one_of(random, tokens, COUNT_OF(tokens)),
        .calls_max = CHANCE(random, 30) ? 20 + draw(random, 300) : 0,
        .processes_max = CHANCE(random, 30) ? 1 + draw(random, 20) : 0,
        .memory_bytes_max = CHANCE(random, 20) ? 1 + draw(random, 4000) : 0,
        .depth_max = (size_t)draw(random, 4),
        .nodes_max = (size_t)(13 + draw(random, 40)),
        .live_max = (size_t)draw(random, 6),
        .verify_ms_max = 100 + draw(random, 5000),
        .merge_ms_max = 100 + draw(random, 2000),
        .kill_grace_ms = 200 + draw(random, 2000),
        .silent_ms_max = 5000 + draw(random, 20000),
        .node_memory_bytes = CHANCE(random, 20) ? 1 + draw(random, 800) : 0,
        .effort = CHANCE(random, 50) ? 100 : 0,
        .effort_may_vary = CHANCE(random, 50),
        .seed = next(random),
    };
    if (CHANCE(random, 3)) { /* a large one, all at once */
        options.attempts = 64;
        options.nodes_max = 65 + (size_t)draw(random, SWARM_NODES_MAX - 64);
        options.live_max = 64;
    }
    return options;
}

static void plan_faults(struct simulation *simulation) {
    uint64_t *random = &simulation->random;
    static const enum swarm_event_type types[] = {
        SWARM_INTERRUPT, SWARM_DISK_FULL, SWARM_ENGINE_LOST};
    struct swarm_event event = event_of(types[draw(random, 3)], SWARM_ROOT);
    event.detail = view_of_text("device lost");
    if (CHANCE(random, 25)) {
        push(simulation, draw(random, 20000), &event);
    }
}

static bool run(struct simulation *simulation) {
    struct world *world = &simulation->world;
    struct error error = {0};
    struct swarm_options options = draw_options(simulation);
    if (is_failed(swarm_create(&world->swarm, &options, &error))) {
        if (error.code != RESULT_MEMORY || !failing_memory_fired()) {
            world_problem(world, "not created: %s", error.message);
        }
        return !world->has_problem;
    }
    struct swarm_event event = event_of(SWARM_START, SWARM_ROOT);
    world->now_ms = 1000000;
    world->started_ms = world->now_ms;
    plan_faults(simulation);
    step(simulation, &event);
    for (size_t events = 0; !world->is_finished && !world->has_problem; events++) {
        int64_t at_ms = 0;
        if (!pop(simulation, &event, &at_ms)) {
            world_problem(
                world,
                "nothing is to come, and it has not finished: ending %d, live %zu, wake %" PRId64
                " at %" PRId64,
                swarm_is_ending(world->swarm),
                swarm_live(world->swarm),
                world->wake_ms,
                world->now_ms
            );
        } else if (events >= EVENTS_MAX) {
            world_problem(world, "%zu events and no end", events);
        } else {
            world->now_ms = at_ms > world->now_ms ? at_ms : world->now_ms;
            step(simulation, &event);
            if (CHANCE(&simulation->random, 3) && !world->is_finished) {
                make_noise(simulation);
            }
        }
    }
    for (size_t i = 0; i < simulation->queue_count && !world->has_problem; i++) {
        struct swarm_effects effects;
        swarm_handle(world->swarm, &simulation->queue[i].event, &effects);
        if (effects.count > 0) {
            world_problem(world, "an event after the end has effects");
        }
    }
    for (size_t i = 1; i < swarm_node_count(world->swarm); i++) {
        world->counts->nodes++;
        world->counts->cuts[swarm_node(world->swarm, i)->cut]++;
        world->counts->outcomes[swarm_node(world->swarm, i)->outcome]++;
    }
    return !world->has_problem;
}

bool simulation_run(
    uint64_t seed,
    size_t failing_allocation,
    struct simulation_counts *counts,
    char problem[SIMULATION_PROBLEM_BYTES]
) {
    struct simulation *simulation = calloc(1, sizeof *simulation);
    ASSERT(simulation != NULL);
    simulation->random = strategy_seed(seed, 0);
    simulation->world.counts = counts;
    simulation->world.problem = problem;
    buffer_init(&simulation->world.scratch, (size_t)4 << 20);
    uint64_t *random = &simulation->random;
    simulation->faults_percent = (int)draw(random, 60);
    simulation->asks_percent = CHANCE(random, 30) ? 0 : (int)draw(random, 70);
    simulation->verifier_faults_percent = CHANCE(random, 60) ? 0 : (int)draw(random, 100);
    simulation->verify_ms = 10 + draw(random, 6000);
    simulation->merge_ms = 10 + draw(random, 3000);
    if (is_failed(buffer_reserve(&simulation->world.scratch, (size_t)1 << 20, NULL))) {
        world_problem(&simulation->world, "no memory for texts");
    }
    failing_memory_arm(failing_allocation);
    counts->runs++;
    bool is_fine = run(simulation);
    counts->memory_failures += failing_memory_fired() ? 1 : 0;
    failing_memory_arm(0);
    swarm_destroy(simulation->world.swarm);
    buffer_deinit(&simulation->world.scratch);
    free(simulation);
    return is_fine;
}
