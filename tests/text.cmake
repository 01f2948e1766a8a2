add_executable(tokens_cli tokens_cli.c)
target_link_libraries(tokens_cli PRIVATE engine base)
