/* The tokens of a vocabulary, arranged for masks: a trie of their bytes, so that whole groups of
 * tokens are refused at once, and sets of tokens of which a string may hold any.
 *
 * Made once per model and shared by all grammars. Control tokens (those added to the vocabulary)
 * are no text: a grammar names them by id or they are refused. Ids without bytes are refused.
 * Thread: immutable after creation; any.
 */
#ifndef HEARTH_ENGINE_GRAMMAR_VOCABULARY_H
#define HEARTH_ENGINE_GRAMMAR_VOCABULARY_H

#include "base/bytes.h"

struct tokenizer;
struct grammar_vocabulary;

#define GRAMMAR_IDS_MAX         ((size_t)1 << 20) /* as the tokenizer's; the release has 129,280 */
#define GRAMMAR_TOKEN_BYTES_MAX 1023 /* longer tokens are refused in every constrained place */

/* One token: its bytes, and whether it is a control token. */
struct grammar_token {
    struct view bytes;
    bool is_control;
};

/* `id_count`: columns of the logits, at least the tokenizer's ids (0: as many); ids behind those
 * are refused. Copies what it needs. Expected errors: INVALID_INPUT (id_count below the tokenizer's
 * or above GRAMMAR_IDS_MAX), MEMORY. */
MUST_CHECK result grammar_vocabulary_create(
    struct grammar_vocabulary **out,
    const struct tokenizer *tokenizer,
    size_t id_count,
    struct error *error
);
/* The same from a list: token i is tokens[i]. */
MUST_CHECK result grammar_vocabulary_create_from(
    struct grammar_vocabulary **out,
    const struct grammar_token *tokens,
    size_t count,
    struct error *error
);
void grammar_vocabulary_destroy(struct grammar_vocabulary *vocabulary);
void grammar_vocabulary_cleanup(struct grammar_vocabulary **vocabulary); /* for CLEANUP */

size_t grammar_vocabulary_ids(const struct grammar_vocabulary *vocabulary);
/* 64-bit words of a mask: ids rounded up. */
size_t grammar_vocabulary_words(const struct grammar_vocabulary *vocabulary);
/* Bytes held, for the memory plan. */
size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary);
/* The control token with these bytes; false when there is none. */
bool grammar_vocabulary_find_control(
    const struct grammar_vocabulary *vocabulary, struct view bytes, int32_t *id
);

#endif
