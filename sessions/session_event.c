/* Records as JSON (version SESSION_EVENT_VERSION), for `hearth sessions show --json` and the like.
 *
 * Names are the fields of session.h. Absent facts are left out rather than written as null or "".
 */
#include "session_event.h"
#include "session_swarm.h"

const char *session_status_name(enum session_status status) {
    static const char *const names[] = {"running", "done", "failed", "stopped", "interrupted"};
    ASSERT((size_t)status < COUNT_OF(names));
    return names[status];
}

const char *session_call_status_name(enum session_call_status status) {
    static const char *const names[] = {
        "started", "ok", "error", "timeout", "cancelled", "refused", "interrupted"};
    ASSERT((size_t)status < COUNT_OF(names));
    return names[status];
}

const char *session_run_kind_name(enum session_run_kind kind) {
    static const char *const names[] = {"prompt", "output"};
    ASSERT((size_t)kind < COUNT_OF(names));
    return names[kind];
}

/* Raw bytes of a model or a command as a string. Strict readers, ours among them, refuse U+0000, so
 * it becomes U+FFFD like other bytes that are no text. */
void event_write_bytes(struct json_writer *writer, const char *name, struct view bytes) {
    json_write_key(writer, name);
    if (bytes.length == 0 || memchr(bytes.data, 0, bytes.length) == NULL) {
        json_write_string(writer, bytes);
        return;
    }
    CLEANUP(buffer_deinit) struct buffer clean = {NULL, 0, 0, 0};
    buffer_init(&clean, 4 * SESSION_TEXT_BYTES_MAX);
    result status = OK;
    for (size_t i = 0; i < bytes.length && is_ok(status); i++) {
        status = bytes.data[i] == 0 ? buffer_append_text(&clean, "\xEF\xBF\xBD", writer->error)
                                    : buffer_append_byte(&clean, bytes.data[i], writer->error);
    }
    if (is_failed(status) && is_ok(writer->status)) {
        writer->status = status;
    }
    json_write_string(writer, buffer_view(&clean));
}

void event_write_text(struct json_writer *writer, const char *name, struct view text) {
    if (text.length > 0) {
        event_write_bytes(writer, name, text);
    }
}

void event_write_i64(struct json_writer *writer, const char *name, int64_t value) {
    json_write_key(writer, name);
    json_write_i64(writer, value);
}

void event_write_name(struct json_writer *writer, const char *name, const char *value) {
    json_write_key(writer, name);
    json_write_text(writer, value);
}

/* JSON text that a model wrote goes in as JSON when it is JSON, and as a string when it is not. */
void event_write_json_text(struct json_writer *writer, const char *name, struct view text) {
    if (text.length == 0) {
        return;
    }
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    // Depth stays below the reader's limit with the levels around it.
    const struct json_limits limits = {0, 0, 32};
    result status = json_parse(text, &limits, &document, writer->error);
    if (is_ok(status)) {
        json_write_key(writer, name);
        json_write_raw(writer, json_raw(json_root(document)));
    } else if (status.code == RESULT_MEMORY && is_ok(writer->status)) {
        writer->status = status;
    } else {
        event_write_bytes(writer, name, text);
    }
}

static void write_sampler(struct json_writer *writer, const struct session_sampler *sampler) {
    json_write_key(writer, "sampler");
    json_write_object_begin(writer);
    json_write_key(writer, "seed");
    json_write_u64(writer, sampler->seed);
    json_write_key(writer, "temperature");
    json_write_double(writer, sampler->temperature);
    json_write_key(writer, "top_p");
    json_write_double(writer, sampler->top_p);
    event_write_i64(writer, "effort", sampler->effort);
    event_write_json_text(writer, "settings", sampler->settings);
    json_write_object_end(writer);
}

static void write_usage(struct json_writer *writer, const struct session_usage *usage) {
    json_write_key(writer, "usage");
    json_write_object_begin(writer);
    event_write_i64(writer, "agents", usage->agents);
    event_write_i64(writer, "turns", usage->turns);
    event_write_i64(writer, "calls", usage->calls);
    event_write_i64(writer, "prompt_tokens", usage->prompt_tokens);
    event_write_i64(writer, "evaluated_tokens", usage->evaluated_tokens);
    event_write_i64(writer, "reused_tokens", usage->reused_tokens);
    event_write_i64(writer, "rebuilt_tokens", usage->rebuilt_tokens);
    event_write_i64(writer, "output_tokens", usage->output_tokens);
    event_write_i64(writer, "drafted", usage->drafted);
    event_write_i64(writer, "accepted", usage->accepted);
    event_write_i64(writer, "prefill_ms", usage->prefill_ms);
    event_write_i64(writer, "decode_ms", usage->decode_ms);
    event_write_i64(writer, "tools_ms", usage->tools_ms);
    json_write_object_end(writer);
}

static void
write_summary_members(struct json_writer *writer, const struct session_summary *summary) {
    const struct session_begin *begin = &summary->begin;
    event_write_i64(writer, "version", SESSION_EVENT_VERSION);
    event_write_name(writer, "id", summary->id.text);
    event_write_name(writer, "status", session_status_name(summary->status));
    event_write_text(writer, "task", begin->task);
    event_write_i64(writer, "created_ms", summary->created_ms);
    if (summary->ended_ms != 0) {
        event_write_i64(writer, "ended_ms", summary->ended_ms);
    }
    if (summary->status != SESSION_RUNNING && summary->status != SESSION_INTERRUPTED) {
        event_write_i64(writer, "exit_status", summary->exit_status);
    }
    event_write_text(writer, "verdict", summary->verdict);
    event_write_text(writer, "stop_reason", summary->stop_reason);
    event_write_text(writer, "workspace", begin->workspace);
    event_write_text(writer, "worktree_of", begin->worktree_of);
    event_write_text(writer, "commit_before", begin->commit_before);
    event_write_text(writer, "commit_after", summary->commit_after);
    event_write_text(writer, "model", begin->model);
    event_write_text(writer, "model_digest", begin->model_digest);
    event_write_text(writer, "backend", begin->backend);
    event_write_text(writer, "numerics_version", begin->numerics_version);
    event_write_text(writer, "program_version", begin->program_version);
    event_write_text(writer, "window_mode", begin->window_mode);
    write_sampler(writer, &begin->sampler);
    event_write_i64(writer, "time_ms_max", begin->time_ms_max);
    event_write_i64(writer, "tokens_max", begin->tokens_max);
    write_usage(writer, &summary->usage);
}

void session_summary_write(struct json_writer *writer, const struct session_summary *summary) {
    json_write_object_begin(writer);
    write_summary_members(writer, summary);
    json_write_object_end(writer);
}

static void write_message(struct json_writer *writer, const struct session_message *message) {
    json_write_object_begin(writer);
    event_write_text(writer, "role", message->role);
    event_write_bytes(writer, "text", message->text);
    event_write_text(writer, "reasoning", message->reasoning);
    event_write_json_text(writer, "calls", message->calls);
    if (message->call != 0) {
        event_write_i64(writer, "call", message->call);
    }
    event_write_i64(writer, "created_ms", message->created_ms);
    json_write_object_end(writer);
}

static void write_run(struct json_writer *writer, const struct session_run *run) {
    json_write_object_begin(writer);
    event_write_name(writer, "kind", session_run_kind_name(run->kind));
    event_write_i64(writer, "position", run->position);
    event_write_i64(writer, "count", (int64_t)run->count);
    if (run->ids != NULL) {
        json_write_key(writer, "ids");
        json_write_array_begin(writer);
        for (size_t i = 0; i < run->count; i++) {
            json_write_i64(writer, run->ids[i]);
        }
        json_write_array_end(writer);
    }
    if (run->log_probabilities != NULL) {
        json_write_key(writer, "log_probabilities");
        json_write_array_begin(writer);
        for (size_t i = 0; i < run->count; i++) {
            json_write_double(writer, (double)run->log_probabilities[i]);
        }
        json_write_array_end(writer);
    }
    json_write_object_end(writer);
}

static void write_call(struct json_writer *writer, const struct session_call *call) {
    json_write_object_begin(writer);
    event_write_i64(writer, "number", call->number);
    event_write_bytes(writer, "name", call->name);
    event_write_json_text(writer, "arguments", call->arguments);
    event_write_name(writer, "status", session_call_status_name(call->status));
    if (call->has_exit_status) {
        event_write_i64(writer, "exit_status", call->exit_status);
    }
    event_write_bytes(writer, "text", call->text);
    json_write_key(writer, "text_is_truncated");
    json_write_bool(writer, call->text_is_truncated);
    json_write_key(writer, "output_bytes");
    json_write_u64(writer, call->output_bytes);
    if (call->output_gap_at != 0) {
        json_write_key(writer, "output_gap_at");
        json_write_u64(writer, call->output_gap_at);
    }
    event_write_text(writer, "output", call->output);
    event_write_i64(writer, "started_ms", call->started_ms);
    if (call->ended_ms != 0) {
        event_write_i64(writer, "ended_ms", call->ended_ms);
        event_write_i64(writer, "duration_ms", call->duration_ms);
    }
    event_write_text(writer, "commit_before", call->commit_before);
    event_write_text(writer, "commit_after", call->commit_after);
    json_write_object_end(writer);
}

static void write_turn_end(struct json_writer *writer, const struct session_turn *turn) {
    const struct session_turn_end *end = &turn->end;
    const struct session_cache_facts *cache = &end->cache;
    event_write_i64(writer, "ended_ms", turn->ended_ms);
    event_write_text(writer, "stop_reason", end->stop_reason);
    event_write_text(writer, "stop_detail", end->stop_detail);
    event_write_i64(writer, "output_tokens", end->output_tokens);
    event_write_i64(writer, "drafted", end->drafted);
    event_write_i64(writer, "accepted", end->accepted);
    event_write_i64(writer, "preempted", end->preempted);
    if (end->fork_index >= 0) {
        json_write_key(writer, "parent_seed");
        json_write_u64(writer, end->parent_seed);
        event_write_i64(writer, "fork_index", end->fork_index);
    }
    event_write_i64(writer, "prefill_ms", end->prefill_ms);
    event_write_i64(writer, "decode_ms", end->decode_ms);
    write_sampler(writer, &end->sampler);
    json_write_key(writer, "cache");
    json_write_object_begin(writer);
    event_write_i64(writer, "prompt_tokens", cache->prompt_tokens);
    event_write_i64(writer, "evaluated_tokens", cache->evaluated_tokens);
    event_write_i64(writer, "reused_tokens", cache->reused_tokens);
    event_write_i64(writer, "rebuilt_tokens", cache->rebuilt_tokens);
    event_write_i64(writer, "hit_position", cache->hit_position);
    event_write_i64(writer, "restored_host", cache->restored_host);
    event_write_i64(writer, "restored_disk", cache->restored_disk);
    if (cache->miss_reason.length > 0) {
        event_write_text(writer, "miss_reason", cache->miss_reason);
        event_write_i64(writer, "miss_token", cache->miss_token);
    }
    event_write_text(writer, "window_source", cache->window_source);
    event_write_i64(writer, "rebuilt_from", cache->rebuilt_from);
    event_write_text(writer, "replays", cache->replays);
    event_write_text(writer, "lineage", cache->lineage);
    event_write_text(writer, "block_lineage", cache->block_lineage);
    event_write_text(writer, "decoder_lineage", cache->decoder_lineage);
    event_write_text(writer, "backend", cache->backend);
    event_write_text(writer, "numerics_version", cache->numerics_version);
    json_write_object_end(writer);
}

/* Only where it is set. */
void event_write_flag(struct json_writer *writer, const char *name, bool value) {
    if (value) {
        json_write_key(writer, name);
        json_write_bool(writer, true);
    }
}

static void
write_compaction(struct json_writer *writer, const struct session_compaction *compaction) {
    json_write_key(writer, "compaction");
    json_write_object_begin(writer);
    event_write_i64(writer, "compacted_ms", compaction->compacted_ms);
    event_write_i64(writer, "tokens_before", compaction->tokens_before);
    event_write_i64(writer, "tokens_after", compaction->tokens_after);
    event_write_i64(writer, "pruned", compaction->pruned);
    event_write_text(writer, "summary", compaction->summary);
    json_write_object_end(writer);
}

static void write_turn(struct json_writer *writer, const struct session_turn *turn) {
    json_write_object_begin(writer);
    event_write_i64(writer, "number", turn->number);
    event_write_i64(writer, "index", turn->index);
    event_write_flag(writer, "is_inherited", turn->is_inherited);
    event_write_flag(writer, "is_rewound", turn->is_rewound);
    event_write_i64(writer, "started_ms", turn->started_ms);
    json_write_key(writer, "is_finished");
    json_write_bool(writer, turn->is_finished);
    if (turn->is_finished) {
        write_turn_end(writer, turn);
    }
    if (turn->compaction != NULL) {
        write_compaction(writer, turn->compaction);
    }
    json_write_key(writer, "messages");
    json_write_array_begin(writer);
    for (size_t i = 0; i < turn->message_count; i++) {
        write_message(writer, &turn->messages[i]);
    }
    json_write_array_end(writer);
    json_write_key(writer, "calls");
    json_write_array_begin(writer);
    for (size_t i = 0; i < turn->call_count; i++) {
        write_call(writer, &turn->calls[i]);
    }
    json_write_array_end(writer);
    json_write_key(writer, "token_runs");
    json_write_array_begin(writer);
    for (size_t i = 0; i < turn->run_count; i++) {
        write_run(writer, &turn->runs[i]);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
}

static void write_rewinds(struct json_writer *writer, const struct session_agent *agent) {
    json_write_key(writer, "rewinds");
    json_write_array_begin(writer);
    for (size_t i = 0; i < agent->rewind_count; i++) {
        const struct session_rewound *rewound = &agent->rewinds[i];
        json_write_object_begin(writer);
        event_write_i64(writer, "rewound_ms", rewound->rewound_ms);
        if (rewound->index != SESSION_REWIND_WORKSPACE_ONLY) {
            event_write_i64(writer, "index", rewound->index);
        }
        event_write_text(writer, "commit_before", rewound->commit_before);
        event_write_text(writer, "commit_after", rewound->commit_after);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void write_decision(struct json_writer *writer, const struct session_decision *decision) {
    json_write_object_begin(writer);
    if (decision->turn != 0) {
        event_write_i64(writer, "turn", decision->turn);
    }
    if (decision->call != 0) {
        event_write_i64(writer, "call", decision->call);
    }
    event_write_i64(writer, "decided_ms", decision->decided_ms);
    json_write_key(writer, "is_allowed");
    json_write_bool(writer, decision->is_allowed);
    event_write_text(writer, "kind", decision->kind);
    event_write_text(writer, "subject", decision->subject);
    event_write_text(writer, "decider", decision->decider);
    event_write_text(writer, "rule", decision->rule);
    event_write_text(writer, "reason", decision->reason);
    json_write_object_end(writer);
}

static void write_agent(struct json_writer *writer, const struct session_agent *agent) {
    json_write_object_begin(writer);
    event_write_name(writer, "id", agent->id.text);
    event_write_text(writer, "parent", view_of_text(agent->parent.text));
    event_write_text(writer, "name", agent->name);
    event_write_json_text(writer, "tools", agent->tools);
    write_sampler(writer, &agent->sampler);
    event_write_i64(writer, "created_ms", agent->created_ms);
    if (agent->fork_of.text[0] != '\0') {
        event_write_name(writer, "fork_of", agent->fork_of.text);
        event_write_i64(writer, "fork_index", agent->fork_index);
    }
    if (agent->fork_of.text[0] != '\0' && agent->fork_messages >= 0) {
        event_write_i64(writer, "fork_messages", agent->fork_messages);
    }
    if (agent->node != NULL) {
        event_write_node(writer, agent->node);
    }
    if (agent->rewind_count > 0) {
        write_rewinds(writer, agent);
    }
    json_write_key(writer, "turns");
    json_write_array_begin(writer);
    for (size_t i = 0; i < agent->turn_count; i++) {
        write_turn(writer, &agent->turns[i]);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
}

static void
write_resumption(struct json_writer *writer, const struct session_resumption *resumption) {
    json_write_object_begin(writer);
    event_write_i64(writer, "resumed_ms", resumption->resumed_ms);
    event_write_i64(writer, "turns_before", resumption->turns_before);
    event_write_text(writer, "backend", resumption->begin.backend);
    event_write_text(writer, "numerics_version", resumption->begin.numerics_version);
    event_write_text(writer, "program_version", resumption->begin.program_version);
    event_write_text(writer, "commit_before", resumption->begin.commit_before);
    event_write_name(writer, "status", session_status_name(resumption->status));
    if (resumption->ended_ms != 0) {
        event_write_i64(writer, "ended_ms", resumption->ended_ms);
    }
    if (resumption->status != SESSION_INTERRUPTED) {
        event_write_i64(writer, "exit_status", resumption->exit_status);
    }
    event_write_text(writer, "verdict", resumption->verdict);
    event_write_text(writer, "stop_reason", resumption->stop_reason);
    event_write_text(writer, "commit_after", resumption->commit_after);
    json_write_object_end(writer);
}

void session_tree_write(struct json_writer *writer, const struct session_tree *tree) {
    json_write_object_begin(writer);
    write_summary_members(writer, &tree->session);
    if (tree->resumption_count > 0) {
        json_write_key(writer, "resumptions");
        json_write_array_begin(writer);
        for (size_t i = 0; i < tree->resumption_count; i++) {
            write_resumption(writer, &tree->resumptions[i]);
        }
        json_write_array_end(writer);
    }
    if (tree->decision_count > 0) {
        json_write_key(writer, "decisions");
        json_write_array_begin(writer);
        for (size_t i = 0; i < tree->decision_count; i++) {
            write_decision(writer, &tree->decisions[i]);
        }
        json_write_array_end(writer);
    }
    event_write_swarms(writer, tree);
    event_write_mail(writer, tree);
    json_write_key(writer, "agents");
    json_write_array_begin(writer);
    for (size_t i = 0; i < tree->agent_count; i++) {
        write_agent(writer, &tree->agents[i]);
    }
    json_write_array_end(writer);
    json_write_object_end(writer);
}
