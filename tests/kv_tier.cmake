# The tiers below the device: host pool, worker, tickets.
foreach(test test_kv_tier test_kv_tier_trouble)
    hearth_test(${test} SOURCES ${test}.c kv_tier_support.c kv_tier_world.c
        LIBRARIES engine kernels base LABELS threads)
    target_link_options(${test} PRIVATE -Wl,--wrap=pwrite,--wrap=pwritev,--wrap=preadv)
endforeach()
hearth_test(test_kv_tier_memory SOURCES test_kv_tier_memory.c kv_tier_support.c failing_memory.c
    LIBRARIES engine kernels base)
target_link_options(test_kv_tier_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
# Built, not run; below the public headers, so not an example.
add_executable(bench_restore bench_restore.c)
target_link_libraries(bench_restore PRIVATE engine kernels base hearth_flags)
add_executable(bench_resume bench_resume.c)
target_link_libraries(bench_resume PRIVATE engine kernels base hearth_flags)
