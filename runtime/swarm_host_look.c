/* What others see of a swarm that runs: its events, what each agent does, what it cost. See swarm_host.h. */
#include "swarm_host_internal.h"

#include <stdarg.h>

#define SUBJECT_ARGUMENTS_MAX ((size_t)64 << 10) /* larger ones are not looked at */

const struct swarm *swarm_host_swarm(const struct swarm_host *host) {
    return host->swarm;
}

const struct session_id *swarm_host_session(const struct swarm_host *host) {
    static const struct session_id none = {""};
    return host->has_begun ? swarm_root_session(host->root) : &none;
}

int64_t swarm_host_now_ms(const struct swarm_host *host) {
    return clock_monotonic_ms(&host->options.run.clock);
}

/* ---- events ------------------------------------------------------------------------------------ */

void host_show(struct swarm_host *host, const struct swarm_host_event *event) {
    const struct swarm_host_listener *listener = &host->options.listener;
    if (listener->event != NULL) {
        listener->event(listener->context, host, event);
    }
}

void host_say(struct swarm_host *host, enum swarm_host_event_type type, const char *format, ...) {
    char text[ERROR_MESSAGE_BYTES + 400];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0); /* too long: cut */
    host_show(host, &(struct swarm_host_event){.type = type, .text = view_of_text(text)});
}

static bool is_same(const struct host_seen *a, const struct host_seen *b) {
    return a->state == b->state && a->outcome == b->outcome && a->verdict == b->verdict &&
           a->cut == b->cut && a->is_merged == b->is_merged &&
           a->has_conflicts == b->has_conflicts && a->has_score == b->has_score &&
           !(a->score < b->score) && !(a->score > b->score);
}

static bool is_judged_anew(const struct host_seen *before, const struct host_seen *now) {
    return before->outcome != now->outcome || before->verdict != now->verdict ||
           before->has_score != now->has_score || before->score < now->score ||
           before->score > now->score;
}

void host_look_at_nodes(struct swarm_host *host) {
    for (size_t i = 0; i < swarm_node_count(host->swarm); i++) {
        const struct swarm_node *told = swarm_node(host->swarm, i);
        struct host_node *node = &host->nodes[i];
        const struct host_seen now = {
            .state = told->state,
            .outcome = told->outcome,
            .verdict = told->verdict,
            .cut = told->cut,
            .is_merged = told->is_merged,
            .has_conflicts = told->has_conflicts,
            .has_score = told->has_score,
            .score = told->score,
        };
        if (now.state == SWARM_VERIFYING) {
            host_set_activity(node, "verifying");
        } else if (now.state == SWARM_ENDED) {
            host_set_activity(node, "");
        }
        if (now.state == SWARM_ENDED && node->phase == NODE_NEW) {
            host_node_drop_base(node); /* it is never started */
        }
        node->judgement_is_new = node->judgement_is_new || is_judged_anew(&node->seen, &now);
        bool is_new = !node->is_shown || !is_same(&node->seen, &now);
        node->is_shown = true;
        node->seen = now;
        if (is_new) {
            host_show(host, &(struct swarm_host_event){.type = SWARM_HOST_NODE, .node = i});
        }
    }
}

/* ---- one agent --------------------------------------------------------------------------------- */

void host_set_activity(struct host_node *node, const char *activity) {
    int length = snprintf(node->activity, sizeof node->activity, "%s", activity);
    ASSERT(length >= 0); /* too long: cut */
}

/* Of what a model wrote: whole characters, and none that would move a cursor. */
static void set_line(char *out, size_t bytes, struct view text) {
    text = view_slice(text, 0, bytes - 1);
    text = view_slice(text, 0, utf8_valid_prefix(text));
    for (size_t i = 0; i < text.length; i++) {
        unsigned char byte = text.data[i];
        out[i] = (char)(byte < ' ' || byte == 0x7f ? ' ' : byte);
    }
    out[text.length] = '\0';
}

/* What a call is about: the first argument that says it, as one line. */
static void set_subject(struct host_node *node, const struct chat_call *call) {
    static const char *const names[] = {
        "command", "path", "file_path", "pattern", "query", "url", "name", "task", "message"};
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct view subject = view_of(NULL, 0);
    node->subject[0] = '\0';
    if (call->arguments.length > SUBJECT_ARGUMENTS_MAX ||
        is_failed(json_parse(call->arguments, NULL, &document, NULL))) {
        return;
    }
    for (size_t i = 0; i < COUNT_OF(names) && subject.length == 0; i++) {
        (void)json_as_string(json_get(json_root(document), names[i]), &subject);
    }
    set_line(node->subject, sizeof node->subject, subject);
}

static void take_status(struct host_node *node, const struct run_status *status) {
    struct swarm_host_look *look = &node->look;
    look->turns = status->turn;
    look->context_tokens = status->context_tokens;
    look->tokens = status->tokens_sampled;
    look->calls = status->calls;
    look->prompt_tokens = status->prompt_tokens;
    look->reused_tokens = status->reused_tokens;
    look->evaluated_tokens = status->evaluated_tokens;
}

void host_look_at_run(struct host_node *node, const struct run_event *event) {
    struct swarm_host *host = node->host;
    bool says_activity =
        event->type != RUN_TOOL_OUTPUT && event->status != NULL && event->status->activity != NULL;
    char before[sizeof node->activity];
    memcpy(before, node->activity, sizeof before);
    if (event->status != NULL) {
        take_status(node, event->status);
    }
    if (event->type == RUN_TOOL_CALL) {
        set_line(node->activity, sizeof node->activity, event->call->name); /* of any tool */
        set_subject(node, event->call);
    } else if (event->type == RUN_TOOL_RESULT) {
        node->subject[0] = '\0';
    } else if (says_activity && node->subject[0] == '\0') {
        host_set_activity(node, event->status->activity);
    }
    const struct swarm_host_event shown = {
        .type = SWARM_HOST_RUN, .node = node->index, .run = event};
    host_show(host, &shown);
    if (event->type == RUN_TOOL_CALL || strcmp(before, node->activity) != 0) {
        const struct swarm_host_event active = {.type = SWARM_HOST_ACTIVITY, .node = node->index};
        host_show(host, &active);
    }
}

void swarm_host_look(const struct swarm_host *host, size_t node, struct swarm_host_look *out) {
    ASSERT(node < host->node_count);
    const struct host_node *one = &host->nodes[node];
    *out = one->look;
    out->activity = one->activity;
    out->subject = view_of_text(one->subject);
    out->directory = one->look.directory != NULL ? one->look.directory : "";
    if (node == SWARM_ROOT && host->has_begun) {
        const struct generation_facts *facts = swarm_root_facts(host->root);
        out->context_tokens = facts->prompt_tokens;
        out->prompt_tokens = facts->prompt_tokens;
        out->reused_tokens = facts->reused;
        out->evaluated_tokens = facts->evaluated;
    }
}

void swarm_host_totals(const struct swarm_host *host, struct swarm_host_totals *out) {
    *out = host->totals;
    for (size_t i = 0; i < host->node_count; i++) {
        struct swarm_host_look look;
        swarm_host_look(host, i, &look);
        out->tokens += look.tokens;
        out->calls += look.calls;
        out->prompt_tokens += look.prompt_tokens;
        out->reused_tokens += look.reused_tokens;
        out->evaluated_tokens += look.evaluated_tokens;
        out->kept += look.is_kept ? 1 : 0;
    }
    int64_t end_ms = host->ended_ms > 0 ? host->ended_ms : swarm_host_now_ms(host);
    out->duration_ms = end_ms - host->started_ms;
}

/* ---- an engine for it -------------------------------------------------------------------------- */

/* As many contexts as fit of those at work; others wait for their turn, and what they hold is cached. */
static void plan_contexts(struct engine_options *engine, size_t contexts) {
    struct engine_plan plan;
    for (; contexts > 0; contexts /= 2) {
        struct engine_options trial = *engine;
        trial.sequences_max = (int32_t)contexts;
        if (is_ok(engine_plan_make(&trial, &plan, NULL))) {
            engine->windows_max = plan.windows_max;
            engine->kv_tokens_max = plan.kv_tokens_max;
            return;
        }
    }
}

void swarm_host_plan_engine(const struct swarm_options *options, struct engine_options *engine) {
    size_t live = options->live_max > 0 ? options->live_max : SWARM_LIVE_DEFAULT;
    size_t nodes = options->nodes_max > 0 ? options->nodes_max : SWARM_NODES_DEFAULT;
    if (engine->windows_max == 0 || engine->kv_tokens_max == 0) {
        plan_contexts(engine, live + 1);
    }
    /* Each node's, those that forks go on behind, two of each compaction, the root's, and one of a ranking. */
    engine->sequences_max = (int32_t)(nodes + 3 * live + 2);
}
