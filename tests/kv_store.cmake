# The KV store, alone and below the engine.
hearth_test(test_engine_cache SOURCES test_engine_cache.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
