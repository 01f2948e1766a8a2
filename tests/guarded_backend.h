/* A backend whose memory the host cannot touch, without a device: the CPU backend on pages that are
 * closed to everybody but while an op or a transfer runs.
 *
 * What a device would only show as wrong numbers or a fault shows here as a crash at the line: a host
 * that reads or writes device memory meets a closed page, and an op that is given an address which is
 * not of this backend's memory asserts. Steps of one key are recorded and replayed as a device's
 * graphs are, so that a key which does not cover what changes gives wrong bits.
 *
 * Tests link backend_choice.c: with HEARTH_TEST_BACKEND set (guarded, cuda) whatever would open the
 * CPU backend opens that one, unless it asks for an instruction set. Thread: as backend.h says.
 */
#ifndef HEARTH_TESTS_GUARDED_BACKEND_H
#define HEARTH_TESTS_GUARDED_BACKEND_H

#include "kernels/backend.h"

#define GUARDED_BACKEND_NAME "guarded"

/* Expected errors: those of the CPU backend. */
MUST_CHECK result guarded_backend_open(
    const struct backend_options *options, struct backend **out, struct error *error
);

/* How many steps ran, and how many of them from a record. */
struct guarded_counts {
    uint64_t recorded, replayed;
};
void guarded_backend_count(const struct backend *backend, struct guarded_counts *out);

#endif
