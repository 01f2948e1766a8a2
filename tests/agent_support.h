/* An agent as event scripts: what a model does on the left, the effects on the right. A driver answers
 * every effect at once; the log of effects is compared as one string. */
#ifndef HEARTH_TESTS_AGENT_SUPPORT_H
#define HEARTH_TESTS_AGENT_SUPPORT_H

#include "base/bytes.h"
#include "runtime/agent.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define CALLS_MAX 4

struct scripted_call {
    const char *name;
    const char *arguments;
};

/* One generation of the scripted model; the last one is repeated for ever. */
struct scripted_turn {
    enum finish_reason reason; /* FINISH_EOS is 0 */
    const char *content;
    struct scripted_call calls[CALLS_MAX];
    const char *problem;
    int32_t sampled; /* 0: 10 */
};

struct script {
    const struct scripted_turn *turns;
    size_t turn_count;
    const char *const *results; /* of calls, in order; the last one is repeated */
    size_t result_count;
    enum agent_effect_type fails;      /* this RECORD effect fails, the ... */
    int fails_at;                      /* ... nth time; 0: never */
    enum agent_effect_type interrupts; /* an interrupt arrives right after this effect ... */
    int interrupts_at;                 /* ... the nth time; 0: never */
    int64_t milliseconds;              /* each answer takes */
    enum tool_status status;
    bool ends_task;
    bool call_fails;
};

struct driver {
    const struct script *script;
    struct agent *agent;
    struct buffer log;
    int64_t now_ms;
    size_t turn, result;
    int seen[AGENT_FINISH + 1];
    bool is_cancelled;
    bool has_interrupted;
    bool is_quiet; /* no log: it would allocate */
};

struct agent_options options_default(void);

/* Script and options are borrowed until close. */
void driver_open(
    struct driver *driver, const struct script *script, const struct agent_options *options
);
void driver_close(struct driver *driver);
/* From the start to the end. */
void driver_run(struct driver *driver);
/* One event; returns the effect that wants an answer, or AGENT_FINISH: none does. */
struct agent_effect driver_handle(struct driver *driver, const struct agent_event *event);

/* Runs a script with options and checks stop, exit status and (when not null) the effects. */
void check_script(
    const struct script *script,
    const struct agent_options *options,
    enum agent_stop stop,
    int exit_status,
    const char *log
);

#define SCRIPT(turns_array) .turns = (turns_array), .turn_count = COUNT_OF(turns_array)

extern const struct scripted_turn answer[1];
extern const struct scripted_turn call_then_answer[2];
extern const struct scripted_turn same_call[1];

#endif
