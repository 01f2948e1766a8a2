/* What is made ready beside the prompt: servers, whose tools the first turn declares. A person can type at
 * once; the first step of the record waits, so that the head of the prompt is whole before it is used. See
 * loop_internal.h. */
#include "loop_internal.h"

static void prepare_work(void *context) {
    struct run *run = context;
    const struct run_preparation *preparation = run->options->preparation;
    run->prepare_result = preparation->prepare(preparation->context, &run->prepare_error);
}

/* The tools as they are from now on. */
static result declare(struct run *run, const struct run_declared *declared, struct error *error) {
    CLEANUP(free_cleanup)
    struct view *names = calloc(declared->tool_count + 1, sizeof *names);
    CLEANUP(free_cleanup)
    struct tool_time *times = calloc(declared->tool_count + 1, sizeof *times);
    if (names == NULL || times == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tools", declared->tool_count);
    }
    for (size_t i = 0; i < declared->tool_count; i++) {
        names[i] = declared->tools[i].name;
    }
    free(run->tool_names);
    free(run->tool_times);
    run->tool_names = TAKE(names);
    run->tool_times = TAKE(times);
    run->declared = *declared;
    run->recorder.tools_json = declared->tools_json;
    return OK;
}

result run_declare(struct run *run, const struct run_declared *declared, struct error *error) {
    TRY(declare(run, declared, error));
    return run->agent == NULL
               ? OK
               : agent_declare(run->agent, declared->tools, declared->tool_count, error);
}

static void prepare_done(void *context) {
    struct run *run = context;
    const struct run_preparation *preparation = run->options->preparation;
    run->is_preparing = false;
    if (run->is_ending) {
        run_leave(run);
        return;
    }
    struct run_declared declared = {0};
    result ready = run->prepare_result;
    if (is_ok(ready)) {
        preparation->ready(preparation->context, &declared);
        ready = run_declare(run, &declared, &run->prepare_error);
    }
    if (is_failed(ready)) {
        run->has_postponed = false;
        run_dispatch(
            run, &(struct agent_event){.type = AGENT_NOT_READY, .error = &run->prepare_error}
        );
    } else if (run->has_postponed) {
        run_step_postponed(run);
    }
}

void run_prepare(struct run *run) {
    run->is_preparing = run->options->preparation != NULL;
    if (run->is_preparing) {
        run->prepare =
            (struct loop_job){.work = prepare_work, .done = prepare_done, .context = run};
        loop_job_start(run->loop, &run->prepare);
    }
}

void run_prepare_say(struct run *run) {
    const struct run_preparation *preparation = run->options->preparation;
    char line[160];
    int length = snprintf(
        line,
        sizeof line,
        "waiting for the server %.64s to start%s",
        preparation->waits_for(preparation->context),
        run->options->is_interactive ? "; an interrupt goes on without it" : ""
    );
    ASSERT(length > 0 && (size_t)length < sizeof line);
    struct run_event note = {.type = RUN_NOTE, .text = view_of_text(line)};
    run->status.activity = "starting servers";
    run_show(run, &note);
}

void run_prepare_cancel(struct run *run) {
    if (run->is_preparing) {
        run->options->tools.cancel(run->options->tools.context);
    }
}
