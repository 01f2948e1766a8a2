/* Rates, differences and their intervals; see swarm_eval.h.
 *
 * Percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13) of a mean over
 * tasks. A task's value is its mean over seeds, so what a resample draws is a task with all its runs.
 */
#include "swarm_eval_internal.h"

#include "strategy.h"

#include <assert.h>

#define INTERVAL_SEED                                                                              \
    UINT64_C(20260707) /* any fixed one: the same results give the same intervals */
#define TAIL_PERCENT 2.5

static_assert(SWARM_EVAL_TASKS_MAX < (1 << 16), "an index is made of 32 random bits without bias");

static int compare_doubles(const void *a, const void *b) {
    const double *first = a;
    const double *second = b;
    return *first < *second ? -1 : *first > *second ? 1 : 0;
}

void swarm_eval_interval(
    const double *values, size_t count, uint64_t seed, double *scratch, double *low, double *high
) {
    ASSERT(count > 0 && count <= SWARM_EVAL_TASKS_MAX);
    uint64_t draws = 0;
    for (size_t i = 0; i < SWARM_EVAL_RESAMPLES; i++) {
        double sum = 0;
        for (size_t j = 0; j < count; j++) {
            uint64_t random = strategy_seed(seed, draws++) >> 32;
            sum += values[(random * count) >> 32];
        }
        scratch[i] = sum / (double)count;
    }
    qsort(scratch, SWARM_EVAL_RESAMPLES, sizeof *scratch, compare_doubles);
    size_t cut = (size_t)(SWARM_EVAL_RESAMPLES * TAIL_PERCENT / 100);
    *low = scratch[cut];
    *high = scratch[SWARM_EVAL_RESAMPLES - 1 - cut];
}

/* Of eval->values. */
static void take_figure(struct swarm_eval *eval, struct swarm_eval_figure *out) {
    double sum = 0;
    for (size_t i = 0; i < out->tasks; i++) {
        sum += eval->values[i];
    }
    if (out->tasks > 0) {
        out->value = sum / (double)out->tasks;
        swarm_eval_interval(
            eval->values, out->tasks, INTERVAL_SEED, eval->scratch, &out->low, &out->high
        );
    }
}

static double worth(const struct swarm_eval_result *outcome) {
    return outcome->is_solved ? 1.0 : 0.0;
}

void swarm_eval_rate(
    struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting,
    int64_t level,
    struct swarm_eval_figure *out
) {
    *out = (struct swarm_eval_figure){0};
    for (size_t task = 0; task < eval->plan.task_count; task++) {
        double sum = 0;
        size_t seeds = 0;
        if (level != 0 && eval->plan.tasks[task].level != level) {
            continue;
        }
        for (size_t seed = 0; seed < eval->plan.seed_count; seed++) {
            const struct swarm_eval_cell cell = {task, setting, seed, budget};
            const struct swarm_eval_result *found = swarm_eval_get(eval, &cell);
            sum += found != NULL ? worth(found) : 0;
            seeds += found != NULL ? 1 : 0;
        }
        if (seeds > 0) {
            eval->values[out->tasks++] = sum / (double)seeds;
            out->runs += seeds;
        }
    }
    take_figure(eval, out);
}

void swarm_eval_difference(
    struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting,
    size_t against,
    struct swarm_eval_figure *out
) {
    *out = (struct swarm_eval_figure){0};
    for (size_t task = 0; task < eval->plan.task_count; task++) {
        double sum = 0;
        size_t seeds = 0;
        for (size_t seed = 0; seed < eval->plan.seed_count; seed++) {
            const struct swarm_eval_cell cells[] = {
                {task, setting, seed, budget}, {task, against, seed, budget}};
            const struct swarm_eval_result *mine = swarm_eval_get(eval, &cells[0]);
            const struct swarm_eval_result *theirs = swarm_eval_get(eval, &cells[1]);
            if (mine != NULL && theirs != NULL) {
                sum += worth(mine) - worth(theirs);
                seeds++;
            }
        }
        if (seeds > 0) {
            eval->values[out->tasks++] = sum / (double)seeds;
            out->runs += seeds;
        }
    }
    take_figure(eval, out);
}

void swarm_eval_costs(
    const struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting,
    struct swarm_eval_costs *out
) {
    struct swarm_eval_costs sums = {0};
    for (size_t i = 0; i < eval->plan.task_count * eval->plan.seed_count; i++) {
        const struct swarm_eval_cell cell = {
            i % eval->plan.task_count, setting, i / eval->plan.task_count, budget};
        const struct swarm_eval_result *found = swarm_eval_get(eval, &cell);
        if (found == NULL) {
            continue;
        }
        sums.runs++;
        sums.passed += found->is_passed ? 1 : 0;
        sums.deceived += found->is_passed && !found->is_solved ? 1 : 0;
        sums.faults += found->fault[0] != '\0' ? 1 : 0;
        sums.duration_ms += (double)found->duration_ms;
        sums.tokens += (double)found->tokens;
        sums.agents += (double)found->agents;
        sums.calls += (double)found->calls;
        sums.prompt_tokens += (double)found->prompt_tokens;
        sums.reused_tokens += (double)found->reused_tokens;
        sums.evaluated_tokens += (double)found->evaluated_tokens;
    }
    double *const means[] = {
        &sums.duration_ms,
        &sums.tokens,
        &sums.agents,
        &sums.calls,
        &sums.prompt_tokens,
        &sums.reused_tokens,
        &sums.evaluated_tokens,
    };
    for (size_t i = 0; i < COUNT_OF(means) && sums.runs > 0; i++) {
        *means[i] /= (double)sums.runs;
    }
    *out = sums;
}
