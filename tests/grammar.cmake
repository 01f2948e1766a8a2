# Grammars, schemas and constraints of a turn.
hearth_test(test_grammar SOURCES test_grammar.c grammar_support.c LIBRARIES engine base)
hearth_test(test_chat_grammar SOURCES test_chat_grammar.c grammar_support.c LIBRARIES engine base)
hearth_fuzz(fuzz_schema SOURCES fuzz_schema.c LIBRARIES engine base)
# Built, not run; below the public headers, so not an example.
add_executable(bench_grammar bench_grammar.c grammar_support.c)
target_link_libraries(bench_grammar PRIVATE engine base hearth_flags)
target_compile_definitions(bench_grammar PRIVATE TEST_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
