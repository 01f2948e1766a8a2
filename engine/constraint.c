/* Not there yet: the grammar of a turn. */
#include "constraint.h"

result constraint_create(
    struct constraint **out,
    const struct grammar_vocabulary *vocabulary,
    const struct constraint_options *options,
    struct error *error
) {
    (void)out;
    (void)vocabulary;
    (void)options;
    FAIL(error, UNSUPPORTED, "constrained output is not there yet");
}

struct constraint *constraint_acquire(struct constraint *constraint) {
    return constraint;
}

void constraint_release(struct constraint *constraint) {
    ASSERT(constraint == NULL);
}

void constraint_cleanup(struct constraint **constraint) {
    constraint_release(*constraint);
}

uint32_t constraint_start(const struct constraint *constraint) {
    ASSERT(constraint != NULL);
    return 0;
}

result constraint_mask(
    struct constraint *constraint, uint32_t state, const uint64_t **out, struct error *error
) {
    (void)constraint;
    (void)out;
    FAIL(error, UNSUPPORTED, "constrained output is not there yet (state %u)", state);
}

result constraint_advance(
    struct constraint *constraint, uint32_t *state, int32_t id, struct error *error
) {
    (void)constraint;
    (void)state;
    FAIL(error, UNSUPPORTED, "constrained output is not there yet (token %d)", id);
}

bool constraint_may_end(const struct constraint *constraint, uint32_t state) {
    (void)constraint;
    return state != 0;
}

size_t constraint_bytes(const struct constraint *constraint) {
    ASSERT(constraint != NULL);
    return 0;
}
