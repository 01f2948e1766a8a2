/* Writing to a command without waiting and without SIGPIPE. */
#include "input_pipe.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

result input_pipe_watch(struct input_pipe *pipe, int epoll_fd, struct error *error) {
    pipe->epoll_fd = epoll_fd;
    struct epoll_event event = {.events = 0, .data.fd = pipe->fd};
    if (pipe->fd >= 0 && epoll_ctl(epoll_fd, EPOLL_CTL_ADD, pipe->fd, &event) != 0) {
        FAIL_FOREIGN(error, IO, errno, "watching a command's input: %s", strerror(errno));
    }
    return OK;
}

/* write(2) without SIGPIPE, whatever this process does with that signal. */
static ssize_t write_quietly(int fd, struct view bytes) {
    sigset_t pipe_signal;
    sigset_t old;
    sigset_t pending;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    sigemptyset(&pending);
    (void)sigpending(&pending);
    int status = pthread_sigmask(SIG_BLOCK, &pipe_signal, &old);
    ASSERT(status == 0);
    ssize_t written = write(fd, bytes.data, bytes.length);
    int number = errno;
    if (written < 0 && number == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
        static const struct timespec at_once = {0, 0};
        (void)sigtimedwait(&pipe_signal, NULL, &at_once); // ours: taken off before it is let in
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = number;
    return written;
}

static void wait_for_room(struct input_pipe *pipe, bool wait) {
    struct epoll_event event = {.events = wait ? EPOLLOUT : 0, .data.fd = pipe->fd};
    if (pipe->fd >= 0 && pipe->waits_for_room != wait &&
        epoll_ctl(pipe->epoll_fd, EPOLL_CTL_MOD, pipe->fd, &event) == 0) {
        pipe->waits_for_room = wait;
    }
}

result
input_pipe_write(struct input_pipe *pipe, struct view bytes, size_t *written, struct error *error) {
    *written = 0;
    while (bytes.length > 0) {
        if (pipe->fd < 0) {
            FAIL(error, IO, "the command's standard input is closed");
        }
        ssize_t part = write_quietly(pipe->fd, bytes);
        int number = errno;
        if (part < 0 && number == EINTR) {
            continue;
        }
        if (part < 0 && number == EAGAIN) {
            wait_for_room(pipe, true);
            return OK;
        }
        if (part < 0) {
            input_pipe_close(pipe);
            FAIL_FOREIGN(error, IO, number, "writing to the command: %s", strerror(number));
        }
        *written += (size_t)part;
        bytes = view_slice(bytes, (size_t)part, SIZE_MAX);
    }
    return OK;
}

void input_pipe_step(struct input_pipe *pipe) {
    struct pollfd entry = {.fd = pipe->fd, .events = 0};
    wait_for_room(pipe, false);
    if (pipe->fd >= 0 && poll(&entry, 1, 0) > 0) { // an error is told without being asked for
        input_pipe_close(pipe);
    }
}

void input_pipe_close(struct input_pipe *pipe) {
    if (pipe->fd >= 0) {
        (void)epoll_ctl(pipe->epoll_fd, EPOLL_CTL_DEL, pipe->fd, NULL);
        close(pipe->fd);
    }
    pipe->fd = -1;
    pipe->waits_for_room = false;
}
