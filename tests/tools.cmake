find_package(Threads REQUIRED)
hearth_test(test_tool_schema SOURCES test_tool_schema.c tools_support.c LIBRARIES tools)
hearth_test(test_tools SOURCES test_tools.c tools_support.c LIBRARIES tools)
hearth_test(test_tools_files SOURCES test_tools_files.c tools_support.c LIBRARIES tools)
hearth_test(test_tools_search SOURCES test_tools_search.c tools_support.c LIBRARIES tools)
hearth_test(test_tools_patch SOURCES test_tools_patch.c tools_support.c LIBRARIES tools)
hearth_fuzz(fuzz_tool_agents SOURCES fuzz_tool_agents.c LIBRARIES tools)
hearth_fuzz(fuzz_tool_match SOURCES fuzz_tool_match.c LIBRARIES tools)
hearth_fuzz(fuzz_tool_patch SOURCES fuzz_tool_patch.c LIBRARIES tools)
hearth_test(test_tools_ignore SOURCES test_tools_ignore.c tools_support.c LIBRARIES tools)
hearth_test(test_tool_regex SOURCES test_tool_regex.c tools_support.c LIBRARIES tools)
hearth_test(test_tools_context SOURCES test_tools_context.c tools_support.c LIBRARIES tools)
hearth_test(test_tools_shell SOURCES test_tools_shell.c tools_support.c
    LIBRARIES tools Threads::Threads LABELS threads)
hearth_test(test_tools_jobs SOURCES test_tools_jobs.c tools_support.c
    LIBRARIES tools Threads::Threads LABELS threads)
hearth_test(test_tools_mcp SOURCES test_tools_mcp.c tools_support.c
    LIBRARIES tools Threads::Threads LABELS threads)
hearth_test(test_tools_mcp_public SOURCES test_tools_mcp_public.c tools_support.c LIBRARIES tools)
hearth_test(test_tools_agents SOURCES test_tools_agents.c tools_support.c
    LIBRARIES tools Threads::Threads LABELS threads)
hearth_test(test_tools_constraint SOURCES test_tools_constraint.c grammar_support.c
    LIBRARIES tools engine)
hearth_test(test_tools_fetch SOURCES test_tools_fetch.c tools_support.c LIBRARIES tools)
hearth_fuzz(fuzz_html SOURCES fuzz_html.c LIBRARIES tools)
hearth_fuzz(fuzz_mcp SOURCES fuzz_mcp.c LIBRARIES tools)
hearth_fuzz(fuzz_tool_schema SOURCES fuzz_tool_schema.c LIBRARIES tools)
hearth_test(test_tools_memory SOURCES test_tools_memory.c tools_support.c failing_memory.c
    LIBRARIES tools)
target_link_options(test_tools_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)

# The texts the bundled model knows, from the tools of its own recipe.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_executable(tools_cli tools_cli.c)
target_link_libraries(tools_cli PRIVATE tools hearth_flags)
target_compile_definitions(tools_cli PRIVATE TEST_BINARY_DIR="${PROJECT_BINARY_DIR}")
add_dependencies(tools_cli hearth-sandbox hearth-inner)
add_test(NAME compare_tools COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/compare_tools
    $<TARGET_FILE:tools_cli> ${PROJECT_SOURCE_DIR}/examples/mini)
set_tests_properties(compare_tools PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
