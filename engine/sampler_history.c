/* The distinct tokens of one generation, in order of first occurrence, with a hash index over them.
 * Tokens are taken back last first, so that a token which is there no more was the last to enter:
 * the entries are a stack and no probe sequence of the index is ever cut. */
#include "sampler_internal.h"

struct sampler_history {
    int32_t vocabulary;
    int32_t count, capacity;               /* entries */
    uint32_t slots_mask;                   /* slots - 1; a power of two minus one */
    int32_t *slots;                        /* entry + 1, 0: empty */
    struct sampler_history_entry *entries; /* [capacity] */
};

static int32_t capacity_of(int32_t vocabulary, int32_t tokens_max) {
    return tokens_max < vocabulary ? tokens_max : vocabulary;
}

static size_t slots_of(int32_t capacity) {
    size_t slots = 16;
    while (slots < (size_t)capacity * 2) {
        slots *= 2;
    }
    return slots;
}

uint64_t sampler_history_bytes(int32_t vocabulary, int32_t tokens_max) {
    int32_t capacity = capacity_of(vocabulary, tokens_max);
    return sizeof(struct sampler_history) + slots_of(capacity) * sizeof(int32_t) +
           ((uint64_t)capacity + 1) * sizeof(struct sampler_history_entry);
}

result sampler_history_create(
    struct sampler_history **out, int32_t vocabulary, int32_t tokens_max, struct error *error
) {
    ASSERT(vocabulary > 0 && tokens_max >= 0);
    int32_t capacity = capacity_of(vocabulary, tokens_max);
    size_t slots = slots_of(capacity);
    struct sampler_history *history = calloc(1, sizeof *history);
    int32_t *slot_array = calloc(slots, sizeof *slot_array);
    struct sampler_history_entry *entries = calloc((size_t)capacity + 1, sizeof *entries);
    if (history == NULL || slot_array == NULL || entries == NULL) {
        free(entries);
        free(slot_array);
        free(history);
        FAIL(error, MEMORY, "no memory for the history of %d tokens", tokens_max);
    }
    history->vocabulary = vocabulary;
    history->capacity = capacity;
    history->slots_mask = (uint32_t)(slots - 1);
    history->slots = slot_array;
    history->entries = entries;
    *out = history;
    return OK;
}

void sampler_history_destroy(struct sampler_history *history) {
    if (history != NULL) {
        free(history->entries);
        free(history->slots);
        free(history);
    }
}

/* The slot that holds `id`, or the empty one where it belongs. */
static int32_t *find_slot(const struct sampler_history *history, int32_t id) {
    ASSERT(id >= 0 && id < history->vocabulary);
    uint32_t at = (uint32_t)id * 2654435769U;
    for (at ^= at >> 15;; at++) {
        int32_t *slot = &history->slots[at & history->slots_mask];
        if (*slot == 0 || history->entries[*slot - 1].id == id) {
            return slot;
        }
    }
}

static struct sampler_history_entry *enter(struct sampler_history *history, int32_t id) {
    int32_t *slot = find_slot(history, id);
    if (*slot == 0) {
        ASSERT(history->count < history->capacity);
        history->entries[history->count] = (struct sampler_history_entry){.id = id};
        *slot = ++history->count;
    }
    return &history->entries[*slot - 1];
}

void sampler_history_prompt(struct sampler_history *history, const int32_t *ids, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        enter(history, ids[i])->is_in_prompt = true;
    }
}

void sampler_history_push(struct sampler_history *history, int32_t id) {
    enter(history, id)->sampled++;
}

void sampler_history_pop(struct sampler_history *history, int32_t id) {
    int32_t *slot = find_slot(history, id);
    ASSERT(*slot != 0);
    struct sampler_history_entry *entry = &history->entries[*slot - 1];
    ASSERT(entry->sampled > 0);
    entry->sampled--;
    if (entry->sampled == 0 && !entry->is_in_prompt) {
        ASSERT(*slot == history->count); /* last in, first out */
        *slot = 0;
        history->count--;
    }
}

const struct sampler_history_entry *
sampler_history_entries(const struct sampler_history *history, int32_t *count) {
    *count = history == NULL ? 0 : history->count;
    return history == NULL ? NULL : history->entries;
}
