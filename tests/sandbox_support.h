/* What the sandbox's tests share: one opened sandbox, a fresh workspace per test, short ways to run. */
#ifndef HEARTH_TESTS_SANDBOX_SUPPORT_H
#define HEARTH_TESTS_SANDBOX_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "sandbox/sandbox.h"

#define HELPERS TEST_BINARY_DIR "/sandbox"

extern struct sandbox *shared;
extern char workspace[256]; /* made by set_up, removed by tear_down */

int64_t now_ms(void);
void make_workspace(char path[256]);
void remove_tree(const char *path);
int set_up(void **state);
int tear_down(void **state);
struct sandbox_policy small_policy(void);
struct sandbox_call *run_with(const struct sandbox_policy *policy, const char *script);
struct sandbox_call *run(const char *script);
void expect_end(const struct sandbox_call *call, enum sandbox_end end, int status);
bool output_has(const struct sandbox_call *call, const char *text);
unsigned count_tagged(const char *tag);
void step_until_output(struct sandbox_call *call);
void finish(struct sandbox_call *call);
struct sandbox_call *start(const char *script);

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

/* Opens the shared sandbox; `argv[1]`, when given, picks tests by a pattern of their names. Not 0
 * is the program's exit status: 77, with a reason printed, when this machine cannot confine. */
int open_shared(const char *name, int argc, char **argv);
int close_shared(int failed); /* closes it and returns `failed` */

#endif
