/* Runs a line through the program of an expression with the set of all instructions that can be
 * next, so that no line takes more than its length times the program's (Thompson, Regular Expression
 * Search Algorithm, 1968).
 */
#include "tool_regex_code.h"

void regex_destroy(struct regex *regex) {
    if (regex != NULL) {
        buffer_deinit(&regex->literal);
        free(regex);
    }
}

void regex_cleanup(struct regex **regex) {
    regex_destroy(*regex);
    *regex = NULL;
}

struct view regex_literal(const struct regex *regex) {
    return buffer_view(&regex->literal);
}

uint32_t regex_decode(struct view text, size_t *bytes) {
    uint32_t code_point = 0;
    *bytes = utf8_decode(text, &code_point);
    if (*bytes == 0) {
        *bytes = 1;
        code_point = 0x110000U + text.data[0]; // no code point: such a byte equals itself only
    }
    return code_point;
}

uint32_t regex_fold(const struct regex *regex, uint32_t code_point) {
    bool is_upper = code_point >= 'A' && code_point <= 'Z';
    return regex->ignores_case && is_upper ? code_point + ('a' - 'A') : code_point;
}

/* The longest run of characters that every match goes through: before the first alternative. */
static result find_literal(struct regex *regex, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer run = {NULL, 0, 0, 0};
    buffer_init(&run, 4 * REGEX_CODE_MAX);
    buffer_init(&regex->literal, 4 * REGEX_CODE_MAX);
    for (size_t at = 0; at < regex->length && !regex->ignores_case;) {
        const struct instruction *instruction = &regex->code[at];
        bool is_character = instruction->operation == CHARACTER && instruction->value < 0x110000;
        if (is_character) {
            unsigned char bytes[4];
            size_t count = utf8_encode((uint32_t)instruction->value, bytes);
            TRY(buffer_append(&run, view_of(bytes, count), error));
        }
        if (run.length > regex->literal.length) {
            buffer_clear(&regex->literal);
            TRY(buffer_append(&regex->literal, buffer_view(&run), error));
        }
        if (!is_character) {
            buffer_clear(&run);
        }
        if (instruction->operation == BRANCH || instruction->operation == JUMP) {
            break;
        }
        // What a split goes around may be left out; one that goes back has been seen once.
        bool goes_around = instruction->operation == SPLIT && instruction->other > 0;
        at += goes_around ? (size_t)instruction->other : 1;
    }
    return OK;
}

static void allow_first(struct regex *regex, uint32_t low, uint32_t high) {
    for (uint32_t byte = low; byte <= high && byte < 0x80; byte++) {
        regex->first[byte] = true;
        bool is_letter = regex->ignores_case && byte >= 'a' && byte <= 'z';
        if (is_letter) {
            regex->first[byte - ('a' - 'A')] = true;
        }
    }
    for (unsigned byte = 0x80; byte < 256 && high >= 0x80; byte++) {
        regex->first[byte] = true;
    }
}

/* Bytes that can begin a match: all, where one can be empty or begins with an edge. */
static void find_first(struct regex *regex) {
    size_t count = 1;
    regex->step = 1;
    regex->waiting[0] = 0;
    while (count > 0) {
        count -= 1;
        uint32_t at = regex->waiting[count];
        const struct instruction *instruction = &regex->code[at];
        if (regex->seen[at] == regex->step) {
            continue;
        }
        regex->seen[at] = regex->step;
        enum operation operation = instruction->operation;
        if (operation == CHARACTER) {
            allow_first(regex, (uint32_t)instruction->value, (uint32_t)instruction->value);
        } else if (operation == CLASS && !instruction->is_negated && !regex->ignores_case) {
            const struct range *ranges = &regex->ranges[instruction->value];
            for (uint32_t i = 0; i < instruction->count; i++) {
                allow_first(regex, ranges[i].low, ranges[i].high);
            }
        } else if (operation == SPLIT || operation == BRANCH || operation == JUMP) {
            regex->waiting[count] = (uint32_t)((int32_t)at + instruction->value);
            count += 1;
            if (operation != JUMP) {
                regex->waiting[count] = (uint32_t)((int32_t)at + instruction->other);
                count += 1;
            }
        } else {
            memset(regex->first, true, sizeof regex->first);
        }
    }
}

result regex_prepare(struct regex *regex, struct error *error) {
    TRY(find_literal(regex, error));
    find_first(regex);
    return OK;
}

/* ---------------------------------------------------------------------- runs ---- */

static bool is_word(struct view line, size_t at) {
    if (at >= line.length) {
        return false;
    }
    unsigned char byte = line.data[at];
    return byte >= 0x80 || byte == '_' || (byte >= '0' && byte <= '9') ||
           ((byte | 0x20U) >= 'a' && (byte | 0x20U) <= 'z');
}

static bool holds(enum operation operation, struct view line, size_t at) {
    bool is_edge = (at > 0 && is_word(line, at - 1)) != is_word(line, at);
    return (operation == LINE_BEGIN && at == 0) || (operation == LINE_END && at == line.length) ||
           (operation == WORD_EDGE && is_edge) || (operation == NO_WORD_EDGE && !is_edge);
}

/* Adds an instruction and what it leads to without a character; true: that is a match. */
static bool
add(struct regex *regex, uint32_t first, struct view line, size_t at, uint32_t *set, size_t *count
) {
    size_t waiting = 1;
    regex->waiting[0] = first;
    while (waiting > 0) {
        waiting -= 1;
        uint32_t index = regex->waiting[waiting];
        if (regex->seen[index] == regex->step) {
            continue;
        }
        regex->seen[index] = regex->step;
        const struct instruction *instruction = &regex->code[index];
        enum operation operation = instruction->operation;
        if (operation == MATCH) {
            return true;
        }
        if (operation == ANY || operation == CHARACTER || operation == CLASS) {
            set[*count] = index;
            *count += 1;
            continue;
        }
        bool is_jump = operation == SPLIT || operation == BRANCH || operation == JUMP;
        if (is_jump || holds(operation, line, at)) {
            regex->waiting[waiting] =
                is_jump ? (uint32_t)((int32_t)index + instruction->value) : index + 1;
            waiting += 1;
        }
        if (operation == SPLIT || operation == BRANCH) {
            regex->waiting[waiting] = (uint32_t)((int32_t)index + instruction->other);
            waiting += 1;
        }
    }
    return false;
}

static bool
in_class(const struct regex *regex, const struct instruction *instruction, uint32_t code_point) {
    const struct range *ranges = &regex->ranges[instruction->value];
    for (uint32_t i = 0; i < instruction->count; i++) {
        if (ranges[i].low <= code_point && code_point <= ranges[i].high) {
            return true;
        }
    }
    return false;
}

static bool
accepts(const struct regex *regex, const struct instruction *instruction, uint32_t code_point) {
    if (instruction->operation == ANY) {
        return true;
    }
    if (instruction->operation == CHARACTER) {
        return (uint32_t)instruction->value == regex_fold(regex, code_point);
    }
    bool is_in = in_class(regex, instruction, code_point);
    bool is_letter = (code_point | 0x20U) >= 'a' && (code_point | 0x20U) <= 'z';
    if (!is_in && regex->ignores_case && is_letter) {
        is_in = in_class(regex, instruction, code_point ^ 0x20U);
    }
    return is_in != instruction->is_negated;
}

bool regex_matches(struct regex *regex, struct view line) {
    line = view_slice(line, 0, REGEX_LINE_MAX);
    uint32_t *now = regex->now;
    uint32_t *next = regex->next;
    size_t count = 0;
    memset(regex->seen, 0, regex->length * sizeof *regex->seen);
    regex->step = 1;
    for (size_t at = 0;;) {
        while (count == 0 && at < line.length && !regex->first[line.data[at]]) {
            at += 1;
            regex->step += 1;
        }
        if (add(regex, 0, line, at, now, &count)) { // a match may begin anywhere
            return true;
        }
        if (at == line.length) {
            return false;
        }
        size_t bytes = 0;
        uint32_t code_point = regex_decode(view_slice(line, at, 4), &bytes);
        at += bytes;
        regex->step += 1;
        size_t next_count = 0;
        for (size_t i = 0; i < count; i++) {
            if (accepts(regex, &regex->code[now[i]], code_point) &&
                add(regex, now[i] + 1, line, at, next, &next_count)) {
                return true;
            }
        }
        uint32_t *swapped = now;
        now = next;
        next = swapped;
        count = next_count;
    }
}
