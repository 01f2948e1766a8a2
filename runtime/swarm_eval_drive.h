/* Makes the runs of an evaluation one after another and keeps their results in a file.
 *
 * Each result is a line that is written before the next run begins; a later call goes on where the file ends
 * (swarm_eval.h says what it may differ in). How a run is made is the port's: the host of swarms, or a test.
 * Thread: one.
 */
#ifndef HEARTH_RUNTIME_SWARM_EVAL_DRIVE_H
#define HEARTH_RUNTIME_SWARM_EVAL_DRIVE_H

#include "swarm_eval_folder.h"

#define SWARM_EVAL_FAULTS_MAX     3 /* in a row: something is wrong that no further run cures */
#define SWARM_EVAL_TOKENS_TIME_MS 120000 /* a run with equal tokens ends at the latest then */
#define SWARM_EVAL_FILE_MAX       ((size_t)256 << 20)

/* One run, as the port is asked for it. */
struct swarm_eval_order {
    const struct swarm_eval_item *item;
    const struct swarm_eval_setting *setting;
    int64_t time_ms_max, tokens_max; /* 0: no limit */
    uint64_t seed;
};

struct swarm_eval_port {
    void *context;
    /* Places the repository, runs the swarm, judges, removes. Blocks. A failure is recorded as the run's fault;
     * CANCELLED: the person wants an end, nothing is recorded. */
    result (*run
    )(void *context,
      const struct swarm_eval_order *order,
      struct swarm_eval_result *out,
      struct error *error);
    int64_t (*now_ms)(void *context); /* monotonic */
    /* What was done, and how long the rest will take: one line, after each run. */
    void (*say)(void *context, struct view line);
};

struct swarm_eval_drive {
    struct swarm_eval *eval;
    const struct swarm_eval_folder *folder;
    const struct swarm_eval_port *port;
    const char *path;   /* of the results' file; made when missing */
    struct view header; /* its first line: what the results depend on, and the plan does not say */
};

/* Returns when all runs have a result. Expected errors: CANCELLED, INVALID_INPUT (the file is not of this
 * evaluation), LIMIT (another process writes it; SWARM_EVAL_FAULTS_MAX), IO. */
MUST_CHECK result swarm_eval_drive(const struct swarm_eval_drive *drive, struct error *error);

/* The header's line: format, tasks, limits and the host's facts (a JSON object). Expected errors: MEMORY. */
MUST_CHECK result swarm_eval_header(
    const struct swarm_eval *eval,
    const struct swarm_eval_folder *folder,
    struct view facts,
    struct buffer *out,
    struct error *error
);

#endif
