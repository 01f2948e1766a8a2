/* Start and exit status: the only file that may call exit. */
#include "cli.h"

#include <locale.h>
#include <signal.h>

int main(int argc, char **argv) {
    /* Widths of characters need a UTF-8 locale; numbers stay as C writes them. */
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
    /* A reader that went away is an error of write, not the end of the program. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN); /* so is a file at its limit */
    int status = cli_main(argc, argv);
    if (fflush(stdout) != 0 && status == STATUS_DONE) {
        status = STATUS_DATA;
    }
    return status;
}
