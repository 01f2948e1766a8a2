# What the scheduler decides: steps, slots, admission, cost, drafts. Pure modules, no model.
hearth_test(test_schedule SOURCES test_schedule.c schedule_support.c LIBRARIES engine base)
hearth_test(test_schedule_cost SOURCES test_schedule_cost.c LIBRARIES engine base)
hearth_test(test_schedule_simulation SOURCES test_schedule_simulation.c LIBRARIES engine base)
hearth_test(test_speculation SOURCES test_speculation.c LIBRARIES engine base)
hearth_test(test_schedule_random
    SOURCES test_schedule_random.c schedule_support.c failing_memory.c
    LIBRARIES engine base)
hearth_test(test_lookup SOURCES test_lookup.c failing_memory.c LIBRARIES engine base)
foreach(test test_schedule_random test_lookup)
    target_link_options(${test} PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
endforeach()
# Built, not run; below the public headers, so not an example.
add_executable(bench_schedule bench_schedule.c)
target_link_libraries(bench_schedule PRIVATE engine base hearth_flags)
