/* A library with modules that a loader must refuse, and one that it takes, for test_backend. */
#include "kernels/backend_module.h"

#define EXPORTED __attribute__((visibility("default")))

extern const struct backend_module fitting_module, older_module, larger_module;

EXPORTED const struct backend_module fitting_module = {
    .version = BACKEND_MODULE_VERSION, .backend_bytes = sizeof(struct backend)};
EXPORTED const struct backend_module older_module = {
    .version = BACKEND_MODULE_VERSION - 1, .backend_bytes = sizeof(struct backend)};
EXPORTED const struct backend_module larger_module = {
    .version = BACKEND_MODULE_VERSION, .backend_bytes = sizeof(struct backend) + sizeof(void *)};
