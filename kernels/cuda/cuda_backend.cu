/* The CUDA backend: what the device is, opening and closing, faults, the op table.
 *
 * All of the CUDA runtime that this folder uses, beside launches; the emulation of
 * tests/cuda_emulation gives each of them another body:
 *   device   cudaGetDeviceCount cudaGetDeviceProperties cudaSetDevice cudaDriverGetVersion
 *            cudaRuntimeGetVersion cudaMemGetInfo cudaFuncGetAttributes cudaFuncSetAttribute
 *            cudaGetLastError cudaGetErrorString
 *   memory   cudaMalloc cudaFree cudaHostAlloc cudaFreeHost cudaHostGetDevicePointer
 *            cudaMemcpyAsync cudaMemsetAsync
 *   order    cudaStreamCreateWithFlags cudaStreamDestroy cudaStreamSynchronize
 *            cudaEventCreateWithFlags cudaEventDestroy cudaEventRecord cudaEventRecordWithFlags
 *            cudaEventSynchronize cudaEventElapsedTime
 *   steps    cudaStreamBeginCapture cudaStreamEndCapture cudaGraphInstantiateWithFlags
 *            cudaGraphLaunch cudaGraphDestroy cudaGraphExecDestroy
 */
#include "cuda_host.h"

#include "cuda_ceilings.h"
#include "cuda_device.cuh"

#include "kernels/backend_module.h"

#define CUDA_NUMERICS 1

/* ---- faults ----------------------------------------------------------------------------------- */

const char *cuda_op_name(enum cuda_op op) {
    static const char *const names[CUDA_OP_COUNT] = {
        "a copy",       "embed",         "stream_mix",    "stream_collapse", "stream_update",
        "norm",         "quantize",      "linear",        "rope_table",      "rotate",
        "window_pack",  "window_commit", "compress_pool", "entry_store",     "index_quantize",
        "index_select", "attention",     "route",         "experts",         "engram_gather",
        "engram_gate",  "keep_rows",
    };
    return (uint32_t)op < CUDA_OP_COUNT ? names[op] : "an unknown op";
}

cudaError_t cuda_fault(const struct cuda *cuda) {
    cudaError_t fault;
    __atomic_load(&cuda->fault, &fault, __ATOMIC_ACQUIRE); // pairs with cuda_keep_fault
    return fault;
}

/* Whether a status is what a running kernel, or the machine under it, did wrong. */
static bool is_of_a_kernel(cudaError_t status) {
    return status == cudaErrorECCUncorrectable || status == cudaErrorNvlinkUncorrectable ||
           (status >= cudaErrorIllegalAddress && status != cudaErrorLaunchOutOfResources);
}

void cuda_keep_fault(struct cuda *cuda, enum cuda_op op, cudaError_t status) {
    struct cuda_host *host = cuda->host;
    if (status == cudaSuccess) {
        return;
    }
    (void)pthread_mutex_lock(&host->lock);
    if (host->recording != NULL) {
        host->recording_failed = true; // the step comes again, unrecorded
    } else if (cuda->fault == cudaSuccess) {
        cuda->fault_op = is_of_a_kernel(status) ? (enum cuda_op) * cuda->mark_host : op;
        __atomic_store(&cuda->fault, &status, __ATOMIC_RELEASE); // its op first
    }
    (void)pthread_mutex_unlock(&host->lock);
}

result cuda_check_fault(struct cuda *cuda, struct error *error) {
    cudaError_t fault = cuda_fault(cuda);
    if (fault == cudaSuccess) {
        return OK;
    }
    FAIL_FOREIGN(
        error,
        DEVICE,
        (int)fault,
        "cuda: device fault in %s: %s",
        cuda_op_name(cuda->fault_op),
        cudaGetErrorString(fault)
    );
}

static result cuda_synchronize(struct backend *backend, struct error *error) {
    struct cuda *cuda = cuda_of(backend);
    if (cuda_fault(cuda) == cudaSuccess) {
        cuda_keep_fault(cuda, CUDA_OP_NONE, cudaStreamSynchronize(cuda->stream));
    }
    return cuda_check_fault(cuda, error);
}

/* ---- threads ---------------------------------------------------------------------------------- */

void cuda_lock(struct cuda *cuda) {
    int locked = pthread_mutex_lock(&cuda->host->lock);
    ASSERT(locked == 0);
    (void)cudaSetDevice(cuda->host->device); // the calling thread may be new to it
}

bool cuda_enter(struct cuda *cuda) {
    if (cuda_fault(cuda) != cudaSuccess) {
        return false;
    }
    cuda_lock(cuda);
    return true;
}

void cuda_leave(struct cuda *cuda) {
    int unlocked = pthread_mutex_unlock(&cuda->host->lock);
    ASSERT(unlocked == 0);
}

struct spread_job {
    backend_piece_function *piece;
    void *context;
};

static void spread_chunk(void *context, int32_t thread, int32_t chunk) {
    const struct spread_job *job = (const struct spread_job *)context;
    (void)thread;
    job->piece(job->context, chunk);
}

static void cuda_spread(
    struct backend *backend,
    backend_piece_function *piece,
    void *context,
    int32_t count,
    int64_t nanoseconds
) {
    struct spread_job job = {piece, context};
    cpu_team_run(cuda_of(backend)->host->team, spread_chunk, &job, count, nanoseconds);
}

/* ---- the device ------------------------------------------------------------------------------- */

/* Stands for all kernels: the machine has code for it or for none of them. */
__global__ void wake_kernel(struct mark mark, int32_t unused) {
    (void)unused;
    MARK(mark);
}

static result no_driver(struct error *error) {
    int driver = 0;
    int runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0) {
        FAIL(error, NOT_FOUND, "backend cuda: there is no NVIDIA driver");
    }
    FAIL(
        error,
        UNSUPPORTED,
        "backend cuda: the driver is too old: it goes up to CUDA %d.%d, this build needs %d.0",
        driver / 1000,
        driver % 1000 / 10,
        runtime / 1000
    );
}

/* Makes the device current for this thread and says what it is. */
static result find_device(int32_t device, struct cudaDeviceProp *properties, struct error *error) {
    int count = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver) {
        return no_driver(error);
    }
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
        FAIL(error, NOT_FOUND, "backend cuda: there is no NVIDIA GPU");
    }
    if (status == cudaSuccess && device >= count) {
        FAIL(error, UNSUPPORTED, "backend cuda: there is no device %d; GPUs: %d", device, count);
    }
    if (status == cudaSuccess) {
        status = cudaGetDeviceProperties(properties, device);
    }
    if (status == cudaSuccess) {
        status = cudaSetDevice(device);
    }
    struct cudaFuncAttributes attributes;
    if (status == cudaSuccess) {
        status = cudaFuncGetAttributes(&attributes, wake_kernel);
    }
    (void)cudaGetLastError();
    if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
        FAIL(
            error,
            UNSUPPORTED,
            "backend cuda: this build has no code for %s, sm_%d%d",
            properties->name,
            properties->major,
            properties->minor
        );
    }
    if (status != cudaSuccess) {
        FAIL_FOREIGN(
            error,
            UNSUPPORTED,
            (int)status,
            "backend cuda: device %d does not start: %s",
            device,
            cudaGetErrorString(status)
        );
    }
    return OK;
}

static result cuda_probe(int32_t device, struct backend_facts *out, struct error *error) {
    struct cudaDeviceProp properties;
    TRY(find_device(device, &properties, error));
    size_t free_bytes = 0;
    size_t total = 0;
    int driver = 0;
    cudaError_t status = cudaMemGetInfo(&free_bytes, &total);
    if (status == cudaSuccess) {
        status = cudaDriverGetVersion(&driver);
    }
    if (status != cudaSuccess) {
        FAIL(error, UNSUPPORTED, "backend cuda: %s", cudaGetErrorString(status));
    }
    struct backend_facts facts = {};
    int length = snprintf(
        facts.description,
        sizeof facts.description,
        "%.30s, sm_%d%d, driver %d.%d",
        properties.name,
        properties.major,
        properties.minor,
        driver / 1000,
        driver % 1000 / 10
    );
    ASSERT(length > 0 && (size_t)length < sizeof facts.description);
    facts.memory_total = total;
    facts.memory_free = free_bytes;
    *out = facts;
    return OK;
}

/* ---- life ------------------------------------------------------------------------------------- */

static void fill_ops(struct backend *backend) {
#define OP(name) backend->name = cuda_##name;
    BACKEND_OPS(OP)
#undef OP
}

static void cuda_close(struct backend *backend) {
    struct cuda *cuda = cuda_of(backend);
    struct cuda_host *host = cuda->host;
    if (host->has_lock) {
        cuda_step_forget(backend);
        cuda_stamps_close(cuda);
        cuda_release(backend, cuda->scratch);
        cuda_memory_close(cuda);
        (void)pthread_mutex_destroy(&host->lock);
    }
    if (cuda->mark_host != NULL) {
        (void)cudaFreeHost((void *)cuda->mark_host);
    }
    if (cuda->stream != NULL) {
        (void)cudaStreamDestroy(cuda->stream);
    }
    cpu_team_destroy(host->team);
    free(host);
    free(cuda);
}

static void fill_table(struct cuda *cuda) {
    struct backend *backend = &cuda->backend;
    backend->name = "cuda";
    backend->description = cuda->host->description;
    backend->numerics = CUDA_NUMERICS;
    backend->is_host_memory = false;
    backend->state = cuda;
    backend->close = cuda_close;
    backend->allocate = cuda_allocate;
    backend->allocate_host = cuda_allocate_host;
    backend->release = cuda_release;
    backend->upload = cuda_upload;
    backend->download = cuda_download;
    backend->copy = cuda_copy;
    backend->synchronize = cuda_synchronize;
    backend->step_begin = cuda_step_begin;
    backend->step_end = cuda_step_end;
    backend->step_forget = cuda_step_forget;
    backend->stamp = cuda_stamp;
    backend->stamp_seconds = cuda_stamp_seconds;
    backend->ceilings = cuda_ceilings;
    backend->spread = cuda_spread;
}

static uint64_t cuda_scratch_bytes(const struct backend_options *options) {
    size_t (*const parts[])(const struct backend_options *limits) = {
        cuda_linear_scratch,
        cuda_experts_scratch,
        cuda_index_scratch,
        cuda_attention_scratch,
        cuda_stream_scratch,
    };
    size_t most = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        size_t needed = parts[i](options);
        most = needed > most ? needed : most;
    }
    return most;
}

/* Stream, mark and lock: from here on faults are kept. */
static result open_stream(struct cuda *cuda, struct error *error) {
    struct cuda_host *host = cuda->host;
    void *mark = NULL;
    void *mark_device = NULL;
    cudaError_t status = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    if (status == cudaSuccess) {
        status = cudaHostAlloc(&mark, sizeof(uint32_t), cudaHostAllocMapped);
        cuda->mark_host = (volatile uint32_t *)mark;
    }
    if (status == cudaSuccess) {
        status = cudaHostGetDevicePointer(&mark_device, mark, 0);
        cuda->mark_device = (volatile uint32_t *)mark_device;
    }
    if (status != cudaSuccess) {
        FAIL_FOREIGN(
            error, DEVICE, (int)status, "cuda: cannot open a stream: %s", cudaGetErrorString(status)
        );
    }
    *cuda->mark_host = CUDA_OP_COUNT;
    pthread_mutexattr_t recursive;
    host->has_lock = pthread_mutexattr_init(&recursive) == 0 &&
                     pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE) == 0 &&
                     pthread_mutex_init(&host->lock, &recursive) == 0;
    ASSERT(host->has_lock);
    (void)pthread_mutexattr_destroy(&recursive);
    return OK;
}

/* Everything beside the two structs; what is there when it fails, cuda_close takes down. */
static result start(struct cuda *cuda, const struct backend_options *options, struct error *error) {
    struct cuda_host *host = cuda->host;
    int32_t threads = cpu_team_threads_for(options->threads);
    TRY(cpu_team_create(threads, &host->team, error));
    TRY(open_stream(cuda, error));
    TRY_NOTE(error, cuda_memory_open(cuda, error), "backend cuda: staging");
    cuda->scratch_bytes = cuda_scratch_bytes(options);
    TRY_NOTE(
        error,
        cuda_allocate(&cuda->backend, cuda->scratch_bytes, &cuda->scratch, error),
        "backend cuda: scratch memory"
    );
    CUDA_LAUNCH(cuda, CUDA_OP_NONE, wake_kernel, 1, 1, 0, 0);
    TRY_NOTE(error, cuda_synchronize(&cuda->backend, error), "backend cuda: its first kernel");
    if (*cuda->mark_host != CUDA_OP_NONE) {
        FAIL(error, DEVICE, "backend cuda: the host does not see what a kernel writes");
    }
    return OK;
}

/* Shapes that a kernel's shared memory has no room for. */
static result check_shapes(const struct backend_options *options, struct error *error) {
    if (options->head_dim > CUDA_HEAD_DIM_MAX) {
        FAIL(
            error,
            UNSUPPORTED,
            "backend cuda: heads of %d channels, its attention has at most %d",
            options->head_dim,
            CUDA_HEAD_DIM_MAX
        );
    }
    return OK;
}

static result
cuda_open(const struct backend_options *options, struct backend **out, struct error *error) {
    struct cudaDeviceProp properties;
    TRY(find_device(options->device, &properties, error));
    TRY(check_shapes(options, error));
    struct cuda *cuda = (struct cuda *)calloc(1, sizeof *cuda);
    struct cuda_host *host = (struct cuda_host *)calloc(1, sizeof *host);
    if (cuda == NULL || host == NULL) {
        free(cuda);
        free(host);
        FAIL(error, MEMORY, "backend cuda: out of memory");
    }
    cuda->host = host;
    cuda->limits = *options;
    cuda->limits.name = NULL; // borrowed strings are not kept
    cuda->limits.isa = NULL;
    cuda->multiprocessors = properties.multiProcessorCount;
    cuda->overlaps = CUDA_OVERLAP != 0 && properties.major >= 9;
    cuda->shared_bytes_max = (int32_t)properties.sharedMemPerBlockOptin;
    host->device = options->device;
    int length = snprintf(
        host->description,
        sizeof host->description,
        "cuda %.60s, sm_%d%d",
        properties.name,
        properties.major,
        properties.minor
    );
    ASSERT(length > 0 && (size_t)length < sizeof host->description);
    fill_table(cuda);
    fill_ops(&cuda->backend);
    result opened = start(cuda, options, error);
    if (is_failed(opened)) {
        cuda_close(&cuda->backend);
        return opened;
    }
    *out = &cuda->backend;
    return OK;
}

extern "C" __attribute__((visibility("default")))
const struct backend_module cuda_backend_module = {
    BACKEND_MODULE_VERSION, sizeof(struct backend), cuda_probe, cuda_open, cuda_scratch_bytes};
