/* Process, reading side and request side of tool_mcp_server.h. */
#include "tool_mcp_server.h"

#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#define WALL_MS          INT64_C(86400000) /* the sandbox's longest; then it is started again */
#define OUTPUT_TOTAL_MIB (UINT64_C(1) << 20)
#define PING_MS          2000
#define LOST_GRACE_MS    1000 /* for an answer behind a line that was too large */
#define KILL_WAIT_MS     5000
#define STDERR_LINE_MAX  ((size_t)1024)
#define STDERR_LOGGED    1000 /* lines of one server */
#define PROTOCOL         "2025-06-18"
#define METHOD_MISSING   (-32601)

static void lock(struct mcp_server *server) {
    int status = pthread_mutex_lock(&server->mutex);
    ASSERT(status == 0);
}

static void unlock(struct mcp_server *server) {
    int status = pthread_mutex_unlock(&server->mutex);
    ASSERT(status == 0);
}

/* ---- the server's thread -------------------------------------------------------------------- */

/* Under the lock. */
static void stop_for(struct mcp_server *server, const char *why) {
    if (server->violation[0] == '\0') {
        (void)snprintf(server->violation, sizeof server->violation, "%s", why);
        pump_stop(server->pump);
        pump_stop(server->pump);
    }
}

/* A message that answers nothing. Under the lock. */
static void count_unasked(struct mcp_server *server, size_t bytes) {
    server->unasked += 1;
    server->unasked_bytes += bytes;
    if (server->unasked > MCP_UNASKED_MAX || server->unasked_bytes > MCP_UNASKED_BYTES) {
        stop_for(server, "it floods us with messages that nobody asked for");
    }
}

/* Under the lock. What does not fit the queue of a server that does not read is not sent. */
static void answer_request(struct mcp_server *server, const struct mcp_message *message) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, sizeof server->roots + 2 * MCP_ID_BYTES_MAX + 1024);
    result written;
    if (view_equals_text(message->method, "ping")) {
        written = mcp_write_result(&line, message->request_id, view_of_text("{}"), NULL);
    } else if (view_equals_text(message->method, "roots/list")) {
        written = mcp_write_result(&line, message->request_id, view_of_text(server->roots), NULL);
    } else { // sampling, elicitation and what we do not know
        const char *why = "this client does not do that";
        written = mcp_write_error(&line, message->request_id, METHOD_MISSING, why, NULL);
    }
    if (is_ok(written)) {
        result_ignore(pump_write(server->pump, buffer_view(&line), NULL));
    }
}

static void take_message(struct mcp_server *server, struct mcp_message *message, size_t bytes) {
    server->is_suspect = false;
    bool is_answer = message->kind == MCP_RESULT || message->kind == MCP_ERROR;
    if (is_answer && message->id == server->waiting_id && !server->has_answer) {
        server->answer = *message;
        server->has_answer = true;
        server->unasked = 0;
        server->unasked_bytes = 0;
        memset(message, 0, sizeof *message);
        return;
    }
    count_unasked(server, bytes); // late answers and notifications are of no use here
    if (message->kind == MCP_REQUEST) {
        answer_request(server, message);
    }
}

static bool is_blank(struct view line) {
    for (size_t i = 0; i < line.length; i++) {
        if (line.data[i] != ' ' && line.data[i] != '\t' && line.data[i] != '\r') {
            return false;
        }
    }
    return true;
}

static void take_line(void *context, struct view line, bool is_overlong) {
    struct mcp_server *server = context;
    struct mcp_message message = {0};
    if (!is_overlong && is_blank(line)) {
        return;
    }
    bool is_lost = is_overlong || is_failed(mcp_message_parse(line, &message, NULL)) ||
                   message.kind == MCP_TOO_LARGE; // or no memory for it
    lock(server);
    if (is_lost) {
        server->answer_is_lost = server->waiting_id != 0;
        count_unasked(server, MCP_LINE_BYTES_MAX);
    } else if (message.kind == MCP_INVALID) { // a greeting or log line on the wrong stream
        server->bad_lines += 1;
        count_unasked(server, line.length);
        if (server->bad_lines > MCP_BAD_LINES_MAX) {
            stop_for(server, "it writes lines that are no messages of the protocol");
        }
    } else {
        take_message(server, &message, line.length);
    }
    unlock(server);
    mcp_message_deinit(&message);
}

/* npm ends with the place of its log, and names the cause in its first lines. */
static bool is_of_npm(const char *line) {
    return strncmp(line, "npm err", 7) == 0 || strncmp(line, "npm ERR", 7) == 0;
}

/* Keeps the last line of its standard error, harmless, or one that names an error: runtimes print more
 * behind it. Under the lock. */
static void take_error_line(struct mcp_server *server, unsigned *logged) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, 8 * STDERR_LINE_MAX);
    if (!is_blank(buffer_view(&server->error_line)) &&
        is_ok(sandbox_sanitise(buffer_view(&server->error_line), 200, &line, NULL))) {
        const char *found = buffer_text(&line);
        bool names_error = strstr(found, "rror") != NULL || is_of_npm(found);
        bool is_later = is_of_npm(found) && is_of_npm(server->last_words);
        if ((names_error && !is_later) ||
            (strstr(server->last_words, "rror") == NULL && !is_of_npm(server->last_words))) {
            (void)snprintf( // cut on purpose; a torn character is mended by who shows it
                server->last_words,
                sizeof server->last_words,
                "%.200s",
                buffer_text(&line)
            );
        }
        if (*logged < STDERR_LOGGED) {
            *logged += 1;
            const char *text = buffer_text(&line);
            log_event(LOG_DEBUG, "mcp", "stderr", "server=%s line=%.200s", server->name, text);
        }
    }
    buffer_clear(&server->error_line);
}

static void take_error_bytes(struct mcp_server *server, struct view bytes) {
    static _Thread_local unsigned logged;
    lock(server);
    for (size_t i = 0; i < bytes.length; i++) {
        if (bytes.data[i] == '\n') {
            take_error_line(server, &logged);
        } else if (server->error_line.length < STDERR_LINE_MAX) {
            result_ignore(buffer_append_byte(&server->error_line, bytes.data[i], NULL));
        }
    }
    unlock(server);
}

static void take_output(void *context, enum sandbox_stream stream, struct view bytes) {
    struct mcp_server *server = context;
    if (stream == SANDBOX_STDERR) {
        take_error_bytes(server, bytes);
    } else if (is_failed(mcp_reader_take(&server->reader, bytes, take_line, server, NULL))) {
        lock(server);
        stop_for(server, "no memory for a line of it");
        unlock(server);
    }
}

/* ---- process -------------------------------------------------------------------------------- */

bool mcp_server_is_running(struct mcp_server *server) {
    return server->pump != NULL && !pump_has_ended(server->pump);
}

#define POLICY_ITEMS_MAX 128

static result start_process(struct mcp_server *server, struct error *error) {
    const struct tool_context_options *options = &server->context->options;
    if (!server->is_trusted && options->sandbox == NULL) {
        FAIL(error, UNSUPPORTED, "there is no sandbox for it to run in");
    }
    struct sandbox_policy policy =
        options->policy != NULL ? *options->policy : sandbox_policy_default(options->workspace);
    const char *environment[POLICY_ITEMS_MAX];
    const char *read_only[POLICY_ITEMS_MAX];
    size_t common = server->is_trusted ? 0 : policy.environment_count;
    size_t shown = server->is_trusted ? 0 : policy.read_only_count;
    if (common + server->environment_count > POLICY_ITEMS_MAX ||
        shown + server->read_only_count > POLICY_ITEMS_MAX) {
        FAIL(error, LIMIT, "more than %d variables or paths", POLICY_ITEMS_MAX);
    }
    for (size_t i = 0; i < common + server->environment_count; i++) {
        environment[i] = i < common ? policy.environment[i] : server->environment[i - common];
    }
    for (size_t i = 0; i < shown + server->read_only_count; i++) {
        read_only[i] = i < shown ? policy.read_only[i] : server->read_only[i - shown];
    }
    policy.environment = environment;
    policy.environment_count = common + server->environment_count;
    policy.read_only = read_only;
    policy.read_only_count = shown + server->read_only_count;
    policy.workspace = options->workspace;
    policy.wall_ms = WALL_MS;
    policy.output_kib = 1; // read as it comes
    policy.output_total_mib = OUTPUT_TOTAL_MIB;
    policy.merge_output = false;
    policy.has_input = true;
    policy.on_output = take_output;
    policy.on_output_context = server;
    struct sandbox *sandbox = server->is_trusted ? NULL : options->sandbox;
    const struct pump_options pump = {sandbox, &policy, server->command};
    lock(server); // until the pump is known, its thread waits with what it reads
    result started = pump_start(&pump, &server->pump, error);
    unlock(server);
    return started;
}

void mcp_server_ask_to_stop(struct mcp_server *server) {
    if (server->pump != NULL) {
        pump_end_input(server->pump);
    }
}

void mcp_server_stop(struct mcp_server *server, int64_t grace_ms) {
    if (server->pump == NULL) {
        return;
    }
    pump_end_input(server->pump);
    if (!pump_wait(server->pump, grace_ms)) {
        pump_stop(server->pump);
        pump_stop(server->pump);
        (void)pump_wait(server->pump, KILL_WAIT_MS);
    }
    lock(server);
    if (server->violation[0] == '\0' && pump_has_ended(server->pump)) {
        const struct sandbox_outcome *outcome = pump_outcome(server->pump);
        char *out = server->violation;
        size_t bytes = sizeof server->violation;
        if (outcome->end == SANDBOX_EXITED) {
            const char *separator = server->last_words[0] == '\0' ? "" : ": ";
            int status = outcome->exit_status;
            (void)snprintf( // cut on purpose
                out,
                bytes,
                "it ended with status %d%s%.200s",
                status,
                separator,
                server->last_words
            );
        } else {
            (void)snprintf(out, bytes, "it was ended: %.200s", outcome->reason);
        }
    }
    unlock(server);
    pump_destroy(server->pump);
    server->pump = NULL;
}

void mcp_server_last_words(struct mcp_server *server, char out[MCP_WORDS_BYTES]) {
    lock(server);
    const char *words = server->violation[0] != '\0' ? server->violation : server->last_words;
    (void)snprintf(out, MCP_WORDS_BYTES, "%s", words);
    unlock(server);
}

/* ---- requests ------------------------------------------------------------------------------- */

static result send_line(struct mcp_server *server, const struct buffer *line, enum mcp_end *end) {
    result sent = pump_write(server->pump, buffer_view(line), NULL);
    if (sent.code == RESULT_IO) {
        *end = MCP_ENDED;
    } else if (sent.code == RESULT_LIMIT) { // it has not read for megabytes
        *end = MCP_TIMED_OUT;
    }
    return sent.code == RESULT_MEMORY ? sent : OK;
}

/* Takes the answer, when it is there. */
static bool look(struct mcp_server *server, struct mcp_message *answer, bool *is_lost) {
    lock(server);
    bool is_there = server->has_answer;
    if (is_there) {
        *answer = server->answer;
        memset(&server->answer, 0, sizeof server->answer);
    }
    *is_lost = server->answer_is_lost;
    unlock(server);
    return is_there;
}

static result wait_for_answer(
    struct mcp_server *server,
    int64_t deadline_ms,
    enum mcp_end *end,
    struct mcp_message *answer,
    struct error *error
) {
    struct tool_context *context = server->context;
    int64_t lost_at_ms = INT64_MAX; // what was lost may have been something else
    for (;;) {
        pump_clear_notice(server->pump); // first: what comes now is noticed again
        bool has_ended = pump_has_ended(server->pump);
        bool is_lost = false;
        if (look(server, answer, &is_lost)) {
            *end = MCP_ANSWERED;
            return OK;
        }
        int64_t now = clock_monotonic_ms(&context->options.clock);
        if (is_lost && lost_at_ms == INT64_MAX) {
            lost_at_ms = now + LOST_GRACE_MS;
        }
        int64_t left = (lost_at_ms < deadline_ms ? lost_at_ms : deadline_ms) - now;
        bool is_cancelled = atomic_load_explicit(&context->cancelled, memory_order_acquire);
        if (has_ended || is_cancelled || left <= 0) {
            *end = has_ended      ? MCP_ENDED
                   : is_cancelled ? MCP_CANCELLED
                   : is_lost      ? MCP_LOST
                                  : MCP_TIMED_OUT;
            return OK;
        }
        struct pollfd fds[] = {
            {pump_notice_fd(server->pump), POLLIN, 0}, {context->cancel_fd, POLLIN, 0}};
        if (poll(fds, COUNT_OF(fds), left > INT32_MAX ? INT32_MAX : (int)left) < 0 &&
            errno != EINTR) {
            int number = errno;
            FAIL_FOREIGN(error, IO, number, "poll: %s", strerror(number));
        }
    }
}

/* Tells it that nobody waits any more. */
static void abandon(struct mcp_server *server, int64_t id, const char *reason) {
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, 512);
    char params[160];
    (void)snprintf(
        params, sizeof params, "{\"requestId\":%lld,\"reason\":\"%s\"}", (long long)id, reason
    );
    if (is_ok(mcp_write_notification(&line, "notifications/cancelled", view_of_text(params), NULL)
        )) {
        result_ignore(pump_write(server->pump, buffer_view(&line), NULL)); // a courtesy
    }
}

result mcp_server_request(
    struct mcp_server *server,
    const char *method,
    struct view params,
    int64_t deadline_ms,
    enum mcp_end *end,
    struct mcp_message *answer,
    struct error *error
) {
    if (server->pump == NULL) {
        *end = MCP_ENDED;
        return OK;
    }
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, PUMP_INPUT_BYTES_MAX);
    int64_t id = ++server->last_id;
    TRY(mcp_write_request(&line, id, method, params, error));
    lock(server);
    server->waiting_id = id;
    server->has_answer = false;
    server->answer_is_lost = false;
    unlock(server);
    *end = MCP_ANSWERED;
    result done = send_line(server, &line, end);
    if (is_ok(done) && *end == MCP_ANSWERED) {
        done = wait_for_answer(server, deadline_ms, end, answer, error);
    }
    lock(server);
    server->waiting_id = 0;
    if (server->has_answer && *end != MCP_ANSWERED) { // it came just too late
        mcp_message_deinit(&server->answer);
    }
    server->has_answer = false;
    server->is_suspect = server->is_suspect || *end == MCP_TIMED_OUT || *end == MCP_CANCELLED;
    unlock(server);
    if (is_ok(done) && (*end == MCP_TIMED_OUT || *end == MCP_CANCELLED)) {
        abandon(server, id, *end == MCP_TIMED_OUT ? "timeout" : "cancelled by the user");
    }
    return done;
}

result mcp_server_check(struct mcp_server *server, bool *answers, struct error *error) {
    *answers = mcp_server_is_running(server);
    lock(server);
    bool is_suspect = server->is_suspect;
    unlock(server);
    if (!*answers || !is_suspect) {
        return OK;
    }
    struct mcp_message answer = {0};
    enum mcp_end end = MCP_ENDED;
    int64_t until = clock_monotonic_ms(&server->context->options.clock) + PING_MS;
    TRY(mcp_server_request(server, "ping", view_of(NULL, 0), until, &end, &answer, error));
    mcp_message_deinit(&answer);
    *answers = end == MCP_ANSWERED || end == MCP_CANCELLED;
    return OK;
}

/* ---- handshake ------------------------------------------------------------------------------ */

static result fail_start(struct mcp_server *server, enum mcp_end end, struct error *error) {
    char words[MCP_WORDS_BYTES];
    if (end == MCP_TIMED_OUT) {
        FAIL(error, TIMEOUT, "it did not answer within %d s", TOOL_MCP_START_MS / 1000);
    }
    if (end == MCP_CANCELLED) {
        FAIL(error, CANCELLED, "cancelled");
    }
    if (end == MCP_LOST) {
        FAIL(error, IO, "its answer was over %zu bytes", MCP_LINE_BYTES_MAX);
    }
    mcp_server_stop(server, MCP_LAST_WORDS_MS);
    mcp_server_last_words(server, words);
    FAIL(error, IO, "%s", words);
}

/* "name version" in plain letters. */
static void take_title(struct mcp_server *server, struct json_value value) {
    static const char *const members[] = {"name", "version"};
    struct json_value about = json_get(value, "serverInfo");
    size_t used = 0;
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        struct view text = {NULL, 0};
        (void)json_as_string(json_get(about, members[i]), &text);
        for (size_t j = 0; j < text.length && j < 60 && used + 2 < sizeof server->title; j++) {
            bool is_shown = text.data[j] >= 0x20 && text.data[j] < 0x7f;
            memcpy(
                &server->title[used++], is_shown ? &text.data[j] : (const unsigned char *)"?", 1
            );
        }
        if (i == 0) {
            server->title[used++] = ' ';
        }
    }
    server->title[used] = '\0';
}

static result
take_greeting(struct mcp_server *server, const struct mcp_message *answer, struct error *error) {
    static const char *const known[] = {PROTOCOL, "2025-03-26", "2024-11-05"};
    struct view version = {NULL, 0};
    if (answer->kind != MCP_RESULT ||
        !json_as_string(json_get(answer->result, "protocolVersion"), &version)) {
        FAIL(error, UNSUPPORTED, "it refuses to speak protocol " PROTOCOL);
    }
    bool is_known = false;
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        is_known = is_known || view_equals_text(version, known[i]);
    }
    if (!is_known) {
        FAIL(error, UNSUPPORTED, "it speaks another protocol than " PROTOCOL);
    }
    struct json_value capabilities = json_get(answer->result, "capabilities");
    server->has_tools = json_type(json_get(capabilities, "tools")) == JSON_OBJECT;
    take_title(server, answer->result);
    return OK;
}

static result shake_hands(struct mcp_server *server, struct error *error) {
    static const char params[] =
        "{\"protocolVersion\":\"" PROTOCOL "\",\"capabilities\":{\"roots\":{}},"
        "\"clientInfo\":{\"name\":\"hearth\",\"version\":\"1\"}}";
    int64_t until = clock_monotonic_ms(&server->context->options.clock) + TOOL_MCP_START_MS;
    struct mcp_message answer = {0};
    enum mcp_end end = MCP_ENDED;
    TRY(mcp_server_request(server, "initialize", view_of_text(params), until, &end, &answer, error)
    );
    if (end != MCP_ANSWERED) {
        return fail_start(server, end, error);
    }
    result taken = take_greeting(server, &answer, error);
    mcp_message_deinit(&answer);
    TRY(taken);
    CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
    buffer_init(&line, 512);
    TRY(mcp_write_notification(&line, "notifications/initialized", view_of(NULL, 0), error));
    TRY(send_line(server, &line, &end));
    return end == MCP_ANSWERED ? OK : fail_start(server, end, error);
}

result mcp_server_start(struct mcp_server *server, struct error *error) {
    mcp_server_stop(server, 0);
    if (server->starts >= MCP_STARTS_MAX) {
        char words[MCP_WORDS_BYTES];
        mcp_server_last_words(server, words);
        FAIL(
            error, LIMIT, "it was started %u times already; the last time %s", server->starts, words
        );
    }
    server->starts += 1;
    lock(server);
    server->violation[0] = '\0';
    server->last_words[0] = '\0';
    server->bad_lines = server->unasked = 0;
    server->unasked_bytes = 0;
    server->is_suspect = false;
    buffer_clear(&server->error_line);
    unlock(server);
    mcp_reader_deinit(&server->reader);
    mcp_reader_init(&server->reader);
    result started = start_process(server, error);
    if (is_ok(started)) {
        started = shake_hands(server, error);
    }
    if (is_failed(started)) {
        mcp_server_stop(server, 0);
    }
    return started;
}
