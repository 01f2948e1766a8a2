/* A machine with a measured cost and sequences put together by a test, for the tests of decisions. */
#ifndef HEARTH_TESTS_SCHEDULE_SUPPORT_H
#define HEARTH_TESTS_SCHEDULE_SUPPORT_H

#include "engine/schedule.h"

#define SEQUENCES 128
#define SECOND    1000000
#define NOW       (1000 * (int64_t)SECOND)

struct world {
    struct schedule *schedule;
    struct schedule_cost cost;
    struct schedule_machine machine;
    struct schedule_sequence sequences[SEQUENCES];
    int32_t count;
    struct schedule_step step;
};

/* No sequences; 10 ms a step, 1 ms a decode row, 0.5 ms a draft, 0.25 ms a row of a prompt. */
struct world *world_create(void);
void world_destroy(struct world *world);
/* One that got its state just now; its own agent; younger than those before. */
struct schedule_sequence *world_add(struct world *world, enum schedule_state state);
/* Fill world->step. */
void decide_rows(struct world *world);
void decide_slots(struct world *world);
void decide_admission(struct world *world);

#endif
