/* What is open during a run, and the order in which it is opened: that in which a refusal is
 * cheapest. Each function returns an exit status and has said why it is not STATUS_DONE. Thread: main.
 */
#ifndef HEARTH_RUNTIME_RUN_HOST_H
#define HEARTH_RUNTIME_RUN_HOST_H

#include "engine/constraint.h"
#include "host.h"
#include "instructions.h"
#include "loop.h"
#include "output.h"
#include "resume.h"
#include "run_engine.h"
#include "run_settings.h"
#include "sandbox/sandbox.h"

#define RUN_SYSTEM_TEXT                                                                            \
    "You are a coding agent. Work in the current directory with the tools and fix what the user "  \
    "asks."

struct front_lines;
struct http_client;
struct network_rules;
struct proxy;
struct run_front;
struct terminal;
struct tool_mcp_start;

/* A model that is open beside the one that runs, until the run has changed over. */
struct run_next_model {
    struct run_engine_parts engine;
    struct chat_encoder *encoder;
    struct constraint *constraint;
    struct buffer directory;
    char numerics[16];
    bool is_open;
};

/* Closed in reverse order. */
struct run_host {
    struct session_store *store;
    struct session_tree *record; /* of the session that goes on, null: a new one */
    struct resume resume;
    struct workspace *workspace;
    struct loop *loop;
    struct output *output;
    struct display *display;
    struct front_lines *front; /* of an interactive run: one of these */
    struct terminal *terminal;
    struct buffer history; /* path of its lines */
    struct sandbox *sandbox;
    struct sandbox_policy policy;
    struct run_engine_parts engine;
    struct chat_encoder *encoder;
    struct run_models models;
    struct run_next_model next;
    struct buffer current_directory; /* of the model that runs, after a change */
    char current_numerics[16];
    struct tool_context *tools;
    struct permission *permission;
    struct hooks hooks;
    struct instructions instructions;
    struct buffer system;          /* text of the system message */
    struct network_rules *network; /* null: no network */
    struct proxy *proxy;
    struct http_client *client;
    const char **read_only;                /* of the policy: skills */
    struct tool_declarations declarations; /* without those of servers */
    struct tool_declarations prepared;     /* with them, once they are there */
    struct run_preparation preparation;
    struct buffer server_lines;           /* to be shown */
    struct tool_mcp_start *server_starts; /* [of the configuration]; null: none */
    const struct run_settings *settings;  /* for the preparation; borrowed */
    struct constraint *constraint;        /* of tool calls; null: none */
    struct buffer generation;             /* settings as the record keeps them */
};

/* Whether there are descriptors and threads enough: libuv ends the program without. */
int run_host_check_limits(void);
/* The record of the session that is to go on; settings->record is then set. */
int run_host_open_record(struct run_host *host, struct run_settings *settings);
/* Store, display, engine and, meanwhile, the sandbox. */
int run_host_open(struct run_host *host, const struct run_settings *settings);
/* After that: the context of the session that goes on, and what is left to do. */
int run_host_open_resume(struct run_host *host, const struct run_settings *settings);
/* Where a person's input comes from; null: nobody is there. */
const struct run_front *run_host_front(const struct run_host *host);
/* What an engine of this run is opened with. */
void run_host_engine_request(
    struct run_host *host, const struct run_settings *settings, struct run_engine_request *out
);
/* One line on the way to the run. */
void run_host_say(struct run_host *host, enum run_event_type type, struct view line);
/* After a run: the model and the view stay, all else is as for a new session without a task. `sequence`: that
 * holds the old one's context. Expected errors: those of the engine. */
MUST_CHECK result run_host_begin_anew(
    struct run_host *host, struct run_settings *settings, uint64_t sequence, struct error *error
);
void run_host_close(struct run_host *host);

#endif
