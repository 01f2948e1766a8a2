/* How what is recorded ends: a session, a node of a swarm, a swarm with its session. See recorder.h. */
#include "recorder_internal.h"

/* What became of the workspace. */
static result look_at_changes(struct recorder *recorder, struct error *error) {
    /* A call that failed in between may have left changes behind. */
    if (recorder->tree_may_differ) {
        TRY(recorder_snapshot(recorder, "after the run", error));
    }
    bool is_known = recorder->commit_base[0] != '\0' && recorder->commit_last[0] != '\0';
    recorder->difference_is_unknown = recorder->workspace != NULL && !is_known;
    if (recorder->workspace != NULL && is_known) {
        TRY_NOTE(
            error,
            workspace_compare(
                recorder->workspace,
                recorder->commit_base,
                recorder->commit_last,
                RECORDER_PATCH_BYTES_MAX,
                &recorder->difference,
                error
            ),
            "while comparing the workspace with its state before the run"
        );
    }
    return OK;
}

const char *recorder_changed_commit(const struct recorder *recorder) {
    return recorder->difference.file_count > 0 ? recorder->commit_last : "";
}

static result
finish_session(struct recorder *recorder, const struct recorder_end *end, struct error *error) {
    const struct session_end finish = {
        .status = end->status,
        .verdict = view_of_text(end->verdict),
        .stop_reason = view_of_text(end->stop_reason),
        .commit_after = view_of_text(recorder->commit_last),
        .exit_status = end->exit_status,
    };
    return session_finish(recorder->store, &recorder->session, &finish, error);
}

result
recorder_end(struct recorder *recorder, const struct recorder_end *end, struct error *error) {
    TRY(look_at_changes(recorder, error));
    /* Without one the session itself could not be recorded. */
    return recorder->session.text[0] != '\0' ? finish_session(recorder, end, error) : OK;
}

/* A failure that was no reason not to record the end. */
static result pass_on(result looked, const struct error *trouble, struct error *error) {
    if (is_failed(looked) && error != NULL) {
        *error = *trouble;
    }
    return looked;
}

result recorder_node_end(
    struct recorder *recorder, const struct session_node_end *end, struct error *error
) {
    ASSERT(recorder->node != NULL);
    struct error trouble = {0};
    result looked = look_at_changes(recorder, &trouble);
    if (recorder->agent.text[0] == '\0') {
        return OK; /* the node itself could not be recorded */
    }
    struct session_node_end whole = *end;
    if (is_failed(looked)) { /* its directory is gone, the disk is full: it ends all the same */
        recorder->difference_is_unknown = true;
        whole.ending = view_of_text("fault");
        whole.detail = view_of_text(trouble.message);
    }
    whole.commit_after = view_of_text(recorder_changed_commit(recorder));
    whole.changed_lines =
        (int64_t)(recorder->difference.lines_added + recorder->difference.lines_removed);
    TRY(session_node_end(recorder->store, &recorder->agent, &whole, error));
    return pass_on(looked, &trouble, error);
}

result recorder_swarm_end(
    struct recorder *recorder,
    int64_t swarm,
    const struct session_swarm_end *swarm_end,
    const struct recorder_end *end,
    struct error *error
) {
    struct error trouble = {0};
    result looked = look_at_changes(recorder, &trouble);
    recorder->difference_is_unknown = recorder->difference_is_unknown || is_failed(looked);
    struct session_swarm_end whole = *swarm_end;
    whole.commit_after = view_of_text(recorder->commit_last);
    TRY(session_batch_begin(recorder->store, error));
    result finished = session_swarm_finish(recorder->store, swarm, &whole, error);
    result appended = finished;
    if (is_ok(appended)) {
        appended = finish_session(recorder, end, error);
    }
    appended = recorder_batch_end(recorder, appended, error);
    if (finished.code == RESULT_INVALID_INPUT) {
        // The end of an agent could not be recorded: the session ends all the same, which tells it as lost.
        result ended = finish_session(recorder, end, NULL);
        result_ignore(ended); // the first failure is the one to tell
    }
    TRY(appended);
    return pass_on(looked, &trouble, error);
}
