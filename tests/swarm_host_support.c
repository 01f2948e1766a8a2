#include "swarm_host_support.h"

#include "tools/tool_agents.h"
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

const char *stage_base;

static const char *const model_path = TEST_SOURCE_DIR "/examples/mini/model";

/* ---- what the view hears --------------------------------------------------------------------- */

static void note_end(struct stage *stage, const struct swarm_host *host) {
    const struct swarm *swarm = swarm_host_swarm(host);
    stage->count = swarm_node_count(swarm);
    for (size_t i = 0; i < stage->count; i++) {
        const struct swarm_node *told = swarm_node(swarm, i);
        struct swarm_host_look look;
        swarm_host_look(host, i, &look);
        struct stage_node *node = &stage->nodes[i];
        memcpy(node->name, told->name, sizeof node->name);
        node->outcome = told->outcome;
        node->parent = told->parent;
        node->cut = told->cut;
        node->verdict = told->verdict;
        node->is_merged = told->is_merged;
        node->has_score = told->has_score;
        node->tokens = look.tokens;
    }
}

static void heard(void *context, struct swarm_host *host, const struct swarm_host_event *event) {
    struct stage *stage = context;
    stage->host = host;
    assert_int_equal(stage->finished, 0); /* it is the last one */
    stage->began += event->type == SWARM_HOST_BEGAN ? 1 : 0;
    stage->ending += event->type == SWARM_HOST_ENDING ? 1 : 0;
    stage->messages += event->type == SWARM_HOST_MESSAGE ? 1 : 0;
    stage->verified += event->type == SWARM_HOST_VERIFIED ? 1 : 0;
    stage->ranked += event->type == SWARM_HOST_RANKED ? 1 : 0;
    stage->merged += event->type == SWARM_HOST_MERGED ? 1 : 0;
    stage->runs += event->type == SWARM_HOST_RUN ? 1 : 0;
    stage->activities += event->type == SWARM_HOST_ACTIVITY ? 1 : 0;
    if (event->type == SWARM_HOST_WARNING) {
        stage->warnings++;
        (void)snprintf(
            stage->last_warning, sizeof stage->last_warning, "%.*s", VIEW_ARGUMENTS(event->text)
        );
    }
    if (event->type == SWARM_HOST_FINISHED) {
        stage->finished++;
        note_end(stage, host);
    }
    if (stage->looks != NULL) {
        stage->looks(stage, event);
    }
}

/* ---- setup ----------------------------------------------------------------------------------- */

static void declare(struct stage *stage, uint64_t set) {
    struct error error = {0};
    tool_declarations_deinit(&stage->declarations);
    assert_true(
        is_ok(tool_declarations_make(NULL, TOOL_DIALECT_HEARTH, set, &stage->declarations, &error))
    );
    stage->options.tools.set = set;
    stage->options.run.agent.tools = stage->declarations.tools;
    stage->options.run.agent.tool_count = stage->declarations.count;
    stage->options.run.tools_json = buffer_view(&stage->declarations.json);
}

void stage_give_agent_tools(struct stage *stage) {
    declare(stage, TOOL_SET_DEFAULT | tool_set_agents());
    stage->options.has_agent_tools = true;
}

static void make_places(struct stage *stage) {
    /* In memory where there is such a place: each of many steps is synced. */
    const char *memory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    const char *base = stage_base != NULL ? stage_base : memory;
    (void)snprintf(stage->directory, sizeof stage->directory, "%s/hearth-swarm-XXXXXX", base);
    assert_non_null(mkdtemp(stage->directory));
    (void)snprintf(stage->workspace, sizeof stage->workspace, "%s/work", stage->directory);
    (void)snprintf(stage->state, sizeof stage->state, "%s/state", stage->directory);
    (void)snprintf(stage->snapshots, sizeof stage->snapshots, "%s/snapshots", stage->directory);
    assert_int_equal(mkdir(stage->workspace, 0700), 0);
    assert_int_equal(mkdir(stage->state, 0700), 0);
}

static void fill_options(struct stage *stage, const char *strategy, int64_t attempts) {
    struct error error = {0};
    uint64_t root = 0;
    struct engine_ports engine = writer_engine_ports(stage->engine);
    assert_true(is_ok(engine.create(engine.context, &root, &error)));
    stage->options = (struct swarm_host_options){
        .swarm =
            {.task = view_of_text("Mend it."),
             .strategy = strategy_find(view_of_text(strategy)),
             .attempts = attempts,
             .time_ms_max = 60000,
             .seed = 7},
        .run =
            {.engine = engine,
             .sequence = root,
             .tokenizer = stage->model.tokenizer,
             .encoder = stage->model.encoder,
             .engine_info = {.context_max = 16384},
             .sampling = {.temperature = 1.0, .top_p = 1.0, .seed = 42},
             .agent =
                 {.system = view_of_text("You are a test."), .effort = 50, .context_max = 16384},
             .store = stage->store,
             .begin =
                 {.task = view_of_text("Mend it."),
                  .workspace = view_of_text(stage->workspace),
                  .window_mode = view_of_text("exact")},
             .clock = clock_real()},
        .tools =
            {.workspace = stage->workspace, .dialect = TOOL_DIALECT_HEARTH, .clock = clock_real()},
        .permission = {.policy = PERMISSION_WORKSPACE_WRITE},
        .state = stage->state,
        .snapshots = stage->snapshots,
        .has_notes = true,
        .listener = {.context = stage, .event = heard},
    };
    assert_non_null(stage->options.swarm.strategy);
    declare(stage, TOOL_SET_DEFAULT);
}

void stage_open(
    struct stage *stage, const char *strategy, int64_t attempts, writer_engine_write *write
) {
    struct error error = {0};
    *stage = (struct stage){0};
    make_places(stage);
    assert_true(is_ok(text_model_open(model_path, &stage->model, &error)));
    const struct session_store_options store = {
        .state_dir = stage->state,
        .mode = SESSION_READ_WRITE,
        .program = "test",
        .clock = clock_real()};
    assert_true(is_ok(session_store_open(&stage->store, &store, &error)));
    assert_true(is_ok(loop_create(&stage->loop, &error)));
    stage->engine = writer_engine_create(stage->loop, stage->model.tokenizer, write, stage);
    fill_options(stage, strategy, attempts);
    stage_work_reset(stage);
}

void stage_close(struct stage *stage) {
    char command[256];
    session_tree_destroy(stage->tree);
    writer_engine_destroy(stage->engine);
    loop_destroy(stage->loop); /* which asserts that no handle is left */
    tool_declarations_deinit(&stage->declarations);
    text_model_close(&stage->model);
    session_store_close(stage->store);
    assert_true(snprintf(command, sizeof command, "rm -rf '%s'", stage->directory) > 0);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a fixed command of the test */
}

/* ---- the record ------------------------------------------------------------------------------ */

static const struct session_agent *agent_named(const struct stage *stage, const char *name) {
    for (size_t i = 0; i < stage->tree->agent_count; i++) {
        if (view_equals_text(stage->tree->agents[i].name, name)) {
            return &stage->tree->agents[i];
        }
    }
    return NULL;
}

const struct session_agent *stage_agent(const struct stage *stage, const char *name) {
    const struct session_agent *agent = agent_named(stage, name);
    assert_non_null(agent);
    return agent;
}

static void check_node(const struct stage *stage, const struct session_agent *agent) {
    const struct session_node *node = agent->node;
    size_t index = 0; /* the root's is not one */
    for (size_t i = 1; i < stage->count && index == 0; i++) {
        index = view_equals_text(agent->name, stage->nodes[i].name) ? i : 0;
    }
    assert_int_not_equal(index, 0);
    const struct stage_node *told = &stage->nodes[index];
    assert_true(node->is_ended);
    assert_true(node->ended_ms > 0); /* by its run, not by who came after a death */
    struct view outcome = node->end.outcome;
    assert_true(view_equals_text(outcome, swarm_outcome_name(told->outcome)));
    assert_int_equal(node->merged_into.text[0] != '\0', told->is_merged);
    assert_int_equal(node->has_score, told->has_score);
    assert_int_equal(node->end.tokens, told->tokens);
    if (told->cut != SWARM_CUT_NONE && view_equals_text(node->end.ending, "cancel")) {
        assert_true(view_equals_text(node->end.cut, swarm_cut_text(told->cut)));
    }
    for (size_t i = 0; i < agent->turn_count; i++) {
        assert_true(agent->turns[i].is_finished);
        for (size_t k = 0; k < agent->turns[i].call_count; k++) {
            assert_true(agent->turns[i].calls[k].ended_ms > 0);
        }
    }
}

static void check_mail(const struct stage *stage) {
    const struct session_tree *tree = stage->tree;
    for (size_t i = 0; i < tree->mail_count; i++) {
        const struct session_mail *mail = &tree->mail[i];
        assert_int_not_equal(mail->state, SESSION_MAIL_WAITS);
        for (size_t k = 0; k < i; k++) { /* one reader has its mail in order */
            bool is_same = strcmp(tree->mail[k].to.text, mail->to.text) == 0;
            bool both = mail->state == SESSION_MAIL_DELIVERED &&
                        tree->mail[k].state == SESSION_MAIL_DELIVERED;
            assert_true(!is_same || !both || tree->mail[k].turn <= mail->turn);
        }
    }
}

static void check_record(struct stage *stage) {
    struct error error = {0};
    const struct session_load_options options = {.with_tokens = true};
    session_tree_destroy(stage->tree);
    stage->tree = NULL;
    assert_true(is_ok(session_store_verify(stage->store, &error)));
    assert_true(
        is_ok(session_load(stage->store, &stage->outcome.session, &options, &stage->tree, &error))
    );
    const struct session_tree *tree = stage->tree;
    assert_int_not_equal(tree->session.status, SESSION_RUNNING);
    assert_int_equal(tree->session.exit_status, stage->outcome.exit_status);
    assert_int_equal(tree->swarm_count, 1);
    const struct session_swarm *swarm = &tree->swarms[0];
    assert_true(swarm->is_ended);
    assert_true(
        view_equals_text(swarm->end.outcome, swarm_outcome_name(stage->outcome.result.outcome))
    );
    assert_int_equal(swarm->end.is_merged, stage->outcome.result.is_merged);
    if (stage->outcome.name[0] != '\0') {
        const struct session_agent *best = stage_agent(stage, stage->outcome.name);
        assert_string_equal(swarm->end.best.text, best->id.text);
    }
    size_t nodes = 0;
    for (size_t i = 0; i < tree->agent_count; i++) {
        if (tree->agents[i].node != NULL) {
            check_node(stage, &tree->agents[i]);
            nodes++;
        }
    }
    /* The record takes nobody below an agent that has ended; such a one is about to be cancelled. */
    size_t unborn = 0;
    for (size_t i = 1; i < stage->count; i++) {
        const struct stage_node *node = &stage->nodes[i];
        bool may_be = node->parent != SWARM_ROOT && node->tokens == 0;
        unborn += may_be && agent_named(stage, node->name) == NULL ? 1 : 0;
    }
    assert_true(nodes <= stage->outcome.totals.nodes);
    assert_true(nodes + unborn >= stage->outcome.totals.nodes);
    check_mail(stage);
}

/* ---- running --------------------------------------------------------------------------------- */

static void check_nothing_is_left(struct stage *stage) {
    assert_int_equal(writer_engine_open(stage->engine), 1); /* the root's own */
    stage_work_check(stage);
}

void stage_run(struct stage *stage) {
    struct error error = {0};
    result ran = swarm_host_run(stage->loop, &stage->options, &stage->outcome, &error);
    if (is_failed(ran)) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(stage->began, 1);
    assert_int_equal(stage->finished, 1);
    assert_int_equal(stage->ending, 1);
    assert_true(stage->outcome.result.why[0] != '\0');
    check_nothing_is_left(stage);
    check_record(stage);
}

result stage_fail(struct stage *stage, struct error *error) {
    result ran = swarm_host_run(stage->loop, &stage->options, &stage->outcome, error);
    check_nothing_is_left(stage);
    return ran;
}

/* ---- questions ------------------------------------------------------------------------------- */

const struct stage_node *stage_node(const struct stage *stage, const char *name) {
    size_t index = 0;
    for (size_t i = 1; i < stage->count && index == 0; i++) {
        index = strcmp(stage->nodes[i].name, name) == 0 ? i : 0;
    }
    if (index == 0) {
        fail_msg("there is no node %s", name);
    }
    return &stage->nodes[index];
}

size_t stage_count(const struct stage *stage, enum swarm_outcome outcome) {
    size_t count = 0;
    for (size_t i = 1; i < stage->count; i++) {
        count += stage->nodes[i].outcome == outcome ? 1 : 0;
    }
    return count;
}

bool stage_was_told(const struct stage *stage, const char *name, const char *text) {
    const struct session_agent *agent = stage_agent(stage, name);
    ASSERT(agent != NULL); // stage_agent has failed before; for the analyzer
    for (size_t i = 0; i < agent->turn_count; i++) {
        for (size_t k = 0; k < agent->turns[i].message_count; k++) {
            struct view message = agent->turns[i].messages[k].text;
            if (view_find(message, view_of_text(text), 0) != SIZE_MAX) {
                return true;
            }
        }
    }
    return false;
}

struct view stage_result(const struct stage *stage, const char *name, size_t call) {
    const struct session_agent *agent = stage_agent(stage, name);
    ASSERT(agent != NULL); // stage_agent has failed before; for the analyzer
    for (size_t i = 0; i < agent->turn_count; i++) {
        if (call < agent->turns[i].call_count) {
            return agent->turns[i].calls[call].text;
        }
        call -= agent->turns[i].call_count;
    }
    return view_of(NULL, 0);
}

bool prompt_is_of(const struct writer_prompt *prompt, const char *name) {
    char words[80];
    (void)snprintf(words, sizeof words, "You are %s", name);
    const char *found = strstr(prompt->first, words);
    if (found == NULL) {
        return false;
    }
    char after = found[strlen(words)];
    return after == ',' || after == '.';
}

int stage_descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        count++;
    }
    (void)closedir(directory);
    return count;
}
