/* hearth cache: what is kept of prompts on disk. Showing, verifying and exporting work beside a run;
 * the others are refused (exit status 3) while a run uses the folder. */
#include "cli.h"
#include "paths.h"

#include "engine/kv_files.h"
#include "sandbox/sandbox.h"
#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

#define KEYS_MAX       64
#define REPORTED_MAX   50 /* damaged records that are named; all are counted */
#define MODEL_TEXT_MIN 1

#define STATE_OPTION                                                                               \
    { "state", 0, "DIR", "state directory (default: $XDG_STATE_HOME/hearth)" }
#define MODEL_OPTION                                                                               \
    { "model", 0, "NAME", "folders whose name begins with NAME or whose model's name has it" }

/* ---- folders -------------------------------------------------------------------------------- */

/* The cache's directory; always NUL-terminated. `make`: the directory that it lies in is made. */
static result cache_directory(
    const struct cli_arguments *arguments, bool make, struct buffer *out, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer state = {0};
    TRY(cli_state(arguments, make, &state, error));
    if (make && mkdir(buffer_text(&state), 0700) != 0 && errno != EEXIST) {
        int code = errno;
        FAIL_FOREIGN(
            error,
            IO,
            code,
            "cannot make the state directory %.300s: %s",
            buffer_text(&state),
            strerror(code)
        );
    }
    buffer_init(out, BUFFER_CEILING_DEFAULT);
    return buffer_append_format(out, error, "%s/cache", buffer_text(&state));
}

static bool is_chosen(const struct cli_arguments *arguments, const struct kv_files_folder *folder) {
    const char *wanted = cli_value(arguments, "model");
    return wanted == NULL || (strlen(wanted) >= MODEL_TEXT_MIN &&
                              (strncmp(folder->name, wanted, strlen(wanted)) == 0 ||
                               strstr(folder->description, wanted) != NULL));
}

/* Lists what --model names, in place. Naming something that is not there is an error. */
static result choose(
    const struct cli_arguments *arguments,
    struct buffer *cache,
    struct kv_files_list **list,
    struct error *error
) {
    const struct clock clock = clock_real();
    TRY(cache_directory(arguments, false, cache, error));
    TRY(kv_files_list(buffer_text(cache), &clock, list, error));
    ASSERT(*list != NULL);
    size_t kept = 0;
    for (size_t i = 0; i < (*list)->count; i++) {
        if (is_chosen(arguments, &(*list)->folders[i])) {
            (*list)->folders[kept++] = (*list)->folders[i];
        }
    }
    (*list)->count = kept;
    if (kept == 0 && cli_has(arguments, "model")) {
        FAIL(
            error,
            NOT_FOUND,
            "%.200s: no folder is named or made by '%.60s'",
            buffer_text(cache),
            cli_value(arguments, "model")
        );
    }
    return OK;
}

static int print_buffer(const struct buffer *text, int status) {
    return cli_print(buffer_view(text)) ? status : STATUS_DATA;
}

static int worse(int a, int b) {
    return a > b ? a : b;
}

/* ---- show ----------------------------------------------------------------------------------- */

static const struct cli_option show_options[] = {
    MODEL_OPTION,
    STATE_OPTION,
    {"json", 0, NULL, "one JSON object a line"},
};

/* "5 min" since a time; a clock that went back makes it 0. */
static result put_age(struct buffer *out, int64_t then_ms, struct error *error) {
    const struct clock clock = clock_real();
    int64_t seconds = (clock_wall_ms(&clock) - then_ms) / 1000;
    seconds = seconds < 0 ? 0 : seconds;
    if (seconds < 120) {
        return buffer_append_format(out, error, "%" PRId64 " s", seconds);
    }
    return seconds < 7200 ? buffer_append_format(out, error, "%" PRId64 " min", seconds / 60)
                          : buffer_append_format(out, error, "%" PRId64 " h", seconds / 3600);
}

static result
show_blocks(struct buffer *out, const struct kv_files_folder *folder, struct error *error) {
    TRY(buffer_append_format(
        out,
        error,
        "  %" PRId64 " blocks of %" PRIu64 " bytes, %" PRId64 " tokens; ",
        folder->blocks,
        folder->block_bytes,
        folder->tokens
    ));
    TRY(cli_put_bytes(out, folder->bytes, error));
    TRY(buffer_append_text(out, " on disk, of ", error));
    TRY(cli_put_bytes(out, folder->bytes_max, error));
    TRY(buffer_append_format(out, error, ", in %" PRId64 " segments\n", folder->segments));
    if (folder->blocks > 0) {
        TRY(buffer_append_text(out, "  oldest ", error));
        TRY(put_age(out, folder->oldest_ms, error));
        TRY(buffer_append_text(out, " ago, last used ", error));
        TRY(put_age(out, folder->used_ms, error));
        TRY(buffer_append_format(
            out,
            error,
            " ago; kept %" PRId64 " h after the last use\n",
            folder->lifetime_ms / 3600000
        ));
    }
    TRY(buffer_append_text(out, "  written within the last hour: ", error));
    TRY(cli_put_bytes(out, folder->hour_bytes, error));
    return buffer_append_format(
        out,
        error,
        "\n  remembered of removed ones: %" PRId64 " evicted, %" PRId64 " expired, %" PRId64
        " damaged\n",
        folder->evicted,
        folder->expired,
        folder->damaged
    );
}

static result
show_text(struct buffer *out, const struct kv_files_folder *folder, struct error *error) {
    TRY(buffer_append_format(out, error, "%s  ", folder->name));
    struct view description = view_of_text(folder->description);
    if (description.length == 0) {
        description = view_of_text("(unknown model)");
    }
    TRY(sandbox_sanitise(description, 0, out, error)); /* comes from a file */
    TRY(buffer_append_text(out, "\n", error));
    if (folder->trouble.code != RESULT_OK) {
        TRY(buffer_append_text(out, "  trouble: ", error));
        TRY(sandbox_sanitise(view_of_text(folder->trouble.message), 0, out, error));
        return buffer_append_text(out, "\n", error);
    }
    TRY(buffer_append_format(out, error, "  root lineage %s\n", folder->root_lineage));
    TRY(show_blocks(out, folder, error));
    if (folder->damaged_found > 0 || folder->refused_files > 0) {
        TRY(buffer_append_format(
            out,
            error,
            "  %" PRId64 " damaged records or heads, %" PRId64 " files that are not the cache's\n",
            folder->damaged_found,
            folder->refused_files
        ));
    }
    if (folder->used_by != 0) {
        TRY(buffer_append_format(out, error, "  in use by process %ld\n", folder->used_by));
    }
    return OK;
}

static void show_json(struct json_writer *writer, const struct kv_files_folder *folder) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"block_bytes", (int64_t)folder->block_bytes},
        {"blocks", folder->blocks},
        {"tokens", folder->tokens},
        {"segments", folder->segments},
        {"bytes", (int64_t)folder->bytes},
        {"bytes_max", (int64_t)folder->bytes_max},
        {"lifetime_ms", folder->lifetime_ms},
        {"oldest_ms", folder->oldest_ms},
        {"used_ms", folder->used_ms},
        {"hour_bytes", (int64_t)folder->hour_bytes},
        {"evicted", folder->evicted},
        {"expired", folder->expired},
        {"damaged", folder->damaged},
        {"damaged_found", folder->damaged_found},
        {"refused_files", folder->refused_files},
        {"used_by", folder->used_by},
    };
    json_write_object_begin(writer);
    json_write_key(writer, "folder");
    json_write_text(writer, folder->name);
    json_write_key(writer, "root_lineage");
    json_write_text(writer, folder->root_lineage);
    json_write_key(writer, "description");
    json_write_text(writer, folder->description);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        json_write_key(writer, numbers[i].name);
        json_write_i64(writer, numbers[i].value);
    }
    json_write_key(writer, "trouble");
    if (folder->trouble.code != RESULT_OK) {
        json_write_text(writer, folder->trouble.message);
    } else {
        json_write_null(writer);
    }
    json_write_object_end(writer);
}

/* All folders share the budget of the last run. */
static result
show_total(struct buffer *out, const struct kv_files_list *list, struct error *error) {
    uint64_t bytes = 0;
    const struct kv_files_folder *last = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const struct kv_files_folder *one = &list->folders[i];
        bytes += one->bytes;
        if (one->trouble.code == RESULT_OK && (last == NULL || one->used_ms > last->used_ms)) {
            last = one;
        }
    }
    if (last == NULL) {
        return OK;
    }
    TRY(buffer_append_text(out, "all: ", error));
    TRY(cli_put_bytes(out, bytes, error));
    TRY(buffer_append_text(out, " on disk, of ", error));
    TRY(cli_put_bytes(out, last->bytes_max, error));
    return buffer_append_format(
        out, error, " that the last run allowed, in %zu folders\n", list->count
    );
}

static result show_write(
    const struct kv_files_list *list, bool as_json, struct buffer *out, struct error *error
) {
    for (size_t i = 0; i < list->count; i++) {
        if (!as_json) {
            TRY(show_text(out, &list->folders[i], error));
            continue;
        }
        struct json_writer writer;
        json_writer_init(&writer, out, error);
        show_json(&writer, &list->folders[i]);
        TRY(json_writer_finish(&writer));
        TRY(buffer_append_text(out, "\n", error));
    }
    return !as_json && list->count == 0 ? buffer_append_text(out, "nothing is cached\n", error)
                                        : OK;
}

static int cache_show(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer cache = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    CLEANUP(free_cleanup) struct kv_files_list *list = NULL;
    struct error error = {0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    result shown = choose(arguments, &cache, &list, &error);
    if (is_ok(shown)) {
        ASSERT(list != NULL);
        shown = show_write(list, cli_has(arguments, "json"), &text, &error);
        if (is_ok(shown) && !cli_has(arguments, "json") && !cli_has(arguments, "model")) {
            shown = show_total(&text, list, &error);
        }
    }
    return is_failed(shown) ? cli_fail_error(shown, &error) : print_buffer(&text, STATUS_DONE);
}

const struct cli_command command_cache_show = {
    .path = "cache show",
    .operands = "",
    .summary = "what is kept of prompts on disk, by model",
    .options = show_options,
    .option_count = COUNT_OF(show_options),
    .run = cache_show,
};

/* ---- verify --------------------------------------------------------------------------------- */

static const struct cli_option verify_options[] = {
    {"repair", 0, NULL, "remove what is damaged (not beside a run)"},
    MODEL_OPTION,
    STATE_OPTION,
    {"json", 0, NULL, "one JSON object a line"},
};

static void name_damaged(void *context, const char *text) {
    int64_t *named = context;
    if ((*named)++ < REPORTED_MAX) {
        (void)cli_fail(STATUS_DATA, "%s", text);
    }
}

static result verify_row(
    const struct cli_arguments *arguments,
    const struct kv_files_folder *folder,
    const struct kv_files_checked *checked,
    struct buffer *out,
    struct error *error
) {
    if (!cli_has(arguments, "json")) {
        return buffer_append_format(
            out,
            error,
            "%s  %" PRId64 " records of %" PRIu64 " bytes hold, %" PRId64 " are damaged%s\n",
            folder->name,
            checked->records,
            checked->bytes,
            checked->damaged,
            checked->repaired > 0 ? ": removed" : ""
        );
    }
    return buffer_append_format(
        out,
        error,
        "{\"folder\":\"%s\",\"records\":%" PRId64 ",\"bytes\":%" PRIu64 ",\"damaged\":%" PRId64
        ",\"repaired\":%" PRId64 "}\n",
        folder->name,
        checked->records,
        checked->bytes,
        checked->damaged,
        checked->repaired
    );
}

static int cache_verify(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer cache = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    CLEANUP(free_cleanup) struct kv_files_list *list = NULL;
    const struct clock clock = clock_real();
    struct error error = {0};
    bool repair = cli_has(arguments, "repair");
    int status = STATUS_DONE;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    result chosen = choose(arguments, &cache, &list, &error);
    if (is_failed(chosen)) {
        return cli_fail_error(chosen, &error);
    }
    ASSERT(list != NULL);
    for (size_t i = 0; i < list->count; i++) {
        struct kv_files_checked checked = {0};
        int64_t named = 0;
        result done = kv_files_verify(
            buffer_text(&cache),
            list->folders[i].name,
            &clock,
            repair,
            name_damaged,
            &named,
            &checked,
            &error
        );
        if (is_ok(done)) {
            status = worse(status, checked.damaged > 0 ? STATUS_DATA : STATUS_DONE);
            done = verify_row(arguments, &list->folders[i], &checked, &text, &error);
        }
        if (is_failed(done)) {
            status = worse(status, cli_fail_error(done, &error));
        }
    }
    return print_buffer(&text, status);
}

const struct cli_command command_cache_verify = {
    .path = "cache verify",
    .operands = "",
    .summary = "read everything that is kept on disk, and check it",
    .text =
        "Exit status 5 when something is damaged; every damaged record is named. A run never uses\n"
        "one: it is removed when it is met.\n",
    .options = verify_options,
    .option_count = COUNT_OF(verify_options),
    .run = cache_verify,
};

/* ---- evict ---------------------------------------------------------------------------------- */

static const struct cli_option evict_options[] = {
    {"older", 0, "TIME", "blocks not used for this long: 90s, 10m, 48h"},
    {"to", 0, "SIZE", "the least useful ones, until each folder has at most SIZE: 512M, 4G"},
    {"all", 0, NULL, "all blocks"},
    MODEL_OPTION,
    STATE_OPTION,
    {"json", 0, NULL, "one JSON object a line"},
};

static bool
evict_read_options(const struct cli_arguments *arguments, struct kv_files_eviction *out) {
    if (!cli_duration(arguments, "older", &out->age_ms) ||
        !cli_size(arguments, "to", &out->bytes_max)) {
        return false;
    }
    out->has_age = cli_has(arguments, "older");
    out->has_size = cli_has(arguments, "to");
    out->everything = cli_has(arguments, "all");
    if (!out->has_age && !out->has_size && !out->everything) {
        (void)cli_usage(arguments, "what is to go: --older TIME, --to SIZE or --all");
        return false;
    }
    return true;
}

static int cache_evict(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer cache = {0};
    CLEANUP(buffer_deinit) struct buffer text;
    CLEANUP(free_cleanup) struct kv_files_list *list = NULL;
    const struct clock clock = clock_real();
    struct kv_files_eviction what = {0};
    struct error error = {0};
    int status = STATUS_DONE;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    if (!evict_read_options(arguments, &what)) {
        return STATUS_USAGE;
    }
    result chosen = choose(arguments, &cache, &list, &error);
    if (is_failed(chosen)) {
        return cli_fail_error(chosen, &error);
    }
    ASSERT(list != NULL);
    for (size_t i = 0; i < list->count; i++) {
        const char *name = list->folders[i].name;
        int64_t removed = 0;
        result done = kv_files_evict(buffer_text(&cache), name, &clock, &what, &removed, &error);
        if (is_ok(done)) {
            done = buffer_append_format(
                &text,
                &error,
                cli_has(arguments, "json") ? "{\"folder\":\"%s\",\"removed\":%" PRId64 "}\n"
                                           : "%s  %" PRId64 " blocks removed\n",
                name,
                removed
            );
        }
        if (is_failed(done)) {
            status = worse(status, cli_fail_error(done, &error));
        }
    }
    return print_buffer(&text, status);
}

const struct cli_command command_cache_evict = {
    .path = "cache evict",
    .operands = "",
    .summary = "remove blocks from disk",
    .text =
        "Blocks that others continue go after these. Exit status 3 while a run uses the folder.\n",
    .options = evict_options,
    .option_count = COUNT_OF(evict_options),
    .run = cache_evict,
};

/* ---- export --------------------------------------------------------------------------------- */

static const struct cli_option export_options[] = {
    {"keys",
     0,
     "KEYS",
     "only what leads to these blocks: keys, separated by commas (default: all)"},
    MODEL_OPTION,
    STATE_OPTION,
    {"json", 0, NULL, "one JSON object"},
};

static result moved_row(
    const struct cli_arguments *arguments,
    bool is_import,
    const struct kv_files_moved *moved,
    struct buffer *out,
    struct error *error
) {
    if (!cli_has(arguments, "json")) {
        TRY(buffer_append_format(
            out,
            error,
            "%s  %" PRId64 " blocks, %" PRIu64 " bytes",
            moved->folder,
            moved->records,
            moved->bytes
        ));
        if (is_import) {
            TRY(buffer_append_format(
                out,
                error,
                ": %" PRId64 " added, %" PRId64 " were there, %" PRId64 " without room",
                moved->added,
                moved->present,
                moved->no_room
            ));
        }
        return buffer_append_format(
            out,
            error,
            moved->damaged > 0 ? ", %" PRId64 " damaged and left out\n" : "\n",
            moved->damaged
        );
    }
    return buffer_append_format(
        out,
        error,
        "{\"folder\":\"%s\",\"records\":%" PRId64 ",\"bytes\":%" PRIu64 ",\"added\":%" PRId64
        ",\"present\":%" PRId64 ",\"no_room\":%" PRId64 ",\"damaged\":%" PRId64 "}\n",
        moved->folder,
        moved->records,
        moved->bytes,
        moved->added,
        moved->present,
        moved->no_room,
        moved->damaged
    );
}

static int print_moved(
    const struct cli_arguments *arguments, bool is_import, const struct kv_files_moved *moved
) {
    CLEANUP(buffer_deinit) struct buffer text;
    struct error error = {0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    result made = moved_row(arguments, is_import, moved, &text, &error);
    if (is_failed(made)) {
        return cli_fail_error(made, &error);
    }
    return print_buffer(&text, moved->damaged > 0 ? STATUS_DATA : STATUS_DONE);
}

/* Cuts the copy at its commas. SIZE_MAX: too many. */
static size_t split_keys(char *copy, const char *keys[KEYS_MAX]) {
    size_t count = 0;
    for (char *at = copy; at != NULL;) {
        if (count == KEYS_MAX) {
            return SIZE_MAX;
        }
        keys[count++] = at;
        at = strchr(at, ',');
        if (at != NULL) {
            *at++ = '\0';
        }
    }
    return count;
}

static int cache_export(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer cache = {0};
    CLEANUP(free_cleanup) struct kv_files_list *list = NULL;
    CLEANUP(free_cleanup) char *copy = NULL;
    const struct clock clock = clock_real();
    const char *keys[KEYS_MAX];
    size_t key_count = 0;
    struct kv_files_moved moved = {0};
    struct error error = {0};
    if (cli_has(arguments, "keys")) {
        copy = strdup(cli_value(arguments, "keys"));
        if (copy == NULL) {
            return cli_fail(STATUS_ENGINE, "no memory for --keys");
        }
        key_count = split_keys(copy, keys);
        if (key_count == SIZE_MAX) {
            return cli_usage(arguments, "--keys takes at most %d keys", KEYS_MAX);
        }
    }
    result done = choose(arguments, &cache, &list, &error);
    if (is_failed(done)) {
        return cli_fail_error(done, &error);
    }
    ASSERT(list != NULL);
    if (list->count != 1) {
        return cli_usage(
            arguments,
            "%zu folders: %s",
            list->count,
            list->count == 0 ? "nothing is cached" : "name one with --model NAME"
        );
    }
    done = kv_files_export(
        buffer_text(&cache),
        list->folders[0].name,
        &clock,
        keys,
        key_count,
        arguments->words[0],
        &moved,
        &error
    );
    return is_failed(done) ? cli_fail_error(done, &error) : print_moved(arguments, false, &moved);
}

const struct cli_command command_cache_export = {
    .path = "cache export",
    .operands = "FILE",
    .summary = "write one model's blocks to a new file",
    .text = "The file holds everything that 'hearth cache import' checks on another machine.\n",
    .options = export_options,
    .option_count = COUNT_OF(export_options),
    .words_min = 1,
    .words_max = 1,
    .run = cache_export,
};

/* ---- import --------------------------------------------------------------------------------- */

static const struct cli_option import_options[] = {
    {"new", 0, NULL, "also when nothing of this root lineage is here yet"},
    STATE_OPTION,
    {"json", 0, NULL, "one JSON object"},
};

static int cache_import(const struct cli_arguments *arguments) {
    CLEANUP(buffer_deinit) struct buffer cache = {0};
    const struct clock clock = clock_real();
    struct kv_files_moved moved = {0};
    struct error error = {0};
    result done = cache_directory(arguments, cli_has(arguments, "new"), &cache, &error);
    if (is_ok(done)) {
        done = kv_files_import(
            buffer_text(&cache),
            arguments->words[0],
            &clock,
            cli_has(arguments, "new"),
            &moved,
            &error
        );
    }
    return is_failed(done) ? cli_fail_error(done, &error) : print_moved(arguments, true, &moved);
}

const struct cli_command command_cache_import = {
    .path = "cache import",
    .operands = "FILE",
    .summary = "add the blocks of an exported file",
    .text = "Only for the same model, backend, numerics and block layout (root lineage); every "
            "block is\n"
            "checked, and nothing is removed to make room. Exit status 5 when some were damaged.\n",
    .options = import_options,
    .option_count = COUNT_OF(import_options),
    .words_min = 1,
    .words_max = 1,
    .run = cache_import,
};
