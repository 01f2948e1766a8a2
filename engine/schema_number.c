/* Numbers within bounds, as digits. A range of numbers with equally many digits is followed digit
 * by digit: as long as the digits equal those of a bound the next one is limited by it. */
#include "schema_internal.h"

#define FRACTION_DIGITS 17

result schema_choose(struct schema_choice *choice, uint32_t node, struct error *error) {
    if (choice->has_any) {
        return grammar_add_fork(choice->grammar, choice->node, node, &choice->node, error);
    }
    choice->node = node;
    choice->has_any = true;
    return OK;
}

static result
choose_digits(struct schema_choice *choice, int low, int high, uint32_t next, struct error *error) {
    if (low > high) {
        return OK;
    }
    uint32_t node = 0;
    unsigned first = (unsigned)('0' + low);
    unsigned last = (unsigned)('0' + high);
    TRY(grammar_add_range(choice->grammar, first, last, next, &node, error));
    return schema_choose(choice, node, error);
}

/* Nodes by which bounds still hold. */
struct tight {
    uint32_t none, low, high, both;
};

static result
add_digit(struct grammar *grammar, int low, int high, struct tight *at, struct error *error) {
    struct schema_choice none = {.grammar = grammar};
    struct schema_choice above = none;
    struct schema_choice below = none;
    struct schema_choice both = none;
    TRY(choose_digits(&none, 0, 9, at->none, error));
    TRY(choose_digits(&above, low, low, at->low, error));
    TRY(choose_digits(&above, low + 1, 9, at->none, error));
    TRY(choose_digits(&below, high, high, at->high, error));
    TRY(choose_digits(&below, 0, high - 1, at->none, error));
    if (low == high) {
        TRY(choose_digits(&both, low, low, at->both, error));
    } else {
        // low > high only where an earlier digit has already decided: then it is never entered.
        TRY(choose_digits(&both, low, low, at->low, error));
        TRY(choose_digits(&both, low + 1, high - 1, at->none, error));
        TRY(choose_digits(&both, high, high, at->high, error));
    }
    *at = (struct tight){none.node, above.node, below.node, both.node};
    return OK;
}

/* Numbers of `digits` digits from low to high. */
static result choose_equal_length(
    struct schema_choice *choice,
    int64_t low,
    int64_t high,
    int digits,
    uint32_t next,
    struct error *error
) {
    struct tight at = {next, next, next, next};
    for (int i = 0; i < digits; i++) {
        TRY(add_digit(choice->grammar, (int)(low % 10), (int)(high % 10), &at, error));
        low /= 10;
        high /= 10;
    }
    return schema_choose(choice, at.both, error);
}

/* Whole numbers without sign. */
static result choose_whole(
    struct schema_choice *choice, int64_t low, int64_t high, uint32_t next, struct error *error
) {
    ASSERT(low >= 0 && high <= SCHEMA_NUMBER_MAX);
    int64_t first = 0;
    int64_t last = 9;
    for (int digits = 1; digits <= GRAMMAR_NUMBER_DIGITS; digits++) {
        int64_t from = low > first ? low : first;
        int64_t to = high < last ? high : last;
        if (from <= to) {
            TRY(choose_equal_length(choice, from, to, digits, next, error));
        }
        first = last + 1;
        last = digits < GRAMMAR_NUMBER_DIGITS ? last * 10 + 9 : last;
    }
    return OK;
}

/* ---- fractions ---- */

/* A point and digits; with `is_positive` not all of them 0. */
static result add_fraction(
    struct grammar *grammar, bool is_positive, uint32_t next, uint32_t *out, struct error *error
) {
    uint32_t zeros = 0; // after digits that were all 0; set below before it is used
    uint32_t more = 0;
    for (int left = 0; left < FRACTION_DIGITS; left++) {
        struct schema_choice zero = {.grammar = grammar};
        if (left == 0) {
            TRY(choose_digits(&zero, 1, 9, next, error));
            TRY(grammar_add_range(grammar, '0', '9', next, &more, error));
        } else {
            uint32_t after = 0;
            TRY(grammar_add_fork(grammar, next, more, &after, error));
            TRY(choose_digits(&zero, 1, 9, after, error));
            TRY(choose_digits(&zero, 0, 0, zeros, error));
            TRY(grammar_add_range(grammar, '0', '9', after, &more, error));
        }
        zeros = zero.node;
    }
    return grammar_add_range(grammar, '.', '.', is_positive ? zeros : more, out, error);
}

/* Decimal numbers without sign. */
static result choose_decimal(
    struct schema_choice *choice,
    const struct schema_bounds *bounds,
    uint32_t next,
    struct error *error
) {
    struct grammar *grammar = choice->grammar;
    int64_t low = bounds->low;
    int64_t high = bounds->high;
    ASSERT(low >= 0);
    if (low > high || (low == high && (bounds->low_is_open || bounds->high_is_open))) {
        return OK;
    }
    uint32_t node = 0;
    if (low < high) {
        TRY(add_fraction(grammar, true, next, &node, error));
        if (bounds->low_is_open) {
            TRY(choose_whole(choice, low, low, node, error));
        }
        TRY(add_fraction(grammar, false, next, &node, error));
        TRY(grammar_add_fork(grammar, next, node, &node, error));
        int64_t from = bounds->low_is_open ? low + 1 : low;
        if (from <= high - 1) {
            TRY(choose_whole(choice, from, high - 1, node, error));
        }
    }
    if (!bounds->high_is_open) {
        TRY(grammar_add_literal(grammar, view_of_text(".0"), next, &node, error));
        TRY(grammar_add_fork(grammar, next, node, &node, error));
        TRY(choose_whole(choice, high, high, node, error));
    }
    return OK;
}

/* ---- signs ---- */

static result choose_unsigned(
    struct schema_choice *choice,
    const struct schema_bounds *bounds,
    bool is_whole,
    uint32_t next,
    struct error *error
) {
    if (!is_whole) {
        return choose_decimal(choice, bounds, next, error);
    }
    int64_t low = bounds->low + (bounds->low_is_open ? 1 : 0);
    int64_t high = bounds->high - (bounds->high_is_open ? 1 : 0);
    return low <= high ? choose_whole(choice, low, high, next, error) : OK;
}

result schema_add_bounded(
    struct grammar *grammar,
    const struct schema_bounds *bounds,
    bool is_whole,
    uint32_t next,
    uint32_t *out,
    bool *is_empty,
    struct error *error
) {
    ASSERT(bounds->low >= -SCHEMA_NUMBER_MAX && bounds->high <= SCHEMA_NUMBER_MAX);
    struct schema_choice choice = {.grammar = grammar};
    if (bounds->high >= 0) {
        struct schema_bounds part = *bounds;
        part.low = bounds->low < 0 ? 0 : bounds->low;
        part.low_is_open = bounds->low < 0 ? false : bounds->low_is_open;
        TRY(choose_unsigned(&choice, &part, is_whole, next, error));
    }
    if (bounds->low < 0) { // "-0" is left out
        bool reaches_zero = bounds->high >= 0;
        struct schema_bounds part = {
            .low = reaches_zero ? 0 : -bounds->high,
            .high = -bounds->low,
            .low_is_open = reaches_zero || bounds->high_is_open,
            .high_is_open = bounds->low_is_open};
        struct schema_choice negative = {.grammar = grammar};
        TRY(choose_unsigned(&negative, &part, is_whole, next, error));
        if (negative.has_any) {
            uint32_t node = 0;
            TRY(grammar_add_range(grammar, '-', '-', negative.node, &node, error));
            TRY(schema_choose(&choice, node, error));
        }
    }
    *is_empty = !choice.has_any;
    if (choice.has_any) {
        *out = choice.node;
    }
    return OK;
}
