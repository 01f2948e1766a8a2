/* Chooses a strategy by task, budget, verifier and memory, and says why; see strategy.h.
 *
 * Where agents side by side help, and where they only cost, is known of independent parts, of attempts
 * with an executable check, and of little else; so without a reason it is one agent.
 */
#include "strategy.h"

#include <stdarg.h>

#define TOKENS_OF_ATTEMPT 8192  /* fewer, and an attempt does not come to an end */
#define TOKENS_OF_FULL    65536 /* for each attempt: no need to begin small */
#define TIME_MS_MIN       20000 /* starting and verifying cost seconds */
#define PARTS_MIN         3

/* Lines that begin as those of a list do: a task of several parts. */
static size_t count_parts(struct view task) {
    struct cursor cursor = cursor_over(task);
    struct view line = view_of(NULL, 0);
    size_t parts = 0;
    while (cursor_remaining(&cursor) > 0) {
        if (!cursor_take_until(&cursor, '\n', &line)) {
            bool has_rest = cursor_take(&cursor, cursor_remaining(&cursor), &line);
            ASSERT(has_rest);
        }
        size_t at = 0;
        while (at < line.length && line.data[at] == ' ') {
            at++;
        }
        size_t digits = at;
        while (digits < line.length && line.data[digits] >= '0' && line.data[digits] <= '9') {
            digits++;
        }
        bool is_bullet = at + 1 < line.length && line.data[at + 1] == ' ' &&
                         (line.data[at] == '-' || line.data[at] == '*');
        bool is_numbered = digits > at && digits + 1 < line.length &&
                           line.data[digits + 1] == ' ' &&
                           (line.data[digits] == '.' || line.data[digits] == ')');
        parts += is_bullet || is_numbered ? 1 : 0;
    }
    return parts;
}

PRINTF_LIKE(4, 5)
static void choose(
    struct strategy_choice *out,
    const struct strategy *strategy,
    int64_t attempts,
    const char *format,
    ...
) {
    out->strategy = strategy;
    out->attempts = attempts;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(out->why, sizeof out->why, format, arguments);
    va_end(arguments);
    ASSERT(written > 0 && (size_t)written < sizeof out->why);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

void strategy_choose(const struct strategy_facts *facts, struct strategy_choice *out) {
    int64_t usual = facts->attempts != SWARM_ATTEMPTS_DEFAULT ? facts->attempts : 4;
    int64_t by_memory = facts->memory_bytes == BUDGET_NO_LIMIT || facts->node_memory_bytes <= 0
                            ? usual
                            : facts->memory_bytes / facts->node_memory_bytes;
    int64_t by_tokens =
        facts->tokens == BUDGET_NO_LIMIT ? usual : facts->tokens / TOKENS_OF_ATTEMPT;
    int64_t attempts = least(usual, least(by_memory, by_tokens));
    size_t parts = count_parts(facts->task);
    long long number = (long long)attempts;
    if (usual <= 1) {
        choose(out, &strategy_single, 1, "single: one agent was asked for");
    } else if (facts->time_ms < TIME_MS_MIN) {
        choose(
            out,
            &strategy_single,
            1,
            "single: %lld ms are too short for several agents",
            (long long)facts->time_ms
        );
    } else if (by_tokens < 2) {
        choose(
            out,
            &strategy_single,
            1,
            "single: %lld tokens are too few to share",
            (long long)facts->tokens
        );
    } else if (by_memory < 2) {
        choose(out, &strategy_single, 1, "single: memory suffices for one agent");
    } else if (parts >= PARTS_MIN) {
        choose(
            out,
            &strategy_plan,
            attempts,
            "plan: the task lists %zu parts, which can be worked on beside each other",
            parts
        );
    } else if (!facts->has_verifier) {
        choose(
            out,
            &strategy_best_of,
            attempts,
            "best-of: %lld attempts, ranked, since no verifier says which is right",
            number
        );
    } else if (facts->effort_may_vary && facts->tokens != BUDGET_NO_LIMIT && facts->tokens / attempts < TOKENS_OF_FULL) {
        choose(
            out,
            &strategy_staged,
            attempts,
            "staged: a verifier is there and tokens are few: %lld attempts at low effort first",
            number
        );
    } else {
        choose(
            out,
            &strategy_race,
            attempts,
            "race: a verifier is there: the first of %lld attempts that passes wins",
            number
        );
    }
}
