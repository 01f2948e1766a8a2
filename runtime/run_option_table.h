/* Options that `hearth run` and `hearth swarm` share, with their help texts. What reads them: run_settings.h,
 * generation_settings.h, run_config.h.
 */
#ifndef HEARTH_RUNTIME_RUN_OPTION_TABLE_H
#define HEARTH_RUNTIME_RUN_OPTION_TABLE_H

#include "run_config.h"

/* clang-format off */

#define RUN_PLACE_OPTIONS                                                                          \
    {"directory", 'C', "DIR", "the workspace to work in (default: the current directory)"},        \
    {"worktree", 0, NULL, "work in a copy of the workspace with a repository of its own"}

#define RUN_GENERATION_OPTIONS                                                                     \
    {"model", 0, "DIR", "model in the official layout (default: the bundled one)"},                \
    {"effort", 0, "N", "1 to 100, low, high, max, off (default: the model's agent.json, else 75)"}, \
    {"temperature", 0, "T", "0 is greedy (default: generation_config.json, else 1.0)"},            \
    {"top-p", 0, "P", "above 0, at most 1 (default: generation_config.json, else 0.95)"},          \
    {"top-k", 0, "N", "only the N most likely tokens (default: 0, all)"},                          \
    {"min-p", 0, "P", "only tokens P times as likely as the likeliest (default: 0, all)"},         \
    {"repetition-penalty", 0, "R", "0.01 to 100: weakens tokens that were seen (default: 1, off)"}, \
    {"presence-penalty", 0, "P", "-2 to 2: weakens tokens that were written (default: 0)"},        \
    {"frequency-penalty", 0, "P", "-2 to 2: the same, each time (default: 0)"},                    \
    {"logit-bias", 0, "ID=BIAS", "-100 to 100 or never, for a token id; commas, repeatable"},      \
    {"stop", 0, "TEXT", "end the model's turn when it writes TEXT; repeatable"},                   \
    {"speculate", 0, "MODE", "auto (default), off, lookup or draft: faster, the same text"},       \
    {"draft-max", 0, "N", "1 to 16: tokens of one draft (default: what pays)"},                    \
    {"constrain-tools", 0, "on|off", "tool calls must fit their schemas (default: off)"},          \
    {"max-thinking", 0, "N|off", "end a turn that thinks N tokens (default: half the context)"},   \
    {"max-call", 0, "N|off", "end a turn with N tokens in open calls (default: half the context)"}, \
    {"max-repeats", 0, "N|off", "end a turn that repeats a text N times on end (default: 32)"},    \
    {"logprobs", 0, "N", "with --json: each token with the N (0 to 20) likeliest in its place"},   \
    {"seed", 0, "N", "of the sampler (default: drawn, and recorded)"}

#define RUN_TURN_OPTIONS                                                                           \
    {"max-turn-tokens", 0, "N", "at most N tokens in one turn (default: the model's, see man page)"}, \
    {"compact-at", 0, "PERCENT", "make a context that is so full smaller (default: 80; 0: never)"}, \
    {"keep-turns", 0, "N", "turns that stay as they are then (default: 2)"}

#define RUN_ENGINE_OPTIONS                                                                         \
    {"tools", 0, "NAMES", "tools to offer, comma-separated (default: those of the dialect)"},      \
    {"window", 0, "MODE", "exact (default), or replay: approximate, fewer decoder rows"},          \
    {"context", 0, "N", "longest context in tokens (default: the model's)"},                       \
    BACKEND_OPTION,                                                                                \
    RUN_CONFIG_OPTIONS,                                                                            \
    {"threads", 0, "N", "threads of the CPU backend (default: one a core)"},                       \
    {"cache", 0, "SIZE", "cache on disk: at most SIZE, or off (default: 16G, or a quarter free)"}, \
    {"cache-hours", 0, "N", "keep what is cached on disk for N hours (default: 72)"},              \
    {"cache-writes", 0, "SIZE", "write at most SIZE an hour to it (default: 8G)"},                 \
    {"cache-memory", 0, "SIZE", "cache in memory beside the live context, or off (see man page)"}, \
    {"snapshots", 0, "SIZE", "memory for window snapshots, or off (default: a tenth)"},            \
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"}

/* clang-format on */

#endif
