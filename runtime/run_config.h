/* The configuration's part in the settings of a run: what the command line leaves open. Thread: main.
 */
#ifndef HEARTH_RUNTIME_RUN_CONFIG_H
#define HEARTH_RUNTIME_RUN_CONFIG_H

#include "run_settings.h"

/* Each returns an exit status and has said why it is not STATUS_DONE. */

/* The user's file alone, which says where the state directory is. */
int run_config_user(struct run_settings *settings);
/* All of it, once the workspace is known; then fills in what no option and no record has set. */
int run_config_load(struct run_settings *settings);
int run_config_apply(struct run_settings *settings);

/* Help texts of the options that it reads. */
#define RUN_CONFIG_OPTIONS                                                                         \
    {"config",                                                                                     \
     0,                                                                                            \
     "FILE",                                                                                       \
     "the user's configuration (default: $XDG_CONFIG_HOME/hearth/config.json)"},                   \
        {"set", 0, "KEY=VALUE", "a value over those of the configuration files; repeatable"},      \
        {"policy", 0, "NAME", "read-only, ask, workspace-write (default) or full"},                \
        {"allow", 0, "RULE", "TOOL or TOOL:PATTERN, such as 'shell:git *'; repeatable"},           \
        {"deny", 0, "RULE", "the same, refused; the first rule that fits counts"}, {               \
        "dialect", 0, "NAME", "names of the tools: hearth, claude or codex (default: the model's)" \
    }

#endif
