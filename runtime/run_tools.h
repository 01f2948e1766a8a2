/* What a run's agent may do: instructions of the project, tools, servers, and the way to the network.
 * Thread: main.
 */
#ifndef HEARTH_RUNTIME_RUN_TOOLS_H
#define HEARTH_RUNTIME_RUN_TOOLS_H

#include "run_host.h"

/* The system text: ours, then what the project and its skills say. Expected errors: MEMORY. */
MUST_CHECK result run_tools_read_instructions(
    struct run_host *host, const struct run_settings *settings, struct error *error
);
/* After that, and after the engine. A server that does not start is a warning. Expected errors: those
 * of the tools, INVALID_INPUT: the network's list. */
MUST_CHECK result
run_tools_open(struct run_host *host, const struct run_settings *settings, struct error *error);
void run_tools_close(struct run_host *host); /* accepts half-open */
/* For run_options; the context is the host. */
bool run_tools_url_is_listed(void *context, struct view url);

#endif
