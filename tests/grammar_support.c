#include "grammar_support.h"

#include <inttypes.h>
#include <math.h>
#include <regex.h>

#include "engine/grammar_internal.h"
#include "engine/schema.h"

const struct tokenizer *grammar_test_tokenizer(void) {
    static struct tokenizer *tokenizer;
    if (tokenizer == NULL) {
        const char *path = TEST_SOURCE_DIR "/examples/mini/model/tokenizer.json";
        ASSERT(is_ok(tokenizer_load(&tokenizer, path, NULL)));
    }
    return tokenizer;
}

const struct grammar_vocabulary *grammar_test_vocabulary(void) {
    static struct grammar_vocabulary *vocabulary;
    if (vocabulary == NULL) {
        ASSERT(is_ok(grammar_vocabulary_create(&vocabulary, grammar_test_tokenizer(), 0, NULL)));
    }
    return vocabulary;
}

uint64_t grammar_test_random(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15U;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

struct grammar_vocabulary *grammar_test_synthetic(size_t count, uint64_t seed) {
    const struct tokenizer *tokenizer = grammar_test_tokenizer();
    size_t known = tokenizer_vocabulary_size(tokenizer);
    CLEANUP(free_cleanup) struct grammar_token *tokens = calloc(count, sizeof *tokens);
    CLEANUP(free_cleanup) size_t *at = calloc(count + 1, sizeof *at);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 64 << 20};
    ASSERT(tokens != NULL && at != NULL && count > known);
    for (size_t i = known; i < count; i++) {
        at[i] = text.length;
        bool is_text = grammar_test_random(&seed) % 10 != 0;
        size_t parts = 2 + grammar_test_random(&seed) % (is_text ? 2 : 6);
        for (size_t part = 0; part < parts; part++) {
            unsigned char byte = (unsigned char)grammar_test_random(&seed);
            struct view bytes = view_of(&byte, 1);
            if (is_text) {
                int32_t id = (int32_t)(300 + grammar_test_random(&seed) % (known - 300));
                bytes = tokenizer_bytes(tokenizer, id);
            }
            ASSERT(is_ok(buffer_append(&text, bytes, NULL)));
        }
    }
    at[count] = text.length;
    for (size_t i = 0; i < count; i++) {
        bool is_known = i < known;
        tokens[i].bytes = is_known ? tokenizer_bytes(tokenizer, (int32_t)i)
                                   : view_slice(buffer_view(&text), at[i], at[i + 1] - at[i]);
        tokens[i].is_control = is_known && tokenizer_is_added(tokenizer, (int32_t)i);
    }
    struct grammar_vocabulary *vocabulary = NULL;
    ASSERT(is_ok(grammar_vocabulary_create_from(&vocabulary, tokens, count, NULL)));
    return vocabulary;
}

result grammar_test_compile(
    struct grammar **out,
    const struct grammar_vocabulary *vocabulary,
    const char *schema,
    struct error *error
) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    CLEANUP(grammar_cleanup) struct grammar *grammar = NULL;
    uint32_t end = 0;
    uint32_t start = 0;
    TRY(json_parse(view_of_text(schema), NULL, &document, error));
    TRY(grammar_create(&grammar, vocabulary, error));
    TRY(grammar_add_end(grammar, &end, error));
    TRY(schema_add(grammar, json_root(document), end, &start, error));
    TRY(grammar_finish(grammar, start, 1, error));
    *out = TAKE(grammar);
    return OK;
}

bool grammar_test_accepts(struct grammar *grammar, struct view text) {
    uint32_t state = grammar_start(grammar);
    return is_ok(grammar_advance_bytes(grammar, &state, text, NULL)) &&
           grammar_may_end(grammar, state);
}

bool grammar_test_has(const uint64_t *mask, int32_t id) {
    return (mask[(size_t)id / 64] >> ((size_t)id % 64) & 1U) != 0;
}

size_t grammar_test_count(const uint64_t *mask, size_t words) {
    size_t count = 0;
    for (size_t i = 0; i < words; i++) {
        count += (size_t)__builtin_popcountll(mask[i]);
    }
    return count;
}

/* ---- walks ---- */

void grammar_walk_deinit(struct grammar_walk *walk) {
    buffer_deinit(&walk->text);
    token_list_deinit(&walk->ids);
}

/* The nth allowed token. */
static int32_t pick(const uint64_t *mask, size_t words, size_t index) {
    for (size_t i = 0; i < words; i++) {
        size_t here = (size_t)__builtin_popcountll(mask[i]);
        if (index >= here) {
            index -= here;
            continue;
        }
        uint64_t rest = mask[i];
        for (; index > 0; index--) {
            rest &= rest - 1;
        }
        return (int32_t)(i * 64 + (size_t)__builtin_ctzll(rest));
    }
    return -1;
}

/* An allowed token that closes something, or -1: control tokens first, then these alone, then what
 * begins with one of them. */
static int32_t
pick_closing(const uint64_t *mask, const struct grammar_vocabulary *vocabulary, uint64_t *random) {
    static const char *const closing[] = {"\"", "]", "}", "</", "\n"};
    size_t ids = grammar_vocabulary_ids(vocabulary);
    size_t first = grammar_test_random(random) % ids;
    int32_t found = -1;
    int best = 0;
    for (size_t i = 0; i < ids && best < 3; i++) {
        int32_t id = (int32_t)((first + i) % ids);
        if (!grammar_test_has(mask, id)) {
            continue;
        }
        struct view bytes = grammar_vocabulary_token(vocabulary, id);
        int rank = vocabulary->is_control[id] != 0 ? 3 : 0;
        for (size_t j = 0; j < COUNT_OF(closing) && rank < 2; j++) {
            bool begins = view_starts_with(bytes, view_of_text(closing[j]));
            rank = view_equals_text(bytes, closing[j]) ? 2 : begins ? 1 : rank;
        }
        found = rank > best ? id : found;
        best = rank > best ? rank : best;
    }
    return found;
}

bool grammar_test_walk(
    struct grammar_walk *out,
    struct grammar *grammar,
    const struct grammar_vocabulary *vocabulary,
    int32_t end_id,
    uint64_t seed,
    size_t steps_max
) {
    size_t words = grammar_vocabulary_words(vocabulary);
    buffer_init(&out->text, 16 << 20);
    token_list_init(&out->ids, steps_max + 1);
    uint32_t state = grammar_start(grammar);
    size_t patience = 4 + grammar_test_random(&seed) % 60;
    for (size_t step = 0; step < steps_max; step++) {
        const uint64_t *mask = NULL;
        ASSERT(is_ok(grammar_mask(grammar, state, &mask, NULL)));
        bool may_end = grammar_may_end(grammar, state);
        ASSERT(grammar_test_has(mask, end_id) == may_end);
        size_t count = grammar_test_count(mask, words);
        ASSERT(count > 0);
        int32_t id = -1;
        uint64_t draw = grammar_test_random(&seed);
        if (may_end && draw % 3 == 0) {
            id = end_id;
        } else if (step > patience && draw % 4 != 0) {
            id = pick_closing(mask, vocabulary, &seed);
        }
        id = id >= 0 ? id : pick(mask, words, (size_t)(draw >> 8) % count);
        ASSERT(is_ok(grammar_advance(grammar, &state, id, NULL)));
        ASSERT(is_ok(token_list_append(&out->ids, id, NULL)));
        if (id == end_id) {
            return true;
        }
        struct view bytes = grammar_vocabulary_token(vocabulary, id);
        ASSERT(is_ok(buffer_append(&out->text, bytes, NULL)));
    }
    return false;
}

void grammar_test_check_mask(
    struct grammar *grammar, const struct grammar_vocabulary *vocabulary, uint32_t state
) {
    size_t words = grammar_vocabulary_words(vocabulary);
    const uint64_t *made = NULL;
    ASSERT(is_ok(grammar_mask(grammar, state, &made, NULL)));
    CLEANUP(free_cleanup) uint64_t *mask = calloc(words, sizeof *mask);
    ASSERT(mask != NULL);
    memcpy(mask, made, words * sizeof *mask); // advancing may move masks
    for (size_t i = 0; i < grammar_vocabulary_ids(vocabulary); i++) {
        uint32_t next = state;
        bool can = is_ok(grammar_advance(grammar, &next, (int32_t)i, NULL));
        if (can != grammar_test_has(mask, (int32_t)i)) {
            struct view bytes = grammar_vocabulary_token(vocabulary, (int32_t)i);
            (void)fprintf(
                stderr,
                "state %u, token %zu '%.*s': mask says %d\n",
                state,
                i,
                VIEW_ARGUMENTS(bytes),
                !can
            );
            ASSERT(!"the mask is the set of tokens that can be advanced over");
        }
    }
}

/* ---- validator ---- */

static bool fits_number(struct json_value schema, double number) {
    double bound = 0;
    if (json_as_double(json_get(schema, "minimum"), &bound) && number < bound) {
        return false;
    }
    if (json_as_double(json_get(schema, "maximum"), &bound) && number > bound) {
        return false;
    }
    if (json_as_double(json_get(schema, "exclusiveMinimum"), &bound) && number <= bound) {
        return false;
    }
    return !(json_as_double(json_get(schema, "exclusiveMaximum"), &bound) && number >= bound);
}

static bool fits_text(struct json_value schema, struct view text) {
    double limit = 0;
    double characters = 0;
    for (size_t i = 0; i < text.length; i++) {
        characters += (text.data[i] & 0xC0U) != 0x80U ? 1 : 0;
    }
    if (json_as_double(json_get(schema, "minLength"), &limit) && characters < limit) {
        return false;
    }
    if (json_as_double(json_get(schema, "maxLength"), &limit) && characters > limit) {
        return false;
    }
    struct view pattern;
    if (!json_as_string(json_get(schema, "pattern"), &pattern)) {
        return true;
    }
    regex_t regex;
    CLEANUP(buffer_deinit) struct buffer copy = {NULL, 0, 0, 1 << 20};
    ASSERT(is_ok(buffer_append(&copy, pattern, NULL)));
    ASSERT(regcomp(&regex, buffer_text(&copy), REG_EXTENDED | REG_NOSUB) == 0);
    buffer_clear(&copy);
    ASSERT(is_ok(buffer_append(&copy, text, NULL)));
    bool matches = regexec(&regex, buffer_text(&copy), 0, NULL, 0) == 0;
    regfree(&regex);
    return matches;
}

static bool fits_array(struct json_value root, struct json_value schema, struct json_value value) {
    double limit = 0;
    double count = (double)json_count(value);
    if (json_as_double(json_get(schema, "minItems"), &limit) && count < limit) {
        return false;
    }
    if (json_as_double(json_get(schema, "maxItems"), &limit) && count > limit) {
        return false;
    }
    struct json_value prefix = json_first(json_get(schema, "prefixItems"));
    struct json_value items = json_get(schema, "items");
    for (struct json_value v = json_first(value); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct json_value wanted = json_type(prefix) != JSON_ABSENT ? prefix : items;
        if (json_type(wanted) != JSON_ABSENT && !grammar_test_validate(root, wanted, v)) {
            return false;
        }
        prefix = json_next(prefix);
    }
    return true;
}

static bool fits_object(struct json_value root, struct json_value schema, struct json_value value) {
    struct json_value properties = json_get(schema, "properties");
    struct json_value more = json_get(schema, "additionalProperties");
    struct view name;
    struct json_value required = json_first(json_get(schema, "required"));
    for (; json_type(required) != JSON_ABSENT; required = json_next(required)) {
        ASSERT(json_as_string(required, &name));
        if (json_type(json_get_view(value, name)) == JSON_ABSENT) {
            return false;
        }
    }
    for (struct json_value v = json_first(value); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct json_value wanted = json_get_view(properties, json_name(v));
        wanted = json_type(wanted) != JSON_ABSENT ? wanted : more;
        if (json_type(wanted) != JSON_ABSENT && !grammar_test_validate(root, wanted, v)) {
            return false;
        }
    }
    return true;
}

static bool has_type(struct json_value type, struct json_value value) {
    struct view name;
    double number = 0;
    ASSERT(json_as_string(type, &name));
    if (view_equals_text(name, "integer")) {
        return json_as_double(value, &number) && number == floor(number);
    }
    static const char *const own[] = {
        [JSON_ABSENT] = "",
        [JSON_NULL] = "null",
        [JSON_BOOL] = "boolean",
        [JSON_NUMBER] = "number",
        [JSON_STRING] = "string",
        [JSON_ARRAY] = "array",
        [JSON_OBJECT] = "object"};
    return view_equals_text(name, own[json_type(value)]);
}

static bool fits_type(struct json_value schema, struct json_value value) {
    struct json_value type = json_get(schema, "type");
    bool is_nullable = false;
    if (json_type(type) == JSON_ABSENT ||
        (json_as_bool(json_get(schema, "nullable"), &is_nullable) && is_nullable &&
         json_type(value) == JSON_NULL)) {
        return true;
    }
    if (json_type(type) == JSON_STRING) {
        return has_type(type, value);
    }
    bool fits = false;
    for (struct json_value v = json_first(type); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        fits = fits || has_type(v, value);
    }
    return fits;
}

/* Equal as our one form writes them. */
static bool are_equal(struct json_value a, struct json_value b) {
    CLEANUP(buffer_deinit) struct buffer left = {NULL, 0, 0, 1 << 20};
    CLEANUP(buffer_deinit) struct buffer right = {NULL, 0, 0, 1 << 20};
    struct json_writer writer;
    json_writer_init(&writer, &left, NULL);
    json_write_value(&writer, a);
    ASSERT(is_ok(json_writer_finish(&writer)));
    json_writer_init(&writer, &right, NULL);
    json_write_value(&writer, b);
    ASSERT(is_ok(json_writer_finish(&writer)));
    return view_equals(buffer_view(&left), buffer_view(&right));
}

static size_t fitting(struct json_value root, struct json_value branches, struct json_value value) {
    size_t count = 0;
    struct json_value v = json_first(branches);
    for (; json_type(v) != JSON_ABSENT; v = json_next(v)) {
        count += grammar_test_validate(root, v, value) ? 1 : 0;
    }
    return count;
}

static bool
fits_branches(struct json_value root, struct json_value schema, struct json_value value) {
    struct json_value any = json_get(schema, "anyOf");
    struct json_value one = json_get(schema, "oneOf");
    struct json_value all = json_get(schema, "allOf");
    return (json_type(any) == JSON_ABSENT || fitting(root, any, value) > 0) &&
           (json_type(one) == JSON_ABSENT || fitting(root, one, value) == 1) &&
           (json_type(all) == JSON_ABSENT || fitting(root, all, value) == json_count(all));
}

bool grammar_test_validate(
    struct json_value root, struct json_value schema, struct json_value value
) {
    bool allows = true;
    struct view text;
    double number = 0;
    if (json_as_bool(schema, &allows)) {
        return allows;
    }
    if (json_as_string(json_get(schema, "$ref"), &text)) {
        struct json_value target = root; // names without '/' or '~' only
        for (size_t at = 1; at < text.length;) {
            size_t end = view_find(text, view_of_text("/"), at + 1);
            end = end == SIZE_MAX ? text.length : end;
            target = json_get_view(target, view_slice(text, at + 1, end - at - 1));
            at = end;
        }
        return grammar_test_validate(root, target, value);
    }
    struct json_value constant = json_get(schema, "const");
    struct json_value values = json_get(schema, "enum");
    bool is_listed = json_type(values) == JSON_ABSENT;
    for (struct json_value v = json_first(values); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        is_listed = is_listed || are_equal(v, value);
    }
    return is_listed && (json_type(constant) == JSON_ABSENT || are_equal(constant, value)) &&
           fits_type(schema, value) && fits_branches(root, schema, value) &&
           (!json_as_string(value, &text) || fits_text(schema, text)) &&
           (!json_as_double(value, &number) || fits_number(schema, number)) &&
           (json_type(value) != JSON_ARRAY || fits_array(root, schema, value)) &&
           (json_type(value) != JSON_OBJECT || fits_object(root, schema, value));
}
