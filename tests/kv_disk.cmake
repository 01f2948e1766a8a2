# The disk tier: path keys, segment files, what `hearth cache` does with them.
hearth_test(test_kv_key SOURCES test_kv_key.c LIBRARIES engine base)
hearth_test(test_kv_disk SOURCES test_kv_disk.c kv_disk_support.c LIBRARIES engine base
    LABELS threads)
