# The price of the fixed order: the vector code once more, with leave to sum in any order.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT HEARTH_SANITIZE)
    set(FREE_ORDER_ISA avx512 CACHE STRING "instruction set of bench_order: avx2 or avx512")
    set(free_order_flags -mavx2 -mfma -mf16c)
    if(FREE_ORDER_ISA STREQUAL "avx512")
        list(APPEND free_order_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl
            -mprefer-vector-width=512)
    endif()
    get_target_property(free_order_sources kernels_cpu_${FREE_ORDER_ISA} SOURCES)
    list(REMOVE_ITEM free_order_sources cpu/cpu_product.c)
    list(TRANSFORM free_order_sources PREPEND ${PROJECT_SOURCE_DIR}/kernels/)
    string(TOUPPER ${FREE_ORDER_ISA} free_order_upper)
    add_library(kernels_free_order OBJECT ${free_order_sources} free_order/free_product.c)
    target_link_libraries(kernels_free_order PRIVATE hearth_flags)
    target_include_directories(kernels_free_order PRIVATE ${PROJECT_SOURCE_DIR}/kernels
        ${PROJECT_SOURCE_DIR}/kernels/cpu)
    target_compile_definitions(kernels_free_order PRIVATE
        CPU_LANES=free CPU_LANES_${free_order_upper})
    target_compile_options(kernels_free_order PRIVATE -O3 -ffast-math -ffp-contract=fast
        ${free_order_flags})
    # Built, not run.
    add_executable(bench_order bench_order.c ../examples/kernel_cases.c forward_support.c
        test_safetensors.c $<TARGET_OBJECTS:kernels_free_order>)
    target_link_libraries(bench_order PRIVATE engine kernels base hearth_flags ${CMOCKA_LIBRARY} m)
    target_compile_definitions(bench_order PRIVATE TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
        FREE_ORDER_ISA="${FREE_ORDER_ISA}")
endif()
