/* The host's side of the CUDA backend: memory, staging, recorded steps. For cuda_backend.cu,
 * cuda_memory.cu and cuda_steps.cu; kernels and launchers see cuda.h alone.
 *
 * `lock` guards the fields below it and whatever goes onto the stream by other hands than the
 * launchers': while a step is recorded its thread holds the lock, so that no copy of another thread
 * lands in the record. It is recursive: a recorded step may copy.
 */
#ifndef HEARTH_KERNELS_CUDA_HOST_H
#define HEARTH_KERNELS_CUDA_HOST_H

#include "cuda.h"

#include "kernels/cpu/cpu_team.h"

#include <pthread.h>

/* Uploads go through a ring of pinned slots: the device fetches from some while others fill. */
#define CUDA_UPLOAD_SLOTS      8
#define CUDA_UPLOAD_SLOT_BYTES ((size_t)4 << 20)
/* Downloads through two halves: one is copied out while the device fills the other. */
#define CUDA_DOWNLOAD_BYTES ((size_t)4 << 20)
/* Recorded steps; each takes about a megabyte of the device. One is needed per number of sequences
 * that decode together, so this covers the batches of a busy engine; others run unrecorded. */
#define CUDA_STEPS_MAX 64

struct cuda_allocation {
    void *memory;
    size_t bytes;
    bool is_host;
};

struct cuda_upload_slot {
    unsigned char *memory; /* pinned */
    cudaEvent_t read;      /* the device has read all that was put there */
    bool is_marked;        /* the event was recorded */
};

struct cuda_step {
    uint64_t key;
    uint64_t used;            /* when; the oldest gives its place away */
    cudaGraphExec_t recorded; /* null: seen once */
};

struct cuda_host {
    int32_t device;
    char description[96];
    struct cpu_team *team;
    unsigned char *pinned; /* all staging */

    pthread_mutex_t lock;
    bool has_lock;
    struct cuda_allocation *allocations;
    int32_t allocation_count, allocations_max;
    size_t device_bytes; /* of all allocations there */

    struct cuda_upload_slot slots[CUDA_UPLOAD_SLOTS];
    int32_t slot;
    size_t slot_used;
    unsigned char *download[2]; /* pinned */
    cudaEvent_t download_done[2];

    struct cuda_step steps[CUDA_STEPS_MAX];
    int32_t step_count;
    uint64_t step_clock;
    struct cuda_step *recording; /* null: none */
    bool recording_failed;
    bool never_record; /* recording failed once: this driver cannot, or memory is too short */

    cudaEvent_t stamps[BACKEND_STAMPS_MAX]; /* null: not used yet */
};

/* Takes the lock and makes the device current for the thread. */
void cuda_lock(struct cuda *cuda);
/* The same; false, lock not taken, once the device is faulty: nothing is enqueued any more. */
bool cuda_enter(struct cuda *cuda);
void cuda_leave(struct cuda *cuda);

/* cuda_memory.cu: the table's memory functions. */
result cuda_memory_open(struct cuda *cuda, struct error *error);
void cuda_memory_close(struct cuda *cuda);
result cuda_allocate(struct backend *backend, size_t bytes, void **out, struct error *error);
result cuda_allocate_host(struct backend *backend, size_t bytes, void **out, struct error *error);
void cuda_release(struct backend *backend, void *memory);
void cuda_upload(struct backend *backend, void *to, const void *from, size_t bytes);
void cuda_download(struct backend *backend, void *to, const void *from, size_t bytes);
void cuda_copy(struct backend *backend, void *to, const void *from, size_t bytes);

/* cuda_steps.cu */
bool cuda_step_begin(struct backend *backend, uint64_t key);
bool cuda_step_end(struct backend *backend);
void cuda_step_forget(struct backend *backend);
void cuda_stamp(struct backend *backend, int32_t number);
double cuda_stamp_seconds(struct backend *backend, int32_t from, int32_t to);
void cuda_stamps_close(struct cuda *cuda);

/* The fault, and whether there is one; a thread that finds one may read fault_op. */
cudaError_t cuda_fault(const struct cuda *cuda);
/* Fails with DEVICE when there is one. */
result cuda_check_fault(struct cuda *cuda, struct error *error);

#endif
