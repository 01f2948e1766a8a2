#include "swarm_work_support.h"

#include <sys/stat.h>
#include <unistd.h>

char base[200];
struct swarm_work *work;
struct sandbox *sandbox;

static char workspace[300], store[300], place[300];
static struct sandbox_policy policy;
static struct tool_context_options tools;

static int run_shell(const char *format, va_list arguments) {
    char text[4096];
    int used = snprintf(
        text,
        sizeof text,
        "cd '%s' && export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1; set -e; ",
        base
    );
    int length = vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    assert_true(length > 0 && (size_t)(used + length) < sizeof text);
    int status = system(text);
    if (status != 0) {
        print_message("%s\n", text + used);
    }
    return status;
}

void shell(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int status = run_shell(format, arguments);
    va_end(arguments);
    assert_int_equal(status, 0);
}

bool shell_says(const char *command) {
    char text[1000];
    (void)snprintf(text, sizeof text, "cd '%s' && %s", base, command);
    return system(text) == 0;
}

int swarm_work_set_up(void **state) {
    (void)state;
    (void)snprintf(base, sizeof base, "/var/tmp/hearth-swarm-XXXXXX");
    assert_non_null(mkdtemp(base));
    (void)snprintf(workspace, sizeof workspace, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store", base);
    (void)snprintf(place, sizeof place, "%s/state/swarms/session", base);
    shell("mkdir -p ws state");
    return 0;
}

int swarm_work_tear_down(void **state) {
    (void)state;
    swarm_work_cleanup(&work);
    shell("cd / && chmod -R u+rwX '%s' && rm -rf '%s'", base, base);
    return 0;
}

void begin_swarm(const char *first, const char *verifier) {
    static const struct permission_options permission = {.policy = PERMISSION_WORKSPACE_WRITE};
    struct error error = {0};
    shell("cd ws; %s", first);
    policy = sandbox_policy_default(workspace);
    policy.memory_mib = 256;
    tools = (struct tool_context_options
    ){.dialect = TOOL_DIALECT_HEARTH, .time_ms_max = 60000, .clock = clock_real()};
    const struct swarm_work_options options = {
        .workspace = workspace,
        .snapshots = store,
        .place = place,
        .verifier = verifier,
        .sandbox = sandbox,
        .policy = &policy,
        .tools = &tools,
        .permission = &permission,
    };
    if (is_failed(swarm_work_create(&work, &options, &error))) {
        fail_msg("%s", error.message);
    }
}

void end_swarm(void) {
    swarm_work_cleanup(&work);
    shell("test ! -e state/swarms/session || { find state/swarms | head -50; false; }");
}

struct swarm_work_node *open_node(const char *name, struct swarm_work_node *parent) {
    struct swarm_work_node *node = NULL;
    struct error error = {0};
    const struct swarm_work_open options = {.name = name, .parent = parent};
    if (is_failed(swarm_work_open(work, &options, &node, &error))) {
        fail_msg("%s", error.message);
    }
    return node;
}

void run_in(struct swarm_work_node *node, const char *script) {
    CLEANUP(buffer_deinit) struct buffer arguments;
    CLEANUP(tool_result_deinit) struct tool_result outcome = {.status = TOOL_OK};
    struct json_writer writer;
    struct error error = {0};
    buffer_init(&arguments, 100000);
    json_writer_init(&writer, &arguments, &error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "command");
    json_write_text(&writer, script);
    json_write_object_end(&writer);
    assert_true(is_ok(json_writer_finish(&writer)));
    struct view name = view_of_text("shell");
    result called =
        tool_call(swarm_work_tools(node), name, buffer_view(&arguments), &outcome, &error);
    if (is_failed(called) || outcome.status != TOOL_OK || outcome.exit_status != 0) {
        fail_msg("%s: %s%s", script, error.message, buffer_text(&outcome.text));
    }
}

struct swarm_work_made result_of(struct swarm_work_node *node) {
    struct swarm_work_made made;
    struct error error = {0};
    if (is_failed(swarm_work_result(node, &made, &error))) {
        fail_msg("%s", error.message);
    }
    return made;
}

struct swarm_work_node *node_with(const char *name, const char *script) {
    struct swarm_work_node *node = open_node(name, swarm_work_root(work));
    run_in(node, script);
    (void)result_of(node);
    return node;
}

struct swarm_work_merge merge_into(struct swarm_work_node *node, struct swarm_work_node *target) {
    struct swarm_work_merge merged;
    swarm_work_merge(node, target, &merged);
    return merged;
}

struct swarm_work_verdict verify(struct swarm_work_node *node, int64_t time_ms) {
    struct swarm_work_verdict verdict;
    const struct swarm_work_verification options = {.time_ms_max = time_ms, .cancel_fd = -1};
    swarm_work_verify(node, &options, &verdict);
    return verdict;
}

bool close_node(struct swarm_work_node *node) {
    struct swarm_work_closed closed;
    swarm_work_close(node, &closed);
    if (!closed.is_removed) {
        print_message("%s\n", closed.reason);
    }
    return closed.is_removed;
}

int open_sandbox(const char *name, int argc, char **argv) {
    if (argc > 1) {
        cmocka_set_test_filter(argv[1]);
    }
    struct sandbox_options options = {.helper_directory = TEST_BINARY_DIR "/sandbox"};
    struct error error = {0};
    if (is_failed(sandbox_open(&options, &sandbox, &error))) {
        (void)printf("%s\n", error.message);
        return 1;
    }
    const struct sandbox_probe *probe = sandbox_get_probe(sandbox);
    if (probe->rung == SANDBOX_REFUSED) {
        (void)printf("SKIPPED %s: %s; fix: %s\n", name, probe->refusal, probe->remedy);
        return close_sandbox(77);
    }
    return 0;
}

int close_sandbox(int failed) {
    sandbox_close(sandbox);
    sandbox = NULL;
    return failed;
}
