/* Loads a backend's library. It is never unloaded: a driver that it brought up does not survive that,
 * and loading it again gives the same. */
#include "backend_module.h"

#include <dlfcn.h>

result backend_module_load(
    const char *library, const char *symbol, const struct backend_module **out, struct error *error
) {
    ASSERT(library != NULL && symbol != NULL && out != NULL);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        FAIL(error, NOT_FOUND, "its library cannot be loaded: %s", dlerror());
    }
    const struct backend_module *module = dlsym(handle, symbol);
    if (module == NULL) {
        (void)dlclose(handle);
        FAIL(error, UNSUPPORTED, "its library is another one: %s has no '%s'", library, symbol);
    }
    if (module->version != BACKEND_MODULE_VERSION ||
        module->backend_bytes != sizeof(struct backend)) {
        unsigned version = module->version;
        (void)dlclose(handle);
        FAIL(
            error,
            UNSUPPORTED,
            "its library is of another build: %s has version %u, this program needs %u",
            library,
            version,
            BACKEND_MODULE_VERSION
        );
    }
    *out = module;
    return OK;
}
