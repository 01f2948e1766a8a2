/* What the files of the grammar share; nobody else includes it. */
#ifndef HEARTH_ENGINE_GRAMMAR_INTERNAL_H
#define HEARTH_ENGINE_GRAMMAR_INTERNAL_H

#include "grammar.h"
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

/* Tokens that consist of whole characters after which a string goes on as before are "plain": they
 * are allowed or refused by their number of characters alone. In JSON form that is UTF-8 from
 * U+0020 on without '"', and the escapes of two bytes; in raw form UTF-8 without U+0000 and without
 * a '<' before '/' or at the end, with which the closing tag may begin. */
#define GRAMMAR_PLAIN_CHARACTERS 32 /* sets of plain tokens of at most 1..32 characters */

struct grammar_long_token {
    int32_t id;
    uint32_t characters;
};

struct grammar_vocabulary {
    size_t id_count;
    size_t words;            /* of a mask */
    unsigned characters_max; /* of one token's bytes, at least 1 */
    int32_t *twins;          /* [id_count] next token with the same bytes, -1: none */
    uint8_t *is_control;     /* [id_count] */
    uint32_t *bytes_at;      /* [id_count + 1] offsets in text */
    struct buffer text;
    struct grammar_trie all; /* ordinary tokens up to the longest allowed */
    /* Of these what is not plain, and what is longer than the sets tell apart. */
    struct grammar_trie others[GRAMMAR_FORM_COUNT];
    /* What is not plain, without its plain beginning: inside a string that takes any number of
     * characters the beginning changes nothing. Left out is what goes on with a byte that no string
     * holds. Tokens with one ending are linked by `same_ending`, -1 ends. */
    struct grammar_trie endings[GRAMMAR_FORM_COUNT];
    int32_t *same_ending[GRAMMAR_FORM_COUNT]; /* [id_count] */
    /* Plain tokens of more characters than the sets tell apart, by their number. */
    struct grammar_long_token *longer[GRAMMAR_FORM_COUNT];
    size_t longer_count[GRAMMAR_FORM_COUNT];
    uint64_t *ordinary; /* [words] every ordinary token with bytes */
    /* [GRAMMAR_PLAIN_CHARACTERS + 1][words]: plain tokens of at most i + 1 characters; the last
     * one: of any number. */
    uint64_t *plain[GRAMMAR_FORM_COUNT];
};

/* Bytes of a token, borrowed; empty for none. */
struct view grammar_vocabulary_token(const struct grammar_vocabulary *vocabulary, int32_t id);

/* ---- nodes ---- */

enum grammar_node_kind {
    GRAMMAR_NODE_END,
    GRAMMAR_NODE_LINK,
    GRAMMAR_NODE_FORK,
    GRAMMAR_NODE_RANGE,
    GRAMMAR_NODE_CONTROL,
    GRAMMAR_NODE_FREE,
    GRAMMAR_NODE_STRING,
    GRAMMAR_NODE_NUMBER
};

#define GRAMMAR_NODE_NONE  UINT32_MAX
#define GRAMMAR_NO_MAXIMUM UINT16_MAX

struct grammar_node {
    uint32_t next;
    uint32_t value; /* FORK: the second; CONTROL: the id */
    uint16_t min;   /* STRING: characters */
    uint16_t max;   /* or GRAMMAR_NO_MAXIMUM */
    uint8_t kind;
    uint8_t low; /* RANGE */
    uint8_t high;
    uint8_t form; /* STRING: enum grammar_form; NUMBER: 1 for whole ones */
};

/* ---- items: where in a node a state stands ---- */

/* node << 32 | place << 16 | count. `place` is inside a character or number, 0 between characters;
 * `count` is characters, or digits of the current part. */
static inline uint64_t grammar_item(uint32_t node, unsigned place, unsigned count) {
    return (uint64_t)node << 32 | (uint64_t)place << 16 | count;
}

static inline uint32_t grammar_item_node(uint64_t item) {
    return (uint32_t)(item >> 32);
}

static inline unsigned grammar_item_place(uint64_t item) {
    return (unsigned)(item >> 16) & 0xFFFFU;
}

static inline unsigned grammar_item_count(uint64_t item) {
    return (unsigned)item & 0xFFFFU;
}

struct grammar_step {
    unsigned place;
    unsigned count;
    bool may_leave; /* what follows the node may come next */
};

/* One byte inside a string or number: false when it cannot come. */
bool grammar_step_string(const struct grammar_node *node, unsigned byte, struct grammar_step *step);
bool grammar_step_number(bool is_whole, unsigned byte, struct grammar_step *step);
/* Marks bytes that begin a range which the steps above tell apart from the one before. */
void grammar_mark_borders(bool borders[257]);

/* ---- states ---- */

#define GRAMMAR_STATE_ENDED   (UINT32_MAX - 2) /* behind the end token */
#define GRAMMAR_STATE_DEAD    (UINT32_MAX - 1)
#define GRAMMAR_STATE_UNKNOWN UINT32_MAX /* a transition not yet followed */
#define GRAMMAR_MASK_NONE     UINT32_MAX

struct grammar_state {
    uint32_t items_at;
    uint32_t item_count;
    uint32_t mask; /* index, or GRAMMAR_MASK_NONE */
};

/* Finds equal lists of 64-bit words by their hash; holds 1 + index, 0: free. */
struct grammar_table {
    uint32_t *slots;
    size_t capacity; /* a power of two */
    size_t count;
};

/* Growing array of lists. */
struct grammar_words {
    uint64_t *data;
    size_t count;
    size_t capacity;
};

struct grammar_mask_key {
    size_t at; /* in mask_keys */
    size_t length;
};

struct grammar {
    const struct grammar_vocabulary *vocabulary;
    int32_t end_id;
    struct grammar_node *nodes;
    size_t node_count;
    size_t node_capacity;

    uint8_t class_of[256]; /* bytes of one class are told apart by no node */
    uint8_t class_byte[256];
    size_t class_count;

    struct grammar_state *states;
    size_t state_count;
    size_t state_capacity;
    uint32_t *next; /* [state_capacity][class_count] */
    struct grammar_words items;
    struct grammar_table table;
    uint32_t start;

    struct grammar_words scratch; /* items of the state being made */
    uint32_t *seen;               /* [node_count] round in which a node was met */
    uint32_t *pending;            /* [node_count] nodes to look at */
    uint32_t round;

    uint64_t *masks; /* [mask_capacity][words] */
    size_t mask_count;
    size_t mask_capacity;
    struct grammar_mask_key *mask_keys; /* [mask_capacity] */
    struct grammar_words key_words;
    struct grammar_table mask_table;
    struct grammar_words key; /* of the mask being looked for */
    size_t masks_made;
    size_t trie_nodes;
};

/* Appends words to a list. Expected errors: MEMORY. */
MUST_CHECK result
grammar_words_append(struct grammar_words *words, uint64_t word, struct error *error);
uint64_t grammar_hash(const uint64_t *words, size_t count);
/* Makes room for one more entry. Expected errors: MEMORY. */
MUST_CHECK result grammar_table_reserve(
    struct grammar_table *table,
    uint64_t (*hash_of)(const struct grammar *grammar, uint32_t index),
    const struct grammar *grammar,
    struct error *error
);
/* Makes the start state. */
MUST_CHECK result grammar_begin(struct grammar *grammar, uint32_t start, struct error *error);
/* Follows one byte; *out may be GRAMMAR_STATE_DEAD. Expected errors: LIMIT, MEMORY. */
MUST_CHECK result grammar_follow(
    struct grammar *grammar, uint32_t state, unsigned byte, uint32_t *out, struct error *error
);
/* Follows a control token; GRAMMAR_STATE_DEAD when it may not come. */
MUST_CHECK result grammar_follow_control(
    struct grammar *grammar, uint32_t state, int32_t id, uint32_t *out, struct error *error
);
const uint64_t *grammar_state_items(const struct grammar *grammar, uint32_t state, size_t *count);

#endif
