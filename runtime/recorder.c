/* See recorder.h. Appends that belong together go into one batch: one flush to the disk. */
#include "generation_settings.h"
#include "recorder_internal.h"

#include <inttypes.h>

/* A list of ENGINE_REPLAYS_MAX replays as text. */
#define RECORDER_REPLAYS_BYTES_MAX ((size_t)32 * ENGINE_REPLAYS_MAX)

void recorder_deinit(struct recorder *recorder) {
    workspace_difference_deinit(&recorder->difference);
    recorder->difference = (struct workspace_difference){0};
}

result recorder_snapshot(struct recorder *recorder, const char *message, struct error *error) {
    if (recorder->workspace == NULL) {
        return OK;
    }
    struct workspace_snapshot taken;
    result took = workspace_take_snapshot(recorder->workspace, message, &taken, error);
    bool is_gone = took.code == RESULT_NOT_FOUND && recorder->node == NULL;
    if (took.code == RESULT_TIMEOUT || is_gone) {
        /* The run is to end now (P5), or its next call says that the workspace was removed: what follows is
         * recorded without a state of the tree. A node without one has no result. */
        recorder->commit_last[0] = '\0';
        return OK;
    }
    TRY_NOTE(error, took, "while taking a snapshot of the workspace");
    memcpy(recorder->commit_last, taken.commit, sizeof recorder->commit_last);
    recorder->tree_may_differ = false;
    return OK;
}

result recorder_batch_end(struct recorder *recorder, result appended, struct error *error) {
    if (is_failed(appended)) {
        session_batch_rollback(recorder->store);
        return appended;
    }
    return session_batch_commit(recorder->store, error);
}

static result append_agent(struct recorder *recorder, struct error *error) {
    const struct session_agent_begin agent = {
        .session = recorder->session,
        .name = view_of_text("main"),
        .tools = recorder->tools_json,
        .sampler = recorder->begin.sampler,
    };
    return session_agent_append(recorder->store, &agent, &recorder->agent, error);
}

/* Opens the session again; what its end lacked is recorded before anything builds on it. */
static result append_resume(struct recorder *recorder, struct error *error) {
    const struct resume *resume = recorder->resume;
    const struct session_resume_begin begin = {
        .backend = recorder->begin.backend,
        .numerics_version = recorder->begin.numerics_version,
        .program_version = recorder->begin.program_version,
        .commit_before = view_of_text(recorder->commit_first),
    };
    TRY(session_resume(recorder->store, &resume->session, &begin, error));
    for (size_t i = 0; i < resume->repair_count; i++) {
        const struct session_message_begin message = {
            .turn = resume->repairs[i].turn,
            .role = view_of_text("tool"),
            .text = view_of_text(resume->repairs[i].text),
            .call = resume->repairs[i].call,
        };
        TRY(session_message_append(recorder->store, &message, error));
    }
    return recorder->agent.text[0] == '\0' ? append_agent(recorder, error) : OK;
}

static result begin_again(struct recorder *recorder, struct error *error) {
    const struct resume *resume = recorder->resume;
    recorder->session = resume->session;
    recorder->agent = resume->agent;
    recorder->turn = resume->turn;
    recorder->position = (int64_t)resume->ids.count;
    recorder->recorded_messages = resume->recorded_messages;
    TRY(session_batch_begin(recorder->store, error));
    return recorder_batch_end(recorder, append_resume(recorder, error), error);
}

/* A session that goes on tells what it changed since its own beginning, if that snapshot is still there. */
static result find_base(struct recorder *recorder, struct error *error) {
    memcpy(recorder->commit_base, recorder->commit_first, sizeof recorder->commit_base);
    if (recorder->resume == NULL || recorder->resume->commit_first[0] == '\0' ||
        recorder->commit_first[0] == '\0') {
        return OK;
    }
    const char *base = recorder->resume->commit_first;
    struct workspace_difference none = {0};
    result compared = workspace_compare(recorder->workspace, base, base, 0, &none, error);
    workspace_difference_deinit(&none);
    if (compared.code == RESULT_NOT_FOUND) {
        return OK;
    }
    TRY(compared);
    memcpy(recorder->commit_base, base, sizeof recorder->commit_base);
    return OK;
}

static result begin_node(struct recorder *recorder, struct error *error) {
    const struct recorder_node *node = recorder->node;
    struct session_node_begin begin = node->begin;
    begin.agent.session = node->session;
    begin.agent.tools = recorder->tools_json;
    begin.agent.sampler = recorder->begin.sampler;
    if (recorder->workspace != NULL) {
        begin.commit_before = view_of_text(recorder->commit_first);
    }
    TRY(session_node_start(recorder->store, &begin, &recorder->agent, error));
    recorder->session = node->session;
    recorder->position = node->tokens;
    recorder->recorded_messages = node->messages;
    return OK;
}

result recorder_begin(struct recorder *recorder, struct error *error) {
    TRY(recorder_snapshot(recorder, "before the run", error));
    memcpy(recorder->commit_first, recorder->commit_last, sizeof recorder->commit_first);
    recorder->begin.commit_before = view_of_text(recorder->commit_first);
    TRY(find_base(recorder, error));
    if (recorder->node != NULL) {
        return begin_node(recorder, error);
    }
    if (recorder->resume != NULL) {
        return begin_again(recorder, error);
    }
    TRY(session_create(recorder->store, &recorder->begin, &recorder->session, error));
    return append_agent(recorder, error);
}

void recorder_put_back(struct recorder *recorder, const char *commit) {
    size_t length = strlen(commit);
    ASSERT(length < sizeof recorder->commit_last);
    if (length > 0) { /* empty: no file was */
        memcpy(recorder->commit_last, commit, length + 1);
        recorder->tree_may_differ = false;
    }
}

void recorder_rewound(struct recorder *recorder, const struct resume *resume) {
    recorder->resume = resume; /* of a session that has not gone on yet */
    recorder->turn = resume->turn;
    recorder->position = (int64_t)resume->ids.count;
    recorder->recorded_messages = resume->recorded_messages;
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* Of the message that was appended last. */
static result
settle_mail(struct recorder *recorder, const struct recorder_mail *mail, struct error *error) {
    if (mail->delivers != 0) {
        TRY(session_mail_deliver(recorder->store, mail->delivers, recorder->turn, error));
    }
    return mail->returns != 0
               ? session_mail_return(recorder->store, mail->returns, recorder->turn, error)
               : OK;
}

static result append_prompt_messages(
    struct recorder *recorder, const struct recorder_turn *turn, struct error *error
) {
    const struct chat_message *messages = chat_conversation_messages(turn->conversation);
    size_t count = chat_conversation_count(turn->conversation);
    size_t from = turn->from_message > recorder->recorded_messages ? turn->from_message
                                                                   : recorder->recorded_messages;
    size_t settled = 0;
    for (size_t i = from; i < count; i++) {
        bool is_unrun = i >= turn->unrun_from && i - turn->unrun_from < turn->unrun_count;
        if (messages[i].role == CHAT_TOOL && !is_unrun) {
            continue; /* was recorded together with its call */
        }
        const struct session_message_begin message = {
            .turn = recorder->turn,
            .role = view_of_text(chat_role_name(messages[i].role)),
            .text = messages[i].content,
        };
        TRY(session_message_append(recorder->store, &message, error));
        if (settled < turn->mail_count && turn->mail[settled].message == i) {
            TRY(settle_mail(recorder, &turn->mail[settled++], error));
        }
    }
    ASSERT(settled == turn->mail_count); /* mail is in new messages only */
    return OK;
}

static result append_turn(
    struct recorder *recorder,
    const struct recorder_turn *turn,
    const struct token_list *ids,
    struct error *error
) {
    TRY(session_turn_start(recorder->store, &recorder->agent, &recorder->turn, error));
    TRY(append_prompt_messages(recorder, turn, error));
    const struct session_run_begin run = {
        .turn = recorder->turn,
        .kind = SESSION_RUN_PROMPT,
        .position = recorder->position,
        .count = ids->count,
        .ids = ids->ids,
    };
    return session_run_append(recorder->store, &run, error);
}

result recorder_turn_start(
    struct recorder *recorder,
    const struct recorder_turn *turn,
    struct token_list *ids,
    bool *fits,
    struct error *error
) {
    const struct chat_request request = {
        .messages = chat_conversation_messages(turn->conversation),
        .message_count = chat_conversation_count(turn->conversation),
        .from = turn->from_message,
        .end_is_missing = turn->end_is_missing,
        .options = turn->options,
    };
    /* Tools are declared, so earlier thinking stays and the prompt only ever grows. */
    token_list_clear(ids);
    if (request.from < request.message_count) { /* else the prompt was encoded before a resume */
        ASSERT(request.from == 0 || chat_can_append(&request));
        TRY_NOTE(
            error, chat_encode(ids, turn->encoder, &request, error), "while encoding the prompt"
        );
    }
    *fits = ids->count <= (size_t)turn->tokens_max;
    if (!*fits) {
        return OK;
    }
    TRY(session_batch_begin(recorder->store, error));
    TRY(recorder_batch_end(recorder, append_turn(recorder, turn, ids, error), error));
    recorder->turn_is_open = true;
    recorder->turn_position = recorder->position;
    recorder->position += (int64_t)ids->count;
    recorder->recorded_messages = request.message_count;
    return OK;
}

static result
write_calls(const struct chat_message *message, struct buffer *out, struct error *error) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_array_begin(&writer);
    for (size_t i = 0; i < message->call_count; i++) {
        json_write_object_begin(&writer);
        json_write_key(&writer, "id");
        json_write_string(&writer, message->calls[i].id);
        json_write_key(&writer, "name");
        json_write_string(&writer, message->calls[i].name);
        json_write_key(&writer, "arguments");
        json_write_raw(&writer, message->calls[i].arguments);
        json_write_object_end(&writer);
    }
    json_write_array_end(&writer);
    return json_writer_finish(&writer);
}

/* Why not more was reused, in the words of people; "" when all was that could be. */
static const char *miss_text(const char *miss) {
    return miss == NULL || strcmp(miss, "none") == 0 ? "" : miss;
}

static result finish_turn(
    struct recorder *recorder,
    const struct generation_facts *facts,
    enum finish_reason reason,
    struct view stop,
    struct error *error
) {
    static const struct generation_facts nothing = {.window_source = "cold", .fork_index = -1};
    struct session_sampler sampler = recorder->begin.sampler;
    if (facts == NULL) {
        facts = &nothing;
    } else {
        sampler.seed = facts->seed;
    }
    /* A fork that was given a seed of its own does not depend on its parent's. */
    bool is_derived =
        facts->fork_index >= 0 &&
        sampling_child_seed(facts->parent_seed, (uint64_t)facts->fork_index) == facts->seed;
    char numerics[16];
    int length = snprintf(numerics, sizeof numerics, "%" PRIu32, recorder->engine.numerics);
    ASSERT(length > 0);
    CLEANUP(buffer_deinit) struct buffer replays;
    buffer_init(&replays, RECORDER_REPLAYS_BYTES_MAX);
    TRY(window_replays_format(facts->replays, facts->replay_count, &replays, error));
    const struct session_turn_end end = {
        .cache =
            {.prompt_tokens = facts->prompt_tokens,
             .evaluated_tokens = facts->evaluated,
             .reused_tokens = facts->reused,
             .rebuilt_tokens = facts->rebuilt,
             .hit_position = facts->hit_position,
             .rebuilt_from = facts->rebuilt_from,
             .restored_host = facts->restored_host,
             .restored_disk = facts->restored_disk,
             .miss_reason = view_of_text(miss_text(facts->miss)),
             .miss_token = facts->miss_token,
             .window_source = view_of_text(facts->window_source),
             .replays = buffer_view(&replays),
             .lineage = view_of_text(facts->lineage),
             .block_lineage = view_of_text(facts->block_lineage),
             .decoder_lineage = view_of_text(facts->decoder_lineage),
             .backend = view_of_text(recorder->engine.backend),
             .numerics_version = view_of_text(numerics)},
        .sampler = sampler,
        .output_tokens = facts->sampled,
        .prefill_ms = facts->prefill_us / 1000,
        .decode_ms = facts->decode_us / 1000,
        .stop_reason = view_of_text(finish_reason_name(reason)),
        .stop_detail = stop,
        .drafted = facts->drafted,
        .accepted = facts->accepted,
        .preempted = facts->preempted,
        .parent_seed = is_derived ? facts->parent_seed : 0,
        .fork_index = is_derived ? facts->fork_index : -1,
    };
    return session_turn_finish(recorder->store, recorder->turn, &end, error);
}

static result append_output(
    struct recorder *recorder,
    const struct recorder_generation *generation,
    const struct session_message_begin *message,
    struct error *error
) {
    const struct session_run_begin run = {
        .turn = recorder->turn,
        .kind = SESSION_RUN_OUTPUT,
        .position = recorder->position,
        .count = generation->ids->count,
        .ids = generation->ids->ids,
        .log_probabilities = generation->log_probabilities,
    };
    TRY(finish_turn(recorder, generation->facts, generation->reason, generation->stop, error));
    if (run.count > 0) {
        TRY(session_run_append(recorder->store, &run, error));
    }
    return session_message_append(recorder->store, message, error);
}

result recorder_output(
    struct recorder *recorder, const struct recorder_generation *generation, struct error *error
) {
    const struct chat_message *message = generation->message;
    CLEANUP(buffer_deinit) struct buffer calls;
    buffer_init(&calls, SESSION_TEXT_BYTES_MAX);
    if (message->call_count > 0) {
        TRY(write_calls(message, &calls, error));
    }
    const struct session_message_begin begin = {
        .turn = recorder->turn,
        .role = view_of_text("assistant"),
        .text = message->content,
        .reasoning = message->reasoning,
        .calls = buffer_view(&calls),
    };
    TRY(session_batch_begin(recorder->store, error));
    TRY(recorder_batch_end(recorder, append_output(recorder, generation, &begin, error), error));
    recorder->position += (int64_t)generation->ids->count;
    recorder->turn_is_open = false;
    return OK;
}

result recorder_turn_end(
    struct recorder *recorder,
    const struct generation_facts *facts,
    enum finish_reason reason,
    struct error *error
) {
    if (!recorder->turn_is_open) {
        return OK;
    }
    recorder->turn_is_open = false;
    recorder->position = recorder->turn_position;
    return finish_turn(recorder, facts, reason, view_of(NULL, 0), error);
}

result recorder_prompt_finish(
    struct recorder *recorder,
    const struct generation_facts *facts,
    enum finish_reason reason,
    struct error *error
) {
    ASSERT(recorder->turn_is_open);
    TRY(finish_turn(recorder, facts, reason, view_of(NULL, 0), error));
    recorder->turn_is_open = false;
    return OK;
}

/* ---- compaction ----------------------------------------------------------------------------- */

static result append_copies(
    struct recorder *recorder, const struct recorder_compaction *compaction, struct error *error
) {
    const struct chat_message *messages = chat_conversation_messages(compaction->conversation);
    size_t count = chat_conversation_count(compaction->conversation);
    size_t settled = 0;
    for (size_t i = 0; i < count; i++) {
        CLEANUP(buffer_deinit) struct buffer calls;
        buffer_init(&calls, SESSION_TEXT_BYTES_MAX);
        if (messages[i].call_count > 0) {
            TRY(write_calls(&messages[i], &calls, error));
        }
        const struct session_message_begin message = {
            .turn = recorder->turn,
            .role = view_of_text(chat_role_name(messages[i].role)),
            .text = messages[i].content,
            .reasoning = messages[i].reasoning,
            .calls = buffer_view(&calls),
        };
        TRY(session_message_append(recorder->store, &message, error));
        if (settled < compaction->mail_count && compaction->mail[settled].message == i) {
            TRY(settle_mail(recorder, &compaction->mail[settled++], error));
        }
    }
    ASSERT(settled == compaction->mail_count);
    return OK;
}

/* All that decides what a summary says, so that it can be sampled again: a turn of a child, as it is no part
 * of the agent's context. *agent: of the summaries; made when there is none. */
static result append_summary(
    const struct recorder *recorder,
    const struct recorder_compaction *compaction,
    struct session_id *agent,
    struct error *error
) {
    const struct recorder_summary *written = compaction->written;
    struct recorder child = *recorder;
    struct session_sampler *sampler = &child.begin.sampler;
    CLEANUP(buffer_deinit) struct buffer settings;
    buffer_init(&settings, SESSION_TEXT_BYTES_MAX);
    TRY(generation_settings_of_summary(sampler->settings, &settings, error));
    sampler->settings = buffer_view(&settings);
    sampler->effort = CHAT_EFFORT_OFF;
    if (agent->text[0] == '\0') {
        const struct session_agent_begin begin = {
            .session = child.session,
            .parent = child.agent,
            .name = view_of_text(SESSION_AGENT_SUMMARIES),
            .tools = child.tools_json,
            .sampler = *sampler,
        };
        TRY(session_agent_append(child.store, &begin, agent, error));
    }
    TRY(session_turn_start(child.store, agent, &child.turn, error));
    const struct session_run_begin request = {
        .turn = child.turn,
        .kind = SESSION_RUN_PROMPT,
        .position = child.position,
        .count = written->request->count,
        .ids = written->request->ids,
    };
    TRY(session_run_append(child.store, &request, error));
    child.position += (int64_t)written->request->count;
    const struct session_message_begin message = {
        .turn = child.turn,
        .role = view_of_text("assistant"),
        .text = compaction->summary,
    };
    return append_output(&child, &written->generation, &message, error);
}

static result append_compaction(
    struct recorder *recorder,
    const struct recorder_compaction *compaction,
    struct session_id *summaries,
    struct error *error
) {
    if (compaction->written != NULL) {
        TRY(append_summary(recorder, compaction, summaries, error));
    }
    TRY(session_turn_start(recorder->store, &recorder->agent, &recorder->turn, error));
    TRY(append_copies(recorder, compaction, error));
    const struct session_run_begin run = {
        .turn = recorder->turn,
        .kind = SESSION_RUN_PROMPT,
        .count = compaction->ids->count,
        .ids = compaction->ids->ids,
    };
    TRY(session_run_append(recorder->store, &run, error));
    const struct session_compaction_begin begin = {
        .turn = recorder->turn,
        .tokens_before = compaction->tokens_before,
        .tokens_after = (int64_t)compaction->ids->count,
        .pruned = compaction->removed,
        .summary = compaction->summary,
    };
    TRY(session_compaction_append(recorder->store, &begin, error));
    return finish_turn(recorder, compaction->facts, FINISH_LENGTH, view_of(NULL, 0), error);
}

result recorder_append_compaction(
    struct recorder *recorder, const struct recorder_compaction *compaction, struct error *error
) {
    ASSERT(compaction->written == NULL);
    struct session_id none = {""};
    return append_compaction(recorder, compaction, &none, error);
}

result recorder_compaction(
    struct recorder *recorder, const struct recorder_compaction *compaction, struct error *error
) {
    int64_t turn = recorder->turn;
    struct session_id summaries = recorder->summaries;
    ASSERT(!recorder->turn_is_open);
    TRY(session_batch_begin(recorder->store, error));
    result appended = recorder_batch_end(
        recorder, append_compaction(recorder, compaction, &summaries, error), error
    );
    if (is_failed(appended)) {
        recorder->turn = turn;
        return appended;
    }
    recorder->summaries = summaries;
    recorder->position = (int64_t)compaction->ids->count;
    recorder->recorded_messages = chat_conversation_count(compaction->conversation);
    return OK;
}
