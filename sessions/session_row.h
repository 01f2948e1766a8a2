/* Columns of a row, taken one after the other into an arena; numbers of a damaged or hostile file are
 * checked. Internal to sessions/. Thread: the store's.
 */
#ifndef HEARTH_SESSIONS_SESSION_ROW_H
#define HEARTH_SESSIONS_SESSION_ROW_H

#include "session_internal.h"

/* The first failure sticks in `status`. */
struct row {
    const struct statement *statement;
    struct arena *arena;
    struct error *error;
    result status;
    int column;
};

struct row row_of(const struct statement *statement, struct arena *arena, struct error *error);
int64_t take_i64(struct row *row); /* NULL reads as 0 */
double take_double(struct row *row);
struct view take_bytes(struct row *row);
struct view take_text(struct row *row); /* must be UTF-8 */
struct session_id take_id(struct row *row);
/* A number in [0, max]: enumerators and flags. */
int64_t take_small(struct row *row, int64_t max, const char *what);
struct session_sampler take_sampler(struct row *row);

/* A read transaction, unless a batch is open, which already is one. Readers also find out whether what
 * they are about to see as running has anybody left to finish it. */
MUST_CHECK result read_begin(struct session_store *store, bool *opened, struct error *error);
void read_end(struct session_store *store, bool opened);

#define SUMMARY_COLUMNS                                                                            \
    "number, id, status, created_ms, ended_ms, exit_status, task, workspace, model, model_digest," \
    " backend, numerics_version, program_version, commit_before, seed, temperature, top_p,"        \
    " effort, settings, time_ms_max, tokens_max, verdict, stop_reason, commit_after, window_mode," \
    " worktree_of"
/* `number` is the session's row, for its agents. */
MUST_CHECK result read_summary(
    const struct statement *statement,
    struct arena *arena,
    struct session_summary *out,
    int64_t *number,
    struct error *error
);

#endif
