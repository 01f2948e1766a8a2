/* Matching that errs on one side: rules that allow match less, rules that deny match more. */
#include "permission_match.h"

#include "permission_words.h"

#define WORKSPACE_INSIDE "/workspace"

/* Where to go on when the text behind a star does not fit: the star takes one byte more. */
struct star {
    size_t pattern; /* behind the star; SIZE_MAX: there was none */
    size_t text;    /* where what it takes ends */
};

/* Of ASCII: for file systems to which both cases are one name. */
static unsigned char lower(unsigned char c) {
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
}

/* Takes one item of the pattern that is no star. */
static bool
take_item(struct view pattern, size_t *p, struct view text, size_t *t, bool is_path, bool folds) {
    if (*p >= pattern.length || *t >= text.length) {
        return false;
    }
    unsigned char want = pattern.data[*p];
    if (want == '?') {
        uint32_t ignored = 0;
        size_t length = utf8_decode(view_slice(text, *t, 4), &ignored);
        if (is_path && text.data[*t] == '/') {
            return false;
        }
        *t += length > 0 ? length : 1;
        *p += 1;
        return true;
    }
    size_t escape = want == '\\' && *p + 1 < pattern.length ? 1 : 0;
    unsigned char a = pattern.data[*p + escape];
    unsigned char b = text.data[*t];
    if (folds ? lower(a) != lower(b) : a != b) {
        return false;
    }
    *p += 1 + escape;
    *t += 1;
    return true;
}

/* Only the last star of each kind is ever lengthened: what an earlier one of the same kind could take
 * in addition, the later one can take as well. */
static bool matches(struct view pattern, struct view text, bool is_path, bool folds) {
    struct star deep = {SIZE_MAX, 0};
    struct star flat = {SIZE_MAX, 0}; /* stops at '/' */
    size_t p = 0;
    size_t t = 0;
    while (t < text.length || p < pattern.length) {
        if (p < pattern.length && pattern.data[p] == '*') {
            bool is_deep = !is_path || (p + 1 < pattern.length && pattern.data[p + 1] == '*');
            while (p < pattern.length && pattern.data[p] == '*') {
                p++;
            }
            flat = (struct star){is_deep ? SIZE_MAX : p, t};
            deep = is_deep ? (struct star){p, t} : deep;
        } else if (take_item(pattern, &p, text, &t, is_path, folds)) {
            continue;
        } else if (flat.pattern != SIZE_MAX && flat.text < text.length && text.data[flat.text] != '/') {
            p = flat.pattern;
            t = ++flat.text;
        } else if (deep.pattern != SIZE_MAX && deep.text < text.length) {
            flat.pattern = SIZE_MAX;
            p = deep.pattern;
            t = ++deep.text;
        } else {
            return false;
        }
    }
    return true;
}

bool glob_matches(struct view pattern, struct view text, bool is_path) {
    return matches(pattern, text, is_path, false);
}

bool path_normalise(struct view path, char out[PERMISSION_PATH_MAX + 1]) {
    struct view inside = view_of_text(WORKSPACE_INSIDE);
    struct view rest = path;
    size_t length = 0;
    bool has_null = path.length > 0 && memchr(path.data, '\0', path.length) != NULL;
    if (path.length > PERMISSION_PATH_MAX || has_null) {
        return false;
    }
    if (view_starts_with(path, inside) &&
        (path.length == inside.length || path.data[inside.length] == '/')) {
        rest = view_slice(path, inside.length, path.length);
    } else if (path.length > 0 && path.data[0] == '/') {
        return false;
    }
    for (size_t at = 0; at < rest.length;) {
        size_t slash = view_find(rest, view_of_text("/"), at);
        size_t end = slash == SIZE_MAX ? rest.length : slash;
        struct view part = view_slice(rest, at, end - at);
        if (view_equals_text(part, "..")) {
            if (length == 0) {
                return false;
            }
            while (length > 0 && out[length - 1] != '/') {
                length--;
            }
            length -= length > 0 ? 1 : 0;
        } else if (part.length > 0 && !view_equals_text(part, ".")) {
            if (length > 0) {
                out[length++] = '/';
            }
            memcpy(out + length, part.data, part.length);
            length += part.length;
        }
        at = end + 1;
    }
    out[length] = '\0';
    return true;
}

enum match match_url(struct view pattern, struct view url, bool is_strict) {
    /* "https://host@other/" goes to other; a backslash is a slash to some */
    size_t scheme = view_find(url, view_of_text("://"), 0);
    size_t host = scheme == SIZE_MAX ? 0 : scheme + 3;
    size_t slash = view_find(url, view_of_text("/"), host);
    struct view authority = view_slice(url, host, (slash == SIZE_MAX ? url.length : slash) - host);
    bool is_plain = scheme != SIZE_MAX && view_find(authority, view_of_text("@"), 0) == SIZE_MAX &&
                    view_find(url, view_of_text("\\"), 0) == SIZE_MAX;
    if ((is_plain || !is_strict) && glob_matches(pattern, url, true)) {
        return MATCH_YES;
    }
    return is_strict || is_plain ? MATCH_NO : MATCH_PERHAPS;
}

/* A rule for a directory is for all below it. */
static bool covers_above(struct view pattern, struct view path, bool folds) {
    for (size_t i = 1; i < path.length; i++) {
        if (path.data[i] == '/' && matches(pattern, view_slice(path, 0, i), true, folds)) {
            return true;
        }
    }
    return matches(pattern, path, true, folds);
}

enum match match_path(struct view pattern, const struct named_path *path, bool is_strict) {
    struct view inside = view_of_text(path->clean);
    if (is_strict) {
        return path->is_inside && matches(pattern, inside, true, false) ? MATCH_YES : MATCH_NO;
    }
    if ((path->is_inside && covers_above(pattern, inside, false)) ||
        matches(pattern, path->given, true, false)) {
        return MATCH_YES;
    }
    return !path->is_inside || covers_above(pattern, inside, true) ? MATCH_PERHAPS : MATCH_NO;
}

/* ---- commands ------------------------------------------------------------------------------- */

/* Whether * or ? stands in it. */
static bool has_wildcard(struct view pattern) {
    for (size_t i = 0; i < pattern.length; i++) {
        if (pattern.data[i] == '\\') {
            i++;
        } else if (pattern.data[i] == '*' || pattern.data[i] == '?') {
            return true;
        }
    }
    return false;
}

/* Whether a part of the path, or of what stands behind an = in it, is "..". */
static bool has_parent(struct view word) {
    for (size_t at = 0; at + 2 <= word.length; at++) {
        bool begins = at == 0 || strchr("/=:,", word.data[at - 1]) != NULL;
        bool ends = at + 2 == word.length || strchr("/:,", word.data[at + 2]) != NULL;
        if (begins && ends && word.data[at] == '.' && word.data[at + 1] == '.') {
            return true;
        }
    }
    return false;
}

/* A rule that allows: one word of a pattern over one word that the shell leaves as it is. */
static bool word_is_covered(struct view pattern, const struct shell_word *word, bool is_first) {
    bool is_any = view_equals_text(pattern, "*");
    if (is_first && word->is_expanded) {
        return false;
    }
    if (!is_any && has_wildcard(pattern) && (word->is_expanded || has_parent(word->text))) {
        /* "build/.?/x" fits "build/" and a star, and is "build/../x" */
        return view_equals(pattern, word->text) && !is_first;
    }
    return glob_matches(pattern, word->text, false);
}

/* A rule that asks or denies. */
static enum match word_is_meant(struct view pattern, const struct shell_word *word, bool is_first) {
    char clean[PERMISSION_PATH_MAX + 1];
    if (glob_matches(pattern, word->text, false) ||
        (is_first && glob_matches(pattern, command_name(word), false)) ||
        (path_normalise(word->text, clean) && glob_matches(pattern, view_of_text(clean), false))) {
        return MATCH_YES;
    }
    return word->is_expanded ? MATCH_PERHAPS : MATCH_NO;
}

/* The next word of a pattern; \\ takes a blank into it. False: there is none. */
static bool next_word(struct view pattern, size_t *at, struct view *word) {
    while (*at < pattern.length && pattern.data[*at] == ' ') {
        *at += 1;
    }
    size_t from = *at;
    while (*at < pattern.length && pattern.data[*at] != ' ') {
        *at += pattern.data[*at] == '\\' && *at + 1 < pattern.length ? 2 : 1;
    }
    *word = view_slice(pattern, from, *at - from);
    return word->length > 0;
}

/* Whether a word is a * that ends the pattern. */
static bool is_rest(struct view pattern, size_t at, struct view word) {
    struct view next;
    return view_equals_text(word, "*") && !next_word(pattern, &at, &next);
}

/* The pattern's words over all of `words`. */
static bool covers_words(struct view pattern, const struct shell_word *words, size_t count) {
    struct view want;
    size_t index = 0;
    for (size_t at = 0; next_word(pattern, &at, &want); index++) {
        if (is_rest(pattern, at, want)) {
            return true;
        }
        if (index >= count || !word_is_covered(want, &words[index], index == 0)) {
            return false;
        }
    }
    return index == count;
}

/* The pattern's words over the first ones, those in [1, rest_at) left out. Perhaps, when options stand
 * between ("docker -H HOST push"): what is the value of one is not known. */
static enum match means_rest(struct view pattern, struct command command, size_t rest_at) {
    const struct shell_word *words = command.words;
    enum match all = MATCH_YES;
    struct view want;
    size_t index = 0;
    for (size_t at = 0; next_word(pattern, &at, &want); index = index == 0 ? rest_at : index + 1) {
        if (is_rest(pattern, at, want)) {
            return all;
        }
        if (index >= command.count) { /* one that is expanded may be several words */
            return all == MATCH_PERHAPS || command.is_longer ? MATCH_PERHAPS : MATCH_NO;
        }
        enum match one = word_is_meant(want, &words[index], index == 0);
        bool is_option = index > 0 && view_starts_with(words[index].text, view_of_text("-"));
        while (one == MATCH_NO && is_option && index + 1 < command.count) {
            index++;
            one = word_is_meant(want, &words[index], false) == MATCH_NO ? MATCH_NO : MATCH_PERHAPS;
        }
        if (one == MATCH_NO) {
            return MATCH_NO;
        }
        all = one < all ? one : all;
    }
    return all;
}

/* As it is written, and without the options that stand before git's own command. */
static enum match means_words(struct view pattern, struct command command) {
    struct view first;
    size_t at = 0;
    bool is_renamed = false;
    enum match best = means_rest(pattern, command, 1);
    size_t rest_at = command_options_end(command, &is_renamed);
    if (best != MATCH_YES && rest_at > 1) {
        enum match without = means_rest(pattern, command, rest_at);
        best = without > best ? without : best;
    }
    bool is_program = is_renamed && next_word(pattern, &at, &first) &&
                      word_is_meant(first, &command.words[0], true) != MATCH_NO;
    return best == MATCH_NO && is_program ? MATCH_PERHAPS : best;
}

static enum match
match_meant(struct view pattern, const struct shell_part *part, struct command all) {
    enum match best = means_words(pattern, all);
    if (all.count == 0 || best == MATCH_YES) {
        return best;
    }
    bool is_wrapper = command_runs_its_words(all);
    for (size_t i = 1; i < all.count && is_wrapper && best != MATCH_YES; i++) {
        enum match inner = means_words(pattern, command_from(all, i));
        best = inner > best ? inner : best;
    }
    for (size_t i = 0; i < (is_wrapper ? all.count : 1) && best == MATCH_NO; i++) {
        bool is_here =
            i > 0 && view_equals_text(all.words[i].text, "."); /* "find .", not "source" */
        bool is_known = part->has_text && part->shell_at == i; /* the text is parts of its own */
        bool is_hidden = !is_here && !is_known && command_runs_text(command_from(all, i));
        best = is_hidden ? MATCH_PERHAPS : best;
    }
    return best;
}

enum match match_command(
    struct view pattern,
    const struct shell_line *line,
    const struct shell_part *part,
    bool is_strict
) {
    const struct shell_word *words = line->words + part->word_at;
    if (is_strict) {
        bool is_certain = line->doubt == NULL && !part->is_assigned && !part->is_redirected &&
                          part->word_count > 0;
        bool is_covered = is_certain && covers_words(pattern, words, part->word_count);
        return is_covered ? MATCH_YES : MATCH_NO;
    }
    enum match meant = match_meant(pattern, part, (struct command){words, part->word_count, false});
    if (meant == MATCH_YES && part->is_uncertain) {
        return MATCH_PERHAPS;
    }
    return meant == MATCH_NO && line->is_open ? MATCH_PERHAPS : meant;
}
