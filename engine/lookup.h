/* Drafts from a sequence's own ids: what followed the last time the same tokens stood here.
 *
 * Agents copy: file contents, diffs, arguments of calls. An index over n-grams of the last `window`
 * ids finds earlier places that end as the sequence ends now; the longest agreement wins, then the
 * latest place. Appending, truncating and drafting allocate nothing and take a bounded number of
 * steps, however long the context is. The index never decides what is sampled: verification does.
 * Thread: an index belongs to one thread at a time.
 */
#ifndef HEARTH_ENGINE_LOOKUP_H
#define HEARTH_ENGINE_LOOKUP_H

#include "base/result.h"

#define LOOKUP_DRAFT_MAX  64      /* ids of one draft */
#define LOOKUP_WINDOW_MIN 64      /* ids that an index looks back at */
#define LOOKUP_WINDOW_MAX 4194304 /* the same: 2^22 */
#define LOOKUP_MATCH_MAX  64      /* longest agreement told apart */

struct lookup;

/* Looks back over the last `window` ids (rounded up to a power of two). Expected errors: MEMORY. */
MUST_CHECK result lookup_create(struct lookup **out, int32_t window, struct error *error);
void lookup_destroy(struct lookup *lookup);
/* Bytes that lookup_create takes. */
uint64_t lookup_bytes(int32_t window);

/* The ids that follow; prompts in one call. */
void lookup_append(struct lookup *lookup, const int32_t *ids, int32_t count);
/* Forgets all ids from `length` on (length <= lookup_length). Rejected drafts need not be
 * appended at all: lookup_propose looks, but does not append. Ids that fell out of the window do
 * not come back; when none is left of it, that takes time proportional to the window. */
void lookup_truncate(struct lookup *lookup, int32_t length);
int32_t lookup_length(const struct lookup *lookup);

struct lookup_draft {
    int32_t count; /* 0: nothing found */
    int32_t
        matched; /* ids that agree before the draft, up to LOOKUP_MATCH_MAX: how far to trust it */
    int32_t ids[LOOKUP_DRAFT_MAX];
};

/* The best continuation of at most `draft_max` (1 to LOOKUP_DRAFT_MAX) ids. A draft that reaches
 * the end of the sequence goes on with its own beginning, as a repetition would. */
void lookup_propose(const struct lookup *lookup, int32_t draft_max, struct lookup_draft *out);

#endif
