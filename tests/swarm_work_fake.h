/* swarm_work.h without snapshots, verifiers and merges: directories with tools, and whatever a test wants to go
 * wrong. A result is a name; what stands in a directory is looked at by the test's own functions. */
#ifndef HEARTH_TESTS_SWARM_WORK_FAKE_H
#define HEARTH_TESTS_SWARM_WORK_FAKE_H

#include "runtime/swarm_work.h"
#include "swarm_host_support.h"

struct swarm_work_fake {
    /* set by the test */
    const char *open_fails; /* name of a node; "*": each */
    const char *result_fails;
    const char *skips;      /* what each copy lacks; null: nothing */
    bool interrupts_create; /* a signal comes while the place is made */
    bool disk_is_full;      /* these failures come of it */
    int open_ms, close_ms, merge_ms;
    /* Null: passes when the node changed anything. */
    enum swarm_verdict (*verify)(const char *name, const char *directory);
    _Atomic int deaf_ms; /* the next verification takes that, whatever it is told */
    int verify_ms;       /* it takes, unless it is cancelled */
    /* Null: ok. */
    enum swarm_merge (*merge)(const char *name);
    /* counted */
    _Atomic int opened, closed, verified, verify_cancelled, merged, most_verified_at_once;
    _Atomic int verified_now;
};
extern struct swarm_work_fake swarm_work_fake;

#endif
