/* Byte-level BPE from a tokenizer.json: text to token ids and back.
 *
 * The file's pre-tokenizer (regular-expression splits, then byte mapping), merges and added tokens
 * are read, never assumed; a section of another kind is refused by name. Text of users and tools is
 * encoded with TOKENIZER_MARKERS_OFF, so that a marker typed into it stays ordinary text; the ids
 * of markers are inserted by the chat encoder. Thread: a loaded tokenizer is immutable; any number
 * of threads may encode and decode with it at once.
 */
#ifndef HEARTH_ENGINE_TOKENIZER_H
#define HEARTH_ENGINE_TOKENIZER_H

#include "base/bytes.h"

struct tokenizer;

/* Owned, growable ids with a ceiling; a zeroed one with `ceiling` set is empty and valid. */
struct token_list {
    int32_t *ids;
    size_t count;
    size_t capacity;
    size_t ceiling; /* largest count allowed */
};

#define TOKEN_LIST_CEILING_DEFAULT ((size_t)64 << 20) /* ids; 256 MiB */

void token_list_init(struct token_list *list, size_t ceiling);
void token_list_deinit(struct token_list *list); /* usable with CLEANUP; leaves an empty list */
void token_list_clear(struct token_list *list);  /* keeps the memory */
/* Expected errors: MEMORY, LIMIT. The content is unchanged on failure. */
MUST_CHECK result token_list_append(struct token_list *list, int32_t id, struct error *error);
MUST_CHECK result token_list_append_all(
    struct token_list *list, const int32_t *ids, size_t count, struct error *error
);

/* Reads a tokenizer.json. Expected errors: NOT_FOUND or IO (file), INVALID_INPUT (broken),
 * UNSUPPORTED (a section of a kind this tokenizer does not implement; the message names it). */
MUST_CHECK result tokenizer_load(struct tokenizer **out, const char *path, struct error *error);
/* The same from the text of the file, which is copied. */
MUST_CHECK result tokenizer_parse(struct tokenizer **out, struct view json, struct error *error);
void tokenizer_destroy(struct tokenizer *tokenizer);
void tokenizer_cleanup(struct tokenizer **tokenizer); /* for CLEANUP */

/* Largest id plus one. */
size_t tokenizer_vocabulary_size(const struct tokenizer *tokenizer);

/* Whether added tokens spelled out in the text become their ids or stay ordinary text. */
enum tokenizer_markers { TOKENIZER_MARKERS_OFF, TOKENIZER_MARKERS_ON };

/* Appends the ids of `text` to `out`. Text that is not UTF-8 is encoded with each invalid run
 * replaced by U+FFFD. Expected errors: MEMORY, LIMIT (more ids than the list may hold). */
MUST_CHECK result tokenizer_encode(
    const struct tokenizer *tokenizer,
    struct view text,
    enum tokenizer_markers markers,
    struct token_list *out,
    struct error *error
);

/* Id of the added token with exactly this text; false when there is none. */
bool tokenizer_find_added(const struct tokenizer *tokenizer, struct view text, int32_t *id);
/* The first added token spelled out in text[from..], longest first at equal start. */
bool tokenizer_find_marker(
    const struct tokenizer *tokenizer,
    struct view text,
    size_t from,
    size_t *at,
    size_t *length,
    int32_t *id
);
bool tokenizer_is_added(const struct tokenizer *tokenizer, int32_t id);

/* Raw bytes that the id stands for, borrowed; empty for an id that names no token. The bytes of one
 * token may end inside a UTF-8 sequence. */
struct view tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id);
/* The token as the vocabulary spells it (bytes mapped to printable characters), borrowed. */
struct view tokenizer_spelling(const struct tokenizer *tokenizer, int32_t id);

/* Appends the bytes of all ids; markers appear as their text. The result need not be UTF-8.
 * Expected errors: INVALID_INPUT (an id outside the vocabulary), MEMORY, LIMIT. */
MUST_CHECK result tokenizer_decode(
    const struct tokenizer *tokenizer,
    const int32_t *ids,
    size_t count,
    struct buffer *out,
    struct error *error
);

/* Decodes token by token and holds back the bytes of an unfinished UTF-8 sequence; what can no
 * longer become valid is replaced by U+FFFD. Zero-initialise to start. */
struct tokenizer_stream {
    unsigned char held[4];
    size_t held_count;
    bool has_replaced; /* bytes were replaced; reset it at will */
};

/* Appends the text that became complete with this id: always valid UTF-8.
 * Expected errors: INVALID_INPUT (id), MEMORY, LIMIT. */
MUST_CHECK result tokenizer_stream_push(
    struct tokenizer_stream *stream,
    const struct tokenizer *tokenizer,
    int32_t id,
    struct buffer *out,
    struct error *error
);
/* The same for bytes from elsewhere. */
MUST_CHECK result tokenizer_stream_push_bytes(
    struct tokenizer_stream *stream, struct view bytes, struct buffer *out, struct error *error
);
/* Writes held-back bytes as U+FFFD and resets the stream. */
MUST_CHECK result
tokenizer_stream_finish(struct tokenizer_stream *stream, struct buffer *out, struct error *error);

#endif
