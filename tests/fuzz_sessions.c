/* Any bytes as a database file: opening, listing, loading and writing JSON fail politely. */
#include "sessions/session.h"

#include <fcntl.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_all(const char *path, const uint8_t *data, size_t size) {
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
}

static void read_everything(struct session_store *store) {
    struct error error;
    CLEANUP(session_list_cleanup) struct session_list *list = NULL;
    result_ignore(session_store_verify(store, &error)); // damage is expected
    if (is_failed(session_list_load(store, NULL, &list, &error))) {
        return;
    }
    for (size_t i = 0; i < list->count; i++) {
        CLEANUP(session_tree_cleanup) struct session_tree *tree = NULL;
        struct session_load_options all = {true, true};
        if (is_failed(session_load(store, &list->sessions[i].id, &all, &tree, &error))) {
            continue;
        }
        CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
        buffer_init(&text, BUFFER_CEILING_DEFAULT);
        struct json_writer writer;
        json_writer_init(&writer, &text, &error);
        session_tree_write(&writer, tree);
        ASSERT(is_ok(json_writer_finish(&writer)));
        CLEANUP(json_cleanup) struct json_document *document = NULL;
        ASSERT(is_ok(json_parse(buffer_view(&text), NULL, &document, &error)));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char folder[] = "/tmp/hearth-fuzz-XXXXXX";
    ASSERT(mkdtemp(folder) != NULL);
    char path[64];
    int length = snprintf(path, sizeof path, "%s/sessions.db", folder);
    ASSERT(length > 0 && (size_t)length < sizeof path);
    write_all(path, data, size);
    struct session_store_options options = {
        folder, SESSION_READ_ONLY, 1, "fuzz", clock_real(), false, false};
    CLEANUP(session_store_cleanup) struct session_store *store = NULL;
    struct error error;
    if (is_ok(session_store_open(&store, &options, &error))) {
        read_everything(store);
        session_store_cleanup(&store);
    }
    options.mode = SESSION_READ_WRITE;
    if (is_ok(session_store_open(&store, &options, &error))) {
        struct session_begin begin = {0};
        struct session_id id;
        result_ignore(session_create(store, &begin, &id, &error)); // damage is expected
        session_store_cleanup(&store);
    }
    static const char *const names[] = {
        "sessions.db",
        "sessions.db-wal",
        "sessions.db-shm",
        "sessions.db-journal",
        "sessions.db.version-1",
        "sessions.db.version-2",
        "sessions.db.version-3",
        "sessions.db.version-4",
        "lock"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        length = snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        ASSERT(length > 0 && (size_t)length < sizeof path);
        (void)unlink(path);
    }
    ASSERT(rmdir(folder) == 0);
    return 0;
}
