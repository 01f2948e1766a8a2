# A simulated day of agent traffic against policies of eviction.
set(traffic_sources traffic.c traffic_summary.c traffic_pool.c traffic_future.c traffic_replay.c
    traffic_store.c)
hearth_test(test_kv_traffic SOURCES test_kv_traffic.c ${traffic_sources} LIBRARIES engine base m)
# Built, not run: the whole day takes minutes. docs/cache.md holds its table and plot.
add_executable(simulate_cache simulate_cache.c traffic_report.c ${traffic_sources})
target_link_libraries(simulate_cache PRIVATE engine base hearth_flags m)
