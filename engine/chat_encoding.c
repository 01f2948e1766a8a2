/* Messages to prompt: one text in which the places of control tokens are noted. The text itself is
 * what `chat_render` gives; for ids the stretches between the notes are encoded as plain text, so
 * that no typed marker can become a control token.
 *
 * Messages are first grouped into turns: tool results and user messages in a row are one user turn.
 * Rules: specification 6.2 to 6.6. */
#include "chat.h"
#include "chat_markers.h"
#include "chat_wording.h"
#include "python_json.h"
#include "tokenizer.h"

#define ARGUMENTS_DEPTH_MAX 48

struct chat_encoder {
    const struct tokenizer *tokenizer;
    const struct chat_wording *wording;
    int32_t ids[CHAT_MARKER_COUNT];
};

/* A control token in the text. */
struct mark {
    size_t at;
    size_t length;
    int32_t id;
};

/* Messages first .. end - 1 that make one turn. */
struct turn {
    enum chat_role role; /* CHAT_TOOL does not occur: tool results are part of a user turn */
    size_t first;
    size_t end;
    enum chat_task task;
};

struct rendering {
    const struct chat_encoder *encoder;
    const struct chat_request *request;
    struct buffer text;
    struct mark *marks;
    size_t mark_count;
    size_t mark_capacity;
    struct turn *turns;
    size_t turn_count;
    size_t last_user_turn; /* turn_count when there is none */
    bool drops_thinking;
    struct error *error;
};

struct chat_options chat_options_default(void) {
    return (struct chat_options){.effort = CHAT_EFFORT_DEFAULT, .keep_thinking = false};
}

result chat_effort_parse(int32_t *out, struct view text, struct error *error) {
    static const struct {
        const char *word;
        int32_t effort;
    } words[] = {
        {"off", CHAT_EFFORT_OFF},
        {"low", CHAT_EFFORT_LOW},
        {"high", CHAT_EFFORT_HIGH},
        {"max", CHAT_EFFORT_MAX}};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (view_equals_text(text, words[i].word)) {
            *out = words[i].effort;
            return OK;
        }
    }
    int64_t number = 0;
    if (!parse_i64(text, &number) || number < 1 || number > 100) {
        FAIL(
            error,
            INVALID_INPUT,
            "effort '%.*s' is none of off, low, high, max, or 1 to 100",
            VIEW_ARGUMENTS(view_slice(text, 0, 40))
        );
    }
    *out = (int32_t)number;
    return OK;
}

/* ---- encoder ---- */

result chat_encoder_create(
    struct chat_encoder **out,
    const struct tokenizer *tokenizer,
    const struct chat_wording *wording,
    struct error *error
) {
    struct chat_encoder *encoder = calloc(1, sizeof *encoder);
    if (encoder == NULL) {
        FAIL(error, MEMORY, "no memory for a chat encoder");
    }
    encoder->tokenizer = tokenizer;
    encoder->wording = wording;
    chat_marker_ids(tokenizer, encoder->ids);
    for (int i = 0; i < CHAT_MARKERS_NEEDED; i++) {
        if (encoder->ids[i] < 0) {
            free(encoder);
            struct view text = chat_marker_text((enum chat_marker)i);
            FAIL(
                error,
                INVALID_INPUT,
                "the vocabulary lacks the control token %.*s",
                VIEW_ARGUMENTS(text)
            );
        }
    }
    *out = encoder;
    return OK;
}

void chat_encoder_destroy(struct chat_encoder *encoder) {
    free(encoder);
}

void chat_encoder_cleanup(struct chat_encoder **encoder) {
    chat_encoder_destroy(*encoder);
}

int32_t chat_encoder_end_id(const struct chat_encoder *encoder) {
    return encoder->ids[CHAT_MARKER_END];
}

/* ---- writing ---- */

static void rendering_deinit(struct rendering *rendering) {
    buffer_deinit(&rendering->text);
    free(rendering->marks);
    free(rendering->turns);
}

static result put(struct rendering *rendering, struct view text) {
    return buffer_append(&rendering->text, text, rendering->error);
}

static result put_text(struct rendering *rendering, const char *text) {
    return put(rendering, view_of_text(text));
}

static result put_mark(struct rendering *rendering, struct view text, int32_t id) {
    if (rendering->mark_count == rendering->mark_capacity) {
        size_t capacity = rendering->mark_capacity == 0 ? 64 : rendering->mark_capacity * 2;
        struct mark *marks = realloc(rendering->marks, capacity * sizeof *marks);
        if (marks == NULL) {
            FAIL(rendering->error, MEMORY, "no memory for %zu control tokens", capacity);
        }
        rendering->marks = marks;
        rendering->mark_capacity = capacity;
    }
    struct mark mark = {rendering->text.length, text.length, id};
    TRY(put(rendering, text));
    rendering->marks[rendering->mark_count++] = mark;
    return OK;
}

static result put_marker(struct rendering *rendering, enum chat_marker marker) {
    struct view text = chat_marker_text(marker);
    int32_t id = rendering->encoder->ids[marker];
    if (id < 0) {
        FAIL(
            rendering->error,
            INVALID_INPUT,
            "this model's vocabulary lacks the control token %.*s",
            VIEW_ARGUMENTS(text)
        );
    }
    return put_mark(rendering, text, id);
}

/* Text of the model's own wording, in which markers are control tokens. */
static result put_wording(struct rendering *rendering, struct view text) {
    size_t from = 0;
    size_t at = 0;
    size_t length = 0;
    int32_t id = -1;
    const struct tokenizer *tokenizer = rendering->encoder->tokenizer;
    while (tokenizer_find_marker(tokenizer, text, from, &at, &length, &id)) {
        TRY(put(rendering, view_slice(text, from, at - from)));
        TRY(put_mark(rendering, view_slice(text, at, length), id));
        from = at + length;
    }
    return put(rendering, view_slice(text, from, SIZE_MAX));
}

/* "<" or "</", the marker of calls, a name. */
static result put_tag(struct rendering *rendering, const char *opening, const char *name) {
    TRY(put_text(rendering, opening));
    TRY(put_marker(rendering, CHAT_MARKER_DSML));
    return put_text(rendering, name);
}

static result put_json(struct rendering *rendering, struct view json, const char *what) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    const struct json_limits limits = {.depth_max = ARGUMENTS_DEPTH_MAX};
    TRY_NOTE(rendering->error, json_parse(json, &limits, &document, rendering->error), "%s", what);
    return python_json_append(&rendering->text, json_root(document), rendering->error);
}

static result put_json_string(struct rendering *rendering, struct view text) {
    return python_json_append_string(&rendering->text, text, rendering->error);
}

/* ---- turns ---- */

static bool is_user_like(enum chat_role role) {
    return role == CHAT_USER || role == CHAT_TOOL;
}

static result collect_turns(struct rendering *rendering) {
    const struct chat_request *request = rendering->request;
    rendering->turns = calloc(request->message_count + 1, sizeof *rendering->turns);
    if (rendering->turns == NULL) {
        FAIL(rendering->error, MEMORY, "no memory for %zu turns", request->message_count);
    }
    bool has_tools = false;
    for (size_t i = 0; i < request->message_count; i++) {
        const struct chat_message *message = &request->messages[i];
        has_tools = has_tools || message->tool_count > 0;
        struct turn *last =
            rendering->turn_count > 0 ? &rendering->turns[rendering->turn_count - 1] : NULL;
        bool joins = last != NULL && last->role == CHAT_USER && is_user_like(message->role) &&
                     (message->role == CHAT_TOOL || last->task == CHAT_TASK_NONE);
        if (joins) {
            last->end = i + 1;
            continue;
        }
        enum chat_role role = is_user_like(message->role) ? CHAT_USER : message->role;
        enum chat_task task = message->role == CHAT_USER ? message->task : CHAT_TASK_NONE;
        rendering->turns[rendering->turn_count++] = (struct turn){role, i, i + 1, task};
    }
    rendering->drops_thinking = !request->options.keep_thinking && !has_tools;
    rendering->last_user_turn = rendering->turn_count;
    for (size_t i = 0; i < rendering->turn_count; i++) {
        enum chat_role role = rendering->turns[i].role;
        if (role == CHAT_USER || (role == CHAT_SYSTEM && i > 0)) {
            rendering->last_user_turn = i;
        }
    }
    return OK;
}

static bool is_thinking(const struct rendering *rendering) {
    return rendering->request->options.effort != CHAT_EFFORT_OFF;
}

/* ---- content ---- */

/* Parts in one text, a blank line between them. */
static result put_content(struct rendering *rendering, const struct chat_message *message) {
    if (message->part_count == 0) {
        return put(rendering, message->content);
    }
    for (size_t i = 0; i < message->part_count; i++) {
        const struct chat_part *part = &message->parts[i];
        TRY(put_text(rendering, i == 0 ? "" : "\n\n"));
        if (part->unsupported_type.length == 0) {
            TRY(put(rendering, part->text));
        } else {
            TRY(put_text(rendering, "[Unsupported "));
            TRY(put(rendering, part->unsupported_type));
            TRY(put_text(rendering, "]"));
        }
    }
    return OK;
}

static result put_tool(struct rendering *rendering, const struct chat_tool *tool) {
    if (tool->function.length > 0) {
        return put_json(rendering, tool->function, "tool declaration");
    }
    TRY(put_text(rendering, "{\"name\": "));
    TRY(put_json_string(rendering, tool->name));
    if (tool->description.data != NULL) {
        TRY(put_text(rendering, ", \"description\": "));
        TRY(put_json_string(rendering, tool->description));
    }
    TRY(put_text(rendering, ", \"parameters\": "));
    TRY(put_json(rendering, tool->parameters, "parameters of a tool"));
    return put_text(rendering, "}");
}

static result put_system(struct rendering *rendering, const struct chat_message *message) {
    const struct chat_wording *wording = rendering->encoder->wording;
    TRY(put_content(rendering, message));
    if (message->tool_count > 0) {
        TRY(put_text(rendering, "\n\n"));
        TRY(put_wording(rendering, buffer_view(&wording->tools_head)));
        for (size_t i = 0; i < message->tool_count; i++) {
            TRY(put_text(rendering, i == 0 ? "" : "\n"));
            TRY(put_tool(rendering, &message->tools[i]));
        }
        TRY(put_wording(rendering, buffer_view(&wording->tools_tail)));
    }
    if (message->response_format.length > 0) {
        if (wording->response_format_head.length == 0) {
            FAIL(
                rendering->error,
                INVALID_INPUT,
                "a response format is asked for, but the model's wording has no text for it"
            );
        }
        TRY(put_wording(rendering, buffer_view(&wording->response_format_head)));
        TRY(put_json(rendering, message->response_format, "response format"));
    }
    return OK;
}

static result put_effort(struct rendering *rendering) {
    char number[16];
    (void)snprintf(number, sizeof number, "%d", rendering->request->options.effort);
    struct view line = buffer_view(&rendering->encoder->wording->effort_line);
    size_t at = view_find(line, view_of_text(CHAT_EFFORT_PLACE), 0);
    ASSERT(at != SIZE_MAX); // checked when the wording is read
    TRY(put_wording(rendering, view_slice(line, 0, at)));
    TRY(put_text(rendering, number));
    return put_wording(rendering, view_slice(line, at + strlen(CHAT_EFFORT_PLACE), SIZE_MAX));
}

/* ---- calls ---- */

static result
put_parameter(struct rendering *rendering, struct view name, struct json_value value) {
    struct view text;
    bool is_string = json_as_string(value, &text);
    TRY(put_tag(rendering, "<", " parameter name=\""));
    TRY(put(rendering, name));
    TRY(put_text(rendering, is_string ? "\" string=\"true\">" : "\" string=\"false\">"));
    if (is_string) {
        TRY(put(rendering, text));
    } else {
        TRY(python_json_append(&rendering->text, value, rendering->error));
    }
    return put_tag(rendering, "</", " parameter>");
}

static result put_call(struct rendering *rendering, const struct chat_call *call) {
    TRY(put_tag(rendering, "<", " invoke name=\""));
    TRY(put(rendering, call->name));
    TRY(put_text(rendering, "\">\n"));
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    const struct json_limits limits = {.depth_max = ARGUMENTS_DEPTH_MAX};
    // Arguments that are no object are no error of ours: the model sees them as one string.
    result parsed = json_parse(call->arguments, &limits, &document, NULL);
    if (parsed.code == RESULT_MEMORY) {
        FAIL(rendering->error, MEMORY, "no memory for arguments of a call");
    }
    if (is_ok(parsed) && json_type(json_root(document)) == JSON_OBJECT) {
        struct json_value value = json_first(json_root(document));
        for (size_t i = 0; json_type(value) != JSON_ABSENT; i++) {
            TRY(put_text(rendering, i == 0 ? "" : "\n"));
            TRY(put_parameter(rendering, json_name(value), value));
            value = json_next(value);
        }
    } else {
        TRY(put_tag(rendering, "<", " parameter name=\"arguments\" string=\"true\">"));
        TRY(put(rendering, call->arguments));
        TRY(put_tag(rendering, "</", " parameter>"));
    }
    TRY(put_text(rendering, "\n"));
    return put_tag(rendering, "</", " invoke>");
}

static result put_calls(struct rendering *rendering, const struct chat_message *message) {
    TRY(put_text(rendering, "\n\n"));
    TRY(put_tag(rendering, "<", " calls>\n"));
    for (size_t i = 0; i < message->call_count; i++) {
        TRY(put_text(rendering, i == 0 ? "" : "\n"));
        TRY(put_call(rendering, &message->calls[i]));
    }
    TRY(put_text(rendering, "\n"));
    return put_tag(rendering, "</", " calls>");
}

static result put_assistant(struct rendering *rendering, size_t index) {
    const struct turn *turn = &rendering->turns[index];
    const struct chat_message *message = &rendering->request->messages[turn->first];
    bool answers_task = index > 0 && rendering->turns[index - 1].task != CHAT_TASK_NONE;
    bool is_after_last_user =
        rendering->last_user_turn == rendering->turn_count || index > rendering->last_user_turn;
    if (is_thinking(rendering) && !answers_task &&
        (!rendering->drops_thinking || is_after_last_user)) {
        TRY(put(rendering, message->reasoning));
        TRY(put_marker(rendering, CHAT_MARKER_THINK_END));
    }
    TRY(put_content(rendering, message));
    if (message->call_count > 0) {
        TRY(put_calls(rendering, message));
    }
    return message->without_eos ? OK : put_marker(rendering, CHAT_MARKER_END);
}

/* ---- user turns ---- */

/* Position of the call that a result answers among the last calls made; 0 for an unknown one, as
 * in the official encoder. */
static size_t call_rank(const struct rendering *rendering, size_t turn, struct view call_id) {
    for (size_t t = turn; t-- > 0;) {
        const struct chat_message *message =
            &rendering->request->messages[rendering->turns[t].first];
        if (message->role != CHAT_ASSISTANT || message->call_count == 0) {
            continue;
        }
        for (size_t i = message->call_count; i-- > 0;) {
            if (call_id.length > 0 && view_equals(message->calls[i].id, call_id)) {
                return i;
            }
        }
        return 0;
    }
    return 0;
}

struct ranked_result {
    size_t message;
    size_t rank;
};

static int compare_ranked(const void *a, const void *b) {
    const struct ranked_result *left = a;
    const struct ranked_result *right = b;
    if (left->rank != right->rank) {
        return left->rank < right->rank ? -1 : 1;
    }
    return left->message < right->message ? -1 : 1;
}

/* Texts and results in their places, the results among themselves in the order of the calls. */
static result put_user(struct rendering *rendering, size_t index) {
    const struct turn *turn = &rendering->turns[index];
    const struct chat_message *messages = rendering->request->messages;
    CLEANUP(free_cleanup)
    struct ranked_result *results = calloc(turn->end - turn->first, sizeof *results);
    if (results == NULL) {
        FAIL(rendering->error, MEMORY, "no memory for %zu results", turn->end - turn->first);
    }
    size_t result_count = 0;
    for (size_t i = turn->first; i < turn->end; i++) {
        if (messages[i].role == CHAT_TOOL) {
            size_t rank = call_rank(rendering, index, messages[i].call_id);
            results[result_count++] = (struct ranked_result){i, rank};
        }
    }
    qsort(results, result_count, sizeof *results, compare_ranked);
    TRY(put_marker(rendering, CHAT_MARKER_USER));
    size_t result_at = 0;
    for (size_t i = turn->first; i < turn->end; i++) {
        TRY(put_text(rendering, i == turn->first ? "" : "\n\n"));
        if (messages[i].role == CHAT_TOOL) {
            TRY(put_text(rendering, "<tool_result>"));
            TRY(put_content(rendering, &messages[results[result_at++].message]));
            TRY(put_text(rendering, "</tool_result>"));
        } else {
            TRY(put_content(rendering, &messages[i]));
        }
    }
    return OK;
}

/* ---- what follows a turn ---- */

static result put_header(struct rendering *rendering, size_t index) {
    bool is_last_user =
        rendering->last_user_turn == rendering->turn_count || index >= rendering->last_user_turn;
    bool thinks = is_thinking(rendering) && (!rendering->drops_thinking || is_last_user);
    TRY(put_marker(rendering, CHAT_MARKER_ASSISTANT));
    return put_marker(rendering, thinks ? CHAT_MARKER_THINK : CHAT_MARKER_THINK_END);
}

static result put_task(struct rendering *rendering, enum chat_task task) {
    static const enum chat_marker markers[] = {
        [CHAT_TASK_ACTION] = CHAT_MARKER_ACTION,
        [CHAT_TASK_QUERY] = CHAT_MARKER_QUERY,
        [CHAT_TASK_AUTHORITY] = CHAT_MARKER_AUTHORITY,
        [CHAT_TASK_DOMAIN] = CHAT_MARKER_DOMAIN,
        [CHAT_TASK_TITLE] = CHAT_MARKER_TITLE,
        [CHAT_TASK_READ_URL] = CHAT_MARKER_READ_URL};
    if (task == CHAT_TASK_ACTION) {
        TRY(put_marker(rendering, CHAT_MARKER_ASSISTANT));
        TRY(put_marker(
            rendering, is_thinking(rendering) ? CHAT_MARKER_THINK : CHAT_MARKER_THINK_END
        ));
    }
    return put_marker(rendering, markers[task]);
}

static result put_transition(struct rendering *rendering, size_t index) {
    const struct turn *turn = &rendering->turns[index];
    if (index + 1 < rendering->turn_count) {
        enum chat_role next = rendering->turns[index + 1].role;
        if (next != CHAT_ASSISTANT && next != CHAT_LATEST_REMINDER) {
            return OK;
        }
    }
    if (turn->task != CHAT_TASK_NONE) {
        return put_task(rendering, turn->task);
    }
    bool expects_answer = turn->role == CHAT_USER || (turn->role == CHAT_SYSTEM && index > 0);
    return expects_answer ? put_header(rendering, index) : OK;
}

/* ---- turns to text ---- */

static result put_turn(struct rendering *rendering, size_t index) {
    const struct turn *turn = &rendering->turns[index];
    const struct chat_message *message = &rendering->request->messages[turn->first];
    bool has_effort = index == 0 && is_thinking(rendering);
    if (turn->role == CHAT_SYSTEM || has_effort) {
        TRY(put_marker(rendering, CHAT_MARKER_SYSTEM));
    }
    if (has_effort) {
        TRY(put_effort(rendering));
    }
    if (turn->role == CHAT_SYSTEM) {
        TRY(put_system(rendering, message));
    } else if (turn->role == CHAT_USER) {
        TRY(put_user(rendering, index));
    } else if (turn->role == CHAT_ASSISTANT) {
        TRY(put_assistant(rendering, index));
    } else {
        TRY(put_marker(rendering, CHAT_MARKER_LATEST_REMINDER));
        TRY(put_content(rendering, message));
    }
    return put_transition(rendering, index);
}

static result check_request(const struct chat_request *request, struct error *error) {
    int32_t effort = request->options.effort;
    if (effort < 0 || effort > 100) {
        FAIL(error, INVALID_INPUT, "effort %d is not off or 1 to 100", effort);
    }
    if (request->from > 0 && !chat_can_append(request)) {
        FAIL(
            error,
            INVALID_INPUT,
            "message %zu of %zu cannot be appended: it does not follow a turn of the model, or "
            "earlier turns render differently now",
            request->from,
            request->message_count
        );
    }
    return OK;
}

/* Fills text and marks. */
static result render(
    struct rendering *rendering,
    const struct chat_encoder *encoder,
    const struct chat_request *request,
    struct error *error
) {
    TRY(check_request(request, error));
    *rendering = (struct rendering){.encoder = encoder, .request = request, .error = error};
    buffer_init(&rendering->text, BUFFER_CEILING_DEFAULT);
    TRY(collect_turns(rendering));
    size_t first_turn = 0;
    if (request->from == 0) {
        TRY(put_marker(rendering, CHAT_MARKER_BEGIN));
    } else if (request->end_is_missing) {
        TRY(put_marker(rendering, CHAT_MARKER_END));
    }
    while (first_turn < rendering->turn_count && rendering->turns[first_turn].first < request->from
    ) {
        first_turn += 1;
    }
    for (size_t i = first_turn; i < rendering->turn_count; i++) {
        TRY_NOTE(error, put_turn(rendering, i), "message %zu", rendering->turns[i].first);
    }
    return OK;
}

bool chat_can_append(const struct chat_request *request) {
    if (request->from == 0 || request->from > request->message_count) {
        return false;
    }
    const struct chat_message *own = &request->messages[request->from - 1];
    if (request->from == 1 && own->role == CHAT_SYSTEM) {
        return !request->end_is_missing; // nothing that follows changes how it renders
    }
    if (own->role != CHAT_ASSISTANT || own->without_eos) {
        return false;
    }
    if (request->options.effort == CHAT_EFFORT_OFF || request->options.keep_thinking) {
        return true;
    }
    bool had_tools = false;
    bool has_new_tools = false;
    bool has_new_user = false;
    for (size_t i = 0; i < request->message_count; i++) {
        const struct chat_message *message = &request->messages[i];
        bool is_new = i >= request->from;
        had_tools = had_tools || (!is_new && message->tool_count > 0);
        has_new_tools = has_new_tools || (is_new && message->tool_count > 0);
        has_new_user = has_new_user || (is_new && message->role != CHAT_ASSISTANT &&
                                        message->role != CHAT_LATEST_REMINDER);
    }
    // Without tools a new user turn takes the reasoning out of the turns before it.
    return had_tools || (!has_new_tools && !has_new_user);
}

result chat_render(
    struct buffer *out,
    const struct chat_encoder *encoder,
    const struct chat_request *request,
    struct error *error
) {
    CLEANUP(rendering_deinit) struct rendering rendering = {0};
    TRY(render(&rendering, encoder, request, error));
    return buffer_append(out, buffer_view(&rendering.text), error);
}

result chat_encode(
    struct token_list *out,
    const struct chat_encoder *encoder,
    const struct chat_request *request,
    struct error *error
) {
    CLEANUP(rendering_deinit) struct rendering rendering = {0};
    TRY(render(&rendering, encoder, request, error));
    struct view text = buffer_view(&rendering.text);
    size_t count_before = out->count;
    size_t from = 0;
    result encoded = OK;
    for (size_t i = 0; is_ok(encoded) && i <= rendering.mark_count; i++) {
        bool is_mark = i < rendering.mark_count;
        size_t to = is_mark ? rendering.marks[i].at : text.length;
        struct view plain = view_slice(text, from, to - from);
        encoded = tokenizer_encode(encoder->tokenizer, plain, TOKENIZER_MARKERS_OFF, out, error);
        if (is_mark && is_ok(encoded)) {
            encoded = token_list_append(out, rendering.marks[i].id, error);
            from = to + rendering.marks[i].length;
        }
    }
    if (is_failed(encoded)) {
        out->count = count_before;
    }
    return encoded;
}

result chat_encode_trusting(
    struct token_list *out,
    const struct chat_encoder *encoder,
    const struct chat_request *request,
    struct error *error
) {
    CLEANUP(rendering_deinit) struct rendering rendering = {0};
    TRY(render(&rendering, encoder, request, error));
    struct view text = buffer_view(&rendering.text);
    return tokenizer_encode(encoder->tokenizer, text, TOKENIZER_MARKERS_ON, out, error);
}
