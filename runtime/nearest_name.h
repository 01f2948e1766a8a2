/* What somebody may have meant who wrote a name that is not known: for keys and commands. Thread: any. */
#ifndef HEARTH_RUNTIME_NEAREST_NAME_H
#define HEARTH_RUNTIME_NEAREST_NAME_H

#include "base/bytes.h"

/* The known name closest to a wrong one, null when none is near. names: [count]. The end of a name of several
 * parts counts as near: "max_bytes" for "instructions.max_bytes". */
const char *nearest_name(struct view wrong, const char *const *names, size_t count);

#endif
