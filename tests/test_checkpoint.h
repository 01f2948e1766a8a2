/* Writes checkpoints of any configuration for tests: real headers, data that is a hole of zeros.
 *
 * Made from engine/weights.h, so that the released model's 510 GB take a few megabytes of disk. A
 * test changes the list of tensors before it is written to make a damaged checkpoint.
 */
#ifndef HEARTH_TESTS_TEST_CHECKPOINT_H
#define HEARTH_TESTS_TEST_CHECKPOINT_H

#include "engine/weights.h"

struct planned_tensor {
    char name[SAFETENSORS_NAME_MAX];
    const char *dtype;
    uint32_t rank;
    uint64_t shape[3];
    uint64_t bytes;
    uint32_t shard;
    bool leave_out;        /* of its shard; the index still names it */
    bool leave_out_of_map; /* of the index only */
};

struct planned_checkpoint {
    struct planned_tensor *tensors;
    size_t count, capacity;
    uint32_t shards;       /* more than 1: model-00001-of-... and an index */
    int64_t total_size;    /* for the index; -1: the true one */
    const char *shard_map; /* name the index gives for shard 0 instead of its own; may be null */
};

/* All tensors of the configuration; with `shards` > 1 block after block goes to the next shard. */
void planned_init(
    struct planned_checkpoint *plan, const struct model_config *config, uint32_t shards
);
void planned_deinit(struct planned_checkpoint *plan);
struct planned_tensor *planned_find(struct planned_checkpoint *plan, const char *name);

/* Writes config.json with the text given and the shards. False when the file system refuses files of
 * that size. */
bool planned_write(
    const struct planned_checkpoint *plan, const char *directory, struct view config_text
);

/* A fresh folder below the system's temporary one, and its removal with all that is in it. */
void test_folder_make(char path[256]);
void test_folder_remove(const char *path);
void test_file_write(const char *directory, const char *name, struct view bytes);

#endif
