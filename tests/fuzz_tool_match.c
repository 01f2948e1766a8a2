/* Patterns from foreign bytes: the first line as a regular expression, a glob and a rule of an ignore
 * file, the rest as what they are held against. A literal of an expression is in all that matches;
 * a pattern without special bytes matches itself. */
#include "tools/tool_match.h"
#include "tools/tool_regex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void match_expression(struct view pattern, struct view line) {
    CLEANUP(regex_cleanup) struct regex *regex = NULL;
    CLEANUP(buffer_deinit) struct buffer why = {NULL, 0, 0, 0};
    buffer_init(&why, 1000);
    struct error error;
    ASSERT(is_ok(regex_compile(pattern, false, &regex, &why, &error)));
    ASSERT((regex == NULL) == (why.length > 0));
    if (regex != NULL && regex_matches(regex, line)) {
        struct view literal = regex_literal(regex);
        ASSERT(literal.length == 0 || view_find(line, literal, 0) != SIZE_MAX);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct view input = view_of(data, size);
    size_t end = view_find(input, view_of_text("\n"), 0);
    struct view pattern = view_slice(input, 0, end == SIZE_MAX ? size : end);
    struct view text = end == SIZE_MAX ? view_of(NULL, 0) : view_slice(input, end + 1, SIZE_MAX);
    struct error error;
    match_expression(pattern, text);
    CLEANUP(buffer_deinit) struct buffer patterns = {NULL, 0, 0, 0};
    buffer_init(&patterns, BUFFER_CEILING_DEFAULT);
    if (size < 4096 && is_ok(patterns_expand(pattern, &patterns, &error))) {
        (void)patterns_fit(&patterns, text);
    }
    bool is_plain = pattern.length > 0;
    for (size_t i = 0; i < pattern.length; i++) {
        is_plain = is_plain && strchr("*?[]\\", pattern.data[i]) == NULL;
    }
    ASSERT(!is_plain || pattern_fits_path(pattern, pattern));
    CLEANUP(buffer_deinit) struct buffer path = {NULL, 0, 0, 0};
    CLEANUP(ignore_deinit) struct ignore ignore = {0};
    buffer_init(&path, BUFFER_CEILING_DEFAULT);
    ASSERT(is_ok(buffer_append_text(&path, "a/", &error)));
    ASSERT(is_ok(buffer_append(&path, text, &error)));
    ASSERT(is_ok(ignore_enter(&ignore, "", view_slice(input, 0, 4096), &error)));
    ASSERT(is_ok(ignore_enter(&ignore, "a", view_slice(pattern, 0, 4096), &error)));
    (void)ignore_covers(&ignore, buffer_text(&path), size % 2 == 0);
    return 0;
}
