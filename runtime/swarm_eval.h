/* Strategies compared on a folder of tasks: which runs there are and in which order, what came of them, and
 * what that says.
 *
 * Each task is run with each setting and each seed, once with an equal wall clock and once with equal tokens.
 * What counts is whether the task's hidden tests pass after the agents have stopped. Rates and differences
 * have intervals of a bootstrap over tasks: a resample draws tasks, and each task brings all its seeds with it
 * (they are not independent) and, for a difference, its runs under both settings (paired).
 *
 * Pure: no I/O, no clock, and no randomness but fixed seeds. Who runs them is swarm_eval_drive.h.
 * Thread: one at a time.
 */
#ifndef HEARTH_RUNTIME_SWARM_EVAL_H
#define HEARTH_RUNTIME_SWARM_EVAL_H

#include "base/bytes.h"

#define SWARM_EVAL_TASKS_MAX   1000
#define SWARM_EVAL_SEEDS_MAX   16
#define SWARM_EVAL_SETTINGS    7
#define SWARM_EVAL_LEVELS      3
#define SWARM_EVAL_RESAMPLES   10000
#define SWARM_EVAL_FAULT_BYTES 160
#define SWARM_EVAL_LINE_MAX    ((size_t)16 << 10) /* of the results' file */

enum swarm_eval_budget { SWARM_EVAL_TIME, SWARM_EVAL_TOKENS, SWARM_EVAL_BUDGETS };
const char *swarm_eval_budget_name(enum swarm_eval_budget budget); /* "time", "tokens" */

struct swarm_eval_setting {
    const char *name;
    const char *strategy; /* "auto": chosen for each task */
    int64_t attempts;     /* SWARM_ATTEMPTS_DEFAULT: the strategy's */
    bool shares_nothing;  /* each agent evaluates all of its own prompt */
    bool is_baseline;     /* the others are compared with it */
    bool is_timed_only;   /* with equal tokens it would be the same as another */
    const char *summary;
};
extern const struct swarm_eval_setting swarm_eval_settings[SWARM_EVAL_SETTINGS];
/* SWARM_EVAL_SETTINGS: no such one. */
size_t swarm_eval_find_setting(struct view name);

struct swarm_eval_task {
    struct view id;
    int64_t level; /* 1 to SWARM_EVAL_LEVELS */
};

struct swarm_eval_plan {
    const struct swarm_eval_task *tasks; /* [task_count], borrowed for its life */
    size_t task_count, seed_count;
    int64_t limits[SWARM_EVAL_BUDGETS]; /* of one run: milliseconds, tokens; 0: not evaluated */
    bool has[SWARM_EVAL_SETTINGS];
};

/* One run. */
struct swarm_eval_cell {
    size_t task, setting, seed;
    enum swarm_eval_budget budget;
};

struct swarm_eval_result {
    bool is_solved; /* the hidden tests pass */
    bool is_passed; /* the visible ones do, as the swarm itself says */
    int64_t duration_ms, tokens, agents, calls;
    int64_t prompt_tokens, reused_tokens, evaluated_tokens;
    char fault
        [SWARM_EVAL_FAULT_BYTES]; /* why it could not be run; "": it was. Counts as not solved */
};

struct swarm_eval;

/* Expected errors: INVALID_INPUT (a number out of range, two tasks of one id, nothing to run), MEMORY. */
MUST_CHECK result
swarm_eval_create(struct swarm_eval **out, const struct swarm_eval_plan *plan, struct error *error);
void swarm_eval_destroy(struct swarm_eval *eval); /* accepts null */
void swarm_eval_cleanup(struct swarm_eval **eval);

const struct swarm_eval_plan *swarm_eval_plan(const struct swarm_eval *eval);
void swarm_eval_add(
    struct swarm_eval *eval,
    const struct swarm_eval_cell *cell,
    const struct swarm_eval_result *outcome
);
/* Null: not run yet. */
const struct swarm_eval_result *
swarm_eval_get(const struct swarm_eval *eval, const struct swarm_eval_cell *cell);
size_t swarm_eval_total(const struct swarm_eval *eval); /* runs of the plan */
size_t swarm_eval_done(const struct swarm_eval *eval);  /* those of the plan that have a result */
/* The next run of the plan without a result. Seed by seed and task by task, so that what is there when it is
 * cut short can be compared; within a task the settings take turns at being first. False: all are done. */
bool swarm_eval_next(const struct swarm_eval *eval, struct swarm_eval_cell *out);
/* Of a run's sampler: the same for all settings, whichever other tasks there are. */
uint64_t swarm_eval_seed(const struct swarm_eval *eval, const struct swarm_eval_cell *cell);

/* ---- what it says ------------------------------------------------------------------------------ */

struct swarm_eval_figure {
    size_t tasks, runs;
    double value, low, high; /* with a 95 % interval; 0 without runs */
};

/* Part of the runs that solved their task; level 0: of all. */
void swarm_eval_rate(
    struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting,
    int64_t level,
    struct swarm_eval_figure *out
);
/* How much more of the runs that both settings have did `setting` solve. */
void swarm_eval_difference(
    struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting,
    size_t against,
    struct swarm_eval_figure *out
);

/* Means over the runs of a setting, and counts. */
struct swarm_eval_costs {
    size_t runs, passed, faults;
    size_t deceived; /* passed the visible tests, not the hidden ones */
    double duration_ms, tokens, agents, calls, prompt_tokens, reused_tokens, evaluated_tokens;
};
void swarm_eval_costs(
    const struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting,
    struct swarm_eval_costs *out
);

/* The 2.5 and 97.5 % points of the mean of `count` values drawn with replacement, over
 * SWARM_EVAL_RESAMPLES draws; `scratch` has room for as many. */
void swarm_eval_interval(
    const double *values, size_t count, uint64_t seed, double *scratch, double *low, double *high
);

/* Of the run as a whole, for table and JSON. */
struct swarm_eval_about {
    struct view model, backend;
    int32_t effort;
    double temperature;
};

/* For people, below 100 columns. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result swarm_eval_write_table(
    struct swarm_eval *eval,
    const struct swarm_eval_about *about,
    struct buffer *out,
    struct error *error
);
/* All of it as one object (docs/swarm-eval.md). Expected errors: MEMORY, LIMIT. */
MUST_CHECK result swarm_eval_write_json(
    struct swarm_eval *eval,
    const struct swarm_eval_about *about,
    struct buffer *out,
    struct error *error
);

/* ---- the file of results ----------------------------------------------------------------------- */

/* A line of JSON, with its end, by names: it is read again with other settings or seeds. */
MUST_CHECK result swarm_eval_write_line(
    const struct swarm_eval *eval,
    const struct swarm_eval_cell *cell,
    const struct swarm_eval_result *outcome,
    struct buffer *out,
    struct error *error
);
/* Adds what is in a file: `header`, then lines. A last line without its end is what a kill left and is not read;
 * *used is the length of what was. Settings and seeds that the plan has not are read and kept beside it; seeds
 * beyond SWARM_EVAL_SEEDS_MAX and what is no line of such a file are refused. An empty file is fine. Expected errors:
 * INVALID_INPUT (with the line's number; another header: both are named), MEMORY. */
MUST_CHECK result swarm_eval_read_lines(
    struct swarm_eval *eval, struct view header, struct view text, size_t *used, struct error *error
);

#endif
