/* Masks: of the tokens that may come next. What is certain comes from the vocabulary's sets, the
 * rest from a walk of a trie that skips whatever hangs below a refused byte. */
#include "grammar_internal.h"

static void set_bit(uint64_t *mask, int32_t id) {
    mask[(size_t)id / 64] |= (uint64_t)1 << ((size_t)id % 64);
}

/* Characters that a string may still take, as far as tokens can tell: at most `characters_max`. */
static unsigned
room_of(const struct grammar *grammar, const struct grammar_node *node, unsigned count) {
    unsigned most = grammar->vocabulary->characters_max;
    unsigned room = node->max == GRAMMAR_NO_MAXIMUM ? most : node->max - count;
    return room < most ? room : most;
}

/* ---- keys ---- */

/* States whose keys are equal treat every token alike: of a string's counter only that much is in
 * it as one token can reach. */
static result make_key(struct grammar *grammar, uint32_t state, struct error *error) {
    size_t count = 0;
    const uint64_t *items = grammar_state_items(grammar, state, &count);
    unsigned most = grammar->vocabulary->characters_max;
    grammar->key.count = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t item = items[i];
        const struct grammar_node *node = &grammar->nodes[grammar_item_node(item)];
        if (node->kind == GRAMMAR_NODE_STRING) {
            unsigned written = grammar_item_count(item);
            unsigned need = node->min > written ? node->min - written : 0;
            need = need < most ? need : most;
            uint64_t limits = (uint64_t)need << 12 | room_of(grammar, node, written);
            item = (item >> 32) << 32 | (uint64_t)grammar_item_place(item) << 24 | limits;
        }
        TRY(grammar_words_append(&grammar->key, item, error));
    }
    return OK;
}

static uint64_t hash_of_key(const struct grammar *grammar, uint32_t index) {
    const struct grammar_mask_key *key = &grammar->mask_keys[index];
    return grammar_hash(grammar->key_words.data + key->at, key->length);
}

/* Index of the mask with this key; GRAMMAR_MASK_NONE and the free slot without one. */
static uint32_t find_mask(const struct grammar *grammar, size_t *slot) {
    size_t mask = grammar->mask_table.capacity - 1;
    size_t at = (size_t)grammar_hash(grammar->key.data, grammar->key.count) & mask;
    for (; grammar->mask_table.slots[at] != 0; at = (at + 1) & mask) {
        uint32_t index = grammar->mask_table.slots[at] - 1;
        const struct grammar_mask_key *key = &grammar->mask_keys[index];
        if (key->length == grammar->key.count &&
            memcmp(
                grammar->key_words.data + key->at, grammar->key.data, key->length * sizeof(uint64_t)
            ) == 0) {
            return index;
        }
    }
    *slot = at;
    return GRAMMAR_MASK_NONE;
}

/* ---- what is certain ---- */

/* Where to look after the certain tokens are in the mask. */
struct base {
    const struct grammar_trie *trie; /* null: nowhere */
    const int32_t *twins;            /* further tokens of a trie's node */
    const uint64_t *set;             /* null: none is certain */
    /* Not 0: the trie holds endings of tokens, found to fit by themselves; the whole token is sure to
     * fit when it has at most so many bytes. Plain tokens of at most so many characters fit. */
    unsigned room;
    enum grammar_form form;
};

/* Whether a token of plain characters may begin with this item. */
static bool takes_plain(const struct grammar_node *node, enum grammar_form form) {
    if (node->kind == GRAMMAR_NODE_RANGE) {
        unsigned low = node->low;
        unsigned high = node->high;
        if (form == GRAMMAR_FORM_RAW) {
            return high > 0 && !(low == '<' && high == '<');
        }
        return high >= 0x20 && !(low == '"' && high == '"');
    }
    return node->kind == GRAMMAR_NODE_NUMBER || node->kind == GRAMMAR_NODE_STRING;
}

/* The item of a string between characters with the most room; SIZE_MAX: none. */
static size_t widest_string(const struct grammar *grammar, const uint64_t *items, size_t count) {
    size_t best = SIZE_MAX;
    unsigned best_room = 0;
    for (size_t i = 0; i < count; i++) {
        const struct grammar_node *node = &grammar->nodes[grammar_item_node(items[i])];
        if (node->kind == GRAMMAR_NODE_STRING && grammar_item_place(items[i]) == 0) {
            unsigned room = room_of(grammar, node, grammar_item_count(items[i]));
            if (room > best_room) {
                best = i;
                best_room = room;
            }
        }
    }
    return best;
}

static struct base find_base(const struct grammar *grammar, const uint64_t *items, size_t count) {
    const struct grammar_vocabulary *vocabulary = grammar->vocabulary;
    for (size_t i = 0; i < count; i++) {
        if (grammar->nodes[grammar_item_node(items[i])].kind == GRAMMAR_NODE_FREE) {
            return (struct base){.set = vocabulary->ordinary};
        }
    }
    size_t widest = widest_string(grammar, items, count);
    if (widest == SIZE_MAX) {
        return (struct base){.trie = &vocabulary->all, .twins = vocabulary->twins};
    }
    const struct grammar_node *string = &grammar->nodes[grammar_item_node(items[widest])];
    enum grammar_form form = (enum grammar_form)string->form;
    unsigned room = room_of(grammar, string, grammar_item_count(items[widest]));
    bool is_wide = room == vocabulary->characters_max;
    bool is_alone = true;
    for (size_t i = 0; i < count; i++) {
        const struct grammar_node *node = &grammar->nodes[grammar_item_node(items[i])];
        is_alone = is_alone && (i == widest || !takes_plain(node, form));
    }
    size_t set = is_wide                           ? GRAMMAR_PLAIN_CHARACTERS
                 : room < GRAMMAR_PLAIN_CHARACTERS ? room - 1
                                                   : GRAMMAR_PLAIN_CHARACTERS - 1;
    const uint64_t *certain = vocabulary->plain[form] + set * vocabulary->words;
    bool may_leave = grammar_item_count(items[widest]) >= string->min;
    if (is_alone && may_leave) {
        // A plain beginning leads back to this state, but for the room that is left.
        return (struct base
        ){&vocabulary->endings[form], vocabulary->same_ending[form], certain, room, form};
    }
    const struct grammar_trie *trie =
        is_wide || is_alone ? &vocabulary->others[form] : &vocabulary->all;
    return (struct base){trie, vocabulary->twins, certain, 0, form};
}

/* ---- the rest ---- */

/* A token whose ending fits: with little room the whole of it is tried. */
static result take_ending(
    struct grammar *grammar,
    uint32_t state,
    unsigned room,
    int32_t id,
    uint64_t *mask,
    struct error *error
) {
    struct view bytes = grammar_vocabulary_token(grammar->vocabulary, id);
    bool is_sure = room == 0 || room == grammar->vocabulary->characters_max;
    if (!is_sure && bytes.length > room) {
        for (size_t i = 0; i < bytes.length && state != GRAMMAR_STATE_DEAD; i++) {
            TRY(grammar_follow(grammar, state, bytes.data[i], &state, error));
        }
    }
    if (state != GRAMMAR_STATE_DEAD) {
        set_bit(mask, id);
    }
    return OK;
}

static result walk(
    struct grammar *grammar,
    uint32_t state,
    const struct base *base,
    uint64_t *mask,
    struct error *error
) {
    uint32_t path[GRAMMAR_TOKEN_BYTES_MAX + 1];
    const struct grammar_trie *trie = base->trie;
    path[0] = state;
    size_t looked = 0;
    for (size_t i = 0; i < trie->count;) {
        const struct grammar_trie_node *node = &trie->nodes[i];
        uint32_t next = GRAMMAR_STATE_DEAD;
        looked += 1;
        TRY(grammar_follow(grammar, path[node->depth - 1], node->byte, &next, error));
        if (next == GRAMMAR_STATE_DEAD) {
            i = node->end;
            continue;
        }
        path[node->depth] = next;
        for (int32_t id = node->id; id >= 0; id = base->twins[id]) {
            TRY(take_ending(grammar, state, base->room, id, mask, error));
        }
        i += 1;
    }
    grammar->trie_nodes += looked;
    return OK;
}

static result
fill_mask(struct grammar *grammar, uint32_t state, uint64_t *mask, struct error *error) {
    size_t words = grammar->vocabulary->words;
    size_t count = 0;
    const uint64_t *items = grammar_state_items(grammar, state, &count);
    struct base base = find_base(grammar, items, count);
    if (base.set != NULL) {
        memcpy(mask, base.set, words * sizeof *mask);
    } else {
        memset(mask, 0, words * sizeof *mask);
    }
    for (size_t i = 0; i < count; i++) {
        const struct grammar_node *node = &grammar->nodes[grammar_item_node(items[i])];
        if (node->kind == GRAMMAR_NODE_CONTROL) {
            set_bit(mask, (int32_t)node->value);
        } else if (node->kind == GRAMMAR_NODE_END && grammar->end_id >= 0) {
            set_bit(mask, grammar->end_id);
        }
    }
    const struct grammar_long_token *longer = grammar->vocabulary->longer[base.form];
    for (size_t i = 0; base.room > 0 && i < grammar->vocabulary->longer_count[base.form] &&
                       longer[i].characters <= base.room;
         i++) {
        set_bit(mask, longer[i].id);
    }
    return base.trie != NULL ? walk(grammar, state, &base, mask, error) : OK;
}

/* ---- kept masks ---- */

static void drop_masks(struct grammar *grammar) {
    for (size_t i = 0; i < grammar->state_count; i++) {
        grammar->states[i].mask = GRAMMAR_MASK_NONE;
    }
    memset(grammar->mask_table.slots, 0, grammar->mask_table.capacity * sizeof(uint32_t));
    grammar->mask_table.count = 0;
    grammar->mask_count = 0;
    grammar->key_words.count = 0;
}

static result grow_masks(struct grammar *grammar, struct error *error) {
    size_t words = grammar->vocabulary->words;
    size_t most = GRAMMAR_MASK_BYTES / (words * sizeof(uint64_t));
    most = most < 16 ? 16 : most;
    if (grammar->mask_count == most) {
        drop_masks(grammar);
    }
    if (grammar->mask_count < grammar->mask_capacity) {
        return OK;
    }
    size_t capacity = grammar->mask_capacity == 0 ? 16 : 2 * grammar->mask_capacity;
    capacity = capacity < most ? capacity : most;
    uint64_t *masks = realloc(grammar->masks, capacity * words * sizeof *masks);
    if (masks == NULL) {
        FAIL(error, MEMORY, "no memory for %zu masks of %zu tokens", capacity, words * 64);
    }
    grammar->masks = masks;
    struct grammar_mask_key *keys = realloc(grammar->mask_keys, capacity * sizeof *keys);
    if (keys == NULL) {
        FAIL(error, MEMORY, "no memory for %zu masks of %zu tokens", capacity, words * 64);
    }
    grammar->mask_keys = keys;
    grammar->mask_capacity = capacity;
    return OK;
}

/* A state of which no token can continue: names the bytes that could. */
static result refuse_empty(struct grammar *grammar, uint32_t state, struct error *error) {
    char expected[64] = "";
    size_t length = 0;
    for (unsigned byte = 0; byte < 256 && length < sizeof expected - 12; byte++) {
        uint32_t next = GRAMMAR_STATE_DEAD;
        TRY(grammar_follow(grammar, state, byte, &next, error));
        if (next != GRAMMAR_STATE_DEAD) {
            int written = snprintf(expected + length, sizeof expected - length, " 0x%02X", byte);
            length += written > 0 ? (size_t)written : 0;
        }
    }
    FAIL(
        error,
        INVALID_INPUT,
        "the grammar allows no token here: of %zu none begins with what is expected (bytes%s)",
        grammar->vocabulary->id_count,
        length > 0 ? expected : ": none"
    );
}

static bool is_empty(const uint64_t *mask, size_t words) {
    uint64_t any = 0;
    for (size_t i = 0; i < words; i++) {
        any |= mask[i];
    }
    return any == 0;
}

static result make_mask(struct grammar *grammar, uint32_t state, size_t slot, struct error *error) {
    size_t words = grammar->vocabulary->words;
    uint64_t *mask = grammar->masks + grammar->mask_count * words;
    TRY(fill_mask(grammar, state, mask, error));
    grammar->masks_made += 1;
    if (is_empty(mask, words)) {
        return refuse_empty(grammar, state, error);
    }
    struct grammar_mask_key key = {grammar->key_words.count, grammar->key.count};
    for (size_t i = 0; i < grammar->key.count; i++) {
        TRY(grammar_words_append(&grammar->key_words, grammar->key.data[i], error));
    }
    uint32_t index = (uint32_t)grammar->mask_count;
    grammar->mask_keys[index] = key;
    grammar->mask_count += 1;
    grammar->mask_table.slots[slot] = index + 1;
    grammar->mask_table.count += 1;
    grammar->states[state].mask = index;
    return OK;
}

result
grammar_mask(struct grammar *grammar, uint32_t state, const uint64_t **out, struct error *error) {
    if (state == GRAMMAR_STATE_ENDED) {
        FAIL(error, INVALID_INPUT, "the grammar allows no token here: the text has ended");
    }
    ASSERT(state < grammar->state_count);
    if (grammar->states[state].mask == GRAMMAR_MASK_NONE) {
        TRY(make_key(grammar, state, error));
        TRY(grow_masks(grammar, error));
        TRY(grammar_table_reserve(&grammar->mask_table, hash_of_key, grammar, error));
        size_t slot = 0;
        uint32_t index = find_mask(grammar, &slot);
        if (index != GRAMMAR_MASK_NONE) {
            grammar->states[state].mask = index;
        } else {
            TRY(make_mask(grammar, state, slot, error));
        }
    }
    *out = grammar->masks + (size_t)grammar->states[state].mask * grammar->vocabulary->words;
    return OK;
}
