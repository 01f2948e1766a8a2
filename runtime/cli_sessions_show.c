/* hearth sessions show: everything one session did. */
#include "cli_sessions.h"
#include "cli_sessions_tree.h"
#include "generation_settings.h"
#include "session_place.h"

#include "sessions/session.h"
#include <inttypes.h>

#define LABEL_COLUMNS  10 /* "workspace " */
#define LINEAGE_DIGITS 16 /* shown of 64 */

/* Each line with a prefix. */
static result
put_lines(struct buffer *out, const char *prefix, struct view text, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer harmless;
    buffer_init(&harmless, BUFFER_CEILING_DEFAULT);
    TRY(sessions_put_text(&harmless, text, error));
    struct view rest = buffer_view(&harmless);
    while (rest.length > 0) {
        size_t end = view_find(rest, view_of_text("\n"), 0);
        end = end == SIZE_MAX ? rest.length : end;
        TRY(buffer_append_text(out, prefix, error));
        TRY(buffer_append(out, view_slice(rest, 0, end), error));
        TRY(buffer_append_text(out, "\n", error));
        rest = view_slice(rest, end + 1, rest.length);
    }
    return OK;
}

static const struct cli_option show_options[] = {
    {"tree", 0, NULL, "who did what: agents, results, costs, mail"},
    {"tokens", 0, NULL, "with --json: token ids and log-probabilities too"},
    {"outputs", 0, NULL, "whole outputs of tools instead of what the model was shown"},
    {"state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)"},
    {"json", 0, NULL, "one JSON object"},
};

static result
show_call(struct buffer *out, const struct session_call *call, bool outputs, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer name;
    buffer_init(&name, BUFFER_CEILING_DEFAULT);
    TRY(sessions_put_text(&name, call->name, error));
    TRY(buffer_append_format(
        out,
        error,
        "  > %s (%s, %" PRId64 " ms)\n",
        buffer_text(&name),
        session_call_status_name(call->status),
        call->duration_ms
    ));
    TRY(put_lines(out, "    ", call->arguments, error));
    return put_lines(
        out, "  | ", outputs && call->output.length > 0 ? call->output : call->text, error
    );
}

/* As the options that they stand for, on one line. */
static result
show_settings(struct buffer *out, const char *prefix, struct view settings, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(generation_settings_describe(settings, &text, error));
    return put_lines(out, prefix, buffer_view(&text), error);
}

static result show_sampling(
    struct buffer *out,
    const char *prefix,
    const struct session_sampler *sampler,
    struct error *error
) {
    return buffer_append_format(
        out,
        error,
        "%stemperature %g, top-p %g, effort %" PRId64 ", seed %" PRIu64 "\n",
        prefix,
        sampler->temperature,
        sampler->top_p,
        sampler->effort,
        sampler->seed
    );
}

/* Where the windows and the reused tokens came from, and why not more was reused. */
static result
show_contract(struct buffer *out, const struct session_cache_facts *cache, struct error *error) {
    TRY(buffer_append_format(
        out, error, "  cache: windows %.*s", VIEW_ARGUMENTS(cache->window_source)
    ));
    if (cache->rebuilt_tokens > 0) {
        TRY(buffer_append_format(out, error, " from token %" PRId64, cache->rebuilt_from));
    }
    if (cache->restored_disk > 0) {
        TRY(buffer_append_format(out, error, ", %" PRId64 " from disk", cache->restored_disk));
    }
    if (cache->restored_host > 0) {
        TRY(buffer_append_format(out, error, ", %" PRId64 " from host memory", cache->restored_host)
        );
    }
    if (cache->miss_reason.length > 0) {
        TRY(buffer_append_format(
            out,
            error,
            "; missed at token %" PRId64 ": %.*s",
            cache->miss_token,
            VIEW_ARGUMENTS(cache->miss_reason)
        ));
    }
    if (cache->replays.length > 0) {
        TRY(buffer_append_format(out, error, "; approximate: %.*s", VIEW_ARGUMENTS(cache->replays))
        );
    }
    TRY(buffer_append_text(out, "\n  lineage: root ", error));
    const struct view lineages[] = {cache->lineage, cache->block_lineage, cache->decoder_lineage};
    static const char *const names[] = {"", ", blocks ", ", decoder "};
    for (size_t i = 0; i < COUNT_OF(lineages); i++) {
        bool is_root = i == 1 && view_equals(lineages[i], cache->lineage);
        bool is_exact = i == 2 && view_equals_text(lineages[i], "0");
        struct view shown = is_root    ? view_of_text("the same")
                            : is_exact ? view_of_text("exact")
                                       : view_slice(lineages[i], 0, LINEAGE_DIGITS);
        TRY(buffer_append_format(out, error, "%s%.*s", names[i], VIEW_ARGUMENTS(shown)));
    }
    return buffer_append_format(
        out,
        error,
        "; %.*s, numerics %.*s\n",
        VIEW_ARGUMENTS(cache->backend),
        VIEW_ARGUMENTS(cache->numerics_version)
    );
}

/* "; drafted 120, accepted 88" */
static result
show_drafts(struct buffer *out, int64_t drafted, int64_t accepted, struct error *error) {
    return drafted == 0
               ? OK
               : buffer_append_format(
                     out, error, "; drafted %" PRId64 ", accepted %" PRId64, drafted, accepted
                 );
}

/* The rest of a turn's line: what was met, drafts, pre-emption, and the seed where it is a fork's. */
static result
show_end(struct buffer *out, const struct session_turn_end *end, struct error *error) {
    if (end->stop_detail.length > 0) {
        TRY(buffer_append_text(out, " \"", error));
        TRY(sessions_put_text(out, end->stop_detail, error));
        TRY(buffer_append_text(out, "\"", error));
    }
    TRY(show_drafts(out, end->drafted, end->accepted, error));
    if (end->preempted > 0) {
        TRY(buffer_append_format(out, error, "; pre-empted %" PRId64 " times", end->preempted));
    }
    if (end->fork_index >= 0) {
        TRY(buffer_append_format(
            out,
            error,
            "; seed %" PRIu64 " of fork %" PRId64 " of %" PRIu64,
            end->sampler.seed,
            end->fork_index,
            end->parent_seed
        ));
    }
    return buffer_append_text(out, "\n", error);
}

/* What is sampled otherwise than before; a fork's seed is shown with its turn. */
static result show_changes(
    struct buffer *out,
    const struct session_sampler *before,
    const struct session_turn_end *end,
    struct error *error
) {
    const struct session_sampler *now = &end->sampler;
    bool is_same = memcmp(&before->temperature, &now->temperature, sizeof now->temperature) == 0 &&
                   memcmp(&before->top_p, &now->top_p, sizeof now->top_p) == 0 &&
                   before->effort == now->effort &&
                   (before->seed == now->seed || end->fork_index >= 0);
    if (!is_same) {
        TRY(show_sampling(out, "  sampling now: ", now, error));
    }
    if (view_equals(before->settings, now->settings)) {
        return OK;
    }
    return now->settings.length == 0 ? buffer_append_text(out, "  settings now: none\n", error)
                                     : show_settings(out, "  settings now: ", now->settings, error);
}

/* *sampler: of the turn before, then of this one. */
static result show_turn(
    struct buffer *out,
    const struct session_turn *turn,
    bool outputs,
    struct session_sampler *sampler,
    struct error *error
) {
    const struct session_cache_facts *cache = &turn->end.cache;
    TRY(buffer_append_format(
        out,
        error,
        "turn %" PRId64 "%s%s",
        turn->index + 1,
        turn->is_inherited ? " (of the session that this is a fork of)" : "",
        turn->is_rewound ? " (rewound: no part of the context any more)" : ""
    ));
    if (turn->is_finished) {
        TRY(buffer_append_format(
            out,
            error,
            ": prompt %" PRId64 " = %" PRId64 " reused + %" PRId64 " evaluated (%" PRId64
            " rebuilt), %" PRId64 " written, %" PRId64 " + %" PRId64 " ms, ended: %.*s",
            cache->prompt_tokens,
            cache->reused_tokens,
            cache->evaluated_tokens,
            cache->rebuilt_tokens,
            turn->end.output_tokens,
            turn->end.prefill_ms,
            turn->end.decode_ms,
            VIEW_ARGUMENTS(turn->end.stop_reason)
        ));
        TRY(show_end(out, &turn->end, error));
        TRY(show_changes(out, sampler, &turn->end, error));
        *sampler = turn->end.sampler;
        TRY(show_contract(out, cache, error));
    } else {
        TRY(buffer_append_text(out, ": not finished\n", error));
    }
    bool is_other_model = turn->compaction != NULL && turn->compaction->tokens_after == 0;
    if (is_other_model) { /* which encodes what follows with the next turn */
        TRY(buffer_append_format(
            out, error, "  # %.*s\n", VIEW_ARGUMENTS(turn->compaction->summary)
        ));
    } else if (turn->compaction != NULL) {
        TRY(buffer_append_format(
            out,
            error,
            "  # the context of %" PRId64 " tokens was made shorter, to %" PRId64 " (%" PRId64
            " outputs left out), and begins here\n",
            turn->compaction->tokens_before,
            turn->compaction->tokens_after,
            turn->compaction->pruned
        ));
    }
    for (size_t i = 0; i < turn->message_count; i++) {
        const struct session_message *message = &turn->messages[i];
        bool is_result = view_equals_text(message->role, "tool");
        if (is_result && (message->call != 0 || turn->compaction != NULL)) {
            continue; /* shown with its call; one without a call of its own is what a fork was told */
        }
        bool is_assistant = view_equals_text(message->role, "assistant");
        if (!is_assistant) {
            TRY(buffer_append_format(out, error, "  [%.*s]\n", VIEW_ARGUMENTS(message->role)));
        }
        TRY(put_lines(out, "  ~ ", message->reasoning, error));
        TRY(put_lines(out, "  ", message->text, error));
    }
    for (size_t i = 0; i < turn->call_count; i++) {
        TRY(show_call(out, &turn->calls[i], outputs, error));
    }
    return OK;
}

static result
show_head(struct buffer *out, const struct session_summary *session, struct error *error) {
    char created[32];
    sessions_time_text(session->created_ms, created);
    TRY(buffer_append_format(
        out,
        error,
        "session   %s  %s  %s\n",
        session->id.text,
        created,
        session_status_name(session->status)
    ));
    TRY(put_lines(out, "task      ", session->begin.task, error));
    TRY(put_lines(out, "workspace ", session->begin.workspace, error));
    TRY(put_lines(out, "model     ", session->begin.model, error));
    TRY(put_lines(out, "digest    ", session->begin.model_digest, error));
    TRY(put_lines(out, "backend   ", session->begin.backend, error));
    TRY(show_sampling(out, "sampling  ", &session->begin.sampler, error));
    TRY(show_settings(out, "settings  ", session->begin.sampler.settings, error));
    const struct session_usage *usage = &session->usage;
    TRY(buffer_append_format(
        out,
        error,
        "usage     %" PRId64 " turns, %" PRId64 " calls; prompt %" PRId64 " = %" PRId64
        " reused + %" PRId64 " evaluated, %" PRId64 " written",
        usage->turns,
        usage->calls,
        usage->prompt_tokens,
        usage->reused_tokens,
        usage->evaluated_tokens,
        usage->output_tokens
    ));
    TRY(show_drafts(out, usage->drafted, usage->accepted, error));
    TRY(buffer_append_text(out, "\n", error));
    TRY(put_lines(out, "copy of   ", session->begin.worktree_of, error));
    if (session->begin.commit_before.length > 0) {
        TRY(buffer_append_format(
            out,
            error,
            "snapshots %.*s .. %.*s\n",
            VIEW_ARGUMENTS(session->begin.commit_before),
            VIEW_ARGUMENTS(session->commit_after)
        ));
    }
    return buffer_append_text(out, "\n", error);
}

static result show_resumption(
    struct buffer *out, const struct session_resumption *resumption, struct error *error
) {
    char when[32];
    sessions_time_text(resumption->resumed_ms, when);
    TRY(buffer_append_format(
        out,
        error,
        "resumed   %s, after turn %" PRId64 "; had ended: %s",
        when,
        resumption->turns_before,
        session_status_name(resumption->status)
    ));
    if (resumption->stop_reason.length > 0) {
        TRY(buffer_append_format(out, error, " (%.*s)", VIEW_ARGUMENTS(resumption->stop_reason)));
    }
    return buffer_append_format(
        out,
        error,
        "; now %.*s, numerics %.*s\n",
        VIEW_ARGUMENTS(resumption->begin.backend),
        VIEW_ARGUMENTS(resumption->begin.numerics_version)
    );
}

/* What was refused, or allowed by more than the policy. */
static result
show_decision(struct buffer *out, const struct session_decision *decision, struct error *error) {
    if (decision->is_allowed && view_equals_text(decision->decider, "policy")) {
        return OK;
    }
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(
        &line,
        error,
        "%s %.*s %.*s by %.*s",
        decision->is_allowed ? "allowed" : "refused",
        VIEW_ARGUMENTS(decision->kind),
        VIEW_ARGUMENTS(decision->subject),
        VIEW_ARGUMENTS(decision->decider)
    ));
    if (decision->rule.length > 0) {
        TRY(buffer_append_format(&line, error, " %.*s", VIEW_ARGUMENTS(decision->rule)));
    }
    if (decision->reason.length > 0) {
        TRY(buffer_append_format(&line, error, ": %.*s", VIEW_ARGUMENTS(decision->reason)));
    }
    return put_lines(out, "decision  ", buffer_view(&line), error);
}

static result
show_text(const struct session_tree *tree, bool outputs, struct buffer *out, struct error *error) {
    TRY(show_head(out, &tree->session, error));
    for (size_t i = 0; i < tree->resumption_count; i++) {
        TRY(show_resumption(out, &tree->resumptions[i], error));
    }
    if (tree->resumption_count > 0) {
        TRY(buffer_append_text(out, "\n", error));
    }
    for (size_t i = 0; i < tree->decision_count; i++) {
        TRY(show_decision(out, &tree->decisions[i], error));
    }
    for (size_t i = 0; i < tree->agent_count; i++) {
        const struct session_agent *agent = &tree->agents[i];
        if (tree->agent_count > 1) {
            TRY(buffer_append_format(out, error, "agent %s ", agent->id.text));
            TRY(sessions_put_text(out, agent->name, error));
            TRY(buffer_append_text(out, "\n", error));
        }
        struct session_sampler sampler = tree->session.begin.sampler;
        for (size_t k = 0; k < agent->turn_count; k++) {
            TRY(show_turn(out, &agent->turns[k], outputs, &sampler, error));
        }
    }
    if (tree->session.verdict.length > 0) {
        TRY(buffer_append_text(out, "\n", error));
        TRY(put_lines(out, "", tree->session.verdict, error));
    }
    return OK;
}

static result show_tree(const struct session_tree *tree, struct buffer *out, struct error *error) {
    TRY(show_head(out, &tree->session, error));
    return sessions_put_tree(out, tree, error);
}

static result show_json(const struct session_tree *tree, struct buffer *out, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    session_tree_write(&writer, tree);
    TRY(json_writer_finish(&writer));
    return buffer_append_text(out, "\n", error);
}

static int sessions_show(const struct cli_arguments *arguments) {
    const struct session_load_options options = {
        .with_tokens = cli_has(arguments, "tokens"),
        .with_outputs = cli_has(arguments, "outputs"),
    };
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    int status = sessions_open(arguments, SESSIONS_READ, &store, NULL);
    if (status != STATUS_DONE) {
        return status;
    }
    const char *word = arguments->word_count > 0 ? arguments->words[0] : "last";
    struct session_id id;
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    struct error error = {0};
    result made = session_place_resolve(store, word, NULL, &id, &error);
    if (is_ok(made)) {
        made = session_load(store, &id, &options, &tree, &error);
    }
    if (is_ok(made)) {
        made = cli_has(arguments, "json")   ? show_json(tree, &text, &error)
               : cli_has(arguments, "tree") ? show_tree(tree, &text, &error)
                                            : show_text(tree, options.with_outputs, &text, &error);
    }
    if (is_ok(made) && !cli_has(arguments, "json")) {
        return cli_print_wrapped(buffer_view(&text), LABEL_COLUMNS) ? STATUS_DONE : STATUS_DATA;
    }
    return sessions_print(made, &error, &text);
}

const struct cli_command command_sessions_show = {
    .path = "sessions show",
    .operands = "[ID]",
    .summary = "everything one session did",
    .text =
        "ID is an id, the beginning of one, or 'last' (the default): the newest session of the\n"
        "current directory.\n",
    .options = show_options,
    .option_count = COUNT_OF(show_options),
    .words_max = 1,
    .run = sessions_show,
};
