# Windows after a hit: exact rebuild, bounded replay, snapshots, memory per token.
foreach(part rebuild replay)
    hearth_test(test_forward_${part}
        SOURCES test_forward_${part}.c forward_support.c test_safetensors.c
        LIBRARIES engine kernels base)
endforeach()
hearth_test(test_kv_footprint
    SOURCES test_kv_footprint.c forward_support.c test_safetensors.c
    LIBRARIES engine kernels base)
hearth_test(test_kv_window SOURCES test_kv_window.c failing_memory.c LIBRARIES engine kernels base)
target_link_options(test_kv_window PRIVATE
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=mmap)
# Sequences that take turns in window slots.
hearth_test(test_kv_turns
    SOURCES test_kv_turns.c forward_support.c test_safetensors.c
    LIBRARIES engine kernels base)
hearth_test(test_kv_park SOURCES test_kv_park.c LIBRARIES engine kernels base)
hearth_choose_backend(test_forward_rebuild test_forward_replay)
