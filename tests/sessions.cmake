find_library(SQLITE3_LIBRARY sqlite3 REQUIRED)
hearth_test(test_sessions SOURCES test_sessions.c sessions_support.c LIBRARIES sessions)
hearth_test(test_sessions_damage SOURCES test_sessions_damage.c sessions_support.c
    LIBRARIES sessions ${SQLITE3_LIBRARY})
hearth_fuzz(fuzz_sessions SOURCES fuzz_sessions.c LIBRARIES sessions)
