/* Mail between nodes: each message is given to the host once, in order, and is either confirmed or
 * bounces to its sender. One at a time is on its way to a node, so that order does not depend on the
 * host. See swarm.h. */
#include "swarm_internal.h"

static size_t mail_of(const struct swarm *swarm, size_t node, size_t *out_count) {
    size_t first = SWARM_NONE;
    size_t count = 0;
    for (size_t i = 0; i < COUNT_OF(swarm->mail) && swarm->mail_count > 0; i++) {
        const struct swarm_mail *mail = &swarm->mail[i];
        if (mail->number == 0 || mail->to != node) {
            continue;
        }
        count++;
        if (first == SWARM_NONE || mail->number < swarm->mail[first].number) {
            first = i;
        }
    }
    *out_count = count;
    return first;
}

bool swarm_has_mail(const struct swarm *swarm, size_t node) {
    size_t count = 0;
    return mail_of(swarm, node, &count) != SWARM_NONE;
}

static void free_mail(struct swarm *swarm, struct swarm_mail *mail) {
    mail->number = 0;
    mail->is_sent = false;
    buffer_deinit(&mail->text);
    buffer_init(&mail->text, SWARM_MESSAGE_BYTES_MAX);
    swarm->mail_count--;
}

void swarm_deliver(struct swarm *swarm, size_t node) {
    const struct swarm_node *reader = &swarm->nodes[node];
    bool reads = reader->state == SWARM_RUNNING || reader->state == SWARM_WAITING;
    size_t count = 0;
    size_t first = mail_of(swarm, node, &count);
    if (!reads || reader->is_cancelling || first == SWARM_NONE || swarm->mail[first].is_sent) {
        return;
    }
    swarm->mail[first].is_sent = true;
    swarm_emit(swarm, SWARM_DO_DELIVER, node)->message = swarm->mail[first].number;
    if (swarm->insides[node].wait == SWARM_WAIT_MESSAGE ||
        swarm->insides[node].wait == SWARM_WAIT_NODES) {
        swarm_wait_ready(swarm, node, SWARM_ANSWER_MESSAGE);
    }
}

uint64_t swarm_send(struct swarm *swarm, size_t from, size_t to, struct view text) {
    size_t count = 0;
    mail_of(swarm, to, &count);
    if (text.length == 0 || text.length > SWARM_MESSAGE_BYTES_MAX || !utf8_is_valid(text)) {
        swarm_refuse(swarm, "a message has 1 to %zu bytes of UTF-8", SWARM_MESSAGE_BYTES_MAX);
        return 0;
    }
    if (count >= SWARM_MAILBOX_MAX || swarm->mail_count >= SWARM_MESSAGES_MAX) {
        swarm_refuse(
            swarm,
            "%s has %zu messages that it has not read yet: none is taken",
            swarm->nodes[to].name,
            count
        );
        return 0;
    }
    struct swarm_mail *mail = swarm->mail;
    while (mail->number != 0) {
        mail++; /* there is a free one, see above */
    }
    if (is_failed(buffer_append(&mail->text, text, NULL))) {
        swarm_refuse(swarm, "no memory for a message of %zu bytes", text.length);
        return 0;
    }
    mail->number = ++swarm->mail_number;
    mail->from = from;
    mail->to = to;
    swarm->mail_count++;
    return mail->number;
}

void swarm_delivered(struct swarm *swarm, size_t node, uint64_t message) {
    size_t count = 0;
    size_t first = mail_of(swarm, node, &count);
    if (first == SWARM_NONE || swarm->mail[first].number != message ||
        !swarm->mail[first].is_sent) {
        return;
    }
    free_mail(swarm, &swarm->mail[first]);
    swarm_deliver(swarm, node);
}

void swarm_bounce(struct swarm *swarm, size_t node) {
    size_t count = 0;
    for (size_t i = mail_of(swarm, node, &count); i != SWARM_NONE;
         i = mail_of(swarm, node, &count)) {
        struct swarm_mail *mail = &swarm->mail[i];
        const struct swarm_node *sender = &swarm->nodes[mail->from];
        bool hears = sender->state == SWARM_RUNNING || sender->state == SWARM_WAITING;
        if (hears && !sender->is_cancelling && swarm->phase == SWARM_PHASE_WORKS) {
            struct swarm_effect *effect = swarm_emit(swarm, SWARM_DO_TELL, mail->from);
            effect->tell = SWARM_TELL_BOUNCED;
            effect->about = node;
            effect->message = mail->number;
        }
        free_mail(swarm, mail);
    }
}
