/* An incremental walk. A directory is read once: files are counted at once, names of directories
 * below are kept in its level and visited afterwards, so that one descriptor is open at a time and
 * a tree of any depth can be walked (a 4000-deep one is among the attack cases). */
#include "survey.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEVELS_MAX      ((size_t)100000) /* deeper trees are called not whole */
#define NAMES_BYTES_MAX ((size_t)64 << 20)

struct survey_level {
    dev_t device;
    ino_t inode;
    size_t names_from; /* where its names begin in the survey's; those of deeper levels follow */
    bool was_read;
    bool is_git; /* its name is `.git` */
};

static void finish(struct survey *survey, bool is_whole) {
    if (survey->current != NULL) {
        closedir(survey->current);
        survey->current = NULL;
    }
    buffer_clear(&survey->names);
    survey->depth = 0;
    survey->is_running = false;
    survey->totals.is_whole = survey->totals.is_whole && is_whole;
}

void survey_deinit(struct survey *survey) {
    finish(survey, false);
    buffer_deinit(&survey->names);
    free(survey->levels);
    survey->levels = NULL;
    survey->capacity = 0;
}

static bool push_level(struct survey *survey, const struct stat *about) {
    if (survey->depth == survey->capacity) {
        size_t capacity = survey->capacity == 0 ? 32 : survey->capacity * 2;
        struct survey_level *grown =
            capacity > LEVELS_MAX * 2
                ? NULL
                : realloc(survey->levels, capacity * sizeof survey->levels[0]);
        if (grown == NULL) {
            return false;
        }
        survey->levels = grown;
        survey->capacity = capacity;
    }
    survey->levels[survey->depth++] = (struct survey_level
    ){.device = about->st_dev, .inode = about->st_ino, .names_from = survey->names.length};
    return true;
}

result survey_begin(
    struct survey *survey, int root_fd, const struct timespec *since, struct error *error
) {
    finish(survey, false);
    survey->names.ceiling = NAMES_BYTES_MAX;
    survey->totals = (struct survey_totals){.is_whole = true};
    survey->strips = since != NULL;
    survey->since = since != NULL ? *since : (struct timespec){0};
    survey->stripped = 0;
    survey->nested_git = 0;
    CLEANUP(fd_cleanup) int fd = openat(root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        FAIL_FOREIGN(error, IO, errno, "reading the workspace: %s", strerror(errno));
    }
    survey->current = fdopendir(fd);
    if (survey->current == NULL) {
        FAIL_FOREIGN(error, IO, errno, "reading the workspace: %s", strerror(errno));
    }
    fd = -1; // the stream owns it
    if (!push_level(survey, &about)) {
        finish(survey, false);
        FAIL(error, MEMORY, "no memory to walk the workspace");
    }
    survey->is_running = true;
    return OK;
}

static bool is_since(const struct timespec *time, const struct timespec *since) {
    return time->tv_sec > since->tv_sec ||
           (time->tv_sec == since->tv_sec && time->tv_nsec >= since->tv_nsec);
}

/* No process of the sandbox is left when bits are stripped, so the name still means this file; the
 * descriptor is compared all the same. O_PATH, since the file need not be readable. */
static void strip(struct survey *survey, const char *name, const struct stat *seen) {
    CLEANUP(fd_cleanup)
    int fd = openat(dirfd(survey->current), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat about;
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_ino != seen->st_ino ||
        about.st_dev != seen->st_dev || !S_ISREG(about.st_mode) ||
        chmod(path, about.st_mode & 0777) != 0) {
        survey->totals.is_whole = false;
        return;
    }
    survey->stripped += 1;
}

/* Git acts upon these when it is called below; those at the top are in trust.c's list. */
static bool is_nested_git(const struct survey *survey, const char *name) {
    const struct survey_level *level = &survey->levels[survey->depth - 1];
    return (survey->depth > 1 && strcmp(name, ".git") == 0) ||
           (survey->depth > 2 && level->is_git &&
            (strcmp(name, "config") == 0 || strcmp(name, "hooks") == 0));
}

static void look_at(struct survey *survey, const char *name) {
    struct stat about;
    if (fstatat(dirfd(survey->current), name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
        return; // removed meanwhile
    }
    survey->totals.entries += 1;
    survey->totals.bytes += (int64_t)about.st_blocks * 512;
    const struct survey_level *level = &survey->levels[survey->depth - 1];
    if (survey->strips && is_nested_git(survey, name) && is_since(&about.st_ctim, &survey->since)) {
        survey->nested_git += 1;
    }
    if (S_ISDIR(about.st_mode)) {
        struct view kept = view_of(name, strlen(name) + 1);
        if (about.st_dev != level->device || is_failed(buffer_append(&survey->names, kept, NULL))) {
            survey->totals.is_whole = false; // another file system, or too much to remember
        }
    } else if (
        survey->strips && S_ISREG(about.st_mode) && (about.st_mode & (S_ISUID | S_ISGID)) != 0 &&
        is_since(&about.st_ctim, &survey->since)
    ) {
        strip(survey, name, &about);
    }
}

/* Opens `name` below the current directory in its place. */
static bool change_to(struct survey *survey, const char *name, struct stat *about) {
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    CLEANUP(fd_cleanup) int fd = openat(dirfd(survey->current), name, flags);
    if (fd < 0 || fstat(fd, about) != 0) {
        return false;
    }
    DIR *next = fdopendir(fd);
    if (next == NULL) {
        return false;
    }
    fd = -1; // the stream owns it
    closedir(survey->current);
    survey->current = next;
    return true;
}

/* The current directory was read to its end: go down into the next one, or up. False: over. */
static bool move_on(struct survey *survey) {
    const struct survey_level *level = &survey->levels[survey->depth - 1];
    if (survey->names.length > level->names_from) {
        size_t at = survey->names.length - 1; // the NUL of the last name
        while (at > level->names_from && survey->names.data[at - 1] != '\0') {
            at -= 1;
        }
        struct stat about;
        const char *name = (const char *)survey->names.data + at;
        bool is_git = strcmp(name, ".git") == 0;
        bool changed = change_to(survey, name, &about);
        int number = errno;
        survey->names.length = at;
        if (!changed) {
            survey->totals.is_whole = survey->totals.is_whole && number == ENOENT;
        } else if (!push_level(survey, &about)) {
            finish(survey, false);
            return false;
        } else {
            survey->levels[survey->depth - 1].is_git = is_git;
        }
        return true;
    }
    survey->depth -= 1;
    if (survey->depth == 0) {
        finish(survey, true);
        return false;
    }
    const struct survey_level *parent = &survey->levels[survey->depth - 1];
    struct stat about;
    if (!change_to(survey, "..", &about) || about.st_ino != parent->inode ||
        about.st_dev != parent->device) {
        finish(survey, false); // moved elsewhere while we were in it
        return false;
    }
    return true; // its entries were read on the way down
}

bool survey_step(struct survey *survey, size_t entries_max) {
    for (size_t seen = 0; survey->is_running && seen < entries_max; seen++) {
        struct survey_level *level = &survey->levels[survey->depth - 1];
        const struct dirent *entry = level->was_read ? NULL : readdir(survey->current);
        if (entry == NULL) {
            level->was_read = true;
            if (!move_on(survey)) {
                return true;
            }
        } else if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            look_at(survey, entry->d_name);
        }
    }
    return !survey->is_running;
}
