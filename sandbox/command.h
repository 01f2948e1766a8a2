/* The command-line functions `hearth sandbox run` and `hearth sandbox file`, without the host
 * around them: exactly what tool calls go through.
 *
 * Both write their results to standard output and messages to standard error, which is what a
 * command line is for; nothing else in this folder does. Thread: the main one.
 */
#ifndef HEARTH_SANDBOX_COMMAND_H
#define HEARTH_SANDBOX_COMMAND_H

#include "sandbox.h"

#define SANDBOX_STATUS_TIMED_OUT 124 /* as timeout(1) */
#define SANDBOX_STATUS_REFUSED   125 /* cannot confine, or the launcher failed: never ran */

/* Opens the way out that `--network HOST[:PORT],...` asks for; the socket's path lives as long as
 * the command. Expected errors: INVALID_INPUT, IO. */
typedef result sandbox_command_open_network(
    void *context, const char *hosts, const char **socket_path, struct error *error
);

struct sandbox_command_network {
    sandbox_command_open_network *open;
    void *context;
};

/* argv[0] is "run". *exit_status: the command's own, 128 + signal, or one of the above; 2 for a
 * wrong command line. Options that name helper places go in `options` (may be null). With `network`
 * null the option for it is refused. Fails only when it cannot write. */
MUST_CHECK result sandbox_command_run(
    int argc,
    char *const *argv,
    const struct sandbox_options *options,
    const struct sandbox_command_network *network,
    int *exit_status,
    struct error *error
);

/* argv[0] is "file", then read|write|mkdir|rm ROOT REL; `write` takes standard input.
 * *exit_status: 0 done, 1 refused or failed (said on standard error), 2 wrong command line. */
MUST_CHECK result
sandbox_command_file(int argc, char *const *argv, int *exit_status, struct error *error);

#endif
