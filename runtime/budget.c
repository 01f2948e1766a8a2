/* Accounts of a tree; see budget.h. */
#include "budget.h"

#include <inttypes.h>

struct account {
    bool is_open;
    size_t parent, depth, children_open;
    int64_t deadline_ms;
    struct budget_amounts share;
    struct budget_amounts own;      /* spent by itself */
    struct budget_amounts children; /* spent by children that are closed */
    struct budget_amounts given;    /* shares of open children; of what has no limit: 0 */
    struct budget_amounts reserved;
};

struct budget {
    struct account *accounts; /* [count], room for nodes_max */
    size_t count, nodes_max, depth_max;
    struct budget_amounts overdrawn;
};

static const char *const resource_names[] = {
    [BUDGET_TOKENS] = "tokens",
    [BUDGET_CALLS] = "calls",
    [BUDGET_PROCESSES] = "processes",
    [BUDGET_MEMORY] = "bytes of memory",
};

static bool is_held(size_t resource) {
    return resource == BUDGET_PROCESSES || resource == BUDGET_MEMORY;
}

/* Saturates below BUDGET_NO_LIMIT, which a sum never is. */
static int64_t sum(int64_t a, int64_t b) {
    int64_t total = 0;
    return __builtin_add_overflow(a, b, &total) || total == BUDGET_NO_LIMIT ? BUDGET_NO_LIMIT - 1
                                                                            : total;
}

const char *budget_resource_name(enum budget_resource resource) {
    ASSERT(resource < BUDGET_RESOURCES);
    return resource_names[resource];
}

void budget_refusal_text(const struct budget_refusal *refusal, char out[BUDGET_TEXT_BYTES]) {
    int written = 0;
    if (refusal->reason == BUDGET_REFUSED_AMOUNT && refusal->asked == BUDGET_NO_LIMIT) {
        written = snprintf(
            out,
            BUDGET_TEXT_BYTES,
            "%s: no limit asked, %" PRId64 " left",
            budget_resource_name(refusal->resource),
            refusal->left
        );
    } else if (refusal->reason == BUDGET_REFUSED_AMOUNT) {
        written = snprintf(
            out,
            BUDGET_TEXT_BYTES,
            "%s: %" PRId64 " asked, %" PRId64 " left",
            budget_resource_name(refusal->resource),
            refusal->asked,
            refusal->left
        );
    } else if (refusal->reason == BUDGET_REFUSED_DEPTH) {
        written = snprintf(
            out,
            BUDGET_TEXT_BYTES,
            "depth: %" PRId64 " asked, at most %" PRId64,
            refusal->asked,
            refusal->left
        );
    } else if (refusal->reason == BUDGET_REFUSED_NODES) {
        written = snprintf(
            out, BUDGET_TEXT_BYTES, "agents: at most %" PRId64 " in one run", refusal->left
        );
    } else {
        const char *text = refusal->reason == BUDGET_REFUSED_TIME     ? "time: none is left"
                           : refusal->reason == BUDGET_REFUSED_CLOSED ? "the budget is closed"
                                                                      : "granted";
        written = snprintf(out, BUDGET_TEXT_BYTES, "%s", text);
    }
    ASSERT(written > 0 && written < BUDGET_TEXT_BYTES);
}

/* ---- making ------------------------------------------------------------------------------------ */

result budget_create(struct budget **out, const struct budget_limits *limits, struct error *error) {
    size_t nodes_max = limits->nodes_max > 0 ? limits->nodes_max : BUDGET_NODES_DEFAULT;
    if (nodes_max > BUDGET_NODES_MAX) {
        FAIL(error, INVALID_INPUT, "%zu agents: at most %d", nodes_max, BUDGET_NODES_MAX);
    }
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        if (limits->amounts.of[i] < 0) {
            FAIL(
                error,
                INVALID_INPUT,
                "budget of %s: %" PRId64 " is negative",
                resource_names[i],
                limits->amounts.of[i]
            );
        }
    }
    CLEANUP(budget_cleanup) struct budget *budget = calloc(1, sizeof *budget);
    if (budget == NULL) {
        FAIL(error, MEMORY, "no memory for a budget");
    }
    budget->accounts = calloc(nodes_max, sizeof *budget->accounts);
    if (budget->accounts == NULL) {
        FAIL(error, MEMORY, "no memory for a budget of %zu agents", nodes_max);
    }
    budget->nodes_max = nodes_max;
    budget->depth_max = limits->depth_max > 0 ? limits->depth_max : BUDGET_DEPTH_DEFAULT;
    budget->count = 1;
    budget->accounts[BUDGET_ROOT] = (struct account){
        .is_open = true,
        .share = limits->amounts,
        .deadline_ms = limits->deadline_ms,
    };
    *out = TAKE(budget);
    return OK;
}

void budget_destroy(struct budget *budget) {
    if (budget != NULL) {
        free(budget->accounts);
        free(budget);
    }
}

void budget_cleanup(struct budget **budget) {
    budget_destroy(*budget);
    *budget = NULL;
}

/* ---- use --------------------------------------------------------------------------------------- */

static struct account *account_of(const struct budget *budget, size_t node) {
    ASSERT(node < budget->count);
    return &budget->accounts[node];
}

static int64_t left_of(const struct account *account, size_t resource) {
    if (account->share.of[resource] == BUDGET_NO_LIMIT) {
        return BUDGET_NO_LIMIT;
    }
    return account->share.of[resource] - account->own.of[resource] -
           account->children.of[resource] - account->given.of[resource] -
           account->reserved.of[resource];
}

static bool refuse(
    struct budget_refusal *refusal, enum budget_refusal_reason reason, int64_t asked, int64_t left
) {
    *refusal = (struct budget_refusal){.reason = reason, .asked = asked, .left = left};
    return false;
}

static bool has_left(
    const struct account *account,
    const struct budget_amounts *amounts,
    struct budget_refusal *refusal
) {
    *refusal = (struct budget_refusal){0};
    if (!account->is_open) {
        return refuse(refusal, BUDGET_REFUSED_CLOSED, 0, 0);
    }
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        int64_t left = left_of(account, i);
        ASSERT(amounts->of[i] >= 0);
        if (left != BUDGET_NO_LIMIT && amounts->of[i] > left) {
            refuse(refusal, BUDGET_REFUSED_AMOUNT, amounts->of[i], left);
            refusal->resource = (enum budget_resource)i;
            return false;
        }
    }
    return true;
}

static void give(struct account *parent, const struct budget_amounts *amounts) {
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        if (parent->share.of[i] != BUDGET_NO_LIMIT) {
            parent->given.of[i] += amounts->of[i];
        }
    }
}

bool budget_open(
    struct budget *budget,
    size_t parent,
    const struct budget_share *share,
    int64_t now_ms,
    size_t *out_node,
    struct budget_refusal *refusal
) {
    struct account *above = account_of(budget, parent);
    int64_t deadline_ms =
        share->deadline_ms < above->deadline_ms ? share->deadline_ms : above->deadline_ms;
    if (budget->count == budget->nodes_max) {
        return refuse(refusal, BUDGET_REFUSED_NODES, 1, (int64_t)budget->nodes_max);
    }
    if (above->depth >= budget->depth_max) {
        int64_t most = (int64_t)budget->depth_max;
        return refuse(refusal, BUDGET_REFUSED_DEPTH, (int64_t)above->depth + 1, most);
    }
    if (deadline_ms != BUDGET_NO_LIMIT && deadline_ms <= now_ms) {
        return refuse(refusal, BUDGET_REFUSED_TIME, share->deadline_ms, 0);
    }
    if (!has_left(above, &share->amounts, refusal)) {
        return false;
    }
    give(above, &share->amounts);
    above->children_open++;
    *out_node = budget->count++;
    budget->accounts[*out_node] = (struct account){
        .is_open = true,
        .parent = parent,
        .depth = above->depth + 1,
        .deadline_ms = deadline_ms,
        .share = share->amounts,
    };
    return true;
}

bool budget_grow(
    struct budget *budget,
    size_t node,
    const struct budget_amounts *more,
    struct budget_refusal *refusal
) {
    struct account *account = account_of(budget, node);
    ASSERT(node != BUDGET_ROOT);
    if (!account->is_open) {
        return refuse(refusal, BUDGET_REFUSED_CLOSED, 0, 0);
    }
    struct account *parent = account_of(budget, account->parent);
    if (!has_left(parent, more, refusal)) {
        return false;
    }
    give(parent, more);
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        int64_t *share = &account->share.of[i];
        bool is_endless = *share == BUDGET_NO_LIMIT || more->of[i] == BUDGET_NO_LIMIT;
        *share = is_endless ? BUDGET_NO_LIMIT : sum(*share, more->of[i]);
    }
    return true;
}

void budget_shrink_held(struct budget *budget, size_t node) {
    struct account *account = account_of(budget, node);
    ASSERT(node != BUDGET_ROOT && account->is_open);
    struct account *parent = account_of(budget, account->parent);
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        int64_t back = left_of(account, i);
        if (is_held(i) && back == BUDGET_NO_LIMIT) {
            account->share.of[i] = sum(account->given.of[i], account->reserved.of[i]);
            ASSERT(parent->share.of[i] == BUDGET_NO_LIMIT);
        } else if (is_held(i)) {
            account->share.of[i] -= back;
            parent->given.of[i] -= parent->share.of[i] != BUDGET_NO_LIMIT ? back : 0;
        }
    }
}

int64_t budget_set_deadline(struct budget *budget, size_t node, int64_t deadline_ms) {
    struct account *account = account_of(budget, node);
    int64_t above =
        node == BUDGET_ROOT ? BUDGET_NO_LIMIT : account_of(budget, account->parent)->deadline_ms;
    account->deadline_ms = deadline_ms < above ? deadline_ms : above;
    return account->deadline_ms;
}

bool budget_reserve(
    struct budget *budget,
    size_t node,
    const struct budget_amounts *amounts,
    struct budget_refusal *refusal
) {
    struct account *account = account_of(budget, node);
    if (!has_left(account, amounts, refusal)) {
        return false;
    }
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        account->reserved.of[i] = sum(account->reserved.of[i], amounts->of[i]);
    }
    return true;
}

bool budget_settle(
    struct budget *budget,
    size_t node,
    const struct budget_amounts *reserved,
    const struct budget_amounts *used
) {
    struct account *account = account_of(budget, node);
    bool is_covered = true;
    ASSERT(account->is_open);
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        ASSERT(reserved->of[i] >= 0 && reserved->of[i] <= account->reserved.of[i]);
        ASSERT(used->of[i] >= 0);
        account->reserved.of[i] -= reserved->of[i];
        int64_t left = left_of(account, i);
        int64_t spent = used->of[i] < left ? used->of[i] : left;
        if (!is_held(i)) {
            account->own.of[i] = sum(account->own.of[i], spent);
        }
        if (used->of[i] > spent) {
            budget->overdrawn.of[i] = sum(budget->overdrawn.of[i], used->of[i] - spent);
            is_covered = false;
        }
    }
    return is_covered;
}

bool budget_charge(struct budget *budget, size_t node, const struct budget_amounts *used) {
    const struct budget_amounts none = {{0}};
    return budget_settle(budget, node, &none, used);
}

void budget_close(struct budget *budget, size_t node, bool is_lost) {
    struct account *account = account_of(budget, node);
    ASSERT(node != BUDGET_ROOT && account->is_open && account->children_open == 0);
    struct account *parent = account_of(budget, account->parent);
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        if (!is_held(i)) {
            account->own.of[i] = sum(account->own.of[i], account->reserved.of[i]);
        }
        account->reserved.of[i] = 0;
        int64_t left = left_of(account, i);
        if (is_lost && !is_held(i) && left != BUDGET_NO_LIMIT) {
            account->own.of[i] += left;
        }
        int64_t spent = sum(account->own.of[i], account->children.of[i]);
        if (parent->share.of[i] != BUDGET_NO_LIMIT) {
            parent->given.of[i] -= account->share.of[i];
        }
        if (!is_held(i)) {
            parent->children.of[i] = sum(parent->children.of[i], spent);
        }
    }
    account->is_open = false;
    parent->children_open--;
}

/* ---- questions --------------------------------------------------------------------------------- */

bool budget_is_open(const struct budget *budget, size_t node) {
    return account_of(budget, node)->is_open;
}

size_t budget_nodes(const struct budget *budget) {
    return budget->count;
}

size_t budget_nodes_max(const struct budget *budget) {
    return budget->nodes_max;
}

size_t budget_depth_max(const struct budget *budget) {
    return budget->depth_max;
}

size_t budget_depth(const struct budget *budget, size_t node) {
    return account_of(budget, node)->depth;
}

size_t budget_parent(const struct budget *budget, size_t node) {
    return account_of(budget, node)->parent;
}

size_t budget_children_open(const struct budget *budget, size_t node) {
    return account_of(budget, node)->children_open;
}

int64_t budget_deadline_ms(const struct budget *budget, size_t node) {
    return account_of(budget, node)->deadline_ms;
}

struct budget_amounts budget_left(const struct budget *budget, size_t node) {
    const struct account *account = account_of(budget, node);
    struct budget_amounts left = {{0}};
    for (size_t i = 0; account->is_open && i < BUDGET_RESOURCES; i++) {
        left.of[i] = left_of(account, i);
    }
    return left;
}

struct budget_amounts budget_share(const struct budget *budget, size_t node) {
    return account_of(budget, node)->share;
}

struct budget_amounts budget_spent(const struct budget *budget, size_t node) {
    const struct account *account = account_of(budget, node);
    struct budget_amounts spent = {{0}};
    for (size_t i = 0; i < BUDGET_RESOURCES; i++) {
        spent.of[i] = sum(account->own.of[i], account->children.of[i]);
    }
    return spent;
}

struct budget_amounts budget_reserved(const struct budget *budget, size_t node) {
    return account_of(budget, node)->reserved;
}

int64_t budget_own_max(const struct budget *budget, size_t node, enum budget_resource resource) {
    const struct account *account = account_of(budget, node);
    int64_t left = left_of(account, resource);
    return left == BUDGET_NO_LIMIT ? left : sum(account->own.of[resource], left);
}

int64_t budget_own_spent(const struct budget *budget, size_t node, enum budget_resource resource) {
    return account_of(budget, node)->own.of[resource];
}

struct budget_amounts budget_overdrawn(const struct budget *budget) {
    return budget->overdrawn;
}

int64_t budget_part(int64_t amount, int64_t parts) {
    ASSERT(amount >= 0 && parts > 0);
    return amount == BUDGET_NO_LIMIT ? amount : amount / parts;
}
