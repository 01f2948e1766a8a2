/* Any bytes as a file of the configuration, the user's or a project's: what is accepted is written out
 * as a file that says the same. */
#include "runtime/config_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct config_layer begin(bool is_project, struct config_memory *memory) {
    return (struct config_layer){
        .source = is_project ? CONFIG_BY_PROJECT : CONFIG_BY_USER,
        .name = "config.json",
        .directory = "/base/folder",
        .home = "/base",
        .memory = memory,
    };
}

static void write_layer(const struct config_layer *layer, struct buffer *out) {
    struct json_writer writer;
    json_writer_init(&writer, out, NULL);
    json_write_object_begin(&writer);
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        if (layer->is_given[i]) {
            json_write_key(&writer, config_key_name((enum config_key)i));
            config_value_write(&layer->values, (enum config_key)i, &writer);
        }
    }
    json_write_object_end(&writer);
    ASSERT(is_ok(json_writer_finish(&writer)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int is_project = 0; is_project < 2; is_project++) {
        struct config_memory *memory = NULL;
        struct error error = {0};
        CLEANUP(buffer_deinit) struct buffer first;
        CLEANUP(buffer_deinit) struct buffer second;
        buffer_init(&first, BUFFER_CEILING_DEFAULT);
        buffer_init(&second, BUFFER_CEILING_DEFAULT);
        ASSERT(is_ok(config_memory_create(&memory, &error)));
        struct config_layer layer = begin(is_project != 0, memory);
        struct config_layer again = layer;
        if (is_ok(config_take_file(&layer, view_of(data, size), &error))) {
            write_layer(&layer, &first);
            ASSERT(is_ok(config_take_file(&again, buffer_view(&first), &error)));
            write_layer(&again, &second);
            ASSERT(view_equals(buffer_view(&first), buffer_view(&second)));
        } else {
            ASSERT(error.message[0] != '\0');
        }
        config_memory_destroy(memory);
    }
    return 0;
}
