/* The op table of one instruction set. */
#include "lanes.h"

#include "cpu.h"

void LANES(cpu_fill_table)(struct backend *backend) {
#define FILL(name) backend->name = LANES(cpu_##name);
    BACKEND_OPS(FILL)
#undef FILL
}
