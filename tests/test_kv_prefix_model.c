/* The prefix tree against a naive list of token sequences: random trees of prompts, lineages,
 * leases, agent events, evictions and clock jumps. Every answer, every released block and their
 * order, and every block's references have to agree.
 *
 * test_kv_prefix_model [SEED [DROP]]: the seed is printed; the same seed repeats a failure. Bits of DROP
 * (hexadecimal) are cleared in all hashes, so that many collide.
 */
#include "engine/kv_prefix.h"

#define B          KV_BLOCK_TOKENS
#define DEPTH_MAX  5
#define TOKENS     (DEPTH_MAX * B)
#define NODES      48
#define LEASES     6
#define GHOSTS     16
#define BLOCKS     96
#define PROMPTS    24
#define OPERATIONS 100000
#define LEASE_MS   100
#define LIFETIME   3000
#define OVERDUE_MS 150
#define NEVER      INT64_MAX

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "operation %d, line %d: %s\n", operation, __LINE__, #condition);       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum stamp { UNTOLD, ABANDONED, FINISHED, OPEN };

struct entry { /* a cached sequence of whole blocks */
    bool is_live;
    uint64_t id;
    int32_t parent; /* entry, or -1 */
    int32_t depth;
    int32_t tokens[TOKENS];
    uint8_t lineage; /* of its last block; 1 is the root lineage */
    int32_t block;
    enum stamp stamp;
    int64_t expected_ms, used_ms;
    uint64_t used;
};

static uint64_t hash_drop;

struct held {
    bool is_live, is_lapsed;
    uint64_t id, node;
    int64_t ends_ms, expected_ms;
};

struct memory { /* removed sequences */
    int32_t depth;
    int32_t tokens[TOKENS];
    bool is_exact;
    enum kv_prefix_miss miss;
};

struct log {
    int32_t references[BLOCKS];
    int32_t released[BLOCKS * 4];
    int32_t count;
};

static struct entry entries[NODES];
static struct held held[LEASES];
static struct memory ghosts[GHOSTS];
static int32_t ghost_next;
static struct log real, model;
static struct kv_prefix *tree;
static int32_t prompts[PROMPTS][TOKENS + B];
static int32_t prompt_counts[PROMPTS];
static int64_t model_now, test_now;
static uint64_t use;
static int32_t operation;
static uint64_t random_state;

/* What happened, so that a run that exercises nothing fails. */
static struct {
    int32_t whole, partial, approximate, deduplicated, evicted, expired, lapsed, refused;
    int32_t reasons[KV_PREFIX_MISSES];
} seen;

static uint32_t random_below(uint32_t bound) { /* splitmix64 */
    uint64_t z = random_state += 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return (uint32_t)((z ^ z >> 31) >> 32) % bound;
}

static bool release_in(struct log *log, int32_t block) {
    CHECK(log->references[block] > 0);
    CHECK((size_t)log->count < COUNT_OF(log->released));
    log->released[log->count++] = block;
    return --log->references[block] == 0;
}

static bool block_release(void *context, int32_t block) {
    return release_in(context, block);
}

static void block_retain(void *context, int32_t block) {
    struct log *log = context;
    CHECK(log->references[block] > 0);
    log->references[block]++;
}

static struct entry *entry_find(uint64_t id) {
    for (int32_t i = 0; i < NODES; i++) {
        if (entries[i].is_live && entries[i].id == id) {
            return &entries[i];
        }
    }
    return NULL;
}

static bool is_leaf(const struct entry *entry) {
    for (int32_t i = 0; i < NODES; i++) {
        if (entries[i].is_live && entries[i].parent == entry - entries) {
            return false;
        }
    }
    return true;
}

static bool is_leased(const struct entry *entry) {
    for (int32_t i = 0; i < LEASES; i++) {
        if (held[i].is_live && !held[i].is_lapsed && held[i].node == entry->id) {
            return true;
        }
    }
    return false;
}

static void merge(struct entry *entry, enum stamp stamp, int64_t expected_ms) {
    bool is_sooner = entry->stamp == stamp && expected_ms < entry->expected_ms;
    if (stamp > entry->stamp || is_sooner) {
        entry->stamp = stamp;
        entry->expected_ms = expected_ms;
    }
}

static bool model_remove(struct entry *entry, enum kv_prefix_miss miss) {
    struct memory *ghost = &ghosts[ghost_next];
    ghost_next = (ghost_next + 1) % GHOSTS;
    ghost->depth = entry->depth;
    memcpy(ghost->tokens, entry->tokens, sizeof ghost->tokens);
    ghost->is_exact = entry->lineage == 1;
    ghost->miss = miss;
    entry->is_live = false;
    if (entry->parent >= 0) {
        struct entry *parent = &entries[entry->parent];
        merge(parent, entry->stamp == UNTOLD ? OPEN : entry->stamp, entry->expected_ms);
        parent->used = entry->used > parent->used ? entry->used : parent->used;
        parent->used_ms = entry->used_ms > parent->used_ms ? entry->used_ms : parent->used_ms;
    }
    seen.evicted += miss == KV_PREFIX_MISS_EVICTED;
    seen.expired += miss == KV_PREFIX_MISS_EXPIRED;
    return release_in(&model, entry->block);
}

static int rank_of(const struct entry *entry) {
    return entry->stamp == ABANDONED ? 0 : entry->stamp == FINISHED ? 1 : 2;
}

static bool goes_before(const struct entry *a, const struct entry *b) {
    if (rank_of(a) != rank_of(b)) {
        return rank_of(a) < rank_of(b);
    }
    return a->expected_ms != b->expected_ms ? a->expected_ms > b->expected_ms : a->used < b->used;
}

static struct entry *model_victim(const struct entry *kept) {
    struct entry *victim = NULL;
    for (int32_t i = 0; i < NODES; i++) {
        struct entry *entry = &entries[i];
        if (entry->is_live && entry != kept && is_leaf(entry) && !is_leased(entry) &&
            (victim == NULL || goes_before(entry, victim))) {
            victim = entry;
        }
    }
    return victim;
}

static void model_touch(struct entry *entry) {
    entry->used = ++use;
    entry->used_ms = model_now;
}

static void model_leave(struct held *lease, enum stamp stamp) {
    struct entry *entry = entry_find(lease->node);
    if (entry == NULL) {
        return;
    }
    if (!lease->is_lapsed) {
        model_touch(entry);
    }
    if (stamp != UNTOLD) {
        merge(entry, stamp, stamp == OPEN ? lease->expected_ms : NEVER);
    }
}

static void model_take_back(const struct held *lease) {
    struct entry *entry = entry_find(lease->node);
    if (lease->is_lapsed && entry != NULL) {
        entry->stamp = UNTOLD;
        entry->expected_ms = NEVER;
    }
}

static void model_enter(struct held *lease, uint64_t node) {
    lease->node = node;
    lease->ends_ms = model_now + LEASE_MS;
    lease->expected_ms = NEVER;
    lease->is_lapsed = false;
    struct entry *entry = entry_find(node);
    if (entry != NULL) {
        entry->stamp = entry->stamp == OPEN ? OPEN : UNTOLD;
        model_touch(entry);
    }
}

/* Somebody new at an end that nobody holds: whoever was expected there is back. */
static void model_spend_open(uint64_t node) {
    struct entry *entry = entry_find(node);
    if (entry != NULL && is_leaf(entry) && !is_leased(entry)) {
        entry->stamp = UNTOLD;
        entry->expected_ms = NEVER;
    }
}

static int64_t due_ms(const struct entry *entry) {
    int64_t overdue = entry->expected_ms == NEVER ? NEVER : entry->expected_ms + OVERDUE_MS;
    int64_t ends = entry->used_ms + LIFETIME;
    return overdue < ends ? overdue : ends;
}

static struct held *model_lapsing(void) {
    struct held *next = NULL;
    for (int32_t i = 0; i < LEASES; i++) {
        struct held *lease = &held[i];
        bool is_due = lease->is_live && !lease->is_lapsed && lease->ends_ms <= model_now;
        bool is_first =
            next == NULL || lease->ends_ms < next->ends_ms ||
            (lease->ends_ms == next->ends_ms && (uint32_t)lease->id < (uint32_t)next->id);
        next = is_due && is_first ? lease : next;
    }
    return next;
}

static struct entry *model_due(void) {
    struct entry *next = NULL;
    for (int32_t i = 0; i < NODES; i++) {
        struct entry *entry = &entries[i];
        if (!entry->is_live || due_ms(entry) > model_now || !is_leaf(entry) || is_leased(entry)) {
            continue;
        }
        if (next == NULL || due_ms(entry) < due_ms(next) ||
            (due_ms(entry) == due_ms(next) && (uint32_t)entry->id < (uint32_t)next->id)) {
            next = entry;
        }
    }
    return next;
}

static void model_advance(void) {
    model_now = test_now > model_now ? test_now : model_now;
    for (struct held *lease = model_lapsing(); lease != NULL; lease = model_lapsing()) {
        model_leave(lease, OPEN);
        lease->is_lapsed = true;
        seen.lapsed++;
    }
    for (struct entry *entry = model_due(); entry != NULL; entry = model_due()) {
        if (entry->used_ms + LIFETIME <= model_now) {
            (void)model_remove(entry, KV_PREFIX_MISS_EXPIRED);
        } else {
            entry->expected_ms = NEVER;
        }
    }
}

static int32_t shared_tokens(const int32_t *a, int32_t a_count, const int32_t *b, int32_t b_count) {
    int32_t shared = 0;
    while (shared < a_count && shared < b_count && a[shared] == b[shared]) {
        shared++;
    }
    return shared;
}

/* Prompts share beginnings with earlier ones and diverge anywhere, odd positions too. */
static void new_prompt(void) {
    uint32_t to = random_below(PROMPTS);
    uint32_t from = random_below(PROMPTS);
    memmove(prompts[to], prompts[from], sizeof prompts[to]);
    int32_t at = (int32_t)random_below(TOKENS + B);
    if (random_below(4) == 0) {
        at = at / B * B;
    }
    for (int32_t i = at; i < TOKENS + B; i++) {
        prompts[to][i] = (int32_t)random_below(3);
    }
    prompt_counts[to] = (int32_t)random_below(TOKENS + B + 1);
    if (random_below(3) == 0) {
        prompt_counts[to] = prompt_counts[to] / B * B + (int32_t)random_below(2);
    }
}

/* The reason for an exact lookup; `match` has been compared already. */
static void
check_reason(const struct kv_prefix_match *match, const int32_t *tokens, int32_t count) {
    int32_t next = (match->blocks + 1) * B;
    int32_t shared = match->blocks * B;
    bool has_child = false;
    bool is_elsewhere = false;
    for (int32_t i = 0; i < NODES; i++) {
        const struct entry *entry = &entries[i];
        if (!entry->is_live || entry->depth != match->blocks + 1) {
            continue;
        }
        uint64_t parent = entry->parent < 0 ? KV_PREFIX_ROOT : entries[entry->parent].id;
        if (parent != match->node) {
            continue;
        }
        int32_t same = shared_tokens(entry->tokens, next, tokens, count);
        has_child = true;
        is_elsewhere = is_elsewhere || (same == next && entry->lineage != 1);
        shared = entry->lineage == 1 && same > shared ? same : shared;
    }
    bool is_divergent = shared > match->blocks * B || (has_child && match->blocks > 0);
    enum kv_prefix_miss want =
        is_divergent ? KV_PREFIX_MISS_DIVERGENT : KV_PREFIX_MISS_NEVER_COMPUTED;
    want = is_elsewhere ? KV_PREFIX_MISS_OTHER_LINEAGE : want;
    for (int32_t i = 0; i < GHOSTS; i++) { /* oldest first: the newest decides */
        const struct memory *ghost = &ghosts[(ghost_next + i) % GHOSTS];
        if (ghost->depth == match->blocks + 1 && ghost->is_exact &&
            shared_tokens(ghost->tokens, next, tokens, count) == next) {
            want = ghost->miss;
        }
    }
    int32_t limit = count > 0 ? (count - 1) / 2 * 2 : 0;
    if (match->position == limit) {
        want = KV_PREFIX_MISS_NONE;
        shared = limit;
    }
    /* A removed path is remembered by its hash alone. */
    CHECK(match->miss == want || hash_drop != 0);
    CHECK(match->miss_token == shared);
    seen.reasons[want]++;
}

static void check_path(const struct kv_prefix_match *match, const int32_t *tokens) {
    int32_t blocks[DEPTH_MAX];
    int32_t count = -1;
    struct error error;
    CHECK(is_ok(kv_prefix_retain_path(tree, match->node, blocks, DEPTH_MAX, &count, &error)));
    CHECK(count == match->blocks);
    const struct entry *entry = entry_find(match->node);
    for (int32_t depth = count; depth > 0; depth--) {
        CHECK(entry != NULL && entry->depth == depth && entry->block == blocks[depth - 1]);
        CHECK(memcmp(entry->tokens, tokens, (size_t)depth * B * sizeof *tokens) == 0);
        CHECK(!match->is_exact || entry->lineage == 1);
        CHECK(--real.references[blocks[depth - 1]] > 0);
        entry = entry->parent < 0 ? NULL : &entries[entry->parent];
    }
    CHECK(entry == NULL);
    CHECK((match->partial == KV_PREFIX_ROOT) == (match->position == count * B));
    if (match->partial != KV_PREFIX_ROOT) {
        entry = entry_find(match->partial);
        CHECK(entry != NULL && entry->depth == count + 1);
        CHECK((entry->parent < 0 ? KV_PREFIX_ROOT : entries[entry->parent].id) == match->node);
        CHECK(memcmp(entry->tokens, tokens, (size_t)match->position * sizeof *tokens) == 0);
        CHECK(!match->is_exact || entry->lineage == 1);
        seen.partial++;
    }
}

static void look_up(const int32_t *tokens, int32_t count, bool any, struct kv_prefix_match *match) {
    kv_prefix_lookup(tree, tokens, count, any, match);
    int32_t limit = count > 0 ? (count - 1) / 2 * 2 : 0;
    int32_t best = 0;
    bool is_exact = true;
    for (int32_t i = 0; i < NODES; i++) {
        const struct entry *entry = &entries[i];
        if (!entry->is_live || (!any && entry->lineage != 1)) {
            continue;
        }
        int32_t shared = shared_tokens(entry->tokens, entry->depth * B, tokens, count);
        shared = (shared < limit ? shared : limit) / 2 * 2;
        if (shared > best) {
            best = shared;
            is_exact = false;
        }
        is_exact = is_exact || (shared == best && entry->lineage == 1);
    }
    CHECK(match->position == best);
    CHECK(match->is_exact == is_exact);
    CHECK(match->blocks == best / B);
    check_path(match, tokens);
    if (!any) {
        check_reason(match, tokens, count);
    }
    seen.whole += match->blocks > 0;
    seen.approximate += !is_exact;
}

static int32_t take_block(void) {
    for (int32_t i = 0; i < BLOCKS; i++) {
        if (real.references[i] == 0) {
            real.references[i] = model.references[i] = 1;
            return i;
        }
    }
    exit(2);
}

static void model_insert(
    struct entry *parent,
    uint8_t lineage,
    const int32_t *tokens,
    int32_t block,
    const struct kv_prefix_insertion *out,
    bool is_inserted
) {
    int32_t depth = parent == NULL ? 1 : parent->depth + 1;
    struct entry *free_entry = NULL;
    for (int32_t i = 0; i < NODES; i++) {
        struct entry *entry = &entries[i];
        free_entry = !entry->is_live ? entry : free_entry;
        if (entry->is_live && entry->depth == depth && entry->lineage == lineage &&
            entry->parent == (parent == NULL ? -1 : parent - entries) &&
            memcmp(entry->tokens, tokens, (size_t)depth * B * sizeof *tokens) == 0) {
            CHECK(is_inserted && !out->is_new && out->node == entry->id);
            CHECK(out->block == entry->block);
            model_touch(entry);
            (void)release_in(&model, block);
            seen.deduplicated++;
            return;
        }
    }
    if (free_entry == NULL) {
        free_entry = model_victim(parent);
        if (free_entry == NULL) {
            CHECK(!is_inserted);
            seen.refused++;
            real.references[block] = model.references[block] = 0;
            return;
        }
        (void)model_remove(free_entry, KV_PREFIX_MISS_EVICTED);
    }
    CHECK(is_inserted && out->is_new && out->block == block);
    *free_entry = (struct entry){
        .is_live = true,
        .id = out->node,
        .parent = parent == NULL ? -1 : (int32_t)(parent - entries),
        .depth = depth,
        .lineage = lineage,
        .block = block,
        .expected_ms = NEVER,
    };
    memcpy(free_entry->tokens, tokens, (size_t)depth * B * sizeof *tokens);
    model_touch(free_entry);
}

/* What a sequence does: find what is there, add the next blocks. */
static void do_prompt(void) {
    if (random_below(3) == 0) {
        new_prompt();
    }
    uint32_t which = random_below(PROMPTS);
    const int32_t *tokens = prompts[which];
    struct kv_prefix_match match;
    look_up(tokens, prompt_counts[which], random_below(2) == 0, &match);
    uint64_t parent = match.node;
    for (int32_t at = match.blocks; at < DEPTH_MAX && (at + 1) * B <= prompt_counts[which]; at++) {
        test_now += random_below(3);
        struct kv_lineage lineage = {{1}};
        const struct entry *above = entry_find(parent);
        uint32_t chance = random_below(4);
        if (above != NULL && above->lineage != 1) {
            lineage.bytes[0] = chance == 0 ? 4 : above->lineage;
        } else if (chance == 0) {
            lineage.bytes[0] = (uint8_t)(2 + random_below(2));
        }
        int32_t block = take_block();
        struct kv_prefix_insertion out = {0};
        struct error error;
        result inserted = kv_prefix_insert(
            tree, parent, &lineage, tokens + (size_t)at * B, block, test_now, &out, &error
        );
        model_advance();
        struct entry *under = entry_find(parent);
        if (under == NULL && parent != KV_PREFIX_ROOT) {
            CHECK(inserted.code == RESULT_NOT_FOUND);
            real.references[block] = model.references[block] = 0;
            return;
        }
        model_insert(under, lineage.bytes[0], tokens, block, &out, is_ok(inserted));
        if (is_failed(inserted)) {
            CHECK(inserted.code == RESULT_LIMIT);
            return;
        }
        parent = out.node;
    }
}

static uint64_t some_node(void) { /* now and then the root, or one that is gone */
    return random_below(8) == 0 ? KV_PREFIX_ROOT : entries[random_below(NODES)].id;
}

static void do_acquire(void) {
    uint64_t node = some_node();
    uint64_t id = 0;
    struct error error;
    result acquired = kv_prefix_acquire(tree, node, test_now, &id, &error);
    model_advance();
    struct held *slot = NULL;
    for (int32_t i = 0; i < LEASES; i++) {
        slot = held[i].is_live ? slot : &held[i];
    }
    if (node != KV_PREFIX_ROOT && entry_find(node) == NULL) {
        CHECK(acquired.code == RESULT_NOT_FOUND);
    } else if (slot == NULL) {
        CHECK(acquired.code == RESULT_LIMIT);
    } else {
        CHECK(is_ok(acquired));
        model_spend_open(node);
        *slot = (struct held){.is_live = true, .id = id};
        model_enter(slot, node);
    }
}

static void do_renew(void) {
    struct held *lease = &held[random_below(LEASES)];
    uint64_t node = random_below(2) == 0 ? lease->node : some_node();
    bool can = lease->is_live && (node == KV_PREFIX_ROOT || entry_find(node) != NULL);
    CHECK(kv_prefix_renew(tree, lease->id, node, test_now) == can);
    if (can) {
        model_take_back(lease);
        model_now = test_now > model_now ? test_now : model_now;
        model_leave(lease, UNTOLD);
        model_enter(lease, node);
        model_advance();
    }
}

static void do_tell(void) {
    struct held *lease = &held[random_below(LEASES)];
    enum kv_prefix_event event = (enum kv_prefix_event)random_below(4);
    int64_t estimate = (int64_t)random_below(500) - 20;
    bool is_release = random_below(4) == 0;
    if (is_release) {
        kv_prefix_release(tree, lease->id, test_now);
    } else {
        kv_prefix_tell(tree, lease->id, event, estimate, test_now);
    }
    model_advance(); /* time passes for an unknown lease too */
    if (!lease->is_live) {
        return;
    }
    if (!is_release && (event == KV_PREFIX_WAITING || event == KV_PREFIX_FORKED)) {
        estimate = event == KV_PREFIX_WAITING && estimate > 0 ? estimate : 0;
        lease->expected_ms = model_now + estimate;
        struct entry *entry = entry_find(lease->node);
        if (lease->is_lapsed && entry != NULL) {
            model_take_back(lease);
            merge(entry, OPEN, lease->expected_ms);
        }
        return;
    }
    model_take_back(lease);
    enum stamp stamp = event == KV_PREFIX_FINISHED ? FINISHED : ABANDONED;
    model_leave(lease, is_release ? OPEN : stamp);
    lease->is_live = false;
}

static void do_evict(void) {
    int32_t want = (int32_t)random_below(4);
    int32_t freed = kv_prefix_evict(tree, want, test_now);
    model_advance();
    int32_t model_freed = 0;
    while (model_freed < want) {
        struct entry *victim = model_victim(NULL);
        if (victim == NULL) {
            break;
        }
        model_freed += model_remove(victim, KV_PREFIX_MISS_EVICTED);
    }
    CHECK(freed == model_freed);
}

/* Somebody else uses a block, so that its release frees nothing; or stops using it. */
static void do_share(void) {
    static int32_t shared = -1;
    if (shared >= 0) {
        real.references[shared]--;
        model.references[shared]--;
        shared = -1;
        return;
    }
    const struct entry *entry = &entries[random_below(NODES)];
    if (entry->is_live) {
        shared = entry->block;
        real.references[shared]++;
        model.references[shared]++;
    }
}

static void do_clock(void) {
    uint32_t kind = random_below(40);
    test_now += kind == 0 ? -5000 : kind == 1 ? LIFETIME : kind < 8 ? LEASE_MS : 7;
    test_now = kind == 0 || test_now > model_now - 10000 ? test_now : model_now;
    kv_prefix_advance(tree, test_now);
    model_advance();
}

/* The whole tree below a node, in whatever order: only the set of released blocks is compared. */
static void do_remove(void) {
    uint64_t node = some_node();
    int32_t from = real.count;
    kv_prefix_advance(tree, test_now);
    model_advance();
    CHECK(real.count == model.count);
    kv_prefix_remove(tree, node, test_now);
    for (int32_t i = from; i < real.count; i++) {
        for (int32_t e = 0; e < NODES && i >= model.count; e++) {
            if (entries[e].is_live && entries[e].block == real.released[i]) {
                const struct entry *above = &entries[e];
                while (above->id != node && above->parent >= 0) {
                    above = &entries[above->parent];
                }
                CHECK(above->id == node);
                CHECK(is_leaf(&entries[e]));
                (void)model_remove(&entries[e], KV_PREFIX_MISS_DAMAGED);
                break;
            }
        }
    }
    CHECK(node == KV_PREFIX_ROOT || entry_find(node) == NULL);
}

static void compare(void) {
    CHECK(real.count == model.count);
    CHECK(memcmp(real.released, model.released, (size_t)real.count * sizeof *real.released) == 0);
    CHECK(memcmp(real.references, model.references, sizeof real.references) == 0);
    real.count = model.count = 0;
    int32_t nodes = 0;
    int32_t leases = 0;
    int32_t lapsed = 0;
    int32_t evictable = 0;
    for (int32_t i = 0; i < NODES; i++) {
        nodes += entries[i].is_live;
        evictable += entries[i].is_live && is_leaf(&entries[i]) && !is_leased(&entries[i]);
    }
    for (int32_t i = 0; i < LEASES; i++) {
        leases += held[i].is_live;
        lapsed += held[i].is_live && held[i].is_lapsed;
    }
    struct kv_prefix_counts counts;
    kv_prefix_count(tree, &counts);
    CHECK(counts.nodes == nodes && counts.evictable == evictable);
    CHECK(counts.leases == leases && counts.lapsed == lapsed);
    struct error error = {0};
    if (operation % 8 == 0 && is_failed(kv_prefix_check(tree, &error))) {
        fprintf(stderr, "operation %d: %s\n", operation, error.message);
        exit(1);
    }
}

static void step(void) {
    uint32_t kind = random_below(100);
    test_now += random_below(4);
    if (kind < 40) {
        do_prompt();
    } else if (kind < 52) {
        do_acquire();
    } else if (kind < 64) {
        do_renew();
    } else if (kind < 78) {
        do_tell();
    } else if (kind < 88) {
        do_evict();
    } else if (kind < 93) {
        do_share();
    } else if (kind < 99) {
        do_clock();
    } else {
        do_remove();
    }
}

int main(int argc, char **argv) {
    random_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 20261129;
    hash_drop = argc > 2 ? strtoull(argv[2], NULL, 16) : 0;
    printf(
        "seed %llu, drop %llx\n", (unsigned long long)random_state, (unsigned long long)hash_drop
    );
    struct kv_prefix_options options = {
        .nodes_max = NODES,
        .leases_max = LEASES,
        .ghosts_max = GHOSTS,
        .hash_key = random_state,
        .hash_drop = hash_drop,
        .root_lineage = {{1}},
        .lease_ms = LEASE_MS,
        .lifetime_ms = LIFETIME,
        .overdue_ms = OVERDUE_MS,
        .block_retain = block_retain,
        .block_release = block_release,
        .context = &real,
    };
    struct error error;
    if (is_failed(kv_prefix_create(&tree, &options, &error))) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    kv_prefix_advance(tree, model_now);
    for (operation = 0; operation < OPERATIONS; operation++) {
        step();
        compare();
    }
    kv_prefix_destroy(tree);
    printf(
        "%d lookups with whole blocks, %d inside a block, %d approximate, %d deduplicated, "
        "%d evicted, %d expired, %d leases lapsed, %d inserts refused\n",
        seen.whole,
        seen.partial,
        seen.approximate,
        seen.deduplicated,
        seen.evicted,
        seen.expired,
        seen.lapsed,
        seen.refused
    );
    for (int32_t i = 0; i < KV_PREFIX_MISS_NOT_READ; i++) { /* which only the tiers say */
        printf("%s %d\n", kv_prefix_miss_name((enum kv_prefix_miss)i), seen.reasons[i]);
        CHECK(seen.reasons[i] > 10 || hash_drop != 0);
    }
    CHECK(seen.whole > 500 && seen.partial > 500 && seen.approximate > 100);
    CHECK(seen.evicted > 500 && seen.expired > 100 && seen.lapsed > 500);
    return 0;
}
