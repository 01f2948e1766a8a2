/* A workspace with four files and a store of its snapshots, made for each test and removed. */
#ifndef HEARTH_TESTS_WORKSPACE_SUPPORT_H
#define HEARTH_TESTS_WORKSPACE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "sandbox/workspace.h"

extern char base[256]; /* holds ws/ and store/a/ */
extern struct workspace *workspace;

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, workspace_set_up, workspace_tear_down)
int workspace_set_up(void **state);
int workspace_tear_down(void **state);

/* In `base`; must end with 0. */
void shell(const char *format, ...) PRINTF_LIKE(1, 2);
result open_again(void);
struct workspace_snapshot snapshot(void);
struct workspace_difference
compare(const struct workspace_snapshot *from, const struct workspace_snapshot *to, size_t max);

#endif
