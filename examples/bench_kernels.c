/* Times the hot ops of the CPU backend at the mini model's and release-like shapes, and states each as
 * a share of what this machine can do: fused multiply-adds and memory reads, measured in this run.
 *
 *   bench_kernels [isa ...]      isa: plain avx2 avx512; default avx2 and avx512 as present
 *
 * Medians of repeated calls: processor time with one thread, so that others on the machine do not
 * count, and time on the clock with two, where they do. */
#include "ceiling.h"
#include "kernel_cases.h"

#include <time.h>

#define SAMPLES_MAX   4001
#define CASE_SECONDS  0.04
#define THREADS_TRIED 2

static clockid_t bench_clock = CLOCK_MONOTONIC;

static double seconds_now(void) {
    struct timespec now;
    if (clock_gettime(bench_clock, &now) != 0) {
        return 0.0;
    }
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : (x > y ? 1 : 0);
}

static double median_seconds(struct backend *backend, const struct bench_case *bench) {
    static double samples[SAMPLES_MAX];
    size_t count = 0;
    bench->run(backend, bench->op);
    double end = seconds_now() + CASE_SECONDS;
    while (count < SAMPLES_MAX && (count < 3 || seconds_now() < end)) {
        double start = seconds_now();
        bench->run(backend, bench->op);
        samples[count++] = seconds_now() - start;
    }
    qsort(samples, count, sizeof samples[0], compare_doubles);
    return samples[count / 2];
}

static void
bench_report(struct backend *backend, const struct bench_case *bench, struct ceiling ceiling) {
    double seconds = median_seconds(backend, bench);
    double flops = bench->flops / seconds;
    double reads = bench->bytes / seconds;
    printf(
        "  %-46s %10.1f us %8.1f GFLOP/s %4.0f %% %7.2f GB/s %4.0f %%\n",
        bench->name,
        seconds * 1e6,
        flops * 1e-9,
        100.0 * flops / ceiling.fma_flops_per_second,
        reads * 1e-9,
        100.0 * reads / ceiling.read_bytes_per_second
    );
}

#define CASES_MAX 32

static size_t make_cases(struct bench_case cases[CASES_MAX]) {
    size_t n = 0;
    cases[n++] = linear_case("fp8", DTYPE_FP8, 1, 128, 512);
    cases[n++] = linear_case("fp8", DTYPE_FP8, 1, 256, 256);
    cases[n++] = linear_case("fp8", DTYPE_FP8, 128, 256, 256);
    cases[n++] = linear_case("fp8", DTYPE_FP8, 1, 5120, 8192);
    cases[n++] = linear_case("fp8", DTYPE_FP8, 128, 5120, 1280);
    cases[n++] = linear_case("fp4", DTYPE_FP4, 1, 5120, 16384);
    cases[n++] = linear_case("fp4", DTYPE_FP4, 64, 5120, 2304);
    cases[n++] = linear_case("bf16", DTYPE_BF16, 1, 256, 4096);
    cases[n++] = linear_case("bf16", DTYPE_BF16, 128, 256, 16);
    cases[n++] = linear_case("bf16", DTYPE_BF16, 1, 5120, 8192);
    cases[n++] = experts_case(1, 256, 160, 4);
    cases[n++] = experts_case(128, 256, 160, 4);
    cases[n++] = experts_case(1, 2560, 1152, 6);
    cases[n++] = attention_case(1, 8, 64, 64, 64);
    cases[n++] = attention_case(128, 8, 64, 64, 64);
    cases[n++] = attention_case(1, 64, 512, 128, 512);
    cases[n++] = select_case(1, 4, 32, 64, 2000);
    cases[n++] = select_case(64, 4, 32, 64, 2000);
    cases[n++] = select_case(1, 32, 128, 512, 8000);
    cases[n++] = mix_case(1, 256);
    cases[n++] = mix_case(128, 256);
    cases[n++] = mix_case(1, 5120);
    ASSERT(n <= CASES_MAX);
    return n;
}

int main(int argc, char **argv) {
    static const char *const usual[2] = {"avx2", "avx512"};
    static struct bench_case cases[CASES_MAX];
    size_t count = make_cases(cases);
    for (int threads = 1; threads <= THREADS_TRIED; threads++) {
        bench_clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        for (int i = 0; i < (argc > 1 ? argc - 1 : 2); i++) {
            struct backend *backend =
                bench_backend_open(argc > 1 ? argv[i + 1] : usual[i], threads);
            if (backend == NULL) {
                continue;
            }
            struct ceiling ceiling = ceiling_measure(threads, bench_clock);
            printf(
                "%s: ceilings %.0f GFLOP/s, %.1f GB/s\n",
                backend->description,
                ceiling.fma_flops_per_second * 1e-9,
                ceiling.read_bytes_per_second * 1e-9
            );
            for (size_t k = 0; k < count; k++) {
                bench_report(backend, &cases[k], ceiling);
            }
            backend_close(backend);
        }
    }
    return 0;
}
