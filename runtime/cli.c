/* Finding the command, and reading its options with getopt_long. */
#include "cli.h"

#include "nearest_name.h"
#include "sandbox/sandbox.h"
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <unistd.h>

#define PATH_WORDS_MAX  2
#define WORD_BYTES_MAX  32 /* of a command's path */
#define INPUT_BYTES_MAX ((size_t)64 << 20)

const struct cli_command *const cli_commands[] = {
    // clang-format off
    &command_run,
    &command_swarm,
    &command_sessions_list,
    &command_sessions_show,
    &command_sessions_fork,
    &command_sessions_diff,
    &command_sessions_rewind,
    &command_sessions_undo,
    &command_sessions_prune,
    &command_sessions_delete,
    &command_cache_show,
    &command_cache_verify,
    &command_cache_evict,
    &command_cache_export,
    &command_cache_import,
    &command_config_accept,
    &command_config_path,
    &command_config,
    &command_doctor,
    &command_model_inspect,
    &command_model_tokens,
    &command_model_render,
    &command_model_parse,
    &command_model_logits,
    &command_model_synth,
    &command_model_bench,
    &command_tool_list,
    &command_tool_call,
    &command_sandbox_run,
    &command_sandbox_file,
    // clang-format on
};
const size_t cli_command_count = COUNT_OF(cli_commands);

/* ---- messages ------------------------------------------------------------------------------- */

int cli_fail(int status, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7F) {
            *at = '?'; /* one line, and nothing that a terminal would obey */
        }
    }
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, BUFFER_CEILING_DEFAULT);
    bool is_made = is_ok(sandbox_sanitise(view_of_text(text), 0, &harmless, NULL));
    (void)fflush(stdout);
    (void)fprintf(stderr, "hearth: %s\n", is_made ? buffer_text(&harmless) : text);
    return status;
}

int cli_usage(const struct cli_arguments *arguments, const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    int length = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    ASSERT(length >= 0);
    int status = cli_fail(STATUS_USAGE, "%s", text);
    cli_help_usage(stderr, arguments->command);
    return status;
}

int cli_status_of(result failed) {
    if (failed.code == RESULT_LIMIT) {
        return STATUS_REFUSED;
    }
    if (failed.code == RESULT_MEMORY || failed.code == RESULT_DEVICE ||
        failed.code == RESULT_TIMEOUT) {
        return STATUS_ENGINE;
    }
    return STATUS_DATA;
}

int cli_fail_error(result failed, const struct error *error) {
    return cli_fail(cli_status_of(failed), "%s", error->message);
}

/* ---- options -------------------------------------------------------------------------------- */

static size_t option_index(const struct cli_command *command, const char *name) {
    for (size_t i = 0; i < command->option_count; i++) {
        if (strcmp(command->options[i].name, name) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

const char *cli_value(const struct cli_arguments *arguments, const char *name) {
    size_t index = option_index(arguments->command, name);
    ASSERT(index != SIZE_MAX); /* the command declares every option it asks for */
    return arguments->values[index];
}

const char *cli_shared_value(const struct cli_arguments *arguments, const char *name) {
    size_t index = option_index(arguments->command, name);
    return index == SIZE_MAX ? NULL : arguments->values[index];
}

const char *cli_value_at(const struct cli_arguments *arguments, const char *name, size_t place) {
    size_t index = option_index(arguments->command, name);
    ASSERT(index != SIZE_MAX);
    for (size_t i = 0; i < arguments->given_count; i++) {
        if (arguments->given[i].option == index && place-- == 0) {
            return arguments->given[i].value;
        }
    }
    return NULL;
}

bool cli_has(const struct cli_arguments *arguments, const char *name) {
    return cli_value(arguments, name) != NULL;
}

bool cli_i64(
    const struct cli_arguments *arguments, const char *name, int64_t min, int64_t max, int64_t *out
) {
    const char *text = cli_value(arguments, name);
    int64_t value = 0;
    if (text == NULL) {
        return true;
    }
    if (!parse_i64(view_of_text(text), &value) || value < min || value > max) {
        (void)cli_usage(
            arguments,
            "--%s wants a whole number from %lld to %lld, not '%.60s'",
            name,
            (long long)min,
            (long long)max,
            text
        );
        return false;
    }
    *out = value;
    return true;
}

bool cli_u64(const struct cli_arguments *arguments, const char *name, uint64_t *out) {
    const char *text = cli_value(arguments, name);
    if (text != NULL && !parse_u64(view_of_text(text), out)) {
        (void)cli_usage(
            arguments,
            "--%s wants a whole number from 0 to %llu, not '%.60s'",
            name,
            (unsigned long long)UINT64_MAX,
            text
        );
        return false;
    }
    return true;
}

bool cli_double(
    const struct cli_arguments *arguments, const char *name, double min, double max, double *out
) {
    const char *text = cli_value(arguments, name);
    double value = 0.0;
    if (text == NULL) {
        return true;
    }
    if (!parse_double(view_of_text(text), &value) || value < min || value > max) {
        (void)cli_usage(
            arguments, "--%s wants a number from %g to %g, not '%.60s'", name, min, max, text
        );
        return false;
    }
    *out = value;
    return true;
}

bool duration_parse(struct view text, int64_t *milliseconds) {
    static const struct {
        const char *unit;
        int64_t factor;
    } units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"", 1000}};
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        struct view unit = view_of_text(units[i].unit);
        double value = 0.0;
        if (!view_ends_with(text, unit)) {
            continue;
        }
        struct view number = view_slice(text, 0, text.length - unit.length);
        if (!parse_double(number, &value)) {
            return false;
        }
        value *= (double)units[i].factor;
        if (value < 1.0 || value > 1e12) {
            return false;
        }
        *milliseconds = (int64_t)value;
        return true;
    }
    return false;
}

bool cli_duration(const struct cli_arguments *arguments, const char *name, int64_t *out) {
    const char *text = cli_value(arguments, name);
    if (text != NULL && !duration_parse(view_of_text(text), out)) {
        (void
        )cli_usage(arguments, "--%s wants a time such as 90s, 10m or 2h, not '%.60s'", name, text);
        return false;
    }
    return true;
}

bool size_parse(struct view text, uint64_t *bytes) {
    static const char letters[] = "KMGTP";
    struct view number = text;
    double factor = 1.0;
    if (view_ends_with(number, view_of_text("iB"))) {
        number = view_slice(number, 0, number.length - 2);
    } else if (view_ends_with(number, view_of_text("B"))) {
        number = view_slice(number, 0, number.length - 1);
    }
    bool has_unit = number.length != text.length;
    unsigned char last = number.length > 0 ? number.data[number.length - 1] : 0;
    for (int i = 0; letters[i] != '\0'; i++) {
        if (last == (unsigned char)letters[i] || last == (unsigned char)(letters[i] + 'a' - 'A')) {
            number = view_slice(number, 0, number.length - 1);
            factor = (double)(UINT64_C(1) << (10 * (i + 1)));
        }
    }
    double value = 0.0;
    bool is_bytes_with_i = has_unit && factor < 2.0 && view_ends_with(text, view_of_text("iB"));
    if (is_bytes_with_i || !parse_double(number, &value)) {
        return false;
    }
    value *= factor;
    if (!(value >= 1.0) || value > 0x1p60) {
        return false;
    }
    *bytes = (uint64_t)value;
    return true;
}

bool cli_size(const struct cli_arguments *arguments, const char *name, uint64_t *out) {
    const char *text = cli_value(arguments, name);
    if (text != NULL && !size_parse(view_of_text(text), out)) {
        (void)cli_usage(
            arguments,
            "--%s wants a size such as 512M, 16G or 1.5T (K is 1,024), not '%.60s'",
            name,
            text
        );
        return false;
    }
    return true;
}

/* ---- input, output -------------------------------------------------------------------------- */

static result read_stream(int fd, const char *name, struct buffer *out, struct error *error) {
    char piece[65536];
    for (;;) {
        ssize_t count = read(fd, piece, sizeof piece);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            int error_number = errno;
            FAIL_FOREIGN(
                error, IO, error_number, "cannot read %s: %s", name, strerror(error_number)
            );
        }
        if (count == 0) {
            return OK;
        }
        if ((size_t)count > out->ceiling - out->length) {
            FAIL(error, INVALID_INPUT, "%s: larger than the %zu bytes taken", name, out->ceiling);
        }
        TRY_NOTE(
            error,
            buffer_append(out, view_of(piece, (size_t)count), error),
            "while reading %s",
            name
        );
    }
}

result cli_input(const char *word, bool word_is_path, struct buffer *out, struct error *error) {
    buffer_init(out, INPUT_BYTES_MAX);
    if (word == NULL || (word_is_path && strcmp(word, "-") == 0)) {
        return read_stream(STDIN_FILENO, "standard input", out, error);
    }
    if (word_is_path) { /* a pipe too, such as a shell's <(command) */
        CLEANUP(fd_cleanup) int fd = open(word, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            int code = errno;
            FAIL_FOREIGN(error, IO, code, "%.300s: cannot open: %s", word, strerror(code));
        }
        return read_stream(fd, word, out, error);
    }
    return buffer_append_text(out, word, error);
}

#define ESCAPES_BYTES_MAX ((size_t)1 << 30)

bool cli_print(struct view text) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, ESCAPES_BYTES_MAX);
    if (isatty(STDOUT_FILENO) == 1) { /* it may be what a model, a tool or a file wrote */
        struct error error = {0};
        result made = sandbox_sanitise(text, 0, &harmless, &error);
        if (is_failed(made)) {
            (void)cli_fail_error(made, &error);
            return false;
        }
        text = buffer_view(&harmless);
    }
    size_t written = text.length == 0 ? 0 : fwrite(text.data, 1, text.length, stdout);
    if (written != text.length || fflush(stdout) != 0) {
        (void)cli_fail(STATUS_DATA, "cannot write to standard output: %s", strerror(errno));
        return false;
    }
    return true;
}

result cli_put_bytes(struct buffer *out, uint64_t bytes, struct error *error) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < COUNT_OF(units)) {
        value /= 1024.0;
        unit++;
    }
    return buffer_append_format(out, error, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

/* ---- parsing -------------------------------------------------------------------------------- */

struct getopt_table {
    struct option options[CLI_OPTIONS_MAX + 3];
    char letters[3 * CLI_OPTIONS_MAX + 8];
};

enum { CODE_HELP = 'h', CODE_VERSION = 'V', CODE_FIRST = 0x100 };

static void table_fill(struct getopt_table *table, const struct cli_command *command) {
    size_t letters = 0;
    table->letters[letters++] = ':';
    table->letters[letters++] = 'h';
    table->letters[letters++] = 'V';
    ASSERT(command->option_count <= CLI_OPTIONS_MAX);
    for (size_t i = 0; i < command->option_count; i++) {
        const struct cli_option *option = &command->options[i];
        table->options[i] = (struct option){
            .name = option->name,
            .has_arg = option->value != NULL ? required_argument : no_argument,
            .val = CODE_FIRST + (int)i,
        };
        if (option->letter != 0) {
            table->letters[letters++] = option->letter;
            if (option->value != NULL) {
                table->letters[letters++] = ':';
            }
        }
    }
    table->options[command->option_count] = (struct option){.name = "help", .val = CODE_HELP};
    table->options[command->option_count + 1] =
        (struct option){.name = "version", .val = CODE_VERSION};
    table->options[command->option_count + 2] = (struct option){0};
    table->letters[letters] = '\0';
}

static size_t index_of_code(const struct cli_command *command, int code) {
    if (code >= CODE_FIRST) {
        return (size_t)(code - CODE_FIRST);
    }
    for (size_t i = 0; i < command->option_count; i++) {
        if (command->options[i].letter == (char)code) {
            return i;
        }
    }
    return SIZE_MAX;
}

static int unknown_option(const struct cli_arguments *arguments, const char *given) {
    const char *names[CLI_OPTIONS_MAX];
    const char *name = given + strspn(given, "-");
    const struct cli_command *command = arguments->command;
    for (size_t i = 0; i < command->option_count; i++) {
        names[i] = command->options[i].name;
    }
    const char *nearest =
        strncmp(given, "--", 2) == 0
            ? nearest_name(view_of(name, strcspn(name, "=")), names, command->option_count)
            : NULL;
    return cli_usage(
        arguments,
        "unknown option '%.100s'%s%s%s",
        given,
        nearest != NULL ? ": did you mean '--" : "",
        nearest != NULL ? nearest : "",
        nearest != NULL ? "'?" : ""
    );
}

/* argv[0] is the last word of the path. */
static int run_command(const struct cli_command *command, int argc, char **argv) {
    struct cli_arguments arguments = {.command = command};
    struct getopt_table table;
    table_fill(&table, command);
    opterr = 0;
    optind = 0;
    for (;;) {
        int code = getopt_long(argc, argv, table.letters, table.options, NULL);
        if (code == -1) {
            break;
        }
        if (code == CODE_HELP) {
            cli_help_command(command);
            return STATUS_DONE;
        }
        if (code == CODE_VERSION) {
            cli_help_version();
            return STATUS_DONE;
        }
        if (code == ':') {
            return cli_usage(&arguments, "%.100s wants a value", argv[optind - 1]);
        }
        if (code == '?') {
            return unknown_option(&arguments, argv[optind - 1]);
        }
        size_t index = index_of_code(command, code);
        ASSERT(index < command->option_count);
        if (arguments.given_count == CLI_GIVEN_MAX) {
            return cli_usage(&arguments, "more than %d options", CLI_GIVEN_MAX);
        }
        arguments.values[index] = optarg != NULL ? optarg : "";
        arguments.given[arguments.given_count].option = index;
        arguments.given[arguments.given_count++].value = arguments.values[index];
    }
    arguments.words = argv + optind;
    arguments.word_count = argc - optind;
    if (arguments.word_count < command->words_min) {
        return cli_usage(&arguments, "something is missing after 'hearth %s'", command->path);
    }
    if (command->words_max >= 0 && arguments.word_count > command->words_max) {
        return cli_usage(&arguments, "unexpected '%.100s'", arguments.words[command->words_max]);
    }
    return command->run(&arguments);
}

/* A command with a parser of its own: only help and version as its first word are handled here. */
static int run_raw_command(const struct cli_command *command, int argc, char **argv) {
    const char *first = argc > 1 ? argv[1] : "";
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
        cli_help_command(command);
        return STATUS_DONE;
    }
    if (strcmp(first, "--version") == 0 || strcmp(first, "-V") == 0) {
        cli_help_version();
        return STATUS_DONE;
    }
    return command->run_raw(argc, argv);
}

/* Whether the words argv[1..] begin with the command's path; *used is how many of them. */
static bool path_matches(const struct cli_command *command, int argc, char **argv, int *used) {
    const char *at = command->path;
    int index = 1;
    while (*at != '\0') {
        size_t length = strcspn(at, " ");
        if (index >= argc || strlen(argv[index]) != length ||
            strncmp(argv[index], at, length) != 0) {
            return false;
        }
        at += length;
        at += *at == ' ' ? 1 : 0;
        index++;
    }
    *used = index - 1;
    return true;
}

static bool is_group(const char *word) {
    for (size_t i = 0; i < cli_command_count; i++) {
        if (word[0] != '\0' && cli_path_begins(cli_commands[i]->path, word)) {
            return true;
        }
    }
    return false;
}

/* Behind the words of a group, or of the program for "". Copies the nearest word; "": none is near. */
static void nearest_command(const char *group, const char *word, char nearest[WORD_BYTES_MAX]) {
    char words[COUNT_OF(cli_commands)][WORD_BYTES_MAX];
    const char *names[COUNT_OF(cli_commands)];
    size_t count = 0;
    for (size_t i = 0; i < cli_command_count; i++) {
        const char *path = cli_commands[i]->path;
        if (cli_path_begins(path, group)) {
            const char *rest = path + strlen(group) + (group[0] != '\0' ? 1 : 0);
            int length = (int)strcspn(rest, " ");
            int written = snprintf(words[count], WORD_BYTES_MAX, "%.*s", length, rest);
            ASSERT(written > 0 && written < WORD_BYTES_MAX);
            names[count] = words[count];
            count++;
        }
    }
    const char *found = word[0] == '-' ? NULL : nearest_name(view_of_text(word), names, count);
    (void)snprintf(nearest, WORD_BYTES_MAX, "%s", found != NULL ? found : "");
}

static int unknown_word(const char *group, const char *word) {
    const char *space = group[0] != '\0' ? " " : "";
    char nearest[WORD_BYTES_MAX];
    nearest_command(group, word, nearest);
    bool is_near = nearest[0] != '\0';
    (void)cli_fail(
        STATUS_USAGE,
        "%s '%s%s%.100s'%s%s%s%s%s",
        word[0] == '-' ? "unknown option" : "there is no command",
        group,
        space,
        word,
        is_near ? ": did you mean '" : "",
        is_near ? group : "",
        is_near ? space : "",
        nearest,
        is_near ? "'?" : ""
    );
    (void)fprintf(stderr, "usage: hearth %s%sCOMMAND [OPTION]...\n", group, space);
    return STATUS_USAGE;
}

/* No command was named: help, version, or what is wrong. */
static int run_group(const char *group, const char *word) {
    if (word == NULL) {
        (void)cli_fail(STATUS_USAGE, "which command?");
        cli_help_group(stderr, group);
        return STATUS_USAGE;
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        cli_help_group(stdout, group);
        return STATUS_DONE;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        cli_help_version();
        return STATUS_DONE;
    }
    return unknown_word(group, word);
}

/* Words in one argument are a task, unless they are those of a command: a mistyped one is no task. */
static bool is_task(const char *word) {
    static const char blanks[] = " \t\n";
    if (word[0] == '-' || word[strspn(word, blanks)] == '\0' ||
        word[strcspn(word, blanks)] == '\0') {
        return false;
    }
    for (size_t i = 0; i < cli_command_count; i++) {
        if (strcmp(word, cli_commands[i]->path) == 0) {
            return false;
        }
    }
    return true;
}

int cli_main(int argc, char **argv) {
    for (size_t i = 0; i < cli_command_count; i++) {
        int used = 0;
        if (path_matches(cli_commands[i], argc, argv, &used)) {
            const struct cli_command *command = cli_commands[i];
            return command->run_raw != NULL ? run_raw_command(command, argc - used, argv + used)
                                            : run_command(command, argc - used, argv + used);
        }
    }
    if (argc > 1 && is_task(argv[1])) {
        return run_command(&command_run, argc, argv);
    }
    if (argc > 1 && is_group(argv[1])) {
        return run_group(argv[1], argc > 2 ? argv[2] : NULL);
    }
    if (argc == 1 && isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
        return run_command(&command_run, argc, argv); /* a person sits there: an interactive run */
    }
    return run_group("", argc > 1 ? argv[1] : NULL);
}
