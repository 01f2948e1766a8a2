/* See agent_history.h. The new conversation is written message by message from the old one: first the
 * beginning, then what stands for the middle, then the tail.
 */
#include "agent_history.h"

#define SUMMARY_HEAD                                                                               \
    "[What came before was taken out of the context to make room. Your summary of it:]\n\n"
#define FILES_HEAD     "\n\nFiles that were read or changed so far:\n"
#define FILES_OLDER    "(and older ones)\n"
#define FILE_MARK      "- "
#define CALLS_HEAD     "No summary was written. The calls so far:\n"
#define CALLS_MAX      40  /* that are listed */
#define CALL_BYTES     160 /* of the arguments of each */
#define CUT_NOTE       "\n[cut to save room]"
#define LOCATOR        "output:"
#define LOCATOR_BYTES  400 /* it stands in the last ones; what is left of budgets may follow */
#define PENDING_RESULT "[its output follows the summary]"
/* Asked for in words, which are about 3 tokens to 2. */
#define REQUEST_TEXT                                                                               \
    "The context is nearly full. Write a summary of all so far, from which you can go on without " \
    "the rest: what was asked, what is done, what you found out (names, paths, numbers, errors), " \
    "what was decided and why, what is left and the next step. At most %d words. Call no tool "    \
    "and "                                                                                         \
    "do not go on with the work."

/* ---- when ----------------------------------------------------------------------------------- */

#define SUMMARY_TOKENS_MIN 128
#define SUMMARY_TOKENS_MAX 4096
#define REQUEST_TOKENS     256 /* the request, and a word for each pending call */

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

bool agent_history_is_summary(const struct chat_message *message) {
    return message->role == CHAT_USER &&
           view_starts_with(message->content, view_of_text(SUMMARY_HEAD));
}

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

/* The summary written before, null: none. */
static const struct chat_message *old_summary(const struct agent_history *history, size_t end) {
    for (size_t i = end; i > 0; i--) {
        if (agent_history_is_summary(&history->messages[i - 1])) {
            return &history->messages[i - 1];
        }
    }
    return NULL;
}

/* Splits it into the model's words and the list of files. */
static void
split_summary(const struct chat_message *message, struct view *text, struct view *files) {
    *text = view_slice(message->content, strlen(SUMMARY_HEAD), SIZE_MAX);
    *files = view_of(NULL, 0);
    size_t last = SIZE_MAX;
    for (size_t at = 0; (at = view_find(*text, view_of_text(FILES_HEAD), at)) != SIZE_MAX; at++) {
        last = at;
    }
    if (last != SIZE_MAX) {
        *files = view_slice(*text, last + strlen(FILES_HEAD), SIZE_MAX);
        *text = view_slice(*text, 0, last);
    }
}

/* The call that a result answers: the last one with that id before it. Null: none. */
static const struct chat_call *call_of(const struct agent_history *history, size_t at) {
    struct view id = history->messages[at].call_id;
    for (size_t i = at; i > 0; i--) {
        const struct chat_message *message = &history->messages[i - 1];
        for (size_t k = 0; k < message->call_count; k++) {
            if (view_equals(message->calls[k].id, id)) {
                return &message->calls[k];
            }
        }
    }
    return NULL;
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

/* How many of the last `count` files are listed; *bytes receives what their lines take. */
static size_t listed_files(
    const struct agent_history *history, const struct view *files, size_t count, size_t *bytes
) {
    size_t most = history->files_bytes_max > 0 ? history->files_bytes_max : SIZE_MAX;
    size_t listed = 0;
    *bytes = 0;
    while (listed < count && listed < AGENT_HISTORY_FILES_MAX) {
        size_t line = files[count - listed - 1].length + strlen(FILE_MARK "\n");
        if (line > most - *bytes) {
            break;
        }
        *bytes += line;
        listed++;
    }
    return listed;
}

static int64_t files_tokens(const struct agent_history *history) {
    size_t bytes = 0;
    (void)listed_files(history, history->files, history->file_count, &bytes);
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

/* Calls of the last turn whose results the context does not hold. */
static size_t pending_calls(const struct agent_history *history) {
    const struct chat_message *last = &history->messages[history->context_messages - 1];
    return last->role == CHAT_ASSISTANT ? last->call_count : 0;
}

result agent_history_request_make(
    struct agent_history_request *out,
    const struct agent_history *history,
    struct view remark,
    struct error *error
) {
    ASSERT(history->context_messages > 0 && history->context_messages <= history->count);
    size_t pending = pending_calls(history);
    size_t count = history->context_messages;
    CLEANUP(agent_history_request_deinit) struct agent_history_request made = {0};
    buffer_init(&made.text, BUFFER_CEILING_DEFAULT);
    made.messages = calloc(count + pending + 1, sizeof *made.messages);
    if (made.messages == NULL) {
        FAIL(error, MEMORY, "no memory for %zu messages", count + pending + 1);
    }
    memcpy(made.messages, history->messages, count * sizeof *made.messages);
    for (size_t i = 0; i < pending; i++) {
        made.messages[made.count++ + count] = (struct chat_message){
            .role = CHAT_TOOL,
            .content = view_of_text(PENDING_RESULT),
            .call_id = history->messages[count - 1].calls[i].id,
        };
    }
    TRY(buffer_append_format(&made.text, error, REQUEST_TEXT, history->summary_tokens * 2 / 3));
    if (remark.length > 0) {
        TRY(buffer_append_text(&made.text, " The user asks: ", error));
        TRY(buffer_append(&made.text, remark, error));
    }
    made.count += count + 1;
    made.messages[made.count - 1] =
        (struct chat_message){.role = CHAT_USER, .content = buffer_view(&made.text)};
    *out = made;
    made = (struct agent_history_request){0};
    return OK;
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* Where an output can be read, as it says at its end: "output:7". Empty: nowhere, or not any more. */
static struct view locator_in(const struct agent_history *history, size_t at) {
    struct view text = history->messages[at].content;
    size_t from = text.length > LOCATOR_BYTES ? text.length - LOCATOR_BYTES : 0;
    struct view end = view_slice(text, from, SIZE_MAX);
    struct view locator = view_of(NULL, 0);
    for (size_t i = 0; (i = view_find(end, view_of_text(LOCATOR), i)) != SIZE_MAX; i++) {
        size_t to = i + strlen(LOCATOR);
        while (to < end.length && end.data[to] >= '0' && end.data[to] <= '9') {
            to++;
        }
        locator = view_slice(end, i, to - i);
    }
    bool is_there = locator.length > strlen(LOCATOR) && at >= history->fresh_from &&
                    history->has_output != NULL && history->has_output(history->context, locator);
    return is_there ? locator : view_of(NULL, 0);
}

static struct view cut_view(struct view text, size_t bytes) {
    struct view cut = view_slice(text, 0, bytes);
    return view_slice(cut, 0, cut.length < text.length ? utf8_valid_prefix(cut) : cut.length);
}

/* In the place of a removed output. */
static result write_removed(
    struct buffer *out, const struct agent_history *history, size_t at, struct error *error
) {
    const struct chat_call *call = call_of(history, at);
    struct view name = call != NULL ? cut_view(call->name, 64) : view_of_text("a call");
    struct view locator = locator_in(history, at);
    TRY(buffer_append_format(
        out, error, "[output of %.*s removed to save room: ", VIEW_ARGUMENTS(name)
    ));
    if (locator.length > 0) {
        return buffer_append_format(
            out, error, "read %.*s, or run it again]", VIEW_ARGUMENTS(cut_view(locator, 32))
        );
    }
    return buffer_append_text(out, "run or read it again if you need it]", error);
}

/* The beginning of a long output; with its note no longer than `bytes`. */
static result write_cut(
    struct buffer *out,
    const struct agent_history *history,
    size_t at,
    size_t bytes,
    struct error *error
) {
    struct view text = history->messages[at].content;
    struct view locator = locator_in(history, at);
    char note[96] = CUT_NOTE;
    if (locator.length > 0) {
        int length = snprintf(
            note,
            sizeof note,
            "\n[cut to save room: read %.*s]",
            VIEW_ARGUMENTS(cut_view(locator, 32))
        );
        ASSERT(length > 0 && (size_t)length < sizeof note);
    }
    ASSERT(bytes > sizeof note);
    TRY(buffer_append(out, cut_view(text, bytes - strlen(note)), error));
    return buffer_append_text(out, note, error);
}

static bool has_path(const struct agent_history *history, struct view path) {
    for (size_t i = 0; i < history->file_count; i++) {
        if (view_equals(history->files[i], path)) {
            return true;
        }
    }
    return false;
}

/* One line: what would break the list is left out. */
static bool is_listable(struct view path) {
    for (size_t i = 0; i < path.length; i++) {
        if (path.data[i] < ' ') {
            return false;
        }
    }
    return path.length > 0 && path.length <= AGENT_HISTORY_PATH_BYTES_MAX;
}

/* Paths of the old list that are not on the new one, then the new one; the latest ones only. */
static result collect_files(
    const struct agent_history *history,
    struct view old,
    struct view *out,
    size_t *count,
    bool *has_older,
    struct error *error
) {
    size_t lines = 0;
    for (size_t i = 0; i < old.length; i++) {
        lines += old.data[i] == '\n' ? 1 : 0;
    }
    CLEANUP(free_cleanup)
    struct view *all = calloc(lines + history->file_count + 1, sizeof *all);
    if (all == NULL) {
        FAIL(error, MEMORY, "no memory for a list of files");
    }
    size_t found = 0;
    struct cursor cursor = cursor_over(old);
    struct view line;
    while (cursor_take_until(&cursor, '\n', &line)) {
        struct view path = view_slice(line, strlen(FILE_MARK), SIZE_MAX);
        *has_older = *has_older || view_equals_text(line, "(and older ones)");
        if (view_starts_with(line, view_of_text(FILE_MARK)) && !has_path(history, path)) {
            all[found++] = path;
        }
    }
    for (size_t i = 0; i < history->file_count; i++) {
        if (is_listable(history->files[i])) {
            all[found++] = history->files[i];
        }
    }
    size_t bytes = 0;
    *count = listed_files(history, all, found, &bytes);
    *has_older = *has_older || *count < found;
    memcpy(out, all + found - *count, *count * sizeof *out);
    return OK;
}

static result write_files(
    struct buffer *out, const struct agent_history *history, struct view old, struct error *error
) {
    struct view files[AGENT_HISTORY_FILES_MAX];
    size_t count = 0;
    bool has_older = false;
    TRY(collect_files(history, old, files, &count, &has_older, error));
    if (count == 0) {
        return OK;
    }
    TRY(buffer_append_text(out, FILES_HEAD, error));
    for (size_t i = 0; i < count; i++) {
        TRY(buffer_append_text(out, FILE_MARK, error));
        TRY(buffer_append(out, files[i], error));
        TRY(buffer_append_byte(out, '\n', error));
    }
    return has_older ? buffer_append_text(out, FILES_OLDER, error) : OK;
}

/* Stands for a summary that the model did not write: the one before, and the calls since. */
static result write_calls(
    struct buffer *out,
    const struct agent_history *history,
    size_t tail,
    struct view before,
    struct error *error
) {
    TRY(buffer_append(out, cut_view(before, AGENT_HISTORY_SUMMARY_BYTES / 2), error));
    size_t count = 0;
    for (size_t i = 0; i < tail; i++) {
        count += history->messages[i].call_count;
    }
    size_t skipped = count > CALLS_MAX ? count - CALLS_MAX : 0;
    size_t at = 0;
    for (size_t i = 0; i < tail; i++) {
        for (size_t k = 0; k < history->messages[i].call_count; k++) {
            const struct chat_call *call = &history->messages[i].calls[k];
            if (at++ < skipped) {
                continue;
            }
            const char *before_it = at > skipped + 1 ? "\n" : before.length > 0 ? "\n" : CALLS_HEAD;
            struct view name = cut_view(call->name, 64);
            struct view arguments = cut_view(call->arguments, CALL_BYTES);
            TRY(buffer_append_format(
                out,
                error,
                "%s%.*s %.*s",
                before_it,
                VIEW_ARGUMENTS(name),
                VIEW_ARGUMENTS(arguments)
            ));
        }
    }
    return OK;
}

static result write_summary(
    struct buffer *out,
    const struct agent_history *history,
    size_t tail,
    struct view summary,
    struct error *error
) {
    const struct chat_message *old = old_summary(history, tail);
    struct view old_text = view_of(NULL, 0);
    struct view old_files = view_of(NULL, 0);
    if (old != NULL) {
        split_summary(old, &old_text, &old_files);
    }
    TRY(buffer_append_text(out, SUMMARY_HEAD, error));
    if (summary.length > 0) {
        TRY(buffer_append(out, cut_view(summary, AGENT_HISTORY_SUMMARY_BYTES), error));
    } else {
        TRY(write_calls(out, history, tail, old_text, error));
    }
    return write_files(out, history, old_files, error);
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
        TRY(write_removed(&building->text, history, at, error));
        return append_text(building, &message, error);
    }
    if (message.role == CHAT_TOOL && message.content.length > plan->output_bytes_max) {
        building->made.removed++;
        TRY(write_cut(&building->text, history, at, plan->output_bytes_max, error));
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
                ? write_cut(&building->text, history, person, AGENT_HISTORY_PERSON_BYTES, error)
                : buffer_append(&building->text, text, error));
        TRY(append_text(building, &user, error));
    }
    buffer_clear(&building->text);
    TRY(write_summary(&building->text, history, tail, summary, error));
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
