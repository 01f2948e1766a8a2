# What a person sees and types. The Python one drives the whole program in tmux and on pseudo terminals.
hearth_test(test_markdown SOURCES test_markdown.c LIBRARIES runtime)
hearth_test(test_terminal_parts SOURCES test_terminal_parts.c LIBRARIES runtime)
hearth_program_test(test_terminal hearth_scripted 900)
hearth_fuzz(fuzz_terminal SOURCES fuzz_terminal.c LIBRARIES runtime)
