/* The table and the JSON of an evaluation; see swarm_eval.h. */
#include "swarm_eval_internal.h"

#include "base/json.h"

#define FORMAT "hearth swarm eval 1"

static bool
is_evaluated(const struct swarm_eval *eval, enum swarm_eval_budget budget, size_t setting) {
    struct swarm_eval_costs costs;
    swarm_eval_costs(eval, budget, setting, &costs);
    return costs.runs > 0;
}

/* ---- for people -------------------------------------------------------------------------------- */

static result put_limit(
    const struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    struct buffer *out,
    struct error *error
) {
    int64_t limit = eval->plan.limits[budget];
    if (budget == SWARM_EVAL_TIME) {
        return buffer_append_format(
            out, error, "Equal wall clock: %.1f s a run", (double)limit / 1000
        );
    }
    return buffer_append_format(out, error, "Equal tokens: %lld a run", (long long)limit);
}

static result put_rates(
    struct swarm_eval *eval, enum swarm_eval_budget budget, struct buffer *out, struct error *error
) {
    TRY(buffer_append_format(
        out,
        error,
        "  %-16s %4s %8s %-16s %6s %6s %6s %7s %7s %6s\n",
        "setting",
        "runs",
        "solved",
        "  95 %",
        "one",
        "two",
        "three",
        "s",
        "tokens",
        "agents"
    ));
    for (size_t i = 0; i < SWARM_EVAL_SETTINGS; i++) {
        struct swarm_eval_figure all;
        struct swarm_eval_costs costs;
        if (!is_evaluated(eval, budget, i)) {
            continue;
        }
        swarm_eval_rate(eval, budget, i, 0, &all);
        swarm_eval_costs(eval, budget, i, &costs);
        TRY(buffer_append_format(
            out,
            error,
            "  %-16s %4zu %8.3f   %.3f to %.3f",
            swarm_eval_settings[i].name,
            all.runs,
            all.value,
            all.low,
            all.high
        ));
        for (int64_t level = 1; level <= SWARM_EVAL_LEVELS; level++) {
            struct swarm_eval_figure part;
            swarm_eval_rate(eval, budget, i, level, &part);
            TRY(part.runs > 0 ? buffer_append_format(out, error, " %6.2f", part.value)
                              : buffer_append_format(out, error, " %6s", "-"));
        }
        TRY(buffer_append_format(
            out, error, " %7.2f %7.0f %6.1f", costs.duration_ms / 1000, costs.tokens, costs.agents
        ));
        TRY(costs.faults == 0
                ? buffer_append_text(out, "\n", error)
                : buffer_append_format(out, error, "  %zu could not be run\n", costs.faults));
    }
    return OK;
}

static result put_differences(
    struct swarm_eval *eval, enum swarm_eval_budget budget, struct buffer *out, struct error *error
) {
    bool has_title = false;
    for (size_t against = 0; against < SWARM_EVAL_SETTINGS; against++) {
        for (size_t i = 0; i < SWARM_EVAL_SETTINGS; i++) {
            struct swarm_eval_figure found = {0};
            bool is_wanted = i != against && swarm_eval_settings[against].is_baseline &&
                             (!swarm_eval_settings[i].is_baseline || against < i);
            if (is_wanted) {
                swarm_eval_difference(eval, budget, i, against, &found);
            }
            if (found.runs == 0) {
                continue;
            }
            TRY(has_title
                    ? OK
                    : buffer_append_text(out, "  more solved, same tasks and seeds\n", error));
            has_title = true;
            TRY(buffer_append_format(
                out,
                error,
                "    %-16s than %-16s %+.3f   %+.3f to %+.3f%s\n",
                swarm_eval_settings[i].name,
                swarm_eval_settings[against].name,
                found.value,
                found.low,
                found.high,
                found.low > 0 || found.high < 0 ? "" : "   (may be none)"
            ));
        }
    }
    return OK;
}

result swarm_eval_write_table(
    struct swarm_eval *eval,
    const struct swarm_eval_about *about,
    struct buffer *out,
    struct error *error
) {
    TRY(buffer_append_format(
        out,
        error,
        "%zu tasks, %zu seeds; %.*s on %.*s, effort %d, temperature %g; %zu of %zu runs\n",
        eval->plan.task_count,
        eval->plan.seed_count,
        VIEW_ARGUMENTS(about->model),
        VIEW_ARGUMENTS(about->backend),
        (int)about->effort,
        about->temperature,
        swarm_eval_done(eval),
        swarm_eval_total(eval)
    ));
    for (int budget = 0; budget < SWARM_EVAL_BUDGETS; budget++) {
        if (eval->plan.limits[budget] > 0) {
            TRY(buffer_append_text(out, "\n", error));
            TRY(put_limit(eval, (enum swarm_eval_budget)budget, out, error));
            TRY(buffer_append_text(
                out, ". Solved: hidden tests pass; one, two, three: by number of bugs\n", error
            ));
            TRY(put_rates(eval, (enum swarm_eval_budget)budget, out, error));
            TRY(put_differences(eval, (enum swarm_eval_budget)budget, out, error));
        }
    }
    return OK;
}

/* ---- for programs ------------------------------------------------------------------------------ */

static void
write_figure(struct json_writer *writer, const char *name, const struct swarm_eval_figure *figure) {
    json_write_key(writer, "tasks");
    json_write_u64(writer, figure->tasks);
    json_write_key(writer, "runs");
    json_write_u64(writer, figure->runs);
    json_write_key(writer, name);
    json_write_double(writer, figure->value);
    json_write_key(writer, "low");
    json_write_double(writer, figure->low);
    json_write_key(writer, "high");
    json_write_double(writer, figure->high);
}

static void write_costs(struct json_writer *writer, const struct swarm_eval_costs *costs) {
    const struct {
        const char *name;
        double value;
    } means[] = {
        {"duration_ms", costs->duration_ms},
        {"tokens", costs->tokens},
        {"agents", costs->agents},
        {"calls", costs->calls},
        {"prompt_tokens", costs->prompt_tokens},
        {"reused_tokens", costs->reused_tokens},
        {"evaluated_tokens", costs->evaluated_tokens},
    };
    json_write_key(writer, "passed");
    json_write_u64(writer, costs->passed);
    json_write_key(writer, "deceived");
    json_write_u64(writer, costs->deceived);
    json_write_key(writer, "faults");
    json_write_u64(writer, costs->faults);
    json_write_key(writer, "mean");
    json_write_object_begin(writer);
    for (size_t i = 0; i < COUNT_OF(means); i++) {
        json_write_key(writer, means[i].name);
        json_write_double(writer, means[i].value);
    }
    json_write_object_end(writer);
}

/* What each solved run took, in the order of the runs: a curve of solved against budget. */
static void write_spent(
    struct json_writer *writer,
    const struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting
) {
    json_write_key(writer, "solved_at");
    json_write_array_begin(writer);
    for (size_t i = 0; i < eval->plan.task_count * eval->plan.seed_count; i++) {
        const struct swarm_eval_cell cell = {
            i % eval->plan.task_count, setting, i / eval->plan.task_count, budget};
        const struct swarm_eval_result *found = swarm_eval_get(eval, &cell);
        if (found != NULL && found->is_solved) {
            json_write_i64(writer, budget == SWARM_EVAL_TIME ? found->duration_ms : found->tokens);
        }
    }
    json_write_array_end(writer);
}

static void write_setting(
    struct json_writer *writer,
    struct swarm_eval *eval,
    enum swarm_eval_budget budget,
    size_t setting
) {
    struct swarm_eval_figure figure;
    struct swarm_eval_costs costs;
    swarm_eval_rate(eval, budget, setting, 0, &figure);
    swarm_eval_costs(eval, budget, setting, &costs);
    json_write_object_begin(writer);
    json_write_key(writer, "setting");
    json_write_text(writer, swarm_eval_settings[setting].name);
    write_figure(writer, "solved", &figure);
    json_write_key(writer, "levels");
    json_write_array_begin(writer);
    for (int64_t level = 1; level <= SWARM_EVAL_LEVELS; level++) {
        swarm_eval_rate(eval, budget, setting, level, &figure);
        if (figure.runs > 0) {
            json_write_object_begin(writer);
            json_write_key(writer, "level");
            json_write_i64(writer, level);
            write_figure(writer, "solved", &figure);
            json_write_object_end(writer);
        }
    }
    json_write_array_end(writer);
    write_costs(writer, &costs);
    write_spent(writer, eval, budget, setting);
    json_write_object_end(writer);
}

static void write_differences(
    struct json_writer *writer, struct swarm_eval *eval, enum swarm_eval_budget budget
) {
    json_write_key(writer, "differences");
    json_write_array_begin(writer);
    for (size_t i = 0; i < SWARM_EVAL_SETTINGS; i++) {
        for (size_t against = 0; against < i; against++) {
            struct swarm_eval_figure figure;
            swarm_eval_difference(eval, budget, i, against, &figure);
            if (figure.runs > 0) {
                json_write_object_begin(writer);
                json_write_key(writer, "setting");
                json_write_text(writer, swarm_eval_settings[i].name);
                json_write_key(writer, "against");
                json_write_text(writer, swarm_eval_settings[against].name);
                write_figure(writer, "difference", &figure);
                json_write_object_end(writer);
            }
        }
    }
    json_write_array_end(writer);
}

result swarm_eval_write_json(
    struct swarm_eval *eval,
    const struct swarm_eval_about *about,
    struct buffer *out,
    struct error *error
) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    json_write_object_begin(&writer);
    json_write_key(&writer, "format");
    json_write_text(&writer, FORMAT);
    json_write_key(&writer, "model");
    json_write_string(&writer, about->model);
    json_write_key(&writer, "backend");
    json_write_string(&writer, about->backend);
    json_write_key(&writer, "effort");
    json_write_i64(&writer, about->effort);
    json_write_key(&writer, "temperature");
    json_write_double(&writer, about->temperature);
    json_write_key(&writer, "tasks");
    json_write_u64(&writer, eval->plan.task_count);
    json_write_key(&writer, "seeds");
    json_write_u64(&writer, eval->plan.seed_count);
    json_write_key(&writer, "resamples");
    json_write_u64(&writer, SWARM_EVAL_RESAMPLES);
    json_write_key(&writer, "runs");
    json_write_u64(&writer, swarm_eval_done(eval));
    json_write_key(&writer, "runs_planned");
    json_write_u64(&writer, swarm_eval_total(eval));
    json_write_key(&writer, "budgets");
    json_write_array_begin(&writer);
    for (int i = 0; i < SWARM_EVAL_BUDGETS; i++) {
        enum swarm_eval_budget budget = (enum swarm_eval_budget)i;
        if (eval->plan.limits[budget] == 0) {
            continue;
        }
        json_write_object_begin(&writer);
        json_write_key(&writer, "budget");
        json_write_text(&writer, swarm_eval_budget_name(budget));
        json_write_key(&writer, "limit");
        json_write_i64(&writer, eval->plan.limits[budget]);
        json_write_key(&writer, "settings");
        json_write_array_begin(&writer);
        for (size_t setting = 0; setting < SWARM_EVAL_SETTINGS; setting++) {
            if (is_evaluated(eval, budget, setting)) {
                write_setting(&writer, eval, budget, setting);
            }
        }
        json_write_array_end(&writer);
        write_differences(&writer, eval, budget);
        json_write_object_end(&writer);
    }
    json_write_array_end(&writer);
    json_write_object_end(&writer);
    TRY(json_writer_finish(&writer));
    return buffer_append_byte(out, '\n', error);
}
