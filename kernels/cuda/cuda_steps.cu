/* Recorded steps: a decode step is a thousand small launches, and one graph launch stands for them.
 *
 * A key is run plainly when it is first seen and recorded when it comes again: shapes that come once
 * cost nothing, and the kernels of a recorded step are all loaded. Recording captures what the
 * launchers enqueue; it does not run, so the record is launched at the end. When a recording fails,
 * nothing of the step ran, the caller is told so, and no other is tried: a driver that cannot, or
 * memory too short for records, stays so.
 */
#include "cuda_host.h"

static struct cuda_step *find_step(struct cuda_host *host, uint64_t key) {
    for (int32_t i = 0; i < host->step_count; i++) {
        if (host->steps[i].key == key) {
            return &host->steps[i];
        }
    }
    return NULL;
}

/* Of a record that no launch is under way for. */
static void drop_record(struct cuda *cuda, struct cuda_step *step) {
    if (step->recorded != NULL) {
        cuda_keep_fault(cuda, CUDA_OP_NONE, cudaGraphExecDestroy(step->recorded));
        step->recorded = NULL;
    }
}

/* A place for a key that was not seen lately. */
static struct cuda_step *take_step(struct cuda *cuda, uint64_t key) {
    struct cuda_host *host = cuda->host;
    struct cuda_step *step = &host->steps[0];
    if (host->step_count < CUDA_STEPS_MAX) {
        step = &host->steps[host->step_count++];
    } else {
        for (int32_t i = 1; i < CUDA_STEPS_MAX; i++) {
            step = host->steps[i].used < step->used ? &host->steps[i] : step;
        }
        if (step->recorded != NULL) {
            cuda_keep_fault(cuda, CUDA_OP_NONE, cudaStreamSynchronize(cuda->stream));
        }
        drop_record(cuda, step);
    }
    step->key = key;
    step->recorded = NULL;
    return step;
}

/* Starts to record; on success the caller keeps the lock until cuda_step_end. */
static bool begin_record(struct cuda *cuda, struct cuda_step *step) {
    struct cuda_host *host = cuda->host;
    // other threads may allocate meanwhile
    cudaError_t status = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) {
        (void)cudaGetLastError(); // or the next launch would find it
        host->never_record = true;
        return false;
    }
    host->recording = step;
    host->recording_failed = false;
    return true;
}

bool cuda_step_begin(struct backend *backend, uint64_t key) {
    struct cuda *cuda = cuda_of(backend);
    struct cuda_host *host = cuda->host;
    if (!cuda_enter(cuda)) {
        return true; // the device is faulty: nothing needs to be enqueued, synchronize says why
    }
    ASSERT(host->recording == NULL);
    struct cuda_step *step = find_step(host, key);
    bool seen = step != NULL;
    bool runs = seen && step->recorded != NULL;
    if (runs) {
        cuda_keep_fault(cuda, CUDA_OP_NONE, cudaGraphLaunch(step->recorded, cuda->stream));
    } else if (seen && !host->never_record && begin_record(cuda, step)) {
        step->used = ++host->step_clock;
        return false; // with the lock
    } else if (!seen && !host->never_record) {
        step = take_step(cuda, key);
    }
    if (step != NULL) {
        step->used = ++host->step_clock;
    }
    cuda_leave(cuda);
    return runs;
}

/* Makes the captured graph runnable. Memory may be too short for one more: then without the others. */
static cudaError_t instantiate(struct cuda *cuda, cudaGraph_t graph, cudaGraphExec_t *out) {
    cudaError_t status = cudaGraphInstantiateWithFlags(out, graph, 0);
    if (status == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        cuda_keep_fault(cuda, CUDA_OP_NONE, cudaStreamSynchronize(cuda->stream));
        for (int32_t i = 0; i < cuda->host->step_count; i++) {
            drop_record(cuda, &cuda->host->steps[i]);
        }
        status = cudaGraphInstantiateWithFlags(out, graph, 0);
    }
    return status;
}

bool cuda_step_end(struct backend *backend) {
    struct cuda *cuda = cuda_of(backend);
    struct cuda_host *host = cuda->host;
    if (host->recording == NULL) { // only the thread that calls this sets it
        return true;
    }
    struct cuda_step *step = host->recording;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t recorded = NULL;
    cudaError_t status = cudaStreamEndCapture(cuda->stream, &graph);
    host->recording = NULL;
    bool succeeded = status == cudaSuccess && !host->recording_failed && graph != NULL &&
                     instantiate(cuda, graph, &recorded) == cudaSuccess;
    if (graph != NULL) {
        (void)cudaGraphDestroy(graph);
    }
    if (succeeded) {
        step->recorded = recorded;
        cuda_keep_fault(cuda, CUDA_OP_NONE, cudaGraphLaunch(recorded, cuda->stream));
    } else {
        (void)cudaGetLastError();
        host->never_record = true;
    }
    cuda_leave(cuda);
    return succeeded;
}

void cuda_step_forget(struct backend *backend) {
    struct cuda *cuda = cuda_of(backend);
    struct cuda_host *host = cuda->host;
    if (!cuda_enter(cuda)) {
        return; // what a faulty device holds is gone with it
    }
    ASSERT(host->recording == NULL);
    cuda_keep_fault(cuda, CUDA_OP_NONE, cudaStreamSynchronize(cuda->stream));
    for (int32_t i = 0; i < host->step_count; i++) {
        drop_record(cuda, &host->steps[i]);
    }
    host->step_count = 0;
    cuda_leave(cuda);
}

/* ---- moments in the order of the ops ---------------------------------------------------------- */

void cuda_stamp(struct backend *backend, int32_t number) {
    struct cuda *cuda = cuda_of(backend);
    ASSERT(number >= 0 && number < BACKEND_STAMPS_MAX);
    if (!cuda_enter(cuda)) {
        return;
    }
    cudaEvent_t *event = &cuda->host->stamps[number];
    cudaError_t status = cudaSuccess;
    if (*event == NULL) {
        status = cudaEventCreateWithFlags(event, cudaEventDefault);
    }
    if (status == cudaSuccess) {
        // in a record: an event that each replay reaches anew
        bool is_recording = cuda->host->recording != NULL;
        unsigned flags = is_recording ? cudaEventRecordExternal : cudaEventRecordDefault;
        status = cudaEventRecordWithFlags(*event, cuda->stream, flags);
    }
    cuda_keep_fault(cuda, CUDA_OP_NONE, status);
    cuda_leave(cuda);
}

double cuda_stamp_seconds(struct backend *backend, int32_t from, int32_t to) {
    struct cuda *cuda = cuda_of(backend);
    cudaEvent_t *stamps = cuda->host->stamps;
    ASSERT(stamps[from] != NULL && stamps[to] != NULL);
    float milliseconds = 0.0F;
    cuda_keep_fault(
        cuda, CUDA_OP_NONE, cudaEventElapsedTime(&milliseconds, stamps[from], stamps[to])
    );
    return 1e-3 * (double)milliseconds;
}

void cuda_stamps_close(struct cuda *cuda) {
    for (int32_t i = 0; i < BACKEND_STAMPS_MAX; i++) {
        if (cuda->host->stamps[i] != NULL) {
            (void)cudaEventDestroy(cuda->host->stamps[i]);
        }
    }
}
