/* One header: see safetensors.h. The set of files of a directory is in safetensors_files.c. */
#include "safetensors.h"

#include "base/json.h"

#include <inttypes.h>

#define PREFIX_BYTES 8 /* little-endian length of the header */

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[TENSOR_DTYPE_COUNT] = {
    [TENSOR_BOOL] = {"BOOL", 1},
    [TENSOR_U8] = {"U8", 1},
    [TENSOR_I8] = {"I8", 1},
    [TENSOR_F8_E5M2] = {"F8_E5M2", 1},
    [TENSOR_F8_E4M3] = {"F8_E4M3", 1},
    [TENSOR_F8_E8M0] = {"F8_E8M0", 1},
    [TENSOR_I16] = {"I16", 2},
    [TENSOR_U16] = {"U16", 2},
    [TENSOR_F16] = {"F16", 2},
    [TENSOR_BF16] = {"BF16", 2},
    [TENSOR_I32] = {"I32", 4},
    [TENSOR_U32] = {"U32", 4},
    [TENSOR_F32] = {"F32", 4},
    [TENSOR_I64] = {"I64", 8},
    [TENSOR_U64] = {"U64", 8},
    [TENSOR_F64] = {"F64", 8},
};

const char *tensor_dtype_name(enum tensor_dtype dtype) {
    ASSERT(dtype < TENSOR_DTYPE_COUNT);
    return dtypes[dtype].name;
}

void tensor_shape_text(const uint64_t *shape, uint32_t rank, char out[TENSOR_SHAPE_TEXT]) {
    size_t at = 1;
    out[0] = '[';
    for (uint32_t i = 0; i < rank; i++) {
        int n =
            snprintf(out + at, TENSOR_SHAPE_TEXT - at, "%s%" PRIu64, i == 0 ? "" : ", ", shape[i]);
        ASSERT(n > 0 && (size_t)n < TENSOR_SHAPE_TEXT - at - 1); // 8 x 22 characters fit
        at += (size_t)n;
    }
    out[at] = ']';
    out[at + 1] = '\0';
}

void tensor_list_deinit(struct tensor_list *list) {
    for (size_t i = 0; i < list->name_blocks; i++) {
        free(list->names[i]);
    }
    free(list->names);
    free(list->items);
    memset(list, 0, sizeof *list);
}

static result list_reserve(struct tensor_list *list, size_t extra, struct error *error) {
    size_t wanted = 0;
    size_t bytes = 0;
    if (!size_add(list->count, extra, &wanted) ||
        !size_multiply(wanted, sizeof *list->items, &bytes)) {
        FAIL(error, LIMIT, "%zu tensors are too many", extra);
    }
    if (wanted <= list->capacity) {
        return OK;
    }
    struct tensor_entry *items = realloc(list->items, bytes);
    if (items == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tensor entries", wanted);
    }
    list->items = items;
    list->capacity = wanted;
    return OK;
}

static result
add_name_block(struct tensor_list *list, size_t bytes, char **out, struct error *error) {
    char **names = realloc(list->names, (list->name_blocks + 1) * sizeof *names);
    if (names == NULL) {
        FAIL(error, MEMORY, "no memory for tensor names");
    }
    list->names = names;
    char *block = malloc(bytes + 1);
    if (block == NULL) {
        FAIL(error, MEMORY, "no memory for %zu bytes of tensor names", bytes);
    }
    list->names[list->name_blocks++] = block;
    *out = block;
    return OK;
}

/* Names reach terminals and logs: printable only. */
static result check_name(struct view name, struct error *error) {
    if (name.length == 0 || name.length > SAFETENSORS_NAME_MAX) {
        FAIL(
            error,
            CORRUPT,
            "a tensor name of %zu bytes, allowed are 1 to %d",
            name.length,
            SAFETENSORS_NAME_MAX
        );
    }
    for (size_t i = 0; i < name.length; i++) {
        if (name.data[i] < 0x21 || name.data[i] > 0x7e) {
            FAIL(error, CORRUPT, "a tensor name with byte 0x%02x at %zu", name.data[i], i);
        }
    }
    return OK;
}

static result read_dtype(struct json_value member, enum tensor_dtype *out, struct error *error) {
    struct view text = {NULL, 0};
    TRY(json_get_string(member, "dtype", &text, error));
    for (int i = 0; i < TENSOR_DTYPE_COUNT; i++) {
        if (view_equals_text(text, dtypes[i].name)) {
            *out = (enum tensor_dtype)i;
            return OK;
        }
    }
    FAIL(error, UNSUPPORTED, "unknown dtype \"%.*s\"", VIEW_ARGUMENTS(view_slice(text, 0, 40)));
}

static result
read_count(struct json_value value, const char *what, uint64_t *out, struct error *error) {
    int64_t number = -1;
    if (!json_as_i64(value, &number) || number < 0) {
        FAIL(
            error,
            CORRUPT,
            "'%s' holds %.*s, not a count",
            what,
            VIEW_ARGUMENTS(view_slice(json_raw(value), 0, 40))
        );
    }
    *out = (uint64_t)number;
    return OK;
}

static result
read_shape(struct json_value member, struct tensor_entry *entry, struct error *error) {
    struct json_value shape;
    TRY(json_get_array(member, "shape", &shape, error));
    if (json_count(shape) > SAFETENSORS_RANK_MAX) {
        FAIL(
            error,
            UNSUPPORTED,
            "%zu dimensions, at most %d are known",
            json_count(shape),
            SAFETENSORS_RANK_MAX
        );
    }
    entry->rank = 0;
    uint64_t bytes = dtypes[entry->dtype].bytes;
    for (struct json_value v = json_first(shape); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        uint64_t dimension = 0;
        TRY(read_count(v, "shape", &dimension, error));
        entry->shape[entry->rank++] = dimension;
        if (__builtin_mul_overflow(bytes, dimension, &bytes)) {
            FAIL(error, CORRUPT, "the product of 'shape' overflows");
        }
    }
    entry->bytes = bytes;
    return OK;
}

/* Fills all but name and shard; `begin` is still relative to the data. */
static result read_entry(
    struct json_value member, uint64_t data_bytes, struct tensor_entry *entry, struct error *error
) {
    if (json_type(member) != JSON_OBJECT || json_count(member) != 3) {
        FAIL(error, CORRUPT, "wanted is an object of dtype, shape and data_offsets");
    }
    TRY(read_dtype(member, &entry->dtype, error));
    TRY(read_shape(member, entry, error));
    struct json_value offsets;
    TRY(json_get_array(member, "data_offsets", &offsets, error));
    if (json_count(offsets) != 2) {
        FAIL(error, CORRUPT, "'data_offsets' has %zu numbers, not 2", json_count(offsets));
    }
    uint64_t end = 0;
    TRY(read_count(json_first(offsets), "data_offsets", &entry->begin, error));
    TRY(read_count(json_next(json_first(offsets)), "data_offsets", &end, error));
    if (entry->begin > end || end > data_bytes) {
        FAIL(
            error,
            CORRUPT,
            "data_offsets [%" PRIu64 ", %" PRIu64 "], the file has %" PRIu64 " bytes of data",
            entry->begin,
            end,
            data_bytes
        );
    }
    if (end - entry->begin != entry->bytes) {
        char shape[TENSOR_SHAPE_TEXT];
        tensor_shape_text(entry->shape, entry->rank, shape);
        FAIL(
            error,
            CORRUPT,
            "%s of %s takes %" PRIu64 " bytes, data_offsets span %" PRIu64,
            shape,
            tensor_dtype_name(entry->dtype),
            entry->bytes,
            end - entry->begin
        );
    }
    return OK;
}

static int compare_begin(const void *a, const void *b) {
    const struct tensor_entry *const *x = a;
    const struct tensor_entry *const *y = b;
    if ((*x)->begin != (*y)->begin) {
        return (*x)->begin < (*y)->begin ? -1 : 1;
    }
    if ((*x)->bytes != (*y)->bytes) {
        return (*x)->bytes < (*y)->bytes ? -1 : 1;
    }
    return 0;
}

/* Tensors in order of their offsets must follow each other, up to alignment. */
static result check_layout(
    const struct tensor_entry *entries, size_t count, uint64_t data_bytes, struct error *error
) {
    CLEANUP(free_cleanup)
    const struct tensor_entry **order = calloc(count + 1, sizeof(struct tensor_entry *));
    if (order == NULL) {
        FAIL(error, MEMORY, "no memory to sort %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        order[i] = &entries[i];
    }
    qsort(order, count, sizeof(struct tensor_entry *), compare_begin);
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        const struct tensor_entry *entry = order[i];
        if (entry->begin < end) {
            FAIL(
                error,
                CORRUPT,
                "tensor '%.*s' starts at %" PRIu64
                ", inside the one before, which ends at %" PRIu64,
                VIEW_ARGUMENTS(entry->name),
                entry->begin,
                end
            );
        }
        if (entry->begin - end > SAFETENSORS_GAP_MAX) {
            FAIL(
                error,
                CORRUPT,
                "%" PRIu64 " bytes before tensor '%.*s' belong to none",
                entry->begin - end,
                VIEW_ARGUMENTS(entry->name)
            );
        }
        end = entry->begin + entry->bytes;
    }
    if (data_bytes - end > SAFETENSORS_GAP_MAX) {
        FAIL(error, CORRUPT, "%" PRIu64 " bytes behind the last tensor", data_bytes - end);
    }
    return OK;
}

static result check_metadata(struct json_value member, struct error *error) {
    if (json_type(member) != JSON_OBJECT) {
        FAIL(error, CORRUPT, "'__metadata__' is not an object");
    }
    for (struct json_value v = json_first(member); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        if (json_type(v) != JSON_STRING) {
            FAIL(error, CORRUPT, "'__metadata__' holds something that is no string");
        }
    }
    return OK;
}

/* The header's JSON and where the data starts. */
static result split_file(
    struct view start,
    uint64_t file_bytes,
    struct view *header,
    uint64_t *data_offset,
    struct error *error
) {
    struct cursor cursor = cursor_over(start);
    uint64_t header_bytes = 0;
    if (!cursor_take_u64_le(&cursor, &header_bytes)) {
        FAIL(error, CORRUPT, "%" PRIu64 " bytes are too few for a safetensors file", file_bytes);
    }
    if (header_bytes > file_bytes - PREFIX_BYTES) {
        FAIL(
            error,
            CORRUPT,
            "a header of %" PRIu64 " bytes in a file of %" PRIu64,
            header_bytes,
            file_bytes
        );
    }
    if (header_bytes > SAFETENSORS_HEADER_MAX) {
        FAIL(
            error,
            UNSUPPORTED,
            "a header of %" PRIu64 " bytes, at most %zu are read",
            header_bytes,
            SAFETENSORS_HEADER_MAX
        );
    }
    if (!cursor_take(&cursor, (size_t)header_bytes, header)) {
        FAIL(error, CORRUPT, "the header of %" PRIu64 " bytes is cut off", header_bytes);
    }
    *data_offset = PREFIX_BYTES + header_bytes;
    return OK;
}

static result parse_members(
    struct json_value root,
    uint64_t data_offset,
    uint64_t data_bytes,
    uint32_t shard,
    struct tensor_list *list,
    struct error *error
) {
    size_t name_bytes = 0;
    for (struct json_value v = json_first(root); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        name_bytes += json_name(v).length; // at most the header's size
    }
    char *names = NULL;
    TRY(list_reserve(list, json_count(root), error));
    TRY(add_name_block(list, name_bytes, &names, error));
    ASSERT(names != NULL);
    size_t first = list->count;
    for (struct json_value v = json_first(root); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct view name = json_name(v);
        if (view_equals_text(name, "__metadata__")) {
            TRY(check_metadata(v, error));
            continue;
        }
        TRY(check_name(name, error));
        ASSERT(list->count < list->capacity);
        struct tensor_entry *entry = &list->items[list->count];
        memset(entry, 0, sizeof *entry);
        TRY_NOTE(
            error, read_entry(v, data_bytes, entry, error), "tensor '%.*s'", VIEW_ARGUMENTS(name)
        );
        memcpy(names, name.data, name.length);
        entry->name = view_of(names, name.length);
        entry->shard = shard;
        names += name.length;
        list->count += 1;
    }
    struct tensor_entry *added = list->items == NULL ? NULL : list->items + first;
    size_t count = list->count - first;
    TRY(check_layout(added, count, data_bytes, error));
    for (size_t i = 0; i < count; i++) {
        added[i].begin += data_offset;
        if (added[i].begin % dtypes[added[i].dtype].bytes != 0) {
            FAIL(
                error,
                UNSUPPORTED,
                "tensor '%.*s' of %s at file offset %" PRIu64 " is not aligned",
                VIEW_ARGUMENTS(added[i].name),
                tensor_dtype_name(added[i].dtype),
                added[i].begin
            );
        }
    }
    return OK;
}

/* A header that does not parse is damaged data, whatever the JSON reader calls it. */
static result as_corrupt(result failed, struct error *error) {
    if (failed.code != RESULT_INVALID_INPUT && failed.code != RESULT_LIMIT) {
        return failed;
    }
    if (error != NULL) {
        error->code = RESULT_CORRUPT;
    }
    return (result){RESULT_CORRUPT};
}

static result parse_file(
    struct view start,
    uint64_t file_bytes,
    uint32_t shard,
    struct tensor_list *list,
    struct error *error
) {
    const struct json_limits limits = {SAFETENSORS_HEADER_MAX, SAFETENSORS_VALUES_MAX, 4};
    struct view header = {NULL, 0};
    uint64_t data_offset = 0;
    TRY(split_file(start, file_bytes, &header, &data_offset, error));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(header, &limits, &document, error), "header");
    struct json_value root = json_root(document);
    if (json_type(root) != JSON_OBJECT) {
        FAIL(error, CORRUPT, "the header is no JSON object");
    }
    TRY(parse_members(root, data_offset, file_bytes - data_offset, shard, list, error));
    return OK;
}

result safetensors_parse(
    struct view start,
    uint64_t file_bytes,
    uint32_t shard,
    struct tensor_list *list,
    struct error *error
) {
    ASSERT(start.length <= file_bytes);
    result parsed = parse_file(start, file_bytes, shard, list, error);
    return is_ok(parsed) ? parsed : as_corrupt(parsed, error);
}
