/* Comparing a device's results with the CPU's, and timing ops on the device. */
#include "check.h"

#include "kernels/cpu/number.h"

#include <time.h>

#define BENCH_LAUNCHES 20 /* ops of one recorded step */
#define BENCH_REPEATS  15

/* ---- comparing ---- */

struct worst {
    float share; /* of the limit; above 1 fails */
    int32_t row, column;
    int64_t beyond;
    double got, wanted;
};

/* Distance of two numbers in steps of a format whose codes are sign and magnitude. */
static int64_t steps(uint32_t a, uint32_t b, uint32_t sign) {
    int64_t x = (a & sign) != 0 ? -(int64_t)(a & ~sign) : (int64_t)a;
    int64_t y = (b & sign) != 0 ? -(int64_t)(b & ~sign) : (int64_t)b;
    return x > y ? x - y : y - x;
}

static float share_of_limit(
    double got, double wanted, int64_t distance, double scale, struct check_limit limit
) {
    if (isnan(got) || isnan(wanted)) {
        return isnan(got) && isnan(wanted) ? 0.0F : INFINITY;
    }
    if (distance == 0) {
        return 0.0F;
    }
    if (isinf(got) || isinf(wanted)) {
        return INFINITY;
    }
    double by_steps = limit.ulps > 0 ? (double)distance / limit.ulps : HUGE_VAL;
    double room = (double)limit.relative * scale;
    double by_scale = room > 0 ? fabs(got - wanted) / room : HUGE_VAL;
    return (float)(by_steps < by_scale ? by_steps : by_scale);
}

/* Compares one row; `elements` are 2 bytes (bf16) or 4 (FP32). */
static void compare_row(
    const unsigned char *got,
    const unsigned char *wanted,
    int32_t row,
    int32_t columns,
    size_t element,
    struct check_limit limit,
    struct worst *worst
) {
    bool narrow = element == 2;
    double squares = 0;
    for (int pass = 0; pass < 2; pass++) {
        double scale = sqrt(squares / columns);
        for (int32_t c = 0; c < columns; c++) {
            uint32_t a = 0;
            uint32_t b = 0;
            memcpy(&a, got + (size_t)c * element, element);
            memcpy(&b, wanted + (size_t)c * element, element);
            double x = (double)float_of_bits(narrow ? a << 16 : a);
            double y = (double)float_of_bits(narrow ? b << 16 : b);
            if (pass == 0) {
                squares += isfinite(y) ? y * y : 0;
                continue;
            }
            int64_t distance = steps(a, b, narrow ? 0x8000U : 0x80000000U);
            float share = share_of_limit(x, y, distance, scale, limit);
            worst->beyond += share > 1.0F ? 1 : 0;
            if (share > worst->share) {
                *worst = (struct worst){share, row, c, worst->beyond, x, y};
            }
        }
    }
}

static void compare(
    struct check *check,
    const char *what,
    const void *pointer,
    int32_t columns,
    size_t element,
    struct check_limit limit
) {
    ASSERT(limit.ulps > 0 || limit.relative > 0);
    size_t row_bytes = (size_t)columns * element;
    size_t bytes = check_output_bytes(check, pointer);
    ASSERT(columns > 0 && bytes % row_bytes == 0);
    const unsigned char *got = check_got(check, pointer);
    const unsigned char *wanted = pointer;
    struct worst worst = {0};
    for (size_t at = 0; at < bytes; at += row_bytes) {
        compare_row(
            got + at, wanted + at, (int32_t)(at / row_bytes), columns, element, limit, &worst
        );
    }
    char allowed[48];
    if (limit.ulps > 0 && limit.relative > 0) {
        snprintf(allowed, sizeof allowed, "%d ulp or %.1e rms", limit.ulps, (double)limit.relative);
    } else if (limit.ulps > 0) {
        snprintf(allowed, sizeof allowed, "%d ulp", limit.ulps);
    } else {
        snprintf(allowed, sizeof allowed, "%.1e rms", (double)limit.relative);
    }
    if (worst.beyond == 0) {
        check_report(check, true, "%s: worst %.2f of %s", what, (double)worst.share, allowed);
    } else {
        check_report(
            check,
            false,
            "%s: %lld beyond %s, worst %.3g times at [%d, %d]: %.9g for %.9g",
            what,
            (long long)worst.beyond,
            allowed,
            (double)worst.share,
            worst.row,
            worst.column,
            worst.got,
            worst.wanted
        );
    }
}

void check_bf16(
    struct check *check,
    const char *what,
    const uint16_t *pointer,
    int32_t columns,
    struct check_limit limit
) {
    compare(check, what, pointer, columns, sizeof *pointer, limit);
}

void check_f32(
    struct check *check,
    const char *what,
    const float *pointer,
    int32_t columns,
    struct check_limit limit
) {
    compare(check, what, pointer, columns, sizeof *pointer, limit);
}

void check_bits(struct check *check, const char *what, const void *pointer, size_t bytes) {
    const unsigned char *got = check_got(check, pointer);
    const unsigned char *wanted = pointer;
    size_t different = 0;
    size_t first = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (got[i] != wanted[i]) {
            first = different == 0 ? i : first;
            different++;
        }
    }
    if (different == 0) {
        check_report(check, true, "%s: equal to the bit", what);
    } else {
        check_report(
            check,
            false,
            "%s: %zu of %zu bytes differ, first at %zu: %02x for %02x",
            what,
            different,
            bytes,
            first,
            got[first],
            wanted[first]
        );
    }
}

/* ---- time ---- */

static struct backend_ceilings ceilings; // of this run; zeros without

static double seconds(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) {
        check_stop("no monotonic clock");
    }
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void finish(struct check *check) {
    struct error error = {0};
    if (is_failed(check->device->synchronize(check->device, &error))) {
        check_stop("%s: %s", check->op, error.message);
    }
}

void check_bench_start(struct check *check) {
    struct error error = {0};
    if (check->device->ceilings == NULL) {
        printf("no ceilings are measured on this backend: no floors\n");
        return;
    }
    if (is_failed(check->device->ceilings(check->device, &ceilings, &error))) {
        check_stop("%s", error.message);
    }
    printf(
        "ceilings: read %.2f TB/s, copy %.2f TB/s, bf16 products %.0f TFLOP/s, a launch %.2f us, "
        "stamps %.2f us\n",
        ceilings.read_bytes * 1e-12,
        ceilings.copy_bytes * 1e-12,
        ceilings.bf16_operations * 1e-12,
        ceilings.launch_seconds * 1e6,
        ceilings.stamp_seconds * 1e6
    );
}

static void enqueue_step(struct check *check, const struct check_bench *bench) {
    struct backend *device = check->device;
    if (device->stamp != NULL) {
        device->stamp(device, 0);
    }
    for (int32_t i = 0; i < BENCH_LAUNCHES; i++) {
        const unsigned char *op = bench->ops;
        op += (size_t)(i % bench->count) * bench->op_bytes;
        check_enqueue(check, bench->call, op, bench->op_bytes);
    }
    if (device->stamp != NULL) {
        device->stamp(device, 1);
    }
}

/* One step of BENCH_LAUNCHES ops, replayed when the backend has it recorded; stamps around them where
 * the backend has any. */
static bool bench_step(struct check *check, const struct check_bench *bench, uint64_t key) {
    struct backend *device = check->device;
    if (device->step_begin != NULL && device->step_begin(device, key)) {
        return true;
    }
    enqueue_step(check, bench);
    if (device->step_begin != NULL && !device->step_end(device)) {
        enqueue_step(check, bench);
    }
    return false;
}

void check_bench(struct check *check, const struct check_bench *bench) {
    static uint64_t key = 0x62656E6368000000U; // any that no one else uses
    ASSERT(bench->count > 0);
    key++;
    bool recorded = false;
    // outside a step first: buffers are brought to the device here
    check_enqueue(check, bench->call, bench->ops, bench->op_bytes);
    finish(check);
    for (int i = 0; i < 4 && !recorded; i++) {
        recorded = bench_step(check, bench, key);
        finish(check);
    }
    double best = HUGE_VAL;
    for (int i = 0; i < BENCH_REPEATS; i++) {
        double start = seconds();
        (void)bench_step(check, bench, key);
        finish(check);
        double taken = seconds() - start;
        if (check->device->stamp_seconds != NULL) { // without the way to the device and back
            taken = check->device->stamp_seconds(check->device, 0, 1) - ceilings.stamp_seconds;
        }
        best = fmin(best, taken / BENCH_LAUNCHES);
    }
    if (check->device->step_forget != NULL) {
        check->device->step_forget(check->device);
    }
    const char *suffix = recorded ? "" : "  not recorded";
    printf("bench  %-15s %-20s %10.2f us", check->op, check->shape, best * 1e6);
    if (ceilings.read_bytes > 0 && ceilings.bf16_operations > 0) {
        double by_bytes = bench->bytes / ceilings.read_bytes;
        double by_operations = bench->operations / ceilings.bf16_operations;
        double floor = fmax(fmax(by_bytes, by_operations), ceilings.launch_seconds);
        const char *bound = floor == by_bytes        ? "bytes"
                            : floor == by_operations ? "products"
                                                     : "launch";
        printf("  floor %10.2f us (%s)  ratio %.2f", floor * 1e6, bound, best / floor);
    }
    printf("%s\n", suffix);
    fflush(stdout);
}
