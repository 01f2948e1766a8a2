/* The bound on what the snapshots of all workspaces take together: what goes, and from whom.
 *
 * Snapshots stay as sessions were used, those of the one used last first; of one session its newest
 * ones. A session whose snapshots went is whole otherwise, and says so when it is to go back. Blocks on
 * the disk. Thread: one at a time, as the store of sessions.
 */
#ifndef HEARTH_RUNTIME_RETENTION_H
#define HEARTH_RUNTIME_RETENTION_H

#include "sessions/session.h"

#define RETENTION_BYTES_DEFAULT ((uint64_t)4 << 30)
#define RETENTION_NO_BOUND      UINT64_MAX

struct retention_options {
    const char *state;           /* directory */
    struct session_store *store; /* no one else writes it: no snapshot waits to be recorded */
    const char *in_use;          /* store of snapshots whose latest stays; null: none */
    uint64_t bytes_max;          /* or RETENTION_NO_BOUND: goes what no session refers to */
    int64_t until_ms;            /* of the monotonic clock */
    bool is_trial;               /* says what would go */
};

struct retention_loss {
    struct session_id session;
    int64_t used_ms;
    size_t lost, count; /* of its snapshots */
};

struct retention {
    uint64_t bytes_before, bytes_after; /* of all snapshots */
    size_t workspaces;
    size_t damaged;                /* snapshots of which a part is missing */
    bool is_cut;                   /* there was no time for all of it */
    struct retention_loss *losses; /* [loss_count], newest session first */
    size_t loss_count;
};
void retention_deinit(struct retention *retention); /* usable with CLEANUP */

/* Bytes that the snapshots of all workspaces take. Expected errors of all: IO, LIMIT (another process uses
 * a store), TIMEOUT (until_ms). */
MUST_CHECK result
retention_measure(const char *state, int64_t until_ms, uint64_t *bytes, struct error *error);

MUST_CHECK result retention_apply(
    const struct retention_options *options, struct retention *out, struct error *error
);

#endif
