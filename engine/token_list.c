/* Growable lists of token ids. */
#include "tokenizer.h"

void token_list_init(struct token_list *list, size_t ceiling) {
    *list = (struct token_list){.ceiling = ceiling};
}

void token_list_deinit(struct token_list *list) {
    free(list->ids);
    token_list_init(list, list->ceiling);
}

void token_list_clear(struct token_list *list) {
    list->count = 0;
}

static result grow(struct token_list *list, size_t extra, struct error *error) {
    if (extra > list->ceiling - list->count) {
        FAIL(
            error,
            LIMIT,
            "%zu tokens and %zu more are over the limit of %zu",
            list->count,
            extra,
            list->ceiling
        );
    }
    size_t capacity = list->capacity < 64 ? 64 : list->capacity * 2;
    capacity = capacity < list->count + extra ? list->count + extra : capacity;
    capacity = capacity > list->ceiling ? list->ceiling : capacity;
    int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
    if (ids == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tokens", capacity);
    }
    list->ids = ids;
    list->capacity = capacity;
    return OK;
}

result token_list_append(struct token_list *list, int32_t id, struct error *error) {
    if (list->count == list->capacity) {
        TRY(grow(list, 1, error));
    }
    list->ids[list->count++] = id;
    return OK;
}

result token_list_append_all(
    struct token_list *list, const int32_t *ids, size_t count, struct error *error
) {
    if (count > list->capacity - list->count) {
        TRY(grow(list, count, error));
    }
    if (count > 0) {
        memcpy(list->ids + list->count, ids, count * sizeof *ids);
        list->count += count;
    }
    return OK;
}
