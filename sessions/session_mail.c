/* Mail between agents: one row a message, whose state changes twice at most. See session_swarm.h. */
#include "session_internal.h"
#include "session_swarm.h"

static struct view id_view(const struct session_id *id) {
    return view_of_text(id->text);
}

/* How much waits for an agent. */
static result count_waiting(
    struct session_store *store, const struct session_id *to, int64_t *out, struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "SELECT count(*) FROM mail WHERE state = 0"
        " AND receiver = (SELECT number FROM agent WHERE id = ?1)",
        error
    ));
    statement_bind_text(&s, 1, id_view(to));
    bool found = false;
    TRY(statement_step(&s, &found, error));
    ASSERT(found); // an aggregate always gives a row
    *out = statement_i64(&s, 0);
    return OK;
}

static result send_locked(
    struct session_store *store,
    const struct session_mail_begin *begin,
    int64_t *mail,
    struct error *error
) {
    int64_t waiting = 0;
    TRY(count_waiting(store, &begin->to, &waiting, error));
    if (waiting >= SESSION_MAILBOX_MAX) {
        FAIL(
            error,
            LIMIT,
            "mail: agent '%s' has %lld messages that it has not read yet",
            begin->to.text,
            (long long)waiting
        );
    }
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(
        &s,
        store,
        "INSERT INTO mail (sender, receiver, sent_ms, text) SELECT f.number, t.number, ?3, ?4"
        " FROM agent f JOIN agent t ON t.session = f.session JOIN session s ON s.number = f.session"
        " WHERE f.id = ?1 AND t.id = ?2 AND s.status = 0"
        " AND NOT EXISTS (SELECT 1 FROM node n WHERE n.agent = t.number AND n.is_ended = 1)",
        error
    ));
    statement_bind_text(&s, 1, id_view(&begin->from));
    statement_bind_text(&s, 2, id_view(&begin->to));
    statement_bind_i64(&s, 3, clock_wall_ms(&store->clock));
    statement_bind_blob(&s, 4, begin->text);
    TRY(statement_run_once(
        &s, "the mail's receiver has ended, or the two are no agents of one running session", error
    ));
    *mail = statement_inserted(&s);
    return OK;
}

result session_mail_send(
    struct session_store *store,
    const struct session_mail_begin *begin,
    int64_t *mail,
    struct error *error
) {
    if (begin->text.length == 0 || begin->text.length > SESSION_MAIL_BYTES_MAX) {
        FAIL(
            error,
            INVALID_INPUT,
            "mail of %zu bytes: it has 1 to %zu",
            begin->text.length,
            SESSION_MAIL_BYTES_MAX
        );
    }
    CLEANUP(store_unlock) struct session_store *locked = store_lock(store);
    return send_locked(locked, begin, mail, error);
}

/* Binds the key, the turn and the time; only what is in one transaction with the message that was appended
 * to the turn is true of it. */
static result settle(
    struct session_store *store,
    const char *sql,
    int64_t mail,
    int64_t turn,
    const char *refusal,
    struct error *error
) {
    CLEANUP(statement_end) struct statement s = {NULL, NULL, 0};
    TRY(statement_begin(&s, store, sql, error));
    if (!store->is_batch) {
        FAIL(
            error,
            INVALID_INPUT,
            "%s: mail %lld is not settled in one batch with its message",
            store->path,
            (long long)mail
        );
    }
    statement_bind_i64(&s, 1, mail);
    statement_bind_i64(&s, 2, turn);
    statement_bind_i64(&s, 3, clock_wall_ms(&store->clock));
    return statement_run_once(&s, refusal, error);
}

#define LAST_MESSAGE "(SELECT max(m.number) FROM message m WHERE m.turn = ?2)"

result
session_mail_deliver(struct session_store *store, int64_t mail, int64_t turn, struct error *error) {
    static const char sql[] =
        "UPDATE mail SET state = 1, settled_ms = ?3, turn = ?2, message = " LAST_MESSAGE
        " WHERE number = ?1 AND state = 0 AND receiver = (SELECT agent FROM turn WHERE number = ?2)"
        " AND " LAST_MESSAGE " IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM mail e WHERE e.receiver = mail.receiver AND e.state = 0"
        " AND e.number < ?1)";
    return settle(
        store,
        sql,
        mail,
        turn,
        "the mail is settled already, not the next one, or not for this turn's agent, or the turn "
        "has no message yet",
        error
    );
}

result
session_mail_return(struct session_store *store, int64_t mail, int64_t turn, struct error *error) {
    static const char sql[] = "UPDATE mail SET turn = ?2, message = " LAST_MESSAGE
                              " WHERE number = ?1 AND state = 2 AND turn IS NULL AND ?3 >= 0"
                              " AND sender = (SELECT agent FROM turn WHERE number = ?2)"
                              " AND " LAST_MESSAGE " IS NOT NULL";
    return settle(
        store,
        sql,
        mail,
        turn,
        "the mail has not bounced, its sender knows already, or is another agent, or the turn has "
        "no message yet",
        error
    );
}
