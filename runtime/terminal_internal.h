/* Between the files of the terminal: its place in the loop (terminal.c) and what keys do
 * (terminal_input.c). See terminal.h. Thread: loop.
 */
#ifndef HEARTH_RUNTIME_TERMINAL_INTERNAL_H
#define HEARTH_RUNTIME_TERMINAL_INTERNAL_H

#include "person.h"
#include "terminal.h"
#include "terminal_complete.h"
#include "terminal_editor.h"
#include "terminal_keys.h"

#include "sandbox/beneath.h"
#include <uv.h>

struct terminal {
    struct run_front front;
    struct terminal_options options;
    struct loop *loop;
    uv_loop_t *uv;
    struct keys *keys;
    struct editor *editor;
    struct beneath *workspace;
    bool is_attached, is_paused;

    int fd; /* a description of its own, so that the shell's stays as it is */
    uv_poll_t poll;
    uv_timer_t waiting; /* for the rest of a key, or a completion */
    bool is_held;       /* keys wait for the completion that comes before them */
    uv_timer_t pausing; /* until what was drawn is written */
    uv_signal_t stop, go_on;
    int pause_tries;

    bool is_idle;
    uv_timer_t asking; /* until the question is asked: what is typed on is no answer to it */
    bool is_asking;    /* the line is an answer */
    struct person person;
    struct buffer draft; /* what was typed when the question came */
    int64_t escape_ms, interrupt_ms;
    int interrupts;     /* on end */
    struct buffer rows; /* scratch of the prompt */

    /* On a worker: a line for the history. Further ones wait, each ended by a NUL. */
    uv_work_t remember;
    bool is_remembering;
    struct buffer unwritten, writing;
    /* On a worker: a completion, which counts while nothing else was typed. */
    uv_work_t complete;
    bool is_completing;
    struct buffer to_complete;
    struct completion completion;
    uint64_t edits, complete_edits;
};

/* ---- terminal.c ---- */
void terminal_take_keys(struct terminal *terminal);
void terminal_draw(struct terminal *terminal);
void terminal_say(struct terminal *terminal, const char *text);
void terminal_pause(struct terminal *terminal);
int64_t terminal_now_ms(const struct terminal *terminal);

/* ---- terminal_input.c ---- */
void terminal_key(struct terminal *terminal, const struct key *key);
void terminal_end_question(struct terminal *terminal);

/* ---- terminal_workers.c ---- */
void terminal_remember(struct terminal *terminal, struct view line);
void terminal_complete(struct terminal *terminal);

#endif
