/* Control tokens of the chat format; shared by chat_*.c only. */
#ifndef HEARTH_ENGINE_CHAT_MARKERS_H
#define HEARTH_ENGINE_CHAT_MARKERS_H

#include "base/bytes.h"

enum chat_marker {
    CHAT_MARKER_BEGIN,
    CHAT_MARKER_END,
    CHAT_MARKER_USER,
    CHAT_MARKER_ASSISTANT,
    CHAT_MARKER_SYSTEM,
    CHAT_MARKER_THINK,
    CHAT_MARKER_THINK_END,
    CHAT_MARKER_DSML,
    CHAT_MARKERS_NEEDED, /* a model has at least those above */
    CHAT_MARKER_LATEST_REMINDER = CHAT_MARKERS_NEEDED,
    CHAT_MARKER_ACTION,
    CHAT_MARKER_QUERY,
    CHAT_MARKER_AUTHORITY,
    CHAT_MARKER_DOMAIN,
    CHAT_MARKER_TITLE,
    CHAT_MARKER_READ_URL,
    CHAT_MARKER_COUNT
};

struct tokenizer;

struct view chat_marker_text(enum chat_marker marker);
/* Ids of all markers, -1 for those the vocabulary lacks. */
void chat_marker_ids(const struct tokenizer *tokenizer, int32_t ids[CHAT_MARKER_COUNT]);

#endif
