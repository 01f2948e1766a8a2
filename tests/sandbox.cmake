# The command line in front of the sandbox, for the attack cases.
add_executable(sandbox_cli sandbox_cli.c)
target_link_libraries(sandbox_cli PRIVATE sandbox base hearth_flags)
target_compile_definitions(sandbox_cli PRIVATE TEST_BINARY_DIR="${PROJECT_BINARY_DIR}")
add_dependencies(sandbox_cli hearth-sandbox hearth-inner)

# The attack helper runs inside, where no library need be found; foreign test code, so no warnings.
add_executable(sandbox_atk data/sandbox-cases/atk.c)
target_compile_options(sandbox_atk PRIVATE -w -O1)
target_compile_definitions(sandbox_atk PRIVATE _GNU_SOURCE)
target_link_options(sandbox_atk PRIVATE -static)

if(CMAKE_BUILD_TYPE STREQUAL "Release") # the programs inside of a call are the same in every build
    add_test(NAME sandbox_cases
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/run_sandbox_cases ${PROJECT_BINARY_DIR})
    add_test(NAME sandbox_cases_network
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/run_sandbox_cases ${PROJECT_BINARY_DIR})
    set_tests_properties(sandbox_cases sandbox_cases_network PROPERTIES
        TIMEOUT 600 SKIP_RETURN_CODE 77)
    set_tests_properties(sandbox_cases_network PROPERTIES
        ENVIRONMENT HEARTH_CASE_NETWORK=example.com)
endif()

hearth_test(test_sandbox SOURCES test_sandbox.c sandbox_support.c LIBRARIES sandbox base)
hearth_test(test_sandbox_refusals SOURCES test_sandbox_refusals.c sandbox_support.c
    LIBRARIES sandbox base)
hearth_test(test_sandbox_input SOURCES test_sandbox_input.c sandbox_support.c
    LIBRARIES sandbox base)
find_package(Threads REQUIRED)
hearth_test(test_sandbox_together SOURCES test_sandbox_together.c sandbox_support.c
    LIBRARIES sandbox base Threads::Threads LABELS threads)
add_dependencies(test_sandbox_together hearth-sandbox hearth-inner)
hearth_test(test_sandbox_nested SOURCES test_sandbox_nested.c sandbox_support.c
    LIBRARIES sandbox base Threads::Threads LABELS threads)
add_dependencies(test_sandbox_nested hearth-sandbox hearth-inner)
add_dependencies(test_sandbox_input hearth-sandbox hearth-inner)
add_dependencies(test_sandbox hearth-sandbox hearth-inner sandbox_cli)
add_dependencies(test_sandbox_refusals hearth-sandbox hearth-inner sandbox_cli)
hearth_test(test_beneath SOURCES test_beneath.c shell_support.c LIBRARIES sandbox base)
hearth_test(test_workspace SOURCES test_workspace.c workspace_support.c shell_support.c
    LIBRARIES sandbox base)
hearth_test(test_workspace_store SOURCES test_workspace_store.c workspace_support.c shell_support.c
    LIBRARIES sandbox base)
hearth_test(test_workspace_merge SOURCES test_workspace_merge.c shell_support.c
    LIBRARIES sandbox base)
hearth_test(test_workspace_merge_random SOURCES test_workspace_merge_random.c
    LIBRARIES sandbox base)
hearth_test(test_worktree SOURCES test_worktree.c shell_support.c LIBRARIES sandbox base)
hearth_test(test_worktree_snapshot SOURCES test_worktree_snapshot.c shell_support.c
    LIBRARIES sandbox base Threads::Threads)
hearth_test(test_cgroup SOURCES test_cgroup.c LIBRARIES sandbox base)
hearth_fuzz(fuzz_sanitise SOURCES fuzz_sanitise.c LIBRARIES sandbox base)
hearth_test(test_survey SOURCES test_survey.c LIBRARIES sandbox base)
add_executable(bench_snapshot bench_snapshot.c) # no test: its timings want an idle machine
target_link_libraries(bench_snapshot PRIVATE sandbox base hearth_flags)
add_executable(bench_worktree bench_worktree.c)
target_link_libraries(bench_worktree PRIVATE sandbox base hearth_flags)
