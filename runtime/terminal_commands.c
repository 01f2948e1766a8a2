/* The table of commands behind a slash; see terminal_commands.h. */
#include "terminal_commands.h"

#include "nearest_name.h"

static const struct terminal_command commands[] = {
    {"help", "", "this text", TERMINAL_HELP, 0},
    {"effort",
     "N",
     "how much the model thinks: 1 to 100, low, high, max, off",
     TERMINAL_RUN,
     RUN_COMMAND_EFFORT},
    {"model",
     "DIR",
     "go on with another model, in a fork; alone: which it is",
     TERMINAL_RUN,
     RUN_COMMAND_MODEL},
    {"thinking", "", "show thinking in full, or fold it (Ctrl-T)", TERMINAL_THINKING, 0},
    {"compact", "", "make the context shorter by a summary", TERMINAL_RUN, RUN_COMMAND_COMPACT},
    {"fork",
     "",
     "a second session that begins where this one stands",
     TERMINAL_RUN,
     RUN_COMMAND_FORK},
    {"rewind",
     "N",
     "conversation and files as after turn N; 0: as at the begin",
     TERMINAL_RUN,
     RUN_COMMAND_REWIND},
    {"undo", "", "files as they were before the last change", TERMINAL_RUN, RUN_COMMAND_UNDO},
    {"diff", "", "what changed in the workspace", TERMINAL_RUN, RUN_COMMAND_DIFF},
    {"budget", "", "what is spent and what is left", TERMINAL_RUN, RUN_COMMAND_BUDGET},
    {"status",
     "",
     "session, model, workspace, what is spent and left",
     TERMINAL_RUN,
     RUN_COMMAND_STATUS},
    {"permissions",
     "",
     "policy and rules, those of your answers too",
     TERMINAL_RUN,
     RUN_COMMAND_PERMISSIONS},
    {"sessions", "", "recorded sessions", TERMINAL_RUN, RUN_COMMAND_SESSIONS},
    {"clear", "", "a new session; this one can be resumed", TERMINAL_RUN, RUN_COMMAND_CLEAR},
    {"quit", "", "end; the session can be resumed (Ctrl-D)", TERMINAL_RUN, RUN_COMMAND_QUIT},
};

size_t terminal_command_count(void) {
    return COUNT_OF(commands);
}

const struct terminal_command *terminal_command_at(size_t index) {
    ASSERT(index < COUNT_OF(commands));
    return &commands[index];
}

bool terminal_command_parse(
    struct view line,
    const struct terminal_command **out,
    struct view *argument,
    const char **nearest
) {
    size_t end = 1;
    while (end < line.length && line.data[end] >= 'a' && line.data[end] <= 'z') {
        end++;
    }
    if (line.length == 0 || line.data[0] != '/' || (end == 1 && line.length > 1) ||
        (end < line.length && line.data[end] != ' ' && line.data[end] != '\n')) {
        return false;
    }
    struct view name = view_slice(line, 1, end - 1);
    while (end < line.length && (line.data[end] == ' ' || line.data[end] == '\n')) {
        end++;
    }
    *argument = view_slice(line, end, line.length - end);
    const char *names[COUNT_OF(commands)];
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        names[i] = commands[i].name;
        if (view_equals_text(name, names[i])) {
            *out = &commands[i];
            return true;
        }
    }
    *out = NULL;
    *nearest = name.length > 0 ? nearest_name(name, names, COUNT_OF(names)) : NULL;
    return true;
}

result terminal_help(struct buffer *out, struct error *error) {
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        const struct terminal_command *command = &commands[i];
        char left[32];
        int length = snprintf(left, sizeof left, "/%s %s", command->name, command->argument);
        ASSERT(length > 0);
        TRY(buffer_append_format(out, error, "%-14s %s\n", left, command->help));
    }
    return buffer_append_text(
        out,
        "Enter sends, also while the model works: it is read before its next turn.\n"
        "Alt-Enter, Ctrl-J, or \\ at the end of a line: a further line. Tab completes.\n"
        "Up, Ctrl-R: earlier lines. Ctrl-C: interrupt, twice: end. Ctrl-D: end.\n"
        "Esc Esc: interrupt and send what is typed. Ctrl-L: draw anew. Ctrl-Z: suspend.\n",
        error
    );
}
