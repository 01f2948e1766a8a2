/* Prepared statements, kept for the life of a store: see session_internal.h. Each has the store's lock from its
 * beginning to its end.
 */
#include "session_internal.h"

#include <sqlite3.h>

static_assert(SQLITE_OK == 0, "struct statement counts 0 as fine");

static result find_slot(
    struct session_statement_slot **out,
    struct session_store *store,
    const char *sql,
    struct error *error
) {
    struct session_statement_slot *slot = NULL;
    for (size_t i = 0; i < store->statement_count && slot == NULL; i++) {
        slot = store->statements[i].sql == sql ? &store->statements[i] : NULL;
    }
    if (slot == NULL) {
        ASSERT(store->statement_count < SESSION_STATEMENTS_MAX);
        struct sqlite3_stmt *handle = NULL;
        int code =
            sqlite3_prepare_v3(store->database, sql, -1, SQLITE_PREPARE_PERSISTENT, &handle, NULL);
        if (code != SQLITE_OK) {
            return store_fail(store, code, error);
        }
        slot = &store->statements[store->statement_count++];
        slot->sql = sql;
        slot->handle = handle;
    }
    *out = slot;
    return OK;
}

result statement_begin(
    struct statement *out, struct session_store *store, const char *sql, struct error *error
) {
    struct session_statement_slot *slot = NULL;
    result found = find_slot(&slot, store_lock(store), sql, error);
    if (is_failed(found)) {
        store_unlock(&store);
        return found;
    }
    ASSERT(slot != NULL);
    ASSERT(!slot->is_used); // a statement is not nested in itself
    slot->is_used = true;
    out->store = store;
    out->slot = slot;
    out->status = SQLITE_OK;
    return OK;
}

void statement_end(struct statement *statement) {
    if (statement->slot == NULL) {
        return;
    }
    // Both report again what the last step already reported.
    (void)sqlite3_reset(statement->slot->handle);
    (void)sqlite3_clear_bindings(statement->slot->handle);
    statement->slot->is_used = false;
    statement->slot = NULL;
    store_unlock(&statement->store); // since statement_begin
}

static void note_binding(struct statement *statement, int code) {
    if (statement->status == SQLITE_OK) {
        statement->status = code;
    }
}

void statement_bind_i64(struct statement *statement, int at, int64_t value) {
    note_binding(statement, sqlite3_bind_int64(statement->slot->handle, at, value));
}

void statement_bind_double(struct statement *statement, int at, double value) {
    note_binding(statement, sqlite3_bind_double(statement->slot->handle, at, value));
}

void statement_bind_null(struct statement *statement, int at) {
    note_binding(statement, sqlite3_bind_null(statement->slot->handle, at));
}

void statement_bind_text(struct statement *statement, int at, struct view text) {
    if (text.length > SESSION_TEXT_BYTES_MAX) {
        note_binding(statement, SQLITE_TOOBIG);
        return;
    }
    sqlite3_stmt *handle = statement->slot->handle;
    if (text.length == 0) {
        note_binding(statement, sqlite3_bind_text(handle, at, "", 0, SQLITE_STATIC));
        return;
    }
    if (utf8_is_valid(text)) {
        const char *bytes = (const char *)text.data;
        note_binding(
            statement, sqlite3_bind_text(handle, at, bytes, (int)text.length, SQLITE_STATIC)
        );
        return;
    }
    CLEANUP(buffer_deinit) struct buffer clean = {NULL, 0, 0, 0};
    buffer_init(&clean, 3 * SESSION_TEXT_BYTES_MAX);
    if (is_failed(utf8_append_lossy(&clean, text, NULL))) {
        note_binding(statement, SQLITE_NOMEM);
        return;
    }
    const char *bytes = buffer_text(&clean);
    note_binding(
        statement, sqlite3_bind_text(handle, at, bytes, (int)clean.length, SQLITE_TRANSIENT)
    );
}

void statement_bind_blob(struct statement *statement, int at, struct view bytes) {
    if (bytes.length > SESSION_TEXT_BYTES_MAX) {
        note_binding(statement, SQLITE_TOOBIG);
        return;
    }
    sqlite3_stmt *handle = statement->slot->handle;
    if (bytes.length == 0) { // a null pointer would bind NULL
        note_binding(statement, sqlite3_bind_zeroblob(handle, at, 0));
        return;
    }
    note_binding(
        statement, sqlite3_bind_blob(handle, at, bytes.data, (int)bytes.length, SQLITE_STATIC)
    );
}

result statement_step(struct statement *statement, bool *row, struct error *error) {
    if (statement->status != SQLITE_OK) {
        if (statement->status == SQLITE_TOOBIG) {
            FAIL(
                error,
                LIMIT,
                "%s: a value above %zu bytes",
                statement->store->path,
                SESSION_TEXT_BYTES_MAX
            );
        }
        return store_fail(statement->store, statement->status, error);
    }
    int code = sqlite3_step(statement->slot->handle);
    if (code != SQLITE_ROW && code != SQLITE_DONE) {
        return store_fail(statement->store, code, error);
    }
    *row = code == SQLITE_ROW;
    return OK;
}

result statement_run_once(struct statement *statement, const char *refusal, struct error *error) {
    struct session_store *store = statement->store;
    if (store->mode != SESSION_READ_WRITE) {
        FAIL(error, INVALID_INPUT, "%s was opened for reading only", store->path);
    }
    if (!store->is_batch) {
        TRY(store_check_place(store, error));
    }
    if (store->is_batch && (store->batch_failed || sqlite3_get_autocommit(store->database) != 0)) {
        store->batch_failed = true;
        FAIL(error, INVALID_INPUT, "%s: an earlier step of this batch failed", store->path);
    }
    bool row = false;
    result status = statement_step(statement, &row, error);
    if (is_ok(status) && sqlite3_changes(store->database) != 1) {
        status = error_set(
            error, RESULT_INVALID_INPUT, 0, __FILE__, __LINE__, "%s: %s", store->path, refusal
        );
    }
    if (is_failed(status)) {
        store->batch_failed = true; // without a batch it is cleared by the next begin
    }
    return status;
}

int64_t statement_i64(const struct statement *statement, int column) {
    return sqlite3_column_int64(statement->slot->handle, column);
}

double statement_double(const struct statement *statement, int column) {
    return sqlite3_column_double(statement->slot->handle, column);
}

struct view statement_bytes(const struct statement *statement, int column) {
    sqlite3_stmt *handle = statement->slot->handle;
    const void *data = sqlite3_column_blob(handle, column);
    int length = sqlite3_column_bytes(handle, column);
    return view_of(data, data == NULL || length < 0 ? 0 : (size_t)length);
}

bool statement_is_null(const struct statement *statement, int column) {
    return sqlite3_column_type(statement->slot->handle, column) == SQLITE_NULL;
}

int64_t statement_inserted(const struct statement *statement) {
    return sqlite3_last_insert_rowid(statement->store->database);
}
