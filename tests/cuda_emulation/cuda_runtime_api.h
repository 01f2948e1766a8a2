/* Found in place of the CUDA toolkit's header when kernels are built for the emulation. */
#ifndef HEARTH_TESTS_CUDA_RUNTIME_API_H
#define HEARTH_TESTS_CUDA_RUNTIME_API_H

#include "cuda_emulation.h"

#endif
