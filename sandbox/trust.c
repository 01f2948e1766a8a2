/* A change of these is shown to the user, who may not look for it: editors, shells and git run what
 * they say. Files that are ordinary code (Makefiles, tests) are not in the list. */
#include "trust.h"

#include <fcntl.h>
#include <sys/stat.h>

static const char *const names[] = {
    ".git",
    ".git/hooks",
    ".git/config",
    ".gitmodules",
    ".gitattributes",
    ".envrc",
    ".hearth",
    ".hearth/config.json",
    ".vscode/tasks.json",
    ".vscode",
    ".idea",
    ".mcp.json",
    ".husky",
    ".pre-commit-config.yaml",
    ".npmrc",
    "AGENTS.md",
    "CLAUDE.md",
    ".claude",
    ".codex",
    ".cursor",
    ".tool-versions",
    ".github/workflows",
    ".gitlab-ci.yml",
};

void trust_list_changes(int directory_fd, const struct timespec *since, char *out, size_t bytes) {
    ASSERT(bytes > 0);
    out[0] = '\0';
    size_t used = 0;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct stat about;
        if (fstatat(directory_fd, names[i], &about, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        const struct timespec *changed = &about.st_ctim;
        bool is_since = changed->tv_sec > since->tv_sec ||
                        (changed->tv_sec == since->tv_sec && changed->tv_nsec >= since->tv_nsec);
        if (is_since && used + strlen(names[i]) + 2 < bytes) {
            int length = snprintf(out + used, bytes - used, "%s%s", used > 0 ? " " : "", names[i]);
            used += length > 0 ? (size_t)length : 0;
        }
    }
}
