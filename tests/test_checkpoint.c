/* See test_checkpoint.h. Failures of the file system other than size limits assert. */
#include "test_checkpoint.h"

#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static uint64_t bytes_of(const struct tensor_role *role) {
    uint64_t bytes = role->dtype == TENSOR_F32 ? 4 : role->dtype == TENSOR_BF16 ? 2 : 1;
    for (uint32_t i = 0; i < role->rank; i++) {
        bytes *= role->shape[i];
    }
    return bytes;
}

static result plan_tensor(void *context, const struct tensor_role *role, struct error *error) {
    (void)error;
    struct planned_checkpoint *plan = context;
    if (plan->count == plan->capacity) {
        plan->capacity = plan->capacity == 0 ? 1024 : plan->capacity * 2;
        plan->tensors = realloc(plan->tensors, plan->capacity * sizeof *plan->tensors);
        ASSERT(plan->tensors != NULL);
    }
    struct planned_tensor *tensor = &plan->tensors[plan->count++];
    memset(tensor, 0, sizeof *tensor);
    memcpy(tensor->name, role->name, strlen(role->name) + 1);
    tensor->dtype = tensor_dtype_name(role->dtype);
    tensor->rank = role->rank;
    memcpy(tensor->shape, role->shape, sizeof role->shape);
    tensor->bytes = bytes_of(role);
    if (plan->shards > 1) {
        // The number in layers.N. or mtp.N. decides; everything else goes to shard 0.
        const char *dot = strchr(role->name, '.');
        unsigned long number = dot == NULL ? 0 : strtoul(dot + 1, NULL, 10);
        bool draft = strncmp(role->name, "mtp.", 4) == 0;
        tensor->shard = (uint32_t)((number + (draft ? 40 : 0)) % plan->shards);
    }
    return OK;
}

void planned_init(
    struct planned_checkpoint *plan, const struct model_config *config, uint32_t shards
) {
    memset(plan, 0, sizeof *plan);
    plan->shards = shards;
    plan->total_size = -1;
    struct error error;
    ASSERT(is_ok(weights_walk(config, NULL, plan_tensor, plan, &error)));
}

void planned_deinit(struct planned_checkpoint *plan) {
    free(plan->tensors);
    memset(plan, 0, sizeof *plan);
}

struct planned_tensor *planned_find(struct planned_checkpoint *plan, const char *name) {
    for (size_t i = 0; i < plan->count; i++) {
        if (strcmp(plan->tensors[i].name, name) == 0) {
            return &plan->tensors[i];
        }
    }
    ASSERT(!"no such tensor in the plan");
    return NULL;
}

static void shard_name(const struct planned_checkpoint *plan, uint32_t shard, char out[64]) {
    int length = plan->shards == 1
                     ? snprintf(out, 64, "model.safetensors")
                     : snprintf(out, 64, "model-%05u-of-%05u.safetensors", shard + 1, plan->shards);
    ASSERT(length > 0 && length < 64);
}

/* Header of one shard; offsets are aligned to 8 so that every dtype is. */
static uint64_t write_header(
    const struct planned_checkpoint *plan, uint32_t shard, struct buffer *out, struct error *error
) {
    struct json_writer w;
    json_writer_init(&w, out, error);
    json_write_object_begin(&w);
    uint64_t at = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_tensor *t = &plan->tensors[i];
        if (t->shard != shard || t->leave_out) {
            continue;
        }
        at = (at + 7) / 8 * 8;
        json_write_key(&w, t->name);
        json_write_object_begin(&w);
        json_write_key(&w, "dtype");
        json_write_text(&w, t->dtype);
        json_write_key(&w, "shape");
        json_write_array_begin(&w);
        for (uint32_t d = 0; d < t->rank; d++) {
            json_write_u64(&w, t->shape[d]);
        }
        json_write_array_end(&w);
        json_write_key(&w, "data_offsets");
        json_write_array_begin(&w);
        json_write_u64(&w, at);
        at += t->bytes;
        json_write_u64(&w, at);
        json_write_array_end(&w);
        json_write_object_end(&w);
    }
    json_write_object_end(&w);
    ASSERT(is_ok(json_writer_finish(&w)));
    while (out->length % 8 != 0) {
        ASSERT(is_ok(buffer_append_byte(out, ' ', error)));
    }
    return at;
}

static bool
write_shard(const struct planned_checkpoint *plan, uint32_t shard, const char *directory) {
    struct error error;
    CLEANUP(buffer_deinit) struct buffer header = {NULL, 0, 0, 0};
    buffer_init(&header, BUFFER_CEILING_DEFAULT);
    uint64_t data_bytes = write_header(plan, shard, &header, &error);
    char name[64];
    char path[512];
    shard_name(plan, shard, name);
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    ASSERT(length > 0 && (size_t)length < sizeof path);
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ASSERT(fd >= 0);
    unsigned char prefix[8];
    for (unsigned i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)((uint64_t)header.length >> (8 * i));
    }
    ASSERT(write(fd, prefix, 8) == 8);
    ASSERT(write(fd, header.data, header.length) == (ssize_t)header.length);
    return ftruncate(fd, (off_t)(8 + header.length + data_bytes)) == 0;
}

static void write_index(const struct planned_checkpoint *plan, const char *directory) {
    struct error error;
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, BUFFER_CEILING_DEFAULT);
    uint64_t total = 0;
    for (size_t i = 0; i < plan->count; i++) {
        total += plan->tensors[i].bytes;
    }
    struct json_writer w;
    json_writer_init(&w, &text, &error);
    json_write_object_begin(&w);
    json_write_key(&w, "metadata");
    json_write_object_begin(&w);
    json_write_key(&w, "total_size");
    json_write_i64(&w, plan->total_size < 0 ? (int64_t)total : plan->total_size);
    json_write_object_end(&w);
    json_write_key(&w, "weight_map");
    json_write_object_begin(&w);
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_tensor *t = &plan->tensors[i];
        if (t->leave_out_of_map) {
            continue;
        }
        char name[64];
        shard_name(plan, t->shard, name);
        json_write_key(&w, t->name);
        json_write_text(&w, t->shard == 0 && plan->shard_map != NULL ? plan->shard_map : name);
    }
    json_write_object_end(&w);
    json_write_object_end(&w);
    ASSERT(is_ok(json_writer_finish(&w)));
    test_file_write(directory, "model.safetensors.index.json", buffer_view(&text));
}

bool planned_write(
    const struct planned_checkpoint *plan, const char *directory, struct view config_text
) {
    test_file_write(directory, "config.json", config_text);
    for (uint32_t shard = 0; shard < plan->shards; shard++) {
        if (!write_shard(plan, shard, directory)) {
            return false;
        }
    }
    if (plan->shards > 1) {
        write_index(plan, directory);
    }
    return true;
}

void test_file_write(const char *directory, const char *name, struct view bytes) {
    char path[512];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    ASSERT(length > 0 && (size_t)length < sizeof path);
    CLEANUP(file_cleanup) FILE *file = fopen(path, "wb");
    ASSERT(file != NULL);
    ASSERT(fwrite(bytes.data, 1, bytes.length, file) == bytes.length);
}

void test_folder_make(char path[256]) {
    const char *parent = getenv("TMPDIR");
    int length = snprintf(
        path, 256, "%s/hearth-test-XXXXXX", parent == NULL || *parent == '\0' ? "/tmp" : parent
    );
    ASSERT(length > 0 && length < 256);
    ASSERT(mkdtemp(path) != NULL);
}

void test_folder_remove(const char *path) {
    DIR *folder = opendir(path);
    ASSERT(folder != NULL);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        int flags = entry->d_type == DT_DIR ? AT_REMOVEDIR : 0;
        ASSERT(unlinkat(dirfd(folder), entry->d_name, flags) == 0);
    }
    ASSERT(closedir(folder) == 0);
    ASSERT(rmdir(path) == 0);
}
