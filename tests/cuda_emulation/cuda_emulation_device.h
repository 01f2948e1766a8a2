/* The functions of kernels/cuda/cuda_device.cuh for the emulation: the same fragment layouts and the
 * same promises, kept at the latest moment the hardware may keep them. */
#ifndef HEARTH_TESTS_CUDA_EMULATION_DEVICE_H
#define HEARTH_TESTS_CUDA_EMULATION_DEVICE_H

#define DYNAMIC_SHARED(name) unsigned char *const name = cuda_emulation_dynamic_shared()

/* Kernels run one after another here. */
static inline void follow(void) {
}

#define MARK(mark)                                                                                 \
    do {                                                                                           \
        if (threadIdx.x + blockIdx.x + blockIdx.y + blockIdx.z == 0) {                             \
            *(mark).word = (mark).op;                                                              \
        }                                                                                          \
    } while (0)

/* Products of bf16 are exact in FP32; they are added in ascending k. */
void mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2], CUDA_EMULATION_CALLER);
void load_matrices(uint32_t r[4], const void *shared, CUDA_EMULATION_CALLER);
void load_matrices_transposed(uint32_t r[4], const void *shared, CUDA_EMULATION_CALLER);

/* The destination is spoilt at once and the source read at the wait that covers the copy: a kernel
 * that reads too early, waits for too little or forgets to commit computes with NaNs. */
void cuda_emulation_copy_async(void *shared, const void *from, int bytes, bool valid);
void copy_async_commit(void);
void cuda_emulation_copy_wait(int pending);

static inline void copy_async16(void *shared, const void *from, bool valid) {
    cuda_emulation_copy_async(shared, from, 16, valid);
}
static inline void copy_async4(void *shared, const void *from, bool valid) {
    cuda_emulation_copy_async(shared, from, 4, valid);
}
template <int PENDING> static inline void copy_async_wait(void) {
    cuda_emulation_copy_wait(PENDING);
}

static inline uint32_t cuda_emulation_bf16(float value) {
    uint32_t bits = __float_as_uint(value);
    if (value != value) {
        return 0x7fffU; // the NaN that the hardware gives
    }
    return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
}

static inline uint32_t bf16x2_encode(float low, float high) {
    return cuda_emulation_bf16(high) << 16 | cuda_emulation_bf16(low);
}

/* The product of two bf16 is exact in FP32 unless it is tiny, where double has the room. */
static inline uint32_t cuda_emulation_bf16_multiply(uint32_t a, uint32_t b) {
    float x = __uint_as_float(a << 16);
    float y = __uint_as_float(b << 16);
    float product = x * y;
    if (!(fabsf(product) < 0x1p-126F) || x == 0.0F || y == 0.0F) {
        return cuda_emulation_bf16(product);
    }
    double steps = rint((double)x * (double)y * 0x1p133); // bf16 subnormals are multiples of 2^-133
    return (uint32_t)fabs(steps) | ((a ^ b) & 0x8000U);
}

static inline uint32_t bf16x2_multiply(uint32_t a, uint32_t b) {
    return cuda_emulation_bf16_multiply(a >> 16, b >> 16) << 16 |
           cuda_emulation_bf16_multiply(a & 0xffffU, b & 0xffffU);
}

template <typename T> static inline T load_read_only(const T *from) {
    return *from;
}

static inline uint4 load_streaming(const void *from) {
    if ((uintptr_t)from % 16 != 0) {
        cuda_emulation_fail("load_streaming of %p, which is not 16-byte aligned", from);
    }
    return *(const uint4 *)from;
}

#endif
