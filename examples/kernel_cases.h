/* Ops of the CPU backend with operands of random numbers, for programs that time them. Memory is never
 * given back. Thread: one. */
#ifndef HEARTH_EXAMPLES_KERNEL_CASES_H
#define HEARTH_EXAMPLES_KERNEL_CASES_H

#include "kernels/backend.h"

/* One thing to time. */
struct bench_case {
    char name[64];
    void (*run)(struct backend *backend, void *op);
    void *op;
    double flops;
    double bytes; /* weights or records read */
};

struct bench_case
linear_case(const char *what, enum dtype dtype, int32_t rows, int32_t in, int32_t out);
/* 16 experts in FP4 and a shared one in FP8. */
struct bench_case experts_case(int32_t rows, int32_t dim, int32_t hidden, int32_t chosen);
struct bench_case
attention_case(int32_t rows, int32_t heads, int32_t dim, int32_t window, int32_t topk);
struct bench_case
select_case(int32_t rows, int32_t heads, int32_t dim, int32_t topk, int32_t position);
struct bench_case mix_case(int32_t rows, int32_t dim);

/* With room for all of these up to 256 rows; null, and a line, without this instruction set. */
struct backend *bench_backend_open(const char *isa, int32_t threads);

#endif
