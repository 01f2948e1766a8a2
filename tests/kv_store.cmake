# The KV store below the engine.
foreach(test test_engine_cache test_engine_tiers)
    hearth_test(${test} SOURCES ${test}.c engine_cache_support.c engine_support.c test_safetensors.c
        LIBRARIES engine kernels base LABELS threads)
endforeach()
