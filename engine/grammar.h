/* A regular language over bytes and control tokens, asked for masks of tokens.
 *
 * Built backwards from nodes (each knows what follows it), then used as a deterministic automaton
 * whose states and masks are made as they are met and kept. A state is one number. The body of a
 * string and a number are one node each with a counter in the state, so that a maximum of 10,000
 * characters costs nothing before they are written; states that treat every token alike share one
 * mask. Thread: one at a time; building and use may be different ones.
 */
#ifndef HEARTH_ENGINE_GRAMMAR_H
#define HEARTH_ENGINE_GRAMMAR_H

#include "base/bytes.h"

struct grammar;
struct grammar_vocabulary;

#define GRAMMAR_NODES_MAX      ((size_t)1 << 17)   /* of a language: 16 bytes each */
#define GRAMMAR_STATES_MAX     ((size_t)1 << 18)   /* met in use */
#define GRAMMAR_STATE_BYTES    ((size_t)256 << 20) /* all states together */
#define GRAMMAR_MASK_BYTES     ((size_t)32 << 20)  /* beyond it all masks are made anew */
#define GRAMMAR_ITEMS_MAX      4096                /* nodes at which one state stands at once */
#define GRAMMAR_CHARACTERS_MAX 16384               /* minimum and maximum of a string's length */
#define GRAMMAR_NUMBER_DIGITS  18 /* of a whole part: fits in 64 bits; 17 after the point */

/* How a string is written: between quotation marks with JSON's escapes, or as raw text up to the
 * tag that closes a parameter. Quotation marks and tag are not part of the node. */
enum grammar_form { GRAMMAR_FORM_JSON, GRAMMAR_FORM_RAW, GRAMMAR_FORM_COUNT };

/* The vocabulary is borrowed and outlives the grammar. Expected errors: MEMORY. */
MUST_CHECK result grammar_create(
    struct grammar **out, const struct grammar_vocabulary *vocabulary, struct error *error
);
void grammar_destroy(struct grammar *grammar);
void grammar_cleanup(struct grammar **grammar); /* for CLEANUP */

/* ---- Building: each call adds nodes and gives the first. Expected errors: LIMIT (nodes), MEMORY */

/* Where the text may end. */
MUST_CHECK result grammar_add_end(struct grammar *grammar, uint32_t *out, struct error *error);
/* Stands for another node, to be named later by grammar_aim (exactly once). */
MUST_CHECK result grammar_add_link(struct grammar *grammar, uint32_t *out, struct error *error);
void grammar_aim(struct grammar *grammar, uint32_t link, uint32_t target);
/* Either of two. */
MUST_CHECK result grammar_add_fork(
    struct grammar *grammar, uint32_t first, uint32_t second, uint32_t *out, struct error *error
);
/* One byte from `low` to `high`. */
MUST_CHECK result grammar_add_range(
    struct grammar *grammar,
    unsigned low,
    unsigned high,
    uint32_t next,
    uint32_t *out,
    struct error *error
);
/* These bytes; none: `next` itself. */
MUST_CHECK result grammar_add_literal(
    struct grammar *grammar, struct view bytes, uint32_t next, uint32_t *out, struct error *error
);
/* One control token. */
MUST_CHECK result grammar_add_control(
    struct grammar *grammar, int32_t id, uint32_t next, uint32_t *out, struct error *error
);
/* Any bytes, of any number, valid UTF-8 or not. */
MUST_CHECK result
grammar_add_free(struct grammar *grammar, uint32_t next, uint32_t *out, struct error *error);

struct grammar_string {
    enum grammar_form form;
    uint32_t characters_min; /* code points, at most GRAMMAR_CHARACTERS_MAX */
    uint32_t characters_max; /* UINT32_MAX: any number; else at most GRAMMAR_CHARACTERS_MAX */
};

/* Valid UTF-8 without U+0000; in JSON form every escape that gives such text. */
MUST_CHECK result grammar_add_string(
    struct grammar *grammar,
    const struct grammar_string *string,
    uint32_t next,
    uint32_t *out,
    struct error *error
);
/* A JSON number: whole ones of at most GRAMMAR_NUMBER_DIGITS digits, without "-0"; or with at most
 * 17 digits after the point and an exponent of at most two digits. */
MUST_CHECK result grammar_add_number(
    struct grammar *grammar, bool is_whole, uint32_t next, uint32_t *out, struct error *error
);

/* The beginning of a foreign text for a message: whole characters, at most 80 bytes. */
struct view grammar_shown(struct view text);

/* Ends building. `end_id`: the token that may come where the text may end, -1: none. */
MUST_CHECK result
grammar_finish(struct grammar *grammar, uint32_t start, int32_t end_id, struct error *error);

/* ---- Use */

uint32_t grammar_start(const struct grammar *grammar);
/* Expected errors: INVALID_INPUT (not allowed here), LIMIT, MEMORY; *state is unchanged then. */
MUST_CHECK result
grammar_advance(struct grammar *grammar, uint32_t *state, int32_t id, struct error *error);
/* The same over bytes of text. */
MUST_CHECK result grammar_advance_bytes(
    struct grammar *grammar, uint32_t *state, struct view bytes, struct error *error
);
/* Bit i of word i / 64: token i may come next; valid until the next call on this grammar. Expected
 * errors: INVALID_INPUT (no token may), LIMIT, MEMORY. */
MUST_CHECK result
grammar_mask(struct grammar *grammar, uint32_t state, const uint64_t **out, struct error *error);
bool grammar_may_end(const struct grammar *grammar, uint32_t state);

/* What was met so far. */
struct grammar_facts {
    size_t nodes;
    size_t states;
    size_t masks;      /* made, also those dropped again */
    size_t trie_nodes; /* looked at for them */
    size_t bytes;      /* held now */
};

void grammar_facts(const struct grammar *grammar, struct grammar_facts *out);

#endif
