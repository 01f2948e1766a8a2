/* Token map, tables of constants and row ids. Tokens whose text is the same after normalisation
 * share a compressed id; utf8proc does what the reference's normalisers do, and the steps it lacks
 * (white space) are written out here. */
#include "engram.h"

#include "engram_hash.h"
#include "tokenizer.h"

#include <utf8proc.h>

#define SEED_PER_LAYER 10007 /* official engram.py */
#define NO_ID          (-1)

struct engram_layer {
    int64_t multipliers[ENGRAM_ORDER_MAX];
    int64_t *primes;  /* [columns] */
    int64_t *offsets; /* [columns] */
    int64_t row_count;
};

struct engram {
    int32_t *token_map; /* [vocabulary_count] */
    size_t vocabulary_count;
    int32_t pad;
    size_t order_max;
    size_t head_count;
    size_t layer_count;
    struct engram_layer layers[ENGRAM_LAYERS_MAX];
};

/* ---- token map ---- */

/* Keys by first appearance. */
struct key_table {
    struct buffer text; /* keys end to end */
    struct key_slot *slots;
    size_t slot_count; /* power of two */
    int32_t count;
};

struct key_slot {
    size_t at;
    size_t length;
    int32_t id; /* NO_ID: free */
};

static result key_table_init(struct key_table *table, size_t count, struct error *error) {
    buffer_init(&table->text, BUFFER_CEILING_DEFAULT);
    table->slot_count = 16;
    while (table->slot_count < 2 * count) {
        table->slot_count *= 2;
    }
    table->slots = malloc(table->slot_count * sizeof *table->slots);
    if (table->slots == NULL) {
        FAIL(error, MEMORY, "no memory for %zu token texts", count);
    }
    for (size_t i = 0; i < table->slot_count; i++) {
        table->slots[i] = (struct key_slot){0, 0, NO_ID};
    }
    return OK;
}

static void key_table_deinit(struct key_table *table) {
    buffer_deinit(&table->text);
    free(table->slots);
}

static result
key_table_id(struct key_table *table, struct view key, int32_t *out, struct error *error) {
    uint64_t hash = 0xcbf29ce484222325U; // FNV-1a
    for (size_t i = 0; i < key.length; i++) {
        hash = (hash ^ key.data[i]) * 0x100000001b3U;
    }
    size_t at = (size_t)(hash ^ hash >> 32) & (table->slot_count - 1);
    struct key_slot *slot = &table->slots[at];
    while (slot->id != NO_ID) {
        if (view_equals(view_slice(buffer_view(&table->text), slot->at, slot->length), key)) {
            *out = slot->id;
            return OK;
        }
        at = (at + 1) & (table->slot_count - 1);
        slot = &table->slots[at];
    }
    *slot = (struct key_slot){table->text.length, key.length, table->count};
    table->count += 1;
    *out = slot->id;
    return buffer_append(&table->text, key, error);
}

static bool is_ascii(struct view text) {
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

static bool is_white_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* StripAccents of the reference takes all marks, the spacing ones of Indic scripts too: with the
 * released vocabulary only that gives the configured number of ids. */
static bool is_mark(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME;
}

/* NFKC, then NFD, without marks, in lower case. */
static result fold(struct buffer *out, struct view text, struct error *error) {
    if (is_ascii(text)) {
        for (size_t i = 0; i < text.length; i++) {
            unsigned char c = text.data[i];
            c = c >= 'A' && c <= 'Z' ? (unsigned char)(c + ('a' - 'A')) : c;
            TRY(buffer_append_byte(out, c, error));
        }
        return OK;
    }
    CLEANUP(free_cleanup) utf8proc_uint8_t *composed = NULL;
    CLEANUP(free_cleanup) utf8proc_uint8_t *decomposed = NULL;
    const utf8proc_option_t nfkc = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    const utf8proc_option_t nfd = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    utf8proc_ssize_t length =
        utf8proc_map(text.data, (utf8proc_ssize_t)text.length, &composed, nfkc);
    if (length >= 0) {
        length = utf8proc_map(composed, length, &decomposed, nfd);
    }
    if (length < 0) {
        FAIL_FOREIGN(
            error, MEMORY, (int)length, "cannot normalise a token: %s", utf8proc_errmsg(length)
        );
    }
    struct view rest = view_of(decomposed, (size_t)length);
    while (rest.length > 0) {
        uint32_t c = 0;
        size_t bytes = utf8_decode(rest, &c);
        ASSERT(bytes > 0);
        rest = view_slice(rest, bytes, SIZE_MAX);
        if (!is_mark(c)) {
            unsigned char lower[4];
            size_t count = utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), lower);
            TRY(buffer_append(out, view_of(lower, count), error));
        }
    }
    return OK;
}

/* Runs of blanks to one space, then white space off both ends, but a lone space stays. */
static void tidy_blanks(struct buffer *text) {
    size_t kept = 0;
    for (size_t i = 0; i < text->length; i++) {
        unsigned char c = text->data[i];
        bool is_blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
        if (!is_blank || kept == 0 || text->data[kept - 1] != ' ') {
            text->data[kept++] = is_blank ? ' ' : c;
        }
    }
    text->length = kept;
    if (view_equals_text(buffer_view(text), " ")) {
        return;
    }
    size_t from = 0;
    size_t to = 0; // end of the last character that is no white space
    for (size_t at = 0; at < kept;) {
        uint32_t c = 0;
        size_t bytes = utf8_decode(view_slice(buffer_view(text), at, 4), &c);
        ASSERT(bytes > 0);
        at += bytes;
        if (!is_white_space(c)) {
            to = at;
        } else if (to == 0) {
            from = at;
        }
    }
    text->length = to;
    buffer_consume(text, from < to ? from : to);
    // A private-use sentinel guards the lone space in the reference; typed by a token it becomes
    // one as well.
    size_t at = view_find(buffer_view(text), view_of_text("\xEE\x80\x80"), 0);
    while (at != SIZE_MAX) {
        text->data[at] = ' ';
        memmove(text->data + at + 1, text->data + at + 3, text->length - at - 3);
        text->length -= 2;
        at = view_find(buffer_view(text), view_of_text("\xEE\x80\x80"), at);
    }
}

static result token_key(
    const struct tokenizer *tokenizer,
    int32_t id,
    struct buffer *scratch,
    struct view *out,
    struct error *error
) {
    struct view text = tokenizer_bytes(tokenizer, id);
    bool is_broken =
        !utf8_is_valid(text) || view_find(text, view_of_text("\xEF\xBF\xBD"), 0) != SIZE_MAX;
    if (is_broken) {
        *out = tokenizer_spelling(tokenizer, id);
        return OK;
    }
    buffer_clear(scratch);
    TRY(fold(scratch, text, error));
    tidy_blanks(scratch);
    *out = scratch->length > 0 ? buffer_view(scratch) : text;
    return OK;
}

static result map_tokens(
    struct engram *engram,
    struct key_table *table,
    const struct tokenizer *tokenizer,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer scratch = {NULL, 0, 0, 0};
    buffer_init(&scratch, BUFFER_CEILING_DEFAULT);
    for (size_t i = 0; i < engram->vocabulary_count; i++) {
        struct view key = {NULL, 0};
        TRY(token_key(tokenizer, (int32_t)i, &scratch, &key, error));
        TRY(key_table_id(table, key, &engram->token_map[i], error));
    }
    return OK;
}

static result build_map(
    struct engram *engram,
    const struct tokenizer *tokenizer,
    const struct engram_options *options,
    struct error *error
) {
    engram->vocabulary_count = (size_t)options->vocabulary_count;
    engram->token_map = malloc(engram->vocabulary_count * sizeof *engram->token_map);
    if (engram->token_map == NULL) {
        FAIL(error, MEMORY, "no memory for a map of %d tokens", options->vocabulary_count);
    }
    int64_t count = options->vocabulary_count;
    if (tokenizer == NULL) {
        for (size_t i = 0; i < engram->vocabulary_count; i++) {
            engram->token_map[i] = (int32_t)i;
        }
    } else {
        CLEANUP(key_table_deinit) struct key_table table = {0};
        TRY(key_table_init(&table, engram->vocabulary_count, error));
        TRY(map_tokens(engram, &table, tokenizer, error));
        count = table.count;
    }
    if (count != options->compressed_count) {
        FAIL(
            error,
            INVALID_INPUT,
            "the vocabulary compresses to %lld Engram ids; the configuration says %lld",
            (long long)count,
            (long long)options->compressed_count
        );
    }
    engram->pad = engram->token_map[options->pad_token_id];
    return OK;
}

/* ---- constants ---- */

static result check_options(const struct engram_options *options, struct error *error) {
    bool is_sound = options->layer_count >= 1 && options->layer_count <= ENGRAM_LAYERS_MAX &&
                    options->order_max >= 2 && options->order_max <= ENGRAM_ORDER_MAX &&
                    options->head_count >= 1 && options->head_count <= ENGRAM_HEADS_MAX &&
                    options->prime_start >= 2 && options->prime_start <= INT32_MAX &&
                    options->vocabulary_count >= 1 && options->compressed_count >= 1 &&
                    options->compressed_count <= options->vocabulary_count &&
                    options->compressed_count < (int64_t)1 << 29 && options->pad_token_id >= 0 &&
                    options->pad_token_id < options->vocabulary_count;
    for (size_t i = 0; is_sound && i < options->layer_count; i++) {
        is_sound = options->layer_ids[i] >= 0;
    }
    if (!is_sound) {
        FAIL(
            error,
            INVALID_INPUT,
            "Engram: %zu layers, order %d, %d heads, primes from %lld, pad %d, %lld of %d ids: "
            "outside what this build can do",
            options->layer_count,
            options->order_max,
            options->head_count,
            (long long)options->prime_start,
            options->pad_token_id,
            (long long)options->compressed_count,
            options->vocabulary_count
        );
    }
    return OK;
}

static result build_layer(
    struct engram *engram,
    size_t slot,
    const struct engram_options *options,
    int64_t *prime,
    struct error *error
) {
    struct engram_layer *layer = &engram->layers[slot];
    size_t columns = engram_column_count(engram);
    layer->primes = malloc(columns * sizeof *layer->primes);
    layer->offsets = malloc(columns * sizeof *layer->offsets);
    if (layer->primes == NULL || layer->offsets == NULL) {
        FAIL(error, MEMORY, "no memory for %zu Engram primes", columns);
    }
    uint64_t bound = (uint64_t)(INT64_MAX / options->compressed_count) / 2;
    uint64_t seed = (uint64_t)SEED_PER_LAYER * (uint64_t)options->layer_ids[slot];
    engram_draw_multipliers(layer->multipliers, engram->order_max, seed, bound);
    for (size_t i = 0; i < columns; i++) {
        *prime = engram_next_prime(*prime + 1);
        layer->primes[i] = *prime;
        layer->offsets[i] = layer->row_count;
        layer->row_count += *prime;
        if (layer->row_count > INT32_MAX) {
            FAIL(
                error,
                INVALID_INPUT,
                "Engram layer %d: more than %d table rows",
                options->layer_ids[slot],
                INT32_MAX
            );
        }
    }
    if (options->row_counts != NULL && options->row_counts[slot] != layer->row_count) {
        FAIL(
            error,
            INVALID_INPUT,
            "Engram layer %d: %lld table rows by its primes; the configuration says %lld",
            options->layer_ids[slot],
            (long long)layer->row_count,
            (long long)options->row_counts[slot]
        );
    }
    return OK;
}

result engram_create(
    struct engram **out,
    const struct tokenizer *tokenizer,
    const struct engram_options *options,
    struct error *error
) {
    TRY(check_options(options, error));
    CLEANUP(engram_cleanup) struct engram *engram = calloc(1, sizeof *engram);
    if (engram == NULL) {
        FAIL(error, MEMORY, "no memory for Engram");
    }
    engram->order_max = (size_t)options->order_max;
    engram->head_count = (size_t)options->head_count;
    engram->layer_count = options->layer_count;
    int64_t prime = options->prime_start - 1;
    for (size_t slot = 0; slot < engram->layer_count; slot++) {
        TRY(build_layer(engram, slot, options, &prime, error));
    }
    TRY(build_map(engram, tokenizer, options, error));
    *out = TAKE(engram);
    return OK;
}

void engram_destroy(struct engram *engram) {
    if (engram == NULL) {
        return;
    }
    for (size_t slot = 0; slot < engram->layer_count; slot++) {
        free(engram->layers[slot].primes);
        free(engram->layers[slot].offsets);
    }
    free(engram->token_map);
    free(engram);
}

void engram_cleanup(struct engram **engram) {
    engram_destroy(*engram);
}

/* ---- queries ---- */

size_t engram_layer_count(const struct engram *engram) {
    return engram->layer_count;
}

size_t engram_column_count(const struct engram *engram) {
    return engram->head_count * (engram->order_max - 1);
}

size_t engram_lookback(const struct engram *engram) {
    return engram->order_max - 1;
}

int32_t engram_compress(const struct engram *engram, int32_t token_id) {
    bool is_known = token_id >= 0 && (size_t)token_id < engram->vocabulary_count;
    return is_known ? engram->token_map[token_id] : engram->pad;
}

const int32_t *engram_token_map(const struct engram *engram, size_t *count) {
    *count = engram->vocabulary_count;
    return engram->token_map;
}

int32_t engram_pad(const struct engram *engram) {
    return engram->pad;
}

const int64_t *engram_multipliers(const struct engram *engram, size_t slot) {
    ASSERT(slot < engram->layer_count);
    return engram->layers[slot].multipliers;
}

const int64_t *engram_primes(const struct engram *engram, size_t slot) {
    ASSERT(slot < engram->layer_count);
    return engram->layers[slot].primes;
}

const int64_t *engram_offsets(const struct engram *engram, size_t slot) {
    ASSERT(slot < engram->layer_count);
    return engram->layers[slot].offsets;
}

int64_t engram_row_count(const struct engram *engram, size_t slot) {
    ASSERT(slot < engram->layer_count);
    return engram->layers[slot].row_count;
}

/* history points at the current token; `back` earlier ones may be read before it. */
static void hash_token(
    const struct engram *engram,
    const struct engram_layer *layer,
    const int32_t *history,
    size_t back,
    int32_t *rows
) {
    uint64_t rolling = 0;
    bool is_blocked = false; // sticky: past the start or a dead position all is pad
    size_t column = 0;
    for (size_t s = 0; s < engram->order_max; s++) {
        is_blocked = is_blocked || s > back || *(history - s) == ENGRAM_DEAD;
        int32_t id = is_blocked ? engram->pad : *(history - s);
        rolling ^= (uint64_t)id * (uint64_t)layer->multipliers[s];
        for (size_t head = 0; s > 0 && head < engram->head_count; head++) {
            uint64_t row = rolling % (uint64_t)layer->primes[column];
            rows[column] = (int32_t)(row + (uint64_t)layer->offsets[column]);
            column += 1;
        }
    }
}

void engram_rows(
    const struct engram *engram,
    size_t slot,
    const int32_t *history,
    size_t lead,
    size_t count,
    int32_t *rows
) {
    ASSERT(slot < engram->layer_count);
    size_t columns = engram_column_count(engram);
    for (size_t i = 0; i < count; i++) {
        hash_token(engram, &engram->layers[slot], history + lead + i, lead + i, rows + i * columns);
    }
}
