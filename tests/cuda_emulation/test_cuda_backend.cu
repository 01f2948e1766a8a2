/* The host's side of the CUDA backend in the emulation: memory, transfers, recorded steps, faults. The
 * emulation runs a stream at the latest moment allowed, so what is reused or read too early shows. */
#include "kernels/backend_module.h"
#include "kernels/cuda/cuda_device.cuh"
#include "kernels/cuda/cuda_host.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

#define VALUES 64

__global__ void add_kernel(struct mark mark, int32_t *to, const int32_t *from, int32_t more) {
    MARK(mark);
    to[threadIdx.x] += from[threadIdx.x] + more;
}

/* A shuffle from a lane that does not take part: the emulation's fault. */
__global__ void faulty_kernel(struct mark mark, int32_t *to) {
    MARK(mark);
    if (threadIdx.x < 4) {
        to[threadIdx.x] = __shfl_sync(0xf, to[threadIdx.x], 7);
    }
}

static struct backend *open_backend(void) {
    struct error error = {};
    struct backend *backend = NULL;
    struct backend_options options = {};
    options.name = "cuda";
    options.threads = 2;
    options.rows_max = 4;
    options.dim_max = 64;
    if (is_failed(cuda_backend_module.open(&options, &backend, &error))) {
        fail_msg("%s", error.message);
    }
    return backend;
}

static int32_t *take(struct backend *backend, size_t bytes) {
    struct error error = {};
    void *memory = NULL;
    if (is_failed(backend->allocate(backend, bytes, &memory, &error))) {
        fail_msg("%s", error.message);
    }
    return (int32_t *)memory;
}

static void must_run(struct backend *backend) {
    struct error error = {};
    if (is_failed(backend->synchronize(backend, &error))) {
        fail_msg("%s", error.message);
    }
}

static int32_t first_of(struct backend *backend, const int32_t *memory) {
    int32_t got[VALUES];
    backend->download(backend, got, memory, sizeof got);
    for (int i = 1; i < VALUES; i++) {
        assert_int_equal(got[i], got[0]);
    }
    return got[0];
}

static void set_all(struct backend *backend, int32_t *memory, int32_t value) {
    int32_t values[VALUES];
    for (int i = 0; i < VALUES; i++) {
        values[i] = value;
    }
    backend->upload(backend, memory, values, sizeof values);
    memset(values, 0x55, sizeof values); // may be reused at once
}

static void add(struct backend *backend, int32_t *to, const int32_t *from, int32_t more) {
    CUDA_LAUNCH(cuda_of(backend), CUDA_OP_NORM, add_kernel, 1, VALUES, 0, to, from, more);
}

static void facts_are_those_of_the_device(void **state) {
    (void)state;
    struct error error = {};
    struct backend_facts facts = {};
    assert_true(is_ok(cuda_backend_module.probe(0, &facts, &error)));
    assert_string_equal(facts.description, "emulated on the CPU, sm_90, driver 13.0");
    assert_false(facts.is_host_memory);
    assert_true(facts.memory_total == (uint64_t)8 << 30);
    assert_int_equal(cuda_backend_module.probe(1, &facts, &error).code, RESULT_UNSUPPORTED);
    assert_string_equal(error.message, "backend cuda: there is no device 1; GPUs: 1");
}

static void
expect_no_device(const char *name, const char *value, enum result_code code, const char *reason) {
    struct error error = {};
    struct backend_facts facts = {};
    setenv(name, value, 1);
    assert_int_equal(cuda_backend_module.probe(0, &facts, &error).code, code);
    assert_string_equal(error.message, reason);
    unsetenv(name);
    assert_int_equal(cudaGetLastError(), cudaSuccess); // a refusal leaves nothing behind
}

static void machines_without_use_say_why(void **state) {
    (void)state;
    expect_no_device(
        "CUDA_EMULATION_DRIVER", "0", RESULT_NOT_FOUND, "backend cuda: there is no NVIDIA driver"
    );
    expect_no_device(
        "CUDA_EMULATION_DEVICES", "0", RESULT_NOT_FOUND, "backend cuda: there is no NVIDIA GPU"
    );
    expect_no_device(
        "CUDA_EMULATION_DRIVER",
        "12040",
        RESULT_UNSUPPORTED,
        "backend cuda: the driver is too old: it goes up to CUDA 12.4, this build needs 13.0"
    );
    expect_no_device(
        "CUDA_EMULATION_ARCHITECTURE",
        "100",
        RESULT_UNSUPPORTED,
        "backend cuda: this build has no code for emulated on the CPU, sm_100"
    );
}

static void opening_needs_memory_for_scratch(void **state) {
    (void)state;
    struct error error = {};
    struct backend *backend = NULL;
    struct backend_options options = {};
    options.threads = 1;
    options.rows_max = 512;
    options.dim_max = 4096;
    options.model_dim = 1024;
    options.experts = 32;
    options.experts_chosen = 4;
    options.expert_hidden = 512;
    uint64_t scratch = cuda_backend_module.scratch_bytes(&options);
    assert_true(scratch > 4096);
    setenv("CUDA_EMULATION_MEMORY", "4096", 1);
    assert_int_equal(cuda_backend_module.open(&options, &backend, &error).code, RESULT_MEMORY);
    unsetenv("CUDA_EMULATION_MEMORY");
    char asked[96];
    (void)snprintf(
        asked,
        sizeof asked,
        "scratch memory: cuda: cannot allocate %llu bytes",
        (unsigned long long)scratch
    );
    assert_non_null(strstr(error.message, asked));
    assert_null(backend);
    assert_true(is_ok(cuda_backend_module.open(&options, &backend, &error)));
    backend_close(backend);
}

static void shapes_without_room_are_refused(void **state) {
    (void)state;
    struct error error = {};
    struct backend *backend = NULL;
    struct backend_options options = {};
    options.rows_max = 1;
    options.dim_max = 32;
    options.head_dim = CUDA_HEAD_DIM_MAX + 32;
    assert_int_equal(cuda_backend_module.open(&options, &backend, &error).code, RESULT_UNSUPPORTED);
    assert_null(backend);
}

static void memory_is_zeroed_and_counted(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    size_t before = cuda_of(backend)->host->device_bytes;
    unsigned char got[1000];
    int32_t *memory = take(backend, sizeof got);
    assert_true((uintptr_t)memory % 64 == 0);
    backend->download(backend, got, memory, sizeof got);
    for (size_t i = 0; i < sizeof got; i++) {
        assert_int_equal(got[i], 0);
    }
    assert_int_equal(cuda_of(backend)->host->device_bytes, before + sizeof got);
    struct error error = {};
    void *shared = NULL;
    assert_true(is_ok(backend->allocate_host(backend, 300, &shared, &error)));
    assert_int_equal(((unsigned char *)shared)[299], 0);
    assert_int_equal(cuda_of(backend)->host->device_bytes, before + sizeof got);
    for (int i = 0; i < 40; i++) { // the list grows
        backend->release(backend, take(backend, 0));
        assert_non_null(take(backend, (size_t)i));
    }
    backend->release(backend, NULL);
    backend->release(backend, shared);
    backend->release(backend, memory);
    struct cuda_host *host = cuda_of(backend)->host;
    while (host->allocation_count > 1) { // all but scratch
        backend->release(backend, host->allocations[host->allocation_count - 1].memory);
    }
    assert_int_equal(host->device_bytes, before);
    backend_close(backend);
}

static void too_much_memory_is_refused_with_numbers(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    const size_t sizes[] = {(size_t)9 << 30, SIZE_MAX};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct error error = {};
        void *memory = NULL;
        assert_int_equal(backend->allocate(backend, sizes[i], &memory, &error).code, RESULT_MEMORY);
        char asked[64];
        (void)snprintf(asked, sizeof asked, "allocate %zu bytes of device memory", sizes[i]);
        assert_non_null(strstr(error.message, asked));
        assert_non_null(strstr(error.message, "of 8589934592, "));
        assert_null(memory);
    }
    int32_t *memory = take(backend, VALUES * 4);
    add(backend, memory, memory, 1); // no launch finds the refusal
    assert_int_equal(first_of(backend, memory), 1);
    must_run(backend);
    backend->release(backend, memory);
    backend_close(backend);
}

/* Larger than the whole ring of staging, at an odd place, from a source that changes at once. */
static void large_transfers_arrive(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    size_t bytes = (CUDA_UPLOAD_SLOTS + 2) * CUDA_UPLOAD_SLOT_BYTES + 12345;
    unsigned char *host = (unsigned char *)malloc(bytes);
    unsigned char *got = (unsigned char *)malloc(bytes);
    unsigned char *device = (unsigned char *)take(backend, bytes + 3);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < bytes; i++) {
            host[i] = (unsigned char)(i * 7 + i / 4096 + (size_t)round);
        }
        backend->upload(backend, device + 3, host, bytes);
        memset(host, 0x55, bytes);
        backend->download(backend, got, device + 3, bytes);
        for (size_t i = 0; i < bytes; i++) {
            if (got[i] != (unsigned char)(i * 7 + i / 4096 + (size_t)round)) {
                fail_msg("round %d: byte %zu is %d", round, i, got[i]);
            }
        }
    }
    must_run(backend);
    backend->release(backend, device);
    free(host);
    free(got);
    backend_close(backend);
}

static result refuse_host(struct backend *backend, size_t bytes, void **out, struct error *error) {
    (void)backend;
    (void)out;
    FAIL(error, MEMORY, "no %zu bytes of pinned memory", bytes);
}

/* Straight into pinned memory, not by way of the halves; where it is refused the bytes come all the same. */
static void staging_is_pinned_or_says_why(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    struct backend refusing = *backend;
    refusing.allocate_host = refuse_host;
    size_t bytes = 2 * CUDA_DOWNLOAD_BYTES + 12345;
    unsigned char *half = cuda_of(backend)->host->download[0];
    unsigned char *device = (unsigned char *)take(backend, bytes);
    for (int round = 0; round < 2; round++) {
        bool is_refused = round == 1;
        struct error error = {};
        struct error refusal = {};
        struct backend_staging staging = {};
        struct backend *from = is_refused ? &refusing : backend;
        assert_true(is_ok(backend_staging_take(from, bytes, &staging, &refusal, &error)));
        unsigned char *got = (unsigned char *)staging.memory;
        assert_int_equal(staging.is_pinned, !is_refused);
        assert_int_equal(strstr(refusal.message, "pinned memory") != NULL, is_refused);
        assert_int_equal(got[bytes - 1], 0);
        memset(got, round + 1, bytes);
        backend->upload(backend, device, got, bytes);
        memset(got, 0x55, bytes);
        memset(half, 0x66, CUDA_DOWNLOAD_BYTES);
        backend->download(backend, got + 7, device + 7, bytes - 7);
        assert_int_equal(half[0], is_refused ? round + 1 : 0x66);
        assert_int_equal(got[6], 0x55);
        for (size_t i = 7; i < bytes; i++) {
            assert_int_equal(got[i], round + 1);
        }
        backend_staging_release(from, &staging);
        assert_null(staging.memory);
        backend_staging_release(from, &staging);
    }
    must_run(backend);
    backend->release(backend, device);
    backend_close(backend);
}

/* Thousands of small ones, each before the op that reads it: the ring goes round several times. */
static void small_uploads_stay_in_the_order_of_the_ops(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    int32_t *sum = take(backend, VALUES * 4);
    int32_t *one = take(backend, VALUES * 4);
    int32_t *twin = take(backend, VALUES * 4);
    int32_t expected = 0;
    int32_t count = (int32_t)(3 * CUDA_UPLOAD_SLOTS * CUDA_UPLOAD_SLOT_BYTES / (VALUES * 4));
    for (int32_t i = 0; i < count; i++) {
        set_all(backend, one, i % 1000);
        backend->copy(backend, twin, one, VALUES * 4);
        if (i % 64 == 0) {
            add(backend, sum, twin, 0);
            expected += i % 1000;
        }
    }
    assert_int_equal(first_of(backend, sum), expected);
    must_run(backend);
    backend->release(backend, sum);
    backend->release(backend, one);
    backend->release(backend, twin);
    backend_close(backend);
}

/* One step: sum += one + 1, by way of a copy. Returns how it ran: 'p' plainly, 'n' newly recorded, 'r'
 * replayed, 'f' recording failed and it ran plainly after all. */
struct stepper {
    struct backend *backend;
    int32_t *sum, *one, *twin;
    bool spoil; /* wait while recording, which no driver takes */
};

static void step_ops(struct stepper *s) {
    struct backend *backend = s->backend;
    backend->copy(backend, s->twin, s->one, VALUES * 4);
    if (s->spoil) {
        (void)cudaStreamSynchronize(cuda_of(backend)->stream);
    }
    add(backend, s->sum, s->twin, 1);
}

static char step(struct stepper *s, uint64_t key) {
    struct backend *backend = s->backend;
    if (backend->step_begin(backend, key)) {
        return 'r';
    }
    bool records = cuda_of(backend)->host->recording != NULL;
    step_ops(s);
    if (!backend->step_end(backend)) {
        s->spoil = false;
        step_ops(s);
        return 'f';
    }
    return records ? 'n' : 'p';
}

static struct stepper open_stepper(void) {
    struct backend *backend = open_backend();
    size_t bytes = VALUES * 4;
    struct stepper s = {
        backend, take(backend, bytes), take(backend, bytes), take(backend, bytes), false};
    return s;
}

static void close_stepper(struct stepper *s) {
    must_run(s->backend);
    s->backend->step_forget(s->backend);
    s->backend->release(s->backend, s->sum);
    s->backend->release(s->backend, s->one);
    s->backend->release(s->backend, s->twin);
    backend_close(s->backend);
}

static void steps_are_replayed_with_what_memory_holds_then(void **state) {
    (void)state;
    struct stepper s = open_stepper();
    int32_t expected = 0;
    const char *ways = "pnrrr";
    for (int32_t i = 0; i < 5; i++) {
        set_all(s.backend, s.one, 10 * i);
        assert_int_equal(step(&s, 7), ways[i]);
        expected += 10 * i + 1;
        assert_int_equal(first_of(s.backend, s.sum), expected);
    }
    assert_int_equal(step(&s, 8), 'p');
    s.backend->step_forget(s.backend);
    assert_int_equal(step(&s, 7), 'p');
    close_stepper(&s);
}

static void the_step_that_was_not_used_longest_gives_way(void **state) {
    (void)state;
    struct stepper s = open_stepper();
    int32_t runs = 0;
    for (uint64_t key = 0; key < CUDA_STEPS_MAX; key++, runs += 2) {
        assert_int_equal(step(&s, key), 'p');
        assert_int_equal(step(&s, key), 'n');
    }
    assert_int_equal(step(&s, 0), 'r'); // now 1 is the oldest
    assert_int_equal(step(&s, 1000), 'p');
    assert_int_equal(step(&s, 0), 'r');
    assert_int_equal(step(&s, 2), 'r');
    assert_int_equal(step(&s, 1), 'p');
    assert_int_equal(step(&s, 1000), 'n');
    assert_int_equal(first_of(s.backend, s.sum), runs + 6);
    close_stepper(&s);
}

static void a_recording_that_fails_runs_plainly_for_ever(void **state) {
    (void)state;
    struct stepper s = open_stepper();
    assert_int_equal(step(&s, 1), 'p');
    assert_int_equal(step(&s, 1), 'n');
    assert_int_equal(step(&s, 2), 'p');
    s.spoil = true;
    assert_int_equal(step(&s, 2), 'f');
    assert_int_equal(step(&s, 2), 'p');
    assert_int_equal(step(&s, 3), 'p');
    assert_int_equal(step(&s, 3), 'p');
    assert_int_equal(step(&s, 1), 'r'); // what is recorded stays so
    assert_int_equal(first_of(s.backend, s.sum), 8);
    close_stepper(&s);
}

struct other {
    struct stepper *stepper;
    int32_t *to, *from;
    bool done; /* of its copy; atomic */
};

static void *copy_from_elsewhere(void *argument) {
    struct other *other = (struct other *)argument;
    struct backend *backend = other->stepper->backend;
    backend->copy(backend, other->to, other->from, VALUES * 4);
    __atomic_store_n(&other->done, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A fork copies blocks while a step is recorded: once, not with each replay. */
static void copies_of_other_threads_stay_out_of_a_record(void **state) {
    (void)state;
    struct stepper s = open_stepper();
    struct other other = {&s, take(s.backend, VALUES * 4), take(s.backend, VALUES * 4), false};
    set_all(s.backend, other.from, 5);
    assert_int_equal(step(&s, 1), 'p');
    assert_false(s.backend->step_begin(s.backend, 1));
    assert_non_null(cuda_of(s.backend)->host->recording);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, copy_from_elsewhere, &other), 0);
    step_ops(&s);
    for (int i = 0; i < 100; i++) { // it would get through soon, if it could
        (void)sched_yield();
    }
    assert_false(__atomic_load_n(&other.done, __ATOMIC_SEQ_CST));
    assert_true(s.backend->step_end(s.backend));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(first_of(s.backend, other.to), 5);
    set_all(s.backend, other.to, 6);
    assert_int_equal(step(&s, 1), 'r');
    assert_int_equal(first_of(s.backend, other.to), 6);
    s.backend->release(s.backend, other.to);
    s.backend->release(s.backend, other.from);
    close_stepper(&s);
}

static void stamps_mark_moments_of_replays_too(void **state) {
    (void)state;
    struct stepper s = open_stepper();
    struct backend *backend = s.backend;
    for (int i = 0; i < 4; i++) {
        if (!backend->step_begin(backend, 1)) {
            backend->stamp(backend, 0);
            step_ops(&s);
            backend->stamp(backend, 1);
            assert_true(backend->step_end(backend));
        }
        must_run(backend);
        double seconds = backend->stamp_seconds(backend, 0, 1);
        assert_true(seconds > 0.0 && seconds < 60.0);
        backend->stamp(backend, 2);
        must_run(backend);
        assert_true(backend->stamp_seconds(backend, 1, 2) > 0.0); // the replay moved stamp 1
        assert_true(backend->stamp_seconds(backend, 1, 2) < 60.0);
    }
    close_stepper(&s);
}

static void count_piece(void *context, int32_t piece) {
    __atomic_fetch_add((int32_t *)context, piece, __ATOMIC_SEQ_CST);
}

static void host_work_is_spread(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    int32_t sum = 0;
    backend_spread(backend, count_piece, &sum, 100, 1000000000);
    assert_int_equal(sum, 4950);
    backend_close(backend);
}

/* Refused launches name the op that asked; the device itself is all right then, but stays unused. */
static void a_refused_launch_names_its_op(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    int32_t *memory = take(backend, VALUES * 4);
    CUDA_LAUNCH(cuda_of(backend), CUDA_OP_ROUTE, faulty_kernel, 1, 4096, 0, memory);
    struct error error = {};
    assert_int_equal(backend->synchronize(backend, &error).code, RESULT_DEVICE);
    assert_non_null(strstr(error.message, "device fault in route: invalid configuration"));
    assert_int_equal(error.foreign, cudaErrorInvalidConfiguration);
    backend->release(backend, memory);
    backend_close(backend);
}

/* The last one: the emulated device stays faulty, as a real one does. */
static void a_fault_is_kept_and_names_the_op_that_ran(void **state) {
    (void)state;
    struct backend *backend = open_backend();
    int32_t *memory = take(backend, VALUES * 4);
    set_all(backend, memory, 3);
    CUDA_LAUNCH(cuda_of(backend), CUDA_OP_ATTENTION, faulty_kernel, 1, VALUES, 0, memory);
    add(backend, memory, memory, 1); // of "norm", which never begins
    for (int i = 0; i < 3; i++) {
        struct error error = {};
        assert_int_equal(backend->synchronize(backend, &error).code, RESULT_DEVICE);
        assert_non_null(strstr(error.message, "device fault in attention: "));
        assert_int_equal(error.foreign, cudaErrorLaunchFailure);
    }
    assert_int_equal(first_of(backend, memory), 0); // downloads give zeros
    set_all(backend, memory, 3);
    assert_true(backend->step_begin(backend, 1)); // nothing needs to be enqueued
    backend->step_forget(backend);
    struct error error = {};
    void *more = NULL;
    assert_int_equal(backend->allocate(backend, 64, &more, &error).code, RESULT_DEVICE);
    backend->release(backend, memory);
    backend_close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_are_those_of_the_device),
        cmocka_unit_test(machines_without_use_say_why),
        cmocka_unit_test(shapes_without_room_are_refused),
        cmocka_unit_test(opening_needs_memory_for_scratch),
        cmocka_unit_test(memory_is_zeroed_and_counted),
        cmocka_unit_test(too_much_memory_is_refused_with_numbers),
        cmocka_unit_test(staging_is_pinned_or_says_why),
        cmocka_unit_test(large_transfers_arrive),
        cmocka_unit_test(small_uploads_stay_in_the_order_of_the_ops),
        cmocka_unit_test(steps_are_replayed_with_what_memory_holds_then),
        cmocka_unit_test(the_step_that_was_not_used_longest_gives_way),
        cmocka_unit_test(a_recording_that_fails_runs_plainly_for_ever),
        cmocka_unit_test(copies_of_other_threads_stay_out_of_a_record),
        cmocka_unit_test(stamps_mark_moments_of_replays_too),
        cmocka_unit_test(host_work_is_spread),
        cmocka_unit_test(a_refused_launch_names_its_op),
        cmocka_unit_test(a_fault_is_kept_and_names_the_op_that_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
