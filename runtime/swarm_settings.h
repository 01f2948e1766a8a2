/* The settings of a swarm, beside those that each of its agents has as of any run (run_settings.h): from the
 * options of `hearth swarm`, then from the configuration, then defaults. Thread: main.
 */
#ifndef HEARTH_RUNTIME_SWARM_SETTINGS_H
#define HEARTH_RUNTIME_SWARM_SETTINGS_H

#include "run_settings.h"
#include "strategy.h"

#define SWARM_SETTINGS_TIME_MS_MIN 2000 /* a part is kept back for verifying and merging */
#define SWARM_SETTINGS_DEPTH_MAX   16

struct swarm_settings {
    const char *verify;              /* command line; null: none */
    const struct strategy *strategy; /* null: it is chosen (auto) */
    int64_t attempts;                /* SWARM_ATTEMPTS_DEFAULT: the strategy's */
    int64_t agents_max, at_once, depth_max;
    int64_t verify_ms_max, processes_max;
    uint64_t memory_bytes_max;
    bool has_agent_tools; /* agents can start others themselves */
};

/* Of the command line alone, before anything is opened. An exit status; has said why it is not STATUS_DONE. */
int swarm_settings_read(const struct cli_arguments *arguments, struct swarm_settings *out);
/* What can be said without the model, as run_settings.check; `context`: struct swarm_settings. The same statuses. */
int swarm_settings_check(void *context, const struct run_settings *run);
/* Once the configuration and the model are known (settings_places): what no option said, and whether all of
 * it goes together. The strategies' own tools are added to the run's. The same statuses. */
int swarm_settings_apply(struct swarm_settings *settings, struct run_settings *run);

struct swarm_chosen {
    struct swarm_options options; /* but for the seed; borrows the run's task */
    char why[STRATEGY_WHY_BYTES]; /* this strategy; "": it was asked for */
};
/* Chooses the strategy where none is asked for, and fills in the options. */
void swarm_settings_choose(
    const struct swarm_settings *settings, const struct run_settings *run, struct swarm_chosen *out
);

/* What the record keeps of them, as a JSON object. Expected errors: MEMORY. */
MUST_CHECK result swarm_settings_write(
    const struct swarm_settings *settings,
    const struct swarm_options *options,
    struct buffer *out,
    struct error *error
);

/* Help texts of the options that it reads. */
#define SWARM_OPTIONS                                                                              \
    {"strategy", 0, "NAME", "auto (default), single, race, best-of, plan, staged or retries"},     \
        {"verify",                                                                                 \
         0,                                                                                        \
         "COMMAND",                                                                                \
         "says by its exit status whether a copy of the workspace solves the task"},               \
        {"attempts", 0, "N", "1 to 255: so many agents try it (default: the strategy's)"},         \
        {"max-agents", 0, "N", "1 to 255: started in all (default: 63)"},                          \
        {"at-once", 0, "N", "1 to 255: at work at one time (default: 8)"},                         \
        {"max-depth", 0, "N", "1 to 16: agents that agents start, and theirs (default: 3)"},       \
        {"verify-time", 0, "TIME", "a verification fails after it (default: 60s)"},                \
        {"max-time", 0, "TIME", "of all together: 90s, 10m, 2h (default: no limit)"},              \
        {"max-tokens", 0, "N", "written by all together (default: no limit)"},                     \
        {"max-calls", 0, "N", "tool calls of all together (default: no limit)"},                   \
        {"max-processes", 0, "N", "processes of all commands together (default: no limit)"},       \
        {"max-memory", 0, "SIZE", "of all commands together, such as 8G (default: no limit)"}, {   \
        "agent-tools", 0, "on|off", "agents can start others (default: what the model knows)"      \
    }

#endif
