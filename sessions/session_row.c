/* See session_row.h. The first failure sticks, so that a row is read without a check after each column. */
#include "session_row.h"

struct row row_of(const struct statement *statement, struct arena *arena, struct error *error) {
    struct row row = {statement, arena, error, OK, 0};
    return row;
}

int64_t take_i64(struct row *row) {
    return statement_i64(row->statement, row->column++);
}

double take_double(struct row *row) {
    return statement_double(row->statement, row->column++);
}

struct view take_bytes(struct row *row) {
    struct view copy = {NULL, 0};
    struct view bytes = statement_bytes(row->statement, row->column++);
    if (is_ok(row->status)) {
        row->status = arena_copy(row->arena, bytes, &copy, row->error);
    }
    return copy;
}

struct view take_text(struct row *row) {
    struct view text = take_bytes(row);
    if (is_ok(row->status) && !utf8_is_valid(text)) {
        row->status = error_set(
            row->error,
            RESULT_CORRUPT,
            0,
            __FILE__,
            __LINE__,
            "%s: a text that is no UTF-8",
            row->statement->store->path
        );
    }
    return text;
}

struct session_id take_id(struct row *row) {
    struct session_id id = {""};
    struct view text = statement_bytes(row->statement, row->column++);
    if (text.length != 0 && text.length != SESSION_ID_LENGTH && is_ok(row->status)) {
        row->status = error_set(
            row->error,
            RESULT_CORRUPT,
            0,
            __FILE__,
            __LINE__,
            "%s: an id of %zu bytes",
            row->statement->store->path,
            text.length
        );
    } else if (text.length == SESSION_ID_LENGTH) {
        memcpy(id.text, text.data, SESSION_ID_LENGTH);
    }
    return id;
}

/* A number in [0, max]: enumerators and flags. */
int64_t take_small(struct row *row, int64_t max, const char *what) {
    int64_t value = take_i64(row);
    if ((value < 0 || value > max) && is_ok(row->status)) {
        row->status = error_set(
            row->error,
            RESULT_CORRUPT,
            0,
            __FILE__,
            __LINE__,
            "%s: %s is %lld, at most %lld",
            row->statement->store->path,
            what,
            (long long)value,
            (long long)max
        );
        return 0;
    }
    return value < 0 || value > max ? 0 : value;
}

struct session_sampler take_sampler(struct row *row) {
    struct session_sampler sampler = {0};
    sampler.seed = (uint64_t)take_i64(row);
    sampler.temperature = take_double(row);
    sampler.top_p = take_double(row);
    sampler.effort = take_i64(row);
    sampler.settings = take_text(row);
    return sampler;
}

result read_begin(struct session_store *store, bool *opened, struct error *error) {
    (void)store_lock(store); // until read_end
    *opened = !store->is_batch;
    if (!*opened) {
        return OK;
    }
    bool was_held = store->mode == SESSION_READ_WRITE || session_lock_is_held(store->directory);
    // The first read fixes the picture. A writer seen before or after it may own what is open in
    // it: one that ended in between, or one that has just begun.
    result status = store_execute(store, "BEGIN; SELECT number FROM session LIMIT 1", error);
    if (is_failed(status)) {
        store_unlock(&store);
        return status;
    }
    store->writer_is_gone = !was_held && !session_lock_is_held(store->directory);
    return OK;
}

void read_end(struct session_store *store, bool opened) {
    if (opened) {
        // Nothing was written: a failure to end a reading transaction loses nothing.
        result_ignore(store_execute(store, "COMMIT", NULL));
    }
    store_unlock(&store);
}
