# The disk tier: path keys, segment files, what `hearth cache` does with them.
hearth_test(test_kv_key SOURCES test_kv_key.c LIBRARIES engine base)
hearth_test(test_kv_disk SOURCES test_kv_disk.c kv_disk_support.c LIBRARIES engine base
    LABELS threads)
hearth_test(test_kv_disk_damage SOURCES test_kv_disk_damage.c kv_disk_support.c
    LIBRARIES engine base)
hearth_test(test_kv_disk_crash SOURCES test_kv_disk_crash.c kv_disk_support.c failing_memory.c
    LIBRARIES engine base)
target_link_options(test_kv_disk_crash PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=pwritev,--wrap=pwrite,--wrap=preadv
    -Wl,--wrap=fallocate,--wrap=unlinkat,--wrap=renameat,--wrap=fdatasync)
