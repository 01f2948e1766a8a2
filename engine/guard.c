/* Runaway guards. For every span p the number of tokens at the end that equal the token p before them
 * is kept: runs[p] + p tokens are covered by one span of p. See guard.h. */
#include "guard.h"

#include "chat_markers.h"
#include "stop.h"

#include <assert.h>

#define LOOP_TIMES_MAX   1000000
#define MARKER_BYTES_MAX 64 /* of one text of the chat format */

struct guard {
    struct guard_limits limits;
    int32_t thinking_open, thinking_close;
    struct stop *call_open, *call_close; /* null: not looked for */
    /* [GUARD_SPAN_MAX - p]: run of span p that is a loop; INT32_MAX for spans that are not looked at.
     * All arrays by span are of constant length and in the order of the recent ids. */
    int32_t loop_runs[GUARD_SPAN_MAX];
};

struct guard_state {
    int32_t recent[2 * GUARD_SPAN_MAX]; /* ids up to `end`; -1 before the first */
    int32_t runs[GUARD_SPAN_MAX];       /* [GUARD_SPAN_MAX - p] */
    int32_t end;                        /* of recent, at least GUARD_SPAN_MAX */
    bool is_thinking, is_in_call;
    int32_t thinking_tokens, call_tokens;
    struct stop_state markers;
};

const char *guard_verdict_name(enum guard_verdict verdict) {
    static const char *const names[] = {
        [GUARD_GO_ON] = "none",
        [GUARD_LOOP] = "loop",
        [GUARD_THINKING] = "thinking",
        [GUARD_OPEN_CALL] = "open_call",
    };
    ASSERT(verdict >= 0 && (size_t)verdict < COUNT_OF(names));
    return names[verdict];
}

void guard_limits_default(struct guard_limits *out) {
    *out = (struct guard_limits){
        .loop_span_max = GUARD_SPAN_MAX,
        .loop_times = 32,
        .loop_tokens = 1024,
    };
}

result guard_check(const struct guard_limits *limits, struct error *error) {
    if (limits->loop_span_max < 0 || limits->loop_span_max > GUARD_SPAN_MAX) {
        FAIL(
            error,
            LIMIT,
            "guard: loop_span_max %d is not in 0 to %d tokens",
            limits->loop_span_max,
            GUARD_SPAN_MAX
        );
    }
    if (limits->loop_span_max > 0 &&
        (limits->loop_times < 2 || limits->loop_times > LOOP_TIMES_MAX)) {
        FAIL(
            error,
            INVALID_INPUT,
            "guard: loop_times %d is not in 2 to %d",
            limits->loop_times,
            LOOP_TIMES_MAX
        );
    }
    const struct {
        const char *name;
        int32_t value;
    } counts[] = {
        {"loop_tokens", limits->loop_tokens},
        {"thinking_max", limits->thinking_max},
        {"call_max", limits->call_max},
    };
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        if (counts[i].value < 0) {
            FAIL(error, INVALID_INPUT, "guard: %s %d is negative", counts[i].name, counts[i].value);
        }
    }
    return OK;
}

static void fill_loop_runs(struct guard *guard) {
    const struct guard_limits *limits = &guard->limits;
    for (int32_t span = 1; span <= GUARD_SPAN_MAX; span++) {
        int64_t covered = (int64_t)limits->loop_times * span;
        if (covered < limits->loop_tokens) {
            covered = limits->loop_tokens;
        }
        guard->loop_runs[GUARD_SPAN_MAX - span] =
            span <= limits->loop_span_max ? narrow_i32(covered - span) : INT32_MAX;
    }
}

static result
make_markers(struct stop **out, const struct view *texts, size_t count, struct error *error) {
    struct stop_options options = {.strings = texts, .string_count = count};
    TRY_NOTE(error, stop_create(out, &options, error), "guard: marker of calls");
    return OK;
}

result guard_create(
    struct guard **out,
    const struct guard_limits *limits,
    const struct guard_markers *markers,
    struct error *error
) {
    TRY(guard_check(limits, error));
    ASSERT(markers->call_open_count <= GUARD_MARKERS_MAX);
    ASSERT(markers->call_close_count <= GUARD_MARKERS_MAX);
    struct guard *guard = calloc(1, sizeof *guard);
    if (guard == NULL) {
        FAIL(error, MEMORY, "no memory for a guard");
    }
    guard->limits = *limits;
    guard->thinking_open = markers->thinking_open;
    guard->thinking_close = markers->thinking_close;
    fill_loop_runs(guard);
    result made = OK;
    if (limits->call_max > 0) {
        made = make_markers(&guard->call_open, markers->call_open, markers->call_open_count, error);
        if (is_ok(made)) {
            made = make_markers(
                &guard->call_close, markers->call_close, markers->call_close_count, error
            );
        }
    }
    if (is_failed(made)) {
        guard_destroy(guard);
        return made;
    }
    *out = guard;
    return OK;
}

uint64_t guard_bytes(void) {
    return sizeof(struct guard) + sizeof(struct guard_state) +
           2 * stop_bytes((uint64_t)GUARD_MARKERS_MAX * MARKER_BYTES_MAX);
}

void guard_destroy(struct guard *guard) {
    if (guard != NULL) {
        stop_destroy(guard->call_close);
        stop_destroy(guard->call_open);
        free(guard);
    }
}

void guard_markers_chat(const struct tokenizer *tokenizer, struct guard_markers *out) {
    static const char *const open[] = {
        "<｜DSML｜calls",
        "<｜DSML｜ calls",
        "<｜DSML｜tool_calls",
        "<｜DSML｜ tool_calls",
        "<｜DSML｜function_calls",
        "<｜DSML｜ function_calls",
    };
    static const char *const close[] = {
        "</｜DSML｜calls",
        "</｜DSML｜ calls",
        "</｜DSML｜tool_calls",
        "</｜DSML｜ tool_calls",
        "</｜DSML｜function_calls",
        "</｜DSML｜ function_calls",
    };
    static_assert(COUNT_OF(open) <= GUARD_MARKERS_MAX, "markers that open");
    static_assert(COUNT_OF(close) <= GUARD_MARKERS_MAX, "markers that close");
    int32_t ids[CHAT_MARKER_COUNT];
    chat_marker_ids(tokenizer, ids);
    *out = (struct guard_markers){
        .thinking_open = ids[CHAT_MARKER_THINK],
        .thinking_close = ids[CHAT_MARKER_THINK_END],
        .call_open_count = COUNT_OF(open),
        .call_close_count = COUNT_OF(close),
    };
    for (size_t i = 0; i < COUNT_OF(open); i++) {
        out->call_open[i] = view_of_text(open[i]);
    }
    for (size_t i = 0; i < COUNT_OF(close); i++) {
        out->call_close[i] = view_of_text(close[i]);
    }
}

result guard_state_create(struct guard_state **out, bool thinks, struct error *error) {
    struct guard_state *state = calloc(1, sizeof *state);
    if (state == NULL) {
        FAIL(error, MEMORY, "no memory for the state of a guard");
    }
    state->end = GUARD_SPAN_MAX;
    state->is_thinking = thinks;
    for (int32_t i = 0; i < GUARD_SPAN_MAX; i++) {
        state->recent[i] = -1;
    }
    *out = state;
    return OK;
}

void guard_state_destroy(struct guard_state *state) {
    free(state);
}

/* Counts the runs on by one token; whether one of them is long enough. */
static bool count_runs(
    const int32_t *restrict recent,
    const int32_t *restrict loop_runs,
    int32_t *restrict runs,
    int32_t id
) {
    int32_t is_loop = 0;
    for (int32_t i = 0; i < GUARD_SPAN_MAX; i++) {
        int32_t run = recent[i] == id ? runs[i] + 1 : 0;
        runs[i] = run;
        is_loop |= run >= loop_runs[i];
    }
    return is_loop != 0;
}

static bool feed_loop(
    const struct guard *guard, struct guard_state *state, int32_t id, struct guard_finding *out
) {
    if (state->end == 2 * GUARD_SPAN_MAX) {
        memcpy(state->recent, state->recent + GUARD_SPAN_MAX, GUARD_SPAN_MAX * sizeof(int32_t));
        state->end = GUARD_SPAN_MAX;
    }
    const int32_t *recent = state->recent + state->end - GUARD_SPAN_MAX;
    bool is_loop = count_runs(recent, guard->loop_runs, state->runs, id);
    state->recent[state->end++] = id;
    for (int32_t span = 1; is_loop && span <= GUARD_SPAN_MAX; span++) {
        int32_t at = GUARD_SPAN_MAX - span;
        if (state->runs[at] >= guard->loop_runs[at]) {
            *out = (struct guard_finding){.tokens = state->runs[at] + span, .span = span};
            return true;
        }
    }
    return false;
}

static bool feed_thinking(const struct guard *guard, struct guard_state *state, int32_t id) {
    if (id == guard->thinking_open && !state->is_thinking) {
        state->is_thinking = true;
        state->thinking_tokens = 0;
    } else if (id == guard->thinking_close) {
        state->is_thinking = false;
    } else if (state->is_thinking && state->thinking_tokens < INT32_MAX) {
        state->thinking_tokens++;
    }
    int32_t max = guard->limits.thinking_max;
    return state->is_thinking && max > 0 && state->thinking_tokens > max;
}

static bool feed_call(const struct guard *guard, struct guard_state *state, struct view bytes) {
    if (state->is_in_call && state->call_tokens < INT32_MAX) {
        state->call_tokens++;
    }
    while (bytes.length > 0) {
        int32_t index = -1;
        const struct stop *markers = state->is_in_call ? guard->call_close : guard->call_open;
        size_t taken = stop_take(markers, &state->markers, bytes, &index);
        bytes = view_slice(bytes, taken, SIZE_MAX);
        if (index >= 0) {
            state->is_in_call = !state->is_in_call;
            state->call_tokens = 0;
        }
    }
    return state->is_in_call && state->call_tokens > guard->limits.call_max;
}

enum guard_verdict guard_feed(
    const struct guard *guard,
    struct guard_state *state,
    int32_t id,
    struct view bytes,
    struct guard_finding *out
) {
    *out = (struct guard_finding){0};
    bool was_thinking = state->is_thinking;
    bool thinks_long = feed_thinking(guard, state, id);
    bool calls_long = guard->limits.call_max > 0 && !was_thinking && !state->is_thinking &&
                      feed_call(guard, state, bytes);
    if (guard->limits.loop_span_max > 0 && feed_loop(guard, state, id, out)) {
        return GUARD_LOOP;
    }
    if (thinks_long) {
        out->tokens = state->thinking_tokens;
        return GUARD_THINKING;
    }
    if (calls_long) {
        out->tokens = state->call_tokens;
        return GUARD_OPEN_CALL;
    }
    return GUARD_GO_ON;
}
