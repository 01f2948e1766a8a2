/* Token ids as people and programs write them. */
#ifndef HEARTH_RUNTIME_MODEL_INPUT_H
#define HEARTH_RUNTIME_MODEL_INPUT_H

#include "engine/tokenizer.h"

/* Numbers separated by blanks, commas or brackets: "[1, 2]" as well as "1 2". Expected errors:
 * INVALID_INPUT (names what is no id), LIMIT, MEMORY. */
MUST_CHECK result ids_parse(struct view text, struct token_list *out, struct error *error);

#endif
