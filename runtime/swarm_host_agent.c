/* A node's agent: its run, from what all have in common and what is its own, and what is heard of it. See
 * swarm_host_internal.h.
 */
#include "swarm_host_internal.h"

/* ---- what is heard ----------------------------------------------------------------------------- */

static void news_came(void *context) {
    struct host_node *node = context;
    struct swarm_host *host = node->host;
    bool has_begun = node->has_news_of_begin;
    node->is_posted = false;
    node->has_news_of_begin = false;
    node->is_begun = node->is_begun || has_begun;
    if (node->run == NULL) {
        host_go_on(host);
        return;
    }
    const struct swarm_event event = {
        .type = has_begun ? SWARM_NODE_STARTED : SWARM_HEARD, .node = node->index};
    host_event(host, &event);
}

/* Nothing may be done in the middle of an event. */
static void post_news(struct host_node *node) {
    if (!node->is_posted) {
        node->is_posted = true;
        node->news = (struct loop_job){.done = news_came, .context = node};
        loop_job_post(node->host->loop, &node->news);
    }
}

static void event_came(void *context, const struct run_event *event) {
    struct host_node *node = context;
    int64_t now_ms = swarm_host_now_ms(node->host);
    if (event->type == RUN_TOOL_CALL && node->limits_are_new) { /* it does not run yet */
        node->limits_are_new = false;
        swarm_work_limit(node->work, node->processes_max, node->memory_bytes_max);
    }
    if (event->type == RUN_SESSION) { /* now others can send it mail: the record knows whom for */
        node->agent = *run_agent(node->run);
        node->look.agent = node->agent;
        node->has_news_of_begin = true;
        post_news(node);
    } else if (now_ms - node->heard_ms >= HOST_HEARD_MS) {
        node->heard_ms = now_ms;
        post_news(node);
    }
    host_look_at_run(node, event);
}

static void given(void *context, size_t count) {
    struct host_node *node = context;
    host_given(node, count);
}

static void turned(void *context, const struct run_turned *turn) {
    struct host_node *node = context;
    const struct swarm_event event = {
        .type = SWARM_TURN_ENDED,
        .node = node->index,
        .tokens = turn->tokens - node->told_tokens,
        .calls = turn->calls - node->told_calls,
        .digest = turn->digest,
    };
    node->told_tokens = turn->tokens;
    node->told_calls = turn->calls;
    node->host->engine_faults = 0;
    host_remarks_flush(node);
    host_event(node->host, &event);
}

static void keep_words(struct host_node *node, const struct run_ended *end) {
    struct view text = view_slice(end->last_text, 0, SWARM_SUMMARY_BYTES_MAX);
    result kept = buffer_append(&node->summary, view_slice(text, 0, utf8_valid_prefix(text)), NULL);
    result_ignore(kept); /* without memory the record alone has it */
    enum swarm_end how = run_end_of(end->stop);
    if (how == SWARM_END_BUDGET || how == SWARM_END_FAULT) {
        kept = buffer_append_format(
            &node->detail,
            NULL,
            "%s%s%s",
            agent_stop_text(end->stop),
            end->detail[0] != '\0' ? ": " : "",
            end->detail
        );
        result_ignore(kept); /* as above */
    }
}

static void ended(void *context, const struct run_ended *end) {
    struct host_node *node = context;
    node->run = NULL;
    node->stop = end->stop;
    node->tokens = end->tokens;
    node->calls = end->calls;
    node->turns = end->turns;
    node->sequence = end->sequence;
    node->look.tokens = end->tokens;
    node->look.calls = end->calls;
    if (end->agent.text[0] != '\0') {
        node->agent = end->agent;
        node->look.agent = end->agent;
    }
    keep_words(node, end);
    host_mail_end(node);
    host_node_collect(node);
}

/* ---- what it is told --------------------------------------------------------------------------- */

void host_agent_tell_share(struct host_node *node) {
    node->share_is_new = true;
    if (node->run != NULL) {
        run_set_share(node->run, &node->share);
    }
}

/* The three no-limits are one number. */
struct session_share host_record_share(const struct host_node *node) {
    const struct clock *clock = &node->host->options.run.clock;
    int64_t deadline_ms = node->share.deadline_ms;
    if (deadline_ms != BUDGET_NO_LIMIT) { /* the record's clock is the wall's */
        deadline_ms += clock_wall_ms(clock) - clock_monotonic_ms(clock);
    }
    return (struct session_share){
        .deadline_ms = deadline_ms,
        .tokens_max = node->share.tokens_max,
        .calls_max = node->share.calls_max,
        .processes_max = node->processes_max,
        .memory_bytes_max = node->memory_bytes_max,
    };
}

/* Behind no prefix: its record is that of a spawned one. */
static bool is_alone(const struct host_node *node) {
    return node->host->options.shares_nothing && node->base == NULL;
}

void host_agent_begin(struct host_node *node, struct session_node_begin *out) {
    const struct swarm_host *host = node->host;
    const struct swarm_node *told = swarm_node(host->swarm, node->index);
    *out = (struct session_node_begin){
        .swarm = swarm_root_swarm(host->root),
        .agent =
            {.session = *swarm_root_session(host->root),
             .parent = host->nodes[told->parent].agent,
             .name = view_of_text(node->name),
             .sampler = {.effort = node->effort}},
        .kind = view_of_text(swarm_kind_name(is_alone(node) ? SWARM_KIND_SPAWN : told->kind)),
        .brief = buffer_view(&told->brief),
        .workspace = view_of_text(node->work != NULL ? swarm_work_directory(node->work) : ""),
        .share = host_record_share(node),
    };
}

/* What it goes on behind, and the first that it is told: the task, or the answer to the call of a fork. */
static result make_context(struct host_node *node, struct error *error) {
    struct swarm_host *host = node->host;
    int64_t now_ms = swarm_host_now_ms(host);
    if (node->base != NULL) {
        node->prefix = node->base->prefix;
    } else {
        swarm_root_prefix(host->root, &node->prefix);
    }
    buffer_clear(&node->first);
    bool has_notes = host->options.has_notes || node->base != NULL;
    TRY(swarm_start_text(host->swarm, node->index, now_ms, has_notes, &node->first, error));
    if (node->base != NULL) {
        node->prefix.answer = buffer_view(&node->first);
    }
    const struct engine_ports *engine = &host->options.run.engine;
    if (is_alone(node)) {
        return engine->create(engine->context, &node->sequence, error);
    }
    return engine->fork(engine->context, node->prefix.sequence, &node->sequence, error);
}

/* Its own in what all have in common. */
static void fill_options(struct host_node *node, struct run_options *out) {
    const struct swarm_host *host = node->host;
    const struct swarm_node *told = swarm_node(host->swarm, node->index);
    *out = host->options.run;
    out->is_interactive = false;
    out->input = NULL;
    out->preparation = NULL;
    out->models = NULL;
    out->resume = NULL;
    out->display = NULL;
    out->output = NULL;
    out->handles_signals = false;
    out->kill = NULL;
    out->channel = node->channel;
    out->sequence = node->sequence;
    out->sampling.seed = told->seed >> 11; /* 53 bits survive every JSON reader */
    out->tools = tool_ports_of(swarm_work_tools(node->work));
    out->permission = swarm_work_permission(node->work);
    out->hooks = swarm_work_hooks(node->work);
    out->workspace = swarm_work_workspace(node->work);
    out->node = &node->node;
    out->prefix = is_alone(node) ? NULL : &node->prefix;
    out->called = &node->hook;
    out->agent.task = node->base == NULL ? buffer_view(&node->first) : view_of(NULL, 0);
    out->agent.effort = node->effort;
    out->agent.is_interactive = false;
    out->agent.resume = NULL;
    out->agent.tokens_max = 0; /* these three are the share's */
    out->agent.time_ms_max = 0;
    out->agent.calls_max = 0;
    out->begin.sampler.effort = node->effort;
    out->begin.sampler.seed = out->sampling.seed;
}

result host_agent_start(struct host_node *node, struct error *error) {
    const struct run_listener listener = {
        .context = node,
        .event = event_came,
        .given = given,
        .turned = turned,
        .ended = ended,
    };
    struct run_options options;
    TRY(make_context(node, error));
    node->node.session = *swarm_root_session(node->host->root);
    host_agent_begin(node, &node->node.begin);
    node->hook = host_mail_hook;
    node->hook.context = node;
    fill_options(node, &options);
    TRY(loop_start(node->host->loop, &options, &listener, &node->run, error));
    run_set_share(node->run, &node->share);
    host_remarks_flush(node);
    return OK;
}
