# The disk tier: path keys, segment files, what `hearth cache` does with them.
hearth_test(test_kv_key SOURCES test_kv_key.c LIBRARIES engine base)
hearth_test(test_kv_disk SOURCES test_kv_disk.c kv_disk_support.c LIBRARIES engine base
    LABELS threads)
hearth_test(test_kv_disk_damage SOURCES test_kv_disk_damage.c kv_disk_support.c
    LIBRARIES engine base)
hearth_test(test_kv_disk_crash SOURCES test_kv_disk_crash.c kv_disk_support.c failing_memory.c
    LIBRARIES engine base)
target_link_options(test_kv_disk_crash PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=pwritev,--wrap=pwrite,--wrap=preadv,--wrap=pread
    -Wl,--wrap=fallocate,--wrap=unlinkat,--wrap=renameat,--wrap=fdatasync)
hearth_test(test_kv_sweep SOURCES test_kv_sweep.c kv_disk_support.c LIBRARIES engine base
    LABELS threads)
hearth_test(test_kv_files SOURCES test_kv_files.c kv_disk_support.c LIBRARIES engine base)
add_executable(kv_disk_make kv_disk_make.c kv_disk_support.c)
target_link_libraries(kv_disk_make PRIVATE engine base hearth_flags ${CMOCKA_LIBRARY})
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME test_cache_cli COMMAND ${Python3_EXECUTABLE}
    ${PROJECT_SOURCE_DIR}/tests/test_cache_cli.py $<TARGET_FILE:hearth> $<TARGET_FILE:kv_disk_make>)
set_tests_properties(test_cache_cli PROPERTIES TIMEOUT 300)
hearth_fuzz(fuzz_kv_disk SOURCES fuzz_kv_disk.c LIBRARIES engine base)
target_link_options(fuzz_kv_disk PRIVATE -Wl,--wrap=fdatasync,--wrap=fsync)
# Built, not run; below the public headers, so not an example.
add_executable(bench_kv_disk bench_kv_disk.c)
target_link_libraries(bench_kv_disk PRIVATE engine base hearth_flags)
