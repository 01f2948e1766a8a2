/* Encoding and decoding with a loaded tokenizer. Text is cut at added tokens, then by the file's
 * regular expressions one inside the other, and each piece is merged by bpe.c.
 *
 * The file's expressions are written for Oniguruma; PCRE2 reads them the same way with two
 * exceptions. Its \s also matches U+180E, so \s and \S are replaced by the White_Space property; its
 * Unicode is older, so categories get the characters added since. Constructs on which the two
 * disagree otherwise are refused. */
#include "tokenizer_internal.h"
#include "unicode_additions.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Backtracking steps of one match; the published expressions need a few per character. */
#define MATCH_STEPS_MAX 100000000U

struct tokenizer_split {
    pcre2_code *code;
    pcre2_match_context *context;
    bool is_compiled_to_machine_code;
};

/* ---- regular expressions ---- */

static result refuse_regex(struct view pattern, const char *what, struct error *error) {
    FAIL(
        error,
        UNSUPPORTED,
        "pre_tokenizer: the pattern '%.*s' uses %s",
        VIEW_ARGUMENTS(view_slice(pattern, 0, 80)),
        what
    );
}

/* The ranges that newer Unicode adds to a category, for use within a set. */
static result append_additions(struct buffer *out, char category, struct error *error) {
    static const struct unicode_addition additions[] = UNICODE_ADDITIONS;
    for (size_t i = 0; i < COUNT_OF(additions); i++) {
        if (additions[i].category == category) {
            unsigned first = additions[i].first;
            unsigned last = additions[i].last;
            TRY(buffer_append_format(out, error, "\\x{%X}-\\x{%X}", first, last));
        }
    }
    return OK;
}

/* \p{L} and the like at `escape`; other escapes are copied. *length: bytes used up. */
static result translate_escape(
    struct buffer *out, struct view escape, bool in_class, size_t *length, struct error *error
) {
    *length = escape.length < 2 ? escape.length : 2;
    struct view copied = view_slice(escape, 0, *length);
    if (escape.length < 2) {
        return buffer_append(out, copied, error);
    }
    unsigned char letter = escape.data[1];
    if (strchr("hHRXKGQEZyY", letter) != NULL) {
        return refuse_regex(escape, "an escape with different meanings", error);
    }
    if (letter == 's' || letter == 'S') {
        const char *property = letter == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
        return buffer_append_text(out, property, error);
    }
    bool is_category = (letter == 'p' || letter == 'P') && escape.length >= 5 &&
                       escape.data[2] == '{' && escape.data[4] == '}';
    if (!is_category || strchr("LMNPS", escape.data[3]) == NULL) {
        return buffer_append(out, copied, error);
    }
    if (letter == 'P' && in_class) {
        return refuse_regex(escape, "a negated category within a set", error);
    }
    *length = 5;
    const char *opening = in_class ? "" : letter == 'P' ? "[^" : "[";
    char category = (char)escape.data[3];
    TRY(buffer_append_format(out, error, "%s\\p{%c}", opening, category));
    TRY(append_additions(out, category, error));
    return buffer_append_text(out, in_class ? "" : "]", error);
}

static result translate(struct buffer *out, struct view pattern, struct error *error) {
    bool in_class = false;
    for (size_t i = 0; i < pattern.length;) {
        unsigned char c = pattern.data[i];
        if (c == '\\') {
            size_t length = 0;
            struct view rest = view_slice(pattern, i, SIZE_MAX);
            TRY(translate_escape(out, rest, in_class, &length, error));
            i += length;
            continue;
        }
        if (in_class && c == '[') {
            return refuse_regex(pattern, "a set within a set", error);
        }
        if (in_class && c == '&' && i + 1 < pattern.length && pattern.data[i + 1] == '&') {
            return refuse_regex(pattern, "an intersection of sets", error);
        }
        in_class = c == '[' || (in_class && c != ']');
        TRY(buffer_append_byte(out, c, error));
        i += 1;
    }
    return OK;
}

static void split_destroy(struct tokenizer_split *split) {
    if (split != NULL) {
        pcre2_match_context_free(split->context);
        pcre2_code_free(split->code);
        free(split);
    }
}

static void split_cleanup(struct tokenizer_split **split) {
    split_destroy(*split);
}

result tokenizer_add_split(struct tokenizer *tokenizer, struct view pattern, struct error *error) {
    if (tokenizer->split_count == TOKENIZER_SPLITS_MAX || pattern.length > TOKENIZER_REGEX_BYTES) {
        FAIL(
            error,
            UNSUPPORTED,
            "pre_tokenizer: more than %d patterns, or one of more than %d bytes",
            TOKENIZER_SPLITS_MAX,
            TOKENIZER_REGEX_BYTES
        );
    }
    CLEANUP(buffer_deinit) struct buffer translated = {NULL, 0, 0, 0};
    buffer_init(&translated, (size_t)512 * TOKENIZER_REGEX_BYTES);
    TRY(translate(&translated, pattern, error));
    CLEANUP(split_cleanup) struct tokenizer_split *split = calloc(1, sizeof *split);
    if (split == NULL) {
        FAIL(error, MEMORY, "no memory for a regular expression");
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    split->code =
        pcre2_compile(translated.data, translated.length, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (split->code == NULL) {
        unsigned char text[128] = {0};
        pcre2_get_error_message(code, text, sizeof text);
        FAIL(
            error,
            INVALID_INPUT,
            "pre_tokenizer: pattern '%.*s': %s at offset %zu",
            VIEW_ARGUMENTS(view_slice(pattern, 0, 80)),
            (const char *)text,
            at
        );
    }
    uint32_t matches_empty = 0;
    pcre2_pattern_info(split->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) {
        return refuse_regex(pattern, "a match of the empty text", error);
    }
    split->is_compiled_to_machine_code = pcre2_jit_compile(split->code, PCRE2_JIT_COMPLETE) == 0;
    split->context = pcre2_match_context_create(NULL);
    if (split->context == NULL) {
        FAIL(error, MEMORY, "no memory for a regular expression");
    }
    pcre2_set_match_limit(split->context, MATCH_STEPS_MAX);
    tokenizer->splits[tokenizer->split_count++] = TAKE(split);
    return OK;
}

/* First match in text[from..]; *start is text.length when there is none. */
static result find_match(
    const struct tokenizer_split *split,
    pcre2_match_data *match,
    struct view text,
    size_t from,
    size_t *start,
    size_t *end,
    struct error *error
) {
    int count = PCRE2_ERROR_JIT_STACKLIMIT;
    if (split->is_compiled_to_machine_code) {
        count = pcre2_jit_match(
            split->code, text.data, text.length, from, PCRE2_NO_UTF_CHECK, match, split->context
        );
    }
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) { // the interpreter takes its stack from the heap
        count = pcre2_match(
            split->code,
            text.data,
            text.length,
            from,
            PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
            match,
            split->context
        );
    }
    *start = text.length;
    *end = text.length;
    if (count == PCRE2_ERROR_NOMATCH) {
        return OK;
    }
    if (count < 0) {
        FAIL_FOREIGN(
            error,
            LIMIT,
            count,
            "a regular expression of the tokenizer gave up on a text of %zu bytes (PCRE2 %d)",
            text.length,
            count
        );
    }
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(match);
    ASSERT(offsets[0] >= from && offsets[1] > offsets[0] && offsets[1] <= text.length);
    *start = offsets[0];
    *end = offsets[1];
    return OK;
}

/* ---- added tokens ---- */

static result trie_node(struct marker_trie *trie, uint32_t *out, struct error *error) {
    if (trie->count == trie->capacity) {
        size_t capacity = trie->capacity == 0 ? 256 : trie->capacity * 2;
        struct marker_node *nodes = realloc(trie->nodes, capacity * sizeof *nodes);
        if (nodes == NULL) {
            FAIL(error, MEMORY, "no memory for %zu nodes of added tokens", capacity);
        }
        trie->nodes = nodes;
        trie->capacity = capacity;
        if (trie->count == 0) { // node 0 stands for "none"
            trie->nodes[0] = (struct marker_node){.id = -1};
            trie->count = 1;
        }
    }
    *out = (uint32_t)trie->count++;
    trie->nodes[*out] = (struct marker_node){.id = -1};
    return OK;
}

static uint32_t trie_child(const struct marker_trie *trie, uint32_t node, unsigned char byte) {
    uint32_t child = trie->nodes[node].first_child;
    while (child != 0 && trie->nodes[child].byte != byte) {
        child = trie->nodes[child].next_sibling;
    }
    return child;
}

result
marker_trie_add(struct marker_trie *trie, struct view text, int32_t id, struct error *error) {
    ASSERT(text.length > 0);
    uint32_t node = trie->root[text.data[0]];
    if (node == 0) {
        TRY(trie_node(trie, &node, error));
        trie->nodes[node].byte = text.data[0];
        trie->root[text.data[0]] = node;
    }
    for (size_t i = 1; i < text.length; i++) {
        uint32_t child = trie_child(trie, node, text.data[i]);
        if (child == 0) {
            TRY(trie_node(trie, &child, error));
            trie->nodes[child].byte = text.data[i];
            trie->nodes[child].next_sibling = trie->nodes[node].first_child;
            trie->nodes[node].first_child = child;
        }
        node = child;
    }
    trie->nodes[node].id = id;
    return OK;
}

/* Longest added token that starts at text[at]; 0 when none does. */
static size_t trie_match(const struct marker_trie *trie, struct view text, size_t at, int32_t *id) {
    size_t longest = 0;
    uint32_t node = trie->root[text.data[at]];
    for (size_t i = at + 1; node != 0; i++) {
        if (trie->nodes[node].id >= 0) {
            longest = i - at;
            *id = trie->nodes[node].id;
        }
        node = i < text.length ? trie_child(trie, node, text.data[i]) : 0;
    }
    return longest;
}

/* First added token in text[from..]; false when there is none. */
static bool trie_find(
    const struct marker_trie *trie,
    struct view text,
    size_t from,
    size_t *at,
    size_t *length,
    int32_t *id
) {
    for (size_t i = from; i < text.length; i++) {
        *length = trie->root[text.data[i]] == 0 ? 0 : trie_match(trie, text, i, id);
        if (*length > 0) {
            *at = i;
            return true;
        }
    }
    return false;
}

bool tokenizer_find_marker(
    const struct tokenizer *tokenizer,
    struct view text,
    size_t from,
    size_t *at,
    size_t *length,
    int32_t *id
) {
    bool found = trie_find(&tokenizer->markers[0], text, from, at, length, id);
    size_t limit = found ? *at : text.length;
    size_t second_at = 0;
    size_t second_length = 0;
    int32_t second_id = -1;
    if (!trie_find(
            &tokenizer->markers[1],
            view_slice(text, 0, limit),
            from,
            &second_at,
            &second_length,
            &second_id
        )) {
        return found;
    }
    *at = second_at;
    *length = second_length;
    *id = second_id;
    return true;
}

bool tokenizer_find_added(const struct tokenizer *tokenizer, struct view text, int32_t *id) {
    for (size_t i = 0; i < COUNT_OF(tokenizer->markers) && text.length > 0; i++) {
        if (trie_match(&tokenizer->markers[i], text, 0, id) == text.length) {
            return true;
        }
    }
    return false;
}

/* ---- encoding ---- */

/* One level of the nested splits: the piece it works on and how far it is. */
struct split_level {
    struct view piece;
    size_t at;
    size_t match_start;
    size_t match_end;
};

struct encoding {
    const struct tokenizer *tokenizer;
    struct bpe_scratch scratch;
    pcre2_match_data *match;
    struct token_list *out;
    struct error *error;
};

static void encoding_deinit(struct encoding *encoding) {
    bpe_scratch_deinit(&encoding->scratch);
    pcre2_match_data_free(encoding->match);
}

/* The next piece of a level: the text before a match, or the match itself ("isolated"). */
static result
next_piece(struct encoding *encoding, size_t depth, struct split_level *level, struct view *out) {
    if (level->at == level->match_end) {
        TRY(find_match(
            encoding->tokenizer->splits[depth],
            encoding->match,
            level->piece,
            level->at,
            &level->match_start,
            &level->match_end,
            encoding->error
        ));
    }
    size_t end = level->at < level->match_start ? level->match_start : level->match_end;
    *out = view_slice(level->piece, level->at, end - level->at);
    level->at = end;
    return OK;
}

/* Text without added tokens, valid UTF-8. */
static result encode_plain(struct encoding *encoding, struct view text) {
    const struct tokenizer *tokenizer = encoding->tokenizer;
    struct split_level levels[TOKENIZER_SPLITS_MAX];
    size_t depth = 0; // of the level that gives the next piece, plus one
    struct view piece = text;
    for (;;) {
        if (depth == tokenizer->split_count || piece.length == 0) {
            TRY(bpe_encode(
                &tokenizer->bpe, &encoding->scratch, piece, encoding->out, encoding->error
            ));
        } else {
            levels[depth++] = (struct split_level){.piece = piece};
        }
        while (depth > 0 && levels[depth - 1].at == levels[depth - 1].piece.length) {
            depth -= 1;
        }
        if (depth == 0) {
            return OK;
        }
        TRY(next_piece(encoding, depth - 1, &levels[depth - 1], &piece));
    }
}

/* Text in which added tokens count. */
static result encode_marked(struct encoding *encoding, struct view text) {
    const struct tokenizer *tokenizer = encoding->tokenizer;
    for (size_t at = 0; at < text.length;) {
        size_t first = text.length;
        size_t first_length = 0;
        int32_t first_id = -1;
        trie_find(&tokenizer->markers[0], text, at, &first, &first_length, &first_id);
        struct view between = view_slice(text, 0, first);
        while (at < first) {
            size_t second = first;
            size_t second_length = 0;
            int32_t second_id = -1;
            trie_find(&tokenizer->markers[1], between, at, &second, &second_length, &second_id);
            TRY(encode_plain(encoding, view_slice(text, at, second - at)));
            if (second_length > 0) {
                TRY(token_list_append(encoding->out, second_id, encoding->error));
            }
            at = second + second_length;
        }
        if (first_length > 0) {
            TRY(token_list_append(encoding->out, first_id, encoding->error));
        }
        at = first + first_length;
    }
    return OK;
}

result tokenizer_encode(
    const struct tokenizer *tokenizer,
    struct view text,
    enum tokenizer_markers markers,
    struct token_list *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer repaired = {NULL, 0, 0, 0};
    if (!utf8_is_valid(text)) {
        buffer_init(&repaired, SIZE_MAX / 8);
        TRY(utf8_append_lossy(&repaired, text, error));
        text = buffer_view(&repaired);
    }
    CLEANUP(encoding_deinit)
    struct encoding encoding = {.tokenizer = tokenizer, .out = out, .error = error};
    encoding.match = pcre2_match_data_create(1, NULL);
    if (encoding.match == NULL) {
        FAIL(error, MEMORY, "no memory to encode %zu bytes", text.length);
    }
    size_t count_before = out->count;
    result encoded = markers == TOKENIZER_MARKERS_ON ? encode_marked(&encoding, text)
                                                     : encode_plain(&encoding, text);
    if (is_failed(encoded)) {
        out->count = count_before;
    }
    return encoded;
}

/* ---- decoding ---- */

size_t tokenizer_vocabulary_size(const struct tokenizer *tokenizer) {
    return tokenizer->entry_count;
}

static const struct tokenizer_entry *entry_of(const struct tokenizer *tokenizer, int32_t id) {
    static const struct tokenizer_entry none = {0};
    return id >= 0 && (size_t)id < tokenizer->entry_count ? &tokenizer->entries[id] : &none;
}

bool tokenizer_is_added(const struct tokenizer *tokenizer, int32_t id) {
    return entry_of(tokenizer, id)->is_added;
}

struct view tokenizer_bytes(const struct tokenizer *tokenizer, int32_t id) {
    const struct tokenizer_entry *entry = entry_of(tokenizer, id);
    return view_slice(buffer_view(&tokenizer->text), entry->bytes_at, entry->bytes_length);
}

struct view tokenizer_spelling(const struct tokenizer *tokenizer, int32_t id) {
    const struct tokenizer_entry *entry = entry_of(tokenizer, id);
    return view_slice(buffer_view(&tokenizer->text), entry->spelling_at, entry->spelling_length);
}

static result check_id(const struct tokenizer *tokenizer, int32_t id, struct error *error) {
    if (id < 0 || (size_t)id >= tokenizer->entry_count) {
        FAIL(
            error,
            INVALID_INPUT,
            "token id %d is outside the vocabulary of %zu",
            id,
            tokenizer->entry_count
        );
    }
    return OK;
}

result tokenizer_decode(
    const struct tokenizer *tokenizer,
    const int32_t *ids,
    size_t count,
    struct buffer *out,
    struct error *error
) {
    for (size_t i = 0; i < count; i++) {
        TRY(check_id(tokenizer, ids[i], error));
    }
    for (size_t i = 0; i < count; i++) {
        TRY(buffer_append(out, tokenizer_bytes(tokenizer, ids[i]), error));
    }
    return OK;
}

/* Length of a final sequence that is valid so far but not complete, at most 3. */
static size_t torn_tail(struct view text) {
    for (size_t length = 1; length <= 3 && length <= text.length; length++) {
        const unsigned char *tail = text.data + text.length - length;
        if ((tail[0] & 0xC0U) == 0x80U) {
            continue;
        }
        size_t wanted = tail[0] >= 0xF0 ? 4 : tail[0] >= 0xE0 ? 3 : tail[0] >= 0xC2 ? 2 : 0;
        if (tail[0] > 0xF4 || length >= wanted) {
            return 0;
        }
        // Overlong forms, surrogates and code points above U+10FFFF show in the second byte.
        unsigned char low = tail[0] == 0xE0 ? 0xA0 : tail[0] == 0xF0 ? 0x90 : 0x80;
        unsigned char high = tail[0] == 0xED ? 0x9F : tail[0] == 0xF4 ? 0x8F : 0xBF;
        return length > 1 && (tail[1] < low || tail[1] > high) ? 0 : length;
    }
    return 0;
}

result tokenizer_stream_push_bytes(
    struct tokenizer_stream *stream, struct view bytes, struct buffer *out, struct error *error
) {
    if (bytes.length == 0) {
        return OK;
    }
    CLEANUP(buffer_deinit) struct buffer joined = {NULL, 0, 0, 0};
    if (stream->held_count > 0) {
        buffer_init(&joined, SIZE_MAX / 8);
        TRY(buffer_append(&joined, view_of(stream->held, stream->held_count), error));
        TRY(buffer_append(&joined, bytes, error));
        bytes = buffer_view(&joined);
    }
    size_t tail = torn_tail(bytes);
    if (!utf8_is_valid(view_slice(bytes, 0, bytes.length - tail))) {
        stream->has_replaced = true;
    }
    TRY(utf8_append_lossy(out, view_slice(bytes, 0, bytes.length - tail), error));
    stream->held_count = tail;
    if (tail > 0) {
        memcpy(stream->held, bytes.data + bytes.length - tail, tail);
    }
    return OK;
}

result tokenizer_stream_push(
    struct tokenizer_stream *stream,
    const struct tokenizer *tokenizer,
    int32_t id,
    struct buffer *out,
    struct error *error
) {
    TRY(check_id(tokenizer, id, error));
    return tokenizer_stream_push_bytes(stream, tokenizer_bytes(tokenizer, id), out, error);
}

result
tokenizer_stream_finish(struct tokenizer_stream *stream, struct buffer *out, struct error *error) {
    struct view held = view_of(stream->held, stream->held_count);
    TRY(utf8_append_lossy(out, held, error));
    stream->has_replaced = stream->has_replaced || stream->held_count > 0;
    stream->held_count = 0;
    return OK;
}

/* ---- end of life ---- */

void tokenizer_destroy(struct tokenizer *tokenizer) {
    if (tokenizer == NULL) {
        return;
    }
    for (size_t i = 0; i < tokenizer->split_count; i++) {
        split_destroy(tokenizer->splits[i]);
    }
    for (size_t i = 0; i < COUNT_OF(tokenizer->markers); i++) {
        free(tokenizer->markers[i].nodes);
    }
    bpe_deinit(&tokenizer->bpe);
    free(tokenizer->entries);
    buffer_deinit(&tokenizer->text);
    free(tokenizer);
}

void tokenizer_cleanup(struct tokenizer **tokenizer) {
    tokenizer_destroy(*tokenizer);
}
