/* What the files of the grammar share; nobody else includes it. */
#ifndef HEARTH_ENGINE_GRAMMAR_INTERNAL_H
#define HEARTH_ENGINE_GRAMMAR_INTERNAL_H

#include "grammar_vocabulary.h"

/* ---- vocabulary ---- */

/* A trie in depth-first order: what follows a refused node is skipped by going to `end`. */
struct grammar_trie_node {
    uint32_t end;   /* first node behind the subtree */
    int32_t id;     /* token that ends here, -1: none; further ones by `twins` */
    uint16_t depth; /* 1 for the first byte */
    uint8_t byte;
};

struct grammar_trie {
    struct grammar_trie_node *nodes;
    size_t count;
};

/* Ways in which strings are written. Tokens that consist of whole characters which stand for
 * themselves everywhere inside a string are "plain": they are allowed or refused by their number of
 * characters alone. */
enum grammar_form {
    GRAMMAR_FORM_JSON, /* plain: UTF-8 from U+0020 on without '"' and '\' */
    GRAMMAR_FORM_RAW,  /* plain: UTF-8 without U+0000 and '<', with which the end begins */
    GRAMMAR_FORM_COUNT
};

#define GRAMMAR_PLAIN_CHARACTERS 16 /* sets of plain tokens of at most 1..16 characters */

struct grammar_vocabulary {
    size_t id_count;
    size_t words;            /* of a mask */
    unsigned characters_max; /* of one token's bytes, at least 1 */
    int32_t *twins;          /* [id_count] next token with the same bytes, -1: none */
    uint8_t *is_control;     /* [id_count] */
    uint32_t *bytes_at;      /* [id_count + 1] offsets in text */
    struct buffer text;
    struct grammar_trie all;                        /* ordinary tokens up to the longest allowed */
    struct grammar_trie others[GRAMMAR_FORM_COUNT]; /* of these, what is not plain */
    uint64_t *ordinary;                             /* [words] every ordinary token with bytes */
    /* [GRAMMAR_PLAIN_CHARACTERS + 1][words]: plain tokens of at most i + 1 characters; the last
     * one: of any number. */
    uint64_t *plain[GRAMMAR_FORM_COUNT];
};

/* Bytes of a token, borrowed; empty for none. */
struct view grammar_vocabulary_token(const struct grammar_vocabulary *vocabulary, int32_t id);

#endif
