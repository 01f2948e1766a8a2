/* Calls and what was decided about them. See recorder.h. */
#include "recorder_internal.h"

result
recorder_call_start(struct recorder *recorder, const struct chat_call *call, struct error *error) {
    const struct session_call_begin begin = {
        .turn = recorder->turn,
        .name = call->name,
        .arguments = call->arguments,
        .commit_before = view_of_text(recorder->commit_last),
    };
    TRY(session_call_start(recorder->store, &begin, &recorder->call, error));
    const struct tool_descriptor *tool = tool_find(call->name);
    /* A tool that is not ours, a server's, may do anything. */
    recorder->tree_may_differ =
        tool == NULL || (tool->effects & (TOOL_WRITES | TOOL_EXECUTES | TOOL_FOREIGN)) != 0;
    return OK;
}

result recorder_decision(
    struct recorder *recorder, const struct session_decision_begin *decision, struct error *error
) {
    struct session_decision_begin whole = *decision;
    whole.session = recorder->session;
    whole.turn = recorder->turn;
    whole.call = recorder->call;
    return session_decision_append(recorder->store, &whole, error);
}

static enum session_call_status call_status(enum tool_status status) {
    static const enum session_call_status statuses[] = {
        [TOOL_OK] = SESSION_CALL_OK,
        [TOOL_ERROR] = SESSION_CALL_ERROR,
        [TOOL_TIMEOUT] = SESSION_CALL_TIMEOUT,
        [TOOL_CANCELLED] = SESSION_CALL_CANCELLED,
        [TOOL_REFUSED] = SESSION_CALL_REFUSED,
    };
    return statuses[status];
}

static result append_result(
    struct recorder *recorder,
    const struct session_call_end *end,
    const struct view *answer,
    struct error *error
) {
    TRY(session_call_finish(recorder->store, recorder->call, end, error));
    if (answer == NULL) {
        return OK;
    }
    const struct session_message_begin message = {
        .turn = recorder->turn,
        .role = view_of_text("tool"),
        .text = *answer,
        .call = recorder->call,
    };
    return session_message_append(recorder->store, &message, error);
}

/* One batch; `addition` null: without it. */
static result record_result(
    struct recorder *recorder,
    const struct session_call_end *end,
    const struct view *answer,
    struct recorder_addition *addition,
    struct error *error
) {
    TRY(session_batch_begin(recorder->store, error));
    result appended = append_result(recorder, end, answer, error);
    if (is_ok(appended) && addition != NULL) {
        appended = addition->append(addition->context, error);
        addition->appended = appended;
    }
    return recorder_batch_end(recorder, appended, error);
}

result recorder_call_finish(
    struct recorder *recorder,
    const struct tool_result *value,
    struct view answer,
    struct recorder_addition *addition,
    struct error *error
) {
    struct session_call_end end = {
        .status = SESSION_CALL_CANCELLED,
        .text = view_of_text("not started: the run was stopped"),
    };
    if (value != NULL) {
        end = (struct session_call_end){
            .status = call_status(value->status),
            .text = buffer_view(&value->text),
            .output = buffer_view(&value->output),
            .output_bytes = value->output_bytes,
            .text_is_truncated = value->text_is_truncated,
            .has_exit_status = value->has_exit_status,
            .exit_status = value->exit_status,
            .duration_ms = value->duration_ms,
        };
        if (recorder->tree_may_differ) {
            TRY(recorder_snapshot(recorder, "after a call", error));
        }
    }
    end.commit_after = view_of_text(recorder->commit_last);
    const struct view *text = value != NULL ? &answer : NULL;
    if (addition != NULL) {
        addition->appended = OK;
    }
    result recorded = record_result(recorder, &end, text, addition, error);
    bool is_refused = addition != NULL && (addition->appended.code == RESULT_INVALID_INPUT ||
                                           addition->appended.code == RESULT_LIMIT);
    return is_refused ? record_result(recorder, &end, text, NULL, error) : recorded;
}
