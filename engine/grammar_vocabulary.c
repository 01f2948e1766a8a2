/* Tokens sorted by their bytes become tries in depth-first order; plain tokens become sets. */
#include "grammar_vocabulary.h"

#include "grammar_internal.h"
#include "tokenizer.h"

struct sorted_token {
    struct view bytes;
    int32_t id;
};

static int compare_tokens(const void *a, const void *b) {
    const struct sorted_token *left = a;
    const struct sorted_token *right = b;
    size_t length =
        left->bytes.length < right->bytes.length ? left->bytes.length : right->bytes.length;
    int order = memcmp(left->bytes.data, right->bytes.data, length);
    if (order != 0) {
        return order;
    }
    if (left->bytes.length != right->bytes.length) {
        return left->bytes.length < right->bytes.length ? -1 : 1;
    }
    return left->id < right->id ? -1 : 1;
}

static size_t common_prefix(struct view a, struct view b) {
    size_t length = 0;
    while (length < a.length && length < b.length && a.data[length] == b.data[length]) {
        length += 1;
    }
    return length;
}

/* Nodes of a trie over sorted tokens: each adds what it does not share with the one before. */
static size_t count_nodes(const struct sorted_token *tokens, size_t count) {
    size_t nodes = 0;
    struct view before = view_of_text("");
    for (size_t i = 0; i < count; i++) {
        nodes += tokens[i].bytes.length - common_prefix(before, tokens[i].bytes);
        before = tokens[i].bytes;
    }
    return nodes;
}

/* Subtrees deeper than `depth` end at node `end`. */
static void close_nodes(
    struct grammar_trie *trie, const uint32_t *path, size_t from, size_t depth, uint32_t end
) {
    for (size_t d = from; d > depth; d--) {
        trie->nodes[path[d]].end = end;
    }
}

static result build_trie(
    struct grammar_trie *trie,
    const struct sorted_token *tokens,
    size_t count,
    int32_t *twins,
    struct error *error
) {
    size_t node_count = count_nodes(tokens, count);
    trie->nodes = calloc(node_count + 1, sizeof *trie->nodes);
    if (trie->nodes == NULL) {
        FAIL(error, MEMORY, "no memory for a trie of %zu nodes", node_count);
    }
    uint32_t path[GRAMMAR_TOKEN_BYTES_MAX + 1] = {0};
    size_t open = 0;
    struct view before = view_of_text("");
    for (size_t i = 0; i < count; i++) {
        struct view bytes = tokens[i].bytes;
        size_t shared = common_prefix(before, bytes);
        close_nodes(trie, path, open, shared, (uint32_t)trie->count);
        for (size_t d = shared; d < bytes.length; d++) {
            path[d + 1] = (uint32_t)trie->count;
            trie->nodes[trie->count++] =
                (struct grammar_trie_node){0, -1, (uint16_t)(d + 1), bytes.data[d]};
        }
        open = bytes.length;
        struct grammar_trie_node *last = &trie->nodes[path[open]];
        if (twins != NULL && last->id >= 0) {
            twins[tokens[i].id] = last->id;
        }
        last->id = tokens[i].id;
        before = bytes;
    }
    close_nodes(trie, path, open, 0, (uint32_t)trie->count);
    ASSERT(trie->count == node_count);
    return OK;
}

/* Length of the plain character at the beginning; 0: what is there is not plain. */
static size_t plain_character(struct view bytes, enum grammar_form form) {
    uint32_t c = 0;
    size_t length = utf8_decode(bytes, &c);
    bool has_second = bytes.length > 1;
    if (form == GRAMMAR_FORM_RAW) {
        bool may_end = c == '<' && (!has_second || bytes.data[1] == '/');
        return c != 0 && !may_end ? length : 0;
    }
    if (c == '\\') {
        bool is_simple =
            has_second && bytes.data[1] != 0 && strchr("\"\\/bfnrt", (int)bytes.data[1]) != NULL;
        return is_simple ? 2 : 0;
    }
    return c >= 0x20 && c != '"' ? length : 0;
}

/* Length of the beginning that is plain, and its characters. */
static size_t plain_beginning(struct view bytes, enum grammar_form form, size_t *characters) {
    size_t at = 0;
    *characters = 0;
    while (at < bytes.length) {
        size_t length = plain_character(view_slice(bytes, at, SIZE_MAX), form);
        if (length == 0) {
            break;
        }
        at += length;
        *characters += 1;
    }
    return at;
}

/* Whether a string can hold or end with the byte behind a plain beginning. */
static bool may_go_on(unsigned char byte, enum grammar_form form) {
    return form == GRAMMAR_FORM_JSON ? byte >= 0x20 : byte != 0;
}

static void set_bit(uint64_t *mask, int32_t id) {
    mask[(size_t)id / 64] |= (uint64_t)1 << ((size_t)id % 64);
}

/* `long_count`: at most so many tokens are longer than the sets tell apart. */
static result allocate_form(
    struct grammar_vocabulary *vocabulary,
    enum grammar_form form,
    size_t long_count,
    struct error *error
) {
    size_t sets = GRAMMAR_PLAIN_CHARACTERS + 1;
    vocabulary->plain[form] = calloc(sets * vocabulary->words, sizeof(uint64_t));
    vocabulary->same_ending[form] = malloc(vocabulary->id_count * sizeof(int32_t));
    vocabulary->longer[form] = calloc(long_count + 1, sizeof *vocabulary->longer[form]);
    if (vocabulary->plain[form] == NULL || vocabulary->same_ending[form] == NULL ||
        vocabulary->longer[form] == NULL) {
        FAIL(error, MEMORY, "no memory for sets of %zu tokens", vocabulary->id_count);
    }
    for (size_t i = 0; i < vocabulary->id_count; i++) {
        vocabulary->same_ending[form][i] = -1;
    }
    return OK;
}

static int compare_lengths(const void *a, const void *b) {
    const struct grammar_long_token *left = a;
    const struct grammar_long_token *right = b;
    if (left->characters != right->characters) {
        return left->characters < right->characters ? -1 : 1;
    }
    return left->id < right->id ? -1 : 1;
}

static void add_plain(
    struct grammar_vocabulary *vocabulary, enum grammar_form form, size_t characters, int32_t id
) {
    if (characters > GRAMMAR_PLAIN_CHARACTERS) {
        vocabulary->longer[form][vocabulary->longer_count[form]++] =
            (struct grammar_long_token){id, (uint32_t)characters};
    }
    size_t sets = GRAMMAR_PLAIN_CHARACTERS + 1;
    size_t first = characters <= GRAMMAR_PLAIN_CHARACTERS ? characters - 1 : sets - 1;
    for (size_t set = first; set < sets; set++) {
        set_bit(&vocabulary->plain[form][set * vocabulary->words], id);
    }
}

/* Splits the tokens into sets of plain ones and tries of the others. `scratch` holds twice
 * as many. */
static result build_form(
    struct grammar_vocabulary *vocabulary,
    enum grammar_form form,
    const struct sorted_token *tokens,
    size_t count,
    struct sorted_token *scratch,
    struct error *error
) {
    size_t long_count = 0;
    for (size_t i = 0; i < count; i++) {
        long_count += tokens[i].bytes.length > GRAMMAR_PLAIN_CHARACTERS ? 1 : 0;
    }
    TRY(allocate_form(vocabulary, form, long_count, error));
    struct sorted_token *rest = scratch;
    struct sorted_token *endings = scratch + vocabulary->id_count;
    size_t rest_count = 0;
    size_t ending_count = 0;
    for (size_t i = 0; i < count; i++) {
        struct view bytes = tokens[i].bytes;
        size_t characters = 0;
        size_t plain = plain_beginning(bytes, form, &characters);
        bool is_plain = plain == bytes.length;
        if (is_plain) {
            add_plain(vocabulary, form, characters, tokens[i].id);
        } else if (plain == 0 || may_go_on(bytes.data[plain], form)) {
            endings[ending_count++] =
                (struct sorted_token){view_slice(bytes, plain, SIZE_MAX), tokens[i].id};
        }
        if (!is_plain || characters > GRAMMAR_PLAIN_CHARACTERS) {
            rest[rest_count++] = tokens[i];
        }
    }
    qsort(
        vocabulary->longer[form],
        vocabulary->longer_count[form],
        sizeof(struct grammar_long_token),
        compare_lengths
    );
    qsort(endings, ending_count, sizeof *endings, compare_tokens);
    TRY(build_trie(
        &vocabulary->endings[form], endings, ending_count, vocabulary->same_ending[form], error
    ));
    return build_trie(&vocabulary->others[form], rest, rest_count, NULL, error);
}

static result build_tries(struct grammar_vocabulary *vocabulary, struct error *error) {
    CLEANUP(free_cleanup)
    struct sorted_token *tokens = calloc(3 * vocabulary->id_count, sizeof *tokens);
    if (tokens == NULL) {
        FAIL(error, MEMORY, "no memory to sort %zu tokens", vocabulary->id_count);
    }
    size_t count = 0;
    vocabulary->characters_max = 1;
    for (size_t i = 0; i < vocabulary->id_count; i++) {
        int32_t id = (int32_t)i;
        struct view bytes = grammar_vocabulary_token(vocabulary, id);
        if (bytes.length == 0 || vocabulary->is_control[i] != 0) {
            continue;
        }
        set_bit(vocabulary->ordinary, id);
        if (bytes.length <= GRAMMAR_TOKEN_BYTES_MAX) {
            tokens[count++] = (struct sorted_token){bytes, id};
            if (bytes.length > vocabulary->characters_max) {
                vocabulary->characters_max = (unsigned)bytes.length;
            }
        }
    }
    qsort(tokens, count, sizeof *tokens, compare_tokens);
    TRY(build_trie(&vocabulary->all, tokens, count, vocabulary->twins, error));
    // Of twins one stands in the tries; masks add the others.
    for (int form = 0; form < GRAMMAR_FORM_COUNT; form++) {
        struct sorted_token *scratch = tokens + vocabulary->id_count;
        TRY(build_form(vocabulary, (enum grammar_form)form, tokens, count, scratch, error));
    }
    return OK;
}

static result copy_tokens(
    struct grammar_vocabulary *vocabulary,
    const struct grammar_token *tokens,
    size_t count,
    struct error *error
) {
    size_t ids = vocabulary->id_count;
    vocabulary->words = (ids + 63) / 64;
    vocabulary->twins = malloc(ids * sizeof *vocabulary->twins);
    vocabulary->is_control = calloc(ids, 1);
    vocabulary->bytes_at = calloc(ids + 1, sizeof *vocabulary->bytes_at);
    vocabulary->ordinary = calloc(vocabulary->words, sizeof(uint64_t));
    if (vocabulary->twins == NULL || vocabulary->is_control == NULL ||
        vocabulary->bytes_at == NULL || vocabulary->ordinary == NULL) {
        FAIL(error, MEMORY, "no memory for a vocabulary of %zu tokens", ids);
    }
    buffer_init(&vocabulary->text, UINT32_MAX);
    for (size_t i = 0; i < ids; i++) {
        vocabulary->twins[i] = -1;
        vocabulary->bytes_at[i] = (uint32_t)vocabulary->text.length;
        if (i < count) {
            vocabulary->is_control[i] = tokens[i].is_control ? 1 : 0;
            TRY(buffer_append(&vocabulary->text, tokens[i].bytes, error));
        }
    }
    vocabulary->bytes_at[ids] = (uint32_t)vocabulary->text.length;
    return OK;
}

static result create(
    struct grammar_vocabulary **out,
    const struct grammar_token *tokens,
    size_t count,
    size_t id_count,
    struct error *error
) {
    if (id_count == 0 || id_count < count || id_count > GRAMMAR_IDS_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "a vocabulary of %zu tokens for %zu ids; at least 1, at most %zu",
            count,
            id_count,
            GRAMMAR_IDS_MAX
        );
    }
    CLEANUP(grammar_vocabulary_cleanup)
    struct grammar_vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    if (vocabulary == NULL) {
        FAIL(error, MEMORY, "no memory for a vocabulary of %zu tokens", id_count);
    }
    vocabulary->id_count = id_count;
    TRY(copy_tokens(vocabulary, tokens, count, error));
    TRY(build_tries(vocabulary, error));
    *out = TAKE(vocabulary);
    return OK;
}

result grammar_vocabulary_create_from(
    struct grammar_vocabulary **out,
    const struct grammar_token *tokens,
    size_t count,
    struct error *error
) {
    return create(out, tokens, count, count, error);
}

result grammar_vocabulary_create(
    struct grammar_vocabulary **out,
    const struct tokenizer *tokenizer,
    size_t id_count,
    struct error *error
) {
    size_t count = tokenizer_vocabulary_size(tokenizer);
    CLEANUP(free_cleanup) struct grammar_token *tokens = calloc(count + 1, sizeof *tokens);
    if (tokens == NULL) {
        FAIL(error, MEMORY, "no memory for a vocabulary of %zu tokens", count);
    }
    for (size_t i = 0; i < count; i++) {
        int32_t id = (int32_t)i;
        tokens[i].bytes = tokenizer_bytes(tokenizer, id);
        tokens[i].is_control = tokenizer_is_added(tokenizer, id);
    }
    return create(out, tokens, count, id_count == 0 ? count : id_count, error);
}

void grammar_vocabulary_destroy(struct grammar_vocabulary *vocabulary) {
    if (vocabulary == NULL) {
        return;
    }
    for (int form = 0; form < GRAMMAR_FORM_COUNT; form++) {
        free(vocabulary->others[form].nodes);
        free(vocabulary->endings[form].nodes);
        free(vocabulary->same_ending[form]);
        free(vocabulary->longer[form]);
        free(vocabulary->plain[form]);
    }
    free(vocabulary->all.nodes);
    free(vocabulary->ordinary);
    free(vocabulary->twins);
    free(vocabulary->is_control);
    free(vocabulary->bytes_at);
    buffer_deinit(&vocabulary->text);
    free(vocabulary);
}

void grammar_vocabulary_cleanup(struct grammar_vocabulary **vocabulary) {
    grammar_vocabulary_destroy(*vocabulary);
}

size_t grammar_vocabulary_ids(const struct grammar_vocabulary *vocabulary) {
    return vocabulary->id_count;
}

size_t grammar_vocabulary_words(const struct grammar_vocabulary *vocabulary) {
    return vocabulary->words;
}

size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary) {
    size_t nodes = vocabulary->all.count;
    size_t longer = 0;
    for (int form = 0; form < GRAMMAR_FORM_COUNT; form++) {
        longer += vocabulary->longer_count[form];
        nodes += vocabulary->others[form].count + vocabulary->endings[form].count;
    }
    size_t masks = 1 + (size_t)GRAMMAR_FORM_COUNT * (GRAMMAR_PLAIN_CHARACTERS + 1);
    return sizeof *vocabulary + longer * sizeof(struct grammar_long_token) +
           nodes * sizeof(struct grammar_trie_node) + masks * vocabulary->words * sizeof(uint64_t) +
           vocabulary->text.capacity +
           vocabulary->id_count * ((1 + GRAMMAR_FORM_COUNT) * sizeof *vocabulary->twins +
                                   sizeof *vocabulary->bytes_at + sizeof(uint8_t));
}

struct view grammar_vocabulary_token(const struct grammar_vocabulary *vocabulary, int32_t id) {
    ASSERT(id >= 0 && (size_t)id < vocabulary->id_count);
    uint32_t at = vocabulary->bytes_at[id];
    return view_slice(buffer_view(&vocabulary->text), at, vocabulary->bytes_at[id + 1] - at);
}

bool grammar_vocabulary_find_control(
    const struct grammar_vocabulary *vocabulary, struct view bytes, int32_t *id
) {
    for (size_t i = 0; i < vocabulary->id_count; i++) {
        if (vocabulary->is_control[i] != 0 &&
            view_equals(grammar_vocabulary_token(vocabulary, (int32_t)i), bytes)) {
            *id = (int32_t)i;
            return true;
        }
    }
    return false;
}
