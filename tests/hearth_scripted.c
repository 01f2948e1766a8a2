/* The whole program with a scripted engine: HEARTH_SCRIPT names the script (scripted_engine.h),
 * HEARTH_SCRIPT_LOG a file for what the model sees. With HEARTH_SCRIPT_KILL=N it kills itself at the Nth
 * moment of the record: right before or right behind a step is durable. Everything else is `hearth`. */
#include "runtime/cli.h"
#include "scripted_engine.h"

#include "base/log.h"
#include "sessions/session.h"

#include <locale.h>
#include <signal.h>
#include <unistd.h>

/* Linked in the place of the store's own (--wrap). */
result __real_session_batch_commit(struct session_store *store, struct error *error);
result __wrap_session_batch_commit(struct session_store *store, struct error *error);
result __real_session_call_start(
    struct session_store *store,
    const struct session_call_begin *begin,
    int64_t *call,
    struct error *error
);
result __wrap_session_call_start(
    struct session_store *store,
    const struct session_call_begin *begin,
    int64_t *call,
    struct error *error
);

static void moment(void) {
    static int64_t seen; /* the record has one writer at a time */
    const char *text = getenv("HEARTH_SCRIPT_KILL");
    int64_t at = 0;
    if (text != NULL && parse_i64(view_of_text(text), &at) && ++seen == at) {
        (void)kill(getpid(), SIGKILL);
    }
}

result __wrap_session_batch_commit(struct session_store *store, struct error *error) {
    moment();
    result committed = __real_session_batch_commit(store, error);
    moment();
    return committed;
}

result __wrap_session_call_start(
    struct session_store *store,
    const struct session_call_begin *begin,
    int64_t *call,
    struct error *error
) {
    moment();
    result started = __real_session_call_start(store, begin, call, error);
    moment();
    return started;
}

static result open_script(struct scripted_engine **out, const char *path, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(file_read(path, &text, error));
    return scripted_engine_create(out, buffer_view(&text), getenv("HEARTH_SCRIPT_LOG"), error);
}

int main(int argc, char **argv) {
    if (setlocale(LC_CTYPE, "") == NULL || MB_CUR_MAX == 1) {
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    log_configure(LOG_WARNING, NULL, NULL);
    const char *path = getenv("HEARTH_SCRIPT");
    struct scripted_engine *engine = NULL;
    struct error error = {0};
    if (path == NULL || is_failed(open_script(&engine, path, &error))) {
        (void)fprintf(stderr, "HEARTH_SCRIPT: %s\n", path == NULL ? "not set" : error.message);
        return STATUS_USAGE;
    }
    run_engine_use(scripted_engine_run(engine));
    int status = cli_main(argc, argv);
    scripted_engine_destroy(engine);
    return fflush(stdout) != 0 && status == STATUS_DONE ? STATUS_DATA : status;
}
