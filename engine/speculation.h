/* How many drafts a request asks for: decided by measured acceptance and by what rows cost.
 *
 * Drafts are judged in grades (how many ids of a lookup agreed, how sure the draft stages were);
 * the controller of a request remembers for each grade how often a draft was accepted. It asks for
 * as many as give the most tokens per time of the whole step, for none when none pay, and then
 * tries again from time to time. Results never depend on it, only time does. Pure: state in, state
 * out; no clock, no randomness. Thread: any; a controller belongs to one thread at a time.
 */
#ifndef HEARTH_ENGINE_SPECULATION_H
#define HEARTH_ENGINE_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

#define SPECULATION_DRAFT_MAX 64
#define SPECULATION_GRADES    8
/* A grade that does not pay is tried again after so many chances, then after twice as many, ... */
#define SPECULATION_PROBE_FIRST 16
#define SPECULATION_PROBE_LAST  256

enum speculation_source { SPECULATION_NONE, SPECULATION_LOOKUP, SPECULATION_STAGES };

/* Of one source of drafts and one grade. */
struct speculation_grade {
    float tried,
        kept; /* drafts that were judged (up to the first rejected), of them accepted; fading */
    uint16_t wait;     /* chances until the next probe; 0: not waiting */
    uint16_t interval; /* of the last probe */
};

/* Copyable; all zero is a request at its begin. */
struct speculation {
    struct speculation_grade lookup[SPECULATION_GRADES];
    struct speculation_grade stages[SPECULATION_GRADES];
};

/* What a step with this request costs; see schedule_cost_row and _fixed. Without the rows of prompts:
 * drafts take these rows' place. */
struct speculation_price {
    double step_us;    /* predicted without any draft of this request */
    double row_us;     /* that each draft adds to the step */
    double propose_us; /* that making the drafts takes; 0 for lookup */
    double tokens;     /* that the step yields without drafts of this request: >= 1 */
};

/* Grade of a lookup draft by its agreement (lookup_draft.matched), of one of the stages by their
 * confidence (0 to 1) in the first draft. */
int32_t speculation_grade_lookup(int32_t matched);
int32_t speculation_grade_stages(float confidence);

/* Drafts to verify: 0 to draft_max. Counts a chance of the grade, so call it once a step and
 * request. */
int32_t speculation_decide(
    struct speculation *speculation,
    enum speculation_source source,
    int32_t grade,
    int32_t draft_max,
    const struct speculation_price *price
);
/* What came of it: of `drafted` rows that ran `accepted` equalled the target's draw. Only drafts
 * that were verified count: when a stop or the end of the turn cut the run, pass drafted =
 * accepted. */
void speculation_update(
    struct speculation *speculation,
    enum speculation_source source,
    int32_t grade,
    int32_t drafted,
    int32_t accepted
);
/* Probability that a draft of that grade is accepted, as far as known. */
double speculation_acceptance(
    const struct speculation *speculation, enum speculation_source source, int32_t grade
);

#endif
