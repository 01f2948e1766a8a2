# The engine's requests: many at once, bad ones, guards, statistics. Under the thread sanitizer demotion
# and drafts run as parts of test_stress and test_engine_threads: their own tests would take minutes.
hearth_test(test_stress SOURCES test_stress.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_test(test_engine_requests
    SOURCES test_engine_requests.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_test(test_engine_draws SOURCES test_engine_draws.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_test(test_engine_demotion
    SOURCES test_engine_demotion.c engine_cache_support.c engine_support.c test_safetensors.c
        failing_memory.c
    LIBRARIES engine kernels base)
target_link_options(test_engine_demotion PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
hearth_test(test_engine_threads SOURCES test_engine_threads.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
hearth_choose_backend(test_engine_demotion test_engine_draws test_engine_requests test_engine_threads
    GUARDED test_stress)
hearth_test(test_engine_plan SOURCES test_engine_plan.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base)
target_link_options(test_engine_plan PRIVATE
    -Wl,--wrap=backend_probe,--wrap=backend_scratch_bytes)
