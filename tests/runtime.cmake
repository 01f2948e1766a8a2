hearth_test(test_agent SOURCES test_agent.c LIBRARIES runtime)
hearth_test(test_loop SOURCES test_loop.c runtime_support.c LIBRARIES runtime LABELS threads)

# The built program as a user calls it.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_test(NAME test_cli
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/test_cli.py $<TARGET_FILE:hearth>)
set_tests_properties(test_cli PROPERTIES TIMEOUT 1200)
