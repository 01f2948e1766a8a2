/* The language of one turn of the model in the chat format (specification 6.4): what the strict
 * parser accepts, narrowed to the declared tools and the schema of the answer. */
#ifndef HEARTH_ENGINE_CHAT_GRAMMAR_H
#define HEARTH_ENGINE_CHAT_GRAMMAR_H

#include "constraint.h"
#include "grammar.h"

/* Makes a finished grammar whose end is the end-of-sequence token. Expected errors: those of
 * constraint_create. */
MUST_CHECK result chat_grammar_create(
    struct grammar **out,
    const struct grammar_vocabulary *vocabulary,
    const struct constraint_options *options,
    struct error *error
);

#endif
