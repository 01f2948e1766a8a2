/* Which backends there are, and one line of reason for each that cannot be had. */
#include "kernels/backend_module.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define FAKE TEST_BINARY_DIR "/tests/libbackend_module_fake.so"

/* A refusal reads as one line and says what is meant. NOT_FOUND: there is nothing here to use. */
static void expect_refusal(result got, const struct error *error, const char *reason) {
    assert_true(got.code == RESULT_NOT_FOUND || got.code == RESULT_UNSUPPORTED);
    assert_null(strchr(error->message, '\n'));
    if (strstr(error->message, reason) == NULL) {
        fail_msg("'%s' does not say '%s'", error->message, reason);
    }
}

static void modules_of_this_build_are_loaded(void **state) {
    (void)state;
    struct error error = {0};
    const struct backend_module *module = NULL;
    assert_true(is_ok(backend_module_load(FAKE, "fitting_module", &module, &error)));
    assert_non_null(module);
    assert_int_equal(module->version, BACKEND_MODULE_VERSION);
    const struct backend_module *again = NULL;
    assert_true(is_ok(backend_module_load(FAKE, "fitting_module", &again, &error)));
    assert_ptr_equal(module, again);
}

static void other_modules_are_refused(void **state) {
    (void)state;
    struct error error = {0};
    const struct backend_module *module = NULL;
    const struct {
        const char *library, *symbol, *reason;
        enum result_code code;
    } cases[] = {
        {FAKE, "older_module", "of another build", RESULT_UNSUPPORTED},
        {FAKE, "larger_module", "of another build", RESULT_UNSUPPORTED},
        {FAKE, "cuda_backend_module", "has no 'cuda_backend_module'", RESULT_UNSUPPORTED},
        {"libhearth_abacus.so",
         "fitting_module",
         "libhearth_abacus.so: cannot open",
         RESULT_NOT_FOUND},
        {TEST_SOURCE_DIR "/CMakeLists.txt", "fitting_module", "ELF", RESULT_NOT_FOUND},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        result got = backend_module_load(cases[i].library, cases[i].symbol, &module, &error);
        expect_refusal(got, &error, cases[i].reason);
        assert_int_equal(got.code, cases[i].code);
        assert_null(module);
    }
}

static void the_cpu_is_always_there(void **state) {
    (void)state;
    struct error error = {0};
    struct backend_facts facts = {0};
    assert_true(is_ok(backend_probe("cpu", 0, &facts, &error)));
    assert_true(facts.is_host_memory);
    assert_int_equal(strncmp(facts.description, "cpu ", 4), 0);
}

static void unknown_names_are_refused(void **state) {
    (void)state;
    struct error error = {0};
    struct backend_facts facts = {0};
    struct backend *backend = NULL;
    struct backend_options options = {.name = "abacus", .rows_max = 1, .dim_max = 32};
    expect_refusal(backend_probe("abacus", 0, &facts, &error), &error, "'abacus'");
    expect_refusal(backend_open(&options, &backend, &error), &error, "'abacus'");
    assert_int_equal(backend_scratch_bytes(&options), 0);
    assert_null(backend);
}

/* Where it was built its library is found, whatever the machine: what may be missing is the driver,
 * the GPU, or code for it. */
static void cuda_works_or_says_why_not(void **state) {
    (void)state;
    struct error error = {0};
    struct backend_facts facts = {0};
    struct backend *backend = NULL;
    struct backend_options options = {.name = "cuda", .threads = 1, .rows_max = 1, .dim_max = 32};
    result probed = backend_probe("cuda", 0, &facts, &error);
    if (is_ok(probed)) {
        assert_true(facts.memory_total > 0 && !facts.is_host_memory);
        assert_true(is_ok(backend_open(&options, &backend, &error)));
        backend_close(backend);
        return;
    }
    print_message("%s\n", error.message);
    expect_refusal(probed, &error, "backend cuda: ");
#ifdef TEST_HAVE_CUDA
    assert_null(strstr(error.message, "its library"));
    assert_null(strstr(error.message, "built without"));
#else // only the emulation has it, in a folder of its own, or nothing does
    bool without = strstr(error.message, "built without") != NULL;
    assert_true(without || strstr(error.message, "its library cannot be loaded") != NULL);
#endif
    expect_refusal(backend_open(&options, &backend, &error), &error, "backend cuda: ");
    assert_null(backend);
}

static void cuda_devices_that_do_not_exist_are_refused(void **state) {
    (void)state;
    struct error error = {0};
    struct backend_facts facts = {0};
    expect_refusal(backend_probe("cuda", 1000, &facts, &error), &error, "backend cuda: ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_of_this_build_are_loaded),
        cmocka_unit_test(other_modules_are_refused),
        cmocka_unit_test(the_cpu_is_always_there),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(cuda_works_or_says_why_not),
        cmocka_unit_test(cuda_devices_that_do_not_exist_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
