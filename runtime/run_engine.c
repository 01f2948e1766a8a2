/* See run_engine.h. */
#include "run_engine.h"

#include "base/log.h"
#include "host.h"
#include <inttypes.h>

#define RUN_SEQUENCES_MAX 3
#define RUN_WINDOWS_MAX   2
#define CLOCK_JUMP_MS     60000 /* less is a clock that is set right */

/* The engine of a test; null: the real one. Set before there are threads. */
static const struct run_engine *other_engine;

void run_engine_use(const struct run_engine *engine) {
    other_engine = engine;
}

/* Whether a plan that failed would not have, with the shortest context. */
static bool context_is_wrong(struct engine_options options) {
    struct engine_plan plan;
    struct error ignored;
    options.context_max = 1;
    return engine_plan_make(&options, &plan, &ignored).code != RESULT_INVALID_INPUT;
}

static result say_plan(
    const struct run_engine_request *request, const struct engine_plan *plan, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer line;
    buffer_init(&line, 4096);
    if (request->says_briefly) {
        const double gib = 1073741824.0;
        uint64_t first = plan->has_device ? plan->device_bytes : plan->weights_mapped;
        TRY(buffer_append_format(
            &line,
            error,
            "memory: %s %.2f GiB, beside %.2f GiB; context %d tokens",
            plan->has_device ? "device" : "weights",
            (double)first / gib,
            (double)plan->total_beside_weights / gib,
            plan->context_max
        ));
    } else {
        TRY(plan_describe(plan, &line, error));
    }
    request->say(request->say_context, buffer_view(&line));
    return OK;
}

/* When there is a device and it is not used, or its memory of the host's is short. */
static result say_why_slower(
    const struct run_engine_request *request, const struct engine_info *info, struct error *error
) {
    const struct {
        const char *what, *why;
    } notes[] = {{"on the CPU", info->backend_note}, {"logits come slower", info->transfer_note}};
    for (size_t i = 0; i < COUNT_OF(notes); i++) {
        if (notes[i].why[0] != '\0') {
            CLEANUP(buffer_deinit) struct buffer line;
            buffer_init(&line, 4096);
            TRY(buffer_append_format(&line, error, "%s: %s", notes[i].what, notes[i].why));
            request->say(request->say_context, buffer_view(&line));
        }
    }
    return OK;
}

/* Who asks for several has planned them: a swarm. Beside the sequence of one run there is a fork that writes a summary, then one with the new context. All
 * hold one context of blocks together: while the new one is read, the old one, which does not run,
 * lends it the blocks that are missing, and finds what it held in the cache if it comes back. */
static result plan_sequences(
    const struct engine_options *asked,
    struct engine_options *out,
    struct engine_plan *plan,
    struct error *error
) {
    struct engine_options options = *asked;
    TRY(engine_plan_make(&options, plan, error));
    if (asked->sequences_max > 1) {
        *out = options;
        return OK;
    }
    options.sequences_max = RUN_SEQUENCES_MAX;
    options.windows_max = RUN_WINDOWS_MAX;
    options.kv_tokens_max = plan->context_max;
    TRY(engine_plan_make(&options, plan, error));
    *out = options;
    return OK;
}

static result open_real(
    const struct run_engine_request *request, struct run_engine_parts *out, struct error *error
) {
    const struct engine_options *asked = &request->engine;
    struct engine_options all;
    const struct engine_options *options = &all;
    struct engine_plan plan;
    result planned = plan_sequences(asked, &all, &plan, error);
    out->is_context_wrong = planned.code == RESULT_INVALID_INPUT && context_is_wrong(*asked);
    TRY(planned);
    TRY(say_plan(request, &plan, error));
    if (request->wants_draft_stages && !plan.has_draft_stages) {
        FAIL(
            error,
            LIMIT,
            "--speculate draft: the model in %.200s has no draft stages; lookup works with any",
            options->model_directory
        );
    }
    TRY(engine_open(options, &out->engine, error));
    engine_get_info(out->engine, &out->info);
    TRY(say_why_slower(request, &out->info, error));
    out->ports = engine_ports_of(out->engine);
    out->tokenizer = engine_tokenizer(out->engine);
    out->wording = engine_wording(out->engine);
    engine_default_sampling(out->engine, &out->sampling);
    if (out->wording == NULL) { /* token models need none, an agent does */
        FAIL(
            error,
            NOT_FOUND,
            "the model has no wording of prompts: there is neither chat.json nor "
            "encoding/encoding.py in %.200s",
            options->model_directory
        );
    }
    return engine_sequence_create(out->engine, &out->sequence, error);
}

result run_engine_open(
    const struct run_engine_request *request, struct run_engine_parts *out, struct error *error
) {
    if (other_engine != NULL) {
        return other_engine->open(other_engine->context, request, out, error);
    }
    return open_real(request, out, error);
}

void run_engine_close(struct run_engine_parts *parts) {
    if (other_engine != NULL) {
        other_engine->close(other_engine->context);
    } else if (parts->engine != NULL) {
        engine_close(parts->engine);
        parts->engine = NULL;
    }
}

void run_engine_log_cache(const struct run_engine_parts *parts) {
    if (parts->engine == NULL) {
        return;
    }
    struct engine_cache_status status;
    engine_cache_status(parts->engine, &status);
    if (status.clock_jump_ms >= CLOCK_JUMP_MS) {
        log_event(
            LOG_WARNING,
            "cache",
            "clock_jumped",
            "forwards_ms=%" PRId64 " blocks_expired=%" PRIu64,
            status.clock_jump_ms,
            status.disk_expired
        );
    }
    if (status.others_blocks > 0 || status.others_folders > 0) {
        log_event(
            LOG_INFO,
            "cache",
            "other_models_made_room",
            "blocks=%" PRId64 " folders_removed=%" PRId32 " names=\"%s\"",
            status.others_blocks,
            status.others_folders,
            status.others_names
        );
    }
}
