/* Runs kernels: the threads of a block as fibers on one CPU thread, block after block.
 *
 * A fiber gives way only where it must wait: at the block's barrier, or at a warp-wide operation whose
 * other lanes have not come. The last lane to come does the operation for all. When nobody can go on
 * and somebody has not ended, the block is deadlocked. CUDA_EMULATION_ORDER=0 (the default) runs
 * threads in the order in which they became ready; any other number is the seed of a random order,
 * which shows what a missing barrier leaves to chance.
 */
#include "cuda_emulation_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_EMULATION_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_EMULATION_ASAN 1
#endif
#endif
#ifdef CUDA_EMULATION_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define __asan_unpoison_memory_region(at, bytes) ((void)0)
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

#define THREADS_MAX 1024
#define WARPS_MAX   (THREADS_MAX / 32)
#define STACK_BYTES ((size_t)256 << 10) /* of address space; pages come as they are touched */
#define OPEN_MAX    32                  /* warp-wide operations with disjoint masks */

/* ---- fibers ---- */

struct fiber {
#ifdef __x86_64__
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    unsigned char *stack; /* for the host's fiber: filled in when it is left */
    size_t stack_bytes;
    void *fake_stack;
    bool started;
};

struct copy {
    void *to;
    const void *from; /* null: zeros */
    int bytes;
    int group;
};

enum thread_state { THREAD_READY, THREAD_WAITS, THREAD_ENDED };

struct thread {
    struct fiber fiber;
    struct uint3 index;
    int linear;
    enum thread_state state;
    const char *waits_at; /* for reports */
    const char *file;
    int line;
    std::vector<copy> copies; /* asynchronous ones under way, oldest first */
    int copy_groups;          /* committed so far */
};

struct open_collective {
    const struct cuda_emulation_collective *collective;
    uint32_t mask, arrived;
    void *lanes[32];
    const char *file;
    int line;
};

struct warp {
    uint32_t alive;
    int open_count;
    struct open_collective open[OPEN_MAX];
};

struct barrier {
    const char *name, *file;
    int line;
    int arrived, yes;
    struct cuda_emulation_votes result; /* of the last round */
};

struct cuda_emulation_place cuda_emulation_place;

static const struct cuda_emulation_launch *launch; /* the one that runs */
static struct thread threads[THREADS_MAX];
static struct warp warps[WARPS_MAX];
static struct barrier barrier;
static struct thread *here; /* null: the host */
static struct fiber host;
static struct fiber *left; /* the fiber that the last change of fibers left */
static int alive_count;
static int ready[THREADS_MAX]; /* a ring */
static int ready_first, ready_count;
static bool failed;
static uint64_t order;
static unsigned char *dynamic_shared;

#ifdef __x86_64__
/* Saves the callee-saved registers on the stack, and the stack pointer; then the reverse. */
extern "C" __attribute__((visibility("hidden"))) void cuda_emulation_switch(void **from, void *to);
asm(".text\n"
    ".globl cuda_emulation_switch\n"
    ".hidden cuda_emulation_switch\n"
    ".type cuda_emulation_switch, @function\n"
    "cuda_emulation_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size cuda_emulation_switch, . - cuda_emulation_switch\n");
#endif

static void fiber_main(void);

static void fiber_start(struct fiber *fiber) {
    if (fiber->stack == nullptr) {
        void *stack =
            mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) {
            perror("cuda emulation: mmap");
            abort();
        }
        mprotect(stack, 4096, PROT_NONE); // a stack that overflows faults
        fiber->stack = (unsigned char *)stack;
        fiber->stack_bytes = STACK_BYTES;
    }
    __asan_unpoison_memory_region(fiber->stack + 4096, fiber->stack_bytes - 4096);
    fiber->fake_stack = nullptr;
#ifdef __x86_64__
    void **top = (void **)(fiber->stack + fiber->stack_bytes);
    *--top = nullptr; // where a return address would be
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    fiber->stack_pointer = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->stack_bytes;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
#endif
    fiber->started = true;
}

/* Every fiber does this first when it gets the CPU. */
static void fiber_arrive(struct fiber *self) {
    (void)self;
#ifdef CUDA_EMULATION_ASAN
    const void *bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &bytes);
    if (left == &host) {
        host.stack = (unsigned char *)bottom;
        host.stack_bytes = bytes;
    }
#endif
}

static void fiber_change(struct fiber *from, struct fiber *to) {
    left = from;
#ifdef CUDA_EMULATION_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef __x86_64__
    cuda_emulation_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->context, &to->context);
#endif
    fiber_arrive(from);
}

/* ---- the scheduler ---- */

static void make_ready(struct thread *thread) {
    thread->state = THREAD_READY;
    ready[(ready_first + ready_count) % THREADS_MAX] = thread->linear;
    ready_count++;
}

static struct thread *take_ready(void) {
    if (order != 0) {
        order = order * 6364136223846793005U + 1442695040888963407U;
        int picked = (ready_first + (int)((order >> 33) % (unsigned)ready_count)) % THREADS_MAX;
        int first = ready[ready_first];
        ready[ready_first] = ready[picked];
        ready[picked] = first;
    }
    int index = ready[ready_first];
    ready_first = (ready_first + 1) % THREADS_MAX;
    ready_count--;
    return &threads[index];
}

static void go_on(struct thread *thread) {
    here = thread;
    cuda_emulation_place.thread = thread->index;
}

static void describe_launch(char *text, size_t bytes) {
    struct uint3 block = cuda_emulation_place.block;
    snprintf(
        text,
        bytes,
        "cuda emulation: %s %s, block (%u, %u, %u)",
        launch->op,
        launch->kernel,
        block.x,
        block.y,
        block.z
    );
}

/* Says where the threads of the block stand: one line per place, with the first thread there. */
static void report_deadlock(void) {
    char what[512];
    describe_launch(what, sizeof what);
    fprintf(stderr, "%s: deadlock\n", what);
    int count = (int)(launch->block.x * launch->block.y * launch->block.z);
    std::vector<bool> told((size_t)count, false);
    for (int i = 0; i < count; i++) {
        if (told[(size_t)i]) {
            continue;
        }
        int same = 0;
        for (int j = i; j < count; j++) {
            bool equal = threads[j].state == threads[i].state;
            if (equal && threads[i].state != THREAD_ENDED) {
                equal = threads[j].waits_at == threads[i].waits_at &&
                        threads[j].line == threads[i].line && threads[j].file == threads[i].file;
            }
            if (equal) {
                told[(size_t)j] = true;
                same++;
            }
        }
        if (threads[i].state == THREAD_ENDED) {
            fprintf(stderr, "  %d ended, the first of them thread %d\n", same, i);
        } else {
            fprintf(
                stderr,
                "  %d at %s, %s:%d, the first of them thread %d\n",
                same,
                threads[i].waits_at,
                threads[i].file,
                threads[i].line,
                i
            );
        }
    }
}

[[noreturn]] static void leave_failed(void) {
    failed = true;
    struct fiber *self = &here->fiber;
    here = nullptr;
    fiber_change(self, &host);
    abort(); // nobody continues a thread of a failed launch
}

void cuda_emulation_fail(const char *format, ...) {
    if (here == nullptr) {
        fprintf(stderr, "cuda emulation: device code called by the host\n");
        abort();
    }
    char what[512];
    char message[512];
    describe_launch(what, sizeof what);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fprintf(
        stderr,
        "%s, thread (%u, %u, %u): %s\n",
        what,
        here->index.x,
        here->index.y,
        here->index.z,
        message
    );
    leave_failed();
}

/* Lets another thread run; comes back when the caller is ready and its turn has come. */
static void give_way(void) {
    struct thread *self = here;
    if (ready_count == 0) {
        report_deadlock();
        leave_failed();
    }
    struct thread *next = take_ready();
    if (next == self) {
        return;
    }
    go_on(next);
    fiber_change(&self->fiber, &next->fiber);
}

static void wait_at(const char *name, const char *file, int line) {
    here->state = THREAD_WAITS;
    here->waits_at = name;
    here->file = file;
    here->line = line;
    give_way();
}

static void finish_barrier(void) {
    barrier.result.yes = barrier.yes;
    barrier.result.all = barrier.arrived;
    barrier.arrived = 0;
    barrier.yes = 0;
    int count = (int)(launch->block.x * launch->block.y * launch->block.z);
    for (int i = 0; i < count; i++) {
        if (threads[i].state == THREAD_WAITS && threads[i].waits_at == barrier.name) {
            make_ready(&threads[i]);
        }
    }
}

struct cuda_emulation_votes
cuda_emulation_barrier(const char *name, bool predicate, const char *file, int line) {
    if (barrier.arrived == 0) {
        barrier.name = name;
        barrier.file = file;
        barrier.line = line;
    } else if (barrier.line != line || strcmp(barrier.name, name) != 0 || strcmp(barrier.file, file) != 0) {
        cuda_emulation_fail(
            "%s at %s:%d while others of the block wait at %s of %s:%d",
            name,
            file,
            line,
            barrier.name,
            barrier.file,
            barrier.line
        );
    }
    barrier.arrived++;
    barrier.yes += predicate ? 1 : 0;
    here->state = THREAD_WAITS;
    here->waits_at = barrier.name;
    here->file = file;
    here->line = line;
    if (barrier.arrived == alive_count) {
        finish_barrier();
    }
    give_way();
    return barrier.result;
}

/* ---- warps ---- */

int cuda_emulation_lane(void) {
    return here->linear % 32;
}

static void finish_collective(struct warp *warp, struct open_collective *open, int self) {
    struct open_collective done = *open;
    *open = warp->open[--warp->open_count];
    if (done.collective->combine != nullptr) {
        done.collective->combine(done.lanes, done.arrived);
    }
    int base = (int)(warp - warps) * 32;
    for (int lane = 0; lane < 32; lane++) {
        if (lane != self && (done.arrived >> lane & 1U) != 0) {
            make_ready(&threads[base + lane]);
        }
    }
}

static struct open_collective *
find_open(struct warp *warp, uint32_t mask, const struct cuda_emulation_collective *collective) {
    for (int i = 0; i < warp->open_count; i++) {
        if (warp->open[i].mask == mask) {
            return &warp->open[i];
        }
    }
    if (warp->open_count == OPEN_MAX) {
        cuda_emulation_fail("%s: too many masks at once", collective->name);
    }
    struct open_collective *open = &warp->open[warp->open_count++];
    open->collective = collective;
    open->mask = mask;
    open->arrived = 0;
    return open;
}

void cuda_emulation_collect(
    const struct cuda_emulation_collective *collective,
    uint32_t mask,
    void *lane_data,
    const char *file,
    int line
) {
    struct warp *warp = &warps[here->linear / 32];
    int lane = here->linear % 32;
    if ((mask >> lane & 1U) == 0) {
        cuda_emulation_fail(
            "%s at %s:%d: mask 0x%x lacks its own lane", collective->name, file, line, mask
        );
    }
    if (!collective->departed_allowed && (mask & ~warp->alive) != 0) {
        cuda_emulation_fail(
            "%s at %s:%d: lanes 0x%x ended or never were",
            collective->name,
            file,
            line,
            mask & ~warp->alive
        );
    }
    struct open_collective *open = find_open(warp, mask, collective);
    if (open->arrived == 0) {
        open->file = file;
        open->line = line;
    } else if (open->collective != collective || (collective->aligned && (open->line != line || strcmp(open->file, file) != 0))) {
        cuda_emulation_fail(
            "%s at %s:%d while lanes 0x%x of the warp are at %s of %s:%d",
            collective->name,
            file,
            line,
            open->arrived,
            open->collective->name,
            open->file,
            open->line
        );
    }
    open->lanes[lane] = lane_data;
    open->arrived |= 1U << lane;
    if (open->arrived == (mask & warp->alive)) {
        finish_collective(warp, open, lane);
        if (order != 0) { // anybody may be first
            make_ready(here);
            give_way();
        }
        return;
    }
    wait_at(collective->name, file, line);
}

/* ---- a thread's life ---- */

/* Others may have waited for everybody but the thread that just ended. */
static void thread_end(void) {
    struct warp *warp = &warps[here->linear / 32];
    here->state = THREAD_ENDED;
    warp->alive &= ~(1U << (here->linear % 32));
    alive_count--;
    if (barrier.arrived > 0 && barrier.arrived == alive_count) {
        finish_barrier();
    }
    for (int i = 0; i < warp->open_count; i++) {
        struct open_collective *open = &warp->open[i];
        if ((open->mask >> (here->linear % 32) & 1U) == 0) {
            continue;
        }
        if (!open->collective->departed_allowed) {
            cuda_emulation_fail(
                "ended while lanes 0x%x wait for it at %s of %s:%d",
                open->arrived,
                open->collective->name,
                open->file,
                open->line
            );
        }
        if (open->arrived == (open->mask & warp->alive)) {
            finish_collective(warp, open, -1);
            i--;
        }
    }
}

static void fiber_main(void) {
    fiber_arrive(&here->fiber);
    for (;;) { // a stack serves one block after the other
        launch->body();
        thread_end();
        struct fiber *self = &here->fiber;
        struct fiber *next = &host;
        if (ready_count > 0) {
            struct thread *thread = take_ready();
            go_on(thread);
            next = &thread->fiber;
        } else if (alive_count > 0) {
            report_deadlock();
            leave_failed();
        } else {
            here = nullptr;
        }
        fiber_change(self, next);
    }
}

/* ---- blocks ---- */

unsigned char *cuda_emulation_dynamic_shared(void) {
    return dynamic_shared;
}

bool cuda_emulation_is_shared(const void *memory, size_t bytes) {
    const char *at = (const char *)memory;
    const char *dynamic = (const char *)dynamic_shared;
    return (at >= __start_cuda_shared && at + bytes <= __stop_cuda_shared) ||
           (at >= dynamic && at + bytes <= dynamic + launch->shared_bytes);
}

static void run_block(void) {
    struct dim3 size = launch->block;
    int count = (int)(size.x * size.y * size.z);
    cuda_emulation_spoil_shared();
    if (dynamic_shared != nullptr) {
        memset(dynamic_shared, 0xFF, launch->shared_bytes);
    }
    alive_count = count;
    ready_first = 0;
    ready_count = 0;
    barrier.arrived = 0;
    barrier.yes = 0;
    for (int w = 0; w < (count + 31) / 32; w++) {
        int lanes = count - 32 * w;
        warps[w].alive = lanes >= 32 ? 0xffffffffU : (1U << lanes) - 1U;
        warps[w].open_count = 0;
    }
    for (int i = 0; i < count; i++) {
        struct thread *thread = &threads[i];
        unsigned u = (unsigned)i;
        thread->index = {u % size.x, u / size.x % size.y, u / (size.x * size.y)};
        thread->linear = i;
        thread->copies.clear();
        thread->copy_groups = 0;
        if (!thread->fiber.started) {
            fiber_start(&thread->fiber);
        }
        make_ready(thread);
    }
    struct thread *first = take_ready();
    go_on(first);
    fiber_change(&host, &first->fiber);
}

bool cuda_emulation_run(const struct cuda_emulation_launch *what) {
    launch = what;
    failed = false;
    const char *seed = getenv("CUDA_EMULATION_ORDER");
    order = seed == nullptr ? 0 : strtoull(seed, nullptr, 10);
    void *shared = nullptr; // as long as asked for, so that the address sanitizer sees its end
    if (what->shared_bytes > 0 && posix_memalign(&shared, 128, what->shared_bytes) != 0) {
        perror("cuda emulation: shared memory");
        abort();
    }
    dynamic_shared = (unsigned char *)shared;
    cuda_emulation_place.block_size = what->block;
    cuda_emulation_place.grid_size = what->grid;
    struct dim3 grid = what->grid;
    for (unsigned z = 0; z < grid.z && !failed; z++) {
        for (unsigned y = 0; y < grid.y && !failed; y++) {
            for (unsigned x = 0; x < grid.x && !failed; x++) {
                cuda_emulation_place.block = {x, y, z};
                run_block();
            }
        }
    }
    if (failed) { // their stacks hold threads that never ended
        for (int i = 0; i < THREADS_MAX; i++) {
            threads[i].fiber.started = false;
        }
    }
    free(dynamic_shared);
    dynamic_shared = nullptr;
    return !failed;
}

/* ---- asynchronous copies ---- */

void cuda_emulation_copy_async(void *shared, const void *from, int bytes, bool valid) {
    if ((uintptr_t)shared % (unsigned)bytes != 0 || (uintptr_t)from % (unsigned)bytes != 0) {
        cuda_emulation_fail(
            "copy_async of %d bytes from %p to %p: not aligned", bytes, from, shared
        );
    }
    if (!cuda_emulation_is_shared(shared, (size_t)bytes)) {
        cuda_emulation_fail("copy_async to %p, which is not shared memory", shared);
    }
    if (valid && cuda_emulation_is_shared(from, (size_t)bytes)) {
        cuda_emulation_fail("copy_async from %p, which is shared memory", from);
    }
    memset(shared, 0xFF, (size_t)bytes);
    here->copies.push_back({shared, valid ? from : nullptr, bytes, here->copy_groups});
}

void copy_async_commit(void) {
    here->copy_groups++;
}

void cuda_emulation_copy_wait(int pending) {
    size_t done = 0;
    std::vector<copy> &copies = here->copies;
    for (; done < copies.size() && copies[done].group < here->copy_groups - pending; done++) {
        const struct copy *copy = &copies[done];
        if (copy->from == nullptr) {
            memset(copy->to, 0, (size_t)copy->bytes);
        } else {
            memcpy(copy->to, copy->from, (size_t)copy->bytes);
        }
    }
    copies.erase(copies.begin(), copies.begin() + (long)done);
}
