/* Support of the tools' tests; see the header. */
#include "tools_support.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

struct error must_error;

void bench_open(
    struct bench *bench, struct sandbox *sandbox, const struct tool_context_options *options
) {
    memset(bench, 0, sizeof *bench);
    const char *base = getenv("TMPDIR");
    int length = snprintf(
        bench->workspace,
        sizeof bench->workspace,
        "%.400s/hearth-tools-XXXXXX",
        base == NULL ? "/tmp" : base
    );
    assert_true(length > 0 && (size_t)length < sizeof bench->workspace);
    assert_non_null(mkdtemp(bench->workspace));
    struct tool_context_options filled = {0};
    if (options != NULL) {
        filled = *options;
    }
    filled.workspace = bench->workspace;
    filled.clock = filled.clock.wall_ms == NULL ? clock_real() : filled.clock;
    if (filled.set == 0) {
        filled.set = TOOL_SET_TRAINED;
    }
    bench->sandbox = sandbox;
    if (sandbox != NULL) {
        bench->policy = sandbox_policy_default(bench->workspace);
        filled.sandbox = sandbox;
        filled.policy = &bench->policy;
    }
    MUST(tool_context_create(&bench->context, &filled, &must_error));
    tool_result_init(&bench->result);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where) {
    (void)info;
    (void)type;
    (void)where;
    return remove(path);
}

void bench_close(struct bench *bench) {
    tool_result_deinit(&bench->result);
    tool_context_destroy(bench->context);
    (void)nftw(bench->workspace, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void bench_path(const struct bench *bench, const char *name, char path[2 * PATH_BYTES]) {
    int length = snprintf(path, (size_t)2 * PATH_BYTES, "%s/%s", bench->workspace, name);
    assert_true(length > 0 && length < 2 * PATH_BYTES);
}

void bench_put(const struct bench *bench, const char *name, struct view content) {
    char path[2 * PATH_BYTES];
    bench_path(bench, name, path);
    CLEANUP(fd_cleanup) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content.data, content.length), (ssize_t)content.length);
}

void bench_get(const struct bench *bench, const char *name, struct buffer *out) {
    char path[2 * PATH_BYTES];
    bench_path(bench, name, path);
    buffer_init(out, BUFFER_CEILING_DEFAULT);
    MUST(file_read(path, out, &must_error));
}

void bench_call(struct bench *bench, const char *name, const char *arguments) {
    tool_result_deinit(&bench->result);
    MUST(tool_call(
        bench->context, view_of_text(name), view_of_text(arguments), &bench->result, &must_error
    ));
    assert_true(utf8_is_valid(buffer_view(&bench->result.text)));
}

void bench_expect(
    struct bench *bench,
    const char *name,
    const char *arguments,
    enum tool_status status,
    const char *text
) {
    bench_call(bench, name, arguments);
    assert_string_equal(buffer_text(&bench->result.text), text);
    assert_string_equal(tool_status_name(bench->result.status), tool_status_name(status));
}

void bench_expect_part(
    struct bench *bench,
    const char *name,
    const char *arguments,
    enum tool_status status,
    const char *part
) {
    bench_call(bench, name, arguments);
    if (strstr(buffer_text(&bench->result.text), part) == NULL) {
        fail_msg("'%s' lacks '%s'", buffer_text(&bench->result.text), part);
    }
    assert_string_equal(tool_status_name(bench->result.status), tool_status_name(status));
}

size_t open_descriptor_count(void) {
    DIR *listing = opendir("/proc/self/fd");
    assert_non_null(listing);
    size_t count = 0;
    while (readdir(listing) != NULL) {
        count += 1;
    }
    assert_int_equal(closedir(listing), 0);
    return count;
}
