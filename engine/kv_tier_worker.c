/* The worker thread of the tiers: everything that touches the disk. See kv_tier_internal.h.
 *
 * One piece of work at a time, the lock given back meanwhile: a piece of a ticket, else one queued
 * block; after each piece read a few blocks are written, so that neither starves. What was read is
 * verified by a second thread while the next piece is read; what does not pass is read again by the
 * function that knows what to do about it. */
#include "kv_tier_internal.h"

#define NONE              (-1)
#define WRITES_PER_READ   4
#define SYNC_EVERY_MS     30000 /* after writes; a crash loses no more than that, and only time */
#define ADVANCE_EVERY_MS  60000 /* at most; lifetimes are hours */
#define ADVANCE_LEAST_MS  10
#define SWEEP_EVERY_MS    3600000 /* other folders; sooner when all do not fit the budget */
#define SWEEP_SLACK       16      /* then they leave a part of it free, so that it is seldom */
#define LINEAGE_CHAIN_MAX 64      /* replays upon replays in one sequence */

/* The lock is given back between these two; a disk that hangs shows by busy_since_ms. */
static void leave(struct kv_tier *tier) {
    tier->busy_since_ms = clock_monotonic_ms(&tier->options.clock);
    pthread_mutex_unlock(&tier->lock);
}

static void come_back(struct kv_tier *tier) {
    pthread_mutex_lock(&tier->lock);
    tier->busy_since_ms = -1;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int32_t find_free_slot(const struct kv_tier *tier) {
    for (int32_t i = 0; i < KV_TIER_BATCHES; i++) {
        if (tier->slots[i].state == KV_BATCH_FREE) {
            return i;
        }
    }
    return NONE;
}

/* The earliest ticket that wants something from disk. */
static int32_t find_reader(const struct kv_tier *tier) {
    int32_t chosen = NONE;
    int32_t first = 0;
    for (int32_t i = 0; i < KV_TIER_TICKETS; i++) {
        bool is_earlier = chosen == NONE || tier->tickets[i].number < tier->tickets[chosen].number;
        if (is_earlier && kv_ticket_wanted(&tier->tickets[i], &first) > 0) {
            chosen = i;
        }
    }
    return chosen;
}

/* A block that is still in the queue: this thread alone takes blocks out, so it stays there. */
static bool read_queued(
    struct kv_tier *tier, const struct kv_key *key, uint8_t *bytes, struct kv_disk_about *about
) {
    pthread_mutex_lock(&tier->lock);
    int64_t place = kv_tier_queue_find(tier, key);
    pthread_mutex_unlock(&tier->lock);
    if (place < 0) {
        return false;
    }
    const struct kv_about *queued = &tier->queue[place];
    size_t block_bytes = tier->options.block_bytes;
    memcpy(bytes, tier->queue_bytes + (size_t)place * block_bytes, block_bytes);
    about->parent = queued->parent;
    about->lineage = queued->lineage;
    memcpy(about->tokens, queued->tokens, sizeof about->tokens);
    return true;
}

static void set_record(struct kv_tier *tier, struct kv_batch_slot *slot, int32_t i) {
    slot->records[i] = (struct kv_tier_record){
        .key = slot->keys[i],
        .parent = slot->about[i].parent,
        .lineage = slot->about[i].lineage,
        .tokens = slot->about[i].tokens,
        .bytes = slot->bytes + (size_t)i * tier->options.block_bytes,
    };
}

/* Reads and verifies keys of the slot from `good` on until one does not come; *miss: why. */
static void read_rest(struct kv_tier *tier, struct kv_batch_slot *slot, enum kv_prefix_miss *miss) {
    *miss = KV_PREFIX_MISS_NONE;
    for (; slot->good < slot->count; slot->good++) {
        const struct kv_key *key = &slot->keys[slot->good];
        uint8_t *bytes = slot->bytes + (size_t)slot->good * tier->options.block_bytes;
        struct kv_disk_about *about = &slot->about[slot->good];
        result done = kv_disk_read(tier->disk, key, bytes, about, NULL);
        if (is_failed(done) &&
            (done.code != RESULT_NOT_FOUND || !read_queued(tier, key, bytes, about))) {
            *miss = done.code == RESULT_CORRUPT ? KV_PREFIX_MISS_DAMAGED : KV_PREFIX_MISS_NOT_READ;
            if (done.code == RESULT_NOT_FOUND) {
                (void)kv_disk_find(tier->disk, key, 1, miss);
            }
            *miss = *miss == KV_PREFIX_MISS_NONE ? KV_PREFIX_MISS_NOT_READ : *miss;
            return;
        }
        set_record(tier, slot, slot->good);
    }
}

void kv_tier_publish(struct kv_tier *tier, struct kv_batch_slot *slot) {
    slot->count = slot->good;
    slot->state = slot->ticket == NONE || slot->count == 0 ? KV_BATCH_FREE : KV_BATCH_READY;
    if (tier->options.wake != NULL && !tier->is_stopping) {
        tier->options.wake(tier->options.wake_context);
    }
}

/* Completes a batch of which not all was fetched or passed. Whether there was one. */
static bool complete_piece(struct kv_tier *tier) {
    int32_t at = 0;
    while (at < KV_TIER_BATCHES && tier->slots[at].state != KV_BATCH_SHORT) {
        at++;
    }
    if (at == KV_TIER_BATCHES) {
        return false;
    }
    struct kv_batch_slot *slot = &tier->slots[at];
    slot->state = KV_BATCH_READING;
    enum kv_prefix_miss miss = KV_PREFIX_MISS_NONE;
    if (slot->ticket != NONE) {
        leave(tier);
        read_rest(tier, slot, &miss);
        come_back(tier);
    }
    if (slot->ticket != NONE && slot->good < slot->count) {
        struct kv_ticket *ticket = &tier->tickets[slot->ticket];
        if (slot->first + slot->good < ticket->end) {
            ticket->end = slot->first + slot->good;
            ticket->miss = miss;
        }
    }
    kv_tier_publish(tier, slot);
    return true;
}

/* Fetches the next piece that a ticket wants. Whether there was one. */
static bool read_piece(struct kv_tier *tier, bool has_checker) {
    int32_t at = find_free_slot(tier);
    int32_t index = at == NONE ? NONE : find_reader(tier);
    if (index == NONE) {
        return false;
    }
    struct kv_batch_slot *slot = &tier->slots[at];
    struct kv_ticket *ticket = &tier->tickets[index];
    size_t block_bytes = tier->options.block_bytes;
    slot->ticket = index;
    slot->count = kv_ticket_wanted(ticket, &slot->first);
    slot->state = KV_BATCH_READING;
    slot->fetched = 0;
    slot->good = 0;
    ticket->read = slot->first + slot->count;
    memcpy(slot->keys, &ticket->keys[slot->first], (size_t)slot->count * sizeof *slot->keys);
    leave(tier);
    for (int32_t came = 1; has_checker && came > 0 && slot->fetched < slot->count;) {
        size_t from = (size_t)slot->fetched;
        came = kv_disk_fetch(
            tier->disk,
            &slot->keys[from],
            slot->count - slot->fetched,
            slot->headers + from * KV_DISK_HEADER_BYTES,
            slot->bytes + from * block_bytes
        );
        slot->fetched += came;
    }
    kv_disk_touch(tier->disk, slot->keys, slot->fetched);
    come_back(tier);
    slot->state = slot->fetched > 0 ? KV_BATCH_FETCHED : KV_BATCH_SHORT;
    pthread_cond_signal(&tier->to_checker);
    return true;
}

/* ---- verifying ------------------------------------------------------------------------------- */

static int32_t find_fetched(const struct kv_tier *tier) {
    int32_t chosen = NONE;
    for (int32_t i = 0; i < KV_TIER_BATCHES; i++) {
        const struct kv_batch_slot *slot = &tier->slots[i];
        if (slot->state == KV_BATCH_FETCHED &&
            (chosen == NONE || slot->first < tier->slots[chosen].first)) {
            chosen = i;
        }
    }
    return chosen;
}

static void verify(struct kv_tier *tier, struct kv_batch_slot *slot) {
    while (slot->good < slot->fetched) {
        size_t at = (size_t)slot->good;
        if (!kv_disk_check(
                tier->disk,
                &slot->keys[at],
                slot->headers + at * KV_DISK_HEADER_BYTES,
                slot->bytes + at * tier->options.block_bytes,
                &slot->about[at]
            )) {
            return;
        }
        set_record(tier, slot, slot->good);
        slot->good++;
    }
}

void *kv_tier_verify(void *context) {
    struct kv_tier *tier = context;
    pthread_mutex_lock(&tier->lock);
    while (!tier->is_stopping) {
        int32_t at = find_fetched(tier);
        if (at == NONE) {
            pthread_cond_wait(&tier->to_checker, &tier->lock);
            continue;
        }
        struct kv_batch_slot *slot = &tier->slots[at];
        slot->state = KV_BATCH_CHECKING;
        if (slot->ticket != NONE) {
            pthread_mutex_unlock(&tier->lock);
            verify(tier, slot);
            pthread_mutex_lock(&tier->lock);
        }
        if (slot->ticket == NONE || slot->good == slot->count) {
            kv_tier_publish(tier, slot);
        } else {
            slot->state = KV_BATCH_SHORT;
        }
        pthread_cond_signal(&tier->to_worker); /* a short one, or a slot that became free */
    }
    pthread_mutex_unlock(&tier->lock);
    return NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Puts on disk what an approximate lineage and those it comes from are, as far as it is known. */
static void note_lineage(struct kv_tier *tier, const struct kv_lineage *of) {
    struct kv_lineage child = *of;
    for (int32_t i = 0; i < LINEAGE_CHAIN_MAX; i++) {
        struct kv_lineage parent;
        int32_t position = 0;
        if (kv_lineage_equals(&child, &tier->options.root) ||
            kv_disk_lineage(tier->disk, &child, &parent, &position)) {
            return;
        }
        pthread_mutex_lock(&tier->lock);
        bool is_noted = kv_tier_noted(tier, &child, &parent, &position);
        pthread_mutex_unlock(&tier->lock);
        if (!is_noted) {
            return;
        }
        /* Failing, the block is refused: a block less. */
        result_ignore(kv_disk_note_lineage(tier->disk, &child, &parent, position, NULL));
        child = parent;
    }
}

/* Whether there was a block to write. */
static bool write_block(struct kv_tier *tier) {
    if (tier->queue_head == tier->queue_tail) {
        return false;
    }
    size_t place = tier->queue_tail % KV_TIER_QUEUE_BLOCKS;
    leave(tier);
    const uint8_t *bytes = tier->queue_bytes + place * tier->options.block_bytes;
    struct kv_tier_record record = kv_about_record(&tier->queue[place], bytes);
    enum kv_disk_outcome outcome = KV_DISK_OFF;
    note_lineage(tier, &record.lineage);
    result done = kv_disk_write(tier->disk, &record, &outcome, NULL);
    struct error trouble = {0};
    kv_disk_trouble(tier->disk, &trouble);
    come_back(tier);
    tier->queue_tail++;
    if (is_ok(done) && outcome == KV_DISK_WRITTEN) {
        tier->written++;
        tier->has_unsynced = true;
    } else if (is_ok(done) && outcome == KV_DISK_PRESENT) {
        tier->duplicates++;
    } else {
        tier->lost++;
    }
    if (trouble.code != RESULT_OK) { /* nothing is written any more */
        tier->lost += tier->queue_head - tier->queue_tail;
        tier->queue_tail = tier->queue_head;
    }
    return true;
}

/* ---- upkeep ---------------------------------------------------------------------------------- */

static void drop(struct kv_tier *tier) {
    int64_t blocks = tier->drop_blocks;
    leave(tier);
    int64_t dropped = kv_disk_drop(tier->disk, blocks);
    come_back(tier);
    tier->dropped = dropped;
    tier->wants_drop = false;
    pthread_cond_broadcast(&tier->to_caller);
}

static void sync_disk(struct kv_tier *tier, int64_t now) {
    if (tier->has_unsynced) {
        tier->has_unsynced = false;
        leave(tier);
        kv_disk_sync(tier->disk);
        come_back(tier);
    }
    tier->sync_ms = now + SYNC_EVERY_MS;
    if (tier->queue_head == tier->queue_tail) { /* nothing came meanwhile */
        tier->wants_sync = false;
        pthread_cond_broadcast(&tier->to_caller);
    }
}

static void advance(struct kv_tier *tier, int64_t now) {
    leave(tier);
    int64_t after_ms = kv_disk_advance(tier->disk);
    come_back(tier);
    after_ms = after_ms < ADVANCE_LEAST_MS ? ADVANCE_LEAST_MS : after_ms;
    tier->advance_ms = now + (after_ms > ADVANCE_EVERY_MS ? ADVANCE_EVERY_MS : after_ms);
}

/* Whether folders of other lineages are to be looked at. Under the lock. */
static bool wants_sweep(const struct kv_tier *tier, int64_t now) {
    uint64_t bytes_max = 0;
    uint64_t reducible = 0;
    if (tier->is_sweeping || now >= tier->sweep_ms) {
        return true;
    }
    uint64_t own = kv_disk_bytes(tier->disk, &bytes_max);
    uint64_t others = kv_sweep_bytes(tier->sweep, &reducible);
    return reducible > 0 && own + others > bytes_max;
}

/* One folder of another lineage. */
static void sweep(struct kv_tier *tier, int64_t now) {
    uint64_t bytes_max = 0;
    uint64_t own = kv_disk_bytes(tier->disk, &bytes_max);
    uint64_t others = kv_sweep_bytes(tier->sweep, NULL);
    uint64_t room = own + others > bytes_max ? bytes_max - bytes_max / SWEEP_SLACK : bytes_max;
    leave(tier);
    if (!tier->is_sweeping) {
        kv_sweep_start(tier->sweep, tier->cache, &tier->options.root);
    }
    bool has_more =
        kv_sweep_step(tier->sweep, tier->cache, &tier->options.clock, room > own ? room - own : 0);
    come_back(tier);
    tier->is_sweeping = has_more;
    tier->sweep_ms = now + SWEEP_EVERY_MS;
    tier->others.is_known = tier->others.is_known || !has_more;
    tier->others.bytes = kv_sweep_bytes(tier->sweep, NULL);
    tier->others.expired = tier->sweep->expired;
    tier->others.evicted = tier->sweep->evicted;
    tier->others.removed = tier->sweep->removed;
    memcpy(tier->others.names, tier->sweep->names, sizeof tier->others.names);
}

/* Does what is due, or waits until something is. */
static void keep_up(struct kv_tier *tier) {
    int64_t now = kv_tier_machine_ms();
    bool is_empty = tier->queue_head == tier->queue_tail;
    if (tier->wants_drop && is_empty) {
        drop(tier);
    } else if ((tier->wants_sync && is_empty) || (tier->has_unsynced && now >= tier->sync_ms)) {
        sync_disk(tier, now);
    } else if (now >= tier->advance_ms) {
        advance(tier, now);
    } else if (wants_sweep(tier, now)) {
        sweep(tier, now);
    } else {
        int64_t until = tier->advance_ms;
        if (tier->has_unsynced && tier->sync_ms < until) {
            until = tier->sync_ms;
        }
        kv_tier_wait(tier, &tier->to_worker, until);
    }
}

void *kv_tier_work(void *context) {
    struct kv_tier *tier = context;
    pthread_t checker;
    /* Without the second thread everything is read and verified here. */
    bool has_checker = pthread_create(&checker, NULL, kv_tier_verify, tier) == 0;
    pthread_mutex_lock(&tier->lock);
    while (!tier->is_stopping) {
        bool has_read = complete_piece(tier) || read_piece(tier, has_checker);
        int32_t writes = 0;
        while (!tier->is_stopping && writes < WRITES_PER_READ && write_block(tier)) {
            writes++;
        }
        if (!has_read && writes == 0 && !tier->is_stopping) {
            keep_up(tier);
        }
    }
    /* Closing the disk takes time too: index files, a sync. */
    int64_t write_by_ms = tier->stop_by_ms - tier->options.close_timeout_ms / 4;
    while (kv_tier_machine_ms() < write_by_ms && write_block(tier)) {
    }
    leave(tier);
    if (has_checker) {
        (void)pthread_join(checker, NULL); /* it saw is_stopping and waits for no disk */
    }
    kv_disk_close(tier->disk);
    come_back(tier);
    tier->disk = NULL;
    tier->has_ended = true;
    bool is_abandoned = tier->is_abandoned;
    pthread_cond_broadcast(&tier->to_caller);
    pthread_mutex_unlock(&tier->lock);
    if (is_abandoned) {
        kv_tier_free(tier);
    }
    return NULL;
}
