/* Times what comes back from the tiers at the release's block size, without a model.
 *
 *   bench_restore DIRECTORY [BLOCKS]
 *
 * Writes BLOCKS (2,048: 262,144 tokens, 233 MB) blocks to a host pool and to segment files in
 * DIRECTORY, an empty one on the file system to be measured, and restores them into a pool as the
 * engine would: medians of 7. The disk is compared with reading the same files from their beginning
 * to their end in pieces of 1 MiB, into one buffer of that size (which stays in the processor's
 * cache) and into as much memory as is restored, in the same state of the page cache: warm, or
 * dropped with POSIX_FADV_DONTNEED before each round. Reading and restoring take turns. */
#include "base/bytes.h"
#include "engine/kv_tier.h"

#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BLOCK_BYTES 113920
#define ROUNDS      7
#define PIECE       ((size_t)1 << 20)
#define FILES_MAX   256

struct bench {
    const char *directory;
    int32_t blocks;
    struct kv_key *keys;
    int32_t *tokens;   /* [blocks, 128] */
    uint8_t *source;   /* [blocks, BLOCK_BYTES] */
    uint8_t *restored; /* the same */
    sem_t woken;
};

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double values[ROUNDS]) {
    qsort(values, ROUNDS, sizeof *values, compare);
    return values[ROUNDS / 2];
}

static void wake(void *context) {
    (void)sem_post(context);
}

/* ---- the blocks ------------------------------------------------------------------------------ */

static void fill(struct bench *bench, const struct kv_lineage *root) {
    uint64_t state = 1;
    for (size_t i = 0; i < (size_t)bench->blocks * BLOCK_BYTES / sizeof state; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(bench->source + i * sizeof state, &state, sizeof state);
    }
    struct kv_key parent = {0};
    for (int32_t i = 0; i < bench->blocks; i++) {
        int32_t *tokens = bench->tokens + (size_t)i * KV_BLOCK_TOKENS;
        for (int32_t t = 0; t < KV_BLOCK_TOKENS; t++) {
            tokens[t] = i * KV_BLOCK_TOKENS + t;
        }
        kv_key_make(&parent, root, tokens, &bench->keys[i]);
        parent = bench->keys[i];
    }
}

static struct kv_tier_record
record(const struct bench *bench, const struct kv_lineage *root, int32_t i) {
    struct kv_tier_record out = {
        .key = bench->keys[i],
        .lineage = *root,
        .tokens = bench->tokens + (size_t)i * KV_BLOCK_TOKENS,
        .bytes = bench->source + (size_t)i * BLOCK_BYTES,
    };
    if (i > 0) {
        out.parent = bench->keys[i - 1];
    }
    return out;
}

/* Reads all keys and copies their blocks to where they belong, as into a pool. */
static result
restore(struct bench *bench, struct kv_tier *tier, double *gb_s, struct error *error) {
    double start = now_s();
    struct kv_tier_batch batch = {0};
    if (!kv_tier_read(tier, 1, bench->keys, bench->blocks)) {
        FAIL(error, MEMORY, "no memory for a ticket");
    }
    int32_t came = 0;
    while (!batch.is_last) {
        if (!kv_tier_next(tier, &batch)) {
            (void)sem_wait(&bench->woken);
            continue;
        }
        for (int32_t i = 0; i < batch.count; i++) {
            uint8_t *to = bench->restored + (size_t)(batch.first + i) * BLOCK_BYTES;
            memcpy(to, batch.records[i].bytes, BLOCK_BYTES);
        }
        came += batch.count;
        kv_tier_done(tier, &batch);
    }
    *gb_s = (double)bench->blocks * BLOCK_BYTES / (now_s() - start) / 1e9;
    if (came != bench->blocks) {
        FAIL(error, CORRUPT, "%d of %d blocks came back", came, bench->blocks);
    }
    return OK;
}

static result check(const struct bench *bench, struct error *error) {
    if (memcmp(bench->source, bench->restored, (size_t)bench->blocks * BLOCK_BYTES) != 0) {
        FAIL(error, CORRUPT, "what came back differs");
    }
    return OK;
}

/* ---- host ------------------------------------------------------------------------------------ */

static void tier_cleanup(struct kv_tier **tier) {
    kv_tier_close(*tier);
}

static struct kv_tier_options options_of(struct bench *bench) {
    return (struct kv_tier_options){
        .root = {.bytes = {1}},
        .block_bytes = BLOCK_BYTES,
        .disk_bytes_max = UINT64_C(1) << 40,
        .write_bytes_per_hour = UINT64_C(1) << 40,
        .wake = wake,
        .wake_context = &bench->woken,
    };
}

static result bench_host(struct bench *bench, struct error *error) {
    struct kv_tier_options options = options_of(bench);
    options.host_bytes = (uint64_t)bench->blocks * (BLOCK_BYTES + 1024);
    CLEANUP(tier_cleanup) struct kv_tier *tier = NULL;
    TRY(kv_tier_open(&tier, &options, error));
    double start = now_s();
    for (int32_t i = 0; i < bench->blocks; i++) {
        struct kv_tier_record one = record(bench, &options.root, i);
        kv_tier_put_host(tier, &one, 1);
    }
    double bytes = (double)bench->blocks * BLOCK_BYTES;
    printf("host: put %.2f GB/s (first touch)", bytes / (now_s() - start) / 1e9);
    double rates[ROUNDS];
    for (int32_t i = 0; i < ROUNDS; i++) {
        TRY(restore(bench, tier, &rates[i], error));
    }
    TRY(check(bench, error));
    double middle = median(rates);
    printf(", restore %.2f GB/s (%.2f to %.2f)\n", middle, rates[0], rates[ROUNDS - 1]);
    double plain[ROUNDS];
    for (int32_t i = 0; i < ROUNDS; i++) {
        start = now_s();
        memcpy(bench->restored, bench->source, (size_t)bytes);
        plain[i] = bytes / (now_s() - start) / 1e9;
    }
    printf("      plain memcpy of as much %.2f GB/s\n", median(plain));
    return OK;
}

/* ---- disk ------------------------------------------------------------------------------------ */

struct files {
    int fds[FILES_MAX];
    int32_t count;
    uint64_t bytes;
};

static void files_cleanup(struct files *files) {
    for (int32_t i = 0; i < files->count; i++) {
        (void)close(files->fds[i]);
    }
}

/* Opens what lies in DIRECTORY's one folder and is larger than a block: the segments. */
static result find_files(const char *directory, struct files *files, struct error *error) {
    DIR *list = opendir(directory);
    char folder[512] = "";
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        if (entry->d_name[0] != '.' && entry->d_type == DT_DIR) {
            int length = snprintf(folder, sizeof folder, "%s/%s", directory, entry->d_name);
            ASSERT(length > 0 && (size_t)length < sizeof folder);
        }
    }
    (void)(list == NULL ? 0 : closedir(list));
    list = opendir(folder);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        struct stat about;
        int fd = openat(dirfd(list), entry->d_name, O_RDONLY | O_CLOEXEC);
        bool is_segment = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
                          about.st_size > BLOCK_BYTES && files->count < FILES_MAX;
        if (is_segment) {
            files->fds[files->count++] = fd;
            files->bytes += (uint64_t)about.st_size;
        } else if (fd >= 0) {
            (void)close(fd);
        }
    }
    (void)(list == NULL ? 0 : closedir(list));
    if (files->count == 0) {
        FAIL(error, NOT_FOUND, "no segments in %s", directory);
    }
    return OK;
}

static void drop_pages(const struct files *files) {
    for (int32_t i = 0; i < files->count; i++) {
        (void)fsync(files->fds[i]);
        (void)posix_fadvise(files->fds[i], 0, 0, POSIX_FADV_DONTNEED);
    }
}

/* From beginning to end in pieces; `advances`: each behind the one before, else all to one place. */
static double read_plainly(const struct files *files, uint8_t *to, size_t bytes, bool advances) {
    double start = now_s();
    uint64_t total = 0;
    for (int32_t i = 0; i < files->count; i++) {
        off_t at = 0;
        ssize_t count = 1;
        while (count > 0 && (!advances || total + PIECE <= bytes)) {
            count = pread(files->fds[i], advances ? to + total : to, PIECE, at);
            at += count;
            total += count > 0 ? (uint64_t)count : 0;
        }
    }
    return (double)total / (now_s() - start) / 1e9;
}

static void print_rates(const char *what, double rates[ROUNDS]) {
    double middle = median(rates);
    printf("%s %.2f GB/s (%.2f to %.2f)", what, middle, rates[0], rates[ROUNDS - 1]);
}

static result
bench_reads(struct bench *bench, struct kv_tier *tier, bool is_cold, struct error *error) {
    CLEANUP(files_cleanup) struct files files = {0};
    CLEANUP(free_cleanup) uint8_t *buffer = malloc(PIECE);
    if (buffer == NULL) {
        FAIL(error, MEMORY, "no memory for %zu bytes", PIECE);
    }
    memset(buffer, 1, PIECE);
    TRY(find_files(bench->directory, &files, error));
    size_t bytes = (size_t)bench->blocks * BLOCK_BYTES;
    double plain[ROUNDS];
    double kept[ROUNDS];
    double rates[ROUNDS];
    for (int32_t i = 0; i < ROUNDS; i++) {
        for (int32_t kind = 0; kind < 3; kind++) {
            if (is_cold) {
                drop_pages(&files);
            }
            if (kind == 0) {
                plain[i] = read_plainly(&files, buffer, PIECE, false);
            } else if (kind == 1) {
                kept[i] = read_plainly(&files, bench->restored, bytes, true);
            } else {
                TRY(restore(bench, tier, &rates[i], error));
            }
        }
    }
    TRY(check(bench, error));
    printf("disk, %s: ", is_cold ? "cold" : "warm");
    print_rates("restore", rates);
    print_rates("; plain read into one buffer", plain);
    print_rates(", into as much memory", kept);
    double middle = rates[ROUNDS / 2];
    printf(
        ": %.0f %%, %.0f %%\n", 100 * middle / plain[ROUNDS / 2], 100 * middle / kept[ROUNDS / 2]
    );
    return OK;
}

static result bench_disk(struct bench *bench, struct error *error) {
    struct kv_tier_options options = options_of(bench);
    options.directory = bench->directory;
    CLEANUP(tier_cleanup) struct kv_tier *tier = NULL;
    TRY(kv_tier_open(&tier, &options, error));
    kv_tier_trouble(tier, error);
    if (error->code != RESULT_OK) {
        return (result){error->code};
    }
    double start = now_s();
    double in_calls = 0;
    for (int32_t i = 0; i < bench->blocks;) {
        struct kv_tier_record records[KV_TIER_BATCH_BLOCKS];
        int32_t count = 0;
        while (count < KV_TIER_BATCH_BLOCKS && i + count < bench->blocks) {
            records[count] = record(bench, &options.root, i + count);
            count++;
        }
        double called = now_s();
        int32_t done = kv_tier_write(tier, records, count);
        in_calls += now_s() - called;
        i += done;
        if (done < count) {
            (void)usleep(500);
        }
    }
    if (!kv_tier_flush(tier, 600000)) {
        FAIL(error, TIMEOUT, "the queue did not empty");
    }
    double bytes = (double)bench->blocks * BLOCK_BYTES;
    struct kv_tier_counts counts;
    kv_tier_count(tier, &counts);
    printf(
        "disk: write and sync %.2f GB/s, %.2f us of the caller's a block, %.4f bytes written per "
        "byte, "
        "index %.0f bytes a block\n",
        bytes / (now_s() - start) / 1e9,
        1e6 * in_calls / bench->blocks,
        (double)counts.disk.written_bytes / bytes,
        (double)counts.disk.index_bytes / (double)counts.disk.blocks
    );
    TRY(bench_reads(bench, tier, false, error));
    return bench_reads(bench, tier, true, error);
}

static result run(struct bench *bench, struct error *error) {
    size_t blocks = (size_t)bench->blocks;
    CLEANUP(free_cleanup) struct kv_key *keys = calloc(blocks, sizeof *keys);
    CLEANUP(free_cleanup) int32_t *tokens = calloc(blocks * KV_BLOCK_TOKENS, sizeof *tokens);
    CLEANUP(free_cleanup) uint8_t *source = malloc(blocks * BLOCK_BYTES);
    CLEANUP(free_cleanup) uint8_t *restored = calloc(blocks, BLOCK_BYTES);
    if (keys == NULL || tokens == NULL || source == NULL || restored == NULL) {
        FAIL(error, MEMORY, "no memory for %zu blocks", blocks);
    }
    memset(restored, 1, blocks * BLOCK_BYTES); /* its pages are there before anything is timed */
    bench->keys = keys;
    bench->tokens = tokens;
    bench->source = source;
    bench->restored = restored;
    struct kv_tier_options options = options_of(bench);
    fill(bench, &options.root);
    printf("%d blocks, %.1f MB\n", bench->blocks, (double)blocks * BLOCK_BYTES / 1e6);
    TRY(bench_host(bench, error));
    return bench_disk(bench, error);
}

int main(int count, char **arguments) {
    struct bench bench = {.blocks = 2048};
    uint64_t blocks = 2048;
    if (count < 2 || count > 3 ||
        (count == 3 && (!parse_u64(view_of_text(arguments[2]), &blocks) || blocks < 1 ||
                        blocks > KV_TIER_KEYS_MAX))) {
        (void)fprintf(stderr, "usage: bench_restore DIRECTORY [BLOCKS]\n");
        return 2;
    }
    bench.directory = arguments[1];
    bench.blocks = (int32_t)blocks;
    (void)sem_init(&bench.woken, 0, 0);
    struct error error = {0};
    if (is_failed(run(&bench, &error))) {
        (void)fprintf(stderr, "bench_restore: %s\n", error.message);
        return 1;
    }
    return 0;
}
