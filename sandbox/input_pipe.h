/* The host's end of a command's standard input. Internal to sandbox/.
 *
 * It is known to the call's epoll descriptor but watched only between a write that did not fit and
 * the next step, so that a pipe which is full for good wakes nobody. Thread: the call's.
 */
#ifndef HEARTH_SANDBOX_INPUT_PIPE_H
#define HEARTH_SANDBOX_INPUT_PIPE_H

#include "base/bytes.h"

struct input_pipe {
    int fd;       /* -1: none, or closed */
    int epoll_fd; /* borrowed */
    bool waits_for_room;
};

/* Expected errors: IO. */
MUST_CHECK result input_pipe_watch(struct input_pipe *pipe, int epoll_fd, struct error *error);
/* See sandbox_call_write_input. */
MUST_CHECK result
input_pipe_write(struct input_pipe *pipe, struct view bytes, size_t *written, struct error *error);
/* Before what may write again: no longer waits for room; closes a pipe that nobody reads. */
void input_pipe_step(struct input_pipe *pipe);
void input_pipe_close(struct input_pipe *pipe);

#endif
