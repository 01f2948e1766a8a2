/* Any bytes as a segment, an index file, a state file, a list of lineages or an export: opening,
 * reading, verifying, writing, exporting and importing are polite. The first byte chooses which; its
 * highest bit sets checksums right, the next one keys, or no mutation would get past them. */
#include "engine/kv_disk_internal.h"
#include "engine/kv_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#define BLOCK_BYTES ((size_t)256)
#define FOLDER      "ab00000000000000"
#define SLOTS       24 /* of the segment that an index file is about; all but the first are holes */
#define SUMS        0x80
#define KEYS        0x40
#define KINDS       0x3F

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Waiting for a device would be nearly all of the time, and nothing here is about it. */
int __wrap_fdatasync(int fd); // NOLINT
int __wrap_fsync(int fd);     // NOLINT

int __wrap_fdatasync(int fd) { // NOLINT
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

int __wrap_fsync(int fd) { // NOLINT
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

static const char *const names[] = {
    "seg-00000001.data", "seg-00000001.index", "state", "lineages", "export", "info.json"};

static void write_all(const char *folder, const char *name, const uint8_t *data, size_t size) {
    char path[160];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    ASSERT(length > 0 && (size_t)length < sizeof path);
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
}

static void remove_all(const char *path) {
    DIR *folder = opendir(path);
    ASSERT(folder != NULL);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    (void)closedir(folder);
    ASSERT(rmdir(path) == 0);
}

static void set_key(uint8_t *record) {
    struct kv_key key;
    struct kv_key parent;
    struct kv_lineage lineage;
    int32_t tokens[KV_BLOCK_TOKENS];
    memcpy(parent.bytes, record + 64, sizeof parent.bytes);
    memcpy(lineage.bytes, record + 96, sizeof lineage.bytes);
    memcpy(tokens, record + 128, sizeof tokens);
    kv_key_make(&parent, &lineage, tokens, &key);
    memcpy(record + 32, key.bytes, sizeof key.bytes);
}

/* Keys of records, and the stamp of an index file: it names the segment that is there. */
static void set_keys(size_t kind, uint8_t *bytes, size_t size, const char *folder) {
    size_t stride = (size_t)kv_disk_stride(BLOCK_BYTES);
    for (size_t at = DISK_SEGMENT_HEADER; (kind == 0 || kind == 4) && at + stride <= size;
         at += stride) {
        set_key(bytes + at);
    }
    if (kind == 1 && size >= DISK_INDEX_HEADER) {
        char path[160];
        int length = snprintf(path, sizeof path, "%s/%s", folder, names[0]);
        ASSERT(length > 0 && (size_t)length < sizeof path);
        CLEANUP(fd_cleanup) int fd = open(path, O_RDWR | O_CLOEXEC);
        ASSERT(fd >= 0);
        ASSERT(pread(fd, bytes + 32, DISK_CHECKSUM_BYTES, 112) == DISK_CHECKSUM_BYTES);
        ASSERT(ftruncate(fd, (off_t)(DISK_SEGMENT_HEADER + SLOTS * stride)) == 0);
    }
}

/* Sums at the places where the formats have them. */
static void set_sums(size_t kind, uint8_t *bytes, size_t size) {
    size_t stride = (size_t)kv_disk_stride(BLOCK_BYTES);
    if ((kind == 0 || kind == 4) && size >= 128) {
        disk_checksum(bytes, 112, bytes + 112);
    }
    for (size_t at = DISK_SEGMENT_HEADER; (kind == 0 || kind == 4) && at + stride <= size;
         at += stride) {
        disk_checksum(bytes + at + KV_DISK_HEADER_BYTES, BLOCK_BYTES, bytes + at + 640);
        disk_checksum(bytes + at, 656, bytes + at + 656);
    }
    if ((kind == 1 || kind == 2) && size >= DISK_CHECKSUM_BYTES) {
        size_t summed = size - DISK_CHECKSUM_BYTES;
        disk_checksum(bytes, summed, bytes + summed);
    }
    for (size_t at = 0; kind == 3 && at + DISK_LINEAGE_BYTES <= size; at += DISK_LINEAGE_BYTES) {
        disk_checksum(bytes + at, 112, bytes + at + 112);
    }
}

static void check_index(const struct kv_disk *disk) {
    struct error error;
    result valid = disk_index_validate(&disk->index, &error);
    if (is_failed(valid)) {
        (void)fprintf(stderr, "the index: %s\n", error.message);
    }
    ASSERT(is_ok(valid));
}

/* Whatever is offered is what its key says, or it is refused. */
static void read_everything(struct kv_disk *disk) {
    uint8_t bytes[BLOCK_BYTES];
    struct kv_disk_about about;
    struct error error;
    check_index(disk);
    for (uint32_t i = 0; i < disk->index.high; i++) {
        struct kv_key key = disk->index.entries[i].key;
        struct kv_key again;
        if (disk->index.entries[i].segment != DISK_NONE &&
            is_ok(kv_disk_read(disk, &key, bytes, &about, &error))) {
            kv_key_make(&about.parent, &about.lineage, about.tokens, &again);
            ASSERT(kv_key_equals(&key, &again));
        }
    }
    struct kv_lineage found[8];
    const struct kv_key root = {{0}};
    (void)kv_disk_lineages(disk, &root, found, 8);
    check_index(disk);
}

static void write_one(struct kv_disk *disk) {
    uint8_t bytes[BLOCK_BYTES] = {1};
    int32_t tokens[KV_BLOCK_TOKENS] = {9};
    struct kv_tier_record record = {.lineage = disk->root, .tokens = tokens, .bytes = bytes};
    enum kv_disk_outcome outcome;
    struct error error;
    kv_key_make(&record.parent, &record.lineage, tokens, &record.key);
    if (is_ok(kv_disk_write(disk, &record, &outcome, &error)) && outcome == KV_DISK_WRITTEN) {
        struct kv_disk_about about;
        ASSERT(is_ok(kv_disk_read(disk, &record.key, bytes, &about, &error)));
    }
}

static void use_folder(const char *cache, const struct clock *clock, enum kv_disk_mode mode) {
    const struct kv_disk_options options = {
        .directory = cache,
        .root = {{0xAB}},
        .block_bytes = BLOCK_BYTES,
        .bytes_max = (uint64_t)1 << 24,
        .description = "fuzz",
        .clock = *clock,
        .mode = mode,
    };
    struct kv_disk *disk = NULL;
    struct error error;
    if (is_ok(kv_disk_open(&disk, &options, &error))) {
        read_everything(disk);
        if (mode == KV_DISK_WRITER) {
            write_one(disk);
            (void)kv_disk_advance(disk);
            check_index(disk);
        }
        kv_disk_close(disk);
    }
}

/* What `hearth cache` does with a folder in which something is odd. Damage is expected. */
static void use_commands(const char *cache, const char *folder, bool import) {
    char path[160];
    char out[160];
    const struct clock clock = clock_real();
    struct error error;
    struct kv_files_checked checked;
    struct kv_files_moved moved;
    int length = snprintf(path, sizeof path, "%s/export", folder);
    ASSERT(length > 0 && (size_t)length < sizeof path);
    length = snprintf(out, sizeof out, "%s/exported", folder);
    ASSERT(length > 0 && (size_t)length < sizeof out);
    result_ignore(/* as said */
                  kv_files_verify(cache, FOLDER, &clock, false, NULL, NULL, &checked, &error)
    );
    use_folder(cache, &clock, KV_DISK_READER);
    result_ignore(/* as said */
                  kv_files_export(cache, FOLDER, &clock, NULL, 0, out, &moved, &error)
    );
    if (import) {
        result_ignore(kv_files_import(cache, path, &clock, false, &moved, &error));
    }
    result_ignore(/* as said */
                  kv_files_verify(cache, FOLDER, &clock, true, NULL, NULL, &checked, &error)
    );
    use_folder(cache, &clock, KV_DISK_WRITER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    size_t kind = (data[0] & KINDS) % COUNT_OF(names);
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char cache[64];
    char folder[128];
    const struct clock clock = clock_real();
    CLEANUP(free_cleanup) uint8_t *bytes = malloc(size);
    ASSERT(bytes != NULL);
    memcpy(bytes, data + 1, size - 1);
    (void)snprintf(cache, sizeof cache, "%s/hearth-fuzz-kv-XXXXXX", base);
    ASSERT(mkdtemp(cache) != NULL);
    (void)snprintf(folder, sizeof folder, "%s/" FOLDER, cache);
    use_folder(cache, &clock, KV_DISK_WRITER); /* one good block, with its index */
    if ((data[0] & KEYS) != 0) {
        set_keys(kind, bytes, size - 1, folder);
    }
    if ((data[0] & SUMS) != 0) {
        set_sums(kind, bytes, size - 1);
    }
    write_all(folder, names[kind], bytes, size - 1);
    use_commands(cache, folder, kind == 4);
    remove_all(folder);
    remove_all(cache);
    return 0;
}
