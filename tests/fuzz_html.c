/* HTML from foreign bytes: text of a bounded length, no blank lines in a row, and valid UTF-8 stays
 * valid. */
#include "tools/tool_html.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct view html = view_of(data, size);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    ASSERT(is_ok(tool_html_text(html, &text, NULL)));
    // The most that a byte can become: "<h6>" is eight in front of a character.
    ASSERT(text.length <= 3 * size + 16);
    ASSERT(!utf8_is_valid(html) || utf8_is_valid(buffer_view(&text)));
    return 0;
}
