/* See rewind.h. What is still to be undone is found by going through calls and ways back in their order. */
#include "rewind.h"

/* The snapshots around calls as C strings, for workspace_undo. */
struct stretches {
    struct workspace_stretch *items;
    char (*names)[WORKSPACE_COMMIT_BYTES]; /* two an item */
    int64_t *turns;                        /* index of each item's */
    size_t count;
};

static void stretches_deinit(struct stretches *stretches) {
    free(stretches->items);
    free(stretches->names);
    free(stretches->turns);
}

static size_t call_count(const struct session_agent *agent) {
    size_t count = 0;
    for (size_t i = 0; i < agent->turn_count; i++) {
        count += agent->turns[i].call_count;
    }
    return count;
}

static result stretches_init(
    struct stretches *stretches, const struct session_agent *agent, struct error *error
) {
    size_t count = call_count(agent) + 1;
    stretches->items = calloc(count, sizeof *stretches->items);
    stretches->names = calloc(2 * count, sizeof *stretches->names);
    stretches->turns = calloc(count, sizeof *stretches->turns);
    if (stretches->items == NULL || stretches->names == NULL || stretches->turns == NULL) {
        FAIL(error, MEMORY, "no memory for %zu calls", count);
    }
    return OK;
}

static bool has_changed(const struct session_call *call) {
    return call->commit_before.length == WORKSPACE_COMMIT_BYTES - 1 &&
           call->commit_after.length == WORKSPACE_COMMIT_BYTES - 1 &&
           !view_equals(call->commit_before, call->commit_after);
}

static void push(struct stretches *stretches, const struct session_call *call, int64_t turn) {
    char *from = stretches->names[2 * stretches->count];
    char *to = stretches->names[2 * stretches->count + 1];
    memcpy(from, call->commit_before.data, WORKSPACE_COMMIT_BYTES - 1);
    memcpy(to, call->commit_after.data, WORKSPACE_COMMIT_BYTES - 1);
    stretches->turns[stretches->count] = turn;
    stretches->items[stretches->count++] = (struct workspace_stretch){from, to};
}

/* An undo took the newest change of its time; a rewind those of all turns behind its own, whether it put
 * files back or was told to leave them. */
static void take_back(struct stretches *stretches, const struct session_rewound *rewound) {
    if (rewound->index == SESSION_REWIND_WORKSPACE_ONLY) {
        stretches->count -= stretches->count > 0 ? 1 : 0;
        return;
    }
    while (stretches->count > 0 && stretches->turns[stretches->count - 1] > rewound->index) {
        stretches->count--;
    }
}

/* What calls changed and nobody took back yet, oldest first; of that *from begins behind turn `index`. */
static void collect(
    const struct session_agent *agent, int64_t index, struct stretches *stretches, size_t *from
) {
    size_t back = 0;
    for (size_t i = 0; i < agent->turn_count; i++) {
        const struct session_turn *turn = &agent->turns[i];
        for (size_t k = 0; k < turn->call_count; k++) {
            const struct session_call *call = &turn->calls[k];
            while (back < agent->rewind_count && agent->rewinds[back].rewound_ms <= call->started_ms
            ) {
                take_back(stretches, &agent->rewinds[back++]);
            }
            if (has_changed(call)) {
                push(stretches, call, turn->index);
            }
        }
    }
    while (back < agent->rewind_count) {
        take_back(stretches, &agent->rewinds[back++]);
    }
    for (*from = stretches->count; *from > 0 && stretches->turns[*from - 1] > index;) {
        --*from;
    }
}

struct view rewind_commit_behind(const struct session_tree *tree, int64_t index) {
    struct view commit = tree->session.begin.commit_before;
    int64_t changed_ms = 0;
    for (size_t i = 0; tree->agent_count > 0 && i < tree->agents[0].turn_count; i++) {
        const struct session_turn *turn = &tree->agents[0].turns[i];
        for (size_t k = 0; !turn->is_rewound && turn->index <= index && k < turn->call_count; k++) {
            struct view after = turn->calls[k].commit_after;
            commit = after.length > 0 ? after : commit;
            changed_ms = after.length > 0 ? turn->calls[k].ended_ms : changed_ms;
        }
    }
    size_t rewinds = tree->agent_count > 0 ? tree->agents[0].rewind_count : 0;
    for (size_t i = 0; index == INT64_MAX && i < rewinds; i++) {
        const struct session_rewound *back = &tree->agents[0].rewinds[i];
        bool is_last = back->commit_after.length > 0 && back->rewound_ms >= changed_ms;
        commit = is_last ? back->commit_after : commit;
    }
    return commit;
}

static result require_agent(const struct session_tree *tree, struct error *error) {
    if (tree->agent_count == 0) {
        FAIL(error, NOT_FOUND, "session %s has no turn yet", tree->session.id.text);
    }
    return OK;
}

result rewind_note_lost(result failed, const struct session_id *session, struct error *error) {
    return failed.code != RESULT_NOT_FOUND ? failed
                                           : error_note(
                                                 error,
                                                 failed,
                                                 "session %s: a snapshot that this needs is not "
                                                 "there any more; the oldest go when "
                                                 "all take more than sessions.snapshots_max",
                                                 session->text
                                             );
}

result rewind_to_turn(
    struct session_store *store,
    const struct session_tree *tree,
    struct workspace *workspace,
    int64_t index,
    struct workspace_undone *out,
    struct error *error
) {
    *out = (struct workspace_undone){0};
    TRY(require_agent(tree, error));
    struct session_rewind_begin begin = {.session = tree->session.id, .index = index};
    int64_t whole = SESSION_REWIND_ALL;
    if (index >= 0) { /* before files are touched */
        TRY(session_last_whole_turn(store, &tree->session.id, index, &whole, error));
        if (whole != index) {
            FAIL(
                error,
                INVALID_INPUT,
                "turn %lld is none to go back to (it is not in the context, or has calls without "
                "an "
                "answer); turn %lld is",
                (long long)index + 1,
                (long long)whole + 1
            );
        }
    }
    if (workspace != NULL) {
        CLEANUP(stretches_deinit) struct stretches stretches = {0};
        TRY(stretches_init(&stretches, &tree->agents[0], error));
        size_t from = 0;
        collect(&tree->agents[0], index, &stretches, &from);
        result undone =
            workspace_undo(workspace, stretches.items + from, stretches.count - from, out, error);
        TRY(rewind_note_lost(undone, &tree->session.id, error));
        begin.commit_before = view_of_text(out->before);
        begin.commit_after = view_of_text(out->after);
    }
    return session_rewind(store, &begin, error);
}

result rewind_undo(
    struct session_store *store,
    const struct session_tree *tree,
    struct workspace *workspace,
    struct workspace_undone *out,
    struct error *error
) {
    *out = (struct workspace_undone){0};
    TRY(require_agent(tree, error));
    CLEANUP(stretches_deinit) struct stretches stretches = {0};
    TRY(stretches_init(&stretches, &tree->agents[0], error));
    size_t from = 0;
    collect(&tree->agents[0], -1, &stretches, &from);
    if (stretches.count == 0) {
        FAIL(error, NOT_FOUND, "no call of this session changed files, or all are undone");
    }
    result undone = workspace_undo(workspace, &stretches.items[stretches.count - 1], 1, out, error);
    TRY(rewind_note_lost(undone, &tree->session.id, error));
    const struct session_rewind_begin begin = {
        .session = tree->session.id,
        .index = SESSION_REWIND_WORKSPACE_ONLY,
        .commit_before = view_of_text(out->before),
        .commit_after = view_of_text(out->after),
    };
    return session_rewind(store, &begin, error);
}
