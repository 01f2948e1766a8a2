/* Runs that are nodes of a swarm; see loop_nodes.h. */
#include "loop_nodes.h"

#include "loop_internal.h"

/* ---- what a run goes on behind -------------------------------------------------------------- */

result run_prefix_at_call(const struct run *run, struct run_prefix *out, struct error *error) {
    if (run->call.phase != RUN_CALL_RUNS || run->recorder.agent.text[0] == '\0') {
        FAIL(error, INVALID_INPUT, "no call runs behind which an agent could go on");
    }
    size_t count = agent_call_count(run->agent);
    if (count != 1) {
        FAIL(
            error,
            INVALID_INPUT,
            "a fork has to be the only call of its block: this one has %zu",
            count
        );
    }
    struct agent_resume context;
    agent_context(run->agent, &context);
    *out = (struct run_prefix){
        .messages = context.messages,
        .message_count = context.message_count,
        .end_is_missing = context.end_is_missing,
        .tokens = context.context_tokens,
        .effort = context.effort,
        .calls_total = context.calls_total,
        .call = agent_call(run->agent, 0)->id,
        .sequence = run->sequence,
        .agent = run->recorder.agent,
        .turn = run->recorder.turn,
    };
    return OK;
}

/* What the first turn appends. */
static struct chat_message first_message(const struct run_options *options) {
    const struct run_prefix *prefix = options->prefix;
    if (prefix->call.length == 0) {
        return (struct chat_message){.role = CHAT_USER, .content = options->agent.task};
    }
    return (struct chat_message
    ){.role = CHAT_TOOL, .content = prefix->answer, .call_id = prefix->call};
}

result run_prefix_take(
    const struct run_options *options,
    struct agent_resume *out,
    struct chat_message **messages,
    struct error *error
) {
    const struct run_prefix *prefix = options->prefix;
    const struct engine_ports *engine = &options->engine;
    int32_t held = engine->length(engine->context, options->sequence);
    if (held != prefix->tokens) {
        FAIL(
            error,
            INVALID_INPUT,
            "the sequence of a node holds %d tokens, its prefix has %d",
            held,
            prefix->tokens
        );
    }
    ASSERT(prefix->message_count > 0 && prefix->messages[0].role == CHAT_SYSTEM);
    struct chat_message *all = calloc(prefix->message_count + 1, sizeof *all);
    if (all == NULL) {
        FAIL(error, MEMORY, "no memory for %zu messages", prefix->message_count);
    }
    memcpy(all, prefix->messages, prefix->message_count * sizeof *all);
    all[prefix->message_count] = first_message(options);
    *out = (struct agent_resume){
        .messages = all,
        .message_count = prefix->message_count + 1,
        .context_messages = prefix->message_count,
        .end_is_missing = prefix->end_is_missing,
        .context_tokens = prefix->tokens,
        .calls_total = prefix->calls_total,
        .effort = prefix->effort,
        .unrun_count = prefix->call.length > 0 ? 1 : 0, /* the answer is recorded with the turn */
    };
    *messages = all;
    return OK;
}

void run_node_init(struct run *run) {
    const struct run_options *options = run->options;
    const struct run_prefix *prefix = options->prefix;
    ASSERT(prefix == NULL || options->node != NULL); /* else the record would lack it */
    if (options->node == NULL) {
        return;
    }
    ASSERT(!options->is_interactive && options->resume == NULL && options->agent.resume == NULL);
    run->node = (struct recorder_node){
        .session = options->node->session,
        .begin = options->node->begin,
    };
    if (prefix != NULL) {
        run->node.begin.agent.fork_turn = prefix->turn;
        run->node.tokens = prefix->tokens;
        run->node.messages = prefix->message_count;
    }
    run->recorder.node = &run->node;
}

/* ---- mail ----------------------------------------------------------------------------------- */

void run_mail_push(struct run *run, const struct run_remark *remark) {
    if (run->options->node != NULL) {
        ASSERT(run->mail_count < COUNT_OF(run->mail)); /* the agent takes no more */
        run->mail[run->mail_count++] =
            (struct run_mail){.delivers = remark->delivers, .returns = remark->returns};
    }
}

size_t run_mail_of(
    const struct run *run,
    size_t count,
    ptrdiff_t moved,
    struct recorder_mail out[AGENT_REMARKS_MAX]
) {
    size_t mail_count = 0;
    for (size_t i = 0; run->options->node != NULL && i < count; i++) {
        const struct run_mail *mail = &run->mail[i];
        if (mail->delivers != 0 || mail->returns != 0) {
            ptrdiff_t message = (ptrdiff_t)agent_remark_message(run->agent, i) + moved;
            ASSERT(message >= 0);
            out[mail_count++] = (struct recorder_mail){
                .message = (size_t)message,
                .delivers = mail->delivers,
                .returns = mail->returns,
            };
        }
    }
    return mail_count;
}

/* ---- calls ---------------------------------------------------------------------------------- */

struct addition {
    const struct run_call_hook *hook;
    struct run_called called;
};

static result append_addition(void *context, struct error *error) {
    const struct addition *addition = context;
    return addition->hook->append(addition->hook->context, &addition->called, error);
}

result run_record_result(
    struct run *run, const struct tool_result *value, struct view answer, struct error *error
) {
    const struct run_call_hook *hook = run->options->called;
    struct recorder *recorder = &run->recorder;
    if (hook == NULL) {
        return recorder_call_finish(recorder, value, answer, NULL, error);
    }
    struct addition addition = {
        .hook = hook,
        .called =
            {.store = recorder->store,
             .session = &recorder->session,
             .agent = &recorder->agent,
             .call = agent_call(run->agent, run->step.call_index),
             .value = value},
    };
    struct recorder_addition added = {.context = &addition, .append = append_addition};
    TRY(recorder_call_finish(recorder, value, answer, &added, error));
    hook->recorded(hook->context, &addition.called, added.appended);
    return OK;
}

/* ---- the end -------------------------------------------------------------------------------- */

/* What stands in the prefix of a node is another's. */
struct view run_last_text(const struct run *run) {
    const struct chat_conversation *conversation = agent_conversation(run->agent);
    const struct chat_message *messages = chat_conversation_messages(conversation);
    size_t from = run->options->prefix != NULL ? agent_fresh_from(run->agent) : 0;
    for (size_t i = chat_conversation_count(conversation); i > from; i--) {
        const struct chat_message *message = &messages[i - 1];
        if (message->role == CHAT_ASSISTANT && message->content.length > 0) {
            return message->content;
        }
    }
    return view_of(NULL, 0);
}

/* As the swarm keeps it: its beginning, whole characters. */
static struct view summary_of(const struct run *run) {
    struct view text = view_slice(run_last_text(run), 0, SWARM_SUMMARY_BYTES_MAX);
    return view_slice(text, 0, utf8_valid_prefix(text));
}

result run_record_node_end(struct run *run, struct error *error) {
    const struct agent *agent = run->agent;
    enum swarm_end how = run_end_of(agent_stop(agent));
    struct view detail = view_of_text(agent_stop_detail(agent));
    bool is_cut = how == SWARM_END_CANCEL;
    const struct session_node_end end = {
        .ending = view_of_text(run_end_name(how)),
        .cut = is_cut ? detail : view_of(NULL, 0),
        .summary = summary_of(run),
        .detail = is_cut ? view_of(NULL, 0) : detail,
        .turns = agent_turns(agent),
        .tokens = agent_tokens_sampled(agent),
        .calls = agent_calls(agent),
    };
    return recorder_node_end(&run->recorder, &end, error);
}

const struct session_id *run_agent(const struct run *run) {
    return &run->recorder.agent;
}

enum swarm_end run_end_of(enum agent_stop stop) {
    static const enum swarm_end ends[] = {
        [AGENT_GOES_ON] = SWARM_END_FAULT,       [AGENT_STOP_ANSWER] = SWARM_END_ANSWER,
        [AGENT_STOP_FINISH] = SWARM_END_ANSWER,  [AGENT_STOP_STRING] = SWARM_END_ANSWER,
        [AGENT_STOP_TURNS] = SWARM_END_BUDGET,   [AGENT_STOP_TOKENS] = SWARM_END_BUDGET,
        [AGENT_STOP_TIME] = SWARM_END_BUDGET,    [AGENT_STOP_CALLS] = SWARM_END_BUDGET,
        [AGENT_STOP_LENGTH] = SWARM_END_BUDGET,  [AGENT_STOP_CONTEXT] = SWARM_END_BUDGET,
        [AGENT_STOP_REPEAT] = SWARM_END_FAULT,   [AGENT_STOP_UNKNOWN] = SWARM_END_FAULT,
        [AGENT_STOP_GARBAGE] = SWARM_END_FAULT,  [AGENT_STOP_LOOP] = SWARM_END_FAULT,
        [AGENT_STOP_THINKING] = SWARM_END_FAULT, [AGENT_STOP_OPEN_CALL] = SWARM_END_FAULT,
        [AGENT_STOP_ENGINE] = SWARM_END_FAULT,   [AGENT_STOP_RECORD] = SWARM_END_FAULT,
        [AGENT_STOP_TOOL] = SWARM_END_FAULT,     [AGENT_STOP_INTERRUPT] = SWARM_END_CANCEL,
        [AGENT_STOP_QUIT] = SWARM_END_CANCEL,
    };
    ASSERT((size_t)stop < COUNT_OF(ends));
    return ends[stop];
}

const char *run_end_name(enum swarm_end end) {
    static const char *const names[] = {
        [SWARM_END_ANSWER] = "answer",
        [SWARM_END_BUDGET] = "budget",
        [SWARM_END_FAULT] = "fault",
        [SWARM_END_CANCEL] = "cancel",
    };
    return names[end];
}

/* ---- generations beside runs ---------------------------------------------------------------- */

result loop_generate(
    struct loop *loop,
    struct loop_generation *generation,
    const struct generation_request *request,
    struct error *error
) {
    ASSERT(request->sequence == generation->sequence && generation->event != NULL);
    ASSERT(loop->shown == 0);
    TRY(generation->engine.generate(generation->engine.context, request, error));
    generation->next = loop->generations;
    loop->generations = generation;
    loop_keep(loop);
    return OK;
}

bool loop_generation_event(
    struct loop *loop, const void *engine, const struct engine_event *event
) {
    struct loop_generation **at = &loop->generations;
    while (*at != NULL && ((*at)->engine.context != engine || (*at)->sequence != event->sequence)) {
        at = &(*at)->next;
    }
    struct loop_generation *generation = *at;
    if (generation == NULL) {
        return false;
    }
    if (event->type == ENGINE_FINISHED) {
        *at = generation->next;
    }
    generation->event(generation->context, event);
    loop_keep(loop);
    return true;
}
