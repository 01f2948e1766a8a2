/* See swarm_settings.h. */
#include "swarm_settings.h"

#include "nearest_name.h"

#include "tools/tool_agents.h"
#include <inttypes.h>

#define VERIFY_BYTES_MAX CONFIG_TEXT_BYTES_MAX
#define PROCESSES_MAX    1000000

/* ---- options -------------------------------------------------------------------------------- */

/* The strategy that is called most like it; null: none is. */
static const char *nearest_strategy(const char *name) {
    static const char *const names[] = {
        "auto", "single", "race", "best-of", "plan", "staged", "retries"};
    return nearest_name(view_of_text(name), names, COUNT_OF(names));
}

static int read_strategy(const struct cli_arguments *arguments, struct swarm_settings *out) {
    const char *name = cli_value(arguments, "strategy");
    if (name == NULL || strcmp(name, "auto") == 0) {
        return STATUS_DONE;
    }
    out->strategy = strategy_find(view_of_text(name));
    if (out->strategy != NULL) {
        return STATUS_DONE;
    }
    const char *nearest = nearest_strategy(name);
    return cli_usage(
        arguments,
        "--strategy wants one of %s, not '%.40s'%s%s%s",
        strategy_names(),
        name,
        nearest != NULL ? ": did you mean '" : "",
        nearest != NULL ? nearest : "",
        nearest != NULL ? "'?" : ""
    );
}

static int read_verifier(const struct cli_arguments *arguments, struct swarm_settings *out) {
    out->verify = cli_value(arguments, "verify");
    if (out->verify == NULL) {
        return STATUS_DONE;
    }
    size_t length = strlen(out->verify);
    if (strspn(out->verify, " \t\n") == length) {
        return cli_usage(arguments, "--verify: the command is empty");
    }
    if (length > VERIFY_BYTES_MAX) {
        return cli_usage(
            arguments, "--verify: %zu bytes, at most %zu are taken", length, VERIFY_BYTES_MAX
        );
    }
    return utf8_is_valid(view_of_text(out->verify))
               ? STATUS_DONE
               : cli_usage(arguments, "--verify: the command is not UTF-8 text");
}

int swarm_settings_read(const struct cli_arguments *arguments, struct swarm_settings *out) {
    const int64_t most = SWARM_NODES_MAX - 1;
    const char *tools = cli_value(arguments, "agent-tools");
    *out = (struct swarm_settings){.attempts = SWARM_ATTEMPTS_DEFAULT};
    int status = read_strategy(arguments, out);
    if (status == STATUS_DONE) {
        status = read_verifier(arguments, out);
    }
    if (status != STATUS_DONE) {
        return status;
    }
    if (!cli_i64(arguments, "attempts", 1, most, &out->attempts) ||
        !cli_i64(arguments, "max-agents", 1, most, &out->agents_max) ||
        !cli_i64(arguments, "at-once", 1, most, &out->at_once) ||
        !cli_i64(arguments, "max-depth", 1, SWARM_SETTINGS_DEPTH_MAX, &out->depth_max) ||
        !cli_duration(arguments, "verify-time", &out->verify_ms_max) ||
        !cli_i64(arguments, "max-processes", 1, PROCESSES_MAX, &out->processes_max) ||
        !cli_size(arguments, "max-memory", &out->memory_bytes_max)) {
        return STATUS_USAGE;
    }
    if (tools != NULL && strcmp(tools, "on") != 0 && strcmp(tools, "off") != 0) {
        return cli_usage(arguments, "--agent-tools wants on or off, not '%.40s'", tools);
    }
    return STATUS_DONE;
}

/* ---- with the configuration ----------------------------------------------------------------- */

static void fill_in(struct swarm_settings *settings, const struct run_settings *run) {
    const struct config *config = run->config;
    const char *tools = cli_value(run->arguments, "agent-tools");
    if (settings->verify == NULL) {
        settings->verify = config->swarm_verify;
    }
    if (!cli_has(run->arguments, "strategy")) {
        settings->strategy = strategy_find(view_of_text(config->swarm_strategy)); /* null: auto */
    }
    if (settings->agents_max == 0) {
        settings->agents_max = config->swarm_max_agents;
    }
    if (settings->at_once == 0) {
        settings->at_once = config->swarm_at_once;
    }
    if (settings->depth_max == 0) {
        settings->depth_max = SWARM_DEPTH_DEFAULT;
    }
    settings->at_once =
        settings->at_once < settings->agents_max ? settings->at_once : settings->agents_max;
    settings->has_agent_tools =
        tools != NULL ? strcmp(tools, "on") == 0 : run->model_settings.has_agent_tools;
}

/* What swarm_create would refuse, in the words of the command line. */
static int check_limits(const struct swarm_settings *settings, const struct run_settings *run) {
    const struct cli_arguments *arguments = run->arguments;
    if (run->time_ms_max > 0 && run->time_ms_max < SWARM_SETTINGS_TIME_MS_MIN) {
        return cli_usage(
            arguments,
            "%" PRId64 " ms are too short for a swarm: %d s at least, of which a part is for "
            "verifying and merging",
            run->time_ms_max,
            SWARM_SETTINGS_TIME_MS_MIN / 1000
        );
    }
    if (run->time_ms_max > SWARM_TIME_MS_MAX || settings->verify_ms_max > SWARM_TIME_MS_MAX) {
        return cli_usage(arguments, "--max-time and --verify-time: at most 30 days");
    }
    if (run->tokens_max > 0 && run->tokens_max < SWARM_CHILD_TOKENS_MIN) {
        return cli_usage(
            arguments,
            "%" PRId64 " tokens are too few for a swarm: no agent is started with less than %d",
            run->tokens_max,
            SWARM_CHILD_TOKENS_MIN
        );
    }
    if (run->task.length > SWARM_BRIEF_BYTES_MAX) {
        return cli_fail(
            STATUS_DATA,
            "the task has %zu bytes, a swarm takes at most %zu: put the rest into a file",
            run->task.length,
            SWARM_BRIEF_BYTES_MAX
        );
    }
    return STATUS_DONE;
}

static int check_strategy(const struct swarm_settings *settings, const struct run_settings *run) {
    const struct strategy *strategy = settings->strategy;
    bool has_attempts = settings->attempts != SWARM_ATTEMPTS_DEFAULT;
    if (has_attempts && settings->attempts > settings->agents_max) {
        return cli_usage(
            run->arguments,
            "--attempts %" PRId64 ": at most %" PRId64 " agents are started (--max-agents)",
            settings->attempts,
            settings->agents_max
        );
    }
    if (settings->verify_ms_max > 0 && settings->verify == NULL) {
        return cli_usage(run->arguments, "--verify-time: there is no verifier (--verify)");
    }
    if (strategy == NULL) {
        return STATUS_DONE;
    }
    if (strategy->needs_verifier && settings->verify == NULL) {
        return cli_usage(
            run->arguments,
            "--strategy %s needs --verify: nobody else says which attempt is right",
            strategy->name
        );
    }
    if (has_attempts && settings->attempts > 1 && strategy->attempts_default == 1) {
        return cli_usage(
            run->arguments,
            "--attempts %" PRId64 ": %s makes one attempt",
            settings->attempts,
            strategy->name
        );
    }
    return !has_attempts || settings->attempts >= strategy->attempts_min
               ? STATUS_DONE
               : cli_usage(
                     run->arguments,
                     "--attempts %" PRId64 ": %s takes %" PRId64 " at least",
                     settings->attempts,
                     strategy->name,
                     strategy->attempts_min
                 );
}

int swarm_settings_check(void *context, const struct run_settings *run) {
    struct swarm_settings settings = *(const struct swarm_settings *)context;
    fill_in(&settings, run);
    int status = check_limits(&settings, run);
    return status == STATUS_DONE ? check_strategy(&settings, run) : status;
}

int swarm_settings_apply(struct swarm_settings *settings, struct run_settings *run) {
    fill_in(settings, run);
    int status = check_limits(settings, run);
    if (status == STATUS_DONE) {
        status = check_strategy(settings, run);
    }
    if (status == STATUS_DONE && settings->has_agent_tools) {
        run->tools |= tool_set_agents();
        run->declared_tools |= tool_set_agents();
    }
    return status;
}

/* ---- the strategy --------------------------------------------------------------------------- */

void swarm_settings_choose(
    const struct swarm_settings *settings, const struct run_settings *run, struct swarm_chosen *out
) {
    struct strategy_choice choice = {
        .strategy = settings->strategy, .attempts = settings->attempts, .why = ""};
    if (settings->strategy == NULL) {
        const struct strategy_facts facts = {
            .task = buffer_view(&run->task),
            .has_verifier = settings->verify != NULL,
            .time_ms = run->time_ms_max > 0 ? run->time_ms_max : BUDGET_NO_LIMIT,
            .tokens = run->tokens_max > 0 ? run->tokens_max : BUDGET_NO_LIMIT,
            .memory_bytes = BUDGET_NO_LIMIT, /* the engine lets wait what does not fit */
            .attempts = settings->attempts != SWARM_ATTEMPTS_DEFAULT ? settings->attempts
                        : settings->agents_max < 4                   ? settings->agents_max
                                                                     : SWARM_ATTEMPTS_DEFAULT,
            .live_max = (size_t)settings->at_once,
            .effort_may_vary = run->model_settings.effort_may_vary,
        };
        strategy_choose(&facts, &choice);
    }
    memcpy(out->why, choice.why, STRATEGY_WHY_BYTES);
    out->options = (struct swarm_options){
        .task = buffer_view(&run->task),
        .strategy = choice.strategy,
        .attempts = choice.attempts,
        .has_verifier = settings->verify != NULL,
        .time_ms_max = run->time_ms_max,
        .tokens_max = run->tokens_max,
        .calls_max = run->calls_max,
        .processes_max = settings->processes_max,
        .memory_bytes_max = (int64_t)settings->memory_bytes_max, /* at most 2^60 */
        .depth_max = (size_t)settings->depth_max,
        .nodes_max = (size_t)settings->agents_max + 1,
        .live_max = (size_t)settings->at_once,
        .verify_ms_max = settings->verify_ms_max,
        .effort = run->effort,
        .effort_may_vary = run->model_settings.effort_may_vary,
        .seed = run->seed,
    };
}

result swarm_settings_write(
    const struct swarm_settings *settings,
    const struct swarm_options *options,
    struct buffer *out,
    struct error *error
) {
    struct json_writer writer;
    json_writer_init(&writer, out, error);
    const struct {
        const char *name;
        int64_t value; /* 0: not set */
    } members[] = {
        {"attempts", options->attempts != SWARM_ATTEMPTS_DEFAULT ? options->attempts : 0},
        {"agents_max", settings->agents_max},
        {"at_once", settings->at_once},
        {"depth_max", settings->depth_max},
        {"time_ms_max", options->time_ms_max},
        {"verify_ms_max", options->verify_ms_max},
        {"effort", options->effort},
    };
    json_write_object_begin(&writer);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        if (members[i].value != 0) {
            json_write_key(&writer, members[i].name);
            json_write_i64(&writer, members[i].value);
        }
    }
    json_write_key(&writer, "agent_tools");
    json_write_bool(&writer, settings->has_agent_tools);
    json_write_object_end(&writer);
    return json_writer_finish(&writer);
}
