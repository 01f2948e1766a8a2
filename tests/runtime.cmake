hearth_test(test_agent SOURCES test_agent.c LIBRARIES runtime)
hearth_test(test_loop SOURCES test_loop.c runtime_support.c LIBRARIES runtime LABELS threads)
