/* What the two files of experts checks share. */
#ifndef HEARTH_KERNELS_CUDA_CHECK_CHECK_EXPERTS_H
#define HEARTH_KERNELS_CUDA_CHECK_CHECK_EXPERTS_H

#include "check.h"

/* The shared expert's matrices are named in host memory: they travel beside the op. */
struct experts_call {
    struct experts_op op;
    struct expert_weights shared;
};

void check_call_experts(struct backend *backend, const void *experts_call);

/* Compares the call that was just run with the CPU's, stage by stage: hidden rows, down products and
 * their sums. It runs parts of it, so identity of the whole is checked before. */
void check_experts_stages(struct check *check, const struct experts_call *call);

#endif
