/* What the tests of the tools share: a workspace that goes away, and calls by name. */
#ifndef HEARTH_TESTS_TOOLS_SUPPORT_H
#define HEARTH_TESTS_TOOLS_SUPPORT_H

#include "sandbox/sandbox.h"
#include "tools/tool.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PATH_BYTES 512

struct bench {
    char workspace[PATH_BYTES]; /* removed at the end */
    struct sandbox *sandbox;    /* null: files only */
    struct sandbox_policy policy;
    struct tool_context *context;
    struct tool_result result; /* of the last call */
};

#define MUST(call)                                                                                 \
    do {                                                                                           \
        result must_ = (call);                                                                     \
        if (is_failed(must_)) {                                                                    \
            fail_msg("%s: %s", #call, must_error.message);                                         \
        }                                                                                          \
    } while (0)
extern struct error must_error; /* where MUST's calls report */

/* `options` may be null; workspace, sandbox and policy are filled in. Its set 0 is
 * TOOL_SET_TRAINED. */
void bench_open(
    struct bench *bench, struct sandbox *sandbox, const struct tool_context_options *options
);
void bench_close(struct bench *bench);
void bench_put(const struct bench *bench, const char *name, struct view content);
void bench_get(const struct bench *bench, const char *name, struct buffer *out);
/* Calls a tool; the arguments are JSON text. Host faults fail the test. */
void bench_call(struct bench *bench, const char *name, const char *arguments);
/* The same, and compares status and text. */
void bench_expect(
    struct bench *bench,
    const char *name,
    const char *arguments,
    enum tool_status status,
    const char *text
);
/* The same, for a part of the text. */
void bench_expect_part(
    struct bench *bench,
    const char *name,
    const char *arguments,
    enum tool_status status,
    const char *part
);
size_t open_descriptor_count(void);

#endif
