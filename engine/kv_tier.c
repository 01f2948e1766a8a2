/* Life of the tiers, lookups across them, and what goes down. See kv_tier.h; tickets are in
 * kv_tier_read.c, the worker in kv_tier_worker.c, the host pool in kv_tier_host.c. */
#include "kv_tier_internal.h"

#include <time.h>

#define READ_TIMEOUT_MS  10000
#define CLOSE_TIMEOUT_MS 10000

/* ---- pieces ---------------------------------------------------------------------------------- */

void kv_about_fill(struct kv_about *about, const struct kv_tier_record *record) {
    about->key = record->key;
    about->parent = record->parent;
    about->lineage = record->lineage;
    memcpy(about->tokens, record->tokens, sizeof about->tokens);
}

struct kv_tier_record kv_about_record(const struct kv_about *about, const uint8_t *bytes) {
    return (struct kv_tier_record){
        .key = about->key,
        .parent = about->parent,
        .lineage = about->lineage,
        .tokens = about->tokens,
        .bytes = bytes,
    };
}

int32_t
kv_tier_neighbours(const struct kv_tier_record *records, int32_t count, size_t block_bytes) {
    int32_t run = 1;
    while (run < count && run < KV_TIER_BATCH_BLOCKS &&
           records[run].bytes == records[run - 1].bytes + block_bytes) {
        run++;
    }
    return run;
}

void kv_tier_download(struct backend *backend, void *to, const void *from, size_t bytes) {
    if (backend == NULL) {
        memcpy(to, from, bytes);
    } else {
        backend->download(backend, to, from, bytes);
    }
}

int64_t kv_tier_machine_ms(void) {
    struct clock real = clock_real();
    return clock_monotonic_ms(&real);
}

void kv_tier_wait(struct kv_tier *tier, pthread_cond_t *condition, int64_t until_ms) {
    struct timespec until = {
        .tv_sec = (time_t)(until_ms / 1000), .tv_nsec = (long)(until_ms % 1000 * 1000000)};
    (void)pthread_cond_timedwait(condition, &tier->lock, &until); /* both outcomes are looked at */
}

/* ---- life ------------------------------------------------------------------------------------ */

void kv_tier_measure(const struct kv_tier_options *options, struct kv_tier_size *out) {
    struct kv_tier_size size = {0};
    size.host_blocks =
        kv_host_capacity(options->block_bytes, options->host_bytes, &size.host_bytes);
    uint64_t fixed = sizeof(struct kv_tier) + KV_TIER_LINEAGES * sizeof(struct kv_noted_lineage);
    if (options->directory != NULL) {
        fixed += sizeof(struct kv_sweep);
        size.queue_bytes =
            KV_TIER_QUEUE_BLOCKS * (uint64_t)(options->block_bytes + sizeof(struct kv_about));
        uint64_t about = sizeof(struct kv_disk_about) + KV_DISK_HEADER_BYTES;
        size.read_bytes = (uint64_t)KV_TIER_BATCHES * KV_TIER_BATCH_BLOCKS *
                          ((uint64_t)options->block_bytes + about);
    }
    size.total_bytes = fixed + size.host_bytes + size.queue_bytes + size.read_bytes;
    *out = size;
}

static result allocate(struct kv_tier *tier, struct error *error) {
    size_t block_bytes = tier->options.block_bytes;
    tier->lineages = calloc(KV_TIER_LINEAGES, sizeof *tier->lineages);
    bool is_complete = tier->lineages != NULL;
    if (tier->options.directory != NULL) {
        tier->queue_bytes = calloc(KV_TIER_QUEUE_BLOCKS, block_bytes);
        tier->queue = calloc(KV_TIER_QUEUE_BLOCKS, sizeof *tier->queue);
        tier->cache = strdup(tier->options.directory);
        tier->sweep = calloc(1, sizeof *tier->sweep);
        is_complete = is_complete && tier->queue_bytes != NULL && tier->queue != NULL &&
                      tier->cache != NULL && tier->sweep != NULL;
        for (int32_t i = 0; i < KV_TIER_BATCHES; i++) {
            struct kv_batch_slot *slot = &tier->slots[i];
            slot->bytes = calloc(KV_TIER_BATCH_BLOCKS, block_bytes);
            slot->about = calloc(KV_TIER_BATCH_BLOCKS, sizeof *slot->about);
            slot->headers = calloc(KV_TIER_BATCH_BLOCKS, KV_DISK_HEADER_BYTES);
            is_complete =
                is_complete && slot->bytes != NULL && slot->about != NULL && slot->headers != NULL;
        }
    }
    if (!is_complete) {
        FAIL(error, MEMORY, "no memory for the tiers' buffers of %zu-byte blocks", block_bytes);
    }
    if (tier->size.host_blocks > 0) {
        TRY(kv_host_init(&tier->host, block_bytes, tier->size.host_blocks, error));
    }
    return OK;
}

static result start_worker(struct kv_tier *tier, struct error *error) {
    int64_t now = kv_tier_machine_ms();
    tier->sync_ms = now;
    tier->advance_ms = now;
    tier->sweep_ms = now;
    int failed = pthread_create(&tier->worker, NULL, kv_tier_work, tier);
    if (failed != 0) {
        FAIL_FOREIGN(error, MEMORY, failed, "cannot start the thread of the disk tier");
    }
    tier->has_worker = true;
    return OK;
}

/* A directory that cannot be used leaves the tier without a disk, and says why. */
static result open_disk(struct kv_tier *tier, struct error *error) {
    const struct kv_tier_options *options = &tier->options;
    struct kv_disk_options disk = {
        .directory = options->directory,
        .root = options->root,
        .block_bytes = options->block_bytes,
        .bytes_max = options->disk_bytes_max,
        .write_bytes_per_hour = options->write_bytes_per_hour,
        .lifetime_ms = options->lifetime_ms,
        .description = options->description,
        .clock = options->clock,
        .mode = KV_DISK_WRITER,
    };
    result opened = kv_disk_open(&tier->disk, &disk, &tier->open_trouble);
    if (is_ok(opened)) {
        tier->open_trouble = (struct error){0};
        return start_worker(tier, error);
    }
    tier->disk = NULL;
    if (opened.code == RESULT_MEMORY) {
        FAIL(error, MEMORY, "%s", tier->open_trouble.message);
    }
    return OK;
}

static void tier_cleanup(struct kv_tier **tier) {
    if (*tier != NULL) {
        kv_tier_free(*tier);
    }
}

result
kv_tier_open(struct kv_tier **out, const struct kv_tier_options *options, struct error *error) {
    if (options->block_bytes < 1 || options->block_bytes > KV_DISK_BLOCK_BYTES_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "blocks of %zu bytes: the tiers take 1 to %zu",
            options->block_bytes,
            KV_DISK_BLOCK_BYTES_MAX
        );
    }
    CLEANUP(tier_cleanup) struct kv_tier *tier = calloc(1, sizeof *tier);
    if (tier == NULL) {
        FAIL(error, MEMORY, "no memory for the tiers");
    }
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic); /* Linux: these do not fail */
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&tier->lock, NULL);
    (void)pthread_cond_init(&tier->to_worker, &monotonic);
    (void)pthread_cond_init(&tier->to_checker, &monotonic);
    (void)pthread_cond_init(&tier->to_caller, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    tier->options = *options;
    struct kv_tier_options *o = &tier->options;
    o->clock = o->clock.monotonic_ms == NULL ? clock_real() : o->clock;
    o->read_timeout_ms = o->read_timeout_ms == 0 ? READ_TIMEOUT_MS : o->read_timeout_ms;
    o->close_timeout_ms = o->close_timeout_ms == 0 ? CLOSE_TIMEOUT_MS : o->close_timeout_ms;
    tier->busy_since_ms = -1;
    kv_tier_measure(o, &tier->size);
    TRY(allocate(tier, error));
    if (o->directory != NULL) {
        TRY(open_disk(tier, error));
    }
    o->directory = NULL; /* the caller's strings */
    o->description = NULL;
    *out = TAKE(tier);
    return OK;
}

void kv_tier_free(struct kv_tier *tier) {
    kv_disk_close(tier->disk);
    kv_host_deinit(&tier->host);
    for (int32_t i = 0; i < KV_TIER_TICKETS; i++) {
        free(tier->tickets[i].host_slots);
        free(tier->tickets[i].keys);
    }
    for (int32_t i = 0; i < KV_TIER_BATCHES; i++) {
        free(tier->slots[i].headers);
        free(tier->slots[i].about);
        free(tier->slots[i].bytes);
    }
    free(tier->sweep);
    free(tier->cache);
    free(tier->queue);
    free(tier->queue_bytes);
    free(tier->lineages);
    (void)pthread_cond_destroy(&tier->to_caller);
    (void)pthread_cond_destroy(&tier->to_checker);
    (void)pthread_cond_destroy(&tier->to_worker);
    (void)pthread_mutex_destroy(&tier->lock);
    free(tier);
}

void kv_tier_close(struct kv_tier *tier) {
    if (tier == NULL) {
        return;
    }
    pthread_mutex_lock(&tier->lock);
    for (int32_t i = 0; i < KV_TIER_SLOTS; i++) {
        ASSERT(tier->slots[i].state != KV_BATCH_OUT);
    }
    if (!tier->has_worker) {
        pthread_mutex_unlock(&tier->lock);
        kv_tier_free(tier);
        return;
    }
    tier->is_stopping = true;
    tier->stop_by_ms = kv_tier_machine_ms() + tier->options.close_timeout_ms;
    pthread_cond_signal(&tier->to_worker);
    pthread_cond_signal(&tier->to_checker);
    while (!tier->has_ended && kv_tier_machine_ms() < tier->stop_by_ms) {
        kv_tier_wait(tier, &tier->to_caller, tier->stop_by_ms);
    }
    bool has_ended = tier->has_ended;
    tier->is_abandoned = !has_ended;
    pthread_t worker = tier->worker;
    pthread_mutex_unlock(&tier->lock);
    if (has_ended) {
        (void)pthread_join(worker, NULL);
        kv_tier_free(tier);
    } else {
        /* It hangs in the disk and cannot be interrupted: it frees the tier when it comes back. */
        (void)pthread_detach(worker);
    }
}

void kv_tier_trouble(const struct kv_tier *tier, struct error *out) {
    *out = tier->open_trouble;
    if (tier->disk != NULL) {
        kv_disk_trouble(tier->disk, out);
    }
}

/* ---- lookups --------------------------------------------------------------------------------- */

int64_t kv_tier_queue_find(const struct kv_tier *tier, const struct kv_key *key) {
    for (uint64_t at = tier->queue_tail; at != tier->queue_head; at++) {
        if (kv_key_equals(&tier->queue[at % KV_TIER_QUEUE_BLOCKS].key, key)) {
            return (int64_t)(at % KV_TIER_QUEUE_BLOCKS);
        }
    }
    return -1;
}

bool kv_tier_below_has(struct kv_tier *tier, const struct kv_key *key) {
    if (tier->disk == NULL) {
        return false;
    }
    if (kv_disk_has(tier->disk, key)) {
        return true;
    }
    pthread_mutex_lock(&tier->lock);
    bool is_queued = kv_tier_queue_find(tier, key) >= 0;
    pthread_mutex_unlock(&tier->lock);
    /* What left the queue between the two looks is on disk by now. */
    return is_queued || kv_disk_has(tier->disk, key);
}

enum kv_prefix_miss kv_tier_reason(struct kv_tier *tier, const struct kv_key *key) {
    enum kv_prefix_miss why = KV_PREFIX_MISS_NEVER_COMPUTED;
    if (tier->disk != NULL) {
        (void)kv_disk_find(tier->disk, key, 1, &why);
    }
    if (why == KV_PREFIX_MISS_NEVER_COMPUTED && kv_host_remembers(&tier->host, key)) {
        why = KV_PREFIX_MISS_EVICTED;
    }
    /* It came between the two looks, when the disk has it now after all. */
    return why == KV_PREFIX_MISS_NONE ? KV_PREFIX_MISS_NEVER_COMPUTED : why;
}

bool kv_tier_has(struct kv_tier *tier, const struct kv_key *key) {
    return kv_host_find(&tier->host, key) >= 0 || kv_tier_below_has(tier, key);
}

bool kv_tier_is_written(struct kv_tier *tier, const struct kv_key *key) {
    return kv_tier_below_has(tier, key);
}

int32_t kv_tier_find(
    struct kv_tier *tier, const struct kv_key *keys, int32_t count, enum kv_prefix_miss *why
) {
    int32_t found = 0;
    while (found < count && kv_tier_has(tier, &keys[found])) {
        found++;
    }
    *why = found < count ? kv_tier_reason(tier, &keys[found]) : KV_PREFIX_MISS_NONE;
    return found;
}

void kv_tier_touch(struct kv_tier *tier, const struct kv_key *keys, int32_t count) {
    for (int32_t i = count - 1; i >= 0 && tier->host.capacity > 0; i--) { /* trunks are newer */
        int32_t slot = kv_host_find(&tier->host, &keys[i]);
        if (slot >= 0) {
            kv_host_touch(&tier->host, slot);
        }
    }
    if (tier->disk != NULL) {
        kv_disk_touch(tier->disk, keys, count);
    }
}

int32_t kv_tier_lineages(
    struct kv_tier *tier, const struct kv_key *parent, struct kv_lineage *out, int32_t capacity
) {
    const struct kv_lineage *root = &tier->options.root;
    int32_t count = 0;
    if (tier->disk != NULL) {
        int32_t found = kv_disk_lineages(tier->disk, parent, out, capacity);
        for (int32_t i = 0; i < found; i++) {
            if (!kv_lineage_equals(&out[i], root)) {
                out[count++] = out[i];
            }
        }
    }
    return kv_host_lineages(&tier->host, parent, root, out, count, capacity);
}

/* ---- lineages -------------------------------------------------------------------------------- */

bool kv_tier_noted(
    const struct kv_tier *tier,
    const struct kv_lineage *child,
    struct kv_lineage *parent,
    int32_t *position
) {
    uint64_t kept = tier->lineage_count < KV_TIER_LINEAGES ? tier->lineage_count : KV_TIER_LINEAGES;
    for (uint64_t i = 0; i < kept; i++) {
        if (kv_lineage_equals(&tier->lineages[i].child, child)) {
            *parent = tier->lineages[i].parent;
            *position = tier->lineages[i].position;
            return true;
        }
    }
    return false;
}

void kv_tier_note_lineage(
    struct kv_tier *tier,
    const struct kv_lineage *child,
    const struct kv_lineage *parent,
    int32_t position
) {
    struct kv_lineage derived;
    kv_lineage_replay(parent, position, &derived);
    ASSERT(kv_lineage_equals(&derived, child));
    struct kv_lineage known_parent;
    int32_t known_position;
    pthread_mutex_lock(&tier->lock);
    if (!kv_tier_noted(tier, child, &known_parent, &known_position)) {
        tier->lineages[tier->lineage_count++ % KV_TIER_LINEAGES] =
            (struct kv_noted_lineage){.child = *child, .parent = *parent, .position = position};
    }
    pthread_mutex_unlock(&tier->lock);
}

bool kv_tier_lineage(
    struct kv_tier *tier,
    const struct kv_lineage *child,
    struct kv_lineage *parent,
    int32_t *position
) {
    pthread_mutex_lock(&tier->lock);
    bool is_known = kv_tier_noted(tier, child, parent, position);
    pthread_mutex_unlock(&tier->lock);
    return is_known || (tier->disk != NULL && kv_disk_lineage(tier->disk, child, parent, position));
}

/* ---- going down ------------------------------------------------------------------------------ */

int32_t kv_tier_room(struct kv_tier *tier) {
    if (tier->disk == NULL) {
        return 0;
    }
    int64_t budget = kv_disk_room(tier->disk);
    pthread_mutex_lock(&tier->lock);
    int64_t queued = (int64_t)(tier->queue_head - tier->queue_tail);
    pthread_mutex_unlock(&tier->lock);
    int64_t room = KV_TIER_QUEUE_BLOCKS - queued;
    if (budget - queued < room) {
        room = budget - queued;
    }
    return room > 0 ? (int32_t)room : 0;
}

/* Copies records [count] behind the queue's head, where the worker does not look yet. */
static void
copy_to_queue(struct kv_tier *tier, const struct kv_tier_record *records, int32_t count) {
    size_t block_bytes = tier->options.block_bytes;
    int32_t at = 0;
    while (at < count) {
        int32_t place = (int32_t)((tier->queue_head + (uint64_t)at) % KV_TIER_QUEUE_BLOCKS);
        int32_t run = kv_tier_neighbours(&records[at], count - at, block_bytes);
        if (run > KV_TIER_QUEUE_BLOCKS - place) {
            run = KV_TIER_QUEUE_BLOCKS - place;
        }
        kv_tier_download(
            tier->options.backend,
            tier->queue_bytes + (size_t)place * block_bytes,
            records[at].bytes,
            (size_t)run * block_bytes
        );
        for (int32_t i = 0; i < run; i++) {
            kv_about_fill(&tier->queue[place + i], &records[at + i]);
        }
        at += run;
    }
}

/* A device that failed gives zeros for what is asked of it, which must not become a record. */
static bool device_is_sound(const struct kv_tier *tier) {
    struct backend *backend = tier->options.backend;
    return backend == NULL || backend->synchronize == NULL ||
           is_ok(backend->synchronize(backend, NULL));
}

int32_t kv_tier_write(struct kv_tier *tier, const struct kv_tier_record *records, int32_t count) {
    int32_t room = kv_tier_room(tier); /* only this thread makes it smaller */
    int32_t at = 0;
    while (at < count) {
        /* The next run of records that are not there yet. */
        int32_t run = 0;
        while (at + run < count && run < room && run < KV_TIER_BATCH_BLOCKS &&
               !kv_tier_below_has(tier, &records[at + run].key)) {
            run++;
        }
        if (run > 0) {
            copy_to_queue(tier, &records[at], run);
            if (!device_is_sound(tier)) {
                return count; /* nobody asks again for what cannot be had */
            }
            pthread_mutex_lock(&tier->lock);
            tier->queue_head += (uint64_t)run;
            pthread_cond_signal(&tier->to_worker);
            pthread_mutex_unlock(&tier->lock);
            room -= run;
            at += run;
        } else if (kv_tier_below_has(tier, &records[at].key)) {
            pthread_mutex_lock(&tier->lock);
            tier->duplicates++;
            pthread_mutex_unlock(&tier->lock);
            at++;
        } else {
            break;
        }
    }
    return at;
}

/* Files the first of records [count], and those behind it that are neighbours in memory and find
 * neighbouring free slots; copies them in one piece. Returns how many were dealt with. */
static int32_t put_run(struct kv_tier *tier, const struct kv_tier_record *records, int32_t count) {
    struct kv_host *host = &tier->host;
    int32_t slot = kv_host_insert(host, &records[0]);
    if (slot < 0) {
        return 1;
    }
    int32_t most = kv_tier_neighbours(records, count, host->block_bytes);
    int32_t run = 1;
    while (run < most && host->free == slot + run && kv_host_find(host, &records[run].key) < 0) {
        (void)kv_host_insert(host, &records[run]); /* the next free slot is taken first */
        run++;
    }
    kv_tier_download(
        tier->options.backend,
        kv_host_bytes(host, slot),
        records[0].bytes,
        (size_t)run * host->block_bytes
    );
    return run;
}

void kv_tier_put_host(struct kv_tier *tier, const struct kv_tier_record *records, int32_t count) {
    struct kv_host *host = &tier->host;
    int32_t at = 0;
    while (host->capacity > 0 && at < count) {
        int32_t slot = kv_host_find(host, &records[at].key);
        if (slot >= 0) {
            kv_host_touch(host, slot);
            at++;
        } else {
            at += put_run(tier, &records[at], count - at);
        }
    }
}

bool kv_tier_flush(struct kv_tier *tier, int64_t timeout_ms) {
    if (tier->disk == NULL) {
        return true;
    }
    int64_t until = kv_tier_machine_ms() + timeout_ms;
    pthread_mutex_lock(&tier->lock);
    tier->wants_sync = true;
    pthread_cond_signal(&tier->to_worker);
    while (tier->wants_sync && kv_tier_machine_ms() < until) {
        kv_tier_wait(tier, &tier->to_caller, until);
    }
    bool is_done = !tier->wants_sync;
    pthread_mutex_unlock(&tier->lock);
    return is_done;
}

/* ---- for tests and people -------------------------------------------------------------------- */

int32_t kv_tier_drop_host(struct kv_tier *tier, int32_t blocks) {
    int32_t dropped = 0;
    while ((blocks == 0 || dropped < blocks) && kv_host_evict(&tier->host)) {
        dropped++;
    }
    return dropped;
}

int32_t kv_tier_drop_disk(struct kv_tier *tier, int32_t blocks) {
    if (tier->disk == NULL) {
        return 0;
    }
    pthread_mutex_lock(&tier->lock);
    tier->wants_drop = true;
    tier->drop_blocks = blocks;
    pthread_cond_signal(&tier->to_worker);
    int64_t until = kv_tier_machine_ms() + tier->options.close_timeout_ms;
    while (tier->wants_drop && kv_tier_machine_ms() < until) {
        kv_tier_wait(tier, &tier->to_caller, until);
    }
    int64_t dropped = tier->wants_drop ? 0 : tier->dropped;
    pthread_mutex_unlock(&tier->lock);
    return narrow_i32(dropped);
}

void kv_tier_count(struct kv_tier *tier, struct kv_tier_counts *out) {
    const struct kv_host *host = &tier->host;
    struct kv_tier_counts counts = {
        .host_blocks = host->count,
        .host_blocks_max = host->capacity,
        .host_bytes = (uint64_t)host->count * host->block_bytes,
        .host_put = host->put,
        .host_evicted = host->evicted,
        .host_refused = host->refused,
        .read_timeout_ms = tier->options.read_timeout_ms,
    };
    pthread_mutex_lock(&tier->lock);
    counts.queued_blocks = (int32_t)(tier->queue_head - tier->queue_tail);
    for (int32_t i = 0; i < KV_TIER_TICKETS; i++) {
        counts.tickets += tier->tickets[i].is_used ? 1 : 0;
    }
    counts.host_read_blocks = tier->host_read;
    counts.disk_read_blocks = tier->disk_read;
    counts.written_blocks = tier->written;
    counts.duplicate_blocks = tier->duplicates;
    counts.lost_blocks = tier->lost;
    counts.tickets_timed_out = tier->timed_out;
    counts.others = tier->others;
    pthread_mutex_unlock(&tier->lock);
    if (tier->disk != NULL) {
        kv_disk_count(tier->disk, &counts.disk);
    }
    *out = counts;
}
