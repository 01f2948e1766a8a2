/* The runs of an evaluation and their results; see swarm_eval.h. */
#include "swarm_eval_internal.h"

#include "strategy.h"

const struct swarm_eval_setting swarm_eval_settings[SWARM_EVAL_SETTINGS] = {
    {"single", "single", 1, false, true, false, "one agent, one attempt"},
    {"retries", "retries", SWARM_ATTEMPTS_DEFAULT, false, true, false, "one agent after another"},
    {"best-of-8-alone",
     "best-of",
     8,
     true,
     true,
     true,
     "eight side by side, each with its own prompt"},
    {"best-of-8", "best-of", 8, false, false, false, "eight side by side from one prefix"},
    {"race-8", "race", 8, false, false, false, "the first of eight that passes"},
    {"staged", "staged", 4, false, false, false, "four at low effort, then two, then one"},
    {"auto", "auto", 8, false, false, false, "chosen by task and budget"},
};

const char *swarm_eval_budget_name(enum swarm_eval_budget budget) {
    return budget == SWARM_EVAL_TIME ? "time" : "tokens";
}

size_t swarm_eval_find_setting(struct view name) {
    size_t i = 0;
    while (i < SWARM_EVAL_SETTINGS && !view_equals_text(name, swarm_eval_settings[i].name)) {
        i++;
    }
    return i;
}

static result check_plan(const struct swarm_eval_plan *plan, struct error *error) {
    size_t settings = 0;
    for (size_t i = 0; i < SWARM_EVAL_SETTINGS; i++) {
        settings += plan->has[i] ? 1 : 0;
    }
    if (plan->task_count == 0 || plan->task_count > SWARM_EVAL_TASKS_MAX) {
        FAIL(error, INVALID_INPUT, "%zu tasks: 1 to %d", plan->task_count, SWARM_EVAL_TASKS_MAX);
    }
    if (plan->seed_count == 0 || plan->seed_count > SWARM_EVAL_SEEDS_MAX) {
        FAIL(error, INVALID_INPUT, "%zu seeds: 1 to %d", plan->seed_count, SWARM_EVAL_SEEDS_MAX);
    }
    if (settings == 0) {
        FAIL(error, INVALID_INPUT, "no setting to evaluate");
    }
    if (plan->limits[SWARM_EVAL_TIME] < 0 || plan->limits[SWARM_EVAL_TOKENS] < 0 ||
        (plan->limits[SWARM_EVAL_TIME] == 0 && plan->limits[SWARM_EVAL_TOKENS] == 0)) {
        FAIL(error, INVALID_INPUT, "neither a time nor a number of tokens for a run");
    }
    for (size_t i = 0; i < plan->task_count; i++) {
        int64_t level = plan->tasks[i].level;
        struct view id = plan->tasks[i].id;
        if (level < 1 || level > SWARM_EVAL_LEVELS) {
            FAIL(
                error,
                INVALID_INPUT,
                "task %.*s: level 1 to %d",
                VIEW_ARGUMENTS(id),
                SWARM_EVAL_LEVELS
            );
        }
        for (size_t j = 0; j < i; j++) {
            if (view_equals(id, plan->tasks[j].id)) {
                FAIL(error, INVALID_INPUT, "two tasks %.*s", VIEW_ARGUMENTS(id));
            }
        }
    }
    return OK;
}

result swarm_eval_create(
    struct swarm_eval **out, const struct swarm_eval_plan *plan, struct error *error
) {
    TRY(check_plan(plan, error));
    CLEANUP(swarm_eval_cleanup) struct swarm_eval *eval = calloc(1, sizeof *eval);
    size_t cells =
        (size_t)SWARM_EVAL_BUDGETS * SWARM_EVAL_SETTINGS * plan->task_count * SWARM_EVAL_SEEDS_MAX;
    if (eval == NULL) {
        FAIL(error, MEMORY, "no memory for an evaluation");
    }
    eval->plan = *plan;
    eval->slots = calloc(cells, sizeof *eval->slots);
    eval->values = calloc(plan->task_count, sizeof *eval->values);
    eval->scratch = calloc(SWARM_EVAL_RESAMPLES, sizeof *eval->scratch);
    if (eval->slots == NULL || eval->values == NULL || eval->scratch == NULL) {
        FAIL(error, MEMORY, "no memory for the results of %zu tasks", plan->task_count);
    }
    *out = TAKE(eval);
    return OK;
}

void swarm_eval_destroy(struct swarm_eval *eval) {
    if (eval == NULL) {
        return;
    }
    free(eval->slots);
    free(eval->values);
    free(eval->scratch);
    free(eval);
}

void swarm_eval_cleanup(struct swarm_eval **eval) {
    swarm_eval_destroy(*eval);
    *eval = NULL;
}

const struct swarm_eval_plan *swarm_eval_plan(const struct swarm_eval *eval) {
    return &eval->plan;
}

/* ---- cells ------------------------------------------------------------------------------------- */

static size_t index_of(const struct swarm_eval *eval, const struct swarm_eval_cell *cell) {
    ASSERT(cell->task < eval->plan.task_count);
    ASSERT(cell->setting < SWARM_EVAL_SETTINGS);
    ASSERT(cell->seed < SWARM_EVAL_SEEDS_MAX);
    ASSERT(cell->budget < SWARM_EVAL_BUDGETS);
    size_t row = ((size_t)cell->budget * SWARM_EVAL_SETTINGS + cell->setting);
    return (row * eval->plan.task_count + cell->task) * SWARM_EVAL_SEEDS_MAX + cell->seed;
}

void swarm_eval_add(
    struct swarm_eval *eval,
    const struct swarm_eval_cell *cell,
    const struct swarm_eval_result *outcome
) {
    struct swarm_eval_slot *slot = &eval->slots[index_of(eval, cell)];
    slot->is_known = true;
    slot->result = *outcome;
}

const struct swarm_eval_result *
swarm_eval_get(const struct swarm_eval *eval, const struct swarm_eval_cell *cell) {
    const struct swarm_eval_slot *slot = &eval->slots[index_of(eval, cell)];
    return slot->is_known ? &slot->result : NULL;
}

/* The nth run of the plan in the order of swarm_eval_next; false: that setting or budget is not in it. */
static bool cell_at(const struct swarm_eval *eval, size_t n, struct swarm_eval_cell *out) {
    const struct swarm_eval_plan *plan = &eval->plan;
    const size_t kinds = (size_t)SWARM_EVAL_SETTINGS * SWARM_EVAL_BUDGETS;
    size_t pair = n / kinds;
    out->task = pair % plan->task_count;
    out->seed = pair / plan->task_count;
    size_t kind = (n + pair) % kinds; /* each is first as often as the others */
    out->setting = kind / SWARM_EVAL_BUDGETS;
    out->budget = kind % SWARM_EVAL_BUDGETS == 0 ? SWARM_EVAL_TIME : SWARM_EVAL_TOKENS;
    bool is_meant =
        out->budget == SWARM_EVAL_TIME || !swarm_eval_settings[out->setting].is_timed_only;
    return plan->has[out->setting] && plan->limits[out->budget] > 0 && is_meant;
}

static size_t cells_of(const struct swarm_eval *eval) {
    return eval->plan.seed_count * eval->plan.task_count * SWARM_EVAL_SETTINGS * SWARM_EVAL_BUDGETS;
}

size_t swarm_eval_total(const struct swarm_eval *eval) {
    struct swarm_eval_cell cell;
    size_t count = 0;
    for (size_t n = 0; n < cells_of(eval); n++) {
        count += cell_at(eval, n, &cell) ? 1 : 0;
    }
    return count;
}

size_t swarm_eval_done(const struct swarm_eval *eval) {
    struct swarm_eval_cell cell;
    size_t count = 0;
    for (size_t n = 0; n < cells_of(eval); n++) {
        count += cell_at(eval, n, &cell) && swarm_eval_get(eval, &cell) != NULL ? 1 : 0;
    }
    return count;
}

bool swarm_eval_next(const struct swarm_eval *eval, struct swarm_eval_cell *out) {
    struct swarm_eval_cell cell;
    for (size_t n = 0; n < cells_of(eval); n++) {
        if (cell_at(eval, n, &cell) && swarm_eval_get(eval, &cell) == NULL) {
            *out = cell;
            return true;
        }
    }
    return false;
}

/* FNV-1a. */
static uint64_t hash_of(struct view text) {
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (size_t i = 0; i < text.length; i++) {
        hash = (hash ^ text.data[i]) * UINT64_C(0x100000001B3);
    }
    return hash;
}

/* 53 bits survive every JSON reader. */
uint64_t swarm_eval_seed(const struct swarm_eval *eval, const struct swarm_eval_cell *cell) {
    uint64_t task = hash_of(eval->plan.tasks[cell->task].id);
    return strategy_seed(strategy_seed(cell->seed, 0), task) >> 11;
}
