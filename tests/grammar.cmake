# Grammars, schemas and constraints of a turn.
hearth_test(test_grammar SOURCES test_grammar.c grammar_support.c LIBRARIES engine base)
hearth_test(test_chat_grammar SOURCES test_chat_grammar.c grammar_support.c LIBRARIES engine base)
hearth_fuzz(fuzz_schema SOURCES fuzz_schema.c LIBRARIES engine base)
hearth_test(test_grammar_memory SOURCES test_grammar_memory.c failing_memory.c LIBRARIES engine base)
target_link_options(test_grammar_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
hearth_test(test_engine_constraint SOURCES test_engine_constraint.c engine_support.c test_safetensors.c
    LIBRARIES engine kernels base LABELS threads)
# Built, not run; below the public headers, so not an example.
add_executable(bench_grammar bench_grammar.c grammar_support.c)
target_link_libraries(bench_grammar PRIVATE engine base hearth_flags)
target_compile_definitions(bench_grammar PRIVATE TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
