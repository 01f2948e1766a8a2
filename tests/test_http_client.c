/* The client behind the fetch tool, against servers on loopback: what is got, what is refused before
 * anything is sent, and what bounds it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "loopback_server.h"
#include "runtime/http_client.h"

extern char **environ;

static struct loopback_server *server;
static struct loopback_server *other; /* its port is not listed */
static unsigned port;
static struct network_rules *rules;
static struct http_client *client;
static struct tool_fetch_answer answer;
static unsigned resolved;
static unsigned allowed;
static unsigned refused;

static int64_t now_ms(void) {
    struct clock clock = clock_real();
    return clock_monotonic_ms(&clock);
}

/* Every name is 127.0.0.1. */
static result resolve(
    void *context,
    const char *host,
    uint16_t number,
    struct name_addresses *out,
    struct error *error
) {
    (void)context;
    (void)host;
    (void)error;
    (void)number;
    resolved += 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    memset(out, 0, sizeof *out);
    memcpy(&out->items[0], &address, sizeof address);
    out->count = 1;
    return OK;
}

static void note(void *context, const struct network_decision *decision) {
    (void)context;
    *(decision->is_allowed ? &allowed : &refused) += 1;
}

static void say(int fd, const char *text) {
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static void redirect(int fd, const char *where, unsigned number) {
    char text[400];
    (void
    )snprintf(text, sizeof text, "HTTP/1.1 302 Found\r\nContent-Length: 4\r\nLocation: %s", where);
    say(fd, text);
    if (number != 0) {
        (void)snprintf(text, sizeof text, ":%u/", number);
        say(fd, text);
    }
    say(fd, "\r\n\r\nmove");
}

/* Answers by the path. */
static void handle(void *context, int fd) {
    (void)context;
    char request[4096] = "";
    size_t used = 0;
    while (strstr(request, "\r\n\r\n") == NULL && used < sizeof request - 1) {
        ssize_t got = recv(fd, request + used, sizeof request - 1 - used, 0);
        if (got <= 0) {
            return;
        }
        used += (size_t)got;
        request[used] = '\0';
    }
    char path[64] = "";
    (void)sscanf(request, "GET %63s", path);
    if (strcmp(path, "/page") == 0) {
        say(fd,
            "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
            "Content-Length: 11\r\n\r\n<p>text</p>");
    } else if (strcmp(path, "/created") == 0) {
        say(fd, "HTTP/1.1 201 Created\r\nLocation: /page\r\nContent-Length: 4\r\n\r\nmade");
    } else if (strcmp(path, "/relative") == 0) {
        redirect(fd, "/page", 0);
    } else if (strcmp(path, "/loop") == 0) {
        redirect(fd, "/loop", 0);
    } else if (strcmp(path, "/file") == 0) {
        redirect(fd, "file:///etc/passwd", 0);
    } else if (strcmp(path, "/gopher") == 0) {
        redirect(fd, "gopher://127.0.0.1", port);
    } else if (strcmp(path, "/other") == 0) {
        redirect(fd, "http://127.0.0.1", loopback_port(other));
    } else if (strcmp(path, "/away") == 0) {
        redirect(fd, "https://evil.test/secret", 0);
    } else if (strcmp(path, "/name") == 0) {
        redirect(fd, "https://listed.test", port);
    } else if (strcmp(path, "/headers") == 0) {
        say(fd, "HTTP/1.1 200 OK\r\n");
        for (int i = 0; i < 4000; i++) {
            say(fd, "X-Header: 0123456789012345678901234567890123456789\r\n");
        }
        say(fd, "\r\n");
    } else if (strcmp(path, "/endless") == 0) {
        say(fd, "HTTP/1.1 200 O\x1bK\r\nContent-Type: text/\x1b[0mplain\r\n\r\n");
        static const char line[] = "0123456789abcde\n";
        while (send(fd, line, sizeof line - 1, MSG_NOSIGNAL) > 0) {
        }
    } else if (strcmp(path, "/silent") == 0) {
        char byte;
        (void)recv(fd, &byte, 1, 0); // until the client goes
    } else if (strcmp(path, "/request") == 0) {
        say(fd, "HTTP/1.1 200 OK\r\n\r\n");
        say(fd, request);
    } else {
        say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }
}

static int set_up(void **state) {
    (void)state;
    server = loopback_start(handle, NULL);
    other = loopback_start(handle, NULL);
    port = loopback_port(server);
    char list[200];
    (void)snprintf(
        list,
        sizeof list,
        "127.0.0.1:%u,listed.test:%u,public.test",
        port,
        (unsigned)loopback_port(other)
    );
    assert_true(is_ok(network_rules_parse(&rules, view_of_text(list), NULL)));
    const struct http_client_options options = {
        .rules = rules, .decided = note, .resolve = resolve};
    assert_true(is_ok(http_client_open(&client, &options, NULL)));
    resolved = allowed = refused = 0;
    buffer_init(&answer.body, (size_t)1 << 20);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    buffer_deinit(&answer.body);
    http_client_cleanup(&client);
    network_rules_cleanup(&rules);
    loopback_stop(server);
    loopback_stop(other);
    return 0;
}

static void fetch_with(const char *url, size_t bytes_max, int64_t time_ms_max, int cancel_fd) {
    const struct tool_fetch_request request = {
        .url = url, .bytes_max = bytes_max, .time_ms_max = time_ms_max, .cancel_fd = cancel_fd};
    struct error error = {0};
    if (is_failed(http_client_fetch(client, &request, &answer, &error))) {
        fail_msg("%s: %s", url, error.message);
    }
}

/* A path at the listed server. */
static void fetch(const char *path) {
    char url[300];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u%s", port, path);
    fetch_with(url, 1 << 16, 10000, -1);
}

static void expect_end(enum tool_fetch_end end, const char *words) {
    if (answer.end != end || strstr(answer.reason, words) == NULL) {
        fail_msg("end %d, '%s'; not %d, '%s'", (int)answer.end, answer.reason, (int)end, words);
    }
}

static void document_comes_with_its_facts(void **state) {
    (void)state;
    fetch("/page");
    expect_end(TOOL_FETCH_DONE, "");
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.content_type, "text/html; charset=utf-8");
    assert_string_equal(buffer_text(&answer.body), "<p>text</p>");
    assert_false(answer.is_cut);
    fetch("/no-such");
    expect_end(TOOL_FETCH_DONE, "");
    assert_int_equal(answer.status, 404);
    assert_string_equal(answer.content_type, "");
    fetch("/created");
    assert_int_equal(answer.status, 201);
    assert_string_equal(buffer_text(&answer.body), "made");
    fetch("/relative");
    expect_end(TOOL_FETCH_DONE, "");
    assert_string_equal(buffer_text(&answer.body), "<p>text</p>");
    assert_non_null(strstr(answer.url, "/page"));
    assert_int_equal(allowed, 5);
    assert_int_equal(refused, 0);
}

static void proxies_and_passwords_of_the_environment_are_not_used(void **state) {
    (void)state;
    char url[100];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", (unsigned)loopback_port(other));
    static const char *const names[] = {"http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_int_equal(setenv(names[i], url, 1), 0);
    }
    fetch("/request");
    expect_end(TOOL_FETCH_DONE, "");
    assert_int_equal(loopback_accepted(other), 0);
    assert_null(strstr(buffer_text(&answer.body), "Authorization"));
    assert_null(strstr(buffer_text(&answer.body), "Cookie"));
    assert_non_null(strstr(buffer_text(&answer.body), "User-Agent: hearth/"));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_int_equal(unsetenv(names[i]), 0);
    }
}

static void unlisted_addresses_are_refused_before_anything_is_sent(void **state) {
    (void)state;
    static const char *const urls[] = {
        "https://evil.test/",
        "https://secret-data.evil.test/",
        "http://127.0.0.1:1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "https://127.0.0.1/",
        "http://public.test/", // a name without TLS
        "https://public.test:8443/",
        "file:///etc/passwd",
        "ftp://public.test/",
    };
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        fetch_with(urls[i], 1 << 16, 10000, -1);
        if (answer.end != TOOL_FETCH_REFUSED && answer.end != TOOL_FETCH_FAILED) {
            fail_msg("%s was fetched", urls[i]);
        }
        assert_true(strlen(answer.reason) > 0);
    }
    assert_int_equal(resolved, 0);
    assert_int_equal(allowed, 0);
    assert_true(refused >= 7);
    char url[200];
    (void)snprintf(url, sizeof url, "http://user:word@127.0.0.1:%u/page", port);
    fetch_with(url, 1 << 16, 10000, -1);
    expect_end(TOOL_FETCH_FAILED, "user");
    fetch_with("not a url", 1 << 16, 10000, -1);
    expect_end(TOOL_FETCH_FAILED, "malformed");
    assert_int_equal(loopback_accepted(server), 0);
}

static void listed_name_that_leads_to_loopback_is_refused(void **state) {
    (void)state;
    char url[200];
    (void)snprintf(url, sizeof url, "https://listed.test:%u/", (unsigned)loopback_port(other));
    fetch_with(url, 1 << 16, 10000, -1);
    expect_end(TOOL_FETCH_REFUSED, "public internet");
    assert_int_equal(resolved, 1);
    assert_int_equal(loopback_accepted(other), 0);
}

static void each_redirection_is_decided(void **state) {
    (void)state;
    static const struct {
        const char *path;
        enum tool_fetch_end end;
        const char *words;
    } cases[] = {
        {"/away", TOOL_FETCH_REFUSED, "evil.test:443 is not on the allow-list"},
        {"/other", TOOL_FETCH_REFUSED, "is not on the allow-list"},
        {"/name", TOOL_FETCH_REFUSED, "is not on the allow-list"},
        {"/file", TOOL_FETCH_FAILED, ""},
        {"/gopher", TOOL_FETCH_REFUSED, "gopher"},
        {"/loop", TOOL_FETCH_FAILED, "redirections"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        fetch(cases[i].path);
        expect_end(cases[i].end, cases[i].words);
        assert_int_equal(answer.body.length, 0);
    }
    assert_int_equal(resolved, 0);
    assert_int_equal(loopback_accepted(other), 0);
}

static void size_and_headers_are_bounded(void **state) {
    (void)state;
    char url[200];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/endless", port);
    fetch_with(url, 100, 10000, -1);
    expect_end(TOOL_FETCH_DONE, "");
    assert_true(answer.is_cut);
    assert_int_equal(answer.body.length, 100);
    assert_string_equal(answer.content_type, "text/?[0mplain");
    fetch_with(url, (size_t)2 << 20, 10000, -1); // more than the buffer's ceiling
    assert_true(answer.is_cut && answer.body.length <= (size_t)1 << 20);
    fetch("/headers");
    assert_int_equal(answer.end, TOOL_FETCH_FAILED);
}

static void time_is_bounded_and_cancel_ends_at_once(void **state) {
    (void)state;
    char url[200];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/silent", port);
    int64_t begin = now_ms();
    fetch_with(url, 100, 300, -1);
    expect_end(TOOL_FETCH_TIMEOUT, "in time");
    assert_true(now_ms() - begin >= 300 && now_ms() - begin < 20000);
    int cancel = eventfd(1, EFD_CLOEXEC);
    begin = now_ms();
    fetch_with(url, 100, 60000, cancel);
    assert_int_equal(answer.end, TOOL_FETCH_CANCELLED);
    assert_true(now_ms() - begin < 20000);
    close(cancel);
}

/* ---- TLS ------------------------------------------------------------------------------------ */

static char folder[64];

static bool make_certificate(void) {
    char text[1024];
    (void)snprintf(folder, sizeof folder, "/var/tmp/hearth-tls-XXXXXX");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(
        text,
        sizeof text,
        "cd '%s' && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
        "-keyout key -out certificate -days 2 -subj /CN=tls.test "
        "-addext subjectAltName=DNS:tls.test >/dev/null 2>&1",
        folder
    );
    return system(text) == 0;
}

static pid_t start_tls(unsigned tls_port) {
    char certificate[100];
    char key[100];
    char where[32];
    (void)snprintf(certificate, sizeof certificate, "%s/certificate", folder);
    (void)snprintf(key, sizeof key, "%s/key", folder);
    (void)snprintf(where, sizeof where, "127.0.0.1:%u", tls_port);
    const char *const words[] = {
        "openssl",
        "s_server",
        "-accept",
        where,
        "-cert",
        certificate,
        "-key",
        key,
        "-www",
        "-quiet",
        NULL};
    char *const *arguments = NULL;
    memcpy(&arguments, &(const char *const *){words}, sizeof arguments);
    pid_t pid = -1;
    assert_int_equal(posix_spawnp(&pid, "openssl", NULL, NULL, arguments, environ), 0);
    return pid;
}

static void certificate_must_fit_the_name(void **state) {
    if (!make_certificate()) {
        (void)printf("SKIPPED: openssl cannot make a certificate\n");
        skip();
    }
    (void)state;
    struct loopback_server *free_port = loopback_start(handle, NULL);
    unsigned tls_port = loopback_port(free_port);
    loopback_stop(free_port);
    pid_t pid = start_tls(tls_port);
    char list[200];
    char file[100];
    char url[2][100];
    (void)snprintf(
        list, sizeof list, "tls.test:%u,wrong.test:%u,127.0.0.1:%u", tls_port, tls_port, tls_port
    );
    (void)snprintf(file, sizeof file, "%s/certificate", folder);
    (void)snprintf(url[0], sizeof url[0], "https://tls.test:%u/", tls_port);
    (void)snprintf(url[1], sizeof url[1], "https://wrong.test:%u/", tls_port);
    network_rules_cleanup(&rules);
    assert_true(is_ok(network_rules_parse(&rules, view_of_text(list), NULL)));
    struct http_client_options options = {.rules = rules, .resolve = resolve};
    for (int trusted = 0; trusted < 2; trusted++) {
        http_client_cleanup(&client);
        options.authorities = trusted != 0 ? file : NULL;
        assert_true(is_ok(http_client_open(&client, &options, NULL)));
        int64_t until = now_ms() + 60000;
        do { // until the server listens
            fetch_with(url[0], 1 << 16, 10000, -1);
        } while (strstr(answer.reason, "connect") != NULL && now_ms() < until);
        if (trusted != 0) {
            expect_end(TOOL_FETCH_DONE, "");
            assert_int_equal(answer.status, 200);
            fetch_with(url[1], 1 << 16, 10000, -1);
        }
        assert_int_equal(answer.end, TOOL_FETCH_FAILED);
        assert_non_null(strstr(answer.reason, trusted != 0 ? "wrong.test" : "certificate"));
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    char text[200];
    (void)snprintf(text, sizeof text, "rm -rf '%s'", folder);
    assert_int_equal(system(text), 0);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(document_comes_with_its_facts),
        TEST(proxies_and_passwords_of_the_environment_are_not_used),
        TEST(unlisted_addresses_are_refused_before_anything_is_sent),
        TEST(listed_name_that_leads_to_loopback_is_refused),
        TEST(each_redirection_is_decided),
        TEST(size_and_headers_are_bounded),
        TEST(time_is_bounded_and_cancel_ends_at_once),
        TEST(certificate_must_fit_the_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
