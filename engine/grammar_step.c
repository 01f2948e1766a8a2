/* Inside of a string's characters and of a number, byte by byte. */
#include "grammar_internal.h"

/* Places inside a character. */
enum place {
    BETWEEN, /* characters */
    /* bytes that continue a UTF-8 sequence */
    LAST_1,
    LAST_2,
    LAST_3,
    AFTER_E0, /* no overlong forms */
    AFTER_ED, /* no surrogates */
    AFTER_F0,
    AFTER_F4, /* at most U+10FFFF */
    /* escapes */
    BACKSLASH,
    U,
    U_0,
    U_00,
    U_000, /* not U+0000 */
    U_D,
    HEX_3,
    HEX_2,
    HEX_1,
    HIGH_2, /* first half of a pair: two digits missing */
    HIGH_1,
    PAIR_BACKSLASH,
    PAIR_U,
    PAIR_D,
    PAIR_C /* C to F, then two digits */
};

static int hex_digit(unsigned byte) {
    if (byte >= '0' && byte <= '9') {
        return (int)(byte - '0');
    }
    unsigned lower = byte | 0x20U;
    return lower >= 'a' && lower <= 'f' ? (int)(lower - 'a') + 10 : -1;
}

static int first_byte(enum grammar_form form, unsigned byte) {
    if (byte < 0x80) {
        if (form == GRAMMAR_FORM_RAW) {
            return byte != 0 ? BETWEEN : -1;
        }
        if (byte == '\\') {
            return BACKSLASH;
        }
        return byte >= 0x20 && byte != '"' ? BETWEEN : -1;
    }
    if (byte < 0xC2 || byte > 0xF4) {
        return -1;
    }
    if (byte < 0xE0) {
        return LAST_1;
    }
    if (byte < 0xF0) {
        return byte == 0xE0 ? AFTER_E0 : byte == 0xED ? AFTER_ED : LAST_2;
    }
    return byte == 0xF0 ? AFTER_F0 : byte == 0xF4 ? AFTER_F4 : LAST_3;
}

static int continuation(enum place place, unsigned byte) {
    static const struct {
        uint8_t low, high, next;
    } table[] = {
        [LAST_1] = {0x80, 0xBF, BETWEEN},
        [LAST_2] = {0x80, 0xBF, LAST_1},
        [LAST_3] = {0x80, 0xBF, LAST_2},
        [AFTER_E0] = {0xA0, 0xBF, LAST_1},
        [AFTER_ED] = {0x80, 0x9F, LAST_1},
        [AFTER_F0] = {0x90, 0xBF, LAST_2},
        [AFTER_F4] = {0x80, 0x8F, LAST_2}};
    return byte >= table[place].low && byte <= table[place].high ? table[place].next : -1;
}

/* After "\u": four digits; not 0000, surrogates in pairs only. */
static int escape_digit(enum place place, unsigned byte) {
    int digit = hex_digit(byte);
    if (digit < 0) {
        return -1;
    }
    switch ((int)place) {
    case U:
        return digit == 0 ? U_0 : digit == 13 ? U_D : HEX_3;
    case U_0:
        return digit == 0 ? U_00 : HEX_2;
    case U_00:
        return digit == 0 ? U_000 : HEX_1;
    case U_000:
        return digit == 0 ? -1 : BETWEEN;
    case U_D:
        return digit < 8 ? HEX_2 : digit < 12 ? HIGH_2 : -1;
    case HEX_3:
        return HEX_2;
    case HEX_2:
        return HEX_1;
    case HEX_1:
        return BETWEEN;
    case HIGH_2:
        return HIGH_1;
    case HIGH_1:
        return PAIR_BACKSLASH;
    case PAIR_D:
        return digit == 13 ? PAIR_C : -1;
    default:
        ASSERT(place == PAIR_C);
        return digit >= 12 ? HEX_2 : -1;
    }
}

static int escape(enum place place, unsigned byte) {
    if (place == BACKSLASH) {
        bool is_known = byte != 0 && strchr("\"\\/bfnrt", (int)byte) != NULL;
        return byte == 'u' ? U : is_known ? BETWEEN : -1;
    }
    if (place == PAIR_BACKSLASH) {
        return byte == '\\' ? PAIR_U : -1;
    }
    if (place == PAIR_U) {
        return byte == 'u' ? PAIR_D : -1;
    }
    return escape_digit(place, byte);
}

bool grammar_step_string(
    const struct grammar_node *node, unsigned byte, struct grammar_step *step
) {
    enum place place = (enum place)step->place;
    int next = -1;
    if (place == BETWEEN) {
        bool has_room = node->max == GRAMMAR_NO_MAXIMUM || step->count < node->max;
        next = has_room ? first_byte((enum grammar_form)node->form, byte) : -1;
    } else {
        next = place < BACKSLASH ? continuation(place, byte) : escape(place, byte);
    }
    if (next < 0) {
        return false;
    }
    step->place = (unsigned)next;
    if (next == BETWEEN) {
        // Without a maximum only the way to the minimum matters.
        bool counts = node->max != GRAMMAR_NO_MAXIMUM || step->count < node->min;
        step->count += counts ? 1 : 0;
    }
    step->may_leave = next == BETWEEN && step->count >= node->min;
    return true;
}

/* Places inside a number. */
enum {
    NUMBER_BEGIN,
    NUMBER_MINUS,
    NUMBER_ZERO,
    NUMBER_WHOLE,
    NUMBER_POINT,
    NUMBER_FRACTION,
    NUMBER_E,
    NUMBER_E_SIGN,
    NUMBER_EXPONENT
};

#define FRACTION_DIGITS 17
#define EXPONENT_DIGITS 2

static bool step_digit(bool is_whole, unsigned byte, struct grammar_step *step) {
    static const uint8_t limits[] = {
        [NUMBER_WHOLE] = GRAMMAR_NUMBER_DIGITS,
        [NUMBER_FRACTION] = FRACTION_DIGITS,
        [NUMBER_EXPONENT] = EXPONENT_DIGITS};
    unsigned place = step->place;
    if (place == NUMBER_BEGIN || place == NUMBER_MINUS) {
        if (byte == '0' && place == NUMBER_MINUS && is_whole) {
            return false;
        }
        step->place = byte == '0' ? NUMBER_ZERO : NUMBER_WHOLE;
        step->count = byte == '0' ? 0 : 1;
        return true;
    }
    if (place == NUMBER_ZERO) {
        return false;
    }
    if (place == NUMBER_POINT) {
        step->place = NUMBER_FRACTION;
        step->count = 0;
    } else if (place == NUMBER_E || place == NUMBER_E_SIGN) {
        step->place = NUMBER_EXPONENT;
        step->count = 0;
    }
    step->count += 1;
    return step->count <= limits[step->place];
}

static bool step_sign_or_point(bool is_whole, unsigned byte, struct grammar_step *step) {
    unsigned place = step->place;
    bool in_whole = place == NUMBER_ZERO || place == NUMBER_WHOLE;
    if (byte == '-' && place == NUMBER_BEGIN) {
        step->place = NUMBER_MINUS;
    } else if (byte == '.' && in_whole && !is_whole) {
        step->place = NUMBER_POINT;
    } else if ((byte == 'e' || byte == 'E') && !is_whole && (in_whole || place == NUMBER_FRACTION)) {
        step->place = NUMBER_E;
    } else if ((byte == '+' || byte == '-') && place == NUMBER_E) {
        step->place = NUMBER_E_SIGN;
    } else {
        return false;
    }
    step->count = 0;
    return true;
}

bool grammar_step_number(bool is_whole, unsigned byte, struct grammar_step *step) {
    bool is_digit = byte >= '0' && byte <= '9';
    if (!(is_digit ? step_digit(is_whole, byte, step) : step_sign_or_point(is_whole, byte, step))) {
        return false;
    }
    unsigned place = step->place;
    step->may_leave = place == NUMBER_ZERO || place == NUMBER_WHOLE || place == NUMBER_FRACTION ||
                      place == NUMBER_EXPONENT;
    return true;
}

void grammar_mark_borders(bool borders[257]) {
    static const unsigned char alone[] = "\"+-./0123456789<EU\\abcdefnrtuABCDF";
    static const unsigned char begins[] = {
        0x00,
        0x01,
        0x20,
        0x80,
        0x90,
        0xA0,
        0xC0,
        0xC2,
        0xE0,
        0xE1,
        0xED,
        0xEE,
        0xF0,
        0xF1,
        0xF4,
        0xF5};
    for (size_t i = 0; i + 1 < sizeof alone; i++) {
        borders[alone[i]] = true;
        borders[alone[i] + 1] = true;
    }
    for (size_t i = 0; i < sizeof begins; i++) {
        borders[begins[i]] = true;
    }
}
