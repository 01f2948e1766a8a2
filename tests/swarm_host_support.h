/* A swarm that runs on a scripted engine: real runs, records and tools, and at the end a look at what has to hold of
 * each. */
#ifndef HEARTH_TESTS_SWARM_HOST_SUPPORT_H
#define HEARTH_TESTS_SWARM_HOST_SUPPORT_H

#include "runtime/host.h"
#include "runtime/strategy.h"
#include "runtime/swarm_host.h"
#include "sessions/session_swarm.h"
#include "writer_engine.h"

#define CALLS_BEGIN "<｜DSML｜ calls>\n"
#define CALLS_END   "</｜DSML｜ calls>"
#define INVOKE(name, arguments)                                                                    \
    "<｜DSML｜ invoke name=\"" name "\">\n" arguments "</｜DSML｜ invoke>\n"
#define STRING(name, value)                                                                        \
    "<｜DSML｜ parameter name=\"" name "\" string=\"true\">" value "</｜DSML｜ parameter>\n"
#define VALUE(name, value)                                                                         \
    "<｜DSML｜ parameter name=\"" name "\" string=\"false\">" value "</｜DSML｜ parameter>\n"
#define THOUGHT               "Hm.</think>"
#define CALL(name, arguments) THOUGHT CALLS_BEGIN INVOKE(name, arguments) CALLS_END
#define WRITE_FILE(path)      CALL("write", STRING("path", path) STRING("content", "x"))
#define ANSWER(text)          THOUGHT text

/* Where stages are made; null: in memory, where there is such a place. */
extern const char *stage_base;

struct stage_node {
    char name[SWARM_NAME_BYTES];
    size_t parent;
    enum swarm_outcome outcome;
    enum swarm_cut cut;
    enum swarm_verdict verdict;
    bool is_merged, has_score;
    int64_t tokens; /* as the view has it */
};

struct stage {
    char directory[64], workspace[96], state[96], snapshots[96];
    struct text_model model;
    struct tool_declarations declarations;
    struct session_store *store;
    struct loop *loop;
    struct writer_engine *engine;
    struct swarm_host_options options;
    struct swarm_host_outcome outcome;
    struct session_tree *tree; /* of the session, after stage_run */

    /* what the view heard */
    struct swarm_host *host; /* while it runs */
    int began, finished, ending, messages, verified, ranked, merged, warnings, runs, activities;
    char last_warning[400];
    struct stage_node nodes[SWARM_NODES_MAX]; /* [count], at the end */
    size_t count;
    /* Called with each event, from within the listener; null: not. */
    void (*looks)(struct stage *stage, const struct swarm_host_event *event);
    void *script, *script_looks; /* the test's */
};

/* With a task, a strategy by name, limits of a test and the function that writes for the agents, whose context is the
 * stage. */
void stage_open(
    struct stage *stage, const char *strategy, int64_t attempts, writer_engine_write *write
);
/* Of what stands in for swarm_work.h, or of the real one: before each stage, and when nothing is to be left. */
void stage_work_reset(struct stage *stage);
void stage_work_check(const struct stage *stage);

/* Whether agents have tools for other agents. Before stage_run. */
void stage_give_agent_tools(struct stage *stage);
/* Runs it, and looks at the engine, the directories and the record. */
void stage_run(struct stage *stage);
/* The same of one that does not begin. */
result stage_fail(struct stage *stage, struct error *error);
void stage_close(struct stage *stage);

const struct stage_node *stage_node(const struct stage *stage, const char *name);
size_t stage_count(const struct stage *stage, enum swarm_outcome outcome);
/* Of the record. */
const struct session_agent *stage_agent(const struct stage *stage, const char *name);
/* Whether one of the messages that an agent was given has that text in it. */
bool stage_was_told(const struct stage *stage, const char *name, const char *text);
/* The result of an agent's call, from 0; "" when there is none. */
struct view stage_result(const struct stage *stage, const char *name, size_t call);
/* Whether the agent of a prompt is that one: by the notes it got. */
bool prompt_is_of(const struct writer_prompt *prompt, const char *name);
int stage_descriptors(void);

#endif
