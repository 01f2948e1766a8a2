/* When each block of each request is used next: what the ideal order of eviction knows. */
#ifndef HEARTH_TESTS_TRAFFIC_FUTURE_H
#define HEARTH_TESTS_TRAFFIC_FUTURE_H

#include "traffic.h"

#define TRAFFIC_NEVER INT64_MAX

struct traffic_future;

/* Expected errors: MEMORY. */
MUST_CHECK result traffic_future_make(
    struct traffic_future **out, const struct traffic *traffic, struct error *error
);
/* Accepts null. */
void traffic_future_free(struct traffic_future *future);
/* Writes, for each of the `blocks` whole blocks of the request's prompt and output, the number of
 * the next request that starts with it, or TRAFFIC_NEVER. */
void traffic_future_fill(
    const struct traffic_future *future, int32_t request, int32_t blocks, int64_t *next_uses
);

#endif
