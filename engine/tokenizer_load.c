/* tokenizer.json to tables. Every section is looked at: what this tokenizer does not implement is
 * refused by its name, so that no file is read half. */
#include "base/json.h"
#include "tokenizer_internal.h"

/* Vocabulary by spelling while loading. */
struct name_table {
    struct view *names;
    int32_t *ids;
    size_t slot_count; /* power of two */
};

struct loading {
    struct tokenizer *tokenizer;
    struct name_table names;
    struct error *error;
};

/* ---- names ---- */

static uint64_t hash_of(struct view name) {
    uint64_t hash = 0xcbf29ce484222325U; // FNV-1a
    for (size_t i = 0; i < name.length; i++) {
        hash = (hash ^ name.data[i]) * 0x100000001b3U;
    }
    return hash ^ hash >> 32;
}

static result name_table_init(struct name_table *table, size_t count, struct error *error) {
    size_t slot_count = 16;
    while (slot_count < 2 * count) {
        slot_count *= 2;
    }
    table->names = calloc(slot_count, sizeof *table->names);
    table->ids = calloc(slot_count, sizeof *table->ids);
    table->slot_count = slot_count;
    if (table->names == NULL || table->ids == NULL) {
        FAIL(error, MEMORY, "no memory for a vocabulary of %zu tokens", count);
    }
    return OK;
}

static void name_table_deinit(struct name_table *table) {
    free(table->names);
    free(table->ids);
}

static size_t name_slot(const struct name_table *table, struct view name) {
    size_t at = (size_t)hash_of(name) & (table->slot_count - 1);
    while (table->names[at].data != NULL && !view_equals(table->names[at], name)) {
        at = (at + 1) & (table->slot_count - 1);
    }
    return at;
}

static bool name_find(const struct name_table *table, struct view name, int32_t *id) {
    size_t at = name_slot(table, name);
    *id = table->ids[at];
    return table->names[at].data != NULL;
}

static void name_put(struct name_table *table, struct view name, int32_t id) {
    size_t at = name_slot(table, name);
    table->names[at] = name;
    table->ids[at] = id;
}

/* ---- bytes and the characters that stand for them ---- */

static bool is_own_character(unsigned byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* Printable bytes stand for themselves, the others follow from U+0100 in order. */
static uint32_t character_of_byte(unsigned byte) {
    if (is_own_character(byte)) {
        return byte;
    }
    uint32_t character = 256;
    for (unsigned other = 0; other < byte; other++) {
        character += is_own_character(other) ? 0 : 1;
    }
    return character;
}

/* Appends the bytes a spelling stands for; a spelling with a foreign character is its own text. */
static result append_bytes_of(
    struct buffer *out, struct view spelling, const int16_t bytes[512], struct error *error
) {
    size_t start = out->length;
    for (size_t at = 0; at < spelling.length;) {
        uint32_t character = 0;
        size_t length = utf8_decode(view_slice(spelling, at, 4), &character);
        ASSERT(length > 0); // JSON strings are UTF-8
        if (character >= 512 || bytes[character] < 0) {
            out->length = start;
            return buffer_append(out, spelling, error);
        }
        TRY(buffer_append_byte(out, (unsigned char)bytes[character], error));
        at += length;
    }
    return OK;
}

/* ---- sections that must be trivial ---- */

static result unsupported(struct loading *loading, const char *section, struct json_value value) {
    struct view raw = json_raw(value);
    FAIL(
        loading->error,
        UNSUPPORTED,
        "tokenizer.json: %s is %.*s%s, which this tokenizer does not implement",
        section,
        VIEW_ARGUMENTS(view_slice(raw, 0, 120)),
        raw.length > 120 ? "..." : ""
    );
}

static bool is_missing(struct json_value value) {
    return json_type(value) == JSON_ABSENT || json_type(value) == JSON_NULL;
}

static bool has_type(struct json_value section, const char *type) {
    struct view name;
    return json_as_string(json_get(section, "type"), &name) && view_equals_text(name, type);
}

static bool is_flag(struct json_value section, const char *name, bool wanted) {
    bool flag = false;
    return json_as_bool(json_get(section, name), &flag) && flag == wanted;
}

static result check_sections(struct loading *loading, struct json_value root) {
    static const char *const absent[] = {"truncation", "padding"};
    for (size_t i = 0; i < COUNT_OF(absent); i++) {
        struct json_value section = json_get(root, absent[i]);
        if (!is_missing(section)) {
            return unsupported(loading, absent[i], section);
        }
    }
    struct json_value normalizer = json_get(root, "normalizer");
    bool is_empty_sequence = has_type(normalizer, "Sequence") &&
                             json_type(json_get(normalizer, "normalizers")) == JSON_ARRAY &&
                             json_count(json_get(normalizer, "normalizers")) == 0;
    if (!is_missing(normalizer) && !is_empty_sequence) {
        return unsupported(loading, "normalizer", normalizer);
    }
    struct json_value post = json_get(root, "post_processor");
    if (!is_missing(post) && !has_type(post, "ByteLevel")) { // ByteLevel only trims offsets
        return unsupported(loading, "post_processor", post);
    }
    struct json_value decoder = json_get(root, "decoder");
    if (!has_type(decoder, "ByteLevel")) {
        return unsupported(loading, "decoder", decoder);
    }
    return OK;
}

static result check_model(struct loading *loading, struct json_value model) {
    static const char *const absent[] = {
        "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const off[] = {"byte_fallback", "ignore_merges"};
    if (!has_type(model, "BPE")) {
        return unsupported(loading, "model.type", json_get(model, "type"));
    }
    for (size_t i = 0; i < COUNT_OF(absent); i++) {
        struct json_value value = json_get(model, absent[i]);
        struct view text;
        bool is_empty = json_as_string(value, &text) && text.length == 0 && i >= 2;
        if (!is_missing(value) && !is_empty) {
            char name[64];
            (void)snprintf(name, sizeof name, "model.%s", absent[i]);
            return unsupported(loading, name, value);
        }
    }
    for (size_t i = 0; i < COUNT_OF(off); i++) {
        struct json_value value = json_get(model, off[i]);
        if (!is_missing(value) && !is_flag(model, off[i], false)) {
            char name[64];
            (void)snprintf(name, sizeof name, "model.%s", off[i]);
            return unsupported(loading, name, value);
        }
    }
    return OK;
}

/* ---- pre-tokenizer ---- */

static result load_split(struct loading *loading, struct json_value step) {
    struct view pattern;
    struct view behavior;
    if (!has_type(step, "Split") || !json_as_string(json_get(step, "behavior"), &behavior) ||
        !view_equals_text(behavior, "Isolated") || !is_flag(step, "invert", false) ||
        !json_as_string(json_get(json_get(step, "pattern"), "Regex"), &pattern)) {
        return unsupported(loading, "a pre_tokenizer", step);
    }
    return tokenizer_add_split(loading->tokenizer, pattern, loading->error);
}

static result check_byte_level(struct loading *loading, struct json_value step) {
    if (!has_type(step, "ByteLevel") || !is_flag(step, "add_prefix_space", false) ||
        !is_flag(step, "use_regex", false)) {
        return unsupported(loading, "the last pre_tokenizer", step);
    }
    return OK;
}

static result load_pre_tokenizer(struct loading *loading, struct json_value root) {
    struct json_value section = json_get(root, "pre_tokenizer");
    if (!has_type(section, "Sequence")) {
        return check_byte_level(loading, section);
    }
    struct json_value step = json_first(json_get(section, "pretokenizers"));
    if (json_type(step) == JSON_ABSENT) {
        return unsupported(loading, "pre_tokenizer", section);
    }
    while (json_type(json_next(step)) != JSON_ABSENT) {
        TRY(load_split(loading, step));
        step = json_next(step);
    }
    return check_byte_level(loading, step);
}

/* ---- vocabulary ---- */

static result check_token_id(struct loading *loading, int64_t id, struct view spelling) {
    if (id < 0 || id >= (int64_t)TOKENIZER_IDS_MAX) {
        FAIL(
            loading->error,
            INVALID_INPUT,
            "tokenizer.json: token '%.*s' has the id %lld; ids are 0 to %zu",
            VIEW_ARGUMENTS(view_slice(spelling, 0, 60)),
            (long long)id,
            TOKENIZER_IDS_MAX - 1
        );
    }
    return OK;
}

static result find_id_count(
    struct loading *loading, struct json_value vocabulary, struct json_value added, size_t *out
) {
    int64_t largest = -1;
    for (struct json_value v = json_first(vocabulary); json_type(v) != JSON_ABSENT;
         v = json_next(v)) {
        int64_t id = -1;
        (void)json_as_i64(v, &id);
        TRY(check_token_id(loading, id, json_name(v)));
        largest = id > largest ? id : largest;
    }
    for (struct json_value v = json_first(added); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        int64_t id = -1;
        TRY_NOTE(
            loading->error,
            json_get_i64(v, "id", &id, loading->error),
            "tokenizer.json: added_tokens"
        );
        TRY(check_token_id(loading, id, json_raw(json_get(v, "content"))));
        largest = id > largest ? id : largest;
    }
    *out = (size_t)(largest + 1);
    return OK;
}

/* Gives an id its spelling and bytes; each id once. */
static result
put_entry(struct loading *loading, int32_t id, struct view spelling, const int16_t bytes[512]) {
    struct tokenizer *tokenizer = loading->tokenizer;
    struct tokenizer_entry *entry = &tokenizer->entries[id];
    if (entry->spelling_length > 0 || spelling.length == 0) {
        FAIL(
            loading->error,
            INVALID_INPUT,
            "tokenizer.json: token '%.*s' %s (id %d)",
            VIEW_ARGUMENTS(view_slice(spelling, 0, 60)),
            spelling.length == 0 ? "is empty" : "has an id that another token has",
            id
        );
    }
    entry->spelling_at = (uint32_t)tokenizer->text.length;
    entry->spelling_length = (uint32_t)spelling.length;
    TRY(buffer_append(&tokenizer->text, spelling, loading->error));
    entry->bytes_at = (uint32_t)tokenizer->text.length;
    TRY(append_bytes_of(&tokenizer->text, spelling, bytes, loading->error));
    entry->bytes_length = (uint32_t)(tokenizer->text.length - entry->bytes_at);
    name_put(&loading->names, spelling, id);
    return OK;
}

static result
load_vocabulary(struct loading *loading, struct json_value vocabulary, const int16_t bytes[512]) {
    for (struct json_value v = json_first(vocabulary); json_type(v) != JSON_ABSENT;
         v = json_next(v)) {
        int64_t id = -1;
        (void)json_as_i64(v, &id); // checked by find_id_count
        TRY(put_entry(loading, (int32_t)id, json_name(v), bytes));
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned char character[4];
        size_t length = utf8_encode(character_of_byte(byte), character);
        int32_t *id = &loading->tokenizer->bpe.byte_ids[byte];
        if (!name_find(&loading->names, view_of(character, length), id)) {
            FAIL(
                loading->error,
                INVALID_INPUT,
                "tokenizer.json: the vocabulary has no token for byte 0x%02x",
                byte
            );
        }
    }
    return OK;
}

/* ---- merges ---- */

static bool split_merge(struct json_value merge, struct view *left, struct view *right) {
    struct view both;
    if (json_as_string(merge, &both)) {
        size_t space = view_find(both, view_of_text(" "), 0);
        *left = view_slice(both, 0, space);
        *right = view_slice(both, space == SIZE_MAX ? both.length : space + 1, SIZE_MAX);
        return space != SIZE_MAX && view_find(*right, view_of_text(" "), 0) == SIZE_MAX;
    }
    struct json_value first = json_first(merge);
    return json_type(merge) == JSON_ARRAY && json_count(merge) == 2 &&
           json_as_string(first, left) && json_as_string(json_next(first), right);
}

static result
load_merge(struct loading *loading, struct json_value merge, size_t rank, struct buffer *joined) {
    struct view left;
    struct view right;
    int32_t left_id = -1;
    int32_t right_id = -1;
    int32_t merged_id = -1;
    bool is_known = split_merge(merge, &left, &right);
    if (is_known) {
        buffer_clear(joined);
        TRY(buffer_append(joined, left, loading->error));
        TRY(buffer_append(joined, right, loading->error));
        is_known = name_find(&loading->names, left, &left_id) &&
                   name_find(&loading->names, right, &right_id) &&
                   name_find(&loading->names, buffer_view(joined), &merged_id);
    }
    if (!is_known) {
        FAIL(
            loading->error,
            INVALID_INPUT,
            "tokenizer.json: merge %zu is %.*s, which does not join two tokens to a third",
            rank,
            VIEW_ARGUMENTS(view_slice(json_raw(merge), 0, 80))
        );
    }
    bpe_put(&loading->tokenizer->bpe, left_id, right_id, (int32_t)rank, merged_id);
    return OK;
}

static result load_merges(struct loading *loading, struct json_value merges) {
    TRY(bpe_init(&loading->tokenizer->bpe, json_count(merges), loading->error));
    CLEANUP(buffer_deinit) struct buffer joined = {NULL, 0, 0, 0};
    buffer_init(&joined, TOKENIZER_FILE_BYTES_MAX);
    size_t rank = 0;
    for (struct json_value v = json_first(merges); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        TRY(load_merge(loading, v, rank, &joined));
        rank += 1;
    }
    return OK;
}

/* ---- added tokens ---- */

static result
load_added_token(struct loading *loading, struct json_value token, const int16_t bytes[512]) {
    static const char *const off[] = {"single_word", "lstrip", "rstrip"};
    struct tokenizer *tokenizer = loading->tokenizer;
    struct view content;
    int64_t id = -1;
    bool is_normalized = false;
    bool is_special = false;
    TRY(json_get_i64(token, "id", &id, loading->error));
    TRY(json_get_string(token, "content", &content, loading->error));
    TRY(json_get_bool(token, "normalized", &is_normalized, loading->error));
    TRY(json_get_bool(token, "special", &is_special, loading->error));
    for (size_t i = 0; i < COUNT_OF(off); i++) {
        bool is_on = false;
        TRY(json_get_bool(token, off[i], &is_on, loading->error));
        if (is_on) {
            return unsupported(loading, off[i], token);
        }
    }
    int32_t known = -1;
    if (!name_find(&loading->names, content, &known)) {
        TRY(put_entry(loading, (int32_t)id, content, bytes));
    } else if (known != id || tokenizer->entries[id].is_added) {
        FAIL(
            loading->error,
            INVALID_INPUT,
            "tokenizer.json: added token '%.*s' has the id %lld and also %d",
            VIEW_ARGUMENTS(view_slice(content, 0, 60)),
            (long long)id,
            known
        );
    }
    tokenizer->entries[id].is_added = true;
    return marker_trie_add(
        &tokenizer->markers[is_normalized ? 1 : 0], content, (int32_t)id, loading->error
    );
}

/* ---- the file ---- */

static result load_tokens(struct loading *loading, struct json_value root) {
    struct error *error = loading->error;
    struct json_value model = json_get(root, "model");
    struct json_value added = json_get(root, "added_tokens");
    struct json_value vocabulary;
    struct json_value merges;
    TRY_NOTE(error, json_get_object(model, "vocab", &vocabulary, error), "tokenizer.json: model");
    TRY_NOTE(error, json_get_array(model, "merges", &merges, error), "tokenizer.json: model");
    if (!is_missing(added) && json_type(added) != JSON_ARRAY) {
        return unsupported(loading, "added_tokens", added);
    }
    struct tokenizer *tokenizer = loading->tokenizer;
    TRY(find_id_count(loading, vocabulary, added, &tokenizer->entry_count));
    tokenizer->entries = calloc(tokenizer->entry_count + 1, sizeof *tokenizer->entries);
    if (tokenizer->entries == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tokens", tokenizer->entry_count);
    }
    TRY(name_table_init(&loading->names, json_count(vocabulary) + json_count(added), error));
    int16_t bytes[512];
    memset(bytes, 0xFF, sizeof bytes); // -1: stands for no byte
    for (unsigned byte = 0; byte < 256; byte++) {
        bytes[character_of_byte(byte)] = (int16_t)byte;
    }
    TRY(load_vocabulary(loading, vocabulary, bytes));
    TRY(load_merges(loading, merges));
    for (struct json_value v = json_first(added); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        TRY_NOTE(error, load_added_token(loading, v, bytes), "tokenizer.json: added_tokens");
    }
    return OK;
}

static result load_root(struct loading *loading, struct json_value root) {
    if (json_type(root) != JSON_OBJECT) {
        FAIL(
            loading->error,
            INVALID_INPUT,
            "tokenizer.json is %s, not an object",
            json_type_name(json_type(root))
        );
    }
    TRY(check_sections(loading, root));
    TRY(check_model(loading, json_get(root, "model")));
    TRY(load_pre_tokenizer(loading, root));
    return load_tokens(loading, root);
}

result tokenizer_parse(struct tokenizer **out, struct view json, struct error *error) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY_NOTE(error, json_parse(json, NULL, &document, error), "tokenizer.json");
    CLEANUP(tokenizer_cleanup) struct tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL) {
        FAIL(error, MEMORY, "no memory for a tokenizer");
    }
    buffer_init(&tokenizer->text, 4 * TOKENIZER_FILE_BYTES_MAX);
    struct loading loading = {.tokenizer = tokenizer, .error = error};
    result loaded = load_root(&loading, json_root(document));
    name_table_deinit(&loading.names);
    TRY(loaded);
    *out = TAKE(tokenizer);
    return OK;
}

result tokenizer_load(struct tokenizer **out, const char *path, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer file = {NULL, 0, 0, 0};
    buffer_init(&file, TOKENIZER_FILE_BYTES_MAX);
    TRY(limit_as_corrupt(file_read(path, &file, error), error));
    result parsed = limit_as_corrupt(tokenizer_parse(out, buffer_view(&file), error), error);
    TRY_NOTE(error, parsed, "%s", path);
    return OK;
}
