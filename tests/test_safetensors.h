/* Stored vectors for tests: finds a data file, reads a safetensors file whole.
 *
 * For trusted test data only; the loader of models is engine/'s own. Thread: any.
 */
#ifndef HEARTH_TESTS_TEST_SAFETENSORS_H
#define HEARTH_TESTS_TEST_SAFETENSORS_H

#include "base/json.h"

#define TEST_PATH_MAX 1024

/* Path of a data file such as "golden/tiny-a/config.json": tests/data or build/test-data (what is packed) in the source tree, else
 * $HEARTH_TEST_DATA. False when neither has it. */
bool test_data_find(char path[TEST_PATH_MAX], const char *relative);
/* The same below $HEARTH_TEST_DATA only. */
bool test_data_find_outside(char path[TEST_PATH_MAX], const char *relative);

struct test_tensors {
    struct json_document *header;
    unsigned char *data; /* 64-byte aligned */
    size_t data_bytes;
};

struct test_tensor {
    struct view dtype; /* "BF16", "I64", ... */
    size_t dims[8];
    size_t rank;
    size_t count; /* product of dims */
    size_t bytes;
    const void *data; /* aligned for its dtype when the file's offsets are */
};

MUST_CHECK result
test_tensors_open(struct test_tensors *out, const char *path, struct error *error);
void test_tensors_close(struct test_tensors *tensors); /* for CLEANUP; accepts a zeroed one */
/* False when there is no such tensor. */
bool test_tensors_get(
    const struct test_tensors *tensors, const char *name, struct test_tensor *out
);

#endif
