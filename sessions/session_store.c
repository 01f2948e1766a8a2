/* Opening, checking and closing the database, its lock, transactions, and SQLite's errors turned into
 * ours. With session_statement.c the only file that knows SQLite.
 *
 * SQLite 3.40 has a race when two connections reset the write-ahead log, so exactly one connection,
 * the writer's, ever writes or checkpoints; readers open read-only and never checkpoint.
 */
#include "session_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

extern const unsigned char session_schema[];
extern const size_t session_schema_bytes;

/* ---------------------------------------------------------------- errors ---- */

static unsigned long long free_bytes(const struct session_store *store) {
    struct statvfs space;
    if (statvfs(store->directory, &space) != 0) {
        return 0;
    }
    return (unsigned long long)space.f_bavail * space.f_frsize;
}

static bool is_full(const struct session_store *store, int code) {
    int system = store->database == NULL ? 0 : sqlite3_system_errno(store->database);
    return (code & 0xFF) == SQLITE_FULL || system == ENOSPC || system == EDQUOT;
}

static result fail_io(const struct session_store *store, int code, struct error *error) {
    int system = store->database == NULL ? 0 : sqlite3_system_errno(store->database);
    if (is_full(store, code)) {
        FAIL_FOREIGN(
            error,
            IO,
            code,
            "%s: the disk is full (%llu bytes free)%s",
            store->path,
            free_bytes(store),
            store->mode == SESSION_READ_ONLY ? "" : "; nothing of this step was recorded"
        );
    }
    const char *reason = system != 0 ? strerror(system) : sqlite3_errstr(code);
    if ((code & 0xFF) == SQLITE_READONLY) {
        FAIL_FOREIGN(
            error,
            IO,
            code,
            "%s cannot be written (read-only): %s; name another place with --state DIR",
            store->path,
            reason
        );
    }
    FAIL_FOREIGN(error, IO, code, "%s: %s (SQLite code %d)", store->path, reason, code);
}

/* `code` is the one SQLite just returned on this store's connection. */
result store_fail(const struct session_store *store, int code, struct error *error) {
    const char *text = store->database == NULL ? "" : sqlite3_errmsg(store->database);
    switch (code & 0xFF) {
    case SQLITE_NOMEM:
        FAIL_FOREIGN(error, MEMORY, code, "%s: out of memory", store->path);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        FAIL_FOREIGN(
            error,
            TIMEOUT,
            code,
            "%s is locked by another program (not a Hearth writer); end it and try again",
            store->path
        );
    case SQLITE_CORRUPT:
        FAIL_FOREIGN(
            error,
            CORRUPT,
            code,
            "%s is damaged: %s; it was left as it is: move it away, or name another place with "
            "--state DIR",
            store->path,
            text
        );
    case SQLITE_NOTADB:
        FAIL_FOREIGN(
            error,
            CORRUPT,
            code,
            "%s is not a database; it was left as it is: move it away, or name another place "
            "with --state DIR",
            store->path
        );
    case SQLITE_TOOBIG:
        FAIL_FOREIGN(error, LIMIT, code, "%s: a value too large to store", store->path);
    case SQLITE_CONSTRAINT:
        FAIL_FOREIGN(error, INVALID_INPUT, code, "%s: refused: %s", store->path, text);
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
        return fail_io(store, code, error);
    default:
        // Our statements are fixed, so "no such column" and the like mean a foreign schema.
        FAIL_FOREIGN(error, CORRUPT, code, "%s: %s (SQLite code %d)", store->path, text, code);
    }
}

/* ------------------------------------------------------------------ lock ---- */

/* The lock is recursive, so that the thread of a batch goes on while the others wait. */
struct session_store *store_lock(struct session_store *store) {
    int code = pthread_mutex_lock(&store->mutex);
    ASSERT(code == 0);
    return store;
}

void store_unlock(struct session_store **store) {
    int code = pthread_mutex_unlock(&(*store)->mutex);
    ASSERT(code == 0); // EPERM: a batch that another thread began
}

#define STORE_LOCK(store)                                                                          \
    CLEANUP(store_unlock) struct session_store *locked_ = store_lock(store);                       \
    ASSERT(locked_ == (store))

/* ------------------------------------------------------ one-off statements ---- */

result store_execute(struct session_store *store, const char *sql, struct error *error) {
    STORE_LOCK(store);
    int code = sqlite3_exec(store->database, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? OK : store_fail(store, code, error);
}

static void statement_handle_cleanup(sqlite3_stmt **handle) {
    (void)sqlite3_finalize(*handle);
}

result store_query_text(
    struct session_store *store, const char *sql, char *out, size_t capacity, struct error *error
) {
    ASSERT(capacity > 0);
    STORE_LOCK(store);
    CLEANUP(statement_handle_cleanup) sqlite3_stmt *handle = NULL;
    int code = sqlite3_prepare_v2(store->database, sql, -1, &handle, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_step(handle);
    }
    if (code != SQLITE_ROW && code != SQLITE_DONE) {
        return store_fail(store, code, error);
    }
    const unsigned char *text = code == SQLITE_ROW ? sqlite3_column_text(handle, 0) : NULL;
    (void)snprintf(out, capacity, "%s", text == NULL ? "" : (const char *)text); // cut on purpose
    return OK;
}

result
store_query_i64(struct session_store *store, const char *sql, int64_t *out, struct error *error) {
    char text[32];
    TRY(store_query_text(store, sql, text, sizeof text, error));
    int64_t value = 0;
    if (!parse_i64(view_of_text(text), &value)) {
        FAIL(error, CORRUPT, "%s: '%s' instead of a number", store->path, text);
    }
    *out = value;
    return OK;
}

static result flush_path(const char *path, int flags, struct error *error) {
    CLEANUP(fd_cleanup) int fd = open(path, flags | O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "%s cannot be flushed: %s", path, strerror(code));
    }
    return OK;
}

result store_backup(struct session_store *store, const char *path, struct error *error) {
    CLEANUP(statement_handle_cleanup) sqlite3_stmt *handle = NULL;
    int code = sqlite3_prepare_v2(store->database, "VACUUM INTO ?1", -1, &handle, NULL);
    if (code == SQLITE_OK) {
        code = sqlite3_bind_text(handle, 1, path, -1, SQLITE_STATIC);
    }
    if (code == SQLITE_OK) {
        code = sqlite3_step(handle);
    }
    if (code != SQLITE_DONE) {
        return error_note(error, store_fail(store, code, error), "while backing up into %s", path);
    }
    // VACUUM INTO does not flush; the backup must be on the disk before the original changes.
    TRY(flush_path(path, 0, error));
    return flush_path(store->directory, O_DIRECTORY, error);
}

/* ------------------------------------------------------------------ place ---- */

static result create_file(struct session_store *store, struct error *error);

static result make_again(struct session_store *store, struct error *error) {
    TRY(session_directory_prepare(store->directory, error));
    return create_file(store, error);
}

/* What is appended to a file that has no name any more would be gone with the program. A database that was
 * removed is written again, as it is, so that the session can go on: not by this program, whose connection
 * stays with the removed file. */
result store_check_place(struct session_store *store, struct error *error) {
    struct stat info;
    bool is_there = stat(store->path, &info) == 0;
    if (is_there && info.st_dev == store->device && info.st_ino == store->file) {
        return OK;
    }
    if (is_there) {
        FAIL(error, IO, "%s was replaced by another file while it was in use", store->path);
    }
    TRY_NOTE(
        error,
        make_again(store, error),
        "%s was removed while it was in use, and cannot be written again",
        store->path
    );
    TRY_NOTE(
        error,
        store_backup(store, store->path, error),
        "%s was removed while it was in use",
        store->path
    );
    FAIL(
        error,
        IO,
        "%s was removed while it was in use; what was recorded until then is there again",
        store->path
    );
}

/* ----------------------------------------------------------- transactions ---- */

static result batch_begin(struct session_store *store, struct error *error) {
    ASSERT(!store->is_batch);
    if (store->mode != SESSION_READ_WRITE) {
        FAIL(error, INVALID_INPUT, "%s was opened for reading only", store->path);
    }
    TRY(store_check_place(store, error));
    TRY(store_execute(store, "BEGIN IMMEDIATE", error));
    store->is_batch = true;
    store->batch_failed = false;
    return OK;
}

result session_batch_begin(struct session_store *store, struct error *error) {
    result status = batch_begin(store_lock(store), error);
    if (is_failed(status)) {
        store_unlock(&store);
    }
    return status; // locked until the batch ends
}

result session_batch_commit(struct session_store *store, struct error *error) {
    STORE_LOCK(store);
    ASSERT(store->is_batch); // of this thread, which has the lock
    if (store->batch_failed || sqlite3_get_autocommit(store->database) != 0) {
        session_batch_rollback(store);
        FAIL(error, INVALID_INPUT, "%s: a step of this batch failed; all was undone", store->path);
    }
    result status = store_execute(store, "COMMIT", error);
    if (is_failed(status)) {
        session_batch_rollback(store);
        return status;
    }
    store->is_batch = false;
    store_unlock(&store); // since session_batch_begin
    return OK;
}

void session_batch_rollback(struct session_store *store) {
    STORE_LOCK(store);
    if (!store->is_batch) {
        return;
    }
    store->is_batch = false;
    store->batch_failed = false;
    if (sqlite3_get_autocommit(store->database) == 0) {
        // Cannot fail in a way that keeps the changes: at worst the next open undoes them.
        result_ignore(store_execute(store, "ROLLBACK", NULL));
    }
    store_unlock(&store); // since session_batch_begin
}

result store_step_begin(struct session_store *store, bool *is_own, struct error *error) {
    STORE_LOCK(store);
    *is_own = !store->is_batch; // another thread's would have kept the lock from us
    return *is_own ? session_batch_begin(store, error) : OK;
}

result
store_step_end(struct session_store *store, bool is_own, result status, struct error *error) {
    if (!is_own) {
        return status; // the caller commits or undoes
    }
    if (is_failed(status)) {
        session_batch_rollback(store);
        return status;
    }
    return session_batch_commit(store, error);
}

/* ---------------------------------------------------------------- opening ---- */

static result create_file(struct session_store *store, struct error *error) {
    // SQLite would use 0644; the log and the shared memory take their mode from this file.
    int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    CLEANUP(fd_cleanup) int fd = open(store->path, flags, 0600);
    if (fd < 0 && errno != EEXIST) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "%s cannot be made: %s", store->path, strerror(code));
    }
    return fd < 0 ? OK : flush_path(store->directory, O_DIRECTORY, error);
}

static int open_connection(struct session_store *store, const char *name, int flags, int busy_ms) {
    int code = sqlite3_open_v2(name, &store->database, flags, NULL);
    if (code != SQLITE_OK) {
        return code;
    }
    sqlite3 *database = store->database;
    (void)sqlite3_extended_result_codes(database, 1);
    (void)sqlite3_busy_timeout(database, busy_ms);
    // The file may come from anywhere: no functions with effects from its schema, no writes to it.
    (void)sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    (void)sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    (void)sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    (void)sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, NULL);
    (void)sqlite3_limit(database, SQLITE_LIMIT_LENGTH, (int)SESSION_TEXT_BYTES_MAX * 4);
    if (store->mode == SESSION_READ_ONLY) {
        (void)sqlite3_db_config(database, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        (void)sqlite3_wal_autocheckpoint(database, 0);
    }
    return sqlite3_exec(database, "PRAGMA cell_size_check=ON", NULL, NULL, NULL);
}

/* A database that nobody can be writing, in a directory that cannot be written: no locks needed. */
static result open_immutable(struct session_store *store, int busy_ms, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer name = {NULL, 0, 0, 0};
    buffer_init(&name, (size_t)4 * SESSION_PATH_BYTES);
    TRY(buffer_append_text(&name, "file:", error));
    for (const char *p = store->path; *p != '\0'; p++) {
        bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                     (*p >= '0' && *p <= '9') || strchr("/._-", *p) != NULL;
        TRY(plain ? buffer_append_byte(&name, (unsigned char)*p, error)
                  : buffer_append_format(&name, error, "%%%02X", (unsigned)(unsigned char)*p));
    }
    TRY(buffer_append_text(&name, "?immutable=1", error));
    int flags = SQLITE_OPEN_READONLY | SQLITE_OPEN_URI;
    int code = open_connection(store, buffer_text(&name), flags, busy_ms);
    return code == SQLITE_OK ? OK : store_fail(store, code, error);
}

static bool log_is_empty(const struct session_store *store) {
    char log[SESSION_PATH_BYTES];
    struct stat info;
    int length = snprintf(log, sizeof log, "%s-wal", store->path);
    return length > 0 && (size_t)length < sizeof log &&
           (stat(log, &info) != 0 || info.st_size == 0);
}

static result open_reader(struct session_store *store, int busy_ms, struct error *error) {
    bool is_written = store->lock.fd < 0 && session_lock_is_held(store->directory);
    struct stat info;
    if (stat(store->path, &info) != 0) {
        int code = errno;
        if (code == ENOENT || code == ENOTDIR) {
            FAIL(error, NOT_FOUND, "no sessions recorded yet in %s", store->directory);
        }
        FAIL_FOREIGN(error, IO, code, "%s: %s", store->path, strerror(code));
    }
    if (info.st_size == 0) {
        FAIL(error, NOT_FOUND, "no sessions recorded yet in %s", store->directory);
    }
    int code = open_connection(store, store->path, SQLITE_OPEN_READONLY, busy_ms);
    int64_t ignored = 0;
    // The first read is where a log that cannot be opened shows.
    if (code == SQLITE_OK &&
        is_ok(store_query_i64(store, "SELECT count(*) FROM sqlite_schema", &ignored, error))) {
        return OK;
    }
    code = code == SQLITE_OK ? sqlite3_extended_errcode(store->database) : code;
    bool cannot_open = (code & 0xFF) == SQLITE_CANTOPEN || (code & 0xFF) == SQLITE_READONLY;
    // There is no room for the shared memory, which a writer that lives would have made.
    cannot_open = cannot_open || (is_full(store, code) && !is_written);
    if (!cannot_open || !log_is_empty(store)) {
        return store_fail(store, code, error);
    }
    (void)sqlite3_close(store->database);
    store->database = NULL;
    return open_immutable(store, busy_ms, error);
}

static result
read_version(struct session_store *store, int64_t *version, bool *is_new, struct error *error) {
    int64_t application = 0;
    int64_t objects = 0;
    TRY(store_query_i64(store, "PRAGMA application_id", &application, error));
    TRY(store_query_i64(store, "PRAGMA user_version", version, error));
    TRY(store_query_i64(store, "SELECT count(*) FROM sqlite_schema", &objects, error));
    *is_new = application == 0 && *version == 0 && objects == 0;
    if (!*is_new && application != SESSION_APPLICATION_ID) {
        FAIL(
            error,
            CORRUPT,
            "%s is a database of another program (application id 0x%08llx, not 0x%08x); it was "
            "left as it is",
            store->path,
            (unsigned long long)application & 0xFFFFFFFFU,
            SESSION_APPLICATION_ID
        );
    }
    return OK;
}

static result create_schema(struct session_store *store, int64_t version, struct error *error) {
    char pragmas[128];
    int length = snprintf(
        pragmas,
        sizeof pragmas,
        "PRAGMA application_id=%d; PRAGMA user_version=%lld;",
        SESSION_APPLICATION_ID,
        (long long)version
    );
    ASSERT(length > 0 && (size_t)length < sizeof pragmas);
    ASSERT(session_schema[session_schema_bytes] == '\0');
    TRY(store_execute(store, "BEGIN IMMEDIATE", error));
    result status = store_execute(store, (const char *)session_schema, error);
    if (is_ok(status)) {
        status = store_execute(store, pragmas, error);
    }
    if (is_ok(status)) {
        status = store_execute(store, "COMMIT", error);
    }
    if (is_failed(status)) {
        result_ignore(store_execute(store, "ROLLBACK", NULL)); // the first failure is told
    }
    return status;
}

static result check_version(
    const struct session_store *store, int64_t version, int64_t target, struct error *error
) {
    if (version > target) {
        FAIL(
            error,
            UNSUPPORTED,
            "%s was written by a newer Hearth (schema version %lld, this one knows %lld); it was "
            "left as it is",
            store->path,
            (long long)version,
            (long long)target
        );
    }
    if (version < 1) {
        FAIL(error, CORRUPT, "%s has schema version %lld", store->path, (long long)version);
    }
    if (version < target && store->mode == SESSION_READ_ONLY && !store->accepts_older) {
        FAIL(
            error,
            UNSUPPORTED,
            "%s has schema version %lld and needs %lld; the next 'hearth run' (or --resume) keeps "
            "a "
            "copy and brings it up",
            store->path,
            (long long)version,
            (long long)target
        );
    }
    return OK;
}

/* After a writer that died: damage is found before anything is written on top of it. */
static result check_after_crash(struct session_store *store, struct error *error) {
    if (!store->lock.predecessor_died) {
        return OK;
    }
    char finding[200];
    TRY(store_query_text(store, "PRAGMA quick_check(1)", finding, sizeof finding, error));
    if (strcmp(finding, "ok") != 0) {
        FAIL(
            error,
            CORRUPT,
            "%s is damaged: %s; it was left as it is: move it away, or name another place with "
            "--state DIR",
            store->path,
            finding
        );
    }
    return OK;
}

/* A mailbox whose reader is gone holds nothing any more. */
static result mark_swarms(struct session_store *store, struct error *error) {
    const char *count = "SELECT (SELECT count(*) FROM swarm WHERE is_ended = 0)"
                        " + (SELECT count(*) FROM node WHERE is_ended = 0)"
                        " + (SELECT count(*) FROM mail WHERE state = 0)";
    int64_t open_count = 0;
    TRY(store_query_i64(store, count, &open_count, error));
    if (open_count == 0) {
        return OK;
    }
    return store_execute(
        store,
        "BEGIN IMMEDIATE;"
        "UPDATE mail SET state = 2 WHERE state = 0;"
        "UPDATE node SET is_ended = 1, ending = 'interrupted', outcome = 'lost'"
        " WHERE is_ended = 0;"
        "UPDATE swarm SET is_ended = 1, outcome = 'interrupted' WHERE is_ended = 0;"
        "COMMIT",
        error
    );
}

static result mark_interrupted(struct session_store *store, int64_t version, struct error *error) {
    if (version >= SESSION_SWARM_VERSION) {
        TRY(mark_swarms(store, error));
    }
    const char *count = "SELECT (SELECT count(*) FROM session WHERE status = 0)"
                        " + (SELECT count(*) FROM call WHERE status = 0)";
    TRY(store_query_i64(store, count, &store->interrupted_count, error));
    if (store->interrupted_count == 0) {
        return OK;
    }
    // This process holds the lock, so whatever is open belongs to a writer that died. When exactly
    // is not known, so the end times stay 0.
    return store_execute(
        store,
        "BEGIN IMMEDIATE;"
        "UPDATE call SET status = 6 WHERE status = 0;"
        "UPDATE session SET status = 4, stop_reason = 'the program died' WHERE status = 0;"
        "COMMIT",
        error
    );
}

static result open_writer(
    struct session_store *store,
    const struct session_versions *versions,
    int busy_ms,
    struct error *error
) {
    TRY(create_file(store, error));
    int code = open_connection(store, store->path, SQLITE_OPEN_READWRITE, busy_ms);
    if (code != SQLITE_OK) {
        return store_fail(store, code, error);
    }
    int64_t version = 0;
    bool is_new = false;
    TRY(read_version(store, &version, &is_new, error));
    if (!is_new) {
        TRY(check_version(store, version, versions->target, error));
        TRY(check_after_crash(store, error));
    }
    if (sqlite3_db_readonly(store->database, "main") == 1) {
        return fail_io(store, SQLITE_READONLY, error);
    }
    // Only now is it certain that this is ours to change.
    char journal[16];
    TRY(store_query_text(store, "PRAGMA journal_mode=WAL", journal, sizeof journal, error));
    if (strcmp(journal, "wal") != 0) {
        FAIL(error, UNSUPPORTED, "%s: no write-ahead log here (%s)", store->path, journal);
    }
    // FULL flushes the log at every commit: a step is durable before it is acted upon.
    TRY(store_execute(store, "PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON", error));
    if (is_new) {
        TRY(create_schema(store, SESSION_SCHEMA_VERSION, error));
        version = SESSION_SCHEMA_VERSION;
    }
    if (version < versions->target) {
        TRY(session_migrate(store, versions->steps, versions->step_count, versions->target, error));
    }
    struct stat info;
    if (stat(store->path, &info) != 0) {
        int number = errno;
        FAIL_FOREIGN(error, IO, number, "%s: %s", store->path, strerror(number));
    }
    store->device = info.st_dev;
    store->file = info.st_ino;
    return mark_interrupted(store, versions->target, error);
}

/* Null for want of memory. */
static struct session_store *create_store(void) {
    struct session_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return NULL;
    }
    pthread_mutexattr_t attributes;
    bool is_made = pthread_mutexattr_init(&attributes) == 0;
    is_made = is_made && pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE) == 0 &&
              pthread_mutex_init(&store->mutex, &attributes) == 0;
    if (!is_made) {
        free(store);
        return NULL;
    }
    (void)pthread_mutexattr_destroy(&attributes);
    store->lock.fd = -1;
    return store;
}

result session_store_open_versions(
    struct session_store **out,
    const struct session_store_options *options,
    const struct session_versions *versions,
    struct error *error
) {
    ASSERT(options->state_dir != NULL && options->clock.wall_ms != NULL);
    int busy_ms = options->busy_ms > 0 ? options->busy_ms : SESSION_BUSY_MS_DEFAULT;
    const char *program = options->program == NULL ? "hearth" : options->program;
    CLEANUP(session_store_cleanup) struct session_store *store = create_store();
    if (store == NULL) {
        FAIL(error, MEMORY, "session store: %zu bytes", sizeof *store);
    }
    store->mode = options->mode;
    store->accepts_older = options->accepts_older;
    store->clock = options->clock;
    int length = snprintf(store->directory, sizeof store->directory, "%s", options->state_dir);
    int path_length = snprintf(
        store->path, sizeof store->path, "%s/%s", options->state_dir, SESSION_DATABASE_NAME
    );
    if (length <= 0 || path_length <= 0 || (size_t)path_length >= sizeof store->path) {
        FAIL(error, INVALID_INPUT, "state directory: a path of %d bytes", length);
    }
    if (options->mode == SESSION_READ_WRITE) {
        TRY(session_directory_prepare(store->directory, error));
        TRY(session_lock_acquire(&store->lock, store->directory, program, error));
        TRY(open_writer(store, versions, busy_ms, error));
    } else {
        if (options->keeps_writers_out && access(store->path, F_OK) == 0) {
            TRY(session_lock_acquire(&store->lock, store->directory, program, error));
        }
        TRY(open_reader(store, busy_ms, error));
        int64_t version = 0;
        bool is_new = false;
        TRY(read_version(store, &version, &is_new, error));
        if (is_new) {
            FAIL(error, NOT_FOUND, "no sessions recorded yet in %s", store->directory);
        }
        TRY(check_version(store, version, versions->target, error));
        store->is_older = version < versions->target;
    }
    if (options->mode == SESSION_READ_WRITE) {
        store->lock.predecessor_died = false; // checked, so closing in order may clear the mark
    }
    *out = TAKE(store);
    return OK;
}

result session_store_open(
    struct session_store **out, const struct session_store_options *options, struct error *error
) {
    struct session_versions versions = session_versions_shipped();
    return session_store_open_versions(out, options, &versions, error);
}

void session_store_close(struct session_store *store) {
    if (store == NULL) {
        return;
    }
    session_batch_rollback(store);
    for (size_t i = 0; i < store->statement_count; i++) {
        ASSERT(!store->statements[i].is_used);
        (void)sqlite3_finalize(store->statements[i].handle);
    }
    // The last checkpoint runs in here; when it fails the log simply stays for the next open.
    int code = sqlite3_close(store->database);
    ASSERT(code == SQLITE_OK);
    session_lock_release(&store->lock);
    code = pthread_mutex_destroy(&store->mutex);
    ASSERT(code == 0);
    free(store);
}

void session_store_cleanup(struct session_store **store) {
    session_store_close(*store);
    *store = NULL;
}

result session_store_verify(struct session_store *store, struct error *error) {
    char finding[300];
    TRY(store_query_text(store, "PRAGMA integrity_check(1)", finding, sizeof finding, error));
    if (strcmp(finding, "ok") != 0) {
        FAIL(error, CORRUPT, "%s is damaged: %s", store->path, finding);
    }
    TRY(store_query_text(
        store, "SELECT \"table\" FROM pragma_foreign_key_check", finding, sizeof finding, error
    ));
    if (finding[0] != '\0') {
        FAIL(error, CORRUPT, "%s: a row of %s without its parent", store->path, finding);
    }
    return OK;
}

bool session_store_is_older(const struct session_store *store) {
    return store->is_older;
}

int64_t session_store_interrupted_count(const struct session_store *store) {
    return store->interrupted_count;
}
