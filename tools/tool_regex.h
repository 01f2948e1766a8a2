/* Regular expressions for grep: whether one matches anywhere in a line, in time linear in the line.
 *
 * Syntax as Perl and Rust share it: . [] [^] [[:alpha:]] \d \w \s \D \W \S \b \B ^ $ ( ) (?: ) |
 * * + ? {n} {n,} {n,m}, lazy forms (which match the same lines), (?i) in front, \t \n \xHH. Refused:
 * references to groups and looking around, which need more than a pass over the line. Characters
 * are code points; a byte that begins none is one of its own. \w, \d, \s and ignoring case know ASCII;
 * \w takes everything above it as letters too. Internal to tools/. Thread: one at a time per object.
 */
#ifndef HEARTH_TOOLS_TOOL_REGEX_H
#define HEARTH_TOOLS_TOOL_REGEX_H

#include "base/bytes.h"

#define REGEX_CODE_MAX  ((size_t)2000)  /* instructions: with the line's length, the time */
#define REGEX_DEPTH_MAX ((size_t)50)    /* of groups */
#define REGEX_LINE_MAX  ((size_t)65536) /* bytes looked at of one line */

struct regex;

/* *out stays null and `why` says what is wrong with the pattern. Expected errors: MEMORY. */
MUST_CHECK result regex_compile(
    struct view pattern,
    bool ignores_case,
    struct regex **out,
    struct buffer *why,
    struct error *error
);
void regex_destroy(struct regex *regex);
void regex_cleanup(struct regex **regex);

/* At most REGEX_LINE_MAX bytes of a line without its newline. */
bool regex_matches(struct regex *regex, struct view line);
/* A text that every match contains; empty when none is known. */
struct view regex_literal(const struct regex *regex);

#endif
