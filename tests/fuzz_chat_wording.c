/* chat.json and Python files of any bytes. */
#include "engine/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct chat_wording_source source = {
        .effort_constant = "EFFORT",
        .effort_place = "budget",
        .tools_constant = "TOOLS",
        .tools_place = "schemas",
        .response_format_constant = "FORMAT",
        .response_format_place = "schema",
        .effort_line = {8, ""},
        .tools_head = {8, ""},
        .tools_tail = {8, ""},
        .response_format = {8, ""}};
    CLEANUP(chat_wording_cleanup) struct chat_wording *python = NULL;
    CLEANUP(chat_wording_cleanup) struct chat_wording *json = NULL;
    struct view text = view_of(data, size);
    ASSERT(is_failed(chat_wording_parse_python(&python, text, &source, NULL))); // no digest fits
    ASSERT(is_failed(chat_wording_parse_python(&python, text, NULL, NULL)) || size > 900);
    result_ignore(chat_wording_parse_json(&json, text, NULL)); // may refuse
    return 0;
}
