/* The engine of a run: the real one, or one that a test program puts in its place so that the whole
 * program runs on given outputs. Thread: main.
 */
#ifndef HEARTH_RUNTIME_RUN_ENGINE_H
#define HEARTH_RUNTIME_RUN_ENGINE_H

#include "engine/engine.h"
#include "loop.h"

struct run_engine_request {
    struct engine_options engine;
    bool wants_draft_stages; /* --speculate draft */
    /* Lines for the person: the memory plan, why not the GPU. */
    void (*say)(void *context, struct view line);
    bool says_briefly; /* the plan in one row; hearth doctor has the whole */
    void *say_context;
};

/* What a run uses of an engine that is open; all borrowed from it. */
struct run_engine_parts {
    struct engine_ports ports;
    const struct tokenizer *tokenizer;
    const struct chat_wording *wording;
    struct engine_info info;
    struct sampling sampling; /* the model's default */
    uint64_t sequence;        /* an empty one */
    struct engine *engine;    /* null: not the real one */
    bool is_context_wrong;    /* opening failed for a context that the model does not have */
};

struct run_engine {
    void *context;
    result (*open
    )(void *context,
      const struct run_engine_request *request,
      struct run_engine_parts *out,
      struct error *error);
    void (*close)(void *context);
};

/* All runs of this process use it instead of the real one; null: the real one. Before cli_main. */
void run_engine_use(const struct run_engine *engine);

/* Expected errors: those of engine_open; NOT_FOUND: a model without wording. */
MUST_CHECK result run_engine_open(
    const struct run_engine_request *request, struct run_engine_parts *out, struct error *error
);
void run_engine_close(struct run_engine_parts *parts); /* accepts zero */
/* Logs what its cache did that nobody asked about, once. */
void run_engine_log_cache(const struct run_engine_parts *parts);

#endif
