/* A workspace with four files and a store of its snapshots, made for each test and removed. */
#ifndef HEARTH_TESTS_WORKSPACE_SUPPORT_H
#define HEARTH_TESTS_WORKSPACE_SUPPORT_H

#include "shell_support.h"

#include "sandbox/workspace.h"

extern struct workspace *workspace; /* `base` holds ws/ and store/a/ */

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, workspace_set_up, workspace_tear_down)
int workspace_set_up(void **state);
int workspace_tear_down(void **state);

result open_again(void);
struct workspace_snapshot snapshot(void);
struct workspace_difference
compare(const struct workspace_snapshot *from, const struct workspace_snapshot *to, size_t max);

#endif
