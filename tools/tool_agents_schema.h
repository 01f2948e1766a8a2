/* Schemas of the tools about other agents that more than one dialect has. Constants. */
#ifndef HEARTH_TOOLS_TOOL_AGENTS_SCHEMA_H
#define HEARTH_TOOLS_TOOL_AGENTS_SCHEMA_H

#include "tool_internal.h"

#define AGENTS_LIST_PROPERTY(name, description)                                                    \
    "\"" name "\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}, "                      \
    "\"description\": \"" description "\"}"
#define AGENTS_JOIN_PROPERTY                                                                       \
    "\"join\": {\"type\": \"string\", \"enum\": [\"all\", \"any\", \"passing\"], "                 \
    "\"description\": \"until all have ended (default), any one, or the first whose work passes "  \
    "verification\"}"
#define AGENTS_SHARE_PROPERTIES                                                                    \
    TYPED_PROPERTY("tokens", "integer", "budget of each, an equal part when left out")             \
    ", " TYPED_PROPERTY("time_ms", "integer", "time of each in milliseconds")
#define AGENTS_TIMEOUT_PROPERTY                                                                    \
    TYPED_PROPERTY("timeout", "integer", "milliseconds, as long as there is time when left out")

#define AGENTS_FORK_SCHEMA                                                                         \
    OBJECT_SCHEMA(                                                                                 \
        AGENTS_LIST_PROPERTY("briefs", "what each one is to do, 1 to 32") ", " TYPED_PROPERTY(     \
            "count", "integer", "how many, 1 to 32, when all do the same"                          \
        ) ", " AGENTS_JOIN_PROPERTY ", " AGENTS_SHARE_PROPERTIES,                                  \
        ""                                                                                         \
    )
#define AGENTS_WAIT_SCHEMA                                                                         \
    OBJECT_SCHEMA(                                                                                 \
        AGENTS_LIST_PROPERTY(                                                                      \
            "names", "whom to wait for, all that you have started when left out"                   \
        ) ", " AGENTS_JOIN_PROPERTY ", " AGENTS_TIMEOUT_PROPERTY,                                  \
        ""                                                                                         \
    )
#define AGENTS_RECEIVE_SCHEMA OBJECT_SCHEMA(AGENTS_TIMEOUT_PROPERTY, "")
#define AGENTS_CANCEL_SCHEMA                                                                       \
    OBJECT_SCHEMA(AGENTS_LIST_PROPERTY("names", "whom to end"), "\"names\"")
#define AGENTS_MERGE_SCHEMA OBJECT_SCHEMA(STRING_PROPERTY("name", "the agent"), "\"name\"")

#endif
