/* Knuth-Morris-Pratt for each string side by side: at most two steps per byte and string over a text,
 * and a state of two bytes per string. See stop.h. */
#include "stop.h"

struct pattern {
    struct view text; /* in the copy */
    const uint16_t
        *fallback; /* [length]: longest proper prefix that ends where i + 1 bytes matched */
};

struct stop {
    struct pattern patterns[STOP_STRINGS_MAX];
    int32_t string_count;
    int32_t id_count;
    int32_t ids[STOP_IDS_MAX];
    unsigned char *bytes; /* texts */
    uint16_t *fallbacks;
};

static result check_string(const struct stop_options *options, size_t i, struct error *error) {
    struct view text = options->strings[i];
    if (text.length == 0) {
        FAIL(error, INVALID_INPUT, "stop string %zu is empty", i);
    }
    if (text.length > STOP_STRING_BYTES_MAX) {
        FAIL(
            error,
            LIMIT,
            "stop string %zu has %zu bytes, more than %d",
            i,
            text.length,
            STOP_STRING_BYTES_MAX
        );
    }
    if (!utf8_is_valid(text)) {
        FAIL(error, INVALID_INPUT, "stop string %zu is not UTF-8", i);
    }
    return OK;
}

result stop_check(const struct stop_options *options, struct error *error) {
    if (options->string_count > STOP_STRINGS_MAX) {
        FAIL(
            error, LIMIT, "%zu stop strings, more than %d", options->string_count, STOP_STRINGS_MAX
        );
    }
    if (options->id_count > STOP_IDS_MAX) {
        FAIL(error, LIMIT, "%zu stop ids, more than %d", options->id_count, STOP_IDS_MAX);
    }
    for (size_t i = 0; i < options->string_count; i++) {
        TRY(check_string(options, i, error));
    }
    for (size_t i = 0; i < options->id_count; i++) {
        if (options->ids[i] < 0 || options->ids[i] >= options->vocabulary) {
            FAIL(
                error,
                INVALID_INPUT,
                "stop id %d: the vocabulary has ids 0 to %d",
                options->ids[i],
                options->vocabulary - 1
            );
        }
    }
    return OK;
}

static void fill_fallback(struct view text, uint16_t *fallback) {
    uint16_t prefix = 0;
    fallback[0] = 0;
    for (size_t i = 1; i < text.length; i++) {
        while (prefix > 0 && text.data[prefix] != text.data[i]) {
            prefix = fallback[prefix - 1];
        }
        if (text.data[prefix] == text.data[i]) {
            prefix++;
        }
        fallback[i] = prefix;
    }
}

result stop_create(struct stop **out, const struct stop_options *options, struct error *error) {
    TRY(stop_check(options, error));
    size_t total = 0;
    for (size_t i = 0; i < options->string_count; i++) {
        total += options->strings[i].length;
    }
    struct stop *stop = calloc(1, sizeof *stop);
    unsigned char *bytes = calloc(total + 1, 1);
    uint16_t *fallbacks = calloc(total + 1, sizeof *fallbacks);
    if (stop == NULL || bytes == NULL || fallbacks == NULL) {
        free(fallbacks);
        free(bytes);
        free(stop);
        FAIL(error, MEMORY, "no memory for %zu bytes of stop strings", total);
    }
    stop->bytes = bytes;
    stop->fallbacks = fallbacks;
    stop->string_count = (int32_t)options->string_count;
    stop->id_count = (int32_t)options->id_count;
    for (size_t i = 0; i < options->string_count; i++) {
        struct view text = options->strings[i];
        memcpy(bytes, text.data, text.length);
        fill_fallback(text, fallbacks);
        stop->patterns[i].text = view_of(bytes, text.length);
        stop->patterns[i].fallback = fallbacks;
        bytes += text.length;
        fallbacks += text.length;
    }
    for (size_t i = 0; i < options->id_count; i++) {
        stop->ids[i] = options->ids[i];
    }
    *out = stop;
    return OK;
}

uint64_t stop_bytes(uint64_t string_bytes) {
    return sizeof(struct stop) + (string_bytes + 1) * (1 + sizeof(uint16_t));
}

void stop_destroy(struct stop *stop) {
    if (stop != NULL) {
        free(stop->fallbacks);
        free(stop->bytes);
        free(stop);
    }
}

/* Whether the byte completes the pattern. */
static bool step(const struct pattern *pattern, uint16_t *matched, unsigned char byte) {
    uint16_t at = *matched;
    while (at > 0 && pattern->text.data[at] != byte) {
        at = pattern->fallback[at - 1];
    }
    if (pattern->text.data[at] == byte) {
        at++;
    }
    *matched = at;
    return at == pattern->text.length;
}

size_t
stop_take(const struct stop *stop, struct stop_state *state, struct view bytes, int32_t *index) {
    *index = -1;
    for (size_t i = 0; i < bytes.length; i++) {
        for (int32_t s = 0; s < stop->string_count; s++) {
            const struct pattern *pattern = &stop->patterns[s];
            if (step(pattern, &state->matched[s], bytes.data[i]) &&
                (*index < 0 || pattern->text.length > stop->patterns[*index].text.length)) {
                *index = s;
            }
        }
        if (*index >= 0) {
            *state = (struct stop_state){0};
            return i + 1;
        }
    }
    return bytes.length;
}

bool stop_feed(
    const struct stop *stop,
    struct stop_state *state,
    int32_t id,
    struct view bytes,
    struct stop_match *out
) {
    int32_t index = -1;
    size_t taken = stop_take(stop, state, bytes, &index);
    if (index >= 0) {
        *out = (struct stop_match){
            .index = index,
            .string_bytes = stop->patterns[index].text.length,
            .behind_bytes = bytes.length - taken,
        };
        return true;
    }
    for (int32_t i = 0; i < stop->id_count; i++) {
        if (stop->ids[i] == id) {
            *out = (struct stop_match){.is_id = true, .index = i, .string_bytes = bytes.length};
            return true;
        }
    }
    return false;
}

size_t stop_held_bytes(const struct stop *stop, const struct stop_state *state) {
    size_t held = 0;
    for (int32_t s = 0; s < stop->string_count; s++) {
        held = state->matched[s] > held ? state->matched[s] : held;
    }
    return held;
}
