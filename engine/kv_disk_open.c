/* Opening and closing the disk tier: folder, state, segments, budgets. See kv_disk_internal.h. */
#include "kv_disk_internal.h"

#include <errno.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SEGMENT_BYTES_DEFAULT ((uint64_t)256 << 20)
#define SEGMENT_SLOTS_DEFAULT 4096U /* of small blocks: 56 MiB of the bundled model's */
#define SEGMENT_SLOTS_MIN     8
#define SEGMENTS_OF_BUDGET    16 /* so that a small budget has more than one to give up */

uint64_t kv_disk_stride(size_t block_bytes) {
    uint64_t bytes = (uint64_t)block_bytes + KV_DISK_HEADER_BYTES;
    uint64_t pages = (bytes + 4095) / 4096 * 4096;
    return (pages - bytes) * 50 <= block_bytes ? pages : (bytes + 63) / 64 * 64;
}

int64_t disk_wall_ms(const struct kv_disk *disk) {
    int64_t now = clock_wall_ms(&disk->clock);
    return now < 0 ? 0 : now;
}

int64_t disk_steady_ms(const struct kv_disk *disk) {
    return disk->wall_open_ms + (clock_monotonic_ms(&disk->clock) - disk->monotonic_open_ms);
}

static uint64_t free_bytes(const struct kv_disk *disk) {
    struct statvfs system;
    if (fstatvfs(disk->fd, &system) != 0) {
        return 0;
    }
    return (uint64_t)system.f_bavail * system.f_frsize;
}

static void set_budgets(struct kv_disk *disk, const struct kv_disk_options *options) {
    uint64_t quarter = (free_bytes(disk) + disk->held_bytes) / 4;
    uint64_t bytes_max = options->bytes_max;
    uint64_t hour_max = options->write_bytes_per_hour;
    int64_t lifetime_ms = options->lifetime_ms;
    if (options->description == NULL) {
        bytes_max = bytes_max != 0 ? bytes_max : disk->noted.bytes_max;
        hour_max = hour_max != 0 ? hour_max : disk->noted.hour_max;
        lifetime_ms = lifetime_ms != 0 ? lifetime_ms : disk->noted.lifetime_ms;
    }
    uint64_t most = quarter < KV_DISK_BYTES_DEFAULT ? quarter : KV_DISK_BYTES_DEFAULT;
    disk->bytes_max = bytes_max != 0 ? bytes_max : most;
    disk->hour_max = hour_max != 0 ? hour_max : KV_DISK_WRITES_DEFAULT;
    disk->lifetime_ms = lifetime_ms != 0 ? lifetime_ms : KV_DISK_LIFETIME_DEFAULT;
    uint64_t segment_bytes = options->segment_bytes;
    if (segment_bytes == 0) {
        segment_bytes = SEGMENT_BYTES_DEFAULT;
        segment_bytes = segment_bytes < disk->stride * SEGMENT_SLOTS_DEFAULT
                            ? segment_bytes
                            : disk->stride * SEGMENT_SLOTS_DEFAULT;
        segment_bytes = segment_bytes < disk->bytes_max / SEGMENTS_OF_BUDGET
                            ? segment_bytes
                            : disk->bytes_max / SEGMENTS_OF_BUDGET;
    }
    uint64_t slots = segment_bytes / disk->stride;
    if (options->segment_bytes == 0 && slots < SEGMENT_SLOTS_MIN) {
        slots = SEGMENT_SLOTS_MIN; /* of a very small budget: a head costs a page */
    }
    slots = slots < DISK_SEGMENT_SLOTS_MAX ? slots : DISK_SEGMENT_SLOTS_MAX;
    disk->slots_per_segment = slots == 0 ? 1 : (uint32_t)slots;
}

/* What the records of the last hour tell about bytes written; the state file is lost in a crash. */
static void hour_from_records(struct kv_disk *disk) {
    uint64_t bytes[DISK_MINUTES] = {0};
    int64_t now = disk->wall_open_ms / 60000;
    for (uint32_t i = 0; i < disk->index.high; i++) {
        int64_t age = now - disk->index.entries[i].created_ms / 60000;
        if (disk->index.entries[i].segment != DISK_NONE && age >= 0 && age < DISK_MINUTES) {
            bytes[age] += disk->stride;
        }
    }
    for (int64_t age = 0; age < DISK_MINUTES && age <= now; age++) {
        size_t place = (size_t)((now - age) % DISK_MINUTES);
        bool is_same = disk->hour_minutes[place] == now - age;
        if (bytes[age] > 0 && (!is_same || disk->hour_bytes[place] < bytes[age])) {
            disk->hour_minutes[place] = now - age;
            disk->hour_bytes[place] = bytes[age];
        }
    }
}

/* A budget that holds no block would keep nothing and remove what is there: no disk tier then. Too
 * few bytes an hour end writing only. */
static result
check_budgets(struct kv_disk *disk, const struct kv_disk_options *options, struct error *error) {
    uint64_t least = disk->stride + DISK_SEGMENT_HEADER;
    bool is_asked = options->bytes_max != 0 || options->description != NULL;
    if (disk->mode != KV_DISK_WRITER) {
        return OK;
    }
    if (is_asked && disk->bytes_max < least) {
        FAIL(
            error,
            LIMIT,
            "the budget of %llu bytes for %.180s holds no block (%llu bytes with its header, and "
            "%llu of its segment); nothing is removed",
            (unsigned long long)disk->bytes_max,
            disk->folder,
            (unsigned long long)disk->stride,
            (unsigned long long)DISK_SEGMENT_HEADER
        );
    }
    if (options->write_bytes_per_hour != 0 && disk->hour_max < disk->stride) {
        struct error why;
        (void)error_set(
            &why,
            RESULT_LIMIT,
            0,
            __FILE__,
            __LINE__,
            "%llu bytes an hour are less than one block takes (%llu bytes with its header)",
            (unsigned long long)disk->hour_max,
            (unsigned long long)disk->stride
        );
        disk_end(disk, false, &why);
    }
    return OK;
}

static result
open_inside(struct kv_disk *disk, const struct kv_disk_options *options, struct error *error) {
    TRY(disk_directory_open(disk, options, error));
    set_budgets(disk, options); /* segments want their size */
    TRY(disk_state_load(disk, error));
    TRY(disk_segments_load(disk, error));
    set_budgets(disk, options); /* a quarter of what is free, with what is here already */
    TRY(check_budgets(disk, options, error));
    hour_from_records(disk);
    if (disk->mode == KV_DISK_WRITER && disk->lineage_count > DISK_LINEAGES_MAX / 2) {
        disk_lineages_compact(disk);
    }
    if (options->description != NULL) {
        disk->noted = (struct disk_budgets){disk->bytes_max, disk->hour_max, disk->lifetime_ms};
    }
    return OK;
}

static void release(struct kv_disk *disk) {
    int fds[] = {disk->active_fd, disk->cached_fd, disk->fd, disk->lock_fd};
    for (size_t i = 0; i < COUNT_OF(fds); i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    for (uint32_t i = 0; i < disk->segment_count; i++) {
        free(disk->segments[i].by_slot);
    }
    disk_index_deinit(&disk->index);
    free(disk->segments);
    free(disk->lineages);
    free(disk->scratch);
    if (disk->has_lock) {
        (void)pthread_mutex_destroy(&disk->lock);
    }
    free(disk);
}

static void release_cleanup(struct kv_disk **disk) {
    if (*disk != NULL) {
        release(*disk);
    }
}

result
kv_disk_open(struct kv_disk **out, const struct kv_disk_options *options, struct error *error) {
    ASSERT(options->block_bytes > 0 && options->block_bytes <= KV_DISK_BLOCK_BYTES_MAX);
    ASSERT(options->lifetime_ms >= 0);
    CLEANUP(release_cleanup) struct kv_disk *disk = calloc(1, sizeof *disk);
    if (disk == NULL) {
        FAIL(error, MEMORY, "no memory for the disk tier");
    }
    disk->fd = -1;
    disk->lock_fd = -1;
    disk->active_fd = -1;
    disk->cached_fd = -1;
    disk->active = DISK_NONE;
    disk->cached = DISK_NONE;
    disk->number_next = 1;
    disk->mode = options->mode;
    disk->can_punch = options->mode == KV_DISK_READER; /* counts what is alive */
    disk->keep_damaged = options->keep_damaged;
    disk->root = options->root;
    disk->block_bytes = options->block_bytes;
    disk->stride = kv_disk_stride(options->block_bytes);
    disk->clock = options->clock;
    disk->wall_open_ms = disk_wall_ms(disk);
    disk->monotonic_open_ms = clock_monotonic_ms(&disk->clock);
    disk->has_lock = pthread_mutex_init(&disk->lock, NULL) == 0;
    disk->scratch = calloc(1, (size_t)disk->stride);
    if (!disk->has_lock || disk->scratch == NULL) {
        FAIL(error, MEMORY, "no memory for the disk tier");
    }
    TRY(open_inside(disk, options, error));
    disk->saved_ms = disk_steady_ms(disk);
    disk->touched_saved_ms = disk->saved_ms;
    *out = TAKE(disk);
    return OK;
}

void kv_disk_close(struct kv_disk *disk) {
    if (disk == NULL) {
        return;
    }
    if (disk->mode == KV_DISK_WRITER && !disk->is_off) {
        disk_segment_seal(disk);
        disk_segments_save(disk, true);
        disk_state_save(disk);
    }
    release(disk);
}
