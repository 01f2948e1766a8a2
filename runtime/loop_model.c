/* Another model for the same conversation: it is opened beside the one that runs, the session is forked under
 * it, and then the run goes on with it. See loop_internal.h.
 *
 * Until the fork is recorded nothing has changed, and whatever fails leaves the run as it was. Tools stay as they
 * are declared: their names stand in the conversation. What the person writes meanwhile waits.
 */
#include "loop_internal.h"

#include <stdarg.h>

enum phase { PHASE_OPEN, PHASE_RECORD, PHASE_CLOSE };

struct run_model_change {
    struct run *run;
    enum phase phase;
    uv_work_t work;
    struct buffer directory;
    struct run_model model;
    bool has_session; /* one that is forked: */
    struct session_id session;
    struct resume resume;
    struct chat_conversation *conversation; /* with the tools in its head */
    bool takes_new;                         /* CLOSE: the old one goes */
    result worked;
    struct error error;
};

PRINTF_LIKE(3, 4)
static void say(struct run *run, enum run_event_type type, const char *format, ...) {
    char text[900];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0); /* too long: cut */
    struct run_event event = {.type = type, .text = view_of_text(text)};
    run_show(run, &event);
}

static void change_destroy(struct run_model_change *change) {
    buffer_deinit(&change->directory);
    resume_deinit(&change->resume);
    chat_conversation_destroy(change->conversation);
    free(change);
}

/* ---- on a worker ---------------------------------------------------------------------------- */

/* The conversation as the other model reads it has to leave room for an answer. */
static result check_length(const struct run_model_change *change, struct error *error) {
    const struct run *run = change->run;
    const struct chat_conversation *conversation = agent_conversation(run->agent);
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    const struct chat_request request = {
        .messages = chat_conversation_messages(conversation),
        .message_count = chat_conversation_count(conversation),
        .options = agent_chat_options(run->agent),
    };
    TRY(chat_encode(&ids, change->model.encoder, &request, error));
    if (ids.count >= (size_t)change->model.info.context_max) {
        FAIL(
            error,
            LIMIT,
            "for the other one the conversation has %zu tokens, and its context no more than %d: "
            "/compact makes it shorter",
            ids.count,
            change->model.info.context_max
        );
    }
    return OK;
}

static result work_record(struct run_model_change *change, struct error *error) {
    struct run *run = change->run;
    const struct run_options *options = run->options;
    TRY(check_length(change, error));
    if (!change->has_session) {
        return OK;
    }
    const struct recorder_model model = {
        .session = &change->session,
        .model = change->model.directory,
        .engine = &change->model.info,
        .resume =
            {.tokenizer = options->tokenizer,
             .vocabulary = options->engine_info.vocabulary,
             .end_id = chat_encoder_end_id(options->encoder),
             .system = options->agent.system,
             .waits = true},
    };
    TRY(recorder_fork_model(&run->recorder, &model, &change->resume, error));
    return run_declare_tools(run, &change->resume, &change->conversation, error);
}

static void work_do(uv_work_t *request) {
    struct run_model_change *change = request->data;
    struct run *run = change->run;
    const struct run_models *models = run->options->models;
    if (change->phase == PHASE_OPEN) {
        change->worked = models->open(
            models->context,
            buffer_text(&change->directory),
            &run->declared,
            &change->model,
            &change->error
        );
    } else if (change->phase == PHASE_RECORD) {
        change->worked = work_record(change, &change->error);
    } else {
        models->settle(models->context, change->takes_new);
    }
}

/* ---- on the loop ---------------------------------------------------------------------------- */

static void work_done(uv_work_t *request, int status);

static void work_start(struct run_model_change *change, enum phase phase) {
    change->phase = phase;
    change->work.data = change;
    int status = uv_queue_work(&change->run->loop->uv, &change->work, work_do, work_done);
    ASSERT(status == 0); /* fails only without a work function */
}

/* The fork is the session that runs, or the one that begins with the next message. */
static void take_session(struct run_model_change *change) {
    struct run *run = change->run;
    struct recorder *recorder = &run->recorder;
    resume_deinit(&run->rewound);
    run->rewound = change->resume;
    change->resume = (struct resume){0};
    run->resume = &run->rewound;
    run->own.resume = &run->rewound;
    run->is_resuming = true;
    token_list_clear(&run->context_ids);
    run->status.context_tokens = 0;
    recorder->resume = &run->rewound;
    if (recorder->session.text[0] != '\0') {
        recorder->session = run->rewound.session;
        recorder->agent = run->rewound.agent;
        recorder->summaries = (struct session_id){""}; /* an agent of the other session */
        recorder_rewound(recorder, &run->rewound);
    }
}

static void take_engine(struct run_model_change *change) {
    struct run *run = change->run;
    const struct run_model *model = &change->model;
    const struct engine_ports *old = &run->options->engine;
    chat_parser_destroy(run->parser);
    run->parser = NULL;
    old->tell(old->context, run->sequence, SEQUENCE_FINISHED, 0);
    run->own.engine = model->engine;
    run->own.tokenizer = model->tokenizer;
    run->own.encoder = model->encoder;
    run->own.engine_info = model->info;
    run->own.agent.context_max = model->info.context_max;
    run->own.begin.model = model->directory;
    run->own.begin.model_digest = view_of_text(run->own.engine_info.model_digest);
    run->own.begin.backend = view_of_text(run->own.engine_info.backend);
    run->own.begin.numerics_version = model->numerics;
    run->declared.constraint = model->constraint;
    run->recorder.begin = run->own.begin;
    run->recorder.engine = run->own.engine_info;
    run->sequence = model->sequence;
    run->status.context_max = model->info.context_max;
}

/* Whether it is made: the person may have left meanwhile. */
static bool take(struct run_model_change *change) {
    struct run *run = change->run;
    bool is_idle = agent_is_idle(run->agent);
    if (is_idle) {
        take_engine(change);
    }
    if (change->has_session) {
        take_session(change);
    }
    if (!is_idle) {
        return false;
    }
    const struct agent_event event = {
        .type = AGENT_REWOUND,
        .conversation = change->conversation, /* which takes it; null: it is as it was */
        .context_max = run->options->agent.context_max,
    };
    change->conversation = NULL;
    run_dispatch(run, &event);
    if (run->recorder.session.text[0] != '\0') { /* else the first message shows it */
        run_show_session(run);
    }
    say(run,
        RUN_NOTE,
        "goes on with %.*s%s%s",
        VIEW_ARGUMENTS(change->model.directory),
        change->has_session ? "; with the model before: hearth run --resume " : "",
        change->has_session ? change->session.text : "");
    return true;
}

static void finish(struct run_model_change *change) {
    struct run *run = change->run;
    run->change = NULL;
    change_destroy(change);
    run_release_held(run);
    run_leave(run);
}

static void failed(struct run_model_change *change) {
    say(change->run, RUN_WARNING, "the model stays as it is: %s", change->error.message);
}

static void work_done(uv_work_t *request, int status) {
    struct run_model_change *change = request->data;
    ASSERT(status == 0); /* never cancelled in the pool's queue */
    if (change->phase == PHASE_CLOSE) {
        finish(change);
    } else if (change->phase == PHASE_OPEN && is_failed(change->worked)) {
        failed(change);
        finish(change);
    } else if (change->phase == PHASE_OPEN && agent_is_idle(change->run->agent)) {
        say(change->run, RUN_NOTE, "%s", change->model.plan);
        work_start(change, PHASE_RECORD);
    } else {
        if (is_failed(change->worked)) {
            failed(change);
        } else if (change->phase == PHASE_RECORD) {
            change->takes_new = take(change);
        }
        work_start(change, PHASE_CLOSE);
    }
}

/* The session that goes on: the one that runs, or one that is resumed and waits for its first message. */
static void find_session(struct run_model_change *change) {
    const struct run *run = change->run;
    change->has_session = run->recorder.session.text[0] != '\0' || run->resume != NULL;
    if (change->has_session) {
        change->session =
            run->recorder.session.text[0] != '\0' ? run->recorder.session : run->resume->session;
    }
}

void run_change_model(struct run *run, struct view directory) {
    const struct run_options *options = run->options;
    if (directory.length == 0) {
        say(run,
            RUN_NOTE,
            "model %.*s, %s; another one: /model DIR",
            VIEW_ARGUMENTS(options->begin.model),
            options->engine_info.backend);
        return;
    }
    if (options->models == NULL) {
        say(run, RUN_NOTE, "this run has one model");
        return;
    }
    if (!agent_is_idle(run->agent) || run->command != NULL || run->change != NULL ||
        run->is_preparing) {
        say(run, RUN_NOTE, "it works: interrupt it first, or wait");
        return;
    }
    struct run_model_change *change = calloc(1, sizeof *change);
    if (change == NULL) {
        say(run, RUN_WARNING, "no memory for another model");
        return;
    }
    change->run = run;
    buffer_init(&change->directory, 8192);
    result copied = buffer_append(&change->directory, directory, &change->error);
    if (is_failed(copied)) {
        failed(change);
        change_destroy(change);
        return;
    }
    find_session(change);
    run->change = change;
    run->status.activity = "loading";
    say(run, RUN_NOTE, "loading %.*s", VIEW_ARGUMENTS(directory));
    work_start(change, PHASE_OPEN);
}
