find_package(Threads REQUIRED)
hearth_test(test_tool_schema SOURCES test_tool_schema.c tools_support.c LIBRARIES tools)
hearth_test(test_tools SOURCES test_tools.c tools_support.c LIBRARIES tools)
hearth_test(test_tools_shell SOURCES test_tools_shell.c tools_support.c
    LIBRARIES tools Threads::Threads LABELS threads)
hearth_fuzz(fuzz_tool_schema SOURCES fuzz_tool_schema.c LIBRARIES tools)
hearth_test(test_tools_memory SOURCES test_tools_memory.c tools_support.c failing_memory.c
    LIBRARIES tools)
target_link_options(test_tools_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
