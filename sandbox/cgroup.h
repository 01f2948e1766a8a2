/* Groups of processes with limits: v2, v1 or none behind the same functions. Internal to sandbox/.
 *
 * A place is where groups can be made, found once; a group belongs to one call. Groups are named
 * hearth-NAMESPACE-PID-START-N after the process that made them, so that those of a dead host can
 * be told and removed. Thread: any; a group belongs to one thread at a time.
 */
#ifndef HEARTH_SANDBOX_CGROUP_H
#define HEARTH_SANDBOX_CGROUP_H

#include "sandbox.h"

/* v1 has one directory per controller, and maybe a v2 hierarchy without controllers that can still
 * kill a group; v2 has one for all. */
enum cgroup_slot { CGROUP_MEMORY, CGROUP_PIDS, CGROUP_CPU, CGROUP_KILL, CGROUP_SLOTS };

struct cgroup_place {
    enum sandbox_cgroup_kind kind;
    char base[CGROUP_SLOTS][SANDBOX_PATH_BYTES]; /* "" when there is none; v2 uses KILL alone */
};

struct cgroup_limits {
    uint64_t memory_bytes;
    uint64_t processes;
    uint64_t cpu_percent; /* 0: none */
};

struct cgroup {
    enum sandbox_cgroup_kind kind;
    char path[CGROUP_SLOTS][SANDBOX_PATH_BYTES];
    bool exists[CGROUP_SLOTS];
};

/* Looks below `mount` (null: /sys/fs/cgroup) for a place where this process may make groups that
 * limit memory and processes; kind NONE when there is none. `own` is the text of
 * /proc/self/cgroup (null: read it). */
void cgroup_find(const char *mount, const char *own, struct cgroup_place *out);

/* Makes a group with limits. Expected errors: IO. Nothing is left behind on failure. */
MUST_CHECK result cgroup_create(
    const struct cgroup_place *place,
    const struct cgroup_limits *limits,
    struct cgroup *out,
    struct error *error
);

/* Opens cgroup.procs of each hierarchy for the launcher to write itself into; returns how many
 * descriptors were put into out, or -1 with errno set (none is left open then). */
int cgroup_open_procs(const struct cgroup *group, int out[CGROUP_SLOTS]);

struct cgroup_events {
    bool out_of_memory;
    bool processes_refused;
};
struct cgroup_events cgroup_read_events(const struct cgroup *group);

void cgroup_kill(const struct cgroup *group); /* SIGKILL to all members */

/* Removes the group; false while members are still going away. Safe to repeat. */
bool cgroup_remove(struct cgroup *group);

/* Kills and removes groups whose host is gone; with `own_too` empty ones of this process as well.
 * Returns how many went. */
unsigned cgroup_remove_stale(const struct cgroup_place *place, bool own_too);

#endif
