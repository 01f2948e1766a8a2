/* What a step carries, who holds a window slot, who may begin: the scheduler's decisions.
 *
 * Pure: every function is a function of its arguments, the clock's reading among them. Nothing here
 * reads a clock, draws a number, allocates (schedule_create apart) or looks at an address, so that
 * the same state gives the same decision: tables, simulation and replay depend on it. One decision
 * of the engine thread is, in this order:
 *   schedule_admit  queued ones whose blocks can be promised          -> step.admit
 *   schedule_demote who gives his blocks back for the one that is blocked
 *   schedule_slots  who gets a window slot, who gives his away        -> step.activate, preempt
 *   schedule_rows   rows of everybody that has one                    -> step.entries
 * The engine carries each out and refreshes the sequences before the next. Forwarding, parking and
 * memory are not done here. Order everywhere: slack (deadline - now - estimated rest; negative
 * counts as zero, none as infinite), then rows served to its agent (least first), then the time
 * since its last row (longest first), then age. It is total, since queue numbers differ. Time is
 * microseconds of one monotonic clock. Thread: any; a struct schedule belongs to one thread at a
 * time.
 */
#ifndef HEARTH_ENGINE_SCHEDULE_H
#define HEARTH_ENGINE_SCHEDULE_H

#include "base/result.h"

/* A step aims at the target and is never planned beyond it; the limit is promise P5. What lies
 * between them is for what a prediction misses. */
#define SCHEDULE_STEP_TARGET_US 150000
#define SCHEDULE_STEP_LIMIT_US  200000
#define SCHEDULE_SEQUENCES_MAX  16384
#define SCHEDULE_SLACK_NONE     INT64_MAX
/* Rows of a step before the first was measured; afterwards rows grow by the factor at most. */
#define SCHEDULE_ROWS_FIRST  8
#define SCHEDULE_ROWS_GROWTH 4
/* Percent of the target that prompts get beside decode rows, however many of these there are, and
 * all that they get beside a pressing one. */
#define SCHEDULE_PREFILL_PERCENT 25
/* Percent of what a kind of rows gets that goes to those who waited longest, whatever their
 * slack. */
#define SCHEDULE_PATIENT_PERCENT 25
/* With less slack than this a sequence is pressing. */
#define SCHEDULE_PRESSING_US 5000000
/* A pressing one takes a slot from somebody whose slack is larger by more than the margin. */
#define SCHEDULE_MARGIN_US 1000000
/* Nobody loses a slot that he has held for less; the second is against those that do not press. */
#define SCHEDULE_HOLD_US 200000
#define SCHEDULE_TURN_US 2000000
/* Who would have to run rows again keeps his slot for so many times what these take, in addition
 * (once, against a pressing one): a full pool of parked windows does not turn into rebuilding. */
#define SCHEDULE_REBUILD_TURNS 4
/* Who waited so long for a slot comes first of all, unless slots are so few that everybody would:
 * see schedule_slots. */
#define SCHEDULE_PATIENCE_US 20000000
/* Slots that change hands by one decision: parking is a copy. */
#define SCHEDULE_PREEMPT_MAX 8
/* Smaller requests may pass one that waits for memory until it has waited so long. */
#define SCHEDULE_PASS_US 2000000
/* One that waits for blocks that running ones may not need after all takes those of idle ones when it
 * has waited so long. */
#define SCHEDULE_DEMOTE_US 2000000

/* ---- cost of a step -------------------------------------------------------------------------- */

enum schedule_row { SCHEDULE_DECODE, SCHEDULE_DRAFT, SCHEDULE_PREFILL, SCHEDULE_ROW_KINDS };

/* Rows of one step by kind: the first row of a decoding sequence, drafts behind it, prompts. */
struct schedule_rows_count {
    int32_t rows[SCHEDULE_ROW_KINDS];
};

#define SCHEDULE_COST_TERMS (1 + SCHEDULE_ROW_KINDS)

/* What was learnt of measured steps: step = load * (fixed + sum over kinds of rows * us). All zero:
 * nothing yet. Read with the functions below. */
struct schedule_cost {
    double us[SCHEDULE_COST_TERMS];                              /* fixed, then by kind */
    double covariance[SCHEDULE_COST_TERMS][SCHEDULE_COST_TERMS]; /* of `us` */
    double load;       /* >= 1: how much slower than that steps are just now */
    double step_us;    /* running mean of a step that decodes */
    int32_t rows_seen; /* of the largest step measured */
    int32_t streak;    /* outliers in a row: upwards, or (negative) downwards */
    int64_t steps;     /* measured */
    int64_t rows[SCHEDULE_ROW_KINDS];
    int64_t outliers; /* measured steps that were believed in part only */
};

/* One measured step. What took more than predicted by several times its usual error moves the
 * estimate no further than that error; the load follows at once and is forgotten within some ten
 * steps. taken_us < 1 counts as 1. */
void schedule_cost_update(
    struct schedule_cost *cost, const struct schedule_rows_count *rows, int64_t taken_us
);
/* Predicted duration; 0 before the first measurement. */
double
schedule_cost_predict(const struct schedule_cost *cost, const struct schedule_rows_count *rows);
/* What one row more of that kind adds to a step, in us; 0 before the first measurement. */
double schedule_cost_row(const struct schedule_cost *cost, enum schedule_row kind);
/* What a step costs before its first row. */
double schedule_cost_fixed(const struct schedule_cost *cost);

/* ---- service of agents ----------------------------------------------------------------------- */

/* Rows served by agent, for fairness: who comes (or comes back) starts at the least of those
 * that are active, so that having been away is no credit. Capacity is fixed at creation. */
struct schedule_ledger;

/* For at most `agents_max` (<= SCHEDULE_SEQUENCES_MAX) agents at a time. Expected errors:
 * MEMORY. */
MUST_CHECK result
schedule_ledger_create(struct schedule_ledger **out, int32_t agents_max, struct error *error);
void schedule_ledger_destroy(struct schedule_ledger *ledger);
/* Bytes that schedule_ledger_create takes. */
uint64_t schedule_ledger_bytes(int32_t agents_max);
/* A generation of that agent begins (the agent is active as long as one runs). The number of
 * active agents never exceeds agents_max (asserted); inactive ones are forgotten when room is
 * needed, those that were served least first. */
void schedule_ledger_join(struct schedule_ledger *ledger, uint64_t agent);
void schedule_ledger_leave(struct schedule_ledger *ledger, uint64_t agent);
/* `rows` were run for an active agent. */
void schedule_ledger_charge(struct schedule_ledger *ledger, uint64_t agent, int64_t rows);
/* Rows to compare with those of other active agents. */
int64_t schedule_ledger_served(const struct schedule_ledger *ledger, uint64_t agent);

/* ---- state that decisions are made of -------------------------------------------------------- */

enum schedule_state {
    SCHEDULE_QUEUED, /* no blocks are promised to it */
    SCHEDULE_PARKED, /* has its blocks, waits for a window slot */
    SCHEDULE_ACTIVE  /* holds a window slot */
};

/* One live generation; idle sequences (a tool runs) are not among them and cost nothing. */
struct schedule_sequence {
    int32_t number; /* the caller's index; not looked at, comes back in entries */
    enum schedule_state state;
    uint64_t agent;        /* fairness group */
    int64_t served;        /* rows served to the agent: schedule_ledger_served */
    uint64_t queue_number; /* age: smaller is older; differs between sequences */
    int64_t deadline_us;   /* 0: none */
    int64_t since_us;      /* when it got its present state (queued, lost or got the slot) */
    int64_t progress_us;   /* when it last had a row, else when it was queued */
    int32_t rows_left;     /* of the prompt, rebuilt rows included; 0: it decodes */
    int32_t tokens_left;   /* estimate of what is still to be sampled */
    int32_t drafts;        /* rows of drafts wanted behind its decode row */
    int32_t blocks_needed; /* QUEUED: blocks to promise to it */
    int32_t rebuild_rows;  /* ACTIVE: rows to run again should it lose its slot; 0: it is parked */
    bool is_decoding;      /* its next row follows a sampled token */
    bool is_restoring;     /* blocks are on their way from a tier: no rows, no slot */
    bool is_preemptible;   /* its window can be parked or rebuilt now */
};

struct schedule_machine {
    int64_t now_us;
    const struct schedule_cost *cost;
    int64_t target_us;   /* 0: SCHEDULE_STEP_TARGET_US */
    int32_t rows_max;    /* of a step; 0: nothing fits */
    int32_t entries_max; /* sequences of a step; 0: nothing fits */
    int32_t slots_total, slots_free;
    int64_t blocks_total;    /* of the pool */
    int64_t blocks_promised; /* taken by live sequences or promised to admitted ones */
    int64_t blocks_open;     /* of these, promised and not taken yet */
    int32_t running;         /* sequences that were promised theirs */
};

/* A sequence that holds blocks and does not run: a tool works for it, it is finished, or a request of
 * it waits for more blocks. */
struct schedule_idle {
    int32_t number;    /* the caller's index; not looked at */
    bool is_over;      /* nobody has to come back to it: told so, or lost */
    bool is_queued;    /* a request of it waits */
    int64_t return_us; /* when it is expected back; INT64_MAX: unknown */
    int64_t idle_us;   /* since when it does not run */
    uint64_t id;       /* differs between sequences: the older one goes first */
    double blocks;     /* each divided by the number of sequences that refer to it */
};

/* ---- decisions ------------------------------------------------------------------------------- */

struct schedule_entry {
    int32_t index;  /* into the sequences given */
    int32_t number; /* of that sequence */
    int32_t rows;   /* of them the last `drafted` are drafts */
    int32_t drafted;
};

/* Lists borrowed from struct schedule until its next decision of the same function; each holds
 * indices into the sequences given, most urgent first. */
struct schedule_step {
    const int32_t *admit; /* promise them their blocks */
    int32_t admit_count;
    int32_t blocked; /* index of the queued one that does not fit and is first in order, or -1 */
    const int32_t *preempt; /* park these first */
    int32_t preempt_count;
    const int32_t *activate; /* then give these a slot */
    int32_t activate_count;
    const struct schedule_entry *entries; /* decode rows first, then prompts */
    int32_t entry_count;
    struct schedule_rows_count rows; /* sums of entries */
    double predicted_us;             /* of them; 0: not known yet */
};

/* Scratch for decisions; holds nothing between them. */
struct schedule;

/* For at most `sequences_max` (<= SCHEDULE_SEQUENCES_MAX) at a time. Expected errors: MEMORY. */
MUST_CHECK result
schedule_create(struct schedule **out, int32_t sequences_max, struct error *error);
void schedule_destroy(struct schedule *schedule);
/* Bytes that schedule_create takes, for the memory plan. */
uint64_t schedule_bytes(int32_t sequences_max);

/* Queued ones that may begin, in order, while blocks last. One that does not fit lets smaller
 * ones behind it pass until it has waited SCHEDULE_PASS_US; then nobody passes it, but for one at
 * a time while nobody runs whose end could give it blocks. One that never fits (see
 * schedule_admits) is left out and blocks nobody. Fills admit and blocked. */
void schedule_admit(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count,
    struct schedule_step *out
);

/* The queued one that is first in order and does not fit (step.blocked) may take blocks of sequences
 * that do not run, whose content then is a matter of the cache. Index of the least valuable of these,
 * to be asked again with what is left, or -1: it fits now; or running ones may give back enough and
 * it has waited for less than SCHEDULE_DEMOTE_US; or it would not fit even then, as long as somebody
 * runs who can end. Least valuable: those that are over, then those expected back last, then those
 * idle for longest; those of which a request waits come behind all others. */
int32_t schedule_demote(
    const struct schedule_machine *machine,
    const struct schedule_sequence *blocked,
    const struct schedule_idle *idle,
    int32_t count
);

/* Gives free slots to parked ones in order. Then takes slots: for one that presses from whoever
 * has more slack by the margin; for one that waited its turn from whoever had his and does not
 * press; for one that waited for SCHEDULE_PATIENCE_US (longer when slots are so few that turns
 * alone take a quarter of that) from anybody that had his turn. Fills preempt (as many as the
 * last of activate). */
void schedule_slots(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count,
    struct schedule_step *out
);

/* Rows of the step. Everybody that decodes gets a row, in order while the target lasts; drafts
 * come behind these; prompts share the rest, several at once. The predicted duration never
 * exceeds the target, unless a single row does (then there is one, or as many as add a quarter
 * to it). Fills entries, rows, predicted_us. */
void schedule_rows(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count,
    struct schedule_step *out
);

/* Slack in us; SCHEDULE_SLACK_NONE without a deadline; 0 when it is late by its estimate. */
int64_t
schedule_slack(const struct schedule_machine *machine, const struct schedule_sequence *sequence);

enum schedule_verdict { SCHEDULE_RUN, SCHEDULE_WAIT, SCHEDULE_REFUSE };

/* May a request that needs so many blocks run now, must it wait for others to end, or can it never
 * run here? */
enum schedule_verdict
schedule_admits(const struct schedule_machine *machine, int64_t blocks_needed);
/* The numbers of that verdict: "needs 70 blocks of 64, ..."; LIMIT for SCHEDULE_REFUSE and
 * SCHEDULE_WAIT, OK for SCHEDULE_RUN. */
MUST_CHECK result schedule_admits_checked(
    const struct schedule_machine *machine, int64_t blocks_needed, struct error *error
);

#endif
