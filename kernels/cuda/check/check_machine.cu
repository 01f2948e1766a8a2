/* What kernels take for granted of the machine: the layouts and the arithmetic that cuda_device.cuh
 * states. The emulation of tests/cuda_emulation has the same checks to pass, so kernels that are right
 * there meet the same functions here. It runs on the runtime API alone, beside the backend.
 */
#include "check.h"

#include "kernels/cuda/cuda_device.cuh"
#include "kernels/cuda/cuda_formats.cuh"

#include <math.h>
#include <stdlib.h>

#ifdef CUDA_EMULATION
#define START(kernel, block, ...)                                                                  \
    (void)cuda_emulation_start(nullptr, "machine", #kernel, kernel, 1, block, 0, __VA_ARGS__)
#else
#define START(kernel, block, ...) kernel<<<1, block>>>(__VA_ARGS__)
#endif

static void must(cudaError_t status) {
    if (status != cudaSuccess) {
        check_stop("machine: %s", cudaGetErrorString(status));
    }
}

/* Memory that both sides read after finish(): pinned. */
template <typename T> static T *both_sides(size_t count) {
    void *memory = nullptr;
    must(cudaMallocHost(&memory, count * sizeof(T)));
    return (T *)memory;
}

static void finish(void) {
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
}

/* ---- tensor-core products ---- */

enum product_way {
    PRODUCT_PLACED,     /* registers filled as the comment on mma_bf16 says */
    PRODUCT_LOADED,     /* by load_matrices, b as [column][k] */
    PRODUCT_TRANSPOSED, /* b as [k][column], by load_matrices_transposed */
    PRODUCT_WAYS
};

#define STEPS 3 /* products in a row, k = 16 each */

__device__ __forceinline__ uint32_t pair_of(uint16_t low, uint16_t high) {
    return (uint32_t)high << 16 | low;
}

/* d [16, 8] = c + a [16, 48] b [48, 8]; one warp. */
__global__ void
product_kernel(int way, const uint16_t *a, const uint16_t *b, const float *c, float *d) {
    __shared__ __align__(16) uint16_t a_tile[16][16];
    __shared__ __align__(16)
        uint16_t b_tile[16][16]; // the second half of a row or of the rows: zeros
    int lane = (int)threadIdx.x;
    int group = lane / 4;
    int pair = 2 * (lane % 4);
    float sum[4];
    for (int r = 0; r < 4; r++) {
        sum[r] = c[8 * (group + 8 * (r / 2)) + pair + r % 2];
    }
    for (int step = 0; step < STEPS; step++) {
        __syncwarp();
        for (int i = lane; i < 256; i += 32) {
            int high = i / 16;
            int low = i % 16;
            a_tile[high][low] = a[16 * STEPS * high + 16 * step + low];
            int k = way == PRODUCT_TRANSPOSED ? high : low;
            int column = way == PRODUCT_TRANSPOSED ? low : high;
            b_tile[high][low] = column < 8 ? b[8 * (16 * step + k) + column] : (uint16_t)0;
        }
        __syncwarp();
        uint32_t af[4];
        uint32_t bf[4];
        if (way == PRODUCT_PLACED) {
            for (int r = 0; r < 4; r++) {
                const uint16_t *at = &a_tile[group + 8 * (r % 2)][pair + 8 * (r / 2)];
                af[r] = pair_of(at[0], at[1]);
                int k = pair + 8 * (r % 2);
                bf[r] = pair_of(b_tile[group][k], b_tile[group][k + 1]);
            }
        } else {
            load_matrices(af, &a_tile[lane % 16][8 * (lane / 16)]);
        }
        if (way == PRODUCT_LOADED) {
            load_matrices(bf, &b_tile[lane % 8 + 8 * (lane / 16)][8 * (lane / 8 % 2)]);
        } else if (way == PRODUCT_TRANSPOSED) {
            load_matrices_transposed(bf, &b_tile[lane % 16][8 * (lane / 16)]);
        }
        mma_bf16(sum, af, bf);
    }
    for (int r = 0; r < 4; r++) {
        d[8 * (group + 8 * (r / 2)) + pair + r % 2] = sum[r];
    }
}

struct product {
    uint16_t *a, *b; /* [16, 48], [48, 8] */
    float *c, *d;    /* [16, 8] */
};

static struct product product_make(void) {
    struct product p = {
        both_sides<uint16_t>(16 * 16 * STEPS),
        both_sides<uint16_t>(8 * 16 * STEPS),
        both_sides<float>(128),
        both_sides<float>(128)};
    return p;
}

static void product_free(const struct product *p) {
    must(cudaFreeHost(p->a));
    must(cudaFreeHost(p->b));
    must(cudaFreeHost(p->c));
    must(cudaFreeHost(p->d));
}

/* The host's rounding: bf16_encode of cuda_formats.cuh is device code. */
static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

static float from_bf16(uint16_t code) {
    uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* c + a b exactly enough, and the sum of magnitudes. */
static double exact_sum(const struct product *p, int element, double *magnitude) {
    double sum = p->c[element];
    *magnitude = fabs(sum);
    for (int k = 0; k < 16 * STEPS; k++) {
        double term = (double)from_bf16(p->a[16 * STEPS * (element / 8) + k]) *
                      (double)from_bf16(p->b[8 * k + element % 8]);
        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

static void fill_product(struct check *check, const struct product *p, bool integers) {
    for (int i = 0; i < 16 * 16 * STEPS; i++) {
        p->a[i] = to_bf16(integers ? (float)(check_below(check, 33) - 16) : check_normal(check));
    }
    for (int i = 0; i < 8 * 16 * STEPS; i++) {
        p->b[i] = to_bf16(integers ? (float)(check_below(check, 33) - 16) : check_normal(check));
    }
    for (int i = 0; i < 128; i++) {
        p->c[i] = integers ? (float)(check_below(check, 201) - 100) : check_normal(check);
    }
}

/* Small integers have one sum in any order, so every element must equal it, however it was loaded. */
static void check_products(struct check *check) {
    static const char *const ways[PRODUCT_WAYS] = {"placed", "load_matrices", "transposed"};
    struct product p = product_make();
    for (int way = 0; way < PRODUCT_WAYS; way++) {
        if (!check_case(check, "machine", "mma_bf16 %s", ways[way])) {
            continue;
        }
        fill_product(check, &p, true);
        START(product_kernel, 32, way, p.a, p.b, p.c, p.d);
        finish();
        int different = 0;
        for (int i = 0; i < 128; i++) {
            double magnitude = 0.0;
            different += (double)p.d[i] != exact_sum(&p, i, &magnitude);
        }
        check_report(check, different == 0, "%d of 128 differ", different);
    }
    product_free(&p);
}

/* The tensor cores' own rounding: far better than bf16, and the limit that tolerances build on. */
static void check_product_accuracy(struct check *check) {
    if (!check_case(check, "machine", "mma_bf16 accuracy")) {
        return;
    }
    struct product p = product_make();
    double worst = 0.0;
    for (int turn = 0; turn < 64; turn++) {
        fill_product(check, &p, false);
        START(product_kernel, 32, (int)PRODUCT_LOADED, p.a, p.b, p.c, p.d);
        finish();
        for (int i = 0; i < 128; i++) {
            double magnitude = 0.0;
            double error = fabs((double)p.d[i] - exact_sum(&p, i, &magnitude)) / magnitude;
            worst = error > worst ? error : worst;
        }
    }
    // 51 terms, each cut to the 24 bits of the largest at worst.
    check_report(
        check, worst < 0x1p-19, "worst error 2^%.1f of the magnitudes, limit 2^-19", log2(worst)
    );
    product_free(&p);
}

/* A row's bits depend on nothing but the row (promise P2): alone among zeros, in other places. */
static void check_product_identity(struct check *check) {
    if (!check_case(check, "machine", "mma_bf16 identity of rows")) {
        return;
    }
    struct product all = product_make();
    struct product one = product_make();
    fill_product(check, &all, false);
    START(product_kernel, 32, (int)PRODUCT_LOADED, all.a, all.b, all.c, all.d);
    finish();
    int different = 0;
    for (int from = 0; from < 16; from++) {
        for (int to = 0; to < 16; to += 5) {
            memset(one.a, 0, 16 * 16 * STEPS * sizeof *one.a);
            memset(one.c, 0, 128 * sizeof *one.c);
            memcpy(one.b, all.b, 8 * 16 * STEPS * sizeof *one.b);
            memcpy(one.a + 16 * STEPS * to, all.a + 16 * STEPS * from, 16 * STEPS * sizeof *one.a);
            memcpy(one.c + 8 * to, all.c + 8 * from, 8 * sizeof *one.c);
            START(product_kernel, 32, (int)PRODUCT_TRANSPOSED, one.a, one.b, one.c, one.d);
            finish();
            different += memcmp(one.d + 8 * to, all.d + 8 * from, 8 * sizeof *one.d) != 0;
        }
    }
    check_report(check, different == 0, "%d of 64 rows differ", different);
    product_free(&all);
    product_free(&one);
}

/* ---- asynchronous copies, streaming loads ---- */

#define COPIED 1024 /* bytes of each kind */

__global__ void copy_kernel(const unsigned char *from, unsigned char *to) {
    __shared__ __align__(16) unsigned char tile[3][COPIED];
    int i = (int)threadIdx.x; // 64 threads
    copy_async16(tile[0] + 16 * i, from + 16 * i, i % 5 != 0);
    copy_async_commit();
    for (int part = 0; part < 4; part++) {
        int word = i + 64 * part;
        copy_async4(tile[1] + 4 * word, from + 4 * word, word % 7 != 0);
    }
    copy_async_commit();
    copy_async_wait<1>();
    *(uint4 *)(tile[2] + 16 * i) = load_streaming(from + 16 * i);
    __syncthreads();
    int other = 63 - i;
    uint4 first = *(const uint4 *)(tile[0] + 16 * other);
    copy_async_wait<0>();
    __syncthreads();
    *(uint4 *)(to + 16 * other) = first;
    *(uint4 *)(to + COPIED + 16 * other) = *(const uint4 *)(tile[1] + 16 * other);
    *(uint4 *)(to + 2 * COPIED + 16 * other) = *(const uint4 *)(tile[2] + 16 * other);
}

static void check_copies(struct check *check) {
    if (!check_case(check, "machine", "copy_async, load_streaming")) {
        return;
    }
    unsigned char *from = both_sides<unsigned char>(COPIED);
    unsigned char *to = both_sides<unsigned char>(3 * COPIED);
    for (int i = 0; i < COPIED; i++) {
        from[i] = (unsigned char)check_below(check, 256);
    }
    START(copy_kernel, 64, from, to);
    finish();
    int different = 0;
    for (int i = 0; i < COPIED; i++) {
        different += to[i] != (i / 16 % 5 != 0 ? from[i] : 0);
        different += to[COPIED + i] != (i / 4 % 7 != 0 ? from[i] : 0);
        different += to[2 * COPIED + i] != from[i];
    }
    check_report(check, different == 0, "%d of %d bytes differ", different, 3 * COPIED);
    must(cudaFreeHost(from));
    must(cudaFreeHost(to));
}

/* ---- packed bf16 ---- */

__global__ void multiply_kernel(const uint16_t *factors, uint32_t *products) {
    for (uint32_t code = threadIdx.x; code < 65536; code += blockDim.x) {
        uint32_t pair = factors[code % 61] | (uint32_t)factors[code % 59] << 16;
        products[code] = bf16x2_multiply(code | code << 16, pair);
    }
}

__global__ void encode_kernel(const float *values, uint32_t *codes, int count) {
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        codes[i] = bf16x2_encode(values[i], -values[i]);
    }
}

static uint16_t rounded_product(uint16_t a, uint16_t b) {
    double exact = (double)from_bf16(a) * (double)from_bf16(b);
    int exponent = 0;
    frexp(exact, &exponent);
    exponent = exponent < -125 ? -125 : exponent; // below, steps stay as of the smallest normal
    double rounded = ldexp(rint(ldexp(exact, 8 - exponent)), exponent - 8);
    return to_bf16((float)copysign(rounded, exact));
}

/* Every bf16 value, subnormals too, times powers of two and others; every one rounds once. */
static void check_multiply(struct check *check) {
    if (!check_case(check, "machine", "bf16x2_multiply")) {
        return;
    }
    uint16_t *factors = both_sides<uint16_t>(61);
    uint32_t *products = both_sides<uint32_t>(65536);
    for (int i = 0; i < 61; i++) {
        uint32_t bits = (uint32_t)check_bits64(check) & 0xffffU;
        bits = i % 3 == 0 ? bits & 0xff80U : bits; // a power of two
        factors[i] = (uint16_t)((bits & 0x7f80U) == 0x7f80U ? bits & 0xbfffU : bits);
    }
    START(multiply_kernel, 256, factors, products);
    finish();
    int different = 0;
    for (uint32_t code = 0; code < 65536; code++) {
        if ((code & 0x7f80U) == 0x7f80U) {
            continue; // infinities and NaNs: nobody multiplies them
        }
        uint16_t low = rounded_product((uint16_t)code, factors[code % 61]);
        uint16_t high = rounded_product((uint16_t)code, factors[code % 59]);
        different += products[code] != (low | (uint32_t)high << 16);
    }
    check_report(check, different == 0, "%d of 65536 differ", different);
    must(cudaFreeHost(factors));
    must(cudaFreeHost(products));
}

static void check_encode(struct check *check) {
    enum { COUNT = 65536 };
    if (!check_case(check, "machine", "bf16x2_encode")) {
        return;
    }
    float *values = both_sides<float>(COUNT);
    uint32_t *codes = both_sides<uint32_t>(COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t bits = i % 2 == 0 ? (uint32_t)check_bits64(check) : i << 16 | 0x8000U; // ties
        bits = (bits & 0x7f800000U) == 0x7f800000U ? bits & 0xbfffffffU : bits;
        memcpy(&values[i], &bits, sizeof bits);
    }
    START(encode_kernel, 256, values, codes, (int)COUNT);
    finish();
    int different = 0;
    for (int i = 0; i < COUNT; i++) {
        uint32_t want = to_bf16(values[i]) | (uint32_t)to_bf16(-values[i]) << 16;
        different += codes[i] != want;
    }
    check_report(check, different == 0, "%d of %d differ", different, (int)COUNT);
    must(cudaFreeHost(values));
    must(cudaFreeHost(codes));
}

void check_machine(struct check *check) {
    check_products(check);
    check_product_accuracy(check);
    check_product_identity(check);
    check_copies(check);
    check_multiply(check);
    check_encode(check);
}

void bench_machine(struct check *check) {
    (void)check; // check_bench_start measures the machine's ceilings
}
