/* An engine that plays a script: what each generation writes is given, the program around it is the
 * real one. Behind run_engine_use() it drives `hearth run` whole, without a model's weights.
 *
 * The script is JSON: {"turns": [TURN...], "context_max": N, "delay_us": N, "other_context_max": N of models that are
 * opened beside the first}. A TURN is an object of
 *
 *     "thinking", "text"  what the model writes before and behind the end of its thinking
 *     "calls"             [{"name": "shell", "arguments": {"command": "ls"}}...]
 *     "raw"               instead of these: tokens as text, with their markers
 *     "wait_ms"           before the first token; "delay_us" before each (else the script's)
 *     "repeat": true      goes round and round in its last token until it is stopped
 *     "end"               "end" (default), "length", "context", "stop", "loop", "thinking", "open_call"
 *     "fail"              a message: the generation fails with it after what it writes
 *     "fork": true        this turn is for a fork, and other generations pass over it
 *     "agent": N          this turn is for the Nth fork of what is no fork itself (of a swarm's root), from 1
 *
 * Generations take the turns in order; behind the last one each writes SCRIPTED_LAST_TEXT. It holds
 * the token ids of each sequence, forks included, and can write every context before it is
 * generated from, one line of ids each, to a file: so tests see what the model sees.
 */
#ifndef HEARTH_TESTS_SCRIPTED_ENGINE_H
#define HEARTH_TESTS_SCRIPTED_ENGINE_H

#include "runtime/run_engine.h"

#define SCRIPTED_LAST_TEXT "The script has ended."

struct scripted_engine;

/* `log_path` null: contexts are not written. Expected errors: INVALID_INPUT (names what is wrong with
 * the script), IO, MEMORY. */
MUST_CHECK result scripted_engine_create(
    struct scripted_engine **out, struct view script, const char *log_path, struct error *error
);
/* After run_engine_close. */
void scripted_engine_destroy(struct scripted_engine *engine);
/* For run_engine_use; borrowed from the engine. */
const struct run_engine *scripted_engine_run(struct scripted_engine *engine);

#endif
