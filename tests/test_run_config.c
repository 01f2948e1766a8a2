/* The configuration: layers, origins, what a project's file may do, and what is said about wrong ones. */
#include "failing_memory.h"
#include "runtime/config_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char base[64]; /* user/ with hearth/config.json, ws/ with .hearth/config.json */
static char workspace[128];
static char user_file[192];
static char project_file[160];

static void write_text(const char *path, const char *text) {
    CLEANUP(file_cleanup) FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
}

static void make_directory(const char *name) {
    char path[192];
    (void)snprintf(path, sizeof path, "%s/%s", base, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static int set_up(void **state) {
    (void)state;
    char home[96];
    (void)snprintf(base, sizeof base, "/var/tmp/hearth-config-XXXXXX");
    assert_non_null(mkdtemp(base));
    make_directory("user");
    make_directory("user/hearth");
    make_directory("ws");
    make_directory("ws/.hearth");
    (void)snprintf(home, sizeof home, "%s/user", base);
    (void)snprintf(workspace, sizeof workspace, "%s/ws", base);
    (void)snprintf(user_file, sizeof user_file, "%s/hearth/config.json", home);
    (void)snprintf(project_file, sizeof project_file, "%s/.hearth/config.json", workspace);
    assert_int_equal(setenv("XDG_CONFIG_HOME", home, 1), 0);
    assert_int_equal(setenv("HOME", home, 1), 0);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", base);
    assert_int_equal(system(command), 0);
    return 0;
}

/* Null texts: no file. */
static result load(
    const char *user,
    const char *project,
    const struct config_override *overrides,
    size_t count,
    struct config **out,
    struct error *error
) {
    const struct config_options options = {
        .workspace = workspace, .overrides = overrides, .override_count = count};
    (void)unlink(user_file);
    (void)unlink(project_file);
    if (user != NULL) {
        write_text(user_file, user);
    }
    if (project != NULL) {
        write_text(project_file, project);
    }
    return config_load(&options, out, error);
}

static struct config *loaded(const char *user, const char *project) {
    struct config *config = NULL;
    struct error error = {0};
    if (is_failed(load(user, project, NULL, 0, &config, &error))) {
        fail_msg("%s", error.message);
    }
    return config;
}

static void value_is(const struct config *config, enum config_key key, const char *want) {
    CLEANUP(buffer_deinit) struct buffer text;
    struct json_writer writer;
    buffer_init(&text, 1 << 20);
    json_writer_init(&writer, &text, NULL);
    config_value_write(config, key, &writer);
    assert_true(is_ok(json_writer_finish(&writer)));
    assert_string_equal(buffer_text(&text), want);
}

static void origin_is(const struct config *config, enum config_key key, const char *want) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, 1 << 20);
    assert_true(is_ok(config_origin_describe(&config->origins[key], &text, NULL)));
    const char *found = buffer_text(&text);
    size_t length = strlen(base);
    assert_string_equal(strncmp(found, base, length) == 0 ? found + length : found, want);
}

static void nothing_gives_the_defaults(void **state) {
    (void)state;
    CLEANUP(config_cleanup) struct config *config = loaded(NULL, NULL);
    assert_null(config->user_file);
    assert_null(config->project_file);
    assert_int_equal(config->notes.count, 0);
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        assert_false(config_is_set(config, (enum config_key)i));
        origin_is(config, (enum config_key)i, "default");
    }
    value_is(config, CONFIG_POLICY, "\"workspace-write\"");
    value_is(config, CONFIG_BACKEND, "\"auto\"");
    value_is(config, CONFIG_INSTRUCTIONS_FILES, "[\"AGENTS.md\",\"CLAUDE.md\"]");
    value_is(config, CONFIG_BUDGET_TIME, "null");
    value_is(config, CONFIG_CACHE_DISK, "\"default\"");
    value_is(config, CONFIG_SESSIONS_SNAPSHOTS_MAX, "\"4294967296\"");
    assert_int_equal(config->skills_directories.count, 4);
}

/* Every key once. */
static const char whole[] =
    "\n{\"model\": \"models/a\", \"backend\": \"cpu\", \"state\": \"~/state\",\n"
    " \"effort\": \"low\", \"context\": 4096,\n"
    " \"tools\": {\"set\": [\"shell\", \"read\"], \"dialect\": \"claude\"},\n"
    " \"policy\": \"ask\",\n"
    " \"rules\": [{\"tool\": \"shell\", \"pattern\": \"git *\", \"action\": \"allow\"},\n"
    "  {\"action\": \"deny\"}],\n"
    " \"network\": {\"allow\": [\"crates.io\", \"*.python.org:443\", \"[::1]:80\"]},\n"
    " \"mcp\": {\"files\": {\"command\": [\"npx\", \"x\"], \"env\": {\"TOKEN\": \"secret\"},\n"
    "   \"trusted\": true, \"timeout_ms\": 5000, \"read_only\": [\"list\"], "
    "\"directories\": [\"/opt/x/../y\"]}},\n"
    " \"hooks\": {\"before_tool\": [{\"command\": \"hooks/check\", \"tool\": \"shell\"}],\n"
    "  \"after_tool\": [{\"command\": [\"/usr/bin/env\", \"python3\"], \"timeout_ms\": 1}],\n"
    "  \"stop\": []},\n"
    " \"instructions\": {\"max_bytes\": 1000, \"files\": [\"AGENTS.md\"]},\n"
    " \"skills\": {\"directories\": [\"/opt/skills\", \"./mine/../skills\"]},\n"
    " \"budget\": {\"time\": \"10m\", \"tokens\": 5, \"calls\": 6}, \"compaction\": "
    "{\"at_percent\": "
    "70,\n"
    " \"keep_turns\": 3}, \"cache\": {\"disk\": \"off\", \"hours\": 5, \"writes\": \"1G\",\n"
    " \"memory\": \"512M\", \"snapshots\": 1048576},\n"
    " \"sessions\": {\"snapshots_max\": \"2G\"},"
    " \"swarm\": {\"strategy\": \"race\", \"verify\": \"make test\", \"max_agents\": 20,"
    " \"at_once\": 4},"
    " \"terminal\": {\"colour\": \"never\", \"markdown\": false}, \"trust\": [\"/a\"]}\n";

static void every_key_is_read_with_its_line(void **state) {
    (void)state;
    CLEANUP(config_cleanup) struct config *config = loaded(whole, NULL);
    char want[256];
    for (size_t i = 0; i < CONFIG_KEY_COUNT; i++) {
        assert_true(config_is_set(config, (enum config_key)i));
    }
    (void)snprintf(want, sizeof want, "\"%s/user/hearth/models/a\"", base);
    value_is(config, CONFIG_MODEL, want);
    origin_is(config, CONFIG_MODEL, "/user/hearth/config.json:2");
    (void)snprintf(want, sizeof want, "\"%s/user/state\"", base);
    value_is(config, CONFIG_STATE, want);
    value_is(config, CONFIG_EFFORT, "50");
    origin_is(config, CONFIG_EFFORT, "/user/hearth/config.json:3");
    value_is(config, CONFIG_CONTEXT, "4096");
    value_is(config, CONFIG_TOOLS_SET, "[\"shell\",\"read\"]");
    value_is(config, CONFIG_TOOLS_DIALECT, "\"claude\"");
    value_is(config, CONFIG_POLICY, "\"ask\"");
    value_is(
        config,
        CONFIG_RULES,
        "[{\"tool\":\"shell\",\"pattern\":\"git *\",\"action\":\"allow\"},"
        "{\"tool\":\"*\",\"action\":\"deny\"}]"
    );
    assert_non_null(strstr(config->rules.items[1].origin, "config.json:7"));
    value_is(config, CONFIG_NETWORK_ALLOW, "[\"crates.io\",\"*.python.org:443\",\"[::1]:80\"]");
    value_is(
        config,
        CONFIG_MCP,
        "{\"files\":{\"command\":[\"npx\",\"x\"],\"env\":{\"TOKEN\":\"...\"},\"trusted\":true,"
        "\"timeout_ms\":5000,\"read_only\":[\"list\"],\"directories\":[\"/opt/y\"]}}"
    );
    assert_string_equal(config->mcp.items[0].environment.items[0], "TOKEN=secret");
    (void)snprintf(want, sizeof want, "%s/user/hearth/hooks/check", base);
    assert_string_equal(config->hooks_before_tool.items[0].command, want);
    assert_int_equal(config->hooks_before_tool.items[0].timeout_ms, CONFIG_HOOK_MS_DEFAULT);
    assert_string_equal(config->hooks_after_tool.items[0].arguments.items[0], "python3");
    assert_int_equal(config->hooks_stop.count, 0);
    assert_int_equal(config->instructions_max_bytes, 1000);
    (void)snprintf(want, sizeof want, "[\"/opt/skills\",\"%s/user/hearth/skills\"]", base);
    value_is(config, CONFIG_SKILLS_DIRECTORIES, want);
    assert_int_equal(config->budget_time_ms, 600000);
    assert_int_equal(config->budget_tokens, 5);
    assert_int_equal(config->budget_calls, 6);
    assert_int_equal(config->compaction_at_percent, 70);
    assert_int_equal(config->compaction_keep_turns, 3);
    assert_true(config->cache_disk.is_off);
    assert_int_equal(config->cache_hours, 5);
    assert_int_equal(config->cache_writes.bytes, 1 << 30);
    assert_int_equal(config->cache_memory.bytes, 512 << 20);
    assert_int_equal(config->cache_snapshots.bytes, 1 << 20);
    assert_int_equal(config->sessions_snapshots_max.bytes, (uint64_t)2 << 30);
    value_is(config, CONFIG_SWARM_STRATEGY, "\"race\"");
    value_is(config, CONFIG_SWARM_VERIFY, "\"make test\"");
    assert_int_equal(config->swarm_max_agents, 20);
    assert_int_equal(config->swarm_at_once, 4);
    assert_int_equal(config->terminal_colour, CONFIG_COLOUR_NEVER);
    assert_false(config->terminal_markdown);
}

static void options_come_before_the_project_and_that_before_the_user(void **state) {
    (void)state;
    static const char user[] = "{\"effort\": 10, \"backend\": \"cpu\", \"context\": 100,"
                               "\"rules\": [{\"tool\": \"read\", \"action\": \"ask\"}],"
                               "\"network\": {\"allow\": [\"a.org\"]}}";
    static const char project[] = "{\"effort\": 20, \"backend\": \"auto\","
                                  "\"rules\": [{\"tool\": \"Grep\", \"action\": \"deny\"}]}";
    const struct config_override overrides[] = {
        {CONFIG_EFFORT, "30", "--effort"},
        {CONFIG_EFFORT, "40", "--effort"},
        {CONFIG_RULES, "allow:shell:git: *", "--allow"},
        {CONFIG_RULES, "deny:write", "--deny"},
        {CONFIG_NETWORK_ALLOW, "x.org,*.y.org", "--network"},
        {CONFIG_NETWORK_ALLOW, "z.org:80", "--network"},
        {CONFIG_TERMINAL_MARKDOWN, "false", "--set"},
        {CONFIG_BUDGET_TIME, "90s", "--max-time"},
        {CONFIG_POLICY, "full", "--policy"},
    };
    CLEANUP(config_cleanup) struct config *config = NULL;
    struct error error = {0};
    if (is_failed(load(user, project, overrides, COUNT_OF(overrides), &config, &error))) {
        fail_msg("%s", error.message);
    }
    value_is(config, CONFIG_EFFORT, "40");
    origin_is(config, CONFIG_EFFORT, "--effort");
    value_is(config, CONFIG_BACKEND, "\"auto\"");
    origin_is(config, CONFIG_BACKEND, "/ws/.hearth/config.json:1");
    value_is(config, CONFIG_CONTEXT, "100");
    origin_is(config, CONFIG_CONTEXT, "/user/hearth/config.json:1");
    value_is(
        config,
        CONFIG_RULES,
        "[{\"tool\":\"shell\",\"pattern\":\"git: *\",\"action\":\"allow\"},"
        "{\"tool\":\"write\",\"action\":\"deny\"},{\"tool\":\"read\",\"action\":\"ask\"},"
        "{\"tool\":\"grep\",\"action\":\"deny\"}]"
    );
    assert_false(config->rules.items[2].is_project);
    assert_true(config->rules.items[3].is_project);
    value_is(config, CONFIG_NETWORK_ALLOW, "[\"x.org\",\"*.y.org\",\"z.org:80\"]");
    value_is(config, CONFIG_BUDGET_TIME, "\"90000ms\"");
    value_is(config, CONFIG_POLICY, "\"full\""); /* a person may widen what a project narrowed */
    assert_false(config->terminal_markdown);
}

static void a_project_narrows_and_no_more(void **state) {
    (void)state;
    static const char user[] = "{\"policy\": \"ask\", \"budget\": {\"tokens\": 50, \"calls\": 5},"
                               "\"network\": {\"allow\": [\"*.a.org\", \"b.org:443\"]}, "
                               "\"instructions\": {\"max_bytes\": 0}}";
    static const char project[] =
        "{\"policy\": \"workspace-write\", \"budget\": {\"tokens\": 60, \"calls\": 4, \"time\": "
        "\"1h\"},"
        "\"network\": {\"allow\": [\"x.a.org\", \"b.org:443\"]},"
        "\"instructions\": {\"max_bytes\": 10}, \"rules\": "
        "[{\"tool\":\"image\",\"action\":\"allow\"}],"
        "\"mcp\": {\"a\": {\"command\": [\"a\"]}}, \"hooks\": {\"stop\": [{\"command\": "
        "\".hearth/s\"}]},"
        "\"swarm\": {\"verify\": \"evil\", \"max_agents\": 200, \"at_once\": 2, \"strategy\": "
        "\"plan\"},"
        "\"model\": \"m\", \"instructions.files\": [\"X.md\"]}";
    CLEANUP(config_cleanup) struct config *config = loaded(user, project);
    value_is(config, CONFIG_POLICY, "\"ask\"");
    value_is(config, CONFIG_BUDGET_TOKENS, "50");
    value_is(config, CONFIG_BUDGET_CALLS, "4");
    value_is(config, CONFIG_BUDGET_TIME, "\"3600000ms\"");
    value_is(config, CONFIG_INSTRUCTIONS_MAX_BYTES, "0");
    value_is(config, CONFIG_NETWORK_ALLOW, "[\"x.a.org\",\"b.org:443\"]");
    value_is(config, CONFIG_MCP, "{}");
    value_is(config, CONFIG_HOOKS_STOP, "[]");
    value_is(config, CONFIG_MODEL, "null");
    value_is(config, CONFIG_INSTRUCTIONS_FILES, "[\"AGENTS.md\",\"CLAUDE.md\"]");
    value_is(config, CONFIG_SWARM_VERIFY, "null");
    value_is(config, CONFIG_SWARM_MAX_AGENTS, "63");
    value_is(config, CONFIG_SWARM_AT_ONCE, "2");
    value_is(config, CONFIG_SWARM_STRATEGY, "\"plan\"");
    assert_false(config->rules.items[0].is_trusted);
    static const char *const noted[] = {
        "'model'",
        "'policy'",
        "'mcp'",
        "'hooks.stop'",
        "'instructions.max_bytes'",
        "'instructions.files'",
        "'budget.tokens'",
        "'swarm.verify'",
        "'swarm.max_agents'",
        "rules that allow"};
    assert_int_equal(config->notes.count, COUNT_OF(noted));
    for (size_t i = 0; i < COUNT_OF(noted); i++) {
        assert_non_null(strstr(config->notes.items[i], noted[i]));
        assert_non_null(strstr(config->notes.items[i], "/ws/.hearth/config.json:1"));
    }
    CLEANUP(config_cleanup) struct config *other = loaded(NULL, "{\"policy\": \"read-only\"}");
    value_is(other, CONFIG_POLICY, "\"read-only\"");
}

static void hosts_of_a_project_lie_within_the_users(void **state) {
    (void)state;
    static const char *const allowed[] = {"a.org", "b.org:8080", "*.c.org", "[::1]:99", "1.2.3.4"};
    static const struct {
        const char *entry;
        bool is_covered;
    } rows[] = {
        {"a.org", true},       {"A.org", true},       {"a.org:443", true},   {"a.org:80", true},
        {"a.org:8080", false}, {"x.a.org", false},    {"b.org", false},      {"b.org:8080", true},
        {"b.org:80", false},   {"x.c.org", true},     {"*.c.org", true},     {"*.x.c.org", true},
        {"c.org", false},      {"xc.org", false},     {"x.c.org:22", false}, {"[::1]:99", true},
        {"[::1]", false},      {"[::1]:09", false},   {"1.2.3.4", true},     {"1.2.3.4:80", true},
        {"*.org", false},      {"a.org.evil", false},
    };
    const struct config_list list = {allowed, COUNT_OF(allowed)};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (config_host_is_covered(rows[i].entry, &list) != rows[i].is_covered) {
            fail_msg("%s", rows[i].entry);
        }
    }
}

static void a_trusted_project_brings_servers_hooks_and_rules(void **state) {
    (void)state;
    static const char project[] =
        "{\"rules\": [{\"tool\": \"image\", \"action\": \"allow\"}], \"model\": \"m\","
        "\"mcp\": {\"a\": {\"command\": [\"evil\"]}, \"b\": {\"command\": [\"b\"]}},"
        "\"hooks\": {\"stop\": [{\"command\": \".hearth/stop\"}]},"
        "\"swarm\": {\"verify\": \"make test\"},"
        "\"skills\": {\"directories\": [\"tools/skills\"]}}";
    char user[512];
    (void)snprintf(
        user,
        sizeof user,
        "{\"trust\": [\"/nowhere\", \"%s/./ws/\"], \"mcp\": {\"a\": {\"command\": [\"good\"]}},"
        "\"hooks\": {\"stop\": [{\"command\": \"hooks/mine\"}]}}",
        base
    );
    CLEANUP(config_cleanup) struct config *config = loaded(user, project);
    assert_true(config->is_trusted);
    assert_int_equal(config->mcp.count, 2);
    assert_string_equal(config->mcp.items[0].command.items[0], "good");
    assert_string_equal(config->mcp.items[1].name, "b");
    value_is(config, CONFIG_SWARM_VERIFY, "\"make test\"");
    assert_int_equal(config->hooks_stop.count, 2);
    assert_non_null(strstr(config->hooks_stop.items[0].command, "/user/hearth/hooks/mine"));
    assert_non_null(strstr(config->hooks_stop.items[1].command, "/ws/.hearth/stop"));
    assert_true(config->rules.items[0].is_trusted);
    assert_non_null(strstr(config->model, "/ws/m"));
    assert_int_equal(config->skills_directories.count, 5);
    assert_int_equal(config->notes.count, 1);
    assert_non_null(strstr(config->notes.items[0], "server 'a'"));
}

static void wrong_files_are_errors_that_name_place_key_and_reason(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool is_project;
        const char *parts[3];
    } rows[] = {
        {"{\"polcy\": \"ask\"}", false, {"config.json:1", "'polcy'", "did you mean 'policy'"}},
        {"{\n\"swarm\": {\"verify\": \" \"}}", false, {":2", "'swarm.verify'", "is empty"}},
        {"{\"swarm\": {\"verify\": 1}}", false, {":1", "'swarm.verify'", ""}},
        {"{\"swarm\": {\"max_agents\": 0}}", false, {":1", "'swarm.max_agents'", "1 to 255"}},
        {"{\"swarm\": {\"strategy\": \"rase\"}}", false, {":1", "'swarm.strategy'", "best-of"}},
        {"{\n\"budgt\": {}}", false, {"config.json:2", "'budgt'", "did you mean 'budget'"}},
        {"{\"budget\": {\n\n\"tim\": 1}}", false, {":3", "'budget.tim'", "'budget.time'"}},
        {"{\"polcy\": \"ask\",\n\"effort\": 5,\n\"contxt\": 9,\n\"budget\": {\"time\": true}}",
         false,
         {"config.json:1: 'polcy'", "did you mean 'policy'?; wrong too: line 3, 4", ""}},
        {"{\"max_bytes\": 1}", false, {"'max_bytes'", "'instructions.max_bytes'", ""}},
        {"{\"something else\": 1}", false, {"'something else'", "is not a key", "hearth config"}},
        {"{\"\": 1}", false, {"''", "is not a key", ""}},
        {"{\"policy\": {\"x\": 1}}", false, {"'policy'", "workspace-write", ""}},
        {"{\"policy\": \"Full\"}", false, {"'policy'", "full", ""}},
        {"{\"backend\": \"gpu\"}", false, {"'backend'", "auto cpu cuda", "\"gpu\""}},
        {"{\"backend\": 1}", false, {"'backend'", "auto cpu cuda", "not 1"}},
        {"{\"effort\": 101}", false, {"'effort'", "1 to 100", ""}},
        {"{\"effort\": 1.5}", false, {"'effort'", "1 to 100", ""}},
        {"{\"context\": 0}", false, {"'context'", "from 1 to", "not 0"}},
        {"{\"context\": 1e3}", false, {"'context'", "whole number", ""}},
        {"{\"budget\": 5}", false, {"'budget'", "an object", "a number"}},
        {"{\"budget\": {\"time\": \"soon\"}}", false, {"'budget.time'", "10m", ""}},
        {"{\"budget\": {\"tokens\": -1}}", false, {"'budget.tokens'", "from 1 to", "not -1"}},
        {"{\"cache\": {\"writes\": \"off\"}}", false, {"'cache.writes'", "512M", ""}},
        {"{\"terminal\": {\"markdown\": \"no\"}}", false, {"'terminal.markdown'", "true", ""}},
        {"{\"tools\": {\"set\": \"shell\"}}", false, {"'tools.set'", "a list", ""}},
        {"{\"tools\": {\"set\": [1]}}", false, {"'tools.set'", "a text", "a number"}},
        {"{\"tools\": {\"set\": [\"\"]}}", false, {"'tools.set'", "empty", ""}},
        {"{\"tools\": {\"set\": [\"a\\u0007\"]}}", false, {"'tools.set'", "control", ""}},
        {"{\"tools\": {\"set\": [\"read\",\n\"shel\"]}}", false, {":2", "'tools.set'", "shel"}},
        {"{\"budget.time\": \"1s\", \"budget\": {\"time\": \"2s\"}}", false, {"twice", "", ""}},
        {"{\"model\": \"\"}", false, {"'model'", "empty", ""}},
        {"{\"model\": \"/../x\"}", false, {"'model'", "above", ""}},
        {"{\"rules\": {}}", false, {"'rules'", "a list", ""}},
        {"{\"rules\": [1]}", false, {"'rules'", "objects", ""}},
        {"{\"rules\": [\n{\"tool\": \"Bash(git *)\", \"action\": \"deny\"}]}",
         false,
         {":2: 'rules'", "'Bash(git *)'", "did you mean 'shell:PATTERN'?"}},
        {"{\"rules\": [{\"tool\": \"webftech\", \"action\": \"deny\"}]}",
         false,
         {"'rules'", "'webftech'", "did you mean 'fetch'?"}},
        {"{\"rules\": [{\"tool\": \"Web*\", \"action\": \"deny\"}]}",
         false,
         {"'rules'", "names no tool", "'Web*'"}},
        {"{\"hooks\": {\"stop\": [\n{\"command\": \"/bin/true\", \"tool\": \"shel\"}]}}",
         false,
         {":2: 'hooks.stop'", "did you mean 'shell'?", ""}},
        {"{\"mcp\": {\"files\": {\"command\": [\"x\"]}},\n"
         "\"rules\": [{\"tool\": \"mcp__fiels__a\", \"action\": \"deny\"}]}",
         true,
         {"config.json:2: 'rules'", "no server 'fiels'", "did you mean 'files'?"}},
        {"{\"mcp\": {\"files\": {\"command\": [\"x\"]}},"
         "\"rules\": [{\"tool\": \"mcp__files\", \"action\": \"deny\"}]}",
         true,
         {"'rules'", "no tool of the server", "'mcp__files__*'"}},
        {"{\"rules\": [\n{\"tool\": \"x\"}]}", false, {":2", "'rules'", "\"action\""}},
        {"{\"rules\": [{\"acton\": \"deny\"}]}", false, {"'acton'", "did you mean 'action'", ""}},
        {"{\"rules\": [{\"tool\": \"\", \"action\": \"deny\"}]}", false, {"'rules'", "empty", ""}},
        {"{\"rules\": [{\"pattern\": \"a\\\\\", \"action\": \"deny\"}]}",
         false,
         {"backslash", "", ""}},
        {"{\"network\": {\"allow\": [\"https://a.org\"]}}",
         false,
         {"'network.allow'", "https://a.org", ""}},
        {"{\"network\": {\"allow\": [\"a.org:0\"]}}", false, {"a.org:0", "", ""}},
        {"{\"network\": {\"allow\": [\"a.org:99999\"]}}", false, {"a.org:99999", "", ""}},
        {"{\"network\": {\"allow\": [\"*\"]}}", false, {"'*'", "", ""}},
        {"{\"network\": {\"allow\": [\"a..org\"]}}", false, {"a..org", "", ""}},

        {"{\"mcp\": {\"a__b\": {\"command\": [\"x\"]}}}", false, {"'mcp'", "name", ""}},
        {"{\"mcp\": {\"a\": {}}}", false, {"'mcp'", "a list", ""}},
        {"{\"mcp\": {\"a\": {\"command\": []}}}", false, {"'mcp'", "without a command", ""}},
        {"{\"mcp\": {\"a\": {\"command\": [\"x\"], \"env\": {\"A=B\": \"x\"}}}}",
         false,
         {"environment", "", ""}},
        {"{\"mcp\": {\"a\": {\"command\": [\"x\"], \"timeout_ms\": 0}}}",
         false,
         {"timeout_ms", "from 1", ""}},
        {"{\"mcp\": {\"a\": {\"command\": [\"x\"], \"trusted\": 1}}}",
         false,
         {"\"trusted\"", "", ""}},
        {"{\"hooks\": {\"stop\": [{}]}}", false, {"'hooks.stop'", "\"command\"", ""}},
        {"{\"hooks\": {\"stop\": [{\"command\": []}]}}",
         false,
         {"'hooks.stop'", "\"command\"", ""}},
        {"{\"hooks\": {\"stop\": [{\"command\": \"/opt/x\"}]}}",
         false,
         {"'hooks.stop'", "neither below", ""}},
        {"{\"hooks\": {\"stop\": [{\"command\": \"../x\"}]}}",
         false,
         {"'hooks.stop'", "neither below", ""}},
        {"{\"hooks\": {\"start\": []}}", false, {"'hooks.start'", "'hooks.stop'", ""}},
        {"{\"instructions\": {\"files\": [\"../a\"]}}", false, {"names of files", "", ""}},
        {"[]", false, {"config.json", "an object", "an array"}},
        {"{", false, {"config.json:1:2: ", "JSON ends", ""}},
        {"{\"effort\": 1,\n \"\xc3\xa9\" 2}", false, {"config.json:2:6: ", "':' is due", ""}},
        {"{\"effort\": 1,\n}", false, {"config.json:2:1: ", "is due", ""}},
        {"{\"model\":\n\n  \"a\nb\"}", false, {"config.json:3:5: ", "control byte", ""}},
        {"", false, {"config.json", "", ""}},
        {"{\"effort\": 1, \"effort\": 2}", false, {"config.json", "effort", ""}},
        {"\xff{}", false, {"config.json", "", ""}},
        {"\n{\"state\": \"x\"}", true, {"/ws/.hearth/config.json:2", "'state'", "no place"}},
        {"{\"trust\": [\".\"]}", true, {"'trust'", "no place", ""}},
        {"{\"cache\": {\"disk\": \"1G\"}}", true, {"'cache.disk'", "no place", ""}},
        {"{\"policy\": \"full\"}", true, {"'policy'", "trust itself", ""}},
        {"{\"mcp\": {\"a\": {\"command\": [\"x\"], \"trusted\": true}}}",
         true,
         {"'mcp'", "\"trusted\"", ""}},
        {"{\"network\": {\"allow\": [\"a.org\"]}}", true, {"'network.allow'", "'a.org'", "widen"}},
        {"{\"model\": \"../m\"}", true, {"'model'", "out of the workspace", ""}},
        {"{\"model\": \"~/m\"}", true, {"'model'", "out of the workspace", ""}},
        {"{\"skills\": {\"directories\": [\"/opt\"]}}", true, {"out of the workspace", "", ""}},
        {"{\"hooks\": {\"stop\": [{\"command\": \"../x\"}]}}",
         true,
         {"out of the workspace", "", ""}},
        {"{\"hooks\": {\"stop\": [{\"command\": \"/usr/../opt/x\"}]}}",
         true,
         {"neither below", "", ""}},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(config_cleanup) struct config *config = NULL;
        struct error error = {0};
        const char *user = rows[i].is_project ? NULL : rows[i].text;
        const char *project = rows[i].is_project ? rows[i].text : NULL;
        result done = load(user, project, NULL, 0, &config, &error);
        if (done.code != RESULT_INVALID_INPUT) {
            fail_msg(
                "row %zu: %s: %s (%s)", i, rows[i].text, result_name(done.code), error.message
            );
        }
        for (size_t j = 0; j < COUNT_OF(rows[i].parts); j++) {
            if (strstr(error.message, rows[i].parts[j]) == NULL) {
                fail_msg("row %zu: no '%s' in: %s", i, rows[i].parts[j], error.message);
            }
        }
        assert_null(config);
    }
}

static void wrong_options_are_errors_that_name_them(void **state) {
    (void)state;
    static const struct {
        struct config_override override;
        const char *part;
    } rows[] = {
        {{CONFIG_POLICY, "none", "--policy"}, "--policy: 'policy' wants"},
        {{CONFIG_EFFORT, "x", "--effort"}, "--effort: 'effort' wants"},
        {{CONFIG_CONTEXT, "12x", "--context"}, "--context: 'context' wants"},
        {{CONFIG_CONTEXT, "", "--context"}, "--context: 'context' wants"},
        {{CONFIG_RULES, "allow", "--allow"}, NULL},
        {{CONFIG_RULES, "perhaps:shell", "--rule"}, "--rule: 'rules'"},
        {{CONFIG_RULES, "allow::x", "--rule"}, "--rule: 'rules'"},
        {{CONFIG_RULES, "deny:Bash(git *)", "--deny"}, "--deny: 'rules' names no tool"},
        {{CONFIG_RULES, "deny:mcp__b__x", "--deny"},
         "--deny: 'rules' has the tool 'mcp__b__x': no"},
        {{CONFIG_NETWORK_ALLOW, "a b", "--network"}, "--network: 'network.allow'"},
        {{CONFIG_MCP, "{}", "--set"}, "--set: 'mcp' is of files only"},
        {{CONFIG_HOOKS_STOP, "[]", "--set"}, "--set: 'hooks.stop' is of files only"},
        {{CONFIG_BACKEND, "\xff", "--backend"}, "--backend wants UTF-8"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLEANUP(config_cleanup) struct config *config = NULL;
        struct error error = {0};
        result done = load(NULL, NULL, &rows[i].override, 1, &config, &error);
        assert_int_equal(is_ok(done), rows[i].part == NULL);
        assert_true(rows[i].part == NULL || strstr(error.message, rows[i].part) != NULL);
    }
    struct config_override override;
    struct error error = {0};
    assert_true(is_ok(config_override_parse("budget.time=5s", "--set", &override, &error)));
    assert_int_equal(override.key, CONFIG_BUDGET_TIME);
    assert_string_equal(override.text, "5s");
    assert_true(is_failed(config_override_parse("budget.tine=5s", "--set", &override, &error)));
    assert_non_null(strstr(error.message, "'budget.time'"));
    assert_true(is_failed(config_override_parse("effort", "--set", &override, &error)));
}

static void tools_of_rules_have_our_names_and_their_options(void **state) {
    (void)state;
    static const char *const tools[] = {
        "shell", "apply_patch", "fetch", "*", "job_*", "mcp__*", "mcp__*__list", "mcp__a__x"};
    static const char *const written[] = {
        "Bash", "apply_patch", "WebFetch", "*", "job_*", "mcp__*", "mcp__*__list", "mcp__a__x"};
    static const char user[] =
        "{\"mcp\": {\"a\": {\"command\": [\"x\"]}}, \"rules\": ["
        "{\"tool\": \"mcp__b__x\", \"action\": \"deny\"}, {\"tool\": \"Read\", \"action\": "
        "\"deny\"}]}";
    struct config_override overrides[COUNT_OF(written)];
    char texts[COUNT_OF(written)][64];
    for (size_t i = 0; i < COUNT_OF(written); i++) {
        bool is_allow = i % 2 == 0;
        (void)snprintf(texts[i], sizeof texts[i], "%s:%s", is_allow ? "allow" : "deny", written[i]);
        overrides[i] =
            (struct config_override){CONFIG_RULES, texts[i], is_allow ? "--allow" : "--deny"};
    }
    CLEANUP(config_cleanup) struct config *config = NULL;
    struct error error = {0};
    if (is_failed(load(user, NULL, overrides, COUNT_OF(overrides), &config, &error))) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(config->rules.count, COUNT_OF(tools) + 2);
    for (size_t i = 0; i < COUNT_OF(tools); i++) {
        assert_string_equal(config->rules.items[i].tool, tools[i]);
        assert_string_equal(config->rules.items[i].origin, overrides[i].option);
    }
    assert_string_equal(config->rules.items[COUNT_OF(tools) + 1].tool, "read");
    assert_int_equal(config->notes.count, 1); /* another workspace's project may have that server */
    assert_non_null(strstr(config->notes.items[0], "mcp__b__x does nothing here"));
}

static void files_that_are_none_are_one_error(void **state) {
    (void)state;
    CLEANUP(config_cleanup) struct config *config = NULL;
    struct error error = {0};
    char outside[192];
    const struct config_options options = {.workspace = workspace};
    const struct config_options named = {.user_file = "/var/tmp/hearth-no-such-file"};
    assert_int_equal(config_load(&named, &config, &error).code, RESULT_INVALID_INPUT);
    (void)unlink(user_file);
    (void)unlink(project_file);
    write_text(user_file, "{}");
    assert_int_equal(chmod(user_file, 0666), 0);
    assert_int_equal(config_load(&options, &config, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "others than the user"));
    assert_int_equal(unlink(user_file), 0);
    assert_int_equal(mkfifo(user_file, 0600), 0); /* nobody writes: reading it would wait */
    assert_true(is_failed(config_load(&options, &config, &error)));
    assert_int_equal(unlink(user_file), 0);
    assert_int_equal(mkfifo(project_file, 0600), 0);
    assert_true(is_failed(config_load(&options, &config, &error)));
    assert_int_equal(unlink(project_file), 0);
    assert_int_equal(mkdir(project_file, 0700), 0);
    assert_true(is_failed(config_load(&options, &config, &error)));
    assert_int_equal(rmdir(project_file), 0);
    (void)snprintf(outside, sizeof outside, "%s/outside.json", base);
    write_text(outside, "{}");
    assert_int_equal(symlink(outside, project_file), 0); /* another file is not read */
    assert_true(is_failed(config_load(&options, &config, &error)));
    assert_non_null(strstr(error.message, "symlink"));
    assert_int_equal(unlink(project_file), 0);
    CLEANUP(file_cleanup) FILE *file = fopen(project_file, "w");
    assert_non_null(file);
    assert_int_equal(ftruncate(fileno(file), 10 << 20), 0);
    assert_int_equal(config_load(&options, &config, &error).code, RESULT_INVALID_INPUT);
    assert_null(config);
    const struct config_options without = {.workspace = workspace, .ignores_project = true};
    assert_true(is_ok(config_load(&without, &config, &error)));
}

static void every_failed_allocation_is_an_error(void **state) {
    (void)state;
    static const char project[] =
        "{\"rules\": [{\"tool\": \"image\", \"action\": \"allow\"}], \"model\": \"m\"}";
    const struct config_override overrides[] = {
        {CONFIG_RULES, "deny:write", "--deny"}, {CONFIG_NETWORK_ALLOW, "crates.io", "--network"}};
    const struct config_options options = {
        .workspace = workspace, .overrides = overrides, .override_count = COUNT_OF(overrides)};
    write_text(user_file, whole);
    write_text(project_file, project);
    bool fired = true;
    size_t nth = 1;
    for (; fired; nth++) {
        CLEANUP(config_cleanup) struct config *config = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result done = config_load(&options, &config, &error);
        fired = failing_memory_fired();
        failing_memory_arm(0);
        if (fired ? done.code != RESULT_MEMORY || config != NULL : is_failed(done)) {
            fail_msg("allocation %zu: %s (%s)", nth, result_name(done.code), error.message);
        }
    }
    assert_true(nth > 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_gives_the_defaults),
        cmocka_unit_test(every_key_is_read_with_its_line),
        cmocka_unit_test(options_come_before_the_project_and_that_before_the_user),
        cmocka_unit_test(a_project_narrows_and_no_more),
        cmocka_unit_test(hosts_of_a_project_lie_within_the_users),
        cmocka_unit_test(a_trusted_project_brings_servers_hooks_and_rules),
        cmocka_unit_test(wrong_files_are_errors_that_name_place_key_and_reason),
        cmocka_unit_test(wrong_options_are_errors_that_name_them),
        cmocka_unit_test(tools_of_rules_have_our_names_and_their_options),
        cmocka_unit_test(files_that_are_none_are_one_error),
        cmocka_unit_test(every_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
