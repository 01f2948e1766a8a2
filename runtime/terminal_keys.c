/* Bytes are kept until they make a key; a sequence is at most SEQUENCE_BYTES_MAX long. */
#include "terminal_keys.h"

#define INPUT_BYTES_MAX    ((size_t)1 << 20)
#define SEQUENCE_BYTES_MAX 32
#define PASTE_BEGIN        "\x1b[200~"
#define PASTE_END          "\x1b[201~"

struct keys {
    struct buffer input;
    size_t taken; /* of it, by the last key */
    struct buffer paste;
    bool in_paste, paste_is_cut, is_waiting, is_late;
};

result keys_create(struct keys **out, struct error *error) {
    struct keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL) {
        FAIL(error, MEMORY, "no memory for keys");
    }
    buffer_init(&keys->input, INPUT_BYTES_MAX);
    buffer_init(&keys->paste, KEYS_PASTE_BYTES_MAX);
    *out = keys;
    return OK;
}

void keys_destroy(struct keys *keys) {
    if (keys != NULL) {
        buffer_deinit(&keys->input);
        buffer_deinit(&keys->paste);
        free(keys);
    }
}

static void drop_taken(struct keys *keys) {
    buffer_consume(&keys->input, keys->taken);
    keys->taken = 0;
}

void keys_add(struct keys *keys, struct view bytes) {
    drop_taken(keys);
    keys->is_waiting = false;
    keys->is_late = false;
    result_ignore(buffer_append(&keys->input, bytes, NULL)); /* see the header */
}

uint64_t keys_wait_ms(const struct keys *keys) {
    return !keys->is_waiting ? 0 : keys->in_paste ? KEYS_PASTE_MS : KEYS_ESCAPE_MS;
}

void keys_stop_waiting(struct keys *keys) {
    keys->is_late = true;
}

static struct key wait_for_more(struct keys *keys) {
    keys->is_waiting = true;
    return (struct key){.type = KEY_NONE};
}

static struct key take(struct keys *keys, size_t bytes, enum key_type type) {
    keys->taken = bytes;
    return (struct key){.type = type};
}

/* ---- sequences ------------------------------------------------------------------------------ */

/* What stands between "\x1b[" and the final byte, and that byte. */
static enum key_type key_of_sequence(struct view parameters, unsigned char final) {
    static const struct {
        const char *parameters;
        char final;
        enum key_type type;
    } sequences[] = {
        {"", 'A', KEY_UP},
        {"", 'B', KEY_DOWN},
        {"", 'C', KEY_RIGHT},
        {"", 'D', KEY_LEFT},
        {"", 'H', KEY_HOME},
        {"", 'F', KEY_END},
        {"1", '~', KEY_HOME},
        {"7", '~', KEY_HOME},
        {"4", '~', KEY_END},
        {"8", '~', KEY_END},
        {"3", '~', KEY_DELETE},
        {"1;5", 'C', KEY_WORD_RIGHT},
        {"1;5", 'D', KEY_WORD_LEFT},
        {"1;3", 'C', KEY_WORD_RIGHT},
        {"1;3", 'D', KEY_WORD_LEFT},
    };
    for (size_t i = 0; i < COUNT_OF(sequences); i++) {
        if (final == (unsigned char)sequences[i].final &&
            view_equals_text(parameters, sequences[i].parameters)) {
            return sequences[i].type;
        }
    }
    return KEY_IGNORED;
}

static struct key take_sequence(struct keys *keys, struct view input) {
    size_t end = 2;
    while (end < input.length && end < SEQUENCE_BYTES_MAX &&
           (input.data[end] < 0x40 || input.data[end] > 0x7E) && input.data[end] != 0x1B) {
        end++;
    }
    if (end == input.length && end < SEQUENCE_BYTES_MAX) {
        return keys->is_late ? take(keys, input.length, KEY_IGNORED) : wait_for_more(keys);
    }
    if (end == SEQUENCE_BYTES_MAX || input.data[end] == 0x1B) {
        return take(keys, end, KEY_IGNORED);
    }
    struct view parameters = view_slice(input, 2, end - 2);
    return take(keys, end + 1, key_of_sequence(parameters, input.data[end]));
}

static struct key take_escape(struct keys *keys, struct view input) {
    if (input.length == 1) {
        return keys->is_late ? take(keys, 1, KEY_ESCAPE) : wait_for_more(keys);
    }
    unsigned char next = input.data[1];
    if (next == '[') {
        return take_sequence(keys, input);
    }
    if (next == 'O') {
        if (input.length == 2) {
            return keys->is_late ? take(keys, 2, KEY_IGNORED) : wait_for_more(keys);
        }
        return take(keys, 3, key_of_sequence((struct view){0}, input.data[2]));
    }
    if (next == '\r' || next == '\n') {
        return take(keys, 2, KEY_NEWLINE);
    }
    if (next == 0x1B) {
        return take(keys, 1, KEY_ESCAPE);
    }
    struct key key = take(keys, 2, next == 0x7F ? KEY_IGNORED : KEY_ALT);
    key.letter = (char)(next >= 'A' && next <= 'Z' ? next - 'A' + 'a' : next);
    return key;
}

/* ---- paste ---------------------------------------------------------------------------------- */

static void keep_pasted(struct keys *keys, struct view text) {
    for (size_t i = 0; i < text.length && !keys->paste_is_cut; i++) {
        unsigned char byte = text.data[i] == '\r' ? '\n' : text.data[i];
        bool is_text = (byte >= 0x20 && byte != 0x7F) || byte == '\n' || byte == '\t';
        if (is_text && is_failed(buffer_append_byte(&keys->paste, byte, NULL))) {
            keys->paste_is_cut = true;
        }
    }
}

/* An end that never comes is taken for one that was lost, so that keys are keys again. */
static struct key take_paste(struct keys *keys, struct view input) {
    size_t end = view_find(input, view_of_text(PASTE_END), 0);
    if (end == SIZE_MAX && !keys->is_late) {
        size_t kept = input.length < strlen(PASTE_END) ? 0 : input.length - strlen(PASTE_END) + 1;
        keep_pasted(keys, view_slice(input, 0, kept));
        buffer_consume(&keys->input, kept);
        return wait_for_more(keys);
    }
    keep_pasted(keys, view_slice(input, 0, end));
    struct key key = take(keys, end == SIZE_MAX ? input.length : end + strlen(PASTE_END), KEY_TEXT);
    struct view text = buffer_view(&keys->paste);
    text.length = utf8_is_valid(text) ? text.length : utf8_valid_prefix(text);
    key.text = text;
    key.is_cut = keys->paste_is_cut;
    keys->in_paste = false;
    return key;
}

/* ---- keys ----------------------------------------------------------------------------------- */

static struct key take_control(struct keys *keys, unsigned char byte) {
    if (byte == '\r' || byte == '\n' || byte == '\t') {
        return take(keys, 1, byte == '\r' ? KEY_ENTER : byte == '\n' ? KEY_NEWLINE : KEY_TAB);
    }
    if (byte == 0x7F || byte == 0x08) {
        return take(keys, 1, KEY_BACKSPACE);
    }
    struct key key = take(keys, 1, byte == 0 ? KEY_IGNORED : KEY_CONTROL);
    key.letter = (char)(byte + '@');
    return key;
}

static struct key take_character(struct keys *keys, struct view input) {
    uint32_t code_point = 0;
    size_t length = utf8_decode(input, &code_point);
    if (length == 0) {
        bool is_torn = input.length < 4 && input.data[0] >= 0xC2 && input.data[0] <= 0xF4;
        for (size_t i = 1; i < input.length; i++) {
            is_torn = is_torn && (input.data[i] & 0xC0) == 0x80;
        }
        return is_torn && !keys->is_late ? wait_for_more(keys) : take(keys, 1, KEY_IGNORED);
    }
    if (code_point >= 0x80 && code_point < 0xA0) {
        return take(keys, length, KEY_IGNORED);
    }
    struct key key = take(keys, length, KEY_TEXT);
    key.text = view_slice(input, 0, length);
    return key;
}

struct key keys_next(struct keys *keys) {
    drop_taken(keys);
    keys->is_waiting = false;
    struct view input = buffer_view(&keys->input);
    if (keys->in_paste) {
        return take_paste(keys, input);
    }
    if (input.length == 0) {
        return (struct key){.type = KEY_NONE};
    }
    if (view_starts_with(input, view_of_text(PASTE_BEGIN))) {
        buffer_consume(&keys->input, strlen(PASTE_BEGIN));
        buffer_clear(&keys->paste);
        keys->in_paste = true;
        keys->paste_is_cut = false;
        return take_paste(keys, buffer_view(&keys->input));
    }
    if (input.data[0] == 0x1B) {
        return take_escape(keys, input);
    }
    if (input.data[0] < 0x20 || input.data[0] == 0x7F) {
        return take_control(keys, input.data[0]);
    }
    return take_character(keys, input);
}
