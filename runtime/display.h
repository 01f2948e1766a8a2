/* What a person or a program sees of a run: events in, lines out.
 *
 * Three forms: JSON lines (docs/json-events.md), plain lines, and a live view for a terminal with a
 * status line that is rewritten in place. Text of models and tools is made harmless before it is
 * shown. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_DISPLAY_H
#define HEARTH_RUNTIME_DISPLAY_H

#include "engine/chat.h"
#include "engine/engine.h"
#include "output.h"
#include "sandbox/workspace.h"
#include "tools/tool.h"

enum display_form { DISPLAY_JSON, DISPLAY_PLAIN, DISPLAY_TERMINAL };

enum run_event_type {
    RUN_SESSION, /* begin of the run */
    RUN_EARLIER, /* what a resumed session has said before: earlier; text: its todo list; not JSON */
    RUN_TURN,    /* a generation starts */
    RUN_REASONING,   /* text */
    RUN_CONTENT,     /* text */
    RUN_PROBLEM,     /* something in the model's output was skipped: problem, text */
    RUN_TOKEN,       /* one sampled token, when asked for; JSON only */
    RUN_USAGE,       /* facts of a generation; text: the stop string that ended it */
    RUN_RESUMED,     /* what the first one of a resumed session reused: facts, context_tokens */
    RUN_TOOL_CALL,   /* call */
    RUN_TOOL_RESULT, /* call, tool */
    RUN_CHANGES,     /* difference of the workspace between begin and end */
    RUN_NOTE,        /* text: one line of the host */
    RUN_WARNING,     /* text: what does not work, or what to look at; the run goes on */
    RUN_STUCK,       /* a generation stands still: stuck */
    RUN_STATISTICS,  /* what the engine does, now and then while it generates; JSON only */
    RUN_IDLE,   /* waits for the person: stop, stop_text, detail say why; stop null: no task yet */
    RUN_QUEUED, /* text: a message that is given before the next turn; queued */
    RUN_USER,   /* text: a message of the person as it enters the context */
    RUN_ASK,    /* may this call run: question, call, reason_text */
    RUN_DECISION,    /* on a call: call, verdict, decided_by, reason_text */
    RUN_TOOL_OUTPUT, /* call, text: a piece of its output while it runs */
    RUN_HOOK,        /* text: what a hook said or did; hook */
    RUN_COMPACTED,   /* the context was made shorter: tokens_before, tokens_after */
    RUN_FINISHED
};

/* Where the run stands, for the status line. */
struct run_status {
    int32_t context_tokens, context_max;
    int32_t context_left; /* before it is made smaller, or is full */
    int64_t tokens_sampled;
    int64_t prompt_tokens, reused_tokens, evaluated_tokens, rebuilt_tokens;
    int64_t drafted_tokens, accepted_tokens, preempted;
    double tokens_per_second; /* of the present or the last generation; 0: not known */
    int64_t time_left_ms;     /* -1: no budget */
    int64_t tokens_max;       /* budget of tokens_sampled; 0: none */
    int32_t calls, calls_max; /* of tools, and their budget; 0: none */
    int32_t effort;           /* CHAT_EFFORT_OFF, or 1..100 */
    int32_t turn, turns_max;
    int32_t turns_before;                /* of these, before the session was resumed */
    int32_t prefill_done, prefill_total; /* while a prompt is evaluated, else 0 */
    const char *activity;                /* "thinking", "shell", ... */
};

#define DISPLAY_SCHEMA_VERSION 2 /* of the JSON events */

struct run_event {
    enum run_event_type type;
    const struct run_status *status;
    const char *agent; /* of a swarm: its name; null: there is one agent; JSON only */
    struct view text;

    /* SESSION */
    const char *session_id;
    struct view task, workspace, model, tools; /* tools: declarations as JSON */
    const struct engine_info *engine;
    const struct sampling *sampling;
    struct view settings; /* the rest of what decides what is sampled, as JSON */
    int32_t effort;
    const char *window;
    int64_t time_ms_max, tokens_max;
    bool is_resumed;
    int32_t context_tokens; /* recorded ones, also of RESUMED */

    const struct chat_message *earlier; /* EARLIER: [earlier_count], the system's first */
    size_t earlier_count;

    enum chat_problem problem; /* PROBLEM */

    const struct tokenizer *tokenizer; /* TOKEN */
    const struct engine_event *token;

    const struct engine_stuck *stuck;           /* STUCK */
    const struct engine_statistics *statistics; /* STATISTICS */

    const struct generation_facts *facts; /* USAGE */
    enum finish_reason reason;

    const struct chat_call *call;           /* TOOL_*, ASK, DECISION */
    const struct tool_overwrite *overwrite; /* TOOL_CALL, ASK: of it, null: not known; not JSON */
    const struct tool_result *tool;         /* TOOL_RESULT */

    const struct workspace_difference *difference; /* CHANGES */
    const char *commit_before, *commit_after;
    bool shows_patch; /* CHANGES: the difference itself, where it is there */

    size_t queued;                    /* QUEUED: messages that wait */
    uint64_t question;                /* ASK: for the answer, see loop.h */
    bool shows_call;                  /* ASK: again, with the whole of the call; not JSON */
    const char *verdict, *decided_by; /* DECISION: "allow", "deny"; "rule", "person", ... */
    bool has_always;         /* ASK: "always" can be answered; it adds a rule for the tool and */
    struct view pattern;     /* this; empty: any call of it */
    struct view reason_text; /* ASK, DECISION: a few words, may be empty */
    const char *hook;        /* HOOK: "before_tool", "after_tool", "stop" */
    int32_t tokens_before, tokens_after; /* COMPACTED, with facts of the new context's prefill; */
    int32_t outputs_removed;             /* text: the summary, may be empty; */
    const struct generation_facts *summary_facts; /* null: none was asked for */

    /* FINISHED, IDLE */
    const char *stop, *stop_text, *detail;
    int exit_status;
    int64_t duration_ms;
    const char *state_option; /* EARLIER too: " --state DIR" when the run had one, else "" */
};

struct display_options {
    enum display_form form;
    bool has_colour;
    int width;           /* columns; 0: 80 */
    int height;          /* rows; 0: 24 */
    bool keeps_markdown; /* the model's text is shown as it stands, in the live view, too */
};

struct display;

/* JSON for a pipe when asked for, else plain; a terminal gets the live view unless TERM is "dumb".
 * Colour only on a terminal without NO_COLOR. */
struct display_options display_options_for(int fd, bool json);

MUST_CHECK result display_create(
    struct display **out,
    const struct display_options *options,
    struct output *output,
    struct error *error
);
void display_destroy(struct display *display);
void display_event(struct display *display, const struct run_event *event);
/* Redraws the status line of the live view; does nothing in the other forms. */
void display_status(struct display *display, const struct run_status *status);
void display_set_size(struct display *display, int width, int height);
/* Removes the status line, so that something else may write to the terminal. */
void display_end(struct display *display);
/* After that: another run is shown. */
void display_begin_again(struct display *display);

/* ---- for the input of a person (terminal.h) ---- */

/* Sees every event but those of the JSON form, after it was shown, and changes of the size. */
struct display_front {
    void *context;
    void (*event)(void *context, const struct run_event *event);
    void (*resized)(void *context);
};
void display_set_front(struct display *display, const struct display_front *front); /* null: none */
bool display_is_live(const struct display *display);
bool display_is_for_people(const struct display *display); /* every form but JSON */
int display_width(const struct display *display);
int display_height(const struct display *display);

/* The rows of the input above the status line of the live view, and where the cursor stands. */
struct display_prompt {
    struct view rows; /* each ended by a newline and narrower than the display; copied */
    size_t cursor_row;
    int cursor_column;
};
/* Drawn at once. Null: none. */
void display_set_prompt(struct display *display, const struct display_prompt *prompt);
/* Lines of the program itself, such as help; made harmless. */
void display_say(struct display *display, struct view text);
/* Shows thinking in full, that of the last turn too, or folds what follows to one line. */
void display_toggle_thinking(struct display *display);
/* While it is paused, nothing is written to the terminal; afterwards all is drawn again. */
void display_pause(struct display *display, bool is_paused);

/* One event as a line of JSON. Expected errors: MEMORY, LIMIT. */
MUST_CHECK result
display_json_event(struct buffer *out, const struct run_event *event, struct error *error);

#endif
