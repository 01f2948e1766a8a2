/* Memory of the CUDA backend and the ways in and out of it.
 *
 * Everything that moves is in the order of the one stream. Pages of the host that are not pinned go
 * through staging of our own: an upload is copied into a pinned slot before it returns, so that its
 * source may be reused, and waits only when the ring of slots has gone round; a download waits for
 * what it fetches, and goes straight into memory of cuda_allocate_host. A faulty device moves nothing more; downloads then give zeros, and synchronize
 * says why.
 */
#include "cuda_host.h"

#include <unistd.h>

#define ALIGNMENT ((size_t)256)

static void keep(struct cuda *cuda, cudaError_t status) {
    cuda_keep_fault(cuda, CUDA_OP_NONE, status);
}

/* ---- allocations ------------------------------------------------------------------------------ */

/* Room in the list for one more, so that a success need not be undone. */
static bool reserve_allocation(struct cuda_host *host) {
    if (host->allocation_count < host->allocations_max) {
        return true;
    }
    int32_t more = host->allocations_max == 0 ? 16 : 2 * host->allocations_max;
    void *grown = realloc(host->allocations, (size_t)more * sizeof *host->allocations);
    if (grown == NULL) {
        return false;
    }
    host->allocations = (struct cuda_allocation *)grown;
    host->allocations_max = more;
    return true;
}

static result out_of_memory(struct cuda *cuda, bool is_host, size_t bytes, struct error *error) {
    (void)cudaGetLastError(); // or the next launch would find it
    if (is_host) {
        uint64_t pages = (uint64_t)sysconf(_SC_AVPHYS_PAGES);
        FAIL(
            error,
            MEMORY,
            "cuda: cannot allocate %zu bytes of pinned host memory, %llu are free",
            bytes,
            (unsigned long long)(pages * (uint64_t)sysconf(_SC_PAGESIZE))
        );
    }
    size_t free_bytes = 0;
    size_t total = 0;
    (void)cudaMemGetInfo(&free_bytes, &total);
    FAIL(
        error,
        MEMORY,
        "cuda: cannot allocate %zu bytes of device memory: of %zu, %zu are free, %zu taken before",
        bytes,
        total,
        free_bytes,
        cuda->host->device_bytes
    );
}

static result
allocate(struct cuda *cuda, size_t bytes, bool is_host, void **out, struct error *error) {
    struct cuda_host *host = cuda->host;
    if (bytes > SIZE_MAX / 2 || !reserve_allocation(host)) {
        return out_of_memory(cuda, is_host, bytes, error);
    }
    size_t taken = bytes == 0 ? 1 : bytes; // or the answer would be null
    void *memory = NULL;
    cudaError_t status =
        is_host ? cudaHostAlloc(&memory, taken, cudaHostAllocMapped) : cudaMalloc(&memory, taken);
    if (status == cudaErrorMemoryAllocation) {
        return out_of_memory(cuda, is_host, bytes, error);
    }
    keep(cuda, status);
    if (status == cudaSuccess && is_host) {
        memset(memory, 0, taken);
    } else if (status == cudaSuccess) {
        host->device_bytes += taken;
        keep(cuda, cudaMemsetAsync(memory, 0, taken, cuda->stream));
    }
    if (memory != NULL) {
        struct cuda_allocation made = {memory, taken, is_host};
        host->allocations[host->allocation_count++] = made;
    }
    TRY(cuda_check_fault(cuda, error));
    *out = memory;
    return OK;
}

static result locked_allocate(
    struct backend *backend, size_t bytes, bool is_host, void **out, struct error *error
) {
    struct cuda *cuda = cuda_of(backend);
    if (!cuda_enter(cuda)) {
        return cuda_check_fault(cuda, error);
    }
    ASSERT(cuda->host->recording == NULL);
    result allocated = allocate(cuda, bytes, is_host, out, error);
    cuda_leave(cuda);
    return allocated;
}

result cuda_allocate(struct backend *backend, size_t bytes, void **out, struct error *error) {
    return locked_allocate(backend, bytes, false, out, error);
}

/* The device reaches it under the same address. */
result cuda_allocate_host(struct backend *backend, size_t bytes, void **out, struct error *error) {
    return locked_allocate(backend, bytes, true, out, error);
}

void cuda_release(struct backend *backend, void *memory) {
    struct cuda *cuda = cuda_of(backend);
    struct cuda_host *host = cuda->host;
    if (memory == NULL) {
        return;
    }
    cuda_lock(cuda); // a faulty device's too
    ASSERT(host->recording == NULL);
    keep(cuda, cudaStreamSynchronize(cuda->stream)); // ops may still use it
    int32_t at = 0;
    while (at < host->allocation_count && host->allocations[at].memory != memory) {
        at++;
    }
    ASSERT(at < host->allocation_count);
    struct cuda_allocation gone = host->allocations[at];
    host->allocations[at] = host->allocations[--host->allocation_count];
    if (gone.is_host) {
        (void)cudaFreeHost(gone.memory); // fails on a faulty device only, like the next
    } else {
        host->device_bytes -= gone.bytes;
        (void)cudaFree(gone.memory);
    }
    cuda_leave(cuda);
}

/* ---- transfers -------------------------------------------------------------------------------- */

/* Goes on to the next slot of the ring, once the device has read what it held. */
static void next_slot(struct cuda *cuda) {
    struct cuda_host *host = cuda->host;
    struct cuda_upload_slot *full = &host->slots[host->slot];
    keep(cuda, cudaEventRecord(full->read, cuda->stream));
    full->is_marked = true;
    host->slot = (host->slot + 1) % CUDA_UPLOAD_SLOTS;
    host->slot_used = 0;
    if (host->slots[host->slot].is_marked) {
        keep(cuda, cudaEventSynchronize(host->slots[host->slot].read));
        host->slots[host->slot].is_marked = false;
    }
}

void cuda_upload(struct backend *backend, void *to, const void *from, size_t bytes) {
    struct cuda *cuda = cuda_of(backend);
    struct cuda_host *host = cuda->host;
    if (bytes == 0 || !cuda_enter(cuda)) {
        return;
    }
    ASSERT(host->recording == NULL);
    const unsigned char *source = (const unsigned char *)from;
    unsigned char *target = (unsigned char *)to;
    while (bytes > 0 && cuda_fault(cuda) == cudaSuccess) {
        size_t room = CUDA_UPLOAD_SLOT_BYTES - host->slot_used;
        if (room == 0 || (bytes > room && bytes <= CUDA_UPLOAD_SLOT_BYTES)) {
            next_slot(cuda);
            room = CUDA_UPLOAD_SLOT_BYTES;
        }
        size_t piece = bytes < room ? bytes : room;
        unsigned char *staged = host->slots[host->slot].memory + host->slot_used;
        memcpy(staged, source, piece);
        keep(cuda, cudaMemcpyAsync(target, staged, piece, cudaMemcpyHostToDevice, cuda->stream));
        host->slot_used += (piece + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        source += piece;
        target += piece;
        bytes -= piece;
    }
    cuda_leave(cuda);
}

/* Enqueues the fetch of a piece into pinned memory; the event `half` is behind it. */
static void
fetch(struct cuda *cuda, int half, void *pinned, const unsigned char *from, size_t bytes) {
    keep(cuda, cudaMemcpyAsync(pinned, from, bytes, cudaMemcpyDeviceToHost, cuda->stream));
    keep(cuda, cudaEventRecord(cuda->host->download_done[half], cuda->stream));
}

/* Whether the device may write there itself. */
static bool is_pinned(const struct cuda_host *host, const unsigned char *memory, size_t bytes) {
    for (int32_t i = 0; i < host->allocation_count; i++) {
        const struct cuda_allocation *one = &host->allocations[i];
        size_t at =
            (size_t)((uintptr_t)memory - (uintptr_t)one->memory); // huge when it lies before
        if (one->is_host && at < one->bytes && bytes <= one->bytes - at) {
            return true;
        }
    }
    return false;
}

/* By way of the halves. */
static void download_staged(
    struct cuda *cuda, unsigned char *target, const unsigned char *source, size_t bytes
) {
    size_t fetched = bytes < CUDA_DOWNLOAD_BYTES ? bytes : CUDA_DOWNLOAD_BYTES;
    size_t done = 0;
    fetch(cuda, 0, cuda->host->download[0], source, fetched);
    for (int half = 0; done < bytes; half = 1 - half) {
        size_t here = fetched - done;
        size_t rest = bytes - fetched;
        size_t next = rest < CUDA_DOWNLOAD_BYTES ? rest : CUDA_DOWNLOAD_BYTES;
        if (next > 0) {
            fetch(cuda, 1 - half, cuda->host->download[1 - half], source + fetched, next);
        }
        keep(cuda, cudaEventSynchronize(cuda->host->download_done[half]));
        if (cuda_fault(cuda) != cudaSuccess) {
            memset(target + done, 0, bytes - done);
            break;
        }
        memcpy(target + done, cuda->host->download[half], here);
        done += here;
        fetched += next;
    }
}

void cuda_download(struct backend *backend, void *to, const void *from, size_t bytes) {
    struct cuda *cuda = cuda_of(backend);
    const unsigned char *source = (const unsigned char *)from;
    unsigned char *target = (unsigned char *)to;
    if (bytes == 0) {
        return;
    }
    if (!cuda_enter(cuda)) {
        memset(to, 0, bytes);
        return;
    }
    ASSERT(cuda->host->recording == NULL);
    if (is_pinned(cuda->host, target, bytes)) {
        fetch(cuda, 0, target, source, bytes);
        keep(cuda, cudaEventSynchronize(cuda->host->download_done[0]));
        if (cuda_fault(cuda) != cudaSuccess) {
            memset(target, 0, bytes);
        }
    } else {
        download_staged(cuda, target, source, bytes);
    }
    cuda_leave(cuda);
}

void cuda_copy(struct backend *backend, void *to, const void *from, size_t bytes) {
    struct cuda *cuda = cuda_of(backend);
    if (bytes > 0 && cuda_enter(cuda)) {
        keep(cuda, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->stream));
        cuda_leave(cuda);
    }
}

/* ---- staging ---------------------------------------------------------------------------------- */

result cuda_memory_open(struct cuda *cuda, struct error *error) {
    struct cuda_host *host = cuda->host;
    size_t bytes = CUDA_UPLOAD_SLOTS * CUDA_UPLOAD_SLOT_BYTES + 2 * CUDA_DOWNLOAD_BYTES;
    if (cudaHostAlloc((void **)&host->pinned, bytes, cudaHostAllocDefault) != cudaSuccess) {
        return out_of_memory(cuda, true, bytes, error);
    }
    for (int32_t i = 0; i < CUDA_UPLOAD_SLOTS; i++) {
        host->slots[i].memory = host->pinned + (size_t)i * CUDA_UPLOAD_SLOT_BYTES;
        keep(cuda, cudaEventCreateWithFlags(&host->slots[i].read, cudaEventDisableTiming));
    }
    for (int i = 0; i < 2; i++) {
        host->download[i] = host->pinned + CUDA_UPLOAD_SLOTS * CUDA_UPLOAD_SLOT_BYTES +
                            (size_t)i * CUDA_DOWNLOAD_BYTES;
        keep(cuda, cudaEventCreateWithFlags(&host->download_done[i], cudaEventDisableTiming));
    }
    return cuda_check_fault(cuda, error);
}

static void destroy_event(cudaEvent_t event) {
    if (event != NULL) {
        (void)cudaEventDestroy(event);
    }
}

void cuda_memory_close(struct cuda *cuda) {
    struct cuda_host *host = cuda->host;
    for (int32_t i = 0; i < CUDA_UPLOAD_SLOTS; i++) {
        destroy_event(host->slots[i].read);
    }
    for (int i = 0; i < 2; i++) {
        destroy_event(host->download_done[i]);
    }
    if (host->pinned != NULL) {
        (void)cudaFreeHost(host->pinned);
    }
    free(host->allocations); // the list; what was not released leaks, as on the CPU
}
