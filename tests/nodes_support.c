#include "nodes_support.h"

#include <time.h>
#include <unistd.h>

static const char *const model_path = TEST_SOURCE_DIR "/examples/mini/model";

int64_t node_now_ms(void) {
    const struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

/* ---- tools ---------------------------------------------------------------------------------- */

static void ask_came(void *context) {
    struct node *node = context;
    node->asks(node);
}

void node_answer(struct node *node) {
    struct stage *stage = node->stage;
    (void)pthread_mutex_lock(&stage->lock);
    node->is_answered = true;
    (void)pthread_cond_broadcast(&stage->changed);
    (void)pthread_mutex_unlock(&stage->lock);
}

static bool ask(struct node *node) {
    struct stage *stage = node->stage;
    node->ask = (struct loop_job){.done = ask_came, .context = node};
    loop_job_post(stage->loop, &node->ask);
    (void)pthread_mutex_lock(&stage->lock);
    while (!node->is_answered && !node->is_cancelled) {
        (void)pthread_cond_wait(&stage->changed, &stage->lock);
    }
    bool is_cancelled = node->is_cancelled;
    (void)pthread_mutex_unlock(&stage->lock);
    return !is_cancelled;
}

static bool take_time(struct node *node) {
    const struct timespec pause = {.tv_nsec = 1000000};
    bool is_cancelled = false;
    for (int i = 0; i < node->milliseconds && !is_cancelled; i++) {
        (void)nanosleep(&pause, NULL);
        (void)pthread_mutex_lock(&node->stage->lock);
        is_cancelled = node->is_cancelled;
        (void)pthread_mutex_unlock(&node->stage->lock);
    }
    return !is_cancelled;
}

static result node_call(
    void *context,
    struct view name,
    struct view arguments,
    int64_t time_ms_max,
    struct tool_result *out,
    struct error *error
) {
    struct node *node = context;
    (void)name;
    (void)arguments;
    (void)time_ms_max;
    node->calls++;
    if (node->writes != NULL) {
        node->writes(node);
    }
    bool goes_on = take_time(node) && (node->asks == NULL || ask(node));
    out->status = goes_on ? TOOL_OK : TOOL_CANCELLED;
    const char *reply = node->long_reply != NULL ? node->long_reply : node->reply;
    return buffer_append_text(&out->text, goes_on ? reply : "cancelled", error);
}

static void node_cancel(void *context) {
    struct node *node = context;
    (void)pthread_mutex_lock(&node->stage->lock);
    node->is_cancelled = true;
    (void)pthread_cond_broadcast(&node->stage->changed);
    (void)pthread_mutex_unlock(&node->stage->lock);
}

static void node_renew(void *context) {
    struct node *node = context;
    (void)pthread_mutex_lock(&node->stage->lock);
    node->is_cancelled = false;
    node->is_answered = false;
    (void)pthread_mutex_unlock(&node->stage->lock);
}

/* ---- mail ----------------------------------------------------------------------------------- */

static result
send_with_result(void *context, const struct run_called *called, struct error *error) {
    struct node *node = context;
    if (node->mail_to.text[0] == '\0' || called->value == NULL) {
        return OK;
    }
    const struct session_mail_begin begin = {
        .from = *called->agent,
        .to = node->mail_to,
        .text = view_of_text(node->mail_text),
    };
    return session_mail_send(called->store, &begin, &node->mail, error);
}

static void result_is_recorded(void *context, const struct run_called *called, result appended) {
    struct node *node = context;
    (void)called;
    node->mailed = appended;
    node->mails_recorded++;
}

void node_deliver(struct node *node, int64_t mail, const char *text) {
    const struct run_remark remark = {.text = view_of_text(text), .delivers = mail};
    assert_true(run_remark(node->run, &remark));
}

/* ---- what is heard -------------------------------------------------------------------------- */

static void given(void *context, size_t count) {
    struct node *node = context;
    node->given += count;
}

static void turned(void *context, const struct run_turned *turn) {
    struct node *node = context;
    node->turned++;
    node->sampled = turn->tokens;
    if (node->turned_to != NULL) {
        node->turned_to(node);
    }
}

static void stage_end(struct stage *stage);

static void ended(void *context, const struct run_ended *end) {
    struct node *node = context;
    struct stage *stage = node->stage;
    node->run = NULL;
    node->ended++;
    node->stop = end->stop;
    node->end = *end;
    (void)snprintf(node->commit, sizeof node->commit, "%s", end->commit);
    (void)snprintf(node->detail, sizeof node->detail, "%s", end->detail);
    (void)snprintf(node->last_text, sizeof node->last_text, "%.*s", VIEW_ARGUMENTS(end->last_text));
    node->sequence = end->sequence;
    if (node->ended_to != NULL) {
        node->ended_to(node);
    }
    if (--stage->live == 0) {
        stage_end(stage);
    }
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static void open_at(struct node *node, const struct run_prefix *prefix, const char *kind) {
    struct stage *stage = node->stage;
    node->prefix = *prefix;
    if (stage->real == NULL) {
        node->sequence = crowd_engine_fork(stage->engine, prefix->sequence, node->turns, 4);
    } else {
        assert_true(is_ok(engine_sequence_fork(stage->real, prefix->sequence, &node->sequence, NULL)
        ));
    }
    node->node = (struct run_node){
        .session = *swarm_root_session(stage->root),
        .begin =
            {
                .swarm = swarm_root_swarm(stage->root),
                .agent = {.parent = prefix->agent, .name = view_of_text("node")},
                .kind = view_of_text(kind),
                .brief = view_of_text("Do it."),
                .workspace = view_of_text("/nowhere"),
                .share =
                    {
                        SESSION_NO_LIMIT,
                        SESSION_NO_LIMIT,
                        SESSION_NO_LIMIT,
                        SESSION_NO_LIMIT,
                        SESSION_NO_LIMIT,
                    },
            },
    };
    node->options.sequence = node->sequence;
    if (node->creates) {
        crowd_engine_next_create(stage->engine, node->sequence);
    }
    node->options.node = &node->node;
    node->options.prefix = &node->prefix;
}

void node_open(struct node *node) {
    struct run_prefix prefix;
    swarm_root_prefix(node->stage->root, &prefix);
    open_at(node, &prefix, "fork");
}

void node_open_behind(struct node *node, const struct node *parent) {
    struct error error = {0};
    struct run_prefix prefix;
    if (is_failed(run_prefix_at_call(parent->run, &prefix, &error))) {
        fail_msg("%s", error.message);
    }
    prefix.answer = view_of_text("You are a child.");
    open_at(node, &prefix, "fork");
}

void node_start(struct node *node) {
    const struct run_listener listener = {
        .context = node,
        .given = given,
        .turned = turned,
        .ended = ended,
    };
    struct error error = {0};
    if (is_failed(loop_start(node->stage->loop, &node->options, &listener, &node->run, &error))) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(node->ended, 0);
    node->stage->live++;
}

void node_start_all(struct stage *stage) {
    for (int i = 0; i < stage->count; i++) {
        node_open(&stage->nodes[i]);
        node_start(&stage->nodes[i]);
    }
}

const struct session_run *turn_run(const struct session_turn *turn, enum session_run_kind kind) {
    for (size_t i = 0; i < turn->run_count; i++) {
        if (turn->runs[i].kind == kind) {
            return &turn->runs[i];
        }
    }
    return NULL;
}

const struct session_agent *node_record(const struct node *node) {
    const struct session_tree *tree = node->stage->tree;
    for (size_t i = 0; i < tree->agent_count; i++) {
        if (strcmp(tree->agents[i].id.text, node->end.agent.text) == 0) {
            return &tree->agents[i];
        }
    }
    return NULL;
}

static struct engine_ports ports_of(const struct stage *stage) {
    return stage->real != NULL ? engine_ports_of(stage->real) : crowd_engine_ports(stage->engine);
}

static uint64_t first_sequence(struct stage *stage) {
    uint64_t sequence = 0;
    if (stage->real == NULL) {
        return crowd_engine_add(stage->engine, &stage->root_turn, 1);
    }
    assert_true(is_ok(engine_sequence_create(stage->real, &sequence, NULL)));
    return sequence;
}

static struct engine_info info_of(const struct stage *stage) {
    struct engine_info info = {.context_max = 16384};
    if (stage->real != NULL) {
        engine_get_info(stage->real, &info);
    }
    return info;
}

static void node_make(struct stage *stage, int number) {
    struct node *node = &stage->nodes[number];
    struct error error = {0};
    node->stage = stage;
    node->number = number;
    assert_true(is_ok(run_channel_create(&node->channel, stage->loop, &error)));
    (void)snprintf(node->answer, sizeof node->answer, "I see.</think>Answer %d.", number);
    (void)snprintf(node->reply, sizeof node->reply, "words of %d", number);
    node->turns[0] = (struct fake_turn){.text = ONE_CALL};
    for (size_t i = 1; i < COUNT_OF(node->turns); i++) {
        node->turns[i] = (struct fake_turn){.text = node->answer};
    }
    node->hook = (struct run_call_hook
    ){.context = node, .append = send_with_result, .recorded = result_is_recorded};
    node->options = (struct run_options){
        .engine = ports_of(stage),
        .tools = {.context = node, .call = node_call, .cancel = node_cancel, .renew = node_renew},
        .channel = node->channel,
        .tokenizer = stage->model.tokenizer,
        .encoder = stage->model.encoder,
        .sampling = {.temperature = 0.0, .top_p = 1.0, .seed = (uint64_t)number},
        .agent =
            {.system = view_of_text("You are a test."),
             .task = view_of_text("Do it."),
             .tools = stage->declarations.tools,
             .tool_count = stage->declarations.count,
             .effort = 50,
             .context_max = 16384},
        .tools_json = buffer_view(&stage->declarations.json),
        .called = &node->hook,
        .store = stage->store,
        .clock = clock_real(),
    };
}

/* ---- the root ------------------------------------------------------------------------------- */

static void finished(void *context, result done, const struct error *error) {
    struct stage *stage = context;
    stage->is_finished = true;
    stage->finished_result = done;
    stage->error = *error;
}

static void stage_end(struct stage *stage) {
    const struct swarm_root_end end = {
        .swarm = {.outcome = view_of_text("unverified"), .why = view_of_text("The test is over.")},
        .status = SESSION_DONE,
        .verdict = "over",
        .stop_reason = "answer",
    };
    swarm_root_finish(stage->root, &end, finished);
}

static void opened(void *context, result done, const struct error *error) {
    struct stage *stage = context;
    stage->is_open = is_ok(done);
    stage->opened_result = done;
    stage->error = *error;
    if (stage->is_open) {
        stage->opened(stage);
    }
}

static void root_make(struct stage *stage) {
    static const struct session_share all = {
        SESSION_NO_LIMIT, SESSION_NO_LIMIT, SESSION_NO_LIMIT, SESSION_NO_LIMIT, SESSION_NO_LIMIT};
    stage->root_turn = (struct fake_turn){.text = "unused"};
    stage->root_options = (struct swarm_root_options){
        .loop = stage->loop,
        .engine = ports_of(stage),
        .sequence = first_sequence(stage),
        .encoder = stage->model.encoder,
        .engine_info = info_of(stage),
        .sampling = {.top_p = 1.0, .seed = 7},
        .system = view_of_text("You are a test."),
        .tools = stage->declarations.tools,
        .tool_count = stage->declarations.count,
        .tools_json = buffer_view(&stage->declarations.json),
        .effort = 50,
        .store = stage->store,
        .begin = {.task = view_of_text("Do it."), .workspace = view_of_text("/nowhere")},
        .swarm = {.strategy = view_of_text("race"), .share = all, .seed = 7},
        .context = stage,
        .opened = opened,
    };
}

void stage_load(struct stage *stage) {
    struct error error = {0};
    const struct session_load_options with_tokens = {.with_tokens = true};
    session_tree_destroy(stage->tree);
    stage->tree = NULL;
    if (is_failed(session_load(
            stage->store, swarm_root_session(stage->root), &with_tokens, &stage->tree, &error
        )) ||
        is_failed(session_store_verify(stage->store, &error))) {
        fail_msg("%s", error.message);
    }
}

void stage_play(struct stage *stage, void (*opened_then)(struct stage *stage)) {
    struct error error = {0};
    stage->opened = opened_then;
    assert_true(is_ok(swarm_root_open(&stage->root, &stage->root_options, &error)));
    assert_false(stage->is_open);
    loop_drive(stage->loop);
    if (stage->is_open) {
        assert_true(stage->is_finished);
    }
    if (swarm_root_session(stage->root)->text[0] != '\0') {
        stage_load(stage);
    }
}

/* ---- the stage ------------------------------------------------------------------------------ */

static void remove_tree(const char *path) {
    char command[256];
    assert_true(snprintf(command, sizeof command, "rm -rf '%s'", path) > 0);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a fixed command of the test */
}

static void open_real(struct stage *stage, int32_t sequences) {
    struct error error = {0};
    const struct engine_options options = {
        .model_directory = model_path,
        .context_max = 4096,
        .sequences_max = sequences,
        .memory_max = (uint64_t)4 << 30,
        .wake = loop_wake,
        .wake_context = stage->loop,
    };
    if (is_failed(engine_open(&options, &stage->real, &error))) {
        fail_msg("%s", error.message);
    }
}

/* `sequences` 0: the crowd engine. */
static void set(struct stage *stage, int count, const char *directory, int32_t sequences) {
    struct error error = {0};
    *stage = (struct stage){.count = count};
    assert_true(count <= NODES_MAX);
    /* In memory where there is such a place: each of many steps is synced. */
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(stage->directory, sizeof stage->directory, "%s/hearth-nodes-XXXXXX", base);
    if (directory != NULL) {
        (void)snprintf(stage->directory, sizeof stage->directory, "%s", directory);
    } else {
        assert_non_null(mkdtemp(stage->directory));
    }
    assert_true(is_ok(text_model_open(model_path, &stage->model, &error)));
    assert_true(is_ok(tool_declarations_make(
        NULL, TOOL_DIALECT_HEARTH, TOOL_SET_DEFAULT, &stage->declarations, &error
    )));
    const struct session_store_options store = {
        .state_dir = stage->directory,
        .mode = SESSION_READ_WRITE,
        .program = "test",
        .clock = clock_real()};
    assert_true(is_ok(session_store_open(&stage->store, &store, &error)));
    assert_true(is_ok(loop_create(&stage->loop, &error)));
    if (sequences == 0) {
        stage->engine = crowd_engine_create(stage->loop, stage->model.tokenizer);
    } else {
        open_real(stage, sequences);
    }
    assert_int_equal(pthread_mutex_init(&stage->lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&stage->changed, NULL), 0);
    stage->nodes = calloc((size_t)count + 1, sizeof *stage->nodes);
    assert_non_null(stage->nodes);
    for (int i = 0; i < count; i++) {
        node_make(stage, i);
    }
    root_make(stage);
}

void stage_set(struct stage *stage, int count, const char *directory) {
    set(stage, count, directory, 0);
}

void stage_set_real(struct stage *stage, int count, int32_t sequences) {
    set(stage, count, NULL, sequences);
}

void stage_clear(struct stage *stage) {
    session_tree_destroy(stage->tree);
    swarm_root_destroy(stage->root);
    if (stage->real != NULL) {
        engine_close(stage->real);
    } else {
        crowd_engine_destroy(stage->engine);
    }
    loop_destroy(stage->loop); /* which asserts that no handle is left */
    for (int i = 0; i < stage->count; i++) {
        run_channel_destroy(stage->nodes[i].channel);
    }
    free(stage->nodes);
    tool_declarations_deinit(&stage->declarations);
    text_model_close(&stage->model);
    (void)pthread_cond_destroy(&stage->changed);
    (void)pthread_mutex_destroy(&stage->lock);
    session_store_close(stage->store);
    remove_tree(stage->directory);
}
