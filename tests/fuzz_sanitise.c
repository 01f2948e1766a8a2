/* Output of commands as text: whatever the bytes, the result is valid UTF-8 without a control
 * character that a terminal or a model would act upon. */
#include "sandbox/sandbox.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t line_bytes_max = size > 0 ? data[0] : 0; // 0: no limit
    struct buffer out;
    buffer_init(&out, BUFFER_CEILING_DEFAULT);
    result done = sandbox_sanitise(view_of(data, size), line_bytes_max, &out, NULL);
    ASSERT(is_ok(done));
    ASSERT(utf8_is_valid(buffer_view(&out)));
    for (size_t i = 0; i < out.length; i++) {
        unsigned char byte = out.data[i];
        ASSERT(byte == '\n' || byte == '\t' || (byte >= 0x20U && byte != 0x7fU));
        ASSERT(byte != 0xc2U || out.data[i + 1] >= 0xa0U); // C1
    }
    buffer_deinit(&out);
    return 0;
}
