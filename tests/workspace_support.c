#include "workspace_support.h"

#include <unistd.h>

struct workspace *workspace;

result open_again(void) {
    char directory[300];
    char store[300];
    (void)snprintf(directory, sizeof directory, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store/a", base);
    workspace_cleanup(&workspace);
    struct error error = {0};
    result opened = workspace_open(directory, store, &workspace, &error);
    if (is_failed(opened)) {
        fail_msg("%s", error.message);
    }
    return opened;
}

int workspace_set_up(void **state) {
    (void)state;
    base_make("workspace");
    shell("mkdir -p ws/src && printf 'one\\ntwo\\nthree\\n' >ws/src/a.txt && echo keep >ws/keep && "
          "printf '#!/bin/sh\\n' >ws/run && chmod 755 ws/run && ln -s src/a.txt ws/link");
    assert_true(is_ok(open_again()));
    return 0;
}

int workspace_tear_down(void **state) {
    (void)state;
    workspace_cleanup(&workspace);
    base_remove();
    return 0;
}

struct workspace_snapshot snapshot(void) {
    struct workspace_snapshot taken;
    struct error error = {0};
    if (is_failed(workspace_take_snapshot(workspace, "test", &taken, &error))) {
        fail_msg("%s", error.message);
    }
    return taken;
}

struct workspace_difference
compare(const struct workspace_snapshot *from, const struct workspace_snapshot *to, size_t max) {
    struct workspace_difference difference;
    struct error error = {0};
    if (is_failed(workspace_compare(workspace, from->commit, to->commit, max, &difference, &error)
        )) {
        fail_msg("%s", error.message);
    }
    return difference;
}
