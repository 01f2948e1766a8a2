/* The context of a workspace and the way from a name and arguments to a result. */
#include "tool_internal.h"
#include "tool_jobs.h"
#include "tool_mcp.h"
#include "tool_schema.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ARGUMENTS_VALUES_MAX 10000
#define ARGUMENTS_DEPTH_MAX  16
#define JOB_GRACE_MS         500            /* between SIGTERM and SIGKILL at the end */
#define OFFERED_BYTES_SHOWN  ((size_t)3000) /* of names, where a thousand may be */

/* The forms of the set that the dialect has. */
static result fill_offers(struct tool_context *context, struct error *error) {
    const struct tool_context_options *options = &context->options;
    context->offers = calloc(tool_count(), sizeof *context->offers);
    if (context->offers == NULL) {
        FAIL(error, MEMORY, "tool context: %zu tools", tool_count());
    }
    for (size_t i = 0; i < tool_count(); i++) {
        const struct tool_row *row = tool_row_at(i);
        const struct tool_descriptor *shown =
            tool_form(i, options->dialect, options->set | options->declared);
        bool is_possible = row->is_possible == NULL || row->is_possible(options);
        if ((options->set >> i & 1U) == 0 || shown == NULL || !is_possible) {
            continue;
        }
        struct tool_offer *offer = &context->offers[context->offer_count];
        offer->row = row;
        offer->shown = shown;
        offer->run = context->is_wide && row->run_wide != NULL ? row->run_wide : row->run;
        if (options->dialect != TOOL_DIALECT_HEARTH) {
            const struct tool_dialect_form *form =
                tool_dialect_find(options->dialect, row->shown.name);
            offer->renames = form->renames;
            offer->run = form->run != NULL ? form->run : offer->run;
        }
        struct view schema = view_of_text(shown->schema);
        context->offer_count += 1; // destroy frees the schema
        TRY_NOTE(
            error, json_parse(schema, NULL, &offer->schema, error), "schema of tool %s", shown->name
        );
        TRY_NOTE(
            error,
            tool_schema_check(json_root(offer->schema), error),
            "schema of tool %s",
            shown->name
        );
    }
    return OK;
}

result tool_context_create(
    struct tool_context **out, const struct tool_context_options *options, struct error *error
) {
    ASSERT(options->workspace != NULL && options->clock.monotonic_ms != NULL);
    ASSERT(options->sandbox == NULL || options->policy != NULL);
    CLEANUP(tool_context_cleanup) struct tool_context *context = calloc(1, sizeof *context);
    if (context == NULL) {
        FAIL(error, MEMORY, "tool context: %zu bytes", sizeof *context);
    }
    context->cancel_fd = -1;
    context->options = *options;
    if (context->options.set == 0) {
        context->options.set = tool_set_default(options->dialect);
    }
    context->is_wide =
        tool_set_is_wide(options->dialect, context->options.set | context->options.declared);
    context->is_strict = options->strictness == TOOL_STRICT_ALWAYS ||
                         (options->strictness == TOOL_STRICT_BY_SET && context->is_wide);
    if (context->options.time_ms_max <= 0) {
        context->options.time_ms_max = TOOL_TIME_MS_DEFAULT;
    }
    if (context->options.text_bytes_max == 0) {
        context->options.text_bytes_max = TOOL_TEXT_BYTES_DEFAULT;
    }
    context->time_ms_max = context->options.time_ms_max;
    context->workspace = strdup(options->workspace);
    if (context->workspace == NULL) {
        FAIL(error, MEMORY, "tool context: path of the workspace");
    }
    context->options.workspace = context->workspace;
    TRY(beneath_open(context->workspace, &context->root, error));
    TRY(fill_offers(context, error));
    context->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (context->cancel_fd < 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "tool context: eventfd: %s", strerror(code));
    }
    *out = TAKE(context);
    return OK;
}

void tool_context_destroy(struct tool_context *context) {
    if (context == NULL) {
        return;
    }
    tool_context_stop_processes(context);
    tool_jobs_destroy(context->jobs);
    tool_servers_destroy(context->servers);
    fd_cleanup(&context->cancel_fd);
    for (size_t i = 0; i < context->offer_count; i++) {
        json_destroy(context->offers[i].schema);
    }
    free(context->offers);
    tool_ledger_deinit(&context->ledger);
    tool_outputs_deinit(&context->outputs);
    buffer_deinit(&context->todo);
    beneath_close(context->root);
    free(context->workspace);
    free(context);
}

void tool_context_cleanup(struct tool_context **context) {
    tool_context_destroy(*context);
    *context = NULL;
}

/* ----------------------------------------------------------------- what is offered ---- */

size_t tool_context_count(const struct tool_context *context) {
    return context->offer_count;
}

const struct tool_descriptor *tool_context_at(const struct tool_context *context, size_t index) {
    ASSERT(index < context->offer_count);
    return context->offers[index].shown;
}

static const struct tool_offer *find_offer(const struct tool_context *context, struct view name) {
    for (size_t i = 0; i < context->offer_count; i++) {
        if (view_equals_text(name, context->offers[i].shown->name)) {
            return &context->offers[i];
        }
    }
    return NULL;
}

const struct tool_descriptor *
tool_context_find(const struct tool_context *context, struct view name) {
    const struct tool_offer *offer = find_offer(context, name);
    return offer == NULL ? NULL : offer->shown;
}

void tool_context_declarations(const struct tool_context *context, struct json_writer *writer) {
    json_write_array_begin(writer);
    for (size_t i = 0; i < context->offer_count; i++) {
        tool_declaration_write(writer, context->offers[i].shown);
    }
    json_write_array_end(writer);
}

const char *tool_offered_name(const struct tool_context *context, const struct tool_row *row) {
    for (size_t i = 0; i < context->offer_count; i++) {
        if (context->offers[i].row == row) {
            return context->offers[i].shown->name;
        }
    }
    return NULL;
}

result tool_context_add(
    struct tool_context *context,
    const struct tool_descriptor *shown,
    tool_run *run,
    void *owner,
    struct error *error
) {
    ASSERT(context->running == NULL && owner != NULL);
    if (find_offer(context, view_of_text(shown->name)) != NULL) {
        FAIL(error, INVALID_INPUT, "there is a tool '%.64s' already", shown->name);
    }
    if (context->offer_count >= TOOL_COUNT_MAX + TOOL_ROWS_ADDED_MAX) {
        FAIL(error, LIMIT, "more than %zu added tools", TOOL_ROWS_ADDED_MAX);
    }
    size_t bytes = (context->offer_count + 1) * sizeof *context->offers;
    struct tool_offer *offers = realloc(context->offers, bytes);
    if (offers == NULL) {
        FAIL(error, MEMORY, "tool context: %zu bytes for its tools", bytes);
    }
    context->offers = offers;
    offers[context->offer_count] = (struct tool_offer){.shown = shown, .run = run, .owner = owner};
    context->offer_count += 1;
    return OK;
}

void tool_context_remove(struct tool_context *context, const void *owner) {
    ASSERT(context->running == NULL && owner != NULL);
    size_t kept = 0;
    for (size_t i = 0; i < context->offer_count; i++) {
        if (context->offers[i].owner != owner) {
            context->offers[kept] = context->offers[i];
            kept += 1;
        }
    }
    context->offer_count = kept;
}

void tool_context_ledger(
    const struct tool_context *context, tool_context_ledger_entry *entry, void *entry_context
) {
    for (size_t i = 0; i < context->ledger.count; i++) {
        const struct tool_ledger_file *known = &context->ledger.files[i];
        const struct tool_file_read file = {known->path, known->bytes, known->is_written};
        entry(entry_context, &file);
    }
}

bool tool_context_has_output(const struct tool_context *context, struct view locator) {
    struct view prefix = view_of_text(TOOL_OUTPUT_PREFIX);
    uint64_t call = 0;
    return view_starts_with(locator, prefix) &&
           parse_u64(view_slice(locator, prefix.length, SIZE_MAX), &call) &&
           tool_outputs_find(&context->outputs, call) != NULL;
}

/* ------------------------------------------------------------------------- calls ---- */

void tool_context_limit_time(struct tool_context *context, int64_t time_ms_max) {
    int64_t own = context->options.time_ms_max;
    context->time_ms_max = time_ms_max <= 0 || time_ms_max > own ? own : time_ms_max;
    context->run_ms_left = time_ms_max <= 0 ? 0 : time_ms_max;
}

void tool_cancel(struct tool_context *context) {
    // The flag is what counts; the descriptor only wakes a call that sleeps. Release pairs with the
    // acquire in tool_should_stop.
    atomic_store_explicit(&context->cancelled, true, memory_order_release);
    int saved = errno; // a signal handler must not change it
    const uint64_t one = 1;
    ssize_t written = write(context->cancel_fd, &one, sizeof one);
    (void)written; // fails only when the counter is full, and then it is readable
    errno = saved;
}

void tool_cancel_end(struct tool_context *context) {
    uint64_t times = 0;
    ssize_t taken = read(context->cancel_fd, &times, sizeof times);
    (void)taken; // nothing was there, or it is gone now
    atomic_store_explicit(&context->cancelled, false, memory_order_release);
}

result tool_should_stop(
    struct tool_context *context, struct tool_result *out, bool *stop, struct error *error
) {
    *stop = true;
    if (atomic_load_explicit(&context->cancelled, memory_order_acquire)) {
        return tool_answer(out, TOOL_CANCELLED, error, "error: cancelled");
    }
    if (clock_monotonic_ms(&context->options.clock) >= context->deadline_ms) {
        char line[TOOL_STOPPED_BYTES];
        tool_stopped_text(line, context->time_ms_max);
        return tool_answer(out, TOOL_TIMEOUT, error, "%s", line);
    }
    *stop = false;
    return OK;
}

/* "shell, read, edit, write" */
static result
list_offered(const struct tool_context *context, struct buffer *out, struct error *error) {
    for (size_t i = 0; i < context->offer_count && out->length < OFFERED_BYTES_SHOWN; i++) {
        const char *separator = out->length == 0 ? "" : ", ";
        const char *name = context->offers[i].shown->name;
        TRY(buffer_append_format(out, error, "%s%s", separator, name));
    }
    return OK;
}

static result refuse_unknown(
    const struct tool_context *context,
    struct view name,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer offered = {NULL, 0, 0, 0};
    buffer_init(&offered, BUFFER_CEILING_DEFAULT);
    TRY(list_offered(context, &offered, error));
    return tool_answer(
        out,
        TOOL_REFUSED,
        error,
        "error: unknown tool: %.*s; the tools are: %s",
        (int)(name.length > 64 ? 64 : name.length),
        (const char *)name.data,
        buffer_text(&offered)
    );
}

/* Parses what the model wrote; *out stays null where the answer says what is wrong with it. */
static result parse_arguments(
    const struct tool_offer *offer,
    struct view arguments,
    struct json_document **out,
    struct tool_result *answer,
    struct error *error
) {
    const char *name = offer->shown->name;
    const struct json_limits limits = {
        TOOL_ARGUMENTS_BYTES_MAX, ARGUMENTS_VALUES_MAX, ARGUMENTS_DEPTH_MAX};
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    struct error why = {0};
    result parsed = json_parse(arguments, &limits, &document, &why);
    if (parsed.code == RESULT_MEMORY) {
        return error_set(error, RESULT_MEMORY, 0, why.file, why.line, "%s", why.message);
    }
    if (is_failed(parsed)) {
        return tool_answer(
            answer,
            TOOL_REFUSED,
            error,
            "error: the arguments of %s are not valid JSON: %s",
            name,
            why.message
        );
    }
    if (offer->schema == NULL && json_type(json_root(document)) != JSON_OBJECT) {
        return tool_answer(
            answer, TOOL_REFUSED, error, "error: the arguments of %s must be an object", name
        );
    }
    if (offer->schema != NULL) {
        CLEANUP(buffer_deinit) struct buffer line = {NULL, 0, 0, 0};
        buffer_init(&line, TOOL_RESULT_BYTES_MAX);
        bool matches = false;
        struct json_value schema = json_root(offer->schema);
        TRY(tool_schema_match(name, schema, json_root(document), &line, &matches, error));
        if (!matches) {
            return tool_answer(answer, TOOL_REFUSED, error, "%s", buffer_text(&line));
        }
    }
    *out = TAKE(document);
    return OK;
}

static result call_known(
    struct tool_context *context,
    const struct tool_offer *offer,
    struct view arguments,
    struct tool_result *out,
    struct error *error
) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    TRY(parse_arguments(offer, arguments, &document, out, error));
    bool stop = document == NULL;
    if (!stop) {
        TRY(tool_should_stop(context, out, &stop, error));
    }
    if (stop) {
        return OK;
    }
    CLEANUP(json_cleanup) struct json_document *own_names = NULL;
    if (offer->renames != NULL) {
        CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
        buffer_init(&text, 2 * TOOL_ARGUMENTS_BYTES_MAX);
        TRY(tool_dialect_rename(offer->renames, json_root(document), &text, error));
        TRY(json_parse(buffer_view(&text), NULL, &own_names, error));
    }
    context->running = offer;
    result status =
        offer->run(context, json_root(own_names != NULL ? own_names : document), out, error);
    context->running = NULL;
    return status;
}

/* Keeps what was shown in part, and ends the text with where to read on. The bundled model knows
 * no such line. */
static result keep_output(
    struct tool_context *context,
    const struct tool_offer *offer,
    struct tool_result *out,
    struct error *error
) {
    const char *read = tool_offered_name(context, &tool_row_read);
    if (!context->is_wide || read == NULL || !out->text_is_truncated || out->output.length == 0 ||
        offer->row == &tool_row_read) {
        return OK;
    }
    bool is_kept = false;
    uint64_t kept = out->output.length;
    uint64_t missing = out->output_bytes > kept ? out->output_bytes - kept : 0;
    TRY(tool_outputs_keep(
        &context->outputs,
        context->call_count,
        buffer_view(&out->output),
        out->output_gap_at,
        missing,
        &is_kept,
        error
    ));
    if (!is_kept) {
        return OK;
    }
    return buffer_append_format(
        &out->text,
        error,
        "\n[all of it: %s of \"" TOOL_OUTPUT_PREFIX "%llu\"]",
        read,
        (unsigned long long)context->call_count
    );
}

result tool_call(
    struct tool_context *context,
    struct view name,
    struct view arguments,
    struct tool_result *out,
    struct error *error
) {
    tool_result_init(out);
    const struct clock *clock = &context->options.clock;
    out->started_ms = clock_wall_ms(clock);
    int64_t begin_ms = clock_monotonic_ms(clock);
    context->deadline_ms = begin_ms + context->time_ms_max;
    context->call_count += 1;
    const struct tool_offer *offer = find_offer(context, name);
    result status = offer == NULL ? refuse_unknown(context, name, out, error)
                                  : call_known(context, offer, arguments, out, error);
    if (is_ok(status) && offer != NULL) {
        status = keep_output(context, offer, out, error);
    }
    if (is_ok(status) && context->is_wide) {
        status = tool_jobs_append_news(context, &out->text, error);
    }
    out->duration_ms = clock_monotonic_ms(clock) - begin_ms;
    TRY_NOTE(error, status, "tool %.*s", (int)(name.length > 64 ? 64 : name.length), name.data);
    ASSERT(utf8_is_valid(buffer_view(&out->text)));
    return OK;
}

void tool_context_stop_processes(struct tool_context *context) {
    tool_jobs_stop(context->jobs, JOB_GRACE_MS);
    tool_servers_stop(context->servers, JOB_GRACE_MS);
}
