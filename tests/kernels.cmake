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

hearth_test(test_backend SOURCES test_backend.c LIBRARIES kernels base)
add_library(backend_module_fake SHARED backend_module_fake.c)
target_include_directories(backend_module_fake PRIVATE ${PROJECT_SOURCE_DIR})
add_dependencies(test_backend backend_module_fake)
if(TARGET hearth_cuda)
    target_compile_definitions(test_backend PRIVATE TEST_HAVE_CUDA)
    add_dependencies(test_backend hearth_cuda)
endif()
