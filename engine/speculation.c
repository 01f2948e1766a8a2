/* The controller of drafts of one request. See speculation.h. */
#include "speculation.h"

#include "base/result.h"

/* Weight of what is assumed before anything was measured, in drafts. */
#define PRIOR_WEIGHT 4.0
/* What was measured fades by this factor with each draft judged: some 64 drafts count. */
#define FADE (1.0 - 1.0 / 64)
/* Drafts count as so much dearer: a prediction is not exact, and they have costs that no row shows
 * (they are written into caches and taken back). */
#define DRAFT_SURCHARGE 1.1
/* Drafts of a probe: enough to learn, cheap when it fails. */
#define PROBE_DRAFTS 2

/* Assumed acceptance by grade, until it is measured. Of lookup drafts by agreement: what 101,000
 * drafts in recorded sessions of agents gave, a little less for the sure ones. */
static const double lookup_prior[SPECULATION_GRADES] = {
    0.60, 0.70, 0.75, 0.78, 0.82, 0.87, 0.93, 0.97};
/* Of the draft stages by confidence: what they say of themselves, the middle of the grade. */
static const double stages_prior[SPECULATION_GRADES] = {
    0.06, 0.19, 0.31, 0.44, 0.56, 0.69, 0.81, 0.94};

int32_t speculation_grade_lookup(int32_t matched) {
    static const int32_t least[SPECULATION_GRADES] = {0, 3, 4, 6, 8, 12, 20, 40};
    int32_t grade = 0;
    while (grade + 1 < SPECULATION_GRADES && matched >= least[grade + 1]) {
        grade++;
    }
    return grade;
}

int32_t speculation_grade_stages(float confidence) {
    if (!(confidence > 0)) { /* not a number: no confidence */
        return 0;
    }
    double grade = (double)confidence * SPECULATION_GRADES;
    return grade >= SPECULATION_GRADES ? SPECULATION_GRADES - 1 : (int32_t)grade;
}

static const struct speculation_grade *
find(const struct speculation *speculation, enum speculation_source source, int32_t grade) {
    ASSERT(source == SPECULATION_LOOKUP || source == SPECULATION_STAGES);
    ASSERT(grade >= 0 && grade < SPECULATION_GRADES);
    return source == SPECULATION_LOOKUP ? &speculation->lookup[grade] : &speculation->stages[grade];
}

static struct speculation_grade *
find_mutable(struct speculation *speculation, enum speculation_source source, int32_t grade) {
    ASSERT(source == SPECULATION_LOOKUP || source == SPECULATION_STAGES);
    ASSERT(grade >= 0 && grade < SPECULATION_GRADES);
    return source == SPECULATION_LOOKUP ? &speculation->lookup[grade] : &speculation->stages[grade];
}

double speculation_acceptance(
    const struct speculation *speculation, enum speculation_source source, int32_t grade
) {
    const struct speculation_grade *at = find(speculation, source, grade);
    double prior = source == SPECULATION_LOOKUP ? lookup_prior[grade] : stages_prior[grade];
    return ((double)at->kept + PRIOR_WEIGHT * prior) / ((double)at->tried + PRIOR_WEIGHT);
}

/* Drafts with the most tokens per time. The k-th draft yields a token with probability a^k. */
static int32_t
best_count(double acceptance, int32_t draft_max, const struct speculation_price *price) {
    double tokens = price->tokens < 1 ? 1 : price->tokens;
    double base = price->step_us < 1 ? 1 : price->step_us;
    double best_rate = tokens / base;
    double yield = tokens;
    double chance = 1;
    int32_t best = 0;
    for (int32_t k = 1; k <= draft_max; k++) {
        chance *= acceptance;
        yield += chance;
        double more = DRAFT_SURCHARGE * (price->propose_us + k * price->row_us);
        double rate = yield / (base + more);
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
    }
    return best;
}

int32_t speculation_decide(
    struct speculation *speculation,
    enum speculation_source source,
    int32_t grade,
    int32_t draft_max,
    const struct speculation_price *price
) {
    if (source == SPECULATION_NONE || draft_max <= 0) {
        return 0;
    }
    draft_max = draft_max > SPECULATION_DRAFT_MAX ? SPECULATION_DRAFT_MAX : draft_max;
    struct speculation_grade *at = find_mutable(speculation, source, grade);
    int32_t best = best_count(speculation_acceptance(speculation, source, grade), draft_max, price);
    if (best > 0) {
        at->wait = 0;
        at->interval = 0;
        return best;
    }
    if (at->wait == 0) { /* it paid until now, or a probe is over */
        int32_t interval = at->interval == 0 ? SPECULATION_PROBE_FIRST : 2 * at->interval;
        interval = interval > SPECULATION_PROBE_LAST ? SPECULATION_PROBE_LAST : interval;
        at->interval = (uint16_t)interval;
        at->wait = (uint16_t)interval;
    }
    at->wait--;
    if (at->wait > 0) {
        return 0;
    }
    return draft_max < PROBE_DRAFTS ? draft_max : PROBE_DRAFTS;
}

void speculation_update(
    struct speculation *speculation,
    enum speculation_source source,
    int32_t grade,
    int32_t drafted,
    int32_t accepted
) {
    ASSERT(accepted >= 0 && accepted <= drafted);
    if (source == SPECULATION_NONE || drafted == 0) {
        return;
    }
    struct speculation_grade *at = find_mutable(speculation, source, grade);
    /* Drafts behind the first rejected one tell nothing. */
    int32_t judged = accepted < drafted ? accepted + 1 : accepted;
    for (int32_t i = 0; i < judged; i++) {
        at->tried = (float)((double)at->tried * FADE + 1);
        at->kept = (float)((double)at->kept * FADE + (i < accepted ? 1 : 0));
    }
}
