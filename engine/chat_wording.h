/* The texts of a model's prompt format; shared by chat_wording.c and chat_encoding.c. */
#ifndef HEARTH_ENGINE_CHAT_WORDING_H
#define HEARTH_ENGINE_CHAT_WORDING_H

#include "chat.h"

#define CHAT_EFFORT_PLACE "{n}" /* where effort_line takes the number */

struct chat_wording {
    struct buffer effort_line;
    struct buffer tools_head;           /* up to the first schema */
    struct buffer tools_tail;           /* after the last one */
    struct buffer response_format_head; /* up to the schema; empty: the model has none */
};

#endif
