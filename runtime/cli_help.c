/* Help from the table of commands and options, in lines that a terminal of 80 columns holds. */
#include "cli.h"

#define HELP_COLUMNS    80
#define OPTION_COLUMN   33
#define COMMAND_COLUMN  28
#define PARAGRAPH_BYTES 4096

void cli_help_version(void) {
    (void)printf("hearth %s\n", HEARTH_VERSION);
}

/* Text from `column` on, where the line is at `at`; its further lines begin in `column` too. Words are
 * ASCII. */
static void print_wrapped(FILE *file, const char *text, size_t at, size_t column) {
    size_t used = at;
    for (const char *word = text; *word != '\0';) {
        size_t length = strcspn(word, " ");
        bool is_first = used == at && word == text;
        if (is_first) {
            (void)fprintf(file, "%*s", used < column ? (int)(column - used) : 0, "");
            used = used < column ? column : used;
        } else if (used + 1 + length > HELP_COLUMNS) {
            (void)fprintf(file, "\n%*s", (int)column, "");
            used = column;
        } else {
            (void)fputc(' ', file);
            used++;
        }
        (void)fprintf(file, "%.*s", (int)length, word);
        used += length;
        word += length + (word[length] == ' ' ? 1 : 0);
    }
    (void)fputc('\n', file);
}

/* Lines that were broken because the next word did not fit flow on; all others stay as they are. */
static void print_text(FILE *file, const char *text) {
    char paragraph[PARAGRAPH_BYTES];
    size_t used = 0;
    for (const char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        const char *next = line + length + (line[length] == '\n' ? 1 : 0);
        bool is_full = length + 1 + strcspn(next, " \n") > HELP_COLUMNS;
        bool flows_on = is_full && *next != '\0' && *next != ' ' && *next != '\n';
        int written = snprintf(
            paragraph + used,
            sizeof paragraph - used,
            "%.*s%s",
            (int)length,
            line,
            flows_on ? " " : ""
        );
        ASSERT(written >= 0 && (size_t)written < sizeof paragraph - used);
        used += (size_t)written;
        if (!flows_on) {
            print_wrapped(file, paragraph, 0, 0);
            used = 0;
        }
        line = next;
    }
}

void cli_help_usage(FILE *file, const struct cli_command *command) {
    char line[256];
    int length = snprintf(
        line,
        sizeof line,
        "usage: hearth %s%s%s%s",
        command->path,
        command->operands[0] ? " " : "",
        command->operands,
        command->option_count > 0 && strstr(command->operands, "[OPTION]...") == NULL
            ? " [OPTION]..."
            : ""
    );
    ASSERT(length > 0 && (size_t)length < sizeof line);
    print_wrapped(file, line, 0, 0);
}

static void print_option(const struct cli_option *option) {
    char left[64];
    char letter[8] = "    ";
    bool has_name = option->name[0] != '\0';
    if (option->letter != 0) {
        int length = snprintf(letter, sizeof letter, "-%c%s", option->letter, has_name ? ", " : "");
        ASSERT(length > 0);
    }
    int length = snprintf(
        left,
        sizeof left,
        "  %s%s%s%s%s ",
        letter,
        has_name ? "--" : "",
        option->name,
        option->value != NULL ? " " : "",
        option->value != NULL ? option->value : ""
    );
    ASSERT(length > 0 && (size_t)length < sizeof left);
    (void)fputs(left, stdout);
    print_wrapped(stdout, option->help, (size_t)length, OPTION_COLUMN);
}

void cli_help_command(const struct cli_command *command) {
    static const struct cli_option common[] = {
        {"help", 'h', NULL, "this text"},
        {"version", 'V', NULL, "the program's version"},
    };
    cli_help_usage(stdout, command);
    (void)printf("\n%s\n", command->summary);
    if (command->text != NULL) {
        (void)fputc('\n', stdout);
        print_text(stdout, command->text);
    }
    (void)printf("\noptions:\n");
    for (size_t i = 0; i < command->option_count; i++) {
        print_option(&command->options[i]);
    }
    for (size_t i = 0; i < COUNT_OF(common); i++) {
        print_option(&common[i]);
    }
}

bool cli_path_begins(const char *path, const char *group) {
    size_t length = strlen(group);
    return length == 0 || (strncmp(path, group, length) == 0 && path[length] == ' ');
}

void cli_help_group(FILE *file, const char *group) {
    (void)fprintf(
        file, "usage: hearth %s%sCOMMAND [OPTION]...\n\ncommands:\n", group, group[0] ? " " : ""
    );
    for (size_t i = 0; i < cli_command_count; i++) {
        const struct cli_command *command = cli_commands[i];
        if (cli_path_begins(command->path, group)) {
            int at = fprintf(file, "  hearth %-18s ", command->path);
            print_wrapped(file, command->summary, at < 0 ? 0 : (size_t)at, COMMAND_COLUMN);
        }
    }
    (void)fputc('\n', file);
    if (group[0] == '\0') {
        (void)fputs(
            "'hearth' alone, on a terminal, is 'hearth run' without a task: it asks for one.\n"
            "'hearth \"fix the tests\"' is 'hearth run' with that task.\n",
            file
        );
    }
    print_wrapped(
        file,
        "'hearth COMMAND --help' tells more; --version shows the version; see also man hearth.",
        0,
        0
    );
}
