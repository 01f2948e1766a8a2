/* Small tokenizer.json texts made for tests: all 256 bytes, merges of choice, added tokens. */
#ifndef HEARTH_TESTS_TEST_TOKENIZER_JSON_H
#define HEARTH_TESTS_TEST_TOKENIZER_JSON_H

#include "base/bytes.h"

/* Sections as JSON text; null takes a sound default. */
struct test_tokenizer_json {
    const char *model_type;   /* "\"BPE\"" */
    const char *model_extra;  /* further members of model, each with a comma in front */
    const char *vocabulary;   /* further tokens: ",\"ab\": 256" */
    const char *merges;       /* array */
    const char *added_tokens; /* array */
    const char *normalizer;
    const char *pre_tokenizer;
    const char *post_processor;
    const char *decoder;
    const char *extra; /* further members of the root, each with a comma in front */
    int left_out_byte; /* 1..255: this byte gets no token */
};

/* The three published splits and the byte mapping. */
extern const char test_pre_tokenizer[];
/* The chat markers as added tokens with the ids 300 and up. */
extern const char test_chat_tokens[];

/* Writes the text into an empty buffer; aborts when memory is short. */
void test_tokenizer_json_write(struct buffer *out, const struct test_tokenizer_json *sections);

#endif
