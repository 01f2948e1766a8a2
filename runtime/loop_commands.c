/* Commands of the person that read or change the record and the workspace: diff, undo, rewind, fork,
 * sessions, budget. They run while the agent waits; what the agent wants to record meanwhile, and what
 * the person writes, comes afterwards. See loop_internal.h.
 */
#include "loop_internal.h"

#include "lines.h"
#include "rewind.h"
#include <inttypes.h>

#define SESSIONS_SHOWN 10
#define ID_BYTES_SHOWN 18 /* of an id: its time, and enough of what is random */
#define TASK_COLUMNS   34 /* so that a session takes one row of 80 columns */

struct run_command_work {
    struct run *run;
    enum run_command command;
    int64_t turn; /* REWIND: from 1; 0: before the first */
    uv_work_t work;
    result worked;
    struct error error;
    struct buffer text; /* for the person */
    bool has_difference;
    struct workspace_difference difference;
    char base[WORKSPACE_COMMIT_BYTES];   /* DIFF: before the session */
    char commit[WORKSPACE_COMMIT_BYTES]; /* DIFF, FORK: the present state */
    struct workspace_undone undone;
    /* REWIND: what the context is now */
    struct resume resume;
    struct chat_conversation *conversation; /* with the tools in its head */
};

static void note(struct run *run, enum run_event_type type, struct view text) {
    struct run_event event = {.type = type, .text = text};
    run_show(run, &event);
}

static void command_destroy(struct run_command_work *work) {
    buffer_deinit(&work->text);
    workspace_difference_deinit(&work->difference);
    resume_deinit(&work->resume);
    chat_conversation_destroy(work->conversation);
    free(work);
}

/* ---- on a worker ---------------------------------------------------------------------------- */

/* The session, also one that has not gone on yet. */
static const struct session_id *session_of(const struct run_command_work *work) {
    const struct run *run = work->run;
    bool has_begun = run->recorder.session.text[0] != '\0';
    return has_begun ? &run->recorder.session : &run->resume->session;
}

static result take_snapshot(struct run_command_work *work, const char *why, struct error *error) {
    struct workspace_snapshot now;
    TRY(workspace_take_snapshot(work->run->recorder.workspace, why, &now, error));
    memcpy(work->commit, now.commit, sizeof work->commit);
    return OK;
}

static result work_diff(struct run_command_work *work, struct error *error) {
    struct recorder *recorder = &work->run->recorder;
    bool has_begun = recorder->session.text[0] != '\0';
    const char *base = has_begun ? recorder->commit_base : work->run->resume->commit_first;
    if (recorder->workspace == NULL || base[0] == '\0') {
        FAIL(error, NOT_FOUND, "there is nothing to compare with: no snapshot was taken yet");
    }
    memcpy(work->base, base, sizeof work->base);
    TRY(take_snapshot(work, "for a difference", error));
    result compared = workspace_compare(
        recorder->workspace, base, work->commit, RECORDER_PATCH_BYTES_MAX, &work->difference, error
    );
    TRY(rewind_note_lost(compared, session_of(work), error));
    work->has_difference = true;
    return OK;
}

static result
load_tree(const struct run_command_work *work, struct session_tree **out, struct error *error) {
    const struct session_load_options options = {
        .with_tokens = work->command == RUN_COMMAND_REWIND};
    return session_load(work->run->recorder.store, session_of(work), &options, out, error);
}

static result require_workspace(const struct run_command_work *work, struct error *error) {
    if (work->run->recorder.workspace == NULL) {
        FAIL(error, NOT_FOUND, "this run keeps no snapshots of its workspace");
    }
    return OK;
}

/* Nothing that the agent started changes files while they are put back. */
static void settle(const struct run_command_work *work) {
    const struct tool_ports *tools = &work->run->options->tools;
    if (tools->settle != NULL) {
        tools->settle(tools->context);
    }
}

static result work_undo(struct run_command_work *work, struct error *error) {
    struct recorder *recorder = &work->run->recorder;
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    TRY(require_workspace(work, error));
    TRY(load_tree(work, &tree, error));
    settle(work);
    TRY(rewind_undo(recorder->store, tree, recorder->workspace, &work->undone, error));
    recorder_put_back(recorder, work->undone.after);
    return buffer_append_format(
        &work->text,
        error,
        "%zu file%s put back",
        work->undone.files,
        work->undone.files == 1 ? "" : "s"
    );
}

static result work_fork(struct run_command_work *work, struct error *error) {
    struct recorder *recorder = &work->run->recorder;
    memcpy(work->commit, recorder->commit_last, sizeof work->commit);
    if (work->commit[0] == '\0' && recorder->workspace != NULL) {
        TRY(take_snapshot(work, "before a fork", error));
    }
    struct session_fork_begin begin = {
        .session = *session_of(work),
        .commit = view_of_text(work->commit),
        .program_version = recorder->begin.program_version,
    };
    TRY(session_last_whole_turn(recorder->store, &begin.session, INT64_MAX, &begin.index, error));
    struct session_id id;
    TRY(session_fork(recorder->store, &begin, &id, error));
    return buffer_append_format(
        &work->text,
        error,
        "session %s begins where this one stands (turn %" PRId64 "): hearth run --resume %s%s",
        id.text,
        begin.index + 1,
        id.text,
        work->run->options->state_option != NULL ? work->run->options->state_option : ""
    );
}

static result work_sessions(struct run_command_work *work, struct error *error) {
    const struct session_filter filter = {.count_max = SESSIONS_SHOWN};
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    TRY(session_list_load(work->run->recorder.store, &filter, &list, error));
    for (size_t i = 0; i < list->count; i++) {
        const struct session_summary *session = &list->sessions[i];
        struct view task = session->begin.task;
        size_t newline = view_find(task, view_of_text("\n"), 0);
        task = text_in_columns(view_slice(task, 0, newline), TASK_COLUMNS);
        TRY(buffer_append_format(
            &work->text,
            error,
            "%s%.*s  %-11s %3" PRId64 " turns  %.*s",
            i > 0 ? "\n" : "",
            ID_BYTES_SHOWN,
            session->id.text,
            session_status_name(session->status),
            session->usage.turns,
            VIEW_ARGUMENTS(task)
        ));
    }
    return OK;
}

result run_declare_tools(
    const struct run *run,
    const struct resume *resume,
    struct chat_conversation **out,
    struct error *error
) {
    const struct run_declared *declared = &run->declared;
    const struct chat_message *messages = chat_conversation_messages(resume->conversation);
    CLEANUP(chat_conversation_cleanup) struct chat_conversation *made = NULL;
    TRY(chat_conversation_create(&made, error));
    for (size_t i = 0; i < chat_conversation_count(resume->conversation); i++) {
        struct chat_message message = messages[i];
        if (i == 0) {
            message.tools = declared->tools;
            message.tool_count = declared->tool_count;
        }
        TRY(chat_conversation_append(made, &message, error));
    }
    *out = TAKE(made);
    return OK;
}

static result work_rewind(struct run_command_work *work, struct error *error) {
    const struct run_options *options = work->run->options;
    struct recorder *recorder = &work->run->recorder;
    CLEANUP(session_tree_cleanup) struct session_tree *before = NULL;
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    TRY(load_tree(work, &before, error));
    settle(work);
    TRY(rewind_to_turn(
        recorder->store, before, recorder->workspace, work->turn - 1, &work->undone, error
    ));
    recorder_put_back(recorder, work->undone.after);
    TRY(load_tree(work, &tree, error));
    const struct resume_options resume = {
        .tokenizer = options->tokenizer,
        .vocabulary = options->engine_info.vocabulary,
        .end_id = chat_encoder_end_id(options->encoder),
        .system = options->agent.system,
        .waits = work->turn == 0, /* another task comes */
    };
    TRY(resume_make(tree, &resume, &work->resume, error));
    TRY(run_declare_tools(work->run, &work->resume, &work->conversation, error));
    return buffer_append_format(
        &work->text,
        error,
        "back %s turn %" PRId64 ": %zu tokens of context, %zu file%s put back",
        work->turn > 0 ? "behind" : "before",
        work->turn > 0 ? work->turn : 1,
        work->resume.ids.count,
        work->undone.files,
        work->undone.files == 1 ? "" : "s"
    );
}

static void work_do(uv_work_t *request) {
    struct run_command_work *work = request->data;
    struct error *error = &work->error;
    work->worked = work->command == RUN_COMMAND_DIFF     ? work_diff(work, error)
                   : work->command == RUN_COMMAND_UNDO   ? work_undo(work, error)
                   : work->command == RUN_COMMAND_FORK   ? work_fork(work, error)
                   : work->command == RUN_COMMAND_REWIND ? work_rewind(work, error)
                                                         : work_sessions(work, error);
}

/* ---- on the loop ---------------------------------------------------------------------------- */

static void tell_model(struct run *run, const char *text) {
    run_dispatch(run, &(struct agent_event){.type = AGENT_TELL, .text = view_of_text(text)});
}

/* The run goes on from the earlier context, on a sequence of its own: what it shares with the old one is
 * in the cache. */
static void take_rewind(struct run_command_work *work) {
    struct run *run = work->run;
    const struct engine_ports *engine = &run->options->engine;
    uint64_t sequence = 0;
    work->worked = engine->create(engine->context, &sequence, &work->error);
    if (is_ok(work->worked)) {
        token_list_clear(&run->context_ids);
        work->worked = token_list_append_all(
            &run->context_ids, work->resume.ids.ids, work->resume.ids.count, &work->error
        );
    }
    if (is_failed(work->worked)) { /* the record is rewound: a resume finds it so */
        run_dispatch(
            run,
            &(struct agent_event){.type = AGENT_QUIT, .text = view_of_text(work->error.message)}
        );
        return;
    }
    engine->tell(engine->context, run->sequence, SEQUENCE_ABANDONED, 0);
    engine->destroy(engine->context, run->sequence);
    run->sequence = sequence;
    resume_deinit(&run->rewound);
    run->rewound = work->resume;
    work->resume = (struct resume){0};
    run->resume = &run->rewound;
    run->is_resuming = true;
    run->status.context_tokens = narrow_i32((int64_t)run->rewound.ids.count);
    recorder_rewound(&run->recorder, &run->rewound);
    const struct agent_event event = {
        .type = AGENT_REWOUND,
        .conversation = work->conversation, /* which takes it */
        .context_messages = run->rewound.context_messages,
        .end_is_missing = run->rewound.end_is_missing,
        .context_tokens = run->status.context_tokens,
    };
    work->conversation = NULL;
    run_dispatch(run, &event);
}

static void show_result(struct run_command_work *work) {
    struct run *run = work->run;
    if (is_failed(work->worked)) {
        note(run, RUN_WARNING, view_of_text(work->error.message));
        return;
    }
    if (work->has_difference) {
        struct run_event changes = {
            .type = RUN_CHANGES,
            .difference = &work->difference,
            .commit_before = work->base,
            .commit_after = work->commit,
            .shows_patch = true,
        };
        run_show(run, &changes);
    }
    struct view rest = buffer_view(&work->text);
    while (rest.length > 0) { /* one note a line */
        size_t end = view_find(rest, view_of_text("\n"), 0);
        end = end == SIZE_MAX ? rest.length : end;
        note(run, RUN_NOTE, view_slice(rest, 0, end));
        rest = view_slice(rest, end + 1, rest.length);
    }
}

static void work_done(uv_work_t *request, int status) {
    struct run_command_work *work = request->data;
    struct run *run = work->run;
    ASSERT(status == 0); /* never cancelled in the pool's queue */
    bool is_idle = agent_is_idle(run->agent);
    run->command = NULL;
    if (is_ok(work->worked) && work->command == RUN_COMMAND_REWIND && is_idle) {
        take_rewind(work);
    } else if (is_ok(work->worked) && work->command == RUN_COMMAND_UNDO) {
        tell_model(run, "The user took back the last change of files: read them again.");
    }
    show_result(work);
    command_destroy(work);
    run_release_held(run);
    run_leave(run);
}

void run_release_held(struct run *run) {
    if (run->has_postponed) {
        run_step_postponed(run);
    }
    for (size_t i = 0; i < run->held_count; i++) {
        struct buffer held = run->held[i];
        const struct run_input message = {.type = RUN_INPUT_MESSAGE, .text = buffer_view(&held)};
        run_take_input(run, &message);
        buffer_deinit(&held);
    }
    run->held_count = 0;
}

static bool read_turn(struct view text, int64_t *out) {
    int64_t value = 0;
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] < '0' || text.data[i] > '9' || value > INT32_MAX) {
            return false;
        }
        value = 10 * value + (text.data[i] - '0');
    }
    *out = value;
    return text.length > 0;
}

static void command_start(struct run *run, enum run_command command, int64_t turn) {
    struct run_command_work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        note(run, RUN_WARNING, view_of_text("no memory for a command"));
        return;
    }
    buffer_init(&work->text, (size_t)1 << 20);
    work->run = run;
    work->command = command;
    work->turn = turn;
    work->work.data = work;
    run->command = work;
    int status = uv_queue_work(&run->loop->uv, &work->work, work_do, work_done);
    ASSERT(status == 0); /* fails only without a work function */
}

/* It reads the workspace alone, so that a generation, a compaction or a call may go on beside it. */
void run_command_waiting(struct run *run) {
    bool is_free = !run->step_is_running && !run->is_preparing && run->command == NULL &&
                   run->change == NULL && !run->is_ending;
    if (!run->diff_waits || !is_free) {
        return;
    }
    /* Only now: a step may be writing it. */
    if (run->recorder.session.text[0] != '\0' || run->resume != NULL) {
        run->diff_waits = false;
        command_start(run, RUN_COMMAND_DIFF, 0);
    }
}

void run_command(struct run *run, const struct run_input *input) {
    int64_t turn = 0;
    if (run_tell(run, input->command)) {
        return;
    }
    if (input->command == RUN_COMMAND_REWIND && !read_turn(input->text, &turn)) {
        note(run, RUN_NOTE, view_of_text("/rewind N: N is the last turn that stays, 0 for none"));
        return;
    }
    if (input->command == RUN_COMMAND_DIFF && !agent_is_idle(run->agent)) {
        run->diff_waits = true;
        if (run->step_is_running) {
            note(run, RUN_NOTE, view_of_text("the difference comes when this step is over"));
        }
        run_command_waiting(run);
        return;
    }
    if (!agent_is_idle(run->agent) || run->command != NULL || run->change != NULL) {
        note(run, RUN_NOTE, view_of_text("it works: interrupt it first, or wait"));
        return;
    }
    if (!agent_has_begun(run->agent) && run->resume == NULL &&
        input->command != RUN_COMMAND_SESSIONS) {
        note(run, RUN_NOTE, view_of_text("nothing was done in this session yet"));
        return;
    }
    command_start(run, input->command, turn);
}

bool run_command_holds(struct run *run, struct view message) {
    if (run->command == NULL && run->change == NULL) {
        return false;
    }
    if (run->held_count == RUN_HELD_MAX) {
        note(run, RUN_WARNING, view_of_text("the message was not taken: too many wait already"));
        return true;
    }
    struct error error = {0};
    struct buffer *held = &run->held[run->held_count];
    buffer_init(held, message.length);
    if (is_failed(buffer_append(held, message, &error))) {
        buffer_deinit(held);
        note(run, RUN_WARNING, view_of_text(error.message));
        return true;
    }
    run->held_count++;
    return true;
}

void run_command_deinit(struct run *run) {
    for (size_t i = 0; i < run->held_count; i++) {
        buffer_deinit(&run->held[i]);
    }
    resume_deinit(&run->rewound);
}
