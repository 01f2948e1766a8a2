/* Next uses of blocks, found by walking the day backwards. See traffic_future.h. */
#include "traffic_future.h"

#include "kernels/formats.h"

/* Neighbouring blocks mostly have the same next use: stored as runs. */
struct run {
    int32_t end; /* block after its last */
    int32_t next;
};

struct slot {
    uint64_t key; /* 0: free */
    int32_t next;
};

struct traffic_future {
    int64_t *starts; /* [requests] of its runs; they end with the block count */
    struct run *runs;
    int64_t run_count, runs_max;
    struct slot *slots; /* while it is made */
    uint64_t mask;
    uint64_t used;
};

void traffic_future_free(struct traffic_future *future) {
    if (future != NULL) {
        free(future->slots);
        free(future->runs);
        free(future->starts);
        free(future);
    }
}

static struct slot *find(const struct traffic_future *future, uint64_t key) {
    uint64_t at = key & future->mask;
    while (future->slots[at].key != 0 && future->slots[at].key != key) {
        at = (at + 1) & future->mask;
    }
    return &future->slots[at];
}

static bool grow_slots(struct traffic_future *future) {
    struct slot *old = future->slots;
    uint64_t count = old == NULL ? 0 : future->mask + 1;
    uint64_t more = count == 0 ? 65536 : count * 2;
    future->slots = calloc(more, sizeof *future->slots);
    if (future->slots == NULL) {
        future->slots = old;
        return false;
    }
    future->mask = more - 1;
    for (uint64_t i = 0; i < count; i++) {
        if (old[i].key != 0) {
            *find(future, old[i].key) = old[i];
        }
    }
    free(old);
    return true;
}

static bool add_run(struct traffic_future *future, struct run run) {
    if (future->run_count == future->runs_max) {
        int64_t more = future->runs_max == 0 ? 65536 : future->runs_max * 2;
        struct run *grown = realloc(future->runs, (size_t)more * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        future->runs = grown;
        future->runs_max = more;
    }
    future->runs[future->run_count++] = run;
    return true;
}

/* Files the runs of a request's path and makes it the next use of its blocks. */
static bool
walk_path(struct traffic_future *future, int32_t request, const uint64_t *keys, int32_t count) {
    struct run run = {.next = INT32_MAX};
    future->starts[request] = future->run_count;
    for (int32_t i = 0; i < count; i++) {
        if (future->used * 2 > future->mask && !grow_slots(future)) {
            return false;
        }
        struct slot *slot = find(future, keys[i]);
        int32_t next = slot->key == 0 ? INT32_MAX : slot->next;
        if (i > 0 && next != run.next && !add_run(future, run)) {
            return false;
        }
        run = (struct run){.end = i + 1, .next = next};
        future->used += slot->key == 0;
        *slot = (struct slot){.key = keys[i], .next = request};
    }
    return count == 0 || add_run(future, run);
}

static bool walk_day(
    struct traffic_future *future, const struct traffic *traffic, int32_t *tokens, uint64_t *keys
) {
    bool goes_on = grow_slots(future);
    for (int32_t i = traffic->request_count - 1; i >= 0 && goes_on; i--) {
        int32_t piece = traffic->requests[i].output;
        int32_t count = traffic_count(traffic, piece) / KV_BLOCK_TOKENS;
        traffic_fill(traffic, piece, 0, tokens);
        traffic_keys(tokens, 0, count, keys);
        goes_on = walk_path(future, i, keys, count);
    }
    return goes_on;
}

result traffic_future_make(
    struct traffic_future **out, const struct traffic *traffic, struct error *error
) {
    size_t blocks = (size_t)(traffic->tokens_max / KV_BLOCK_TOKENS) + 1;
    CLEANUP(free_cleanup) int32_t *tokens = calloc(blocks * KV_BLOCK_TOKENS, sizeof *tokens);
    CLEANUP(free_cleanup) uint64_t *keys = calloc(blocks, sizeof *keys);
    struct traffic_future *future = calloc(1, sizeof *future);
    bool is_done = tokens != NULL && keys != NULL && future != NULL;
    if (is_done) {
        future->starts = calloc((size_t)traffic->request_count, sizeof *future->starts);
        is_done = future->starts != NULL && walk_day(future, traffic, tokens, keys);
    }
    if (!is_done) {
        traffic_future_free(future);
        FAIL(error, MEMORY, "no memory for the future of %d requests", traffic->request_count);
    }
    free(TAKE(future->slots));
    *out = future;
    return OK;
}

void traffic_future_fill(
    const struct traffic_future *future, int32_t request, int32_t blocks, int64_t *next_uses
) {
    const struct run *run = blocks > 0 ? &future->runs[future->starts[request]] : NULL;
    for (int32_t i = 0; i < blocks; i++) {
        if (i == run->end) {
            run++;
        }
        next_uses[i] = run->next == INT32_MAX ? TRAFFIC_NEVER : run->next;
    }
}
