# The disk tier: path keys, segment files, what `hearth cache` does with them.
hearth_test(test_kv_key SOURCES test_kv_key.c LIBRARIES engine base)
