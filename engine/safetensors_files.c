/* The files of one checkpoint: index, shards, mappings. See safetensors.h. */
#include "safetensors.h"

#include "base/json.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME       "model.safetensors.index.json"
#define SINGLE_NAME      "model.safetensors"
#define INDEX_BYTES_MAX  ((size_t)32 << 20) /* the release's has 7.5 MB */
#define SHARD_NAME_MAX   255
#define PREFIX_BYTES     8
#define SHARD_PATH_BYTES 4096

struct shard {
    char *name;
    uint64_t file_bytes;
    void *mapping; /* of the whole file, or null */
};

struct safetensors {
    struct shard *shards;
    size_t shard_count;
    struct tensor_list tensors; /* sorted by name once open */
    uint64_t file_bytes;
    char digest[SHA256_HEX_BYTES];
};

void safetensors_close(struct safetensors *files) {
    if (files == NULL) {
        return;
    }
    for (size_t i = 0; i < files->shard_count; i++) {
        if (files->shards[i].mapping != NULL) {
            (void)munmap(files->shards[i].mapping, (size_t)files->shards[i].file_bytes);
        }
        free(files->shards[i].name);
    }
    free(files->shards);
    tensor_list_deinit(&files->tensors);
    free(files);
}

void safetensors_cleanup(struct safetensors **files) {
    safetensors_close(*files);
}

/* ---- one shard ---- */

static result
read_at_start(int fd, struct buffer *out, size_t length, const char *name, struct error *error) {
    TRY(buffer_reserve(out, length - out->length, error));
    while (out->length < length) {
        ssize_t n = pread(fd, out->data + out->length, length - out->length, (off_t)out->length);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            int code = errno;
            FAIL_FOREIGN(error, IO, code, "%s: %s", name, strerror(code));
        }
        if (n == 0) {
            FAIL(error, CORRUPT, "%s ends at byte %zu while being read", name, out->length);
        }
        out->length += (size_t)n;
    }
    return OK;
}

static result open_regular(
    const char *directory, const char *name, int *out, uint64_t *file_bytes, struct error *error
) {
    char path[SHARD_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the path of '%s' is too long", name);
    }
    // Not blocking, so that a FIFO in the shard's place is refused instead of waited for.
    CLEANUP(fd_cleanup) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        int code = errno;
        if (code == ENOENT || code == ENOTDIR) {
            FAIL(error, NOT_FOUND, "%s: no such file", path);
        }
        FAIL_FOREIGN(error, IO, code, "%s: %s", path, strerror(code));
    }
    struct stat status;
    if (fstat(fd, &status) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "%s: %s", path, strerror(code));
    }
    if (!S_ISREG(status.st_mode)) {
        FAIL(error, CORRUPT, "%s is no regular file", path);
    }
    *file_bytes = (uint64_t)status.st_size;
    *out = fd;
    fd = -1;
    return OK;
}

/* Reads the eight bytes of length, then the header they announce, clipped to the limit and the
 * file: safetensors_parse says what is wrong with the rest. */
static result
read_header(int fd, const struct shard *shard, struct buffer *out, struct error *error) {
    size_t prefix = shard->file_bytes < PREFIX_BYTES ? (size_t)shard->file_bytes : PREFIX_BYTES;
    if (prefix > 0) {
        TRY(read_at_start(fd, out, prefix, shard->name, error));
    }
    struct cursor cursor = cursor_over(buffer_view(out));
    uint64_t header_bytes = 0;
    if (!cursor_take_u64_le(&cursor, &header_bytes) || header_bytes > SAFETENSORS_HEADER_MAX ||
        header_bytes > shard->file_bytes - PREFIX_BYTES) {
        return OK;
    }
    return read_at_start(fd, out, PREFIX_BYTES + (size_t)header_bytes, shard->name, error);
}

static void digest_shard(struct sha256 *sha, const struct shard *shard, struct view start) {
    unsigned char size[8];
    for (unsigned i = 0; i < 8; i++) {
        size[i] = (unsigned char)(shard->file_bytes >> (8 * i));
    }
    sha256_update(sha, view_of(shard->name, strlen(shard->name) + 1));
    sha256_update(sha, view_of(size, sizeof size));
    sha256_update(sha, start);
}

static result open_shard(
    struct safetensors *files,
    const char *directory,
    uint32_t index,
    bool map,
    struct sha256 *sha,
    struct error *error
) {
    struct shard *shard = &files->shards[index];
    CLEANUP(fd_cleanup) int fd = -1;
    TRY(open_regular(directory, shard->name, &fd, &shard->file_bytes, error));
    CLEANUP(buffer_deinit) struct buffer start = {NULL, 0, 0, 0};
    buffer_init(&start, SAFETENSORS_HEADER_MAX + PREFIX_BYTES);
    TRY(read_header(fd, shard, &start, error));
    TRY_NOTE(
        error,
        safetensors_parse(buffer_view(&start), shard->file_bytes, index, &files->tensors, error),
        "%s",
        shard->name
    );
    digest_shard(sha, shard, buffer_view(&start));
    files->file_bytes += shard->file_bytes;
    if (!map) {
        return OK;
    }
    // The size checked above is the file's now. Somebody who truncates the file later takes pages
    // away that are mapped here, and touching them is a SIGBUS: no check can rule that out, short
    // of reading the weights whole. Files of models are replaced by rename, not cut.
    void *mapping = mmap(NULL, (size_t)shard->file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapping == MAP_FAILED) {
        int code = errno;
        FAIL_FOREIGN(
            error,
            IO,
            code,
            "%s: cannot map %" PRIu64 " bytes: %s",
            shard->name,
            shard->file_bytes,
            strerror(code)
        );
    }
    shard->mapping = mapping;
    return OK;
}

/* ---- the set ---- */

static int compare_views(struct view a, struct view b) {
    size_t shorter = a.length < b.length ? a.length : b.length;
    int order = shorter == 0 ? 0 : memcmp(a.data, b.data, shorter);
    if (order != 0) {
        return order;
    }
    return a.length == b.length ? 0 : a.length < b.length ? -1 : 1;
}

static int compare_entries(const void *a, const void *b) {
    const struct tensor_entry *x = a;
    const struct tensor_entry *y = b;
    int order = compare_views(x->name, y->name);
    return order != 0 ? order : x->shard == y->shard ? 0 : x->shard < y->shard ? -1 : 1;
}

static result sort_tensors(struct safetensors *files, struct error *error) {
    struct tensor_list *list = &files->tensors;
    if (list->count == 0) {
        FAIL(error, CORRUPT, "the checkpoint has no tensors");
    }
    qsort(list->items, list->count, sizeof *list->items, compare_entries);
    for (size_t i = 1; i < list->count; i++) {
        const struct tensor_entry *before = &list->items[i - 1];
        if (view_equals(before->name, list->items[i].name)) {
            FAIL(
                error,
                CORRUPT,
                "tensor '%.*s' is in %s and in %s",
                VIEW_ARGUMENTS(before->name),
                files->shards[before->shard].name,
                files->shards[list->items[i].shard].name
            );
        }
    }
    return OK;
}

static result add_shard(struct safetensors *files, struct view name, struct error *error) {
    if (files->shard_count >= SAFETENSORS_SHARDS_MAX) {
        FAIL(error, UNSUPPORTED, "more than %d shards", SAFETENSORS_SHARDS_MAX);
    }
    struct shard *shards = realloc(files->shards, (files->shard_count + 1) * sizeof *shards);
    if (shards == NULL) {
        FAIL(error, MEMORY, "no memory for %zu shards", files->shard_count + 1);
    }
    files->shards = shards;
    char *copy = malloc(name.length + 1);
    if (copy == NULL) {
        FAIL(error, MEMORY, "no memory for a shard's name");
    }
    memcpy(copy, name.data, name.length);
    copy[name.length] = '\0';
    shards[files->shard_count++] = (struct shard){copy, 0, NULL};
    return OK;
}

/* Names of shards become paths: plain file names only. */
static result check_shard_name(struct view name, struct error *error) {
    bool plain = name.length > 0 && name.length <= SHARD_NAME_MAX && name.data[0] != '.' &&
                 view_ends_with(name, view_of_text(".safetensors"));
    for (size_t i = 0; plain && i < name.length; i++) {
        plain = name.data[i] > 0x20 && name.data[i] < 0x7f && name.data[i] != '/' &&
                name.data[i] != '\\';
    }
    if (!plain) {
        FAIL(
            error, CORRUPT, "'%.*s' is no name of a shard", VIEW_ARGUMENTS(view_slice(name, 0, 80))
        );
    }
    return OK;
}

struct placement {
    struct view tensor, shard; /* borrowed from the index document */
};

static int compare_placement_shards(const void *a, const void *b) {
    const struct placement *x = a;
    const struct placement *y = b;
    return compare_views(x->shard, y->shard);
}

static int compare_placement_tensors(const void *a, const void *b) {
    const struct placement *x = a;
    const struct placement *y = b;
    return compare_views(x->tensor, y->tensor);
}

struct index {
    struct json_document *document;
    struct placement *placements;
    size_t count;
    int64_t total_bytes; /* -1: not said */
};

static void index_deinit(struct index *index) {
    free(index->placements);
    json_destroy(index->document);
}

static result index_parse(struct view text, struct index *index, struct error *error) {
    const struct json_limits limits = {INDEX_BYTES_MAX, SAFETENSORS_VALUES_MAX, 8};
    TRY(json_parse(text, &limits, &index->document, error));
    struct json_value root = json_root(index->document);
    struct json_value map;
    TRY(json_get_object(root, "weight_map", &map, error));
    index->total_bytes = -1;
    struct json_value total = json_get(json_get(root, "metadata"), "total_size");
    if (json_type(total) != JSON_ABSENT &&
        (!json_as_i64(total, &index->total_bytes) || index->total_bytes < 0)) {
        FAIL(
            error,
            CORRUPT,
            "'total_size' is %.*s",
            VIEW_ARGUMENTS(view_slice(json_raw(total), 0, 40))
        );
    }
    index->placements = calloc(json_count(map) + 1, sizeof *index->placements);
    if (index->placements == NULL) {
        FAIL(error, MEMORY, "no memory for %zu tensors", json_count(map));
    }
    for (struct json_value v = json_first(map); json_type(v) != JSON_ABSENT; v = json_next(v)) {
        struct placement *placement = &index->placements[index->count];
        placement->tensor = json_name(v);
        if (!json_as_string(v, &placement->shard)) {
            FAIL(
                error,
                CORRUPT,
                "the shard of '%.*s' is no string",
                VIEW_ARGUMENTS(view_slice(placement->tensor, 0, 80))
            );
        }
        TRY(check_shard_name(placement->shard, error));
        index->count += 1;
    }
    return OK;
}

static result
index_read(const char *directory, bool *found, struct index *index, struct error *error) {
    char path[SHARD_PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, INDEX_NAME);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the model's path is too long");
    }
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, INDEX_BYTES_MAX);
    result read = file_read(path, &text, error);
    *found = read.code != RESULT_NOT_FOUND;
    if (!*found) {
        return OK;
    }
    TRY(read);
    result parsed = index_parse(buffer_view(&text), index, error);
    if (is_failed(parsed)) {
        if (parsed.code == RESULT_INVALID_INPUT || parsed.code == RESULT_LIMIT) {
            parsed.code = RESULT_CORRUPT;
        }
        return error_note(error, parsed, "%s", INDEX_NAME);
    }
    return OK;
}

/* Every tensor of the index is in the shard it names, and the shards hold no other. */
static result
index_compare(const struct safetensors *files, struct index *index, struct error *error) {
    qsort(index->placements, index->count, sizeof *index->placements, compare_placement_tensors);
    const struct tensor_list *list = &files->tensors;
    const struct tensor_entry no_entry = {.name = {NULL, 0}};
    const struct placement no_placement = {{NULL, 0}, {NULL, 0}};
    uint64_t total = 0;
    for (size_t i = 0; i < index->count || i < list->count; i++) {
        const struct tensor_entry *entry = i < list->count ? &list->items[i] : &no_entry;
        const struct placement *placement =
            i < index->count ? &index->placements[i] : &no_placement;
        int order = i >= list->count    ? -1
                    : i >= index->count ? 1
                                        : compare_views(placement->tensor, entry->name);
        if (order < 0) {
            FAIL(
                error,
                CORRUPT,
                "%s places tensor '%.*s' in %.*s, no shard has it",
                INDEX_NAME,
                VIEW_ARGUMENTS(view_slice(placement->tensor, 0, 80)),
                VIEW_ARGUMENTS(placement->shard)
            );
        }
        const char *shard = files->shards[entry->shard].name;
        if (order > 0) {
            FAIL(
                error,
                CORRUPT,
                "%s has tensor '%.*s', which %s does not name",
                shard,
                VIEW_ARGUMENTS(entry->name),
                INDEX_NAME
            );
        }
        if (!view_equals_text(placement->shard, shard)) {
            FAIL(
                error,
                CORRUPT,
                "%s places tensor '%.*s' in %.*s, it is in %s",
                INDEX_NAME,
                VIEW_ARGUMENTS(entry->name),
                VIEW_ARGUMENTS(placement->shard),
                shard
            );
        }
        total += entry->bytes; // each lies inside its file: no overflow
    }
    if (index->total_bytes >= 0 && (uint64_t)index->total_bytes != total) {
        FAIL(
            error,
            CORRUPT,
            "%s says total_size %" PRId64 ", the tensors have %" PRIu64 " bytes",
            INDEX_NAME,
            index->total_bytes,
            total
        );
    }
    return OK;
}

static result
open_all(struct safetensors *files, const char *directory, bool map, struct error *error) {
    struct sha256 sha;
    sha256_init(&sha);
    for (uint32_t i = 0; i < files->shard_count; i++) {
        TRY(open_shard(files, directory, i, map, &sha, error));
    }
    sha256_finish_hex(&sha, files->digest);
    return sort_tensors(files, error);
}

result
safetensors_open(const char *directory, bool map, struct safetensors **out, struct error *error) {
    CLEANUP(safetensors_cleanup) struct safetensors *files = calloc(1, sizeof *files);
    if (files == NULL) {
        FAIL(error, MEMORY, "no memory for a checkpoint");
    }
    CLEANUP(index_deinit) struct index index = {NULL, NULL, 0, -1};
    bool sharded = false;
    TRY(index_read(directory, &sharded, &index, error));
    if (!sharded) {
        TRY(add_shard(files, view_of_text(SINGLE_NAME), error));
        TRY(open_all(files, directory, map, error));
        *out = TAKE(files);
        return OK;
    }
    qsort(index.placements, index.count, sizeof *index.placements, compare_placement_shards);
    for (size_t i = 0; i < index.count; i++) {
        if (i == 0 || !view_equals(index.placements[i].shard, index.placements[i - 1].shard)) {
            TRY(add_shard(files, index.placements[i].shard, error));
        }
    }
    TRY(open_all(files, directory, map, error));
    TRY(index_compare(files, &index, error));
    *out = TAKE(files);
    return OK;
}

/* ---- lookups ---- */

size_t safetensors_count(const struct safetensors *files) {
    return files->tensors.count;
}

const struct tensor_entry *safetensors_at(const struct safetensors *files, size_t index) {
    ASSERT(index < files->tensors.count);
    return &files->tensors.items[index];
}

size_t safetensors_find(const struct safetensors *files, struct view name) {
    size_t low = 0;
    size_t high = files->tensors.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_views(files->tensors.items[middle].name, name);
        if (order == 0) {
            return middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return SIZE_MAX;
}

const void *safetensors_data(const struct safetensors *files, const struct tensor_entry *entry) {
    const struct shard *shard = &files->shards[entry->shard];
    ASSERT(shard->mapping != NULL);
    ASSERT(entry->begin + entry->bytes <= shard->file_bytes);
    return (const unsigned char *)shard->mapping + entry->begin;
}

size_t safetensors_shard_count(const struct safetensors *files) {
    return files->shard_count;
}

const char *safetensors_shard_name(const struct safetensors *files, uint32_t shard) {
    ASSERT(shard < files->shard_count);
    return files->shards[shard].name;
}

uint64_t safetensors_file_bytes(const struct safetensors *files) {
    return files->file_bytes;
}

const char *safetensors_digest(const struct safetensors *files) {
    return files->digest;
}
