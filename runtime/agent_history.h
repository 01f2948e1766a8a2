/* What becomes of a conversation that fills its context: when it is to be replaced, and by what.
 *
 * Pure: messages and their sizes in tokens go in, another conversation comes out; counting, the
 * summary itself and the engine are the driver's (loop_compaction.c). Old outputs of tools go first.
 * When that is not enough, all but the beginning and the last turns gives way to a summary, which
 * the model writes, and to the list of files that were read, so that it does not read them anew. A
 * replacement that is not clearly smaller is none: the caller stops with the numbers. Thread: any.
 */
#ifndef HEARTH_RUNTIME_AGENT_HISTORY_H
#define HEARTH_RUNTIME_AGENT_HISTORY_H

#include "engine/chat.h"

#define AGENT_HISTORY_AT_PERCENT 80 /* of the context, by default */
#define AGENT_HISTORY_KEEP_TURNS 2  /* of the model's last turns, by default */
#define AGENT_HISTORY_SHRINK_PERCENT                                                               \
    60 /* a new context has fewer tokens than that of the old one */
#define AGENT_HISTORY_CONTEXT_MIN    1024 /* tokens of a context that is worth it */
#define AGENT_HISTORY_OUTPUT_BYTES   256  /* outputs of tools up to this size are never removed */
#define AGENT_HISTORY_PERSON_BYTES   4096 /* kept of the last message of a person */
#define AGENT_HISTORY_SUMMARY_BYTES  ((size_t)32 << 10)
#define AGENT_HISTORY_FILES_MAX      200
#define AGENT_HISTORY_PATH_BYTES_MAX 512

/* ---- when ---- */

struct agent_history_limits {
    int32_t context_max;
    int32_t at_percent; /* 0: a full context ends the run */
};

/* Sampled tokens of a summary, at most. */
int32_t agent_history_summary_tokens(int32_t context_max);
/* A turn ends below this position, so that there is always room to ask for a summary. */
int32_t agent_history_turn_end(const struct agent_history_limits *limits);
/* From so many tokens on a context is replaced before the next turn: it is full to at_percent, or
 * leaves a turn no room. context_max: never. */
int32_t agent_history_due_at(const struct agent_history_limits *limits);
/* Whether a context of so many tokens, to which `append` are to be added, is. */
bool agent_history_is_due(
    const struct agent_history_limits *limits, int32_t context_tokens, int32_t append
);
/* Whether `after` tokens are few enough to take the place of `before`. */
bool agent_history_has_shrunk(int64_t before, int64_t after);

/* ---- what it was ---- */

struct agent_history {
    const struct chat_message *messages; /* [count]: the system's, the first task, turns */
    const int32_t *tokens;               /* [count]: about, each */
    size_t count;
    size_t context_messages;  /* of these, the context holds that many; it ends with the model's */
    size_t person_message;    /* the last one that a person wrote; 0: not known */
    int32_t keep_turns;       /* at least 1 */
    int32_t summary_tokens;   /* of the summary; before there is one, what it may have */
    const struct view *files; /* [file_count] paths that were read or written, the oldest first */
    size_t file_count;
    size_t
        files_bytes_max; /* of their list, the latest are on it; 0: AGENT_HISTORY_FILES_MAX alone */
    /* Whether an output can still be read by its locator, "output:7"; null: none can. Those of messages
     * below fresh_from cannot: a program that is gone kept them. */
    size_t fresh_from;
    bool (*has_output)(void *context, struct view locator);
    void *context;
};

/* The messages that ask for a summary: those of the context, a word in the place of results that it
 * does not hold, and the request. Shallow: views into `history` and static text, and into
 * `remark`, what the user wants in it, may be empty; free() them. Expected errors: MEMORY. */
struct agent_history_request {
    struct chat_message *messages;
    size_t count;
    struct buffer text;
};
MUST_CHECK result agent_history_request_make(
    struct agent_history_request *out,
    const struct agent_history *history,
    struct view remark,
    struct error *error
);
void agent_history_request_deinit(struct agent_history_request *request);

/* ---- what takes its place ---- */

/* One way to make it smaller. */
struct agent_history_plan {
    int step; /* 0: none yet */
    bool has_summary;
    size_t tail;             /* messages [tail, count) stay */
    bool drops_reasoning;    /* of the tail */
    size_t output_bytes_max; /* of each tool's output in the tail */
    int64_t tokens;          /* about */
};

/* The next gentler-to-harsher plan behind *plan (start with zero) that has about so many tokens or
 * fewer. Without a summary there is one: old outputs go. With it the tail gets shorter, then loses
 * its thinking, then its long outputs. False: there is no other. */
bool agent_history_plan_next(
    const struct agent_history *history,
    bool with_summary,
    int64_t tokens_max,
    struct agent_history_plan *plan
);

struct agent_history_made {
    struct chat_conversation *conversation;
    size_t person_message; /* as in struct agent_history */
    int32_t removed;       /* outputs of tools that were left out or cut */
};
/* The new conversation; `summary` is the model's, empty: it wrote none, and a list of calls stands
 * for it. Order stays, every result keeps its call. Made again from its own output with nothing in
 * between, it is the same. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result agent_history_build(
    struct agent_history_made *out,
    const struct agent_history *history,
    const struct agent_history_plan *plan,
    struct view summary,
    struct error *error
);

/* Whether a message is a summary that agent_history_build wrote. */
bool agent_history_is_summary(const struct chat_message *message);

#endif
