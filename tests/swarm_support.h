/* A swarm in a test's hands: events by one call each, and what came out of the last one. */
#ifndef HEARTH_TESTS_SWARM_SUPPORT_H
#define HEARTH_TESTS_SWARM_SUPPORT_H

#include "runtime/strategy.h"
#include "runtime/swarm.h"

struct desk {
    struct swarm *swarm;
    struct swarm_effects effects; /* of the last event */
    int64_t now_ms;
    uint64_t call;
    struct buffer text;
};

/* With a task, a strategy by name and nothing else. */
struct swarm_options desk_options(const char *strategy);
/* Creates it and starts it at 1,000 ms. */
void desk_open(struct desk *desk, const struct swarm_options *options);
void desk_close(struct desk *desk);

void desk_event(
    struct desk *desk, struct swarm_event event
);                                               /* at desk->now_ms; swarm_check holds */
void desk_at(struct desk *desk, int64_t now_ms); /* TIME */
void desk_started(struct desk *desk, size_t node);
void desk_start_all(struct desk *desk); /* NODE_STARTED for all that were asked for */
void desk_turn(struct desk *desk, size_t node, int64_t tokens, uint64_t digest);
/* With a commit of so many lines; 0: without. */
void desk_ended(
    struct desk *desk, size_t node, enum swarm_end end, const char *text, int64_t lines
);
void desk_verified(struct desk *desk, size_t node, enum swarm_verdict verdict);
void desk_merged(struct desk *desk, size_t node, enum swarm_merge merge);
void desk_asked(struct desk *desk, size_t node, struct swarm_ask ask); /* the number is filled in */

/* The nth effect of that type of the last event, from 0; null: there are fewer. */
const struct swarm_effect *
desk_effect(const struct desk *desk, enum swarm_effect_type type, size_t nth);
/* The same that is for `node`. */
const struct swarm_effect *
desk_effect_for(const struct desk *desk, enum swarm_effect_type type, size_t node);
size_t desk_count(const struct desk *desk, enum swarm_effect_type type);
/* The answer to node's call, as a text; fails the test when there is none. */
const char *desk_answer(struct desk *desk, size_t node);
const struct swarm_node *desk_node(const struct desk *desk, size_t node);

#endif
