/* The program that a regular expression becomes: what the parser (tool_regex.c) writes and the run
 * (tool_regex_run.c) reads. See tool_regex.h. Thread: any.
 */
#ifndef HEARTH_TOOLS_TOOL_REGEX_CODE_H
#define HEARTH_TOOLS_TOOL_REGEX_CODE_H

#include "tool_regex.h"

enum operation {
    ANY,       /* one character */
    CHARACTER, /* the one in `value` */
    CLASS,     /* one of ranges[value, value + count), or none of them when negated */
    SPLIT,     /* go on at both: `value` and `other` away from here */
    BRANCH,    /* the same, between alternatives */
    JUMP,      /* go on `value` away from here */
    LINE_BEGIN,
    LINE_END,
    WORD_EDGE,
    NO_WORD_EDGE,
    MATCH
};

struct instruction {
    enum operation operation;
    int32_t value;
    int32_t other;
    uint32_t count;
    bool is_negated;
};

struct range {
    uint32_t low;
    uint32_t high;
};

#define REGEX_RANGES_MAX ((size_t)2000)

struct regex {
    struct instruction code[REGEX_CODE_MAX];
    size_t length;
    struct range ranges[REGEX_RANGES_MAX];
    size_t range_count;
    bool ignores_case;
    struct buffer literal;
    bool first[256]; /* bytes that a match can begin with */
    /* The sets of a run. */
    uint32_t now[REGEX_CODE_MAX];
    uint32_t next[REGEX_CODE_MAX];
    uint32_t waiting[2 * REGEX_CODE_MAX];
    uint32_t seen[REGEX_CODE_MAX]; /* the step at which it was added */
    uint32_t step;
};

/* The character at the start of `text`; a byte that begins none is a number above all of them. */
uint32_t regex_decode(struct view text, size_t *bytes);
uint32_t regex_fold(const struct regex *regex, uint32_t code_point);
/* What the run can know of a whole program: the literal and the first bytes. */
MUST_CHECK result regex_prepare(struct regex *regex, struct error *error);

#endif
