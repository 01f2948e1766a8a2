/* A session and all that is recorded of it, removed for good. */
#include "session_internal.h"

#define FORKS_NAMED 3

static result name_forks(
    struct session_store *store,
    const struct session_id *session,
    struct buffer *out,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT DISTINCT f.id FROM session o JOIN agent b ON b.session = o.number JOIN turn t ON"
        " t.agent = b.number JOIN agent a ON a.fork_of = t.number JOIN session f ON f.number ="
        " a.session WHERE o.id = ?1 AND f.number <> o.number ORDER BY f.number LIMIT ?2",
        error
    ));
    statement_bind_text(&s, 1, view_of_text(session->text));
    statement_bind_i64(&s, 2, FORKS_NAMED + 1);
    for (size_t count = 0;; count++) {
        bool found = false;
        TRY(statement_step(&s, &found, error));
        if (!found) {
            return OK;
        }
        TRY(buffer_append_text(out, count > 0 ? ", " : "", error));
        if (count == FORKS_NAMED) {
            return buffer_append_text(out, "...", error);
        }
        TRY(buffer_append(out, statement_bytes(&s, 0), error));
    }
}

/* Everything below a session refers to it, so that it goes with it. */
static result
remove_rows(struct session_store *store, const struct session_id *session, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer forks;
    buffer_init(&forks, BUFFER_CEILING_DEFAULT);
    TRY(name_forks(store, session, &forks, error));
    if (forks.length > 0) {
        FAIL(
            error,
            INVALID_INPUT,
            "session %s has forks that refer to its turns, to be deleted before: %s",
            session->text,
            buffer_text(&forks)
        );
    }
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(&s, store, "DELETE FROM session WHERE id = ?1 AND status <> 0", error));
    statement_bind_text(&s, 1, view_of_text(session->text));
    return statement_run_once(&s, "the session to delete does not exist, or it runs", error);
}

result
session_delete(struct session_store *store, const struct session_id *session, struct error *error) {
    // What is removed is overwritten, not only forgotten.
    TRY(store_execute(store, "PRAGMA secure_delete=ON", error));
    TRY(session_batch_begin(store, error));
    result removed = remove_rows(store, session, error);
    if (is_failed(removed)) {
        session_batch_rollback(store);
        return removed;
    }
    TRY(session_batch_commit(store, error));
    // The journal still has it. A reader may keep it from being emptied now; the next writer does it then.
    result_ignore(store_execute(store, "PRAGMA wal_checkpoint(TRUNCATE)", NULL));
    return OK;
}
