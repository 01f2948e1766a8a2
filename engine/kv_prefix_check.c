/* Whether the parts of a prefix tree agree. See kv_prefix.h. */
#include "kv_prefix_internal.h"

static result check_heap(
    const struct kv_prefix *tree, const struct heap *heap, const char *name, struct error *error
) {
    for (int32_t i = 0; i < heap->count; i++) {
        int32_t item = heap->items[i];
        if (heap->slots[item] != i) {
            FAIL(
                error,
                CORRUPT,
                "%s order: item %d is at %d, not %d",
                name,
                item,
                i,
                heap->slots[item]
            );
        }
        if (i > 0 && heap->before(tree, item, heap->items[(i - 1) / 2])) {
            FAIL(error, CORRUPT, "%s order: item %d stands below a later one", name, item);
        }
    }
    return OK;
}

static bool is_in_bucket(const struct kv_prefix *tree, int32_t index) {
    int32_t i = tree->buckets[tree->nodes[index].hash & tree->bucket_mask];
    for (int32_t steps = 0; i != NOWHERE && steps <= tree->options.nodes_max; steps++) {
        if (i == index) {
            return true;
        }
        i = tree->nodes[i].chain_next;
    }
    return false;
}

static result check_node(const struct kv_prefix *tree, int32_t index, struct error *error) {
    const struct node *node = &tree->nodes[index];
    const struct node *parent = &tree->nodes[node->parent];
    if (!parent->is_live || parent->depth + 1 != node->depth) {
        FAIL(error, CORRUPT, "node %d is an orphan of node %d", index, node->parent);
    }
    bool is_root = memcmp(&node->lineage, &tree->options.root_lineage, sizeof node->lineage) == 0;
    if (node->is_exact != is_root || (node->is_exact && !parent->is_exact)) {
        FAIL(error, CORRUPT, "node %d is exact below an approximate one, or misnamed", index);
    }
    if (node->hash != chain_hash(tree, parent->hash, node_tokens(tree, index)) ||
        !is_in_bucket(tree, index)) {
        FAIL(error, CORRUPT, "node %d is not where its hash says", index);
    }
    bool is_evictable = node->first_child == NOWHERE && node->lease_count == 0;
    if ((tree->evict_order.slots[index] != NOWHERE) != is_evictable ||
        (tree->due_order.slots[index] != NOWHERE) != is_evictable) {
        FAIL(error, CORRUPT, "node %d is evictable and not ordered, or the reverse", index);
    }
    return OK;
}

/* Children found by links are those that name the parent: `linked` counts all of them. */
static result
check_children(const struct kv_prefix *tree, int32_t index, int64_t *linked, struct error *error) {
    int32_t previous = NOWHERE;
    for (int32_t i = tree->nodes[index].first_child; i != NOWHERE;
         i = tree->nodes[i].sibling_next) {
        const struct node *child = &tree->nodes[i];
        if (!child->is_live || child->parent != index || child->sibling_previous != previous) {
            FAIL(error, CORRUPT, "node %d is linked wrongly below node %d", i, index);
        }
        if (++*linked > tree->options.nodes_max) {
            FAIL(error, CORRUPT, "the children of node %d run in a circle", index);
        }
        previous = i;
    }
    return OK;
}

static result check_leases(const struct kv_prefix *tree, struct error *error) {
    int64_t on_nodes = 0;
    for (int32_t i = 1; i <= tree->options.nodes_max; i++) {
        on_nodes += tree->nodes[i].lease_count;
    }
    int64_t on_leases = 0;
    int32_t live = 0;
    int32_t lapsed = 0;
    for (int32_t i = 0; i < tree->options.leases_max; i++) {
        const struct lease *lease = &tree->leases[i];
        bool runs = lease->is_live && !lease->is_lapsed;
        live += lease->is_live;
        lapsed += lease->is_live && lease->is_lapsed;
        on_leases += runs && node_find(tree, lease->node) > 0;
        if (runs != (tree->lease_order.slots[i] != NOWHERE)) {
            FAIL(error, CORRUPT, "lease %d runs and is not ordered, or the reverse", i);
        }
    }
    if (on_nodes != on_leases || live != tree->counts.leases || lapsed != tree->counts.lapsed) {
        FAIL(
            error,
            CORRUPT,
            "%lld leases on nodes, %lld running; %d known, counted %d; %d lapsed, counted %d",
            (long long)on_nodes,
            (long long)on_leases,
            live,
            tree->counts.leases,
            lapsed,
            tree->counts.lapsed
        );
    }
    return OK;
}

result kv_prefix_check(const struct kv_prefix *tree, struct error *error) {
    TRY(check_heap(tree, &tree->evict_order, "eviction", error));
    TRY(check_heap(tree, &tree->due_order, "lifetime", error));
    TRY(check_heap(tree, &tree->lease_order, "lease", error));
    int64_t linked = 0;
    int32_t live = 0;
    TRY(check_children(tree, 0, &linked, error));
    for (int32_t i = 1; i <= tree->options.nodes_max; i++) {
        if (tree->nodes[i].is_live) {
            live++;
            TRY(check_node(tree, i, error));
            TRY(check_children(tree, i, &linked, error));
        }
    }
    if (live != tree->counts.nodes || live != linked) {
        FAIL(
            error,
            CORRUPT,
            "%d nodes live, %d counted, %lld linked",
            live,
            tree->counts.nodes,
            (long long)linked
        );
    }
    return check_leases(tree, error);
}
