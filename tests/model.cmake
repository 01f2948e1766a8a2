hearth_test(test_sha256 SOURCES test_sha256.c LIBRARIES base)
hearth_test(test_model SOURCES test_model.c test_checkpoint.c test_safetensors.c
    LIBRARIES engine base)
hearth_test(test_model_files SOURCES test_model_files.c test_checkpoint.c test_safetensors.c
    LIBRARIES engine base)
hearth_test(test_model_synth SOURCES test_model_synth.c test_checkpoint.c test_safetensors.c
    LIBRARIES engine base)
hearth_fuzz(fuzz_safetensors SOURCES fuzz_safetensors.c LIBRARIES engine base)
hearth_fuzz(fuzz_config SOURCES fuzz_config.c LIBRARIES engine base)
