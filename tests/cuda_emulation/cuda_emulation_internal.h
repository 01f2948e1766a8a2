/* What the files of the emulation know of each other. */
#ifndef HEARTH_TESTS_CUDA_EMULATION_INTERNAL_H
#define HEARTH_TESTS_CUDA_EMULATION_INTERNAL_H

#include "cuda_emulation.h"
#include "cuda_emulation_device.h"

/* All static __shared__ variables of this program or library: the linker names the ends of the
 * section. Weak: there may be none. */
extern "C" {
extern char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));
}

/* Fills them with bytes 0xFF, as NaNs and wild indices: nobody may read what it has not written. */
void cuda_emulation_spoil_shared(void);

#endif
