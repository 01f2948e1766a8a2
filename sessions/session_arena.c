/* Memory of one loaded session or list: many small pieces, freed as a whole, under a ceiling. */
#include "session_internal.h"

#define CHUNK_BYTES ((size_t)64 << 10)
#define ALIGNMENT   16U

struct arena_chunk {
    struct arena_chunk *next;
    size_t used;
    size_t capacity;
    size_t padding; // keeps data aligned
    unsigned char data[];
};

static_assert(sizeof(struct arena_chunk) % ALIGNMENT == 0, "chunk data is aligned");

void arena_deinit(struct arena *arena) {
    for (struct arena_chunk *chunk = arena->chunks; chunk != NULL;) {
        struct arena_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    arena->chunks = NULL;
    arena->bytes = 0;
}

result arena_allocate(struct arena *arena, size_t bytes, void **out, struct error *error) {
    size_t rounded = 0;
    size_t total = 0;
    if (!size_add(bytes, ALIGNMENT - 1, &rounded) ||
        !size_add(arena->bytes, rounded &= ~(size_t)(ALIGNMENT - 1), &total) ||
        total > arena->ceiling) {
        FAIL(
            error,
            LIMIT,
            "%zu bytes more than the %zu of %zu in use",
            bytes,
            arena->bytes,
            arena->ceiling
        );
    }
    struct arena_chunk *chunk = arena->chunks;
    if (chunk == NULL || chunk->capacity - chunk->used < rounded) {
        size_t capacity = rounded > CHUNK_BYTES ? rounded : CHUNK_BYTES;
        chunk = malloc(sizeof *chunk + capacity);
        if (chunk == NULL) {
            FAIL(error, MEMORY, "%zu bytes", capacity);
        }
        chunk->used = 0;
        chunk->capacity = capacity;
        chunk->padding = 0;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    unsigned char *place = chunk->data + chunk->used;
    chunk->used += rounded;
    arena->bytes = total;
    memset(place, 0, rounded);
    *out = place;
    return OK;
}

result arena_copy(struct arena *arena, struct view bytes, struct view *out, struct error *error) {
    if (bytes.length == 0) {
        *out = view_of(NULL, 0);
        return OK;
    }
    void *place = NULL;
    TRY(arena_allocate(arena, bytes.length, &place, error));
    ASSERT(place != NULL);
    memcpy(place, bytes.data, bytes.length);
    *out = view_of(place, bytes.length);
    return OK;
}

result arena_grow(
    struct arena *arena, void **items, size_t count, size_t item_bytes, struct error *error
) {
    // Capacity is the power of two at or above count, from 4 on: no field is needed for it.
    if (count != 0 && (count < 4 || (count & (count - 1)) != 0)) {
        return OK;
    }
    size_t capacity = 4;
    size_t bytes = 0;
    if ((count != 0 && !size_multiply(count, 2, &capacity)) ||
        !size_multiply(capacity, item_bytes, &bytes)) {
        FAIL(error, LIMIT, "%zu items of %zu bytes and one more", count, item_bytes);
    }
    void *grown = NULL;
    TRY(arena_allocate(arena, bytes, &grown, error));
    ASSERT(grown != NULL);
    if (count > 0) {
        ASSERT(*items != NULL);
        memcpy(grown, *items, count * item_bytes);
    }
    *items = grown;
    return OK;
}
