/* Intrinsics of one thread; part of cuda_emulation.h. Every rounding one rounds to nearest even, which
 * is what the CPU does anyway; the build keeps products and sums apart (-ffp-contract=off). */
#ifndef HEARTH_TESTS_CUDA_EMULATION_INTRINSICS_H
#define HEARTH_TESTS_CUDA_EMULATION_INTRINSICS_H

/* ---- bits ---- */

#define CUDA_EMULATION_CAST(name, to, from)                                                        \
    static inline to name(from value) {                                                            \
        to out;                                                                                    \
        static_assert(sizeof out == sizeof value, "size");                                         \
        memcpy(&out, &value, sizeof out);                                                          \
        return out;                                                                                \
    }
CUDA_EMULATION_CAST(__float_as_uint, unsigned, float)
CUDA_EMULATION_CAST(__float_as_int, int, float)
CUDA_EMULATION_CAST(__uint_as_float, float, unsigned)
CUDA_EMULATION_CAST(__int_as_float, float, int)
CUDA_EMULATION_CAST(__double_as_longlong, long long, double)
CUDA_EMULATION_CAST(__longlong_as_double, double, long long)

static inline int __popc(unsigned value) {
    return __builtin_popcount(value);
}
static inline int __popcll(unsigned long long value) {
    return __builtin_popcountll(value);
}
static inline int __clz(int value) {
    return value == 0 ? 32 : __builtin_clz((unsigned)value);
}
static inline int __clzll(long long value) {
    return value == 0 ? 64 : __builtin_clzll((unsigned long long)value);
}
static inline int __ffs(int value) {
    return __builtin_ffs(value);
}
static inline int __ffsll(long long value) {
    return __builtin_ffsll(value);
}
static inline unsigned __brev(unsigned value) {
    unsigned out = 0;
    for (int i = 0; i < 32; i++) {
        out |= ((value >> i) & 1U) << (31 - i);
    }
    return out;
}
static inline unsigned long long __brevll(unsigned long long value) {
    return (unsigned long long)__brev((unsigned)value) << 32 | __brev((unsigned)(value >> 32));
}

/* A nibble's top bit is documented as unused by the intrinsic and copies signs in the instruction:
 * nobody may depend on either. */
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    if ((selector & 0x8888U) != 0) {
        cuda_emulation_fail("__byte_perm with selector 0x%x", selector);
    }
    uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        out |= (unsigned)(bytes >> (8 * ((selector >> (4 * i)) & 7U)) & 0xffU) << (8 * i);
    }
    return out;
}

static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((uint64_t)high << 32 | low) << (shift & 31U)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31U));
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __mulhi(int a, int b) {
    return (int)((int64_t)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)((wide)a * b >> 64);
}

/* ---- arithmetic ---- */

static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __frcp_rn(float a) {
    return 1.0F / a;
}
static inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline double __dadd_rn(double a, double b) {
    return a + b;
}
static inline double __dsub_rn(double a, double b) {
    return a - b;
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline double __ddiv_rn(double a, double b) {
    return a / b;
}
static inline double __dsqrt_rn(double a) {
    return sqrt(a);
}
static inline double __fma_rn(double a, double b, double c) {
    return fma(a, b, c);
}

/* To integers the hardware saturates, and gives 0 for a NaN. */
static inline int cuda_emulation_to_int(float value) {
    if (value != value) {
        return 0;
    }
    return value >= 0x1p31F ? INT32_MAX : value <= -0x1p31F ? INT32_MIN : (int)value;
}
static inline unsigned cuda_emulation_to_unsigned(float value) {
    return value >= 0x1p32F ? UINT32_MAX : value > 0.0F ? (unsigned)value : 0U;
}
static inline int __float2int_rn(float value) {
    return cuda_emulation_to_int(rintf(value));
}
static inline int __float2int_rz(float value) {
    return cuda_emulation_to_int(truncf(value));
}
static inline int __float2int_rd(float value) {
    return cuda_emulation_to_int(floorf(value));
}
static inline int __float2int_ru(float value) {
    return cuda_emulation_to_int(ceilf(value));
}
static inline unsigned __float2uint_rn(float value) {
    return cuda_emulation_to_unsigned(rintf(value));
}
static inline unsigned __float2uint_rz(float value) {
    return cuda_emulation_to_unsigned(truncf(value));
}
static inline float __int2float_rn(int value) {
    return (float)value;
}
static inline float __uint2float_rn(unsigned value) {
    return (float)value;
}
static inline float __ll2float_rn(long long value) {
    return (float)value;
}
static inline float __double2float_rn(double value) {
    return (float)value;
}

#define CUDA_EMULATION_EXTREMES(result, a_type, b_type)                                            \
    static inline result min(a_type a, b_type b) {                                                 \
        return (result)b < (result)a ? (result)b : (result)a;                                      \
    }                                                                                              \
    static inline result max(a_type a, b_type b) {                                                 \
        return (result)a < (result)b ? (result)b : (result)a;                                      \
    }
CUDA_EMULATION_EXTREMES(int, int, int)
CUDA_EMULATION_EXTREMES(unsigned, unsigned, unsigned)
CUDA_EMULATION_EXTREMES(unsigned, int, unsigned)
CUDA_EMULATION_EXTREMES(unsigned, unsigned, int)
CUDA_EMULATION_EXTREMES(long, long, long)
CUDA_EMULATION_EXTREMES(unsigned long, unsigned long, unsigned long)
CUDA_EMULATION_EXTREMES(long long, long long, long long)
CUDA_EMULATION_EXTREMES(unsigned long long, unsigned long long, unsigned long long)
static inline float min(float a, float b) {
    return fminf(a, b);
}
static inline float max(float a, float b) {
    return fmaxf(a, b);
}

/* ---- memory ---- */

#define CUDA_EMULATION_LOAD(name)                                                                  \
    template <typename T> static inline T name(const T *from) {                                    \
        return *from;                                                                              \
    }
CUDA_EMULATION_LOAD(__ldg)
CUDA_EMULATION_LOAD(__ldca)
CUDA_EMULATION_LOAD(__ldcg)
CUDA_EMULATION_LOAD(__ldcs)
CUDA_EMULATION_LOAD(__ldlu)
CUDA_EMULATION_LOAD(__ldcv)
#define CUDA_EMULATION_STORE(name)                                                                 \
    template <typename T> static inline void name(T *to, T value) {                                \
        *to = value;                                                                               \
    }
CUDA_EMULATION_STORE(__stwb)
CUDA_EMULATION_STORE(__stcg)
CUDA_EMULATION_STORE(__stcs)

/* One thread runs at a time, so plain code is atomic. Integers only: the order of floating-point
 * atomics is not fixed, so results would not be either. */
#define CUDA_EMULATION_ATOMIC(name, type, update)                                                  \
    static inline type name(type *at, type value) {                                                \
        type old = *at;                                                                            \
        *at = (type)(update);                                                                      \
        return old;                                                                                \
    }
#define CUDA_EMULATION_ATOMICS(type)                                                               \
    CUDA_EMULATION_ATOMIC(atomicMax, type, old < value ? value : old)                              \
    CUDA_EMULATION_ATOMIC(atomicMin, type, value < old ? value : old)                              \
    CUDA_EMULATION_ATOMIC(atomicAnd, type, old &value)                                             \
    CUDA_EMULATION_ATOMIC(atomicOr, type, old | value)                                             \
    CUDA_EMULATION_ATOMIC(atomicXor, type, old ^ value)                                            \
    CUDA_EMULATION_ATOMIC(atomicExch, type, value)                                                 \
    static inline type atomicCAS(type *at, type expected, type value) {                            \
        type old = *at;                                                                            \
        *at = old == expected ? value : old;                                                       \
        return old;                                                                                \
    }
CUDA_EMULATION_ATOMICS(int)
CUDA_EMULATION_ATOMICS(unsigned)
CUDA_EMULATION_ATOMICS(unsigned long long)
CUDA_EMULATION_ATOMIC(atomicAdd, int, (unsigned)old + (unsigned)value)
CUDA_EMULATION_ATOMIC(atomicAdd, unsigned, old + value)
CUDA_EMULATION_ATOMIC(atomicAdd, unsigned long long, old + value)
CUDA_EMULATION_ATOMIC(atomicSub, int, (unsigned)old - (unsigned)value)
CUDA_EMULATION_ATOMIC(atomicSub, unsigned, old - value)

#endif
