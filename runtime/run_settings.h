/* The settings of a run: from the options of `hearth run`, from a recorded session that goes on, and
 * from the model's directory. Thread: main.
 */
#ifndef HEARTH_RUNTIME_RUN_SETTINGS_H
#define HEARTH_RUNTIME_RUN_SETTINGS_H

#include "cli.h"
#include "config.h"
#include "generation_settings.h"
#include "host.h"
#include "sessions/session.h"

/* The KV store, from the command line; 0: the engine's default. */
struct cache_settings {
    bool is_off;  /* the one on disk */
    bool is_cold; /* for measurements: nothing that another sequence evaluated is found */
    uint64_t disk_bytes, write_bytes_hour, memory_bytes, snapshot_bytes;
    int64_t hours;
};

#define CACHE_NO_POOL_BYTES 1 /* a pool of so many bytes holds nothing; 0: the engine's default */
#define RUN_RULES_MAX       64

struct swarm_options;

struct run_settings {
    const struct cli_arguments *arguments;
    const struct session_tree *record; /* of the session that goes on; null: a new one */
    struct buffer task;                /* empty: a session goes on without a new message */
    struct buffer workspace, state, model, snapshots, state_option;
    struct buffer worktree_of;     /* the directory that `workspace` is a copy of; empty: none */
    int *worktree_lease;           /* of the caller: -1, or the copy's */
    struct buffer cache_directory; /* of the disk tier */
    struct config *user_config;    /* the user's file alone */
    struct config *config;         /* with the project's and the options */
    struct buffer rules[RUN_RULES_MAX]; /* [rule_count] --allow and --deny */
    size_t rule_count;
    enum tool_dialect dialect;
    struct cache_settings cache;
    const char *backend; /* "auto", "cpu", "cuda" */
    struct model_settings model_settings;
    bool is_swarm; /* many agents: nobody is waited for, no servers are started */
    const struct swarm_options *swarm; /* with is_swarm, when the engine is opened */
    /* An exit status: refuses what does not go with the configuration, before a copy is made. Null: nothing. */
    int (*check)(void *context, const struct run_settings *settings);
    void *check_context;
    bool is_interactive;     /* waits for a person; the task may be empty */
    uint64_t tools;          /* that may be called; without tool_set_agents() */
    uint64_t declared_tools; /* to the model */
    int32_t effort;
    int64_t time_ms_max, tokens_max, turns_max, turn_tokens_max, context_max, threads, calls_max;
    int64_t compact_at_percent, compact_keep_turns;
    bool has_seed;
    uint64_t seed;
    double temperature, top_p; /* negative: the model's default */
    enum window_mode window;
    struct generation_settings generation;
};

/* Each returns an exit status and has said why it is not STATUS_DONE. In this order: options, the
 * task, the directories (with the record, when there is one). */
int settings_numbers(struct run_settings *settings);
int settings_task(struct run_settings *settings);
int settings_state(struct run_settings *settings);
int settings_places(struct run_settings *settings);
void settings_deinit(struct run_settings *settings); /* usable with CLEANUP */

#endif
