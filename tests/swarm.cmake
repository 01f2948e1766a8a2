# What decides about many agents: budgets, the swarm, its strategies. Pure modules, no engine.
hearth_test(test_budget SOURCES test_budget.c LIBRARIES swarm base)
hearth_test(test_swarm_simulation
    SOURCES test_swarm_simulation.c swarm_simulation.c swarm_world.c
    LIBRARIES swarm base)
