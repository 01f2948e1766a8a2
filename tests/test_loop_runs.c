/* Many runs in one loop: real agents, parsers and one store, a scripted engine that writes for all of them at once, and
 * tools that each know whose they are. */
#include "crowd_engine.h"
#include "runtime/host.h"
#include "runtime/loop.h"
#include "runtime_support.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MEMBERS_MAX 66
#define CALL(name, parameter, value)                                                               \
    "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"" name "\">\n<｜DSML｜ parameter name=\"" parameter \
    "\" string=\"true\">" value "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"

static const char *const model_path = TEST_SOURCE_DIR "/examples/mini/model";

struct fixture;

/* One run, with what belongs to it alone. */
struct member {
    struct fixture *fixture;
    int number;
    struct run_channel *channel;
    struct run *run; /* null: not started, or over */
    uint64_t sequence;
    char answer[64];
    char words[32]; /* what its tool writes */
    struct fake_turn turns[3];
    struct run_options options;

    bool call_waits;  /* until the fixture opens the gate */
    int milliseconds; /* that a call takes */
    _Atomic bool is_cancelled;
    _Atomic int calls;
    _Atomic bool prepares, is_prepared;

    /* what the listener heard */
    int ended, turned, shown_pieces, strange_pieces;
    size_t given, told;
    bool tells_in_turn; /* says something after its first turn, and sets its effort */
    enum agent_stop stop;
    char detail[AGENT_DETAIL_BYTES];
    char last_text[64];
    int64_t tokens;
    uint64_t digest; /* of the first turn */
    struct session_id session;
    struct member *starts; /* at its end */
};

struct fixture {
    char directory[64];
    struct text_model model;
    struct tool_declarations declarations;
    struct session_store *store; /* of all */
    struct loop *loop;
    struct crowd_engine *engines[2];
    int engine_count;       /* that are used */
    struct member *members; /* [count] */
    int count;
    pthread_mutex_t lock; /* guards the gate */
    pthread_cond_t changed;
    bool is_open;
    int waiting;
    uint32_t random;
    int pokes; /* that are left */
};

/* ---- tools ---------------------------------------------------------------------------------- */

static void wait_at_gate(struct fixture *fixture) {
    (void)pthread_mutex_lock(&fixture->lock);
    fixture->waiting++;
    while (!fixture->is_open) {
        (void)pthread_cond_wait(&fixture->changed, &fixture->lock);
    }
    (void)pthread_mutex_unlock(&fixture->lock);
}

static void open_gate(struct fixture *fixture) {
    (void)pthread_mutex_lock(&fixture->lock);
    fixture->is_open = true;
    (void)pthread_cond_broadcast(&fixture->changed);
    (void)pthread_mutex_unlock(&fixture->lock);
}

static result member_call(
    void *context,
    struct view name,
    struct view arguments,
    int64_t time_ms_max,
    struct tool_result *out,
    struct error *error
) {
    struct member *member = context;
    (void)name;
    (void)arguments;
    (void)time_ms_max;
    const struct timespec pause = {.tv_nsec = 1000000};
    member->calls++;
    run_channel_output(member->channel, view_of_text(member->words));
    if (member->call_waits) {
        wait_at_gate(member->fixture);
    }
    out->status = TOOL_OK;
    for (int i = 0; i < member->milliseconds && !member->is_cancelled; i++) {
        (void)nanosleep(&pause, NULL);
    }
    if (member->is_cancelled) {
        out->status = TOOL_CANCELLED;
    }
    run_channel_decided(
        member->channel,
        &(struct loop_decision
        ){.kind = "network", .subject = member->words, .decider = "rule", .reason = "test"}
    );
    return buffer_append_text(&out->text, member->words, error);
}

static void member_cancel(void *context) {
    struct member *member = context;
    member->is_cancelled = true;
}

static void member_renew(void *context) {
    struct member *member = context;
    member->is_cancelled = false;
}

/* ---- what is heard -------------------------------------------------------------------------- */

static void member_start(struct member *member);

static void event_came(void *context, const struct run_event *event) {
    struct member *member = context;
    if (event->type == RUN_TOOL_OUTPUT) {
        bool is_own = view_equals_text(event->text, member->words);
        member->shown_pieces++;
        member->strange_pieces += is_own ? 0 : 1;
    }
}

static void given(void *context, size_t count) {
    struct member *member = context;
    member->given += count;
}

static void turned(void *context, const struct run_turned *turn) {
    struct member *member = context;
    assert_int_equal(turn->calls, member->calls);
    assert_true(turn->tokens > member->tokens || turn->tokens == member->tokens);
    member->tokens = turn->tokens;
    member->digest = member->turned++ == 0 ? turn->digest : member->digest;
    if (member->tells_in_turn && member->turned == 1) {
        assert_true(
            run_remark(member->run, &(struct run_remark){view_of_text("A word from beside."), 0, 0})
        );
        assert_true(
            run_remark(member->run, &(struct run_remark){view_of_text("And another."), 0, 0})
        );
        assert_false(run_remark(member->run, &(struct run_remark){view_of_text("\xFF"), 0, 0}));
        run_set_effort(member->run, 20);
    }
}

static void ended(void *context, const struct run_ended *end) {
    struct member *member = context;
    member->run = NULL;
    member->ended++;
    member->stop = end->stop;
    member->tokens = end->tokens;
    member->session = end->session;
    assert_int_equal(end->calls, member->calls);
    assert_int_equal(member->is_prepared, member->prepares);
    assert_int_equal(end->sequence, member->sequence);
    assert_true(snprintf(member->detail, sizeof member->detail, "%s", end->detail) >= 0);
    (void
    )snprintf(member->last_text, sizeof member->last_text, "%.*s", VIEW_ARGUMENTS(end->last_text));
    if (member->starts != NULL) {
        member_start(member->starts);
    }
}

/* ---- setup ---------------------------------------------------------------------------------- */

static void setup(struct fixture *fixture, int count) {
    struct error error = {0};
    *fixture = (struct fixture){.count = count};
    /* In memory where there is such a place: each of many steps is synced. */
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(fixture->directory, sizeof fixture->directory, "%s/hearth-runs-XXXXXX", base);
    assert_non_null(mkdtemp(fixture->directory));
    assert_true(is_ok(text_model_open(model_path, &fixture->model, &error)));
    assert_true(is_ok(tool_declarations_make(
        NULL, TOOL_DIALECT_HEARTH, TOOL_SET_DEFAULT, &fixture->declarations, &error
    )));
    const struct session_store_options store = {
        .state_dir = fixture->directory,
        .mode = SESSION_READ_WRITE,
        .program = "test",
        .clock = clock_real()};
    assert_true(is_ok(session_store_open(&fixture->store, &store, &error)));
    assert_true(is_ok(loop_create(&fixture->loop, &error)));
    for (size_t i = 0; i < COUNT_OF(fixture->engines); i++) {
        fixture->engines[i] = crowd_engine_create(fixture->loop, fixture->model.tokenizer);
    }
    fixture->engine_count = 1;
    fixture->members = calloc((size_t)count + 1, sizeof *fixture->members);
    assert_non_null(fixture->members);
    assert_int_equal(pthread_mutex_init(&fixture->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&fixture->changed, NULL), 0);
}

static struct crowd_engine *engine_of(const struct member *member) {
    return member->fixture->engines[member->number % member->fixture->engine_count];
}

static void member_open(struct fixture *fixture, int number) {
    struct member *member = &fixture->members[number];
    struct error error = {0};
    member->fixture = fixture;
    member->number = number;
    assert_true(is_ok(run_channel_create(&member->channel, fixture->loop, &error)));
    (void)snprintf(member->words, sizeof member->words, "words of %d", number);
    (void)snprintf(member->answer, sizeof member->answer, "I see.</think>Answer %d.", number);
    member->turns[0] = (struct fake_turn){.text = "Hm.</think>" CALL("read", "path", "a")};
    member->turns[1] = (struct fake_turn){.text = member->answer};
    member->turns[2] = member->turns[1];
    member->sequence = crowd_engine_add(engine_of(member), member->turns, COUNT_OF(member->turns));
    member->options = (struct run_options){
        .engine = crowd_engine_ports(engine_of(member)),
        .tools =
            {.context = member,
             .call = member_call,
             .cancel = member_cancel,
             .renew = member_renew},
        .channel = member->channel,
        .sequence = member->sequence,
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
        .clock = clock_real(),
    };
}

static void member_start(struct member *member) {
    const struct run_listener listener = {
        .context = member,
        .event = event_came,
        .given = given,
        .turned = turned,
        .ended = ended,
    };
    struct error error = {0};
    struct run *run = NULL;
    assert_true(is_ok(loop_start(member->fixture->loop, &member->options, &listener, &run, &error))
    );
    assert_int_equal(member->ended, 0); /* never before it has returned */
    member->run = run;
}

static void open_all(struct fixture *fixture) {
    for (int i = 0; i < fixture->count; i++) {
        member_open(fixture, i);
    }
}

static void start_all(struct fixture *fixture) {
    for (int i = 0; i < fixture->count; i++) {
        member_start(&fixture->members[i]);
    }
}

static void remove_tree(const char *path) {
    char command[256];
    assert_true(snprintf(command, sizeof command, "rm -rf '%s'", path) > 0);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a fixed command of the test */
}

static void teardown(struct fixture *fixture) {
    for (int i = 0; i < fixture->count; i++) {
        struct member *member = &fixture->members[i];
        assert_int_equal(crowd_engine_ends(engine_of(member), member->sequence), member->ended);
    }
    for (size_t i = 0; i < COUNT_OF(fixture->engines); i++) {
        crowd_engine_destroy(fixture->engines[i]);
    }
    loop_destroy(fixture->loop); /* which asserts that no handle is left */
    for (int i = 0; i < fixture->count; i++) {
        run_channel_destroy(fixture->members[i].channel);
    }
    tool_declarations_deinit(&fixture->declarations);
    text_model_close(&fixture->model);
    (void)pthread_cond_destroy(&fixture->changed);
    (void)pthread_mutex_destroy(&fixture->lock);
    free(fixture->members);
    session_store_close(fixture->store);
    remove_tree(fixture->directory);
}

static struct session_tree *load(const struct member *member) {
    struct error error = {0};
    const struct session_load_options options = {.with_tokens = true};
    struct session_tree *tree = NULL;
    assert_true(
        is_ok(session_load(member->fixture->store, &member->session, &options, &tree, &error))
    );
    assert_true(is_ok(session_store_verify(member->fixture->store, &error)));
    return tree;
}

static int descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        count++;
    }
    (void)closedir(directory);
    return count;
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void check_own(const struct member *member) {
    char expected[32];
    (void)snprintf(expected, sizeof expected, "Answer %d.", member->number);
    assert_int_equal(member->ended, 1);
    assert_int_equal(member->stop, AGENT_STOP_ANSWER);
    assert_string_equal(member->last_text, expected);
    assert_int_equal(member->turned, 2);
    assert_int_equal(member->shown_pieces, 1);
    assert_int_equal(member->strange_pieces, 0);
    struct session_tree *tree = load(member);
    assert_int_equal(tree->session.status, SESSION_DONE);
    assert_int_equal(tree->agents[0].turn_count, 2);
    const struct session_turn *turn = &tree->agents[0].turns[0];
    assert_int_equal(turn->call_count, 1);
    assert_true(view_equals_text(turn->calls[0].text, member->words));
    assert_int_equal(tree->decision_count, 1);
    assert_true(view_equals_text(tree->decisions[0].subject, member->words));
    session_tree_destroy(tree);
}

static void runs_beside_each_other_keep_their_own(void **state) {
    (void)state;
    static const int counts[] = {1, 8, 64};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        struct fixture fixture;
        setup(&fixture, counts[i]);
        open_all(&fixture);
        start_all(&fixture);
        loop_drive(fixture.loop);
        for (int k = 0; k < fixture.count; k++) {
            check_own(&fixture.members[k]);
            assert_int_equal(
                fixture.members[k].digest == fixture.members[0].digest, k == 0
            ); /* other results */
        }
        teardown(&fixture);
    }
}

/* Whose sequences have the same numbers. */
static void runs_of_two_engines_are_kept_apart(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, 6);
    fixture.engine_count = 2;
    open_all(&fixture);
    assert_int_equal(fixture.members[0].sequence, fixture.members[1].sequence);
    start_all(&fixture);
    loop_drive(fixture.loop);
    for (int i = 0; i < fixture.count; i++) {
        check_own(&fixture.members[i]);
    }
    teardown(&fixture);
}

static void opens_gate(void *context, const struct run_ended *end) {
    struct member *member = context;
    ended(context, end);
    open_gate(member->fixture);
}

/* More calls wait than libuv's pool has threads, and for a run that needs some. */
static void calls_that_wait_for_another_run_do_not_stop_it(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, 33);
    open_all(&fixture);
    for (int i = 1; i < fixture.count; i++) {
        fixture.members[i].call_waits = true;
        member_start(&fixture.members[i]);
    }
    const struct run_listener listener = {
        .context = &fixture.members[0],
        .event = event_came,
        .turned = turned,
        .ended = opens_gate,
    };
    struct run *run = NULL;
    fixture.members[0].milliseconds = 300; /* the others come to the gate before */
    assert_true(is_ok(loop_start(fixture.loop, &fixture.members[0].options, &listener, &run, NULL))
    );
    loop_drive(fixture.loop);
    assert_int_equal(fixture.waiting, 32);
    for (int i = 0; i < fixture.count; i++) {
        check_own(&fixture.members[i]);
    }
    teardown(&fixture);
}

static void run_that_is_told_hears_it_before_its_next_turn(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, 2);
    open_all(&fixture);
    fixture.members[0].tells_in_turn = true;
    start_all(&fixture);
    loop_drive(fixture.loop);
    assert_int_equal(fixture.members[0].given, 2);
    assert_int_equal(fixture.members[1].given, 0);
    struct session_tree *tree = load(&fixture.members[0]);
    const struct session_turn *turn = &tree->agents[0].turns[1];
    static const char *const texts[] = {
        "Reasoning effort from now on: 20 of 100.", "A word from beside.", "And another."};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        assert_true(view_equals_text(turn->messages[i].role, "user"));
        assert_true(view_equals_text(turn->messages[i].text, texts[i]));
    }
    assert_int_equal(turn->end.sampler.effort, 20);
    session_tree_destroy(tree);
    check_own(&fixture.members[1]);
    teardown(&fixture);
}

static void run_may_start_the_next_one_at_its_end(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, 5);
    open_all(&fixture);
    for (int i = 0; i + 1 < fixture.count; i++) {
        fixture.members[i].starts = &fixture.members[i + 1];
    }
    member_start(&fixture.members[0]);
    loop_drive(fixture.loop);
    for (int i = 0; i < fixture.count; i++) {
        check_own(&fixture.members[i]);
    }
    teardown(&fixture);
}

static result
attach_fails(void *context, struct uv_loop_s *uv, struct loop *loop, struct error *error) {
    (void)context;
    (void)uv;
    (void)loop;
    FAIL(error, IO, "no terminal");
}

static void run_that_cannot_start_leaves_the_others_alone(void **state) {
    (void)state;
    static const struct run_front front = {.attach = attach_fails};
    struct fixture fixture;
    setup(&fixture, 2);
    open_all(&fixture);
    member_start(&fixture.members[0]);
    fixture.members[1].options.input = &front;
    const struct run_listener listener = {.context = &fixture.members[1], .ended = ended};
    struct run *run = NULL;
    result started = loop_start(fixture.loop, &fixture.members[1].options, &listener, &run, NULL);
    assert_int_equal(started.code, RESULT_IO);
    assert_null(run);
    loop_drive(fixture.loop);
    check_own(&fixture.members[0]);
    assert_int_equal(fixture.members[1].ended, 0);
    teardown(&fixture);
}

struct host_job {
    struct fixture *fixture;
    struct loop_job job, posted;
    _Atomic bool is_done;
    _Atomic int dones;
};

static void opens_when_all_wait(void *context) {
    struct host_job *one = context;
    struct fixture *fixture = one->fixture;
    (void)pthread_mutex_lock(&fixture->lock);
    bool is_last = fixture->waiting == 9;
    (void)pthread_mutex_unlock(&fixture->lock);
    if (is_last) {
        open_gate(fixture);
    }
    one->dones++;
}

static void waits_with_others(void *context) {
    struct host_job *one = context;
    const struct timespec pause = {.tv_nsec = 1000000};
    bool is_open = false;
    (void)pthread_mutex_lock(&one->fixture->lock);
    one->fixture->waiting++;
    (void)pthread_mutex_unlock(&one->fixture->lock);
    while (!is_open) { /* says so again and again, to the loop thread */
        one->posted = (struct loop_job){.done = opens_when_all_wait, .context = one};
        int before = one->dones;
        loop_job_post(one->fixture->loop, &one->posted);
        while (one->dones == before) {
            (void)nanosleep(&pause, NULL);
        }
        (void)pthread_mutex_lock(&one->fixture->lock);
        is_open = one->fixture->is_open;
        (void)pthread_mutex_unlock(&one->fixture->lock);
    }
    one->is_done = true;
}

static void job_came_back(void *context) {
    struct host_job *one = context;
    assert_true(one->is_done);
    one->dones = -1;
}

/* Nine jobs that end only when all of them run, without any run in the loop. */
static void jobs_of_the_host_have_a_thread_each(void **state) {
    (void)state;
    struct fixture fixture;
    struct host_job jobs[9] = {0};
    setup(&fixture, 0);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        jobs[i].fixture = &fixture;
        jobs[i].job = (struct loop_job
        ){.work = waits_with_others, .done = job_came_back, .context = &jobs[i]};
        loop_job_start(fixture.loop, &jobs[i].job);
    }
    loop_drive(fixture.loop);
    for (size_t i = 0; i < COUNT_OF(jobs); i++) {
        assert_int_equal(jobs[i].dones, -1);
    }
    teardown(&fixture);
}

static result prepare_slowly(void *context, struct error *error) {
    struct member *member = context;
    const struct timespec pause = {.tv_nsec = 10000000};
    while (!member->is_cancelled) {
        (void)nanosleep(&pause, NULL);
    }
    (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    member->is_prepared = true;
    FAIL(error, CANCELLED, "not ready");
}

static void cancel_first(void *context) {
    struct fixture *fixture = context;
    run_cancel(fixture->members[0].run, "by the test");
}

/* It waits for a person, who does not come, while what it needs is made ready. */
static void run_is_there_until_its_preparation_has_ended(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, 1);
    open_all(&fixture);
    struct member *member = &fixture.members[0];
    const struct run_preparation preparation = {.context = member, .prepare = prepare_slowly};
    member->prepares = true;
    member->options.preparation = &preparation;
    member->options.agent.task = view_of(NULL, 0);
    member->options.agent.is_interactive = true;
    member->options.is_interactive = true;
    start_all(&fixture);
    loop_wait(fixture.loop, 20, cancel_first, &fixture);
    loop_drive(fixture.loop);
    assert_int_equal(member->ended, 1);
    assert_int_equal(member->stop, AGENT_STOP_INTERRUPT);
    assert_string_equal(member->session.text, "");
    teardown(&fixture);
}

/* ---- in the middle of something ------------------------------------------------------------- */

static int64_t now_ms(void) {
    const struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

static void endless(struct member *member) {
    member->turns[0] = (struct fake_turn){.text = "and on", .is_endless = true};
}

/* Member 0 is cancelled; 1 may sample no more; 2 has no time any more; 3 stays as it is. */
static void squeeze(void *context) {
    struct fixture *fixture = context;
    const struct agent_share no_tokens = {3, AGENT_NO_LIMIT, AGENT_NO_LIMIT};
    const struct agent_share no_time = {AGENT_NO_LIMIT, AGENT_NO_LIMIT, now_ms()};
    run_cancel(fixture->members[0].run, "by the test");
    run_set_share(fixture->members[1].run, &no_tokens);
    run_set_share(fixture->members[2].run, &no_time);
}

static void generations_end_in_the_middle(void **state) {
    (void)state;
    struct fixture fixture;
    setup(&fixture, 4);
    open_all(&fixture);
    for (int i = 0; i < 3; i++) {
        endless(&fixture.members[i]);
    }
    start_all(&fixture);
    loop_wait(fixture.loop, 200, squeeze, &fixture);
    loop_drive(fixture.loop);
    static const enum agent_stop stops[] = {
        AGENT_STOP_INTERRUPT, AGENT_STOP_TOKENS, AGENT_STOP_TIME, AGENT_STOP_ANSWER};
    for (int i = 0; i < fixture.count; i++) {
        assert_int_equal(fixture.members[i].stop, stops[i]);
        struct session_tree *tree = load(&fixture.members[i]);
        assert_true(tree->agents[0].turns[0].is_finished);
        session_tree_destroy(tree);
    }
    assert_string_equal(fixture.members[0].detail, "by the test");
    assert_true(fixture.members[1].tokens < 12000); /* not only where its context was full */
    teardown(&fixture);
}

static uint32_t draw(struct fixture *fixture, uint32_t below) {
    fixture->random = fixture->random * 1664525U + 1013904223U;
    return (fixture->random >> 8) % below;
}

/* Something happens to somebody. */
static void poke(void *context) {
    struct fixture *fixture = context;
    struct member *member = &fixture->members[draw(fixture, (uint32_t)fixture->count)];
    uint32_t what = draw(fixture, 8);
    struct agent_share share = {
        20 + draw(fixture, 400), 1 + draw(fixture, 3), now_ms() + draw(fixture, 2000)};
    if (member->run == NULL) { /* it is over */
    } else if (what < 3) {
        run_cancel(member->run, "by chance");
    } else if (what < 5) {
        run_set_share(member->run, &share);
    } else if (what < 7) {
        member->told +=
            run_remark(member->run, &(struct run_remark){view_of_text("A word."), 0, 0}) ? 1 : 0;
    } else {
        run_set_effort(member->run, 1 + (int32_t)draw(fixture, 100));
    }
    if (--fixture->pokes > 0) {
        loop_wait(fixture->loop, draw(fixture, 4), poke, fixture);
        return;
    }
    for (int i = 0; i < fixture->count; i++) { /* nobody goes on for ever */
        if (fixture->members[i].run != NULL) {
            run_cancel(fixture->members[i].run, "at last");
        }
    }
}

static void check_end(const struct member *member) {
    static const enum agent_stop stops[] = {
        AGENT_STOP_ANSWER,
        AGENT_STOP_INTERRUPT,
        AGENT_STOP_TOKENS,
        AGENT_STOP_TIME,
        AGENT_STOP_CALLS,
        AGENT_STOP_ENGINE,
    };
    bool is_known = false;
    for (size_t i = 0; i < COUNT_OF(stops); i++) {
        is_known = is_known || member->stop == stops[i];
    }
    assert_true(is_known);
    assert_int_equal(member->ended, 1);
    assert_int_equal(member->strange_pieces, 0);
    assert_true(member->given <= member->told);
    if (member->session.text[0] == '\0') {
        return; /* it ended before anything was recorded */
    }
    struct session_tree *tree = load(member);
    size_t words = 0;
    for (size_t i = 0; i < tree->agents[0].turn_count; i++) {
        const struct session_turn *turn = &tree->agents[0].turns[i];
        assert_true(turn->is_finished);
        for (size_t k = 0; k < turn->message_count; k++) {
            words += view_equals_text(turn->messages[k].text, "A word.") ? 1 : 0;
        }
    }
    assert_int_equal(words, member->given); /* given, and once */
    assert_true(tree->session.status != SESSION_RUNNING);
    session_tree_destroy(tree);
}

static void chaos(uint32_t seed, int count) {
    struct fixture fixture;
    setup(&fixture, count);
    fixture.random = seed;
    open_all(&fixture);
    for (int i = 0; i < count; i++) {
        struct member *member = &fixture.members[i];
        member->milliseconds = (int)draw(&fixture, 40);
        uint32_t kind = draw(&fixture, 6);
        if (kind == 0) {
            endless(member);
        } else if (kind == 1) {
            member->turns[1].fails = true;
        } else if (kind < 4) {
            member->turns[1] = member->turns[0]; /* one more call */
        }
    }
    start_all(&fixture);
    fixture.pokes = 2 * count;
    loop_wait(fixture.loop, 1, poke, &fixture);
    loop_drive(fixture.loop);
    for (int i = 0; i < count; i++) {
        check_end(&fixture.members[i]);
    }
    teardown(&fixture);
}

static void anything_at_any_moment_ends_every_run_once(void **state) {
    (void)state;
    const uint32_t first = (uint32_t)now_ms();
    chaos(1, 2); /* what the process keeps is there now */
    int before = descriptors();
    for (uint32_t i = 0; i < 6; i++) {
        print_message("seed %u\n", first + i);
        chaos(first + i, i % 3 == 2 ? 64 : 8);
    }
    assert_int_equal(descriptors(), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_beside_each_other_keep_their_own),
        cmocka_unit_test(runs_of_two_engines_are_kept_apart),
        cmocka_unit_test(calls_that_wait_for_another_run_do_not_stop_it),
        cmocka_unit_test(run_that_is_told_hears_it_before_its_next_turn),
        cmocka_unit_test(run_may_start_the_next_one_at_its_end),
        cmocka_unit_test(run_that_cannot_start_leaves_the_others_alone),
        cmocka_unit_test(jobs_of_the_host_have_a_thread_each),
        cmocka_unit_test(run_is_there_until_its_preparation_has_ended),
        cmocka_unit_test(generations_end_in_the_middle),
        cmocka_unit_test(anything_at_any_moment_ends_every_run_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
