/* The store of snapshots: what is collected, beside others and through kills; damage; one writer. */
#include "workspace_support.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

static struct workspace_collected collect(const char *const *pins, size_t count, int64_t age_s) {
    const struct workspace_collect_options options = {
        .pins = pins, .count = count, .keep = count, .age_s = age_s};
    struct workspace_collected collected;
    struct error error = {0};
    if (is_failed(workspace_collect(workspace, &options, &collected, &error))) {
        fail_msg("%s", error.message);
    }
    return collected;
}

static void collecting_keeps_pinned_snapshots_whole(void **state) {
    (void)state;
    struct workspace_snapshot start = snapshot();
    shell("cd ws && head -c 400000 /dev/urandom >blob && mkdir -p a/b && echo x >a/b/c");
    struct workspace_snapshot middle = snapshot();
    shell("cd ws && rm -r blob a && echo last >keep");
    struct workspace_snapshot last = snapshot();
    const char *const all[] = {start.commit, middle.commit};
    struct workspace_collected collected = collect(all, 2, -10);
    assert_int_equal(collected.removed, 0);
    assert_int_equal(collected.missing, 0);
    assert_true(collected.bytes_before > 400000 && collected.bytes_after == collected.bytes_before);
    collected = collect(all, 1, WORKSPACE_COLLECT_AGE_S); // too young to go
    assert_int_equal(collected.removed, 0);
    shell("mkdir -p store/a/objects/00 && echo left >store/a/objects/00/tmp_object_x");
    collected = collect(all, 1, -10);
    assert_true(collected.removed >= 6); // commit, three trees, two files, the left-over
    assert_true(collected.bytes_before - collected.bytes_after > 400000);
    struct workspace_difference difference = compare(&start, &last, 1 << 16);
    assert_int_equal(difference.file_count, 1);
    workspace_difference_deinit(&difference);
    struct error error = {0};
    assert_int_equal(
        workspace_restore(workspace, middle.commit, NULL, &error).code, RESULT_NOT_FOUND
    );
    assert_true(is_ok(open_again()));
    assert_true(is_ok(workspace_restore(workspace, start.commit, NULL, &error)));
    assert_true(is_ok(workspace_restore(workspace, last.commit, NULL, &error)));
    shell("cd ws && grep -q last keep");
    // What was removed is stored again when it comes back.
    shell("cd ws && mkdir -p a/b && echo x >a/b/c");
    struct workspace_snapshot again = snapshot();
    shell("rm -r ws/a");
    assert_true(is_ok(workspace_restore(workspace, again.commit, NULL, &error)));
    shell("grep -q x ws/a/b/c");
    const char *const unknown[] = {"0123456789012345678901234567890123456789", "no commit"};
    assert_int_equal(collect(unknown, 2, WORKSPACE_COLLECT_AGE_S).missing, 2);
}

/* What is left of it stays, and it holds nothing up. */
static void damaged_pin_keeps_what_there_is_of_it(void **state) {
    (void)state;
    struct workspace_snapshot start = snapshot();
    shell("cd ws && mkdir z && echo x >z/f && echo y >y");
    struct workspace_snapshot middle = snapshot();
    shell("rm -r ws/z ws/y && head -c 100000 /dev/urandom >ws/w");
    (void)snapshot();
    shell("rm ws/w");
    (void)snapshot();
    shell("cd store/a && rm -f $(git rev-parse %s:z | sed 's|^..|objects/&/|')", middle.commit);
    const char *const pins[] = {middle.commit, start.commit};
    assert_true(is_ok(open_again())); // which has not read it before
    struct workspace_collected collected = collect(pins, 2, -10);
    assert_int_equal(collected.damaged, 1);
    assert_int_equal(collected.missing, 0);
    assert_true(collected.bytes_before - collected.bytes_after > 100000);
    shell("cd store/a && git cat-file -e %s:y && git cat-file -e %s", middle.commit, middle.commit);
    struct workspace_undone undone;
    struct error error = {0};
    const struct workspace_stretch stretch = {start.commit, middle.commit};
    assert_int_equal(
        workspace_undo(workspace, &stretch, 1, &undone, &error).code, RESULT_NOT_FOUND
    );
    assert_int_equal(
        workspace_restore(workspace, middle.commit, NULL, &error).code, RESULT_NOT_FOUND
    );
    assert_true(is_ok(workspace_restore(workspace, start.commit, NULL, NULL)));
}

/* Of which a directory is whole and a file's content is gone: nothing is begun. */
static void lost_content_is_noticed_before_files_change(void **state) {
    (void)state;
    struct workspace_snapshot start = snapshot();
    shell("cd ws && echo x >>src/a.txt && echo y >keep");
    struct workspace_snapshot changed = snapshot();
    shell(
        "cd store/a && rm -f $(git rev-parse %s:src/a.txt | sed 's|^..|objects/&/|')", start.commit
    );
    struct workspace_undone undone;
    struct error error = {0};
    const struct workspace_stretch stretch = {start.commit, changed.commit};
    assert_int_equal(
        workspace_undo(workspace, &stretch, 1, &undone, &error).code, RESULT_NOT_FOUND
    );
    assert_non_null(strstr(error.message, "src/a.txt"));
    assert_int_equal(
        workspace_restore(workspace, start.commit, NULL, &error).code, RESULT_NOT_FOUND
    );
    shell("grep -q y ws/keep && grep -q x ws/src/a.txt");
}

static result measure(uint64_t *bytes) {
    char store[300];
    (void)snprintf(store, sizeof store, "%s/store/a", base);
    return workspace_measure(store, INT64_MAX, bytes, NULL);
}

static void weighing_tells_what_each_snapshot_needs(void **state) {
    (void)state;
    struct workspace_snapshot all[4];
    const char *pins[6];
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        shell("head -c %zu /dev/urandom >ws/blob", (i + 1) * 100000);
        all[i] = snapshot();
        pins[COUNT_OF(all) - 1 - i] = all[i].commit;
    }
    pins[4] = all[0].commit; // once more
    pins[5] = "0123456789012345678901234567890123456789";
    uint64_t bytes[6], measured = 0;
    struct workspace_weight weight;
    assert_true(is_ok(workspace_weigh(workspace, pins, 6, bytes, &weight, NULL)));
    assert_in_range(weight.fixed, 400000, 480000);
    assert_int_equal(bytes[0], 0); // the latest
    for (size_t i = 1; i < COUNT_OF(all); i++) {
        uint64_t blob = (COUNT_OF(all) - i) * 100000;
        assert_in_range(bytes[i], blob, blob + 60000);
    }
    assert_int_equal(bytes[4], 0);
    assert_int_equal(bytes[5], WORKSPACE_NOT_THERE);
    assert_int_equal(weight.bytes, weight.fixed + bytes[1] + bytes[2] + bytes[3]);
    assert_true(is_ok(measure(&measured)));
    assert_int_equal(measured, weight.bytes);
    // A trial says what would go, and removes nothing; then it goes, and to that size.
    struct workspace_collect_options options = {
        .pins = pins, .count = 6, .keep = 2, .is_trial = true};
    struct workspace_collected trial, collected;
    assert_true(is_ok(workspace_collect(workspace, &options, &trial, NULL)));
    assert_int_equal(trial.bytes_after, weight.fixed + bytes[1]);
    assert_true(is_ok(measure(&measured)));
    assert_int_equal(measured, weight.bytes);
    options.is_trial = false;
    assert_true(is_ok(workspace_collect(workspace, &options, &collected, NULL)));
    assert_memory_equal(&collected, &trial, sizeof trial);
    assert_true(is_ok(measure(&measured)));
    assert_int_equal(measured, collected.bytes_after);
    assert_true(is_ok(workspace_restore(workspace, all[2].commit, NULL, NULL)));
    assert_int_equal(
        workspace_restore(workspace, all[1].commit, NULL, NULL).code, RESULT_NOT_FOUND
    );
    (void)snapshot();
    shell("head -c 100000 /dev/urandom >ws/more");
    (void)snapshot();
    assert_true(is_ok(measure(&measured)));
    assert_true(measured > collected.bytes_after + 100000);
    // Nothing refers to this store any more, and its tree is gone.
    shell("rm -r ws");
    struct workspace *alone = NULL;
    char store[300];
    (void)snprintf(store, sizeof store, "%s/store/a", base);
    assert_true(is_ok(workspace_open_store(store, &alone, NULL)));
    options = (struct workspace_collect_options){.drops_latest = true};
    assert_true(is_ok(workspace_collect(alone, &options, &collected, NULL)));
    assert_int_equal(collected.bytes_after, 0);
    workspace_close(alone);
    shell("mkdir ws && echo x >ws/f");
    assert_true(is_ok(open_again()));
    (void)snapshot();
    assert_int_equal(workspace_open_store("/no/such", &alone, NULL).code, RESULT_NOT_FOUND);
}

static void damaged_cache_is_none(void **state) {
    (void)state;
    struct workspace_snapshot start = snapshot();
    static const char *const damages[] = {
        ": >stat-cache", "truncate -s 40 stat-cache", "echo nonsense >stat-cache", "rm stat-cache"};
    for (size_t i = 0; i < COUNT_OF(damages); i++) {
        shell("cd store/a && %s", damages[i]);
        assert_string_equal(snapshot().commit, start.commit); // with it open
        shell("cd store/a && %s", damages[i]);
        assert_true(is_ok(open_again()));
        assert_string_equal(snapshot().commit, start.commit);
    }
}

/* ---- together ------------------------------------------------------------------------------- */

/* Goes back to snapshots, in a process of its own; ends with 0 when all came out right. */
static void work_in_store(unsigned rounds) {
    struct workspace *own = NULL;
    char directory[300], store[300];
    (void)snprintf(directory, sizeof directory, "%s/ws", base);
    (void)snprintf(store, sizeof store, "%s/store/a", base);
    struct error error = {0};
    bool is_right = is_ok(workspace_open(directory, store, &own, &error));
    for (unsigned i = 0; i < rounds && is_right; i++) {
        struct workspace_snapshot taken;
        shell(
            "cd ws && echo %u >f%u && mkdir -p d%u && echo %u >>d%u/g && echo a%u >keep",
            i,
            i % 3,
            i % 5,
            i,
            i % 5,
            i
        );
        is_right = is_ok(workspace_take_snapshot(own, "one", &taken, &error));
        shell(
            "cd ws && rm -r d%u f%u && echo b%u >keep && echo %u >>src/a.txt", i % 5, i % 3, i, i
        );
        is_right = is_right && is_ok(workspace_restore(own, taken.commit, NULL, &error));
        shell("cd ws && test \"$(cat keep)\" = a%u && test -e d%u/g", i, i % 5);
    }
    (void)fprintf(stderr, "%s%s", error.message, is_right ? "" : "\n");
    workspace_close(own);
    _exit(is_right ? 0 : 1);
}

/* Nothing is recorded and nothing is too young: the latest snapshot stays, and the one that is gone back to. */
static void collecting_beside_another_process_takes_nothing_from_it(void **state) {
    (void)state;
    (void)snapshot();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        work_in_store(25);
    }
    int status = 0;
    size_t removed = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        removed += collect(NULL, 0, 0).removed;
        (void)usleep(10000); // a lock is not handed over
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(removed > 0);
}

/* A kill at any moment: kept snapshots are whole, those that go are whole or not found. */
static void killed_collection_leaves_no_half_snapshot(void **state) {
    (void)state;
    struct workspace_snapshot all[6];
    const char *pins[COUNT_OF(all)];
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        shell(
            "cd ws && mkdir -p d%zu/e && for n in $(seq 20); do echo %zu $n >d%zu/e/$n; done",
            i,
            i,
            i / 2
        );
        all[i] = snapshot();
        pins[COUNT_OF(all) - 1 - i] = all[i].commit;
    }
    const struct workspace_collect_options options = {
        .pins = pins, .count = COUNT_OF(all), .keep = 2};
    size_t dropped = 0;
    for (unsigned attempt = 0; dropped < COUNT_OF(all) - 2 && attempt < 400; attempt++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct workspace_collected collected;
            _exit(is_ok(workspace_collect(workspace, &options, &collected, NULL)) ? 0 : 1);
        }
        (void)usleep(attempt * 400);
        (void)kill(child, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(!WIFEXITED(status) || WEXITSTATUS(status) == 0);
        assert_true(is_ok(open_again()));
        dropped = 0;
        for (size_t i = 0; i < COUNT_OF(all); i++) {
            result restored = workspace_restore(workspace, pins[i], NULL, NULL);
            assert_true(is_ok(restored) || (i >= 2 && restored.code == RESULT_NOT_FOUND));
            dropped += is_ok(restored) ? 0 : 1;
        }
        assert_true(is_ok(workspace_restore(workspace, pins[0], NULL, NULL)));
    }
    assert_int_equal(dropped, COUNT_OF(all) - 2);
    (void)collect(pins, 2, 0);
    shell("cd store/a && test $(git cat-file --batch-all-objects --batch-check | grep -c commit) "
          "-le 3");
}

static void store_has_one_writer_at_a_time(void **state) {
    (void)state;
    char store[300];
    (void)snprintf(store, sizeof store, "%s/store/a", base);
    int other = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(other, LOCK_EX), 0);
    struct clock clock = clock_real();
    workspace_limit_time(workspace, clock_monotonic_ms(&clock) + 200);
    struct workspace_snapshot taken;
    assert_int_equal(workspace_take_snapshot(workspace, "x", &taken, NULL).code, RESULT_TIMEOUT);
    workspace_limit_time(workspace, INT64_MAX);
    close(other);
    (void)snapshot();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(collecting_keeps_pinned_snapshots_whole),
        TEST(damaged_pin_keeps_what_there_is_of_it),
        TEST(lost_content_is_noticed_before_files_change),
        TEST(weighing_tells_what_each_snapshot_needs),
        TEST(collecting_beside_another_process_takes_nothing_from_it),
        TEST(killed_collection_leaves_no_half_snapshot),
        TEST(damaged_cache_is_none),
        TEST(store_has_one_writer_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
