/* A recorded session as something that goes on: the context's exact token ids, the conversation, and
 * what is left of the last turn.
 *
 * The ids come from the record's token runs as they were sampled and encoded; nothing is rendered
 * again. A run that starts below the end of what precedes it replaces that. Unfinished ends are
 * repaired in the open: see resume_make. Knows no engine and no loop. Thread: any.
 */
#ifndef HEARTH_RUNTIME_RESUME_H
#define HEARTH_RUNTIME_RESUME_H

#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"
#include "sandbox/workspace.h"
#include "sessions/session.h"

#define RESUME_CALL_INTERRUPTED                                                                    \
    "interrupted: the program ended while this tool ran; what it did until then stays done"
#define RESUME_CALL_NOT_RUN "not run: the user went on with a new message"

struct resume_options {
    const struct tokenizer *tokenizer; /* to read the last turn again */
    int32_t vocabulary;                /* ids are below it */
    int32_t end_id;                    /* end of sequence */
    struct view system;                /* for a session that died before its first turn */
    struct view task;                  /* new message of the user; empty: none */
    bool waits;                        /* there will be one, but it is not known yet */
};

/* The result of a call that has none in the record. */
struct resume_repair {
    int64_t turn, call; /* numbers in the store; call 0: it was never started */
    const char *text;
};

struct resume {
    struct session_id session, agent; /* agent "": to be made */
    bool is_done;                     /* it ended with an answer, and there is no new message */

    struct token_list ids; /* of the context */
    struct chat_conversation *conversation;
    size_t context_messages;  /* of these, the context holds that many, */
    size_t recorded_messages; /* and the record that many */
    bool end_is_missing;      /* the context ends in a turn of the model without end of sequence */

    /* Calls [next_call, all) of the last message but results never ran, and are to be run now. */
    bool has_calls;
    size_t turn_message; /* their message */
    size_t next_call;
    size_t calls_total; /* in all turns */

    int64_t turn; /* number of the last turn in the store, 0: none */
    int32_t turns;
    struct resume_repair repairs[CHAT_CALLS_MAX];
    size_t repair_count;
    bool has_dropped_output; /* a cut turn of the model is sampled again */
    /* The guard that ended the last turn, which the model is to be told; FINISH_EOS: none. */
    enum finish_reason reason;

    /* Approximate windows that the context was computed with. */
    struct window_replay replays[ENGINE_REPLAYS_MAX];
    int32_t replay_count;

    char commit_first[WORKSPACE_COMMIT_BYTES]; /* the workspace when the session began; may be "" */

    /* Set by the caller: why the cache of the recorded runs cannot be used; null: it can. */
    const char *miss;
};

/* From the tree of a session loaded with its tokens.
 *
 * - The last turn has no output, or one that was cut: it is sampled again from the same prompt. With
 *   a new message a prompt without output is encoded again together with that message, and a cut
 *   output stays as the model wrote it.
 * - A call that was started and has no result gets RESUME_CALL_INTERRUPTED. Calls that were never
 *   started run now, or get RESUME_CALL_NOT_RUN when the user went on with a new message.
 * - The one turn of a swarm's root, which holds the system's message alone, stays as it is: one agent goes on behind
 *   it with the task, or the new message.
 * - A turn that could not be read is answered as in a run. One that a stop string or a guard ended is
 *   whole.
 * - The conversation begins with the last compaction; what it replaced is not part of it. One without
 *   tokens, as a change of the model leaves it, is encoded with the next turn: `ids` is empty.
 *
 * Expected errors: CORRUPT (ids with gaps or out of range, calls that are no JSON: names the turn),
 * UNSUPPORTED (a session without token ids), MEMORY. */
MUST_CHECK result resume_make(
    const struct session_tree *tree,
    const struct resume_options *options,
    struct resume *out,
    struct error *error
);
void resume_deinit(struct resume *resume); /* accepts zero; usable with CLEANUP */

#endif
