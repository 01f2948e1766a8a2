# Grammars, schemas and constraints of a turn.
hearth_test(test_grammar SOURCES test_grammar.c grammar_support.c LIBRARIES engine base)
