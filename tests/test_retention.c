/* What the snapshots of all workspaces take, where memory fails. */
#include "failing_memory.h"
#include "runtime/retention.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define STORES 5

/* A state directory with snapshots of some workspaces, whose sizes are known. */
static void make_state(char *state, size_t bytes) {
    char command[512];
    (void)snprintf(state, bytes, "/tmp/hearth-retention-XXXXXX");
    assert_non_null(mkdtemp(state));
    for (int i = 0; i < STORES; i++) {
        (void)snprintf(
            command,
            sizeof command,
            "mkdir -p %s/snapshots/%016x && git init -q --bare %s/snapshots/%016x",
            state,
            i,
            state,
            i
        );
        assert_int_equal(system(command), 0);
    }
}

static void memory_that_fails_is_no_limit(void **unused) {
    (void)unused;
    char state[64];
    make_state(state, sizeof state);
    bool is_done = false;
    size_t failures = 0;
    for (size_t nth = 1; !is_done; nth++) {
        uint64_t bytes = 1;
        struct error error = {0};
        failing_memory_arm(nth);
        result measured = retention_measure(state, INT64_MAX, &bytes, &error);
        is_done = !failing_memory_fired();
        failing_memory_arm(0);
        if (is_failed(measured)) {
            assert_int_equal(measured.code, RESULT_MEMORY);
            failures++;
        }
        assert_int_equal(is_failed(measured) ? bytes : 1, 1);
        assert_true(!is_done || is_ok(measured));
    }
    assert_true(failures > STORES);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", state);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_that_fails_is_no_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
