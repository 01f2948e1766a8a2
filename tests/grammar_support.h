/* Vocabularies, random walks through masks and a validator, for tests of grammars. */
#ifndef HEARTH_TESTS_GRAMMAR_SUPPORT_H
#define HEARTH_TESTS_GRAMMAR_SUPPORT_H

#include "base/json.h"
#include "engine/constraint.h"
#include "engine/grammar.h"
#include "engine/grammar_vocabulary.h"
#include "engine/tokenizer.h"

/* The bundled model's; aborts when it cannot be read. Live as long as the program. */
const struct tokenizer *grammar_test_tokenizer(void);
const struct grammar_vocabulary *grammar_test_vocabulary(void);

/* `count` tokens: the bundled ones, then texts joined from two or three of these, then random bytes
 * (a tenth of all). Owned by the caller. */
struct grammar_vocabulary *grammar_test_synthetic(size_t count, uint64_t seed);

/* The grammar of a schema alone; the message in `error` on failure. */
result grammar_test_compile(
    struct grammar **out,
    const struct grammar_vocabulary *vocabulary,
    const char *schema,
    struct error *error
);
/* Whether the text, byte by byte, is one of the language. */
bool grammar_test_accepts(struct grammar *grammar, struct view text);

uint64_t grammar_test_random(uint64_t *state); /* splitmix64 */
bool grammar_test_has(const uint64_t *mask, int32_t id);
size_t grammar_test_count(const uint64_t *mask, size_t words);

/* Draws allowed tokens until the end token was drawn; false after `steps_max`. Text as bytes, and
 * the ids. Ends are preferred the more the longer the text. */
struct grammar_walk {
    struct buffer text; /* without the end token */
    struct token_list ids;
};

void grammar_walk_deinit(struct grammar_walk *walk);
bool grammar_test_walk(
    struct grammar_walk *out,
    struct grammar *grammar,
    const struct grammar_vocabulary *vocabulary,
    int32_t end_id,
    uint64_t seed,
    size_t steps_max
);
/* Asserts that the mask of the state holds exactly the tokens that can be advanced over. */
void grammar_test_check_mask(
    struct grammar *grammar, const struct grammar_vocabulary *vocabulary, uint32_t state
);

/* Written apart from the compiler: whether the value fits the schema, every keyword of it. */
bool grammar_test_validate(
    struct json_value root, struct json_value schema, struct json_value value
);

#endif
