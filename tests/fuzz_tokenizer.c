/* A tokenizer.json of any bytes; what is accepted must encode and decode a text without loss. */
#include "engine/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tokenizer *tokenizer, enum tokenizer_markers markers) {
    struct view text = view_of_text("Hello, world! <think> 12345 naïve 你好\n\n  x\t😀 <｜User｜>");
    CLEANUP(token_list_deinit) struct token_list ids = {NULL, 0, 0, 1 << 16};
    CLEANUP(buffer_deinit) struct buffer decoded = {NULL, 0, 0, 1 << 20};
    if (is_failed(tokenizer_encode(tokenizer, text, markers, &ids, NULL))) {
        return; // a pattern may reach its limit of steps
    }
    ASSERT(is_ok(tokenizer_decode(tokenizer, ids.ids, ids.count, &decoded, NULL)));
    // An added token may be spelled like the mapped form of other bytes; then it decodes to those.
    ASSERT(markers == TOKENIZER_MARKERS_ON || view_equals(buffer_view(&decoded), text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = NULL;
    if (is_ok(tokenizer_parse(&tokenizer, view_of(data, size), NULL))) {
        check(tokenizer, TOKENIZER_MARKERS_OFF);
        check(tokenizer, TOKENIZER_MARKERS_ON);
    }
    return 0;
}
