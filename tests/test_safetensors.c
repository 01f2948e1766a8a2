/* Reads stored vectors for tests: header as JSON, data in one aligned block. */
#include "test_safetensors.h"

#include <unistd.h>

static bool find_below(char path[TEST_PATH_MAX], const char *folder, const char *relative) {
    int length = snprintf(path, TEST_PATH_MAX, "%s/%s", folder, relative);
    return length > 0 && length < TEST_PATH_MAX && access(path, R_OK) == 0;
}

bool test_data_find_outside(char path[TEST_PATH_MAX], const char *relative) {
    const char *folder = getenv("HEARTH_TEST_DATA");
    return folder != NULL && folder[0] != '\0' && find_below(path, folder, relative);
}

bool test_data_find(char path[TEST_PATH_MAX], const char *relative) {
    return find_below(path, TEST_SOURCE_DIR "/tests/data", relative) ||
           find_below(path, TEST_SOURCE_DIR "/build/test-data", relative) ||
           test_data_find_outside(path, relative);
}

result test_tensors_open(struct test_tensors *out, const char *path, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    buffer_init(&file, BUFFER_CEILING_DEFAULT);
    TRY(file_read(path, &file, error));
    struct cursor cursor = cursor_over(buffer_view(&file));
    uint64_t header_bytes = 0;
    struct view header_text;
    if (!cursor_take_u64_le(&cursor, &header_bytes) ||
        !cursor_take(&cursor, (size_t)header_bytes, &header_text)) {
        FAIL(error, INVALID_INPUT, "%s: header of %zu bytes is cut off", path, file.length);
    }
    CLEANUP(json_cleanup) struct json_document *header = NULL;
    TRY_NOTE(error, json_parse(header_text, NULL, &header, error), "%s", path);
    size_t bytes = cursor_remaining(&cursor);
    unsigned char *data = aligned_alloc(64, (bytes / 64 + 1) * 64);
    if (data == NULL) {
        FAIL(error, MEMORY, "%s: no memory for %zu bytes", path, bytes);
    }
    memcpy(data, file.data + cursor.at, bytes);
    out->header = TAKE(header);
    out->data = data;
    out->data_bytes = bytes;
    return OK;
}

void test_tensors_close(struct test_tensors *tensors) {
    json_destroy(tensors->header);
    free(tensors->data);
    *tensors = (struct test_tensors){0};
}

bool test_tensors_get(
    const struct test_tensors *tensors, const char *name, struct test_tensor *out
) {
    struct json_value entry = json_get(json_root(tensors->header), name);
    struct json_value offsets = json_get(entry, "data_offsets");
    struct json_value from_value = json_first(offsets);
    int64_t from = 0;
    int64_t to = 0;
    *out = (struct test_tensor){0};
    out->count = 1;
    if (!json_as_string(json_get(entry, "dtype"), &out->dtype) || !json_as_i64(from_value, &from) ||
        !json_as_i64(json_next(from_value), &to) || from < 0 || to < from ||
        (size_t)to > tensors->data_bytes) {
        return false;
    }
    struct json_value dim = json_first(json_get(entry, "shape"));
    for (; json_type(dim) != JSON_ABSENT && out->rank < COUNT_OF(out->dims); dim = json_next(dim)) {
        int64_t extent = 0;
        if (!json_as_i64(dim, &extent) || extent < 0) {
            return false;
        }
        out->dims[out->rank] = (size_t)extent;
        out->rank++;
        out->count *= (size_t)extent;
    }
    out->bytes = (size_t)(to - from);
    out->data = tensors->data + from;
    return true;
}
