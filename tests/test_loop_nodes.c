/* Nodes of a swarm as runs of one session: what they share, what each of them leaves in the record however it ends, and
 * the root around them. */
#include "nodes_support.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- what they share ------------------------------------------------------------------------ */

static void check_root(const struct stage *stage, const char *outcome) {
    const struct session_tree *tree = stage->tree;
    const struct session_agent *root = &tree->agents[0];
    assert_true(is_ok(stage->finished_result));
    assert_int_equal(tree->session.status, SESSION_DONE);
    assert_int_equal(tree->swarm_count, 1);
    assert_true(tree->swarms[0].is_ended);
    assert_true(view_equals_text(tree->swarms[0].end.outcome, outcome));
    assert_string_equal(tree->swarms[0].begin.root.text, root->id.text);
    assert_int_equal(root->turn_count, 1);
    assert_true(root->turns[0].is_finished);
    assert_int_equal(root->turns[0].message_count, 1);
    assert_true(view_equals_text(root->turns[0].messages[0].role, "system"));
    assert_int_equal(root->turns[0].run_count, 1); /* a prompt */
    assert_int_equal(root->turns[0].end.output_tokens, 0);
}

static void check_whole(const struct node *node) {
    const struct stage *stage = node->stage;
    const struct session_agent *agent = node_record(node);
    const struct session_agent *root = &stage->tree->agents[0];
    int32_t shared = (int32_t)root->turns[0].runs[0].count;
    assert_int_equal(node->ended, 1);
    assert_int_equal(node->stop, AGENT_STOP_ANSWER);
    assert_non_null(agent);
    assert_string_equal(agent->parent.text, root->id.text);
    assert_int_equal(agent->fork_messages, 1);
    assert_int_equal(agent->turn_count, 2);
    assert_true(view_equals_text(agent->tools, buffer_text(&stage->declarations.json)));
    const struct session_turn *first = &agent->turns[0];
    assert_int_equal(first->message_count, 3); /* the task, the model's, the call's */
    assert_true(view_equals_text(first->messages[0].text, "Do it."));
    const struct session_run *prompt = turn_run(first, SESSION_RUN_PROMPT);
    assert_int_equal(prompt->position, shared);
    assert_int_equal(first->end.cache.reused_tokens, shared);
    assert_int_equal(first->end.cache.evaluated_tokens, prompt->count);
    assert_int_equal(first->end.sampler.seed, 0);
    assert_int_equal(first->end.fork_index, -1);
    assert_true(view_equals_text(first->calls[0].text, node->reply));
    const struct session_node_end *end = &agent->node->end;
    assert_true(agent->node->is_ended);
    assert_true(view_equals_text(end->ending, "answer"));
    assert_int_equal(end->cut.length + end->outcome.length + end->detail.length, 0);
    assert_true(view_equals_text(end->summary, node->last_text));
    assert_int_equal(end->turns, 2);
    assert_int_equal(end->calls, 1);
    assert_int_equal(end->tokens, node->end.tokens);
    assert_int_equal(end->tokens, first->end.output_tokens + agent->turns[1].end.output_tokens);
}

/* Nobody evaluates what the root has: what is appended to a sequence is what its record says. */
static void check_appended(const struct node *node) {
    const struct session_agent *agent = node_record(node);
    int64_t appended = 0;
    for (size_t i = 0; i < agent->turn_count; i++) {
        appended += (int64_t)turn_run(&agent->turns[i], SESSION_RUN_PROMPT)->count;
    }
    assert_int_equal(crowd_engine_appended(node->stage->engine, node->sequence), appended);
}

static void nodes_go_on_behind_one_prefix_in_one_session(void **state) {
    (void)state;
    static const int counts[] = {1, 8, 64};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        struct stage stage;
        stage_set(&stage, counts[i], NULL);
        stage_play(&stage, node_start_all);
        check_root(&stage, "unverified");
        assert_int_equal(stage.tree->agent_count, counts[i] + 1);
        for (int k = 0; k < stage.count; k++) {
            check_whole(&stage.nodes[k]);
            check_appended(&stage.nodes[k]);
        }
        assert_int_equal(
            swarm_root_facts(stage.root)->evaluated, stage.tree->agents[0].turns[0].runs[0].count
        );
        stage_clear(&stage);
    }
}

/* ---- forks of an open call ------------------------------------------------------------------ */

static void child_ended(struct node *child) {
    struct node *parent = &child->stage->nodes[0];
    bool are_done = true;
    for (int i = 1; i < child->stage->count; i++) {
        are_done = are_done && child->stage->nodes[i].ended == 1;
    }
    if (are_done) {
        node_answer(parent);
    }
}

static void forks_children(struct node *parent) {
    for (int i = 1; i < parent->stage->count; i++) {
        struct node *child = &parent->stage->nodes[i];
        child->ended_to = child_ended;
        node_open_behind(child, parent);
        node_start(child);
    }
}

static void start_first(struct stage *stage) {
    node_open(&stage->nodes[0]);
    node_start(&stage->nodes[0]);
}

static void children_go_on_in_the_context_of_an_open_call(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 4, NULL);
    stage.nodes[0].asks = forks_children;
    stage_play(&stage, start_first);
    check_root(&stage, "unverified");
    check_whole(&stage.nodes[0]);
    const struct session_agent *parent = node_record(&stage.nodes[0]);
    const struct session_run *written = turn_run(&parent->turns[0], SESSION_RUN_OUTPUT);
    for (int i = 1; i < stage.count; i++) {
        const struct session_agent *child = node_record(&stage.nodes[i]);
        assert_string_equal(child->parent.text, parent->id.text);
        assert_int_equal(child->fork_messages, 2); /* without what the parent is answered */
        assert_int_equal(child->turn_count, 2);
        const struct session_message *answer = &child->turns[0].messages[0];
        assert_true(view_equals_text(answer->role, "tool"));
        assert_true(view_equals_text(answer->text, "You are a child."));
        assert_int_equal(
            turn_run(&child->turns[0], SESSION_RUN_PROMPT)->position,
            written->position + (int64_t)written->count
        );
        assert_int_equal(
            child->turns[0].end.cache.reused_tokens, written->position + (int64_t)written->count
        );
        check_appended(&stage.nodes[i]);
    }
    stage_clear(&stage);
}

/* The ids of calls are the parent's up to the fork, and a child that says nothing has no last text. */
static void child_that_says_nothing_does_not_speak_with_its_parents_words(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    stage.nodes[0].asks = forks_children;
    stage.nodes[0].turns[0].text = "Hm.</think>Look here." CALL("read", "path", "a");
    stage.nodes[1].turns[0] = (struct fake_turn){.text = "no, and no, and no", .fails = true};
    stage_play(&stage, start_first);
    assert_int_equal(stage.nodes[1].stop, AGENT_STOP_ENGINE);
    assert_string_equal(stage.nodes[1].last_text, "");
    const struct session_node *node = node_record(&stage.nodes[1])->node;
    assert_true(view_equals_text(node->end.ending, "fault"));
    assert_true(view_equals_text(node->end.detail, stage.nodes[1].detail));
    assert_true(node->end.detail.length > 0);
    assert_string_equal(stage.nodes[0].last_text, "Answer 0.");
    stage_clear(&stage);
}

static void cannot_fork(struct node *node) {
    struct run_prefix prefix;
    struct error error = {0};
    assert_int_equal(run_prefix_at_call(node->run, &prefix, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "only call"));
    node_answer(node);
}

static void cannot_fork_between_calls(struct node *node) {
    struct run_prefix prefix;
    struct error error = {0};
    assert_int_equal(run_prefix_at_call(node->run, &prefix, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "no call"));
}

static void fork_is_the_only_call_of_its_block(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 1, NULL);
    stage.nodes[0].asks = cannot_fork;
    stage.nodes[0].turned_to = cannot_fork_between_calls;
    stage.nodes[0].turns[0].text =
        "Hm.</think><｜DSML｜ calls>\n"
        "<｜DSML｜ invoke name=\"read\">\n<｜DSML｜ parameter name=\"path\" string=\"true\">a"
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
        "<｜DSML｜ invoke name=\"read\">\n<｜DSML｜ parameter name=\"path\" string=\"true\">b"
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";
    stage_play(&stage, start_first);
    assert_int_equal(stage.nodes[0].calls, 2);
    assert_int_equal(stage.nodes[0].stop, AGENT_STOP_ANSWER);
    stage_clear(&stage);
}

/* ---- other beginnings ----------------------------------------------------------------------- */

static void start_apart(struct stage *stage) {
    struct node *apart = &stage->nodes[0];
    struct node *slow = &stage->nodes[1];
    node_open(apart);
    apart->sequence = crowd_engine_add(stage->engine, apart->turns, 4);
    apart->options.sequence = apart->sequence;
    apart->options.prefix = NULL;
    node_start(apart);
    node_open(slow);
    slow->options.agent.effort = 20;
    node_start(slow);
    assert_false(run_remark(slow->run, &(struct run_remark){view_of_text("\xFF"), 1, 0}));
}

/* A node may have a context of its own, as when another effort is to stand in its head. Behind the root's it is told. */
static void node_has_a_context_of_its_own_or_is_told_its_effort(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    stage_play(&stage, start_apart);
    check_root(&stage, "unverified");
    const struct session_agent *apart = node_record(&stage.nodes[0]);
    assert_string_equal(apart->fork_of.text, "");
    assert_int_equal(apart->turn_count, 2);
    assert_true(view_equals_text(apart->turns[0].messages[0].role, "system"));
    assert_true(view_equals_text(apart->turns[0].messages[1].text, "Do it."));
    assert_int_equal(turn_run(&apart->turns[0], SESSION_RUN_PROMPT)->position, 0);
    assert_int_equal(apart->turns[0].end.cache.reused_tokens, 0);
    check_appended(&stage.nodes[0]);
    const struct session_agent *slow = node_record(&stage.nodes[1]);
    assert_true(view_equals_text(slow->turns[0].messages[0].text, "Do it."));
    assert_true(view_equals_text(
        slow->turns[0].messages[1].text, "Reasoning effort from now on: 20 of 100."
    ));
    assert_int_equal(slow->turns[0].end.sampler.effort, 20);
    check_appended(&stage.nodes[1]);
    stage_clear(&stage);
}

/* ---- how they end --------------------------------------------------------------------------- */

static void squeeze(void *context) {
    struct stage *stage = context;
    const struct agent_share no_tokens = {3, AGENT_NO_LIMIT, AGENT_NO_LIMIT};
    const struct agent_share no_time = {AGENT_NO_LIMIT, AGENT_NO_LIMIT, node_now_ms()};
    run_cancel(stage->nodes[0].run, "repeats its sibling");
    run_set_share(stage->nodes[1].run, &no_tokens);
    run_set_share(stage->nodes[2].run, &no_time);
}

static void start_and_squeeze(struct stage *stage) {
    node_start_all(stage);
    run_cancel(stage->nodes[4].run, "too late"); /* while it begins in the record */
    loop_wait(stage->loop, 200, squeeze, stage);
}

static void every_end_is_in_the_record_with_its_reason(void **state) {
    (void)state;
    struct stage stage;
    static const struct {
        enum agent_stop stop;
        const char *ending, *cut;
    } ends[] = {
        {AGENT_STOP_INTERRUPT, "cancel", "repeats its sibling"},
        {AGENT_STOP_TOKENS, "budget", ""},
        {AGENT_STOP_TIME, "budget", ""},
        {AGENT_STOP_ENGINE, "fault", ""},
        {AGENT_STOP_INTERRUPT, "cancel", "too late"},
        {AGENT_STOP_ANSWER, "answer", ""},
    };
    stage_set(&stage, (int)COUNT_OF(ends), NULL);
    for (int i = 0; i < 3; i++) {
        stage.nodes[i].turns[0] = (struct fake_turn){.text = "and on", .is_endless = true};
    }
    stage.nodes[3].turns[1].fails = true;
    stage_play(&stage, start_and_squeeze);
    check_root(&stage, "unverified");
    for (int i = 0; i < stage.count; i++) {
        const struct session_agent *agent = node_record(&stage.nodes[i]);
        assert_int_equal(stage.nodes[i].stop, ends[i].stop);
        assert_true(agent->node->is_ended);
        assert_true(view_equals_text(agent->node->end.ending, ends[i].ending));
        assert_true(view_equals_text(agent->node->end.cut, ends[i].cut));
        for (size_t k = 0; k < agent->turn_count; k++) {
            assert_true(agent->turns[k].is_finished);
        }
    }
    stage_clear(&stage);
}

/* ---- what they change ----------------------------------------------------------------------- */

static void write_file(const char *directory, const char *name, const char *text) {
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void work_path(const struct node *node, char out[128]) {
    (void)snprintf(out, 128, "%s/work-%d", node->stage->directory, node->number);
}

static void writes_two_lines(struct node *node) {
    char path[128];
    work_path(node, path);
    write_file(path, "new", "one\ntwo\n");
}

/* And a file is there that it does not have yet. */
static void takes_store_away(struct node *node) {
    char path[128], store[160], other[160];
    work_path(node, path);
    writes_two_lines(node);
    (void)snprintf(store, sizeof store, "%s.git", path);
    (void)snprintf(other, sizeof other, "%s.gone", path);
    assert_int_equal(rename(store, other), 0);
}

static void removes_directory(struct node *node) {
    char path[128], old[160];
    work_path(node, path);
    (void)snprintf(old, sizeof old, "%s/old", path);
    assert_int_equal(unlink(old) + rmdir(path), 0);
}

static struct workspace *workspace_for(struct node *node) {
    char path[128], store[160];
    struct workspace *workspace = NULL;
    struct error error = {0};
    work_path(node, path);
    (void)snprintf(store, sizeof store, "%s.git", path);
    assert_int_equal(mkdir(path, 0700), 0);
    write_file(path, "old", "old\n");
    assert_true(is_ok(workspace_open(path, store, &workspace, &error)));
    node->options.workspace = workspace;
    return workspace;
}

static void what_they_changed_is_a_commit_of_theirs(void **state) {
    (void)state;
    struct stage stage;
    struct workspace *workspaces[4];
    stage_set(&stage, 4, NULL);
    for (int i = 0; i < stage.count; i++) {
        workspaces[i] = workspace_for(&stage.nodes[i]);
        /* A tool that only reads is not looked after. */
        stage.nodes[i].turns[0].text = "Hm.</think>" CALL("shell", "command", "true");
    }
    stage.nodes[0].writes = writes_two_lines;
    stage.nodes[2].writes = takes_store_away;
    stage.nodes[3].writes = removes_directory;
    stage_play(&stage, node_start_all);
    check_root(&stage, "unverified");
    const struct session_node *changed = node_record(&stage.nodes[0])->node;
    assert_int_equal(strlen(stage.nodes[0].commit), WORKSPACE_COMMIT_BYTES - 1);
    assert_true(view_equals_text(changed->end.commit_after, stage.nodes[0].commit));
    assert_int_equal(changed->end.changed_lines, 2);
    assert_int_equal(stage.nodes[0].end.changed_lines, 2);
    assert_int_equal(changed->commit_before.length, WORKSPACE_COMMIT_BYTES - 1);
    const struct session_node *same = node_record(&stage.nodes[1])->node;
    assert_string_equal(stage.nodes[1].commit, "");
    assert_int_equal(same->end.commit_after.length, 0);
    /* Where nobody can look any more it still ends, and has deleted nothing. */
    for (int i = 2; i < stage.count; i++) {
        const struct session_node *gone = node_record(&stage.nodes[i])->node;
        assert_int_equal(stage.nodes[i].stop, AGENT_STOP_RECORD);
        assert_true(stage.nodes[i].end.changes_are_unknown);
        assert_string_equal(stage.nodes[i].commit, "");
        assert_true(gone->is_ended);
        assert_true(view_equals_text(gone->end.ending, "fault"));
        assert_int_equal(gone->end.commit_after.length, 0);
        assert_true(gone->end.detail.length > 0);
    }
    for (int i = 0; i < stage.count; i++) {
        workspace_close(workspaces[i]);
    }
    stage_clear(&stage);
}

/* ---- the root ------------------------------------------------------------------------------- */

static void start_nothing(struct stage *stage) {
    fail_msg("%s opened", stage->directory);
}

static void cancel_root(void *context) {
    struct stage *stage = context;
    swarm_root_cancel(stage->root, "by the test");
}

static result
refuse_to_generate(void *context, const struct generation_request *request, struct error *error) {
    (void)context;
    (void)request;
    FAIL(error, LIMIT, "no room");
}

static void root_that_does_not_open_leaves_a_session_that_has_ended(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct stage stage;
        struct error error = {0};
        stage_set(&stage, 0, NULL);
        stage.opened = start_nothing;
        if (i == 1) {
            stage.root_options.engine.generate = refuse_to_generate;
        } else if (i == 2) {
            stage.root_options.engine_info.context_max = 16;
        }
        assert_true(is_ok(swarm_root_open(&stage.root, &stage.root_options, &error)));
        if (i == 0) {
            cancel_root(&stage);
        }
        loop_drive(stage.loop);
        assert_int_equal(stage.opened_result.code, i == 0 ? RESULT_CANCELLED : RESULT_LIMIT);
        assert_true(stage.error.message[0] != '\0');
        stage_load(&stage);
        assert_int_equal(stage.tree->session.status, i == 0 ? SESSION_STOPPED : SESSION_FAILED);
        assert_int_equal(stage.tree->swarm_count, 0);
        for (size_t k = 0; k < stage.tree->agents[0].turn_count; k++) {
            assert_true(stage.tree->agents[0].turns[k].is_finished);
        }
        assert_int_equal(crowd_engine_ends(stage.engine, stage.root_options.sequence), 1);
        stage_clear(&stage);
    }
}

static void node_needs_a_sequence_that_holds_its_prefix(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 0, NULL);
    struct node node = {.stage = &stage};
    const struct run_prefix prefix = {.message_count = 1, .tokens = 100};
    const struct run_node session = {0};
    const struct run_listener listener = {
        .ended = (void (*)(void *, const struct run_ended *))abort};
    const struct run_options options = {
        .engine = crowd_engine_ports(stage.engine),
        .sequence = stage.root_options.sequence,
        .node = &session,
        .prefix = &prefix,
        .agent = {.context_max = 16384},
        .clock = clock_real(),
    };
    struct error error = {0};
    assert_int_equal(
        loop_start(stage.loop, &options, &listener, &node.run, &error).code, RESULT_INVALID_INPUT
    );
    assert_non_null(strstr(error.message, "holds 0 tokens"));
    stage_clear(&stage);
}

/* ---- afterwards ----------------------------------------------------------------------------- */

static void one_agent_can_go_on_behind_the_root(void **state) {
    (void)state;
    struct stage stage;
    stage_set(&stage, 2, NULL);
    stage_play(&stage, node_start_all);
    struct error error = {0};
    struct resume_options options = {
        .tokenizer = stage.model.tokenizer,
        .vocabulary = INT32_MAX,
        .end_id = chat_encoder_end_id(stage.model.encoder),
        .system = view_of_text("unused"),
    };
    size_t shared = stage.tree->agents[0].turns[0].runs[0].count;
    static const char *const tasks[] = {"", "Something else."};
    for (size_t i = 0; i < COUNT_OF(tasks); i++) {
        CLEANUP(resume_deinit) struct resume resume = {0};
        options.task = view_of_text(tasks[i]);
        assert_true(is_ok(resume_make(stage.tree, &options, &resume, &error)));
        assert_false(resume.is_done);
        assert_false(resume.end_is_missing);
        assert_int_equal(resume.ids.count, shared);
        assert_int_equal(resume.context_messages, 1);
        assert_int_equal(resume.recorded_messages, 1);
        assert_int_equal(chat_conversation_count(resume.conversation), 2);
        assert_true(view_equals_text(
            chat_conversation_messages(resume.conversation)[1].content, i == 0 ? "Do it." : tasks[i]
        ));
    }
    options.task = view_of(NULL, 0);
    options.waits = true;
    CLEANUP(resume_deinit) struct resume waits = {0};
    assert_true(is_ok(resume_make(stage.tree, &options, &waits, &error)));
    assert_int_equal(chat_conversation_count(waits.conversation), 1);
    stage_clear(&stage);
}

/* ---- anything ------------------------------------------------------------------------------- */

static uint32_t draw(struct stage *stage, uint32_t below) {
    stage->random = stage->random * 1664525U + 1013904223U;
    return (stage->random >> 8) % below;
}

static void poke(void *context) {
    struct stage *stage = context;
    struct node *node = &stage->nodes[draw(stage, (uint32_t)stage->count)];
    uint32_t what = draw(stage, 8);
    const struct agent_share share = {
        20 + draw(stage, 400), 1 + draw(stage, 3), node_now_ms() + draw(stage, 2000)};
    if (node->run == NULL) { /* it is over */
    } else if (what < 3) {
        run_cancel(node->run, "by chance");
    } else if (what < 5) {
        run_set_share(node->run, &share);
    } else {
        run_set_effort(node->run, 1 + (int32_t)draw(stage, 100));
    }
    if (--stage->pokes > 0) {
        loop_wait(stage->loop, draw(stage, 4), poke, stage);
        return;
    }
    for (int i = 0; i < stage->count; i++) { /* nobody goes on for ever */
        if (stage->nodes[i].run != NULL) {
            run_cancel(stage->nodes[i].run, "at last");
        }
        node_answer(&stage->nodes[i]);
    }
}

/* Half of them are started by the calls of the others. */
static void forks_one(struct node *node) {
    struct stage *stage = node->stage;
    struct node *child = &stage->nodes[node->number + stage->count / 2];
    if (child->ended == 0 && child->run == NULL && stage->pokes > 0) {
        node_open_behind(child, node);
        node_start(child);
    }
    node_answer(node);
}

static void start_half(struct stage *stage) {
    for (int i = 0; i < stage->count / 2; i++) {
        stage->nodes[i].asks = forks_one;
        node_open(&stage->nodes[i]);
        node_start(&stage->nodes[i]);
    }
    loop_wait(stage->loop, 1, poke, stage);
}

static void check_any(const struct stage *stage) {
    static const char *const endings[] = {"answer", "budget", "fault", "cancel"};
    check_root(stage, "unverified");
    size_t recorded = 0;
    for (int i = 0; i < stage->count; i++) {
        const struct node *node = &stage->nodes[i];
        if (node->sequence == 0) {
            continue; /* nobody forked it */
        }
        const struct session_agent *agent = node_record(node);
        assert_int_equal(node->ended, 1);
        assert_non_null(agent);
        recorded++;
        assert_true(agent->node->is_ended);
        assert_true(view_equals_text(agent->node->end.ending, endings[run_end_of(node->stop)]));
        assert_int_equal(agent->node->end.tokens, node->end.tokens);
        int64_t position = -1;
        for (size_t k = 0; k < agent->turn_count; k++) {
            const struct session_run *prompt = turn_run(&agent->turns[k], SESSION_RUN_PROMPT);
            assert_true(agent->turns[k].is_finished);
            assert_true(position < 0 || prompt->position <= position);
            const struct session_run *output = turn_run(&agent->turns[k], SESSION_RUN_OUTPUT);
            position = prompt->position + (int64_t)(output != NULL ? prompt->count : 0) +
                       (int64_t)(output != NULL ? output->count : 0);
        }
    }
    assert_int_equal(stage->tree->agent_count, recorded + 1);
}

static void anything_at_any_moment_leaves_a_whole_record(void **state) {
    (void)state;
    const uint32_t first = (uint32_t)node_now_ms();
    for (uint32_t i = 0; i < 6; i++) {
        struct stage stage;
        print_message("seed %u\n", first + i);
        stage_set(&stage, i % 3 == 2 ? 64 : 8, NULL);
        stage.random = first + i;
        stage.pokes = 2 * stage.count;
        for (int k = 0; k < stage.count; k++) {
            struct node *node = &stage.nodes[k];
            uint32_t kind = draw(&stage, 6);
            node->milliseconds = (int)draw(&stage, 30);
            if (kind == 0) {
                node->turns[1] = (struct fake_turn){.text = "and on", .is_endless = true};
            } else if (kind == 1) {
                node->turns[1].fails = true;
            } else if (kind < 4) {
                node->turns[1] = node->turns[0];
            }
        }
        stage_play(&stage, start_half);
        check_any(&stage);
        stage_clear(&stage);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_go_on_behind_one_prefix_in_one_session),
        cmocka_unit_test(children_go_on_in_the_context_of_an_open_call),
        cmocka_unit_test(child_that_says_nothing_does_not_speak_with_its_parents_words),
        cmocka_unit_test(fork_is_the_only_call_of_its_block),
        cmocka_unit_test(node_has_a_context_of_its_own_or_is_told_its_effort),
        cmocka_unit_test(every_end_is_in_the_record_with_its_reason),
        cmocka_unit_test(what_they_changed_is_a_commit_of_theirs),
        cmocka_unit_test(root_that_does_not_open_leaves_a_session_that_has_ended),
        cmocka_unit_test(node_needs_a_sequence_that_holds_its_prefix),
        cmocka_unit_test(one_agent_can_go_on_behind_the_root),
        cmocka_unit_test(anything_at_any_moment_leaves_a_whole_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
