/* Inside of sessions/: the store, prepared statements without SQLite's header, lock and migrations.
 *
 * session_store.c and session_statement.c alone know SQLite; the other files speak to it through `struct
 * statement`.
 */
#ifndef HEARTH_SESSIONS_SESSION_INTERNAL_H
#define HEARTH_SESSIONS_SESSION_INTERNAL_H

#include "session.h"

#include <assert.h>
#include <pthread.h>

#define SESSION_SCHEMA_VERSION 5
#define SESSION_SWARM_VERSION  5          /* the first one with swarms */
#define SESSION_APPLICATION_ID 0x48727468 /* "Hrth" */
#define SESSION_STATEMENTS_MAX 96         /* more than the SQL texts of this folder */
#define SESSION_PATH_BYTES     4096       /* PATH_MAX of Linux */
#define SESSION_DATABASE_NAME  "sessions.db"
#define SESSION_LOCK_NAME      "lock"
#define SESSION_FORMAT_READERS "list, show and doctor work beside it"

struct sqlite3;
struct sqlite3_stmt;

struct session_lock {
    int fd;                /* -1: not held */
    bool predecessor_died; /* the lock file still named a process: it never closed its store */
};

struct session_statement_slot {
    const char *sql; /* identity is the pointer: texts are string constants */
    struct sqlite3_stmt *handle;
    bool is_used;
};

/* The mutex guards everything below it: it is held from statement_begin to statement_end, from
 * read_begin to read_end, and from session_batch_begin until the batch has ended. */
struct session_store {
    pthread_mutex_t mutex; /* recursive */
    struct sqlite3 *database;
    struct session_lock lock;
    struct clock clock;
    enum session_mode mode;
    bool is_batch;     /* between begin and commit or rollback */
    bool batch_failed; /* an append in it failed: it can only be rolled back */
    bool accepts_older;
    bool is_older;         /* than the schema of this build */
    bool writer_is_gone;   /* of the running query: nobody is there to finish what is open */
    uint64_t device, file; /* of the database that was opened to write */
    int64_t interrupted_count;
    size_t statement_count;
    struct session_statement_slot statements[SESSION_STATEMENTS_MAX];
    char directory[SESSION_PATH_BYTES];
    char path[SESSION_PATH_BYTES];
};

/* For what takes more than one statement without a transaction. */
struct session_store *store_lock(struct session_store *store);
void store_unlock(struct session_store **store); /* for CLEANUP */

/* `code` is the one SQLite just returned on this store's connection. */
MUST_CHECK result store_fail(const struct session_store *store, int code, struct error *error);
/* Whether the database still lies where it was opened. */
MUST_CHECK result store_check_place(struct session_store *store, struct error *error);

/* Several appends as one: in the batch of the caller, or (is_own) in one of their own, which
 * store_step_end commits, or undoes when `status` is a failure. */
MUST_CHECK result store_step_begin(struct session_store *store, bool *is_own, struct error *error);
MUST_CHECK result
store_step_end(struct session_store *store, bool is_own, result status, struct error *error);

/* A statement in use; binding errors stick until statement_step. */
struct statement {
    struct session_store *store;
    struct session_statement_slot *slot;
    int status; /* SQLite's code, 0 when fine */
};

/* `sql` must be a string constant: it is prepared once per store and kept. */
MUST_CHECK result statement_begin(
    struct statement *out, struct session_store *store, const char *sql, struct error *error
);
void statement_end(struct statement *statement); /* usable with CLEANUP */
/* Parameters count from 1. Views must live until statement_end. */
void statement_bind_i64(struct statement *statement, int at, int64_t value);
void statement_bind_double(struct statement *statement, int at, double value);
void statement_bind_text(struct statement *statement, int at, struct view text); /* made UTF-8 */
void statement_bind_blob(struct statement *statement, int at, struct view bytes);
void statement_bind_null(struct statement *statement, int at);
/* Runs to the next row; `*row` false at the end. */
MUST_CHECK result statement_step(struct statement *statement, bool *row, struct error *error);
/* Runs a statement that gives no rows and checks that it changed exactly one; otherwise
 * INVALID_INPUT with `refusal`. In a batch a failure is remembered. */
MUST_CHECK result
statement_run_once(struct statement *statement, const char *refusal, struct error *error);
/* Columns count from 0; any stored type is accepted. Views die with the next step. */
int64_t statement_i64(const struct statement *statement, int column);
double statement_double(const struct statement *statement, int column);
struct view statement_bytes(const struct statement *statement, int column);
bool statement_is_null(const struct statement *statement, int column);
int64_t statement_inserted(const struct statement *statement); /* row number of the insert */

/* Runs any number of statements without results. */
MUST_CHECK result store_execute(struct session_store *store, const char *sql, struct error *error);
/* First column of the first row, as an integer or (cut to fit) as text; one-off, not kept. */
MUST_CHECK result
store_query_i64(struct session_store *store, const char *sql, int64_t *out, struct error *error);
MUST_CHECK result store_query_text(
    struct session_store *store, const char *sql, char *out, size_t capacity, struct error *error
);
/* VACUUM INTO `path`, which must not exist, flushed to the disk. */
MUST_CHECK result store_backup(struct session_store *store, const char *path, struct error *error);

struct session_migration {
    int64_t to; /* from version to - 1 */
    const char *sql;
};

/* Brings a database of an older version up to `target`: backup beside it
 * (sessions.db.version-N), then all steps in one transaction, checked before it is committed. */
MUST_CHECK result session_migrate(
    struct session_store *store,
    const struct session_migration *steps,
    size_t step_count,
    int64_t target,
    struct error *error
);

/* session_store_open with other versions than this build's: for tests of the mechanism. */
struct session_versions {
    int64_t target;
    const struct session_migration *steps;
    size_t step_count;
};
MUST_CHECK result session_store_open_versions(
    struct session_store **out,
    const struct session_store_options *options,
    const struct session_versions *versions,
    struct error *error
);
struct session_versions session_versions_shipped(void);

/* Makes the directory (0700) or checks it, and takes the writer's lock. */
MUST_CHECK result session_directory_prepare(const char *directory, struct error *error);
MUST_CHECK result session_lock_acquire(
    struct session_lock *out, const char *directory, const char *program, struct error *error
);
void session_lock_release(struct session_lock *lock);
/* Whether a writer lives; takes nothing. */
bool session_lock_is_held(const char *directory);
/* Name of a network file system by statfs' f_type, or null for a local one. */
const char *session_network_file_system(long type);

/* An agent's line of turns: its own, and those that it inherits from the agents it is a fork of, as they
 * were then. stretches[0] are its own. */
struct session_stretch {
    int64_t agent;        /* row */
    int64_t position_max; /* of its turns in the line */
    int64_t rewind_max;   /* its rewinds up to this one count */
    int64_t message_max;  /* messages of the turn at position_max up to this one count */
};
struct session_drop { /* a rewind of the agent of a stretch */
    size_t stretch;
    int64_t position, last_turn;
};
struct session_line {
    struct session_stretch *stretches;
    size_t count;
    struct session_drop *drops;
    size_t drop_count;
};
/* Expected errors: CORRUPT (a fork of itself), LIMIT (SESSION_FORKS_DEEP_MAX), MEMORY. */
MUST_CHECK result session_line_load(
    struct session_store *store, int64_t agent, struct session_line *out, struct error *error
);
/* Whether a rewind took the turn of a stretch out of the line. */
bool session_line_drops(
    const struct session_line *line, size_t stretch, int64_t position, int64_t turn
);
/* The same by the line's own agent alone, or (is_own false) by the others alone. */
bool session_line_drops_by(
    const struct session_line *line, size_t stretch, int64_t position, int64_t turn, bool is_own
);
void session_line_deinit(struct session_line *line); /* usable with CLEANUP */

/* Where a fork leaves its parent's line: what agent.fork_of, fork_rewind and fork_message say. */
struct session_fork_point {
    int64_t turn; /* 0: no fork */
    int64_t rewind;
    int64_t message; /* 0: none of the turn */
};
/* Behind a finished turn of the parent's line, as it is now. Expected errors: NOT_FOUND. */
MUST_CHECK result session_fork_point_find(
    struct session_store *store,
    const struct session_id *parent,
    int64_t turn,
    struct session_fork_point *out,
    struct error *error
);

/* What is open of a session's swarms ends with it: nodes are lost, mail bounces. Only in a batch. */
MUST_CHECK result session_swarms_end(
    struct session_store *store, const struct session_id *session, struct error *error
);

/* Memory that is freed as a whole, with a ceiling. */
struct arena_chunk;
struct arena {
    struct arena_chunk *chunks;
    size_t bytes;
    size_t ceiling;
};
void arena_deinit(struct arena *arena);
MUST_CHECK result
arena_allocate(struct arena *arena, size_t bytes, void **out, struct error *error);
MUST_CHECK result
arena_copy(struct arena *arena, struct view bytes, struct view *out, struct error *error);
/* Room for one more item behind `count` of them; `*items` may move. */
MUST_CHECK result
arena_grow(struct arena *arena, void **items, size_t count, size_t item_bytes, struct error *error);

#endif
