/* See run_tools.h. What a session that goes on gets back from its record beside its context. */
#include "run_tools.h"

/* Rules that the person's answers "always" made, in this session; those of others do not count. */
static void restore_answers(struct run_host *host) {
    const struct session_tree *record = host->record;
    for (size_t i = 0; i < record->decision_count; i++) {
        const struct session_decision *decision = &record->decisions[i];
        struct view pattern;
        if (!decision->is_allowed || !view_equals_text(decision->kind, "tool") ||
            !view_equals_text(decision->decider, "person") ||
            !run_always_parse(decision->rule, &pattern)) {
            continue;
        }
        struct error error = {0};
        if (is_failed(permission_add_session(host->permission, decision->subject, pattern, &error)
            )) {
            run_host_say(host, RUN_WARNING, view_of_text(error.message)); /* it is asked again */
        }
    }
}

/* The list that the model wrote last. */
static const struct session_call *last_todo(const struct session_agent *agent) {
    for (size_t i = agent->turn_count; i > 0; i--) {
        const struct session_turn *turn = &agent->turns[i - 1];
        for (size_t k = turn->is_rewound ? 0 : turn->call_count; k > 0; k--) {
            const struct session_call *call = &turn->calls[k - 1];
            if (call->status == SESSION_CALL_OK && tool_is_todo(call->name)) {
                return call;
            }
        }
    }
    return NULL;
}

result run_tools_restore(struct run_host *host, struct error *error) {
    restore_answers(host);
    const struct session_call *todo =
        host->record->agent_count > 0 ? last_todo(&host->record->agents[0]) : NULL;
    return todo == NULL
               ? OK
               : tool_context_restore_todo(host->tools, todo->name, todo->arguments, error);
}
