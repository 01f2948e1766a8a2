/* A planner writes tasks that need each other, workers do them, their results are merged. See strategy.h.
 *
 *     plan -> workers, as what they need is merged -> merge each -> verify what was merged
 *
 * An integrator is started when a merge conflicts and when the verifier refuses the whole. When tasks
 * fail, or the whole still does not pass, the planner is asked again, with what has happened, a bounded
 * number of times. What was merged stays, so a later plan is about the rest.
 */
#include "strategy.h"
#include "task_list.h"

#define PLANS_MAX         3
#define INTEGRATIONS_MAX  3 /* in all */
#define PLANNER_PARTS     5 /* of tokens and time, one for the planner */
#define HISTORY_BYTES_MAX ((size_t)8 << 10)
#define HISTORY_EACH      ((size_t)1 << 10)
#define TAG_PLANNER       1000
#define TAG_WHOLE         1001 /* integrator of what the verifier refuses */
#define TAG_CONFLICT      2000 /* + task: integrator of its conflicts */

static const char planner_brief[] =
    "Do not solve the task yet. Split it into tasks that agents do beside each other, each in a "
    "directory of its own, and that are merged afterwards: as few as make sense, no two of which "
    "change "
    "the same files. End with a JSON list and nothing after it:\n"
    "[{\"id\": \"short-name\", \"brief\": \"what to do, in full\", \"needs\": [\"id of a task that "
    "must be "
    "merged before\"]}]\n"
    "At most 32 tasks. One task alone is fine when the work cannot be split.\n";

enum task_step { TASK_OPEN, TASK_WORKED_ON, TASK_MERGED, TASK_FAILED };

struct plan_task {
    enum task_step step;
    struct buffer brief; /* of the order */
};

struct plan {
    bool has_list;
    struct task_list list;
    struct plan_task tasks[TASK_LIST_MAX];
    size_t at_work; /* nodes of which more is to come */
    int plans, integrations;
    bool is_whole; /* the whole is verified or integrated, and no task worked on */
    struct buffer history;
    struct buffer brief;
};

/* What the swarm keeps. */
struct plan_state {
    struct plan *plan;
};

static struct plan *plan_of(void *state) {
    const struct plan_state *held = state;
    return held->plan;
}

/* ---- orders ------------------------------------------------------------------------------------ */

/* As much as fits; a whole line or nothing. */
static void remember(struct plan *plan, const char *what, struct view name, struct view text) {
    size_t before = plan->history.length;
    text = view_slice(text, 0, HISTORY_EACH);
    text = view_slice(text, 0, utf8_valid_prefix(text));
    struct error error = {0};
    if (is_failed(
            buffer_append_format(&plan->history, &error, "- %.*s %s", VIEW_ARGUMENTS(name), what)
        ) ||
        is_failed(buffer_append_text(&plan->history, text.length > 0 ? ": " : "", &error)) ||
        is_failed(buffer_append(&plan->history, text, &error)) ||
        is_failed(buffer_append_text(&plan->history, "\n", &error))) {
        plan->history.length = before;
    }
}

static struct view history_of(const struct plan *plan) {
    return buffer_view(&plan->history);
}

static void
order_planner(struct plan *plan, const struct swarm *swarm, struct strategy_orders *orders) {
    struct error error = {0};
    buffer_clear(&plan->brief);
    result status = buffer_append_text(&plan->brief, planner_brief, &error);
    if (is_ok(status) && plan->history.length > 0) {
        status = buffer_append_text(
            &plan->brief,
            "This has happened so far; what is merged is in your directory. Plan the rest only:\n",
            &error
        );
    }
    if (is_ok(status)) {
        status = buffer_append(&plan->brief, history_of(plan), &error);
    }
    if (is_failed(status)) {
        strategy_end(orders, swarm_best(swarm), "no memory for a plan");
        return;
    }
    plan->plans++;
    plan->is_whole = false;
    plan->at_work++;
    struct strategy_start *start =
        strategy_order_start(orders, buffer_view(&plan->brief), PLANNER_PARTS);
    start->is_fork = true;
    start->is_part = true;
    start->time_parts = PLANNER_PARTS;
    start->value = STRATEGY_VALUE_PLANNER;
    start->tag = TAG_PLANNER;
}

static bool order_integrator(
    struct plan *plan,
    struct strategy_orders *orders,
    int64_t tag,
    size_t conflict_of,
    const char *why,
    struct view detail
) {
    struct error error = {0};
    buffer_clear(&plan->brief);
    if (plan->integrations == INTEGRATIONS_MAX ||
        is_failed(buffer_append_text(&plan->brief, why, &error)) ||
        is_failed(buffer_append(&plan->brief, detail, &error))) {
        return false;
    }
    plan->integrations++;
    plan->at_work++;
    struct strategy_start *start = strategy_order_start(orders, buffer_view(&plan->brief), 2);
    start->is_fork = true;
    start->is_part = true;
    start->time_parts = 2;
    start->value = STRATEGY_VALUE_PLANNER;
    start->conflict_of = conflict_of;
    start->tag = tag;
    return true;
}

static bool is_ready(const struct plan *plan, size_t task) {
    const struct task *at = &plan->list.tasks[task];
    for (size_t i = 0; i < at->need_count; i++) {
        if (plan->tasks[at->needs[i]].step != TASK_MERGED) {
            return false;
        }
    }
    return plan->tasks[task].step == TASK_OPEN;
}

static void order_workers(struct plan *plan, struct strategy_orders *orders) {
    struct error error = {0};
    int64_t open = 0;
    for (size_t i = 0; i < plan->list.count; i++) {
        open += plan->tasks[i].step == TASK_OPEN ? 1 : 0;
    }
    for (size_t i = 0; i < plan->list.count; i++) {
        struct plan_task *task = &plan->tasks[i];
        if (!is_ready(plan, i)) {
            continue;
        }
        buffer_clear(&task->brief);
        if (is_failed(buffer_append_text(
                &task->brief, "Do this part of the task only; others do the rest.\n", &error
            )) ||
            is_failed(buffer_append(&task->brief, plan->list.tasks[i].brief, &error))) {
            task->step = TASK_FAILED;
            continue;
        }
        task->step = TASK_WORKED_ON;
        plan->at_work++;
        struct strategy_start *start =
            strategy_order_start(orders, buffer_view(&task->brief), open + 1);
        open--;
        start->is_fork = true;
        start->is_part = true;
        start->time_parts = (int64_t)task_list_chain(&plan->list, i);
        start->value = STRATEGY_VALUE_WORKER;
        start->tag = (int64_t)i;
    }
}

/* ---- steps ------------------------------------------------------------------------------------- */

static void
whole_verified(struct plan *plan, const struct swarm *swarm, struct strategy_orders *orders) {
    const struct swarm_node *root = swarm_node(swarm, SWARM_ROOT);
    bool is_refused = root->outcome == SWARM_FAILED;
    if (!is_refused || !swarm_can_start(swarm)) {
        strategy_end(orders, SWARM_ROOT, "the parts are merged, in %d plans", plan->plans);
        return;
    }
    remember(
        plan, "does not pass the verifier", view_of_text("the whole"), buffer_view(&root->detail)
    );
    if (order_integrator(
            plan,
            orders,
            TAG_WHOLE,
            SWARM_NONE,
            "The parts of the task are merged in your directory, but the verifier refuses the "
            "whole. Make "
            "it pass. What it said:\n",
            buffer_view(&root->detail)
        )) {
        return;
    }
    if (plan->plans < PLANS_MAX) {
        order_planner(plan, swarm, orders);
        return;
    }
    strategy_end(orders, SWARM_ROOT, "the parts are merged, and the whole does not pass");
}

/* Tasks that need each other are at an end; a new plan, or the whole as it is. */
static void
tasks_over(struct plan *plan, const struct swarm *swarm, struct strategy_orders *orders) {
    size_t merged = 0;
    for (size_t i = 0; i < plan->list.count; i++) {
        merged += plan->tasks[i].step == TASK_MERGED ? 1 : 0;
    }
    bool is_complete = plan->has_list && merged == plan->list.count;
    if (!is_complete && plan->plans < PLANS_MAX && swarm_can_start(swarm)) {
        order_planner(plan, swarm, orders);
    } else if (swarm_class(swarm, SWARM_ROOT) > 0) {
        plan->is_whole = true;
        if (swarm_node(swarm, SWARM_ROOT)->verify == SWARM_VERIFY_DONE) {
            whole_verified(plan, swarm, orders); /* nothing was merged since */
        } else {
            strategy_order(orders, STRATEGY_ORDER_VERIFY, SWARM_ROOT);
        }
    } else {
        strategy_end(
            orders,
            SWARM_NONE,
            is_complete ? "no task has changed anything" : "no plan came to a result"
        );
    }
}

static void go_on(struct plan *plan, const struct swarm *swarm, struct strategy_orders *orders) {
    if (plan->has_list && !plan->is_whole) {
        order_workers(plan, orders);
    }
    if (plan->at_work == 0) {
        tasks_over(plan, swarm, orders);
    }
}

static void planner_ended(struct plan *plan, const struct swarm_node *planner) {
    struct error error = {0};
    struct task_list list = {0};
    plan->at_work--;
    if (plan->has_list) {
        task_list_deinit(&plan->list);
        plan->has_list = false;
    }
    for (size_t i = 0; i < TASK_LIST_MAX; i++) {
        plan->tasks[i].step = TASK_OPEN;
    }
    if (is_failed(task_list_parse(buffer_view(&planner->summary), &list, &error))) {
        remember(
            plan,
            "planned nothing that can be read",
            view_of_text(planner->name),
            view_of_text(error.message)
        );
        return;
    }
    plan->list = list;
    plan->has_list = true;
}

static struct view name_of(const struct plan *plan, int64_t tag) {
    if (tag == TAG_WHOLE || tag == TAG_PLANNER) {
        return view_of_text("the whole");
    }
    size_t task = (size_t)(tag >= TAG_CONFLICT ? tag - TAG_CONFLICT : tag);
    return task < plan->list.count ? plan->list.tasks[task].id : view_of_text("a task");
}

static void set_step(struct plan *plan, int64_t tag, enum task_step step) {
    size_t task = (size_t)(tag >= TAG_CONFLICT ? tag - TAG_CONFLICT : tag);
    if (tag != TAG_WHOLE && task < plan->list.count) {
        plan->tasks[task].step = step;
    }
}

/* A worker's or an integrator's agent has ended: what it changed is merged. */
static void worker_ended(
    struct plan *plan, const struct swarm *swarm, size_t node, struct strategy_orders *orders
) {
    const struct swarm_node *ended = swarm_node(swarm, node);
    bool is_done = ended->end == SWARM_END_ANSWER || ended->end == SWARM_END_BUDGET;
    if (is_done && ended->commit.text[0] != '\0') {
        strategy_order(orders, STRATEGY_ORDER_MERGE, node);
        return;
    }
    plan->at_work--;
    if (is_done && ended->tag >= TAG_CONFLICT) { /* the task's changes are not in the whole */
        set_step(plan, ended->tag, TASK_FAILED);
        remember(plan, "still conflicts", name_of(plan, ended->tag), buffer_view(&ended->summary));
    } else if (ended->end == SWARM_END_ANSWER) {
        set_step(plan, ended->tag, TASK_MERGED);
        remember(
            plan,
            "was done without a change",
            name_of(plan, ended->tag),
            buffer_view(&ended->summary)
        );
    } else {
        set_step(plan, ended->tag, TASK_FAILED);
        remember(plan, "failed", name_of(plan, ended->tag), buffer_view(&ended->detail));
    }
}

static void worker_merged(
    struct plan *plan, const struct swarm *swarm, size_t node, struct strategy_orders *orders
) {
    const struct swarm_node *merged = swarm_node(swarm, node);
    plan->at_work--;
    if (merged->is_merged) {
        set_step(plan, merged->tag, TASK_MERGED);
        remember(plan, "is merged", name_of(plan, merged->tag), buffer_view(&merged->summary));
        return;
    }
    bool is_task = merged->tag < TASK_LIST_MAX;
    if (merged->has_conflicts && is_task && swarm_can_start(swarm) &&
        order_integrator(
            plan,
            orders,
            TAG_CONFLICT + merged->tag,
            node,
            "The work of two agents conflicts in the files below. Your directory holds both sides "
            "of the "
            "conflict: make one out of them that keeps what both were to do.\n",
            buffer_view(&merged->detail)
        )) {
        return;
    }
    set_step(plan, merged->tag, TASK_FAILED);
    remember(plan, "could not be merged", name_of(plan, merged->tag), buffer_view(&merged->detail));
}

/* ---- the table --------------------------------------------------------------------------------- */

static void plan_start(void *state, const struct swarm *swarm, struct strategy_orders *orders) {
    struct plan_state *held = state;
    struct plan *plan = calloc(1, sizeof *plan);
    held->plan = plan;
    if (plan == NULL) {
        strategy_end(orders, SWARM_NONE, "no memory for a plan");
        return;
    }
    buffer_init(&plan->history, HISTORY_BYTES_MAX);
    buffer_init(&plan->brief, SWARM_BRIEF_BYTES_MAX);
    for (size_t i = 0; i < TASK_LIST_MAX; i++) {
        buffer_init(&plan->tasks[i].brief, SWARM_BRIEF_BYTES_MAX);
    }
    order_planner(plan, swarm, orders);
}

static void refused(struct plan *plan, const struct swarm *swarm, int64_t tag) {
    plan->at_work--;
    set_step(plan, tag, TASK_FAILED);
    remember(plan, "was not started", name_of(plan, tag), view_of_text(swarm_refusal(swarm)));
    plan->plans = PLANS_MAX; /* what has no room now has none for a new plan */
}

static void plan_note(
    void *state,
    const struct swarm *swarm,
    const struct strategy_note *note,
    struct strategy_orders *orders
) {
    struct plan *plan = plan_of(state);
    bool is_node = note->type == STRATEGY_NODE_ENDED || note->type == STRATEGY_MERGED;
    int64_t tag = is_node ? swarm_node(swarm, note->node)->tag : note->tag;
    if (note->type == STRATEGY_NODE_VERIFIED) {
        whole_verified(plan, swarm, orders);
        return;
    }
    if (note->type == STRATEGY_REFUSED) {
        refused(plan, swarm, tag);
    } else if (note->type == STRATEGY_NODE_ENDED && tag == TAG_PLANNER) {
        planner_ended(plan, swarm_node(swarm, note->node));
    } else if (note->type == STRATEGY_NODE_ENDED) {
        worker_ended(plan, swarm, note->node, orders);
    } else if (note->type == STRATEGY_MERGED) {
        worker_merged(plan, swarm, note->node, orders);
    }
    go_on(plan, swarm, orders);
}

static void plan_deinit(void *state) {
    struct plan *plan = plan_of(state);
    if (plan == NULL) {
        return;
    }
    task_list_deinit(&plan->list);
    for (size_t i = 0; i < TASK_LIST_MAX; i++) {
        buffer_deinit(&plan->tasks[i].brief);
    }
    buffer_deinit(&plan->history);
    buffer_deinit(&plan->brief);
    free(plan);
}

const struct strategy strategy_plan = {
    .name = "plan",
    .summary = "a planner splits the task, workers do the parts, which are merged",
    .attempts_default = 1,
    .attempts_min = 1,
    .start = plan_start,
    .note = plan_note,
    .deinit = plan_deinit,
};
