# What the scheduler decides: steps, slots, admission, cost, drafts. Pure modules, no model.
foreach(part schedule lookup)
    hearth_test(test_${part} SOURCES test_${part}.c failing_memory.c LIBRARIES engine base)
    target_link_options(test_${part} PRIVATE -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
endforeach()
hearth_test(test_schedule_cost SOURCES test_schedule_cost.c LIBRARIES engine base)
hearth_test(test_schedule_simulation SOURCES test_schedule_simulation.c LIBRARIES engine base)
hearth_test(test_speculation SOURCES test_speculation.c LIBRARIES engine base)
# Built, not run; below the public headers, so not an example.
add_executable(bench_schedule bench_schedule.c)
target_link_libraries(bench_schedule PRIVATE engine base hearth_flags)
