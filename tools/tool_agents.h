/* What the tools spawn, message and wait ask of whoever runs several agents.
 *
 * All three functions block, fill a text for the model and return a status as any tool does: what
 * the model did wrong or may not do (no such agent, too many, no budget) is TOOL_REFUSED or
 * TOOL_ERROR with a text. Thread: that of tool_call. Expected errors: MEMORY, IO.
 */
#ifndef HEARTH_TOOLS_TOOL_AGENTS_H
#define HEARTH_TOOLS_TOOL_AGENTS_H

#include "tool.h"

#define TOOL_AGENTS_MAX 32 /* names in one wait */

struct tool_agents_spawn {
    struct view task; /* what to do, in full: the new agent sees nothing else */
    struct view name; /* letters, digits, - and _; empty: the host chooses one */
    struct view role; /* empty: the default one */
    bool is_fork;     /* begins with this agent's conversation instead of an empty one */
};

struct tool_agents_wait {
    struct view names[TOOL_AGENTS_MAX]; /* none: any agent that this one has spawned */
    size_t name_count;
    bool for_all;        /* of them; else the first one that ends */
    int64_t time_ms_max; /* the text then says who is still at work */
    int cancel_fd;       /* give up when it becomes readable */
};

struct tool_agents {
    void *context;
    /* The text begins with the agent's name. */
    result (*spawn
    )(void *context,
      const struct tool_agents_spawn *spawn,
      enum tool_status *status,
      struct buffer *text,
      struct error *error);
    /* A message for one agent, delivered before its next turn. */
    result (*message
    )(void *context,
      struct view name,
      struct view message,
      enum tool_status *status,
      struct buffer *text,
      struct error *error);
    /* The text holds the results of those that ended. */
    result (*wait
    )(void *context,
      const struct tool_agents_wait *wait,
      enum tool_status *status,
      struct buffer *text,
      struct error *error);
};

#endif
