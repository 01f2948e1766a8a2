/* A scripted engine with many sequences that write beside each other, one token each in turn, for tests of many runs
 * in one loop. */
#ifndef HEARTH_TESTS_CROWD_ENGINE_H
#define HEARTH_TESTS_CROWD_ENGINE_H

#include "runtime_support.h"

struct crowd_engine;

/* `loop` is woken from the engine's own thread. */
struct crowd_engine *crowd_engine_create(struct loop *loop, const struct tokenizer *tokenizer);
void crowd_engine_destroy(struct crowd_engine *engine);
struct engine_ports crowd_engine_ports(struct crowd_engine *engine);
/* A sequence that writes these turns, the last one again and again. Of a turn, text, is_endless, fails and reason
 * count. */
uint64_t
crowd_engine_add(struct crowd_engine *engine, const struct fake_turn *turns, size_t turn_count);
/* One that goes on from another, as it is now. */
uint64_t crowd_engine_fork(
    struct crowd_engine *engine, uint64_t parent, const struct fake_turn *turns, size_t turn_count
);
/* The next sequence that a run makes itself, for a compaction, goes on with the turns of this one. */
void crowd_engine_next_create(struct crowd_engine *engine, uint64_t sequence);
/* Tokens that were appended to it in all, and that it holds. */
int64_t crowd_engine_appended(const struct crowd_engine *engine, uint64_t sequence);
int32_t crowd_engine_length(struct crowd_engine *engine, uint64_t sequence);
/* How often a sequence was told that it is finished or abandoned. */
int crowd_engine_ends(const struct crowd_engine *engine, uint64_t sequence);

#endif
