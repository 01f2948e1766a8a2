# Windows after a hit: exact rebuild, bounded replay, snapshots, memory per token.
hearth_test(test_forward_rebuild
    SOURCES test_forward_rebuild.c forward_support.c test_safetensors.c
    LIBRARIES engine kernels base)
