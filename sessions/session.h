/* What happened, durably: sessions, agents, turns, messages, token runs, tool calls, cache facts.
 *
 * A store is one SQLite database (`sessions.db`, WAL) in a state directory with one writer. Every
 * append is one transaction that is on the disk when the call returns, so a caller that appends
 * before it acts can lose nothing it has acted upon. Appends run in order:
 *
 *     session_create -> session_agent_append -> then for each turn:
 *         session_turn_start, session_message_append (what is new in the prompt)
 *         the generation; then, in one batch: session_turn_finish, session_run_append,
 *         session_message_append (what the model wrote)
 *         for each call: session_call_start, the tool, session_call_finish
 *     -> session_finish; later perhaps session_resume, and on with turns
 *
 * A crash leaves sessions, turns and calls open; the next writer marks them interrupted, and
 * readers already show them so while no writer lives. Readers (SESSION_READ_ONLY) work beside a
 * writer. All calls block on the disk, so they are made by workers, any number of them at a time: one
 * lock of the store lets one call at a time through, and keeps the others out between
 * session_batch_begin and the end of the batch, which is the same thread's. A batch therefore holds
 * nothing but appends. One writer with one log is all that SQLite has anyway, and a batch that nobody
 * else can step into is what makes its appends one step.
 *
 * Expected errors of every append: IO (disk full, read-only: the message says which), TIMEOUT
 * (another program holds the database lock), CORRUPT (damaged database), LIMIT (a value over its
 * maximum), INVALID_INPUT (out of order, unknown id, counters that do not add up). After a failure
 * the append has left nothing behind and the store stays usable.
 */
#ifndef HEARTH_SESSIONS_SESSION_H
#define HEARTH_SESSIONS_SESSION_H

#include "base/clock.h"
#include "base/json.h"

#define SESSION_ID_LENGTH       36 /* 8-4-4-4-12 hexadecimal digits, UUIDv7, lower case */
#define SESSION_ID_PREFIX_MIN   4  /* shorter prefixes name too much by accident */
#define SESSION_TEXT_BYTES_MAX  ((size_t)64 << 20)  /* one text or blob */
#define SESSION_TREE_BYTES_MAX  ((size_t)512 << 20) /* one session in memory */
#define SESSION_LIST_COUNT_MAX  100000
#define SESSION_BUSY_MS_DEFAULT 5000

struct session_store;
struct session_swarm;
struct session_node;
struct session_mail;

struct session_id {
    char text[SESSION_ID_LENGTH + 1]; /* "" is "none" */
};

enum session_mode { SESSION_READ_ONLY, SESSION_READ_WRITE };

struct session_store_options {
    const char *state_dir; /* made with mode 0700 when missing (read-write only) */
    enum session_mode mode;
    int busy_ms;            /* how long to wait for a foreign lock; 0: SESSION_BUSY_MS_DEFAULT */
    const char *program;    /* named in the lock file, "hearth run"; null: "hearth" */
    struct clock clock;     /* wall time stamps every row; clock_real() outside tests */
    bool keeps_writers_out; /* a reader that has the writer's lock as long as it is open */
    bool accepts_older;     /* a reader of an older schema, for session_store_verify only */
};

/* A new time-ordered id (RFC 9562 UUIDv7). Expected errors: IO (no randomness). Thread: any. */
MUST_CHECK result
session_id_create(struct session_id *out, const struct clock *clock, struct error *error);

/* Opens the store of a state directory. Expected errors: LIMIT (another writer; the message names
 * its pid and the remedy), NOT_FOUND (read-only and nothing recorded yet), IO, CORRUPT (no
 * database, damaged; left as it is), UNSUPPORTED (newer schema, network file system),
 * INVALID_INPUT (the directory is open to other users and holds other files). */
MUST_CHECK result session_store_open(
    struct session_store **out, const struct session_store_options *options, struct error *error
);
/* Ends statements, connection and lock; accepts null. What was appended is already durable. */
void session_store_close(struct session_store *store);
void session_store_cleanup(struct session_store **store); /* for CLEANUP */

/* Runs PRAGMA integrity_check and foreign_key_check over everything; slow on large stores.
 * Expected errors: CORRUPT (with SQLite's first finding). */
MUST_CHECK result session_store_verify(struct session_store *store, struct error *error);
/* Whether the next writer brings the schema up (accepts_older). */
bool session_store_is_older(const struct session_store *store);
/* What the opening writer found left open by a writer that died. */
int64_t session_store_interrupted_count(const struct session_store *store);

/* ---------------------------------------------------------------- append ---- */

/* Groups the appends between them into one transaction: one disk flush instead of several, and all
 * or nothing. Only for steps that nobody acts upon before session_batch_commit returns. */
MUST_CHECK result session_batch_begin(struct session_store *store, struct error *error);
MUST_CHECK result session_batch_commit(struct session_store *store, struct error *error);
void session_batch_rollback(struct session_store *store);

struct session_sampler {
    uint64_t seed;
    double temperature; /* 0: greedy */
    double top_p;
    int64_t effort; /* 1..100; 0: chat mode */
    /* Everything else that decides what is sampled and when a generation ends, as one JSON object of
     * the program's; "": not known. */
    struct view settings;
};

/* Views may be empty, which is stored as "unknown". */
struct session_begin {
    struct view task;      /* what the user asked */
    struct view workspace; /* directory */
    struct view model;     /* directory */
    struct view model_digest;
    struct view backend;
    struct view numerics_version;
    struct view program_version;
    struct view commit_before; /* workspace snapshot before the first step */
    struct view window_mode;   /* "exact", "replay" */
    struct session_sampler sampler;
    int64_t time_ms_max;     /* 0: none */
    int64_t tokens_max;      /* 0: none */
    struct view worktree_of; /* the directory that `workspace` is a copy of; "": none */
};

MUST_CHECK result session_create(
    struct session_store *store,
    const struct session_begin *begin,
    struct session_id *out,
    struct error *error
);

enum session_status {
    SESSION_RUNNING,
    SESSION_DONE,        /* came to its own end */
    SESSION_FAILED,      /* ended on an error of the host or the engine */
    SESSION_STOPPED,     /* by the user or by a budget */
    SESSION_INTERRUPTED, /* its writer died; set by the next writer */
};

struct session_end {
    enum session_status status;
    struct view verdict;     /* "tests pass", "no change", ... a few words */
    struct view stop_reason; /* "answer", "finish", "turns", "time", "tokens", "interrupt", ... */
    struct view commit_after;
    int64_t exit_status; /* of the program */
};

/* Swarms of it that have not ended end with it: their nodes are lost, mail that waits bounces. */
MUST_CHECK result session_finish(
    struct session_store *store,
    const struct session_id *session,
    const struct session_end *end,
    struct error *error
);

/* What continues a session. */
struct session_resume_begin {
    struct view backend;
    struct view numerics_version;
    struct view program_version;
    struct view commit_before; /* workspace snapshot before the first step from here on */
};

/* Opens an ended session again: its agents take further turns and calls until the next
 * session_finish. How it had ended is kept as a resumption. */
MUST_CHECK result session_resume(
    struct session_store *store,
    const struct session_id *session,
    const struct session_resume_begin *begin,
    struct error *error
);

/* A child that wrote summaries of its parent's context. The first run of each of its turns begins where
 * that context ended: what precedes it are the parent's turns with lower numbers. */
#define SESSION_AGENT_SUMMARIES "summaries"

struct session_agent_begin {
    struct session_id session;
    struct session_id parent; /* "" for the root agent */
    struct view name;         /* "main", SESSION_AGENT_SUMMARIES, or the brief of a child */
    struct view tools;        /* tool declarations as JSON text, "" for none */
    struct session_sampler sampler;
    /* Number of a finished turn of the parent's context, which the new agent's context goes on behind, as
     * it is now: calls of it need not be answered yet, and what the parent is answered later is not the
     * child's. 0: it begins with nothing. NOT_FOUND: there is no such turn. */
    int64_t fork_turn;
};

MUST_CHECK result session_agent_append(
    struct session_store *store,
    const struct session_agent_begin *begin,
    struct session_id *out,
    struct error *error
);

/* Starts the next turn of an agent: one generation, the messages new in its prompt, and the calls
 * made in it. The turn's number is its key in the calls below; numbers are unique in the store. */
MUST_CHECK result session_turn_start(
    struct session_store *store, const struct session_id *agent, int64_t *turn, struct error *error
);

/* What a generation depended on (promise P3) and what it cost (P8): evaluated + reused must equal
 * prompt, and accepted be at most drafted, or INVALID_INPUT. rebuilt counts rows run again only to rebuild windows. With the tokens
 * and the session's model digest this re-creates the computation. */
struct session_cache_facts {
    int64_t prompt_tokens;
    int64_t evaluated_tokens;
    int64_t reused_tokens;
    int64_t rebuilt_tokens;
    int64_t hit_position;    /* tokens of the prefix that were there, 0: cold */
    int64_t rebuilt_from;    /* first row run again for the windows; "rebuilt" and "replay" only */
    int64_t restored_host;   /* tokens of the hit that came from host memory */
    int64_t restored_disk;   /* ... and from the disk */
    struct view miss_reason; /* why not more was reused; "" when all was that could be */
    int64_t miss_token;      /* first position that the cache did not have */
    struct view window_source; /* "cold", "live", "snapshot", "rebuilt", "replay" */
    struct view replays; /* "encoder@256 decoder@1800": what the content depends on; "": exact */
    struct view lineage; /* root lineage, hexadecimal */
    struct view block_lineage;
    struct view decoder_lineage; /* "0": exact */
    struct view backend;
    struct view numerics_version;
};

struct session_turn_end {
    struct session_cache_facts cache;
    struct session_sampler sampler; /* as used by this turn */
    int64_t output_tokens;
    int64_t prefill_ms;
    int64_t decode_ms;
    struct view
        stop_reason; /* of the generation: "end", "length", "stop", "loop", "cancelled", ... */
    struct view stop_detail; /* the stop string that ended it; "": none did */
    int64_t drafted;         /* tokens proposed; */
    int64_t accepted;        /* of these, those that were the model's own draw */
    int64_t preempted;       /* times it gave its place to a more urgent one */
    uint64_t parent_seed;    /* of a fork: sampler.seed is derived from it and fork_index; else 0 */
    int64_t fork_index;      /* -1: not a fork */
};

MUST_CHECK result session_turn_finish(
    struct session_store *store,
    int64_t turn,
    const struct session_turn_end *end,
    struct error *error
);

struct session_message_begin {
    int64_t turn;
    struct view role;      /* "system", "user", "assistant", "tool" */
    struct view text;      /* need not be UTF-8 (what a model writes may be torn) */
    struct view reasoning; /* assistant only */
    struct view calls;     /* assistant only: its calls as JSON text, "" for none */
    int64_t call;          /* role "tool": the call it answers, else 0 */
};

MUST_CHECK result session_message_append(
    struct session_store *store, const struct session_message_begin *message, struct error *error
);

enum session_run_kind { SESSION_RUN_PROMPT, SESSION_RUN_OUTPUT };

/* A stretch of tokens of one turn, at positions [position, position + count). */
struct session_run_begin {
    int64_t turn;
    enum session_run_kind kind;
    int64_t position;
    size_t count;
    const int32_t *ids;
    const float *log_probabilities; /* [count], natural logarithm; null when not known */
};

MUST_CHECK result session_run_append(
    struct session_store *store, const struct session_run_begin *run, struct error *error
);

struct session_call_begin {
    int64_t turn;
    struct view name;
    struct view arguments;     /* JSON text exactly as parsed from the model */
    struct view commit_before; /* workspace snapshot, "" when none was taken */
};

/* To be called, and to have returned, before the tool is started. `call` is the key for
 * session_call_finish; unique in the store. */
MUST_CHECK result session_call_start(
    struct session_store *store,
    const struct session_call_begin *begin,
    int64_t *call,
    struct error *error
);

enum session_call_status {
    SESSION_CALL_STARTED, /* no result recorded yet */
    SESSION_CALL_OK,
    SESSION_CALL_ERROR,
    SESSION_CALL_TIMEOUT,
    SESSION_CALL_CANCELLED,
    SESSION_CALL_REFUSED,
    SESSION_CALL_INTERRUPTED, /* the writer died in between; set by the next writer */
};

struct session_call_end {
    enum session_call_status status;
    struct view text;       /* what the model is shown */
    struct view output;     /* everything that was kept, raw bytes; may equal text */
    uint64_t output_bytes;  /* produced in all; above output.length when the sandbox cut it: */
    uint64_t output_gap_at; /* the missing bytes lay at this offset of output */
    bool text_is_truncated;
    bool has_exit_status;
    int64_t exit_status;
    int64_t duration_ms;
    struct view commit_after;
};

/* To be called before the model is given the result. A call finishes once: INVALID_INPUT after. */
MUST_CHECK result session_call_finish(
    struct session_store *store,
    int64_t call,
    const struct session_call_end *end,
    struct error *error
);

/* What was allowed or refused, and by whom. */
struct session_decision_begin {
    struct session_id session;
    int64_t turn; /* 0: of none */
    int64_t call; /* 0: of none; session_call_start gave it */
    bool is_allowed;
    struct view kind;    /* "tool", "network", "hook", "server" */
    struct view subject; /* the tool, "example.org:443", the hook's command, the server's name */
    struct view decider; /* "policy", "rule", "person", "hook", "default" */
    struct view rule;    /* the rule that applied, as written; "": none */
    struct view reason;  /* words */
};

/* Before what was decided upon is done. */
MUST_CHECK result session_decision_append(
    struct session_store *store, const struct session_decision_begin *decision, struct error *error
);

/* That a turn begins a new context: its messages and its prompt run, which begins at position 0, take
 * the place of all that precedes. */
struct session_compaction_begin {
    int64_t turn;
    int64_t tokens_before, tokens_after;
    int64_t pruned;      /* outputs of tools left out */
    struct view summary; /* "": only outputs were left out */
};

/* In one batch with the turn's messages and prompt run. */
MUST_CHECK result session_compaction_append(
    struct session_store *store,
    const struct session_compaction_begin *compaction,
    struct error *error
);

#define SESSION_FORKS_DEEP_MAX 1000 /* forks of forks */

/* A new session that goes on behind a turn of another one. Nothing is copied: the new one refers to
 * the turns before it, and they stay part of it whatever happens to the other later. */
struct session_fork_begin {
    struct session_id session; /* the other one; its root agent is forked */
    int64_t index;         /* of the turn (session_turn.index), all of whose calls are answered */
    struct view commit;    /* workspace snapshot at that turn */
    struct view workspace; /* of the new one; "": the same */
    struct view worktree_of;
    struct view program_version;
    /* Another model: the first turn of the new session then has to begin a context of its own. "": the
     * one of the session in which the turn was made. */
    struct view model, model_digest, backend, numerics_version;
};

/* The new session is stopped and can be resumed. Expected errors beside those of all appends:
 * NOT_FOUND (no such turn), INVALID_INPUT (unanswered calls). */
MUST_CHECK result session_fork(
    struct session_store *store,
    const struct session_fork_begin *begin,
    struct session_id *out,
    struct error *error
);

#define SESSION_REWIND_ALL            ((int64_t)-1) /* no turn is left */
#define SESSION_REWIND_WORKSPACE_ONLY ((int64_t)-2)

/* An agent's context ends at an earlier turn from now on; the turns behind it stay in the record. */
struct session_rewind_begin {
    struct session_id session;
    struct session_id agent; /* "": the root */
    int64_t index; /* the last turn that stays, all of whose calls are answered; or above */
    struct view commit_before; /* safety snapshot; "": the workspace was left alone */
    struct view commit_after;  /* what the workspace was restored to */
};

/* Of a running session or one that has ended. Expected errors as of session_fork; INVALID_INPUT: the turn
 * was made by another model. */
MUST_CHECK result session_rewind(
    struct session_store *store, const struct session_rewind_begin *begin, struct error *error
);

/* Removes a session that does not run and all that is recorded of it; not within a batch. What it was is
 * overwritten in the database. Expected errors: INVALID_INPUT (there is none, or it runs; forks refer to
 * its turns: they are named). */
MUST_CHECK result
session_delete(struct session_store *store, const struct session_id *session, struct error *error);

/* The newest turn of the root agent whose calls are all answered, at most `index_max` (INT64_MAX: any),
 * rewound ones apart. Expected errors: NOT_FOUND. */
MUST_CHECK result session_last_whole_turn(
    struct session_store *store,
    const struct session_id *session,
    int64_t index_max,
    int64_t *index,
    struct error *error
);

/* ----------------------------------------------------------------- query ---- */

struct session_usage {
    int64_t agents;
    int64_t turns;
    int64_t calls;
    int64_t prompt_tokens;
    int64_t evaluated_tokens;
    int64_t reused_tokens;
    int64_t rebuilt_tokens;
    int64_t output_tokens;
    int64_t drafted;
    int64_t accepted;
    int64_t prefill_ms;
    int64_t decode_ms;
    int64_t tools_ms;
};

/* One session without its tree. Views die with the list or tree that holds them. */
struct session_summary {
    struct session_id id;
    enum session_status status;
    int64_t created_ms; /* wall clock, UTC */
    int64_t ended_ms;   /* 0 while open */
    int64_t exit_status;
    struct session_begin begin;
    struct view verdict;
    struct view stop_reason;
    struct view commit_after;
    struct session_usage usage;
};

struct session_filter {
    size_t count_max;      /* 0: SESSION_LIST_COUNT_MAX */
    int64_t before_ms;     /* created before; 0: any */
    int64_t since_ms;      /* created at or after; 0: any */
    struct view workspace; /* exact directory; empty: any */
    struct view task_part; /* the task contains this text (ASCII letters in either case) */
    bool has_status;
    enum session_status status;
};

struct session_list {
    struct session_summary *sessions; /* newest first */
    size_t count;
    bool is_cut; /* more than count_max matched */
};

/* `filter` may be null. Expected errors: IO, CORRUPT, MEMORY. */
MUST_CHECK result session_list_load(
    struct session_store *store,
    const struct session_filter *filter,
    struct session_list **out,
    struct error *error
);
void session_list_destroy(struct session_list *list);
void session_list_cleanup(struct session_list **list); /* for CLEANUP */

#define SESSION_COMMIT_BYTES 41 /* name of a workspace snapshot and NUL */

struct session_snapshot {
    size_t session; /* index of who refers to it */
    char commit[SESSION_COMMIT_BYTES];
};

struct session_snapshots_of {
    struct session_id id;
    struct view workspace;
    int64_t used_ms; /* wall clock: when it last began or ended something */
};

/* The snapshots that sessions refer to, those first that are worth keeping longest: of the session that
 * was used last from the newest on; of the next session the same. A snapshot may be named by several. */
struct session_snapshots {
    struct session_snapshot *items;
    size_t count;
    struct session_snapshots_of *sessions; /* all, those without snapshots too */
    size_t session_count;
};

/* Expected errors: TIMEOUT (the monotonic clock has reached `until_ms`), CORRUPT, LIMIT. */
MUST_CHECK result session_snapshots_load(
    struct session_store *store,
    int64_t until_ms,
    struct session_snapshots **out,
    struct error *error
);
void session_snapshots_destroy(struct session_snapshots *snapshots);
void session_snapshots_cleanup(struct session_snapshots **snapshots); /* for CLEANUP */

/* A full id, a unique prefix of at least SESSION_ID_PREFIX_MIN characters (either case), or
 * "last": the newest session of a workspace or of a copy of it; `workspace` "": of all. Expected errors:
 * NOT_FOUND (names the newest of all, if there is one), INVALID_INPUT (no id, too short, or ambiguous: two
 * candidates are named). */
MUST_CHECK result session_resolve(
    struct session_store *store,
    struct view text,
    struct view workspace,
    struct session_id *out,
    struct error *error
);

struct session_message {
    struct view role;
    struct view text;
    struct view reasoning;
    struct view calls; /* JSON text */
    int64_t call;      /* number of the tool call it answers, 0: none */
    int64_t created_ms;
};

struct session_run {
    enum session_run_kind kind;
    int64_t position;
    size_t count;
    const int32_t *ids;             /* null when loaded without tokens */
    const float *log_probabilities; /* null when not recorded or loaded without tokens */
};

struct session_call {
    int64_t number;
    enum session_call_status status;
    struct view name;
    struct view arguments;
    struct view text;
    struct view output; /* empty when loaded without outputs */
    uint64_t output_bytes;
    uint64_t output_gap_at;
    bool text_is_truncated;
    bool has_exit_status;
    int64_t exit_status;
    int64_t started_ms;
    int64_t ended_ms; /* 0 while open */
    int64_t duration_ms;
    struct view commit_before;
    struct view commit_after;
};

struct session_compaction {
    int64_t compacted_ms;
    int64_t tokens_before, tokens_after, pruned;
    struct view summary;
};

struct session_turn {
    int64_t number;    /* unique in the store */
    int64_t index;     /* 0.. within its agent, those that a fork inherits included */
    bool is_inherited; /* of the agent that this one is a fork of */
    bool is_rewound;   /* no part of the context any more */
    bool is_finished;
    const struct session_compaction *compaction; /* null: the context went on */
    int64_t started_ms;
    int64_t ended_ms;            /* 0 while open */
    struct session_turn_end end; /* zero while open */
    struct session_message *messages;
    size_t message_count;
    struct session_run *runs;
    size_t run_count;
    struct session_call *calls;
    size_t call_count;
};

struct session_rewound {
    int64_t rewound_ms;
    int64_t index; /* as in session_rewind_begin */
    struct view commit_before, commit_after;
};

struct session_decision {
    int64_t turn, call; /* 0: of none */
    int64_t decided_ms;
    bool is_allowed;
    struct view kind, subject, decider, rule, reason;
};

struct session_agent {
    struct session_id id;
    struct session_id parent;
    struct view name;
    struct view tools;
    struct session_sampler sampler;
    int64_t created_ms;
    struct session_id fork_of; /* session; "": not a fork */
    int64_t fork_index;        /* of its turn */
    /* A fork of its parent: so many messages of that turn are its own too (-1: not one). The parent's
     * turns are not repeated in `turns`. */
    int64_t fork_messages;
    const struct session_node *node; /* null: of no swarm */
    struct session_turn *turns;
    size_t turn_count;
    struct session_rewound *rewinds; /* oldest first */
    size_t rewind_count;
};

/* A session that went on: how it had ended before, and what runs it from then on. */
struct session_resumption {
    int64_t resumed_ms;
    int64_t turns_before; /* turns of all its agents until then */
    struct session_resume_begin begin;
    enum session_status status; /* of the end before */
    int64_t ended_ms;           /* 0: not known, the program had died */
    int64_t exit_status;
    struct view verdict;
    struct view stop_reason;
    struct view commit_after;
};

struct session_tree {
    struct session_summary session;
    struct session_resumption *resumptions; /* oldest first */
    size_t resumption_count;
    struct session_agent *agents; /* in order of creation, the root first */
    size_t agent_count;
    struct session_decision *decisions; /* in their order; not those of inherited turns */
    size_t decision_count;
    struct session_swarm *swarms; /* in order of their start; see session_swarm.h */
    size_t swarm_count;
    struct session_mail *mail; /* in the order in which it was sent */
    size_t mail_count;
};

struct session_load_options {
    bool with_tokens;  /* ids and log-probabilities */
    bool with_outputs; /* full outputs of calls */
};

/* One consistent picture of a session, also while it is being written. `options` may be null
 * (neither). Expected errors: NOT_FOUND, CORRUPT, LIMIT (over SESSION_TREE_BYTES_MAX), MEMORY. */
MUST_CHECK result session_load(
    struct session_store *store,
    const struct session_id *session,
    const struct session_load_options *options,
    struct session_tree **out,
    struct error *error
);
void session_tree_destroy(struct session_tree *tree);
void session_tree_cleanup(struct session_tree **tree); /* for CLEANUP */

/* ---------------------------------------------------------------- events ---- */

#define SESSION_EVENT_VERSION 1 /* "version" of the JSON below */

/* Stable lower-case words: "running", "done", "ok", "timeout", "prompt", ... */
const char *session_status_name(enum session_status status);
const char *session_call_status_name(enum session_call_status status);
const char *session_run_kind_name(enum session_run_kind kind);

/* One JSON object; bytes that are no UTF-8 are written as U+FFFD. Errors stick in the writer
 * (json_writer_finish). Thread: any. */
void session_summary_write(struct json_writer *writer, const struct session_summary *summary);
void session_tree_write(struct json_writer *writer, const struct session_tree *tree);

#endif
