/* Opens what a command needs: the model's settings, an engine with its chat encoder, tool
 * declarations. Shared by the commands. Thread: main.
 */
#ifndef HEARTH_RUNTIME_HOST_H
#define HEARTH_RUNTIME_HOST_H

#include "cli.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"
#include "tools/tool.h"

/* What a model's directory says about how to drive it: max_new_tokens of generation_config.json,
 * and agent.json ({"turns_max": 12, "effort": 50}), which may be missing. */
struct model_settings {
    int32_t turn_tokens_max; /* 0: none */
    int32_t turns_max;       /* 0: none */
    int32_t effort;          /* CHAT_EFFORT_DEFAULT when not given */
    char dialect[16];        /* of the tools' names; "": none is named */
    /* In a swarm: whether it is told of its name, share and deadline, whether it can start other agents
     * itself (both true when not given), and whether it was trained with several efforts (false). */
    bool has_swarm_notes, has_agent_tools, effort_may_vary;
};

/* Expected errors: INVALID_INPUT (a file is there, but broken). */
MUST_CHECK result
model_settings_load(const char *directory, struct model_settings *out, struct error *error);

/* --backend auto (the default), cpu or cuda: engine_options.backend. An exit status; has said why it is
 * not STATUS_DONE: not such a name, or a cuda that cannot be used here. */
int backend_option(const struct cli_arguments *arguments, const char **out);
int backend_choose(const char *name, const char **out); /* the same of a name */
/* Help text of the option. */
#define BACKEND_OPTION                                                                             \
    { "backend", 0, "NAME", "cpu, cuda or auto: cuda where it can be used (default: auto)" }

/* --model DIR, else the bundled model. Expected errors: NOT_FOUND, INVALID_INPUT, IO. */
MUST_CHECK result model_directory(const char *given, struct buffer *out, struct error *error);

/* Tokenizer, wording and encoder of a model's directory, without its weights. */
struct text_model {
    struct tokenizer *tokenizer;
    struct chat_wording *wording;
    struct chat_encoder *encoder;
};
MUST_CHECK result
text_model_open(const char *directory, struct text_model *out, struct error *error);
void text_model_close(struct text_model *model); /* usable with CLEANUP */

/* Tokens of a first prompt as an agent sends it. Expected errors: those of chat_encode. */
MUST_CHECK result prompt_count(
    const struct chat_encoder *encoder,
    const struct chat_message *messages,
    size_t message_count,
    int32_t effort,
    size_t *out,
    struct error *error
);

/* The declarations of a set of tools, for prompt and record. */
struct tool_declarations {
    struct chat_tool *tools; /* views into `texts` and static data */
    size_t count;
    struct buffer texts;
    struct buffer json; /* all as one JSON array */
};
/* Those of a set that the context can offer, and what servers added to it. `context` null: of the set
 * alone. */
MUST_CHECK result tool_declarations_make(
    const struct tool_context *context,
    enum tool_dialect dialect,
    uint64_t set,
    struct tool_declarations *out,
    struct error *error
);
void tool_declarations_deinit(struct tool_declarations *declarations);

/* One line: "weights 22.2 MiB mapped, ...". */
MUST_CHECK result
plan_describe(const struct engine_plan *plan, struct buffer *out, struct error *error);

#endif
