# Forward pass, caches, sampler, engine thread.
foreach(part blocks identity mini runs)
    hearth_test(test_forward_${part}
        SOURCES test_forward_${part}.c forward_support.c test_safetensors.c
        LIBRARIES engine kernels base)
endforeach()
set_tests_properties(test_forward_identity PROPERTIES TIMEOUT 900)
hearth_test(test_kv_cache SOURCES test_kv_cache.c LIBRARIES engine kernels base)
hearth_test(test_sampler SOURCES test_sampler.c LIBRARIES engine base)
hearth_test(test_engine SOURCES test_engine.c test_safetensors.c LIBRARIES engine kernels base
    LABELS threads)
hearth_test(test_engine_memory SOURCES test_engine_memory.c test_safetensors.c failing_memory.c
    LIBRARIES engine kernels base)
target_link_options(test_engine_memory PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc)
