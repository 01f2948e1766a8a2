/* Each allocation of compiling a constraint and of its use fails once: the call says MEMORY, or is
 * not disturbed, and the constraint stays usable. Leaks are the sanitizer build's to find. */
#include "engine/chat.h"
#include "engine/constraint.h"
#include "engine/grammar_vocabulary.h"
#include "failing_memory.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ALLOCATIONS_MAX 5000
#define CONTROL         256 /* first control token */

static const char *const controls[] = {"<｜end▁of▁sentence｜>", "</think>", "｜DSML｜"};
static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"pattern\": "
    "\"^[a-z]{2,4}$\"}, \"b\": {\"enum\": [1, \"x\"]}, \"c\": {\"$ref\": \"#/$defs/c\"}}, "
    "\"$defs\": "
    "{\"c\": {\"type\": \"array\", \"items\": {}}}, \"required\": [\"a\"]}";

static result make_vocabulary(struct grammar_vocabulary **out, struct error *error) {
    static unsigned char bytes[256];
    struct grammar_token tokens[CONTROL + COUNT_OF(controls)];
    for (size_t i = 0; i < COUNT_OF(tokens); i++) {
        bytes[i % 256] = (unsigned char)(i % 256);
        bool is_control = i >= CONTROL;
        tokens[i].bytes = is_control ? view_of_text(controls[i - CONTROL]) : view_of(&bytes[i], 1);
        tokens[i].is_control = is_control;
    }
    return grammar_vocabulary_create_from(out, tokens, COUNT_OF(tokens), error);
}

static result make_constraint(
    struct constraint **out, const struct grammar_vocabulary *vocabulary, struct error *error
) {
    struct chat_tool tool = {.name = view_of_text("f"), .parameters = view_of_text(schema)};
    struct constraint_options options = {
        .tools = &tool, .tool_count = 1, .choice = CONSTRAINT_TOOLS_REQUIRED};
    return constraint_create(out, vocabulary, &options, error);
}

static void creation_without_memory_says_so_and_leaves_nothing(void **state) {
    (void)state;
    struct error error = {0};
    size_t nth = 1;
    for (; nth < ALLOCATIONS_MAX; nth++) {
        CLEANUP(grammar_vocabulary_cleanup) struct grammar_vocabulary *vocabulary = NULL;
        CLEANUP(constraint_cleanup) struct constraint *constraint = NULL;
        failing_memory_arm(nth);
        result status = make_vocabulary(&vocabulary, &error);
        if (is_ok(status)) {
            status = make_constraint(&constraint, vocabulary, &error);
        }
        bool has_fired = failing_memory_fired();
        failing_memory_arm(0);
        assert_true(is_ok(status) || status.code == RESULT_MEMORY);
        assert_true(is_ok(status) == (constraint != NULL));
        if (!has_fired) {
            break;
        }
    }
    assert_true(nth > 30 && nth < ALLOCATIONS_MAX);
}

/* The first allowed token after `from`, so that walks differ. */
static int32_t first_allowed(const uint64_t *mask, size_t ids, size_t from) {
    for (size_t i = 0; i < ids; i++) {
        size_t id = (from + i) % ids;
        if ((mask[id / 64] >> (id % 64) & 1U) != 0) {
            return (int32_t)id;
        }
    }
    return -1;
}

static void use_without_memory_says_so_and_goes_on(void **state) {
    (void)state;
    struct error error = {0};
    CLEANUP(grammar_vocabulary_cleanup) struct grammar_vocabulary *vocabulary = NULL;
    assert_true(is_ok(make_vocabulary(&vocabulary, &error)));
    size_t failures = 0;
    for (size_t nth = 1; nth <= 60; nth++) {
        CLEANUP(constraint_cleanup) struct constraint *constraint = NULL;
        assert_true(is_ok(make_constraint(&constraint, vocabulary, &error)));
        uint32_t at = constraint_start(constraint);
        failing_memory_arm(nth);
        for (size_t step = 0; step < 150; step++) {
            const uint64_t *mask = NULL;
            uint32_t before = at;
            result status = constraint_mask(constraint, at, &mask, &error);
            if (is_failed(status)) {
                assert_int_equal(status.code, RESULT_MEMORY);
                failures += 1;
                assert_true(is_ok(constraint_mask(constraint, at, &mask, &error)));
            }
            int32_t id = first_allowed(mask, grammar_vocabulary_ids(vocabulary), step * 37);
            assert_true(id >= 0);
            status = constraint_advance(constraint, &at, id, &error);
            if (is_failed(status)) {
                assert_int_equal(status.code, RESULT_MEMORY);
                assert_int_equal(at, before);
                failures += 1;
                assert_true(is_ok(constraint_advance(constraint, &at, id, &error)));
            }
            if (id == CONTROL) { // the end
                break;
            }
        }
        failing_memory_arm(0);
    }
    assert_true(failures > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_without_memory_says_so_and_leaves_nothing),
        cmocka_unit_test(use_without_memory_says_so_and_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
