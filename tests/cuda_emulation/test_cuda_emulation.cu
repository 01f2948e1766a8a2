/* The emulation itself: what it computes where the answer is known from elsewhere, and that it finds
 * the mistakes it is there for. Kernels that fail run in a child process each, since a failed device
 * stays one; the parent reads what the child says. */
#include "kernels/cuda/cuda_device.cuh"
#include "kernels/cuda/cuda_formats.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures = 0;

static void expect(bool holds, const char *what) {
    printf("%-6s %s\n", holds ? "ok" : "FAILED", what);
    failures += holds ? 0 : 1;
}

#define START(kernel, grid, block, shared, ...)                                                    \
    cuda_emulation_start(nullptr, "test", #kernel, kernel, grid, block, shared, __VA_ARGS__)

template <typename T> static T *device_memory(size_t count) {
    T *memory = nullptr;
    if (cudaMalloc(&memory, count * sizeof(T)) != cudaSuccess) {
        abort();
    }
    return memory;
}

/* ---- tensor-core products against plain ones ---- */

/* Small integers: sums are exact in any order. */
static uint16_t small_number(int i) {
    return bf16_encode((float)(i * 2654435761U >> 28) - 8.0F);
}

__global__ void product_kernel(const uint16_t *a, const uint16_t *b, float *d) {
    __shared__ __align__(16) uint16_t a_tile[16][16]; // [row][k]
    __shared__ __align__(16) uint16_t b_tile[16][16]; // [k][column], two products side by side
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        a_tile[i / 16][i % 16] = a[i];
        b_tile[i / 16][i % 16] = b[i];
    }
    __syncwarp();
    uint32_t af[4];
    uint32_t bf[4];
    load_matrices(af, &a_tile[lane % 16][8 * (lane / 16)]);
    load_matrices_transposed(bf, &b_tile[lane % 16][8 * (lane / 16)]);
    for (int half = 0; half < 2; half++) {
        float sum[4] = {1.0F, 1.0F, 1.0F, 1.0F};
        mma_bf16(sum, af, bf + 2 * half);
        for (int r = 0; r < 4; r++) {
            int row = lane / 4 + 8 * (r / 2);
            d[16 * row + 8 * half + 2 * (lane % 4) + r % 2] = sum[r];
        }
    }
}

static void products_equal_plain_ones(void) {
    uint16_t *a = device_memory<uint16_t>(256);
    uint16_t *b = device_memory<uint16_t>(256);
    float *d = device_memory<float>(256);
    for (int i = 0; i < 256; i++) {
        a[i] = small_number(i);
        b[i] = small_number(i + 1000);
    }
    START(product_kernel, 1, 32, 0, a, b, d);
    bool equal = cudaDeviceSynchronize() == cudaSuccess;
    for (int i = 0; i < 256; i++) {
        float want = 1.0F;
        for (int k = 0; k < 16; k++) {
            want += bf16_decode(a[16 * (i / 16) + k]) * bf16_decode(b[16 * k + i % 16]);
        }
        equal = equal && d[i] == want;
    }
    expect(equal, "mma_bf16 of fragments that load_matrices made equals a plain product");
    cudaFree(a);
    cudaFree(b);
    cudaFree(d);
}

/* ---- warps and blocks ---- */

__global__ void warp_kernel(int *wrong) {
    int lane = (int)threadIdx.x % 32;
    const uint32_t all = 0xffffffffU;
    int bad = 0;
    bad += __shfl_sync(all, lane, 5) != 5;
    bad += __shfl_sync(all, lane, 3, 8) != lane / 8 * 8 + 3;
    bad += __shfl_xor_sync(all, lane, 16) != (lane ^ 16);
    bad += __shfl_up_sync(all, lane, 3) != (lane < 3 ? lane : lane - 3);
    bad += __shfl_down_sync(all, lane, 3, 16) != (lane % 16 > 12 ? lane : lane + 3);
    bad += __ballot_sync(all, lane % 3 == 0) != 0x49249249U;
    bad += __any_sync(all, lane == 31) != 1;
    bad += __all_sync(all, lane < 31) != 0;
    bad += __reduce_add_sync(all, lane) != 496;
    bad += __reduce_max_sync(all, -lane) != 0;
    bad += __reduce_min_sync(all, (unsigned)lane + 7U) != 7;
    double wide = __shfl_sync(all, lane * 1e100, 7);
    bad += wide != 7e100;
    if (lane < 16) { // halves of a warp on their own
        bad += __shfl_sync(0xffffU, lane, 15) != 15;
    } else {
        bad += __reduce_add_sync(0xffff0000U, 1) != 16;
    }
    bad += __syncthreads_count((int)threadIdx.x % 2) != (int)blockDim.x / 2;
    bad += __syncthreads_or(threadIdx.x == 77) == 0;
    bad += __syncthreads_and(threadIdx.x == 77) != 0;
    atomicAdd(wrong, bad);
}

__global__ void block_kernel(int *out) {
    DYNAMIC_SHARED(bytes);
    int *values = (int *)bytes;
    int count = (int)blockDim.x;
    int i = (int)threadIdx.x;
    for (int turn = 0; turn < 50; turn++) {
        values[i] = turn == 0 ? i : values[i] + 1;
        __syncthreads();
        int other = values[(i + 1) % count];
        __syncthreads();
        values[i] = other;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = values[i];
}

static void warps_and_blocks_work(void) {
    int *wrong = device_memory<int>(1);
    cudaMemset(wrong, 0, sizeof *wrong);
    START(warp_kernel, 2, 96, 0, wrong);
    expect(cudaDeviceSynchronize() == cudaSuccess && *wrong == 0, "shuffles, votes, sums, counts");
    cudaFree(wrong);
    int *out = device_memory<int>(3 * 256);
    START(block_kernel, 3, 256, 1024, out);
    bool right = cudaDeviceSynchronize() == cudaSuccess;
    for (int i = 0; i < 3 * 256; i++) {
        right = right && out[i] == (i % 256 + 50) % 256 + 49;
    }
    expect(right, "values passed around a block by barriers");
    cudaFree(out);
}

__global__ void copy_kernel(const uint32_t *from, uint32_t *to) {
    __shared__ __align__(16) uint32_t tile[2][128];
    int i = (int)threadIdx.x;
    for (int half = 0; half < 2; half++) {
        copy_async16(&tile[half][4 * i], from + 128 * half + 4 * i, i != 3);
        copy_async_commit();
    }
    copy_async_wait<1>();
    uint32_t first = tile[0][4 * i]; // one's own copies need no barrier
    copy_async_wait<0>();
    to[i] = first + tile[1][4 * i + 3];
}

static void copies_arrive(void) {
    uint32_t *from = device_memory<uint32_t>(256);
    uint32_t *to = device_memory<uint32_t>(32);
    for (uint32_t i = 0; i < 256; i++) {
        from[i] = i;
    }
    START(copy_kernel, 1, 32, 0, from, to);
    bool right = cudaDeviceSynchronize() == cudaSuccess;
    for (uint32_t i = 0; i < 32; i++) {
        right = right && to[i] == (i == 3 ? 0 : 8 * i + 131);
    }
    expect(right, "asynchronous copies arrive, invalid ones as zeros");
    cudaFree(from);
    cudaFree(to);
}

static void bf16_products_round_once(void) {
    bool right = bf16x2_multiply(0x3f804000U, 0x40403f81U) == 0x40404001U; // 1 x 3, 2 x 1.0078
    right =
        right && bf16x2_multiply(0x00010000U, 0x7e808000U) == 0x3c008000U; // 2^-133 x 2^126; 0 x -0
    right = right && bf16x2_multiply(0x00800081U, 0x3f003f00U) == 0x00400040U; // ties to even
    right = right && bf16x2_multiply(0x00000083U, 0x00003f00U) == 0x00000042U;
    right = right && bf16x2_multiply(0x0000807fU, 0x00003e80U) == 0x00008020U;
    right = right && bf16x2_encode(1.00390625F, 1.01171875F) == 0x3f823f80U;
    right = right && pick_bytes(0x33221100U, 0x77665544U, 0x7142U) == 0x77114422U;
    expect(right, "bf16 products and roundings, subnormals and ties");
}

/* ---- streams and graphs ---- */

__global__ void add_kernel(int *value, int amount) {
    if (threadIdx.x == 0) {
        *value += amount;
    }
}

static void graphs_replay(void) {
    int *value = device_memory<int>(1);
    *value = 0;
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    bool ok = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
    ok = ok && cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
    cuda_emulation_start(stream, "test", "add", add_kernel, 1, 32, 0, value, 3);
    cuda_emulation_start(stream, "test", "add", add_kernel, 1, 32, 0, value, 4);
    ok = ok && cudaStreamEndCapture(stream, &graph) == cudaSuccess && *value == 0;
    ok = ok && cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess;
    for (int i = 0; i < 3; i++) {
        ok = ok && cudaGraphLaunch(exec, stream) == cudaSuccess;
    }
    ok = ok && *value == 0; // nobody waited yet
    ok = ok && cudaStreamSynchronize(stream) == cudaSuccess && *value == 21;
    expect(ok, "a recorded stream runs when it is launched, and when somebody waits");
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    cudaFree(value);
}

/* ---- what it is there to find ---- */

__global__ void no_barrier_kernel(int *out) {
    __shared__ int values[64];
    values[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = values[63 - threadIdx.x];
}

__global__ void no_wait_kernel(const uint32_t *from, uint32_t *out) {
    __shared__ __align__(16) uint32_t tile[32];
    copy_async4(&tile[threadIdx.x], from + threadIdx.x, true);
    copy_async_commit();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void no_commit_kernel(const uint32_t *from, uint32_t *out) {
    __shared__ __align__(16) uint32_t tile[32];
    copy_async4(&tile[threadIdx.x], from + threadIdx.x, true);
    copy_async_wait<0>();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

static void missing_barriers_and_waits_change_results(void) {
    int *out = device_memory<int>(64);
    START(no_barrier_kernel, 1, 64, 0, out);
    bool differs = false;
    cudaDeviceSynchronize();
    for (int i = 0; i < 64; i++) {
        differs = differs || out[i] != 63 - i;
    }
    expect(differs, "a missing barrier shows");
    uint32_t *from = device_memory<uint32_t>(32);
    uint32_t *to = device_memory<uint32_t>(32);
    cudaMemset(from, 0, 32 * sizeof *from);
    START(no_wait_kernel, 1, 32, 0, from, to);
    cudaDeviceSynchronize();
    expect(to[0] == 0xffffffffU, "a missing wait shows");
    START(no_commit_kernel, 1, 32, 0, from, to);
    cudaDeviceSynchronize();
    expect(to[0] == 0xffffffffU, "a missing commit shows");
    cudaFree(out);
    cudaFree(from);
    cudaFree(to);
}

__global__ void half_warp_kernel(int unused) {
    (void)unused;
    if (threadIdx.x >= 32 && threadIdx.x < 48) {
        __syncwarp();
    }
    __syncthreads();
}

__global__ void two_places_kernel(int unused) {
    (void)unused;
    float d[4] = {};
    uint32_t a[4] = {};
    if (threadIdx.x < 16) {
        mma_bf16(d, a, a);
    } else {
        mma_bf16(d, a, a + 2);
    }
}

__global__ void two_kinds_kernel(int value) {
    if (threadIdx.x % 2 == 0) {
        __shfl_sync(0xffffffffU, value, 0);
    } else {
        __shfl_xor_sync(0xffffffffU, value, 1);
    }
}

__global__ void lane_left_kernel(int value) {
    if (threadIdx.x != 9) {
        __shfl_xor_sync(0xffffffffU, value, 1);
    }
}

__global__ void misaligned_kernel(int by) {
    __shared__ __align__(16) unsigned char tile[1024];
    uint32_t r[4];
    load_matrices(r, tile + 16 * (threadIdx.x % 32) + by);
}

__global__ void copy_outside_kernel(uint32_t *to) {
    copy_async4(to, to, true);
}

__global__ void shuffle_outside_kernel(int value) {
    if (threadIdx.x < 4) {
        __shfl_sync(0xfU, value, 7);
    }
}

/* Runs it in a child, which must fail and say `text`. */
template <typename T>
static void is_found(const char *what, void (*kernel)(T), T argument, const char *text) {
    int pipes[2];
    fflush(stdout);
    if (pipe(pipes) != 0) {
        abort();
    }
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        cuda_emulation_start(nullptr, "test", "kernel", kernel, 2, 64, 0, argument);
        bool failed = cudaDeviceSynchronize() == cudaErrorLaunchFailure &&
                      cudaGetLastError() == cudaErrorLaunchFailure;
        _exit(failed ? 0 : 1);
    }
    close(pipes[1]);
    char said[4096];
    size_t length = 0;
    ssize_t got = 0;
    while ((got = read(pipes[0], said + length, sizeof said - 1 - length)) > 0) {
        length += (size_t)got;
    }
    said[length] = '\0';
    close(pipes[0]);
    int status = 0;
    waitpid(child, &status, 0);
    bool found = WIFEXITED(status) && WEXITSTATUS(status) == 0 && strstr(said, text) != nullptr;
    expect(found, what);
    if (!found) {
        printf("it said: %s\n", said);
    }
}

static void mistakes_are_found(void) {
    is_found("a deadlock", half_warp_kernel, 0, "deadlock\n");
    is_found("who is in the deadlock", half_warp_kernel, 0, "48 at __syncthreads, ");
    is_found("one product in two places", two_places_kernel, 0, "while lanes 0xffff of the warp");
    is_found("two operations of one warp", two_kinds_kernel, 0, "__shfl_xor_sync at ");
    is_found("a lane that left", lane_left_kernel, 0, "thread (9, 0, 0): ended while lanes ");
    is_found("a matrix at an odd address", misaligned_kernel, 8, "not 16 aligned bytes");
    is_found(
        "a copy to global memory", copy_outside_kernel, device_memory<uint32_t>(1), "not shared"
    );
    is_found("a shuffle from outside", shuffle_outside_kernel, 1, "reads lane 7, mask 0xf");
}

/* Device memory out of the host's reach: kernels and copies get there, the host does not. */
static int touch_device_memory(void) {
    int *value = device_memory<int>(1);
    int got = 0;
    cudaMemset(value, 0, sizeof *value);
    START(add_kernel, 1, 32, 0, value, 5);
    cudaMemcpy(&got, value, sizeof got, cudaMemcpyDeviceToHost);
    printf("%d\n", got);
    fflush(stdout);
    got = *(volatile int *)value;
    printf("touched\n");
    return 0;
}

static void touching_device_memory_is_found(void) {
    setenv("CUDA_EMULATION_GUARD", "1", 1);
    FILE *child = popen("exec /proc/$PPID/exe touch 2>/dev/null", "r");
    char said[64];
    size_t length = child == nullptr ? 0 : fread(said, 1, sizeof said - 1, child);
    said[length] = '\0';
    int status = child == nullptr ? 0 : pclose(child);
    expect(status != 0 && strcmp(said, "5\n") == 0, "the host touches device memory");
    unsetenv("CUDA_EMULATION_GUARD");
}

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "touch") == 0) {
        return touch_device_memory();
    }
    products_equal_plain_ones();
    warps_and_blocks_work();
    copies_arrive();
    bf16_products_round_once();
    graphs_replay();
    missing_barriers_and_waits_change_results();
    mistakes_are_found();
    touching_device_memory_is_found();
    setenv("CUDA_EMULATION_ORDER", "7", 1); // once more in random order
    products_equal_plain_ones();
    warps_and_blocks_work();
    copies_arrive();
    printf("%d failed\n", failures);
    return failures == 0 ? 0 : 1;
}
