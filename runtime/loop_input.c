/* What a person does while a run is there: messages, interrupts, answers and commands. See loop.h. */
#include "loop_internal.h"

#include <stdarg.h>

#define MESSAGE_BYTES_MAX ((size_t)1 << 20) /* as of a task */
#define UNSENT_BYTES_MAX  400               /* shown of a message that was never given */

PRINTF_LIKE(2, 3)
static void say(struct run *run, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    ASSERT(length >= 0); /* too long: cut */
    struct run_event note = {.type = RUN_NOTE, .text = view_of_text(text)};
    run_show(run, &note);
}

static void message_came(struct run *run, struct view text) {
    if (!run->options->is_interactive) {
        say(run, "this run takes no messages: it does one task");
    } else if (text.length == 0 || text.length > MESSAGE_BYTES_MAX || !utf8_is_valid(text)) {
        say(run, "a message is 1 to %zu bytes of UTF-8 text", MESSAGE_BYTES_MAX);
    } else if (run_command_holds(run, text)) {
        return; /* it comes when the command is done */
    } else if (!agent_takes_message(run->agent, text.length)) {
        say(run,
            "the message was not taken: %zu wait already for the next turn",
            agent_queued(run->agent));
    } else {
        bool waits = !agent_is_idle(run->agent);
        run->interrupted_ms = 0; /* who says something goes on */
        run_dispatch(run, &(struct agent_event){.type = AGENT_MESSAGE, .text = text});
        struct run_event queued = {
            .type = RUN_QUEUED, .text = text, .queued = agent_queued(run->agent)};
        if (waits) {
            run_show(run, &queued);
        }
    }
}

static void end_by(struct run *run, enum agent_event_type type, const char *who) {
    run_limit_snapshots(run);
    run_dispatch(run, &(struct agent_event){.type = type, .text = view_of_text(who)});
}

void run_interrupt(struct run *run, bool is_steering) {
    int64_t now_ms = run_now_ms(run);
    bool is_second = !is_steering && run->interrupted_ms != 0 &&
                     now_ms - run->interrupted_ms <= RUN_INTERRUPT_MS;
    bool is_idle = agent_is_idle(run->agent);
    run->interrupted_ms = is_steering ? 0 : now_ms;
    if (!run->options->is_interactive || (is_second && !is_idle)) {
        end_by(run, AGENT_INTERRUPT, "by the user");
    } else if (is_second) {
        end_by(run, AGENT_QUIT, "");
    } else if (is_idle) {
        say(run, "once more to leave");
    } else {
        run_dispatch(run, &(struct agent_event){.type = AGENT_PAUSE});
    }
}

static void effort_came(struct run *run, struct view text) {
    struct error error = {0};
    int32_t effort = 0;
    int32_t now = agent_chat_options(run->agent).effort;
    if (text.length == 0) {
        say(run, "effort %d", now);
    } else if (is_failed(chat_effort_parse(&effort, text, &error))) {
        say(run, "%s", error.message);
    } else if (run->declared.constraint != NULL && (effort == CHAT_EFFORT_OFF) != (now == CHAT_EFFORT_OFF)) {
        say(run, "with --constrain-tools thinking cannot be switched on or off");
    } else {
        run_dispatch(run, &(struct agent_event){.type = AGENT_EFFORT, .effort = effort});
        say(run, "effort %d from the next turn on", effort);
    }
}

static void compact_came(struct run *run, struct view remark) {
    bool is_idle = agent_is_idle(run->agent);
    if (run->change != NULL) {
        say(run, "it works: wait");
        return;
    }
    if (is_idle && !agent_can_compact(run->agent)) {
        say(run, "there is nothing to make smaller yet");
        return;
    }
    if (remark.length > AGENT_HISTORY_PERSON_BYTES || !utf8_is_valid(remark)) {
        say(run,
            "what a summary is to keep is said in %d bytes of UTF-8",
            AGENT_HISTORY_PERSON_BYTES);
        return;
    }
    if (!is_idle) {
        say(run, "the context is made smaller before the next turn");
    }
    run_dispatch(run, &(struct agent_event){.type = AGENT_ASK_COMPACT, .text = remark});
}

static void clear_came(struct run *run) {
    if (!agent_is_idle(run->agent) || run->command != NULL || run->change != NULL) {
        say(run, "it works: interrupt it first, or wait");
    } else if (!agent_has_begun(run->agent) && run->resume == NULL) {
        say(run, "nothing was done in this session yet");
    } else {
        run->begins_anew = true;
        run_dispatch(run, &(struct agent_event){.type = AGENT_QUIT});
    }
}

static void command_came(struct run *run, const struct run_input *input) {
    if (input->command == RUN_COMMAND_EFFORT) {
        effort_came(run, input->text);
    } else if (input->command == RUN_COMMAND_COMPACT) {
        compact_came(run, input->text);
    } else if (input->command == RUN_COMMAND_QUIT) {
        end_by(run, AGENT_QUIT, "");
    } else if (input->command == RUN_COMMAND_MODEL && run->options->is_interactive) {
        run_change_model(run, input->text);
    } else if (input->command == RUN_COMMAND_CLEAR && run->options->is_interactive) {
        clear_came(run);
    } else if (!run->options->is_interactive) {
        say(run, "this run takes no commands: it does one task");
    } else {
        run_command(run, input);
    }
}

void run_take_input(struct run *run, const struct run_input *input) {
    if (run->is_ending) {
        return;
    }
    if (input->type == RUN_INPUT_MESSAGE) {
        message_came(run, input->text);
    } else if (input->type == RUN_INPUT_INTERRUPT) {
        run_interrupt(run, input->is_steering);
    } else if (input->type == RUN_INPUT_COMMAND) {
        command_came(run, input);
    } else if (input->type == RUN_INPUT_ANSWER) {
        run_call_answer(run, input);
    } else if (input->type == RUN_INPUT_END) {
        run->input_has_ended = true;
        run_call_nobody(run);
        run_dispatch(run, &(struct agent_event){.type = AGENT_INPUT_END});
    }
}

void loop_input(struct loop *loop, const struct run_input *input) {
    if (loop->person != NULL) {
        run_take_input(loop->person, input);
    }
}

bool loop_begins_anew(const struct loop *loop) {
    return loop->person != NULL && loop->person->begins_anew;
}

bool loop_waits(const struct loop *loop) {
    const struct run *run = loop->person;
    return run != NULL && !run->is_ending && run->command == NULL && run->change == NULL &&
           (agent_is_idle(run->agent) || run->call.phase == RUN_CALL_ASKS);
}

void run_say_unsent(struct run *run) {
    for (size_t i = 0; i < agent_queued(run->agent); i++) {
        struct view text = view_slice(agent_queued_text(run->agent, i), 0, UNSENT_BYTES_MAX);
        char line[UNSENT_BYTES_MAX + 80];
        int length = snprintf(
            line,
            sizeof line,
            "a message was not given to the model and is not recorded: %.*s",
            VIEW_ARGUMENTS(text)
        );
        ASSERT(length > 0 && (size_t)length < sizeof line);
        struct run_event warning = {.type = RUN_WARNING, .text = view_of_text(line)};
        run_show(run, &warning);
    }
}
