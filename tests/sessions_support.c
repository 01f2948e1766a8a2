/* Support of the session store's tests; see the header. */
#include "sessions_support.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

struct error must_error;

void join(char *out, const char *folder, const char *name) {
    int length = snprintf(out, PATH_BYTES, "%.400s/%s", folder, name);
    assert_true(length > 0 && length < PATH_BYTES);
}

int folder_setup(void **state) {
    struct folder *folder = calloc(1, sizeof *folder);
    assert_non_null(folder);
    const char *base = getenv("TMPDIR");
    join(folder->path, base == NULL ? "/tmp" : base, "hearth-sessions-XXXXXX");
    assert_non_null(mkdtemp(folder->path));
    join(folder->state, folder->path, "state");
    join(folder->database, folder->state, "sessions.db");
    join(folder->lock, folder->state, "lock");
    *state = folder;
    return 0;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

int folder_teardown(void **state) {
    struct folder *folder = *state;
    (void)nftw(folder->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(folder);
    return 0;
}

/* Each reading is one millisecond later, so that rows have an order. */
static int64_t ticking_ms(void *context) {
    int64_t *now = context;
    return (*now)++;
}

static int64_t ticks = 1790000000000;

result open_store(
    const struct folder *folder,
    enum session_mode mode,
    struct session_store **out,
    struct error *error
) {
    struct session_store_options options = {
        folder->state, mode, 100, "test", clock_real(), false, false};
    options.clock.wall_ms = ticking_ms;
    options.clock.context = &ticks;
    return session_store_open(out, &options, error);
}

struct session_store *open_or_fail(const struct folder *folder, enum session_mode mode) {
    struct session_store *store = NULL;
    struct error error = {0};
    result status = open_store(folder, mode, &store, &error);
    if (is_failed(status)) {
        fail_msg("%s", error.message);
    }
    return store;
}

#define SETTINGS "{\"top_k\":40,\"stop\":[\"a\\nb\"]}"
const struct session_sampler sampler = {
    .seed = UINT64_MAX - 5,
    .temperature = 0.8,
    .top_p = 0.95,
    .effort = 50,
    .settings = {(const unsigned char *)SETTINGS, sizeof SETTINGS - 1},
};

struct session_id make_session(struct session_store *store, const char *task) {
    struct session_begin begin = {0};
    begin.task = view_of_text(task);
    begin.workspace = view_of_text("/srv/repo");
    begin.model = view_of_text("examples/mini/model");
    begin.model_digest = view_of_text("sha256:00ff");
    begin.backend = view_of_text("cpu");
    begin.numerics_version = view_of_text("1");
    begin.program_version = view_of_text("0.1.0");
    begin.commit_before = view_of_text("abc");
    begin.window_mode = view_of_text("exact");
    begin.sampler = sampler;
    begin.time_ms_max = 600000;
    begin.tokens_max = 4096;
    struct session_id id = {""};
    MUST(session_create(store, &begin, &id, &must_error));
    return id;
}

struct session_id make_agent(struct session_store *store, const struct session_id *session) {
    struct session_agent_begin begin = {0};
    begin.session = *session;
    begin.name = view_of_text("main");
    begin.tools = view_of_text("[{\"name\":\"shell\"}]");
    begin.sampler = sampler;
    struct session_id id = {""};
    MUST(session_agent_append(store, &begin, &id, &must_error));
    return id;
}

int64_t make_turn(struct session_store *store, const struct session_id *agent) {
    int64_t turn = 0;
    MUST(session_turn_start(store, agent, &turn, &must_error));
    return turn;
}

struct session_turn_end turn_end(int64_t prompt, int64_t evaluated, int64_t reused) {
    struct session_turn_end end = {0};
    end.cache.prompt_tokens = prompt;
    end.cache.evaluated_tokens = evaluated;
    end.cache.reused_tokens = reused;
    end.cache.rebuilt_tokens = 7;
    end.cache.hit_position = reused;
    end.cache.miss_reason = view_of_text("diverged");
    end.cache.window_source = view_of_text("live");
    end.cache.lineage = view_of_text("00aa");
    end.cache.block_lineage = view_of_text("00bb");
    end.cache.replays = view_of_text("encoder@64 decoder@90");
    end.cache.rebuilt_from = 3;
    end.cache.miss_token = 61;
    end.cache.restored_host = 2;
    end.cache.restored_disk = 4;
    end.cache.decoder_lineage = view_of_text("0");
    end.cache.backend = view_of_text("cpu");
    end.cache.numerics_version = view_of_text("1");
    end.sampler = sampler;
    end.output_tokens = 12;
    end.prefill_ms = 20;
    end.decode_ms = 30;
    end.stop_reason = view_of_text("stop");
    end.stop_detail = view_of_text("a\nb");
    end.drafted = 9;
    end.accepted = 5;
    end.preempted = 2;
    end.parent_seed = UINT64_MAX - 6;
    end.fork_index = 3;
    return end;
}

void append_message(struct session_store *store, int64_t turn, const char *role, int64_t call) {
    struct session_message_begin message = {0};
    message.turn = turn;
    message.role = view_of_text(role);
    message.text = view_of_text("half a character: \xE2\x82");
    message.call = call;
    if (strcmp(role, "assistant") == 0) {
        message.reasoning = view_of_text("Look at it.");
        message.calls = view_of_text("[{\"name\":\"shell\"}]");
    }
    MUST(session_message_append(store, &message, &must_error));
}

int64_t start_call(struct session_store *store, int64_t turn) {
    struct session_call_begin begin = {0};
    begin.turn = turn;
    begin.name = view_of_text("shell");
    begin.arguments = view_of_text("{\"command\": \"python3 tests.py\"}");
    begin.commit_before = view_of_text("abc");
    int64_t call = 0;
    MUST(session_call_start(store, &begin, &call, &must_error));
    return call;
}

const unsigned char raw_output[] = "raw\0bytes\xFF\n";
const size_t raw_output_bytes = sizeof raw_output - 1;

struct session_call_end call_end(void) {
    struct session_call_end end = {0};
    end.status = SESSION_CALL_OK;
    end.text = view_of_text("1 failed\n[exit 1]");
    end.output = view_of(raw_output, raw_output_bytes);
    end.output_bytes = 5000000000;
    end.output_gap_at = 4;
    end.text_is_truncated = true;
    end.has_exit_status = true;
    end.exit_status = 1;
    end.duration_ms = 41;
    end.commit_after = view_of_text("def");
    return end;
}

const int32_t token_ids[TOKEN_COUNT] = {0, 4095, -1, 3};
const float token_log_probabilities[TOKEN_COUNT] = {-0.5F, -1.25F, 0.0F, -30.0F};

/* One session with two turns, a call and a child agent. */
struct session_id record_session(struct session_store *store, const char *task) {
    struct session_id session = make_session(store, task);
    struct session_id agent = make_agent(store, &session);
    int64_t turn = make_turn(store, &agent);
    append_message(store, turn, "user", 0);
    MUST(session_batch_begin(store, &must_error));
    struct session_turn_end end = turn_end(100, 40, 60);
    MUST(session_turn_finish(store, turn, &end, &must_error));
    struct session_run_begin run = {
        turn, SESSION_RUN_OUTPUT, 100, TOKEN_COUNT, token_ids, token_log_probabilities};
    MUST(session_run_append(store, &run, &must_error));
    struct session_run_begin bare = {turn, SESSION_RUN_PROMPT, 0, 2, token_ids, NULL};
    MUST(session_run_append(store, &bare, &must_error));
    append_message(store, turn, "assistant", 0);
    MUST(session_batch_commit(store, &must_error));
    int64_t call = start_call(store, turn);
    struct session_call_end finished = call_end();
    MUST(session_call_finish(store, call, &finished, &must_error));
    int64_t second = make_turn(store, &agent);
    append_message(store, second, "tool", call);
    end = turn_end(120, 20, 100);
    MUST(session_turn_finish(store, second, &end, &must_error));
    struct session_agent_begin child = {0};
    child.session = session;
    child.parent = agent;
    child.name = view_of_text("child");
    struct session_id child_id = {""};
    MUST(session_agent_append(store, &child, &child_id, &must_error));
    struct session_end last = {0};
    last.status = SESSION_DONE;
    last.verdict = view_of_text("tests pass");
    last.stop_reason = view_of_text("answer");
    last.commit_after = view_of_text("def");
    MUST(session_finish(store, &session, &last, &must_error));
    return session;
}

struct swarm_fixture start_swarm(struct session_store *store) {
    struct swarm_fixture made = {.session = make_session(store, "Fix it together")};
    made.root = make_agent(store, &made.session);
    made.root_turn = make_turn(store, &made.root);
    append_message(store, made.root_turn, "user", 0);
    append_message(store, made.root_turn, "assistant", 0); // asks for one call
    struct session_turn_end end = turn_end(100, 40, 60);
    MUST(session_turn_finish(store, made.root_turn, &end, &must_error));
    made.root_call = start_call(store, made.root_turn);
    struct session_swarm_begin begin = {
        .root = made.root,
        .strategy = view_of_text("race"),
        .reason = view_of_text("there is a verifier"),
        .verifier = view_of_text("python3 tests.py"),
        .settings = view_of_text("{\"attempts\":2}"),
        .seed = UINT64_MAX - 1,
        .share = {1790000600000, 9000, 40, 8, SESSION_NO_LIMIT},
    };
    MUST(session_swarm_start(store, &begin, &made.swarm, &must_error));
    struct session_node_begin node = {
        .swarm = made.swarm,
        .agent =
            {.session = made.session,
             .parent = made.root,
             .name = view_of_text("fork-1"),
             .sampler = sampler,
             .fork_turn = made.root_turn},
        .kind = view_of_text("fork"),
        .brief = view_of_text("Fix a.py"),
        .workspace = view_of_text("/srv/copies/1"),
        .commit_before = view_of_text("abc"),
        .share = {1790000500000, 4000, 20, 2, 1 << 20},
    };
    MUST(session_node_start(store, &node, &made.a, &must_error));
    node.agent.name = view_of_text("helper");
    node.agent.fork_turn = 0;
    node.kind = view_of_text("spawn");
    node.brief = view_of_text("Fix b.py \xE2\x82"); // need not be UTF-8
    MUST(session_node_start(store, &node, &made.b, &must_error));
    return made;
}

struct session_node_end node_end(void) {
    const struct session_node_end end = {
        .ending = view_of_text("answer"),
        .summary = view_of_text("a.py is fixed"),
        .detail = view_of_text("1 passed"),
        .commit_after = view_of_text("0123456789012345678901234567890123456789"),
        .changed_lines = 3,
        .turns = 2,
        .tokens = 700,
        .calls = 1,
    };
    return end;
}

int64_t send_mail(
    struct session_store *store,
    const struct session_id *from,
    const struct session_id *to,
    const char *text
) {
    const struct session_mail_begin begin = {*from, *to, view_of_text(text)};
    int64_t mail = 0;
    MUST(session_mail_send(store, &begin, &mail, &must_error));
    return mail;
}

int64_t deliver_mail(struct session_store *store, const struct session_id *to, int64_t mail) {
    MUST(session_batch_begin(store, &must_error));
    int64_t turn = make_turn(store, to);
    append_message(store, turn, "user", 0);
    MUST(session_mail_deliver(store, mail, turn, &must_error));
    MUST(session_batch_commit(store, &must_error));
    return turn;
}

struct session_id record_swarm(struct session_store *store) {
    struct swarm_fixture made = start_swarm(store);
    (void)deliver_mail(store, &made.b, send_mail(store, &made.a, &made.b, "Is b.py yours?"));
    int64_t late = send_mail(store, &made.a, &made.b, "and c.py?");
    (void)send_mail(store, &made.b, &made.root, "yes");
    struct session_share share = {1790000400000, 3000, 10, 1, SESSION_NO_LIMIT};
    MUST(session_node_change(store, &made.b, &share, 30, &must_error));
    struct session_node_end end = node_end();
    end.cut = view_of_text("its deadline");
    MUST(session_node_end(store, &made.b, &end, &must_error));
    MUST(session_batch_begin(store, &must_error));
    int64_t turn = make_turn(store, &made.a);
    append_message(store, turn, "tool", made.root_call);
    MUST(session_mail_return(store, late, turn, &must_error));
    MUST(session_batch_commit(store, &must_error));
    end = node_end();
    MUST(session_node_end(store, &made.a, &end, &must_error));
    const struct session_judgement passed = {
        view_of_text("passed"), view_of_text("pass"), view_of_text("2 passed"), true, 0.75};
    MUST(session_node_judge(store, &made.a, &passed, &must_error));
    const struct session_merge refused = {made.root, view_of_text(""), view_of_text("a.py\nb.py")};
    MUST(session_node_merge(store, &made.b, &refused, &must_error));
    const struct session_merge merged = {made.root, view_of_text("def"), view_of_text("")};
    MUST(session_node_merge(store, &made.a, &merged, &must_error));
    const struct session_swarm_end last = {
        view_of_text("passed"), made.a, true, view_of_text("def"), view_of_text("fork-1 passed")};
    MUST(session_swarm_finish(store, made.swarm, &last, &must_error));
    const struct session_end done = {.status = SESSION_DONE, .verdict = view_of_text("passed")};
    MUST(session_finish(store, &made.session, &done, &must_error));
    return made.session;
}

void assert_text(struct view value, const char *text) {
    if (!view_equals_text(value, text)) {
        fail_msg("'%.*s' instead of '%s'", VIEW_ARGUMENTS(value), text);
    }
}

void assert_refused(result status, const struct error *error, const char *part) {
    assert_int_equal(status.code, RESULT_INVALID_INPUT);
    if (strstr(error->message, part) == NULL) {
        fail_msg("'%s' lacks '%s'", error->message, part);
    }
}

int64_t count_rows(struct session_store *store, const char *sql) {
    int64_t count = -1;
    MUST(store_query_i64(store, sql, &count, &must_error));
    return count;
}

void write_file(const char *path, const void *data, size_t length) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, length), (ssize_t)length);
    assert_int_equal(close(fd), 0);
}

void read_whole(const char *path, struct buffer *out) {
    buffer_init(out, BUFFER_CEILING_DEFAULT);
    MUST(file_read(path, out, &must_error));
}
