/* spawn, fork, message, wait, receive, cancel, merge: the model's side of tool_agents.h. */
#include "tool_agents.h"
#include "tool_internal.h"

#define TEXT_BYTES_MAX   ((size_t)8 << 20)
#define NAME_SHOWN_BYTES 64

/* ---- arguments --------------------------------------------------------------------------------- */

static bool is_name(struct view name) {
    for (size_t i = 0; i < name.length; i++) {
        unsigned char c = name.data[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_letter && c != '-' && c != '_') {
            return false;
        }
    }
    return name.length > 0 && name.length < TOOL_AGENTS_NAME_BYTES;
}

/* As those below: where `is_fine` becomes false, the answer says why. */
static result
check_name(struct view name, bool *is_fine, struct tool_result *out, struct error *error) {
    *is_fine = is_name(name);
    if (*is_fine) {
        return OK;
    }
    return tool_answer(
        out,
        TOOL_REFUSED,
        error,
        "error: \"%.*s\" is no name of an agent: 1 to %d letters, digits, - and _",
        (int)(name.length > NAME_SHOWN_BYTES ? NAME_SHOWN_BYTES : name.length),
        (const char *)name.data,
        TOOL_AGENTS_NAME_BYTES - 1
    );
}

static result check_text(
    const char *what,
    struct view text,
    size_t bytes_max,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    *is_fine = text.length > 0 && text.length <= bytes_max;
    if (*is_fine) {
        return OK;
    }
    return tool_answer(
        out, TOOL_REFUSED, error, "error: %s has %zu bytes: 1 to %zu", what, text.length, bytes_max
    );
}

/* Left out: 0. */
static result take_number(
    struct json_value arguments,
    const char *name,
    int64_t most,
    int64_t *number,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    *is_fine = !json_as_i64(json_get(arguments, name), number) || (*number >= 1 && *number <= most);
    if (*is_fine) {
        return OK;
    }
    return tool_answer(
        out,
        TOOL_REFUSED,
        error,
        "error: %s is %lld: 1 to %lld",
        name,
        (long long)*number,
        (long long)most
    );
}

/* At most TOOL_AGENTS_MAX strings; none when left out. */
static result take_list(
    struct json_value arguments,
    const char *name,
    struct view items[TOOL_AGENTS_MAX],
    size_t *count,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    struct json_value list = json_get(arguments, name);
    *is_fine = json_count(list) <= TOOL_AGENTS_MAX;
    if (!*is_fine) {
        return tool_answer(
            out,
            TOOL_REFUSED,
            error,
            "error: %zu %s: at most %d",
            json_count(list),
            name,
            TOOL_AGENTS_MAX
        );
    }
    struct json_value item = json_first(list);
    for (; json_type(item) != JSON_ABSENT; item = json_next(item)) {
        bool is_text = json_as_string(item, &items[*count]);
        ASSERT(is_text); /* the schema says so */
        *count += 1;
    }
    return OK;
}

static result take_names(
    struct json_value arguments,
    struct tool_agents_ask *ask,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    TRY(take_list(arguments, "names", ask->names, &ask->name_count, is_fine, out, error));
    for (size_t i = 0; *is_fine && i < ask->name_count; i++) {
        TRY(check_name(ask->names[i], is_fine, out, error));
    }
    return OK;
}

static result take_name(
    struct json_value arguments,
    struct tool_agents_ask *ask,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    ask->names[0] = tool_argument(arguments, "name");
    ask->name_count = 1;
    return check_name(ask->names[0], is_fine, out, error);
}

static enum tool_agents_join join_of(struct json_value arguments) {
    struct view join = tool_argument(arguments, "join");
    return view_equals_text(join, "any")       ? TOOL_AGENTS_ANY
           : view_equals_text(join, "passing") ? TOOL_AGENTS_PASSING
                                               : TOOL_AGENTS_ALL;
}

static result take_share(
    struct json_value arguments,
    struct tool_agents_ask *ask,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    TRY(take_number(arguments, "tokens", TOOL_AGENTS_TOKENS_MAX, &ask->tokens, is_fine, out, error)
    );
    if (*is_fine) {
        TRY(take_number(
            arguments, "time_ms", TOOL_AGENTS_TIME_MS_MAX, &ask->time_ms, is_fine, out, error
        ));
    }
    return OK;
}

/* How long a wait lasts: as asked for, and not beyond the deadline of the run. */
static result take_timeout(
    const struct tool_context *context,
    struct json_value arguments,
    struct tool_agents_ask *ask,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    TRY(take_number(
        arguments, "timeout", TOOL_AGENTS_TIME_MS_MAX, &ask->time_ms, is_fine, out, error
    ));
    int64_t left_ms = context->run_ms_left;
    if (left_ms > 0 && (ask->time_ms == 0 || ask->time_ms > left_ms)) {
        ask->time_ms = left_ms;
    }
    return OK;
}

/* ---- asking the host --------------------------------------------------------------------------- */

/* What the host wrote is made harmless and cut. */
static result
put(struct tool_context *context,
    const struct tool_agents_ask *ask,
    struct tool_agents_answer *answer,
    struct tool_result *out,
    struct error *error) {
    const struct tool_agents *agents = context->options.agents;
    ASSERT(ask->brief_count <= TOOL_AGENTS_MAX && ask->name_count <= TOOL_AGENTS_MAX);
    CLEANUP(buffer_deinit) struct buffer text = {NULL, 0, 0, 0};
    buffer_init(&text, TEXT_BYTES_MAX);
    *answer = (struct tool_agents_answer){.status = TOOL_ERROR, .text = &text};
    TRY(agents->ask(agents->context, ask, answer, error));
    answer->text = NULL;
    out->status = answer->status;
    buffer_clear(&out->text);
    buffer_clear(&out->output);
    TRY(buffer_append(&out->output, buffer_view(&text), error));
    out->output_bytes = out->output.length;
    struct view raw = buffer_view(&out->output);
    return tool_append_cut(
        out, raw, tool_cut_lines(raw, context->options.text_bytes_max), 0, error
    );
}

static result ask_host(
    struct tool_context *context,
    struct tool_agents_ask *ask,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_answer answer;
    ask->cancel_fd = context->cancel_fd;
    return put(context, ask, &answer, out, error);
}

/* One agent that begins with nothing, or with this conversation; `waits`: the result is the answer. */
static result start_one(
    struct tool_context *context,
    struct json_value arguments,
    bool is_fork,
    bool waits,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {
        .verb = is_fork ? TOOL_AGENTS_FORK : TOOL_AGENTS_SPAWN,
        .briefs = {tool_argument(arguments, "task")},
        .brief_count = 1,
        .count = 1,
        .name = tool_argument(arguments, "name"),
        .cancel_fd = context->cancel_fd,
    };
    bool is_fine = true;
    TRY(check_text("the task", ask.briefs[0], TOOL_AGENTS_BRIEF_BYTES_MAX, &is_fine, out, error));
    if (is_fine && ask.name.length > 0) {
        TRY(check_name(ask.name, &is_fine, out, error));
    }
    if (is_fine) {
        TRY(take_share(arguments, &ask, &is_fine, out, error));
    }
    if (!is_fine) {
        return OK;
    }
    struct tool_agents_answer answer;
    TRY(put(context, &ask, &answer, out, error));
    if (!waits || is_fork || answer.status != TOOL_OK) {
        return OK;
    }
    answer.started[sizeof answer.started - 1] = '\0';
    struct tool_agents_ask wait = {
        .verb = TOOL_AGENTS_WAIT,
        .names = {view_of_text(answer.started)},
        .name_count = 1,
        .time_ms = context->run_ms_left,
    };
    ASSERT(is_name(wait.names[0]));
    struct tool_agents_answer ended;
    wait.cancel_fd = context->cancel_fd;
    return put(context, &wait, &ended, out, error);
}

/* ---- the tools --------------------------------------------------------------------------------- */

result tool_run_spawn(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    return start_one(context, arguments, false, false, out, error);
}

/* As Claude Code has it: the call waits unless told otherwise, and a kind of agent is the fork. */
result tool_run_agent(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    bool is_fork = view_equals_text(tool_argument(arguments, "kind"), "fork");
    bool is_background = false;
    (void)json_as_bool(json_get(arguments, "background"), &is_background);
    return start_one(context, arguments, is_fork, !is_background, out, error);
}

/* As Codex has it. */
result tool_run_spawn_agent(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    bool is_fork = false;
    (void)json_as_bool(json_get(arguments, "fork"), &is_fork);
    return start_one(context, arguments, is_fork, false, out, error);
}

static result check_briefs(
    struct tool_agents_ask *ask,
    bool has_count,
    bool *is_fine,
    struct tool_result *out,
    struct error *error
) {
    for (size_t i = 0; *is_fine && i < ask->brief_count; i++) {
        char what[32];
        int length = snprintf(what, sizeof what, "brief %zu", i + 1);
        ASSERT(length > 0 && (size_t)length < sizeof what);
        TRY(check_text(what, ask->briefs[i], TOOL_AGENTS_BRIEF_BYTES_MAX, is_fine, out, error));
    }
    if (!*is_fine) {
        return OK;
    }
    *is_fine = (ask->brief_count > 0 || has_count) &&
               (ask->brief_count == 0 || !has_count || ask->count == (int64_t)ask->brief_count);
    if (!*is_fine) {
        return tool_answer(
            out,
            TOOL_REFUSED,
            error,
            "error: count is %lld with %zu briefs: give briefs, or a count of agents without them",
            (long long)ask->count,
            ask->brief_count
        );
    }
    ask->count = ask->brief_count > 0 ? (int64_t)ask->brief_count : ask->count;
    return OK;
}

result tool_run_fork(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {.verb = TOOL_AGENTS_FORK, .join = join_of(arguments)};
    bool is_fine = true;
    TRY(take_list(arguments, "briefs", ask.briefs, &ask.brief_count, &is_fine, out, error));
    if (is_fine) {
        TRY(take_number(arguments, "count", TOOL_AGENTS_MAX, &ask.count, &is_fine, out, error));
    }
    if (is_fine) {
        TRY(check_briefs(&ask, ask.count > 0, &is_fine, out, error));
    }
    if (is_fine) {
        TRY(take_share(arguments, &ask, &is_fine, out, error));
    }
    return is_fine ? ask_host(context, &ask, out, error) : OK;
}

result tool_run_message(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {
        .verb = TOOL_AGENTS_SEND, .text = tool_argument(arguments, "message")};
    bool is_fine = true;
    TRY(take_name(arguments, &ask, &is_fine, out, error));
    if (is_fine) {
        TRY(check_text("the message", ask.text, TOOL_AGENTS_MESSAGE_BYTES_MAX, &is_fine, out, error)
        );
    }
    return is_fine ? ask_host(context, &ask, out, error) : OK;
}

static result wait_for(
    struct tool_context *context,
    struct json_value arguments,
    enum tool_agents_join join,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {.verb = TOOL_AGENTS_WAIT, .join = join};
    bool is_fine = true;
    TRY(take_names(arguments, &ask, &is_fine, out, error));
    if (is_fine) {
        TRY(take_timeout(context, arguments, &ask, &is_fine, out, error));
    }
    return is_fine ? ask_host(context, &ask, out, error) : OK;
}

result tool_run_wait(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    return wait_for(context, arguments, join_of(arguments), out, error);
}

/* As Codex has it: until one of them has ended. */
result tool_run_wait_agent(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    return wait_for(context, arguments, TOOL_AGENTS_ANY, out, error);
}

result tool_run_receive(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {.verb = TOOL_AGENTS_RECEIVE};
    bool is_fine = true;
    TRY(take_timeout(context, arguments, &ask, &is_fine, out, error));
    return is_fine ? ask_host(context, &ask, out, error) : OK;
}

result tool_run_cancel(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {.verb = TOOL_AGENTS_CANCEL};
    bool is_fine = true;
    TRY(take_names(arguments, &ask, &is_fine, out, error));
    if (is_fine && ask.name_count == 0) {
        return tool_answer(
            out, TOOL_REFUSED, error, "error: 0 names: 1 to %d agents to cancel", TOOL_AGENTS_MAX
        );
    }
    return is_fine ? ask_host(context, &ask, out, error) : OK;
}

/* As Codex has it: one agent. */
result tool_run_close_agent(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {.verb = TOOL_AGENTS_CANCEL};
    bool is_fine = true;
    TRY(take_name(arguments, &ask, &is_fine, out, error));
    return is_fine ? ask_host(context, &ask, out, error) : OK;
}

result tool_run_merge(
    struct tool_context *context,
    struct json_value arguments,
    struct tool_result *out,
    struct error *error
) {
    struct tool_agents_ask ask = {.verb = TOOL_AGENTS_MERGE};
    bool is_fine = true;
    TRY(take_name(arguments, &ask, &is_fine, out, error));
    return is_fine ? ask_host(context, &ask, out, error) : OK;
}
