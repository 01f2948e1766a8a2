# Swarms that run: the host with a scripted engine.
set(SWARM_HOST_SUPPORT swarm_host_support.c swarm_work_fake.c writer_engine.c)
hearth_test(test_swarm_host SOURCES test_swarm_host.c ${SWARM_HOST_SUPPORT}
    LIBRARIES runtime TIMEOUT 900 LABELS threads)
hearth_test(test_swarm_host_agents SOURCES test_swarm_host_agents.c ${SWARM_HOST_SUPPORT}
    LIBRARIES runtime TIMEOUT 900 LABELS threads)
hearth_test(test_swarm_host_chaos SOURCES test_swarm_host_chaos.c ${SWARM_HOST_SUPPORT}
    LIBRARIES runtime TIMEOUT 900 LABELS threads)
