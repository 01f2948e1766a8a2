# The KV store below the engine. The thread sanitizer runs the one where more threads take part.
foreach(test test_engine_cache test_engine_tiers)
    hearth_test(${test} SOURCES ${test}.c engine_cache_support.c engine_support.c test_safetensors.c
        LIBRARIES engine kernels base)
endforeach()
set_tests_properties(test_engine_tiers PROPERTIES LABELS threads)
target_link_options(test_engine_tiers PRIVATE -Wl,--wrap=preadv,--wrap=pwritev)
hearth_test(test_kv_store SOURCES test_kv_store.c kv_tier_support.c LIBRARIES engine kernels base)
target_link_options(test_kv_store PRIVATE -Wl,--wrap=pwritev)
hearth_choose_backend(test_engine_cache GUARDED test_engine_tiers)
