/* A whole swarm on one seed: a simulated clock and host, scripted agents, and faults.
 *
 * Everything is drawn from the seed: the options of the swarm, how long turns are, what agents ask with
 * their tools (nonsense too), what verifier, ranking and merges say, and what goes wrong: agents that
 * hang, crash, go round in circles, repeat each other, spend too much or do not die; a verifier that
 * hangs, crashes or edits files; a full disk, a lost engine, an interrupt, late and doubled events.
 * After each event swarm_check must hold, and what the host sees must fit together (swarm_world.c).
 */
#ifndef HEARTH_TESTS_SWARM_SIMULATION_H
#define HEARTH_TESTS_SWARM_SIMULATION_H

#include "runtime/strategy.h"
#include "runtime/swarm.h"

#define SIMULATION_PROBLEM_BYTES 600
#define SIMULATION_KINDS         32 /* at least as many as any of the enumerations counted below */

/* What was seen, over any number of runs: a simulation that no longer comes to something shows it. */
struct simulation_counts {
    size_t runs, events, nodes, memory_failures;
    size_t effects[SIMULATION_KINDS];  /* by swarm_effect_type */
    size_t answers[SIMULATION_KINDS];  /* by swarm_answer */
    size_t tells[SIMULATION_KINDS];    /* by swarm_tell */
    size_t cuts[SIMULATION_KINDS];     /* by swarm_cut */
    size_t outcomes[SIMULATION_KINDS]; /* of nodes, by swarm_outcome */
    size_t results[SIMULATION_KINDS];  /* of swarms, by swarm_outcome */
    size_t strategies[SIMULATION_KINDS];
    uint64_t trace; /* of everything that happened: the same for the same seeds */
};

/* Runs one swarm, whose nth allocation fails; 0: none does. False: *problem says what was wrong. */
bool simulation_run(
    uint64_t seed,
    size_t failing_allocation,
    struct simulation_counts *counts,
    char problem[SIMULATION_PROBLEM_BYTES]
);

#endif
