/* What a whole turn of the model may be: thinking is free; then free text, calls of the declared
 * tools that fit their schemas, a JSON value that fits a schema, or a choice of these.
 *
 * The turn is a regular language over bytes and control tokens (engine/grammar.h). Its state is one
 * number, so that taking tokens back is keeping the old number; numbers mean nothing outside of the
 * constraint and are re-derived by advancing over the generated ids. The engine masks before each
 * draw and advances after each accepted token. A generation without a constraint pays nothing.
 *
 * Forms. JSON is written as the model's prompt format writes it (Python's json.dumps): one line,
 * ", " and ": " between items, text outside ASCII as it is. Properties come in declared order,
 * optional ones may be left out, others than the declared are never generated. String parameters of
 * calls are raw text, everything else JSON. In thinking and free text every token of text is
 * allowed, control tokens only where the format has them: a turn that satisfies a constraint is one
 * that the strict parser accepts, but for what a regular language cannot say: more calls than
 * CHAT_CALLS_MAX, a marker spelled in ordinary tokens, a name that a map (no properties declared)
 * holds twice.
 * Schemas: engine/schema.h says what is supported; the rest is refused by keyword and JSON path.
 *
 * Thread: create anywhere; mask, advance and may_end by one thread at a time, the engine's, since
 * states and masks are made as they are met. One constraint may serve many generations of that
 * engine, one after another or at once. The count of references may be changed by any thread.
 */
#ifndef HEARTH_ENGINE_CONSTRAINT_H
#define HEARTH_ENGINE_CONSTRAINT_H

#include "base/bytes.h"

struct chat_tool;
struct constraint;
struct grammar_vocabulary;

enum constraint_choice {
    CONSTRAINT_TOOLS_NONE,     /* no calls */
    CONSTRAINT_TOOLS_AUTO,     /* text, then calls or none */
    CONSTRAINT_TOOLS_REQUIRED, /* at least one call, directly after thinking */
    CONSTRAINT_TOOLS_NAMED     /* as REQUIRED, of the tool `tool_name` alone */
};

/* Zeroed: free thinking-less text without calls. Everything is borrowed for constraint_create. */
struct constraint_options {
    const struct chat_tool *tools; /* in either of their two forms */
    size_t tool_count;
    enum constraint_choice choice;
    struct view tool_name; /* CONSTRAINT_TOOLS_NAMED */
    bool one_call;         /* at most one call a turn; otherwise any number in one block */
    /* JSON Schema text: instead of free text the turn has this value alone. With tools and AUTO the
     * turn is either the value or calls. Empty: free text. */
    struct view response_schema;
    bool thinking;     /* the prompt ended with the thinking marker: the turn begins inside it */
    bool inside_calls; /* the prompt ended with an opened calls block (blank line, tag, line end) */
};

#define CONSTRAINT_TOOLS_MAX 256

/* The vocabulary is borrowed and outlives the constraint. The caller holds one reference. Expected
 * errors: UNSUPPORTED (a schema's keyword; names tool and path), INVALID_INPUT (a schema that is
 * none, a choice that is none, a tool that is not declared, two of one name, a vocabulary without the format's control tokens), LIMIT (too
 * deep, recursive or large, with the numbers); beside these MEMORY. */
MUST_CHECK result constraint_create(
    struct constraint **out,
    const struct grammar_vocabulary *vocabulary,
    const struct constraint_options *options,
    struct error *error
);
struct constraint *constraint_acquire(struct constraint *constraint); /* returns its argument */
void constraint_release(struct constraint *constraint);               /* accepts null */
void constraint_cleanup(struct constraint **constraint);              /* for CLEANUP: releases */

/* State before the first generated token. */
uint32_t constraint_start(const struct constraint *constraint);

/* Tokens that may come next: bit i of word i / 64 is id i; grammar_vocabulary_words() words. Null
 * in *out: every token may. The end-of-sequence token is in it exactly where the turn may end.
 * Valid until the next call on this constraint. Expected errors: INVALID_INPUT (no token of the
 * vocabulary can continue; says what is expected), LIMIT (states); MEMORY. The request ends with
 * that error; `state` stays usable. */
MUST_CHECK result constraint_mask(
    struct constraint *constraint, uint32_t state, const uint64_t **out, struct error *error
);
/* Moves *state over one accepted token. Expected errors: INVALID_INPUT (the token is not allowed
 * here: the mask was not applied), LIMIT; MEMORY. *state is unchanged on failure. */
MUST_CHECK result
constraint_advance(struct constraint *constraint, uint32_t *state, int32_t id, struct error *error);
/* Whether the turn may end here, by the model's own end-of-sequence id: the stop ids of a request are
 * not added to the mask. */
bool constraint_may_end(const struct constraint *constraint, uint32_t state);

/* Bytes held now: compiled form, states and masks met so far. */
size_t constraint_bytes(const struct constraint *constraint);

#endif
