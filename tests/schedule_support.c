/* See schedule_support.h. */
#include "schedule_support.h"

static const struct schedule_cost measured = {
    .us = {10000, 1000, 500, 250},
    .load = 1,
    .step_us = 20000,
    .rows_seen = 1000,
    .steps = 1,
    .rows = {1, 1, 1},
};

struct world *world_create(void) {
    struct world *world = calloc(1, sizeof *world);
    ASSERT(world != NULL);
    struct error error = {0};
    ASSERT(is_ok(schedule_create(&world->schedule, SEQUENCES, &error)));
    world->cost = measured;
    world->machine = (struct schedule_machine){
        .now_us = NOW,
        .cost = &world->cost,
        .rows_max = 1024,
        .entries_max = SEQUENCES,
        .slots_total = 64,
        .blocks_total = 100,
    };
    return world;
}

void world_destroy(struct world *world) {
    schedule_destroy(world->schedule);
    free(world);
}

struct schedule_sequence *world_add(struct world *world, enum schedule_state state) {
    ASSERT(world->count < SEQUENCES);
    int32_t number = world->count++;
    struct schedule_sequence *sequence = &world->sequences[number];
    *sequence = (struct schedule_sequence){
        .number = 1000 + number,
        .state = state,
        .agent = (uint64_t)number + 1,
        .queue_number = (uint64_t)number + 1,
        .since_us = NOW - 100,
        .progress_us = NOW - 100,
        .is_preemptible = true,
    };
    return sequence;
}

void decide_rows(struct world *world) {
    schedule_rows(world->schedule, &world->machine, world->sequences, world->count, &world->step);
}

void decide_slots(struct world *world) {
    schedule_slots(world->schedule, &world->machine, world->sequences, world->count, &world->step);
}

void decide_admission(struct world *world) {
    schedule_admit(world->schedule, &world->machine, world->sequences, world->count, &world->step);
}
