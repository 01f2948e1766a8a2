/* Verifications: the verifier's command in a copy of what a node made, which is thrown away. See swarm_work.h. */
#include "swarm_work_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define OUTPUT_KIB         64 /* kept of what the verifier writes, of which the end is shown */
#define OUTPUT_TOTAL_MIB   64
#define STATUS_NO_EXECUTE  126 /* of a shell */
#define STATUS_NOT_FOUND   127
#define EDITED_NAMES_BYTES 400

/* As commands of the tools have it: a test run leaves nothing behind. */
static const char *const environment[] = {"PYTHONDONTWRITEBYTECODE=1"};

/* ---- cancel ------------------------------------------------------------------------------------- */

result swarm_work_cancel_create(int *out_fd, struct error *error) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        FAIL_FOREIGN(error, IO, errno, "eventfd: %s", strerror(errno));
    }
    *out_fd = fd;
    return OK;
}

void swarm_work_cancel(int fd) {
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);
    (void)written; // full: it is readable
}

static bool is_cancelled(int fd) {
    struct pollfd watched = {fd, POLLIN, 0};
    return fd >= 0 && poll(&watched, 1, 0) > 0;
}

/* ---- a copy ------------------------------------------------------------------------------------- */

struct scratch {
    char directory[SWARM_WORK_PATH], store[SWARM_WORK_PATH];
    int lease;
    bool is_made;
};

static void scratch_deinit(struct scratch *scratch) {
    if (!scratch->is_made) {
        return;
    }
    worktree_release(&scratch->lease);
    result_ignore(worktree_discard(scratch->directory, NULL)); // a sweep finds what stays
    result_ignore(worktree_remove_store(scratch->store, NULL));
}

/* Of a snapshot that the node's store has, or, when it is closed, the root's. */
static result scratch_make(
    struct swarm_work_node *node, const char *commit, struct scratch *scratch, struct error *error
) {
    struct swarm_work *work = node->work;
    /* The root's store has what a node made; its own directory may be closed meanwhile. */
    const struct swarm_work_node *from = node->has_result ? work->root : node;
    char name[SWARM_NAME_BYTES + 32];
    (void)pthread_mutex_lock(&work->lock);
    uint64_t serial = work->serial++;
    (void)pthread_mutex_unlock(&work->lock);
    // A node's name has no dot.
    (void)snprintf(name, sizeof name, "%s.%llu", node->name, (unsigned long long)serial);
    TRY(swarm_work_join(scratch->directory, work->place, SWARM_WORK_VERIFY, name, error));
    TRY(swarm_work_join(scratch->store, work->place, SWARM_WORK_STORES, name, error));
    const struct worktree_options options = {
        .source = from->directory,
        .directory = scratch->directory,
        .with_ignored = work->options.with_ignored,
        .is_scratch = true,
        .snapshots = from->store,
        .commit = commit,
        .own_snapshots = scratch->store,
        .lease = &scratch->lease,
    };
    struct worktree made;
    TRY(worktree_create(&options, &made, error));
    scratch->is_made = true;
    return OK;
}

/* Files of the snapshot that are not what they were; new ones may come. */
static result
find_edited(const struct scratch *scratch, const char *commit, char *names, struct error *error) {
    CLEANUP(workspace_cleanup) struct workspace *workspace = NULL;
    struct workspace_snapshot now;
    struct workspace_difference difference;
    size_t used = 0;
    TRY(workspace_open(scratch->directory, scratch->store, &workspace, error));
    TRY(workspace_take_snapshot(workspace, "verified", &now, error));
    TRY(workspace_compare(workspace, commit, now.commit, 0, &difference, error));
    for (size_t i = 0; i < difference.file_count; i++) {
        const struct workspace_file_change *file = &difference.files[i];
        size_t length = strlen(file->path);
        if (file->change != WORKSPACE_ADDED && utf8_is_valid(view_of_text(file->path)) &&
            used + length + 2 < EDITED_NAMES_BYTES) {
            used += (size_t)snprintf(
                names + used, EDITED_NAMES_BYTES - used, "%s%s", used > 0 ? " " : "", file->path
            );
        } else if (file->change != WORKSPACE_ADDED && used == 0) {
            used = (size_t)snprintf(names, EDITED_NAMES_BYTES, "(a long name)");
        }
    }
    workspace_difference_deinit(&difference);
    return OK;
}

/* ---- words -------------------------------------------------------------------------------------- */

static void say(struct swarm_work_verdict *out, const char *format, ...) PRINTF_LIKE(2, 3);

static void say(struct swarm_work_verdict *out, const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0);
    text[utf8_valid_prefix(view_of_text(text))] = '\0';
    (void)snprintf(out->detail, sizeof out->detail, "%s", text);
}

/* The end of the output behind what was said. */
static void add_output(const struct sandbox_call *call, struct swarm_work_verdict *out) {
    CLEANUP(buffer_deinit) struct buffer text;
    static const char cut[] = "[...] ";
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    if (is_failed(sandbox_call_text(call, SANDBOX_STDOUT, &text, NULL)) || text.length == 0) {
        return;
    }
    size_t used = strlen(out->detail);
    size_t room = sizeof out->detail - used - sizeof cut - 2;
    struct view end = buffer_view(&text);
    bool is_cut = end.length > room;
    end = is_cut ? view_slice(end, end.length - room, room) : end;
    while (end.length > 0 && (end.data[0] & 0xC0) == 0x80) { // inside of a character
        end = view_slice(end, 1, SIZE_MAX);
    }
    (void)snprintf(
        out->detail + used,
        sizeof out->detail - used,
        "\n%s%.*s",
        is_cut ? cut : "",
        (int)end.length,
        (const char *)end.data
    );
}

/* ---- verdicts ----------------------------------------------------------------------------------- */

struct verifying {
    struct swarm_work_node *node;
    struct clock clock;
    int64_t until_ms;
    int cancel_fd;
    struct error error;
};

/* A program that does wrong ends so; other signals come from outside. */
static bool is_fault(int number) {
    return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL ||
           number == SIGABRT || number == SIGTRAP || number == SIGSYS;
}

static bool cannot_run(const struct sandbox_outcome *outcome) {
    return outcome->end == SANDBOX_EXITED &&
           (outcome->exit_status == STATUS_NO_EXECUTE || outcome->exit_status == STATUS_NOT_FOUND);
}

/* The verifier in a copy of `commit`; *scratch and *call are the caller's. */
static result run_in_copy(
    struct verifying *verifying,
    struct swarm_work_node *node,
    const char *commit,
    struct scratch *scratch,
    struct sandbox_call **call
) {
    const struct swarm_work_options *options = &node->work->options;
    const char *const command[] = {"/bin/sh", "-c", options->verifier, NULL};
    struct error *error = &verifying->error;
    TRY(scratch_make(node, commit, scratch, error));
    int64_t left_ms = verifying->until_ms - clock_monotonic_ms(&verifying->clock);
    if (left_ms <= 0) {
        FAIL(error, TIMEOUT, "no time was left for the verifier");
    }
    struct sandbox_policy policy = node->policy;
    policy.workspace = scratch->directory;
    policy.wall_ms = left_ms;
    policy.is_read_only = false; // it is thrown away
    policy.output_kib = OUTPUT_KIB;
    policy.output_total_mib = OUTPUT_TOTAL_MIB;
    policy.merge_output = true;
    policy.has_input = false;
    policy.on_output = NULL;
    policy.environment = environment;
    policy.environment_count = COUNT_OF(environment);
    return sandbox_run(options->sandbox, &policy, command, verifying->cancel_fd, call, error);
}

/* Whether a shell can run it where nobody has changed anything. */
static bool runs_at_all(struct verifying *verifying) {
    struct swarm_work *work = verifying->node->work;
    CLEANUP(scratch_deinit) struct scratch scratch = {.lease = -1};
    struct sandbox_call *call = NULL;
    (void)pthread_mutex_lock(&work->lock);
    enum swarm_work_verifier known = work->verifier;
    (void)pthread_mutex_unlock(&work->lock);
    if (known != SWARM_WORK_VERIFIER_UNKNOWN) {
        return known == SWARM_WORK_VERIFIER_RUNS;
    }
    result ran = run_in_copy(verifying, work->root, work->root->commit_before, &scratch, &call);
    if (is_failed(ran)) {
        return false; // not known
    }
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    bool runs = !cannot_run(outcome);
    bool is_known = outcome->end == SANDBOX_EXITED || outcome->end == SANDBOX_TIMED_OUT;
    sandbox_call_destroy(call);
    (void)pthread_mutex_lock(&work->lock);
    work->verifier = !is_known ? work->verifier
                     : runs    ? SWARM_WORK_VERIFIER_RUNS
                               : SWARM_WORK_VERIFIER_NEVER;
    (void)pthread_mutex_unlock(&work->lock);
    return runs;
}

static void judge_exit(
    struct verifying *verifying,
    const struct scratch *scratch,
    const char *commit,
    const struct sandbox_outcome *outcome,
    struct swarm_work_verdict *out
) {
    char names[EDITED_NAMES_BYTES] = "";
    say(out, "exit status %d", outcome->exit_status);
    out->verdict = SWARM_VERIFIED_FAIL;
    if (cannot_run(outcome)) {
        out->verdict = runs_at_all(verifying) ? SWARM_VERIFIED_FAIL : SWARM_VERIFIED_CRASHED;
    }
    if (outcome->exit_status != 0) {
        return;
    }
    out->verdict = SWARM_VERIFIED_PASS;
    if (is_failed(find_edited(scratch, commit, names, &verifying->error))) {
        out->verdict = SWARM_VERIFIED_CRASHED;
        say(out, "what it left cannot be looked at: %.300s", verifying->error.message);
    } else if (names[0] != '\0') {
        out->verdict = SWARM_VERIFIED_EDITED;
        say(out, "it changed files: %s", names);
    }
}

static void judge(
    struct verifying *verifying,
    const struct scratch *scratch,
    const char *commit,
    const struct sandbox_outcome *outcome,
    struct swarm_work_verdict *out
) {
    const char *name = sandbox_end_name(outcome->end);
    bool is_failure = false;
    switch (outcome->end) {
    case SANDBOX_EXITED:
        judge_exit(verifying, scratch, commit, outcome, out);
        return;
    case SANDBOX_CANCELLED:
        say(out, "cancelled");
        return;
    case SANDBOX_TIMED_OUT:
        out->verdict = SWARM_VERIFIED_HUNG;
        say(out, "stopped after %lld ms", (long long)outcome->wall_ms);
        return;
    case SANDBOX_SIGNALLED: // the memory was used up by what it looked at
        is_failure = is_fault(outcome->signal) || outcome->out_of_memory;
        say(out,
            "ended by signal %d%s",
            outcome->signal,
            outcome->out_of_memory ? ", out of memory" : "");
        break;
    case SANDBOX_OUTPUT_LIMIT:
    case SANDBOX_DISK_LIMIT:
        is_failure = true;
        say(out, "stopped: %s", outcome->reason[0] != '\0' ? outcome->reason : name);
        break;
    case SANDBOX_LAUNCH_FAILED:
    case SANDBOX_LOST:
        say(out, "%s: %s", name, outcome->reason);
        break;
    }
    out->verdict = is_failure ? SWARM_VERIFIED_FAIL : SWARM_VERIFIED_CRASHED;
}

/* ---- all ---------------------------------------------------------------------------------------- */

/* What is looked at: what was asked for, what the node made, what the root is now. */
static result find_commit(
    struct verifying *verifying,
    const struct swarm_work_verification *options,
    char out[WORKSPACE_COMMIT_BYTES]
) {
    struct swarm_work_node *node = verifying->node;
    struct error *error = &verifying->error;
    const char *commit = options->commit;
    if (commit == NULL && node->parent == NULL) {
        return swarm_work_snapshot(node, "before it is verified", out, error);
    }
    if (commit == NULL && !node->has_result) {
        FAIL(error, INVALID_INPUT, "%s has no result yet", node->name);
    }
    if (commit == NULL) {
        commit = node->made.commit[0] != '\0' ? node->made.commit : node->commit_before;
    }
    if (strlen(commit) != WORKSPACE_COMMIT_BYTES - 1) {
        FAIL(error, INVALID_INPUT, "'%.60s' is not the name of a snapshot", commit);
    }
    memcpy(out, commit, WORKSPACE_COMMIT_BYTES);
    return OK;
}

void swarm_work_verify(
    struct swarm_work_node *node,
    const struct swarm_work_verification *options,
    struct swarm_work_verdict *out
) {
    struct verifying verifying = {
        .node = node, .clock = clock_real(), .cancel_fd = options->cancel_fd};
    CLEANUP(scratch_deinit) struct scratch scratch = {.lease = -1};
    struct sandbox_call *call = NULL;
    char commit[WORKSPACE_COMMIT_BYTES];
    ASSERT(node->work->options.verifier != NULL);
    *out = (struct swarm_work_verdict){.verdict = SWARM_NOT_VERIFIED};
    verifying.until_ms = clock_monotonic_ms(&verifying.clock) + options->time_ms_max;
    if (is_cancelled(options->cancel_fd)) {
        say(out, "cancelled");
        return;
    }
    result ran = find_commit(&verifying, options, commit);
    if (is_ok(ran)) {
        ran = run_in_copy(&verifying, node, commit, &scratch, &call);
    }
    if (is_failed(ran)) {
        out->verdict = SWARM_VERIFIED_CRASHED;
        out->is_full = swarm_work_is_full(node->work, &verifying.error);
        say(out, "it could not run: %s", verifying.error.message);
        return;
    }
    judge(&verifying, &scratch, commit, sandbox_call_outcome(call), out);
    add_output(call, out);
    sandbox_call_destroy(call);
}
