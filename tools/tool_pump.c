/* The queue, the descriptors and the thread of a pump, and its work around a sandboxed call. */
#include "tool_pump.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define FEED_BYTES  ((size_t)64 << 10) /* what a pipe takes at once */
#define STEP_MS_MAX 1000               /* a step at least so often, whatever happens */

struct pump {
    pthread_t thread;
    bool has_thread;
    int notice_fd; /* for who waits */
    int wake_fd;   /* for the thread */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* Guarded by the mutex: */
    const struct pump_options *options; /* null once the process was started */
    result started;
    struct error start_error;
    struct buffer input;
    size_t input_at; /* consumed of it */
    bool input_ends;
    bool input_is_dropped;
    unsigned stops; /* not yet passed on */
    bool has_ended;
    struct sandbox_outcome outcome;
    /* The thread's own: */
    sandbox_on_output *on_output;
    void *on_output_context;
};

static void lock(struct pump *pump) {
    int status = pthread_mutex_lock(&pump->mutex);
    ASSERT(status == 0);
}

static void unlock(struct pump *pump) {
    int status = pthread_mutex_unlock(&pump->mutex);
    ASSERT(status == 0);
}

static void signal_fd(int fd) {
    const uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);
    (void)written; // fails only when the counter is full, and then it is readable
}

/* ---- for the thread ------------------------------------------------------------------------- */

struct view pump_input(struct pump *pump, bool *is_last) {
    lock(pump);
    // What is handed out stays where it is: only the thread, which is the caller, moves it.
    struct view all = view_slice(buffer_view(&pump->input), pump->input_at, SIZE_MAX);
    *is_last = pump->input_ends;
    static _Thread_local unsigned char part[FEED_BYTES];
    size_t length = all.length < sizeof part ? all.length : sizeof part;
    if (length > 0) {
        memcpy(part, all.data, length);
    }
    *is_last = *is_last && length == all.length;
    unlock(pump);
    return view_of(part, length);
}

void pump_consume(struct pump *pump, size_t bytes) {
    lock(pump);
    pump->input_at += bytes;
    if (pump->input_at == pump->input.length) {
        buffer_clear(&pump->input);
        pump->input_at = 0;
    }
    unlock(pump);
}

void pump_drop_input(struct pump *pump) {
    lock(pump);
    pump->input_is_dropped = true;
    buffer_clear(&pump->input);
    pump->input_at = 0;
    unlock(pump);
}

unsigned pump_take_stops(struct pump *pump) {
    uint64_t count = 0;
    ssize_t got = read(pump->wake_fd, &count, sizeof count);
    (void)got; // what woke us is looked at below in any case
    lock(pump);
    unsigned stops = pump->stops;
    pump->stops = 0;
    unlock(pump);
    return stops;
}

int pump_wake_fd(const struct pump *pump) {
    return pump->wake_fd;
}

void pump_notify(struct pump *pump) {
    signal_fd(pump->notice_fd);
}

void pump_report_start(struct pump *pump, result started, const struct error *error) {
    lock(pump);
    pump->started = started;
    pump->start_error = *error;
    pump->options = NULL;
    int status = pthread_cond_broadcast(&pump->changed);
    ASSERT(status == 0);
    unlock(pump);
}

static void feed(struct pump *pump, struct sandbox_call *call) {
    bool is_last = false;
    for (;;) {
        struct view input = pump_input(pump, &is_last);
        size_t written = 0;
        if (is_failed(sandbox_call_write_input(call, input, &written, NULL))) {
            pump_drop_input(pump); // it closed its input or has ended
            return;
        }
        pump_consume(pump, written);
        if (written < input.length || input.length == 0) {
            break;
        }
    }
    bool is_empty = pump_input(pump, &is_last).length == 0;
    if (is_empty && is_last) {
        sandbox_call_end_input(call);
        pump_drop_input(pump);
    }
}

static void see_output(void *context, enum sandbox_stream stream, struct view bytes) {
    struct pump *pump = context;
    if (pump->on_output != NULL) {
        pump->on_output(pump->on_output_context, stream, bytes);
    }
    pump_notify(pump);
}

static void run_in_sandbox(
    struct pump *pump, const struct pump_options *options, struct sandbox_outcome *outcome
) {
    struct sandbox_policy policy = *options->policy;
    policy.on_output = see_output;
    policy.on_output_context = pump;
    bool has_input = policy.has_input;
    struct sandbox_call *call = NULL;
    struct error error = {0};
    result started = sandbox_start(options->sandbox, &policy, options->command, &call, &error);
    pump_report_start(pump, started, &error);
    if (is_failed(started)) {
        return;
    }
    while (!sandbox_call_step(call)) {
        if (has_input) {
            feed(pump, call);
        }
        struct pollfd fds[] = {{sandbox_call_fd(call), POLLIN, 0}, {pump->wake_fd, POLLIN, 0}};
        (void)poll(fds, COUNT_OF(fds), STEP_MS_MAX); // interrupted or not, the step looks
        for (unsigned stops = pump_take_stops(pump); stops > 0; stops--) {
            sandbox_call_cancel(call);
        }
    }
    *outcome = *sandbox_call_outcome(call);
    sandbox_call_destroy(call);
}

static void *run(void *context) {
    struct pump *pump = context;
    lock(pump);
    const struct pump_options *options = pump->options;
    unlock(pump);
    struct sandbox_outcome outcome = {0};
    pump->on_output = options->policy->on_output;
    pump->on_output_context = options->policy->on_output_context;
    if (options->sandbox != NULL) {
        run_in_sandbox(pump, options, &outcome);
    } else {
        pump_run_outside(pump, options, &outcome);
    }
    lock(pump);
    pump->outcome = outcome;
    pump->has_ended = true;
    buffer_deinit(&pump->input);
    int status = pthread_cond_broadcast(&pump->changed);
    ASSERT(status == 0);
    unlock(pump);
    pump_notify(pump);
    return NULL;
}

/* ---- for the owner -------------------------------------------------------------------------- */

static result create(struct pump **out, struct error *error) {
    struct pump *pump = calloc(1, sizeof *pump);
    if (pump == NULL) {
        FAIL(error, MEMORY, "no memory for a process");
    }
    pump->notice_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pump->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    buffer_init(&pump->input, PUMP_INPUT_BYTES_MAX);
    pthread_condattr_t attributes;
    int status = pthread_condattr_init(&attributes);
    ASSERT(status == 0);
    status = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    ASSERT(status == 0);
    status = pthread_cond_init(&pump->changed, &attributes);
    ASSERT(status == 0); // glibc's need no memory of their own
    (void)pthread_condattr_destroy(&attributes);
    status = pthread_mutex_init(&pump->mutex, NULL);
    ASSERT(status == 0);
    *out = pump;
    if (pump->notice_fd < 0 || pump->wake_fd < 0) {
        int number = errno;
        FAIL_FOREIGN(error, IO, number, "eventfd: %s", strerror(number));
    }
    return OK;
}

/* Signals are for the host's other threads. */
static int create_thread(struct pump *pump) {
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    int status = pthread_sigmask(SIG_SETMASK, &all, &old);
    ASSERT(status == 0);
    int created = pthread_create(&pump->thread, NULL, run, pump);
    status = pthread_sigmask(SIG_SETMASK, &old, NULL);
    ASSERT(status == 0);
    return created;
}

static result begin(struct pump *pump, const struct pump_options *options, struct error *error) {
    pump->options = options;
    int created = create_thread(pump);
    if (created != 0) {
        FAIL_FOREIGN(error, IO, created, "starting a thread: %s", strerror(created));
    }
    pump->has_thread = true;
    lock(pump);
    while (pump->options != NULL) {
        int status = pthread_cond_wait(&pump->changed, &pump->mutex);
        ASSERT(status == 0);
    }
    result started = pump->started;
    if (is_failed(started) && error != NULL) {
        *error = pump->start_error;
    }
    unlock(pump);
    return started;
}

result pump_start(const struct pump_options *options, struct pump **out, struct error *error) {
    struct pump *pump = NULL;
    result started = create(&pump, error);
    if (is_ok(started)) {
        started = begin(pump, options, error);
    }
    if (is_failed(started)) {
        pump_destroy(pump);
        return started;
    }
    *out = pump;
    return OK;
}

void pump_destroy(struct pump *pump) {
    if (pump == NULL) {
        return;
    }
    if (pump->has_thread) {
        pump_stop(pump);
        pump_stop(pump);
        int status = pthread_join(pump->thread, NULL);
        ASSERT(status == 0);
    }
    fd_cleanup(&pump->notice_fd);
    fd_cleanup(&pump->wake_fd);
    buffer_deinit(&pump->input);
    (void)pthread_mutex_destroy(&pump->mutex);
    (void)pthread_cond_destroy(&pump->changed);
    free(pump);
}

result pump_write(struct pump *pump, struct view bytes, struct error *error) {
    lock(pump);
    bool is_closed = pump->has_ended || pump->input_is_dropped || pump->input_ends;
    if (!is_closed && pump->input_at > 0) {
        buffer_consume(&pump->input, pump->input_at);
        pump->input_at = 0;
    }
    result written = is_closed ? OK : buffer_append(&pump->input, bytes, error);
    unlock(pump);
    if (is_closed) {
        FAIL(error, IO, "it does not read its standard input any more");
    }
    signal_fd(pump->wake_fd);
    return written;
}

void pump_end_input(struct pump *pump) {
    lock(pump);
    pump->input_ends = true;
    unlock(pump);
    signal_fd(pump->wake_fd);
}

void pump_stop(struct pump *pump) {
    lock(pump);
    pump->stops += 1;
    unlock(pump);
    signal_fd(pump->wake_fd);
}

bool pump_has_ended(struct pump *pump) {
    lock(pump);
    bool has_ended = pump->has_ended;
    unlock(pump);
    return has_ended;
}

const struct sandbox_outcome *pump_outcome(struct pump *pump) {
    ASSERT(pump_has_ended(pump)); // and nobody writes it any more
    return &pump->outcome;
}

int pump_notice_fd(const struct pump *pump) {
    return pump->notice_fd;
}

void pump_clear_notice(struct pump *pump) {
    uint64_t count = 0;
    ssize_t got = read(pump->notice_fd, &count, sizeof count);
    (void)got; // not readable is as good as cleared
}

bool pump_wait(struct pump *pump, int64_t time_ms_max) {
    struct timespec until;
    int status = clock_gettime(CLOCK_MONOTONIC, &until);
    ASSERT(status == 0);
    int64_t nanoseconds = until.tv_nsec + time_ms_max % 1000 * 1000000;
    until.tv_sec += (time_t)(time_ms_max / 1000 + nanoseconds / 1000000000);
    until.tv_nsec = (long)(nanoseconds % 1000000000);
    lock(pump);
    while (!pump->has_ended && status == 0) {
        status = pthread_cond_timedwait(&pump->changed, &pump->mutex, &until);
    }
    bool has_ended = pump->has_ended;
    unlock(pump);
    return has_ended;
}
