/* Opening an engine while the nth allocation fails: an error each time, nothing left behind (the leak
 * sanitizer watches), and it opens when memory is back. */
#include "engine/engine.h"
#include "failing_memory.h"
#include "test_safetensors.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ALLOCATIONS_MAX 200000

static void open_survives_any_failed_allocation(void **state) {
    (void)state;
    char path[TEST_PATH_MAX];
    assert_true(test_data_find(path, "golden/tiny-a/config.json"));
    path[strlen(path) - strlen("/config.json")] = '\0';
    struct engine_options options = {
        .model_directory = path, .threads = 1, .context_max = 64, .step_rows_max = 8};
    bool fired = true;
    size_t tried = 0;
    /* Steps grow: the tokenizer allocates thousands of small pieces by the same few lines. */
    for (size_t nth = 1; fired && nth < ALLOCATIONS_MAX; nth += 1 + nth / 12) {
        struct engine *engine = NULL;
        struct error error = {0};
        failing_memory_arm(nth);
        result opened = engine_open(&options, &engine, &error);
        fired = failing_memory_fired();
        failing_memory_arm(0);
        /* Where memory is only a convenience, it may open all the same. */
        assert_true(is_ok(opened) == (engine != NULL));
        if (is_failed(opened)) {
            assert_true(fired);
            assert_true(error.message[0] != '\0');
        }
        engine_close(engine);
        tried++;
    }
    assert_false(fired);
    print_message("%zu failed allocations tried\n", tried);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
