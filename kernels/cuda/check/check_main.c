/* check_ops [--only OP] [--seed S] [--vectors FOLDER] [--emulated] [--bench]: see check.h.
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
    "usage: check_ops [--only OP] [--seed S] [--vectors FOLDER] [--emulated] [--bench]\n";

static void read_arguments(struct check *check, bool *bench, int count, char **arguments) {
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i];
        const char *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (strcmp(name, "--emulated") == 0) {
            check->emulated = true;
        } else if (strcmp(name, "--bench") == 0) {
            *bench = true;
        } else if (strcmp(name, "--only") == 0 && value != NULL) {
            check->only = value;
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

int main(int count, char **arguments) {
    static const struct check_device host = {backend_open, backend_close};
    struct check check = {.seed = 1, .vectors = "tests/data/golden/vectors/common"};
    bool bench = false;
    read_arguments(&check, &bench, count, arguments);
    check.limits =
        check.emulated ? (struct check_limits){512, 16384} : (struct check_limits){4096, 1 << 20};
    check.cpu = open_backend(&check, "cpu", &host);
    check.device = open_backend(&check, "cuda", &check_device);
    if (bench) {
        check_bench_start(&check);
    }
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        (bench ? files[i].bench : files[i].check)(&check);
        check_case_end(&check);
    }
    free(check.host_parts);
    check_device.close(check.device);
    backend_close(check.cpu);
    printf("%d checks, %d failed\n", check.checks, check.failed);
    return check.failed == 0 ? 0 : 1;
}
