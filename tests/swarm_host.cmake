# Swarms that run: the host with a scripted engine, and with directories and tools that are fakes or real.
set(SWARM_HOST_SUPPORT swarm_host_support.c writer_engine.c)
foreach(name IN ITEMS test_swarm_host test_swarm_host_agents test_swarm_host_chaos)
    hearth_test(${name} SOURCES ${name}.c swarm_work_fake.c ${SWARM_HOST_SUPPORT}
        LIBRARIES runtime TIMEOUT 900 LABELS threads)
endforeach()
hearth_test(test_swarm_host_real SOURCES test_swarm_host_real.c ${SWARM_HOST_SUPPORT} LIBRARIES runtime TIMEOUT 900)
add_dependencies(test_swarm_host_real hearth-sandbox hearth-inner)
