hearth_test(test_markdown SOURCES test_markdown.c LIBRARIES runtime)
