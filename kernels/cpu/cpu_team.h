/* The CPU backend's thread team: the caller and N - 1 workers claim chunks of one job at a time.
 *
 * A job is split into chunks that do not depend on each other; who runs which is left to chance, so
 * no result may depend on it. The caller works too, and waits only for chunks that someone claimed:
 * a sleeping or descheduled worker costs nothing. Workers spin for a short while after a job, then
 * sleep until a job is large enough to be worth a wake-up.
 */
#ifndef HEARTH_KERNELS_CPU_TEAM_H
#define HEARTH_KERNELS_CPU_TEAM_H

#include "base/result.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cpu_team;

#define CPU_TEAM_THREADS_MAX 256

/* `asked`, or with 0 one thread per core that this process may use. */
int32_t cpu_team_threads_for(int32_t asked);

/* Runs chunk `chunk` on team member `thread` (0 is the caller). */
typedef void cpu_chunk_function(void *context, int32_t thread, int32_t chunk);

/* Starts threads - 1 workers. Expected error: MEMORY. */
MUST_CHECK result cpu_team_create(int32_t threads, struct cpu_team **out, struct error *error);
void cpu_team_destroy(struct cpu_team *team);

int32_t cpu_team_threads(const struct cpu_team *team);

/* Runs all chunks and returns when they are done. `nanoseconds` is a rough estimate of the whole
 * job on one thread: small jobs stay on the caller. Thread: the engine thread only. */
void cpu_team_run(
    struct cpu_team *team,
    cpu_chunk_function *function,
    void *context,
    int32_t chunks,
    int64_t nanoseconds
);

#ifdef __cplusplus
}
#endif

#endif
