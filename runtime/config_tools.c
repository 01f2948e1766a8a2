/* Names of tools in rules and hooks: one that is none would never apply, so that a person believes in a
 * rule that does nothing. Names of servers' tools are known no further than the server. */
#include "config_internal.h"
#include "nearest_name.h"
#include "permission_match.h"
#include "tools/tool.h"

#define SERVER_PREFIX "mcp__"
#define WILDCARDS     "*?\\"
#define NAMES_MAX     ((size_t)TOOL_DIALECT_COUNT * TOOL_COUNT_MAX)
#define KNOWN_MAX     64 /* servers of two files, each bounded by config_take_servers */

/* Whether a glob fits the name of a built-in tool, or may fit that of a server's. */
static bool glob_fits_any(const char *glob) {
    size_t literal = strcspn(glob, WILDCARDS);
    size_t common = literal < strlen(SERVER_PREFIX) ? literal : strlen(SERVER_PREFIX);
    bool fits = strncmp(glob, SERVER_PREFIX, common) == 0;
    for (size_t i = 0; i < tool_count() && !fits; i++) {
        fits = glob_matches(view_of_text(glob), view_of_text(tool_at(i)->name), false);
    }
    return fits;
}

/* What may have been meant: "shell" of "Bash(git *)", "fetch" of "WebFtech". */
static const char *nearest_tool(struct view name) {
    const char *names[NAMES_MAX];
    size_t count = 0;
    struct view begin = view_slice(name, 0, 0);
    while (begin.length < name.length && strchr("( :" WILDCARDS, name.data[begin.length]) == NULL) {
        begin.length++;
    }
    for (size_t i = 0; i < tool_count(); i++) {
        for (size_t d = 0; d < TOOL_DIALECT_COUNT; d++) {
            const struct tool_descriptor *form = tool_form(i, (enum tool_dialect)d, tool_set_all());
            if (form != NULL) {
                names[count++] = form->name;
            }
        }
    }
    const char *nearest = nearest_name(begin, names, count);
    size_t index = nearest != NULL ? tool_index(view_of_text(nearest)) : SIZE_MAX;
    return index == SIZE_MAX ? NULL : tool_at(index)->name;
}

result config_take_tool(
    const struct config_layer *layer,
    struct json_value at,
    const char *key,
    const char **name,
    struct error *error
) {
    struct view text = view_of_text(*name);
    bool is_glob = strpbrk(*name, WILDCARDS) != NULL;
    size_t index = tool_index(text);
    if (index != SIZE_MAX) {
        *name = tool_at(index)->name; /* rules and hooks are asked by our names */
        return OK;
    }
    if (is_glob ? glob_fits_any(*name) : view_starts_with(text, view_of_text(SERVER_PREFIX))) {
        return OK;
    }
    const char *nearest = nearest_tool(text);
    return config_wrong(
        layer,
        at,
        key,
        error,
        "names no tool: '%.*s'%s%s%s (hearth tool list --tools all names them)",
        VIEW_ARGUMENTS(view_slice(text, 0, 60)),
        nearest != NULL ? ", did you mean '" : "",
        nearest != NULL ? nearest : "",
        nearest != NULL ? (strchr(*name, '(') != NULL ? ":PATTERN'?" : "'?") : ""
    );
}

/* ---- servers -------------------------------------------------------------------------------- */

/* "files" of "mcp__files__read"; empty where a wildcard leaves it open. */
static struct view server_of(struct view tool) {
    struct view rest = view_slice(tool, strlen(SERVER_PREFIX), tool.length);
    size_t end = view_find(rest, view_of_text("__"), 0);
    struct view server = view_slice(rest, 0, end == SIZE_MAX ? rest.length : end);
    for (size_t i = 0; i < server.length; i++) {
        if (strchr(WILDCARDS, server.data[i]) != NULL) {
            return view_slice(server, 0, 0);
        }
    }
    return server;
}

bool config_tool_is_known(
    const char *tool, const struct config_servers *const lists[2], char *reason, size_t reason_bytes
) {
    struct view text = view_of_text(tool);
    const char *names[KNOWN_MAX];
    size_t count = 0;
    if (!view_starts_with(text, view_of_text(SERVER_PREFIX))) {
        return true;
    }
    struct view server = server_of(text);
    bool is_known = server.length == 0;
    for (size_t list = 0; list < 2; list++) {
        for (size_t i = 0; i < lists[list]->count && count < KNOWN_MAX; i++) {
            names[count++] = lists[list]->items[i].name;
            is_known = is_known || view_equals_text(server, names[count - 1]);
        }
    }
    bool is_whole = strpbrk(tool, WILDCARDS) != NULL ||
                    view_find(text, view_of_text("__"), strlen(SERVER_PREFIX)) != SIZE_MAX;
    const char *nearest = is_known ? NULL : nearest_name(server, names, count);
    int length = 0;
    if (!is_known) {
        length = snprintf(
            reason,
            reason_bytes,
            "no server '%.*s' is configured%s%s%s",
            VIEW_ARGUMENTS(view_slice(server, 0, 60)),
            nearest != NULL ? ": did you mean '" : "",
            nearest != NULL ? nearest : "",
            nearest != NULL ? "'?" : ""
        );
    } else if (!is_whole) {
        length = snprintf(
            reason, reason_bytes, "it names no tool of the server: did you mean '%.60s__*'?", tool
        );
    }
    ASSERT(length >= 0);
    return is_known && is_whole;
}
