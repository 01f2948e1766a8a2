/* See nearest_name.h. */
#include "nearest_name.h"

#define NEAREST_TEXT_MAX 64

static unsigned lower(unsigned char byte) {
    return byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte;
}

/* Insertions, deletions and replacements from one text to the other (Wagner and Fischer); the case of
 * letters is none. */
static size_t edit_distance(struct view a, struct view b) {
    size_t row[NEAREST_TEXT_MAX + 1];
    ASSERT(b.length <= NEAREST_TEXT_MAX);
    for (size_t j = 0; j <= b.length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a.length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.length; j++) {
            size_t replaced = diagonal + (lower(a.data[i - 1]) != lower(b.data[j - 1]) ? 1 : 0);
            diagonal = row[j];
            size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = replaced < other ? replaced : other;
        }
    }
    return row[b.length];
}

const char *nearest_name(struct view wrong, const char *const *names, size_t count) {
    const char *nearest = NULL;
    size_t least = wrong.length / 3 > 2 ? wrong.length / 3 + 1 : 3; /* farther is no misspelling */
    least = least < wrong.length ? least : wrong.length;            /* nothing in common */
    if (wrong.length > NEAREST_TEXT_MAX) {
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        struct view name = view_of_text(names[i]);
        size_t distance = edit_distance(wrong, view_slice(name, 0, NEAREST_TEXT_MAX));
        struct view tail = view_slice(
            name, name.length > wrong.length ? name.length - wrong.length : 0, wrong.length
        );
        if (name.length > wrong.length && view_equals(tail, wrong) &&
            name.data[name.length - wrong.length - 1] == '.') {
            distance = 1; /* "max_bytes" for "instructions.max_bytes" */
        }
        if (distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}
