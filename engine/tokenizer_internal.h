/* What tokenizer.c and tokenizer_load.c share; nobody else includes it. */
#ifndef HEARTH_ENGINE_TOKENIZER_INTERNAL_H
#define HEARTH_ENGINE_TOKENIZER_INTERNAL_H

#include "bpe.h"
#include "tokenizer.h"

#define TOKENIZER_FILE_BYTES_MAX ((size_t)64 << 20) /* the release's has 6.4 MB */
#define TOKENIZER_IDS_MAX        ((size_t)1 << 20)  /* largest id + 1; the release has 129,280 */
#define TOKENIZER_SPLITS_MAX     8                  /* regular expressions in sequence */
#define TOKENIZER_REGEX_BYTES    4096               /* length of one of them */

struct tokenizer_entry {
    uint32_t bytes_at; /* in text */
    uint32_t bytes_length;
    uint32_t spelling_at;
    uint32_t spelling_length;
    bool is_added;
};

/* Trie over the added tokens; child lists are linked, the root has a table. */
struct marker_node {
    uint32_t first_child; /* 0: none, since node 0 is the root */
    uint32_t next_sibling;
    int32_t id; /* -1: no token ends here */
    unsigned char byte;
};

struct marker_trie {
    struct marker_node *nodes;
    size_t count;
    size_t capacity;
    uint32_t root[256];
};

struct tokenizer_split; /* one compiled regular expression */

struct tokenizer {
    struct buffer text; /* bytes and spellings of all entries */
    struct tokenizer_entry *entries;
    size_t entry_count;
    struct bpe bpe;
    /* Tokens flagged normalized=false are searched in the whole text first, the others in what
     * lies between: the order of the reference implementation. */
    struct marker_trie markers[2];
    struct tokenizer_split *splits[TOKENIZER_SPLITS_MAX];
    size_t split_count;
};

/* Adds an added token's text. Expected errors: MEMORY. */
MUST_CHECK result
marker_trie_add(struct marker_trie *trie, struct view text, int32_t id, struct error *error);

/* Compiles one more split. Expected errors: INVALID_INPUT, UNSUPPORTED, MEMORY. */
MUST_CHECK result
tokenizer_add_split(struct tokenizer *tokenizer, struct view pattern, struct error *error);

#endif
