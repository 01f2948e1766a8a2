/* Tickets and batches: the caller's side of reading back. See kv_tier_internal.h.
 *
 * A ticket's keys are either pinned in the host pool when it starts or read by the worker, up to
 * KV_TIER_BATCHES pieces ahead. Batches from the host pool have slots of their own, so that pieces
 * read ahead never stand in the way of one that comes before them. */
#include "kv_tier_internal.h"

#define NONE (-1)

/* ---- tickets --------------------------------------------------------------------------------- */

static int32_t find_ticket(const struct kv_tier *tier, uint64_t id) {
    for (int32_t i = 0; i < KV_TIER_TICKETS; i++) {
        if (tier->tickets[i].is_used && tier->tickets[i].id == id) {
            return i;
        }
    }
    return NONE;
}

static int32_t find_free_ticket(const struct kv_tier *tier) {
    for (int32_t i = 0; i < KV_TIER_TICKETS; i++) {
        if (!tier->tickets[i].is_used) {
            return i;
        }
    }
    return NONE;
}

int32_t kv_ticket_wanted(const struct kv_ticket *ticket, int32_t *first) {
    if (!ticket->is_used) {
        return 0;
    }
    int32_t at = ticket->read;
    while (at < ticket->end && ticket->host_slots[at] != NONE) {
        at++;
    }
    *first = at;
    int32_t count = 0;
    while (at + count < ticket->end && count < KV_TIER_BATCH_BLOCKS &&
           ticket->host_slots[at + count] == NONE) {
        count++;
    }
    return count;
}

/* Forgets the ticket with what is pinned or read for it and not handed over. Under the lock. */
static void release_ticket(struct kv_tier *tier, int32_t index) {
    struct kv_ticket *ticket = &tier->tickets[index];
    for (int32_t i = ticket->delivered; i < ticket->pinned_end; i++) {
        if (ticket->host_slots[i] != NONE) {
            kv_host_unpin(&tier->host, ticket->host_slots[i]);
        }
    }
    for (int32_t i = 0; i < KV_TIER_BATCHES; i++) {
        struct kv_batch_slot *slot = &tier->slots[i];
        bool is_ours = slot->ticket == index;
        if (is_ours && slot->state == KV_BATCH_READY) {
            slot->state = KV_BATCH_FREE;
        } else if (is_ours && slot->state != KV_BATCH_OUT) {
            slot->ticket = NONE; /* freed by the thread that has it next */
        }
    }
    free(ticket->host_slots);
    free(ticket->keys);
    *ticket = (struct kv_ticket){0};
}

/* Looks where each key is and pins what is in the host pool; the first that is nowhere ends it. */
static void
locate(struct kv_tier *tier, struct kv_ticket *ticket, const struct kv_key *keys, int32_t count) {
    ticket->end = count;
    ticket->miss = KV_PREFIX_MISS_NONE;
    for (int32_t i = 0; i < count; i++) {
        ticket->host_slots[i] = kv_host_find(&tier->host, &keys[i]);
        if (ticket->host_slots[i] != NONE) {
            kv_host_pin(&tier->host, ticket->host_slots[i]);
        } else if (!kv_tier_below_has(tier, &keys[i])) {
            ticket->end = i;
            ticket->miss = kv_tier_reason(tier, &keys[i]);
            break;
        }
    }
    ticket->pinned_end = ticket->end;
    for (int32_t i = ticket->end - 1; i >= 0; i--) { /* trunks are newer */
        if (ticket->host_slots[i] != NONE) {
            kv_host_touch(&tier->host, ticket->host_slots[i]);
        }
    }
}

bool kv_tier_read(
    struct kv_tier *tier, uint64_t ticket_id, const struct kv_key *keys, int32_t count
) {
    ASSERT(count >= 1 && count <= KV_TIER_KEYS_MAX);
    /* Only this thread starts and ends tickets; the worker looks at them under the lock. */
    ASSERT(find_ticket(tier, ticket_id) == NONE);
    int32_t index = find_free_ticket(tier);
    if (index == NONE) {
        return false;
    }
    struct kv_ticket ticket = {
        .is_used = true,
        .id = ticket_id,
        .keys = malloc((size_t)count * sizeof *ticket.keys),
        .host_slots = malloc((size_t)count * sizeof *ticket.host_slots),
    };
    if (ticket.keys == NULL || ticket.host_slots == NULL) {
        free(ticket.keys);
        free(ticket.host_slots);
        return false;
    }
    memcpy(ticket.keys, keys, (size_t)count * sizeof *keys);
    locate(tier, &ticket, keys, count);
    int32_t first = 0;
    pthread_mutex_lock(&tier->lock);
    ticket.number = tier->ticket_number++;
    tier->tickets[index] = ticket;
    if (kv_ticket_wanted(&ticket, &first) > 0) {
        pthread_cond_signal(&tier->to_worker);
    }
    pthread_mutex_unlock(&tier->lock);
    return true;
}

void kv_tier_cancel(struct kv_tier *tier, uint64_t ticket) {
    pthread_mutex_lock(&tier->lock);
    int32_t index = find_ticket(tier, ticket);
    if (index != NONE) {
        release_ticket(tier, index);
        pthread_cond_signal(&tier->to_worker); /* slots may have become free */
    }
    pthread_mutex_unlock(&tier->lock);
}

/* ---- batches --------------------------------------------------------------------------------- */

static int32_t find_host_batch(const struct kv_tier *tier) {
    for (int32_t i = KV_TIER_BATCHES; i < KV_TIER_SLOTS; i++) {
        if (tier->slots[i].state == KV_BATCH_FREE) {
            return i;
        }
    }
    return NONE;
}

static int32_t find_ready(const struct kv_tier *tier, int32_t index) {
    for (int32_t i = 0; i < KV_TIER_BATCHES; i++) {
        const struct kv_batch_slot *slot = &tier->slots[i];
        if (slot->state == KV_BATCH_READY && slot->ticket == index &&
            slot->first == tier->tickets[index].delivered) {
            return i;
        }
    }
    return NONE;
}

/* What comes next of a ticket; `slot` NONE with `is_there`: nothing more. */
struct next {
    bool is_there, is_from_disk;
    int32_t slot;
};

static struct next look(const struct kv_tier *tier, int32_t index) {
    const struct kv_ticket *ticket = &tier->tickets[index];
    struct next next = {.slot = NONE};
    if (ticket->delivered == ticket->end) {
        next.is_there = true;
    } else if (ticket->host_slots[ticket->delivered] != NONE) {
        next.slot = find_host_batch(tier);
        next.is_there = next.slot != NONE;
    } else {
        next.slot = find_ready(tier, index);
        next.is_there = next.slot != NONE;
        next.is_from_disk = true;
    }
    return next;
}

/* Fills a free slot with the ticket's next blocks in the host pool, which stay pinned. */
static void fill_from_host(struct kv_tier *tier, int32_t index, struct kv_batch_slot *slot) {
    const struct kv_ticket *ticket = &tier->tickets[index];
    slot->ticket = index;
    slot->first = ticket->delivered;
    slot->count = 0;
    while (slot->count < KV_TIER_BATCH_BLOCKS && slot->first + slot->count < ticket->end) {
        int32_t host_slot = ticket->host_slots[slot->first + slot->count];
        if (host_slot == NONE) {
            break;
        }
        slot->host_slots[slot->count] = host_slot;
        slot->records[slot->count] = kv_about_record(
            &tier->host.slots[host_slot].about, kv_host_bytes(&tier->host, host_slot)
        );
        slot->count++;
    }
}

static void
hand_over(struct kv_tier *tier, int32_t index, struct next next, struct kv_tier_batch *out) {
    struct kv_ticket *ticket = &tier->tickets[index];
    struct kv_tier_batch batch = {
        .ticket = ticket->id,
        .first = ticket->delivered,
        .from_disk = next.is_from_disk,
        .has_timed_out = ticket->has_timed_out,
        .slot = next.slot,
    };
    if (next.slot != NONE) {
        struct kv_batch_slot *slot = &tier->slots[next.slot];
        if (next.is_from_disk) {
            tier->disk_read += (uint64_t)slot->count;
        } else {
            fill_from_host(tier, index, slot);
            tier->host_read += (uint64_t)slot->count;
        }
        ASSERT(slot->count > 0);
        slot->state = KV_BATCH_OUT;
        batch.count = slot->count;
        batch.records = slot->records;
        ticket->delivered += slot->count;
    }
    ASSERT(ticket->delivered <= ticket->end);
    batch.is_last = ticket->delivered == ticket->end;
    if (batch.is_last) {
        batch.miss = ticket->miss;
        release_ticket(tier, index);
    }
    *out = batch;
}

/* Ends the tickets that wait for a disk that has not answered for too long. */
static void end_overdue(struct kv_tier *tier) {
    if (tier->busy_since_ms < 0 || clock_monotonic_ms(&tier->options.clock) - tier->busy_since_ms <=
                                       tier->options.read_timeout_ms) {
        return;
    }
    for (int32_t i = 0; i < KV_TIER_TICKETS; i++) {
        struct kv_ticket *ticket = &tier->tickets[i];
        if (ticket->is_used && !look(tier, i).is_there && look(tier, i).is_from_disk) {
            ticket->end = ticket->delivered;
            ticket->miss = KV_PREFIX_MISS_NOT_READ;
            ticket->has_timed_out = true;
            tier->timed_out++;
        }
    }
}

bool kv_tier_next(struct kv_tier *tier, struct kv_tier_batch *out) {
    int32_t chosen = NONE;
    pthread_mutex_lock(&tier->lock);
    end_overdue(tier);
    for (int32_t i = 0; i < KV_TIER_TICKETS; i++) {
        bool is_earlier = chosen == NONE || tier->tickets[i].number < tier->tickets[chosen].number;
        if (tier->tickets[i].is_used && is_earlier && look(tier, i).is_there) {
            chosen = i;
        }
    }
    if (chosen != NONE) {
        hand_over(tier, chosen, look(tier, chosen), out);
    }
    pthread_mutex_unlock(&tier->lock);
    return chosen != NONE;
}

void kv_tier_done(struct kv_tier *tier, const struct kv_tier_batch *batch) {
    if (batch->slot == NONE) {
        return;
    }
    ASSERT(batch->slot >= 0 && batch->slot < KV_TIER_SLOTS);
    struct kv_batch_slot *slot = &tier->slots[batch->slot];
    pthread_mutex_lock(&tier->lock);
    ASSERT(slot->state == KV_BATCH_OUT);
    for (int32_t i = 0; !batch->from_disk && i < slot->count; i++) {
        kv_host_unpin(&tier->host, slot->host_slots[i]);
    }
    slot->state = KV_BATCH_FREE;
    pthread_cond_signal(&tier->to_worker);
    pthread_mutex_unlock(&tier->lock);
}
