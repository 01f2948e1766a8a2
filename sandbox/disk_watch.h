/* Watches how much a workspace grows while a command runs in it. Internal to sandbox/.
 *
 * No rlimit bounds the total that a command writes. So free space is looked at 20 times a second,
 * and the tree is measured in small steps when that fell, or once in a while. Thread: one at a time.
 */
#ifndef HEARTH_SANDBOX_DISK_WATCH_H
#define HEARTH_SANDBOX_DISK_WATCH_H

#include "survey.h"

struct disk_watch {
    int workspace_fd; /* borrowed */
    struct survey survey;
    bool has_baseline;
    int64_t baseline_bytes;
    int64_t baseline_entries;
    int64_t growth_bytes; /* as last measured */
    int64_t limit_bytes;
    int64_t limit_entries;
    int64_t pass_started_ms;
    int64_t next_pass_ms;
    uint64_t free_at_start;
    uint64_t free_at_pass;
    uint64_t files_at_pass;
    unsigned disturbed; /* passes in a row that could not be finished */
};

/* Measures the tree as it is, or begins to (large trees go on in steps). Cannot fail: without a
 * baseline the free space alone is watched. */
void disk_watch_start(
    struct disk_watch *watch, int workspace_fd, uint64_t limit_mib, int64_t now_ms
);
int64_t disk_watch_deadline_ms(const struct disk_watch *watch, int64_t now_ms);
/* About a millisecond of work; true when the limit is passed. */
bool disk_watch_step(struct disk_watch *watch, int64_t now_ms);
/* Begins the pass after the end, which also takes away setuid and setgid bits of files changed
 * since `since`; then step until true. */
void disk_watch_end(struct disk_watch *watch, const struct timespec *since);
bool disk_watch_end_step(struct disk_watch *watch);
void disk_watch_deinit(struct disk_watch *watch);

#endif
