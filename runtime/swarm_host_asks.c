/* What agents ask by their tools, on its way to the swarm, and the answers. See swarm_host_internal.h. */
#include "swarm_host_internal.h"

/* ---- forks ------------------------------------------------------------------------------------- */

static void base_release(struct swarm_host *host, struct host_base *base) {
    const struct engine_ports *engine = &host->options.run.engine;
    if (base == NULL || --base->references > 0) {
        return;
    }
    if (base->sequence != 0) {
        engine->destroy(engine->context, base->sequence);
    }
    chat_conversation_destroy(base->conversation);
    buffer_deinit(&base->call);
    free(base);
}

void host_node_drop_base(struct host_node *node) {
    base_release(node->host, node->base);
    node->base = NULL;
}

static result base_fill(struct host_base *base, const struct host_node *node, struct error *error) {
    const struct engine_ports *engine = &node->host->options.run.engine;
    struct run_prefix prefix;
    TRY(run_prefix_at_call(node->run, &prefix, error));
    TRY(chat_conversation_create(&base->conversation, error));
    for (size_t i = 0; i < prefix.message_count; i++) {
        TRY(chat_conversation_append(base->conversation, &prefix.messages[i], error));
    }
    TRY(buffer_append(&base->call, prefix.call, error));
    TRY(engine->fork(engine->context, prefix.sequence, &base->sequence, error));
    base->prefix = prefix;
    base->prefix.messages = chat_conversation_messages(base->conversation);
    base->prefix.call = buffer_view(&base->call);
    base->prefix.sequence = base->sequence;
    return OK;
}

/* The asker's context, kept as it is now: children may start when the asker has gone on. */
static result base_make(struct host_base **out, const struct host_node *node, struct error *error) {
    struct host_base *base = calloc(1, sizeof *base);
    if (base == NULL) {
        FAIL(error, MEMORY, "no memory for a fork");
    }
    base->references = 1;
    buffer_init(&base->call, 4096);
    result filled = base_fill(base, node, error);
    if (is_failed(filled)) {
        base_release(node->host, base);
        return filled;
    }
    *out = base;
    return OK;
}

void host_give_bases(struct swarm_host *host) {
    size_t count = swarm_node_count(host->swarm);
    for (size_t i = host->seen_count; i < count; i++) {
        const struct swarm_node *told = swarm_node(host->swarm, i);
        if (told->kind == SWARM_KIND_FORK && !told->is_order) {
            ASSERT(host->asked_base != NULL); /* only that call brings such nodes */
            host->nodes[i].base = host->asked_base;
            host->asked_base->references++;
        }
    }
    host->seen_count = count;
}

/* ---- questions --------------------------------------------------------------------------------- */

static void refuse(struct host_node *node, uint64_t number, const char *why) {
    char text[ERROR_MESSAGE_BYTES + 16];
    int length = snprintf(text, sizeof text, "Refused: %s", why);
    ASSERT(length > 0);
    const struct swarm_agents_answer answer = {
        .number = number, .status = TOOL_REFUSED, .text = view_of_text(text), .started = ""};
    swarm_agents_answer(node->agents, &answer);
}

static void put(struct host_node *node, const struct swarm_ask *ask) {
    host_event(
        node->host, &(struct swarm_event){.type = SWARM_ASKED, .node = node->index, .ask = ask}
    );
}

static void ask_fork(struct host_node *node, const struct swarm_ask *ask) {
    struct swarm_host *host = node->host;
    struct error error = {0};
    if (is_failed(base_make(&host->asked_base, node, &error))) {
        refuse(node, ask->number, error.message);
        return;
    }
    put(node, ask);
    base_release(host, host->asked_base);
    host->asked_base = NULL;
}

/* The record has mail only for agents that it knows. */
static bool has_unborn_reader(const struct host_node *node, const struct swarm_ask *ask) {
    const struct swarm *swarm = node->host->swarm;
    size_t reader = ask->name_count == 1 ? swarm_find(swarm, ask->names[0]) : SWARM_NONE;
    return reader != SWARM_NONE && reader != SWARM_ROOT &&
           swarm_node(swarm, reader)->state != SWARM_ENDED && !node->host->nodes[reader].is_begun;
}

bool host_asked(void *context, const struct swarm_ask *ask) {
    struct host_node *node = context;
    node->has_put_off = false;
    if (node->run == NULL || !node->is_begun) {
        refuse(node, ask->number, "this agent is not at work any more");
    } else if (ask->type == SWARM_ASK_SEND && has_unborn_reader(node, ask)) {
        refuse(node, ask->number, "that agent has not begun yet: send it later");
    } else if (ask->type == SWARM_ASK_SEND && node->host->mail_under_way != NULL) {
        node->has_put_off = true; /* the record has mail in the order in which it was sent */
        return false;
    } else if (ask->type == SWARM_ASK_FORK) {
        ask_fork(node, ask);
    } else {
        put(node, ask);
    }
    return true;
}

void host_ask_again(struct swarm_host *host) {
    for (size_t i = 1; i < host->node_count && host->mail_under_way == NULL; i++) {
        struct host_node *node = &host->nodes[i];
        if (node->has_put_off && node->agents != NULL) {
            swarm_agents_ask_again(node->agents);
        }
    }
}

/* ---- answers ----------------------------------------------------------------------------------- */

static enum tool_status status_of(enum swarm_answer answer) {
    return answer == SWARM_ANSWER_REFUSED                                     ? TOOL_REFUSED
           : answer == SWARM_ANSWER_CONFLICTS || answer == SWARM_ANSWER_STUCK ? TOOL_ERROR
                                                                              : TOOL_OK;
}

static void say_message(struct host_node *node, uint64_t number) {
    struct swarm_host *host = node->host;
    struct swarm_message message;
    if (swarm_message(host->swarm, number, &message)) {
        host->totals.messages++;
        const struct swarm_host_event event = {
            .type = SWARM_HOST_MESSAGE,
            .node = message.from,
            .other = message.to,
            .text = message.text,
        };
        host_show(host, &event);
    }
}

void host_answer(struct host_node *node, const struct swarm_effect *effect) {
    struct swarm_host *host = node->host;
    if (node->agents == NULL) {
        return;
    }
    bool is_start = effect->answer == SWARM_ANSWER_STARTED && effect->node_count == 1;
    buffer_clear(&node->held_text);
    result made = swarm_answer_text(host->swarm, effect, &node->held_text, NULL);
    node->held = (struct swarm_agents_answer){
        .number = effect->ask,
        .status = is_ok(made) ? status_of(effect->answer) : TOOL_ERROR,
        .text = buffer_view(&node->held_text),
        .started = is_start ? swarm_node(host->swarm, effect->nodes[0])->name : "",
    };
    if (effect->answer == SWARM_ANSWER_SENT) {
        struct error error = {0};
        say_message(node, effect->message);
        if (is_failed(host_mail_sent(node, effect->message, &error))) {
            host_say(host, SWARM_HOST_WARNING, "%s", error.message);
        }
    }
    /* "A message has come": it is there before the agent goes on. */
    node->has_held = effect->answer == SWARM_ANSWER_MESSAGE && host_has_delivery(node);
    if (!node->has_held) {
        swarm_agents_answer(node->agents, &node->held);
    }
}

void host_release_answer(struct host_node *node) {
    if (node->has_held && node->agents != NULL) {
        node->has_held = false;
        swarm_agents_answer(node->agents, &node->held);
    }
}
