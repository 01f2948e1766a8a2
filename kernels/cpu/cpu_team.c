/* One 64-bit word holds the job number and how many of its chunks are claimed. A claim is a
 * compare-and-swap on that word, so a worker that wakes up late can never touch another job: after
 * a successful claim the job's fields stay put until that chunk is reported done. */
#include "cpu_team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define TEAM_CHUNKS_MAX 0xfffff
/* Below this a job is done sooner by the caller alone than with a spinning worker (a hand-over
 * costs about 0.3 us), or with a sleeping one (a wake-up costs the caller 2 to 5 us). */
#define TEAM_SHARE_NS 1500
#define TEAM_WAKE_NS  30000
/* A caller that waited this many pauses (a few hundred us) for a claimed chunk has met a worker that
 * lost its core to someone else; the next jobs below TEAM_LARGE_NS then stay on the caller. On an
 * idle machine this never happens. */
#define TEAM_SLOW_PAUSES 10000
#define TEAM_ALONE_JOBS  4000
#define TEAM_LARGE_NS    200000
/* About 50 us of spinning: longer than the gaps between the ops of a step. */
#define TEAM_SPINS 1500

struct team_member {
    struct cpu_team *team;
    int32_t thread;
    pthread_t handle;
};

struct cpu_team {
    /* claim word: job number << 40 | chunks << 20 | next chunk */
    _Alignas(64) _Atomic uint64_t claim;
    _Alignas(64) _Atomic int32_t done; // chunks of the current job that are finished
    _Alignas(64) _Atomic int32_t sleepers;
    _Atomic bool stopping;
    cpu_chunk_function *function; // written by the caller while no chunk is claimed
    void *context;
    pthread_mutex_t lock; // with `wake`: guards going to sleep
    pthread_cond_t wake;
    int32_t threads;
    int32_t started;
    int32_t alone_jobs; // the caller's: how many more jobs it keeps to itself
    struct team_member *members;
};

static void team_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Claims and runs chunks of the current job until none is left. */
static void team_work(struct cpu_team *team, int32_t thread) {
    for (;;) {
        uint64_t claim = atomic_load_explicit(&team->claim, memory_order_acquire);
        uint64_t next = claim & TEAM_CHUNKS_MAX;
        uint64_t chunks = (claim >> 20) & TEAM_CHUNKS_MAX;
        if (next >= chunks) {
            return;
        }
        if (!atomic_compare_exchange_weak_explicit(
                &team->claim, &claim, claim + 1, memory_order_acq_rel, memory_order_relaxed
            )) {
            continue;
        }
        team->function(team->context, thread, (int32_t)next);
        // release: the chunk's writes are visible to the caller, which acquires `done`
        atomic_fetch_add_explicit(&team->done, 1, memory_order_release);
    }
}

static bool team_has_work(const struct cpu_team *team) {
    uint64_t claim = atomic_load_explicit(&team->claim, memory_order_seq_cst);
    return (claim & TEAM_CHUNKS_MAX) < ((claim >> 20) & TEAM_CHUNKS_MAX);
}

static bool team_is_stopping(const struct cpu_team *team) {
    return atomic_load_explicit(&team->stopping, memory_order_acquire);
}

static void team_sleep(struct cpu_team *team) {
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add_explicit(&team->sleepers, 1, memory_order_seq_cst);
    while (!team_has_work(team) && !team_is_stopping(team)) {
        pthread_cond_wait(&team->wake, &team->lock);
    }
    atomic_fetch_sub_explicit(&team->sleepers, 1, memory_order_seq_cst);
    pthread_mutex_unlock(&team->lock);
}

static void *team_main(void *argument) {
    struct team_member *member = argument;
    struct cpu_team *team = member->team;
    int32_t spins = 0;
    while (!team_is_stopping(team)) {
        if (team_has_work(team)) {
            team_work(team, member->thread);
            spins = 0;
        } else if (spins < TEAM_SPINS) {
            spins++;
            team_pause();
        } else {
            team_sleep(team);
            spins = 0;
        }
    }
    return NULL;
}

int32_t cpu_team_threads_for(int32_t asked) {
    cpu_set_t set;
    if (asked > 0) {
        return asked;
    }
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    int32_t cores = CPU_COUNT(&set);
    return cores < 1 ? 1 : cores > CPU_TEAM_THREADS_MAX ? CPU_TEAM_THREADS_MAX : cores;
}

result cpu_team_create(int32_t threads, struct cpu_team **out, struct error *error) {
    ASSERT(threads >= 1 && threads <= CPU_TEAM_THREADS_MAX);
    struct cpu_team *team = aligned_alloc(64, sizeof *team);
    if (team == NULL) {
        FAIL(error, MEMORY, "thread team: out of memory");
    }
    memset(team, 0, sizeof *team);
    team->threads = threads;
    team->members = calloc((size_t)threads, sizeof *team->members);
    if (team->members == NULL) {
        free(team);
        FAIL(error, MEMORY, "thread team of %d: out of memory", threads);
    }
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    for (int32_t i = 1; i < threads; i++) {
        struct team_member *member = &team->members[i];
        member->team = team;
        member->thread = i;
        int status = pthread_create(&member->handle, NULL, team_main, member);
        if (status != 0) {
            cpu_team_destroy(team);
            FAIL_FOREIGN(error, MEMORY, status, "thread team: cannot start thread %d", i);
        }
        team->started++;
    }
    *out = team;
    return OK;
}

void cpu_team_destroy(struct cpu_team *team) {
    if (team == NULL) {
        return;
    }
    pthread_mutex_lock(&team->lock);
    atomic_store_explicit(&team->stopping, true, memory_order_release);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    for (int32_t i = 1; i <= team->started; i++) {
        pthread_join(team->members[i].handle, NULL);
    }
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->lock);
    free(team->members);
    free(team);
}

int32_t cpu_team_threads(const struct cpu_team *team) {
    return team->threads;
}

void cpu_team_run(
    struct cpu_team *team,
    cpu_chunk_function *function,
    void *context,
    int32_t chunks,
    int64_t nanoseconds
) {
    ASSERT(chunks >= 0 && chunks <= TEAM_CHUNKS_MAX);
    bool alone = team->threads == 1 || chunks <= 1 || nanoseconds < TEAM_SHARE_NS;
    if (!alone && team->alone_jobs > 0 && nanoseconds < TEAM_LARGE_NS) {
        team->alone_jobs--;
        alone = true;
    }
    if (alone) {
        for (int32_t chunk = 0; chunk < chunks; chunk++) {
            function(context, 0, chunk);
        }
        return;
    }
    team->function = function;
    team->context = context;
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    uint64_t job = (atomic_load_explicit(&team->claim, memory_order_relaxed) >> 40) + 1;
    // seq_cst, with the sleepers' count: either we see the sleeper or it sees the job
    atomic_store_explicit(&team->claim, job << 40 | (uint64_t)chunks << 20, memory_order_seq_cst);
    if (nanoseconds >= TEAM_WAKE_NS &&
        atomic_load_explicit(&team->sleepers, memory_order_seq_cst) > 0) {
        pthread_mutex_lock(&team->lock);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->lock);
    }
    team_work(team, 0);
    for (int32_t pauses = 0; atomic_load_explicit(&team->done, memory_order_acquire) < chunks;) {
        team_pause();
        pauses += pauses < TEAM_SLOW_PAUSES ? 1 : 0;
        if (pauses == TEAM_SLOW_PAUSES) {
            team->alone_jobs = TEAM_ALONE_JOBS;
        }
    }
}
