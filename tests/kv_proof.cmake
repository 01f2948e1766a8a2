# Proofs of the KV store as a whole: replay quality, and the property test of reuse.
hearth_test(test_replay_quality
    SOURCES test_replay_quality.c replay_quality.c forward_support.c test_safetensors.c
    LIBRARIES engine kernels base)
# Built, not run: minutes; below the public headers, so not an example.
add_executable(bench_replay bench_replay.c replay_quality.c forward_support.c test_safetensors.c)
target_link_libraries(bench_replay PRIVATE engine kernels base hearth_flags ${CMOCKA_LIBRARY} m)
target_compile_definitions(bench_replay PRIVATE TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
hearth_test(test_kv_property
    SOURCES test_kv_property.c kv_property.c kv_property_facts.c forward_support.c test_safetensors.c
    LIBRARIES engine kernels base TIMEOUT 3600)
hearth_choose_backend(test_kv_property test_replay_quality)
