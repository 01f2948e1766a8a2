/* The session store where things go wrong: every kind of broken state directory, migrations that
 * succeed and fail, and kill -9 in mid-append. */
#include "sessions_support.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void assert_open_fails(
    const struct folder *folder, enum session_mode mode, enum result_code code, const char *part
) {
    struct session_store *store = NULL;
    struct error error = {0};
    result status = open_store(folder, mode, &store, &error);
    assert_int_equal(status.code, code);
    assert_null(store);
    if (strstr(error.message, part) == NULL || strstr(error.message, folder->state) == NULL) {
        fail_msg("'%s' lacks '%s' or the path", error.message, part);
    }
}

static void foreign_file_is_named_and_left_alone(void **state) {
    const struct folder *folder = *state;
    static const char text[] =
        "This is a letter, not a database, and longer than a hundred bytes, so "
        "that a header could be in it; it has to survive.\n";
    assert_int_equal(mkdir(folder->state, 0700), 0);
    write_file(folder->database, text, sizeof text - 1);
    for (int round = 0; round < 2; round++) {
        assert_open_fails(folder, SESSION_READ_WRITE, RESULT_CORRUPT, "is not a database");
        assert_open_fails(folder, SESSION_READ_ONLY, RESULT_CORRUPT, "is not a database");
    }
    CLEANUP(buffer_deinit) struct buffer after = {NULL, 0, 0, 0};
    read_whole(folder->database, &after);
    assert_true(view_equals_text(buffer_view(&after), text));
}

static void run_sql(const char *path, const char *sql) {
    sqlite3 *database = NULL;
    assert_int_equal(sqlite3_open(path, &database), SQLITE_OK);
    assert_int_equal(sqlite3_exec(database, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(database), SQLITE_OK);
}

static void foreign_database_is_named_and_left_alone(void **state) {
    const struct folder *folder = *state;
    assert_int_equal(mkdir(folder->state, 0700), 0);
    run_sql(folder->database, "CREATE TABLE bookmark (url TEXT); PRAGMA application_id=7;");
    CLEANUP(buffer_deinit) struct buffer before = {NULL, 0, 0, 0};
    read_whole(folder->database, &before);
    assert_open_fails(folder, SESSION_READ_WRITE, RESULT_CORRUPT, "another program");
    assert_open_fails(folder, SESSION_READ_ONLY, RESULT_CORRUPT, "another program");
    CLEANUP(buffer_deinit) struct buffer after = {NULL, 0, 0, 0};
    read_whole(folder->database, &after);
    assert_true(view_equals(buffer_view(&before), buffer_view(&after)));
}

static void newer_schema_is_refused(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    (void)record_session(store, "a");
    session_store_cleanup(&store);
    run_sql(folder->database, "PRAGMA user_version=7;");
    assert_open_fails(folder, SESSION_READ_WRITE, RESULT_UNSUPPORTED, "schema version 7");
    assert_open_fails(folder, SESSION_READ_ONLY, RESULT_UNSUPPORTED, "newer");
}

/* Overwrites the last quarter of the pages: rows and indices, no schema. */
static void damage_pages(const char *path) {
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    read_whole(path, &file);
    for (size_t i = file.length / 4 * 3; i < file.length; i++) {
        file.data[i] = (unsigned char)(i * 31 + (i >> 8));
    }
    write_file(path, file.data, file.length);
}

static void damaged_pages_are_named_and_left_alone(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    for (int i = 0; i < 40; i++) {
        (void)record_session(store, "a");
    }
    session_store_cleanup(&store);
    damage_pages(folder->database);
    CLEANUP(buffer_deinit) struct buffer before = {NULL, 0, 0, 0};
    read_whole(folder->database, &before);
    store = open_or_fail(folder, SESSION_READ_ONLY);
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    assert_int_equal(session_list_load(store, NULL, &list, &error).code, RESULT_CORRUPT);
    assert_non_null(strstr(error.message, "damaged"));
    assert_int_equal(session_store_verify(store, &error).code, RESULT_CORRUPT);
    session_store_cleanup(&store);
    // After a crash the writer checks all pages, every time, until it succeeded once.
    write_file(folder->lock, "1 gone\n", 7);
    assert_open_fails(folder, SESSION_READ_WRITE, RESULT_CORRUPT, "damaged");
    CLEANUP(buffer_deinit) struct buffer lock = {NULL, 0, 0, 0};
    read_whole(folder->lock, &lock);
    assert_true(lock.length > 0);
    CLEANUP(buffer_deinit) struct buffer after = {NULL, 0, 0, 0};
    read_whole(folder->database, &after);
    assert_true(view_equals(buffer_view(&before), buffer_view(&after)));
}

static void truncated_database_never_crashes(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    const struct session_id ids[] = {record_session(store, "a"), record_swarm(store)};
    session_store_cleanup(&store);
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    read_whole(folder->database, &file);
    size_t refused = 0;
    for (size_t length = 0; length < file.length; length += 1000) {
        write_file(folder->database, file.data, length);
        struct error error = {0};
        result status = open_store(folder, SESSION_READ_ONLY, &store, &error);
        for (size_t i = 0; i < COUNT_OF(ids) && is_ok(status); i++) {
            CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
            status = session_load(store, &ids[i], NULL, &tree, &error);
        }
        refused += is_failed(status) ? 1 : 0;
        session_store_cleanup(&store);
    }
    assert_true(refused > 5);
}

/* A log torn anywhere, as a power loss leaves it: what remains is a prefix of the steps, in order. */
static void torn_log_gives_a_prefix_of_the_steps(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    (void)make_session(store, "0");
    CLEANUP(buffer_deinit) struct buffer database = {NULL, 0, 0, 0};
    CLEANUP(buffer_deinit) struct buffer log = {NULL, 0, 0, 0};
    for (int i = 1; i < 40; i++) {
        (void)make_session(store, "another");
    }
    char log_path[PATH_BYTES];
    char memory_path[PATH_BYTES];
    join(log_path, folder->state, "sessions.db-wal");
    join(memory_path, folder->state, "sessions.db-shm");
    read_whole(folder->database, &database);
    read_whole(log_path, &log);
    session_store_cleanup(&store);
    int64_t last = -1;
    for (size_t length = 0; length <= log.length; length += 7001) {
        write_file(folder->database, database.data, database.length);
        write_file(log_path, log.data, length);
        (void)unlink(memory_path);
        write_file(folder->lock, "1 gone\n", 7);
        struct error error = {0};
        if (is_failed(open_store(folder, SESSION_READ_WRITE, &store, &error))) {
            fail_msg("log of %zu bytes: %s", length, error.message);
        }
        MUST(session_store_verify(store, &must_error));
        int64_t count = count_rows(store, "SELECT count(*) FROM session");
        assert_int_equal(count_rows(store, "SELECT coalesce(max(number), 0) FROM session"), count);
        assert_true(count >= last);
        last = count;
        session_store_cleanup(&store);
    }
    assert_true(last >= 39);
}

static void lock_of_another_program_times_out_by_name(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_WRITE);
    struct session_id session = make_session(store, "a");
    sqlite3 *other = NULL;
    assert_int_equal(sqlite3_open(folder->database, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    struct session_end end = {0};
    end.status = SESSION_DONE;
    assert_int_equal(session_finish(store, &session, &end, &error).code, RESULT_TIMEOUT);
    assert_non_null(strstr(error.message, "locked by another program"));
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(other), SQLITE_OK);
    MUST(session_finish(store, &session, &end, &must_error));
}

/* --------------------------------------------- children: other users, mounts ---- */

/* Runs `body` in a child; its answer is the exit status (77: cannot be tried here). */
static int in_child(int (*body)(const struct folder *), const struct folder *folder) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(body(folder));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

#define CHILD_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, error.message);       \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Fills a 1 MiB tmpfs through the store, then makes room and goes on. */
static int full_disk_child(const struct folder *folder) {
    struct error error = {0};
    if (unshare(CLONE_NEWNS) != 0 || mkdir(folder->state, 0700) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder->state, "tmpfs", 0, "size=1m,mode=0700") != 0) {
        return 77;
    }
    struct session_store *store = NULL;
    CHILD_CHECK(is_ok(open_store(folder, SESSION_READ_WRITE, &store, &error)));
    char ballast[PATH_BYTES];
    join(ballast, folder->state, "ballast");
    int fd = open(ballast, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHILD_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
    static char block[400 << 10];
    CHILD_CHECK(write(fd, block, sizeof block) == (ssize_t)sizeof block);
    struct session_begin begin = {0};
    begin.task = view_of(block, 20000);
    struct session_id id = {""};
    size_t stored = 0;
    result status = OK;
    while (stored < 1000 && is_ok(status = session_create(store, &begin, &id, &error))) {
        stored += 1;
    }
    CHILD_CHECK(stored > 3 && stored < 1000);
    CHILD_CHECK(status.code == RESULT_IO && strstr(error.message, "disk is full") != NULL);
    // Still readable, and what was acknowledged is there; no more, no less.
    struct session_list *list = NULL;
    CHILD_CHECK(is_ok(session_list_load(store, NULL, &list, &error)) && list->count == stored);
    session_list_cleanup(&list);
    CHILD_CHECK(ftruncate(fd, 0) == 0 && close(fd) == 0);
    begin.task = view_of_text("after");
    CHILD_CHECK(is_ok(session_create(store, &begin, &id, &error)));
    CHILD_CHECK(is_ok(session_store_verify(store, &error)));
    session_store_cleanup(&store);
    CHILD_CHECK(is_ok(open_store(folder, SESSION_READ_ONLY, &store, &error)));
    CHILD_CHECK(is_ok(session_list_load(store, NULL, &list, &error)));
    CHILD_CHECK(list->count == stored + 1);
    session_list_cleanup(&list);
    session_store_cleanup(&store);
    // A directory that is full from the start.
    CHILD_CHECK(unlink(folder->database) == 0 && unlink(folder->lock) == 0);
    fd = open(ballast, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    while (write(fd, block, sizeof block) > 0) {
    }
    CHILD_CHECK(close(fd) == 0);
    CHILD_CHECK(open_store(folder, SESSION_READ_WRITE, &store, &error).code == RESULT_IO);
    CHILD_CHECK(strstr(error.message, folder->state) != NULL);
    return 0;
}

static void full_disk_loses_nothing_acknowledged(void **state) {
    int status = in_child(full_disk_child, *state);
    if (status == 77) {
        print_message("SKIPPED full disk: no private mounts here\n");
        skip();
    }
    assert_int_equal(status, 0);
}

/* As a user without rights on the directory: it may be read, not written. */
static int read_only_child(const struct folder *folder) {
    struct error error = {0};
    if (chmod(folder->path, 0755) != 0 || chown(folder->state, 65534, 65534) != 0 ||
        chown(folder->database, 65534, 65534) != 0 || chmod(folder->state, 0500) != 0 ||
        chmod(folder->database, 0400) != 0 || chown(folder->lock, 65534, 65534) != 0 ||
        chmod(folder->lock, 0400) != 0 || setgid(65534) != 0 || setuid(65534) != 0) {
        return 77;
    }
    struct session_store *store = NULL;
    CHILD_CHECK(open_store(folder, SESSION_READ_WRITE, &store, &error).code == RESULT_IO);
    CHILD_CHECK(strstr(error.message, "cannot be written") != NULL);
    CHILD_CHECK(is_ok(open_store(folder, SESSION_READ_ONLY, &store, &error)));
    struct session_list *list = NULL;
    CHILD_CHECK(is_ok(session_list_load(store, NULL, &list, &error)) && list->count == 1);
    session_list_cleanup(&list);
    session_store_cleanup(&store);
    return 0;
}

static void read_only_directory_can_be_read(void **state) {
    const struct folder *folder = *state;
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    (void)record_session(store, "a");
    session_store_cleanup(&store);
    int status = in_child(read_only_child, folder);
    if (status == 77) {
        print_message("SKIPPED read-only directory: needs root to become another user\n");
        skip();
    }
    assert_int_equal(status, 0);
}

/* -------------------------------------------------------------- migrations ---- */

static const struct session_migration test_steps[] = {
    {2, "ALTER TABLE session ADD COLUMN title TEXT NOT NULL DEFAULT 'none'"},
    {3,
     "CREATE TABLE tag (session INTEGER NOT NULL REFERENCES session (number), name TEXT) STRICT;"
     "INSERT INTO tag SELECT number, task FROM session"},
};

static result open_as_version(
    const struct folder *folder,
    struct session_versions versions,
    struct session_store **out,
    struct error *error
) {
    struct session_store_options options = {
        folder->state, SESSION_READ_WRITE, 100, "test", clock_real(), false, false};
    return session_store_open_versions(out, &options, &versions, error);
}

static result read_as_version_1(const struct folder *folder, struct session_store **out) {
    struct session_store_options options = {
        folder->state, SESSION_READ_ONLY, 100, "test", clock_real(), false, false};
    const struct session_versions one = {1, NULL, 0};
    return session_store_open_versions(out, &options, &one, &must_error);
}

static void make_version_1(const struct folder *folder) {
    CLEANUP(buffer_deinit) struct buffer sql = {NULL, 0, 0, 0};
    read_whole(TEST_SOURCE_DIR "/tests/data/sessions/version-1.sql", &sql);
    assert_int_equal(mkdir(folder->state, 0700), 0);
    run_sql(folder->database, buffer_text(&sql));
}

static void older_schema_is_backed_up_and_migrated(void **state) {
    const struct folder *folder = *state;
    make_version_1(folder);
    struct session_versions three = {3, test_steps, COUNT_OF(test_steps)};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    MUST(open_as_version(folder, three, &store, &must_error));
    assert_int_equal(count_rows(store, "PRAGMA user_version"), 3);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM session WHERE title = 'none'"), 2);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM tag"), 2);
    assert_int_equal(count_rows(store, "PRAGMA foreign_keys"), 1);
    session_store_cleanup(&store);
    // The backup is the old version, whole.
    char backup[PATH_BYTES];
    join(backup, folder->state, "sessions.db.version-1");
    struct stat info;
    assert_int_equal(stat(backup, &info), 0);
    assert_int_equal(rename(backup, folder->database), 0);
    MUST(read_as_version_1(folder, &store));
    assert_int_equal(count_rows(store, "SELECT count(*) FROM session"), 2);
    session_store_cleanup(&store);
    struct session_versions same = {3, test_steps, COUNT_OF(test_steps)};
    MUST(open_as_version(folder, same, &store, &must_error));
}

static void failed_migration_leaves_the_old_version(void **state) {
    const struct folder *folder = *state;
    struct error error = {0};
    make_version_1(folder);
    static const struct session_migration broken[] = {
        {2, "ALTER TABLE session ADD COLUMN title TEXT"},
        {3, "DELETE FROM session; INSERT INTO nowhere VALUES (1)"}};
    static const struct session_migration orphaning[] = {{2, "DELETE FROM session"}};
    const struct session_versions attempts[] = {
        {3, broken, 2}, {2, orphaning, 1}, {4, test_steps, 2}};
    for (size_t i = 0; i < COUNT_OF(attempts); i++) {
        struct session_store *store = NULL;
        assert_true(is_failed(open_as_version(folder, attempts[i], &store, &error)));
        assert_null(store);
        MUST(read_as_version_1(folder, &store));
        assert_int_equal(count_rows(store, "PRAGMA user_version"), 1);
        assert_int_equal(count_rows(store, "SELECT count(*) FROM session"), 2);
        session_store_cleanup(&store);
    }
    char backup[PATH_BYTES];
    join(backup, folder->state, "sessions.db.version-1.2"); // never over an earlier one
    assert_int_equal(access(backup, F_OK), 0);
    // A reader of a newer build does not migrate, but may look at it.
    struct session_store_options options = {
        folder->state, SESSION_READ_ONLY, 100, "test", clock_real(), false, false};
    struct session_versions three = {3, test_steps, 2};
    struct session_store *store = NULL;
    result status = session_store_open_versions(&store, &options, &three, &error);
    assert_int_equal(status.code, RESULT_UNSUPPORTED);
    options.accepts_older = true;
    MUST(session_store_open_versions(&store, &options, &three, &must_error));
    assert_true(session_store_is_older(store));
    MUST(session_store_verify(store, &must_error));
    session_store_cleanup(&store);
}

/* Every column and index with its type, order apart from tables: what two schemas must share. */
static void read_shape(struct session_store *store, struct buffer *out) {
    static const char columns[] =
        "SELECT group_concat(line, char(10)) FROM (SELECT t.name || ' ' || c.cid || ' ' || c.name "
        "||"
        " ' ' || c.type || ' ' || c.\"notnull\" || ' ' || ifnull(c.dflt_value, '-') AS line"
        " FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table'"
        " UNION ALL SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
        " ORDER BY 1)";
    char text[32768];
    MUST(store_query_text(store, columns, text, sizeof text, &must_error));
    assert_true(strlen(text) > 1000 && strlen(text) < sizeof text - 1);
    buffer_init(out, BUFFER_CEILING_DEFAULT);
    MUST(buffer_append_text(out, text, &must_error));
}

static void version_1_becomes_the_shipped_schema(void **state) {
    const struct folder *folder = *state;
    make_version_1(folder);
    assert_int_equal(session_versions_shipped().target, SESSION_SCHEMA_VERSION);
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    assert_int_equal(count_rows(store, "PRAGMA user_version"), SESSION_SCHEMA_VERSION);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM session"), 2);
    CLEANUP(buffer_deinit) struct buffer migrated = {NULL, 0, 0, 0};
    read_shape(store, &migrated);
    session_store_cleanup(&store);
    assert_int_equal(unlink(folder->database), 0);
    store = open_or_fail(folder, SESSION_READ_WRITE);
    CLEANUP(buffer_deinit) struct buffer shipped = {NULL, 0, 0, 0};
    read_shape(store, &shipped);
    session_store_cleanup(&store);
    assert_string_equal(buffer_text(&migrated), buffer_text(&shipped));
}

static void version_1_contracts_are_carried_over(void **state) {
    const struct folder *folder = *state;
    make_version_1(folder);
    // Three generations of one agent: cold, a decoder replay, live behind it.
    run_sql(
        folder->database,
        "UPDATE turn SET position = position + 10;"
        "INSERT INTO turn (agent, position, is_finished, started_ms, prompt_tokens,"
        " evaluated_tokens, window_source, lineage, decoder_lineage, miss_reason) VALUES"
        " (1, 0, 1, 5, 300, 300, 'none', 'aa', '0', 'first prompt'),"
        " (1, 1, 1, 6, 700, 700, 'replay', 'aa', 'dd', ''),"
        " (1, 2, 1, 7, 900, 900, 'replay', 'aa', 'ee', ''),"
        " (1, 3, 1, 8, 950, 950, 'live', 'aa', 'ee', '');"
    );
    struct session_store *store = open_or_fail(folder, SESSION_READ_WRITE);
    char text[512];
    MUST(store_query_text(
        store,
        "SELECT group_concat(line, ';') FROM (SELECT window_source || ',' || lineage || ',' ||"
        " block_lineage || ',' || decoder_lineage || ',' || replays || ',' || miss_reason AS line"
        " FROM turn WHERE agent = 1 AND position < 10 ORDER BY position)",
        text,
        sizeof text,
        &must_error
    ));
    assert_string_equal(
        text,
        "cold,aa,aa,0,,first prompt;replay,aa,aa,dd,decoder@700,;"
        "replay,aa,aa,ee,decoder@700 decoder@900,;live,aa,aa,ee,decoder@700 decoder@900,"
    );
    session_store_cleanup(&store);
}

/* Of version 2 there is no more than version 3 knows: what it lacked is as if it had been off. */
static void version_2_becomes_the_shipped_schema(void **state) {
    const struct folder *folder = *state;
    make_version_1(folder);
    struct session_versions two = session_versions_shipped();
    two.target = 2;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    MUST(open_as_version(folder, two, &store, &must_error));
    assert_int_equal(count_rows(store, "PRAGMA user_version"), 2);
    session_store_cleanup(&store);
    run_sql(
        folder->database,
        "INSERT INTO turn (agent, position, is_finished, started_ms, prompt_tokens,"
        " evaluated_tokens, seed, stop_reason) VALUES (1, 90, 1, 5, 300, 300, 7, 'end');"
    );
    store = open_or_fail(folder, SESSION_READ_WRITE);
    assert_int_equal(count_rows(store, "PRAGMA user_version"), SESSION_SCHEMA_VERSION);
    assert_int_equal(
        count_rows(
            store,
            "SELECT count(*) FROM turn WHERE position = 90 AND seed = 7 AND settings = ''"
            " AND stop_detail = '' AND drafted = 0 AND accepted = 0 AND preempted = 0"
            " AND parent_seed = 0 AND fork_index = -1"
        ),
        1
    );
    assert_int_equal(count_rows(store, "SELECT count(*) FROM session WHERE settings = ''"), 2);
    char backup[PATH_BYTES];
    join(backup, folder->state, "sessions.db.version-2");
    assert_int_equal(access(backup, F_OK), 0);
}

/* Of version 4 everything stays; a fork takes all messages of its turn, and there was no swarm. */
static void version_4_becomes_the_shipped_schema(void **state) {
    const struct folder *folder = *state;
    make_version_1(folder);
    struct session_versions four = session_versions_shipped();
    four.target = 4;
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    MUST(open_as_version(folder, four, &store, &must_error));
    struct session_list *list = NULL;
    MUST(session_list_load(store, NULL, &list, &must_error));
    struct session_id id = list->sessions[0].id;
    session_list_destroy(list);
    session_store_cleanup(&store);
    run_sql(
        folder->database,
        "INSERT INTO agent (id, session, created_ms, name, tools, seed, temperature, top_p, effort,"
        " fork_of) SELECT substr(a.id, 1, 35) || 'f', s.number, 5, 'fork', '', 1, 0, 1, 0,"
        " (SELECT min(number) FROM turn) FROM agent a JOIN session s ON s.number ="
        " (SELECT number FROM session ORDER BY created_ms DESC, number DESC LIMIT 1) LIMIT 1;"
    );
    store = open_or_fail(folder, SESSION_READ_WRITE);
    assert_int_equal(count_rows(store, "PRAGMA user_version"), SESSION_SCHEMA_VERSION);
    CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
    MUST(session_load(store, &id, NULL, &tree, &must_error));
    assert_int_equal(tree->swarm_count + tree->mail_count, 0);
    const struct session_agent *fork = &tree->agents[tree->agent_count - 1];
    assert_text(fork->name, "fork");
    assert_int_equal(fork->fork_messages, -1);
    assert_true(fork->turn_count >= 1 && fork->turns[0].is_inherited);
    assert_true(fork->turns[0].message_count > 0);
    assert_null(fork->node);
    char backup[PATH_BYTES];
    join(backup, folder->state, "sessions.db.version-4");
    assert_int_equal(access(backup, F_OK), 0);
}

/* ------------------------------------------------------------------- crash ---- */

#define CRASH_ROUNDS 50

struct acknowledged {
    int64_t call;
    int64_t is_finished;
};

/* Appends for ever; every append that returned is told through the pipe. */
static int crash_child(const struct folder *folder, int pipe_fd) {
    struct error error = {0};
    struct session_store *store = NULL;
    CHILD_CHECK(is_ok(open_store(folder, SESSION_READ_WRITE, &store, &error)));
    struct session_begin begin = {0};
    begin.task = view_of_text("crash");
    struct session_id session = {""};
    CHILD_CHECK(is_ok(session_create(store, &begin, &session, &error)));
    struct session_agent_begin agent_begin = {0};
    agent_begin.session = session;
    struct session_id agent = {""};
    CHILD_CHECK(is_ok(session_agent_append(store, &agent_begin, &agent, &error)));
    static unsigned char bulk[3000];
    for (;;) {
        int64_t turn = 0;
        CHILD_CHECK(is_ok(session_turn_start(store, &agent, &turn, &error)));
        struct session_call_begin call_begin = {0};
        call_begin.turn = turn;
        call_begin.name = view_of_text("shell");
        struct acknowledged note = {0, 0};
        CHILD_CHECK(is_ok(session_call_start(store, &call_begin, &note.call, &error)));
        CHILD_CHECK(write(pipe_fd, &note, sizeof note) == (ssize_t)sizeof note);
        struct session_call_end end = {0};
        end.status = SESSION_CALL_OK;
        end.output = view_of(bulk, sizeof bulk);
        end.output_bytes = (uint64_t)note.call;
        CHILD_CHECK(is_ok(session_call_finish(store, note.call, &end, &error)));
        note.is_finished = 1;
        CHILD_CHECK(write(pipe_fd, &note, sizeof note) == (ssize_t)sizeof note);
    }
}

/* Every acknowledged step is there, as acknowledged or further. */
static void
check_acknowledged(struct session_store *store, const struct acknowledged *notes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char sql[160];
        int length = snprintf(
            sql,
            sizeof sql,
            "SELECT count(*) FROM call WHERE number = %lld AND %s",
            (long long)notes[i].call,
            notes[i].is_finished != 0 ? "status = 1 AND output_bytes = number" : "1"
        );
        assert_true(length > 0 && (size_t)length < sizeof sql);
        assert_int_equal(count_rows(store, sql), 1);
    }
}

static size_t crash_round(const struct folder *folder, unsigned *seed) {
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)close(ends[0]);
        _exit(crash_child(folder, ends[1]));
    }
    assert_int_equal(close(ends[1]), 0);
    static struct acknowledged notes[4096];
    size_t bytes = 0;
    size_t wanted = 1 + (size_t)rand_r(seed) % 12;
    // Anywhere within the next append, not right behind a note.
    struct timespec delay = {0, (long)(rand_r(seed) % 3000) * 1000};
    bool killed = false;
    for (;;) {
        ssize_t got = read(ends[0], (unsigned char *)notes + bytes, sizeof notes - bytes);
        assert_true(got >= 0);
        bytes += (size_t)got;
        if (!killed && bytes >= wanted * sizeof notes[0]) {
            (void)nanosleep(&delay, NULL);
            assert_int_equal(kill(child, SIGKILL), 0);
            killed = true;
        }
        if (got == 0) {
            break;
        }
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(close(ends[0]), 0);
    size_t count = bytes / sizeof notes[0];
    assert_true(count >= wanted);
    // First as a reader, with the dead writer's log still there; then as the next writer.
    struct session_store *store = open_or_fail(folder, SESSION_READ_ONLY);
    check_acknowledged(store, notes, count);
    session_store_cleanup(&store);
    store = open_or_fail(folder, SESSION_READ_WRITE);
    assert_true(session_store_interrupted_count(store) >= 1);
    MUST(session_store_verify(store, &must_error));
    check_acknowledged(store, notes, count);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM session WHERE status = 0"), 0);
    assert_int_equal(count_rows(store, "SELECT count(*) FROM call WHERE status = 0"), 0);
    session_store_cleanup(&store);
    return count;
}

static void kill_at_any_instant_loses_nothing_acknowledged(void **state) {
    const struct folder *folder = *state;
    unsigned seed = 20261129;
    const char *given = getenv("HEARTH_TEST_SEED");
    uint64_t value = 0;
    if (given != NULL && parse_u64(view_of_text(given), &value)) {
        seed = (unsigned)value;
    }
    size_t steps = 0;
    for (int round = 0; round < CRASH_ROUNDS; round++) {
        steps += crash_round(folder, &seed);
    }
    print_message(
        "%d kills, %zu acknowledged steps, seed %u at the end\n", CRASH_ROUNDS, steps, seed
    );
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    store = open_or_fail(folder, SESSION_READ_ONLY);
    assert_int_equal(
        count_rows(store, "SELECT count(*) FROM session WHERE status = 4"), CRASH_ROUNDS
    );
}

int main(void) {
    const struct CMUnitTest tests[] = {
        STORE_TEST(foreign_file_is_named_and_left_alone),
        STORE_TEST(foreign_database_is_named_and_left_alone),
        STORE_TEST(newer_schema_is_refused),
        STORE_TEST(damaged_pages_are_named_and_left_alone),
        STORE_TEST(truncated_database_never_crashes),
        STORE_TEST(torn_log_gives_a_prefix_of_the_steps),
        STORE_TEST(lock_of_another_program_times_out_by_name),
        STORE_TEST(full_disk_loses_nothing_acknowledged),
        STORE_TEST(read_only_directory_can_be_read),
        STORE_TEST(older_schema_is_backed_up_and_migrated),
        STORE_TEST(failed_migration_leaves_the_old_version),
        STORE_TEST(version_1_becomes_the_shipped_schema),
        STORE_TEST(version_1_contracts_are_carried_over),
        STORE_TEST(version_2_becomes_the_shipped_schema),
        STORE_TEST(version_4_becomes_the_shipped_schema),
        STORE_TEST(kill_at_any_instant_loses_nothing_acknowledged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
