# Forward pass, caches, sampler, engine thread.
foreach(part blocks identity mini runs)
    hearth_test(test_forward_${part}
        SOURCES test_forward_${part}.c forward_support.c test_safetensors.c
        LIBRARIES engine kernels base)
endforeach()
