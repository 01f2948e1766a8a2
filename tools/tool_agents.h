/* What the tools about other agents ask of whoever runs several of them: spawn, fork, message, wait,
 * receive, cancel, merge, as models name them in their dialects.
 *
 * The tools check what a model wrote against the bounds below; whether it may be done, and who that is,
 * the host decides. What the model did wrong or may not do is a text with TOOL_REFUSED or TOOL_ERROR.
 */
#ifndef HEARTH_TOOLS_TOOL_AGENTS_H
#define HEARTH_TOOLS_TOOL_AGENTS_H

#include "tool.h"

#define TOOL_AGENTS_MAX               32 /* names or briefs in one call, and agents of one fork */
#define TOOL_AGENTS_NAME_BYTES        32 /* with the NUL */
#define TOOL_AGENTS_BRIEF_BYTES_MAX   ((size_t)32 << 10)
#define TOOL_AGENTS_MESSAGE_BYTES_MAX ((size_t)16 << 10)
#define TOOL_AGENTS_TOKENS_MAX        INT64_C(1000000000000)
#define TOOL_AGENTS_TIME_MS_MAX       INT64_C(2592000000) /* 30 days */

enum tool_agents_verb {
    TOOL_AGENTS_SPAWN, /* briefs[0], name, tokens, time_ms; answered at once */
    TOOL_AGENTS_FORK,  /* briefs or count, join, tokens, time_ms; answered when the join is over */
    TOOL_AGENTS_SEND,  /* names[0], text; answered at once */
    TOOL_AGENTS_WAIT,  /* names (none: all that this agent has started), join, time_ms */
    TOOL_AGENTS_RECEIVE, /* time_ms */
    TOOL_AGENTS_CANCEL,  /* names, at least one; answered at once */
    TOOL_AGENTS_MERGE    /* names[0] */
};

enum tool_agents_join { TOOL_AGENTS_ALL, TOOL_AGENTS_ANY, TOOL_AGENTS_PASSING };

/* Views are valid UTF-8 and borrowed for the call. Names have 1 to TOOL_AGENTS_NAME_BYTES - 1 letters,
 * digits, - and _. */
struct tool_agents_ask {
    enum tool_agents_verb verb;
    struct view briefs[TOOL_AGENTS_MAX]; /* 1 to TOOL_AGENTS_BRIEF_BYTES_MAX bytes each */
    size_t brief_count;
    int64_t count;    /* FORK: so many, 1 to TOOL_AGENTS_MAX; with briefs as many as there are */
    struct view name; /* SPAWN; empty: the host chooses one */
    struct view names[TOOL_AGENTS_MAX];
    size_t name_count;
    enum tool_agents_join join;
    struct view text; /* SEND: 1 to TOOL_AGENTS_MESSAGE_BYTES_MAX bytes */
    int64_t tokens;   /* SPAWN, FORK: of each new agent; 0: an equal part */
    /* Of each new agent, or of the wait, whose text then says who is still at work; 0: as long as there
     * is time. */
    int64_t time_ms;
    /* Becomes readable when the call is cancelled: the host gives up at once, with TOOL_CANCELLED. */
    int cancel_fd;
};

/* Zeroed before the call, with an empty text. */
struct tool_agents_answer {
    enum tool_status status;
    struct buffer *text;                  /* for the model */
    char started[TOOL_AGENTS_NAME_BYTES]; /* SPAWN with TOOL_OK: its name */
};

struct tool_agents {
    void *context;
    /* Blocks until there is an answer: calls about other agents have no time limit but ask->time_ms and
     * cancel_fd. One ask of an agent at a time, though one tool call may ask twice, one after the other
     * (a spawn and a wait for it). Thread: that of tool_call. Expected errors: MEMORY, IO. */
    result (*ask
    )(void *context,
      const struct tool_agents_ask *ask,
      struct tool_agents_answer *answer,
      struct error *error);
};

/* The tools that need an `agents` in the context, as a set. */
uint64_t tool_set_agents(void);

#endif
