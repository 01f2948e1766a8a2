/* A command with a network: what its relay and the proxy let it reach, and the ways around them
 * that are closed. Servers stand on the host's loopback. */
#include "sandbox_support.h"

#include <sys/wait.h>
#include <unistd.h>

#include "loopback_server.h"
#include "runtime/proxy.h"

#define SCRIPT_BYTES 4096

static struct loopback_exchange exchange = {
    .answer = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nthe page\n"};
static struct loopback_server *server;
static struct network_rules *rules;
static struct proxy *proxy;
static uint16_t port;

/* Speaks to the proxy with bash alone. */
static const char functions[] =
    "ask() { exec 3<>/dev/tcp/127.0.0.1/3128 || return 1; printf '%b' \"$1\" >&3; cat <&3; "
    "exec 3<&-; }\n"
    "get() { ask \"GET http://$1/ HTTP/1.1\\r\\n\\r\\n\"; }\n";

static int set_up_network(void **state) {
    (void)set_up(state);
    server = loopback_start(loopback_exchange, &exchange);
    port = loopback_port(server);
    char list[100];
    (void)snprintf(list, sizeof list, "127.0.0.1:%u,localhost:%u", (unsigned)port, (unsigned)port);
    assert_true(is_ok(network_rules_parse(&rules, view_of_text(list), NULL)));
    const struct proxy_options options = {.rules = rules};
    assert_true(is_ok(proxy_open(&proxy, &options, NULL)));
    char text[1024];
    (void
    )snprintf(text, sizeof text, "cp '%s/tests/sandbox_atk' '%s/atk'", TEST_BINARY_DIR, workspace);
    assert_int_equal(system(text), 0);
    return 0;
}

static int tear_down_network(void **state) {
    proxy_cleanup(&proxy);
    network_rules_cleanup(&rules);
    loopback_stop(server);
    return tear_down(state);
}

/* Runs `script` with $PORT set to the server's and the functions above. */
static struct sandbox_call *run_networked(const char *script) {
    char whole[SCRIPT_BYTES];
    int length = snprintf(whole, sizeof whole, "PORT=%u\n%s%s", (unsigned)port, functions, script);
    assert_true(length > 0 && (size_t)length < sizeof whole);
    struct sandbox_policy policy = small_policy();
    policy.network_socket = proxy_socket(proxy);
    return run_with(&policy, whole);
}

static void expect_output(const char *script, const char *text) {
    struct sandbox_call *call = run_networked(script);
    if (!output_has(call, text)) {
        struct sandbox_output output = sandbox_call_output(call, SANDBOX_STDOUT);
        fail_msg("'%.*s' has no '%s'", VIEW_ARGUMENTS(output.head), text);
    }
    sandbox_call_destroy(call);
}

static void listed_server_is_reached(void **state) {
    (void)state;
    expect_output("get 127.0.0.1:$PORT", "the page");
    assert_int_equal(loopback_accepted(server), 1);
    expect_output("echo $http_proxy $HTTPS_PROXY $all_proxy", SANDBOX_PROXY_URL);
    // Many one after another: nothing is used up.
    expect_output("for i in $(seq 40); do get 127.0.0.1:$PORT; done | grep -c page", "40");
}

static void call_without_a_network_has_no_relay(void **state) {
    (void)state;
    char script[SCRIPT_BYTES];
    (void)snprintf(
        script,
        sizeof script,
        "%sget 127.0.0.1:%u && echo REACHED; ./atk sock 2 1; ./atk sock 10 1; env | grep -i proxy;"
        "ls -d /etc/ssl /etc/hosts",
        functions,
        (unsigned)port
    );
    struct sandbox_call *call = run(script);
    assert_false(output_has(call, "REACHED"));
    assert_false(output_has(call, "PWNED"));
    assert_false(output_has(call, "http:"));
    assert_false(output_has(call, "/etc"));
    assert_int_equal(loopback_accepted(server), 0);
    sandbox_call_destroy(call);
}

static void nothing_is_reached_past_the_proxy(void **state) {
    (void)state;
    struct sandbox_call *call =
        run_networked("./atk tcp $PORT; for p in 22 53 80 3127 3129 8080; do ./atk tcp $p; done;"
                      "for a in ::1 0.0.0.0 10.0.0.1 169.254.169.254 1.1.1.1; do "
                      "  (exec 3<>/dev/tcp/$a/$PORT) && echo PWNED $a; (exec 3<>/dev/udp/$a/53) && "
                      "echo PWNED udp;"
                      "done; getent ahosts example.com && echo PWNED resolved");
    assert_false(output_has(call, "PWNED"));
    assert_int_equal(loopback_accepted(server), 0);
    sandbox_call_destroy(call);
}

static size_t count_of(struct sandbox_call *call, const char *text) {
    struct sandbox_output output = sandbox_call_output(call, SANDBOX_STDOUT);
    size_t count = 0;
    for (size_t at = view_find(output.head, view_of_text(text), 0); at != SIZE_MAX;
         at = view_find(output.head, view_of_text(text), at + 1)) {
        count += 1;
    }
    return count;
}

static void only_tcp_and_unix_sockets_can_be_made(void **state) {
    (void)state;
    struct sandbox_call *call = run_networked(
        "for s in '2 2' '2 3 1' '2 3 255' '2 5 132' '2 1 132' '2 1 262' '2 4' '10 2' '10 3 58' "
        "  '10 1 132' '17 3 768' '16 3' '40 1' '38 5' '3 1' '31 1' '4294967298 2' '29 3 1'; do "
        "  ./atk sock $s; done; ./atk listen tcp x hit & sleep 0.5; kill $!;"
        "python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); "
        "print(\"BOUND\")' 2>&1; ./atk sock 2 1; ./atk sock 10 1 6; ./atk sock 1 1"
    );
    assert_int_equal(
        count_of(call, "PWNED"), 3
    ); // TCP over either IP, and unix, as the last line asks
    if (sandbox_get_probe(shared)->landlock_abi >= 4) {
        assert_false(output_has(call, "BOUND"));
    }
    sandbox_call_destroy(call);
}

static void hosts_off_the_list_are_refused(void **state) {
    (void)state;
    struct sandbox_call *call = run_networked(
        "get 127.0.0.1:1; get 127.1:$PORT; get [::1]:$PORT; get example.com; get 169.254.169.254;"
        "ask 'CONNECT data.evil.test:443 HTTP/1.1\\r\\n\\r\\n'; ask 'GET / HTTP/1.1\\r\\n\\r\\n'"
    );
    assert_int_equal(count_of(call, " 403 "), 5);
    assert_int_equal(count_of(call, " 400 "), 2); // 127.1 is no name, and the last one no request
    assert_int_equal(loopback_accepted(server), 0);
    sandbox_call_destroy(call);
}

/* A list that trusts a name does not trust where its owner points it. */
static void listed_name_of_loopback_is_refused_without_the_address(void **state) {
    (void)state;
    struct network_rules *names = NULL;
    struct proxy *other = NULL;
    char list[64];
    (void)snprintf(list, sizeof list, "localhost:%u", (unsigned)port);
    assert_true(is_ok(network_rules_parse(&names, view_of_text(list), NULL)));
    const struct proxy_options options = {.rules = names};
    assert_true(is_ok(proxy_open(&other, &options, NULL)));
    struct sandbox_policy policy = small_policy();
    policy.network_socket = proxy_socket(other);
    char script[SCRIPT_BYTES];
    (void)snprintf(script, sizeof script, "%sget localhost:%u", functions, (unsigned)port);
    struct sandbox_call *call = run_with(&policy, script);
    assert_true(output_has(call, " 403 "));
    assert_int_equal(loopback_accepted(server), 0);
    sandbox_call_destroy(call);
    proxy_close(other);
    network_rules_destroy(names);
}

static void socket_of_the_proxy_is_not_visible(void **state) {
    (void)state;
    char script[SCRIPT_BYTES];
    (void)snprintf(
        script,
        sizeof script,
        "./atk unix '%s'; ls -d '%s' && echo PWNED; find / -xdev -type s 2>/dev/null | grep . && "
        "echo PWNED; ls -l /proc/self/fd | grep socket && echo PWNED",
        proxy_socket(proxy),
        proxy_socket(proxy)
    );
    struct sandbox_call *call = run_networked(script);
    assert_false(output_has(call, "PWNED"));
    sandbox_call_destroy(call);
}

static void relay_is_out_of_the_commands_way(void **state) {
    (void)state;
    // No child of the command, and as of Landlock's ABI 6 out of reach of its signals.
    expect_output(
        "python3 -c 'import os\n"
        "try: os.wait()\n"
        "except ChildProcessError: print(\"no child\")'",
        "no child"
    );
    struct sandbox_call *call = run_networked(
        "for p in /proc/[0-9]*; do grep -qsa '^/.inner' $p/cmdline || continue; echo found;"
        "readlink $p/fd/7 && echo PWNED; ls $p/root/ && echo PWNED;"
        "for f in mem environ maps; do head -c 1 $p/$f | grep -q . && echo PWNED; done; done"
    );
    assert_true(output_has(call, "found"));
    assert_false(output_has(call, "PWNED"));
    sandbox_call_destroy(call);
    if (sandbox_get_probe(shared)->landlock_abi >= 6) {
        expect_output(
            "(trap '' TERM; for p in /proc/[0-9]*; do n=${p#/proc/}; "
            "[ $n -gt 1 ] && [ $n != $$ ] && [ $n != $BASHPID ] && kill -9 $n; done) 2>/dev/null;"
            "get 127.0.0.1:$PORT",
            "the page"
        );
    }
}

/* Two calls at once: each has loopback, relay and list of its own. */
static void calls_do_not_share_a_relay(void **state) {
    (void)state;
    struct sandbox_policy policy = small_policy();
    policy.network_socket = proxy_socket(proxy);
    const char *const waits[] = {"bash", "-c", "echo go; sleep 20", NULL};
    struct sandbox_call *networked = NULL;
    struct error error = {0};
    if (is_failed(sandbox_start(shared, &policy, waits, &networked, &error))) {
        fail_msg("%s", error.message);
    }
    step_until_output(networked);
    char second[256];
    make_workspace(second);
    struct sandbox_policy other = small_policy();
    other.workspace = second;
    char script[SCRIPT_BYTES];
    (void
    )snprintf(script, sizeof script, "%sget 127.0.0.1:%u && echo PWNED", functions, (unsigned)port);
    struct sandbox_call *call = run_with(&other, script);
    assert_false(output_has(call, "PWNED"));
    assert_int_equal(loopback_accepted(server), 0);
    sandbox_call_destroy(call);
    sandbox_call_destroy(networked);
    remove_tree(second);
}

static void connection_ends_with_its_call(void **state) {
    (void)state;
    struct loopback_server *echo = loopback_start(loopback_echo, NULL);
    struct network_rules *one = NULL;
    struct proxy *other = NULL;
    char list[64];
    (void)snprintf(list, sizeof list, "127.0.0.1:%u", (unsigned)loopback_port(echo));
    assert_true(is_ok(network_rules_parse(&one, view_of_text(list), NULL)));
    const struct proxy_options options = {.rules = one};
    assert_true(is_ok(proxy_open(&other, &options, NULL)));
    struct sandbox_policy policy = small_policy();
    policy.network_socket = proxy_socket(other);
    policy.wall_ms = 1000;
    char script[SCRIPT_BYTES];
    (void)snprintf(
        script,
        sizeof script,
        "trap '' TERM; %sask 'CONNECT %s HTTP/1.1\\r\\n\\r\\nhello'",
        functions,
        list
    );
    struct sandbox_call *call = run_with(&policy, script);
    assert_int_equal(sandbox_call_outcome(call)->end, SANDBOX_TIMED_OUT);
    assert_true(output_has(call, "hello"));
    sandbox_call_destroy(call);
    loopback_stop(echo); // waits for its handler, which waits for the end of the connection
    proxy_close(other);
    network_rules_destroy(one);
}

static void wrong_sockets_refuse_the_call(void **state) {
    (void)state;
    char plain[300];
    (void)snprintf(plain, sizeof plain, "%s/file", workspace);
    FILE *file = fopen(plain, "w");
    assert_non_null(file);
    (void)fclose(file);
    char longest[300];
    memset(longest, 'a', sizeof longest - 1);
    longest[0] = '/';
    longest[sizeof longest - 1] = '\0';
    const char *const paths[] = {"/no/such", plain, "relative", "", longest};
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        struct sandbox_policy policy = small_policy();
        policy.network_socket = paths[i];
        const char *const command[] = {"true", NULL};
        struct sandbox_call *call = NULL;
        assert_true(is_failed(sandbox_start(shared, &policy, command, &call, NULL)));
    }
}

/* `hearth sandbox run` with `options` and a script; its exit status, and both outputs in `out`. */
static int run_program(const char *options, const char *script, char *out, size_t bytes) {
    char command[SCRIPT_BYTES];
    int length = snprintf(
        command,
        sizeof command,
        "'%s/runtime/hearth' sandbox run -C '%s' %s -- bash -c \"%s\" 2>&1",
        TEST_BINARY_DIR,
        workspace,
        options,
        script
    );
    assert_true(length > 0 && (size_t)length < sizeof command);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    out[fread(out, 1, bytes - 1, output)] = '\0';
    int status = pclose(output);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void program_takes_a_list_and_tells_refusals(void **state) {
    (void)state;
    char options[100];
    char script[SCRIPT_BYTES];
    char out[8192];
    (void)snprintf(
        script,
        sizeof script,
        "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://127.0.0.1:%u/ HTTP/1.1\\r\\n\\r\\n'"
        " >&3; cat <&3",
        (unsigned)port
    );
    (void)snprintf(options, sizeof options, "--network a.test,127.0.0.1:%u", (unsigned)port);
    assert_int_equal(run_program(options, script, out, sizeof out), 0);
    assert_non_null(strstr(out, "the page"));
    assert_int_equal(run_program("--network a.test", script, out, sizeof out), 0);
    assert_null(strstr(out, "the page"));
    assert_non_null(strstr(out, "network: refused: 127.0.0.1:"));
    assert_int_not_equal(run_program("", script, out, sizeof out), 0);
    assert_int_equal(run_program("--network '*'", "true", out, sizeof out), 2);
    assert_non_null(strstr(out, "'*' is not HOST[:PORT]"));
    assert_int_equal(loopback_accepted(server), 1);
}

#define NETWORK_TEST(function)                                                                     \
    cmocka_unit_test_setup_teardown(function, set_up_network, tear_down_network)

int main(int argc, char **argv) {
    int skipped = open_shared("test_sandbox_network", argc, argv);
    if (skipped != 0) {
        return skipped;
    }
    const struct CMUnitTest tests[] = {
        NETWORK_TEST(listed_server_is_reached),
        NETWORK_TEST(call_without_a_network_has_no_relay),
        NETWORK_TEST(nothing_is_reached_past_the_proxy),
        NETWORK_TEST(only_tcp_and_unix_sockets_can_be_made),
        NETWORK_TEST(hosts_off_the_list_are_refused),
        NETWORK_TEST(listed_name_of_loopback_is_refused_without_the_address),
        NETWORK_TEST(socket_of_the_proxy_is_not_visible),
        NETWORK_TEST(relay_is_out_of_the_commands_way),
        NETWORK_TEST(calls_do_not_share_a_relay),
        NETWORK_TEST(connection_ends_with_its_call),
        NETWORK_TEST(wrong_sockets_refuse_the_call),
        NETWORK_TEST(program_takes_a_list_and_tells_refusals),
    };
    return close_shared(cmocka_run_group_tests(tests, NULL, NULL));
}
