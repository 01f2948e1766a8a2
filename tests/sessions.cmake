find_library(SQLITE3_LIBRARY sqlite3 REQUIRED)
hearth_test(test_sessions SOURCES test_sessions.c sessions_support.c LIBRARIES sessions)
hearth_test(test_sessions_branch SOURCES test_sessions_branch.c sessions_support.c LIBRARIES sessions)
hearth_test(test_sessions_damage SOURCES test_sessions_damage.c sessions_support.c
    LIBRARIES sessions ${SQLITE3_LIBRARY})
hearth_test(test_sessions_swarm SOURCES test_sessions_swarm.c sessions_support.c LIBRARIES sessions
    LABELS threads)
hearth_test(test_recorder_end SOURCES test_recorder_end.c sessions_support.c LIBRARIES runtime sessions)
hearth_test(test_sessions_mail_kill SOURCES test_sessions_mail_kill.c sessions_kill.c sessions_support.c
    LIBRARIES sessions ${SQLITE3_LIBRARY})
hearth_fuzz(fuzz_sessions SOURCES fuzz_sessions.c LIBRARIES sessions)
hearth_test(test_sessions_memory SOURCES test_sessions_memory.c sessions_support.c failing_memory.c
    LIBRARIES sessions)
target_link_options(test_sessions_memory PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
