/* Files of a task and its hidden tests; see swarm_eval_folder.h.
 *
 * What agents left is foreign: hidden tests are written below the open workspace, never through a link, and
 * run confined as any command of an agent.
 */
#include "swarm_eval_folder.h"

#include "sandbox/beneath.h"
#include "sandbox/sandbox.h"

#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIRECTORIES_MAX ((size_t)200)
#define WALK_FDS        16

/* ---- copying ----------------------------------------------------------------------------------- */

struct copy {
    struct beneath *from, *to;
    const char *to_path;
    char *directories[DIRECTORIES_MAX]; /* [count]; those before `next` are done */
    size_t count, next, files;
};

static void copy_deinit(struct copy *copy) {
    for (size_t i = 0; i < copy->count; i++) {
        free(copy->directories[i]);
    }
    beneath_close(copy->from);
    beneath_close(copy->to);
}

static result push_directory(struct copy *copy, const char *path, struct error *error) {
    if (copy->count == DIRECTORIES_MAX) {
        FAIL(error, LIMIT, "more than %zu directories", DIRECTORIES_MAX);
    }
    copy->directories[copy->count] = strdup(path);
    if (copy->directories[copy->count] == NULL) {
        FAIL(error, MEMORY, "no memory for a path");
    }
    copy->count++;
    return OK;
}

/* Of a file just written, below directories in which nobody works. */
static result make_executable(const struct copy *copy, const char *path, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer whole;
    buffer_init(&whole, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(&whole, error, "%s/%s", copy->to_path, path));
    if (chmod(buffer_text(&whole), S_IRWXU | S_IRGRP | S_IXGRP | S_IROTH | S_IXOTH) != 0) {
        int failed = errno;
        FAIL_FOREIGN(error, IO, failed, "%s: not made executable: %s", path, strerror(failed));
    }
    return OK;
}

/* What is in the way goes; a directory with something in it stays, and writing fails. */
static result copy_file(struct copy *copy, const char *path, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer content;
    struct beneath_info info;
    buffer_init(&content, SWARM_EVAL_FILE_BYTES_MAX);
    if (++copy->files > SWARM_EVAL_FILES_MAX) {
        FAIL(error, LIMIT, "more than %d files", SWARM_EVAL_FILES_MAX);
    }
    TRY(beneath_read(copy->from, path, 0, SWARM_EVAL_FILE_BYTES_MAX, &content, &info, error));
    if (info.bytes > SWARM_EVAL_FILE_BYTES_MAX) {
        FAIL(error, LIMIT, "%s: more than %zu bytes", path, SWARM_EVAL_FILE_BYTES_MAX);
    }
    result_ignore(beneath_remove(copy->to, path, NULL)); /* usually there is none */
    TRY(beneath_write(copy->to, path, buffer_view(&content), error));
    return info.executable ? make_executable(copy, path, error) : OK;
}

static result copy_directory(struct copy *copy, const char *path, struct error *error) {
    CLEANUP(beneath_list_deinit) struct beneath_list list = {0};
    CLEANUP(buffer_deinit) struct buffer member;
    buffer_init(&member, BENEATH_PATH_BYTES_MAX);
    TRY(beneath_list_directory(copy->from, path, SWARM_EVAL_FILES_MAX + 1, &list, error));
    for (size_t i = 0; i < list.count; i++) {
        buffer_clear(&member);
        TRY(path[0] == '\0'
                ? buffer_append_text(&member, list.entries[i].name, error)
                : buffer_append_format(&member, error, "%s/%s", path, list.entries[i].name));
        if (list.entries[i].info.kind == BENEATH_DIRECTORY) {
            TRY(beneath_mkdir(copy->to, buffer_text(&member), true, error));
            TRY(push_directory(copy, buffer_text(&member), error));
        } else if (list.entries[i].info.kind == BENEATH_FILE) {
            TRY(copy_file(copy, buffer_text(&member), error));
        } else {
            FAIL(error, INVALID_INPUT, "%s: neither file nor directory", buffer_text(&member));
        }
    }
    return OK;
}

static result copy_part(
    const struct swarm_eval_item *item, const char *part, struct copy *copy, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer path;
    buffer_init(&path, BENEATH_PATH_BYTES_MAX);
    TRY(buffer_append_format(&path, error, "%s/%s", item->directory, part));
    TRY(beneath_open(buffer_text(&path), &copy->from, error));
    TRY(push_directory(copy, "", error));
    while (copy->next < copy->count) {
        TRY(copy_directory(copy, copy->directories[copy->next++], error));
    }
    return OK;
}

result
swarm_eval_place(const struct swarm_eval_item *item, const char *workspace, struct error *error) {
    CLEANUP(copy_deinit) struct copy copy = {.to_path = workspace};
    TRY(beneath_open(workspace, &copy.to, error));
    TRY_NOTE(error, copy_part(item, "repo", &copy, error), "task %.*s", VIEW_ARGUMENTS(item->id));
    return OK;
}

/* ---- hidden tests ------------------------------------------------------------------------------ */

static bool has_last_line(struct view output, struct view line) {
    while (output.length > 0 && output.data[output.length - 1] == '\n') {
        output.length--;
    }
    bool is_whole =
        output.length == line.length ||
        (output.length > line.length && output.data[output.length - line.length - 1] == '\n');
    return line.length == 0 || (is_whole && view_ends_with(output, line));
}

static result run_hidden(
    const struct swarm_eval_item *item,
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    bool *is_solved,
    struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer command_text;
    CLEANUP(buffer_deinit) struct buffer text;
    struct sandbox_call *call = NULL;
    buffer_init(&command_text, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append(&command_text, item->hidden_command, error));
    const char *const command[] = {"sh", "-c", buffer_text(&command_text), NULL};
    TRY(sandbox_run(sandbox, policy, command, -1, &call, error));
    const struct sandbox_outcome *outcome = sandbox_call_outcome(call);
    struct sandbox_output output = sandbox_call_output(call, SANDBOX_STDOUT);
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    result kept = output.dropped > 0 ? OK : buffer_append(&text, output.head, error);
    if (is_ok(kept)) {
        kept = buffer_append(&text, output.tail, error);
    }
    bool is_lost = outcome->end == SANDBOX_LAUNCH_FAILED || outcome->end == SANDBOX_LOST;
    bool passes = outcome->end == SANDBOX_EXITED && outcome->exit_status == 0 &&
                  has_last_line(buffer_view(&text), item->hidden_line);
    char reason[SANDBOX_TEXT_BYTES];
    memcpy(reason, outcome->reason, sizeof reason);
    sandbox_call_destroy(call);
    TRY(kept);
    if (is_lost) {
        FAIL(error, IO, "hidden tests did not run: %.300s", reason);
    }
    *is_solved = passes;
    return OK;
}

/* Whether the task's own hidden tests can be copied at all, beside the workspace. */
static result
check_hidden(const struct swarm_eval_item *item, const char *workspace, struct error *error) {
    CLEANUP(buffer_deinit) struct buffer path;
    CLEANUP(copy_deinit) struct copy copy = {0};
    buffer_init(&path, BUFFER_CEILING_DEFAULT);
    TRY(buffer_append_format(&path, error, "%s-XXXXXX", workspace));
    char *directory = mkdtemp((char *)path.data);
    if (directory == NULL) {
        FAIL(error, IO, "no directory to look at hidden tests: %s", strerror(errno));
    }
    copy.to_path = directory;
    result copied = beneath_open(directory, &copy.to, error);
    if (is_ok(copied)) {
        copied = copy_part(item, "hidden", &copy, error);
    }
    result removed = swarm_eval_remove(directory, is_ok(copied) ? error : NULL);
    return is_failed(copied) ? copied : removed;
}

result swarm_eval_judge(
    const struct swarm_eval_item *item,
    struct sandbox *sandbox,
    const char *workspace,
    int64_t time_ms_max,
    bool *is_solved,
    struct error *error
) {
    CLEANUP(copy_deinit) struct copy copy = {.to_path = workspace};
    struct sandbox_policy policy = sandbox_policy_default(workspace);
    struct error why = {0};
    policy.wall_ms = time_ms_max;
    TRY(beneath_open(workspace, &copy.to, error));
    result copied = copy_part(item, "hidden", &copy, &why);
    bool is_agents = copied.code == RESULT_INVALID_INPUT; /* a link or directory has that name */
    if (is_agents && is_ok(check_hidden(item, workspace, &why))) {
        *is_solved = false;
        return OK;
    }
    if (is_failed(copied)) {
        FAIL(error, IO, "hidden tests of %.*s: %s", VIEW_ARGUMENTS(item->id), why.message);
    }
    return run_hidden(item, sandbox, &policy, is_solved, error);
}

/* ---- the end ----------------------------------------------------------------------------------- */

#define OPEN_PASSES_MAX 4096 /* a path has fewer levels */

static _Thread_local bool was_closed; /* nftw takes no context */

static int open_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info;
    (void)where;
    bool is_directory = kind == FTW_D || kind == FTW_DNR;
    was_closed = was_closed || kind == FTW_DNR;
    return is_directory && chmod(path, S_IRWXU) != 0 ? errno : 0;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where) {
    (void)info;
    (void)where;
    bool is_directory = kind == FTW_D || kind == FTW_DP || kind == FTW_DNR;
    int done = is_directory ? rmdir(path) : unlink(path);
    return done != 0 && errno != ENOENT ? errno : 0;
}

/* Opened first, level by level: an agent may have closed directories to its own user. */
result swarm_eval_remove(const char *directory, struct error *error) {
    int failed = 0;
    was_closed = true;
    for (int i = 0; failed == 0 && was_closed && i < OPEN_PASSES_MAX; i++) {
        was_closed = false;
        failed = nftw(directory, open_entry, WALK_FDS, FTW_PHYS);
    }
    if (failed == 0) {
        failed = nftw(directory, remove_entry, WALK_FDS, FTW_PHYS | FTW_DEPTH);
    }
    if (failed != 0) {
        failed = failed < 0 ? errno : failed;
        FAIL_FOREIGN(error, IO, failed, "%s: cannot be removed: %s", directory, strerror(failed));
    }
    return OK;
}
