/* Inside of config*.c: the table of keys, and reading one file or the options into a layer. Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_CONFIG_INTERNAL_H
#define HEARTH_RUNTIME_CONFIG_INTERNAL_H

#include "config.h"

enum config_type {
    CONFIG_DIRECTORY, /* a path; relative ones count from the folder of the file, ~/ from home */
    CONFIG_CHOICE,    /* one of `words` */
    CONFIG_POLICY_NAME,
    CONFIG_COLOUR_NAME,
    CONFIG_EFFORT_LEVEL,
    CONFIG_INTEGER, /* min to max */
    CONFIG_DURATION,
    CONFIG_SIZE,
    CONFIG_BOOLEAN,
    CONFIG_TEXT,        /* a string that is not empty */
    CONFIG_TEXTS,       /* list of strings */
    CONFIG_DIRECTORIES, /* list of paths */
    CONFIG_HOSTS,
    CONFIG_RULE_LIST,
    CONFIG_SERVER_LIST,
    CONFIG_HOOK_LIST
};

/* What a project's file may do with a key. Lists of rules, servers, hooks and directories add to the
 * user's; any other value takes the place of the user's. */
enum config_project {
    CONFIG_PROJECT_SETS,
    CONFIG_PROJECT_NARROWS, /* counts as far as it is less than the user's */
    CONFIG_PROJECT_TRUSTED, /* counts when the project is trusted */
    CONFIG_PROJECT_NEVER
};

struct config_row {
    const char *name;
    enum config_type type;
    enum config_project project;
    size_t offset, bytes; /* of the field in struct config */
    int64_t min, max;     /* of an integer */
    const char *words;    /* of a choice: "auto cpu cuda" */
};

extern const struct config_row config_rows[CONFIG_KEY_COUNT];

/* What one file or the options give. */
struct config_layer {
    struct config values;
    bool is_given[CONFIG_KEY_COUNT];
    enum config_source source;
    const char *name;      /* the file's path, or the option at hand */
    const char *directory; /* relative paths count from here: the file's own, or the workspace */
    const char *home;      /* null: there is none */
    struct config_memory *memory;
    const char *text; /* that lines are counted in: start of the document's root; null: none */
    unsigned first_line;
};

/* Memory that lives as long as the configuration. Expected errors: MEMORY. */
MUST_CHECK result config_memory_create(struct config_memory **out, struct error *error);
void config_memory_destroy(struct config_memory *memory);
MUST_CHECK result
config_allocate(struct config_memory *memory, size_t bytes, void **out, struct error *error);
MUST_CHECK result
config_copy(struct config_memory *memory, struct view text, const char **out, struct error *error);

/* "FILE:3: 'budget.time' MESSAGE" or "--max-time MESSAGE". Always fails, INVALID_INPUT. */
result config_wrong(
    const struct config_layer *layer,
    struct json_value at,
    const char *key,
    struct error *error,
    const char *format,
    ...
) PRINTF_LIKE(5, 6);
struct config_origin config_origin_of(const struct config_layer *layer, struct json_value at);

/* A string of at most CONFIG_TEXT_BYTES_MAX without control characters, copied. */
MUST_CHECK result config_take_text(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    const char **out,
    struct error *error
);
MUST_CHECK result config_take_texts(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    struct config_list *out,
    struct error *error
);
/* The same as an absolute path without "." and ".."; a project's may not lead out of the workspace. */
MUST_CHECK result config_take_path(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    const char **out,
    struct error *error
);
MUST_CHECK result config_take_paths(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    struct config_list *out,
    struct error *error
);
/* Whether an absolute path is the directory or below it. */
bool config_is_below(const char *path, const char *directory);
/* Fails when an object has a member that is not among names. */
MUST_CHECK result config_check_members(
    const struct config_layer *layer,
    struct json_value object,
    const char *key,
    const char *const *names,
    size_t count,
    struct error *error
);
MUST_CHECK result config_take_integer(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    int64_t min,
    int64_t max,
    int64_t *out,
    struct error *error
);

/* The name of a tool in any dialect becomes our own; a glob has to fit one. Of a server's tool
 * ("mcp__S__T") nothing is checked yet (config_tools.c). */
MUST_CHECK result config_take_tool(
    const struct config_layer *layer,
    struct json_value at,
    const char *key,
    const char **name,
    struct error *error
);
/* Whether a name or glob of a server's tool may fit one of these servers; else `reason` says why not. */
bool config_tool_is_known(
    const char *tool, const struct config_servers *const lists[2], char *reason, size_t reason_bytes
);

/* Lists of objects (config_lists.c). */
typedef result config_take_list(
    const struct config_layer *layer,
    struct json_value value,
    const char *key,
    void *out,
    struct error *error
);
config_take_list config_take_rules, config_take_servers, config_take_hooks;
/* Whether `entry` of a project's network.allow is no wider than one of the user's (network_rules.h). */
bool config_host_is_covered(const char *entry, const struct config_list *allowed);
MUST_CHECK result config_check_host(
    const struct config_layer *layer,
    struct json_value at,
    const char *key,
    const char *host,
    struct error *error
);

/* One value into its field. */
MUST_CHECK result config_take_value(
    struct config_layer *layer, enum config_key key, struct json_value value, struct error *error
);
/* A whole file. */
MUST_CHECK result
config_take_file(struct config_layer *layer, struct view text, struct error *error);
/* The overrides, in their order (config_options.c). */
MUST_CHECK result config_take_options(
    struct config_layer *layer, const struct config_options *options, struct error *error
);

#endif
