/* The plan of an engine on a device that is not there: what goes into whose memory, what gives way, what
 * is refused, and where `auto` ends up. backend_probe and the scratch of cuda are the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_support.h"

#define MIB ((uint64_t)1 << 20)

static struct {
    enum result_code code; /* of probing cuda */
    uint64_t memory_free;
} device;

result __wrap_backend_probe(
    const char *name, int32_t number, struct backend_facts *out, struct error *error
);
uint64_t __wrap_backend_scratch_bytes(const struct backend_options *options);

result __wrap_backend_probe(
    const char *name, int32_t number, struct backend_facts *out, struct error *error
) {
    assert_string_equal(name, "cuda");
    assert_int_equal(number, 0);
    if (device.code == RESULT_NOT_FOUND) {
        FAIL(error, NOT_FOUND, "there is no GPU");
    }
    if (device.code == RESULT_UNSUPPORTED) {
        FAIL(error, UNSUPPORTED, "the driver is too old");
    }
    *out = (struct backend_facts
    ){.memory_total = device.memory_free, .memory_free = device.memory_free};
    return OK;
}

uint64_t __wrap_backend_scratch_bytes(const struct backend_options *options) {
    return strcmp(options->name, "cuda") == 0 ? 8 * MIB : 3 * MIB;
}

/* A plan of the bundled small model, which has Engram tables. */
static result
plan_with(const char *backend, uint64_t device_max, struct engine_plan *out, struct error *error) {
    char path[TEST_PATH_MAX];
    model_directory(path);
    const struct engine_options options = {
        .model_directory = path,
        .backend = backend,
        .sequences_max = 2,
        .context_max = 1024,
        .threads = 1,
        .device_memory_max = device_max,
    };
    return engine_plan_make(&options, out, error);
}

static void weights_caches_and_scratch_are_counted_on_the_device(void **state) {
    (void)state;
    struct error error = {0};
    struct engine_plan plan;
    struct engine_plan cpu;
    device.code = RESULT_OK;
    device.memory_free = 64 * 1024 * MIB;
    assert_true(is_ok(plan_with("auto", 0, &plan, &error)));
    assert_string_equal(plan.backend, "cuda");
    assert_string_equal(plan.backend_note, "");
    assert_true(plan.has_device && !plan.has_host_tables);
    assert_true(plan.device_memory_max < device.memory_free); // a reserve
    assert_true(plan.device_memory_max > device.memory_free / 10 * 9);
    assert_true(plan.device_weight_bytes + plan.kv_pool_bytes + 8 * MIB < plan.device_bytes);
    assert_true(plan.device_bytes <= plan.device_memory_max);
    assert_int_equal(plan.step_rows_max, ENGINE_STEP_ROWS_DEVICE);
    assert_true(is_ok(plan_with("cpu", 0, &cpu, &error)));
    assert_string_equal(cpu.backend, "cpu");
    assert_true(!cpu.has_device && cpu.device_bytes == 0 && cpu.device_weight_bytes == 0);
    assert_int_equal(cpu.step_rows_max, ENGINE_STEP_ROWS_CPU);
}

static void what_is_short_gives_way_or_is_refused(void **state) {
    (void)state;
    struct error error = {0};
    struct engine_plan plan;
    struct engine_plan tight;
    device.code = RESULT_OK;
    device.memory_free = 64 * 1024 * MIB;
    assert_true(is_ok(plan_with("cuda", 0, &plan, &error)));
    /* Blocks for later go first, then the Engram tables; then nothing is left to give. */
    uint64_t least = plan.device_bytes - plan.cache_pool_bytes;
    assert_true(is_ok(plan_with("cuda", least, &tight, &error)));
    assert_true(tight.device_bytes <= least && !tight.has_host_tables);
    assert_true(tight.cache_pool_bytes < plan.cache_pool_bytes);
    assert_true(is_ok(plan_with("cuda", least - 1, &tight, &error)));
    assert_true(tight.has_host_tables && tight.host_table_bytes > 0);
    assert_int_equal(tight.device_weight_bytes + tight.host_table_bytes, plan.device_weight_bytes);
    uint64_t fewest = least - tight.host_table_bytes;
    assert_true(is_ok(plan_with("cuda", fewest, &tight, &error)));
    assert_true(tight.device_bytes <= fewest);
    assert_int_equal(plan_with("cuda", fewest - 1, &tight, &error).code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "of the device's memory"));
    assert_non_null(strstr(error.message, ": 1 short"));
    /* auto does without the device and says why. */
    assert_true(is_ok(plan_with("auto", fewest - 1, &tight, &error)));
    assert_string_equal(tight.backend, "cpu");
    assert_non_null(strstr(tight.backend_note, "of the device's memory"));
}

static void a_device_is_missed_only_where_there_is_one(void **state) {
    (void)state;
    struct error error = {0};
    struct engine_plan plan;
    device.code = RESULT_NOT_FOUND;
    assert_true(is_ok(plan_with("auto", 0, &plan, &error)));
    assert_string_equal(plan.backend, "cpu");
    assert_string_equal(plan.backend_note, "");
    assert_int_equal(plan_with("cuda", 0, &plan, &error).code, RESULT_NOT_FOUND);
    device.code = RESULT_UNSUPPORTED;
    assert_true(is_ok(plan_with("auto", 0, &plan, &error)));
    assert_string_equal(plan.backend, "cpu");
    assert_string_equal(plan.backend_note, "the driver is too old");
    assert_int_equal(plan_with("cuda", 0, &plan, &error).code, RESULT_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_caches_and_scratch_are_counted_on_the_device),
        cmocka_unit_test(what_is_short_gives_way_or_is_refused),
        cmocka_unit_test(a_device_is_missed_only_where_there_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
