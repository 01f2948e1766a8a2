# The engine's requests: many at once, bad ones, guards, statistics.
hearth_test(test_stress SOURCES test_stress.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
