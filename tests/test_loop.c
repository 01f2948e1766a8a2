/* The loop with a scripted engine: real agent, parser, store, snapshots and display. */
#include "base/json.h"
#include "runtime/display.h"
#include "runtime/host.h"
#include "runtime/loop.h"
#include "runtime_support.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define CALL(name, parameter, value)                                                               \
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" name "\">\n<｜DSML｜ parameter name=\"" parameter \
    "\" string=\"true\">" value "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"

static const char *const model_path = TEST_SOURCE_DIR "/examples/mini/model";

struct fixture {
    char directory[64];
    char path[128];
    struct text_model model;
    struct tool_declarations declarations;
    struct session_store *store;
    struct workspace *workspace;
    struct loop *loop;
    struct output *output;
    struct display *display;
    struct fake_engine *engine;
    struct fake_tools tools;
    int fd;
    struct run_options options;
    struct run_outcome outcome;
    struct buffer written; /* what the run wrote */
};

static const char *path_in(struct fixture *fixture, const char *name) {
    int length = snprintf(fixture->path, sizeof fixture->path, "%s/%s", fixture->directory, name);
    assert_true(length > 0 && (size_t)length < sizeof fixture->path);
    return fixture->path;
}

static void open_records(struct fixture *fixture) {
    struct error error = {0};
    assert_int_equal(mkdir(path_in(fixture, "work"), 0700), 0);
    const struct session_store_options store = {
        .state_dir = path_in(fixture, "state"),
        .mode = SESSION_READ_WRITE,
        .program = "test",
        .clock = clock_real(),
    };
    assert_true(is_ok(session_store_open(&fixture->store, &store, &error)));
    char work[128];
    assert_true(snprintf(work, sizeof work, "%s", path_in(fixture, "work")) > 0);
    assert_true(
        is_ok(workspace_open(work, path_in(fixture, "snapshots"), &fixture->workspace, &error))
    );
}

static void setup(
    struct fixture *fixture, enum display_form form, const struct fake_turn *turns, size_t count
) {
    struct error error = {0};
    *fixture = (struct fixture){.directory = "/tmp/hearth-loop-XXXXXX", .fd = -1};
    assert_non_null(mkdtemp(fixture->directory));
    assert_true(is_ok(text_model_open(model_path, &fixture->model, &error)));
    assert_true(is_ok(tool_declarations_make(
        NULL, TOOL_DIALECT_HEARTH, TOOL_SET_DEFAULT, &fixture->declarations, &error
    )));
    open_records(fixture);
    fixture->fd = open(path_in(fixture, "out"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fixture->fd >= 0);
    assert_true(is_ok(loop_create(&fixture->loop, &error)));
    assert_true(is_ok(loop_output(fixture->loop, fixture->fd, &fixture->output, &error)));
    const struct display_options display = {.form = form, .width = 80};
    assert_true(is_ok(display_create(&fixture->display, &display, fixture->output, &error)));
    fixture->engine = fake_engine_create(fixture->loop, fixture->model.tokenizer, turns, count);
    fixture->tools = (struct fake_tools){.text = "ok"};
    buffer_init(&fixture->written, 64 << 20);
    fixture->options = (struct run_options){
        .engine = fake_engine_ports(fixture->engine),
        .tools = fake_tool_ports(&fixture->tools),
        .sequence = 7,
        .tokenizer = fixture->model.tokenizer,
        .encoder = fixture->model.encoder,
        .sampling = {.temperature = 0.0, .top_p = 1.0, .seed = 42},
        .agent =
            {.system = view_of_text("You are a test."),
             .task = view_of_text("Do it."),
             .tools = fixture->declarations.tools,
             .tool_count = fixture->declarations.count,
             .effort = 50,
             .context_max = 16384},
        .tools_json = buffer_view(&fixture->declarations.json),
        .store = fixture->store,
        .workspace = fixture->workspace,
        .display = fixture->display,
        .output = fixture->output,
        .clock = clock_real(),
    };
}

static void run(struct fixture *fixture) {
    struct error error = {0};
    result ran = loop_run(fixture->loop, &fixture->options, &fixture->outcome, &error);
    assert_true(is_ok(ran));
    assert_true(is_ok(file_read(path_in(fixture, "out"), &fixture->written, &error)));
}

static void remove_tree(const char *path) {
    char command[256];
    int length = snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_true(length > 0);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a fixed command of the test */
}

static void teardown(struct fixture *fixture) {
    fake_engine_destroy(fixture->engine);
    display_destroy(fixture->display);
    loop_destroy(fixture->loop);
    workspace_close(fixture->workspace);
    session_store_close(fixture->store);
    tool_declarations_deinit(&fixture->declarations);
    text_model_close(&fixture->model);
    buffer_deinit(&fixture->written);
    (void)close(fixture->fd);
    remove_tree(fixture->directory);
}

static struct session_tree *load(struct fixture *fixture) {
    struct error error = {0};
    const struct session_load_options options = {.with_tokens = true};
    struct session_tree *tree = NULL;
    assert_true(
        is_ok(session_load(fixture->store, &fixture->outcome.session, &options, &tree, &error))
    );
    assert_true(is_ok(session_store_verify(fixture->store, &error)));
    return tree;
}

static bool wrote(const struct fixture *fixture, const char *text) {
    return view_find(buffer_view(&fixture->written), view_of_text(text), 0) != SIZE_MAX;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static const struct fake_turn call_then_answer[] = {
    {.text = "I look.</think>Reading.\n\n" CALL("read", "path", "calc.py")},
    {.text = "It is fine.</think>All is well."},
};

static void run_is_recorded_step_by_step(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, COUNT_OF(call_then_answer));
    run(&fixture);
    assert_int_equal(fixture.outcome.exit_status, 0);
    struct session_tree *tree = load(&fixture);
    assert_int_equal(tree->session.status, SESSION_DONE);
    assert_true(view_equals_text(tree->session.stop_reason, "answer"));
    assert_int_equal(tree->agent_count, 1);
    assert_int_equal(tree->agents[0].turn_count, 2);
    const struct session_turn *turn = &tree->agents[0].turns[0];
    assert_true(turn->is_finished);
    assert_int_equal(turn->call_count, 1);
    assert_true(view_equals_text(turn->calls[0].name, "read"));
    assert_true(view_equals_text(turn->calls[0].text, "ok"));
    assert_int_equal(turn->calls[0].status, SESSION_CALL_OK);
    assert_int_equal(turn->run_count, 2);
    assert_int_equal(turn->message_count, 4); /* system, user, assistant, tool */
    /* Runs of tokens join without a gap: the record is the whole context. */
    int64_t position = 0;
    for (size_t i = 0; i < tree->agents[0].turn_count; i++) {
        for (size_t k = 0; k < tree->agents[0].turns[i].run_count; k++) {
            const struct session_run *piece = &tree->agents[0].turns[i].runs[k];
            assert_int_equal(piece->position, position);
            position += (int64_t)piece->count;
            assert_true(piece->kind == SESSION_RUN_PROMPT || piece->log_probabilities != NULL);
        }
    }
    assert_int_equal(
        tree->agents[0].turns[1].end.cache.prompt_tokens,
        position - (int64_t)tree->agents[0].turns[1].runs[1].count
    );
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void second_prompt_appends_only_what_is_new(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, COUNT_OF(call_then_answer));
    run(&fixture);
    struct session_tree *tree = load(&fixture);
    const struct session_cache_facts *second = &tree->agents[0].turns[1].end.cache;
    assert_int_equal(second->evaluated_tokens + second->reused_tokens, second->prompt_tokens);
    assert_true(second->evaluated_tokens < 40);
    assert_true(second->reused_tokens > 200);
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void plain_lines_show_thinking_call_result_and_end(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, COUNT_OF(call_then_answer));
    fixture.tools.text = "one\ntwo\x1b[31m";
    run(&fixture);
    assert_true(wrote(&fixture, "task: Do it.\n"));
    assert_true(wrote(&fixture, "~ I look.\n"));
    assert_true(wrote(&fixture, "\n> read calc.py\n"));
    assert_true(wrote(&fixture, "  | one\n"));
    assert_true(wrote(&fixture, "\nAll is well.\n"));
    assert_true(wrote(&fixture, "no file changed\n"));
    assert_true(wrote(&fixture, "# next: hearth sessions show "));
    assert_null(memchr(fixture.written.data, 0x1B, fixture.written.length));
    teardown(&fixture);
}

static void check_json_line(struct view line, const char *const *last) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct error error = {0};
    struct view name;
    assert_true(is_ok(json_parse(line, NULL, &document, &error)));
    assert_true(is_ok(json_get_string(json_root(document), "event", &name, &error)));
    if (*last != NULL) {
        assert_true(view_equals_text(name, *last));
    }
}

static void json_lines_are_valid_and_end_with_finished(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_JSON, call_then_answer, COUNT_OF(call_then_answer));
    fixture.tools.text = "a\"b\\c\nd";
    run(&fixture);
    struct cursor cursor = cursor_over(buffer_view(&fixture.written));
    struct view line;
    size_t lines = 0;
    while (cursor_take_until(&cursor, '\n', &line)) {
        const char *name = cursor_remaining(&cursor) == 0 ? "finished" : NULL;
        check_json_line(line, &name);
        lines++;
    }
    assert_int_equal(cursor_remaining(&cursor), 0);
    assert_true(lines > 8);
    assert_true(wrote(&fixture, "\"exit_status\":0"));
    assert_true(wrote(&fixture, "{\"event\":\"usage\",\"turn\":2,\"prompt\":"));
    teardown(&fixture);
}

static void never_ending_model_stops_at_its_turn_limit(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "and on", .is_endless = true}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    fixture.options.agent.turn_tokens_max = 300;
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_LENGTH);
    assert_int_equal(fixture.outcome.exit_status, 1);
    struct session_tree *tree = load(&fixture);
    assert_int_equal(tree->agents[0].turns[0].end.output_tokens, 300);
    assert_int_equal(tree->session.status, SESSION_STOPPED);
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void never_ending_model_stops_at_the_deadline(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "x", .is_endless = true, .delay_us = 500}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    fixture.options.agent.time_ms_max = 300;
    const struct clock clock = clock_real();
    int64_t started = clock_monotonic_ms(&clock);
    run(&fixture);
    int64_t took = clock_monotonic_ms(&clock) - started;
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_TIME);
    assert_int_equal(fixture.outcome.exit_status, 4);
    assert_true(took >= 300 && took < 1300 + 4000); /* a wide margin for a busy machine */
    teardown(&fixture);
}

/* A tool that hangs leaves time for the answer, which is told what is left. */
static void tool_is_ended_before_the_deadline(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, COUNT_OF(call_then_answer));
    fixture.options.agent.time_ms_max = 8000;
    fixture.tools.milliseconds = 60000;
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_ANSWER);
    struct session_tree *tree = load(&fixture);
    const struct session_turn *turn = &tree->agents[0].turns[0];
    assert_int_equal(turn->calls[0].status, SESSION_CALL_TIMEOUT);
    struct view shown = turn->messages[turn->message_count - 1].text;
    assert_true(view_find(shown, view_of_text("[budget left: "), 0) != SIZE_MAX);
    assert_true(view_find(turn->calls[0].text, view_of_text("[budget left: "), 0) == SIZE_MAX);
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void repeated_calls_stop_with_a_named_reason(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, 1);
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_REPEAT);
    assert_int_equal(fixture.tools.calls, AGENT_REPEATS_MAX);
    teardown(&fixture);
}

static void unknown_tools_stop_with_a_named_reason(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "</think>" CALL("fly", "to", "moon")}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    fixture.tools.counts = true;
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_UNKNOWN);
    teardown(&fixture);
}

static void garbage_stops_with_a_named_reason(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {
        {.text = "</think><｜DSML｜ calls>\n<｜DSML｜ invoke nam"},
        {.text = "<think><think></think></think><｜DSML｜ calls><｜User｜>"},
        {.text = "never closed"},
    };
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_GARBAGE);
    assert_int_equal(fixture.outcome.exit_status, 1);
    struct session_tree *tree = load(&fixture);
    assert_int_equal(tree->agents[0].turn_count, AGENT_MALFORMED_MAX);
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void engine_failure_is_recorded(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "x", .fails = true}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    run(&fixture);
    assert_int_equal(fixture.outcome.exit_status, 6);
    assert_true(wrote(&fixture, "the fake engine failed"));
    struct session_tree *tree = load(&fixture);
    assert_int_equal(tree->session.status, SESSION_FAILED);
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void tool_that_cannot_be_confined_is_refused(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, COUNT_OF(call_then_answer));
    fixture.tools.fails = true;
    run(&fixture);
    assert_int_equal(fixture.outcome.exit_status, 3);
    assert_true(wrote(&fixture, "cannot confine"));
    teardown(&fixture);
}

static void engine_hears_of_waiting_and_of_the_end(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {
        {.text = "</think>" CALL("read", "path", "a")},
        {.text = "</think>" CALL("shell", "command", "ls")},
        {.text = "</think>" CALL("read", "path", "b")},
        {.text = "</think>Done."},
    };
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    fixture.tools.duration_ms = 250;
    run(&fixture);
    size_t count = 0;
    const struct fake_told *told = fake_engine_told(fixture.engine, &count);
    assert_int_equal(count, 4);
    /* A tool's usual time is known once it ran. */
    static const int64_t estimates[] = {0, 0, 250};
    for (size_t i = 0; i < COUNT_OF(estimates); i++) {
        assert_int_equal(told[i].event, SEQUENCE_WAITING);
        assert_int_equal(told[i].estimate_ms, estimates[i]);
    }
    assert_int_equal(told[3].event, SEQUENCE_FINISHED);
    teardown(&fixture);
}

/* Nothing is recorded, so nobody can come back. */
static void session_that_cannot_be_recorded_is_abandoned(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, COUNT_OF(call_then_answer));
    fixture.options.sampling.seed = 1;
    fixture.options.begin.sampler.temperature = (double)NAN; /* refused by the store */
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_RECORD);
    size_t count = 0;
    const struct fake_told *told = fake_engine_told(fixture.engine, &count);
    assert_int_equal(count, 1);
    assert_int_equal(told[0].event, SEQUENCE_ABANDONED);
    teardown(&fixture);
}

static void trouble_of_the_cache_is_one_warning(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_JSON, call_then_answer, COUNT_OF(call_then_answer));
    fake_engine_set_trouble(fixture.engine, "no cache on disk: /x is read-only");
    run(&fixture);
    assert_int_equal(fixture.outcome.exit_status, 0);
    const char *line =
        "{\"event\":\"warning\",\"turn\":0,\"text\":\"no cache on disk: /x is read-only\"}";
    struct view written = buffer_view(&fixture.written);
    size_t at = view_find(written, view_of_text(line), 0);
    assert_true(at != SIZE_MAX);
    assert_true(view_find(written, view_of_text("\"warning\""), at + 20) == SIZE_MAX);
    teardown(&fixture);
}

static void *send_signal(void *context) {
    (void)context;
    (void)usleep(400000);
    (void)kill(getpid(), SIGTERM);
    return NULL;
}

static void interrupt_keeps_everything(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "x", .is_endless = true, .delay_us = 1000}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    fixture.options.handles_signals = true;
    pthread_t sender;
    assert_int_equal(pthread_create(&sender, NULL, send_signal, NULL), 0);
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_INTERRUPT);
    assert_int_equal(pthread_join(sender, NULL), 0);
    assert_int_equal(fixture.outcome.exit_status, 130);
    struct session_tree *tree = load(&fixture);
    assert_true(tree->agents[0].turns[0].is_finished);
    assert_true(tree->agents[0].turns[0].end.output_tokens > 0);
    session_tree_destroy(tree);
    teardown(&fixture);
}

static result write_subject(
    void *context,
    struct view name,
    struct view arguments,
    struct tool_subject *out,
    struct error *error
) {
    (void)context, (void)name, (void)arguments, (void)error;
    *out = (struct tool_subject){.tool = "write", .effects = TOOL_WRITES};
    return OK;
}

/* The person interrupts while the file is read that a call would write over. */
static result interrupted_overwrite(
    void *context,
    struct view name,
    struct view arguments,
    struct tool_overwrite *out,
    struct error *error
) {
    struct fake_tools *tools = context;
    (void)name, (void)arguments, (void)error;
    *out = (struct tool_overwrite){.is_there = true, .bytes = 1};
    (void)kill(getpid(), SIGTERM);
    while (!tools->is_cancelled) {
        (void)usleep(1000);
    }
    return OK;
}

static void interrupt_before_a_call_is_shown_withdraws_it(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = CALL("write", "content", "text")}};
    struct error error = {0};
    struct permission *permission = NULL;
    const struct permission_options ask = {.policy = PERMISSION_ASK};
    assert_true(is_ok(permission_create(&permission, &ask, &error)));
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    fixture.options.handles_signals = true;
    fixture.options.permission = permission;
    fixture.options.tools.subject = write_subject;
    fixture.options.tools.overwrite = interrupted_overwrite;
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_INTERRUPT);
    assert_int_equal(fixture.tools.calls, 0);
    assert_true(wrote(&fixture, "> write"));
    assert_true(wrote(&fixture, "cancelled before it was allowed"));
    assert_false(wrote(&fixture, "? may"));
    teardown(&fixture);
    permission_destroy(permission);
}

static void closed_output_stops_the_run(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "x\n", .is_endless = true, .delay_us = 100}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_JSON, turns, COUNT_OF(turns));
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)close(ends[0]);
    assert_int_equal(dup2(ends[1], fixture.fd), fixture.fd);
    (void)close(ends[1]);
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_INTERRUPT);
    teardown(&fixture);
}

static void loop_runs_twice(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "</think>Yes."}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    run(&fixture);
    assert_int_equal(fixture.outcome.exit_status, 0);
    struct error error = {0};
    assert_true(is_ok(loop_run(fixture.loop, &fixture.options, &fixture.outcome, &error)));
    assert_int_equal(fixture.outcome.exit_status, 0);
    teardown(&fixture);
}

/* A turn that a guard cut is recorded by its name, and the next prompt holds what the model is told. */
static void cut_turns_are_recorded_and_told(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {
        {.text = "hm hm hm hm", .reason = FINISH_LOOP},
        {.text = "Now I see.</think>All is well."},
    };
    struct fixture fixture;
    setup(&fixture, DISPLAY_JSON, turns, COUNT_OF(turns));
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_ANSWER);
    struct session_tree *tree = load(&fixture);
    assert_int_equal(tree->agents[0].turn_count, 2);
    assert_true(view_equals_text(tree->agents[0].turns[0].end.stop_reason, "loop"));
    const struct session_message *told = &tree->agents[0].turns[1].messages[0];
    assert_true(view_equals_text(told->role, "user"));
    assert_true(view_equals_text(told->text, agent_cut_text(FINISH_LOOP)));
    assert_true(wrote(&fixture, "\"ended\":\"loop\""));
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void loops_that_go_on_end_the_run_by_name(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "hm hm", .reason = FINISH_LOOP}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_LOOP);
    assert_int_equal(fixture.outcome.exit_status, 1);
    assert_int_equal(fake_engine_generations(fixture.engine), AGENT_LOOPS_MAX);
    struct session_tree *tree = load(&fixture);
    assert_int_equal(tree->session.status, SESSION_STOPPED);
    assert_true(view_equals_text(tree->session.stop_reason, "loop"));
    assert_true(wrote(&fixture, "stopped: the model repeats one text on end (2 turns in a row"));
    session_tree_destroy(tree);
    teardown(&fixture);
}

static void settings_reach_the_engine_and_the_record(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "Hm.</think>So HALT", .reason = FINISH_STOP}};
    static const char settings[] = "{\"stop\":[\"HALT\"]}";
    const struct view stops[] = {view_of_text("HALT")};
    struct fixture fixture;
    setup(&fixture, DISPLAY_JSON, turns, COUNT_OF(turns));
    fixture.options.stops = stops;
    fixture.options.stop_count = 1;
    fixture.options.guard = (struct guard_limits){8, 4, 100, 200, 300};
    fixture.options.speculation = SPECULATE_LOOKUP;
    fixture.options.draft_max = 5;
    fixture.options.agent.time_ms_max = 60000;
    fixture.options.begin.sampler.settings = view_of_text(settings);
    fixture.options.settings = view_of_text(settings);
    fixture.options.sampling.alternatives = 2;
    fixture.options.shows_tokens = true;
    int64_t before = clock_monotonic_ms(&fixture.options.clock);
    run(&fixture);
    const struct generation_request *request = fake_engine_request(fixture.engine);
    assert_ptr_equal(request->stops, stops);
    assert_int_equal(request->stop_count, 1);
    assert_int_equal(request->guard.call_max, 300);
    assert_true(request->starts_in_thinking);
    assert_int_equal(request->speculation, SPECULATE_LOOKUP);
    assert_int_equal(request->draft_max, 5);
    assert_true(request->agent != 0);
    assert_true(request->deadline_ms >= before + 60000 && request->deadline_ms < before + 120000);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_STRING);
    assert_string_equal(fixture.outcome.detail, "HALT");
    struct session_tree *tree = load(&fixture);
    const struct session_turn_end *end = &tree->agents[0].turns[0].end;
    assert_true(view_equals_text(tree->session.begin.sampler.settings, settings));
    assert_true(view_equals_text(end->sampler.settings, settings));
    assert_true(view_equals_text(end->stop_detail, "HALT"));
    assert_int_equal(end->sampler.seed, 42);
    assert_int_equal(end->drafted, 6);
    assert_int_equal(end->accepted, 4);
    assert_int_equal(end->preempted, 1);
    assert_int_equal(end->fork_index, -1);
    assert_int_equal(tree->session.status, SESSION_DONE);
    session_tree_destroy(tree);
    assert_true(wrote(&fixture, "\"settings\":{\"stop\":[\"HALT\"]}"));
    assert_true(wrote(&fixture, "{\"event\":\"token\",\"turn\":1,\"id\":"));
    assert_true(wrote(&fixture, "\"logprob\":-0.5,\"top\":[{\"id\":"));
    assert_true(wrote(&fixture, "\"drafted\":6,\"accepted\":4,\"preempted\":1,"));
    assert_true(wrote(&fixture, "\"ended\":\"stop\",\"stop\":\"HALT\""));
    teardown(&fixture);
}

static void plain_lines_tell_drafts(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, call_then_answer, COUNT_OF(call_then_answer));
    run(&fixture);
    assert_true(wrote(&fixture, "\n# drafted 12, accepted 8\n"));
    assert_true(wrote(&fixture, "\n# waited 2 times for a more urgent one\n"));
    teardown(&fixture);
}

/* The engine may find a deadline passed that had not when the agent decided. */
static void late_request_is_the_time_budget_and_no_failure(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "x", .is_late = true}};
    struct fixture fixture;
    setup(&fixture, DISPLAY_PLAIN, turns, COUNT_OF(turns));
    fixture.options.agent.time_ms_max = 150;
    run(&fixture);
    assert_int_equal(fixture.outcome.stop, AGENT_STOP_TIME);
    assert_int_equal(fixture.outcome.exit_status, 4);
    struct session_tree *tree = load(&fixture);
    assert_true(tree->agents[0].turn_count == 0 || tree->agents[0].turns[0].is_finished);
    session_tree_destroy(tree);
    teardown(&fixture);
}

static int count_of(const struct fixture *fixture, const char *text) {
    struct view rest = buffer_view(&fixture->written);
    int count = 0;
    for (size_t at = 0; (at = view_find(rest, view_of_text(text), at)) != SIZE_MAX; at++) {
        count++;
    }
    return count;
}

static void watchdog_names_what_stands_still(void **state) {
    (void)state;
    static const struct fake_turn turns[] = {{.text = "Hm.</think>Yes.", .delay_us = 30000}};
    static const char *const lines[] = {
        "# stuck for 10 s: sequence 7 waits for 12 blocks of 96, 3 are free\n",
        "{\"event\":\"stuck\",\"turn\":1,\"wait\":\"memory\",\"stuck_ms\":10001,\"text\":"
        "\"sequence 7",
    };
    for (int form = 0; form < 2; form++) {
        struct fixture fixture;
        setup(&fixture, form == 0 ? DISPLAY_PLAIN : DISPLAY_JSON, turns, COUNT_OF(turns));
        fake_engine_set_stuck(fixture.engine, 3);
        fixture.options.watch_interval_ms = 5;
        run(&fixture);
        assert_int_equal(count_of(&fixture, lines[form]), 1); /* not at each look */
        assert_int_equal(count_of(&fixture, "the generation goes on"), 1);
        const char *statistics = "{\"event\":\"statistics\",\"turn\":1,\"requests\":1,";
        assert_int_equal(count_of(&fixture, statistics) > 0, form == 1);
        assert_int_equal(wrote(&fixture, "\"decode_rows\":17"), form == 1);
        teardown(&fixture);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_is_recorded_step_by_step),
        cmocka_unit_test(second_prompt_appends_only_what_is_new),
        cmocka_unit_test(plain_lines_show_thinking_call_result_and_end),
        cmocka_unit_test(json_lines_are_valid_and_end_with_finished),
        cmocka_unit_test(never_ending_model_stops_at_its_turn_limit),
        cmocka_unit_test(never_ending_model_stops_at_the_deadline),
        cmocka_unit_test(tool_is_ended_before_the_deadline),
        cmocka_unit_test(repeated_calls_stop_with_a_named_reason),
        cmocka_unit_test(unknown_tools_stop_with_a_named_reason),
        cmocka_unit_test(garbage_stops_with_a_named_reason),
        cmocka_unit_test(engine_failure_is_recorded),
        cmocka_unit_test(tool_that_cannot_be_confined_is_refused),
        cmocka_unit_test(interrupt_keeps_everything),
        cmocka_unit_test(interrupt_before_a_call_is_shown_withdraws_it),
        cmocka_unit_test(closed_output_stops_the_run),
        cmocka_unit_test(loop_runs_twice),
        cmocka_unit_test(cut_turns_are_recorded_and_told),
        cmocka_unit_test(loops_that_go_on_end_the_run_by_name),
        cmocka_unit_test(settings_reach_the_engine_and_the_record),
        cmocka_unit_test(plain_lines_tell_drafts),
        cmocka_unit_test(late_request_is_the_time_budget_and_no_failure),
        cmocka_unit_test(watchdog_names_what_stands_still),
        cmocka_unit_test(engine_hears_of_waiting_and_of_the_end),
        cmocka_unit_test(session_that_cannot_be_recorded_is_abandoned),
        cmocka_unit_test(trouble_of_the_cache_is_one_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
