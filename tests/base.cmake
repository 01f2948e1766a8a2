hearth_test(test_base SOURCES test_base.c LIBRARIES base)
hearth_fuzz(fuzz_json SOURCES fuzz_json.c LIBRARIES base)
