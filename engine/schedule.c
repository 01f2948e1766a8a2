/* The decisions of a step. See schedule.h. */
#include "schedule.h"

/* The least that one prompt gets of a step while there is that much. */
#define CHUNK_LEAST 16
/* A row that alone is over the target may have company that adds a part to it. */
#define OVER_PERCENT 25

/* What sequences are ordered by. */
struct key {
    int64_t slack; /* real one; -1: waited longest, first of all */
    int64_t served;
    int64_t progress_us;
    uint64_t queue_number;
    int32_t index;
    int32_t given; /* rows of a prompt so far */
};

struct schedule {
    int32_t sequences_max;
    struct key *keys, *others, *spare; /* [sequences_max] each */
    int32_t *admit, *preempt, *activate;
    struct schedule_entry *entries;
};

uint64_t schedule_bytes(int32_t sequences_max) {
    return sizeof(struct schedule) +
           (uint64_t)sequences_max *
               (3 * sizeof(struct key) + 3 * sizeof(int32_t) + sizeof(struct schedule_entry));
}

result schedule_create(struct schedule **out, int32_t sequences_max, struct error *error) {
    ASSERT(sequences_max >= 1 && sequences_max <= SCHEDULE_SEQUENCES_MAX);
    size_t count = (size_t)sequences_max;
    struct schedule *schedule = calloc(1, sizeof *schedule);
    if (schedule != NULL) {
        schedule->sequences_max = sequences_max;
        schedule->keys = calloc(3 * count, sizeof *schedule->keys);
        schedule->admit = calloc(3 * count, sizeof *schedule->admit);
        schedule->entries = calloc(count, sizeof *schedule->entries);
    }
    if (schedule == NULL || schedule->keys == NULL || schedule->admit == NULL ||
        schedule->entries == NULL) {
        schedule_destroy(schedule);
        FAIL(error, MEMORY, "no memory for decisions about %d sequences", sequences_max);
    }
    schedule->others = schedule->keys + count;
    schedule->spare = schedule->others + count;
    schedule->preempt = schedule->admit + count;
    schedule->activate = schedule->preempt + count;
    *out = schedule;
    return OK;
}

void schedule_destroy(struct schedule *schedule) {
    if (schedule != NULL) {
        free(schedule->keys);
        free(schedule->admit);
        free(schedule->entries);
        free(schedule);
    }
}

/* ---- order ---------------------------------------------------------------------------------- */

int64_t
schedule_slack(const struct schedule_machine *machine, const struct schedule_sequence *sequence) {
    if (sequence->deadline_us == 0) {
        return SCHEDULE_SLACK_NONE;
    }
    const struct schedule_cost *cost = machine->cost;
    double left = (double)sequence->deadline_us - (double)machine->now_us -
                  sequence->rows_left * schedule_cost_row(cost, SCHEDULE_PREFILL) -
                  sequence->tokens_left * cost->step_us;
    /* Further away than a double can tell from the end of all numbers: as good as none. */
    return left < 0 ? 0 : left >= 9e18 ? SCHEDULE_SLACK_NONE : (int64_t)left;
}

static bool comes_before(const struct key *a, const struct key *b) {
    if (a->slack != b->slack) {
        return a->slack < b->slack;
    }
    if (a->served != b->served) {
        return a->served < b->served;
    }
    if (a->progress_us != b->progress_us) {
        return a->progress_us < b->progress_us;
    }
    return a->queue_number < b->queue_number;
}

static bool waited_longer(const struct key *a, const struct key *b) {
    if (a->progress_us != b->progress_us) {
        return a->progress_us < b->progress_us;
    }
    return a->queue_number < b->queue_number;
}

/* Merges from the bottom up: qsort may allocate. */
static void sort(
    struct key *keys,
    struct key *spare,
    int32_t count,
    bool (*before)(const struct key *a, const struct key *b)
) {
    struct key *from = keys;
    struct key *to = spare;
    for (int32_t width = 1; width < count; width *= 2) {
        for (int32_t start = 0; start < count; start += 2 * width) {
            int32_t middle = start + width < count ? start + width : count;
            int32_t end = middle + width < count ? middle + width : count;
            int32_t left = start;
            int32_t right = middle;
            for (int32_t i = start; i < end; i++) {
                bool is_right =
                    left == middle || (right < end && before(&from[right], &from[left]));
                to[i] = is_right ? from[right++] : from[left++];
            }
        }
        struct key *swap = from;
        from = to;
        to = swap;
    }
    if (from != keys) {
        memcpy(keys, from, (size_t)count * sizeof *keys);
    }
}

static struct key make_key(
    const struct schedule_machine *machine, const struct schedule_sequence *sequence, int32_t index
) {
    return (struct key){
        .slack = schedule_slack(machine, sequence),
        .served = sequence->served,
        .progress_us = sequence->progress_us,
        .queue_number = sequence->queue_number,
        .index = index,
    };
}

/* Who waited beyond his patience comes first, the longest waiting of these at the head. */
static void hurry(
    struct key *key, const struct schedule_machine *machine, int64_t since_us, int64_t patience_us
) {
    if (machine->now_us - since_us >= patience_us) {
        key->slack = -1;
        key->served = 0;
        key->progress_us = since_us;
    }
}

/* ---- admission ------------------------------------------------------------------------------ */

enum schedule_verdict
schedule_admits(const struct schedule_machine *machine, int64_t blocks_needed) {
    if (blocks_needed > machine->blocks_total) {
        return SCHEDULE_REFUSE;
    }
    return blocks_needed > machine->blocks_total - machine->blocks_promised ? SCHEDULE_WAIT
                                                                            : SCHEDULE_RUN;
}

result schedule_admits_checked(
    const struct schedule_machine *machine, int64_t blocks_needed, struct error *error
) {
    enum schedule_verdict verdict = schedule_admits(machine, blocks_needed);
    if (verdict == SCHEDULE_REFUSE) {
        FAIL(
            error,
            LIMIT,
            "needs %lld blocks, but there are %lld in all",
            (long long)blocks_needed,
            (long long)machine->blocks_total
        );
    }
    if (verdict == SCHEDULE_WAIT) {
        FAIL(
            error,
            LIMIT,
            "needs %lld blocks, but %lld of %lld are taken or promised: %lld short",
            (long long)blocks_needed,
            (long long)machine->blocks_promised,
            (long long)machine->blocks_total,
            (long long)(blocks_needed - (machine->blocks_total - machine->blocks_promised))
        );
    }
    return OK;
}

void schedule_admit(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count,
    struct schedule_step *out
) {
    ASSERT(count >= 0 && count <= schedule->sequences_max);
    int32_t queued = 0;
    for (int32_t i = 0; i < count; i++) {
        if (sequences[i].state == SCHEDULE_QUEUED) {
            struct key *key = &schedule->keys[queued++];
            *key = make_key(machine, &sequences[i], i);
            hurry(key, machine, sequences[i].since_us, SCHEDULE_PATIENCE_US);
        }
    }
    bool is_idle = queued == count;
    sort(schedule->keys, schedule->spare, queued, comes_before);
    out->admit = schedule->admit;
    out->admit_count = 0;
    out->blocked = -1;
    bool is_closed = false;
    struct schedule_machine left = *machine;
    for (int32_t i = 0; i < queued; i++) {
        const struct schedule_sequence *sequence = &sequences[schedule->keys[i].index];
        enum schedule_verdict verdict = schedule_admits(&left, sequence->blocks_needed);
        if (verdict == SCHEDULE_RUN) {
            schedule->admit[out->admit_count++] = schedule->keys[i].index;
            left.blocks_promised += sequence->blocks_needed;
            is_idle = false;
        } else if (verdict == SCHEDULE_WAIT) {
            out->blocked = out->blocked < 0 ? schedule->keys[i].index : out->blocked;
            is_closed = is_closed || machine->now_us - sequence->since_us >= SCHEDULE_PASS_US;
        }
        /* While nobody runs, waiting brings no blocks: then one passes. */
        if (is_closed && !is_idle) {
            return;
        }
    }
}

/* ---- window slots --------------------------------------------------------------------------- */

enum claim { CLAIM_NONE, CLAIM_TURN, CLAIM_PRESSING, CLAIM_OVERDUE, CLAIMS };

/* Why a waiting one may take a slot from somebody. */
static enum claim claim_of(
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequence,
    const struct key *key
) {
    if (key->slack < 0) {
        return CLAIM_OVERDUE;
    }
    if (key->slack < SCHEDULE_PRESSING_US) {
        return CLAIM_PRESSING;
    }
    return machine->now_us - sequence->since_us >= SCHEDULE_TURN_US ? CLAIM_TURN : CLAIM_NONE;
}

static bool loses(
    const struct schedule_machine *machine,
    enum claim claim,
    const struct key *waiting,
    const struct key *holding,
    const struct schedule_sequence *holder
) {
    int64_t held_us = machine->now_us - holder->since_us;
    double row_us = schedule_cost_row(machine->cost, SCHEDULE_PREFILL);
    int64_t rebuild_us = (int64_t)(holder->rebuild_rows * row_us);
    if (claim == CLAIM_PRESSING) {
        return held_us >= SCHEDULE_HOLD_US + rebuild_us &&
               holding->slack > waiting->slack + SCHEDULE_MARGIN_US;
    }
    if (held_us < SCHEDULE_TURN_US + SCHEDULE_REBUILD_TURNS * rebuild_us) {
        return false;
    }
    return claim == CLAIM_OVERDUE ||
           (holding->slack >= SCHEDULE_PRESSING_US && holding->served >= waiting->served);
}

/* The least urgent holder that loses to the waiting one, as place in others, or -1. */
static int32_t find_loser(
    const struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    enum claim claim,
    const struct key *waiting,
    int32_t holders
) {
    for (int32_t i = holders - 1; i >= 0; i--) {
        const struct key *holding = &schedule->others[i];
        if (holding->given == 0 &&
            loses(machine, claim, waiting, holding, &sequences[holding->index])) {
            return i;
        }
    }
    return -1;
}

static int32_t collect_waiting(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count
) {
    int32_t waiting = 0;
    for (int32_t i = 0; i < count; i++) {
        if (sequences[i].state == SCHEDULE_PARKED && !sequences[i].is_restoring) {
            schedule->keys[waiting++] = make_key(machine, &sequences[i], i);
        }
    }
    /* Turns alone take so long that nobody is overdue for less than four rounds of them. */
    int64_t slots = machine->slots_total < 1 ? 1 : machine->slots_total;
    int64_t rounds = (int64_t)4 * SCHEDULE_TURN_US * ((waiting + slots - 1) / slots);
    int64_t patience_us = rounds > SCHEDULE_PATIENCE_US ? rounds : SCHEDULE_PATIENCE_US;
    for (int32_t i = 0; i < waiting; i++) {
        struct key *key = &schedule->keys[i];
        hurry(key, machine, sequences[key->index].since_us, patience_us);
    }
    sort(schedule->keys, schedule->spare, waiting, comes_before);
    return waiting;
}

static int32_t collect_holders(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count
) {
    int32_t holders = 0;
    for (int32_t i = 0; i < count; i++) {
        if (sequences[i].state == SCHEDULE_ACTIVE && sequences[i].is_preemptible) {
            schedule->others[holders++] = make_key(machine, &sequences[i], i);
        }
    }
    sort(schedule->others, schedule->spare, holders, comes_before);
    return holders;
}

void schedule_slots(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count,
    struct schedule_step *out
) {
    ASSERT(count >= 0 && count <= schedule->sequences_max);
    ASSERT(machine->slots_free >= 0);
    out->preempt = schedule->preempt;
    out->preempt_count = 0;
    out->activate = schedule->activate;
    out->activate_count = 0;
    int32_t waiting = collect_waiting(schedule, machine, sequences, count);
    int32_t at = 0;
    for (; at < waiting && at < machine->slots_free; at++) {
        schedule->activate[out->activate_count++] = schedule->keys[at].index;
    }
    if (at == waiting) {
        return;
    }
    int32_t holders = collect_holders(schedule, machine, sequences, count);
    /* Those behind have less of a claim of that kind. */
    bool is_lost[CLAIMS] = {[CLAIM_NONE] = true};
    for (; at < waiting && out->preempt_count < SCHEDULE_PREEMPT_MAX; at++) {
        const struct key *key = &schedule->keys[at];
        enum claim claim = claim_of(machine, &sequences[key->index], key);
        if (is_lost[claim]) {
            continue;
        }
        int32_t loser = find_loser(schedule, machine, sequences, claim, key, holders);
        if (loser < 0) {
            is_lost[claim] = true;
            continue;
        }
        schedule->others[loser].given = 1;
        schedule->preempt[out->preempt_count++] = schedule->others[loser].index;
        schedule->activate[out->activate_count++] = key->index;
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* What a step may still take. */
struct room {
    double us;
    int32_t rows, entries;
};

static int32_t least_of(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Rows of that kind that fit. */
static int32_t rows_in(const struct schedule_cost *cost, enum schedule_row kind, double us) {
    double each = schedule_cost_row(cost, kind);
    if (each <= 0) {
        return INT32_MAX; /* nothing is known: rows are bounded otherwise */
    }
    double rows = us / each;
    return rows <= 0 ? 0 : rows >= INT32_MAX ? INT32_MAX : (int32_t)rows;
}

static int32_t rows_at_most(const struct schedule_machine *machine) {
    const struct schedule_cost *cost = machine->cost;
    int64_t grown =
        cost->steps == 0 ? SCHEDULE_ROWS_FIRST : (int64_t)SCHEDULE_ROWS_GROWTH * cost->rows_seen;
    grown = grown < SCHEDULE_ROWS_FIRST ? SCHEDULE_ROWS_FIRST : grown;
    return grown < machine->rows_max ? (int32_t)grown : machine->rows_max;
}

static bool is_runnable(const struct schedule_sequence *sequence) {
    return sequence->state == SCHEDULE_ACTIVE && !sequence->is_restoring;
}

static void add_entry(
    struct schedule *schedule,
    struct schedule_step *out,
    const struct schedule_sequence *sequences,
    int32_t index,
    int32_t rows
) {
    schedule->entries[out->entry_count++] = (struct schedule_entry){
        .index = index,
        .number = sequences[index].number,
        .rows = rows,
    };
}

/* `fit` rows for `count` sequences: most in order, the rest to those that waited longest. */
static void add_decode_rows(
    struct schedule *schedule,
    const struct schedule_sequence *sequences,
    int32_t count,
    int32_t fit,
    struct schedule_step *out
) {
    int32_t in_order = count;
    if (fit < count) {
        in_order = fit - fit * SCHEDULE_PATIENT_PERCENT / 100;
        sort(schedule->keys + in_order, schedule->spare, count - in_order, waited_longer);
    }
    for (int32_t i = 0; i < least_of(fit, count); i++) {
        add_entry(schedule, out, sequences, schedule->keys[i].index, 1);
    }
    out->rows.rows[SCHEDULE_DECODE] = least_of(fit, count);
}

static void add_draft_rows(
    struct schedule *schedule,
    const struct schedule_sequence *sequences,
    int32_t fit,
    struct schedule_step *out
) {
    for (int32_t i = 0; i < out->entry_count && fit > 0; i++) {
        struct schedule_entry *entry = &schedule->entries[i];
        int32_t drafts = least_of(sequences[entry->index].drafts, fit);
        if (drafts > 0) {
            entry->rows += drafts;
            entry->drafted = drafts;
            fit -= drafts;
            out->rows.rows[SCHEDULE_DRAFT] += drafts;
        }
    }
}

/* Shares of prompts into others[].given: half of what is left to each in order, so that several
 * go on at once and the first is the fastest; then all that is left; a part to who waited
 * longest. */
static void share_prompts(
    struct schedule *schedule, const struct schedule_sequence *sequences, int32_t count, int32_t fit
) {
    struct key *keys = schedule->others;
    int32_t patient = count > 1 ? fit * SCHEDULE_PATIENT_PERCENT / 100 : 0;
    int32_t left = fit - patient;
    for (int32_t i = 0; i < count && left > 0; i++) {
        int32_t share = left - left / 2;
        share = share < CHUNK_LEAST ? least_of(CHUNK_LEAST, left) : share;
        keys[i].given = least_of(share, sequences[keys[i].index].rows_left);
        left -= keys[i].given;
    }
    left += patient;
    if (patient > 0) {
        sort(keys, schedule->spare, count, waited_longer);
        for (int32_t i = 0; i < count && patient > 0; i++) {
            int32_t more = least_of(patient, sequences[keys[i].index].rows_left - keys[i].given);
            keys[i].given += more;
            patient -= more;
            left -= more;
        }
        sort(keys, schedule->spare, count, comes_before);
    }
    for (int32_t i = 0; i < count && left > 0; i++) {
        int32_t more = least_of(left, sequences[keys[i].index].rows_left - keys[i].given);
        keys[i].given += more;
        left -= more;
    }
}

static void add_prompts(
    struct schedule *schedule,
    const struct schedule_sequence *sequences,
    int32_t count,
    int32_t fit,
    int32_t entries_max,
    struct schedule_step *out
) {
    share_prompts(schedule, sequences, count, fit);
    for (int32_t i = 0; i < count && out->entry_count < entries_max; i++) {
        int32_t rows = schedule->others[i].given;
        if (rows > 0) {
            add_entry(schedule, out, sequences, schedule->others[i].index, rows);
            out->rows.rows[SCHEDULE_PREFILL] += rows;
        }
    }
}

/* The two kinds of sequences that run, each in order. */
struct runnable {
    int32_t decoding; /* in keys */
    int32_t prompts;  /* in others */
};

static struct runnable collect_runnable(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count
) {
    struct runnable found = {0};
    for (int32_t i = 0; i < count; i++) {
        if (!is_runnable(&sequences[i])) {
            continue;
        }
        if (sequences[i].is_decoding) {
            schedule->keys[found.decoding++] = make_key(machine, &sequences[i], i);
        } else if (sequences[i].rows_left > 0) {
            schedule->others[found.prompts++] = make_key(machine, &sequences[i], i);
        }
    }
    sort(schedule->keys, schedule->spare, found.decoding, comes_before);
    sort(schedule->others, schedule->spare, found.prompts, comes_before);
    return found;
}

/* How long the step may take: the target, or a little more than a single row when that is
 * longer. */
static double ceiling_of(const struct schedule_machine *machine, const struct runnable *runnable) {
    const struct schedule_cost *cost = machine->cost;
    double target =
        machine->target_us > 0 ? (double)machine->target_us : (double)SCHEDULE_STEP_TARGET_US;
    double row = runnable->decoding > 0 ? schedule_cost_row(cost, SCHEDULE_DECODE) : 0;
    double other = runnable->prompts > 0 ? schedule_cost_row(cost, SCHEDULE_PREFILL) : 0;
    double single = schedule_cost_fixed(cost) + (row > other ? row : other);
    return single > target ? single * (100 + OVER_PERCENT) / 100 : target;
}

/* Where a row of each kind is too much, who waited longer goes. */
static void choose_kind(
    const struct schedule *schedule,
    const struct schedule_machine *machine,
    double ceiling,
    struct runnable *runnable
) {
    const struct schedule_cost *cost = machine->cost;
    double both = schedule_cost_fixed(cost) + schedule_cost_row(cost, SCHEDULE_DECODE) +
                  schedule_cost_row(cost, SCHEDULE_PREFILL);
    if (runnable->decoding == 0 || runnable->prompts == 0 ||
        (both <= ceiling && machine->rows_max > 1 && machine->entries_max > 1)) {
        return;
    }
    int64_t decoded_us = INT64_MAX;
    for (int32_t i = 0; i < runnable->decoding; i++) {
        int64_t progress_us = schedule->keys[i].progress_us;
        decoded_us = progress_us < decoded_us ? progress_us : decoded_us;
    }
    int64_t read_us = INT64_MAX;
    for (int32_t i = 0; i < runnable->prompts; i++) {
        int64_t progress_us = schedule->others[i].progress_us;
        read_us = progress_us < read_us ? progress_us : read_us;
    }
    if (decoded_us <= read_us) {
        runnable->prompts = 0;
    } else {
        runnable->decoding = 0;
    }
}

/* Decode rows press when the first of them does and comes before all prompts. */
static bool decode_presses(const struct schedule *schedule, const struct runnable *runnable) {
    return runnable->decoding > 0 && schedule->keys[0].slack < SCHEDULE_PRESSING_US &&
           schedule->keys[0].slack < schedule->others[0].slack;
}

void schedule_rows(
    struct schedule *schedule,
    const struct schedule_machine *machine,
    const struct schedule_sequence *sequences,
    int32_t count,
    struct schedule_step *out
) {
    ASSERT(count >= 0 && count <= schedule->sequences_max);
    const struct schedule_cost *cost = machine->cost;
    out->entries = schedule->entries;
    out->entry_count = 0;
    out->rows = (struct schedule_rows_count){0};
    out->predicted_us = 0;
    if (machine->rows_max < 1 || machine->entries_max < 1) {
        return; /* others fill the step */
    }
    struct runnable runnable = collect_runnable(schedule, machine, sequences, count);
    choose_kind(schedule, machine, ceiling_of(machine, &runnable), &runnable);
    double ceiling = ceiling_of(machine, &runnable);
    struct room room = {
        .us = ceiling - schedule_cost_fixed(cost),
        .rows = rows_at_most(machine),
        .entries = least_of(machine->entries_max, schedule->sequences_max),
    };
    bool has_prompts = runnable.prompts > 0;
    double row_us = schedule_cost_row(cost, SCHEDULE_PREFILL);
    double reserved_us = ceiling * SCHEDULE_PREFILL_PERCENT / 100;
    reserved_us = !has_prompts ? 0 : reserved_us < row_us ? row_us : reserved_us;
    int32_t reserved_rows = has_prompts ? 1 + room.rows * SCHEDULE_PREFILL_PERCENT / 100 : 0;
    if (runnable.decoding > 0) {
        double us = room.us - reserved_us;
        int32_t rows = room.rows - reserved_rows;
        int32_t fit = least_of(rows_in(cost, SCHEDULE_DECODE, us), rows);
        fit = least_of(fit, room.entries - (has_prompts ? 1 : 0));
        fit = fit < 1 ? 1 : fit;
        add_decode_rows(schedule, sequences, runnable.decoding, fit, out);
        int32_t decoded = out->rows.rows[SCHEDULE_DECODE];
        us -= decoded * schedule_cost_row(cost, SCHEDULE_DECODE);
        fit = least_of(rows_in(cost, SCHEDULE_DRAFT, us), rows - decoded);
        add_draft_rows(schedule, sequences, fit, out);
    }
    if (has_prompts) {
        double us = ceiling - schedule_cost_predict(cost, &out->rows);
        us = decode_presses(schedule, &runnable) && us > reserved_us ? reserved_us : us;
        int32_t taken = out->rows.rows[SCHEDULE_DECODE] + out->rows.rows[SCHEDULE_DRAFT];
        int32_t fit = least_of(rows_in(cost, SCHEDULE_PREFILL, us), room.rows - taken);
        fit = fit < 1 ? 1 : fit;
        add_prompts(schedule, sequences, runnable.prompts, fit, room.entries, out);
    }
    out->predicted_us = schedule_cost_predict(cost, &out->rows);
}
