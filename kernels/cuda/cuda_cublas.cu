/* cublasLt through dlopen. Built without its header, every call says so. */
#include "cuda_cublas.h"

#include <stdlib.h>
#include <string.h>

#if !defined(CUDA_EMULATION) && defined(__has_include)
#if __has_include(<cublasLt.h>)
#define HAVE_CUBLASLT
#endif
#endif

#ifdef HAVE_CUBLASLT

#include <cublasLt.h>
#include <dlfcn.h>

#define TEXT_OF_(x)     #x
#define TEXT_OF(x)      TEXT_OF_(x)
#define LIBRARY         "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)
#define WORKSPACE_BYTES ((size_t)64 << 20) /* what NVIDIA suggests for Hopper is half of it */
#define CANDIDATES      32

#define FUNCTIONS(X)                                                                               \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)

struct cuda_cublas {
    void *library;
#define FIELD(name) decltype(&::name) name;
    FUNCTIONS(FIELD)
#undef FIELD
    cublasLtHandle_t handle;
    void *workspace; /* device */
};

static result load(struct cuda_cublas *cublas, struct error *error) {
    // The loader's paths first, then where the toolkit puts it.
    cublas->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (cublas->library == nullptr) {
        cublas->library = dlopen("/usr/local/cuda/lib64/" LIBRARY, RTLD_NOW | RTLD_LOCAL);
    }
    if (cublas->library == nullptr) {
        FAIL(error, UNSUPPORTED, LIBRARY " is not there");
    }
#define LOAD(name)                                                                                 \
    cublas->name = reinterpret_cast<decltype(cublas->name)>(dlsym(cublas->library, #name));        \
    if (cublas->name == nullptr) {                                                                 \
        FAIL(error, UNSUPPORTED, LIBRARY " has no " #name);                                        \
    }
    FUNCTIONS(LOAD)
#undef LOAD
    cublasStatus_t status = cublas->cublasLtCreate(&cublas->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        FAIL(error, UNSUPPORTED, "cublasLtCreate gives status %d", (int)status);
    }
    if (cudaMalloc(&cublas->workspace, WORKSPACE_BYTES) != cudaSuccess) {
        (void)cudaGetLastError(); // it is told here and nowhere else
        FAIL(error, UNSUPPORTED, "no %zu bytes of device memory for cublasLt", WORKSPACE_BYTES);
    }
    return OK;
}

void cuda_cublas_close(struct cuda_cublas *cublas) {
    if (cublas == nullptr) {
        return;
    }
    cudaFree(cublas->workspace);
    if (cublas->handle != nullptr) {
        cublas->cublasLtDestroy(cublas->handle);
    }
    if (cublas->library != nullptr) {
        dlclose(cublas->library);
    }
    free(cublas);
}

result cuda_cublas_open(struct cuda_cublas **out, struct error *error) {
    struct cuda_cublas *cublas = static_cast<struct cuda_cublas *>(calloc(1, sizeof *cublas));
    if (cublas == nullptr) {
        FAIL(error, MEMORY, "no memory for cublasLt's table");
    }
    result loaded = load(cublas, error);
    if (is_failed(loaded)) {
        cuda_cublas_close(cublas);
        return loaded;
    }
    *out = cublas;
    return loaded;
}

/* The library is column-major: it sees w as [in, out] to be transposed, x as [in, rows], y as
 * [out, rows]. */
struct descriptors {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
};

static cudaDataType_t data_type(enum dtype dtype) {
    return dtype == DTYPE_F32 ? CUDA_R_32F : (dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3);
}

static void descriptors_destroy(struct cuda_cublas *cublas, struct descriptors *d) {
    cublasLtMatrixLayout_t layouts[3] = {d->w, d->x, d->y};
    for (cublasLtMatrixLayout_t layout : layouts) {
        if (layout != nullptr) {
            cublas->cublasLtMatrixLayoutDestroy(layout);
        }
    }
    if (d->product != nullptr) {
        cublas->cublasLtMatmulDescDestroy(d->product);
    }
}

static bool descriptors_create(
    struct cuda_cublas *cublas, const struct cuda_cublas_product *p, struct descriptors *d
) {
    cudaDataType_t inputs = data_type(p->inputs);
    uint64_t in = (uint64_t)p->in;
    uint64_t out = (uint64_t)p->out;
    uint64_t rows = (uint64_t)p->rows;
    cublasOperation_t transposed = CUBLAS_OP_T;
    *d = {};
    cublasStatus_t status[] = {
        cublas->cublasLtMatmulDescCreate(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        cublas->cublasLtMatrixLayoutCreate(&d->w, inputs, in, out, (int64_t)in),
        cublas->cublasLtMatrixLayoutCreate(&d->x, inputs, in, rows, (int64_t)in),
        cublas->cublasLtMatrixLayoutCreate(&d->y, data_type(p->output), out, rows, (int64_t)out),
        d->product == nullptr
            ? CUBLAS_STATUS_ALLOC_FAILED
            : cublas->cublasLtMatmulDescSetAttribute(
                  d->product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed
              ),
    };
    for (cublasStatus_t s : status) {
        if (s != CUBLAS_STATUS_SUCCESS) {
            descriptors_destroy(cublas, d);
            return false;
        }
    }
    return true;
}

/* Candidates, best first; 0 when it has none. */
static int candidates(
    struct cuda_cublas *cublas,
    const struct cuda_cublas_product *product,
    size_t workspace,
    cublasLtMatmulHeuristicResult_t found[CANDIDATES]
) {
    struct descriptors d;
    if (!descriptors_create(cublas, product, &d)) {
        return 0;
    }
    int count = 0;
    cublasLtMatmulPreference_t preference = nullptr;
    if (cublas->cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS) {
        cublasLtMatmulPreferenceAttributes_t most = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        if (cublas->cublasLtMatmulPreferenceSetAttribute(
                preference, most, &workspace, sizeof workspace
            ) != CUBLAS_STATUS_SUCCESS ||
            cublas->cublasLtMatmulAlgoGetHeuristic(
                cublas->handle, d.product, d.w, d.x, d.y, d.y, preference, CANDIDATES, found, &count
            ) != CUBLAS_STATUS_SUCCESS) {
            count = 0;
        }
        cublas->cublasLtMatmulPreferenceDestroy(preference);
    }
    descriptors_destroy(cublas, &d);
    return count;
}

static bool adds_in_one_pass(struct cuda_cublas *cublas, const cublasLtMatmulAlgo_t *algorithm) {
    int32_t split = 0;
    uint32_t reduction = ~0U;
    size_t written = 0;
    return cublas->cublasLtMatmulAlgoConfigGetAttribute(
               algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split, sizeof split, &written
           ) == CUBLAS_STATUS_SUCCESS &&
           cublas->cublasLtMatmulAlgoConfigGetAttribute(
               algorithm,
               CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
               &reduction,
               sizeof reduction,
               &written
           ) == CUBLAS_STATUS_SUCCESS &&
           split >= 0 && split <= 1 && reduction == CUBLASLT_REDUCTION_SCHEME_NONE;
}

result cuda_cublas_choose(
    struct cuda_cublas *cublas,
    const struct cuda_cublas_product *product,
    bool pinned,
    struct cuda_cublas_algorithm *out,
    struct error *error
) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof *out, "an algorithm is 64 bytes");
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count = candidates(cublas, product, pinned ? 0 : WORKSPACE_BYTES, found);
    for (int i = 0; i < count; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS &&
            (!pinned || adds_in_one_pass(cublas, &found[i].algo))) {
            memcpy(out, &found[i].algo, sizeof *out);
            return OK;
        }
    }
    FAIL(
        error,
        UNSUPPORTED,
        "cublasLt has no algorithm for %d rows of %d to %d",
        (int)product->rows,
        (int)product->in,
        (int)product->out
    );
}

result cuda_cublas_enqueue(
    struct cuda_cublas *cublas,
    const struct cuda_cublas_product *product,
    const struct cuda_cublas_algorithm *algorithm,
    const void *x,
    const void *w,
    void *y,
    cudaStream_t stream,
    struct error *error
) {
    struct descriptors d;
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, algorithm, sizeof algo);
    cublasStatus_t status = CUBLAS_STATUS_ALLOC_FAILED;
    if (descriptors_create(cublas, product, &d)) {
        cublasLtMatmulHeuristicResult_t needs = {};
        status = cublas->cublasLtMatmulAlgoCheck(
            cublas->handle, d.product, d.w, d.x, d.y, d.y, &algo, &needs
        );
        if (status == CUBLAS_STATUS_SUCCESS && needs.workspaceSize <= WORKSPACE_BYTES) {
            float one = 1.0F;
            float zero = 0.0F;
            status = cublas->cublasLtMatmul(
                cublas->handle,
                d.product,
                &one,
                w,
                d.w,
                x,
                d.x,
                &zero,
                y,
                d.y,
                y,
                d.y,
                &algo,
                cublas->workspace,
                WORKSPACE_BYTES,
                stream
            );
        }
        descriptors_destroy(cublas, &d);
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        FAIL(error, UNSUPPORTED, "cublasLt takes no %d rows here: %d", (int)product->rows, status);
    }
    return OK;
}

#else

#define ABSENT(error) FAIL(error, UNSUPPORTED, "built without cublasLt.h")

result cuda_cublas_open(struct cuda_cublas **, struct error *error) {
    ABSENT(error);
}

void cuda_cublas_close(struct cuda_cublas *) {
}

result cuda_cublas_choose(
    struct cuda_cublas *,
    const struct cuda_cublas_product *,
    bool,
    struct cuda_cublas_algorithm *,
    struct error *error
) {
    ABSENT(error);
}

result cuda_cublas_enqueue(
    struct cuda_cublas *,
    const struct cuda_cublas_product *,
    const struct cuda_cublas_algorithm *,
    const void *,
    const void *,
    void *,
    cudaStream_t,
    struct error *error
) {
    ABSENT(error);
}

#endif
