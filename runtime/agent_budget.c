/* An agent's budgets: what it is told of them, the time that a call may take, and what they become when its share
 * changes. See agent.h. */
#include "agent_internal.h"

#include <inttypes.h>
#include <stdarg.h>

/* Of what is left, kept back for the answer: a call that hangs does not take all of it. */
#define RESERVE_SHARE   4
#define RESERVE_MS_MAX  10000
#define WRAP_UP_PERCENT 80 /* from here on each result says what is left */
#define LAST_PERCENT    95

static int percent_of(int64_t used, int64_t all) {
    if (all <= 0) {
        return 100;
    }
    double share = 100.0 * (double)used / (double)all;
    return share >= 100.0 ? 100 : (int)share;
}

/* Of the budget that is nearest to its end. */
static int percent_spent(const struct agent *agent, int64_t now_ms) {
    int most = 0;
    int percent = 0;
    if (agent->time_ms_max != AGENT_NO_LIMIT) {
        most = percent_of(now_ms - agent->started_ms, agent->time_ms_max);
    }
    if (agent->tokens_max != AGENT_NO_LIMIT) {
        percent = percent_of(agent->tokens_sampled, agent->tokens_max);
        most = percent > most ? percent : most;
    }
    if (agent->calls_max != AGENT_NO_LIMIT) {
        percent = percent_of(agent->calls_run, agent->calls_max);
        most = percent > most ? percent : most;
    }
    return most;
}

static int64_t left_of(int64_t all, int64_t used) {
    return all > used ? all - used : 0;
}

PRINTF_LIKE(3, 4)
static void add(char *out, size_t bytes, const char *format, ...) {
    size_t used = strlen(out);
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(out + used, bytes - used, format, arguments);
    va_end(arguments);
    ASSERT(written >= 0 && (size_t)written < bytes - used); /* three numbers and a sentence */
}

bool agent_budget_line(struct agent *agent, int64_t now_ms, char *out, size_t bytes) {
    static const int marks[] = {50, WRAP_UP_PERCENT, LAST_PERCENT};
    int percent = percent_spent(agent, now_ms);
    int mark = 0;
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        mark = percent >= marks[i] ? marks[i] : mark;
    }
    if (mark == 0 || (mark == agent->budget_said && mark < WRAP_UP_PERCENT)) {
        return false;
    }
    agent->budget_said = mark;
    out[0] = '\0';
    add(out, bytes, "[budget left:");
    const char *between = " ";
    if (agent->time_ms_max != AGENT_NO_LIMIT) {
        int64_t left_ms = left_of(agent->time_ms_max, now_ms - agent->started_ms);
        add(out, bytes, "%s%" PRId64 " s", between, left_ms / 1000);
        between = ", ";
    }
    if (agent->tokens_max != AGENT_NO_LIMIT) {
        int64_t left = left_of(agent->tokens_max, agent->tokens_sampled);
        add(out, bytes, "%s%" PRId64 " tokens", between, left);
        between = ", ";
    }
    if (agent->calls_max != AGENT_NO_LIMIT) {
        add(out, bytes, "%s%" PRId64 " calls", between, left_of(agent->calls_max, agent->calls_run)
        );
    }
    add(out,
        bytes,
        "%s]",
        mark >= LAST_PERCENT      ? "; answer now"
        : mark >= WRAP_UP_PERCENT ? "; finish what you are doing and answer"
                                  : "");
    return true;
}

int64_t agent_budget_call_ms(const struct agent *agent, int64_t now_ms) {
    if (agent->deadline_ms == INT64_MAX) {
        return 0;
    }
    int64_t left = agent->deadline_ms - now_ms;
    int64_t reserve = left / RESERVE_SHARE;
    left -= reserve < RESERVE_MS_MAX ? reserve : RESERVE_MS_MAX;
    return left > 1 ? left : 1;
}

void agent_share_take(struct agent *agent, const struct agent_share *share) {
    bool has_deadline = share->deadline_ms != AGENT_NO_LIMIT;
    agent->tokens_max = share->tokens_max;
    agent->calls_max = share->calls_max;
    agent->deadline_ms = share->deadline_ms;
    agent->time_ms_max =
        has_deadline ? left_of(share->deadline_ms, agent->started_ms) : AGENT_NO_LIMIT;
    agent->budget_said = 0;
    agent->has_refused_calls = agent->has_refused_calls && agent->calls_run >= agent->calls_max;
}

bool agent_share_has_grown(const struct agent *agent, int64_t now_ms) {
    bool has_tokens = agent->turn_is_budgeted && agent->tokens_sampled < agent->tokens_max;
    bool has_time = agent->turn_deadline_ms < agent->deadline_ms && now_ms < agent->deadline_ms;
    return (agent->reason == FINISH_LENGTH && has_tokens) ||
           (agent->reason == FINISH_DEADLINE && has_time);
}

bool agent_turn_is_spent(const struct agent *agent, int64_t sampled) {
    int64_t left = left_of(agent->tokens_max, agent->tokens_sampled);
    return agent->state == AGENT_STATE_GENERATING && agent->turn_tokens > left && sampled >= left;
}
