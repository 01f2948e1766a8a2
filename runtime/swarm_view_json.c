/* Events of a swarm as JSON; the schema is in docs/json-events.md. Those of its agents are written as a run's,
 * with the agent's name. See swarm_view_internal.h. */
#include "strategy.h"
#include "swarm_view_internal.h"

static void write_i64(struct json_writer *writer, const char *key, int64_t value) {
    json_write_key(writer, key);
    json_write_i64(writer, value);
}

static void write_text(struct json_writer *writer, const char *key, const char *text) {
    json_write_key(writer, key);
    json_write_text(writer, text != NULL ? text : "");
}

static void write_view(struct json_writer *writer, const char *key, struct view text) {
    json_write_key(writer, key);
    json_write_string(writer, text);
}

static void write_bool(struct json_writer *writer, const char *key, bool value) {
    json_write_key(writer, key);
    json_write_bool(writer, value);
}

/* The name of a node, null for none. */
static void
write_node(struct json_writer *writer, const char *key, const struct swarm *swarm, size_t node) {
    json_write_key(writer, key);
    if (node == SWARM_NONE) {
        json_write_null(writer);
    } else {
        json_write_text(writer, swarm_node(swarm, node)->name);
    }
}

static result end_line(struct json_writer *writer, struct buffer *out, struct error *error) {
    json_write_object_end(writer);
    TRY(json_writer_finish(writer));
    return buffer_append_byte(out, '\n', error);
}

static void begin_line(
    struct json_writer *writer,
    struct buffer *out,
    const char *event,
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    struct error *error
) {
    json_writer_init(writer, out, error);
    json_write_object_begin(writer);
    write_text(writer, "event", event);
    write_i64(writer, "elapsed_ms", picture->now_ms - facts->begun_ms);
}

/* ---- begin and end -------------------------------------------------------------------------- */

result swarm_view_json_begin(
    struct buffer *out,
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct engine_info *engine,
    const struct generation_facts *prefix,
    struct error *error
) {
    const struct swarm_options *options = swarm_options(picture->swarm);
    struct json_writer writer;
    begin_line(&writer, out, "swarm", picture, facts, error);
    write_i64(&writer, "schema", SWARM_VIEW_SCHEMA);
    write_text(&writer, "session", facts->session.text);
    write_view(&writer, "task", options->task);
    write_view(&writer, "workspace", facts->options.workspace);
    write_view(&writer, "model", facts->options.model);
    write_text(&writer, "model_digest", engine->model_digest);
    write_text(&writer, "backend", engine->backend);
    write_text(&writer, "strategy", options->strategy->name);
    write_view(&writer, "why", facts->options.why);
    write_view(&writer, "verifier", facts->options.verifier);
    write_i64(&writer, "attempts", options->attempts);
    write_i64(&writer, "time_ms_max", options->time_ms_max);
    write_i64(&writer, "tokens_max", options->tokens_max);
    write_i64(&writer, "calls_max", options->calls_max);
    write_i64(&writer, "agents_max", (int64_t)options->nodes_max - 1);
    write_i64(&writer, "at_once", (int64_t)options->live_max);
    write_i64(&writer, "depth_max", (int64_t)options->depth_max);
    write_i64(&writer, "verify_ms_max", options->verify_ms_max);
    write_i64(&writer, "effort", options->effort);
    json_write_key(&writer, "seed");
    json_write_u64(&writer, options->seed);
    if (prefix != NULL) {
        write_i64(&writer, "prefix", prefix->prompt_tokens);
        write_i64(&writer, "reused", prefix->reused);
        write_i64(&writer, "evaluated", prefix->evaluated);
    }
    return end_line(&writer, out, error);
}

result swarm_view_json_end(
    struct buffer *out,
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct swarm_view_end *end,
    struct error *error
) {
    const struct swarm_result *made = swarm_result(picture->swarm);
    const struct swarm_host_totals *totals = end->totals;
    struct json_writer writer;
    begin_line(&writer, out, "swarm_finished", picture, facts, error);
    write_text(&writer, "session", facts->session.text);
    write_text(&writer, "outcome", swarm_outcome_name(made->outcome));
    write_node(&writer, "agent", picture->swarm, made->node);
    write_bool(&writer, "merged", made->is_merged);
    write_text(&writer, "commit", end->commit);
    write_text(&writer, "why", made->why);
    write_i64(&writer, "exit_status", end->exit_status);
    write_i64(&writer, "agents", (int64_t)totals->nodes);
    write_i64(&writer, "sampled", totals->tokens);
    write_i64(&writer, "rank_tokens", totals->rank_tokens);
    write_i64(&writer, "calls", totals->calls);
    write_i64(&writer, "prompt", totals->prompt_tokens);
    write_i64(&writer, "reused", totals->reused_tokens);
    write_i64(&writer, "evaluated", totals->evaluated_tokens);
    write_i64(&writer, "verifications", (int64_t)totals->verifications);
    write_i64(&writer, "merges", (int64_t)totals->merges);
    write_i64(&writer, "messages", (int64_t)totals->messages);
    json_write_key(&writer, "kept");
    json_write_array_begin(&writer);
    for (size_t i = 1; i < swarm_node_count(picture->swarm); i++) {
        struct swarm_host_look look = {.activity = "", .directory = ""};
        picture->look(picture->context, i, &look);
        if (look.is_kept) {
            json_write_text(&writer, look.directory);
        }
    }
    json_write_array_end(&writer);
    write_i64(&writer, "duration_ms", totals->duration_ms);
    return end_line(&writer, out, error);
}

/* ---- in between ----------------------------------------------------------------------------- */

static const char *verdict_name(enum swarm_verdict verdict) {
    static const char *const names[] = {
        [SWARM_NOT_VERIFIED] = "",
        [SWARM_VERIFIED_PASS] = "pass",
        [SWARM_VERIFIED_FAIL] = "fail",
        [SWARM_VERIFIED_HUNG] = "hung",
        [SWARM_VERIFIED_CRASHED] = "crashed",
        [SWARM_VERIFIED_EDITED] = "edited",
    };
    return names[verdict];
}

static const char *ending_name(enum swarm_end end) {
    static const char *const names[] = {
        [SWARM_END_ANSWER] = "answer",
        [SWARM_END_BUDGET] = "budget",
        [SWARM_END_FAULT] = "fault",
        [SWARM_END_CANCEL] = "cancel",
    };
    return names[end];
}

/* All of an agent, whatever of it has changed. */
static void
write_agent(struct json_writer *writer, const struct swarm_picture *picture, size_t node) {
    const struct swarm_node *at = swarm_node(picture->swarm, node);
    struct swarm_host_look look = {.activity = "", .directory = ""};
    bool has_ended = at->state == SWARM_ENDED;
    picture->look(picture->context, node, &look);
    write_text(writer, "agent", at->name);
    write_text(writer, "id", look.agent.text);
    write_node(writer, "parent", picture->swarm, at->parent);
    write_text(writer, "kind", swarm_kind_name(at->kind));
    write_i64(writer, "depth", (int64_t)at->depth);
    write_text(writer, "state", swarm_state_name(at->state));
    write_text(writer, "outcome", has_ended ? swarm_outcome_name(at->outcome) : "");
    write_view(writer, "brief", buffer_view(&at->brief));
    write_text(writer, "directory", look.directory);
    write_i64(writer, "effort", at->effort);
    write_i64(writer, "turns", at->turns > look.turns ? at->turns : look.turns);
    write_i64(writer, "sampled", look.tokens);
    write_i64(writer, "calls", look.calls);
    write_i64(writer, "prompt", look.prompt_tokens);
    write_i64(writer, "reused", look.reused_tokens);
    write_i64(writer, "evaluated", look.evaluated_tokens);
    write_i64(writer, "worked_ms", swarm_view_worked_ms(picture, node));
    write_text(writer, "cut", swarm_cut_text(at->cut));
    write_text(writer, "ending", has_ended && at->started_ms > 0 ? ending_name(at->end) : "");
    write_view(writer, "summary", buffer_view(&at->summary));
    write_view(writer, "detail", buffer_view(&at->detail));
    write_text(writer, "commit", at->commit.text);
    write_i64(writer, "changed_lines", at->changed_lines);
    write_text(writer, "verdict", verdict_name(at->verdict));
    if (at->has_score) {
        json_write_key(writer, "score");
        json_write_double(writer, at->score);
    }
    write_bool(writer, "merged", at->is_merged);
    write_bool(writer, "conflicts", at->has_conflicts);
}

static void write_scores(struct json_writer *writer, const struct swarm *swarm) {
    json_write_key(writer, "scores");
    json_write_object_begin(writer);
    for (size_t i = 1; i < swarm_node_count(swarm); i++) {
        const struct swarm_node *node = swarm_node(swarm, i);
        if (node->has_score) {
            json_write_key(writer, node->name);
            json_write_double(writer, node->score);
        }
    }
    json_write_object_end(writer);
}

/* Events of a run that the swarm's own say better. */
static bool is_told_otherwise(enum run_event_type type) {
    return type == RUN_SESSION || type == RUN_FINISHED || type == RUN_CHANGES ||
           type == RUN_EARLIER;
}

static const char *event_name(enum swarm_host_event_type type) {
    static const char *const names[] = {
        [SWARM_HOST_BEGAN] = NULL, /* swarm_view_json_begin */
        [SWARM_HOST_NODE] = "agent",
        [SWARM_HOST_ACTIVITY] = NULL, /* the agent's own events tell */
        [SWARM_HOST_RUN] = NULL,
        [SWARM_HOST_MESSAGE] = "mail",
        [SWARM_HOST_VERIFIED] = "verified",
        [SWARM_HOST_RANKED] = "ranked",
        [SWARM_HOST_MERGED] = "merged",
        [SWARM_HOST_ENDING] = "ending",
        [SWARM_HOST_NOTE] = NULL, /* as those of a run */
        [SWARM_HOST_WARNING] = NULL,
        [SWARM_HOST_FINISHED] = NULL, /* swarm_view_json_end */
    };
    return names[type];
}

static void write_event(
    struct json_writer *writer,
    const struct swarm_picture *picture,
    const struct swarm_host_event *event
) {
    static const char *const merges[] = {
        [SWARM_MERGE_OK] = "ok",
        [SWARM_MERGE_CONFLICTS] = "conflicts",
        [SWARM_MERGE_FAILED] = "failed",
    };
    if (event->type == SWARM_HOST_NODE) {
        write_agent(writer, picture, event->node);
    } else if (event->type == SWARM_HOST_RANKED) {
        write_scores(writer, picture->swarm);
    } else if (event->type == SWARM_HOST_MESSAGE) {
        write_node(writer, "from", picture->swarm, event->node);
        write_node(writer, "to", picture->swarm, event->other);
        write_view(writer, "text", event->text);
    } else if (event->type == SWARM_HOST_VERIFIED) {
        write_node(writer, "agent", picture->swarm, event->node);
        write_text(writer, "verdict", verdict_name(event->verdict));
        write_view(writer, "text", event->text);
    } else if (event->type == SWARM_HOST_MERGED) {
        write_node(writer, "agent", picture->swarm, event->node);
        write_node(writer, "into", picture->swarm, event->other);
        write_text(writer, "merge", merges[event->merge]);
        write_view(writer, "text", event->text);
    }
}

result swarm_view_json_event(
    struct buffer *out,
    const struct swarm_picture *picture,
    const struct swarm_view_facts *facts,
    const struct swarm_host_event *event,
    struct error *error
) {
    if (event->type == SWARM_HOST_RUN) {
        if (is_told_otherwise(event->run->type)) {
            return OK;
        }
        struct run_event named = *event->run;
        named.agent = swarm_node(picture->swarm, event->node)->name;
        return display_json_event(out, &named, error);
    }
    if (event->type == SWARM_HOST_NOTE || event->type == SWARM_HOST_WARNING) {
        const struct run_status status = {.activity = ""};
        const struct run_event line = {
            .type = event->type == SWARM_HOST_NOTE ? RUN_NOTE : RUN_WARNING,
            .status = &status,
            .text = event->text,
        };
        return display_json_event(out, &line, error);
    }
    const char *name = event_name(event->type);
    bool is_root = event->type == SWARM_HOST_NODE && event->node == SWARM_ROOT; /* no agent */
    if (name == NULL || is_root) {
        return OK;
    }
    struct json_writer writer;
    begin_line(&writer, out, name, picture, facts, error);
    write_event(&writer, picture, event);
    return end_line(&writer, out, error);
}
