/* An index of n-grams over a ring of ids. See lookup.h.
 *
 * For each length of n-gram a table of heads (by hash) leads to the latest place, and links from
 * there to earlier ones. Every candidate is compared, so a stale link or two n-grams with one hash
 * cost a comparison, never a wrong answer.
 */
#include "lookup.h"

#define LEVELS     2
#define CANDIDATES 24 /* looked at for each length of n-gram */

/* Longest first: what agrees in many ids is worth more than what agrees in few, and is found
 * there even when the short n-gram is everywhere. Measured on a recorded session (111,000 ids
 * written by a model, context 225,000; drafts of 8), tokens per step: {2} alone 3.46, {3} 3.10,
 * {4} 2.81, {8, 3} 3.14, {8, 2} 3.52, {16, 6, 2} 3.54; with 1, 8, 24, 64 candidates {8, 2} gives
 * 3.39, 3.50, 3.52, 3.53. */
static const int32_t grams[LEVELS] = {8, 2};

struct lookup {
    int32_t window; /* a power of two */
    int32_t length; /* ids appended */
    int32_t first;  /* oldest id that the ring still holds */
    int32_t *ids;   /* [window], id of position p at p & (window - 1) */
    /* Places are 1 + position of the last id of an n-gram; 0: none. */
    int32_t *heads; /* [LEVELS, window] */
    int32_t *links; /* [LEVELS, window]: the place before, of the n-gram that ends at p */
};

static int32_t round_up(int32_t window) {
    ASSERT(window <= LOOKUP_WINDOW_MAX);
    int32_t rounded = LOOKUP_WINDOW_MIN;
    while (rounded < window) {
        rounded *= 2;
    }
    return rounded;
}

uint64_t lookup_bytes(int32_t window) {
    return sizeof(struct lookup) + (uint64_t)round_up(window) * (1 + 2 * LEVELS) * sizeof(int32_t);
}

result lookup_create(struct lookup **out, int32_t window, struct error *error) {
    int32_t rounded = round_up(window);
    struct lookup *lookup = calloc(1, sizeof *lookup);
    int32_t *tables = calloc((size_t)rounded * (1 + 2 * LEVELS), sizeof *tables);
    if (lookup == NULL || tables == NULL) {
        free(lookup);
        free(tables);
        FAIL(error, MEMORY, "no memory for an index over %d ids", rounded);
    }
    lookup->window = rounded;
    lookup->ids = tables;
    lookup->heads = lookup->ids + rounded;
    lookup->links = lookup->heads + (size_t)LEVELS * (size_t)rounded;
    *out = lookup;
    return OK;
}

void lookup_destroy(struct lookup *lookup) {
    if (lookup != NULL) {
        free(lookup->ids);
        free(lookup);
    }
}

static void clear(struct lookup *lookup) {
    lookup->length = 0;
    lookup->first = 0;
    memset(lookup->heads, 0, (size_t)lookup->window * LEVELS * sizeof *lookup->heads);
}

int32_t lookup_length(const struct lookup *lookup) {
    return lookup->length;
}

static int32_t id_at(const struct lookup *lookup, int32_t position) {
    return lookup->ids[position & (lookup->window - 1)];
}

/* Bucket of the n-gram that ends at `position`. */
static int32_t *head_of(const struct lookup *lookup, int32_t level, int32_t position) {
    uint64_t hash = 0;
    for (int32_t i = 0; i < grams[level]; i++) {
        hash = (hash + (uint32_t)id_at(lookup, position - i) + 1) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 29;
    }
    size_t bucket = (size_t)(hash >> 20) & (size_t)(lookup->window - 1);
    return lookup->heads + (size_t)level * (size_t)lookup->window + bucket;
}

static int32_t *link_of(const struct lookup *lookup, int32_t level, int32_t position) {
    size_t slot = (size_t)(position & (lookup->window - 1));
    return lookup->links + (size_t)level * (size_t)lookup->window + slot;
}

static bool has_gram(const struct lookup *lookup, int32_t level, int32_t position) {
    return position - grams[level] + 1 >= lookup->first;
}

void lookup_append(struct lookup *lookup, const int32_t *ids, int32_t count) {
    ASSERT(count >= 0 && count <= INT32_MAX - 1 - lookup->length);
    for (int32_t i = 0; i < count; i++) {
        int32_t position = lookup->length++;
        if (lookup->length - lookup->first > lookup->window) {
            lookup->first = lookup->length - lookup->window;
        }
        lookup->ids[position & (lookup->window - 1)] = ids[i];
        for (int32_t level = 0; level < LEVELS; level++) {
            if (has_gram(lookup, level, position)) {
                int32_t *head = head_of(lookup, level, position);
                *link_of(lookup, level, position) = *head;
                *head = position + 1;
            }
        }
    }
}

/* The latest place of its n-gram goes; that before takes over. */
static void unlink_gram(struct lookup *lookup, int32_t level, int32_t position) {
    if (has_gram(lookup, level, position)) {
        int32_t *head = head_of(lookup, level, position);
        if (*head == position + 1) {
            *head = *link_of(lookup, level, position);
        }
    }
}

void lookup_truncate(struct lookup *lookup, int32_t length) {
    ASSERT(length >= 0 && length <= lookup->length);
    if (length <= lookup->first) {
        clear(lookup);
        lookup->length = length;
        lookup->first = length;
        return;
    }
    for (int32_t position = lookup->length - 1; position >= length; position--) {
        for (int32_t level = 0; level < LEVELS; level++) {
            unlink_gram(lookup, level, position);
        }
    }
    lookup->length = length;
}

/* Ids that agree before and at `place`, counted from its last one. */
static int32_t agreement(const struct lookup *lookup, int32_t position) {
    int32_t last = lookup->length - 1;
    int32_t most = position - lookup->first + 1;
    most = most > LOOKUP_MATCH_MAX ? LOOKUP_MATCH_MAX : most;
    int32_t count = 0;
    while (count < most && id_at(lookup, position - count) == id_at(lookup, last - count)) {
        count++;
    }
    return count;
}

/* Latest of the places with the longest agreement among the candidates of that level. */
static int32_t find(const struct lookup *lookup, int32_t level, int32_t *matched) {
    int32_t last = lookup->length - 1;
    int32_t best = -1;
    *matched = grams[level] - 1;
    if (!has_gram(lookup, level, last)) {
        return best;
    }
    int32_t place = *link_of(lookup, level, last);
    int32_t before = last;
    for (int32_t i = 0; i < CANDIDATES && *matched < LOOKUP_MATCH_MAX; i++) {
        int32_t position = place - 1;
        /* Links lead back; one that does not is stale. */
        if (position < lookup->first || position >= before) {
            break;
        }
        int32_t count = agreement(lookup, position);
        if (count > *matched) {
            *matched = count;
            best = position;
        }
        before = position;
        place = *link_of(lookup, level, position);
    }
    return best;
}

void lookup_propose(const struct lookup *lookup, int32_t draft_max, struct lookup_draft *out) {
    ASSERT(draft_max >= 1 && draft_max <= LOOKUP_DRAFT_MAX);
    out->count = 0;
    out->matched = 0;
    for (int32_t level = 0; level < LEVELS && lookup->length > 0; level++) {
        int32_t matched = 0;
        int32_t position = find(lookup, level, &matched);
        if (position >= 0) {
            int32_t behind = lookup->length - 1 - position; /* ids from there to the end */
            for (int32_t i = 0; i < draft_max; i++) {
                out->ids[i] = i < behind ? id_at(lookup, position + 1 + i) : out->ids[i - behind];
            }
            out->count = draft_max;
            out->matched = matched;
            return;
        }
    }
}
