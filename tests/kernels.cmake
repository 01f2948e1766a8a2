hearth_test(test_kernels_golden
    SOURCES test_kernels_golden.c test_kernels_support.c test_safetensors.c LIBRARIES kernels base m)
