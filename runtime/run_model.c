/* See run_tools.h. Another model beside the one that runs, for /model. Its engine shares nothing with the old
 * one but the cache's directory; the old one goes when the run uses the new one. */
#include "run_tools.h"

#include <inttypes.h>

static void keep_line(void *context, struct view line) {
    struct run_model *model = context;
    if (model->plan[0] == '\0') { /* the memory; the rest is of no use here */
        (void)snprintf(model->plan, sizeof model->plan, "%.*s", VIEW_ARGUMENTS(line)); /* cut */
    }
}

static void close_next(struct run_host *host) {
    constraint_release(host->next.constraint);
    chat_encoder_destroy(host->next.encoder);
    if (host->next.is_open) {
        run_engine_close(&host->next.engine);
    }
    buffer_deinit(&host->next.directory);
    host->next = (struct run_next_model){.is_open = false};
}

static result
open_constraint(struct run_host *host, const struct run_declared *declared, struct error *error) {
    struct run_next_model *next = &host->next;
    const struct constraint_options options = {
        .tools = declared->tools,
        .tool_count = declared->tool_count,
        .choice = CONSTRAINT_TOOLS_AUTO,
        .thinking = host->settings->effort != CHAT_EFFORT_OFF,
    };
    const struct grammar_vocabulary *vocabulary = NULL;
    if (declared->constraint == NULL || next->engine.engine == NULL) {
        return OK;
    }
    TRY(engine_vocabulary(next->engine.engine, &vocabulary, error));
    return constraint_create(&next->constraint, vocabulary, &options, error);
}

static result open_engine(struct run_host *host, struct run_model *out, struct error *error) {
    struct run_next_model *next = &host->next;
    struct run_engine_request request;
    run_host_engine_request(host, host->settings, &request);
    request.engine.model_directory = buffer_text(&next->directory);
    request.say = keep_line;
    request.say_context = out;
    result opened = run_engine_open(&request, &next->engine, error);
    if (opened.code == RESULT_LIMIT || opened.code == RESULT_MEMORY) {
        TRY_NOTE(error, opened, "beside the model that is loaded");
    }
    TRY(opened);
    next->is_open = true;
    return chat_encoder_create(&next->encoder, next->engine.tokenizer, next->engine.wording, error);
}

static result check_sampling(const struct run_host *host, struct error *error) {
    struct sampling sampling = host->next.engine.sampling;
    generation_settings_sampling(&host->settings->generation, &sampling);
    return sampling_check(&sampling, host->next.engine.info.vocabulary, error);
}

static result fill(
    struct run_host *host,
    const char *directory,
    const struct run_declared *declared,
    struct run_model *out,
    struct error *error
) {
    struct run_next_model *next = &host->next;
    struct model_settings settings;
    TRY(model_directory(directory, &next->directory, error));
    TRY(model_settings_load(buffer_text(&next->directory), &settings, error));
    TRY(open_engine(host, out, error));
    TRY(check_sampling(host, error));
    TRY(open_constraint(host, declared, error));
    int length =
        snprintf(next->numerics, sizeof next->numerics, "%" PRIu32, next->engine.info.numerics);
    ASSERT(length > 0);
    out->engine = next->engine.ports;
    out->sequence = next->engine.sequence;
    out->tokenizer = next->engine.tokenizer;
    out->encoder = next->encoder;
    out->info = next->engine.info;
    out->directory = buffer_view(&next->directory);
    out->numerics = view_of_text(next->numerics);
    out->constraint = next->constraint;
    return OK;
}

static result model_open(
    void *context,
    const char *directory,
    const struct run_declared *declared,
    struct run_model *out,
    struct error *error
) {
    struct run_host *host = context;
    struct run_model model = {.plan = ""};
    result opened = fill(host, directory, declared, &model, error);
    if (is_failed(opened)) {
        close_next(host);
        return opened;
    }
    *out = model;
    return OK;
}

/* The text of what is taken over is used until the next change. */
static void model_settle(void *context, bool takes_new) {
    struct run_host *host = context;
    if (!takes_new) {
        close_next(host);
        return;
    }
    struct run_next_model before = {
        .engine = host->engine,
        .encoder = host->encoder,
        .constraint = host->constraint,
        .directory = host->current_directory,
        .is_open = true,
    };
    host->engine = host->next.engine;
    host->encoder = host->next.encoder;
    host->constraint = host->next.constraint;
    host->current_directory = host->next.directory;
    memcpy(host->current_numerics, host->next.numerics, sizeof host->current_numerics);
    host->next = before;
    close_next(host);
}

const struct run_models *run_models_of(struct run_host *host, const struct run_settings *settings) {
    host->settings = settings;
    host->models = (struct run_models){host, model_open, model_settle};
    return &host->models;
}
