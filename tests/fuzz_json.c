/* The JSON scanner, tree and writer on any bytes: what parses must survive a rewrite unchanged. */
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct error error;
    if (is_failed(json_parse(view_of(data, size), NULL, &document, &error))) {
        return 0;
    }
    CLEANUP(buffer_deinit) struct buffer first = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer second = {NULL, 0, 0, 0};
    buffer_init(&first, BUFFER_CEILING_DEFAULT);
    buffer_init(&second, BUFFER_CEILING_DEFAULT);
    struct json_writer writer;
    json_writer_init(&writer, &first, &error);
    json_write_value(&writer, json_root(document));
    ASSERT(is_ok(json_writer_finish(&writer)));
    CLEANUP(json_cleanup) struct json_document *again = NULL;
    ASSERT(is_ok(json_parse(buffer_view(&first), NULL, &again, &error)));
    json_writer_init(&writer, &second, &error);
    json_write_value(&writer, json_root(again));
    ASSERT(is_ok(json_writer_finish(&writer)));
    ASSERT(view_equals(buffer_view(&first), buffer_view(&second)));
    return 0;
}
