/* The life of the runs of a loop: how one starts, what becomes of it when nothing of it is under way any more,
 * and one run alone. See loop.h.
 */
#include "loop_internal.h"

#include "cli.h"
#include "paths.h"

#define LOGPROB_BYTES_MAX ((size_t)64 << 20)

/* ---- making --------------------------------------------------------------------------------- */

static void run_deinit(struct run *run) {
    agent_destroy(run->agent);
    chat_parser_destroy(run->parser);
    recorder_deinit(&run->recorder);
    token_list_deinit(&run->context_ids);
    token_list_deinit(&run->prompt_ids);
    token_list_deinit(&run->output_ids);
    buffer_deinit(&run->log_probabilities);
    tool_result_deinit(&run->tool);
    run_call_deinit(run);
    run_command_deinit(run);
    fd_cleanup(&run->hooks_fd);
    free(run->tool_times);
    free(run->tool_names);
}

static result make_agent(struct run *run, struct error *error) {
    struct agent_options options = run->options->agent;
    struct agent_resume again = {0};
    CLEANUP(free_cleanup) struct chat_message *messages = NULL;
    if (run->options->prefix != NULL) {
        TRY(run_prefix_take(run->options, &again, &messages, error));
        options.resume = &again;
        run->status.context_tokens = again.context_tokens;
    }
    return agent_create(&run->agent, &options, error);
}

static result run_init(struct run *run, const struct run_options *options, struct error *error) {
    token_list_init(&run->context_ids, TOKEN_LIST_CEILING_DEFAULT);
    token_list_init(&run->prompt_ids, TOKEN_LIST_CEILING_DEFAULT);
    token_list_init(&run->output_ids, TOKEN_LIST_CEILING_DEFAULT);
    buffer_init(&run->log_probabilities, LOGPROB_BYTES_MAX);
    tool_result_init(&run->tool);
    run->own = *options;
    run->options = &run->own;
    run->hooks_fd = -1;
    run->sequence = options->sequence;
    run->recorder.store = options->store;
    run->recorder.workspace = options->workspace;
    run->recorder.begin = options->begin;
    run->recorder.engine = options->engine_info;
    run->recorder.resume = options->resume;
    run->resume = options->resume;
    run->started_ms = clock_monotonic_ms(&options->clock);
    run->status.context_max = options->agent.context_max;
    run->status.activity = "starting";
    const struct run_declared declared = {
        .tools = options->agent.tools,
        .tool_count = options->agent.tool_count,
        .tools_json = options->tools_json,
        .constraint = options->constraint,
    };
    TRY(run_declare(run, &declared, error));
    run_node_init(run);
    TRY(make_agent(run, error));
    run->status.turns_before = agent_turns_before(run->agent);
    run->status.turn = run->status.turns_before;
    if (options->resume != NULL) {
        const struct token_list *ids = &options->resume->ids;
        run->is_resuming = true;
        run->status.context_tokens = narrow_i32((int64_t)ids->count);
        TRY(token_list_append_all(&run->context_ids, ids->ids, ids->count, error));
    }
    return OK;
}

/* ---- the list ------------------------------------------------------------------------------- */

static void list_add(struct run *run) {
    struct loop *loop = run->loop;
    struct run **end = &loop->first;
    while (*end != NULL) {
        ASSERT((*end)->channel != run->channel); /* what tools send is of one run */
        end = &(*end)->next;
    }
    *end = run;
    if (run->options->input != NULL) {
        ASSERT(loop->person == NULL);
        loop->person = run;
    }
    loop_keep(loop);
}

static void list_remove(struct run *run) {
    struct loop *loop = run->loop;
    struct run **at = &loop->first;
    while (*at != run) {
        ASSERT(*at != NULL);
        at = &(*at)->next;
    }
    *at = run->next;
    if (loop->person == run) {
        loop->person = NULL;
    }
    loop_keep(loop);
}

/* ---- the end -------------------------------------------------------------------------------- */

void run_keep_last(struct run *run) {
    const char *path = run->options->last_message_path;
    if (path != NULL && !run->last_is_kept) {
        run->last_is_kept = true;
        run->last_result = path_replace(path, run_last_text(run), &run->last_error);
    }
}

/* A run that the disk has ended already says so itself. */
static bool lost_last(const struct run *run) {
    return is_failed(run->last_result) &&
           agent_stop_exit_status(agent_stop(run->agent)) != STATUS_DATA;
}

int run_exit_status(const struct run *run) {
    return lost_last(run) ? STATUS_DATA : agent_stop_exit_status(agent_stop(run->agent));
}

const char *run_detail(const struct run *run) {
    return lost_last(run) ? run->last_error.message : agent_stop_detail(run->agent);
}

static void tell_end(const struct run *run) {
    const struct agent *agent = run->agent;
    const struct workspace_difference *difference = &run->recorder.difference;
    ASSERT(agent_is_finished(agent));
    const struct run_ended ended = {
        .stop = agent_stop(agent),
        .exit_status = run_exit_status(run),
        .detail = run_detail(run),
        .last_text = run_last_text(run),
        .tokens = agent_tokens_sampled(agent),
        .calls = agent_calls(agent),
        .turns = agent_turns(agent) - agent_turns_before(agent),
        .session = run->recorder.session,
        .agent = run->recorder.agent,
        .commit = recorder_changed_commit(&run->recorder),
        .changed_lines = (int64_t)(difference->lines_added + difference->lines_removed),
        .changes_are_unknown = run->recorder.difference_is_unknown,
        .begins_anew = run->begins_anew && agent_stop(agent) == AGENT_STOP_QUIT,
        .sequence = run->sequence,
    };
    run->listener.ended(run->listener.context, &ended);
}

void run_leave(struct run *run) {
    bool is_over = run->is_closed && run->handles_open == 0 && !run->is_preparing &&
                   run->command == NULL && run->change == NULL;
    if (!is_over) {
        return;
    }
    ASSERT(!run->step_is_running && run->compaction == NULL);
    list_remove(run);
    if (run->is_ending) { /* else it did not start, and loop_start said so */
        tell_end(run);
    }
    run_deinit(run);
    free(run);
}

void run_say_given(struct run *run, size_t count) {
    if (run->mail_count > 0) { /* of a node */
        ASSERT(count <= run->mail_count);
        run->mail_count -= count;
        memmove(run->mail, run->mail + count, run->mail_count * sizeof run->mail[0]);
    }
    if (count > 0 && run->listener.given != NULL) {
        run->listener.given(run->listener.context, count);
    }
}

void run_say_turned(struct run *run) {
    if (run->listener.turned != NULL) {
        const struct run_turned turned = {
            .turns = agent_turns(run->agent),
            .tokens = agent_tokens_sampled(run->agent),
            .calls = agent_calls(run->agent),
            .digest = agent_turn_digest(run->agent),
        };
        run->listener.turned(run->listener.context, &turned);
    }
}

/* ---- what may be done to it ----------------------------------------------------------------- */

bool run_remark(struct run *run, const struct run_remark *remark) {
    ASSERT(run->loop->shown == 0);
    bool has_mail = remark->delivers != 0 || remark->returns != 0;
    size_t waiting = agent_remarks_waiting(run->agent);
    if (run->is_ending || remark->text.length == 0 || !utf8_is_valid(remark->text) ||
        !agent_takes_remark(run->agent, remark->text.length) ||
        (has_mail && run->options->node == NULL)) {
        return false;
    }
    run_dispatch(run, &(struct agent_event){.type = AGENT_REMARK, .text = remark->text});
    bool is_taken = agent_remarks_waiting(run->agent) > waiting; /* else there was no memory */
    if (is_taken) {
        run_mail_push(run, remark);
    }
    return is_taken;
}

void run_cancel(struct run *run, const char *why) {
    ASSERT(run->loop->shown == 0);
    if (!run->is_ending) {
        run_limit_snapshots(run);
        run_dispatch(
            run, &(struct agent_event){.type = AGENT_INTERRUPT, .text = view_of_text(why)}
        );
    }
}

void run_set_share(struct run *run, const struct agent_share *share) {
    ASSERT(run->loop->shown == 0);
    if (!run->is_ending) {
        if (run_now_ms(run) >= share->deadline_ms) {
            run_limit_snapshots(run);
        }
        run_dispatch(run, &(struct agent_event){.type = AGENT_SHARE, .share = *share});
    }
}

void run_set_effort(struct run *run, int32_t effort) {
    ASSERT(run->loop->shown == 0);
    if (!run->is_ending) {
        run_dispatch(run, &(struct agent_event){.type = AGENT_EFFORT, .effort = effort});
    }
}

/* ---- the beginning -------------------------------------------------------------------------- */

result loop_start(
    struct loop *loop,
    const struct run_options *options,
    const struct run_listener *listener,
    struct run **out,
    struct error *error
) {
    ASSERT(listener->ended != NULL && loop->shown == 0);
    ASSERT(options->output == NULL || options->output == loop->output);
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        FAIL(error, MEMORY, "no memory for a run");
    }
    run->loop = loop;
    run->listener = *listener;
    run->channel = options->channel != NULL ? options->channel : &loop->channel;
    result started = run_init(run, options, error);
    if (is_failed(started)) {
        run_deinit(run);
        free(run);
        return started;
    }
    list_add(run);
    run_handles_init(run);
    const struct run_front *front = options->input;
    started = run_handles_start(run, error);
    if (is_ok(started) && front != NULL) {
        started = front->attach(front->context, &loop->uv, loop, error);
        run->has_front = is_ok(started);
    }
    if (is_failed(started)) {
        run_handles_close(run);
        return started;
    }
    *out = run;
    run_show_earlier(run);
    run_prepare(run);
    run_dispatch(run, &(struct agent_event){.type = AGENT_START});
    return OK;
}

void loop_drive(struct loop *loop) {
    int alive = uv_run(&loop->uv, UV_RUN_DEFAULT);
    ASSERT(alive == 0);
    ASSERT(loop->first == NULL);
}

/* ---- one run -------------------------------------------------------------------------------- */

static void lone_ended(void *context, const struct run_ended *ended) {
    struct run_outcome *out = context;
    out->stop = ended->stop;
    out->begins_anew = ended->begins_anew;
    out->exit_status = ended->exit_status;
    (void)snprintf(out->detail, sizeof out->detail, "%s", ended->detail);
    out->session = ended->session;
    out->sequence = ended->sequence;
}

result loop_run(
    struct loop *loop,
    const struct run_options *options,
    struct run_outcome *out,
    struct error *error
) {
    ASSERT(loop->first == NULL);
    const struct run_listener listener = {.context = out, .ended = lone_ended};
    struct run *run = NULL;
    result started = loop_start(loop, options, &listener, &run, error);
    loop_drive(loop); /* also what a failure has left */
    return started;
}
