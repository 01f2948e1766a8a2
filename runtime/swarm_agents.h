/* One agent's end of the line to the swarm: what its tools ask waits on the tool's thread until the swarm
 * answers.
 *
 * The tool's thread leaves the question here and wakes the loop; the loop thread puts it to the swarm
 * (SWARM_ASKED) and brings the answer. A call that is cancelled goes at once and takes its question back,
 * unless the loop is just reading it; an answer that comes too late finds nobody.
 */
#ifndef HEARTH_RUNTIME_SWARM_AGENTS_H
#define HEARTH_RUNTIME_SWARM_AGENTS_H

#include "loop.h"
#include "swarm.h"
#include "tools/tool_agents.h"

struct swarm_agents;

/* Called on the loop thread with what the agent asks; `ask` is borrowed until it returns. False: not now, see
 * swarm_agents_ask_again. */
typedef bool swarm_agents_asked(void *context, const struct swarm_ask *ask);

/* Thread of all but the port: loop. Expected errors: MEMORY, IO (no descriptor). */
MUST_CHECK result swarm_agents_create(
    struct swarm_agents **out,
    struct loop *loop,
    swarm_agents_asked *asked,
    void *context,
    struct error *error
);
/* While no call runs; accepts null. */
void swarm_agents_destroy(struct swarm_agents *agents);

/* For tool_context_options.agents. */
const struct tool_agents *swarm_agents_port(struct swarm_agents *agents);

/* Calls `asked` with what was put off, unless the call was cancelled meanwhile. */
void swarm_agents_ask_again(struct swarm_agents *agents);

struct swarm_agents_answer {
    uint64_t number; /* of the ask */
    enum tool_status status;
    struct view text;    /* copied */
    const char *started; /* SPAWN: the new agent's name; else "" */
};
/* Ignored when that call does not wait any more. Without memory the call fails. */
void swarm_agents_answer(struct swarm_agents *agents, const struct swarm_agents_answer *answer);

#endif
