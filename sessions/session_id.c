/* Ids: new ones, UUIDv7 (RFC 9562, 5.7: 48 bits of wall time in milliseconds, then 74 random bits),
 * and those that a user names by their beginning. */
#include "session_internal.h"

#include <errno.h>
#include <sys/random.h>

#define SHOWN_BYTES 60  /* of what a person gave for an id */
#define PLACE_BYTES 180 /* of a directory in a message */

result session_id_create(struct session_id *out, const struct clock *clock, struct error *error) {
    ASSERT(out != NULL && clock != NULL);
    unsigned char bytes[16];
    // Up to 256 bytes come whole or not at all, once the kernel's pool is seeded.
    ssize_t got = getrandom(bytes, sizeof bytes, 0);
    if (got != (ssize_t)sizeof bytes) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "getrandom: %s", strerror(code));
    }
    uint64_t now_ms = (uint64_t)clock_wall_ms(clock);
    for (int i = 0; i < 6; i++) {
        bytes[i] = (unsigned char)(now_ms >> (40 - 8 * i));
    }
    bytes[6] = (unsigned char)(0x70U | (bytes[6] & 0x0FU));
    bytes[8] = (unsigned char)(0x80U | (bytes[8] & 0x3FU));
    static const char digits[] = "0123456789abcdef";
    size_t at = 0;
    for (size_t i = 0; i < sizeof bytes; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            out->text[at++] = '-';
        }
        out->text[at++] = digits[bytes[i] >> 4];
        out->text[at++] = digits[bytes[i] & 0x0FU];
    }
    ASSERT(at == SESSION_ID_LENGTH);
    out->text[at] = '\0';
    return OK;
}

/* --------------------------------------------------------------------- ids ---- */

static result
read_resolved_id(struct statement *s, struct session_id *out, bool *found, struct error *error) {
    TRY(statement_step(s, found, error));
    if (!*found) {
        return OK;
    }
    struct view text = statement_bytes(s, 0);
    if (text.length != SESSION_ID_LENGTH) {
        FAIL(error, CORRUPT, "%s: an id of %zu bytes", s->store->path, text.length);
    }
    memcpy(out->text, text.data, SESSION_ID_LENGTH);
    out->text[SESSION_ID_LENGTH] = '\0';
    return OK;
}

/* The newest session; one of the workspace comes before all others. */
static result resolve_last(
    struct session_store *store, struct view workspace, struct session_id *out, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT id, ?1 = '' OR workspace = ?1 OR worktree_of = ?1 AS is_here,"
        " iif(worktree_of = '', workspace, worktree_of) FROM session"
        " ORDER BY is_here DESC, created_ms DESC, number DESC LIMIT 1",
        error
    ));
    statement_bind_text(&s, 1, workspace);
    struct session_id id = {""};
    bool found = false;
    TRY(read_resolved_id(&s, &id, &found, error));
    if (!found) {
        FAIL(error, NOT_FOUND, "no sessions recorded yet in %s", store->directory);
    }
    if (statement_i64(&s, 1) == 0) {
        struct view here = view_slice(workspace, 0, PLACE_BYTES);
        struct view other = view_slice(statement_bytes(&s, 2), 0, PLACE_BYTES);
        FAIL(
            error,
            NOT_FOUND,
            "no session of %.*s yet; the newest one is %s, of %.*s",
            VIEW_ARGUMENTS(here),
            id.text,
            VIEW_ARGUMENTS(other)
        );
    }
    *out = id;
    return OK;
}

/* Lower-cases into `prefix`; refuses what cannot begin an id. */
static result
check_prefix(struct view text, char prefix[SESSION_ID_LENGTH + 1], struct error *error) {
    bool plausible = text.length <= SESSION_ID_LENGTH;
    for (size_t i = 0; i < text.length && plausible; i++) {
        unsigned char c = text.data[i];
        c = (unsigned char)(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
        plausible = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || c == '-';
        prefix[i] = (char)c;
    }
    if (!plausible) {
        struct view shown = view_slice(text, 0, SHOWN_BYTES); // what is too long may be anything
        FAIL(error, INVALID_INPUT, "'%.*s' is no session id", VIEW_ARGUMENTS(shown));
    }
    if (text.length < SESSION_ID_PREFIX_MIN) {
        FAIL(
            error,
            INVALID_INPUT,
            "'%.*s' is too short for a session id: at least %d characters",
            VIEW_ARGUMENTS(text),
            SESSION_ID_PREFIX_MIN
        );
    }
    prefix[text.length] = '\0';
    return OK;
}

result session_resolve(
    struct session_store *store,
    struct view text,
    struct view workspace,
    struct session_id *out,
    struct error *error
) {
    if (view_equals_text(text, "last")) {
        return resolve_last(store, workspace, out, error);
    }
    char prefix[SESSION_ID_LENGTH + 1] = {0};
    TRY(check_prefix(text, prefix, error));
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    // 'z' sorts behind every character of an id.
    TRY(statement_begin(
        &s,
        store,
        "SELECT id FROM session WHERE id >= ?1 AND id < ?1 || 'z' ORDER BY id LIMIT 2",
        error
    ));
    statement_bind_text(&s, 1, view_of_text(prefix));
    struct session_id first = {""};
    struct session_id second = {""};
    bool found = false;
    TRY(read_resolved_id(&s, &first, &found, error));
    if (!found) {
        FAIL(error, NOT_FOUND, "no session '%s' in %s", prefix, store->directory);
    }
    TRY(read_resolved_id(&s, &second, &found, error));
    if (found) {
        FAIL(
            error,
            INVALID_INPUT,
            "'%s' is the beginning of several session ids, such as %s and %s",
            prefix,
            first.text,
            second.text
        );
    }
    *out = first;
    return OK;
}
