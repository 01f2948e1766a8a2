/* Elementary functions in double, compiled per instruction set for its fused multiply-add, so that results do not depend on the C library's version. Errors
 * are a few 1e-17 relative: after rounding to FP32, at most one ulp. */
#include "lanes.h"

#include "cpu.h"

#include <math.h>

static double pow2(int32_t n) {
    uint64_t bits = (uint64_t)(n + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* |x| <= 700 after clamping; Taylor series to degree 13 on |r| <= ln(2)/2. */
double LANES(cpu_exp)(double x) {
    static const double inverse[14] = {
        1.0,
        1.0,
        1.0 / 2,
        1.0 / 6,
        1.0 / 24,
        1.0 / 120,
        1.0 / 720,
        1.0 / 5040,
        1.0 / 40320,
        1.0 / 362880,
        1.0 / 3628800,
        1.0 / 39916800,
        1.0 / 479001600,
        1.0 / 6227020800,
    };
    if (!(x > -700.0)) {
        x = -700.0;
    }
    if (x > 700.0) {
        x = 700.0;
    }
    double magic = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer
    double n = (x * 1.44269504088896338700e+00 + magic) - magic;
    double r = fma(n, -6.93147180369123816490e-01, x);
    r = fma(n, -1.90821492927058770002e-10, r);
    double sum = inverse[13];
    for (int i = 12; i >= 0; i--) {
        sum = fma(sum, r, inverse[i]);
    }
    return sum * pow2((int32_t)n);
}

/* log(1 + e^x) = max(x, 0) + log1p(e^-|x|); log1p(y) = 2 atanh(y / (2 + y)), without cancellation.
 * y <= 1, so the series runs in powers of at most 1/9. */
double LANES(cpu_softplus)(double x) {
    double y = LANES(cpu_exp)(x > 0 ? -x : x);
    double s = y / (2.0 + y);
    double square = s * s;
    double sum = 0.0;
    for (int i = 18; i >= 0; i--) {
        sum = fma(sum, square, 1.0 / (2 * i + 1));
    }
    return (x > 0 ? x : 0.0) + 2.0 * s * sum;
}

/* Reduction by pi/2 in two parts with fused steps, then fdlibm's kernels (Sun, 1993). */
void LANES(cpu_sincos)(double x, double *sine, double *cosine) {
    double magic = 6755399441055744.0;
    double n = (x * 6.36619772367581382433e-01 + magic) - magic;
    double r = fma(n, -1.57079632679489655800e+00, x);
    r = fma(n, -6.12323399573676603587e-17, r);
    double z = r * r;
    double s = 1.58969099521155010221e-10;
    s = fma(s, z, -2.50507602534068634195e-08);
    s = fma(s, z, 2.75573137070700676789e-06);
    s = fma(s, z, -1.98412698298579493134e-04);
    s = fma(s, z, 8.33333333332248946124e-03);
    s = fma(s, z, -1.66666666666666324348e-01);
    s = fma(s * z, r, r);
    double c = -1.13596475577881948265e-11;
    c = fma(c, z, 2.08757232129817482790e-09);
    c = fma(c, z, -2.75573143513906633035e-07);
    c = fma(c, z, 2.48015872894767294178e-05);
    c = fma(c, z, -1.38888888888741095749e-03);
    c = fma(c, z, 4.16666666666666019037e-02);
    c = fma(c * z, z, fma(z, -0.5, 1.0));
    int64_t quadrant = (int64_t)n & 3;
    double first = (quadrant & 1) != 0 ? c : s;
    double second = (quadrant & 1) != 0 ? s : c;
    *sine = quadrant >= 2 ? -first : first;
    *cosine = quadrant == 1 || quadrant == 2 ? -second : second;
}
