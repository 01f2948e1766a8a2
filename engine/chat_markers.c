/* Spelling of the control tokens (specification 6.1). Vertical bars are U+FF5C, the blanks in the
 * first two U+2581. */
#include "chat_markers.h"

#include "tokenizer.h"

static const char *const texts[CHAT_MARKER_COUNT] = {
    [CHAT_MARKER_BEGIN] = "<｜begin▁of▁sentence｜>",
    [CHAT_MARKER_END] = "<｜end▁of▁sentence｜>",
    [CHAT_MARKER_USER] = "<｜User｜>",
    [CHAT_MARKER_ASSISTANT] = "<｜Assistant｜>",
    [CHAT_MARKER_SYSTEM] = "<｜System｜>",
    [CHAT_MARKER_THINK] = "<think>",
    [CHAT_MARKER_THINK_END] = "</think>",
    [CHAT_MARKER_DSML] = "｜DSML｜",
    [CHAT_MARKER_LATEST_REMINDER] = "<｜latest_reminder｜>",
    [CHAT_MARKER_ACTION] = "<｜action｜>",
    [CHAT_MARKER_QUERY] = "<｜query｜>",
    [CHAT_MARKER_AUTHORITY] = "<｜authority｜>",
    [CHAT_MARKER_DOMAIN] = "<｜domain｜>",
    [CHAT_MARKER_TITLE] = "<｜title｜>",
    [CHAT_MARKER_READ_URL] = "<｜read_url｜>",
};

struct view chat_marker_text(enum chat_marker marker) {
    ASSERT(marker >= 0 && marker < CHAT_MARKER_COUNT);
    return view_of_text(texts[marker]);
}

void chat_marker_ids(const struct tokenizer *tokenizer, int32_t ids[CHAT_MARKER_COUNT]) {
    for (int i = 0; i < CHAT_MARKER_COUNT; i++) {
        if (!tokenizer_find_added(tokenizer, view_of_text(texts[i]), &ids[i])) {
            ids[i] = -1;
        }
    }
}
