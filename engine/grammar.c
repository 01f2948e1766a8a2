/* Nodes of a language, their classes of bytes, and the way over tokens. */
#include "grammar_internal.h"

#include <assert.h>

result grammar_create(
    struct grammar **out, const struct grammar_vocabulary *vocabulary, struct error *error
) {
    ASSERT(vocabulary != NULL);
    struct grammar *grammar = calloc(1, sizeof *grammar);
    if (grammar == NULL) {
        FAIL(error, MEMORY, "no memory for a grammar");
    }
    grammar->vocabulary = vocabulary;
    grammar->end_id = -1;
    *out = grammar;
    return OK;
}

void grammar_destroy(struct grammar *grammar) {
    if (grammar == NULL) {
        return;
    }
    free(grammar->nodes);
    free(grammar->states);
    free(grammar->next);
    free(grammar->items.data);
    free(grammar->table.slots);
    free(grammar->scratch.data);
    free(grammar->seen);
    free(grammar->pending);
    free(grammar->masks);
    free(grammar->mask_keys);
    free(grammar->key_words.data);
    free(grammar->mask_table.slots);
    free(grammar->key.data);
    free(grammar);
}

void grammar_cleanup(struct grammar **grammar) {
    grammar_destroy(*grammar);
}

/* ---- building ---- */

static result
add(struct grammar *grammar, struct grammar_node node, uint32_t *out, struct error *error) {
    ASSERT(grammar->state_count == 0); // not finished
    if (grammar->node_count == GRAMMAR_NODES_MAX) {
        FAIL(error, LIMIT, "a grammar of more than %zu nodes", GRAMMAR_NODES_MAX);
    }
    if (grammar->node_count == grammar->node_capacity) {
        size_t capacity = grammar->node_capacity == 0 ? 256 : 2 * grammar->node_capacity;
        struct grammar_node *nodes = realloc(grammar->nodes, capacity * sizeof *nodes);
        if (nodes == NULL) {
            FAIL(error, MEMORY, "no memory for a grammar of %zu nodes", capacity);
        }
        grammar->nodes = nodes;
        grammar->node_capacity = capacity;
    }
    grammar->nodes[grammar->node_count] = node;
    *out = (uint32_t)grammar->node_count;
    grammar->node_count += 1;
    return OK;
}

result grammar_add_end(struct grammar *grammar, uint32_t *out, struct error *error) {
    struct grammar_node node = {.kind = GRAMMAR_NODE_END, .next = GRAMMAR_NODE_NONE};
    return add(grammar, node, out, error);
}

result grammar_add_link(struct grammar *grammar, uint32_t *out, struct error *error) {
    struct grammar_node node = {.kind = GRAMMAR_NODE_LINK, .next = GRAMMAR_NODE_NONE};
    return add(grammar, node, out, error);
}

void grammar_aim(struct grammar *grammar, uint32_t link, uint32_t target) {
    ASSERT(link < grammar->node_count && target < grammar->node_count);
    struct grammar_node *node = &grammar->nodes[link];
    ASSERT(node->kind == GRAMMAR_NODE_LINK && node->next == GRAMMAR_NODE_NONE);
    node->next = target;
}

result grammar_add_fork(
    struct grammar *grammar, uint32_t first, uint32_t second, uint32_t *out, struct error *error
) {
    struct grammar_node node = {.kind = GRAMMAR_NODE_FORK, .next = first, .value = second};
    return add(grammar, node, out, error);
}

result grammar_add_range(
    struct grammar *grammar,
    unsigned low,
    unsigned high,
    uint32_t next,
    uint32_t *out,
    struct error *error
) {
    ASSERT(low <= high && high <= 255);
    struct grammar_node node = {
        .kind = GRAMMAR_NODE_RANGE, .next = next, .low = (uint8_t)low, .high = (uint8_t)high};
    return add(grammar, node, out, error);
}

result grammar_add_literal(
    struct grammar *grammar, struct view bytes, uint32_t next, uint32_t *out, struct error *error
) {
    uint32_t node = next;
    for (size_t i = bytes.length; i-- > 0;) {
        TRY(grammar_add_range(grammar, bytes.data[i], bytes.data[i], node, &node, error));
    }
    *out = node;
    return OK;
}

result grammar_add_control(
    struct grammar *grammar, int32_t id, uint32_t next, uint32_t *out, struct error *error
) {
    ASSERT(id >= 0 && (size_t)id < grammar->vocabulary->id_count);
    struct grammar_node node = {.kind = GRAMMAR_NODE_CONTROL, .next = next, .value = (uint32_t)id};
    return add(grammar, node, out, error);
}

result
grammar_add_free(struct grammar *grammar, uint32_t next, uint32_t *out, struct error *error) {
    struct grammar_node node = {.kind = GRAMMAR_NODE_FREE, .next = next};
    return add(grammar, node, out, error);
}

result grammar_add_string(
    struct grammar *grammar,
    const struct grammar_string *string,
    uint32_t next,
    uint32_t *out,
    struct error *error
) {
    static_assert(GRAMMAR_CHARACTERS_MAX < GRAMMAR_NO_MAXIMUM, "lengths are told from none");
    bool has_maximum = string->characters_max != UINT32_MAX;
    ASSERT(string->characters_min <= GRAMMAR_CHARACTERS_MAX);
    ASSERT(!has_maximum || string->characters_max <= GRAMMAR_CHARACTERS_MAX);
    ASSERT(string->characters_min <= string->characters_max);
    struct grammar_node node = {
        .kind = GRAMMAR_NODE_STRING,
        .next = next,
        .min = (uint16_t)string->characters_min,
        .max = has_maximum ? (uint16_t)string->characters_max : GRAMMAR_NO_MAXIMUM,
        .form = (uint8_t)string->form};
    return add(grammar, node, out, error);
}

result grammar_add_number(
    struct grammar *grammar, bool is_whole, uint32_t next, uint32_t *out, struct error *error
) {
    struct grammar_node node = {
        .kind = GRAMMAR_NODE_NUMBER, .next = next, .form = is_whole ? 1 : 0};
    return add(grammar, node, out, error);
}

struct view grammar_shown(struct view text) {
    text = view_slice(text, 0, 80);
    return view_slice(text, 0, utf8_valid_prefix(text));
}

/* Bytes between two borders are one class: no node tells them apart. */
static void make_classes(struct grammar *grammar) {
    bool borders[257] = {false};
    grammar_mark_borders(borders);
    for (size_t i = 0; i < grammar->node_count; i++) {
        const struct grammar_node *node = &grammar->nodes[i];
        if (node->kind == GRAMMAR_NODE_RANGE) {
            borders[node->low] = true;
            borders[node->high + 1] = true;
        }
    }
    grammar->class_count = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        if (byte == 0 || borders[byte]) {
            grammar->class_byte[grammar->class_count++] = (uint8_t)byte;
        }
        grammar->class_of[byte] = (uint8_t)(grammar->class_count - 1);
    }
}

result
grammar_finish(struct grammar *grammar, uint32_t start, int32_t end_id, struct error *error) {
    ASSERT(start < grammar->node_count && grammar->state_count == 0);
    for (size_t i = 0; i < grammar->node_count; i++) {
        const struct grammar_node *node = &grammar->nodes[i];
        ASSERT(node->kind == GRAMMAR_NODE_END || node->next < grammar->node_count);
        ASSERT(node->kind != GRAMMAR_NODE_FORK || node->value < grammar->node_count);
    }
    make_classes(grammar);
    grammar->end_id = end_id;
    grammar->seen = calloc(grammar->node_count, sizeof *grammar->seen);
    grammar->pending = calloc(grammar->node_count, sizeof *grammar->pending);
    if (grammar->seen == NULL || grammar->pending == NULL) {
        FAIL(error, MEMORY, "no memory for a grammar of %zu nodes", grammar->node_count);
    }
    return grammar_begin(grammar, start, error);
}

/* ---- use ---- */

uint32_t grammar_start(const struct grammar *grammar) {
    return grammar->start;
}

static result
follow_bytes(struct grammar *grammar, uint32_t *state, struct view bytes, struct error *error) {
    uint32_t at = *state;
    for (size_t i = 0; i < bytes.length && at != GRAMMAR_STATE_DEAD; i++) {
        TRY(grammar_follow(grammar, at, bytes.data[i], &at, error));
    }
    *state = at;
    return OK;
}

result grammar_advance_bytes(
    struct grammar *grammar, uint32_t *state, struct view bytes, struct error *error
) {
    uint32_t at = *state;
    TRY(follow_bytes(grammar, &at, bytes, error));
    if (at == GRAMMAR_STATE_DEAD) {
        FAIL(
            error,
            INVALID_INPUT,
            "the grammar does not allow '%.*s' here",
            VIEW_ARGUMENTS(grammar_shown(bytes))
        );
    }
    *state = at;
    return OK;
}

result grammar_advance(struct grammar *grammar, uint32_t *state, int32_t id, struct error *error) {
    const struct grammar_vocabulary *vocabulary = grammar->vocabulary;
    if (id < 0 || (size_t)id >= vocabulary->id_count) {
        FAIL(error, INVALID_INPUT, "token %d; the vocabulary has %zu", id, vocabulary->id_count);
    }
    uint32_t at = *state;
    struct view bytes = grammar_vocabulary_token(vocabulary, id);
    if (at == GRAMMAR_STATE_ENDED) {
        at = GRAMMAR_STATE_DEAD;
    } else if (id == grammar->end_id) {
        at = grammar_may_end(grammar, at) ? GRAMMAR_STATE_ENDED : GRAMMAR_STATE_DEAD;
    } else if (vocabulary->is_control[id] != 0) {
        TRY(grammar_follow_control(grammar, at, id, &at, error));
    } else if (bytes.length == 0) {
        at = GRAMMAR_STATE_DEAD;
    } else {
        TRY(follow_bytes(grammar, &at, bytes, error));
    }
    if (at == GRAMMAR_STATE_DEAD) {
        FAIL(
            error,
            INVALID_INPUT,
            "the grammar does not allow token %d ('%.*s') here",
            id,
            VIEW_ARGUMENTS(grammar_shown(bytes))
        );
    }
    *state = at;
    return OK;
}

bool grammar_may_end(const struct grammar *grammar, uint32_t state) {
    if (state == GRAMMAR_STATE_ENDED) {
        return true;
    }
    size_t count = 0;
    const uint64_t *items = grammar_state_items(grammar, state, &count);
    for (size_t i = 0; i < count; i++) {
        if (grammar->nodes[grammar_item_node(items[i])].kind == GRAMMAR_NODE_END) {
            return true;
        }
    }
    return false;
}

void grammar_facts(const struct grammar *grammar, struct grammar_facts *out) {
    size_t states = sizeof *grammar->states + grammar->class_count * sizeof *grammar->next;
    size_t masks = grammar->vocabulary->words * sizeof(uint64_t) + sizeof *grammar->mask_keys;
    size_t words = grammar->items.capacity + grammar->key_words.capacity +
                   grammar->scratch.capacity + grammar->key.capacity;
    size_t slots = grammar->table.capacity + grammar->mask_table.capacity;
    *out = (struct grammar_facts
    ){.nodes = grammar->node_count,
      .states = grammar->state_count,
      .masks = grammar->masks_made,
      .trie_nodes = grammar->trie_nodes,
      .bytes = sizeof *grammar + grammar->node_capacity * sizeof *grammar->nodes +
               grammar->state_capacity * states + grammar->mask_capacity * masks +
               words * sizeof(uint64_t) + slots * sizeof(uint32_t) +
               2 * grammar->node_count * sizeof(uint32_t)};
}
