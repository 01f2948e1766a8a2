/* Nodes with the bundled model: a fork draws the tokens, with the log-probabilities, that its whole prompt gives when it
 * is run alone with the same seed, and evaluates nothing but what is new. */
#include "nodes_support.h"
#include "runtime/run_host.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NODES       4
#define TURN_TOKENS 60
#define TURNS       2
#else
#define NODES       8
#define TURN_TOKENS 160
#define TURNS       4
#endif
#define CHILDREN 2 /* of these, forked by a call of another one */

static const struct sampling warm = {.temperature = 0.9, .top_p = 0.95};
static const char task[] = "The test of mean() in stats.py fails: it divides by the wrong number. "
                           "Find the bug and fix it.";
static const char found[] = "1: def mean(values):\n2:     return sum(values) / (len(values) - 1)\n";

static void prepare(struct stage *stage) {
    stage->root_options.system = view_of_text(RUN_SYSTEM_TEXT);
    stage->root_options.sampling = warm;
    stage->root_options.sampling.seed = 3;
    for (int i = 0; i < stage->count; i++) {
        struct node *node = &stage->nodes[i];
        struct run_options *options = &node->options;
        options->engine_info = stage->root_options.engine_info;
        options->sampling = warm;
        options->sampling.seed = 1000 + (uint64_t)i;
        options->begin.sampler.seed = options->sampling.seed;
        options->agent.system = stage->root_options.system;
        options->agent.task = view_of_text(task);
        options->agent.turns_max = TURNS;
        options->agent.turn_tokens_max = TURN_TOKENS;
        options->agent.context_max = stage->root_options.engine_info.context_max;
        node->long_reply = found;
    }
}

/* ---- the same prompt alone ------------------------------------------------------------------ */

/* An engine of its own, whose one sequence begins with everything that the turn's had. */
struct alone {
    struct loop *loop;
    struct engine *engine;
    struct loop_generation generation;
    struct engine_event last;
    int32_t tokens[TURN_TOKENS];
    float log_probabilities[TURN_TOKENS];
    size_t count;
};

static void alone_event(void *context, const struct engine_event *event) {
    struct alone *alone = context;
    if (event->type == ENGINE_TOKEN) {
        assert_true(alone->count < TURN_TOKENS);
        alone->tokens[alone->count] = event->token;
        alone->log_probabilities[alone->count++] = event->logprob;
    } else if (event->type == ENGINE_FINISHED) {
        alone->last = *event;
    }
}

static void
generate_alone(struct alone *alone, const struct token_list *prompt, uint64_t seed, size_t count) {
    struct error error = {0};
    uint64_t sequence = 0;
    assert_true(is_ok(engine_sequence_create(alone->engine, &sequence, &error)));
    alone->count = 0;
    alone->generation = (struct loop_generation){
        .engine = engine_ports_of(alone->engine),
        .sequence = sequence,
        .event = alone_event,
        .context = alone,
    };
    struct generation_request request = {
        .sequence = sequence,
        .append = prompt->ids,
        .append_count = prompt->count,
        .sampling = warm,
        .tokens_max = (int32_t)count,
    };
    request.sampling.seed = seed;
    if (is_failed(loop_generate(alone->loop, &alone->generation, &request, &error))) {
        fail_msg("%s", error.message);
    }
    loop_drive(alone->loop);
    assert_int_equal(alone->last.facts.reused, 0); /* cold: without a cache */
    assert_int_equal(alone->last.facts.evaluated, prompt->count);
    engine_sequence_destroy(alone->engine, sequence);
}

static void alone_open(struct alone *alone) {
    struct error error = {0};
    *alone = (struct alone){0};
    assert_true(is_ok(loop_create(&alone->loop, &error)));
    const struct engine_options options = {
        .model_directory = TEST_SOURCE_DIR "/examples/mini/model",
        .context_max = 4096,
        .sequences_max = 1,
        .memory_max = (uint64_t)4 << 30,
        .has_no_prefix_cache = true,
        .wake = loop_wake,
        .wake_context = alone->loop,
    };
    if (is_failed(engine_open(&options, &alone->engine, &error))) {
        fail_msg("%s", error.message);
    }
}

static void alone_close(struct alone *alone) {
    engine_close(alone->engine);
    loop_destroy(alone->loop);
}

/* ---- what was recorded ---------------------------------------------------------------------- */

static void append_run(struct token_list *ids, const struct session_run *run) {
    assert_true((size_t)run->position <= ids->count);
    ids->count = (size_t)run->position;
    if (run->count > 0) {
        assert_true(is_ok(token_list_append_all(ids, run->ids, run->count, NULL)));
    }
}

static const struct session_agent *
agent_of(const struct stage *stage, const struct session_id *id) {
    const struct session_agent *agent = NULL;
    for (size_t i = 0; i < stage->tree->agent_count; i++) {
        const struct session_agent *one = &stage->tree->agents[i];
        agent = strcmp(one->id.text, id->text) == 0 ? one : agent;
    }
    ASSERT(agent != NULL);
    return agent;
}

/* What the context of its parent held where it was forked. */
static void append_prefix(
    const struct stage *stage, const struct session_agent *agent, struct token_list *ids
) {
    const struct session_agent *parent = agent_of(stage, &agent->parent);
    if (parent->parent.text[0] != '\0') {
        append_prefix(stage, parent, ids);
    }
    for (size_t i = 0; i < parent->turn_count && parent->turns[i].index <= agent->fork_index; i++) {
        const struct session_run *output = turn_run(&parent->turns[i], SESSION_RUN_OUTPUT);
        append_run(ids, turn_run(&parent->turns[i], SESSION_RUN_PROMPT));
        if (output != NULL) {
            append_run(ids, output);
        }
    }
}

static size_t check_turn(
    struct alone *alone,
    const struct session_turn *turn,
    bool is_behind_output,
    struct token_list *ids,
    uint64_t seed
) {
    const struct session_run *prompt = turn_run(turn, SESSION_RUN_PROMPT);
    const struct session_run *output = turn_run(turn, SESSION_RUN_OUTPUT);
    assert_int_equal(prompt->position, ids->count); /* nothing is replaced */
    append_run(ids, prompt);
    const struct session_cache_facts *cache = &turn->end.cache;
    int64_t sampled_last = is_behind_output ? 1 : 0; /* which nobody has evaluated yet */
    assert_int_equal(cache->reused_tokens, prompt->position - sampled_last);
    assert_int_equal(cache->evaluated_tokens, (int64_t)prompt->count + sampled_last);
    assert_int_equal(cache->rebuilt_tokens, 0);
    assert_true(view_equals_text(cache->window_source, "live"));
    assert_int_equal(turn->end.sampler.seed, seed);
    assert_int_equal(turn->end.fork_index, -1); /* the seed is its own */
    generate_alone(alone, ids, seed, output->count);
    assert_int_equal(alone->count, output->count);
    assert_memory_equal(alone->tokens, output->ids, output->count * sizeof *output->ids);
    assert_memory_equal(
        alone->log_probabilities, output->log_probabilities, output->count * sizeof(float)
    );
    append_run(ids, output);
    return output->count;
}

static void
check_node(struct alone *alone, const struct node *node, size_t *turns, size_t *tokens) {
    const struct session_agent *agent = node_record(node);
    CLEANUP(token_list_deinit) struct token_list ids;
    token_list_init(&ids, TOKEN_LIST_CEILING_DEFAULT);
    append_prefix(node->stage, agent, &ids);
    assert_true(agent->turn_count > 0);
    for (size_t i = 0; i < agent->turn_count; i++) {
        bool is_behind_output = i > 0 || agent->fork_messages > 1;
        *tokens += check_turn(
            alone, &agent->turns[i], is_behind_output, &ids, node->options.sampling.seed
        );
        *turns += 1;
    }
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void child_ended(struct node *child) {
    struct stage *stage = child->stage;
    bool are_done = true;
    for (int i = stage->count - CHILDREN; i < stage->count; i++) {
        are_done = are_done && stage->nodes[i].ended == 1;
    }
    if (are_done) {
        node_answer(&stage->nodes[0]);
    }
}

/* At the first call of the first one. */
static void forks_children(struct node *parent) {
    struct stage *stage = parent->stage;
    if (parent->calls > 1) {
        node_answer(parent);
        return;
    }
    for (int i = stage->count - CHILDREN; i < stage->count; i++) {
        stage->nodes[i].ended_to = child_ended;
        node_open_behind(&stage->nodes[i], parent);
        node_start(&stage->nodes[i]);
    }
}

static void start_others(struct stage *stage) {
    stage->nodes[0].asks = forks_children;
    for (int i = 0; i < stage->count - CHILDREN; i++) {
        node_open(&stage->nodes[i]);
        node_start(&stage->nodes[i]);
    }
}

static void forks_draw_what_their_prompts_give_alone(void **state) {
    (void)state;
    struct stage stage;
    struct alone alone;
    size_t turns = 0, tokens = 0;
    stage_set_real(&stage, NODES, NODES + 1);
    prepare(&stage);
    stage_play(&stage, start_others);
    alone_open(&alone);
    int played = 0, children = 0;
    for (int i = 0; i < stage.count; i++) {
        if (stage.nodes[i].ended == 1) {
            check_node(&alone, &stage.nodes[i], &turns, &tokens);
            played++;
            children += i >= stage.count - CHILDREN ? 1 : 0;
        }
    }
    print_message(
        "%d nodes, %d of them forks of a call: %zu turns, %zu tokens\n",
        played,
        children,
        turns,
        tokens
    );
    assert_true(played >= NODES - CHILDREN);
    alone_close(&alone);
    stage_clear(&stage);
}

/* One agent without a swarm, and a node with the same seed: the same run from its first token to its last. */
static void node_runs_as_an_agent_without_a_swarm_does(void **state) {
    (void)state;
    struct stage stage;
    stage_set_real(&stage, 1, 3);
    prepare(&stage);
    stage_play(&stage, node_start_all);
    struct error error = {0};
    struct run_options options = stage.nodes[0].options;
    struct run_outcome outcome = {0};
    options.node = NULL;
    options.prefix = NULL;
    options.called = NULL;
    assert_true(is_ok(engine_sequence_create(stage.real, &options.sequence, &error)));
    assert_true(is_ok(loop_run(stage.loop, &options, &outcome, &error)));
    const struct session_load_options with_tokens = {.with_tokens = true};
    struct session_tree *tree = NULL;
    assert_true(is_ok(session_load(stage.store, &outcome.session, &with_tokens, &tree, &error)));
    const struct session_agent *node = node_record(&stage.nodes[0]);
    assert_int_equal(outcome.stop, stage.nodes[0].stop);
    assert_int_equal(tree->agents[0].turn_count, node->turn_count);
    for (size_t i = 0; i < node->turn_count; i++) {
        const struct session_run *one = turn_run(&node->turns[i], SESSION_RUN_OUTPUT);
        const struct session_run *other = turn_run(&tree->agents[0].turns[i], SESSION_RUN_OUTPUT);
        assert_int_equal(one->position, other->position);
        assert_int_equal(one->count, other->count);
        assert_memory_equal(one->ids, other->ids, one->count * sizeof *one->ids);
        assert_memory_equal(
            one->log_probabilities, other->log_probabilities, one->count * sizeof(float)
        );
    }
    session_tree_destroy(tree);
    stage_clear(&stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_draw_what_their_prompts_give_alone),
        cmocka_unit_test(node_runs_as_an_agent_without_a_swarm_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
