/* The configuration: one JSON file of the user's, one of the project's, options over both, and where
 * each value came from.
 *
 * A value is looked for in the options, then in the project's file (.hearth/config.json in the
 * workspace), then in the user's ($XDG_CONFIG_HOME/hearth/config.json), then among the defaults. The
 * project's file is foreign: it can narrow what the user allows and never widen it; servers, hooks, a
 * model, a verifier and allowing rules in it count only where the user's file lists the directory under "trust", and
 * as long as it is what was accepted (config_trust.h).
 * Unknown keys, wrong types and values out of range are errors that name file, line and key.
 * Thread: main; immutable once loaded.
 */
#ifndef HEARTH_RUNTIME_CONFIG_H
#define HEARTH_RUNTIME_CONFIG_H

#include "base/json.h"
#include "config_trust.h"
#include "permission.h"

#define CONFIG_FILE_BYTES_MAX  ((size_t)1 << 20)
#define CONFIG_TEXT_BYTES_MAX  ((size_t)4000) /* one string */
#define CONFIG_ITEMS_MAX       256            /* of one list */
#define CONFIG_NOTES_MAX       64
#define CONFIG_PROJECT_FILE    ".hearth/config.json"
#define CONFIG_PROJECT_HOOKS   ".hearth" /* where hooks of a project lie, in the workspace */
#define CONFIG_USER_HOOKS      "hooks"   /* and the user's, beside the file */
#define CONFIG_HOOK_MS_DEFAULT 10000
#define CONFIG_HOOK_MS_MAX     600000
#define CONFIG_MCP_MS_DEFAULT  60000
#define CONFIG_MCP_MS_MAX      3600000

enum config_key {
    CONFIG_MODEL,
    CONFIG_BACKEND,
    CONFIG_STATE,
    CONFIG_EFFORT,
    CONFIG_CONTEXT,
    CONFIG_TOOLS_SET,
    CONFIG_TOOLS_DIALECT,
    CONFIG_POLICY,
    CONFIG_RULES,
    CONFIG_NETWORK_ALLOW,
    CONFIG_MCP,
    CONFIG_HOOKS_BEFORE_TOOL,
    CONFIG_HOOKS_AFTER_TOOL,
    CONFIG_HOOKS_STOP,
    CONFIG_INSTRUCTIONS_MAX_BYTES,
    CONFIG_INSTRUCTIONS_FILES,
    CONFIG_SKILLS_DIRECTORIES,
    CONFIG_BUDGET_TIME,
    CONFIG_BUDGET_TOKENS,
    CONFIG_BUDGET_CALLS,
    CONFIG_COMPACTION_AT_PERCENT,
    CONFIG_COMPACTION_KEEP_TURNS,
    CONFIG_CACHE_DISK,
    CONFIG_CACHE_HOURS,
    CONFIG_CACHE_WRITES,
    CONFIG_CACHE_MEMORY,
    CONFIG_CACHE_SNAPSHOTS,
    CONFIG_SESSIONS_SNAPSHOTS_MAX,
    CONFIG_TERMINAL_COLOUR,
    CONFIG_TERMINAL_MARKDOWN,
    CONFIG_SWARM_STRATEGY,
    CONFIG_SWARM_VERIFY,
    CONFIG_SWARM_MAX_AGENTS,
    CONFIG_SWARM_AT_ONCE,
    CONFIG_TRUST,
    CONFIG_KEY_COUNT
};

enum config_source { CONFIG_BY_DEFAULT, CONFIG_BY_USER, CONFIG_BY_PROJECT, CONFIG_BY_OPTION };

struct config_origin {
    enum config_source source;
    const char *name; /* the file's path or the option; "" for a default */
    unsigned line;    /* in the file; 0: none */
};

/* Every list has these two members, in this order. Strings are NUL-terminated UTF-8 without control
 * characters. */
struct config_list {
    const char *const *items;
    size_t count;
};

struct config_size {
    bool is_off;
    uint64_t bytes; /* 0: the engine's default */
};

struct config_hook {
    const char *command; /* absolute path of the executable */
    struct config_list arguments;
    const char *tool; /* glob over tool names; "*" with a stop hook */
    int64_t timeout_ms;
    struct config_origin origin;
};
struct config_hooks {
    const struct config_hook *items;
    size_t count;
};

struct config_server {
    const char *name;               /* letters, digits, - and _ */
    struct config_list command;     /* at least one word */
    struct config_list environment; /* "NAME=VALUE" */
    struct config_list read_only;   /* globs over its tools: these only read */
    struct config_list directories; /* absolute; it sees them read-only, beside the workspace */
    int64_t timeout_ms;             /* of one call */
    bool is_trusted;                /* runs outside of the sandbox; of the user's file only */
    struct config_origin origin;
};
struct config_servers {
    const struct config_server *items;
    size_t count;
};

struct config_rules {
    const struct permission_rule *items; /* of options, then the user's, then the project's */
    size_t count;
};

enum config_colour { CONFIG_COLOUR_AUTO, CONFIG_COLOUR_ALWAYS, CONFIG_COLOUR_NEVER };

struct config {
    const char *model;            /* absolute directory; null: the bundled one */
    const char *backend;          /* "auto", "cpu", "cuda" */
    const char *state;            /* absolute; null: the default place */
    int32_t effort;               /* as chat_effort_parse gives it; only when config_is_set */
    int64_t context;              /* tokens; 0: the model's */
    struct config_list tools_set; /* names; none: the default set */
    const char *tools_dialect;    /* null: the model's */
    enum permission_policy policy;
    struct config_rules rules;
    struct config_list network_allow; /* entries of network_rules_create */
    struct config_servers mcp;
    struct config_hooks hooks_before_tool, hooks_after_tool, hooks_stop;
    int64_t instructions_max_bytes;                      /* 0: none are read */
    struct config_list instructions_files;               /* names that are looked for, in order */
    struct config_list skills_directories;               /* absolute */
    int64_t budget_time_ms, budget_tokens, budget_calls; /* 0: no limit */
    int64_t compaction_at_percent, compaction_keep_turns;
    struct config_size cache_disk, cache_writes, cache_memory, cache_snapshots;
    int64_t cache_hours; /* 0: the engine's default */
    struct config_size sessions_snapshots_max;
    enum config_colour terminal_colour;
    bool terminal_markdown;
    const char *swarm_strategy; /* "auto", or of strategy_names */
    const char *swarm_verify;   /* command line; null: none */
    int64_t swarm_max_agents, swarm_at_once;
    struct config_list trust; /* absolute directories */

    struct config_origin origins[CONFIG_KEY_COUNT]; /* of `rules`: of the first one */
    const char *user_directory; /* that holds the user's file, hooks, skills and AGENTS.md; may be
                                 * missing on disk; null: there is no home directory */
    const char *user_file;      /* null: none was read */
    const char *project_file;   /* null: none was read */
    bool is_listed;             /* the workspace is listed under "trust" */
    bool is_trusted;            /* and its file is the one that was accepted */
    char project_digest[SHA256_HEX_BYTES]; /* of the project's file, or CONFIG_TRUST_NONE */
    struct config_list notes;              /* sentences about what does not count, for the person */
    struct config_memory *memory;
};

/* An option of the command line in a key's place. Of a list the text is comma-separated, or JSON; an
 * option that is repeated adds to itself. A rule is ACTION:TOOL or ACTION:TOOL:PATTERN; rules of
 * options come before those of files, any other list takes the place of the files'. */
struct config_override {
    enum config_key key;
    const char *text;
    const char *option; /* "--effort", for messages and origin */
};

struct config_options {
    const char *user_file; /* --config FILE, which must exist; null: the user's own, if it exists */
    const char
        *workspace;       /* absolute, resolved (path_directory); null: no project's file is read */
    bool ignores_project; /* the project's file is not read */
    /* The state directory, in which it stands which project's file was accepted; null: any is. */
    const char *trust_state;
    bool records_trust; /* a workspace that is trusted for the first time is accepted as it is */
    const struct config_override *overrides; /* [override_count] */
    size_t override_count;
};

/* Expected errors: INVALID_INPUT (whatever is wrong with a file or an option; names file, line, key),
 * MEMORY, IO. */
MUST_CHECK result
config_load(const struct config_options *options, struct config **out, struct error *error);
void config_destroy(struct config *config);
void config_cleanup(struct config **config);

/* "KEY=VALUE" as an override; its text is borrowed. Expected errors: INVALID_INPUT. */
MUST_CHECK result config_override_parse(
    const char *text, const char *option, struct config_override *out, struct error *error
);
const char *config_key_name(enum config_key key); /* "budget.time" */
bool config_key_find(struct view name, enum config_key *out);
bool config_key_is_in(enum config_key key, struct view group); /* "budget.time" in "budget" */
const char *config_key_nearest(struct view name);              /* null: none is near */
/* Whether anything but the default gave it. */
bool config_is_set(const struct config *config, enum config_key key);
/* The value as a file would hold it; values of environments, which may be secrets, are left out. */
void config_value_write(
    const struct config *config, enum config_key key, struct json_writer *writer
);
/* Appends "default", "--effort", "FILE:3". Expected errors: MEMORY, LIMIT. */
MUST_CHECK result
config_origin_describe(const struct config_origin *origin, struct buffer *out, struct error *error);

#endif
