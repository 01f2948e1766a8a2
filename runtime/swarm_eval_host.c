/* See swarm_eval_host.h. */
#include "swarm_eval_host.h"

#include "run_plan.h"
#include "run_tools.h"
#include "strategy.h"
#include "swarm_host.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the place of a run ------------------------------------------------------------------------ */

/* What one run has beside the host; closed whatever became of it. */
struct place {
    const struct swarm_eval_host *eval;
    struct buffer directory, snapshots; /* of copies and snapshots */
    struct workspace *workspace;
    uint64_t sequence;
    bool has_sequence;
};

static void place_close(struct place *place) {
    const struct engine_ports *engine = &place->eval->host->engine.ports;
    if (place->has_sequence) {
        engine->destroy(engine->context, place->sequence);
    }
    if (place->workspace != NULL) {
        workspace_close(place->workspace);
    }
    buffer_deinit(&place->directory);
    buffer_deinit(&place->snapshots);
}

static result make_directory(const char *path, struct error *error) {
    struct stat info;
    if (lstat(path, &info) == 0) {
        TRY(swarm_eval_remove(path, error));
    }
    if (mkdir(path, S_IRWXU) != 0) {
        int failed = errno;
        FAIL_FOREIGN(error, IO, failed, "%s: cannot be made: %s", path, strerror(failed));
    }
    return OK;
}

static result
place_open(struct place *place, const struct swarm_eval_item *item, struct error *error) {
    const struct swarm_eval_host *eval = place->eval;
    const struct engine_ports *engine = &eval->host->engine.ports;
    const char *workspace = buffer_text(&eval->settings->workspace);
    buffer_init(&place->directory, BUFFER_CEILING_DEFAULT);
    buffer_init(&place->snapshots, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(&place->directory, error, "%s/run", eval->directory));
    TRY(buffer_append_format(&place->snapshots, error, "%s/run/snapshots", eval->directory));
    TRY(make_directory(buffer_text(&place->directory), error));
    TRY(make_directory(workspace, error));
    TRY(swarm_eval_place(item, workspace, error));
    TRY(workspace_open(workspace, buffer_text(&place->snapshots), &place->workspace, error));
    TRY(engine->create(engine->context, &place->sequence, error));
    place->has_sequence = true;
    return OK;
}

/* ---- the swarm of a run ------------------------------------------------------------------------ */

static void choose(
    const struct swarm_eval_order *order,
    const struct swarm_options *swarm,
    struct strategy_choice *out
) {
    const struct strategy *named = strategy_find(view_of_text(order->setting->strategy));
    const struct strategy_facts facts = {
        .task = swarm->task,
        .has_verifier = true,
        .time_ms = order->time_ms_max > 0 ? order->time_ms_max : BUDGET_NO_LIMIT,
        .tokens = order->tokens_max > 0 ? order->tokens_max : BUDGET_NO_LIMIT,
        .memory_bytes = BUDGET_NO_LIMIT,
        .attempts = order->setting->attempts,
        .live_max = swarm->live_max,
        .effort_may_vary = swarm->effort_may_vary,
    };
    *out = (struct strategy_choice){.strategy = named, .attempts = order->setting->attempts};
    if (named == NULL) {
        strategy_choose(&facts, out);
    }
}

static result run_swarm(
    const struct place *place,
    const struct swarm_eval_order *order,
    struct swarm_host_outcome *out,
    struct error *error
) {
    const struct swarm_eval_host *eval = place->eval;
    const struct run_settings *settings = eval->settings;
    CLEANUP(buffer_deinit) struct buffer verifier;
    struct swarm_host_options options = {0};
    struct strategy_choice choice;
    struct run_plan plan;
    buffer_init(&verifier, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append(&verifier, order->item->test_command, error));
    TRY(run_plan_make(eval->host, settings, &plan, error));
    options.swarm = (struct swarm_options){
        .task = order->item->prompt,
        .has_verifier = true,
        .time_ms_max = order->time_ms_max,
        .tokens_max = order->tokens_max,
        .live_max = SWARM_EVAL_LIVE_MAX,
        .effort = settings->effort > 0 ? settings->effort : 0,
        .effort_may_vary = settings->model_settings.effort_may_vary,
        .seed = order->seed,
    };
    choose(order, &options.swarm, &choice);
    options.swarm.strategy = choice.strategy;
    options.swarm.attempts = choice.attempts;
    options.reason = view_of_text(choice.why);
    options.verifier = buffer_text(&verifier);
    options.run = plan.options;
    options.run.sequence = place->sequence;
    options.run.workspace = place->workspace;
    options.run.sampling.seed = order->seed;
    options.run.display = NULL;
    options.run.handles_signals = false;
    options.run.agent.task = order->item->prompt;
    options.run.agent.time_ms_max = 0; /* the swarm's */
    options.run.agent.tokens_max = 0;
    options.run.agent.calls_max = 0;
    options.run.begin.task = order->item->prompt;
    options.run.begin.sampler.seed = order->seed;
    options.run.begin.time_ms_max = order->time_ms_max;
    options.run.begin.tokens_max = order->tokens_max;
    options.tools = run_tools_context_options(eval->host, settings);
    options.permission = run_tools_permission_options(settings);
    options.state = buffer_text(&place->directory);
    options.snapshots = buffer_text(&place->snapshots);
    options.shares_nothing = order->setting->shares_nothing;
    options.has_notes = settings->model_settings.has_swarm_notes;
    options.handles_signals = true;
    options.kill = plan.options.kill;
    TRY(swarm_host_run(eval->host->loop, &options, out, error));
    if (out->session.text[0] != '\0') { /* an evaluation has thousands */
        TRY(session_delete(eval->host->store, &out->session, error));
    }
    return OK;
}

/* ---- the port ---------------------------------------------------------------------------------- */

static int64_t port_now_ms(void *context) {
    (void)context;
    const struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

static void port_say(void *context, struct view line) {
    const struct swarm_eval_host *eval = context;
    eval->say(eval->say_context, line);
}

static result port_run(
    void *context,
    const struct swarm_eval_order *order,
    struct swarm_eval_result *out,
    struct error *error
) {
    struct swarm_eval_host *eval = context;
    const char *workspace = buffer_text(&eval->settings->workspace);
    CLEANUP(place_close) struct place place = {.eval = eval};
    struct swarm_host_outcome outcome = {0};
    bool is_solved = false;
    TRY(place_open(&place, order->item, error));
    int64_t start_ms = port_now_ms(NULL);
    TRY(run_swarm(&place, order, &outcome, error));
    int64_t duration_ms = port_now_ms(NULL) - start_ms;
    if (outcome.is_interrupted) {
        FAIL(error, CANCELLED, "interrupted");
    }
    if (is_failed(outcome.fault)) {
        if (error != NULL) {
            *error = outcome.error;
        }
        return outcome.fault;
    }
    if (outcome.exit_status == STATUS_ENGINE) { /* says nothing of the strategy */
        FAIL(error, IO, "the engine was lost: %s", outcome.result.why);
    }
    TRY(swarm_eval_judge(
        order->item, eval->host->sandbox, workspace, SWARM_EVAL_HIDDEN_MS_DEFAULT, &is_solved, error
    ));
    const struct swarm_host_totals *totals = &outcome.totals;
    *out = (struct swarm_eval_result){
        .is_solved = is_solved,
        .is_passed = outcome.result.outcome == SWARM_PASSED,
        .duration_ms = duration_ms,
        .tokens = totals->tokens + totals->rank_tokens,
        .agents = (int64_t)totals->nodes,
        .calls = totals->calls,
        .prompt_tokens = totals->prompt_tokens,
        .reused_tokens = totals->reused_tokens,
        .evaluated_tokens = totals->evaluated_tokens,
    };
    return OK;
}

void swarm_eval_host_port(struct swarm_eval_host *host, struct swarm_eval_port *out) {
    *out = (struct swarm_eval_port){
        .context = host,
        .run = port_run,
        .now_ms = port_now_ms,
        .say = port_say,
    };
}
