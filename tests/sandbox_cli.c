/* The command line of the sandbox without the rest of Hearth, for the attack cases:
 * sandbox_cli sandbox run|file ... Helpers are taken from HEARTH_HELPERS when it is set. */
#include <stdlib.h>

#include "sandbox/command.h"

int main(int argc, char **argv) {
    struct sandbox_options options = {.helper_directory = getenv("HEARTH_HELPERS")};
    if (options.helper_directory == NULL) {
        options.helper_directory = TEST_BINARY_DIR "/sandbox";
    }
    struct error error = {0};
    int status = 2;
    result done = OK;
    if (argc >= 3 && strcmp(argv[1], "sandbox") == 0 && strcmp(argv[2], "run") == 0) {
        done = sandbox_command_run(argc - 2, argv + 2, &options, NULL, &status, &error);
    } else if (argc >= 3 && strcmp(argv[1], "sandbox") == 0 && strcmp(argv[2], "file") == 0) {
        done = sandbox_command_file(argc - 2, argv + 2, &status, &error);
    } else {
        (void)fprintf(stderr, "usage: sandbox_cli sandbox run|file ...\n");
    }
    if (is_failed(done)) {
        (void)fprintf(stderr, "sandbox_cli: %s\n", error.message);
        status = 1;
    }
    return status;
}
