/* A root workspace of a few files, its store, a place for a swarm, and short ways to work in it. */
#ifndef HEARTH_TESTS_SWARM_WORK_SUPPORT_H
#define HEARTH_TESTS_SWARM_WORK_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "runtime/swarm_work.h"

extern char base[200]; /* holds ws/, store/ and state/ */
extern struct swarm_work *work;
extern struct sandbox *sandbox;

/* A command line in `base`, stopped by its first failure. */
void shell(const char *format, ...) PRINTF_LIKE(1, 2);
bool shell_says(const char *command); /* whether it succeeds */

/* `first` makes the files, in ws. */
void begin_swarm(const char *first, const char *verifier);
void end_swarm(void); /* and expects that nothing is left of it */

struct swarm_work_node *open_node(const char *name, struct swarm_work_node *parent);
/* A child of the root that runs a shell script with its own tool, and its result. */
struct swarm_work_node *node_with(const char *name, const char *script);
void run_in(struct swarm_work_node *node, const char *script);
struct swarm_work_made result_of(struct swarm_work_node *node);
struct swarm_work_merge merge_into(struct swarm_work_node *node, struct swarm_work_node *target);
struct swarm_work_verdict verify(struct swarm_work_node *node, int64_t time_ms);
bool close_node(struct swarm_work_node *node); /* whether the directory went */

int swarm_work_set_up(void **state);
int swarm_work_tear_down(void **state);
#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, swarm_work_set_up, swarm_work_tear_down)

/* Not 0 is the program's exit status. */
int open_sandbox(const char *name, int argc, char **argv);
int close_sandbox(int failed);

#endif
