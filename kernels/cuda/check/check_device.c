/* The device backend as programs open it: the module beside this program. */
#include "check.h"

const struct check_device check_device = {backend_open, backend_close};
