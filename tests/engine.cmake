# The engine's requests: many at once, bad ones, guards, statistics.
hearth_test(test_stress SOURCES test_stress.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_test(test_engine_requests
    SOURCES test_engine_requests.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_test(test_engine_draws SOURCES test_engine_draws.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_test(test_engine_demotion
    SOURCES test_engine_demotion.c engine_cache_support.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_test(test_engine_threads SOURCES test_engine_threads.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
