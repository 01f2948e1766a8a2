/* An evaluation's loop with a scripted port: every run once, faults recorded and given up on, an interrupt and
 * a killed write gone on with, files of others refused; and the folder of tasks that it reads. */
#include "runtime/swarm_eval_drive.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmocka.h>

static char base[64];
static char results[100];

static void shell(const char *format, ...) PRINTF_LIKE(1, 2);

static void shell(const char *format, ...) {
    char text[2048];
    int used = snprintf(text, sizeof text, "cd '%s' && ", base);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    assert_true(length > 0 && (size_t)(used + length) < sizeof text);
    if (system(text) != 0) {
        fail_msg("%s", text);
    }
}

static void make_task(const char *name, int level) {
    shell(
        "mkdir -p tasks/%s/repo/deep tasks/%s/hidden && echo x >tasks/%s/repo/deep/file && "
        "echo '{\"level\":%d,\"prompt\":\"do\",\"test_command\":\"t\",\"hidden_command\":\"h\"}' "
        ">tasks/%s/task.json",
        name,
        name,
        name,
        level,
        name
    );
}

static int set_up(void **state) {
    (void)state;
    (void)snprintf(base, sizeof base, "/var/tmp/hearth-eval-XXXXXX");
    assert_non_null(mkdtemp(base));
    (void)snprintf(results, sizeof results, "%s/results", base);
    for (int i = 1; i <= 6; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "t%d", i);
        make_task(name, 1 + (i - 1) / 2);
    }
    shell("mkdir tasks/none && echo no >tasks/file");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    struct error error = {0};
    shell("mkdir -p closed/inner/a/b && echo x >closed/inner/a/b/file && ln -s /etc closed/link && "
          "chmod 0 closed/inner/a/b && chmod 0 closed/inner/a && chmod 0 closed/inner");
    if (is_failed(swarm_eval_remove(base, &error))) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(access(base, F_OK), -1);
    assert_int_equal(access("/etc/passwd", F_OK), 0);
    return 0;
}

/* ---- a desk ------------------------------------------------------------------------------------ */

struct desk {
    struct swarm_eval_folder folder;
    struct swarm_eval *eval;
    struct swarm_eval_port port;
    struct buffer header;
    int64_t now_ms;
    size_t runs;
    size_t interrupt_at; /* this run, from 1; 0: none */
    size_t fault_at, fault_count;
    char last[500]; /* what was said */
};

static result scripted_run(
    void *context,
    const struct swarm_eval_order *order,
    struct swarm_eval_result *out,
    struct error *error
) {
    struct desk *desk = context;
    desk->runs++;
    desk->now_ms += 1000;
    bool is_timed = order->tokens_max == 0;
    assert_int_equal(order->time_ms_max, is_timed ? 2000 : SWARM_EVAL_TOKENS_TIME_MS);
    assert_int_equal(order->tokens_max, is_timed ? 0 : 3000);
    if (desk->runs == desk->interrupt_at) {
        FAIL(error, CANCELLED, "interrupted");
    }
    if (desk->runs >= desk->fault_at && desk->runs < desk->fault_at + desk->fault_count) {
        FAIL(error, IO, "the disk is gone");
    }
    *out = (struct swarm_eval_result){
        .is_solved = order->item->level == 1,
        .is_passed = true,
        .duration_ms = 1000,
        .tokens = (int64_t)(order->seed % 1000),
    };
    return OK;
}

static int64_t scripted_now(void *context) {
    const struct desk *desk = context;
    return desk->now_ms;
}

static void scripted_say(void *context, struct view line) {
    struct desk *desk = context;
    (void)snprintf(desk->last, sizeof desk->last, "%.*s", VIEW_ARGUMENTS(line));
}

static void desk_open(struct desk *desk, size_t seeds, int64_t tokens) {
    struct error error = {0};
    char path[100];
    *desk = (struct desk){.now_ms = 1};
    (void)snprintf(path, sizeof path, "%s/tasks", base);
    if (is_failed(swarm_eval_folder_open(path, 0, &desk->folder, &error))) {
        fail_msg("%s", error.message);
    }
    const struct swarm_eval_plan plan = {
        .tasks = desk->folder.tasks,
        .task_count = desk->folder.count,
        .seed_count = seeds,
        .limits = {2000, tokens},
        .has = {true, true},
    };
    assert_true(is_ok(swarm_eval_create(&desk->eval, &plan, &error)));
    buffer_init(&desk->header, BUFFER_CEILING_DEFAULT);
    assert_true(is_ok(swarm_eval_header(
        desk->eval, &desk->folder, view_of_text("{\"model\":\"m\"}"), &desk->header, &error
    )));
    desk->port = (struct swarm_eval_port
    ){.context = desk, .run = scripted_run, .now_ms = scripted_now, .say = scripted_say};
}

static void desk_close(struct desk *desk) {
    swarm_eval_destroy(desk->eval);
    swarm_eval_folder_close(&desk->folder);
    buffer_deinit(&desk->header);
}

static result desk_drive(struct desk *desk, struct error *error) {
    const struct swarm_eval_drive drive = {
        .eval = desk->eval,
        .folder = &desk->folder,
        .port = &desk->port,
        .path = results,
        .header = buffer_view(&desk->header),
    };
    return swarm_eval_drive(&drive, error);
}

/* ---- the loop ---------------------------------------------------------------------------------- */

static void every_run_is_made_once_over_any_number_of_calls(void **state) {
    (void)state;
    struct error error = {0};
    struct swarm_eval_figure whole;
    struct desk desk;
    desk_open(&desk, 2, 3000);
    desk.interrupt_at = 6;
    assert_int_equal(desk_drive(&desk, &error).code, RESULT_CANCELLED);
    assert_string_equal(error.message, "interrupted: the same command goes on");
    assert_non_null(strstr(desk.last, "5 of 48, 0:00 h left: t2 "));
    desk_close(&desk);
    shell("truncate -s -3 results"); /* as a kill in the middle of a write */

    desk_open(&desk, 2, 3000);
    assert_true(is_ok(desk_drive(&desk, &error)));
    assert_int_equal(desk.runs, 48 - 4);
    assert_non_null(strstr(desk.last, "48 of 48"));
    swarm_eval_rate(desk.eval, SWARM_EVAL_TOKENS, 1, 0, &whole);
    assert_int_equal(whole.runs, 12);
    assert_true(whole.value > 0.33 && whole.value < 0.34);
    desk_close(&desk);

    desk_open(&desk, 3, 3000); /* a further seed */
    assert_true(is_ok(desk_drive(&desk, &error)));
    assert_int_equal(desk.runs, 24);
    desk_close(&desk);
    desk_open(&desk, 3, 3000);
    assert_true(is_ok(desk_drive(&desk, &error)));
    assert_int_equal(desk.runs, 0);
    desk_close(&desk);
    shell("test $(wc -l <results) = 73");
}

static void faults_are_recorded_and_three_in_a_row_end_it(void **state) {
    (void)state;
    struct error error = {0};
    struct swarm_eval_costs costs;
    struct desk desk;
    desk_open(&desk, 1, 0);
    desk.fault_at = 2;
    desk.fault_count = 2;
    assert_true(is_ok(desk_drive(&desk, &error)));
    size_t faults = 0;
    for (size_t i = 0; i < 2; i++) {
        swarm_eval_costs(desk.eval, SWARM_EVAL_TIME, i, &costs);
        faults += costs.faults;
    }
    assert_int_equal(faults, 2);
    desk_close(&desk);

    shell("rm results");
    desk_open(&desk, 1, 0);
    desk.fault_at = 4;
    desk.fault_count = 100;
    assert_int_equal(desk_drive(&desk, &error).code, RESULT_LIMIT);
    assert_string_equal(error.message, "3 runs in a row could not be made: the disk is gone");
    assert_int_equal(desk.runs, 6);
    desk_close(&desk);
    shell("test $(wc -l <results) = 4 && ! grep gone results");
    desk_open(&desk, 1, 0); /* mended */
    assert_true(is_ok(desk_drive(&desk, &error)));
    assert_int_equal(desk.runs, 12 - 3);
    desk_close(&desk);
}

static void files_of_others_are_refused_and_left_alone(void **state) {
    (void)state;
    struct error error = {0};
    struct desk desk;
    desk_open(&desk, 1, 3000);
    assert_true(is_ok(desk_drive(&desk, &error)));
    desk_close(&desk);
    shell("cp results before");
    desk_open(&desk, 1, 4000);
    assert_int_equal(desk_drive(&desk, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "it is of another evaluation"));
    assert_non_null(strstr(error.message, "\"tokens\":4000"));
    desk_close(&desk);
    shell("cmp results before");

    int fd = open(results, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    desk_open(&desk, 1, 3000);
    assert_int_equal(desk_drive(&desk, &error).code, RESULT_LIMIT);
    assert_non_null(strstr(error.message, "another evaluation writes it"));
    desk_close(&desk);
    (void)close(fd);

    shell("sed -i s/do/other/ tasks/t2/task.json");
    desk_open(&desk, 1, 3000); /* other tasks: another digest */
    assert_int_equal(desk_drive(&desk, &error).code, RESULT_INVALID_INPUT);
    desk_close(&desk);
}

/* ---- the folder -------------------------------------------------------------------------------- */

static void folder_has_its_tasks_by_name_and_a_part_keeps_the_levels(void **state) {
    (void)state;
    struct error error = {0};
    struct swarm_eval_folder folder;
    char path[100];
    (void)snprintf(path, sizeof path, "%s/tasks", base);
    assert_true(is_ok(swarm_eval_folder_open(path, 0, &folder, &error)));
    assert_int_equal(folder.count, 6);
    assert_true(view_equals_text(folder.items[5].id, "t6"));
    assert_true(view_equals_text(folder.items[5].prompt, "do"));
    char digest[SWARM_EVAL_DIGEST_BYTES];
    memcpy(digest, folder.digest, sizeof digest);
    swarm_eval_folder_close(&folder);
    assert_true(is_ok(swarm_eval_folder_open(path, 3, &folder, &error)));
    assert_int_equal(folder.count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(folder.tasks[i].level, i + 1);
    }
    assert_string_equal(folder.digest, digest);
    shell("mkdir ws");
    char workspace[100];
    (void)snprintf(workspace, sizeof workspace, "%s/ws", base);
    assert_true(is_ok(swarm_eval_place(&folder.items[0], workspace, &error)));
    shell("test $(cat ws/deep/file) = x && test ! -e ws/task.json");
    swarm_eval_folder_close(&folder);
}

static void wrong_folders_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "task t3"},
        {"{\"level\":1}", "task t3: "},
        {"{\"level\":1,\"prompt\":\"\",\"test_command\":\"t\",\"hidden_command\":\"h\"}", "empty"},
        {"{\"level\":1,\"prompt\":\"p\",\"test_command\":\"t\"}", "hidden_command"},
    };
    struct error error = {0};
    struct swarm_eval_folder folder;
    char path[100];
    (void)snprintf(path, sizeof path, "%s/tasks", base);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        shell("printf %%s '%s' >tasks/t3/task.json", cases[i].text);
        assert_true(is_failed(swarm_eval_folder_open(path, 0, &folder, &error)));
        if (strstr(error.message, cases[i].says) == NULL) {
            fail_msg("%zu: %s", i, error.message);
        }
    }
    (void)snprintf(path, sizeof path, "%s/tasks/t1", base);
    assert_int_equal(swarm_eval_folder_open(path, 0, &folder, &error).code, RESULT_NOT_FOUND);
    assert_non_null(strstr(error.message, "no task in it"));
    (void)snprintf(path, sizeof path, "%s/nothing", base);
    assert_int_equal(swarm_eval_folder_open(path, 0, &folder, &error).code, RESULT_NOT_FOUND);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_run_is_made_once_over_any_number_of_calls),
        TEST(faults_are_recorded_and_three_in_a_row_end_it),
        TEST(files_of_others_are_refused_and_left_alone),
        TEST(folder_has_its_tasks_by_name_and_a_part_keeps_the_levels),
        TEST(wrong_folders_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
