hearth_test(test_sha256 SOURCES test_sha256.c LIBRARIES base)
