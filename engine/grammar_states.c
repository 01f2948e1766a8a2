/* States are sets of items, made by following bytes from known ones and told apart by content.
 * Every transition is followed once. */
#include "grammar_internal.h"

/* ---- lists and tables ---- */

result grammar_words_append(struct grammar_words *words, uint64_t word, struct error *error) {
    if (words->count == words->capacity) {
        size_t capacity = words->capacity == 0 ? 64 : 2 * words->capacity;
        uint64_t *data = realloc(words->data, capacity * sizeof *data);
        if (data == NULL) {
            FAIL(error, MEMORY, "no memory for %zu items of a grammar", capacity);
        }
        words->data = data;
        words->capacity = capacity;
    }
    words->data[words->count++] = word;
    return OK;
}

uint64_t grammar_hash(const uint64_t *words, size_t count) {
    uint64_t hash = 0x9E3779B97F4A7C15U ^ count;
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ words[i]) * 0xBF58476D1CE4E5B9U;
        hash ^= hash >> 29;
    }
    return hash;
}

result grammar_table_reserve(
    struct grammar_table *table,
    uint64_t (*hash_of)(const struct grammar *grammar, uint32_t index),
    const struct grammar *grammar,
    struct error *error
) {
    if (2 * (table->count + 1) <= table->capacity) {
        return OK;
    }
    size_t capacity = table->capacity == 0 ? 256 : 2 * table->capacity;
    uint32_t *slots = calloc(capacity, sizeof *slots);
    if (slots == NULL) {
        FAIL(error, MEMORY, "no memory for a table of %zu states", capacity);
    }
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->slots[i] != 0) {
            size_t at = (size_t)hash_of(grammar, table->slots[i] - 1) & (capacity - 1);
            while (slots[at] != 0) {
                at = (at + 1) & (capacity - 1);
            }
            slots[at] = table->slots[i];
        }
    }
    free(table->slots);
    table->slots = slots;
    table->capacity = capacity;
    return OK;
}

/* ---- states ---- */

const uint64_t *grammar_state_items(const struct grammar *grammar, uint32_t state, size_t *count) {
    ASSERT(state < grammar->state_count);
    *count = grammar->states[state].item_count;
    return grammar->items.data + grammar->states[state].items_at;
}

static uint64_t hash_of_state(const struct grammar *grammar, uint32_t index) {
    size_t count = 0;
    const uint64_t *items = grammar_state_items(grammar, index, &count);
    return grammar_hash(items, count);
}

static int compare_items(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return left < right ? -1 : left > right ? 1 : 0;
}

/* Sorts the items of the state being made and drops doubles. */
static void normalise(struct grammar_words *items) {
    if (items->count < 2) {
        return;
    }
    qsort(items->data, items->count, sizeof *items->data, compare_items);
    size_t kept = 1;
    for (size_t i = 1; i < items->count; i++) {
        if (items->data[i] != items->data[kept - 1]) {
            items->data[kept++] = items->data[i];
        }
    }
    items->count = kept;
}

static result grow_states(struct grammar *grammar, struct error *error) {
    if (grammar->state_count < grammar->state_capacity) {
        return OK;
    }
    size_t capacity = grammar->state_capacity == 0 ? 64 : 2 * grammar->state_capacity;
    struct grammar_state *states = realloc(grammar->states, capacity * sizeof *states);
    if (states == NULL) {
        FAIL(error, MEMORY, "no memory for %zu states of a grammar", capacity);
    }
    grammar->states = states;
    size_t row = grammar->class_count * sizeof *grammar->next;
    uint32_t *next = realloc(grammar->next, capacity * row);
    if (next == NULL) {
        FAIL(error, MEMORY, "no memory for %zu states of a grammar", capacity);
    }
    grammar->next = next;
    grammar->state_capacity = capacity;
    return OK;
}

static result check_limits(const struct grammar *grammar, struct error *error) {
    size_t count = grammar->scratch.count;
    if (count > GRAMMAR_ITEMS_MAX) {
        FAIL(
            error,
            LIMIT,
            "a grammar's state of %zu places at once; at most %d",
            count,
            GRAMMAR_ITEMS_MAX
        );
    }
    size_t row = sizeof *grammar->states + grammar->class_count * sizeof *grammar->next;
    size_t bytes = grammar->state_count * row + (grammar->items.count + count) * sizeof(uint64_t);
    if (grammar->state_count >= GRAMMAR_STATES_MAX || bytes > GRAMMAR_STATE_BYTES) {
        FAIL(
            error,
            LIMIT,
            "a grammar of more than %zu states or %zu bytes",
            GRAMMAR_STATES_MAX,
            GRAMMAR_STATE_BYTES
        );
    }
    return OK;
}

/* The state of the items in scratch, found or made. */
static result intern(struct grammar *grammar, uint32_t *out, struct error *error) {
    struct grammar_words *items = &grammar->scratch;
    normalise(items);
    if (items->count == 0) {
        *out = GRAMMAR_STATE_DEAD;
        return OK;
    }
    TRY(grammar_table_reserve(&grammar->table, hash_of_state, grammar, error));
    size_t mask = grammar->table.capacity - 1;
    size_t at = (size_t)grammar_hash(items->data, items->count) & mask;
    for (; grammar->table.slots[at] != 0; at = (at + 1) & mask) {
        size_t count = 0;
        uint32_t state = grammar->table.slots[at] - 1;
        const uint64_t *known = grammar_state_items(grammar, state, &count);
        if (count == items->count && memcmp(known, items->data, count * sizeof *known) == 0) {
            *out = state;
            return OK;
        }
    }
    TRY(check_limits(grammar, error));
    TRY(grow_states(grammar, error));
    size_t items_at = grammar->items.count;
    for (size_t i = 0; i < items->count; i++) {
        TRY(grammar_words_append(&grammar->items, items->data[i], error));
    }
    uint32_t state = (uint32_t)grammar->state_count;
    grammar->states[state] =
        (struct grammar_state){(uint32_t)items_at, (uint32_t)items->count, GRAMMAR_MASK_NONE};
    uint32_t *row = grammar->next + (size_t)state * grammar->class_count;
    for (size_t i = 0; i < grammar->class_count; i++) {
        row[i] = GRAMMAR_STATE_UNKNOWN;
    }
    grammar->state_count += 1;
    grammar->table.slots[at] = state + 1;
    grammar->table.count += 1;
    *out = state;
    return OK;
}

/* ---- following ---- */

static void begin_round(struct grammar *grammar) {
    grammar->scratch.count = 0;
    grammar->round += 1;
    if (grammar->round == 0) { // wrapped around
        memset(grammar->seen, 0, grammar->node_count * sizeof *grammar->seen);
        grammar->round = 1;
    }
}

static void enqueue(struct grammar *grammar, uint32_t node, size_t *count) {
    ASSERT(node < grammar->node_count);
    if (grammar->seen[node] != grammar->round) {
        grammar->seen[node] = grammar->round;
        grammar->pending[(*count)++] = node;
    }
}

/* Puts the items into scratch at which one stands on entering `node`. */
static result enter(struct grammar *grammar, uint32_t node, struct error *error) {
    size_t count = 0;
    enqueue(grammar, node, &count);
    while (count > 0) {
        uint32_t index = grammar->pending[--count];
        const struct grammar_node *at = &grammar->nodes[index];
        bool is_string = at->kind == GRAMMAR_NODE_STRING;
        bool may_pass = at->kind == GRAMMAR_NODE_LINK || at->kind == GRAMMAR_NODE_FORK ||
                        at->kind == GRAMMAR_NODE_FREE || (is_string && at->min == 0);
        if (at->kind == GRAMMAR_NODE_FORK) {
            enqueue(grammar, at->value, &count);
        }
        if (may_pass) {
            enqueue(grammar, at->next, &count);
        }
        bool stays = at->kind != GRAMMAR_NODE_LINK && at->kind != GRAMMAR_NODE_FORK &&
                     !(is_string && at->max == 0);
        if (stays) {
            TRY(grammar_words_append(&grammar->scratch, grammar_item(index, 0, 0), error));
        }
    }
    return OK;
}

/* What one item becomes with a byte. */
static result
step_item(struct grammar *grammar, uint64_t item, unsigned byte, struct error *error) {
    uint32_t index = grammar_item_node(item);
    const struct grammar_node *node = &grammar->nodes[index];
    struct grammar_step step = {grammar_item_place(item), grammar_item_count(item), false};
    switch ((enum grammar_node_kind)node->kind) {
    case GRAMMAR_NODE_RANGE:
        return byte >= node->low && byte <= node->high ? enter(grammar, node->next, error) : OK;
    case GRAMMAR_NODE_FREE:
        return enter(grammar, index, error);
    case GRAMMAR_NODE_STRING:
        if (!grammar_step_string(node, byte, &step)) {
            return OK;
        }
        break;
    case GRAMMAR_NODE_NUMBER:
        if (!grammar_step_number(node->form == 1, byte, &step)) {
            return OK;
        }
        break;
    case GRAMMAR_NODE_END:
    case GRAMMAR_NODE_CONTROL:
    case GRAMMAR_NODE_LINK:
    case GRAMMAR_NODE_FORK:
        return OK;
    }
    bool is_full = node->kind == GRAMMAR_NODE_STRING && step.place == 0 &&
                   node->max != GRAMMAR_NO_MAXIMUM && step.count == node->max;
    if (!is_full) {
        uint64_t next = grammar_item(index, step.place, step.count);
        TRY(grammar_words_append(&grammar->scratch, next, error));
    }
    return step.may_leave ? enter(grammar, node->next, error) : OK;
}

result grammar_begin(struct grammar *grammar, uint32_t start, struct error *error) {
    begin_round(grammar);
    TRY(enter(grammar, start, error));
    TRY(intern(grammar, &grammar->start, error));
    ASSERT(grammar->start != GRAMMAR_STATE_DEAD); // builders make no empty language
    return OK;
}

result grammar_follow(
    struct grammar *grammar, uint32_t state, unsigned byte, uint32_t *out, struct error *error
) {
    ASSERT(state < grammar->state_count && byte < 256);
    size_t class = grammar->class_of[byte];
    size_t cell = (size_t)state * grammar->class_count + class;
    uint32_t next = grammar->next[cell];
    if (next == GRAMMAR_STATE_UNKNOWN) {
        begin_round(grammar);
        size_t count = grammar->states[state].item_count;
        for (size_t i = 0; i < count; i++) {
            uint64_t item = grammar->items.data[grammar->states[state].items_at + i];
            TRY(step_item(grammar, item, grammar->class_byte[class], error));
        }
        TRY(intern(grammar, &next, error));
        grammar->next[cell] = next;
    }
    *out = next;
    return OK;
}

result grammar_follow_control(
    struct grammar *grammar, uint32_t state, int32_t id, uint32_t *out, struct error *error
) {
    size_t count = 0;
    const uint64_t *items = grammar_state_items(grammar, state, &count);
    begin_round(grammar);
    for (size_t i = 0; i < count; i++) {
        const struct grammar_node *node = &grammar->nodes[grammar_item_node(items[i])];
        if (node->kind == GRAMMAR_NODE_CONTROL && node->value == (uint32_t)id) {
            TRY(enter(grammar, node->next, error));
        }
    }
    return intern(grammar, out, error);
}
