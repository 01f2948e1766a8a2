# Sampling, stop strings, runaway guards.
add_executable(bench_sampler bench_sampler.c) # built, not run
target_link_libraries(bench_sampler PRIVATE engine base hearth_flags)
hearth_test(test_sampling SOURCES test_sampling.c sampling_support.c LIBRARIES engine base)
hearth_test(test_stop SOURCES test_stop.c LIBRARIES engine base)
hearth_test(test_guard SOURCES test_guard.c LIBRARIES engine base)
hearth_test(test_sampling_memory SOURCES test_sampling_memory.c failing_memory.c
    LIBRARIES engine base)
target_link_options(test_sampling_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
