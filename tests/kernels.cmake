hearth_test(test_kernels_golden
    SOURCES test_kernels_golden.c test_kernels_support.c test_safetensors.c LIBRARIES kernels base m)
hearth_test(test_kernels_linear
    SOURCES test_kernels_linear.c test_kernels_support.c LIBRARIES kernels base m)
hearth_test(test_kernels_attention
    SOURCES test_kernels_attention.c test_kernels_support.c LIBRARIES kernels base m)
hearth_test(test_kernels_indexer
    SOURCES test_kernels_indexer.c test_kernels_support.c LIBRARIES kernels base m)
hearth_test(test_kernels_stream
    SOURCES test_kernels_stream.c test_kernels_support.c LIBRARIES kernels base m)
