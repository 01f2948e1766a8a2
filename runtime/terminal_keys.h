/* Bytes of a terminal as keys: characters, control keys, escape sequences, and text that was pasted
 * between brackets. Whatever is unknown is dropped as a whole. Pure; thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_KEYS_H
#define HEARTH_RUNTIME_TERMINAL_KEYS_H

#include "base/bytes.h"

#define KEYS_PASTE_BYTES_MAX ((size_t)256 << 10)

enum key_type {
    KEY_NONE,    /* no whole key is there */
    KEY_TEXT,    /* text: one character, or what was pasted with newlines in it; without controls */
    KEY_CONTROL, /* letter: 'A' for Ctrl-A, ... */
    KEY_ALT,     /* letter, lower case */
    KEY_ENTER,
    KEY_NEWLINE, /* Alt-Enter or Ctrl-J: goes on in a further line */
    KEY_TAB,
    KEY_BACKSPACE,
    KEY_DELETE,
    KEY_UP,
    KEY_DOWN,
    KEY_LEFT,
    KEY_RIGHT,
    KEY_WORD_LEFT,
    KEY_WORD_RIGHT,
    KEY_HOME,
    KEY_END,
    KEY_ESCAPE, /* alone: nothing followed for a while */
    KEY_IGNORED /* a sequence that means nothing here */
};

struct key {
    enum key_type type;
    char letter;
    struct view text; /* until the next call */
    bool is_cut;      /* more than KEYS_PASTE_BYTES_MAX were pasted: the rest is missing */
};

struct keys;

/* Expected errors: MEMORY. */
MUST_CHECK result keys_create(struct keys **out, struct error *error);
void keys_destroy(struct keys *keys);
/* Without memory bytes are lost. */
void keys_add(struct keys *keys, struct view bytes);
/* The next whole key; KEY_NONE when there is none. */
struct key keys_next(struct keys *keys);
/* How long bytes that are there may wait for more: an escape that may begin a sequence, or a paste that
 * goes on. 0: none do. */
uint64_t keys_wait_ms(const struct keys *keys);
#define KEYS_ESCAPE_MS 300 /* over a slow link a sequence comes in pieces */
#define KEYS_PASTE_MS  3000
/* Nothing came for so long: what waits is a key of its own. */
void keys_stop_waiting(struct keys *keys);

#endif
