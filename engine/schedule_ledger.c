/* Rows served by agent. See schedule.h.
 *
 * Fair queueing by start tags: an agent that becomes active is lifted to the floor, which is the
 * least served of the active ones, and which never goes back.
 */
#include "schedule.h"

struct agent {
    uint64_t id;
    int64_t served;
    int32_t running; /* generations; 0: inactive */
};

struct schedule_ledger {
    int32_t capacity, count;
    int64_t floor;
    struct agent *agents; /* [capacity], by id */
};

result
schedule_ledger_create(struct schedule_ledger **out, int32_t agents_max, struct error *error) {
    ASSERT(agents_max >= 1 && agents_max <= SCHEDULE_SEQUENCES_MAX);
    struct schedule_ledger *ledger = calloc(1, sizeof *ledger);
    struct agent *agents = calloc((size_t)agents_max, sizeof *agents);
    if (ledger == NULL || agents == NULL) {
        free(ledger);
        free(agents);
        FAIL(error, MEMORY, "no memory for the service of %d agents", agents_max);
    }
    ledger->capacity = agents_max;
    ledger->agents = agents;
    *out = ledger;
    return OK;
}

uint64_t schedule_ledger_bytes(int32_t agents_max) {
    return sizeof(struct schedule_ledger) + (uint64_t)agents_max * sizeof(struct agent);
}

void schedule_ledger_destroy(struct schedule_ledger *ledger) {
    if (ledger != NULL) {
        free(ledger->agents);
        free(ledger);
    }
}

/* Where the agent is, or would be. */
static int32_t find(const struct schedule_ledger *ledger, uint64_t id) {
    int32_t low = 0;
    int32_t high = ledger->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (ledger->agents[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static struct agent *get(const struct schedule_ledger *ledger, uint64_t id) {
    int32_t at = find(ledger, id);
    return at < ledger->count && ledger->agents[at].id == id ? &ledger->agents[at] : NULL;
}

static void raise_floor(struct schedule_ledger *ledger) {
    int64_t least = INT64_MAX;
    int64_t most = ledger->floor;
    for (int32_t i = 0; i < ledger->count; i++) {
        const struct agent *agent = &ledger->agents[i];
        if (agent->running > 0 && agent->served < least) {
            least = agent->served;
        }
        most = agent->served > most ? agent->served : most;
    }
    /* Nobody is active: the past is settled. */
    least = least == INT64_MAX ? most : least;
    ledger->floor = least > ledger->floor ? least : ledger->floor;
}

/* The inactive one with the least service: it would be lifted to the floor anyway. */
static void forget_one(struct schedule_ledger *ledger) {
    int32_t least = -1;
    for (int32_t i = 0; i < ledger->count; i++) {
        const struct agent *agent = &ledger->agents[i];
        if (agent->running == 0 && (least < 0 || agent->served < ledger->agents[least].served)) {
            least = i;
        }
    }
    ASSERT(least >= 0);
    size_t behind = (size_t)(ledger->count - least - 1);
    memmove(ledger->agents + least, ledger->agents + least + 1, behind * sizeof *ledger->agents);
    ledger->count--;
}

void schedule_ledger_join(struct schedule_ledger *ledger, uint64_t agent) {
    raise_floor(ledger);
    struct agent *found = get(ledger, agent);
    if (found == NULL) {
        if (ledger->count == ledger->capacity) {
            forget_one(ledger);
        }
        int32_t at = find(ledger, agent);
        size_t behind = (size_t)(ledger->count - at);
        memmove(ledger->agents + at + 1, ledger->agents + at, behind * sizeof *ledger->agents);
        ledger->count++;
        found = &ledger->agents[at];
        *found = (struct agent){.id = agent};
    }
    if (found->running == 0 && found->served < ledger->floor) {
        found->served = ledger->floor;
    }
    found->running++;
}

void schedule_ledger_leave(struct schedule_ledger *ledger, uint64_t agent) {
    struct agent *found = get(ledger, agent);
    ASSERT(found != NULL && found->running > 0);
    raise_floor(ledger); /* while this one still counts: service before now is settled */
    found->running--;
}

void schedule_ledger_charge(struct schedule_ledger *ledger, uint64_t agent, int64_t rows) {
    struct agent *found = get(ledger, agent);
    ASSERT(found != NULL && found->running > 0 && rows >= 0);
    found->served += rows;
}

int64_t schedule_ledger_served(const struct schedule_ledger *ledger, uint64_t agent) {
    const struct agent *found = get(ledger, agent);
    return found == NULL ? ledger->floor : found->served;
}
