/* A scripted engine and scripted tools for tests of the loop: the agent, the parser, the records
 * and the display around them are the real ones. */
#ifndef HEARTH_TESTS_RUNTIME_SUPPORT_H
#define HEARTH_TESTS_RUNTIME_SUPPORT_H

#include "engine/tokenizer.h"
#include "runtime/loop.h"

/* What one generation writes. */
struct fake_turn {
    const char *text;          /* markers spelled out; end of sequence is added unless is_endless */
    bool is_endless;           /* writes its last token again and again until it is stopped */
    bool fails;                /* ends with FINISH_ERROR */
    int delay_us;              /* before each token */
    enum finish_reason reason; /* how it ends without end of sequence; 0: with one */
    bool is_late;              /* the engine finds its deadline passed and refuses */
};

struct fake_engine;

/* Turns beyond the last one repeat it. `loop` is woken from the fake's own thread. */
struct fake_engine *fake_engine_create(
    struct loop *loop,
    const struct tokenizer *tokenizer,
    const struct fake_turn *turns,
    size_t turn_count
);
void fake_engine_destroy(struct fake_engine *engine);
struct engine_ports fake_engine_ports(struct fake_engine *engine);
int fake_engine_generations(const struct fake_engine *engine);
/* Tokens that were appended in all. */
int64_t fake_engine_appended(const struct fake_engine *engine);
/* What it was told of the sequence, in order. */
struct fake_told {
    enum sequence_event event;
    int64_t estimate_ms;
};
const struct fake_told *fake_engine_told(const struct fake_engine *engine, size_t *count);
/* The last request; its pointers are those of the caller. */
const struct generation_request *fake_engine_request(const struct fake_engine *engine);
/* How many looks at it find a generation that stands still. */
void fake_engine_set_stuck(struct fake_engine *engine, int looks);
/* What it says of its cache; static text. */
void fake_engine_set_trouble(struct fake_engine *engine, const char *text);

struct fake_tools {
    const char *text;    /* result of every call */
    int milliseconds;    /* each call takes; a cancel ends it */
    int64_t duration_ms; /* each call says that it took */
    bool fails;          /* the host cannot run tools */
    bool counts;         /* the result is the number of the call */
    int calls;           /* so far */
    _Atomic bool is_cancelled;
};
struct tool_ports fake_tool_ports(struct fake_tools *tools);

#endif
