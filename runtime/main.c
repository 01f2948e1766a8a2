/* Start and exit status: the only file that may call exit. */
#include "cli.h"

#include "base/log.h"

#include <locale.h>
#include <signal.h>

/* HEARTH_LOG names the level of the log on standard error; warnings by default. */
static void configure_log(void) {
    const char *wanted = getenv("HEARTH_LOG");
    enum log_level level = LOG_WARNING;
    bool is_known = wanted == NULL;
    for (enum log_level i = LOG_ERROR; i <= LOG_DEBUG && !is_known; i++) {
        is_known = strcmp(wanted, log_level_name(i)) == 0;
        level = is_known ? i : level;
    }
    log_configure(level, NULL, NULL);
    if (!is_known) {
        log_event(LOG_WARNING, "main", "unknown_log_level", "HEARTH_LOG=%.40s", wanted);
    }
}

int main(int argc, char **argv) {
    /* Widths of characters need a UTF-8 locale; numbers stay as C writes them. */
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
    /* A reader that went away is an error of write, not the end of the program. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* so is a file at its limit */
    configure_log();
    int status = cli_main(argc, argv);
    if (fflush(stdout) != 0 && status == STATUS_DONE) {
        status = STATUS_DATA;
    }
    return status;
}
