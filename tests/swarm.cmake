# What decides about many agents: budgets, the swarm, its strategies. Pure modules, no engine.
hearth_test(test_budget SOURCES test_budget.c LIBRARIES swarm base)
hearth_test(test_swarm_simulation
    SOURCES test_swarm_simulation.c swarm_simulation.c swarm_world.c failing_memory.c
    LIBRARIES swarm base)
target_link_options(test_swarm_simulation PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
hearth_test(test_swarm SOURCES test_swarm.c swarm_support.c failing_memory.c LIBRARIES swarm base)
target_link_options(test_swarm PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
hearth_test(test_swarm_strategies SOURCES test_swarm_strategies.c swarm_support.c LIBRARIES swarm base)
hearth_test(test_swarm_eval SOURCES test_swarm_eval.c LIBRARIES swarm base m)
hearth_test(test_swarm_plan SOURCES test_swarm_plan.c swarm_support.c LIBRARIES swarm base)
hearth_fuzz(fuzz_task_list SOURCES fuzz_task_list.c LIBRARIES swarm base)
hearth_test(test_swarm_view SOURCES test_swarm_view.c swarm_support.c LIBRARIES runtime)
hearth_test(test_swarm_work SOURCES test_swarm_work.c swarm_work_support.c LIBRARIES runtime)
add_dependencies(test_swarm_work hearth-sandbox hearth-inner)
hearth_test(test_swarm_work_merge SOURCES test_swarm_work_merge.c swarm_work_support.c LIBRARIES runtime)
target_link_options(test_swarm_work_merge PRIVATE -Wl,--wrap=tree_write_file) # somebody acts meanwhile
add_dependencies(test_swarm_work_merge hearth-sandbox hearth-inner)
hearth_test(test_swarm_work_verify SOURCES test_swarm_work_verify.c swarm_work_support.c LIBRARIES runtime Threads::Threads)
add_dependencies(test_swarm_work_verify hearth-sandbox hearth-inner)
hearth_test(test_swarm_work_many SOURCES test_swarm_work_many.c swarm_work_support.c
    LIBRARIES runtime Threads::Threads TIMEOUT 600)
add_dependencies(test_swarm_work_many hearth-sandbox hearth-inner)
add_executable(bench_swarm_work bench_swarm_work.c) # no test: its timings want an idle machine
target_link_libraries(bench_swarm_work PRIVATE runtime hearth_flags)
target_compile_definitions(bench_swarm_work PRIVATE TEST_BINARY_DIR="${PROJECT_BINARY_DIR}")
add_dependencies(bench_swarm_work hearth-sandbox hearth-inner)
