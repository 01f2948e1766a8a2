/* Guards against runaway generations: a span of tokens repeated without end, thinking that never
 * closes, a block of calls that never closes.
 *
 * Deterministic: the verdict is a function of the tokens sampled and of the limits, so that a replay
 * meets it at the same token. Only tokens that stay are fed (a draft once it is accepted); a lost
 * state is re-derived by feeding the tokens again. Thread: a guard's limits are immutable, any number
 * of threads may use them; a state belongs to one at a time.
 */
#ifndef HEARTH_ENGINE_GUARD_H
#define HEARTH_ENGINE_GUARD_H

#include "base/bytes.h"

struct tokenizer;
struct guard;

#define GUARD_SPAN_MAX    256 /* tokens */
#define GUARD_MARKERS_MAX 6

enum guard_verdict {
    GUARD_GO_ON,
    GUARD_LOOP,     /* the same span back to back */
    GUARD_THINKING, /* thinking went past its limit */
    GUARD_OPEN_CALL /* a block of calls went past its limit */
};
/* "none", "loop", "thinking", "open_call"; static. Any thread. */
const char *guard_verdict_name(enum guard_verdict verdict);

/* Zeroed: everything off. */
struct guard_limits {
    /* A span of 1 to loop_span_max tokens (0: off; at most GUARD_SPAN_MAX) that stands back to back
     * loop_times times or more and covers loop_tokens tokens or more is a loop. */
    int32_t loop_span_max, loop_times, loop_tokens;
    int32_t thinking_max; /* tokens of one stretch of thinking; 0: off */
    int32_t call_max;     /* tokens of one block of calls; 0: off */
};
/* What the program uses unless told otherwise: loops only, with a wide margin above what real texts
 * hold (tests/test_guard.c measures it); thinking and calls off. */
void guard_limits_default(struct guard_limits *out);
/* Expected errors: INVALID_INPUT, LIMIT (naming the field and its number). */
MUST_CHECK result guard_check(const struct guard_limits *limits, struct error *error);

/* What opens and closes thinking and blocks of calls. */
struct guard_markers {
    int32_t thinking_open, thinking_close; /* ids; -1: none */
    /* Texts, over the borders of tokens. Not looked for while thinking. */
    struct view call_open[GUARD_MARKERS_MAX], call_close[GUARD_MARKERS_MAX];
    size_t call_open_count, call_close_count;
};
/* Those of the chat format (chat_markers.h), as the incremental parser reads them. */
void guard_markers_chat(const struct tokenizer *tokenizer, struct guard_markers *out);

/* Expected errors: those of guard_check, MEMORY. */
MUST_CHECK result guard_create(
    struct guard **out,
    const struct guard_limits *limits,
    const struct guard_markers *markers,
    struct error *error
);
void guard_destroy(struct guard *guard);
/* Bytes that a guard with the markers of the chat format and a state take at most. */
uint64_t guard_bytes(void);

struct guard_state;
/* Of one generation; `thinks` when its prompt ends inside thinking. 3 KB. Expected errors: MEMORY. */
MUST_CHECK result guard_state_create(struct guard_state **out, bool thinks, struct error *error);
void guard_state_destroy(struct guard_state *state);

/* What a guard saw; for records and messages. */
struct guard_finding {
    int32_t tokens; /* LOOP: covered by the repetition; else: since thinking or the block opened */
    int32_t span;   /* LOOP: tokens of the span; else 0 */
};
/* One more token that stays, with the bytes that it adds to the text. The verdict is given each time
 * as long as it holds. Costs at most loop_span_max comparisons. */
enum guard_verdict guard_feed(
    const struct guard *guard,
    struct guard_state *state,
    int32_t id,
    struct view bytes,
    struct guard_finding *out
);

#endif
