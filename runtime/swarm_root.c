/* See swarm_root.h. One thing is under way at a time: a job on a worker, or the generation that evaluates the prompt. */
#include "swarm_root.h"

#include "recorder.h"

enum root_phase {
    ROOT_BEGINS,    /* job: snapshot, session, agent, the turn with its prompt */
    ROOT_EVALUATES, /* generation */
    ROOT_STARTS,    /* job: end of the turn, the swarm */
    ROOT_GIVES_UP,  /* job: end of a session that could not be opened */
    ROOT_IS_OPEN,
    ROOT_FINISHES, /* job */
    ROOT_IS_OVER
};

struct swarm_root {
    struct swarm_root_options options;
    enum root_phase phase;
    struct recorder recorder;
    struct chat_conversation *conversation; /* the system's message */
    struct token_list ids;
    int64_t swarm;
    struct loop_job job;
    result worked; /* of the job, or of what made it give up */
    struct error error;
    struct loop_generation generation;
    struct generation_facts facts;
    enum finish_reason reason;
    bool is_cancelled;
    char why[AGENT_DETAIL_BYTES];
    enum agent_stop stop; /* why it gives up */
    struct swarm_root_end end;
    void (*finished)(void *context, result finished, const struct error *error);
};

/* ---- on a worker ---------------------------------------------------------------------------- */

static result work_begin(struct swarm_root *root, struct error *error) {
    const struct swarm_root_options *options = &root->options;
    TRY(recorder_begin(&root->recorder, error));
    struct chat_options chat = chat_options_default();
    chat.effort = options->effort;
    chat.keep_thinking = true; /* as agents have it */
    const struct recorder_turn turn = {
        .encoder = options->encoder,
        .conversation = root->conversation,
        .options = chat,
        .tokens_max = options->engine_info.context_max - 1,
    };
    bool fits = false;
    TRY(recorder_turn_start(&root->recorder, &turn, &root->ids, &fits, error));
    if (!fits) {
        FAIL(
            error,
            LIMIT,
            "system text and tools have %zu tokens, the context no more than %d",
            root->ids.count,
            options->engine_info.context_max
        );
    }
    return OK;
}

static result append_start(struct swarm_root *root, struct error *error) {
    struct session_swarm_begin begin = root->options.swarm;
    begin.root = root->recorder.agent;
    TRY(recorder_prompt_finish(&root->recorder, &root->facts, root->reason, error));
    return session_swarm_start(root->options.store, &begin, &root->swarm, error);
}

static result work_start(struct swarm_root *root, struct error *error) {
    struct session_store *store = root->options.store;
    TRY(session_batch_begin(store, error));
    result appended = append_start(root, error);
    if (is_failed(appended)) {
        session_batch_rollback(store);
        return appended;
    }
    return session_batch_commit(store, error);
}

/* The reason to give up stays the one that is reported. */
static void work_give_up(struct swarm_root *root) {
    struct recorder *recorder = &root->recorder;
    struct error second = {0};
    result closed = recorder_turn_end(recorder, NULL, root->reason, &second);
    const struct recorder_end end = {
        .status = root->is_cancelled ? SESSION_STOPPED : SESSION_FAILED,
        .verdict = agent_stop_text(root->stop),
        .stop_reason = agent_stop_name(root->stop),
        .exit_status = agent_stop_exit_status(root->stop),
    };
    result ended = recorder_end(recorder, &end, &second);
    result_ignore(closed); /* what cannot be closed is marked as interrupted by the next writer */
    result_ignore(ended);
}

static result work_finish(struct swarm_root *root, struct error *error) {
    const struct swarm_root_end *end = &root->end;
    const struct recorder_end session = {
        .status = end->status,
        .verdict = end->verdict,
        .stop_reason = end->stop_reason,
        .exit_status = end->exit_status,
    };
    root->recorder.tree_may_differ = root->options.workspace != NULL; /* by what was merged */
    return recorder_swarm_end(&root->recorder, root->swarm, &end->swarm, &session, error);
}

static void job_work(void *context) {
    struct swarm_root *root = context;
    if (root->phase == ROOT_GIVES_UP) {
        work_give_up(root);
        return;
    }
    root->error = (struct error){0};
    root->worked = root->phase == ROOT_BEGINS   ? work_begin(root, &root->error)
                   : root->phase == ROOT_STARTS ? work_start(root, &root->error)
                                                : work_finish(root, &root->error);
}

/* ---- on the loop ---------------------------------------------------------------------------- */

static void job_done(void *context);

static void job_start(struct swarm_root *root, enum root_phase phase) {
    root->phase = phase;
    root->job = (struct loop_job){.work = job_work, .done = job_done, .context = root};
    loop_job_start(root->options.loop, &root->job);
}

static void give_up(struct swarm_root *root, enum agent_stop stop) {
    root->stop = root->is_cancelled ? AGENT_STOP_INTERRUPT : stop;
    if (root->is_cancelled) {
        root->worked = (result){RESULT_CANCELLED};
        root->error = (struct error){.code = RESULT_CANCELLED};
        (void)snprintf(root->error.message, sizeof root->error.message, "%s", root->why);
    }
    job_start(root, ROOT_GIVES_UP);
}

static void event_came(void *context, const struct engine_event *event) {
    struct swarm_root *root = context;
    if (event->type != ENGINE_FINISHED) {
        return;
    }
    root->facts = event->facts;
    root->reason = event->reason;
    int32_t held = root->options.engine.length(root->options.engine.context, event->sequence);
    bool is_whole = held == narrow_i32((int64_t)root->ids.count);
    if (!is_whole || event->reason == FINISH_ERROR || root->is_cancelled) {
        root->error = event->error;
        if (event->reason != FINISH_ERROR) {
            (void)snprintf(
                root->error.message, sizeof root->error.message, "the prompt was not evaluated"
            );
        }
        root->worked = (result){RESULT_DEVICE};
        give_up(root, AGENT_STOP_ENGINE);
        return;
    }
    job_start(root, ROOT_STARTS);
}

static void evaluate(struct swarm_root *root) {
    const struct swarm_root_options *options = &root->options;
    const struct generation_request request = {
        .sequence = options->sequence,
        .append = root->ids.ids,
        .append_count = root->ids.count,
        .sampling = options->sampling,
        .window = options->window,
    };
    root->phase = ROOT_EVALUATES;
    root->generation = (struct loop_generation){
        .engine = options->engine,
        .sequence = options->sequence,
        .event = event_came,
        .context = root,
    };
    root->worked = loop_generate(options->loop, &root->generation, &request, &root->error);
    if (is_failed(root->worked)) {
        give_up(root, AGENT_STOP_ENGINE);
    }
}

static void job_done(void *context) {
    struct swarm_root *root = context;
    const struct swarm_root_options *options = &root->options;
    if (root->phase == ROOT_FINISHES) {
        root->phase = ROOT_IS_OVER;
        options->engine.tell(options->engine.context, options->sequence, SEQUENCE_FINISHED, 0);
        root->finished(options->context, root->worked, &root->error);
    } else if (root->phase == ROOT_GIVES_UP) {
        root->phase = ROOT_IS_OVER;
        options->engine.tell(options->engine.context, options->sequence, SEQUENCE_ABANDONED, 0);
        options->opened(options->context, root->worked, &root->error);
    } else if (is_failed(root->worked) || root->is_cancelled) {
        give_up(root, AGENT_STOP_RECORD);
    } else if (root->phase == ROOT_BEGINS) {
        evaluate(root);
    } else {
        root->phase = ROOT_IS_OPEN;
        options->opened(options->context, OK, &root->error);
    }
}

/* ---- life ----------------------------------------------------------------------------------- */

static result fill(struct swarm_root *root, struct error *error) {
    const struct swarm_root_options *options = &root->options;
    token_list_init(&root->ids, TOKEN_LIST_CEILING_DEFAULT);
    root->recorder = (struct recorder){
        .store = options->store,
        .workspace = options->workspace,
        .begin = options->begin,
        .tools_json = options->tools_json,
        .engine = options->engine_info,
    };
    root->recorder.begin.sampler.effort = options->effort;
    const struct chat_message system = {
        .role = CHAT_SYSTEM,
        .content = options->system,
        .tools = options->tools,
        .tool_count = options->tool_count,
    };
    TRY(chat_conversation_create(&root->conversation, error));
    return chat_conversation_append(root->conversation, &system, error);
}

result swarm_root_open(
    struct swarm_root **out, const struct swarm_root_options *options, struct error *error
) {
    ASSERT(options->opened != NULL);
    struct swarm_root *root = calloc(1, sizeof *root);
    if (root == NULL) {
        FAIL(error, MEMORY, "no memory for the root of a swarm");
    }
    root->options = *options;
    root->reason = FINISH_ERROR;
    result filled = fill(root, error);
    if (is_failed(filled)) {
        root->phase = ROOT_IS_OVER;
        swarm_root_destroy(root);
        return filled;
    }
    *out = root;
    job_start(root, ROOT_BEGINS);
    return OK;
}

void swarm_root_cancel(struct swarm_root *root, const char *why) {
    if (root->phase > ROOT_STARTS || root->is_cancelled) {
        return;
    }
    root->is_cancelled = true;
    (void)snprintf(root->why, sizeof root->why, "%s", why);
    if (root->phase == ROOT_EVALUATES) {
        root->options.engine.cancel(root->options.engine.context, root->options.sequence);
    }
}

void swarm_root_destroy(struct swarm_root *root) {
    if (root != NULL) {
        ASSERT(root->phase == ROOT_IS_OPEN || root->phase == ROOT_IS_OVER);
        recorder_deinit(&root->recorder);
        chat_conversation_destroy(root->conversation);
        token_list_deinit(&root->ids);
        free(root);
    }
}

void swarm_root_finish(
    struct swarm_root *root,
    const struct swarm_root_end *end,
    void (*finished)(void *context, result finished, const struct error *error)
) {
    ASSERT(root->phase == ROOT_IS_OPEN);
    root->end = *end;
    root->finished = finished;
    job_start(root, ROOT_FINISHES);
}

/* ---- questions ------------------------------------------------------------------------------ */

const struct session_id *swarm_root_session(const struct swarm_root *root) {
    return &root->recorder.session;
}

const struct session_id *swarm_root_agent(const struct swarm_root *root) {
    return &root->recorder.agent;
}

int64_t swarm_root_swarm(const struct swarm_root *root) {
    return root->swarm;
}

const char *swarm_root_commit_before(const struct swarm_root *root) {
    return root->recorder.commit_first;
}

void swarm_root_prefix(const struct swarm_root *root, struct run_prefix *out) {
    ASSERT(root->phase == ROOT_IS_OPEN);
    *out = (struct run_prefix){
        .messages = chat_conversation_messages(root->conversation),
        .message_count = chat_conversation_count(root->conversation),
        .tokens = narrow_i32((int64_t)root->ids.count),
        .effort = root->options.effort,
        .sequence = root->options.sequence,
        .agent = root->recorder.agent,
        .turn = root->recorder.turn,
    };
}

const struct generation_facts *swarm_root_facts(const struct swarm_root *root) {
    return &root->facts;
}

const char *swarm_root_commit_after(const struct swarm_root *root) {
    return root->recorder.commit_last;
}
