# The network of sandboxed commands and of the fetch tool.
hearth_test(test_network_rules SOURCES test_network_rules.c LIBRARIES runtime)
hearth_test(test_proxy SOURCES test_proxy.c loopback_server.c LIBRARIES runtime LABELS threads)
hearth_test(test_sandbox_network SOURCES test_sandbox_network.c sandbox_support.c loopback_server.c
    LIBRARIES runtime sandbox base)
add_dependencies(test_sandbox_network hearth hearth-sandbox hearth-inner sandbox_atk)
hearth_fuzz(fuzz_proxy SOURCES fuzz_proxy.c LIBRARIES runtime)
hearth_test(test_http_client SOURCES test_http_client.c loopback_server.c LIBRARIES runtime)
