/* The tiers below the device against what was put into them: every block that comes back is compared
 * byte for byte; the host pool's order of eviction is predicted by a naive list.
 *
 * HEARTH_TEST_SEED sets the seed, which is printed; HEARTH_TEST_ROUNDS multiplies the random part. */
#include "kv_tier_world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* ---- round trips ------------------------------------------------------------------------------- */

static void without_tiers_nothing_is_kept(void **state) {
    (void)state;
    begin(0, false, 8, 1);
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    struct kv_tier_record record = tree_record(&world.tree, 0);
    put_node(0);
    assert_int_equal(kv_tier_room(world.tier), 0);
    assert_int_equal(kv_tier_write(world.tier, &record, 1), 0);
    assert_false(has_node(0));
    assert_true(kv_tier_flush(world.tier, 0));
    assert_int_equal(read_path(0, 7, &miss), 0);
    assert_int_equal(miss, KV_PREFIX_MISS_NEVER_COMPUTED);
    end();
}

static void a_path_written_comes_back_from_disk_once_written(void **state) {
    (void)state;
    begin(0, true, 200, 2);
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    for (int32_t node = 0; node < 200; node++) {
        write_node(node);
    }
    for (int32_t node = 0; node < 200; node++) { /* nothing is written twice */
        write_node(node);
    }
    assert_true(kv_tier_flush(world.tier, WAIT_MS));
    assert_int_equal(counts().written_blocks, 200);
    assert_int_equal(counts().duplicate_blocks, 200);
    assert_int_equal(counts().disk.blocks, 200);
    int32_t depth = tree_keys(&world.tree, 199, (struct kv_key[TREE_BLOCKS]){{{0}}});
    assert_int_equal(read_path(199, 1, &miss), depth);
    kv_tier_close(world.tier);
    open_tier();
    for (int32_t node = 0; node < 200; node += 7) {
        (void)read_path(node, 2, &miss);
        assert_int_equal(miss, KV_PREFIX_MISS_NONE);
    }
    assert_int_equal(counts().written_blocks, 0);
    assert_int_equal(kv_tier_drop_disk(world.tier, 0), 200);
    assert_int_equal(read_path(199, 3, &miss), 0);
    assert_int_equal(miss, KV_PREFIX_MISS_EVICTED);
    end();
}

static void a_block_in_the_queue_can_be_read(void **state) {
    (void)state;
    begin(0, true, 40, 3);
    disk_shut(true);
    for (int32_t node = 0; node < 40; node++) {
        write_node(node);
    }
    disk_wait_until_stuck();
    struct kv_key keys[TREE_BLOCKS];
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    int32_t depth = tree_keys(&world.tree, 39, keys);
    assert_int_equal(kv_tier_find(world.tier, keys, depth, &miss), depth);
    assert_true(kv_tier_is_written(world.tier, &world.tree.keys[39]));
    disk_shut(false);
    assert_int_equal(read_path(39, 1, &miss), depth);
    end();
}

/* What the host pool holds, predicted by a list. */
struct model {
    uint64_t used[TREE_BLOCKS]; /* 0: not in the pool */
    uint64_t tick;
    int32_t count;
};

static void model_touch(struct model *model, int32_t node) {
    if (model->used[node] != 0) {
        model->used[node] = ++model->tick;
    }
}

static void model_put(struct model *model, int32_t node, int32_t capacity) {
    if (model->used[node] == 0 && model->count == capacity) {
        int32_t victim = -1;
        for (int32_t n = 0; n < world.tree.count; n++) {
            bool is_leaf = model->used[n] != 0;
            for (int32_t child = 0; is_leaf && child < world.tree.count; child++) {
                is_leaf = world.tree.parents[child] != n || model->used[child] == 0;
            }
            if (is_leaf && (victim < 0 || model->used[n] < model->used[victim])) {
                victim = n;
            }
        }
        assert_true(victim >= 0);
        model->used[victim] = 0;
        model->count--;
    }
    model->count += model->used[node] == 0 ? 1 : 0;
    model->used[node] = ++model->tick;
}

static void host_pool_evicts_leaves_first_then_the_least_recently_used(void **state) {
    (void)state;
    begin(24, false, 96, 4);
    static struct model model;
    model = (struct model){0};
    int32_t capacity = counts().host_blocks_max;
    assert_int_equal(capacity, 24);
    for (int32_t round = 0; round < 3000; round++) {
        int32_t node = random_below(&world.random, 96);
        if (random_below(&world.random, 4) > 0) {
            put_node(node);
            model_put(&model, node, capacity);
        } else {
            int32_t path[TREE_BLOCKS];
            int32_t count = tree_path(&world.tree, node, path);
            enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
            int32_t there = 0;
            while (there < count && model.used[path[there]] != 0) {
                there++;
            }
            assert_int_equal(read_path(node, 9, &miss), there);
            for (int32_t i = there - 1; i >= 0; i--) {
                model_touch(&model, path[i]);
            }
        }
        assert_int_equal(counts().host_blocks, model.count);
        for (int32_t n = 0; n < 96; n++) {
            assert_true(has_node(n) == (model.used[n] != 0));
        }
    }
    assert_true(counts().host_evicted > 100);
    assert_true(counts().host_read_blocks > 100);
    end();
}

static void a_host_block_that_is_read_stays(void **state) {
    (void)state;
    begin(4, false, 64, 5);
    struct kv_key keys[TREE_BLOCKS];
    int32_t path[TREE_BLOCKS];
    int32_t node = 0;
    while (tree_path(&world.tree, node, path) < 4) {
        node++;
    }
    for (int32_t i = 3; i >= 0; i--) {
        put_node(path[i]);
    }
    (void)tree_keys(&world.tree, node, keys);
    assert_true(kv_tier_read(world.tier, 1, keys, 4));
    put_node(60); /* everything is being read */
    assert_false(has_node(60));
    assert_int_equal(counts().host_refused, 1);
    assert_int_equal(kv_tier_drop_host(world.tier, 0), 0);
    struct kv_tier_batch batch = take();
    assert_int_equal(batch.count, 4);
    assert_true(batch.is_last && !batch.from_disk);
    put_node(60);
    assert_false(has_node(60));
    kv_tier_done(world.tier, &batch);
    put_node(60);
    assert_true(has_node(60));
    assert_false(has_node(path[3]));
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    assert_int_equal(kv_tier_find(world.tier, &keys[3], 1, &miss), 0);
    assert_int_equal(miss, KV_PREFIX_MISS_EVICTED);
    end();
}

/* ---- random work -------------------------------------------------------------------------------- */

#define OPEN_TICKETS 6

struct open_ticket {
    uint64_t id; /* 0: none */
    int32_t path[TREE_BLOCKS];
    int32_t count, came;
};

struct work {
    struct open_ticket tickets[OPEN_TICKETS];
    struct kv_tier_batch held[KV_TIER_BATCHES]; /* taken, not given back */
    int32_t held_count;
    uint64_t id_next;
    bool was_written[TREE_BLOCKS];
    int32_t batches, cancelled;
    bool evicts;
    uint64_t disk_read, host_read, evicted;
};

static void give_back(struct work *work, int32_t at) {
    kv_tier_done(world.tier, &work->held[at]);
    work->held[at] = work->held[--work->held_count];
}

static void start_ticket(struct work *work) {
    struct open_ticket *ticket = &work->tickets[random_below(&world.random, OPEN_TICKETS)];
    if (ticket->id != 0) {
        return;
    }
    struct kv_key keys[TREE_BLOCKS];
    int32_t node = random_below(&world.random, world.tree.count);
    ticket->count = tree_path(&world.tree, node, ticket->path);
    ticket->came = 0;
    ticket->id = ++work->id_next;
    (void)tree_keys(&world.tree, node, keys);
    assert_true(kv_tier_read(world.tier, ticket->id, keys, ticket->count));
}

static void take_batch(struct work *work) {
    struct kv_tier_batch batch;
    if (work->held_count == KV_TIER_BATCHES || !kv_tier_next(world.tier, &batch)) {
        return;
    }
    struct open_ticket *ticket = NULL;
    for (int32_t i = 0; i < OPEN_TICKETS; i++) {
        ticket = work->tickets[i].id == batch.ticket ? &work->tickets[i] : ticket;
    }
    ASSERT(ticket != NULL); /* none of a cancelled one */
    assert_int_equal(batch.first, ticket->came);
    assert_in_range(batch.count, batch.is_last ? 0 : 1, KV_TIER_BATCH_BLOCKS);
    for (int32_t i = 0; i < batch.count; i++) {
        assert_true(tree_is(&world.tree, ticket->path[ticket->came + i], &batch.records[i]));
    }
    ticket->came += batch.count;
    if (batch.is_last) {
        assert_true((batch.miss == KV_PREFIX_MISS_NONE) == (ticket->came == ticket->count));
        ticket->id = 0;
    }
    work->held[work->held_count++] = batch;
    work->batches++;
}

static void cancel_ticket(struct work *work) {
    struct open_ticket *ticket = &work->tickets[random_below(&world.random, OPEN_TICKETS)];
    kv_tier_cancel(world.tier, ticket->id == 0 ? UINT64_MAX : ticket->id);
    work->cancelled += ticket->id != 0 ? 1 : 0;
    ticket->id = 0;
}

static void write_some(struct work *work) {
    struct kv_tier_record records[TREE_BLOCKS];
    int32_t path[TREE_BLOCKS];
    int32_t count = tree_path(&world.tree, random_below(&world.random, world.tree.count), path);
    for (int32_t i = 0; i < count; i++) {
        records[i] = tree_record(&world.tree, path[i]);
    }
    int32_t done = kv_tier_write(world.tier, records, count);
    for (int32_t i = 0; i < done; i++) {
        work->was_written[path[i]] = true;
    }
}

static void reopen(struct work *work) {
    for (int32_t i = 0; i < OPEN_TICKETS; i++) {
        work->tickets[i].id = 0; /* closing forgets them */
    }
    while (work->held_count > 0) {
        give_back(work, 0);
    }
    struct kv_tier_counts before = counts();
    assert_true(before.lost_blocks == 0 || work->evicts);
    work->evicted += before.disk.evicted;
    assert_int_equal(before.tickets_timed_out, 0);
    work->disk_read += before.disk_read_blocks;
    work->host_read += before.host_read_blocks;
    kv_tier_close(world.tier);
    open_tier();
    for (int32_t n = 0; n < world.tree.count; n++) {
        /* A small disk may have evicted it. */
        assert_true(has_node(n) ? work->was_written[n] : !work->was_written[n] || work->evicts);
    }
}

/* disk_blocks: its budget; 0: the default. */
static void random_work(
    int32_t host_blocks, bool is_on_disk, int32_t disk_blocks, uint64_t seed, int32_t rounds
) {
    begin(host_blocks, is_on_disk, 300, seed);
    static struct work work;
    work = (struct work){.evicts = disk_blocks > 0};
    if (work.evicts) {
        world.options.disk_bytes_max = (uint64_t)disk_blocks * kv_disk_stride(BLOCK);
        kv_tier_close(world.tier);
        open_tier();
    }
    for (int32_t round = 0; round < rounds; round++) {
        int32_t kind = random_below(&world.random, 64);
        if (kind < 8) {
            write_some(&work);
        } else if (kind < 16) {
            put_node(random_below(&world.random, 300));
        } else if (kind < 28) {
            start_ticket(&work);
        } else if (kind < 46) {
            take_batch(&work);
        } else if (kind < 60 && work.held_count > 0) {
            give_back(&work, random_below(&world.random, work.held_count));
        } else if (kind == 60) {
            cancel_ticket(&work);
        } else if (kind == 61) {
            (void)kv_tier_drop_host(world.tier, 3);
        } else if (kind == 62 && random_below(&world.random, 8) == 0) {
            assert_true(kv_tier_flush(world.tier, WAIT_MS));
        }
        if (round % 1500 == 1499) {
            reopen(&work);
        }
    }
    reopen(&work);
    assert_true(work.batches > 0 && work.cancelled > 0);
    assert_true((work.disk_read > 0) == is_on_disk);
    assert_true((work.evicted > 0) == work.evicts);
    assert_true((work.host_read > 0) == (host_blocks > 0));
    end();
}

static int32_t rounds_of(int32_t rounds) {
    const char *factor = getenv("HEARTH_TEST_ROUNDS");
    int64_t times = 1;
    return factor != NULL && parse_i64(view_of_text(factor), &times) && times > 0 && times < 1000
               ? rounds * (int32_t)times
               : rounds;
}

static void random_work_keeps_content_and_order(void **state) {
    (void)state;
    random_work(0, false, 0, 10, rounds_of(6000));
    random_work(40, false, 0, 11, rounds_of(6000));
    random_work(0, true, 0, 12, rounds_of(6000));
    random_work(40, true, 0, 13, rounds_of(6000));
    random_work(10, true, 100, 14, rounds_of(6000));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_tiers_nothing_is_kept),
        cmocka_unit_test(a_path_written_comes_back_from_disk_once_written),
        cmocka_unit_test(a_block_in_the_queue_can_be_read),
        cmocka_unit_test(host_pool_evicts_leaves_first_then_the_least_recently_used),
        cmocka_unit_test(a_host_block_that_is_read_stays),
        cmocka_unit_test(random_work_keeps_content_and_order),
    };
    return run_world_tests(tests, COUNT_OF(tests));
}
