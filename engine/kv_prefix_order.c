/* Which node goes first: leases, what agents tell, eviction and lifetimes. See kv_prefix.h. */
#include "kv_prefix_internal.h"

static int64_t add_ms(int64_t time_ms, int64_t more_ms) {
    int64_t sum;
    return __builtin_add_overflow(time_ms, more_ms, &sum) ? NEVER : sum;
}

/* Heaps. */

static void heap_place(struct heap *heap, int32_t slot, int32_t item) {
    heap->items[slot] = item;
    heap->slots[item] = slot;
}

static void heap_sift(const struct kv_prefix *tree, struct heap *heap, int32_t slot) {
    int32_t item = heap->items[slot];
    while (slot > 0 && heap->before(tree, item, heap->items[(slot - 1) / 2])) {
        heap_place(heap, slot, heap->items[(slot - 1) / 2]);
        slot = (slot - 1) / 2;
    }
    for (;;) {
        int32_t child = 2 * slot + 1;
        if (child >= heap->count) {
            break;
        }
        if (child + 1 < heap->count &&
            heap->before(tree, heap->items[child + 1], heap->items[child])) {
            child++;
        }
        if (!heap->before(tree, heap->items[child], item)) {
            break;
        }
        heap_place(heap, slot, heap->items[child]);
        slot = child;
    }
    heap_place(heap, slot, item);
}

/* Puts the item in, or where it belongs now. */
static void heap_put(const struct kv_prefix *tree, struct heap *heap, int32_t item) {
    if (heap->slots[item] == NOWHERE) {
        heap_place(heap, heap->count++, item);
    }
    heap_sift(tree, heap, heap->slots[item]);
}

static void heap_drop(const struct kv_prefix *tree, struct heap *heap, int32_t item) {
    int32_t slot = heap->slots[item];
    if (slot == NOWHERE) {
        return;
    }
    heap->slots[item] = NOWHERE;
    int32_t last = heap->items[--heap->count];
    if (last != item) {
        heap_place(heap, slot, last);
        heap_sift(tree, heap, slot);
    }
}

/* Orders. */

static int rank_of(const struct node *node) {
    return node->stamp == STAMP_ABANDONED ? 0 : node->stamp == STAMP_FINISHED ? 1 : 2;
}

static bool goes_before(const struct kv_prefix *tree, int32_t a, int32_t b) {
    const struct node *first = &tree->nodes[a];
    const struct node *second = &tree->nodes[b];
    if (rank_of(first) != rank_of(second)) {
        return rank_of(first) < rank_of(second);
    }
    if (first->expected_ms != second->expected_ms) {
        return first->expected_ms > second->expected_ms;
    }
    return first->used < second->used;
}

static int64_t lifetime_end(const struct kv_prefix *tree, const struct node *node) {
    return add_ms(node->used_ms, tree->options.lifetime_ms);
}

static int64_t due_ms(const struct kv_prefix *tree, const struct node *node) {
    int64_t overdue = add_ms(node->expected_ms, tree->options.overdue_ms);
    int64_t ends = lifetime_end(tree, node);
    return overdue < ends ? overdue : ends;
}

static bool is_due_before(const struct kv_prefix *tree, int32_t a, int32_t b) {
    int64_t first_ms = due_ms(tree, &tree->nodes[a]);
    int64_t second_ms = due_ms(tree, &tree->nodes[b]);
    return first_ms != second_ms ? first_ms < second_ms : a < b;
}

static bool lapses_before(const struct kv_prefix *tree, int32_t a, int32_t b) {
    int64_t first_ms = tree->leases[a].ends_ms;
    int64_t second_ms = tree->leases[b].ends_ms;
    return first_ms != second_ms ? first_ms < second_ms : a < b;
}

void order_init(struct kv_prefix *tree) {
    tree->evict_order.before = goes_before;
    tree->due_order.before = is_due_before;
    tree->lease_order.before = lapses_before;
}

static bool is_evictable(const struct node *node, int32_t index) {
    return index != 0 && node->is_live && node->first_child == NOWHERE && node->lease_count == 0;
}

void order_update(struct kv_prefix *tree, int32_t index) {
    if (is_evictable(&tree->nodes[index], index)) {
        heap_put(tree, &tree->evict_order, index);
        heap_put(tree, &tree->due_order, index);
    } else {
        heap_drop(tree, &tree->evict_order, index);
        heap_drop(tree, &tree->due_order, index);
    }
}

void stamp_merge(struct node *node, enum stamp stamp, int64_t expected_ms) {
    if (node->stamp < (uint8_t)stamp) {
        node->stamp = (uint8_t)stamp;
        node->expected_ms = expected_ms;
    } else if (node->stamp == (uint8_t)stamp && expected_ms < node->expected_ms) {
        node->expected_ms = expected_ms;
    }
}

static void touch(struct kv_prefix *tree, struct node *node) {
    node->used = ++tree->use;
    node->used_ms = tree->now_ms;
}

/* Leases. */

static int32_t lease_find(const struct kv_prefix *tree, uint64_t id) {
    uint32_t index = (uint32_t)id;
    if (index >= (uint32_t)tree->options.leases_max) {
        return NOWHERE;
    }
    const struct lease *lease = &tree->leases[index];
    return lease->is_live && lease->generation == id >> 32 ? (int32_t)index : NOWHERE;
}

/* Takes the lease's protection off its node and leaves what it knew. `stamp` UNTOLD leaves
 * nothing: the lease moves on to another node. */
static void lease_leave(struct kv_prefix *tree, int32_t index, enum stamp stamp) {
    struct lease *lease = &tree->leases[index];
    int32_t at = node_find(tree, lease->node);
    bool protects = !lease->is_lapsed;
    heap_drop(tree, &tree->lease_order, index);
    if (at == NOWHERE || at == 0) {
        return;
    }
    struct node *node = &tree->nodes[at];
    if (protects) {
        ASSERT(node->lease_count > 0);
        node->lease_count--;
        touch(tree, node);
    }
    int64_t expected = stamp == STAMP_OPEN ? lease->expected_ms : NEVER;
    if (stamp != STAMP_UNTOLD) {
        stamp_merge(node, stamp, expected);
    }
    order_update(tree, at);
}

/* The owner of a lapsed lease speaks again: what lapsing left at its node is spent. The caller
 * orders the node anew. */
static void lease_take_back(struct kv_prefix *tree, int32_t index) {
    int32_t at = node_find(tree, tree->leases[index].node);
    if (at != NOWHERE) {
        tree->nodes[at].stamp = STAMP_UNTOLD;
        tree->nodes[at].expected_ms = NEVER;
    }
}

static void lease_lapse(struct kv_prefix *tree, int32_t index) {
    lease_leave(tree, index, STAMP_OPEN);
    tree->leases[index].is_lapsed = true;
    tree->counts.lapsed++;
}

/* A user is back at the node: that others abandoned or finished it says nothing any more. */
static void lease_enter(struct kv_prefix *tree, int32_t index, int32_t at) {
    struct lease *lease = &tree->leases[index];
    struct node *node = &tree->nodes[at];
    lease->node = id_make(node->generation, at);
    lease->ends_ms = add_ms(tree->now_ms, tree->options.lease_ms);
    lease->expected_ms = NEVER;
    lease->is_lapsed = false;
    heap_put(tree, &tree->lease_order, index);
    if (at == 0) {
        return;
    }
    node->lease_count++;
    if (node->stamp != STAMP_OPEN) {
        node->stamp = STAMP_UNTOLD;
    }
    touch(tree, node);
    order_update(tree, at);
}

/* Somebody new is at an end that nobody holds: the one that left it open is back. Kept, that word would
 * protect the path also after it is done with it. */
static void spend_open(struct node *node, int32_t at) {
    if (is_evictable(node, at)) {
        node->stamp = STAMP_UNTOLD;
        node->expected_ms = NEVER;
    }
}

result kv_prefix_acquire(
    struct kv_prefix *tree, uint64_t node, int64_t now_ms, uint64_t *lease, struct error *error
) {
    kv_prefix_advance(tree, now_ms);
    int32_t at = node_find(tree, node);
    if (at == NOWHERE) {
        FAIL(error, NOT_FOUND, "prefix node %llx is gone", (unsigned long long)node);
    }
    int32_t index = tree->lease_free;
    if (index == NOWHERE) {
        FAIL(error, LIMIT, "all %d prefix leases are taken", tree->options.leases_max);
    }
    tree->lease_free = tree->leases[index].next_free;
    tree->leases[index].is_live = true;
    tree->counts.leases++;
    spend_open(&tree->nodes[at], at);
    lease_enter(tree, index, at);
    *lease = id_make(tree->leases[index].generation, index);
    return OK;
}

bool kv_prefix_renew(struct kv_prefix *tree, uint64_t lease, uint64_t node, int64_t now_ms) {
    int32_t index = lease_find(tree, lease);
    int32_t to = node_find(tree, node);
    if (index == NOWHERE || to == NOWHERE) {
        return false;
    }
    if (tree->leases[index].is_lapsed) {
        tree->counts.lapsed--;
        lease_take_back(tree, index);
    }
    /* The new node is protected before time passes, which might end its lifetime. */
    tree->now_ms = now_ms > tree->now_ms ? now_ms : tree->now_ms;
    lease_leave(tree, index, STAMP_UNTOLD);
    lease_enter(tree, index, to);
    kv_prefix_advance(tree, now_ms);
    return true;
}

static void lease_end(struct kv_prefix *tree, uint64_t lease, enum stamp stamp, int64_t now_ms) {
    kv_prefix_advance(tree, now_ms);
    int32_t index = lease_find(tree, lease);
    if (index == NOWHERE) {
        return;
    }
    struct lease *ended = &tree->leases[index];
    if (ended->is_lapsed) {
        tree->counts.lapsed--;
        lease_take_back(tree, index);
    }
    lease_leave(tree, index, stamp);
    ended->is_live = false;
    ended->is_lapsed = false;
    ended->generation = ended->generation == UINT32_MAX ? 1 : ended->generation + 1;
    ended->next_free = tree->lease_free;
    tree->lease_free = index;
    tree->counts.leases--;
}

void kv_prefix_release(struct kv_prefix *tree, uint64_t lease, int64_t now_ms) {
    lease_end(tree, lease, STAMP_OPEN, now_ms);
}

void kv_prefix_tell(
    struct kv_prefix *tree,
    uint64_t lease,
    enum kv_prefix_event event,
    int64_t estimate_ms,
    int64_t now_ms
) {
    if (event == KV_PREFIX_FINISHED || event == KV_PREFIX_ABANDONED) {
        bool is_finished = event == KV_PREFIX_FINISHED;
        lease_end(tree, lease, is_finished ? STAMP_FINISHED : STAMP_ABANDONED, now_ms);
        return;
    }
    kv_prefix_advance(tree, now_ms);
    int32_t index = lease_find(tree, lease);
    if (index == NOWHERE) {
        return;
    }
    int64_t after_ms = event == KV_PREFIX_WAITING && estimate_ms > 0 ? estimate_ms : 0;
    struct lease *told = &tree->leases[index];
    told->expected_ms = add_ms(tree->now_ms, after_ms);
    int32_t at = node_find(tree, told->node);
    if (told->is_lapsed && at != NOWHERE && at != 0) {
        lease_take_back(tree, index);
        stamp_merge(&tree->nodes[at], STAMP_OPEN, told->expected_ms);
        order_update(tree, at);
    }
}

/* Time and eviction. */

void kv_prefix_advance(struct kv_prefix *tree, int64_t now_ms) {
    tree->now_ms = now_ms > tree->now_ms ? now_ms : tree->now_ms;
    while (tree->lease_order.count > 0 &&
           tree->leases[tree->lease_order.items[0]].ends_ms <= tree->now_ms) {
        lease_lapse(tree, tree->lease_order.items[0]);
    }
    int32_t expired = 0;
    while (tree->due_order.count > 0 && expired < KV_PREFIX_EXPIRED_PER_CALL) {
        int32_t index = tree->due_order.items[0];
        struct node *node = &tree->nodes[index];
        if (due_ms(tree, node) > tree->now_ms) {
            return;
        }
        if (lifetime_end(tree, node) <= tree->now_ms) {
            (void)node_remove(tree, index, KV_PREFIX_MISS_EXPIRED);
            expired++;
        } else {
            node->expected_ms = NEVER;
            order_update(tree, index);
        }
    }
}

int32_t kv_prefix_evict(struct kv_prefix *tree, int32_t blocks, int64_t now_ms) {
    kv_prefix_advance(tree, now_ms);
    int32_t freed = 0;
    while (freed < blocks && tree->evict_order.count > 0) {
        if (node_remove(tree, tree->evict_order.items[0], KV_PREFIX_MISS_EVICTED)) {
            freed++;
        }
    }
    return freed;
}

void kv_prefix_count(const struct kv_prefix *tree, struct kv_prefix_counts *out) {
    *out = tree->counts;
    out->evictable = tree->evict_order.count;
}
