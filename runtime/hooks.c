/* See hooks.h. A hook is looked at before it runs (whose it is, who may change it) and its outcome is
 * judged in one place. */
#include "hooks.h"

#include "permission_match.h"
#include "sandbox/beneath.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORKSPACE_INSIDE  "/workspace"
#define OUTPUT_KIB        16
#define WORDS_MAX         (CONFIG_ITEMS_MAX + 2)
#define STATUS_REFUSE     2
#define STATUS_NO_EXECUTE 126 /* of a shell: found, but it cannot run */
#define STATUS_NOT_FOUND  127

/* One hook on its way. */
struct running {
    const struct hooks *hooks;
    const struct config_hook *hook;
    enum hook_event event;
    const char *shown; /* its name in messages */
    struct hook_report *out;
    struct error *error;
    char path[PATH_MAX];  /* that is executed, as the sandbox sees it */
    char bound[PATH_MAX]; /* directory that is shown as well, "": none */
};

const char *hook_event_name(enum hook_event event) {
    static const char *const names[] = {"before_tool", "after_tool", "stop"};
    return names[event];
}

static const struct config_hooks *hooks_of(const struct hooks *hooks, enum hook_event event) {
    const struct config *config = hooks->config;
    return event == HOOK_BEFORE_TOOL  ? &config->hooks_before_tool
           : event == HOOK_AFTER_TOOL ? &config->hooks_after_tool
                                      : &config->hooks_stop;
}

static bool applies(const struct config_hook *hook, enum hook_event event, struct view tool) {
    return event == HOOK_STOP || glob_matches(view_of_text(hook->tool), tool, false);
}

bool hooks_apply(const struct hooks *hooks, enum hook_event event, struct view tool) {
    const struct config_hooks *list = hooks_of(hooks, event);
    for (size_t i = 0; i < list->count; i++) {
        if (applies(&list->items[i], event, tool)) {
            return true;
        }
    }
    return false;
}

/* ---- what is said --------------------------------------------------------------------------- */

static void say(struct running *running, const char *format, ...) PRINTF_LIKE(2, 3);

/* A note, and before a tool a refusal: what cannot do its work has not agreed. */
static void say(struct running *running, const char *format, ...) {
    char text[HOOK_NOTE_BYTES];
    struct hook_report *out = running->out;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7F) {
            *at = ' ';
        }
    }
    if (out->note_count < HOOK_NOTES_MAX) {
        char *note = out->notes[out->note_count++];
        (void)snprintf(
            note,
            HOOK_NOTE_BYTES,
            "hook %s %.60s: %.230s",
            hook_event_name(running->event),
            running->shown,
            text
        );
        note[utf8_valid_prefix(view_of_text(note))] = '\0';
    }
}

static result refuse(struct running *running, struct view reason) {
    struct hook_report *out = running->out;
    out->is_refused = true;
    TRY(buffer_append_format(
        &out->reason,
        running->error,
        "%shook %s: ",
        out->reason.length > 0 ? "\n" : "",
        running->shown
    ));
    return buffer_append(&out->reason, reason, running->error);
}

/* After a note: what it means for what is going on. */
static result could_not_run(struct running *running) {
    return running->event == HOOK_BEFORE_TOOL
               ? refuse(
                     running, view_of_text("it could not do its work, so that nothing is allowed")
                 )
               : OK;
}

/* ---- where it lies -------------------------------------------------------------------------- */

static bool is_below(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && path[length] == '/';
}

static const char *origin_of(const struct hooks *hooks) {
    return hooks->origin != NULL ? hooks->origin : hooks->policy->workspace;
}

/* Of the workspace: opened below it, so that no link leads elsewhere. */
static bool find_in_project(struct running *running) {
    CLEANUP(beneath_cleanup) struct beneath *root = NULL;
    const char *workspace = running->hooks->policy->workspace;
    const char *below = running->hook->command + strlen(origin_of(running->hooks)) + 1;
    struct beneath_info info;
    struct error why = {0};
    result found = beneath_open(workspace, &root, &why);
    if (is_ok(found)) {
        found = beneath_stat(root, below, &info, &why);
    }
    if (is_failed(found)) {
        say(running, "%.200s", why.message);
        return false;
    }
    if (info.kind != BENEATH_FILE || !info.executable) {
        say(running, "it is no executable file");
        return false;
    }
    (void)snprintf(running->path, sizeof running->path, "%s/%s", WORKSPACE_INSIDE, below);
    return true;
}

/* Below the user's hooks, or a program of the system. Links are followed: they are the user's. */
static bool find_on_host(struct running *running, bool is_system) {
    char hooks[PATH_MAX + sizeof CONFIG_USER_HOOKS + 1];
    struct stat about;
    const char *command = running->hook->command;
    const char *base = running->hooks->config->user_directory;
    if (realpath(command, running->path) == NULL || stat(running->path, &about) != 0) {
        say(running, "%s", strerror(errno));
        return false;
    }
    if (!S_ISREG(about.st_mode) || access(running->path, X_OK) != 0) {
        say(running, "it is no executable file");
        return false;
    }
    if ((about.st_mode & S_IWOTH) != 0 || (about.st_uid != geteuid() && about.st_uid != 0)) {
        say(running, "others than the user can change it");
        return false;
    }
    if (is_system) { /* a link such as /usr/bin/env is not resolved: busybox looks at its name */
        (void)snprintf(running->path, sizeof running->path, "%s", command);
        return true;
    }
    (void)snprintf(hooks, sizeof hooks, "%s/%s", base != NULL ? base : "", CONFIG_USER_HOOKS);
    if (realpath(hooks, running->bound) == NULL || !is_below(running->path, running->bound)) {
        say(running, "it leads out of %.200s", hooks);
        return false;
    }
    return true;
}

static bool find_executable(struct running *running) {
    const char *command = running->hook->command;
    if (strlen(command) >= PATH_MAX / 2) {
        say(running, "its path is too long");
        return false;
    }
    if (is_below(command, origin_of(running->hooks))) {
        return find_in_project(running);
    }
    return find_on_host(running, is_below(command, "/usr") || is_below(command, "/bin"));
}

/* ---- what it is told ------------------------------------------------------------------------ */

static void write_text(struct json_writer *writer, const char *name, struct view text) {
    if (text.length > 0) {
        json_write_key(writer, name);
        json_write_string(writer, text);
    }
}

/* What the model wrote as arguments may be anything. */
static void write_arguments(struct json_writer *writer, struct view arguments) {
    CLEANUP(json_cleanup) struct json_document *document = NULL;
    const struct json_limits limits = {.depth_max = JSON_DEPTH_MAX - 2};
    struct error ignored;
    if (is_ok(json_parse(arguments, &limits, &document, &ignored)) &&
        json_type(json_root(document)) == JSON_OBJECT) {
        json_write_key(writer, "arguments");
        json_write_value(writer, json_root(document));
    } else {
        write_text(writer, "arguments_text", arguments);
    }
}

static void write_result(struct json_writer *writer, const struct tool_result *outcome) {
    struct view text = buffer_view(&outcome->text);
    struct view shown = view_slice(text, 0, HOOK_RESULT_BYTES_MAX);
    shown.length = shown.length < text.length ? utf8_valid_prefix(shown) : shown.length;
    json_write_key(writer, "result");
    json_write_object_begin(writer);
    json_write_key(writer, "status");
    json_write_text(writer, tool_status_name(outcome->status));
    if (outcome->has_exit_status) {
        json_write_key(writer, "exit_status");
        json_write_i64(writer, outcome->exit_status);
    }
    json_write_key(writer, "text");
    json_write_string(writer, shown);
    json_write_key(writer, "is_cut");
    json_write_bool(writer, shown.length < text.length);
    json_write_object_end(writer);
}

static result write_event(
    enum hook_event event,
    const struct hook_subject *subject,
    struct buffer *out,
    struct error *error
) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "version");
    json_write_i64(&writer, 1);
    json_write_key(&writer, "event");
    json_write_text(&writer, hook_event_name(event));
    write_text(&writer, "session", subject->session);
    json_write_key(&writer, "workspace");
    json_write_text(&writer, WORKSPACE_INSIDE);
    if (event == HOOK_STOP) {
        write_text(&writer, "reason", subject->reason);
        write_text(&writer, "text", subject->text);
    } else {
        write_text(&writer, "tool", subject->tool);
        write_arguments(&writer, subject->arguments);
    }
    if (event == HOOK_AFTER_TOOL && subject->result != NULL) {
        write_result(&writer, subject->result);
    }
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_byte(out, '\n', error);
}

/* ---- running it ----------------------------------------------------------------------------- */

/* What a hook wrote, harmless and cut; without the last newline. */
static result take_output(
    const struct sandbox_call *call,
    enum sandbox_stream stream,
    struct buffer *out,
    struct error *error
) {
    TRY(sandbox_call_text(call, stream, out, error));
    if (out->length > HOOK_TEXT_BYTES_MAX) {
        out->length = utf8_valid_prefix(view_slice(buffer_view(out), 0, HOOK_TEXT_BYTES_MAX));
        TRY(buffer_append_text(out, " [cut]", error));
    }
    while (out->length > 0 && out->data[out->length - 1] == '\n') {
        out->length -= 1;
    }
    return OK;
}

static result take_agreement(struct running *running, struct sandbox_call *call) {
    CLEANUP(buffer_deinit) struct buffer text;
    struct hook_report *out = running->out;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    if (running->event != HOOK_AFTER_TOOL) {
        return OK; /* what it says when it agrees has no reader */
    }
    TRY(take_output(call, SANDBOX_STDOUT, &text, running->error));
    if (text.length == 0) {
        return OK;
    }
    TRY(buffer_append_format(&out->text, running->error, "[hook %s]\n", running->shown));
    TRY(buffer_append(&out->text, buffer_view(&text), running->error));
    return buffer_append_byte(&out->text, '\n', running->error);
}

static result take_exit(struct running *running, struct sandbox_call *call, int status) {
    CLEANUP(buffer_deinit) struct buffer words;
    buffer_init(&words, BUFFER_CEILING_DEFAULT);
    if (status == 0) {
        return take_agreement(running, call);
    }
    TRY(take_output(call, SANDBOX_STDERR, &words, running->error));
    struct view why = buffer_view(&words);
    if (status == STATUS_REFUSE) {
        return refuse(running, why.length > 0 ? why : view_of_text("it refuses, without a reason"));
    }
    say(running,
        "exit status %d%s%.*s",
        status,
        why.length > 0 ? ": " : "",
        VIEW_ARGUMENTS(view_slice(why, 0, 200)));
    bool is_missing = status == STATUS_NO_EXECUTE || status == STATUS_NOT_FOUND;
    return is_missing ? could_not_run(running) : OK;
}

static result take_outcome(struct running *running, struct sandbox_call *call) {
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    const char *reason = outcome->reason;
    switch (outcome->end) {
    case SANDBOX_EXITED:
        return take_exit(running, call, outcome->exit_status);
    case SANDBOX_CANCELLED:
        running->out->is_cancelled = true;
        return running->event == HOOK_BEFORE_TOOL ? refuse(running, view_of_text("cancelled")) : OK;
    case SANDBOX_TIMED_OUT:
        say(running, "stopped after %lld ms", (long long)running->hook->timeout_ms);
        break;
    case SANDBOX_OUTPUT_LIMIT:
        say(running, "stopped: it wrote too much");
        break;
    case SANDBOX_SIGNALLED:
    case SANDBOX_DISK_LIMIT:
    case SANDBOX_LAUNCH_FAILED:
    case SANDBOX_LOST:
        say(running, "%s%s%.200s", sandbox_end_name(outcome->end), reason[0] ? ": " : "", reason);
        break;
    }
    return could_not_run(running);
}

static result run_one(struct running *running, struct view event, int cancel_fd) {
    const struct hooks *hooks = running->hooks;
    const struct config_hook *hook = running->hook;
    const char *command[WORDS_MAX + 1] = {NULL};
    const char *const bound[] = {running->bound};
    const char *environment[1];
    char variable[64];
    struct sandbox_call *call = NULL;
    struct error why = {0};
    if (hooks->sandbox == NULL) {
        say(running, "commands cannot be confined here");
        return could_not_run(running);
    }
    if (!find_executable(running)) {
        return could_not_run(running);
    }
    command[0] = running->path;
    ASSERT(hook->arguments.count < WORDS_MAX);
    for (size_t i = 0; i < hook->arguments.count; i++) {
        command[i + 1] = hook->arguments.items[i];
    }
    (void)snprintf(variable, sizeof variable, "HEARTH_HOOK=%s", hook_event_name(running->event));
    environment[0] = variable;
    struct sandbox_policy policy = *hooks->policy;
    policy.wall_ms = hook->timeout_ms;
    policy.output_kib = OUTPUT_KIB;
    policy.output_total_mib = 1;
    policy.on_output = NULL;
    policy.merge_output = false;
    policy.environment = environment;
    policy.environment_count = 1;
    policy.read_only = bound;
    policy.read_only_count = running->bound[0] != '\0' ? 1 : 0;
    policy.read_only_is_own = true;
    policy.network_socket = NULL;
    result ran =
        sandbox_run_with_input(hooks->sandbox, &policy, command, event, cancel_fd, &call, &why);
    if (ran.code == RESULT_MEMORY) {
        FAIL(running->error, MEMORY, "hook %s: %s", running->shown, why.message);
    }
    if (is_failed(ran)) {
        say(running, "%.200s", why.message);
        return could_not_run(running);
    }
    result taken = take_outcome(running, call);
    sandbox_call_destroy(call);
    return taken;
}

/* The name of the file: what a person calls it. */
static const char *shown_name(const struct config_hook *hook) {
    const char *slash = strrchr(hook->command, '/');
    return slash != NULL ? slash + 1 : hook->command;
}

void hooks_check(const struct hooks *hooks, struct hook_report *out) {
    static const enum hook_event events[] = {HOOK_BEFORE_TOOL, HOOK_AFTER_TOOL, HOOK_STOP};
    *out = (struct hook_report){.is_refused = false};
    for (size_t i = 0; i < COUNT_OF(events); i++) {
        const struct config_hooks *list = hooks_of(hooks, events[i]);
        for (size_t j = 0; j < list->count; j++) {
            struct running running = {
                .hooks = hooks,
                .hook = &list->items[j],
                .event = events[i],
                .shown = shown_name(&list->items[j]),
                .out = out,
            };
            (void)find_executable(&running); /* has said why not */
        }
    }
}

result hooks_run(
    const struct hooks *hooks,
    enum hook_event event,
    const struct hook_subject *subject,
    int cancel_fd,
    struct hook_report *out,
    struct error *error
) {
    const struct config_hooks *list = hooks_of(hooks, event);
    CLEANUP(buffer_deinit) struct buffer text;
    *out = (struct hook_report){0};
    buffer_init(&out->reason, BUFFER_CEILING_DEFAULT);
    buffer_init(&out->text, BUFFER_CEILING_DEFAULT);
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    for (size_t i = 0; i < list->count; i++) {
        if (!applies(&list->items[i], event, subject->tool)) {
            continue;
        }
        struct running running = {
            .hooks = hooks,
            .hook = &list->items[i],
            .event = event,
            .shown = shown_name(&list->items[i]),
            .out = out,
            .error = error,
        };
        if (text.length == 0) {
            TRY(write_event(event, subject, &text, error));
        }
        TRY(run_one(&running, buffer_view(&text), cancel_fd));
        if (out->is_cancelled || (event == HOOK_BEFORE_TOOL && out->is_refused)) {
            break;
        }
    }
    return OK;
}

void hook_report_deinit(struct hook_report *report) {
    buffer_deinit(&report->reason);
    buffer_deinit(&report->text);
}
