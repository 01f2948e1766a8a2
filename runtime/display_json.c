/* One JSON object per event and line; the schema is in docs/json-events.md. */
#include "display.h"
#include "engine/tokenizer.h"

static void write_finite(struct json_writer *writer, const char *key, int64_t value) {
    json_write_key(writer, key);
    json_write_i64(writer, value);
}

static void write_text(struct json_writer *writer, const char *key, const char *text) {
    json_write_key(writer, key);
    json_write_text(writer, text);
}

static void write_view(struct json_writer *writer, const char *key, struct view text) {
    json_write_key(writer, key);
    json_write_string(writer, text);
}

static void write_seed(struct json_writer *writer, const char *key, uint64_t seed) {
    json_write_key(writer, key);
    json_write_u64(writer, seed);
}

static void write_token_of(
    struct json_writer *writer, const struct tokenizer *tokenizer, int32_t id, float logprob
) {
    struct view bytes = tokenizer_bytes(tokenizer, id);
    bool has_nul = bytes.length > 0 && memchr(bytes.data, 0, bytes.length) != NULL;
    write_finite(writer, "id", id);
    write_view(
        writer, "text", has_nul ? view_of_text("\xEF\xBF\xBD") : bytes
    ); /* readers refuse U+0000 */
    json_write_key(writer, "logprob");
    json_write_double(writer, (double)logprob);
}

static void write_token(struct json_writer *writer, const struct run_event *event) {
    const struct engine_event *token = event->token;
    write_token_of(writer, event->tokenizer, token->token, token->logprob);
    json_write_key(writer, "top");
    json_write_array_begin(writer);
    for (int32_t i = 0; i < token->alternative_count; i++) {
        const struct token_alternative *one = &token->alternatives[i];
        json_write_object_begin(writer);
        write_token_of(writer, event->tokenizer, one->id, one->logprob);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
}

static void
write_counts(struct json_writer *writer, const char *key, const struct engine_counts *counts) {
    const struct {
        const char *name;
        uint64_t value;
    } members[] = {
        {"queued", counts->queued},
        {"finished", counts->finished},
        {"prefill_rows", counts->prefill_rows},
        {"decode_rows", counts->decode_rows},
        {"reused", counts->reused},
        {"rebuilt", counts->rebuilt},
        {"sampled", counts->sampled},
        {"drafted", counts->drafted},
        {"accepted", counts->accepted},
        {"preempted", counts->preempted},
        {"resumed", counts->resumed},
        {"steps", counts->steps},
        {"step_us", counts->step_us},
    };
    json_write_key(writer, key);
    json_write_object_begin(writer);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        json_write_key(writer, members[i].name);
        json_write_u64(writer, members[i].value);
    }
    json_write_object_end(writer);
}

static void write_statistics(struct json_writer *writer, const struct run_event *event) {
    const struct engine_statistics *all = event->statistics;
    write_finite(writer, "requests", all->request_count);
    write_finite(writer, "queued", all->queued);
    write_finite(writer, "prefilling", all->prefilling);
    write_finite(writer, "decoding", all->decoding);
    write_finite(writer, "parked", all->parked);
    write_finite(writer, "restoring", all->restoring);
    write_finite(writer, "waiting_for_memory", all->waiting_for_memory);
    write_finite(writer, "windows_used", all->windows_used);
    write_finite(writer, "windows_max", all->windows_max);
    write_finite(writer, "blocks_used", all->blocks_used);
    write_finite(writer, "blocks_promised", all->blocks_promised);
    write_finite(writer, "blocks_total", all->blocks_total);
    write_counts(writer, "second", &all->seconds[0]);
    write_counts(writer, "total", &all->total);
    write_finite(writer, "step_us_max", all->step_us_max);
    write_finite(writer, "decision_us_max", all->decision_us_max);
    write_finite(writer, "step_running_ms", all->step_running_ms);
}

static void write_stuck(struct json_writer *writer, const struct run_event *event) {
    write_text(writer, "wait", engine_wait_name(event->stuck->wait));
    write_finite(writer, "stuck_ms", event->stuck->stuck_ms);
    write_text(writer, "text", event->stuck->why);
}

static void write_session(struct json_writer *writer, const struct run_event *event) {
    write_finite(writer, "schema", DISPLAY_SCHEMA_VERSION);
    write_text(writer, "session", event->session_id);
    write_view(writer, "task", event->task);
    write_view(writer, "workspace", event->workspace);
    write_view(writer, "model", event->model);
    write_text(writer, "model_digest", event->engine->model_digest);
    write_text(writer, "backend", event->engine->backend);
    write_finite(writer, "numerics", event->engine->numerics);
    write_finite(writer, "effort", event->effort);
    json_write_key(writer, "temperature");
    json_write_double(writer, event->sampling->temperature);
    json_write_key(writer, "top_p");
    json_write_double(writer, event->sampling->top_p);
    json_write_key(writer, "seed");
    json_write_u64(writer, event->sampling->seed);
    json_write_key(writer, "settings");
    if (event->settings.length > 0) {
        json_write_raw(writer, event->settings);
    } else {
        json_write_null(writer);
    }
    write_text(writer, "window", event->window);
    write_finite(writer, "context_max", event->status->context_max);
    write_finite(writer, "turns_max", event->status->turns_max);
    write_finite(writer, "tokens_max", event->tokens_max);
    write_finite(writer, "time_ms_max", event->time_ms_max);
    if (event->is_resumed) {
        write_finite(writer, "turns_before", event->status->turns_before);
        write_finite(writer, "context", event->context_tokens);
    }
    json_write_key(writer, "tools");
    json_write_raw(writer, event->tools);
}

static void write_replays(struct json_writer *writer, const struct generation_facts *facts) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, (size_t)32 * ENGINE_REPLAYS_MAX);
    result formatted =
        window_replays_format(facts->replays, facts->replay_count, &text, writer->error);
    if (is_failed(formatted) && is_ok(writer->status)) {
        writer->status = formatted;
    }
    write_view(writer, "replays", buffer_view(&text));
}

static void write_usage(struct json_writer *writer, const struct run_event *event) {
    const struct generation_facts *facts = event->facts;
    write_finite(writer, "prompt", facts->prompt_tokens);
    write_finite(writer, "reused", facts->reused);
    write_finite(writer, "evaluated", facts->evaluated);
    write_finite(writer, "rebuilt", facts->rebuilt);
    write_finite(writer, "sampled", facts->sampled);
    write_finite(writer, "hit_position", facts->hit_position);
    write_finite(writer, "restored_host", facts->restored_host);
    write_finite(writer, "restored_disk", facts->restored_disk);
    write_text(writer, "miss", facts->miss != NULL ? facts->miss : "none");
    write_finite(writer, "miss_token", facts->miss_token);
    write_text(writer, "window_source", facts->window_source != NULL ? facts->window_source : "");
    write_finite(writer, "rebuilt_from", facts->rebuilt_from);
    write_replays(writer, facts);
    write_text(writer, "lineage", facts->lineage);
    write_text(writer, "block_lineage", facts->block_lineage);
    write_text(writer, "decoder_lineage", facts->decoder_lineage);
    write_finite(writer, "queued_us", facts->queued_us);
    write_finite(writer, "prefill_us", facts->prefill_us);
    write_finite(writer, "decode_us", facts->decode_us);
    write_finite(writer, "drafted", facts->drafted);
    write_finite(writer, "accepted", facts->accepted);
    write_finite(writer, "preempted", facts->preempted);
    write_finite(writer, "preempted_rebuilt", facts->preempted_rebuilt);
    write_finite(writer, "parked_us", facts->parked_us);
    write_seed(writer, "seed", facts->seed);
    if (facts->fork_index >= 0) {
        write_seed(writer, "parent_seed", facts->parent_seed);
        write_finite(writer, "fork_index", facts->fork_index);
    }
    write_text(writer, "ended", finish_reason_name(event->reason));
    if (event->reason == FINISH_STOP) {
        write_view(writer, "stop", event->text);
    }
    write_finite(writer, "context", event->status->context_tokens);
    write_finite(writer, "context_max", event->status->context_max);
    write_finite(writer, "context_left", event->status->context_left);
}

static void write_resumed(struct json_writer *writer, const struct run_event *event) {
    const struct generation_facts *facts = event->facts;
    write_finite(writer, "context", event->context_tokens);
    write_finite(writer, "prompt", facts->prompt_tokens);
    write_finite(writer, "reused", facts->reused);
    write_finite(writer, "restored_host", facts->restored_host);
    write_finite(writer, "restored_disk", facts->restored_disk);
    write_finite(writer, "evaluated", facts->evaluated);
    write_finite(writer, "rebuilt", facts->rebuilt);
    write_text(writer, "miss", facts->miss != NULL ? facts->miss : "none");
    write_finite(writer, "miss_token", facts->miss_token);
}

static void write_call(struct json_writer *writer, const struct run_event *event) {
    write_view(writer, "call", event->call->id);
    write_view(writer, "name", event->call->name);
    json_write_key(writer, "arguments");
    json_write_raw(writer, event->call->arguments);
}

static void write_result(struct json_writer *writer, const struct run_event *event) {
    const struct tool_result *tool = event->tool;
    write_view(writer, "call", event->call->id);
    write_view(writer, "name", event->call->name);
    write_text(writer, "status", tool_status_name(tool->status));
    write_view(writer, "text", buffer_view(&tool->text));
    json_write_key(writer, "truncated");
    json_write_bool(writer, tool->text_is_truncated);
    json_write_key(writer, "output_bytes");
    json_write_u64(writer, tool->output_bytes);
    json_write_key(writer, "command_exit_status");
    if (tool->has_exit_status) {
        json_write_i64(writer, tool->exit_status);
    } else {
        json_write_null(writer);
    }
    write_finite(writer, "duration_ms", tool->duration_ms);
}

static const char *change_name(enum workspace_change change) {
    static const char *const names[] = {
        [WORKSPACE_ADDED] = "added",
        [WORKSPACE_DELETED] = "deleted",
        [WORKSPACE_MODIFIED] = "modified",
        [WORKSPACE_TYPE] = "type",
    };
    return names[change];
}

static void write_changes(struct json_writer *writer, const struct run_event *event) {
    const struct workspace_difference *difference = event->difference;
    write_text(writer, "commit_before", event->commit_before);
    write_text(writer, "commit_after", event->commit_after);
    write_finite(writer, "lines_added", (int64_t)difference->lines_added);
    write_finite(writer, "lines_removed", (int64_t)difference->lines_removed);
    json_write_key(writer, "files");
    json_write_array_begin(writer);
    for (size_t i = 0; i < difference->file_count; i++) {
        const struct workspace_file_change *file = &difference->files[i];
        json_write_object_begin(writer);
        write_text(writer, "path", file->path);
        write_text(writer, "change", change_name(file->change));
        json_write_key(writer, "binary");
        json_write_bool(writer, file->binary);
        write_finite(writer, "lines_added", (int64_t)file->lines_added);
        write_finite(writer, "lines_removed", (int64_t)file->lines_removed);
        json_write_object_end(writer);
    }
    json_write_array_end(writer);
    write_view(
        writer,
        "patch",
        view_of(difference->patch, difference->patch != NULL ? difference->patch_bytes : 0)
    );
    json_write_key(writer, "patch_truncated");
    json_write_bool(writer, difference->patch_truncated);
}

static void write_finished(struct json_writer *writer, const struct run_event *event) {
    const struct run_status *status = event->status;
    write_text(writer, "session", event->session_id);
    write_text(writer, "stop", event->stop);
    write_text(writer, "verdict", event->stop_text);
    write_text(writer, "detail", event->detail);
    write_finite(writer, "exit_status", event->exit_status);
    write_finite(writer, "turns", status->turn - status->turns_before);
    write_finite(writer, "sampled", status->tokens_sampled);
    write_finite(writer, "prompt", status->prompt_tokens);
    write_finite(writer, "reused", status->reused_tokens);
    write_finite(writer, "evaluated", status->evaluated_tokens);
    write_finite(writer, "rebuilt", status->rebuilt_tokens);
    write_finite(writer, "drafted", status->drafted_tokens);
    write_finite(writer, "accepted", status->accepted_tokens);
    write_finite(writer, "preempted", status->preempted);
    write_finite(writer, "duration_ms", event->duration_ms);
}

static void write_idle(struct json_writer *writer, const struct run_event *event) {
    write_text(writer, "stop", event->stop != NULL ? event->stop : "");
    write_text(writer, "verdict", event->stop_text != NULL ? event->stop_text : "");
    write_text(writer, "detail", event->detail != NULL ? event->detail : "");
    write_finite(writer, "context", event->status->context_tokens);
    write_finite(writer, "context_max", event->status->context_max);
}

static void write_ask(struct json_writer *writer, const struct run_event *event) {
    json_write_key(writer, "question");
    json_write_u64(writer, event->question);
    write_call(writer, event);
    write_view(writer, "reason", event->reason_text);
    json_write_key(writer, "always");
    if (event->has_always) {
        json_write_string(writer, event->pattern);
    } else {
        json_write_null(writer);
    }
}

static void write_decision(struct json_writer *writer, const struct run_event *event) {
    write_view(writer, "call", event->call->id);
    write_view(writer, "name", event->call->name);
    write_text(writer, "verdict", event->verdict);
    write_text(writer, "by", event->decided_by);
    write_view(writer, "reason", event->reason_text);
}

static void write_compacted(struct json_writer *writer, const struct run_event *event) {
    const struct generation_facts *facts = event->facts;
    const struct generation_facts *summary = event->summary_facts;
    write_finite(writer, "tokens_before", event->tokens_before);
    write_finite(writer, "tokens_after", event->tokens_after);
    write_finite(writer, "outputs_removed", event->outputs_removed);
    write_finite(writer, "reused", facts->reused);
    write_finite(writer, "evaluated", facts->evaluated);
    write_finite(writer, "rebuilt", facts->rebuilt);
    write_finite(writer, "prefill_us", facts->prefill_us);
    if (summary != NULL) {
        write_view(writer, "summary", event->text);
        write_finite(writer, "summary_prompt", summary->prompt_tokens);
        write_finite(writer, "summary_reused", summary->reused);
        write_finite(writer, "summary_evaluated", summary->evaluated);
        write_finite(writer, "summary_sampled", summary->sampled);
    }
}

/* Of the events of a person's run and of a call on its way; false for any other. */
static bool write_interactive(struct json_writer *writer, const struct run_event *event) {
    if (event->type == RUN_IDLE) {
        write_idle(writer, event);
    } else if (event->type == RUN_QUEUED) {
        write_view(writer, "text", event->text);
        write_finite(writer, "queued", (int64_t)event->queued);
    } else if (event->type == RUN_ASK) {
        write_ask(writer, event);
    } else if (event->type == RUN_DECISION) {
        write_decision(writer, event);
    } else if (event->type == RUN_TOOL_OUTPUT) {
        write_view(writer, "call", event->call->id);
        write_view(writer, "text", event->text);
    } else if (event->type == RUN_HOOK) {
        write_text(writer, "hook", event->hook);
        write_view(writer, "text", event->text);
    } else if (event->type == RUN_COMPACTED) {
        write_compacted(writer, event);
    } else {
        return false;
    }
    return true;
}

static const char *event_name(enum run_event_type type) {
    static const char *const names[] = {
        [RUN_SESSION] = "session",
        [RUN_TURN] = "turn",
        [RUN_REASONING] = "reasoning",
        [RUN_CONTENT] = "content",
        [RUN_PROBLEM] = "problem",
        [RUN_TOKEN] = "token",
        [RUN_USAGE] = "usage",
        [RUN_RESUMED] = "resumed",
        [RUN_TOOL_CALL] = "tool_call",
        [RUN_TOOL_RESULT] = "tool_result",
        [RUN_CHANGES] = "changes",
        [RUN_NOTE] = "note",
        [RUN_WARNING] = "warning",
        [RUN_STUCK] = "stuck",
        [RUN_STATISTICS] = "statistics",
        [RUN_IDLE] = "idle",
        [RUN_QUEUED] = "queued",
        [RUN_USER] = "user",
        [RUN_ASK] = "ask",
        [RUN_DECISION] = "decision",
        [RUN_TOOL_OUTPUT] = "tool_output",
        [RUN_HOOK] = "hook",
        [RUN_COMPACTED] = "compacted",
        [RUN_FINISHED] = "finished",
    };
    return names[type];
}

static void write_body(struct json_writer *writer, const struct run_event *event) {
    if (event->type == RUN_SESSION) {
        write_session(writer, event);
    } else if (event->type == RUN_TOKEN) {
        write_token(writer, event);
    } else if (event->type == RUN_STUCK) {
        write_stuck(writer, event);
    } else if (event->type == RUN_STATISTICS) {
        write_statistics(writer, event);
    } else if (event->type == RUN_USAGE) {
        write_usage(writer, event);
    } else if (event->type == RUN_RESUMED) {
        write_resumed(writer, event);
    } else if (event->type == RUN_TOOL_CALL) {
        write_call(writer, event);
    } else if (event->type == RUN_TOOL_RESULT) {
        write_result(writer, event);
    } else if (event->type == RUN_CHANGES) {
        write_changes(writer, event);
    } else if (event->type == RUN_FINISHED) {
        write_finished(writer, event);
    } else if (event->type == RUN_PROBLEM) {
        write_text(writer, "problem", chat_problem_name(event->problem));
        write_view(writer, "text", event->text);
    } else if (!write_interactive(writer, event) && event->type != RUN_TURN) {
        write_view(writer, "text", event->text);
    }
}

result display_json_event(struct buffer *out, const struct run_event *event, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    write_text(&writer, "event", event_name(event->type));
    if (event->agent != NULL) {
        write_text(&writer, "agent", event->agent);
    }
    if (event->type != RUN_SESSION && event->type != RUN_FINISHED && event->type != RUN_CHANGES) {
        write_finite(&writer, "turn", event->status->turn);
    }
    write_body(&writer, event);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_byte(out, '\n', error);
}
