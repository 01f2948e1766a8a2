/* The CUDA runtime API over host memory.
 *
 * A stream is a queue of closures that run when somebody must see their effects; recording a stream
 * puts them into a graph instead. A failed kernel makes every later call fail, as on a device. One lock
 * around everything: calls may come from any thread.
 */
#include "cuda_emulation_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <deque>
#include <map>
#include <mutex>
#include <vector>

#define QUEUE_MAX  4096 /* then it runs: arguments take memory */
#define PAGE_BYTES 4096

typedef std::function<void()> work;

struct cuda_emulation_graph {
    std::vector<work> nodes;
};

struct cuda_emulation_graph_exec {
    std::vector<work> nodes;
};

struct cuda_emulation_stream {
    bool blocking; /* ordered with the default stream */
    uint64_t enqueued, done;
    std::deque<work> queue;
    struct cuda_emulation_graph *capture; /* null: not recording */
    bool capture_broken;
};

struct cuda_emulation_event {
    struct cuda_emulation_stream *stream; /* null: never recorded */
    uint64_t after;                       /* so many of the stream's works */
    double seconds;                       /* when it was reached */
};

struct device_state {
    std::recursive_mutex mutex;
    struct cuda_emulation_stream null_stream = {true, 0, 0, {}, nullptr, false};
    std::vector<struct cuda_emulation_stream *> streams;
    std::map<const char *, size_t> device_memory, host_memory;
    std::map<const void *, size_t> shared_allowed;
    size_t allocated = 0;
    int open = 0; /* how many runs of work are under way: device memory may be touched */
    cudaError_t sticky = cudaSuccess; /* a faulty device stays so */
    cudaError_t last = cudaSuccess;
};

static struct device_state *device(void) {
    static struct device_state *state = new device_state; // never destroyed: exit order
    return state;
}

#define LOCKED std::lock_guard<std::recursive_mutex> locked(device()->mutex)

static size_t setting(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text == nullptr ? otherwise : (size_t)strtoull(text, nullptr, 10);
}

static size_t memory_total(void) {
    return setting("CUDA_EMULATION_MEMORY", (size_t)8 << 30);
}

static size_t shared_bytes_max(void) {
    return setting("CUDA_EMULATION_SHARED_BYTES", 232448); // sm_90; sm_80 166912, sm_120 101376
}

/* What a call returns: the device's fault goes before its own. */
static cudaError_t answer(cudaError_t status) {
    if (device()->sticky != cudaSuccess) {
        status = device()->sticky;
    }
    if (status != cudaSuccess && status != cudaErrorNotReady) {
        device()->last = status;
    }
    return status;
}

/* ---- device memory out of the host's reach ---- */

/* With CUDA_EMULATION_GUARD=1 pages of device memory fault while nothing runs on the device: host code
 * that looks into them ends there. */
static bool guarded(void) {
    static bool guard = setting("CUDA_EMULATION_GUARD", 0) != 0;
    return guard;
}

static void protect(int protection) {
    for (const auto &allocation : device()->device_memory) {
        size_t bytes = (allocation.second + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        if (mprotect((void *)allocation.first, bytes, protection) != 0) {
            perror("cuda emulation: mprotect");
            abort();
        }
    }
}

struct device_open {
    device_open() {
        if (guarded() && device()->open++ == 0) {
            protect(PROT_READ | PROT_WRITE);
        }
    }
    ~device_open() {
        if (guarded() && --device()->open == 0) {
            protect(PROT_NONE);
        }
    }
};

/* ---- streams ---- */

static struct cuda_emulation_stream *stream_of(cudaStream_t stream) {
    return stream == nullptr ? &device()->null_stream : stream;
}

static void run_until(struct cuda_emulation_stream *stream, uint64_t count) {
    if (stream->done >= count || stream->queue.empty()) {
        return;
    }
    struct device_open open;
    while (stream->done < count && !stream->queue.empty()) {
        work next = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->done++;
        if (device()->sticky == cudaSuccess) {
            next();
        }
    }
}

static void run_all(bool blocking_only) {
    run_until(&device()->null_stream, UINT64_MAX);
    for (struct cuda_emulation_stream *stream : device()->streams) {
        if (stream->blocking || !blocking_only) {
            run_until(stream, UINT64_MAX);
        }
    }
}

static bool any_capture(void) {
    for (struct cuda_emulation_stream *stream : device()->streams) {
        if (stream->capture != nullptr) {
            return true;
        }
    }
    return false;
}

/* Calls that wait or allocate may not come while a stream records. */
static bool break_captures(void) {
    bool broken = any_capture();
    for (struct cuda_emulation_stream *stream : device()->streams) {
        stream->capture_broken = stream->capture_broken || stream->capture != nullptr;
    }
    if (broken) {
        fprintf(stderr, "cuda emulation: a call that is not allowed while a stream records\n");
    }
    return broken;
}

static cudaError_t enqueue(cudaStream_t handle, work &&item) {
    struct cuda_emulation_stream *stream = stream_of(handle);
    if (stream->capture != nullptr) {
        stream->capture->nodes.push_back(std::move(item));
        return answer(cudaSuccess);
    }
    if (handle == nullptr) { // waits for the blocking streams, and they for it
        run_all(true);
        if (device()->sticky == cudaSuccess) {
            struct device_open open;
            item();
        }
        return answer(cudaSuccess);
    }
    stream->queue.push_back(std::move(item));
    stream->enqueued++;
    if (stream->queue.size() > QUEUE_MAX) {
        run_until(stream, UINT64_MAX);
    }
    return answer(cudaSuccess);
}

cudaError_t cuda_emulation_enqueue(cudaStream_t stream, struct cuda_emulation_launch &&launch) {
    LOCKED;
    struct dim3 grid = launch.grid;
    struct dim3 block = launch.block;
    size_t allowed = 48 << 10;
    auto found = device()->shared_allowed.find(launch.function);
    if (found != device()->shared_allowed.end() && found->second > allowed) {
        allowed = found->second;
    }
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffU || grid.y > 65535 ||
        grid.z > 65535 || threads == 0 || threads > 1024 || block.z > 64) {
        fprintf(
            stderr,
            "cuda emulation: %s %s: grid (%u, %u, %u), block (%u, %u, %u)\n",
            launch.op,
            launch.kernel,
            grid.x,
            grid.y,
            grid.z,
            block.x,
            block.y,
            block.z
        );
        return answer(cudaErrorInvalidConfiguration);
    }
    if (launch.shared_bytes > allowed) {
        fprintf(
            stderr,
            "cuda emulation: %s %s: %zu bytes of shared memory, allowed are %zu\n",
            launch.op,
            launch.kernel,
            launch.shared_bytes,
            allowed
        );
        return answer(cudaErrorInvalidValue);
    }
    return enqueue(stream, [launch = std::move(launch)] {
        if (!cuda_emulation_run(&launch)) {
            device()->sticky = cudaErrorLaunchFailure;
        }
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    LOCKED;
    *out =
        new cuda_emulation_stream{(flags & cudaStreamNonBlocking) == 0, 0, 0, {}, nullptr, false};
    device()->streams.push_back(*out);
    return answer(cudaSuccess);
}

cudaError_t cudaStreamCreate(cudaStream_t *out) {
    return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    LOCKED;
    run_until(stream, UINT64_MAX);
    std::vector<struct cuda_emulation_stream *> &all = device()->streams;
    for (size_t i = 0; i < all.size(); i++) {
        if (all[i] == stream) {
            all.erase(all.begin() + (long)i);
            break;
        }
    }
    delete stream->capture;
    delete stream;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    LOCKED;
    if (break_captures()) {
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    if (stream == nullptr) {
        run_all(true);
    } else {
        run_until(stream, UINT64_MAX);
    }
    return answer(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { // as if the device were done by now
    return cudaStreamSynchronize(stream);
}

cudaError_t cudaDeviceSynchronize(void) {
    LOCKED;
    if (break_captures()) {
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    run_all(false);
    return answer(cudaSuccess);
}

cudaError_t cudaDeviceReset(void) {
    return cudaDeviceSynchronize();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *context) {
    LOCKED;
    return enqueue(stream, [function, context] { function(context); });
}

/* ---- events ---- */

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    (void)flags;
    *out = new cuda_emulation_event{nullptr, 0, 0.0};
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

static void reach(struct cuda_emulation_event *event) {
    if (event->stream != nullptr) {
        run_until(event->stream, event->after);
    }
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    LOCKED;
    reach(event); // a record of it may still be queued
    delete event;
    return answer(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    LOCKED;
    struct cuda_emulation_stream *stream = stream_of(handle);
    cudaError_t status = enqueue(handle, [event] { event->seconds = now_seconds(); });
    event->stream = stream;
    event->after = stream->enqueued;
    return status;
}

/* Of the two ways to record an event while a stream records, only the one that a replay repeats. */
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
    LOCKED;
    if (stream_of(handle)->capture != nullptr && (flags & cudaEventRecordExternal) == 0) {
        break_captures();
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    return cudaEventRecord(event, handle);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    LOCKED;
    if (break_captures()) {
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    reach(event);
    return answer(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    LOCKED;
    reach(begin);
    reach(end);
    *milliseconds = (float)(1e3 * (end->seconds - begin->seconds));
    return answer(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    LOCKED;
    (void)flags;
    struct cuda_emulation_stream *other = event->stream;
    uint64_t after = event->after;
    if (other == nullptr) {
        return answer(cudaSuccess);
    }
    return enqueue(stream, [other, after] { run_until(other, after); });
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    LOCKED;
    (void)mode;
    if (stream == nullptr || stream->capture != nullptr) {
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    stream->capture = new cuda_emulation_graph;
    stream->capture_broken = false;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    LOCKED;
    if (stream->capture == nullptr) {
        return answer(cudaErrorInvalidValue);
    }
    struct cuda_emulation_graph *graph = stream->capture;
    stream->capture = nullptr;
    if (stream->capture_broken) {
        delete graph;
        *out = nullptr;
        return answer(cudaErrorStreamCaptureInvalidated);
    }
    *out = graph;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out) {
    LOCKED;
    struct cuda_emulation_stream *of = stream_of(stream);
    *out = of->capture == nullptr ? cudaStreamCaptureStatusNone
           : of->capture_broken   ? cudaStreamCaptureStatusInvalidated
                                  : cudaStreamCaptureStatusActive;
    return answer(cudaSuccess);
}

cudaError_t
cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    LOCKED;
    (void)flags;
    *out = new cuda_emulation_graph_exec{graph->nodes};
    return answer(cudaSuccess);
}

cudaError_t
cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiate(out, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream) {
    (void)graph;
    (void)stream;
    LOCKED;
    return answer(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    LOCKED;
    std::vector<work> nodes = graph->nodes;
    return enqueue(stream, [nodes = std::move(nodes)] {
        for (const work &node : nodes) {
            if (device()->sticky == cudaSuccess) {
                node();
            }
        }
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
    delete graph;
    return cudaSuccess;
}

/* ---- memory ---- */

static bool lies_in(const std::map<const char *, size_t> &all, const void *memory, size_t bytes) {
    const char *at = (const char *)memory;
    auto after = all.upper_bound(at);
    if (after == all.begin()) {
        return false;
    }
    --after;
    return at + bytes <= after->first + after->second;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    LOCKED;
    if (break_captures()) {
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    if (bytes > memory_total() || device()->allocated > memory_total() - bytes) {
        return answer(cudaErrorMemoryAllocation);
    }
    *out = nullptr;
    if (bytes == 0) {
        return answer(cudaSuccess);
    }
    // As long as asked for, so that the address sanitizer sees its end; or whole pages.
    size_t taken = guarded() ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : bytes;
    if (posix_memalign(out, guarded() ? PAGE_BYTES : 256, taken) != 0) {
        return answer(cudaErrorMemoryAllocation);
    }
    memset(*out, 0xFF, bytes);
    struct device_open open; // closes the new one as well
    device()->device_memory[(const char *)*out] = bytes;
    device()->allocated += bytes;
    return answer(cudaSuccess);
}

cudaError_t cudaFree(void *memory) {
    LOCKED;
    if (memory == nullptr) {
        return answer(cudaSuccess);
    }
    run_all(false);
    auto found = device()->device_memory.find((const char *)memory);
    if (found == device()->device_memory.end()) {
        fprintf(stderr, "cuda emulation: cudaFree of what cudaMalloc did not give\n");
        return answer(cudaErrorInvalidValue);
    }
    struct device_open open;
    device()->allocated -= found->second;
    device()->device_memory.erase(found);
    free(memory);
    return answer(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    LOCKED;
    (void)flags;
    if (posix_memalign(out, 4096, bytes) != 0) {
        return answer(cudaErrorMemoryAllocation);
    }
    memset(*out, 0xFF, bytes);
    device()->host_memory[(const char *)*out] = bytes;
    return answer(cudaSuccess);
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
    return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *memory) {
    LOCKED;
    if (memory == nullptr) {
        return answer(cudaSuccess);
    }
    run_all(false);
    if (device()->host_memory.erase((const char *)memory) == 0) {
        return answer(cudaErrorInvalidValue);
    }
    free(memory);
    return answer(cudaSuccess);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags) {
    LOCKED;
    (void)flags;
    if (!lies_in(device()->host_memory, host, 1)) {
        return answer(cudaErrorInvalidValue);
    }
    *out = host;
    return answer(cudaSuccess);
}

cudaError_t cudaHostRegister(void *host, size_t bytes, unsigned flags) {
    LOCKED;
    (void)flags;
    if (lies_in(device()->host_memory, host, 1)) {
        return answer(cudaErrorHostMemoryAlreadyRegistered);
    }
    device()->host_memory[(const char *)host] = bytes;
    return answer(cudaSuccess);
}

cudaError_t cudaHostUnregister(void *host) {
    LOCKED;
    run_all(false);
    bool found = device()->host_memory.erase((const char *)host) != 0;
    return answer(found ? cudaSuccess : cudaErrorInvalidValue);
}

/* Device memory is known by its address, so a wrong direction shows. */
static bool
direction_is_right(const void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    bool to_device = lies_in(device()->device_memory, to, bytes);
    bool from_device = lies_in(device()->device_memory, from, bytes);
    bool host_pinned_to = lies_in(device()->host_memory, to, bytes);
    bool host_pinned_from = lies_in(device()->host_memory, from, bytes);
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return (to_device || host_pinned_to) && !from_device;
    case cudaMemcpyDeviceToHost:
        return (from_device || host_pinned_from) && !to_device;
    case cudaMemcpyDeviceToDevice:
        return (from_device || host_pinned_from) && (to_device || host_pinned_to);
    case cudaMemcpyDefault:
        break;
    }
    return true;
}

static cudaError_t refuse_copy(const char *call) {
    fprintf(
        stderr, "cuda emulation: %s: memory of the wrong side, or outside its allocation\n", call
    );
    return answer(cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream
) {
    LOCKED;
    if (bytes == 0) {
        return answer(cudaSuccess);
    }
    if (!direction_is_right(to, from, bytes, kind)) {
        return refuse_copy("cudaMemcpyAsync");
    }
    bool from_known = lies_in(device()->device_memory, from, bytes) ||
                      lies_in(device()->host_memory, from, bytes);
    bool to_known =
        lies_in(device()->device_memory, to, bytes) || lies_in(device()->host_memory, to, bytes);
    if (from_known && to_known) {
        return enqueue(stream, [to, from, bytes] { memmove(to, from, bytes); });
    }
    if (stream_of(stream)->capture != nullptr) { // the copy would be recorded with what was there
        break_captures();
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    if (to_known) { // pageable memory is read before the call returns
        std::vector<char> kept((const char *)from, (const char *)from + bytes);
        return enqueue(stream, [to, kept = std::move(kept)] {
            memcpy(to, kept.data(), kept.size());
        });
    }
    run_until(stream_of(stream), UINT64_MAX); // and written before it does
    if (device()->sticky == cudaSuccess) {
        struct device_open open;
        memmove(to, from, bytes);
    }
    return answer(cudaSuccess);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    LOCKED;
    if (break_captures()) {
        return answer(cudaErrorStreamCaptureUnsupported);
    }
    if (bytes > 0 && !direction_is_right(to, from, bytes, kind)) {
        return refuse_copy("cudaMemcpy");
    }
    run_all(true);
    if (bytes > 0 && device()->sticky == cudaSuccess) {
        struct device_open open;
        memmove(to, from, bytes);
    }
    return answer(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    LOCKED;
    if (bytes == 0) {
        return answer(cudaSuccess);
    }
    if (!direction_is_right(to, to, bytes, cudaMemcpyDeviceToDevice)) {
        return refuse_copy("cudaMemsetAsync");
    }
    return enqueue(stream, [to, byte, bytes] { memset(to, byte, bytes); });
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes) {
    return cudaMemsetAsync(to, byte, bytes, nullptr);
}

/* ---- the device ---- */

cudaError_t cudaGetLastError(void) {
    LOCKED;
    cudaError_t status = device()->sticky != cudaSuccess ? device()->sticky : device()->last;
    device()->last = cudaSuccess;
    return status;
}

cudaError_t cudaPeekAtLastError(void) {
    LOCKED;
    return device()->sticky != cudaSuccess ? device()->sticky : device()->last;
}

struct error_text {
    cudaError_t status;
    const char *name, *text;
};

static const struct error_text error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration,
     "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported,
     "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated,
     "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};

static const struct error_text *error_text_of(cudaError_t status) {
    static const struct error_text unknown = {
        cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
    for (const struct error_text &entry : error_texts) {
        if (entry.status == status) {
            return &entry;
        }
    }
    return &unknown;
}

const char *cudaGetErrorString(cudaError_t status) {
    return error_text_of(status)->text;
}

const char *cudaGetErrorName(cudaError_t status) {
    return error_text_of(status)->name;
}

static int driver_version(void) {
    return (int)setting("CUDA_EMULATION_DRIVER", CUDART_VERSION);
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = (int)setting("CUDA_EMULATION_DEVICES", 1);
    if (driver_version() < CUDART_VERSION) {
        return cudaErrorInsufficientDriver;
    }
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDevice(int *out) {
    *out = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) {
    LOCKED;
    int count = 0;
    cudaGetDeviceCount(&count);
    return answer(ordinal >= 0 && ordinal < count ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal) {
    cudaError_t status = cudaSetDevice(ordinal);
    if (status != cudaSuccess) {
        return status;
    }
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "emulated on the CPU");
    properties->totalGlobalMem = memory_total();
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = shared_bytes_max();
    properties->sharedMemPerMultiprocessor = shared_bytes_max() + 1024;
    properties->major = (int)setting("CUDA_EMULATION_ARCHITECTURE", 90) / 10;
    properties->minor = (int)setting("CUDA_EMULATION_ARCHITECTURE", 90) % 10;
    properties->multiProcessorCount = (int)setting("CUDA_EMULATION_MULTIPROCESSORS", 3);
    properties->maxThreadsPerBlock = 1024;
    properties->l2CacheSize = 50 << 20;
    properties->canMapHostMemory = 1;
    properties->unifiedAddressing = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int ordinal) {
    struct cudaDeviceProp properties;
    cudaError_t status = cudaGetDeviceProperties(&properties, ordinal);
    if (status != cudaSuccess) {
        return status;
    }
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = properties.maxThreadsPerBlock;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = (int)properties.sharedMemPerBlock;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = properties.multiProcessorCount;
        break;
    case cudaDevAttrL2CacheSize:
        *value = properties.l2CacheSize;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2048;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = properties.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = properties.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)properties.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)properties.sharedMemPerBlockOptin;
        break;
    }
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver_version();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    LOCKED;
    *total_bytes = memory_total();
    *free_bytes = memory_total() - device()->allocated;
    return answer(cudaSuccess);
}

cudaError_t
cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    LOCKED;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) {
        return answer(cudaSuccess);
    }
    if (value < 0 || (size_t)value > shared_bytes_max()) {
        return answer(cudaErrorInvalidValue);
    }
    device()->shared_allowed[function] = (size_t)value;
    return answer(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
    LOCKED;
    if (setting("CUDA_EMULATION_ARCHITECTURE", 90) != 90) {
        return answer(cudaErrorNoKernelImageForDevice);
    }
    auto found = device()->shared_allowed.find(function);
    out->maxThreadsPerBlock = 1024;
    out->maxDynamicSharedSizeBytes =
        found == device()->shared_allowed.end() ? 48 << 10 : (int)found->second;
    return answer(cudaSuccess);
}
