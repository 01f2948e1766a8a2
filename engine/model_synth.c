/* Writes a checkpoint of random weights: one shard for what belongs to no layer, one for each layer.
 * Shards are independent, so several threads write them. See model_synth.h. */
#include "model_synth.h"

#include "base/json.h"
#include "weights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define CHUNK_BYTES   ((size_t)1 << 20)
#define SHARDS_MAX    (2 * MODEL_LAYERS_MAX + 2)
#define THREADS_MAX   64
#define PATH_BYTES    4096
#define TENSORS_FIRST 1024
#define NAME_BYTES    40

/* What a tensor's bytes look like. */
enum filling {
    FILL_ANY,      /* every byte: FP4 codes */
    FILL_FP8,      /* E4M3 codes of magnitudes 1/4 to 3.75 */
    FILL_EXPONENT, /* E8M0 bytes at and one beside `exponent` */
    FILL_BF16,     /* +- [0.5, 2) 2^exponent */
    FILL_BF16_NORM,
    FILL_F32 /* as FILL_BF16 */
};

struct synth_tensor {
    char *name;
    const char *dtype;
    uint32_t rank;
    uint64_t shape[2];
    uint64_t bytes, offset; /* in its shard, after the header */
    uint32_t shard;
    enum filling filling;
    int exponent;
};

struct synth {
    const struct model_synth_options *options;
    const struct model_config *config;
    struct synth_tensor *tensors;
    size_t count, capacity;
    uint32_t shards;
    struct buffer headers[SHARDS_MAX];
    uint64_t data_bytes[SHARDS_MAX];
    uint64_t total;

    /* while shards are written */
    atomic_uint next_shard;
    atomic_ullong written;
    atomic_bool failed;
};

/* ---- what there is to write ---- */

/* 2^exponent that gives products of `in` terms a size near 1; magnitudes are near `scale` before. */
static int weight_exponent(uint64_t in, double scale) {
    return -(int)lround(log2(scale * sqrt((double)in)));
}

static bool contains(const char *text, const char *part) {
    return strstr(text, part) != NULL;
}

static void choose_filling(const struct tensor_role *role, struct synth_tensor *tensor) {
    uint64_t in = role->rank == 2 ? role->shape[1] : 0;
    bool is_scale = role->dtype == TENSOR_F8_E8M0;
    if (is_scale) {
        bool is_fp4 = role->storage == MODEL_STORAGE_FP4;
        tensor->filling = FILL_EXPONENT;
        // scales of FP8 and FP4 stand for 32 columns; Engram rows are values, not products
        tensor->exponent = role->storage == MODEL_STORAGE_ENGRAM_ROWS
                               ? 0
                               : weight_exponent(32 * in, is_fp4 ? 2.9 : 1.3);
    } else if (role->dtype == TENSOR_F8_E4M3) {
        tensor->filling = FILL_FP8;
    } else if (role->dtype == TENSOR_I8) {
        tensor->filling = FILL_ANY;
    } else if (role->dtype == TENSOR_BF16) {
        bool is_norm = role->rank == 1 || contains(role->name, "engram.");
        tensor->filling = is_norm ? FILL_BF16_NORM : FILL_BF16;
        tensor->exponent = is_norm ? 0 : weight_exponent(in, 1.0);
    } else {
        tensor->filling = FILL_F32; // mixing matrices, biases, sinks
        tensor->exponent = role->rank == 2 ? weight_exponent(in, 1.0) : -4;
    }
    if (contains(role->name, "embed.weight") && role->group == MODEL_GROUP_EMBED) {
        tensor->exponent = 0;
    }
}

static uint64_t element_bytes(enum tensor_dtype dtype) {
    return dtype == TENSOR_F32 ? 4 : dtype == TENSOR_BF16 ? 2 : 1;
}

/* Shard 0 holds what belongs to no layer, then come layers, then draft stages. */
static uint32_t shard_of(const struct synth *synth, const char *name) {
    bool is_draft = strncmp(name, "mtp.", 4) == 0;
    if (!is_draft && strncmp(name, "layers.", 7) != 0) {
        return 0;
    }
    unsigned long number = strtoul(strchr(name, '.') + 1, NULL, 10);
    return 1 + (uint32_t)number + (is_draft ? (uint32_t)synth->config->layers : 0);
}

static result add_tensor(void *context, const struct tensor_role *role, struct error *error) {
    struct synth *synth = context;
    if (synth->count == synth->capacity) {
        size_t capacity = synth->capacity == 0 ? TENSORS_FIRST : 2 * synth->capacity;
        void *grown = realloc(synth->tensors, capacity * sizeof *synth->tensors);
        if (grown == NULL) {
            FAIL(error, MEMORY, "no memory for a list of %zu tensors", capacity);
        }
        synth->tensors = grown;
        synth->capacity = capacity;
    }
    struct synth_tensor *tensor = &synth->tensors[synth->count];
    *tensor = (struct synth_tensor){
        .dtype = tensor_dtype_name(role->dtype),
        .rank = role->rank,
        .shape = {role->shape[0], role->shape[1]},
        .bytes = element_bytes(role->dtype),
        .shard = shard_of(synth, role->name),
    };
    tensor->name = strdup(role->name);
    if (tensor->name == NULL) {
        FAIL(error, MEMORY, "no memory for the name of tensor %s", role->name);
    }
    synth->count++;
    for (uint32_t i = 0; i < role->rank; i++) {
        tensor->bytes *= role->shape[i];
    }
    choose_filling(role, tensor);
    ASSERT(tensor->shard < SHARDS_MAX);
    tensor->offset = (synth->data_bytes[tensor->shard] + 7) / 8 * 8;
    synth->data_bytes[tensor->shard] = tensor->offset + tensor->bytes;
    synth->shards = tensor->shard >= synth->shards ? tensor->shard + 1 : synth->shards;
    return OK;
}

static result make_header(struct synth *synth, uint32_t shard, struct error *error) {
    struct buffer *out = &synth->headers[shard];
    buffer_init(out, (size_t)256 << 20);
    struct json_writer w;
    json_writer_init(&w, out, error);
    json_write_object_begin(&w);
    for (size_t i = 0; i < synth->count; i++) {
        const struct synth_tensor *tensor = &synth->tensors[i];
        if (tensor->shard != shard) {
            continue;
        }
        json_write_key(&w, tensor->name);
        json_write_object_begin(&w);
        json_write_key(&w, "dtype");
        json_write_text(&w, tensor->dtype);
        json_write_key(&w, "shape");
        json_write_array_begin(&w);
        for (uint32_t d = 0; d < tensor->rank; d++) {
            json_write_u64(&w, tensor->shape[d]);
        }
        json_write_array_end(&w);
        json_write_key(&w, "data_offsets");
        json_write_array_begin(&w);
        json_write_u64(&w, tensor->offset);
        json_write_u64(&w, tensor->offset + tensor->bytes);
        json_write_array_end(&w);
        json_write_object_end(&w);
    }
    json_write_object_end(&w);
    TRY(json_writer_finish(&w));
    while (out->length % 8 != 0) {
        TRY(buffer_append_byte(out, ' ', error));
    }
    return OK;
}

static void shard_name(const struct synth *synth, uint32_t shard, char out[NAME_BYTES]) {
    int length =
        snprintf(out, NAME_BYTES, "model-%05u-of-%05u.safetensors", shard + 1, synth->shards);
    ASSERT(length > 0 && length < NAME_BYTES);
}

static result make_index(const struct synth *synth, struct buffer *out, struct error *error) {
    struct json_writer w;
    uint64_t payload = 0;
    for (size_t i = 0; i < synth->count; i++) {
        payload += synth->tensors[i].bytes;
    }
    json_writer_init(&w, out, error);
    json_write_object_begin(&w);
    json_write_key(&w, "metadata");
    json_write_object_begin(&w);
    json_write_key(&w, "total_size");
    json_write_u64(&w, payload);
    json_write_object_end(&w);
    json_write_key(&w, "weight_map");
    json_write_object_begin(&w);
    for (size_t i = 0; i < synth->count; i++) {
        char name[NAME_BYTES];
        shard_name(synth, synth->tensors[i].shard, name);
        json_write_key(&w, synth->tensors[i].name);
        json_write_text(&w, name);
    }
    json_write_object_end(&w);
    json_write_object_end(&w);
    return json_writer_finish(&w);
}

/* ---- random bytes ---- */

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

static uint64_t tensor_seed(uint64_t seed, const char *name) {
    uint64_t state = seed;
    for (const char *c = name; *c != '\0'; c++) {
        state ^= (unsigned char)*c;
        (void)next_random(&state);
    }
    return state;
}

/* Eight random bytes as the tensor's values; every filling is a few masks on whole words. */
static uint64_t shape_word(const struct synth_tensor *tensor, uint64_t r) {
    uint64_t exponent = (uint64_t)(127 + tensor->exponent);
    if (tensor->filling == FILL_FP8) {
        // sign, exponent field 5 to 8 (5 + two bits: no carry beyond 4 bits), mantissa
        return (r & 0x8787878787878787U) + 0x2828282828282828U + (r >> 1 & 0x1818181818181818U);
    }
    if (tensor->filling == FILL_EXPONENT) {
        return exponent * 0x0101010101010101U + (r & 0x0101010101010101U);
    }
    if (tensor->filling == FILL_BF16_NORM) {
        return 0x3F803F803F803F80U + (r & 0x003F003F003F003FU);
    }
    if (tensor->filling == FILL_BF16) {
        uint64_t fields = (exponent - 1) << 7;
        return (r & 0x807F807F807F807FU) + (fields | fields << 16 | fields << 32 | fields << 48) +
               (r >> 1 & 0x0080008000800080U);
    }
    if (tensor->filling == FILL_F32) {
        uint64_t fields = (exponent - 1) << 23;
        return (r & 0x807FFFFF807FFFFFU) + (fields | fields << 32) + (r >> 1 & 0x0080000000800000U);
    }
    return r;
}

static result write_all(
    int fd, const void *bytes, size_t count, const char *path, uint64_t at, struct error *error
) {
    size_t done = 0;
    while (done < count) {
        ssize_t written = write(fd, (const unsigned char *)bytes + done, count - done);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            FAIL(
                error,
                IO,
                "writing %s at byte %llu: %s",
                path,
                (unsigned long long)(at + done),
                strerror(errno)
            );
        }
        done += (size_t)written;
    }
    return OK;
}

/* Appends to a shard through one buffer. */
struct shard_writer {
    struct synth *synth;
    int fd;
    const char *path;
    uint64_t *chunk; /* [CHUNK_BYTES] */
    uint64_t at;
    bool reports; /* this thread may call progress */
};

static result put(struct shard_writer *writer, size_t bytes, struct error *error) {
    struct synth *synth = writer->synth;
    TRY(write_all(writer->fd, writer->chunk, bytes, writer->path, writer->at, error));
    writer->at += bytes;
    uint64_t done = atomic_fetch_add(&synth->written, bytes) + bytes;
    if (writer->reports && synth->options->progress != NULL) {
        synth->options->progress(synth->options->progress_context, done, synth->total);
    }
    return OK;
}

static result put_tensor(
    struct shard_writer *writer,
    const struct synth_tensor *tensor,
    uint64_t data,
    struct error *error
) {
    uint64_t padding = data + tensor->offset - writer->at;
    ASSERT(padding < 8);
    memset(writer->chunk, 0, 8);
    TRY(put(writer, padding, error));
    uint64_t state = tensor_seed(writer->synth->options->seed, tensor->name);
    for (uint64_t done = 0; done < tensor->bytes;) {
        uint64_t left = tensor->bytes - done;
        size_t bytes = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        for (size_t i = 0; i < (bytes + 7) / 8; i++) {
            writer->chunk[i] = shape_word(tensor, next_random(&state));
        }
        TRY(put(writer, bytes, error));
        done += bytes;
    }
    return OK;
}

static result write_shard(struct synth *synth, uint32_t shard, bool reports, struct error *error) {
    char name[NAME_BYTES];
    char path[PATH_BYTES];
    shard_name(synth, shard, name);
    int length = snprintf(path, sizeof path, "%s/%s", synth->options->directory, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the path %s is too long", synth->options->directory);
    }
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        FAIL(error, IO, "creating %s: %s", path, strerror(errno));
    }
    CLEANUP(free_cleanup) uint64_t *chunk = malloc(CHUNK_BYTES);
    if (chunk == NULL) {
        FAIL(error, MEMORY, "no memory for %zu bytes of a shard", CHUNK_BYTES);
    }
    struct shard_writer writer = {synth, fd, path, chunk, 0, reports};
    const struct buffer *header = &synth->headers[shard];
    uint64_t prefix =
        header->length; // the format is little-endian, as are the machines we build for
    TRY(write_all(fd, &prefix, sizeof prefix, path, 0, error));
    TRY(write_all(fd, header->data, header->length, path, sizeof prefix, error));
    writer.at = sizeof prefix + header->length;
    uint64_t data = writer.at;
    for (size_t i = 0; i < synth->count; i++) {
        if (synth->tensors[i].shard == shard) {
            TRY(put_tensor(&writer, &synth->tensors[i], data, error));
        }
    }
    return OK;
}

/* ---- threads ---- */

struct synth_worker {
    struct synth *synth;
    pthread_t thread;
    bool reports;
    result status;
    struct error error;
};

static void *work(void *context) {
    struct synth_worker *worker = context;
    struct synth *synth = worker->synth;
    worker->status = OK;
    while (!atomic_load(&synth->failed)) {
        uint32_t shard = atomic_fetch_add(&synth->next_shard, 1);
        if (shard >= synth->shards) {
            break;
        }
        worker->status = write_shard(synth, shard, worker->reports, &worker->error);
        if (is_failed(worker->status)) {
            atomic_store(&synth->failed, true);
            break;
        }
    }
    return NULL;
}

static result write_shards(struct synth *synth, struct error *error) {
    static const struct synth_worker empty = {0};
    int32_t wanted = synth->options->threads < 1             ? 1
                     : synth->options->threads > THREADS_MAX ? THREADS_MAX
                                                             : synth->options->threads;
    CLEANUP(free_cleanup)
    struct synth_worker *workers = calloc((size_t)wanted, sizeof *workers);
    if (workers == NULL) {
        FAIL(error, MEMORY, "no memory for %d threads", wanted);
    }
    int32_t started = 1; // worker 0 is the caller
    for (int32_t i = 0; i < wanted; i++) {
        workers[i] = empty;
        workers[i].synth = synth;
        workers[i].reports = i == 0;
        if (i > 0 && pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            break; // fewer threads do the same
        }
        started = i + 1;
    }
    (void)work(&workers[0]);
    result status = workers[0].status;
    const struct error *why = &workers[0].error;
    for (int32_t i = 1; i < started; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        if (is_ok(status) && is_failed(workers[i].status)) {
            status = workers[i].status;
            why = &workers[i].error;
        }
    }
    if (is_failed(status) && error != NULL) {
        *error = *why;
    }
    return status;
}

/* ---- the whole ---- */

static result open_directory(const char *directory, struct error *error) {
    if (mkdir(directory, 0755) == 0) {
        return OK;
    }
    if (errno != EEXIST) {
        FAIL(error, IO, "creating %s: %s", directory, strerror(errno));
    }
    DIR *found = opendir(directory);
    if (found == NULL) {
        FAIL(error, IO, "opening %s: %s", directory, strerror(errno));
    }
    int entries = 0;
    while (readdir(found) != NULL) {
        entries++;
    }
    (void)closedir(found);
    if (entries > 2) {
        FAIL(error, INVALID_INPUT, "%s is not empty: %d entries", directory, entries - 2);
    }
    return OK;
}

static result check_space(const struct synth *synth, struct error *error) {
    struct statvfs file_system;
    if (statvfs(synth->options->directory, &file_system) != 0) {
        return OK; // then writing tells
    }
    uint64_t free_bytes = (uint64_t)file_system.f_bavail * file_system.f_frsize;
    if (free_bytes < synth->total) {
        FAIL(
            error,
            LIMIT,
            "%s: the checkpoint has %llu bytes, %llu are free: %llu short",
            synth->options->directory,
            (unsigned long long)synth->total,
            (unsigned long long)free_bytes,
            (unsigned long long)(synth->total - free_bytes)
        );
    }
    return OK;
}

static result write_text(
    const char *directory, const char *name, const struct buffer *text, struct error *error
) {
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof path) {
        FAIL(error, INVALID_INPUT, "the path %s is too long", directory);
    }
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        FAIL(error, IO, "creating %s: %s", path, strerror(errno));
    }
    return write_all(fd, text->data, text->length, path, 0, error);
}

static result synth_write(struct synth *synth, const struct buffer *config, struct error *error) {
    TRY(weights_walk(synth->config, NULL, add_tensor, synth, error));
    for (uint32_t shard = 0; shard < synth->shards; shard++) {
        TRY(make_header(synth, shard, error));
        synth->total += sizeof(uint64_t) + synth->headers[shard].length + synth->data_bytes[shard];
    }
    const char *directory = synth->options->directory;
    TRY(open_directory(directory, error));
    TRY(check_space(synth, error));
    TRY(write_shards(synth, error));
    CLEANUP(buffer_deinit) struct buffer index;
    buffer_init(&index, (size_t)256 << 20);
    TRY(make_index(synth, &index, error));
    TRY(write_text(directory, "model.safetensors.index.json", &index, error));
    return write_text(directory, "config.json", config, error); // last: the checkpoint is whole
}

static void synth_cleanup(struct synth **synth) {
    if (*synth == NULL) {
        return;
    }
    for (uint32_t shard = 0; shard < (*synth)->shards; shard++) {
        buffer_deinit(&(*synth)->headers[shard]);
    }
    for (size_t i = 0; i < (*synth)->count; i++) {
        free((*synth)->tensors[i].name);
    }
    free((*synth)->tensors);
    free(*synth);
}

result model_synth(
    const struct model_synth_options *options, struct model_synth_report *out, struct error *error
) {
    CLEANUP(buffer_deinit) struct buffer text;
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    TRY(model_synth_config(options, &text, error));
    CLEANUP(free_cleanup) struct model_config *config = calloc(1, sizeof *config);
    CLEANUP(synth_cleanup) struct synth *synth = calloc(1, sizeof *synth);
    if (config == NULL || synth == NULL) {
        FAIL(error, MEMORY, "no memory for the plan of a checkpoint");
    }
    TRY_NOTE(error, model_config_parse(buffer_view(&text), config, error), "the reduced");
    synth->options = options;
    synth->config = config;
    TRY(synth_write(synth, &text, error));
    *out = (struct model_synth_report){
        .layers = config->layers,
        .experts = config->experts,
        .tensors = synth->count,
        .shards = synth->shards,
        .bytes = synth->total,
    };
    return OK;
}
