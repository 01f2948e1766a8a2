/* Swarms, nodes and mail as JSON; see session_event.c. */
#include "session_event.h"
#include "session_swarm.h"

const char *session_mail_state_name(enum session_mail_state state) {
    static const char *const names[] = {"waits", "delivered", "bounced"};
    ASSERT((size_t)state < COUNT_OF(names));
    return names[state];
}

static void write_limit(struct json_writer *writer, const char *name, int64_t value) {
    if (value != SESSION_NO_LIMIT) {
        event_write_i64(writer, name, value);
    }
}

/* What has no limit is left out. */
static void write_share(struct json_writer *writer, const struct session_share *share) {
    json_write_key(writer, "share");
    json_write_object_begin(writer);
    write_limit(writer, "deadline_ms", share->deadline_ms);
    write_limit(writer, "tokens_max", share->tokens_max);
    write_limit(writer, "calls_max", share->calls_max);
    write_limit(writer, "processes_max", share->processes_max);
    write_limit(writer, "memory_bytes_max", share->memory_bytes_max);
    json_write_object_end(writer);
}

static void write_time(struct json_writer *writer, const char *name, int64_t milliseconds) {
    if (milliseconds != 0) {
        event_write_i64(writer, name, milliseconds);
    }
}

static void write_swarm(struct json_writer *writer, const struct session_swarm *swarm) {
    const struct session_swarm_begin *begin = &swarm->begin;
    json_write_object_begin(writer);
    event_write_i64(writer, "number", swarm->number);
    event_write_name(writer, "root", begin->root.text);
    event_write_text(writer, "strategy", begin->strategy);
    event_write_text(writer, "reason", begin->reason);
    event_write_text(writer, "verifier", begin->verifier);
    event_write_json_text(writer, "settings", begin->settings);
    json_write_key(writer, "seed");
    json_write_u64(writer, begin->seed);
    write_share(writer, &begin->share);
    event_write_i64(writer, "started_ms", swarm->started_ms);
    json_write_key(writer, "is_ended");
    json_write_bool(writer, swarm->is_ended);
    if (swarm->is_ended) {
        write_time(writer, "ended_ms", swarm->ended_ms);
        event_write_text(writer, "outcome", swarm->end.outcome);
        event_write_text(writer, "best", view_of_text(swarm->end.best.text));
        event_write_flag(writer, "is_merged", swarm->end.is_merged);
        event_write_text(writer, "commit_after", swarm->end.commit_after);
        event_write_text(writer, "why", swarm->end.why);
    }
    json_write_object_end(writer);
}

void event_write_swarms(struct json_writer *writer, const struct session_tree *tree) {
    if (tree->swarm_count == 0) {
        return;
    }
    json_write_key(writer, "swarms");
    json_write_array_begin(writer);
    for (size_t i = 0; i < tree->swarm_count; i++) {
        write_swarm(writer, &tree->swarms[i]);
    }
    json_write_array_end(writer);
}

void event_write_mail(struct json_writer *writer, const struct session_tree *tree) {
    if (tree->mail_count == 0) {
        return;
    }
    json_write_key(writer, "mail");
    json_write_array_begin(writer);
    for (size_t i = 0; i < tree->mail_count; i++) {
        const struct session_mail *mail = &tree->mail[i];
        json_write_object_begin(writer);
        event_write_i64(writer, "number", mail->number);
        event_write_name(writer, "from", mail->from.text);
        event_write_name(writer, "to", mail->to.text);
        event_write_bytes(writer, "text", mail->text);
        event_write_i64(writer, "sent_ms", mail->sent_ms);
        event_write_name(writer, "state", session_mail_state_name(mail->state));
        write_time(writer, "settled_ms", mail->settled_ms);
        if (mail->turn != 0) {
            event_write_i64(writer, "turn", mail->turn);
        }
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void write_node_end(struct json_writer *writer, const struct session_node *node) {
    const struct session_node_end *end = &node->end;
    write_time(writer, "ended_ms", node->ended_ms);
    event_write_text(writer, "ending", end->ending);
    event_write_text(writer, "cut", end->cut);
    event_write_text(writer, "outcome", end->outcome);
    event_write_text(writer, "verdict", node->verdict);
    if (node->has_score) {
        json_write_key(writer, "score");
        json_write_double(writer, node->score);
    }
    event_write_text(writer, "summary", end->summary);
    event_write_text(writer, "detail", end->detail);
    event_write_text(writer, "commit_after", end->commit_after);
    event_write_i64(writer, "changed_lines", end->changed_lines);
    event_write_i64(writer, "turns", end->turns);
    event_write_i64(writer, "tokens", end->tokens);
    event_write_i64(writer, "calls", end->calls);
    event_write_text(writer, "merged_into", view_of_text(node->merged_into.text));
    event_write_text(writer, "merge_commit", node->merge_commit);
    event_write_text(writer, "conflicts", node->conflicts);
}

void event_write_node(struct json_writer *writer, const struct session_node *node) {
    json_write_key(writer, "node");
    json_write_object_begin(writer);
    event_write_i64(writer, "swarm", node->swarm);
    event_write_text(writer, "kind", node->kind);
    event_write_text(writer, "brief", node->brief);
    event_write_text(writer, "workspace", node->workspace);
    event_write_text(writer, "commit_before", node->commit_before);
    event_write_i64(writer, "effort", node->effort);
    write_share(writer, &node->share);
    json_write_key(writer, "is_ended");
    json_write_bool(writer, node->is_ended);
    if (node->is_ended) {
        write_node_end(writer, node);
    }
    json_write_object_end(writer);
}
