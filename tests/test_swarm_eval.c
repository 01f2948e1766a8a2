/* What an evaluation says: known rates, differences and intervals, the order of its runs, and a file of
 * results that is continued, cut short or damaged. */
#include "base/json.h"
#include "runtime/swarm_eval.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { SINGLE, RETRIES, ALONE, BEST, RACE, STAGED, AUTO };

static struct swarm_eval_task tasks[4];

static struct swarm_eval_plan plan_of(size_t task_count, size_t seed_count) {
    static const char *const ids[] = {"a", "b", "c", "d"};
    for (size_t i = 0; i < COUNT_OF(tasks); i++) {
        tasks[i] = (struct swarm_eval_task){
            .id = view_of_text(ids[i]),
            .level = 1 + (int64_t)(i / 2),
        };
    }
    return (struct swarm_eval_plan){
        .tasks = tasks,
        .task_count = task_count,
        .seed_count = seed_count,
        .limits = {2000, 3000},
        .has = {true, true, true, true, true, true, true},
    };
}

static struct swarm_eval *open_eval(const struct swarm_eval_plan *plan) {
    struct swarm_eval *eval = NULL;
    struct error error = {0};
    if (is_failed(swarm_eval_create(&eval, plan, &error))) {
        fail_msg("%s", error.message);
    }
    return eval;
}

static void add(struct swarm_eval *eval, size_t task, size_t setting, size_t seed, bool is_solved) {
    const struct swarm_eval_cell cell = {task, setting, seed, SWARM_EVAL_TIME};
    const struct swarm_eval_result found = {
        .is_solved = is_solved,
        .is_passed = is_solved || seed == 1,
        .duration_ms = 100 + (int64_t)task,
        .tokens = 10,
        .agents = 2,
    };
    swarm_eval_add(eval, &cell, &found);
}

static void expect_near(double value, double expected) {
    if (fabs(value - expected) > 1e-12) {
        fail_msg("%.17g is not %.17g", value, expected);
    }
}

/* ---- statistics -------------------------------------------------------------------------------- */

/* Expected values: the same definition, written once more in another language. */
static void intervals_have_known_values(void **state) {
    (void)state;
    static double scratch[SWARM_EVAL_RESAMPLES];
    static const double rates[] = {1, 0, 0, 1, 1, 0, 0, 1, 0, 0.5};
    static const double differences[] = {1, -1, 0, 0.25, 0.5};
    double halves[100] = {0};
    double low = 0;
    double high = 0;
    swarm_eval_interval(rates, COUNT_OF(rates), 7, scratch, &low, &high);
    expect_near(low, 0.15);
    expect_near(high, 0.75);
    swarm_eval_interval(differences, COUNT_OF(differences), 99, scratch, &low, &high);
    expect_near(low, -0.45);
    expect_near(high, 0.7);
    for (size_t i = 50; i < COUNT_OF(halves); i++) {
        halves[i] = 1;
    }
    swarm_eval_interval(halves, COUNT_OF(halves), 1, scratch, &low, &high);
    assert_true(fabs(low - (0.5 - 1.96 * 0.05)) < 0.011); /* the normal one; steps are of 0.01 */
    assert_true(fabs(high - (0.5 + 1.96 * 0.05)) < 0.011);
    swarm_eval_interval(&halves[50], 50, 1, scratch, &low, &high);
    expect_near(low, 1);
    expect_near(high, 1);
}

static void rates_are_means_over_tasks_of_means_over_seeds(void **state) {
    (void)state;
    struct swarm_eval_plan plan = plan_of(4, 2);
    struct swarm_eval *eval = open_eval(&plan);
    struct swarm_eval_figure figure;
    add(eval, 0, SINGLE, 0, true);
    add(eval, 0, SINGLE, 1, false);
    add(eval, 1, SINGLE, 0, true); /* its other seed is not there yet */
    add(eval, 2, SINGLE, 0, false);
    add(eval, 2, SINGLE, 1, false);
    add(eval, 3, SINGLE, 5, true); /* beside the plan */
    swarm_eval_rate(eval, SWARM_EVAL_TIME, SINGLE, 0, &figure);
    assert_int_equal(figure.tasks, 3);
    assert_int_equal(figure.runs, 5);
    expect_near(figure.value, 0.5);
    assert_true(figure.low >= 0 && figure.low < 0.5 && figure.high > 0.5 && figure.high <= 1);
    swarm_eval_rate(eval, SWARM_EVAL_TIME, SINGLE, 1, &figure);
    expect_near(figure.value, 0.75);
    swarm_eval_rate(eval, SWARM_EVAL_TIME, SINGLE, 2, &figure);
    expect_near(figure.value, 0);
    expect_near(figure.high, 0);
    swarm_eval_rate(eval, SWARM_EVAL_TOKENS, SINGLE, 0, &figure);
    assert_int_equal(figure.runs, 0);
    struct swarm_eval_costs costs;
    swarm_eval_costs(eval, SWARM_EVAL_TIME, SINGLE, &costs);
    assert_int_equal(costs.runs, 5);
    assert_int_equal(costs.passed, 4);
    assert_int_equal(costs.deceived, 2);
    expect_near(costs.duration_ms, (100 + 100 + 101 + 102 + 102) / 5.0);
    swarm_eval_destroy(eval);
}

/* The tasks differ much and the settings by one task: paired, that is seen; unpaired it would drown. */
static void differences_are_paired(void **state) {
    (void)state;
    static struct swarm_eval_task many[60];
    static char ids[60][8];
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        int length = snprintf(ids[i], sizeof ids[i], "t%zu", i);
        assert_true(length > 0);
        many[i] = (struct swarm_eval_task){.id = view_of_text(ids[i]), .level = 1};
    }
    struct swarm_eval_plan plan = plan_of(4, 1);
    plan.tasks = many;
    plan.task_count = COUNT_OF(many);
    struct swarm_eval *eval = open_eval(&plan);
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        add(eval, i, SINGLE, 0, i < 24);
        add(eval, i, RACE, 0, i < 33);
    }
    struct swarm_eval_figure single;
    struct swarm_eval_figure race;
    struct swarm_eval_figure more;
    struct swarm_eval_figure less;
    swarm_eval_rate(eval, SWARM_EVAL_TIME, SINGLE, 0, &single);
    swarm_eval_rate(eval, SWARM_EVAL_TIME, RACE, 0, &race);
    swarm_eval_difference(eval, SWARM_EVAL_TIME, RACE, SINGLE, &more);
    swarm_eval_difference(eval, SWARM_EVAL_TIME, SINGLE, RACE, &less);
    assert_true(single.high > race.low);
    expect_near(more.value, 0.15);
    assert_true(more.low > 0.05 && more.high < 0.27);
    expect_near(less.value, -0.15);
    expect_near(less.low, -more.high);
    expect_near(less.high, -more.low);
    swarm_eval_difference(eval, SWARM_EVAL_TIME, RACE, RACE, &more);
    expect_near(more.high, 0);
    swarm_eval_difference(eval, SWARM_EVAL_TIME, RACE, STAGED, &more);
    assert_int_equal(more.runs, 0);
    swarm_eval_destroy(eval);
}

/* ---- the order --------------------------------------------------------------------------------- */

static void every_run_comes_once_seed_by_seed(void **state) {
    (void)state;
    struct swarm_eval_plan plan = plan_of(3, 2);
    plan.has[STAGED] = false;
    struct swarm_eval *eval = open_eval(&plan);
    struct swarm_eval_cell cell;
    size_t firsts[SWARM_EVAL_SETTINGS] = {0};
    size_t last_pair = SIZE_MAX;
    size_t count = 0;
    assert_int_equal(swarm_eval_total(eval), 3 * 2 * (6 * 2 - 1));
    while (swarm_eval_next(eval, &cell)) {
        size_t pair = cell.seed * 3 + cell.task;
        assert_true(cell.setting != STAGED && cell.seed < 2);
        assert_true(cell.setting != ALONE || cell.budget == SWARM_EVAL_TIME);
        assert_true(last_pair == SIZE_MAX || pair == last_pair || pair == last_pair + 1);
        firsts[cell.setting] += pair != last_pair ? 1 : 0;
        last_pair = pair;
        assert_int_equal(swarm_eval_done(eval), count++);
        const struct swarm_eval_result nothing = {0};
        swarm_eval_add(eval, &cell, &nothing);
    }
    assert_int_equal(count, swarm_eval_total(eval));
    assert_true(firsts[SINGLE] < 6); /* others are first too */
    const struct swarm_eval_cell cells[] = {
        {1, SINGLE, 0, SWARM_EVAL_TIME},
        {1, RACE, 0, SWARM_EVAL_TOKENS},
        {1, SINGLE, 1, SWARM_EVAL_TIME},
        {2, SINGLE, 0, SWARM_EVAL_TIME},
    };
    assert_true(swarm_eval_seed(eval, &cells[0]) == swarm_eval_seed(eval, &cells[1]));
    assert_true(swarm_eval_seed(eval, &cells[0]) != swarm_eval_seed(eval, &cells[2]));
    assert_true(swarm_eval_seed(eval, &cells[0]) != swarm_eval_seed(eval, &cells[3]));
    struct swarm_eval_plan fewer = plan;
    fewer.tasks++; /* of the same tasks */
    fewer.task_count--;
    struct swarm_eval *part = open_eval(&fewer);
    const struct swarm_eval_cell same = {0, SINGLE, 0, SWARM_EVAL_TIME};
    assert_true(swarm_eval_seed(eval, &cells[0]) == swarm_eval_seed(part, &same));
    swarm_eval_destroy(part);
    swarm_eval_destroy(eval);
}

static void wrong_plans_are_named(void **state) {
    (void)state;
    struct swarm_eval *eval = NULL;
    struct error error = {0};
    struct swarm_eval_plan plan = plan_of(4, 0);
    assert_int_equal(swarm_eval_create(&eval, &plan, &error).code, RESULT_INVALID_INPUT);
    assert_non_null(strstr(error.message, "0 seeds: 1 to 16"));
    plan = plan_of(0, 1);
    assert_true(is_failed(swarm_eval_create(&eval, &plan, &error)));
    plan = plan_of(4, 1);
    plan.limits[0] = plan.limits[1] = 0;
    assert_true(is_failed(swarm_eval_create(&eval, &plan, &error)));
    plan = plan_of(4, 1);
    memset(plan.has, 0, sizeof plan.has);
    assert_true(is_failed(swarm_eval_create(&eval, &plan, &error)));
    plan = plan_of(4, 1);
    tasks[3].id = tasks[0].id;
    assert_true(is_failed(swarm_eval_create(&eval, &plan, &error)));
    assert_string_equal(error.message, "two tasks a");
    plan = plan_of(4, 1);
    tasks[1].level = 4;
    assert_true(is_failed(swarm_eval_create(&eval, &plan, &error)));
    assert_null(eval);
    for (size_t i = 0; i < SWARM_EVAL_SETTINGS; i++) {
        assert_int_equal(swarm_eval_find_setting(view_of_text(swarm_eval_settings[i].name)), i);
    }
    assert_int_equal(swarm_eval_find_setting(view_of_text("race")), SWARM_EVAL_SETTINGS);
}

/* ---- the file ---------------------------------------------------------------------------------- */

static void results_survive_the_file(void **state) {
    (void)state;
    struct swarm_eval_plan plan = plan_of(4, 2);
    struct swarm_eval *first = open_eval(&plan);
    struct swarm_eval *second = open_eval(&plan);
    struct error error = {0};
    struct buffer file;
    size_t used = 0;
    buffer_init(&file, BUFFER_CEILING_DEFAULT);
    const struct view header = view_of_text("{\"format\":\"x\"}");
    assert_true(is_ok(swarm_eval_read_lines(second, header, view_of(NULL, 0), &used, &error)));
    assert_int_equal(used, 0);
    assert_true(is_ok(buffer_append_format(&file, &error, "%s\n", "{\"format\":\"x\"}")));
    struct swarm_eval_cell cell;
    while (swarm_eval_next(first, &cell)) {
        struct swarm_eval_result found = {
            .is_solved = cell.task == 1,
            .is_passed = true,
            .duration_ms = 17 * (int64_t)cell.setting,
            .tokens = (int64_t)1 << 40,
            .agents = 8,
            .calls = 1,
            .prompt_tokens = 2,
            .reused_tokens = 3,
            .evaluated_tokens = 4,
        };
        if (cell.task == 2) {
            memcpy(found.fault, "no \"space\"", sizeof "no \"space\"");
        }
        swarm_eval_add(first, &cell, &found);
        assert_true(is_ok(swarm_eval_write_line(first, &cell, &found, &file, &error)));
    }
    size_t whole = file.length;
    assert_true(is_ok(buffer_append_text(&file, "{\"task\":\"a\",\"sett", &error)));
    if (is_failed(swarm_eval_read_lines(second, header, buffer_view(&file), &used, &error))) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(used, whole); /* what a kill left is written over */
    assert_false(swarm_eval_next(second, &cell));
    cell = (struct swarm_eval_cell){2, RACE, 1, SWARM_EVAL_TOKENS};
    assert_memory_equal(
        swarm_eval_get(first, &cell),
        swarm_eval_get(second, &cell),
        sizeof(struct swarm_eval_result)
    );
    buffer_deinit(&file);
    swarm_eval_destroy(first);
    swarm_eval_destroy(second);
}

#define LINE                                                                                       \
    "{\"task\":\"a\",\"setting\":\"race-8\",\"budget\":\"time\",\"seed\":1,\"solved\":true,"       \
    "\"passed\":true,\"duration_ms\":1,\"tokens\":1,\"agents\":1,\"calls\":1,"                     \
    "\"prompt_tokens\":1,\"reused_tokens\":1,\"evaluated_tokens\":1,\"fault\":\"\"}\n"

static void damaged_files_are_refused_by_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"other\n" LINE, "it is of another evaluation: it has other, and this one H"},
        {"H\n" LINE LINE, "line 3: the same run as on an earlier line"},
        {"H\n{\"task\":\"z\"}\n", "line 2: there is no task z among those chosen"},
        {"H\n{\"task\":\"a\",\"setting\":\"r\"}\n", "line 2: there is no setting r"},
        {"H\n{\"task\":\"a\",\"setting\":\"single\",\"budget\":\"x\"}\n", "time or tokens, not x"},
        {"H\n{\"task\":\"a\",\"setting\":\"single\",\"budget\":\"time\",\"seed\":17}\n", "seed 17"},
        {"H\n{\"task\":\"a\",\"setting\":\"single\",\"budget\":\"time\",\"seed\":1}\n", "solved"},
        {"H\n" LINE "\n", "line 3"},
        {"H\n[]\n", "line 2"},
        {"H\nnot JSON\n", "line 2"},
    };
    struct swarm_eval_plan plan = plan_of(4, 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct swarm_eval *eval = open_eval(&plan);
        struct error error = {0};
        size_t used = 0;
        result read = swarm_eval_read_lines(
            eval, view_of_text("H"), view_of_text(cases[i].text), &used, &error
        );
        assert_int_equal(read.code, RESULT_INVALID_INPUT);
        if (strstr(error.message, cases[i].says) == NULL) {
            fail_msg("%zu: '%s' does not say '%s'", i, error.message, cases[i].says);
        }
        assert_int_equal(used, 0);
        swarm_eval_destroy(eval);
    }
}

/* ---- table and JSON ---------------------------------------------------------------------------- */

static void table_and_json_have_the_figures(void **state) {
    (void)state;
    struct swarm_eval_plan plan = plan_of(4, 2);
    struct swarm_eval *eval = open_eval(&plan);
    struct error error = {0};
    struct buffer out;
    const struct swarm_eval_about about = {
        .model = view_of_text("mini"),
        .backend = view_of_text("cpu"),
        .effort = 25,
        .temperature = 0.8,
    };
    buffer_init(&out, BUFFER_CEILING_DEFAULT);
    for (size_t i = 0; i < 8; i++) {
        add(eval, i % 4, SINGLE, i / 4, i % 4 == 0);
        add(eval, i % 4, RACE, i / 4, i % 4 != 3);
    }
    assert_true(is_ok(swarm_eval_write_table(eval, &about, &out, &error)));
    const char *table = buffer_text(&out);
    assert_non_null(
        strstr(table, "4 tasks, 2 seeds; mini on cpu, effort 25, temperature 0.8; 16 of")
    );
    assert_non_null(strstr(table, "Equal wall clock: 2.0 s a run"));
    assert_non_null(strstr(table, "Equal tokens: 3000 a run"));
    assert_non_null(strstr(table, "race-8              8    0.750"));
    assert_non_null(strstr(table, "race-8           than single           +0.500"));
    assert_null(strstr(table, "staged"));
    for (const char *line = table; *line != '\0';) {
        size_t length = strcspn(line, "\n");
        assert_true(length < 100);
        line += length + (line[length] == '\n' ? 1 : 0);
    }
    buffer_clear(&out);
    assert_true(is_ok(swarm_eval_write_json(eval, &about, &out, &error)));
    struct json_document *document = NULL;
    assert_true(is_ok(json_parse(buffer_view(&out), NULL, &document, &error)));
    struct json_value budget = json_first(json_get(json_root(document), "budgets"));
    struct json_value single = json_first(json_get(budget, "settings"));
    struct json_value race = json_next(single);
    double value = 0;
    assert_true(json_as_double(json_get(race, "solved"), &value));
    expect_near(value, 0.75);
    assert_int_equal(json_count(json_get(race, "solved_at")), 6);
    assert_int_equal(json_count(json_get(race, "levels")), 2);
    assert_int_equal(json_type(json_next(race)), JSON_ABSENT);
    struct json_value difference = json_first(json_get(budget, "differences"));
    assert_true(json_as_double(json_get(difference, "difference"), &value));
    expect_near(value, 0.5);
    json_destroy(document);
    buffer_deinit(&out);
    swarm_eval_destroy(eval);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals_have_known_values),
        cmocka_unit_test(rates_are_means_over_tasks_of_means_over_seeds),
        cmocka_unit_test(differences_are_paired),
        cmocka_unit_test(every_run_comes_once_seed_by_seed),
        cmocka_unit_test(wrong_plans_are_named),
        cmocka_unit_test(results_survive_the_file),
        cmocka_unit_test(damaged_files_are_refused_by_line),
        cmocka_unit_test(table_and_json_have_the_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
