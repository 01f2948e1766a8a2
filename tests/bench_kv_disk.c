/* Figures of the disk tier against plain files in the same run: bench_kv_disk [DIRECTORY]
 * [BLOCKS]. Appending and reading release blocks beside plain sequential writes and reads of the
 * same bytes; bytes written per block; index memory; opening 100,000 records with and without index
 * files. Not run by tests. */
#include "engine/kv_disk.h"

#include "base/bytes.h"
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#define RELEASE_BYTES ((size_t)113920)
#define MINI_BYTES    ((size_t)13568)
#define OPEN_RECORDS  100000
#define OPEN_BYTES    ((size_t)256) /* content does not matter to opening */

static double now_s(void) {
    struct clock clock = clock_real();
    static int64_t (*monotonic)(void *);
    monotonic = clock.monotonic_ms;
    return (double)monotonic(clock.context) / 1000.0;
}

static struct kv_disk *open_tier(const char *cache, size_t block_bytes) {
    const struct kv_disk_options options = {
        .directory = cache,
        .root = {{0xAB}},
        .block_bytes = block_bytes,
        .bytes_max = (uint64_t)1 << 40,
        .write_bytes_per_hour = (uint64_t)1 << 50,
        .description = "bench",
        .clock = clock_real(),
    };
    struct kv_disk *disk = NULL;
    struct error error = {0};
    if (is_failed(kv_disk_open(&disk, &options, &error))) {
        (void)fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
    return disk;
}

static void make_keys(struct kv_key *keys, int32_t count, int32_t *tokens) {
    const struct kv_lineage root = {{0xAB}};
    struct kv_key parent = {{0}};
    for (int32_t i = 0; i < count; i++) {
        tokens[0] = i;
        kv_key_make(&parent, &root, tokens, &keys[i]);
        parent = i % 1000 == 999 ? (struct kv_key){{0}} : keys[i];
    }
}

static double append(
    struct kv_disk *disk, const struct kv_key *keys, int32_t count, int32_t *tokens, uint8_t *bytes
) {
    struct kv_tier_record record = {.lineage = {{0xAB}}, .tokens = tokens, .bytes = bytes};
    double start = now_s();
    for (int32_t i = 0; i < count; i++) {
        enum kv_disk_outcome outcome;
        struct error error;
        tokens[0] = i;
        bytes[0] = (uint8_t)i;
        record.key = keys[i];
        record.parent = i % 1000 == 0 ? (struct kv_key){{0}} : keys[i - 1];
        if (is_failed(kv_disk_write(disk, &record, &outcome, &error)) ||
            outcome != KV_DISK_WRITTEN) {
            (void)fprintf(stderr, "block %d: outcome %d\n", i, (int)outcome);
            exit(1);
        }
    }
    return now_s() - start;
}

static double
read_back(struct kv_disk *disk, const struct kv_key *keys, int32_t count, uint8_t *bytes) {
    double start = now_s();
    for (int32_t i = 0; i < count; i++) {
        struct kv_disk_about about;
        struct error error;
        if (is_failed(kv_disk_read(disk, &keys[i], bytes, &about, &error))) {
            (void)fprintf(stderr, "block %d: %s\n", i, error.message);
            exit(1);
        }
    }
    return now_s() - start;
}

/* Drops what the page cache has of all files of a folder: reads then come from the disk. */
static void forget_pages(const char *path) {
    DIR *folder = opendir(path);
    for (struct dirent *entry = folder == NULL ? NULL : readdir(folder); entry != NULL;
         entry = readdir(folder)) {
        CLEANUP(fd_cleanup) int fd = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            (void)fdatasync(fd);
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
}

static void
plain(const char *folder, int32_t count, uint8_t *bytes, size_t block, double seconds[3]) {
    char path[300];
    (void)snprintf(path, sizeof path, "%s/plain", folder);
    CLEANUP(fd_cleanup) int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    double start = now_s();
    for (int32_t i = 0; i < count; i++) {
        if (write(fd, bytes, block) != (ssize_t)block) {
            exit(1);
        }
    }
    (void)fdatasync(fd);
    seconds[0] = now_s() - start;
    for (int run = 0; run < 2; run++) { /* from memory, then from the disk */
        if (run == 1) {
            forget_pages(folder);
        }
        start = now_s();
        for (int32_t i = 0; i < count; i++) {
            if (pread(fd, bytes, block, (off_t)i * (off_t)block) != (ssize_t)block) {
                exit(1);
            }
        }
        seconds[1 + run] = now_s() - start;
    }
    (void)unlink(path);
}

static void throughput(const char *base, size_t block, int32_t count, uint8_t *bytes) {
    char cache[300];
    char folder[400];
    int32_t tokens[KV_BLOCK_TOKENS] = {0};
    struct kv_key *keys = malloc((size_t)count * sizeof *keys);
    struct kv_disk_counts counts;
    double plain_s[3];
    (void)snprintf(cache, sizeof cache, "%s/cache-%zu", base, block);
    (void)snprintf(folder, sizeof folder, "%s/ab00000000000000", cache);
    make_keys(keys, count, tokens);
    plain(base, count, bytes, block, plain_s);
    struct kv_disk *disk = open_tier(cache, block);
    double write_s = append(disk, keys, count, tokens, bytes);
    double start = now_s();
    kv_disk_sync(disk);
    write_s += now_s() - start;
    double read_s = read_back(disk, keys, count, bytes);
    kv_disk_count(disk, &counts);
    kv_disk_close(disk);
    double mb = (double)count * (double)block / 1e6;
    forget_pages(folder);
    disk = open_tier(cache, block);
    double cold_s = read_back(disk, keys, count, bytes);
    kv_disk_close(disk);
    printf("%d blocks of %zu bytes, MB/s of block bytes:\n", count, block);
    printf(
        "  append and sync %.0f, plain write and sync %.0f: %.0f %%\n",
        mb / write_s,
        mb / plain_s[0],
        100 * plain_s[0] / write_s
    );
    printf(
        "  read from memory %.0f, plain %.0f: %.0f %%\n",
        mb / read_s,
        mb / plain_s[1],
        100 * plain_s[1] / read_s
    );
    printf(
        "  read from disk %.0f, plain %.0f: %.0f %%\n",
        mb / cold_s,
        mb / plain_s[2],
        100 * plain_s[2] / cold_s
    );
    printf(
        "  written %.4f times the block bytes, index files included; index memory %.0f bytes a "
        "block, "
        "%.3f %%\n",
        (double)counts.written_bytes / (mb * 1e6),
        (double)counts.index_bytes / count,
        100.0 * (double)counts.index_bytes / (mb * 1e6)
    );
    free(keys);
}

static void opening(const char *base, uint8_t *bytes) {
    char cache[300];
    char folder[400];
    int32_t tokens[KV_BLOCK_TOKENS] = {0};
    struct kv_key *keys = malloc(OPEN_RECORDS * sizeof *keys);
    (void)snprintf(cache, sizeof cache, "%s/cache-open", base);
    (void)snprintf(folder, sizeof folder, "%s/ab00000000000000", cache);
    make_keys(keys, OPEN_RECORDS, tokens);
    struct kv_disk *disk = open_tier(cache, OPEN_BYTES);
    (void)append(disk, keys, OPEN_RECORDS, tokens, bytes);
    kv_disk_close(disk);
    for (int run = 0; run < 2; run++) {
        double start = now_s();
        disk = open_tier(cache, OPEN_BYTES);
        double seconds = now_s() - start;
        struct kv_disk_counts counts;
        kv_disk_count(disk, &counts);
        printf(
            "open %lld records in %lld segments %s index files: %.0f ms; index memory %.0f bytes a "
            "block\n",
            (long long)counts.blocks,
            (long long)counts.segments,
            run == 0 ? "with" : "without",
            1000 * seconds,
            (double)counts.index_bytes / (double)counts.blocks
        );
        kv_disk_close(disk);
        for (uint32_t i = 1; i < 64; i++) {
            char path[500];
            (void)snprintf(path, sizeof path, "%s/seg-%08x.index", folder, i);
            (void)unlink(path);
        }
    }
    free(keys);
}

int main(int argc, char **argv) {
    char base[200];
    int64_t count = 4000;
    (void)snprintf(base, sizeof base, "%s/hearth-bench-XXXXXX", argc > 1 ? argv[1] : "/tmp");
    if (argc > 2 && !parse_i64(view_of_text(argv[2]), &count)) {
        return 2;
    }
    uint8_t *bytes = malloc(RELEASE_BYTES);
    if (mkdtemp(base) == NULL || bytes == NULL) {
        return 1;
    }
    for (size_t i = 0; i < RELEASE_BYTES; i++) {
        bytes[i] = (uint8_t)(i * 2654435761U >> 24);
    }
    throughput(base, RELEASE_BYTES, (int32_t)count, bytes);
    throughput(base, MINI_BYTES, (int32_t)count, bytes);
    opening(base, bytes);
    free(bytes);
    printf("files: %s (remove it)\n", base);
    return 0;
}
