/* HEARTH_TEST_BACKEND: what the program's calls for the CPU backend open instead, by the linker's
 * --wrap, so that nothing in the program knows of it. See guarded_backend.h. */
#include <stdlib.h>

#include "guarded_backend.h"

result __real_backend_open(
    const struct backend_options *options, struct backend **out, struct error *error
);
result __wrap_backend_open(
    const struct backend_options *options, struct backend **out, struct error *error
);

result __wrap_backend_open(
    const struct backend_options *options, struct backend **out, struct error *error
) {
    const char *chosen = getenv("HEARTH_TEST_BACKEND");
    bool is_cpu = options->name == NULL || strcmp(options->name, "cpu") == 0;
    if (chosen == NULL || !is_cpu || options->isa != NULL) {
        return __real_backend_open(options, out, error);
    }
    if (strcmp(chosen, GUARDED_BACKEND_NAME) == 0) {
        return guarded_backend_open(options, out, error);
    }
    struct backend_options other = *options;
    other.name = chosen;
    return __real_backend_open(&other, out, error);
}
