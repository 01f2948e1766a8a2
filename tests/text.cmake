hearth_test(test_chat_golden SOURCES test_chat_golden.c test_safetensors.c LIBRARIES engine base)
hearth_test(test_engram SOURCES test_engram.c test_tokenizer_json.c test_safetensors.c LIBRARIES engine base)
hearth_test(test_tokenizer SOURCES test_tokenizer.c test_tokenizer_json.c test_safetensors.c LIBRARIES engine base)

# Reads JSON strings and writes their ids, for tests/compare_tokenizer.
add_executable(tokens_cli tokens_cli.c)
target_link_libraries(tokens_cli PRIVATE engine base)
hearth_test(test_chat SOURCES test_chat.c test_tokenizer_json.c LIBRARIES engine base)
hearth_test(test_chat_parser SOURCES test_chat_parser.c test_tokenizer_json.c LIBRARIES engine base)
hearth_test(test_chat_wording SOURCES test_chat_wording.c test_tokenizer_json.c LIBRARIES engine base)
hearth_fuzz(fuzz_chat_parse SOURCES fuzz_chat_parse.c test_tokenizer_json.c LIBRARIES engine base)
hearth_fuzz(fuzz_chat_wording SOURCES fuzz_chat_wording.c LIBRARIES engine base)
hearth_fuzz(fuzz_tokenizer SOURCES fuzz_tokenizer.c LIBRARIES engine base)
set_tests_properties(test_tokenizer PROPERTIES LABELS threads)
