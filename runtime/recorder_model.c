/* A session that goes on under another model; see recorder.h. The fork begins with a turn that holds the whole
 * conversation and no tokens, for those of the old model mean nothing to the new one. */
#include "recorder_internal.h"

#include <inttypes.h>

static result begin_fork(
    const struct recorder *recorder,
    const struct recorder_model *model,
    struct view commit,
    const char *numerics,
    struct session_id *out,
    struct error *error
) {
    struct session_fork_begin begin = {
        .session = *model->session,
        .commit = commit,
        .program_version = recorder->begin.program_version,
        .model = model->model,
        .model_digest = view_of_text(model->engine->model_digest),
        .backend = view_of_text(model->engine->backend),
        .numerics_version = view_of_text(numerics),
    };
    TRY(session_last_whole_turn(recorder->store, model->session, INT64_MAX, &begin.index, error));
    return session_fork(recorder->store, &begin, out, error);
}

/* The first turn of the fork. */
static result append_conversation(
    const struct recorder *recorder,
    const struct session_id *fork,
    const struct recorder_model *model,
    const struct resume *before,
    struct error *error
) {
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    const struct session_load_options without_tokens = {.with_tokens = false};
    TRY(session_load(recorder->store, fork, &without_tokens, &tree, error));
    ASSERT(tree->agent_count > 0); /* a fork has its agent */
    CLEANUP(buffer_deinit) struct buffer summary;
    buffer_init(&summary, 8192);
    TRY(buffer_append_text(&summary, "the whole conversation, under another model: ", error));
    TRY(buffer_append(&summary, model->model, error));
    CLEANUP(token_list_deinit) struct token_list none;
    token_list_init(&none, TOKEN_LIST_CEILING_DEFAULT);
    const struct recorder_compaction begin = {
        .conversation = before->conversation,
        .ids = &none,
        .tokens_before = (int64_t)before->ids.count,
        .summary = buffer_view(&summary),
    };
    struct recorder appender = {
        .store = recorder->store,
        .begin = recorder->begin,
        .engine = *model->engine,
        .session = *fork,
        .agent = tree->agents[0].id,
    };
    return recorder_append_compaction(&appender, &begin, error);
}

static result change_session(
    struct recorder *recorder,
    const struct recorder_model *model,
    const struct resume *before,
    struct view commit_before,
    struct session_id *fork,
    struct error *error
) {
    char numerics[16];
    int length = snprintf(numerics, sizeof numerics, "%" PRIu32, model->engine->numerics);
    ASSERT(length > 0);
    bool runs = recorder->session.text[0] != '\0';
    struct view commit = runs ? view_of_text(recorder->commit_last) : commit_before;
    const struct session_resume_begin again = {
        .backend = view_of_text(model->engine->backend),
        .numerics_version = view_of_text(numerics),
        .program_version = recorder->begin.program_version,
        .commit_before = commit,
    };
    const struct session_end stopped = {
        .status = SESSION_STOPPED,
        .verdict = view_of_text("goes on under another model"),
        .stop_reason = view_of_text("model"),
        .commit_after = commit,
    };
    TRY(begin_fork(recorder, model, commit, numerics, fork, error));
    TRY(session_resume(recorder->store, fork, &again, error));
    TRY(append_conversation(recorder, fork, model, before, error));
    /* Only one of the two runs: the fork, once the person has said something. */
    return session_finish(recorder->store, runs ? model->session : fork, &stopped, error);
}

result recorder_fork_model(
    struct recorder *recorder,
    const struct recorder_model *model,
    struct resume *out,
    struct error *error
) {
    const struct session_load_options with_tokens = {.with_tokens = true};
    CLEANUP(session_tree_cleanup) struct session_tree *old = NULL;
    CLEANUP(session_tree_cleanup) struct session_tree *made = NULL;
    CLEANUP(resume_deinit) struct resume before = {0};
    CLEANUP(resume_deinit) struct resume after = {0};
    struct session_id fork;
    TRY(session_load(recorder->store, model->session, &with_tokens, &old, error));
    TRY(resume_make(old, &model->resume, &before, error));
    TRY(session_batch_begin(recorder->store, error));
    result appended =
        change_session(recorder, model, &before, old->session.commit_after, &fork, error);
    if (is_ok(appended)) {
        appended = session_load(recorder->store, &fork, &with_tokens, &made, error);
    }
    struct resume_options options = model->resume;
    options.vocabulary = model->engine->vocabulary;
    if (is_ok(appended)) {
        appended = resume_make(made, &options, &after, error);
    }
    if (is_failed(appended)) {
        session_batch_rollback(recorder->store);
        return appended;
    }
    TRY(session_batch_commit(recorder->store, error));
    *out = after;
    after = (struct resume){0};
    return OK;
}
