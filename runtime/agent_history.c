/* See agent_history.h. The new conversation is written message by message from the old one: first the
 * beginning, then what stands for the middle, then the tail.
 */
#include "agent_history_texts.h"

#define PENDING_RESULT "[what the calls gave follows the summary]"
/* Asked for in words, which are about 3 tokens to 2. */
#define REQUEST_TEXT                                                                               \
    "The context is nearly full. Write a summary of all so far, from which you can go on without " \
    "the rest: what was asked, what is done, what you found out (names, paths, numbers, errors), " \
    "what was decided and why, what is left and the next step. At most %d words. Call no tool, "   \
    "and do not go on with the work."

/* ---- when ----------------------------------------------------------------------------------- */

#define SUMMARY_TOKENS_MIN 128
#define SUMMARY_TOKENS_MAX 4096
#define REQUEST_TOKENS     256 /* the request, and a word for calls */

int32_t agent_history_summary_tokens(int32_t context_max) {
    int32_t tokens = context_max / 8;
    tokens = tokens < SUMMARY_TOKENS_MIN ? SUMMARY_TOKENS_MIN : tokens;
    return tokens > SUMMARY_TOKENS_MAX ? SUMMARY_TOKENS_MAX : tokens;
}

static bool is_enabled(const struct agent_history_limits *limits) {
    return limits->at_percent > 0 && limits->context_max >= AGENT_HISTORY_CONTEXT_MIN;
}

int32_t agent_history_turn_end(const struct agent_history_limits *limits) {
    ASSERT(limits->context_max > 0);
    if (!is_enabled(limits)) {
        return limits->context_max;
    }
    return limits->context_max - agent_history_summary_tokens(limits->context_max) - REQUEST_TOKENS;
}

int32_t agent_history_due_at(const struct agent_history_limits *limits) {
    if (!is_enabled(limits)) {
        return limits->context_max;
    }
    int64_t full = ((int64_t)limits->context_max * limits->at_percent + 99) / 100;
    int64_t tight = (int64_t)agent_history_turn_end(limits) - limits->context_max / 16 + 1;
    return narrow_i32(full < tight ? full : tight);
}

bool agent_history_is_due(
    const struct agent_history_limits *limits, int32_t context_tokens, int32_t append
) {
    return is_enabled(limits) && (int64_t)context_tokens + append >= agent_history_due_at(limits);
}

bool agent_history_has_shrunk(int64_t before, int64_t after) {
    return after * 100 < before * AGENT_HISTORY_SHRINK_PERCENT;
}

/* ---- parts of a conversation ---------------------------------------------------------------- */

/* Messages that always stay: the system's and the first task. */
static size_t head_count(const struct agent_history *history) {
    ASSERT(history->count > 0 && history->messages[0].role == CHAT_SYSTEM);
    bool has_task = history->count > 1 && history->messages[1].role == CHAT_USER &&
                    !agent_history_is_summary(&history->messages[1]);
    return has_task ? 2 : 1;
}

/* Where the last `turns` turns of the model begin, or as many as there are; *found says how many. */
static size_t tail_of(const struct agent_history *history, int32_t turns, int32_t *found) {
    size_t tail = history->count;
    *found = 0;
    for (size_t i = history->count; i > head_count(history) && *found < turns; i--) {
        if (history->messages[i - 1].role == CHAT_ASSISTANT) {
            tail = i - 1;
            ++*found;
        }
    }
    return tail;
}

/* What a person wrote last, when it lies in the part that gives way; 0: nothing does. */
static size_t person_before(const struct agent_history *history, size_t tail) {
    size_t at = history->person_message;
    bool is_there = at >= head_count(history) && at < tail &&
                    history->messages[at].role == CHAT_USER &&
                    !agent_history_is_summary(&history->messages[at]);
    return is_there ? at : 0;
}

/* ---- plans ---------------------------------------------------------------------------------- */

static int64_t tokens_between(const struct agent_history *history, size_t from, size_t to) {
    int64_t tokens = 0;
    for (size_t i = from; i < to; i++) {
        tokens += history->tokens[i];
    }
    return tokens;
}

/* About what is left of a message of which so many bytes stay. */
static int64_t tokens_cut(const struct agent_history *history, size_t at, size_t bytes) {
    size_t length = history->messages[at].content.length;
    int64_t tokens = history->tokens[at];
    return length <= bytes ? tokens : (int64_t)((double)tokens * (double)bytes / (double)length);
}

static bool is_removed(const struct chat_message *message) {
    return message->role == CHAT_TOOL && message->content.length > AGENT_HISTORY_OUTPUT_BYTES;
}

static int64_t pruned_tokens(const struct agent_history *history, size_t tail) {
    int64_t tokens = tokens_between(history, tail, history->count);
    for (size_t i = 0; i < tail; i++) {
        tokens +=
            is_removed(&history->messages[i]) ? AGENT_HISTORY_OUTPUT_BYTES / 8 : history->tokens[i];
    }
    return tokens;
}

static int64_t files_tokens(const struct agent_history *history) {
    size_t bytes = 0;
    (void)history_listed_files(history, history->files, history->file_count, &bytes);
    return (int64_t)bytes / 3;
}

static int64_t
summarised_tokens(const struct agent_history *history, const struct agent_history_plan *plan) {
    int64_t tokens = tokens_between(history, 0, head_count(history));
    tokens += history->summary_tokens + files_tokens(history);
    size_t person = person_before(history, plan->tail);
    tokens += person == 0 ? 0 : tokens_cut(history, person, AGENT_HISTORY_PERSON_BYTES);
    for (size_t i = plan->tail; i < history->count; i++) {
        const struct chat_message *message = &history->messages[i];
        if (message->role == CHAT_TOOL) {
            tokens += tokens_cut(history, i, plan->output_bytes_max);
        } else if (plan->drops_reasoning && message->reasoning.length > 0) {
            size_t rest = message->content.length;
            for (size_t k = 0; k < message->call_count; k++) {
                rest += message->calls[k].arguments.length;
            }
            double share = (double)rest / (double)(rest + message->reasoning.length);
            tokens += (int64_t)((double)history->tokens[i] * share);
        } else {
            tokens += history->tokens[i];
        }
    }
    return tokens;
}

/* Step `step` of the plans with a summary; false: there are no more. */
static bool
plan_summarised(const struct agent_history *history, int step, struct agent_history_plan *plan) {
    static const size_t output_bytes[] = {16384, 4096, 1024, AGENT_HISTORY_OUTPUT_BYTES};
    int32_t turns = 0;
    (void)tail_of(history, history->keep_turns, &turns);
    int32_t harsher = step - turns; /* steps behind the tail of one turn */
    *plan = (struct agent_history_plan){
        .step = step,
        .has_summary = true,
        .drops_reasoning = harsher > 0,
        .output_bytes_max = SIZE_MAX,
    };
    if (turns == 0 || harsher > 1 + (int32_t)COUNT_OF(output_bytes)) {
        return false;
    }
    if (harsher > 1) {
        plan->output_bytes_max = output_bytes[harsher - 2];
    }
    plan->tail = tail_of(history, harsher > 0 ? 1 : turns - step + 1, &turns);
    plan->tokens = summarised_tokens(history, plan);
    return true;
}

bool agent_history_plan_next(
    const struct agent_history *history,
    bool with_summary,
    int64_t tokens_max,
    struct agent_history_plan *plan
) {
    ASSERT(history->keep_turns > 0);
    struct agent_history_plan next;
    if (!with_summary) {
        int32_t turns = 0;
        size_t tail = tail_of(history, history->keep_turns, &turns);
        next = (struct agent_history_plan){
            .step = 1,
            .tail = tail,
            .output_bytes_max = SIZE_MAX,
            .tokens = pruned_tokens(history, tail),
        };
        bool fits = plan->step == 0 && next.tokens <= tokens_max;
        *plan = fits ? next : *plan;
        return fits;
    }
    for (int step = plan->step + 1; plan_summarised(history, step, &next); step++) {
        if (next.tokens <= tokens_max) {
            *plan = next;
            return true;
        }
    }
    return false;
}

/* ---- the request ---------------------------------------------------------------------------- */

void agent_history_request_deinit(struct agent_history_request *request) {
    free(request->messages);
    request->messages = NULL;
    buffer_deinit(&request->text);
}

/* Whether the last turn made calls, whose results the context does not hold. */
static bool has_pending_calls(const struct agent_history *history) {
    const struct chat_message *last = &history->messages[history->context_messages - 1];
    return last->role == CHAT_ASSISTANT && last->call_count > 0;
}

result agent_history_request_make(
    struct agent_history_request *out,
    const struct agent_history *history,
    struct view remark,
    struct error *error
) {
    ASSERT(history->context_messages > 0 && history->context_messages <= history->count);
    size_t count = history->context_messages;
    CLEANUP(agent_history_request_deinit) struct agent_history_request made = {0};
    buffer_init(&made.text, BUFFER_CEILING_DEFAULT);
    made.messages = calloc(count + 2, sizeof *made.messages);
    if (made.messages == NULL) {
        FAIL(error, MEMORY, "no memory for %zu messages", count + 2);
    }
    memcpy(made.messages, history->messages, count * sizeof *made.messages);
    made.count = count;
    if (has_pending_calls(history)) { /* one for all of them: there is little room */
        made.messages[made.count++] = (struct chat_message){
            .role = CHAT_TOOL,
            .content = view_of_text(PENDING_RESULT),
            .call_id = history->messages[count - 1].calls[0].id,
        };
    }
    TRY(buffer_append_format(&made.text, error, REQUEST_TEXT, history->summary_tokens * 2 / 3));
    if (remark.length > 0) {
        TRY(buffer_append_text(&made.text, " The user asks: ", error));
        TRY(buffer_append(&made.text, remark, error));
    }
    made.messages[made.count++] =
        (struct chat_message){.role = CHAT_USER, .content = buffer_view(&made.text)};
    *out = made;
    made = (struct agent_history_request){0};
    return OK;
}

/* ---- the new conversation ------------------------------------------------------------------- */

struct building {
    const struct agent_history *history;
    const struct agent_history_plan *plan;
    struct agent_history_made made;
    struct buffer text; /* of the message at hand */
};

static void building_deinit(struct building *building) {
    chat_conversation_destroy(building->made.conversation);
    buffer_deinit(&building->text);
}

static result
append_text(struct building *building, const struct chat_message *like, struct error *error) {
    struct chat_message message = *like;
    message.content = buffer_view(&building->text);
    message.parts = NULL;
    message.part_count = 0;
    return chat_conversation_append(building->made.conversation, &message, error);
}

/* One message as the plan leaves it. */
static result append_kept(struct building *building, size_t at, struct error *error) {
    const struct agent_history *history = building->history;
    const struct agent_history_plan *plan = building->plan;
    struct chat_message message = history->messages[at];
    bool is_in_tail = at >= plan->tail;
    buffer_clear(&building->text);
    if (at == history->person_message) {
        building->made.person_message = chat_conversation_count(building->made.conversation);
    }
    if (!is_in_tail && is_removed(&message)) {
        building->made.removed++;
        TRY(history_write_removed(&building->text, history, at, error));
        return append_text(building, &message, error);
    }
    if (message.role == CHAT_TOOL && message.content.length > plan->output_bytes_max) {
        building->made.removed++;
        TRY(history_write_cut(&building->text, history, at, plan->output_bytes_max, error));
        return append_text(building, &message, error);
    }
    if (plan->drops_reasoning && message.role == CHAT_ASSISTANT) {
        message.reasoning = view_of(NULL, 0);
    }
    return chat_conversation_append(building->made.conversation, &message, error);
}

/* The last message of a person, and the summary. */
static result append_middle(struct building *building, struct view summary, struct error *error) {
    const struct agent_history *history = building->history;
    size_t tail = building->plan->tail;
    size_t person = person_before(history, tail);
    const struct chat_message user = {.role = CHAT_USER};
    if (person > 0) {
        struct view text = history->messages[person].content;
        building->made.person_message = chat_conversation_count(building->made.conversation);
        buffer_clear(&building->text);
        TRY(text.length > AGENT_HISTORY_PERSON_BYTES
                ? history_write_cut(
                      &building->text, history, person, AGENT_HISTORY_PERSON_BYTES, error
                  )
                : buffer_append(&building->text, text, error));
        TRY(append_text(building, &user, error));
    }
    buffer_clear(&building->text);
    TRY(history_write_summary(&building->text, history, tail, summary, error));
    return append_text(building, &user, error);
}

result agent_history_build(
    struct agent_history_made *out,
    const struct agent_history *history,
    const struct agent_history_plan *plan,
    struct view summary,
    struct error *error
) {
    ASSERT(plan->step > 0 && plan->tail <= history->count);
    CLEANUP(building_deinit) struct building building = {.history = history, .plan = plan};
    buffer_init(&building.text, BUFFER_CEILING_DEFAULT);
    TRY(chat_conversation_create(&building.made.conversation, error));
    size_t from = 0;
    if (plan->has_summary) {
        for (; from < head_count(history); from++) {
            TRY(append_kept(&building, from, error));
        }
        for (size_t i = from; i < plan->tail; i++) {
            building.made.removed += history->messages[i].role == CHAT_TOOL ? 1 : 0;
        }
        TRY(append_middle(&building, summary, error));
        from = plan->tail;
    }
    for (; from < history->count; from++) {
        TRY(append_kept(&building, from, error));
    }
    *out = building.made;
    building.made.conversation = NULL;
    return OK;
}
