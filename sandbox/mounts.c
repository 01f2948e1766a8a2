/* The checks behind mounts.h.
 *
 * The rule that CVE-2026-87766 teaches: a mount destination may pass through a directory that a
 * sandboxed process can write only if it was checked just before and no such process can change it.
 * So a share in the workspace is taken first (hold.h), under which `.git` and protected paths are
 * opened without following any symlink; they are mounted by descriptor.
 */
#include "mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pwd.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "hold.h"
#include "launch_spec.h"
#include "nested.h"
#include "resolve.h"

#define SMALL_FILE_BYTES ((size_t)64 << 10)

void mounts_close_items(struct mounts *mounts) {
    for (size_t i = 0; i < mounts->item_count; i++) {
        fd_cleanup(&mounts->items[i].fd);
    }
    mounts->item_count = 0;
    mounts->work_tree_link[0] = '\0';
}

void mounts_close(struct mounts *mounts) {
    mounts_close_items(mounts);
    fd_cleanup(&mounts->workspace_fd);
    hold_release(mounts->hold);
    *mounts = (struct mounts){.workspace_fd = -1};
}

/* Whether `path` is `directory` or lies below it; both absolute, without symlinks. */
static bool is_within(const char *path, const char *directory) {
    size_t length = strlen(directory);
    if (length == 1) {
        return true; // "/"
    }
    return strncmp(path, directory, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

static bool real_path(const char *path, char out[SANDBOX_PATH_BYTES]) {
    CLEANUP(free_cleanup) char *resolved = realpath(path, NULL);
    if (resolved == NULL) {
        return false;
    }
    size_t length = strlen(resolved);
    if (length >= SANDBOX_PATH_BYTES) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(out, resolved, length + 1);
    return true;
}

static result refuse_home(const char *workspace, const char *home, struct error *error) {
    char resolved[SANDBOX_PATH_BYTES];
    if (home != NULL && home[0] == '/' && real_path(home, resolved) && strcmp(resolved, "/") != 0 &&
        is_within(resolved, workspace)) {
        FAIL(
            error,
            INVALID_INPUT,
            "workspace '%s' is or holds the home directory '%s'; use a directory below it",
            workspace,
            resolved
        );
    }
    return OK;
}

static result check_place(const char *workspace, const char *keep_out, struct error *error) {
    static const char *const system[] = {
        "/",
        "/bin",
        "/boot",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/sys",
        "/tmp",
        "/usr",
        "/var",
        "/var/tmp"};
    for (size_t i = 0; i < COUNT_OF(system); i++) {
        if (strcmp(workspace, system[i]) == 0) {
            FAIL(error, INVALID_INPUT, "workspace '%s' is a system directory", workspace);
        }
    }
    TRY(refuse_home(workspace, getenv("HOME"), error));
    struct passwd entry;
    struct passwd *found = NULL;
    char strings[4096];
    if (getpwuid_r(geteuid(), &entry, strings, sizeof strings, &found) == 0 && found != NULL) {
        TRY(refuse_home(workspace, found->pw_dir, error));
    }
    if (keep_out != NULL && is_within(keep_out, workspace)) {
        FAIL(
            error,
            INVALID_INPUT,
            "workspace '%s' holds Hearth's own programs (%s), which a command could replace; "
            "use an installed Hearth or another directory",
            workspace,
            keep_out
        );
    }
    return OK;
}

static result open_workspace(const char *path, struct mounts *mounts, struct error *error) {
    int fd = resolve_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0, RESOLVE_PLAIN);
    if (fd < 0 && errno == ENOSYS) {
        FAIL(error, UNSUPPORTED, "this kernel or container has no openat2 (Linux 5.6)");
    }
    if (fd < 0) {
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "workspace '%s': %s", path, strerror(errno));
    }
    mounts->workspace_fd = fd;
    struct stat about;
    struct statfs system;
    if (fstat(fd, &about) != 0 || fstatfs(fd, &system) != 0) {
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "workspace '%s': %s", path, strerror(errno));
    }
    if (about.st_uid != geteuid()) {
        FAIL(
            error,
            INVALID_INPUT,
            "workspace '%s' belongs to user %u, not to user %u who runs Hearth",
            path,
            (unsigned)about.st_uid,
            (unsigned)geteuid()
        );
    }
    static const unsigned long unfit[] = {
        PROC_SUPER_MAGIC,
        SYSFS_MAGIC,
        CGROUP_SUPER_MAGIC,
        CGROUP2_SUPER_MAGIC,
        DEBUGFS_MAGIC,
    };
    for (size_t i = 0; i < COUNT_OF(unfit); i++) {
        if ((unsigned long)system.f_type == unfit[i]) {
            FAIL(error, INVALID_INPUT, "workspace '%s' lies on a kernel file system", path);
        }
    }
    return OK;
}

/* Takes the descriptor, also on failure. */
static result add_item(
    struct mounts *mounts,
    int fd,
    enum mount_kind kind,
    struct error *error,
    const char *format,
    ...
) PRINTF_LIKE(5, 6);

static result add_item(
    struct mounts *mounts,
    int fd,
    enum mount_kind kind,
    struct error *error,
    const char *format,
    ...
) {
    size_t outside = 0;
    for (size_t i = 0; i < mounts->item_count; i++) {
        outside += mounts->items[i].kind == MOUNT_OUTSIDE;
    }
    if (mounts->item_count >= MOUNTS_MAX ||
        (kind == MOUNT_OUTSIDE && outside >= LAUNCH_OUTSIDE_MAX)) {
        close(fd);
        FAIL(error, LIMIT, "more than %d read-only paths", LAUNCH_OUTSIDE_MAX);
    }
    struct mount_item *item = &mounts->items[mounts->item_count];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(item->destination, sizeof item->destination, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof item->destination) {
        close(fd);
        FAIL(error, INVALID_INPUT, "a read-only path is too long");
    }
    item->fd = fd;
    item->kind = kind;
    mounts->item_count += 1;
    return OK;
}

/* First line of a small file below `directory`, without the newline. */
static bool read_line(int directory, const char *name, char *out, size_t bytes) {
    CLEANUP(fd_cleanup)
    int fd = resolve_open(
        directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, RESOLVE_PLAIN | RESOLVE_BENEATH
    );
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        return false;
    }
    ssize_t got = read(fd, out, bytes - 1);
    if (got <= 0) {
        return false;
    }
    out[got] = '\0';
    out[strcspn(out, "\n")] = '\0';
    return true;
}

/* core.worktree of a submodule's config; a plain line scan, since we only compare the result. */
static bool read_work_tree(int git_directory, char out[SANDBOX_PATH_BYTES]) {
    CLEANUP(fd_cleanup)
    int fd = resolve_open(git_directory, "config", O_RDONLY | O_NONBLOCK, 0, RESOLVE_CONFINE);
    CLEANUP(free_cleanup) char *text = calloc(1, SMALL_FILE_BYTES);
    if (fd < 0 || text == NULL || read(fd, text, SMALL_FILE_BYTES - 1) <= 0) {
        return false;
    }
    for (char *line = text; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        char *at = line + strspn(line, " \t");
        if (strncmp(at, "worktree", 8) == 0) {
            at += 8;
            at += strspn(at, " \t=");
            size_t bytes = (size_t)(line + length - at);
            if (at <= line + length && bytes > 0 && bytes < SANDBOX_PATH_BYTES) {
                memcpy(out, at, bytes);
                out[bytes] = '\0';
                return true;
            }
        }
        line += length + (line[length] == '\n' ? 1 : 0);
    }
    return false;
}

/* base + "/" + path (or path, when absolute) with "." and ".." taken out lexically; ".." at the
 * top stays there, as the kernel does it. */
static bool join_path(const char *base, const char *path, char out[SANDBOX_PATH_BYTES]) {
    char whole[SANDBOX_PATH_BYTES * 2];
    int length = path[0] == '/' ? snprintf(whole, sizeof whole, "%s", path)
                                : snprintf(whole, sizeof whole, "%s/%s", base, path);
    if (length < 0 || (size_t)length >= sizeof whole) {
        return false;
    }
    size_t used = 0;
    for (const char *at = whole; *at != '\0';) {
        at += strspn(at, "/");
        size_t part = strcspn(at, "/");
        if (part == 2 && at[0] == '.' && at[1] == '.') {
            while (used > 0 && out[used - 1] != '/') {
                used -= 1;
            }
            used -= used > 0 ? 1 : 0;
        } else if (part > 0 && !(part == 1 && at[0] == '.')) {
            if (used + 1 + part >= SANDBOX_PATH_BYTES) {
                return false;
            }
            out[used++] = '/';
            memcpy(out + used, at, part);
            used += part;
        }
        at += part;
    }
    if (used == 0) {
        out[used++] = '/';
    }
    out[used] = '\0';
    return true;
}

static bool same_file(const char *path, const char *other) {
    struct stat a;
    struct stat b;
    return lstat(path, &a) == 0 && lstat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* A git directory is believed only if it points back at this workspace: otherwise a command could
 * write a `.git` file that names any directory of the host and read it in the next call. */
static bool
points_back(const struct mounts *mounts, int git, const char *git_path, char *link_destination) {
    char text[SANDBOX_PATH_BYTES];
    char back[SANDBOX_PATH_BYTES];
    char own[SANDBOX_PATH_BYTES + 8];
    (void)snprintf(own, sizeof own, "%s/.git", mounts->workspace);
    link_destination[0] = '\0';
    if (read_line(git, "gitdir", text, sizeof text)) { // git worktree
        return join_path(git_path, text, back) && same_file(back, own);
    }
    if (read_work_tree(git, text) && join_path(git_path, text, back)) { // submodule
        memcpy(link_destination, text, strlen(text) + 1);
        return same_file(back, mounts->workspace);
    }
    return false;
}

static result
open_git_directory(struct mounts *mounts, const char *path, int *out_fd, struct error *error) {
    if (is_within(path, mounts->workspace)) {
        FAIL(error, INVALID_INPUT, "workspace .git names a directory in the workspace: %s", path);
    }
    CLEANUP(fd_cleanup)
    int fd = resolve_open(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0, RESOLVE_PLAIN);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "git directory '%s': %s", path, strerror(errno));
    }
    if (about.st_uid != geteuid()) {
        FAIL(error, INVALID_INPUT, "git directory '%s' belongs to another user", path);
    }
    *out_fd = fd;
    fd = -1;
    return OK;
}

/* `.git` is a file: a worktree or a submodule. The directories it leads to are bound read-only
 * where the file will look for them inside. */
static result add_git_file(struct mounts *mounts, struct error *error) {
    char line[SANDBOX_PATH_BYTES];
    if (!read_line(mounts->workspace_fd, ".git", line, sizeof line) ||
        strncmp(line, "gitdir: ", 8) != 0) {
        FAIL(error, INVALID_INPUT, "workspace .git is a file without a 'gitdir:' line");
    }
    char host[SANDBOX_PATH_BYTES];
    char inside[SANDBOX_PATH_BYTES];
    if (!join_path(mounts->workspace, line + 8, host) ||
        !join_path(LAUNCH_WORKSPACE, line + 8, inside)) {
        FAIL(error, INVALID_INPUT, "workspace .git names a path that is too long");
    }
    if (is_within(inside, LAUNCH_WORKSPACE)) { // a destination that a command could prepare
        FAIL(error, INVALID_INPUT, "workspace .git names '%s', which lies in it inside", line + 8);
    }
    CLEANUP(fd_cleanup) int git = -1;
    TRY(open_git_directory(mounts, host, &git, error));
    char work_tree[SANDBOX_PATH_BYTES];
    if (!points_back(mounts, git, host, work_tree)) {
        FAIL(
            error, INVALID_INPUT, "workspace .git names '%s', which does not point back here", host
        );
    }
    char common[SANDBOX_PATH_BYTES];
    if (read_line(git, "commondir", common, sizeof common)) {
        char common_host[SANDBOX_PATH_BYTES];
        char common_inside[SANDBOX_PATH_BYTES];
        if (!join_path(host, common, common_host) || !join_path(inside, common, common_inside) ||
            strncmp(host, common_host, strlen(common_host)) != 0 ||
            strncmp(host + strlen(common_host), "/worktrees/", 11) != 0 ||
            is_within(common_inside, LAUNCH_WORKSPACE)) {
            FAIL(error, INVALID_INPUT, "git directory '%s' has an unusual commondir", host);
        }
        int common_fd = -1;
        TRY(open_git_directory(mounts, common_host, &common_fd, error));
        return add_item(
            mounts, common_fd, MOUNT_OUTSIDE, error, "%s", common_inside
        ); // holds `git` too
    }
    if (work_tree[0] != '\0' && join_path(inside, work_tree, mounts->work_tree_link) &&
        strcmp(mounts->work_tree_link, LAUNCH_WORKSPACE) == 0) {
        mounts->work_tree_link[0] = '\0';
    }
    if (is_within(mounts->work_tree_link, LAUNCH_WORKSPACE)) {
        FAIL(error, INVALID_INPUT, "git directory '%s' has an unusual worktree", host);
    }
    result added = add_item(mounts, git, MOUNT_OUTSIDE, error, "%s", inside);
    git = -1; // taken either way
    return added;
}

static result add_git(struct mounts *mounts, struct error *error) {
    int fd = resolve_open(mounts->workspace_fd, ".git", O_PATH, 0, RESOLVE_CONFINE);
    if (fd < 0 && errno == ENOENT) {
        return OK;
    }
    struct stat about = {0};
    if (fd < 0 && errno == ELOOP) {
        FAIL(
            error, INVALID_INPUT, "workspace .git is a symlink; remove it, a command put it there"
        );
    }
    if (fd < 0 || fstat(fd, &about) != 0) {
        int number = errno;
        fd_cleanup(&fd);
        FAIL_FOREIGN(error, INVALID_INPUT, number, "workspace .git: %s", strerror(number));
    }
    if (S_ISDIR(about.st_mode)) {
        return add_item(mounts, fd, MOUNT_BELOW, error, LAUNCH_WORKSPACE "/.git");
    }
    if (!S_ISREG(about.st_mode)) {
        close(fd);
        FAIL(error, INVALID_INPUT, "workspace .git is neither a directory nor a file");
    }
    TRY(add_item(mounts, fd, MOUNT_BELOW, error, LAUNCH_WORKSPACE "/.git"));
    return add_git_file(mounts, error);
}

static bool climbs(const char *path) {
    for (const char *at = path; *at != '\0'; at += strcspn(at, "/")) {
        at += strspn(at, "/");
        if (strcspn(at, "/") == 2 && at[0] == '.' && at[1] == '.') {
            return true;
        }
    }
    return false;
}

static result add_protected(struct mounts *mounts, const char *path, struct error *error) {
    if (path[0] == '\0' || path[0] == '/' || climbs(path)) {
        FAIL(error, INVALID_INPUT, "protected path '%.200s' is not below the workspace", path);
    }
    if (strncmp(path, ".git", 4) == 0 && (path[4] == '\0' || path[4] == '/')) {
        return OK; // the whole of .git is read-only anyway
    }
    char clean[SANDBOX_PATH_BYTES];
    if (!join_path("/", path, clean) || strcmp(clean, "/") == 0) {
        FAIL(error, INVALID_INPUT, "protected path '%.200s' is the workspace or too long", path);
    }
    int fd = resolve_open(mounts->workspace_fd, clean + 1, O_PATH, 0, RESOLVE_CONFINE);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return OK; // nothing to protect
    }
    if (fd < 0) {
        const char *why = errno == ELOOP ? "a symlink is in it" : strerror(errno);
        FAIL_FOREIGN(error, INVALID_INPUT, errno, "protected path '%.200s': %s", path, why);
    }
    struct stat about;
    if (fstat(fd, &about) != 0 || !(S_ISDIR(about.st_mode) || S_ISREG(about.st_mode))) {
        close(fd);
        FAIL(error, INVALID_INPUT, "protected path '%.200s' is no file or directory", path);
    }
    return add_item(mounts, fd, MOUNT_BELOW, error, LAUNCH_WORKSPACE "%s", clean);
}

/* Whether whom commands run as could change a path where it is not mounted read-only. Of what is the
 * caller's own, others must not be able to: a group that is the caller's alone is none. */
static bool is_changeable(const struct stat *about, bool may_be_own) {
    bool is_own = geteuid() != 0 && about->st_uid == geteuid();
    bool is_own_group = may_be_own && about->st_gid == getegid();
    return (about->st_mode & S_IWOTH) != 0 || ((about->st_mode & S_IWGRP) != 0 && !is_own_group) ||
           (is_own && !may_be_own);
}

/* A toolchain outside /usr. What the sandboxed user could change, it could also poison. */
static result
add_read_only(struct mounts *mounts, const char *path, bool may_be_own, struct error *error) {
    static const char *const never[] = {
        "/proc", "/sys", "/dev", "/run", "/tmp", "/var/run", "/etc"};
    char resolved[SANDBOX_PATH_BYTES];
    if (path[0] != '/' || !real_path(path, resolved) || strcmp(resolved, path) != 0) {
        FAIL(
            error, INVALID_INPUT, "read-only path '%.200s' must be absolute, without symlinks", path
        );
    }
    TRY(check_place(resolved, NULL, error));
    for (size_t i = 0; i < COUNT_OF(never); i++) {
        if (is_within(resolved, never[i])) {
            FAIL(
                error,
                INVALID_INPUT,
                "read-only path '%.200s' is never shown inside: commands have a %s of their own",
                path,
                never[i]
            );
        }
    }
    if (is_within(resolved, mounts->workspace) || is_within(mounts->workspace, resolved) ||
        is_within(resolved, LAUNCH_WORKSPACE) || is_within(resolved, LAUNCH_HOME)) {
        FAIL(error, INVALID_INPUT, "read-only path '%.200s' meets the workspace", path);
    }
    int fd = resolve_open(AT_FDCWD, resolved, O_PATH, 0, RESOLVE_PLAIN);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        int number = errno;
        fd_cleanup(&fd);
        FAIL_FOREIGN(
            error, INVALID_INPUT, number, "read-only path '%.200s': %s", path, strerror(number)
        );
    }
    if (is_changeable(&about, may_be_own)) {
        close(fd);
        FAIL(
            error,
            INVALID_INPUT,
            "read-only path '%.200s' can be changed by the user that commands run as",
            path
        );
    }
    return add_item(mounts, fd, MOUNT_OUTSIDE, error, "%s", resolved);
}

static bool has_item(const struct mounts *mounts, const char *path) {
    for (size_t i = 0; i < mounts->item_count; i++) {
        const char *below = mounts->items[i].destination + strlen(LAUNCH_WORKSPACE "/");
        if (mounts->items[i].kind != MOUNT_OUTSIDE && strcmp(below, path) == 0) {
            return true;
        }
    }
    return false;
}

/* What is gone, or a link by now, is no git directory of the workspace any more. */
static result add_below(
    struct mounts *mounts, const char *path, enum mount_kind kind, bool *added, struct error *error
) {
    int fd = resolve_open(mounts->workspace_fd, path, O_PATH, 0, RESOLVE_CONFINE);
    struct stat about;
    bool is_fit = fd >= 0 && fstat(fd, &about) == 0 &&
                  (S_ISDIR(about.st_mode) || (kind == MOUNT_BELOW && S_ISREG(about.st_mode)));
    *added = is_fit;
    if (!is_fit) {
        fd_cleanup(&fd);
        return OK;
    }
    return add_item(mounts, fd, kind, error, LAUNCH_WORKSPACE "/%s", path);
}

/* Git directories below the top, read-only. The directories above each become mount points, which no
 * command can move away, so that commands can share the workspace (hold.h). */
static result add_nested(struct mounts *mounts, struct error *error) {
    size_t begin = mounts->item_count;
    for (size_t i = 0; mounts->nested != NULL && i < mounts->nested->count; i++) {
        char path[SANDBOX_PATH_BYTES];
        size_t depth = 0;
        bool added = true;
        memcpy(path, mounts->nested->paths[i], sizeof path);
        for (const char *at = path; *at != '\0'; at++) {
            depth += *at == '/';
        }
        if (mounts->item_count - begin + depth + 1 > MOUNTS_NESTED_MAX) {
            continue;
        }
        for (char *at = path; added && (at = strchr(at, '/')) != NULL; *at++ = '/') {
            *at = '\0';
            if (!has_item(mounts, path)) {
                TRY(add_below(mounts, path, MOUNT_PIN, &added, error));
            }
        }
        if (added) {
            TRY(add_below(mounts, path, MOUNT_BELOW, &added, error));
        }
    }
    return OK;
}

/* `.git`, those below the top, then protected paths, which may lie in directories that those pin. */
static result
open_below(struct mounts *mounts, const struct sandbox_policy *policy, struct error *error) {
    TRY(add_git(mounts, error));
    TRY(add_nested(mounts, error));
    for (size_t i = 0; i < policy->protect_count; i++) {
        TRY(add_protected(mounts, policy->protect[i], error));
    }
    return OK;
}

static result open_all(
    struct hold_table *holds,
    const struct sandbox_policy *policy,
    const char *keep_out,
    struct mounts *mounts,
    struct error *error
) {
    if (policy->workspace == NULL || !real_path(policy->workspace, mounts->workspace)) {
        FAIL_FOREIGN(
            error,
            INVALID_INPUT,
            errno,
            "workspace '%.300s': %s",
            policy->workspace != NULL ? policy->workspace : "",
            strerror(errno)
        );
    }
    TRY(check_place(mounts->workspace, keep_out, error));
    TRY(open_workspace(mounts->workspace, mounts, error));
    TRY(hold_acquire(holds, mounts, policy, open_below, error));
    for (size_t i = 0; i < policy->read_only_count; i++) {
        TRY(add_read_only(mounts, policy->read_only[i], policy->read_only_is_own, error));
    }
    return OK;
}

result mounts_open(
    struct hold_table *holds,
    const struct sandbox_policy *policy,
    const char *keep_out,
    struct mounts *out,
    struct error *error
) {
    struct mounts mounts = {.workspace_fd = -1};
    result opened = open_all(holds, policy, keep_out, &mounts, error);
    if (is_failed(opened)) {
        mounts_close(&mounts);
        return opened;
    }
    *out = mounts;
    return OK;
}

result mounts_check_git(const char *workspace, bool *has_git, struct error *error) {
    struct mounts mounts = {.workspace_fd = -1};
    if (!real_path(workspace, mounts.workspace)) {
        FAIL_FOREIGN(
            error, INVALID_INPUT, errno, "workspace '%.300s': %s", workspace, strerror(errno)
        );
    }
    result checked = open_workspace(mounts.workspace, &mounts, error);
    if (is_ok(checked)) {
        checked = add_git(&mounts, error);
    }
    *has_git = mounts.item_count > 0;
    mounts_close(&mounts);
    return checked;
}
