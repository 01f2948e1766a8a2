/* A schema of foreign bytes behind two bytes of choices: compiled as a value or as the parameters of
 * a call, then random tokens through its masks. No mask may be empty, every token of a mask must be
 * one that can be advanced over, and a value that came to its end must be JSON. */
#include "base/json.h"
#include "engine/grammar.h"
#include "engine/grammar_vocabulary.h"
#include "engine/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEPS_MAX  120
#define END        256
#define DSML       257
#define PIECES     30
#define TRIES_MAX  8 /* tokens of one mask that are tried */
#define TEXT_BYTES ((size_t)1 << 16)

/* All bytes, two control tokens, and pieces that cross the borders of JSON and tags. */
static struct view shared_bytes(int32_t id) {
    static const char *const pieces[PIECES] = {
        "<end>",  "DSML",   "\": ",  "\", \"", "\"}",    "\"]",        ", ",    "{\"",
        "[{\"",   "\\n",    "\\u00", "</",     ">\n",    "true",       "false", "null",
        "abc",    " \"a b", "12",    "-0.5",   "e+1",    "aa\"a",      "é\"",   "\xC3",
        "\xA9\"", "a<",     "<b",    "0000",   "string", "=\"true\">x"};
    static unsigned char bytes[256];
    if (id >= END) {
        return view_of_text(pieces[id - END]);
    }
    bytes[id] = (unsigned char)id;
    return view_of(&bytes[id], 1);
}

static const struct grammar_vocabulary *shared_vocabulary(void) {
    static struct grammar_vocabulary *vocabulary; // lives as long as the program
    if (vocabulary == NULL) {
        struct grammar_token tokens[END + PIECES];
        for (int32_t i = 0; i < END + PIECES; i++) {
            tokens[i] = (struct grammar_token){shared_bytes(i), i == END || i == DSML};
        }
        ASSERT(is_ok(grammar_vocabulary_create_from(&vocabulary, tokens, END + PIECES, NULL)));
    }
    return vocabulary;
}

static result compile(struct grammar **out, struct json_value schema, bool as_parameters) {
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    struct error error;
    uint32_t end = 0;
    uint32_t start = 0;
    TRY(grammar_create(&grammar, shared_vocabulary(), &error));
    TRY(grammar_add_end(grammar, &end, &error));
    result status = as_parameters
                        ? schema_add_parameters(grammar, schema, DSML, end, &start, &error)
                        : schema_add(grammar, schema, end, &start, &error);
    if (is_failed(status)) {
        ASSERT(strlen(error.message) > 0 && utf8_is_valid(view_of_text(error.message)));
        return status;
    }
    TRY(grammar_finish(grammar, start, END, &error));
    *out = TAKE(grammar);
    return OK;
}

/* The nth allowed token, counted around. */
static int32_t pick(const uint64_t *mask, size_t ids, size_t from) {
    for (size_t i = 0; i < ids; i++) {
        size_t id = (from + i) % ids;
        if ((mask[id / 64] >> (id % 64) & 1U) != 0) {
            return (int32_t)id;
        }
    }
    return -1;
}

/* True when the end token was taken. */
static bool walk(struct grammar *grammar, uint64_t random, struct buffer *text) {
    const struct grammar_vocabulary *vocabulary = shared_vocabulary();
    size_t ids = grammar_vocabulary_ids(vocabulary);
    uint32_t state = grammar_start(grammar);
    for (int step = 0; step < STEPS_MAX; step++) {
        const uint64_t *mask = NULL;
        uint32_t next = state;
        result status = grammar_mask(grammar, state, &mask, NULL);
        if (is_failed(status)) {
            ASSERT(status.code == RESULT_LIMIT);
            return false;
        }
        bool may_end = grammar_may_end(grammar, state);
        int32_t id = -1;
        for (int i = 0; i < TRIES_MAX; i++) {
            ASSERT(is_ok(grammar_mask(grammar, state, &mask, NULL)));
            ASSERT(((mask[END / 64] >> (END % 64) & 1U) != 0) == may_end);
            random = random * 6364136223846793005U + 1442695040888963407U;
            id = pick(mask, ids, (size_t)(random >> 33));
            ASSERT(id >= 0);
            next = state;
            status = grammar_advance(grammar, &next, id, NULL);
            ASSERT(is_ok(status) || status.code == RESULT_LIMIT);
            if (is_failed(status)) {
                return false;
            }
        }
        if (id == END) {
            return true;
        }
        state = next;
        ASSERT(is_ok(buffer_append(text, shared_bytes(id), NULL)));
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) {
        return 0;
    }
    CLEANUP(json_cleanup) struct json_document *schema = NULL;
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, TEXT_BYTES};
    bool as_parameters = (data[0] & 1U) != 0;
    if (is_failed(json_parse(view_of(data + 2, size - 2), NULL, &schema, NULL)) ||
        is_failed(compile(&grammar, json_root(schema), as_parameters))) {
        return 0;
    }
    bool has_ended = walk(grammar, (uint64_t)data[0] << 8 | data[1], &text);
    if (has_ended && !as_parameters) {
        CLEANUP(json_cleanup) struct json_document *value = NULL;
        struct error error;
        result parsed = json_parse(buffer_view(&text), NULL, &value, &error);
        ASSERT(is_ok(parsed) || strstr(error.message, "twice") != NULL); // see schema.h: maps
    }
    return 0;
}
