# Forward pass, caches, sampler, engine thread.
foreach(part blocks forks identity mini runs steps verify)
    hearth_test(test_forward_${part}
        SOURCES test_forward_${part}.c forward_support.c test_safetensors.c
        LIBRARIES engine kernels base)
endforeach()
hearth_choose_backend(test_forward_forks test_forward_identity test_forward_mini test_forward_verify
    GUARDED test_forward_blocks test_forward_runs test_forward_steps)
set_tests_properties(test_forward_identity PROPERTIES TIMEOUT 900)
hearth_test(test_kv_cache SOURCES test_kv_cache.c LIBRARIES engine kernels base)
hearth_test(test_kv_fork SOURCES test_kv_fork.c LIBRARIES engine kernels base)
target_link_options(test_kv_fork PRIVATE -Wl,--wrap=calloc)
# Built, not run; below the public headers, so not an example.
add_executable(bench_fork bench_fork.c)
target_link_libraries(bench_fork PRIVATE engine kernels base hearth_flags)
hearth_test(test_kv_prefix SOURCES test_kv_prefix.c failing_memory.c LIBRARIES engine base)
target_link_options(test_kv_prefix PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
hearth_test(test_kv_prefix_model SOURCES test_kv_prefix_model.c LIBRARIES engine base)
# Four hashes for everything: ids alone tell blocks apart.
add_test(NAME test_kv_prefix_collisions COMMAND test_kv_prefix_model 7 fffffffffffffffc)
hearth_test(test_sampler SOURCES test_sampler.c LIBRARIES engine base)
foreach(test test_engine test_engine_forks)
    hearth_test(${test} SOURCES ${test}.c engine_support.c test_safetensors.c
        LIBRARIES engine kernels base LABELS threads)
endforeach()
hearth_test(test_engine_speculation SOURCES test_engine_speculation.c engine_support.c
    test_safetensors.c LIBRARIES engine kernels base)
hearth_test(test_engine_memory SOURCES test_engine_memory.c test_safetensors.c failing_memory.c
    LIBRARIES engine kernels base)
target_link_options(test_engine_memory PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc)
hearth_choose_backend(test_engine_speculation GUARDED test_engine test_engine_forks)
