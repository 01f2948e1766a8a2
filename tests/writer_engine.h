/* A scripted engine for tests of swarms: any number of sequences that fork, and a function that says what each of
 * them writes, by what it was asked. */
#ifndef HEARTH_TESTS_WRITER_ENGINE_H
#define HEARTH_TESTS_WRITER_ENGINE_H

#include "runtime_support.h"

struct writer_engine;

struct writer_prompt {
    uint64_t sequence;
    const char *text;  /* appended now, markers spelled out */
    const char *first; /* appended first since the sequence was made: what its agent was asked */
    int generation;    /* of this sequence, from 0 */
};
/* What is written, markers spelled out. Thread: that of generate. */
typedef struct fake_turn writer_engine_write(void *context, const struct writer_prompt *prompt);

struct writer_engine *writer_engine_create(
    struct loop *loop, const struct tokenizer *tokenizer, writer_engine_write *write, void *context
);
/* Asserts that nothing is generated any more. */
void writer_engine_destroy(struct writer_engine *engine);
struct engine_ports writer_engine_ports(struct writer_engine *engine);
/* What runs fails, and whatever is asked later. */
void writer_engine_lose(struct writer_engine *engine);
void writer_engine_lose_soon(struct writer_engine *engine); /* the same, for the writing function */
/* Forks fail from then on, as where there are too many sequences. */
void writer_engine_refuse_forks(struct writer_engine *engine);
int writer_engine_open(struct writer_engine *engine); /* sequences that are not destroyed */
int writer_engine_cancelled(const struct writer_engine *engine); /* generations cut in the middle */
int64_t writer_engine_appended(const struct writer_engine *engine); /* tokens, of all */

#endif
