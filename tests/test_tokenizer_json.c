/* Builds tokenizer.json texts for tests. */
#include "test_tokenizer_json.h"

#include "base/json.h"

#define SPLIT(pattern)                                                                             \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern                                        \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define BYTE_LEVEL                                                                                 \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":"      \
    "false}"

const char test_pre_tokenizer[] = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT("\\\\p{N}{1,3}"
) "," SPLIT("[一-龥぀-ゟ゠-ヿ]+"
) "," SPLIT("[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}"
            "\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n"
            "]+|\\\\s+(?!\\\\S)|\\\\s+") "," BYTE_LEVEL "]}";

#define ADDED(id, text)                                                                            \
    "{\"id\":" #id ",\"content\":\"" text                                                          \
    "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":" \
    "true}"

const char test_chat_tokens[] =
    "[" ADDED(300, "<｜begin▁of▁sentence｜>") "," ADDED(301, "<｜end▁of▁sentence｜>") "," ADDED(302, "<｜User｜>") "," ADDED(303, "<｜Assistant｜>") "," ADDED(
        304, "<｜System｜>"
    ) "," ADDED(305, "<think>") "," ADDED(306, "</think>") "," ADDED(307, "｜DSML｜") "," ADDED(308, "<｜latest_reminder｜>") "," ADDED(309, "<｜place▁holder｜>") "]";

static void put(struct buffer *out, const char *text) {
    ASSERT(is_ok(buffer_append_text(out, text, NULL)));
}

static const char *or_default(const char *section, const char *otherwise) {
    return section == NULL ? otherwise : section;
}

static void put_vocabulary(struct buffer *out, const struct test_tokenizer_json *sections) {
    uint32_t next = 256;
    const char *separator = "";
    put(out, "{");
    for (unsigned byte = 0; byte < 256; byte++) {
        bool is_own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        unsigned char text[4];
        size_t length = utf8_encode(is_own ? byte : next, text);
        next += is_own ? 0 : 1;
        if (sections->left_out_byte != 0 && (unsigned)sections->left_out_byte == byte) {
            continue;
        }
        struct json_writer writer;
        json_writer_init(&writer, out, NULL);
        put(out, separator);
        json_write_string(&writer, view_of(text, length));
        ASSERT(is_ok(json_writer_finish(&writer)));
        ASSERT(is_ok(buffer_append_format(out, NULL, ":%u", byte)));
        separator = ",";
    }
    put(out, or_default(sections->vocabulary, ""));
    put(out, "}");
}

void test_tokenizer_json_write(struct buffer *out, const struct test_tokenizer_json *sections) {
    put(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":");
    put(out, or_default(sections->added_tokens, "[]"));
    put(out, ",\"normalizer\":");
    put(out, or_default(sections->normalizer, "null"));
    put(out, ",\"pre_tokenizer\":");
    put(out, or_default(sections->pre_tokenizer, test_pre_tokenizer));
    put(out, ",\"post_processor\":");
    put(out, or_default(sections->post_processor, "null"));
    put(out, ",\"decoder\":");
    put(out, or_default(sections->decoder, "{\"type\":\"ByteLevel\"}"));
    put(out, or_default(sections->extra, ""));
    put(out, ",\"model\":{\"type\":");
    put(out, or_default(sections->model_type, "\"BPE\""));
    put(out, ",\"dropout\":null,\"unk_token\":null,\"vocab\":");
    put_vocabulary(out, sections);
    put(out, ",\"merges\":");
    put(out, or_default(sections->merges, "[]"));
    put(out, or_default(sections->model_extra, ""));
    put(out, "}}");
}
