/* Stop strings and stop ids: where a generation ends because of what it says.
 *
 * Strings are matched over the bytes of the tokens, so that borders of tokens and of UTF-8 characters
 * do not matter: the same text ends at the same byte however it was cut into tokens. The string that
 * ends first wins; of several that end at one byte the longest. A state is plain data: a copy of it
 * undoes what was fed since. Thread: a stop is immutable, any number of threads may use it; a state
 * belongs to one at a time.
 */
#ifndef HEARTH_ENGINE_STOP_H
#define HEARTH_ENGINE_STOP_H

#include "base/bytes.h"

#define STOP_STRINGS_MAX      64
#define STOP_STRING_BYTES_MAX 1024
#define STOP_IDS_MAX          64

struct stop;

struct stop_options {
    const struct view *strings; /* [string_count] of 1 to STOP_STRING_BYTES_MAX bytes of UTF-8 */
    size_t string_count;
    const int32_t *ids; /* [id_count], each below vocabulary */
    size_t id_count;
    int32_t vocabulary;
};

/* The same checks as creating does, without memory. Expected errors: INVALID_INPUT (an empty string,
 * one that is not UTF-8, an unknown id), LIMIT (too long, too many; with the numbers). */
MUST_CHECK result stop_check(const struct stop_options *options, struct error *error);
/* Copies what it is given. Expected errors: those of stop_check, MEMORY. */
MUST_CHECK result
stop_create(struct stop **out, const struct stop_options *options, struct error *error);
void stop_destroy(struct stop *stop);
/* Bytes that stop_create takes for strings of so many bytes together. */
uint64_t stop_bytes(uint64_t string_bytes);

/* How much of each string the text ends with. Zeroed: the beginning. */
struct stop_state {
    uint16_t matched[STOP_STRINGS_MAX];
};

struct stop_match {
    bool is_id;
    int32_t index; /* of the string, or of the id */
    /* The end of the text, this token included, is the string (for an id: the token itself) and the
     * bytes behind it: both together are not part of the answer. */
    size_t string_bytes;
    size_t behind_bytes; /* less than the bytes of this token */
};

/* One more token: its id and the bytes that it adds to the text (none for a marker that is not part
 * of it). True when the generation ends here; a string that ends in the token goes before its id. The
 * state is then of no further use. */
bool stop_feed(
    const struct stop *stop,
    struct stop_state *state,
    int32_t id,
    struct view bytes,
    struct stop_match *out
);
/* Bytes at the end of the text that may turn out to be the beginning of a stop string: they are not to
 * be shown yet. */
size_t stop_held_bytes(const struct stop *stop, const struct stop_state *state);

/* For other matchers: takes bytes up to and including the first that completes a string, or all;
 * returns how many. After a match the state is the beginning again; *index is -1 without one. */
size_t
stop_take(const struct stop *stop, struct stop_state *state, struct view bytes, int32_t *index);

#endif
