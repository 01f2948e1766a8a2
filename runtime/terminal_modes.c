/* See terminal_modes.h. */
#include "terminal_modes.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <termios.h>
#include <unistd.h>

#define BEGIN_TEXT "\x1b[?2004h"          /* bracketed paste */
#define END_TEXT   "\x1b[?2004l\x1b[0m\r" /* and no colour */

static const int fatal_signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGSYS};

/* `before` and the descriptors are written before is_changed is set. */
static struct {
    atomic_bool is_changed;
    int input, output;
    struct termios before;
    bool has_handlers;
    struct sigaction handlers[COUNT_OF(fatal_signals)]; /* that stood there before */
} state;

void terminal_modes_leave(void) {
    int code = errno;
    if (atomic_exchange(&state.is_changed, false)) {
        /* The terminal may be gone, or block: then nothing can be restored. */
        (void)tcsetattr(state.input, TCSANOW, &state.before);
        ssize_t written = write(state.output, END_TEXT, sizeof END_TEXT - 1);
        (void)written;
    }
    errno = code;
}

/* The handler that stood there before gets the signal again. */
static void fault(int number) {
    terminal_modes_leave();
    for (size_t i = 0; i < COUNT_OF(fatal_signals); i++) {
        if (fatal_signals[i] == number) {
            (void)sigaction(number, &state.handlers[i], NULL);
        }
    }
    (void)raise(number);
}

static void handle_faults(void) {
    if (state.has_handlers) {
        return;
    }
    state.has_handlers = true;
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_NODEFER};
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < COUNT_OF(fatal_signals); i++) {
        struct sigaction *old = &state.handlers[i];
        if (sigaction(fatal_signals[i], NULL, old) == 0 && old->sa_handler != SIG_IGN) {
            (void)sigaction(fatal_signals[i], &action, NULL);
        }
    }
}

result terminal_modes_enter(int input, int output, struct error *error) {
    ASSERT(!atomic_load(&state.is_changed));
    struct termios modes;
    if (tcgetattr(input, &modes) != 0) {
        int code = errno;
        FAIL_FOREIGN(error, IO, code, "standard input is no terminal: %s", strerror(code));
    }
    state.before = modes;
    state.input = input;
    state.output = output;
    modes.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    modes.c_iflag &= ~(tcflag_t)(IXON | ICRNL | INLCR | IGNCR | ISTRIP | BRKINT);
    modes.c_oflag |= OPOST | ONLCR;
    modes.c_cc[VMIN] = 0; /* a read never waits */
    modes.c_cc[VTIME] = 0;
    handle_faults();
    atomic_store(&state.is_changed, true);
    if (tcsetattr(input, TCSANOW, &modes) != 0) {
        int code = errno;
        atomic_store(&state.is_changed, false);
        FAIL_FOREIGN(error, IO, code, "cannot set the modes of the terminal: %s", strerror(code));
    }
    ssize_t written = write(output, BEGIN_TEXT, sizeof BEGIN_TEXT - 1);
    (void)written; /* pasted text comes as keys then */
    return OK;
}

bool terminal_is_ours(int input) {
    return tcgetpgrp(input) == getpgrp();
}
