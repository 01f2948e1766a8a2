/* The host of a simulated swarm as an observer sees it: which agents and verifications are at work, what
 * they were promised and what became of their calls and messages. It knows the effects and events only,
 * nothing of the swarm's own state, so a mistake there shows here. */
#ifndef HEARTH_TESTS_SWARM_WORLD_H
#define HEARTH_TESTS_SWARM_WORLD_H

#include "swarm_simulation.h"

#define WORLD_MESSAGES_MAX 4096

struct world_node {
    bool is_started, has_ended, is_cancelled, is_confirmed; /* confirmed: NODE_STARTED was sent */
    int64_t cancel_ms, heard_ms;
    int64_t tokens_max, calls_max; /* allowed in its life */
    int64_t processes_max;         /* that it may hold */
    int64_t tokens, calls;         /* spent */
    bool has_ask, has_waited, is_verified_now, is_merged_now;
    uint64_t ask;
    size_t merge_target;
    uint64_t delivering; /* message on its way, 0: none */
    uint64_t last_message;
    uint64_t last_digest;
    int64_t same_digests;
};

enum world_fate { WORLD_SENT, WORLD_GIVEN, WORLD_CONFIRMED, WORLD_BOUNCED };

struct world_message {
    size_t from, to;
    enum world_fate fate;
};

struct world {
    struct swarm *swarm;
    struct simulation_counts *counts;
    char *problem;
    bool has_problem;
    int64_t now_ms, started_ms;
    struct world_node nodes[SWARM_NODES_MAX];
    struct world_message messages[WORLD_MESSAGES_MAX]; /* by number */
    size_t message_asked_to;                           /* of the SEND that is being asked */
    size_t starts, verifications;
    bool is_ranking, is_finished, was_ending, has_passed, has_parts;
    int64_t rank_tokens_max;
    int64_t tokens;    /* spent in all */
    int64_t overspent; /* beyond what was allowed, by agents that do not keep to it */
    int64_t wake_ms;
    struct buffer scratch;
};

PRINTF_LIKE(2, 3) void world_problem(struct world *world, const char *format, ...);
void world_trace(struct world *world, uint64_t value);
/* Before the swarm sees an event: what the host knows by it. */
void world_event(struct world *world, const struct swarm_event *event);
/* One effect, in order. */
void world_effect(struct world *world, const struct swarm_effect *effect);
/* After all effects of an event. */
void world_settled(struct world *world);

#endif
