/* Lists of names, and how shells and git read their options. See permission_words.h. */
#include "permission_words.h"

#include <strings.h>

static bool is_named(struct view word, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (view_equals_text(word, names[i])) {
            return true;
        }
    }
    return false;
}

struct command command_from(struct command command, size_t index) {
    bool is_longer = index > 0 && view_equals_text(command_name(command.words), "xargs");
    return (struct command){command.words + index, command.count - index, is_longer};
}

struct view command_name(const struct shell_word *word) {
    size_t at = word->text.length;
    while (at > 0 && word->text.data[at - 1] != '/') {
        at--;
    }
    return view_slice(word->text, at, word->text.length);
}

/* ---- git ------------------------------------------------------------------------------------ */

/* Of the options of git, from one on: whether it sets an alias, or something that is not known. */
static bool may_rename(struct command options) {
    if (!view_equals_text(options.words[0].text, "-c")) {
        return view_starts_with(options.words[0].text, view_of_text("--config-env"));
    }
    if (options.count < 2 || options.words[1].is_expanded) {
        return true;
    }
    struct view value = options.words[1].text;
    const char *text = (const char *)value.data;
    return (value.length > 6 && strncasecmp(text, "alias.", 6) == 0) ||
           (value.length > 7 && strncasecmp(text, "include", 7) == 0);
}

size_t command_options_end(struct command command, bool *is_renamed) {
    static const char *const with_value[] = {
        "-C",
        "-c",
        "--git-dir",
        "--work-tree",
        "--namespace",
        "--super-prefix",
        "--config-env",
        "--attr-source"};
    *is_renamed = false;
    if (command.count == 0 || !view_equals_text(command_name(command.words), "git")) {
        return 1;
    }
    size_t at = 1;
    while (at < command.count && view_starts_with(command.words[at].text, view_of_text("-"))) {
        struct view option = command.words[at].text;
        bool takes_next = is_named(option, with_value, COUNT_OF(with_value));
        *is_renamed = *is_renamed || may_rename(command_from(command, at));
        at += takes_next ? 2 : 1;
    }
    return at;
}

/* ---- commands in words ---------------------------------------------------------------------- */

bool command_runs_its_words(struct command command) {
    static const char *const names[] = {
        "env",
        "sudo",
        "doas",
        "command",
        "exec",
        "builtin",
        "nohup",
        "nice",
        "ionice",
        "time",
        "timeout",
        "stdbuf",
        "setsid",
        "xargs",
        "find",
        "busybox",
        "chroot",
        "unshare",
        "strace",
        "watch",
        "flock",
        "taskset",
        "script",
        "parallel",
        "chrt",
        "prlimit",
        "setpriv",
        "setarch",
        "choom",
        "nsenter",
        "bwrap",
        "eval",
        "unbuffer",
        "start-stop-daemon",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1"};
    return is_named(command_name(command.words), names, COUNT_OF(names));
}

/* ---- text of a shell ------------------------------------------------------------------------ */

static bool is_shell(struct view name) {
    static const char *const shells[] = {"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"};
    return is_named(name, shells, COUNT_OF(shells));
}

/* A shell that takes commands from a word ("-c TEXT") or from its input. */
static bool shell_runs_text(struct command command) {
    bool has_script = false;
    for (size_t i = 1; i < command.count; i++) {
        struct view word = command.words[i].text;
        bool is_option = word.length > 1 && word.data[0] == '-';
        bool takes_text = is_option && word.data[1] != '-' &&
                          (memchr(word.data, 'c', word.length) != NULL ||
                           memchr(word.data, 's', word.length) != NULL);
        if (takes_text || command.words[i].is_expanded) {
            return true;
        }
        has_script = has_script || !is_option;
    }
    return !has_script;
}

/* Programs of other languages can do anything, whatever they are called with. */
bool command_runs_text(struct command command) {
    static const char *const always[] = {
        "eval", "source", ".", "trap", "alias", "ssh", "su", "runuser"};
    static const char *const joins[] = {"env", "script", "watch", "flock", "parallel"};
    struct view name = command_name(command.words);
    for (size_t i = 1; i < command.count && is_named(name, joins, COUNT_OF(joins)); i++) {
        struct view word = command.words[i].text;
        bool is_text = view_find(word, view_of_text(" "), 0) != SIZE_MAX ||
                       view_find(word, view_of_text("\t"), 0) != SIZE_MAX;
        if (is_text && !(view_equals_text(name, "env") && i == 1 && word.data[0] != '-')) {
            return true; /* "env -S TEXT", "script -c TEXT", but "env A='a b' ls" */
        }
    }
    return (is_shell(name) && shell_runs_text(command)) || is_named(name, always, COUNT_OF(always));
}

/* The word that is TEXT in "sh -e -o NAME -c TEXT"; 0: it is of another form. */
static size_t shell_text_at(struct command command) {
    bool takes_text = false;
    for (size_t i = 1; i < command.count; i++) {
        struct view word = command.words[i].text;
        bool is_option = word.length > 1 && (word.data[0] == '-' || word.data[0] == '+');
        if (command.words[i].is_expanded) {
            return 0;
        }
        if (!is_option) {
            return takes_text ? i : 0;
        }
        bool has_value = false;
        for (size_t k = 1; k < word.length; k++) {
            char letter = (char)word.data[k];
            bool is_known = letter != 's' &&
                            ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z'));
            if (!is_known) {
                return 0;
            }
            has_value = has_value || letter == 'o' || letter == 'O';
            takes_text = takes_text || (letter == 'c' && word.data[0] == '-');
        }
        i += has_value ? 1 : 0;
    }
    return 0;
}

bool command_find_text(struct command command, size_t *shell_at, struct view *text) {
    size_t end = command.count > 0 && command_runs_its_words(command) ? command.count : 1;
    for (size_t i = 0; i < end && i < command.count; i++) {
        struct command inner = command_from(command, i);
        struct view name = command_name(inner.words);
        size_t at = is_shell(name) ? shell_text_at(inner) : 0;
        if (view_equals_text(name, "eval") && inner.count == 2 && !inner.words[1].is_expanded) {
            at = 1;
        }
        if (at > 0) {
            *shell_at = i;
            *text = inner.words[at].text;
            return true;
        }
    }
    return false;
}

bool command_runs_others(struct command command) {
    static const char *const interpreters[] = {"awk", "make", "perl", "ruby", "node", "php"};
    struct view name = command_name(command.words);
    return command_runs_its_words(command) || command_runs_text(command) || is_shell(name) ||
           is_named(name, interpreters, COUNT_OF(interpreters)) ||
           view_starts_with(name, view_of_text("python"));
}
