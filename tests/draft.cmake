# Draft stages.
foreach(part golden parking rings)
    hearth_test(test_draft_${part}
        SOURCES test_draft_${part}.c forward_support.c test_safetensors.c
        LIBRARIES engine kernels base)
endforeach()
hearth_choose_backend(test_draft_rings GUARDED test_draft_golden test_draft_parking)
