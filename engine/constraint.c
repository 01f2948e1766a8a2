/* A counted reference to the grammar of a turn. */
#include "constraint.h"

#include <stdatomic.h>

#include "chat_grammar.h"

struct constraint {
    /* Owners; the last one frees. Relaxed on acquire, since the caller holds one; acquire-release on
     * release, so that the freeing thread sees what the others did. */
    atomic_uint references;
    struct grammar *grammar;
};

result constraint_create(
    struct constraint **out,
    const struct grammar_vocabulary *vocabulary,
    const struct constraint_options *options,
    struct error *error
) {
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    TRY(chat_grammar_create(&grammar, vocabulary, options, error));
    struct constraint *constraint = calloc(1, sizeof *constraint);
    if (constraint == NULL) {
        FAIL(error, MEMORY, "no memory for a constraint");
    }
    atomic_init(&constraint->references, 1);
    constraint->grammar = TAKE(grammar);
    *out = constraint;
    return OK;
}

struct constraint *constraint_acquire(struct constraint *constraint) {
    unsigned before = atomic_fetch_add_explicit(&constraint->references, 1, memory_order_relaxed);
    ASSERT(before > 0 && before < UINT32_MAX);
    return constraint;
}

void constraint_release(struct constraint *constraint) {
    if (constraint == NULL) {
        return;
    }
    unsigned before = atomic_fetch_sub_explicit(&constraint->references, 1, memory_order_acq_rel);
    ASSERT(before > 0);
    if (before == 1) {
        grammar_destroy(constraint->grammar);
        free(constraint);
    }
}

void constraint_cleanup(struct constraint **constraint) {
    constraint_release(*constraint);
}

uint32_t constraint_start(const struct constraint *constraint) {
    return grammar_start(constraint->grammar);
}

result constraint_mask(
    struct constraint *constraint, uint32_t state, const uint64_t **out, struct error *error
) {
    return grammar_mask(constraint->grammar, state, out, error);
}

result constraint_advance(
    struct constraint *constraint, uint32_t *state, int32_t id, struct error *error
) {
    return grammar_advance(constraint->grammar, state, id, error);
}

bool constraint_may_end(const struct constraint *constraint, uint32_t state) {
    return grammar_may_end(constraint->grammar, state);
}

size_t constraint_bytes(const struct constraint *constraint) {
    struct grammar_facts facts;
    grammar_facts(constraint->grammar, &facts);
    return sizeof *constraint + facts.bytes;
}
