/* Which turns make an agent's line: see session_internal.h. Rows may come from a damaged file, so the way
 * back through forks is checked: a fork's turn is always older than the fork. */
#include "session_internal.h"

#define DROPS_MAX 100000

void session_line_deinit(struct session_line *line) {
    free(line->stretches);
    free(line->drops);
    *line = (struct session_line){0};
}

static result
add_stretch(struct session_line *line, const struct session_stretch *stretch, struct error *error) {
    if (line->count == SESSION_FORKS_DEEP_MAX) {
        FAIL(error, LIMIT, "a fork of a fork, more than %d deep", SESSION_FORKS_DEEP_MAX);
    }
    void *grown = realloc(line->stretches, (line->count + 1) * sizeof *line->stretches);
    if (grown == NULL) {
        FAIL(error, MEMORY, "forks of a session");
    }
    line->stretches = grown;
    line->stretches[line->count++] = *stretch;
    return OK;
}

/* Where the stretch's agent was forked; *found false: it is no fork. */
static result find_fork(
    struct session_store *store,
    const struct session_stretch *stretch,
    struct session_stretch *out,
    int64_t *turn,
    bool *found,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT t.agent, t.position, a.fork_rewind, t.number,"
        " coalesce(a.fork_message, 9223372036854775807) FROM agent a"
        " JOIN turn t ON t.number = a.fork_of WHERE a.number = ?1",
        error
    ));
    statement_bind_i64(&s, 1, stretch->agent);
    TRY(statement_step(&s, found, error));
    if (*found) {
        *out = (struct session_stretch
        ){statement_i64(&s, 0), statement_i64(&s, 1), statement_i64(&s, 2), statement_i64(&s, 4)};
        *turn = statement_i64(&s, 3);
    }
    return OK;
}

static result load_drops(
    struct session_store *store, struct session_line *line, size_t stretch, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT position, last_turn FROM rewind WHERE agent = ?1 AND number <= ?2"
        " AND position IS NOT NULL ORDER BY number",
        error
    ));
    statement_bind_i64(&s, 1, line->stretches[stretch].agent);
    statement_bind_i64(&s, 2, line->stretches[stretch].rewind_max);
    for (;;) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        if (line->drop_count == DROPS_MAX) {
            FAIL(error, LIMIT, "more than %d rewinds", DROPS_MAX);
        }
        void *grown = realloc(line->drops, (line->drop_count + 1) * sizeof *line->drops);
        if (grown == NULL) {
            FAIL(error, MEMORY, "rewinds of a session");
        }
        line->drops = grown;
        line->drops[line->drop_count++] =
            (struct session_drop){stretch, statement_i64(&s, 0), statement_i64(&s, 1)};
    }
}

result session_line_load(
    struct session_store *store, int64_t agent, struct session_line *out, struct error *error
) {
    CLEANUP(session_line_deinit) struct session_line line = {0};
    struct session_stretch next = {agent, INT64_MAX, INT64_MAX, INT64_MAX};
    int64_t turn = INT64_MAX;
    for (bool found = true; found;) {
        TRY(add_stretch(&line, &next, error));
        TRY(load_drops(store, &line, line.count - 1, error));
        int64_t before = turn;
        const struct session_stretch here = next;
        TRY(find_fork(store, &here, &next, &turn, &found, error));
        if (found && turn >= before) {
            FAIL(error, CORRUPT, "%s: an agent is a fork of a later one", store->path);
        }
    }
    *out = line;
    line = (struct session_line){0};
    return OK;
}

bool session_line_drops_by(
    const struct session_line *line, size_t stretch, int64_t position, int64_t turn, bool is_own
) {
    for (size_t i = 0; i < line->drop_count; i++) {
        const struct session_drop *drop = &line->drops[i];
        // An agent's rewinds reach its own turns and what it inherited.
        if (drop->stretch <= stretch && (drop->stretch == 0) == is_own &&
            position > drop->position && turn <= drop->last_turn) {
            return true;
        }
    }
    return false;
}

bool session_line_drops(
    const struct session_line *line, size_t stretch, int64_t position, int64_t turn
) {
    return session_line_drops_by(line, stretch, position, turn, true) ||
           session_line_drops_by(line, stretch, position, turn, false);
}
