/* Runs that are nodes of a swarm; see loop_nodes.h. */
#include "loop_nodes.h"

#include "loop_internal.h"

result run_prefix_at_call(const struct run *run, struct run_prefix *out, struct error *error) {
    (void)run;
    (void)out;
    FAIL(error, UNSUPPORTED, "forks of a call are not made yet");
}

const struct session_id *run_agent(const struct run *run) {
    return &run->recorder.agent;
}

enum swarm_end run_end_of(enum agent_stop stop) {
    static const enum swarm_end ends[] = {
        [AGENT_GOES_ON] = SWARM_END_FAULT,       [AGENT_STOP_ANSWER] = SWARM_END_ANSWER,
        [AGENT_STOP_FINISH] = SWARM_END_ANSWER,  [AGENT_STOP_STRING] = SWARM_END_ANSWER,
        [AGENT_STOP_TURNS] = SWARM_END_BUDGET,   [AGENT_STOP_TOKENS] = SWARM_END_BUDGET,
        [AGENT_STOP_TIME] = SWARM_END_BUDGET,    [AGENT_STOP_CALLS] = SWARM_END_BUDGET,
        [AGENT_STOP_LENGTH] = SWARM_END_BUDGET,  [AGENT_STOP_CONTEXT] = SWARM_END_BUDGET,
        [AGENT_STOP_REPEAT] = SWARM_END_FAULT,   [AGENT_STOP_UNKNOWN] = SWARM_END_FAULT,
        [AGENT_STOP_GARBAGE] = SWARM_END_FAULT,  [AGENT_STOP_LOOP] = SWARM_END_FAULT,
        [AGENT_STOP_THINKING] = SWARM_END_FAULT, [AGENT_STOP_OPEN_CALL] = SWARM_END_FAULT,
        [AGENT_STOP_ENGINE] = SWARM_END_FAULT,   [AGENT_STOP_RECORD] = SWARM_END_FAULT,
        [AGENT_STOP_TOOL] = SWARM_END_FAULT,     [AGENT_STOP_INTERRUPT] = SWARM_END_CANCEL,
        [AGENT_STOP_QUIT] = SWARM_END_CANCEL,
    };
    ASSERT((size_t)stop < COUNT_OF(ends));
    return ends[stop];
}

const char *run_end_name(enum swarm_end end) {
    static const char *const names[] = {
        [SWARM_END_ANSWER] = "answer",
        [SWARM_END_BUDGET] = "budget",
        [SWARM_END_FAULT] = "fault",
        [SWARM_END_CANCEL] = "cancel",
    };
    return names[end];
}

result loop_generate(
    struct loop *loop,
    struct loop_generation *generation,
    const struct generation_request *request,
    struct error *error
) {
    (void)loop;
    (void)generation;
    (void)request;
    FAIL(error, UNSUPPORTED, "generations beside runs are not made yet");
}
