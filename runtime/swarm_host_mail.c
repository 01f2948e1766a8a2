/* What an agent is told between its turns: remarks of the host, and mail of other agents.
 *
 * A remark waits here until the run takes it. Mail is in the record before it is delivered: with the result
 * of the call that sent it. Until that is on the disk no other mail is sent, so that the record's order is
 * that of the swarm, and the remark that delivers it waits. See swarm_host_internal.h.
 */
#include "swarm_host_internal.h"

static struct host_mail *find(const struct swarm_host *host, uint64_t number) {
    struct host_mail *mail = host->mail;
    while (mail != NULL && mail->number != number) {
        mail = mail->next;
    }
    return mail;
}

static void forget(struct swarm_host *host, struct host_mail *mail) {
    struct host_mail **at = &host->mail;
    while (*at != mail) {
        ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = mail->next;
    buffer_deinit(&mail->text);
    free(mail);
}

void host_mail_deinit(struct swarm_host *host) {
    while (host->mail != NULL) {
        forget(host, host->mail);
    }
}

/* ---- sending ----------------------------------------------------------------------------------- */

/* The record has it, or never will. */
static void settle(struct host_mail *mail) {
    struct swarm_host *host = mail->host;
    struct host_node *reader = &host->nodes[mail->to];
    struct host_node *sender = &host->nodes[mail->from];
    ASSERT(host->mail_under_way == mail);
    mail->is_settled = true;
    host->mail_under_way = NULL;
    host_remarks_flush(reader);
    host_remarks_flush(sender);
    host_ask_again(host);
    host_go_on(host);
}

static void recorded_came(void *context) {
    settle(context);
}

result host_mail_sent(struct host_node *from, uint64_t message, struct error *error) {
    struct swarm_host *host = from->host;
    struct swarm_message told;
    bool is_there = swarm_message(host->swarm, message, &told);
    ASSERT(is_there && host->mail_under_way == NULL && from->sending == NULL);
    struct host_mail *mail = calloc(1, sizeof *mail);
    if (mail == NULL) {
        FAIL(error, MEMORY, "no memory to record a message");
    }
    buffer_init(&mail->text, SWARM_MESSAGE_BYTES_MAX);
    result copied = buffer_append(&mail->text, told.text, error);
    if (is_failed(copied)) {
        free(mail);
        return copied;
    }
    mail->host = host;
    mail->number = message;
    mail->from = told.from;
    mail->to = told.to;
    mail->from_agent = from->agent;
    mail->to_agent = host->nodes[told.to].agent;
    mail->next = host->mail;
    host->mail = mail;
    host->mail_under_way = mail;
    from->sending = mail;
    return OK;
}

/* Thread: the recorder's worker, while the loop leaves node->sending alone. */
static result append(void *context, const struct run_called *called, struct error *error) {
    const struct host_node *node = context;
    struct host_mail *mail = node->sending;
    if (mail == NULL) {
        return OK;
    }
    const struct session_mail_begin begin = {
        .from = mail->from_agent, .to = mail->to_agent, .text = buffer_view(&mail->text)};
    return session_mail_send(called->store, &begin, &mail->key, error);
}

static void recorded(void *context, const struct run_called *called, result appended) {
    struct host_node *node = context;
    struct host_mail *mail = node->sending;
    (void)called;
    if (mail == NULL) {
        return;
    }
    node->sending = NULL;
    mail->key = is_ok(appended) ? mail->key : 0;
    mail->post = (struct loop_job){.done = recorded_came, .context = mail};
    loop_job_post(mail->host->loop, &mail->post);
}

const struct run_call_hook host_mail_hook = {.append = append, .recorded = recorded};

/* ---- remarks ----------------------------------------------------------------------------------- */

static void remark_free(struct host_remark *remark) {
    buffer_deinit(&remark->text);
    free(remark);
}

bool host_has_delivery(const struct host_node *node) {
    bool has_delivery = false;
    bool waits = false;
    for (const struct host_remark *at = node->remarks; at != NULL; at = at->next) {
        const struct host_mail *mail = at->message != 0 ? find(node->host, at->message) : NULL;
        has_delivery = has_delivery || (at->message != 0 && !at->is_return);
        waits = waits || (mail != NULL && !mail->is_settled);
    }
    return has_delivery && waits;
}

/* False: the run does not take it now, or it has to wait for its mail. */
static bool give(struct host_node *node, const struct host_remark *remark) {
    struct swarm_host *host = node->host;
    struct host_mail *mail = remark->message != 0 ? find(host, remark->message) : NULL;
    struct run_remark given = {.text = buffer_view(&remark->text)};
    if (mail != NULL && !mail->is_settled) {
        return false;
    }
    if (mail != NULL && !remark->is_return) {
        given.delivers = mail->key;
    } else if (mail != NULL && host->nodes[mail->to].run == NULL) {
        given.returns = mail->key; /* it bounced in the record with the end of that run */
    }
    if (node->given_count == COUNT_OF(node->given) || !run_remark(node->run, &given)) {
        return false;
    }
    size_t last = (node->given_first + node->given_count) % COUNT_OF(node->given);
    node->given[last] = remark->is_return ? 0 : remark->message;
    node->given_count++;
    if (mail != NULL && remark->is_return) {
        forget(host, mail);
    }
    return true;
}

void host_remarks_flush(struct host_node *node) {
    while (node->run != NULL && node->remarks != NULL && give(node, node->remarks)) {
        struct host_remark *taken = node->remarks;
        node->remarks = taken->next;
        remark_free(taken);
    }
    if (!host_has_delivery(node)) {
        host_release_answer(node);
    }
}

static struct host_remark *add(struct host_node *node, uint64_t message, bool is_return) {
    struct host_remark *remark = calloc(1, sizeof *remark);
    if (remark == NULL) {
        return NULL;
    }
    buffer_init(&remark->text, AGENT_REMARKS_BYTES_MAX);
    remark->message = message;
    remark->is_return = is_return;
    struct host_remark **end = &node->remarks;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = remark;
    return remark;
}

static void drop_last(struct host_node *node) {
    struct host_remark **at = &node->remarks;
    while ((*at)->next != NULL) {
        at = &(*at)->next;
    }
    remark_free(*at);
    *at = NULL;
}

void host_tell(struct host_node *node, const struct swarm_effect *effect) {
    struct swarm_host *host = node->host;
    bool is_bounce = effect->tell == SWARM_TELL_BOUNCED;
    if (effect->tell == SWARM_TELL_WRAP_UP && !host->options.has_notes) {
        return; /* its limits end it */
    }
    struct host_remark *remark = add(node, is_bounce ? effect->message : 0, is_bounce);
    if (remark == NULL) {
        return; /* without memory it goes on without */
    }
    int64_t now_ms = swarm_host_now_ms(host);
    if (is_failed(swarm_tell_text(host->swarm, effect, now_ms, &remark->text, NULL))) {
        drop_last(node);
    }
    host_remarks_flush(node);
}

static result write_message(const struct swarm_host *host, uint64_t number, struct buffer *out) {
    struct swarm_message message;
    bool is_there = swarm_message(host->swarm, number, &message);
    ASSERT(is_there);
    const char *name = swarm_node(host->swarm, message.from)->name;
    TRY(buffer_append_format(out, NULL, "Message from %s:\n", name));
    return buffer_append(out, message.text, NULL);
}

void host_deliver(struct host_node *node, const struct swarm_effect *effect) {
    struct host_remark *remark = add(node, effect->message, false);
    bool is_made =
        remark != NULL && is_ok(write_message(node->host, effect->message, &remark->text));
    if (remark != NULL && !is_made) {
        drop_last(node);
    }
    if (is_made) {
        host_remarks_flush(node);
    } else if (node->run != NULL) { /* the message bounces with its end */
        run_cancel(node->run, "no memory for a message");
    }
}

void host_given(struct host_node *node, size_t count) {
    struct swarm_host *host = node->host;
    for (size_t i = 0; i < count; i++) {
        ASSERT(node->given_count > 0);
        uint64_t message = node->given[node->given_first];
        node->given_first = (node->given_first + 1) % COUNT_OF(node->given);
        node->given_count--;
        struct host_mail *mail = message != 0 ? find(host, message) : NULL;
        if (mail != NULL) {
            forget(host, mail);
        }
        if (message != 0) {
            const struct swarm_event event = {
                .type = SWARM_DELIVERED, .node = node->index, .message = message};
            host_event(host, &event);
        }
    }
    host_remarks_flush(node);
}

void host_remarks_drop(struct host_node *node) {
    while (node->remarks != NULL) {
        struct host_remark *first = node->remarks;
        node->remarks = first->next;
        remark_free(first);
    }
}

void host_mail_end(struct host_node *node) {
    host_remarks_drop(node);
    node->given_count = 0;
    node->has_held = false;
    struct host_mail *mail = node->sending;
    node->sending = NULL;
    if (mail != NULL) { /* its call was never recorded */
        settle(mail);
    }
}
