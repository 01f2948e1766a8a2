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
/* After that, and after the engine: everything but the servers. Expected errors: those of the tools,
 * INVALID_INPUT: the network's list. */
MUST_CHECK result
run_tools_open(struct run_host *host, const struct run_settings *settings, struct error *error);
void run_tools_close(struct run_host *host); /* accepts half-open */
/* After that, of a session that goes on: answers "always" and the todo list. Expected errors: MEMORY. */
MUST_CHECK result run_tools_restore(struct run_host *host, struct error *error);
/* What its tools and permissions are made of; `output` of the tools is the loop's. */
struct tool_context_options
run_tools_context_options(struct run_host *host, const struct run_settings *settings);
struct permission_options run_tools_permission_options(const struct run_settings *settings);
/* What starts the servers of the configuration; null: there are none. One that does not start is a warning. */
const struct run_preparation *
run_servers_prepare(struct run_host *host, const struct run_settings *settings);
/* What opens another model for /model. */
const struct run_models *run_models_of(struct run_host *host, const struct run_settings *settings);
/* Tokens of the first prompt. Expected errors: those of the encoder. */
MUST_CHECK result run_tools_count_prompt(
    const struct run_host *host,
    const struct run_settings *settings,
    const struct tool_declarations *declarations,
    size_t *out,
    struct error *error
);
/* Where tool calls must fit their schemas. Expected errors: UNSUPPORTED, INVALID_INPUT, MEMORY. */
MUST_CHECK result run_tools_open_constraint(
    struct run_host *host,
    const struct run_settings *settings,
    const struct tool_declarations *declarations,
    struct error *error
);
/* For run_options; the context is the host. */
bool run_tools_url_is_listed(void *context, struct view url);

#endif
