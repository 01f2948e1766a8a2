/* Inside model bench: an op table that stands before a backend's own and counts what each op does.
 *
 * While it is in place every op is stamped before and after (backend.stamp) or, in counting mode,
 * run as it is and its bytes and operations are added to the line of its label. Thread: the bench's.
 */
#ifndef HEARTH_ENGINE_MODEL_BENCH_OPS_H
#define HEARTH_ENGINE_MODEL_BENCH_OPS_H

#include "kernels/backend.h"
#include "model_bench.h"

#define METER_CALLS_MAX  4096 /* ops of one step */
#define METER_LABELS_MAX 96

struct meter_label {
    char text[MODEL_BENCH_LABEL];
    int32_t calls;
    double bytes, operations;
    double seconds;
};

enum meter_mode {
    METER_COUNT, /* adds bytes, operations and calls; ops run unrecorded */
    METER_STAMP  /* stamps around every op */
};

/* The state is one per process: an op finds it without an argument. */
void meter_attach(struct backend *backend, enum meter_mode mode);
/* Puts the backend's own table back. */
void meter_detach(struct backend *backend);
/* After a counted step: forget what was counted. */
void meter_reset(void);
/* Before each stamped step. */
void meter_begin_step(void);
/* After a stamped step and synchronize: seconds of each label. */
void meter_collect(struct backend *backend);
int32_t meter_label_count(void);
const struct meter_label *meter_label_get(int32_t index);

#endif
