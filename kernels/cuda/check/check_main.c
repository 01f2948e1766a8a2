/* check_ops [--only OP] [--shape TEXT] [--seed S] [--vectors FOLDER] [--emulated] [--bench | --fault]: see
 * check.h. --shape takes the cases whose shape, as it is printed, has TEXT in it.
 * --fault makes the device fail in an op, which is the end of it for this process, and looks at what
 * is said of it.
 *
 * Exit status 0 when every check passed, 1 when one failed, 2 when they could not be run. */
#include "check.h"

#include "base/bytes.h"

struct check_file {
    const char *name;
    void (*check)(struct check *check);
    void (*bench)(struct check *check);
};

#define CHECK_FILE_(name) {#name, check_##name, bench_##name},
static const struct check_file files[] = {CHECK_FILES(CHECK_FILE_)};

static const char usage[] =
    "usage: check_ops [--only OP] [--shape TEXT] [--seed S] [--vectors FOLDER] [--emulated] "
    "[--bench | --fault]\n";

enum check_part { PART_CHECK, PART_BENCH, PART_FAULT };

static void
read_arguments(struct check *check, enum check_part *part, int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        const char *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (strcmp(name, "--emulated") == 0) {
            check->emulated = true;
        } else if (strcmp(name, "--bench") == 0) {
            *part = PART_BENCH;
        } else if (strcmp(name, "--fault") == 0) {
            *part = PART_FAULT;
        } else if (strcmp(name, "--only") == 0 && value != NULL) {
            check->only = value;
            i++;
        } else if (strcmp(name, "--shape") == 0 && value != NULL) {
            check->part = value;
            i++;
        } else if (strcmp(name, "--vectors") == 0 && value != NULL) {
            check->vectors = value;
            i++;
        } else if (strcmp(name, "--seed") == 0 && value != NULL &&
                   parse_u64(view_of_text(value), &check->seed)) {
            i++;
        } else {
            check_stop("%s", usage);
        }
    }
}

static struct backend *
open_backend(const struct check *check, const char *name, const struct check_device *device) {
    struct check_model release = check_model(check, CHECK_RELEASE);
    struct backend_options options = {.name = name};
    options.rows_max = check->limits.rows;
    options.context_max = check->limits.context;
    options.dim_max = 32768; // wo_a's input, all groups
    options.model_dim = 5120;
    options.experts = release.experts;
    options.experts_chosen = release.chosen;
    options.expert_hidden = 2304;
    options.heads = release.heads;
    options.head_dim = release.head_dim;
    options.index_heads = release.index_heads;
    options.index_dim = release.index_dim;
    options.index_topk = release.topk;
    struct error error = {0};
    struct backend *backend = NULL;
    if (is_failed(device->open(&options, &backend, &error))) {
        check_stop("%s", error.message);
    }
    printf("%-6s %s, seed %llu\n", name, backend->description, (unsigned long long)check->seed);
    return backend;
}

/* Two ops; the second reads where there is nothing. Its name comes with the fault, which stays. */
static void check_fault(struct check *check) {
    struct backend *device = check->device;
    struct norm_op op = {.rows = 4, .dim = 64, .eps = 1e-6F};
    void *memory = NULL;
    struct error error = {0};
    if (is_failed(device->allocate(device, 4096, &memory, &error))) {
        check_stop("%s", error.message);
    }
    struct quantize_op good = {
        .rows = 4,
        .dim = 64,
        .x = memory,
        .y = {(uint8_t *)memory + 1024, (uint8_t *)memory + 2048}};
    backend_quantize(device, &good);
    op.x = (const uint16_t *)(uintptr_t)64;
    op.weight = memory;
    op.y = memory;
    backend_norm(device, &op);
    for (int i = 0; i < 2; i++) {
        error.message[0] = '\0';
        result failed = device->synchronize(device, &error);
        bool is_named = failed.code == RESULT_DEVICE && strstr(error.message, "norm") != NULL;
        check->checks++;
        check->failed += is_named ? 0 : 1;
        printf("%s fault: %s\n", is_named ? "ok    " : "FAILED", error.message);
    }
}

int main(int count, char **arguments) {
    static const struct check_device host = {backend_open, backend_close};
    struct check check = {.seed = 1, .vectors = "tests/data/golden/vectors/common"};
    enum check_part part = PART_CHECK;
    read_arguments(&check, &part, count, arguments);
    check.limits =
        check.emulated ? (struct check_limits){512, 16384} : (struct check_limits){4096, 1 << 20};
    check.cpu = open_backend(&check, "cpu", &host);
    check.device = open_backend(&check, "cuda", &check_device);
    if (part == PART_BENCH) {
        check_bench_start(&check);
    } else if (part == PART_FAULT) {
        check_fault(&check);
    }
    for (size_t i = 0; part != PART_FAULT && i < COUNT_OF(files); i++) {
        (part == PART_BENCH ? files[i].bench : files[i].check)(&check);
        check_case_end(&check);
    }
    free(check.host_parts);
    check_device.close(check.device);
    backend_close(check.cpu);
    printf("%d checks, %d failed\n", check.checks, check.failed);
    return check.failed == 0 ? 0 : 1;
}
