/* Found in place of the CUDA toolkit's header when kernels are built for the emulation. */
#include "cuda_emulation.h"
