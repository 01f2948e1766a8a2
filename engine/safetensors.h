/* Safetensors files of a checkpoint: headers parsed and checked whole, data memory-mapped.
 *
 * One file (model.safetensors) or several with model.safetensors.index.json. A header's offsets,
 * shapes and sizes are checked against each other and against the file before anything is used:
 * tensors lie inside the file, do not overlap and leave no gap beyond alignment. Mapping is
 * MAP_PRIVATE and read-only; no weight is read when a file is opened. Thread: open on one thread,
 * read-only afterwards.
 */
#ifndef HEARTH_ENGINE_SAFETENSORS_H
#define HEARTH_ENGINE_SAFETENSORS_H

#include "base/bytes.h"

#define SAFETENSORS_RANK_MAX   8
#define SAFETENSORS_NAME_MAX   256                /* bytes of a tensor name */
#define SAFETENSORS_SHARDS_MAX 4096               /* the release has 48 */
#define SAFETENSORS_HEADER_MAX ((size_t)32 << 20) /* bytes; all of the release's fit in one */
#define SAFETENSORS_VALUES_MAX ((size_t)2 << 20)  /* JSON values of a header or of the index */
#define SAFETENSORS_GAP_MAX    63                 /* unused bytes between tensors: alignment */

enum tensor_dtype {
    TENSOR_BOOL,
    TENSOR_U8,
    TENSOR_I8,
    TENSOR_F8_E5M2,
    TENSOR_F8_E4M3,
    TENSOR_F8_E8M0,
    TENSOR_I16,
    TENSOR_U16,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_I32,
    TENSOR_U32,
    TENSOR_F32,
    TENSOR_I64,
    TENSOR_U64,
    TENSOR_F64,
    TENSOR_DTYPE_COUNT
};
const char *tensor_dtype_name(enum tensor_dtype dtype); /* "F8_E4M3", as in the files */

struct tensor_entry {
    struct view name; /* borrowed from the list */
    enum tensor_dtype dtype;
    uint32_t rank;
    uint64_t shape[SAFETENSORS_RANK_MAX];
    uint64_t begin; /* from the start of the file */
    uint64_t bytes;
    uint32_t shard;
};

/* Entries in file order of one or more headers; the names' bytes are owned by it. */
struct tensor_list {
    struct tensor_entry *items;
    size_t count, capacity;
    char **names; /* one block per header */
    size_t name_blocks;
};
void tensor_list_deinit(struct tensor_list *list); /* for CLEANUP; accepts a zeroed one */

#define TENSOR_SHAPE_TEXT 192
void tensor_shape_text(const uint64_t *shape, uint32_t rank, char out[TENSOR_SHAPE_TEXT]);

/* Checks one header and appends its tensors. `start` holds the file's first bytes, up to the end of
 * the header at least; `file_bytes` is the file's size. Expected errors: CORRUPT, UNSUPPORTED (a
 * dtype or a size beyond the limits above, unaligned data), MEMORY; after a failure the list is good
 * for tensor_list_deinit only. */
MUST_CHECK result safetensors_parse(
    struct view start,
    uint64_t file_bytes,
    uint32_t shard,
    struct tensor_list *list,
    struct error *error
);

struct safetensors;

/* Reads the index, if there is one, and the headers of all shards of a model directory; with `map`
 * also maps the files. Expected errors: NOT_FOUND, CORRUPT, UNSUPPORTED. */
MUST_CHECK result
safetensors_open(const char *directory, bool map, struct safetensors **out, struct error *error);
void safetensors_close(struct safetensors *files); /* unmaps; accepts null */
void safetensors_cleanup(struct safetensors **files);

size_t safetensors_count(const struct safetensors *files);
/* Entries sorted by name. */
const struct tensor_entry *safetensors_at(const struct safetensors *files, size_t index);
/* Index of the tensor, SIZE_MAX when there is none. */
size_t safetensors_find(const struct safetensors *files, struct view name);
/* Start of the tensor's bytes; only when mapped. */
const void *safetensors_data(const struct safetensors *files, const struct tensor_entry *entry);
size_t safetensors_shard_count(const struct safetensors *files);
const char *safetensors_shard_name(const struct safetensors *files, uint32_t shard);
uint64_t safetensors_file_bytes(const struct safetensors *files); /* of all shards */
/* SHA-256 in hex over every shard's name, size and header. */
const char *safetensors_digest(const struct safetensors *files);

#endif
