/* When to measure, and what is too much. */
#include "disk_watch.h"

#include <sys/statvfs.h>

#define TICK_MS          INT64_C(50)
#define PERIOD_MS        INT64_C(500)
#define ENTRIES_PER_STEP ((size_t)300)  /* about a millisecond */
#define ENTRIES_AT_START ((size_t)6000) /* while bubblewrap sets up anyway */
#define FILES_PER_MIB    INT64_C(64)    /* limit on new files, from the disk limit */
#define LOW_DISK_BYTES   ((uint64_t)256 << 20)
#define DISTURBED_MAX    2U

/* Ends a pass; true when the limit is passed. */
static bool end_pass(struct disk_watch *watch, int64_t now_ms) {
    const struct survey_totals *totals = &watch->survey.totals;
    int64_t took = (now_ms - watch->pass_started_ms) * 10;
    // About a tenth of the time goes into measuring, however large the tree is.
    watch->next_pass_ms = now_ms + (took > PERIOD_MS ? took : PERIOD_MS);
    if (!watch->has_baseline) {
        watch->has_baseline = true;
        watch->baseline_bytes = totals->bytes;
        watch->baseline_entries = totals->entries;
        return false;
    }
    int64_t growth = totals->bytes - watch->baseline_bytes;
    watch->disturbed = totals->is_whole ? 0 : watch->disturbed + 1;
    if (totals->is_whole || growth > watch->growth_bytes) {
        watch->growth_bytes = growth;
    }
    int64_t files = totals->entries - watch->baseline_entries;
    return growth > watch->limit_bytes || files > watch->limit_entries;
}

static void begin_pass(struct disk_watch *watch, const struct timespec *since, int64_t now_ms) {
    watch->pass_started_ms = now_ms;
    if (is_failed(survey_begin(&watch->survey, watch->workspace_fd, since, NULL))) {
        watch->next_pass_ms = now_ms + PERIOD_MS; // short of descriptors or memory
    }
}

void disk_watch_start(
    struct disk_watch *watch, int workspace_fd, uint64_t limit_mib, int64_t now_ms
) {
    watch->workspace_fd = workspace_fd;
    watch->limit_bytes = (int64_t)(limit_mib << 20);
    watch->limit_entries = (int64_t)limit_mib * FILES_PER_MIB;
    struct statvfs about;
    if (fstatvfs(workspace_fd, &about) == 0) {
        watch->free_at_start = (uint64_t)about.f_bfree * about.f_frsize;
        watch->free_at_pass = watch->free_at_start;
        watch->files_at_pass = about.f_ffree;
    }
    begin_pass(watch, NULL, now_ms);
    if (watch->survey.is_running && survey_step(&watch->survey, ENTRIES_AT_START)) {
        (void)end_pass(watch, now_ms); // the first is the baseline and passes no limit
    }
}

int64_t disk_watch_deadline_ms(const struct disk_watch *watch, int64_t now_ms) {
    return now_ms + (watch->survey.is_running ? 1 : TICK_MS);
}

bool disk_watch_step(struct disk_watch *watch, int64_t now_ms) {
    if (watch->survey.is_running) {
        return survey_step(&watch->survey, ENTRIES_PER_STEP) && end_pass(watch, now_ms);
    }
    struct statvfs about;
    if (fstatvfs(watch->workspace_fd, &about) != 0) {
        return false;
    }
    uint64_t free_bytes = (uint64_t)about.f_bfree * about.f_frsize;
    uint64_t limit = (uint64_t)watch->limit_bytes;
    uint64_t start = watch->free_at_start;
    uint64_t used = start > free_bytes ? start - free_bytes : 0;
    uint64_t floor = start / 2 < LOW_DISK_BYTES ? start / 2 : LOW_DISK_BYTES;
    bool is_nearly_full = free_bytes < floor && used > limit / 2;
    bool hides = used / 2 > limit && watch->disturbed > DISTURBED_MAX;
    if (is_nearly_full || hides) {
        return true;
    }
    uint64_t files = about.f_ffree;
    uint64_t files_limit = (uint64_t)watch->limit_entries;
    bool grew = watch->free_at_pass > free_bytes && watch->free_at_pass - free_bytes > limit / 8;
    bool made = watch->files_at_pass > files && watch->files_at_pass - files > files_limit / 8;
    if (grew || made || now_ms >= watch->next_pass_ms) {
        watch->free_at_pass = free_bytes;
        watch->files_at_pass = files;
        begin_pass(watch, NULL, now_ms);
    }
    return false;
}

void disk_watch_end(struct disk_watch *watch, const struct timespec *since) {
    begin_pass(watch, since, watch->pass_started_ms);
}

bool disk_watch_end_step(struct disk_watch *watch) {
    if (!watch->survey.is_running) {
        return true; // the workspace cannot be read any more: nothing to take away
    }
    if (!survey_step(&watch->survey, ENTRIES_PER_STEP)) {
        return false;
    }
    (void)end_pass(watch, watch->pass_started_ms); // it is over: the limit has no meaning now
    return true;
}

void disk_watch_deinit(struct disk_watch *watch) {
    survey_deinit(&watch->survey);
}
