/* A directory of a test's own, and commands in it. */
#ifndef HEARTH_TESTS_SHELL_SUPPORT_H
#define HEARTH_TESTS_SHELL_SUPPORT_H

#include "base/result.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

extern char base[64]; /* the directory: of each test a new one */

void base_make(const char *name);
void base_remove(void); /* whatever the modes in it are */

/* In `base`, to the first command that fails; the test fails then. git takes no configuration from the
 * machine. */
void shell(const char *format, ...) PRINTF_LIKE(1, 2);

#endif
