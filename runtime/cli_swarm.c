/* hearth swarm: many agents on one task, from the options to the exit status.
 *
 * What is opened is that of one run (run_plan.h); the host of swarms drives the agents (swarm_host.h), and
 * what it tells is shown (swarm_view.h).
 */
#include "cli.h"
#include "paths.h"
#include "run_option_table.h"
#include "run_plan.h"
#include "run_tools.h"
#include "run_worktree.h"
#include "swarm_eval_command.h"
#include "swarm_settings.h"
#include "swarm_view.h"
#include "swarm_work.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <uv.h>

/* clang-format off */
static const struct cli_option swarm_options_table[] = {
    SWARM_OPTIONS,
    RUN_PLACE_OPTIONS,
    RUN_GENERATION_OPTIONS,
    RUN_TURN_OPTIONS,
    {"max-turns", 0, "N", "each agent stops after N turns (default: agent.json, else 40)"},
    RUN_ENGINE_OPTIONS,
    SWARM_EVAL_OPTIONS,
    {"json", 0, NULL, "write one JSON object a line instead of text"},
};
/* clang-format on */

/* What is shown while the host runs. */
struct show {
    struct swarm_view *view;
    struct run_host *run;
    struct swarm_host *host; /* from SWARM_HOST_BEGAN on */
    uv_timer_t ticker;
    bool is_ticking, is_lost; /* lost: what is written goes nowhere */
};

/* ---- the view ------------------------------------------------------------------------------- */

static void look(void *context, size_t node, struct swarm_host_look *out) {
    const struct show *show = context;
    swarm_host_look(show->host, node, out);
}

static struct swarm_picture picture_of(struct show *show) {
    return (struct swarm_picture){
        .swarm = swarm_host_swarm(show->host),
        .look = look,
        .context = show,
        .now_ms = swarm_host_now_ms(show->host),
    };
}

/* Times go on where nothing else happens; the terminal may have another size by now; and where nobody reads any
 * more, it ends as after a signal. */
static void ticked(uv_timer_t *timer) {
    struct show *show = timer->data;
    struct winsize size;
    struct error error = {0};
    if (!show->is_lost && is_failed(output_status(show->run->output, &error))) {
        show->is_lost = true;
        swarm_host_interrupt(show->host);
    }
    if (!show->is_ticking || !display_is_live(show->run->display)) {
        return; /* the interrupt may have been the end */
    }
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
        swarm_view_set_size(show->view, size.ws_col, size.ws_row);
    }
    const struct swarm_picture picture = picture_of(show);
    swarm_view_draw(show->view, &picture);
}

/* Without a timer the tree is drawn with each change only. */
static void start_ticking(struct show *show) {
    show->ticker.data = show;
    if (uv_timer_init(loop_uv(show->run->loop), &show->ticker) == 0) {
        show->is_ticking = true;
        (void)uv_timer_start(&show->ticker, ticked, SWARM_VIEW_INTERVAL_MS, SWARM_VIEW_INTERVAL_MS);
    }
}

static void finish(struct show *show, const struct swarm_host_outcome *outcome) {
    if (show->is_ticking) {
        show->is_ticking = false;
        uv_close((uv_handle_t *)&show->ticker, NULL);
    }
    const struct swarm_picture picture = picture_of(show);
    const struct swarm_view_end end = {
        .exit_status = outcome->exit_status,
        .commit = outcome->commit,
        .totals = &outcome->totals,
    };
    swarm_view_finish(show->view, &picture, &end);
}

static void
host_told(void *context, struct swarm_host *host, const struct swarm_host_event *event) {
    struct show *show = context;
    if (event->type == SWARM_HOST_BEGAN) {
        show->host = host;
        display_end(show->run->display); /* the view has the terminal from here on */
        const struct swarm_picture picture = picture_of(show);
        const struct session_id *session = swarm_host_session(host);
        swarm_view_begin(show->view, &picture, session, &show->run->engine.info, event->facts);
        start_ticking(show);
    } else if (show->host == NULL) { /* before it has begun: a line for the person */
        if (event->type == SWARM_HOST_NOTE || event->type == SWARM_HOST_WARNING) {
            bool is_note = event->type == SWARM_HOST_NOTE;
            run_host_say(show->run, is_note ? RUN_NOTE : RUN_WARNING, event->text);
        }
    } else if (event->type == SWARM_HOST_FINISHED) {
        finish(show, event->outcome);
    } else {
        const struct swarm_picture picture = picture_of(show);
        swarm_view_event(show->view, &picture, event);
    }
}

static result create_view(
    struct run_host *host,
    const struct run_settings *settings,
    const struct swarm_settings *own,
    const char *why,
    struct view apply,
    struct swarm_view **out,
    struct error *error
) {
    bool json = cli_has(settings->arguments, "json");
    struct display_options form = display_options_for(STDOUT_FILENO, json);
    enum config_colour colour = settings->config->terminal_colour;
    const struct swarm_view_options options = {
        .form = form.form,
        .has_colour =
            colour != CONFIG_COLOUR_NEVER && (form.has_colour || colour == CONFIG_COLOUR_ALWAYS),
        .width = form.width,
        .height = form.height,
        .output = host->output,
        .workspace = buffer_view(&settings->workspace),
        .model = buffer_view(&settings->model),
        .verifier = view_of_text(own->verify),
        .why = view_of_text(why),
        .state_option = buffer_text(&settings->state_option),
        .apply = apply,
    };
    return swarm_view_create(out, &options, error);
}

/* ---- running -------------------------------------------------------------------------------- */

/* What is to be said when it is over, beside the summary; its exit status. */
static int say_outcome(const struct run_host *host, const struct swarm_host_outcome *outcome) {
    struct error error = {0};
    if (is_failed(outcome->fault)) {
        (void)cli_fail(outcome->exit_status, "%s", outcome->error.message);
    }
    if (is_failed(output_status(host->output, &error))) {
        (void)cli_fail(STATUS_DATA, "%s; the swarm was stopped and is recorded", error.message);
    }
    return outcome->exit_status;
}

static result run_host_swarm(
    struct run_host *host,
    const struct run_settings *settings,
    const struct swarm_settings *own,
    const struct swarm_chosen *chosen,
    struct swarm_host_outcome *outcome,
    struct error *error
) {
    struct run_plan plan;
    struct show show = {.run = host};
    CLEANUP(buffer_deinit) struct buffer record;
    CLEANUP(buffer_deinit) struct buffer apply; /* as long as the view */
    buffer_init(&record, BUFFER_CEILING_DEFAULT);
    buffer_init(&apply, BUFFER_CEILING_DEFAULT);
    TRY(path_git_apply(buffer_text(&settings->workspace), &apply, error));
    TRY(run_plan_make(host, settings, &plan, error));
    TRY(swarm_settings_write(own, &chosen->options, &record, error));
    TRY(create_view(host, settings, own, chosen->why, buffer_view(&apply), &show.view, error));
    struct swarm_host_options options = {
        .swarm = chosen->options,
        .reason = view_of_text(chosen->why),
        .verifier = own->verify,
        .settings = buffer_view(&record),
        .run = plan.options,
        .tools = run_tools_context_options(host, settings),
        .permission = run_tools_permission_options(settings),
        .state = buffer_text(&settings->state),
        .snapshots = buffer_text(&settings->snapshots),
        .has_notes = settings->model_settings.has_swarm_notes,
        .has_agent_tools = own->has_agent_tools,
        .listener = {.context = &show, .event = host_told},
        .handles_signals = true,
        .kill = plan.options.kill,
    };
    options.swarm.seed = plan.options.sampling.seed;
    options.run.display = NULL;
    options.run.handles_signals = false;
    options.run.agent.tokens_max = 0; /* of the tree, not of one agent */
    options.run.agent.calls_max = 0;
    options.run.agent.time_ms_max = 0;
    result ran = swarm_host_run(host->loop, &options, outcome, error);
    display_end(host->display);
    swarm_view_destroy(show.view);
    run_engine_log_cache(&host->engine);
    return ran;
}

/* What swarms of killed programs left in the state directory, which nobody else writes in now. */
static void clear_up(struct run_host *host, const struct run_settings *settings) {
    CLEANUP(buffer_deinit) struct buffer text;
    struct swarm_work_swept swept;
    struct error error = {0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    result done = buffer_append_format(&text, &error, "%s/swarms", buffer_text(&settings->state));
    if (is_ok(done)) {
        done = swarm_work_sweep(buffer_text(&text), &swept, &error);
    }
    if (is_failed(done)) {
        run_host_say(host, RUN_WARNING, view_of_text(error.message));
        return;
    }
    buffer_clear(&text);
    done = buffer_append_format(
        &text,
        &error,
        "copies of killed swarms stay in %s/swarms, with work that nothing else has: %s",
        buffer_text(&settings->state),
        swept.kept_names
    );
    if (swept.kept > 0 && is_ok(done)) {
        run_host_say(host, RUN_WARNING, buffer_view(&text));
    }
}

static int swarm_opened(
    struct run_host *host,
    struct run_settings *settings,
    const struct swarm_settings *own,
    struct session_id *session
) {
    static const char servers[] =
        "servers of the configuration (mcp) are not started: agents of a swarm do without";
    struct swarm_chosen chosen;
    struct swarm_host_outcome outcome = {0};
    struct error error = {0};
    swarm_settings_choose(own, settings, &chosen);
    settings->swarm = &chosen.options;
    int status = run_plan_open(host, settings);
    settings->swarm = NULL;
    if (status != STATUS_DONE) {
        return status;
    }
    if (settings->config->mcp.count > 0) {
        run_host_say(host, RUN_WARNING, view_of_text(servers));
    }
    clear_up(host, settings);
    status = run_plan_open_session(host, settings);
    if (status != STATUS_DONE) {
        return status;
    }
    result ran = run_host_swarm(host, settings, own, &chosen, &outcome, &error);
    if (is_failed(ran)) {
        return ran.code == RESULT_INVALID_INPUT
                   ? cli_usage(settings->arguments, "%s", error.message)
                   : cli_fail_error(ran, &error);
    }
    *session = outcome.session;
    if (outcome.exit_status != STATUS_DATA) { /* else the disk has its trouble */
        run_plan_keep_snapshots_bounded(host, settings);
    }
    return say_outcome(host, &outcome);
}

/* Options of an evaluation without one. */
static int check_evaluation(const struct cli_arguments *arguments) {
    for (size_t i = 0; i < arguments->given_count; i++) {
        const char *name = arguments->command->options[arguments->given[i].option].name;
        if (strncmp(name, "eval-", 5) == 0) {
            return cli_usage(arguments, "--%s: there is no --eval", name);
        }
    }
    return STATUS_DONE;
}

static int swarm(const struct cli_arguments *arguments) {
    if (cli_has(arguments, "eval")) {
        return swarm_eval_command(arguments);
    }
    CLEANUP(fd_cleanup) int lease = -1;
    CLEANUP(settings_deinit)
    struct run_settings settings = {
        .arguments = arguments, .worktree_lease = &lease, .is_swarm = true};
    struct swarm_settings own;
    struct run_host host = {0};
    struct session_id session = {""};
    int status = check_evaluation(arguments);
    if (status == STATUS_DONE) {
        status = swarm_settings_read(arguments, &own);
        settings.check = swarm_settings_check;
        settings.check_context = &own;
    }
    if (status == STATUS_DONE) {
        status = run_plan_prepare(&host, &settings);
    }
    if (status == STATUS_DONE) {
        status = swarm_settings_apply(&own, &settings);
    }
    if (status == STATUS_DONE) {
        status = run_worktree_lease(&settings, &lease);
    }
    if (status == STATUS_DONE) {
        status = swarm_opened(&host, &settings, &own, &session);
    }
    run_host_close(&host);
    run_worktree_end(&settings, &session, &lease);
    return status;
}

const struct cli_command command_swarm = {
    .path = "swarm",
    .operands = "[TASK]",
    .summary = "let many agents do a task, and take the best result",
    .text =
        "The task is the argument, or standard input. Agents work beside each other, each in a\n"
        "copy of the workspace of its own; the result that counts is merged into the workspace,\n"
        "where nothing of others is overwritten. Every step is recorded in the state directory.\n"
        "\n"
        "strategies:\n"
        "  auto     chosen by task, budget and verifier; it is said why\n"
        "  single   one agent, which may start others itself\n"
        "  race     several attempts; the first that passes --verify wins\n"
        "  best-of  several attempts to their end; the best by --verify and a ranking\n"
        "  plan     a planner splits the task, workers do the parts, which are merged\n"
        "  staged   attempts at low effort, then fewer at higher effort; needs --verify\n"
        "  retries  one agent after another until one passes --verify\n"
        "\n"
        "examples:\n"
        "  hearth swarm \"Fix the failing tests\" --verify 'make test'\n"
        "  hearth swarm \"Fix it\" --strategy best-of --attempts 8 --max-time 10m\n"
        "  hearth swarm - --strategy plan --max-tokens 200000 < task.md\n"
        "\n"
        "Ctrl-C ends all agents and keeps what is recorded, a second one ends the program at "
        "once.\n"
        "Exit status: 0 the result passed, or an answer where nobody verifies; 1 nothing passed,\n"
        "2 usage, 3 refused, 4 budget spent, 5 bad model or file data, 6 engine fault,\n"
        "130 interrupted.\n",
    .options = swarm_options_table,
    .option_count = COUNT_OF(swarm_options_table),
    .words_max = 1,
    .run = swarm,
};
