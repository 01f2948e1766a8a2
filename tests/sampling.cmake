# Sampling, stop strings, runaway guards.
add_executable(bench_sampler bench_sampler.c) # built, not run
target_link_libraries(bench_sampler PRIVATE engine base hearth_flags)
