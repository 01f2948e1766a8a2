/* Any bytes as the start of a safetensors file: what is accepted lies inside the file, in order. */
#include "engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    CLEANUP(tensor_list_deinit) struct tensor_list list = {NULL, 0, 0, NULL, 0};
    struct error error;
    result parsed = safetensors_parse(view_of(data, size), size, 3, &list, &error);
    if (is_failed(parsed)) {
        ASSERT(parsed.code == RESULT_CORRUPT || parsed.code == RESULT_UNSUPPORTED);
        ASSERT(error.message[0] != '\0');
        return 0;
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < list.count; i++) {
        const struct tensor_entry *entry = &list.items[i];
        ASSERT(entry->shard == 3);
        ASSERT(entry->begin >= 8 && entry->begin <= size && entry->bytes <= size - entry->begin);
        ASSERT(entry->name.length > 0 && entry->name.length <= SAFETENSORS_NAME_MAX);
        char shape[TENSOR_SHAPE_TEXT];
        tensor_shape_text(entry->shape, entry->rank, shape);
        bytes += entry->bytes;
    }
    ASSERT(bytes <= size); // they do not overlap
    return 0;
}
