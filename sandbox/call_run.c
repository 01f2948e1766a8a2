/* A call from start to finish in one thread, and its output as text; all through sandbox.h. */
#include "sandbox.h"

#include <poll.h>

/* What of `input` the pipe takes; ends it behind the last byte. */
static struct view feed(struct sandbox_call *call, struct view input) {
    size_t written = 0;
    bool is_closed = is_failed(sandbox_call_write_input(call, input, &written, NULL));
    input = view_slice(input, written, SIZE_MAX);
    if (is_closed || input.length == 0) { // who does not want it is not made to read it
        sandbox_call_end_input(call);
        return view_of(NULL, 0);
    }
    return input;
}

result sandbox_run_with_input(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    struct view input,
    int cancel_fd,
    struct sandbox_call **out,
    struct error *error
) {
    struct sandbox_policy own = *policy;
    own.has_input = input.length > 0;
    struct sandbox_call *call = NULL;
    TRY(sandbox_start(sandbox, &own, command, &call, error));
    struct pollfd entries[2] = {
        {.fd = sandbox_call_fd(call), .events = POLLIN}, {.fd = cancel_fd, .events = POLLIN}};
    while (!sandbox_call_step(call)) {
        input = feed(call, input);
        int ready = poll(entries, 2, -1);
        if (ready > 0 && entries[1].revents != 0) {
            sandbox_call_cancel(call);
            entries[1].fd = -1; // once; the grace period does the rest
        }
    }
    *out = call;
    return OK;
}

result sandbox_run(
    struct sandbox *sandbox,
    const struct sandbox_policy *policy,
    const char *const *command,
    int cancel_fd,
    struct sandbox_call **out,
    struct error *error
) {
    static const struct view none = {NULL, 0};
    return sandbox_run_with_input(sandbox, policy, command, none, cancel_fd, out, error);
}

result sandbox_call_text(
    const struct sandbox_call *call,
    enum sandbox_stream stream,
    struct buffer *out,
    struct error *error
) {
    ASSERT(sandbox_call_deadline_ms(call) == INT64_MAX); // finished
    struct sandbox_output output = sandbox_call_output(call, stream);
    if (output.dropped == 0) { // one piece: no character or line is torn at the seam
        CLEANUP(buffer_deinit) struct buffer whole;
        buffer_init(&whole, BUFFER_CEILING_DEFAULT);
        TRY(buffer_append(&whole, output.head, error));
        TRY(buffer_append(&whole, output.tail, error));
        return sandbox_sanitise(buffer_view(&whole), SANDBOX_LINE_BYTES_MAX, out, error);
    }
    TRY(sandbox_sanitise(output.head, SANDBOX_LINE_BYTES_MAX, out, error));
    TRY(buffer_append_format(
        out, error, "\n[... %llu bytes left out ...]\n", (unsigned long long)output.dropped
    ));
    return sandbox_sanitise(output.tail, SANDBOX_LINE_BYTES_MAX, out, error);
}
